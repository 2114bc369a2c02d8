/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_backend.c - the CUDA backend's host side: which calls it makes to the
 * runtime, in which order, and that it frees everything. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/thread.h"
#include "device/about.h"
#include "device/fallback.h"
#include "nanobatch/run/exec.h"
#include "tests/cudafake/ops.h"

struct rig {
    struct hzp_device *dev;
    struct hzp_lane *a, *b;
    struct hzp_fence *fence;
    float *x, *y; /* device */
    float *host;  /* pinned */
};

enum { N = 4096 };

static void rig_open(struct rig *g, unsigned seed, const char *lanes)
{
    g->dev = fake_open(seed, lanes, NULL);
    assert_int_equal(hzp_lane_open(g->dev, HZP_BOUND_COMPUTE, &g->a), HZP_OK);
    assert_int_equal(hzp_lane_open(g->dev, HZP_BOUND_MEMORY, &g->b), HZP_OK);
    assert_int_equal(hzp_fence_open(g->dev, &g->fence), HZP_OK);
    assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_DEVICE, N * 4, (void **)&g->x), HZP_OK);
    assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_DEVICE, N * 4, (void **)&g->y), HZP_OK);
    assert_int_equal(hzp_device_alloc(g->dev, HZP_MEM_HOST, N * 4, (void **)&g->host), HZP_OK);
}

static void rig_close(struct rig *g)
{
    hzp_device_free(g->dev, HZP_MEM_DEVICE, g->x);
    hzp_device_free(g->dev, HZP_MEM_DEVICE, g->y);
    hzp_device_free(g->dev, HZP_MEM_HOST, g->host);
    hzp_fence_close(g->fence);
    hzp_lane_close(g->a);
    hzp_lane_close(g->b);
    fake_close(g->dev);
}

static void finish(struct rig *g, struct hzp_lane *lane)
{
    assert_int_equal(hzp_fence_record(g->fence, lane), HZP_OK);
    assert_int_equal(hzp_fence_wait(g->fence), HZP_OK);
}

static void fill(struct hzp_lane *lane, float *x, float value)
{
    struct hzp_fill_args args = {{x, 1, N, N, HZP_F32}, value};
    assert_int_equal(hzp_op_fill(lane, &args), HZP_OK);
}

/* Five lanes: each takes its memory when it is opened, exactly as much as announced, and ops
   take none. */
static void test_lane_memory(void **state)
{
    struct hzp_device *dev = fake_open(1, NULL, NULL);
    struct hzp_lane *lane[5];
    static const enum hzp_bound use[] = {HZP_BOUND_COMPUTE, HZP_BOUND_MEMORY, HZP_BOUND_NETWORK,
                                         HZP_BOUND_COPY, HZP_BOUND_COMPUTE};
    float *x;
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, N * 4, (void **)&x), HZP_OK);
    for (int i = 0; i < 5; i++) {
        size_t before = fake_device_bytes();
        assert_int_equal(hzp_lane_open(dev, use[i], &lane[i]), HZP_OK);
        assert_int_equal(fake_device_bytes() - before, hzp_lane_bytes(dev, use[i]));
        assert_true(hzp_lane_bytes(dev, use[i]) > 0);
    }
    assert_int_equal(hzp_device_prepare_times(dev, 3), HZP_OK);
    int made = fake_made();
    struct hzp_span span[3];
    for (int i = 0; i < 5; i++) {
        struct hzp_fill_args args = {{x + 512 * i, 1, 512, 512, HZP_F32}, 1};
        if (i < 3)
            assert_int_equal(hzp_lane_time(lane[i], &span[i]), HZP_OK);
        assert_int_equal(hzp_op_fill(lane[i], &args), HZP_OK);
        assert_int_equal(hzp_lane_set_share(lane[0], 0), HZP_OK);
    }
    assert_int_equal(fake_made(), made);
    assert_int_equal(fake_count(FAKE_KERNEL), 5);
    for (int i = 0; i < 5; i++)
        hzp_lane_close(lane[i]);
    hzp_device_free(dev, HZP_MEM_DEVICE, x);
    fake_close(dev);
}

/* Less memory is free than when the device was opened: the lane is refused and leaves nothing
   behind. */
