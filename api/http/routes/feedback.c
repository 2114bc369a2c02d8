/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/feedback.h"

#include "api/http/wire/request_log.h"
#include "base/arena.h"
#include "base/hash.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_BYTES = HZP_REQUEST_ID_MAX + 16 };

struct noted {
    uint64_t hash, version;
    uint64_t trial; /* the version on trial when it began; 0: none */
    bool on_trial, scored;
    double score;
    char id[ID_BYTES];
};

struct hzp_feedback {
    struct hzp_trials *trials;
    struct hzp_lock lock;
    /* under lock */
    struct noted *answer; /* [HZP_FEEDBACK_ANSWERS] the n-th: at n % HZP_FEEDBACK_ANSWERS */
    uint64_t count;
    struct hzp_feedback_stats stats;
};

struct hzp_feedback *hzp_feedback_create(struct hzp_trials *trials)
{
    struct hzp_feedback *f = hzp_xcalloc(1, sizeof(*f));
    f->trials = trials;
    f->answer = hzp_xcalloc(HZP_FEEDBACK_ANSWERS, sizeof(*f->answer));
    hzp_lock_init(&f->lock, HZP_LOCK_FEEDBACK);
    return f;
}

void hzp_feedback_destroy(struct hzp_feedback *f)
{
    if (!f)
        return;
    hzp_lock_fini(&f->lock);
    free(f->answer);
    free(f);
}

void hzp_feedback_note(struct hzp_feedback *f, const char *id, const struct hzp_completion *c)
{
    const struct hzp_choice *choice = &c->choice[0]; /* all are on one side */
    const struct hzp_request *rq = choice->rq;
    if (!choice->seen)
        return;
    struct noted noted = {.hash = hzp_fnv(HZP_FNV, id, strlen(id)),
                          .version = rq->out[choice->seen - 1].version,
                          .trial = rq->trial,
                          .on_trial = rq->on_trial};
    snprintf(noted.id, sizeof(noted.id), "%s", id);
    hzp_lock_take(&f->lock);
    f->answer[f->count++ % HZP_FEEDBACK_ANSWERS] = noted;
    hzp_lock_release(&f->lock);
}

/* The newest answer with this id; NULL: none.  The lock is held. */
static struct noted *find(struct hzp_feedback *f, const char *id)
{
    uint64_t hash = hzp_fnv(HZP_FNV, id, strlen(id));
    for (uint64_t i = 1; i <= HZP_MIN(f->count, (uint64_t)HZP_FEEDBACK_ANSWERS); i++) {
        struct noted *a = &f->answer[(f->count - i) % HZP_FEEDBACK_ANSWERS];
        if (a->hash == hash && !strcmp(a->id, id))
            return a;
    }
    return NULL;
}

bool hzp_feedback_score(struct hzp_feedback *f, const char *id, double score, uint64_t *ret_version,
                        bool *ret_trial)
{
    hzp_lock_take(&f->lock);
    struct noted *a = find(f, id);
    if (a) {
        bool scored = a->scored;
        double before = a->score;
        *ret_version = a->version;
        *ret_trial = a->trial && a->on_trial;
        a->scored = true;
        a->score = score;
        f->stats.scores++;
        f->stats.sum += score;
        /* under the lock: scores of one answer arrive in order */
        if (f->trials && a->trial)
            hzp_trials_score(f->trials, a->trial, a->on_trial, score, scored, before);
    }
    hzp_lock_release(&f->lock);
    return a != NULL;
}

void hzp_feedback_read(struct hzp_feedback *f, struct hzp_feedback_stats *ret)
{
    hzp_lock_take(&f->lock);
    *ret = f->stats;
    hzp_lock_release(&f->lock);
}
