/* SPDX-License-Identifier: Apache-2.0 */
/* tests/api/test_notify.c - notes: none is lost, and those of a step are called together; which
 * tokens of a completion wait. */
#include "api/http/routes/completion.h"
#include "api/http/wire/notify.h"
#include "base/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTES = 300, ROUNDS = 200 };

static const struct hzp_join at_once = {.processors = 1, .threads = 1};

static _Atomic int called, held, may_go;

static void count(void *ctx)
{
    atomic_fetch_add(&called, 1);
    sched_yield(); /* a waiting thread that returned too early would run now */
}

static void hold(void *ctx)
{
    atomic_store(&held, 1);
    while (!atomic_load(&may_go))
        sched_yield();
}

/* Who sees the first of a step's notes called, and settles, finds all of them called. */
static void a_step_is_called_together(void **state)
{
    static struct hzp_note note[NOTES];
    struct hzp_note first = {.call = hold};
    struct hzp_notify *n;
    assert_int_equal(hzp_notify_create(&at_once, &n), HZP_OK);
    for (int i = 0; i < NOTES; i++)
        note[i] = (struct hzp_note){.call = count};
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&called, 0);
        atomic_store(&held, 0);
        atomic_store(&may_go, 0);
        hzp_notify_post(n, &first);
        while (!atomic_load(&held))
            sched_yield();
        for (int i = 0; i < NOTES; i++) /* the thread takes none of them before it has all */
            hzp_notify_add(n, &note[i]);
        hzp_notify_wake(n);
        atomic_store(&may_go, 1);
        while (!atomic_load(&called))
            sched_yield();
        hzp_notify_settle(n);
        assert_int_equal(atomic_load(&called), NOTES);
    }
    hzp_notify_destroy(n);
}

struct poster {
    struct hzp_notify *n;
    struct hzp_note *note;
};

static void *post_often(void *arg)
{
    struct poster *p = arg;
    for (int i = 0; i < 5000; i++)
        hzp_notify_post(p->n, p->note);
    return NULL;
}

/* Posted by several threads at once: it is called after the last post, and no more often than it
 * was posted. */
static void no_post_is_lost(void **state)
{
    struct hzp_note note = {.call = count};
    struct poster poster = {.note = &note};
    pthread_t thread[3];
    for (int round = 0; round < 20; round++) {
        atomic_store(&called, 0);
        assert_int_equal(hzp_notify_create(&at_once, &poster.n), HZP_OK);
        for (int i = 0; i < HZP_COUNT(thread); i++)
            assert_int_equal(hzp_thread_start(&thread[i], "poster", post_often, &poster), HZP_OK);
        for (int i = 0; i < HZP_COUNT(thread); i++)
            pthread_join(thread[i], NULL);
        while (atomic_load(&note.posted)) /* the last post is seen */
            sched_yield();
        hzp_notify_destroy(poster.n);
        assert_true(atomic_load(&called) >= 1 && atomic_load(&called) <= 15000);
    }
}

static void count_quietly(void *ctx)
{
    atomic_fetch_add((_Atomic int *)ctx, 1);
}

static void call_added(struct hzp_notify *n, struct hzp_note *note)
{
    _Atomic int *calls = note->ctx;
    int before = atomic_load(calls);
    hzp_notify_post(n, note);
    while (atomic_load(calls) == before)
        sched_yield();
}

/* A joined note is called once for a flush's steps, an added one at once. */
static void steps_are_joined(void **state)
{
    const struct hzp_join three = {.processors = 1,
                                   .threads = 1,
                                   .bound_ns = 3600000000000,
                                   .flush_ns = 1e6 * 0.05 * 2.5,
                                   .step_ns = 1e6};
    _Atomic int joined = 0, added = 0;
    struct hzp_note next = {.call = count_quietly, .ctx = &joined};
    struct hzp_note note = {.call = count_quietly, .ctx = &added};
    struct hzp_notify *n;
    assert_int_equal(hzp_notify_create(&three, &n), HZP_OK);
    assert_int_equal(hzp_notify_window(n), 2000000);
    hzp_notify_step(n); /* one that no stream goes on with */
    for (int step = 0; step < 2; step++) {
        hzp_notify_join(n, &next);
        hzp_notify_step(n);
        call_added(n, &note);
        call_added(n, &note);
        assert_int_equal(atomic_load(&joined), 0);
    }
    hzp_notify_join(n, &next);
    hzp_notify_step(n);
    while (atomic_load(&next.posted))
        sched_yield();
    hzp_notify_settle(n);
    assert_int_equal(atomic_load(&joined), 1);
    hzp_notify_destroy(n);
}

/* Without a further step it is called when it has waited for the bound. */
static void the_bound_holds(void **state)
{
    const struct hzp_join ten = {
        .processors = 1, .threads = 1, .bound_ns = 1000000, .flush_ns = 1e9, .step_ns = 1.05e5};
    _Atomic int joined = 0;
    struct hzp_note next = {.call = count_quietly, .ctx = &joined};
    struct hzp_notify *n;
    assert_int_equal(hzp_notify_create(&ten, &n), HZP_OK);
    for (int i = 0; i < 200; i++) {
        int before = atomic_load(&joined);
        hzp_notify_join(n, &next);
        hzp_notify_step(n);
        while (atomic_load(&joined) == before)
            sched_yield();
    }
    assert_int_equal(atomic_load(&joined), 200);
    hzp_notify_destroy(n);
}

