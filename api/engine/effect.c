/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/effect.h"

#include "api/engine/question.h"
#include "api/learn/lessons.h"
#include "api/learn/versions.h"
#include "base/log.h"

enum {
    EFFECT_WAITING = 32, /* lessons */
    OWN_MAX = 8,         /* examples of a lesson that are measured */
    OWN_LOOKED = 256,    /* that are looked through for the others' prompts */
    TOGETHER = 4,        /* requests at a time */
    ROUNDS = 4,          /* in which what a swap interrupted is asked again */
    SHOWN = 3,           /* answers that changed, or were taught, in what is stored */
    SHOWN_BYTES = 320,
    HELD_MAX = 8,      /* samples of --gate and --replay whose loss is measured */
    HELD_TOKENS = 256, /* so much of each */
};
/* Members of what is found that hold texts. */
static const char *const text_names[] = {"samples", "questions", "paraphrases"};
static const uint64_t prepare_ns = 500000000u, look_ns = 5000000u, credit_max_ns = 10000000000u,
                      draft_min_ns = 50000000u;

struct lesson {
    int64_t first, last;
    uint64_t version;         /* that served when it was accepted */
    uint64_t at_ns;           /* when that was */
    struct hzp_sample **asks; /* owned, as of hzp_effects_note */
    int32_t asks_count;
};

struct hzp_effects {
    struct hzp_effects_config config;
    pthread_t thread;
    struct hzp_wake wake, asked; /* asked: `wanted` has become false */
    _Atomic bool closing;

    /* the thread's */
    bool trying;                   /* what is asked now, the version on trial answers */
    uint64_t tried;                /* the newest trial that was measured */
    uint64_t publish_ns;           /* when it is published, whatever is not known; 0: it does not */
    struct hzp_sample_group group; /* the samples that `refused` is about */
    json_t *refused;               /* NULL: it was not refused */
    struct hzp_question *other; /* [config.others], `others` of them, with answers of `version` */
    int32_t others;
    struct hzp_sample *held[HELD_MAX]; /* `helds` of them, borrowed */
    int32_t helds;
    double held_loss; /* theirs by `version`; NAN: not known */
    bool picked;
    int64_t credit_ns; /* how long may be measured now */
    uint64_t credit_at_ns;

    struct hzp_lock lock;
    /* under lock */
    struct lesson waiting[EFFECT_WAITING]; /* the first is being measured */
    int32_t count;
    _Atomic uint64_t version; /* `other` has this version's answers; 0: it has none */
    _Atomic bool wanted;      /* they should be those of the version that serves */
};

static uint64_t serving(const struct hzp_effects *e, int64_t *ret_learned)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(e->config.weights, &stats);
    if (ret_learned)
        *ret_learned = stats.learned_through;
    return stats.serving_id;
}

/* ---- drafts that are only looked at ---- */

static struct hzp_trials *observed(const struct hzp_effects *e)
{
    return hzp_trials_undo(e->config.trials) ? NULL : e->config.trials;
}

/* The trial of which something was asked may end. */
static void let_publish(struct hzp_effects *e)
{
    if (!e->publish_ns)
        return;
    e->publish_ns = 0;
    hzp_trials_found(e->config.trials, e->tried, true, "");
    hzp_loop_poke(e->config.loop);
}

/* ---- asking ---- */

static void wake(void *ctx, bool more)
{
    struct hzp_effects *e = ctx;
    (void)more;
    hzp_wake_poke(&e->wake);
}

/* NULL: it could not be submitted. */
static struct hzp_request *submit(struct hzp_effects *e, const int32_t *token, int32_t count,
                                  int32_t max_tokens)
{
    struct hzp_request *rq;
    if (hzp_request_create(token, count, max_tokens, 0, !max_tokens, &rq) < 0)
        return NULL;
    rq->priority = HZP_PRIORITY_UNITS;
    rq->own = true;
    rq->tries = e->trying;
    rq->demands = (struct hzp_demands){.mode = HZP_ABORT, .max_staleness = -1};
    rq->wake = wake;
    rq->wake_ctx = e;
    if (hzp_scheduler_submit(e->config.scheduler, rq, NULL) < 0) {
        hzp_request_destroy(rq);
        return NULL;
    }
    hzp_loop_poke(e->config.loop);
    return rq;
}

