/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve rollout: a running server learns from its own answers (api/rollout/rollouts.h), and the
 * curve of the reward is drawn while it does.
 *
 *     rollout REWARD [PROMPT..]     posts a job and follows it; prompts also from --data
 *     rollout JOB                   follows a job, rollout-7, that was posted before
 *
 * REWARD is a type, TYPE=VALUE for one that has a value (regex=PATTERN), or the JSON of the field
 * `reward`.  Before a job that learns is posted, the version that serves gets the name
 * `before-rollouts`, unless it is the model as it was started: the server can go back to it.
 *
 * Ctrl-C cancels a job that this command has posted, and leaves another one alone; a second Ctrl-C,
 * SIGTERM and SIGHUP leave it to itself.  The exit status is 0 if it succeeded, 1 if not, 130 or
 * 143 after a signal.
 *
 *     train MODEL [REWARD] --algo NAME --data FILE --out OUT
 *
 * begins the same job in an engine of this process, which has no port.  The curve goes to
 * OUT/train.jsonl, too, log and checkpoints to OUT/state, and the trained model to OUT.  A signal
 * ends it in order, a second one at once, and --resume goes on from the newest checkpoint.
 */
#include "api/cli/commands.h"
#include "api/cli/signals.h"
#include "api/cli/transfer.h"
#include "api/http/routes/field_table.h"
#include "api/http/routes/routes.h"
#include "api/http/wire/fields.h"
#include "api/learn/checkpoint.h"
#include "base/file.h"

#include <signal.h>
#include <sys/stat.h>

enum { BAR = 32, LINES_MAX = 16384 };
static const char kept_name[] = "before-rollouts";

static const struct timespec look_pause = {.tv_nsec = 300000000};

struct follow {
    const struct hzp_options *options;
    struct hzp_http_host server;
    struct hzp_engine *engine; /* this process's own; NULL: it asks a server */
    uint64_t number;           /* with it: the job's */
    FILE *log;                 /* receives the curve; NULL: none */
    char id[64], back[64];     /* back: what undo takes to go back; "": not known */
    bool own, cancelled;       /* this command has posted it, and has cancelled it */
    size_t shown;              /* points of the curve */
    bool told_queued;
    json_int_t told_waiting;
};

static volatile sig_atomic_t interrupts, left;

static void on_signal(int number)
{
    if (number == SIGINT)
        interrupts = interrupts + 1;
    else
        left = number;
}

/* ---- the job ---- */

/* The field `reward`; NULL: the word is none. */
static json_t *reward_of(const char *word)
{
    static const char *const value_of[][2] = {
        {"regex", "pattern"}, {"length", "tokens"}, {"client", "timeout"}};
    size_t n = strcspn(word, "=");
    if (*word == '{')
        return hzp_json_load(word, strlen(word), HZP_JSON_UNIQUE, NULL, NULL);
    json_t *ret = json_pack("{s:s%}", "type", word, n);
    for (int i = 0; word[n] && i < HZP_COUNT(value_of); i++) {
        if (strlen(value_of[i][0]) != n || strncmp(word, value_of[i][0], n) != 0)
            continue;
        json_t *value =
            i ? hzp_json_load(word + n + 1, strlen(word + n + 1), HZP_JSON_ANY, NULL, NULL)
              : json_string(word + n + 1);
        if (json_object_set_new(ret, value_of[i][1], value) == 0)
            return ret;
    }
    if (!word[n])
        return ret;
    json_decref(ret);
    return NULL;
}

/* Adds what the line has to the job: {"prompt" | "messages", "answer"}, by the names that the
 * options give. */
