/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/opcheck.h - one case: an op, its arguments, and all memory they point to.
 *
 * All buffers of a case lie in one image, each between guard bands.  The gaps of rows that have
 * gaps are filled like the guards (with bits that are NaN in every type of float and -1 in every
 * type of integer, so that a stray read shows as well as a stray write).  To run a case on a
 * device, the image is copied there, the pointers in the arguments are moved by the distance,
 * and the whole image is copied back: everything that is not an output must then be unchanged.
 *
 * Thread: one.
 */
#pragma once

#include "base/err.h"
#include "device/device.h"

enum { OC_BUFS_MAX = 24, OC_ARGS_MAX = 512, OC_PARAMS = 11 };

enum oc_elem { OC_F32, OC_BF16, OC_I16, OC_I32, OC_F64, OC_U64, OC_BYTES, OC_E4M3, OC_Q8 };
enum oc_role { OC_IN, OC_OUT, OC_INOUT, OC_SCRATCH /* undefined afterwards */ };

struct oc_buf {
    const char *name;
    enum oc_elem elem;
    enum oc_role role;
    int32_t rows, cols, stride;
    size_t offset;
    int low_half; /* BF16 outputs that are the upper half of a master: the I16 buffer; -1: none */
};

struct oc_io {
    uint64_t rng;
    bool gaps; /* strides larger than widths, starts aligned to elements only */
    char what[96];
    uint8_t *image;
    size_t used;
    struct oc_buf buf[OC_BUFS_MAX];
    int bufs;
    uint64_t args[OC_ARGS_MAX / 8]; /* pointers into image */
    size_t args_size;
};

enum oc_flags {
    OC_GAPS = 1,
    OC_BENCH = 2, /* only with --bench */
    OC_IN_PLACE = 4,
};

struct oc_case {
    enum hzp_op op;
    void (*build)(struct oc_io *io, const struct oc_case *c);
    enum hzp_dtype type; /* of the activations */
    int flags;
    int p[OC_PARAMS]; /* the builder defines their meaning */
};

/* The tables, each ended by a case whose build is NULL. */
extern const struct oc_case oc_cases_dense[], oc_cases_attn[], oc_cases_sample[], oc_cases_grad[],
    oc_cases_update[], oc_cases_many[], oc_cases_narrow[], oc_cases_project[], oc_cases_kinds[],
    oc_cases_grad_kinds[];

/* The allowed distance of an output from ref's. nmse: sum (y - ref)^2 / sum ref^2. miss: the
 * largest |y - ref| / (|ref| + rms of ref). 0: the bits must be equal. */
struct oc_bound {
    double nmse, miss;
};
struct oc_bound oc_bound_of(const struct oc_io *io, enum hzp_op op, enum oc_elem elem);

/* io.c */
struct oc_io *oc_io_create(void);
void oc_io_destroy(struct oc_io *io);
void oc_io_reset(struct oc_io *io, uint64_t seed, bool gaps);
struct hzp_mat oc_mat(struct oc_io *io, const char *name, int32_t rows, int32_t cols,
                      enum hzp_dtype type, enum oc_role role);
void *oc_array(struct oc_io *io, const char *name, enum oc_elem elem, int32_t count,
               enum oc_role role);
void *oc_bytes(struct oc_io *io, const char *name, size_t size, enum oc_role role);
void oc_what(struct oc_io *io, const char *format, ...) HZP_PRINTF(2, 3);
void oc_args(struct oc_io *io, const void *args, size_t size);
size_t oc_elem_size(enum oc_elem elem);
const char *oc_type_name(enum hzp_dtype type);

uint64_t oc_random(uint64_t *rng);
int32_t oc_below(struct oc_io *io, int32_t n); /* 0 .. n-1 */
double oc_uniform(struct oc_io *io);           /* 0 .. 1 */
double oc_normal(struct oc_io *io);

/* Mostly normal values times scale; 1 % times outlier, 3 % zero, 1 % denormal. */
void oc_fill(struct oc_io *io, const struct hzp_mat *mat, double scale, double outlier);
/* Both ends first, then random values between. */
void oc_fill_index(struct oc_io *io, int32_t *index, int32_t count, int32_t below);
void oc_put(const struct hzp_mat *mat, int32_t r, int32_t c, float value);
float oc_get(const struct hzp_mat *mat, int32_t r, int32_t c);

/* A device under test. */
struct oc_target {
    char name[16]; /* "ref", "avx2", "cuda" */
    struct hzp_device *dev;
    struct hzp_lane *lane[2]; /* COMPUTE, MEMORY */
    struct hzp_fence *fence;
    bool fresh[HZP_OP_COUNT]; /* its kernel is not that of an earlier target */
    bool called[HZP_OP_COUNT];
    bool by_graph; /* ops are issued as a graph, where the device has graphs */
    void *block, *staging;
    size_t block_size;
};

int oc_target_open(struct oc_target *target, const struct hzp_device_config *config,
                   const char *name, struct hzp_err_text *reterr);
void oc_target_close(struct oc_target *target);
/* Runs the case; result receives the image after the op (io->used bytes). */
int oc_target_run(struct oc_target *target, enum hzp_op op, const struct oc_io *io,
                  uint8_t *result);
/* Copies the case to the device and runs it once. */
int oc_target_warm(struct oc_target *target, enum hzp_op op, const struct oc_io *io);
/* Seconds of one op, after warm; on the host with cold caches. Negative: the device failed. */
double oc_target_time(struct oc_target *target, enum hzp_op op, const struct oc_io *io);
/* Bytes per second of reading, on the host by plain loops, elsewhere by copies. */
double oc_target_bandwidth(struct oc_target *target);

/* For backends that can observe what their kernels touch: called before (begins) and after each
 * op, with the case whose image lies in the target's block.  NULL: no observer. */
extern void (*oc_watch)(const struct oc_target *target, const struct oc_io *io, bool begins);

/* compare.c: returns NULL or what is wrong; *ret_err: the largest nmse of an output. */
const char *oc_compare(const struct oc_io *io, enum hzp_op op, const uint8_t *ref,
                       const uint8_t *got, double *ret_err);
const char *oc_compare_bits(const struct oc_io *io, const uint8_t *a, const uint8_t *b);

/* grad.c: the target's backward ops against finite differences of its forward ops. Returns the
   number of failures. */
int oc_grad(struct oc_target *target, const char *pattern, uint64_t seed);

/* facts.c: properties independent of ref: distributions (not if the device is slow: they take a
 * hundred thousand draws), exactness, known values. */
int oc_facts(struct oc_target *target, const char *pattern, bool slow);

/* facts_loss.c: those of xent. */
int oc_facts_loss(struct oc_target *target, struct oc_io *io, uint8_t *result);

/* facts_update.c: those of 8-bit moments. */
int oc_facts_update(struct oc_target *target, struct oc_io *io, uint8_t *result);

/* sabotage.c: breaks the target's rmsnorm in a certain way; kind 0 leaves it correct.  The name
 * is NULL past the last kind. */
const char *oc_sabotage_name(int kind);
void oc_sabotage(struct oc_target *target, int kind);

bool oc_wanted(const char *pattern, enum hzp_op op);
void oc_report(bool ok, const char *op, const char *target, const char *what, const char *format,
               ...) HZP_PRINTF(5, 6);

/* tiles.c: the CPU target computes products of bf16 on emulated matrix tiles; broken: wrongly. */
void oc_tiles(struct oc_target *target, bool broken);
