/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/control.c - the control messages: the meeting. */
#include "mesh/peers/control_state.h"

#include "base/log.h"

static const char magic[7] = "hzpctl3";
static const uint64_t hello_ns = 250000000; /* from one hello to the next */

static struct hzp_control *create(const struct hzp_control_config *config)
{
    struct hzp_control *c = hzp_xcalloc(1, sizeof(*c));
    c->config = *config;
    c->lost_rank = -1;
    c->peer = hzp_xcalloc((size_t)config->ranks, sizeof(*c->peer));
    for (int r = 0; r < config->ranks; r++)
        c->peer[r].beat.missing = -1;
    c->address = hzp_xcalloc((size_t)HZP_MAX(config->rank, 1), sizeof(*c->address));
    hzp_lock_init(&c->lock, HZP_LOCK_CONTROL);
    hzp_wake_init(&c->told_spans);
    hzp_stragglers_init(&c->stragglers, config->ranks);
    return c;
}

static void destroy(struct hzp_control *c)
{
    hzp_pipe_close(c->pipe);
    hzp_lock_fini(&c->lock);
    for (int r = 0; r < c->config.ranks; r++) {
        free(c->peer[r].text);
        free(c->peer[r].port);
    }
    free(c->address);
    hzp_wake_fini(&c->told_spans);
    hzp_stragglers_fini(&c->stragglers);
    free(c->out);
    free(c->peer);
    free(c);
}

static int open_control(const struct hzp_control_config *config, const char *endpoint,
                        struct hzp_control **ret, struct hzp_err_text *reterr)
{
    struct hzp_pipe_place at = {.open = true};
    struct hzp_control *c = create(config);
    snprintf(at.endpoint, sizeof(at.endpoint), "%s", endpoint);
    snprintf(at.key, sizeof(at.key), "%s", config->key ? config->key : "");
    c->config.key = NULL; /* the caller's; not needed any more */
    int r = (config->rank ? hzp_pipe_connect : hzp_pipe_listen)(&at, HZP_CONTROL_MESSAGE, &c->pipe,
                                                                reterr);
    if (r < 0)
        destroy(c);
    else
        *ret = c;
    return r;
}

int hzp_control_listen(const struct hzp_control_config *config, char endpoint[HZP_PIPE_ENDPOINT],
                       struct hzp_control **ret, struct hzp_err_text *reterr)
{
    HZP_TRY(open_control(config, endpoint, ret, reterr));
    hzp_pipe_set_port((*ret)->pipe, endpoint);
    return HZP_OK;
}

int hzp_control_connect(const struct hzp_control_config *config, const char *endpoint,
                        struct hzp_control **ret, struct hzp_err_text *reterr)
{
    return open_control(config, endpoint, ret, reterr);
}

int hzp_control_send(struct hzp_control *c, int rank, const void *data, size_t size)
{
    const struct hzp_pipe_peer *who = &c->peer[rank].who;
    bool known = c->config.rank || who->size;
    return known && hzp_pipe_send(c->pipe, who, data, size) == HZP_OK ? HZP_OK : HZP_EBUSY;
}

void hzp_control_send_all(struct hzp_control *c, const void *data, size_t size)
{
    if (c->config.rank)
        hzp_control_send(c, 0, data, size);
    else
        for (int r = 1; r < c->config.ranks; r++)
            hzp_control_send(c, r, data, size);
}

int hzp_control_receive(struct hzp_control *c, void *data, size_t max, struct hzp_pipe_peer *who)
{
    const char *message;
    size_t size;
    if (!hzp_pipe_receive(c->pipe, who, &message, &size))
        return -1;
    hzp_pipe_host(c->pipe, c->from);
    if (size > max)
        return 0;
    memcpy(data, message, size);
    return (int)size;
}

int hzp_control_rank_of(const struct hzp_control *c, const struct hzp_pipe_peer *who)
{
    int rank = 1;
    while (rank < c->config.ranks && !(who->size && hzp_pipe_same(&c->peer[rank].who, who)))
        rank++;
    return rank;
}

/* ---- the meeting ---- */

