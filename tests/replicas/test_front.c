/* SPDX-License-Identifier: Apache-2.0 */
/* The front and a replica that the test plays itself: what a replica may say, and what becomes of
 * its requests when it says something else, or nothing. */
#include "base/log.h"
#include "base/thread.h"
#include "tests/replicas/world.h"

/* ---- the replica ---- */

static struct hzp_request *submit_asking(struct world *w, struct hzp_demands demands)
{
    static const int32_t prompt[PROMPT] = {1, 2, 3, 4, 5};
    struct hzp_request *rq;
    MUST(hzp_request_create(prompt, PROMPT, TOKENS, 0, false, &rq));
    rq->sampling.temperature = 0;
    rq->ignore_eos = true;
    rq->demands = demands;
    MUST(hzp_front_submit(w->front, &rq, 1, NULL));
    return rq;
}

static struct hzp_request *submit(struct world *w)
{
    return submit_asking(w, (struct hzp_demands){.max_staleness = -1});
}

/* The id of a request that has arrived; it is read and let go of.  least: the version that it may
 * be computed with, or newer ones. */
static uint64_t take_asking(struct world *w, uint64_t least)
{
    const struct hzp_message_limits limits = {VOCAB, POSITIONS, 32};
    const char *data;
    size_t bytes;
    uint64_t id;
    struct hzp_request *rq;
    struct hzp_sent_rules rules = {.rules = {.bads = 0}};
    hear(w, 'R', &data, &bytes);
    MUST(hzp_request_read(data, bytes, &limits, &id, &rq, &rules, NULL));
    assert_int_equal(rq->prompt_count, PROMPT);
    assert_int_equal(rq->max_tokens, TOKENS);
    assert_int_equal(rq->demands.min_version, least);
    hzp_request_destroy(rq);
    return id;
}

static uint64_t take(struct world *w)
{
    return take_asking(w, 0);
}

static void begin_news(struct world *w)
{
    const struct hzp_replica_load load = {.version = 1};
    hzp_news_begin(&w->out, &load);
}

/* So many tokens from `from` on, the ones that the model draws (tokens), by a version; state: as in
 * the news. */
static void add_news_of(struct world *w, uint64_t id, int32_t from, int32_t count,
                        const int32_t *tokens, int32_t state, uint64_t version)
{
    struct hzp_output out[2 * TOKENS];
    struct hzp_request rq = {.out = out};
    struct hzp_news news = {
        .id = id, .from = from, .count = count, .state = state, .stop_token = -1};
    for (int32_t n = 0; n < from + count; n++)
        out[n] = (struct hzp_output){
            .token = tokens[n % TOKENS], .version = version, .prompt_version = 1, .logprob = -1};
    hzp_news_add(&w->out, &news, &rq);
}

static void add_news(struct world *w, uint64_t id, int32_t from, int32_t count,
                     const int32_t *tokens, int32_t state)
{
    add_news_of(w, id, from, count, tokens, state, 1);
}

/* ---- waiting ---- */

static bool is_up(struct world *w)
{
    struct hzp_front_rank rank;
    MUST(hzp_front_rank(w->front, 1, &rank));
    assert_true(rank.up || rank.why[0]);
    return rank.up;
}

/* Turns the engine until the request is final. */
static void finish(struct world *w, struct hzp_request *rq)
{
    uint64_t end = hzp_now_ns() + HANG_NS;
    while (!hzp_request_final(rq) && hzp_now_ns() < end)
        if (!hzp_loop_turn(w->loop))
            hzp_loop_sleep(w->loop, 1000000);
    assert_true(hzp_request_final(rq));
    hzp_request_await_release(rq);
}

static void until_tokens(const struct hzp_request *rq, int32_t count)
{
    uint64_t end = hzp_now_ns() + HANG_NS;
    while (atomic_load(&rq->out_count) < count && hzp_now_ns() < end)
        usleep(1000);
    assert_int_equal(atomic_load(&rq->out_count), count);
}

