/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_link.c - transfers between ranks of one process: their results, the order of
 * sums, tickets, and every way in which ranks can disagree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/thread.h"
#include "tests/links/links.h"
#include "mesh/link/worker.h"

enum { RANKS = 4, PIECE = 700 };

static struct hzp_link *link_of[RANKS];
static struct hzp_err_text why;

static void open_links(int ranks, int lag)
{
    assert_int_equal(hzp_link_open_local(ranks, lag, 7, link_of, &why), HZP_OK);
}

static void close_links(int ranks)
{
    for (int r = 0; r < ranks; r++)
        hzp_link_close(link_of[r]);
}

/* Values whose sum depends on the order of the additions. */
static float value(int rank, int i)
{
    static const float scale[] = {1, 1e-7f, -1, 3e-8f};
    return scale[(rank + i) % 4] * (float)(1 + (rank * 131 + i * 17) % 97);
}

static float sum_in_order(const int *rank, int count, int i, float sum, bool onto)
{
    for (int m = 0; m < count; m++)
        sum = m || onto ? sum + value(rank[m], i) : value(rank[m], i);
    return sum;
}

static void finish(hzp_ticket *ticket, int ranks)
{
    for (int left = ranks; left;) {
        left = 0;
        for (int r = 0; r < ranks; r++) {
            int done = hzp_link_poll(link_of[r], ticket[r], &why);
            assert_true(done >= 0);
            left += !done;
        }
    }
}

/* Every operation on the group of all ranks and on two nested groups, at 1, 2 and 4 ranks. */
static void check_group(int ranks, int lag, const int *rank, int count)
{
    static float send[RANKS][RANKS * PIECE], recv[RANKS][RANKS * PIECE];
    hzp_ticket ticket[RANKS] = {0};
    int group[RANKS] = {0};
    for (int m = 0; m < count; m++) {
        int r = rank[m];
        group[r] = hzp_link_group(link_of[r], rank, count, &why);
        assert_true(group[r] >= 0);
        assert_int_equal(hzp_link_group(link_of[r], rank, count, &why), group[r]);
        assert_int_equal(hzp_link_group_size(link_of[r], group[r]), count);
        assert_int_equal(hzp_link_group_index(link_of[r], group[r]), m);
        for (int i = 0; i < RANKS * PIECE; i++)
            send[r][i] = value(r, i);
    }
#define POST(r, ...)                                                                               \
    assert_int_equal(hzp_link_post(link_of[r],                                                     \
                                   &(struct hzp_transfer){.group = group[r], __VA_ARGS__},         \
                                   &ticket[r], &why),                                              \
                     HZP_OK)
#define EACH for (int m = 0, r = rank[0]; m < count; m++, r = rank[m % count])
    EACH POST(r, .op = HZP_ALL_GATHER, .type = HZP_WIRE_BYTE, .count = PIECE * 4, .send = send[r],
              .recv = recv[r]);
    finish(ticket, ranks);
    EACH for (int i = 0; i < count * PIECE; i++)
        assert_true(recv[r][i] == value(rank[i / PIECE], i % PIECE));

    EACH POST(r, .op = HZP_REDUCE_SCATTER, .type = HZP_WIRE_F32, .count = PIECE, .send = send[r],
              .recv = recv[r]);
    finish(ticket, ranks);
    EACH for (int i = 0; i < PIECE; i++)
        assert_true(recv[r][i] == sum_in_order(rank, count, m * PIECE + i, 0, false));

    EACH memset(recv[r], 0, sizeof(recv[r]));
    EACH recv[r][3] = 0.5f;
    EACH POST(r, .op = HZP_REDUCE_SCATTER, .type = HZP_WIRE_F32, .count = PIECE, .send = send[r],
              .recv = recv[r], .onto = true);
    finish(ticket, ranks);
    EACH for (int i = 0; i < PIECE; i++) assert_true(
        recv[r][i] == sum_in_order(rank, count, m * PIECE + i, i == 3 ? 0.5f : 0, true));

    EACH POST(r, .op = HZP_ALL_REDUCE, .type = HZP_WIRE_F32, .count = PIECE + 1, .send = send[r],
              .recv = recv[r]);
    finish(ticket, ranks);
    EACH for (int i = 0; i < PIECE + 1; i++)
        assert_true(recv[r][i] == sum_in_order(rank, count, i, 0, false));

    EACH POST(r, .op = HZP_ALL_REDUCE, .type = HZP_WIRE_F32, .count = PIECE + 1, .send = send[r],
              .recv = send[r]);
    finish(ticket, ranks);
    EACH for (int i = 0; i < PIECE + 1; i++)
        assert_true(send[r][i] == sum_in_order(rank, count, i, 0, false));

    EACH recv[r][9] = (float)r;
    EACH POST(r, .op = HZP_BROADCAST, .type = HZP_WIRE_BYTE, .count = PIECE * 4, .recv = recv[r],
              .root = count - 1);
    finish(ticket, ranks);
    EACH assert_true(recv[r][9] == (float)rank[count - 1]);

    uint64_t numbers[RANKS][3];
    EACH for (int i = 0; i < 3; i++) numbers[r][i] = (uint64_t)r - 2 * (uint64_t)i;
    EACH POST(r, .op = HZP_ALL_REDUCE, .type = HZP_WIRE_U64, .count = 3, .send = numbers[r],
              .recv = numbers[r]);
    finish(ticket, ranks);
    uint64_t expected = 0;
    for (int m = 0; m < count; m++)
        expected += (uint64_t)rank[m] - 4;
    EACH assert_true(numbers[r][2] == expected);
#undef EACH
}