/* Compares two records, and writes the first line in which they differ.  True: none. */
static bool same_record(const char *first, const char *other, int rank, char *why, size_t size)
{
    while (*first || *other) {
        size_t a = strcspn(first, "\n"), b = strcspn(other, "\n");
        if (a != b || memcmp(first, other, a)) {
            const char *none = "nothing more";
            snprintf(why, size, "the ranks do not agree: rank %d has %.*s, rank 0 has %.*s", rank,
                     b ? (int)HZP_MIN(b, (size_t)90) : 12, b ? other : none,
                     a ? (int)HZP_MIN(a, (size_t)90) : 12, a ? first : none);
            return false;
        }
        first += a + (first[a] != 0);
        other += b + (other[b] != 0);
    }
    return true;
}

/* Rank 0: judges one hello; why is set if it cannot be accepted.  Returns the rank, -1 if it is
 * none that this run has. */
static int judge(struct hzp_control *c, const struct hzp_control_hello *h, const char *record,
                 char *why, size_t size)
{
    if (h->ranks != c->config.ranks)
        snprintf(why, size, "rank %d was started as one of %d ranks, rank 0 as one of %d", h->rank,
                 h->ranks, c->config.ranks);
    else if (h->rank <= 0 || h->rank >= c->config.ranks)
        snprintf(why, size, "a second rank %d came to a run of %d ranks", h->rank, c->config.ranks);
    else if (c->peer[h->rank].who.size && !c->config.again && !h->again)
        snprintf(why, size, "rank %d came twice", h->rank);
    else {
        same_record(record, h->record, h->rank, why, size);
        return h->rank;
    }
    return -1;
}

void hzp_control_refuse(struct hzp_control *c, const struct hzp_pipe_peer *who, const char *why)
{
    char message[HZP_CONTROL_TEXT + 1];
    int n = snprintf(message, sizeof(message), "X%s", why);
    hzp_pipe_send(c->pipe, who, message, (size_t)HZP_MIN(n, HZP_CONTROL_TEXT));
}

/* "ranks 1 and 3 of 4" */
static void absent(struct hzp_control *c, char *text, size_t size)
{
    size_t n = 0;
    *text = 0;
    for (int r = 1; r < c->config.ranks && n + 32 < size; r++)
        if (!c->peer[r].who.size)
            n += (size_t)snprintf(text + n, size - n, "%s%d", n ? "," : "", r);
}

static void note_hello(struct hzp_peer *p, const struct hzp_control *c,
                       const struct hzp_pipe_peer *who)
{
    p->who = *who;
    memcpy(p->host, c->from, sizeof(p->host));
    free(p->port);
    p->port = hzp_xmalloc(sizeof(c->hello.port));
    memcpy(p->port, c->hello.port, sizeof(c->hello.port));
}

/* Takes in a process that says hello.  Returns 1 if its rank was missing.  why: set where the
 * meeting fails, because a rank cannot be accepted. */
static int take_hello(struct hzp_control *c, const struct hzp_pipe_peer *who, const char *record,
                      char why[HZP_CONTROL_TEXT])
{
    static const char replaced[] = "another process has come as this rank";
    int rank = judge(c, &c->hello, record, why, HZP_CONTROL_TEXT);
    if (rank < 0 || (c->config.again && why[0])) {
        hzp_control_refuse(c, who, why);
        if (c->config.again) /* the others have done nothing wrong */
            hzp_log(HZP_LOG_ERROR, "ranks", "refused rank=%d: %s", c->hello.rank, why);
        if (c->config.again)
            why[0] = 0;
        return 0;
    }
    struct hzp_peer *p = &c->peer[rank];
    bool missing = !p->who.size;
    if (!missing)
        hzp_control_refuse(c, &p->who, replaced);
    note_hello(p, c, who);
    return missing;
}

/* Says why to all that are here. */
static void refuse_all(struct hzp_control *c, const char *why)
{
    for (int r = 1; r < c->config.ranks; r++)
        if (c->peer[r].who.size)
            hzp_control_refuse(c, &c->peer[r].who, why);
}

static bool stopped(const struct hzp_control *c)
{
    return c->config.stop && c->config.stop(c->config.ctx);
}

/* Waits for all hellos.  A rank that cannot be accepted ends the wait at once, unless the ranks
 * meet again. */
