/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/examples.h"

#include "api/learn/fingerprint.h"

#include "api/learn/splitter.h"
#include "base/arena.h"
#include "base/json.h"
#include "base/log.h"
#include "text/chat/lesson.h"
#include "weights/json_file.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const unsigned as_request = HZP_TOKENIZER_ADD_SPECIAL | HZP_TOKENIZER_PARSE_SPECIAL;

void hzp_examples_init(struct hzp_examples *ret, struct hzp_tokenizer *tok,
                       const struct hzp_model_config *config, int32_t tokens_max,
                       int32_t samples_max)
{
    memset(ret, 0, sizeof(*ret));
    ret->tok = tok;
    ret->vocab = config->vocab;
    ret->tokens_max = tokens_max;
    ret->samples_max = samples_max;
    ret->eos = tok ? hzp_tokenizer_eos(tok) : -1;
    if (ret->eos < 0 && config->eos_count > 0)
        ret->eos = config->eos[0];
    if (ret->eos >= ret->vocab)
        ret->eos = -1;
    hzp_lock_init(&ret->lock, HZP_LOCK_EXAMPLES);
}

void hzp_examples_fini(struct hzp_examples *ex)
{
    hzp_lock_fini(&ex->lock);
}

void hzp_examples_free(struct hzp_sample **sample, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        hzp_sample_destroy(sample[i]);
    free(sample);
}

/* The state of parsing one body into samples. */
struct parse {
    const struct hzp_examples *ex;
    struct hzp_sample **sample;
    int32_t count, room;
    size_t held;  /* bytes of the samples */
    int64_t line; /* current line, from 1; in an array: the element */
    struct hzp_tokens tokens, both;
    const struct hzp_example_fields *fields;
    struct hzp_form form;
    uint8_t *learn;
    float *weight; /* weights of a conversation in plain lines */
    size_t learn_room, weight_room;
    struct hzp_err_text *reterr;
};

static int bad(struct parse *p, const char *field, const char *format, ...) HZP_PRINTF(3, 4);

