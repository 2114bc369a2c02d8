/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda/cudnn.h"

#include "base/log.h"
#include "device/bf16.h"
#include "device/cuda/algos.h"
#include "device/cuda/cudnn_graph.h"
#include "device/fallback.h"

enum { PLANS_MAX = 64, SIZES = 4, TIMED_RUNS = 3 };
enum mode { CHOOSE, ALWAYS, NEVER };

static const int32_t size_of[SIZES] = {256, 1024, 4096, 16384};

static const size_t LAY_BYTES = HZP_ATTN_LAY_LISTS * HZP_ATTN_LAY_ROW * sizeof(int32_t);

struct entry {
    struct hzp_cudnn_class class;
    struct hzp_cudnn_plan plan; /* plan.plan NULL: refused */
    enum hzp_cudnn_choice verdict;
};

struct hzp_cudnn {
    struct hzp_cudnn_library lib; /* lib.library NULL: there is none */
    char why[160];                /* why not */
    void *handle;
    struct hzp_cuda_algos *algos;
    enum mode mode;
    bool steady;
    bool trains; /* prepared for training */
    bool repeats;
    int32_t train_rows; /* most rows of a micro-batch */
    struct entry entry[PLANS_MAX];
    int entries;
};

/* An op, in the terms of all three. */
struct job {
    enum hzp_op op;
    const void *args;
    enum hzp_cudnn_kind kind;
    struct hzp_heads heads;
    struct hzp_segs segs; /* as the host reads them */
    struct hzp_mat qkv, out, dout, dqkv;
    float *lse;
    float scale;
    struct hzp_kv kv;
    const int32_t *page, *line; /* as the device reads them */
    int32_t page_stride;
    int32_t count[SIZES]; /* segments in each class */
    int most;             /* the class with most of the work */
    bool too_long;        /* only a segment longer than the largest class rules cuDNN out */
};

/* ---- opening ---- */

int hzp_cudnn_open(struct hzp_cuda_algos *algos, struct hzp_cudnn **ret,
                   struct hzp_err_text *reterr)
{
    static const char *const words[] = {[ALWAYS] = "cudnn", [NEVER] = "own", [CHOOSE] = ""};
    const char *file = getenv("HZP_CUDNN");
    int mode = CHOOSE;
    *ret = NULL;
    HZP_TRY(
        hzp_cuda_env("HZP_CUDA_ATTENTION", words, HZP_COUNT(words), "cudnn or own", &mode, reterr));
    if (mode == NEVER || (file && strcmp(file, "0") == 0))
        return HZP_OK;
    struct hzp_cudnn *dnn = hzp_xcalloc(1, sizeof(*dnn));
    dnn->mode = (enum mode)mode;
    dnn->algos = algos;
    if (hzp_cudnn_library_open(&dnn->lib, dnn->why, sizeof(dnn->why)) &&
        dnn->lib.Create(&dnn->handle) != 0) {
        snprintf(dnn->why, sizeof(dnn->why), "the library does not start");
        hzp_cudnn_library_close(&dnn->lib);
    }
    if (dnn->lib.library)
        hzp_log(HZP_LOG_INFO, "cuda", "cudnn=%zu.%zu.%zu", dnn->lib.version / 10000,
                dnn->lib.version / 100 % 100, dnn->lib.version % 100);
    *ret = dnn;
    return HZP_OK;
}

void hzp_cudnn_close(struct hzp_cudnn *dnn)
{
    if (!dnn)
        return;
    for (int i = 0; i < dnn->entries; i++)
        hzp_cudnn_plan_free(&dnn->lib, &dnn->entry[i].plan);
    if (dnn->lib.library)
        dnn->lib.Destroy(dnn->handle);
    hzp_cudnn_library_close(&dnn->lib);
    free(dnn);
}

void hzp_cudnn_steady(struct hzp_cudnn *dnn)
{
    if (dnn)
        dnn->steady = true;
}

size_t hzp_cudnn_version(char *why, size_t room)
{
    struct hzp_cudnn_library lib;
    if (!hzp_cudnn_library_open(&lib, why, room))
        return 0;
    size_t ret = lib.version;
    hzp_cudnn_library_close(&lib);
    return ret;
}

