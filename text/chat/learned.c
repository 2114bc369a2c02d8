/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/learned.h"

/* Bytes that a conversation may have tokenised in all, since each turn is tokenised with all before
 * it. */
#define ENCODED_MAX ((size_t)64 << 20)

/* A part of a text that is learned. */
struct part {
    size_t from, to;
    float weight;
};

struct maker {
    const struct hzp_chat *chat;
    struct hzp_tokenizer *tok;
    struct hzp_chat_request request;
    json_t *messages; /* checked, owned */
    size_t *from;     /* owned: which of the given ones each is */
    const json_t *given;
    int32_t max_tokens;
    size_t encoded;
    struct hzp_err_text *reterr;
    struct hzp_jinja_output whole, prompt, turn; /* renderings */
    struct part *part;
    size_t parts;
};

static const char *text_of(const struct hzp_jinja_output *out)
{
    return out->text.bytes ? out->text.data : "";
}

static bool begins_with(const struct hzp_jinja_output *text, const struct hzp_jinja_output *with,
                        size_t bytes)
{
    return text->text.bytes >= bytes && !memcmp(text_of(text), text_of(with), bytes);
}

static size_t common(const struct hzp_jinja_output *a, const struct hzp_jinja_output *b)
{
    size_t n = HZP_MIN(a->text.bytes, b->text.bytes), at = 0;
    while (at < n && text_of(a)[at] == text_of(b)[at])
        at++;
    while (at && at < n && ((uint8_t)text_of(a)[at] & 0xC0) == 0x80) /* not within a character */
        at--;
    return at;
}

/* Renders the first n messages. */
static int render(struct maker *m, size_t n, bool generation_prompt, struct hzp_jinja_output *ret)
{
    json_auto_t *some = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(some, json_array_get(m->messages, i));
    m->request.messages = some;
    m->request.generation_prompt = generation_prompt;
    return hzp_chat_render(m->chat, &m->request, ret, m->reterr);
}

static bool is_assistant(const struct maker *m, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(m->messages, i), "role"));
    return role && !strcmp(role, "assistant");
}

bool hzp_weight_valid(double w)
{
    return w == 0 || (fabs(w) >= HZP_WEIGHT_MIN && fabs(w) <= HZP_WEIGHT_MAX);
}

/* How other programs write that a message is not learned: false, or true. */
const char *const hzp_message_marks[] = {"train", "training", "train_on_turn",
                                         "mask",  "masked",   NULL};

static int marked_weight(const json_t *message, const char *list, size_t i, float *ret,
                         struct hzp_err_text *reterr)
{
    char param[64];
    for (int k = 0; hzp_message_marks[k]; k++) {
        const char *name = hzp_message_marks[k];
        const json_t *mark = json_object_get(message, name);
        if (!mark || json_is_null(mark))
            continue;
        snprintf(param, sizeof(param), "%s[%zu].%s", list, i, name);
        if (!json_is_boolean(mark))
            return hzp_wrong(reterr, param, "must be true or false; \"weight\" takes a number");
        if (json_is_true(mark) == (name[0] == 'm'))
            *ret = 0;
    }
    return HZP_OK;
}

int hzp_message_weight(const json_t *message, const char *list, size_t i, bool assistant,
                       float *ret, struct hzp_err_text *reterr)
{
    const json_t *weight = json_object_get(message, "weight");
    char param[64];
    *ret = assistant ? 1 : 0;
    if (!weight || json_is_null(weight))
        return marked_weight(message, list, i, ret, reterr);
    double w = json_number_value(weight);
    snprintf(param, sizeof(param), "%s[%zu].weight", list, i);
    if (!json_is_number(weight) || !hzp_weight_valid(w))
        return hzp_wrong(reterr, param,
                         "must be 0, or a number from %g to %g, or the negative of one",
                         HZP_WEIGHT_MIN, HZP_WEIGHT_MAX);
    if (!assistant && w != 0)
        return hzp_wrong(reterr, param, ": only what the assistant says is learned");
    *ret = (float)w;
    return HZP_OK;
}

