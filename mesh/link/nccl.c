/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/nccl.c - links between GPUs by NCCL, which is loaded at run time.
 *
 * Every transfer passes three points, in the order of posting: posted on the host link; launched,
 * when the host link says that all members have posted it; done, when the event behind it on the
 * stream has passed.  All transfers of all communicators go to one stream in that order, which is
 * the same on all ranks, so no two communicators wait for each other.  A transfer of host memory is
 * the host link's alone, and done in its turn.
 *
 * A sum in order (onto) is an exchange of pieces, of as many elements as the scratch memory holds
 * of every member, followed by a kernel that adds them; longer ones go piece by piece.
 *
 * A link that enqueues has one communicator and no such points: the caller's thread puts its
 * transfers on the caller's stream, in one call each.
 *
 * poll makes progress on the link's thread.  The host link's wake tells its caller when members
 * have posted or a rank is lost, a call behind each transfer on the stream when it has ended.
 */
#include "mesh/link/backend.h"

#include "base/log.h"
#include "device/philox.h"

#include <dlfcn.h>

/* ---- NCCL's interface, of version 2.18 ---- */

typedef void *nccl_comm;

struct nccl_id {
    char bytes[128];
};

struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

enum {
    NCCL_OK = 0,
    NCCL_IN_PROGRESS = 7,
    NCCL_UINT8 = 1,
    NCCL_UINT64 = 5,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8
};
enum { NCCL_SUM = 0, NCCL_VERSION = 21800, NCCL_MAGIC = (int)0xcafebeef };

struct nccl_api {
    int (*GetVersion)(int *version);
    const char *(*GetErrorString)(int code);
    int (*GetUniqueId)(struct nccl_id *id);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*Send)(const void *send, size_t count, int type, int peer, nccl_comm comm, void *stream);
    int (*Recv)(void *recv, size_t count, int type, int peer, nccl_comm comm, void *stream);
    int (*CommInitRankConfig)(nccl_comm *comm, int ranks, struct nccl_id id, int rank,
                              struct nccl_config *config);
    int (*CommSplit)(nccl_comm comm, int color, int key, nccl_comm *ret,
                     struct nccl_config *config);
    int (*CommAbort)(nccl_comm comm);
    int (*CommDestroy)(nccl_comm comm);
    int (*CommGetAsyncError)(nccl_comm comm, int *code);
    int (*AllGather)(const void *send, void *recv, size_t count, int type, nccl_comm comm,
                     void *stream);
    int (*ReduceScatter)(const void *send, void *recv, size_t count, int type, int op,
                         nccl_comm comm, void *stream);
    int (*AllReduce)(const void *send, void *recv, size_t count, int type, int op, nccl_comm comm,
                     void *stream);
    int (*Broadcast)(const void *send, void *recv, size_t count, int type, int root, nccl_comm comm,
                     void *stream);
    int (*CommRegister)(nccl_comm comm, void *memory, size_t size, void **handle); /* from 2.19 */
    int (*CommDeregister)(nccl_comm comm, void *handle);
};

struct registered {
    nccl_comm comm;
    void *handle;
};

struct nccl_link {
    struct hzp_link base;
    struct hzp_link_nccl config;
    void *library, *stream;
    struct nccl_api api;
    nccl_comm comm[HZP_LINK_GROUPS_MAX]; /* NULL: a group of one, or not opened */
    int host_group[HZP_LINK_GROUPS_MAX];
    hzp_ticket host_ticket[HZP_LINK_TICKETS_MAX];
    void *event[HZP_LINK_TICKETS_MAX];
    float *scratch;    /* received pieces: HZP_LINK_NCCL_BYTES of device memory */
    uint64_t launched; /* tickets */
    /* The next ticket: how many elements of a piece were launched, and how many with the last
     * call, which NCCL may still be working on; none: 0. */
    size_t at, calling;
    bool stopped; /* communicators were aborted */
    struct registered *registered;
    int registered_count;
};

static const struct hzp_link_backend backend_nccl;

/* ---- loading ---- */

static const char *library_name(void)
{
    const char *name = getenv("HZP_NCCL");
    return name && *name ? name : "libnccl.so.2";
}