/* ---- what an op asks for ---- */

static int32_t rows_of(const struct job *job, int32_t seg)
{
    return job->segs.row0[seg + 1] - job->segs.row0[seg];
}

static int size_for(int32_t rows)
{
    int size = 0;
    while (size < SIZES && size_of[size] < rows)
        size++;
    return size;
}

static void job_fill(struct job *job, enum hzp_op op, const void *args)
{
    memset(job, 0, sizeof(*job));
    job->op = op;
    job->args = args;
    if (op == HZP_OP_attn_prefill) {
        const struct hzp_attn_paged_args *a = args;
        job->kind = HZP_CUDNN_PAGED;
        job->heads = a->heads, job->segs = a->segs, job->qkv = a->qkv, job->out = a->out;
        job->kv = a->kv, job->page_stride = a->page_stride, job->scale = a->scale;
    } else if (op == HZP_OP_attn_packed) {
        const struct hzp_attn_packed_args *a = args;
        job->kind = HZP_CUDNN_PACKED;
        job->heads = a->heads, job->segs = a->segs, job->qkv = a->qkv, job->out = a->out;
        job->lse = a->lse, job->scale = a->scale;
    } else {
        const struct hzp_attn_packed_bwd_args *a = args;
        job->kind = HZP_CUDNN_PACKED_BWD;
        job->heads = a->heads, job->segs = a->segs, job->qkv = a->qkv, job->out = a->out;
        job->dout = a->dout, job->dqkv = a->dqkv, job->scale = a->scale;
        job->lse = (float *)(uintptr_t)a->lse; /* read only */
    }
}

/* Whether offsets of elements of a matrix fit in 32 bits. */
static bool in_reach(const struct hzp_mat *m)
{
    return (int64_t)m->rows * m->stride <= INT32_MAX;
}

/* Whether cuDNN can be asked for it; counts its segments. */
static bool job_fits(const struct hzp_cudnn *dnn, struct job *job)
{
    bool pages = job->kind == HZP_CUDNN_PAGED;
    if (pages ? job->kv.type != HZP_BF16
              : job->qkv.rows != job->out.rows || (dnn->mode == CHOOSE && !dnn->trains))
        return false;
    if (job->kind == HZP_CUDNN_PACKED_BWD && dnn->repeats)
        return false;
    if (!in_reach(&job->qkv) || !in_reach(&job->out) || !in_reach(&job->dout) ||
        !in_reach(&job->dqkv))
        return false;
    int64_t work[SIZES] = {0};
    for (int32_t i = 0; i < job->segs.count; i++) {
        int32_t rows = rows_of(job, i);
        int size = size_for(rows);
        if (size == SIZES) {
            job->too_long = true;
            return false;
        }
        job->count[size] += rows > 0;
        work[size] += (int64_t)rows * (pages ? job->segs.pos0[i] + rows : rows);
        job->most = work[size] > work[job->most] ? size : job->most;
    }
    return work[job->most] > 0;
}

/* A gradient needs workspace for all rows there is room for, so its room is what a micro-batch can
 * fill: segments of this class have more than a quarter of its rows. */
static int32_t segs_room(const struct hzp_cudnn *dnn, const struct job *job, int size)
{
    int64_t rows = HZP_MAX(dnn->train_rows, size_of[0]), grown = size_of[0];
    if (job->kind != HZP_CUDNN_PACKED_BWD)
        return HZP_ATTN_LAY_SEGS;
    while (grown < rows)
        grown *= 2;
    return (int32_t)HZP_MIN(HZP_MAX(4 * grown / size_of[size], 1), (int64_t)HZP_ATTN_LAY_SEGS);
}

static struct hzp_cudnn_class class_of(const struct hzp_cudnn *dnn, const struct job *job, int size)
{
    bool back = job->kind == HZP_CUDNN_PACKED_BWD, pages = job->kind == HZP_CUDNN_PAGED;
    return (struct hzp_cudnn_class){
        .kind = (int32_t)job->kind,
        .heads = job->heads.heads,
        .kv_heads = job->heads.kv_heads,
        .dim = job->heads.dim,
        .segs = segs_room(dnn, job, size),
        .rows = size_of[size],
        .qkv_stride = job->qkv.stride,
        .out_stride = job->out.stride,
        .dqkv_stride = back ? job->dqkv.stride : 0,
        .dout_stride = back ? job->dout.stride : 0,
        .pages = pages ? job->kv.pages : 0,
        .page_rows = pages ? job->kv.page_rows : 0,
        .page_stride = pages ? job->page_stride : 0,
    };
}

