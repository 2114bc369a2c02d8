/* SPDX-License-Identifier: Apache-2.0 */
#include "api/rollout/rollouts.h"

#include "api/learn/lessons.h"
#include "api/rollout/rollouts_state.h"
#include "base/log.h"
#include "base/words.h"

enum { TOKEN_TEXT = 2 * HZP_ROLLOUT_BESIDE /* bytes: as a text, and in messages */ };
static const char list_note[] = "rollouts-0"; /* jobs as they are shown, without texts */

const char *hzp_rollout_algo_name(enum hzp_rollout_algo algo)
{
    static const char *const name[HZP_ROLLOUT_ALGOS] = {"grpo", "dapo", "cispo", "reinforce",
                                                        "gspo"};
    return name[algo];
}

void hzp_rollout_free_prompts(struct hzp_rollout_spec *spec)
{
    for (int32_t i = 0; i < spec->prompts; i++) {
        free(spec->prompt[i].token);
        free(spec->prompt[i].reference);
        json_decref(spec->prompt[i].messages);
    }
    free(spec->prompt);
    spec->prompt = NULL;
    spec->prompts = 0;
}

void hzp_rollout_spec_fini(struct hzp_rollout_spec *spec)
{
    hzp_rollout_free_prompts(spec);
    hzp_verifier_destroy(spec->verifier);
    json_decref(spec->consumers);
    json_decref(spec->turns.tools);
    json_decref(spec->body);
    *spec = (struct hzp_rollout_spec){.prompts = 0};
}

/* ---- what is shown, and kept for after a restart: no texts ---- */

const char *hzp_rollout_status_name(enum hzp_rollout_status status)
{
    static const char *const name[] = {"queued", "running", "succeeded", "failed", "cancelled"};
    return name[status];
}

json_t *hzp_rollout_points(const struct hzp_rollout_job *job)
{
    json_t *ret = json_array();
    for (int32_t i = 0; i < job->done; i++) {
        const struct hzp_rollout_point *p = &job->point[i];
        json_array_append_new(ret,
                              json_pack("{s:i, s:I, s:I, s:f, s:I, s:i, s:f}", "update", (int)i + 1,
                                        "optimizer_step", (json_int_t)p->optimizer_step,
                                        "weights_version", (json_int_t)p->version, "reward_mean",
                                        p->reward_mean, "staleness", (json_int_t)p->staleness,
                                        "samples", (int)p->samples, "seconds", p->seconds));
        if (job->spec.kl > 0)
            json_object_set_new(json_array_get(ret, (size_t)i), "kl", json_real(p->kl));
    }
    return ret;
}

static int32_t count_waiting(const struct hzp_rollout_job *job)
{
    int32_t n = 0;
    for (int32_t i = 0; job->slot && i < job->table.room * job->spec.n; i++)
        n += hzp_rollout_at(job, i)->awaits ||
             (job->spec.turns.client && hzp_rollout_at(job, i)->stage == HZP_TURN_ASKED);
    return n;
}

/* A job that was cancelled is shown so at once, while its answers are still being let go of. */
static enum hzp_rollout_status shown_status(const struct hzp_rollout_job *job)
{
    bool cancelled = job->cancel && !hzp_rollout_ended(job);
    return job->goes_on ? HZP_ROLLOUT_QUEUED : cancelled ? HZP_ROLLOUT_CANCELLED : job->status;
}