/* What this process draws. */
static void draw(struct world *w, int32_t tokens[TOKENS])
{
    struct hzp_request *rq = submit(w);
    finish(w, rq);
    assert_int_equal(atomic_load(&rq->state), HZP_REQUEST_LENGTH);
    for (int n = 0; n < TOKENS; n++)
        tokens[n] = rq->out[n].token;
    hzp_request_destroy(rq);
}

static void expect(struct world *w, struct hzp_request *rq, const int32_t tokens[TOKENS])
{
    finish(w, rq);
    assert_int_equal(atomic_load(&rq->state), HZP_REQUEST_LENGTH);
    assert_true(atomic_load(&rq->whole));
    for (int n = 0; n < TOKENS; n++)
        assert_int_equal(rq->out[n].token, tokens[n]);
    hzp_request_destroy(rq);
}

/* ---- tests ---- */

static void computes(void **state)
{
    struct world w;
    int32_t tokens[TOKENS];
    open_world(&w, 600);
    draw(&w, tokens); /* nobody else is there */
    come_up(&w);
    struct hzp_request *rq = submit(&w);
    uint64_t id = take(&w);
    begin_news(&w);
    add_news(&w, id, 0, 3, tokens, HZP_REQUEST_RUNNING);
    say(&w);
    until_tokens(rq, 3);
    assert_false(hzp_request_final(rq) || atomic_load(&rq->whole));
    assert_true(hzp_front_source(w.front)->busy(hzp_front_source(w.front)));
    begin_news(&w);
    add_news(&w, id, 3, TOKENS - 3, tokens, HZP_REQUEST_LENGTH);
    say(&w);
    expect(&w, rq, tokens);
    assert_false(hzp_front_source(w.front)->busy(hzp_front_source(w.front)));
    /* A request that was cancelled meanwhile. */
    rq = submit(&w);
    id = take(&w);
    const char *data;
    size_t bytes;
    uint64_t canceled;
    atomic_store(&rq->cancel, true);
    hzp_front_poke(w.front);
    hear(&w, 'C', &data, &bytes);
    MUST(hzp_plain_read(data, bytes, &canceled, sizeof(canceled)));
    assert_int_equal(canceled, id);
    begin_news(&w);
    add_news(&w, id, 0, 1, tokens, HZP_REQUEST_CANCELED);
    say(&w);
    finish(&w, rq);
    assert_int_equal(atomic_load(&rq->state), HZP_REQUEST_CANCELED);
    hzp_request_destroy(rq);
    /* A drained rank gets none. */
    MUST(hzp_front_drain(w.front, 1, true));
    draw(&w, tokens);
    assert_int_equal(hzp_front_drain(w.front, 2, true), HZP_ENOENT);
    MUST(hzp_front_drain(w.front, 1, false));
    rq = submit(&w);
    take(&w);
    hzp_front_stop(w.front, true); /* in a hurry */
    finish(&w, rq);
    assert_int_equal(atomic_load(&rq->state), HZP_REQUEST_FAILED);
    hzp_request_destroy(rq);
    close_world(&w);
}

static atomic_int late; /* calls of wake after the front had let go of the request */

static void count_late(void *ctx, bool more)
{
    const struct hzp_request *rq = ctx;
    atomic_fetch_add(&late, atomic_load(&rq->let_go));
}

/* One message with several entries of a request: who submitted it may free it once the front has
 * let go of it, so that happens after the last wake. */
