/* SPDX-License-Identifier: Apache-2.0 */
/* device/access.c - what each op reads and writes. */
#include "device/operand.h"
#include "device/q8.h"

struct list {
    struct hzp_operand *item;
    int count;
};

/* What an op does with an operand, and what it must be: of one of these types, any without one; of
 * the shape of operand i. */
enum mode { READ = 1, WRITE = 2, OPTIONAL = 4, F32 = 8, BF16 = 16, E4M3 = 32, FLOAT = F32 | BF16 };
#define LIKE(i) ((i) + 1) * 64

static struct hzp_operand *push(struct list *list, const char *name, int mode)
{
    HZP_ASSERT(list->count < HZP_ACCESS_MAX);
    struct hzp_operand *o = &list->item[list->count++];
    *o = (struct hzp_operand){.name = name, .may_be = -1, .like = mode / 64 - 1};
    o->reads = mode & READ;
    o->writes = mode & WRITE;
    o->optional = mode & OPTIONAL;
    return o;
}

static struct hzp_operand *mat(struct list *list, const char *name, const struct hzp_mat *m,
                               int mode)
{
    struct hzp_operand *o = push(list, name, mode);
    size_t size = hzp_dtype_size(m->type);
    o->ptr = (uintptr_t)m->ptr;
    o->rows = m->rows;
    o->width = (size_t)HZP_MAX(m->cols, 0) * size;
    o->stride = (size_t)HZP_MAX(m->stride, 0) * size;
    o->align = size;
    o->mat = m;
    o->types = (mode & F32 ? 1u << HZP_F32 : 0) | (mode & BF16 ? 1u << HZP_BF16 : 0) |
               (mode & E4M3 ? 1u << HZP_E4M3 : 0);
    return o;
}

static struct hzp_operand *array(struct list *list, const char *name, const void *ptr,
                                 int64_t count, size_t size, int mode)
{
    struct hzp_operand *o = push(list, name, mode);
    o->ptr = (uintptr_t)ptr;
    o->rows = count > 0;
    o->width = o->stride = (size_t)HZP_MAX(count, 0) * size;
    o->align = HZP_MIN(size, (size_t)8);
    return o;
}

/* Adds the layer's whole pages.  Which of their slots are used is in arrays that only
 * hzp_access_meet reads. */
static void pages(struct list *list, const struct hzp_kv *kv, const struct hzp_heads *heads,
                  int mode)
{
    int64_t rows = (int64_t)kv->pages * heads->kv_heads * kv->page_rows;
    array(list, "k", kv->k, rows * heads->dim, hzp_dtype_size(kv->type), mode)->slots = true;
    array(list, "v", kv->v, rows * heads->dim, hzp_dtype_size(kv->type), mode)->slots = true;
    if (kv->type != HZP_E4M3)
        return;
    array(list, "k_scale", kv->k_scale, rows, sizeof(float), mode)->slots = true;
    array(list, "v_scale", kv->v_scale, rows, sizeof(float), mode)->slots = true;
}

static void segments(struct list *list, const struct hzp_segs *segs)
{
    array(list, "row0", segs->row0, (int64_t)segs->count + 1, sizeof(int32_t), READ);
    array(list, "pos0", segs->pos0, segs->count, sizeof(int32_t), READ);
}

static void of_embed(struct list *l, const struct hzp_embed_args *a)
{
    mat(l, "table", &a->table, READ | FLOAT);
    mat(l, "y", &a->y, WRITE | F32);
    array(l, "id", a->id, a->y.rows, sizeof(int32_t), READ);
}

static void of_rmsnorm(struct list *l, const struct hzp_rmsnorm_args *a)
{
    mat(l, "x", &a->x, READ | F32);
    mat(l, "w", &a->w, READ | FLOAT);
    mat(l, "add", &a->add, READ | OPTIONAL | F32 | LIKE(0));
    mat(l, "y", &a->y, WRITE | LIKE(0))->may_be = 2;
    array(l, "rstd", a->rstd, a->x.rows, sizeof(float), WRITE | OPTIONAL);
}

static void of_matmul(struct list *l, const struct hzp_matmul_args *a)
{
    mat(l, "a", &a->a, READ);
    mat(l, "b", &a->b, READ);
    mat(l, "c", &a->c, a->accumulate && !a->from.ptr ? READ | WRITE : WRITE);
    mat(l, "bias", &a->bias, READ | OPTIONAL);
    mat(l, "from", &a->from, READ | OPTIONAL);
    if (a->a.type != HZP_E4M3)
        return;
    array(l, "scale_a", a->scale_a, a->a.rows, sizeof(float), READ);
    array(l, "scale_b", a->scale_b, a->b.rows, sizeof(float), READ);
}

