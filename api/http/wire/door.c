/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/door.h"

#include "base/log.h"
#include "base/thread.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

enum {
    BACKLOG = 1024,
    LINGERERS = 64,         /* more are closed at once */
    LINGER_BYTES = 1 << 28, /* thrown away at most */
    OTHER_FILES = 128,      /* descriptors that are no connections */
    READ_BYTES = 16 << 10,  /* a client that receives less in idle_ns does not read */
};
static const uint64_t LINGER_NS = 2000000000ull, PAUSE_NS = 100000000ull;
static const uint64_t SHORT_PAUSE_NS = 2000000ull, FRESH_NS = 1000000000ull;
static const uint64_t TICK_NS = 500000000ull, BODY_GRACE_NS = 5000000000ull;
static const uint64_t LEFT_NS = 3000000000ull;

struct address {
    uint8_t byte[16]; /* IPv6: the first 64 bits, which one client has many of */
    bool loopback;    /* or the relay's */
    bool relay;       /* a Unix socket */
};

struct entry {
    struct address from;
    enum hzp_door_phase phase;
    bool used, begun;
    uint64_t since_ns, deadline_ns, whole_ns; /* whole: of BODY; deadline 0: none */
    uint64_t left_ns;        /* when the client was first seen to have closed; 0: it has not */
    uint64_t acked;          /* bytes of answers that the client had received at the last look */
    void (*left)(void *ctx); /* hzp_door_watch's; NULL: the connection is not watched */
    void *ctx;
    uint32_t turn; /* distinguishes this watch from earlier ones of the same number */
};

struct lingerer {
    int fd; /* -1: free */
    size_t bytes;
    uint64_t deadline_ns;
};

struct hzp_door {
    struct hzp_door_config config;
    int listening, epoll, stop;
    int port;
    pthread_t thread;
    atomic_bool started;
    bool paused; /* the listening socket is out of the epoll set */
    uint64_t paused_until, warned_ns;
    struct hzp_lock lock;
    /* under lock */
    struct entry *entry; /* [room], by descriptor */
    int room;
    uint32_t turn; /* the newest watch's, from 1 */
    struct lingerer lingerer[LINGERERS];
    struct hzp_door_stats stats;
};

/* An event's number says what it is of: one of these two; a lingerer, by its descriptor; or a
 * watch, by its turn in the upper 32 bits and its descriptor in the lower. */
static const uint64_t LISTENING = UINT64_MAX - 1, STOP = UINT64_MAX;

/* ---- addresses ---- */

static struct address address_of(const struct sockaddr *from)
{
    struct address a = {.relay = from->sa_family == AF_UNIX};
    a.loopback = a.relay;
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)from;
        memcpy(a.byte, &v4->sin_addr, 4);
        a.loopback = a.byte[0] == 127;
    } else if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)from;
        memcpy(a.byte, &v6->sin6_addr, 16);
        a.loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
        if (!IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
            memset(a.byte + 8, 0, 8);
    }
    return a;
}

/* Under the lock. */
static int64_t places_of(const struct hzp_door *door, const struct address *from)
{
    int64_t n = 0;
    for (int fd = 0; fd < door->room; fd++)
        n += door->entry[fd].used && door->entry[fd].phase != HZP_DOOR_CLOSING &&
             !memcmp(door->entry[fd].from.byte, from->byte, sizeof(from->byte));
    return n;
}

/* ---- refusing and making way ---- */

/* Under the lock. */
static void take_lingerer(struct hzp_door *door, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)fd};
    for (int i = 0; i < LINGERERS; i++)
        if (door->lingerer[i].fd < 0) {
            if (epoll_ctl(door->epoll, EPOLL_CTL_ADD, fd, &event))
                break;
            door->lingerer[i] =
                (struct lingerer){.fd = fd, .deadline_ns = hzp_now_ns() + LINGER_NS};
            return;
        }
    close(fd);
}

