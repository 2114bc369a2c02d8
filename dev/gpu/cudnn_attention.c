/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/cudnn_attention.c - attention of training and of prompts: ours beside cuDNN's, by its C
 * backend API.
 *
 *     cudnn_attention [--dry]      --dry: no device: has cuDNN engines for the graphs on an H200?
 *
 * cuDNN is looked for by name (HZP_CUDNN first); without it the program says so and ends with 77.
 * Its attention is a graph of products, pointwise operations and reductions that the library knows
 * to fuse:
 *
 *     forward   S = Q K^T scale, masked below the diagonal; P = softmax(S); O = P V; the row's log
 *               of the sum
 *     backward  D = sum(dO O); P = exp(S - log sum); dV = P^T dO; dS = P (dO V^T - D) scale;
 *               dQ = dS K; dK = dS^T Q
 *
 * with the heads' groups summed where several query heads share keys.
 *
 * Both read the same packed rows (q|k|v), documents of one length, causal.  One JSON object a line:
 * milliseconds of either, operations a second counting the half that the mask leaves, and how far
 * the results are apart.
 *
 * The library's names and numbers that are used here are declared here: builds need no header of
 * it.  They are those of NVIDIA's cudnn_graph.h (cuDNN 9, documented under "Graph API").
 */
#include "base/arena.h"
#include "base/thread.h"
#include "device/bf16.h"
#include "device/device.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library ---- */

typedef void *descriptor;

/* clang-format off */
enum type {
    ENGINE_HEURISTICS = 4, ENGINE_CONFIG = 3, PLAN = 5, GRAPH = 15, PACK = 16, TENSOR = 17,
    POINTWISE = 0, OP_POINTWISE = 13, MATMUL = 18, OP_MATMUL = 19, REDUCTION = 21,
    OP_REDUCTION = 22,
    OP_RESHAPE = 31, DEVICE = 38,
};

enum attribute {
    POINTWISE_MODE = 0, POINTWISE_PRECISION = 1, POINTWISE_AXIS = 9,
    HEURISTICS_MODE = 200, HEURISTICS_GRAPH = 201, HEURISTICS_RESULTS = 202,
    HEURISTICS_DEVICE = 204,
    PLAN_HANDLE = 400, PLAN_CONFIG = 401, PLAN_SPACE = 402,
    OP_POINTWISE_IS = 750, OP_POINTWISE_X = 751, OP_POINTWISE_B = 752, OP_POINTWISE_Y = 753,
    OP_POINTWISE_T = 758,
    GRAPH_HANDLE = 800, GRAPH_OPS = 801,
    TENSOR_ALIGNMENT = 900, TENSOR_TYPE = 901, TENSOR_DIMENSIONS = 902, TENSOR_STRIDES = 903,
    TENSOR_ID = 906, TENSOR_VIRTUAL = 907, TENSOR_BY_VALUE = 908,
    PACK_IDS = 1000, PACK_POINTERS = 1001, PACK_SPACE = 1003,
    MATMUL_PRECISION = 1500, OP_MATMUL_A = 1520, OP_MATMUL_B = 1521, OP_MATMUL_C = 1522,
    OP_MATMUL_IS = 1523,
    REDUCTION_MODE = 1600, REDUCTION_PRECISION = 1601, OP_REDUCTION_X = 1610, OP_REDUCTION_Y = 1611,
    OP_REDUCTION_IS = 1612,
    OP_RESHAPE_X = 2200, OP_RESHAPE_Y = 2201, DEVICE_JSON = 2702,
};

/* Of attributes' values. */
enum { AS_HANDLE = 0, AS_TYPE = 1, AS_BOOLEAN = 2, AS_INT64 = 3, AS_POINTER = 6, AS_HEURISTICS = 8,
       AS_POINTWISE = 14, AS_DESCRIPTOR = 15, AS_REDUCTION = 18, AS_CHAR = 24 };
enum { F32 = 0, I32 = 4, BF16 = 9, BOOLEAN = 11 };
enum { ADD = 0, MUL = 1, DIV = 6, SUB = 9, EXP = 13, LOG = 15, IDENTITY = 21, CMP_GE = 303,
       GEN_INDEX = 501, SELECT = 601 };
/* clang-format on */
enum { SUM = 0, MAX = 3 };
enum { MODE_A = 3 };