static int add_line(const struct hzp_options *options, const json_t *line, json_t *body,
                    struct hzp_err_text *reterr)
{
    const char *prompt = options->train.fields.prompt, *answer = options->train.fields.completion;
    json_t *text = json_object_get(line, prompt ? prompt : "prompt");
    json_t *messages = json_object_get(line, "messages");
    json_t *right = json_object_get(line, answer ? answer : "answer");
    json_t *reward = json_object_get(line, "reward");
    const char *list = text ? "prompts" : "messages", *other = text ? "messages" : "prompts";
    if (!right && !answer)
        right = json_object_get(line, "completion");
    if (!text && !messages)
        return hzp_fail(reterr, HZP_EFORMAT, "it has neither \"%.60s\" nor \"messages\"",
                        prompt ? prompt : "prompt");
    if (json_object_get(body, other))
        return hzp_fail(reterr, HZP_EFORMAT, "it has %s, and prompts before it have not",
                        text ? "a text" : "messages");
    if (json_is_object(reward) && !json_object_get(body, "reward"))
        json_object_set(body, "reward", reward);
    else if (json_is_object(reward) && !json_equal(reward, json_object_get(body, "reward")))
        return hzp_fail(reterr, HZP_EFORMAT, "its reward is another: a job has one");
    if (!json_object_get(body, list))
        json_object_set_new(body, list, json_array());
    json_array_append(json_object_get(body, list), text ? text : messages);
    json_array_append_new(json_object_get(body, "answers"),
                          right ? json_incref(right) : json_null());
    return HZP_OK;
}

static int read_lines(const struct hzp_options *options, FILE *file, json_t *body,
                      struct hzp_err_text *reterr)
{
    const char *path = options->rollout.data;
    struct hzp_err_text err;
    HZP_FREED char *text = NULL;
    size_t room = 0;
    ssize_t n;
    int r = HZP_OK;
    for (int64_t at = 1; r >= 0 && (n = getline(&text, &room, file)) >= 0; at++) {
        if (strspn(text, " \t\r\n") == (size_t)n)
            continue;
        json_auto_t *line = hzp_json_load(text, (size_t)n, HZP_JSON_UNIQUE, NULL, NULL);
        r = json_is_object(line) ? add_line(options, line, body, &err)
                                 : hzp_fail(&err, HZP_EFORMAT, "it is no JSON object");
        if (r >= 0 && json_array_size(json_object_get(body, "answers")) > LINES_MAX)
            r = hzp_fail(&err, HZP_EFORMAT, "a job has at most %d prompts", LINES_MAX);
        if (r < 0)
            hzp_fail(reterr, r, "%.200s:%lld: %s", path, (long long)at, err.text);
    }
    if (r >= 0 && !json_array_size(json_object_get(body, "answers")))
        return hzp_fail(reterr, HZP_EFORMAT, "--data: %.200s has no prompts", path);
    return r;
}

static int read_data(const struct hzp_options *options, json_t *body, struct hzp_err_text *reterr)
{
    const char *path = options->rollout.data;
    struct stat about;
    bool is_file = !stat(path, &about) && S_ISREG(about.st_mode);
    HZP_ENDED(hzp_file_end) FILE *file = is_file ? fopen(path, "r") : NULL;
    if (!file)
        return hzp_fail(reterr, HZP_ENOENT, "--data: %.200s cannot be read as a file", path);
    return read_lines(options, file, body, reterr);
}

/* Answers only where there are any. */
static void drop_no_answers(json_t *body)
{
    size_t i, given = 0;
    json_t *answer;
    json_array_foreach(json_object_get(body, "answers"), i, answer) given += !json_is_null(answer);
    if (!given)
        json_object_del(body, "answers");
}

