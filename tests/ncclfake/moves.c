/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ncclfake/moves.c - a stand-in for NCCL between processes on one machine, each with a
 * recorded CUDA device (tests/cudafake): it moves the bytes through files that all of them map.
 *
 * An operation is a task of its stream.  When the task is the oldest there, the rank leaves its
 * data in its part of the board; the task is ready when all members have, and takes theirs when it
 * runs.
 * So a member that never comes leaves the stream standing, as on a GPU, until the communicator is
 * aborted.  On a communicator that does not block, every call first answers that it is in progress,
 * as a library does that must connect.
 *
 * Thread: any; tasks run under the recorder's lock. */
#include "tests/cudafake/fake.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 8, SPLITS = 16, OK = 0, SYSTEM = 2, INVALID = 5, IN_PROGRESS = 7 };
static const size_t PART = (size_t)64 << 20; /* of the board, for each rank; a sparse file */

enum kind { GATHER, SCATTER, REDUCE, BROADCAST, PAIRS };

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

/* What one rank has posted; all but offsets is the same on every member. */
struct posted {
    enum kind kind;
    int type, root;
    size_t count, at[RANKS]; /* PAIRS: where the data for each member begin */
};

struct board {
    atomic_int attached;
    _Atomic uint64_t arrived[RANKS], left[RANKS]; /* operations */
    struct posted posted[RANKS];
    struct {
        atomic_int arrived;
        int color[RANKS], key[RANKS];
    } split[SPLITS];
};

struct comm {
    char path[PATH_MAX];
    struct board *board;
    int rank, size, splits;
    bool blocking;
    struct comm *child; /* that the newest split makes; NULL: it is there */
    int color;
    uint64_t ops; /* launched */
    bool working; /* the newest call has not been asked about yet */
    int error;
    atomic_bool aborted;
};

struct pair {
    const void *send;
    void *recv;
    int peer;
};

struct op {
    struct comm *comm;
    struct posted what;
    const void *send;
    void *recv;
    struct pair pair[2 * RANKS];
    int pairs;
    uint64_t number;
    bool arrived;
};

static __thread struct op *grouped; /* between GroupStart and GroupEnd */
static __thread cudaStream_t grouped_stream;

int ncclGetVersion(int *version);
const char *ncclGetErrorString(int code);
int ncclGetUniqueId(struct id *id);
int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, struct config *config);
int ncclCommSplit(void *comm, int color, int key, void **ret, struct config *config);
int ncclCommAbort(void *comm);
int ncclCommDestroy(void *comm);
int ncclCommGetAsyncError(void *comm, int *code);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *send, size_t count, int type, int peer, void *comm, cudaStream_t stream);
int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, cudaStream_t stream);
int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm,
                  cudaStream_t stream);
int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                      cudaStream_t stream);
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                  cudaStream_t stream);
int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm,
                  cudaStream_t stream);

int ncclGetVersion(int *version)
{
    *version = 22703;
    return OK;
}

const char *ncclGetErrorString(int code)
{
    return code == INVALID ? "members post different operations" : "an error of the stand-in";
}

/* ---- communicators ---- */

int ncclGetUniqueId(struct id *id)
{
    const char *folder = getenv("TMPDIR");
    memset(id, 0, sizeof(*id));
    snprintf(id->bytes, sizeof(id->bytes), "%s/hzp-nccl-XXXXXX", folder ? folder : "/tmp");
    int file = mkstemp(id->bytes);
    if (file < 0)
        return SYSTEM;
    close(file);
    return OK;
}

/* Maps the board of a communicator whose path, rank and size are known. */
static int attach(struct comm *c)
{
    size_t size = sizeof(struct board) + (size_t)c->size * PART;
    int file = open(c->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)size) < 0)
        return SYSTEM;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return SYSTEM;
    c->board = memory;
    atomic_fetch_add(&c->board->attached, 1);
    return OK;
}

int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, struct config *config)
{
    if (config->size != sizeof(*config) || config->magic != 0xcafebeef ||
        (config->max_ctas < 1 && !(config->blocking && config->max_ctas == INT_MIN)) ||
        ranks > RANKS)
        return INVALID;
    struct comm *c = calloc(1, sizeof(*c));
    snprintf(c->path, sizeof(c->path), "%s", id.bytes);
    c->rank = rank;
    c->size = ranks;
    c->blocking = config->blocking;
    *comm = c;
    int r = attach(c);
    if (r || !c->blocking)
        return r ? r : IN_PROGRESS;
    while (atomic_load(&c->board->attached) < c->size)
        usleep(1000);
    return OK;
}

