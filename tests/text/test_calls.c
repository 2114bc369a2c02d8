/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/test_calls.c - whatever a grammar of calls admits is read as calls, by walks through
 * the masks of each form; and an answer is read alike however it is cut. */
#include "tests/text/call_makes.h"
#include "tests/text/structures.h"

#include <stdlib.h>

/* With marks as special tokens, and as text. */
static struct hzp_tokenizer *toks[2];
static uint64_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static int setup(void **state)
{
    scratch_setup(state);
    make_byte_level(MAKE_GPT);
    toks[1] = make_open();
    toks[0] = make_open_marks();
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < HZP_COUNT(toks); i++)
        hzp_tokenizer_close(toks[i]);
    return scratch_teardown(state);
}

/* ---- every cut ---- */

static struct hzp_reply *read_cut(const struct hzp_reply_rules *rules, const char *text,
                                  size_t bytes, size_t first, size_t second)
{
    struct hzp_reply *reply;
    size_t cut[] = {first, second, bytes}, at = 0;
    assert_int_equal(hzp_reply_create(rules, &reply), HZP_OK);
    for (int i = 0; i < 3; at = cut[i++])
        assert_int_equal(hzp_reply_feed(reply, text + at, cut[i] - at, i == 2), HZP_OK);
    return reply;
}

static void assert_same_text(const struct hzp_textbuf *a, const struct hzp_textbuf *b)
{
    assert_int_equal(a->bytes, b->bytes);
    if (a->bytes)
        assert_memory_equal(a->data, b->data, a->bytes);
}

/* The pieces in their order are the answer, and say the same as the message. */
static void check_pieces(struct hzp_reply *reply)
{
    struct hzp_textbuf text[2] = {{0}};
    struct hzp_reply_part part;
    const char *piece;
    bool first;
    int call = -1;
    size_t arguments = 0;
    while (hzp_reply_next(reply, &part, &piece, &first)) {
        size_t n = part.to - part.from;
        if (part.kind != HZP_REPLY_IS_CALL) {
            hzp_textbuf_append(&text[part.kind == HZP_REPLY_IS_CONTENT], piece, n);
            continue;
        }
        assert_int_equal(part.call, call + first);
        call += first;
        arguments += n;
    }
    assert_int_equal(call + 1, reply->calls);
    for (int i = 0; i < reply->calls; i++)
        arguments -= reply->call[i].arguments.bytes;
    assert_int_equal(arguments, 0);
    assert_same_text(&text[0], &reply->reasoning);
    assert_same_text(&text[1], &reply->content);
    hzp_textbuf_fini(&text[0]);
    hzp_textbuf_fini(&text[1]);
}

static void compare(struct hzp_reply *whole, struct hzp_reply *cut)
{
    assert_same_text(&whole->content, &cut->content);
    assert_same_text(&whole->reasoning, &cut->reasoning);
    assert_int_equal(whole->calls, cut->calls);
    for (int i = 0; i < whole->calls; i++) {
        assert_string_equal(whole->call[i].name, cut->call[i].name);
        assert_same_text(&whole->call[i].arguments, &cut->call[i].arguments);
    }
    check_pieces(cut);
    hzp_reply_destroy(cut);
}

/* All pairs of cuts of a short text, some of a long one.  Owned by the caller: the whole. */
static struct hzp_reply *read_whole(const struct hzp_reply_rules *rules, const char *text,
                                    size_t bytes)
{
    struct hzp_reply *whole = read_cut(rules, text, bytes, bytes, bytes);
    for (size_t i = 0; bytes <= 40 && i <= bytes; i++)
        for (size_t k = i; k <= bytes; k++)
            compare(whole, read_cut(rules, text, bytes, i, k));
    for (int i = 0; bytes > 40 && i < 20; i++) {
        size_t first = draw((uint32_t)bytes + 1);
        size_t second = first + draw((uint32_t)(bytes - first) + 1);
        compare(whole, read_cut(rules, text, bytes, first, second));
    }
    check_pieces(whole);
    return whole;
}

/* ---- walks ---- */