/* Whatever the window becomes, the last step's note is called, and at the end without a flush. */
static void no_joined_note_is_lost(void **state)
{
    const struct hzp_join join = {.processors = 1, .threads = 1, .bound_ns = 200000};
    _Atomic int joined = 0, behind = 0;
    struct hzp_note next = {.call = count_quietly, .ctx = &joined};
    struct hzp_note other = {.call = count_quietly, .ctx = &behind};
    struct hzp_notify *n;
    assert_int_equal(hzp_notify_create(&join, &n), HZP_OK);
    for (int i = 0; i < 50000; i++) {
        hzp_notify_join(n, &next);
        hzp_notify_step(n);
        if (i % 7 == 0)
            sched_yield();
    }
    while (atomic_load(&next.posted))
        sched_yield();
    /* It may still be called: calls are made one after another, so another note's is behind it. */
    hzp_notify_join(n, &other);
    hzp_notify_step(n);
    while (!atomic_load(&behind))
        sched_yield();
    int before = atomic_load(&joined);
    hzp_notify_join(n, &next);
    hzp_notify_destroy(n);
    assert_int_equal(atomic_load(&joined), before + 1);
}

/* Without a window each step is flushed. */
static void without_a_window_nothing_waits(void **state)
{
    _Atomic int joined = 0;
    struct hzp_note next = {.call = count_quietly, .ctx = &joined};
    struct hzp_notify *n;
    assert_int_equal(hzp_notify_create(&at_once, &n), HZP_OK);
    for (int i = 0; i < 1000; i++) {
        hzp_notify_join(n, &next);
        hzp_notify_step(n);
        while (atomic_load(&joined) <= i)
            sched_yield();
    }
    assert_int_equal(atomic_load(&joined), 1000);
    assert_int_equal(hzp_notify_window(n), 0);
    hzp_notify_destroy(n);
}

static struct hzp_tokenizer *make_tokenizer(void)
{
    static const char text[] = "{\"added_tokens\": [], \"model\": {\"type\": \"BPE\", \"vocab\": "
                               "{\"a\": 0, \"b\": 1}, \"merges\": []}}";
    char dir[] = "/tmp/hzp-notify-XXXXXX", path[64];
    struct hzp_tokenizer *tok;
    struct hzp_err_text err;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
    assert_int_equal(hzp_tokenizer_open(dir, &tok, &err), HZP_OK);
    unlink(path);
    rmdir(dir);
    return tok;
}

static void ignore(void *ctx)
{
}

/* Whether a stream's second token waits for the next flush, which is a thousand steps away. */
static bool second_token_waits(const char *stop)
{
    static const struct hzp_engine_settings settings = {
        .serving = {.waiting_max = 9, .waiting_tokens = 9}};
    static const struct hzp_join long_window = {
        .processors = 1, .threads = 1, .bound_ns = 3600000000000, .flush_ns = 1e9, .step_ns = 1e6};
    struct hzp_listener listener = {.news = count_quietly, .ended = ignore};
    struct hzp_completion_params params = {.form = &hzp_answer_text,
                                           .prompts = 1,
                                           .n = 1,
                                           .max_tokens = 4,
                                           .logprobs = -1,
                                           .prompt_logprobs = -1,
                                           .stream = true};
    struct hzp_engine engine = {.config.settings = &settings, .parts.tok = make_tokenizer()};
    struct hzp_completion *c;
    struct hzp_err_text err;
    _Atomic int news = 0;
    listener.ctx = &news;
    params.prompt = hzp_xcalloc(1, sizeof(*params.prompt));
    params.prompt_text = hzp_xcalloc(1, sizeof(*params.prompt_text));
    if (stop) {
        params.stop[0] = strdup(stop);
        params.stop_bytes[0] = strlen(stop);
        params.stops = 1;
    }
    assert_int_equal(hzp_notify_create(&long_window, &listener.notify), HZP_OK);
    assert_int_equal(hzp_completion_make(&engine, &params, &listener, &c, &err), HZP_OK);
    struct hzp_request *rq = c->choice[0].rq;
    rq->wake(rq->wake_ctx, false);
    while (!atomic_load(&news)) /* a first token never waits */
        sched_yield();
    rq->wake(rq->wake_ctx, false);
    bool waits = hzp_completion_joins(c);
    while (!waits && atomic_load(&news) < 2)
        sched_yield();
    atomic_store(&rq->let_go, true);
    hzp_completion_end(c);
    hzp_notify_destroy(listener.notify); /* calls what has waited, which frees c */
    hzp_tokenizer_close(engine.parts.tok);
    return waits;
}

/* Behind a stop string tokens are computed in vain until it is found. */
static void stop_strings_do_not_wait(void **state)
{
    assert_true(second_token_waits(NULL));
    assert_false(second_token_waits("b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stop_strings_do_not_wait),
                                       cmocka_unit_test(a_step_is_called_together),
                                       cmocka_unit_test(no_post_is_lost),
                                       cmocka_unit_test(steps_are_joined),
                                       cmocka_unit_test(the_bound_holds),
                                       cmocka_unit_test(no_joined_note_is_lost),
                                       cmocka_unit_test(without_a_window_nothing_waits)};
    return cmocka_run_group_tests_name("notify", tests, NULL, NULL);
}
