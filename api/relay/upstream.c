/* SPDX-License-Identifier: Apache-2.0 */
/* api/relay/upstream.c - the thread that owns the connections to rank 0, one for each request. */
#include "api/relay/relay_state.h"

#include "base/log.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { READ_BYTES = 64 << 10, EVENTS = 64 };
static const uint64_t RETRY_NS = 50000000u; /* the socket's queue is full, or rank 0 was lost */
static const uint64_t BUSY_NS = 250000000u,
                      BUSY_MOST_NS = 60000000000u; /* the new rank 0 is full */
static const uint64_t PATIENCE_NS = 3000000000u;   /* for a client that sends no more */

struct hzp_relay {
    struct sockaddr_un at;
    int epoll, poke; /* poke: an eventfd */
    pthread_t thread;
    _Atomic bool stopping;
    bool answered; /* rank 0, one or another, has answered a request; the thread's */
    /* only the thread uses what follows */
    struct hzp_relay_call *first; /* list of all calls */
    uint64_t due_ns;              /* when one of them is to be looked at again; UINT64_MAX: none */
    char *piece;                  /* [READ_BYTES] */
    struct hzp_lock lock;
    /* under lock */
    struct hzp_relay_call *added; /* new ones */
    bool stopped;                 /* none are taken any more */
};

/* ---- ends ---- */

static void disconnect(struct hzp_relay_call *c)
{
    if (c->fd >= 0)
        close(c->fd); /* which takes it out of the epoll set */
    c->fd = -1;
}

static void let_go(struct hzp_relay *relay, struct hzp_relay_call *c)
{
    disconnect(c);
    if (c->prev)
        c->prev->next = c->next;
    else
        relay->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    hzp_call_release(c);
}

/* A stream that has begun cannot change its status: an error becomes its last event. */
static void end_stream(struct hzp_relay_call *c, const char *text, size_t bytes)
{
    struct hzp_textbuf *body = &c->reply.body;
    const char *begin = c->named_events ? "event: error\ndata: " : "data: ";
    const char *end = c->named_events ? "\n\n" : "\n\ndata: [DONE]\n\n";
    hzp_textbuf_append(body, begin, strlen(begin));
    hzp_textbuf_append(body, text, bytes);
    hzp_textbuf_append(body, end, strlen(end));
}

static void end_call(struct hzp_relay *relay, struct hzp_relay_call *c, enum hzp_call_end end)
{
    static const char error[] =
        "{\"type\":\"error\",\"error\":{\"message\":\"rank 0 was lost, and the answer cannot go "
        "on\",\"type\":\"server_error\",\"param\":null,\"code\":\"rank_lost\"}}";
    hzp_lock_take(&c->lock);
    if (end == HZP_CALL_WHOLE && c->reply.continued && !c->reply.stream)
        end_stream(c, c->reply.group.data, c->reply.group.bytes); /* rank 0's own error */
    else if (end != HZP_CALL_WHOLE && c->reply.groups)
        end_stream(c, error, sizeof(error) - 1);
    c->end = end != HZP_CALL_WHOLE && c->reply.groups ? HZP_CALL_WHOLE : end;
    hzp_lock_release(&c->lock);
    hzp_exchange_wake(c->x);
    let_go(relay, c);
}

/* ---- sending ---- */

/* What is sent before the body: the header, the journal of what the client has. */
static int compose(struct hzp_relay_call *c)
{
    const struct hzp_textbuf *journal = &c->reply.journal;
    char text[128];
    int n = snprintf(text, sizeof(text), "content-length: %zu\r\n",
                     (c->reply.groups ? journal->bytes : 0) + c->body.bytes);
    if (c->reply.groups)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "x-hzpserve-resume: %zu\r\n",
                      journal->bytes);
    c->out.bytes = c->sent = 0;
    HZP_TRY(hzp_textbuf_append(&c->out, c->head.data, c->head.bytes));
    HZP_TRY(hzp_textbuf_append(&c->out, text, (size_t)n));
    HZP_TRY(hzp_textbuf_append(&c->out, "\r\n", 2));
    return c->reply.groups ? hzp_textbuf_append(&c->out, journal->data, journal->bytes) : HZP_OK;
}

