/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/launch/relay_process.h"

#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char path_variable[] = "HZP_RELAY_TO"; /* rank 0's socket, for the relay */
static const uint64_t second_ns = 1000000000u;

const char *hzp_relay_process_path(void)
{
    const char *path = getenv("HZP_RANKS_DIR") ? getenv(path_variable) : NULL;
    return path && *path ? path : NULL;
}

/* The child: becomes the relay. */
HZP_NORETURN static void become_relay(const struct hzp_relay_process *p)
{
    char number[16];
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (nothing >= 0)
        dup2(nothing, 0);
    snprintf(number, sizeof(number), "%d", p->port);
    fcntl(p->port, F_SETFD, 0);
    setenv("HZP_KEPT_SOCKET", number, 1);
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

static bool start(struct hzp_relay_process *p)
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

int hzp_relay_process_open(struct hzp_relay_process *p, int port, int *ret_fd,
                           struct hzp_err_text *reterr)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    p->port = port;
    snprintf(p->path, sizeof(p->path), "%s/requests", p->folder);
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", p->path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* It listens already: what comes before rank 0 has started waits. */
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1024) == 0 &&
        start(p)) {
        *ret_fd = fd;
        return HZP_OK;
    }
    int r =
        hzp_fail(reterr, HZP_EIO, "--restart: the relay cannot be started: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return r;
}

bool hzp_relay_process_ended(struct hzp_relay_process *p, pid_t pid, int status)
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

void hzp_relay_process_tend(struct hzp_relay_process *p)
{
    if (p->path[0] && !p->pid && hzp_now_ns() - p->begun_ns > second_ns)
        start(p);
}

void hzp_relay_process_reload(const struct hzp_relay_process *p)
{
    if (p->pid)
        kill(p->pid, SIGHUP);
}

void hzp_relay_process_close(struct hzp_relay_process *p)
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
