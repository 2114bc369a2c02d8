/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link.h - the interface for moving data between ranks: groups, transfers, tickets.
 *
 * A rank is one process with one device (in tests: one object of several in a process).  A link is
 * one rank's end of the connection between all ranks.  A transfer is a collective operation on a
 * group of ranks; posting one returns at once with a ticket, and the data move in the background.
 *
 * Backends: local (ranks of one process, through its memory), mpi and zmq (processes on CPUs), nccl
 * (GPUs), sim (no data, rates and latency on a device's virtual clock).
 *
 * Invariants:
 * - One order.  A link runs its transfers one after another in the order of posting, and every
 *   rank posts the transfers it has a part in in one order that all ranks agree on.  So tickets
 *   are done in order, and no two ranks wait for each other.  Members compare what they posted
 *   (operation, type, count, root, tag): a difference fails the link and names the rank.
 * - A transfer starts when all members of the group have posted it; until then it uses neither
 *   the wire nor a core.
 * - Sums are added in the order of the group's list of ranks, so they have the same bits every
 *   time and on every member (nccl: of the sums of device memory only those with `onto`; the others
 *   have the same bits on every member).
 * - Buffers belong to the link from post until the ticket is done: the caller neither writes to
 *   any of them nor reads what is received, nor posts another transfer that writes to one of
 *   them or sends what is being received.  No backend allocates after the last group was opened
 *   (zmq: ZeroMQ takes memory for messages, at most some chunks a rank).
 * - A failure is final for the link: every later call returns its code and names the rank.
 *
 * Thread: one at a time, the one that opened the link or, while a plan runs, that of the lane with
 * the plan's collectives; unless a function says otherwise.
 */
#pragma once

#include "base/err.h"

struct hzp_link;

enum {
    HZP_LINK_RANKS_MAX = 1024,
    HZP_LINK_GROUPS_MAX = 24,  /* in one link, including the group of all ranks */
    HZP_LINK_TICKETS_MAX = 64, /* posted and not done */
    HZP_LINK_SPLITS_MAX = 6,   /* links split off one */
    HZP_LINK_BLOCK = 1024,     /* bytes that are left out together if all are zero */
};

enum hzp_transfer_op {
    HZP_ALL_GATHER,     /* recv = the members' pieces in the group's order */
    HZP_REDUCE_SCATTER, /* recv = this member's piece of the sum of all members' send */
    HZP_ALL_REDUCE,     /* recv = the sum of all members' send */
    HZP_BROADCAST,      /* recv = what the root's recv holds; send is not used */
    HZP_TRANSFER_OP_COUNT
};

/* What an element is.  Sums are of F32, F64 and U64; signed 64-bit numbers add as U64 (modulo
 * 2^64). */
enum hzp_wire { HZP_WIRE_BYTE, HZP_WIRE_F32, HZP_WIRE_U64, HZP_WIRE_F64, HZP_WIRE_COUNT };

struct hzp_transfer {
    enum hzp_transfer_op op;
    enum hzp_wire type;
    int group;    /* made by hzp_link_group; 0: all ranks */
    int root;     /* broadcast: the root's index in the group */
    size_t count; /* elements of one member's piece (gather, scatter), or of all (others) */
    /* In place is allowed: gather with send as this member's piece of recv, scatter with recv as
     * this member's piece of send, all-reduce with recv as send.  Otherwise they do not overlap.
     * Aligned to the element. */
    const void *send;
    void *recv;
    /* Reduce-scatter only, not in place: recv = ((recv + member 0) + member 1) + ..., so that sums
     * over several transfers have an order that does not depend on the number of ranks. */
    bool onto;
    /* Reduce-scatter of F32 with `onto` only: at most so many elements of a member's send are not
     * zero, so links between processes leave out blocks of zeros; the others ignore it.  0: any
     * number. */
    size_t nonzero;
    /* Reduce-scatter with `onto` only: elements of send from one member's piece to the next, at
     * least count; 0: count.  So a part of each piece is a transfer. */
    size_t pitch;
    /* To wait long for the others is normal (orders to a rank that has nothing to do): no rank is
     * reported as missing. */
    bool idle;
    /* The buffers are host memory.  It has a meaning on links that move a device's memory (nccl):
     * there such a transfer takes the host link, in the same order as all others. */
    bool host;
    uint64_t tag; /* any number that all members agree on: round and unit, for example */
};

/* Numbers the transfers of a link, from 1; they are done in this order.  Ticket 0 is done. */
typedef uint64_t hzp_ticket;

const char *hzp_transfer_name(enum hzp_transfer_op op); /* "all-gather", ... */

int hzp_link_rank(const struct hzp_link *link);
int hzp_link_ranks(const struct hzp_link *link);
const char *hzp_link_backend(const struct hzp_link *link); /* "mpi", "zmq", ... */

/* Opens the group of these ranks, in this order, this rank among them; returns its number on this
 * link.  The members of a group open it together: every rank opens its groups in one order that
 * all agree on, before it posts anything.  A list that was opened before gives the same number.
 * It may wait for the other members.  HZP_EINVAL: a list that is not one of different ranks with
 * this one, or too many groups; HZP_EIO: the link failed. */
int hzp_link_group(struct hzp_link *link, const int *rank, int count, struct hzp_err_text *reterr);

/* A second link between the same ranks, with an order of its own: its transfers do not wait for
 * those of `link`, nor the other way round, and a thread of its own may use it.  Each rank calls
 * this at the same point, when all that it has posted on `link` is done.  It has the group of all
 * ranks, and shares the configured rate with `link`.  When one of them fails, both do, for the
 * same reason.  Close it before `link`.  A link that was split off splits the one that it was split
 * off, so all ranks of that one take part; what it is narrowed to, the new one is, too.
 * HZP_EUNSUP: the backend cannot (only mpi and zmq can; mpi: the library lacks
 * MPI_THREAD_MULTIPLE); HZP_EINVAL: more than HZP_LINK_SPLITS_MAX; HZP_EIO. */
int hzp_link_split(struct hzp_link *link, struct hzp_link **ret, struct hzp_err_text *reterr);

/* Narrows the link to these of its ranks, this rank among them: from here on it is one between just
 * these.  Rank i of it is rank[i], also in lists of groups, and group 0 has them all.  So ranks on
 * several axes have a link for each axis (--ranks above --tensor).  Failures and the state name
 * ranks by their numbers on the whole link; they still are those of all its ranks.  Once, before
 * another group is opened and anything is posted; the other ranks narrow their ends to other lists
 * that do not overlap with this one, or do not use theirs.  Errors as of hzp_link_group. */
int hzp_link_narrow(struct hzp_link *link, const int *rank, int count, struct hzp_err_text *reterr);

int hzp_link_group_index(const struct hzp_link *link, int group); /* this rank's */

/* Posts a transfer; the struct is copied.  Returns at once.  HZP_EBUSY: HZP_LINK_TICKETS_MAX
 * tickets are not done, nothing was posted.  HZP_EINVAL: sums of bytes, or what the comments of
 * the struct exclude.  HZP_EUNSUP: the backend cannot do it (nccl: U64 and F64 onto).  HZP_EIO: the
 * link failed. */
int hzp_link_post(struct hzp_link *link, const struct hzp_transfer *transfer, hzp_ticket *ret,
                  struct hzp_err_text *reterr);

/* 1: the ticket is done; 0: not yet; HZP_EIO: the link failed first, and the contents of its
 * buffers are undefined.  Never waits.  A ticket that was done stays done after a failure. */
int hzp_link_poll(struct hzp_link *link, hzp_ticket ticket, struct hzp_err_text *reterr);

/* Waits until the ticket is done, without using a core: for the start, the end and tests; never
 * while the loop runs, but by the collective op.  On sim, the clock advances.  Not for several
 * ranks of one thread.  HZP_EIO. */
int hzp_link_wait(struct hzp_link *link, hzp_ticket ticket, struct hzp_err_text *reterr);

/* Posts and waits. */
int hzp_link_move(struct hzp_link *link, const struct hzp_transfer *transfer,
                  struct hzp_err_text *reterr);
/* The same with bytes of host memory, on all ranks: root's to all; each rank's to all, by rank. */
int hzp_link_broadcast(struct hzp_link *link, int root, void *data, size_t bytes, uint64_t tag,
                       struct hzp_err_text *reterr);
int hzp_link_gather(struct hzp_link *link, const void *mine, size_t bytes, void *all, uint64_t tag,
                    struct hzp_err_text *reterr);
/* All ranks say how they have fared, own->text naming what has failed where code < 0; each returns
 * as the first that failed. */
int hzp_link_agree(struct hzp_link *link, int code, const struct hzp_err_text *own, uint64_t tag,
                   struct hzp_err_text *reterr);

/* For the collective op in two parts, on the thread that uses the link: begin posts a transfer and
 * remembers its ticket, end waits for the oldest that was begun and not ended; other transfers may
 * be posted and waited for between the two.  begin: as of post; HZP_EBUSY: HZP_LINK_BEGUN_MAX have
 * not been ended.  end: as of wait; HZP_EINVAL: none was begun.  end_all: of those that a chain
 * leaves that is given up between two items, so that the link can close in good order; link NULL:
 * none. */
enum { HZP_LINK_BEGUN_MAX = 4 };
int hzp_link_begin_transfer(struct hzp_link *link, const struct hzp_transfer *transfer,
                            struct hzp_err_text *reterr);
int hzp_link_end_transfer(struct hzp_link *link, struct hzp_err_text *reterr);
int hzp_link_end_all(struct hzp_link *link, struct hzp_err_text *reterr);

/* Puts a transfer of device memory among all ranks on a stream of the device's runtime: it begins
 * when what is on the stream has ended, and what is put there later begins behind it.  It has no
 * ticket, and nothing is compared: all ranks enqueue the same transfers of a link in one order, and
 * those on different streams are ordered by events.  (The ranks of a group compare the hash of each
 * step's plan instead.)  HZP_EINVAL: as of post.  HZP_EUNSUP: the link was not opened for it.
 * HZP_EIO: the link failed. */
int hzp_link_enqueue(struct hzp_link *link, const struct hzp_transfer *transfer, void *stream,
                     struct hzp_err_text *reterr);

/* For who waits for a stream with transfers that were enqueued: HZP_EIO once the link has failed,
 * and then those transfers are given up, so that the stream goes on.  Never waits. */
int hzp_link_check(struct hzp_link *link, struct hzp_err_text *reterr);

/* Calls wake(ctx) whenever a ticket is done or the link fails, on any thread and perhaps under the
 * link's locks: it may only unblock a thread (hzp_loop_poke).  NULL: nothing is called, once this
 * has returned. */
void hzp_link_set_wake(struct hzp_link *link, void (*wake)(void *ctx), void *ctx);

/* Fails the link, here and, where the backend can still tell them, on the other ranks; `rank` is
 * the one at fault (-1: unknown), why is one line.  The first failure counts.  Any thread. */
void hzp_link_abort(struct hzp_link *link, int rank, const char *why);

/* What the link is doing, for watching it; numbers are with those of links split off it.  Any
 * thread. */
struct hzp_link_state {
    uint64_t posted, done; /* tickets */
    int missing;           /* the first rank that has not posted the oldest transfer; -1: none */
    int failed_rank;       /* the rank at fault if failed; -1: unknown */
    bool failed;
    bool left;           /* failed, because that rank has closed its link in good order */
    uint64_t wire_bytes; /* sent by this rank, of the transfers that are done */
    char why[256];       /* the failure's text */
};
void hzp_link_state(struct hzp_link *link, struct hzp_link_state *ret);

/* Ends the link; transfers that are not done are given up, and the other ranks see a failure if
 * they still need this one.  NULL: no effect. */
void hzp_link_close(struct hzp_link *link);

/* ---- cost ---- */

size_t hzp_wire_size(enum hzp_wire type); /* bytes of an element */

/* Bytes that one member sends, at most; it receives as many.  count is as in the transfer.
 * Gather and scatter: (members - 1) pieces; all-reduce: a scatter and a gather of pieces of
 * ceil(count / members); broadcast: a chain, so all bytes once. */
uint64_t hzp_transfer_bytes(enum hzp_transfer_op op, enum hzp_wire type, int members, size_t count);

/* The same of a transfer.  With `nonzero`: at most that many elements and a bit for each block, as
 * if no block had zeros beside them. */
uint64_t hzp_transfer_cost(const struct hzp_transfer *transfer, int members);

/* ---- backend mpi ---- */

struct hzp_link_mpi {
    int rank, ranks;     /* as the launcher says; ranks 0: as MPI says */
    double rate;         /* bytes a second that a rank sends at most; 0: as fast as it goes */
    uint64_t latency_ns; /* with a rate: added to each transfer */
};

/* Starts MPI in this process, once in its life, and waits for the other ranks.  HZP_EUNSUP: built
 * without MPI; HZP_EINVAL: MPI and the launcher disagree; HZP_EIO, HZP_ENOMEM. */
int hzp_link_open_mpi(const struct hzp_link_mpi *config, struct hzp_link **ret,
                      struct hzp_err_text *reterr);

/* ---- backend zmq ---- */

enum { HZP_LINK_ZMQ_RANKS_MAX = 256, HZP_LINK_ZMQ_KEY = 41, HZP_LINK_ZMQ_HOST = 46 };

/* Between processes without MPI: a connection between any two ranks, by ZeroMQ.  On one machine
 * through files in a folder that only this user may enter; else by TCP, encrypted and authenticated
 * with a key that all ranks have. */
struct hzp_link_zmq {
    int rank, ranks;
    const char *folder;  /* NULL: TCP */
    const char *key;     /* TCP: a secret CURVE key as text */
    double rate;         /* as of mpi */
    uint64_t latency_ns; /* as of mpi */
};

/* How a rank listens for one of the ranks after it. */
struct hzp_link_zmq_address {
    char host[HZP_LINK_ZMQ_HOST]; /* an IP address */
    uint16_t port;                /* with a folder: a number in the names of files */
};

/* The first half: listens for the ranks after this one; port[r]: for rank r.
 * Then the ranks tell each other, and none goes on before all have come so far.  The link may be
 * aborted and closed already, not used.  HZP_EINVAL: too many ranks, or a key that is none;
 * HZP_EIO. */
int hzp_link_open_zmq(const struct hzp_link_zmq *config, uint16_t *port, struct hzp_link **ret,
                      struct hzp_err_text *reterr);

/* The second half: connects to the ranks before this one, at address[r], and
 * waits until it is connected with all ranks.  HZP_EIO: not within wait_s seconds, or the link was
 * aborted; it names the rank.  HZP_ECANCELED: stop(ctx), which is asked again and again (NULL: not
 * asked), was true. */
int hzp_link_connect_zmq(struct hzp_link *link, const struct hzp_link_zmq_address *address,
                         double wait_s, bool (*stop)(void *ctx), void *ctx,
                         struct hzp_err_text *reterr);

/* ---- backend nccl ---- */

/* A sum in the order of members: dst = (onto ? dst : 0) + piece 0 + piece 1 + ...; without onto it
 * begins with piece 0.  Piece `index` is own, piece m of the others is at others + m stride. */
struct hzp_link_sum {
    float *dst;
    const float *own, *others;
    size_t stride, elements;
    int members, index;
    bool onto;
};

/* What the link needs of the device's runtime, for the thread's current device; every function that
 * returns int returns 0 or an error code. */
struct hzp_link_streams {
    const char *(*error_text)(int code);
    int (*stream_open)(void **stream);
    int (*stream_close)(void *stream); /* waits until what is on it has ended */
    int (*event_open)(void **event);
    int (*event_close)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event); /* 0: passed; -1: not yet; else an error */
    int (*memory_open)(void **memory, size_t size);
    int (*memory_close)(void *memory);
    int (*sum)(const struct hzp_link_sum *sum, void *stream); /* behind what is on the stream */
    /* Calls run(ctx), behind what is on the stream, on a thread of the runtime, which it must not
     * block. */
    int (*call)(void *stream, void (*run)(void *ctx), void *ctx);
    int (*device_count)(int *ret);              /* that this process sees */
    int (*device_name)(char *ret, size_t size); /* no two devices have the same */
    int lane_sms;                               /* SMs of a network lane that has its own */
};

