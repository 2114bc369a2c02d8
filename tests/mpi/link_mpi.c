/* SPDX-License-Identifier: Apache-2.0 */
/* tests/mpi/link_mpi.c - links between processes, one process a rank: by MPI if run by mpirun, by
 * ZeroMQ if run by run_zmq.py.
 *
 *     link_mpi MODE     operations, many, throttled, disagree, regroup, abort, leave, die, split,
 *                       split_throttled, split_fails
 *
 * Every rank checks its own part and exits with 0, or says what differs and exits with 1. */
#include "base/thread.h"
#include "mesh/link/backend.h"
#include "tests/mpi/connect.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct hzp_link *rank_link;
static int me, ranks;
static struct hzp_err_text why;

static void check(bool holds, const char *format, ...) HZP_PRINTF(2, 3);

static void check(bool holds, const char *format, ...)
{
    if (holds)
        return;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "rank %d: ", me);
    vfprintf(stderr, format, args);
    fprintf(stderr, " (%s)\n", why.text);
    va_end(args);
    fflush(stderr);
    _Exit(1);
}

static void open_link(double rate, double latency_ms)
{
    check(connect_ranks(rate, latency_ms, &rank_link, &why) == HZP_OK, "no link");
    me = hzp_link_rank(rank_link);
    ranks = hzp_link_ranks(rank_link);
}

static hzp_ticket post(struct hzp_transfer t)
{
    hzp_ticket ticket = 0;
    check(hzp_link_post(rank_link, &t, &ticket, &why) == HZP_OK, "post");
    return ticket;
}

static void run(struct hzp_transfer t)
{
    check(hzp_link_wait(rank_link, post(t), &why) == HZP_OK, "wait");
}

/* Values whose sum depends on the order of the additions. */
static float value(int rank, size_t i)
{
    static const float scale[] = {1, 1e-7f, -1, 3e-8f};
    return scale[((size_t)rank + i) % 4] * (float)(1 + ((size_t)rank * 131 + i * 17) % 97);
}

static float sum(const int *rank, int count, size_t i, const float *onto)
{
    float all = onto ? *onto + value(rank[0], i) : value(rank[0], i);
    for (int m = 1; m < count; m++)
        all += value(rank[m], i);
    return all;
}

static void fill(float *send, size_t n)
{
    for (size_t i = 0; i < n; i++)
        send[i] = value(me, i);
}

/* What few ranks send: a row of 300 elements here and there, at other places on each rank. */
static float sparse_value(int rank, size_t i)
{
    return (i / 300 + (size_t)rank) % 29 == 3 ? value(rank, i) : 0;
}

/* A sum onto something of what is mostly zeros: the same as of all of it, but less is sent. */
static void check_sparse(struct hzp_transfer t, const int *rank, int count, float *send)
{
    size_t n = t.count * (size_t)count;
    size_t at = t.count * (size_t)hzp_link_group_index(rank_link, t.group);
    float *recv = t.recv;
    struct hzp_link_state before, after;
    for (size_t i = 0; i < n; i++)
        send[i] = sparse_value(me, i);
    for (size_t i = 0; i < t.count; i++)
        recv[i] = 0.25f * (float)i;
    t.op = HZP_REDUCE_SCATTER;
    t.onto = true;
    t.nonzero = n;
    hzp_link_state(rank_link, &before);
    run(t);
    hzp_link_state(rank_link, &after);
    for (size_t i = 0; i < t.count; i++) {
        float all = 0.25f * (float)i;
        for (int m = 0; m < count; m++)
            all += sparse_value(rank[m], at + i);
        check(recv[i] == all, "sparse scatter at %zu", i);
    }
    uint64_t sent = after.wire_bytes - before.wire_bytes;
    uint64_t dense = hzp_transfer_bytes(t.op, t.type, count, t.count);
    check(count == 1 || sent > 0, "nothing was sent");
    check(t.count < 100000 || sent <= dense / 4, "%llu bytes of %llu were sent",
          (unsigned long long)sent, (unsigned long long)dense);
}

