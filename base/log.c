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

/* Relaxed: a level seen a moment late shows or hides a line, nothing more. */
static atomic_int level_now = HZP_LOG_INFO;

void hzp_log_set_level(enum hzp_log_level level)
{
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

void hzp_log_init(void)
{
    const char *word = getenv("HZP_LOG");
    if (!word)
        return;
    for (int i = 0; i < HZP_COUNT(level_name); i++)
        if (!strcmp(word, level_name[i])) {
            hzp_log_set_level((enum hzp_log_level)i);
            return;
        }
    hzp_log(HZP_LOG_WARN, "log", "HZP_LOG=%s is none of error, warn, info, debug, ignoring", word);
}

void hzp_log(enum hzp_log_level level, const char *subsystem, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&level_now, memory_order_relaxed))
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
        /* Nowhere is left to say so. */
    }
}
