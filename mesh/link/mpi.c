/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/mpi.c - links between processes by MPI.
 *
 * A thread of the link makes all MPI calls, from MPI_Init_thread to MPI_Finalize, and runs the
 * transfers one after another. A link that is split off has a thread and a communicator of its own;
 * the communicators are made at the start, because ranks do not split at the same time. It uses
 * point-to-point messages only: MPI's own reductions add in an order that depends on sizes and
 * versions, and its collective calls would need a communicator for each group.
 *
 * A transfer: every member sends each other member a header, which says what it posted, and waits
 * for theirs.  Messages between two ranks arrive in order, so headers that differ mean that the
 * ranks do not agree.  Then the data move in rounds of at most `chunk` bytes a member; what is
 * added up arrives in a scratch buffer, one area a member, and is added in the group's order.
 *
 * Waiting: while a message is on its way the thread gives up its core (sched_yield) a few times and
 * then sleeps for longer and longer times, so ranks that share cores do not spin against each
 * other.
 */
#include "mesh/link/worker.h"

#include <mpi.h>
#include <sched.h>

enum { TAG_HEADER = 1, TAG_DATA, TAG_ABORT, TAG_BYE };

static const size_t scratch_bytes = 16u << 20, chunk_max = 4u << 20;
/* How long an end waits for the others: a clean one, and one after a failure. */
static const uint64_t bye_ns = 10000000000u, bye_failed_ns = 2000000000u;

struct abort_message {
    int32_t rank, left; /* left: in good order */
    char why[216];
};

struct mpi_link {
    struct hzp_link_worker worker;
    struct hzp_link_mpi config;
    struct hzp_wake work;  /* for the thread */
    struct mpi_link *root; /* the one it is split off; NULL: none */
    bool many_threads;     /* MPI allows links to be split off */
    int splits;            /* so far */
    bool stays;            /* MPI does not end: a rank has not parted from a link split off */
    MPI_Comm spare[HZP_LINK_SPLITS_MAX]; /* for them */
    /* the thread's */
    MPI_Comm comm;
    struct hzp_link_header mine, *theirs; /* [ranks] */
    MPI_Request *request;                 /* [2 * ranks]: receives, sends */
    MPI_Status *status;                   /* [2 * ranks]: of those that settle has waited for */
    const void **piece;                   /* [ranks] */
    char *scratch;
    size_t chunk; /* bytes */
    /* the start's result */
    struct hzp_wake opened;
    int result;
    struct hzp_err_text err;
};

static const struct hzp_link_backend backend_mpi;

/* ---- waiting ---- */

/* Called again and again while nothing has happened; *turns counts the calls.  longest_ns: less
 * than a second. */
