/* SPDX-License-Identifier: Apache-2.0 */
/* What a template writes between two answers.  The answer before it is rendered with a mark as the
 * last that it says, not as the model wrote it, which templates may write differently; what is
 * wanted begins behind the mark with the first token that ends answers, or, where the template
 * writes none, where the text begins to differ from that of a conversation without the messages. */
#include "text/chat/chat.h"

#define MARK "HERE_THE_ANSWER_ENDS"

/* An answer, with these calls if there are any. */
static json_t *marked(const json_t *calls)
{
    json_t *list = hzp_json_copy(calls), *call;
    size_t i;
    if (!json_array_size(list)) {
        json_decref(list);
        return json_pack("{s:s, s:s}", "role", "assistant", "content", MARK);
    }
    json_array_foreach(list, i, call)
        json_object_set_new(json_object_get(call, "function"), "arguments",
                            json_string("{\"" MARK "\": \"" MARK "\"}"));
    return json_pack("{s:s, s:o}", "role", "assistant", "tool_calls", list);
}

static int render(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                  const json_t *answer, const json_t *next, struct hzp_jinja_output *ret,
                  struct hzp_err_text *reterr)
{
    struct hzp_chat_request whole = *request;
    json_auto_t *list = json_copy((json_t *)(uintptr_t)request->messages), *messages = NULL;
    json_array_append(list, (json_t *)(uintptr_t)answer);
    json_array_extend(list, (json_t *)(uintptr_t)next);
    HZP_TRY(hzp_chat_messages(chat, list, &messages, NULL, reterr));
    whole.messages = messages;
    whole.generation_prompt = next != NULL;
    whole.continues = false;
    return hzp_chat_render(chat, &whole, ret, reterr);
}

/* The place of `word` from byte `from` on; SIZE_MAX: there is none. */
static size_t place(const struct hzp_textbuf *text, size_t from, const char *word, size_t bytes)
{
    const char *at =
        text->bytes > from ? memmem(text->data + from, text->bytes - from, word, bytes) : NULL;
    return at ? (size_t)(at - text->data) : SIZE_MAX;
}

/* Where the text goes on behind the marked answer; SIZE_MAX: it does not show it. */
static size_t behind(const struct hzp_textbuf *text, const struct hzp_textbuf *alone,
                     const json_t *ends)
{
    size_t from = 0, first = SIZE_MAX, ret = SIZE_MAX, same = 0, i;
    const json_t *end;
    /* as often as without the messages behind it, which may say the same */
    for (size_t seen = 0, at = 0, n = strlen(MARK);
         (seen = place(alone, seen, MARK, n)) != SIZE_MAX &&
         (at = place(text, from, MARK, n)) != SIZE_MAX;
         seen += n)
        from = at + n;
    json_array_foreach(ends, i, end)
    {
        size_t bytes = json_string_length(end);
        size_t at = from ? place(text, from, json_string_value(end), bytes) : SIZE_MAX;
        if (at < first)
            ret = at + bytes;
        first = HZP_MIN(first, at);
    }
    while (same < HZP_MIN(text->bytes, alone->bytes) && text->data[same] == alone->data[same])
        same++;
    return ret != SIZE_MAX || !from || same < from ? ret : same;
}

int hzp_chat_turn(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                  const json_t *calls, const json_t *next, const json_t *ends,
                  struct hzp_textbuf *ret, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_jinja_output_fini) struct hzp_jinja_output text = {0}, alone = {0};
    json_auto_t *answer = marked(calls), *checked = NULL;
    const json_t *message;
    size_t i;
    HZP_TRY(hzp_chat_messages(chat, next, &checked, NULL, reterr)); /* for the places in errors */
    HZP_TRY(render(chat, request, answer, next, &text, reterr));
    HZP_TRY(render(chat, request, answer, NULL, &alone, reterr));
    size_t from = behind(&text.text, &alone.text, ends);
    if (from == SIZE_MAX)
        return hzp_fail_param(reterr, HZP_EINVAL, "messages",
                              "the model's chat template shows no answer in front of them");
    HZP_TRY(hzp_textbuf_append(ret, text.text.data + from, text.text.bytes - from));
    json_array_foreach(next, i, message) HZP_TRY(hzp_chat_check_whole(message, i, ret, reterr));
    return HZP_OK;
}
