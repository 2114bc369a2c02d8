/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve serve: runs engine and HTTP server until a signal.
 *
 *     SIGTERM and others   health returns 503, new requests are refused, requests in flight and the
 *                          current update finish within --drain-timeout; a checkpoint; exit 0
 *     a second one         requests in flight fail
 *
 * api/cli/signals.h says what each signal means.
 */
#include "api/cli/commands.h"
#include "api/cli/signals.h"
#include "api/engine/follow.h"
#include "api/engine/group.h"
#include "api/engine/exclusions.h"
#include "api/engine/rejoin.h"
#include "api/http/server.h"
#include "base/log.h"

#include <sys/stat.h>

static const uint64_t SEND_NS = 5000000000ull; /* time limit for sending complete answers */

static void count_update(void *ctx, const struct hzp_update_report *report)
{
    hzp_metrics_update(ctx, report);
}

/* Prints a text quoted for a shell, so that it is one word. */
static void print_quoted(const char *text)
{
    putchar('\'');
    for (; *text; text++)
        if (*text == '\'')
            printf("'\\''");
        else
            putchar(*text);
    putchar('\'');
}

/* Prints a request body for curl; takes ownership of json. */
static void print_body(json_t *json)
{
    HZP_FREED char *text = json ? json_dumps(json, 0) : NULL;
    json_decref(json);
    print_quoted(text ? text : "{}");
    putchar('\n');
}

/* curl's argument if a key is required: the key itself must not appear in a log.  teach: for a
 * request that teaches. */
static const char *key_header(const struct hzp_server *server, bool teach)
{
    bool admin = hzp_auth_has_admin_key(server->auth);
    if (!hzp_auth_has_key(server->auth))
        return "";
    if (admin && (teach || !(server->settings->api_key || server->settings->api_key_file)))
        return " -H \"Authorization: Bearer $HZP_ADMIN_KEY\"";
    return " -H \"Authorization: Bearer $HZP_API_KEY\"";
}

static void print_ask(const struct hzp_server *server, const struct hzp_serve_settings *serve,
                      const char *url)
{
    printf("curl -s -w '\\n' %s/v1/completions%s -H 'content-type: application/json' \\\n     -d ",
           url, key_header(server, false));
    print_body(json_pack("{s:s, s:i, s:i}", "prompt", serve->try_prompt, "max_tokens", 24,
                         "temperature", 0));
}

/* Prints example commands: complete, train, complete again. */
static void print_welcome(const struct hzp_server *server, const struct hzp_serve_settings *serve,
                          const char *url)
{
    printf("\nhzpserve serves %s at %s\n\n", server->model, url);
    print_ask(server, serve, url);
    if (server->engine->state) {
        const char *file = serve->try_examples && access(serve->try_examples, R_OK) == 0
                               ? serve->try_examples
                               : NULL;
        printf("curl -s -w '\\n' '%s/v1/fine_tuning/examples?wait=served&timeout=600'%s \\\n"
               "     -H 'content-type: application/x-ndjson' ",
               url, key_header(server, true));
        char real[PATH_MAX]; /* an absolute path works from any directory */
        if (file) {
            printf("--data-binary @");
            print_quoted(realpath(file, real) ? real : file);
            putchar('\n');
        } else {
            printf("-d ");
            print_body(json_pack("{s:s, s:s}", "prompt", serve->try_prompt, "completion",
                                 ", in a land of robots"));
        }
        print_ask(server, serve, url);
    }
    printf("\n");
    fflush(stdout);
}

/* Reads the files of keys again.  One that cannot be read leaves the keys as they are. */
static void reload(struct hzp_server *server)
{
    struct hzp_err_text err = {0};
    int r = hzp_auth_reload(server->auth, &err);
    if (r < 0)
        hzp_log(HZP_LOG_ERROR, "serve", "SIGHUP: %s: the keys stay as they were", err.text);
    else
        hzp_log(HZP_LOG_INFO, "serve", "reloaded key_files=%d", r);
}

