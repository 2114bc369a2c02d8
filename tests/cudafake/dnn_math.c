/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/dnn_math.c - computes a graph of cuDNN's operations, one after the other, each as
 * its descriptors say, in float.
 *
 * Elements of ragged tensors beyond their segments are NaN when they are read, and are not written:
 * what a mask or a product's override should have left out is seen in the results.
 */
#include "device/bf16.h"
#include "tests/cudafake/dnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 96, SEGS = 64 };

struct value {
    struct fake_dnn_tensor t;
    float *x; /* [segments with rows][dim 1][dim 2][dim 3] */
};

struct math {
    const struct fake_dnn_run *run;
    struct value value[VALUES];
    int values;
    int seg[SEGS], segs; /* those with rows */
    const int32_t *rows, *ctx;
};

static void *bound(const struct math *m, int64_t id)
{
    for (int i = 0; i < m->run->bound; i++)
        if (m->run->id[i] == id)
            return m->run->at[i];
    return NULL;
}

static size_t count_of(const struct fake_dnn_tensor *t)
{
    return (size_t)(t->dim[1] * t->dim[2] * t->dim[3]);
}

/* Whether rows lie along dimension 3, else along 2. */
static bool is_turned(const struct fake_dnn_tensor *t)
{
    return t->dim[3] > 1 && t->stride[3] > t->stride[2];
}

/* The element's address; NULL: it is beyond its segment. */
static char *element(const struct math *m, const struct fake_dnn_tensor *t, int seg, int64_t h,
                     int64_t r, int64_t c)
{
    int64_t at = h * t->stride[1] + r * t->stride[2] + c * t->stride[3];
    size_t size = t->type == CUDNN_BF16 ? 2 : 4;
    char *base = bound(m, t->id);
    if (t->ragged) {
        const int32_t *offset = bound(m, fake_dnn_tensor_of(t->ragged).id);
        if ((is_turned(t) ? c : r) >= m->rows[seg])
            return NULL;
        at += offset[seg];
    } else if (t->dim[0] > 1) {
        at += seg * t->stride[0];
    }
    char *ret = base + at * (int64_t)size;
    if (c == 0 && h == 0 && !fake_is_ours(ret, size)) {
        fake_mistake("cuDNN: tensor %lld leaves its allocation", (long long)t->id);
        return NULL;
    }
    return ret;
}

static float load(const struct fake_dnn_tensor *t, const char *p)
{
    if (!p)
        return NAN;
    if (t->type == CUDNN_BF16)
        return hzp_bf16_to_f32(*(const uint16_t *)p);
    return t->type == CUDNN_I32 ? (float)*(const int32_t *)p : *(const float *)p;
}

static struct value *value_new(struct math *m, struct fake_dnn_desc *d)
{
    struct value *v = &m->value[m->values++];
    if (m->values > VALUES)
        abort();
    v->t = fake_dnn_tensor_of(d);
    v->x = calloc((size_t)m->segs * count_of(&v->t), sizeof(float));
    return v;
}

/* The value of an operation's input: computed before, or read from memory. */
static struct value *input(struct math *m, struct fake_dnn_desc *d)
{
    for (int i = 0; i < m->values; i++)
        if (m->value[i].t.desc == d)
            return &m->value[i];
    struct value *v = value_new(m, d);
    const struct fake_dnn_tensor *t = &v->t;
    float *x = v->x;
    if (t->is_virtual)
        fake_mistake("cuDNN: tensor %lld is read before it is computed", (long long)t->id);
    for (int i = 0; i < m->segs; i++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t r = 0; r < t->dim[2]; r++)
                for (int64_t c = 0; c < t->dim[3]; c++, x++) {
                    if (!t->by_value) {
                        *x = load(t, element(m, t, m->seg[i], h, r, c));
                        continue;
                    }
                    for (int k = 0; k < m->run->bound; k++)
                        if (m->run->id[k] == t->id)
                            *x = m->run->value[k];
                }
    return v;
}