static void await(struct hzp_effects *e, struct hzp_request *rq)
{
    while (!hzp_request_final(rq)) {
        if (atomic_load(&e->closing) && !atomic_exchange(&rq->cancel, true))
            hzp_loop_poke(e->config.loop);
        if (hzp_now_ns() >= e->publish_ns)
            let_publish(e);
        hzp_wake_wait(&e->wake, look_ns);
    }
    hzp_request_await_release(rq);
}

static bool whole(const struct hzp_request *rq)
{
    int32_t state = atomic_load(&rq->state);
    return state == HZP_REQUEST_STOPPED || state == HZP_REQUEST_LENGTH;
}

static void take_answer(struct hzp_question *q, struct hzp_request *rq)
{
    int32_t n = atomic_load(&rq->out_count);
    if (!whole(rq) || n < 1 || n > q->tokens_max || rq->out[0].prompt_version != rq->out[0].version)
        return;
    for (int32_t i = 0; i < n; i++)
        q->answer[i] = rq->out[i].token;
    q->answered = n;
    q->version = rq->out[0].version;
}

/* Answers those that have none, as far as they can be. */
static void ask_some(struct hzp_effects *e, struct hzp_question *q, int32_t count)
{
    for (int32_t at = 0; at < count && !atomic_load(&e->closing);) {
        struct hzp_request *rq[TOGETHER];
        int32_t of[TOGETHER], n = 0;
        for (; at < count && n < TOGETHER; at++) {
            rq[n] =
                q[at].answered < 0 ? submit(e, q[at].token, q[at].count, q[at].tokens_max) : NULL;
            if (rq[n])
                of[n++] = at;
        }
        for (int32_t i = 0; i < n; i++) {
            await(e, rq[i]);
            take_answer(&q[of[i]], rq[i]);
            hzp_request_destroy(rq[i]);
        }
    }
}

/* Answers all by one version, the newest that answered; those that it did not answer have none. */
static uint64_t ask(struct hzp_effects *e, struct hzp_question *q, int32_t count)
{
    uint64_t version = 0;
    for (int32_t i = 0; i < count; i++)
        q[i].answered = -1;
    for (int round = 0; round < ROUNDS && !atomic_load(&e->closing); round++) {
        int32_t without = 0;
        ask_some(e, q, count);
        for (int32_t i = 0; i < count; i++)
            version = q[i].answered >= 0 ? HZP_MAX(version, q[i].version) : version;
        for (int32_t i = 0; i < count; i++) {
            if (q[i].answered >= 0 && q[i].version != version)
                q[i].answered = -1;
            without += q[i].answered < 0;
        }
        if (!without)
            break;
    }
    return version;
}

/* The mean loss on the learned tokens among the first `most` of each sample under one version; NAN:
 * no version had them all. */
static double loss_of(struct hzp_effects *e, struct hzp_sample *const *sample, int32_t count,
                      int32_t most, uint64_t version)
{
    double sum = 0, weights = 0;
    bool all = count > 0;
    for (int32_t i = 0; i < count && all; i++) {
        const struct hzp_sample *s = sample[i];
        int32_t tokens = hzp_sample_first(s); /* a pair asks for its chosen answer */
        tokens = HZP_MIN(HZP_MIN(tokens, most), e->config.context);
        struct hzp_request *rq = submit(e, s->token, tokens, 0);
        if (!rq)
            return NAN;
        await(e, rq);
        all = whole(rq) && (!version || rq->prompt_version == version);
        for (int32_t t = 1; t < tokens && all; t++) {
            double weight = !s->learn[t] ? 0 : s->weight ? (double)s->weight[t] : 1;
            sum -= weight ? weight * (double)rq->prompt_out[t].logprob : 0;
            weights += weight;
        }
        hzp_request_destroy(rq);
    }
    return all && weights > 0 ? sum / weights : NAN;
}