/* Counts what our kernels compute because cuDNN does not. */
static void count(struct hzp_device *dev, const struct hzp_cudnn_class *c, const char *reason)
{
    hzp_device_fallback(dev, HZP_FALLBACK_cudnn, c->heads, c->dim, c->rows, reason);
}

/* The same for a segment that is longer than any class: as one of twice the longest. */
static void count_long(struct hzp_device *dev, const struct job *job)
{
    hzp_device_fallback(dev, HZP_FALLBACK_cudnn, job->heads.heads, job->heads.dim,
                        2 * size_of[SIZES - 1], "a segment has more than 16384 rows");
}

/* ---- plans ---- */

static struct entry *entry_find(struct hzp_cudnn *dnn, const struct hzp_cudnn_class *c)
{
    for (int i = 0; i < dnn->entries; i++)
        if (memcmp(&dnn->entry[i].class, c, sizeof(*c)) == 0)
            return &dnn->entry[i];
    return NULL;
}

/* The entry of a class; NULL: its plan was not made before the device was steady. */
static struct entry *entry_of(struct hzp_cudnn *dnn, struct hzp_device *dev,
                              const struct hzp_cudnn_class *c)
{
    char why[256] = "";
    struct entry *known = entry_find(dnn, c);
    if (known || dnn->steady || dnn->entries == PLANS_MAX)
        return known;
    struct entry *e = &dnn->entry[dnn->entries++];
    e->class = *c;
    if (hzp_cudnn_plan_make(&dnn->lib, dnn->handle, NULL, c, &e->plan, why, sizeof(why)) < 0)
        count(dev, c, why);
    return e;
}

/* What the choice is kept under: with the library's version, and without the number of pages,
 * which differs from start to start. */
struct kept {
    struct hzp_cudnn_class class;
    int32_t mark; /* negative, as no product's */
};

_Static_assert(sizeof(struct kept) <= HZP_CUDA_ALGO_KEY, "it is a key");

static struct kept kept_of(const struct hzp_cudnn *dnn, const struct hzp_cudnn_class *c)
{
    struct kept ret = {.class = *c, .mark = -(int32_t)dnn->lib.version};
    ret.class.pages = 0;
    return ret;
}

/* Who computes a class, if that was decided in this process or is kept. */
static enum hzp_cudnn_choice verdict_of(struct hzp_cudnn *dnn, const struct hzp_cudnn_class *c)
{
    const struct entry *e = entry_find(dnn, c);
    struct kept kept = kept_of(dnn, c);
    if (dnn->mode == ALWAYS)
        return HZP_CUDNN_THEIRS;
    if (e && e->verdict != HZP_CUDNN_UNKNOWN)
        return e->verdict;
    const struct hzp_cuda_algo *known = hzp_cuda_algos_find(dnn->algos, &kept, sizeof(kept));
    return known && known->algo[0] <= HZP_CUDNN_THEIRS ? (enum hzp_cudnn_choice)known->algo[0]
                                                       : HZP_CUDNN_UNKNOWN;
}

/* ---- running ---- */

struct bound {
    int64_t id[HZP_CUDNN_IDS];
    void *at[HZP_CUDNN_IDS];
    int count;
};

static void bind(struct bound *b, const struct hzp_cudnn_plan *plan, enum hzp_cudnn_id id,
                 const void *at)
{
    if (!plan->used[id])
        return;
    b->id[b->count] = id;
    b->at[b->count++] = (void *)(uintptr_t)at;
}

/* What a run needs in the lane's workspace, in this order. */
struct room {
    char *lay, *pages, *lse, *sum, *dq_sum, *space;
    size_t need, dq_bytes;
};

static char *part(struct room *r, char *base, size_t bytes)
{
    char *ret = base + r->need;
    r->need += HZP_ROUND_UP(bytes, (size_t)1024);
    return ret;
}

