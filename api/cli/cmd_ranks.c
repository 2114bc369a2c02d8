/* SPDX-License-Identifier: Apache-2.0 */
/* The part of commands that run on several ranks: starting them, and meeting. */
#include "api/cli/commands.h"
#include "api/cli/record.h"
#include "base/arena.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

int hzp_cmd_ranks_start(const struct hzp_options *options, const struct hzp_launch_keep *keep)
{
    struct hzp_err_text err = {0};
    int status = 0;
    int r = hzp_ranks_start(&options->engine.ranks, options->argv, keep, &status, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return r > 0 ? status : r == HZP_OK ? -1 : r == HZP_EINVAL ? 2 : 1;
}

char *hzp_cmd_ranks_record(const struct hzp_options *options)
{
    struct hzp_err_text err = {0};
    char *record = hzp_xmalloc(HZP_CONTROL_RECORD);
    if (hzp_options_record(options, record, HZP_CONTROL_RECORD, &err) >= 0)
        return record;
    fprintf(stderr, "hzpserve: %s\n", err.text);
    free(record);
    return NULL;
}

/* Prints the error, but not that what was asked for has happened. */
static int status_of(int r, const struct hzp_err_text *err)
{
    if (r < 0 && r != HZP_ECANCELED)
        fprintf(stderr, "hzpserve: %s\n", err->text);
    return r == HZP_EINVAL ? 2 : r == HZP_ECANCELED ? HZP_LAUNCH_LOST : r < 0 ? 1 : 0;
}

int hzp_cmd_ranks_open(const struct hzp_options *options,
                       void (*lost)(void *ctx, int rank, const char *why), bool (*stop)(void *ctx),
                       void *ctx, struct hzp_ranks *ret)
{
    struct hzp_err_text err = {0};
    struct hzp_ranks_config config = {.settings = &options->engine.ranks,
                                      .record = hzp_cmd_ranks_record(options),
                                      .lost = lost,
                                      .stop = stop,
                                      .ctx = ctx};
    if (!config.record)
        return 1;
    int r = hzp_ranks_open(&config, ret, &err);
    free((char *)(uintptr_t)config.record);
    return status_of(r, &err);
}

int hzp_cmd_ranks_rejoin(const struct hzp_options *options, bool (*stop)(void *ctx), void *ctx,
                         struct hzp_ranks *ranks)
{
    struct hzp_err_text err = {0};
    struct hzp_ranks_config config = {.settings = &options->engine.ranks,
                                      .record = hzp_cmd_ranks_record(options),
                                      .stop = stop,
                                      .ctx = ctx};
    if (!config.record)
        return 1;
    int r = hzp_ranks_rejoin(&config, ranks, &err);
    if (r == HZP_OK)
        hzp_ranks_rejoined(ranks);
    free((char *)(uintptr_t)config.record);
    return status_of(r, &err);
}

int64_t hzp_cmd_ranks_threads(const struct hzp_options *options, const struct hzp_ranks *ranks)
{
    cpu_set_t set;
    int here = ranks->launch.local_ranks;
    if (options->engine.device.threads || ranks->ranks == 1 || here <= 1 ||
        sched_getaffinity(0, sizeof(set), &set) != 0)
        return options->engine.device.threads;
    /* Slurm, and mpirun by default, give each rank cores of its own.  A process that may use only a
     * part of the machine for another reason, as in a container, has ranks that we start. */
    bool own = !ranks->launch.ours && CPU_COUNT(&set) * here <= sysconf(_SC_NPROCESSORS_ONLN);
    return own ? CPU_COUNT(&set) : HZP_MAX(CPU_COUNT(&set) / here, 1);
}
