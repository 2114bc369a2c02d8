/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/trace_file.h"

#include "base/decimal.h"
#include "base/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char HEADER[] = "TIMESTAMP,ContextTokens,GeneratedTokens";
static const double SECONDS_MAX = 1e11;    /* largest time stamp: the year 5138 */
static const double LONGEST_SECONDS = 1e9; /* longest trace: thirty years */

struct reader {
    const char *path;
    FILE *file;
    int64_t number; /* the line's */
    char *line;
    size_t bytes;
    struct hzp_trace_file *trace;
    int64_t request_room, hash_room;
    struct hzp_err_text *reterr;
};

HZP_PRINTF(2, 3) static int bad(struct reader *r, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return hzp_fail(r->reterr, HZP_EFORMAT, "%s:%lld: %s", r->path, (long long)r->number, what);
}

/* Reads a line into r->line, NUL-terminated, without its line end. 1: a line; 0: end of file. */
static int next_line(struct reader *r)
{
    int c;
    r->bytes = 0;
    r->number++;
    while ((c = getc_unlocked(r->file)) != EOF && c != '\n') {
        if (c == 0)
            return bad(r, "a NUL byte: not a trace");
        if (r->bytes == HZP_TRACE_LINE_MAX)
            return bad(r, "longer than %d bytes", HZP_TRACE_LINE_MAX);
        r->line[r->bytes++] = (char)c;
    }
    if (ferror(r->file))
        return hzp_fail(r->reterr, HZP_EIO, "%s: %s", r->path, strerror(errno));
    while (r->bytes && (r->line[r->bytes - 1] == '\r' || r->line[r->bytes - 1] == ' '))
        r->bytes--;
    r->line[r->bytes] = 0;
    if (r->number == 1 && r->bytes >= 3 && !memcmp(r->line, "\xef\xbb\xbf", 3)) {
        r->bytes -= 3;
        memmove(r->line, r->line + 3, r->bytes + 1);
    }
    return c != EOF || r->bytes;
}

/* Makes room for `more` elements after `used` in the array at *at; on failure the array stays as it
 * is. */
static int grow(struct reader *r, void *at, int64_t used, int64_t more, int64_t *room, size_t size,
                int64_t most, const char *what)
{
    void *now, *array;
    memcpy(&array, at, sizeof(array));
    if (more > most - used)
        return bad(r, "more than %lld %s", (long long)most, what);
    if (used + more <= *room)
        return HZP_OK;
    int64_t want = HZP_MAX(used + more, HZP_MIN(most, HZP_MAX(*room * 2, (int64_t)1024)));
    now = realloc(array, (size_t)want * size);
    if (!now)
        return hzp_fail(r->reterr, HZP_ENOMEM, "%s: no memory for %lld %s", r->path,
                        (long long)want, what);
    memcpy(at, &now, sizeof(now));
    *room = want;
    return HZP_OK;
}

static int add(struct reader *r, double at_s, int64_t input, int64_t output)
{
    struct hzp_trace_file *t = r->trace;
    if (input < 1 || input > HZP_TRACE_TOKENS_MAX)
        return bad(r, "a prompt of %lld tokens; 1 to %d are accepted", (long long)input,
                   HZP_TRACE_TOKENS_MAX);
    if (output < 0 || output > HZP_TRACE_TOKENS_MAX)
        return bad(r, "an answer of %lld tokens; 0 to %d are accepted", (long long)output,
                   HZP_TRACE_TOKENS_MAX);
    HZP_TRY(grow(r, &t->request, t->requests, 1, &r->request_room, sizeof(*t->request),
                 HZP_TRACE_REQUESTS_MAX, "requests"));
    t->request[t->requests++] = (struct hzp_trace_request){
        .at_s = at_s,
        .input = (int32_t)input,
        .output = (int32_t)HZP_MAX(output, 1),
        .first_hash = t->hashes,
    };
    return HZP_OK;
}

/* ---- CSV ---- */

/* Parses the number that fills a whole field of n bytes; false: not a number. */
static bool whole_number(const char *text, size_t n, int64_t *ret)
{
    int64_t value = 0;
    if (n == 0 || n > 15)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (text[i] - '0');
    }
    *ret = value;
    return true;
}