static struct room room_of(const struct job *job, const struct entry *e, char *base)
{
    struct room r = {.need = 0};
    size_t per_row = (size_t)job->out.rows * (size_t)job->heads.heads * sizeof(float);
    bool back = job->kind == HZP_CUDNN_PACKED_BWD;
    r.dq_bytes = back ? (size_t)job->dqkv.rows * (size_t)job->dqkv.stride * sizeof(float) : 0;
    r.lay = part(&r, base, LAY_BYTES);
    r.pages = part(&r, base, (size_t)e->class.segs * (size_t)e->class.page_stride * 4);
    r.lse = part(&r, base, job->lse || !e->plan.used[HZP_CUDNN_LSE] ? 0 : per_row);
    r.sum = part(&r, base, back ? per_row : 0);
    r.dq_sum = part(&r, base, r.dq_bytes);
    r.space = part(&r, base, e->plan.space);
    return r;
}

/* The memory for a run on this lane. */
static char *memory_of(struct hzp_cuda_lane *lane, const struct job *job, size_t *ret_size)
{
    bool own = job->kind == HZP_CUDNN_PACKED_BWD && lane->attn;
    *ret_size = own ? lane->attn_size : lane->space_size;
    return own ? lane->attn : lane->space;
}

static const char *column(const struct hzp_mat *m, int32_t col)
{
    return (const char *)m->ptr + (size_t)col * 2;
}

static void bind_lists(struct bound *b, const struct hzp_cudnn_plan *plan, const struct room *r)
{
    static const enum hzp_cudnn_id list[HZP_ATTN_LAY_LISTS] = {
        HZP_CUDNN_ROWS,   HZP_CUDNN_CTX,     HZP_CUDNN_AT_QKV, HZP_CUDNN_AT_OUT,
        HZP_CUDNN_AT_LSE, HZP_CUDNN_AT_DQKV, HZP_CUDNN_AT_DOUT};
    for (int i = 0; i < HZP_ATTN_LAY_LISTS; i++)
        bind(b, plan, list[i], r->lay + (size_t)i * HZP_ATTN_LAY_ROW * sizeof(int32_t));
    bind(b, plan, HZP_CUDNN_PAGES_K, r->pages);
    bind(b, plan, HZP_CUDNN_PAGES_V, r->pages);
}

static void bind_all(struct bound *b, const struct hzp_cudnn_plan *plan, const struct job *job,
                     const struct room *r)
{
    static const float low = -1024.0f * 1024 * 1024, one = 1;
    bool pages = job->kind == HZP_CUDNN_PAGED;
    int32_t k = job->heads.heads * job->heads.dim, v = k + job->heads.kv_heads * job->heads.dim;
    b->count = 0;
    bind(b, plan, HZP_CUDNN_Q, job->qkv.ptr);
    bind(b, plan, HZP_CUDNN_K, pages ? job->kv.k : column(&job->qkv, k));
    bind(b, plan, HZP_CUDNN_V, pages ? job->kv.v : column(&job->qkv, v));
    bind(b, plan, HZP_CUDNN_O, job->out.ptr);
    bind(b, plan, HZP_CUDNN_LSE, job->lse ? (const void *)job->lse : r->lse);
    bind(b, plan, HZP_CUDNN_DO, job->dout.ptr);
    bind(b, plan, HZP_CUDNN_DQ, job->dqkv.ptr);
    bind(b, plan, HZP_CUDNN_DK, column(&job->dqkv, k));
    bind(b, plan, HZP_CUDNN_DV, column(&job->dqkv, v));
    bind(b, plan, HZP_CUDNN_SUM, r->sum);
    bind(b, plan, HZP_CUDNN_DQ_SUM, r->dq_sum);
    bind(b, plan, HZP_CUDNN_SCALE, &job->scale);
    bind(b, plan, HZP_CUDNN_LOW, &low);
    bind(b, plan, HZP_CUDNN_ONE, &one);
    bind_lists(b, plan, r);
}

