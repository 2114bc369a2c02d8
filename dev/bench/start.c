/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/start.c - measures how long a server takes from exec until it answers, without
 * training, with training, and from a checkpoint, in turns.
 *
 * Training's memory is prepared, and a checkpoint's moments and residuals are read, while the
 * server already answers (train/conductor/trainer.h), so all three should take about as long.  A
 * server counts as ready when it prints its address: from then on it takes requests.  The first run
 * of each kind reads files that may not be cached, and does not count; the first run of the third
 * kind also writes the checkpoint.
 */
#include "dev/bench/bench.h"

#include "api/client/http_client.h"
#include "api/learn/checkpoint.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { RUNS = 7, RUNS_QUICK = 3, WORDS_MAX = 28, NUMBERS = 3, PATIENCE_S = 3600 };

/* What a server is started for. */
enum kind { PLAIN, TRAINS, RESTORES, KINDS };

/* The command line of a server with the benchmark's settings of model and device. */
struct command {
    char number[NUMBERS][24];
    int numbers;
    const char *word[WORDS_MAX + 1];
    int words;
};

static void add(struct command *c, const char *word)
{
    HZP_ASSERT(c->words < WORDS_MAX);
    c->word[c->words++] = word;
}

static void add_number(struct command *c, const char *option, int64_t value)
{
    HZP_ASSERT(c->numbers < NUMBERS);
    snprintf(c->number[c->numbers], sizeof(c->number[0]), "%lld", (long long)value);
    add(c, option);
    add(c, c->number[c->numbers++]);
}

static void make_command(const struct hzp_bench *b, enum kind kind, const char *state,
                         struct command *c)
{
    static const char *const dtype[] = {"auto", "bf16", "f32"};
    const struct hzp_engine_settings *s = b->started;
    memset(c, 0, sizeof(*c));
    add(c, "hzpserve");
    add(c, "serve");
    add(c, s->model.dir);
    add(c, "--state");
    add(c, kind == RESTORES ? state : "none");
    add(c, "--host");
    add(c, "127.0.0.1");
    add_number(c, "--port", 0);
    add(c, "--dtype");
    add(c, dtype[s->model.dtype]);
    add_number(c, "--context", s->model.context);
    add_number(c, "--threads", s->device.threads);
    if (s->device.name) {
        add(c, "--device");
        add(c, s->device.name);
    }
    if (s->device.cpu_level) {
        add(c, "--cpu-level");
        add(c, s->device.cpu_level);
    }
    if (s->model.fp8) {
        add(c, "--quantization");
        add(c, "fp8");
    }
    if (s->model.kv_fp8) {
        add(c, "--kv-cache-dtype");
        add(c, "fp8");
    }
    if (kind == PLAIN)
        add(c, "--no-train");
    if (kind == RESTORES) {
        add(c, "--passes");
        add(c, "1");
    }
}

/* Reads what the server prints until it says where it serves, and writes that to url.  False: it
 * ended before. */
