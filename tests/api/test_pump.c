/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens become text: the last one of a request only with its end, which says whether it is text,
 * however late the state is after the token. */
#include "api/http/routes/completion.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 4 };

static struct hzp_tokenizer *tok;

struct case_ {
    struct hzp_engine engine;
    struct hzp_choice choice;
    struct hzp_completion c;
};

static void open_case(struct case_ *t)
{
    static const int32_t prompt[] = {1};
    memset(t, 0, sizeof(*t));
    t->engine.parts.tok = tok;
    t->c = (struct hzp_completion){
        .engine = &t->engine, .choice = &t->choice, .choices = 1, .open = 1};
    t->choice.of = &t->c;
    t->choice.stop_string = -1;
    assert_int_equal(hzp_request_create(prompt, 1, TOKENS, 0, false, &t->choice.rq), HZP_OK);
    t->choice.offset = calloc(TOKENS, sizeof(*t->choice.offset));
    assert_int_equal(hzp_stop_init(&t->choice.stop, NULL, NULL, 0, false, NULL), HZP_OK);
    hzp_detokenizer_init(&t->choice.detok, tok, false);
    atomic_store(&t->choice.rq->state, HZP_REQUEST_RUNNING);
}

static void close_case(struct case_ *t)
{
    hzp_request_destroy(t->choice.rq);
    hzp_stop_fini(&t->choice.stop);
    hzp_textbuf_fini(&t->choice.text);
    hzp_textbuf_fini(&t->choice.piece);
    free(t->choice.offset);
}

/* The engine has drawn a token; last: none follows. */
static void draw(struct hzp_request *rq, int32_t token, bool last)
{
    int32_t n = atomic_load(&rq->out_count);
    rq->out[n] = (struct hzp_output){.token = token};
    atomic_store(&rq->whole, last);
    atomic_store(&rq->out_count, n + 1);
}

/* stops: the last token is a stop token, and so no text. */
static void ends(bool stops)
{
    static const char word[] = "a";
    int32_t token = hzp_tokenizer_find(tok, word, 1);
    struct case_ t;
    assert_true(token >= 0);
    open_case(&t);
    struct hzp_request *rq = t.choice.rq;
    draw(rq, token, false);
    assert_true(hzp_completion_pump(&t.c, 1));
    assert_int_equal(t.choice.seen, 1);
    draw(rq, token, false);
    draw(rq, token, true);
    assert_true(hzp_completion_pump(&t.c, INT32_MAX));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t.choice.seen, 2);
        assert_int_equal(t.choice.text.bytes, 2);
        assert_false(hzp_completion_pump(&t.c, 1));
    }
    rq->stop_token = stops ? token : -1;
    atomic_store(&rq->state, stops ? HZP_REQUEST_STOPPED : HZP_REQUEST_LENGTH);
    assert_true(hzp_completion_pump(&t.c, 1));
    assert_int_equal(t.choice.seen, 3);
    assert_int_equal(t.choice.text.bytes, stops ? 2 : 3);
    assert_int_equal(t.choice.finish, stops ? HZP_FINISH_STOP : HZP_FINISH_LENGTH);
    assert_int_equal(t.c.open, 0);
    close_case(&t);
}

static void last_token(void **state)
{
    ends(false);
    ends(true);
}

/* The flag may be seen before the token that it is about. */
static void early_flag(void **state)
{
    struct case_ t;
    open_case(&t);
    atomic_store(&t.choice.rq->whole, true);
    assert_false(hzp_completion_pump(&t.c, 1));
    draw(t.choice.rq, hzp_tokenizer_find(tok, "a", 1), true);
    assert_false(hzp_completion_pump(&t.c, 1));
    assert_int_equal(t.choice.seen, 0);
    close_case(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(last_token), cmocka_unit_test(early_flag)};
    struct hzp_err_text err = {0};
    if (argc < 2 || hzp_tokenizer_open(argv[1], &tok, &err) < 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hzp_tokenizer_close(tok);
    return failed;
}
