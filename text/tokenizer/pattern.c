/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/pattern.h"

#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SOURCE_MAX    (64 * 1024)
#define JIT_STACK_MAX (1024 * 1024)
#define HEAP_KIB_MAX  (64 * 1024)
/* Backtracking, and 4 more for each byte: one run of blanks may be the whole text. */
#define STEPS_MAX 10000000u

/* \w, \s and \h as Oniguruma knows them (the six numbers of Latin-1 are a quirk of its tables);
 * written so that they stand inside brackets too. */
#define WORD  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define HEX   "0-9A-Fa-f"

struct hzp_pattern {
    pcre2_code *code; /* NULL: the literal */
    char *literal;
    size_t bytes;
};

struct hzp_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int put(struct hzp_textbuf *out, const char *text)
{
    return hzp_textbuf_append(out, text, strlen(text));
}

/* One escape, source[0] being the backslash: its translation, or the escape itself. */
static int translate_escape(const char *source, bool bracket, const char **why,
                            struct hzp_textbuf *out)
{
    const char *set = NULL;
    switch (source[1]) {
    case 'w':
    case 'W':
        set = WORD;
        break;
    case 's':
    case 'S':
        set = SPACE;
        break;
    case 'h':
    case 'H':
        set = HEX;
        break;
    default:
        return hzp_textbuf_append(out, source, 2);
    }
    bool negated = source[1] < 'a';
    if (bracket && negated && source[1] == 'S')
        return put(out, "\\S");
    if (bracket && negated) {
        *why = "\\W or \\H inside brackets";
        return HZP_EUNSUP;
    }
    if (bracket)
        return put(out, set);
    HZP_TRY(put(out, negated ? "[^" : "["));
    HZP_TRY(put(out, set));
    return put(out, "]");
}

/* Oniguruma's spelling to PCRE2's. source is NUL-terminated. */
static int translate(const char *source, size_t bytes, const char **why, struct hzp_textbuf *out)
{
    bool bracket = false;
    size_t opened = 0; /* where the content of the open bracket begins */
    for (size_t at = 0; at < bytes; at++) {
        char c = source[at];
        if (c == '\\' && at + 1 < bytes) {
            HZP_TRY(translate_escape(source + at, bracket, why, out));
            at++;
            continue;
        }
        if (bracket && c == '[') {
            if (source[at + 1] != ':') {
                *why = "a bracket inside brackets";
                return HZP_EUNSUP;
            }
            const char *end = strstr(source + at, ":]");
            size_t n = end != NULL ? (size_t)(end - (source + at)) + 2 : 1;
            HZP_TRY(hzp_textbuf_append(out, source + at, n));
            at += n - 1;
            continue;
        }
        if (bracket && c == '&' && source[at + 1] == '&') {
            *why = "'&&' inside brackets";
            return HZP_EUNSUP;
        }
        if (!bracket && c == '[') {
            bracket = true;
            opened = at + 1 + (source[at + 1] == '^');
        } else if (bracket && c == ']' && at > opened) {
            bracket = false;
        }
        HZP_TRY(hzp_textbuf_append(out, &c, 1));
    }
    return hzp_textbuf_append(out, "", 1);
}

static int compile(const char *text, const char *source, const char *where,
                   struct hzp_pattern *pattern, struct hzp_err_text *reterr)
{
    int code;
    PCRE2_SIZE at;
    /* In Oniguruma ^ and $ always mean lines. */
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pattern->code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &code, &at, NULL);
    if (pattern->code == NULL) {
        PCRE2_UCHAR message[120];
        pcre2_get_error_message(code, message, sizeof(message));
        return hzp_fail(reterr, HZP_EFORMAT, "%s: regular expression \"%.80s\": %s", where, source,
                        (const char *)message);
    }
    (void)pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it: slower, the same */
    return HZP_OK;
}

int hzp_pattern_regex(const char *source, size_t bytes, const char *where, struct hzp_pattern **ret,
                      struct hzp_err_text *reterr)
{
    if (bytes > SOURCE_MAX || memchr(source, 0, bytes) != NULL)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: regular expression of %zu bytes: too long, or with a NUL byte", where,
                        bytes);
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    const char *why = NULL;
    struct hzp_pattern *pattern = hzp_xcalloc(1, sizeof(*pattern));
    int r = translate(source, bytes, &why, &text);
    if (r < 0)
        r = hzp_fail(reterr, r, "%s: regular expression \"%.80s\": %s is not supported", where,
                     source, why != NULL ? why : "its size");
    else
        r = compile(text.data, source, where, pattern, reterr);
    if (r < 0)
        hzp_pattern_free(pattern);
    else
        *ret = pattern;
    return r;
}