/* The element of a tensor whose dimensions of 1 stand for all. */
static float at(const struct value *v, int i, int64_t h, int64_t r, int64_t c)
{
    const int64_t *dim = v->t.dim;
    h = dim[1] == 1 ? 0 : h;
    r = dim[2] == 1 ? 0 : r;
    c = dim[3] == 1 ? 0 : c;
    return v->x[((i * dim[1] + h) * dim[2] + r) * dim[3] + c];
}

/* Rounds to the tensor's type; stores what is not virtual. */
static void finish(struct math *m, struct value *v, bool product)
{
    const struct fake_dnn_tensor *t = &v->t;
    float *x = v->x;
    for (size_t i = 0; t->type == CUDNN_BF16 && i < (size_t)m->segs * count_of(t); i++)
        x[i] = hzp_bf16_to_f32(hzp_bf16_from_f32(x[i]));
    for (int i = 0; !t->is_virtual && i < m->segs; i++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t r = 0; r < t->dim[2]; r++)
                for (int64_t c = 0; c < t->dim[3]; c++, x++) {
                    char *p = element(m, t, m->seg[i], h, r, c);
                    if (!p)
                        continue;
                    if (t->type == CUDNN_BF16)
                        *(uint16_t *)p = hzp_bf16_from_f32(*x);
                    else if (product && *(const float *)p != 0)
                        fake_mistake("cuDNN: the sums of tensor %lld do not begin with zeros",
                                     (long long)t->id);
                    else
                        *(float *)p = *x;
                }
}

static int64_t limit(const struct math *m, const struct fake_dnn_desc *op, int name, int i,
                     int64_t all)
{
    struct fake_dnn_desc *d = fake_dnn_at(op, name, 0);
    return d ? ((const int32_t *)bound(m, fake_dnn_tensor_of(d).id))[m->seg[i]] : all;
}

static void product(struct math *m, struct fake_dnn_desc *op)
{
    const struct value *a = input(m, fake_dnn_at(op, CUDNN_OP_MATMUL_A, 0));
    const struct value *b = input(m, fake_dnn_at(op, CUDNN_OP_MATMUL_B, 0));
    struct value *y = value_new(m, fake_dnn_at(op, CUDNN_OP_MATMUL_C, 0));
    int64_t group = y->t.dim[1] / b->t.dim[1];
    float *x = y->x;
    if (a->t.dim[3] != b->t.dim[2] || a->t.dim[2] != y->t.dim[2] || b->t.dim[3] != y->t.dim[3] ||
        a->t.dim[1] != y->t.dim[1])
        fake_mistake("cuDNN: a product's shapes do not meet");
    for (int i = 0; i < m->segs; i++) {
        int64_t rows = limit(m, op, CUDNN_OP_MATMUL_M, i, y->t.dim[2]);
        int64_t cols = limit(m, op, CUDNN_OP_MATMUL_N, i, y->t.dim[3]);
        int64_t depth = limit(m, op, CUDNN_OP_MATMUL_K, i, a->t.dim[3]);
        for (int64_t h = 0; h < y->t.dim[1]; h++)
            for (int64_t r = 0; r < y->t.dim[2]; r++)
                for (int64_t c = 0; c < y->t.dim[3]; c++, x++) {
                    double sum = 0;
                    for (int64_t k = 0; r < rows && c < cols && k < depth; k++)
                        sum += (double)at(a, i, h, r, k) * (double)at(b, i, h / group, k, c);
                    *x = r < rows && c < cols ? (float)sum : NAN;
                }
    }
    finish(m, y, true);
}

static float apply(int64_t mode, float x, float b, float t)
{
    switch (mode) {
    case CUDNN_ADD:
        return x + b;
    case CUDNN_MUL:
        return x * b;
    case CUDNN_DIV:
        return x / b;
    case CUDNN_SUB:
        return x - b;
    case CUDNN_EXP:
        return expf(x);
    case CUDNN_LOG:
        return logf(x);
    case CUDNN_IDENTITY:
        return x;
    case CUDNN_CMP_GE:
        return x >= b;
    case CUDNN_CMP_LT:
        return x < b;
    case CUDNN_AND:
        return x != 0 && b != 0;
    case CUDNN_SELECT:
        return t != 0 ? x : b;
    default:
        fake_mistake("cuDNN: pointwise mode %lld", (long long)mode);
        return NAN;
    }
}

