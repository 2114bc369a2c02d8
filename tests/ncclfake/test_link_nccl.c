/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ncclfake/test_link_nccl.c - the host side of the NCCL backend on a recording library: what
 * is launched when, in which order, on which communicator, and every failure. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/thread.h"
#include "tests/ncclfake/fake.h"
#include "tests/links/links.h"

enum { RANKS = 4 };

static struct hzp_link *host[RANKS], *gpu[RANKS];
static struct hzp_err_text why;
static int ctas;
static bool enqueues;

static void *open_one(void *arg)
{
    int rank = (int)(intptr_t)arg;
    struct hzp_link_nccl config = {
        .host = host[rank], .streams = &fake_streams, .ctas = ctas, .enqueues = enqueues};
    struct hzp_err_text text = {0};
    if (hzp_link_open_nccl(&config, &gpu[rank], &text) < 0) {
        gpu[rank] = NULL;
        why = text;
    }
    return NULL;
}

/* The ranks' links, opened by a thread each, because opening waits for the others. */
static void open_links(int ranks)
{
    pthread_t thread[RANKS];
    fake_reset();
    assert_int_equal(hzp_link_open_local(ranks, 0, 1, host, &why), HZP_OK);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(hzp_thread_start(&thread[r], "open", open_one, (void *)(intptr_t)r), 0);
    for (int r = 0; r < ranks; r++)
        pthread_join(thread[r], NULL);
}

static void close_links(int ranks)
{
    for (int r = 0; r < ranks; r++)
        hzp_link_close(gpu[r]);
    for (int r = 0; r < ranks; r++)
        hzp_link_close(host[r]);
    assert_int_equal(fake_open(), 0);
    assert_int_equal(fake_registered(), 0);
}

static hzp_ticket post(int rank, struct hzp_transfer t)
{
    hzp_ticket ticket = 0;
    if (hzp_link_post(gpu[rank], &t, &ticket, &why) < 0)
        fail_msg("rank %d: %s", rank, why.text);
    return ticket;
}

static void finish(const hzp_ticket *ticket, int ranks)
{
    for (int left = ranks; left;) {
        left = 0;
        for (int r = 0; r < ranks; r++) {
            int done = hzp_link_poll(gpu[r], ticket[r], &why);
            if (done < 0)
                fail_msg("rank %d: %s", r, why.text);
            left += !done;
        }
    }
}

/* Groups {0, 1}, {2, 3} and {0, 2}, {1, 3}. */
static int pair(int rank, bool stride)
{
    int list[] = {stride ? rank % 2 : rank & ~1, stride ? rank % 2 + 2 : rank | 1};
    int group = hzp_link_group(gpu[rank], list, 2, &why);
    assert_true(group > 0);
    return group;
}

static void test_operations(void **state)
{
    float x[RANKS][4], all[RANKS][16];
    uint64_t n[RANKS];
    hzp_ticket ticket[RANKS];
    ctas = 4;
    open_links(RANKS);
    assert_int_equal(fake_max_ctas(), 4);
    assert_string_equal(hzp_link_backend(gpu[0]), "nccl");
    for (int r = 0; r < RANKS; r++) {
        int group = pair(r, true);
        for (int i = 0; i < 4; i++)
            x[r][i] = (float)(10 * r + i);
        n[r] = (uint64_t)r;
        assert_int_equal(hzp_link_register(gpu[r], all[r], sizeof(all[r]), &why), HZP_OK);
        post(r, (struct hzp_transfer){.op = HZP_ALL_GATHER,
                                      .type = HZP_WIRE_F32,
                                      .count = 4,
                                      .send = x[r],
                                      .recv = all[r]});
        post(r, (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                      .type = HZP_WIRE_U64,
                                      .count = 1,
                                      .send = &n[r],
                                      .recv = &n[r],
                                      .group = group});
        ticket[r] = post(
            r, (struct hzp_transfer){
                   .op = HZP_BROADCAST, .type = HZP_WIRE_F32, .count = 4, .recv = x[r], .root = 2});
    }
    assert_int_equal(fake_registered(), 2 * RANKS); /* with each communicator */
    finish(ticket, RANKS);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(n[r], (r & 1) + (r & 1) + 2);
        assert_true(x[r][3] == 23);
        for (int i = 0; i < 16; i++)
            assert_true(all[r][i] == (float)(10 * (i / 4) + i % 4));
        ticket[r] = post(r, (struct hzp_transfer){.op = HZP_REDUCE_SCATTER,
                                                  .type = HZP_WIRE_F32,
                                                  .count = 4,
                                                  .send = all[r],
                                                  .recv = x[r]});
    }
    finish(ticket, RANKS);
    for (int r = 0; r < RANKS; r++)
        assert_true(x[r][1] == 4 * (float)(10 * r + 1));
    close_links(RANKS);
    assert_int_equal(fake_aborted(), 0);
}