static void lets_go_last(void **state)
{
    struct world w;
    int32_t tokens[TOKENS];
    open_world(&w, 600);
    draw(&w, tokens);
    come_up(&w);
    struct hzp_request *rq = submit(&w);
    uint64_t id = take(&w);
    rq->wake = count_late;
    rq->wake_ctx = rq;
    begin_news(&w);
    add_news(&w, id, 0, 1, tokens, HZP_REQUEST_RUNNING);
    add_news(&w, id, 1, 1, tokens, HZP_REQUEST_RUNNING);
    add_news(&w, id, 2, TOKENS - 2, tokens, HZP_REQUEST_LENGTH);
    say(&w);
    finish(&w, rq);
    assert_true(is_up(&w)); /* takes the front's lock: every wake has returned */
    assert_int_equal(atomic_load(&late), 0);
    expect(&w, rq, tokens);
    close_world(&w);
}

/* What the replica does wrong in the middle of a request. */
enum wrong {
    GOODBYE,
    DIES,
    REFUSES,
    FAILS,
    CUT,
    SKIPS,
    TOO_MANY,
    NO_END,
    NO_TOKEN,
    OTHER_TOPS,
    NOTHING,
    OTHER_VERSION,
    WRONGS
};

static void do_wrong(struct world *w, enum wrong wrong, uint64_t id, const int32_t *tokens)
{
    int32_t bad[TOKENS];
    const struct hzp_replica_load other = {.version = 1, .optimizer_step = 5};
    memcpy(bad, tokens, sizeof(bad));
    bad[2] = VOCAB;
    begin_news(w);
    if (wrong == GOODBYE)
        hzp_message_begin(&w->out, 'G');
    else if (wrong == REFUSES)
        hzp_news_add(&w->out, &(struct hzp_news){.id = id, .from = 2, .refused = HZP_EBUSY}, NULL);
    else if (wrong == FAILS)
        add_news(w, id, 2, 1, tokens, HZP_REQUEST_FAILED);
    else if (wrong == SKIPS)
        add_news(w, id, 3, 1, tokens, HZP_REQUEST_RUNNING);
    else if (wrong == TOO_MANY)
        add_news(w, id, 2, TOKENS, tokens, HZP_REQUEST_LENGTH);
    else if (wrong == NO_END)
        add_news(w, id, 2, TOKENS - 2, tokens, HZP_REQUEST_RUNNING);
    else if (wrong == NO_TOKEN)
        add_news(w, id, 2, 1, bad, HZP_REQUEST_RUNNING);
    else if (wrong == OTHER_TOPS)
        hzp_news_add(&w->out, &(struct hzp_news){.id = id, .from = 2, .tops = 3}, NULL);
    else if (wrong == NOTHING)
        hzp_message_begin(&w->out, 'N');
    else if (wrong == OTHER_VERSION)
        hzp_news_begin(&w->out, &other);
    else
        add_news(w, id, 2, 2, tokens, HZP_REQUEST_RUNNING);
    if (wrong == CUT)
        w->out.bytes -= 3;
    if (wrong != DIES) {
        say(w);
        return;
    }
    hzp_pipe_close(w->pipe);
    w->pipe = NULL;
}

static void goes_wrong(void **state)
{
    for (int wrong = 0; wrong < WRONGS; wrong++) {
        struct world w;
        int32_t tokens[TOKENS];
        open_world(&w, 600);
        draw(&w, tokens);
        come_up(&w);
        struct hzp_request *rq = submit(&w);
        uint64_t id = take(&w);
        begin_news(&w);
        add_news(&w, id, 0, 2, tokens, HZP_REQUEST_RUNNING);
        say(&w);
        until_tokens(rq, 2);
        do_wrong(&w, (enum wrong)wrong, id, tokens);
        expect(&w, rq, tokens); /* this process has gone on */
        assert_int_equal(is_up(&w), wrong == REFUSES || wrong == FAILS);
        if (!is_up(&w))
            draw(&w, tokens);
        close_world(&w);
    }
}