static int find_functions(void *library, struct nccl_api *api, struct hzp_err_text *reterr)
{
    const struct {
        const char *name;
        void *place;
        bool needed;
    } list[] = {
#define F(name, needed) {"nccl" #name, &api->name, needed}
        F(GetVersion, true), F(GetErrorString, true),     F(GetUniqueId, true),
        F(GroupStart, true), F(GroupEnd, true),           F(Send, true),
        F(Recv, true),       F(CommInitRankConfig, true), F(CommSplit, true),
        F(CommAbort, true),  F(CommDestroy, true),        F(CommGetAsyncError, true),
        F(AllGather, true),  F(ReduceScatter, true),      F(AllReduce, true),
        F(Broadcast, true),  F(CommRegister, false),      F(CommDeregister, false),
#undef F
    };
    for (int i = 0; i < HZP_COUNT(list); i++) {
        void *function = dlsym(library, list[i].name);
        if (!function && list[i].needed)
            return hzp_fail(reterr, HZP_EUNSUP, "link nccl: %s has no %s: NCCL 2.18 is needed",
                            library_name(), list[i].name);
        memcpy(list[i].place, &function, sizeof(function));
    }
    return HZP_OK;
}

static int load(void **library, struct nccl_api *api, struct hzp_err_text *reterr)
{
    int version = 0;
    *library = dlopen(library_name(), RTLD_NOW | RTLD_LOCAL);
    if (!*library)
        return hzp_fail(reterr, HZP_EUNSUP, "link nccl: %s", dlerror());
    int r = find_functions(*library, api, reterr);
    if (r == HZP_OK && (api->GetVersion(&version) != NCCL_OK || version < NCCL_VERSION))
        r = hzp_fail(reterr, HZP_EUNSUP, "link nccl: %s is version %d.%d, 2.18 is needed",
                     library_name(), version / 10000, version / 100 % 100);
    if (r < 0) {
        dlclose(*library);
        *library = NULL;
    }
    return r;
}

