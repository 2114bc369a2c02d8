/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ranks/ranks.h"

#include "base/arena.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_NAME = 256 };

/* What rank 0 tells the others over the link: where it listens. */
struct invitation {
    char endpoint[HZP_CONTROL_ENDPOINT]; /* "": it failed */
    char key[HZP_CONTROL_KEY];           /* "": none, on one machine */
};

int hzp_ranks_start(const struct hzp_ranks_settings *settings, char **argv, int *status,
                    struct hzp_err_text *reterr)
{
    struct hzp_launch launch;
    if (settings->ranks <= 1)
        return HZP_OK;
    HZP_TRY(hzp_launch_environment(&launch, reterr));
    if (launch.kind[0])
        return HZP_OK;
    struct hzp_link_about about;
    char key[HZP_CONTROL_KEY];
    if (!hzp_link_about(0, &about) || !about.usable)
        return hzp_fail_param(reterr, HZP_EUNSUP, "--ranks", "--ranks %lld: %s",
                              (long long)settings->ranks, about.text);
    HZP_TRY(hzp_control_make_key(key, reterr)); /* says so if there is no ZeroMQ */
    HZP_TRY(hzp_launch_local((int)settings->ranks, argv, status, reterr));
    return 1;
}

static int run(struct hzp_link *link, struct hzp_transfer transfer, struct hzp_err_text *reterr)
{
    hzp_ticket ticket;
    HZP_TRY(hzp_link_post(link, &transfer, &ticket, reterr));
    return hzp_link_wait(link, ticket, reterr);
}

/* Whether all ranks run on this machine. */
static int same_host(struct hzp_link *link, bool *ret, struct hzp_err_text *reterr)
{
    int ranks = hzp_link_ranks(link), rank = hzp_link_rank(link);
    char *name = hzp_xcalloc((size_t)ranks, HOST_NAME), *mine = name + rank * HOST_NAME;
    if (gethostname(mine, HOST_NAME - 1) != 0)
        snprintf(mine, HOST_NAME, "rank %d", rank); /* unknown: not the same */
    int r = run(
        link,
        (struct hzp_transfer){.op = HZP_ALL_GATHER, .count = HOST_NAME, .send = mine, .recv = name},
        reterr);
    *ret = true;
    for (int i = 0; i < ranks; i++)
        *ret = *ret && !strncmp(name, name + i * HOST_NAME, HOST_NAME);
    free(name);
    return r;
}

/* Rank 0: listens, on loopback if all ranks are on this machine, else on every address, with a key
 * that the others get over the link.  On loopback it keeps other users of the machine out; only
 * there may it be missing, where ZeroMQ has no CURVE. */
static int listen_for_others(struct hzp_ranks *ranks, struct hzp_control_config *config, bool local,
                             struct invitation *invitation, struct hzp_err_text *reterr)
{
    char name[HOST_NAME] = "127.0.0.1";
    const char *host = "127.0.0.1";
    int r = hzp_control_make_key(invitation->key, reterr);
    if (r == HZP_OK)
        config->key = invitation->key;
    if (!local) {
        HZP_TRY(r);
        host = "*";
        if (ranks->launch.host[0])
            snprintf(name, sizeof(name), "%s", ranks->launch.host);
        else if (gethostname(name, sizeof(name) - 1) != 0)
            return hzp_fail(reterr, HZP_EIO, "this machine has no name; set MASTER_ADDR");
    }
    return hzp_control_listen(config, host, 0, name, invitation->endpoint, &ranks->control, reterr);
}

static int open_control(struct hzp_ranks *ranks, struct hzp_control_config *config,
                        const char *record, struct hzp_err_text *reterr)
{
    struct invitation invitation = {.endpoint = ""};
    bool local;
    HZP_TRY(same_host(ranks->link, &local, reterr));
    int r = HZP_OK;
    if (ranks->rank == 0)
        r = listen_for_others(ranks, config, local, &invitation, reterr);
    if (r < 0)
        memset(&invitation, 0, sizeof(invitation));
    HZP_TRY(run(ranks->link,
                (struct hzp_transfer){
                    .op = HZP_BROADCAST, .count = sizeof(invitation), .recv = &invitation},
                r < 0 ? NULL : reterr));
    HZP_TRY(r);
    if (!invitation.endpoint[0])
        return hzp_fail(reterr, HZP_EIO, "rank 0 cannot listen for control messages");
    if (ranks->rank) {
        config->key = invitation.key[0] ? invitation.key : NULL;
        HZP_TRY(hzp_control_connect(config, invitation.endpoint, &ranks->control, reterr));
    }
    return hzp_control_meet(ranks->control, record, NULL, 0, ranks->link, reterr);
}

static int open_all(const struct hzp_ranks_settings *settings, const char *record,
                    struct hzp_control_config *config, struct hzp_ranks *ret,
                    struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_launch_environment(&ret->launch, reterr));
    ret->rank = ret->launch.rank;
    ret->ranks = ret->launch.ranks;
    if (settings->ranks && settings->ranks != ret->ranks)
        return hzp_fail_param(reterr, HZP_EINVAL, "--ranks",
                              "--ranks %lld, but the launcher started %d (%s)",
                              (long long)settings->ranks, ret->ranks,
                              ret->launch.kind[0] ? ret->launch.from : "no launcher");
    if (ret->ranks == 1)
        return HZP_OK;
    struct hzp_link_mpi mpi = {.rank = ret->rank,
                               .ranks = ret->ranks,
                               .rate = (double)settings->link_rate,
                               .latency_ns = (uint64_t)(settings->link_latency_ms * 1e6)};
    HZP_TRY(hzp_link_open_mpi(&mpi, &ret->link, reterr));
    config->rank = ret->rank;
    config->ranks = ret->ranks;
    HZP_TRY(open_control(ret, config, record, reterr));
    hzp_log(HZP_LOG_INFO, "ranks", "met rank=%d ranks=%d local_rank=%d link=%s from=%s", ret->rank,
            ret->ranks, ret->launch.local_rank, hzp_link_backend(ret->link), ret->launch.from);
    return HZP_OK;
}

int hzp_ranks_open(const struct hzp_ranks_settings *settings, const char *record,
                   void (*lost)(void *ctx, int rank, const char *why), void *ctx,
                   struct hzp_ranks *ret, struct hzp_err_text *reterr)
{
    struct hzp_control_config config = {
        .silent_s = settings->silent_s, .meet_s = settings->meet_s, .lost = lost, .ctx = ctx};
    *ret = (struct hzp_ranks){.ranks = 1};
    int r = open_all(settings, record, &config, ret, reterr);
    if (r < 0)
        hzp_ranks_close(ret);
    return r;
}

void hzp_ranks_close(struct hzp_ranks *ranks)
{
    hzp_control_close(ranks->control);
    hzp_link_close(ranks->link);
    ranks->control = NULL;
    ranks->link = NULL;
}
