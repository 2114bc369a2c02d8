/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cudnn_prepare.c - before a training begins: lets made-up micro-batches decide who
 * computes its attention, and finds how much workspace that needs. */
#include "device/cuda/cudnn.h"

#include "base/log.h"
#include "device/bf16.h"

/* A micro-batch of made-up documents, and memory for all that its attention touches. */
struct made {
    struct hzp_device *dev;
    struct hzp_mat qkv, out, dout, dqkv;
    float *lse;
    int32_t *row0, *pos0; /* host */
    struct hzp_segs segs;
};

static void made_free(struct made *m)
{
    void *device[] = {m->qkv.ptr, m->out.ptr, m->dout.ptr, m->dqkv.ptr, m->lse};
    for (int i = 0; i < HZP_COUNT(device); i++)
        hzp_device_free(m->dev, HZP_MEM_DEVICE, device[i]);
    hzp_device_free(m->dev, HZP_MEM_HOST, m->row0);
    hzp_device_free(m->dev, HZP_MEM_HOST, m->pos0);
}

static int mat_make(struct made *m, struct hzp_mat *ret, int32_t rows, int32_t cols)
{
    *ret = (struct hzp_mat){NULL, rows, cols, cols, HZP_BF16};
    return hzp_device_alloc(m->dev, HZP_MEM_DEVICE, (size_t)rows * (size_t)cols * 2, &ret->ptr);
}

/* Numbers between -1 and 1. */
static int mat_fill(struct made *m, const struct hzp_mat *mat)
{
    size_t count = (size_t)mat->rows * (size_t)mat->cols;
    uint16_t *host = hzp_xmalloc(count * 2);
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = hzp_bf16_from_f32((float)(int32_t)state * 0x1p-31f);
    }
    int r = hzp_device_copy(m->dev, mat->ptr, host, count * 2);
    free(host);
    return r;
}

static int made_make(struct made *m, const struct hzp_attention_use *use)
{
    const struct hzp_heads *h = &use->heads;
    int32_t narrow = h->heads * h->dim, wide = narrow + 2 * h->kv_heads * h->dim;
    size_t lists = (size_t)(use->rows + 1) * sizeof(int32_t);
    HZP_TRY(mat_make(m, &m->qkv, use->rows, wide));
    HZP_TRY(mat_make(m, &m->dqkv, use->rows, wide));
    HZP_TRY(mat_make(m, &m->out, use->rows, narrow));
    HZP_TRY(mat_make(m, &m->dout, use->rows, narrow));
    HZP_TRY(hzp_device_alloc(m->dev, HZP_MEM_DEVICE, (size_t)use->rows * (size_t)h->heads * 4,
                             (void **)&m->lse));
    HZP_TRY(hzp_device_alloc(m->dev, HZP_MEM_HOST, lists, (void **)&m->row0));
    HZP_TRY(hzp_device_alloc(m->dev, HZP_MEM_HOST, lists, (void **)&m->pos0));
    HZP_TRY(mat_fill(m, &m->qkv));
    return mat_fill(m, &m->dout);
}

/* Documents of three quarters and of a half of a class's rows, as far as they fit. */
static void made_divide(struct made *m, int32_t class_rows, int32_t rows)
{
    int32_t at = 0, count = 0, longest = 0;
    while (at < rows) {
        int32_t length = count % 2 ? class_rows / 2 : class_rows / 4 * 3;
        length = HZP_MIN(length, rows - at);
        m->row0[count] = at;
        m->pos0[count++] = 0;
        longest = HZP_MAX(longest, length);
        at += length;
    }
    m->row0[count] = at;
    m->segs = (struct hzp_segs){m->row0, m->pos0, count, longest, longest};
}

/* Whether micro-batches of so many rows can have documents of the i-th class. */
static bool class_is(int i, int32_t rows)
{
    return hzp_cudnn_class_rows(i) && (i == 0 || hzp_cudnn_class_rows(i - 1) < rows);
}

/* Micro-batches of the i-th class, forward and backward. */
struct both {
    struct hzp_attn_packed_args to;
    struct hzp_attn_packed_bwd_args from;
};

