/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/normalizer.h"

#include "base/arena.h"
#include "text/chars/unicode.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX   64
#define NESTING_MAX 8

enum kind { PREPEND, REPLACE, FORM, LOWER, STRIP, STRIP_MARKS };

struct step {
    enum kind kind;
    struct hzp_pattern *pattern; /* REPLACE */
    char *content;               /* PREPEND, REPLACE */
    size_t bytes;
    enum hzp_unicode_form form;
    bool left, right; /* STRIP */
};

struct hzp_normalizer {
    struct step steps[STEPS_MAX];
    int n;
};

static void content_set(struct step *step, const json_t *content)
{
    step->bytes = json_string_length(content);
    step->content = hzp_xmalloc(step->bytes + 1);
    memcpy(step->content, json_string_value(content), step->bytes + 1);
}

static int load_step(struct step *step, const char *type, const json_t *json, const char *where,
                     struct hzp_err_text *reterr)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (int f = 0; f < HZP_COUNT(forms); f++)
        if (strcmp(type, forms[f]) == 0) {
            step->kind = FORM;
            step->form = (enum hzp_unicode_form)f;
            return HZP_OK;
        }
    if (strcmp(type, "Lowercase") == 0) {
        step->kind = LOWER;
    } else if (strcmp(type, "StripAccents") == 0) {
        step->kind = STRIP_MARKS;
    } else if (strcmp(type, "Strip") == 0) {
        step->kind = STRIP;
        HZP_TRY(hzp_tokjson_bool(json, "strip_left", true, where, &step->left, reterr));
        HZP_TRY(hzp_tokjson_bool(json, "strip_right", true, where, &step->right, reterr));
    } else if (strcmp(type, "Prepend") == 0) {
        const json_t *content;
        HZP_TRY(hzp_tokjson_string(json, "prepend", where, &content, reterr));
        step->kind = PREPEND;
        content_set(step, content);
    } else if (strcmp(type, "Replace") == 0) {
        const json_t *content;
        HZP_TRY(hzp_tokjson_string(json, "content", where, &content, reterr));
        HZP_TRY(hzp_pattern_json(json_object_get(json, "pattern"), where, &step->pattern, reterr));
        step->kind = REPLACE;
        content_set(step, content);
    } else {
        return hzp_fail(reterr, HZP_EUNSUP, "%s: type \"%.60s\" is not supported", where, type);
    }
    return HZP_OK;
}

static int load(struct hzp_normalizer *normalizer, const json_t *json, int depth, const char *where,
                struct hzp_err_text *reterr)
{
    const char *type;
    HZP_TRY(hzp_tokjson_type(json, where, &type, reterr));
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(json, "normalizers");
        if (!json_is_array(list) || depth == NESTING_MAX)
            return hzp_fail(reterr, HZP_EFORMAT, "%s: a Sequence without a list, or nested deeply",
                            where);
        size_t i;
        json_t *item;
        json_array_foreach(list, i, item) HZP_TRY(load(normalizer, item, depth + 1, where, reterr));
        return HZP_OK;
    }
    if (normalizer->n == STEPS_MAX)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: more than %d steps", where, STEPS_MAX);
    return load_step(&normalizer->steps[normalizer->n++], type, json, where, reterr);
}

int hzp_normalizer_load(const json_t *json, const char *path, struct hzp_normalizer **ret,
                        struct hzp_err_text *reterr)
{
    char where[300];
    hzp_tokjson_where(where, sizeof(where), path, "normalizer");
    struct hzp_normalizer *normalizer = hzp_xcalloc(1, sizeof(*normalizer));
    int r = json == NULL || json_is_null(json) ? HZP_OK : load(normalizer, json, 0, where, reterr);
    if (r < 0)
        hzp_normalizer_free(normalizer);
    else
        *ret = normalizer;
    return r;
}

void hzp_normalizer_free(struct hzp_normalizer *normalizer)
{
    if (normalizer == NULL)
        return;
    for (int i = 0; i < normalizer->n; i++) {
        hzp_pattern_free(normalizer->steps[i].pattern);
        free(normalizer->steps[i].content);
    }
    free(normalizer);
}

static int replace(const struct step *step, struct hzp_matcher *matcher, const char *text,
                   size_t bytes, struct hzp_textbuf *out)
{
    size_t done = 0, at = 0, from, to;
    while (at <= bytes) {
        int r = hzp_pattern_find(step->pattern, matcher, text, bytes, at, &from, &to);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        HZP_TRY(hzp_textbuf_append(out, text + done, from - done));
        HZP_TRY(hzp_textbuf_append(out, step->content, step->bytes));
        done = to;
        at = to;
        if (from == to) /* an empty match: look on behind the next character */
            at += at < bytes ? (size_t)hzp_utf8_step((uint8_t)text[at]) : 1;
    }
    return hzp_textbuf_append(out, text + done, bytes - done);
}

static void strip(const struct step *step, const char **text, size_t *bytes)
{
    int n;
    while (step->left && *bytes > 0 && hzp_utf8_is_space(hzp_utf8_get(*text, &n))) {
        *text += n;
        *bytes -= (size_t)n;
    }
    while (step->right && *bytes > 0) {
        size_t last = *bytes - 1;
        while (((uint8_t)(*text)[last] & 0xC0) == 0x80)
            last--;
        if (!hzp_utf8_is_space(hzp_utf8_get(*text + last, &n)))
            break;
        *bytes = last;
    }
}

int hzp_normalizer_run(const struct hzp_normalizer *normalizer, struct hzp_matcher *matcher,
                       const char *text, size_t bytes, struct hzp_textbuf buffers[2],
                       const char **ret, size_t *ret_bytes, bool *first)
{
    int next = 0;
    for (int i = 0; i < normalizer->n && bytes > 0; i++) {
        const struct step *step = &normalizer->steps[i];
        const char *begin = text;
        struct hzp_textbuf *out = &buffers[next];
        out->bytes = 0;
        switch (step->kind) {
        case STRIP:
            strip(step, &text, &bytes);
            if (text != begin && first != NULL)
                *first = false;
            continue;
        case FORM:
            if (hzp_unicode_is_plain(step->form, text, bytes))
                continue;
            HZP_TRY(hzp_unicode_normalize(step->form, text, bytes, out));
            break;
        case PREPEND:
            HZP_TRY(hzp_textbuf_append(out, step->content, step->bytes));
            HZP_TRY(hzp_textbuf_append(out, text, bytes));
            break;
        case REPLACE:
            HZP_TRY(replace(step, matcher, text, bytes, out));
            break;
        case LOWER:
            HZP_TRY(hzp_unicode_lower(text, bytes, out));
            break;
        case STRIP_MARKS:
            HZP_TRY(hzp_unicode_strip_marks(text, bytes, out));
            break;
        }
        text = out->data;
        bytes = out->bytes;
        next = !next;
    }
    *ret = text;
    *ret_bytes = bytes;
    return HZP_OK;
}