static void refused(void **state)
{
    struct world w;
    const char *data;
    size_t bytes;
    open_world(&w, 600);
    for (int i = 0; i < 8; i++) {
        struct hzp_hello h = w.hello;
        h.rank = i == 0 ? 0 : i == 1 ? 2 : 1;
        h.ranks = i == 2 ? 3 : 2;
        h.vocab += i == 3;
        h.positions -= i == 4;
        h.checksum += i == 5;
        hzp_hello_write(&w.out, &h, i == 6 ? "build 1\nmodel 3\n" : RECORD);
        if (i == 7)
            w.out.bytes -= 2;
        say(&w);
        hear(&w, 'X', &data, &bytes);
        assert_true(bytes > 8);
        if (i == 6)
            assert_non_null(memmem(data, bytes, "model 3", 7));
        assert_false(is_up(&w));
    }
    /* Who has not said hello is not heard. */
    begin_news(&w);
    say(&w);
    hzp_message_begin(&w.out, 'G');
    say(&w);
    come_up(&w);
    assert_true(is_up(&w));
    close_world(&w);
}

static void silent(void **state)
{
    struct world w;
    uint64_t end = hzp_now_ns() + HANG_NS;
    open_world(&w, 0.1);
    come_up(&w);
    while (is_up(&w) && hzp_now_ns() < end)
        usleep(1000);
    assert_false(is_up(&w));
    close_world(&w);
}

/* Another process comes as the same rank before the first one's end was noticed. */
static void replaced(void **state)
{
    struct world w;
    int32_t tokens[TOKENS];
    open_world(&w, 600);
    draw(&w, tokens);
    come_up(&w);
    struct hzp_request *rq = submit(&w);
    uint64_t id = take(&w);
    struct hzp_pipe *first = w.pipe;
    MUST(hzp_pipe_connect(&w.at, HZP_MESSAGE_MAX, &w.pipe, NULL));
    come_up(&w);
    uint64_t again = take(&w); /* it gets the request of the first one */
    assert_int_not_equal(again, id);
    begin_news(&w);
    add_news(&w, id, 0, 1, tokens, HZP_REQUEST_FAILED); /* the first one is not heard any more */
    assert_int_equal(hzp_pipe_send(first, NULL, w.out.data, w.out.bytes), HZP_OK);
    begin_news(&w);
    add_news(&w, again, 0, TOKENS, tokens, HZP_REQUEST_LENGTH);
    say(&w);
    expect(&w, rq, tokens);
    hzp_pipe_close(first);
    close_world(&w);
}

/* A replica that has not heard the front for too long says hello again. */
static void comes_again(void **state)
{
    struct world w;
    int32_t tokens[TOKENS];
    open_world(&w, 600);
    draw(&w, tokens);
    come_up(&w);
    struct hzp_request *rq = submit(&w);
    uint64_t id = take(&w);
    hzp_hello_write(&w.out, &w.hello, RECORD); /* this one only came late */
    say(&w);
    begin_news(&w);
    add_news(&w, id, 0, 2, tokens, HZP_REQUEST_RUNNING);
    say(&w);
    until_tokens(rq, 2);
    w.hello.round++;
    come_up(&w);
    uint64_t again = take(&w);
    assert_int_not_equal(again, id);
    begin_news(&w);
    add_news(&w, again, 2, TOKENS - 2, tokens, HZP_REQUEST_LENGTH);
    say(&w);
    expect(&w, rq, tokens);
    close_world(&w);
}

/* ---- weights of an earlier state ---- */

static void publish(struct world *w, int64_t learned)
{
    publish_step(w, learned, 0);
}

/* A request that asks for what version 1 has learned, and so many tokens by it. */
static struct hzp_request *begin_asking(struct world *w, bool session, int32_t count,
                                        const int32_t *tokens, uint64_t *ret_id)
{
    struct hzp_request *rq =
        submit_asking(w, (struct hzp_demands){.min_sequence = session ? 0 : LEARNED,
                                              .through = session ? LEARNED : 0,
                                              .max_staleness = -1,
                                              .wait_ns = HANG_NS});
    *ret_id = take_asking(w, 1);
    begin_news(w);
    add_news(w, *ret_id, 0, count, tokens, HZP_REQUEST_RUNNING);
    say(w);
    until_tokens(rq, count);
    return rq;
}