/* A transfer is launched only when all members have posted it: no kernel waits for a late rank. */
static void test_no_spinning(void **state)
{
    uint64_t n[2] = {1, 2};
    hzp_ticket ticket[2];
    struct hzp_link_state seen;
    open_links(2);
    struct hzp_transfer sum = {.op = HZP_ALL_REDUCE, .type = HZP_WIRE_U64, .count = 1};
    for (int r = 0; r < 2; r++) {
        sum.send = sum.recv = &n[r];
        ticket[r] = post(r, sum);
        for (int i = 0; i < 5; i++)
            hzp_link_poll(gpu[0], ticket[0], &why);
        hzp_link_state(gpu[0], &seen);
        assert_int_equal(fake_launched(), r); /* only then, and only by the rank that polled */
        assert_int_equal(seen.missing, r ? -1 : 1);
    }
    fake_hold(true); /* launched, not ended */
    for (int i = 0; i < 5; i++)
        for (int r = 0; r < 2; r++)
            assert_int_equal(hzp_link_poll(gpu[r], ticket[r], &why), 0);
    fake_hold(false);
    finish(ticket, 2);
    assert_true(n[0] == 3 && n[1] == 3);
    close_links(2);
}

/* Whatever the order in which ranks poll, every rank launches in the order of posting, over all
 * communicators; nothing gets stuck. */