static json_t *show(const struct hzp_rollout_job *job, bool whole)
{
    const struct hzp_rollout_table *g = &job->table;
    const struct hzp_rollout_spec *spec = &job->spec;
    json_t *ret = json_pack("{s:o, s:s, s:s, s:I, s:o, s:b, s:s, s:i, s:i, s:i}", "id",
                            json_sprintf("rollout-%" PRIu64, job->id), "object", "rollout",
                            "status", hzp_rollout_status_name(shown_status(job)), "created_at",
                            (json_int_t)job->created_s, "reason",
                            job->why[0] ? json_string(job->why) : json_null(), "train", spec->train,
                            "algo", hzp_rollout_algo_name(spec->algo), "n", (int)spec->n, "batch",
                            (int)spec->batch, "max_staleness", (int)spec->staleness);
    json_object_set_new(ret, "updates",
                        json_pack("{s:i, s:i, s:i}", "wanted", spec->train ? (int)spec->updates : 0,
                                  "learned", (int)job->done, "rejected", (int)job->rejected));
    json_object_set_new(ret, "groups",
                        json_pack("{s:I, s:i, s:i, s:I}", "begun", (json_int_t)g->begun, "open",
                                  (int)hzp_rollout_table_count(g, HZP_GROUP_OPEN), "ready",
                                  (int)hzp_rollout_table_count(g, HZP_GROUP_READY), "dropped",
                                  (json_int_t)(spec->train ? g->dropped : 0)));
    json_object_set_new(ret, "samples",
                        json_pack("{s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "answered",
                                  (json_int_t)job->answered, "waiting", (int)count_waiting(job),
                                  "truncated", (json_int_t)job->truncated, "rewarded",
                                  (json_int_t)g->rewards, "lost", (json_int_t)g->lost, "committed",
                                  (json_int_t)job->committed, "stale", (json_int_t)job->stale,
                                  "late", (json_int_t)job->late));
    json_object_set_new(ret, "reward_mean",
                        g->rewards ? json_real(g->reward_sum / (double)g->rewards) : json_null());
    if (whole)
        json_object_set_new(ret, "curve", hzp_rollout_points(job));
    if (spec->consumers)
        json_object_set(ret, "consumers", spec->consumers);
    if (spec->turns.most)
        json_object_set_new(json_object_get(ret, "samples"), "turns", json_integer(job->turns));
    return ret;
}

/* Of a job as it is shown; 0: none. */
static uint64_t id_of(const json_t *shown)
{
    const char *name = json_string_value(json_object_get(shown, "id"));
    uint64_t id;
    return name && sscanf(name, "rollout-%" SCNu64, &id) == 1 ? id : 0;
}

static json_t *show_all(const struct hzp_rollouts *r)
{
    json_t *ret = json_array(), *past;
    size_t i;
    for (int32_t j = r->jobs - 1; j >= 0; j--)
        json_array_append_new(ret, show(r->job[j], false));
    json_array_foreach(r->past, i, past)
    {
        bool again = false; /* it goes on, and is not taken from the list yet */
        for (int32_t j = 0; j < r->jobs; j++)
            again |= id_of(past) == r->job[j]->id;
        if (!again)
            json_array_append_new(ret, json_deep_copy(past));
    }
    return ret;
}

/* Whether the next server is to go on with a job that is shown so. */
static bool is_open(const json_t *shown)
{
    const char *status = json_string_value(json_object_get(shown, "status"));
    return status && hzp_among("queued running", status);
}

void hzp_rollouts_keep(const struct hzp_rollouts *r)
{
    struct hzp_err_text err = {.text = ""};
    if (!r->config.state)
        return;
    json_auto_t *all = show_all(r);
    HZP_FREED char *text = json_dumps(all, JSON_COMPACT);
    if (hzp_state_put_note(r->config.state, list_note, text, &err) < 0)
        hzp_log(HZP_LOG_WARN, "state", "the list of rollouts is not kept: %s", err.text);
}

static void restore(struct hzp_rollouts *r)
{
    json_t *job;
    size_t i;
    HZP_FREED char *text = r->config.state ? hzp_state_note(r->config.state, list_note) : NULL;
    r->past = text ? json_loads(text, 0, NULL) : NULL;
    if (!json_is_array(r->past)) {
        json_decref(r->past);
        r->past = json_array();
    }
    json_array_foreach(r->past, i, job)
    {
        uint64_t id = id_of(job);
        r->last_id = HZP_MAX(r->last_id, id);
    }
}

/* ---- jobs ---- */

static void destroy_job(struct hzp_rollout_job *job)
{
    hzp_rollout_spec_fini(&job->spec);
    hzp_rollout_table_fini(&job->table);
    free(job->point);
    free(job);
}

/* ---- accepting ---- */