static void test_lane_refused(void **state)
{
    static const char *const fails[] = {"cudaMalloc", "cudaMemsetAsync",
                                        "cudaStreamCreateWithPriority"};
    for (int i = 0; i < 6; i++) {
        struct hzp_device *dev = fake_open(1, NULL, NULL);
        struct hzp_lane *lane = NULL;
        fake_fail(fails[HZP_MAX(i - 3, 0)], i < 4 ? i : 0,
                  i < 4 ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure);
        assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane),
                         i < 4 ? HZP_ENOMEM : HZP_EDEVICE);
        assert_null(lane);
        fake_fail("", 0, 0);
        cudaGetLastError();
        fake_close(dev);
    }
}

/* A chain of ops over two lanes gives its result in every order that its fences permit. */
static void test_chain(void **state)
{
    for (unsigned seed = 0; seed < 30; seed++) {
        struct rig g;
        struct hzp_fence *between;
        rig_open(&g, seed, NULL);
        assert_int_equal(hzp_fence_open(g.dev, &between), HZP_OK);
        fill(g.a, g.y, 1);
        fill(g.b, g.x, NAN); /* no fence orders it yet: it may run at any time */
        assert_int_equal(hzp_fence_record(between, g.b), HZP_OK);
        assert_int_equal(hzp_lane_wait(g.a, between), HZP_OK);
        fill(g.a, g.x, 2);
        assert_int_equal(hzp_fence_record(between, g.a), HZP_OK);
        assert_int_equal(hzp_lane_wait(g.b, between), HZP_OK);
        assert_int_equal(hzp_lane_copy(g.b, g.host, g.x, N * 4), HZP_OK);
        finish(&g, g.b);
        for (int i = 0; i < N; i++)
            assert_true(g.host[i] == 2);
        hzp_fence_close(between);
        rig_close(&g);
    }
}

static int kernels(const char *name)
{
    int count = 0;
    for (int i = 0; i < fake_calls(); i++)
        count += fake_call_at(i)->kind == FAKE_KERNEL && strcmp(fake_call_at(i)->name, name) == 0;
    return count;
}

/* What kernels read from the host repeatedly is copied once, and again after the host may have
 * written it. */
static void test_staging(void **state)
{
    struct rig g;
    rig_open(&g, 3, NULL);
    int32_t *pos = (int32_t *)g.host;
    struct hzp_heads heads = {1, 1, 8};
    struct hzp_rope_args args = {.x = {g.x, 2, 24, 24, HZP_F32},
                                 .y = {g.x, 2, 24, 24, HZP_F32},
                                 .table = {g.y, 4, 8, 8, HZP_F32},
                                 .pos = pos,
                                 .heads = heads,
                                 .eps = 1e-5f};
    memset(pos, 0, N * sizeof(*pos));
    pos[0] = 1;
    pos[1] = 3;
    fill(g.a, g.x, 1);
    fill(g.a, g.y, 0);
    fake_reset(3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(hzp_op_rope(g.a, &args), HZP_OK);
    assert_int_equal(kernels("rope"), 3);
    assert_int_equal(fake_count(FAKE_COPY), 1);
    assert_true(fake_call_at(0)->src == pos && fake_call_at(0)->size == 8);
    assert_int_equal(fake_call_at(0)->kind, FAKE_COPY);
    finish(&g, g.a);
    assert_int_equal(hzp_op_rope(g.a, &args), HZP_OK);
    assert_int_equal(fake_count(FAKE_COPY), 2);
    finish(&g, g.a);
    assert_int_equal(hzp_device_fallbacks(g.dev, HZP_FALLBACK_staging), 0);
    for (int i = 0; i < HZP_CUDA_STAGED_MAX + 2; i++) { /* more arrays than are staged at a time */
        args.pos = pos + 2 * i;
        assert_int_equal(hzp_op_rope(g.a, &args), HZP_OK);
    }
    assert_int_equal(hzp_device_fallbacks(g.dev, HZP_FALLBACK_staging), 2);
    finish(&g, g.a);
    rig_close(&g);
}

/* Host memory is known as such however much of it there is. */
static void test_pinned(void **state)
{
    enum { MANY = 400 };
    struct rig g;
    static int32_t *host[MANY];
    rig_open(&g, 3, NULL);
    fill(g.a, g.x, 1);
    fill(g.a, g.y, 0);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(hzp_device_alloc(g.dev, HZP_MEM_HOST, 64, (void **)&host[i]), HZP_OK);
        memset(host[i], 0, 64);
    }
    fake_reset(3);
    for (int i = 0; i < MANY; i += 57) {
        struct hzp_rope_args args = {.x = {g.x, 2, 24, 24, HZP_F32},
                                     .y = {g.x, 2, 24, 24, HZP_F32},
                                     .table = {g.y, 4, 8, 8, HZP_F32},
                                     .pos = host[i] + 4, /* within it */
                                     .heads = {1, 1, 8},
                                     .eps = 1e-5f};
        int copies = fake_count(FAKE_COPY);
        assert_int_equal(hzp_op_rope(g.a, &args), HZP_OK);
        assert_int_equal(fake_count(FAKE_COPY), copies + 1);
    }
    finish(&g, g.a);
    for (int i = 0; i < MANY; i++) /* first those in between */
        hzp_device_free(g.dev, HZP_MEM_HOST, host[i * 7 % MANY]);
    rig_close(&g);
}