bool hzp_link_nccl_about(char *text, size_t size)
{
    struct nccl_api api;
    struct hzp_err_text err;
    void *library;
    int version = 0;
    if (!hzp_cuda_link_streams()) {
        snprintf(text, size, "built without CUDA");
        return false;
    }
    if (load(&library, &api, &err) < 0) {
        snprintf(text, size, "%.150s", err.text + strlen("link nccl: "));
        return false;
    }
    api.GetVersion(&version);
    snprintf(text, size, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    dlclose(library);
    return true;
}

/* ---- failures ---- */

static int failed_call(struct nccl_link *link, const char *what, int code,
                       struct hzp_err_text *reterr)
{
    const char *text = link->api.GetErrorString(code);
    return hzp_fail(reterr, HZP_EIO, "link nccl: %s: %s", what, text ? text : "?");
}

/* Fails this link and, through the host link, the others'. */
static void fail(struct nccl_link *link, int rank, const char *what, const char *text)
{
    char why[256];
    snprintf(why, sizeof(why), "%s: %s", what, text ? text : "?");
    hzp_link_fail(&link->base, rank, why);
    hzp_link_abort(link->config.host, rank, why);
}

/* ---- groups ---- */

static struct nccl_config comm_config(const struct nccl_link *link)
{
    return (struct nccl_config){.size = sizeof(struct nccl_config),
                                .magic = (unsigned)NCCL_MAGIC,
                                .version = NCCL_VERSION,
                                .blocking = link->config.enqueues,
                                .cga_cluster_size = INT_MIN,
                                .min_ctas = INT_MIN,
                                .max_ctas = link->config.ctas ? link->config.ctas : INT_MIN,
                                .net_name = NULL,
                                .split_share = INT_MIN};
}

static void pause_a_little(long microseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

/* For the start: waits until the communicator's newest call has ended, or a rank is lost. */
static int settle(struct nccl_link *link, nccl_comm comm, int code, const char *what,
                  struct hzp_err_text *reterr)
{
    struct hzp_link_state host;
    while (code == NCCL_IN_PROGRESS) {
        hzp_link_state(link->config.host, &host);
        if (host.failed)
            return hzp_fail(reterr, HZP_EIO, "link nccl: %s: %s", what, host.why);
        pause_a_little(500);
        int state = NCCL_OK;
        code = link->api.CommGetAsyncError(comm, &state);
        code = code == NCCL_OK ? state : code;
    }
    return code == NCCL_OK ? HZP_OK : failed_call(link, what, code, reterr);
}

/* All ranks split the communicator of all ranks at the same time; a group's color is its first
 * rank in the list, which no other group of this division has. */
static int nccl_group(struct hzp_link *base, int group, struct hzp_err_text *reterr)
{
    struct nccl_link *link = (struct nccl_link *)base;
    const struct hzp_link_group *g = &base->group[group];
    struct nccl_config config = comm_config(link);
    link->host_group[group] = hzp_link_group(link->config.host, g->rank, g->count, reterr);
    HZP_TRY(link->host_group[group]);
    int code =
        link->api.CommSplit(link->comm[0], g->rank[0], g->index, &link->comm[group], &config);
    HZP_TRY(settle(link, link->comm[0], code, "ncclCommSplit", reterr));
    if (!link->comm[group])
        return hzp_fail(reterr, HZP_EIO, "link nccl: ncclCommSplit gives no communicator");
    return settle(link, link->comm[group], NCCL_IN_PROGRESS, "ncclCommSplit", reterr);
}

static int nccl_announce(struct hzp_link *base, void *memory, size_t size,
                         struct hzp_err_text *reterr)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (!link->api.CommRegister || !link->api.CommDeregister)
        return HZP_OK; /* an older library: it copies */
    for (int g = 0; g < base->groups; g++) {
        void *handle = NULL;
        int code = link->api.CommRegister(link->comm[g], memory, size, &handle);
        if (code != NCCL_OK) {
            hzp_log(HZP_LOG_INFO, "link", "nccl register bytes=%zu: %s; it copies", size,
                    link->api.GetErrorString(code));
            return HZP_OK;
        }
        if (!handle)
            continue; /* it has no use for it */
        struct registered *more =
            hzp_xrealloc(link->registered, sizeof(*more) * (size_t)(link->registered_count + 1));
        link->registered = more;
        more[link->registered_count++] = (struct registered){link->comm[g], handle};
    }
    return HZP_OK;
}

/* ---- transfers ---- */

/* What members must agree on besides the tag, as one number. */
static uint64_t digest(const struct hzp_transfer *t)
{
    uint64_t z = hzp_mix64(t->tag + 0x9e3779b97f4a7c15u);
    z = hzp_mix64(z ^ t->count);
    z = hzp_mix64(z ^ t->pitch);
    z = hzp_mix64(z ^ t->nonzero);
    return hzp_mix64(z ^ ((uint64_t)t->op << 40 | (uint64_t)t->type << 32 | (uint32_t)t->root));
}

/* On the host link: the transfer itself if it is of host memory, else one of nothing, which is done
 * when all members have posted it. */
static int nccl_post(struct hzp_link *base, hzp_ticket ticket, const struct hzp_transfer *t,
                     struct hzp_err_text *reterr)
{
    struct nccl_link *link = (struct nccl_link *)base;
    struct hzp_transfer meet = {.op = HZP_ALL_GATHER, .tag = digest(t), .idle = t->idle};
    if (link->config.enqueues && !t->host)
        return hzp_fail(reterr, HZP_EUNSUP, "link nccl: %s of device memory has a ticket",
                        hzp_transfer_name(t->op));
    if (t->onto && t->type != HZP_WIRE_F32 && !t->host)
        return hzp_fail(reterr, HZP_EUNSUP, "link nccl: a sum of U64 onto what recv holds");
    if (t->host)
        meet = *t;
    meet.group = link->host_group[t->group];
    HZP_TRY(hzp_link_post(link->config.host, &meet,
                          &link->host_ticket[ticket % HZP_LINK_TICKETS_MAX], reterr));
    atomic_store(&base->posted, ticket);
    return HZP_OK;
}

/* Elements of a piece that the scratch memory holds of every member. */
static size_t piece_room(const struct hzp_link_group *g)
{
    return HZP_LINK_NCCL_BYTES / sizeof(float) / (size_t)g->count;
}

/* Member m's piece of what is scattered. */
static const float *piece_of(const struct hzp_transfer *t, int m)
{
    return (const float *)t->send + (size_t)m * (t->pitch ? t->pitch : t->count);
}

/* Sends every member its part of the piece [at, at + n) and receives this member's from them. */
static int exchange(struct nccl_link *link, const struct hzp_transfer *t, void *stream, size_t at,
                    size_t n)
{
    const struct nccl_api *api = &link->api;
    const struct hzp_link_group *g = &link->base.group[t->group];
    nccl_comm comm = link->comm[t->group];
    size_t stride = piece_room(g);
    int code = api->GroupStart();
    for (int m = 0; m < g->count && code == NCCL_OK; m++) {
        if (m == g->index)
            continue;
        code = api->Send(piece_of(t, m) + at, n, NCCL_FLOAT32, m, comm, stream);
        if (code == NCCL_OK || code == NCCL_IN_PROGRESS)
            code = api->Recv(link->scratch + (size_t)m * stride, n, NCCL_FLOAT32, m, comm, stream);
        code = code == NCCL_IN_PROGRESS ? NCCL_OK : code;
    }
    int end = api->GroupEnd();
    return code == NCCL_OK ? end : code;
}

/* Adds the pieces that were exchanged. */
static int add_pieces(struct nccl_link *link, const struct hzp_transfer *t, void *stream, size_t at,
                      size_t n)
{
    const struct hzp_link_group *g = &link->base.group[t->group];
    struct hzp_link_sum sum = {.dst = (float *)t->recv + at,
                               .own = piece_of(t, g->index) + at,
                               .others = link->scratch,
                               .stride = piece_room(g),
                               .elements = n,
                               .members = g->count,
                               .index = g->index,
                               .onto = true};
    return link->config.streams->sum(&sum, stream);
}

/* One call of the library, for elements `at` and later of each piece; *ret_elements of each are its
 * work. */
static int launch(struct nccl_link *link, const struct hzp_transfer *t, void *stream, size_t at,
                  size_t *ret_elements)
{
    static const int types[] = {NCCL_UINT8, NCCL_FLOAT32, NCCL_UINT64, NCCL_FLOAT64};
    const struct nccl_api *api = &link->api;
    nccl_comm comm = link->comm[t->group];
    int type = types[t->type];
    *ret_elements = t->count;
    if (t->onto) {
        size_t room = piece_room(&link->base.group[t->group]);
        *ret_elements = HZP_MIN(t->count - at, room);
        return exchange(link, t, stream, at, *ret_elements);
    }
    switch (t->op) {
    case HZP_ALL_GATHER:
        return api->AllGather(t->send, t->recv, t->count, type, comm, stream);
    case HZP_REDUCE_SCATTER:
        return api->ReduceScatter(t->send, t->recv, t->count, type, NCCL_SUM, comm, stream);
    case HZP_ALL_REDUCE:
        return api->AllReduce(t->send, t->recv, t->count, type, NCCL_SUM, comm, stream);
    default:
        return api->Broadcast(t->recv, t->recv, t->count, type, t->root, comm, stream);
    }
}

/* False: the host link failed, perhaps because another rank's GPU did; then this link has too. */
static bool host_works(struct nccl_link *link)
{
    struct hzp_link_state host;
    hzp_link_state(link->config.host, &host);
    if (host.failed)
        hzp_link_fail(&link->base, host.failed_rank, host.why);
    return !host.failed;
}

/* rank: at fault, -1 if the error may be another's. */
static bool passes(struct nccl_link *link, int code, int rank)
{
    if (code != NCCL_OK)
        fail(link, rank, "NCCL", link->api.GetErrorString(code));
    return code == NCCL_OK;
}

static bool passes_cuda(struct nccl_link *link, int code)
{
    if (code)
        fail(link, link->base.rank, "CUDA", link->config.streams->error_text(code));
    return code == 0;
}

/* Puts the rest of the transfer on the stream.  1: all of it is; 0: NCCL is still working on a call
 * (it connects when it first needs a way between two ranks); -1: the link failed. */
static int put_on_stream(struct nccl_link *link, const struct hzp_transfer *t)
{
    for (;;) {
        if (link->calling) {
            int state = NCCL_OK;
            int code = link->api.CommGetAsyncError(link->comm[t->group], &state);
            code = code == NCCL_OK ? state : code;
            if (code == NCCL_IN_PROGRESS)
                return 0;
            if (!passes(link, code, -1) ||
                (t->onto &&
                 !passes_cuda(link, add_pieces(link, t, link->stream, link->at, link->calling))))
                return -1;
            link->at += link->calling;
            link->calling = 0;
        }
        if (link->at == t->count)
            return 1;
        int code = launch(link, t, link->stream, link->at, &link->calling);
        if (!passes(link, code == NCCL_IN_PROGRESS ? NCCL_OK : code, link->base.rank))
            return -1;
    }
}

static int nccl_enqueue(struct hzp_link *base, const struct hzp_transfer *t, void *stream,
                        struct hzp_err_text *reterr)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (!link->config.enqueues)
        return hzp_fail(reterr, HZP_EUNSUP, "link nccl: opened for transfers with tickets");
    for (size_t at = 0, n; at < t->count; at += n) {
        if (!passes(link, launch(link, t, stream, at, &n), base->rank) ||
            (t->onto && !passes_cuda(link, add_pieces(link, t, stream, at, n))))
            return hzp_link_check(base, reterr);
    }
    return HZP_OK;
}

