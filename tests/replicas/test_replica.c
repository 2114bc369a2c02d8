/* SPDX-License-Identifier: Apache-2.0 */
/* A replica, and a front that the test plays and that is silent for too long. */
#include "api/front/replica.h"
#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/split/split.h"
#include "tests/replicas/world.h"

struct played {
    struct world w;
    struct hzp_pipe_place at;
    struct hzp_pipe *front; /* of the test */
    struct hzp_pipe_peer peer;
    struct hzp_replica_rank *replica;
    struct hzp_request *rq; /* that it is sent, when it comes */
    int32_t round, drawn;
    uint64_t id;
    bool ended;
    int32_t refused;
    int news; /* messages */
    float hidden[32];
};

/* What makes grammars: none, which limits nothing, or an error. */
static struct {
    _Atomic bool held;
    _Atomic int calls;
    int code;
} maker;

static int make_rules(void *ctx, const char *source, struct hzp_constraint **ret,
                      struct hzp_err_text *reterr)
{
    assert_string_equal(source, "what it is made of");
    atomic_fetch_add(&maker.calls, 1);
    while (atomic_load(&maker.held))
        usleep(1000);
    return maker.code;
}

/* After how long without a word of rank 0 a replica takes it for lost: a short time only where that
 * is tested, as a test may be held up for as long. */
static const double SHORT_S = 0.2, HANG_S = (double)HANG_NS * 1e-9;

static void start_replica(struct played *p, double silent_s, bool stays, bool embeds)
{
    struct world *w = &p->w;
    *p = (struct played){.round = -1};
    open_world(w, 600);
    snprintf(p->at.endpoint, sizeof(p->at.endpoint), "ipc://%s/other", w->folder);
    MUST(hzp_pipe_listen(&p->at, HZP_MESSAGE_MAX, &p->front, NULL));
    struct hzp_replica_config config = {.at = &p->at,
                                        .record = RECORD,
                                        .silent_s = silent_s,
                                        .meet_s = HANG_S,
                                        .hello = w->hello,
                                        .scheduler = w->scheduler,
                                        .loop = w->loop,
                                        .weights = w->m.weights,
                                        .split = hzp_loop_split(w->loop),
                                        .stays = stays,
                                        .make_rules = make_rules};
    static const int32_t prompt[PROMPT] = {1, 2, 3, 4, 5};
    MUST(hzp_request_create(prompt, PROMPT, embeds ? 0 : TOKENS, 0, false, &p->rq));
    if (embeds)
        MUST(hzp_request_pool(p->rq, HZP_POOLING_MEAN, 32));
    p->rq->ignore_eos = true;
    MUST(hzp_replica_start(&config, &p->replica, NULL));
}

static void close_replica(struct played *p)
{
    hzp_scheduler_abort(p->w.scheduler);
    hzp_replica_destroy(p->replica);
    hzp_pipe_close(p->front);
    hzp_request_destroy(p->rq);
    unlink(p->at.endpoint + strlen("ipc://"));
    close_world(&p->w);
}

static void end_replica(struct played *p, int result)
{
    assert_int_equal(hzp_replica_end(p->replica, NULL), result);
    close_replica(p);
}

static void tell(struct played *p)
{
    assert_int_equal(hzp_pipe_send(p->front, &p->peer, p->w.out.data, p->w.out.bytes), HZP_OK);
}

/* It is welcome, and gets the request. */
static void welcome(struct played *p, const char *data, size_t bytes)
{
    struct hzp_hello hello;
    const char *its_record;
    MUST(hzp_hello_read(data, bytes, &hello, &its_record, NULL));
    assert_string_equal(its_record, RECORD);
    if (hello.round == p->round)
        return;
    assert_int_equal(hello.round, p->round + 1);
    p->round = hello.round;
    p->drawn = 0;
    hzp_message_begin(&p->w.out, 'W');
    tell(p);
    hzp_request_write(&p->w.out, ++p->id, p->rq, 0);
    tell(p);
}

/* Only of the request that it was sent last. */
static void read_news(struct played *p, const char *data, size_t bytes)
{
    struct hzp_message_reader reader;
    struct hzp_replica_load load;
    struct hzp_news news;
    struct hzp_output out = {.token = 0};
    MUST(hzp_news_read(data, bytes, &reader, &load, NULL));
    while (hzp_news_next(&reader, &news)) {
        assert_int_equal(news.id, p->id);
        assert_int_equal(news.from, p->drawn);
        for (int32_t n = 0; n < news.count; n++)
            assert_true(hzp_news_token(&reader, &news, VOCAB, &out, NULL, NULL));
        assert_true(hzp_news_hidden(&reader, &news, p->hidden));
        p->drawn += news.count;
        p->ended = news.state == HZP_REQUEST_LENGTH;
        p->refused = news.refused;
    }
    p->news++;
    assert_false(reader.bad);
}