static int check_training(const struct hzp_rollouts *r, const struct hzp_rollout_spec *spec,
                          struct hzp_err_text *reterr)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < spec->prompts; i++)
        longest = HZP_MAX(longest, spec->prompt[i].count + spec->max_tokens);
    int64_t tokens = (int64_t)spec->batch * spec->n * longest;
    if (r->config.untrained || !r->config.state)
        return hzp_fail_param(reterr, HZP_EINVAL, "train", "%s",
                              r->config.untrained ? r->config.untrained
                                                  : "this server does not learn");
    if (spec->temperature != 1)
        return hzp_wrong(
            reterr, "temperature",
            "must be 1 where rollouts train: log-probabilities are those of temperature 1");
    if (spec->client_reference && spec->kl <= 0)
        return hzp_wrong(reterr, "reference", "is of use with kl only");
    if (json_array_size(spec->consumers))
        return hzp_wrong(reterr, "consumers", "need train false: what is learned leaves");
    if (spec->n < 2 && spec->advantage < HZP_ADVANTAGE_NONE)
        return hzp_wrong(reterr, "n", "must be 2 or more where advantages are compared in a group");
    if (longest > hzp_state_examples(r->config.state)->tokens_max)
        return hzp_fail_param(reterr, HZP_EINVAL, "max_tokens",
                              "a prompt and its answer may have %d tokens, an example has %d at "
                              "most",
                              longest, hzp_state_examples(r->config.state)->tokens_max);
    if (tokens > r->config.update_tokens)
        return hzp_fail_param(reterr, HZP_EINVAL, "batch",
                              "an update of %d groups of %d answers may have %" PRId64 " tokens, "
                              "this server's have %d: start it with --update-tokens %" PRId64
                              ", or ask for less",
                              spec->batch, spec->n, tokens, r->config.update_tokens, tokens);
    return HZP_OK;
}

/* Whether it could serve a prompt's shortest question to the model, and an answer in it. */
static int check_question(const struct hzp_rollouts *r, const struct hzp_rollout_spec *spec,
                          const struct hzp_request *rq, const char *answer,
                          struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens tokens = {NULL, 0, 0};
    struct hzp_request *asked;
    if (!hzp_verifier_is_model(spec->verifier))
        return HZP_OK;
    int code = hzp_rollout_question(r, spec->verifier, rq, NULL, answer, 0, &tokens, reterr);
    if (code >= 0 &&
        hzp_request_create(tokens.ids, (int32_t)tokens.n, spec->max_tokens, 0, false, &asked) < 0)
        code = hzp_fail(reterr, HZP_ENOMEM, "no memory for this job now");
    HZP_TRY(code);
    code = hzp_scheduler_check(r->config.scheduler, asked, reterr);
    if (code < 0)
        snprintf(reterr->param, sizeof(reterr->param), "reward.template");
    hzp_request_destroy(asked);
    return code;
}

/* Whether the scheduler could serve each prompt. */
static int check_served(const struct hzp_rollouts *r, const struct hzp_rollout_spec *spec,
                        struct hzp_err_text *reterr)
{
    struct hzp_request *rq;
    for (int32_t i = 0; i < spec->prompts; i++) {
        const struct hzp_rollout_prompt *p = &spec->prompt[i];
        if (hzp_request_create(p->token, p->count, spec->max_tokens, 0, false, &rq) < 0)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for this job now");
        int code = hzp_scheduler_check(r->config.scheduler, rq, reterr);
        if (code >= 0)
            code = check_question(r, spec, rq, p->reference, reterr);
        hzp_request_destroy(rq);
        HZP_TRY(code);
    }
    return HZP_OK;
}

int64_t hzp_rollout_group_bytes(const struct hzp_rollout_spec *spec)
{
    int64_t longest = 0, kept = spec->max_tokens;
    for (int32_t i = 0; i < spec->prompts; i++)
        longest = HZP_MAX(longest, spec->prompt[i].count);
    int64_t token = (int64_t)(sizeof(struct hzp_output) + sizeof(double)) + TOKEN_TEXT;
    int64_t ret = (int64_t)(sizeof(struct hzp_request) + sizeof(struct hzp_rollout_answer)) +
                  longest * (int64_t)sizeof(int32_t) +
                  (kept + spec->turns.most * HZP_ROLLOUT_BESIDE) * token;
    if (spec->kl > 0 && !spec->client_reference)
        ret += (longest + kept) * (int64_t)(sizeof(struct hzp_output) + sizeof(int32_t));
    return ret * spec->n;
}