static const char tools_text[] =
    "[{\"function\": {\"name\": \"f\", \"strict\": true, \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"s\": {\"type\": \"string\", \"maxLength\": 3}, \"m\": {\"type\": "
    "\"string\", \"enum\": [\"</tool_call>\", \"<|call|>\", \"[TOOL_CALLS]\", \"}]\", \"\\\"\"]}, "
    "\"n\": {\"type\": \"number\"}, \"u\": {\"anyOf\": [{\"const\": \"</arg_value>\"}, {\"type\": "
    "\"integer\"}, {\"const\": \"</tool_call>\"}]}}, \"additionalProperties\": false}}},"
    "{\"function\": {\"name\": \"g\"}},"
    "{\"function\": {\"name\": \"no_type\", \"parameters\": {\"properties\": {\"a\": {\"type\": "
    "\"boolean\"}}}}},"
    "{\"function\": {\"name\": \"any\", \"parameters\": {\"anyOf\": [{\"type\": \"string\"}, "
    "{\"type\": \"object\", \"maxProperties\": 1}]}}},"
    "{\"function\": {\"name\": \"unsupported\", \"parameters\": {\"type\": \"object\", "
    "\"unevaluatedProperties\": false}}}]";

/* Names that only JSON can write. */
static const char odd_text[] = "[{\"function\": {\"name\": \"a \\\"b\\\" \\u00e9\"}}]";

