/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/utf8.h"
#include "base/words.h"

#define STAGES_MAX 64

/* The patterns behind the named pre-tokenizers. GPT_2 is ByteLevel's own. */
#define CONTRACTION "'s|'t|'re|'ve|'m|'ll|'d"
#define GPT_2       CONTRACTION "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WORDS       "[" HZP_PATTERN_WORD "]+|[^" HZP_PATTERN_WORD "\\s]+"
#define SPACES      "\\s"
#define DIGIT       "\\p{N}"
#define PUNCTUATION "[!-/:-@\\[-`{-~\\p{P}]"

enum behavior { ISOLATED, REMOVED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum prepend { ALWAYS, FIRST, NEVER };

struct stage {
    struct hzp_pattern *pattern; /* NULL: a stage that rewrites */
    enum behavior behavior;
    bool invert;
    char mark[5]; /* rewriting: goes before the piece if it does not begin with it */
    size_t mark_bytes;
    enum prepend prepend;
    bool spaces; /* rewriting: ' ' becomes the mark */
};

struct hzp_pretokenizer {
    struct stage stages[STAGES_MAX];
    int n;
    bool byte_level;
};

static int stage_new(struct hzp_pretokenizer *pre, const char *where, struct stage **ret,
                     struct hzp_err_text *reterr)
{
    if (pre->byte_level)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: ByteLevel must be the last one", where);
    if (pre->n == STAGES_MAX)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: more than %d stages", where, STAGES_MAX);
    *ret = &pre->stages[pre->n++];
    return HZP_OK;
}

/* A stage that cuts at a regular expression of ours. */
static int add_cut(struct hzp_pretokenizer *pre, const char *regex, enum behavior behavior,
                   bool invert, const char *where, struct hzp_err_text *reterr)
{
    struct stage *stage = NULL;
    HZP_TRY(stage_new(pre, where, &stage, reterr));
    stage->behavior = behavior;
    stage->invert = invert;
    return hzp_pattern_regex(regex, strlen(regex), where, &stage->pattern, reterr);
}

/* The number of the field's word among these; absent where there is no such field; -1: another. */
static int word_of(const json_t *json, const char *field, const char *words, int absent)
{
    const json_t *value = json_object_get(json, field);
    if (!json_is_string(value))
        return value ? -1 : absent;
    return hzp_word_at(words, json_string_value(value), json_string_length(value));
}

static int read_behavior(const json_t *json, const char *where, enum behavior *ret,
                         struct hzp_err_text *reterr)
{
    int found = word_of(json, "behavior",
                        "Isolated Removed MergedWithPrevious MergedWithNext Contiguous", ISOLATED);
    *ret = (enum behavior)found;
    return found >= 0 ? HZP_OK
                      : hzp_fail(reterr, HZP_EFORMAT,
                                 "%s: behavior must be Isolated, Removed, MergedWithPrevious, "
                                 "MergedWithNext or Contiguous",
                                 where);
}

static int load_byte_level(struct hzp_pretokenizer *pre, const json_t *json, const char *where,
                           struct hzp_err_text *reterr)
{
    bool prefix, regex;
    struct stage *stage = NULL;
    HZP_TRY(hzp_tokjson_bool(json, "add_prefix_space", true, where, &prefix, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "use_regex", true, where, &regex, reterr));
    if (prefix) {
        HZP_TRY(stage_new(pre, where, &stage, reterr));
        stage->mark[0] = ' ';
        stage->mark_bytes = 1;
        stage->prepend = ALWAYS;
    }
    if (regex)
        HZP_TRY(add_cut(pre, GPT_2, ISOLATED, false, where, reterr));
    if (pre->byte_level)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: ByteLevel must be the last one", where);
    pre->byte_level = true;
    return HZP_OK;
}

static int load_split(struct hzp_pretokenizer *pre, const json_t *json, const char *where,
                      struct hzp_err_text *reterr)
{
    struct stage *stage = NULL;
    HZP_TRY(stage_new(pre, where, &stage, reterr));
    HZP_TRY(read_behavior(json, where, &stage->behavior, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "invert", false, where, &stage->invert, reterr));
    return hzp_pattern_json(json_object_get(json, "pattern"), where, &stage->pattern, reterr);
}

static int load_metaspace(struct hzp_pretokenizer *pre, const json_t *json, const char *where,
                          struct hzp_err_text *reterr)
{
    bool prefix, split;
    const json_t *mark;
    struct stage *stage = NULL;
    HZP_TRY(stage_new(pre, where, &stage, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "add_prefix_space", true, where, &prefix, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "split", true, where, &split, reterr));
    HZP_TRY(hzp_tokjson_character(json, "replacement", where, &mark, reterr));
    int scheme = word_of(json, "prepend_scheme", "always first never", prefix ? ALWAYS : NEVER);
    if (scheme < 0)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: prepend_scheme must be always, first or never",
                        where);
    stage->prepend = (enum prepend)scheme;
    stage->mark_bytes = json_string_length(mark);
    memcpy(stage->mark, json_string_value(mark), stage->mark_bytes);
    stage->spaces = true;
    if (!split)
        return HZP_OK;
    HZP_TRY(stage_new(pre, where, &stage, reterr));
    stage->behavior = MERGED_WITH_NEXT;
    stage->pattern = hzp_pattern_literal(json_string_value(mark), json_string_length(mark));
    return HZP_OK;
}