static int make_body(const struct hzp_options *options, json_t *body, struct hzp_err_text *reterr)
{
    const struct hzp_rollout_settings *s = &options->rollout;
    json_t *reward = options->words ? reward_of(options->word[0]) : NULL;
    json_object_set_new(body, "answers", json_array());
    if (options->words && (!reward || json_object_set_new(body, "reward", reward) < 0))
        return hzp_fail_param(reterr, HZP_EINVAL, "REWARD",
                              "\"%.80s\" is no reward: exact, number, boxed, regex=PATTERN, json, "
                              "length=TOKENS, client, command, or the JSON of a reward (also of "
                              "type model)",
                              options->word[0]);
    for (int i = 1; i < options->words; i++) {
        json_auto_t *line = json_pack("{s:s}", "prompt", options->word[i]);
        if (!line)
            return hzp_fail_param(reterr, HZP_EINVAL, "PROMPT", "a prompt is not UTF-8");
        HZP_TRY(add_line(options, line, body, reterr));
    }
    if (s->data)
        HZP_TRY(read_data(options, body, reterr));
    drop_no_answers(body);
    json_object_set_new(body, "n", json_integer(s->n));
    json_object_set_new(body, "max_tokens", json_integer(s->max_tokens));
    json_object_set_new(body, "updates", json_integer(s->updates));
    if (s->seed >= 0)
        json_object_set_new(body, "seed", json_integer(s->seed));
    json_auto_t *extra =
        s->extra ? hzp_json_load(s->extra, strlen(s->extra), HZP_JSON_UNIQUE, NULL, NULL)
                 : json_object();
    if (!json_is_object(extra) || json_object_update(body, extra) < 0)
        return hzp_wrong(reterr, "--extra-body", "is no JSON object");
    return HZP_OK;
}

/* Gives the version the name by which the server can go back to it. */
static int name_version(struct follow *f, json_int_t version, struct hzp_err_text *reterr)
{
    return hzp_transfer_json(&f->server, "POST", json_pack("{s:s}", "name", kept_name), NULL,
                             reterr, "/v1/weights/%lld/name?timeout=3600", (long long)version);
}

/* Keeps the version that serves.  A server that cannot keep it learns all the same.  *ret_named: it
 * has taken the name from this version, 0: from none. */
static void keep_version(struct follow *f, json_int_t *ret_named)
{
    struct hzp_err_text err;
    json_auto_t *now = NULL, *had = NULL;
    int r = hzp_transfer_json(&f->server, "GET", NULL, &now, &err, "/v1/weights/current");
    json_int_t id = json_integer_value(json_object_get(now, "id"));
    if (r >= 0 && json_is_null(json_object_get(now, "parent")) &&
        !json_integer_value(json_object_get(now, "optimizer_step"))) {
        snprintf(f->back, sizeof(f->back), "original");
    } else if (r >= 0) {
        hzp_transfer_json(&f->server, "GET", NULL, &had, NULL, "/v1/weights/%s", kept_name);
        *ret_named = json_integer_value(json_object_get(had, "id"));
        r = name_version(f, id, &err);
        if (r >= 0)
            snprintf(f->back, sizeof(f->back), "%s", kept_name);
    }
    if (r < 0)
        fprintf(stderr, "hzpserve: the version that serves is not kept: %s\n", err.text);
}

static int post(struct follow *f, struct hzp_err_text *reterr)
{
    json_auto_t *body = json_object(), *job = NULL;
    json_int_t named = 0;
    int r = make_body(f->options, body, reterr);
    if (r >= 0 && !json_is_false(json_object_get(body, "train")))
        keep_version(f, &named);
    if (r >= 0)
        r = hzp_transfer_json(&f->server, "POST", json_incref(body), &job, reterr, "/v1/rollouts");
    if (r < 0 && named) /* nothing was learned after it: the name is what it was */
        name_version(f, named, NULL);
    const char *id = json_string_value(json_object_get(job, "id"));
    if (r >= 0 && !id)
        r = hzp_fail(reterr, HZP_EIO, "the server's answer is not understood");
    snprintf(f->id, sizeof(f->id), "%s", id ? id : "");
    f->own = true;
    return r;
}

/* ---- following it ---- */

static double number_of(const json_t *json, const char *name)
{
    return json_number_value(json_object_get(json, name));
}

