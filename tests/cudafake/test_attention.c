/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_attention.c - attention by cuDNN: what its graphs compute, who is chosen,
 * what is kept, and when our kernels compute instead. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/bf16.h"
#include "device/cuda/cudnn.h"
#include "device/fallback.h"
#include "tests/cudafake/ops.h"

enum {
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 64,
    ROWS = 1024,
    TRAINED = 512,
    PAGES = 24,
    PAGE_ROWS = 16,
    STRIDE = 20
};
enum {
    NARROW = HEADS * DIM,
    WIDE = (HEADS + 2 * KV_HEADS) * DIM,
    KV = PAGES * PAGE_ROWS * KV_HEADS * DIM
};

int __real_hzp_cuda_attn_lay(struct hzp_lane *lane, const struct hzp_attn_lay *lay);
int __wrap_hzp_cuda_attn_lay(struct hzp_lane *lane, const struct hzp_attn_lay *lay);

/* What the kernel writes, in a plain way. */
static void run_lay(const void *args)
{
    struct hzp_attn_lay a;
    memcpy(&a, args, sizeof(a));
    memset(a.to, 0x55, HZP_ATTN_LAY_LISTS * HZP_ATTN_LAY_ROW * sizeof(*a.to));
    for (int i = 0; i <= a.room; i++) {
        bool is = i < a.segs;
        int from = is ? a.row0[i] : a.row0[a.segs - 1] + a.rows[a.segs - 1];
        for (int k = 0; k < HZP_ATTN_LAY_MATS; k++)
            a.to[(2 + k) * HZP_ATTN_LAY_ROW + i] = from * a.stride[k];
        if (i == a.room)
            break;
        a.to[i] = is ? a.rows[i] : 0;
        a.to[HZP_ATTN_LAY_ROW + i] = is ? a.ctx[i] : 0;
        for (int p = 0; a.pages && is && p < a.page_stride; p++) {
            int pages = (a.ctx[i] + a.page_rows - 1) / a.page_rows, seg = a.seg[i];
            const int32_t *list = a.page + (a.line ? a.line[seg] : seg) * a.page_stride;
            a.pages[i * a.page_stride + p] = list[p < pages ? p : 0];
        }
    }
}

int __wrap_hzp_cuda_attn_lay(struct hzp_lane *lane, const struct hzp_attn_lay *lay)
{
    int r = __real_hzp_cuda_attn_lay(lane, lay);
    fake_then(hzp_cuda_lane(lane)->stream, run_lay, lay, sizeof(*lay));
    return r;
}

/* ---- a device with operands, and the same on the host for the reference ---- */

enum { QKV, OUT, DOUT, DQKV, LSE, KEYS, VALUES, MATS };
static const size_t bytes_of[MATS] = {ROWS * WIDE * 2, ROWS *NARROW * 2, ROWS *NARROW * 2,
                                      ROWS *WIDE * 2,  ROWS *HEADS * 4,  KV * 2,
                                      KV * 2};

static struct {
    struct hzp_device *dev, *ref;
    struct hzp_lane *lane, *ref_lane;
    struct hzp_fence *fence;
    char *mem[MATS], *host[MATS];
    int32_t *row0, *pos0, *page, *line; /* pinned */
    int32_t *table;                     /* device */
    int32_t count, longest, ctx;
    uint32_t state;
} rig;

static float draw(void)
{
    rig.state = rig.state * 1664525u + 1013904223u;
    return (float)(int32_t)rig.state * 0x1p-31f;
}