static void test_failures(void **state)
{
    struct rig g;
    void *p;
    rig_open(&g, 5, NULL);
    fake_fail("cudaMalloc", 0, cudaErrorMemoryAllocation);
    assert_int_equal(hzp_device_alloc(g.dev, HZP_MEM_DEVICE, 100, &p), HZP_ENOMEM);
    assert_int_equal(hzp_device_alloc(g.dev, HZP_MEM_DEVICE, 100, &p), HZP_OK); /* not final */
    hzp_device_free(g.dev, HZP_MEM_DEVICE, p);
    fill(g.a, g.x, 1);
    fake_fail("launch", 0, cudaErrorLaunchFailure);
    struct hzp_fill_args args = {{g.x, 1, N, N, HZP_F32}, 1};
    assert_int_equal(hzp_op_fill(g.a, &args), HZP_EDEVICE);
    fake_fail("cudaEventSynchronize", 0, cudaErrorLaunchFailure);
    assert_int_equal(hzp_fence_record(g.fence, g.a), HZP_OK);
    assert_int_equal(hzp_fence_wait(g.fence), HZP_EDEVICE);
    finish(&g, g.a);
    rig_close(&g);

    struct hzp_device *dev = NULL;
    struct hzp_err_text why = {0};
    fake_fail("cudaGetDeviceCount", 0, cudaErrorNoDevice);
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &dev, &why),
                     HZP_EUNSUP);
    assert_non_null(strstr(why.text, "device cuda: none"));
    setenv("HZP_CUDA_LANES", "purple", 1);
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &dev, &why),
                     HZP_EINVAL);
    assert_string_equal(why.param, "HZP_CUDA_LANES");
    setenv("HZP_CUDA_LANES", "", 1);
    assert_string_equal(fake_leaks(), "");
}

/* Spans lie between the host's clock before and after, in order, on both lanes. */
static void test_times(void **state)
{
    struct rig g;
    struct hzp_span span[2][300] = {0};
    rig_open(&g, 7, NULL);
    for (int turn = 0; turn < 3; turn++) {
        uint64_t before = hzp_device_now_ns(g.dev), last[2] = {before, before};
        for (int i = 0; i < 300; i++)
            for (int l = 0; l < 2; l++) {
                struct hzp_lane *lane = l ? g.b : g.a;
                assert_int_equal(hzp_lane_time(lane, &span[l][i]), HZP_OK);
                if (i % 3)
                    fill(lane, l ? g.y : g.x, 1);
                else
                    assert_int_equal(hzp_lane_copy(lane, l ? g.y : g.x, g.host, 64), HZP_OK);
                fill(lane, l ? g.y : g.x, 2); /* without a timing */
            }
        finish(&g, g.a);
        finish(&g, g.b);
        uint64_t after = hzp_device_now_ns(g.dev);
        for (int l = 0; l < 2; l++)
            for (int i = 0; i < 300; i++) {
                assert_true(span[l][i].begin_ns + 20000 >= last[l]);
                assert_true(span[l][i].end_ns >= span[l][i].begin_ns);
                /* If the host wakes late, the two clocks are tied with an error of that delay. */
                assert_true(span[l][i].end_ns <= after + 100000000);
                last[l] = span[l][i].end_ns;
            }
        memset(span, 0, sizeof(span));
    }
    /* closed with a timing that was never read */
    assert_int_equal(hzp_lane_time(g.a, &span[0][0]), HZP_OK);
    fill(g.a, g.x, 1);
    rig_close(&g);
}