/* Reports an error: the text is "line 3: completion: ...", the param "lines[3].completion". */
static int bad(struct parse *p, const char *field, const char *format, ...)
{
    char text[400], param[64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(param, sizeof(param), "lines[%lld]%s%s", (long long)p->line, field[0] ? "." : "",
             field);
    return hzp_fail_param(p->reterr, HZP_EINVAL, param, "line %lld: %s%s%s", (long long)p->line,
                          field, field[0] ? ": " : "", text);
}

/* --- Tokens to samples ------------------------------------------------------------------------ */

static int no_memory(struct parse *p)
{
    return hzp_fail(p->reterr, HZP_ENOMEM, "line %lld: out of memory", (long long)p->line);
}

/* weight NULL: each token counts once. */
static int push_sample(struct parse *p, const int32_t *token, const uint8_t *learn,
                       const float *weight, int32_t count)
{
    if (p->ex->samples_max && p->count >= p->ex->samples_max)
        return bad(p, "", "more than %d examples in one body; send them in several",
                   p->ex->samples_max);
    if (p->count == INT_MAX / 2)
        return bad(p, "", "too many examples");
    if (p->count == p->room) {
        int32_t room = HZP_MAX(64, 2 * p->room);
        struct hzp_sample **sample = realloc(p->sample, (size_t)room * sizeof(*sample));
        if (!sample)
            return no_memory(p);
        p->sample = sample;
        p->room = room;
    }
    struct hzp_sample *sample = hzp_sample_create_weighted(token, learn, weight, count);
    if (!sample)
        return no_memory(p);
    p->sample[p->count++] = sample;
    size_t each = sizeof(*token) + sizeof(*learn) + (sample->weight ? sizeof(*weight) : 0);
    p->held += sizeof(*sample) + (size_t)count * each;
    return HZP_OK;
}

static int too_long(struct parse *p, const char *field, size_t n)
{
    return bad(p, field, "the example has at least %zu tokens, the maximum is %d", n,
               p->ex->tokens_max);
}

static int nothing(struct parse *p, const char *field)
{
    return bad(p, field, "has no tokens to learn");
}

/* Makes samples of p->tokens, of which those from `from` on are learned: one sample, or several
 * if the examples are to be split; each further sample begins with the last token of the one
 * before.  weight: of each learned token. */
static int push_tokens(struct parse *p, const char *field, int32_t from, float weight)
{
    size_t n = p->tokens.n, max = (size_t)p->ex->tokens_max;
    if (n > max && !p->ex->split)
        return too_long(p, field, n);
    if (n < 2 || (size_t)from >= n)
        return nothing(p, field);
    size_t piece = HZP_MIN(n, max);
    if (hzp_text_grow((void **)&p->learn, &p->learn_room, piece, 1) < 0 ||
        hzp_text_grow((void **)&p->weight, &p->weight_room, piece, sizeof(*p->weight)) < 0)
        return no_memory(p);
    for (size_t i = 0; i < piece; i++)
        p->weight[i] = weight;
    for (size_t at = 0; at + 1 < n; at += max - 1) {
        size_t count = HZP_MIN(max, n - at);
        for (size_t i = 0; i < count; i++)
            p->learn[i] = at + i >= (size_t)HZP_MAX(from, 1);
        HZP_TRY(push_sample(p, p->tokens.ids + at, p->learn, p->weight, (int32_t)count));
    }
    return HZP_OK;
}

/* --- Texts to tokens -------------------------------------------------------------------------- */

static int encode(struct parse *p, const char *field, const char *text, size_t bytes,
                  unsigned flags, struct hzp_tokens *out)
{
    struct hzp_err_text err = {{0}, {0}};
    int32_t max = p->ex->split ? INT_MAX : p->ex->tokens_max;
    int r = hzp_tokenizer_encode(p->ex->tok, text, bytes, flags, max, out, &err);
    if (r == HZP_ENOMEM)
        return no_memory(p);
    if (r < 0)
        return bad(p, field, "%s", err.text);
    for (size_t i = 0; i < out->n; i++)
        if (out->ids[i] < 0 || out->ids[i] >= p->ex->vocab)
            return bad(p, field, "token %d is beyond the model's vocabulary of %d", out->ids[i],
                       p->ex->vocab);
    return HZP_OK;
}

static int append_eos(struct parse *p)
{
    const struct hzp_examples *ex = p->ex;
    if (ex->eos < 0 || (p->tokens.n && p->tokens.ids[p->tokens.n - 1] == ex->eos))
        return HZP_OK;
    return hzp_tokens_append(&p->tokens, &ex->eos, 1) < 0 ? no_memory(p) : HZP_OK;
}

static int get_text(struct parse *p, const json_t *object, const char *field, const char **ret,
                    size_t *ret_bytes)
{
    const json_t *value = json_object_get(object, field);
    if (!value)
        return bad(p, field, "is missing");
    if (!json_is_string(value))
        return bad(p, field, "must be a string");
    if (!p->ex->tok)
        return bad(p, field, "this model has no tokenizer: send tokens");
    *ret = json_string_value(value);
    *ret_bytes = json_string_length(value);
    return HZP_OK;
}

/* text: prompt_bytes of the prompt, then the completion. */
static int push_pair(struct parse *p, const char *text, size_t prompt_bytes, size_t bytes,
                     float weight)
{
    if (bytes == prompt_bytes)
        return nothing(p, "completion");
    HZP_TRY(encode(p, "prompt", text, prompt_bytes, as_request, &p->tokens));
    size_t boundary = p->tokens.n;
    p->both.n = 0;
    HZP_TRY(encode(p, "completion", text, bytes, as_request, &p->both));
    int r;
    size_t ids = boundary * sizeof(*p->tokens.ids);
    if (p->both.n > boundary && (!boundary || !memcmp(p->both.ids, p->tokens.ids, ids)))
        r = hzp_tokens_append(&p->tokens, p->both.ids + boundary, p->both.n - boundary);
    else
        r = encode(p, "completion", text + prompt_bytes, bytes - prompt_bytes,
                   HZP_TOKENIZER_PARSE_SPECIAL, &p->tokens);
    if (r == HZP_ENOMEM)
        return no_memory(p);
    HZP_TRY(r);
    if (p->tokens.n == boundary)
        return nothing(p, "completion");
    HZP_TRY(append_eos(p));
    if (p->tokens.n > (size_t)p->ex->tokens_max)
        return too_long(p, "completion", p->tokens.n); /* splitting would cut off the prompt */
    return push_tokens(p, "completion", (int32_t)boundary, weight);
}

static int parse_pair(struct parse *p, const json_t *object)
{
    const char *prompt, *completion;
    size_t prompt_bytes, completion_bytes;
    HZP_TRY(get_text(p, object, "prompt", &prompt, &prompt_bytes));
    HZP_TRY(get_text(p, object, "completion", &completion, &completion_bytes));
    p->form.text.bytes = 0;
    if (hzp_textbuf_append(&p->form.text, prompt, prompt_bytes) < 0 ||
        hzp_textbuf_append(&p->form.text, completion, completion_bytes) < 0)
        return no_memory(p);
    return push_pair(p, p->form.text.data, prompt_bytes, p->form.text.bytes, 1);
}

/* A conversation with several answers: part by part, each answer with an end token. */
static int push_parts(struct parse *p)
{
    const struct hzp_form *form = &p->form;
    for (size_t i = 0, from = 0; i < form->parts; from = form->part[i++].end) {
        size_t before = p->tokens.n;
        HZP_TRY(encode(p, "", form->text.data + from, form->part[i].end - from,
                       i ? HZP_TOKENIZER_PARSE_SPECIAL : as_request, &p->tokens));
        if (form->part[i].weight > 0)
            HZP_TRY(append_eos(p));
        if (p->tokens.n > (size_t)p->ex->tokens_max)
            return too_long(p, "", p->tokens.n);
        size_t n = HZP_MAX(p->tokens.n, 1);
        if (hzp_text_grow((void **)&p->learn, &p->learn_room, n, 1) < 0 ||
            hzp_text_grow((void **)&p->weight, &p->weight_room, n, sizeof(*p->weight)) < 0)
            return no_memory(p);
        for (size_t k = before; k < p->tokens.n; k++) {
            p->learn[k] = form->part[i].weight > 0 && k > 0;
            p->weight[k] = form->part[i].weight;
        }
    }
    return push_sample(p, p->tokens.ids, p->learn, p->weight, (int32_t)p->tokens.n);
}

/* Files of others have columns beside those that are learned from; a body has no reason to. */
static bool two_shapes(const struct parse *p, const json_t *object)
{
    static const char *const own[] = {"prompt", "completion", "text", "tokens", "learn"};
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    for (int i = 0; i < HZP_COUNT(own); i++) {
        bool asked = (i == 0 && (!named->prompt || !strcmp(named->prompt, own[i]))) ||
                     (i == 1 && (!named->completion || !strcmp(named->completion, own[i])));
        bool maps = named->prompt || named->completion;
        if (json_object_get(object, own[i]) && !(maps && asked))
            return true;
    }
    return false;
}

/* True: the object has one of the forms of forms.h, and *ret is the result. */
static bool parse_form(struct parse *p, const json_t *object, int *ret)
{
    struct hzp_err_text err = {{0}, {0}};
    const struct hzp_form *form = &p->form;
    int r = hzp_form_read(object, p->fields ? p->fields : &p->ex->fields, &p->form, &err);
    if (r == 0)
        return false;
    if (r < 0)
        *ret = r == HZP_ENOMEM ? no_memory(p) : bad(p, err.param, "%s", err.text);
    else if (!p->ex->split && two_shapes(p, object))
        *ret = bad(p, "", "has the fields of two forms: give one");
    else if (!p->ex->tok)
        *ret = bad(p, "", "this model has no tokenizer: send tokens");
    else if (form->parts == 2 && form->part[0].weight == 0)
        *ret = push_pair(p, form->text.data, form->part[0].end, form->text.bytes,
                         form->part[1].weight);
    else
        *ret = push_parts(p);
    return true;
}

static int parse_text(struct parse *p, const json_t *object)
{
    const char *text;
    size_t bytes;
    HZP_TRY(get_text(p, object, "text", &text, &bytes));
    /* Tokens that every text begins with do not count as text: otherwise only the end token would
     * be learned. */
    p->both.n = 0;
    HZP_TRY(encode(p, "text", "", 0, as_request, &p->both));
    HZP_TRY(encode(p, "text", text, bytes, as_request, &p->tokens));
    if (!bytes || p->tokens.n <= p->both.n)
        return nothing(p, "text");
    HZP_TRY(append_eos(p));
    return push_tokens(p, "text", 1, 1);
}

static int parse_tokens(struct parse *p, const json_t *object)
{
    const json_t *tokens = json_object_get(object, "tokens");
    const json_t *learn = json_object_get(object, "learn");
    if (!json_is_array(tokens))
        return bad(p, "tokens", "must be an array of token ids");
    size_t n = json_array_size(tokens);
    if (n > (size_t)p->ex->tokens_max)
        return too_long(p, "tokens", n);
    if (learn && !json_is_array(learn))
        return bad(p, "learn", "must be an array of 0 and 1");
    if (learn && json_array_size(learn) != n)
        return bad(p, "learn", "has %zu entries, tokens has %zu", json_array_size(learn), n);
    if (hzp_text_grow((void **)&p->learn, &p->learn_room, HZP_MAX(n, 1), 1) < 0)
        return no_memory(p);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(tokens, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= p->ex->vocab)
            return bad(p, "tokens", "entry %zu is not a token id from 0 to %d", i,
                       p->ex->vocab - 1);
        const json_t *flag = learn ? json_array_get(learn, i) : NULL;
        bool number = json_is_integer(flag) && (json_integer_value(flag) | 1) == 1;
        if (flag && !number && !json_is_boolean(flag))
            return bad(p, "learn", "entry %zu is neither 0 nor 1", i);
        int32_t token = (int32_t)json_integer_value(id);
        if (hzp_tokens_append(&p->tokens, &token, 1) < 0)
            return no_memory(p);
        p->learn[i] = flag ? json_is_true(flag) || json_integer_value(flag) == 1 : 1;
        any = any || (i && p->learn[i]);
    }
    if (!any)
        return nothing(p, learn ? "learn" : "tokens");
    return push_sample(p, p->tokens.ids, p->learn, NULL, (int32_t)n);
}