static int weight_of(struct maker *m, size_t i, float *ret)
{
    size_t at = m->from[i];
    return hzp_message_weight(json_array_get(m->given, at), "messages", at, is_assistant(m, i), ret,
                              m->reterr);
}

/* What is learned of message i has all that it says, reasoning too, and is one answer. */
static int check_learned(struct maker *m, size_t i, const struct hzp_jinja_output *text)
{
    size_t at = m->from[i];
    char param[48];
    bool divided = (i && m->from[i - 1] == at) ||
                   (i + 1 < json_array_size(m->messages) && m->from[i + 1] == at);
    snprintf(param, sizeof(param), "messages[%zu]", at);
    if (divided)
        return hzp_wrong(m->reterr, param,
                         ": the model's chat template shows either content or tool_calls");
    return hzp_chat_check_whole(json_array_get(m->given, at), at, &text->text, m->reterr);
}

/* ---- text to tokens ---- */

static int encode(struct maker *m, const char *text, size_t bytes, struct hzp_tokens *out)
{
    m->encoded += bytes;
    if (m->encoded > ENCODED_MAX)
        return hzp_wrong(m->reterr, "messages", ": too many turns for their length");
    return hzp_tokenizer_encode(m->tok, text, bytes, HZP_TOKENIZER_PARSE_SPECIAL, INT32_MAX, out,
                                m->reterr);
}

/* Appends the tokens of text[from, to), so that all are those of text[0, to) where possible: a
 * token that would span `from` is cut there, as it was when serving got the text before it. */
static int append(struct maker *m, const char *text, size_t from, size_t to,
                  struct hzp_tokens *tokens)
{
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens all = {0};
    int r = encode(m, text, to, &all);
    bool extends = r == HZP_OK && all.n >= tokens->n &&
                   (!tokens->n || !memcmp(all.ids, tokens->ids, tokens->n * sizeof(*all.ids)));
    if (extends)
        r = hzp_tokens_append(tokens, all.ids + tokens->n, all.n - tokens->n);
    else if (r == HZP_OK)
        r = encode(m, text + from, to - from, tokens);
    return r;
}

/* Whether only blanks follow the last special token of the learned tokens; *ret_keep: how many
 * tokens to learn then.  They are the template's line end behind a turn, which is never sampled. */
static size_t without_line_end(struct maker *m, const int32_t *id, size_t n)
{
    size_t keep = n;
    while (keep && !hzp_tokenizer_is_special(m->tok, id[keep - 1])) {
        size_t bytes = 0;
        const char *text = hzp_tokenizer_token(m->tok, id[keep - 1], &bytes);
        for (size_t i = 0; text && i < bytes; i++)
            if (text[i] != ' ' && text[i] != '\n' && text[i] != '\r' && text[i] != '\t')
                return n;
        keep--;
    }
    return keep ? keep : n;
}

static int set_weights(struct hzp_learned_text *ret, size_t *room, size_t from, size_t to, float w)
{
    size_t bytes = *room;
    HZP_TRY(hzp_text_grow((void **)&ret->weight, &bytes, HZP_MAX(to, 1), sizeof(float)));
    *room = bytes;
    for (size_t i = from; i < to; i++)
        ret->weight[i] = w;
    return HZP_OK;
}

static int fill_text(struct maker *m, const struct hzp_jinja_output *text, const struct part *part,
                     size_t parts, struct hzp_learned_text *ret)
{
    size_t at = 0, room = 0;
    for (size_t i = 0; i < parts; i++) {
        size_t before = ret->tokens.n;
        if (part[i].from > at)
            HZP_TRY(append(m, text_of(text), at, part[i].from, &ret->tokens));
        size_t first = ret->tokens.n;
        HZP_TRY(append(m, text_of(text), part[i].from, part[i].to, &ret->tokens));
        size_t keep = without_line_end(m, ret->tokens.ids + first, ret->tokens.n - first);
        HZP_TRY(set_weights(ret, &room, before, first, 0));
        HZP_TRY(set_weights(ret, &room, first, first + keep, part[i].weight));
        HZP_TRY(set_weights(ret, &room, first + keep, ret->tokens.n, 0));
        at = part[i].to;
        if (ret->tokens.n > (size_t)m->max_tokens)
            return hzp_wrong(m->reterr, "messages",
                             ": the example has at least %zu tokens, the maximum is %d",
                             ret->tokens.n, m->max_tokens);
    }
    return HZP_OK;
}

