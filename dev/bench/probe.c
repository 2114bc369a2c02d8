/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/probe.h"

#include "api/client/http_client.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

enum { INTERVAL_MS = 50, PATIENCE_S = 30, MEMORY_EVERY = 10, TIMES_MAX = 1 << 20 };

struct hzp_probe {
    struct hzp_http_host server; /* a copy: each call resolves its address again */
    pthread_t thread;
    struct hzp_wake wake;
    volatile sig_atomic_t stop;
    float *time; /* seconds, of those answered */
    int64_t times, room, failed;
    double resident;
};

/* ends: the probe's end breaks it off. */
static bool ask_health(struct hzp_probe *p, bool ends)
{
    const struct hzp_http_call call = {.method = "GET",
                                       .route = "/health",
                                       .patience_s = PATIENCE_S,
                                       .stop = ends ? &p->stop : NULL};
    struct hzp_http_stream in;
    struct hzp_err_text err;
    hzp_http_stream_init(&in, NULL, NULL);
    int r = hzp_http_call(&p->server, &call, &in, &err);
    bool good = r == HZP_OK && in.status == 200;
    hzp_http_stream_fini(&in);
    return good;
}

static void add_time(struct hzp_probe *p, double seconds)
{
    if (p->times == p->room && p->room < TIMES_MAX) {
        int64_t room = HZP_MAX(2 * p->room, (int64_t)256);
        float *time = realloc(p->time, (size_t)room * sizeof(*time));
        if (!time)
            return;
        p->time = time;
        p->room = room;
    }
    if (p->times < p->room)
        p->time[p->times++] = (float)seconds;
}

static void *probe_main(void *arg)
{
    struct hzp_probe *p = arg;
    struct hzp_load_cost cost;
    for (int64_t n = 0; n == 0 || !p->stop; n++) { /* at least once, however short the load is */
        uint64_t begin = hzp_now_ns();
        bool good = ask_health(p, n > 0);
        if (p->stop && n > 0)
            break; /* what it broke off is not the server's failure */
        if (good)
            add_time(p, (double)(hzp_now_ns() - begin) * 1e-9);
        p->failed += !good;
        if (n % MEMORY_EVERY == 0) {
            hzp_load_read_cost(&p->server, &cost);
            p->resident = HZP_MAX(p->resident, cost.resident);
        }
        uint64_t next = begin + INTERVAL_MS * 1000000ull, now = hzp_now_ns();
        if (now < next)
            hzp_wake_wait(&p->wake, next - now);
    }
    return NULL;
}

struct hzp_probe *hzp_probe_start(const struct hzp_http_host *server)
{
    struct hzp_probe *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->server = *server;
    hzp_wake_init(&p->wake);
    if (ask_health(p, false) && hzp_thread_start(&p->thread, "probe", probe_main, p) == HZP_OK)
        return p;
    hzp_wake_fini(&p->wake);
    free(p);
    return NULL;
}

void hzp_probe_stop(struct hzp_probe *p, struct hzp_probe_report *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (!p)
        return;
    p->stop = 1;
    hzp_wake_poke(&p->wake);
    pthread_join(p->thread, NULL);
    ret->health = hzp_load_spread_of(p->time, p->times);
    ret->failed = p->failed;
    ret->resident = p->resident;
    hzp_wake_fini(&p->wake);
    free(p->time);
    free(p);
}