#define CUDNN(X)                                                                                   \
    X(Create, int, (void **handle))                                                                \
    X(Destroy, int, (void *handle))                                                                \
    X(GetVersion, size_t, (void))                                                                  \
    X(GetLastErrorString, void, (char *text, size_t size))                                         \
    X(BackendCreateDescriptor, int, (int type, descriptor *ret))                                   \
    X(BackendDestroyDescriptor, int, (descriptor d))                                               \
    X(BackendFinalize, int, (descriptor d))                                                        \
    X(BackendSetAttribute, int,                                                                    \
      (descriptor d, int name, int type, int64_t count, const void *values))                       \
    X(BackendGetAttribute, int,                                                                    \
      (descriptor d, int name, int type, int64_t room, int64_t *count, void *values))              \
    X(BackendExecute, int, (void *handle, descriptor plan, descriptor pack))

static struct {
    void *library, *handle;
    descriptor device; /* used instead of a handle */
#define X(name, type, args) type(*name) args;
    CUDNN(X)
#undef X
} dnn;

/* cuDNN's description of a device, for building plans without that device. */
static const char h200[] =
    "{\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,"
    "\"multiProcessorCount\":132,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,"
    "\"totalGlobalMem\":150000000000,\"l2CacheSize\":62914560,\"maxThreadsPerSM\":2048,"
    "\"maxCtasPerSM\":32,\"maxRegistersPerSM\":65536,\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"maxThreadsPerBlock\":1024,\"regsPerBlock\":65536,"
    "\"warpSize\":32,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"pciDeviceId\":0}";

static bool library_open(void)
{
    static const char *const names[] = {"libcudnn.so.9", "libcudnn.so",
                                        "/usr/local/cuda/lib64/libcudnn.so.9"};
    const char *own = getenv("HZP_CUDNN");
    dnn.library = own && *own ? dlopen(own, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (int i = 0; i < HZP_COUNT(names) && !dnn.library; i++)
        dnn.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!dnn.library)
        return false;
#define X(name, type, args)                                                                        \
    *(void **)&dnn.name = dlsym(dnn.library, "cudnn" #name);                                       \
    if (!dnn.name)                                                                                 \
        return false;
    CUDNN(X)
#undef X
    return true;
}

/* ---- a graph ---- */

enum { OPS = 32, MADE = 256, IDS = 24 };

/* Tensors have four dimensions: sequences, heads, rows, columns. */
struct tensor {
    int64_t dim[4], stride[4];
    int type;
    descriptor d;
    int64_t id;
};

struct graph {
    int heads, kv_heads, dim, batch, length;
    descriptor made[MADE], op[OPS];
    int mades, ops;
    int64_t ids;
    int failed; /* the first status that was an error */
    char why[256];
    descriptor plan;
    int64_t engines, space;
};

static void check(struct graph *g, int status, const char *what)
{
    if (status == 0 || g->failed)
        return;
    char text[200] = "";
    dnn.GetLastErrorString(text, sizeof(text));
    g->failed = status;
    snprintf(g->why, sizeof(g->why), "%s: %d %s", what, status, text);
}

static descriptor begin(struct graph *g, int type)
{
    descriptor d = NULL;
    if (g->mades == MADE)
        abort();
    check(g, dnn.BackendCreateDescriptor(type, &d), "a descriptor");
    g->made[g->mades++] = d;
    return d;
}

static void set(struct graph *g, descriptor d, int name, int type, int64_t count,
                const void *values)
{
    char what[32];
    snprintf(what, sizeof(what), "attribute %d", name);
    if (!g->failed)
        check(g, dnn.BackendSetAttribute(d, name, type, count, values), what);
}

static void set_int(struct graph *g, descriptor d, int name, int type, int value)
{
    set(g, d, name, type, 1, &value); /* the library's enums are ints */
}

static void set_descriptor(struct graph *g, descriptor d, int name, descriptor value)
{
    set(g, d, name, AS_DESCRIPTOR, 1, &value);
}

static void end(struct graph *g, descriptor d, const char *what)
{
    if (!g->failed)
        check(g, dnn.BackendFinalize(d), what);
}

/* virtual: it connects two operations and is never in memory. */
static struct tensor tensor(struct graph *g, int type, const int64_t dim[4],
                            const int64_t stride[4], bool is_virtual, bool by_value)
{
    struct tensor t = {.type = type, .id = ++g->ids, .d = begin(g, TENSOR)};
    int64_t alignment = by_value ? 4 : 16;
    memcpy(t.dim, dim, sizeof(t.dim));
    memcpy(t.stride, stride, sizeof(t.stride));
    set_int(g, t.d, TENSOR_TYPE, AS_TYPE, type);
    set(g, t.d, TENSOR_DIMENSIONS, AS_INT64, 4, dim);
    set(g, t.d, TENSOR_STRIDES, AS_INT64, 4, stride);
    set(g, t.d, TENSOR_ID, AS_INT64, 1, &t.id);
    set(g, t.d, TENSOR_ALIGNMENT, AS_INT64, 1, &alignment);
    if (is_virtual)
        set(g, t.d, TENSOR_VIRTUAL, AS_BOOLEAN, 1, &is_virtual);
    if (by_value)
        set(g, t.d, TENSOR_BY_VALUE, AS_BOOLEAN, 1, &by_value);
    end(g, t.d, "a tensor");
    return t;
}

/* [batch][heads][rows][cols] without gaps. */
static struct tensor dense(struct graph *g, int type, int64_t heads, int64_t rows, int64_t cols,
                           bool is_virtual)
{
    int64_t dim[4] = {g->batch, heads, rows, cols};
    int64_t stride[4] = {heads * rows * cols, rows * cols, cols, 1};
    return tensor(g, type, dim, stride, is_virtual, false);
}

static struct tensor scalar(struct graph *g)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, F32, one, one, false, true);
}

