/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/utf8.h"

#include <poll.h>
#include <pthread.h>

static const char *const level_name[] = {"error", "warn", "info", "debug"};

#define NAME(name) #name,
static const char *const subsystem_name[] = {HZP_LOG_SUBSYSTEMS(NAME)};
#undef NAME

enum { SUBSYSTEMS = HZP_COUNT(subsystem_name) };

/* Relaxed: a level seen a moment late shows or hides a line, nothing more. */
#define INFO(name) HZP_LOG_INFO,
static atomic_int level_now[SUBSYSTEMS] = {HZP_LOG_SUBSYSTEMS(INFO)};
#undef INFO
static atomic_int level_most = HZP_LOG_INFO; /* the most verbose of level_now */

static int find(const char *const *name, int count, const char *word, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(name[i]) == length && !memcmp(name[i], word, length))
            return i;
    return -1;
}

static void set_levels(const int *level)
{
    int most = HZP_LOG_ERROR;
    for (int i = 0; i < SUBSYSTEMS; i++) {
        atomic_store_explicit(&level_now[i], level[i], memory_order_relaxed);
        most = HZP_MAX(most, level[i]);
    }
    atomic_store_explicit(&level_most, most, memory_order_relaxed);
}

void hzp_log_set_level(enum hzp_log_level level)
{
    int to[SUBSYSTEMS];
    for (int i = 0; i < SUBSYSTEMS; i++)
        to[i] = (int)level;
    set_levels(to);
}