/* ---- prompts ---- */

static bool has(const struct hzp_effects *e, const struct hzp_question *q)
{
    for (int32_t i = 0; i < e->others; i++)
        if (hzp_question_asks(&e->other[i], q->token, q->count))
            return true;
    return false;
}

static void add_other(struct hzp_effects *e, const struct hzp_sample *s, bool taught)
{
    struct hzp_question *q = &e->other[e->others];
    if (e->others == e->config.others || !hzp_question_make(s, HZP_OTHER_TOKENS, q))
        return;
    q->taught = taught;
    if (has(e, q))
        hzp_question_clear(q);
    else
        e->others++;
}

/* Half of them from --gate at most, half of the rest from what was taught, others from --replay. */
static void pick(struct hzp_effects *e)
{
    const struct hzp_gate *gate = hzp_state_gate(e->config.state);
    struct hzp_sample *taught[HZP_EFFECT_OTHERS_MAX];
    int32_t half = (e->config.others + 1) / 2;
    for (int32_t i = 0; gate && i < gate->count && e->others < half; i++) {
        if (e->helds < HELD_MAX / 2)
            e->held[e->helds++] = gate->sample[i];
        add_other(e, gate->sample[i], false);
    }
    int32_t room = (e->config.others - e->others + 1) / 2;
    struct hzp_state_stats stats;
    hzp_state_read_stats(e->config.state, &stats);
    int64_t last = stats.last_sequence_number;
    int32_t n = hzp_state_samples(e->config.state, last - room + 1, last, room, taught);
    for (int32_t i = 0; i < n; i++) {
        add_other(e, taught[i], true);
        hzp_sample_destroy(taught[i]);
    }
    for (int32_t i = 0; e->others < e->config.others; i++) {
        struct hzp_sample *s = hzp_sample_queue_replay(hzp_state_queue(e->config.state), i);
        if (!s)
            break;
        if (e->helds < HELD_MAX)
            e->held[e->helds++] = s;
        add_other(e, s, false);
    }
    e->picked = true;
}

static bool is_forgotten(struct hzp_effects *e, int64_t number)
{
    int64_t none[1], count = 0;
    if (number)
        hzp_state_marked(e->config.state, HZP_MARK_DELETED, number, number, none, 0, &count);
    return count > 0;
}

/* Nothing is kept of examples that were forgotten. */
static void drop_forgotten(struct hzp_effects *e)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < e->others; i++) {
        if (is_forgotten(e, e->other[i].number))
            hzp_question_clear(&e->other[i]);
        else
            e->other[kept++] = e->other[i];
    }
    e->others = kept;
}

static void refresh(struct hzp_effects *e)
{
    uint64_t begin = hzp_now_ns();
    if (!e->picked)
        pick(e);
    drop_forgotten(e);
    uint64_t version = e->others ? ask(e, e->other, e->others) : serving(e, NULL);
    e->held_loss = loss_of(e, e->held, e->helds, HELD_TOKENS, version);
    atomic_store(&e->version, version);
    e->credit_ns -= (int64_t)(hzp_now_ns() - begin);
}

/* What was taught is asked when the next lesson is measured, in place of the oldest such. */
static void keep_taught(struct hzp_effects *e, const struct hzp_sample *s)
{
    struct hzp_question q;
    if (!hzp_question_make(s, HZP_OTHER_TOKENS, &q))
        return;
    q.taught = true;
    if (has(e, &q)) {
        hzp_question_clear(&q);
        return;
    }
    int32_t at = 0, taught = 0;
    for (int32_t i = e->others - 1; i >= 0; i--)
        if (e->other[i].taught) {
            taught++;
            at = i;
        }
    bool full = e->others == e->config.others;
    if (!full && taught < (e->config.others + 1) / 2) {
        e->other[e->others++] = q;
        return;
    }
    if (!taught) /* the last one of --replay */
        at = e->others - 1;
    hzp_question_clear(&e->other[at]);
    memmove(&e->other[at], &e->other[at + 1], (size_t)(e->others - 1 - at) * sizeof(*e->other));
    e->other[e->others - 1] = q;
}

