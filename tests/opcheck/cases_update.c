/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/cases_update.c - sumsq, adamw, muon, audit. */
#include <math.h>

#include "device/q8.h"
#include "tests/opcheck/opcheck.h"

/* rows, cols */
static void build_sumsq(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_sumsq_args a = {0};
    a.x = oc_mat(io, "x", c->p[0], c->p[1], HZP_F32, OC_IN);
    a.sum = oc_array(io, "sum", OC_F64, 1, OC_INOUT);
    *a.sum = 0.125;
    oc_fill(io, &a.x, 1, 300);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d", c->p[0], c->p[1]);
}

/* rows, cols, BF16: 1 m, 2 v, 4 grad, clip, t, norm: 0 finite, 1 infinite, 2 NaN; 3: finite, and
 * NAdam */
static void build_adamw(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], cols = c->p[1];
    enum hzp_dtype m = c->p[2] & 1 ? HZP_BF16 : HZP_F32, v = c->p[2] & 2 ? HZP_BF16 : HZP_F32;
    enum hzp_dtype grad = c->p[2] & 4 ? HZP_BF16 : HZP_F32;
    bool in_place = c->flags & OC_IN_PLACE, bf16 = c->type == HZP_BF16;
    struct hzp_adamw_args a = {.grad_scale = 0.01f,
                               .clip = (float)c->p[3],
                               .lr = 1e-3f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .decay = 0.1f,
                               .t = c->p[4]};
    double *sumsq = oc_array(io, "sumsq", OC_F64, 1, OC_IN), sum = 0;
    a.from = oc_mat(io, "from", rows, cols, c->type, in_place ? OC_INOUT : OC_IN);
    int to = io->bufs - in_place;
    a.to = in_place ? a.from : oc_mat(io, "to", rows, cols, c->type, OC_OUT);
    if (bf16) {
        a.residual = oc_mat(io, "residual", rows, cols, HZP_I16, OC_INOUT);
        io->buf[to].low_half = io->bufs - 1;
    }
    a.grad = oc_mat(io, "grad", rows, cols, grad, OC_IN);
    a.m = oc_mat(io, "m", rows, cols, m, OC_INOUT);
    a.v = oc_mat(io, "v", rows, cols, v, OC_INOUT);
    a.sumsq = sumsq;
    oc_fill(io, &a.from, 1, 10);
    oc_fill(io, &a.grad, 1, 300);
    oc_fill(io, &a.m, 0.01, 10);
    oc_fill(io, &a.v, 1e-3, 10);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < cols; i++) {
            oc_put(&a.v, r, i, fabsf(oc_get(&a.v, r, i)));
            sum += (double)oc_get(&a.grad, r, i) * oc_get(&a.grad, r, i);
            if (bf16)
                ((int16_t *)a.residual.ptr)[r * a.residual.stride + i] =
                    (int16_t)(oc_below(io, 65536) - 32768);
        }
    if (c->p[5] == 3) {
        a.part_m = 0.8f;
        a.part_g = 0.6f;
    }
    *sumsq = c->p[5] % 3 == 0 ? sum : c->p[5] == 1 ? INFINITY : NAN;
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s g %s m %s v %s clip %d t %d%s%s", rows, cols, oc_type_name(c->type),
            oc_type_name(grad), oc_type_name(m), oc_type_name(v), c->p[3], c->p[4],
            in_place ? " in place" : "",
            c->p[5] == 3 ? " nadam"
            : c->p[5]    ? " bad norm"
                         : "");
}

