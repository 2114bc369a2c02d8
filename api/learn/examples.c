/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/examples_parts.h"

#include "base/words.h"
#include "text/chat/learned.h"

static const unsigned as_request = HZP_TOKENIZER_ADD_SPECIAL | HZP_TOKENIZER_PARSE_SPECIAL;

void hzp_examples_init(struct hzp_examples *ret, struct hzp_tokenizer *tok,
                       const struct hzp_model_config *config, int32_t tokens_max,
                       int32_t samples_max)
{
    memset(ret, 0, sizeof(*ret));
    ret->tok = tok;
    ret->vocab = config->vocab;
    ret->tokens_max = ret->piece_tokens = tokens_max;
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

/* Reports an error: the text is "line 3: completion: ...", the param "lines[3].completion". */
int hzp_parse_bad(struct hzp_parse *p, const char *field, const char *format, ...)
{
    char text[400], param[64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (p->answer && (!strncmp(field, "completion", 10) || !strncmp(field, "messages", 8)))
        field = p->answer;
    snprintf(param, sizeof(param), "lines[%lld]%s%s", (long long)p->line, field[0] ? "." : "",
             field);
    return hzp_fail_param(p->reterr, HZP_EINVAL, param, "line %lld: %s%s%s", (long long)p->line,
                          field, field[0] ? ": " : "", text);
}

/* --- Tokens to samples ------------------------------------------------------------------------ */

int hzp_parse_no_memory(struct hzp_parse *p)
{
    return hzp_fail(p->reterr, HZP_ENOMEM, "line %lld: out of memory", (long long)p->line);
}

static int encode(struct hzp_parse *p, const char *field, const char *text, size_t bytes,
                  unsigned flags, struct hzp_tokens *out);

int hzp_parse_too_long(struct hzp_parse *p, const char *field, size_t n)
{
    return hzp_parse_bad(p, field, "the example has at least %zu tokens, the maximum is %d", n,
                         p->ex->tokens_max);
}

/* Of an example that has become too long while it is made: files are told how long it is. */
static bool beyond(const struct hzp_parse *p, size_t n)
{
    return n > (size_t)p->ex->tokens_max && !p->found;
}

void hzp_lines_note(struct hzp_lines *lines, int64_t line)
{
    if (lines->count < HZP_LINES_SHOWN)
        lines->first[lines->count] = line;
    lines->count++;
}

/* Behind the tokens that every text begins with; what is learned stays, and something before it. */
bool hzp_parse_cut(struct hzp_parse *p, int32_t *token, uint8_t *learn, float *weight,
                   int32_t count, int32_t left)
{
    int32_t cut = count - left, begin = 0, first = 1;
    struct hzp_tokens empty = {0};
    if (p->ex->tok && encode(p, "", "", 0, as_request, &empty) == HZP_OK)
        while (begin < (int32_t)empty.n && begin < count && token[begin] == empty.ids[begin])
            begin++;
    hzp_tokens_fini(&empty);
    while (first < count && !learn[first])
        first++;
    if (begin + cut > first - (begin == 0))
        return false;
    size_t behind = (size_t)(left - begin);
    memmove(token + begin, token + begin + cut, behind * sizeof(*token));
    memmove(learn + begin, learn + begin + cut, behind);
    if (weight)
        memmove(weight + begin, weight + begin + cut, behind * sizeof(*weight));
    if (p->losses)
        memmove(p->how + begin, p->how + begin + cut, behind * sizeof(*p->how));
    return true;
}

/* An example of a file that is too long.  1: it was cut and is used. */
static int fit(struct hzp_parse *p, int32_t *token, uint8_t *learn, float *weight, int32_t count)
{
    hzp_lines_note(&p->found->too_long, p->line);
    p->found->longest = HZP_MAX(p->found->longest, (int64_t)count);
    if (p->ex->too_long != HZP_TOO_LONG_CUT)
        return 0;
    if (hzp_parse_cut(p, token, learn, weight, count, p->ex->tokens_max))
        return 1;
    hzp_lines_note(&p->found->answer_long, p->line);
    return 0;
}

/* weight NULL: each token counts once; p->how are the losses, if the example has any.  All of these
 * may be changed. */
static int push_sample(struct hzp_parse *p, int32_t *token, uint8_t *learn, float *weight,
                       int32_t count)
{
    if (count > p->ex->tokens_max && p->found && !p->answer) {
        if (!fit(p, token, learn, weight, count))
            return HZP_OK;
        count = p->ex->tokens_max;
    }
    if (p->ex->samples_max && p->count >= p->ex->samples_max + (p->answer != NULL))
        return hzp_parse_bad(p, "", "more than %d examples in one body; send them in several",
                             p->ex->samples_max);
    if (p->count == INT_MAX / 2)
        return hzp_parse_bad(p, "", "too many examples");
    if (p->count == p->room) {
        int32_t room = HZP_MAX(64, 2 * p->room);
        struct hzp_sample **sample = realloc(p->sample, (size_t)room * sizeof(*sample));
        if (!sample)
            return hzp_parse_no_memory(p);
        p->sample = sample;
        p->room = room;
    }
    struct hzp_sample *sample =
        hzp_sample_create_soft(token, learn, weight, p->losses ? p->how : NULL, p->soft, count);
    if (!sample)
        return hzp_parse_no_memory(p);
    p->sample[p->count++] = sample;
    size_t each = sizeof(*token) + sizeof(*learn) + (sample->weight ? sizeof(*weight) : 0) +
                  (sample->how ? sizeof(*sample->how) : 0);
    p->held += sizeof(*sample) + (size_t)count * each + (size_t)sample->softs * sizeof(*p->soft);
    return HZP_OK;
}

static int nothing(struct hzp_parse *p, const char *field)
{
    return hzp_parse_bad(p, field, "has no tokens to learn");
}

static int grow_learn(struct hzp_parse *p, size_t n)
{
    bool grown =
        hzp_text_grow((void **)&p->learn, &p->learn_room, HZP_MAX(n, 1), 1) >= 0 &&
        hzp_text_grow((void **)&p->weight, &p->weight_room, HZP_MAX(n, 1), sizeof(float)) >= 0;
    return grown ? HZP_OK : hzp_parse_no_memory(p);
}

/* Makes a sample of p->tokens, of which those from `from` on are learned with this weight. */
static int push_learned(struct hzp_parse *p, const char *field, int32_t from, float weight)
{
    size_t n = p->tokens.n;
    if (n < 2 || (size_t)from >= n)
        return nothing(p, field);
    HZP_TRY(grow_learn(p, n));
    for (size_t i = 0; i < n; i++) {
        p->learn[i] = i >= (size_t)HZP_MAX(from, 1);
        p->weight[i] = weight;
    }
    return push_sample(p, p->tokens.ids, p->learn, p->weight, (int32_t)n);
}

/* Makes samples of a text, p->tokens: one, or several if they are to be split; each further one
 * begins with the last token of the one before. */
static int push_text(struct hzp_parse *p, const char *field)
{
    size_t n = p->tokens.n;
    size_t max = (size_t)(p->ex->split ? p->ex->piece_tokens : p->ex->tokens_max);
    if (n > max && !p->ex->split)
        return hzp_parse_too_long(p, field, n);
    if (n < 2)
        return nothing(p, field);
    HZP_TRY(grow_learn(p, HZP_MIN(n, max)));
    memset(p->learn, 1, HZP_MIN(n, max));
    for (size_t at = 0; at + 1 < n; at += max - 1) {
        p->learn[0] = 0;
        HZP_TRY(push_sample(p, p->tokens.ids + at, p->learn, NULL, (int32_t)HZP_MIN(max, n - at)));
    }
    return HZP_OK;
}

/* --- Texts to tokens -------------------------------------------------------------------------- */

static int encode(struct hzp_parse *p, const char *field, const char *text, size_t bytes,
                  unsigned flags, struct hzp_tokens *out)
{
    struct hzp_err_text err = {{0}, {0}};
    int32_t max = p->ex->split ? INT_MAX : p->ex->tokens_max;
    int r = hzp_tokenizer_encode(p->ex->tok, text, bytes, flags, max, out, &err);
    if (r == HZP_ENOMEM)
        return hzp_parse_no_memory(p);
    if (r < 0)
        return hzp_parse_bad(p, field, "%s", err.text);
    for (size_t i = 0; i < out->n; i++)
        if (out->ids[i] < 0 || out->ids[i] >= p->ex->vocab)
            return hzp_parse_bad(p, field, "token %d is beyond the model's vocabulary of %d",
                                 out->ids[i], p->ex->vocab);
    return HZP_OK;
}

static int append_eos(struct hzp_parse *p)
{
    const struct hzp_examples *ex = p->ex;
    if (ex->eos < 0 || (p->tokens.n && p->tokens.ids[p->tokens.n - 1] == ex->eos))
        return HZP_OK;
    return hzp_tokens_append(&p->tokens, &ex->eos, 1) < 0 ? hzp_parse_no_memory(p) : HZP_OK;
}

/* The names of what is there, separated by commas. */
static void list_fields(const json_t *object, char *ret, size_t size)
{
    size_t n = 0;
    const char *name;
    json_t *value;
    ret[0] = 0;
    json_object_foreach((json_t *)object, name, value)
    {
        int more = snprintf(ret + n, size - n, "%s%.40s", n ? ", " : "", name);
        n = HZP_MIN(n + (size_t)HZP_MAX(more, 0), size - 1);
    }
}

/* Where other names of prompt and completion are given; which: one of them, or "both". */
static const char *other_names(const struct hzp_parse *p, const char *which)
{
    bool option = p->ex->too_long != HZP_TOO_LONG_REFUSED, file = p->ex->split;
    if (file && !option)
        return "";
    if (!strcmp(which, "prompt"))
        return file ? " (--prompt-field names it)" : " (?prompt_field= names it)";
    if (!strcmp(which, "completion"))
        return file ? " (--completion-field names it)" : " (?completion_field= names it)";
    return file ? " (--prompt-field and --completion-field give other names)"
                : " (?prompt_field= and ?completion_field= give other names)";
}

/* Which of the two a field was named as, or is; NULL: neither. */
static const char *named(const struct hzp_parse *p, const char *field)
{
    const struct hzp_example_fields *fields = p->fields ? p->fields : &p->ex->fields;
    return !strcmp(field, fields->prompt ? fields->prompt : "prompt")               ? "prompt"
           : !strcmp(field, fields->completion ? fields->completion : "completion") ? "completion"
                                                                                    : NULL;
}

static int missing(struct hzp_parse *p, const json_t *object, const char *field)
{
    char found[160];
    const char *which = named(p, field);
    list_fields(object, found, sizeof(found));
    return hzp_parse_bad(p, field, "is missing%s; the fields are %s",
                         which ? other_names(p, which) : "", found);
}

static int get_text(struct hzp_parse *p, const json_t *object, const char *field, const char **ret,
                    size_t *ret_bytes)
{
    const json_t *value = json_object_get(object, field);
    if (!value)
        return missing(p, object, field);
    if (!json_is_string(value))
        return hzp_parse_bad(p, field, "must be a string");
    if (!p->ex->tok)
        return hzp_parse_bad(p, field, "this model has no tokenizer: send tokens");
    *ret = json_string_value(value);
    *ret_bytes = json_string_length(value);
    return HZP_OK;
}

/* text: prompt_bytes of the prompt, then the completion. */
static int push_pair(struct hzp_parse *p, const char *text, size_t prompt_bytes, size_t bytes,
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
        return hzp_parse_no_memory(p);
    HZP_TRY(r);
    if (p->tokens.n == boundary)
        return nothing(p, "completion");
    HZP_TRY(append_eos(p));
    if (beyond(p, p->tokens.n))
        return hzp_parse_too_long(p, "completion", p->tokens.n);
    return push_learned(p, "completion", (int32_t)boundary, weight);
}

static int parse_pair(struct hzp_parse *p, const json_t *object)
{
    const char *prompt, *completion;
    size_t prompt_bytes, completion_bytes;
    HZP_TRY(get_text(p, object, "prompt", &prompt, &prompt_bytes));
    HZP_TRY(get_text(p, object, "completion", &completion, &completion_bytes));
    p->form.text.bytes = 0;
    if (hzp_textbuf_append(&p->form.text, prompt, prompt_bytes) < 0 ||
        hzp_textbuf_append(&p->form.text, completion, completion_bytes) < 0)
        return hzp_parse_no_memory(p);
    return push_pair(p, p->form.text.data, prompt_bytes, p->form.text.bytes, 1);
}

/* A conversation with several answers: part by part, each answer with an end token. */
static int push_parts(struct hzp_parse *p)
{
    const struct hzp_form *form = &p->form;
    for (size_t i = 0, from = 0; i < form->parts; from = form->part[i++].end) {
        size_t before = p->tokens.n;
        HZP_TRY(encode(p, "", form->text.data + from, form->part[i].end - from,
                       i ? HZP_TOKENIZER_PARSE_SPECIAL : as_request, &p->tokens));
        if (form->part[i].weight != 0)
            HZP_TRY(append_eos(p));
        if (beyond(p, p->tokens.n))
            return hzp_parse_too_long(p, "", p->tokens.n);
        HZP_TRY(grow_learn(p, p->tokens.n));
        for (size_t k = before; k < p->tokens.n; k++) {
            p->learn[k] = form->part[i].weight != 0 && k > 0;
            p->weight[k] = form->part[i].weight;
        }
    }
    return push_sample(p, p->tokens.ids, p->learn, p->weight, (int32_t)p->tokens.n);
}

/* Files of others have columns beside those that are learned from; a body has no reason to. */
static bool two_shapes(const struct hzp_parse *p, const json_t *object)
{
    static const char *const own[] = {"prompt", "completion", "text", "tokens", "learn"};
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    for (int i = 0; i < HZP_COUNT(own); i++) {
        bool asked = (i == 0 && (!named->prompt || !strcmp(named->prompt, own[i]))) ||
                     (i == 1 && (!named->completion || !strcmp(named->completion, own[i])));
        bool maps = named->prompt || named->completion;
        if (json_object_get(object, own[i]) && !(maps && asked) &&
            !(i < 2 && hzp_form_is_pair(object)))
            return true;
    }
    return false;
}

/* True: the object has one of the forms of forms.h, and *ret is the result. */
static bool parse_form(struct hzp_parse *p, const json_t *object, int *ret)
{
    struct hzp_err_text err = {{0}, {0}};
    const struct hzp_form *form = &p->form;
    int r = hzp_form_read(object, p->fields ? p->fields : &p->ex->fields, &p->form, &err);
    if (r == 0)
        return false;
    if (r == HZP_EINVAL && named(p, err.param) && !json_object_get(object, err.param))
        *ret = missing(p, object, err.param);
    else if (r < 0)
        *ret =
            r == HZP_ENOMEM ? hzp_parse_no_memory(p) : hzp_parse_bad(p, err.param, "%s", err.text);
    else if (!p->ex->split && two_shapes(p, object))
        *ret = hzp_parse_bad(p, "", "has the fields of two forms: give one");
    else if (!p->ex->tok)
        *ret = hzp_parse_bad(p, "", "this model has no tokenizer: send tokens");
    else if (form->parts == 2 && form->part[0].weight == 0)
        *ret = push_pair(p, form->text.data, form->part[0].end, form->text.bytes,
                         form->part[1].weight);
    else
        *ret = push_parts(p);
    return true;
}

static int parse_text(struct hzp_parse *p, const json_t *object)
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
    return push_text(p, "text");
}

int hzp_parse_document(struct hzp_parse *p, const char *text, size_t bytes)
{
    p->tokens.n = 0;
    HZP_TRY(encode(p, "", text, bytes, HZP_TOKENIZER_ADD_SPECIAL, &p->tokens));
    if (p->ex->endless && p->tokens.n < 2)
        return HZP_OK; /* a single token has nothing before it */
    if (!p->ex->endless)
        HZP_TRY(append_eos(p));
    return push_text(p, "");
}

static int parse_tokens(struct hzp_parse *p, const json_t *object)
{
    const json_t *tokens = json_object_get(object, "tokens");
    const json_t *learn = json_object_get(object, "learn");
    if (!json_is_array(tokens))
        return hzp_parse_bad(p, "tokens", "must be an array of token ids");
    size_t n = json_array_size(tokens);
    if (beyond(p, n))
        return hzp_parse_too_long(p, "tokens", n);
    if (learn && !json_is_array(learn))
        return hzp_parse_bad(p, "learn", "must be an array of 0 and 1");
    if (learn && json_array_size(learn) != n)
        return hzp_parse_bad(p, "learn", "has %zu entries, tokens has %zu", json_array_size(learn),
                             n);
    HZP_TRY(grow_learn(p, n));
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(tokens, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= p->ex->vocab)
            return hzp_parse_bad(p, "tokens", "entry %zu is not a token id from 0 to %d", i,
                                 p->ex->vocab - 1);
        const json_t *flag = learn ? json_array_get(learn, i) : NULL;
        bool number = json_is_integer(flag) && (json_integer_value(flag) | 1) == 1;
        if (flag && !number && !json_is_boolean(flag))
            return hzp_parse_bad(p, "learn", "entry %zu is neither 0 nor 1", i);
        int32_t token = (int32_t)json_integer_value(id);
        if (hzp_tokens_append(&p->tokens, &token, 1) < 0)
            return hzp_parse_no_memory(p);
        p->learn[i] = flag ? json_is_true(flag) || json_integer_value(flag) == 1 : 1;
        any = any || (i && p->learn[i]);
    }
    if (!any)
        return nothing(p, learn ? "learn" : "tokens");
    float *weight;
    HZP_TRY(hzp_parse_losses(p, object, n, &weight));
    return push_sample(p, p->tokens.ids, p->learn, weight, (int32_t)n);
}

