/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/launch/launch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

struct source {
    const char *kind, *rank, *ranks, *local_rank, *local_ranks;
    bool beside; /* may stand beside another launcher's variables and say something else */
};

/* The file that rank 0 reports to (hzp_launch_report). */
static const char status_variable[] = "HZP_RANK_STATUS";
static const uint64_t second_ns = 1000000000u;

static const struct source sources[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, true},
};

/* Reads a number of a variable that is set. */
static int number(const char *name, const char *text, int low, int high, int *ret,
                  struct hzp_err_text *reterr)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return hzp_fail_param(reterr, HZP_EINVAL, name,
                              "%s in the environment is \"%.40s\", not a number from %d to %d",
                              name, text, low, high);
    *ret = (int)value;
    return HZP_OK;
}

/* Reads rank and ranks from one source; *found: both are set. */
static int read_pair(const struct source *s, const char *(*get)(void *, const char *), void *ctx,
                     int *rank, int *ranks, bool *found, struct hzp_err_text *reterr)
{
    const char *rank_text = get(ctx, s->rank), *ranks_text = get(ctx, s->ranks);
    *found = rank_text && *rank_text && ranks_text && *ranks_text;
    if (!*found)
        return HZP_OK;
    HZP_TRY(number(s->ranks, ranks_text, 1, HZP_LINK_RANKS_MAX, ranks, reterr));
    return number(s->rank, rank_text, 0, *ranks - 1, rank, reterr);
}

/* Slurm's tasks on this node: the list has an entry for each node, "2" or "2(x3)" for three nodes
 * with two tasks each, in the order of SLURM_NODEID. */
static int read_slurm_tasks(const char *(*get)(void *, const char *), void *ctx,
                            struct hzp_launch *ret, struct hzp_err_text *reterr)
{
    static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
    const char *list = get(ctx, name), *at = list, *id = get(ctx, "SLURM_NODEID");
    int node = 0, nodes = 0;
    if (!list || !*list || !id || !*id)
        return HZP_OK;
    HZP_TRY(number("SLURM_NODEID", id, 0, ret->ranks - 1, &node, reterr));
    while (*at) {
        int tasks, times = 1, length = 0, more = 0;
        bool good = sscanf(at, "%5d%n", &tasks, &length) == 1 && tasks >= 1;
        at += length;
        if (good && *at == '(')
            good = sscanf(at, "(x%5d)%n", &times, &more) == 1 && more && times >= 1;
        at += more;
        if (!good || (*at && *at != ','))
            return hzp_fail_param(reterr, HZP_EINVAL, name,
                                  "%s in the environment is \"%.40s\", not a list such as 2(x3),1",
                                  name, list);
        at += *at == ',';
        nodes += times;
        if (node < nodes) {
            ret->local_ranks = HZP_MIN(tasks, ret->ranks);
            return HZP_OK;
        }
    }
    return HZP_OK;
}

static int read_rest(const struct source *s, const char *(*get)(void *, const char *), void *ctx,
                     struct hzp_launch *ret, struct hzp_err_text *reterr)
{
    ret->ours = get(ctx, status_variable) || get(ctx, "HZP_RANKS_DIR");
    const char *local = get(ctx, s->local_rank);
    const char *locals = s->local_ranks ? get(ctx, s->local_ranks) : NULL;
    const char *host = get(ctx, "MASTER_ADDR"), *port = get(ctx, "MASTER_PORT");
    if (local && *local)
        HZP_TRY(number(s->local_rank, local, 0, ret->ranks - 1, &ret->local_rank, reterr));
    if (locals && *locals)
        HZP_TRY(number(s->local_ranks, locals, 1, ret->ranks, &ret->local_ranks, reterr));
    if (!strcmp(s->kind, "slurm"))
        HZP_TRY(read_slurm_tasks(get, ctx, ret, reterr));
    if (host && strlen(host) >= sizeof(ret->host))
        return hzp_fail_param(reterr, HZP_EINVAL, "MASTER_ADDR",
                              "MASTER_ADDR in the environment is longer than %zu bytes",
                              sizeof(ret->host) - 1);
    snprintf(ret->host, sizeof(ret->host), "%s", host ? host : "");
    if (port && *port)
        HZP_TRY(number("MASTER_PORT", port, 1, 65535, &ret->port, reterr));
    snprintf(ret->from, sizeof(ret->from), "%s,%s%s%s%s%s", s->rank, s->ranks,
             ret->local_rank >= 0 ? "," : "", ret->local_rank >= 0 ? s->local_rank : "",
             ret->host[0] ? ",MASTER_ADDR" : "", ret->port ? ",MASTER_PORT" : "");
    return HZP_OK;
}

