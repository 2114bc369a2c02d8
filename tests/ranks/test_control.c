/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ranks/test_control.c - ranks of one process that meet over real sockets: agreement, every
 * reason to refuse one, loss, goodbye, keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <zmq.h>

#include "base/log.h"
#include "base/thread.h"
#include "base/timeline.h"
#include "mesh/peers/control.h"
#include "tests/links/links.h"

enum { RANKS = 3 };

struct rank {
    struct hzp_control_config config;
    struct hzp_control *control;
    const char *record;
    char share[8];
    struct hzp_link *link;
    char endpoint[HZP_PIPE_ENDPOINT];
    int result;
    struct hzp_err_text why;
    struct hzp_wake wake; /* poked by lost */
    int lost_calls, lost_rank;
};

static struct rank rank[RANKS];
static struct hzp_link *link_of[RANKS];
static char key[HZP_PIPE_KEY];

static void on_lost(void *ctx, int lost, const char *why)
{
    struct rank *r = ctx;
    r->lost_calls++;
    r->lost_rank = lost;
    hzp_wake_poke(&r->wake);
}

static void *meet(void *arg)
{
    struct rank *r = arg;
    r->result =
        hzp_control_meet(r->control, r->record, r->share, sizeof(r->share), r->link, &r->why);
    return NULL;
}

static void prepare(int ranks)
{
    memset(rank, 0, sizeof(rank));
    for (int i = 0; i < ranks; i++) {
        rank[i].config = (struct hzp_control_config){.rank = i,
                                                     .ranks = ranks,
                                                     .silent_s = 600,
                                                     .meet_s = 600,
                                                     .lost = on_lost,
                                                     .ctx = &rank[i]};
        rank[i].record = "build 1\n--lr 0.1\n";
        rank[i].lost_rank = -1;
        hzp_wake_init(&rank[i].wake);
    }
    memcpy(rank[0].share, "shared!", 8);
}

static void listen_and_connect(int ranks)
{
    char *endpoint = rank[0].endpoint;
    snprintf(endpoint, HZP_PIPE_ENDPOINT, "tcp://127.0.0.1:0");
    assert_int_equal(hzp_control_listen(&rank[0].config, endpoint, &rank[0].control, &rank[0].why),
                     HZP_OK);
    for (int i = 1; i < ranks; i++)
        assert_int_equal(
            hzp_control_connect(&rank[i].config, endpoint, &rank[i].control, &rank[i].why), HZP_OK);
}

static void meet_all(int ranks)
{
    pthread_t thread[RANKS];
    for (int i = 0; i < ranks; i++)
        assert_int_equal(hzp_thread_start(&thread[i], "meet", meet, &rank[i]), HZP_OK);
    for (int i = 0; i < ranks; i++)
        pthread_join(thread[i], NULL);
}

static void close_all(int ranks)
{
    for (int i = 0; i < ranks; i++) {
        hzp_control_close(rank[i].control);
        hzp_wake_fini(&rank[i].wake);
    }
}

static void all_met(int ranks)
{
    for (int i = 0; i < ranks; i++) {
        if (rank[i].result < 0)
            fail_msg("rank %d: %s", i, rank[i].why.text);
        assert_string_equal(rank[i].share, "shared!");
    }
}

/* Waits until rank 0 knows something of another rank: no time limit, the condition must come. */
#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        hzp_control_state(rank[0].control, 1, &state_of_1);                                        \
        usleep(1000);                                                                              \
    } while (!(condition))
static struct hzp_control_state state_of_1;

static void test_meet(void **state)
{
    char why[64];
    for (int with_key = 0; with_key < 2; with_key++) {
        prepare(RANKS);
        for (int i = 0; i < RANKS; i++)
            rank[i].config.key = with_key ? key : NULL;
        listen_and_connect(RANKS);
        meet_all(RANKS);
        all_met(RANKS);
        assert_int_equal(hzp_control_lost(rank[1].control, why, sizeof(why)), -1);
        hzp_control_close(rank[1].control);
        rank[1].control = NULL;
        UNTIL(state_of_1.left); /* a goodbye is no loss */
        assert_false(state_of_1.lost);
        assert_int_equal(rank[0].lost_calls + rank[2].lost_calls, 0);
        close_all(RANKS);
    }
}

