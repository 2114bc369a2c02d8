/* SPDX-License-Identifier: Apache-2.0 */
/* device/ops.c - the code generated from the op list, and small matrix helpers. */
#include "device/ops.h"

static const char *const op_names[HZP_OP_COUNT] = {
#define X(name, class_) [HZP_OP_##name] = #name,
    HZP_OPS(X)
#undef X
};

static const enum hzp_class op_classes[HZP_OP_COUNT] = {
#define X(name, class_) [HZP_OP_##name] = HZP_CLASS_##class_,
    HZP_OPS(X)
#undef X
};

static const size_t op_args_sizes[HZP_OP_COUNT] = {
#define X(name, class_) [HZP_OP_##name] = sizeof(struct hzp_##name##_args),
    HZP_OPS(X)
#undef X
};

static bool op_known(enum hzp_op op)
{
    return (int)op >= 0 && op < HZP_OP_COUNT;
}

const char *hzp_op_name(enum hzp_op op)
{
    return op_known(op) ? op_names[op] : "?";
}

/* A product with fewer operations per byte than this is limited by memory. */
static const double thin_below = 48;

static enum hzp_class product_class(const struct hzp_matmul_args *args)
{
    if (!args->trans_b)
        return HZP_CLASS_GRAD;
    struct hzp_cost cost = hzp_op_cost(HZP_OP_matmul, args);
    return (double)cost.flops < thin_below * (double)cost.bytes ? HZP_CLASS_THIN : HZP_CLASS_WIDE;
}

enum hzp_class hzp_op_class(enum hzp_op op, const void *args)
{
    HZP_ASSERT(op_known(op));
    return args && op == HZP_OP_matmul ? product_class(args) : op_classes[op];
}

const char *hzp_class_text(enum hzp_class c)
{
    static const char *const text[] = {"thin product", "wide product",  "gradient", "decode attn",
                                       "prompt attn",  "attn backward", "rows",     "rows backward",
                                       "update",       "exchange"};
    return c < HZP_CLASS_COUNT ? text[c] : "?";
}

enum hzp_bound hzp_class_bound(enum hzp_class c)
{
    bool computes = c == HZP_CLASS_WIDE || c == HZP_CLASS_GRAD || c == HZP_CLASS_PREFILL ||
                    c == HZP_CLASS_ATTN_BWD;
    if (c == HZP_CLASS_NETWORK)
        return HZP_BOUND_NETWORK;
    return computes ? HZP_BOUND_COMPUTE : HZP_BOUND_MEMORY;
}

size_t hzp_op_args_size(enum hzp_op op)
{
    HZP_ASSERT(op_known(op));
    return op_args_sizes[op];
}

size_t hzp_dtype_size(enum hzp_dtype type)
{
    switch (type) {
    case HZP_F32:
    case HZP_I32:
        return 4;
    case HZP_BF16:
    case HZP_I16:
        return 2;
    case HZP_E4M3:
    case HZP_Q8:
        return 1;
    }
    HZP_ASSERT(!"an element type");
    return 0;
}

struct hzp_mat hzp_mat_rows(struct hzp_mat mat, int32_t r0, int32_t rows)
{
    HZP_ASSERT(r0 >= 0 && rows >= 0 && rows <= mat.rows - r0);
    if (mat.ptr)
        mat.ptr = (char *)mat.ptr + (size_t)r0 * (size_t)mat.stride * hzp_dtype_size(mat.type);
    mat.rows = rows;
    return mat;
}
