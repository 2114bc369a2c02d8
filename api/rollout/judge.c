/* SPDX-License-Identifier: Apache-2.0 */
#include "api/rollout/judge.h"

#include "base/log.h"
#include "base/thread.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

static const uint64_t first_pause_ns = 50000000u;

struct question {
    int64_t id; /* 0: the place is free */
    uint64_t due_ns;
};

struct hzp_judge {
    const char *command, *name;
    pid_t pid; /* 0: it does not run */
    int to, from;
    int64_t round;
    int failures, before; /* in a row, without an answer between them; before the newest line */
    uint64_t next_ns;     /* it is not started again before that */
    char why[160];        /* the newest failure */
    int64_t lost;         /* a question that gets no answer; 0: none */
    struct question open[HZP_JUDGE_OPEN];
    char *out; /* to be written: out[written .. bytes) */
    size_t bytes, written, room;
    char in[HZP_JUDGE_LINE];
    size_t in_bytes;
};

struct hzp_judge *hzp_judge_create(const char *command, const char *name)
{
    struct hzp_judge *j = hzp_xcalloc(1, sizeof(*j));
    j->command = command;
    j->name = name;
    j->round = 1;
    return j;
}

/* ---- the process ---- */

/* The server's environment without its keys; the strings are borrowed. */
static char **environment(void)
{
    extern char **environ;
    static const char *const keys[] = {
        "HZP_API_KEY=", "HZP_ADMIN_KEY=", "HZP_RANKS_KEY=", "HZP_MESH_KEY="};
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **ret = hzp_xcalloc(n + 1, sizeof(*ret));
    for (size_t i = 0; i < n; i++) {
        bool secret = false;
        for (int k = 0; k < HZP_COUNT(keys); k++)
            secret |= !strncmp(environ[i], keys[k], strlen(keys[k]));
        if (!secret)
            ret[kept++] = environ[i];
    }
    return ret;
}

/* With standard input and output at these ends, no signal blocked or ignored. */
static int spawn(struct hzp_judge *j, int in, int out)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    char *words[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                     (char *)(uintptr_t)j->command, NULL};
    HZP_FREED char **env = environment();
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                       POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    int code = posix_spawn(&j->pid, "/bin/sh", &files, &how, words, env);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return code;
}

static void close_all(const int *end)
{
    for (int i = 0; i < 4; i++)
        if (end[i] > 0)
            close(end[i]);
}

/* The question that was asked first; -1: none is open. */
static int oldest(const struct hzp_judge *j)
{
    int ret = -1;
    for (int i = 0; i < HZP_JUDGE_OPEN; i++)
        if (j->open[i].id && (ret < 0 || j->open[i].due_ns < j->open[ret].due_ns))
            ret = i;
    return ret;
}

/* It does not run (any more), for the reason in j->why.  What it was asked is forgotten, and the
 * question that may be the reason gets no answer: so it cannot fail again and again by the same. */
static void fail(struct hzp_judge *j)
{
    int first = oldest(j);
    j->lost = first >= 0 ? j->open[first].id : 0;
    j->failures++;
    j->round++;
    j->next_ns = hzp_now_ns() + (first_pause_ns << HZP_MIN(j->failures, 8));
    j->bytes = j->written = j->in_bytes = 0;
    memset(j->open, 0, sizeof(j->open));
    hzp_log(HZP_LOG_WARN, "train", "rollouts: the %s command %s; failures in a row=%d", j->name,
            j->why, j->failures);
}