/* How often the piece occurs.  One look at each byte: with the address sanitizer each call of
 * strstr() reads to the end of the text: minutes for megabytes with many occurrences. */
static size_t count_of(const char *text, size_t size, const char *piece)
{
    size_t n = strlen(piece), count = 0;
    for (size_t at = 0; at + n <= size; at++)
        count += text[at] == piece[0] && !memcmp(text + at, piece, n);
    return count;
}

/* Rank 0's trace has what each rank recorded.  (All are of one process here, so each tells the same
 * story; the clocks are one, too.) */
static void test_timeline(void **state)
{
    char *text = NULL;
    size_t size = 0;
    struct hzp_track *track = hzp_track_open("planted", 1 << 15, false);
    for (uint64_t i = 0; i < 1 << 15; i++) /* more than one message */
        hzp_track_add(track, "span", hzp_now_ns(), hzp_now_ns(), i);
    prepare(RANKS);
    listen_and_connect(RANKS);
    meet_all(RANKS);
    all_met(RANKS);
    UNTIL(state_of_1.ahead_s != 0); /* it has compared its clock, never to the nanosecond */
    assert_true(state_of_1.ahead_s > -60 && state_of_1.ahead_s < 60);
    FILE *file = open_memstream(&text, &size);
    struct hzp_chrome chrome = {.out = file};
    assert_int_equal(hzp_control_timeline(rank[0].control, 0, &chrome), HZP_OK);
    fclose(file);
    for (int i = 0; i < RANKS; i++) {
        char piece[32];
        snprintf(piece, sizeof(piece), "\"ph\":\"X\",\"pid\":%d,", i);
        assert_int_equal(count_of(text, size, piece), 1 << 15);
    }
    assert_null(strstr(text, "no answer"));
    free(text);
    hzp_track_close(track);
    close_all(RANKS);
}

/* The link's progress is known to rank 0, and a failure of one link is told to all, once. */
static void test_link(void **state)
{
    static float x[4];
    hzp_ticket ticket;
    struct hzp_transfer t = {
        .op = HZP_ALL_REDUCE, .type = HZP_WIRE_F32, .count = 4, .send = x, .recv = x};
    assert_int_equal(hzp_link_open_local(RANKS, 0, 1, link_of, NULL), HZP_OK);
    prepare(RANKS);
    for (int i = 0; i < RANKS; i++)
        rank[i].link = link_of[i];
    listen_and_connect(RANKS);
    meet_all(RANKS);
    all_met(RANKS);
    assert_int_equal(hzp_link_post(link_of[1], &t, &ticket, NULL), HZP_OK);
    UNTIL(state_of_1.posted == 1 && state_of_1.missing == 0);
    assert_int_equal(state_of_1.done, 0);
    assert_true(state_of_1.known && state_of_1.waits_s >= 0);
    assert_int_equal(hzp_link_post(link_of[0], &t, &ticket, NULL), HZP_OK);
    UNTIL(state_of_1.missing == 2);
    hzp_link_abort(link_of[1], 2, "planted");
    for (int i = 0; i < RANKS; i++) {
        char why[64];
        hzp_wake_wait(&rank[i].wake, UINT64_MAX);
        assert_int_equal(rank[i].lost_calls, 1);
        assert_int_equal(rank[i].lost_rank, 2);
        assert_int_equal(hzp_control_lost(rank[i].control, why, sizeof(why)), 2);
        assert_string_equal(why, "planted");
    }
    close_all(RANKS);
    for (int i = 0; i < RANKS; i++)
        hzp_link_close(link_of[i]);
}

/* A rank 1 that says hello, and nothing else. */
struct silent {
    void *context, *socket;
    struct {
        char letter, magic[7];
        int32_t rank, ranks, again;
        uint16_t port[HZP_LINK_ZMQ_RANKS_MAX];
        char record[32];
    } hello;
};