static int push_learned_text(struct hzp_parse *p, const struct hzp_learned_text *text)
{
    size_t n = text->tokens.n;
    bool any = false;
    if (hzp_text_grow((void **)&p->learn, &p->learn_room, HZP_MAX(n, 1), 1) < 0)
        return hzp_parse_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        if (text->tokens.ids[i] < 0 || text->tokens.ids[i] >= p->ex->vocab)
            return hzp_parse_bad(p, "messages", "token %d is beyond the model's vocabulary of %d",
                                 text->tokens.ids[i], p->ex->vocab);
        p->learn[i] = text->weight[i] != 0;
        any = any || (i && p->learn[i]);
    }
    return any ? push_sample(p, text->tokens.ids, p->learn, text->weight, (int32_t)n)
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

/* The text without the name of the field that it may begin with. */
static const char *without_name(const struct hzp_err_text *err)
{
    size_t n = strlen(err->param);
    return n && !strncmp(err->text, err->param, n) && !strncmp(err->text + n, ": ", 2)
               ? err->text + n + 2
               : err->text;
}

/* Messages or ShareGPT's conversations, by the model's chat template. */
static int parse_messages(struct hzp_parse *p, const json_t *object)
{
    HZP_ENDED(hzp_learned_texts_fini) struct hzp_learned_texts texts = {0};
    struct hzp_err_text err = {{0}, {0}};
    json_auto_t *whole = NULL;
    int r = hzp_form_messages(object, &whole, &err);
    if (r == HZP_OK)
        r = hzp_learned_texts_add(p->ex->chat, p->ex->tok, whole,
                                  p->found ? INT32_MAX : p->ex->tokens_max, &texts, &err);
    if (r < 0 && whole && hzp_form_has(object, "system"))
        renumber(&err);
    if (r == HZP_ENOMEM)
        r = hzp_parse_no_memory(p);
    else if (r < 0)
        r = hzp_parse_bad(p, err.param[0] ? err.param : "messages", "%s", without_name(&err));
    for (size_t i = 0; i < texts.n && r >= 0; i++)
        r = push_learned_text(p, &texts.text[i]);
    return r;
}

