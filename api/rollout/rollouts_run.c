/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that runs jobs: it begins groups, submits their members, rewards answers, commits the
 * samples of updates, and waits until they are learned.  It looks every few milliseconds. */
#include "api/learn/lessons.h"
#include "api/rollout/rollouts_state.h"
#include "base/arena.h"
#include "base/log.h"
#include "text/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t look_ns = 2000000u;
/* Groups in a row that may teach nothing before a job ends: so many, and each prompt twice. */
enum { DROPS_LEAST = 32, DROPS_MOST = 1024 };

/* ---- versions ---- */

static void note_versions(struct hzp_rollouts *r)
{
    struct hzp_version_record record[16];
    int32_t n;
    do {
        n = hzp_weights_list_after(r->config.weights, r->newest, record, HZP_COUNT(record));
        for (int32_t i = 0; i < n; i++) {
            r->newest = record[i].id;
            r->version[r->newest % HZP_ROLLOUT_VERSIONS] =
                (struct hzp_rollout_version){.id = record[i].id,
                                             .step = record[i].optimizer_step,
                                             .learned_through = record[i].learned_through};
        }
    } while (n == HZP_COUNT(record));
}

/* The oldest update whose weights drew a token of the answer; -1: not known any more. */
static int64_t oldest_step(const struct hzp_rollouts *r, const struct hzp_request *rq)
{
    int64_t ret = INT64_MAX;
    int32_t n = atomic_load(&rq->out_count);
    for (int32_t i = 0; i < n; i++) {
        const struct hzp_rollout_version *v =
            &r->version[rq->out[i].version % HZP_ROLLOUT_VERSIONS];
        ret = v->id == rq->out[i].version ? HZP_MIN(ret, v->step) : -1;
        if (ret < 0)
            break;
    }
    return ret;
}

/* The first version that has learned the samples up to `last`; NULL: not known. */
static const struct hzp_rollout_version *learner_of(const struct hzp_rollouts *r, int64_t last)
{
    const struct hzp_rollout_version *ret = NULL;
    for (int i = 0; i < HZP_ROLLOUT_VERSIONS; i++) {
        const struct hzp_rollout_version *v = &r->version[i];
        if (v->id && v->learned_through >= last && (!ret || v->id < ret->id))
            ret = v;
    }
    return ret;
}

static struct hzp_weights_stats weights_stats(const struct hzp_rollouts *r)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(r->config.weights, &stats);
    return stats;
}

/* ---- the end of a group, and of a job ---- */

/* The group's answers are not needed any more, or never will be. */
static void free_slot(struct hzp_rollouts *r, struct hzp_rollout_job *job, int32_t at)
{
    struct hzp_rollout_slot *slot = &job->slot[at];
    bool any = false;
    for (int32_t m = 0; m < job->spec.n; m++)
        if (slot->answer[m].rq && !hzp_request_final(slot->answer[m].rq)) {
            atomic_store(&slot->answer[m].rq->cancel, true);
            any = true;
        }
    if (any)
        hzp_loop_poke(r->config.loop);
    for (int32_t m = 0; m < job->spec.n; m++) {
        struct hzp_rollout_answer *a = &slot->answer[m];
        while (a->rq && !hzp_request_final(a->rq))
            hzp_wake_wait(&r->wake, look_ns);
        hzp_request_destroy(a->rq);
        hzp_lock_take(&r->lock);
        json_decref(a->text);
        *a = (struct hzp_rollout_answer){.rq = NULL};
        hzp_lock_release(&r->lock);
    }
}