static void rig_open(const char *way, const char *cache)
{
    memset(&rig, 0, sizeof(rig));
    setenv("HZP_CUDA_ATTENTION", way ? way : "", 1);
    rig.dev = fake_open(1, NULL, cache);
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &rig.ref, NULL),
                     0);
    assert_int_equal(hzp_lane_open(rig.ref, HZP_BOUND_COMPUTE, &rig.ref_lane), 0);
    assert_int_equal(hzp_fence_open(rig.dev, &rig.fence), 0);
    for (int i = 0; i < MATS; i++) {
        assert_int_equal(
            hzp_device_alloc(rig.dev, HZP_MEM_DEVICE, bytes_of[i], (void **)&rig.mem[i]), 0);
        rig.host[i] = malloc(bytes_of[i]);
        for (size_t k = 0; k < bytes_of[i] / 2; k++)
            ((uint16_t *)rig.host[i])[k] = hzp_bf16_from_f32(draw());
        assert_int_equal(hzp_device_copy(rig.dev, rig.mem[i], rig.host[i], bytes_of[i]), 0);
    }
    int32_t **list[] = {&rig.row0, &rig.pos0, &rig.page, &rig.line};
    for (int i = 0; i < 4; i++)
        assert_int_equal(hzp_device_alloc(rig.dev, HZP_MEM_HOST, 8192, (void **)list[i]), 0);
    assert_int_equal(hzp_device_alloc(rig.dev, HZP_MEM_DEVICE, 8192, (void **)&rig.table), 0);
}

static void lane_open(void)
{
    assert_int_equal(hzp_lane_open(rig.dev, HZP_BOUND_COMPUTE, &rig.lane), 0);
}

static void wait_for(struct hzp_lane *lane)
{
    assert_int_equal(hzp_fence_record(rig.fence, lane), 0);
    assert_int_equal(hzp_fence_wait(rig.fence), 0);
}

static void rig_close(void)
{
    for (int i = 0; i < MATS; i++) {
        hzp_device_free(rig.dev, HZP_MEM_DEVICE, rig.mem[i]);
        free(rig.host[i]);
    }
    int32_t *list[] = {rig.row0, rig.pos0, rig.page, rig.line};
    for (int i = 0; i < 4; i++)
        hzp_device_free(rig.dev, HZP_MEM_HOST, list[i]);
    hzp_device_free(rig.dev, HZP_MEM_DEVICE, rig.table);
    hzp_fence_close(rig.fence);
    hzp_lane_close(rig.lane);
    hzp_lane_close(rig.ref_lane);
    hzp_device_close(rig.ref);
    fake_close(rig.dev);
    fake_dnn = (struct fake_dnn){.space = 1 << 16};
}

static void documents(int count, const int32_t *rows)
{
    rig.count = count;
    rig.longest = rig.row0[0] = 0;
    for (int i = 0; i < count; i++) {
        rig.pos0[i] = 0;
        rig.row0[i + 1] = rig.row0[i] + rows[i];
        rig.longest = rows[i] > rig.longest ? rows[i] : rig.longest;
    }
    rig.ctx = rig.longest;
}

static struct hzp_mat mat(char *const *mem, int which, int32_t cols)
{
    return (struct hzp_mat){mem[which], rig.row0[rig.count], cols, cols, HZP_BF16};
}

static struct hzp_segs segs(void)
{
    return (struct hzp_segs){rig.row0, rig.pos0, rig.count, rig.longest, rig.ctx};
}

static const struct hzp_heads heads = {HEADS, KV_HEADS, DIM};

static struct hzp_attn_packed_args forward(char *const *mem)
{
    return (struct hzp_attn_packed_args){.qkv = mat(mem, QKV, WIDE),
                                         .out = mat(mem, OUT, NARROW),
                                         .lse = (float *)mem[LSE],
                                         .segs = segs(),
                                         .heads = heads,
                                         .scale = 0.125f};
}

static struct hzp_attn_packed_bwd_args backward(char *const *mem)
{
    return (struct hzp_attn_packed_bwd_args){.qkv = mat(mem, QKV, WIDE),
                                             .out = mat(mem, OUT, NARROW),
                                             .dout = mat(mem, DOUT, NARROW),
                                             .dqkv = mat(mem, DQKV, WIDE),
                                             .lse = (float *)mem[LSE],
                                             .segs = segs(),
                                             .heads = heads,
                                             .scale = 0.125f};
}

/* The device's matrix is the host's, within a part of the largest value; what the op does not write
 * has its bits. */
