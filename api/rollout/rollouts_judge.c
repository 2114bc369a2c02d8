/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards by the operator's command: answers of the running job are its questions, as many at a
 * time as it takes. */
#include "api/rollout/rollouts_state.h"

#include "text/tokenizer/tokenizer.h"

#include <math.h>

/* The answer of this number that waits for the command; NULL: there is none any more. */
static struct hzp_rollout_answer *find(const struct hzp_rollout_job *job, int64_t sample)
{
    for (int32_t s = 0; s < job->table.room; s++)
        for (int32_t m = 0; m < job->spec.n; m++) {
            struct hzp_rollout_answer *a = &job->slot[s].answer[m];
            if (a->asks && a->sample == sample)
                return a;
        }
    return NULL;
}

static json_t *question(const struct hzp_rollouts *r, const struct hzp_rollout_prompt *prompt,
                        const struct hzp_rollout_answer *a)
{
    struct hzp_textbuf text = {NULL, 0, 0};
    hzp_tokenizer_decode(r->config.tok, prompt->token, (size_t)prompt->count, true, &text);
    json_t *words = hzp_text_json(text.data ? text.data : "", text.bytes);
    hzp_textbuf_fini(&text);
    return json_pack("{s:o, s:O, s:o}", "prompt", words, "text", a->text, "answer",
                     prompt->reference ? json_string(prompt->reference) : json_null());
}

int hzp_rollout_ask(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                    struct hzp_err_text *reterr)
{
    double seconds, reward;
    int64_t sample;
    bool more = true;
    if (!hzp_verifier_is_command(job->spec.verifier, &seconds))
        return HZP_OK;
    while (hzp_judge_next(r->judge, &sample, &reward)) {
        struct hzp_rollout_answer *a = find(job, sample);
        if (!a)
            continue;
        a->asks = false;
        a->judged = !isnan(reward);
        a->reward = reward;
        a->deadline_ns = 0; /* without a reward it is lost */
    }
    for (int32_t s = 0; s < job->table.room; s++)
        for (int32_t m = 0; m < job->spec.n && more; m++) {
            struct hzp_rollout_answer *a = &job->slot[s].answer[m];
            if (!a->asks || (a->asked_in && a->asked_in == hzp_judge_round(r->judge)))
                continue;
            json_auto_t *words = question(r, &job->spec.prompt[job->slot[s].prompt], a);
            more = hzp_judge_ask(r->judge, a->sample, words, seconds);
            a->asked_in = more ? hzp_judge_round(r->judge) : 0;
        }
    return hzp_judge_check(r->judge, reterr);
}
