/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that runs jobs: it begins groups, submits their members, rewards answers, commits the
 * samples of updates, and waits until they are learned.  It looks every few milliseconds, and holds
 * the lock while it looks. */
#include "api/rollout/rollouts_state.h"
#include "base/log.h"

static const uint64_t look_ns = 2000000u;
/* Groups in a row that may teach nothing before a job ends: so many, and each prompt twice. */
enum { DROPS_LEAST = 32, DROPS_MOST = 1024 };
static const char stopped[] =
    "the server stopped while it ran: what it had committed is learned from the log";

static void pause_for(struct hzp_rollouts *r, uint64_t ns)
{
    hzp_lock_release(&r->lock);
    hzp_wake_wait(&r->wake, ns);
    hzp_lock_take(&r->lock);
}

/* ---- versions ---- */

static struct hzp_weights_stats weights_stats(const struct hzp_rollouts *r)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(r->config.weights, &stats);
    return stats;
}

static void note_versions(struct hzp_rollouts *r)
{
    r->versions = hzp_weights_list(r->config.weights, r->version, HZP_ROLLOUT_VERSIONS);
}

/* The oldest update whose weights drew a token of the answer; -1: not known any more. */
static int64_t oldest_step(const struct hzp_rollouts *r, const struct hzp_request *rq)
{
    int64_t ret = INT64_MAX;
    int32_t n = atomic_load(&rq->out_count);
    for (int32_t i = 0; i < n && ret >= 0; i++) {
        int32_t v = 0;
        if (!hzp_rollout_wrote(rq, i))
            continue;
        while (v < r->versions && r->version[v].id != rq->out[i].version)
            v++;
        ret = v < r->versions ? HZP_MIN(ret, r->version[v].optimizer_step) : -1;
    }
    return ret;
}

/* ---- the end of a group, and of a job ---- */

enum { REQUESTS = 4 };
static struct hzp_request **request_of(struct hzp_rollout_answer *a, int i)
{
    return i > 1 ? &a->score[i - 2] : i ? &a->ref : &a->rq;
}

/* The group's answers are not needed any more, or never will be. */
static void free_slot(struct hzp_rollouts *r, struct hzp_rollout_job *job, int32_t at)
{
    struct hzp_rollout_slot *slot = &job->slot[at];
    for (int32_t m = 0; m < job->spec.n; m++)
        for (int i = 0; i < REQUESTS; i++)
            if (*request_of(&slot->answer[m], i))
                atomic_store(&(*request_of(&slot->answer[m], i))->cancel, true);
    hzp_loop_poke(r->config.loop);
    for (int32_t m = 0; m < job->spec.n; m++) /* others look meanwhile: nothing is freed before */
        for (int i = 0; i < REQUESTS; i++)
            while (*request_of(&slot->answer[m], i) &&
                   !hzp_request_final(*request_of(&slot->answer[m], i)))
                pause_for(r, look_ns);
    for (int32_t m = 0; m < job->spec.n; m++) {
        struct hzp_rollout_answer *a = &slot->answer[m];
        for (int i = 0; i < REQUESTS; i++)
            hzp_request_destroy(*request_of(a, i));
        free(a->reference);
        json_decref(a->text);
        json_decref(a->said);
        hzp_tokens_fini(&a->given);
        *a = (struct hzp_rollout_answer){.rq = NULL};
    }
    slot->submitted = 0;
    slot->until_ns = 0;
}