/* 0, or the library's error. */
static int execute(struct hzp_cudnn *dnn, struct hzp_cuda_lane *lane, const struct entry *e,
                   const struct job *job, const struct room *r)
{
    struct hzp_cudnn_library *lib = &dnn->lib;
    hzp_cudnn_descriptor pack = NULL;
    struct bound b;
    bind_all(&b, &e->plan, job, r);
    int s = lib->SetStream(dnn->handle, lane->stream);
    if (s == 0)
        s = lib->BackendCreateDescriptor(CUDNN_PACK, &pack);
    if (s == 0)
        s = lib->BackendSetAttribute(pack, CUDNN_PACK_IDS, CUDNN_AS_INT64, b.count, b.id);
    if (s == 0)
        s = lib->BackendSetAttribute(pack, CUDNN_PACK_POINTERS, CUDNN_AS_POINTER, b.count, b.at);
    if (s == 0)
        s = lib->BackendSetAttribute(pack, CUDNN_PACK_SPACE, CUDNN_AS_POINTER, 1, &r->space);
    if (s == 0)
        s = lib->BackendFinalize(pack);
    if (s == 0)
        s = lib->BackendExecute(dnn->handle, e->plan.plan, pack);
    if (pack)
        lib->BackendDestroyDescriptor(pack);
    return s;
}

static struct hzp_attn_lay lay_begin(const struct job *job, const struct entry *e,
                                     const struct room *r)
{
    struct hzp_attn_lay lay = {.to = (int32_t *)r->lay, .room = e->class.segs};
    const int32_t stride[HZP_ATTN_LAY_MATS] = {job->qkv.stride, job->out.stride, job->heads.heads,
                                               job->dqkv.stride, job->dout.stride};
    memcpy(lay.stride, stride, sizeof(stride));
    if (job->kind == HZP_CUDNN_PAGED) {
        lay.pages = (int32_t *)r->pages;
        lay.page = job->page, lay.line = job->line;
        lay.page_stride = job->page_stride, lay.page_rows = job->kv.page_rows;
    }
    return lay;
}

/* Runs the plan for the op's segments of one class, as many at a time as it has room for. */
static int run_class(struct hzp_cudnn *dnn, struct hzp_cuda_lane *lane, const struct entry *e,
                     const struct job *job, const struct room *r)
{
    struct hzp_attn_lay lay = lay_begin(job, e, r);
    for (int32_t i = 0; i <= job->segs.count; i++) {
        bool last = i == job->segs.count;
        int32_t rows = last ? 0 : rows_of(job, i);
        if (lay.segs > 0 && (last || lay.segs == lay.room)) {
            HZP_TRY(hzp_cuda_attn_lay(&lane->base, &lay));
            if (execute(dnn, lane, e, job, r) != 0)
                return HZP_EUNSUP;
            lay.segs = 0;
        }
        if (rows == 0 || size_of[size_for(rows)] != e->class.rows)
            continue;
        lay.seg[lay.segs] = i;
        lay.row0[lay.segs] = job->segs.row0[i];
        lay.rows[lay.segs] = rows;
        lay.ctx[lay.segs++] = job->kind == HZP_CUDNN_PAGED ? job->segs.pos0[i] + rows : rows;
    }
    return HZP_OK;
}

/* The entries of the op's classes; NULL: it has no segments of this class. */
struct ready {
    struct entry *entry[SIZES];
};

/* Whether all its classes have plans, and room on this lane. */
static bool ready_make(struct hzp_cudnn *dnn, struct hzp_lane *lane, const struct job *job,
                       struct ready *ret)
{
    size_t size;
    memset(ret, 0, sizeof(*ret));
    memory_of(hzp_cuda_lane(lane), job, &size);
    for (int i = 0; i < SIZES; i++) {
        if (job->count[i] == 0)
            continue;
        struct hzp_cudnn_class c = class_of(dnn, job, i);
        struct entry *e = ret->entry[i] = entry_of(dnn, lane->dev, &c);
        const char *lacks = !e              ? "no plan was made before the end of the start"
                            : !e->plan.plan ? "cuDNN has no plan"
                            : room_of(job, e, NULL).need > size ? "its workspace has no room"
                                                                : NULL;
        if (lacks) {
            count(lane->dev, &c, lacks);
            return false;
        }
    }
    return true;
}

/* Queues the op's runs.  HZP_EUNSUP: the library failed, and is not asked for these classes any
 * more. */
