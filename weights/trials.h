/* SPDX-License-Identifier: Apache-2.0 */
/* weights/trials.h - versions on trial: a draft serves a share of the requests before it may become
 * current, and its answers are compared with those of the current version.
 *
 *     begin -> open: requests that begin are on one of two sides -> verdict -> end
 *                                                                    promoted, dropped, withdrawn
 *
 * The trainer begins and ends trials, the scheduler draws requests and notes what became of them,
 * clients score answers.  A request belongs to the trial in whose time it began; notes of requests
 * of an earlier trial, or of one that has ended, have no effect.
 *
 * A request is on the side of the trial if the hash of its key is below the share, so the requests
 * of one conversation, which have one key, are on one side, in every trial.
 *
 * With `measured` something else also looks at the version (what it has changed), and the verdict
 * waits for what that finds; with a share of 0 it is the verdict.  With `observes` it cannot
 * refuse: only a draft that is expected is tried, no client's request draws it, and it is promoted
 * when it was looked at, at the latest after time_ns.
 *
 * The verdict.  The trial is dropped when a request on its side has failed because its numbers were
 * not finite and none on the other side has.  Otherwise it lasts until `requests` have ended on
 * each side, at most time_ns.  Then it is promoted if as many have ended; if the mean
 * log-probability of its tokens is at most max_drop below that of the current version's; and if the
 * mean score of its answers is at most max_score_drop lower, where answers of both sides have
 * scores.  Otherwise it is dropped.  What a person asks for (hzp_trials_ask) comes before all of
 * these.
 *
 * Thread: engine, except hzp_trials_ask, _expect, _found, _set_wake, _running, _score, _read,
 * _ended, _bounds and _draws: any.
 */
#pragma once

#include "base/err.h"
#include "base/thread.h"

struct hzp_trials;

struct hzp_trials_config {
    double share;          /* share of the requests, below 1; above 0, or 0 with measured */
    bool measured;         /* each is promoted only after hzp_trials_found */
    bool observes;         /* see above; with measured, and a share of 0 */
    uint64_t time_ns;      /* how long a trial lasts at most */
    int64_t requests;      /* that must have ended on each side, >= 1 */
    double max_drop;       /* in nats per token, >= 0 */
    double max_score_drop; /* >= 0; scores are from -1 to 1 */
};

/* What became of the requests of one side. */
struct hzp_trial_side {
    int64_t requests, ended; /* begun; ended, with at least one token */
    int64_t failed;          /* because logits were not finite */
    int64_t cut;             /* ended by max_tokens or the end of the context */
    int64_t tokens, scores;
    double logprob, score; /* sums over tokens; over answers */
};

enum hzp_trial_end { HZP_TRIAL_RUNS, HZP_TRIAL_PROMOTED, HZP_TRIAL_DROPPED, HZP_TRIAL_WITHDRAWN };
const char *hzp_trial_end_name(enum hzp_trial_end end); /* "runs", "promoted", .. */

struct hzp_trial {
    uint64_t version, parent; /* version 0: none yet */
    enum hzp_trial_end end;
    int64_t begun_unix_ms, ended_unix_ms; /* 0: not yet */
    struct hzp_trial_side side[2];        /* the current version's; the trial's */
    char reason[200];                     /* why it ended */
};

enum { HZP_TRIALS_KEPT = 64 };

struct hzp_trials_stats {
    uint64_t ended[HZP_TRIAL_WITHDRAWN + 1]; /* trials by their end; [HZP_TRIAL_RUNS]: not used */
    struct hzp_trial newest;
};

/* The configuration is copied. */
struct hzp_trials *hzp_trials_create(const struct hzp_trials_config *config);
void hzp_trials_destroy(struct hzp_trials *t); /* NULL: no effect */
const struct hzp_trials_config *hzp_trials_bounds(const struct hzp_trials *t);
/* Whether a version may be dropped, so that moments have to be copied.  NULL: false. */
bool hzp_trials_undo(const struct hzp_trials *t);

/* --- The trainer ------------------------------------------------------------------------------ */

void hzp_trials_begin(struct hzp_trials *t, uint64_t version, uint64_t parent, uint64_t now_ns);
/* Whether a draft that has learned everything up to this example is to be tried. */
bool hzp_trials_expects(struct hzp_trials *t, int64_t learned_through);
/* now_ns: of the clock of begin. */
enum hzp_verdict { HZP_VERDICT_NONE, HZP_VERDICT_PROMOTE, HZP_VERDICT_DROP };
enum hzp_verdict hzp_trials_verdict(struct hzp_trials *t, uint64_t now_ns);
/* When the verdict is due at the latest; UINT64_MAX: no trial runs. */
uint64_t hzp_trials_due_ns(struct hzp_trials *t);
/* The trial that runs ends.  why: its reason; NULL: that of the newest verdict.  False: it goes on,
 * because since that verdict the opposite was asked for. */
bool hzp_trials_end(struct hzp_trials *t, enum hzp_trial_end end, const char *why);

/* --- The scheduler ---------------------------------------------------------------------------- */

/* The version on trial; 0: none. */
uint64_t hzp_trials_running(struct hzp_trials *t);
/* Whether requests with this key are on the side of the trial.  Thread: any. */
bool hzp_trials_draws(const struct hzp_trials *t, uint64_t key);
/* --- Thread: any ------------------------------------------------------------------------------ */

/* Asks for a verdict about the version, which is on trial; poke the loop afterwards.  The trial
 * ends so unless the other verdict is asked for later, or it is withdrawn.  HZP_ENOENT: it is not
 * on trial any more. */
int hzp_trials_ask(struct hzp_trials *t, uint64_t version, bool promote,
                   struct hzp_err_text *reterr);
/* With observes: a draft that has learned everything up to this example is to be tried; 0: none. */
void hzp_trials_expect(struct hzp_trials *t, int64_t through);
/* What was found about the version: it may be promoted, or has to be dropped, and why.  Poke the
 * loop afterwards. */
void hzp_trials_found(struct hzp_trials *t, uint64_t version, bool passed, const char *why);
/* Poked when a trial begins; borrowed; NULL: none. */
void hzp_trials_set_wake(struct hzp_trials *t, struct hzp_wake *wake);
/* Adds to what became of the requests of a side (trial: on the trial's) that began while `version`
 * was on trial; 0, or one that is not any more: no effect. */
void hzp_trials_note(struct hzp_trials *t, uint64_t version, bool trial,
                     const struct hzp_trial_side *more);
void hzp_trials_read(struct hzp_trials *t, struct hzp_trials_stats *ret);
/* Writes the oldest `max` ended trials behind the first *seen ones, adds what was written and what
 * is not kept any more (the newest HZP_TRIALS_KEPT are) to *seen; returns how many it wrote. */
int32_t hzp_trials_ended(struct hzp_trials *t, uint64_t *seen, struct hzp_trial *ret, int32_t max);
