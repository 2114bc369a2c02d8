/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/compare.c - checks that results match ref's, and that nothing else was written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/bf16.h"
#include "device/fp8.h"
#include "tests/opcheck/opcheck.h"

static char wrong[256];

/* The bounds, with their reasons.
 *
 * F32 outputs of elementwise ops: a few float roundings (6e-8 each) and libm's ulps: nmse 1e-12.
 * F32 outputs of sums: fast kernels sum in float, in another order, up to some 32000 terms with
 * outliers that cancel: nmse 1e-10, and a single element may be worse off than the mean.
 * BF16 outputs: both round a value that differs in its last float bits, so now and then to
 * neighbours, one part in 128 to 256 apart: nmse 2e-6, miss 2^-7.
 * Attention may round probabilities (and in the backward dS) to BF16 before the second product,
 * one part in 512 each: nmse 2e-5 forward, 1e-4 backward.  Over E4M3 pages the probability times
 * the scale of a value's row is rounded, too, alike for all elements of the row: 4e-5.
 * Sums of E4M3 products: some tensor cores keep about 14 bits of them (DeepSeek-V3 report, 3.3.2),
 * nmse 1e-6; that no code is lost is a fact of its own (facts.c).
 * E4M3 pages are y, quantized (facts.c holds them to its bits), so where y differs in a last place
 * the scale of its row may, one part in 256, and now and then a code is the neighbour's, one part
 * in 8 to 16: nmse 1e-3, miss 1/8.  So it is with codes of norms and SwiGLU.
 * Codes of 8-bit moments: where a float differs in its last bits a code may be the next one; in
 * one of 50 at most.
 * Where only bits are moved, or the op list fixes the order of the sum, ref's bits are due. */
static bool has(const struct oc_io *io, enum oc_elem elem)
{
    for (int b = 0; b < io->bufs; b++)
        if (io->buf[b].elem == elem)
            return true;
    return false;
}

struct oc_bound oc_bound_of(const struct oc_io *io, enum hzp_op op, enum oc_elem elem)
{
    if ((op == HZP_OP_rope || op == HZP_OP_codes) && elem == OC_E4M3)
        return (struct oc_bound){1e-3, 0.125};
    if (op == HZP_OP_codes) /* scales */
        return (struct oc_bound){2e-6, 0.008};
    if (op == HZP_OP_rope && elem == OC_F32 && has(io, OC_BF16)) /* scales */
        return (struct oc_bound){2e-6, 0.008};
    if (elem != OC_F32 && elem != OC_BF16 && elem != OC_F64)
        return (struct oc_bound){0, 0};
    struct hzp_cast_args cast = {0};
    if (op == HZP_OP_cast)
        memcpy(&cast, io->args, sizeof(cast));
    if (cast.cap > 0 || cast.squares)
        return elem == OC_BF16 ? (struct oc_bound){2e-6, 0.008} : (struct oc_bound){1e-11, 1e-5};
    if ((op == HZP_OP_matmul || op == HZP_OP_project) && has(io, OC_E4M3))
        return elem == OC_BF16 ? (struct oc_bound){3e-6, 0.01} : (struct oc_bound){1e-6, 0.004};
    switch (op) {
    case HZP_OP_embed:
    case HZP_OP_gather:
    case HZP_OP_scatter:
    case HZP_OP_collective:
    case HZP_OP_embed_bwd:
    case HZP_OP_cast:
    case HZP_OP_fill:
    case HZP_OP_noise:
    case HZP_OP_quantize:
        return (struct oc_bound){0, 0};
    case HZP_OP_attn_decode:
    case HZP_OP_attn_prefill:
    case HZP_OP_attn_packed:
        return elem == OC_F32     ? (struct oc_bound){1e-10, 1e-4}
               : has(io, OC_E4M3) ? (struct oc_bound){4e-5, 0.03}
                                  : (struct oc_bound){2e-5, 0.03};
    case HZP_OP_attn_packed_bwd:
        return elem == OC_BF16 ? (struct oc_bound){1e-4, 0.06} : (struct oc_bound){1e-9, 1e-3};
    case HZP_OP_matmul:
    case HZP_OP_project:
    case HZP_OP_rmsnorm_bwd:
    case HZP_OP_rope_bwd:
    case HZP_OP_colsum:
        return elem == OC_BF16 ? (struct oc_bound){2e-6, 0.008} : (struct oc_bound){1e-10, 1e-4};
    case HZP_OP_sumsq: /* in double everywhere; only the order differs */
        return (struct oc_bound){1e-24, 1e-12};
    default:
        return elem == OC_BF16 ? (struct oc_bound){2e-6, 0.008} : (struct oc_bound){1e-11, 1e-5};
    }
}

