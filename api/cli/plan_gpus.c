/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/plan_gpus.h"

#include "api/engine/assembly.h"
#include "nanobatch/search/tensor_parallel.h"

#include <stdio.h>

/* What counts as optimal: the products of all parameters at the highest rate that products reach.
 * The published 1857 tokens/s of a GPU for 70e9 parameters are 260 of an A100's 312 TFLOP/s. */
static const double PEAK = 260.0 / 312.0;

static void print_row(const char *name, const struct hzp_tp_step *step, double layer_ns,
                      double optimal)
{
    double step_s = layer_ns * 1e-9 * step->model->layers;
    double rate = (step->decode + step->prefill) / step_s / step->gpus;
    printf("%-30s %10.3f %10.1f %14.0f %11.1f %%\n", name, layer_ns * 1e-6, step_s * 1e3, rate,
           100 * rate / optimal);
}

/* "0-640 640-2048", with the shares if there are any. */
static void print_ranges(const char *what, const int32_t *end, int32_t count, const float *share)
{
    printf("  %-18s", what);
    for (int32_t i = 0; i < count; i++) {
        int32_t begin = i ? end[i - 1] : 0;
        if (begin == end[i])
            continue;
        printf(" %d-%d", begin, end[i]);
        if (share)
            printf(" (%.2f)", (double)share[i]);
    }
    printf("\n");
}

static void explain(const struct hzp_tp_step *step, const struct hzp_tp_shape *s,
                    const struct hzp_tp_result *r)
{
    int32_t decode[HZP_TP_ATTN_NANOS], reads = 0;
    for (int32_t i = 0; i < s->attn_nanos; i++)
        if ((i ? s->attn_end[i - 1] : 0) < step->decode)
            decode[reads++] = HZP_MIN(s->attn_end[i], step->decode);
    printf(
        "the pipeline found, rows of each nano-operation (share of the device beside products)\n");
    print_ranges("q, k, v:", s->attn_end, s->attn_nanos, NULL);
    print_ranges("decode attention:", decode, reads, s->overlaps ? s->read_share : NULL);
    print_ranges("o, MLP:", s->end, s->nanos, NULL);
    if (step->gpus > 1)
        print_ranges("network:", s->end, s->nanos, s->overlaps ? s->send_share : NULL);
    for (int32_t i = 0; i < s->nanos && step->gpus > 1; i++)
        printf("  nano-batch %d: %s\n", i,
               s->gathers[i] ? "reduce-scatter, residual and norm of own rows, all-gather"
                             : "all-reduce, residual and norm of all rows");
    if (s->nanos > 1)
        printf("  each is issued %d stages of a layer (of 13) behind the one before\n", s->lag);
    static const char *const resource[] = {"compute", "memory", "network"};
    const double busy[] = {r->compute_ns, r->memory_ns, r->network_ns};
    int most = 0;
    for (int i = 1; i < HZP_COUNT(busy); i++)
        most = busy[i] > busy[most] ? i : most;
    printf("  limited by %s, which is busy for %.0f %% of a layer\n", resource[most],
           100 * busy[most] / HZP_MAX(r->layer_ns, 1));
    printf("  busy in a layer: compute %.3f ms, memory %.3f ms, network %.3f ms of %.3f ms\n",
           r->compute_ns * 1e-6, r->memory_ns * 1e-6, r->network_ns * 1e-6, r->layer_ns * 1e-6);
}

static int check(const struct hzp_tp_step *step, struct hzp_err_text *reterr)
{
    const struct hzp_model_config *c = step->model;
    if (step->decode + step->prefill < 1)
        return hzp_fail(reterr, HZP_EINVAL,
                        "plan: the step is empty; use --decode, --prefill or both");
    if (c->heads.kv_heads % step->gpus || c->inner % step->gpus)
        return hzp_fail_param(reterr, HZP_EINVAL, "--gpus",
                              "--gpus %d does not divide %d key heads and an inner width of %d",
                              step->gpus, c->heads.kv_heads, c->inner);
    return HZP_OK;
}

int hzp_plan_gpus(const struct hzp_options *options, struct hzp_err_text *reterr)
{
    const struct hzp_plan_settings *o = &options->plan;
    struct hzp_model_config config;
    HZP_TRY(hzp_assembly_model(&options->engine.model, &config, reterr));
    struct hzp_tp_step step = {.model = &config,
                               .gpus = (int32_t)o->gpus,
                               .decode = (int32_t)o->decode,
                               .depth = o->depth ? (int32_t)o->depth : 512,
                               .prefill = (int32_t)o->prefill};
    HZP_TRY(check(&step, reterr));
    struct hzp_tp_rates rates = hzp_tp_a100;
    rates.flops = o->gpu_tflops * 1e12;
    rates.memory = o->gpu_memory * 1e9;
    rates.link = o->gpu_link * 1e9;
    double optimal = rates.flops * PEAK / (2 * (double)hzp_config_parameters(&config));
    printf("on paper: %d GPU%s of %g TFLOP/s, memory %g GB/s, link %g GB/s each way; %lld million "
           "parameters, bf16\n%d decode rows at %d, %d prompt rows; optimal: %.0f tokens/s a GPU\n",
           step.gpus, step.gpus == 1 ? "" : "s", o->gpu_tflops, o->gpu_memory, o->gpu_link,
           (long long)hzp_config_parameters(&config) / 1000000, step.decode, step.depth,
           step.prefill, optimal);
    printf("%-30s %10s %10s %14s %13s\n", "plan", "layer ms", "step ms", "tokens/s/GPU",
           "of optimal");
    struct hzp_tp_shape one = hzp_tp_sequential(&step), cut = hzp_tp_cut_only(&step);
    print_row("one operation at a time", &step, hzp_tp_simulate(&rates, &step, &one).layer_ns,
              optimal);
    print_row("nano-batches, no overlap", &step, hzp_tp_simulate(&rates, &step, &cut).layer_ns,
              optimal);
    for (int table3 = 1; table3 >= 0; table3--) {
        int32_t tried;
        rates.table3 = table3;
        struct hzp_tp_shape found = hzp_tp_search(&rates, &step, &tried);
        struct hzp_tp_result r = hzp_tp_simulate(&rates, &step, &found);
        print_row(table3 ? "found, profile of the paper" : "found, profile of its code", &step,
                  r.layer_ns, optimal);
        if (!table3)
            explain(&step, &found, &r);
    }
    return HZP_OK;
}
