/* SPDX-License-Identifier: Apache-2.0 */
#include "api/rollout/verify.h"

#include "base/words.h"
#include "text/tokenizer/pattern.h"

enum kind { EXACT, NUMBER, BOXED, REGEX, JSON, LENGTH, CLIENT, COMMAND, MODEL, KINDS };
static const char *const kind_name[KINDS] = {"exact",  "number", "boxed",   "regex", "json",
                                             "length", "client", "command", "model"};
static const double timeout_client = 600, timeout_command = 60, timeout_max = 86400;
static const char *const mark[] = {"{text}", "{prompt}", "{answer}"}; /* a template names them */
enum { TOKENS_MAX = 1 << 20 };

struct hzp_verifier {
    enum kind kind;
    struct hzp_pattern *pattern; /* REGEX */
    struct hzp_matcher *matcher;
    double tokens, seconds;
    json_t *rule; /* MODEL */
};

static int read_positive(const json_t *rule, const char *name, double preset, double max,
                         double *ret, struct hzp_err_text *reterr)
{
    char param[32];
    const json_t *value = json_object_get(rule, name);
    *ret = value ? json_number_value(value) : preset;
    snprintf(param, sizeof(param), "reward.%s", name);
    if ((!value || json_is_number(value)) && *ret > 0 && *ret <= max)
        return HZP_OK;
    return hzp_wrong(reterr, param, "must be a number above 0, at most %.0f", max);
}

static int compile(const json_t *rule, struct hzp_verifier *v, struct hzp_err_text *reterr)
{
    const json_t *pattern = json_object_get(rule, "pattern");
    if (!hzp_json_is_text(pattern) || !json_string_length(pattern) ||
        json_string_length(pattern) > HZP_VERIFY_PATTERN_MAX)
        return hzp_wrong(reterr, "reward.pattern", "must be a text of 1 to %d bytes",
                         HZP_VERIFY_PATTERN_MAX);
    if (hzp_pattern_regex(json_string_value(pattern), json_string_length(pattern), "reward.pattern",
                          &v->pattern, reterr) < 0) {
        snprintf(reterr->param, sizeof(reterr->param), "reward.pattern");
        return HZP_EINVAL;
    }
    v->matcher = hzp_matcher_new();
    return v->matcher ? HZP_OK : hzp_fail(reterr, HZP_ENOMEM, "no memory for reward.pattern now");
}

static int read_model(const json_t *rule, struct hzp_verifier *v, struct hzp_err_text *reterr)
{
    const json_t *template = json_object_get(rule, "template");
    const json_t *words = json_object_get(rule, "words"), *pinned = json_object_get(rule, "pinned");
    const char *text = hzp_json_is_text(template) ? json_string_value(template) : "", *at,
               *w[2] = {"", ""};
    bool good = *text && json_string_length(template) <= HZP_VERIFY_TEMPLATE_MAX;
    for (int i = 0; i < HZP_COUNT(mark); i++) {
        at = strstr(text, mark[i]);
        good &= at ? !strstr(at + 1, mark[i]) : i > 0;
    }
    if (!good)
        return hzp_wrong(reterr, "reward.template",
                         "must be a text of at most %d bytes with {text}, where the answer goes, "
                         "and perhaps {prompt} and {answer}, each once",
                         HZP_VERIFY_TEMPLATE_MAX);
    good = json_array_size(words) == 2;
    for (size_t i = 0; i < 2 && good; i++) {
        const json_t *word = json_array_get(words, i);
        w[i] = hzp_json_is_text(word) ? json_string_value(word) : "";
        good = *w[i] && json_string_length(word) <= HZP_VERIFY_WORD_MAX;
    }
    if (!good || !strncmp(w[0], w[1], strlen(w[0])) || !strncmp(w[0], w[1], strlen(w[1])))
        return hzp_wrong(reterr, "reward.words",
                         "must be two texts of 1 to %d bytes, neither the beginning of the other",
                         HZP_VERIFY_WORD_MAX);
    if (pinned && !json_is_boolean(pinned))
        return hzp_wrong(reterr, "reward.pinned", "must be true or false");
    v->rule = json_incref((json_t *)(uintptr_t)rule);
    return read_positive(rule, "timeout", timeout_client, timeout_max, &v->seconds, reterr);
}