static void test_operations(void **state)
{
    static const int all[] = {0, 1, 2, 3}, low[] = {0, 1}, high[] = {3, 2}, odd[] = {1, 3};
    for (int lag = 0; lag <= 5; lag += 5) {
        for (int ranks = 1; ranks <= RANKS; ranks *= 2) {
            open_links(ranks, lag);
            check_group(ranks, lag, all, ranks);
            if (ranks == RANKS) {
                check_group(ranks, lag, low, 2);
                check_group(ranks, lag, high, 2);
                check_group(ranks, lag, odd, 2);
            }
            struct hzp_link_state seen;
            hzp_link_state(link_of[0], &seen);
            assert_true(seen.posted == seen.done && seen.missing == -1 && !seen.failed);
            assert_true(ranks == 1 ? seen.wire_bytes == 0 : seen.wire_bytes > 0);
            close_links(ranks);
        }
    }
}

/* In place: gather and scatter with a member's piece of the other buffer. */
static void test_in_place(void **state)
{
    static float whole[2][2 * PIECE];
    struct hzp_transfer gather[2];
    hzp_ticket ticket[RANKS];
    open_links(2, 3);
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < 2 * PIECE; i++)
            whole[r][i] = value(r, i);
        struct hzp_transfer scatter = {.op = HZP_REDUCE_SCATTER,
                                       .type = HZP_WIRE_F32,
                                       .count = PIECE,
                                       .send = whole[r],
                                       .recv = whole[r] + PIECE * r};
        gather[r] = (struct hzp_transfer){.op = HZP_ALL_GATHER,
                                          .type = HZP_WIRE_F32,
                                          .count = PIECE,
                                          .send = whole[r] + PIECE * r,
                                          .recv = whole[r]};
        assert_int_equal(hzp_link_post(link_of[r], &scatter, &ticket[r], &why), HZP_OK);
    }
    finish(ticket, 2);
    for (int r = 0; r < 2; r++)
        assert_int_equal(hzp_link_post(link_of[r], &gather[r], &ticket[r], &why), HZP_OK);
    finish(ticket, 2);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 2 * PIECE; i++)
            assert_true(whole[r][i] == sum_in_order((const int[]){0, 1}, 2, i, 0, false));
    close_links(2);
}

static float buffer[RANKS][2][8];

static hzp_ticket post_small(int rank, struct hzp_transfer t)
{
    hzp_ticket ticket = 0;
    t.send = buffer[rank][0];
    t.recv = buffer[rank][1];
    if (!t.count)
        t.count = 2;
    assert_int_equal(hzp_link_post(link_of[rank], &t, &ticket, &why), HZP_OK);
    return ticket;
}

