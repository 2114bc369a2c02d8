/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/launch/ranks.h"

#include "base/log.h"
#include "base/timeline.h"
#include "mesh/launch/launch.h"

enum { HOST_NAME = 256 };

/* What rank 0 tells the others over the link: where it listens. */
struct invitation {
    char endpoint[HZP_PIPE_ENDPOINT]; /* "": it failed */
    char key[HZP_PIPE_KEY];           /* "": none, on one machine */
};

static bool mpi_usable(struct hzp_link_about *about)
{
    return hzp_link_about(0, about) && about->usable;
}

/* Runs the ranks, and again where a rank was lost: the new ranks begin with the newest
 * checkpoint. */
static int run_ranks(const struct hzp_ranks_settings *settings, char **argv, struct hzp_life *life,
                     int *status, struct hzp_err_text *reterr)
{
    int ranks = (int)settings->ranks;
    hzp_log(HZP_LOG_WARN, "ranks",
            "--link mpi: mpirun listens on every address of this machine, without authentication, "
            "and cannot be told otherwise; --link zmq does not");
    for (int64_t left = settings->restarts;; left--) {
        bool asked = false;
        HZP_TRY(hzp_launch_local(ranks, argv, life, status, &asked, reterr));
        if (*status != HZP_LAUNCH_LOST || asked || left <= 0)
            return HZP_OK;
        hzp_log(HZP_LOG_WARN, "ranks", "restart ranks=%lld left=%lld: a rank was lost",
                (long long)settings->ranks, (long long)left - 1);
        hzp_launch_set_again();
    }
}

int hzp_ranks_start(const struct hzp_ranks_settings *settings, char **argv,
                    const struct hzp_launch_keep *keep, int *status, struct hzp_err_text *reterr)
{
    struct hzp_launch launch;
    struct hzp_life life;
    HZP_TRY(hzp_launch_environment(&launch, reterr));
    if (launch.ranks > 1)
        hzp_life_begin(launch.rank);
    if (launch.kind[0] || settings->ranks <= 1)
        return HZP_OK;
    struct hzp_link_about about;
    char key[HZP_PIPE_KEY];
    /* Only where it is asked for: mpirun itself listens on every address. */
    bool mpi = settings->link == HZP_RANKS_MPI;
    if (mpi && !mpi_usable(&about))
        return hzp_fail_param(reterr, HZP_EUNSUP, "--ranks", "--ranks %lld: %s",
                              (long long)settings->ranks, about.text);
    HZP_TRY(hzp_pipe_make_key(key, reterr)); /* says so if ZeroMQ has no CURVE */
    hzp_life_open(&life, settings->silent_s);
    int r = mpi ? run_ranks(settings, argv, &life, status, reterr)
                : hzp_launch_processes((int)settings->ranks, argv, settings->restarts,
                                       settings->tensor > 1, &life, keep, status, reterr);
    hzp_life_close(&life);
    return r < 0 ? r : 1;
}

/* Whether all ranks run on this machine. */
static int same_host(struct hzp_link *link, bool *ret, struct hzp_err_text *reterr)
{
    int ranks = hzp_link_ranks(link), rank = hzp_link_rank(link);
    char *name = hzp_xcalloc((size_t)ranks, HOST_NAME), *mine = name + rank * HOST_NAME;
    if (gethostname(mine, HOST_NAME - 1) != 0)
        snprintf(mine, HOST_NAME, "rank %d", rank); /* unknown: not the same */
    int r = hzp_link_gather(link, mine, HOST_NAME, name, 0, reterr);
    *ret = true;
    for (int i = 0; i < ranks; i++)
        *ret = *ret && !strncmp(name, name + i * HOST_NAME, HOST_NAME);
    free(name);
    return r;
}

/* Rank 0: listens, on loopback if all ranks are on this machine, else on every address, with a key
 * that the others get over the link.  On loopback it keeps other users of the machine out; only
 * there may it be missing, where ZeroMQ has no CURVE. */
