/* SPDX-License-Identifier: Apache-2.0 */
/* dev/debug/validate.c - the rules of device/ops.h that need no reading of the device. */
#include <math.h>
#include <stdio.h>

#include "device/operand.h"
#include "mesh/link.h"

/* hzp_op_validate prefixes these texts with the op's name. */
#define RULE(condition, text)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return text;                                                                           \
    } while (0)

/* What another check finds broken is broken. */
#define PASS(check)                                                                                \
    do {                                                                                           \
        const char *broken_ = (check);                                                             \
        if (broken_)                                                                               \
            return broken_;                                                                        \
    } while (0)

static bool is_float(const struct hzp_mat *m)
{
    return m->type == HZP_F32 || m->type == HZP_BF16;
}

static bool same_shape(const struct hzp_mat *a, const struct hzp_mat *b)
{
    return a->rows == b->rows && a->cols == b->cols;
}

/* Whether m is a row vector of n elements, or absent. */
static bool is_row(const struct hzp_mat *m, int32_t n)
{
    return !m->ptr || (m->rows == 1 && m->cols == n);
}

static const char *check_heads(const struct hzp_heads *h, const struct hzp_mat *qkv)
{
    RULE(h->heads > 0 && h->kv_heads > 0 && h->dim > 0, "heads, kv_heads and dim must be positive");
    RULE(h->heads % h->kv_heads == 0, "heads is not a multiple of kv_heads");
    RULE(qkv->cols == (h->heads + 2 * (int64_t)h->kv_heads) * h->dim,
         "the packed row is not (heads + 2 kv_heads) dim wide");
    RULE(is_float(qkv), "the packed rows are neither F32 nor BF16");
    return NULL;
}

static const char *check_segs(const struct hzp_segs *s, int32_t rows)
{
    RULE(s->count >= 0 && s->rows_max >= 0 && s->rows_max <= rows, "segments do not fit the rows");
    RULE(s->ctx_max >= s->rows_max, "ctx_max is less than rows_max");
    RULE(s->row0, "row0 is absent");
    return NULL;
}

static const char *check_embed(const struct hzp_embed_args *a)
{
    RULE(a->table.cols == a->y.cols, "table and y differ in width");
    return NULL;
}

static const char *check_rmsnorm(const struct hzp_rmsnorm_args *a)
{
    RULE(a->add.ptr || a->w.type == a->y.type, "w and y differ in type");
    RULE(!a->add.ptr || a->y.type == HZP_F32, "add or y is not F32");
    RULE(a->w.rows == 1 && a->w.cols == a->x.cols, "w is not [1][cols]");
    RULE(a->eps >= 0, "eps is negative");
    return NULL;
}

static const char *check_from(const struct hzp_matmul_args *a)
{
    if (!a->from.ptr)
        return NULL;
    RULE(a->accumulate, "there is a from, and nothing is accumulated");
    RULE(a->from.type == a->c.type && same_shape(&a->from, &a->c), "c and from differ");
    RULE(a->from.stride == a->c.stride, "c and from differ in stride");
    return NULL;
}

static const char *check_matmul_e4m3(const struct hzp_matmul_args *a)
{
    RULE(!a->trans_a && a->trans_b, "a and b are E4M3, and not trans_b alone is set");
    RULE(a->a.cols == a->b.cols, "a and b differ in depth");
    RULE(is_float(&a->c), "c is neither F32 nor BF16");
    RULE(a->c.rows == a->a.rows && a->c.cols == a->b.rows, "c is not of the product's shape");
    RULE(!a->bias.ptr || is_float(&a->bias), "bias is neither F32 nor BF16");
    RULE(is_row(&a->bias, a->b.rows), "bias is not [1][cols of c]");
    return check_from(a);
}

static const char *check_codes(const struct hzp_codes_args *a)
{
    if (!a->norm.ptr) {
        RULE(a->x.rows == a->y.rows && a->x.cols == 2 * (int64_t)a->y.cols,
             "x is not [rows][2 width]");
        return NULL;
    }
    RULE(a->x.type == HZP_F32, "x is not F32");
    RULE(same_shape(&a->x, &a->y), "x and y differ in shape");
    RULE(a->norm.rows == 1 && a->norm.cols == a->x.cols, "norm is not [1][cols of x]");
    return NULL;
}

