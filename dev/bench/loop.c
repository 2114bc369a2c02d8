/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/loop.c - measures the host time of a step on the engine thread: forming the batch and
 * its plan, issuing it, and delivering results, by the number of decoding sequences; and how much
 * of it overlaps with the device.
 */
#include "dev/bench/bench.h"

#include "nanobatch/loop.h"

#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 8, ITLS_MAX = 1 << 16 };

static void report(struct hzp_bench *b, int many, const struct hzp_loop_stats *from,
                   const struct hzp_loop_stats *to)
{
    char name[80];
    double steps = (double)HZP_MAX(to->serve_steps - from->serve_steps, 1u) * 1e3;
    struct {
        const char *name;
        uint64_t ns;
    } part[] = {{"forming", to->form_ns - from->form_ns},
                {"issuing", to->issue_ns - from->issue_ns},
                {"delivering", to->deliver_ns - from->deliver_ns},
                {"hidden behind a running step", to->hidden_ns - from->hidden_ns}};
    for (int i = 0; i < HZP_COUNT(part); i++) {
        snprintf(name, sizeof(name), "host, %d sequences: %s", many, part[i].name);
        hzp_bench_plain(b, name, (double)part[i].ns / steps, "us/step");
    }
}

/* Generates enough tokens per sequence that the few steps with prompts, and those without all
 * sequences, hardly matter. */
static int decode(struct hzp_bench *b, struct hzp_bench_client *client, int many,
                  struct hzp_err_text *reterr)
{
    struct hzp_request **rq = hzp_xcalloc((size_t)many, sizeof(struct hzp_request *));
    double *itl = hzp_xmalloc(ITLS_MAX * sizeof(*itl));
    int32_t tokens = b->quick ? 60 : 240;
    struct hzp_loop_stats from, to;
    int sent = 0, r = HZP_OK;
    int64_t itls = 0;
    hzp_loop_read_stats(b->engine->parts.loop, &from);
    while (sent < many && r == HZP_OK) {
        r = hzp_bench_submit(client, PROMPT, tokens, &rq[sent], reterr);
        sent += r == HZP_OK;
    }
    for (int i = 0; i < sent; i++)
        hzp_bench_wait(client, rq[i]);
    hzp_loop_read_stats(b->engine->parts.loop, &to);
    for (int i = 0; i < sent; i++) {
        if (itls < ITLS_MAX / 2)
            itls = hzp_bench_itls(rq[i], itl, itls, ITLS_MAX);
        hzp_request_destroy(rq[i]);
    }
    if (r == HZP_OK) {
        char name[80];
        report(b, many, &from, &to);
        snprintf(name, sizeof(name), "step, %d sequences, median", many);
        hzp_bench_plain(b, name, hzp_bench_quantile(itl, itls, 0.5) * 1e6, "us");
    }
    free(itl);
    free(rq);
    return r;
}

int hzp_bench_loop(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    static const int many[] = {1, 64, 512};
    struct hzp_bench_client client;
    int r = HZP_OK;
    hzp_bench_client_open(b, &client);
    for (int i = 0; r == HZP_OK && i < HZP_COUNT(many); i++)
        if (many[i] <= b->started->serving.running_max)
            r = decode(b, &client, many[i], reterr);
    hzp_bench_client_close(&client);
    return r;
}
