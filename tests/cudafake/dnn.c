/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/dnn.c - cuDNN's backend API: descriptors are checked when they are finalized, runs
 * when they are queued.
 *
 * Nothing but what a run binds may be made in a capture, or after the start.
 */
#include "tests/cudafake/dnn.h"

#include <stdlib.h>
#include <string.h>

/* The library's functions, whose header is not needed. */
#define X(name, type, args) type cudnn##name args;
HZP_CUDNN_FUNCTIONS(X)
#undef X

enum { OK = 0, BAD = 2000, REFUSED = 3000, ENGINES = 2 };

struct handle {
    struct fake_object object;
    cudaStream_t stream;
    bool set; /* the stream was set */
};

struct fake_dnn fake_dnn = {.space = 1 << 16};
static int plans;

int fake_dnn_plans(void)
{
    return plans;
}

size_t cudnnGetVersion(void)
{
    return 91900;
}

void cudnnGetLastErrorString(char *text, size_t size)
{
    if (size)
        text[0] = 0;
}

int cudnnCreate(void **ret)
{
    fake_enter();
    *ret = fake_object_new(FAKE_DNN_HANDLE, sizeof(struct handle));
    fake_leave();
    return OK;
}

int cudnnDestroy(void *handle)
{
    fake_enter();
    void *object = fake_object_find(handle, FAKE_DNN_HANDLE, "cudnnDestroy");
    if (object)
        fake_object_free(object);
    fake_leave();
    return object ? OK : BAD;
}

int cudnnSetStream(void *handle, void *stream)
{
    fake_enter();
    struct handle *h = fake_object_find(handle, FAKE_DNN_HANDLE, "cudnnSetStream");
    struct fake_stream *s = fake_stream_find(stream, "cudnnSetStream");
    if (h && s) {
        h->stream = stream;
        h->set = true;
    }
    fake_leave();
    return h && s ? OK : BAD;
}

/* ---- descriptors ---- */

static struct fake_dnn_desc *find(const void *d, const char *what)
{
    return fake_object_find(d, FAKE_DNN_DESC, what);
}

int cudnnBackendCreateDescriptor(int kind, hzp_cudnn_descriptor *ret)
{
    fake_enter();
    if (kind != CUDNN_PACK) { /* packs are made for each run */
        fake_make("cudnnBackendCreateDescriptor");
        fake_unsafe_in_capture("cudnnBackendCreateDescriptor");
    }
    struct fake_dnn_desc *d = fake_object_new(FAKE_DNN_DESC, sizeof(*d));
    d->kind = kind;
    *ret = d;
    fake_leave();
    return OK;
}

int cudnnBackendDestroyDescriptor(hzp_cudnn_descriptor handle)
{
    fake_enter();
    struct fake_dnn_desc *d = find(handle, "cudnnBackendDestroyDescriptor");
    if (d) {
        for (int i = 0; i < d->attributes; i++)
            free(d->of[i].bytes);
        fake_object_free(d);
    }
    fake_leave();
    return d ? OK : BAD;
}

const struct fake_dnn_attribute *fake_dnn_find(const struct fake_dnn_desc *d, int name)
{
    for (int i = 0; i < d->attributes; i++)
        if (d->of[i].name == name)
            return &d->of[i];
    return NULL;
}

struct fake_dnn_desc *fake_dnn_at(const struct fake_dnn_desc *d, int name, int64_t i)
{
    const struct fake_dnn_attribute *a = fake_dnn_find(d, name);
    struct fake_dnn_desc *ret = NULL;
    if (a && a->type == CUDNN_AS_DESCRIPTOR && i < a->count)
        memcpy(&ret, a->bytes + (size_t)i * sizeof(ret), sizeof(ret));
    return ret;
}

static size_t size_of(int type)
{
    switch (type) {
    case CUDNN_AS_INT64:
    case CUDNN_AS_DOUBLE:
    case CUDNN_AS_HANDLE:
    case CUDNN_AS_POINTER:
    case CUDNN_AS_DESCRIPTOR:
        return 8;
    case CUDNN_AS_BOOLEAN:
    case CUDNN_AS_CHAR:
        return 1;
    default:
        return 4;
    }
}