static void expect_near(int which, size_t elements, double part)
{
    size_t size = which == LSE ? 4 : 2;
    char *got = malloc(bytes_of[which]);
    double most = 0, apart = 0;
    fake_peek(got, rig.mem[which], bytes_of[which]);
    for (size_t i = 0; i < elements; i++) {
        double x, y;
        if (which == LSE)
            x = (double)((float *)rig.host[which])[i], y = (double)((float *)got)[i];
        else
            x = (double)hzp_bf16_to_f32(((uint16_t *)rig.host[which])[i]),
            y = (double)hzp_bf16_to_f32(((uint16_t *)got)[i]);
        assert_true(isfinite(y));
        most = fmax(most, fabs(x));
        apart = fmax(apart, fabs(x - y));
    }
    if (apart > most * part)
        fail_msg("matrix %d: %g apart of %g", which, apart, most);
    assert_memory_equal(got + elements * size, rig.host[which] + elements * size,
                        bytes_of[which] - elements * size);
    free(got);
}

static const int32_t mixed[] = {1, 100, 256, 37, 300, 0, 5};

/* ---- what the graphs compute ---- */

static void test_packed(void **state)
{
    fake_dnn.computes = true;
    rig_open("cudnn", NULL);
    lane_open();
    documents(7, mixed);
    struct hzp_attn_packed_args a = forward(rig.mem), want = forward(rig.host);
    struct hzp_attn_packed_bwd_args b = backward(rig.mem), want_b = backward(rig.host);
    assert_int_equal(hzp_op_attn_packed(rig.lane, &a), 0);
    assert_int_equal(hzp_op_attn_packed_bwd(rig.lane, &b), 0);
    wait_for(rig.lane);
    assert_int_equal(hzp_op_attn_packed(rig.ref_lane, &want), 0);
    assert_int_equal(hzp_op_attn_packed_bwd(rig.ref_lane, &want_b), 0);
    size_t rows = (size_t)rig.row0[rig.count];
    /* two classes of each, the smaller with more documents than a gradient has room for */
    assert_int_equal(fake_count(FAKE_ATTENTION), 5);
    expect_near(OUT, rows * NARROW, 0.01);
    expect_near(LSE, rows * HEADS, 1e-4);
    expect_near(DQKV, rows * WIDE, 0.02);
    rig_close();
}

/* More documents of a class than a plan has room for: one run after the other.  No log of the sums
 * wanted. */
static void test_many(void **state)
{
    int32_t rows[40];
    fake_dnn.computes = true;
    rig_open("cudnn", NULL);
    lane_open();
    for (int i = 0; i < 40; i++)
        rows[i] = 1 + i % 9;
    documents(40, rows);
    struct hzp_attn_packed_args a = forward(rig.mem), want = forward(rig.host);
    a.lse = want.lse = NULL;
    assert_int_equal(hzp_op_attn_packed(rig.lane, &a), 0);
    wait_for(rig.lane);
    assert_int_equal(hzp_op_attn_packed(rig.ref_lane, &want), 0);
    assert_int_equal(fake_count(FAKE_ATTENTION), 2);
    expect_near(OUT, (size_t)rig.row0[40] * NARROW, 0.01);
    expect_near(LSE, 0, 0);
    rig_close();
}

static struct hzp_attn_prefill_args prefill(char *const *mem, const int32_t *table)
{
    return (struct hzp_attn_prefill_args){
        .qkv = mat(mem, QKV, WIDE),
        .out = mat(mem, OUT, NARROW),
        .kv = {mem[KEYS], mem[VALUES], PAGES, PAGE_ROWS, HZP_BF16, NULL, NULL},
        .segs = segs(),
        .page = rig.page,
        .table = table,
        .line = table ? rig.line : NULL,
        .page_stride = STRIDE,
        .lines = 3,
        .heads = heads,
        .scale = 0.125f};
}

/* Three pieces of prompts behind 0, 33 and 150 positions; pages in no order, past a sequence's last
 * one numbers of no page. */