static int run(struct hzp_cudnn *dnn, struct hzp_lane *base, const struct job *job,
               const struct ready *ready)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    size_t size;
    char *memory = memory_of(lane, job, &size);
    struct job staged = *job;
    int r = HZP_OK;
    if (job->kind == HZP_CUDNN_PAGED) {
        struct hzp_attn_paged_args a = *(const struct hzp_attn_paged_args *)job->args;
        hzp_cuda_pages_staged(base, &a);
        staged.page = a.page, staged.line = a.line;
    }
    for (int i = 0; i < SIZES && r == HZP_OK; i++) {
        struct entry *e = ready->entry[i];
        if (!e)
            continue;
        struct room room = room_of(job, e, memory);
        if (room.dq_bytes) /* one class after the other adds to it, and narrows its own rows */
            r = hzp_cuda_check(hzp_cuda_device(base),
                               cudaMemsetAsync(room.dq_sum, 0, room.dq_bytes, lane->stream),
                               "attn_packed_bwd");
        if (r == HZP_OK)
            r = run_class(dnn, lane, e, &staged, &room);
        if (r == HZP_EUNSUP) {
            hzp_cudnn_plan_free(&dnn->lib, &e->plan);
            count(base->dev, &e->class, "cuDNN failed to run its plan");
        }
    }
    return r;
}

/* ---- choosing ---- */

/* The results of an op: memory of one type. */
struct result {
    const void *at;
    size_t bytes;
    bool f32;
    void *copy; /* our results, copied to the host */
};

static size_t span_of(const struct hzp_mat *m)
{
    return ((size_t)(m->rows - 1) * (size_t)m->stride + (size_t)m->cols) * 2;
}

static int results_of(const struct job *job, struct result ret[2])
{
    const struct hzp_mat *m = job->kind == HZP_CUDNN_PACKED_BWD ? &job->dqkv : &job->out;
    ret[0] = (struct result){.at = m->ptr, .bytes = span_of(m)};
    if (job->kind != HZP_CUDNN_PACKED || !job->lse)
        return 1;
    ret[1] = (struct result){
        .at = job->lse, .bytes = (size_t)job->out.rows * (size_t)job->heads.heads * 4, .f32 = true};
    return 2;
}

/* Fills what the op writes, and nothing beside it, with NaNs: what one way leaves out must not look
 * like what the other has left there. */
static bool results_blank(struct hzp_cuda_lane *lane, const struct job *job)
{
    bool back = job->kind == HZP_CUDNN_PACKED_BWD, ok = true;
    const struct hzp_mat *m = back ? &job->dqkv : &job->out;
    int32_t heads = job->heads.heads + (back ? 2 * job->heads.kv_heads : 0);
    size_t bytes = (size_t)heads * (size_t)job->heads.dim * 2, pitch = (size_t)m->stride * 2;
    size_t lse = (size_t)job->heads.heads * sizeof(float);
    for (int32_t i = 0; i < job->segs.count && ok; i++) {
        size_t row0 = (size_t)job->segs.row0[i], rows = (size_t)rows_of(job, i);
        char *at = (char *)m->ptr + row0 * pitch;
        size_t pieces = pitch == bytes ? rows > 0 : rows;
        for (size_t k = 0; k < pieces && ok; k++, at += pitch)
            ok = cudaMemsetAsync(at, 0xff, pitch == bytes ? rows * bytes : bytes, lane->stream) ==
                 cudaSuccess;
        if (ok && rows > 0 && job->kind == HZP_CUDNN_PACKED && job->lse)
            ok = cudaMemsetAsync((char *)job->lse + row0 * lse, 0xff, rows * lse, lane->stream) ==
                 cudaSuccess;
    }
    return ok;
}

