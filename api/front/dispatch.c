/* SPDX-License-Identifier: Apache-2.0 */
#include "api/front/front_state.h"

#include "device/philox.h"

enum {
    CHUNK = 32,       /* tokens */
    CHUNKS_MAX = 256, /* chunks of a prompt that are remembered */
    BEGINNINGS = 16384,
    SESSIONS = 4096,
    MEAN_OF = 64, /* requests, about, that the expected length follows from */
};

struct beginning {
    uint64_t hash;  /* 0: none */
    uint64_t ranks; /* bit r: rank r has had it */
};

struct session {
    uint64_t number; /* 0: none */
    int32_t rank;
};

struct hzp_dispatch {
    struct beginning beginning[BEGINNINGS];
    struct session session[SESSIONS];
    double mean; /* tokens of requests that have ended; 0: none has */
};

/* ---- choosing ---- */

int32_t hzp_dispatch_pages(const struct hzp_dispatch_ask *ask, const struct hzp_dispatch_rank *rank)
{
    int64_t rows = (int64_t)ask->prompt + ask->expected - HZP_MIN(rank->found, ask->prompt);
    return (int32_t)HZP_DIV_UP(HZP_MAX(rows, 1), HZP_MAX(rank->page_rows, 1));
}

static double load_of(const struct hzp_dispatch_ask *ask, const struct hzp_dispatch_rank *rank)
{
    double pages = (double)rank->kv_needed + hzp_dispatch_pages(ask, rank);
    return HZP_MAX(pages / HZP_MAX(rank->kv_pages, 1),
                   (rank->requests + 1.0) / HZP_MAX(rank->running_max, 1));
}

int hzp_dispatch_choose(const struct hzp_dispatch_ask *ask, const struct hzp_dispatch_rank *rank,
                        int ranks)
{
    int64_t least = INT32_MAX;
    int best = -1, longest = -1;
    for (int r = 0; r < ranks; r++)
        if (rank[r].takes)
            least = HZP_MIN(least, (int64_t)rank[r].requests);
    for (int r = 0; r < ranks; r++) {
        const struct hzp_dispatch_rank *at = &rank[r];
        if (!at->takes)
            continue;
        double load = load_of(ask, at), lowest = best < 0 ? 0 : load_of(ask, &rank[best]);
        if (best < 0 || load < lowest || (!(load > lowest) && at->requests <= rank[best].requests))
            best = r;
        bool even = load <= 1 && at->requests <= least + least / 2 + 4;
        if (even && r == ask->session)
            return r;
        if (even && at->found > 0 && at->found >= ask->prompt / 2 &&
            (longest < 0 || at->found > rank[longest].found))
            longest = r;
    }
    return longest >= 0 ? longest : best;
}

/* ---- the memory ---- */

struct hzp_dispatch *hzp_dispatch_create(void)
{
    return hzp_xcalloc(1, sizeof(struct hzp_dispatch));
}

void hzp_dispatch_destroy(struct hzp_dispatch *d)
{
    free(d);
}

/* The hash of a beginning, from that of the one that is a chunk shorter. */
static uint64_t longer(uint64_t hash, const int32_t *token)
{
    for (int i = 0; i < CHUNK; i++)
        hash = hzp_mix64(hash + 0x9e3779b97f4a7c15u + (uint32_t)token[i]);
    return hash ? hash : 1;
}

void hzp_dispatch_find(const struct hzp_dispatch *d, const int32_t *prompt, int32_t count,
                       int ranks, int32_t *ret)
{
    uint64_t hash = 0, have = UINT64_MAX;
    for (int r = 0; r < ranks; r++)
        ret[r] = 0;
    for (int32_t c = 0; c < HZP_MIN(count / CHUNK, (int32_t)CHUNKS_MAX) && have; c++) {
        hash = longer(hash, prompt + (size_t)c * CHUNK);
        const struct beginning *b = &d->beginning[hash % BEGINNINGS];
        have &= b->hash == hash ? b->ranks : 0;
        for (int r = 0; r < ranks; r++)
            if (have >> r & 1)
                ret[r] = (c + 1) * CHUNK;
    }
}

void hzp_dispatch_note(struct hzp_dispatch *d, const int32_t *prompt, int32_t count, int rank)
{
    uint64_t hash = 0;
    for (int32_t c = 0; c < HZP_MIN(count / CHUNK, (int32_t)CHUNKS_MAX); c++) {
        hash = longer(hash, prompt + (size_t)c * CHUNK);
        struct beginning *b = &d->beginning[hash % BEGINNINGS];
        if (b->hash != hash)
            *b = (struct beginning){.hash = hash};
        b->ranks |= (uint64_t)1 << rank;
    }
}

void hzp_dispatch_forget(struct hzp_dispatch *d, int rank)
{
    for (int i = 0; i < BEGINNINGS; i++)
        d->beginning[i].ranks &= ~((uint64_t)1 << rank);
}

int hzp_dispatch_session(const struct hzp_dispatch *d, uint64_t session)
{
    const struct session *s = &d->session[hzp_mix64(session) % SESSIONS];
    return session && s->number == session ? s->rank : -1;
}

void hzp_dispatch_note_session(struct hzp_dispatch *d, uint64_t session, int rank)
{
    if (session)
        d->session[hzp_mix64(session) % SESSIONS] = (struct session){session, rank};
}

void hzp_dispatch_ended(struct hzp_dispatch *d, int32_t tokens)
{
    d->mean += d->mean > 0 ? (tokens - d->mean) / MEAN_OF : tokens;
}

int32_t hzp_dispatch_expected(const struct hzp_dispatch *d, int32_t max_tokens)
{
    enum { FIRST = 128 }; /* before any has ended */
    double mean = d->mean > 0 ? d->mean : FIRST;
    return (int32_t)HZP_MIN(mean, (double)max_tokens);
}