static int listen_for_others(const struct hzp_ranks *ranks, struct hzp_control_config *config,
                             bool local, struct invitation *invitation,
                             struct hzp_control **ret_control, struct hzp_err_text *reterr)
{
    char name[HOST_NAME] = "127.0.0.1";
    int r = hzp_pipe_make_key(invitation->key, reterr);
    if (r == HZP_OK)
        config->key = invitation->key;
    if (!local) {
        HZP_TRY(r);
        if (ranks->launch.host[0])
            snprintf(name, sizeof(name), "%s", ranks->launch.host);
        else if (gethostname(name, sizeof(name) - 1) != 0)
            return hzp_fail(reterr, HZP_EIO, "this machine has no name; set MASTER_ADDR");
    }
    snprintf(invitation->endpoint, sizeof(invitation->endpoint), "tcp://%s:0", name);
    return hzp_control_listen(config, invitation->endpoint, ret_control, reterr);
}

static int open_control(const struct hzp_ranks *ranks, struct hzp_control_config *config,
                        const char *record, struct hzp_control **ret_control,
                        struct hzp_err_text *reterr)
{
    struct invitation invitation = {.endpoint = ""};
    bool local;
    HZP_TRY(same_host(ranks->link, &local, reterr));
    int r = HZP_OK;
    if (ranks->rank == 0)
        r = listen_for_others(ranks, config, local, &invitation, ret_control, reterr);
    if (r < 0)
        memset(&invitation, 0, sizeof(invitation));
    HZP_TRY(hzp_link_broadcast(ranks->link, 0, &invitation, sizeof(invitation), 0,
                               r < 0 ? NULL : reterr));
    HZP_TRY(r);
    if (!invitation.endpoint[0])
        return hzp_fail(reterr, HZP_EIO, "rank 0 cannot listen for control messages");
    if (ranks->rank) {
        config->key = invitation.key[0] ? invitation.key : NULL;
        HZP_TRY(hzp_control_connect(config, invitation.endpoint, ret_control, reterr));
    }
    return hzp_control_meet(*ret_control, record, NULL, 0, ranks->link, reterr);
}

/* What connects the ranks, if no option says: MPI where a launcher that knows MPI has started
 * them.  Slurm's srun says by PMI's variables that it does. */
static enum hzp_ranks_link choose_link(const struct hzp_ranks_settings *settings,
                                       const struct hzp_launch *launch)
{
    struct hzp_link_about about;
    bool slurm = !strcmp(launch->kind, "slurm");
    if (settings->link == HZP_RANKS_MPI || settings->link == HZP_RANKS_ZMQ)
        return (enum hzp_ranks_link)settings->link;
    if (settings->replicas)
        return HZP_RANKS_ZMQ;
    if (!mpi_usable(&about) || !strcmp(launch->kind, "torchrun"))
        return HZP_RANKS_ZMQ;
    return slurm && !getenv("PMIX_RANK") && !getenv("PMI_RANK") ? HZP_RANKS_ZMQ : HZP_RANKS_MPI;
}

static int open_mpi(const struct hzp_ranks_settings *settings, const char *record,
                    struct hzp_control_config *config, struct hzp_ranks *ret,
                    struct hzp_control **ret_control, struct hzp_err_text *reterr)
{
    struct hzp_link_mpi mpi = {.rank = ret->rank,
                               .ranks = ret->ranks,
                               .rate = (double)settings->link_rate,
                               .latency_ns = (uint64_t)(settings->link_latency_ms * 1e6)};
    HZP_TRY(hzp_link_open_mpi(&mpi, &ret->link, reterr));
    return open_control(ret, config, record, ret_control, reterr);
}

/* What rank 0 says when they meet. */
struct share {
    uint64_t generation;
    uint8_t runs;
};