/* Nothing moves before all members have posted, tickets are done in order, and the link says which
 * rank has not posted. */
static void test_tickets(void **state)
{
    struct hzp_link_state seen;
    struct hzp_transfer gather = {.op = HZP_ALL_GATHER, .type = HZP_WIRE_F32};
    open_links(3, 0);
    buffer[2][0][1] = 5;
    hzp_ticket first = post_small(0, gather), second = post_small(0, gather);
    assert_int_equal(hzp_link_poll(link_of[0], 0, &why), 1);
    assert_int_equal(hzp_link_poll(link_of[0], first, &why), 0);
    hzp_link_state(link_of[0], &seen);
    assert_int_equal(seen.missing, 1);
    post_small(1, gather);
    hzp_link_state(link_of[0], &seen);
    assert_int_equal(seen.missing, 2);
    assert_int_equal(seen.done, 0);
    hzp_link_state(link_of[1], &seen);
    assert_int_equal(seen.missing, 2);
    post_small(2, gather);
    assert_int_equal(hzp_link_poll(link_of[0], first, &why), 1);
    assert_int_equal(hzp_link_poll(link_of[0], second, &why), 0);
    assert_true(buffer[0][1][5] == 5);

    for (int i = 0; i < HZP_LINK_TICKETS_MAX - 1; i++)
        post_small(0, gather);
    hzp_ticket ticket;
    struct hzp_transfer full = gather;
    full.count = 2;
    full.send = buffer[0][0];
    full.recv = buffer[0][1];
    assert_int_equal(hzp_link_post(link_of[0], &full, &ticket, &why), HZP_EBUSY);
    close_links(3);

    /* A transfer marked idle may wait: no rank is reported as missing. */
    open_links(2, 0);
    gather.idle = true;
    post_small(0, gather);
    hzp_link_state(link_of[0], &seen);
    assert_int_equal(seen.missing, -1);
    close_links(2);
}

/* With a lag, the buffer holds NaN until the ticket is done, seen from every rank. */
static void test_lag(void **state)
{
    struct hzp_transfer gather = {.op = HZP_ALL_GATHER, .type = HZP_WIRE_F32};
    int late = 0;
    open_links(2, 20);
    for (int turn = 0; turn < 20; turn++) {
        buffer[0][0][0] = (float)turn;
        post_small(0, gather);
        hzp_ticket ticket = post_small(1, gather);
        while (!hzp_link_poll(link_of[1], ticket, &why)) {
            late++;
            assert_true(buffer[1][1][0] != buffer[1][1][0]);
        }
        assert_true(buffer[1][1][0] == (float)turn);
    }
    assert_true(late > 20);
    close_links(2);
}

