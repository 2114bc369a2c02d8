/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/consistency.h - what the files of test_consistency share.
 *
 * Thread: one.
 */
#pragma once

#include "serve/scheduler.h"
#include "serve/scheduler_state.h"
#include "tests/fixture/model.h"
#include "tests/serve/seeded.h"

enum {
    VOCAB = 512,
    EOS = VOCAB - 1,
    POSITIONS = 128,
    LIVES_MAX = 60,
    IDS_MAX = 1 << 14,
    SAMPLES_MAX = 1 << 14,
    PATIENCE = 400, /* steps without any row while requests are there */
};

enum sabotage {
    SOUND,
    NO_RECOMPUTE,  /* a request goes on with rows of the version before */
    NO_ABORT,      /* or does not end at the swap */
    ALWAYS_MET,    /* requests do not wait for the weights they ask for */
    UNLEARNED,     /* an example that was given up counts as learned */
    NOT_PINNED,    /* a pinned version's slot is given out again */
    WRONG_WEIGHTS, /* a pinned request's rows are computed by the current version */
    PINS_LAST,     /* pins last for ever */
    STALE_CACHE,   /* the prefix cache does not hear of swaps */
    STALE_FOR_ALL, /* requests that ask for newer weights get stale rows, too */
    DRAWN_ANY,     /* any request may be answered by a trial */
    TRIAL_UNHEARD, /* the scheduler does not hear of the end of trials */
    SABOTAGES
};
struct row {
    uint64_t content, version;
};

struct life {
    struct hzp_request *rq;
    int32_t seen, pushes, edge; /* as in test_prefix.c */
    uint64_t by[POSITIONS];
    uint64_t submitted; /* the step before */
    bool ended;
};

/* A version that was published. */
struct known {
    int64_t learned_through, step;
    int32_t swap, line; /* how many were published before; the first of its line without a break */
    bool on_trial, dropped;
};

struct day {
    uint64_t seed, random;
    enum sabotage sabotage;
    bool ahead;
    int32_t pages, page_rows, rows_max, lives, submitted, ended, slots, operator_bound;
    int32_t swap_chance;
    struct hzp_scheduler_config config;
    struct fixture_model m;
    struct hzp_kvpool *pool;
    struct hzp_time time;
    struct hzp_scheduler *s;
    struct hzp_batch *batch[2];
    struct row *kv;
    struct life life[LIVES_MAX];
    struct known *known; /* [IDS_MAX] by id */
    bool *unlearned;     /* [SAMPLES_MAX + 4] by number */
    uint64_t steps, newest, landed;
    /* the trainer */
    struct hzp_version *draft;
    int64_t step, learned_through;
    int64_t learned_before;    /* the trial */
    struct hzp_version *trial; /* NULL: none */
    struct hzp_trials *trials; /* NULL: there are none today */
    int32_t starved, kept;
};

struct totals {
    uint64_t days, requests, swaps, rollbacks, recomputes, aborted, expired, unmet_time,
        unmet_never, pushes, canceled, pinned_old, guessed_old, hits, mode[4], waited, stale,
        rewarmed, promoted, dropped, withdrawn, on_trial, left;
};

/* Ends the program. */
HZP_NORETURN void broken(const struct day *d, const char *rule, int64_t a, int64_t b);

static inline void check(const struct day *d, bool holds, const char *rule, int64_t a, int64_t b)
{
    if (!holds)
        broken(d, rule, a, b);
}

static inline int32_t between(struct day *d, int32_t low, int32_t high)
{
    return low + (int32_t)seeded(&d->random, (uint32_t)(high - low + 1));
}

/* True once in n times. */
static inline bool once_in(struct day *d, int32_t n)
{
    return !seeded(&d->random, (uint32_t)n);
}

static inline uint64_t content(uint64_t before, int32_t token, uint64_t version)
{
    uint64_t z = before * 0x9e3779b97f4a7c15u + (uint64_t)token * 0xbf58476d1ce4e5b9u + version;
    z = (z ^ z >> 31) * 0x94d049bb133111ebu;
    return z ^ z >> 29;
}

/* --- consistency_trainer.c -------------------------------------------------------------------- */

/* Publishes a version with the numbers of d. */
void publish(struct day *d, struct hzp_version *v, uint64_t last_step);
/* After a step, unless it keeps the version: finishes an update, and publishes what is finished, or
 * puts it on trial, or ends a trial.  flying: another step is in flight. */
void train(struct day *d, const struct hzp_offer *offer, uint64_t number, bool flying,
           struct totals *t);