static void end_job(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                    enum hzp_rollout_status status, const char *why)
{
    struct hzp_rollout_slot *slot = job->slot;
    for (int32_t i = 0; i < job->groups.room; i++)
        free_slot(r, job, i);
    hzp_lock_take(&r->lock);
    job->status = status;
    snprintf(job->why, sizeof(job->why), "%s", why);
    job->slot = NULL;
    r->running = 0;
    for (int32_t i = 0; i < job->groups.room; i++)
        job->groups.group[i].state = HZP_ROLLOUT_GROUP_FREE;
    int32_t done = job->done;
    double reward = done ? job->point[done - 1].reward_mean : NAN;
    hzp_lock_release(&r->lock);
    for (int32_t i = 0; i < job->groups.room; i++)
        free(slot[i].answer);
    free(slot);
    hzp_log(HZP_LOG_INFO, "train", "rollouts id=%" PRIu64 " %s updates=%d reward=%.3f%s%s", job->id,
            status == HZP_ROLLOUT_SUCCEEDED   ? "succeeded"
            : status == HZP_ROLLOUT_CANCELLED ? "cancelled"
                                              : "failed",
            done, reward, *why ? ": " : "", why);
    hzp_rollouts_keep(r);
}

static void begin_job(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    struct hzp_rollout_slot *slot = hzp_xcalloc((size_t)job->groups.room, sizeof(*slot));
    for (int32_t i = 0; i < job->groups.room; i++)
        slot[i].answer = hzp_xcalloc((size_t)job->spec.n, sizeof(*slot[i].answer));
    hzp_lock_take(&r->lock);
    job->slot = slot;
    job->begin_ns = hzp_now_ns();
    hzp_lock_release(&r->lock);
    hzp_rollouts_keep(r);
}

/* ---- members ---- */

/* All members of a group begin with the same seed, and differ by their choice. */
static int submit(struct hzp_rollouts *r, const struct hzp_rollout_job *job, int32_t at, int32_t m,
                  struct hzp_err_text *reterr)
{
    struct hzp_rollout_slot *slot = &job->slot[at];
    const struct hzp_rollout_prompt *p = &job->spec.prompt[slot->prompt];
    struct hzp_request *rq;
    if (hzp_request_create(p->token, p->count, job->spec.max_tokens, 0, false, &rq) < 0)
        return HZP_EBUSY;
    rq->background = rq->own = true;
    rq->sampling.temperature = job->spec.temperature;
    rq->sampling.seed =
        job->spec.seed + (uint64_t)job->groups.group[at].number * 0x9e3779b97f4a7c15u;
    rq->sampling.choice = (uint32_t)m;
    rq->demands = (struct hzp_demands){.mode = HZP_CONTINUE, .max_staleness = -1, .fresh = true};
    int code = hzp_scheduler_submit(r->config.scheduler, rq, reterr);
    if (code < 0) {
        hzp_request_destroy(rq);
        return code;
    }
    slot->answer[m].rq = rq;
    hzp_lock_take(&r->lock);
    slot->answer[m].sample = ++r->last_sample;
    hzp_lock_release(&r->lock);
    return HZP_OK;
}

/* Whether another group would be of use. */
static bool wants_group(const struct hzp_rollout_job *job)
{
    const struct hzp_rollout_table *g = &job->groups;
    if (!job->spec.train)
        return g->begun < job->spec.prompts;
    return g->begun - g->dropped < (int64_t)job->spec.updates * job->spec.batch;
}

static int32_t begin_group(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    int64_t updates = job->spec.train ? job->done + job->rejected : INT32_MAX;
    if (!wants_group(job))
        return -1;
    hzp_lock_take(&r->lock);
    int32_t at = hzp_rollout_table_begin(&job->groups, updates);
    hzp_lock_release(&r->lock);
    if (at < 0)
        return -1;
    job->slot[at].prompt = (int32_t)((job->groups.begun - 1) % job->spec.prompts);
    job->slot[at].submitted = 0;
    return at;
}

/* Submits members as far as the scheduler takes them.  HZP_EBUSY: it takes no more now. */
static int submit_some(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                       struct hzp_err_text *reterr)
{
    int code = HZP_OK;
    bool any = false;
    for (int32_t at = 0; code == HZP_OK && at < job->groups.room; at++)
        while (code == HZP_OK && job->groups.group[at].state == HZP_ROLLOUT_GROUP_OPEN &&
               job->slot[at].submitted < job->spec.n) {
            code = submit(r, job, at, job->slot[at].submitted, reterr);
            job->slot[at].submitted += code == HZP_OK;
            any |= code == HZP_OK;
        }
    if (any)
        hzp_loop_poke(r->config.loop);
    return code;
}

