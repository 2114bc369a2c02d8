/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/feedback.h"

#include "api/http/wire/request_log.h"
#include "base/hash.h"

enum { ID_BYTES = HZP_REQUEST_ID_MAX + 16 };

struct noted {
    uint64_t hash, version;
    uint64_t trial; /* the version on trial when it began; 0: none */
    bool on_trial, scored;
    double score;
    struct hzp_sample *receipt; /* NULL: it has none */
    uint64_t taught;            /* bits of the examples that were made of it, by number % 64 */
    char id[ID_BYTES];
};

struct hzp_feedback {
    struct hzp_trials *trials;
    struct hzp_lock lock;
    /* under lock */
    struct noted *answer;    /* [HZP_FEEDBACK_ANSWERS] the n-th: at n % HZP_FEEDBACK_ANSWERS */
    uint64_t count, dropped; /* receipts of the first `dropped` answers are gone */
    size_t bytes, bytes_max; /* what all receipts take, and may take */
    struct hzp_feedback_stats stats;
};

struct hzp_feedback *hzp_feedback_create(struct hzp_trials *trials, size_t receipt_bytes)
{
    struct hzp_feedback *f = hzp_xcalloc(1, sizeof(*f));
    f->bytes_max = receipt_bytes;
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
    for (int i = 0; i < HZP_FEEDBACK_ANSWERS; i++)
        hzp_sample_destroy(f->answer[i].receipt);
    free(f->answer);
    free(f);
}

/* ---- receipts ---- */

static size_t bytes_of(const struct hzp_sample *s)
{
    return sizeof(*s) + (size_t)s->count * (sizeof(*s->token) + 1 + sizeof(*s->how));
}

static void drop(struct hzp_feedback *f, struct noted *a)
{
    f->bytes -= a->receipt ? bytes_of(a->receipt) : 0;
    hzp_sample_destroy(a->receipt);
    a->receipt = NULL;
}

static struct hzp_sample *receipt_of(const struct hzp_choice *choice)
{
    const struct hzp_request *rq = choice->rq;
    int32_t prompt = rq->prompt_count, n = prompt + choice->seen;
    HZP_FREED int32_t *token =
        hzp_xcalloc((size_t)n, sizeof(*token) + sizeof(struct hzp_row_loss) + 1);
    struct hzp_row_loss *how = (struct hzp_row_loss *)(token + n);
    uint8_t *learn = (uint8_t *)(how + n);
    memcpy(token, rq->prompt, (size_t)prompt * sizeof(*token));
    for (int32_t i = prompt; i < n; i++) {
        float lp = HZP_MIN(rq->out[i - prompt].logprob, 0);
        token[i] = rq->out[i - prompt].token;
        learn[i] = 1;
        how[i] = (struct hzp_row_loss){.inv_temperature = 1, .old = lp, .reference = lp};
    }
    bool ended = atomic_load(&rq->state) == HZP_REQUEST_STOPPED && choice->stop_string < 0;
    learn[n - 1] += ended && token[n - 1] == rq->stop_token;
    return hzp_sample_create_losses(token, learn, NULL, how, n);
}

/* The lock is held.  The oldest receipts make room for the new one. */
static void add(struct hzp_feedback *f, const struct noted *noted)
{
    struct noted *place = &f->answer[f->count % HZP_FEEDBACK_ANSWERS];
    drop(f, place);
    *place = *noted;
    f->count++;
    f->bytes += noted->receipt ? bytes_of(noted->receipt) : 0;
    f->dropped = HZP_MAX(f->dropped, f->count - HZP_MIN(f->count, (uint64_t)HZP_FEEDBACK_ANSWERS));
    for (; f->bytes > f->bytes_max && f->dropped < f->count; f->dropped++)
        drop(f, &f->answer[f->dropped % HZP_FEEDBACK_ANSWERS]);
}

void hzp_feedback_note(struct hzp_feedback *f, const char *id, const struct hzp_completion *c)
{
    for (int32_t i = 0; i < (f->bytes_max ? c->choices : 1); i++) {
        const struct hzp_choice *choice = &c->choice[i]; /* all are on one side */
        const struct hzp_request *rq = choice->rq;
        if (!choice->seen)
            continue;
        struct noted noted = {.version = rq->out[choice->seen - 1].version,
                              .trial = rq->trial,
                              .on_trial = rq->on_trial,
                              .receipt = f->bytes_max ? receipt_of(choice) : NULL};
        snprintf(noted.id, sizeof(noted.id), i ? "%s/%d" : "%s", id, i);
        noted.hash = hzp_fnv(HZP_FNV, noted.id, strlen(noted.id));
        HZP_LOCKED(&f->lock);
        add(f, &noted);
    }
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
    HZP_LOCKED(&f->lock);
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
            hzp_trials_note(f->trials, a->trial, a->on_trial,
                            &(struct hzp_trial_side){.scores = !scored,
                                                     .score = scored ? score - before : score});
    }
    return a != NULL;
}

void hzp_feedback_read(struct hzp_feedback *f, struct hzp_feedback_stats *ret)
{
    HZP_LOCKED(&f->lock);
    *ret = f->stats;
}

struct hzp_sample *hzp_feedback_receipt(struct hzp_feedback *f, const char *id)
{
    HZP_LOCKED(&f->lock);
    const struct noted *a = find(f, id);
    const struct hzp_sample *s = a ? a->receipt : NULL;
    struct hzp_sample *ret =
        s ? hzp_sample_create_losses(s->token, s->learn, NULL, s->how, s->count) : NULL;
    return ret;
}

bool hzp_feedback_taught(struct hzp_feedback *f, const json_t *id, int64_t number)
{
    HZP_LOCKED(&f->lock);
    struct noted *a = id ? find(f, json_string_value(id)) : NULL;
    bool there = a && a->receipt;
    if (there)
        a->taught |= 1ull << (number & 63);
    if (there && !number)
        drop(f, a);
    return there;
}

void hzp_feedback_forget(struct hzp_feedback *f, int64_t number)
{
    HZP_LOCKED(&f->lock);
    for (int i = 0; i < HZP_FEEDBACK_ANSWERS; i++)
        if (f->answer[i].taught >> (number & 63) & 1)
            drop(f, &f->answer[i]);
}