static void expect_failure(int rank, int at_fault, const char *text)
{
    struct hzp_link_state seen;
    assert_int_equal(hzp_link_poll(link_of[rank], 1, &why), HZP_EIO);
    hzp_link_state(link_of[rank], &seen);
    assert_true(seen.failed && seen.failed_rank == at_fault);
    if (!strstr(why.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, why.text);
}

static void test_disagreement(void **state)
{
    static const struct {
        struct hzp_transfer other;
        const char *text;
    } cases[] = {
        {{.op = HZP_ALL_REDUCE, .type = HZP_WIRE_F32, .tag = 0x10}, "posted all-reduce of 2 f32"},
        {{.op = HZP_ALL_GATHER, .type = HZP_WIRE_BYTE, .tag = 0x10}, "posted all-gather of 2 byte"},
        {{.op = HZP_ALL_GATHER, .type = HZP_WIRE_F32, .tag = 0x10, .count = 1}, "of 1 f32"},
        {{.op = HZP_ALL_GATHER, .type = HZP_WIRE_F32, .tag = 0x11}, "(tag 11"},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        open_links(2, 0);
        post_small(0,
                   (struct hzp_transfer){.op = HZP_ALL_GATHER, .type = HZP_WIRE_F32, .tag = 0x10});
        post_small(1, cases[i].other);
        for (int r = 0; r < 2; r++)
            expect_failure(r, 1, cases[i].text);
        assert_non_null(strstr(why.text, "rank 1: posted"));
        assert_non_null(strstr(why.text, "rank 0 posted all-gather of 2 f32 (tag 10"));
        close_links(2);
    }
}

static void poke(void *wake)
{
    hzp_wake_poke(wake);
}

static void test_abort_and_close(void **state)
{
    struct hzp_transfer gather = {.op = HZP_ALL_GATHER, .type = HZP_WIRE_F32};
    struct hzp_wake wake;
    hzp_wake_init(&wake);
    open_links(3, 0);
    hzp_link_set_wake(link_of[1], poke, &wake);
    post_small(0, gather);
    post_small(1, gather);
    hzp_link_abort(link_of[0], 2, "is silent");
    hzp_link_abort(link_of[0], 1, "a later failure does not count");
    assert_true(hzp_wake_wait(&wake, UINT64_MAX));
    expect_failure(0, 2, "rank 2: is silent");
    expect_failure(1, 2, "rank 2: is silent");
    assert_int_equal(hzp_link_group(link_of[2], (const int[]){2}, 1, &why), HZP_EIO);
    close_links(3);

    /* A rank that closes: who still needs it fails, two others go on. */
    open_links(3, 0);
    hzp_link_set_wake(link_of[1], NULL, NULL);
    for (int r = 0; r < 2; r++)
        assert_int_equal(hzp_link_group(link_of[r], (const int[]){0, 1}, 2, &why), 1);
    hzp_link_close(link_of[2]);
    gather.group = 1;
    post_small(0, gather);
    assert_int_equal(hzp_link_wait(link_of[1], post_small(1, gather), &why), HZP_OK);
    gather.group = 0;
    post_small(0, gather);
    assert_int_equal(hzp_link_poll(link_of[0], 1, &why), 1); /* done stays done */
    assert_int_equal(hzp_link_poll(link_of[0], 2, &why), HZP_EIO);
    assert_string_equal(why.text, "rank 2: has closed its link");
    close_links(2);
    hzp_wake_fini(&wake);
}

static void refused(struct hzp_transfer t)
{
    hzp_ticket ticket = 99;
    assert_int_equal(hzp_link_post(link_of[0], &t, &ticket, &why), HZP_EINVAL);
    assert_int_equal(ticket, 99);
}

static void test_arguments(void **state)
{
    static float a[64], b[64];
    open_links(2, 0);
#define T(op_, type_, ...)                                                                         \
    refused((struct hzp_transfer){                                                                 \
        .op = op_, .type = type_, .send = a, .recv = b, .count = 4, __VA_ARGS__})
    T(HZP_ALL_REDUCE, HZP_WIRE_BYTE, .tag = 0);
    T(HZP_REDUCE_SCATTER, HZP_WIRE_BYTE, .tag = 0);
    T(HZP_TRANSFER_OP_COUNT, HZP_WIRE_F32, .tag = 0);
    T(HZP_ALL_GATHER, HZP_WIRE_COUNT, .tag = 0);
    T(HZP_ALL_GATHER, HZP_WIRE_F32, .group = 1);
    T(HZP_ALL_GATHER, HZP_WIRE_F32, .group = -1);
    T(HZP_ALL_GATHER, HZP_WIRE_F32, .onto = true);
    T(HZP_ALL_GATHER, HZP_WIRE_F32, .root = 1);
    T(HZP_BROADCAST, HZP_WIRE_F32, .root = 2);
    T(HZP_REDUCE_SCATTER, HZP_WIRE_F32, .nonzero = 1);
    T(HZP_REDUCE_SCATTER, HZP_WIRE_U64, .onto = true, .nonzero = 1);
    T(HZP_ALL_GATHER, HZP_WIRE_F32, .nonzero = 1);
    T(HZP_REDUCE_SCATTER, HZP_WIRE_F32, .pitch = 8);
    T(HZP_REDUCE_SCATTER, HZP_WIRE_F32, .onto = true, .pitch = 3);
#undef T
    refused((struct hzp_transfer){HZP_REDUCE_SCATTER, HZP_WIRE_F32, .send = a, .recv = a + 8,
                                  .count = 4, .onto = true, .pitch = 8}); /* within send */
    refused((struct hzp_transfer){HZP_ALL_GATHER, HZP_WIRE_F32, .send = a, .count = 1});
    refused((struct hzp_transfer){HZP_ALL_GATHER, HZP_WIRE_F32, .recv = a, .count = 1});
    refused((struct hzp_transfer){HZP_ALL_GATHER, HZP_WIRE_F32, .send = a + 1, .recv = a,
                                  .count = 4}); /* rank 0's is a */
    refused((struct hzp_transfer){HZP_REDUCE_SCATTER, HZP_WIRE_F32, .send = a, .recv = a,
                                  .count = 4, .onto = true});
    refused(
        (struct hzp_transfer){HZP_ALL_REDUCE, HZP_WIRE_F32, .send = a, .recv = a + 1, .count = 4});
    refused((struct hzp_transfer){HZP_ALL_REDUCE, HZP_WIRE_U64, .send = (char *)a + 4, .recv = b,
                                  .count = 4});
    assert_int_equal(hzp_link_group(link_of[0], (const int[]){1}, 1, &why), HZP_EINVAL);
    assert_int_equal(hzp_link_group(link_of[0], (const int[]){0, 2}, 2, &why), HZP_EINVAL);
    assert_int_equal(hzp_link_group(link_of[0], (const int[]){0, 0}, 2, &why), HZP_EINVAL);
    assert_int_equal(hzp_link_group(link_of[0], NULL, 0, &why), HZP_EINVAL);
    close_links(2);
    assert_int_equal(hzp_link_open_local(0, 0, 0, link_of, &why), HZP_EINVAL);
    assert_int_equal(hzp_link_open_local(HZP_LINK_RANKS_MAX + 1, 0, 0, link_of, &why), HZP_EINVAL);
}

static void test_bytes(void **state)
{
    assert_int_equal(hzp_transfer_bytes(HZP_ALL_GATHER, HZP_WIRE_BYTE, 4, 100), 300);
    assert_int_equal(hzp_transfer_bytes(HZP_REDUCE_SCATTER, HZP_WIRE_F32, 4, 100), 1200);
    assert_int_equal(hzp_transfer_bytes(HZP_ALL_REDUCE, HZP_WIRE_F32, 4, 101), 2 * 3 * 26 * 4);
    assert_int_equal(hzp_transfer_bytes(HZP_BROADCAST, HZP_WIRE_U64, 4, 100), 800);
    for (int op = 0; op < HZP_TRANSFER_OP_COUNT; op++)
        assert_int_equal(hzp_transfer_bytes(op, HZP_WIRE_F32, 1, 100), 0);
    struct hzp_transfer t = {HZP_REDUCE_SCATTER, HZP_WIRE_F32, .count = 1 << 20};
    assert_int_equal(hzp_transfer_cost(&t, 4), 12 << 20);
    t.nonzero = 1000;
    assert_int_equal(hzp_transfer_cost(&t, 4), 4000 + (12 << 20) / 8192);
    t.nonzero = 3 << 20;
    assert_int_equal(hzp_transfer_cost(&t, 4), 12 << 20);
    assert_int_equal(hzp_transfer_cost(&t, 1), 0);
}

/* One thread a rank: each sums what the ranks hold, many times, without agreeing on more than the
 * order. */
static void *rank_thread(void *arg)
{
    struct hzp_link *link = arg;
    int rank = hzp_link_rank(link);
    const int pair[] = {rank & ~1, rank | 1};
    int group = hzp_link_group(link, pair, 2, NULL);
    uint64_t x = (uint64_t)rank;
    for (int turn = 0; turn < 500; turn++) {
        struct hzp_transfer sum = {.op = HZP_ALL_REDUCE,
                                   .type = HZP_WIRE_U64,
                                   .group = turn % 3 ? 0 : group,
                                   .count = 1,
                                   .send = &x,
                                   .recv = &x};
        hzp_ticket ticket;
        if (hzp_link_post(link, &sum, &ticket, NULL) < 0 || hzp_link_wait(link, ticket, NULL) < 0)
            return arg;
        x = x % 1000003 + (uint64_t)rank;
    }
    return x == UINT64_MAX ? arg : NULL;
}

static void test_threads(void **state)
{
    for (int lag = 0; lag <= 2; lag += 2) {
        pthread_t thread[RANKS];
        open_links(RANKS, lag);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(hzp_thread_start(&thread[r], "rank", rank_thread, link_of[r]), HZP_OK);
        for (int r = 0; r < RANKS; r++) {
            void *failed;
            pthread_join(thread[r], &failed);
            assert_null(failed);
        }
        close_links(RANKS);
    }
}

/* --- Zeros left out --------------------------------------------------------------------------- */

/* Blocks with something in them, at the begin, the end and both sides of a block's border. */
static void test_sparse(void **state)
{
    enum { BLOCK = HZP_LINK_BLOCK / 4, COUNT = 70 * BLOCK + 7 };
    static float from[COUNT], sum[COUNT];
    static uint32_t packed[2 * COUNT];
    const size_t bytes = sizeof(from);
    static const int32_t set[] = {0, BLOCK - 1, BLOCK, 33 * BLOCK + 5, 69 * BLOCK, COUNT - 1};
    size_t size = hzp_sparse_pack(from, bytes, packed);
    assert_int_equal(size, 3 * sizeof(uint32_t)); /* bits of 71 blocks */
    assert_true(hzp_sparse_add(sum, bytes, packed, size));
    for (int32_t i = 0; i < HZP_COUNT(set); i++)
        from[set[i]] = (float)(i + 1);
    from[40 * BLOCK] = -0.0f;
    for (int32_t i = 0; i < COUNT; i++)
        sum[i] = (float)i;
    size = hzp_sparse_pack(from, bytes, packed);
    assert_int_equal(size, 3 * sizeof(uint32_t) + 4 * HZP_LINK_BLOCK + 7 * sizeof(float));
    assert_int_equal(size, hzp_sparse_size(from, bytes));
    assert_true(size <= hzp_sparse_room(bytes));
    assert_true(hzp_sparse_add(sum, bytes, packed, size));
    for (int32_t i = 0; i < COUNT; i++)
        assert_true(sum[i] == (float)i + from[i]);
    for (size_t cut = 0; cut < size; cut += 4)
        assert_false(hzp_sparse_add(sum, bytes, packed, cut));
    assert_false(hzp_sparse_add(sum, bytes, packed, size + 4));
    for (size_t room = 0; room < 200000; room += 997) {
        assert_true(hzp_sparse_room(hzp_sparse_fits(room)) <= room);
        assert_true(hzp_sparse_room(hzp_sparse_fits(room) + HZP_LINK_BLOCK) > room);
    }
}

/* A part of each piece, the pieces' beginnings being further apart. */
static void test_part(void **state)
{
    static float send[2][10], recv[2][2];
    hzp_ticket ticket[2];
    open_links(2, 0);
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < 10; i++)
            send[r][i] = (float)(100 * r + i);
        recv[r][0] = recv[r][1] = 1000;
        struct hzp_transfer t = {HZP_REDUCE_SCATTER, HZP_WIRE_F32, .count = 2, .send = send[r] + 2,
                                 .recv = recv[r],    .onto = true, .pitch = 5};
        assert_int_equal(hzp_link_post(link_of[r], &t, &ticket[r], &why), HZP_OK);
    }
    assert_int_equal(hzp_link_poll(link_of[0], ticket[0], &why), 1);
    for (int i = 0; i < 2; i++) {
        assert_true(recv[0][i] == (float)(1000 + 2 * (2 + i) + 100));
        assert_true(recv[1][i] == (float)(1000 + 2 * (7 + i) + 100));
    }
    close_links(2);
}