static int push_lesson(struct parse *p, const struct hzp_lesson *lesson)
{
    size_t n = lesson->tokens.n;
    bool any = false;
    if (hzp_text_grow((void **)&p->learn, &p->learn_room, HZP_MAX(n, 1), 1) < 0)
        return no_memory(p);
    for (size_t i = 0; i < n; i++) {
        if (lesson->tokens.ids[i] < 0 || lesson->tokens.ids[i] >= p->ex->vocab)
            return bad(p, "messages", "token %d is beyond the model's vocabulary of %d",
                       lesson->tokens.ids[i], p->ex->vocab);
        p->learn[i] = lesson->weight[i] != 0;
        any = any || (i && p->learn[i]);
    }
    return any ? push_sample(p, lesson->tokens.ids, p->learn, lesson->weight, (int32_t)n)
               : nothing(p, "messages");
}

/* An error about messages that a system message was put before: its number is one too high. */
static void renumber(struct hzp_err_text *err)
{
    static const char name[] = "messages[";
    char *const at[] = {err->param, err->text};
    const size_t size[] = {sizeof(err->param), sizeof(err->text)};
    for (int i = 0; i < HZP_COUNT(at); i++) {
        char rest[sizeof(err->text)], *end;
        if (strncmp(at[i], name, sizeof(name) - 1) != 0)
            continue;
        unsigned long number = strtoul(at[i] + sizeof(name) - 1, &end, 10);
        snprintf(rest, sizeof(rest), "%s", end);
        if (number)
            snprintf(at[i], size[i], "%s%lu%s", name, number - 1, rest);
        else if (!i)
            snprintf(at[i], size[i], "system");
    }
}

