/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/trials.h"

#include "device/philox.h"

struct hzp_trials {
    struct hzp_trials_config config; /* fixed */
    struct hzp_lock lock;
    /* under lock */
    struct hzp_trials_stats stats;
    struct hzp_trial ended[HZP_TRIALS_KEPT]; /* the n-th: ended[n % HZP_TRIALS_KEPT] */
    uint64_t count;                          /* ended so far */
    uint64_t begin_ns;
    enum hzp_verdict asked, found;
    int64_t expected;                                  /* with observes; 0: none is */
    struct hzp_wake *wake;                             /* NULL: none */
    char why[sizeof(((struct hzp_trial *)0)->reason)]; /* the newest verdict's */
};

const char *hzp_trial_end_name(enum hzp_trial_end end)
{
    static const char *const name[] = {"runs", "promoted", "dropped", "withdrawn"};
    return name[end];
}

struct hzp_trials *hzp_trials_create(const struct hzp_trials_config *config)
{
    HZP_ASSERT((config->share > 0 || config->measured) && config->share < 1);
    HZP_ASSERT(!config->observes || (config->measured && !(config->share > 0)));
    HZP_ASSERT(config->requests >= 1);
    HZP_ASSERT(config->max_drop >= 0 && config->max_score_drop >= 0);
    struct hzp_trials *t = hzp_xcalloc(1, sizeof(*t));
    t->config = *config;
    hzp_lock_init(&t->lock, HZP_LOCK_TRIALS);
    return t;
}

void hzp_trials_destroy(struct hzp_trials *t)
{
    if (!t)
        return;
    hzp_lock_fini(&t->lock);
    free(t);
}

const struct hzp_trials_config *hzp_trials_bounds(const struct hzp_trials *t)
{
    return &t->config;
}

bool hzp_trials_undo(const struct hzp_trials *t)
{
    return t && !t->config.observes;
}

/* The lock is held. */
static bool runs(const struct hzp_trials *t, uint64_t version)
{
    const struct hzp_trial *newest = &t->stats.newest;
    return version && newest->version == version && newest->end == HZP_TRIAL_RUNS;
}

/* --- The trainer ------------------------------------------------------------------------------ */

void hzp_trials_begin(struct hzp_trials *t, uint64_t version, uint64_t parent, uint64_t now_ns)
{
    HZP_LOCKED(&t->lock);
    t->stats.newest =
        (struct hzp_trial){.version = version, .parent = parent, .begun_unix_ms = hzp_unix_ms()};
    t->begin_ns = now_ns;
    t->asked = t->found = HZP_VERDICT_NONE;
    t->why[0] = 0;
    if (t->wake)
        hzp_wake_poke(t->wake);
}

bool hzp_trials_expects(struct hzp_trials *t, int64_t learned_through)
{
    HZP_LOCKED(&t->lock);
    return !t->config.observes || (t->expected && learned_through >= t->expected);
}

static double mean(double sum, int64_t count)
{
    return count ? sum / (double)count : 0;
}

/* The same with the reason in t->why.  The lock is held. */
static enum hzp_verdict judge(struct hzp_trials *t, uint64_t now_ns)
{
    const struct hzp_trial_side *old = &t->stats.newest.side[0], *new = &t->stats.newest.side[1];
    const struct hzp_trials_config *config = &t->config;
    if (config->observes)
        return t->found != HZP_VERDICT_NONE || now_ns - t->begin_ns >= config->time_ns
                   ? HZP_VERDICT_PROMOTE
                   : HZP_VERDICT_NONE;
    if (t->asked != HZP_VERDICT_NONE) {
        snprintf(t->why, sizeof(t->why), "asked for");
        return t->asked;
    }
    if (new->failed && !old->failed) {
        snprintf(t->why, sizeof(t->why), "%" PRId64 " of its %" PRId64 " requests failed",
                 new->failed, new->requests);
        return HZP_VERDICT_DROP;
    }
    if (config->measured && t->found == HZP_VERDICT_NONE)
        return HZP_VERDICT_NONE;
    if (t->found == HZP_VERDICT_DROP || !(config->share > 0))
        return t->found; /* with the reason that was found */
    bool enough = old->ended >= config->requests && new->ended >= config->requests;
    if (!enough && now_ns - t->begin_ns < config->time_ns)
        return HZP_VERDICT_NONE;
    if (!enough) {
        snprintf(t->why, sizeof(t->why),
                 "too few requests ended in %g seconds: %" PRId64 " on trial, %" PRId64
                 " beside it, %" PRId64 " of each are needed",
                 (double)config->time_ns * 1e-9, new->ended, old->ended, config->requests);
        return HZP_VERDICT_DROP;
    }
    double logprob[] = {mean(old->logprob, old->tokens), mean(new->logprob, new->tokens)};
    double score[] = {mean(old->score, old->scores), mean(new->score, new->scores)};
    bool worse = !(logprob[1] >= logprob[0] - config->max_drop);
    bool disliked = old->scores && new->scores && !(score[1] >= score[0] - config->max_score_drop);
    snprintf(t->why, sizeof(t->why),
             "%slog-probability of a token %.4f, beside it %.4f; feedback %.3f of %" PRId64
             ", beside it %.3f of %" PRId64,
             worse      ? "it fell too far: "
             : disliked ? "feedback fell too far: "
                        : "",
             logprob[1], logprob[0], score[1], new->scores, score[0], old->scores);
    return worse || disliked ? HZP_VERDICT_DROP : HZP_VERDICT_PROMOTE;
}

