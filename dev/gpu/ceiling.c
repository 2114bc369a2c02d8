/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/ceiling.c - the rate of the library's bf16 product, in a burst and sustained, and the
 * products of a model's steps alone.
 *
 *     ceiling BACKEND [SIZE [SECONDS]]
 *
 * One square product of SIZE (8192) again and again for SECONDS (6).  A device that has been idle
 * runs the first ones at its highest clock; within a second or two its power limit lowers that.
 * burst: the best of the first 0.3 s; sustained: the last third.  Steps that compute all the time
 * can reach the second and not the first.
 *
 * Then the products of a model SIZE / 2 wide, in the proportions of Llama 8B, for 1 to SIZE / 2
 * rows, as its steps have them: O and down are added to a stream in F32, logits are F32.  Weights
 * come from memory: each run reads others, and all of them are more than any cache.
 *
 * One JSON object a line; times of products are medians, by the device's clock.
 */
#include "base/log.h"
#include "base/thread.h"
#include "dev/gpu/open.h"

enum { EACH = 4, TIMES_MAX = 1 << 16, RUNS = 15 };

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

/* ---- products of a model ---- */

/* Outputs and inputs, in widths. */
static const struct matrix {
    const char *name;
    double out, in;
    bool wide; /* results in F32 */
    bool adds;
} matrices[] = {{"qkv", 1.5, 1, false, false},
                {"o", 1, 1, true, true},
                {"gate_up", 7, 1, false, false},
                {"down", 1, 3.5, true, true},
                {"head", 31.3125, 1, true, false}};

static void *noise(struct ceiling *c, int32_t rows, int32_t cols, enum hzp_dtype type)
{
    void *memory;
    MUST(hzp_device_alloc(c->dev, HZP_MEM_DEVICE,
                          (size_t)rows * (size_t)cols * hzp_dtype_size(type), &memory));
    struct hzp_noise_args args = {.y = {memory, rows, cols, cols, type}, .deviation = 1};
    MUST(hzp_lane_issue(c->lane, HZP_OP_noise, &args));
    return memory;
}

/* weights: at least this product's, `all` elements. */
static void time_product(struct ceiling *c, const struct matrix *m, int32_t width, int32_t rows,
                         char *x, char *weights, size_t all, char *y)
{
    int32_t n = (int32_t)(m->out * width), k = (int32_t)(m->in * width);
    size_t each = (size_t)n * (size_t)k;
    struct hzp_matmul_args args = {.a = {x, rows, k, k, HZP_BF16},
                                   .c = {y, rows, n, n, m->wide ? HZP_F32 : HZP_BF16},
                                   .trans_b = 1,
                                   .accumulate = m->adds};
    struct hzp_span span[RUNS + 1];
    double us[RUNS];
    for (int i = 0; i <= RUNS; i++) { /* the first chooses an algorithm */
        size_t at = (size_t)i * each % (all - each + 1) / 64 * 64;
        args.b = (struct hzp_mat){weights + 2 * at, n, k, k, HZP_BF16};
        MUST(hzp_lane_time(c->lane, &span[i]));
        MUST(hzp_lane_issue(c->lane, HZP_OP_matmul, &args));
        await(c);
        if (i > 0)
            us[i - 1] = (double)(span[i].end_ns - span[i].begin_ns) * 1e-3;
    }
    double middle = gpu_median(us, RUNS), flops = 2.0 * rows * (double)each;
    double bytes = 2.0 * (double)each + 2.0 * rows * (double)k +
                   (double)rows * n * (m->wide ? 4 : 2) * (m->adds ? 2 : 1);
    printf("{\"t\":\"matmul\",\"product\":\"%s\",\"rows\":%d,\"out\":%d,\"in\":%d,\"us\":%.2f,"
           "\"gbytes_per_s\":%.1f,\"tflops\":%.1f,\"repeats\":%d,\"spread\":%.4f}\n",
           m->name, rows, n, k, middle, bytes / middle * 1e-3, flops / middle * 1e-6, RUNS,
           gpu_spread(us, RUNS));
    fflush(stdout);
}

static void time_products(struct ceiling *c, int32_t width)
{
    static const int32_t sizes[] = {1, 16, 64, 256, 2048, 4096};
    int32_t most = HZP_MIN(width, sizes[HZP_COUNT(sizes) - 1]);
    int32_t vocab = (int32_t)(matrices[HZP_COUNT(matrices) - 1].out * width);
    char *x = noise(c, most, 7 * width / 2, HZP_BF16), *y = noise(c, most, vocab, HZP_F32);
    char *weights = noise(c, vocab, width, HZP_BF16);
    for (int i = 0; i < HZP_COUNT(sizes); i++)
        for (int k = 0; k < HZP_COUNT(matrices) && sizes[i] <= most; k++)
            time_product(c, &matrices[k], width, sizes[i], x, weights,
                         (size_t)vocab * (size_t)width, y);
    hzp_device_free(c->dev, HZP_MEM_DEVICE, x);
    hzp_device_free(c->dev, HZP_MEM_DEVICE, y);
    hzp_device_free(c->dev, HZP_MEM_DEVICE, weights);
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
    time_products(&c, size / 2);
    hzp_fence_close(c.fence);
    hzp_lane_close(c.lane);
    hzp_device_free(c.dev, HZP_MEM_DEVICE, c.product.a.ptr);
    hzp_device_free(c.dev, HZP_MEM_DEVICE, c.product.b.ptr);
    hzp_device_free(c.dev, HZP_MEM_DEVICE, c.product.c.ptr);
    hzp_device_close(c.dev);
    return 0;
}