/* The middle part of each piece onto something, whole and without zeros. */
static void check_part(struct hzp_transfer t, const int *rank, int count, float *send, size_t part)
{
    size_t n = t.count * (size_t)count;
    size_t at = t.count * (size_t)hzp_link_group_index(rank_link, t.group) + part;
    float *recv = t.recv;
    t.op = HZP_REDUCE_SCATTER;
    t.onto = true;
    t.pitch = t.count;
    t.count = part;
    for (t.nonzero = 0; t.nonzero <= n; t.nonzero += n) {
        for (size_t i = 0; i < n; i++)
            send[i] = t.nonzero ? sparse_value(me, i) : value(me, i);
        t.send = send + part;
        for (size_t i = 0; i < part; i++)
            recv[i] = 0.5f * (float)i;
        run(t);
        for (size_t i = 0; i < part; i++) {
            float all = 0.5f * (float)i;
            for (int m = 0; m < count; m++)
                all += t.nonzero ? sparse_value(rank[m], at + i) : value(rank[m], at + i);
            check(recv[i] == all, "part of a scatter at %zu", i);
        }
    }
}

/* Every operation on a group, with pieces of this many elements. */
static void check_group(const int *rank, int count, size_t piece)
{
    int group = hzp_link_group(rank_link, rank, count, &why);
    check(group >= 0, "group");
    size_t n = piece * (size_t)count, at = piece * (size_t)hzp_link_group_index(rank_link, group);
    float *send = malloc((n + 1) * sizeof(float)), *recv = malloc((n + 1) * sizeof(float));
    check(send && recv, "memory");
    fill(send, n);
    struct hzp_transfer t = {.group = group,
                             .type = HZP_WIRE_F32,
                             .count = piece,
                             .send = send,
                             .recv = recv,
                             .tag = piece};

    t.op = HZP_ALL_GATHER;
    run(t);
    for (size_t i = 0; i < n; i++)
        check(recv[i] == value(rank[i / piece], i % piece), "gather of %zu at %zu", piece, i);

    t.op = HZP_REDUCE_SCATTER;
    run(t);
    for (size_t i = 0; i < piece; i++)
        check(recv[i] == sum(rank, count, at + i, NULL), "scatter of %zu at %zu", piece, i);
    for (size_t i = 0; i < piece; i++)
        recv[i] = 0.25f * (float)i;
    t.onto = true;
    run(t);
    for (size_t i = 0; i < piece; i++) {
        float before = 0.25f * (float)i;
        check(recv[i] == sum(rank, count, at + i, &before), "scatter onto, at %zu", i);
    }
    check_sparse(t, rank, count, send);
    if (piece > 40)
        check_part(t, rank, count, send, piece / 3);
    fill(send, n);
    t.onto = false;
    t.recv = send + at;
    run(t);
    for (size_t i = 0; i < piece; i++)
        check(send[at + i] == sum(rank, count, at + i, NULL), "scatter in place, at %zu", i);
    fill(send, n);

    t.op = HZP_ALL_REDUCE;
    t.count = n + 1 - (size_t)count; /* pieces differ in size, the last may be empty */
    t.recv = recv;
    for (int turn = 0; turn < 2; turn++) {
        run(t);
        for (size_t i = 0; i < t.count; i++)
            check(((float *)t.recv)[i] == sum(rank, count, i, NULL), "all-reduce at %zu", i);
        t.recv = send;
    }

    for (int root = 0; root < count; root++) {
        memset(recv, 0, n * sizeof(float));
        if (rank[root] == me)
            fill(recv, n);
        run((struct hzp_transfer){.op = HZP_BROADCAST,
                                  .group = group,
                                  .type = HZP_WIRE_BYTE,
                                  .root = root,
                                  .count = n * sizeof(float),
                                  .recv = recv});
        for (size_t i = 0; i < n; i++)
            check(recv[i] == value(rank[root], i), "broadcast from %d at %zu", root, i);
    }
    uint64_t number = (uint64_t)me - 10, expected = 0;
    for (int m = 0; m < count; m++)
        expected += (uint64_t)rank[m] - 10;
    run((struct hzp_transfer){.op = HZP_ALL_REDUCE,
                              .group = group,
                              .type = HZP_WIRE_U64,
                              .count = 1,
                              .send = &number,
                              .recv = &number});
    check(number == expected, "sum of numbers");
    run((struct hzp_transfer){.op = HZP_ALL_GATHER, .group = group}); /* of nothing */
    free(send);
    free(recv);
}

