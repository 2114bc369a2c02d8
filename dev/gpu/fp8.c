/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/fp8.c - decoding with e4m3 projections compared with bf16: how long steps take, and by
 * how much the logits differ.
 *
 *     fp8 BACKEND MODEL [DEPTH ROWS...]        not given: at position 512, 1 16 64 256
 *
 * Both read the same noise.  Logits of noise are nearly equal, so the largest one changes far
 * more often than with a trained model; `hzpserve eval --quantization fp8` measures trained
 * models.
 *
 * One JSON object a line.  Times are medians over steps, host clock, from issue to the end of
 * all.
 */
#include "base/log.h"
#include "base/thread.h"
#include "dev/gpu/open.h"
#include "nanobatch/run/exec.h"

#include <math.h>
#include <string.h>

enum { STEPS = 15, SIZES_MAX = 8 };

struct run {
    double seconds[SIZES_MAX], spread[SIZES_MAX];
    float *logits; /* for the last size, [rows][vocab] */
};

static double time_step(struct hzp_exec *exec, const struct hzp_plan *plan, double *ret_spread)
{
    double seconds[STEPS];
    struct hzp_exec_times times;
    for (int i = -3; i < STEPS; i++) {
        uint64_t begin = hzp_now_ns();
        MUST(hzp_exec_run(exec, plan, NULL, &times));
        if (i >= 0)
            seconds[i] = (double)(hzp_now_ns() - begin) * 1e-9;
    }
    double middle = gpu_median(seconds, STEPS);
    *ret_spread = gpu_spread(seconds, STEPS);
    return middle;
}

/* *ret_vocab: the model's vocabulary size. */
static void measure(const char *device, const char *model, bool fp8, int32_t depth,
                    const int32_t *rows, int sizes, struct run *ret, int32_t *ret_vocab)
{
    struct gpu_config config;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    struct hzp_assembly bench;
    gpu_configure(device, model, &config);
    config.model.fp8 = fp8;
    config.rows.decode = rows[sizes - 1];
    config.rows.depth = depth;
    gpu_open(&config, &bench);
    *ret_vocab = bench.config.vocab;
    gpu_fill_pages(&bench);
    hzp_plan_init(&plan);
    MUST(hzp_exec_create(bench.dev, &exec));
    for (int i = 0; i < sizes; i++) {
        MUST(hzp_rig_serve(bench.rig, rows[i], depth, 0, 0));
        hzp_rig_build(bench.rig, &hzp_plan_sequential, 0, 0, &plan);
        ret->seconds[i] = time_step(exec, &plan, &ret->spread[i]);
    }
    struct hzp_mat logits = bench.rig->space->logits;
    size_t bytes = (size_t)rows[sizes - 1] * (size_t)logits.stride * sizeof(float);
    void *owned;
    const void *data;
    MUST(hzp_device_view(bench.dev, logits.ptr, bytes, &data, &owned));
    const char *view = data;
    ret->logits = hzp_xmalloc((size_t)rows[sizes - 1] * (size_t)*ret_vocab * sizeof(float));
    for (int32_t r = 0; r < rows[sizes - 1]; r++)
        memcpy(ret->logits + (size_t)r * (size_t)*ret_vocab,
               view + (size_t)r * (size_t)logits.stride * sizeof(float),
               (size_t)*ret_vocab * sizeof(float));
    free(owned);
    hzp_exec_destroy(exec);
    hzp_plan_fini(&plan);
    hzp_assembly_close(&bench);
}

static int32_t greatest(const float *value, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (value[i] > value[best])
            best = i;
    return best;
}

static void compare(const struct run *bf16, const struct run *fp8, int32_t rows, int32_t vocab)
{
    double most = 0, squares = 0, sum = 0, sum_squares = 0, n = (double)rows * vocab;
    int32_t same = 0;
    for (int32_t r = 0; r < rows; r++) {
        const float *x = bf16->logits + (size_t)r * (size_t)vocab;
        const float *y = fp8->logits + (size_t)r * (size_t)vocab;
        same += greatest(x, vocab) == greatest(y, vocab);
        for (int32_t i = 0; i < vocab; i++) {
            double off = fabs((double)x[i] - (double)y[i]);
            most = off > most || isnan(off) ? off : most;
            squares += off * off;
            sum += (double)x[i];
            sum_squares += (double)x[i] * (double)x[i];
        }
    }
    double deviation = sqrt(sum_squares / n - sum / n * (sum / n));
    if (!isfinite(most) || !(deviation > 0)) {
        fprintf(stderr, "fp8: logits are not finite, or all alike\n");
        exit(3);
    }
    printf("{\"t\":\"fp8 logits\",\"rows\":%d,\"max_difference\":%.4f,\"rms_difference\":%.4f,"
           "\"deviation\":%.4f,\"rms_over_deviation\":%.4f,\"greedy_same\":%.4f}\n",
           rows, most, sqrt(squares / n), deviation, sqrt(squares / n) / deviation,
           (double)same / rows);
}

int main(int argc, char **argv)
{
    static const int32_t usual[] = {1, 16, 64, 256};
    int32_t rows[SIZES_MAX], depth = 512, vocab = 0;
    int sizes = HZP_COUNT(usual);
    struct run bf16, fp8;
    hzp_log_init();
    if (argc < 3 || argc == 4 || argc - 4 > SIZES_MAX) {
        fprintf(stderr, "usage: fp8 BACKEND MODEL [DEPTH ROWS...]\n");
        return 2;
    }
    memcpy(rows, usual, sizeof(usual));
    if (argc > 4) {
        depth = gpu_number(argv[3]);
        sizes = argc - 4;
        for (int i = 0; i < sizes; i++)
            rows[i] = gpu_number(argv[4 + i]);
    }
    measure(argv[1], argv[2], false, depth, rows, sizes, &bf16, &vocab);
    measure(argv[1], argv[2], true, depth, rows, sizes, &fp8, &vocab);
    for (int i = 0; i < sizes; i++)
        printf("{\"t\":\"fp8\",\"sequences\":%d,\"context\":%d,\"bf16_ms\":%.3f,\"fp8_ms\":%.3f,"
               "\"bf16_tokens_per_s\":%.1f,\"fp8_tokens_per_s\":%.1f,\"times\":%.3f,"
               "\"repeats\":%d,\"spread\":%.4f}\n",
               rows[i], depth, bf16.seconds[i] * 1e3, fp8.seconds[i] * 1e3,
               rows[i] / bf16.seconds[i], rows[i] / fp8.seconds[i],
               bf16.seconds[i] / fp8.seconds[i], STEPS, HZP_MAX(bf16.spread[i], fp8.spread[i]));
    compare(&bf16, &fp8, rows[sizes - 1], vocab);
    free(bf16.logits);
    free(fp8.logits);
    return 0;
}