static void end_job(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                    enum hzp_rollout_status status, const char *why)
{
    double reward = job->done ? job->point[job->done - 1].reward_mean : NAN;
    for (int32_t i = 0; i < job->table.room; i++)
        free_slot(r, job, i); /* may wait, and others look meanwhile */
    hzp_rollout_drop_reference(r, job);
    hzp_rollouts_renew(
        r); /* the next job's commands are not to answer this one's questions first */
    for (int32_t i = 0; i < job->table.room; i++) {
        free(job->slot[i].answer);
        job->table.group[i].state = HZP_GROUP_FREE;
    }
    free(job->slot);
    hzp_rows_begin(&r->rows, 0, 0, NULL);
    hzp_rollout_free_prompts(&job->spec);
    job->slot = NULL;
    r->running = 0;
    job->status = job->cancel ? HZP_ROLLOUT_CANCELLED : status;
    job->goes_on = why == stopped && job->outlives;
    snprintf(job->why, sizeof(job->why), "%s", job->goes_on ? "" : why);
    hzp_log(HZP_LOG_INFO, "train", "rollouts id=%" PRIu64 " %s updates=%d reward=%.3f%s%s", job->id,
            job->goes_on ? "waits for the next start" : hzp_rollout_status_name(status), job->done,
            reward, *job->why ? ": " : "", job->why);
    if (job->done && !job->goes_on) {
        json_auto_t *curve = hzp_rollout_points(job);
        hzp_rollout_keep_curve(r, job->id, curve);
    }
    hzp_rollouts_keep(r);
    if (!job->goes_on && job->outlives) /* when the list says how it has ended */
        hzp_rollout_forget(r, job->id);
}

static void begin_job(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    job->slot = hzp_xcalloc((size_t)job->table.room, sizeof(*job->slot));
    for (int32_t i = 0; i < job->table.room; i++)
        job->slot[i].answer = hzp_xcalloc((size_t)job->spec.n, sizeof(*job->slot[i].answer));
    hzp_rows_begin(&r->rows, job->table.room, job->spec.n, job->spec.consumers);
    job->status = HZP_ROLLOUT_RUNNING;
    job->begin_ns = hzp_now_ns();
    hzp_rollouts_keep(r);
}

/* ---- members ---- */

/* The next turn begins with what the answer has so far, and with what was given to it. */
static void carry(const struct hzp_rollout_answer *a, struct hzp_request *rq)
{
    int32_t n = atomic_load(&a->rq->out_count);
    memcpy(rq->out, a->rq->out, (size_t)n * sizeof(*rq->out));
    for (size_t i = 0; i < a->given.n; i++)
        rq->out[n++] = (struct hzp_output){.token = a->given.ids[i]};
    atomic_store(&rq->out_count, n);
}

/* All members of a group begin with the same seed, and differ by their choice. */
int hzp_rollout_submit(struct hzp_rollouts *r, const struct hzp_rollout_job *job, int32_t at,
                       int32_t member, struct hzp_err_text *reterr)
{
    struct hzp_rollout_slot *slot = &job->slot[at];
    struct hzp_rollout_answer *a = &slot->answer[member];
    const struct hzp_rollout_prompt *p = &job->spec.prompt[slot->prompt];
    struct hzp_request *rq;
    if (hzp_request_create(p->token, p->count, job->spec.max_tokens, 0, false, &rq) < 0)
        return HZP_EBUSY;
    rq->background = rq->own = true;
    rq->sampling.temperature = job->spec.temperature;
    rq->sampling.seed =
        job->spec.seed + (uint64_t)job->table.group[at].number * 0x9e3779b97f4a7c15u;
    rq->sampling.choice = (uint32_t)member;
    rq->demands = (struct hzp_demands){.mode = HZP_CONTINUE, .max_staleness = -1, .fresh = true};
    if (a->rq)
        carry(a, rq);
    int code = hzp_scheduler_submit(r->config.scheduler, rq, reterr);
    if (code < 0) {
        hzp_request_destroy(rq);
        return code;
    }
    hzp_request_destroy(a->rq);
    a->rq = rq;
    a->sample = ++r->last_sample;
    hzp_loop_poke(r->config.loop);
    return HZP_OK;
}

/* False: the bound allows no further group now, or none is needed. */
static bool begin_group(struct hzp_rollout_job *job)
{
    const struct hzp_rollout_spec *spec = &job->spec;
    struct hzp_rollout_table *t = &job->table;
    bool wanted = spec->train ? t->begun - t->dropped < (int64_t)spec->updates * spec->batch
                              : t->begun < spec->prompts;
    wanted |= t->agains > 0;
    int32_t at = -1;
    if (wanted)
        at = hzp_rollout_table_begin(t, spec->train ? job->done + job->rejected : INT32_MAX);
    if (at >= 0)
        job->slot[at].prompt = (int32_t)((t->group[at].number - 1) % spec->prompts);
    return at >= 0;
}