/* Messages or ShareGPT's conversations, by the model's chat template. */
static int parse_messages(struct parse *p, const json_t *object)
{
    struct hzp_lessons lessons = {0};
    struct hzp_err_text err = {{0}, {0}};
    json_t *whole = NULL;
    int r = hzp_form_messages(object, &whole, &err);
    if (r == HZP_OK)
        r = hzp_lessons_add(p->ex->chat, p->ex->tok, whole, p->ex->tokens_max, &lessons, &err);
    if (r < 0 && whole && hzp_form_has(object, "system"))
        renumber(&err);
    if (r == HZP_ENOMEM)
        r = no_memory(p);
    else if (r < 0)
        r = bad(p, err.param[0] ? err.param : "messages", "%s", err.text);
    for (size_t i = 0; i < lessons.n && r >= 0; i++)
        r = push_lesson(p, &lessons.lesson[i]);
    hzp_lessons_fini(&lessons);
    json_decref(whole);
    return r;
}

/* Whether conversations go through the model's template; without one they are plain lines. */
static bool chats(const struct parse *p)
{
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    return p->ex->chat && p->ex->tok && !named->prompt && !named->completion;
}

static int parse_share(struct parse *p, const json_t *object)
{
    if (!p->ex->split && two_shapes(p, object))
        return bad(p, "", "has the fields of two forms: give one");
    return parse_messages(p, object);
}

