/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A 64-bit mixing function (the finalizer of SplitMix64: Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int hzp_workload_equal(struct hzp_workload *ret, int64_t requests, int32_t input, int32_t output,
                       struct hzp_err_text *reterr)
{
    memset(ret, 0, sizeof(*ret));
    if (requests < 1 || requests > HZP_TRACE_REQUESTS_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "a load has 1 to %d requests", HZP_TRACE_REQUESTS_MAX);
    struct hzp_trace_request *request = malloc((size_t)requests * sizeof(*request));
    if (!request)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for %lld requests", (long long)requests);
    for (int64_t i = 0; i < requests; i++)
        request[i] = (struct hzp_trace_request){.input = input, .output = output};
    ret->block = HZP_TRACE_BLOCK;
    ret->trace.requests = requests;
    ret->trace.request = request;
    return HZP_OK;
}

void hzp_workload_of_trace(struct hzp_workload *ret, struct hzp_trace_file *trace)
{
    memset(ret, 0, sizeof(*ret));
    ret->block = HZP_TRACE_BLOCK;
    ret->trace = *trace;
    memset(trace, 0, sizeof(*trace));
}

void hzp_workload_free(struct hzp_workload *w)
{
    hzp_trace_file_free(&w->trace);
}

void hzp_workload_shrink(struct hzp_workload *w, int32_t by)
{
    HZP_ASSERT(by > 0 && w->block % by == 0);
    w->block /= by;
    for (int64_t i = 0; i < w->trace.requests; i++) {
        w->trace.request[i].input = (int32_t)HZP_DIV_UP(w->trace.request[i].input, by);
        w->trace.request[i].output = (int32_t)HZP_DIV_UP(w->trace.request[i].output, by);
    }
}

void hzp_workload_clip(struct hzp_workload *w, int32_t context)
{
    for (int64_t i = 0; i < w->trace.requests; i++) {
        struct hzp_trace_request *r = &w->trace.request[i];
        if (r->input <= context - r->output)
            continue;
        int32_t output = HZP_MIN(r->output, context / 2);
        int32_t input = HZP_MIN(r->input, context - output);
        w->clipped++;
        w->clipped_in += r->input - input;
        w->clipped_out += r->output - output;
        r->input = input;
        r->output = output;
        r->hashes = HZP_MIN(r->hashes, (int32_t)HZP_DIV_UP(input, w->block));
    }
}

void hzp_workload_arrivals(struct hzp_workload *w, double scale, double rate)
{
    double at = 0;
    for (int64_t i = 0; i < w->trace.requests; i++) {
        struct hzp_trace_request *r = &w->trace.request[i];
        if (rate <= 0) {
            r->at_s /= scale;
            continue;
        }
        uint64_t bits = mix(mix(w->seed ^ 0x61727269u) + (uint64_t)i);
        r->at_s = at;
        at -= log(((double)(bits >> 11) + 1) * 0x1p-53) / rate;
    }
    w->trace.timed |= rate > 0;
}

bool hzp_workload_timed(const struct hzp_workload *w)
{
    return w->trace.timed;
}

void hzp_workload_prompt(const struct hzp_workload *w, int64_t i, int32_t *token)
{
    const struct hzp_trace_request *r = &w->trace.request[i];
    for (int32_t begin = 0; begin < r->input; begin += w->block) {
        int32_t block = begin / w->block;
        uint64_t of = block < r->hashes ? mix((uint64_t)w->trace.hash[r->first_hash + block])
                                        : mix(mix((uint64_t)i) ^ 0x616c6f6e65u) + (uint64_t)block;
        uint64_t key = mix(of ^ mix(w->seed));
        int32_t end = HZP_MIN(r->input, begin + w->block);
        for (int32_t k = begin; k < end; k++)
            token[k] = (int32_t)(mix(key + (uint64_t)(k - begin)) % (uint64_t)w->vocab);
    }
    uint64_t shared = mix(w->seed ^ 0x736861726564u);
    for (int32_t k = 0; k < w->prefix && k < r->input; k++)
        token[k] = (int32_t)(mix(shared + (uint64_t)k) % (uint64_t)w->vocab);
}
