/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/csv.h"

#include "text/chars/textbuf.h"

struct reader {
    const char *at, *end;
    char delimiter;
    int64_t line;  /* the line that `at` is in */
    int64_t begin; /* where the record begins */
    struct hzp_textbuf value;
    struct hzp_err_text *reterr;
};

static int bad(const struct reader *r, const char *text)
{
    return hzp_fail_param(r->reterr, HZP_EINVAL, "lines", "line %lld: %s", (long long)r->begin,
                          text);
}

static int keep(struct reader *r)
{
    if (*r->at == '\n')
        r->line++;
    return hzp_textbuf_append(&r->value, r->at++, 1);
}

/* Reads one value into r->value. */
static int read_value(struct reader *r)
{
    bool quoted = r->at < r->end && *r->at == '"';
    r->value.bytes = 0;
    r->at += quoted;
    while (r->at < r->end) {
        if (quoted && *r->at == '"') {
            r->at++;
            if (r->at == r->end || *r->at != '"')
                return HZP_OK;
        } else if (!quoted && (*r->at == r->delimiter || *r->at == '\n' || *r->at == '\r')) {
            return HZP_OK;
        }
        HZP_TRY(keep(r));
    }
    return quoted ? bad(r, "a quote has no end") : HZP_OK;
}

/* Behind a value: moves to the next one.  1: there is none in this record. */
static int next_value(struct reader *r)
{
    if (r->at < r->end && *r->at == r->delimiter) {
        r->at++;
        return 0;
    }
    bool ends = r->at < r->end && *r->at == '\r';
    r->at += ends;
    if (r->at < r->end && *r->at == '\n')
        r->at++;
    else if (r->at < r->end && !ends)
        return bad(r, "text follows a quote that has ended: a quote in a value is doubled");
    r->line++;
    return 1;
}

/* Reads a record as an array of strings. */
static int read_record(struct reader *r, json_t *values)
{
    int last = 0;
    r->begin = r->line;
    while (!last) {
        HZP_TRY(read_value(r));
        json_t *value = json_stringn(r->value.bytes ? r->value.data : "", r->value.bytes);
        if (!value)
            return bad(r, "is not UTF-8");
        json_array_append_new(values, value);
        last = next_value(r);
        HZP_TRY(last);
    }
    return HZP_OK;
}

static int make_object(const struct reader *r, const json_t *names, const json_t *values,
                       json_t *object)
{
    size_t i;
    json_t *name;
    if (json_array_size(values) != json_array_size(names))
        return hzp_fail_param(r->reterr, HZP_EINVAL, "lines",
                              "line %lld: has %zu values, the first line %zu names",
                              (long long)r->begin, json_array_size(values), json_array_size(names));
    json_array_foreach(names, i, name)
        json_object_set(object, json_string_value(name), json_array_get(values, i));
    return json_object_size(object) == json_array_size(names)
               ? HZP_OK
               : bad(r, "two columns have the same name");
}

static int read_records(struct reader *r, json_t *names,
                        int (*found)(void *ctx, int64_t line, json_t *object), void *ctx)
{
    HZP_TRY(read_record(r, names));
    while (r->at < r->end) {
        json_auto_t *values = json_array(), *object = json_object();
        HZP_TRY(read_record(r, values));
        bool empty = json_array_size(values) == 1 && json_array_size(names) > 1 &&
                     !json_string_length(json_array_get(values, 0));
        if (empty)
            continue;
        HZP_TRY(make_object(r, names, values, object));
        HZP_TRY(found(ctx, r->begin, object));
    }
    return HZP_OK;
}

int hzp_csv_read(const char *text, size_t bytes, char delimiter,
                 int (*found)(void *ctx, int64_t line, json_t *object), void *ctx,
                 struct hzp_err_text *reterr)
{
    static const char mark[] = "\xef\xbb\xbf"; /* the byte order mark that spreadsheets write */
    struct reader r = {
        .at = text, .end = text + bytes, .delimiter = delimiter, .line = 1, .reterr = reterr};
    json_auto_t *names = json_array();
    if (bytes >= 3 && !memcmp(text, mark, 3))
        r.at += 3;
    int result = read_records(&r, names, found, ctx);
    hzp_textbuf_fini(&r.value);
    return result;
}