/* The replica is told to cancel the request, and does. */
static void recalls(struct world *w, uint64_t id, int32_t drawn, const int32_t *tokens)
{
    const char *data;
    size_t bytes;
    uint64_t canceled;
    hear(w, 'C', &data, &bytes);
    MUST(hzp_plain_read(data, bytes, &canceled, sizeof(canceled)));
    assert_int_equal(canceled, id);
    begin_news(w);
    add_news_of(w, id, drawn, 1, tokens, HZP_REQUEST_RUNNING, 2); /* that it had meanwhile */
    say(w);
    begin_news(w);
    add_news_of(w, id, drawn + 1, 0, tokens, HZP_REQUEST_CANCELED, 2);
    say(w);
}

static void expect_changed(struct world *w, struct hzp_request *rq, int32_t count)
{
    finish(w, rq);
    assert_int_equal(atomic_load(&rq->state), HZP_REQUEST_CHANGED);
    assert_int_equal(rq->changed, HZP_CHANGED_SWAP);
    assert_int_equal(atomic_load(&rq->out_count), count);
    for (int32_t n = 0; n < count; n++)
        assert_int_equal(rq->out[n].version, 1);
    hzp_request_destroy(rq);
}

/* It waits on this rank until a version has learned what it asks for again. */
static void expect_waits(struct world *w, struct hzp_request *rq, const int32_t *tokens)
{
    for (int i = 0; i < 20; i++)
        if (!hzp_loop_turn(w->loop))
            hzp_loop_sleep(w->loop, 10000000);
    assert_false(hzp_request_final(rq));
    assert_int_equal(atomic_load(&rq->out_count), 0);
    publish(w, LEARNED + 1);
    finish(w, rq);
    for (int32_t n = 0; n < TOKENS; n++)
        assert_int_equal(rq->out[n].version, 3);
    expect(w, rq, tokens);
}

/* What becomes of requests on a replica, which ask for what a version has learned, when weights of
 * an earlier state serve again: no token by these is shown. */
static void goes_back(void **state)
{
    enum { LATER, AT_ONCE, ENDS, LOST, FORMS };
    for (int i = 0; i < 4 * FORMS; i++) {
        bool session = i % 2, begun = i / 2 % 2;
        int form = i / 4;
        int32_t drawn = begun ? 3 : 0, tokens[TOKENS];
        struct world w;
        uint64_t id;
        open_world(&w, 600);
        draw(&w, tokens);
        come_up(&w);
        struct hzp_request *rq = begin_asking(&w, session, drawn, tokens, &id);
        publish(&w, LEARNED - 1);
        if (form == LOST) { /* no token was computed by the newer one */
            hzp_pipe_close(w.pipe);
            w.pipe = NULL;
        } else if (form == AT_ONCE) { /* one message has tokens by both */
            begin_news(&w);
            add_news_of(&w, id, drawn, 2, tokens, HZP_REQUEST_RUNNING, 1);
            add_news_of(&w, id, drawn + 2, 2, tokens, HZP_REQUEST_RUNNING, 2);
            say(&w);
            drawn += 2;
            recalls(&w, id, drawn + 2, tokens);
        } else if (form == ENDS) { /* with the message that has the first of them */
            begin_news(&w);
            add_news_of(&w, id, drawn, TOKENS - drawn, tokens, HZP_REQUEST_LENGTH, 2);
            say(&w);
        } else {
            begin_news(&w);
            add_news_of(&w, id, drawn, 2, tokens, HZP_REQUEST_RUNNING, 2);
            say(&w);
            recalls(&w, id, drawn + 2, tokens);
        }
        if (drawn)
            expect_changed(&w, rq, drawn);
        else
            expect_waits(&w, rq, tokens);
        assert_int_equal(is_up(&w), form != LOST);
        close_world(&w);
    }
}