/* A learned text of what is said up to the last of the parts; what follows is not learned. */
static int add_text(struct maker *m, const struct hzp_jinja_output *text, const struct part *part,
                    size_t parts, struct hzp_learned_texts *ret)
{
    if (hzp_text_grow((void **)&ret->text, &ret->room, ret->n + 1, sizeof(*ret->text)) < 0)
        return hzp_fail(m->reterr, HZP_ENOMEM, "out of memory");
    struct hzp_learned_text *learned = &ret->text[ret->n++];
    memset(learned, 0, sizeof(*learned));
    int r = fill_text(m, text, part, parts, learned);
    return r == HZP_ENOMEM ? hzp_fail(m->reterr, r, "out of memory") : r;
}

/* ---- what is learned ---- */

static void add_part(struct maker *m, size_t from, size_t to, float weight)
{
    if (weight != 0 && to > from)
        m->part[m->parts++] = (struct part){from, to, weight};
}

/* The generation blocks; each belongs to an assistant message if there are as many. */
static int from_spans(struct maker *m, struct hzp_learned_texts *ret)
{
    size_t count = json_array_size(m->messages), assistants = 0, at = 0;
    for (size_t i = 0; i < count; i++)
        assistants += is_assistant(m, i);
    bool paired = assistants == m->whole.spans;
    size_t left = assistants;
    for (size_t i = 0; i < count; i++) {
        float w;
        HZP_TRY(weight_of(m, i, &w));
        if (!is_assistant(m, i))
            continue;
        if (--left == 0 && w != 0) /* earlier ones may be there without their reasoning */
            HZP_TRY(check_learned(m, i, &m->whole));
        if (!paired && w != 1)
            return hzp_wrong(m->reterr, "messages",
                             ": the template does not show which text is message %zu's, so it "
                             "cannot have a weight of its own",
                             m->from[i]);
        if (paired) {
            add_part(m, m->whole.span[at].from, m->whole.span[at].to, w);
            at++;
        }
    }
    m->part = hzp_xrealloc(m->part, (count + m->whole.spans + 1) * sizeof(*m->part));
    for (size_t i = 0; !paired && i < m->whole.spans; i++)
        add_part(m, m->whole.span[i].from, m->whole.span[i].to, 1);
    return m->parts ? add_text(m, &m->whole, m->part, m->parts, ret) : HZP_OK;
}

/* Renders message i's turn into m->turn; *ret_from: where what is learned of it begins. */
static int render_turn(struct maker *m, size_t i, size_t *ret_from)
{
    HZP_TRY(render(m, i + 1, false, &m->turn));
    HZP_TRY(render(m, i, false, &m->prompt));
    size_t before = m->prompt.text.bytes;
    bool appends = begins_with(&m->turn, &m->prompt, before);
    HZP_TRY(render(m, i, true, &m->prompt));
    *ret_from = common(&m->turn, &m->prompt);
    if (!appends || *ret_from < before)
        return hzp_fail_param(m->reterr, HZP_EINVAL, "messages",
                              "messages[%zu]: the template writes the messages before it "
                              "differently once it is there",
                              m->from[i]);
    return check_learned(m, i, &m->turn);
}