/* Kernels are loaded before the first step, the library's before the memory is planned. */
static void test_loading(void **state)
{
    struct rig g;
    unsetenv("CUDA_MODULE_LOADING");
    fake_set_loaded((size_t)3 << 30);
    rig_open(&g, 9, NULL);
    assert_string_equal(fake_loading(), "EAGER");
    assert_int_equal(g.dev->mem_total, (size_t)60 << 30);
    rig_close(&g);
    fake_set_loaded(0);
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    rig_open(&g, 9, NULL);
    assert_string_equal(fake_loading(), "LAZY");
    rig_close(&g);
    unsetenv("CUDA_MODULE_LOADING");
    struct hzp_about about;
    hzp_device_about(0, &about); /* starts the driver, too */
    assert_string_equal(fake_loading(), "EAGER");
}

/* ---- kernels that begin early ---- */

static void norm_and_product(struct rig *g, int rows)
{
    struct hzp_rmsnorm_args norm = {.x = {g->x, rows, 16, 16, HZP_F32},
                                    .w = {g->x, 1, 16, 16, HZP_BF16},
                                    .y = {g->y, rows, 16, 16, HZP_BF16},
                                    .eps = 1e-5f};
    struct hzp_matmul_args product = {.a = norm.y,
                                      .b = {(uint16_t *)g->x + 64, 8, 16, 16, HZP_BF16},
                                      .c = {g->y + 64, rows, 8, 8, HZP_BF16},
                                      .trans_b = 1};
    struct hzp_swiglu_args act = {.x = product.c, .y = {g->y + 128, rows, 4, 4, HZP_BF16}};
    assert_int_equal(hzp_op_rmsnorm(g->a, &norm), HZP_OK);
    assert_int_equal(hzp_op_matmul(g->a, &product), HZP_OK);
    assert_int_equal(hzp_op_swiglu(g->a, &act), HZP_OK);
}

/* The kernels of the newest calls: how many, and how many of them may begin early. */
static void expect_early(int all, int early, bool captured)
{
    int found = 0, begins = 0;
    for (int i = 0; i < fake_calls(); i++)
        if (fake_call_at(i)->kind == FAKE_KERNEL) {
            found++;
            begins += fake_call_at(i)->early;
            assert_true(fake_call_at(i)->captured == captured);
        }
    assert_int_equal(found, all);
    assert_int_equal(begins, early);
}

/* Steps of few rows, and graphs of them; not larger ones. */
static void test_early(void **state)
{
    struct rig g;
    struct hzp_graph *graph = NULL;
    rig_open(&g, 11, NULL);
    fake_reset(11);
    norm_and_product(&g, 4);
    expect_early(3, 3, false);
    fake_reset(11);
    norm_and_product(&g, 5); /* the product is the library's */
    expect_early(2, 0, false);
    fake_reset(11);
    assert_int_equal(hzp_graph_begin(&g.a, 1), HZP_OK);
    norm_and_product(&g, 1);
    assert_int_equal(hzp_graph_end(g.a, &graph), HZP_OK);
    expect_early(3, 3, true);
    assert_int_equal(hzp_graph_launch(graph, g.a), HZP_OK);
    finish(&g, g.a);
    hzp_graph_close(g.dev, graph);
    rig_close(&g);
}

/* Which steps' kernels may begin early; other words are refused. */
static void test_early_words(void **state)
{
    static const struct {
        const char *word;
        int rows, early;
    } cases[] = {{"all", 4, 3}, {"all", 5, 2}, {"all", 8, 2}, {"few", 4, 3},
                 {"few", 5, 0}, {"", 4, 3},    {"", 5, 0},    {"0", 4, 0}};
    struct rig g;
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        setenv("HZP_CUDA_EARLY", cases[i].word, 1);
        rig_open(&g, 12, NULL);
        fake_reset(12);
        norm_and_product(&g, cases[i].rows);
        expect_early(cases[i].rows > 4 ? 2 : 3, cases[i].early, false);
        finish(&g, g.a);
        rig_close(&g);
    }
    struct hzp_device *dev;
    struct hzp_err_text why = {0};
    setenv("HZP_CUDA_EARLY", "yes", 1);
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &dev, &why),
                     HZP_EINVAL);
    assert_string_equal(why.param, "HZP_CUDA_EARLY");
    unsetenv("HZP_CUDA_EARLY");
}

/* ---- shares ---- */

static struct fake_call last_kernel(void)
{
    for (int i = fake_calls() - 1; i >= 0; i--)
        if (fake_call_at(i)->kind == FAKE_KERNEL)
            return *fake_call_at(i);
    fail();
    return (struct fake_call){0};
}

