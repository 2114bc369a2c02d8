/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/cases_dense.c - embed, rmsnorm, matmul, quantize, rope, swiglu, gather, cast,
 * fill. */
#include <math.h>

#include "tests/links/links.h"
#include "tests/opcheck/opcheck.h"

/* rows, vocab, width, first row of the table: ids lie on both sides of it */
static void build_embed(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], vocab = c->p[1], width = c->p[2];
    struct hzp_embed_args a = {0};
    int32_t *id = oc_array(io, "id", OC_I32, rows, OC_IN);
    a.table = oc_mat(io, "table", vocab, width, c->type, OC_IN);
    a.y = oc_mat(io, "y", rows, width, HZP_F32, OC_OUT);
    a.id = id;
    a.first = c->p[3];
    oc_fill(io, &a.table, 1, 300);
    oc_fill_index(io, id, rows, vocab + 2 * a.first);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%d rows of %dx%d %s from %d", rows, vocab, width, oc_type_name(c->type), c->p[3]);
}

/* rows, cols, keep rstd, 1 + w, add (2: in place), centred */
static void build_rmsnorm(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], cols = c->p[1];
    struct hzp_rmsnorm_args a = {.eps = 1e-5f, .plus_one = c->p[3], .centred = c->p[5]};
    enum hzp_dtype type = c->p[4] ? HZP_F32 : c->type;
    a.x = oc_mat(io, "x", rows, cols, HZP_F32, OC_IN);
    a.w = oc_mat(io, "w", 1, cols, c->type, OC_IN);
    a.y = oc_mat(io, "y", rows, cols, type, c->p[4] == 2 ? OC_INOUT : OC_OUT);
    if (c->p[4])
        a.add = c->p[4] == 2 ? a.y : oc_mat(io, "add", rows, cols, HZP_F32, OC_IN);
    if (c->p[2])
        a.rstd = oc_array(io, "rstd", OC_F32, rows, OC_OUT);
    oc_fill(io, &a.x, 1, 300);
    oc_fill(io, &a.w, 1, 10);
    for (int32_t i = 0; rows > 3 && i < cols; i++) {
        oc_put(&a.x, 1, i, 0);                      /* a row of zeros: only eps is under the root */
        oc_put(&a.x, 2, i, i & 1 ? 3e15f : -3e15f); /* squares near the end of float's range */
    }
    if (c->p[4])
        oc_fill(io, &a.add, 1, 300);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s%s%s%s%s", rows, cols, oc_type_name(c->type), c->p[2] ? " +rstd" : "",
            c->p[3] ? ", 1 + w" : "", c->p[4] ? ", add" : "", c->p[5] ? ", centred" : "");
}

/* m, n, k, trans_a, trans_b, bias, accumulate (2: from elsewhere), c has a's type */
static void build_matmul(struct oc_io *io, const struct oc_case *c)
{
    int32_t m = c->p[0], n = c->p[1], k = c->p[2], ta = c->p[3], tb = c->p[4];
    struct hzp_matmul_args a = {.trans_a = ta, .trans_b = tb, .accumulate = c->p[6] != 0};
    a.a = oc_mat(io, "a", ta ? k : m, ta ? m : k, c->type, OC_IN);
    a.b = oc_mat(io, "b", tb ? n : k, tb ? k : n, c->type, OC_IN);
    a.c = oc_mat(io, "c", m, n, c->p[7] ? c->type : HZP_F32, c->p[6] == 1 ? OC_INOUT : OC_OUT);
    if (c->p[6] == 2)
        a.from = oc_mat(io, "from", m, n, a.c.type, OC_IN);
    oc_fill(io, &a.a, 1, 300);
    oc_fill(io, &a.b, 0.05, 300);
    if (c->p[5]) {
        a.bias = oc_mat(io, "bias", 1, n, c->type, OC_IN);
        oc_fill(io, &a.bias, 1, 300);
    }
    if (c->p[6])
        oc_fill(io, c->p[6] == 2 ? &a.from : &a.c, 1, 300);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%dx%d %s>%s %c%c%s%s", m, n, k, oc_type_name(c->type), oc_type_name(a.c.type),
            ta ? 't' : 'n', tb ? 't' : 'n', c->p[5] ? " bias" : "",
            c->p[6] == 2 ? " acc from"
            : c->p[6]    ? " acc"
                         : "");
}

/* m, n, k, bias, accumulate (2: from elsewhere), c has the activations' type */
static void build_matmul_e4m3(struct oc_io *io, const struct oc_case *c)
{
    int32_t m = c->p[0], n = c->p[1], k = c->p[2];
    struct hzp_matmul_args a = {.trans_b = 1, .accumulate = c->p[4] != 0};
    float *scale[2];
    a.a = oc_mat(io, "a", m, k, HZP_E4M3, OC_IN);
    a.b = oc_mat(io, "b", n, k, HZP_E4M3, OC_IN);
    a.c = oc_mat(io, "c", m, n, c->p[5] ? c->type : HZP_F32, c->p[4] == 1 ? OC_INOUT : OC_OUT);
    if (c->p[4] == 2)
        a.from = oc_mat(io, "from", m, n, a.c.type, OC_IN);
    oc_fill(io, &a.a, 100, 300);
    oc_fill(io, &a.b, 20, 300);
    a.scale_a = scale[0] = oc_array(io, "scale_a", OC_F32, m, OC_IN);
    a.scale_b = scale[1] = oc_array(io, "scale_b", OC_F32, n, OC_IN);
    for (int s = 0; s < 2; s++)
        for (int32_t i = 0; i < (s ? n : m); i++)
            scale[s][i] = (float)(1e-4 + 0.02 * oc_uniform(io));
    if (c->p[3]) {
        a.bias = oc_mat(io, "bias", 1, n, c->type, OC_IN);
        oc_fill(io, &a.bias, 1, 300);
    }
    if (c->p[4])
        oc_fill(io, c->p[4] == 2 ? &a.from : &a.c, 1, 300);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%dx%d e4m3>%s%s%s", m, n, k, oc_type_name(a.c.type),
            c->p[3] ? c->type == HZP_BF16 ? " bias bf16" : " bias f32" : "",
            c->p[4] == 2 ? " acc from"
            : c->p[4]    ? " acc"
                         : "");
}

