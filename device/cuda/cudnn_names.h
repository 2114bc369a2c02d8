/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cudnn_names.h - the part of cuDNN's backend API that is used, as NVIDIA's
 * cudnn_graph.h (cuDNN 9) numbers it, so that builds need no header of it.
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

typedef void *hzp_cudnn_descriptor;

/* X(name without "cudnn", result, arguments); a result of 0 is success. */
#define HZP_CUDNN_FUNCTIONS(X)                                                                     \
    X(Create, int, (void **handle))                                                                \
    X(Destroy, int, (void *handle))                                                                \
    X(SetStream, int, (void *handle, void *stream))                                                \
    X(GetVersion, size_t, (void))                                                                  \
    X(GetLastErrorString, void, (char *text, size_t size))                                         \
    X(BackendCreateDescriptor, int, (int type, hzp_cudnn_descriptor *ret))                         \
    X(BackendDestroyDescriptor, int, (hzp_cudnn_descriptor d))                                     \
    X(BackendFinalize, int, (hzp_cudnn_descriptor d))                                              \
    X(BackendSetAttribute, int,                                                                    \
      (hzp_cudnn_descriptor d, int name, int type, int64_t count, const void *values))             \
    X(BackendGetAttribute, int,                                                                    \
      (hzp_cudnn_descriptor d, int name, int type, int64_t room, int64_t *count, void *values))    \
    X(BackendExecute, int, (void *handle, hzp_cudnn_descriptor plan, hzp_cudnn_descriptor pack))

/* Descriptors. */
enum {
    CUDNN_POINTWISE = 0,
    CUDNN_ENGINE_CONFIG = 3,
    CUDNN_ENGINE_HEURISTICS = 4,
    CUDNN_PLAN = 5,
    CUDNN_OP_POINTWISE = 13,
    CUDNN_GRAPH = 15,
    CUDNN_PACK = 16,
    CUDNN_TENSOR = 17,
    CUDNN_MATMUL = 18,
    CUDNN_OP_MATMUL = 19,
    CUDNN_REDUCTION = 21,
    CUDNN_OP_REDUCTION = 22,
    CUDNN_OP_RESHAPE = 31,
    CUDNN_OP_PAGED_LOAD = 35,
    CUDNN_DEVICE = 38,
};

/* Attributes. */
enum {
    CUDNN_POINTWISE_MODE = 0,
    CUDNN_POINTWISE_PRECISION = 1,
    CUDNN_POINTWISE_AXIS = 9,
    CUDNN_HEURISTICS_MODE = 200,
    CUDNN_HEURISTICS_GRAPH = 201,
    CUDNN_HEURISTICS_RESULTS = 202,
    CUDNN_HEURISTICS_DEVICE = 204,
    CUDNN_PLAN_HANDLE = 400,
    CUDNN_PLAN_CONFIG = 401,
    CUDNN_PLAN_SPACE = 402,
    CUDNN_PLAN_DEVICE = 407,
    CUDNN_OP_POINTWISE_IS = 750,
    CUDNN_OP_POINTWISE_X = 751,
    CUDNN_OP_POINTWISE_B = 752,
    CUDNN_OP_POINTWISE_Y = 753,
    CUDNN_OP_POINTWISE_T = 758,
    CUDNN_GRAPH_HANDLE = 800,
    CUDNN_GRAPH_OPS = 801,
    CUDNN_TENSOR_ALIGNMENT = 900,
    CUDNN_TENSOR_TYPE = 901,
    CUDNN_TENSOR_DIMENSIONS = 902,
    CUDNN_TENSOR_STRIDES = 903,
    CUDNN_TENSOR_ID = 906,
    CUDNN_TENSOR_VIRTUAL = 907,
    CUDNN_TENSOR_BY_VALUE = 908,
    CUDNN_TENSOR_RAGGED = 913,
    CUDNN_PACK_IDS = 1000,
    CUDNN_PACK_POINTERS = 1001,
    CUDNN_PACK_SPACE = 1003,
    CUDNN_MATMUL_PRECISION = 1500,
    CUDNN_MATMUL_PADDING = 1503,
    CUDNN_OP_MATMUL_A = 1520,
    CUDNN_OP_MATMUL_B = 1521,
    CUDNN_OP_MATMUL_C = 1522,
    CUDNN_OP_MATMUL_IS = 1523,
    CUDNN_OP_MATMUL_M = 1525, /* I32 [segs]: how many rows, columns, terms there are */
    CUDNN_OP_MATMUL_N = 1526,
    CUDNN_OP_MATMUL_K = 1527,
    CUDNN_REDUCTION_MODE = 1600,
    CUDNN_REDUCTION_PRECISION = 1601,
    CUDNN_OP_REDUCTION_X = 1610,
    CUDNN_OP_REDUCTION_Y = 1611,
    CUDNN_OP_REDUCTION_IS = 1612,
    CUDNN_OP_PAGED_FROM = 1950,
    CUDNN_OP_PAGED_Y = 1951,
    CUDNN_OP_PAGED_CTX = 1952,
    CUDNN_OP_PAGED_TABLE = 1953,
    CUDNN_OP_RESHAPE_X = 2200,
    CUDNN_OP_RESHAPE_Y = 2201,
    CUDNN_DEVICE_JSON = 2702,
};

/* Types of attributes' values. */
enum {
    CUDNN_AS_HANDLE = 0,
    CUDNN_AS_TYPE = 1,
    CUDNN_AS_BOOLEAN = 2,
    CUDNN_AS_INT64 = 3,
    CUDNN_AS_DOUBLE = 5,
    CUDNN_AS_POINTER = 6,
    CUDNN_AS_HEURISTICS = 8,
    CUDNN_AS_POINTWISE = 14,
    CUDNN_AS_DESCRIPTOR = 15,
    CUDNN_AS_REDUCTION = 18,
    CUDNN_AS_CHAR = 24,
};

/* Elements of tensors. */
enum { CUDNN_F32 = 0, CUDNN_I32 = 4, CUDNN_BF16 = 9, CUDNN_BOOLEAN = 11 };

/* Pointwise modes. */
enum {
    CUDNN_ADD = 0,
    CUDNN_MUL = 1,
    CUDNN_DIV = 6,
    CUDNN_SUB = 9,
    CUDNN_EXP = 13,
    CUDNN_LOG = 15,
    CUDNN_IDENTITY = 21,
    CUDNN_CMP_GE = 303,
    CUDNN_CMP_LT = 304,
    CUDNN_AND = 400,
    CUDNN_GEN_INDEX = 501,
    CUDNN_SELECT = 601,
};

/* Reductions, heuristics. */
enum { CUDNN_SUM = 0, CUDNN_MAX = 3, CUDNN_MODE_A = 3 };
