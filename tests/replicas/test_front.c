/* SPDX-License-Identifier: Apache-2.0 */
/* The front and a replica that the test plays itself: what a replica may say, and what becomes of
 * its requests when it says something else, or nothing. */
#include "api/ranks/pipe.h"
#include "api/replicas/front.h"
#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/loop.h"
#include "tests/fixture/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 96, POSITIONS = 128, PAGE_ROWS = 4, PAGES = 256, PROMPT = 5, TOKENS = 12 };
static const uint64_t HANG_NS = 600ull * 1000000000u; /* only a hang takes as long */
static const char record[] = "build 1\nmodel 2\n";

struct world {
    struct fixture_model m;
    struct hzp_kvpool *pool;
    struct hzp_serve_space *space;
    struct hzp_batch *batch;
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_front *front;
    char folder[64], file[96];
    struct hzp_hello hello; /* as a replica's should be */
    /* the replica */
    struct hzp_pipe *pipe;
    struct hzp_message out;
};

#define MUST(call) assert_true((call) >= 0)

static void open_engine(struct world *w)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = 2,
                                      .width = 32,
                                      .inner = 48,
                                      .vocab = VOCAB,
                                      .heads = {.heads = 2, .kv_heads = 1, .dim = 16},
                                      .positions = POSITIONS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .disk_type = HZP_F32,
                                      .bos = -1};
    struct hzp_scheduler_config scheduler = {
        .running_max = 4, .waiting_max = 4, .waiting_tokens_max = 1 << 20, .edits_max = 4 * VOCAB};
    struct hzp_batch_config batch = {.rows_max = 32,
                                     .segs_max = 4,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 32,
                                     .edits_max = 4 * VOCAB};
    struct fixture_config fixture = {
        .device = "ref", .threads = 1, .config = config, .store = {.type = HZP_F32}};
    fixture_open(&w->m, &fixture);
    struct hzp_version *draft = fixture_begin(&w->m);
    fixture_units_random(w->m.dev, hzp_version_units(w->m.weights, draft), 11, 0.25f);
    fixture_publish(&w->m, draft, 0);
    MUST(hzp_kvpool_create(w->m.model, PAGES, PAGE_ROWS, &w->pool));
    MUST(hzp_serve_space_create(w->m.model, batch.rows_max, batch.logits_max, &w->space));
    MUST(hzp_batch_create(w->m.dev, &batch, &w->batch));
    MUST(hzp_scheduler_create(&scheduler, w->m.model, w->pool, &w->scheduler));
}

