/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/launch/processes.c - starts ranks on this machine as its own children, without MPI. */
#include "mesh/launch/launch.h"
#include "mesh/launch/rendezvous.h"

#include "base/log.h"
#include "base/thread.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>

/* ---- the relay ---- */

/* The process that holds clients' connections (api/relay/relay.h), and the two sockets that outlive
 * processes.
 *
 *     clients -> port, kept for the relay -> the relay -> a Unix socket, kept for rank 0 -> rank 0
 *
 * The launcher has both sockets open as long as there will be a rank 0.  A relay that ends is
 * started again. */
struct relay {
    char path[96]; /* rank 0's socket; "": there is no relay */
    char url[160]; /* under which clients reach the relay */
    int port;      /* the socket of clients; -1: none */
    pid_t pid;     /* 0: it does not run */
    uint64_t begun_ns;
    const char *folder; /* borrowed: of the ranks */
    const char *program;
    char **argv;
    const sigset_t *mask; /* that it starts with, and with SIGHUP */
};

static const char path_variable[] = "HZP_RELAY_TO";    /* rank 0's socket, for the relay */
static const char kept_variable[] = "HZP_KEPT_SOCKET"; /* the descriptor of a kept socket */
static const char url_variable[] = "HZP_KEPT_URL";     /* where clients come to rank 0 */
enum { KEPT_LEAST = 3 };                               /* those below are replaced, or written to */
static const uint64_t second_ns = 1000000000u;

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

const char *hzp_launch_relay_to(void)
{
    const char *path = getenv("HZP_RANKS_DIR") ? getenv(path_variable) : NULL;
    return path && *path ? path : NULL;
}

/* The child: becomes the relay. */
HZP_NORETURN static void become_relay(const struct relay *p)
{
    hzp_launch_be_child();
    fcntl(p->port, F_SETFD, 0);
    set_number(kept_variable, p->port);
    setenv("HZP_RANKS_DIR", p->folder, 1);
    setenv(path_variable, p->path, 1);
    /* SIGHUP waits until the relay takes it, also where the ranks ignore it (nohup). */
    sigset_t mask = *p->mask;
    sigaddset(&mask, SIGHUP);
    signal(SIGHUP, SIG_DFL);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    execv(p->program, p->argv);
    _exit(127);
}

static bool start_relay(struct relay *p)
{
    p->begun_ns = hzp_now_ns();
    p->pid = fork();
    if (p->pid == 0)
        become_relay(p);
    if (p->pid > 0)
        return true;
    p->pid = 0;
    return false;
}

/* Makes rank 0's socket in the ranks' folder, and starts the relay, which takes clients from the
 * bound socket `port`.  *ret_fd: rank 0's socket, bound, the caller's.  HZP_EIO. */
static int open_relay(struct relay *p, int port, int *ret_fd, struct hzp_err_text *reterr)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    p->port = port;
    snprintf(p->path, sizeof(p->path), "%s/requests", p->folder);
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", p->path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* It listens already: what comes before rank 0 has started waits. */
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1024) == 0 &&
        start_relay(p)) {
        *ret_fd = fd;
        return HZP_OK;
    }
    int r =
        hzp_fail(reterr, HZP_EIO, "--restart: the relay cannot be started: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return r;
}

