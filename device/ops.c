/* SPDX-License-Identifier: Apache-2.0 */
/* device/ops.c - what is generated from the op list, and the small matrix helpers. */
#include "device/ops.h"

static const char *const op_names[HZP_OP_COUNT] = {
#define X(name, bound) [HZP_OP_##name] = #name,
    HZP_OPS(X)
#undef X
};

static const enum hzp_bound op_bounds[HZP_OP_COUNT] = {
#define X(name, bound) [HZP_OP_##name] = HZP_BOUND_##bound,
    HZP_OPS(X)
#undef X
};

static const size_t op_args_sizes[HZP_OP_COUNT] = {
#define X(name, bound) [HZP_OP_##name] = sizeof(struct hzp_##name##_args),
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

enum hzp_bound hzp_op_bound(enum hzp_op op)
{
    HZP_ASSERT(op_known(op));
    return op_bounds[op];
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
        return 1;
    }
    HZP_ASSERT(!"an element type");
    return 0;
}

struct hzp_mat hzp_mat_flat(struct hzp_mat mat)
{
    int64_t count = (int64_t)mat.rows * mat.cols;
    HZP_ASSERT(mat.stride == mat.cols && count <= INT32_MAX);
    mat.rows = 1;
    mat.cols = mat.stride = (int32_t)count;
    return mat;
}

struct hzp_mat hzp_mat_rows(struct hzp_mat mat, int32_t r0, int32_t rows)
{
    HZP_ASSERT(r0 >= 0 && rows >= 0 && rows <= mat.rows - r0);
    if (mat.ptr)
        mat.ptr = (char *)mat.ptr + (size_t)r0 * (size_t)mat.stride * hzp_dtype_size(mat.type);
    mat.rows = rows;
    return mat;
}