/* Heads of `dim` columns side by side in rows of `row` elements, documents below one another;
 * turned: with rows and columns exchanged. */
static struct tensor packed(struct graph *g, int64_t heads, int64_t row, bool turned)
{
    int64_t dim[4] = {g->batch, heads, g->length, g->dim},
            stride[4] = {g->length * row, g->dim, row, 1};
    if (turned) {
        dim[2] = g->dim, dim[3] = g->length;
        stride[2] = 1, stride[3] = row;
    }
    return tensor(g, BF16, dim, stride, false, false);
}

static void add(struct graph *g, descriptor op, const char *what)
{
    end(g, op, what);
    if (g->ops == OPS)
        abort();
    g->op[g->ops++] = op;
}

static void product(struct graph *g, struct tensor a, struct tensor b, struct tensor c,
                    const char *what)
{
    descriptor is = begin(g, MATMUL), op = begin(g, OP_MATMUL);
    set_int(g, is, MATMUL_PRECISION, AS_TYPE, F32);
    end(g, is, what);
    set_descriptor(g, op, OP_MATMUL_A, a.d);
    set_descriptor(g, op, OP_MATMUL_B, b.d);
    set_descriptor(g, op, OP_MATMUL_C, c.d);
    set_descriptor(g, op, OP_MATMUL_IS, is);
    add(g, op, what);
}

/* y = mode(x, b), b and t NULL where the mode does not take them. */
static void pointwise_to(struct graph *g, int mode, int precision, struct tensor x,
                         const struct tensor *b, const struct tensor *t, int64_t axis,
                         struct tensor y, const char *what)
{
    descriptor is = begin(g, POINTWISE), op = begin(g, OP_POINTWISE);
    set_int(g, is, POINTWISE_MODE, AS_POINTWISE, mode);
    set_int(g, is, POINTWISE_PRECISION, AS_TYPE, precision);
    if (mode == GEN_INDEX)
        set(g, is, POINTWISE_AXIS, AS_INT64, 1, &axis);
    end(g, is, what);
    set_descriptor(g, op, OP_POINTWISE_IS, is);
    set_descriptor(g, op, OP_POINTWISE_X, x.d);
    if (b)
        set_descriptor(g, op, OP_POINTWISE_B, b->d);
    if (t)
        set_descriptor(g, op, OP_POINTWISE_T, t->d);
    set_descriptor(g, op, OP_POINTWISE_Y, y.d);
    add(g, op, what);
}

/* A new virtual tensor of x's shape. */
static struct tensor like(struct graph *g, struct tensor x, int type)
{
    return tensor(g, type, x.dim, x.stride, true, false);
}

static struct tensor pointwise(struct graph *g, int mode, struct tensor x, const struct tensor *b,
                               const char *what)
{
    struct tensor y = like(g, x, F32);
    pointwise_to(g, mode, F32, x, b, NULL, 0, y, what);
    return y;
}