/* Writes what the server is doing to the log. */
static void log_status(const struct hzp_server *server, struct hzp_engine *engine)
{
    struct hzp_scheduler_stats s;
    struct hzp_weights_stats weights;
    struct hzp_door_stats door;
    struct hzp_sample_queue_stats queue = {0};
    hzp_scheduler_read_stats(engine->parts.scheduler, &s);
    hzp_weights_read_stats(engine->parts.weights, &weights);
    hzp_door_read_stats(server->door, &door);
    if (engine->state)
        hzp_sample_queue_read_stats(hzp_state_queue(engine->state), &queue);
    hzp_log(HZP_LOG_INFO, "serve",
            "status connections=%lld requests=%d running=%d waiting=%d version=%llu "
            "optimizer_step=%lld staleness=%lld examples_waiting=%d learned_through=%lld",
            (long long)door.open, atomic_load(&server->active), (int)s.running, (int)s.waiting,
            (unsigned long long)weights.serving_id, (long long)weights.serving_optimizer_step,
            (long long)weights.staleness, queue.samples, (long long)weights.learned_through);
}

/* Waits for a signal that stops the server; NONE: the engine has ended by itself. */
static enum hzp_signal wait_for_signal(struct hzp_server *server, struct hzp_engine *engine,
                                       const struct hzp_signals *signals)
{
    while (hzp_engine_running(engine)) {
        enum hzp_signal signal = hzp_signals_next(signals, 200000000ull);
        switch (signal) {
        case HZP_SIGNAL_STOP:
        case HZP_SIGNAL_PASSED_STOP:
            return signal;
        case HZP_SIGNAL_RELOAD:
            reload(server);
            break;
        case HZP_SIGNAL_STATUS:
            log_status(server, engine);
            break;
        case HZP_SIGNAL_NONE:
            break;
        }
    }
    return HZP_SIGNAL_NONE;
}

/* A second signal of one kind ends at once.  SIGTERM and what the launcher passes on are two kinds:
 * where a service is stopped, all its processes may get SIGTERM, and then rank 0 gets both. */
static void drain(struct hzp_server *server, struct hzp_engine *engine, double limit,
                  const struct hzp_signals *signals, enum hzp_signal first)
{
    bool came[] = {[HZP_SIGNAL_STOP] = false, [HZP_SIGNAL_PASSED_STOP] = false};
    came[first] = true;
    hzp_log(HZP_LOG_INFO, "serve", "stopping requests=%d limit_s=%g", atomic_load(&server->active),
            limit);
    hzp_server_set_state(server, HZP_SERVER_DRAINING);
    hzp_engine_stop(engine, false);
    uint64_t end = hzp_now_ns() + (uint64_t)(limit * 1e9);
    while (!hzp_engine_wait(engine, 20000000ull)) {
        enum hzp_signal signal = hzp_signals_next(signals, 1000000ull);
        bool again = hzp_signal_stops(signal) && came[signal];
        if (hzp_signal_stops(signal))
            came[signal] = true;
        if (signal == HZP_SIGNAL_STATUS)
            log_status(server, engine);
        if (again || hzp_now_ns() > end) {
            hzp_log(HZP_LOG_WARN, "serve", "stopping at once, %s: requests=%d",
                    again ? "second signal" : "drain timeout", atomic_load(&server->active));
            hzp_engine_stop(engine, true);
            while (!hzp_engine_wait(engine, 1000000000ull))
                ;
        }
    }
}

/* A snapshot of the counters. */
struct counts {
    uint64_t finished, left, failed;
    int64_t open, updates;
};

static struct counts count(struct hzp_engine *engine)
{
    struct hzp_scheduler_stats s;
    hzp_scheduler_read_stats(engine->parts.scheduler, &s);
    struct counts c = {.finished = s.finished[HZP_REQUEST_STOPPED] +
                                   s.finished[HZP_REQUEST_LENGTH] + s.finished[HZP_REQUEST_CHANGED],
                       .left = s.finished[HZP_REQUEST_CANCELED],
                       .failed = s.finished[HZP_REQUEST_FAILED] + s.finished[HZP_REQUEST_UNMET],
                       .open = (int64_t)s.waiting + s.running};
    if (engine->parts.trainer) {
        struct hzp_trainer_stats trainer;
        hzp_trainer_read_stats(engine->parts.trainer, &trainer);
        c.updates = (int64_t)trainer.updates;
    }
    return c;
}

