/* SPDX-License-Identifier: Apache-2.0 */
/* weights/layout.h - the units of a model, and the place of each tensor in its unit.
 *
 * A version is an array of units.  A unit (the embedding, one transformer layer, the head) is one
 * flat buffer, padded to HZP_UNIT_ALIGN elements; its tensors are views of it.  Matrices that one
 * product reads are stored as one matrix: q, k and v; gate and up.  In a unit the matrices come
 * first, then the vectors (norms, biases): weight decay applies to the first `decayed` elements
 * only.  Each tensor begins at a multiple of HZP_UNIT_ALIGN elements; the padding between tensors
 * is zero and stays zero.  Gradients, moments and residuals have the same units.  struct hzp_units
 * (weights/units.h) has the address of each unit.
 *
 * Units may differ in size, even between layers: always read sizes from the layout, never from the
 * configuration.
 *
 * Names on disk appear in families.c and nowhere else.
 *
 * Thread: any; a layout never changes once made.
 */
#pragma once

#include "weights/config.h"
#include "weights/roles.h"

enum { HZP_UNIT_ALIGN = 64 };

/* Which part of each unit a rank has, where several ranks compute each product together
 * (weights/tensor_slice.h).  ranks 0 or 1: all of it. */
struct hzp_tensor_slice {
    int32_t rank, ranks;
};

struct hzp_tensor {
    enum hzp_role role;
    int32_t layer; /* -1: not part of a layer */
    int32_t unit;
    int32_t rows, cols;
    size_t offset; /* elements from the start of the unit */
};

/* Part of a unit. */
struct hzp_extent {
    size_t first, count; /* elements */
};

struct hzp_unit {
    size_t before;   /* elements of all units before it */
    size_t elements; /* padding between and behind tensors included */
    size_t room;     /* elements of memory that it takes: more only after hzp_layout_pad */
    size_t decayed;  /* the first `decayed` elements, the matrices: weight decay applies to them */
    int32_t first, tensors; /* its tensors in layout.tensor, ordered by offset */
};

/* A tensor in a file, or a run of its rows: its name there and the rows of the layout's tensor that
 * it fills.  The tensor in the file is [disk_rows][disk_cols]; this is its rows from disk_row0 and
 * its columns from disk_col0 on.  It is all of it, unless this is a slice's layout, or the family
 * stores several matrices as one: then all runs of the tensor follow each other, in its order. */
struct hzp_disk_tensor {
    char name[96];
    int32_t tensor;               /* index into layout.tensor */
    int32_t row0, rows;           /* rows of a matrix; a vector's elements */
    bool vector;                  /* one dimension on disk */
    int32_t disk_rows, disk_cols; /* a vector's: its elements, 1 */
    int32_t disk_row0, disk_col0;
    /* Where only the first `rotary` of a head's `dim` rows turn, the rows of each head are stored
     * so that those which turn together are dim / 2 apart, as the rope op has them
     * (hzp_disk_row).  0: the rows are in the file's order.  neighbours: in the file they are next
     * to each other, otherwise rotary / 2 apart. */
    int32_t rotary, dim;
    bool neighbours;
};

struct hzp_layout {
    /* With tensor parallelism heads and inner width are this rank's share; the vocabulary is the
     * whole model's. */
    struct hzp_model_config config;
    struct hzp_tensor_slice slice;
    struct hzp_tensor *tensor;
    struct hzp_unit *unit;        /* embedding, layers in order, head */
    struct hzp_disk_tensor *disk; /* ordered by tensor, and so by unit */
    int32_t *by_role;             /* [1 + layers][HZP_ROLE_COUNT] index into tensor; -1: none */
    int32_t tensors, units, disks;
    size_t elements; /* in all units of one version */
    /* The same units as 8-bit moments have them (device/q8.h), without tensors: `codes` has an
     * element for each one of a unit, `scales` one for each block.  The embedding's moments are
     * not in codes: it has nothing in `codes`, and in `scales` its moments themselves, in F32. */
    struct hzp_layout *codes, *scales;
};

/* The units of a model and what lies where in them; the caller ends it with hzp_layout_free. */
void hzp_layout_make(const struct hzp_model_config *config, struct hzp_layout *ret);
/* The same if layers differ: layer l has the inner width inner[l] [config->layers]. */
void hzp_layout_make_inner(const struct hzp_model_config *config, const int32_t *inner,
                           struct hzp_layout *ret);
/* The layout of one rank's slice of the model, whose numbers hzp_tensor_slice_check has found to be
 * divisible. */
void hzp_layout_make_slice(const struct hzp_model_config *whole, struct hzp_tensor_slice slice,
                           struct hzp_layout *ret);
/* Rounds each unit's room up to a multiple of `granule` elements, so that it can be cut into equal
 * shards.  What lies behind a unit's elements belongs to no tensor: it is neither computed with,
 * nor audited, nor saved.  Call before memory is laid out. */
void hzp_layout_pad(struct hzp_layout *layout, size_t granule);
void hzp_layout_free(struct hzp_layout *layout);

/* Elements of the largest unit, and of the largest room. */
size_t hzp_layout_largest(const struct hzp_layout *layout);
size_t hzp_layout_largest_room(const struct hzp_layout *layout);

/* The tensor of a role; layer -1 for roles that have no layer.  NULL: the model has none.  For a
 * tied model the head is the embedding. */
const struct hzp_tensor *hzp_layout_find(const struct hzp_layout *layout, enum hzp_role role,
                                         int32_t layer);

/* Which row of the run, in the file's order, is row `row` of those that it fills; both from 0. */
int32_t hzp_disk_row(const struct hzp_disk_tensor *d, int32_t row);
/* Whether another run of the same tensor follows. */
bool hzp_layout_continues(const struct hzp_layout *layout, int32_t disk);

/* The inner width of the layer's MLP. */
int32_t hzp_layout_inner(const struct hzp_layout *layout, int32_t layer);
/* The largest of all layers: for a buffer that they use in turn. */
int32_t hzp_layout_inner_max(const struct hzp_layout *layout);
