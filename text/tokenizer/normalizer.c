/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_parts.h"

#include "text/chars/unicode.h"
#include "base/utf8.h"

#define STEPS_MAX 64

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

static int load_step(void *ctx, const char *type, const json_t *json, const char *where,
                     struct hzp_err_text *reterr)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    struct hzp_normalizer *normalizer = ctx;
    if (normalizer->n == STEPS_MAX)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: more than %d steps", where, STEPS_MAX);
    struct step *step = &normalizer->steps[normalizer->n++];
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
        step->content = hzp_tokjson_copy(content, &step->bytes);
    } else if (strcmp(type, "Replace") == 0) {
        const json_t *content;
        HZP_TRY(hzp_tokjson_string(json, "content", where, &content, reterr));
        HZP_TRY(hzp_pattern_json(json_object_get(json, "pattern"), where, &step->pattern, reterr));
        step->kind = REPLACE;
        step->content = hzp_tokjson_copy(content, &step->bytes);
    } else {
        return hzp_fail(reterr, HZP_EUNSUP, "%s: type \"%.60s\" is not supported", where, type);
    }
    return HZP_OK;
}

int hzp_normalizer_load(const json_t *json, const char *path, struct hzp_normalizer **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_normalizer *normalizer = hzp_xcalloc(1, sizeof(*normalizer));
    int r =
        hzp_tokjson_parts(json, path, "normalizer", "normalizers", load_step, normalizer, reterr);
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

static void strip(const struct step *step, const char **text, size_t *bytes)
{
    int n;
    while (step->left && *bytes > 0 && hzp_utf8_is_space(hzp_utf8_get(*text, &n))) {
        *text += n;
        *bytes -= (size_t)n;
    }
    while (step->right && *bytes > 0) {
        size_t last = hzp_utf8_before(*text, *bytes);
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
            HZP_TRY(hzp_pattern_replace(step->pattern, matcher, text, bytes, step->content,
                                        step->bytes, out));
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