static bool allows(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* A token that leads to the end: a special one, or what closes JSON; -1: none is allowed. */
static int32_t closing(const struct hzp_tokenizer *tok, const uint32_t *mask)
{
    for (int32_t id = hzp_tokenizer_vocab(tok) - 1; id > 255; id--)
        if (allows(mask, id) && hzp_tokenizer_is_special(tok, id) && draw(2))
            return id;
    for (const char *c = "}]\""; *c; c++)
        if (allows(mask, *c))
            return *c;
    return -1;
}

/* Any token of the mask. */
static int32_t any_of(const struct hzp_tokenizer *tok, const uint32_t *mask)
{
    int32_t allowed[2048], some = 0;
    for (int32_t id = 0; id < hzp_tokenizer_vocab(tok); id++)
        if (allows(mask, id))
            allowed[some++] = id;
    assert_true(some > 0);
    return allowed[draw((uint32_t)some)];
}

/* The next token: now and then one of a mark that is spelled byte by byte, or one that closes, the
 * more the longer the text is. */
static int32_t next_token(const struct hzp_tokenizer *tok, const uint32_t *mask, bool late,
                          const char **spell)
{
    static const char *const marks[] = {"</tool_call>", "</arg_value>", "</arg_key>",
                                        "</think>",     "<|end|>",      "<|message|>",
                                        "<tool_call>",  "[TOOL_CALLS]", "<|start|>assistant",
                                        "<arg_key>",    "<|channel|>",  "to=functions.f"};
    if (!**spell && draw(late ? 2 : 16) == 0)
        *spell = marks[draw(HZP_COUNT(marks))];
    for (int32_t id = hzp_tokenizer_vocab(tok) - 1; id > 255 && **spell; id--) {
        size_t bytes;
        const char *text = hzp_tokenizer_token(tok, id, &bytes);
        if (!allows(mask, id) || strncmp(*spell, text, bytes))
            continue;
        *spell += bytes;
        return id;
    }
    if (**spell && allows(mask, **spell))
        return *(*spell)++;
    *spell = "";
    int32_t id = draw(late ? 8 : 4) < (late ? 7 : 1) ? closing(tok, mask) : -1;
    return id >= 0 ? id : any_of(tok, mask);
}

/* A text of the grammar, which goes on with a call's beginning if it can, after some tokens; false:
 * it became too long. */
static bool walk(struct hzp_tokenizer *tok, struct hzp_grammar *g, const char *open,
                 struct hzp_textbuf *ret)
{
    enum { TOKENS_MAX = 1500, LATE = 80 };
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    int32_t ids[TOKENS_MAX], n = 0;
    uint32_t mask[64] = {0};
    const char *spell = "";
    int32_t begin = (int32_t)draw(3) * 8;
    bool ended = false;
    assert_true(hzp_tokenizer_vocab(tok) <= 64 * 32);
    while (n < TOKENS_MAX) {
        bool any = hzp_grammar_run_mask(run, mask);
        ended = hzp_grammar_run_may_end(run) &&
                (!any || (n > begin && !*spell && draw(n > LATE ? 2 : 8) == 0));
        if (ended)
            break;
        if (n == begin)
            spell = open;
        ids[n] = next_token(tok, mask, n > LATE, &spell);
        assert_true(hzp_grammar_run_token(run, ids[n++]));
    }
    ret->bytes = 0;
    assert_int_equal(hzp_tokenizer_decode(tok, ids, (size_t)n, false, ret), HZP_OK);
    hzp_grammar_run_destroy(run);
    return ended;
}

/* must: the answer is calls and, but for reasoning, nothing else. */
static void check_walk(const struct hzp_reply_rules *rules, const struct hzp_textbuf *text,
                       bool must)
{
    const char *open = hzp_call_form[rules->calls].open;
    struct hzp_reply *reply = read_whole(rules, text->data, text->bytes);
    bool good = !must || (reply->calls > 0 && !reply->content.bytes);
    for (int i = 0; i < reply->calls; i++)
        good &=
            hzp_json_is(reply->call[i].arguments.data, reply->call[i].arguments.bytes, false, true);
    if (open && reply->content.bytes)
        good &= !memmem(reply->content.data, reply->content.bytes, open, strlen(open));
    if (!good)
        fail_msg("%.*s\n has %d calls, and as content %.*s", (int)text->bytes, text->data,
                 reply->calls, (int)reply->content.bytes, reply->content.data);
    hzp_reply_destroy(reply);
}

static void walk_form(int kind, enum hzp_reply_calls calls, json_t *tools, int how)
{
    struct hzp_structures *structures;
    struct hzp_grammar *g = NULL;
    struct hzp_err_text err = {0};
    bool channels = calls == HZP_CALLS_CHANNELS;
    struct hzp_structure what = {.tools = tools,
                                 .calls = calls,
                                 .channels = channels,
                                 .free = how & 1,
                                 .reasoning = !channels && how & 2,
                                 .inside = !channels && (how & 6) == 6};
    struct hzp_reply_rules rules = {.calls = calls,
                                    .channels = channels,
                                    .strict = what.free,
                                    .reasoning = what.reasoning,
                                    .inside = what.inside,
                                    .names = json_object()};
    struct hzp_textbuf text = {0};
    const json_t *tool;
    size_t i;
    const char *open = channels ? "<|channel|>commentary to=functions." : hzp_call_form[calls].open;
    int done = 0;
    json_array_foreach(tools, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        json_t *parameters = json_object_get(function, "parameters");
        json_object_set(rules.names, json_string_value(json_object_get(function, "name")),
                        parameters ? parameters : json_true());
    }
    hzp_structures_open(toks[kind], hzp_tokenizer_vocab(toks[kind]), HZP_STRUCTURES_IN_USE,
                        &structures);
    if (make_structure(structures, &what, &g, &err) != HZP_OK)
        fail_msg("%d: %s", (int)calls, err.text);
    for (int k = 0; k < 25; k++) {
        bool bare = hzp_call_form[calls].bare && draw(2);
        if (!walk(toks[kind], g, bare ? "{\"name\": \"g\"" : open, &text))
            continue;
        done++;
        check_walk(&rules, &text, !what.free);
    }
    if (done < 5)
        fail_msg("form %d, %d: %d walks came to an end", (int)calls, how, done);
    hzp_grammar_unref(g);
    hzp_structures_close(structures);
    hzp_textbuf_fini(&text);
    json_decref(rules.names);
}

static void test_walks(void **state)
{
    json_t *tools = json_loads(tools_text, 0, NULL), *odd = json_loads(odd_text, 0, NULL);
    assert_non_null(tools);
    for (int kind = 0; kind < HZP_COUNT(toks); kind++)
        for (int calls = HZP_CALLS_NONE + 1; calls < HZP_CALLS_FORMS; calls++)
            for (int how = 0; how < 8; how++) {
                walk_form(kind, (enum hzp_reply_calls)calls, tools, how);
                if (!hzp_call_form[calls].not_in_names)
                    walk_form(kind, (enum hzp_reply_calls)calls, odd, how);
            }
    json_decref(tools);
    json_decref(odd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
