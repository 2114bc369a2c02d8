/* SPDX-License-Identifier: Apache-2.0 */
/* tests/weights/scratch.h - a temporary directory for a test, and files in it.
 *
 * Thread: the test's.
 */
#pragma once

#include "base/base.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch_dir[64];

static inline int scratch_setup(void **state)
{
    snprintf(scratch_dir, sizeof(scratch_dir), "/tmp/hzp-test-XXXXXX");
    return mkdtemp(scratch_dir) ? 0 : -1;
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int flag,
                                     struct FTW *ftw)
{
    return remove(path);
}

static inline int scratch_teardown(void **state)
{
    return nftw(scratch_dir, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a name in the directory; valid until the fourth call after it. */
static inline HZP_PRINTF(1, 2) const char *scratch_path(const char *format, ...)
{
    static char path[4][512];
    static int turn;
    char *ret = path[turn++ % 4];
    int used = snprintf(ret, sizeof(path[0]), "%s/", scratch_dir);
    va_list args;
    va_start(args, format);
    vsnprintf(ret + used, sizeof(path[0]) - (size_t)used, format, args);
    va_end(args);
    return ret;
}

static inline void scratch_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "w");
    HZP_ASSERT(file && (size == 0 || fwrite(data, size, 1, file) == 1));
    HZP_ASSERT(fclose(file) == 0);
}

static inline void scratch_write_text(const char *path, const char *text)
{
    scratch_write(path, text, strlen(text));
}

static inline bool scratch_exists(const char *path)
{
    return access(path, F_OK) == 0;
}