enum hzp_verdict hzp_trials_verdict(struct hzp_trials *t, uint64_t now_ns)
{
    hzp_assert_engine_thread();
    HZP_LOCKED(&t->lock);
    enum hzp_verdict verdict = HZP_VERDICT_NONE;
    if (runs(t, t->stats.newest.version))
        verdict = judge(t, now_ns);
    return verdict;
}

uint64_t hzp_trials_due_ns(struct hzp_trials *t)
{
    HZP_LOCKED(&t->lock);
    bool any = runs(t, t->stats.newest.version);
    uint64_t left = UINT64_MAX - t->begin_ns;
    return any ? t->begin_ns + HZP_MIN(t->config.time_ns, left) : UINT64_MAX;
}

bool hzp_trials_end(struct hzp_trials *t, enum hzp_trial_end end, const char *why)
{
    enum hzp_verdict opposite = end == HZP_TRIAL_PROMOTED  ? HZP_VERDICT_DROP
                                : end == HZP_TRIAL_DROPPED ? HZP_VERDICT_PROMOTE
                                                           : HZP_VERDICT_NONE;
    HZP_LOCKED(&t->lock);
    struct hzp_trial *newest = &t->stats.newest;
    HZP_ASSERT(runs(t, newest->version) && end != HZP_TRIAL_RUNS);
    if (opposite != HZP_VERDICT_NONE && t->asked == opposite)
        return false;
    newest->end = end;
    newest->ended_unix_ms = hzp_unix_ms();
    snprintf(newest->reason, sizeof(newest->reason), "%s", why ? why : t->why);
    t->stats.ended[end]++;
    t->ended[t->count++ % HZP_TRIALS_KEPT] = *newest;
    return true;
}

/* --- The scheduler ---------------------------------------------------------------------------- */

uint64_t hzp_trials_running(struct hzp_trials *t)
{
    HZP_LOCKED(&t->lock);
    uint64_t version = t->stats.newest.version;
    return runs(t, version) ? version : 0;
}

bool hzp_trials_draws(const struct hzp_trials *t, uint64_t key)
{
    /* Spreads keys that differ in few bits. */
    return (double)(hzp_mix64(key + 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53 < t->config.share;
}

void hzp_trials_note(struct hzp_trials *t, uint64_t version, bool trial,
                     const struct hzp_trial_side *more)
{
    HZP_LOCKED(&t->lock);
    if (!runs(t, version))
        return;
    struct hzp_trial_side *side = &t->stats.newest.side[trial];
    side->requests += more->requests;
    side->ended += more->ended;
    side->failed += more->failed;
    side->cut += more->cut;
    side->tokens += more->tokens;
    side->scores += more->scores;
    side->logprob += more->logprob;
    side->score += more->score;
}

/* --- Any thread ------------------------------------------------------------------------------- */

int hzp_trials_ask(struct hzp_trials *t, uint64_t version, bool promote,
                   struct hzp_err_text *reterr)
{
    HZP_LOCKED(&t->lock);
    if (!runs(t, version) || t->config.observes)
        return hzp_fail(reterr, HZP_ENOENT, "version %" PRIu64 " is not on trial", version);
    t->asked = promote ? HZP_VERDICT_PROMOTE : HZP_VERDICT_DROP;
    return HZP_OK;
}

void hzp_trials_expect(struct hzp_trials *t, int64_t through)
{
    HZP_LOCKED(&t->lock);
    t->expected = through;
}

void hzp_trials_found(struct hzp_trials *t, uint64_t version, bool passed, const char *why)
{
    HZP_LOCKED(&t->lock);
    if (runs(t, version)) {
        t->found = passed ? HZP_VERDICT_PROMOTE : HZP_VERDICT_DROP;
        snprintf(t->why, sizeof(t->why), "%s", why);
    }
}

void hzp_trials_set_wake(struct hzp_trials *t, struct hzp_wake *wake)
{
    HZP_LOCKED(&t->lock);
    t->wake = wake;
    if (wake)
        hzp_wake_poke(wake); /* one may have begun */
}

void hzp_trials_read(struct hzp_trials *t, struct hzp_trials_stats *ret)
{
    HZP_LOCKED(&t->lock);
    *ret = t->stats;
}

int32_t hzp_trials_ended(struct hzp_trials *t, uint64_t *seen, struct hzp_trial *ret, int32_t max)
{
    int32_t n = 0;
    HZP_LOCKED(&t->lock);
    if (t->count - *seen > HZP_TRIALS_KEPT)
        *seen = t->count - HZP_TRIALS_KEPT;
    while (*seen < t->count && n < max)
        ret[n++] = t->ended[(*seen)++ % HZP_TRIALS_KEPT];
    return n;
}
