/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards by the operator's command: answers of the running job are its questions, as many at a
 * time as it takes. */
#include "api/rollout/rollouts_state.h"

#include <math.h>

int hzp_rollout_ask(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                    struct hzp_err_text *reterr)
{
    double reward;
    int64_t sample;
    bool more = true;
    if (!hzp_verifier_is_command(job->spec.verifier))
        return HZP_OK;
    while (hzp_judge_next(r->judge, &sample, &reward)) {
        int32_t row = hzp_rollout_find(r, sample);
        struct hzp_rollout_answer *a = row < 0 ? NULL : hzp_rollout_at(job, row);
        if (!a || !a->asks)
            continue;
        a->asks = false;
        a->judged = !isnan(reward);
        a->reward = reward;
        a->deadline_ns = 0; /* without a reward it is lost */
    }
    for (int32_t i = 0; i < job->table.room * job->spec.n && more; i++) {
        struct hzp_rollout_answer *a = hzp_rollout_at(job, i);
        if (!a->asks || (a->asked_in && a->asked_in == hzp_judge_round(r->judge)))
            continue;
        const char *answer = job->spec.prompt[job->slot[i / job->spec.n].prompt].reference;
        json_t *words = json_pack("{s:o, s:O, s:s?}", "prompt", hzp_rollout_text(r, a->rq, true),
                                  "text", a->text, "answer", answer);
        more = hzp_judge_ask(r->judge, a->sample, words, hzp_verifier_seconds(job->spec.verifier));
        a->asked_in = more ? hzp_judge_round(r->judge) : 0;
        json_decref(words);
    }
    return hzp_judge_check(r->judge, reterr);
}
