/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a model's answer in a chat, whole and cut in pieces: the same message comes out.  The
 * first byte chooses the rules, the second the cut; the rest is the text itself, and the pieces of
 * calls of which one is composed. */
#include "tests/fuzz/smoke.h"
#include "base/utf8.h"
#include "text/chat/reply.h"

static void check(bool condition)
{
    if (!condition)
        abort();
}

static struct hzp_reply *read_text(const struct hzp_reply_rules *rules, const char *text, size_t n,
                                   size_t step)
{
    struct hzp_reply *reply;
    check(hzp_reply_create(rules, &reply) == HZP_OK);
    size_t at = 0;
    do {
        size_t bytes = HZP_MIN(step, n - at);
        while (at + bytes < n && ((uint8_t)text[at + bytes] & 0xC0) == 0x80)
            bytes++; /* whole characters, as the detokenizer gives them */
        check(hzp_reply_feed(reply, text + at, bytes, at + bytes == n) == HZP_OK);
        json_decref(hzp_reply_delta(reply));
        at += bytes;
    } while (at < n);
    check(reply->sent_content == reply->content.bytes && reply->sent_calls == reply->calls);
    return reply;
}

static bool same(const struct hzp_textbuf *a, const struct hzp_textbuf *b)
{
    return a->bytes == b->bytes && (!a->bytes || !memcmp(a->data, b->data, a->bytes));
}

/* Read whole and in pieces, it is the same message. */
static void compare(const struct hzp_reply_rules *rules, const char *text, size_t n, size_t step)
{
    struct hzp_reply *whole = read_text(rules, text, n, n + 1);
    struct hzp_reply *cut = read_text(rules, text, n, step);
    check(same(&whole->content, &cut->content) && same(&whole->reasoning, &cut->reasoning));
    check(whole->calls == cut->calls);
    for (int i = 0; i < whole->calls; i++)
        check(!strcmp(whole->call[i].name, cut->call[i].name) &&
              same(&whole->call[i].arguments, &cut->call[i].arguments));
    json_decref(hzp_reply_message(whole));
    hzp_reply_destroy(whole);
    hzp_reply_destroy(cut);
}

/* Pieces of which calls of all forms consist, whole and broken. */
static const char *const pieces[] = {
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"f\"",
    ", \"arguments\": ",
    ", \"parameters\": ",
    "{\"a\": ",
    "{}",
    "}",
    "[",
    "]",
    ",",
    "\"",
    "\\",
    "1e400",
    "18446744073709551615",
    "\"x\"",
    "\"</tool_call>\"",
    "null",
    "tru",
    "\n",
    "; ",
    " text ",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "abcdefghi",
    "f",
    "g",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<think>",
    "</think>",
    "<|channel|>",
    "<|start|>assistant",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>json",
    "analysis",
    "commentary",
    " to=functions.f",
    "final",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": ",
    "<|channel|>commentary to=functions.f<|message|>",
    "{\"arguments\": ",
    ", \"name\": \"g\"}",
    "\"{\\\"a\\\": 1}\"",
    "<",
    "<|",
    "[T",
};

/* A text of pieces, one for each byte; owned by the caller. */
static struct hzp_textbuf compose(const uint8_t *data, size_t size)
{
    struct hzp_textbuf text = {0};
    for (size_t i = 0; i < size; i++) {
        const char *piece = pieces[data[i] % HZP_COUNT(pieces)];
        check(hzp_textbuf_append(&text, piece, strlen(piece)) == HZP_OK);
    }
    return text;
}

static void check_text(const uint8_t rules_of[2], const char *text, size_t bytes)
{
    enum hzp_reply_calls calls = rules_of[0] % HZP_CALLS_FORMS;
    bool channels = calls == HZP_CALLS_CHANNELS;
    json_t *names = rules_of[0] & 64 ? json_pack("{s:b, s:{s:{s:{s:s}}}}", "f", 1, "g",
                                                 "properties", "f", "type", "string")
                                     : NULL;
    const struct hzp_reply_rules rules = {.calls = calls,
                                          .channels = channels,
                                          .reasoning = !channels && (rules_of[0] & 8),
                                          .inside = !channels && (rules_of[0] & 24) == 24,
                                          .one_call = (rules_of[0] & 32) != 0,
                                          .names = names};
    compare(&rules, text, bytes, 1 + rules_of[1] % 8);
    compare(&rules, text, bytes, 1);
    json_decref(names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct hzp_textbuf text = compose(data + 2, HZP_MIN(size - 2, 64));
    check_text(data, text.bytes ? text.data : "", text.bytes);
    hzp_textbuf_fini(&text);
    if (hzp_utf8_valid((const char *)data + 2, size - 2) == size - 2)
        check_text(data, (const char *)data + 2, size - 2);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT(
        "I1 <think>\nbecause\n</think>\n\nText\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
        "{\"a\": [1, null]}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>"),
    FUZZ_TEXT(
        "J2{\"name\": \"f\", \"parameters\": {\"x\": 1.5}}; {\"name\": \"g\", \"parameters\": {}}"),
    FUZZ_TEXT("B3<|python_tag|>{\"name\": \"f\", \"parameters\": {}}"),
    FUZZ_TEXT("D4Let me.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}"),
    FUZZ_TEXT("C5[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]"),
    FUZZ_TEXT("F1<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>"),
    FUZZ_TEXT("G3<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
              "to=functions.f <|constrain|>json<|message|>{}<|call|>"),
    FUZZ_TEXT("X1why \xC3\xA9\n</think> yes"),
};

FUZZ_MAIN(seeds)