/* A process has ended.  True: it was the relay. */
static bool relay_ended(struct relay *p, pid_t pid, int status)
{
    if (!p->pid || p->pid != pid)
        return false;
    p->pid = 0;
    hzp_log(HZP_LOG_ERROR, "ranks",
            "the relay has ended, %s %d: the connections of its clients are broken",
            WIFSIGNALED(status) ? "signal" : "status",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return true;
}

/* Starts it again if it has ended, at most once a second. */
static void tend_relay(struct relay *p)
{
    if (p->path[0] && !p->pid && hzp_now_ns() - p->begun_ns > second_ns)
        start_relay(p);
}

/* Makes it read the keys again.  Only the launcher sends it SIGHUP: it has no terminal. */
static void reload_relay(const struct relay *p)
{
    if (p->pid)
        kill(p->pid, SIGHUP);
}

/* All ranks have ended: tells the relay to answer who still waits, and waits for its end. */
static void close_relay(struct relay *p)
{
    enum { TIMES = 1000 }; /* each lasts a hundredth of a second */
    if (p->port >= 0)
        close(p->port);
    p->port = -1;
    if (!p->pid)
        return;
    kill(p->pid, SIGTERM);
    int times = 0;
    while (waitpid(p->pid, NULL, WNOHANG) == 0)
        if (++times == TIMES)
            kill(p->pid, SIGKILL);
        else
            usleep(10000);
    p->pid = 0;
}

/* ---- ranks ---- */

struct team {
    int ranks;
    char **argv;
    char program[4096], folder[64];
    struct place {
        pid_t pid;         /* 0: has ended */
        int64_t left;      /* how often it may be started again */
        uint64_t due_ns;   /* when it is to be started again; 0: it is not */
        uint64_t begun_ns; /* when it was started */
        int quick;         /* how often in a row it has ended soon */
    } * place;             /* [ranks] */
    bool together;         /* without one of them, all others must end */
    uint64_t lost_ns; /* then: when one was lost, which ends those that began before; 0: never */
    bool asked;       /* to end */
    int kept;         /* rank 0's socket; -1: none */
    struct relay relay;
    struct hzp_life *life;
    int status;     /* rank 0's */
    int own_error;  /* the first status by which another rank ended that was not lost; 0: none */
    sigset_t mask;  /* before the launcher's */
    sigset_t first; /* that rank 0 begins with: SIGHUP to reload waits until it takes it */
};

/* The child: becomes the rank. */
HZP_NORETURN static void become_rank(struct team *team, int rank)
{
    hzp_launch_be_child();
    set_number("RANK", rank);
    set_number("WORLD_SIZE", team->ranks);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", team->ranks);
    setenv("HZP_RANKS_DIR", team->folder, 1);
    if (rank == 0 && team->kept >= 0) {
        fcntl(team->kept, F_SETFD, 0); /* the others do not inherit it */
        set_number(kept_variable, team->kept);
        if (team->relay.path[0])
            setenv(url_variable, team->relay.url, 1);
    }
    sigprocmask(SIG_SETMASK, rank == 0 ? &team->first : &team->mask, NULL);
    execv(team->program, team->argv);
    _exit(127);
}

static int start(struct team *team, int rank, struct hzp_err_text *reterr)
{
    team->place[rank].begun_ns = hzp_now_ns();
    team->place[rank].pid = fork();
    if (team->place[rank].pid == 0)
        become_rank(team, rank);
    if (team->place[rank].pid > 0)
        return HZP_OK;
    team->place[rank].pid = 0;
    return hzp_fail(reterr, HZP_EIO, "--ranks: cannot start a process: %s", strerror(errno));
}

int hzp_launch_kept(void)
{
    const char *text = getenv("HZP_RANKS_DIR") ? getenv(kept_variable) : NULL;
    char *end = NULL;
    long fd = text ? strtol(text, &end, 10) : -1;
    bool whole = text && *text && !*end && fd >= KEPT_LEAST && fd <= INT_MAX;
    struct sockaddr_storage at;
    socklen_t size = sizeof(at);
    if (!whole || getsockname((int)fd, (struct sockaddr *)&at, &size) < 0)
        return -1;
    return fcntl((int)fd, F_SETFD, FD_CLOEXEC) == 0 ? (int)fd : -1;
}

const char *hzp_launch_kept_url(void)
{
    return getenv(url_variable);
}

/* Keeps the socket fd, under a number that no child replaces. */
static int keep_as(struct team *team, int fd, struct hzp_err_text *reterr)
{
    team->kept = fcntl(fd, F_DUPFD_CLOEXEC, KEPT_LEAST);
    close(fd);
    return team->kept >= 0 ? HZP_OK
                           : hzp_fail(reterr, HZP_EIO, "--port: the socket cannot be kept: %s",
                                      strerror(errno));
}

static int keep_socket(struct team *team, const struct hzp_launch_keep *keep, bool relayed,
                       struct hzp_err_text *reterr)
{
    struct relay *relay = &team->relay;
    int fd;
    HZP_TRY(keep->open(keep->ctx, &fd, relay->url, sizeof(relay->url), reterr));
    HZP_TRY(keep_as(team, fd, reterr));
    if (!relayed)
        return HZP_OK;
    relay->folder = team->folder;
    relay->program = team->program;
    relay->argv = team->argv;
    relay->mask = &team->mask;
    int port = team->kept;
    team->kept = -1;
    HZP_TRY(open_relay(relay, port, &fd, reterr));
    return keep_as(team, fd, reterr);
}

/* Nothing answers there any more: those who wait at the socket are to know it. */
static void let_go(struct team *team)
{
    if (team->kept >= 0)
        close(team->kept);
    team->kept = -1;
}

/* How many run, or will. */
static int running(const struct team *team)
{
    int n = 0;
    for (int r = 0; r < team->ranks; r++)
        n += team->place[r].pid != 0 || team->place[r].due_ns;
    return n;
}

/* How long a rank that has ended waits until it is started again. */
static uint64_t pause_of(struct team *team, int rank, uint64_t now)
{
    enum { SOON_S = 60, LONGEST_S = 30 };
    bool soon = now - team->place[rank].begun_ns < SOON_S * second_ns;
    int quick = team->place[rank].quick = soon ? HZP_MIN(team->place[rank].quick + 1, 8) : 0;
    return quick < 3 ? 0 : HZP_MIN((uint64_t)1 << (quick - 3), (uint64_t)LONGEST_S) * second_ns;
}

/* Starts the ranks whose pause is over. */
static void start_due(struct team *team)
{
    uint64_t now = hzp_now_ns();
    for (int r = 0; r < team->ranks; r++) {
        if (!team->place[r].due_ns || now < team->place[r].due_ns)
            continue;
        team->place[r].due_ns = 0;
        if (start(team, r, NULL) < 0)
            hzp_log(HZP_LOG_ERROR, "ranks", "cannot start rank %d again", r);
        if (r == 0)
            reload_relay(&team->relay); /* rank 0 reads the keys as they are now */
    }
}

/* A rank has ended.  It is started again if it was lost, or another was. */
static void ended(struct team *team, int rank, int status)
{
    bool lost = WIFSIGNALED(status) || WEXITSTATUS(status) == HZP_LAUNCH_LOST;
    bool needed = rank == 0 || team->place[0].pid || team->place[0].due_ns;
    team->place[rank].pid = 0;
    if (rank == 0)
        team->status = WIFEXITED(status) ? WEXITSTATUS(status) : HZP_LAUNCH_LOST;
    if (!lost && rank && !team->own_error && !team->asked)
        team->own_error = WEXITSTATUS(status);
    if (!lost && status && needed && !team->asked)
        hzp_log(HZP_LOG_ERROR, "ranks",
                "rank=%d has ended by an error of its own, status %d, and is not started again",
                rank, WEXITSTATUS(status));
    if (WIFSIGNALED(status) && needed && !team->asked && team->place[rank].left <= 0)
        hzp_log(HZP_LOG_ERROR, "ranks",
                "rank=%d was lost, ended by signal %d, and is not started again: no --restart is "
                "left",
                rank, WTERMSIG(status));
    if (!lost || !needed || team->asked || team->place[rank].left <= 0)
        return;
    uint64_t now = hzp_now_ns(), pause_ns = pause_of(team, rank, now);
    if (team->place[rank].begun_ns > team->lost_ns)
        team->lost_ns = now;
    team->place[rank].left--;
    team->place[rank].due_ns = now + pause_ns;
    hzp_log(HZP_LOG_WARN, "ranks", "restart rank=%d left=%lld pause_s=%lld", rank,
            (long long)team->place[rank].left, (long long)(pause_ns / second_ns));
    hzp_launch_set_again();
}

static void reap(struct team *team)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        bool known = relay_ended(&team->relay, pid, status);
        for (int r = 0; r < team->ranks && !known; r++)
            if (team->place[r].pid == pid) {
                ended(team, r, status);
                known = true;
            }
    }
}