/* Members that a rule of this kind has beside type, with blanks between them. */
static int check_members(const json_t *rule, enum kind kind, struct hzp_err_text *reterr)
{
    static const char *const own[KINDS] = {[REGEX] = "pattern",
                                           [LENGTH] = "tokens",
                                           [CLIENT] = "timeout",
                                           [COMMAND] = "timeout",
                                           [MODEL] = "template words pinned timeout"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)rule, name, value)
    {
        if (strcmp(name, "type") != 0 && (!own[kind] || !hzp_among(own[kind], name)))
            return hzp_fail_param(reterr, HZP_EINVAL, "reward",
                                  "a reward of type %s has no field \"%.40s\"", kind_name[kind],
                                  name);
    }
    return HZP_OK;
}

int hzp_verifier_create(const json_t *rule, struct hzp_verifier **ret, struct hzp_err_text *reterr)
{
    const char *type = json_string_value(json_object_get(rule, "type"));
    int kind = 0, r;
    while (kind < KINDS && (!type || strcmp(type, kind_name[kind]) != 0))
        kind++;
    if (kind == KINDS)
        return hzp_wrong(reterr, "reward.type",
                         "must be exact, number, boxed, regex, json, length, client, command or "
                         "model");
    HZP_TRY(check_members(rule, (enum kind)kind, reterr));
    struct hzp_verifier *v = hzp_xcalloc(1, sizeof(*v));
    v->kind = (enum kind)kind;
    r = kind == REGEX    ? compile(rule, v, reterr)
        : kind == LENGTH ? read_positive(rule, "tokens", 0, TOKENS_MAX, &v->tokens, reterr)
        : kind == MODEL  ? read_model(rule, v, reterr)
        : kind == CLIENT || kind == COMMAND
            ? read_positive(rule, "timeout", kind == CLIENT ? timeout_client : timeout_command,
                            timeout_max, &v->seconds, reterr)
            : HZP_OK;
    if (r < 0)
        hzp_verifier_destroy(v);
    else
        *ret = v;
    return r;
}

void hzp_verifier_destroy(struct hzp_verifier *v)
{
    if (!v)
        return;
    hzp_pattern_free(v->pattern);
    hzp_matcher_free(v->matcher);
    json_decref(v->rule);
    free(v);
}

const char *hzp_verifier_name(const struct hzp_verifier *v)
{
    return kind_name[v->kind];
}

bool hzp_verifier_needs_reference(const struct hzp_verifier *v)
{
    return v->kind <= BOXED ||
           (v->rule && strstr(json_string_value(json_object_get(v->rule, "template")), mark[2]));
}

bool hzp_verifier_is_client(const struct hzp_verifier *v)
{
    return v->kind == CLIENT;
}

double hzp_verifier_seconds(const struct hzp_verifier *v)
{
    return v->seconds > 0 ? v->seconds : timeout_client;
}

bool hzp_verifier_is_command(const struct hzp_verifier *v)
{
    return v->kind == COMMAND;
}

bool hzp_verifier_is_model(const struct hzp_verifier *v)
{
    return v->kind == MODEL;
}

bool hzp_verifier_is_pinned(const struct hzp_verifier *v)
{
    return json_is_true(json_object_get(v->rule, "pinned"));
}

int hzp_verifier_question(const struct hzp_verifier *v, const json_t *said, int word,
                          struct hzp_textbuf *out)
{
    const char *at = json_string_value(json_object_get(v->rule, "template")), *from = at;
    const json_t *behind = json_array_get(json_object_get(v->rule, "words"), (size_t)word);
    while ((at = strchr(at, '{')) != NULL) {
        int i = 0;
        while (i < HZP_COUNT(mark) && strncmp(at, mark[i], strlen(mark[i])) != 0)
            i++;
        if (i == HZP_COUNT(mark)) {
            at++;
            continue;
        }
        const json_t *text = json_object_getn(said, mark[i] + 1, strlen(mark[i]) - 2);
        HZP_TRY(hzp_textbuf_append(out, from, (size_t)(at - from)));
        HZP_TRY(hzp_textbuf_append(out, json_string_value(text), json_string_length(text)));
        from = at += strlen(mark[i]);
    }
    HZP_TRY(hzp_textbuf_append(out, from, strlen(from)));
    return hzp_textbuf_append(out, json_string_value(behind), json_string_length(behind));
}

