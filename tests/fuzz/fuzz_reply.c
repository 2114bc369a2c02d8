/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a model's answer in a chat, whole and cut in pieces: the same message comes out.  The
 * first byte chooses the rules, the second the cut. */
#include "tests/fuzz/smoke.h"
#include "text/chars/utf8.h"
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || hzp_utf8_valid((const char *)data + 2, size - 2) != size - 2)
        return 0;
    bool channels = (data[0] & 96) == 96;
    const struct hzp_reply_rules rules = {.calls = channels ? HZP_CALLS_CHANNELS : data[0] % 4,
                                          .channels = channels,
                                          .reasoning = !channels && (data[0] & 4) != 0,
                                          .inside = !channels && (data[0] & 12) == 12,
                                          .one_call = (data[0] & 16) != 0};
    struct hzp_reply_rules glm = rules, live = rules;
    glm.calls = channels ? HZP_CALLS_CHANNELS : HZP_CALLS_GLM;
    live.live = true; /* a malformed call differs then: it has begun already */
    const char *text = (const char *)data + 2;
    hzp_reply_destroy(read_text(&live, text, size - 2, 1 + data[1] % 8));
    compare(&rules, text, size - 2, 1 + data[1] % 8);
    compare(&glm, text, size - 2, 1 + data[1] % 8);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT(
        "51 <think>\nbecause\n</think>\n\nText\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
        "{\"a\": [1, null]}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>"),
    FUZZ_TEXT(
        "22{\"name\": \"f\", \"parameters\": {\"x\": 1.5}}; {\"name\": \"g\", \"parameters\": {}}"),
    FUZZ_TEXT("23<|python_tag|>{\"name\": \"f\", \"parameters\": {}}"),
    FUZZ_TEXT("34Let me.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}"),
    FUZZ_TEXT("35[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]"),
    FUZZ_TEXT("d1<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>"),
    FUZZ_TEXT("`3<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
              "to=functions.f <|constrain|>json<|message|>{}<|call|>"),
    FUZZ_TEXT("<1why \xC3\xA9\n</think> yes"),
};

FUZZ_MAIN(seeds)