/* Begins groups and submits their members, as far as the scheduler takes them. */
static int fill(struct hzp_rollouts *r, struct hzp_rollout_job *job, struct hzp_err_text *reterr)
{
    do {
        for (int32_t at = 0; at < job->table.room; at++)
            while (job->table.group[at].state == HZP_GROUP_OPEN &&
                   job->slot[at].submitted < job->spec.n) {
                int code = hzp_rollout_submit(r, job, at, job->slot[at].submitted, reterr);
                if (code < 0)
                    return code == HZP_EBUSY ? HZP_OK : code;
                job->slot[at].submitted++;
            }
    } while (begin_group(job));
    return HZP_OK;
}

/* Rewards a member's answer, or begins to wait for another's reward: NAN.  A rule may take
 * long: it works without the lock. */
static double judge(struct hzp_rollouts *r, const struct hzp_rollout_job *job,
                    const char *reference, struct hzp_rollout_answer *a)
{
    json_t *json = hzp_rollout_text(r, a->rq, false);
    a->awaits = hzp_verifier_is_client(job->spec.verifier);
    bool command = hzp_verifier_is_command(job->spec.verifier);
    a->asks = command || hzp_verifier_is_model(job->spec.verifier);
    if (a->awaits || a->asks) {
        double seconds = hzp_verifier_seconds(job->spec.verifier);
        a->text = json;
        a->deadline_ns = command ? UINT64_MAX : hzp_now_ns() + (uint64_t)(seconds * 1e9);
        return NAN;
    }
    hzp_lock_release(&r->lock);
    double ret = hzp_verify(job->spec.verifier, json_string_value(json), json_string_length(json),
                            hzp_rollout_written(a->rq), reference);
    hzp_lock_take(&r->lock);
    json_decref(json);
    return ret;
}

/* Looks at a member whose request is final. */
static void look_at(struct hzp_rollouts *r, struct hzp_rollout_job *job, int32_t at, int32_t m)
{
    struct hzp_rollout_answer *a = &job->slot[at].answer[m];
    bool whole = hzp_rollout_is_answer(a->rq) && a->stage != HZP_TURN_LOST;
    if (whole && job->spec.turns.most && a->stage != HZP_TURN_OVER)
        return;
    if (whole && !a->text && !a->judged) {
        a->reward = judge(r, job, job->spec.prompt[job->slot[at].prompt].reference, a);
        a->judged = !a->text;
        job->answered++;
        job->truncated += atomic_load(&a->rq->state) == HZP_REQUEST_LENGTH;
    }
    if (a->judged || !whole || hzp_now_ns() > a->deadline_ns)
        hzp_rollout_table_end(&job->table, at, m, a->judged ? a->reward : NAN);
    a->awaits &= job->table.group[at].member[m].state == HZP_MEMBER_OPEN;
}

/* Ends members; groups that are dropped by that let go of their answers. */
static void collect(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    r->running = 0;
    for (int32_t at = 0; at < job->table.room; at++) {
        struct hzp_rollout_group *group = &job->table.group[at];
        for (int32_t m = 0; m < job->spec.n && group->state == HZP_GROUP_OPEN; m++) {
            const struct hzp_request *rq = job->slot[at].answer[m].rq;
            bool open = rq && group->member[m].state == HZP_MEMBER_OPEN;
            r->running += open && !hzp_request_final(rq);
            if (open && hzp_request_final(rq))
                look_at(r, job, at, m);
        }
        if (group->state == HZP_GROUP_FREE && job->slot[at].submitted)
            free_slot(r, job, at);
    }
}

/* ---- updates ---- */

/* Its prompt, and its answer, which is learned with the group's advantage.  Where an update is
 * divided by weights or by tokens, it is the mean over answers of their tokens' mean (grpo), or the
 * mean over tokens.  mean: tokens of an answer of this update. */
