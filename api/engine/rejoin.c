/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/rejoin.h"

#include "api/engine/shards.h"
#include "base/log.h"
#include "train/history/trainer_rejoin.h"

enum { LOOK_NS = 100000000 };

struct hzp_rejoin {
    struct hzp_engine *engine;
    struct hzp_ranks_settings settings;
    struct hzp_ranks *ranks;
    char *record;
    pthread_t thread;
    struct hzp_wake wake; /* poked by stop */
    atomic_bool stop;
    atomic_bool gives; /* the other ranks are waited for on the link */
};

static bool stopped(void *ctx)
{
    struct hzp_rejoin *r = ctx;
    return atomic_load(&r->stop);
}

/* The trainer lets go of the link.  False: stopped. */
static bool part(struct hzp_rejoin *r)
{
    struct hzp_loop *loop = r->engine->parts.loop;
    struct hzp_border_call call = {
        .fn = hzp_trainer_part, .ctx = r->engine->parts.trainer, .wake = &r->wake};
    int code;
    hzp_loop_post(loop, &call);
    while (!hzp_loop_ended(loop, &call, &code)) {
        if (stopped(r))
            return hzp_loop_cancel(loop, &call) == HZP_OK;
        hzp_wake_wait(&r->wake, UINT64_MAX);
    }
    return code == HZP_OK;
}

/* Until all ranks are there: those that are late are named once every --rank-wait seconds.  False:
 * stopped. */
static bool meet(struct hzp_rejoin *r)
{
    struct hzp_ranks_config config = {
        .settings = &r->settings, .record = r->record, .runs = true, .stop = stopped, .ctx = r};
    struct hzp_err_text why = {{0}, {0}};
    int code;
    while (!stopped(r)) {
        code = hzp_ranks_rejoin(&config, r->ranks, &why);
        if (code == HZP_OK)
            return true;
        if (code != HZP_ECANCELED)
            hzp_log(HZP_LOG_ERROR, "ranks", "%s; serving goes on, still waiting", why.text);
        if (code != HZP_ECANCELED)
            hzp_wake_wait(&r->wake, (uint64_t)10 * LOOK_NS);
    }
    return false;
}

/* The file thread: what the others read from the link when they start. */
static int join(void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_rejoin *r = ctx;
    struct hzp_assembly *a = &r->engine->parts;
    HZP_TRY(hzp_shards_tell(r->ranks->link, &a->shards, reterr));
    return hzp_trainer_join(a->trainer, r->ranks->link, reterr);
}

/* True: learning goes on, or there is another loss to deal with.  False: it cannot. */
static bool hand_over(struct hzp_rejoin *r)
{
    struct hzp_err_text why = {{0}, {0}};
    atomic_store(&r->gives, true);
    int code = HZP_ECANCELED;
    if (!stopped(r)) /* stop sees `gives`, or this sees stop */
        code = hzp_state_rejoin(r->engine->state, join, r, &why);
    atomic_store(&r->gives, false);
    if (code >= 0) {
        hzp_ranks_rejoined(r->ranks);
        hzp_log(HZP_LOG_INFO, "ranks", "rejoined ranks=%d: learning goes on", r->ranks->ranks);
        return true;
    }
    if (hzp_ranks_lost(r->ranks)) {
        hzp_log(HZP_LOG_WARN, "ranks", "lost again while the ranks were given the state: %s",
                why.text);
        return true;
    }
    if (code != HZP_ECANCELED)
        hzp_log(HZP_LOG_ERROR, "ranks", "the ranks cannot go on: %s; serving goes on", why.text);
    hzp_ranks_abort(r->ranks, "rank 0 cannot give the state of a checkpoint");
    return false;
}

static void *watch(void *arg)
{
    struct hzp_rejoin *r = arg;
    int64_t left = r->settings.restarts;
    while (!stopped(r)) {
        hzp_wake_wait(&r->wake, LOOK_NS);
        struct hzp_ranks_standing now;
        hzp_ranks_standing(r->ranks, &now);
        if (stopped(r) || !hzp_ranks_lost(r->ranks))
            continue;
        if (left-- <= 0) {
            hzp_log(HZP_LOG_ERROR, "ranks",
                    "no restarts are left, learning has stopped: serving goes on");
            break;
        }
        hzp_log(HZP_LOG_WARN, "ranks",
                "waiting lost_rank=%d left=%" PRId64 ": for one in its place, serving goes on",
                now.lost_rank, left);
        if (!part(r) || !meet(r) || !hand_over(r))
            break;
        if (left <= 0) /* the next loss is the last */
            hzp_trainer_set_rejoins(r->engine->parts.trainer, false);
    }
    hzp_trainer_set_rejoins(r->engine->parts.trainer, false);
    return NULL;
}

int hzp_rejoin_start(struct hzp_engine *engine, const struct hzp_ranks_settings *settings,
                     const char *record, struct hzp_rejoin **ret, struct hzp_err_text *reterr)
{
    *ret = NULL;
    if (engine->parts.link != engine->config.link) {
        hzp_log(
            HZP_LOG_WARN, "ranks",
            "--restart: ranks on GPUs cannot join a server that runs; when one is lost, serving "
            "goes on and learning ends");
        return HZP_OK;
    }
    struct hzp_rejoin *r = hzp_xcalloc(1, sizeof(*r));
    r->engine = engine;
    r->settings = *settings;
    r->ranks = engine->config.ranks;
    r->record = hzp_xstrdup(record);
    hzp_wake_init(&r->wake);
    hzp_trainer_set_rejoins(engine->parts.trainer, true);
    if (hzp_thread_start(&r->thread, "hzp-rejoin", watch, r) < 0) {
        hzp_wake_fini(&r->wake);
        free(r->record);
        free(r);
        return hzp_fail(reterr, HZP_ENOMEM, "cannot start the thread that waits for lost ranks");
    }
    *ret = r;
    return HZP_OK;
}

void hzp_rejoin_stop(struct hzp_rejoin *r)
{
    if (!r)
        return;
    atomic_store(&r->stop, true);
    hzp_wake_poke(&r->wake);
    if (atomic_load(&r->gives))
        hzp_ranks_abort(r->ranks, "rank 0 ends");
    pthread_join(r->thread, NULL);
    hzp_wake_fini(&r->wake);
    free(r->record);
    free(r);
}
