/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/bench_settings.h - the settings of the benchmarks and of the load on a running server.
 *
 * Plain values; api/cli/options.json has the option, default and range of each.
 *
 * Thread: any; constant while a benchmark runs.
 */
#pragma once

#include "base/base.h"

/* `bench replay`; other benchmarks also read requests, input, output, concurrency, temperature and
 * top_p. */
struct hzp_load_settings {
    const char *url, *api_key, *model_name;
    const char *trace;              /* a file of recorded requests; NULL: equal requests */
    const char *goals;              /* goals of goodput (hzp_load_goals_parse); NULL: none */
    const char *record, *extra;     /* a file of lines; JSON fields added to each request */
    double scale, rate, silence;    /* speed-up; requests per second, 0: the trace's; seconds */
    int64_t limit, requests;        /* requests of the trace, 0: all; number without a trace */
    int64_t shrink;                 /* the trace's lengths are divided by it */
    int64_t input, output, context; /* tokens; 0: by benchmark; context 0: the server's */
    int64_t prefix;                 /* without a trace: first tokens that all prompts share */
    int64_t concurrency, warmup, seed;
    double temperature, top_p; /* for the requests' draws; 0: the likeliest tokens */
    int64_t json;
};

/* `bench coserve`. */
struct hzp_coserve_settings {
    double load;    /* arrival rate as a fraction of the capacity */
    double seconds; /* each phase's */
    int64_t rounds;
};

struct hzp_bench_settings {
    const char *what; /* name of the benchmark; NULL: not given */
    int64_t json, quick;
    int64_t consistency;   /* `bench swap`: enum hzp_consistency, or HZP_PINNED + 1: each in turn */
    double steady_seconds; /* `bench offline`: the measured window; 0: all of --requests */
    struct hzp_load_settings load;
    struct hzp_coserve_settings coserve;
};