static struct hzp_sample *sample_of(const struct hzp_rollout_spec *spec,
                                    const struct hzp_rollout_answer *a, double advantage,
                                    double mean)
{
    const struct hzp_request *rq = a->rq;
    static const int32_t kind[HZP_ROLLOUT_ALGOS] = {HZP_LOSS_PPO, HZP_LOSS_PPO, HZP_LOSS_CISPO,
                                                    HZP_LOSS_IS, HZP_LOSS_GSPO};
    bool grpo = spec->algo == HZP_ROLLOUT_GRPO, gspo = spec->algo == HZP_ROLLOUT_GSPO;
    int32_t n = atomic_load(&rq->out_count), first = rq->prompt_count;
    int32_t written = hzp_rollout_written(rq);
    size_t count = (size_t)(first + n);
    HZP_FREED int32_t *token =
        hzp_xcalloc(count, 2 * sizeof(*token) + sizeof(struct hzp_row_loss) + 1);
    float *weight = (float *)(token + count);
    struct hzp_row_loss *how = (struct hzp_row_loss *)(weight + count);
    uint8_t *learn = (uint8_t *)(how + count);
    memcpy(token, rq->prompt, (size_t)first * sizeof(*token));
    for (int32_t i = 0; i < n; i++) {
        token[first + i] = rq->out[i].token;
        learn[first + i] = hzp_rollout_wrote(rq, i);
        if (!learn[first + i])
            continue;
        weight[first + i] = gspo ? (float)mean : grpo ? (float)mean / (float)written : 1;
        how[first + i] =
            (struct hzp_row_loss){.kind = kind[spec->algo],
                                  .inv_temperature = 1,
                                  .old = HZP_MIN(rq->out[i].logprob, 0),
                                  .advantage = (float)advantage,
                                  .reference = a->reference ? (float)a->reference[i] : 0,
                                  .kl = a->reference ? spec->kl : 0,
                                  .low = gspo ? 3e-4f : 0.2f,
                                  .high = gspo   ? 4e-4f
                                          : grpo ? 0.2f
                                                 : 0.28f};
    }
    return hzp_sample_create_losses(token, learn, weight, how, first + n);
}

/* Of the answers rewarded since the point before; where there is none, of the update's. */
static double mean_reward(const struct hzp_rollout_job *job, const int32_t *group, int32_t groups)
{
    const struct hzp_rollout_table *t = &job->table;
    double sum = t->reward_sum - job->reward_sum, count = (double)(t->rewards - job->rewarded);
    for (int32_t i = 0; i < groups && t->rewards == job->rewarded; i++)
        for (int32_t m = 0; m < job->spec.n; m++) {
            const struct hzp_rollout_member *member = &t->group[group[i]].member[m];
            bool rewarded = member->state == HZP_MEMBER_REWARDED;
            sum += rewarded ? member->reward : 0;
            count += rewarded;
        }
    return sum / HZP_MAX(count, 1);
}

static double mean_tokens(const struct hzp_rollout_job *job, const int32_t *group, int32_t groups)
{
    double answers = 0, tokens = 0;
    for (int32_t i = 0; i < groups; i++)
        for (int32_t m = 0; m < job->spec.n; m++)
            if (job->table.group[group[i]].member[m].state == HZP_MEMBER_REWARDED) {
                answers++;
                tokens += hzp_rollout_written(job->slot[group[i]].answer[m].rq);
            }
    return answers > 0 ? tokens / answers : 1;
}

/* The samples of the taken groups that are not too old. */
static int32_t make_samples(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                            const int32_t *group, int32_t groups, struct hzp_sample **ret)
{
    int64_t now = job->next.optimizer_step;
    double mean = mean_tokens(job, group, groups), tokens = 0;
    int32_t count = 0;
    for (int32_t i = 0; i < groups; i++)
        for (int32_t m = 0; m < job->spec.n; m++) {
            const struct hzp_rollout_member *member = &job->table.group[group[i]].member[m];
            const struct hzp_rollout_answer *a = &job->slot[group[i]].answer[m];
            if (member->state != HZP_MEMBER_REWARDED)
                continue;
            int64_t step = oldest_step(r, a->rq);
            bool fresh = step >= 0 && step <= now && now - step <= job->spec.staleness;
            bool known = job->spec.kl <= 0 || a->reference;
            ret[count] = fresh && known ? sample_of(&job->spec, a, member->advantage, mean) : NULL;
            job->stale += !fresh;
            job->table.lost += !known;
            if (ret[count]) {
                tokens += hzp_rollout_written(a->rq);
                job->next.kl += hzp_rollout_kl(a);
                job->next.staleness = HZP_MAX(job->next.staleness, now - step);
                count++;
            }
        }
    job->next.kl /= HZP_MAX(tokens, 1);
    return count;
}