static void keep_all_taught(struct hzp_effects *e, struct hzp_sample *const *sample, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        keep_taught(e, sample[i]);
    for (int32_t i = 0; i < e->others; i++)
        if (e->other[i].answered < 0 && ask(e, &e->other[i], 1) != atomic_load(&e->version))
            e->other[i].answered = -1;
    e->picked = true;
}

/* ---- what is found ---- */

static json_t *text_of(const struct hzp_effects *e, const int32_t *token, int32_t count)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {NULL, 0, 0};
    json_t *ret = NULL;
    if (hzp_tokenizer_decode(e->config.tok, token, (size_t)count, true, &text) >= 0) {
        size_t from = text.bytes > SHOWN_BYTES ? text.bytes - SHOWN_BYTES : 0;
        while (from < text.bytes && ((unsigned char)text.data[from] & 0xc0) == 0x80)
            from++;
        ret = hzp_text_json(text.data ? text.data + from : "", text.bytes - from);
    }
    return ret ? ret : json_null();
}

static json_t *loss_json(double loss)
{
    return isfinite(loss) ? json_real(loss) : json_null();
}

/* Marks those of the others that the lesson, or the group on trial, teaches itself.  Returns how
 * many are left. */
static int32_t mark_own(struct hzp_effects *e, int64_t first, int64_t last)
{
    struct hzp_sample *sample[OWN_LOOKED];
    int32_t n = hzp_state_samples(e->config.state, first, last, OWN_LOOKED, sample), left = 0;
    drop_forgotten(e);
    for (int32_t i = 0; i < e->others; i++)
        e->other[i].own = false;
    for (int32_t k = 0; k < n; k++) {
        int32_t begin, end;
        bool any = hzp_question_prompt(sample[k], &begin, &end);
        for (int32_t i = 0; i < e->others && any; i++) {
            struct hzp_question *q = &e->other[i];
            q->own |= hzp_question_asks(q, sample[k]->token, begin);
        }
        hzp_sample_destroy(sample[k]);
    }
    for (int32_t i = 0; i < e->others; i++)
        left += !e->other[i].own;
    return left;
}

/* Asks the others again and compares, if what they had answered was by `from`.  judged 0: the new
 * answers are what the next lesson begins with; else they are of this version, which may be
 * dropped.  Returns how many were compared. */
static int32_t compare(struct hzp_effects *e, uint64_t from, uint64_t judged, json_t *json)
{
    bool known = atomic_load(&e->version) == from;
    int32_t compared = 0, changed = 0;
    json_t *samples = json_array();
    drop_forgotten(e);
    struct hzp_question *was = hzp_xcalloc((size_t)e->config.others, sizeof(*was));
    memcpy(was, e->other, (size_t)e->others * sizeof(*was));
    uint64_t version = ask(e, e->other, e->others);
    double held_loss = loss_of(e, e->held, e->helds, HELD_TOKENS, version);
    known = known && (!judged || version == judged);
    for (int32_t i = 0; i < e->others && known; i++) {
        const struct hzp_question *q = &e->other[i];
        if (q->answered < 0 || was[i].answered < 0 || q->own)
            continue;
        compared++;
        if (q->answered == was[i].answered &&
            !memcmp(q->answer, was[i].answer, (size_t)q->answered * sizeof(*q->answer)))
            continue;
        if (changed++ < SHOWN)
            json_array_append_new(samples, json_pack("{s:o, s:o, s:o}", "prompt",
                                                     text_of(e, q->token, q->count), "before",
                                                     text_of(e, was[i].answer, was[i].answered),
                                                     "after", text_of(e, q->answer, q->answered)));
    }
    json_object_set_new(json, "others_loss_before", loss_json(known ? e->held_loss : NAN));
    json_object_set_new(json, "others_loss_after", loss_json(known ? held_loss : NAN));
    if (judged) {
        memcpy(e->other, was, (size_t)e->others * sizeof(*was));
    } else {
        atomic_store(&e->version, version);
        e->held_loss = held_loss;
    }
    free(was);
    json_object_set_new(json, "others", json_integer(compared));
    json_object_set_new(json, "changed", compared ? json_integer(changed) : json_null());
    json_object_set_new(json, "samples", samples);
    return compared;
}

