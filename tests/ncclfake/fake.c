/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ncclfake/fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPS_MAX = 4096, COMMS_MAX = 256, STREAM_OPS_MAX = 2048, PAIRS_MAX = 8, IN_PROGRESS = 7 };

struct id {
    char bytes[128];
};

struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
    const char *net;
    int split_share;
};

/* A communicator of one rank: the team is what all its members have in common. */
struct comm {
    uint64_t team;
    int rank, size, world_rank, splits, asks;
    bool open;
};

/* Of FAKE_PAIRS: what goes to and comes from each member; of FAKE_SUM and FAKE_CALL: what to do. */
struct more {
    const void *send[PAIRS_MAX];
    void *recv[PAIRS_MAX];
    struct hzp_link_sum sum;
    void (*run)(void *ctx);
    void *ctx;
};

struct stream {
    int op[STREAM_OPS_MAX], ops, ended;
};

struct event {
    const struct stream *stream;
    int behind; /* operations of the stream */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_op op[OPS_MAX];
static struct more more[OPS_MAX];
static struct comm *op_comm[OPS_MAX];
static struct stream *op_stream[OPS_MAX];
static int ops, launched, slow;
static __thread struct more group;
static __thread struct fake_op group_op;
static __thread void *group_comm, *group_stream;
static struct comm comms[COMMS_MAX];
static int comm_count, open_things, aborted, registered, max_ctas;
static int async_error, library_version = 22703;
static bool held;
static char planted[64];
static int planted_code;

/* ---- what the tests ask ---- */

void fake_reset(void)
{
    launched = slow = ops = comm_count = open_things = aborted = registered = async_error =
        max_ctas = 0;
    library_version = 22703;
    held = false;
    planted[0] = 0;
}

int fake_launched(void)
{
    pthread_mutex_lock(&lock);
    int n = launched;
    pthread_mutex_unlock(&lock);
    return n;
}

struct fake_op fake_op(int i)
{
    int at = 0;
    for (; op[at].kind >= FAKE_SUM || i > 0; at++)
        i -= op[at].kind < FAKE_SUM;
    return op[at];
}

void fake_slow(int asks)
{
    slow = asks;
}

int fake_open(void)
{
    return open_things;
}

int fake_aborted(void)
{
    return aborted;
}

int fake_registered(void)
{
    return registered;
}

int fake_max_ctas(void)
{
    return max_ctas;
}

void fake_plant(const char *function, int code)
{
    snprintf(planted, sizeof(planted), "%s", function);
    planted_code = code;
}

void fake_plant_async(int code)
{
    async_error = code;
}

void fake_set_version(int version)
{
    library_version = version;
}

void fake_hold(bool hold)
{
    held = hold;
}

static int fault(const char *function)
{
    if (strcmp(planted, function))
        return 0;
    planted[0] = 0;
    return planted_code;
}

/* ---- running ---- */

static struct fake_op *oldest(struct stream *stream)
{
    return stream && stream->ended < stream->ops ? &op[stream->op[stream->ended]] : NULL;
}

/* The member's operation that may run now: the oldest of its stream, if that is on this team. */
static int runnable(uint64_t team, int rank)
{
    for (int i = 0; i < ops; i++)
        if (!op[i].ended && op_comm[i] && op_comm[i]->team == team && op_comm[i]->rank == rank)
            return oldest(op_stream[i]) == &op[i] ? i : -1;
    return -1;
}

static size_t width(int type)
{
    return type == 5 ? 8 : type == 7 ? 4 : 1;
}

static void add(void *dst, const void *src, int type, size_t count, bool first)
{
    for (size_t i = 0; i < count; i++)
        if (type == 7)
            ((float *)dst)[i] = (first ? 0 : ((float *)dst)[i]) + ((const float *)src)[i];
        else
            ((uint64_t *)dst)[i] = (first ? 0 : ((uint64_t *)dst)[i]) + ((const uint64_t *)src)[i];
}

static void compute_pairs(const int *member, int n)
{
    size_t bytes = op[member[0]].count * width(op[member[0]].type);
    for (int m = 0; m < n; m++)
        for (int from = 0; from < n; from++)
            if (more[member[m]].recv[from])
                memcpy(more[member[m]].recv[from], more[member[from]].send[m], bytes);
}

static void compute_alone(int i)
{
    const struct hzp_link_sum *s = &more[i].sum;
    if (op[i].kind == FAKE_CALL) {
        more[i].run(more[i].ctx);
        return;
    }
    for (int m = 0; m < s->members; m++) {
        const float *piece = m == s->index ? s->own : s->others + (size_t)m * s->stride;
        for (size_t k = 0; k < s->elements; k++)
            s->dst[k] = (m || s->onto ? s->dst[k] : 0) + piece[k];
    }
}

/* Computes the members' operations member[0 .. n), which are all there. */
static void compute(const int *member, int n)
{
    if (op[member[0]].kind == FAKE_PAIRS) {
        compute_pairs(member, n);
        return;
    }
    const struct fake_op *a = &op[member[0]];
    size_t bytes = a->count * width(a->type),
           all = a->kind == FAKE_SCATTER ? bytes * (size_t)n : bytes;
    char *result = malloc(a->kind == FAKE_GATHER ? bytes * (size_t)n : all + 1);
    for (int m = 0; m < n; m++) {
        const struct fake_op *o = &op[member[m]];
        if (a->kind == FAKE_GATHER)
            memcpy(result + bytes * (size_t)m, o->send, bytes);
        else if (a->kind == FAKE_BROADCAST && m == a->root)
            memcpy(result, o->send, bytes);
        else if (a->kind == FAKE_REDUCE || a->kind == FAKE_SCATTER)
            add(result, o->send, a->type, all / width(a->type), m == 0);
    }
    for (int m = 0; m < n; m++)
        memcpy(op[member[m]].recv, a->kind == FAKE_SCATTER ? result + bytes * (size_t)m : result,
               a->kind == FAKE_GATHER ? bytes * (size_t)n : bytes);
    free(result);
}

static bool agree(const struct fake_op *a, const struct fake_op *b)
{
    return a->kind == b->kind && a->count == b->count && a->type == b->type && a->root == b->root;
}

/* Runs one operation that all members have at the heads of their streams. */
static bool run_one(void)
{
    for (int i = 0; i < ops; i++) {
        int member[COMMS_MAX], n = op_comm[i] ? op_comm[i]->size : 1, there = 0;
        if (op[i].ended || oldest(op_stream[i]) != &op[i])
            continue;
        if (!op_comm[i]) {
            op[i].ended = true; /* before it runs: a call may look at its stream */
            op_stream[i]->ended++;
            compute_alone(i);
            return true;
        }
        for (; there < n; there++) {
            member[there] = runnable(op_comm[i]->team, there);
            if (member[there] < 0 || !agree(&op[i], &op[member[there]]))
                break;
        }
        if (there < n)
            continue;
        compute(member, n);
        for (int m = 0; m < n; m++) {
            op[member[m]].ended = true;
            op_stream[member[m]]->ended++;
        }
        return true;
    }
    return false;
}

static void run(void)
{
    while (!held && run_one())
        ;
}

bool fake_stuck(void)
{
    pthread_mutex_lock(&lock);
    run();
    bool stuck = false;
    for (int i = 0; i < ops; i++)
        stuck = stuck || !op[i].ended;
    pthread_mutex_unlock(&lock);
    return stuck;
}

/* ---- NCCL ---- */

/* The functions have the library's names. */
int ncclGetVersion(int *version);
const char *ncclGetErrorString(int code);
int ncclGetUniqueId(struct id *id);
int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, struct config *config);
int ncclCommSplit(void *comm, int color, int key, void **ret, struct config *config);
int ncclCommAbort(void *comm);
int ncclCommDestroy(void *comm);
int ncclCommGetAsyncError(void *comm, int *code);
int ncclCommRegister(void *comm, void *memory, size_t size, void **handle);
int ncclCommDeregister(void *comm, void *handle);
int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream);
int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                      void *stream);
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                  void *stream);
int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm,
                  void *stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *send, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, void *stream);