static void kill_all(const struct team *team)
{
    for (int r = 0; r < team->ranks; r++)
        if (team->place[r].pid)
            kill(team->place[r].pid, SIGKILL);
}

/* Those that have not ended although another rank is lost. */
static void kill_hanging(const struct team *team)
{
    enum { LONG_S = 30 };
    if (!team->together || !team->lost_ns || hzp_now_ns() - team->lost_ns < LONG_S * second_ns)
        return;
    for (int r = 0; r < team->ranks; r++)
        if (team->place[r].pid && team->place[r].begun_ns <= team->lost_ns) {
            hzp_log(HZP_LOG_WARN, "ranks", "rank=%d hangs: it has not ended %d s after a loss", r,
                    LONG_S);
            kill(team->place[r].pid, SIGKILL);
        }
}

/* Those that give no sign of life are lost, although they have not ended. */
static void kill_silent(struct team *team)
{
    pid_t pid;
    hzp_life_look(team->life);
    for (int r = 0; r < team->ranks; r++) {
        char who[32];
        snprintf(who, sizeof(who), "rank=%d", r);
        if (hzp_life_hangs(team->life, r, who, &pid) && pid == team->place[r].pid)
            kill(pid, SIGKILL);
    }
    if (hzp_life_hangs(team->life, HZP_LIFE_RELAY, "the relay", &pid) && pid == team->relay.pid)
        kill(pid, SIGKILL);
}