static struct both made_both(struct made *m, const struct hzp_attention_use *use, int i)
{
    made_divide(m, hzp_cudnn_class_rows(i), use->rows);
    struct both both = {
        {.qkv = m->qkv, .out = m->out, .lse = m->lse},
        {.qkv = m->qkv, .out = m->out, .dout = m->dout, .dqkv = m->dqkv, .lse = m->lse}};
    both.to.segs = both.from.segs = m->segs;
    both.to.heads = both.from.heads = use->heads;
    both.to.scale = both.from.scale = use->scale;
    return both;
}

/* The workspace that gradients of a full micro-batch need; 0: what a lane has anyway, or too much
 * of the device's memory.  A micro-batch may have documents of classes that ours compute when they
 * are alone. */
static size_t attn_bytes(struct made *m, const struct hzp_attention_use *use)
{
    bool ours = true;
    size_t most = 0;
    for (int i = 0; class_is(i, use->rows); i++) {
        struct both b = made_both(m, use, i);
        ours &= hzp_cudnn_choice(m->dev, HZP_OP_attn_packed_bwd, &b.from) == HZP_CUDNN_OURS;
    }
    for (int i = 0; class_is(i, use->rows) && !ours; i++) {
        struct both b = made_both(m, use, i);
        size_t room = hzp_cudnn_gradient_room(m->dev, &b.from);
        most = HZP_MAX(most, room);
    }
    return most > HZP_CUDA_SPACE && most < m->dev->mem_total / 32 ? most : 0;
}

/* Computes a micro-batch of each class, which decides; *ret: gradients of one go by cuDNN. */
static int made_run(struct made *m, const struct hzp_attention_use *use, struct hzp_lane *lane,
                    bool *ret)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)m->dev;
    bool to = false, from = false;
    for (int i = 0; class_is(i, use->rows); i++) {
        struct both b = made_both(m, use, i);
        HZP_TRY(hzp_op_attn_packed(lane, &b.to));
        HZP_TRY(hzp_op_attn_packed_bwd(lane, &b.from));
        HZP_TRY(hzp_cuda_check(dev, cudaStreamSynchronize(hzp_cuda_lane(lane)->stream),
                               "trying attention"));
        dev->epoch++; /* the lists are written again */
        to |= hzp_cudnn_choice(m->dev, HZP_OP_attn_packed, &b.to) == HZP_CUDNN_THEIRS;
        from |= hzp_cudnn_choice(m->dev, HZP_OP_attn_packed_bwd, &b.from) == HZP_CUDNN_THEIRS;
    }
    /* An op is computed by the class with most of its work, and needs the plans of the others. */
    for (int i = 0; class_is(i, use->rows); i++) {
        struct both b = made_both(m, use, i);
        if (to)
            hzp_cudnn_plans_make(m->dev, HZP_OP_attn_packed, &b.to);
        if (from)
            hzp_cudnn_plans_make(m->dev, HZP_OP_attn_packed_bwd, &b.from);
    }
    *ret = from;
    return HZP_OK;
}

void hzp_cudnn_prepare(struct hzp_device *base, const struct hzp_attention_use *use)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    struct made m = {.dev = base};
    struct hzp_lane *lane = NULL;
    bool any = false;
    if ((use->heads.dim != 64 && use->heads.dim != 128) || !hzp_cudnn_trains(dev->cudnn, use))
        return;
    int r = made_make(&m, use);
    if (r == HZP_OK)
        dev->attn_bytes = attn_bytes(&m, use);
    if (r == HZP_OK)
        r = hzp_lane_open(base, HZP_BOUND_COMPUTE, &lane);
    if (r == HZP_OK)
        r = made_run(&m, use, lane, &any);
    if (r < 0 || !any)
        dev->attn_bytes = 0;
    if (r < 0) {
        hzp_log(HZP_LOG_WARN, "cuda", "cannot try cuDNN's attention of training: %s, using ours",
                hzp_err_name(r));
        hzp_cudnn_trains(dev->cudnn, NULL);
    }
    hzp_lane_close(lane);
    made_free(&m);
}