static int load_one(void *ctx, const char *type, const json_t *json, const char *where,
                    struct hzp_err_text *reterr)
{
    struct hzp_pretokenizer *pre = ctx;
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(pre, json, where, reterr);
    if (strcmp(type, "Split") == 0)
        return load_split(pre, json, where, reterr);
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(pre, json, where, reterr);
    if (strcmp(type, "Digits") == 0) {
        bool single;
        HZP_TRY(hzp_tokjson_bool(json, "individual_digits", false, where, &single, reterr));
        return add_cut(pre, DIGIT, single ? ISOLATED : CONTIGUOUS, false, where, reterr);
    }
    if (strcmp(type, "Punctuation") == 0) {
        enum behavior behavior;
        HZP_TRY(read_behavior(json, where, &behavior, reterr));
        return add_cut(pre, PUNCTUATION, behavior, false, where, reterr);
    }
    if (strcmp(type, "Whitespace") == 0)
        return add_cut(pre, WORDS, REMOVED, true, where, reterr);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_cut(pre, SPACES, REMOVED, false, where, reterr);
    if (strcmp(type, "BertPreTokenizer") == 0) {
        HZP_TRY(add_cut(pre, SPACES, REMOVED, false, where, reterr));
        return add_cut(pre, PUNCTUATION, ISOLATED, false, where, reterr);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        const json_t *mark;
        struct stage *stage = NULL;
        HZP_TRY(hzp_tokjson_character(json, "delimiter", where, &mark, reterr));
        HZP_TRY(stage_new(pre, where, &stage, reterr));
        stage->behavior = REMOVED;
        stage->pattern = hzp_pattern_literal(json_string_value(mark), json_string_length(mark));
        return HZP_OK;
    }
    return hzp_fail(reterr, HZP_EUNSUP, "%s: type \"%.60s\" is not supported", where, type);
}

int hzp_pretokenizer_load(const json_t *json, const char *path, struct hzp_pretokenizer **ret,
                          struct hzp_err_text *reterr)
{
    struct hzp_pretokenizer *pre = hzp_xcalloc(1, sizeof(*pre));
    int r = hzp_tokjson_parts(json, path, "pre_tokenizer", "pretokenizers", load_one, pre, reterr);
    if (r < 0)
        hzp_pretokenizer_free(pre);
    else
        *ret = pre;
    return r;
}

void hzp_pretokenizer_free(struct hzp_pretokenizer *pre)
{
    if (pre == NULL)
        return;
    for (int i = 0; i < pre->n; i++)
        hzp_pattern_free(pre->stages[i].pattern);
    free(pre);
}

bool hzp_pretokenizer_byte_level(const struct hzp_pretokenizer *pre)
{
    return pre->byte_level;
}

static int push(struct hzp_pieces *pieces, size_t from, size_t to)
{
    if (from == to)
        return HZP_OK;
    if (pieces->n == pieces->cap)
        HZP_TRY(hzp_text_grow(&pieces->spans, &pieces->cap, pieces->n + 1, sizeof(*pieces->spans)));
    pieces->spans[pieces->n++] = (struct hzp_text_span){(uint32_t)from, (uint32_t)to};
    return HZP_OK;
}

/* Where one piece is being cut. */
struct cut {
    struct hzp_pieces *out;
    enum behavior behavior;
    size_t base;   /* out->n when the piece began */
    bool previous; /* the last part was a match */
    bool pending;  /* MERGED_WITH_NEXT: a match waits for what follows */
    size_t pending_from, pending_to;
};

/* The next part of the piece, the parts being matches and what lies between them. */
static int part(struct cut *cut, size_t from, size_t to, bool match)
{
    struct hzp_pieces *out = cut->out;
    bool previous = cut->previous, any = out->n > cut->base;
    cut->previous = match;
    switch (cut->behavior) {
    case ISOLATED:
        return push(out, from, to);
    case REMOVED:
        return match ? HZP_OK : push(out, from, to);
    case CONTIGUOUS:
        if (match != previous || !any)
            return push(out, from, to);
        out->spans[out->n - 1].to = (uint32_t)to;
        return HZP_OK;
    case MERGED_WITH_PREVIOUS:
        if (!match || previous || !any)
            return push(out, from, to);
        out->spans[out->n - 1].to = (uint32_t)to;
        return HZP_OK;
    case MERGED_WITH_NEXT:
        if (cut->pending && match)
            HZP_TRY(push(out, cut->pending_from, cut->pending_to));
        else if (!match)
            HZP_TRY(push(out, cut->pending ? cut->pending_from : from, to));
        cut->pending = match;
        cut->pending_from = from;
        cut->pending_to = to;
        return HZP_OK;
    }
    return HZP_OK;
}