static int fill(struct hzp_rollouts *r, struct hzp_rollout_job *job, struct hzp_err_text *reterr)
{
    int code;
    while ((code = submit_some(r, job, reterr)) == HZP_OK)
        if (begin_group(r, job) < 0)
            return HZP_OK;
    return code == HZP_EBUSY ? HZP_OK : code;
}

/* The answer's text, without the token that ended it. */
static void text_of(const struct hzp_rollouts *r, const struct hzp_request *rq,
                    struct hzp_textbuf *ret)
{
    int32_t n = atomic_load(&rq->out_count);
    n -= n > 0 && atomic_load(&rq->state) == HZP_REQUEST_STOPPED && rq->stop_token >= 0;
    int32_t *token = hzp_xcalloc((size_t)HZP_MAX(n, 1), sizeof(*token));
    for (int32_t i = 0; i < n; i++)
        token[i] = rq->out[i].token;
    if (hzp_tokenizer_decode(r->config.tok, token, (size_t)n, true, ret) >= 0)
        hzp_textbuf_append(ret, "", 1); /* NUL */
    free(token);
}

/* A member's answer has come: its reward, or a client is asked for it. */
static double judge(struct hzp_rollouts *r, const struct hzp_rollout_job *job, int32_t prompt,
                    struct hzp_rollout_answer *a)
{
    struct hzp_textbuf text = {NULL, 0, 0};
    double seconds, ret = NAN;
    text_of(r, a->rq, &text);
    size_t bytes = text.bytes ? text.bytes - 1 : 0;
    const char *data = text.bytes ? text.data : "";
    if (hzp_verifier_is_client(job->spec.verifier, &seconds)) {
        json_t *json = hzp_text_json(data, bytes);
        hzp_lock_take(&r->lock);
        a->text = json ? json : json_null();
        a->deadline_ns = hzp_now_ns() + (uint64_t)(seconds * 1e9);
        a->awaits = true;
        hzp_lock_release(&r->lock);
    } else {
        ret = hzp_verify(job->spec.verifier, data, bytes, atomic_load(&a->rq->out_count),
                         job->spec.prompt[prompt].reference);
    }
    hzp_textbuf_fini(&text);
    return ret;
}

/* What has become of a member whose request is final. */
enum fate { FATE_OPEN, FATE_REWARDED, FATE_LOST };

static enum fate look_at(struct hzp_rollouts *r, struct hzp_rollout_job *job, int32_t prompt,
                         struct hzp_rollout_answer *a, double *ret_reward)
{
    int32_t state = atomic_load(&a->rq->state), tokens = atomic_load(&a->rq->out_count);
    hzp_lock_take(&r->lock);
    bool awaits = a->awaits, judged = a->judged;
    bool late = awaits && hzp_now_ns() > a->deadline_ns;
    *ret_reward = a->reward;
    a->awaits = awaits && !late;
    hzp_lock_release(&r->lock);
    if (judged)
        return FATE_REWARDED;
    if (awaits)
        return late ? FATE_LOST : FATE_OPEN;
    if ((state != HZP_REQUEST_STOPPED && state != HZP_REQUEST_LENGTH) || tokens < 1)
        return FATE_LOST;
    *ret_reward = judge(r, job, prompt, a);
    hzp_lock_take(&r->lock);
    job->answered++;
    job->truncated += state == HZP_REQUEST_LENGTH;
    hzp_lock_release(&r->lock);
    return isnan(*ret_reward) ? FATE_OPEN : FATE_REWARDED;
}