/* If a version is on trial, asks it the others, and says whether it may be published.  False: there
 * is none, or it could not be asked. */
static bool try_trial(struct hzp_effects *e)
{
    struct hzp_trials *judging = hzp_trials_undo(e->config.trials) ? e->config.trials : NULL;
    uint64_t trial = judging ? hzp_trials_running(judging) : 0;
    uint64_t from = serving(e, NULL);
    char why[160];
    if (!trial || trial == e->tried)
        return false;
    if (atomic_load(&e->version) != from)
        refresh(e);
    json_t *json =
        json_pack("{s:I, s:I}", "from_version", (json_int_t)from, "to_version", (json_int_t)trial);
    e->group = hzp_sample_queue_group(hzp_state_queue(e->config.state));
    int32_t others = mark_own(e, e->group.first, e->group.last);
    e->trying = true;
    int32_t compared = compare(e, from, trial, json);
    e->trying = false;
    int changed = (int)json_integer_value(json_object_get(json, "changed"));
    bool passed = changed <= e->config.max_effect * compared;
    json_decref(e->refused);
    e->refused = NULL;
    if (passed)
        json_decref(json);
    else
        e->refused = json;
    if (!compared && others) /* the server is too busy, or the trial has ended */
        return false;
    snprintf(why, sizeof(why), "%d of %d other answers changed%s", changed, compared,
             passed ? "" : ", more than --max-effect allows");
    e->tried = trial;
    hzp_trials_found(e->config.trials, trial, passed, why);
    hzp_loop_poke(e->config.loop);
    return true;
}

/* Asks what was taught. */
static void ask_taught(struct hzp_effects *e, struct hzp_sample *const *sample, int32_t count,
                       json_t *json)
{
    struct hzp_question q[OWN_MAX];
    const int32_t *want[OWN_MAX];
    int32_t n = 0, asked = 0, so = 0;
    json_t *questions = json_array();
    for (int32_t i = 0; i < count; i++)
        if (hzp_question_make(sample[i], HZP_OWN_TOKENS, &q[n])) {
            want[n] = sample[i]->token + q[n].count;
            n++;
        }
    ask(e, q, n);
    for (int32_t i = 0; i < n; i++) {
        bool same = q[i].answered == q[i].tokens_max &&
                    !memcmp(q[i].answer, want[i], (size_t)q[i].answered * sizeof(*want[i]));
        asked += q[i].answered >= 0;
        so += same;
        if (q[i].answered >= 0 && i < SHOWN)
            json_array_append_new(questions,
                                  json_pack("{s:o, s:o, s:o, s:b}", "prompt",
                                            text_of(e, q[i].token, q[i].count), "taught",
                                            text_of(e, want[i], q[i].tokens_max), "answer",
                                            text_of(e, q[i].answer, q[i].answered), "so", same));
        hzp_question_clear(&q[i]);
    }
    json_object_set_new(json, "asked", json_integer(asked));
    json_object_set_new(json, "answered_so", json_integer(so));
    json_object_set_new(json, "questions", questions);
}