/* Answers without the library; the socket is new, so the few bytes fit its buffer. */
static void refuse(struct hzp_door *door, int fd, bool busy)
{
    static const char full[] =
        "{\"error\":{\"message\":\"all connections of this server are in use\",\"type\":"
        "\"server_error\",\"param\":null,\"code\":\"overloaded\"}}";
    static const char many[] =
        "{\"error\":{\"message\":\"this address has too many connections open\",\"type\":"
        "\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}";
    char text[512];
    const char *body = busy ? full : many;
    int bytes =
        snprintf(text, sizeof(text),
                 "HTTP/1.1 %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 "Retry-After: 1\r\nContent-Length: %zu\r\n\r\n%s",
                 busy ? "503 Service Unavailable" : "429 Too Many Requests", strlen(body), body);
    ssize_t sent = send(fd, text, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    HZP_LOCKED(&door->lock);
    door->stats.refused++;
    if (sent > 0)
        take_lingerer(door, fd);
    else
        close(fd);
}

/* Under the lock. */
static void end_entry(struct entry *e, int fd)
{
    e->phase = HZP_DOOR_CLOSING;
    e->deadline_ns = 0;
    shutdown(fd, SHUT_RDWR);
}

/* Under the lock.  The connection that has had nothing to do for longest; -1: none. */
static int find_idle(const struct hzp_door *door, uint64_t now)
{
    int idle = -1, body = -1;
    for (int fd = 0; fd < door->room; fd++) {
        const struct entry *e = &door->entry[fd];
        if (!e->used || !e->begun)
            continue;
        if (e->phase == HZP_DOOR_HEADER || e->phase == HZP_DOOR_IDLE) {
            if (idle < 0 || e->since_ns < door->entry[idle].since_ns)
                idle = fd;
        } else if (e->phase == HZP_DOOR_BODY && now - e->since_ns > BODY_GRACE_NS) {
            if (body < 0 || e->since_ns < door->entry[body].since_ns)
                body = fd;
        }
    }
    return idle >= 0 ? idle : body;
}

/* ---- accepting ---- */

/* Whether all places are taken, and the library has not yet begun to read some of the newest
 * connections: it will soon be known which of them are idle. */
static bool wait_for_library(struct hzp_door *door)
{
    uint64_t now = hzp_now_ns();
    bool fresh = false;
    HZP_LOCKED(&door->lock);
    if (door->stats.open >= door->config.places + HZP_DOOR_RESERVE && find_idle(door, now) < 0)
        for (int fd = 0; fd < door->room && !fresh; fd++) {
            const struct entry *e = &door->entry[fd];
            fresh = e->used && !e->begun && now - e->since_ns < FRESH_NS;
        }
    return fresh;
}

enum verdict { ADMITTED, NO_PLACE, TOO_MANY };

static enum verdict take_place(struct hzp_door *door, int fd, const struct address *from)
{
    uint64_t now = hzp_now_ns();
    enum verdict verdict = ADMITTED;
    HZP_LOCKED(&door->lock);
    int64_t most = door->config.per_address;
    if (most && !from->loopback && places_of(door, from) >= most) {
        verdict = TOO_MANY;
    } else if (door->stats.open >= door->config.places + HZP_DOOR_RESERVE) {
        int idle = find_idle(door, now);
        if (idle < 0) {
            verdict = NO_PLACE;
        } else {
            end_entry(&door->entry[idle], idle);
            door->stats.open--;
            door->stats.made_way++;
        }
    }
    if (verdict == ADMITTED) {
        if (fd >= door->room) {
            int room = HZP_MAX(2 * door->room, fd + 64);
            door->entry = hzp_xrealloc(door->entry, (size_t)room * sizeof(*door->entry));
            memset(door->entry + door->room, 0, (size_t)(room - door->room) * sizeof(*door->entry));
            door->room = room;
        }
        struct entry *e = &door->entry[fd];
        /* One that is still here was given to the library, which closed it without a word. */
        door->stats.open += !e->used || e->phase == HZP_DOOR_CLOSING;
        *e = (struct entry){.from = *from,
                            .phase = HZP_DOOR_HEADER,
                            .used = true,
                            .since_ns = now,
                            .deadline_ns = now + door->config.header_ns};
        door->stats.accepted++;
    }
    return verdict;
}

static void watch_listening(struct hzp_door *door, bool watch)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = LISTENING};
    epoll_ctl(door->epoll, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, door->listening, &event);
    door->paused = !watch;
}

static void pause_for(struct hzp_door *door, uint64_t ns)
{
    watch_listening(door, false);
    door->paused_until = hzp_now_ns() + ns;
}