/* Writes the names, separated by ", ". */
static const char *list(const char *const *name, int count, char *ret, size_t size)
{
    size_t used = 0;
    ret[0] = 0;
    for (int i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(ret + used, size - used, "%s%s", i ? ", " : "", name[i]);
    return ret;
}

/* One part: LEVEL or SUBSYSTEM=LEVEL. */
static int set_part(const char *part, size_t length, int *level, struct hzp_err_text *reterr)
{
    char names[160];
    const char *equals = memchr(part, '=', length);
    const char *word = equals ? equals + 1 : part;
    int to = find(level_name, HZP_COUNT(level_name), word, (size_t)(part + length - word));
    int which = equals ? find(subsystem_name, SUBSYSTEMS, part, (size_t)(equals - part)) : 0;
    if (which < 0)
        return hzp_fail(reterr, HZP_EINVAL, "\"%.*s\" is not a subsystem; these are: %s",
                        (int)(equals - part), part,
                        list(subsystem_name, SUBSYSTEMS, names, sizeof(names)));
    if (to < 0)
        return hzp_fail(reterr, HZP_EINVAL, "\"%.*s\" is not one of %s",
                        (int)(part + length - word), word,
                        list(level_name, HZP_COUNT(level_name), names, sizeof(names)));
    for (int i = 0; i < SUBSYSTEMS; i++)
        if (!equals || i == which)
            level[i] = to;
    return HZP_OK;
}

int hzp_log_set(const char *text, struct hzp_err_text *reterr)
{
    int level[SUBSYSTEMS];
    for (int i = 0; i < SUBSYSTEMS; i++)
        level[i] = atomic_load_explicit(&level_now[i], memory_order_relaxed);
    for (const char *part = text;; part++) {
        size_t length = strcspn(part, ",");
        int r = set_part(part, length, level, reterr);
        if (r < 0)
            return r;
        part += length;
        if (!*part)
            break;
    }
    set_levels(level);
    return HZP_OK;
}

void hzp_log_init(void)
{
    struct hzp_err_text err;
    const char *text = getenv("HZP_LOG");
    if (text && hzp_log_set(text, &err) < 0)
        hzp_log(HZP_LOG_WARN, "log", "HZP_LOG=%s: %s, ignoring", text, err.text);
}

bool hzp_log_enabled(enum hzp_log_level level, const char *subsystem)
{
    if ((int)level > atomic_load_explicit(&level_most, memory_order_relaxed))
        return false;
    int i = find(subsystem_name, SUBSYSTEMS, subsystem, strlen(subsystem));
    HZP_DEBUG_ASSERT(i >= 0);
    return i < 0 || (int)level <= atomic_load_explicit(&level_now[i], memory_order_relaxed);
}

static const char *part = "";

void hzp_log_set_part(const char *name)
{
    part = name;
}

static _Atomic int format_now = HZP_LOG_TEXT;

void hzp_log_set_format(enum hzp_log_format format)
{
    atomic_store(&format_now, (int)format);
}

enum hzp_log_format hzp_log_get_format(void)
{
    return (enum hzp_log_format)atomic_load(&format_now);
}

/* --- Lines ------------------------------------------------------------------------------------ */

enum { LINE_BYTES = 1024, JSON_BYTES = 4 * LINE_BYTES };

/* A text that is cut at its end when it is full. */
struct line {
    char *text;
    size_t used, size; /* used < size */
};

static void put(struct line *to, const char *bytes, size_t n)
{
    n = HZP_MIN(n, to->size - 1 - to->used);
    memcpy(to->text + to->used, bytes, n);
    to->used += n;
    to->text[to->used] = 0;
}

static void put_text(struct line *to, const char *text)
{
    put(to, text, strlen(text));
}

/* Appends bytes as the inside of a JSON string, and leaves room for spare bytes behind them.  What
 * is not UTF-8 (file names of other encodings) becomes U+FFFD. */
static void put_escaped(struct line *to, const char *text, size_t n, size_t spare)
{
    for (size_t i = 0, length; i < n; i += HZP_MAX(length, 1)) {
        unsigned char c = (unsigned char)text[i];
        char code[8];
        length = hzp_utf8_bytes(text + i, text + n);
        if (c == '"' || c == '\\')
            snprintf(code, sizeof(code), "\\%c", c);
        else if (c < ' ' || c == 127)
            snprintf(code, sizeof(code), "\\u%04x", c);
        else if (!length)
            strcpy(code, "\\ufffd");
        else
            snprintf(code, sizeof(code), "%.*s", (int)length, text + i);
        if (to->used + strlen(code) + spare >= to->size)
            return; /* never half of an escape */
        put_text(to, code);
    }
}

/* The length of the key at the beginning of text, which an `=` follows; 0: there is none. */
static size_t key_length(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n && text[n] == '=' && (text[0] < '0' || text[0] > '9') ? n : 0;
}

/* The length of the value at the beginning of text: to the next space, or to the closing quote. */
static size_t value_length(const char *text)
{
    size_t n = 1;
    if (text[0] != '"')
        return strcspn(text, " ");
    while (text[n] && text[n] != '"')
        n += text[n] == '\\' && text[n + 1] ? 2 : 1;
    return text[n] ? n + 1 : n;
}

/* Whether the value is a number as JSON writes them. */
static bool is_number(const char *text, size_t n)
{
    const char *end = text + n, *at = text + (*text == '-');
    if (at == end || *at < '0' || *at > '9' || (*at == '0' && at + 1 < end && at[1] != '.'))
        return false;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    if (at < end && *at == '.') {
        const char *first = ++at;
        while (at < end && *at >= '0' && *at <= '9')
            at++;
        if (at == first)
            return false;
    }
    return at == end;
}

/* Where the fields begin; the text's end: it has none, or something else follows them. */
static const char *find_fields(const char *text)
{
    const char *end = text + strlen(text), *first = text;
    while (*first && !key_length(first)) {
        first += strcspn(first, " ");
        first += strspn(first, " ");
    }
    for (const char *at = first; *at;) {
        size_t key = key_length(at);
        if (!key)
            return end;
        at += key + 1;
        at += value_length(at);
        if (*at && *at != ' ')
            return end;
        at += strspn(at, " ");
    }
    return first;
}

/* Appends ,"key":value for each field. */
static void put_fields(struct line *to, const char *at)
{
    while (*at) {
        size_t key = key_length(at), used = to->used;
        const char *value = at + key + 1;
        size_t n = value_length(value);
        bool quoted = value[0] == '"' && n > 1 && value[n - 1] == '"';
        put_text(to, ",\"");
        put(to, at, key);
        put_text(to, "\":");
        if (quoted || is_number(value, n)) {
            put(to, value, n);
        } else {
            put_text(to, "\"");
            put_escaped(to, value, n, 4);
            put_text(to, "\"");
        }
        if (to->used + 3 >= to->size) { /* it may have been cut: leave it out */
            to->used = used;
            to->text[used] = 0;
            return;
        }
        at = value + n;
        at += strspn(at, " ");
    }
}

static void put_json(struct line *to, const char *time, const char *level, const char *subsystem,
                     const char *text)
{
    char own[80];
    const char *fields = find_fields(text);
    size_t event = (size_t)(fields - text);
    while (event && text[event - 1] == ' ')
        event--;
    put_text(to, "{\"time\":\"");
    put_text(to, time);
    put_text(to, "\",\"level\":\"");
    put_text(to, level);
    put_text(to, "\",\"subsystem\":\"");
    put_text(to, subsystem);
    snprintf(own, sizeof(own), "\",\"pid\":%d%s%s%s,\"event\":\"", (int)getpid(),
             *part ? ",\"process\":\"" : "", part, *part ? "\"" : "");
    put_text(to, own);
    put_escaped(to, text, event, 4);
    put_text(to, "\"");
    put_fields(to, fields);
    put_text(to, "}");
}

/* Writes the time now to ret [48]. */
static const char *write_time(char *ret)
{
    char date[32];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(ret, 48, "%s.%03ldZ", date, now.tv_nsec / 1000000);
    return ret;
}

/* Makes the line, without its end; text is changed. */
static void put_line(struct line *to, const char *time, const char *level, const char *subsystem,
                     char *text)
{
    if (hzp_log_get_format() == HZP_LOG_JSON) {
        put_json(to, time, level, subsystem, text);
        return;
    }
    to->used = (size_t)snprintf(to->text, to->size, "%s %-5s %d%s%s %s: ", time, level,
                                (int)getpid(), *part ? "/" : "", part, subsystem);
    /* One event stays one line, whatever a client put into it. */
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    put_text(to, text);
}

/* Writes a line of at most PIPE_BUF bytes, whole, if that is possible without waiting: a pipe that
 * poll() calls writable has room for so many. */
static bool write_now(const char *line, size_t n)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) < 0 || !(out.revents & POLLOUT))
        return (out.revents & (POLLNVAL | POLLERR)) != 0; /* closed: nothing is ever read */
    return write(STDERR_FILENO, line, n) >= 0 || errno != EAGAIN;
}