int hzp_launch_read(const char *(*get)(void *ctx, const char *name), void *ctx,
                    struct hzp_launch *ret, struct hzp_err_text *reterr)
{
    const struct source *taken = NULL;
    *ret = (struct hzp_launch){.ranks = 1, .local_rank = -1, .local_ranks = -1, .kind = ""};
    for (int i = 0; i < HZP_COUNT(sources); i++) {
        const struct source *s = &sources[i];
        int rank, ranks;
        bool found;
        if (taken && s->beside)
            continue;
        HZP_TRY(read_pair(s, get, ctx, &rank, &ranks, &found, reterr));
        if (!found)
            continue;
        if (taken && (rank != ret->rank || ranks != ret->ranks))
            return hzp_fail_param(reterr, HZP_EINVAL, s->rank,
                                  "the environment contradicts itself: %s says rank %d of %d, %s "
                                  "says rank %d of %d; unset what the launcher did not set",
                                  taken->rank, ret->rank, ret->ranks, s->rank, rank, ranks);
        if (taken)
            continue;
        taken = s;
        ret->rank = rank;
        ret->ranks = ranks;
        ret->kind = s->kind;
    }
    return taken ? read_rest(taken, get, ctx, ret, reterr) : HZP_OK;
}

static const char *environment(void *ctx, const char *name)
{
    return getenv(name);
}

int hzp_launch_environment(struct hzp_launch *ret, struct hzp_err_text *reterr)
{
    return hzp_launch_read(environment, NULL, ret, reterr);
}

/* ---- starting ranks ---- */

void hzp_launch_report(int status)
{
    const char *path = getenv(status_variable);
    struct hzp_launch launch;
    if (!path || !*path || hzp_launch_environment(&launch, NULL) < 0 || launch.rank)
        return;
    FILE *file = fopen(path, "w");
    if (!file)
        return;
    fprintf(file, "%d\n", status);
    fclose(file);
}

static const char again_variable[] = "HZP_RANKS_AGAIN";

void hzp_launch_set_again(void)
{
    setenv(again_variable, "1", 1);
}

bool hzp_launch_again(void)
{
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT"); /* torchrun's */
    return getenv(again_variable) || (restarts && strtol(restarts, NULL, 10) > 0);
}

/* What rank 0 reported; -1: nothing yet. */
static int reported(const char *path)
{
    int status = -1;
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    if (fscanf(file, "%d", &status) != 1)
        status = -1;
    fclose(file);
    return status;
}

enum { NOT_INSTALLED = 127 };
static const char *const launchers[] = {"mpirun", "mpiexec"};

void hzp_launch_be_child(void)
{
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (nothing >= 0)
        dup2(nothing, 0);
}

/* The child: becomes the launcher. */
HZP_NORETURN static void become_launcher(char **command, const sigset_t *mask)
{
    hzp_launch_be_child();
    sigprocmask(SIG_SETMASK, mask, NULL);
    for (int i = 0; i < HZP_COUNT(launchers); i++) {
        char name[16];
        snprintf(name, sizeof(name), "%s", launchers[i]);
        command[0] = name;
        execvp(name, command);
    }
    _exit(NOT_INSTALLED);
}

/* Ranks that give no sign of life are lost, although they have not ended. */
static void kill_silent(struct hzp_life *life)
{
    pid_t pid;
    hzp_life_look(life);
    for (int r = 0; r < HZP_LINK_RANKS_MAX; r++) {
        char who[32];
        snprintf(who, sizeof(who), "rank=%d", r);
        if (hzp_life_hangs(life, r, who, &pid))
            hzp_life_kill(life, r);
    }
}

/* Waits for the launcher, passes signals on.  A launcher that outlives rank 0 for long waits for a
 * rank that hangs: it is told to end. */