static bool fetch(struct hzp_cuda_lane *lane, const struct result *r, void *to)
{
    return cudaMemcpyAsync(to, r->at, r->bytes, cudaMemcpyDeviceToHost, lane->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(lane->stream) == cudaSuccess;
}

static float value(const void *p, size_t i, bool f32)
{
    return f32 ? ((const float *)p)[i] : hzp_bf16_to_f32(((const uint16_t *)p)[i]);
}

/* Whether results agree: each within a fiftieth of the largest, of gradients a twentieth, and bits
 * that neither wrote are the same. */
static bool agree(const struct result *ours, const void *theirs, bool gradients)
{
    size_t count = ours->bytes / (ours->f32 ? 4 : 2);
    float most = 0, apart = 0;
    if (memcmp(ours->copy, theirs, ours->bytes) == 0)
        return true;
    for (size_t i = 0; i < count; i++) {
        float x = value(ours->copy, i, ours->f32), y = value(theirs, i, ours->f32);
        if (memcmp(&x, &y, sizeof(x)) == 0)
            continue;
        if (!isfinite(x) || !isfinite(y))
            return false;
        most = fmaxf(most, fabsf(x));
        apart = fmaxf(apart, fabsf(x - y));
    }
    return apart <= most * (ours->f32 ? 0.002f : gradients ? 0.05f : 0.02f);
}

/* Milliseconds of the quickest run after a first one; negative: it does not run. */
static float time_of(struct hzp_cudnn *dnn, struct hzp_lane *base, const struct job *job,
                     const struct ready *ready, hzp_op_fn *own)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    cudaEvent_t event[2] = {NULL, NULL};
    float best = -1, ms = -1;
    bool ok =
        cudaEventCreate(&event[0]) == cudaSuccess && cudaEventCreate(&event[1]) == cudaSuccess;
    for (int i = 0; ok && i <= TIMED_RUNS; i++) {
        ok = cudaEventRecord(event[0], lane->stream) == cudaSuccess &&
             (own ? own(base, job->args) : run(dnn, base, job, ready)) == HZP_OK &&
             cudaEventRecord(event[1], lane->stream) == cudaSuccess &&
             cudaEventSynchronize(event[1]) == cudaSuccess &&
             cudaEventElapsedTime(&ms, event[0], event[1]) == cudaSuccess;
        if (ok && (i == 1 || (i > 1 && ms < best)))
            best = ms;
    }
    for (int i = 0; i < 2; i++)
        if (event[i])
            cudaEventDestroy(event[i]);
    return ok ? best : -1;
}

/* Computes the op by both.  false: cuDNN fails, or its results are others. */
static bool compare(struct hzp_cudnn *dnn, struct hzp_lane *base, const struct job *job,
                    const struct ready *ready, hzp_op_fn *own, float ret_ms[2])
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct result result[2];
    int results = results_of(job, result);
    bool same = results_blank(lane, job);
    ret_ms[0] = time_of(dnn, base, job, ready, own);
    for (int i = 0; i < results; i++) {
        result[i].copy = hzp_xmalloc(result[i].bytes);
        same = fetch(lane, &result[i], result[i].copy) && same;
    }
    same = results_blank(lane, job) && same;
    ret_ms[1] = time_of(dnn, base, job, ready, NULL);
    for (int i = 0; i < results; i++) {
        void *theirs = hzp_xmalloc(result[i].bytes);
        same = same && fetch(lane, &result[i], theirs) &&
               agree(&result[i], theirs, job->kind == HZP_CUDNN_PACKED_BWD);
        free(theirs);
        free(result[i].copy);
    }
    return same && ret_ms[0] >= 0 && ret_ms[1] >= 0;
}

static const char *const kind_name[HZP_CUDNN_KINDS] = {"packed", "packed_bwd", "prefill"};

/* Decides on this op who computes its class; keeps the choice. */
static void decide(struct hzp_cudnn *dnn, struct hzp_lane *lane, const struct job *job,
                   const struct ready *ready, hzp_op_fn *own)
{
    struct entry *e = ready->entry[job->most];
    struct kept kept = kept_of(dnn, &e->class);
    uint64_t choice[8] = {HZP_CUDNN_OURS};
    float ms[2] = {-1, -1};
    e->verdict = HZP_CUDNN_OURS;
    if (!compare(dnn, lane, job, ready, own, ms)) {
        count(lane->dev, &e->class, "its results are not ours, or it does not run");
        hzp_cudnn_plan_free(&dnn->lib, &e->plan);
        return;
    }
    e->verdict = ms[1] < ms[0] ? HZP_CUDNN_THEIRS : HZP_CUDNN_OURS;
    hzp_log(HZP_LOG_INFO, "cuda",
            "attention=%s class=%d rows=%d segments=%d own_ms=%.4f cudnn_ms=%.4f by=%s",
            kind_name[job->kind], e->class.rows, job->out.rows, job->segs.count, (double)ms[0],
            (double)ms[1], e->verdict == HZP_CUDNN_THEIRS ? "cudnn" : "own");
    choice[0] = (uint64_t)e->verdict;
    hzp_cuda_algos_add(dnn->algos, &kept, sizeof(kept), choice, true);
}