static void test_one_order(void **state)
{
    static uint64_t x[RANKS][48], y[RANKS][48];
    hzp_ticket ticket[RANKS] = {0};
    uint32_t seed = 1;
    open_links(RANKS);
    for (int r = 0; r < RANKS; r++) {
        int near = pair(r, false), far = pair(r, true);
        for (int i = 0; i < 48; i++) {
            x[r][i] = (uint64_t)(r * 100 + i);
            ticket[r] = post(r, (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                                      .type = HZP_WIRE_U64,
                                                      .count = 1,
                                                      .group = i % 3 == 0   ? 0
                                                               : i % 3 == 1 ? near
                                                                            : far,
                                                      .send = &x[r][i],
                                                      .recv = &y[r][i],
                                                      .tag = (uint64_t)i});
        }
    }
    for (int left = 1; left;) {
        seed = seed * 1664525 + 1013904223;
        int r = (int)(seed >> 16) % RANKS;
        hzp_link_poll(gpu[r], ticket[r], &why);
        left = 0;
        for (int k = 0; k < RANKS; k++) {
            struct hzp_link_state seen;
            hzp_link_state(gpu[k], &seen);
            left += seen.done < seen.posted;
        }
    }
    assert_false(fake_stuck());
    assert_int_equal(fake_launched(), RANKS * 48);
    int next[RANKS] = {0};
    for (int i = 0; i < RANKS * 48; i++) {
        struct fake_op o = fake_op(i);
        assert_ptr_equal(o.send, &x[o.rank][next[o.rank]]);
        assert_ptr_equal(o.recv, &y[o.rank][next[o.rank]]);
        assert_int_equal(o.members, next[o.rank] % 3 == 0 ? RANKS : 2);
        next[o.rank]++;
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(y[r][0], 600);
    close_links(RANKS);
}

static void expect_failure(int rank, int at_fault, const char *text)
{
    struct hzp_link_state seen;
    int r = 0;
    for (int i = 0; i < 5 && r == 0; i++)
        r = hzp_link_poll(gpu[rank], 1, &why);
    assert_int_equal(r, HZP_EIO);
    hzp_link_state(gpu[rank], &seen);
    assert_int_equal(seen.failed_rank, at_fault);
    if (!strstr(why.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, why.text);
}

/* Ranks that post different things never reach NCCL. */
static void test_disagreement(void **state)
{
    uint64_t n[2] = {0};
    open_links(2);
    for (int r = 0; r < 2; r++)
        post(r, (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                      .type = HZP_WIRE_U64,
                                      .tag = 7,
                                      .count = (size_t)(1 - r),
                                      .send = &n[r],
                                      .recv = &n[r]});
    for (int r = 0; r < 2; r++)
        expect_failure(r, 1, "rank 1: posted all-gather of 0 bytes (tag ");
    assert_int_equal(fake_launched(), 0);
    close_links(2);
}

/* Errors of a launch, of the stream, of another rank: this link fails and the others learn it. */
static void test_failures(void **state)
{
    static const struct {
        const char *function;
        int at_fault;
        const char *text;
    } cases[] = {{"launch", 0, "NCCL: internal error - planted"},
                 {"event_record", 0, "CUDA: planted CUDA error"},
                 {"event_query", 0, "CUDA: planted CUDA error"},
                 {"async", -1, "NCCL: remote process exited - planted"}};
    for (int c = 0; c < HZP_COUNT(cases); c++) {
        uint64_t n[2] = {0};
        open_links(2);
        fake_hold(true);
        for (int r = 0; r < 2; r++)
            post(r, (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                          .type = HZP_WIRE_U64,
                                          .count = 1,
                                          .send = &n[r],
                                          .recv = &n[r]});
        if (strcmp(cases[c].function, "async"))
            fake_plant(cases[c].function, 3);
        else
            fake_plant_async(6);
        expect_failure(0, cases[c].at_fault, cases[c].text);
        expect_failure(1, cases[c].at_fault, cases[c].text);
        close_links(2);
        assert_int_equal(fake_aborted(), 2); /* destroying would wait for kernels */
    }
}

/* Sums in the order of members, of more elements than the link's memory holds at a time; and
 * transfers of host memory, in the same order as the others, while NCCL answers that every call is
 * in progress. */
static void test_sums_in_order(void **state)
{
    enum { N = HZP_LINK_NCCL_BYTES / sizeof(float) / RANKS + 1000 };
    static float send[RANKS][RANKS * (size_t)N], sum[RANKS][N];
    double told[RANKS][RANKS];
    hzp_ticket ticket[RANKS], host_ticket[RANKS];
    open_links(RANKS);
    fake_slow(2);
    for (int r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < RANKS * (size_t)N; i++)
            send[r][i] = 1.0f / (float)(1 + (i * 7 + (size_t)r * 13) % 1021);
        for (size_t i = 0; i < N; i++)
            sum[r][i] = 1e-3f * (float)(i % 17);
    }
    fake_hold(true);
    for (int r = 0; r < RANKS; r++) {
        told[r][r] = r;
        post(r, (struct hzp_transfer){.op = HZP_REDUCE_SCATTER,
                                      .type = HZP_WIRE_F32,
                                      .count = N,
                                      .send = send[r],
                                      .recv = sum[r],
                                      .onto = true});
        host_ticket[r] = post(r, (struct hzp_transfer){.op = HZP_ALL_GATHER,
                                                       .count = sizeof(double),
                                                       .send = &told[r][r],
                                                       .recv = told[r],
                                                       .host = true});
        ticket[r] =
            post(r, (struct hzp_transfer){
                        .op = HZP_BROADCAST, .type = HZP_WIRE_F32, .count = N, .recv = send[r]});
    }
    for (int i = 0; i < 50; i++)
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(hzp_link_poll(gpu[r], host_ticket[r], &why), 0); /* in its turn */
    fake_hold(false);
    finish(ticket, RANKS);
    for (int r = 0; r < RANKS; r++) {
        for (int k = 0; k < RANKS; k++)
            assert_true(told[r][k] == k);
        for (size_t i = 0; i < N; i++) {
            float want = 1e-3f * (float)(i % 17);
            for (int m = 0; m < RANKS; m++)
                want += 1.0f / (float)(1 + (((size_t)r * N + i) * 7 + (size_t)m * 13) % 1021);
            assert_memory_equal(&sum[r][i], &want, sizeof(want));
        }
    }
    assert_int_equal(fake_launched(), 3 * RANKS); /* two exchanges and a broadcast */
    close_links(RANKS);
}

static atomic_int woken;

static void count_wake(void *ctx)
{
    atomic_fetch_add(&woken, 1);
}

/* The caller is woken when members have posted, when a transfer has ended, and when a rank is
 * lost; then the next poll aborts the communicators, while kernels still wait. */
static void test_wake_and_abort(void **state)
{
    uint64_t n[2] = {1, 2};
    hzp_ticket ticket[2];
    open_links(2);
    hzp_link_set_wake(gpu[0], count_wake, NULL);
    for (int turn = 0; turn < 2; turn++) {
        fake_hold(true);
        for (int r = 0; r < 2; r++)
            ticket[r] = post(r, (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                                      .type = HZP_WIRE_U64,
                                                      .count = 1,
                                                      .send = &n[r],
                                                      .recv = &n[r]});
        for (int r = 0; r < 2; r++)
            assert_int_equal(hzp_link_poll(gpu[r], ticket[r], &why), 0);
        assert_true(atomic_load(&woken) > 0); /* by the host link */
        atomic_store(&woken, 0);
        if (turn == 0) {
            fake_hold(false);
            assert_int_equal(hzp_link_poll(gpu[1], ticket[1], &why), 1); /* the streams run */
            assert_true(atomic_load(&woken) > 0);
            finish(ticket, 2);
        }
    }
    hzp_link_abort(host[0], 1, "rank 1: sends no heartbeat"); /* as the control thread does */
    assert_int_equal(fake_aborted(), 0);
    assert_true(atomic_load(&woken) > 0);
    assert_int_equal(hzp_link_poll(gpu[0], ticket[0], &why), HZP_EIO);
    assert_non_null(strstr(why.text, "sends no heartbeat"));
    assert_int_equal(fake_aborted(), 1);
    assert_int_equal(hzp_link_poll(gpu[0], ticket[0], &why), HZP_EIO);
    assert_int_equal(fake_aborted(), 1); /* once */
    close_links(2);
}

/* A rank is lost between two transfers: the caller learns it when it posts the next one and polls
 * no more, and that aborts the communicators, too. */
static void test_lost_before_a_post(void **state)
{
    uint64_t n[2] = {1, 2};
    hzp_ticket ticket[2];
    struct hzp_transfer t = {.op = HZP_ALL_REDUCE, .type = HZP_WIRE_U64, .count = 1};
    open_links(2);
    fake_hold(true);
    for (int r = 0; r < 2; r++) {
        t.send = t.recv = &n[r];
        ticket[r] = post(r, t);
        assert_int_equal(hzp_link_poll(gpu[r], ticket[r], &why), 0);
    }
    hzp_link_abort(host[0], 1, "rank 1: sends no heartbeat");
    assert_int_equal(hzp_link_post(gpu[0], &t, &ticket[0], &why), HZP_EIO);
    assert_non_null(strstr(why.text, "sends no heartbeat"));
    assert_int_equal(fake_aborted(), 1);
    close_links(2);
}

static void enqueue(int rank, void *stream, struct hzp_transfer t)
{
    if (hzp_link_enqueue(gpu[rank], &t, stream, &why) < 0)
        fail_msg("rank %d: %s", rank, why.text);
}

/* Each kind of transfer on a stream of the caller, one launch each; a sum onto what is there goes
 * piece by piece, in the order of members. */
static void test_enqueue(void **state)
{
    enum { N = HZP_LINK_NCCL_BYTES / sizeof(float) / RANKS + 1000 };
    static float send[RANKS][RANKS * (size_t)N], sum[RANKS][N];
    float x[RANKS][4];
    uint64_t n[RANKS];
    char all[RANKS][RANKS];
    void *stream[RANKS], *event[RANKS];
    enqueues = true;
    ctas = 16;
    open_links(RANKS);
    assert_int_equal(fake_max_ctas(), 16); /* of a lane with SMs of its own */
    for (int r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < RANKS * (size_t)N; i++)
            send[r][i] = 1.0f / (float)(1 + (i * 7 + (size_t)r * 13) % 1021);
        for (size_t i = 0; i < N; i++)
            sum[r][i] = 1e-3f * (float)(i % 17);
        for (int i = 0; i < 4; i++)
            x[r][i] = (float)(10 * r + i);
        n[r] = 1ull << 40 | (uint64_t)r;
        all[r][r] = (char)(r + 1);
        assert_int_equal(fake_streams.stream_open(&stream[r]), 0);
        assert_int_equal(fake_streams.event_open(&event[r]), 0);
        enqueue(r, stream[r],
                (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                      .type = HZP_WIRE_F32,
                                      .count = 4,
                                      .send = x[r],
                                      .recv = x[r]});
        enqueue(r, stream[r],
                (struct hzp_transfer){.op = HZP_REDUCE_SCATTER,
                                      .type = HZP_WIRE_F32,
                                      .count = N,
                                      .send = send[r],
                                      .recv = sum[r],
                                      .onto = true});
        enqueue(r, stream[r],
                (struct hzp_transfer){
                    .op = HZP_ALL_GATHER, .count = 1, .send = &all[r][r], .recv = all[r]});
        enqueue(r, stream[r],
                (struct hzp_transfer){.op = HZP_ALL_REDUCE,
                                      .type = HZP_WIRE_U64,
                                      .count = 1,
                                      .send = &n[r],
                                      .recv = &n[r]});
        assert_int_equal(fake_streams.event_record(event[r], stream[r]), 0);
        if (r < RANKS - 1) /* nothing ends before all ranks have come */
            assert_int_equal(fake_streams.event_query(event[r]), -1);
    }
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(fake_streams.event_query(event[r]), 0);
        for (int i = 0; i < 4; i++)
            assert_true(x[r][i] == (float)(60 + 4 * i));
        assert_int_equal(n[r], (4ull << 40) + 6);
        for (int k = 0; k < RANKS; k++)
            assert_int_equal(all[r][k], k + 1);
        for (size_t i = 0; i < N; i++) {
            float want = 1e-3f * (float)(i % 17);
            for (int m = 0; m < RANKS; m++)
                want += 1.0f / (float)(1 + (((size_t)r * N + i) * 7 + (size_t)m * 13) % 1021);
            assert_memory_equal(&sum[r][i], &want, sizeof(want));
        }
        fake_streams.event_close(event[r]);
        fake_streams.stream_close(stream[r]);
    }
    assert_int_equal(fake_launched(), 5 * RANKS);
    close_links(RANKS);
    enqueues = false;
    ctas = 0;
    enqueues = true;
    open_links(2);
    assert_int_equal(fake_max_ctas(), INT_MIN); /* as many as the library likes */
    close_links(2);
    enqueues = false;
}