static void reduce(struct graph *g, int mode, struct tensor x, struct tensor y, const char *what)
{
    descriptor is = begin(g, REDUCTION), op = begin(g, OP_REDUCTION);
    set_int(g, is, REDUCTION_MODE, AS_REDUCTION, mode);
    set_int(g, is, REDUCTION_PRECISION, AS_TYPE, F32);
    end(g, is, what);
    set_descriptor(g, op, OP_REDUCTION_X, x.d);
    set_descriptor(g, op, OP_REDUCTION_Y, y.d);
    set_descriptor(g, op, OP_REDUCTION_IS, is);
    add(g, op, what);
}

/* x with rows and columns exchanged, as the library may read it; of this type. */
static struct tensor turned(struct graph *g, struct tensor x, int type, const char *what)
{
    int64_t dim[4] = {x.dim[0], x.dim[1], x.dim[3], x.dim[2]};
    int64_t stride[4] = {x.stride[0], x.stride[1], x.stride[3], x.stride[2]};
    struct tensor y = tensor(g, type, dim, stride, true, false);
    descriptor op = begin(g, OP_RESHAPE);
    set_descriptor(g, op, OP_RESHAPE_X, x.d);
    set_descriptor(g, op, OP_RESHAPE_Y, y.d);
    add(g, op, what);
    return y;
}

/* Columns past the row's own position become `low`. */
static struct tensor masked(struct graph *g, struct tensor s, struct tensor low)
{
    struct tensor row = like(g, s, I32), col = like(g, s, I32), seen = like(g, s, BOOLEAN),
                  y = like(g, s, F32);
    pointwise_to(g, GEN_INDEX, I32, s, NULL, NULL, 2, row, "row numbers");
    pointwise_to(g, GEN_INDEX, I32, s, NULL, NULL, 3, col, "column numbers");
    pointwise_to(g, CMP_GE, BOOLEAN, row, &col, NULL, 0, seen, "the diagonal");
    pointwise_to(g, SELECT, F32, s, &low, &seen, 0, y, "the mask");
    return y;
}

/* The tensors and values passed when a graph runs. */
struct names {
    struct tensor q, k, v, o, stats, scale, low, one, sum, dout, dq, dk, dv, dq_sum;
};

static void forward(struct graph *g, struct names *n)
{
    int64_t row = (int64_t)(g->heads + 2 * g->kv_heads) * g->dim;
    n->q = packed(g, g->heads, row, false);
    n->k = packed(g, g->kv_heads, row, true);
    n->v = packed(g, g->kv_heads, row, false);
    n->o = packed(g, g->heads, (int64_t)g->heads * g->dim, false);
    n->stats = dense(g, F32, g->heads, g->length, 1, false);
    n->scale = scalar(g);
    n->low = scalar(g);
    struct tensor s = dense(g, F32, g->heads, g->length, g->length, true);
    struct tensor top = dense(g, F32, g->heads, g->length, 1, true), mass = like(g, top, F32);
    product(g, n->q, n->k, s, "Q K^T");
    s = pointwise(g, MUL, s, &n->scale, "scale");
    s = masked(g, s, n->low);
    reduce(g, MAX, s, top, "row maxima");
    s = pointwise(g, SUB, s, &top, "less the maxima");
    s = pointwise(g, EXP, s, NULL, "exp");
    reduce(g, SUM, s, mass, "row sums");
    struct tensor log_mass = pointwise(g, LOG, mass, NULL, "log");
    pointwise_to(g, ADD, F32, top, &log_mass, NULL, 0, n->stats, "log of the sums");
    struct tensor p = like(g, s, BF16);
    pointwise_to(g, DIV, F32, s, &mass, NULL, 0, p, "normed");
    product(g, p, n->v, n->o, "P V");
}

/* Multiplies for the heads that share keys and values: for one head's group, or for all groups
   at once. */
static void product_of_group(struct graph *g, struct tensor a, struct tensor b, struct tensor y,
                             const char *what)
{
    if (g->heads == g->kv_heads) {
        product(g, a, b, y, what);
        return;
    }
    struct tensor all = dense(g, BF16, g->heads, g->length, g->dim, true);
    product(g, a, b, all, what);
    reduce(g, SUM, all, y, "sum of a group");
}