static void wake(void *link)
{
    hzp_link_wake(link);
}

/* Puts what follows a transfer on the stream: the event, and the call that says to look at it. */
static bool put_end(struct nccl_link *link, uint64_t slot)
{
    const struct hzp_link_streams *streams = link->config.streams;
    return passes_cuda(link, streams->event_record(link->event[slot], link->stream)) &&
           passes_cuda(link, streams->call(link->stream, wake, &link->base));
}

/* Launches what all members have posted.  False: the link failed. */
static bool launch_ready(struct nccl_link *link)
{
    struct hzp_link *base = &link->base;
    while (link->launched < atomic_load(&base->posted)) {
        uint64_t slot = (link->launched + 1) % HZP_LINK_TICKETS_MAX;
        const struct hzp_transfer *t = &base->queue[slot];
        int ready = hzp_link_poll(link->config.host, link->host_ticket[slot], NULL);
        if (ready < 0)
            return host_works(link);
        if (!ready)
            return true;
        int put = t->host ? 1 : put_on_stream(link, t);
        if (put < 0)
            return false;
        if (put == 0) {
            pause_a_little(50);
            hzp_link_wake(base); /* nothing else says when to look again */
            return true;
        }
        if (!t->host && !put_end(link, slot))
            return false;
        link->at = 0;
        link->launched++;
    }
    return true;
}