static char read_all(struct played *p)
{
    const char *data;
    size_t bytes;
    char last = 0;
    hzp_pipe_wait(p->front, 1);
    while (hzp_pipe_receive(p->front, &p->peer, &data, &bytes)) {
        last = data[0];
        if (last == 'H')
            welcome(p, data, bytes);
        else if (last == 'N')
            read_news(p, data, bytes);
    }
    return last;
}

static void knocks_again(void **state)
{
    struct played p;
    struct hzp_scheduler_stats stats;
    uint64_t end = hzp_now_ns() + HANG_NS;
    start_replica(&p, SHORT_S, true, false);
    while (!p.ended && hzp_now_ns() < end) {
        read_all(&p);
        if (p.round < 1)
            continue; /* it hears nothing, and computes nothing */
        hzp_plain_write(&p.w.out, 'B', &(struct hzp_front_beat){.finished = 1},
                        sizeof(struct hzp_front_beat));
        tell(&p);
        hzp_loop_turn(p.w.loop);
    }
    assert_int_equal(p.drawn, TOKENS);
    hzp_scheduler_read_stats(p.w.scheduler, &stats);
    assert_int_equal(stats.finished[HZP_REQUEST_CANCELED], p.round); /* of the rounds before */
    assert_int_equal(stats.finished[HZP_REQUEST_LENGTH], 1);
    hzp_message_begin(&p.w.out, 'G');
    tell(&p);
    while (read_all(&p) != 'G' && hzp_now_ns() < end)
        ;
    end_replica(&p, HZP_OK);
}

/* Another rank 0 has begun, which does not know it: it comes again at once. */
static void is_unknown(void **state)
{
    struct played p;
    uint64_t end = hzp_now_ns() + HANG_NS;
    start_replica(&p, HANG_S, false, false);
    while (!p.ended && hzp_now_ns() < end) {
        read_all(&p);
        if (p.round == 0 && p.news) {
            hzp_message_begin(&p.w.out, 'K');
            for (int i = 0; i < 3; i++) /* it may have sent more news meanwhile */
                tell(&p);
        } else if (p.round == 1) {
            hzp_loop_turn(p.w.loop);
        }
    }
    assert_true(p.ended);
    assert_int_equal(p.round, 1);
    assert_int_equal(p.drawn, TOKENS);
    hzp_message_begin(&p.w.out, 'G');
    tell(&p);
    while (read_all(&p) != 'G' && hzp_now_ns() < end)
        ;
    end_replica(&p, HZP_OK);
}

static void leaves(void **state)
{
    struct played p;
    uint64_t end = hzp_now_ns() + HANG_NS;
    start_replica(&p, SHORT_S, false, false);
    while (read_all(&p) != 'G' && hzp_now_ns() < end)
        ;
    assert_int_equal(p.round, 0);
    end_replica(&p, HZP_EIO);
}

/* An embedding is the one that rank 0 computes; and a policy is taken over. */
static void embeds(void **state)
{
    struct played p;
    struct hzp_policy policy = hzp_policy_default, got = policy;
    uint64_t end = hzp_now_ns() + HANG_NS;
    start_replica(&p, HANG_S, true, true);
    policy.train_share = 0.625;
    while ((!p.ended || got.train_share != policy.train_share) && hzp_now_ns() < end) {
        read_all(&p);
        if (p.round < 0)
            continue;
        hzp_plain_write(&p.w.out, 'P', &policy, sizeof(policy));
        tell(&p);
        hzp_loop_turn(p.w.loop);
        hzp_split_policy(hzp_loop_split(p.w.loop), &got);
    }
    assert_true(p.ended);
    assert_true(got.train_share == policy.train_share);
    MUST(hzp_front_submit(p.w.front, &p.rq, 1, NULL));
    while (!hzp_request_final(p.rq) && hzp_now_ns() < end)
        hzp_loop_turn(p.w.loop);
    assert_memory_equal(p.hidden, p.rq->hidden, sizeof(p.hidden));
    end_replica(&p, HZP_OK);
}

/* One turn of all: it hears that the front is alive. */
static void turn(struct played *p)
{
    read_all(p);
    if (p->round < 0)
        return;
    hzp_plain_write(&p->w.out, 'B', &(struct hzp_front_beat){.finished = 1},
                    sizeof(struct hzp_front_beat));
    tell(p);
    hzp_loop_turn(p->w.loop);
}