static void silent_open(struct silent *s)
{
    memset(&s->hello, 0, sizeof(s->hello));
    memcpy(&s->hello, "Hhzpctl3", 8);
    s->hello.rank = 1;
    s->hello.ranks = 2;
    snprintf(s->hello.record, sizeof(s->hello.record), "build 1\n--lr 0.1\n");
    s->context = zmq_ctx_new();
    s->socket = zmq_socket(s->context, ZMQ_DEALER);
    assert_int_equal(zmq_connect(s->socket, rank[0].endpoint), 0);
}

static void silent_close(struct silent *s)
{
    zmq_close(s->socket);
    zmq_ctx_term(s->context);
}

/* Rank 1 met and then says nothing: a socket of its own that never sends a heartbeat. */
static void test_silence(void **state)
{
    struct silent silent;
    struct hzp_link_state link;
    char why[128];
    prepare(2);
    rank[0].config.silent_s = 1;
    assert_int_equal(hzp_link_open_local(2, 0, 1, link_of, NULL), HZP_OK);
    rank[0].link = link_of[0];
    listen_and_connect(1);
    silent_open(&silent);
    assert_true(zmq_send(silent.socket, &silent.hello, sizeof(silent.hello), 0) > 0);
    meet_all(1);
    assert_int_equal(rank[0].result, HZP_OK);
    hzp_wake_wait(&rank[0].wake, UINT64_MAX);
    assert_int_equal(hzp_control_lost(rank[0].control, why, sizeof(why)), 1);
    assert_non_null(strstr(why, "no heartbeat for"));
    hzp_link_state(link_of[0], &link);
    assert_true(link.failed && link.failed_rank == 1);
    silent_close(&silent);
    close_all(1);
    hzp_wake_fini(&rank[1].wake);
    for (int i = 0; i < 2; i++)
        hzp_link_close(link_of[i]);
}

/* Sends a hello as rank 1 of three, and waits for the answer, if one is due. */
static char say_hello(struct silent *s, const char *record, bool again, bool answered)
{
    char answer[HZP_CONTROL_RECORD + 1024] = "";
    silent_open(s);
    s->hello.ranks = 3;
    s->hello.again = again;
    snprintf(s->hello.record, sizeof(s->hello.record), "%s", record);
    assert_true(zmq_send(s->socket, &s->hello, sizeof(s->hello), 0) > 0);
    if (answered)
        assert_true(zmq_recv(s->socket, answer, sizeof(answer), 0) > 0);
    return answer[0];
}

/* Ranks meet again, or a process says that it replaces another: of two that come as one rank the
 * later one counts.  Where they meet again, one that cannot be accepted does not end the meeting.
 */
static void test_again(void **state)
{
    static const char right[] = "build 1\n--lr 0.1\n";
    for (int newcomer = 0; newcomer < 2; newcomer++) {
        struct silent first, second, wrong;
        char answer[HZP_CONTROL_RECORD];
        pthread_t thread;
        prepare(3);
        rank[0].config.again = !newcomer;
        listen_and_connect(1);
        assert_int_equal(
            hzp_control_connect(&rank[2].config, rank[0].endpoint, &rank[2].control, &rank[2].why),
            HZP_OK);
        assert_int_equal(hzp_thread_start(&thread, "meet", meet, &rank[0]), HZP_OK);
        /* Rank 2 is missing, so the meeting goes on. */
        if (!newcomer)
            assert_int_equal(say_hello(&wrong, "build 2\n--lr 0.1\n", false, true), 'X');
        say_hello(&first, right, newcomer, false);
        say_hello(&second, right, newcomer, false);
        zmq_pollitem_t item[2] = {{.socket = first.socket, .events = ZMQ_POLLIN},
                                  {.socket = second.socket, .events = ZMQ_POLLIN}};
        assert_int_equal(zmq_poll(item, 2, -1), 1); /* whichever hello arrived first */
        struct silent *older = item[0].revents ? &first : &second;
        struct silent *newer = item[0].revents ? &second : &first;
        assert_true(zmq_recv(older->socket, answer, sizeof(answer), 0) > 0);
        assert_memory_equal(answer, "Xanother process has come as this rank", 38);
        meet(&rank[2]);
        pthread_join(thread, NULL);
        for (int i = 0; i < 3; i += 2)
            if (rank[i].result < 0)
                fail_msg("rank %d: %s", i, rank[i].why.text);
        assert_true(zmq_recv(newer->socket, answer, sizeof(answer), 0) > 0);
        assert_int_equal(answer[0], 'W');
        silent_close(&first);
        silent_close(&second);
        if (!newcomer)
            silent_close(&wrong);
        close_all(3);
    }
}

