/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda/cudnn_graph.h"

#include <dlfcn.h>

enum { OPS = 48, VERSION_LEAST = 91002, CONFIGS = 8 };

bool hzp_cudnn_library_open(struct hzp_cudnn_library *ret, char *why, size_t room)
{
    static const char *const names[] = {"libcudnn.so.9", "libcudnn.so",
                                        "/usr/local/cuda/lib64/libcudnn.so.9"};
    const char *own = getenv("HZP_CUDNN");
    bool named = own && *own;
    memset(ret, 0, sizeof(*ret));
    if (named && strcmp(own, "0") == 0) {
        snprintf(why, room, "not wanted: HZP_CUDNN=0");
        return false;
    }
    for (int i = 0; i < (named ? 1 : HZP_COUNT(names)) && !ret->library; i++)
        ret->library = dlopen(named ? own : names[i], RTLD_NOW | RTLD_LOCAL);
    if (!ret->library) {
        snprintf(why, room, "not found: HZP_CUDNN says where it is");
        return false;
    }
    const char *missing = NULL;
#define X(name, type, args)                                                                        \
    *(void **)&ret->name = dlsym(ret->library, "cudnn" #name);                                     \
    if (!ret->name)                                                                                \
        missing = "cudnn" #name;
    HZP_CUDNN_FUNCTIONS(X)
#undef X
    if (!missing)
        ret->version = ret->GetVersion();
    if (missing)
        snprintf(why, room, "the library lacks %s", missing);
    else if (ret->version < VERSION_LEAST || ret->version >= 100000)
        snprintf(why, room, "version %zu is not one of 9.10.2 to 9.99", ret->version);
    else
        return true;
    hzp_cudnn_library_close(ret);
    return false;
}

void hzp_cudnn_library_close(struct hzp_cudnn_library *lib)
{
    if (lib->library)
        dlclose(lib->library);
    memset(lib, 0, sizeof(*lib));
}

/* ---- descriptors ---- */

/* Tensors have four dimensions: segments, heads, rows, columns. */
struct tensor {
    int64_t dim[4], stride[4];
    int type;
    hzp_cudnn_descriptor d;
};

struct graph {
    struct hzp_cudnn_library *lib;
    const struct hzp_cudnn_class *c;
    struct hzp_cudnn_plan *plan;
    hzp_cudnn_descriptor op[OPS];
    int ops;
    int64_t virtuals; /* number of the next virtual tensor */
    bool failed;
    char *why; /* the first error */
    size_t room;
    struct tensor rows, ctx, scale, low; /* used by most operations */
};

static void fail(struct graph *g, const char *what, int status)
{
    char text[160] = "";
    if (g->failed)
        return;
    g->lib->GetLastErrorString(text, sizeof(text));
    for (char *c = text; *c; c++) /* it is logged in one line */
        if (*c == '\n')
            *c = ' ';
    g->failed = true;
    snprintf(g->why, g->room, "%s: %d %s", what, status, text);
}

static void check(struct graph *g, int status, const char *what)
{
    if (status != 0)
        fail(g, what, status);
}

static hzp_cudnn_descriptor begin(struct graph *g, int type)
{
    hzp_cudnn_descriptor d = NULL;
    HZP_ASSERT(g->plan->owns < HZP_COUNT(g->plan->own));
    if (!g->failed)
        check(g, g->lib->BackendCreateDescriptor(type, &d), "a descriptor");
    g->plan->own[g->plan->owns++] = d;
    return d;
}

static void set(struct graph *g, hzp_cudnn_descriptor d, int name, int type, int64_t count,
                const void *values)
{
    char what[32];
    snprintf(what, sizeof(what), "attribute %d", name);
    if (!g->failed)
        check(g, g->lib->BackendSetAttribute(d, name, type, count, values), what);
}

static void set_int(struct graph *g, hzp_cudnn_descriptor d, int name, int type, int value)
{
    set(g, d, name, type, 1, &value); /* the library's enums are ints */
}

static void set_descriptor(struct graph *g, hzp_cudnn_descriptor d, int name,
                           hzp_cudnn_descriptor value)
{
    set(g, d, name, CUDNN_AS_DESCRIPTOR, 1, &value);
}

static void end(struct graph *g, hzp_cudnn_descriptor d, const char *what)
{
    if (!g->failed)
        check(g, g->lib->BackendFinalize(d), what);
}

/* ---- tensors ---- */

/* id 0: it connects two operations and is never in memory.  ragged: where its segments begin;
 * NULL: one stride apart. */
static struct tensor tensor(struct graph *g, int id, int type, const int64_t dim[4],
                            const int64_t stride[4], const struct tensor *ragged)
{
    struct tensor t = {.type = type, .d = begin(g, CUDNN_TENSOR)};
    int64_t number = id ? id : HZP_CUDNN_IDS + g->virtuals++;
    bool value = id >= HZP_CUDNN_SCALE && id <= HZP_CUDNN_ONE, yes = true;
    int64_t alignment = type == CUDNN_BF16 ? 16 : 4;
    memcpy(t.dim, dim, sizeof(t.dim));
    memcpy(t.stride, stride, sizeof(t.stride));
    if (id)
        g->plan->used[id] = true;
    set_int(g, t.d, CUDNN_TENSOR_TYPE, CUDNN_AS_TYPE, type);
    set(g, t.d, CUDNN_TENSOR_DIMENSIONS, CUDNN_AS_INT64, 4, dim);
    set(g, t.d, CUDNN_TENSOR_STRIDES, CUDNN_AS_INT64, 4, stride);
    set(g, t.d, CUDNN_TENSOR_ID, CUDNN_AS_INT64, 1, &number);
    set(g, t.d, CUDNN_TENSOR_ALIGNMENT, CUDNN_AS_INT64, 1, &alignment);
    if (!id)
        set(g, t.d, CUDNN_TENSOR_VIRTUAL, CUDNN_AS_BOOLEAN, 1, &yes);
    if (value)
        set(g, t.d, CUDNN_TENSOR_BY_VALUE, CUDNN_AS_BOOLEAN, 1, &yes);
    if (ragged)
        set_descriptor(g, t.d, CUDNN_TENSOR_RAGGED, ragged->d);
    end(g, t.d, "a tensor");
    return t;
}

/* Virtual, [segs][heads][rows][cols] without gaps. */
static struct tensor dense(struct graph *g, int type, int64_t rows, int64_t cols)
{
    int64_t heads = g->c->heads, dim[4] = {g->c->segs, heads, rows, cols};
    int64_t stride[4] = {heads * rows * cols, rows * cols, cols, 1};
    return tensor(g, 0, type, dim, stride, NULL);
}

/* Virtual, of x's shape. */
static struct tensor like(struct graph *g, struct tensor x, int type)
{
    return tensor(g, 0, type, x.dim, x.stride, NULL);
}

static struct tensor scalar(struct graph *g, int id)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, id, CUDNN_F32, one, one, NULL);
}

