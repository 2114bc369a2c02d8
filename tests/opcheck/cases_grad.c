/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/cases_grad.c - the loss and the backward ops, except attention's. */
#include <math.h>
#include <string.h>

#include "tests/opcheck/opcheck.h"

/* A second view of x, the newest buffer: BF16 in the first half of each row.  The second half is x
 * alone, an input, and must stay as it is. */
static struct hzp_mat half_over(struct oc_io *io, const struct hzp_mat *x)
{
    struct oc_buf dx = io->buf[io->bufs - 1];
    HZP_ASSERT(io->bufs < OC_BUFS_MAX);
    dx.name = "dx";
    dx.elem = OC_BF16;
    dx.role = OC_INOUT;
    dx.stride *= 2;
    io->buf[io->bufs++] = dx;
    return (struct hzp_mat){x->ptr, x->rows, x->cols, 2 * x->stride, HZP_BF16};
}

/* Rows of each kind, on either side of each bound, advantages of either sign; old is near what lp
 * is, some row far off. */
static const struct hzp_row_loss *row_losses(struct oc_io *io, int32_t rows, float lp)
{
    struct hzp_row_loss *how =
        oc_bytes(io, "how", (size_t)rows * sizeof(struct hzp_row_loss), OC_IN);
    for (int32_t r = 0; r < rows; r++)
        how[r] = (struct hzp_row_loss){.kind = r % HZP_LOSS_KINDS,
                                       .inv_temperature = r % 4 == 2 ? 0.7f : 1,
                                       .old = lp + (float)oc_uniform(io) * 2 - 1,
                                       .advantage = r % 3 == 0 ? -0.8f : 1.7f,
                                       .reference = lp + (float)oc_uniform(io) - 0.5f,
                                       .kl = r % 2 ? 0.3f : 0,
                                       .low = 0.2f,
                                       .high = 0.28f,
                                       .beta = 0.1f};
    return how;
}

/* From one token to HZP_SOFT_MAX or all, both ends of the vocabulary among them. */
static const struct hzp_soft *soft_targets(struct oc_io *io, int32_t rows, int32_t vocab)
{
    struct hzp_soft *soft = oc_bytes(io, "soft", (size_t)rows * sizeof(struct hzp_soft), OC_IN);
    for (int32_t r = 0; r < rows; r++) {
        struct hzp_soft *s = &soft[r];
        memset(s, 0, sizeof(*s));
        s->count = HZP_MIN(1 + r * 5 % HZP_SOFT_MAX, vocab);
        s->rest = r % 3 == 1 ? 0 : 0.2f;
        for (int32_t k = 0; k < s->count; k++) {
            s->token[k] = k % 2 ? vocab - 1 - k / 2 : k / 2;
            s->p[k] = (float)(0.8 * (k + 1) / s->count);
        }
    }
    return soft;
}

/* rows, vocab, dx: 0 absent, 1 F32, 2 BF16, 3 in place, 4 BF16 in place; whether rows have
 * weights; losses of all kinds: 1, and outputs of lp and entropy: 2 */
static void build_xent(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], vocab = c->p[1];
    static const char *const kinds[] = {"", " dx f32", " dx bf16", " dx in place",
                                        " dx bf16 in place"};
    struct hzp_xent_args a = {0};
    int32_t *target = oc_array(io, "target", OC_I32, rows, OC_IN);
    a.x = oc_mat(io, "x", rows, vocab, HZP_F32, c->p[2] == 3 ? OC_INOUT : OC_IN);
    if (c->p[2] == 4)
        a.dx = half_over(io, &a.x);
    a.target = target;
    a.loss = oc_array(io, "loss", OC_F32, rows, OC_OUT);
    if (c->p[2] == 3)
        a.dx = a.x;
    else if (c->p[2] && c->p[2] < 4)
        a.dx = oc_mat(io, "dx", rows, vocab, c->p[2] == 1 ? HZP_F32 : HZP_BF16, OC_OUT);
    oc_fill(io, &a.x, 2, 40);
    oc_fill_index(io, target, rows, vocab);
    if (c->p[3]) { /* 0, 0.75, 1.5, -1.75, ... */
        float *weight = oc_array(io, "weight", OC_F32, rows, OC_IN);
        for (int32_t r = 0; r < rows; r++)
            weight[r] = (float)(r % 5) * (r % 4 == 3 ? -0.75f : 0.75f);
        a.weight = weight;
    }
    if (c->p[4])
        a.how = row_losses(io, rows, -(float)log(vocab) - 2);
    if (c->p[4])
        a.soft = soft_targets(io, rows, vocab);
    if (c->p[4] == 2) {
        a.lp = oc_array(io, "lp", OC_F32, rows, OC_OUT);
        a.entropy = oc_array(io, "entropy", OC_F32, rows, OC_OUT);
    }
    for (int32_t r = 3; r < rows; r += 4)
        target[r] = -1;
    a.cap = (float)c->p[5];
    for (int32_t r = 0; a.cap > 0 && r < rows; r++)
        for (int32_t i = 0; i < vocab; i++)
            oc_put(&a.x, r, i, a.cap * tanhf(oc_get(&a.x, r, i) / a.cap));
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d%s%s%s%s", rows, vocab, kinds[c->p[2]], a.cap > 0 ? " cap" : "",
            c->p[3] ? " weighted" : "",
            c->p[4] == 2 ? " all kinds, lp out"
            : c->p[4]    ? " all kinds"
                         : "");
}