static void on_share(struct rig *g, struct hzp_lane *lane, int from, int to)
{
    fill(lane, lane == g->a ? g->x : g->y, 1);
    struct fake_call call = last_kernel();
    assert_int_equal(call.sm_from, from);
    assert_int_equal(call.sm_to, to);
}

static void shares(struct rig *g, int a, int b)
{
    assert_int_equal(hzp_lane_set_share(g->a, a), HZP_OK);
    assert_int_equal(hzp_lane_set_share(g->b, b), HZP_OK);
}

static void test_green(void **state)
{
    struct rig g;
    rig_open(&g, 9, "green");
    on_share(&g, g.a, 0, 0);
    shares(&g, 48, 84);
    on_share(&g, g.a, 0, 48);
    on_share(&g, g.b, 48, 132);
    shares(&g, 84, 48); /* the same split with sides exchanged */
    on_share(&g, g.a, 48, 132);
    on_share(&g, g.b, 0, 48);
    shares(&g, 66, 66);
    on_share(&g, g.a, 0, 64);
    on_share(&g, g.b, 64, 132);
    shares(&g, 3, 132); /* one too small, one the whole device */
    on_share(&g, g.a, 0, 16);
    on_share(&g, g.b, 0, 0);
    shares(&g, 130, 130);
    on_share(&g, g.a, 0, 64);
    on_share(&g, g.b, 64, 132);
    shares(&g, 0, 0);
    on_share(&g, g.a, 0, 0);
    on_share(&g, g.b, 0, 0);
    rig_close(&g);
}

/* A lane of what ranks exchange has the highest priority, with SMs of its own, too. */
static void test_priority(void **state)
{
    static const char *const ways[] = {"green", "plain"};
    for (int way = 0; way < HZP_COUNT(ways); way++) {
        struct rig g;
        struct hzp_lane *network;
        rig_open(&g, 9, ways[way]);
        assert_int_equal(hzp_lane_open(g.dev, HZP_BOUND_NETWORK, &network), HZP_OK);
        for (int shared = 0; shared < 3; shared++) {
            shares(&g, shared == 1 ? 116 : 0, shared == 2 ? 116 : 0);
            assert_int_equal(hzp_lane_set_share(network, shared > 0), HZP_OK);
            fill(network, g.x, 1);
            struct fake_call first = last_kernel();
            finish(&g, network);
            fill(g.a, g.x, 1);
            struct fake_call a = last_kernel();
            finish(&g, g.a);
            fill(g.b, g.y, 1);
            struct fake_call b = last_kernel();
            finish(&g, g.b);
            bool green = shared && way == 0;
            assert_int_equal(first.sm_to - first.sm_from, green ? 16 : 0);
            assert_int_equal(a.sm_to - a.sm_from, green && shared == 1 ? 116 : 0);
            assert_int_equal(b.sm_to - b.sm_from, green && shared == 2 ? 116 : 0);
            assert_int_equal(first.priority, -5); /* the fake's highest */
            assert_int_equal(a.priority, -4);
            assert_int_equal(b.priority, -4);
        }
        hzp_lane_close(network);
        rig_close(&g);
    }
}

static void ran_on(struct rig *g, struct hzp_lane *lane, int from, int to)
{
    on_share(g, lane, from, to);
    finish(g, lane);
}