static void give_way(int *turns, uint64_t longest_ns)
{
    enum { YIELDS = 20 };
    if ((*turns)++ < YIELDS) {
        sched_yield();
        return;
    }
    uint64_t ns = HZP_MIN(10000u * (uint64_t)(*turns - YIELDS), longest_ns);
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static int failed_call(struct mpi_link *link, int rank, int code)
{
    char text[MPI_MAX_ERROR_STRING], why[MPI_MAX_ERROR_STRING + 16];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        length = 0;
    snprintf(why, sizeof(why), "MPI: %.*s", length, text);
    hzp_link_fail(&link->worker.base, rank, why);
    return HZP_EIO;
}

/* Another rank may have failed the link. */
static void look_for_abort(struct hzp_link_worker *worker)
{
    struct mpi_link *link = (struct mpi_link *)worker;
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_ABORT, link->comm, &there, &status) != MPI_SUCCESS || !there)
        return;
    struct abort_message message;
    if (MPI_Recv(&message, sizeof(message), MPI_BYTE, status.MPI_SOURCE, TAG_ABORT, link->comm,
                 MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
    message.why[sizeof(message.why) - 1] = 0;
    worker->told = true; /* by that rank */
    hzp_link_fail_as(&worker->base, message.rank, message.left, message.why);
}

/* Waits for all n requests. */
static int settle(struct mpi_link *link, int n)
{
    int turns = 0;
    while (hzp_link_worker_goes_on(&link->worker)) {
        int all = 0, code = MPI_Testall(n, link->request, &all, link->status);
        if (code != MPI_SUCCESS)
            return failed_call(link, -1, code);
        if (all)
            return HZP_OK;
        give_way(&turns, 200000);
    }
    return HZP_EIO;
}

/* ---- headers ---- */

static int send_header(struct mpi_link *link, int rank, MPI_Request *request)
{
    bool bye = link->mine.kind == HZP_LINK_HEADER_BYE;
    size_t size = bye ? sizeof(link->mine) : offsetof(struct hzp_link_header, failed);
    return MPI_Isend(&link->mine, (int)size, MPI_BYTE, rank, TAG_HEADER, link->comm, request);
}

/* Tells the members what this rank posted and waits until all have posted the same. */
static int meet(struct hzp_link_worker *worker, const struct hzp_link_group *group,
                const struct hzp_transfer *t)
{
    struct mpi_link *link = (struct mpi_link *)worker;
    int n = group->count, turns = 0;
    link->mine = hzp_link_header_of(group, t);
    for (int m = 0; m < n; m++) {
        link->request[m] = link->request[n + m] = MPI_REQUEST_NULL;
        if (m == group->index)
            continue;
        int code = MPI_Irecv(&link->theirs[group->rank[m]], sizeof(link->mine), MPI_BYTE,
                             group->rank[m], TAG_HEADER, link->comm, &link->request[m]);
        if (code == MPI_SUCCESS)
            code = send_header(link, group->rank[m], &link->request[n + m]);
        if (code != MPI_SUCCESS)
            return failed_call(link, group->rank[m], code);
    }
    for (int m = 0; m < n;) {
        int there = 0, code = MPI_Test(&link->request[m], &there, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return failed_call(link, group->rank[m], code);
        if (!there) {
            atomic_store(&worker->missing, t->idle ? -1 : group->rank[m]);
            give_way(&turns, t->idle ? 5000000 : 500000);
            if (!hzp_link_worker_goes_on(worker))
                return HZP_EIO;
            continue;
        }
        if (m != group->index)
            HZP_TRY(hzp_link_header_check(worker, group->rank[m], &link->theirs[group->rank[m]],
                                          &link->mine, t));
        m++;
    }
    atomic_store(&worker->missing, -1);
    return settle(link, 2 * n);
}

/* ---- data ---- */

/* Begins to send size bytes to and to receive size_in bytes from a member; NULL: not. */
static int exchange(struct mpi_link *link, const struct hzp_link_group *group, int m,
                    const void *out, size_t size_out, void *in, size_t size_in)
{
    int n = group->count, code = MPI_SUCCESS;
    link->request[m] = link->request[n + m] = MPI_REQUEST_NULL;
    if (in && size_in)
        code = MPI_Irecv(in, (int)size_in, MPI_BYTE, group->rank[m], TAG_DATA, link->comm,
                         &link->request[m]);
    if (code == MPI_SUCCESS && out && size_out)
        code = MPI_Isend(out, (int)size_out, MPI_BYTE, group->rank[m], TAG_DATA, link->comm,
                         &link->request[n + m]);
    return code == MPI_SUCCESS ? HZP_OK : failed_call(link, group->rank[m], code);
}

/* The part of a piece that round `at` moves: of the piece [begin, end), bytes at .. at + chunk. */
static size_t part(size_t begin, size_t end, size_t at, size_t chunk)
{
    return end - begin > at ? HZP_MIN(end - begin - at, chunk) : 0;
}

/* recv holds `total` bytes in pieces of `piece`; member m has filled its own. */
static int gather(struct hzp_link_worker *worker, const struct hzp_link_group *group, char *recv,
                  size_t piece, size_t total)
{
    struct mpi_link *link = (struct mpi_link *)worker;
    int me = group->index, n = group->count;
    size_t my_begin = hzp_link_border(piece, total, me),
           my_end = hzp_link_border(piece, total, me + 1);
    for (size_t at = 0; at < piece; at += chunk_max) {
        for (int m = 0; m < n; m++) {
            size_t begin = hzp_link_border(piece, total, m),
                   end = hzp_link_border(piece, total, m + 1);
            bool other = m != me;
            HZP_TRY(exchange(link, group, m, other ? recv + my_begin + at : NULL,
                             part(my_begin, my_end, at, chunk_max),
                             other ? recv + begin + at : NULL, part(begin, end, at, chunk_max)));
        }
        HZP_TRY(settle(link, 2 * n));
    }
    return HZP_OK;
}

/* How many bytes came from a member in the exchange that has been settled. */
static size_t received(struct mpi_link *link, const struct hzp_link_group *group, int m)
{
    int bytes = 0;
    MPI_Get_count(&link->status[m], MPI_BYTE, &bytes);
    return m == group->index ? 0 : (size_t)bytes;
}

/* The part of this member's piece that begins at `at`: adds what the members have sent of it, in
 * their order. */
static int add_sparse(struct mpi_link *link, const struct hzp_link_group *group, const char *own,
                      char *dst, size_t bytes)
{
    for (int m = 0; m < group->count && bytes; m++) {
        const void *packed = link->scratch + link->chunk * (size_t)m;
        if (m == group->index) {
            const void *src = own;
            hzp_wire_sum(HZP_WIRE_F32, dst, &src, 1, bytes / sizeof(float), true);
        } else if (!hzp_sparse_add((float *)(void *)dst, bytes, packed, received(link, group, m))) {
            hzp_link_fail(&link->worker.base, group->rank[m],
                          "sent data that do not belong to the transfer: another build?");
            return HZP_EIO;
        }
    }
    return HZP_OK;
}

/* send holds `total` bytes in pieces of `piece`; dst gets this member's piece of the sum.  Without
 * zeros a member's area of the scratch buffer holds what is received, then what is sent. */
static int scatter(struct hzp_link_worker *worker, const struct hzp_link_group *group,
                   const struct hzp_transfer *t, char *dst, size_t piece, size_t total)
{
    struct mpi_link *link = (struct mpi_link *)worker;
    int me = group->index, n = group->count;
    size_t my_begin = hzp_link_border(piece, total, me),
           my_end = hzp_link_border(piece, total, me + 1), half = link->chunk / 2 / 64 * 64;
    size_t chunk = t->nonzero ? hzp_sparse_fits(half) : link->chunk;
    for (size_t at = 0; at < piece; at += chunk) {
        size_t mine = part(my_begin, my_end, at, chunk), in = t->nonzero && mine ? half : mine;
        for (int m = 0; m < n; m++) {
            size_t out_bytes = part(hzp_link_border(piece, total, m),
                                    hzp_link_border(piece, total, m + 1), at, chunk);
            bool other = m != me;
            char *area = link->scratch + link->chunk * (size_t)m;
            const char *out = (const char *)t->send + hzp_link_begin(t, piece, total, m) + at;
            link->piece[m] = other ? area : out;
            if (t->nonzero && other) {
                out_bytes = hzp_sparse_pack(out, out_bytes, area + half);
                out = area + half;
                worker->base.counted += out_bytes;
            }
            HZP_TRY(
                exchange(link, group, m, other ? out : NULL, out_bytes, other ? area : NULL, in));
        }
        HZP_TRY(settle(link, 2 * n));
        if (t->nonzero)
            HZP_TRY(add_sparse(link, group, link->piece[me], dst + at, mine));
        else if (mine)
            hzp_wire_sum(t->type, dst + at, link->piece, n, mine / hzp_wire_size(t->type), t->onto);
    }
    return HZP_OK;
}

/* Along the chain of members that begins at the root: round k sends part k - 1 while part k
 * arrives. */
static int broadcast(struct hzp_link_worker *worker, const struct hzp_link_group *group, int root,
                     char *recv, size_t total)
{
    struct mpi_link *link = (struct mpi_link *)worker;
    int n = group->count, me = group->index, before = (me + n - 1) % n, after = (me + 1) % n;
    bool first = me == root, last = after == root;
    size_t rounds = HZP_DIV_UP(total, chunk_max);
    for (size_t k = 0; k <= rounds; k++) {
        size_t in = k * chunk_max, out = (k - 1) * chunk_max; /* out is used for k > 0 only */
        for (int m = 0; m < 2 * n; m++)
            link->request[m] = MPI_REQUEST_NULL;
        if (!first && k < rounds)
            HZP_TRY(
                exchange(link, group, before, NULL, 0, recv + in, part(0, total, in, chunk_max)));
        if (!last && k > 0) {
            MPI_Request receive = link->request[after]; /* with two members: the same one */
            HZP_TRY(
                exchange(link, group, after, recv + out, part(0, total, out, chunk_max), NULL, 0));
            link->request[after] = receive;
        }
        HZP_TRY(settle(link, 2 * n));
    }
    return HZP_OK;
}

static void rest(struct hzp_link_worker *worker, uint64_t ns)
{
    hzp_wake_wait(&((struct mpi_link *)worker)->work, ns);
}

static const struct hzp_link_moves moves_mpi = {look_for_abort, rest,    meet,
                                                gather,         scatter, broadcast};

/* ---- the thread ---- */

/* Sends without waiting for long: the others may be gone. */
static void tell_abort(struct mpi_link *link)
{
    struct abort_message message = {.rank = link->worker.base.failed_rank,
                                    .left = link->worker.base.left};
    snprintf(message.why, sizeof(message.why), "%.215s", link->worker.base.why);
    int ranks = link->worker.base.ranks, n = 0, all = 0;
    for (int r = 0; r < ranks; r++)
        if (r != link->worker.base.rank &&
            MPI_Isend(&message, sizeof(message), MPI_BYTE, r, TAG_ABORT, link->comm,
                      &link->request[n]) == MPI_SUCCESS)
            n++;
    for (int turns = 0; turns < 100 && !all;) {
        if (MPI_Testall(n, link->request, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return;
        if (!all)
            give_way(&turns, 1000000);
    }
}

/* Says goodbye and waits until all others have: MPI_Finalize would wait for a dead rank for ever.
 * The header is for ranks that still wait for a transfer with this one.  True: all have. */
static bool part_from_others(struct mpi_link *link, uint64_t limit_ns)
{
    uint64_t end = hzp_now_ns() + limit_ns;
    int ranks = link->worker.base.ranks, all = 0, turns = 0;
    MPI_Request *out = link->request + ranks;
    link->mine = hzp_link_header_bye(&link->worker);
    for (int r = 0; r < ranks; r++) {
        link->request[r] = out[r] = MPI_REQUEST_NULL;
        if (r == link->worker.base.rank)
            continue;
        MPI_Request header;
        if (send_header(link, r, &header) != MPI_SUCCESS ||
            MPI_Request_free(&header) != MPI_SUCCESS ||
            MPI_Isend(NULL, 0, MPI_BYTE, r, TAG_BYE, link->comm, &out[r]) != MPI_SUCCESS ||
            MPI_Irecv(NULL, 0, MPI_BYTE, r, TAG_BYE, link->comm, &link->request[r]) != MPI_SUCCESS)
            return false;
    }
    while (!all && hzp_now_ns() < end) {
        if (MPI_Testall(2 * ranks, link->request, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return false;
        if (!all)
            give_way(&turns, 1000000);
    }
    return all;
}

static int make_communicator(MPI_Comm *ret, struct hzp_err_text *reterr)
{
    if (MPI_Comm_dup(MPI_COMM_WORLD, ret) != MPI_SUCCESS)
        return hzp_fail(reterr, HZP_EIO, "MPI gives no communicator");
    MPI_Comm_set_errhandler(*ret, MPI_ERRORS_RETURN);
    return HZP_OK;
}

static int make_room(struct mpi_link *link, int rank, int ranks, struct hzp_err_text *reterr)
{
    size_t areas = (size_t)HZP_MAX(ranks, 1);
    link->chunk = HZP_MAX(HZP_MIN(scratch_bytes / areas, chunk_max) / 64 * 64, (size_t)4096);
    link->scratch = malloc(link->chunk * areas);
    if (!link->scratch)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for the link's scratch buffers");
    link->theirs = hzp_xcalloc(areas, sizeof(*link->theirs));
    link->request = hzp_xcalloc(2 * areas, sizeof(*link->request));
    link->status = hzp_xcalloc(2 * areas, sizeof(*link->status));
    link->piece = hzp_xcalloc(areas, sizeof(*link->piece));
    hzp_link_init(&link->worker.base, &backend_mpi, rank, ranks);
    return HZP_OK;
}

/* Starts MPI and checks that the ranks are those that the caller expects. */
static int start(struct mpi_link *link, struct hzp_err_text *reterr)
{
    int provided = 0, rank = 0, ranks = 0, done = 0;
    MPI_Initialized(&done);
    if (done)
        return hzp_fail(reterr, HZP_EINVAL, "MPI was started before in this process");
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return hzp_fail(reterr, HZP_EIO, "MPI does not start");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (link->config.ranks && (link->config.ranks != ranks || link->config.rank != rank))
        return hzp_fail(reterr, HZP_EINVAL,
                        "MPI says rank %d of %d, the launcher's environment says rank %d of %d: "
                        "start with mpirun, or with srun --mpi=pmix",
                        rank, ranks, link->config.rank, link->config.ranks);
    if (ranks > HZP_LINK_RANKS_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "%d ranks, at most %d", ranks, HZP_LINK_RANKS_MAX);
    link->many_threads = provided == MPI_THREAD_MULTIPLE;
    HZP_TRY(make_communicator(&link->comm, reterr));
    for (int i = 0; i < HZP_LINK_SPLITS_MAX; i++)
        HZP_TRY(make_communicator(&link->spare[i], reterr));
    return make_room(link, rank, ranks, reterr);
}

static int start_split(struct mpi_link *link, struct hzp_err_text *reterr)
{
    const struct hzp_link *root = &link->root->worker.base;
    link->comm = link->root->spare[link->root->splits++];
    return make_room(link, root->rank, root->ranks, reterr);
}

static void run(struct mpi_link *link)
{
    struct hzp_link *base = &link->worker.base;
    hzp_link_worker_run(&link->worker);
    bool failed = atomic_load(&base->failed);
    if (failed && !link->worker.told)
        tell_abort(link);
    while (!atomic_load(&link->worker.closing)) /* MPI's memory stays while others may read it */
        hzp_wake_wait(&link->work, UINT64_MAX);
    bool parted = part_from_others(link, failed ? bye_failed_ns : bye_ns);
    if (link->root) { /* which frees the communicator and ends MPI, if all ranks have parted */
        link->root->stays |= !parted;
        return;
    }
    if (!parted || link->stays)
        return;
    for (int i = 0; i < HZP_LINK_SPLITS_MAX; i++)
        MPI_Comm_free(&link->spare[i]);
    MPI_Comm_free(&link->comm);
    MPI_Finalize();
}

static void *thread_main(void *arg)
{
    hzp_thread_prompt();
    struct mpi_link *link = arg;
    link->result = link->root ? start_split(link, &link->err) : start(link, &link->err);
    bool runs = link->result == HZP_OK;
    hzp_wake_poke(&link->opened);
    if (runs)
        run(link);
    return NULL;
}

/* ---- the interface ---- */

static int mpi_post(struct hzp_link *base, hzp_ticket ticket, const struct hzp_transfer *t,
                    struct hzp_err_text *reterr)
{
    atomic_store(&base->posted, ticket);
    hzp_wake_poke(&((struct mpi_link *)base)->work);
    return HZP_OK;
}

static void mpi_abort(struct hzp_link *base, int rank, const char *why)
{
    hzp_wake_poke(&((struct mpi_link *)base)->work); /* the thread tells the others */
}

static void free_link(struct mpi_link *link)
{
    hzp_link_worker_fini(&link->worker);
    hzp_wake_fini(&link->work);
    hzp_wake_fini(&link->opened);
    free(link->scratch);
    free(link->theirs);
    free(link->request);
    free(link->status);
    free(link->piece);
    free(link);
}

static void mpi_close(struct hzp_link *base)
{
    struct mpi_link *link = (struct mpi_link *)base;
    atomic_store(&link->worker.closing, true);
    hzp_wake_poke(&link->work);
    pthread_join(link->worker.thread, NULL);
    hzp_link_fini(base);
    free_link(link);
}

static int mpi_split(struct hzp_link *base, struct hzp_link **ret, struct hzp_err_text *reterr);

static const struct hzp_link_backend backend_mpi = {
    .name = "mpi",
    .split = mpi_split,
    .post = mpi_post,
    .wait = hzp_link_worker_wait,
    .abort = mpi_abort,
    .missing = hzp_link_worker_missing,
    .close = mpi_close,
};

/* root: the link that this one is split off; NULL: none. */
static int open_link(const struct hzp_link_mpi *config, struct mpi_link *root,
                     struct hzp_link **ret, struct hzp_err_text *reterr)
{
    struct mpi_link *link = hzp_xcalloc(1, sizeof(*link));
    link->config = *config;
    link->root = root;
    hzp_link_worker_init(&link->worker, &moves_mpi, config->rate, config->latency_ns,
                         root ? &root->worker : NULL);
    hzp_wake_init(&link->work);
    hzp_wake_init(&link->opened);
    if (hzp_thread_start(&link->worker.thread, "hzp-link", thread_main, link) < 0) {
        free_link(link);
        return hzp_fail(reterr, HZP_ENOMEM, "cannot start the link's thread");
    }
    hzp_wake_wait(&link->opened, UINT64_MAX);
    if (link->result < 0) {
        int r = link->result;
        pthread_join(link->worker.thread, NULL);
        if (reterr)
            *reterr = link->err;
        free_link(link);
        return r;
    }
    *ret = &link->worker.base;
    return HZP_OK;
}

int hzp_link_open_mpi(const struct hzp_link_mpi *config, struct hzp_link **ret,
                      struct hzp_err_text *reterr)
{
    return open_link(config, NULL, ret, reterr);
}

static int mpi_split(struct hzp_link *base, struct hzp_link **ret, struct hzp_err_text *reterr)
{
    struct mpi_link *link = (struct mpi_link *)base;
    if (!link->many_threads)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "link mpi: this MPI library has no MPI_THREAD_MULTIPLE: use --link zmq");
    if (link->splits == HZP_LINK_SPLITS_MAX) /* a communicator is not used again */
        return hzp_fail(reterr, HZP_EINVAL, "link mpi: more than %d links split off one",
                        HZP_LINK_SPLITS_MAX);
    return open_link(&link->config, link, ret, reterr);
}

bool hzp_link_mpi_about(char *text, size_t size)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(library, &length);
    snprintf(text, size, "%.*s", (int)strcspn(library, ",\n"), library);
    return true;
}