/* rows, vocab, width, first row of the table: ids lie on both sides of it */
/* rows, sequences; kinds by turns, pairs and halves of pairs, some of no rows */
static void build_seq_loss(struct oc_io *io, const struct oc_case *c)
{
    static const int32_t kind[] = {HZP_LOSS_DPO,  HZP_LOSS_DPO, HZP_LOSS_IPO, HZP_LOSS_IPO,
                                   HZP_LOSS_GSPO, HZP_LOSS_PPO, HZP_LOSS_DPO};
    int32_t rows = c->p[0], seqs = c->p[1];
    struct hzp_seq_loss_args a = {.seqs = seqs};
    a.lp = oc_mat(io, "lp", 1, rows, HZP_F32, OC_IN);
    oc_fill(io, &a.lp, 1, 1);
    struct hzp_row_loss *how =
        oc_bytes(io, "how", (size_t)rows * sizeof(struct hzp_row_loss), OC_IN);
    int32_t *first = oc_array(io, "first", OC_I32, seqs + 1, OC_IN);
    for (int32_t i = 0; i <= seqs; i++)
        first[i] = i == seqs ? rows : i % 5 == 3 ? first[i - 1] : rows * i / seqs;
    for (int32_t i = 0; i < seqs; i++)
        for (int32_t r = first[i]; r < first[i + 1]; r++)
            how[r] = (struct hzp_row_loss){.kind = kind[i % HZP_COUNT(kind)],
                                           .inv_temperature = 1,
                                           .old = oc_get(&a.lp, 0, r) + 0.05f * (float)(i % 3 - 1),
                                           .advantage = i % 2 ? -1 : 1,
                                           .reference = (float)oc_uniform(io) - 2,
                                           .kl = 0.25f,
                                           .low = 3e-4f,
                                           .high = 4e-4f,
                                           .beta = 0.5f};
    a.how = how;
    a.first = first;
    a.out = oc_bytes(io, "out", (size_t)rows * sizeof(*a.out), OC_OUT);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%d rows of %d", rows, seqs);
}

static void build_embed_bwd(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], vocab = c->p[1], width = c->p[2];
    struct hzp_embed_bwd_args a = {0};
    int32_t *id = oc_array(io, "id", OC_I32, rows, OC_IN);
    a.dtable = oc_mat(io, "dtable", vocab, width, HZP_F32, OC_INOUT);
    a.dy = oc_mat(io, "dy", rows, width, HZP_F32, OC_IN);
    a.id = id;
    a.first = c->p[3];
    oc_fill(io, &a.dtable, 1, 300);
    oc_fill(io, &a.dy, 1, 300);
    oc_fill_index(io, id, rows, vocab + 2 * a.first);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%d rows into %dx%d from %d", rows, vocab, width, c->p[3]);
}