static double number(const struct oc_io *io, const struct oc_buf *buf, const uint8_t *image,
                     size_t i)
{
    const uint8_t *p = image + buf->offset + i * oc_elem_size(buf->elem);
    uint16_t half;
    int16_t low;
    float single;
    double twice;
    switch (buf->elem) {
    case OC_BF16:
        memcpy(&half, p, 2);
        if (buf->low_half < 0)
            return hzp_bf16_to_f32(half);
        memcpy(&low, image + io->buf[buf->low_half].offset + 2 * i, 2);
        return hzp_master_join(half, low);
    case OC_F32:
        memcpy(&single, p, 4);
        return single;
    case OC_F64:
        memcpy(&twice, p, 8);
        return twice;
    case OC_E4M3:
        return hzp_e4m3_to_f32(*p);
    default:
        HZP_ASSERT(!"a type of float");
        return 0;
    }
}

static const char *where(const struct oc_buf *buf, int32_t r, int32_t c)
{
    static char at[96];
    snprintf(at, sizeof(at), "%s[%d][%d]", buf->name, r, c);
    return at;
}

static bool written(const uint8_t *before, const uint8_t *after, size_t size)
{
    return memcmp(before, after, size) != 0;
}

/* Codes of moments: ref's or a neighbour, which the hash of a last bit may choose. */
static const char *compare_codes(const struct oc_io *io, const struct oc_buf *buf,
                                 const uint8_t *ref, const uint8_t *got)
{
    int32_t differ = 0;
    for (int32_t c = 0; c < buf->cols * buf->rows; c++) {
        size_t byte = buf->offset + (size_t)c;
        differ += ref[byte] != got[byte];
        if ((uint8_t)(got[byte] - ref[byte] + 1) <= 2)
            continue;
        snprintf(wrong, sizeof(wrong), "%s[%d] is code %d, ref's %d", buf->name, c, got[byte],
                 ref[byte]);
        return wrong;
    }
    if (differ <= 2 + buf->cols * buf->rows / 50)
        return NULL;
    snprintf(wrong, sizeof(wrong), "%s: %d of %d codes are not ref's", buf->name, differ,
             buf->cols);
    return wrong;
}

/* Compares element by element: equal bits, or numbers within the bound. */
static const char *compare_output(const struct oc_io *io, enum hzp_op op, const struct oc_buf *buf,
                                  const uint8_t *ref, const uint8_t *got, double *err)
{
    if (buf->elem == OC_Q8)
        return compare_codes(io, buf, ref, got);
    size_t size = oc_elem_size(buf->elem);
    struct oc_bound bound = oc_bound_of(io, op, buf->low_half >= 0 ? OC_F32 : buf->elem);
    if (op == HZP_OP_xent && !strcmp(buf->name, "entropy")) /* sums of some 10 each that cancel */
        bound = (struct oc_bound){1e-9, 1e-4};
    double diff2 = 0, ref2 = 0, worst = 0;
    int64_t count = 0;

    for (int pass = 0; pass < 2; pass++) {
        double rms = count ? sqrt(ref2 / (double)count) : 0;
        for (int32_t r = 0; r < buf->rows; r++)
            for (int32_t c = 0; c < buf->cols; c++) {
                size_t i = (size_t)r * (size_t)buf->stride + (size_t)c;
                size_t byte = buf->offset + i * size;
                if (buf->role == OC_OUT && !written(io->image + byte, ref + byte, size))
                    continue; /* undefined in ref's result */
                if (memcmp(ref + byte, got + byte, size) == 0 && pass == 1)
                    continue;
                if (bound.nmse == 0 && buf->elem != OC_F32 && buf->elem != OC_BF16) {
                    if (memcmp(ref + byte, got + byte, size) == 0)
                        continue;
                    uint64_t a = 0, b = 0;
                    memcpy(&a, ref + byte, size);
                    memcpy(&b, got + byte, size);
                    snprintf(wrong, sizeof(wrong), "%s is %#llx, ref's %#llx", where(buf, r, c),
                             (unsigned long long)b, (unsigned long long)a);
                    return wrong;
                }
                double a = number(io, buf, ref, i), b = number(io, buf, got, i);
                if (isnan(a) ? isnan(b) : isinf(a) ? a == b : isfinite(b)) {
                    if (!isfinite(a))
                        continue;
                } else {
                    snprintf(wrong, sizeof(wrong), "%s is %g, ref's %g", where(buf, r, c), b, a);
                    return wrong;
                }
                double miss = fabs(b - a);
                if (pass == 0) {
                    diff2 += miss * miss;
                    ref2 += a * a;
                    count++;
                    continue;
                }
                worst = fmax(worst, miss / (fabs(a) + rms + 1e-300));
                if (bound.miss == 0 ? written(ref + byte, got + byte, size)
                                    : miss > bound.miss * (fabs(a) + rms)) {
                    snprintf(wrong, sizeof(wrong), "%s is %.9g, ref's %.9g (rms %.3g, bound %g)",
                             where(buf, r, c), b, a, rms, bound.miss);
                    return wrong;
                }
            }
    }
    double nmse = ref2 > 0 ? diff2 / ref2 : diff2 > 0 ? INFINITY : 0;
    *err = fmax(*err, nmse);
    bound.nmse *=
        1 + 8 / (double)HZP_MAX(count, 1); /* few elements: their roundings do not average out */
    if (nmse > bound.nmse) {
        snprintf(wrong, sizeof(wrong), "%s: nmse %.2g exceeds %.2g", buf->name, nmse, bound.nmse);
        return wrong;
    }
    return NULL;
}

