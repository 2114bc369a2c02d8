/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve bench WHAT [MODEL]: runs a benchmark. */
#include "api/bench/run.h"
#include "api/cli/commands.h"

#include <stdio.h>

int hzp_cmd_bench(const struct hzp_options *options)
{
    struct hzp_bench_settings settings = options->bench;
    struct hzp_err_text err = {0};
    settings.json = settings.load.json = options->json;
    settings.load.context = options->engine.model.context;
    int r = hzp_bench_run(&settings, &options->engine, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
}