/* Three and four lanes: the driver divides the SMs once, into groups of equal size. */
static void test_parts(void **state)
{
    struct rig g;
    struct hzp_lane *more[2];
    rig_open(&g, 9, "green");
    for (int i = 0; i < 2; i++)
        assert_int_equal(hzp_lane_open(g.dev, HZP_BOUND_MEMORY, &more[i]), HZP_OK);
    shares(&g, 24, 60);
    assert_int_equal(hzp_lane_set_share(more[0], 48), HZP_OK);
    ran_on(&g, g.a, 0, 24);
    ran_on(&g, g.b, 72, 132);
    ran_on(&g, more[0], 24, 72);
    assert_int_equal(hzp_cuda_sms(g.b), 60);
    fake_fail("cuDevSmResourceSplitByCount", 0, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    shares(&g, 32, 52); /* a common divisor, of which the driver makes no groups */
    ran_on(&g, more[0], 32, 80);
    ran_on(&g, g.b, 80, 132);
    assert_int_equal(hzp_lane_set_share(more[1], 16), HZP_OK);
    assert_int_equal(hzp_lane_set_share(more[0], 16), HZP_OK);
    ran_on(&g, more[0], 0, 16);
    ran_on(&g, more[1], 16, 32);
    ran_on(&g, g.a, 32, 64);
    ran_on(&g, g.b, 64, 132);
    assert_int_equal(hzp_device_fallbacks(g.dev, HZP_FALLBACK_share), 0);
    for (int i = 0; i < 2; i++)
        hzp_lane_close(more[i]);
    rig_close(&g);
}

static int contexts(void)
{
    int count = 0;
    for (const char *at = fake_leaks(); (at = strstr(at, "context ")); at++)
        count++;
    return count;
}

/* A shape whose collectives have a lane of their own: its split, with the least part for that lane,
 * is made at the start, too. */
static void test_prepared_exchange(void **state)
{
    struct hzp_plan_shape shape = {.nanos = 1, .weight = {1}, .network_lane = HZP_LANE_NETWORK};
    struct rig g;
    shape.share[HZP_LANE_COMPUTE] = 100;
    rig_open(&g, 9, "green");
    hzp_exec_prepare(g.dev, &shape);
    assert_int_equal(contexts(), 2);
    shares(&g, 100, 1);
    fill(g.a, g.x, 1);
    assert_int_equal(contexts(), 2);
    assert_false(hzp_cuda_by_grid(g.a));
    rig_close(&g);
}

/* The splits that plans will need are prepared at the start, and none is made later; after the
 * start, the nearest prepared split is used. */
static void test_prepared(void **state)
{
    static const int wants[][3] = {
        {84, 48, 0}, {48, 84, 0}, {100, 32, 0}, {24, 48, 60}, {132, 0, 0}};
    struct rig g;
    rig_open(&g, 9, "green");
    for (int i = 0; i < HZP_COUNT(wants); i++)
        hzp_device_prepare_shares(g.dev, wants[i], 3);
    assert_int_equal(contexts(), 2 + 2 + 3);
    shares(&g, 48, 84);
    on_share(&g, g.a, 0, 48);
    shares(&g, 101, 31);
    on_share(&g, g.b, 0, 32);
    assert_int_equal(contexts(), 7);
    for (int i = 2; i < 40; i++) {
        shares(&g, 8 * i, 132 - 8 * i > 0 ? 132 - 8 * i : 5 * i);
        fill(g.a, g.x, 1);
        fill(g.b, g.y, 1);
    }
    for (int a = 20; a < 60; a += 8)
        for (int b = 20; b < 60; b += 8) {
            int three[] = {a, b, 40};
            hzp_device_prepare_shares(g.dev, three, 3);
        }
    assert_in_range(contexts(), 48, 72); /* of 24 splits */
    shares(&g, 47, 85);
    on_share(&g, g.a, 0, 48);
    int made = contexts();
    shares(&g, 20, 60); /* one more than are kept: the nearest is used */
    fill(g.a, g.x, 1);
    assert_in_range(hzp_cuda_sms(g.a), 24, 48);
    assert_int_equal(contexts(), made);
    rig_close(&g);

    rig_open(&g, 9, "green"); /* without green contexts: by the grid from the start */
    fake_fail("cuGreenCtxCreate", 0, CUDA_ERROR_NOT_SUPPORTED);
    hzp_device_prepare_shares(g.dev, wants[0], 2);
    assert_int_equal(contexts(), 0);
    fake_fail("cuGreenCtxCreate", 0, CUDA_ERROR_NOT_SUPPORTED);
    shares(&g, 48, 84);
    on_share(&g, g.a, 0, 0);
    assert_int_equal(hzp_cuda_sms(g.a), 48);
    assert_true(hzp_cuda_by_grid(g.a));
    shares(&g, 64, 68); /* the next split is green, */
    on_share(&g, g.a, 0, 64);
    assert_false(hzp_cuda_by_grid(g.a));
    shares(&g, 48, 84); /* and this one, too, when it succeeds */
    on_share(&g, g.a, 0, 48);
    rig_close(&g);
}

static uint64_t slow_shares(const struct rig *g)
{
    return hzp_device_fallbacks(g->dev, HZP_FALLBACK_share);
}

/* Each change to shares that are not as asked is counted; what is not to be had is not asked for
 * again and again, and does not change what other shares get. */
static void test_slow_shares(void **state)
{
    struct rig g;
    rig_open(&g, 9, "green");
    shares(&g, 48, 84);
    on_share(&g, g.a, 0, 48);
    assert_int_equal(slow_shares(&g), 0);
    fake_fail("cuGreenCtxCreate", 1, CUDA_ERROR_OUT_OF_MEMORY); /* the nearest stands for it */
    shares(&g, 64, 68);
    on_share(&g, g.a, 0, 48);
    on_share(&g, g.b, 48, 132);
    assert_int_equal(slow_shares(&g), 1);
    assert_int_equal(contexts(), 2);
    shares(&g, 64, 68); /* no change */
    fill(g.a, g.x, 1);
    assert_int_equal(slow_shares(&g), 1);
    for (int i = 0; i < 4; i++) { /* another one: three attempts */
        shares(&g, 0, 0);
        fill(g.a, g.x, 1);
        fake_fail("cuGreenCtxCreate", 0, CUDA_ERROR_NOT_SUPPORTED);
        shares(&g, 32, 100);
        on_share(&g, g.a, 0, 0);
        assert_int_equal(hzp_cuda_sms(g.a), 32);
        assert_int_equal(slow_shares(&g), 2 + i);
    }
    shares(&g, 24, 108); /* the fourth attempt would have been this one's failure */
    on_share(&g, g.a, 0, 0);
    shares(&g, 32, 100); /* not tried, although it would succeed now */
    on_share(&g, g.a, 0, 0);
    shares(&g, 24, 108);
    on_share(&g, g.a, 0, 24);
    assert_int_equal(slow_shares(&g), 7);
    rig_close(&g);

    rig_open(&g, 9, "green"); /* a driver without the functions: by the grid from then on */
    fake_fail("cudaGetDriverEntryPointByVersion", 2, cudaErrorNotSupported);
    for (int i = 0; i < 3; i++) {
        shares(&g, 48 + 8 * i, 84 - 8 * i);
        on_share(&g, g.a, 0, 0);
        assert_int_equal(hzp_cuda_sms(g.a), 48 + 8 * i);
        assert_int_equal(slow_shares(&g), 1 + i);
    }
    rig_close(&g);

    fake_set_sms(40); /* two shares are too many for this one, one is not */
    rig_open(&g, 9, "green");
    shares(&g, 20, 20);
    on_share(&g, g.a, 0, 0);
    assert_int_equal(slow_shares(&g), 1);
    shares(&g, 24, 0);
    on_share(&g, g.a, 0, 24);
    shares(&g, 24, 16);
    on_share(&g, g.a, 0, 0);
    assert_int_equal(slow_shares(&g), 2);
    rig_close(&g);
    fake_set_sms(132);
    rig_open(&g, 9, "grid"); /* as asked */
    shares(&g, 48, 84);
    on_share(&g, g.a, 0, 0);
    assert_int_equal(slow_shares(&g), 0);
    rig_close(&g);
}

/* An op issued before a share changed ends before one issued after it, and no change waits. */
static void test_share_order(void **state)
{
    for (unsigned seed = 0; seed < 20; seed++) {
        struct rig g;
        rig_open(&g, seed, "green");
        fill(g.a, g.x, 1);
        shares(&g, 48, 84);
        fill(g.a, g.x, 2);
        shares(&g, 64, 68);
        fill(g.a, g.x, 3);
        shares(&g, 0, 0);
        assert_int_equal(hzp_lane_copy(g.a, g.host, g.x, N * 4), HZP_OK);
        float now;
        fake_peek(&now, g.x, sizeof(now));
        assert_true(isnan(now)); /* nothing has run yet */
        finish(&g, g.a);
        for (int i = 0; i < N; i++)
            assert_true(g.host[i] == 3);
        rig_close(&g);
    }
}

static void test_refused(void **state)
{
    struct rig g;
    rig_open(&g, 9, "green");
    fake_fail("cuGreenCtxCreate", 1, CUDA_ERROR_NOT_SUPPORTED); /* the second of the two fails */
    shares(&g, 48, 84);
    on_share(&g, g.a, 0, 0);
    assert_int_equal(hzp_cuda_sms(g.a), 48);
    assert_int_equal(hzp_cuda_sms(g.b), 84);
    assert_int_equal(contexts(), 0); /* nothing of it is left */
    shares(&g, 84, 48);              /* the same split succeeds */
    on_share(&g, g.b, 0, 48);
    on_share(&g, g.a, 48, 132);
    rig_close(&g);
    rig_open(&g, 9, "grid");
    shares(&g, 48, 84);
    on_share(&g, g.b, 0, 0);
    assert_int_equal(hzp_cuda_sms(g.b), 84);
    hzp_lane_limit(g.b, 20); /* of the next ops only */
    assert_int_equal(hzp_cuda_sms(g.b), 20);
    assert_true(hzp_cuda_by_grid(g.b));
    hzp_lane_limit(g.b, 100);
    assert_int_equal(hzp_cuda_sms(g.b), 84);
    hzp_lane_limit(g.b, 0);
    assert_int_equal(hzp_cuda_sms(g.b), 84);
    shares(&g, 130, 90);
    fill(g.b, g.x, 1);
    assert_int_equal(hzp_cuda_sms(g.a) + hzp_cuda_sms(g.b), 132);
    shares(&g, 0, 0);
    fill(g.b, g.y, 1);
    assert_int_equal(hzp_cuda_sms(g.b), 132);
    rig_close(&g);
    rig_open(&g, 9, "plain");
    shares(&g, 48, 84);
    on_share(&g, g.a, 0, 0);
    assert_int_equal(hzp_cuda_sms(g.a), 132);
    hzp_lane_limit(g.a, 20);
    assert_int_equal(hzp_cuda_sms(g.a), 132);
    rig_close(&g);
    rig_open(&g, 9, "green"); /* within a partition, and without one */
    hzp_lane_limit(g.a, 20);
    assert_int_equal(hzp_cuda_sms(g.a), 20);
    assert_true(hzp_cuda_by_grid(g.a));
    shares(&g, 48, 84);
    fill(g.a, g.x, 1);
    assert_int_equal(hzp_cuda_sms(g.a), 20);
    hzp_lane_limit(g.a, 0);
    assert_int_equal(hzp_cuda_sms(g.a), 48);
    assert_false(hzp_cuda_by_grid(g.a));
    rig_close(&g);
}

/* What `hzpserve devices` prints about a GPU, and which one "cuda:0" is; no device is opened for
   that. */
static void test_about(void **state)
{
    struct hzp_about about;
    struct hzp_device *dev = NULL;
    struct hzp_err_text why = {0};
    assert_string_equal(fake_leaks(), "");
    assert_string_equal(hzp_device_about(0, &about), "cuda");
    assert_string_equal(about.none, "");
    assert_int_equal(about.devices, 1);
    assert_string_equal(about.device[0].name, "Recorder");
    assert_int_equal(about.device[0].cores, 132);
    assert_true(about.device[0].memory > 0);
    assert_string_equal(about.device[0].fact[0].value, "9.0");
    assert_true(about.builds == 3 && about.machines == 3);
    assert_string_equal(about.build[1].name, "kernels for");
    assert_non_null(strstr(about.build[1].value, "sm_"));
    assert_string_equal(about.machine[0].value, "13.1.0");
    assert_string_equal(about.machine[1].value, "not wanted: HZP_CUDNN=0");
    assert_string_equal(about.machine[2].value, "for CUDA 13.0");
    fake_fail("cudaGetDeviceCount", 0, cudaErrorNoDevice);
    hzp_device_about(0, &about);
    assert_true(about.none[0] && !about.devices);
    assert_string_equal(fake_leaks(), "");

    struct hzp_device_config config = {.name = "cuda:0"};
    assert_int_equal(hzp_device_open(&config, &dev, &why), HZP_OK);
    hzp_device_close(dev);
    config.name = "cuda:1";
    assert_int_equal(hzp_device_open(&config, &dev, &why), HZP_EINVAL);
    assert_non_null(strstr(why.text, "no 1, there are 1"));
    config.name = "cuda:";
    assert_int_equal(hzp_device_open(&config, &dev, &why), HZP_EINVAL);
    config.name = "cud";
    assert_int_equal(hzp_device_open(&config, &dev, &why), HZP_EINVAL);
    assert_non_null(strstr(why.text, "no such backend"));
    assert_null(hzp_device_about(99, &about));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lane_memory),
        cmocka_unit_test(test_lane_refused),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_green),
        cmocka_unit_test(test_prepared),
        cmocka_unit_test(test_prepared_exchange),
        cmocka_unit_test(test_share_order),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_about),
        cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_early_words),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_slow_shares),
        cmocka_unit_test(test_priority),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