static const char *check_matmul(const struct hzp_matmul_args *a)
{
    int32_t m = a->trans_a ? a->a.cols : a->a.rows, ka = a->trans_a ? a->a.rows : a->a.cols;
    int32_t n = a->trans_b ? a->b.rows : a->b.cols, kb = a->trans_b ? a->b.cols : a->b.rows;
    RULE((is_float(&a->a) || a->a.type == HZP_E4M3) && a->a.type == a->b.type,
         "a and b differ in type");
    if (a->a.type == HZP_E4M3)
        return check_matmul_e4m3(a);
    RULE(!a->scale_a && !a->scale_b, "there are scales, and a is not E4M3");
    RULE(a->c.type == HZP_F32 || a->c.type == a->a.type, "c is neither F32 nor of a's type");
    RULE(ka == kb, "a and b differ in depth");
    RULE(a->c.rows == m && a->c.cols == n, "c is not of the product's shape");
    RULE(!a->bias.ptr || a->bias.type == a->a.type, "a and bias differ in type");
    RULE(is_row(&a->bias, n), "bias is not [1][cols of c]");
    return check_from(a);
}

static const char *check_project(const struct hzp_project_args *a)
{
    const struct hzp_matmul_args *p = &a->product;
    struct hzp_matmul_args whole = *p; /* the product alone, as matmul may have it */
    RULE(!p->trans_a && p->trans_b && !p->accumulate, "not trans_b alone is set");
    RULE(p->c.cols <= INT32_MAX / 2, "c is too wide");
    if (a->gated)
        whole.c.cols *= 2;
    if (a->norm.ptr) {
        RULE(p->a.type == HZP_F32 && is_float(&p->b),
             "there is a norm, and a is not F32 or b E4M3");
        RULE(a->norm.type == p->b.type, "norm and b differ in type");
        RULE(is_row(&a->norm, p->a.cols), "norm is not [1][cols of a]");
        RULE(a->eps >= 0, "eps is negative");
        whole.a.type = p->b.type;
    }
    return check_matmul(&whole);
}

static const char *check_kv(const struct hzp_kv *kv, const struct hzp_mat *qkv)
{
    RULE(kv->type == qkv->type || kv->type == HZP_E4M3,
         "pages and rows differ in type, and the pages are not E4M3");
    RULE(kv->type == HZP_E4M3 || (!kv->k_scale && !kv->v_scale),
         "there are scales, and the pages are not E4M3");
    RULE(kv->pages > 0 && kv->page_rows > 0, "there are no pages");
    RULE((int64_t)kv->pages * kv->page_rows <= INT32_MAX, "more slots than an int32 can name");
    return NULL;
}

static const char *check_rope(const struct hzp_rope_args *a)
{
    PASS(check_heads(&a->heads, &a->x));
    RULE(a->heads.dim % 2 == 0, "dim is odd");
    RULE(a->x.type == a->y.type, "x and y differ in type");
    RULE(a->table.type == HZP_F32 && a->table.cols == a->heads.dim,
         "table is not [positions][dim] F32");
    RULE(is_row(&a->q_norm, a->heads.dim) && is_row(&a->k_norm, a->heads.dim),
         "a norm is not [1][dim]");
    RULE((!a->q_norm.ptr || a->q_norm.type == a->x.type) &&
             (!a->k_norm.ptr || a->k_norm.type == a->x.type),
         "x and a norm differ in type");
    return a->kv.k ? check_kv(&a->kv, &a->x) : NULL;
}

/* What attention reads and gives; rows: that are computed. */
static const char *check_attention(const struct hzp_heads *heads, const struct hzp_segs *segs,
                                   const struct hzp_mat *qkv, const struct hzp_mat *out,
                                   const struct hzp_mat *sink, int32_t rows, int32_t window,
                                   float cap)
{
    PASS(check_heads(heads, qkv));
    PASS(check_segs(segs, rows));
    RULE(out->type == qkv->type, "qkv and out differ in type");
    RULE(out->rows == rows && out->cols == heads->heads * heads->dim,
         "out is not [rows][heads dim]");
    RULE(window >= 0 && cap >= 0, "window or cap is negative");
    RULE(is_row(sink, heads->heads), "sink is not [1][heads]");
    RULE(!sink->ptr || sink->type == qkv->type, "qkv and sink differ in type");
    return NULL;
}

static const char *check_attn_prefill(const struct hzp_attn_paged_args *a)
{
    PASS(check_attention(&a->heads, &a->segs, &a->qkv, &a->out, &a->sink, a->qkv.rows, a->window,
                         a->cap));
    PASS(check_kv(&a->kv, &a->qkv));
    RULE((int64_t)a->page_stride * a->kv.page_rows >= a->segs.ctx_max,
         "ctx_max does not fit a row of page");
    RULE(!a->table || a->lines > 0, "the table has no lines");
    return NULL;
}