static int gather_hellos(struct hzp_control *c, const char *record, struct hzp_err_text *reterr)
{
    uint64_t began = hzp_now_ns(), said = began;
    char why[HZP_CONTROL_TEXT] = "", text[HZP_CONTROL_TEXT];
    struct hzp_pipe_peer who;
    for (int here = 1; here < c->config.ranks && !why[0];) {
        hzp_pipe_wait(c->pipe, 100);
        int n = hzp_control_receive(c, &c->hello, sizeof(c->hello), &who);
        uint64_t now = hzp_now_ns();
        if (n < 0 && (double)(now - began) * 1e-9 > c->config.meet_s) {
            absent(c, text, sizeof(text));
            return hzp_fail(reterr, HZP_EIO, "of %d ranks these did not connect within %.0f s: %s",
                            c->config.ranks, c->config.meet_s, text);
        }
        if (stopped(c)) {
            hzp_control_send_all(c, "G", 1);
            return hzp_fail(reterr, HZP_ECANCELED, "stopped while waiting for other ranks");
        }
        if (n < 0 && now - said > 10000000000u) {
            said = now;
            absent(c, text, sizeof(text));
            hzp_log(HZP_LOG_INFO, "ranks", "waiting ranks=%s", text);
        }
        if (n <= (int)offsetof(struct hzp_control_hello, record) || c->hello.letter != 'H' ||
            !who.size || memcmp(c->hello.magic, magic, sizeof(magic)))
            continue; /* not of this program */
        ((char *)&c->hello)[n - 1] = 0;
        if (hzp_control_rank_of(c, &who) < c->config.ranks)
            continue; /* a rank says hello again and again until it is welcome */
        here += take_hello(c, &who, record, why);
    }
    if (!why[0])
        return HZP_OK;
    refuse_all(c, why);
    return hzp_fail(reterr, HZP_EINVAL, "%s", why);
}

/* Rank 0: tells a rank that all agree, and where the ranks before it listen.  It knows the address
 * of rank 0 itself. */
static void welcome(struct hzp_control *c, int rank, const void *share, size_t size)
{
    char *message = c->message;
    size_t n = 1 + size, one = sizeof(struct hzp_link_zmq_address);
    bool ports = c->config.ranks <= HZP_LINK_ZMQ_RANKS_MAX;
    message[0] = 'W';
    if (size)
        memcpy(message + 1, share, size);
    for (int r = 0; ports && r < rank; r++, n += one) {
        struct hzp_link_zmq_address address = {.port = r ? c->peer[r].port[rank] : c->port[rank]};
        memcpy(address.host, c->peer[r].host, sizeof(address.host));
        memcpy(message + n, &address, one);
    }
    hzp_control_send(c, rank, message, n);
}

static int meet_first(struct hzp_control *c, const char *record, const void *share, size_t size,
                      struct hzp_err_text *reterr)
{
    HZP_TRY(gather_hellos(c, record, reterr));
    for (int r = 1; r < c->config.ranks; r++)
        welcome(c, r, share, size);
    return HZP_OK;
}

static void say_hello(struct hzp_control *c, const char *record)
{
    size_t length = strlen(record);
    c->hello = (struct hzp_control_hello){
        .letter = 'H', .rank = c->config.rank, .ranks = c->config.ranks, .again = c->config.again};
    memcpy(c->hello.magic, magic, sizeof(magic));
    memcpy(c->hello.port, c->port, sizeof(c->port));
    memcpy(c->hello.record, record, length + 1);
    hzp_control_send(c, 0, &c->hello, offsetof(struct hzp_control_hello, record) + length + 1);
}

/* Takes the welcome's contents.  False: it is none. */
static bool take_welcome(struct hzp_control *c, size_t bytes, void *share, size_t size)
{
    const char *message = c->message;
    bool ports = c->config.ranks <= HZP_LINK_ZMQ_RANKS_MAX;
    size_t addresses = ports ? (size_t)c->config.rank * sizeof(*c->address) : 0;
    if (message[0] != 'W' || bytes != 1 + size + addresses)
        return false;
    if (size)
        memcpy(share, message + 1, size);
    if (addresses)
        memcpy(c->address, message + 1 + size, addresses);
    for (int r = 0; r < c->config.rank; r++)
        c->address[r].host[HZP_LINK_ZMQ_HOST - 1] = 0;
    memcpy(c->address[0].host, c->from, sizeof(c->from));
    return true;
}