/* A lost rank: who waits for the stream looks at the link, which aborts the communicator. */
static void test_enqueue_fails(void **state)
{
    float x[2] = {0};
    void *stream;
    hzp_ticket ticket;
    struct hzp_transfer t = {
        .op = HZP_ALL_REDUCE, .type = HZP_WIRE_F32, .count = 1, .send = &x[0], .recv = &x[0]};
    open_links(2);
    assert_int_equal(hzp_link_enqueue(gpu[0], &t, NULL, &why), HZP_EUNSUP); /* has tickets */
    assert_int_equal(hzp_link_enqueue(host[0], &t, NULL, &why), HZP_EUNSUP);
    close_links(2);
    enqueues = true;
    open_links(2);
    assert_int_equal(hzp_link_post(gpu[0], &t, &ticket, &why), HZP_EUNSUP);
    assert_int_equal(fake_streams.stream_open(&stream), 0);
    t.type = HZP_WIRE_BYTE;
    assert_int_equal(hzp_link_enqueue(gpu[0], &t, stream, &why), HZP_EINVAL);
    t.type = HZP_WIRE_F32;
    enqueue(0, stream, t);
    assert_int_equal(hzp_link_check(gpu[0], &why), HZP_OK);
    hzp_link_abort(host[0], 1, "rank 1: sends no heartbeat"); /* as the control thread does */
    assert_int_equal(fake_aborted(), 0);
    assert_int_equal(hzp_link_check(gpu[0], &why), HZP_EIO);
    assert_non_null(strstr(why.text, "sends no heartbeat"));
    assert_int_equal(fake_aborted(), 1);
    assert_int_equal(hzp_link_enqueue(gpu[0], &t, stream, &why), HZP_EIO);
    fake_streams.stream_close(stream);
    close_links(2);
    enqueues = false;
}