/* No descriptor or memory is left: waits, instead of being woken again at once. */
static void wait_for_descriptors(struct hzp_door *door, int error)
{
    uint64_t now = hzp_now_ns();
    pause_for(door, PAUSE_NS);
    hzp_lock_take(&door->lock);
    door->stats.descriptors_exhausted++;
    hzp_lock_release(&door->lock);
    if (!door->warned_ns || now - door->warned_ns > 60000000000ull) {
        hzp_log(HZP_LOG_WARN, "http",
                "connections wait: %s; raise the limit (ulimit -n) or lower "
                "--max-connections",
                strerror(error));
        door->warned_ns = now;
    }
}

static void accept_some(struct hzp_door *door)
{
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage from;
        socklen_t bytes = sizeof(from);
        if (wait_for_library(door)) {
            pause_for(door, SHORT_PAUSE_NS);
            return;
        }
        int fd = accept4(door->listening, (struct sockaddr *)&from, &bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                wait_for_descriptors(door, errno);
            else if (errno == ECONNABORTED || errno == EINTR)
                continue;
            return;
        }
        struct address address = address_of((struct sockaddr *)&from);
        switch (take_place(door, fd, &address)) {
        case ADMITTED:
            if (!door->config.admit(door->config.ctx, fd, (struct sockaddr *)&from, bytes))
                hzp_door_ended(door, fd);
            break;
        case NO_PLACE:
            refuse(door, fd, true);
            break;
        case TOO_MANY:
            refuse(door, fd, false);
            break;
        }
    }
}

/* ---- the thread ---- */

/* Under the lock. */
static void end_lingerer(struct hzp_door *door, struct lingerer *l)
{
    epoll_ctl(door->epoll, EPOLL_CTL_DEL, l->fd, NULL);
    close(l->fd);
    l->fd = -1;
}

static void throw_away(struct hzp_door *door, int fd)
{
    char piece[16384];
    HZP_LOCKED(&door->lock);
    for (int i = 0; i < LINGERERS; i++) {
        struct lingerer *l = &door->lingerer[i];
        if (l->fd != fd)
            continue;
        ssize_t n = recv(fd, piece, sizeof(piece), MSG_DONTWAIT);
        bool again = n < 0 && (errno == EAGAIN || errno == EINTR);
        l->bytes += n > 0 ? (size_t)n : 0;
        if ((n <= 0 && !again) || l->bytes > LINGER_BYTES)
            end_lingerer(door, l);
    }
}

/* Calls `left` under the lock, so that hzp_door_forget waits for a running call. */
static void tell_left(struct hzp_door *door, int fd, uint32_t turn)
{
    HZP_LOCKED(&door->lock);
    struct entry *e = fd < door->room ? &door->entry[fd] : NULL;
    if (e && e->left && e->turn == turn)
        e->left(e->ctx);
}

/* Under the lock.  Whether the client has received more of an answer since the last look: a kernel
 * takes a few bytes now and then for a process that reads nothing. */
static bool has_read_more(struct entry *e, int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof(info);
    memset(&info, 0, sizeof(info));
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0 ||
        info.tcpi_bytes_acked < e->acked + READ_BYTES)
        return false;
    e->acked = info.tcpi_bytes_acked;
    return true;
}

/* Under the lock.  Whether the client has closed before its request was whole, for a while: the
 * library does not always notice an end that comes together with the last bytes. */
static bool has_left(struct entry *e, int fd, uint64_t now)
{
    struct pollfd look = {.fd = fd, .events = POLLRDHUP};
    int unread = 0;
    if (e->phase == HZP_DOOR_ANSWER || poll(&look, 1, 0) <= 0 || !(look.revents & POLLRDHUP) ||
        ioctl(fd, FIONREAD, &unread) || unread) {
        e->left_ns = 0;
        return false;
    }
    e->left_ns = e->left_ns ? e->left_ns : now;
    return now - e->left_ns > LEFT_NS;
}

