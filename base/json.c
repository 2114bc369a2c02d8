/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/chars.h"
#include "base/utf8.h"

/* The one name of a spelled value: not UTF-8. */
static const char mark[] = "\xFF";

struct reader {
    const char *text, *at, *end;
    int flags, depth;
    char *scratch; /* the string that is read */
    size_t room;
    struct hzp_json_error *error;
};

/* ---- errors ---- */

static json_t *fail(struct reader *r, const char *at, const char *why)
{
    struct hzp_json_error *error = r->error;
    error->line = error->column = 1;
    for (const char *p = r->text; p < at; p++) {
        error->column = *p == '\n' ? 1 : error->column + 1;
        error->line += *p == '\n';
    }
    snprintf(error->text, sizeof(error->text), "%s", why);
    return NULL;
}

static json_t *no_memory(struct reader *r)
{
    fail(r, r->at, "no memory for it now");
    r->error->no_memory = true;
    return NULL;
}

static json_t *unexpected(struct reader *r, const char *wanted)
{
    char why[100];
    if (r->at == r->end)
        snprintf(why, sizeof(why), "%s expected, and the text ends", wanted);
    else if (*r->at > 0x20 && *r->at < 0x7F)
        snprintf(why, sizeof(why), "%s expected near '%c'", wanted, *r->at);
    else
        snprintf(why, sizeof(why), "%s expected near the byte 0x%02x", wanted, (uint8_t)*r->at);
    return fail(r, r->at, why);
}

/* ---- strings ---- */

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* The four hexadecimal digits at p; -1: there are none. */
static int32_t hex4(const char *p, const char *end)
{
    int32_t code = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hzp_hex_digit(p[i]);
        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* What stands behind a backslash, at r->at, which moves behind it; -1: nothing that JSON has. */
static int32_t escape(struct reader *r)
{
    static const char letters[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    const char *found = r->at < r->end && *r->at ? strchr(letters, *r->at) : NULL;
    if (found) {
        r->at++;
        return codes[found - letters];
    }
    int32_t code = r->at < r->end && *r->at == 'u' ? hex4(r->at + 1, r->end) : -1;
    if (code < 0)
        return -1;
    r->at += 5;
    if (code < 0xD800 || code > 0xDFFF)
        return code;
    if (code <= 0xDBFF && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        int32_t low = hex4(r->at + 2, r->end);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            r->at += 6;
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    return 0xFFFD; /* half a pair */
}

/* Room for `more` bytes behind the first n. */
static bool grow(struct reader *r, size_t n, size_t more)
{
    if (r->room - n >= more)
        return true;
    size_t room = HZP_MAX(2 * r->room, n + more + 64);
    char *scratch = realloc(r->scratch, room);
    if (!scratch) {
        no_memory(r);
        return false;
    }
    r->scratch = scratch;
    r->room = room;
    return true;
}

/* The string at r->at, which moves behind it, into scratch.  False: failed. */
static bool read_string(struct reader *r, size_t *ret_bytes)
{
    size_t n = 0;
    for (r->at++; r->at < r->end && *r->at != '"';) {
        const char *from = r->at;
        size_t bytes = 1;
        while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (uint8_t)*r->at >= 0x20 &&
               (bytes = hzp_utf8_bytes(r->at, r->end)) > 0)
            r->at += bytes;
        size_t plain = (size_t)(r->at - from);
        if (!grow(r, n, plain + 5))
            return false;
        memcpy(r->scratch + n, from, plain);
        n += plain;
        if (r->at == r->end || *r->at == '"')
            break;
        if (*r->at != '\\') {
            fail(r, r->at,
                 bytes ? "a control character in a string must be escaped" : "not valid UTF-8");
            return false;
        }
        from = r->at++;
        int32_t code = escape(r);
        if (code < 0) {
            fail(r, from, "an escape that JSON does not have");
            return false;
        }
        n += (size_t)hzp_utf8_put(r->scratch + n, (uint32_t)code);
    }
    if (r->at == r->end) {
        fail(r, r->at, "a string without end");
        return false;
    }
    r->at++;
    *ret_bytes = n;
    return grow(r, n, 1);
}

/* ---- numbers ---- */

static bool digits(const char **at, const char *end)
{
    const char *from = *at;
    while (*at < end && **at >= '0' && **at <= '9')
        ++*at;
    return *at > from;
}

/* Behind the number at p; NULL: it is none.  *ret_whole: it has neither fraction nor exponent. */
static const char *number_end(const char *p, const char *end, bool *ret_whole)
{
    p += p < end && *p == '-';
    const char *from = p;
    if (!digits(&p, end) || (*from == '0' && p - from > 1))
        return NULL;
    *ret_whole = true;
    if (p < end && *p == '.') {
        *ret_whole = false;
        p++;
        if (!digits(&p, end))
            return NULL;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        *ret_whole = false;
        p++;
        p += p < end && (*p == '+' || *p == '-');
        if (!digits(&p, end))
            return NULL;
    }
    return p;
}

/* What Python writes of numbers that JSON does not have; NULL: it is none of these. */
static const char *python_end(const char *p, const char *end)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (int i = 0; i < HZP_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(end - p) >= n && !memcmp(p, words[i], n))
            return p + n;
    }
    return NULL;
}