/* ---- rules ---- */

/* Without blanks around it. */
static const char *trim(const char *text, size_t bytes, size_t *ret_bytes)
{
    while (bytes && isspace((unsigned char)*text)) {
        text++;
        bytes--;
    }
    while (bytes && isspace((unsigned char)text[bytes - 1]))
        bytes--;
    *ret_bytes = bytes;
    return text;
}

static bool same(const char *text, size_t bytes, const char *reference)
{
    size_t a, b;
    const char *x = trim(text, bytes, &a), *y = trim(reference, strlen(reference), &b);
    return a == b && !memcmp(x, y, a);
}

/* The number that text begins with, with commas between groups of three digits left out; returns
 * behind it; text itself: it begins with none. */
static const char *number_at(const char *text, double *ret)
{
    static const char digits[] = "0123456789";
    char plain[64];
    size_t n = *text == '-';
    const char *at = text + n, *end = at + strspn(at, digits);
    plain[0] = '-';
    if (end == at)
        return text;
    while (*end == ',' && strspn(end + 1, digits) == 3)
        end += 4;
    if (*end == '.' && strspn(end + 1, digits))
        end += 1 + strspn(end + 1, digits);
    for (; at < end && n < sizeof(plain) - 1; at++)
        if (*at != ',')
            plain[n++] = *at;
    plain[n] = 0;
    *ret = strtod(plain, NULL);
    return end;
}

static bool last_number(const char *text, double *ret)
{
    bool found = false;
    while (*text) {
        const char *end = number_at(text, ret);
        found |= end != text;
        text = end == text ? text + 1 : end;
    }
    return found;
}

static bool same_number(const char *text, const char *reference)
{
    double a, b;
    if (!last_number(text, &a) || !last_number(reference, &b))
        return false;
    double size = fabs(b);
    return fabs(a - b) <= 1e-6 * HZP_MAX(1, size);
}

/* Whether the text, without blanks around it, is a number. */
static bool is_number(const char *text)
{
    double value;
    text += strspn(text, " \t\n");
    const char *end = number_at(text, &value);
    return end != text && !end[strspn(end, " \t\n")];
}

/* Whether the last \boxed{} whose braces close has it. */
static bool is_boxed(const char *text, const char *reference)
{
    static const char begin[] = "\\boxed{";
    HZP_FREED char *inner = NULL;
    for (const char *at = text; (at = strstr(at, begin)) != NULL;) {
        const char *from = at += sizeof(begin) - 1;
        int depth = 1;
        for (; *at && depth; at++)
            depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        if (depth)
            break;
        free(inner);
        inner = strndup(from, (size_t)(at - 1 - from));
        at = from;
    }
    return inner && (same(inner, strlen(inner), reference) ||
                     (is_number(inner) && is_number(reference) && same_number(inner, reference)));
}

static bool is_json(const char *text, size_t bytes, const char *reference)
{
    json_auto_t *value = hzp_json_load(text, bytes, HZP_JSON_ANY, NULL, NULL);
    json_auto_t *want = value && reference
                            ? hzp_json_load(reference, strlen(reference), HZP_JSON_ANY, NULL, NULL)
                            : NULL;
    return value && (!reference || (want && json_equal(value, want)));
}

double hzp_verify(struct hzp_verifier *v, const char *text, size_t bytes, int32_t tokens,
                  const char *reference)
{
    double off = fabs(tokens - v->tokens);
    size_t from, to;
    switch (v->kind) {
    case EXACT:
        return same(text, bytes, reference);
    case NUMBER:
        return same_number(text, reference);
    case BOXED:
        return is_boxed(text, reference);
    case REGEX:
        return hzp_pattern_find(v->pattern, v->matcher, text, bytes, 0, &from, &to) > 0;
    case JSON:
        return is_json(text, bytes, reference);
    case LENGTH:
        return HZP_MAX(0, 1 - off / v->tokens);
    default:
        HZP_ASSERT(v->kind < CLIENT);
        return 0;
    }
}