/* Asks what was taught in other words: whether the answer has the taught one in it. */
static void ask_paraphrases(struct hzp_effects *e, const struct lesson *lesson, json_t *json)
{
    int32_t asked = 0, so = 0;
    json_t *list = json_array();
    for (int32_t i = 0; i < lesson->asks_count; i++) {
        const struct hzp_sample *s = lesson->asks[i];
        struct hzp_question q;
        if (is_forgotten(e, s->sequence_number) || !hzp_question_make(s, HZP_OWN_TOKENS, &q))
            continue;
        json_t *taught = text_of(e, s->token + q.count, q.tokens_max);
        q.tokens_max = HZP_OWN_TOKENS;
        ask(e, &q, 1);
        json_t *answer = text_of(e, q.answer, HZP_MAX(q.answered, 0));
        const char *want = json_string_value(taught), *got = json_string_value(answer);
        bool same = want && got && *want && strstr(got, want + strspn(want, " "));
        asked += q.answered >= 0;
        so += same;
        if (q.answered >= 0 && asked <= HZP_PARAPHRASES)
            json_array_append_new(list, json_pack("{s:o, s:O, s:b}", "prompt",
                                                  text_of(e, q.token, q.count), "answer", answer,
                                                  "so", same));
        json_decref(taught);
        json_decref(answer);
        hzp_question_clear(&q);
    }
    json_object_set_new(json, "paraphrased", json_integer(asked));
    json_object_set_new(json, "paraphrased_so", json_integer(so));
    json_object_set_new(json, "paraphrases", list);
}

static void give(struct hzp_effects *e, const struct lesson *lesson, json_t *json)
{
    static const char *const name[] = {"loss_before",
                                       "loss_after",
                                       "answered_so",
                                       "asked",
                                       "changed",
                                       "others",
                                       "paraphrased_so",
                                       "paraphrased",
                                       "others_loss_before",
                                       "others_loss_after"};
    double was[HZP_COUNT(name)];
    for (int i = 0; i < HZP_COUNT(name); i++) {
        const json_t *value = json_object_get(json, name[i]);
        was[i] = json_is_number(value) ? json_number_value(value) : NAN; /* it is not known */
    }
    hzp_log(HZP_LOG_INFO, "train",
            "lesson examples=%" PRId64 "..%" PRId64 " loss_before=%.3f loss_after=%.3f "
            "answered_so=%.0f/%.0f changed=%.0f/%.0f paraphrased_so=%.0f/%.0f "
            "others_loss_before=%.3f others_loss_after=%.3f draft=%d",
            lesson->first, lesson->last, was[0], was[1], was[2], was[3], was[4], was[5], was[6],
            was[7], was[8], was[9], json_is_true(json_object_get(json, "draft")));
    hzp_state_put_effect(e->config.state, lesson->first, json, text_names, HZP_COUNT(text_names));
    json_decref(json);
}

/* Whether the draft on trial has all of the lesson.  One that was expected for a lesson before, and
 * came too late for it, may be published. */
static bool ends(struct hzp_effects *e, uint64_t trial, const struct lesson *lesson)
{
    struct hzp_version_record record;
    if (hzp_state_record(e->config.state, trial, &record, NULL) == HZP_OK &&
        hzp_state_settled(e->config.state, lesson->first, lesson->last, record.learned_through))
        return true;
    e->tried = trial;
    hzp_trials_found(e->config.trials, trial, true, "");
    hzp_loop_poke(e->config.loop);
    return false;
}

/* Waits until the lesson is learned, or the draft that ends it is looked at (*ret_trial; NULL: not
 * for that), or it will not be learned.  False: there is nothing to measure. */
static bool learned(struct hzp_effects *e, const struct lesson *lesson, uint64_t *ret_trial)
{
    int64_t through;
    for (;;) {
        if (atomic_load(&e->closing))
            return false;
        serving(e, &through);
        if (hzp_state_settled(e->config.state, lesson->first, lesson->last, through))
            break;
        uint64_t trial = ret_trial && observed(e) ? hzp_trials_running(e->config.trials) : 0;
        if (trial > e->tried && ends(e, trial, lesson))
            return (*ret_trial = trial) != 0;
        if (!try_trial(e))
            hzp_wake_wait(&e->wake, look_ns);
    }
    if (observed(e)) /* no draft ends it any more */
        hzp_trials_expect(e->config.trials, 0);
    return hzp_state_learned(e->config.state, lesson->last, through) == HZP_EXAMPLE_LEARNED;
}