/* Marks with 1 the bytes that may be written: outputs and scratch. */
static uint8_t *mask_make(const struct oc_io *io)
{
    uint8_t *mask = hzp_xcalloc(io->used, 1);
    for (int b = 0; b < io->bufs; b++) {
        const struct oc_buf *buf = &io->buf[b];
        size_t size = oc_elem_size(buf->elem);
        if (buf->role == OC_IN)
            continue;
        for (int32_t r = 0; r < buf->rows; r++)
            memset(mask + buf->offset + (size_t)r * (size_t)buf->stride * size, 1,
                   (size_t)buf->cols * size);
    }
    return mask;
}

/* The buffer that contains the byte, or the one next before it. */
static const struct oc_buf *buf_near(const struct oc_io *io, size_t byte)
{
    const struct oc_buf *near = &io->buf[0];
    for (int b = 0; b < io->bufs; b++)
        if (io->buf[b].offset <= byte)
            near = &io->buf[b];
    return near;
}

static const char *compare_rest(const struct oc_io *io, const uint8_t *got)
{
    uint8_t *mask = mask_make(io);
    size_t i = 0;
    while (i < io->used && (mask[i] || got[i] == io->image[i]))
        i++;
    free(mask);
    if (i == io->used)
        return NULL;

    const struct oc_buf *buf = buf_near(io, i);
    size_t size = oc_elem_size(buf->elem), in = i - HZP_MIN(i, buf->offset);
    size_t row = buf->stride ? in / size / (size_t)buf->stride : 0;
    size_t col = buf->stride ? in / size % (size_t)buf->stride : 0;
    if (i >= buf->offset && row < (size_t)buf->rows && col < (size_t)buf->cols)
        snprintf(wrong, sizeof(wrong), "changed its input %s[%zu][%zu]", buf->name, row, col);
    else
        snprintf(wrong, sizeof(wrong), "wrote outside its output, near %s[%zu][%zu]", buf->name,
                 row, col);
    return wrong;
}

const char *oc_compare(const struct oc_io *io, enum hzp_op op, const uint8_t *ref,
                       const uint8_t *got, double *ret_err)
{
    *ret_err = 0;
    const char *broken = compare_rest(io, got);
    for (int b = 0; b < io->bufs && !broken; b++) {
        bool low = false; /* compared together with its upper half */
        for (int other = 0; other < io->bufs; other++)
            low |= io->buf[other].low_half == b;
        if (!low && (io->buf[b].role == OC_OUT || io->buf[b].role == OC_INOUT))
            broken = compare_output(io, op, &io->buf[b], ref, got, ret_err);
    }
    return broken;
}

const char *oc_compare_bits(const struct oc_io *io, const uint8_t *a, const uint8_t *b)
{
    for (int i = 0; i < io->bufs; i++) {
        const struct oc_buf *buf = &io->buf[i];
        size_t size = oc_elem_size(buf->elem);
        if (buf->role != OC_OUT && buf->role != OC_INOUT)
            continue;
        for (int32_t r = 0; r < buf->rows; r++) {
            size_t byte = buf->offset + (size_t)r * (size_t)buf->stride * size;
            if (memcmp(a + byte, b + byte, (size_t)buf->cols * size) != 0) {
                snprintf(wrong, sizeof(wrong), "a second run gives other bits in %s row %d",
                         buf->name, r);
                return wrong;
            }
        }
    }
    return NULL;
}