int ncclCommSplit(void *comm, int color, int key, void **ret, struct config *config)
{
    struct comm *parent = comm, *c = calloc(1, sizeof(*c));
    int number = parent->splits++;
    if (number == SPLITS)
        return INVALID;
    snprintf(c->path, sizeof(c->path), "%.200s.%d.%d", parent->path, number, color);
    c->color = color;
    c->rank = key;
    parent->child = c;
    parent->board->split[number].color[parent->rank] = color;
    parent->board->split[number].key[parent->rank] = key;
    atomic_fetch_add(&parent->board->split[number].arrived, 1);
    *ret = c;
    return IN_PROGRESS;
}

/* All members of the parent have said their colors. */
static int end_split(struct comm *parent)
{
    struct comm *c = parent->child;
    int number = parent->splits - 1;
    for (int r = 0; r < parent->size; r++)
        c->size += parent->board->split[number].color[r] == c->color;
    parent->child = NULL;
    return attach(c);
}

int ncclCommGetAsyncError(void *comm, int *code)
{
    struct comm *c = comm;
    *code = c->error;
    if (!c->board)
        *code = SYSTEM;
    else if (c->error)
        return OK;
    else if (atomic_load(&c->board->attached) < c->size || c->working)
        *code = IN_PROGRESS;
    else if (c->rank == 0)
        unlink(c->path); /* all have opened it */
    c->working = false;
    if (c->child && *code == OK) {
        bool all = atomic_load(&c->board->split[c->splits - 1].arrived) == c->size;
        *code = all ? end_split(c) : IN_PROGRESS;
    }
    return OK;
}

int ncclCommAbort(void *comm)
{
    struct comm *c = comm;
    if (c->rank == 0)
        unlink(c->path);
    atomic_store(&c->aborted, true); /* its tasks may still refer to it */
    return OK;
}

int ncclCommDestroy(void *comm)
{
    return ncclCommAbort(comm);
}

/* ---- operations ---- */

static size_t width(int type)
{
    return type == 5 || type == 8 ? 8 : type == 7 ? 4 : 1;
}

static char *part_of(const struct comm *c, int rank)
{
    return (char *)c->board + sizeof(struct board) + (size_t)rank * PART;
}

static bool all_reached(const struct comm *c, const _Atomic uint64_t *of, uint64_t number)
{
    for (int m = 0; m < c->size; m++)
        if (atomic_load(&of[m]) < number)
            return false;
    return true;
}

static void deposit(struct op *op)
{
    struct comm *c = op->comm;
    struct posted *posted = &c->board->posted[c->rank];
    char *part = part_of(c, c->rank);
    size_t bytes = op->what.count * width(op->what.type), at = 0;
    if (bytes * (size_t)c->size > PART)
        abort();
    if (op->what.kind == SCATTER)
        bytes *= (size_t)c->size;
    *posted = op->what;
    if (op->what.kind != PAIRS && (op->what.kind != BROADCAST || op->what.root == c->rank))
        memcpy(part, op->send, bytes);
    for (int i = 0; i < op->pairs; i++) {
        if (!op->pair[i].send)
            continue;
        posted->at[op->pair[i].peer] = at;
        memcpy(part + at, op->pair[i].send, bytes);
        at += bytes;
    }
}

static bool ready(const void *args)
{
    struct op *op = *(struct op *const *)args;
    struct comm *c = op->comm;
    if (atomic_load(&c->aborted))
        return true;
    if (!op->arrived && !all_reached(c, c->board->left, op->number - 1))
        return false;
    if (!op->arrived) {
        deposit(op);
        atomic_store(&c->board->arrived[c->rank], op->number);
        op->arrived = true;
    }
    return all_reached(c, c->board->arrived, op->number);
}

static void add(void *dst, const void *src, int type, size_t count, bool first)
{
    for (size_t i = 0; i < count; i++)
        if (type == 7)
            ((float *)dst)[i] = (first ? 0 : ((float *)dst)[i]) + ((const float *)src)[i];
        else if (type == 8)
            ((double *)dst)[i] = (first ? 0 : ((double *)dst)[i]) + ((const double *)src)[i];
        else
            ((uint64_t *)dst)[i] = (first ? 0 : ((uint64_t *)dst)[i]) + ((const uint64_t *)src)[i];
}

