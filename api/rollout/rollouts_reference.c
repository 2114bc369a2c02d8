/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of a job with a KL term, unless clients are it, and the judge of a pinned reward by
 * the model: the version that serves when the job begins, which keeps its slot until the job
 * ends.  Where a group is ready, each of its answers that will be learned is computed once more by
 * the reference, as the prompt of a background request that draws nothing; its log-probabilities
 * are the reference's.  Until they are there the group waits. */
#include "api/rollout/rollouts_state.h"

struct hold {
    struct hzp_rollouts *r;
    struct hzp_version *version;
};

/* Lets go of the version that is held, or holds the one that serves. */
static int hold(void *ctx, const struct hzp_border *border)
{
    struct hold *h = ctx;
    if (h->version)
        hzp_weights_release(h->r->config.weights, h->version, border->last_step);
    else
        h->version = hzp_weights_acquire(h->r->config.weights);
    return HZP_OK;
}

/* Whether each answer is computed by the reference. */
static bool refers(const struct hzp_rollout_spec *spec)
{
    return spec->kl > 0 && !spec->client_reference;
}

bool hzp_rollout_holds(const struct hzp_rollout_spec *spec)
{
    return refers(spec) || hzp_verifier_is_pinned(spec->verifier);
}

int hzp_rollout_take_reference(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    struct hold h = {.r = r};
    if (!hzp_rollout_holds(&job->spec))
        return HZP_OK;
    hzp_lock_release(&r->lock);
    int code = hzp_loop_call(r->config.loop, hold, &h);
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
    hzp_loop_call(r->config.loop, hold, &h); /* where the loop has ended, no slot is needed */
    hzp_lock_take(&r->lock);
}

int hzp_rollout_compute(struct hzp_rollouts *r, const int32_t *token, int32_t count,
                        struct hzp_version *version, struct hzp_request **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_request *rq;
    int code = hzp_request_create(token, count, 0, 0, true, &rq) < 0 ? HZP_EBUSY : HZP_OK;
    HZP_TRY(code);
    rq->background = rq->own = true;
    rq->reference = version;
    rq->demands = (struct hzp_demands){.mode = HZP_CONTINUE, .max_staleness = -1, .fresh = true};
    code = hzp_scheduler_submit(r->config.scheduler, rq, reterr);
    if (code < 0)
        hzp_request_destroy(rq);
    else
        *ret = rq;
    hzp_loop_poke(r->config.loop);
    return code;
}

bool hzp_rollout_computed(const struct hzp_request *rq)
{
    int32_t state = atomic_load(&rq->state);
    return state == HZP_REQUEST_LENGTH || state == HZP_REQUEST_STOPPED;
}

/* Submits the answer's tokens.  HZP_EBUSY: not now. */
static int submit(struct hzp_rollouts *r, const struct hzp_rollout_job *job,
                  struct hzp_rollout_answer *a, struct hzp_err_text *reterr)
{
    int32_t count;
    HZP_FREED int32_t *token = hzp_rollout_tokens(a->rq, &count);
    return hzp_rollout_compute(r, token, count, job->reference, &a->ref, reterr);
}

/* Whether it has been computed; then what it says is the answer's. */
static bool referred(struct hzp_rollout_answer *a)
{
    bool final = a->ref && hzp_request_final(a->ref);
    bool good = final && hzp_rollout_computed(a->ref);
    int32_t n = good && !a->reference ? atomic_load(&a->rq->out_count) : 0;
    if (n)
        a->reference = hzp_xcalloc((size_t)n, sizeof(*a->reference));
    for (int32_t i = 0; i < n; i++)
        a->reference[i] = (double)HZP_MIN(a->ref->prompt_out[a->rq->prompt_count + i].logprob, 0);
    return final;
}

int hzp_rollout_refer(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                      struct hzp_err_text *reterr)
{
    const struct hzp_rollout_spec *spec = &job->spec;
    uint64_t now = hzp_now_ns();
    if (spec->consumers)
        hzp_rollout_rows(r);
    for (int32_t at = 0; at < job->table.room; at++) {
        struct hzp_rollout_group *group = &job->table.group[at];
        struct hzp_rollout_slot *slot = &job->slot[at];
        if (group->state != HZP_GROUP_READY)
            continue;
        bool waits = hzp_rows_wanted(&r->rows, at);
        if (!slot->until_ns)
            slot->until_ns = now + (uint64_t)(hzp_verifier_seconds(spec->verifier) * 1e9);
        for (int32_t m = 0; m < spec->n; m++) {
            struct hzp_rollout_answer *a = &slot->answer[m];
            if (group->member[m].state != HZP_MEMBER_REWARDED)
                continue;
            int code = a->ref || !refers(spec) ? HZP_OK : submit(r, job, a, reterr);
            if (code < 0 && code != HZP_EBUSY)
                return code;
            bool lacks =
                (spec->client_reference && !a->reference) || !isfinite(group->member[m].advantage);
            lacks &= spec->train || spec->consumers;
            if (lacks && now > slot->until_ns) {
                group->member[m].state = HZP_MEMBER_LOST;
                job->table.lost++;
            }
            waits |= lacks || (refers(spec) && !referred(a));
        }
        group->waits = waits;
    }
    return HZP_OK;
}

double hzp_rollout_kl(const struct hzp_rollout_answer *a)
{
    int32_t n = atomic_load(&a->rq->out_count);
    double sum = 0;
    for (int32_t i = 0; a->reference && i < n; i++) {
        if (!hzp_rollout_wrote(a->rq, i))
            continue;
        double d = a->reference[i] - (double)a->rq->out[i].logprob;
        d = fmin(fmax(d, -20), 20);
        sum += exp(d) - d - 1;
    }
    return sum;
}