/* Weights of an earlier state have served, and others that do not learn the example any more do
 * when the replica's next token comes. */
static void given_up(void **state)
{
    for (int i = 0; i < 4; i++) {
        bool never = i % 2;
        int32_t drawn = i / 2 ? 3 : 0, tokens[TOKENS];
        struct world w;
        uint64_t id;
        open_world(&w, 600);
        draw(&w, tokens);
        come_up(&w);
        struct hzp_request *rq = begin_asking(&w, false, drawn, tokens, &id);
        publish(&w, LEARNED - 1);
        if (never)
            hzp_weights_add_unlearned(w.m.weights, LEARNED);
        publish(&w, LEARNED + 1);
        begin_news(&w);
        add_news_of(&w, id, drawn, TOKENS - drawn, tokens, HZP_REQUEST_LENGTH, 3);
        say(&w);
        finish(&w, rq);
        if (!never) { /* learned again: rank 0 goes on with it */
            expect(&w, rq, tokens);
        } else if (drawn) {
            expect_changed(&w, rq, drawn);
        } else {
            assert_int_equal(atomic_load(&rq->state), HZP_REQUEST_UNMET);
            assert_int_equal(rq->unmet, HZP_UNMET_UNLEARNED);
            hzp_request_destroy(rq);
        }
        close_world(&w);
    }
}

/* What asks for nothing goes on with any version, and what does goes on with one that this rank
 * does not have yet. */
static void goes_on(void **state)
{
    struct world w;
    int32_t tokens[TOKENS];
    uint64_t id;
    open_world(&w, 600);
    draw(&w, tokens);
    come_up(&w);
    struct hzp_request *rq = begin_asking(&w, false, 2, tokens, &id);
    begin_news(&w);
    add_news_of(&w, id, 2, TOKENS - 2, tokens, HZP_REQUEST_LENGTH, 2);
    say(&w);
    expect(&w, rq, tokens);
    rq = submit(&w);
    id = take(&w);
    publish(&w, LEARNED - 1);
    begin_news(&w);
    add_news_of(&w, id, 0, TOKENS, tokens, HZP_REQUEST_LENGTH, 2);
    say(&w);
    expect(&w, rq, tokens);
    close_world(&w);
}

/* A request that keeps its version, on a rank that has drawn three tokens by `version`. */
static struct hzp_request *begin_bound(struct world *w, enum hzp_consistency mode, uint64_t version,
                                       const int32_t *tokens, uint64_t *ret_id)
{
    struct hzp_request *rq = submit_asking(
        w, (struct hzp_demands){.mode = mode, .max_staleness = -1, .wait_ns = HANG_NS});
    *ret_id = take(w);
    begin_news(w);
    add_news_of(w, *ret_id, 0, 3, tokens, HZP_REQUEST_RUNNING, version);
    say(w);
    until_tokens(rq, 3);
    return rq;
}

/* abort and pinned on a lost rank: they go on where their version serves, and end where it does not
 * any more. */
static void keeps_version(void **state)
{
    enum { SERVES, OVER, TO_COME, FORMS };
    for (int i = 0; i < 2 * FORMS; i++) {
        enum hzp_consistency mode = i % 2 ? HZP_PINNED : HZP_ABORT;
        int32_t tokens[TOKENS];
        struct world w;
        open_world(&w, 600);
        draw(&w, tokens);
        come_up(&w);
        uint64_t id, version = i / 2 == TO_COME ? 2 : 1;
        struct hzp_request *rq = begin_bound(&w, mode, version, tokens, &id);
        if (i / 2 == OVER)
            publish(&w, LEARNED);
        hzp_pipe_close(w.pipe);
        w.pipe = NULL;
        if (i / 2 == OVER) {
            expect_changed(&w, rq, 3);
        } else {
            for (int n = 0; n < 20 && i / 2 == TO_COME; n++)
                if (!hzp_loop_turn(w.loop))
                    hzp_loop_sleep(w.loop, 10000000);
            if (i / 2 == TO_COME)
                publish(&w, LEARNED);
            finish(&w, rq);
            for (int32_t n = 1; n < TOKENS; n++)
                assert_int_equal(rq->out[n].version, rq->out[0].version);
            expect(&w, rq, tokens);
        }
        close_world(&w);
    }
}