/* `count` numbers. */
static struct tensor list(struct graph *g, int id, int64_t count)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    int64_t dim[4] = {count, 1, 1, 1};
    return tensor(g, id, CUDNN_I32, dim, one, NULL);
}

/* A matrix's heads of `dim` columns side by side in rows `stride` elements apart, of all segments;
 * turned: with rows and columns exchanged. */
static struct tensor packed(struct graph *g, int id, int type, int64_t heads, int64_t stride,
                            struct tensor at, bool turned)
{
    const struct hzp_cudnn_class *c = g->c;
    int64_t dim[4] = {c->segs, heads, c->rows, c->dim};
    int64_t strides[4] = {c->rows * stride, c->dim, stride, 1};
    if (turned) {
        dim[2] = c->dim, dim[3] = c->rows;
        strides[2] = 1, strides[3] = stride;
    }
    return tensor(g, id, type, dim, strides, &at);
}

/* One number for each row and head, [rows][heads] of all segments. */
static struct tensor per_row(struct graph *g, int id, struct tensor at)
{
    int64_t heads = g->c->heads, rows = g->c->rows;
    int64_t dim[4] = {g->c->segs, heads, rows, 1}, stride[4] = {heads * rows, 1, heads, 1};
    return tensor(g, id, CUDNN_F32, dim, stride, &at);
}

/* ---- operations ---- */

static void add(struct graph *g, hzp_cudnn_descriptor op, const char *what)
{
    end(g, op, what);
    HZP_ASSERT(g->ops < OPS);
    g->op[g->ops++] = op;
}

