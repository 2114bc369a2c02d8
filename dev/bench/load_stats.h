/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/load_stats.h - statistics of a load, with the terms of `vllm bench serve`.
 *
 *   TTFT  from the sending of the request to the first piece of the answer
 *   ITL   between two pieces of one answer (a server may put several tokens into one)
 *   E2EL  from the sending of the request to the last piece
 *   TPOT  (E2EL - TTFT) / (output tokens - 1), of answers of two tokens or more
 *
 * Goodput counts the requests that meet all goals that are set; the ITL of a request is the 99th
 * percentile of its own ITLs.  Percentiles interpolate between neighbours.
 *
 * Thread: one.
 */
#pragma once

#include "base/err.h"

enum { HZP_LOAD_ITLS_MAX = 1 << 27 };

/* Seconds; 0: no goal. */
struct hzp_load_goals {
    double ttft, tpot, itl, e2el;
};

/* One request that was answered completely. */
struct hzp_load_answer {
    double sent_s, ttft_s, e2el_s; /* sent: since the start of the load */
    double itl_p99_s;              /* 0: fewer than two pieces */
    int32_t input, output;         /* tokens, as counted by the server */
    bool good;                     /* met all goals */
};

struct hzp_load_record {
    struct hzp_load_goals goals;
    int64_t answers, answers_room;
    struct hzp_load_answer *answer;
    int64_t itls, itls_room;
    float *itl; /* seconds, of all answers */
    int64_t sent, failed;
    int64_t other_length; /* answers of another length than requested */
    int32_t peak;         /* most requests in flight */
    double duration_s;    /* from the first request sent to the last one ended */
    double late_max_s;    /* largest delay of a request behind its arrival time */
    double late_sum_s;
};

/* Statistics of one quantity, in seconds; all 0 if n is 0. */
struct hzp_load_spread {
    int64_t n;
    double mean, std, median, p90, p99, max;
};

struct hzp_load_summary {
    int64_t completed, failed, good;
    int64_t input_tokens, output_tokens;
    double duration_s, request_rate, good_rate, output_rate, total_rate;
    struct hzp_load_spread ttft, tpot, itl, e2el;
};

void hzp_load_record_free(struct hzp_load_record *record);

/* Records a complete answer: its ITLs (sorted by the call) and the rest; sets `good`.
 * HZP_ENOMEM. */
int hzp_load_record_answer(struct hzp_load_record *record, const struct hzp_load_answer *answer,
                           float *itl, int64_t itls, struct hzp_err_text *reterr);

/* Sorts the record's ITLs. HZP_ENOMEM. */
int hzp_load_summarise(struct hzp_load_record *record, struct hzp_load_summary *ret,
                       struct hzp_err_text *reterr);

/* The spread of n >= 0 values, which the call sorts. */
struct hzp_load_spread hzp_load_spread_of(float *value, int64_t n);

/* "ttft=500ms,itl=50ms": names ttft, tpot, itl, e2el; ms (the default) or s. */
int hzp_load_goals_parse(const char *text, struct hzp_load_goals *ret, struct hzp_err_text *reterr);

/* The quantile p (0 .. 1) of n > 0 sorted values, with linear interpolation. */
double hzp_load_quantile(const float *sorted, int64_t n, double p);