int ncclGetVersion(int *version)
{
    *version = library_version;
    return 0;
}

const char *ncclGetErrorString(int code)
{
    return code == 3 ? "internal error - planted" : "remote process exited - planted";
}

int ncclGetUniqueId(struct id *id)
{
    memset(id, 0x5a, sizeof(*id));
    return fault("GetUniqueId");
}

static struct comm *open_comm(uint64_t team, int rank, int size, int world_rank)
{
    struct comm *c = &comms[comm_count++];
    *c = (struct comm){team, rank, size, world_rank, 0, slow, true};
    open_things++;
    return c;
}

int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, struct config *config)
{
    pthread_mutex_lock(&lock);
    int r = fault("CommInitRankConfig");
    bool known = config->size == sizeof(*config) && config->magic == 0xcafebeef &&
                 config->version == 21800 && id.bytes[77] == 0x5a;
    max_ctas = config->max_ctas;
    if (!r && known)
        *comm = open_comm(1, rank, ranks, rank);
    pthread_mutex_unlock(&lock);
    return r ? r : !known ? 4 : config->blocking ? 0 : IN_PROGRESS;
}

/* The size of a color is not known before all have split: tests have groups of equal size. */
static int split_size = 2;

int ncclCommSplit(void *comm, int color, int key, void **ret, struct config *config)
{
    struct comm *parent = comm;
    pthread_mutex_lock(&lock);
    int r = fault("CommSplit");
    uint64_t team = parent->team * 1000003 + (uint64_t)(++parent->splits) * 1009 + (uint64_t)color;
    if (!r)
        *ret = open_comm(team, key, split_size, parent->world_rank);
    parent->asks = slow;
    pthread_mutex_unlock(&lock);
    return r ? r : IN_PROGRESS;
}

