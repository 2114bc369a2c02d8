/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/feedback.h"

#include "api/http/routes/routes.h"
#include "api/http/routes/taught.h"
#include "api/http/wire/fields.h"
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
    const struct hzp_engine *engine;
    struct hzp_lock lock;
    /* under lock */
    struct noted *answer;    /* [HZP_FEEDBACK_ANSWERS] the n-th: at n % HZP_FEEDBACK_ANSWERS */
    uint64_t count, dropped; /* receipts of the first `dropped` answers are gone */
    size_t bytes, bytes_max; /* what all receipts take, and may take */
    struct hzp_feedback_stats stats;
};

struct hzp_feedback *hzp_feedback_create(const struct hzp_engine *engine)
{
    struct hzp_feedback *f = hzp_xcalloc(1, sizeof(*f));
    f->bytes_max = (size_t)engine->config.settings->learning.receipts;
    f->engine = engine;
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

/* Hands an answer to training, if one version has given all of it, with all layers. */
static void compare(const struct hzp_engine *engine, const struct hzp_choice *choice)
{
    const struct hzp_request *rq = choice->rq;
    struct hzp_trainer *trainer = engine->parts.trainer;
    uint64_t version = choice->seen ? rq->out[0].prompt_version : 0;
    if (!trainer || !version || rq->demands.depth || atomic_load(&rq->stale_tokens) ||
        !hzp_trainer_compares(trainer))
        return;
    for (int32_t i = 0; i < choice->seen; i++)
        if (rq->out[i].version != version || rq->out[i].prompt_version != version)
            return;
    struct hzp_sample *s = receipt_of(choice);
    for (int32_t i = rq->prompt_count; i < s->count; i++)
        s->how[i].kind = HZP_LOSS_IS;
    hzp_trainer_compare(trainer, s, version);
    hzp_loop_poke(engine->parts.loop);
}

void hzp_feedback_note(struct hzp_feedback *f, const char *id, const struct hzp_completion *c)
{
    compare(f->engine, &c->choice[0]);
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

/* Gives the answer a score.  False: there is none with this id. */
static bool set_score(struct hzp_feedback *f, const char *id, double score, uint64_t *ret_version,
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
        if (f->engine->trials && a->trial)
            hzp_trials_note(f->engine->trials, a->trial, a->on_trial,
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

/* A copy of an answer's receipt, to be freed as a sample.  The answer's tokens have learn 1, one
 * that ended it 2; how.old and .reference are their log-probabilities.  NULL: there is none. */
static struct hzp_sample *copy_receipt(struct hzp_feedback *f, const char *id)
{
    HZP_LOCKED(&f->lock);
    const struct noted *a = find(f, id);
    const struct hzp_sample *s = a ? a->receipt : NULL;
    return s ? hzp_sample_create_losses(s->token, s->learn, NULL, s->how, s->count) : NULL;
}

/* The answer's receipt has taught example `number`; with 0 it is dropped.  False: there is none.
 * id: a string, or NULL, which names none. */
static bool note_taught(struct hzp_feedback *f, const json_t *id, int64_t number)
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

/* POST /v1/feedback
 *      {"id", "score"}                   is counted, and compared while a version is on trial
 *      {"id", "score", "learn": true}    the answer is learned, times its score
 *      {"id", "better_than"}             is learned as a pair, against the versions that drew it
 *      {"id", "correction"}              is learned as an answer to the same prompt
 *      {"id", "forget": true}            drops the answer's receipt
 *
 * What is learned is made of receipts (feedback.h), and needs the right to teach. */

/* A copy of the receipt of the answer that the field names. */
static int find_answer(struct hzp_exchange *x, const char *field, struct hzp_sample **ret,
                       int32_t *ret_prompt, struct hzp_err_text *reterr)
{
    const char *id = json_string_value(json_object_get(x->asked, field));
    *ret = copy_receipt(x->server->feedback, id);
    for (*ret_prompt = 0; *ret && !(*ret)->learn[*ret_prompt];)
        ++*ret_prompt;
    return *ret ? HZP_OK
                : hzp_fail_param(reterr, HZP_ENOENT, field,
                                 "there is no receipt of %.100s: --queue receipts=SIZE keeps some",
                                 id);
}

/* The text replaces what is behind the prompt of s, and is ended as the answer was. */
static int correct(const struct hzp_examples *ex, const json_t *text, int32_t prompt,
                   struct hzp_sample **s, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens tokens = {0};
    int32_t last = (*s)->count - 1, end = (*s)->learn[last] == 2 ? (*s)->token[last] : ex->eos;
    int r = hzp_tokens_append(&tokens, (*s)->token, (size_t)prompt);
    if (r >= 0 && ex->tok)
        r = hzp_tokenizer_encode(ex->tok, json_string_value(text), json_string_length(text),
                                 HZP_TOKENIZER_PARSE_SPECIAL, ex->tokens_max, &tokens, reterr);
    if (r < 0)
        snprintf(reterr->param, sizeof(reterr->param), "correction");
    if (r >= 0 && tokens.n == (size_t)prompt)
        r = hzp_wrong(reterr, "correction", "has no tokens to learn");
    if (r >= 0 && end >= 0)
        r = hzp_tokens_append(&tokens, &end, 1);
    if (r >= 0) {
        HZP_FREED uint8_t *learn = hzp_xcalloc(tokens.n, 1);
        memset(learn + prompt, 1, tokens.n - (size_t)prompt);
        hzp_sample_destroy(*s);
        *s = hzp_sample_create_losses(tokens.ids, learn, NULL, NULL, (int32_t)tokens.n);
    }
    return r;
}

/* The sample that is learned. */
static int make(struct hzp_exchange *x, struct hzp_sample **ret, struct hzp_err_text *reterr)
{
    static const struct hzp_row_loss dpo = {
        .kind = HZP_LOSS_DPO, .inv_temperature = 1, .beta = 0.1f};
    const struct hzp_examples *ex = hzp_state_examples(x->server->engine->state);
    const json_t *text = json_object_get(x->asked, "correction");
    double score = json_number_value(json_object_get(x->asked, "score"));
    int32_t prompt, other;
    struct hzp_sample *half[2] = {NULL};
    HZP_TRY(find_answer(x, "id", ret, &prompt, reterr));
    for (int32_t i = 0; i < (*ret)->count; i++) {
        (*ret)->how[i].kind = HZP_LOSS_IS;
        (*ret)->how[i].advantage = (float)score;
    }
    if (text)
        HZP_TRY(correct(ex, text, prompt, ret, reterr));
    if (json_object_get(x->asked, "better_than")) {
        HZP_TRY(find_answer(x, "better_than", &half[1], &other, reterr));
        half[0] = *ret;
        bool same = prompt == other && !memcmp(half[0]->token, half[1]->token,
                                               (size_t)prompt * sizeof(*half[0]->token));
        bool differ = half[0]->count != half[1]->count ||
                      memcmp(half[0]->token, half[1]->token,
                             (size_t)half[0]->count * sizeof(*half[0]->token)) != 0;
        *ret =
            same && differ ? hzp_sample_join((const struct hzp_sample *const *)half, &dpo) : NULL;
        hzp_sample_destroy(half[0]);
        hzp_sample_destroy(half[1]);
        if (!same || !differ)
            return hzp_fail_param(reterr, HZP_EINVAL, "better_than",
                                  same ? "better_than names an answer with the same tokens"
                                       : "the two answers are to different prompts");
    }
    if (!*ret)
        return HZP_ENOMEM;
    return (*ret)->count <= ex->tokens_max
               ? HZP_OK
               : hzp_fail_param(reterr, HZP_EINVAL, "id",
                                "what is learned has %d tokens, an example has %d at most",
                                (*ret)->count, ex->tokens_max);
}

/* Learns what the body says, and adds to the answer which example that is. */
static int teach(struct hzp_exchange *x, json_t *answer, struct hzp_err_text *reterr)
{
    struct hzp_engine *engine = x->server->engine;
    struct hzp_sample **one = hzp_xcalloc(1, sizeof(struct hzp_sample *));
    char after[HZP_AFTER_BYTES];
    int64_t first, last;
    int r = make(x, one, reterr);
    if (r < 0)
        hzp_examples_free(one, 1);
    HZP_TRY(r);
    hzp_effects_prepare(engine->effects);
    HZP_TRY(hzp_state_accept_samples(engine->state, one, 1, &(struct hzp_body_key){.key = NULL},
                                     &first, &last, reterr));
    note_taught(x->server->feedback, json_object_get(x->asked, "id"), first);
    note_taught(x->server->feedback, json_object_get(x->asked, "better_than"), first);
    hzp_effects_note(engine->effects, first, last, NULL, 0);
    hzp_loop_poke(engine->parts.loop);
    hzp_route_audit(x, "teach",
                    json_pack("{s:I, s:I}", "first", (json_int_t)first, "last", (json_int_t)last));
    return json_object_update_new(answer,
                                  json_pack("{s:I, s:s}", "example", (json_int_t)first, "after",
                                            hzp_after_text(x->server->taught, first, after)));
}

int hzp_route_feedback(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const json_t *score = json_object_get(x->asked, "score");
    json_t *id = json_object_get(x->asked, "id");
    struct hzp_refusal no = {.status = 0};
    uint64_t version = 0;
    bool trial = false, learn = false, forget = false, there = true;
    hzp_given_bool(x->asked, "learn", &learn);
    hzp_given_bool(x->asked, "forget", &forget);
    int more = (json_object_get(x->asked, "correction") != NULL) +
               (json_object_get(x->asked, "better_than") != NULL);
    learn &= score != NULL;
    if ((score != NULL) + more + forget != 1)
        return hzp_fail_param(reterr, HZP_EINVAL, "score",
                              "give one of score, correction, better_than and forget");
    if (more || learn || forget)
        hzp_auth_check_key(x->server->auth, x->connection, HZP_RIGHT_TEACH, &no);
    if (no.status)
        return hzp_reply_error(x, no.status, NULL, no.code, "%s", no.text);
    if ((more || learn) && !x->server->engine->state)
        return hzp_fail(reterr, HZP_ENOENT, "this server does not learn");
    json_auto_t *json = json_pack("{s:s, s:O}", "object", "feedback", "id", id);
    int r = more || learn ? teach(x, json, reterr) : HZP_OK;
    HZP_TRY(r);
    if (forget)
        there = note_taught(x->server->feedback, id, 0);
    if (score) {
        double value = json_number_value(score);
        there = set_score(x->server->feedback, json_string_value(id), value, &version, &trial);
        json_object_update_new(json, json_pack("{s:f, s:I, s:b}", "score", value, "weights_version",
                                               (json_int_t)version, "trial", trial));
    }
    if (!there)
        return hzp_fail_param(reterr, HZP_ENOENT, "id",
                              "there is no answer %.100s among the newest %d",
                              json_string_value(id), HZP_FEEDBACK_ANSWERS);
    return hzp_reply_json(x, MHD_HTTP_OK, json_incref(json));
}