static int meet_other(struct hzp_control *c, const char *record, void *share, size_t size,
                      struct hzp_err_text *reterr)
{
    uint64_t began = hzp_now_ns(), said = 0;
    for (;;) {
        if (hzp_now_ns() - said > hello_ns) { /* rank 0 may be another one by now */
            say_hello(c, record);
            said = hzp_now_ns();
        }
        hzp_pipe_wait(c->pipe, 100);
        int n = hzp_control_receive(c, c->message, sizeof(c->message) - 1, NULL);
        if (n < 0 && (double)(hzp_now_ns() - began) * 1e-9 > c->config.meet_s)
            return hzp_fail(reterr, HZP_EIO, "rank 0 did not answer within %.0f s",
                            c->config.meet_s);
        if (stopped(c))
            return hzp_fail(reterr, HZP_ECANCELED, "stopped while waiting for rank 0");
        if (n <= 0)
            continue;
        c->message[n] = 0;
        if (c->message[0] == 'X')
            return hzp_fail(reterr, HZP_EINVAL, "%s", c->message + 1);
        if (c->message[0] == 'G' && n == 1)
            return hzp_fail(reterr, HZP_ECANCELED, "rank 0 has ended");
        if (take_welcome(c, (size_t)n, share, size))
            return HZP_OK;
    }
}

/* ---- the interface ---- */

void hzp_control_offer_ports(struct hzp_control *c, const uint16_t *port)
{
    HZP_ASSERT(!c->runs && c->config.ranks <= HZP_LINK_ZMQ_RANKS_MAX);
    memcpy(c->port, port, sizeof(*port) * (size_t)c->config.ranks);
}

const struct hzp_link_zmq_address *hzp_control_addresses(const struct hzp_control *c)
{
    return c->address;
}

int hzp_control_meet(struct hzp_control *c, const char *record, void *share, size_t size,
                     struct hzp_link *link, struct hzp_err_text *reterr)
{
    HZP_ASSERT(strlen(record) < HZP_CONTROL_RECORD && size <= HZP_CONTROL_SHARE && !c->runs);
    HZP_TRY(c->config.rank ? meet_other(c, record, share, size, reterr)
                           : meet_first(c, record, share, size, reterr));
    uint64_t now = hzp_now_ns();
    for (int r = 0; r < c->config.ranks; r++)
        c->peer[r].heard_ns = c->peer[r].waits_ns = now;
    c->turn_ns = now;
    c->link = link;
    if (hzp_thread_start(&c->thread, "hzp-control", hzp_control_thread, c) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "cannot start the thread for control messages");
    c->runs = true;
    return HZP_OK;
}

void hzp_control_state(struct hzp_control *c, int rank, struct hzp_control_state *ret)
{
    HZP_ASSERT(rank >= 0 && rank < c->config.ranks);
    uint64_t now = hzp_now_ns();
    bool self = rank == c->config.rank;
    char why[HZP_CONTROL_TEXT];
    bool lost = hzp_control_lost(c, why, sizeof(why)) == rank;
    HZP_LOCKED(&c->lock);
    const struct hzp_peer *p = &c->peer[rank];
    *ret = (struct hzp_control_state){
        .known = self || rank == 0 || c->config.rank == 0,
        .lost = p->lost || lost,
        .left = p->left,
        .silent_s = self || now < p->heard_ns ? 0 : (double)(now - p->heard_ns) * 1e-9,
        .posted = p->beat.posted,
        .done = p->beat.done,
        .ahead_s = (double)p->beat.ahead_ns * 1e-9,
        .doing_s = p->beat.doing_s,
        .slow = c->stragglers.slow[rank].times,
        .slow_at = c->stragglers.slow[rank].meter,
        .missing = p->beat.missing,
        .waits_s =
            p->beat.missing < 0 || now < p->waits_ns ? 0 : (double)(now - p->waits_ns) * 1e-9,
    };
}

int hzp_control_lost(struct hzp_control *c, char *why, size_t size)
{
    hzp_lock_take(&c->lock);
    int rank = c->lost_rank;
    snprintf(why, size, "%s", c->why);
    hzp_lock_release(&c->lock);
    if (rank >= 0 || !c->link)
        return rank;
    struct hzp_link_state state; /* the thread takes notice of it a moment later */
    hzp_link_state(c->link, &state);
    snprintf(why, size, "%s", state.failed ? state.why : "");
    return state.failed ? state.failed_rank : -1;
}

void hzp_control_close(struct hzp_control *c)
{
    if (!c)
        return;
    atomic_store(&c->closing, true);
    if (c->runs)
        pthread_join(c->thread, NULL);
    destroy(c);
}