/* 1: the oldest launched transfer has ended; 0: not yet; -1: the link failed. */
static int has_ended(struct nccl_link *link, hzp_ticket ticket)
{
    uint64_t slot = ticket % HZP_LINK_TICKETS_MAX;
    if (link->base.queue[slot].host)
        return 1;
    int code = link->config.streams->event_query(link->event[slot]);
    return code < 0 ? 0 : passes_cuda(link, code) ? 1 : -1;
}

static void nccl_progress(struct hzp_link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (!launch_ready(link) || !host_works(link))
        return;
    for (uint64_t done = atomic_load(&base->done); done < link->launched; done++) {
        int ended = has_ended(link, done + 1);
        if (ended < 0)
            return;
        if (!ended)
            break;
        hzp_link_done(base, done + 1);
    }
    for (int g = 0; g < base->groups; g++) {
        int state = NCCL_OK;
        if (link->api.CommGetAsyncError(link->comm[g], &state) != NCCL_OK ||
            (state != NCCL_OK && state != NCCL_IN_PROGRESS)) {
            fail(link, -1, "NCCL", link->api.GetErrorString(state));
            return;
        }
    }
}

/* Kernels may wait for a rank that is gone: they would hold cores that serve. */
static void nccl_stop(struct hzp_link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (link->stopped)
        return;
    link->stopped = true;
    for (int g = base->groups - 1; g >= 0; g--)
        if (link->comm[g])
            link->api.CommAbort(link->comm[g]);
    memset(link->comm, 0, sizeof(link->comm));
}

static void nccl_set_wake(struct hzp_link *base, void (*wake_caller)(void *ctx), void *ctx)
{
    hzp_link_set_wake(((struct nccl_link *)base)->config.host, wake_caller, ctx);
}

static void nccl_wait(struct hzp_link *base, hzp_ticket ticket)
{
    pause_a_little(50);
}