static size_t unsent(const struct hzp_relay_call *c)
{
    return c->out.bytes + c->body.bytes - c->sent;
}

static void watch(struct hzp_relay *relay, struct hzp_relay_call *c, int op)
{
    struct epoll_event event = {.events = (unsent(c) ? EPOLLOUT : 0u) | EPOLLIN, .data.ptr = c};
    epoll_ctl(relay->epoll, op, c->fd, &event);
}

static void connect_later(struct hzp_relay *relay, struct hzp_relay_call *c, uint64_t wait_ns)
{
    c->due_ns = hzp_now_ns() + wait_ns;
    relay->due_ns = HZP_MIN(relay->due_ns, c->due_ns);
}

/* Connects to rank 0, or to the queue of its socket where the next one finds it. */
static void open_call(struct hzp_relay *relay, struct hzp_relay_call *c)
{
    c->due_ns = 0;
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool connected =
        c->fd >= 0 && connect(c->fd, (struct sockaddr *)&relay->at, sizeof(relay->at)) == 0;
    int error = errno;
    if (connected && compose(c) == HZP_OK) {
        c->paused = false;
        watch(relay, c, EPOLL_CTL_ADD);
        return;
    }
    disconnect(c);
    if (!connected && (error == ECONNREFUSED || error == ENOENT))
        end_call(relay, c, HZP_CALL_GONE);
    else /* the queue is full, or there is no descriptor or memory now */
        connect_later(relay, c, RETRY_NS);
}

static void begin_again(struct hzp_relay *relay, struct hzp_relay_call *c, uint64_t wait_ns)
{
    disconnect(c);
    hzp_lock_take(&c->lock);
    hzp_incoming_restart(&c->reply);
    hzp_lock_release(&c->lock);
    connect_later(relay, c, wait_ns);
}

/* Whether rank 0 has no room now for a request that an earlier one had accepted. */
static bool comes_back(const struct hzp_relay_call *c)
{
    return c->lost_ns && (c->reply.status == 429 || c->reply.status == 503) &&
           hzp_now_ns() - c->lost_ns < BUSY_MOST_NS;
}

/* The connection has ended before the answer was whole. */
static void lose(struct hzp_relay *relay, struct hzp_relay_call *c)
{
    disconnect(c);
    if (c->reply.groups > c->groups)
        c->losses = 0;
    c->groups = c->reply.groups;
    c->losses++;
    hzp_lock_take(&c->lock);
    bool stuck = c->begun && !c->reply.groups; /* only a stream can go on in another answer */
    hzp_lock_release(&c->lock);
    if (!c->repeats || stuck || c->losses >= HZP_CALL_LOSSES_MAX) {
        hzp_log(HZP_LOG_WARN, "ranks", "relay: lost id=%s route=%s times=%d: not sent again",
                c->x->info.id, c->x->info.route, c->losses);
        end_call(relay, c, HZP_CALL_LOST);
        return;
    }
    hzp_log(HZP_LOG_INFO, "ranks", "relay: lost id=%s route=%s groups=%lld: sent again",
            c->x->info.id, c->x->info.route, (long long)c->reply.groups);
    c->lost_ns = hzp_now_ns();
    begin_again(relay, c, RETRY_NS << HZP_MIN(c->losses, 5));
}

static void send_some(struct hzp_relay *relay, struct hzp_relay_call *c)
{
    while (unsent(c)) {
        bool body = c->sent >= c->out.bytes;
        const char *data = body ? c->body.data + (c->sent - c->out.bytes) : c->out.data + c->sent;
        size_t bytes = body ? unsent(c) : c->out.bytes - c->sent;
        ssize_t n = send(c->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) /* an answer may be there all the same: reading finds the end */
            c->sent = c->out.bytes + c->body.bytes;
        else
            c->sent += (size_t)n;
    }
    watch(relay, c, EPOLL_CTL_MOD);
}

/* ---- reading ---- */

/* Under the call's lock. */
static bool is_full(const struct hzp_relay_call *c)
{
    return c->reply.body.bytes - c->given > HZP_CALL_BODY_MAX;
}

