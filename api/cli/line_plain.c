/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/line.h"

#include "base/base.h"

void hzp_line_begin(const char *const *words)
{
}

void hzp_line_end(void)
{
}

char *hzp_line_read(const char *prompt)
{
    char *line = NULL;
    size_t room = 0;
    if (isatty(STDIN_FILENO)) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    if (getline(&line, &room, stdin) < 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = 0;
    return line;
}