/* m, n, k, norm, gated, bias, c has b's type (of E4M3 products: the activations'), a and b are
 * E4M3 */
static void build_project(struct oc_io *io, const struct oc_case *c)
{
    int32_t m = c->p[0], k = c->p[2], rows = c->p[4] ? 2 * c->p[1] : c->p[1];
    enum hzp_dtype type = c->p[7] ? HZP_E4M3 : c->type;
    struct hzp_project_args a = {.product.trans_b = 1, .gated = c->p[4], .eps = 1e-5f};
    struct hzp_matmul_args *p = &a.product;
    float *scale[2] = {NULL, NULL};
    p->a = oc_mat(io, "a", m, k, c->p[3] ? HZP_F32 : type, OC_IN);
    p->b = oc_mat(io, "b", rows, k, type, OC_IN);
    p->c = oc_mat(io, "c", m, c->p[1], c->p[6] ? c->type : HZP_F32, OC_OUT);
    oc_fill(io, &p->a, c->p[7] ? 100 : 1, c->p[4] ? 3 : 300); /* SwiGLU squares what it gets */
    oc_fill(io, &p->b, c->p[7] ? 20 : 0.05, 3);
    if (c->p[3]) {
        a.norm = oc_mat(io, "norm", 1, k, type, OC_IN);
        oc_fill(io, &a.norm, 1, 10);
        for (int32_t i = 0; i < k; i++) /* as different rows as there are */
            for (int32_t r = 0; r < m; r++)
                oc_put(&p->a, r, i, oc_get(&p->a, r, i) * (float)(r == 1 ? 1e-9 : 1 + 50 * r));
    }
    for (int s = 0; s < 2 && c->p[7]; s++) {
        scale[s] = oc_array(io, s ? "scale_b" : "scale_a", OC_F32, s ? rows : m, OC_IN);
        for (int32_t i = 0; i < (s ? rows : m); i++)
            scale[s][i] = (float)(1e-4 + 0.002 * oc_uniform(io));
    }
    p->scale_a = scale[0];
    p->scale_b = scale[1];
    if (c->p[5]) {
        p->bias = oc_mat(io, "bias", 1, rows, c->type, OC_IN);
        oc_fill(io, &p->bias, 1, 3);
    }
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%dx%d %s>%s%s%s%s", m, c->p[1], k, oc_type_name(type), oc_type_name(p->c.type),
            c->p[3] ? " norm" : "", c->p[4] ? " gated" : "", c->p[5] ? " bias" : "");
}

/* rows, cols */
static void build_quantize(struct oc_io *io, const struct oc_case *c)
{
    /* values that cannot be scaled, and the extremes that can: one odd row of each */
    static const float odd[] = {INFINITY, NAN, 1e-45f, 3e38f, 0, 1e-37f};
    struct hzp_quantize_args a = {oc_mat(io, "x", c->p[0], c->p[1], c->type, OC_IN),
                                  oc_mat(io, "y", c->p[0], c->p[1], HZP_E4M3, OC_OUT),
                                  oc_array(io, "scale", OC_F32, c->p[0], OC_OUT)};
    oc_fill(io, &a.x, 1, 300);
    for (int32_t i = 0; i < HZP_COUNT(odd) && i + 2 < c->p[0]; i++) {
        for (int32_t j = 0; j < c->p[1] && i > 1; j++)
            oc_put(&a.x, i + 2, j, odd[i] * (float)(oc_uniform(io) - 0.5));
        oc_put(&a.x, i + 2, oc_below(io, c->p[1]), odd[i]);
    }
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s", c->p[0], c->p[1], oc_type_name(c->type));
}

/* rows, cols, norm */
static void build_codes(struct oc_io *io, const struct oc_case *c)
{
    bool normed = c->p[2];
    struct hzp_codes_args a = {.eps = 1e-5f};
    a.x =
        oc_mat(io, "x", c->p[0], normed ? c->p[1] : 2 * c->p[1], normed ? HZP_F32 : c->type, OC_IN);
    if (normed) {
        a.norm = oc_mat(io, "norm", 1, c->p[1], c->type, OC_IN);
        oc_fill(io, &a.norm, 1, 10);
    }
    a.y = oc_mat(io, "y", c->p[0], c->p[1], HZP_E4M3, OC_OUT);
    a.scale = oc_array(io, "scale", OC_F32, c->p[0], OC_OUT);
    oc_fill(io, &a.x, 1, normed ? 300 : 3);
    if (c->p[0] > 2) /* a row that cannot be scaled */
        oc_put(&a.x, 2, oc_below(io, c->p[1]), NAN);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s %s", c->p[0], c->p[1], oc_type_name(c->type),
            normed ? "normed" : "gated");
}

static void *pages_make(struct oc_io *io, bool value, const struct hzp_kv *kv,
                        const struct hzp_heads *heads, float **ret_scale)
{
    static const enum oc_elem elems[] = {OC_F32, OC_BF16, OC_I16, OC_I32, OC_E4M3};
    int32_t rows = kv->pages * heads->kv_heads * kv->page_rows, count = rows * heads->dim;
    struct hzp_mat flat = {oc_array(io, value ? "v" : "k", elems[kv->type], count, OC_INOUT), 1,
                           count, count, kv->type};
    oc_fill(io, &flat, 1, 10);
    if (kv->type == HZP_E4M3) {
        struct hzp_mat scale = {oc_array(io, value ? "v_scale" : "k_scale", OC_F32, rows, OC_INOUT),
                                1, rows, rows, HZP_F32};
        oc_fill(io, &scale, 0.01, 2);
        *ret_scale = scale.ptr;
    }
    return flat.ptr;
}