static int check(const struct hzp_rollouts *r, const struct hzp_rollout_spec *spec,
                 struct hzp_err_text *reterr)
{
    int64_t members = (int64_t)spec->n * spec->batch * (spec->staleness + 1);
    size_t consumers = json_array_size(spec->consumers);
    bool named = !spec->consumers || (consumers && consumers <= HZP_CONSUMERS_MAX);
    for (size_t i = 0; i < consumers; i++)
        named &= hzp_is_consumer(json_string_value(json_array_get(spec->consumers, i)));
    if (!named)
        return hzp_wrong(reterr, "consumers", "must be a list of 1 to %d names", HZP_CONSUMERS_MAX);
    for (int32_t i = 0; i < spec->prompts; i++)
        if (hzp_verifier_needs_reference(spec->verifier) && !spec->prompt[i].reference)
            return hzp_fail_param(reterr, HZP_EINVAL, "answers",
                                  "a reward of type %s needs answers, one for each prompt",
                                  hzp_verifier_name(spec->verifier));
    if (!r->config.command && hzp_verifier_is_command(spec->verifier))
        return hzp_fail_param(reterr, HZP_EINVAL, "reward.type",
                              "this server was started without a command for rewards: its "
                              "operator gives one by HZP_REWARD_COMMAND in its environment");
    if (!r->config.tools && spec->turns.most && !spec->turns.client)
        return hzp_fail_param(reterr, HZP_EINVAL, "environment.type",
                              "this server was started without a command for tools: its operator "
                              "gives one by HZP_TOOL_COMMAND in its environment");
    if (members > HZP_ROLLOUT_MEMBERS_MAX)
        return hzp_fail_param(reterr, HZP_EINVAL, "n",
                              "n * batch * (max_staleness + 1) is %" PRId64 ", at most %d", members,
                              HZP_ROLLOUT_MEMBERS_MAX);
    int64_t bytes = (spec->train ? spec->batch : 1) * hzp_rollout_group_bytes(spec);
    if (bytes > r->config.bytes)
        return hzp_fail_param(reterr, HZP_EINVAL, "n",
                              "the answers of %s may take %" PRId64 " bytes, this server holds "
                              "%" PRId64 " (--queue rollouts=%" PRId64 "): ask for less",
                              spec->train ? "an update" : "a prompt", bytes, r->config.bytes,
                              bytes);
    struct hzp_weights_stats weights;
    hzp_weights_read_stats(r->config.weights, &weights);
    bool pinned = hzp_verifier_is_pinned(spec->verifier), kl = spec->kl > 0;
    if (r->config.trainer && (pinned || (kl && !spec->client_reference)) && weights.slots < 3)
        return hzp_wrong(reterr, pinned ? "reward.pinned" : "kl",
                         "needs a slot for the reference, whose weights stay as they are: start "
                         "the server with --slots 3");
    if (spec->train)
        HZP_TRY(check_training(r, spec, reterr));
    return check_served(r, spec, reterr);
}

/* Adds what the job has counted. */
static void count(const struct hzp_rollout_job *job, struct hzp_rollouts_stats *ret)
{
    ret->samples += (uint64_t)job->committed;
    ret->dropped += (uint64_t)job->table.dropped;
    ret->lost += (uint64_t)job->table.lost;
    ret->stale += (uint64_t)job->stale;
    ret->late += (uint64_t)job->late;
    ret->updates += (uint64_t)job->done;
    if (job->done) {
        ret->reward_mean = job->point[job->done - 1].reward_mean;
        ret->staleness = job->point[job->done - 1].staleness;
    }
}

/* The oldest job that has ended makes room, with its curve. */
static void make_room(struct hzp_rollouts *r)
{
    int32_t ended = 0, oldest = -1;
    size_t past = json_array_size(r->past);
    if (past && (size_t)r->jobs + past >= HZP_ROLLOUTS_KEPT) {
        hzp_rollout_keep_curve(r, id_of(json_array_get(r->past, past - 1)), NULL);
        json_array_remove(r->past, past - 1);
    }
    for (int32_t i = r->jobs - 1; i >= 0; i--)
        if (hzp_rollout_ended(r->job[i])) {
            ended++;
            oldest = i;
        }
    if (ended < HZP_ROLLOUTS_KEPT)
        return;
    count(r->job[oldest], &r->gone);
    hzp_rollout_keep_curve(r, r->job[oldest]->id, NULL);
    destroy_job(r->job[oldest]);
    r->jobs--;
    memmove(r->job + oldest, r->job + oldest + 1,
            (size_t)(r->jobs - oldest) * sizeof(struct hzp_rollout_job *));
}

static int enqueue(struct hzp_rollouts *r, struct hzp_rollout_job *job, struct hzp_err_text *reterr)
{
    int32_t open = 0;
    for (int32_t i = 0; i < r->jobs; i++)
        open += !hzp_rollout_ended(r->job[i]);
    if (atomic_load(&r->closing))
        return hzp_fail(reterr, HZP_ECANCELED, "the server is stopping");
    if (open == HZP_ROLLOUTS_OPEN)
        return hzp_fail(reterr, HZP_EBUSY, "%d jobs of rollouts have not ended", open);
    if (!job->id) {
        make_room(r);
        job->id = r->last_id + 1;
        HZP_TRY(hzp_rollout_keep(r, job, true, reterr));
    }
    r->last_id = HZP_MAX(r->last_id, job->id);
    r->job[r->jobs++] = job;
    hzp_rollouts_keep(r);
    return HZP_OK;
}

