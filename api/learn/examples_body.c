/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/examples_body.c - bodies of examples, whole or in pieces: parsed, and accepted. */
#include "api/learn/csv.h"
#include "api/learn/examples_parts.h"
#include "base/chars.h"
#include "base/hash.h"

#include <strings.h>

/* Cuts a body of examples, which arrives in pieces, into the texts of single
 * examples.
 *
 *     [ {...}, {...} ]        an array: its elements
 *     {...} newline {...}     lines; declared as application/json, an object may span several lines
 *
 * Nothing is parsed here, so a body never exists as one tree of JSON values, which takes up to
 * eighty times its bytes.
 *
 * Bounds: one example's text has at most example_max bytes; no more than one is kept. */

enum { PLAIN_SHOWN = 10 };

enum hzp_splitter_mode {
    HZP_SPLIT_START, /* nothing but white space so far */
    HZP_SPLIT_LINES,
    HZP_SPLIT_OBJECTS,
    HZP_SPLIT_ARRAY,
    HZP_SPLIT_AFTER, /* behind the array */
};

struct hzp_splitter {
    size_t example_max; /* bytes; 0: no bound */
    bool json;          /* declared as application/json */
    /* Called with each example's text, without white space around it; < 0 ends the feeding.  line:
     * where it begins, from 1; of an array: which element. */
    int (*found)(void *ctx, int64_t line, const char *text, size_t bytes);
    void *ctx;

    enum hzp_splitter_mode mode;
    struct hzp_textbuf rest; /* the last piece's end: the beginning of an example */
    size_t seen;             /* bytes of the rest that were looked at */
    int64_t line, begin;     /* current line, or element; the line on which the example begins */
    int depth;
    bool in_string, escaped, comma; /* comma: another element has to follow */
};

/* content_type NULL: none. */
static void hzp_splitter_init(struct hzp_splitter *s, const char *content_type, size_t example_max,
                              int (*found)(void *ctx, int64_t line, const char *text, size_t bytes),
                              void *ctx)
{
    memset(s, 0, sizeof(*s));
    s->json = content_type && !strncasecmp(content_type, "application/json", 16);
    s->example_max = example_max;
    s->found = found;
    s->ctx = ctx;
    s->line = s->begin = 1;
}

static void hzp_splitter_fini(struct hzp_splitter *s)
{
    hzp_textbuf_fini(&s->rest);
}

/* Skips white space and a byte order mark, and sees what kind of body it is.  Returns how many
 * bytes are done with. */
static size_t begin(struct hzp_splitter *s, const char *text, size_t bytes, bool last)
{
    static const char mark[] = {(char)0xef, (char)0xbb, (char)0xbf};
    size_t at = 0;
    if (bytes < sizeof(mark) && !last)
        return 0;
    if (bytes >= sizeof(mark) && !memcmp(text, mark, sizeof(mark)))
        at = sizeof(mark);
    while (at < bytes && hzp_is_blank(text[at]))
        s->line += text[at++] == '\n';
    if (at == bytes)
        return at;
    s->mode = text[at] == '[' ? HZP_SPLIT_ARRAY : s->json ? HZP_SPLIT_OBJECTS : HZP_SPLIT_LINES;
    s->begin = s->line;
    s->seen = 0;
    if (s->mode == HZP_SPLIT_ARRAY) {
        s->line = 1;
        at++;
    }
    return at;
}

static int give(struct hzp_splitter *s, int64_t line, const char *text, size_t bytes)
{
    hzp_trim(&text, &bytes);
    return s->found(s->ctx, line, text, bytes);
}

/* Follows strings and brackets through one byte. */
static void follow(struct hzp_splitter *s, char c)
{
    if (s->in_string) {
        s->in_string = s->escaped || c != '"';
        s->escaped = !s->escaped && c == '\\';
        return;
    }
    s->in_string = c == '"';
    s->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
}

/* The three below: *used: bytes done with; text[*used ..] begins the next example, and s->seen
 * bytes of it were looked at. */