static void stop(struct hzp_judge *j)
{
    if (!j->pid)
        return;
    close(j->to);
    close(j->from);
    kill(-j->pid, SIGKILL);
    while (waitpid(j->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    j->pid = 0;
}

/* Kills it, because of why. */
static void give_up(struct hzp_judge *j, const char *why)
{
    int status = 0;
    snprintf(j->why, sizeof(j->why), "%s", why);
    if (waitpid(j->pid, &status, WNOHANG) == j->pid) {
        snprintf(j->why, sizeof(j->why), "has ended, with %s %d",
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        kill(-j->pid, SIGKILL); /* what it has started */
        close(j->to);
        close(j->from);
        j->pid = 0;
    }
    stop(j);
    fail(j);
}

static void start(struct hzp_judge *j)
{
    int end[4] = {-1, -1, -1, -1}, code;
    if (pipe2(end, O_CLOEXEC) < 0 || pipe2(end + 2, O_CLOEXEC) < 0 ||
        fcntl(end[1], F_SETFL, O_NONBLOCK) < 0 || fcntl(end[2], F_SETFL, O_NONBLOCK) < 0)
        code = errno;
    else
        code = spawn(j, end[0], end[3]);
    if (code) {
        close_all(end);
        j->pid = 0;
        snprintf(j->why, sizeof(j->why), "cannot be started: %.100s", strerror(code));
        fail(j);
        return;
    }
    close(end[0]);
    close(end[3]);
    j->to = end[1];
    j->from = end[2];
    hzp_log(HZP_LOG_INFO, "train", "rollouts: the %s command runs pid=%d round=%" PRId64, j->name,
            (int)j->pid, j->round);
}

void hzp_judge_destroy(struct hzp_judge *j)
{
    if (!j)
        return;
    stop(j);
    free(j->out);
    free(j);
}

int64_t hzp_judge_round(const struct hzp_judge *j)
{
    return j->round;
}

int hzp_judge_check(struct hzp_judge *j, struct hzp_err_text *reterr)
{
    if (j->failures < HZP_JUDGE_FAILURES)
        return HZP_OK;
    j->failures = 0;
    return hzp_fail(reterr, HZP_EIO, "the %s command %s, %d times in a row", j->name, j->why,
                    HZP_JUDGE_FAILURES);
}

/* ---- questions ---- */

bool hzp_judge_ask(struct hzp_judge *j, int64_t id, const json_t *question, double seconds)
{
    int at = 0;
    if (!j->pid && hzp_now_ns() >= j->next_ns)
        start(j);
    while (at < HZP_JUDGE_OPEN && j->open[at].id)
        at++;
    if (!j->pid || at == HZP_JUDGE_OPEN)
        return false;
    json_auto_t *line = json_pack("{s:I}", "id", (json_int_t)id);
    json_object_update(line, (json_t *)(uintptr_t)question);
    HZP_FREED char *text = hzp_json_dumps(line, JSON_COMPACT);
    size_t n = strlen(text);
    /* What was written makes room, so the buffer holds open questions only. */
    if (j->written)
        memmove(j->out, j->out + j->written, j->bytes - j->written);
    j->bytes -= j->written;
    j->written = 0;
    if (j->bytes + n + 1 > j->room) {
        j->room = 2 * (j->bytes + n + 1);
        j->out = hzp_xrealloc(j->out, j->room);
    }
    memcpy(j->out + j->bytes, text, n);
    j->out[j->bytes + n] = '\n';
    j->bytes += n + 1;
    j->open[at] = (struct question){.id = id, .due_ns = hzp_now_ns() + (uint64_t)(seconds * 1e9)};
    return true;
}

static void write_out(struct hzp_judge *j)
{
    while (j->pid && j->written < j->bytes) {
        ssize_t n = write(j->to, j->out + j->written, j->bytes - j->written);
        if (n > 0)
            j->written += (size_t)n;
        else if (errno == EAGAIN)
            return;
        else if (errno != EINTR)
            give_up(j, "does not read");
    }
    j->written = j->bytes = 0;
}

/* Takes a line out of what was read.  True: it answers what was asked. */
static bool take_line(struct hzp_judge *j, size_t bytes, int64_t *ret_id, json_t **ret)
{
    json_t *line = hzp_json_load(j->in, bytes, 0, NULL, NULL);
    json_int_t id = json_integer_value(json_object_get(line, "id"));
    int at = 0;
    while (at < HZP_JUDGE_OPEN && (!id || j->open[at].id != id))
        at++;
    bool object = json_is_object(line), asked = object && at < HZP_JUDGE_OPEN;
    memmove(j->in, j->in + bytes + 1, j->in_bytes - bytes - 1);
    j->in_bytes -= bytes + 1;
    if (!object)
        give_up(j, "has written a line that is no JSON object");
    if (!asked) {
        json_decref(line);
        return false;
    }
    j->open[at].id = 0;
    j->before = j->failures;
    j->failures = 0;
    *ret_id = id;
    *ret = line;
    return true;
}

void hzp_judge_reject(struct hzp_judge *j, const char *why)
{
    memset(j->open, 0, sizeof(j->open)); /* none of them is the reason */
    j->failures = j->before;
    if (j->pid)
        give_up(j, why);
}

/* The question that gets no answer, if there is one. */
static bool take_lost(struct hzp_judge *j, int64_t *ret_id, json_t **ret)
{
    *ret_id = j->lost;
    *ret = NULL;
    j->lost = 0;
    return *ret_id != 0;
}

bool hzp_judge_next(struct hzp_judge *j, int64_t *ret_id, json_t **ret)
{
    write_out(j);
    while (j->pid) {
        const char *end = memchr(j->in, '\n', j->in_bytes);
        if (end) {
            if (take_line(j, (size_t)(end - j->in), ret_id, ret))
                return true;
            continue;
        }
        if (j->in_bytes == sizeof(j->in)) {
            give_up(j, "has written a line that is too long");
            break;
        }
        ssize_t n = read(j->from, j->in + j->in_bytes, sizeof(j->in) - j->in_bytes);
        if (n > 0)
            j->in_bytes += (size_t)n;
        else if (n == 0)
            give_up(j, "has closed its output");
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            give_up(j, "cannot be read");
    }
    int first = j->pid ? oldest(j) : -1;
    if (first >= 0 && hzp_now_ns() > j->open[first].due_ns)
        give_up(j, "has not answered in time");
    return take_lost(j, ret_id, ret);
}