/* A pinned version may trail by more than one update, and the request says so. */
static void pinned_trails(void **state)
{
    const struct hzp_replica_load load = {.version = 3, .optimizer_step = 2};
    int32_t tokens[TOKENS];
    struct world w;
    open_world(&w, 600);
    draw(&w, tokens);
    come_up(&w);
    uint64_t id;
    struct hzp_request *rq = begin_bound(&w, HZP_PINNED, 1, tokens, &id);
    assert_int_equal(atomic_load(&rq->staleness), 0);
    publish_step(&w, LEARNED, 1);
    publish_step(&w, LEARNED, 1);
    hzp_news_begin(&w.out, &load);
    add_news(&w, id, 3, TOKENS - 3, tokens, HZP_REQUEST_LENGTH);
    say(&w);
    finish(&w, rq);
    assert_int_equal(atomic_load(&rq->staleness), 2);
    expect(&w, rq, tokens);
    assert_true(is_up(&w));
    close_world(&w);
}

/* Logprobs of a prompt come with the first token, and are not computed again where the request goes
 * on; where they are missing, the replica is lost. */
static void tells_prompt_once(void **state)
{
    static const int32_t prompt[PROMPT] = {1, 2, 3, 4, 5};
    for (int32_t told = 0; told <= PROMPT; told += PROMPT) {
        struct hzp_output out[PROMPT] = {{.token = 0}};
        struct hzp_request *rq, written = {.out = out, .prompt_out = out};
        int32_t tokens[TOKENS];
        struct world w;
        open_world(&w, 600);
        draw(&w, tokens);
        come_up(&w);
        MUST(hzp_request_create(prompt, PROMPT, TOKENS, 0, true, &rq));
        rq->sampling.temperature = 0;
        rq->ignore_eos = true;
        MUST(hzp_front_submit(w.front, &rq, 1, NULL));
        for (int32_t n = 0; n < PROMPT; n++)
            out[n] = (struct hzp_output){.token = n ? n : tokens[0], .logprob = -99, .version = 1};
        begin_news(&w);
        hzp_news_add(
            &w.out,
            &(struct hzp_news){
                .id = take(&w), .count = 1, .stop_token = -1, .prompts = told, .prompt_version = 1},
            &written);
        say(&w);
        if (told) {
            until_tokens(rq, 1);
            hzp_message_begin(&w.out, 'G');
            say(&w);
        }
        finish(&w, rq);
        for (int32_t p = 1; p < PROMPT; p++)
            assert_int_equal((rq->prompt_out[p].logprob < -98), (told > 0));
        expect(&w, rq, tokens);
        assert_false(is_up(&w));
        close_world(&w);
    }
}

/* ---- embeddings, policies ---- */

static struct hzp_request *embed(struct world *w, int64_t min_sequence)
{
    static const int32_t prompt[PROMPT] = {1, 2, 3, 4, 5};
    struct hzp_request *rq;
    MUST(hzp_request_create(prompt, PROMPT, 0, 0, false, &rq));
    MUST(hzp_request_pool(rq, HZP_POOLING_MEAN, 32));
    rq->demands =
        (struct hzp_demands){.min_sequence = min_sequence, .max_staleness = -1, .wait_ns = HANG_NS};
    MUST(hzp_front_submit(w->front, &rq, 1, NULL));
    return rq;
}