static void print_line(const json_t *json, FILE *out)
{
    json_dumpf(json, out, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fprintf(out, "\n");
    fflush(out);
}

/* The bar is of rewards from 0 to 1. */
static void print_point(const struct follow *f, const json_t *point)
{
    double reward = number_of(point, "reward_mean");
    int length = (int)lrint(fmin(fmax(reward, 0), 1) * BAR);
    char bar[BAR + 1];
    json_auto_t *line = json_pack("{s:s, s:s}", "object", "rollout.update", "id", f->id);
    json_object_update(line, (json_t *)(uintptr_t)point);
    if (f->log)
        print_line(line, f->log);
    if (f->options->json) {
        print_line(line, stdout);
        return;
    }
    memset(bar, '#', BAR);
    bar[length] = 0;
    printf("%6.0f  %7.3f  |%-*s|  %5.0f  %7.0f  %7.0f  %7.1f\n", number_of(point, "update"), reward,
           BAR, bar, number_of(point, "staleness"), number_of(point, "samples"),
           number_of(point, "weights_version"), number_of(point, "seconds"));
    fflush(stdout);
}

static void print_points(struct follow *f, const json_t *job)
{
    const json_t *curve = json_object_get(job, "curve");
    size_t n = json_array_size(curve);
    if (!f->shown && n && !f->options->json)
        printf("%6s  %7s  |0%*s|  %5s  %7s  %7s  %7s\n", "update", "reward", BAR - 1, "1", "stale",
               "answers", "version", "seconds");
    for (; f->shown < n; f->shown++)
        print_point(f, json_array_get(curve, f->shown));
}

/* What it waits for, when that is something that the user can change. */
static void print_waiting(struct follow *f, const json_t *job)
{
    const char *status = json_string_value(json_object_get(job, "status"));
    json_int_t waiting = (json_int_t)number_of(json_object_get(job, "samples"), "waiting");
    if (f->options->json)
        return;
    if (!f->engine && !f->told_queued && status && !strcmp(status, "queued"))
        printf("%s waits for the jobs before it\n", f->id);
    f->told_queued = true;
    if (waiting && !f->told_waiting)
        printf("%lld answers wait for a reward: GET /v1/samples\n", (long long)waiting);
    f->told_waiting = waiting;
    fflush(stdout);
}

static void print_end(const struct follow *f, json_t *job)
{
    const json_t *curve = json_object_get(job, "curve"), *samples = json_object_get(job, "samples");
    const char *reason = json_string_value(json_object_get(job, "reason"));
    size_t n = json_array_size(curve);
    bool back = n && f->back[0];
    if (f->options->json) {
        json_object_del(job, "curve");
        json_object_set_new(job, "back", back ? json_string(f->back) : json_null());
        print_line(job, stdout);
        return;
    }
    printf("%s %s%s%.200s: %zu updates, %.0f answers, reward %.3f on average", f->id,
           json_string_value(json_object_get(job, "status")), reason && *reason ? ", " : "",
           reason ? reason : "", n, number_of(samples, "answered"), number_of(job, "reward_mean"));
    if (n)
        printf(", %.3f before the first update and %.3f before the last",
               number_of(json_array_get(curve, 0), "reward_mean"),
               number_of(json_array_get(curve, n - 1), "reward_mean"));
    printf("\n");
    if (back)
        printf("the weights from before it serve again by: hzpserve undo %s\n", f->back);
}

static int look(struct follow *f, json_t **ret, struct hzp_err_text *reterr)
{
    if (!f->engine)
        return hzp_transfer_json(&f->server, "GET", NULL, ret, reterr, "/v1/rollouts/%s", f->id);
    *ret = hzp_rollouts_job(f->engine->rollouts, f->number);
    return hzp_engine_running(f->engine) ? HZP_OK
                                         : hzp_fail(reterr, HZP_EDEVICE, "the engine has failed");
}

/* After signals: cancels the job, or leaves it, which an engine of this process cannot.  True: it
 * is left. */
static bool obey(struct follow *f)
{
    struct hzp_err_text err;
    if (f->engine) {
        f->cancelled |= interrupts || left;
        if (f->cancelled)
            hzp_rollouts_cancel(f->engine->rollouts, f->number, NULL);
        return false;
    }
    if (left || interrupts > 1 || (interrupts && !f->own)) {
        fprintf(stderr, "hzpserve: %s goes on; hzpserve rollout %s follows it\n", f->id, f->id);
        return true;
    }
    if (interrupts && !f->cancelled) {
        f->cancelled = true;
        if (hzp_transfer_json(&f->server, "DELETE", NULL, NULL, &err, "/v1/rollouts/%s", f->id) < 0)
            fprintf(stderr, "hzpserve: %s\n", err.text); /* it has ended meanwhile */
    }
    return false;
}

/* The exit status, or a negative error. */
static int follow(struct follow *f, struct hzp_err_text *reterr)
{
    for (;;) {
        json_auto_t *job = NULL;
        HZP_TRY(look(f, &job, reterr));
        const char *status = json_string_value(json_object_get(job, "status"));
        bool good = status && !strcmp(status, "succeeded");
        print_points(f, job);
        if (!status || (strcmp(status, "queued") && strcmp(status, "running"))) {
            print_end(f, job);
            return good ? 0 : left ? 128 + (int)left : f->cancelled ? 130 : 1;
        }
        print_waiting(f, job);
        if (obey(f))
            return left ? 128 + (int)left : 130;
        nanosleep(&look_pause, NULL); /* a signal ends it */
    }
}

/* once: a second signal has its default effect. */
static void watch_signals(bool once)
{
    static const int watched[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction action = {.sa_handler = on_signal, /* without SA_RESTART */
                                     .sa_flags = once ? (int)SA_RESETHAND : 0};
    for (int i = 0; i < HZP_COUNT(watched); i++)
        if (!hzp_signal_is_ignored(watched[i]))
            sigaction(watched[i], &action, NULL);
}

int hzp_cmd_rollout(const struct hzp_options *options)
{
    struct hzp_err_text err = {.text = ""};
    struct follow f = {.options = options};
    if (!options->words)
        return hzp_command_usage("rollout REWARD|JOB [PROMPT..]");
    int r = hzp_http_server(options->client.url, options->client.api_key, &f.server, &err);
    if (r >= 0 && !strncmp(options->word[0], "rollout-", 8))
        snprintf(f.id, sizeof(f.id), "%s", options->word[0]);
    else if (r >= 0)
        r = post(&f, &err);
    watch_signals(false);
    if (r >= 0 && f.own && !options->json)
        printf("%s: %d answers to each prompt, %d updates; Ctrl-C cancels it\n", f.id,
               (int)options->rollout.n, (int)options->rollout.updates);
    if (r >= 0)
        r = follow(&f, &err);
    return r < 0 ? hzp_command_failed(r, &err) : r;
}

/* ---- hzpserve train --algo ---- */

/* The job, as `rollout` would post it. */
static int make_own_body(const struct hzp_options *options, json_t *body,
                         struct hzp_err_text *reterr)
{
    struct hzp_options own = *options;
    json_auto_t *ignored = NULL; /* there are no such fields */
    int64_t updates = options->engine.training.total_steps;
    own.word[0] = own.word[1]; /* the reward, behind the model */
    own.words--;
    own.rollout.data = options->train.data;
    own.rollout.seed = options->engine.training.seed;
    own.rollout.updates = updates ? updates : own.rollout.updates;
    HZP_TRY(make_body(&own, body, reterr));
    json_object_set_new(
        body, "algo",
        json_string(hzp_rollout_algo_name((enum hzp_rollout_algo)(options->train.algo - 1))));
    HZP_TRY(hzp_fields_check(&hzp_fields_rollout, body, &ignored, reterr));
    if (!json_object_get(body, "reward"))
        return hzp_fail_param(reterr, HZP_EINVAL, "REWARD",
                              "no reward given; name one behind the model, or in each line");
    if (json_is_false(json_object_get(body, "train")) ||
        hzp_given_word(json_object_get(body, "reward"), "type", "client") ||
        hzp_given_word(json_object_get(body, "environment"), "type", "client") ||
        hzp_given_word(body, "advantage", "client") || hzp_given_word(body, "reference", "client"))
        return hzp_wrong(reterr, "--extra-body",
                         "and REWARD may not ask for \"train\": false, or for what a client gives: "
                         "that needs a server (hzpserve rollout)");
    return HZP_OK;
}

static int check_own(const struct hzp_options *options, const char *state,
                     struct hzp_err_text *reterr)
{
    const struct hzp_train_settings *o = &options->train;
    const char *without = o->from_scratch                        ? "--from-scratch"
                          : o->eval_data                         ? "--eval"
                          : o->epochs > 1                        ? "--epochs"
                          : o->too_long + 1 != HZP_TOO_LONG_FAIL ? "--too-long"
                          : options->engine.ranks.ranks > 1      ? "--ranks"
                                                                 : NULL;
    bool there = access(state, F_OK) == 0;
    if (without)
        return hzp_wrong(reterr, without, "cannot be used with --algo");
    if (o->resume && !there)
        return hzp_wrong(reterr, "--resume", "finds nothing to resume in %s", o->out);
    if (!o->resume && (there || hzp_checkpoint_newest(o->out)))
        return hzp_wrong(reterr, "--out",
                         "%s holds another run: continue it with --resume, or choose another --out",
                         o->out);
    return HZP_OK;
}

/* As a server for this one job would be started. */
static int start_own(const json_t *body, const char *state, const char *copy,
                     struct hzp_engine_settings *settings, struct hzp_engine **ret,
                     struct hzp_err_text *reterr)
{
    const json_t *pinned = json_object_get(json_object_get(body, "reward"), "pinned");
    mode_t mask = umask(077); /* no other user may read prompts and answers */
    const struct hzp_engine_config config = {.settings = settings,
                                             .checkpoint_options = copy,
                                             .provisional = true,
                                             .effects = true, /* rollouts are, too */
                                             .quiet = true};
    settings->learning.state_dir = state;
    settings->learning.passes = 1;
    settings->learning.effect = 0;
    settings->learning.rehearse_ratio = 0;
    settings->training.total_steps = (int64_t)number_of(body, "updates");
    if (number_of(body, "kl") > 0 || json_is_true(pinned))
        settings->serving.slots = 3;
    int r = hzp_engine_start(&config, ret, reterr);
    umask(mask);
    return r;
}

/* What an earlier process had committed is learned first.  Returns the updates so far. */
static int64_t catch_up(struct hzp_engine *engine)
{
    struct hzp_state_stats log;
    struct hzp_weights_stats now;
    struct hzp_trainer_stats trainer;
    for (;;) {
        hzp_state_read_stats(engine->state, &log);
        hzp_weights_read_stats(engine->parts.weights, &now);
        int64_t through = hzp_state_finished_through(engine->state, now.learned_through);
        hzp_trainer_read_stats(engine->parts.trainer, &trainer);
        bool ends = interrupts || left || trainer.broken || !hzp_engine_running(engine);
        if (HZP_MAX(through, 0) >= log.last_sequence_number || ends)
            return now.finished_optimizer_step;
        nanosleep(&look_pause, NULL);
    }
}

struct result {
    const struct hzp_engine *engine;
    const char *out, *copy;
    struct hzp_err_text *err;
};

/* Engine thread: writes the version that serves. */
static int save(void *ctx, const struct hzp_border *border)
{
    const struct result *w = ctx;
    const struct hzp_assembly *a = &w->engine->parts;
    struct hzp_train_state state;
    hzp_trainer_state(a->trainer, hzp_weights_current(a->weights), &state);
    return hzp_checkpoint_save_model(w->out, &state.source, a->source_dir, w->copy, NULL, w->err);
}

/* A job that was interrupted does not go on: the next one has the updates that are missing. */
static int refuse(const void *ctx, const json_t *body, struct hzp_rollout_spec *ret,
                  struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EUNSUP, "the command goes on with a job of its own");
}

/* What is wrong with a prompt or an answer is wrong with a line of the file. */
static void name_line(const struct hzp_options *options, int code, struct hzp_err_text *reterr)
{
    const char *bracket = strchr(reterr->param, '['), *path = options->train.data;
    HZP_ENDED(hzp_file_end) FILE *file = bracket && path ? fopen(path, "r") : NULL;
    HZP_FREED char *text = NULL;
    struct hzp_err_text was = *reterr;
    long more = bracket ? strtol(bracket + 1, NULL, 10) : 0;
    long long at = 0;
    size_t room = 0;
    ssize_t n;
    while (file && more >= 0 && (n = getline(&text, &room, file)) >= 0) {
        more -= strspn(text, " \t\r\n") < (size_t)n;
        at++;
    }
    if (file && more < 0)
        hzp_fail(reterr, code, "%.200s:%lld: %s", path, at, was.text);
}

/* The job with the updates that are missing.  The exit status, or a negative error. */
static int run_own(struct follow *f, json_t *body, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_state_stats stats;
    int64_t done = catch_up(f->engine), wanted = (int64_t)number_of(body, "updates");
    hzp_rollouts_resume(f->engine->rollouts, refuse, NULL);
    if (done >= wanted)
        return 0;
    json_object_set_new(body, "updates", json_integer(wanted - done));
    json_object_set_new(body, "seed", json_integer((json_int_t)number_of(body, "seed") + done));
    int code = hzp_rollouts_post(f->engine, body, &f->number, reterr);
    if (code < 0)
        name_line(f->options, code, reterr);
    HZP_TRY(code);
    snprintf(path, sizeof(path), "%s/train.jsonl", f->options->train.out);
    HZP_ENDED(hzp_file_end) FILE *log = f->log = fopen(path, "a");
    if (!log)
        return hzp_fail(reterr, HZP_EIO, "%s cannot be written", path);
    snprintf(f->id, sizeof(f->id), "rollout-%" PRIu64, f->number);
    if (!f->options->json)
        printf("%s: %.0f answers to each prompt, updates %" PRId64 " to %" PRId64
               "; Ctrl-C ends it, and --resume goes on\n",
               f->id, number_of(body, "n"), done + 1, wanted);
    int status = follow(f, reterr);
    hzp_state_read_stats(f->engine->state, &stats);
    if (stats.last_sequence_number || status > 1)
        hzp_state_keep(f->engine->state);
    else /* nothing is there to go on from */
        unlink(path);
    return status;
}

static int train(struct follow *f, json_t *body, const char *copy, struct hzp_err_text *reterr)
{
    struct result result = {f->engine, f->options->train.out, copy, reterr};
    int status = run_own(f, body, reterr);
    if (status == 0) {
        HZP_TRY(hzp_loop_call(f->engine->parts.loop, save, &result));
        fprintf(stderr, "done: the model is in %s\n", result.out);
    } else if (status > 1) {
        hzp_engine_stop(f->engine, false);
        while (!hzp_engine_wait(f->engine, 1000000000u))
            continue;
        fprintf(stderr,
                "stopped after update %" PRId64 "; continue with the same command and --resume\n",
                catch_up(f->engine));
    }
    return status;
}

int hzp_cmd_train_rollouts(const struct hzp_options *options)
{
    struct hzp_engine_settings settings = options->engine;
    struct follow f = {.options = options};
    struct hzp_err_text err = {.text = ""};
    json_auto_t *body = json_object();
    HZP_FREED char *copy = hzp_options_of_copy(settings.model.dir, NULL);
    const char *out = options->train.out;
    char state[PATH_MAX];
    size_t existed;
    snprintf(state, sizeof(state), "%s/state", out);
    int r = check_own(options, state, &err);
    if (r >= 0)
        r = make_own_body(options, body, &err);
    if (r < 0 || (r = hzp_dir_make(out, &existed, &err)) < 0)
        return hzp_command_failed(r, &err);
    watch_signals(true);
    r = start_own(body, state, copy, &settings, &f.engine, &err);
    if (r >= 0)
        r = train(&f, body, copy, &err);
    int status = r < 0 ? hzp_command_failed(r, &err) : r;
    if (hzp_engine_finish(f.engine) < 0 && !status)
        status = 1;
    hzp_dir_unmake(out, existed);
    return status;
}