static json_t *read_number(struct reader *r)
{
    bool whole = false;
    const char *from = r->at, *stop = number_end(from, r->end, &whole);
    json_t *json = NULL;
    char *end;
    if (!stop)
        return fail(r, from, "not a number as JSON writes it");
    size_t n = (size_t)(stop - from);
    if (!grow(r, 0, n + 1))
        return NULL;
    memcpy(r->scratch, from, n);
    r->scratch[n] = '\0';
    r->at = stop;
    errno = 0;
    long long integer = whole ? strtoll(r->scratch, &end, 10) : 0;
    if (whole && !errno) {
        json = json_integer(integer);
    } else {
        double real = strtod(r->scratch, &end);
        json = whole || !isfinite(real) ? hzp_json_spelled(from, n) : json_real(real);
    }
    return json ? json : no_memory(r);
}

/* ---- values ---- */

static json_t *read_value(struct reader *r);

static bool next_is(struct reader *r, char c)
{
    r->at = skip_blanks(r->at, r->end);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* A member, into the object.  False: failed. */
static bool read_member(struct reader *r, json_t *object)
{
    size_t bytes;
    r->at = skip_blanks(r->at, r->end);
    if (r->at == r->end || *r->at != '"') {
        unexpected(r, "a name in quotes, or '}',");
        return false;
    }
    const char *from = r->at;
    if (!read_string(r, &bytes))
        return false;
    char small[128], *name = bytes < sizeof(small) ? small : malloc(bytes + 1);
    if (!name) {
        no_memory(r);
        return false;
    }
    memcpy(name, r->scratch, bytes);
    name[bytes] = '\0';
    json_t *value = NULL;
    if ((r->flags & HZP_JSON_UNIQUE) && json_object_getn(object, name, bytes))
        fail(r, from, "duplicate name in the object");
    else if (!next_is(r, ':'))
        unexpected(r, "':'");
    else
        value = read_value(r);
    bool fits = value != NULL;
    if (fits && json_object_setn_new_nocheck(object, name, bytes, value) < 0) {
        no_memory(r);
        fits = false;
    }
    if (name != small)
        free(name);
    return fits;
}

static bool read_item(struct reader *r, json_t *list)
{
    json_t *value = read_value(r);
    if (!value)
        return false;
    if (json_array_append_new(list, value) < 0) {
        no_memory(r);
        return false;
    }
    return true;
}

static json_t *read_list(struct reader *r, bool object)
{
    const char close = object ? '}' : ']';
    if (r->depth == HZP_JSON_DEPTH_MAX)
        return fail(r, r->at, "maximum nesting depth reached");
    json_t *json = object ? json_object() : json_array();
    if (!json)
        return no_memory(r);
    r->at++;
    r->depth++;
    bool fits = true, ends = next_is(r, close);
    while (fits && !ends) {
        fits = object ? read_member(r, json) : read_item(r, json);
        ends = fits && next_is(r, close);
        if (fits && !ends && !next_is(r, ',')) {
            unexpected(r, object ? "',' or '}'" : "',' or ']'");
            fits = false;
        }
    }
    r->depth--;
    if (!fits)
        json_decref(json);
    return fits ? json : NULL;
}

static json_t *read_word(struct reader *r)
{
    static const struct {
        const char *word;
        json_t *(*value)(void);
    } words[] = {{"true", json_true}, {"false", json_false}, {"null", json_null}};
    for (int i = 0; i < HZP_COUNT(words); i++) {
        size_t n = strlen(words[i].word);
        if ((size_t)(r->end - r->at) >= n && !memcmp(r->at, words[i].word, n)) {
            r->at += n;
            return words[i].value();
        }
    }
    return unexpected(r, "a value");
}

static json_t *read_value(struct reader *r)
{
    size_t bytes;
    r->at = skip_blanks(r->at, r->end);
    if (r->at == r->end)
        return unexpected(r, "a value");
    const char *python = python_end(r->at, r->end);
    if (python && (r->flags & HZP_JSON_PYTHON)) {
        json_t *json = hzp_json_spelled(r->at, (size_t)(python - r->at));
        r->at = python;
        return json ? json : no_memory(r);
    }
    if (python)
        return fail(r, r->at, "NaN and infinity are no numbers of JSON");
    switch (*r->at) {
    case '{':
        return read_list(r, true);
    case '[':
        return read_list(r, false);
    case '"': {
        if (!read_string(r, &bytes))
            return NULL;
        json_t *json = json_stringn_nocheck(r->scratch, bytes);
        return json ? json : no_memory(r);
    }
    default:
        return *r->at == '-' || (*r->at >= '0' && *r->at <= '9') ? read_number(r) : read_word(r);
    }
}

json_t *hzp_json_load(const char *text, size_t bytes, int flags, size_t *ret_used,
                      struct hzp_json_error *reterr)
{
    struct hzp_json_error error = {0};
    struct reader r = {.text = text,
                       .at = skip_blanks(text, text + bytes),
                       .end = text + bytes,
                       .flags = flags,
                       .error = &error};
    json_t *json = NULL;
    if (!(flags & HZP_JSON_ANY) && (r.at == r.end || (*r.at != '{' && *r.at != '[')))
        unexpected(&r, "'{' or '['");
    else
        json = read_value(&r);
    if (json && !(flags & HZP_JSON_PREFIX) && skip_blanks(r.at, r.end) != r.end) {
        r.at = skip_blanks(r.at, r.end);
        unexpected(&r, "the end");
        json_decref(json);
        json = NULL;
    }
    free(r.scratch);
    if (json && ret_used)
        *ret_used = (size_t)(r.at - text);
    if (reterr)
        *reterr = error;
    return json;
}

/* ---- spelled values ---- */

json_t *hzp_json_spelled(const char *text, size_t bytes)
{
    json_t *json = json_object(), *string = json_stringn_nocheck(text, bytes);
    if (!json || !string || json_object_setn_nocheck(json, mark, 1, string) < 0) {
        json_decref(json);
        json = NULL;
    }
    json_decref(string);
    return json;
}

const char *hzp_json_spelling(const json_t *value)
{
    return value && json_typeof(value) == JSON_OBJECT
               ? json_string_value(json_object_getn(value, mark, 1))
               : NULL;
}

bool hzp_json_is_object(const json_t *value)
{
    return value && json_typeof(value) == JSON_OBJECT && !json_object_getn(value, mark, 1);
}

bool hzp_json_is_number(const json_t *value)
{
    const char *text = hzp_json_spelling(value);
    return json_is_number(value) || (text && *text && strchr("-0123456789NI", *text));
}

double hzp_json_real(const json_t *value)
{
    const char *text = hzp_json_is_number(value) ? hzp_json_spelling(value) : NULL;
    return text ? strtod(text, NULL) : json_number_value(value);
}

const char *hzp_json_number_text(const json_t *number, char *text, size_t size)
{
    const char *spelled = hzp_json_spelling(number);
    if (spelled)
        snprintf(text, size, strlen(spelled) < size ? "%s" : "%.20s...", spelled);
    else if (json_is_integer(number))
        snprintf(text, size, "%lld", (long long)json_integer_value(number));
    else
        snprintf(text, size, "%g", json_number_value(number));
    return text;
}

bool hzp_json_is_text(const json_t *value)
{
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

bool hzp_json_names_are_text(const json_t *value)
{
    const char *name;
    json_t *each;
    size_t i, bytes;
    bool fits = true;
    json_array_foreach(value, i, each) fits = fits && hzp_json_names_are_text(each);
    json_object_keylen_foreach((json_t *)(uintptr_t)value, name, bytes, each)
    {
        fits = fits && strlen(name) == bytes && hzp_json_names_are_text(each);
    }
    return fits;
}

json_t *hzp_json_copy(const json_t *value)
{
    const char *name;
    json_t *each, *copy;
    size_t i, bytes;
    bool fits = true;
    if (!json_is_array(value) && !json_is_object(value))
        return json_copy((json_t *)(uintptr_t)value);
    copy = json_is_array(value) ? json_array() : json_object();
    json_array_foreach(value, i, each)
    {
        fits = fits && json_array_append_new(copy, hzp_json_copy(each)) == 0;
    }
    json_object_keylen_foreach((json_t *)(uintptr_t)value, name, bytes, each)
    {
        fits = fits && json_object_setn_new_nocheck(copy, name, bytes, hzp_json_copy(each)) == 0;
    }
    if (!fits) {
        json_decref(copy);
        return NULL;
    }
    return copy;
}

/* ---- writing ---- */

struct writer {
    char *text;
    size_t n, room, flags;
};

static int put(const char *text, size_t bytes, void *ctx)
{
    struct writer *w = ctx;
    if (w->room - w->n <= bytes) {
        size_t room = HZP_MAX(2 * w->room, w->n + bytes + 256);
        char *grown = realloc(w->text, room);
        if (!grown)
            return -1;
        w->text = grown;
        w->room = room;
    }
    memcpy(w->text + w->n, text, bytes);
    w->n += bytes;
    w->text[w->n] = '\0';
    return 0;
}

static int put_text(struct writer *w, const char *text)
{
    return put(text, strlen(text), w);
}

/* Whether jansson would not write it: a spelled value, or a name with a NUL, which it cuts. */
static bool is_beyond(const json_t *value)
{
    json_t *each;
    size_t i, bytes;
    const char *name;
    json_array_foreach(value, i, each)
    {
        if (is_beyond(each))
            return true;
    }
    if (hzp_json_spelling(value))
        return true;
    json_object_keylen_foreach((json_t *)(uintptr_t)value, name, bytes, each)
    {
        if (strlen(name) != bytes || is_beyond(each))
            return true;
    }
    return false;
}

/* A line break and the indentation, where the flags ask for it; else a blank, where wanted. */
static int put_break(struct writer *w, int depth, bool blank)
{
    size_t indent = w->flags & JSON_MAX_INDENT;
    if (!indent)
        return blank && !(w->flags & JSON_COMPACT) ? put_text(w, " ") : 0;
    int r = put_text(w, "\n");
    for (size_t i = 0; r == 0 && i < indent * (size_t)depth; i++)
        r = put_text(w, " ");
    return r;
}

static int write_value(struct writer *w, const json_t *value, int depth);

static int write_member(struct writer *w, const char *name, size_t bytes, const json_t *value,
                        int depth)
{
    json_t *key = json_stringn_nocheck(name, bytes);
    int r = key ? json_dump_callback(key, put, w, w->flags | JSON_ENCODE_ANY) : -1;
    json_decref(key);
    if (r == 0)
        r = put_text(w, w->flags & JSON_COMPACT ? ":" : ": ");
    return r == 0 ? write_value(w, value, depth) : r;
}

static int write_list(struct writer *w, const json_t *value, int depth)
{
    bool object = json_is_object(value);
    size_t i = 0, bytes;
    const char *name;
    json_t *each;
    int r = put_text(w, object ? "{" : "[");
    if (object) {
        json_object_keylen_foreach((json_t *)(uintptr_t)value, name, bytes, each)
        {
            r = r == 0 && i++ ? put_text(w, ",") : r;
            r = r == 0 ? put_break(w, depth + 1, i > 1) : r;
            r = r == 0 ? write_member(w, name, bytes, each, depth + 1) : r;
        }
    } else {
        json_array_foreach(value, i, each)
        {
            r = r == 0 && i ? put_text(w, ",") : r;
            r = r == 0 ? put_break(w, depth + 1, i > 0) : r;
            r = r == 0 ? write_value(w, each, depth + 1) : r;
        }
    }
    r = r == 0 ? put_break(w, depth, false) : r;
    return r == 0 ? put_text(w, object ? "}" : "]") : r;
}

static int write_value(struct writer *w, const json_t *value, int depth)
{
    const char *text = hzp_json_spelling(value);
    if (text)
        return put_text(w, text);
    bool list = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    return list ? write_list(w, value, depth)
                : json_dump_callback(value, put, w, w->flags | JSON_ENCODE_ANY);
}

char *hzp_json_dumps(const json_t *value, size_t flags)
{
    struct writer w = {.flags = flags};
    if (!value)
        return NULL;
    if (!is_beyond(value))
        return json_dumps(value, flags | JSON_ENCODE_ANY);
    if (write_value(&w, value, 0) == 0)
        return w.text;
    free(w.text);
    return NULL;
}
