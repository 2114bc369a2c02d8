/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/start.c - measures how long a server takes from exec until it answers, with training
 * and without, in turns.
 *
 * Training's memory is prepared by steps of the running server (train/trainer.h), so both should
 * take about as long.  A server counts as ready when it prints its address: from then on it takes
 * requests.  The first run of each kind reads files that may not be cached, and does not count.
 */
#include "api/bench/bench.h"

#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { RUNS = 7, RUNS_QUICK = 3, WORDS_MAX = 24, NUMBERS = 3 };

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

static void make_command(const struct hzp_bench *b, bool train, struct command *c)
{
    static const char *const dtype[] = {"auto", "bf16", "f32"};
    const struct hzp_engine_settings *s = b->started;
    memset(c, 0, sizeof(*c));
    add(c, "hzpserve");
    add(c, "serve");
    add(c, s->model.dir);
    add(c, "--state");
    add(c, "none");
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
    if (!train)
        add(c, "--no-train");
}

/* Reads what the server prints until it says where it serves.  False: it ended before. */
static bool wait_ready(int fd)
{
    static const char ready[] = "hzpserve serves ";
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
        if (strstr(text, ready))
            return true;
    }
    return false;
}

/* Starts a server, waits until it answers, and ends it. */
static int run_once(const struct hzp_bench *b, bool train, double *ret_seconds,
                    struct hzp_err_text *reterr)
{
    struct command command;
    int out[2];
    pid_t pid;
    make_command(b, train, &command);
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
    bool ready = !error && wait_ready(out[0]);
    *ret_seconds = (double)(hzp_now_ns() - begin) * 1e-9;
    if (!error) {
        kill(pid, SIGTERM);
        while (read(out[0], &(char[256]){0}, 256) > 0) {
        }
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    close(out[0]);
    if (ready)
        return HZP_OK;
    return hzp_fail(reterr, HZP_EIO, "bench start: the server %s; try hzpserve serve %s",
                    error ? "cannot be executed" : "did not start", b->started->model.dir);
}

int hzp_bench_start(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    double plain[RUNS], trains[RUNS], ratio[RUNS], cold;
    int runs = b->quick ? RUNS_QUICK : RUNS;
    HZP_TRY(run_once(b, false, &cold, reterr));
    HZP_TRY(run_once(b, true, &cold, reterr));
    for (int i = 0; i < runs; i++) {
        /* Each kind comes first in every second pair: what one leaves behind, such as memory that
         * the system has just got back, meets both alike. */
        bool first = i % 2;
        HZP_TRY(run_once(b, first, first ? &trains[i] : &plain[i], reterr));
        HZP_TRY(run_once(b, !first, first ? &plain[i] : &trains[i], reterr));
        ratio[i] = trains[i] / plain[i];
    }
    hzp_bench_plain(b, "start, without training", hzp_bench_quantile(plain, runs, 0.5), "s");
    hzp_bench_plain(b, "start, with training", hzp_bench_quantile(trains, runs, 0.5), "s");
    hzp_bench_plain(b, "start, with training over without", hzp_bench_quantile(ratio, runs, 0.5),
                    "x");
    /* On a machine that others use, the fastest runs say most. */
    double fastest = hzp_bench_quantile(plain, runs, 0);
    hzp_bench_plain(b, "start, fastest without training", fastest, "s");
    hzp_bench_plain(b, "start, fastest with training", hzp_bench_quantile(trains, runs, 0), "s");
    hzp_bench_plain(b, "start, fastest with over fastest without",
                    hzp_bench_quantile(trains, runs, 0) / fastest, "x");
    return HZP_OK;
}
