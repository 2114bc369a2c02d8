/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ranks/ranks.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/timeline.h"

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

static bool mpi_usable(struct hzp_link_about *about)
{
    return hzp_link_about(0, about) && about->usable;
}

/* Runs the ranks, and again where a rank was lost: the new ranks begin with the newest
 * checkpoint. */
static int run_ranks(const struct hzp_ranks_settings *settings, char **argv, int *status,
                     struct hzp_err_text *reterr)
{
    int ranks = (int)settings->ranks;
    for (int64_t left = settings->restarts;; left--) {
        bool asked = false;
        HZP_TRY(hzp_launch_local(ranks, argv, status, &asked, reterr));
        if (*status != HZP_LAUNCH_LOST || asked || left <= 0)
            return HZP_OK;
        hzp_log(HZP_LOG_WARN, "ranks", "restart ranks=%lld left=%lld: a rank was lost",
                (long long)settings->ranks, (long long)left - 1);
        hzp_launch_set_again();
    }
}

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
    bool usable = mpi_usable(&about), any = settings->link == HZP_RANKS_AUTO && !settings->replicas;
    bool mpi = settings->link == HZP_RANKS_MPI || (any && usable && hzp_launch_installed());
    if (mpi && !usable)
        return hzp_fail_param(reterr, HZP_EUNSUP, "--ranks", "--ranks %lld: %s",
                              (long long)settings->ranks, about.text);
    HZP_TRY(hzp_control_make_key(key, reterr)); /* says so if there is no ZeroMQ */
    HZP_TRY(
        mpi ? run_ranks(settings, argv, status, reterr)
            : hzp_launch_processes((int)settings->ranks, argv, settings->restarts, status, reterr));
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

/* What connects the ranks, if no option says: MPI where a launcher that knows MPI has started
 * them.  Slurm's srun says by PMI's variables that it does. */
static enum hzp_ranks_link choose_link(const struct hzp_ranks_settings *settings,
                                       const struct hzp_launch *launch)
{
    struct hzp_link_about about;
    bool slurm = !strcmp(launch->kind, "slurm");
    if (settings->link != HZP_RANKS_AUTO)
        return (enum hzp_ranks_link)settings->link;
    if (settings->replicas)
        return HZP_RANKS_ZMQ;
    if (!mpi_usable(&about) || !strcmp(launch->kind, "torchrun"))
        return HZP_RANKS_ZMQ;
    return slurm && !getenv("PMIX_RANK") && !getenv("PMI_RANK") ? HZP_RANKS_ZMQ : HZP_RANKS_MPI;
}

static int open_mpi(const struct hzp_ranks_settings *settings, const char *record,
                    struct hzp_control_config *config, struct hzp_ranks *ret,
                    struct hzp_err_text *reterr)
{
    struct hzp_link_mpi mpi = {.rank = ret->rank,
                               .ranks = ret->ranks,
                               .rate = (double)settings->link_rate,
                               .latency_ns = (uint64_t)(settings->link_latency_ms * 1e6)};
    HZP_TRY(hzp_link_open_mpi(&mpi, &ret->link, reterr));
    return open_control(ret, config, record, reterr);
}

/* First the control messages, by which the ranks tell each other where they listen for data. */
static int open_zmq(const struct hzp_ranks_settings *settings, const char *record,
                    struct hzp_control_config *config, struct hzp_ranks *ret,
                    struct hzp_err_text *reterr)
{
    const struct hzp_rendezvous *where = &ret->rendezvous;
    bool tcp = !where->folder[0];
    struct hzp_link_zmq zmq = {.rank = ret->rank,
                               .ranks = ret->ranks,
                               .folder = tcp ? NULL : where->folder,
                               .key = tcp ? where->key : NULL,
                               .rate = (double)settings->link_rate,
                               .latency_ns = (uint64_t)(settings->link_latency_ms * 1e6)};
    uint16_t port[HZP_LINK_ZMQ_RANKS_MAX];
    char endpoint[HZP_CONTROL_ENDPOINT], file[sizeof(where->folder) + 8];
    HZP_TRY(hzp_link_open_zmq(&zmq, port, &ret->link, reterr));
    hzp_rendezvous_endpoint(where, endpoint);
    snprintf(file, sizeof(file), "%s/control", where->folder);
    config->key = zmq.key;
    if (ret->rank)
        HZP_TRY(hzp_control_connect(config, endpoint, &ret->control, reterr));
    else
        HZP_TRY(hzp_control_listen(config, tcp ? "*" : file, tcp ? where->port : 0, where->host,
                                   endpoint, &ret->control, reterr));
    hzp_control_offer_ports(ret->control, port);
    HZP_TRY(hzp_control_meet(ret->control, record, NULL, 0, ret->link, reterr));
    return hzp_link_connect_zmq(ret->link, hzp_control_addresses(ret->control), settings->meet_s,
                                reterr);
}

/* What the launcher says. */
static int read_launch(const struct hzp_ranks_settings *settings, struct hzp_ranks *ret,
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
    return HZP_OK;
}