static void open_world(struct world *w, double silent_s)
{
    memset(w, 0, sizeof(*w));
    open_engine(w);
    snprintf(w->folder, sizeof(w->folder), "/tmp/hzpserve-front-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->file, sizeof(w->file), "%s/replicas", w->folder);
    struct hzp_front_config config = {
        .file = w->file, .record = record, .ranks = 2, .silent_s = silent_s};
    MUST(hzp_front_create(&config, &w->front, NULL));
    struct hzp_loop_config loop = {
        .model = w->m.model,
        .space = w->space,
        .batch = w->batch,
        .source = {hzp_scheduler_source(w->scheduler), hzp_front_source(w->front)},
        .sources = 2};
    MUST(hzp_loop_create(&loop, &w->loop));
    w->hello = (struct hzp_hello){.ranks = 2,
                                  .vocab = VOCAB,
                                  .positions = POSITIONS,
                                  .width = 32,
                                  .layers = 2,
                                  .running_max = 4,
                                  .waiting_max = 4,
                                  .page_rows = PAGE_ROWS,
                                  .kv_pages = PAGES,
                                  .version = 1,
                                  .checksum = 77};
    struct hzp_front_parts parts = {.scheduler = w->scheduler,
                                    .loop = w->loop,
                                    .weights = w->m.weights,
                                    .model = w->m.model,
                                    .own = w->hello};
    MUST(hzp_front_start(w->front, &parts));
    w->hello.rank = 1;
    MUST(hzp_pipe_connect(w->file, HZP_MESSAGE_MAX, &w->pipe, NULL));
}

static void close_world(struct world *w)
{
    hzp_front_destroy(w->front);
    hzp_pipe_close(w->pipe);
    hzp_message_fini(&w->out);
    hzp_loop_destroy(w->loop);
    hzp_scheduler_destroy(w->scheduler);
    hzp_batch_destroy(w->batch);
    hzp_serve_space_destroy(w->space);
    hzp_kvpool_destroy(w->pool);
    fixture_close(&w->m);
    unlink(w->file);
    rmdir(w->folder);
}

/* ---- the replica ---- */

static void say(struct world *w)
{
    assert_int_equal(hzp_pipe_send(w->pipe, NULL, w->out.data, w->out.bytes), HZP_OK);
}

/* Waits for a message with this letter; others are passed over. */
static void hear(struct world *w, char letter, const char **ret, size_t *ret_bytes)
{
    uint64_t end = hzp_now_ns() + HANG_NS;
    while (hzp_now_ns() < end) {
        hzp_pipe_wait(w->pipe, 50);
        while (hzp_pipe_receive(w->pipe, NULL, ret, ret_bytes))
            if (**ret == letter)
                return;
    }
    fail_msg("no message %c", letter);
}

static void come_up(struct world *w)
{
    const char *data;
    size_t bytes;
    hzp_hello_write(&w->out, &w->hello, record);
    say(w);
    hear(w, 'W', &data, &bytes);
}

static struct hzp_request *submit(struct world *w)
{
    static const int32_t prompt[PROMPT] = {1, 2, 3, 4, 5};
    struct hzp_request *rq;
    MUST(hzp_request_create(prompt, PROMPT, TOKENS, 0, false, &rq));
    rq->sampling.temperature = 0;
    rq->ignore_eos = true;
    MUST(hzp_front_submit(w->front, &rq, 1, NULL));
    return rq;
}

/* The id of a request that has arrived; it is read and let go of. */
static uint64_t take(struct world *w)
{
    const struct hzp_message_limits limits = {VOCAB, POSITIONS};
    const char *data;
    size_t bytes;
    uint64_t id;
    struct hzp_request *rq;
    hear(w, 'R', &data, &bytes);
    MUST(hzp_request_read(data, bytes, &limits, &id, &rq, NULL));
    assert_int_equal(rq->prompt_count, PROMPT);
    assert_int_equal(rq->max_tokens, TOKENS);
    hzp_request_destroy(rq);
    return id;
}

static void begin_news(struct world *w)
{
    const struct hzp_replica_load load = {.version = 1};
    hzp_news_begin(&w->out, &load);
}

/* So many tokens from `from` on, the ones that the model draws (tokens); state: as in the news. */
static void add_news(struct world *w, uint64_t id, int32_t from, int32_t count,
                     const int32_t *tokens, int32_t state)
{
    struct hzp_output out[2 * TOKENS];
    struct hzp_request rq = {.out = out};
    struct hzp_news news = {
        .id = id, .from = from, .count = count, .state = state, .stop_token = -1};
    for (int32_t n = 0; n < from + count; n++)
        out[n] = (struct hzp_output){
            .token = tokens[n % TOKENS], .version = 1, .prompt_version = 1, .logprob = -1};
    hzp_news_add(&w->out, &news, &rq);
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
    assert_false(hzp_request_final(rq));
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
    MUST(hzp_cancel_read(data, bytes, &canceled, NULL));
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
        hzp_hello_write(&w.out, &h, i == 6 ? "build 1\nmodel 3\n" : record);
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
    MUST(hzp_pipe_connect(w.file, HZP_MESSAGE_MAX, &w.pipe, NULL));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computes), cmocka_unit_test(goes_wrong), cmocka_unit_test(refused),
        cmocka_unit_test(silent),   cmocka_unit_test(replaced),   cmocka_unit_test(lets_go_last),
    };
    hzp_log_set_level(HZP_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