/* c = a b; m, n, k: of each segment, how many rows, columns and terms there are; NULL: all. */
static void product(struct graph *g, struct tensor a, struct tensor b, struct tensor c,
                    const struct tensor *m, const struct tensor *n, const struct tensor *k,
                    const char *what)
{
    hzp_cudnn_descriptor is = begin(g, CUDNN_MATMUL), op = begin(g, CUDNN_OP_MATMUL);
    set_int(g, is, CUDNN_MATMUL_PRECISION, CUDNN_AS_TYPE, CUDNN_F32);
    end(g, is, what);
    set_descriptor(g, op, CUDNN_OP_MATMUL_A, a.d);
    set_descriptor(g, op, CUDNN_OP_MATMUL_B, b.d);
    set_descriptor(g, op, CUDNN_OP_MATMUL_C, c.d);
    set_descriptor(g, op, CUDNN_OP_MATMUL_IS, is);
    if (m)
        set_descriptor(g, op, CUDNN_OP_MATMUL_M, m->d);
    if (n)
        set_descriptor(g, op, CUDNN_OP_MATMUL_N, n->d);
    if (k)
        set_descriptor(g, op, CUDNN_OP_MATMUL_K, k->d);
    add(g, op, what);
}

/* y = mode(x, b) where t; b and t NULL: the mode does not take them.  axis: of GEN_INDEX, else
 * -1. */
static void pointwise_to(struct graph *g, int mode, int precision, struct tensor x,
                         const struct tensor *b, const struct tensor *t, int64_t axis,
                         struct tensor y, const char *what)
{
    hzp_cudnn_descriptor is = begin(g, CUDNN_POINTWISE), op = begin(g, CUDNN_OP_POINTWISE);
    set_int(g, is, CUDNN_POINTWISE_MODE, CUDNN_AS_POINTWISE, mode);
    set_int(g, is, CUDNN_POINTWISE_PRECISION, CUDNN_AS_TYPE, precision);
    if (axis >= 0)
        set(g, is, CUDNN_POINTWISE_AXIS, CUDNN_AS_INT64, 1, &axis);
    end(g, is, what);
    set_descriptor(g, op, CUDNN_OP_POINTWISE_IS, is);
    set_descriptor(g, op, CUDNN_OP_POINTWISE_X, x.d);
    if (b)
        set_descriptor(g, op, CUDNN_OP_POINTWISE_B, b->d);
    if (t)
        set_descriptor(g, op, CUDNN_OP_POINTWISE_T, t->d);
    set_descriptor(g, op, CUDNN_OP_POINTWISE_Y, y.d);
    add(g, op, what);
}

/* A virtual tensor of x's shape. */
static struct tensor pointwise(struct graph *g, int mode, int type, struct tensor x,
                               const struct tensor *b, const char *what)
{
    struct tensor y = like(g, x, type);
    pointwise_to(g, mode, type, x, b, NULL, -1, y, what);
    return y;
}

static struct tensor index_of(struct graph *g, struct tensor x, int64_t axis, const char *what)
{
    struct tensor y = like(g, x, CUDNN_I32);
    pointwise_to(g, CUDNN_GEN_INDEX, CUDNN_I32, x, NULL, NULL, axis, y, what);
    return y;
}

static void reduce(struct graph *g, int mode, struct tensor x, struct tensor y, const char *what)
{
    hzp_cudnn_descriptor is = begin(g, CUDNN_REDUCTION), op = begin(g, CUDNN_OP_REDUCTION);
    set_int(g, is, CUDNN_REDUCTION_MODE, CUDNN_AS_REDUCTION, mode);
    set_int(g, is, CUDNN_REDUCTION_PRECISION, CUDNN_AS_TYPE, CUDNN_F32);
    end(g, is, what);
    set_descriptor(g, op, CUDNN_OP_REDUCTION_X, x.d);
    set_descriptor(g, op, CUDNN_OP_REDUCTION_Y, y.d);
    set_descriptor(g, op, CUDNN_OP_REDUCTION_IS, is);
    add(g, op, what);
}

/* x with rows and columns exchanged, of this type.  ragged: x's. */
static struct tensor turned(struct graph *g, struct tensor x, int type, const struct tensor *ragged,
                            const char *what)
{
    int64_t dim[4] = {x.dim[0], x.dim[1], x.dim[3], x.dim[2]};
    int64_t stride[4] = {x.stride[0], x.stride[1], x.stride[3], x.stride[2]};
    struct tensor y = tensor(g, 0, type, dim, stride, ragged);
    hzp_cudnn_descriptor op = begin(g, CUDNN_OP_RESHAPE);
    set_descriptor(g, op, CUDNN_OP_RESHAPE_X, x.d);
    set_descriptor(g, op, CUDNN_OP_RESHAPE_Y, y.d);
    add(g, op, what);
    return y;
}