/* Ends what is past its deadline.  True: something has to be looked at again in a while. */
static bool sweep(struct hzp_door *door)
{
    uint64_t now = hzp_now_ns();
    bool any = false;
    HZP_LOCKED(&door->lock);
    for (int fd = 0; fd < door->room; fd++) {
        struct entry *e = &door->entry[fd];
        if (!e->used)
            continue;
        any = true;
        if (!e->begun || e->phase == HZP_DOOR_CLOSING)
            continue;
        bool left = has_left(e, fd, now);
        if (!left && (!e->deadline_ns || e->deadline_ns > now))
            continue;
        if (!left && e->phase == HZP_DOOR_ANSWER && has_read_more(e, fd)) {
            e->deadline_ns = now + door->config.idle_ns;
            continue;
        }
        end_entry(e, fd);
        door->stats.open--;
        door->stats.timed_out += !left;
    }
    for (int i = 0; i < LINGERERS; i++) {
        struct lingerer *l = &door->lingerer[i];
        if (l->fd >= 0 && l->deadline_ns <= now)
            end_lingerer(door, l);
        any |= l->fd >= 0;
    }
    return any;
}

static void *door_main(void *arg)
{
    struct hzp_door *door = arg;
    uint64_t next_sweep = 0;
    hzp_thread_yielding(true);
    for (;;) {
        struct epoll_event event[32];
        uint64_t now = hzp_now_ns();
        bool busy = true;
        if (now >= next_sweep) {
            busy = sweep(door);
            next_sweep = busy ? now + TICK_NS : 0;
        }
        if (door->paused && now >= door->paused_until)
            watch_listening(door, true);
        uint64_t until = door->paused ? door->paused_until : now + TICK_NS;
        int wait = door->paused || busy ? (int)((until - HZP_MIN(now, until)) / 1000000) + 1 : -1;
        int n = epoll_wait(door->epoll, event, HZP_COUNT(event), wait);
        if (n < 0 && errno != EINTR)
            return NULL;
        for (int i = 0; i < n; i++) {
            if (event[i].data.u64 == STOP)
                return NULL;
            if (event[i].data.u64 == LISTENING)
                accept_some(door);
            else if (event[i].data.u64 > INT32_MAX)
                tell_left(door, (int)(event[i].data.u64 & UINT32_MAX),
                          (uint32_t)(event[i].data.u64 >> 32));
            else
                throw_away(door, (int)event[i].data.u64);
        }
    }
}

/* ---- opening and closing ---- */

int hzp_door_open(const struct hzp_door_config *config, struct hzp_door **ret,
                  struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_port_listen(config->port, BACKLOG, reterr));
    struct hzp_door *door = hzp_xcalloc(1, sizeof(*door));
    door->config = *config;
    door->listening = config->port->fd;
    config->port->fd = -1;
    fcntl(door->listening, F_SETFL, fcntl(door->listening, F_GETFL) | O_NONBLOCK);
    door->epoll = door->stop = -1;
    hzp_lock_init(&door->lock, HZP_LOCK_DOOR);
    for (int i = 0; i < LINGERERS; i++)
        door->lingerer[i].fd = -1;
    *ret = door;
    return HZP_OK;
}

/* Asks for as many descriptors as the places may need, and says so if there are fewer. */
static void raise_descriptors(const struct hzp_door *door)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)door->config.places + HZP_DOOR_RESERVE + LINGERERS + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need)
        return;
    limit.rlim_cur = HZP_MIN(need, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= need)
        return;
    hzp_log(HZP_LOG_WARN, "http",
            "only %llu descriptors may be open, --max-connections %lld needs %llu: further "
            "connections will wait; raise the limit (ulimit -Hn)",
            (unsigned long long)limit.rlim_cur, (long long)door->config.places,
            (unsigned long long)need);
}

int hzp_door_start(struct hzp_door *door, struct hzp_err_text *reterr)
{
    raise_descriptors(door);
    door->epoll = epoll_create1(EPOLL_CLOEXEC);
    door->stop = eventfd(0, EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = STOP};
    if (door->epoll < 0 || door->stop < 0 ||
        epoll_ctl(door->epoll, EPOLL_CTL_ADD, door->stop, &event))
        return hzp_fail(reterr, HZP_EIO, "no descriptor left for the HTTP server");
    watch_listening(door, true);
    atomic_store(&door->started, true); /* before the first connection can linger */
    if (hzp_thread_start(&door->thread, "hzp-door", door_main, door) == HZP_OK)
        return HZP_OK;
    atomic_store(&door->started, false);
    return hzp_fail(reterr, HZP_ENOMEM, "no thread left for the HTTP server");
}