/* Parses the offset from UTC after a time, in seconds: "", "Z", "+hh:mm" or "-hh:mm". */
static bool utc_offset(const char *text, double *ret)
{
    int hours, minutes, used = 0;
    *ret = 0;
    if (!*text || !strcmp(text, "Z"))
        return true;
    if ((*text != '+' && *text != '-') ||
        sscanf(text + 1, "%2d:%2d%n", &hours, &minutes, &used) != 2 || text[1 + used] ||
        hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
        return false;
    *ret = (*text == '-' ? -1 : 1) * (hours * 3600.0 + minutes * 60.0);
    return true;
}

/* Parses "2023-11-16 18:15:46.6805900", also with a T in between, to seconds since 1970. */
static bool date_and_time(const char *text, double *ret)
{
    struct tm tm = {0};
    int used = 0, year, month;
    char between, *end;
    if (sscanf(text, "%4d-%2d-%2d%c%2d:%2d:%n", &year, &month, &tm.tm_mday, &between, &tm.tm_hour,
               &tm.tm_min, &used) != 6 ||
        used == 0 || (between != ' ' && between != 'T'))
        return false;
    text += used;
    if (*text < '0' || *text > '9')
        return false;
    size_t digits = strspn(text, "0123456789.");
    char seconds[32];
    if (digits >= sizeof(seconds))
        return false;
    memcpy(seconds, text, digits);
    seconds[digits] = 0;
    double s = strtod(seconds, &end), offset;
    if (*end || !(s >= 0 && s < 61) || !utc_offset(text + digits, &offset) || year < 1970 ||
        month < 1 || month > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour < 0 ||
        tm.tm_hour > 23 || tm.tm_min < 0 || tm.tm_min > 59)
        return false;
    tm.tm_year = year - 1900;
    tm.tm_mon = month - 1;
    *ret = (double)timegm(&tm) + s - offset;
    return true;
}

static bool plain_seconds(const char *text, double *ret)
{
    const char *end = hzp_decimal(text, ret);
    return end && !*end && *ret >= 0 && *ret <= SECONDS_MAX;
}

/* True: the text is a word, as in traces without times. */
static bool word(const char *text)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
    return n > 0 && !text[n] && strcasecmp(text, "nan") && strncasecmp(text, "inf", 3);
}

static int read_row(struct reader *r)
{
    char *comma = strchr(r->line, ','), *second = comma ? strchr(comma + 1, ',') : NULL;
    struct hzp_trace_file *t = r->trace;
    int64_t input, output;
    double at = 0;
    if (!second || strchr(second + 1, ','))
        return bad(r, "three fields are expected: time, prompt tokens, answer tokens");
    *comma = 0;
    *second = 0;
    if (!whole_number(comma + 1, (size_t)(second - comma - 1), &input))
        return bad(r, "the prompt's length is not a whole number: \"%.40s\"", comma + 1);
    if (!whole_number(second + 1, strlen(second + 1), &output))
        return bad(r, "the answer's length is not a whole number: \"%.40s\"", second + 1);
    bool timed = !word(r->line);
    if (t->requests == 0) {
        t->timed = timed;
        t->form = timed ? HZP_TRACE_AZURE : HZP_TRACE_NANOFLOW;
    }
    if (timed != t->timed)
        return bad(r, "\"%.40s\": some lines have a time and some have none", r->line);
    if (timed && !date_and_time(r->line, &at) && !plain_seconds(r->line, &at))
        return bad(r, "\"%.40s\" is not a time", r->line);
    return add(r, at, input, output);
}

/* ---- JSONL ---- */

static int field(struct reader *r, const json_t *object, const char *name, int64_t *ret)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value))
        return bad(r, "%s must be a whole number", name);
    *ret = json_integer_value(value);
    return HZP_OK;
}

static int read_hashes(struct reader *r, const json_t *list)
{
    struct hzp_trace_file *t = r->trace;
    struct hzp_trace_request *request = &t->request[t->requests - 1];
    int64_t n = (int64_t)json_array_size(list);
    if (list && !json_is_array(list))
        return bad(r, "hash_ids must be a list of whole numbers");
    if (n > HZP_DIV_UP(request->input, HZP_TRACE_BLOCK))
        return bad(r, "%lld hash_ids for a prompt of %d tokens: one stands for %d", (long long)n,
                   request->input, HZP_TRACE_BLOCK);
    HZP_TRY(grow(r, &t->hash, t->hashes, n, &r->hash_room, sizeof(*t->hash), HZP_TRACE_HASHES_MAX,
                 "hash_ids"));
    for (int64_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, (size_t)i);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return bad(r, "hash_ids[%lld] must be a whole number from 0", (long long)i);
        t->hash[t->hashes++] = json_integer_value(id);
    }
    request->hashes = (int32_t)n;
    return HZP_OK;
}