static void pointwise(struct math *m, struct fake_dnn_desc *op)
{
    struct fake_dnn_desc *is = fake_dnn_at(op, CUDNN_OP_POINTWISE_IS, 0);
    struct fake_dnn_desc *db = fake_dnn_at(op, CUDNN_OP_POINTWISE_B, 0);
    struct fake_dnn_desc *dt = fake_dnn_at(op, CUDNN_OP_POINTWISE_T, 0);
    int64_t mode = fake_dnn_number(is, CUDNN_POINTWISE_MODE, -1);
    int64_t axis = fake_dnn_number(is, CUDNN_POINTWISE_AXIS, -1);
    const struct value *vx = input(m, fake_dnn_at(op, CUDNN_OP_POINTWISE_X, 0));
    const struct value *vb = db ? input(m, db) : NULL, *vt = dt ? input(m, dt) : NULL;
    struct value *y = value_new(m, fake_dnn_at(op, CUDNN_OP_POINTWISE_Y, 0));
    float *x = y->x;
    for (int i = 0; i < m->segs; i++)
        for (int64_t h = 0; h < y->t.dim[1]; h++)
            for (int64_t r = 0; r < y->t.dim[2]; r++)
                for (int64_t c = 0; c < y->t.dim[3]; c++)
                    *x++ = mode == CUDNN_GEN_INDEX
                               ? (float)(axis == 2 ? r : c)
                               : apply(mode, at(vx, i, h, r, c), vb ? at(vb, i, h, r, c) : 0,
                                       vt ? at(vt, i, h, r, c) : 0);
    finish(m, y, false);
}

/* Over the dimensions in which y is smaller than x. */
static void reduce(struct math *m, struct fake_dnn_desc *op)
{
    const struct value *vx = input(m, fake_dnn_at(op, CUDNN_OP_REDUCTION_X, 0));
    struct value *y = value_new(m, fake_dnn_at(op, CUDNN_OP_REDUCTION_Y, 0));
    const int64_t *from = vx->t.dim, *to = y->t.dim;
    bool max = fake_dnn_number(fake_dnn_at(op, CUDNN_OP_REDUCTION_IS, 0), CUDNN_REDUCTION_MODE,
                               -1) == CUDNN_MAX;
    int64_t heads = from[1] / to[1], rows = from[2] / to[2], cols = from[3] / to[3];
    float *x = y->x;
    for (int i = 0; i < m->segs; i++)
        for (int64_t h = 0; h < to[1]; h++)
            for (int64_t r = 0; r < to[2]; r++)
                for (int64_t c = 0; c < to[3]; c++, x++) {
                    double sum = max ? -INFINITY : 0;
                    for (int64_t k = 0; k < heads * rows * cols; k++) {
                        double e = (double)at(vx, i, h * heads + k / (rows * cols),
                                              r * rows + k / cols % rows, c * cols + k % cols);
                        sum = max ? fmax(sum, e) : sum + e;
                    }
                    *x = (float)sum;
                }
    finish(m, y, false);
}

static void turn(struct math *m, struct fake_dnn_desc *op)
{
    const struct value *vx = input(m, fake_dnn_at(op, CUDNN_OP_RESHAPE_X, 0));
    struct value *y = value_new(m, fake_dnn_at(op, CUDNN_OP_RESHAPE_Y, 0));
    float *x = y->x;
    for (int i = 0; i < m->segs; i++)
        for (int64_t h = 0; h < y->t.dim[1]; h++)
            for (int64_t r = 0; r < y->t.dim[2]; r++)
                for (int64_t c = 0; c < y->t.dim[3]; c++)
                    *x++ = at(vx, i, h, c, r);
    finish(m, y, false);
}