static int close_comm(struct comm *c, bool abort_)
{
    pthread_mutex_lock(&lock);
    int r = c->open ? 0 : 5;
    c->open = false;
    open_things--;
    aborted += abort_;
    pthread_mutex_unlock(&lock);
    return r;
}

int ncclCommAbort(void *comm)
{
    return close_comm(comm, true);
}

int ncclCommDestroy(void *comm)
{
    return close_comm(comm, false);
}

int ncclCommGetAsyncError(void *comm, int *code)
{
    struct comm *c = comm;
    pthread_mutex_lock(&lock);
    *code = async_error ? async_error : c->asks > 0 ? IN_PROGRESS : 0;
    c->asks -= c->asks > 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

int ncclCommRegister(void *comm, void *memory, size_t size, void **handle)
{
    pthread_mutex_lock(&lock);
    *handle = memory;
    registered++;
    pthread_mutex_unlock(&lock);
    return fault("CommRegister");
}

int ncclCommDeregister(void *comm, void *handle)
{
    pthread_mutex_lock(&lock);
    registered--;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int launch_with(struct fake_op new, const struct more *with, void *comm, void *stream)
{
    struct comm *c = comm;
    struct stream *s = stream;
    pthread_mutex_lock(&lock);
    int r = c ? fault("launch") : 0;
    bool waits = c && c->asks > 0; /* the call before is in progress */
    if (!r && !waits && (!c || c->open) && ops < OPS_MAX && s->ops < STREAM_OPS_MAX) {
        new.rank = c ? c->world_rank : -1;
        new.members = c ? c->size : 1;
        if (with)
            more[ops] = *with;
        if (c)
            c->asks = slow;
        launched += c != NULL;
        op_comm[ops] = c;
        op_stream[ops] = s;
        op[ops] = new;
        s->op[s->ops++] = ops++;
    } else if (!r) {
        r = 4;
    }
    pthread_mutex_unlock(&lock);
    return r ? r : c && slow ? IN_PROGRESS : 0;
}

static int launch(struct fake_op new, void *comm, void *stream)
{
    return launch_with(new, NULL, comm, stream);
}

int ncclGroupStart(void)
{
    memset(&group, 0, sizeof(group));
    group_comm = NULL;
    return fault("GroupStart");
}

int ncclGroupEnd(void)
{
    return group_comm ? launch_with(group_op, &group, group_comm, group_stream) : 0;
}

static void add_pair(size_t count, int type, void *comm, void *stream)
{
    group_op = (struct fake_op){.kind = FAKE_PAIRS, .count = count, .type = type};
    group_comm = comm;
    group_stream = stream;
}

int ncclSend(const void *send, size_t count, int type, int peer, void *comm, void *stream)
{
    group.send[peer] = send;
    add_pair(count, type, comm, stream);
    return 0;
}

int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, void *stream)
{
    group.recv[peer] = recv;
    add_pair(count, type, comm, stream);
    return 0;
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    return launch((struct fake_op){FAKE_GATHER, 0, 0, count, type, 0, send, recv, false}, comm,
                  stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                      void *stream)
{
    return launch((struct fake_op){FAKE_SCATTER, 0, 0, count, type, sum, send, recv, false}, comm,
                  stream);
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                  void *stream)
{
    return launch((struct fake_op){FAKE_REDUCE, 0, 0, count, type, sum, send, recv, false}, comm,
                  stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm,
                  void *stream)
{
    return launch((struct fake_op){FAKE_BROADCAST, 0, 0, count, type, root, send, recv, false},
                  comm, stream);
}

/* ---- streams ---- */

static const char *error_text(int code)
{
    return "planted CUDA error";
}

static int thing_open(void **ret, size_t size, const char *function)
{
    pthread_mutex_lock(&lock);
    int r = fault(function);
    *ret = r ? NULL : calloc(1, size);
    open_things += !r;
    pthread_mutex_unlock(&lock);
    return r;
}

static int thing_close(void *thing)
{
    pthread_mutex_lock(&lock);
    open_things--;
    pthread_mutex_unlock(&lock);
    free(thing);
    return 0;
}

static int stream_open(void **stream)
{
    return thing_open(stream, sizeof(struct stream), "stream_open");
}

static int event_open(void **event)
{
    return thing_open(event, sizeof(struct event), "event_open");
}

static int event_record(void *event, void *stream)
{
    struct event *e = event;
    pthread_mutex_lock(&lock);
    e->stream = stream;
    e->behind = e->stream->ops;
    pthread_mutex_unlock(&lock);
    return fault("event_record");
}

static int event_query(void *event)
{
    const struct event *e = event;
    pthread_mutex_lock(&lock);
    run();
    int r = fault("event_query");
    bool passed = e->stream->ended >= e->behind;
    pthread_mutex_unlock(&lock);
    return r ? r : passed ? 0 : -1;
}

static int memory_open(void **memory, size_t size)
{
    return thing_open(memory, size, "memory_open");
}

static int sum(const struct hzp_link_sum *what, void *stream)
{
    struct more with = {.sum = *what};
    int r = fault("sum");
    return r ? r : launch_with((struct fake_op){.kind = FAKE_SUM}, &with, NULL, stream);
}

static int call(void *stream, void (*run_it)(void *ctx), void *ctx)
{
    struct more with = {.run = run_it, .ctx = ctx};
    return launch_with((struct fake_op){.kind = FAKE_CALL}, &with, NULL, stream);
}

const struct hzp_link_streams fake_streams = {.error_text = error_text,
                                              .stream_open = stream_open,
                                              .stream_close = thing_close,
                                              .event_open = event_open,
                                              .event_close = thing_close,
                                              .event_record = event_record,
                                              .event_query = event_query,
                                              .memory_open = memory_open,
                                              .memory_close = thing_close,
                                              .sum = sum,
                                              .call = call};
