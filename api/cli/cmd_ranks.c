/* SPDX-License-Identifier: Apache-2.0 */
/* The part of commands that run on several ranks: starting them, and meeting. */
#include "api/cli/commands.h"
#include "api/cli/record.h"
#include "base/arena.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

int hzp_cmd_ranks_start(const struct hzp_options *options)
{
    struct hzp_err_text err = {0};
    int status = 0;
    int r = hzp_ranks_start(&options->engine.ranks, options->argv, &status, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return r > 0 ? status : r == HZP_OK ? -1 : r == HZP_EINVAL ? 2 : 1;
}

int hzp_cmd_ranks_open(const struct hzp_options *options,
                       void (*lost)(void *ctx, int rank, const char *why), void *ctx,
                       struct hzp_ranks *ret)
{
    struct hzp_err_text err = {0};
    char *record = hzp_xmalloc(HZP_CONTROL_RECORD);
    int r = hzp_options_record(options, record, HZP_CONTROL_RECORD, &err);
    if (r == HZP_OK)
        r = hzp_ranks_open(&options->engine.ranks, record, lost, ctx, ret, &err);
    free(record);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
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

int hzp_cmd_ranks_rejoin(const struct hzp_options *options, struct hzp_ranks *ranks)
{
    struct hzp_err_text err = {0};
    char *record = hzp_xmalloc(HZP_CONTROL_RECORD);
    int r = hzp_options_record(options, record, HZP_CONTROL_RECORD, &err);
    if (r == HZP_OK)
        r = hzp_ranks_rejoin(&options->engine.ranks, record, ranks, &err);
    free(record);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
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
