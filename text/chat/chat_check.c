/* SPDX-License-Identifier: Apache-2.0 */
/* Whether what the messages say is in the text that a template made of them. */
#include "text/chat/chat_form.h"

#include "base/utf8.h"

/* Texts are looked for where the one before them ended, so the whole costs little more than reading
 * the text once.  A template that writes messages in another order makes searches from the
 * beginning; together they read at most so many times the text. */
enum { READINGS_MAX = 64, BLOCKS_MAX = 16 /* blocks of reasoning in one answer */ };

/* A text of fewer bytes, blanks aside, may stand in the template's own words. */
enum { SHORT = 16 };

struct check {
    struct hzp_textbuf text; /* without blanks */
    struct hzp_textbuf word; /* the one that is looked for */
    size_t at;               /* behind the text found last */
    size_t left;             /* bytes that may be read from the beginning */
    int spelling[2];         /* enum spelling of the last text, of others' and of tools' messages */
    bool whole;              /* reasoning too */
    bool doubt;              /* what was found may be something else */
    struct hzp_err_text *reterr;
};

/* Appends text without its blanks, as Unicode has them. */
static int append_solid(struct hzp_textbuf *to, const char *text, size_t bytes)
{
    size_t from = 0, at = 0;
    while (at < bytes) {
        int step = hzp_utf8_step((uint8_t)text[at]);
        bool blank;
        if ((uint8_t)text[at] < 0x80)
            blank = hzp_utf8_is_space((uint8_t)text[at]) || (text[at] >= 0x1C && text[at] <= 0x1F);
        else
            blank = at + (size_t)step <= bytes && hzp_utf8_is_space(hzp_utf8_get(text + at, &step));
        if (blank) {
            HZP_TRY(hzp_textbuf_append(to, text + from, at - from));
            from = at + (size_t)step;
        }
        at += (size_t)step;
    }
    return from < bytes ? hzp_textbuf_append(to, text + from, bytes - from) : HZP_OK;
}

static int no_memory(struct check *c)
{
    return hzp_fail(c->reterr, HZP_ENOMEM, "no memory for the messages now");
}

/* Looks for the word behind `at`, then from the beginning.  moves: what comes next is looked for
 * behind it. */
static bool find(struct check *c, const char *word, size_t bytes, bool moves)
{
    if (!bytes)
        return true;
    if (!c->text.bytes)
        return false;
    const char *begin = c->text.data, *end = begin + c->text.bytes;
    const char *found = memmem(begin + c->at, (size_t)(end - begin) - c->at, word, bytes);
    if (found) {
        if (moves)
            c->at = (size_t)(found - begin) + bytes;
        return true;
    }
    if (c->left < c->text.bytes)
        return false;
    c->left -= c->text.bytes;
    c->doubt = true;
    return memmem(begin, c->text.bytes, word, bytes) != NULL;
}

/* How a template writes a text. */
enum spelling { AS_IT_IS, AS_JSON, AS_ASCII_JSON, SPELLINGS };