int hzp_cudnn_attention(struct hzp_lane *lane, enum hzp_op op, const void *args, hzp_op_fn *own)
{
    struct hzp_cuda_device *dev = hzp_cuda_device(lane);
    struct hzp_cudnn *dnn = dev->cudnn;
    struct job job;
    struct ready ready;
    if (!dnn || dev->capturing)
        return own(lane, args);
    job_fill(&job, op, args);
    if (!job_fits(dnn, &job)) {
        if (job.too_long)
            count_long(lane->dev, &job);
        return own(lane, args);
    }
    struct hzp_cudnn_class most = class_of(dnn, &job, job.most);
    if (!dnn->lib.library) {
        count(lane->dev, &most, dnn->why);
        return own(lane, args);
    }
    enum hzp_cudnn_choice verdict = verdict_of(dnn, &most);
    bool late = verdict == HZP_CUDNN_UNKNOWN && dnn->steady;
    if (late)
        count(lane->dev, &most, "it was not timed before the end of the start");
    if (late || verdict == HZP_CUDNN_OURS || !ready_make(dnn, lane, &job, &ready))
        return own(lane, args);
    if (verdict == HZP_CUDNN_UNKNOWN) {
        decide(dnn, lane, &job, &ready, own);
        verdict = ready.entry[job.most]->verdict;
    }
    if (verdict != HZP_CUDNN_THEIRS)
        return own(lane, args);
    int r = run(dnn, lane, &job, &ready);
    return r == HZP_EUNSUP ? own(lane, args) : r;
}

/* ---- for cudnn_prepare.c ---- */

int32_t hzp_cudnn_class_rows(int i)
{
    return i < SIZES ? size_of[i] : 0;
}

bool hzp_cudnn_trains(struct hzp_cudnn *dnn, const struct hzp_attention_use *use)
{
    if (!dnn || dnn->steady)
        return false;
    dnn->trains = use != NULL;
    dnn->repeats = use && use->repeats;
    dnn->train_rows = use ? use->rows : 0;
    return dnn->lib.library; /* without it, that is counted with each op */
}

size_t hzp_cudnn_gradient_room(struct hzp_device *dev, const struct hzp_attn_packed_bwd_args *args)
{
    struct hzp_cudnn *dnn = ((struct hzp_cuda_device *)dev)->cudnn;
    struct job job;
    job_fill(&job, HZP_OP_attn_packed_bwd, args);
    if (!job_fits(dnn, &job))
        return 0;
    struct hzp_cudnn_class c = class_of(dnn, &job, job.most);
    const struct entry *e = entry_of(dnn, dev, &c);
    return e && e->plan.plan ? room_of(&job, e, NULL).need : 0;
}

enum hzp_cudnn_choice hzp_cudnn_choice(struct hzp_device *dev, enum hzp_op op, const void *args)
{
    struct hzp_cudnn *dnn = ((struct hzp_cuda_device *)dev)->cudnn;
    struct job job;
    job_fill(&job, op, args);
    if (!job_fits(dnn, &job))
        return HZP_CUDNN_OURS;
    struct hzp_cudnn_class c = class_of(dnn, &job, job.most);
    return verdict_of(dnn, &c);
}

void hzp_cudnn_plans_make(struct hzp_device *dev, enum hzp_op op, const void *args)
{
    struct hzp_cudnn *dnn = ((struct hzp_cuda_device *)dev)->cudnn;
    struct job job;
    job_fill(&job, op, args);
    for (int i = 0; job_fits(dnn, &job) && i < SIZES; i++) {
        struct hzp_cudnn_class c = class_of(dnn, &job, i);
        if (job.count[i])
            entry_of(dnn, dev, &c);
    }
}