/* Every fifth row is not appended; 7 and the number of slots have no common divisor. */
static void append_make(struct oc_io *io, struct hzp_rope_args *a, int32_t page_rows, int32_t pages,
                        bool codes)
{
    int32_t rows = a->x.rows, slots = page_rows * pages;
    int32_t *slot = oc_array(io, "slot", OC_I32, rows, OC_IN);
    a->kv.pages = pages;
    a->kv.page_rows = page_rows;
    a->kv.type = codes ? HZP_E4M3 : a->x.type;
    a->kv.k = pages_make(io, false, &a->kv, &a->heads, &a->kv.k_scale);
    a->kv.v = pages_make(io, true, &a->kv, &a->heads, &a->kv.v_scale);
    a->slot = slot;
    for (int32_t r = 0; r < rows; r++)
        slot[r] = r % 5 == 3 ? -1 : (int32_t)((slots - 1 + (int64_t)r * 7) % slots);
}

/* rows, heads, kv_heads, dim, norms (1 q, 2 k, 4: one row of the table, 8: 1 + w), page_rows (0:
 * nothing is appended), pages, whether these are E4M3 */
static void build_rope(struct oc_io *io, const struct oc_case *c)
{
    enum { POSITIONS = 1000 };
    int32_t rows = c->p[0], dim = c->p[3], width = (c->p[1] + 2 * c->p[2]) * dim;
    struct hzp_rope_args a = {
        .heads = {c->p[1], c->p[2], dim}, .eps = 1e-6f, .plus_one = c->p[4] & 8};
    bool in_place = c->flags & OC_IN_PLACE;
    int32_t *pos = oc_array(io, "pos", OC_I32, rows, OC_IN);
    a.x = oc_mat(io, "x", rows, width, c->type, in_place ? OC_INOUT : OC_IN);
    a.y = in_place ? a.x : oc_mat(io, "y", rows, width, c->type, OC_OUT);
    int32_t table = c->p[4] & 4 ? 1 : POSITIONS; /* one row for all positions */
    a.table = oc_mat(io, "table", table, dim, HZP_F32, OC_IN);
    a.pos = pos;
    if (c->p[4] & 1) {
        a.q_norm = oc_mat(io, "q_norm", 1, dim, c->type, OC_IN);
        oc_fill(io, &a.q_norm, 1, 10);
    }
    if (c->p[4] & 2) {
        a.k_norm = oc_mat(io, "k_norm", 1, dim, c->type, OC_IN);
        oc_fill(io, &a.k_norm, 1, 10);
    }
    if (c->p[5])
        append_make(io, &a, c->p[5], c->p[6], c->p[7]);
    oc_fill(io, &a.x, 1, 300);
    oc_fill_index(io, pos, rows, POSITIONS);
    for (int32_t p = 0; p < table; p++)
        for (int32_t j = 0; j < dim / 2; j++) {
            double angle = (table == 1 ? 7 : p) * pow(1e4, -2.0 * j / dim);
            oc_put(&a.table, p, j, (float)cos(angle));
            oc_put(&a.table, p, dim / 2 + j, (float)sin(angle));
        }
    if (table == 1) {
        a.table.rows = POSITIONS;
        a.table.stride = 0;
    }
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%d rows %d/%dx%d %s%s%s%s%s", rows, c->p[1], c->p[2], dim, oc_type_name(c->type),
            c->p[4] & 1 ? " qnorm" : "", c->p[4] & 2 ? " knorm" : "", in_place ? " in place" : "",
            !c->p[5]  ? ""
            : c->p[7] ? " to e4m3 pages"
                      : " to pages");
}

/* rows, width, GELU */
static void build_swiglu(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_swiglu_args a = {oc_mat(io, "x", c->p[0], 2 * c->p[1], c->type, OC_IN),
                                oc_mat(io, "y", c->p[0], c->p[1], c->type, OC_OUT), c->p[2]};
    oc_fill(io, &a.x, 2, 300); /* exp(-gate) overflows float at the outliers */
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s%s", c->p[0], c->p[1], oc_type_name(c->type), c->p[2] ? ", gelu" : "");
}

/* rows picked, rows there, cols */
static void build_gather(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_gather_args a = {0};
    int32_t *index = oc_array(io, "index", OC_I32, c->p[0], OC_IN);
    a.x = oc_mat(io, "x", c->p[1], c->p[2], c->type, OC_IN);
    a.y = oc_mat(io, "y", c->p[0], c->p[2], c->type, OC_OUT);
    a.index = index;
    oc_fill(io, &a.x, 1, 300);
    oc_fill_index(io, index, c->p[0], c->p[1]);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%d of %dx%d %s", c->p[0], c->p[1], c->p[2], oc_type_name(c->type));
}

/* rows, rows of the target, cols */
static void build_scatter(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_scatter_args a = {0};
    int32_t *index = oc_array(io, "index", OC_I32, c->p[0], OC_IN);
    a.x = oc_mat(io, "x", c->p[0], c->p[2], c->type, OC_IN);
    a.y = oc_mat(io, "y", c->p[1], c->p[2], c->type, OC_INOUT);
    a.index = index;
    oc_fill(io, &a.x, 1, 300);
    oc_fill(io, &a.y, 1, 300);
    for (int32_t i = 0; i < c->p[0]; i++) /* no two the same, both ends */
        index[i] = i % 2 ? i / 2 : c->p[1] - 1 - i / 2;
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%d to %dx%d %s", c->p[0], c->p[1], c->p[2], oc_type_name(c->type));
}

