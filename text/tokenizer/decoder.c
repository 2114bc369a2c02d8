/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/chars.h"

#define STAGES_MAX 32
#define STRIP_MAX  64

enum kind { REPLACE, METASPACE, STRIP, BYTE_FALLBACK, BYTE_LEVEL };

struct hzp_decoder_stage {
    enum kind kind;
    struct hzp_pattern *pattern; /* REPLACE, METASPACE: its mark */
    char *content;               /* REPLACE, STRIP: the character */
    size_t bytes;
    int start, stop; /* STRIP */
    bool prefixed;   /* METASPACE: the mark before the first token was put there */
};

static int load_count(const json_t *json, const char *name, const char *where, int *ret,
                      struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(json, name);
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > STRIP_MAX)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s must be a number from 0 to %d", where, name,
                        STRIP_MAX);
    *ret = (int)n;
    return HZP_OK;
}

static int load_metaspace(struct hzp_decoder *decoder, struct hzp_decoder_stage *stage,
                          const json_t *json, const char *where, struct hzp_err_text *reterr)
{
    const json_t *mark, *scheme = json_object_get(json, "prepend_scheme");
    bool prefix;
    HZP_TRY(hzp_tokjson_string(json, "replacement", where, &mark, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "add_prefix_space", true, where, &prefix, reterr));
    if (json_string_length(mark) == 0)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: replacement must be one character", where);
    stage->kind = METASPACE;
    stage->pattern = hzp_pattern_literal(json_string_value(mark), json_string_length(mark));
    stage->prefixed =
        json_is_string(scheme) ? strcmp(json_string_value(scheme), "never") != 0 : prefix;
    decoder->first_differs |= stage->prefixed;
    return HZP_OK;
}

static int load_strip(struct hzp_decoder *decoder, struct hzp_decoder_stage *stage, bool fused,
                      const json_t *json, const char *where, struct hzp_err_text *reterr)
{
    const json_t *content;
    HZP_TRY(hzp_tokjson_character(json, "content", where, &content, reterr));
    HZP_TRY(load_count(json, "start", where, &stage->start, reterr));
    HZP_TRY(load_count(json, "stop", where, &stage->stop, reterr));
    if (!fused) {
        stage->kind = STRIP;
        stage->content = hzp_tokjson_copy(content, &stage->bytes);
        return HZP_OK;
    }
    if (decoder->strip_bytes != 0)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: more than one Strip behind Fuse", where);
    decoder->strip_bytes = (int)json_string_length(content);
    memcpy(decoder->strip, json_string_value(content), (size_t)decoder->strip_bytes);
    decoder->strip_start = stage->start;
    decoder->strip_stop = stage->stop;
    decoder->n--; /* it is no stage of one token */
    return HZP_OK;
}

struct loading {
    struct hzp_decoder *decoder;
    bool fused;
};

static int load_one(void *ctx, const char *type, const json_t *json, const char *where,
                    struct hzp_err_text *reterr)
{
    struct loading *l = ctx;
    struct hzp_decoder *decoder = l->decoder;
    if (strcmp(type, "Fuse") == 0) {
        l->fused = true;
        return HZP_OK;
    }
    if (decoder->n == STAGES_MAX)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: more than %d stages", where, STAGES_MAX);
    struct hzp_decoder_stage *stage = &decoder->stages[decoder->n++];
    if (strcmp(type, "Strip") == 0)
        return load_strip(decoder, stage, l->fused, json, where, reterr);
    if (l->fused)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: \"%.60s\" behind Fuse or ByteLevel", where, type);
    if (strcmp(type, "ByteLevel") == 0) {
        stage->kind = BYTE_LEVEL;
        decoder->join = HZP_DECODER_BYTES;
        l->fused = true;
        return HZP_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        stage->kind = BYTE_FALLBACK;
        decoder->byte_fallback = true;
        return HZP_OK;
    }
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(decoder, stage, json, where, reterr);
    if (strcmp(type, "Replace") == 0) {
        const json_t *content;
        HZP_TRY(hzp_tokjson_string(json, "content", where, &content, reterr));
        HZP_TRY(hzp_pattern_json(json_object_get(json, "pattern"), where, &stage->pattern, reterr));
        stage->kind = REPLACE;
        stage->content = hzp_tokjson_copy(content, &stage->bytes);
        return HZP_OK;
    }
    return hzp_fail(reterr, HZP_EUNSUP, "%s: type \"%.60s\" is not supported", where, type);
}