/* Scores beyond the segments' rows and positions become low. */
static struct tensor masked_padding(struct graph *g, struct tensor s)
{
    struct tensor row = index_of(g, s, 2, "row numbers"), col = index_of(g, s, 3, "positions");
    struct tensor in_rows = pointwise(g, CUDNN_CMP_LT, CUDNN_BOOLEAN, row, &g->rows, "its rows");
    struct tensor in_ctx = pointwise(g, CUDNN_CMP_LT, CUDNN_BOOLEAN, col, &g->ctx, "its positions");
    struct tensor in = pointwise(g, CUDNN_AND, CUDNN_BOOLEAN, in_rows, &in_ctx, "both");
    struct tensor y = like(g, s, CUDNN_F32);
    pointwise_to(g, CUDNN_SELECT, CUDNN_F32, s, &g->low, &in, -1, y, "the padding's mask");
    return y;
}

/* Scores of later positions than the row's own become low.  shifted: row r of a segment is at
 * position ctx - rows + r, else at r. */
static struct tensor masked_later(struct graph *g, struct tensor s, bool shifted)
{
    struct tensor row = index_of(g, s, 2, "row numbers"), col = index_of(g, s, 3, "positions");
    if (shifted) {
        struct tensor sum = like(g, s, CUDNN_I32), own = like(g, s, CUDNN_I32);
        pointwise_to(g, CUDNN_ADD, CUDNN_I32, row, &g->ctx, NULL, 3, sum, "rows' positions");
        pointwise_to(g, CUDNN_SUB, CUDNN_I32, sum, &g->rows, NULL, 3, own, "rows' positions");
        row = own;
    }
    struct tensor seen = pointwise(g, CUDNN_CMP_GE, CUDNN_BOOLEAN, row, &col, "the diagonal");
    struct tensor y = like(g, s, CUDNN_F32);
    pointwise_to(g, CUDNN_SELECT, CUDNN_F32, s, &g->low, &seen, -1, y, "the diagonal's mask");
    return y;
}

/* ---- attention ---- */

static void common(struct graph *g)
{
    g->rows = list(g, HZP_CUDNN_ROWS, g->c->segs);
    g->ctx = list(g, HZP_CUDNN_CTX, g->c->segs);
    g->scale = scalar(g, HZP_CUDNN_SCALE);
    g->low = scalar(g, HZP_CUDNN_LOW);
}

/* The positions there is room for in a segment. */
static int64_t ctx_room(const struct hzp_cudnn_class *c)
{
    return c->kind == HZP_CUDNN_PAGED ? (int64_t)c->page_stride * c->page_rows : c->rows;
}

/* All positions of the segments' keys (turned) or values, from pages. */
static struct tensor paged(struct graph *g, bool keys)
{
    const struct hzp_cudnn_class *c = g->c;
    int64_t heads = c->kv_heads, ctx = ctx_room(c), d = c->dim, per = c->page_rows;
    int64_t dim[4] = {c->pages, heads, per, d}, stride[4] = {heads * per * d, per * d, d, 1};
    int64_t table_dim[4] = {c->segs, 1, c->page_stride, 1};
    int64_t table_stride[4] = {c->page_stride, c->page_stride, 1, 1};
    int64_t y_dim[4] = {c->segs, heads, ctx, d}, y_stride[4] = {heads * ctx * d, ctx * d, d, 1};
    if (keys) {
        y_dim[2] = d, y_dim[3] = ctx;
        y_stride[2] = 1, y_stride[3] = d;
    }
    struct tensor from = tensor(g, keys ? HZP_CUDNN_K : HZP_CUDNN_V, CUDNN_BF16, dim, stride, NULL);
    struct tensor table = tensor(g, keys ? HZP_CUDNN_PAGES_K : HZP_CUDNN_PAGES_V, CUDNN_I32,
                                 table_dim, table_stride, NULL);
    struct tensor y = tensor(g, 0, CUDNN_BF16, y_dim, y_stride, NULL);
    hzp_cudnn_descriptor op = begin(g, CUDNN_OP_PAGED_LOAD);
    set_descriptor(g, op, CUDNN_OP_PAGED_FROM, from.d);
    set_descriptor(g, op, CUDNN_OP_PAGED_TABLE, table.d);
    set_descriptor(g, op, CUDNN_OP_PAGED_CTX, g->ctx.d);
    set_descriptor(g, op, CUDNN_OP_PAGED_Y, y.d);
    add(g, op, "pages");
    return y;
}