/* Names what is there, since it is probably called something else. */
static int no_form(struct parse *p, const json_t *object)
{
    char found[160] = "";
    size_t n = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        int more = snprintf(found + n, sizeof(found) - n, "%s%.40s", n ? ", " : "", name);
        n = HZP_MIN(n + (size_t)HZP_MAX(more, 0), sizeof(found) - 1);
    }
    return bad(
        p, "",
        "has %s%s, and nothing of: prompt and completion (which may be named otherwise), text, "
        "messages, conversations, instruction and output, tokens",
        n ? "the fields " : "no fields", found);
}

/* A field that is not known could mean anything: "reward": -1 must not be learned as if it were
 * praise.  Files of others have columns of their own; in them such fields are ignored. */
static int check_fields(struct parse *p, json_t *object)
{
    static const char *const known[] = {
        "prompt", "completion",    "text",      "tokens",
        "learn",  "messages",      "tools",     "documents",
        "output", "conversations", "input",     "instruction",
        "system", "history",       "functions", "chat_template_kwargs"};
    const char *name;
    json_t *value;
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    bool form = named->prompt || named->completion; /* without any, no_form() says what there is */
    for (int i = 0; i < HZP_COUNT(known); i++)
        form |= json_object_get(object, known[i]) != NULL;
    if (!form || p->ex->split)
        return HZP_OK;
    json_object_foreach(object, name, value)
    {
        int i = 0;
        while (i < HZP_COUNT(known) && strcmp(name, known[i]))
            i++;
        bool asked = (named->prompt && !strcmp(name, named->prompt)) ||
                     (named->completion && !strcmp(name, named->completion));
        if (i < HZP_COUNT(known) || asked)
            continue;
        char field[48];
        snprintf(field, sizeof(field), "%.40s", name);
        return bad(p, field,
                   "is not a field of an example: messages, prompt and completion, text, "
                   "tokens and learn are, and a few forms of other tools");
    }
    return HZP_OK;
}

