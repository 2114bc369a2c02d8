/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of a job with a KL term: the version that serves when the job begins, which keeps
 * its slot until the job ends.  Where a group is ready, each of its answers that will be learned is
 * computed once more by that version, as the prompt of a background request that draws nothing; its
 * log-probabilities are the reference's.  Until they are there the group waits. */
#include "api/rollout/rollouts_state.h"

#include <math.h>
#include <string.h>
#include "base/arena.h"
#include <stdlib.h>

struct hold {
    struct hzp_rollouts *r;
    struct hzp_version *version;
};

static int take(void *ctx, const struct hzp_border *border)
{
    struct hold *h = ctx;
    h->version = hzp_weights_acquire(h->r->config.weights);
    return HZP_OK;
}

static int release(void *ctx, const struct hzp_border *border)
{
    struct hold *h = ctx;
    hzp_weights_release(h->r->config.weights, h->version, border->last_step);
    return HZP_OK;
}

int hzp_rollout_take_reference(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    struct hold h = {.r = r};
    if (job->spec.kl <= 0)
        return HZP_OK;
    hzp_lock_release(&r->lock);
    int code = hzp_loop_call(r->config.loop, take, &h);
    hzp_lock_take(&r->lock);
    job->reference = h.version;
    return code;
}

void hzp_rollout_drop_reference(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    struct hold h = {.r = r, .version = job->reference};
    if (!h.version)
        return;
    job->reference = NULL;
    hzp_lock_release(&r->lock);
    hzp_loop_call(r->config.loop, release, &h); /* where the loop has ended, no slot is needed */
    hzp_lock_take(&r->lock);
}

/* Submits the answer's tokens.  HZP_EBUSY: not now. */
static int submit(struct hzp_rollouts *r, const struct hzp_rollout_job *job,
                  struct hzp_rollout_answer *a, struct hzp_err_text *reterr)
{
    const struct hzp_request *rq = a->rq;
    int32_t n = atomic_load(&rq->out_count), count = rq->prompt_count + n;
    struct hzp_request *ref;
    HZP_FREED int32_t *token = hzp_xcalloc((size_t)count, sizeof(*token));
    memcpy(token, rq->prompt, (size_t)rq->prompt_count * sizeof(*token));
    for (int32_t i = 0; i < n; i++)
        token[rq->prompt_count + i] = rq->out[i].token;
    int code = hzp_request_create(token, count, 0, 0, true, &ref) < 0 ? HZP_EBUSY : HZP_OK;
    HZP_TRY(code);
    ref->background = ref->own = true;
    ref->reference = job->reference;
    ref->demands = (struct hzp_demands){.mode = HZP_CONTINUE, .max_staleness = -1, .fresh = true};
    code = hzp_scheduler_submit(r->config.scheduler, ref, reterr);
    if (code < 0)
        hzp_request_destroy(ref);
    else
        a->ref = ref;
    hzp_loop_poke(r->config.loop);
    return code;
}

int hzp_rollout_refer(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                      struct hzp_err_text *reterr)
{
    for (int32_t at = 0; job->reference && at < job->table.room; at++) {
        struct hzp_rollout_group *group = &job->table.group[at];
        bool waits = false;
        for (int32_t m = 0; m < job->spec.n && group->state == HZP_GROUP_READY; m++) {
            struct hzp_rollout_answer *a = &job->slot[at].answer[m];
            if (group->member[m].state != HZP_MEMBER_REWARDED)
                continue;
            int code = a->ref ? HZP_OK : submit(r, job, a, reterr);
            if (code < 0 && code != HZP_EBUSY)
                return code;
            waits |= !a->ref || !hzp_request_final(a->ref);
        }
        group->waits = waits;
    }
    return HZP_OK;
}

const struct hzp_output *hzp_rollout_referred(const struct hzp_rollout_answer *a)
{
    int32_t state = a->ref ? atomic_load(&a->ref->state) : HZP_REQUEST_FAILED;
    return state == HZP_REQUEST_LENGTH || state == HZP_REQUEST_STOPPED
               ? a->ref->prompt_out + a->rq->prompt_count
               : NULL;
}

double hzp_rollout_kl(const struct hzp_rollout_answer *a)
{
    const struct hzp_output *ref = hzp_rollout_referred(a);
    int32_t n = atomic_load(&a->rq->out_count);
    double sum = 0;
    for (int32_t i = 0; ref && i < n; i++) {
        double d = (double)ref[i].logprob - (double)a->rq->out[i].logprob;
        d = fmin(fmax(d, -20), 20);
        sum += exp(d) - d - 1;
    }
    return sum;
}