/* Writes the last line of the log: how the requests in flight ended, and what was saved. */
static void log_stopped(struct hzp_engine *engine, const struct counts *before, uint64_t began_ns)
{
    struct counts after = count(engine);
    struct hzp_weights_stats weights;
    struct hzp_state_stats state = {0};
    hzp_weights_read_stats(engine->parts.weights, &weights);
    if (engine->state)
        hzp_state_read_stats(engine->state, &state);
    hzp_log(HZP_LOG_INFO, "serve",
            "stopped seconds=%.1f in_flight=%lld finished=%llu left=%llu failed=%llu updates=%lld "
            "version=%llu checkpoint=%llu",
            (double)(hzp_now_ns() - began_ns) * 1e-9, (long long)before->open,
            (unsigned long long)(after.finished - before->finished),
            (unsigned long long)(after.left - before->left),
            (unsigned long long)(after.failed - before->failed),
            (long long)(after.updates - before->updates), (unsigned long long)weights.serving_id,
            (unsigned long long)state.checkpoint_id);
}

static int serve(const struct hzp_options *options, struct hzp_port *listener,
                 struct hzp_engine *engine, struct hzp_metrics *metrics,
                 const struct hzp_signals *signals, struct hzp_rejoin *rejoin)
{
    struct hzp_server *server;
    struct hzp_err_text err = {0};
    int r = hzp_http_start(&options->http, listener, engine, metrics, &server, &err);
    if (r < 0)
        return hzp_command_failed(r, &err);
    if (engine->state)
        hzp_state_keep(engine->state);
    print_welcome(server, &options->serve, listener->url);
    enum hzp_signal asked = wait_for_signal(server, engine, signals);
    struct counts before = count(engine);
    uint64_t began_ns = hzp_now_ns();
    hzp_rejoin_stop(rejoin);
    if (asked)
        drain(server, engine, (double)options->serve.drain_seconds, signals, asked);
    else
        hzp_server_set_state(server, HZP_SERVER_FAILED);
    hzp_http_stop(server, SEND_NS);
    log_stopped(engine, &before, began_ns);
    return asked ? 0 : 1;
}

/* Checks that the option table cannot express. */
static bool usable(const struct hzp_options *options)
{
    json_auto_t *prompt = json_string(options->serve.try_prompt);
    struct hzp_auth *auth = NULL;
    struct hzp_err_text err = {0};
    bool safe = hzp_auth_create(&options->http, &auth, &err) == HZP_OK;
    hzp_auth_destroy(auth);
    if (!options->engine.model.dir)
        fprintf(stderr, "hzpserve: serve: no model given, and the bundled one is not there; name "
                        "a directory that holds config.json\n");
    else if (!prompt)
        fprintf(stderr, "hzpserve: --try-prompt is not UTF-8\n");
    else if (!safe)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return options->engine.model.dir && prompt && safe;
}

/* How ranks that all serve find each other; the same on all.  Endpoint "": they do not. */
struct replicas {
    struct hzp_pipe_place at;
    char *record; /* owned */
};

/* Whether rank 0 goes on serving without a lost rank, until another has taken its place. */
static bool outlives(const struct hzp_engine_settings *settings, const struct hzp_ranks *ranks)
{
    return settings->ranks.restarts && ranks->rendezvous.from[0] && !settings->no_train &&
           settings->ranks.tensor <= 1;
}

static int start_rejoin(const struct hzp_options *options, struct hzp_engine *engine,
                        struct hzp_rejoin **ret, struct hzp_err_text *reterr)
{
    HZP_FREED char *record = hzp_cmd_ranks_record(options);
    return record ? hzp_rejoin_start(engine, &options->engine.ranks, record, ret, reterr)
                  : hzp_fail(reterr, HZP_EINVAL, "the ranks have nothing to agree on");
}

/* The launcher of several ranks keeps the port, over restarts of rank 0. */
static int keep_port(void *ctx, int *ret_fd, char *ret_url, size_t size,
                     struct hzp_err_text *reterr)
{
    struct hzp_port port;
    int r = hzp_port_open(ctx, &port, reterr);
    *ret_fd = port.fd;
    snprintf(ret_url, size, "%s", port.url);
    return r;
}

static int open_port(const struct hzp_http_settings *settings, struct hzp_port *ret,
                     struct hzp_err_text *reterr)
{
    int kept = hzp_launch_kept();
    if (kept < 0)
        return hzp_port_open(settings, ret, reterr);
    hzp_port_take(settings, kept, hzp_launch_kept_url(), ret);
    return HZP_OK;
}