static void nccl_abort(struct hzp_link *base, int rank, const char *why)
{
    hzp_link_abort(((struct nccl_link *)base)->config.host, rank, why);
}

static int nccl_missing(struct hzp_link *base)
{
    struct hzp_link_state host;
    hzp_link_state(((struct nccl_link *)base)->config.host, &host);
    return host.missing;
}

/* ---- opening and closing ---- */

static void nccl_close(struct hzp_link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    const struct hzp_link_streams *streams = link->config.streams;
    hzp_link_set_wake(link->config.host, NULL, NULL);
    if (atomic_load(&base->failed) || atomic_load(&base->done) < atomic_load(&base->posted))
        nccl_stop(base);
    for (int i = 0; !link->stopped && i < link->registered_count; i++)
        link->api.CommDeregister(link->registered[i].comm, link->registered[i].handle);
    for (int g = base->groups - 1; g >= 0; g--)
        if (link->comm[g])
            link->api.CommDestroy(link->comm[g]);
    if (link->stream)
        streams->stream_close(link->stream);
    for (int i = 0; i < HZP_LINK_TICKETS_MAX; i++)
        if (link->event[i])
            streams->event_close(link->event[i]);
    if (link->scratch)
        streams->memory_close(link->scratch);
    if (link->library)
        dlclose(link->library);
    free(link->registered);
    hzp_link_fini(base);
    free(link);
}

static const struct hzp_link_backend backend_nccl = {
    .name = "nccl",
    .group = nccl_group,
    .announce = nccl_announce,
    .post = nccl_post,
    .enqueue = nccl_enqueue,
    .progress = nccl_progress,
    .stop = nccl_stop,
    .set_wake = nccl_set_wake,
    .wait = nccl_wait,
    .abort = nccl_abort,
    .missing = nccl_missing,
    .close = nccl_close,
};

static int open_streams(struct nccl_link *link, struct hzp_err_text *reterr)
{
    const struct hzp_link_streams *streams = link->config.streams;
    int code = streams->stream_open(&link->stream);
    for (int i = 0; !code && i < HZP_LINK_TICKETS_MAX; i++)
        code = streams->event_open(&link->event[i]);
    if (!code)
        code = streams->memory_open((void **)&link->scratch, HZP_LINK_NCCL_BYTES);
    return code ? hzp_fail(reterr, HZP_EIO, "link nccl: CUDA: %s", streams->error_text(code))
                : HZP_OK;
}

/* The communicator of all ranks; rank 0's id reaches the others over the host link. */
static int open_world(struct nccl_link *link, struct hzp_err_text *reterr)
{
    struct nccl_config config = comm_config(link);
    struct nccl_id id = {{0}};
    if (link->base.rank == 0) {
        int code = link->api.GetUniqueId(&id);
        if (code != NCCL_OK) {
            hzp_link_abort(link->config.host, 0, "NCCL gives no id");
            return failed_call(link, "ncclGetUniqueId", code, reterr);
        }
    }
    HZP_TRY(hzp_link_broadcast(link->config.host, 0, &id, sizeof(id), 0, reterr));
    int code = link->api.CommInitRankConfig(&link->comm[0], link->base.ranks, id, link->base.rank,
                                            &config);
    int r = settle(link, link->comm[0], code, "ncclCommInitRankConfig", reterr);
    if (r < 0)
        hzp_link_abort(link->config.host, link->base.rank, "NCCL cannot connect");
    return r;
}

int hzp_link_open_nccl(const struct hzp_link_nccl *config, struct hzp_link **ret,
                       struct hzp_err_text *reterr)
{
    if (!config->streams)
        return hzp_fail(reterr, HZP_EUNSUP, "link nccl: built without CUDA");
    struct nccl_link *link = hzp_xcalloc(1, sizeof(*link));
    hzp_link_init(&link->base, &backend_nccl, hzp_link_rank(config->host),
                  hzp_link_ranks(config->host));
    link->config = *config;
    int r = load(&link->library, &link->api, reterr);
    if (r == HZP_OK)
        r = open_streams(link, reterr);
    if (r == HZP_OK)
        r = open_world(link, reterr);
    if (r < 0) {
        nccl_stop(&link->base);
        nccl_close(&link->base);
    } else {
        *ret = &link->base;
    }
    return r;
}