/* First the control messages, by which the ranks tell each other where they listen for data. */
static int open_zmq(const struct hzp_ranks_settings *settings, const char *record,
                    struct hzp_control_config *config, struct hzp_ranks *ret,
                    struct hzp_control **ret_control, struct hzp_err_text *reterr)
{
    const struct hzp_rendezvous *where = &ret->rendezvous;
    bool tcp = !where->folder[0];
    struct hzp_link_zmq zmq = {.rank = ret->rank,
                               .ranks = ret->ranks,
                               .folder = tcp ? NULL : where->folder,
                               .key = tcp ? where->key : NULL,
                               .rate = (double)settings->link_rate,
                               .latency_ns = (uint64_t)(settings->link_latency_ms * 1e6)};
    struct share share;
    uint16_t port[HZP_LINK_ZMQ_RANKS_MAX];
    char endpoint[HZP_PIPE_ENDPOINT];
    memset(&share, 0, sizeof(share));
    share.generation = ret->generation + 1;
    share.runs = ret->runs;
    ret->met = false;
    HZP_TRY(hzp_link_open_zmq(&zmq, port, &ret->link, reterr));
    hzp_rendezvous_endpoint(where, endpoint);
    config->key = zmq.key;
    if (ret->rank)
        HZP_TRY(hzp_control_connect(config, endpoint, ret_control, reterr));
    else
        HZP_TRY(hzp_control_listen(config, endpoint, ret_control, reterr));
    hzp_control_offer_ports(*ret_control, port);
    HZP_TRY(hzp_control_meet(*ret_control, record, &share, sizeof(share), ret->link, reterr));
    ret->met = true;
    HZP_TRY(hzp_link_connect_zmq(ret->link, hzp_control_addresses(*ret_control), config->meet_s,
                                 config->stop, config->ctx, reterr));
    ret->runs = share.runs;
    HZP_LOCKED(&ret->lock);
    ret->generation = share.generation;
    return HZP_OK;
}

/* Shows the control messages, which have met, to other threads. */
static void show(struct hzp_ranks *ranks, struct hzp_control *control)
{
    HZP_LOCKED(&ranks->lock);
    ranks->control = control;
    ranks->linked = true;
}

/* Takes link and control messages from the other threads, and closes them. */
static void close_both(struct hzp_ranks *ranks, struct hzp_control *hidden)
{
    hzp_lock_take(&ranks->lock);
    struct hzp_control *control = ranks->control;
    struct hzp_link *link = ranks->link;
    ranks->control = NULL;
    while (ranks->users)
        pthread_cond_wait(&ranks->unused, &ranks->lock.mutex);
    ranks->link = NULL;
    hzp_lock_release(&ranks->lock);
    hzp_control_close(control ? control : hidden);
    hzp_link_close(link);
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
                    struct hzp_control **ret_control, struct hzp_err_text *reterr)
{
    HZP_TRY(read_launch(settings, ret, reterr));
    if (ret->ranks == 1)
        return HZP_OK;
    config->rank = ret->rank;
    config->ranks = ret->ranks;
    if (choose_link(settings, &ret->launch) == HZP_RANKS_MPI)
        HZP_TRY(open_mpi(settings, record, config, ret, ret_control, reterr));
    else
        HZP_TRY(hzp_rendezvous_open(&ret->launch, (int)settings->port, &ret->rendezvous, reterr));
    if (!ret->link)
        HZP_TRY(open_zmq(settings, record, config, ret, ret_control, reterr));
    show(ret, *ret_control);
    const char *at = ret->rendezvous.from;
    hzp_log(HZP_LOG_INFO, "ranks", "met rank=%d ranks=%d local_rank=%d link=%s from=%s%s%s",
            ret->rank, ret->ranks, ret->launch.local_rank, hzp_link_backend(ret->link),
            ret->launch.from, at[0] ? " at=" : "", at);
    return HZP_OK;
}

/* The control messages' part of it. */
static struct hzp_control_config control_config(const struct hzp_ranks_config *config)
{
    return (struct hzp_control_config){.silent_s = config->settings->silent_s,
                                       .meet_s = config->settings->meet_s,
                                       .lost = config->lost,
                                       .stop = config->stop,
                                       .ctx = config->ctx};
}

/* One meeting. */
static int meet_again(const struct hzp_ranks_config *config, double meet_s, struct hzp_ranks *ranks,
                      struct hzp_err_text *reterr)
{
    struct hzp_control_config meeting = control_config(config);
    struct hzp_control *control = NULL;
    meeting.meet_s = meet_s;
    meeting.again = true;
    meeting.rank = ranks->rank;
    meeting.ranks = ranks->ranks;
    ranks->runs = config->runs;
    int r = open_zmq(config->settings, config->record, &meeting, ranks, &control, reterr);
    if (r < 0)
        close_both(ranks, control);
    else
        show(ranks, control);
    return r;
}