int hzp_decoder_load(const json_t *json, const char *path, struct hzp_decoder *ret,
                     struct hzp_err_text *reterr)
{
    struct loading l = {.decoder = ret};
    *ret = (struct hzp_decoder){.join = HZP_DECODER_SPACED};
    if (json == NULL || json_is_null(json))
        return HZP_OK;
    ret->join = HZP_DECODER_TEXT;
    ret->stages = hzp_xcalloc(STAGES_MAX, sizeof(*ret->stages));
    return hzp_tokjson_parts(json, path, "decoder", "decoders", load_one, &l, reterr);
}

void hzp_decoder_fini(struct hzp_decoder *decoder)
{
    for (int i = 0; decoder->stages != NULL && i < STAGES_MAX; i++) {
        hzp_pattern_free(decoder->stages[i].pattern);
        free(decoder->stages[i].content);
    }
    free(decoder->stages);
    *decoder = (struct hzp_decoder){0};
}

static int strip(const struct hzp_decoder_stage *stage, const char *text, size_t bytes,
                 struct hzp_textbuf *out)
{
    size_t n = stage->bytes;
    for (int i = 0; i < stage->start && bytes >= n && memcmp(text, stage->content, n) == 0; i++) {
        text += n;
        bytes -= n;
    }
    for (int i = 0; i < stage->stop && bytes >= n; i++) {
        if (memcmp(text + bytes - n, stage->content, n) != 0)
            break;
        bytes -= n;
    }
    return hzp_textbuf_append(out, text, bytes);
}

/* The value of "<0xNN>", -1 if the token is not one. */
static int fallback_byte(const char *text, size_t bytes)
{
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int high = hzp_hex_digit(text[3]), low = hzp_hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static int bytes_of(const char *text, size_t bytes, struct hzp_textbuf *out)
{
    HZP_TRY(hzp_textbuf_append(out, text, bytes));
    int64_t n = hzp_vocab_spelling_bytes(text, bytes, out->data);
    if (n < 0) /* not all in the alphabet: the spelling itself; the first characters may be gone */
        memcpy(out->data, text, bytes);
    else
        out->bytes = (size_t)n;
    return HZP_OK;
}

int hzp_decoder_render(const struct hzp_decoder *decoder, struct hzp_matcher *matcher,
                       const char *text, size_t bytes, bool first, struct hzp_textbuf *out,
                       bool *byte)
{
    struct hzp_textbuf buffers[2] = {{0}, {0}};
    int next = 0, r = HZP_OK;
    *byte = false;
    for (int i = 0; i < decoder->n && bytes > 0; i++) {
        const struct hzp_decoder_stage *stage = &decoder->stages[i];
        struct hzp_textbuf *to = &buffers[next];
        int value;
        char put;
        to->bytes = 0;
        switch (stage->kind) {
        case BYTE_FALLBACK:
            value = fallback_byte(text, bytes);
            if (value < 0)
                continue;
            *byte = true;
            put = (char)value;
            r = hzp_textbuf_append(out, &put, 1);
            goto out;
        case REPLACE:
            HZP_TRY_GOTO(hzp_pattern_replace(stage->pattern, matcher, text, bytes, stage->content,
                                             stage->bytes, to));
            break;
        case METASPACE:
            HZP_TRY_GOTO(hzp_pattern_replace(stage->pattern, matcher, text, bytes, " ",
                                             first && stage->prefixed ? 0 : 1, to));
            break;
        case STRIP:
            HZP_TRY_GOTO(strip(stage, text, bytes, to));
            break;
        case BYTE_LEVEL:
            HZP_TRY_GOTO(bytes_of(text, bytes, to));
            break;
        }
        text = to->data;
        bytes = to->bytes;
        next = !next;
    }
    r = hzp_textbuf_append(out, text, bytes);
out:
    hzp_textbuf_fini(&buffers[0]);
    hzp_textbuf_fini(&buffers[1]);
    return r;
}