/* rows, cols, BF16: 1 m, 2 x; after, clip, norm: 0 finite, 1 infinite, 2 NaN */
static void build_muon(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], cols = c->p[1];
    bool in_place = c->flags & OC_IN_PLACE, after = c->p[3];
    struct hzp_muon_args a = {.grad_scale = 0.01f,
                              .clip = (float)c->p[4],
                              .momentum = 0.95f,
                              .keep = 0.999f,
                              .step = 1e-2f};
    double *sumsq = oc_array(io, "sumsq", OC_F64, 1, OC_IN);
    *sumsq = c->p[5] == 0 ? 4e5 : c->p[5] == 1 ? INFINITY : NAN;
    a.sumsq = sumsq;
    if (after) {
        a.x = oc_mat(io, "x", rows, cols, c->p[2] & 2 ? HZP_BF16 : HZP_F32, OC_IN);
        a.from = oc_mat(io, "from", rows, cols, c->type, in_place ? OC_INOUT : OC_IN);
        int to = io->bufs - in_place;
        a.to = in_place ? a.from : oc_mat(io, "to", rows, cols, c->type, OC_OUT);
        if (c->type == HZP_BF16) {
            a.residual = oc_mat(io, "residual", rows, cols, HZP_I16, OC_INOUT);
            io->buf[to].low_half = io->bufs - 1;
            for (int64_t i = 0; i < (int64_t)rows * cols; i++)
                ((int16_t *)a.residual.ptr)[i / cols * a.residual.stride + i % cols] =
                    (int16_t)(oc_below(io, 65536) - 32768);
        }
        oc_fill(io, &a.x, 1, 10);
        oc_fill(io, &a.from, 1, 10);
    } else {
        a.grad = oc_mat(io, "grad", rows, cols, HZP_F32, in_place ? OC_INOUT : OC_IN);
        a.x = in_place ? a.grad : oc_mat(io, "x", rows, cols, HZP_F32, OC_OUT);
        a.m = oc_mat(io, "m", rows, cols, c->p[2] & 1 ? HZP_BF16 : HZP_F32, OC_INOUT);
        oc_fill(io, &a.grad, 1, 300);
        oc_fill(io, &a.m, 0.01, 10);
    }
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s %s clip %d%s%s", rows, cols, oc_type_name(c->type),
            after ? "after" : "before", c->p[4], in_place ? " in place" : "",
            c->p[5] ? " bad norm" : "");
}

/* elements, decayed, t, norm (as above).  Blocks of one size, of a wide range, of zeros. */
static void build_codes(struct oc_io *io, const struct oc_case *c)
{
    int32_t n = c->p[0], blocks = HZP_DIV_UP(n, HZP_Q8_BLOCK);
    bool in_place = c->flags & OC_IN_PLACE, bf16 = c->type == HZP_BF16;
    struct hzp_adamw_args a = {.grad_scale = 0.01f,
                               .clip = 1,
                               .lr = 1e-3f,
                               .beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .eps = 1e-8f,
                               .decay = 0.1f,
                               .decayed = c->p[1],
                               .t = c->p[2]};
    double *sumsq = oc_array(io, "sumsq", OC_F64, 1, OC_IN), sum = 0;
    a.from = oc_mat(io, "from", 1, n, c->type, in_place ? OC_INOUT : OC_IN);
    int to = io->bufs - in_place;
    a.to = in_place ? a.from : oc_mat(io, "to", 1, n, c->type, OC_OUT);
    if (bf16) {
        a.residual = oc_mat(io, "residual", 1, n, HZP_I16, OC_INOUT);
        io->buf[to].low_half = io->bufs - 1;
    }
    a.grad = oc_mat(io, "grad", 1, n, HZP_F32, OC_IN);
    a.m = oc_mat(io, "m", 1, n, HZP_Q8, OC_INOUT);
    a.v = oc_mat(io, "v", 1, n, HZP_Q8, OC_INOUT);
    a.m_scale = oc_array(io, "m_scale", OC_F32, blocks, OC_INOUT);
    a.v_scale = oc_array(io, "v_scale", OC_F32, blocks, OC_INOUT);
    a.sumsq = sumsq;
    oc_fill(io, &a.from, 1, 10);
    oc_fill(io, &a.grad, 1, 300);
    for (int32_t i = 0; i < n; i++) {
        int kind = i / HZP_Q8_BLOCK % 4;
        if (kind == 1) /* ten decades */
            oc_put(&a.grad, 0, i, oc_get(&a.grad, 0, i) * (float)pow(10, -10 * oc_uniform(io)));
        else if (kind == 2)
            oc_put(&a.grad, 0, i, 0);
        ((int8_t *)a.m.ptr)[i] = (int8_t)(kind == 3 ? 0 : oc_below(io, 255) - 127);
        ((uint8_t *)a.v.ptr)[i] = (uint8_t)(kind == 3 ? 0 : oc_below(io, 256));
        sum += (double)oc_get(&a.grad, 0, i) * oc_get(&a.grad, 0, i);
        if (bf16)
            ((int16_t *)a.residual.ptr)[i] = (int16_t)(oc_below(io, 65536) - 32768);
    }
    for (int32_t i = 0; i < blocks; i++) {
        a.m_scale[i] = i % 4 == 3 ? 0 : (float)(0.01 * (0.1 + oc_uniform(io)));
        a.v_scale[i] = i % 4 == 3 ? 0 : (float)(0.03 * (0.1 + oc_uniform(io)));
    }
    if (c->p[3] == 3) {
        a.part_m = 0.8f;
        a.part_g = 0.6f;
    }
    *sumsq = c->p[3] % 3 == 0 ? sum : c->p[3] == 1 ? INFINITY : NAN;
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%d %s q8 decayed %d t %d%s%s", n, oc_type_name(c->type), c->p[1], c->p[2],
            in_place ? " in place" : "",
            c->p[3] == 3 ? " nadam"
            : c->p[3]    ? " bad norm"
                         : "");
}