/* Measures the lesson by the draft that ends it, or the version that serves (trial 0). */
static void find(struct hzp_effects *e, const struct lesson *lesson, uint64_t trial,
                 struct hzp_sample *const *sample, int32_t n, double before)
{
    uint64_t version = trial ? trial : serving(e, NULL), begin = hzp_now_ns();
    json_t *json = json_pack("{s:I, s:I, s:o}", "from_version", (json_int_t)lesson->version,
                             "to_version", (json_int_t)version, "loss_before", loss_json(before));
    e->trying = trial;
    e->tried = HZP_MAX(e->tried, trial);
    if (trial)
        e->publish_ns = begin + HZP_MAX((begin - lesson->at_ns) / 3, draft_min_ns);
    mark_own(e, lesson->first, lesson->last);
    compare(e, lesson->version, 0, json);
    double after = loss_of(e, sample, n, INT32_MAX, 0);
    json_object_set_new(json, "loss_after", loss_json(after));
    ask_taught(e, sample, n, json);
    json_object_set_new(json, "draft",
                        json_boolean(trial && hzp_trials_running(e->config.trials) == trial));
    let_publish(e);
    e->trying = false;
    bool done = !trial || learned(e, lesson, NULL);
    ask_paraphrases(e, lesson, json);
    e->credit_ns -= (int64_t)(hzp_now_ns() - begin);
    if (!done || atomic_load(&e->closing) || !isfinite(after)) /* the server ends, or is too busy */
        json_decref(json);
    else
        give(e, lesson, json);
    keep_all_taught(e, sample, HZP_MIN(n, 2));
}

static void measure(struct hzp_effects *e, const struct lesson *lesson)
{
    struct hzp_sample *sample[OWN_MAX];
    uint64_t begin = hzp_now_ns(), trial = 0;
    int32_t n = hzp_state_samples(e->config.state, lesson->first, lesson->last, OWN_MAX, sample);
    if (n > 0 && observed(e) && atomic_load(&e->version) == lesson->version)
        hzp_trials_expect(e->config.trials, lesson->last);
    double before = loss_of(e, sample, n, INT32_MAX, lesson->version);
    e->credit_ns -= (int64_t)(hzp_now_ns() - begin);
    if (n > 0 && learned(e, lesson, &trial)) {
        find(e, lesson, trial, sample, n, before);
    } else if (e->refused && lesson->first >= e->group.first && lesson->last <= e->group.last) {
        json_object_set_new(e->refused, "loss_before", loss_json(before));
        hzp_state_put_effect(e->config.state, lesson->first, e->refused, text_names,
                             HZP_COUNT(text_names));
    }
    if (observed(e))
        hzp_trials_expect(e->config.trials, 0);
    for (int32_t i = 0; i < n; i++)
        hzp_sample_destroy(sample[i]);
}

/* Measuring may take a quarter of the time, and begin at once after a pause. */
static bool has_credit(struct hzp_effects *e)
{
    uint64_t now = hzp_now_ns();
    e->credit_ns =
        HZP_MIN(e->credit_ns + (int64_t)((now - e->credit_at_ns) / 4), (int64_t)credit_max_ns);
    e->credit_at_ns = now;
    return e->credit_ns > 0;
}

static void *run(void *arg)
{
    struct hzp_effects *e = arg;
    e->credit_ns = (int64_t)credit_max_ns;
    e->credit_at_ns = hzp_now_ns();
    while (!atomic_load(&e->closing)) {
        if (atomic_load(&e->wanted)) {
            if (atomic_load(&e->version) != serving(e, NULL) && has_credit(e))
                refresh(e);
            atomic_store(&e->wanted, false);
            hzp_wake_poke(&e->asked);
        }
        hzp_lock_take(&e->lock);
        struct lesson lesson = e->waiting[0];
        bool any = e->count > 0;
        hzp_lock_release(&e->lock);
        if (!any || !has_credit(e)) {
            bool trial = hzp_trials_undo(e->config.trials) &&
                         hzp_trials_running(e->config.trials) > e->tried;
            if (!try_trial(e)) /* one that could not be asked is asked again */
                hzp_wake_wait(&e->wake, trial || any ? look_ns : UINT64_MAX);
            continue;
        }
        measure(e, &lesson);
        hzp_examples_free(lesson.asks, lesson.asks_count);
        hzp_lock_take(&e->lock);
        e->count--;
        memmove(e->waiting, e->waiting + 1, (size_t)e->count * sizeof(*e->waiting));
        hzp_lock_release(&e->lock);
    }
    return NULL;
}

