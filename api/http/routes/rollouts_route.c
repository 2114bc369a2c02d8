/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/rollouts              a job that answers prompts, rewards and learns the answers
 * GET /v1/rollouts               all jobs, newest first
 * GET /v1/rollouts/{id}          one, with its curves and the answers that wait for a reward
 * DELETE /v1/rollouts/{id}       cancels it
 * GET /v1/samples                answers that a consumer takes, under a lease
 * PUT /v1/samples/{n}/{column}   a column's value: {"value", "lease"}
 *
 * All want the key that may teach: what is learned changes the model for everybody, and the texts
 * that are shown are other clients'. */
#include "api/http/routes/completion.h"
#include "api/http/routes/metrics.h"
#include "api/http/routes/routes.h"
#include "api/http/wire/fields.h"

/* A job with its curve; samples: of each token up to six numbers, as values and as text. */
enum { JOB_BYTES = 1 << 20, SAMPLES_BYTES = HZP_ROLLOUT_TAKE_TOKENS * 6 * 96 };

/* ---- the body ---- */

static void read_numbers(const json_t *body, struct hzp_rollout_spec *ret)
{
    static const char *const advantages[] = {"std", "mean", "none", "client"};
    int64_t seed = (int64_t)(hzp_now_ns() >> 10);
    ret->train = true;
    ret->temperature = 1;
    ret->n = 8;
    ret->max_tokens = 64;
    ret->updates = 40;
    ret->batch = 4;
    ret->staleness = 1;
    hzp_given_int32(body, "n", &ret->n);
    hzp_given_int32(body, "max_tokens", &ret->max_tokens);
    hzp_given_int32(body, "updates", &ret->updates);
    hzp_given_int32(body, "batch", &ret->batch);
    hzp_given_int32(body, "max_staleness", &ret->staleness);
    hzp_given_int(body, "seed", &seed);
    hzp_given_number(body, "temperature", &ret->temperature);
    hzp_given_bool(body, "train", &ret->train);
    if (ret->train)
        hzp_given_number(body, "kl", &ret->kl);
    ret->client_reference = hzp_given_word(body, "reference", "client");
    ret->seed = (uint64_t)seed;
    ret->algo = HZP_ROLLOUT_GRPO;
    for (int i = 0; i < HZP_ROLLOUT_ALGOS; i++)
        if (hzp_given_word(body, "algo", hzp_rollout_algo_name((enum hzp_rollout_algo)i)))
            ret->algo = (enum hzp_rollout_algo)i;
    ret->advantage = ret->algo == HZP_ROLLOUT_REINFORCE ? HZP_ADVANTAGE_MEAN : HZP_ADVANTAGE_STD;
    for (int i = 0; i < HZP_COUNT(advantages); i++)
        if (hzp_given_word(body, "advantage", advantages[i]))
            ret->advantage = (enum hzp_advantage)i;
}

/* One prompt, as a completion of it or an answer to it would have it. */
static int read_prompt(const struct hzp_engine *engine, const char *list, size_t at, json_t *value,
                       const struct hzp_rollout_spec *spec, struct hzp_rollout_prompt *ret,
                       struct hzp_err_text *reterr)
{
    bool chat = !strcmp(list, "messages");
    HZP_ENDED(hzp_completion_params_fini) struct hzp_completion_params params = {0};
    json_auto_t *body = json_pack("{s:O, s:i, s:O*}", chat ? "messages" : "prompt", value,
                                  "max_tokens", spec->max_tokens, "tools", spec->turns.tools);
    char param[48];
    int r = chat ? hzp_chat_parse(body, engine, &params, reterr)
                 : hzp_completion_parse(body, engine, &params, reterr);
    snprintf(param, sizeof(param), "%s[%zu]", list, at);
    if (r < 0) {
        if (strncmp(reterr->param, "tools", 5) != 0)
            snprintf(reterr->param, sizeof(reterr->param), "%s", param);
        return r;
    }
    if (params.prompts != 1 || !params.prompt[0].n)
        return hzp_wrong(reterr, param, "must be one prompt with tokens");
    ret->messages = spec->turns.most ? json_incref(value) : NULL;
    ret->count = (int32_t)params.prompt[0].n;
    ret->token = hzp_xcalloc(params.prompt[0].n, sizeof(*ret->token));
    memcpy(ret->token, params.prompt[0].ids, params.prompt[0].n * sizeof(*ret->token));
    return HZP_OK;
}