static void of_project(struct list *l, const struct hzp_project_args *a)
{
    of_matmul(l, &a->product);
    mat(l, "norm", &a->norm, READ | OPTIONAL);
}

static void of_quantize(struct list *l, const struct hzp_quantize_args *a)
{
    mat(l, "x", &a->x, READ | FLOAT);
    mat(l, "y", &a->y, WRITE | E4M3 | LIKE(0));
    array(l, "scale", a->scale, a->x.rows, sizeof(float), WRITE);
}

static void of_codes(struct list *l, const struct hzp_codes_args *a)
{
    mat(l, "x", &a->x, READ | FLOAT);
    mat(l, "norm", &a->norm, READ | OPTIONAL | FLOAT);
    mat(l, "y", &a->y, WRITE | E4M3);
    array(l, "scale", a->scale, a->x.rows, sizeof(float), WRITE);
}

/* A table of the rotation; stride 0: its one row. */
static void rope_table(struct list *l, const struct hzp_mat *m)
{
    struct hzp_operand *o = mat(l, "table", m, READ);
    if (m->stride)
        return;
    o->rows = HZP_MIN(o->rows, 1);
    o->stride = o->width;
    o->mat = NULL;
}

static void of_rope(struct list *l, const struct hzp_rope_args *a)
{
    mat(l, "x", &a->x, READ);
    mat(l, "y", &a->y, WRITE | LIKE(0))->may_be = 0;
    mat(l, "q_norm", &a->q_norm, READ | OPTIONAL);
    mat(l, "k_norm", &a->k_norm, READ | OPTIONAL);
    rope_table(l, &a->table);
    array(l, "pos", a->pos, a->x.rows, sizeof(int32_t), READ);
    if (!a->kv.k && !a->kv.v)
        return;
    pages(l, &a->kv, &a->heads, WRITE);
    array(l, "slot", a->slot, a->x.rows, sizeof(int32_t), READ);
}

static void of_attn_paged(struct list *l, const struct hzp_attn_paged_args *a)
{
    mat(l, "qkv", &a->qkv, READ);
    mat(l, "out", &a->out, WRITE);
    pages(l, &a->kv, &a->heads, READ);
    segments(l, &a->segs);
    mat(l, "sink", &a->sink, READ | OPTIONAL | FLOAT);
    array(l, "page", a->page, (int64_t)a->segs.count * a->page_stride, sizeof(int32_t), READ);
    if (!a->table)
        return;
    array(l, "table", a->table, (int64_t)a->lines * a->page_stride, sizeof(int32_t), READ);
    array(l, "line", a->line, a->segs.count, sizeof(int32_t), READ);
}

static void of_attn_packed(struct list *l, const struct hzp_attn_packed_args *a)
{
    mat(l, "qkv", &a->qkv, READ);
    mat(l, "out", &a->out, WRITE);
    array(l, "lse", a->lse, (int64_t)a->out.rows * a->heads.heads, sizeof(float), WRITE | OPTIONAL);
    segments(l, &a->segs);
    mat(l, "sink", &a->sink, READ | OPTIONAL | FLOAT);
}

static void of_swiglu(struct list *l, const struct hzp_swiglu_args *a)
{
    mat(l, "x", &a->x, READ | FLOAT);
    mat(l, "y", &a->y, WRITE);
}

static void of_gather(struct list *l, const struct hzp_gather_args *a)
{
    mat(l, "x", &a->x, READ);
    mat(l, "y", &a->y, WRITE);
    array(l, "index", a->index, a->y.rows, sizeof(int32_t), READ);
}

static void of_scatter(struct list *l, const struct hzp_scatter_args *a)
{
    mat(l, "x", &a->x, READ);
    mat(l, "y", &a->y, READ | WRITE); /* rows that no index names stay */
    array(l, "index", a->index, a->x.rows, sizeof(int32_t), READ);
}