int64_t fake_dnn_number(const struct fake_dnn_desc *d, int name, int64_t otherwise)
{
    const struct fake_dnn_attribute *a = fake_dnn_find(d, name);
    int64_t wide = 0;
    if (!a || a->count != 1)
        return otherwise;
    memcpy(&wide, a->bytes, size_of(a->type)); /* little-endian */
    return wide;
}

struct fake_dnn_tensor fake_dnn_tensor_of(struct fake_dnn_desc *d)
{
    struct fake_dnn_tensor t = {.desc = d,
                                .ragged = fake_dnn_at(d, CUDNN_TENSOR_RAGGED, 0),
                                .id = fake_dnn_number(d, CUDNN_TENSOR_ID, 0),
                                .type = (int)fake_dnn_number(d, CUDNN_TENSOR_TYPE, -1),
                                .is_virtual = fake_dnn_number(d, CUDNN_TENSOR_VIRTUAL, 0),
                                .by_value = fake_dnn_number(d, CUDNN_TENSOR_BY_VALUE, 0)};
    const struct fake_dnn_attribute *dim = fake_dnn_find(d, CUDNN_TENSOR_DIMENSIONS),
                                    *stride = fake_dnn_find(d, CUDNN_TENSOR_STRIDES);
    memcpy(t.dim, dim->bytes, sizeof(t.dim));
    memcpy(t.stride, stride->bytes, sizeof(t.stride));
    return t;
}

/* The type that an attribute's values have. */
static int type_of(int name)
{
    switch (name) {
    case CUDNN_POINTWISE_MODE:
        return CUDNN_AS_POINTWISE;
    case CUDNN_REDUCTION_MODE:
        return CUDNN_AS_REDUCTION;
    case CUDNN_HEURISTICS_MODE:
        return CUDNN_AS_HEURISTICS;
    case CUDNN_POINTWISE_PRECISION:
    case CUDNN_TENSOR_TYPE:
    case CUDNN_MATMUL_PRECISION:
    case CUDNN_REDUCTION_PRECISION:
        return CUDNN_AS_TYPE;
    case CUDNN_PLAN_HANDLE:
    case CUDNN_GRAPH_HANDLE:
        return CUDNN_AS_HANDLE;
    case CUDNN_TENSOR_VIRTUAL:
    case CUDNN_TENSOR_BY_VALUE:
        return CUDNN_AS_BOOLEAN;
    case CUDNN_POINTWISE_AXIS:
    case CUDNN_TENSOR_ALIGNMENT:
    case CUDNN_TENSOR_DIMENSIONS:
    case CUDNN_TENSOR_STRIDES:
    case CUDNN_TENSOR_ID:
    case CUDNN_PACK_IDS:
        return CUDNN_AS_INT64;
    case CUDNN_PACK_POINTERS:
    case CUDNN_PACK_SPACE:
        return CUDNN_AS_POINTER;
    default:
        return CUDNN_AS_DESCRIPTOR;
    }
}

int cudnnBackendSetAttribute(hzp_cudnn_descriptor handle, int name, int type, int64_t count,
                             const void *values)
{
    static const char *const what = "cudnnBackendSetAttribute";
    fake_enter();
    struct fake_dnn_desc *d = find(handle, what);
    bool ok = d && !d->final && count > 0 && d->attributes < FAKE_DNN_ATTRIBUTES &&
              !fake_dnn_find(d, name) && type == type_of(name);
    if (d && !ok)
        fake_mistake("%s: attribute %d of descriptor kind %d: type %d, %lld values, %s", what, name,
                     d->kind, type, (long long)count, d->final ? "finalized" : "not finalized");
    for (int64_t i = 0; ok && type == CUDNN_AS_DESCRIPTOR && i < count; i++) {
        struct fake_dnn_desc *other = find(((void *const *)values)[i], what);
        if (other && !other->final)
            fake_mistake("%s: attribute %d is not finalized", what, name);
        ok = other && other->final;
    }
    if (ok) {
        size_t bytes = (size_t)count * size_of(type);
        struct fake_dnn_attribute *a = &d->of[d->attributes++];
        *a = (struct fake_dnn_attribute){name, type, count, malloc(bytes)};
        memcpy(a->bytes, values, bytes);
    }
    fake_leave();
    return ok ? OK : BAD;
}

