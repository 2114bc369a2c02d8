/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/answer.h"

struct wait {
    struct hzp_exchange *x;
    struct hzp_completion_params params; /* owned */
    hzp_structure_then *then;
    struct hzp_pool_task task;
    _Atomic int size; /* enum hzp_structure_size: it is in this lane */
    _Atomic bool left;
};

static bool run(void *ctx);

/* A lane: the client has left, or the server stops and waits for all that is parked. */
static bool abandoned(void *ctx)
{
    const struct wait *w = ctx;
    return atomic_load_explicit(&w->left, memory_order_relaxed) ||
           atomic_load_explicit(&w->x->server->closing, memory_order_relaxed);
}

static void end(struct wait *w)
{
    hzp_completion_params_fini(&w->params);
    free(w);
}

static void close_exchange(struct wait *w)
{
    struct hzp_exchange *x = w->x;
    end(w);
    x->closing = true;
    hzp_exchange_wake(x);
}

/* Pool: it was taken out of its lane. */
static bool run_left(void *ctx)
{
    struct wait *w = ctx;
    hzp_door_forget(w->x->server->door, w->x->fd);
    close_exchange(w);
    return true;
}

/* Door thread. */
static void client_left(void *ctx)
{
    struct wait *w = ctx;
    struct hzp_server *server = w->x->server;
    atomic_store(&w->left, true);
    if (!hzp_pool_take_back(server->lane[atomic_load(&w->size)], &w->task))
        return;
    w->task = (struct hzp_pool_task){.run = run_left, .ctx = w};
    hzp_pool_post(server->pool, &w->task);
}

/* Puts it into the next lane.  False: its client has left. */
static bool post(struct wait *w, int size)
{
    w->task = (struct hzp_pool_task){.run = run, .ctx = w};
    atomic_store(&w->size, size);
    return hzp_pool_post_unless(w->x->server->lane[size], &w->task, &w->left);
}

/* A lane. */
static bool run(void *ctx)
{
    struct wait *w = ctx;
    struct hzp_exchange *x = w->x;
    struct hzp_err_text err = {.text = ""};
    int size = atomic_load(&w->size);
    int r = abandoned(w) ? HZP_ECANCELED
                         : hzp_structure_make(&w->params, x->server->engine,
                                              (enum hzp_structure_size)size, abandoned, w, &err);
    if (r > 0 && post(w, size + 1))
        return true;
    hzp_door_forget(x->server->door, x->fd);
    if (r > 0 || r == HZP_ECANCELED) {
        close_exchange(w);
        return true;
    }
    if (r == HZP_OK) {
        w->then(x, &w->params);
        end(w);
        return true;
    }
    end(w);
    x->closing = hzp_reply_fail(x, r, &err) == MHD_NO;
    hzp_exchange_wake(x);
    return true;
}

void hzp_structure_wait(struct hzp_exchange *x, struct hzp_completion_params *params,
                        hzp_structure_then *then)
{
    struct wait *w = hzp_xcalloc(1, sizeof(*w));
    _Static_assert((int)HZP_STRUCTURE_SIZES == (int)HZP_SERVER_LANES, "a lane for each size");
    w->x = x;
    w->params = *params;
    w->then = then;
    memset(params, 0, sizeof(*params));
    hzp_door_watch(x->server->door, x->fd, client_left, w);
    if (!post(w, HZP_STRUCTURE_QUICK)) {
        hzp_door_forget(x->server->door, x->fd);
        close_exchange(w);
    }
}
