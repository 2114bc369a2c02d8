/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/launch/launch.h"

#include "base/log.h"
#include "base/thread.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Where the memory is: a file of the launcher under /proc, which only this user can open.  Ranks
 * that mpirun starts inherit no descriptor. */
static const char variable[] = "HZP_RANKS_LIFE";
static const long beat_ns = 200000000;
static const uint64_t second_ns = 1000000000u;
/* The other ranks, which see more, are to name the loss first. */
static const uint64_t LATER_NS = 1000000000u;

struct hzp_life_memory {
    struct {
        _Atomic int64_t pid;
        _Atomic uint64_t count;
    } place[HZP_LIFE_PLACES];
    _Atomic uint32_t texts; /* how many were kept; the newest is in text[texts % 2] */
    char text[2][HZP_LIFE_TEXT];
};

/* ---- the launcher ---- */

void hzp_life_open(struct hzp_life *life, double limit_s)
{
    char path[64];
    memset(life, 0, sizeof(*life));
    for (int i = 0; i < HZP_LIFE_PLACES; i++)
        life->place[i].pidfd = -1;
    life->limit_ns = (uint64_t)(limit_s * 1e9) + LATER_NS;
    life->turn_ns = hzp_now_ns();
    life->fd = memfd_create("hzpserve-life", MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (life->fd >= 0 && ftruncate(life->fd, sizeof(*life->memory)) == 0)
        memory = mmap(NULL, sizeof(*life->memory), PROT_READ | PROT_WRITE, MAP_SHARED, life->fd, 0);
    if (memory == MAP_FAILED) {
        hzp_log(HZP_LOG_WARN, "ranks", "no memory to share with the ranks: hangs are not noticed");
        return;
    }
    life->memory = memory;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), life->fd);
    setenv(variable, path, 1);
}

static void forget(struct hzp_life *life, int place)
{
    if (life->place[place].pidfd >= 0)
        close(life->place[place].pidfd);
    memset(&life->place[place], 0, sizeof(life->place[place]));
    life->place[place].pidfd = -1;
}

void hzp_life_close(struct hzp_life *life)
{
    if (life->memory)
        munmap(life->memory, sizeof(*life->memory));
    for (int i = 0; i < HZP_LIFE_PLACES; i++)
        forget(life, i);
    if (life->fd >= 0)
        close(life->fd);
    life->fd = -1;
    life->memory = NULL;
    unsetenv(variable);
}

uint64_t hzp_life_turn_ns(const struct hzp_life *life)
{
    return HZP_MIN(life->limit_ns / 4, second_ns - 1);
}

void hzp_life_look(struct hzp_life *life)
{
    uint64_t now = hzp_now_ns(), held = now - life->turn_ns, most = 2 * hzp_life_turn_ns(life);
    uint64_t passed = HZP_MIN(held, most); /* what is more held up the launcher itself */
    life->turn_ns = now;
    for (int i = 0; i < HZP_LIFE_PLACES && life->memory; i++) {
        pid_t pid = (pid_t)atomic_load(&life->memory->place[i].pid);
        uint64_t count = atomic_load(&life->memory->place[i].count);
        if (pid != life->place[i].pid) {
            forget(life, i);
            life->place[i].pid = pid;
            if (pid)
                life->place[i].pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        }
        /* One that was killed leaves its pid until another takes its place. */
        bool ended = pid && kill(pid, 0) < 0 && errno == ESRCH;
        if (ended || count != life->place[i].count)
            life->place[i].quiet_ns = 0;
        else if (pid)
            life->place[i].quiet_ns += passed;
        life->place[i].count = count;
    }
}

bool hzp_life_hangs(struct hzp_life *life, int place, const char *who, pid_t *ret_pid)
{
    uint64_t quiet = life->place[place].quiet_ns;
    if (!life->place[place].pid || life->place[place].told || quiet <= life->limit_ns)
        return false;
    *ret_pid = life->place[place].pid;
    life->place[place].told = true;
    hzp_log(HZP_LOG_ERROR, "ranks", "%s hangs: no sign of life for %.1f s (--rank-timeout), killed",
            who, (double)quiet * 1e-9);
    return true;
}

void hzp_life_kill(const struct hzp_life *life, int place)
{
    if (life->place[place].pidfd >= 0)
        syscall(SYS_pidfd_send_signal, life->place[place].pidfd, SIGKILL, NULL, 0);
}

/* ---- the processes ---- */

static struct hzp_life_memory *shared; /* NULL: there is none */
static int own_place;

static void leave(void)
{
    atomic_store(&shared->place[own_place].pid, 0);
}

static void *beat(void *arg)
{
    for (;;) {
        atomic_fetch_add(&shared->place[own_place].count, 1);
        nanosleep(&(struct timespec){.tv_nsec = beat_ns}, NULL);
    }
    return arg;
}

void hzp_life_begin(int place)
{
    const char *path = getenv(variable);
    static char name[16] = "hzpserve-relay";
    if (place != HZP_LIFE_RELAY)
        snprintf(name, sizeof(name), "hzpserve-r%d", place);
    hzp_log_set_part(name + strlen("hzpserve-"));
    prctl(PR_SET_NAME, name);
    int fd = path && *path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || shared)
        return;
    void *memory = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return;
    shared = memory;
    own_place = place;
    /* Signals are for the threads that wait for them. */
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool begun = hzp_thread_start(&thread, "hzp-life", beat, NULL) == HZP_OK;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!begun)
        return;
    pthread_detach(thread);
    atomic_store(&shared->place[place].pid, getpid());
    atexit(leave);
}

pid_t hzp_life_pid(int place)
{
    return shared ? (pid_t)atomic_load(&shared->place[place].pid) : 0;
}

bool hzp_life_keep(const char *text)
{
    size_t bytes = strlen(text) + 1;
    if (!shared || bytes > HZP_LIFE_TEXT)
        return false;
    uint32_t next = atomic_load(&shared->texts) + 1;
    memcpy(shared->text[next % 2], text, bytes);
    atomic_store(&shared->texts, next); /* only now is it whole */
    return true;
}

char *hzp_life_kept(void)
{
    uint32_t texts = shared ? atomic_load(&shared->texts) : 0;
    if (!texts)
        return NULL;
    char *text = hzp_xcalloc(HZP_LIFE_TEXT + 1, 1);
    memcpy(text, shared->text[texts % 2], HZP_LIFE_TEXT);
    return text;
}