static void backward(struct graph *g, struct names *n)
{
    int64_t row = (int64_t)(g->heads + 2 * g->kv_heads) * g->dim, out = (int64_t)g->heads * g->dim;
    n->q = packed(g, g->heads, row, false);
    n->k = packed(g, g->kv_heads, row, true);
    n->v = packed(g, g->kv_heads, row, true);
    n->o = packed(g, g->heads, out, false);
    n->dout = packed(g, g->heads, out, false);
    n->stats = dense(g, F32, g->heads, g->length, 1, false);
    n->sum = dense(g, F32, g->heads, g->length, 1, false);
    n->dq = packed(g, g->heads, row, false);
    n->dk = packed(g, g->kv_heads, row, false);
    n->dv = packed(g, g->kv_heads, row, false);
    n->dq_sum = dense(g, F32, g->heads, g->length, g->dim, false);
    n->scale = scalar(g);
    n->low = scalar(g);
    struct tensor one =
        scalar(g); /* of dropout, which is not used: the library recognizes only this form */
    struct tensor each = like(g, n->dout, F32), bare = dense(g, F32, g->heads, g->length, 1, true);
    pointwise_to(g, MUL, F32, n->dout, &n->o, NULL, 0, each, "dO O");
    reduce(g, SUM, each, bare, "sums of dO O");
    pointwise_to(g, MUL, F32, bare, &one, NULL, 0, n->sum, "sums of dO O, scaled");

    struct tensor s = dense(g, F32, g->heads, g->length, g->length, true), dp = like(g, s, F32);
    product(g, n->q, n->k, s, "Q K^T");
    s = pointwise(g, MUL, s, &n->scale, "scale");
    s = pointwise(g, SUB, s, &n->stats, "less the log of the sums");
    s = masked(g, s, n->low);
    struct tensor p = pointwise(g, EXP, s, NULL, "exp");
    product_of_group(g, turned(g, p, BF16, "P^T"), n->dout, n->dv, "P^T dO");

    product(g, n->dout, n->v, dp, "dO V^T");
    dp = pointwise(g, SUB, dp, &n->sum, "less the sums");
    dp = pointwise(g, MUL, dp, &p, "times P");
    struct tensor ds = like(g, dp, BF16);
    pointwise_to(g, MUL, F32, dp, &n->scale, NULL, 0, ds, "dS");
    product_of_group(g, turned(g, ds, BF16, "dS^T"), n->q, n->dk, "dS^T Q");
    product(g, ds, turned(g, n->k, BF16, "K"), n->dq_sum, "dS K");
    pointwise_to(g, IDENTITY, F32, n->dq_sum, NULL, NULL, 0, n->dq, "dQ");
    n->one = one;
}

/* ---- a plan ---- */

/* Tries the engines that the library advises, best first, until one supports the graph; without
 * a device it only asks which are advised. */
static void plan_find(struct graph *g, descriptor heuristics)
{
    descriptor config[8];
    int64_t count = 0;
    for (int i = 0; i < HZP_COUNT(config); i++)
        config[i] = begin(g, ENGINE_CONFIG);
    if (!g->failed)
        check(g,
              dnn.BackendGetAttribute(heuristics, HEURISTICS_RESULTS, AS_DESCRIPTOR,
                                      HZP_COUNT(config), &count, config),
              "engines");
    if (!g->failed && count == 0)
        check(g, -1, "no engine");
    g->engines = g->failed ? 0 : count;
    for (int64_t i = 0; dnn.handle && i < count && !g->plan && g->mades < MADE; i++) {
        descriptor plan = begin(g, PLAN);
        g->failed = 0; /* of the engine tried before */
        set(g, plan, PLAN_HANDLE, AS_HANDLE, 1, &dnn.handle);
        set_descriptor(g, plan, PLAN_CONFIG, config[i]);
        end(g, plan, "a plan");
        if (!g->failed)
            g->plan = plan;
    }
}

static void plan_make(struct graph *g)
{
    descriptor graph = begin(g, GRAPH), heuristics = begin(g, ENGINE_HEURISTICS);
    int64_t count;
    if (dnn.handle)
        set(g, graph, GRAPH_HANDLE, AS_HANDLE, 1, &dnn.handle);
    set(g, graph, GRAPH_OPS, AS_DESCRIPTOR, g->ops, g->op);
    end(g, graph, "the graph");
    set_descriptor(g, heuristics, HEURISTICS_GRAPH, graph);
    set_int(g, heuristics, HEURISTICS_MODE, AS_HEURISTICS, MODE_A);
    if (!dnn.handle)
        set_descriptor(g, heuristics, HEURISTICS_DEVICE, dnn.device);
    end(g, heuristics, "heuristics");
    plan_find(g, heuristics);
    if (g->plan && !g->failed)
        check(g, dnn.BackendGetAttribute(g->plan, PLAN_SPACE, AS_INT64, 1, &count, &g->space),
              "workspace");
}

