/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/workload.h - the requests of a load: when each comes, how long it is, which tokens.
 *
 * Tokens are drawn, not kept: the same seed gives the same prompts on any machine.  A block of
 * HZP_TRACE_BLOCK tokens is made from its hash where the trace has one, so prompts share the
 * prefixes that the recorded ones shared; else from the request's number, so they share nothing.
 *
 * Thread: any; read-only once it is made.
 */
#ifndef HZP_API_BENCH_WORKLOAD_H
#define HZP_API_BENCH_WORKLOAD_H

#include "api/bench/trace_file.h"

struct hzp_workload {
    struct hzp_trace_file trace;
    uint64_t seed;
    int32_t vocab;                   /* tokens are from 0 to vocab - 1 */
    int64_t clipped;                 /* requests that hzp_workload_clip() shortened */
    int64_t clipped_in, clipped_out; /* tokens that it took from them */
};

/* Equal requests, all there from the begin: an untimed trace. HZP_ENOMEM. */
int hzp_workload_equal(struct hzp_workload *ret, int64_t requests, int32_t input, int32_t output,
                       struct hzp_err_text *reterr);

/* Takes over a trace that was read; frees it with the workload. */
void hzp_workload_of_trace(struct hzp_workload *ret, struct hzp_trace_file *trace);
void hzp_workload_free(struct hzp_workload *w);

/* Shortens what does not fit `context` tokens (prompt and answer together; at least 2): the answer
 * to at most half of it, then the prompt, from its end, to what is left. */
void hzp_workload_clip(struct hzp_workload *w, int32_t context);

/* When requests come. rate > 0: a Poisson process of so many a second, whatever the trace says
 * (gaps -ln(u)/rate); else the trace's times divided by scale. */
void hzp_workload_arrivals(struct hzp_workload *w, double scale, double rate);

/* Do requests come at times, or is each there from the begin? */
bool hzp_workload_timed(const struct hzp_workload *w);

/* The tokens of prompt i; token has room for its input length. */
void hzp_workload_prompt(const struct hzp_workload *w, int64_t i, int32_t *token);

#endif