/* Ends members; groups that are dropped by that let go of their answers. */
static void collect(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    int32_t running = 0;
    for (int32_t at = 0; at < job->groups.room; at++) {
        struct hzp_rollout_group *group = &job->groups.group[at];
        for (int32_t m = 0; m < job->spec.n && group->state == HZP_ROLLOUT_GROUP_OPEN; m++) {
            struct hzp_rollout_answer *a = &job->slot[at].answer[m];
            double reward;
            if (!a->rq || group->member[m].state != HZP_ROLLOUT_MEMBER_OPEN)
                continue;
            if (!hzp_request_final(a->rq)) {
                running++;
                continue;
            }
            enum fate fate = look_at(r, job, job->slot[at].prompt, a, &reward);
            hzp_lock_take(&r->lock);
            if (fate == FATE_REWARDED)
                hzp_rollout_table_reward(&job->groups, at, m, reward);
            else if (fate == FATE_LOST)
                hzp_rollout_table_lose(&job->groups, at, m);
            hzp_lock_release(&r->lock);
        }
        if (group->state == HZP_ROLLOUT_GROUP_FREE && job->slot[at].submitted) {
            free_slot(r, job, at);
            job->slot[at].submitted = 0;
        }
    }
    hzp_lock_take(&r->lock);
    r->running = running;
    hzp_lock_release(&r->lock);
}

/* ---- updates ---- */

static struct hzp_row_loss loss_of(enum hzp_rollout_algo algo)
{
    static const int32_t kind[HZP_ROLLOUT_ALGOS] = {HZP_LOSS_PPO, HZP_LOSS_PPO, HZP_LOSS_CISPO,
                                                    HZP_LOSS_IS};
    return (struct hzp_row_loss){.kind = kind[algo],
                                 .inv_temperature = 1,
                                 .low = 0.2f,
                                 .high = algo == HZP_ROLLOUT_GRPO ? 0.2f : 0.28f};
}

/* Its prompt, and its answer, which is learned with the group's advantage.  With --update-tokens
 * divide=weights an update is the mean over answers of their tokens' mean (grpo), or the mean over
 * tokens. */
static struct hzp_sample *sample_of(const struct hzp_rollout_job *job, const struct hzp_request *rq,
                                    double advantage)
{
    int32_t n = atomic_load(&rq->out_count), first = rq->prompt_count, count = first + n;
    int32_t *token = hzp_xcalloc((size_t)count, sizeof(*token));
    uint8_t *learn = hzp_xcalloc((size_t)count, sizeof(*learn));
    float *weight = hzp_xcalloc((size_t)count, sizeof(*weight));
    struct hzp_row_loss *how = hzp_xcalloc((size_t)count, sizeof(*how));
    memcpy(token, rq->prompt, (size_t)first * sizeof(*token));
    for (int32_t i = 0; i < n; i++) {
        token[first + i] = rq->out[i].token;
        learn[first + i] = 1;
        weight[first + i] = job->spec.algo == HZP_ROLLOUT_GRPO ? 1 / (float)n : 1;
        how[first + i] = loss_of(job->spec.algo);
        how[first + i].old = HZP_MIN(rq->out[i].logprob, 0);
        how[first + i].advantage = (float)advantage;
    }
    struct hzp_sample *ret = hzp_sample_create_losses(token, learn, weight, how, count);
    free(token);
    free(learn);
    free(weight);
    free(how);
    return ret;
}

/* The samples of the taken groups that are not too old; *ret_stale: how many are. */
static int32_t make_samples(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                            const int32_t *group, int32_t groups, struct hzp_sample **ret,
                            int32_t *ret_stale)
{
    int64_t now = job->next.optimizer_step;
    int32_t count = 0;
    *ret_stale = 0;
    for (int32_t i = 0; i < groups; i++)
        for (int32_t m = 0; m < job->spec.n; m++) {
            const struct hzp_rollout_member *member = &job->groups.group[group[i]].member[m];
            const struct hzp_request *rq = job->slot[group[i]].answer[m].rq;
            if (member->state != HZP_ROLLOUT_MEMBER_REWARDED)
                continue;
            int64_t step = oldest_step(r, rq);
            if (step < 0 || step > now || now - step > job->spec.staleness) {
                ++*ret_stale;
                continue;
            }
            ret[count] = sample_of(job, rq, member->advantage);
            if (!ret[count])
                continue;
            job->next.staleness = HZP_MAX(job->next.staleness, now - step);
            count++;
        }
    return count;
}