static const char *check_attn_decode(const struct hzp_attn_paged_args *a)
{
    RULE(a->segs.count == a->qkv.rows && a->segs.rows_max <= 1, "a segment has not one row");
    return check_attn_prefill(a);
}

static const char *check_attn_packed(const struct hzp_attn_packed_args *a)
{
    PASS(check_attention(&a->heads, &a->segs, &a->qkv, &a->out, &a->sink, a->out.rows, a->window,
                         a->cap));
    RULE(a->out.rows <= a->qkv.rows, "out has more rows than qkv");
    RULE(a->segs.ctx_max <= a->qkv.rows, "ctx_max does not fit the rows of qkv");
    return NULL;
}

static const char *check_swiglu(const struct hzp_swiglu_args *a)
{
    RULE(a->x.type == a->y.type, "x and y differ in type");
    RULE(a->x.rows == a->y.rows && a->x.cols == 2 * (int64_t)a->y.cols, "x is not [rows][2 width]");
    return NULL;
}

static const char *check_gather(const struct hzp_gather_args *a)
{
    RULE(a->x.type == a->y.type, "x and y differ in type");
    RULE(a->x.cols == a->y.cols, "x and y differ in width");
    return NULL;
}

static const char *check_scatter(const struct hzp_scatter_args *a)
{
    RULE(a->x.type == a->y.type, "x and y differ in type");
    RULE(a->x.cols == a->y.cols, "x and y differ in width");
    return NULL;
}

static const char *check_sample(const struct hzp_sample_args *a)
{
    RULE(!a->top_token == !a->top_logprob, "one of top_token and top_logprob is absent");
    return NULL;
}

static const char *check_xent(const struct hzp_xent_args *a)
{
    RULE(!a->soft || a->how, "soft targets of rows without kinds");
    return NULL;
}

static const char *check_seq_loss(const struct hzp_seq_loss_args *a)
{
    RULE(a->lp.rows == 1, "lp is not [1][rows]");
    return NULL;
}

static const char *check_embed_bwd(const struct hzp_embed_bwd_args *a)
{
    RULE(a->dtable.cols == a->dy.cols, "dtable and dy differ in width");
    return NULL;
}

static const char *check_rmsnorm_bwd(const struct hzp_rmsnorm_bwd_args *a)
{
    RULE(a->w.rows == 1 && a->w.cols == a->x.cols, "w is not [1][cols]");
    RULE(is_row(&a->dw, a->x.cols), "dw is not [1][cols]");
    return NULL;
}

static const char *check_rope_bwd(const struct hzp_rope_bwd_args *a)
{
    PASS(check_heads(&a->heads, &a->dy));
    int32_t dim = a->heads.dim;
    bool norms = a->q_norm.ptr || a->k_norm.ptr;
    RULE(dim % 2 == 0, "dim is odd");
    RULE(a->dy.type == a->dx.type, "dy and dx differ in type");
    RULE(!norms || a->x.type == a->dy.type, "dy and x differ in type");
    RULE(a->table.type == HZP_F32 && a->table.cols == dim, "table is not [positions][dim] F32");
    RULE(is_row(&a->q_norm, dim) && is_row(&a->k_norm, dim) && is_row(&a->dq_norm, dim) &&
             is_row(&a->dk_norm, dim),
         "a norm is not [1][dim]");
    RULE((!a->q_norm.ptr || a->q_norm.type == a->dy.type) &&
             (!a->k_norm.ptr || a->k_norm.type == a->dy.type),
         "dy and a norm differ in type");
    RULE((!a->dq_norm.ptr || a->q_norm.ptr) && (!a->dk_norm.ptr || a->k_norm.ptr),
         "a gradient is wanted of a norm that is absent");
    return NULL;
}

static const char *check_attn_packed_bwd(const struct hzp_attn_packed_bwd_args *a)
{
    RULE(a->dout.type == a->qkv.type && a->dqkv.type == a->qkv.type,
         "qkv, dout and dqkv differ in type");
    RULE(is_row(&a->dsink, a->heads.heads) && (a->sink.ptr || !a->dsink.ptr),
         "dsink is not [1][heads], or there is no sink");
    return check_attention(&a->heads, &a->segs, &a->qkv, &a->out, &a->sink, a->qkv.rows, a->window,
                           a->cap);
}

static const char *check_swiglu_bwd(const struct hzp_swiglu_bwd_args *a)
{
    RULE(a->x.type == a->dy.type && a->x.type == a->dx.type, "x, dy and dx differ in type");
    RULE(a->x.rows == a->dy.rows && a->x.cols == 2 * (int64_t)a->dy.cols,
         "x is not [rows][2 width]");
    return NULL;
}

