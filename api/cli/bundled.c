/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/bundled.h"

#include "base/base.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool hzp_bundled_model(char *ret_dir, size_t size)
{
    static const char *const place[] = {"../share/hzpserve/models/world", "../models/world"};
    char program[PATH_MAX], path[2 * PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (n <= 0)
        return false;
    program[n] = 0;
    char *slash = strrchr(program, '/');
    if (!slash)
        return false;
    *slash = 0;
    for (int i = 0; i < HZP_COUNT(place); i++) {
        snprintf(path, sizeof(path), "%s/%s/config.json", program, place[i]);
        if (access(path, R_OK))
            continue;
        path[strlen(path) - strlen("/config.json")] = 0;
        char *real = realpath(path, NULL);
        bool fits = real && strlen(real) < size;
        if (fits)
            strcpy(ret_dir, real);
        free(real);
        return fits;
    }
    return false;
}