/* ---- finalizing ---- */

static bool has(const struct fake_dnn_desc *d, const int *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!fake_dnn_find(d, names[i])) {
            fake_mistake("cudnnBackendFinalize: descriptor kind %d lacks attribute %d", d->kind,
                         names[i]);
            return false;
        }
    return true;
}

static bool tensor_check(struct fake_dnn_desc *d)
{
    const struct fake_dnn_attribute *dim = fake_dnn_find(d, CUDNN_TENSOR_DIMENSIONS),
                                    *stride = fake_dnn_find(d, CUDNN_TENSOR_STRIDES);
    if (dim->count != 4 || stride->count != 4) {
        fake_mistake("cudnnBackendFinalize: a tensor without four dimensions");
        return false;
    }
    struct fake_dnn_tensor t = fake_dnn_tensor_of(d);
    bool ok = t.id > 0 && (!t.is_virtual || !t.by_value);
    for (int i = 0; i < 4; i++)
        ok = ok && t.dim[i] > 0 && t.stride[i] > 0;
    if (t.ragged) {
        struct fake_dnn_tensor r = fake_dnn_tensor_of(t.ragged);
        ok = ok && r.type == CUDNN_I32 && r.dim[0] == t.dim[0] + 1 && !r.is_virtual;
    }
    if (!ok)
        fake_mistake("cudnnBackendFinalize: tensor %lld is not valid", (long long)t.id);
    return ok;
}

static bool plan_check(struct fake_dnn_desc *d)
{
    struct fake_dnn_desc *config = fake_dnn_at(d, CUDNN_PLAN_CONFIG, 0);
    int64_t handle = fake_dnn_number(d, CUDNN_PLAN_HANDLE, 0);
    bool ok = config->kind == CUDNN_ENGINE_CONFIG && config->graph &&
              fake_object_find((void *)(intptr_t)handle, FAKE_DNN_HANDLE, "cudnnBackendFinalize");
    if (!ok || config->number < fake_dnn.refused)
        return false;
    d->graph = config->graph;
    d->space = fake_dnn.space;
    plans++;
    return true;
}

#define LIST(...) (const int[]){__VA_ARGS__}, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static bool check(struct fake_dnn_desc *d)
{
    switch (d->kind) {
    case CUDNN_TENSOR:
        return has(d, LIST(CUDNN_TENSOR_TYPE, CUDNN_TENSOR_DIMENSIONS, CUDNN_TENSOR_STRIDES,
                           CUDNN_TENSOR_ID, CUDNN_TENSOR_ALIGNMENT)) &&
               tensor_check(d);
    case CUDNN_OP_MATMUL:
        return has(
            d, LIST(CUDNN_OP_MATMUL_A, CUDNN_OP_MATMUL_B, CUDNN_OP_MATMUL_C, CUDNN_OP_MATMUL_IS));
    case CUDNN_OP_POINTWISE:
        return has(d, LIST(CUDNN_OP_POINTWISE_IS, CUDNN_OP_POINTWISE_X, CUDNN_OP_POINTWISE_Y));
    case CUDNN_OP_REDUCTION:
        return has(d, LIST(CUDNN_OP_REDUCTION_IS, CUDNN_OP_REDUCTION_X, CUDNN_OP_REDUCTION_Y));
    case CUDNN_OP_RESHAPE:
        return has(d, LIST(CUDNN_OP_RESHAPE_X, CUDNN_OP_RESHAPE_Y));
    case CUDNN_OP_PAGED_LOAD:
        return has(d, LIST(CUDNN_OP_PAGED_FROM, CUDNN_OP_PAGED_TABLE, CUDNN_OP_PAGED_CTX,
                           CUDNN_OP_PAGED_Y));
    case CUDNN_GRAPH:
        return has(d, LIST(CUDNN_GRAPH_OPS, CUDNN_GRAPH_HANDLE));
    case CUDNN_ENGINE_HEURISTICS:
        return has(d, LIST(CUDNN_HEURISTICS_GRAPH, CUDNN_HEURISTICS_MODE));
    case CUDNN_PLAN:
        return has(d, LIST(CUDNN_PLAN_CONFIG, CUDNN_PLAN_HANDLE)) && plan_check(d);
    case CUDNN_PACK:
        return has(d, LIST(CUDNN_PACK_IDS, CUDNN_PACK_POINTERS, CUDNN_PACK_SPACE));
    default:
        return true;
    }
}

