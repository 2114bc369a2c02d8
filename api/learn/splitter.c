/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/splitter.h"

#include <string.h>
#include <strings.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

void hzp_splitter_init(struct hzp_splitter *s, const char *content_type, size_t example_max,
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

void hzp_splitter_fini(struct hzp_splitter *s)
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
    while (at < bytes && is_space(text[at]))
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
    while (bytes && is_space(*text)) {
        text++;
        bytes--;
    }
    while (bytes && is_space(text[bytes - 1]))
        bytes--;
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
        size_t n = at - *used, skip = 0;
        while (skip < n && is_space(text[*used + skip]))
            skip++;
        if (skip < n)
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
        if (at == *used && is_space(c)) {
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
        size_t n = at - *used, skip = 0;
        while (skip < n && is_space(text[*used + skip]))
            skip++;
        /* Only `[]` may have nothing before its bracket. */
        if (skip < n || c == ',' || s->comma)
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
    for (; *used < bytes; ++*used)
        if (!is_space(text[*used]))
            return hzp_fail(reterr, HZP_EINVAL, "there is text behind the array");
    s->seen = 0;
    return HZP_OK;
}

static int end(struct hzp_splitter *s, const char *text, size_t bytes, struct hzp_err_text *reterr)
{
    size_t skip = 0;
    while (skip < bytes && is_space(text[skip]))
        skip++;
    if (s->mode == HZP_SPLIT_ARRAY)
        return hzp_fail(reterr, HZP_EINVAL, "not JSON: the array does not end");
    return skip < bytes ? give(s, s->mode == HZP_SPLIT_OBJECTS ? s->begin : s->line, text, bytes)
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

int hzp_splitter_feed(struct hzp_splitter *s, const char *data, size_t bytes, bool last,
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