static int read_object(struct reader *r)
{
    struct hzp_json_error error;
    json_t *object =
        hzp_json_load(r->line, r->bytes, HZP_JSON_UNIQUE | HZP_JSON_PYTHON, NULL, &error);
    if (!object)
        return bad(r, "%.200s", error.text);
    const json_t *at = json_object_get(object, "timestamp");
    int64_t input = 0, output = 0;
    int e = HZP_OK;
    if (!json_is_object(object))
        e = bad(r, "an object is expected");
    else if (!json_is_number(at) || !(json_number_value(at) >= 0) ||
             json_number_value(at) > SECONDS_MAX * 1e3)
        e = bad(r, "timestamp must be a number of milliseconds from 0");
    if (e == HZP_OK)
        e = field(r, object, "input_length", &input);
    if (e == HZP_OK)
        e = field(r, object, "output_length", &output);
    if (e == HZP_OK)
        e = add(r, json_number_value(at) * 1e-3, input, output);
    if (e == HZP_OK)
        e = read_hashes(r, json_object_get(object, "hash_ids"));
    json_decref(object);
    return e;
}

/* ---- the file ---- */

/* Merge sort, stable: requests with equal times keep the file's order. spare has room for half of
 * them. */
static void sort_by_time(struct hzp_trace_request *request, struct hzp_trace_request *spare,
                         int64_t n)
{
    if (n < 2)
        return;
    int64_t half = n / 2, a = 0, b = half, out = 0;
    sort_by_time(request, spare, half);
    sort_by_time(request + half, spare, n - half);
    if (request[half - 1].at_s <= request[half].at_s)
        return;
    memcpy(spare, request, (size_t)half * sizeof(*spare));
    while (a < half && b < n)
        request[out++] = request[b].at_s < spare[a].at_s ? request[b++] : spare[a++];
    memcpy(request + out, spare + a, (size_t)(half - a) * sizeof(*spare));
}

/* Sorts the arrivals and makes their times relative to the first. */
static int settle(struct reader *r)
{
    struct hzp_trace_file *t = r->trace;
    if (t->requests == 0)
        return hzp_fail(r->reterr, HZP_EFORMAT, "%s: contains no requests", r->path);
    struct hzp_trace_request *spare = malloc((size_t)t->requests * sizeof(*spare));
    if (!spare)
        return hzp_fail(r->reterr, HZP_ENOMEM, "%s: no memory to sort %lld requests", r->path,
                        (long long)t->requests);
    sort_by_time(t->request, spare, t->requests);
    free(spare);
    double first = t->request[0].at_s;
    for (int64_t i = 0; i < t->requests; i++)
        t->request[i].at_s -= first;
    double last = t->request[t->requests - 1].at_s;
    return last <= LONGEST_SECONDS
               ? HZP_OK
               : hzp_fail(r->reterr, HZP_EFORMAT, "%s: spans %.0f seconds, more than %.0f", r->path,
                          last, LONGEST_SECONDS);
}

static int read_lines(struct reader *r, int64_t limit)
{
    struct hzp_trace_file *t = r->trace;
    bool csv = false, known = false;
    int e;
    while ((limit == 0 || t->requests < limit) && (e = next_line(r)) != 0) {
        HZP_TRY(e);
        if (r->bytes == 0)
            continue;
        if (!known) {
            known = true;
            csv = !strcmp(r->line, HEADER);
            if (csv)
                continue;
            if (r->line[0] != '{')
                return bad(r, "neither a line of JSON nor the header %s: unknown trace format",
                           HEADER);
            t->form = HZP_TRACE_MOONCAKE;
            t->timed = true;
        }
        HZP_TRY(csv ? read_row(r) : read_object(r));
    }
    return HZP_OK;
}

int hzp_trace_file_read(const char *path, int64_t limit, struct hzp_trace_file *ret,
                        struct hzp_err_text *reterr)
{
    struct reader r = {.path = path, .trace = ret, .reterr = reterr};
    memset(ret, 0, sizeof(*ret));
    r.file = fopen(path, "re");
    if (!r.file)
        return hzp_fail(reterr, HZP_ENOENT, "%s: %s", path, strerror(errno));
    r.line = malloc(HZP_TRACE_LINE_MAX + 1);
    int e = r.line ? read_lines(&r, limit)
                   : hzp_fail(reterr, HZP_ENOMEM, "%s: no memory for a line", path);
    if (e == HZP_OK)
        e = settle(&r);
    free(r.line);
    fclose(r.file);
    if (e < 0)
        hzp_trace_file_free(ret);
    return e;
}

void hzp_trace_file_free(struct hzp_trace_file *trace)
{
    free(trace->request);
    free(trace->hash);
    memset(trace, 0, sizeof(*trace));
}

const char *hzp_trace_form_name(enum hzp_trace_form form)
{
    static const char *const name[] = {"azure", "nanoflow", "mooncake"};
    return name[form];
}