/* Whether there is something for the client: an answer begins when it is whole, is a stream, or is
 * more than is held. */
static bool take_piece(struct hzp_relay_call *c, size_t bytes, int *ret)
{
    HZP_LOCKED(&c->lock);
    int64_t groups = c->reply.groups;
    *ret = hzp_incoming_feed(&c->reply, c->relay->piece, bytes);
    c->paused = *ret == HZP_OK && is_full(c);
    return c->begun || c->paused || c->reply.groups > groups;
}

static void read_some(struct hzp_relay *relay, struct hzp_relay_call *c)
{
    bool news = false, ends = false;
    int r = HZP_OK;
    while (!ends && r == HZP_OK && !c->paused && c->reply.part != HZP_INCOMING_WHOLE) {
        ssize_t n = recv(c->fd, relay->piece, READ_BYTES, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        ends = n <= 0;
        if (n > 0)
            news |= take_piece(c, (size_t)n, &r);
    }
    if (ends) {
        HZP_LOCKED(&c->lock);
        hzp_incoming_end(&c->reply);
    }
    if (news && c->reply.part != HZP_INCOMING_WHOLE)
        hzp_exchange_wake(c->x);
    if (c->reply.part == HZP_INCOMING_WHOLE) {
        relay->answered = true;
        if (comes_back(c))
            begin_again(relay, c, BUSY_NS);
        else
            end_call(relay, c, HZP_CALL_WHOLE);
    } else if (ends) {
        lose(relay, c);
    } else if (r < 0) {
        hzp_log(HZP_LOG_ERROR, "ranks", "relay: id=%s: rank 0's answer cannot be read: %s",
                c->x->info.id, hzp_err_name(r));
        end_call(relay, c, HZP_CALL_LOST);
    } else if (c->paused) {
        watch(relay, c, EPOLL_CTL_DEL);
    }
}

/* ---- the thread ---- */

static void take_added(struct hzp_relay *relay)
{
    hzp_lock_take(&relay->lock);
    struct hzp_relay_call *added = relay->added;
    relay->added = NULL;
    hzp_lock_release(&relay->lock);
    while (added) {
        struct hzp_relay_call *c = added;
        added = c->next;
        c->prev = NULL;
        c->next = relay->first;
        if (relay->first)
            relay->first->prev = c;
        relay->first = c;
        open_call(relay, c);
    }
}

/* Clients that have left, have read, or wait for another connection. */
static void look_at_all(struct hzp_relay *relay)
{
    uint64_t now = hzp_now_ns();
    relay->due_ns = UINT64_MAX;
    for (struct hzp_relay_call *c = relay->first, *next; c; c = next) {
        next = c->next;
        uint64_t closed = atomic_load(&c->closed_ns);
        if (closed && now >= closed + PATIENCE_NS)
            atomic_store(&c->left, true);
        else if (closed)
            relay->due_ns = HZP_MIN(relay->due_ns, closed + PATIENCE_NS);
        if (atomic_load(&c->left) || atomic_load(&relay->stopping)) {
            end_call(relay, c, HZP_CALL_GONE);
            continue;
        }
        if (c->answer_by_ns && now >= c->answer_by_ns) {
            end_call(relay, c, relay->answered ? HZP_CALL_QUIET : HZP_CALL_MUTE);
            continue;
        }
        if (c->answer_by_ns)
            relay->due_ns = HZP_MIN(relay->due_ns, c->answer_by_ns);
        if (c->due_ns && c->due_ns <= now) {
            open_call(relay, c);
            continue; /* it may have ended */
        }
        if (c->due_ns)
            relay->due_ns = HZP_MIN(relay->due_ns, c->due_ns);
        if (!c->paused)
            continue;
        hzp_lock_take(&c->lock);
        c->paused = is_full(c);
        hzp_lock_release(&c->lock);
        if (!c->paused && c->fd >= 0)
            watch(relay, c, EPOLL_CTL_ADD);
    }
}

/* For epoll_wait: milliseconds until a call is due; -1: none will be. */
static int wait_ms(const struct hzp_relay *relay)
{
    uint64_t now = hzp_now_ns();
    if (relay->due_ns == UINT64_MAX)
        return -1;
    return relay->due_ns <= now ? 0 : (int)((relay->due_ns - now) / 1000000) + 1;
}

static void handle(struct hzp_relay *relay, struct hzp_relay_call *c, uint32_t events)
{
    if (events & EPOLLOUT)
        send_some(relay, c);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        read_some(relay, c);
}

static void *relay_main(void *arg)
{
    struct hzp_relay *relay = arg;
    struct epoll_event event[EVENTS];
    hzp_thread_yielding(true);
    while (!atomic_load(&relay->stopping)) {
        int n = epoll_wait(relay->epoll, event, EVENTS, wait_ms(relay));
        bool poked = false;
        for (int i = 0; i < n; i++) {
            uint64_t count;
            if (event[i].data.ptr)
                handle(relay, event[i].data.ptr, event[i].events);
            else
                poked = read(relay->poke, &count, sizeof(count)) > 0;
        }
        if (poked)
            take_added(relay);
        if (poked || relay->due_ns <= hzp_now_ns())
            look_at_all(relay);
    }
    hzp_lock_take(&relay->lock);
    relay->stopped = true;
    hzp_lock_release(&relay->lock);
    take_added(relay);
    look_at_all(relay);
    return NULL;
}

void hzp_upstream_add(struct hzp_relay *relay, struct hzp_relay_call *c)
{
    atomic_fetch_add(&c->holds, 1);
    hzp_lock_take(&relay->lock);
    bool taken = !relay->stopped;
    if (taken) {
        c->next = relay->added;
        relay->added = c;
    }
    hzp_lock_release(&relay->lock);
    if (taken) {
        hzp_upstream_poke(relay);
        return;
    }
    c->end = HZP_CALL_GONE; /* not shared yet */
    hzp_exchange_wake(c->x);
    hzp_call_release(c);
}

void hzp_upstream_poke(struct hzp_relay *relay)
{
    ssize_t n = write(relay->poke, &(uint64_t){1}, sizeof(uint64_t));
    HZP_ASSERT(n == sizeof(uint64_t));
}

int hzp_relay_create(const char *path, struct hzp_relay **ret, struct hzp_err_text *reterr)
{
    struct hzp_relay *relay = hzp_xcalloc(1, sizeof(*relay));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    relay->at.sun_family = AF_UNIX;
    relay->due_ns = UINT64_MAX;
    bool fits = strlen(path) < sizeof(relay->at.sun_path);
    snprintf(relay->at.sun_path, sizeof(relay->at.sun_path), "%s", path);
    hzp_lock_init(&relay->lock, HZP_LOCK_RELAY);
    relay->piece = hzp_xmalloc(READ_BYTES);
    relay->epoll = epoll_create1(EPOLL_CLOEXEC);
    relay->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fits && relay->epoll >= 0 && relay->poke >= 0 &&
        epoll_ctl(relay->epoll, EPOLL_CTL_ADD, relay->poke, &event) == 0 &&
        hzp_thread_start(&relay->thread, "hzp-relay", relay_main, relay) == HZP_OK) {
        *ret = relay;
        return HZP_OK;
    }
    atomic_store(&relay->stopping, true); /* no thread runs */
    hzp_relay_destroy(relay);
    return fits ? hzp_fail(reterr, HZP_EIO, "no thread or descriptor left for the relay")
                : hzp_fail(reterr, HZP_EINVAL, "the path of rank 0's socket is too long: %s", path);
}

void hzp_relay_stop(struct hzp_relay *relay)
{
    if (atomic_exchange(&relay->stopping, true))
        return;
    hzp_upstream_poke(relay);
    pthread_join(relay->thread, NULL);
}

void hzp_relay_destroy(struct hzp_relay *relay)
{
    if (!relay)
        return;
    hzp_relay_stop(relay);
    if (relay->epoll >= 0)
        close(relay->epoll);
    if (relay->poke >= 0)
        close(relay->poke);
    hzp_lock_fini(&relay->lock);
    free(relay->piece);
    free(relay);
}