static void pages_make(void)
{
    static const int32_t rows[] = {20, 100, 7}, pos0[] = {0, 33, 150};
    int next = 0;
    documents(3, rows);
    for (int i = 0; i < 3; i++) {
        rig.pos0[i] = pos0[i];
        rig.line[i] = 2 - i;
        rig.ctx = rows[i] + pos0[i] > rig.ctx ? rows[i] + pos0[i] : rig.ctx;
        for (int p = 0; p < STRIDE; p++)
            rig.page[i * STRIDE + p] =
                p * PAGE_ROWS < rows[i] + pos0[i] ? next++ * 7 % PAGES : 1 << 20;
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(hzp_device_copy(rig.dev, rig.table + rig.line[i] * STRIDE,
                                         rig.page + i * STRIDE, STRIDE * sizeof(int32_t)),
                         0);
}

static void check_prefill(bool table)
{
    fake_dnn.computes = true;
    rig_open("cudnn", NULL);
    lane_open();
    pages_make();
    struct hzp_attn_prefill_args a = prefill(rig.mem, table ? rig.table : NULL);
    struct hzp_attn_prefill_args want = prefill(rig.host, NULL);
    assert_int_equal(hzp_op_attn_prefill(rig.lane, &a), 0);
    wait_for(rig.lane);
    assert_int_equal(hzp_op_attn_prefill(rig.ref_lane, &want), 0);
    assert_int_equal(fake_count(FAKE_ATTENTION), 1);
    expect_near(OUT, (size_t)rig.row0[3] * NARROW, 0.01);
    rig_close();
}

static void test_prefill(void **state)
{
    check_prefill(false);
    check_prefill(true);
}

/* ---- who computes ---- */

/* Computes a micro-batch; returns how many runs of cuDNN that was. */
static int train(struct hzp_lane *lane)
{
    int before = fake_count(FAKE_ATTENTION);
    static const int32_t rows[] = {200, 256, 50};
    documents(3, rows);
    struct hzp_attn_packed_args a = forward(rig.mem);
    struct hzp_attn_packed_bwd_args b = backward(rig.mem);
    assert_int_equal(hzp_op_attn_packed(lane, &a), 0);
    assert_int_equal(hzp_op_attn_packed_bwd(lane, &b), 0);
    wait_for(lane);
    return fake_count(FAKE_ATTENTION) - before;
}

static uint64_t fallbacks(void)
{
    return hzp_device_fallbacks(rig.dev, HZP_FALLBACK_cudnn);
}

static void start_with(int own_us, int us, const char *cache)
{
    fake_dnn.own_microseconds = own_us;
    fake_dnn.microseconds = us;
    rig_open(NULL, cache);
    hzp_device_prepare_attention(rig.dev,
                                 &(struct hzp_attention_use){heads, TRAINED, 0.125f, false});
    lane_open();
    hzp_device_steady(rig.dev);
    fake_steady(true);
}

static void test_choice_follows(void **state)
{
    start_with(5000, 100, NULL);
    assert_int_equal(train(rig.lane), 2);
    assert_int_equal(fallbacks(), 0);
    rig_close();
    start_with(100, 5000, NULL);
    assert_int_equal(train(rig.lane), 0);
    assert_int_equal(fallbacks(), 0); /* ours is quicker: nothing slower was done */
    rig_close();
}

static void test_choice_is_kept(void **state)
{
    char cache[] = "/tmp/hzp-attention-XXXXXX", command[80];
    assert_non_null(mkdtemp(cache));
    start_with(5000, 100, cache);
    rig_close();
    int plans = fake_dnn_plans();
    start_with(100, 5000, cache); /* would choose otherwise, if it asked again */
    assert_int_equal(train(rig.lane), 2);
    assert_true(fake_dnn_plans() > plans);
    rig_close();
    snprintf(command, sizeof(command), "rm -r %s", cache);
    assert_int_equal(system(command), 0);
}

static void test_kept_ours_makes_no_plans(void **state)
{
    char cache[] = "/tmp/hzp-attention-XXXXXX", command[80];
    assert_non_null(mkdtemp(cache));
    start_with(100, 5000, cache);
    rig_close();
    int plans = fake_dnn_plans();
    start_with(5000, 100, cache);
    assert_int_equal(train(rig.lane), 0);
    assert_int_equal(fake_dnn_plans(), plans);
    rig_close();
    snprintf(command, sizeof(command), "rm -r %s", cache);
    assert_int_equal(system(command), 0);
}

static void test_prefill_is_chosen(void **state)
{
    fake_dnn.own_microseconds = 5000;
    rig_open(NULL, NULL);
    lane_open();
    pages_make();
    struct hzp_attn_prefill_args a = prefill(rig.mem, NULL);
    assert_int_equal(hzp_op_attn_prefill(rig.lane, &a), 0);
    wait_for(rig.lane);
    hzp_device_steady(rig.dev);
    fake_steady(true);
    int before = fake_count(FAKE_ATTENTION);
    assert_int_equal(hzp_op_attn_prefill(rig.lane, &a), 0);
    wait_for(rig.lane);
    assert_int_equal(fake_count(FAKE_ATTENTION), before + 1);
    assert_int_equal(train(rig.lane), 0); /* it was not prepared for training */
    assert_int_equal(fallbacks(), 0);
    rig_close();
}

static void test_refusals(void **state)
{
    fake_dnn.refused = 1; /* the second engine takes it */
    start_with(5000, 100, NULL);
    assert_int_equal(train(rig.lane), 2);
    assert_int_equal(fallbacks(), 0);
    rig_close();
    fake_dnn.refused = 2;
    start_with(5000, 100, NULL);
    uint64_t before = fallbacks();
    assert_true(before > 0);
    assert_int_equal(train(rig.lane), 0);
    rig_close();
}

static void test_wrong_results(void **state)
{
    fake_dnn.wrong = true;
    start_with(5000, 100, NULL);
    assert_true(fallbacks() > 0);
    assert_int_equal(train(rig.lane), 0);
    rig_close();
    fake_dnn.wrong = true;
    fake_dnn.own_microseconds = 5000;
    rig_open(NULL, NULL); /* where what is not spoiled are numbers */
    lane_open();
    pages_make();
    struct hzp_attn_prefill_args a = prefill(rig.mem, NULL);
    assert_int_equal(hzp_op_attn_prefill(rig.lane, &a), 0);
    wait_for(rig.lane);
    assert_int_equal(fallbacks(), 1);
    rig_close();
}

/* Stands for our kernels: writes what the reference has computed. */
static void run_own(const void *args)
{
    size_t rows = (size_t)rig.row0[rig.count];
    memcpy(rig.mem[OUT], rig.host[OUT], rows * NARROW * 2);
    memcpy(rig.mem[LSE], rig.host[LSE], rows * HEADS * 4);
    memcpy(rig.mem[DQKV], rig.host[DQKV], rows * WIDE * 2);
}

static int own_attention(struct hzp_lane *lane, const void *args)
{
    int nothing = 0;
    fake_then(hzp_cuda_lane(lane)->stream, run_own, &nothing, sizeof(nothing));
    return 0;
}

/* What one way leaves out is not what the other has written there before.  computes: what cuDNN's
 * graphs say; else it writes nothing, which takes no time. */
static void check_compared(bool computes)
{
    static const int32_t rows[] = {37, 0, 100};
    fake_dnn.computes = computes;
    fake_dnn.own_microseconds = 5000;
    rig_open(NULL, NULL);
    assert_true(hzp_cudnn_trains(((struct hzp_cuda_device *)rig.dev)->cudnn,
                                 &(struct hzp_attention_use){heads, TRAINED, 0.125f, false}));
    lane_open();
    documents(3, rows);
    struct hzp_attn_packed_args a = forward(rig.mem), want = forward(rig.host);
    struct hzp_attn_packed_bwd_args b = backward(rig.mem), want_b = backward(rig.host);
    assert_int_equal(hzp_op_attn_packed(rig.ref_lane, &want), 0);
    assert_int_equal(hzp_op_attn_packed_bwd(rig.ref_lane, &want_b), 0);
    const void *args[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        enum hzp_op op = i ? HZP_OP_attn_packed_bwd : HZP_OP_attn_packed;
        assert_int_equal(hzp_cudnn_attention(rig.lane, op, args[i], own_attention), 0);
        wait_for(rig.lane);
        assert_int_equal(fallbacks(), computes ? 0 : i + 1);
    }
    size_t all = (size_t)rig.row0[3];
    expect_near(OUT, all * NARROW, 0.01);
    expect_near(LSE, all * HEADS, 1e-4);
    expect_near(DQKV, all * WIDE, 0.02);
    rig_close();
}

static void test_compared(void **state)
{
    check_compared(true);
    check_compared(false);
}

/* Computes documents of these lengths; returns how many runs of cuDNN that was. */
static int forward_of(int count, const int32_t *rows)
{
    int before = fake_count(FAKE_ATTENTION);
    documents(count, rows);
    struct hzp_attn_packed_args a = forward(rig.mem);
    assert_int_equal(hzp_op_attn_packed(rig.lane, &a), 0);
    wait_for(rig.lane);
    return fake_count(FAKE_ATTENTION) - before;
}

/* Documents of two classes, the shorter of which goes by our kernels when it is alone, as an
 * earlier start found: the plans of both are there. */
static void test_kept_ours_among_theirs(void **state)
{
    static const int32_t two_classes[] = {300, 200};
    char cache[] = "/tmp/hzp-attention-XXXXXX", command[80];
    assert_non_null(mkdtemp(cache));
    fake_dnn.own_microseconds = 100;
    fake_dnn.microseconds = 5000;
    rig_open(NULL, cache);
    hzp_device_prepare_attention(rig.dev, &(struct hzp_attention_use){heads, 200, 0.125f, false});
    rig_close();
    start_with(5000, 100, cache);
    assert_true(forward_of(2, two_classes) > 0);
    assert_int_equal(fallbacks(), 0);
    rig_close();
    snprintf(command, sizeof(command), "rm -r %s", cache);
    assert_int_equal(system(command), 0);
}

static void test_nothing_is_built_later(void **state)
{
    static const int32_t longer[] = {600}, mixed_later[] = {230, 230, 230, 290};
    fake_dnn.own_microseconds = 5000;
    rig_open(NULL, NULL);
    hzp_device_prepare_attention(rig.dev, &(struct hzp_attention_use){heads, 200, 0.125f, false});
    lane_open();
    hzp_device_steady(rig.dev);
    fake_steady(true);
    int plans = fake_dnn_plans();
    assert_int_equal(forward_of(1, longer), 0); /* never decided: ours, as without cuDNN */
    assert_int_equal(fallbacks(), 1);
    assert_int_equal(forward_of(4, mixed_later), 0); /* decided, and one class lacks its plan */
    assert_int_equal(fallbacks(), 2);
    assert_int_equal(forward_of(3, mixed_later), 1);
    assert_int_equal(fake_dnn_plans(), plans);
    rig_close();
}

/* A class that has its plan, because an op of another class needed it, is still not timed later. */
static void test_nothing_is_timed_later(void **state)
{
    static const int32_t mostly[] = {230, 230, 230, 290}, longer[] = {600};
    fake_dnn.own_microseconds = 5000;
    rig_open(NULL, NULL);
    hzp_device_prepare_attention(rig.dev, &(struct hzp_attention_use){heads, 200, 0.125f, false});
    lane_open();
    assert_int_equal(forward_of(4, mostly), 2);
    hzp_device_steady(rig.dev);
    fake_steady(true);
    assert_int_equal(forward_of(1, longer), 0);
    assert_int_equal(fallbacks(), 1);
    rig_close();
}

static void test_failing_run(void **state)
{
    start_with(5000, 100, NULL);
    fake_fail("cudnnBackendExecute", 0, 5000);
    int runs = fake_count(FAKE_ATTENTION), kernels = fake_count(FAKE_KERNEL);
    assert_true(train(rig.lane) <= 1); /* the gradient */
    assert_int_equal(fake_count(FAKE_ATTENTION), runs + 1);
    assert_true(fake_count(FAKE_KERNEL) > kernels);
    assert_int_equal(fallbacks(), 1);
    train(rig.lane); /* it is not asked for this class again */
    assert_int_equal(fake_count(FAKE_ATTENTION), runs + 2);
    rig_close();
}

static void test_capture(void **state)
{
    static const int32_t rows[] = {200};
    struct hzp_graph *graph = NULL;
    start_with(5000, 100, NULL);
    documents(1, rows);
    struct hzp_attn_packed_args a = forward(rig.mem);
    int before = fake_count(FAKE_ATTENTION);
    fake_steady(false);
    assert_int_equal(hzp_graph_begin(&rig.lane, 1), 0);
    assert_int_equal(hzp_op_attn_packed(rig.lane, &a), 0);
    assert_int_equal(hzp_graph_end(rig.lane, &graph), 0);
    assert_int_equal(fake_count(FAKE_ATTENTION), before);
    hzp_graph_close(rig.dev, graph);
    rig_close();
}

static void test_two_lanes(void **state)
{
    struct hzp_lane *other;
    start_with(5000, 100, NULL);
    fake_steady(false);
    assert_int_equal(hzp_lane_open(rig.dev, HZP_BOUND_COMPUTE, &other), 0);
    fake_steady(true);
    uint64_t stream[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(train(i ? other : rig.lane), 2);
        for (int k = 0; k < fake_calls(); k++)
            if (fake_call_at(k)->kind == FAKE_ATTENTION)
                stream[i] = fake_call_at(k)->stream;
    }
    assert_true(stream[0] != stream[1]);
    hzp_lane_close(other);
    rig_close();
}

static int nothing(struct hzp_lane *lane, const void *args)
{
    return 0;
}

/* Segments that are longer than any class are ours, and counted. */
static void test_long(void **state)
{
    static const int32_t rows[] = {16385};
    for (int prepared = 1; prepared >= 0; prepared--) {
        if (prepared) {
            start_with(5000, 100, NULL);
        } else {
            rig_open(NULL, NULL);
            lane_open();
        }
        documents(1, rows);
        struct hzp_attn_packed_args a = forward(rig.mem);
        for (int i = 0; i < 2; i++)
            assert_int_equal(hzp_cudnn_attention(rig.lane, HZP_OP_attn_packed, &a, nothing), 0);
        assert_int_equal(fallbacks(), prepared ? 2 : 0); /* unprepared it is not wanted */
        rig_close();
    }
}

static uint64_t plain(void)
{
    return hzp_device_fallbacks(rig.dev, HZP_FALLBACK_attention);
}

/* Attention without a kernel for its width is counted, and decode attention without the copy engine
 * where there is one; as asked, it is not. */
static void test_plain(void **state)
{
    static const int32_t ones[] = {1, 1, 1};
    for (int bulk = 1; bulk >= 0; bulk--) {
        setenv("HZP_CUDA_BULK", bulk ? "" : "0", 1);
        rig_open("own", NULL);
        lane_open();
        pages_make();
        documents(3, ones);
        struct hzp_attn_decode_args d = prefill(rig.mem, NULL);
        assert_int_equal(hzp_op_attn_decode(rig.lane, &d), 0);
        assert_int_equal(plain(), 0);
        d.kv.page_rows = PAGE_ROWS / 2;
        for (int i = 1; i < 3; i++) {
            assert_int_equal(hzp_op_attn_decode(rig.lane, &d), 0);
            assert_int_equal(plain(), bulk ? i : 0);
        }
        wait_for(rig.lane);
        rig_close();
    }
    unsetenv("HZP_CUDA_BULK");
    rig_open("own", NULL);
    lane_open();
    pages_make();
    struct hzp_heads narrow = {HEADS, KV_HEADS, DIM / 2};
    struct hzp_attn_prefill_args p = prefill(rig.mem, NULL);
    documents(3, (int32_t[]){20, 100, 7}); /* as many rows, from position 0 on */
    struct hzp_attn_packed_args f = forward(rig.mem);
    struct hzp_attn_packed_bwd_args b = backward(rig.mem);
    p.heads = f.heads = b.heads = narrow;
    p.qkv.cols = f.qkv.cols = b.qkv.cols = b.dqkv.cols = WIDE / 2;
    p.out.cols = f.out.cols = b.out.cols = b.dout.cols = NARROW / 2;
    assert_int_equal(hzp_op_attn_prefill(rig.lane, &p), 0);
    assert_int_equal(plain(), 1);
    assert_int_equal(hzp_op_attn_packed(rig.lane, &f), 0);
    assert_int_equal(plain(), 2);
    assert_int_equal(hzp_op_attn_packed_bwd(rig.lane, &b), 0);
    assert_int_equal(plain(), 3);
    wait_for(rig.lane);
    documents(3, ones);
    struct hzp_attn_decode_args d = prefill(rig.mem, NULL);
    d.heads = narrow;
    d.qkv.cols = WIDE / 2;
    d.out.cols = NARROW / 2;
    assert_int_equal(hzp_op_attn_decode(rig.lane, &d), 0);
    assert_int_equal(plain(), 4);
    wait_for(rig.lane);
    rig_close();
}

static void test_repeats(void **state)
{
    fake_dnn.own_microseconds = 5000;
    rig_open(NULL, NULL);
    hzp_device_prepare_attention(rig.dev,
                                 &(struct hzp_attention_use){heads, TRAINED, 0.125f, true});
    lane_open();
    assert_int_equal(train(rig.lane), 1); /* forward only */
    rig_close();
}

static void test_memory(void **state)
{
    fake_dnn.own_microseconds = 5000;
    fake_dnn.space = (size_t)80 << 20;
    rig_open(NULL, NULL);
    size_t before = hzp_lane_bytes(rig.dev, HZP_BOUND_COMPUTE);
    hzp_device_prepare_attention(rig.dev,
                                 &(struct hzp_attention_use){heads, TRAINED, 0.125f, false});
    size_t more = hzp_lane_bytes(rig.dev, HZP_BOUND_COMPUTE) - before;
    assert_true(more > fake_dnn.space && more < fake_dnn.space + (8 << 20));
    size_t used = fake_device_bytes();
    lane_open();
    assert_int_equal(fake_device_bytes() - used, before + more);
    assert_int_equal(train(rig.lane), 1); /* forward has no room in what lanes have anyway */
    assert_true(fallbacks() > 0);
    rig_close();
}

static void test_absent(void **state)
{
    char own[512];
    snprintf(own, sizeof(own), "%s", getenv("HZP_CUDNN"));
    setenv("HZP_CUDNN", "/nowhere/libcudnn.so", 1);
    start_with(5000, 100, NULL);
    assert_int_equal(train(rig.lane), 0);
    assert_int_equal(fallbacks(), 2);
    rig_close();
    setenv("HZP_CUDNN", "0", 1);
    start_with(5000, 100, NULL);
    assert_int_equal(train(rig.lane), 0);
    assert_int_equal(fallbacks(), 0); /* as asked */
    rig_close();
    setenv("HZP_CUDNN", own, 1);
}

static void test_setting(void **state)
{
    struct hzp_device *dev;
    struct hzp_err_text why = {0};
    setenv("HZP_CUDA_ATTENTION", "ours", 1);
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &dev, &why),
                     HZP_EINVAL);
    assert_string_equal(why.text, "HZP_CUDA_ATTENTION=ours: not cudnn or own");
    setenv("HZP_CUDA_ATTENTION", "", 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_choice_follows),
        cmocka_unit_test(test_choice_is_kept),
        cmocka_unit_test(test_kept_ours_makes_no_plans),
        cmocka_unit_test(test_prefill_is_chosen),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_wrong_results),
        cmocka_unit_test(test_compared),
        cmocka_unit_test(test_kept_ours_among_theirs),
        cmocka_unit_test(test_nothing_is_built_later),
        cmocka_unit_test(test_nothing_is_timed_later),
        cmocka_unit_test(test_failing_run),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_two_lanes),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_setting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