static void log_meeting(const struct hzp_ranks *ranks, const struct hzp_err_text *why)
{
    hzp_log(HZP_LOG_WARN, "ranks", "meeting again rank=%d: %s", ranks->rank,
            why ? why->text : "a rank was lost");
}

/* Meetings, until all ranks are connected, or the time that began then is over. */
static int meet_until(const struct hzp_ranks_config *config, uint64_t began,
                      struct hzp_ranks *ranks, struct hzp_err_text *reterr)
{
    for (;;) {
        double left_s = config->settings->meet_s - (double)(hzp_now_ns() - began) * 1e-9;
        int r = meet_again(config, HZP_MAX(left_s, 0.0), ranks, reterr);
        if (r == HZP_OK) {
            hzp_log(HZP_LOG_INFO, "ranks", "met again rank=%d ranks=%d", ranks->rank, ranks->ranks);
            return HZP_OK;
        }
        bool late = (double)(hzp_now_ns() - began) * 1e-9 >= config->settings->meet_s;
        if (r != HZP_EIO || late || !ranks->met)
            return r;
        log_meeting(ranks, reterr);
    }
}

/* Nothing is connected yet. */
static void init(struct hzp_ranks *ranks)
{
    *ranks = (struct hzp_ranks){.ranks = 1, .lost_rank = -1, .rendezvous.lock = -1};
    hzp_lock_init(&ranks->lock, HZP_LOCK_RANKS);
    pthread_cond_init(&ranks->unused, NULL);
    ranks->made = true;
}

int hzp_ranks_open(const struct hzp_ranks_config *config, struct hzp_ranks *ret,
                   struct hzp_err_text *reterr)
{
    struct hzp_control_config meeting = control_config(config);
    struct hzp_control *control = NULL;
    init(ret);
    meeting.again = hzp_launch_again();
    uint64_t began = hzp_now_ns();
    int r = open_all(config->settings, config->record, &meeting, ret, &control, reterr);
    if (r < 0)
        close_both(ret, control);
    if (r == HZP_EIO && config->settings->restarts && ret->met) {
        log_meeting(ret, reterr); /* a rank was lost meanwhile; its place is taken again */
        r = meet_until(config, began, ret, reterr);
    }
    if (r < 0)
        hzp_ranks_close(ret);
    return r;
}

int hzp_ranks_place(const struct hzp_ranks_settings *settings, struct hzp_ranks *ret,
                    struct hzp_err_text *reterr)
{
    init(ret);
    int r = read_launch(settings, ret, reterr);
    if (r >= 0 && ret->ranks > 1)
        r = hzp_rendezvous_open(&ret->launch, (int)settings->port, &ret->rendezvous, reterr);
    if (r < 0)
        hzp_ranks_close(ret);
    return r;
}

int hzp_ranks_replicas_place(const struct hzp_ranks *ranks, struct hzp_pipe_place *ret,
                             struct hzp_err_text *reterr)
{
    if (!ranks->rendezvous.from[0])
        return hzp_fail_param(reterr, HZP_EUNSUP, "--replicas",
                              "--replicas needs ranks that are linked by ZeroMQ (--link zmq)");
    *ret = (struct hzp_pipe_place){.open = false};
    hzp_rendezvous_replicas(&ranks->rendezvous, ret->endpoint);
    memcpy(ret->key, ranks->rendezvous.key, sizeof(ret->key));
    return HZP_OK;
}

/* ---- a loss ---- */

bool hzp_ranks_may_rejoin(struct hzp_ranks *ranks)
{
    struct hzp_link_state link;
    if (!ranks->rendezvous.from[0] || !hzp_ranks_lost(ranks))
        return false;
    if (!ranks->link)
        return true;
    hzp_link_state(ranks->link, &link);
    return !link.left;
}

