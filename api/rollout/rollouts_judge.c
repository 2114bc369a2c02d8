/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards by the operator's command: answers of the running job are its questions, as many at a
 * time as it takes.  And by the model: each answer is two prompts of background requests, the
 * template with the one word behind it and with the other. */
#include "api/rollout/rollouts_state.h"

static json_t *said(const struct hzp_rollouts *r, const struct hzp_request *rq, json_t *text,
                    const char *answer)
{
    return json_pack("{s:o, s:O?, s:s?}", "prompt", hzp_rollout_text(r, rq, true), "text", text,
                     "answer", answer);
}

static const char *answer_to(const struct hzp_rollout_job *job, int32_t i)
{
    return job->spec.prompt[job->slot[i / job->spec.n].prompt].reference;
}

/* ---- by the model ---- */

int hzp_rollout_question(const struct hzp_rollouts *r, const struct hzp_verifier *v,
                         const struct hzp_request *rq, json_t *text, const char *answer, int word,
                         struct hzp_tokens *out, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf buf = {NULL, 0, 0};
    json_auto_t *names = said(r, rq, text, answer);
    HZP_TRY(hzp_verifier_question(v, names, word, &buf));
    return hzp_tokenizer_encode(r->config.tok, buf.data, buf.bytes,
                                HZP_TOKENIZER_ADD_SPECIAL | HZP_TOKENIZER_PARSE_SPECIAL, INT32_MAX,
                                out, reterr);
}

static int submit(struct hzp_rollouts *r, const struct hzp_rollout_job *job, int32_t i,
                  struct hzp_err_text *reterr)
{
    const struct hzp_verifier *v = job->spec.verifier;
    struct hzp_rollout_answer *a = hzp_rollout_at(job, i);
    struct hzp_version *version = hzp_verifier_is_pinned(v) ? job->reference : NULL;
    for (int w = 0; w < 2; w++) {
        HZP_ENDED(hzp_tokens_fini) struct hzp_tokens tokens = {NULL, 0, 0};
        if (a->score[w])
            continue;
        HZP_TRY(hzp_rollout_question(r, v, a->rq, a->text, answer_to(job, i), w, &tokens, reterr));
        HZP_TRY(
            hzp_rollout_compute(r, tokens.ids, (int32_t)tokens.n, version, &a->score[w], reterr));
    }
    return HZP_OK;
}

double hzp_rollout_preferred(struct hzp_request *const score[2])
{
    const struct hzp_request *a = score[0], *b = score[1];
    int32_t same = 0;
    double more = 0; /* the second word's log-probability less the first one's */
    while (same < HZP_MIN(a->prompt_count, b->prompt_count) && a->prompt[same] == b->prompt[same])
        same++;
    if (!same || !hzp_rollout_computed(a) || !hzp_rollout_computed(b))
        return NAN;
    for (int32_t t = same; t < a->prompt_count; t++)
        more -= (double)a->prompt_out[t].logprob;
    for (int32_t t = same; t < b->prompt_count; t++)
        more += (double)b->prompt_out[t].logprob;
    return 1 / (1 + exp(more));
}

/* Takes what is there.  True: the question is still to be submitted, or one half of it. */
static bool look_at(struct hzp_rollout_answer *a)
{
    struct hzp_request **s = a->score;
    bool there = s[0] && s[1], late = hzp_now_ns() > a->deadline_ns;
    there = there && hzp_request_final(s[0]) && hzp_request_final(s[1]);
    bool apart = there && s[0]->prompt_version != s[1]->prompt_version;
    if (there && !apart) {
        a->reward = hzp_rollout_preferred(s);
        a->judged = !isnan(a->reward);
        a->deadline_ns = 0; /* without a reward it is lost */
    }
    a->asks = !late && (!there || apart);
    for (int w = 0; w < 2 && s[w] && (late || apart); w++)
        atomic_store(&s[w]->cancel, true);
    for (int w = 0; w < 2 && apart && !late; w++) { /* a swap came between */
        hzp_request_destroy(s[w]);
        s[w] = NULL;
    }
    return a->asks && (!s[0] || !s[1]);
}

static int ask_model(struct hzp_rollouts *r, const struct hzp_rollout_job *job,
                     struct hzp_err_text *reterr)
{
    int code = HZP_OK;
    for (int32_t i = 0; i < job->table.room * job->spec.n; i++) {
        struct hzp_rollout_answer *a = hzp_rollout_at(job, i);
        if (!a->asks || !look_at(a) || code == HZP_EBUSY)
            continue;
        code = submit(r, job, i, reterr);
        if (code == HZP_ECANCELED)
            return code;
        if (code < 0 && code != HZP_EBUSY) /* too long, for one: it is lost */
            a->deadline_ns = 0;
    }
    return HZP_OK;
}

/* ---- by the command ---- */

int hzp_rollout_ask(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                    struct hzp_err_text *reterr)
{
    if (hzp_verifier_is_model(job->spec.verifier))
        return ask_model(r, job, reterr);
    json_t *line;
    int64_t sample;
    bool more = true;
    if (!hzp_verifier_is_command(job->spec.verifier))
        return HZP_OK;
    while (hzp_judge_next(r->judge, &sample, &line)) {
        int32_t row = hzp_rollout_find(r, sample);
        struct hzp_rollout_answer *a = row < 0 ? NULL : hzp_rollout_at(job, row);
        const json_t *reward = json_object_get(line, "reward");
        double value = json_is_number(reward) ? json_number_value(reward) : NAN;
        json_decref(line);
        if (!a || !a->asks)
            continue;
        a->asks = false;
        a->judged = fabs(value) <= 1e6;
        a->reward = value;
        a->deadline_ns = 0; /* without a reward it is lost */
    }
    for (int32_t i = 0; i < job->table.room * job->spec.n && more; i++) {
        struct hzp_rollout_answer *a = hzp_rollout_at(job, i);
        if (!a->asks || (a->asked_in && a->asked_in == hzp_judge_round(r->judge)))
            continue;
        json_t *words = said(r, a->rq, a->text, answer_to(job, i));
        if (a->said)
            json_object_set_new(words, "messages", hzp_rollout_messages(job, i));
        more = hzp_judge_ask(r->judge, a->sample, words, hzp_verifier_seconds(job->spec.verifier));
        a->asked_in = more ? hzp_judge_round(r->judge) : 0;
        json_decref(words);
    }
    return hzp_judge_check(r->judge, reterr);
}