static int split_lines(struct hzp_splitter *s, const char *text, size_t bytes, size_t *used)
{
    for (size_t at = s->seen; at < bytes; at++) {
        if (text[at] != '\n')
            continue;
        size_t n = at - *used;
        if (hzp_blanks(text + *used, n) < n)
            HZP_TRY(give(s, s->line, text + *used, n));
        s->line++;
        *used = at + 1;
    }
    s->seen = bytes - *used;
    return HZP_OK;
}

static int split_objects(struct hzp_splitter *s, const char *text, size_t bytes, size_t *used)
{
    for (size_t at = s->seen; at < bytes; at++) {
        char c = text[at];
        bool newline = c == '\n';
        if (at == *used && hzp_is_blank(c)) {
            *used = at + 1;
            s->line += newline;
            s->begin = s->line;
            continue;
        }
        follow(s, c);
        s->line += newline;
        /* What is no object ends with its line. */
        bool whole = s->depth <= 0 && !s->in_string && (c == '}' || newline);
        if (!whole)
            continue;
        HZP_TRY(give(s, s->begin, text + *used, at + 1 - *used));
        *used = at + 1;
        s->depth = 0;
        s->begin = s->line;
    }
    s->seen = bytes - *used;
    return HZP_OK;
}

static int split_array(struct hzp_splitter *s, const char *text, size_t bytes, size_t *used)
{
    for (size_t at = s->seen; at < bytes; at++) {
        char c = text[at];
        bool ends = !s->in_string && s->depth == 0 && (c == ',' || c == ']');
        if (!ends) {
            follow(s, c);
            continue;
        }
        size_t n = at - *used;
        /* Only `[]` may have nothing before its bracket. */
        if (hzp_blanks(text + *used, n) < n || c == ',' || s->comma)
            HZP_TRY(give(s, s->line, text + *used, n));
        s->comma = c == ',';
        s->line++;
        *used = at + 1;
        if (c == ']') {
            s->mode = HZP_SPLIT_AFTER;
            break;
        }
    }
    s->seen = s->mode == HZP_SPLIT_AFTER ? 0 : bytes - *used;
    return HZP_OK;
}

static int split_after(struct hzp_splitter *s, const char *text, size_t bytes, size_t *used,
                       struct hzp_err_text *reterr)
{
    *used += hzp_blanks(text + *used, bytes - *used);
    if (*used < bytes)
        return hzp_fail(reterr, HZP_EINVAL, "there is text behind the array");
    s->seen = 0;
    return HZP_OK;
}

static int end(struct hzp_splitter *s, const char *text, size_t bytes, struct hzp_err_text *reterr)
{
    if (s->mode == HZP_SPLIT_ARRAY)
        return hzp_fail(reterr, HZP_EINVAL, "not JSON: the array does not end");
    return hzp_blanks(text, bytes) < bytes
               ? give(s, s->mode == HZP_SPLIT_OBJECTS ? s->begin : s->line, text, bytes)
               : HZP_OK;
}

static int split(struct hzp_splitter *s, const char *text, size_t bytes, bool last, size_t *used,
                 struct hzp_err_text *reterr)
{
    *used = 0;
    if (s->mode == HZP_SPLIT_START) {
        *used = begin(s, text, bytes, last);
        if (s->mode == HZP_SPLIT_START)
            return HZP_OK;
        s->seen = *used;
    }
    if (s->mode == HZP_SPLIT_LINES)
        HZP_TRY(split_lines(s, text, bytes, used));
    else if (s->mode == HZP_SPLIT_OBJECTS)
        HZP_TRY(split_objects(s, text, bytes, used));
    else if (s->mode == HZP_SPLIT_ARRAY)
        HZP_TRY(split_array(s, text, bytes, used));
    if (s->mode == HZP_SPLIT_AFTER)
        HZP_TRY(split_after(s, text, bytes, used, reterr));
    if (s->example_max && bytes - *used > s->example_max)
        return hzp_fail(reterr, HZP_EINVAL, "an example of more than %zu bytes", s->example_max);
    return last ? end(s, text + *used, bytes - *used, reterr) : HZP_OK;
}

/* Takes the next piece; last: nothing follows.  Errors of `found` are passed on.  HZP_EINVAL: too
 * long, or an array that does not end; s->line says where; HZP_ENOMEM. */