/* Whether conversations go through the model's template; without one they are plain lines. */
static bool chats(const struct hzp_parse *p)
{
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    return p->ex->chat && p->ex->tok && !named->prompt && !named->completion;
}

static int parse_share(struct hzp_parse *p, const json_t *object)
{
    if (!p->ex->split && two_shapes(p, object))
        return hzp_parse_bad(p, "", "has the fields of two forms: give one");
    return parse_messages(p, object);
}

/* Says what is there, since it is probably called something else. */
static int no_form(struct hzp_parse *p, const json_t *object)
{
    char found[160];
    list_fields(object, found, sizeof(found));
    return hzp_parse_bad(p, "",
                         "has %s%s, and nothing of: prompt and completion%s, text, messages, "
                         "conversations, instruction and output, input and output, tokens, chosen "
                         "and rejected",
                         found[0] ? "the fields " : "no fields", found, other_names(p, "both"));
}

/* A field that is not known could mean anything: "reward": -1 must not be learned as if it were
 * praise.  Files of others have columns of their own; in them such fields are ignored. */
static int check_fields(struct hzp_parse *p, json_t *object)
{
    static const char known[] =
        "prompt completion text tokens learn messages tools documents output "
        "conversations input instruction system history functions "
        "chat_template_kwargs";
    static const char beside_tokens[] =
        "weights loss targets logprobs advantages reference_logprobs";
    const char *name;
    json_t *value;
    const struct hzp_example_fields *named = p->fields ? p->fields : &p->ex->fields;
    bool form = named->prompt || named->completion; /* without any, no_form() says what there is */
    json_object_foreach(object, name, value) form |= hzp_among(known, name);
    if (!form || p->ex->split)
        return HZP_OK;
    json_object_foreach(object, name, value)
    {
        bool asked = (named->prompt && !strcmp(name, named->prompt)) ||
                     (named->completion && !strcmp(name, named->completion));
        bool column = json_object_get(object, "tokens") && hzp_among(beside_tokens, name);
        if (hzp_among(known, name) || asked || column)
            continue;
        char field[48];
        snprintf(field, sizeof(field), "%.40s", name);
        return hzp_parse_bad(p, field,
                             "is not a field of an example: messages, prompt and completion, text, "
                             "tokens and learn are, and a few forms of other tools%s",
                             other_names(p, "both"));
    }
    return HZP_OK;
}