static void operations(void)
{
    int all[HZP_LINK_RANKS_MAX], back[HZP_LINK_RANKS_MAX];
    for (int r = 0; r < ranks; r++) {
        all[r] = r;
        back[r] = ranks - 1 - r;
    }
    const int own[] = {me}, pair[] = {me & ~1, me | 1}, stride[] = {me % 2 + 2, me % 2};
    static const size_t pieces[] = {1, 1000, 1024 * 1024 + 5}; /* less and more than a round */
    for (int i = 0; i < HZP_COUNT(pieces); i++) {
        check_group(all, ranks, pieces[i]);
        check_group(back, ranks, pieces[i]);
        check_group(own, 1, pieces[i]);
        if (ranks % 2 == 0)
            check_group(pair, 2, pieces[i]);
        if (ranks == 4)
            check_group(stride, 2, pieces[i]);
    }
}

/* Many transfers in flight, all posted before any is waited for. */
static void many(void)
{
    static uint64_t number[HZP_LINK_TICKETS_MAX];
    for (int turn = 0; turn < 20; turn++) {
        hzp_ticket last = 0;
        for (int i = 0; i < HZP_LINK_TICKETS_MAX; i++) {
            number[i] = (uint64_t)(me + i + turn);
            last = post((struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                              .type = HZP_WIRE_U64,
                                              .count = 1,
                                              .send = &number[i],
                                              .recv = &number[i],
                                              .tag = (uint64_t)i});
        }
        check(hzp_link_wait(rank_link, last, &why) == HZP_OK, "wait for many");
        for (int i = 0; i < HZP_LINK_TICKETS_MAX; i++)
            check(number[i] == (uint64_t)(ranks * (i + turn) + ranks * (ranks - 1) / 2),
                  "sum %d of turn %d", i, turn);
    }
}

/* Two transfers of a megabyte at 20 MB/s, latency 1 ms: at least as long as such a wire takes, and
 * the engine's thread may do something else meanwhile. */
static void throttled(void)
{
    static char recv[HZP_LINK_RANKS_MAX][1000];
    enum { PIECE = 500000 };
    char *all = malloc((size_t)ranks * PIECE);
    check(all != NULL, "memory");
    memset(all, me, (size_t)ranks * PIECE);
    run((struct hzp_transfer){.op = HZP_ALL_GATHER,
                              .count = 1000,
                              .send = recv[me],
                              .recv = recv}); /* all have started */
    uint64_t began = hzp_now_ns(), polls = 0;
    struct hzp_transfer t = {
        .op = HZP_ALL_GATHER, .count = PIECE, .send = all + PIECE * me, .recv = all};
    hzp_ticket first = post(t);
    while (!hzp_link_poll(rank_link, first, &why))
        polls++;
    run(t);
    double seconds = (double)(hzp_now_ns() - began) * 1e-9;
    double wire = 2 * (PIECE * (double)(ranks - 1) / 20e6 + 1e-3);
    check(seconds >= wire, "%.4f s, the wire takes %.4f s", seconds, wire);
    check(polls > 0, "the first transfer did not take time");
    free(all);
}

/* Posts and waits.  Another rank may have failed the link before this one posts. */
static int attempt(struct hzp_transfer t)
{
    hzp_ticket ticket = 0;
    int r = hzp_link_post(rank_link, &t, &ticket, &why);
    return r < 0 ? r : hzp_link_wait(rank_link, ticket, &why);
}

