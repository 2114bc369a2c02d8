/* SPDX-License-Identifier: Apache-2.0 */
/* device/cost.c - the bytes and floating-point operations of every op.
 *
 * Bytes: every operand once, twice if it is read and written; of tables and pages only the rows
 * that are used.  If lengths are on the device (segments), the longest is assumed for all: the
 * estimate is then an upper bound.
 */
#include "device/operand.h"
#include "mesh/link.h"

static uint64_t elements(const struct hzp_mat *mat)
{
    return mat->ptr && mat->rows > 0 && mat->cols > 0 ? (uint64_t)mat->rows * (uint64_t)mat->cols
                                                      : 0;
}

static uint64_t mat_bytes(const struct hzp_mat *mat)
{
    return elements(mat) * hzp_dtype_size(mat->type);
}

static uint64_t bytes_of_operands(enum hzp_op op, const void *args)
{
    struct hzp_operand operand[HZP_ACCESS_MAX];
    int count = hzp_op_operands(op, args, operand);
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        if (!hzp_operand_empty(&operand[i]))
            bytes += (uint64_t)operand[i].rows * operand[i].width *
                     (uint64_t)(operand[i].reads + operand[i].writes);
    return bytes;
}

/* The number of (row, visible position) pairs, over all heads. */
static uint64_t pairs(const struct hzp_segs *segs, const struct hzp_heads *heads, int32_t window,
                      int32_t rows)
{
    uint64_t before = (uint64_t)HZP_MAX(segs->ctx_max - segs->rows_max, 0);
    uint64_t own = (uint64_t)HZP_MAX(segs->rows_max, 0), seen = before + (own + 1) / 2;
    if (window > 0)
        seen = HZP_MIN(seen, (uint64_t)window);
    return (uint64_t)rows * seen * (uint64_t)heads->heads;
}

static struct hzp_cost cost_matmul(const struct hzp_matmul_args *a)
{
    uint64_t depth = (uint64_t)(a->trans_a ? a->a.rows : a->a.cols);
    return (struct hzp_cost){bytes_of_operands(HZP_OP_matmul, a), 2 * elements(&a->c) * depth};
}

static struct hzp_cost cost_project(const struct hzp_project_args *a)
{
    uint64_t rows = (uint64_t)HZP_MAX(a->product.a.rows, 0);
    uint64_t flops = 2 * rows * elements(&a->product.b);
    flops += a->norm.ptr ? 4 * elements(&a->product.a) : 0;
    flops += a->gated ? 3 * elements(&a->product.c) : 0;
    return (struct hzp_cost){bytes_of_operands(HZP_OP_project, a), flops};
}

/* Bytes of one row of a kv head in pages. */
static uint64_t kv_row_bytes(const struct hzp_kv *kv, const struct hzp_heads *heads)
{
    return (uint64_t)heads->dim * hzp_dtype_size(kv->type) +
           (kv->type == HZP_E4M3 ? sizeof(float) : 0);
}

static struct hzp_cost cost_paged(const struct hzp_attn_paged_args *a)
{
    uint64_t dim = (uint64_t)a->heads.dim;
    int64_t most = HZP_MAX(a->segs.ctx_max, 0);
    if (a->window > 0) /* the first row's window begins before the others' */
        most = HZP_MIN(most, (int64_t)a->window + a->segs.rows_max);
    uint64_t ctx = (uint64_t)a->segs.count * (uint64_t)most;
    uint64_t kv = 2 * ctx * (uint64_t)a->heads.kv_heads * kv_row_bytes(&a->kv, &a->heads);
    return (struct hzp_cost){kv + 2 * mat_bytes(&a->out),
                             4 * pairs(&a->segs, &a->heads, a->window, a->qkv.rows) * dim};
}

/* Bytes of only those rows of a table that are picked. */
static uint64_t picked(const struct hzp_mat *rows, enum hzp_dtype table)
{
    return elements(rows) * (hzp_dtype_size(table) + hzp_dtype_size(rows->type)) +
           (uint64_t)HZP_MAX(rows->rows, 0) * sizeof(int32_t);
}

static struct hzp_cost cost_rope(enum hzp_op op, const void *args, const struct hzp_mat *x,
                                 const struct hzp_mat *table)
{
    uint64_t bytes = bytes_of_operands(op, args) - mat_bytes(table);
    bytes += (uint64_t)HZP_MAX(x->rows, 0) * (uint64_t)table->cols * sizeof(float);
    return (struct hzp_cost){bytes, 6 * elements(x)};
}

