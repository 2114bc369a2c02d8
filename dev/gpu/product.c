/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/product.c - the product's own plans on a device: decode, prefill and training steps of
 * known shapes with random weights made there, beside the device's limits of the same run.
 *
 *     product [--decode] [--once] BACKEND SHAPE...     shapes: tiny 1b 3b 8b; --decode: decode
 *     steps alone;
 *                                                      --once: each step twice, not timed: for a
 *                                                      sanitizer
 *
 * One JSON object a line.  Times are medians over steps, host clock, from issue to the end of all.
 */
#include "base/log.h"
#include "base/thread.h"
#include "dev/bench/limits.h"
#include "nanobatch/model/backward.h"
#include "nanobatch/model/forward.h"
#include "nanobatch/model/update.h"
#include "nanobatch/run/exec.h"
#include "weights/layout.h"
#include "weights/versions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_ROWS = 16, STEPS = 15 };

static const struct shape {
    const char *name;
    int32_t layers, width, inner, vocab;
    struct hzp_heads heads;
    bool tied, serves, trains;
} shapes[] = {
    {"tiny", 2, 256, 512, 1000, {4, 2, 64}, true, true, true},
    {"1b", 16, 2048, 8192, 128256, {32, 8, 64}, true, true, true},
    {"3b", 28, 3072, 8192, 128256, {24, 8, 128}, true, false, true},
    {"8b", 32, 4096, 14336, 128256, {32, 8, 128}, false, true, false},
};