static void forward(struct graph *g)
{
    const struct hzp_cudnn_class *c = g->c;
    bool pages = c->kind == HZP_CUDNN_PAGED;
    common(g);
    struct tensor at_qkv = list(g, HZP_CUDNN_AT_QKV, c->segs + 1);
    struct tensor at_out = list(g, HZP_CUDNN_AT_OUT, c->segs + 1);
    struct tensor q = packed(g, HZP_CUDNN_Q, CUDNN_BF16, c->heads, c->qkv_stride, at_qkv, false);
    struct tensor k =
        pages ? paged(g, true)
              : packed(g, HZP_CUDNN_K, CUDNN_BF16, c->kv_heads, c->qkv_stride, at_qkv, true);
    struct tensor o = packed(g, HZP_CUDNN_O, CUDNN_BF16, c->heads, c->out_stride, at_out, false);
    struct tensor s = dense(g, CUDNN_F32, c->rows, ctx_room(c));
    product(g, q, k, s, &g->rows, &g->ctx, NULL, "Q K^T");
    s = pointwise(g, CUDNN_MUL, CUDNN_F32, s, &g->scale, "scale");
    s = masked_padding(g, s);
    s = masked_later(g, s, pages);
    struct tensor top = dense(g, CUDNN_F32, c->rows, 1), mass = like(g, top, CUDNN_F32);
    reduce(g, CUDNN_MAX, s, top, "row maxima");
    s = pointwise(g, CUDNN_SUB, CUDNN_F32, s, &top, "less the maxima");
    s = pointwise(g, CUDNN_EXP, CUDNN_F32, s, NULL, "exp");
    reduce(g, CUDNN_SUM, s, mass, "row sums");
    struct tensor log_mass = pointwise(g, CUDNN_LOG, CUDNN_F32, mass, NULL, "log");
    struct tensor lse = top;
    if (pages) {
        lse = like(g, top, CUDNN_F32);
    } else {
        struct tensor at_lse = list(g, HZP_CUDNN_AT_LSE, c->segs + 1);
        lse = per_row(g, HZP_CUDNN_LSE, at_lse);
    }
    pointwise_to(g, CUDNN_ADD, CUDNN_F32, top, &log_mass, NULL, -1, lse, "log of the sums");
    struct tensor p = like(g, s, CUDNN_BF16);
    pointwise_to(g, CUDNN_DIV, CUDNN_F32, s, &mass, NULL, -1, p, "normed");
    struct tensor v =
        pages ? paged(g, false)
              : packed(g, HZP_CUDNN_V, CUDNN_BF16, c->kv_heads, c->qkv_stride, at_qkv, false);
    product(g, p, v, o, &g->rows, NULL, &g->ctx, "P V");
}

/* y = a^T b, for the heads that share keys and values: of one head's group, or summed. */
static void product_of_group(struct graph *g, struct tensor a, struct tensor b, struct tensor y,
                             const char *what)
{
    const struct hzp_cudnn_class *c = g->c;
    if (c->heads == c->kv_heads) {
        product(g, a, b, y, &g->ctx, NULL, &g->rows, what);
        return;
    }
    struct tensor all = dense(g, CUDNN_BF16, c->rows, c->dim);
    product(g, a, b, all, &g->ctx, NULL, &g->rows, what);
    reduce(g, CUDNN_SUM, all, y, "sum of a group");
}

/* The sums of dO O, by the form that the library knows: with a factor, of dropout, which is 1. */
static struct tensor sums(struct graph *g, struct tensor o, struct tensor dout, struct tensor at)
{
    struct tensor each = dense(g, CUDNN_F32, g->c->rows, g->c->dim);
    struct tensor bare = dense(g, CUDNN_F32, g->c->rows, 1), one = scalar(g, HZP_CUDNN_ONE);
    struct tensor sum = per_row(g, HZP_CUDNN_SUM, at);
    pointwise_to(g, CUDNN_MUL, CUDNN_F32, dout, &o, NULL, -1, each, "dO O");
    reduce(g, CUDNN_SUM, each, bare, "sums of dO O");
    pointwise_to(g, CUDNN_MUL, CUDNN_F32, bare, &one, NULL, -1, sum, "sums of dO O, scaled");
    return sum;
}