static int open_all(const struct hzp_ranks_settings *settings, const char *record,
                    struct hzp_control_config *config, struct hzp_ranks *ret,
                    struct hzp_err_text *reterr)
{
    HZP_TRY(read_launch(settings, ret, reterr));
    if (ret->ranks == 1)
        return HZP_OK;
    config->rank = ret->rank;
    config->ranks = ret->ranks;
    if (choose_link(settings, &ret->launch) == HZP_RANKS_MPI)
        HZP_TRY(open_mpi(settings, record, config, ret, reterr));
    else
        HZP_TRY(hzp_rendezvous_open(&ret->launch, (int)settings->port, &ret->rendezvous, reterr));
    if (!ret->link)
        HZP_TRY(open_zmq(settings, record, config, ret, reterr));
    const char *at = ret->rendezvous.from;
    hzp_log(HZP_LOG_INFO, "ranks", "met rank=%d ranks=%d local_rank=%d link=%s from=%s%s%s",
            ret->rank, ret->ranks, ret->launch.local_rank, hzp_link_backend(ret->link),
            ret->launch.from, at[0] ? " at=" : "", at);
    return HZP_OK;
}

int hzp_ranks_open(const struct hzp_ranks_settings *settings, const char *record,
                   void (*lost)(void *ctx, int rank, const char *why), void *ctx,
                   struct hzp_ranks *ret, struct hzp_err_text *reterr)
{
    struct hzp_control_config config = {
        .silent_s = settings->silent_s, .meet_s = settings->meet_s, .lost = lost, .ctx = ctx};
    *ret = (struct hzp_ranks){.ranks = 1, .rendezvous.lock = -1};
    int r = open_all(settings, record, &config, ret, reterr);
    if (r < 0)
        hzp_ranks_close(ret);
    return r;
}

int hzp_ranks_place(const struct hzp_ranks_settings *settings, struct hzp_ranks *ret,
                    struct hzp_err_text *reterr)
{
    *ret = (struct hzp_ranks){.ranks = 1, .rendezvous.lock = -1};
    HZP_TRY(read_launch(settings, ret, reterr));
    if (ret->ranks == 1)
        return HZP_OK;
    return hzp_rendezvous_open(&ret->launch, (int)settings->port, &ret->rendezvous, reterr);
}

int hzp_ranks_replicas_file(const struct hzp_ranks *ranks, char ret[HZP_RANKS_FILE],
                            struct hzp_err_text *reterr)
{
    if (!ranks->rendezvous.folder[0])
        return hzp_fail_param(reterr, HZP_EUNSUP, "--replicas",
                              "--replicas needs ranks on one machine that are linked by ZeroMQ "
                              "(--link zmq, no HZP_RANKS_KEY)");
    snprintf(ret, HZP_RANKS_FILE, "%s/replicas", ranks->rendezvous.folder);
    return HZP_OK;
}

bool hzp_ranks_may_rejoin(const struct hzp_ranks *ranks)
{
    struct hzp_link_state link;
    if (!ranks->rendezvous.from[0] || !hzp_ranks_lost(ranks))
        return false;
    hzp_link_state(ranks->link, &link);
    return !link.left;
}

int hzp_ranks_rejoin(const struct hzp_ranks_settings *settings, const char *record,
                     struct hzp_ranks *ranks, struct hzp_err_text *reterr)
{
    struct hzp_control_config config = {.silent_s = settings->silent_s,
                                        .meet_s = settings->meet_s,
                                        .rank = ranks->rank,
                                        .ranks = ranks->ranks};
    hzp_control_close(ranks->control);
    hzp_link_close(ranks->link);
    ranks->control = NULL;
    ranks->link = NULL;
    int r = open_zmq(settings, record, &config, ranks, reterr);
    if (r < 0)
        hzp_ranks_close(ranks);
    else
        hzp_log(HZP_LOG_INFO, "ranks", "met again rank=%d ranks=%d", ranks->rank, ranks->ranks);
    return r;
}

int hzp_ranks_timeline(const struct hzp_ranks *ranks, double seconds, char **ret, size_t *ret_bytes,
                       struct hzp_err_text *reterr)
{
    enum { ALONE_BYTES = 32 << 20 };
    uint64_t now = hzp_now_ns(), back = (uint64_t)(seconds * 1e9);
    uint64_t from = now > back ? now - back : 0;
    struct hzp_chrome chrome;
    *ret = NULL;
    FILE *file = open_memstream(ret, ret_bytes);
    if (!file)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for a trace");
    hzp_chrome_begin(&chrome, file);
    int r = HZP_OK;
    if (ranks && ranks->control) {
        r = hzp_control_timeline(ranks->control, from, &chrome);
    } else {
        hzp_chrome_process(&chrome, 0, "rank 0");
        hzp_timeline_write(&chrome, 0, from, 0, ALONE_BYTES);
    }
    hzp_chrome_end(&chrome);
    bool whole = !ferror(file);
    whole &= fclose(file) == 0;
    if (r == HZP_OK && whole)
        return HZP_OK;
    free(*ret);
    *ret = NULL;
    return r == HZP_OK ? hzp_fail(reterr, HZP_ENOMEM, "no memory for the trace")
                       : hzp_fail(reterr, r, "another trace is being made");
}

bool hzp_ranks_lost(const struct hzp_ranks *ranks)
{
    char why[8];
    struct hzp_link_state link = {.failed = false};
    if (!ranks->control)
        return false;
    hzp_link_state(ranks->link, &link);
    return link.failed || hzp_control_lost(ranks->control, why, sizeof(why)) >= 0;
}

void hzp_ranks_close(struct hzp_ranks *ranks)
{
    hzp_control_close(ranks->control);
    hzp_link_close(ranks->link);
    hzp_rendezvous_close(&ranks->rendezvous);
    ranks->control = NULL;
    ranks->link = NULL;
}