struct bench {
    const struct shape *shape;
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    struct hzp_layout layout;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    struct hzp_limits limits;
    bool decode; /* only decode steps are run */
    bool once;
    double macs; /* of a row, without attention and head */
    /* the last run: distance of the quartiles over the median */
    double spread;
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "product: %s: %s\n", #call, hzp_err_name(must_));                      \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

static void finish(struct bench *b)
{
    MUST(hzp_fence_record(b->fence, b->lane));
    MUST(hzp_fence_wait(b->fence));
}

/* Fills with BF16 noise of deviation 0.02 on the device: elements first, first + 1, .. of a
   sequence. */
static void noise_fill(struct bench *b, void *base, size_t elements, size_t first, uint64_t seed)
{
    const size_t piece = (size_t)1 << 28;
    for (size_t at = 0; at < elements; at += piece) {
        int32_t n = (int32_t)HZP_MIN(piece, elements - at);
        struct hzp_mat part = {(char *)base + 2 * at, 1, n, n, HZP_BF16};
        struct hzp_noise_args args = {
            .y = part, .seed = seed, .first = first + at, .deviation = 0.02f};
        MUST(hzp_op_noise(b->lane, &args));
    }
    finish(b);
}

static void weights_fill(struct bench *b, const struct hzp_version *v)
{
    for (int32_t u = 0; u < b->layout.units; u++) {
        struct hzp_unit_view unit = hzp_version_unit(b->weights, v, u);
        noise_fill(b, unit.base, unit.elements, b->layout.unit[u].before, 1);
    }
}

static void set_up(struct bench *b)
{
    const struct shape *s = b->shape;
    struct hzp_model_config config = {.family = "llama",
                                      .layers = s->layers,
                                      .width = s->width,
                                      .inner = s->inner,
                                      .vocab = s->vocab,
                                      .heads = s->heads,
                                      .positions = 8192,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 500000,
                                      .tied = s->tied,
                                      .disk_type = HZP_BF16};
    struct hzp_weights_config store = {
        .type = HZP_BF16, .slots = 1, .max_staleness = 1, .first_id = 1};
    struct hzp_version *v;
    hzp_layout_make(&config, &b->layout);
    MUST(hzp_weights_create(b->dev, &b->layout, &store, &b->weights));
    MUST(hzp_weights_begin(b->weights, &v));
    weights_fill(b, v);
    hzp_weights_publish(b->weights, v, 0);
    MUST(hzp_model_create(b->dev, b->weights, 8192, &b->model));
    MUST(hzp_exec_create(b->dev, &b->exec));
    hzp_plan_init(&b->plan);
    double packed = (s->heads.heads + 2.0 * s->heads.kv_heads) * s->heads.dim;
    b->macs = s->layers * (packed * s->width + (double)s->heads.heads * s->heads.dim * s->width +
                           3.0 * s->inner * s->width);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Returns the median seconds of running the plan; sets spread. */
static double run(struct bench *b)
{
    double seconds[STEPS];
    struct hzp_exec_times times;
    int steps = b->once ? 1 : STEPS;
    for (int i = b->once ? -1 : -3; i < steps; i++) {
        uint64_t begin = hzp_now_ns();
        MUST(hzp_exec_run(b->exec, &b->plan, NULL, &times));
        if (i >= 0)
            seconds[i] = (double)(hzp_now_ns() - begin) * 1e-9;
    }
    qsort(seconds, (size_t)steps, sizeof(seconds[0]), ascending);
    double middle = seconds[steps / 2];
    b->spread = (seconds[steps - 1 - steps / 4] - seconds[steps / 4]) / middle;
    return middle;
}

/* Segments of `rows` new rows after `context` others; each has pages of its own, in order. */
static void fill(struct hzp_batch *batch, int32_t segs, int32_t context, int32_t rows,
                 int32_t vocab)
{
    int32_t per = HZP_DIV_UP(context + rows, PAGE_ROWS);
    hzp_batch_clear(batch);
    for (int32_t i = 0; i < segs; i++) {
        int32_t *page = hzp_batch_add_segment(batch, context, rows == 1);
        for (int32_t k = 0; k < per; k++)
            page[k] = k * segs + i;
        int32_t row = 0;
        for (int32_t k = 0; k < rows; k++) {
            int32_t p = context + k;
            row = hzp_batch_add_row(batch, (100 + 7 * k + i) % vocab,
                                    page[p / PAGE_ROWS] * PAGE_ROWS + p % PAGE_ROWS);
        }
        int32_t at = hzp_batch_add_logits(batch, row);
        batch->sample[at] = (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
    }
}

struct serving {
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_kv *kv;
    void *pages;
};

static void serving_open(struct bench *b, struct serving *s, int32_t pages)
{
    struct hzp_batch_config max = {
        .rows_max = 4096, .segs_max = 512, .page_stride = 520, .logits_max = 512, .edits_max = 1};
    const struct hzp_heads *h = &b->shape->heads;
    size_t page = (size_t)h->kv_heads * PAGE_ROWS * (size_t)h->dim * 2,
           layer = page * (size_t)pages;
    size_t all = 2 * layer * (size_t)b->shape->layers;
    MUST(hzp_batch_create(b->dev, &max, &s->batch));
    MUST(hzp_serve_space_create(b->model, 4096, 512, &s->space));
    MUST(hzp_device_alloc(b->dev, HZP_MEM_DEVICE, all, &s->pages));
    noise_fill(b, s->pages, all / 2, 0, 2);
    s->kv = hzp_xcalloc((size_t)b->shape->layers, sizeof(*s->kv));
    for (int32_t l = 0; l < b->shape->layers; l++) {
        char *base = (char *)s->pages + 2 * layer * (size_t)l;
        s->kv[l] = (struct hzp_kv){base, base + layer, pages, PAGE_ROWS, HZP_BF16, NULL, NULL};
    }
}

static void serving_close(struct bench *b, struct serving *s)
{
    hzp_device_free(b->dev, HZP_MEM_DEVICE, s->pages);
    hzp_serve_space_destroy(s->space);
    hzp_batch_destroy(s->batch);
    free(s->kv);
}

static void serve_step(struct bench *b, struct serving *s, int32_t segs, int32_t context,
                       int32_t rows)
{
    const struct shape *shape = b->shape;
    fill(s->batch, segs, context, rows, shape->vocab);
    hzp_plan_clear(&b->plan);
    hzp_forward_build(&b->plan, b->model, hzp_weights_current(b->weights), s->batch, s->kv,
                      s->space, NULL);
    double seconds = run(b), all = (double)segs * rows, head = (double)shape->vocab * shape->width;
    double kv = 2.0 * 2 * shape->heads.kv_heads * shape->heads.dim * shape->layers;
    double bytes = 2 * (b->macs + head) + kv * segs * (context + rows);
    double flops = 2 * (b->macs * all + head * segs) + 4.0 * shape->heads.heads * shape->heads.dim *
                                                           shape->layers * all *
                                                           (context + 0.5 * rows);
    printf(
        "{\"t\":\"serve\",\"shape\":\"%s\",\"sequences\":%d,\"context\":%d,\"rows\":%d,\"ms\":%.3f,"
        "\"tokens_per_s\":%.1f,\"gbytes_per_s\":%.1f,\"of_copy\":%.3f,\"tflops\":%.1f,"
        "\"of_gemm\":%.3f,\"kernels\":%d,\"repeats\":%d,\"spread\":%.4f}\n",
        shape->name, segs, context, rows, seconds * 1e3, all / seconds, bytes / seconds * 1e-9,
        bytes / seconds / b->limits.read_bytes_per_s, flops / seconds * 1e-12,
        flops / seconds / hzp_limits_gemm(&b->limits, HZP_BF16), b->plan.items, b->once ? 1 : STEPS,
        b->spread);
    fflush(stdout);
}

/* Times decode attention of all layers and nothing else. */
static void attention(struct bench *b, struct serving *s, int32_t segs, int32_t context)
{
    const struct shape *shape = b->shape;
    const struct hzp_heads *h = &shape->heads;
    struct hzp_nano nano[HZP_NANO_MAX];
    int32_t cut[2] = {0, segs};
    fill(s->batch, segs, context, 1, b->shape->vocab);
    hzp_batch_cut(s->batch, cut, 1, nano);
    hzp_plan_clear(&b->plan);
    for (int32_t l = 0; l < shape->layers; l++)
        HZP_PLAN_ADD(&b->plan, attn_decode, HZP_LANE_COMPUTE,
                     .qkv = hzp_mat_rows(s->space->qkv, 0, segs),
                     .out = hzp_mat_rows(s->space->attn, 0, segs), .kv = s->kv[l],
                     .segs = nano[0].decode, .page = nano[0].decode_page,
                     .page_stride = nano[0].page_stride, .heads = *h, .scale = 0.088f);
    double seconds = run(b);
    double bytes = 4.0 * h->kv_heads * h->dim * shape->layers * segs * (context + 1.0);
    printf("{\"t\":\"attention\",\"shape\":\"%s\",\"sequences\":%d,\"context\":%d,\"ms\":%.3f,"
           "\"gbytes_per_s\":%.1f,\"of_copy\":%.3f,\"repeats\":%d,\"spread\":%.4f}\n",
           shape->name, segs, context, seconds * 1e3, bytes / seconds * 1e-9,
           bytes / seconds / b->limits.read_bytes_per_s, b->once ? 1 : STEPS, b->spread);
    fflush(stdout);
}

static void serve(struct bench *b)
{
    static const int32_t steps[][3] = {{1, 512, 1},    {1, 4096, 1}, {16, 1024, 1}, {64, 1024, 1},
                                       {256, 1024, 1}, {1, 0, 2048}, {4, 0, 1024},  {1, 4096, 512}};
    struct serving s;
    int32_t pages = 0;
    for (int i = 0; i < HZP_COUNT(steps); i++)
        pages = HZP_MAX(pages, steps[i][0] * HZP_DIV_UP(steps[i][1] + steps[i][2], PAGE_ROWS));
    serving_open(b, &s, pages);
    for (int i = 0; i < HZP_COUNT(steps); i++)
        if (!b->decode || steps[i][2] == 1)
            serve_step(b, &s, steps[i][0], steps[i][1], steps[i][2]);
    attention(b, &s, 64, 1024);
    attention(b, &s, 256, 1024);
    serving_close(b, &s);
}

static void train(struct bench *b, int32_t docs, int32_t length)
{
    const struct shape *shape = b->shape;
    int32_t rows = docs * length;
    struct hzp_train_space_config config = {
        .rows_max = rows, .head_rows = HZP_MIN(rows, 2048), .moment_type = HZP_BF16};
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_version *v = hzp_weights_current(b->weights);
    int32_t *token = hzp_xcalloc((size_t)length, sizeof(*token));
    uint8_t *learn = hzp_xmalloc((size_t)length);
    MUST(hzp_train_space_create(b->model, &config, &space));
    MUST(hzp_micro_create(b->dev, rows, &micro));
    memset(learn, 1, (size_t)length);
    for (int32_t i = 0; i < length; i++)
        token[i] = (i * 131) % shape->vocab;
    for (int32_t d = 0; d < docs; d++)
        MUST(hzp_micro_add(micro, token, learn, length));
    hzp_plan_clear(&b->plan);
    hzp_micro_build(&b->plan, b->model, v, micro, space, true);
    double micro_s = run(b);
    struct hzp_update_hyper hyper = {.lr = 1e-9f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-8f,
                                     .clip = 1,
                                     .grad_scale = 1.0f / (float)rows,
                                     .t = 1};
    hzp_plan_clear(&b->plan);
    hzp_update_build(&b->plan, b->model, v, v, &hyper, space);
    double spread = b->spread, update_s = run(b);
    double flops =
        6 * (b->macs + (double)shape->vocab * shape->width) * rows +
        6.0 * shape->heads.heads * shape->heads.dim * shape->layers * (double)rows * length;
    double seconds = micro_s + update_s, gemm = hzp_limits_gemm(&b->limits, HZP_BF16);
    printf("{\"t\":\"train\",\"shape\":\"%s\",\"documents\":%d,\"length\":%d,\"loss\":%.3f,"
           "\"micro_ms\":%.2f,\"update_ms\":%.2f,\"tokens_per_s\":%.0f,\"micro_tflops\":%.1f,"
           "\"micro_of_gemm\":%.3f,\"of_gemm\":%.3f,\"repeats\":%d,\"spread\":%.4f}\n",
           shape->name, docs, length, (double)micro->loss.value[0], micro_s * 1e3, update_s * 1e3,
           rows / seconds, flops / micro_s * 1e-12, flops / micro_s / gemm, flops / seconds / gemm,
           b->once ? 1 : STEPS, HZP_MAX(spread, b->spread));
    fflush(stdout);
    free(token);
    free(learn);
    hzp_micro_destroy(micro);
    hzp_train_space_destroy(space);
}

static void tear_down(struct bench *b)
{
    hzp_plan_fini(&b->plan);
    hzp_exec_destroy(b->exec);
    hzp_model_destroy(b->model);
    hzp_weights_destroy(b->weights);
    hzp_layout_free(&b->layout);
}

int main(int argc, char **argv)
{
    hzp_log_init();
    struct bench b = {0};
    for (; argc > 1 && argv[1][0] == '-'; argv++, argc--) {
        b.decode |= strcmp(argv[1], "--decode") == 0;
        b.once |= strcmp(argv[1], "--once") == 0;
    }
    if (argc < 3) {
        fprintf(stderr, "usage: product [--decode] [--once] BACKEND SHAPE...\n");
        return 2;
    }
    struct hzp_device_config device = {.name = argv[1]};
    struct hzp_err_text text = {0};
    if (hzp_device_open(&device, &b.dev, &text) < 0) {
        printf("skip: %s\n", text.text);
        return 77;
    }
    MUST(hzp_lane_open(b.dev, HZP_BOUND_COPY, &b.lane));
    MUST(hzp_fence_open(b.dev, &b.fence));
    b.limits = (struct hzp_limits){.read_bytes_per_s = 1, .gemm_f32 = 1, .gemm_bf16 = 1};
    if (strcmp(argv[2], "tiny") != 0)
        MUST(hzp_device_limits(b.dev, &b.limits));
    printf(
        "{\"t\":\"device\",\"label\":\"%s\",\"copy_gbytes_per_s\":%.0f,\"gemm_bf16_tflops\":%.1f,"
        "\"gemm_f32_tflops\":%.1f}\n",
        b.dev->label, b.limits.read_bytes_per_s * 1e-9, b.limits.gemm_bf16 * 1e-12,
        b.limits.gemm_f32 * 1e-12);
    for (int i = 2; i < argc; i++)
        for (int k = 0; k < HZP_COUNT(shapes); k++) {
            if (strcmp(argv[i], shapes[k].name) != 0)
                continue;
            b.shape = &shapes[k];
            set_up(&b);
            if (b.shape->serves)
                serve(&b);
            if (b.shape->trains && !b.decode) {
                train(&b, 8, b.shape->width < 1000 ? 64 : 1024);
                if (b.shape->width > 1000)
                    train(&b, 2, 4096);
            }
            tear_down(&b);
        }
    hzp_fence_close(b.fence);
    hzp_lane_close(b.lane);
    hzp_device_close(b.dev);
    return 0;
}