static int wait_for_launcher(pid_t child, const sigset_t *set, bool terminal, const char *path,
                             struct hzp_life *life, bool *ret_asked)
{
    enum { LONG_S = 30 };
    uint64_t turn_ns = hzp_life_turn_ns(life), after_ns = 0;
    struct timespec turn = {.tv_nsec = (long)turn_ns};
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        kill_silent(life);
        int number = sigtimedwait(set, NULL, &turn);
        bool ends = number == SIGTERM || number == SIGINT || (number == SIGHUP && terminal);
        *ret_asked |= ends;
        if (ends)
            kill(child, SIGUSR1);
        else if (number < 0 && reported(path) >= 0 && (after_ns += turn_ns) > LONG_S * second_ns) {
            kill(child, SIGTERM);
            after_ns = 0;
        }
    }
    return status;
}

static void set_environment(const char *path)
{
    /* Open MPI reads these; other launchers do not need them.  What a user has set stays.  Without
     * "isolated" mpirun looks for ssh, even to start processes on this machine only.  Ranks on one
     * machine exchange through its memory: by default each also listens on every address, without
     * asking who connects. */
    static const char *const always[][2] = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                            {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                            {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                            {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                            {"OMPI_MCA_orte_enable_recovery", "1"},
                                            {"OMPI_MCA_plm", "isolated"},
                                            {"OMPI_MCA_pml", "ob1"},
                                            {"OMPI_MCA_btl", "self,vader"},
                                            {"OMPI_MCA_btl_tcp_if_include", "lo"},
                                            {"OMPI_MCA_oob_tcp_if_include", "lo"},
                                            {"OMPI_MCA_oob_tcp_disable_ipv6_family", "1"}};
    for (int i = 0; i < HZP_COUNT(always); i++)
        setenv(always[i][0], always[i][1], 0);
    setenv(status_variable, path, 1);
}

/* mpirun -n RANKS PROGRAM ARGUMENTS; the caller frees it. */
static char **command_line(char *program, char *count, char **argv)
{
    int words = 0;
    while (argv[words])
        words++;
    static char option[] = "-n";
    char **command = hzp_xcalloc((size_t)words + 4, sizeof(*command));
    command[1] = option;
    command[2] = count;
    command[3] = program;
    for (int i = 1; i < words; i++)
        command[3 + i] = argv[i];
    return command;
}

void hzp_launch_block_signals(sigset_t *set, sigset_t *before, bool *ret_terminal)
{
    struct sigaction hup;
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGCHLD);
    /* A terminal that closes is one; else the signal is for rank 0, whose keys it reads again. */
    *ret_terminal = isatty(STDIN_FILENO) || isatty(STDOUT_FILENO);
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)
        sigaddset(set, SIGHUP);
    sigprocmask(SIG_BLOCK, set, before);
}

int hzp_launch_local(int ranks, char **argv, struct hzp_life *life, int *status, bool *ret_asked,
                     struct hzp_err_text *reterr)
{
    char program[4096], count[16], path[] = "/tmp/hzpserve-status-XXXXXX";
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    int file = length > 0 ? mkstemp(path) : -1;
    if (file < 0)
        return hzp_fail(reterr, HZP_EIO, "--ranks: %s: %s",
                        length > 0 ? path : "this program's own file", strerror(errno));
    close(file);
    program[length] = 0;
    snprintf(count, sizeof(count), "%d", ranks);
    set_environment(path);
    char **command = command_line(program, count, argv);
    sigset_t set, before;
    bool terminal;
    hzp_launch_block_signals(&set, &before, &terminal);
    pid_t child = fork();
    if (child == 0)
        become_launcher(command, &before);
    int ended = child > 0 ? wait_for_launcher(child, &set, terminal, path, life, ret_asked) : 0;
    int r = HZP_OK;
    if (child < 0)
        r = hzp_fail(reterr, HZP_EIO, "--ranks: cannot start a process: %s", strerror(errno));
    else if (WIFEXITED(ended) && WEXITSTATUS(ended) == NOT_INSTALLED)
        r = hzp_fail_param(reterr, HZP_EUNSUP, "--ranks",
                           "--ranks %d: neither mpirun nor mpiexec is installed (openmpi-bin)",
                           ranks);
    *status = reported(path) >= 0 ? reported(path) : HZP_LAUNCH_LOST;
    unlink(path);
    unsetenv(status_variable);
    free(command);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return r;
}