/* If the groups of an update are ready, and nothing else waits to be learned, commits their
 * samples. */
static int commit(struct hzp_rollouts *r, struct hzp_rollout_job *job, struct hzp_err_text *reterr)
{
    struct hzp_sample_queue_stats queue;
    int32_t group[HZP_ROLLOUT_BATCH_MAX], stale = 0;
    char session[40];
    hzp_sample_queue_read_stats(hzp_state_queue(r->config.state), &queue);
    if (job->last || queue.samples)
        return HZP_OK;
    hzp_lock_take(&r->lock);
    int32_t groups = hzp_rollout_table_take(&job->groups, false, group);
    double rewards = (double)job->groups.rewards - job->rewarded;
    double sum = job->groups.reward_sum - job->reward_sum;
    hzp_lock_release(&r->lock);
    if (!groups)
        return HZP_OK;
    size_t room = (size_t)groups * (size_t)job->spec.n;
    struct hzp_sample **sample = hzp_xcalloc(room, sizeof(struct hzp_sample *));
    note_versions(r);
    job->next =
        (struct hzp_rollout_point){.optimizer_step = weights_stats(r).finished_optimizer_step,
                                   .reward_mean = rewards > 0 ? sum / rewards : 0};
    int32_t count = make_samples(r, job, group, groups, sample, &stale);
    int code = HZP_OK;
    snprintf(session, sizeof(session), "rollout-%" PRIu64, job->id);
    if (count)
        code = hzp_state_accept_samples(r->config.state, sample, count, session, &job->first,
                                        &job->last, reterr);
    else
        free(sample);
    hzp_lock_take(&r->lock);
    for (int32_t i = 0; i < groups; i++)
        hzp_rollout_table_release(&job->groups, group[i], !count);
    job->stale += stale;
    job->committed += code == HZP_OK ? count : 0;
    if (count) {
        job->rewarded = (double)job->groups.rewards;
        job->reward_sum = job->groups.reward_sum;
    }
    hzp_lock_release(&r->lock);
    for (int32_t i = 0; i < groups; i++)
        free_slot(r, job, group[i]);
    job->next.samples = count;
    if (count && code == HZP_OK)
        hzp_loop_poke(r->config.loop);
    return code;
}

/* If the samples that were committed are learned, or never will be, the update counts. */
static void settle(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    int64_t through = weights_stats(r).learned_through;
    if (!job->last || !hzp_state_settled(r->config.state, job->first, job->last, through))
        return;
    bool learned = hzp_state_learned(r->config.state, job->last, through) == HZP_EXAMPLE_LEARNED;
    note_versions(r);
    const struct hzp_rollout_version *by = learner_of(r, job->last);
    struct hzp_rollout_point *p = &job->next;
    if (by) { /* else it is as planned: the update behind those that were finished */
        p->staleness += HZP_MAX(by->step - 1 - p->optimizer_step, 0);
        p->optimizer_step = by->step;
        p->version = by->id;
    }
    p->seconds = (double)(hzp_now_ns() - job->begin_ns) * 1e-9;
    hzp_lock_take(&r->lock);
    if (learned) {
        job->point[job->done++] = *p;
        job->late += p->staleness > job->spec.staleness ? p->samples : 0;
    } else {
        job->rejected++;
    }
    hzp_lock_release(&r->lock);
    hzp_log(HZP_LOG_INFO, "train",
            "rollouts id=%" PRIu64 " update=%d/%d %s samples=%d reward=%.3f staleness=%" PRId64
            " dropped=%" PRId64,
            job->id, job->done + job->rejected, job->spec.updates, learned ? "learned" : "rejected",
            p->samples, p->reward_mean, p->staleness, job->groups.dropped);
    job->last = 0;
    hzp_rollouts_keep(r);
}

/* ---- a job ---- */