static void of_sample(struct list *l, const struct hzp_sample_args *a)
{
    int64_t rows = a->logits.rows, tops = rows * HZP_TOPS_MAX;
    mat(l, "logits", &a->logits, READ | WRITE | F32);
    array(l, "row", a->row, rows, sizeof(*a->row), READ);
    /* the number of edits is in the rows, on the device: only the first edit is declared */
    array(l, "edit", a->edit, 1, sizeof(*a->edit), READ | OPTIONAL);
    /* likewise the number of masks */
    array(l, "mask", a->mask, hzp_mask_words(a->logits.cols), sizeof(*a->mask), READ | OPTIONAL);
    array(l, "token", a->token, rows, sizeof(*a->token), WRITE);
    array(l, "logprob", a->logprob, rows, sizeof(*a->logprob), WRITE);
    array(l, "rank", a->rank, rows, sizeof(*a->rank), WRITE);
    array(l, "top_token", a->top_token, tops, sizeof(*a->top_token), WRITE | OPTIONAL);
    array(l, "top_logprob", a->top_logprob, tops, sizeof(*a->top_logprob), WRITE | OPTIONAL);
}

/* The link's first byte stands for the order of its transfers. */
static void of_collective(struct list *l, const struct hzp_collective_args *a)
{
    mat(l, "recv", &a->recv, a->send.ptr && !a->accumulate ? WRITE : READ | WRITE);
    mat(l, "send", &a->send, READ | OPTIONAL);
    array(l, "link", a->link, 1, 1, READ | WRITE);
}

static void of_xent(struct list *l, const struct hzp_xent_args *a)
{
    mat(l, "x", &a->x, READ | F32);
    struct hzp_operand *dx = mat(l, "dx", &a->dx, WRITE | OPTIONAL | FLOAT | LIKE(0));
    dx->may_be = 0;
    dx->narrower = true;
    array(l, "target", a->target, a->x.rows, sizeof(int32_t), READ);
    array(l, "loss", a->loss, a->x.rows, sizeof(float), WRITE);
    array(l, "weight", a->weight, a->x.rows, sizeof(float), READ | OPTIONAL);
    array(l, "how", a->how, HZP_ROW_LOSS_WORDS * (int64_t)a->x.rows, sizeof(float),
          READ | OPTIONAL);
    array(l, "soft", a->soft, HZP_SOFT_WORDS * (int64_t)a->x.rows, sizeof(float), READ | OPTIONAL);
    array(l, "lp", a->lp, a->x.rows, sizeof(float), WRITE | OPTIONAL);
    array(l, "entropy", a->entropy, a->x.rows, sizeof(float), WRITE | OPTIONAL);
}

static void of_seq_loss(struct list *l, const struct hzp_seq_loss_args *a)
{
    int64_t words = HZP_ROW_LOSS_WORDS * (int64_t)a->lp.cols;
    mat(l, "lp", &a->lp, READ | F32);
    array(l, "how", a->how, words, sizeof(float), READ);
    array(l, "first", a->first, (int64_t)a->seqs + 1, sizeof(int32_t), READ);
    array(l, "out", a->out, words, sizeof(float), WRITE);
}

static void of_embed_bwd(struct list *l, const struct hzp_embed_bwd_args *a)
{
    mat(l, "dtable", &a->dtable, READ | WRITE | F32);
    mat(l, "dy", &a->dy, READ | F32);
    array(l, "id", a->id, a->dy.rows, sizeof(int32_t), READ);
}

static void of_rmsnorm_bwd(struct list *l, const struct hzp_rmsnorm_bwd_args *a)
{
    mat(l, "dy", &a->dy, READ | FLOAT);
    mat(l, "x", &a->x, READ | F32 | LIKE(0));
    mat(l, "w", &a->w, READ | FLOAT);
    mat(l, "dx", &a->dx, READ | WRITE | F32 | LIKE(0));
    mat(l, "dw", &a->dw, READ | WRITE | OPTIONAL | F32);
    array(l, "rstd", a->rstd, a->x.rows, sizeof(float), READ);
}

static void of_rope_bwd(struct list *l, const struct hzp_rope_bwd_args *a)
{
    bool norms = a->q_norm.ptr || a->k_norm.ptr;
    mat(l, "dy", &a->dy, READ);
    mat(l, "dx", &a->dx, WRITE | LIKE(0))->may_be = 0;
    if (norms)
        mat(l, "x", &a->x, READ | LIKE(0));
    mat(l, "q_norm", &a->q_norm, READ | OPTIONAL);
    mat(l, "k_norm", &a->k_norm, READ | OPTIONAL);
    mat(l, "dq_norm", &a->dq_norm, READ | WRITE | OPTIONAL | F32);
    mat(l, "dk_norm", &a->dk_norm, READ | WRITE | OPTIONAL | F32);
    rope_table(l, &a->table);
    array(l, "pos", a->pos, a->dy.rows, sizeof(int32_t), READ);
}