/* rows, cols, to (a type), thirds of the scale (0: none), cap, squares: 0 none, 1 some, 2 zero */
static void build_cast(struct oc_io *io, const struct oc_case *c)
{
    static const float odd[] = {INFINITY,    -INFINITY,   NAN,    -0.0f,   3.4e38f,
                                1.00390625f, 1.01171875f, 1e-45f, -1e-39f, 65504.0f};
    struct hzp_cast_args a = {
        .x = oc_mat(io, "x", c->p[0], c->p[1], c->type, OC_IN),
        .y = oc_mat(io, "y", c->p[0], c->p[1], (enum hzp_dtype)c->p[2], OC_OUT),
        .scale = (float)c->p[3] / 3,
        .cap = (float)c->p[4]};
    if (c->p[5]) {
        double *squares = oc_array(io, "squares", OC_F64, 1, OC_IN);
        *squares = c->p[5] == 1 ? 0.3 : 0;
        a.squares = squares;
    }
    oc_fill(io, &a.x, a.cap > 0 ? 20 : 1, a.cap > 0 ? 10 : 1e30);
    for (int32_t i = 0; i < HZP_COUNT(odd) && c->p[0] > 0 && i < c->p[1]; i++)
        oc_put(&a.x, c->p[0] - 1, i, odd[i]);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s>%s%s%s", c->p[0], c->p[1], oc_type_name(c->type), oc_type_name(a.y.type),
            a.cap > 0 ? ", cap" : "", a.squares ? ", squares" : "");
}

/* rows, cols, value */
static void build_fill(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_fill_args a = {oc_mat(io, "y", c->p[0], c->p[1], c->type, OC_OUT),
                              (float)c->p[2] / 3};
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s %g", c->p[0], c->p[1], oc_type_name(c->type), (double)a.value);
}

/* rows, cols, first (above 1000: plus 2^40) */
static void build_noise(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_noise_args a = {oc_mat(io, "y", c->p[0], c->p[1], c->type, OC_OUT),
                               0x0123456789abcdef, (uint64_t)c->p[2], 0.02f};
    if (c->p[2] > 1000)
        a.first += 1ull << 40;
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s from %llu", c->p[0], c->p[1], oc_type_name(c->type),
            (unsigned long long)a.first);
}

/* rows, cols: on a link of one rank, in place, nothing changes.  What several ranks exchange is in
 * tests/device/test_collective.c. */
static void build_collective(struct oc_io *io, const struct oc_case *c)
{
    static struct hzp_link *alone; /* as long as the process */
    struct hzp_err_text text;
    struct hzp_collective_args a = {.kind = c->p[2]};
    HZP_ASSERT(alone || hzp_link_open_local(1, 0, 0, &alone, &text) >= 0);
    a.link = alone;
    a.recv = oc_mat(io, "recv", c->p[0], c->p[1], c->type, OC_INOUT);
    oc_fill(io, &a.recv, 1, 300);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%s of %dx%d", hzp_transfer_name((enum hzp_transfer_op)c->p[2]), c->p[0], c->p[1]);
}