/* Two axes of four ranks: ends of one link that are narrowed to the rows, and of another to the
 * columns.  Each is a link between its ranks, with their numbers; a failure names the whole link's
 * rank. */
static void test_narrow(void **state)
{
    enum { WIDE = 2 };
    for (int axis = 0; axis < 2; axis++) {
        struct hzp_transfer t = {.op = HZP_ALL_GATHER, .type = HZP_WIRE_U64, .count = 1};
        uint64_t own[RANKS], all[RANKS][WIDE], only[RANKS];
        hzp_ticket ticket[RANKS];
        const int alone[] = {1}, outside[] = {0, 2}, other[] = {1 - axis};
        open_links(RANKS, 5);
        for (int r = 0; r < RANKS; r++) {
            int row[] = {r / WIDE * WIDE, r / WIDE * WIDE + 1},
                column[] = {r % WIDE, r % WIDE + WIDE};
            int *member = axis ? column : row, index = axis ? r / WIDE : r % WIDE;
            assert_int_equal(hzp_link_narrow(link_of[r], member, WIDE, &why), HZP_OK);
            assert_int_equal(hzp_link_ranks(link_of[r]), WIDE);
            assert_int_equal(hzp_link_rank(link_of[r]), index);
            assert_int_equal(hzp_link_group_size(link_of[r], 0), WIDE);
            assert_int_equal(hzp_link_group_index(link_of[r], 0), index);
            assert_int_equal(hzp_link_group(link_of[r], outside, 2, &why), HZP_EINVAL);
            own[r] = 100 + (uint64_t)r;
            t.send = &own[r];
            t.recv = all[r];
            assert_int_equal(hzp_link_post(link_of[r], &t, &ticket[r], &why), HZP_OK);
        }
        finish(ticket, RANKS);
        for (int r = 0; r < RANKS; r++)
            for (int m = 0; m < WIDE; m++)
                assert_int_equal(all[r][m],
                                 100 + (axis ? r % WIDE + WIDE * m : r / WIDE * WIDE + m));
        /* Lists of groups name its ranks, of which a group is not the whole link's rank 1. */
        int group = hzp_link_group(link_of[3], alone, 1, &why);
        assert_true(group > 0 && hzp_link_group_size(link_of[3], group) == 1);
        t.group = group;
        t.send = &own[3];
        t.recv = &only[3];
        assert_int_equal(hzp_link_post(link_of[3], &t, &ticket[3], &why), HZP_OK);
        finish(ticket, RANKS);
        assert_int_equal(only[3], 103);
        assert_int_equal(hzp_link_group(link_of[0], other, 1, &why),
                         axis ? HZP_OK + 2 : HZP_EINVAL);
        hzp_link_abort(link_of[3], 2, "died");
        assert_int_equal(hzp_link_check(link_of[1], &why), HZP_EIO);
        assert_non_null(strstr(why.text, "rank 2: died"));
        close_links(RANKS);
    }
}