static void of_attn_packed_bwd(struct list *l, const struct hzp_attn_packed_bwd_args *a)
{
    mat(l, "qkv", &a->qkv, READ);
    mat(l, "out", &a->out, READ);
    mat(l, "dout", &a->dout, READ | LIKE(1));
    mat(l, "dqkv", &a->dqkv, WRITE | LIKE(0));
    array(l, "lse", a->lse, (int64_t)a->qkv.rows * a->heads.heads, sizeof(float), READ);
    segments(l, &a->segs);
    mat(l, "sink", &a->sink, READ | OPTIONAL | FLOAT);
    mat(l, "dsink", &a->dsink, READ | WRITE | OPTIONAL | F32);
}

static void of_swiglu_bwd(struct list *l, const struct hzp_swiglu_bwd_args *a)
{
    mat(l, "x", &a->x, READ | FLOAT);
    mat(l, "dy", &a->dy, READ);
    mat(l, "dx", &a->dx, WRITE | LIKE(0));
}

static void of_colsum(struct list *l, const struct hzp_colsum_args *a)
{
    mat(l, "x", &a->x, READ | FLOAT);
    mat(l, "y", &a->y, READ | WRITE | F32);
}

static void of_cast(struct list *l, const struct hzp_cast_args *a)
{
    mat(l, "x", &a->x, READ | FLOAT);
    mat(l, "y", &a->y, WRITE | FLOAT | LIKE(0))->may_be = 0;
    array(l, "squares", a->squares, 1, sizeof(*a->squares), READ | OPTIONAL);
}

static void of_fill(struct list *l, const struct hzp_fill_args *a)
{
    mat(l, "y", &a->y, WRITE | FLOAT);
}

static void of_noise(struct list *l, const struct hzp_noise_args *a)
{
    mat(l, "y", &a->y, WRITE | FLOAT);
}

static void of_sumsq(struct list *l, const struct hzp_sumsq_args *a)
{
    mat(l, "x", &a->x, READ | F32);
    array(l, "sum", a->sum, 1, sizeof(*a->sum), READ | WRITE);
}

static void of_adamw(struct list *l, const struct hzp_adamw_args *a)
{
    mat(l, "from", &a->from, READ | FLOAT);
    mat(l, "to", &a->to, WRITE | LIKE(0))->may_be = 0;
    mat(l, "residual", &a->residual, READ | WRITE | OPTIONAL | LIKE(0));
    mat(l, "grad", &a->grad, READ | LIKE(0));
    mat(l, "m", &a->m, READ | WRITE | LIKE(0));
    mat(l, "v", &a->v, READ | WRITE | LIKE(0));
    int32_t blocks = HZP_DIV_UP(a->from.cols, HZP_Q8_BLOCK);
    array(l, "m_scale", a->m_scale, blocks, sizeof(float), READ | WRITE | OPTIONAL);
    array(l, "v_scale", a->v_scale, blocks, sizeof(float), READ | WRITE | OPTIONAL);
    array(l, "sumsq", a->sumsq, 1, sizeof(*a->sumsq), READ);
}

static void of_muon(struct list *l, const struct hzp_muon_args *a)
{
    if (a->from.ptr) {
        mat(l, "x", &a->x, READ | FLOAT);
        mat(l, "from", &a->from, READ | FLOAT | LIKE(0));
        mat(l, "to", &a->to, WRITE | LIKE(0))->may_be = 1;
        mat(l, "residual", &a->residual, READ | WRITE | OPTIONAL | LIKE(0));
    } else {
        mat(l, "x", &a->x, WRITE | F32)->may_be = 1;
        mat(l, "grad", &a->grad, READ | F32 | LIKE(0));
        mat(l, "m", &a->m, READ | WRITE | FLOAT | LIKE(0));
    }
    array(l, "sumsq", a->sumsq, 1, sizeof(*a->sumsq), READ);
}

static void of_audit(struct list *l, const struct hzp_audit_args *a)
{
    mat(l, "x", &a->x, READ);
    array(l, "checksum", a->checksum, 1, sizeof(*a->checksum), READ | WRITE);
    array(l, "nonfinite", a->nonfinite, 1, sizeof(*a->nonfinite), READ | WRITE);
}