int cudnnBackendFinalize(hzp_cudnn_descriptor handle)
{
    fake_enter();
    struct fake_dnn_desc *d = find(handle, "cudnnBackendFinalize");
    bool ok = d && !d->final && check(d);
    if (ok)
        d->final = true;
    fake_leave();
    return ok ? OK : d && d->kind == CUDNN_PLAN ? REFUSED : BAD;
}

int cudnnBackendGetAttribute(hzp_cudnn_descriptor handle, int name, int type, int64_t room,
                             int64_t *count, void *values)
{
    static const char *const what = "cudnnBackendGetAttribute";
    fake_enter();
    struct fake_dnn_desc *d = find(handle, what);
    bool ok = d && d->final;
    if (ok && name == CUDNN_HEURISTICS_RESULTS && type == CUDNN_AS_DESCRIPTOR) {
        *count = ENGINES;
        for (int i = 0; ok && i < ENGINES && i < room; i++) {
            struct fake_dnn_desc *config = find(((void **)values)[i], what);
            ok = config && config->kind == CUDNN_ENGINE_CONFIG;
            if (!ok)
                break;
            config->number = i;
            config->graph = fake_dnn_at(d, CUDNN_HEURISTICS_GRAPH, 0);
            config->final = true;
        }
    } else if (ok && name == CUDNN_PLAN_SPACE && type == CUDNN_AS_INT64 && room == 1) {
        *count = 1;
        memcpy(values, &d->space, sizeof(d->space));
    } else {
        ok = false;
    }
    if (!ok)
        fake_mistake("%s: attribute %d", what, name);
    fake_leave();
    return ok ? OK : BAD;
}

/* ---- running ---- */

static int bound_at(const struct fake_dnn_run *run, int64_t id)
{
    for (int i = 0; i < run->bound; i++)
        if (run->id[i] == id)
            return i;
    return -1;
}

/* A tensor that an operation names is bound, to memory of the right kind. */
static void tensor_bound(struct fake_dnn_run *run, struct fake_dnn_desc *d, bool *seen)
{
    if (!d)
        return;
    struct fake_dnn_tensor t = fake_dnn_tensor_of(d);
    int i = t.is_virtual ? -1 : bound_at(run, t.id);
    tensor_bound(run, t.ragged, seen);
    if (t.is_virtual)
        return;
    if (i < 0) {
        fake_mistake("cudnnBackendExecute: tensor %lld is not bound", (long long)t.id);
        return;
    }
    seen[i] = true;
    if (t.by_value)
        memcpy(&run->value[i], run->at[i], sizeof(run->value[i]));
    else if (!fake_is_device(run->at[i]))
        fake_mistake("cudnnBackendExecute: tensor %lld is not device memory", (long long)t.id);
    else if ((uintptr_t)run->at[i] % (uintptr_t)fake_dnn_number(d, CUDNN_TENSOR_ALIGNMENT, 1))
        fake_mistake("cudnnBackendExecute: tensor %lld is not aligned", (long long)t.id);
}

