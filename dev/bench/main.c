/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve-bench, which hzpserve bench WHAT [MODEL] hands over to: runs a benchmark.  It has all
 * other commands, too. */
#include "dev/bench/link.h"
#include "dev/bench/run.h"
#include "api/cli/commands.h"
#include "api/cli/commit.h"
#include "api/engine/rank_link.h"

#include <stdio.h>
#include <string.h>

/* With link nccl the transfers are between GPUs, else between processes. */
static int bench_ranks(const struct hzp_options *options, const struct hzp_ranks *ranks,
                       const struct hzp_bench_settings *settings, struct hzp_err_text *reterr)
{
    const struct hzp_device_settings *device = &options->engine.device;
    struct hzp_device *dev = NULL;
    struct hzp_link *link = NULL;
    int ordinal;
    if (!ranks->link)
        return hzp_fail(reterr, HZP_EINVAL, "bench link: one rank has no link; --ranks 2");
    if (options->engine.ranks.link != HZP_RANKS_NCCL)
        return hzp_bench_link(ranks->link, NULL, settings, reterr);
    int r = hzp_rank_device(ranks->link, device, false, &ordinal, reterr);
    if (r >= 0)
        r = hzp_settings_device(device, ordinal, &dev, reterr);
    if (r >= 0)
        r = hzp_rank_link_open(ranks->link, dev, &options->engine.ranks, false, HZP_RANK_TRANSFERS,
                               &link, reterr);
    if (r >= 0)
        r = hzp_bench_link(link, dev, settings, reterr);
    if (link != ranks->link)
        hzp_link_close(link);
    hzp_device_close(dev);
    return r;
}

static int bench_link(const struct hzp_options *options)
{
    struct hzp_bench_settings settings = options->bench;
    struct hzp_err_text err = {0};
    struct hzp_ranks ranks;
    settings.json = options->json;
    int status = hzp_cmd_ranks_start(options, NULL);
    if (status >= 0)
        return status;
    status = hzp_cmd_ranks_open(options, NULL, NULL, NULL, &ranks);
    if (status)
        return status;
    int r = bench_ranks(options, &ranks, &settings, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    hzp_ranks_close(&ranks);
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
}

static int run_bench(const struct hzp_options *options)
{
    if (options->bench.what && !strcmp(options->bench.what, "link"))
        return bench_link(options);
    if (options->engine.ranks.ranks > 1) {
        fprintf(stderr, "hzpserve: --ranks: only bench link runs on several ranks\n");
        return 2;
    }
    struct hzp_bench_settings settings = options->bench;
    struct hzp_err_text err = {0};
    settings.json = settings.load.json = options->json;
    settings.load.context = options->engine.model.context;
    int r = hzp_options_no_bench(settings.what, &err);
    if (r == HZP_OK)
        r = hzp_bench_run(&settings, &options->engine, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    return hzp_commands_run(argc, argv, hzp_commit, run_bench);
}