/* If the groups of an update are ready, and nothing else waits to be learned, commits their
 * samples. */
static int commit(struct hzp_rollouts *r, struct hzp_rollout_job *job, struct hzp_err_text *reterr)
{
    struct hzp_sample_queue_stats queue;
    struct hzp_rollout_table *t = &job->table;
    int32_t group[HZP_ROLLOUT_BATCH_MAX], groups;
    char session[40], note[HZP_ROLLOUT_NOTE];
    int code = HZP_OK;
    hzp_sample_queue_read_stats(hzp_state_queue(r->config.state), &queue);
    if (job->last || queue.samples || !(groups = hzp_rollout_table_take(t, false, group)))
        return HZP_OK;
    struct hzp_sample **sample =
        hzp_xcalloc((size_t)groups * (size_t)job->spec.n, sizeof(struct hzp_sample *));
    job->next =
        (struct hzp_rollout_point){.optimizer_step = weights_stats(r).finished_optimizer_step,
                                   .reward_mean = mean_reward(job, group, groups)};
    job->rewarded = t->rewards;
    job->reward_sum = t->reward_sum;
    note_versions(r);
    int32_t count = job->next.samples = make_samples(r, job, group, groups, sample);
    snprintf(session, sizeof(session), "rollout-%" PRIu64, job->id);
    job->committed += count; /* as what is kept of it says, if they are */
    bool outlives = job->outlives;
    HZP_FREED char *kept = outlives ? hzp_rollout_kept(job) : NULL;
    struct hzp_body_key key = {.session = session, .note_text = kept};
    if (outlives)
        key.note = hzp_rollout_note(job, note);
    if (count)
        code = hzp_state_accept_samples(r->config.state, sample, count, &key, &job->first,
                                        &job->last, reterr);
    else
        free(sample);
    for (int32_t i = 0; i < groups; i++) {
        hzp_rollout_table_release(t, group[i], !count);
        free_slot(r, job, group[i]);
    }
    hzp_loop_poke(r->config.loop);
    return code;
}

/* If the samples that were committed are learned, or never will be, the update counts. */
static int settle(struct hzp_rollouts *r, struct hzp_rollout_job *job, struct hzp_err_text *reterr)
{
    struct hzp_rollout_point *p = &job->next;
    if (!job->last)
        return HZP_OK;
    int64_t through = weights_stats(r).learned_through;
    if (!hzp_state_settled(r->config.state, job->first, job->last, through))
        return HZP_OK;
    bool learned = hzp_state_learned(r->config.state, job->last, through) == HZP_EXAMPLE_LEARNED;
    const struct hzp_version_record *by = NULL; /* the oldest version that has learned them */
    note_versions(r);
    for (int32_t i = 0; i < r->versions; i++)
        if (r->version[i].learned_through >= job->last)
            by = &r->version[i];
    if (by) {
        int64_t more = by->optimizer_step - 1 - p->optimizer_step;
        p->staleness += HZP_MAX(more, 0);
        p->optimizer_step = by->optimizer_step;
        p->version = by->id;
    }
    p->seconds = job->before_s + (double)(hzp_now_ns() - job->begin_ns) * 1e-9;
    job->late += learned && p->staleness > job->spec.staleness ? p->samples : 0;
    job->rejected += !learned;
    if (learned)
        job->point[job->done++] = *p;
    job->last = 0;
    hzp_log(HZP_LOG_INFO, "train",
            "rollouts id=%" PRIu64 " update=%d/%d %s samples=%d reward=%.3f staleness=%" PRId64
            " dropped=%" PRId64,
            job->id, job->done + job->rejected, job->spec.updates, learned ? "learned" : "rejected",
            p->samples, p->reward_mean, p->staleness, job->table.dropped);
    hzp_rollouts_keep(r);
    return hzp_rollout_keep(r, job, false, reterr);
}

/* After a restart: whether samples wait that were committed before it.  Answers that were drawn
 * meanwhile would be too old. */