void hzp_door_shut(struct hzp_door *door)
{
    if (atomic_exchange(&door->started, false)) {
        ssize_t n = write(door->stop, &(uint64_t){1}, sizeof(uint64_t));
        HZP_ASSERT(n == sizeof(uint64_t));
        pthread_join(door->thread, NULL);
    }
    if (door->listening >= 0)
        close(door->listening);
    door->listening = -1;
}

void hzp_door_destroy(struct hzp_door *door)
{
    if (!door)
        return;
    hzp_door_shut(door);
    for (int i = 0; i < LINGERERS; i++)
        if (door->lingerer[i].fd >= 0)
            close(door->lingerer[i].fd);
    if (door->epoll >= 0)
        close(door->epoll);
    if (door->stop >= 0)
        close(door->stop);
    hzp_lock_fini(&door->lock);
    free(door->entry);
    free(door);
}

/* ---- what the HTTP server reports ---- */

void hzp_door_begun(struct hzp_door *door, int fd)
{
    HZP_LOCKED(&door->lock);
    if (fd >= 0 && fd < door->room)
        door->entry[fd].begun = true;
}

void hzp_door_ended(struct hzp_door *door, int fd)
{
    HZP_LOCKED(&door->lock);
    if (fd >= 0 && fd < door->room && door->entry[fd].used) {
        door->stats.open -= door->entry[fd].phase != HZP_DOOR_CLOSING;
        door->entry[fd].used = false;
    }
}

void hzp_door_phase(struct hzp_door *door, int fd, enum hzp_door_phase phase)
{
    uint64_t now = hzp_now_ns(), idle = now + door->config.idle_ns;
    HZP_LOCKED(&door->lock);
    struct entry *e = fd >= 0 && fd < door->room ? &door->entry[fd] : NULL;
    if (e && e->used && e->phase != HZP_DOOR_CLOSING) {
        if (e->phase != phase) {
            e->since_ns = now;
            e->whole_ns = now + door->config.receive_ns;
        }
        e->phase = phase;
        e->deadline_ns = phase == HZP_DOOR_IDLE   ? idle
                         : phase == HZP_DOOR_BODY ? HZP_MIN(idle, e->whole_ns)
                                                  : 0;
    }
}

void hzp_door_sending(struct hzp_door *door, int fd, bool sending)
{
    uint64_t deadline = sending ? hzp_now_ns() + door->config.idle_ns : 0;
    HZP_LOCKED(&door->lock);
    struct entry *e = fd >= 0 && fd < door->room ? &door->entry[fd] : NULL;
    if (e && e->used && e->phase == HZP_DOOR_ANSWER)
        e->deadline_ns = e->from.relay ? 0 : deadline;
}

void hzp_door_linger(struct hzp_door *door, int fd)
{
    int copy = fd >= 0 ? dup(fd) : -1;
    if (copy < 0)
        return;
    shutdown(copy, SHUT_WR);
    HZP_LOCKED(&door->lock);
    if (atomic_load(&door->started))
        take_lingerer(door, copy);
    else
        close(copy);
}

void hzp_door_watch(struct hzp_door *door, int fd, void (*left)(void *ctx), void *ctx)
{
    hzp_lock_take(&door->lock);
    struct entry *e = fd >= 0 && fd < door->room ? &door->entry[fd] : NULL;
    uint32_t turn = door->turn = door->turn % (INT32_MAX - 1) + 1;
    if (e) {
        e->left = left;
        e->ctx = ctx;
        e->turn = turn;
    }
    hzp_lock_release(&door->lock);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLONESHOT,
                                .data.u64 = (uint64_t)turn << 32 | (uint32_t)fd};
    if (epoll_ctl(door->epoll, EPOLL_CTL_ADD, fd, &event))
        hzp_door_forget(door, fd);
}

void hzp_door_forget(struct hzp_door *door, int fd)
{
    epoll_ctl(door->epoll, EPOLL_CTL_DEL, fd, NULL);
    HZP_LOCKED(&door->lock);
    if (fd >= 0 && fd < door->room)
        door->entry[fd].left = NULL;
}

void hzp_door_read_stats(struct hzp_door *door, struct hzp_door_stats *ret)
{
    HZP_LOCKED(&door->lock);
    *ret = door->stats;
}