static void test_onto(void **state)
{
    uint64_t x[4] = {0}, y[2];
    hzp_ticket ticket;
    open_links(2);
    struct hzp_transfer t = {.op = HZP_REDUCE_SCATTER,
                             .type = HZP_WIRE_U64,
                             .count = 2,
                             .send = x,
                             .recv = y,
                             .onto = true};
    assert_int_equal(hzp_link_post(gpu[0], &t, &ticket, &why), HZP_EUNSUP);
    close_links(2);
}

static void opening_fails(int code, const char *text)
{
    struct hzp_link_nccl config = {.host = host[0], .streams = &fake_streams};
    int r = hzp_link_open_nccl(&config, &gpu[0], &why);
    assert_int_equal(r, code);
    if (!strstr(why.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, why.text);
    assert_int_equal(fake_open(), 0);
}

static void test_opening(void **state)
{
    static const char *const functions[] = {"GetUniqueId", "CommInitRankConfig", "stream_open",
                                            "event_open"};
    char *library = strdup(getenv("HZP_NCCL"));
    for (int i = 0; i < HZP_COUNT(functions); i++) {
        fake_reset();
        assert_int_equal(hzp_link_open_local(1, 0, 1, host, &why), HZP_OK);
        fake_plant(functions[i], 3);
        opening_fails(HZP_EIO, "planted");
        hzp_link_close(host[0]);
    }
    fake_reset();
    assert_int_equal(hzp_link_open_local(1, 0, 1, host, &why), HZP_OK);
    fake_set_version(21602);
    opening_fails(HZP_EUNSUP, "is version 2.16, 2.18 is needed");
    fake_reset();
    setenv("HZP_NCCL", "/nowhere/libnccl.so", 1);
    opening_fails(HZP_EUNSUP, "/nowhere/libnccl.so");
    setenv("HZP_NCCL", "libm.so.6", 1);
    opening_fails(HZP_EUNSUP, "libm.so.6 has no ncclGetVersion");
    setenv("HZP_NCCL", library, 1);
    struct hzp_link_nccl config = {.host = host[0]};
    assert_int_equal(hzp_link_open_nccl(&config, &gpu[0], &why), HZP_EUNSUP);
    hzp_link_close(host[0]);
    free(library);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),     cmocka_unit_test(test_no_spinning),
        cmocka_unit_test(test_one_order),      cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_failures),       cmocka_unit_test(test_onto),
        cmocka_unit_test(test_opening),        cmocka_unit_test(test_sums_in_order),
        cmocka_unit_test(test_wake_and_abort), cmocka_unit_test(test_enqueue),
        cmocka_unit_test(test_enqueue_fails),  cmocka_unit_test(test_lost_before_a_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
