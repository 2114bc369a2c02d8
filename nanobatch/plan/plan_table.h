/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/plan/plan_table.h - the shape of a step, looked up by its numbers of rows: the results
 * of the search.
 *
 * Each axis (decode rows, prompt rows, rows of training) is cut into a few buckets.  A step gets
 * the entry of the buckets nearest to it, by ratio. No rows of a kind is a bucket of its own. If
 * the table has no entry for the three buckets, the nearest entry is used.
 *
 * Thread: one thread builds the table; then any may read it.
 */
#pragma once

#include "nanobatch/plan/shape.h"

enum { HZP_BUCKETS_MAX = 12, HZP_PLAN_ENTRIES_MAX = HZP_BUCKETS_MAX * HZP_BUCKETS_MAX * 4 };

struct hzp_plan_entry {
    int32_t decode, prefill,
        train; /* rows; train: of the micro-batch whose items are part of the step, 0: none */
    struct hzp_plan_shape shape;
    /* predicted, for this shape and for the sequential plan (plain_) */
    double ns, plain_ns;             /* the step's duration */
    double serve_ns, plain_serve_ns; /* until serving's last item has ended */
    double rate, plain_rate; /* training done / what the whole device would do in that time */
    double goal_ns;          /* the longest the step may take; 0: the step does not train */
    /* measured: how many times better than the sequential plan; 0: it was not run */
    double confirmed;
};

struct hzp_plan_table {
    struct hzp_plan_entry *entry; /* [entries] */
    int32_t entries, room;
    char sought[96]; /* the search's parameters, as text; empty: the search was not completed */
    /* set by hzp_plan_table_index */
    int32_t bucket[3][HZP_BUCKETS_MAX], buckets[3]; /* decode, prefill, train; ascending */
    int16_t cell[HZP_BUCKETS_MAX][HZP_BUCKETS_MAX][HZP_BUCKETS_MAX];
};

/* Empty: every step gets the default shape. */
void hzp_plan_table_init(struct hzp_plan_table *table);
void hzp_plan_table_fini(struct hzp_plan_table *table);

/* Adds an entry, or replaces the one for the same rows; call hzp_plan_table_index before looking it
 * up. HZP_EINVAL: the shape is invalid; HZP_EBUSY: the table is full, or one axis has too many
 * buckets. */
int hzp_plan_table_set(struct hzp_plan_table *table, const struct hzp_plan_entry *entry,
                       struct hzp_err_text *reterr);

/* Indexes the entries set so far for hzp_plan_table_find. */
void hzp_plan_table_index(struct hzp_plan_table *table);

/* The entry for a step of these numbers of rows; NULL: the table is empty. */
const struct hzp_plan_entry *hzp_plan_table_find(const struct hzp_plan_table *table, int32_t decode,
                                                 int32_t prefill, int32_t train);

/* All shapes that the steps of a process may have, borrowed; NULL: there is none of the kind. */
struct hzp_plan_shapes {
    const struct hzp_plan_shape *shape, *beside; /* struct hzp_loop_config */
    const struct hzp_plan_table *plans;
};
/* A number for one of them, or for the sequential one (NULL: -1), the same in all processes with
 * equal settings; and back: false: there is none of that number. */
int32_t hzp_plan_shapes_number(const struct hzp_plan_shapes *shapes,
                               const struct hzp_plan_shape *shape);
bool hzp_plan_shapes_at(const struct hzp_plan_shapes *shapes, int32_t number,
                        const struct hzp_plan_shape **ret);

/* How many shapes a step of the same rows may have, 1 or 2: with training and without. */
int32_t hzp_plan_shapes_each(const struct hzp_plan_shapes *shapes);

/* Hashes rows and shapes: ranks that compute each step together need equal ones. */
uint64_t hzp_plan_table_hash(const struct hzp_plan_table *table);

/* The chunk size (of training's forward pass) that most riding shapes in the table want; 0: none
 * rides. */
int32_t hzp_plan_table_ride(const struct hzp_plan_table *table);

/* The lanes that the table's shapes use (hzp_plan_shape_lanes). */
uint32_t hzp_plan_table_lanes(const struct hzp_plan_table *table);

/* Whether the shape is one nano-batch on one lane, with training behind it on the same lane and not
 * riding. */
bool hzp_plan_shape_plain(const struct hzp_plan_shape *shape);

/* A short text such as "1 nano-batch, one lane"; text [HZP_SHAPE_TEXT]. */
enum { HZP_SHAPE_TEXT = 512 };
const char *hzp_plan_shape_text(const struct hzp_plan_shape *shape, char *text);

/* Sets steps whose shape was never run (confirmed 0) to the sequential plan. */
void hzp_plan_table_drop_unproven(struct hzp_plan_table *table);

/* Prints one line per entry. */
void hzp_plan_table_print(const struct hzp_plan_table *table, FILE *out);