/* A reference: a text, or another value as JSON writes it. */
static int read_reference(const json_t *value, size_t at, char **ret, struct hzp_err_text *reterr)
{
    char param[48];
    if (!value || json_is_null(value))
        return HZP_OK;
    char *text = hzp_json_is_text(value) ? strdup(json_string_value(value))
                                         : json_dumps(value, HZP_JSON_FORM | JSON_ENCODE_ANY);
    snprintf(param, sizeof(param), "answers[%zu]", at);
    if (text && strlen(text) <= HZP_ROLLOUT_REFERENCE_MAX) {
        *ret = text;
        return HZP_OK;
    }
    free(text);
    return hzp_wrong(reterr, param, "must have at most %d bytes", HZP_ROLLOUT_REFERENCE_MAX);
}

static int read_prompts(const struct hzp_engine *engine, const json_t *body,
                        struct hzp_rollout_spec *ret, struct hzp_err_text *reterr)
{
    const json_t *prompts = json_object_get(body, "prompts");
    const json_t *messages = json_object_get(body, "messages");
    const json_t *answers = json_object_get(body, "answers");
    const char *name = prompts ? "prompts" : "messages";
    const json_t *list = prompts ? prompts : messages;
    size_t count = json_array_size(list), tokens = 0;
    if (!list || (prompts && messages))
        return hzp_wrong(reterr, "prompts", "or messages must be given");
    if (prompts && (ret->turns.most || ret->turns.tools))
        return hzp_wrong(reterr, "messages", "must be given with tools or an environment");
    if (!count || count > HZP_ROLLOUT_PROMPTS_MAX)
        return hzp_wrong(reterr, name, "must be a list of 1 to %d", HZP_ROLLOUT_PROMPTS_MAX);
    if (answers && !json_is_null(answers) && json_array_size(answers) != count)
        return hzp_wrong(reterr, "answers", "must be a list of %zu, one for each prompt", count);
    ret->prompt = hzp_xcalloc(count, sizeof(*ret->prompt));
    ret->prompts = (int32_t)count;
    for (size_t i = 0; i < count; i++) {
        HZP_TRY(
            read_prompt(engine, name, i, json_array_get(list, i), ret, &ret->prompt[i], reterr));
        HZP_TRY(read_reference(json_array_get(answers, i), i, &ret->prompt[i].reference, reterr));
        tokens += (size_t)ret->prompt[i].count;
        if (tokens > HZP_ROLLOUT_PROMPT_TOKENS_MAX)
            return hzp_wrong(reterr, name, "have more than %d tokens",
                             HZP_ROLLOUT_PROMPT_TOKENS_MAX);
    }
    return HZP_OK;
}

/* Where there is an environment, in ret->turns. */
static int read_turns(const json_t *body, struct hzp_rollout_turns *ret,
                      struct hzp_err_text *reterr)
{
    const json_t *tools = json_object_get(body, "tools"),
                 *how = json_object_get(body, "environment");
    int64_t most = 8;
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return hzp_wrong(reterr, "tools", "must be a list");
    ret->tools = json_is_array(tools) ? json_incref((json_t *)(uintptr_t)tools) : NULL;
    if (!how || json_is_null(how))
        return HZP_OK;
    ret->client = hzp_given_word(how, "type", "client");
    if (!ret->client && !hzp_given_word(how, "type", "command"))
        return hzp_wrong(reterr, "environment.type", "must be command or client");
    ret->seconds = ret->client ? 600 : 60;
    int r = hzp_field_int(how, "turns", 2, HZP_ROLLOUT_TURNS_MAX, &most, reterr);
    if (r >= 0)
        r = hzp_field_number(how, "timeout", 0.1, 86400, &ret->seconds, reterr);
    ret->most = (int32_t)most;
    return r;
}

static int read_spec(const void *ctx, const json_t *body, struct hzp_rollout_spec *ret,
                     struct hzp_err_text *reterr)
{
    const struct hzp_engine *engine = ctx;
    const json_t *reward = json_object_get(body, "reward");
    if (!json_is_object(reward))
        return hzp_wrong(reterr, "reward", "must be given: {\"type\"}");
    read_numbers(body, ret);
    ret->body = json_copy((json_t *)(uintptr_t)body);
    json_object_set_new(ret->body, "seed", json_integer((json_int_t)ret->seed));
    if (!json_is_null(json_object_get(body, "consumers")))
        ret->consumers = json_incref(json_object_get(body, "consumers"));
    HZP_TRY(hzp_verifier_create(reward, &ret->verifier, reterr));
    HZP_TRY(read_turns(body, &ret->turns, reterr));
    return read_prompts(engine, body, ret, reterr);
}

void hzp_rollouts_go_on(struct hzp_engine *engine)
{
    if (engine->rollouts)
        hzp_rollouts_resume(engine->rollouts, read_spec, engine);
}

/* ---- routes ---- */