static atomic_int turns_of_1; /* in which rank 1 has waited */

static bool is_stopped(void *ctx)
{
    struct rank *r = ctx;
    if (r->config.rank)
        atomic_fetch_add(&turns_of_1, 1);
    return r->config.rank == 0 && atomic_load(&turns_of_1) > 15;
}

/* Rank 0 is stopped while it waits for rank 2: it ends at once, and rank 1, which has come, does,
 * too. */
static void test_stopped(void **state)
{
    pthread_t thread[2];
    prepare(3);
    for (int i = 0; i < 2; i++)
        rank[i].config.stop = is_stopped;
    listen_and_connect(2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hzp_thread_start(&thread[i], "meet", meet, &rank[i]), HZP_OK);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(rank[0].result, HZP_ECANCELED);
    assert_string_equal(rank[0].why.text, "stopped while waiting for other ranks");
    assert_int_equal(rank[1].result, HZP_ECANCELED);
    assert_string_equal(rank[1].why.text, "rank 0 has ended");
    close_all(3);
}

/* A process comes as a rank whose loss is not known yet: it is not refused, and taken in when all
 * meet again.  silent: the loss is found by silence, else by the link. */
static void comes_late(bool silent)
{
    pthread_t thread;
    struct silent before;
    prepare(2);
    rank[0].config.silent_s = silent ? 2 : 600;
    assert_int_equal(hzp_link_open_local(2, 0, 1, link_of, NULL), HZP_OK);
    rank[0].link = link_of[0];
    listen_and_connect(silent ? 1 : 2);
    if (silent) {
        silent_open(&before);
        assert_true(zmq_send(before.socket, &before.hello, sizeof(before.hello), 0) > 0);
    }
    meet_all(silent ? 1 : 2);
    all_met(silent ? 1 : 2);
    struct rank late = rank[1];
    late.config.lost = NULL;
    assert_int_equal(hzp_control_connect(&late.config, rank[0].endpoint, &late.control, &late.why),
                     HZP_OK);
    assert_int_equal(hzp_thread_start(&thread, "meet", meet, &late), HZP_OK);
    usleep(100000); /* its hello comes before the loss, which it then waits for */
    if (!silent)
        hzp_link_abort(link_of[0], 1, "planted");
    hzp_wake_wait(&rank[0].wake, UINT64_MAX);
    if (silent)
        silent_close(&before);
    hzp_control_close(rank[1].control);
    rank[1].control = NULL;
    hzp_control_close(rank[0].control);
    rank[0].link = NULL;
    rank[0].config.again = true;
    assert_int_equal(
        hzp_control_listen(&rank[0].config, rank[0].endpoint, &rank[0].control, &rank[0].why),
        HZP_OK);
    meet(&rank[0]);
    pthread_join(thread, NULL);
    all_met(1);
    if (late.result < 0)
        fail_msg("%s", late.why.text);
    hzp_control_close(late.control);
    close_all(2);
    for (int i = 0; i < 2; i++)
        hzp_link_close(link_of[i]);
}

static void test_late(void **state)
{
    comes_late(false);
    comes_late(true);
}

static void refused(int i, const char *text)
{
    assert_int_equal(rank[i].result, HZP_EINVAL);
    if (strcmp(rank[i].why.text, text))
        fail_msg("rank %d says \"%s\", not \"%s\"", i, rank[i].why.text, text);
}

