/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/workload.h - the requests of a load: their arrival times, lengths and tokens.
 *
 * Tokens are generated on demand, not stored: the same seed gives the same prompts on any machine.
 * A block (HZP_TRACE_BLOCK tokens, fewer in a load that was shrunk) is generated from its hash if
 * the trace has one, so prompts share the same prefixes as the recorded ones; otherwise from the
 * request's number, so prompts share nothing.
 *
 * Thread: any; read-only once made.
 */
#pragma once

#include "dev/bench/trace_file.h"

struct hzp_workload {
    struct hzp_trace_file trace;
    uint64_t seed;
    int32_t vocab;                   /* tokens are from 0 to vocab - 1 */
    int32_t block;                   /* tokens for each hash */
    int32_t prefix;                  /* so many first tokens are the same in all prompts */
    int64_t clipped;                 /* requests that hzp_workload_clip() shortened */
    int64_t clipped_in, clipped_out; /* tokens removed from them */
};

/* Equal requests, all there from the start: an untimed trace.  HZP_ENOMEM. */
int hzp_workload_equal(struct hzp_workload *ret, int64_t requests, int32_t input, int32_t output,
                       struct hzp_err_text *reterr);

/* Takes ownership of a trace that was read; it is freed with the workload. */
void hzp_workload_of_trace(struct hzp_workload *ret, struct hzp_trace_file *trace);
void hzp_workload_free(struct hzp_workload *w);

/* Divides the lengths of all requests, and the tokens of a block, by `by`, rounding up: what
 * prompts share stays the same fraction of them.  `by` divides HZP_TRACE_BLOCK. */
void hzp_workload_shrink(struct hzp_workload *w, int32_t by);

/* Shortens requests to fit `context` tokens (prompt and answer together; at least 2): first the
 * answer to at most half of the context, then the end of the prompt. */
void hzp_workload_clip(struct hzp_workload *w, int32_t context);

/* Sets the arrival times. rate > 0: a Poisson process of `rate` requests per second, whatever the
 * trace says (at intervals -ln(u)/rate); else the trace's times divided by scale. */
void hzp_workload_arrivals(struct hzp_workload *w, double scale, double rate);

/* True: requests have arrival times; false: all are there from the start. */
bool hzp_workload_timed(const struct hzp_workload *w);

/* The tokens of prompt i; token has room for its input length. */
void hzp_workload_prompt(const struct hzp_workload *w, int64_t i, int32_t *token);