/* The number in "rollout-7", or "7"; 0: none. */
static uint64_t id_of(const char *tail)
{
    static const char before[] = "rollout-";
    bool named = !strncmp(tail, before, sizeof(before) - 1);
    int64_t id = hzp_path_number(named ? tail + sizeof(before) - 1 : tail, 0);
    return (uint64_t)HZP_MAX(id, 0);
}

static void audit(struct hzp_exchange *x, const char *action, uint64_t id)
{
    hzp_route_audit(x, action, json_pack("{s:I}", "rollout", (json_int_t)id));
}

int hzp_rollouts_post(struct hzp_engine *engine, const json_t *body, uint64_t *ret_id,
                      struct hzp_err_text *reterr)
{
    struct hzp_rollout_spec spec = {.prompts = 0};
    int r = read_spec(engine, body, &spec, reterr);
    if (r >= 0)
        r = hzp_rollouts_add(engine->rollouts, &spec, ret_id, reterr);
    hzp_rollout_spec_fini(&spec);
    return r;
}

int hzp_route_rollouts_post(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_engine *engine = x->server->engine;
    uint64_t id;
    HZP_TRY(hzp_rollouts_post(engine, x->asked, &id, reterr));
    audit(x, "rollouts", id);
    return hzp_reply_json(x, MHD_HTTP_OK, hzp_rollouts_job(engine->rollouts, id));
}

int hzp_route_rollouts(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return hzp_reply_pack(x, "{s:s, s:o}", "object", "list", "data",
                          hzp_rollouts_list(x->server->engine->rollouts));
}

int hzp_route_rollout(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    if (!hzp_exchange_make(x, JOB_BYTES))
        return hzp_reply_no_memory(x);
    json_t *job = hzp_rollouts_job(x->server->engine->rollouts, id_of(x->tail));
    if (!job)
        return hzp_fail(reterr, HZP_ENOENT, "there is no job \"%.60s\"", x->tail);
    return hzp_reply_json(x, MHD_HTTP_OK, job);
}

int hzp_route_rollout_delete(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    uint64_t id = id_of(x->tail);
    HZP_TRY(hzp_rollouts_cancel(x->server->engine->rollouts, id, reterr));
    audit(x, "rollouts cancelled", id);
    return hzp_reply_json(x, MHD_HTTP_OK, hzp_rollouts_job(x->server->engine->rollouts, id));
}

static int fail_sample(struct hzp_exchange *x, int code, const struct hzp_err_text *err)
{
    if (code != HZP_EUNSUP)
        return code;
    return hzp_reply_error(x, MHD_HTTP_CONFLICT, err->param, NULL, "%s", err->text);
}

int hzp_route_samples(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const char *columns = hzp_exchange_query(x, "columns"), *order = hzp_exchange_query(x, "order");
    const char *groups = hzp_exchange_query(x, "groups");
    struct hzp_rows_query query = {.consumer = hzp_exchange_query(x, "consumer"),
                                   .count = (int32_t)hzp_query_int(x, "count"),
                                   .tokens = HZP_ROLLOUT_TAKE_TOKENS,
                                   .columns = groups && !strcmp(groups, "true") ? HZP_ROW_WHOLE : 0,
                                   .newest = order && !strcmp(order, "newest"),
                                   .lease_ns = (uint64_t)(hzp_query_number(x, "lease") * 1e9)};
    json_t *answer = NULL;
    size_t memory = (size_t)x->server->settings->body_memory;
    if (!hzp_exchange_make(x, HZP_MIN(SAMPLES_BYTES, memory / 2)))
        return hzp_reply_no_memory(x);
    int code = hzp_rollouts_take(x->server->engine->rollouts, &query, columns ? columns : "text",
                                 hzp_query_int(x, "done"), &answer, reterr);
    if (code < 0)
        return fail_sample(x, code, reterr);
    return hzp_reply_json(x, MHD_HTTP_OK, answer);
}

int hzp_route_sample_put(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const char *slash = strchr(x->tail, '/'), *column = slash ? slash + 1 : "";
    int64_t sample = hzp_path_number(x->tail, '/'), lease = 0;
    json_t *value = json_object_get(x->asked, "value");
    hzp_given_int(x->asked, "lease", &lease);
    int code = hzp_rollouts_put(x->server->engine->rollouts, sample, column, value, lease, reterr);
    if (code < 0)
        return fail_sample(x, code, reterr);
    return hzp_reply_pack(x, "{s:s, s:I, s:O}", "object", "sample", "sample", (json_int_t)sample,
                          column, value);
}

/* ---- metrics ---- */

void hzp_rollouts_metrics(struct hzp_page *page, const struct hzp_engine *engine)
{
    struct hzp_rollouts_stats s;
    if (!engine->rollouts)
        return;
    hzp_rollouts_read_stats(engine->rollouts, &s);
    hzp_page_sources(page, &(struct hzp_metric_sources){.rollouts = &s});
}