static void test_disagreement(void **state)
{
    static const struct {
        const char *record, *text;
    } cases[] = {
        {"build 2\n--lr 0.1\n", "the ranks do not agree: rank 1 has build 2, rank 0 has build 1"},
        {"build 1\n--lr 0.2\n", "the ranks do not agree: rank 1 has --lr 0.2, rank 0 has --lr 0.1"},
        {"build 1\n", "the ranks do not agree: rank 1 has nothing more, rank 0 has --lr 0.1"},
        {"build 1\n--lr 0.1\nx 1\n",
         "the ranks do not agree: rank 1 has x 1, rank 0 has nothing more"}};
    for (int c = 0; c < HZP_COUNT(cases); c++) {
        prepare(2);
        rank[1].record = cases[c].record;
        listen_and_connect(2);
        meet_all(2);
        for (int i = 0; i < 2; i++)
            refused(i, cases[c].text);
        close_all(2);
    }
}

static void test_numbers(void **state)
{
    prepare(2);
    rank[1].config.ranks = 3;
    listen_and_connect(2);
    meet_all(2);
    for (int i = 0; i < 2; i++)
        refused(i, "rank 1 was started as one of 3 ranks, rank 0 as one of 2");
    close_all(2);

    prepare(3);
    rank[2].config.rank = 1; /* two processes that both are rank 1 */
    listen_and_connect(3);
    meet_all(3);
    refused(0, "rank 1 came twice");
    close_all(3);

    prepare(2);
    rank[0].config.meet_s = 0.3;
    listen_and_connect(1);
    meet_all(1);
    assert_int_equal(rank[0].result, HZP_EIO);
    assert_string_equal(rank[0].why.text, "of 2 ranks these did not connect within 0 s: 1");
    close_all(1);
}

/* Without a key only the loopback interface is allowed; a rank with another key is refused. */
static void test_keys(void **state)
{
    char other[HZP_PIPE_KEY];
    prepare(2);
    snprintf(rank[0].endpoint, sizeof(rank[0].endpoint), "tcp://x:0");
    assert_int_equal(
        hzp_control_listen(&rank[0].config, rank[0].endpoint, &rank[0].control, &rank[0].why),
        HZP_EINVAL);
    assert_string_equal(rank[0].why.text,
                        "messages between ranks: tcp://x:0 is not loopback, and there is no key");
    assert_int_equal(hzp_pipe_make_key(other, NULL), HZP_OK);
    rank[0].config.key = key;
    rank[0].config.meet_s = rank[1].config.meet_s = 1;
    rank[1].config.key = other;
    listen_and_connect(2);
    meet_all(2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(rank[i].result, HZP_EIO);
    close_all(2);
    prepare(2);
    rank[0].config.key = "short";
    assert_int_equal(
        hzp_control_listen(&rank[0].config, rank[0].endpoint, &rank[0].control, &rank[0].why),
        HZP_EINVAL);
    for (int i = 0; i < 2; i++)
        hzp_wake_fini(&rank[i].wake);
}

/* What strangers send is ignored. */
static void test_strangers(void **state)
{
    prepare(2);
    listen_and_connect(2);
    void *context = zmq_ctx_new(), *stranger = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_connect(stranger, rank[0].endpoint), 0);
    static char noise[4096];
    for (size_t n = 0; n < sizeof(noise); n++)
        noise[n] = (char)(n * 37);
    for (size_t n = 0; n < 64; n++) {
        noise[0] = "HBLGWXPQSD"[n % 10];
        assert_true(zmq_send(stranger, noise, n * n, n % 5 ? 0 : ZMQ_SNDMORE) >= 0);
    }
    meet_all(2);
    all_met(2);
    for (size_t n = 0; n < 64; n++) {
        noise[0] = "HBLGWXPQSD"[n % 10];
        assert_true(zmq_send(stranger, noise, n * n, n % 5 ? 0 : ZMQ_SNDMORE) >= 0);
    }
    hzp_control_close(rank[1].control);
    rank[1].control = NULL;
    UNTIL(state_of_1.left);
    assert_int_equal(rank[0].lost_calls, 0);
    int linger = 0;
    zmq_setsockopt(stranger, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_close(stranger);
    zmq_ctx_term(context);
    close_all(2);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meet),      cmocka_unit_test(test_link),
        cmocka_unit_test(test_silence),   cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_keys),
        cmocka_unit_test(test_strangers), cmocka_unit_test(test_timeline),
        cmocka_unit_test(test_again),     cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_late),
    };
    hzp_log_set_level(HZP_LOG_WARN);
    if (hzp_pipe_make_key(key, NULL) < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
