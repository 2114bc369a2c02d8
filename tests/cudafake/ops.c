/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cudafake/ops.h"

#include "device/backend.h"
#include "device/bf16.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ARGS_MAX = 512 };

struct behind {
    enum hzp_op op;
    _Alignas(16) unsigned char args[ARGS_MAX];
};

static hzp_op_fn *inner[HZP_OP_COUNT], *reference[HZP_OP_COUNT];
static struct hzp_device *ref;
static struct hzp_lane *ref_lane;

static void run(const void *args)
{
    struct behind b;
    memcpy(&b, args, sizeof(b));
    if (reference[b.op](ref_lane, b.args) < 0)
        abort();
}

/* The staged copy that the kernels read instead of ptr. */
static const int32_t *staged(struct hzp_lane *base, const int32_t *ptr, int64_t count)
{
    const struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    if (lane->stage_epoch == hzp_cuda_device(base)->epoch)
        for (int i = 0; i < lane->stageds; i++)
            if (lane->staged[i].ptr == ptr && lane->staged[i].size >= (size_t)count * sizeof(*ptr))
                return lane->staged[i].copy;
    return ptr;
}

static void read_staged(struct hzp_lane *lane, struct behind *b)
{
    void *args = b->args;
    switch (b->op) {
    case HZP_OP_rope: {
        struct hzp_rope_args *a = args;
        a->pos = staged(lane, a->pos, a->x.rows);
        a->slot = staged(lane, a->slot, a->x.rows);
        break;
    }
    case HZP_OP_rope_bwd: {
        struct hzp_rope_bwd_args *a = args;
        a->pos = staged(lane, a->pos, a->dy.rows);
        break;
    }
    case HZP_OP_embed_bwd: {
        struct hzp_embed_bwd_args *a = args;
        a->id = staged(lane, a->id, a->dy.rows);
        break;
    }
    case HZP_OP_sample: {
        struct hzp_sample_args *a = args;
        int64_t words = a->logits.rows * (int64_t)(sizeof(*a->row) / sizeof(int32_t));
        a->row = (const void *)staged(lane, (const void *)a->row, words);
        break;
    }
    case HZP_OP_attn_decode:
    case HZP_OP_attn_prefill: {
        struct hzp_attn_paged_args *a = args;
        a->segs.row0 = staged(lane, a->segs.row0, a->segs.count + 1);
        a->segs.pos0 = staged(lane, a->segs.pos0, a->segs.count);
        if (a->table)
            a->line = staged(lane, a->line, a->segs.count);
        else
            a->page = staged(lane, a->page, (int64_t)a->segs.count * a->page_stride);
        break;
    }
    default:
        break;
    }
}

/* ---- what it touches ---- */

/* An access, with a copy of the arguments that it points to. */
struct borrowing {
    struct hzp_access access;
    _Alignas(16) unsigned char args[ARGS_MAX];
};

static void own(struct borrowing *b, const void *data)
{
    memcpy(b, data, sizeof(*b));
    if (b->access.append)
        b->access.append = (const struct hzp_rope_args *)b->args;
    if (b->access.attend)
        b->access.attend = (const struct hzp_attn_paged_args *)b->args;
}

static bool meet(const void *a, const void *b)
{
    struct borrowing x, y;
    own(&x, a);
    own(&y, b);
    return hzp_access_meet(&x.access, &y.access);
}

/* Declares what the op's declaration says, and the lane's own memory, which only this lane uses. */
static void tell(struct hzp_lane *base, enum hzp_op op, const void *args)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_access access[HZP_ACCESS_MAX];
    struct borrowing data[HZP_ACCESS_MAX];
    struct fake_touch touch[HZP_ACCESS_MAX + 3];
    int count = hzp_op_access(op, args, access);
    memset(data, 0, sizeof(data));
    for (int i = 0; i < count; i++) {
        data[i].access = access[i];
        bool slots = access[i].append || access[i].attend;
        bool whole = access[i].width >= access[i].stride ||
                     access[i].end - access[i].begin == access[i].width;
        if (slots)
            memcpy(data[i].args, args, hzp_op_args_size(op));
        touch[i] = (struct fake_touch){.begin = access[i].begin,
                                       .end = access[i].end,
                                       .writes = access[i].writes,
                                       .name = hzp_op_name(op)};
        if (slots || !whole) { /* otherwise begin and end describe it exactly */
            touch[i].data = &data[i];
            touch[i].size = sizeof(data[i]);
        }
    }
    touch[count++] = (struct fake_touch){.begin = (uintptr_t)lane->scratch,
                                         .writes = true,
                                         .end = (uintptr_t)lane->scratch + lane->scratch_size,
                                         .name = "scratch memory"};
    if (lane->space_size)
        touch[count++] = (struct fake_touch){.begin = (uintptr_t)lane->space,
                                             .writes = true,
                                             .end = (uintptr_t)lane->space + lane->space_size,
                                             .name = "a product's workspace"};
    if (lane->attn)
        touch[count++] = (struct fake_touch){.begin = (uintptr_t)lane->attn,
                                             .writes = true,
                                             .end = (uintptr_t)lane->attn + lane->attn_size,
                                             .name = "the workspace of gradients"};
    fake_touches(lane->stream, touch, count, meet);
}