static uint64_t take_embedding(struct world *w)
{
    const struct hzp_message_limits limits = {VOCAB, POSITIONS, 32};
    const char *data;
    size_t bytes;
    uint64_t id;
    struct hzp_request *rq;
    struct hzp_sent_rules rules = {.rules = {.bads = 0}};
    hear(w, 'R', &data, &bytes);
    MUST(hzp_request_read(data, bytes, &limits, &id, &rq, &rules, NULL));
    assert_int_equal(rq->pooling, HZP_POOLING_MEAN);
    hzp_request_destroy(rq);
    return id;
}

static void say_embedding(struct world *w, uint64_t id, int32_t cols, uint64_t version)
{
    float hidden[32];
    struct hzp_request rq = {.hidden = hidden};
    struct hzp_news news = {.id = id,
                            .state = HZP_REQUEST_LENGTH,
                            .stop_token = -1,
                            .hidden = cols,
                            .prompt_version = version};
    for (int i = 0; i < 32; i++)
        hidden[i] = (float)i;
    begin_news(w);
    hzp_news_add(&w->out, &news, &rq);
    say(w);
}

static void embeds(void **state)
{
    struct world w;
    open_world(&w, 600);
    come_up(&w);
    struct hzp_request *rq = embed(&w, 0);
    say_embedding(&w, take_embedding(&w), 32, 1);
    finish(&w, rq);
    assert_int_equal(atomic_load(&rq->state), HZP_REQUEST_LENGTH);
    assert_int_equal(rq->prompt_version, 1);
    for (int i = 0; i < 32; i++)
        assert_true(rq->hidden[i] == (float)i);
    hzp_request_destroy(rq);
    /* By a version that has not learned what it asks for: rank 0 waits for another one. */
    rq = embed(&w, LEARNED);
    uint64_t id = take_embedding(&w);
    publish(&w, LEARNED - 1);
    say_embedding(&w, id, 32, 2);
    publish(&w, LEARNED);
    finish(&w, rq);
    assert_int_equal(rq->prompt_version, 3);
    assert_int_equal(atomic_load(&rq->staleness), 0); /* version 2 is not counted */
    hzp_request_destroy(rq);
    /* Of another width: the rank is not heard any more. */
    assert_true(is_up(&w));
    rq = embed(&w, 0);
    say_embedding(&w, take_embedding(&w), 31, 1);
    finish(&w, rq);
    assert_int_equal(rq->prompt_version, 3);
    assert_false(is_up(&w));
    hzp_request_destroy(rq);
    close_world(&w);
}

static void hear_share(struct world *w, double share)
{
    const char *data;
    size_t bytes;
    struct hzp_policy policy;
    hear(w, 'P', &data, &bytes);
    MUST(hzp_policy_read(data, bytes, &policy));
    assert_true(policy.train_share == share);
}

static void passes_policies(void **state)
{
    struct world w;
    struct hzp_policy policy = hzp_policy_default;
    open_world(&w, 600);
    policy.train_share = 0.25;
    hzp_front_set_policy(w.front, &policy); /* nobody is there yet */
    come_up(&w);
    hear_share(&w, 0.25);
    policy.train_share = 0.5;
    hzp_front_set_policy(w.front, &policy);
    hear_share(&w, 0.5);
    w.hello.round++;
    come_up(&w);
    hear_share(&w, 0.5);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computes),        cmocka_unit_test(goes_wrong),
        cmocka_unit_test(refused),         cmocka_unit_test(silent),
        cmocka_unit_test(replaced),        cmocka_unit_test(lets_go_last),
        cmocka_unit_test(goes_back),       cmocka_unit_test(goes_on),
        cmocka_unit_test(comes_again),     cmocka_unit_test(keeps_version),
        cmocka_unit_test(given_up),        cmocka_unit_test(pinned_trails),
        cmocka_unit_test(embeds),          cmocka_unit_test(tells_prompt_once),
        cmocka_unit_test(passes_policies),
    };
    hzp_log_set_level(HZP_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