/* Bytes of the rows' slots in the pages, k and v, written once. */
static uint64_t bytes_appended(const struct hzp_rope_args *a)
{
    uint64_t row = 2 * (uint64_t)a->heads.kv_heads * kv_row_bytes(&a->kv, &a->heads);
    return a->kv.k ? (uint64_t)HZP_MAX(a->x.rows, 0) * (row + sizeof(*a->slot)) : 0;
}

/* Operations per element of the op's main operand, counted from the formulas in device/ops.h;
 * an exponential counts as one. */
static struct hzp_cost cost_elementwise(enum hzp_op op, const void *args)
{
    struct hzp_operand operand[HZP_ACCESS_MAX];
    static const uint8_t flops[HZP_OP_COUNT] = {
        [HZP_OP_rmsnorm] = 4,  [HZP_OP_swiglu] = 3,     [HZP_OP_sample] = 4,
        [HZP_OP_quantize] = 3, [HZP_OP_codes] = 6,      [HZP_OP_xent] = 5,
        [HZP_OP_seq_loss] = 2, [HZP_OP_embed_bwd] = 1,  [HZP_OP_rmsnorm_bwd] = 10,
        [HZP_OP_colsum] = 1,   [HZP_OP_swiglu_bwd] = 6, [HZP_OP_sumsq] = 2,
        [HZP_OP_adamw] = 16,   [HZP_OP_muon] = 5,       [HZP_OP_noise] = 25,
    };
    hzp_op_operands(op, args, operand);
    return (struct hzp_cost){bytes_of_operands(op, args), flops[op] * elements(operand[0].mat)};
}

uint64_t hzp_op_wire(enum hzp_op op, const void *args)
{
    if (op != HZP_OP_collective)
        return 0;
    const struct hzp_collective_args *a = args;
    if (a->part == HZP_COLLECTIVE_END)
        return 0;
    int ranks = hzp_link_ranks(a->link);
    enum hzp_transfer_op kind = (enum hzp_transfer_op)a->kind;
    uint64_t bytes = mat_bytes(&a->recv);
    if (kind == HZP_ALL_GATHER)
        bytes /= (uint64_t)ranks;
    return hzp_transfer_bytes(kind, HZP_WIRE_BYTE, ranks, (size_t)bytes);
}

struct hzp_cost hzp_op_cost(enum hzp_op op, const void *args)
{
    switch (op) {
    case HZP_OP_matmul:
        return cost_matmul(args);
    case HZP_OP_project:
        return cost_project(args);
    case HZP_OP_attn_decode:
    case HZP_OP_attn_prefill:
        return cost_paged(args);
    case HZP_OP_embed: {
        const struct hzp_embed_args *a = args;
        return (struct hzp_cost){picked(&a->y, a->table.type), 0};
    }
    case HZP_OP_embed_bwd: {
        const struct hzp_embed_bwd_args *a = args; /* the table's rows: read and written */
        return (struct hzp_cost){picked(&a->dy, HZP_F32) + mat_bytes(&a->dy), elements(&a->dy)};
    }
    case HZP_OP_gather: {
        const struct hzp_gather_args *a = args;
        return (struct hzp_cost){picked(&a->y, a->x.type), 0};
    }
    case HZP_OP_scatter: {
        const struct hzp_scatter_args *a = args;
        return (struct hzp_cost){picked(&a->x, a->y.type), 0};
    }
    case HZP_OP_rope: {
        struct hzp_rope_args a = *(const struct hzp_rope_args *)args;
        uint64_t appended = bytes_appended(&a);
        a.kv = (struct hzp_kv){0};
        struct hzp_cost cost = cost_rope(op, &a, &a.x, &a.table);
        cost.bytes += appended;
        return cost;
    }
    case HZP_OP_rope_bwd: {
        const struct hzp_rope_bwd_args *a = args;
        return cost_rope(op, args, &a->dy, &a->table);
    }
    case HZP_OP_attn_packed: {
        const struct hzp_attn_packed_args *a = args;
        return (struct hzp_cost){bytes_of_operands(op, args),
                                 4 * pairs(&a->segs, &a->heads, a->window, a->out.rows) *
                                     (uint64_t)a->heads.dim};
    }
    case HZP_OP_attn_packed_bwd: {
        const struct hzp_attn_packed_bwd_args *a = args; /* five products, forward has two */
        return (struct hzp_cost){bytes_of_operands(op, args),
                                 10 * pairs(&a->segs, &a->heads, a->window, a->qkv.rows) *
                                     (uint64_t)a->heads.dim};
    }
    default:
        return cost_elementwise(op, args);
    }
}