static const char *check_colsum(const struct hzp_colsum_args *a)
{
    RULE(a->y.rows == 1 && a->y.cols == a->x.cols, "y is not [1][cols]");
    return NULL;
}

static const char *check_cast(const struct hzp_cast_args *a)
{
    RULE(isfinite(a->scale), "scale is not finite");
    RULE(a->cap >= 0 && isfinite(a->cap), "cap is negative or not finite");
    return NULL;
}

static bool without_gaps(const struct hzp_mat *m)
{
    return !m->ptr || m->stride == m->cols || m->rows <= 1;
}

static const char *check_collective(const struct hzp_collective_args *a)
{
    int64_t ranks = hzp_link_ranks(a->link), recv = a->recv.rows, send = a->send.rows;
    bool sums = a->kind == HZP_ALL_REDUCE || a->kind == HZP_REDUCE_SCATTER;
    RULE(sums || a->kind == HZP_ALL_GATHER, "is none of its kinds");
    RULE(a->part >= HZP_COLLECTIVE_WHOLE && a->part <= HZP_COLLECTIVE_END, "is none of its parts");
    RULE(!sums || a->recv.type == HZP_F32, "sums of another type than F32");
    RULE(!a->wide || (a->kind == HZP_ALL_REDUCE && a->recv.cols % 2 == 0 &&
                      (a->wide == HZP_WIRE_F64 || a->wide == HZP_WIRE_U64)),
         "wide numbers are neither pairs of columns nor of an all-reduce");
    RULE(without_gaps(&a->recv) && without_gaps(&a->send), "rows with gaps");
    RULE(!a->send.ptr || (a->send.type == a->recv.type && a->send.cols == a->recv.cols),
         "send and recv differ in type or width");
    RULE(!a->accumulate || a->kind == HZP_REDUCE_SCATTER, "only reduce-scatter accumulates");
    RULE(a->send.ptr || a->kind != HZP_REDUCE_SCATTER, "send is absent");
    if (a->kind == HZP_ALL_GATHER) {
        RULE(recv % ranks == 0, "recv has not as many rows for each rank");
        RULE(!a->send.ptr || send * ranks == recv, "recv has not the rows of all ranks");
    } else if (a->send.ptr) {
        RULE(send == (a->kind == HZP_ALL_REDUCE ? recv : recv * ranks), "send and recv do not fit");
    }
    return NULL;
}

static bool aligned(const struct hzp_mat *m)
{
    return (uintptr_t)m->ptr % 16 == 0;
}

static const char *check_codes_of(const struct hzp_adamw_args *a)
{
    RULE(a->m.type == HZP_Q8 && a->v.type == HZP_Q8 && a->m_scale && a->v_scale,
         "only m or v is Q8, or scales are absent");
    RULE(a->from.rows <= 1 && a->from.cols % 64 == 0 && a->grad.type == HZP_F32,
         "with Q8, there is more than a row of a multiple of 64 elements, or grad is not F32");
    RULE(a->decayed >= 0 && a->decayed <= a->from.cols && a->decayed % 64 == 0,
         "decayed is no multiple of 64 up to the elements");
    RULE(aligned(&a->from) && aligned(&a->to) && aligned(&a->residual) && aligned(&a->grad) &&
             aligned(&a->m) && aligned(&a->v),
         "with Q8, a matrix is not aligned to 16 bytes");
    return NULL;
}

static const char *check_master(const struct hzp_mat *from, const struct hzp_mat *to,
                                const struct hzp_mat *residual)
{
    RULE(from->type == to->type, "from and to differ in type");
    RULE(from->type == HZP_F32 ? !residual->ptr : residual->ptr && residual->type == HZP_I16,
         "residual is not I16 for BF16, absent for F32");
    return NULL;
}

static const char *check_muon(const struct hzp_muon_args *a)
{
    RULE(a->clip >= 0, "clip is negative");
    RULE(a->momentum >= 0 && a->momentum < 1, "momentum is not in [0, 1)");
    return a->from.ptr ? check_master(&a->from, &a->to, &a->residual) : NULL;
}

static const char *check_adamw(const struct hzp_adamw_args *a)
{
    PASS(check_master(&a->from, &a->to, &a->residual));
    if (a->m.type == HZP_Q8 || a->v.type == HZP_Q8)
        PASS(check_codes_of(a));
    else
        RULE(is_float(&a->grad) && is_float(&a->m) && is_float(&a->v),
             "grad, m or v is neither F32 nor BF16");
    RULE(a->t >= 1, "t is less than 1");
    RULE(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1, "a beta is not in [0, 1)");
    RULE(a->clip >= 0, "clip is negative");
    RULE(a->part_m > 0 ? a->part_g >= 0 : a->part_m == 0 && a->part_g == 0,
         "NAdam's parts are not both positive, or both 0");
    return NULL;
}

