/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
        return hzp_fail(reterr, HZP_EINVAL, "\"%.*s\" is no subsystem; there are %s",
                        (int)(equals - part), part,
                        list(subsystem_name, SUBSYSTEMS, names, sizeof(names)));
    if (to < 0)
        return hzp_fail(reterr, HZP_EINVAL, "\"%.*s\" is none of %s", (int)(part + length - word),
                        word, list(level_name, HZP_COUNT(level_name), names, sizeof(names)));
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

void hzp_log(enum hzp_log_level level, const char *subsystem, const char *format, ...)
{
    if (!hzp_log_enabled(level, subsystem))
        return;

    char line[1024];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
    used +=
        (size_t)snprintf(line + used, sizeof(line) - used,
                         ".%03ldZ %-5s %s: ", now.tv_nsec / 1000000, level_name[level], subsystem);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof(line) - used - 1, format, args);
    va_end(args);
    used = HZP_MIN(used + (size_t)HZP_MAX(more, 0), sizeof(line) - 2);
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, used) < 0) {
        /* Standard error is closed or full: there is no other place to report it. */
    }
}