static void graph_close(struct graph *g)
{
    for (int i = g->mades - 1; i >= 0; i--)
        if (g->made[i])
            dnn.BackendDestroyDescriptor(g->made[i]);
}

/* ---- cases ---- */

static const struct shape {
    int heads, kv_heads, dim;
} shapes[] = {{32, 8, 64}, {24, 8, 128}, {32, 8, 128}, {32, 32, 128}};

static const int lengths[] = {512, 1024, 2048, 4096, 8192};

enum { ROWS = 8192 };

static struct graph graph_of(const struct shape *shape, int length)
{
    return (struct graph){.heads = shape->heads,
                          .kv_heads = shape->kv_heads,
                          .dim = shape->dim,
                          .batch = ROWS / length,
                          .length = length};
}

/* Without a driver the library offers no engines; the toolkit's stub for linking suffices. It is
 * not closed: it stays for the process's life. */
static bool driver_open(void)
{
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) ||
           dlopen("/usr/local/cuda/lib64/stubs/libcuda.so", RTLD_NOW | RTLD_GLOBAL);
}

static int dry(void)
{
    int known = 0, all = 0;
    if (!driver_open()) {
        printf("neither a driver nor its stub is found\n");
        return 77;
    }
    struct graph device = {.batch = 1};
    dnn.device = begin(&device, DEVICE);
    set(&device, dnn.device, DEVICE_JSON, AS_CHAR, (int64_t)sizeof(h200), h200);
    end(&device, dnn.device, "a device as described");
    if (device.failed) {
        printf("{\"t\":\"dry\",\"error\":\"%s\"}\n", device.why);
        return 1;
    }
    for (int i = 0; i < HZP_COUNT(shapes); i++)
        for (int k = 0; k < 2 * HZP_COUNT(lengths); k++) {
            struct names names;
            struct graph g = graph_of(&shapes[i], lengths[k / 2]);
            (k % 2 ? backward : forward)(&g, &names);
            plan_make(&g);
            printf("{\"t\":\"dry\",\"pass\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"dim\":%d,"
                   "\"length\":%d,\"engines\":%lld}\n",
                   k % 2 ? "backward" : "forward", g.heads, g.kv_heads, g.dim, g.length,
                   (long long)g.engines);
            if (g.failed)
                fprintf(stderr, "%.200s\n", g.why);
            known += g.engines > 0;
            all++;
            graph_close(&g);
        }
    graph_close(&device);
    printf("%d of %d graphs have engines in cuDNN %zu\n", known, all, dnn.GetVersion());
    return known == all ? 0 : 1;
}

/* ---- on a device ---- */

enum { RUNS = 7, REPEATS = 4 };