/* rows, cols, dw wanted, dy (2: w) is F32 whatever the type, 1 + w, centred */
static void build_rmsnorm_bwd(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], cols = c->p[1];
    struct hzp_rmsnorm_bwd_args a = {.plus_one = c->p[4], .centred = c->p[5]};
    float *rstd = oc_array(io, "rstd", OC_F32, rows, OC_IN);
    a.dy = oc_mat(io, "dy", rows, cols, c->p[3] == 1 ? HZP_F32 : c->type, OC_IN);
    a.x = oc_mat(io, "x", rows, cols, HZP_F32, OC_IN);
    a.w = oc_mat(io, "w", 1, cols, c->p[3] == 2 ? HZP_F32 : c->type, OC_IN);
    a.dx = oc_mat(io, "dx", rows, cols, HZP_F32, OC_INOUT);
    if (c->p[2])
        a.dw = oc_mat(io, "dw", 1, cols, HZP_F32, OC_INOUT);
    a.rstd = rstd;
    oc_fill(io, &a.dy, 1, 300);
    oc_fill(io, &a.x, 1, 300);
    oc_fill(io, &a.w, 1, 10);
    oc_fill(io, &a.dx, 0.1, 10);
    if (cols == 1 && rows > 0) /* dn and n mean(dn n) cancel: only rounding is left */
        oc_put(&a.dx, 0, 0, 1);
    if (c->p[2])
        oc_fill(io, &a.dw, 0.1, 10);
    for (int32_t r = 0; r < rows; r++) {
        double sum = 0, centre = 0;
        for (int32_t i = 0; a.centred && i < cols; i++)
            centre += oc_get(&a.x, r, i) / cols;
        for (int32_t i = 0; i < cols; i++)
            sum += pow(oc_get(&a.x, r, i) - centre, 2);
        rstd[r] = (float)(1 / sqrt(sum / cols + 1e-5));
    }
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s%s%s", rows, cols, oc_type_name(c->type), c->p[2] ? " +dw" : "",
            c->p[3] == 1   ? ", dy f32"
            : c->p[3] == 2 ? ", w f32"
                           : "");
}

/* rows, heads, kv_heads, dim, norms (1 q, 2 k) */
static void build_rope_bwd(struct oc_io *io, const struct oc_case *c)
{
    enum { POSITIONS = 500 };
    int32_t rows = c->p[0], dim = c->p[3], width = (c->p[1] + 2 * c->p[2]) * dim;
    struct hzp_rope_bwd_args a = {
        .heads = {c->p[1], c->p[2], dim}, .eps = 1e-6f, .plus_one = c->p[4] & 8};
    bool in_place = c->flags & OC_IN_PLACE;
    int32_t *pos = oc_array(io, "pos", OC_I32, rows, OC_IN);
    a.dy = oc_mat(io, "dy", rows, width, c->type, in_place ? OC_INOUT : OC_IN);
    a.dx = in_place ? a.dy : oc_mat(io, "dx", rows, width, c->type, OC_OUT);
    int32_t table = c->p[4] & 4 ? 1 : POSITIONS; /* one row for all positions */
    a.table = oc_mat(io, "table", table, dim, HZP_F32, OC_IN);
    a.pos = pos;
    struct hzp_mat *norm[] = {&a.q_norm, &a.k_norm}, *dnorm[] = {&a.dq_norm, &a.dk_norm};
    static const char *const names[][2] = {{"q_norm", "dq_norm"}, {"k_norm", "dk_norm"}};
    for (int i = 0; i < 2; i++)
        if (c->p[4] & (1 << i)) {
            *norm[i] = oc_mat(io, names[i][0], 1, dim, c->type, OC_IN);
            *dnorm[i] = oc_mat(io, names[i][1], 1, dim, HZP_F32, OC_INOUT);
            oc_fill(io, norm[i], 1, 10);
            oc_fill(io, dnorm[i], 1, 10);
        }
    if (c->p[4] & 3) {
        a.x = oc_mat(io, "x", rows, width, c->type, OC_IN);
        oc_fill(io, &a.x, 1, 300);
    }
    oc_fill(io, &a.dy, 1, 300);
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
    oc_what(io, "%d rows %d/%dx%d %s%s%s%s", rows, c->p[1], c->p[2], dim, oc_type_name(c->type),
            c->p[4] & 1 ? " qnorm" : "", c->p[4] & 2 ? " knorm" : "", in_place ? " in place" : "");
}

/* rows, width */
static void build_swiglu_bwd(struct oc_io *io, const struct oc_case *c)
{
    int32_t rows = c->p[0], width = c->p[1];
    struct hzp_swiglu_bwd_args a = {oc_mat(io, "x", rows, 2 * width, c->type, OC_IN),
                                    oc_mat(io, "dy", rows, width, c->type, OC_IN),
                                    oc_mat(io, "dx", rows, 2 * width, c->type, OC_OUT), c->p[2]};
    oc_fill(io, &a.x, 2, 100);
    oc_fill(io, &a.dy, 1, 300);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s", rows, width, oc_type_name(c->type));
}