static int parse_object(struct parse *p, json_t *object)
{
    p->tokens.n = 0;
    if (!json_is_object(object) || hzp_json_spelling(object))
        return bad(p, "", "must be an object");
    HZP_TRY(check_fields(p, object));
    int r;
    bool messages = chats(p) && json_object_get(object, "messages");
    if (chats(p) && json_object_get(object, "conversations"))
        return parse_share(p, object);
    if (messages && p->ex->split) /* whatever other columns a file has */
        return parse_messages(p, object);
    if (!messages && parse_form(p, object, &r))
        return r;
    bool pair = json_object_get(object, "prompt") || json_object_get(object, "completion");
    bool text = json_object_get(object, "text") != NULL;
    bool tokens = json_object_get(object, "tokens") || json_object_get(object, "learn");
    if (pair + text + tokens + messages > 1)
        return bad(p, "", "give either messages, or prompt and completion, or text, or tokens");
    if (messages)
        return parse_messages(p, object);
    struct hzp_err_text err = {{0}, {0}};
    if ((pair || text || tokens) &&
        hzp_form_unused(object, "", "beside prompt and completion, text or tokens", &err) < 0)
        return bad(p, err.param, "%s", err.text);
    if (pair)
        return parse_pair(p, object);
    if (text)
        return parse_text(p, object);
    if (tokens)
        return parse_tokens(p, object);
    return no_form(p, object);
}

/* --- Bodies ----------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* One example's text. */
static int parse_example(void *ctx, int64_t line, const char *text, size_t bytes)
{
    struct parse *p = ctx;
    struct hzp_json_error error;
    /* Python writes files, with columns of NaN. */
    const int flags = HZP_JSON_UNIQUE | HZP_JSON_ANY | (p->ex->split ? HZP_JSON_PYTHON : 0);
    p->line = line;
    json_t *object = hzp_json_load(text, bytes, flags, NULL, &error);
    if (!object && error.no_memory)
        return no_memory(p);
    if (!object)
        return bad(p, "", "not JSON: %s", error.text);
    int r = parse_object(p, object);
    json_decref(object);
    return r;
}

/* Texts longer than this cannot be examples: no token is longer than its share of them. */
static size_t example_bytes_max(const struct hzp_examples *ex)
{
    return ex->split ? 0 : HZP_MAX((size_t)256 << 10, (size_t)ex->tokens_max * 128);
}

/* A kind of file that people have and this program does not read. */
static int unread_body(struct parse *p, const char *unread)
{
    return hzp_fail_param(p->reterr, HZP_EINVAL, "lines", "%s%s", p->ex->split ? "" : "the body ",
                          unread);
}

static int feed(struct parse *p, struct hzp_splitter *split, const char *data, size_t bytes,
                bool last)
{
    struct hzp_err_text err = {{0}, {0}};
    int r = hzp_splitter_feed(split, data, bytes, last, &err);
    p->line = split->line;
    if (r == HZP_EINVAL && err.text[0]) /* the splitter's own */
        return bad(p, "", "%s", err.text);
    return r < 0 && err.text[0] ? no_memory(p) : r;
}

static int parse_body(struct parse *p, const char *body, size_t bytes, const char *content_type)
{
    const char *unread = hzp_form_unread(body, bytes);
    if (unread)
        return unread_body(p, unread);
    struct hzp_splitter split;
    hzp_splitter_init(&split, content_type, example_bytes_max(p->ex), parse_example, p);
    int r = feed(p, &split, body, bytes, true);
    hzp_splitter_fini(&split);
    return r;
}

static int take(struct parse *p, int r, struct hzp_sample ***ret, int32_t *ret_count)
{
    hzp_tokens_fini(&p->tokens);
    hzp_tokens_fini(&p->both);
    hzp_form_fini(&p->form);
    free(p->learn);
    free(p->weight);
    if (r >= 0 && !p->count)
        r = hzp_fail_param(p->reterr, HZP_EINVAL, "lines", "contains no examples");
    if (r < 0) {
        hzp_examples_free(p->sample, p->count);
        return r;
    }
    *ret = p->sample;
    *ret_count = p->count;
    return HZP_OK;
}