/* Those that answer clients read the keys again. */
static void reload(const struct team *team)
{
    if (team->place[0].pid)
        kill(team->place[0].pid, SIGHUP);
    reload_relay(&team->relay);
}

/* Waits until all have ended; passes signals on to rank 0, which lets the others end in order.  A
 * rank that outlives rank 0 for long hangs. */
static void wait_for_ranks(struct team *team, const sigset_t *set, bool terminal)
{
    enum { LONG_S = 30, ASKED_S = 5 };
    struct timespec turn = {.tv_nsec = (long)hzp_life_turn_ns(team->life)};
    uint64_t alone_ns = 0; /* since when rank 0 has ended */
    for (reap(team); running(team); reap(team)) {
        if (team->asked || !(team->place[0].pid || team->place[0].due_ns))
            let_go(team);
        start_due(team);
        kill_hanging(team);
        kill_silent(team);
        if (!team->asked)
            tend_relay(&team->relay);
        int number = sigtimedwait(set, NULL, &turn);
        bool ends = number == SIGTERM || number == SIGINT || (number == SIGHUP && terminal);
        team->asked |= ends;
        for (int r = 0; r < team->ranks && ends; r++)
            team->place[r].due_ns = 0;
        if (ends && team->place[0].pid)
            kill(team->place[0].pid, SIGUSR1);
        if (number == SIGHUP && !ends)
            reload(team);
        if (team->place[0].pid || team->place[0].due_ns)
            alone_ns = 0;
        else if (!alone_ns)
            alone_ns = hzp_now_ns();
        /* Those that were waiting for a lost rank do not hear that rank 0 has ended. */
        else if (hzp_now_ns() - alone_ns > (team->asked ? ASKED_S : LONG_S) * second_ns)
            kill_all(team);
    }
}

int hzp_launch_processes(int ranks, char **argv, int64_t restarts, bool together,
                         struct hzp_life *life, const struct hzp_launch_keep *keep, int *status,
                         struct hzp_err_text *reterr)
{
    struct team team = {.ranks = ranks,
                        .argv = argv,
                        .life = life,
                        .together = together,
                        .folder = "/tmp/hzpserve-ranks-XXXXXX",
                        .kept = -1,
                        .relay.port = -1,
                        .status = HZP_LAUNCH_LOST};
    ssize_t length = readlink("/proc/self/exe", team.program, sizeof(team.program) - 1);
    if (length <= 0 || !mkdtemp(team.folder))
        return hzp_fail(reterr, HZP_EIO, "--ranks: %s: %s",
                        length > 0 ? team.folder : "this program's own file", strerror(errno));
    bool terminal;
    sigset_t set;
    team.program[length] = 0;
    team.place = hzp_xcalloc((size_t)ranks, sizeof(*team.place));
    for (int i = 0; i < ranks; i++)
        team.place[i].left = restarts;
    hzp_launch_block_signals(&set, &team.mask, &terminal);
    team.first = team.mask;
    if (keep && !terminal)
        sigaddset(&team.first, SIGHUP);
    int r = keep ? keep_socket(&team, keep, restarts > 0, reterr) : HZP_OK;
    for (int i = 0; i < ranks && r == HZP_OK; i++)
        r = start(&team, i, reterr);
    team.asked = r < 0;
    if (r < 0)
        kill_all(&team);
    wait_for_ranks(&team, &set, terminal);
    let_go(&team);
    close_relay(&team.relay);
    sigprocmask(SIG_SETMASK, &team.mask, NULL);
    hzp_rendezvous_remove(team.folder); /* with the sockets of ranks that were killed */
    free(team.place);
    /* Rank 0 only sees that the other one has gone. */
    *status = team.status == HZP_LAUNCH_LOST && team.own_error ? team.own_error : team.status;
    return r;
}