static void backward(struct graph *g)
{
    const struct hzp_cudnn_class *c = g->c;
    common(g);
    struct tensor at = list(g, HZP_CUDNN_AT_QKV, c->segs + 1);
    struct tensor at_out = list(g, HZP_CUDNN_AT_OUT, c->segs + 1);
    struct tensor at_lse = list(g, HZP_CUDNN_AT_LSE, c->segs + 1);
    struct tensor at_d = list(g, HZP_CUDNN_AT_DQKV, c->segs + 1);
    struct tensor at_dout = list(g, HZP_CUDNN_AT_DOUT, c->segs + 1);
    struct tensor q = packed(g, HZP_CUDNN_Q, CUDNN_BF16, c->heads, c->qkv_stride, at, false);
    struct tensor k = packed(g, HZP_CUDNN_K, CUDNN_BF16, c->kv_heads, c->qkv_stride, at, true);
    struct tensor v = packed(g, HZP_CUDNN_V, CUDNN_BF16, c->kv_heads, c->qkv_stride, at, true);
    struct tensor o = packed(g, HZP_CUDNN_O, CUDNN_BF16, c->heads, c->out_stride, at_out, false);
    struct tensor dout =
        packed(g, HZP_CUDNN_DO, CUDNN_BF16, c->heads, c->dout_stride, at_dout, false);
    struct tensor lse = per_row(g, HZP_CUDNN_LSE, at_lse);
    struct tensor dq = packed(g, HZP_CUDNN_DQ, CUDNN_BF16, c->heads, c->dqkv_stride, at_d, false);
    struct tensor dk =
        packed(g, HZP_CUDNN_DK, CUDNN_BF16, c->kv_heads, c->dqkv_stride, at_d, false);
    struct tensor dv =
        packed(g, HZP_CUDNN_DV, CUDNN_BF16, c->kv_heads, c->dqkv_stride, at_d, false);
    struct tensor dq_sum =
        packed(g, HZP_CUDNN_DQ_SUM, CUDNN_F32, c->heads, c->dqkv_stride, at_d, false);
    struct tensor sum = sums(g, o, dout, at_lse);

    struct tensor s = dense(g, CUDNN_F32, c->rows, c->rows), dp = like(g, s, CUDNN_F32);
    product(g, q, k, s, &g->rows, &g->ctx, NULL, "Q K^T");
    s = pointwise(g, CUDNN_MUL, CUDNN_F32, s, &g->scale, "scale");
    s = masked_padding(g, s);
    s = pointwise(g, CUDNN_SUB, CUDNN_F32, s, &lse, "less the log of the sums");
    s = masked_later(g, s, false);
    struct tensor p = pointwise(g, CUDNN_EXP, CUDNN_F32, s, NULL, "exp");
    product_of_group(g, turned(g, p, CUDNN_BF16, NULL, "P^T"), dout, dv, "P^T dO");

    product(g, dout, v, dp, &g->rows, &g->ctx, NULL, "dO V^T");
    dp = pointwise(g, CUDNN_SUB, CUDNN_F32, dp, &sum, "less the sums");
    dp = pointwise(g, CUDNN_MUL, CUDNN_F32, dp, &p, "times P");
    struct tensor ds = like(g, dp, CUDNN_BF16);
    pointwise_to(g, CUDNN_MUL, CUDNN_F32, dp, &g->scale, NULL, -1, ds, "dS");
    product_of_group(g, turned(g, ds, CUDNN_BF16, NULL, "dS^T"), q, dk, "dS^T Q");
    product(g, ds, turned(g, k, CUDNN_BF16, &at, "K"), dq_sum, &g->rows, NULL, &g->ctx, "dS K");
    pointwise_to(g, CUDNN_IDENTITY, CUDNN_F32, dq_sum, NULL, NULL, -1, dq, "dQ");
}

/* ---- plans ---- */