/* The streams of the CUDA runtime; NULL: built without CUDA. */
const struct hzp_link_streams *hzp_cuda_link_streams(void);

struct hzp_link_nccl {
    struct hzp_link *host; /* connects the same ranks; borrowed, outlives the link */
    const struct hzp_link_streams *streams;
    int ctas; /* blocks that a transfer may occupy at most; 0: as many as NCCL likes */
    /* Device memory moves by hzp_link_enqueue, never by post, and in no other group than that of
     * all ranks.  The communicator then blocks in the call that opens it until all ranks are there,
     * and each launch is one call of the library on the caller's thread. */
    bool enqueues;
};

/* Bytes of device memory that the link itself takes: received pieces that wait to be added. */
enum { HZP_LINK_NCCL_BYTES = 16 << 20 };

/* Transfers between GPUs, for the thread's current device.  NCCL is loaded now (libnccl.so.2, or
 * the file in HZP_NCCL).  A transfer is first posted on the host link, where members compare what
 * they posted; only when all have posted it is it launched, on a stream of its own, so no kernel
 * spins for a rank that is late.  Buffers are device memory whose contents are complete at post,
 * or, with `host`, host memory that the host link moves.  The groups opened at one time divide all
 * ranks among them.  With `onto`, pieces are exchanged and added in order; in other sums the
 * library decides the order.  Communicators do not block; when the link fails, the next poll aborts
 * them, so no kernel waits for a rank that is gone.  Transfers are never captured in graphs.
 * HZP_EUNSUP: no NCCL, or older than 2.18, or no CUDA; HZP_EIO: it fails. */
int hzp_link_open_nccl(const struct hzp_link_nccl *config, struct hzp_link **ret,
                       struct hzp_err_text *reterr);

/* Announces memory that transfers will use: it then need not be copied on the way.  Optional; each
 * rank at the same point of its calls, after the groups were opened, before posting.  Where the
 * backend cannot use that, it has no effect.  HZP_EIO: the link failed. */
int hzp_link_register(struct hzp_link *link, void *memory, size_t size,
                      struct hzp_err_text *reterr);

/* ---- what there is ---- */

/* Fills name and text for the i-th kind of link that connects processes, and whether this build and
 * machine can open it (else text says why not).  False: i is past the last.  Any thread. */
struct hzp_link_about {
    const char *name;
    char text[160];
    bool usable;
};
bool hzp_link_about(int i, struct hzp_link_about *ret);