struct hzp_pattern *hzp_pattern_literal(const char *text, size_t bytes)
{
    struct hzp_pattern *pattern = hzp_xcalloc(1, sizeof(*pattern));
    pattern->literal = hzp_xmalloc(bytes);
    memcpy(pattern->literal, text, bytes);
    pattern->bytes = bytes;
    return pattern;
}

int hzp_pattern_json(const json_t *json, const char *where, struct hzp_pattern **ret,
                     struct hzp_err_text *reterr)
{
    const json_t *literal = json_object_get(json, "String"),
                 *regex = json_object_get(json, "Regex");
    if (json_is_string(regex))
        return hzp_pattern_regex(json_string_value(regex), json_string_length(regex), where, ret,
                                 reterr);
    if (!json_is_string(literal) || json_string_length(literal) == 0)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: pattern must be {\"String\": ...} or {\"Regex\": ...}, not empty",
                        where);
    *ret = hzp_pattern_literal(json_string_value(literal), json_string_length(literal));
    return HZP_OK;
}

void hzp_pattern_free(struct hzp_pattern *pattern)
{
    if (pattern == NULL)
        return;
    pcre2_code_free(pattern->code);
    free(pattern->literal);
    free(pattern);
}

struct hzp_matcher *hzp_matcher_new(void)
{
    struct hzp_matcher *matcher = calloc(1, sizeof(*matcher));
    if (matcher == NULL)
        return NULL;
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_MAX, NULL);
    if (matcher->data == NULL || matcher->context == NULL) {
        hzp_matcher_free(matcher);
        return NULL;
    }
    pcre2_set_heap_limit(matcher->context, HEAP_KIB_MAX);
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return matcher;
}

void hzp_matcher_free(struct hzp_matcher *matcher)
{
    if (matcher == NULL)
        return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    free(matcher);
}

int hzp_pattern_find(const struct hzp_pattern *pattern, struct hzp_matcher *matcher,
                     const char *text, size_t bytes, size_t at, size_t *from, size_t *to)
{
    if (pattern->code == NULL) {
        const char *found = bytes - at < pattern->bytes ? NULL
                            : pattern->bytes == 1
                                ? memchr(text + at, pattern->literal[0], bytes - at)
                                : memmem(text + at, bytes - at, pattern->literal, pattern->bytes);
        if (found == NULL)
            return 0;
        *from = (size_t)(found - text);
        *to = *from + pattern->bytes;
        return 1;
    }
    uint64_t steps = STEPS_MAX + 4 * (uint64_t)bytes;
    pcre2_set_match_limit(matcher->context, (uint32_t)HZP_MIN(steps, (uint64_t)UINT32_MAX));
    int r = pcre2_match(pattern->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                        matcher->data, matcher->context);
    if (r == PCRE2_ERROR_JIT_STACKLIMIT)
        r = pcre2_match(pattern->code, (PCRE2_SPTR)text, bytes, at,
                        PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data, matcher->context);
    if (r == PCRE2_ERROR_NOMATCH)
        return 0;
    if (r < 0)
        return HZP_EUNSUP;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
    if (range[0] > range[1]) /* \K inside a lookahead may do that */
        return HZP_EUNSUP;
    *from = range[0];
    *to = range[1];
    return 1;
}

int hzp_pattern_replace(const struct hzp_pattern *pattern, struct hzp_matcher *matcher,
                        const char *text, size_t bytes, const char *by, size_t by_bytes,
                        struct hzp_textbuf *out)
{
    size_t done = 0, at = 0, from, to;
    while (at <= bytes) {
        int r = hzp_pattern_find(pattern, matcher, text, bytes, at, &from, &to);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        HZP_TRY(hzp_textbuf_append(out, text + done, from - done));
        HZP_TRY(hzp_textbuf_append(out, by, by_bytes));
        done = at = to;
        if (from == to) /* an empty match: look on behind the next character */
            at += at < bytes ? (size_t)hzp_utf8_step((uint8_t)text[at]) : 1;
    }
    return hzp_textbuf_append(out, text + done, bytes - done);
}