/* Tries the engines that the library advises, best first, until one takes the graph. */
static void find(struct graph *g, void *handle, hzp_cudnn_descriptor device,
                 hzp_cudnn_descriptor heuristics)
{
    hzp_cudnn_descriptor config[CONFIGS];
    int64_t count = 0;
    for (int i = 0; i < CONFIGS; i++)
        config[i] = begin(g, CUDNN_ENGINE_CONFIG);
    if (!g->failed)
        check(g,
              g->lib->BackendGetAttribute(heuristics, CUDNN_HEURISTICS_RESULTS, CUDNN_AS_DESCRIPTOR,
                                          CONFIGS, &count, config),
              "engines");
    if (!g->failed && count == 0)
        fail(g, "no engine", 0);
    bool any = !g->failed;
    for (int64_t i = 0; any && i < HZP_MIN(count, (int64_t)CONFIGS) && !g->plan->plan; i++) {
        g->failed = false; /* set by the engine before */
        hzp_cudnn_descriptor plan = begin(g, CUDNN_PLAN);
        if (handle)
            set(g, plan, CUDNN_PLAN_HANDLE, CUDNN_AS_HANDLE, 1, &handle);
        else
            set_descriptor(g, plan, CUDNN_PLAN_DEVICE, device);
        set_descriptor(g, plan, CUDNN_PLAN_CONFIG, config[i]);
        end(g, plan, "a plan");
        if (!g->failed)
            g->plan->plan = plan;
    }
}

static void compile(struct graph *g, void *handle, hzp_cudnn_descriptor device)
{
    hzp_cudnn_descriptor graph = begin(g, CUDNN_GRAPH);
    hzp_cudnn_descriptor heuristics = begin(g, CUDNN_ENGINE_HEURISTICS);
    int64_t count = 0, space = 0;
    if (handle)
        set(g, graph, CUDNN_GRAPH_HANDLE, CUDNN_AS_HANDLE, 1, &handle);
    set(g, graph, CUDNN_GRAPH_OPS, CUDNN_AS_DESCRIPTOR, g->ops, g->op);
    end(g, graph, "the graph");
    set_descriptor(g, heuristics, CUDNN_HEURISTICS_GRAPH, graph);
    set_int(g, heuristics, CUDNN_HEURISTICS_MODE, CUDNN_AS_HEURISTICS, CUDNN_MODE_A);
    if (!handle)
        set_descriptor(g, heuristics, CUDNN_HEURISTICS_DEVICE, device);
    end(g, heuristics, "heuristics");
    find(g, handle, device, heuristics);
    if (!g->failed)
        check(g,
              g->lib->BackendGetAttribute(g->plan->plan, CUDNN_PLAN_SPACE, CUDNN_AS_INT64, 1,
                                          &count, &space),
              "workspace");
    g->plan->space = space > 0 ? (size_t)space : 0;
}

int hzp_cudnn_plan_make(struct hzp_cudnn_library *lib, void *handle, hzp_cudnn_descriptor device,
                        const struct hzp_cudnn_class *c, struct hzp_cudnn_plan *ret, char *why,
                        size_t room)
{
    struct graph g = {.lib = lib, .c = c, .plan = ret, .why = why, .room = room};
    memset(ret, 0, sizeof(*ret));
    if (c->kind == HZP_CUDNN_PACKED_BWD)
        backward(&g);
    else
        forward(&g);
    compile(&g, handle, device);
    if (!g.failed)
        return HZP_OK;
    hzp_cudnn_plan_free(lib, ret);
    return HZP_EUNSUP;
}

void hzp_cudnn_plan_free(struct hzp_cudnn_library *lib, struct hzp_cudnn_plan *plan)
{
    for (int i = plan->owns - 1; i >= 0; i--)
        if (plan->own[i])
            lib->BackendDestroyDescriptor(plan->own[i]);
    memset(plan, 0, sizeof(*plan));
}

hzp_cudnn_descriptor hzp_cudnn_device_make(struct hzp_cudnn_library *lib, const char *json)
{
    hzp_cudnn_descriptor d = NULL;
    if (lib->BackendCreateDescriptor(CUDNN_DEVICE, &d) != 0)
        return NULL;
    if (lib->BackendSetAttribute(d, CUDNN_DEVICE_JSON, CUDNN_AS_CHAR, (int64_t)strlen(json) + 1,
                                 json) == 0 &&
        lib->BackendFinalize(d) == 0)
        return d;
    lib->BackendDestroyDescriptor(d);
    return NULL;
}