#define COLLECTIVE(type, flags, ...)                                                               \
    {                                                                                              \
        HZP_OP_collective, build_collective, type, flags,                                          \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define EMBED(type, flags, ...)                                                                    \
    {                                                                                              \
        HZP_OP_embed, build_embed, type, flags,                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define RMSNORM(type, flags, ...)                                                                  \
    {                                                                                              \
        HZP_OP_rmsnorm, build_rmsnorm, type, flags,                                                \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define MATMUL(type, flags, ...)                                                                   \
    {                                                                                              \
        HZP_OP_matmul, build_matmul, type, flags,                                                  \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define E4M3(type, flags, ...)                                                                     \
    {                                                                                              \
        HZP_OP_matmul, build_matmul_e4m3, type, flags,                                             \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define PROJECT(type, flags, ...)                                                                  \
    {                                                                                              \
        HZP_OP_project, build_project, type, flags,                                                \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define QUANTIZE(type, flags, ...)                                                                 \
    {                                                                                              \
        HZP_OP_quantize, build_quantize, type, flags,                                              \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define CODES(type, flags, ...)                                                                    \
    {                                                                                              \
        HZP_OP_codes, build_codes, type, flags,                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define ROPE(type, flags, ...)                                                                     \
    {                                                                                              \
        HZP_OP_rope, build_rope, type, flags,                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define SWIGLU(type, flags, ...)                                                                   \
    {                                                                                              \
        HZP_OP_swiglu, build_swiglu, type, flags,                                                  \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define GATHER(type, flags, ...)                                                                   \
    {                                                                                              \
        HZP_OP_gather, build_gather, type, flags,                                                  \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define SCATTER(type, flags, ...)                                                                  \
    {                                                                                              \
        HZP_OP_scatter, build_scatter, type, flags,                                                \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define CAST(type, flags, ...)                                                                     \
    {                                                                                              \
        HZP_OP_cast, build_cast, type, flags,                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define NOISE(type, flags, ...)                                                                    \
    {                                                                                              \
        HZP_OP_noise, build_noise, type, flags,                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define FILL(type, flags, ...)                                                                     \
    {                                                                                              \
        HZP_OP_fill, build_fill, type, flags,                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#define BOTH(X, ...) X(HZP_F32, __VA_ARGS__), X(HZP_BF16, __VA_ARGS__)

const struct oc_case oc_cases_dense[] = {
    BOTH(EMBED, 0, 1, 1, 1),
    BOTH(EMBED, OC_GAPS, 17, 31, 63),
    BOTH(EMBED, OC_GAPS, 19, 31, 64, 11),
    BOTH(EMBED, 0, 8, 5, 61, 5),
    BOTH(EMBED, 0, 5, 301, 1024),
    BOTH(EMBED, 0, 0, 7, 8),
    BOTH(EMBED, OC_BENCH, 1024, 32000, 2048),

    COLLECTIVE(HZP_F32, 0, 3, 7, HZP_ALL_REDUCE),
    COLLECTIVE(HZP_F32, 0, 0, 8, HZP_ALL_REDUCE),
    BOTH(COLLECTIVE, 0, 5, 9, HZP_ALL_GATHER),

    BOTH(RMSNORM, 0, 1, 1, 1),
    BOTH(RMSNORM, 0, 0, 8, 1),
    BOTH(RMSNORM, OC_GAPS, 7, 97, 1),
    BOTH(RMSNORM, 0, 33, 64, 0),
    BOTH(RMSNORM, OC_GAPS, 5, 1024, 0),
    BOTH(RMSNORM, 0, 4, 4096, 1),
    BOTH(RMSNORM, 0, 3, 8191, 0),
    BOTH(RMSNORM, OC_BENCH, 512, 2048, 1),
    BOTH(RMSNORM, OC_BENCH, 8, 2048, 0),

    /* y = x W^T, as every projection: a few rows (decode) to many */
    BOTH(MATMUL, 0, 1, 1, 1, 0, 1, 0, 0, 0),
    BOTH(MATMUL, 0, 0, 8, 8, 0, 1, 0, 0, 0),
    BOTH(MATMUL, 0, 1, 64, 48, 0, 1, 0, 0, 1),
    BOTH(MATMUL, OC_GAPS, 1, 97, 129, 0, 1, 1, 0, 1),
    BOTH(MATMUL, 0, 2, 256, 128, 0, 1, 1, 0, 1),
    BOTH(MATMUL, 0, 3, 100, 300, 0, 1, 0, 1, 1),
    BOTH(MATMUL, OC_GAPS, 4, 33, 512, 0, 1, 0, 0, 0),
    BOTH(MATMUL, 0, 5, 64, 96, 0, 1, 0, 0, 1),
    BOTH(MATMUL, 0, 7, 31, 17, 0, 1, 1, 1, 0),
    BOTH(MATMUL, 0, 8, 512, 256, 0, 1, 1, 0, 1),
    BOTH(MATMUL, OC_GAPS, 16, 40, 1000, 0, 1, 0, 0, 1),
    BOTH(MATMUL, 0, 17, 128, 64, 0, 1, 0, 1, 1),
    BOTH(MATMUL, OC_GAPS, 33, 65, 127, 0, 1, 1, 1, 1),
    BOTH(MATMUL, 0, 128, 192, 256, 0, 1, 1, 0, 1),
    BOTH(MATMUL, 0, 4, 1, 4096, 0, 1, 0, 0, 0),
    BOTH(MATMUL, 0, 1, 9, 1288, 0, 1, 0, 1, 0),
    BOTH(MATMUL, 0, 2, 9, 1288, 0, 1, 1, 0, 0),
    BOTH(MATMUL, 0, 3, 9, 1288, 0, 1, 1, 1, 0),
    BOTH(MATMUL, 0, 3, 9, 1288, 0, 1, 0, 0, 1),
    BOTH(MATMUL, 0, 4, 9, 1288, 0, 1, 1, 1, 1),
    /* what is added lies elsewhere: the residual stream of training */
    BOTH(MATMUL, 0, 1, 64, 48, 0, 1, 0, 2, 0),
    BOTH(MATMUL, OC_GAPS, 3, 97, 129, 0, 1, 1, 2, 1),
    BOTH(MATMUL, OC_GAPS, 33, 65, 127, 0, 1, 0, 2, 0),
    BOTH(MATMUL, 0, 128, 192, 256, 0, 1, 0, 2, 0),
    BOTH(MATMUL, 0, 9, 64, 0, 0, 1, 0, 2, 0), /* an empty sum: it is copied */
    BOTH(MATMUL, 0, 17, 96, 33, 0, 0, 0, 2, 1),
    BOTH(MATMUL, 0, 96, 33, 17, 1, 0, 0, 2, 0),
    /* the other flags: dx = dy W (nn), dW += dy^T x (tn), and tt */
    BOTH(MATMUL, 0, 1, 13, 5, 0, 0, 0, 0, 0),
    BOTH(MATMUL, 0, 17, 96, 33, 0, 0, 0, 1, 1),
    BOTH(MATMUL, OC_GAPS, 33, 64, 128, 0, 0, 1, 0, 0),
    BOTH(MATMUL, 0, 128, 64, 17, 0, 0, 0, 0, 1),
    BOTH(MATMUL, 0, 13, 7, 1, 1, 0, 0, 1, 0),
    BOTH(MATMUL, 0, 96, 33, 17, 1, 0, 0, 1, 0),
    BOTH(MATMUL, OC_GAPS, 64, 128, 33, 1, 0, 0, 1, 0),
    BOTH(MATMUL, 0, 128, 96, 100, 1, 0, 1, 0, 1),
    BOTH(MATMUL, 0, 14, 50, 4133, 0, 1, 0, 0, 1),       /* k cut, its end odd */
    BOTH(MATMUL, OC_GAPS, 300, 47, 95, 0, 1, 1, 1, 1),  /* a part of a panel */
    BOTH(MATMUL, OC_GAPS, 530, 611, 71, 0, 1, 0, 1, 1), /* slabs of rows, many panels */
    BOTH(MATMUL, 0, 61, 333, 1101, 0, 1, 1, 1, 0),      /* k in three blocks, its end odd */
    BOTH(MATMUL, 0, 9, 11, 13, 1, 1, 0, 0, 0),
    BOTH(MATMUL, OC_GAPS, 65, 33, 40, 1, 1, 1, 1, 1),
    BOTH(MATMUL, OC_GAPS, 1, 239, 777, 0, 1, 1, 1, 1),   /* one row: columns and k beyond vectors */
    BOTH(MATMUL, OC_GAPS, 6, 70, 1301, 0, 1, 0, 1, 1),   /* a tile's rows, k in blocks */
    BOTH(MATMUL, OC_GAPS, 61, 333, 1101, 0, 0, 1, 1, 1), /* gradients: k in blocks, slabs of rows */
    BOTH(MATMUL, OC_GAPS, 611, 70, 530, 1, 0, 0, 1, 0),
    BOTH(MATMUL, OC_GAPS, 530, 111, 71, 1, 1, 1, 0, 1),
    BOTH(MATMUL, 0, 257, 48, 289, 0, 0, 0, 0, 1),
    BOTH(MATMUL, 0, 7, 70, 2048, 0, 1, 1, 1, 1), /* rows 4096 bytes apart: another kernel */
    BOTH(MATMUL, OC_BENCH, 1, 2048, 2048, 0, 1, 0, 0, 1),
    BOTH(MATMUL, OC_BENCH, 8, 2048, 2048, 0, 1, 0, 0, 1),
    BOTH(MATMUL, OC_BENCH, 256, 2048, 2048, 0, 1, 0, 0, 1),
    BOTH(MATMUL, OC_BENCH, 256, 2048, 2048, 0, 0, 0, 0, 1),
    BOTH(MATMUL, OC_BENCH, 2048, 2048, 256, 1, 0, 0, 1, 0),

    BOTH(E4M3, 0, 1, 1, 1, 0, 0, 0),
    BOTH(E4M3, 0, 0, 8, 8, 0, 0, 0),
    BOTH(E4M3, 0, 1, 64, 48, 0, 0, 1),
    BOTH(E4M3, OC_GAPS, 1, 97, 129, 1, 0, 1),
    BOTH(E4M3, 0, 1, 70, 4112, 0, 1, 0),
    BOTH(E4M3, 0, 2, 256, 128, 1, 1, 1),
    BOTH(E4M3, 0, 3, 99, 304, 0, 1, 1),
    BOTH(E4M3, 0, 3, 99, 304, 0, 2, 0),
    BOTH(E4M3, OC_GAPS, 37, 99, 304, 1, 2, 1),
    BOTH(E4M3, 0, 4, 9, 1296, 1, 1, 0),
    BOTH(E4M3, OC_GAPS, 4, 33, 512, 0, 0, 0),
    BOTH(E4M3, 0, 5, 64, 96, 0, 0, 1),
    BOTH(E4M3, 0, 7, 31, 17, 1, 1, 0),
    BOTH(E4M3, 0, 13, 40, 9008, 0, 0, 1),
    BOTH(E4M3, 0, 24, 70, 208, 0, 1, 1),
    BOTH(E4M3, OC_GAPS, 16, 40, 1000, 0, 0, 1),
    BOTH(E4M3, 0, 33, 65, 144, 1, 1, 1),
    BOTH(E4M3, 0, 65, 33, 272, 0, 1, 0),
    BOTH(E4M3, 0, 130, 192, 256, 1, 0, 1),
    BOTH(E4M3, OC_GAPS, 300, 47, 95, 1, 1, 1),
    BOTH(E4M3, OC_BENCH, 1, 2048, 2048, 0, 0, 1),
    BOTH(E4M3, OC_BENCH, 8, 2048, 2048, 0, 0, 1),
    BOTH(E4M3, OC_BENCH, 16, 2048, 2048, 0, 0, 1),
    BOTH(E4M3, OC_BENCH, 256, 2048, 2048, 0, 0, 1),

    BOTH(QUANTIZE, 0, 1, 1),
    BOTH(QUANTIZE, 0, 0, 8),
    BOTH(QUANTIZE, OC_GAPS, 9, 97),
    BOTH(QUANTIZE, 0, 8, 33),
    BOTH(QUANTIZE, 0, 17, 256),
    BOTH(QUANTIZE, OC_GAPS, 5, 4100),
    BOTH(QUANTIZE, 0, 3, 8192),
    BOTH(QUANTIZE, OC_BENCH, 8, 2048),
    BOTH(QUANTIZE, OC_BENCH, 8192, 2048),

    BOTH(ROPE, 0, 1, 1, 1, 2, 0),
    BOTH(ROPE, 0, 0, 2, 1, 8, 3),
    BOTH(ROPE, OC_GAPS, 9, 4, 2, 8, 0),
    BOTH(ROPE, 0, 9, 4, 2, 64, 4),
    BOTH(ROPE, 0, 5, 3, 1, 10, 7),
    BOTH(ROPE, OC_IN_PLACE, 5, 6, 2, 64, 0),
    BOTH(ROPE, OC_IN_PLACE | OC_GAPS, 3, 4, 4, 16, 3),
    BOTH(ROPE, 0, 17, 8, 2, 128, 3),
    BOTH(ROPE, 0, 4, 3, 1, 80, 1),
    BOTH(ROPE, OC_GAPS, 4, 2, 2, 6, 2),
    BOTH(ROPE, 0, 3, 2, 1, 512, 3),
    BOTH(ROPE, 0, 2, 1, 1, 1024, 3),
    /* and appended to pages */
    BOTH(ROPE, 0, 1, 1, 1, 2, 0, 16, 1),
    BOTH(ROPE, OC_IN_PLACE, 0, 2, 1, 8, 0, 16, 3),
    BOTH(ROPE, OC_IN_PLACE | OC_GAPS, 19, 4, 2, 8, 3, 16, 5),
    BOTH(ROPE, OC_IN_PLACE, 40, 8, 2, 64, 0, 16, 4),
    BOTH(ROPE, 0, 40, 8, 2, 64, 3, 16, 4),
    BOTH(ROPE, OC_GAPS, 7, 3, 3, 128, 2, 1, 9),
    BOTH(ROPE, OC_IN_PLACE, 33, 6, 3, 128, 3, 16, 3),
    BOTH(ROPE, OC_IN_PLACE, 5, 14, 2, 96, 1, 16, 2),
    BOTH(ROPE, 0, 6, 2, 2, 20, 3, 5, 3),
    BOTH(ROPE, OC_BENCH | OC_IN_PLACE, 512, 9, 3, 64, 0, 16, 64),
    BOTH(ROPE, OC_BENCH | OC_IN_PLACE, 512, 32, 8, 128, 0, 16, 64),
    BOTH(ROPE, OC_BENCH | OC_IN_PLACE, 256, 32, 8, 64, 0),
    BOTH(ROPE, OC_BENCH | OC_IN_PLACE, 256, 16, 8, 128, 3),

    BOTH(SWIGLU, 0, 1, 1),
    BOTH(SWIGLU, 0, 0, 8),
    BOTH(SWIGLU, OC_GAPS, 7, 97),
    BOTH(SWIGLU, 0, 33, 256),
    BOTH(SWIGLU, OC_GAPS, 3, 1024),
    BOTH(SWIGLU, OC_BENCH, 256, 5632),

    BOTH(GATHER, 0, 1, 1, 1),
    BOTH(GATHER, 0, 0, 5, 8),
    BOTH(GATHER, OC_GAPS, 9, 5, 33),
    BOTH(GATHER, 0, 4, 128, 512),
    BOTH(GATHER, OC_BENCH, 64, 1024, 2048),
    BOTH(SCATTER, 0, 1, 1, 1),
    BOTH(SCATTER, 0, 0, 5, 8),
    BOTH(SCATTER, OC_GAPS, 4, 9, 33),
    BOTH(SCATTER, 0, 600, 5000, 1),
    BOTH(SCATTER, OC_BENCH, 64, 1024, 2048),

    CAST(HZP_F32, 0, 1, 1, HZP_BF16),
    CAST(HZP_F32, 0, 0, 8, HZP_BF16),
    CAST(HZP_F32, OC_GAPS, 7, 97, HZP_BF16),
    CAST(HZP_F32, 0, 3, 1024, HZP_BF16),
    CAST(HZP_BF16, OC_GAPS, 7, 97, HZP_F32),
    CAST(HZP_BF16, 0, 3, 1024, HZP_F32),
    CAST(HZP_BF16, 0, 3, 33, HZP_BF16),
    CAST(HZP_F32, OC_GAPS, 3, 33, HZP_F32),
    CAST(HZP_BF16, 0, 3, 64, HZP_BF16),
    CAST(HZP_F32, 0, 3, 64, HZP_F32),
    CAST(HZP_F32, OC_GAPS, 7, 97, HZP_BF16, 37),
    CAST(HZP_F32, 0, 3, 64, HZP_F32, 1),
    CAST(HZP_BF16, OC_GAPS, 7, 97, HZP_BF16, -1),
    CAST(HZP_BF16, 0, 3, 1024, HZP_F32, 3),
    CAST(HZP_F32, OC_BENCH, 256, 8192, HZP_BF16),

    BOTH(NOISE, 0, 1, 1, 0),
    BOTH(NOISE, 0, 0, 8, 0),
    BOTH(NOISE, OC_GAPS, 7, 97, 3),
    BOTH(NOISE, 0, 3, 1024, 0),
    BOTH(NOISE, 0, 3, 1024, 1004),
    BOTH(NOISE, 0, 2, 64, 2),
    BOTH(NOISE, 0, 1, 40000, 0),
    BOTH(NOISE, OC_BENCH, 1, 1 << 22, 0),

    BOTH(FILL, 0, 1, 1, 1),
    BOTH(FILL, 0, 0, 8, 1),
    BOTH(FILL, OC_GAPS, 7, 97, 0),
    BOTH(FILL, 0, 3, 1024, -7),
    BOTH(FILL, OC_BENCH, 256, 8192, 0),
    {0},
};

/* Appending to E4M3 pages; after all other cases, so that those keep their random numbers. */
const struct oc_case oc_cases_narrow[] = {
    BOTH(ROPE, 0, 1, 1, 1, 2, 0, 16, 1, 1),
    BOTH(ROPE, OC_IN_PLACE, 0, 2, 1, 8, 0, 16, 3, 1),
    BOTH(ROPE, OC_IN_PLACE | OC_GAPS, 19, 4, 2, 8, 3, 16, 5, 1),
    BOTH(ROPE, OC_IN_PLACE, 40, 8, 2, 64, 0, 16, 4, 1),
    BOTH(ROPE, 0, 40, 8, 2, 64, 3, 16, 4, 1),
    BOTH(ROPE, OC_GAPS, 7, 3, 3, 128, 2, 1, 9, 1),
    BOTH(ROPE, OC_IN_PLACE, 33, 6, 3, 128, 3, 16, 3, 1),
    BOTH(ROPE, OC_IN_PLACE, 5, 14, 2, 96, 1, 16, 2, 1),
    BOTH(ROPE, 0, 6, 2, 2, 20, 3, 5, 3, 1),
    BOTH(ROPE, OC_BENCH | OC_IN_PLACE, 512, 32, 8, 128, 0, 16, 64, 1),
    {0},
};

/* Projections with norm and SwiGLU; after all other cases, so that those keep their random numbers.
 * All kernels of few rows, then what none of them can do. */
const struct oc_case oc_cases_project[] = {
    PROJECT(HZP_BF16, 0, 1, 9, 1288, 1, 0, 0, 0, 0),
    PROJECT(HZP_BF16, 0, 1, 9, 1288, 1, 0, 1, 1, 0),
    PROJECT(HZP_BF16, 0, 2, 11, 520, 1, 0, 1, 0, 0),
    PROJECT(HZP_BF16, 0, 2, 11, 520, 1, 0, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 3, 9, 264, 1, 0, 0, 0, 0),
    PROJECT(HZP_BF16, 0, 3, 9, 264, 1, 0, 1, 1, 0),
    PROJECT(HZP_BF16, 0, 4, 22, 1288, 1, 0, 1, 0, 0),
    PROJECT(HZP_BF16, 0, 4, 22, 1288, 1, 0, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 1, 9, 1288, 1, 1, 0, 0, 0),
    PROJECT(HZP_BF16, 0, 1, 9, 1288, 1, 1, 1, 1, 0),
    PROJECT(HZP_BF16, 0, 2, 11, 520, 1, 1, 1, 0, 0),
    PROJECT(HZP_BF16, 0, 2, 11, 520, 1, 1, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 3, 9, 264, 1, 1, 0, 0, 0),
    PROJECT(HZP_BF16, 0, 3, 9, 264, 1, 1, 1, 1, 0),
    PROJECT(HZP_BF16, 0, 4, 22, 1288, 1, 1, 1, 0, 0),
    PROJECT(HZP_BF16, 0, 4, 22, 1288, 1, 1, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 1, 9, 1288, 0, 1, 1, 0, 0),
    PROJECT(HZP_BF16, 0, 1, 9, 1288, 0, 1, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 2, 11, 520, 0, 1, 0, 0, 0),
    PROJECT(HZP_BF16, 0, 2, 11, 520, 0, 1, 1, 1, 0),
    PROJECT(HZP_BF16, 0, 3, 9, 264, 0, 1, 1, 0, 0),
    PROJECT(HZP_BF16, 0, 3, 9, 264, 0, 1, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 4, 22, 1288, 0, 1, 0, 0, 0),
    PROJECT(HZP_BF16, 0, 4, 22, 1288, 0, 1, 1, 1, 0),
    /* longer than a turn of all loads in flight, exactly one, and one row of weights */
    PROJECT(HZP_BF16, 0, 1, 40, 4096, 1, 1, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 4, 33, 2048, 1, 0, 1, 1, 0),
    PROJECT(HZP_BF16, 0, 2, 1, 1024, 1, 1, 0, 1, 0),
    PROJECT(HZP_BF16, 0, 1, 1, 8, 1, 0, 0, 0, 0),
    PROJECT(HZP_BF16, 0, 0, 8, 8, 1, 1, 0, 1, 0),
    /* E4M3: a part of a block, several slices, a depth that ends within one */
    PROJECT(HZP_BF16, 0, 1, 8, 64, 0, 1, 0, 1, 1),
    PROJECT(HZP_BF16, 0, 2, 13, 4112, 0, 1, 1, 1, 1),
    PROJECT(HZP_BF16, 0, 4, 21, 528, 0, 1, 0, 0, 1),
    PROJECT(HZP_F32, 0, 3, 9, 1040, 0, 1, 1, 1, 1),
    /* rows, types, widths and strides for which there is no fast kernel */
    BOTH(PROJECT, 0, 5, 7, 64, 1, 1, 1, 1, 0),
    BOTH(PROJECT, OC_GAPS, 3, 5, 31, 1, 1, 1, 1, 0),
    BOTH(PROJECT, OC_GAPS, 2, 17, 40, 1, 0, 0, 0, 0),
    BOTH(PROJECT, OC_GAPS, 4, 6, 33, 0, 1, 1, 1, 0),
    BOTH(PROJECT, 0, 2, 6, 24, 0, 0, 1, 1, 0),
    BOTH(PROJECT, OC_GAPS, 6, 5, 29, 0, 1, 1, 1, 1),
    PROJECT(HZP_BF16, OC_BENCH, 1, 14336, 4096, 1, 1, 0, 1, 0),
    PROJECT(HZP_BF16, OC_BENCH, 1, 6144, 4096, 1, 0, 0, 1, 0),
    PROJECT(HZP_BF16, OC_BENCH, 4, 14336, 4096, 1, 1, 0, 1, 0),
    BOTH(CODES, 0, 1, 1, 1),
    BOTH(CODES, 0, 1, 1, 0),
    BOTH(CODES, 0, 0, 8, 1),
    BOTH(CODES, 0, 0, 8, 0),
    BOTH(CODES, OC_GAPS, 9, 97, 1),
    BOTH(CODES, OC_GAPS, 9, 97, 0),
    BOTH(CODES, 0, 17, 256, 1),
    BOTH(CODES, 0, 17, 256, 0),
    BOTH(CODES, OC_GAPS, 3, 4104, 1),
    BOTH(CODES, OC_GAPS, 3, 4104, 0),
    BOTH(CODES, OC_BENCH, 8192, 2048, 1),
    BOTH(CODES, OC_BENCH, 8192, 2048, 0),
    {0},
};

/* Norms of 1 + w and with an addend, GELU, caps; last: other cases keep their random numbers. */
const struct oc_case oc_cases_kinds[] = {
    BOTH(RMSNORM, 0, 1, 1, 1, 1, 0),
    BOTH(RMSNORM, OC_GAPS, 7, 97, 1, 1, 0),
    BOTH(RMSNORM, 0, 5, 256, 0, 1, 1),
    BOTH(RMSNORM, OC_GAPS, 9, 33, 1, 0, 1),
    BOTH(RMSNORM, 0, 9, 264, 1, 1, 2),
    BOTH(RMSNORM, 0, 0, 8, 0, 0, 2),
    BOTH(RMSNORM, OC_GAPS, 7, 97, 1, 0, 0, 1),
    BOTH(RMSNORM, 0, 5, 264, 1, 0, 0, 1),
    BOTH(RMSNORM, OC_GAPS, 2, 33, 0, 1, 1, 1),
    BOTH(ROPE, OC_GAPS, 9, 4, 2, 8, 11, 16, 5),
    BOTH(ROPE, OC_IN_PLACE, 33, 6, 3, 128, 11, 16, 3, 1),
    BOTH(ROPE, 0, 5, 3, 1, 80, 9),
    BOTH(SWIGLU, 0, 1, 1, 1),
    BOTH(SWIGLU, OC_GAPS, 7, 97, 1),
    BOTH(SWIGLU, 0, 33, 256, 1),
    CAST(HZP_F32, OC_GAPS, 7, 97, HZP_F32, 0, 30),
    CAST(HZP_F32, 0, 3, 1024, HZP_F32, 2, 5),
    CAST(HZP_BF16, 0, 3, 64, HZP_BF16, 0, 50),
    CAST(HZP_F32, OC_GAPS, 7, 97, HZP_BF16, 0, 0, 1),
    CAST(HZP_F32, 0, 3, 1024, HZP_F32, 2, 0, 1),
    CAST(HZP_BF16, 0, 3, 64, HZP_F32, 0, 0, 2),
    {0},
};