static bool catches_up(const struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    struct hzp_sample_queue_stats queue;
    if (job->catches_up) {
        hzp_sample_queue_read_stats(hzp_state_queue(r->config.state), &queue);
        job->catches_up = job->last || queue.samples;
    }
    return job->catches_up;
}

/* ---- a job ---- */

/* Why the job ends now; NULL: it goes on.  *ret: how. */
static const char *end_of(const struct hzp_rollouts *r, const struct hzp_rollout_job *job,
                          enum hzp_rollout_status *ret)
{
    const struct hzp_rollout_table *t = &job->table;
    struct hzp_trainer_stats stats;
    int32_t most = HZP_MAX(DROPS_LEAST, HZP_MIN(2 * job->spec.prompts, DROPS_MOST));
    *ret = job->done || !job->spec.train ? HZP_ROLLOUT_SUCCEEDED : HZP_ROLLOUT_FAILED;
    if (!job->spec.train)
        return t->begun == job->spec.prompts && !hzp_rollout_table_count(t, HZP_GROUP_OPEN) &&
                       !hzp_rollout_table_count(t, HZP_GROUP_READY)
                   ? ""
                   : NULL;
    if (job->done + job->rejected == job->spec.updates)
        return job->done ? "" : "no update was learned: the gate refused each";
    if (!job->last)
        return t->dropped_in_row < most ? NULL
                                        : "in the newest groups all answers had the same reward: "
                                          "there is nothing more to learn from them";
    *ret = HZP_ROLLOUT_FAILED;
    hzp_trainer_read_stats(r->config.trainer, &stats);
    return stats.broken ? "training has stopped, as the log says" : NULL;
}

/* Nothing is learned from groups that are ready. */
static void let_go(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    int32_t group[HZP_ROLLOUT_BATCH_MAX], n = hzp_rollout_table_take(&job->table, true, group);
    for (int32_t i = 0; i < n; i++) {
        hzp_rollout_table_release(&job->table, group[i], false);
        free_slot(r, job, group[i]);
    }
}

/* One look at the job that runs. */
static void advance(struct hzp_rollouts *r, struct hzp_rollout_job *job)
{
    struct hzp_err_text err = {.text = ""};
    enum hzp_rollout_status how;
    int code = HZP_OK;
    if (!job->reference && hzp_rollout_take_reference(r, job) < 0)
        return; /* the loop has ended, and the thread ends the job */
    code = hzp_rollout_converse(r, job, &err);
    if (code >= 0)
        code = hzp_rollout_ask(r, job, &err);
    collect(r, job);
    if (code >= 0)
        code = settle(r, job, &err);
    if (code >= 0)
        code = hzp_rollout_refer(r, job, &err);
    if (code >= 0 && job->spec.train)
        code = commit(r, job, &err);
    else
        let_go(r, job);
    const char *why = job->cancel ? "" : end_of(r, job, &how);
    if (why) {
        end_job(r, job, job->cancel ? HZP_ROLLOUT_CANCELLED : how, why);
        return;
    }
    if (code >= 0 && !catches_up(r, job))
        code = fill(r, job, &err);
    if (code < 0) /* cancelled: the scheduler stops before this thread is told to */
        end_job(r, job, HZP_ROLLOUT_FAILED, code == HZP_ECANCELED ? stopped : err.text);
}

/* The oldest job that has not ended, which runs from now on; NULL: none. */
static struct hzp_rollout_job *next_job(struct hzp_rollouts *r)
{
    int32_t i = 0;
    while (i < r->jobs && hzp_rollout_ended(r->job[i]))
        i++;
    if (i < r->jobs && !r->job[i]->slot)
        begin_job(r, r->job[i]);
    return i < r->jobs ? r->job[i] : NULL;
}

void *hzp_rollouts_run(void *arg)
{
    struct hzp_rollouts *r = arg;
    struct hzp_rollout_job *job;
    HZP_LOCKED(&r->lock);
    while (!atomic_load(&r->closing)) {
        job = next_job(r);
        if (job)
            advance(r, job);
        pause_for(r, job ? look_ns : UINT64_MAX);
    }
    while ((job = next_job(r)) != NULL)
        end_job(r, job, job->cancel ? HZP_ROLLOUT_CANCELLED : HZP_ROLLOUT_FAILED,
                job->cancel ? "" : stopped);
    return NULL;
}