static struct {
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    char *qkv, *dout, *out[2], *dqkv[2]; /* [0]: ours, [1]: cuDNN's */
    float *stats[2], *sum, *dq_sum;
    int32_t *row0, *pos0;
    void *space;
    size_t space_size;
} rig;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ != 0) {                                                                          \
            fprintf(stderr, "cudnn_attention: %s: %d\n", #call, must_);                            \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

static void *take(enum hzp_mem where, size_t bytes)
{
    void *p = NULL;
    MUST(hzp_device_alloc(rig.dev, where, bytes, &p));
    return p;
}

static void fill(char *to, size_t elements, uint64_t state)
{
    uint16_t *host = hzp_xmalloc(elements * 2);
    for (size_t i = 0; i < elements; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        host[i] = hzp_bf16_from_f32((float)(int32_t)(state >> 32) * 4.6e-10f);
    }
    MUST(hzp_device_copy(rig.dev, to, host, elements * 2));
    free(host);
}

static int rig_open(void)
{
    struct hzp_err_text why = {.text = ""};
    size_t wide = (size_t)ROWS * 96 * 128 * 2, narrow = (size_t)ROWS * 32 * 128 * 2;
    if (hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &rig.dev, &why) < 0) {
        printf("%s\n", why.text);
        return 77;
    }
    MUST(hzp_lane_open(rig.dev, HZP_BOUND_COMPUTE, &rig.lane));
    MUST(hzp_fence_open(rig.dev, &rig.fence));
    rig.qkv = take(HZP_MEM_DEVICE, wide);
    rig.dout = take(HZP_MEM_DEVICE, narrow);
    for (int i = 0; i < 2; i++) {
        rig.out[i] = take(HZP_MEM_DEVICE, narrow);
        rig.dqkv[i] = take(HZP_MEM_DEVICE, wide);
        rig.stats[i] = take(HZP_MEM_DEVICE, (size_t)ROWS * 32 * 4);
    }
    rig.sum = take(HZP_MEM_DEVICE, (size_t)ROWS * 32 * 4);
    rig.dq_sum = take(HZP_MEM_DEVICE, 2 * narrow);
    rig.row0 = take(HZP_MEM_HOST, (ROWS / 512 + 1) * sizeof(int32_t));
    rig.pos0 = take(HZP_MEM_HOST, (ROWS / 512 + 1) * sizeof(int32_t));
    fill(rig.qkv, wide / 2, 1);
    fill(rig.dout, narrow / 2, 2);
    MUST(dnn.Create(&dnn.handle));
    return 0;
}

static void pack_add(int64_t *ids, void **pointers, int *count, struct tensor t,
                     const void *pointer)
{
    ids[*count] = t.id;
    pointers[(*count)++] = (void *)(uintptr_t)pointer;
}

/* Maps the graph's tensors to memory; valid while scale and the other members live. */
static descriptor pack_make(struct graph *g, const struct names *n, bool back)
{
    static float scale, low = -1e30f, one = 1;
    int64_t ids[IDS];
    void *at[IDS];
    int count = 0;
    size_t k = (size_t)g->heads * (size_t)g->dim * 2,
           v = k + (size_t)g->kv_heads * (size_t)g->dim * 2;
    scale = 1 / sqrtf((float)g->dim);
    pack_add(ids, at, &count, n->q, rig.qkv);
    pack_add(ids, at, &count, n->k, rig.qkv + k);
    pack_add(ids, at, &count, n->v, rig.qkv + v);
    pack_add(ids, at, &count, n->o, rig.out[1]);
    pack_add(ids, at, &count, n->stats, rig.stats[1]);
    pack_add(ids, at, &count, n->scale, &scale);
    pack_add(ids, at, &count, n->low, &low);
    if (back) {
        pack_add(ids, at, &count, n->one, &one);
        pack_add(ids, at, &count, n->dout, rig.dout);
        pack_add(ids, at, &count, n->sum, rig.sum);
        pack_add(ids, at, &count, n->dq, rig.dqkv[1]);
        pack_add(ids, at, &count, n->dk, rig.dqkv[1] + k);
        pack_add(ids, at, &count, n->dv, rig.dqkv[1] + v);
        pack_add(ids, at, &count, n->dq_sum, rig.dq_sum);
    }
    if ((size_t)g->space > rig.space_size) {
        hzp_device_free(rig.dev, HZP_MEM_DEVICE, rig.space);
        rig.space_size = (size_t)g->space;
        rig.space = take(HZP_MEM_DEVICE, rig.space_size);
    }
    descriptor pack = begin(g, PACK);
    set(g, pack, PACK_IDS, AS_INT64, count, ids);
    set(g, pack, PACK_POINTERS, AS_POINTER, count, at);
    set(g, pack, PACK_SPACE, AS_POINTER, 1, &rig.space);
    end(g, pack, "a variant pack");
    return pack;
}

static void theirs(struct graph *g, descriptor pack, bool back)
{
    for (int i = 0; i < REPEATS; i++) {
        if (back) /* the backward op accumulates */
            MUST((int)cudaMemsetAsync(rig.dq_sum, 0,
                                      (size_t)ROWS * (size_t)g->heads * (size_t)g->dim * 4, NULL));
        check(g, dnn.BackendExecute(dnn.handle, g->plan, pack), "execution");
    }
    MUST((int)cudaDeviceSynchronize());
}

static void ours(const struct graph *g, bool back)
{
    struct hzp_heads heads = {g->heads, g->kv_heads, g->dim};
    int32_t wide = (heads.heads + 2 * heads.kv_heads) * heads.dim, narrow = heads.heads * heads.dim;
    struct hzp_mat qkv = {rig.qkv, ROWS, wide, wide, HZP_BF16}, dqkv = qkv;
    struct hzp_mat out = {rig.out[0], ROWS, narrow, narrow, HZP_BF16}, dout = out;
    struct hzp_segs segs = {rig.row0, rig.pos0, g->batch, g->length, g->length};
    float scale = 1 / sqrtf((float)g->dim);
    dqkv.ptr = rig.dqkv[0];
    dout.ptr = rig.dout;
    struct hzp_attn_packed_args to = {qkv, out, rig.stats[0], segs, heads, scale};
    struct hzp_attn_packed_bwd_args from = {qkv, out, dout, dqkv, rig.stats[0], segs, heads, scale};
    for (int i = 0; i < REPEATS; i++)
        MUST(back ? hzp_op_attn_packed_bwd(rig.lane, &from) : hzp_op_attn_packed(rig.lane, &to));
    MUST(hzp_fence_record(rig.fence, rig.lane));
    MUST(hzp_fence_wait(rig.fence));
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The largest difference relative to the largest value. */
static double apart(const char *a, const char *b, size_t elements)
{
    uint16_t *host[2];
    double most = 0, off = 0;
    for (int i = 0; i < 2; i++) {
        host[i] = hzp_xmalloc(elements * 2);
        MUST(hzp_device_copy(rig.dev, host[i], i ? b : a, elements * 2));
    }
    for (size_t i = 0; i < elements; i++) {
        double x = (double)hzp_bf16_to_f32(host[0][i]), y = (double)hzp_bf16_to_f32(host[1][i]);
        most = fmax(most, fabs(x));
        off = isnan(y) ? INFINITY : fmax(off, fabs(x - y));
    }
    free(host[0]);
    free(host[1]);
    return most > 0 ? off / most : off;
}

/* Forward must run before backward, which reads its results. */
static bool measure(const struct shape *shape, int length, bool back)
{
    struct names names;
    struct graph g = graph_of(shape, length);
    double ms[2][RUNS];
    for (int i = 0; i <= g.batch; i++) {
        rig.row0[i] = i * length;
        rig.pos0[i] = 0;
    }
    (back ? backward : forward)(&g, &names);
    plan_make(&g);
    descriptor pack = g.plan ? pack_make(&g, &names, back) : NULL;
    for (int run = -1; run < RUNS; run++) /* in turns; the first is not counted */
        for (int who = 0; who < 2; who++) {
            uint64_t begun = hzp_now_ns();
            if (who == 0)
                ours(&g, back);
            else if (!g.failed)
                theirs(&g, pack, back);
            if (run >= 0)
                ms[who][run] = (double)(hzp_now_ns() - begun) * 1e-6 / REPEATS;
        }
    for (int who = 0; who < 2; who++)
        qsort(ms[who], RUNS, sizeof(ms[who][0]), by_time);
    double flops = (back ? 10.0 : 4.0) * ROWS * length / 2 * g.heads * g.dim;
    double ours_ms = ms[0][RUNS / 2], theirs_ms = ms[1][RUNS / 2];
    size_t row = (size_t)(back ? g.heads + 2 * g.kv_heads : g.heads) * (size_t)g.dim;
    printf("{\"t\":\"cudnn\",\"pass\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"dim\":%d,\"length\":%d,"
           "\"ours_ms\":%.4f,\"ours_tflops\":%.1f",
           back ? "backward" : "forward", g.heads, g.kv_heads, g.dim, length, ours_ms,
           flops / ours_ms * 1e-9);
    bool right = !g.failed;
    if (right) {
        double off = back ? apart(rig.dqkv[0], rig.dqkv[1], ROWS * row)
                          : apart(rig.out[0], rig.out[1], ROWS * row);
        right = off < 0.05;
        printf(",\"cudnn_ms\":%.4f,\"cudnn_tflops\":%.1f,\"ours_over_cudnn\":%.3f,\"apart\":%.4f",
               theirs_ms, flops / theirs_ms * 1e-9, theirs_ms / ours_ms, off);
    } else {
        fprintf(stderr, "%.200s\n", g.why);
    }
    printf("}\n");
    fflush(stdout);
    graph_close(&g);
    return right;
}

static int run(void)
{
    int r = rig_open(), wrong = 0;
    if (r != 0)
        return r;
    for (int i = 0; i < HZP_COUNT(shapes); i++)
        for (int k = 0; k < 2 * HZP_COUNT(lengths); k++)
            wrong += !measure(&shapes[i], lengths[k / 2], k % 2 == 1);
    dnn.Destroy(dnn.handle);
    if (wrong)
        printf("FAIL: %d cases refused or different\n", wrong);
    return wrong > 0;
}

int main(int argc, char **argv)
{
    if (!library_open()) {
        printf("cuDNN not found\n");
        return 77;
    }
    return argc > 1 && strcmp(argv[1], "--dry") == 0 ? dry() : run();
}