/* ---- the handle: any thread ---- */

static void destroy(struct hzp_effects *e)
{
    for (int32_t i = 0; i < e->config.others; i++)
        free(e->other[i].token);
    for (int32_t i = 0; i < e->count; i++)
        hzp_examples_free(e->waiting[i].asks, e->waiting[i].asks_count);
    hzp_wake_fini(&e->wake);
    hzp_wake_fini(&e->asked);
    hzp_lock_fini(&e->lock);
    json_decref(e->refused);
    free(e->other);
    free(e);
}

struct hzp_effects *hzp_effects_start(const struct hzp_effects_config *config)
{
    struct hzp_effects *e = hzp_xcalloc(1, sizeof(*e));
    e->config = *config;
    e->other = hzp_xcalloc((size_t)config->others, sizeof(*e->other));
    hzp_wake_init(&e->wake);
    hzp_wake_init(&e->asked);
    hzp_lock_init(&e->lock, HZP_LOCK_UNKNOWN); /* no other lock is taken under it */
    if (hzp_thread_start(&e->thread, "hzp-effect", run, e) == HZP_OK) {
        if (config->trials)
            hzp_trials_set_wake(config->trials, &e->wake);
        return e;
    }
    destroy(e);
    return NULL;
}

void hzp_effects_stop(struct hzp_effects *e)
{
    if (!e)
        return;
    atomic_store(&e->closing, true);
    if (e->config.trials)
        hzp_trials_set_wake(e->config.trials, NULL);
    hzp_wake_poke(&e->wake);
    pthread_join(e->thread, NULL);
    destroy(e);
}

void hzp_effects_prepare(struct hzp_effects *e)
{
    if (!e || hzp_effects_pending(e, 0) || atomic_load(&e->version) == serving(e, NULL))
        return;
    if (atomic_exchange(&e->wanted, true))
        return; /* one thread waits at most */
    hzp_wake_poke(&e->wake);
    uint64_t now = hzp_now_ns(), end = now + prepare_ns;
    for (; atomic_load(&e->wanted) && now < end; now = hzp_now_ns())
        hzp_wake_wait(&e->asked, end - now);
}

void hzp_effects_note(struct hzp_effects *e, int64_t first, int64_t last, struct hzp_sample **asks,
                      int32_t count)
{
    int64_t through = 0;
    uint64_t version = e ? serving(e, &through) : 0;
    struct lesson lesson = {first, last, version, hzp_now_ns(), asks, count};
    bool sent = e && hzp_state_settled(e->config.state, first, last, through), taken = false;
    if (e && !sent) { /* it was not sent before */
        hzp_lock_take(&e->lock);
        bool waits = false; /* a body that is sent again has the lesson that it had */
        for (int32_t i = 0; i < e->count; i++)
            waits |= e->waiting[i].first == first;
        taken = e->count < EFFECT_WAITING && !waits;
        if (taken)
            e->waiting[e->count++] = lesson;
        hzp_lock_release(&e->lock);
        hzp_wake_poke(&e->wake);
    }
    if (!taken)
        hzp_examples_free(asks, count);
}

bool hzp_effects_pending(struct hzp_effects *e, int64_t first)
{
    bool ret = false;
    if (!e)
        return false;
    HZP_LOCKED(&e->lock);
    for (int32_t i = 0; i < e->count; i++)
        ret = ret || !first || e->waiting[i].first == first;
    return ret;
}

json_t *hzp_effects_tell(struct hzp_effects *e, struct hzp_state *state, int64_t first,
                         bool learned)
{
    bool measured = e && !hzp_effects_pending(e, first); /* before it is looked for */
    json_t *ret = hzp_state_effect(state, first);
    if (!ret && learned && measured)
        ret = json_pack("{s:s}", "skipped",
                        "it was not measured: that may take a quarter of the time, or the server "
                        "was restarted");
    return ret ? ret : json_null();
}