static bool wait_ready(int fd, char *url, size_t size)
{
    static const char ready[] = "hzpserve serves ", at[] = "http://";
    char text[4096];
    size_t bytes = 0;
    while (bytes < sizeof(text) - 1) {
        ssize_t n = read(fd, text + bytes, sizeof(text) - 1 - bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        bytes += (size_t)n;
        text[bytes] = 0;
        const char *line = strstr(text, ready), *found = line ? strstr(line, at) : NULL;
        if (found && strchr(found, '\n')) {
            snprintf(url, size, "%.*s", (int)strcspn(found, "\n"), found);
            return true;
        }
    }
    return false;
}

/* Has the server learn one example, so that it writes a checkpoint when it ends. */
static int teach(const char *url, struct hzp_err_text *reterr)
{
    struct hzp_http_host server = {0};
    struct hzp_http_stream in;
    const struct hzp_http_call call = {.method = "POST",
                                       .route = "/v1/fine_tuning/examples?wait=served&timeout=3600",
                                       .body = "{\"text\": \"A dog saw a cat.\"}",
                                       .patience_s = PATIENCE_S};
    const char *admin = getenv("HZP_ADMIN_KEY"), *key = admin ? admin : getenv("HZP_API_KEY");
    HZP_TRY(hzp_http_server(url, key, &server, reterr));
    hzp_http_stream_init(&in, NULL, NULL);
    int r = hzp_http_call(&server, &call, &in, reterr);
    if (r == HZP_OK && in.status != 200)
        r = hzp_fail(reterr, HZP_EIO, "bench start: the server learned nothing (status %d)",
                     in.status);
    hzp_http_stream_fini(&in);
    return r;
}

/* Starts a server, waits until it answers, and ends it.  learns: in between it learns an
 * example. */
static int run_once(const struct hzp_bench *b, enum kind kind, const char *state, bool learns,
                    double *ret_seconds, struct hzp_err_text *reterr)
{
    struct command command;
    char url[128];
    int out[2], taught = HZP_OK;
    pid_t pid;
    make_command(b, kind, state, &command);
    if (pipe2(out, O_CLOEXEC) < 0)
        return hzp_fail(reterr, HZP_EIO, "bench start: no pipe: %s", strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    uint64_t begin = hzp_now_ns();
    int error = posix_spawn(&pid, "/proc/self/exe", &actions, NULL,
                            (char *const *)(uintptr_t)command.word, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    bool ready = !error && wait_ready(out[0], url, sizeof(url));
    *ret_seconds = (double)(hzp_now_ns() - begin) * 1e-9;
    if (ready && learns)
        taught = teach(url, reterr);
    if (!error) {
        kill(pid, SIGTERM);
        while (read(out[0], &(char[256]){0}, 256) > 0) {
        }
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    close(out[0]);
    if (ready)
        return taught;
    return hzp_fail(reterr, HZP_EIO, "bench start: the server %s; try hzpserve serve %s",
                    error ? "cannot be executed" : "did not start", b->started->model.dir);
}

static int measure(struct hzp_bench *b, const char *state, struct hzp_err_text *reterr)
{
    static const char *const name[KINDS] = {"without training", "with training",
                                            "from a checkpoint"};
    double seconds[KINDS][RUNS], ratio[KINDS][RUNS], cold;
    char text[64];
    int runs = b->quick ? RUNS_QUICK : RUNS;
    for (int k = 0; k < KINDS; k++)
        HZP_TRY(run_once(b, (enum kind)k, state, k == RESTORES, &cold, reterr));
    for (int i = 0; i < runs; i++) {
        /* Each kind comes first, second and third in turn: what one leaves behind, such as memory
         * that the system has just got back, meets all alike. */
        for (int at = 0; at < KINDS; at++) {
            enum kind k = (enum kind)((at + i) % KINDS);
            HZP_TRY(run_once(b, k, state, false, &seconds[k][i], reterr));
        }
        for (int k = TRAINS; k < KINDS; k++)
            ratio[k][i] = seconds[k][i] / seconds[PLAIN][i];
    }
    for (int k = 0; k < KINDS; k++) {
        snprintf(text, sizeof(text), "start, %s", name[k]);
        hzp_bench_plain(b, text, hzp_bench_quantile(seconds[k], runs, 0.5), "s");
    }
    for (int k = TRAINS; k < KINDS; k++) {
        snprintf(text, sizeof(text), "start, %s over without", name[k]);
        hzp_bench_plain(b, text, hzp_bench_quantile(ratio[k], runs, 0.5), "x");
    }
    /* On a machine that others use, the fastest runs say most. */
    double fastest = hzp_bench_quantile(seconds[PLAIN], runs, 0);
    for (int k = 0; k < KINDS; k++) {
        snprintf(text, sizeof(text), "start, fastest %s", name[k]);
        hzp_bench_plain(b, text, hzp_bench_quantile(seconds[k], runs, 0), "s");
    }
    for (int k = TRAINS; k < KINDS; k++) {
        snprintf(text, sizeof(text), "start, fastest %s over fastest without",
                 k == TRAINS ? "with" : name[k]);
        hzp_bench_plain(b, text, hzp_bench_quantile(seconds[k], runs, 0) / fastest, "x");
    }
    return HZP_OK;
}

int hzp_bench_start(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    const char *folder = getenv("TMPDIR");
    char state[PATH_MAX], inside[PATH_MAX + 32];
    snprintf(state, sizeof(state), "%s/hzpserve-bench-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!mkdtemp(state))
        return hzp_fail(reterr, HZP_EIO, "bench start: %s: %s", state, strerror(errno));
    int r = measure(b, state, reterr);
    for (uint64_t id; (id = hzp_checkpoint_newest(state));) {
        snprintf(inside, sizeof(inside), "%s/checkpoint-%llu", state, (unsigned long long)id);
        hzp_checkpoint_remove(inside);
        if (access(inside, F_OK) == 0)
            break;
    }
    snprintf(inside, sizeof(inside), "%s/model", state);
    hzp_checkpoint_remove(inside);
    hzp_checkpoint_remove(state);
    return r;
}