static void paged_load(struct math *m, struct fake_dnn_desc *op)
{
    struct fake_dnn_tensor from = fake_dnn_tensor_of(fake_dnn_at(op, CUDNN_OP_PAGED_FROM, 0));
    struct fake_dnn_tensor table = fake_dnn_tensor_of(fake_dnn_at(op, CUDNN_OP_PAGED_TABLE, 0));
    struct value *y = value_new(m, fake_dnn_at(op, CUDNN_OP_PAGED_Y, 0));
    const int32_t *page = bound(m, table.id);
    bool turned = y->t.stride[2] == 1;
    int64_t dims = turned ? y->t.dim[2] : y->t.dim[3], ctx = turned ? y->t.dim[3] : y->t.dim[2];
    for (int i = 0; i < m->segs; i++)
        for (int64_t h = 0; h < y->t.dim[1]; h++)
            for (int64_t p = 0; p < ctx; p++) {
                int32_t at = page[m->seg[i] * table.stride[0] + p / from.dim[2]];
                if (at < 0 || at >= from.dim[0])
                    fake_mistake("cuDNN: page %d of %lld", at, (long long)from.dim[0]);
                for (int64_t d = 0; d < dims; d++) {
                    const char *e = (const char *)bound(m, from.id) +
                                    2 * (at * from.stride[0] + h * from.stride[1] +
                                         p % from.dim[2] * from.stride[2] + d);
                    bool is = p < m->ctx[m->seg[i]] && at >= 0 && at < from.dim[0];
                    int64_t r = turned ? d : p, c = turned ? p : d;
                    y->x[((i * y->t.dim[1] + h) * y->t.dim[2] + r) * y->t.dim[3] + c] =
                        is ? load(&from, e) : NAN;
                }
            }
}

/* The lists of rows and positions are those of the first product. */
static void begin(struct math *m)
{
    struct fake_dnn_desc *graph = m->run->plan->graph;
    int64_t ops = fake_dnn_find(graph, CUDNN_GRAPH_OPS)->count, room = 0;
    for (int64_t i = 0; i < ops && !m->rows; i++) {
        struct fake_dnn_desc *op = fake_dnn_at(graph, CUDNN_GRAPH_OPS, i);
        struct fake_dnn_desc *rows = fake_dnn_at(op, CUDNN_OP_MATMUL_M, 0);
        struct fake_dnn_desc *ctx = fake_dnn_at(op, CUDNN_OP_MATMUL_N, 0);
        if (op->kind != CUDNN_OP_MATMUL || !rows || !ctx)
            continue;
        m->rows = bound(m, fake_dnn_tensor_of(rows).id);
        m->ctx = bound(m, fake_dnn_tensor_of(ctx).id);
        room = fake_dnn_tensor_of(rows).dim[0];
    }
    for (int i = 0; m->rows && i < room && i < SEGS; i++)
        if (m->rows[i] > 0)
            m->seg[m->segs++] = i;
}

void fake_dnn_compute(const struct fake_dnn_run *run)
{
    struct math *m = calloc(1, sizeof(*m));
    struct fake_dnn_desc *graph = run->plan->graph;
    int64_t ops = fake_dnn_find(graph, CUDNN_GRAPH_OPS)->count;
    m->run = run;
    begin(m);
    for (int64_t i = 0; i < ops; i++) {
        struct fake_dnn_desc *op = fake_dnn_at(graph, CUDNN_GRAPH_OPS, i);
        if (op->kind == CUDNN_OP_MATMUL)
            product(m, op);
        else if (op->kind == CUDNN_OP_POINTWISE)
            pointwise(m, op);
        else if (op->kind == CUDNN_OP_REDUCTION)
            reduce(m, op);
        else if (op->kind == CUDNN_OP_RESHAPE)
            turn(m, op);
        else
            paged_load(m, op);
    }
    for (int i = 0; i < m->values; i++)
        free(m->value[i].x);
    free(m);
}