static int from_turns(struct maker *m, struct hzp_learned_texts *ret)
{
    size_t count = json_array_size(m->messages), from;
    bool one = true;
    for (size_t i = 0; i < count; i++) {
        float w;
        HZP_TRY(weight_of(m, i, &w));
        if (!is_assistant(m, i) || w == 0)
            continue;
        HZP_TRY(render_turn(m, i, &from));
        if (!begins_with(&m->whole, &m->turn, m->turn.text.bytes))
            one = false;
        add_part(m, from, m->turn.text.bytes, w);
    }
    if (!m->parts)
        return HZP_OK;
    if (one)
        return add_text(m, &m->whole, m->part, m->parts, ret);
    for (size_t i = 0; i < count; i++) {
        float w;
        HZP_TRY(weight_of(m, i, &w));
        if (!is_assistant(m, i) || w == 0)
            continue;
        HZP_TRY(render_turn(m, i, &from));
        const struct part part = {from, m->turn.text.bytes, w};
        HZP_TRY(add_text(m, &m->turn, &part, 1, ret));
    }
    return HZP_OK;
}

/* ---- the example ---- */

static int read_more(struct maker *m, const json_t *example)
{
    static const struct {
        const char *name;
        json_type type;
    } fields[] = {
        {"tools", JSON_ARRAY}, {"documents", JSON_ARRAY}, {"chat_template_kwargs", JSON_OBJECT}};
    const json_t **at[] = {&m->request.tools, &m->request.documents, &m->request.more};
    for (int i = 0; i < HZP_COUNT(fields); i++) {
        const json_t *value = json_object_get(example, fields[i].name);
        if (!value || json_is_null(value))
            continue;
        if (json_typeof(value) != fields[i].type)
            return hzp_wrong(m->reterr, fields[i].name, "must be %s",
                             fields[i].type == JSON_ARRAY ? "a list" : "an object");
        if (fields[i].type == JSON_OBJECT || json_array_size(value))
            *at[i] = value;
    }
    if (m->request.documents && !hzp_chat_uses(m->chat, m->request.tools != NULL, "documents"))
        return hzp_wrong(m->reterr, "documents",
                         ": the model's chat template has no place for documents");
    return HZP_OK;
}

/* Also of the messages that the template gets as a part of another. */
static int check_weights(struct maker *m)
{
    const json_t *message;
    size_t i;
    float unused;
    json_array_foreach(m->given, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        bool assistant = role && !strcmp(role, "assistant");
        HZP_TRY(hzp_message_weight(message, "messages", i, assistant, &unused, m->reterr));
    }
    return HZP_OK;
}

static int make(struct maker *m, const json_t *example, struct hzp_learned_texts *ret)
{
    size_t before = ret->n;
    HZP_TRY(read_more(m, example));
    m->given = json_object_get(example, "messages");
    HZP_TRY(hzp_chat_messages(m->chat, m->given, &m->messages, &m->from, m->reterr));
    HZP_TRY(check_weights(m));
    m->part = hzp_xcalloc(json_array_size(m->messages) + 1, sizeof(*m->part));
    HZP_TRY(render(m, json_array_size(m->messages), false, &m->whole));
    HZP_TRY(hzp_chat_check(m->chat, &m->request, m->given, &m->whole.text, m->reterr));
    HZP_TRY(m->whole.spans ? from_spans(m, ret) : from_turns(m, ret));
    if (ret->n == before)
        return hzp_wrong(m->reterr, "messages",
                         ": nothing is learned: no assistant message has a weight");
    return HZP_OK;
}

int hzp_learned_texts_add(const struct hzp_chat *chat, struct hzp_tokenizer *tok,
                          const json_t *example, int32_t max_tokens, struct hzp_learned_texts *ret,
                          struct hzp_err_text *reterr)
{
    struct maker m = {.chat = chat, .tok = tok, .max_tokens = max_tokens, .reterr = reterr};
    int r = make(&m, example, ret);
    json_decref(m.messages);
    free(m.from);
    hzp_jinja_output_fini(&m.whole);
    hzp_jinja_output_fini(&m.prompt);
    hzp_jinja_output_fini(&m.turn);
    free(m.part);
    return r;
}

void hzp_learned_texts_fini(struct hzp_learned_texts *texts)
{
    for (size_t i = 0; i < texts->n; i++) {
        hzp_tokens_fini(&texts->text[i].tokens);
        free(texts->text[i].weight);
    }
    free(texts->text);
    memset(texts, 0, sizeof(*texts));
}