static const char *check_audit(const struct hzp_audit_args *a)
{
    size_t bytes = (size_t)a->x.rows * (size_t)a->x.cols * hzp_dtype_size(a->x.type);
    RULE(a->x.stride == a->x.cols, "x has gaps between its rows");
    RULE(bytes % 8 == 0, "x is not a whole number of 8-byte words");
    return NULL;
}

/* Ops about which the list of their operands says all. */
static const char *check_nothing(const void *args)
{
    return NULL;
}

#define check_quantize check_nothing
#define check_fill     check_nothing
#define check_noise    check_nothing
#define check_sumsq    check_nothing

static const char *check_op(enum hzp_op op, const void *args)
{
    switch (op) {
#define X(name, class_)                                                                            \
    case HZP_OP_##name:                                                                            \
        return check_##name(args);
        HZP_OPS(X)
#undef X
    case HZP_OP_COUNT:
        break;
    }
    return "no such op";
}

static const char *check_operand(const struct hzp_operand *o)
{
    if (o->optional && !o->ptr)
        return NULL;
    if (o->mat) {
        RULE(o->mat->rows >= 0 && o->mat->cols >= 0, "has a negative size");
        RULE(o->mat->stride >= o->mat->cols, "has a stride less than its width");
    }
    RULE(o->rows == 0 || o->width == 0 || o->ptr, "is absent");
    RULE(o->ptr % o->align == 0, "is not aligned to its elements");
    if (!o->types || o->types >> o->mat->type & 1)
        return NULL;
    return o->types == 1u << HZP_F32    ? "is not F32"
           : o->types == 1u << HZP_E4M3 ? "is not E4M3"
                                        : "is neither F32 nor BF16";
}

/* Whether two operands overlap. Matrices of the same stride may be interleaved: then they overlap
 * only if their columns do. */
static bool overlap(const struct hzp_operand *a, const struct hzp_operand *b)
{
    if (hzp_operand_empty(a) || hzp_operand_empty(b))
        return false;
    if (a->ptr >= hzp_operand_end(b) || b->ptr >= hzp_operand_end(a))
        return false;
    if (a->stride != b->stride || (a->rows == 1 && b->rows == 1))
        return true;
    size_t apart =
        (b->ptr >= a->ptr ? b->ptr - a->ptr : a->stride - (a->ptr - b->ptr) % a->stride) %
        a->stride;
    return apart < a->width || apart + b->width > a->stride;
}

/* What is written may lie where the op says, row by row. */
static bool may_lie_on(const struct hzp_operand *written, int32_t index,
                       const struct hzp_operand *o)
{
    bool narrower = written->narrower && written->width < o->width;
    return written->may_be == index && written->ptr == o->ptr && written->stride == o->stride &&
           (written->width == o->width || narrower);
}

const char *hzp_op_validate(enum hzp_op op, const void *args)
{
    static _Thread_local char text[160];
    struct hzp_operand operand[HZP_ACCESS_MAX];
    if ((int)op < 0 || op >= HZP_OP_COUNT)
        return "no such op";

    int count = hzp_op_operands(op, args, operand);
    for (int i = 0; i < count; i++) {
        const char *broken = check_operand(&operand[i]);
        if (broken) {
            snprintf(text, sizeof(text), "%s: %s %s", hzp_op_name(op), operand[i].name, broken);
            return text;
        }
    }
    for (int i = 0; i < count; i++) {
        const struct hzp_operand *o = &operand[i], *like = &operand[o->like < 0 ? i : o->like];
        if ((o->optional && !o->ptr) || o == like || same_shape(o->mat, like->mat))
            continue;
        snprintf(text, sizeof(text), "%s: %s and %s differ in shape", hzp_op_name(op), like->name,
                 o->name);
        return text;
    }
    const char *broken = check_op(op, args);
    if (broken) {
        snprintf(text, sizeof(text), "%s: %s", hzp_op_name(op), broken);
        return text;
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const struct hzp_operand *w = &operand[i], *other = &operand[j];
            bool in_place = may_lie_on(w, j, other) || may_lie_on(other, i, w);
            if (i == j || !w->writes || in_place || !overlap(w, other))
                continue;
            snprintf(text, sizeof(text), "%s: %s overlaps %s", hzp_op_name(op), w->name,
                     other->name);
            return text;
        }
    return NULL;
}