static bool trainer_broken(const struct hzp_rollouts *r)
{
    struct hzp_trainer_stats stats = {.broken = false};
    if (r->config.trainer)
        hzp_trainer_read_stats(r->config.trainer, &stats);
    return stats.broken;
}

/* Ends the job if it is done, or cannot go on. */
static bool look_for_end(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    const struct hzp_rollout_table *g = &job->groups;
    int32_t most = HZP_MAX(DROPS_LEAST, HZP_MIN(2 * job->spec.prompts, DROPS_MOST));
    if (!job->spec.train && g->begun == job->spec.prompts &&
        !hzp_rollout_table_count(g, HZP_ROLLOUT_GROUP_OPEN)) {
        end_job(r, job, HZP_ROLLOUT_SUCCEEDED, "");
        return true;
    }
    if (job->last && trainer_broken(r)) {
        end_job(r, job, HZP_ROLLOUT_FAILED, "training has stopped, as the log says");
        return true;
    }
    if (job->spec.train && job->done + job->rejected == job->spec.updates) {
        end_job(r, job, job->done ? HZP_ROLLOUT_SUCCEEDED : HZP_ROLLOUT_FAILED,
                job->done ? "" : "no update was learned: the gate refused each");
        return true;
    }
    if (job->spec.train && g->dropped_in_row >= most && !job->last) {
        end_job(r, job, job->done ? HZP_ROLLOUT_SUCCEEDED : HZP_ROLLOUT_FAILED,
                "in the newest groups all answers had the same reward: there is nothing more to "
                "learn from them");
        return true;
    }
    return false;
}

/* One look at the job that runs. */
static void advance(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    struct hzp_err_text err = {.text = ""};
    int32_t group[HZP_ROLLOUT_BATCH_MAX];
    hzp_lock_take(&r->lock);
    bool cancel = job->cancel;
    hzp_lock_release(&r->lock);
    if (cancel) {
        end_job(r, job, HZP_ROLLOUT_CANCELLED, "");
        return;
    }
    collect(r, job);
    int code = HZP_OK;
    if (job->spec.train) {
        settle(r, job);
        code = commit(r, job, &err);
    } else { /* nothing is learned from them */
        hzp_lock_take(&r->lock);
        int32_t n = hzp_rollout_table_take(&job->groups, true, group);
        for (int32_t i = 0; i < n; i++)
            hzp_rollout_table_release(&job->groups, group[i], false);
        hzp_lock_release(&r->lock);
        for (int32_t i = 0; i < n; i++)
            free_slot(r, job, group[i]);
    }
    if (look_for_end(r, job))
        return;
    if (code >= 0)
        code = fill(r, job, &err);
    if (code < 0 && code != HZP_EBUSY)
        end_job(r, job, HZP_ROLLOUT_FAILED, err.text);
}

/* The oldest job that has not ended, which runs from now on; NULL: none. */
static struct hzp_rollout_job *next_job(struct hzp_rollouts *r)
{
    struct hzp_rollout_job *ret = NULL;
    hzp_lock_take(&r->lock);
    for (int32_t i = r->jobs - 1; i >= 0; i--)
        if (!hzp_rollout_ended(r->job[i]))
            ret = r->job[i];
    if (ret)
        ret->status = HZP_ROLLOUT_RUNNING; /* so it ends on this thread only */
    hzp_lock_release(&r->lock);
    return ret;
}

void *hzp_rollouts_run(void *arg)
{
    static const char stopped[] = "the server stopped while it ran: what it had committed is "
                                  "learned from the log";
    struct hzp_rollouts *r = arg;
    struct hzp_rollout_job *job;
    while (!atomic_load(&r->closing)) {
        job = next_job(r);
        if (job && !job->slot)
            begin_job(r, job);
        if (job)
            advance(r, job);
        hzp_wake_wait(&r->wake, job ? look_ns : UINT64_MAX);
    }
    while ((job = next_job(r)) != NULL) {
        if (!job->slot)
            begin_job(r, job);
        end_job(r, job, HZP_ROLLOUT_FAILED, stopped);
    }
    return NULL;
}