#define of_attn_decode  of_attn_paged
#define of_attn_prefill of_attn_paged

int hzp_op_operands(enum hzp_op op, const void *args, struct hzp_operand ret[HZP_ACCESS_MAX])
{
    struct list list = {ret, 0};
    switch (op) {
#define X(name, class_)                                                                            \
    case HZP_OP_##name:                                                                            \
        of_##name(&list, args);                                                                    \
        break;
        HZP_OPS(X)
#undef X
    case HZP_OP_COUNT:
        HZP_ASSERT(!"an op");
    }
    return list.count;
}

bool hzp_operand_empty(const struct hzp_operand *o)
{
    return !o->ptr || o->rows <= 0 || o->width == 0;
}

uintptr_t hzp_operand_end(const struct hzp_operand *o)
{
    return o->ptr + (size_t)(o->rows - 1) * o->stride + o->width;
}

int hzp_op_access(enum hzp_op op, const void *args, struct hzp_access *ret)
{
    struct hzp_operand operand[HZP_ACCESS_MAX];
    int count = hzp_op_operands(op, args, operand), kept = 0;
    bool attends = op == HZP_OP_attn_decode || op == HZP_OP_attn_prefill;
    for (int i = 0; i < count; i++) {
        const struct hzp_operand *o = &operand[i];
        if (hzp_operand_empty(o))
            continue;
        struct hzp_access *a = &ret[kept++];
        *a = (struct hzp_access){.begin = o->ptr,
                                 .end = hzp_operand_end(o),
                                 .writes = o->writes,
                                 .width = o->width,
                                 .stride = o->stride};
        if (o->slots && op == HZP_OP_rope)
            a->append = args;
        if (o->slots && attends)
            a->attend = args;
    }
    return kept;
}

/* Whether two pieces of rows overlap. If both have the same pitch (or one is a single row), they
 * overlap where their columns do; else the answer is true, as their byte ranges overlap. */
static bool rows_meet(const struct hzp_access *a, const struct hzp_access *b)
{
    bool single = b->end - b->begin == b->width;
    if (a->end - a->begin == a->width) {
        if (single)
            return true;
        const struct hzp_access *other = a;
        a = b;
        b = other;
        single = true;
    }
    size_t pitch = a->stride;
    if ((!single && b->stride != pitch) || a->width >= pitch || b->width >= pitch)
        return true;
    size_t from = b->begin >= a->begin ? (b->begin - a->begin) % pitch
                                       : (pitch - (a->begin - b->begin) % pitch) % pitch;
    return from < a->width || from + b->width > pitch;
}

static bool reads_slot(const struct hzp_attn_paged_args *a, int32_t slot)
{
    int32_t page = slot / a->kv.page_rows, at = slot % a->kv.page_rows;
    for (int32_t i = 0; i < a->segs.count; i++) {
        int32_t seen = a->segs.pos0[i] + a->segs.row0[i + 1] - a->segs.row0[i];
        const int32_t *pages = a->page + (size_t)i * (size_t)a->page_stride;
        for (int32_t p = 0; p * a->kv.page_rows + at < seen; p++)
            if (pages[p] == page)
                return true;
    }
    return false;
}

static bool writes_slot(const struct hzp_rope_args *a, int32_t slot)
{
    for (int32_t r = 0; r < a->x.rows; r++)
        if (a->slot[r] == slot)
            return true;
    return false;
}

/* Whether two sets of slots of the same pages, at least one of them written, share a slot. */
static bool slots_meet(const struct hzp_rope_args *a, const struct hzp_access *b)
{
    for (int32_t r = 0; r < a->x.rows; r++)
        if (a->slot[r] >= 0 &&
            (b->append ? writes_slot(b->append, a->slot[r]) : reads_slot(b->attend, a->slot[r])))
            return true;
    return false;
}

bool hzp_access_meet(const struct hzp_access *a, const struct hzp_access *b)
{
    if (a->begin >= b->end || b->begin >= a->end)
        return false;
    bool slots = (a->append || a->attend) && (b->append || b->attend) && a->begin == b->begin;
    if (slots && a->append)
        return slots_meet(a->append, b);
    if (slots && b->append)
        return slots_meet(b->append, a);
    return rows_meet(a, b);
}
