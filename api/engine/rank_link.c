/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/rank_link.h"

#include "base/log.h"

/* Blocks of the device that transfers beside serving may occupy: few, because serving needs the
 * others.  Steps wait for theirs, which take what NCCL likes; on a lane with SMs of its own, which
 * run nothing else, no more blocks than it has SMs: others would wait for the first to end.  NCCL's
 * own variables (NCCL_MAX_CTAS) come first. */
enum { CTAS = 4, HOST_NAME = 256 };

/* What a rank says of itself. */
struct identity {
    char host[HOST_NAME], backend[16], gpu[64];
};

static bool one_gpu_allowed(void)
{
    const char *value = getenv("HZP_RANKS_ONE_GPU");
    return value && !strcmp(value, "1");
}

/* Gathers the identities of all ranks. */
static int exchange(struct hzp_link *host, struct identity *all, struct hzp_err_text *reterr)
{
    return hzp_link_gather(host, &all[hzp_link_rank(host)], sizeof(*all), all, UINT64_MAX, reterr);
}

static struct identity *identities(const struct hzp_link *host)
{
    struct identity *all = hzp_xcalloc((size_t)hzp_link_ranks(host), sizeof(*all));
    struct identity *mine = &all[hzp_link_rank(host)];
    if (gethostname(mine->host, sizeof(mine->host) - 1) != 0)
        snprintf(mine->host, sizeof(mine->host), "rank %d", hzp_link_rank(host));
    return all;
}

/* ---- which GPU ---- */

/* How many of the first `ranks` ranks run on the same machine as rank `rank`. */
static int count_local(const struct identity *all, int ranks, int rank)
{
    int local = 0;
    for (int r = 0; r < ranks; r++)
        local += !strcmp(all[r].host, all[rank].host);
    return local;
}

/* All ranks of a machine that has too few GPUs find that. */
static int choose(int local, int local_ranks, int gpus, int *ret, struct hzp_err_text *reterr)
{
    *ret = gpus ? local % gpus : 0;
    if (gpus <= 1 || (local < gpus && local_ranks <= gpus) || one_gpu_allowed())
        return HZP_OK;
    return hzp_fail_param(reterr, HZP_EINVAL, "--ranks",
                          "%d ranks are on this machine, this one as number %d, and it has %d "
                          "GPUs: start at most one rank for each, or use --device cpu",
                          local_ranks, local, gpus);
}

int hzp_rank_device(struct hzp_link *host, const struct hzp_device_settings *settings, bool joins,
                    int *ret_ordinal, struct hzp_err_text *reterr)
{
    const struct hzp_link_streams *streams = hzp_cuda_link_streams();
    bool any = !settings->name || !strcmp(settings->name, "cuda");
    struct hzp_launch launch;
    int gpus = 0, rank = hzp_link_rank(host);
    *ret_ordinal = 0;
    if (joins)
        return HZP_OK;
    HZP_TRY(hzp_launch_environment(&launch, reterr));
    HZP_FREED struct identity *all = identities(host);
    int r = exchange(host, all, reterr);
    int local = launch.local_rank >= 0 ? launch.local_rank : count_local(all, rank, rank);
    if (r >= 0 && any && streams && streams->device_count(&gpus) == 0)
        r = choose(local, count_local(all, hzp_link_ranks(host), rank), gpus, ret_ordinal, reterr);
    return r;
}

/* ---- the link ---- */

/* Whether all ranks have the same kind of device, each its own. */
static int check_devices(const struct identity *all, int ranks, struct hzp_err_text *reterr)
{
    for (int r = 1; r < ranks; r++)
        if (strcmp(all[r].backend, all[0].backend))
            return hzp_fail_param(
                reterr, HZP_EINVAL, "--device",
                "rank %d computes on %s, rank 0 on %s: all ranks need the same kind of device", r,
                all[r].backend, all[0].backend);
    for (int r = 1; r < ranks; r++)
        for (int s = 0; s < r; s++)
            if (all[r].gpu[0] && !strcmp(all[r].gpu, all[s].gpu) &&
                !strcmp(all[r].host, all[s].host) && !one_gpu_allowed())
                return hzp_fail_param(
                    reterr, HZP_EINVAL, "--device",
                    "ranks %d and %d have the same GPU (%s on %s), NCCL needs one for each: start "
                    "fewer ranks, or give each its own by LOCAL_RANK or CUDA_VISIBLE_DEVICES",
                    s, r, all[r].gpu, all[r].host);
    return HZP_OK;
}

/* NCCL refuses two ranks on a GPU unless it takes them for ranks of different machines, between
 * which it uses sockets. */
static void pose_as_machine(int rank)
{
    char name[32];
    snprintf(name, sizeof(name), "hzpserve-rank-%d", rank);
    setenv("NCCL_HOSTID", name, 0);
}

static int open_nccl(struct hzp_link *host, enum hzp_rank_use use, struct hzp_link **ret,
                     struct hzp_err_text *reterr)
{
    const struct hzp_link_streams *streams = hzp_cuda_link_streams();
    const int ctas[] = {
        [HZP_RANK_TRANSFERS] = CTAS, [HZP_RANK_STEPS] = 0, [HZP_RANK_LANE] = streams->lane_sms};
    struct hzp_link_nccl config = {
        .host = host, .streams = streams, .ctas = ctas[use], .enqueues = use != HZP_RANK_TRANSFERS};
    if (one_gpu_allowed())
        pose_as_machine(hzp_link_rank(host));
    HZP_TRY(hzp_link_open_nccl(&config, ret, reterr));
    hzp_log(HZP_LOG_INFO, "ranks", "link=nccl rank=%d over=%s ctas=%d", hzp_link_rank(host),
            hzp_link_backend(host), config.ctas);
    return HZP_OK;
}

int hzp_rank_link_open(struct hzp_link *host, struct hzp_device *dev,
                       const struct hzp_ranks_settings *settings, bool joins, enum hzp_rank_use use,
                       struct hzp_link **ret, struct hzp_err_text *reterr)
{
    static const char *const names[] = {"auto", "mpi", "zmq", "nccl"};
    const struct hzp_link_streams *streams = hzp_cuda_link_streams();
    const char *backend = hzp_device_backend(dev);
    bool gpu = !strcmp(backend, "cuda");
    *ret = host;
    if (joins)
        return gpu ? hzp_fail(reterr, HZP_EUNSUP,
                              "a rank on a GPU cannot join a server that runs already: start all "
                              "ranks again")
                   : HZP_OK;
    HZP_FREED struct identity *all = identities(host);
    struct identity *mine = &all[hzp_link_rank(host)];
    snprintf(mine->backend, sizeof(mine->backend), "%s", backend);
    if (gpu && streams)
        streams->device_name(mine->gpu, sizeof(mine->gpu));
    HZP_TRY(exchange(host, all, reterr));
    HZP_TRY(check_devices(all, hzp_link_ranks(host), reterr));
    if (!gpu && settings->link == HZP_RANKS_NCCL)
        return hzp_wrong(reterr, "--link",
                         "nccl moves the memory of GPUs, this rank computes on %s", backend);
    if (gpu && (settings->link == HZP_RANKS_MPI || settings->link == HZP_RANKS_ZMQ))
        return hzp_wrong(
            reterr, "--link",
            "%s moves host memory, this rank computes on a GPU: use --link nccl, or --device cpu",
            names[settings->link]);
    if (gpu)
        return open_nccl(host, use, ret, reterr);
    return use == HZP_RANK_TRANSFERS ? HZP_OK : hzp_link_split(host, ret, reterr);
}