static void expect(struct hzp_transfer t, int at_fault, const char *text)
{
    struct hzp_link_state state;
    check(attempt(t) == HZP_EIO, "the link did not fail");
    hzp_link_state(rank_link, &state);
    check(state.failed && (at_fault < 0 || state.failed_rank == at_fault), "rank %d is blamed",
          state.failed_rank);
    check(strstr(why.text, text) != NULL, "expected \"%s\"", text);
}

static float x[64 * 4];

static struct hzp_transfer sum_of_four(int group)
{
    return (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                 .type = HZP_WIRE_F32,
                                 .count = 4,
                                 .send = x,
                                 .recv = x,
                                 .group = group};
}

/* The last rank posts something else; it blames another, the others blame it.  With more than two
 * ranks, what one of them found first counts. */
static void disagree(void)
{
    int odd = ranks - 1;
    struct hzp_transfer t = {.op = HZP_ALL_GATHER,
                             .type = HZP_WIRE_F32,
                             .count = 4,
                             .send = x + 4 * me,
                             .recv = x,
                             .tag = me == odd ? 0x21 : 0x20};
    expect(t, -1, "posted all-gather of 4 f32 (tag 2");
}

/* Ranks that post on other groups. */
static void regroup(void)
{
    int all[HZP_LINK_RANKS_MAX];
    for (int r = 0; r < ranks; r++)
        all[r] = ranks - 1 - r;
    int other = hzp_link_group(rank_link, all, ranks, &why);
    expect(sum_of_four(me ? 0 : other), -1, "on another group of ranks");
}

/* Rank 0 finds that rank 1 is silent; all others learn it, whether they wait or not. */
static void abort_all(void)
{
    struct hzp_link_state state;
    if (me == 1) { /* never posts, and learns that it is given up */
        do
            hzp_link_state(rank_link, &state);
        while (!state.failed);
        check(state.failed_rank == 1, "rank %d is blamed", state.failed_rank);
        return;
    }
    if (me == 0) {
        post(sum_of_four(0));
        do
            hzp_link_state(rank_link, &state);
        while (state.missing != 1);
        hzp_link_abort(rank_link, 1, "sent no heartbeat");
    }
    expect(sum_of_four(0), 1, "rank 1: sent no heartbeat");
}

/* Rank 0 closes its link while the others wait for it. */
static void leave(void)
{
    if (me)
        expect(sum_of_four(0), 0, "rank 0: has closed its link");
}

/* The last rank is killed while the others wait for it. */
static void die(void)
{
    for (int n = 0; attempt(sum_of_four(0)) == HZP_OK; n++)
        if (n && me == ranks - 1)
            raise(SIGKILL);
    expect(sum_of_four(0), ranks - 1, "its connection has ended");
}

/* Two links between the same ranks: half of the ranks use them in one order, half in the other,
 * and each waits before it uses the second of them. */
static void split(void)
{
    struct hzp_link *link[2] = {rank_link}, *none = NULL;
    check(hzp_link_split(rank_link, &link[1], &why) == HZP_OK, "no second link");
    check(hzp_link_rank(link[1]) == me && hzp_link_ranks(link[1]) == ranks, "other ranks");
    for (int turn = 0; turn < 50; turn++) {
        uint64_t number[2] = {(uint64_t)(me + turn), (uint64_t)(2 * me)};
        hzp_ticket ticket[2];
        for (int i = 0; i < 2; i++) {
            int at = (i + me) % 2;
            struct hzp_transfer t = {.op = HZP_ALL_REDUCE,
                                     .type = HZP_WIRE_U64,
                                     .count = 1,
                                     .send = &number[at],
                                     .recv = &number[at],
                                     .tag = (uint64_t)(2 * turn + at)};
            check(hzp_link_post(link[at], &t, &ticket[at], &why) == HZP_OK, "post on %d", at);
        }
        for (int at = 0; at < 2; at++)
            check(hzp_link_wait(link[at], ticket[at], &why) == HZP_OK, "wait for %d", at);
        uint64_t sum = (uint64_t)(ranks * (ranks - 1) / 2);
        check(number[0] == sum + (uint64_t)(ranks * turn) && number[1] == 2 * sum, "sums");
    }
    /* One waits for a transfer of the second link, before any has posted on the first. */
    rank_link = link[1];
    run(sum_of_four(0));
    rank_link = link[0];
    run(sum_of_four(0));
    struct hzp_link *more[HZP_LINK_SPLITS_MAX - 1];
    for (int i = 0; i < HZP_COUNT(more); i++)
        check(hzp_link_split(rank_link, &more[i], &why) == HZP_OK, "no more links");
    check(hzp_link_split(rank_link, &none, &why) == HZP_EINVAL && !none, "one too many");
    for (int i = 0; i < HZP_COUNT(more); i++)
        hzp_link_close(more[i]);
    hzp_link_close(link[1]);
    run(sum_of_four(0));
}