/* id 0: of a new job. */
static int add(struct hzp_rollouts *r, struct hzp_rollout_spec *spec, uint64_t id, uint64_t *ret_id,
               struct hzp_err_text *reterr)
{
    struct hzp_rollout_job *job = hzp_xcalloc(1, sizeof(*job));
    job->spec = *spec;
    job->id = id;
    *spec = (struct hzp_rollout_spec){.prompts = 0};
    int code = check(r, &job->spec, reterr);
    if (code >= 0) {
        job->group_bytes = hzp_rollout_group_bytes(&job->spec);
        struct hzp_rollout_table_config table = {
            .members = job->spec.n,
            .batch = job->spec.batch,
            .staleness = job->spec.staleness,
            .most = (int32_t)HZP_MIN(r->config.bytes / job->group_bytes, INT32_MAX),
            .advantage = job->spec.advantage,
            .keep = !job->spec.train};
        hzp_rollout_table_init(&job->table, &table);
        job->point = hzp_xcalloc((size_t)job->spec.updates, sizeof(*job->point));
        job->created_s = hzp_unix_ms() / 1000;
        job->outlives = job->spec.train && job->spec.body && !hzp_rollout_holds(&job->spec);
        hzp_lock_take(&r->lock);
        code = id ? hzp_rollout_restore(r, job, reterr) : HZP_OK;
        if (code >= 0)
            code = enqueue(r, job, reterr);
        *ret_id = job->id;
        json_decref(job->spec.body); /* the log has it */
        job->spec.body = NULL;
        hzp_lock_release(&r->lock);
        hzp_wake_poke(&r->wake);
    }
    if (code < 0)
        destroy_job(job);
    return code;
}

int hzp_rollouts_add(struct hzp_rollouts *r, struct hzp_rollout_spec *spec, uint64_t *ret_id,
                     struct hzp_err_text *reterr)
{
    return add(r, spec, 0, ret_id, reterr);
}

/* Goes on with a job that had not ended.  False: it has failed, as `past` says then. */
static bool resume(struct hzp_rollouts *r, json_t *past, hzp_rollout_reader *read, const void *ctx)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_rollout_spec spec = {.prompts = 0};
    uint64_t id = id_of(past);
    json_auto_t *body = hzp_rollout_body(r, id);
    int code = body ? read(ctx, body, &spec, &err) : HZP_ENOENT;
    if (code >= 0)
        code = add(r, &spec, id, &id, &err);
    hzp_rollout_spec_fini(&spec);
    if (code >= 0)
        return true;
    if (body)
        hzp_rollout_forget(r, id);
    HZP_LOCKED(&r->lock);
    json_object_set_new(past, "status", json_string("failed"));
    json_object_set_new(past, "reason",
                        json_sprintf("the server stopped while it ran: what it had committed is "
                                     "learned from the log; post it again for the updates that "
                                     "are missing%s%s",
                                     *err.text ? ". It cannot go on: " : "", err.text));
    return false;
}

void hzp_rollouts_resume(struct hzp_rollouts *r, hzp_rollout_reader *read, const void *ctx)
{
    for (size_t i = json_array_size(r->past); i-- > 0;) { /* the oldest first */
        json_t *past = json_array_get(r->past, i);
        if (is_open(past) && resume(r, past, read, ctx)) {
            HZP_LOCKED(&r->lock);
            json_array_remove(r->past, i);
        }
    }
    HZP_LOCKED(&r->lock);
    hzp_rollouts_keep(r);
}

/* ---- asking ---- */

/* NULL: there is none of this run. */
static struct hzp_rollout_job *find(const struct hzp_rollouts *r, uint64_t id)
{
    for (int32_t i = 0; i < r->jobs; i++)
        if (r->job[i]->id == id)
            return r->job[i];
    return NULL;
}

