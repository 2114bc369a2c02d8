/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/load_stats.h - what a load of requests met with, in the words of `vllm bench serve`.
 *
 *   TTFT  from the sending of the request to the first piece of the answer
 *   ITL   between two pieces of one answer (a server may put several tokens into one)
 *   E2EL  from the sending of the request to the last piece
 *   TPOT  (E2EL - TTFT) / (output tokens - 1), of answers of two tokens or more
 * Goodput counts the requests that meet every goal that is set, each request for itself; its ITL
 * is the 99th percentile of its own gaps.  Percentiles interpolate between neighbours.
 *
 * Thread: one.
 */
#ifndef HZP_API_BENCH_LOAD_STATS_H
#define HZP_API_BENCH_LOAD_STATS_H

#include "base/err.h"

enum { HZP_LOAD_GAPS_MAX = 1 << 27 };

/* Seconds; 0: no goal. */
struct hzp_load_goals {
    double ttft, tpot, itl, e2el;
};

/* One request that was answered whole. */
struct hzp_load_answer {
    double sent_s, ttft_s, e2el_s; /* sent: since the load's begin */
    double gap_p99_s;              /* 0: fewer than two pieces */
    int32_t input, output;         /* tokens, as the server counts them */
    bool good;                     /* met all goals */
};

/* Things happen at times; counted in slices of HZP_LOAD_SLICE_S. */
#define HZP_LOAD_SLICE_S 0.05
struct hzp_load_slice {
    int32_t pieces;  /* of answers */
    int32_t running; /* most requests in flight */
};

struct hzp_load_record {
    struct hzp_load_goals goals;
    int64_t answers, answers_room;
    struct hzp_load_answer *answer;
    int64_t gaps, gaps_room;
    float *gap; /* seconds, of all answers */
    int64_t slices, slices_room;
    struct hzp_load_slice *slice;
    int64_t pieces; /* of whole answers */
    int64_t sent, failed;
    int64_t other_length; /* answers of another length than asked for */
    int32_t peak;         /* most requests in flight */
    double duration_s;    /* from the first sent to the last ended */
    double late_max_s;    /* most that a request was sent behind its time */
    double late_sum_s;
};

/* Of one quantity, in seconds; all 0 where n is 0. */
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

/* A request was answered whole: its gaps (sorted by the call) and the rest, `good` is set by it.
 * HZP_ENOMEM. */
int hzp_load_record_answer(struct hzp_load_record *record, const struct hzp_load_answer *answer,
                           float *gap, int64_t gaps, struct hzp_err_text *reterr);

/* `pieces` of answers came at this time, while so many requests were in flight. Times beyond a few
 * weeks are not counted. HZP_ENOMEM. */
int hzp_load_record_time(struct hzp_load_record *record, double at_s, int32_t pieces,
                         int32_t running, struct hzp_err_text *reterr);

/* Sorts the record's gaps. HZP_ENOMEM. */
int hzp_load_summarise(struct hzp_load_record *record, struct hzp_load_summary *ret,
                       struct hzp_err_text *reterr);

/* "ttft=500ms,itl=50ms": names ttft, tpot, itl, e2el; ms (the default) or s. */
int hzp_load_goals_parse(const char *text, struct hzp_load_goals *ret, struct hzp_err_text *reterr);

/* The quantile p (0 .. 1) of n > 0 sorted values, between neighbours by proportion. */
double hzp_load_quantile(const float *sorted, int64_t n, double p);

#endif