/* Tools that write rows of several forms to one file write null where a row has no such column. */
static void drop_nulls(json_t *object)
{
    const char *name;
    size_t bytes;
    json_t *value;
    void *next;
    json_object_keylen_foreach_safe(object, next, name, bytes, value)
    {
        if (json_is_null(value))
            json_object_deln(object, name, bytes);
    }
}

int hzp_parse_single(struct hzp_parse *p, json_t *object)
{
    int r;
    p->tokens.n = 0;
    p->losses = false;
    HZP_TRY(check_fields(p, object));
    bool messages = chats(p) && json_object_get(object, "messages");
    if (chats(p) && !messages && hzp_form_is_pair(object))
        return parse_messages(p, object);
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
        return hzp_parse_bad(p, "",
                             "give either messages, or prompt and completion, or text, or tokens");
    if (messages)
        return parse_messages(p, object);
    struct hzp_err_text err = {{0}, {0}};
    if ((pair || text || tokens) &&
        hzp_form_unused(object, "", "beside prompt and completion, text or tokens", &err) < 0)
        return hzp_parse_bad(p, err.param, "%s", err.text);
    if (pair)
        return parse_pair(p, object);
    if (text)
        return parse_text(p, object);
    if (tokens)
        return parse_tokens(p, object);
    return no_form(p, object);
}