static int hzp_splitter_feed(struct hzp_splitter *s, const char *data, size_t bytes, bool last,
                             struct hzp_err_text *reterr)
{
    size_t used;
    if (!s->rest.bytes) { /* nothing is copied but what is left of the piece */
        HZP_TRY(split(s, data, bytes, last, &used, reterr));
        if (used < bytes && hzp_textbuf_append(&s->rest, data + used, bytes - used) < 0)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for the body now");
        return HZP_OK;
    }
    if (hzp_textbuf_append(&s->rest, data, bytes) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for the body now");
    HZP_TRY(split(s, s->rest.data, s->rest.bytes, last, &used, reterr));
    memmove(s->rest.data, s->rest.data + used, s->rest.bytes - used);
    s->rest.bytes -= used;
    return HZP_OK;
}

/* --- Whole bodies ----------------------------------------------------------------------------- */

/* One example's text. */
static int parse_example(void *ctx, int64_t line, const char *text, size_t bytes)
{
    struct hzp_parse *p = ctx;
    struct hzp_json_error error;
    /* Python writes files, with columns of NaN. */
    const int flags = HZP_JSON_UNIQUE | HZP_JSON_ANY | (p->ex->split ? HZP_JSON_PYTHON : 0);
    p->line = line;
    json_t *object = hzp_json_load(text, bytes, flags, NULL, &error);
    if (!object && error.no_memory)
        return hzp_parse_no_memory(p);
    if (!object)
        return hzp_parse_look_on(p, hzp_parse_bad(p, "", "not JSON: %s", error.text));
    int r = hzp_parse_object(p, line, object);
    json_decref(object);
    return r;
}

/* Texts longer than this cannot be examples: no token is longer than its share of them. */
static size_t example_bytes_max(const struct hzp_examples *ex)
{
    return ex->split ? 0 : HZP_MAX((size_t)256 << 10, (size_t)ex->tokens_max * 128);
}

/* A kind of file that people have and this program does not read. */
static int unread_body(struct hzp_parse *p, const char *unread)
{
    return hzp_fail_param(p->reterr, HZP_EINVAL, "lines", "%s%s", p->ex->split ? "" : "the body ",
                          unread);
}

static int feed(struct hzp_parse *p, struct hzp_splitter *split, const char *data, size_t bytes,
                bool last)
{
    struct hzp_err_text err = {{0}, {0}};
    int r = hzp_splitter_feed(split, data, bytes, last, &err);
    p->line = split->line;
    if (r == HZP_EINVAL && err.text[0]) /* the splitter's own */
        return hzp_parse_bad(p, "", "%s", err.text);
    return r < 0 && err.text[0] ? hzp_parse_no_memory(p) : r;
}

int hzp_parse_body(struct hzp_parse *p, const char *body, size_t bytes, const char *content_type)
{
    const char *unread = hzp_form_unread(body, bytes);
    if (unread)
        return unread_body(p, unread);
    HZP_ENDED(hzp_splitter_fini) struct hzp_splitter split;
    hzp_splitter_init(&split, content_type, example_bytes_max(p->ex), parse_example, p);
    return feed(p, &split, body, bytes, true);
}

/* All but the samples. */
static void free_scratch(struct hzp_parse *p)
{
    hzp_tokens_fini(&p->tokens);
    hzp_tokens_fini(&p->both);
    hzp_form_fini(&p->form);
    free(p->learn);
    free(p->weight);
    free(p->how);
    free(p->soft);
}

int hzp_parse_take(struct hzp_parse *p, int r, struct hzp_sample ***ret, int32_t *ret_count)
{
    free_scratch(p);
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
    struct hzp_parse p = {.ex = ex, .reterr = reterr};
    int r = hzp_parse_body(&p, body, bytes, content_type);
    return hzp_parse_take(&p, r, ret, ret_count);
}

/* --- Bodies that arrive in pieces ------------------------------------------------------------- */

struct hzp_example_reader {
    struct hzp_parse p;
    struct hzp_example_fields fields;
    struct hzp_splitter split;
    bool begun; /* a piece was fed */
    char
        delimiter; /* separates a table's fields; the table is read when it is whole; 0: no table */
    struct hzp_textbuf table;
    uint64_t digest; /* all pieces, behind the names of fields that were given */
};

static char delimiter_of(const char *content_type)
{
    static const struct {
        const char *type;
        char delimiter;
    } kind[] = {{"text/csv", ','}, {"text/tab-separated-values", '\t'}};
    for (int i = 0; content_type && i < HZP_COUNT(kind); i++) {
        size_t n = strlen(kind[i].type);
        if (!strncasecmp(content_type, kind[i].type, n) && strchr("; \t", content_type[n]))
            return kind[i].delimiter;
    }
    return 0;
}

struct hzp_example_reader *hzp_example_reader_create(const struct hzp_examples *ex,
                                                     const char *content_type)
{
    struct hzp_example_reader *reader = hzp_xcalloc(1, sizeof(*reader));
    reader->p.ex = ex;
    reader->p.pairs = true;
    reader->digest = HZP_FNV;
    reader->delimiter = delimiter_of(content_type);
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
    hzp_textbuf_fini(&reader->table);
    free_scratch(&reader->p);
    hzp_examples_free(reader->p.sample, reader->p.count);
    hzp_examples_free(reader->p.asks, reader->p.asks_count);
    for (int32_t i = 0; i < reader->p.told_count; i++)
        hzp_sample_destroy(reader->p.told[i].sample);
    free(reader->p.told);
    free(reader);
}

static int feed_table(struct hzp_example_reader *reader, const char *data, size_t bytes, bool last)
{
    struct hzp_err_text err = {{0}, {0}};
    if (hzp_textbuf_append(&reader->table, data, bytes) < 0)
        return hzp_parse_no_memory(&reader->p);
    if (!last)
        return HZP_OK;
    int r = hzp_csv_read(reader->table.data ? reader->table.data : "", reader->table.bytes,
                         reader->delimiter, hzp_parse_object, &reader->p, &err);
    return r < 0 && err.text[0] ? hzp_fail_param(reader->p.reterr, r, "lines", "%s", err.text) : r;
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
    return reader->delimiter ? feed_table(reader, data, bytes, last)
                             : feed(&reader->p, &reader->split, data, bytes, last);
}

size_t hzp_example_reader_bytes(const struct hzp_example_reader *reader)
{
    return reader->split.rest.cap + reader->table.cap + reader->p.held +
           (size_t)reader->p.room * sizeof(*reader->p.sample);
}

int32_t hzp_example_reader_count(const struct hzp_example_reader *reader)
{
    return reader->p.count;
}

struct hzp_sample **hzp_example_reader_take_asks(struct hzp_example_reader *reader,
                                                 int32_t *ret_count)
{
    struct hzp_sample **ret = reader->p.asks;
    *ret_count = reader->p.asks_count;
    reader->p.asks = NULL;
    reader->p.asks_count = 0;
    return ret;
}

const char *hzp_example_reader_reference(const struct hzp_example_reader *reader)
{
    return *reader->p.reference ? reader->p.reference : NULL;
}

bool hzp_example_reader_refers(const struct hzp_example_reader *reader)
{
    return reader->p.paired || reader->p.told_count;
}

json_t *hzp_example_reader_plain(const struct hzp_example_reader *reader, int64_t first)
{
    json_t *ret = json_array();
    for (int32_t i = 0; i < reader->p.told_count && json_array_size(ret) < PLAIN_SHOWN; i++) {
        const struct hzp_told *told = &reader->p.told[i];
        int64_t number = first - 1 + told->sample->sequence_number;
        if (told->soft < told->tokens)
            json_array_append_new(
                ret,
                json_pack("{s:I, s:o}", "example", (json_int_t)number, "message",
                          json_sprintf("%d of the %d tokens of example %" PRId64 " are learned "
                                       "plainly: the model, told the answer, gives each less "
                                       "than half",
                                       told->tokens - told->soft, told->tokens, number)));
    }
    return ret;
}

struct hzp_parse *hzp_example_reader_parse(struct hzp_example_reader *reader)
{
    return &reader->p;
}

/* --- Acceptance ------------------------------------------------------------------------------- */

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