static void take(const struct op *op)
{
    const struct comm *c = op->comm;
    const struct posted *w = &op->what;
    size_t bytes = w->count * width(w->type);
    for (int m = 0; m < c->size; m++) {
        const char *theirs = part_of(c, m);
        if (w->kind == GATHER)
            memcpy((char *)op->recv + (size_t)m * bytes, theirs, bytes);
        else if (w->kind == BROADCAST && m == w->root)
            memcpy(op->recv, theirs, bytes);
        else if (w->kind == SCATTER)
            add(op->recv, theirs + (size_t)c->rank * bytes, w->type, w->count, m == 0);
        else if (w->kind == REDUCE)
            add(op->recv, theirs, w->type, w->count, m == 0);
    }
    for (int i = 0; i < op->pairs; i++) {
        int peer = op->pair[i].peer;
        if (op->pair[i].recv)
            memcpy(op->pair[i].recv, part_of(c, peer) + c->board->posted[peer].at[c->rank], bytes);
    }
}

static void run(const void *args)
{
    struct op *op = *(struct op *const *)args;
    struct comm *c = op->comm;
    bool there = !atomic_load(&c->aborted);
    for (int m = 0; there && m < c->size; m++) {
        const struct posted *p = &c->board->posted[m];
        if (p->kind != op->what.kind || p->type != op->what.type || p->count != op->what.count ||
            p->root != op->what.root)
            c->error = INVALID;
    }
    if (there && !c->error)
        take(op);
    if (there)
        atomic_store(&c->board->left[c->rank], op->number);
    free(op);
}

static struct fake_touch touch(const void *memory, size_t bytes, bool writes)
{
    uintptr_t begin = (uintptr_t)memory;
    return (struct fake_touch){
        .begin = begin, .end = begin + bytes, .writes = writes, .name = "a transfer"};
}

static int put(struct op *op, cudaStream_t stream)
{
    struct comm *c = op->comm;
    struct fake_touch touched[2 * RANKS + 2];
    size_t bytes = op->what.count * width(op->what.type), all = bytes * (size_t)c->size;
    int count = 0;
    if (!c->board || c->error || atomic_load(&c->aborted) || c->working)
        return INVALID; /* the call before is still in progress */
    op->number = ++c->ops;
    c->working = !c->blocking;
    if (op->send)
        touched[count++] = touch(op->send, op->what.kind == SCATTER ? all : bytes, false);
    if (op->recv)
        touched[count++] = touch(op->recv, op->what.kind == GATHER ? all : bytes, true);
    for (int i = 0; i < op->pairs; i++)
        touched[count++] = touch(op->pair[i].send ? op->pair[i].send : op->pair[i].recv, bytes,
                                 op->pair[i].recv != NULL);
    fake_when(stream, ready, run, &op, sizeof(op));
    fake_touches(stream, touched, count, NULL);
    return c->blocking ? OK : IN_PROGRESS;
}

static int launch(enum kind kind, const void *send, void *recv, size_t count, int type, int root,
                  void *comm, cudaStream_t stream)
{
    struct op *op = calloc(1, sizeof(*op));
    *op = (struct op){.comm = comm,
                      .what = {.kind = kind, .type = type, .root = root, .count = count},
                      .send = send,
                      .recv = recv};
    return put(op, stream);
}

int ncclGroupStart(void)
{
    grouped = calloc(1, sizeof(*grouped));
    grouped->what.kind = PAIRS;
    return OK;
}

int ncclGroupEnd(void)
{
    struct op *op = grouped;
    grouped = NULL;
    if (op->comm)
        return put(op, grouped_stream);
    free(op);
    return OK;
}

static int add_pair(struct pair pair, size_t count, int type, void *comm, cudaStream_t stream)
{
    if (!grouped || grouped->pairs == 2 * RANKS || (grouped->comm && grouped->comm != comm))
        return INVALID;
    grouped->comm = comm;
    grouped->what.count = count;
    grouped->what.type = type;
    grouped->pair[grouped->pairs++] = pair;
    grouped_stream = stream;
    return OK;
}

int ncclSend(const void *send, size_t count, int type, int peer, void *comm, cudaStream_t stream)
{
    return add_pair((struct pair){send, NULL, peer}, count, type, comm, stream);
}

int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, cudaStream_t stream)
{
    return add_pair((struct pair){NULL, recv, peer}, count, type, comm, stream);
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm,
                  cudaStream_t stream)
{
    return launch(GATHER, send, recv, count, type, 0, comm, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                      cudaStream_t stream)
{
    return launch(SCATTER, send, recv, count, type, sum, comm, stream);
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int sum, void *comm,
                  cudaStream_t stream)
{
    return launch(REDUCE, send, recv, count, type, sum, comm, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm,
                  cudaStream_t stream)
{
    return launch(BROADCAST, send, recv, count, type, root, comm, stream);
}