/* What the kernel behind a product of e4m3 does that was written as BF16 (matmul.c, by_half). */
struct add {
    struct hzp_matmul_args a;
    const uint16_t *half; /* [rows][cols] */
};

static void run_add(const void *args)
{
    const struct add *add = args;
    const struct hzp_mat *c = &add->a.c, *from = add->a.from.ptr ? &add->a.from : c;
    for (int32_t r = 0; r < c->rows; r++)
        for (int32_t j = 0; j < c->cols; j++) {
            float *y = (float *)c->ptr + (size_t)r * (size_t)c->stride + j;
            const float *x = (const float *)from->ptr + (size_t)r * (size_t)from->stride + j;
            *y = (add->a.accumulate ? *x : 0) +
                 hzp_bf16_to_f32(add->half[(size_t)r * (size_t)c->cols + (size_t)j]);
        }
}

static int issue(struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    struct behind b;
    int products = fake_count(FAKE_PRODUCT), kernels = fake_count(FAKE_KERNEL);
    int attention = fake_count(FAKE_ATTENTION);
    int r = inner[op](lane, args);
    if (r >= 0 && hzp_cuda_lane(lane)->stage)
        tell(lane, op, args);
    if (r >= 0 && op == HZP_OP_matmul && fake_count(FAKE_PRODUCT) > products &&
        fake_count(FAKE_KERNEL) > kernels) {
        struct add add = {*(const struct hzp_matmul_args *)args,
                          (const uint16_t *)(const void *)hzp_cuda_lane(lane)->scratch};
        fake_then(hzp_cuda_lane(lane)->stream, run_add, &add, sizeof(add));
        return r;
    }
    if (r < 0 || fake_count(FAKE_PRODUCT) > products || fake_count(FAKE_KERNEL) == kernels)
        return r;
    if (op == HZP_OP_collective) /* the stand-in for NCCL, and for sums in order attach.c */
        return r;
    if (fake_count(FAKE_ATTENTION) > attention && fake_dnn.computes)
        return r;
    memset(&b, 0, sizeof(b));
    b.op = op;
    if (hzp_op_args_size(op) > sizeof(b.args))
        abort();
    memcpy(b.args, args, hzp_op_args_size(op));
    read_staged(lane, &b);
    fake_then(hzp_cuda_lane(lane)->stream, run, &b, sizeof(b));
    return r;
}

#define X(name, class_)                                                                            \
    static int fake_##name(struct hzp_lane *lane, const void *args)                                \
    {                                                                                              \
        return issue(lane, HZP_OP_##name, args);                                                   \
    }
HZP_OPS(X)
#undef X

/* The reference has a device and a lane of its own that live as long as the process. */
void fake_attach(struct hzp_device *dev)
{
    if (!ref && (hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &ref, NULL) < 0 ||
                 hzp_lane_open(ref, HZP_BOUND_COMPUTE, &ref_lane) < 0))
        abort();
    hzp_ref_fill(reference);
    memcpy(inner, dev->op, sizeof(inner));
#define X(name, class_) dev->op[HZP_OP_##name] = fake_##name;
    HZP_OPS(X)
#undef X
}

static void ref_close(void)
{
    hzp_lane_close(ref_lane);
    hzp_device_close(ref);
    ref_lane = NULL;
    ref = NULL;
}

struct hzp_device *fake_open(unsigned seed, const char *lanes, const char *cache)
{
    struct hzp_device *dev = NULL;
    struct hzp_err_text why = {0};
    setenv("HZP_CUDA_LANES", lanes ? lanes : "", 1);
    setenv("XDG_CACHE_HOME", cache ? cache : "", 1);
    setenv("HOME", "", 1);
    setenv("HZP_CUDA_TUNE", "0", 0); /* tests count products: tuning only on request */
    fake_reset(seed);
    int r = hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &dev, &why);
    assert_string_equal(why.text, "");
    assert_int_equal(r, HZP_OK);
    fake_attach(dev);
    return dev;
}

void fake_close(struct hzp_device *dev)
{
    hzp_device_close(dev);
    ref_close();
    assert_string_equal(fake_leaks(), "");
    assert_string_equal(fake_mistakes(), "");
}