/* Rank 0, or the only rank. */
static int lead(const struct hzp_options *options, const struct hzp_engine_settings *settings,
                struct hzp_ranks *ranks, const struct replicas *replicas,
                const struct hzp_signals *signals)
{
    struct hzp_metrics *metrics = hzp_metrics_create();
    HZP_FREED char *copy =
        hzp_options_of_copy(options->engine.model.dir, options->http.served_name);
    struct hzp_engine_config config = {.settings = settings,
                                       .checkpoint_options = copy,
                                       .log_updates = true,
                                       .provisional = true,
                                       .effects = true,
                                       .on_update = count_update,
                                       .ctx = metrics,
                                       .link = ranks->link,
                                       .ranks = ranks};
    struct hzp_front_config front = {.at = &replicas->at,
                                     .record = replicas->record,
                                     .ranks = ranks->ranks,
                                     .silent_s = settings->ranks.silent_s};
    if (replicas->at.endpoint[0])
        config.replicas = &front;
    struct hzp_engine *engine = NULL;
    struct hzp_rejoin *rejoin = NULL;
    struct hzp_port listener;
    struct hzp_err_text err = {0};
    int status;
    int r = open_port(&options->http, &listener, &err);
    if (r == HZP_OK)
        r = hzp_engine_start(&config, &engine, &err);
    if (r == HZP_OK && outlives(settings, ranks))
        r = start_rejoin(options, engine, &rejoin, &err);
    if (r < 0) {
        status = hzp_command_failed(r, &err);
        hzp_engine_finish(engine);
    } else {
        status = serve(options, &listener, engine, metrics, signals, rejoin);
        r = hzp_engine_finish(engine);
        if (r < 0) {
            hzp_log(HZP_LOG_ERROR, "serve", "engine code=%s", hzp_err_name(r));
            status = 1;
        }
    }
    hzp_port_close(&listener);
    hzp_metrics_destroy(metrics);
    return status;
}