int hzp_parse_look_on(struct hzp_parse *p, int r)
{
    struct hzp_parse_found *found = p->found;
    char line[32];
    int i = 0;
    if (found)
        found->examples++;
    if (!found || r != HZP_EINVAL)
        return r;
    const char *text = p->reterr->text;
    size_t n = (size_t)snprintf(line, sizeof(line), "line %lld: ", (long long)p->line);
    text += strncmp(text, line, n) ? 0 : n;
    while (i < HZP_REASONS_SHOWN && found->reason[i].lines.count &&
           strncmp(found->reason[i].text, text, sizeof(found->reason[i].text) - 1))
        i++;
    if (i < HZP_REASONS_SHOWN) {
        snprintf(found->reason[i].text, sizeof(found->reason[i].text), "%.255s", text);
        hzp_lines_note(&found->reason[i].lines, p->line);
    }
    found->wrong++;
    return HZP_OK;
}

int hzp_parse_object(void *ctx, int64_t line, json_t *object)
{
    struct hzp_parse *p = ctx;
    p->line = line;
    if (!json_is_object(object))
        return hzp_parse_look_on(p, hzp_parse_bad(p, "", "must be an object"));
    drop_nulls(object);
    return hzp_parse_look_on(p, hzp_parse_asked(p, object));
}