/* Two axes of the ranks, neighbours and every second one, each with a link of its own that is
 * narrowed: transfers of both at the same time.  A link split off a narrowed one is narrowed, too,
 * and a failure of one is one of all. */
static void narrow(void)
{
    int near[] = {me & ~1, me | 1}, far[HZP_LINK_RANKS_MAX], count = 0;
    struct hzp_link *all = rank_link, *axis[2], *again[2];
    for (int r = me % 2; r < ranks; r += 2)
        far[count++] = r;
    for (int i = 0; i < 2; i++) {
        check(hzp_link_split(all, &axis[i], &why) == HZP_OK, "no link for axis %d", i);
        check(hzp_link_narrow(axis[i], i ? far : near, i ? count : 2, &why) == HZP_OK, "narrow");
    }
    for (int i = 0; i < 2; i++)
        check(hzp_link_split(axis[i], &again[i], &why) == HZP_OK, "no second link for axis %d", i);
    for (int turn = 0; turn < 40; turn++) {
        struct hzp_link **link = turn % 2 ? again : axis;
        uint64_t number[2] = {(uint64_t)me + 1, (uint64_t)me + 1}, sum[2] = {0};
        hzp_ticket ticket[2];
        for (int k = 0; k < 2; k++) {
            int i = (k + me) % 2; /* the axes are not ordered among each other */
            struct hzp_transfer t = {.op = HZP_ALL_REDUCE,
                                     .type = HZP_WIRE_U64,
                                     .count = 1,
                                     .send = &number[i],
                                     .recv = &number[i],
                                     .tag = (uint64_t)turn};
            check(hzp_link_post(link[i], &t, &ticket[i], &why) == HZP_OK, "post on axis %d", i);
        }
        for (int i = 0; i < 2; i++) {
            int members = i ? count : 2;
            for (int m = 0; m < members; m++)
                sum[i] += (uint64_t)(i ? far[m] : near[m]) + 1;
            check(hzp_link_ranks(link[i]) == members, "ranks of axis %d", i);
            check((i ? far : near)[hzp_link_rank(link[i])] == me, "rank of axis %d", i);
            check(hzp_link_wait(link[i], ticket[i], &why) == HZP_OK, "wait for axis %d", i);
            check(number[i] == sum[i], "sum of axis %d", i);
        }
    }
    run(sum_of_four(0));
    attempt(sum_of_four(0)); /* on the last rank it is done when all others have done that */
    if (me == ranks - 1)
        hzp_link_abort(again[1], me, "its device failed");
    rank_link = axis[0];
    while (attempt(sum_of_four(0)) == HZP_OK)
        ; /* neighbours of others: the news takes a moment to arrive */
    expect(sum_of_four(0), ranks - 1, "its device failed");
    rank_link = all;
    for (int i = 0; i < 2; i++) {
        hzp_link_close(again[i]);
        hzp_link_close(axis[i]);
    }
}