/* Keeps what is known of the loss beyond the generation that it ends. */
static void keep_loss(struct hzp_ranks *ranks)
{
    struct hzp_ranks_standing now;
    hzp_ranks_standing(ranks, &now);
    HZP_LOCKED(&ranks->lock);
    ranks->losses = now.losses;
    ranks->lost_rank = now.lost_rank;
    memcpy(ranks->why, now.why, sizeof(ranks->why));
}

int hzp_ranks_rejoin(const struct hzp_ranks_config *config, struct hzp_ranks *ranks,
                     struct hzp_err_text *reterr)
{
    keep_loss(ranks);
    close_both(ranks, NULL);
    return meet_until(config, hzp_now_ns(), ranks, reterr);
}

void hzp_ranks_rejoined(struct hzp_ranks *ranks)
{
    HZP_LOCKED(&ranks->lock);
    ranks->lost_rank = -1;
    ranks->why[0] = 0;
    ranks->rejoins++;
}

/* ---- other threads ---- */

/* Link and control messages stay open until give_back; NULL: there are none. */
static struct hzp_control *borrow(struct hzp_ranks *ranks)
{
    if (!ranks->made)
        return NULL;
    HZP_LOCKED(&ranks->lock);
    struct hzp_control *control = ranks->control;
    ranks->users += control != NULL;
    return control;
}

static void give_back(struct hzp_ranks *ranks)
{
    HZP_LOCKED(&ranks->lock);
    if (--ranks->users == 0)
        pthread_cond_signal(&ranks->unused);
}

void hzp_ranks_abort(struct hzp_ranks *ranks, const char *why)
{
    if (!borrow(ranks))
        return;
    hzp_link_abort(ranks->link, ranks->rank, why);
    give_back(ranks);
}

void hzp_ranks_standing(struct hzp_ranks *ranks, struct hzp_ranks_standing *ret)
{
    struct hzp_link_state link = {.failed = false};
    char why[sizeof(ret->why)] = "";
    struct hzp_control *control = borrow(ranks);
    int lost = control ? hzp_control_lost(control, why, sizeof(why)) : -1;
    if (control) {
        hzp_link_state(ranks->link, &link);
        give_back(ranks);
    }
    memset(ret, 0, sizeof(*ret));
    ret->lost_rank = -1;
    if (!ranks->made)
        return;
    HZP_LOCKED(&ranks->lock);
    ret->lost_rank = lost >= 0 ? lost : ranks->lost_rank;
    snprintf(ret->why, sizeof(ret->why), "%s", lost >= 0 ? why : ranks->why);
    ret->meeting = !control && ranks->linked;
    ret->losses = ranks->losses + (lost >= 0);
    ret->rejoins = ranks->rejoins;
    ret->generation = ranks->generation;
    ret->wire_bytes = link.wire_bytes;
}

bool hzp_ranks_rank(struct hzp_ranks *ranks, int rank, struct hzp_control_state *ret)
{
    struct hzp_control *control = borrow(ranks);
    if (!control)
        return false;
    hzp_control_state(control, rank, ret);
    give_back(ranks);
    return true;
}

int hzp_ranks_timeline(struct hzp_ranks *ranks, double seconds, char **ret, size_t *ret_bytes,
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
    struct hzp_control *control = ranks ? borrow(ranks) : NULL;
    if (control) {
        r = hzp_control_timeline(control, from, &chrome);
        give_back(ranks);
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

bool hzp_ranks_lost(struct hzp_ranks *ranks)
{
    struct hzp_ranks_standing now;
    hzp_ranks_standing(ranks, &now);
    struct hzp_link_state link = {.failed = false};
    if (borrow(ranks)) {
        hzp_link_state(ranks->link, &link);
        give_back(ranks);
    }
    return now.lost_rank >= 0 || now.meeting || link.failed;
}

void hzp_ranks_close(struct hzp_ranks *ranks)
{
    if (!ranks->made)
        return;
    close_both(ranks, NULL);
    hzp_rendezvous_close(&ranks->rendezvous);
    hzp_lock_fini(&ranks->lock);
    pthread_cond_destroy(&ranks->unused);
    ranks->made = false;
}