/* A rank that sends more than it said fails the link. */
static void test_nonzero(void **state)
{
    static float send[2][8] = {{0, 1, 0, 2}, {0, 0, 3, 0, 0, 0, 0, 4}}, recv[2][4];
    for (size_t nonzero = 2; nonzero > 0; nonzero--) {
        hzp_ticket ticket[2];
        open_links(2, 0);
        for (int r = 0; r < 2; r++) {
            struct hzp_transfer t = {HZP_REDUCE_SCATTER, HZP_WIRE_F32,    .count = 4,
                                     .send = send[r],    .recv = recv[r], .onto = true,
                                     .nonzero = nonzero};
            hzp_link_post(link_of[r], &t, &ticket[r], &why);
        }
        assert_int_equal(hzp_link_poll(link_of[0], ticket[0], &why), nonzero == 2 ? 1 : HZP_EIO);
        if (nonzero == 1)
            assert_non_null(strstr(why.text, "rank 0: sends more nonzero"));
        close_links(2);
    }
    assert_true(recv[0][1] == 1 && recv[0][2] == 3 && recv[0][3] == 2 && recv[1][3] == 4);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),   cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_tickets),      cmocka_unit_test(test_lag),
        cmocka_unit_test(test_disagreement), cmocka_unit_test(test_abort_and_close),
        cmocka_unit_test(test_arguments),    cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_nonzero),      cmocka_unit_test(test_part),
        cmocka_unit_test(test_narrow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