/* rows, cols */
static void build_colsum(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_colsum_args a = {oc_mat(io, "x", c->p[0], c->p[1], c->type, OC_IN),
                                oc_mat(io, "y", 1, c->p[1], HZP_F32, OC_INOUT)};
    oc_fill(io, &a.x, 1, 300);
    oc_fill(io, &a.y, 1, 300);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s", c->p[0], c->p[1], oc_type_name(c->type));
}

#define XENT(flags, ...)                                                                           \
    {                                                                                              \
        HZP_OP_xent, build_xent, HZP_F32, flags,                                                   \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define SEQUENCES(flags, ...)                                                                      \
    {                                                                                              \
        HZP_OP_seq_loss, build_seq_loss, HZP_F32, flags,                                           \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define EMBED(flags, ...)                                                                          \
    {                                                                                              \
        HZP_OP_embed_bwd, build_embed_bwd, HZP_F32, flags,                                         \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define RMSNORM(type, flags, ...)                                                                  \
    {                                                                                              \
        HZP_OP_rmsnorm_bwd, build_rmsnorm_bwd, type, flags,                                        \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define ROPE(type, flags, ...)                                                                     \
    {                                                                                              \
        HZP_OP_rope_bwd, build_rope_bwd, type, flags,                                              \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define SWIGLU(type, flags, ...)                                                                   \
    {                                                                                              \
        HZP_OP_swiglu_bwd, build_swiglu_bwd, type, flags,                                          \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define COLSUM(type, flags, ...)                                                                   \
    {                                                                                              \
        HZP_OP_colsum, build_colsum, type, flags,                                                  \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#define BOTH(X, ...) X(HZP_F32, __VA_ARGS__), X(HZP_BF16, __VA_ARGS__)

const struct oc_case oc_cases_grad[] = {
    XENT(0, 1, 1, 1),
    XENT(0, 0, 96, 1),
    XENT(OC_GAPS, 9, 96, 1),
    XENT(OC_GAPS, 9, 97, 2),
    XENT(OC_GAPS, 9, 1024, 3),
    XENT(0, 5, 1000, 0),
    XENT(0, 5, 1024, 2),
    XENT(0, 5, 32001, 2),
    XENT(0, 6, 32001, 3),
    XENT(0, 1, 1, 4),
    XENT(0, 0, 96, 4),
    XENT(OC_GAPS, 9, 97, 4),
    XENT(OC_GAPS, 9, 1024, 4, 1),
    XENT(0, 5, 9000, 4), /* several tiles of a block, the last one a part */
    XENT(0, 6, 32001, 4, 1),
    XENT(OC_GAPS, 9, 97, 1, 1),
    XENT(OC_GAPS, 41, 97, 1, 1, 2),
    XENT(0, 40, 96, 2, 1, 1),
    XENT(0, 26, 1024, 3, 0, 2),
    XENT(OC_GAPS, 25, 9000, 4, 1, 2),
    XENT(0, 12, 1000, 0, 0, 2),
    XENT(OC_GAPS, 13, 97, 2, 1, 2),
    XENT(0, 13, 1024, 4, 0, 1),
    XENT(0, 1, 1, 1, 0, 2),
    XENT(OC_GAPS, 9, 96, 2, 1),
    XENT(0, 11, 1024, 3, 1),
    XENT(0, 7, 1000, 0, 1),
    XENT(OC_BENCH, 256, 32000, 3),
    XENT(OC_BENCH, 256, 32000, 2),
    XENT(OC_BENCH, 256, 32000, 4),
    XENT(OC_BENCH, 256, 32000, 4, 0, 1),
    XENT(OC_BENCH, 256, 32000, 4, 0, 2),

    SEQUENCES(0, 1, 1),
    SEQUENCES(0, 40, 7),
    SEQUENCES(0, 300, 23),
    SEQUENCES(0, 1000, 2),

    EMBED(0, 1, 1, 1),
    EMBED(0, 0, 7, 8),
    EMBED(OC_GAPS, 40, 5, 33), /* every id many times */
    EMBED(0, 17, 301, 256),
    EMBED(OC_GAPS, 43, 5, 37, 4), /* many of them in no row of the table */
    EMBED(0, 530, 9, 40),
    EMBED(OC_GAPS, 3, 7, 1100),
    EMBED(OC_BENCH, 1024, 32000, 2048),

    BOTH(RMSNORM, 0, 1, 1, 1, 0),
    BOTH(RMSNORM, 0, 0, 8, 1, 0),
    BOTH(RMSNORM, OC_GAPS, 7, 97, 1, 0),
    BOTH(RMSNORM, 0, 33, 64, 0, 0),
    BOTH(RMSNORM, OC_GAPS, 67, 256, 1, 1),
    BOTH(RMSNORM, 0, 4, 4096, 1, 0),
    RMSNORM(HZP_BF16, 0, 9, 128, 1, 1),
    RMSNORM(HZP_BF16, 0, 9, 128, 1, 2),
    RMSNORM(HZP_BF16, OC_GAPS, 9, 33, 1, 2),
    BOTH(RMSNORM, 0, 69, 264, 1, 0), /* column sums: several groups of rows, a part of a tile */
    BOTH(RMSNORM, OC_BENCH, 512, 2048, 1, 0),
    BOTH(RMSNORM, OC_BENCH, 4096, 4096, 0, 0),
    BOTH(RMSNORM, OC_BENCH, 4096, 4096, 1, 0), /* less the one above: the column sums */

    BOTH(ROPE, 0, 1, 1, 1, 2, 0),
    BOTH(ROPE, 0, 0, 2, 1, 8, 3),
    BOTH(ROPE, OC_GAPS, 9, 4, 2, 8, 0),
    BOTH(ROPE, 0, 9, 4, 2, 64, 4),
    BOTH(ROPE, 0, 5, 3, 1, 10, 7),
    BOTH(ROPE, OC_IN_PLACE, 5, 6, 2, 64, 0),
    BOTH(ROPE, OC_IN_PLACE | OC_GAPS, 13, 4, 4, 16, 3),
    BOTH(ROPE, 0, 17, 8, 2, 128, 3),
    BOTH(ROPE, 0, 4, 3, 1, 80, 1),
    BOTH(ROPE, OC_GAPS, 4, 2, 2, 6, 2),
    BOTH(ROPE, OC_BENCH | OC_IN_PLACE, 256, 16, 8, 128, 3),

    BOTH(SWIGLU, 0, 1, 1),
    BOTH(SWIGLU, 0, 0, 8),
    BOTH(SWIGLU, OC_GAPS, 7, 97),
    BOTH(SWIGLU, 0, 33, 256),
    BOTH(SWIGLU, OC_BENCH, 256, 5632),

    BOTH(COLSUM, 0, 1, 1),
    BOTH(COLSUM, 0, 0, 8),
    BOTH(COLSUM, OC_GAPS, 7, 97),
    BOTH(COLSUM, 0, 300, 64),
    BOTH(COLSUM, OC_GAPS, 39, 520),
    BOTH(COLSUM, OC_BENCH, 1024, 2560),
    {0},
};

/* Norms of 1 + w, GELU, capped logits; after all other cases, as in cases_dense.c. */
const struct oc_case oc_cases_grad_kinds[] = {
    XENT(OC_GAPS, 9, 97, 1, 1, 0, 5),
    XENT(0, 9, 1024, 3, 0, 2, 3),
    XENT(OC_GAPS, 9, 9000, 4, 1, 1, 30),
    XENT(0, 5, 96, 2, 0, 0, 2),
    BOTH(RMSNORM, OC_GAPS, 7, 97, 1, 0, 1),
    BOTH(RMSNORM, 0, 69, 264, 1, 0, 1),
    BOTH(RMSNORM, OC_GAPS, 7, 97, 1, 0, 0, 1),
    BOTH(RMSNORM, 0, 69, 264, 1, 0, 0, 1),
    BOTH(RMSNORM, 0, 5, 33, 0, 1, 1, 1),
    BOTH(ROPE, OC_GAPS, 9, 4, 2, 8, 11),
    BOTH(ROPE, 0, 17, 8, 2, 128, 11),
    BOTH(ROPE, 0, 4, 3, 1, 80, 9),
    BOTH(SWIGLU, 0, 1, 1, 1),
    BOTH(SWIGLU, OC_GAPS, 7, 97, 1),
    BOTH(SWIGLU, 0, 33, 256, 1),
    {0},
};