/* One thread at a time: another's write must not take the room that poll() has seen. */
static void write_line(const char *line, size_t n)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    static unsigned long long lost;
    char note[256];
    pthread_mutex_lock(&one);
    if (lost) {
        struct line text = {.text = note, .size = sizeof(note) - 1};
        char event[64], time[48];
        snprintf(event, sizeof(event), "lines lost count=%llu", lost);
        put_line(&text, write_time(time), level_name[HZP_LOG_WARN], "log", event);
        note[text.used++] = '\n';
        if (write_now(note, text.used))
            lost = 0;
    }
    if (lost || !write_now(line, n))
        lost++;
    pthread_mutex_unlock(&one);
}

void hzp_log(enum hzp_log_level level, const char *subsystem, const char *format, ...)
{
    if (!hzp_log_enabled(level, subsystem))
        return;

    char text[LINE_BYTES], line[JSON_BYTES], time[48];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    struct line out = {.text = line, .size = sizeof(line) - 1};
    put_line(&out, write_time(time), level_name[level], subsystem, text);
    line[out.used++] = '\n';
    write_line(line, out.used);
}

void hzp_err_trace(int code, const char *file, int line, const char *call)
{
    while (!strncmp(file, "../", 3)) /* the build directory lies in the source tree */
        file += 3;
    int name = (int)strcspn(call, "("); /* the function; its arguments are in the source */
    hzp_log(HZP_LOG_DEBUG, "trace", "%s:%d: %.*s: %s", file, line, name, call, hzp_err_name(code));
}
