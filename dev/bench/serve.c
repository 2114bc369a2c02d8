/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/serve.c - measures decoding of one sequence, prefill of 512 tokens (or as many as the
 * context has room for), and decoding of many sequences.
 */
#include "dev/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 9, PROMPT_MAX = 512, ITLS_MAX = 1 << 16, MANY_MAX = 64 };

/* One sequence, 16 tokens in: appends its gaps between tokens to itl, which has n; the new n. */
static int decode_once(struct hzp_bench *b, struct hzp_bench_client *client, double *itl,
                       int64_t *n, struct hzp_err_text *reterr)
{
    struct hzp_request *rq;
    HZP_TRY(hzp_bench_submit(client, 16, b->quick ? 16 : 64, &rq, reterr));
    hzp_bench_wait(client, rq);
    *n = hzp_bench_itls(rq, itl, *n, ITLS_MAX);
    hzp_request_destroy(rq);
    return HZP_OK;
}

/* Decoding one sequence reads every weight once per token; its keys and values are small in
 * comparison.  Where the rate of reads varies, that of the weights' memory (of the published type,
 * also where E4M3 copies are read) is taken in turns with the decoding. */
static int decode_alone(struct hzp_bench *b, struct hzp_bench_client *client,
                        struct hzp_err_text *reterr)
{
    const int rounds = b->quick ? 1 : ROUNDS;
    double *itl = hzp_xmalloc(ITLS_MAX * sizeof(*itl)), reads[ROUNDS];
    struct hzp_device *reader = NULL;
    const struct hzp_weights *w = b->engine->parts.weights;
    const struct hzp_units *units = hzp_version_units(w, hzp_weights_slot(w, 0));
    size_t size = hzp_units_bytes(units->layout, units->type);
    int64_t n = 0;
    int r = HZP_OK;
    if (b->limits.reads_vary)
        r = hzp_settings_device(&b->started->device, 0, &reader, reterr);
    for (int round = 0; round < rounds && r >= 0; round++) {
        if (reader && (r = hzp_device_read_rate(reader, units->base[0], size, &reads[round])) < 0)
            hzp_fail(reterr, r, "bench: the rate of memory reads cannot be measured");
        else
            r = decode_once(b, client, itl, &n, reterr);
    }
    hzp_device_close(reader);
    double rate = reader ? hzp_bench_quantile(reads, rounds, 0.5) : 0;
    double bytes = hzp_bench_weight_bytes(b->engine);
    if (r >= 0 && reader) {
        hzp_bench_figure(b, "decode, one sequence", 1 / hzp_bench_quantile(itl, n, 0.5), "tokens/s",
                         HZP_BENCH_OTHER, rate / bytes,
                         "reads of the weights in turns / weight bytes");
        hzp_bench_plain(b, "reads of the weights in turns with it", rate * 1e-9, "GB/s");
    } else if (r >= 0) {
        hzp_bench_figure(b, "decode, one sequence", 1 / hzp_bench_quantile(itl, n, 0.5), "tokens/s",
                         HZP_BENCH_READS, 1 / bytes, "read bandwidth / weight bytes");
    }
    free(itl);
    return r;
}

static int prefill(struct hzp_bench *b, struct hzp_bench_client *client,
                   struct hzp_err_text *reterr)
{
    enum { RUNS = 7 };
    double seconds[RUNS];
    int runs = b->quick ? 2 : RUNS;
    int32_t prompt = HZP_MIN(PROMPT_MAX, b->engine->parts.plan.positions - 1);
    char name[64];
    for (int run = 0; run < runs; run++) {
        struct hzp_request *rq;
        HZP_TRY(hzp_bench_submit(client, prompt, 1, &rq, reterr));
        hzp_bench_wait(client, rq);
        seconds[run] = (double)(rq->out[0].at_ns - rq->submitted_ns) * 1e-9;
        hzp_request_destroy(rq);
    }
    double median = hzp_bench_quantile(seconds, runs, 0.5);
    const struct hzp_model_config *c = &b->engine->parts.config;
    double attention = 2.0 * c->heads.heads * c->heads.dim * prompt * (prompt + 1) / 2 * c->layers;
    double flops =
        2 * (hzp_bench_row_macs(c, false) * prompt + attention + (double)c->vocab * c->width);
    snprintf(name, sizeof(name), "prefill, %d tokens", prompt);
    hzp_bench_figure(b, name, prompt / median, "tokens/s", HZP_BENCH_GEMM, prompt / flops,
                     "GEMM peak / operations");
    snprintf(name, sizeof(name), "prefill, %d tokens: time to first token", prompt);
    hzp_bench_plain(b, name, median * 1e3, "ms");
    return HZP_OK;
}

static int decode_many(struct hzp_bench *b, struct hzp_bench_client *client, int many,
                       struct hzp_err_text *reterr)
{
    struct hzp_request *rq[MANY_MAX];
    int32_t tokens = b->quick ? 16 : 64;
    HZP_TRY(hzp_bench_submit_all(client, many, 64, tokens, rq, reterr));
    /* From the time when all sequences decode to the end of the first one. */
    uint64_t begin = 0, end = UINT64_MAX;
    for (int i = 0; i < many; i++) {
        hzp_bench_wait(client, rq[i]);
        begin = HZP_MAX(begin, rq[i]->out[0].at_ns);
        end = HZP_MIN(end, rq[i]->out[tokens - 1].at_ns);
    }
    int64_t made = 0;
    for (int i = 0; i < many; i++) {
        for (int32_t k = 0; k < tokens; k++)
            made += rq[i]->out[k].at_ns > begin && rq[i]->out[k].at_ns <= end;
        hzp_request_destroy(rq[i]);
    }
    char name[64];
    snprintf(name, sizeof(name), "decode, %d sequences", many);
    if (end > begin)
        hzp_bench_plain(b, name, (double)made / ((double)(end - begin) * 1e-9), "tokens/s");
    return HZP_OK;
}

int hzp_bench_serve(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    static const int many[] = {4, 16, 32};
    struct hzp_bench_client client;
    hzp_bench_client_open(b, &client);
    int r = decode_alone(b, &client, reterr);
    if (r == HZP_OK)
        r = prefill(b, &client, reterr);
    for (int i = 0; r == HZP_OK && i < HZP_COUNT(many); i++)
        if (many[i] <= b->started->serving.running_max)
            r = decode_many(b, &client, many[i], reterr);
    hzp_bench_client_close(&client);
    return r;
}