static int spell(struct check *c, const char *text, size_t bytes, enum spelling how)
{
    c->word.bytes = 0;
    if (how == AS_IT_IS)
        return append_solid(&c->word, text, bytes);
    json_auto_t *string = json_stringn(text, bytes);
    HZP_FREED char *json =
        json_dumps(string, how == AS_JSON ? JSON_ENCODE_ANY : JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    size_t n = json ? strlen(json) : 0; /* with its quotes */
    return n < 2 ? HZP_ENOMEM : append_solid(&c->word, json + 1, n - 2);
}

/* *ret: the text is there, as it is or as a part of JSON; what was right last is tried first. */
static int shown(struct check *c, const char *text, size_t bytes, bool tool, bool *ret)
{
    int last = c->spelling[tool];
    *ret = false;
    for (int i = 0; i < SPELLINGS && !*ret; i++) {
        enum spelling how = (enum spelling)((last + i) % SPELLINGS);
        if (spell(c, text, bytes, how) < 0)
            return no_memory(c);
        *ret = find(c, c->word.data, c->word.bytes, true);
        c->doubt |= c->word.bytes && c->word.bytes < SHORT;
        if (*ret)
            c->spelling[tool] = how;
    }
    return HZP_OK;
}

/* ---- what a message says ---- */

/* Reasoning that an answer has in its content stands between these; templates leave it out of
 * earlier answers. */
static const struct {
    const char *begin, *end;
} reasoning[] = {{"<think>", "</think>"},
                 {"<seed:think>", "</seed:think>"},
                 {"[THINK]", "[/THINK]"},
                 {"<|channel>thought", "<channel|>"},
                 {"<|inner_prefix|>", "<|inner_suffix|>"},
                 {"<thinking>", "</thinking>"},
                 {"<thought>", "</thought>"},
                 {"<reasoning>", "</reasoning>"},
                 {"[BEGIN THINKING]", "[BEGIN FINAL RESPONSE]"},
                 {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
                 {"<|channel|>analysis<|message|>", "<|end|>"}};

/* Where the reasoning's end mark is in the text, NULL: it has none; *ret_begin: where it begins,
 * which without a mark is the text's beginning. */
static const char *find_reasoning(const char *text, size_t bytes, const char **ret_begin,
                                  size_t *ret_mark)
{
    const char *first = NULL;
    for (int i = 0; i < HZP_COUNT(reasoning); i++) {
        size_t n = strlen(reasoning[i].end), b = strlen(reasoning[i].begin);
        const char *end = memmem(text, bytes, reasoning[i].end, n);
        if (!end || (first && end >= first))
            continue;
        const char *begin = memmem(text, (size_t)(end - text), reasoning[i].begin, b);
        first = end;
        *ret_begin = begin ? begin : text;
        *ret_mark = n;
    }
    return first;
}

/* An answer's text without its reasoning is there, piece by piece. */
static int shown_answer(struct check *c, const char *text, size_t bytes, bool *ret)
{
    const char *begin = text, *end;
    size_t mark = 0;
    int blocks = 0;
    *ret = true;
    while (*ret && blocks++ < BLOCKS_MAX &&
           (end = find_reasoning(text, bytes, &begin, &mark)) != NULL) {
        HZP_TRY(shown(c, text, (size_t)(begin - text), false, ret));
        bytes -= (size_t)(end - text) + mark;
        text = end + mark;
    }
    return *ret ? shown(c, text, bytes, false, ret) : HZP_OK;
}

static int left_out(struct check *c, const char *param)
{
    return hzp_wrong(c->reterr, param, ": the model's chat template leaves it out");
}

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static int check_text(struct check *c, const json_t *text, const json_t *message, const char *param)
{
    const char *role = role_of(message), *said = json_string_value(text);
    bool is = true, tool = !strcmp(role, "tool") || !strcmp(role, "function");
    size_t n = json_string_length(text);
    HZP_TRY(c->whole || strcmp(role, "assistant") ? shown(c, said, n, tool, &is)
                                                  : shown_answer(c, said, n, &is));
    if (is)
        return HZP_OK;
    return hzp_wrong(c->reterr, param, ": the model's chat template leaves it out (role \"%.40s\")",
                     role);
}

static int check_content(struct check *c, const json_t *message, size_t at)
{
    const json_t *content = json_object_get(message, "content"), *part;
    const json_t *refusal = json_object_get(message, "refusal");
    char param[80];
    size_t i;
    snprintf(param, sizeof(param), "messages[%zu].refusal", at);
    if (json_is_string(refusal))
        HZP_TRY(check_text(c, refusal, message, param));
    snprintf(param, sizeof(param), "messages[%zu].content", at);
    if (json_is_string(content))
        return check_text(c, content, message, param);
    json_array_foreach(content, i, part)
    {
        snprintf(param, sizeof(param), "messages[%zu].content[%zu]", at, i);
        const json_t *text = hzp_chat_part(part);
        if (text)
            HZP_TRY(check_text(c, text, message, param));
    }
    return HZP_OK;
}

static int check_reasoning(struct check *c, const json_t *message, size_t at)
{
    char param[80];
    for (int i = 0; hzp_chat_reasoning[i]; i++) {
        const json_t *text = json_object_get(message, hzp_chat_reasoning[i]);
        if (!json_string_length(text))
            continue;
        snprintf(param, sizeof(param), "messages[%zu].%s", at, hzp_chat_reasoning[i]);
        HZP_TRY(check_text(c, text, message, param));
    }
    return HZP_OK;
}

/* ---- calls ---- */

static bool letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* The words of an argument, one behind the other, however what is between them is written. */
static bool shown_words(struct check *c, const char *text, size_t bytes)
{
    size_t before = c->at, from, to = 0;
    bool is = true;
    while (is && to < bytes) {
        for (from = to; from < bytes && !letter(text[from]);)
            from++;
        for (to = from; to < bytes && letter(text[to]);)
            to++;
        is = find(c, text + from, to - from, true);
    }
    c->at = before;
    return is;
}

static bool shown_argument(struct check *c, const json_t *value)
{
    const json_t *each;
    const char *key;
    size_t i;
    bool is = true;
    if (json_is_string(value))
        return shown_words(c, json_string_value(value), json_string_length(value));
    if (hzp_json_spelling(value)) /* a number, as all numbers: templates write them in many ways */
        return true;
    json_array_foreach(value, i, each) is = is && shown_argument(c, each);
    json_object_foreach((json_t *)value, key, each)
    {
        is = is && shown_words(c, key, strlen(key)) && shown_argument(c, each);
    }
    return is;
}

static int check_call(struct check *c, const json_t *function, const char *param)
{
    const json_t *name = json_object_get(function, "name"),
                 *arguments = json_object_get(function, "arguments");
    json_t *read = NULL;
    if (!json_is_string(name))
        return HZP_OK;
    if (json_is_string(arguments))
        read = hzp_json_load(json_string_value(arguments), json_string_length(arguments), 0, NULL,
                             NULL);
    bool is = shown_words(c, json_string_value(name), json_string_length(name)) &&
              shown_argument(c, read ? read : arguments);
    json_decref(read);
    c->doubt = true; /* the name may be the tool's own, above */
    return is ? HZP_OK : left_out(c, param);
}

static int check_calls(struct check *c, const json_t *message, size_t at)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *call;
    char param[80];
    size_t i;
    json_array_foreach(calls, i, call)
    {
        snprintf(param, sizeof(param), "messages[%zu].tool_calls[%zu]", at, i);
        HZP_TRY(check_call(c, json_object_get(call, "function"), param));
    }
    snprintf(param, sizeof(param), "messages[%zu].function_call", at);
    return check_call(c, json_object_get(message, "function_call"), param);
}

/* ---- the whole ---- */

static int begin(struct check *c, const struct hzp_textbuf *text)
{
    if (text->bytes && append_solid(&c->text, text->data, text->bytes) < 0)
        return no_memory(c);
    c->left = READINGS_MAX * c->text.bytes;
    return HZP_OK;
}

static void end(struct check *c)
{
    hzp_textbuf_fini(&c->text);
    hzp_textbuf_fini(&c->word);
}

static int check_message(struct check *c, const json_t *message, size_t at)
{
    if (c->whole)
        HZP_TRY(check_reasoning(c, message, at));
    HZP_TRY(check_content(c, message, at));
    return check_calls(c, message, at);
}

/* System messages may have been moved to the beginning, or by the template to the end, so they have
 * an order of their own. */
static int check_messages(struct check *c, const json_t *messages, bool system)
{
    const json_t *message;
    size_t i;
    c->at = 0;
    json_array_foreach(messages, i, message)
    {
        const char *role = role_of(message);
        if (system == (!strcmp(role, "system") || !strcmp(role, "developer")))
            HZP_TRY(check_message(c, message, i));
    }
    return HZP_OK;
}

static int check_tools(struct check *c, const json_t *tools)
{
    const json_t *tool;
    size_t i;
    c->at = 0;
    json_array_foreach(tools, i, tool)
    {
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        if (name && !shown_words(c, json_string_value(name), json_string_length(name)))
            return hzp_fail_param(c->reterr, HZP_EINVAL, "tools",
                                  "tools[%zu]: the model's chat template leaves it out", i);
    }
    return HZP_OK;
}

/* *ret_doubt: also when the text has all, some of it may be other words. */
static int check_all(const json_t *messages, const json_t *tools, const struct hzp_textbuf *text,
                     bool *ret_doubt, struct hzp_err_text *reterr)
{
    HZP_ENDED(end) struct check c = {.reterr = reterr};
    HZP_TRY(begin(&c, text));
    HZP_TRY(check_messages(&c, messages, true));
    HZP_TRY(check_messages(&c, messages, false));
    *ret_doubt = c.doubt;
    return check_tools(&c, tools);
}

/* A word that nothing else has; no other has the same number n. */
static void set_word(const json_t *text, size_t n)
{
    char word[SHORT + 16];
    snprintf(word, sizeof(word), "probedtext%08zu", n);
    if (json_string_length(text))
        json_string_set((json_t *)(uintptr_t)text, word);
}

/* Such a word in place of each text that says something, and of the name of each call, which a
 * message of the role function repeats. */
static void set_words(const json_t *messages)
{
    const json_t *message, *part;
    size_t i, k, n = 0, called = 0;
    json_array_foreach(messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        json_t *one = json_is_string(content) ? json_pack("[O]", content) : NULL;
        json_array_foreach(one ? one : content, k, part)
            set_word(one ? part : hzp_chat_part(part), n++);
        json_decref(one);
        json_array_foreach(json_object_get(message, "tool_calls"), k, part)
            set_word(json_object_get(json_object_get(part, "function"), "name"), n++);
        if (!strcmp(role_of(message), "function"))
            set_word(json_object_get(message, "name"), called);
        called = json_object_get(message, "function_call") ? n++ : called;
        set_word(json_object_get(json_object_get(message, "function_call"), "name"), called);
    }
}

/* Once more, with other words in the messages.  A template that refuses these proves nothing. */
static int check_words(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                       const json_t *messages, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_jinja_output_fini) struct hzp_jinja_output out = {0};
    struct hzp_chat_request again = *request;
    json_auto_t *other = hzp_json_copy(messages), *copy = NULL;
    bool doubt;
    set_words(other);
    int r = hzp_chat_messages(chat, other, &copy, NULL, NULL);
    again.messages = copy;
    if (r == HZP_OK)
        r = hzp_chat_render(chat, &again, &out, NULL);
    return r == HZP_OK ? check_all(other, request->tools, &out.text, &doubt, reterr) : HZP_OK;
}

int hzp_chat_check(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                   const json_t *messages, const struct hzp_textbuf *text,
                   struct hzp_err_text *reterr)
{
    bool doubt;
    HZP_TRY(check_all(messages, request->tools, text, &doubt, reterr));
    return doubt ? check_words(chat, request, messages, reterr) : HZP_OK;
}

int hzp_chat_check_whole(const json_t *message, size_t at, const struct hzp_textbuf *text,
                         struct hzp_err_text *reterr)
{
    HZP_ENDED(end) struct check c = {.whole = true, .reterr = reterr};
    HZP_TRY(begin(&c, text));
    return check_message(&c, message, at);
}