int hzp_examples_parse(const struct hzp_examples *ex, const char *body, size_t bytes,
                       const char *content_type, struct hzp_sample ***ret, int32_t *ret_count,
                       struct hzp_err_text *reterr)
{
    struct parse p = {.ex = ex, .reterr = reterr};
    int r = parse_body(&p, body, bytes, content_type);
    return take(&p, r, ret, ret_count);
}

/* --- Bodies that arrive in pieces ------------------------------------------------------------- */

struct hzp_example_reader {
    struct parse p;
    struct hzp_example_fields fields;
    struct hzp_splitter split;
    bool begun;      /* a piece was fed */
    uint64_t digest; /* all pieces, behind the names of fields that were given */
};

struct hzp_example_reader *hzp_example_reader_create(const struct hzp_examples *ex,
                                                     const char *content_type)
{
    struct hzp_example_reader *reader = hzp_xcalloc(1, sizeof(*reader));
    reader->p.ex = ex;
    reader->digest = HZP_FNV;
    hzp_splitter_init(&reader->split, content_type, example_bytes_max(ex), parse_example,
                      &reader->p);
    return reader;
}

void hzp_example_reader_fields(struct hzp_example_reader *reader,
                               const struct hzp_example_fields *fields)
{
    const char *const name[] = {fields->prompt, fields->completion};
    reader->fields = *fields;
    reader->p.fields = &reader->fields;
    for (int i = 0; i < HZP_COUNT(name); i++)
        if (name[i]) {
            reader->digest = hzp_fnv(reader->digest, i ? "c" : "p", 1);
            reader->digest = hzp_fnv(reader->digest, name[i], strlen(name[i]) + 1);
        }
}

void hzp_example_reader_destroy(struct hzp_example_reader *reader)
{
    if (!reader)
        return;
    hzp_splitter_fini(&reader->split);
    hzp_tokens_fini(&reader->p.tokens);
    hzp_tokens_fini(&reader->p.both);
    hzp_form_fini(&reader->p.form);
    free(reader->p.learn);
    free(reader->p.weight);
    hzp_examples_free(reader->p.sample, reader->p.count);
    free(reader);
}

int hzp_example_reader_feed(struct hzp_example_reader *reader, const char *data, size_t bytes,
                            bool last, struct hzp_err_text *reterr)
{
    reader->p.reterr = reterr;
    const char *unread = reader->begun ? NULL : hzp_form_unread(data, bytes);
    reader->digest = hzp_fnv(reader->digest, data, bytes);
    reader->begun = true;
    if (unread)
        return unread_body(&reader->p, unread);
    return feed(&reader->p, &reader->split, data, bytes, last);
}

size_t hzp_example_reader_bytes(const struct hzp_example_reader *reader)
{
    return reader->split.rest.cap + reader->p.held +
           (size_t)reader->p.room * sizeof(*reader->p.sample);
}

int32_t hzp_example_reader_count(const struct hzp_example_reader *reader)
{
    return reader->p.count;
}

/* --- Acceptance ------------------------------------------------------------------------------- */

int hzp_examples_accept_once(struct hzp_examples *ex, const char *body, size_t bytes,
                             const char *content_type, const struct hzp_body_key *key,
                             int64_t *ret_first, int64_t *ret_last, struct hzp_err_text *reterr)
{
    struct hzp_sample **sample;
    int32_t count;
    HZP_TRY(hzp_examples_parse(ex, body, bytes, content_type, &sample, &count, reterr));
    return hzp_examples_commit(ex, sample, count, key, ret_first, ret_last, reterr);
}

