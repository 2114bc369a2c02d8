/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/ceiling.c - the rate of the library's bf16 product, in a burst and sustained.
 *
 *     ceiling BACKEND [SIZE [SECONDS]]
 *
 * One square product of SIZE (8192) again and again for SECONDS (6).  A device that has been idle
 * runs the first ones at its highest clock; within a second or two its power limit lowers that.
 * burst: the best of the first 0.3 s; sustained: the last third.  Steps that compute all the time
 * can reach the second and not the first.
 *
 * One JSON object.
 */
#include "base/log.h"
#include "base/thread.h"
#include "dev/gpu/open.h"

enum { EACH = 4, TIMES_MAX = 1 << 16 };

struct ceiling {
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    struct hzp_matmul_args product;
    double at[TIMES_MAX]; /* seconds since the begin when each group of EACH had ended */
    int groups;
};

static void open_product(struct ceiling *c, const char *backend, int32_t size)
{
    struct hzp_device_settings settings = {.name = backend};
    struct hzp_err_text err = {0};
    size_t bytes = (size_t)size * (size_t)size * sizeof(uint16_t);
    void *memory[3];
    if (hzp_settings_device(&settings, 0, &c->dev, &err) < 0) {
        printf("%s\n", err.text);
        exit(77);
    }
    MUST(hzp_lane_open(c->dev, HZP_BOUND_COMPUTE, &c->lane));
    MUST(hzp_fence_open(c->dev, &c->fence));
    for (int i = 0; i < 3; i++)
        MUST(hzp_device_alloc(c->dev, HZP_MEM_DEVICE, bytes, &memory[i]));
    for (int i = 0; i < 3; i++) {
        struct hzp_noise_args noise = {
            .y = {memory[i], size, size, size, HZP_BF16}, .deviation = 1, .seed = (uint64_t)i};
        MUST(hzp_lane_issue(c->lane, HZP_OP_noise, &noise));
    }
    c->product = (struct hzp_matmul_args){.a = {memory[0], size, size, size, HZP_BF16},
                                          .b = {memory[1], size, size, size, HZP_BF16},
                                          .c = {memory[2], size, size, size, HZP_BF16},
                                          .trans_b = 1};
}

static void await(struct ceiling *c)
{
    MUST(hzp_fence_record(c->fence, c->lane));
    MUST(hzp_fence_wait(c->fence));
}

static void run(struct ceiling *c, double seconds)
{
    MUST(hzp_lane_issue(c->lane, HZP_OP_matmul, &c->product)); /* chooses an algorithm */
    await(c);
    uint64_t begin = hzp_now_ns();
    do {
        for (int i = 0; i < EACH; i++)
            MUST(hzp_lane_issue(c->lane, HZP_OP_matmul, &c->product));
        await(c);
        c->at[c->groups++] = (double)(hzp_now_ns() - begin) * 1e-9;
    } while (c->groups < TIMES_MAX && c->at[c->groups - 1] < seconds);
}

int main(int argc, char **argv)
{
    static struct ceiling c;
    int32_t size = argc > 2 ? gpu_number(argv[2]) : 8192;
    int32_t seconds = argc > 3 ? gpu_number(argv[3]) : 6;
    if (argc < 2) {
        fprintf(stderr, "ceiling BACKEND [SIZE [SECONDS]]\n");
        return 2;
    }
    hzp_log_set_level(HZP_LOG_WARN);
    open_product(&c, argv[1], size);
    run(&c, seconds);
    double flops = 2.0 * EACH * size * (double)size * size, best = 0;
    for (int i = 0; i < c.groups && (i == 0 || c.at[i] < 0.3); i++)
        best = HZP_MAX(best, flops / (c.at[i] - (i ? c.at[i - 1] : 0)));
    int from = 0;
    while (from < c.groups - 1 && c.at[from] < c.at[c.groups - 1] * 2 / 3)
        from++;
    double begun = from ? c.at[from - 1] : 0;
    double sustained = (c.groups - from) * flops / (c.at[c.groups - 1] - begun);
    printf("{\"t\":\"ceiling\",\"size\":%d,\"seconds\":%.2f,\"burst_tflops\":%.4g,"
           "\"sustained_tflops\":%.4g}\n",
           size, c.at[c.groups - 1], best * 1e-12, sustained * 1e-12);
    hzp_fence_close(c.fence);
    hzp_lane_close(c.lane);
    hzp_device_free(c.dev, HZP_MEM_DEVICE, c.product.a.ptr);
    hzp_device_free(c.dev, HZP_MEM_DEVICE, c.product.b.ptr);
    hzp_device_free(c.dev, HZP_MEM_DEVICE, c.product.c.ptr);
    hzp_device_close(c.dev);
    return 0;
}