static int cut_piece(const struct stage *stage, struct hzp_matcher *matcher, const char *text,
                     struct hzp_text_span span, struct hzp_pieces *out)
{
    struct cut cut = {.out = out, .behavior = stage->behavior, .base = out->n};
    const char *piece = text + span.from;
    size_t bytes = span.to - span.from, done = 0, at = 0, from, to;
    while (at <= bytes) {
        int r = hzp_pattern_find(stage->pattern, matcher, piece, bytes, at, &from, &to);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        if (done < from)
            HZP_TRY(part(&cut, span.from + done, span.from + from, stage->invert));
        HZP_TRY(part(&cut, span.from + from, span.from + to, !stage->invert));
        done = at = to;
        if (from == to)
            at += at < bytes ? (size_t)hzp_utf8_step((uint8_t)piece[at]) : 1;
    }
    if (done < bytes)
        HZP_TRY(part(&cut, span.from + done, span.to, stage->invert));
    return cut.pending ? push(out, cut.pending_from, cut.pending_to) : HZP_OK;
}

static int rewrite_piece(const struct stage *stage, const char *piece, size_t bytes, bool first,
                         struct hzp_textbuf *out)
{
    /* Whether it begins with the mark once its spaces are marks. */
    bool begins =
        (stage->spaces && piece[0] == ' ') ||
        (bytes >= stage->mark_bytes && memcmp(piece, stage->mark, stage->mark_bytes) == 0);
    if (!begins && (stage->prepend == ALWAYS || (stage->prepend == FIRST && first)))
        HZP_TRY(hzp_textbuf_append(out, stage->mark, stage->mark_bytes));
    size_t done = 0;
    while (stage->spaces) {
        const char *space = memchr(piece + done, ' ', bytes - done);
        if (space == NULL)
            break;
        size_t at = (size_t)(space - piece);
        HZP_TRY(hzp_textbuf_append(out, piece + done, at - done));
        HZP_TRY(hzp_textbuf_append(out, stage->mark, stage->mark_bytes));
        done = at + 1;
    }
    HZP_TRY(hzp_textbuf_append(out, piece + done, bytes - done));
    return out->bytes > UINT32_MAX / 2 ? HZP_ENOMEM : HZP_OK;
}

/* Hands the spans over as the input of a stage: they move to `other`, the list is empty. */
static void turn(struct hzp_pieces *pieces)
{
    struct hzp_text_span *spans = pieces->spans;
    size_t cap = pieces->cap;
    pieces->spans = pieces->other;
    pieces->cap = pieces->other_cap;
    pieces->other = spans;
    pieces->other_cap = cap;
    pieces->n = 0;
}

int hzp_pretokenizer_run(const struct hzp_pretokenizer *pre, struct hzp_matcher *matcher,
                         const char *text, size_t bytes, bool first, struct hzp_pieces *pieces)
{
    int next = 0;
    pieces->text = text;
    pieces->n = 0;
    HZP_TRY(push(pieces, 0, bytes));
    for (int s = 0; s < pre->n; s++) {
        const struct stage *stage = &pre->stages[s];
        size_t n = pieces->n;
        turn(pieces);
        struct hzp_textbuf *out = &pieces->buffers[next];
        if (stage->pattern == NULL)
            out->bytes = 0;
        for (size_t i = 0; i < n; i++) {
            struct hzp_text_span span = pieces->other[i];
            if (stage->pattern != NULL) {
                HZP_TRY(cut_piece(stage, matcher, pieces->text, span, pieces));
                continue;
            }
            size_t from = out->bytes;
            HZP_TRY(rewrite_piece(stage, pieces->text + span.from, span.to - span.from,
                                  first && i == 0, out));
            HZP_TRY(push(pieces, from, out->bytes));
        }
        /* What was cut off the front was the beginning; nothing else begins the input then. */
        first = first && pieces->n > 0 && pieces->spans[0].from == 0;
        if (stage->pattern == NULL) {
            pieces->text = out->data;
            next = !next;
        }
    }
    return HZP_OK;
}

void hzp_pieces_fini(struct hzp_pieces *pieces)
{
    free(pieces->spans);
    free(pieces->other);
    hzp_textbuf_fini(&pieces->buffers[0]);
    hzp_textbuf_fini(&pieces->buffers[1]);
    *pieces = (struct hzp_pieces){0};
}