static void all_bound(struct fake_dnn_run *run)
{
    const struct fake_dnn_attribute *ops = fake_dnn_find(run->plan->graph, CUDNN_GRAPH_OPS);
    bool seen[FAKE_DNN_BOUND] = {false};
    for (int64_t i = 0; i < ops->count; i++) {
        struct fake_dnn_desc *op = fake_dnn_at(run->plan->graph, CUDNN_GRAPH_OPS, i);
        for (int k = 0; k < op->attributes; k++) {
            struct fake_dnn_desc *of = fake_dnn_at(op, op->of[k].name, 0);
            if (of && of->kind == CUDNN_TENSOR)
                tensor_bound(run, of, seen);
        }
    }
    for (int i = 0; i < run->bound; i++) {
        if (!seen[i])
            fake_mistake("cudnnBackendExecute: there is no tensor %lld", (long long)run->id[i]);
        if (bound_at(run, run->id[i]) != i)
            fake_mistake("cudnnBackendExecute: tensor %lld is bound twice", (long long)run->id[i]);
    }
}

static void run_plan(const void *args)
{
    struct fake_dnn_run run;
    memcpy(&run, args, sizeof(run));
    struct fake_dnn_desc *plan = find(run.plan, "a run of cuDNN");
    if (!plan || plan->object.id != run.plan_id) {
        fake_mistake("a plan of cuDNN runs after it was destroyed");
        return;
    }
    fake_clock_add(1e3 * fake_dnn.microseconds);
    if (fake_dnn.computes)
        fake_dnn_compute(&run);
    if (fake_dnn.wrong) /* the results lie in the first bytes of the largest matrices: spoil all */
        for (int i = 0; i < run.bound; i++)
            if (fake_is_ours(run.at[i], 64))
                memset(run.at[i], 0x3f, 64);
}

static bool pack_read(const struct fake_dnn_desc *pack, struct fake_dnn_run *ret)
{
    const struct fake_dnn_attribute *ids = fake_dnn_find(pack, CUDNN_PACK_IDS),
                                    *at = fake_dnn_find(pack, CUDNN_PACK_POINTERS);
    if (ids->count != at->count || ids->count > FAKE_DNN_BOUND) {
        fake_mistake("cudnnBackendExecute: %lld tensors and %lld pointers", (long long)ids->count,
                     (long long)at->count);
        return false;
    }
    ret->bound = (int)ids->count;
    memcpy(ret->id, ids->bytes, (size_t)ids->count * 8);
    memcpy(ret->at, at->bytes, (size_t)at->count * 8);
    return true;
}

int cudnnBackendExecute(void *handle, hzp_cudnn_descriptor plan_handle,
                        hzp_cudnn_descriptor pack_handle)
{
    static const char *const what = "cudnnBackendExecute";
    int error = 0;
    fake_enter();
    struct handle *h = fake_object_find(handle, FAKE_DNN_HANDLE, what);
    struct fake_dnn_desc *plan = find(plan_handle, what), *pack = find(pack_handle, what);
    struct fake_stream *stream = h && h->set ? fake_stream_find(h->stream, what) : NULL;
    struct fake_dnn_run run = {.plan = plan};
    bool ok = plan && pack && stream && plan->kind == CUDNN_PLAN && pack->kind == CUDNN_PACK &&
              plan->final && pack->final && pack_read(pack, &run);
    if (!ok)
        fake_mistake("%s: not a plan, a pack and a stream", what);
    if (!ok || fake_fails(what, &error)) {
        fake_leave();
        return error ? error : BAD;
    }
    run.plan_id = plan->object.id;
    all_bound(&run);
    void *space = (void *)(intptr_t)fake_dnn_number(pack, CUDNN_PACK_SPACE, 0);
    if (plan->space && !(fake_is_device(space) && fake_is_ours(space, plan->space)))
        fake_mistake("%s: the workspace leaves its allocation", what);
    struct fake_task *task = fake_put(stream, FAKE_ATTENTION);
    task->args = malloc(sizeof(run));
    task->args_size = sizeof(run);
    memcpy(task->args, &run, sizeof(run));
    task->run = run_plan;
    task->call.size = plan->space;
    if (plan->space)
        fake_touch_copy(stream, "cuDNN's workspace", space, plan->space, true);
    fake_put_done(task);
    fake_leave();
    return OK;
}