/* Another rank: it trains what rank 0 deals to it, until rank 0 ends. */
static int follow_once(const struct hzp_engine_settings *settings, struct hzp_ranks *ranks,
                       const struct replicas *replicas)
{
    struct hzp_follow_config config = {
        .settings = settings, .link = ranks->link, .serves = true, .runs = ranks->runs};
    struct hzp_follow_replica replica = {.at = &replicas->at,
                                         .record = replicas->record,
                                         .rank = ranks->rank,
                                         .ranks = ranks->ranks,
                                         .silent_s = settings->ranks.silent_s,
                                         .meet_s = settings->ranks.meet_s};
    struct hzp_err_text err = {0};
    if (replicas->at.endpoint[0])
        config.replica = &replica;
    int r = hzp_follow(&config, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: rank %d: %s\n", ranks->rank, err.text);
    bool lost = hzp_ranks_lost(ranks) || (settings->no_train && r == HZP_EIO);
    return r < 0 && lost ? HZP_LAUNCH_LOST : r < 0;
}

/* Whether a rank of a group was lost.  One that has closed its link in good order ends by an error
 * of its own, which would come again. */
static bool group_lost(struct hzp_ranks *ranks)
{
    struct hzp_link_state link;
    hzp_link_state(ranks->link, &link);
    return hzp_ranks_lost(ranks) && !link.left;
}

/* Another rank of a group that computes each step together: it ends with the group. */
static int join_group(const struct hzp_engine_settings *settings, struct hzp_ranks *ranks)
{
    struct hzp_err_text err = {0};
    int r = hzp_group_join(settings, ranks->link, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: rank %d: %s\n", ranks->rank, err.text);
    return r < 0 && group_lost(ranks) ? HZP_LAUNCH_LOST : r < 0;
}

/* Whether a signal says that this rank is to end while it waits for others.  At other times signals
 * are blocked and do nothing on ranks other than 0, which gets them, too, and lets all end. */
static bool is_stopped(void *ctx)
{
    return hzp_signal_stops(hzp_signals_next(ctx, 0));
}

/* The same, and again with the ranks that have met again after a loss. */
static int follow(const struct hzp_options *options, const struct hzp_engine_settings *settings,
                  struct hzp_ranks *ranks, const struct replicas *replicas,
                  struct hzp_signals *signals)
{
    if (settings->ranks.tensor > 1)
        return join_group(settings, ranks);
    for (int64_t left = settings->ranks.restarts;; left--) {
        int status = follow_once(settings, ranks, replicas);
        if (status != HZP_LAUNCH_LOST || left <= 0 || !hzp_ranks_may_rejoin(ranks))
            return status;
        hzp_log(HZP_LOG_WARN, "ranks",
                "waiting rank=%d left=%" PRId64 ": for one in place of the lost", ranks->rank,
                left - 1);
        status = hzp_cmd_ranks_rejoin(options, is_stopped, signals, ranks);
        if (status)
            return status;
    }
}

/* What is called while ranks meet. */
struct meeting {
    struct hzp_signals *signals;
    const struct hzp_ranks *ranks;
};

/* A rank was lost, and with MPI all are to be started again: rank 0 ends as by a signal. */
static void end_job(void *ctx, int rank, const char *why)
{
    const struct meeting *m = ctx;
    if (!m->ranks->rendezvous.from[0])
        kill(getpid(), SIGTERM);
}

static bool meeting_is_stopped(void *ctx)
{
    const struct meeting *m = ctx;
    return is_stopped(m->signals);
}

/* Connects the ranks, or where they do not train, only finds out where they meet.  0, or the exit
 * status. */
static int open_ranks(const struct hzp_options *options, struct meeting *meeting,
                      struct hzp_ranks *ret)
{
    const struct hzp_ranks_settings *settings = &options->engine.ranks;
    struct hzp_err_text err = {0};
    if (!settings->replicas || !options->engine.no_train)
        return hzp_cmd_ranks_open(options, settings->restarts ? end_job : NULL, meeting_is_stopped,
                                  meeting, ret);
    int r = hzp_ranks_place(settings, ret, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return r == HZP_EINVAL ? 2 : r < 0;
}

/* Where replicas meet; 0, or the exit status. */
static int open_replicas(const struct hzp_options *options, const struct hzp_ranks *ranks,
                         struct replicas *ret)
{
    struct hzp_err_text err = {0};
    if (!options->engine.ranks.replicas)
        return 0;
    int r = hzp_ranks_replicas_place(ranks, &ret->at, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    ret->record = r < 0 ? NULL : hzp_cmd_ranks_record(options);
    return r < 0 ? 2 : !ret->record;
}

/* Whether so many ranks can do what is asked; 0, or the exit status. */
static int check_ranks(const struct hzp_options *options, const struct hzp_ranks *ranks)
{
    struct hzp_err_text err = {0};
    int r = hzp_exclusions_check(&options->engine, ranks->ranks, &err);
    if (r == HZP_OK)
        r = hzp_group_check(&options->engine, ranks->ranks, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return r < 0 ? 2 : 0;
}

/* Whether all ranks are to be started again, because one was lost.  With restarts they were waited
 * for, and the signal has ended that; a group does not go on without one of its ranks. */
static bool is_lost(const struct hzp_engine_settings *settings, struct hzp_ranks *ranks, int status)
{
    if (settings->ranks.tensor > 1 && ranks->link)
        return group_lost(ranks);
    return !status && !outlives(settings, ranks) && hzp_ranks_lost(ranks);
}

int hzp_cmd_serve(const struct hzp_options *options)
{
    if (!usable(options))
        return 2;
    /* No other user may read examples, checkpoints and logs. */
    umask(077);
    struct hzp_http_settings http = options->http;
    if (hzp_launch_relay_to())
        return hzp_cmd_serve_relay(options, hzp_launch_relay_to());
    int status = hzp_cmd_ranks_start(options, &(struct hzp_launch_keep){keep_port, &http});
    if (status >= 0)
        return status;
    struct hzp_signals signals;
    hzp_signals_take(&signals);
    struct hzp_ranks ranks;
    struct replicas replicas = {.record = NULL};
    struct meeting meeting = {&signals, &ranks};
    status = open_ranks(options, &meeting, &ranks);
    if (status)
        return status;
    status = check_ranks(options, &ranks);
    if (!status)
        status = open_replicas(options, &ranks, &replicas);
    struct hzp_engine_settings settings = options->engine;
    settings.device.threads = hzp_cmd_ranks_threads(options, &ranks);
    settings.ranks.on_machine = HZP_MAX(ranks.launch.local_ranks, 1);
    if (!status)
        status = ranks.rank ? follow(options, &settings, &ranks, &replicas, &signals)
                            : lead(options, &settings, &ranks, &replicas, &signals);
    if (!ranks.rank && is_lost(&settings, &ranks, status))
        status = HZP_LAUNCH_LOST;
    hzp_ranks_close(&ranks);
    free(replicas.record);
    return status;
}