/* At the same time half a megabyte on each of two links at 20 MB/s: they share the wire. */
static void split_throttled(void)
{
    enum { PIECE = 500000 };
    struct hzp_link *link[2] = {rank_link};
    hzp_ticket ticket[2];
    char *all[2] = {calloc((size_t)ranks, PIECE), calloc((size_t)ranks, PIECE)};
    check(all[0] && all[1], "memory");
    check(hzp_link_split(rank_link, &link[1], &why) == HZP_OK, "no second link");
    uint64_t began = hzp_now_ns();
    for (int i = 0; i < 2; i++) {
        struct hzp_transfer t = {
            .op = HZP_ALL_GATHER, .count = PIECE, .send = all[i] + PIECE * me, .recv = all[i]};
        check(hzp_link_post(link[i], &t, &ticket[i], &why) == HZP_OK, "post");
    }
    for (int i = 0; i < 2; i++)
        check(hzp_link_wait(link[i], ticket[i], &why) == HZP_OK, "wait");
    double seconds = (double)(hzp_now_ns() - began) * 1e-9;
    double wire = 2 * PIECE * (double)(ranks - 1) / 20e6;
    check(seconds >= wire, "%.4f s, the wire takes %.4f s", seconds, wire);
    hzp_link_close(link[1]);
    free(all[0]);
    free(all[1]);
}

/* What the last wake of the first link saw: whether the other one had failed. */
static struct {
    struct hzp_link *other;
    atomic_bool failed;
} woken;

static void see(void *ctx)
{
    atomic_store(&woken.failed, atomic_load(&woken.other->failed));
}

/* Rank 0 fails one link while all others wait for the other one.  Who is woken by the first link,
 * and looks at the other one, learns of it. */
static void split_fails(void)
{
    struct hzp_link *link[2] = {rank_link}, *first = rank_link;
    struct hzp_link_state state;
    check(hzp_link_split(rank_link, &link[1], &why) == HZP_OK, "no second link");
    rank_link = link[1];
    attempt(sum_of_four(0)); /* all have both, and perhaps rank 0 has failed one already */
    int aborted = ranks > 2; /* which of them: one with two ranks, the other with four */
    woken.other = link[1];
    hzp_link_set_wake(link[0], see, NULL);
    if (me == 0) {
        hzp_link_abort(link[aborted], 1, "sent no heartbeat");
        check(atomic_load(&woken.failed), "woken too early");
    }
    rank_link = link[!aborted];
    expect(sum_of_four(0), 1, "rank 1: sent no heartbeat");
    for (int i = 0; i < 2; i++) {
        uint64_t end = hzp_now_ns() + 600000000000ull; /* only a hang takes as long */
        do /* the other one fails a moment later, by the first one's thread */
            hzp_link_state(link[i], &state);
        while (!state.failed && hzp_now_ns() < end);
        check(state.failed && state.failed_rank == 1 && strstr(state.why, "heartbeat"),
              "link %d: %s", i, state.why);
    }
    hzp_link_set_wake(link[0], NULL, NULL);
    hzp_link_close(link[1]);
    rank_link = first;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"operations", operations},
                 {"many", many},
                 {"throttled", throttled},
                 {"disagree", disagree},
                 {"regroup", regroup},
                 {"abort", abort_all},
                 {"leave", leave},
                 {"die", die},
                 {"split", split},
                 {"narrow", narrow},
                 {"split_throttled", split_throttled},
                 {"split_fails", split_fails}};
    const char *mode = argc > 1 ? argv[1] : "";
    for (int i = 0; i < HZP_COUNT(modes); i++) {
        if (strcmp(modes[i].name, mode))
            continue;
        bool slow = strstr(mode, "throttled") != NULL;
        open_link(slow ? 20e6 : 0, slow ? 1 : 0);
        /* Of nothing: all are connected.  Where a mode fails the link, that may come before it. */
        attempt((struct hzp_transfer){.op = HZP_ALL_GATHER});
        modes[i].run();
        disconnect_ranks(rank_link);
        return 0;
    }
    fprintf(stderr, "link_mpi: mode \"%s\"?\n", mode);
    return 2;
}