/* A request waits for its grammar, and nothing else does; one whose grammar cannot be made here is
 * refused. */
static void waits_for_rules(void **state)
{
    const struct hzp_token_rules rules = {.constraint = (struct hzp_constraint *)(uintptr_t)1,
                                          .source = "what it is made of"};
    for (int code = 0; code < 2; code++) {
        struct played p;
        uint64_t end = hzp_now_ns() + HANG_NS;
        atomic_store(&maker.held, true);
        atomic_store(&maker.calls, 0);
        maker.code = code ? HZP_EBUSY : HZP_OK;
        start_replica(&p, HANG_S, true, false);
        p.rq->tokens = &rules;
        while (!atomic_load(&maker.calls) && hzp_now_ns() < end)
            turn(&p);
        int before = p.news;
        while (p.news < before + 3 && hzp_now_ns() < end)
            turn(&p);
        assert_true(p.news >= before + 3 && !p.drawn && !p.ended && !p.refused);
        atomic_store(&maker.held, false);
        while (!p.ended && !p.refused && hzp_now_ns() < end)
            turn(&p);
        assert_int_equal(p.drawn, code ? 0 : TOKENS);
        assert_int_equal(p.refused, maker.code);
        assert_int_equal(atomic_load(&maker.calls), 1);
        hzp_message_begin(&p.w.out, 'G');
        tell(&p);
        while (read_all(&p) != 'G' && hzp_now_ns() < end)
            ;
        end_replica(&p, HZP_OK);
    }
}

static void *release_maker(void *arg)
{
    struct played *p = arg;
    uint64_t end = hzp_now_ns() + HANG_NS;
    while (read_all(p) != 'G' && hzp_now_ns() < end)
        ;
    p->ended = hzp_now_ns() < end;
    atomic_store(&maker.held, false);
    return NULL;
}

/* While a grammar is made, a request that is cancelled does not wait for it, and the end is told at
 * once. */
static void waits_no_longer(void **state)
{
    const struct hzp_token_rules rules = {.constraint = (struct hzp_constraint *)(uintptr_t)1,
                                          .source = "what it is made of"};
    struct played p;
    pthread_t thread;
    uint64_t end = hzp_now_ns() + HANG_NS;
    atomic_store(&maker.held, true);
    atomic_store(&maker.calls, 0);
    maker.code = HZP_OK;
    start_replica(&p, HANG_S, true, false);
    p.rq->tokens = &rules;
    while (!atomic_load(&maker.calls) && hzp_now_ns() < end)
        turn(&p);
    hzp_request_write(&p.w.out, ++p.id, p.rq, 0);
    tell(&p);
    hzp_plain_write(&p.w.out, 'C', &p.id, sizeof(p.id));
    tell(&p);
    while (!p.refused && hzp_now_ns() < end)
        turn(&p);
    assert_int_equal(p.refused, HZP_EBUSY);
    assert_int_equal(atomic_load(&maker.calls), 1);
    MUST(hzp_thread_start(&thread, "front", release_maker, &p));
    MUST(hzp_replica_end(p.replica, NULL));
    pthread_join(thread, NULL);
    assert_true(p.ended);
    close_replica(&p);
}

/* Over TCP nobody listens or connects without a key, or with one that is none. */
static void tcp_needs_a_key(void **state)
{
    static const char *const key[] = {"", "no key of forty digits"};
    for (int i = 0; i < HZP_COUNT(key); i++) {
        struct hzp_pipe_place at = {.endpoint = "tcp://127.0.0.1:29500"};
        struct hzp_pipe *pipe = NULL;
        struct hzp_err_text err = {0};
        snprintf(at.key, sizeof(at.key), "%s", key[i]);
        assert_int_equal(hzp_pipe_listen(&at, HZP_MESSAGE_MAX, &pipe, &err), HZP_EINVAL);
        assert_non_null(strstr(err.text, i ? "the key is not one" : "there is no key"));
        assert_int_equal(hzp_pipe_connect(&at, HZP_MESSAGE_MAX, &pipe, &err), HZP_EINVAL);
        assert_null(pipe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knocks_again),    cmocka_unit_test(is_unknown),
        cmocka_unit_test(leaves),          cmocka_unit_test(tcp_needs_a_key),
        cmocka_unit_test(waits_for_rules), cmocka_unit_test(waits_no_longer),
        cmocka_unit_test(embeds)};
    hzp_log_set_level(HZP_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