int hzp_examples_accept_read(struct hzp_examples *ex, struct hzp_example_reader *reader,
                             const char *key, const char *session, int64_t *ret_first,
                             int64_t *ret_last, struct hzp_err_text *reterr)
{
    struct hzp_body_key once = {.key = key, .digest = reader->digest, .session = session};
    struct hzp_sample **sample = reader->p.sample;
    int32_t count = reader->p.count;
    if (!count)
        return hzp_fail_param(reterr, HZP_EINVAL, "lines", "contains no examples");
    reader->p.sample = NULL;
    reader->p.count = reader->p.room = 0;
    return hzp_examples_commit(ex, sample, count, &once, ret_first, ret_last, reterr);
}

/* --- Files ------------------------------------------------------------------------------------ */

/* Documents are the texts between these marks, stripped of white space at both ends. */
static const char separator[] = "<|endoftext|>";

static int load_text(struct parse *p, const char *body, size_t bytes)
{
    const char *end = body + bytes;
    while (body < end) {
        const char *mark = memmem(body, (size_t)(end - body), separator, sizeof(separator) - 1);
        const char *stop = mark ? mark : end, *last = stop;
        p->line++; /* counts documents */
        while (body < last && is_space(*body))
            body++;
        while (body < last && is_space(last[-1]))
            last--;
        p->tokens.n = 0;
        if (body < last) {
            HZP_TRY(
                encode(p, "", body, (size_t)(last - body), HZP_TOKENIZER_ADD_SPECIAL, &p->tokens));
            if (!p->ex->endless)
                HZP_TRY(append_eos(p));
            if (!p->ex->endless || p->tokens.n > 1) /* a single token has nothing before it */
                HZP_TRY(push_tokens(p, "", 1, 1));
        }
        body = stop + sizeof(separator) - 1;
        if (!mark)
            break;
    }
    return HZP_OK;
}

/* Reads a file of this size; the caller frees *ret. */
static int read_file(int fd, const char *path, uint64_t size, char **ret,
                     struct hzp_err_text *reterr)
{
    if (!size)
        return hzp_fail(reterr, HZP_EINVAL, "%s: is empty", path);
    char *body = size < SIZE_MAX ? malloc((size_t)size) : NULL;
    if (!body)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: not enough memory for its %llu bytes", path,
                        (unsigned long long)size);
    for (size_t at = 0; at < size;) {
        ssize_t n = read(fd, body + at, HZP_MIN((size_t)size - at, (size_t)1 << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            free(body);
            return hzp_fail(reterr, HZP_EIO, "%s: %s", path,
                            n ? strerror(errno) : "has become shorter while it was read");
        }
        at += (size_t)n;
    }
    *ret = body;
    return HZP_OK;
}

int hzp_examples_load(const struct hzp_examples *ex, const char *path, struct hzp_sample ***ret,
                      int32_t *ret_count, struct hzp_err_text *reterr)
{
    uint64_t size;
    struct hzp_err_text err = {{0}, {0}};
    int fd = hzp_open_regular(path, &size, reterr);
    if (fd < 0)
        return fd;
    char *body = NULL;
    int r = read_file(fd, path, size, &body, reterr);
    close(fd);
    if (r < 0)
        return r;

    struct hzp_examples loose = *ex;
    loose.split = true;
    struct parse p = {.ex = &loose, .reterr = &err};
    size_t length = strlen(path);
    bool text = length > 4 && !strcmp(path + length - 4, ".txt");
    r = text ? load_text(&p, body, (size_t)size)
             : parse_body(&p, body, (size_t)size, "application/x-ndjson");
    r = take(&p, r, ret, ret_count);
    free(body);
    return r < 0 ? hzp_fail(reterr, r, "%s: %s", path, err.text) : HZP_OK;
}

int hzp_examples_load_option(const struct hzp_examples *ex, const char *path, const char *option,
                             struct hzp_sample ***ret, int32_t *ret_count,
                             struct hzp_err_text *reterr)
{
    int r = hzp_examples_load(ex, path, ret, ret_count, reterr);
    return r == HZP_ENOENT ? hzp_fail_param(reterr, HZP_EINVAL, option,
                                            "%s %s: there is no such file", option, path)
                           : r;
}