/* rows, cols, some NaN and infinite */
static void build_audit(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_audit_args a = {0};
    int64_t count = (int64_t)c->p[0] * c->p[1];
    a.x = oc_mat(io, "x", c->p[0], c->p[1], c->type, OC_IN);
    a.checksum = oc_array(io, "checksum", OC_U64, 1, OC_INOUT);
    a.nonfinite = oc_array(io, "nonfinite", OC_U64, 1, OC_INOUT);
    *a.checksum = 12345;
    *a.nonfinite = 7;
    if (c->type == HZP_I16)
        for (int64_t i = 0; i < count; i++)
            ((int16_t *)a.x.ptr)[i] = (int16_t)oc_random(&io->rng);
    else
        oc_fill(io, &a.x, 1, 300);
    for (int64_t i = 0; c->p[2] && i < count; i += 37)
        oc_put(&a.x, (int32_t)(i / c->p[1]), (int32_t)(i % c->p[1]), i % 2 ? NAN : -INFINITY);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s%s", c->p[0], c->p[1], oc_type_name(c->type), c->p[2] ? " with NaN" : "");
}

#define SUMSQ(flags, ...)                                                                          \
    {                                                                                              \
        HZP_OP_sumsq, build_sumsq, HZP_F32, flags,                                                 \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define ADAMW(type, flags, ...)                                                                    \
    {                                                                                              \
        HZP_OP_adamw, build_adamw, type, flags,                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define MUON(type, flags, ...)                                                                     \
    {                                                                                              \
        HZP_OP_muon, build_muon, type, flags,                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define CODES(type, flags, ...)                                                                    \
    {                                                                                              \
        HZP_OP_adamw, build_codes, type, flags,                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define AUDIT(type, flags, ...)                                                                    \
    {                                                                                              \
        HZP_OP_audit, build_audit, type, flags,                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#define BOTH(X, ...) X(HZP_F32, __VA_ARGS__), X(HZP_BF16, __VA_ARGS__)
/* every mixture of types, aligned and not */
#define MIXED(types)                                                                               \
    BOTH(ADAMW, 0, 2, 40, types, 1, 4, 0), BOTH(ADAMW, OC_GAPS, 2, 11, types, 1, 4, 0)

const struct oc_case oc_cases_update[] = {
    SUMSQ(0, 1, 1),
    SUMSQ(0, 0, 8),
    SUMSQ(OC_GAPS, 7, 97),
    SUMSQ(0, 7, 1024),
    SUMSQ(0, 1, 100003),
    SUMSQ(OC_BENCH, 1, 8 << 20),

    BOTH(ADAMW, 0, 1, 1, 0, 1, 1, 0),
    BOTH(ADAMW, 0, 0, 8, 0, 1, 1, 0),
    BOTH(ADAMW, OC_GAPS, 7, 97, 0, 0, 3, 0),
    BOTH(ADAMW, OC_GAPS | OC_IN_PLACE, 7, 97, 3, 1, 1, 0),
    BOTH(ADAMW, OC_IN_PLACE, 3, 1024, 0, 1, 1000, 0),
    BOTH(ADAMW, 0, 1, 4099, 3, 100, 7, 0),
    BOTH(ADAMW, 0, 3, 64, 0, 1, 2, 1),
    BOTH(ADAMW, OC_GAPS, 3, 65, 0, 1, 2, 2),
    BOTH(ADAMW, OC_IN_PLACE, 3, 64, 3, 0, 2, 1),
    BOTH(ADAMW, OC_GAPS, 7, 97, 0, 1, 3, 3),
    BOTH(ADAMW, OC_IN_PLACE, 3, 1024, 3, 1, 1000, 3),
    MIXED(1),
    MIXED(2),
    MIXED(3),
    MIXED(4),
    MIXED(5),
    MIXED(6),
    MIXED(7),
    BOTH(ADAMW, OC_BENCH, 1, 4 << 20, 0, 1, 3, 0),

    BOTH(MUON, 0, 1, 1, 0, 0, 1, 0),
    BOTH(MUON, 0, 0, 8, 0, 1, 1, 0),
    BOTH(MUON, OC_GAPS, 7, 97, 1, 0, 0, 0),
    BOTH(MUON, OC_GAPS, 7, 97, 0, 1, 0, 0),
    BOTH(MUON, OC_GAPS | OC_IN_PLACE, 7, 97, 2, 1, 1, 0),
    BOTH(MUON, OC_IN_PLACE, 3, 1024, 0, 0, 1, 0),
    BOTH(MUON, OC_IN_PLACE, 1, 40000, 1, 0, 1, 0),
    BOTH(MUON, 0, 1, 40000, 2, 1, 1, 0),
    BOTH(MUON, 0, 3, 64, 0, 1, 1, 0),
    BOTH(MUON, 0, 3, 64, 1, 0, 1, 1),
    BOTH(MUON, OC_GAPS, 3, 65, 0, 0, 0, 2),
    BOTH(MUON, OC_GAPS, 3, 65, 0, 1, 0, 1),
    BOTH(MUON, OC_IN_PLACE, 3, 64, 2, 1, 1, 2),
    BOTH(MUON, OC_BENCH, 1, 4 << 20, 0, 0, 1, 0),
    BOTH(MUON, OC_BENCH, 1, 4 << 20, 2, 1, 1, 0),

    BOTH(CODES, 0, 64, 0, 1, 0),
    BOTH(CODES, 0, 0, 0, 1, 0),
    BOTH(CODES, OC_IN_PLACE, 256, 192, 2, 0),
    BOTH(CODES, 0, 2752, 1344, 1000, 0),
    BOTH(CODES, 0, 34048, 33792, 3, 3),
    BOTH(CODES, OC_IN_PLACE, 1088, 64, 7, 1),
    BOTH(CODES, 0, 320, 320, 7, 2),
    BOTH(CODES, OC_BENCH, 4 << 20, 0, 3, 0),

    AUDIT(HZP_F32, 0, 1, 2, 0),
    AUDIT(HZP_F32, 0, 0, 8, 0),
    AUDIT(HZP_F32, 0, 3, 1022, 1),
    AUDIT(HZP_BF16, 0, 1, 4, 0),
    AUDIT(HZP_BF16, 0, 5, 3332, 1),
    AUDIT(HZP_I16, 0, 1, 64, 0),
    AUDIT(HZP_BF16, OC_BENCH, 1, 16 << 20, 0),
    {0},
};