int hzp_rollouts_cancel(struct hzp_rollouts *r, uint64_t id, struct hzp_err_text *reterr)
{
    hzp_lock_take(&r->lock);
    struct hzp_rollout_job *job = find(r, id);
    bool open = job && !hzp_rollout_ended(job);
    if (open) {
        job->cancel = true;
        if (!job->slot) {
            job->status = HZP_ROLLOUT_CANCELLED;
            hzp_rollout_free_prompts(&job->spec);
        }
        hzp_rollouts_keep(r);
        if (job->outlives)
            hzp_rollout_forget(r, job->id);
        job->outlives = false;
    }
    hzp_lock_release(&r->lock);
    hzp_wake_poke(&r->wake);
    return open ? HZP_OK
                : hzp_fail(reterr, HZP_ENOENT, "there is no job rollout-%" PRIu64 " that runs", id);
}

void hzp_rollouts_read_stats(struct hzp_rollouts *r, struct hzp_rollouts_stats *ret)
{
    HZP_LOCKED(&r->lock);
    *ret = r->gone;
    for (int32_t i = 0; i < r->jobs; i++) {
        count(r->job[i], ret);
        ret->jobs += !hzp_rollout_ended(r->job[i]);
        ret->waiting += count_waiting(r->job[i]);
        ret->ready += hzp_rollout_table_count(&r->job[i]->table, HZP_GROUP_READY);
        if (r->job[i]->slot)
            ret->bytes = r->job[i]->group_bytes *
                         (r->job[i]->table.room -
                          hzp_rollout_table_count(&r->job[i]->table, HZP_GROUP_FREE));
    }
    ret->members = r->running;
    ret->bytes_most = r->config.bytes;
    ret->rows = hzp_rollout_rows(r);
    ret->leases = r->rows.given;
    ret->expired = r->rows.expired;
}

json_t *hzp_rollouts_job(struct hzp_rollouts *r, uint64_t id)
{
    json_t *name = json_sprintf("rollout-%" PRIu64, id), *ret = NULL, *past;
    size_t i;
    HZP_LOCKED(&r->lock);
    const struct hzp_rollout_job *job = find(r, id);
    if (job)
        ret = show(job, true);
    json_array_foreach(r->past, i, past) if (!ret && json_equal(json_object_get(past, "id"), name))
        json_object_set_new(ret = json_deep_copy(past), "curve", hzp_rollout_curve(r, id));
    json_decref(name);
    return ret;
}

json_t *hzp_rollouts_list(struct hzp_rollouts *r)
{
    HZP_LOCKED(&r->lock);
    return show_all(r);
}

/* ---- the handle ---- */

static void destroy(struct hzp_rollouts *r)
{
    for (int32_t i = 0; i < r->jobs; i++)
        destroy_job(r->job[i]);
    json_decref(r->past);
    hzp_judge_destroy(r->judge);
    hzp_judge_destroy(r->tools);
    json_decref(r->ends);
    hzp_wake_fini(&r->wake);
    hzp_lock_fini(&r->lock);
    free(r);
}

void hzp_rollouts_renew(struct hzp_rollouts *r)
{
    hzp_judge_destroy(r->judge);
    hzp_judge_destroy(r->tools);
    r->judge = r->config.command ? hzp_judge_create(r->config.command, "reward") : NULL;
    r->tools = r->config.tools ? hzp_judge_create(r->config.tools, "tool") : NULL;
}

struct hzp_rollouts *hzp_rollouts_start(const struct hzp_rollouts_config *config)
{
    struct hzp_rollouts *r = hzp_xcalloc(1, sizeof(*r));
    r->config = *config;
    /* a client of an earlier run rewards none of these */
    r->last_sample = r->rows.last_lease = hzp_unix_ms();
    hzp_rollouts_renew(r);
    r->ends = json_array();
    for (int32_t i = 0; i < config->model->eos_count; i++) {
        size_t bytes;
        const char *text = hzp_tokenizer_spelling(config->tok, config->model->eos[i], &bytes);
        if (text)
            json_array_append_new(r->ends, json_stringn(text, bytes));
    }
    hzp_wake_init(&r->wake);
    hzp_lock_init(&r->lock, HZP_LOCK_ROLLOUTS);
    restore(r);
    if (hzp_thread_start(&r->thread, "hzp-rollout", hzp_rollouts_run, r) == HZP_OK)
        return r;
    destroy(r);
    return NULL;
}

void hzp_rollouts_close(struct hzp_rollouts *r)
{
    if (!r)
        return;
    atomic_store(&r->closing, true);
    hzp_wake_poke(&r->wake);
}

void hzp_rollouts_stop(struct hzp_rollouts *r)
{
    if (!r)
        return;
    hzp_rollouts_close(r);
    pthread_join(r->thread, NULL);
    destroy(r);
}
