/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/line.h - reads lines from the terminal, with editing and history where libedit is there
 * (line_edit.c), else as they come (line_plain.c).
 *
 * Thread: main.
 */
#ifndef HZP_API_CLI_LINE_H
#define HZP_API_CLI_LINE_H

/* The next line without its end, owned by the caller; NULL: the end of input. */
char *hzp_line_read(const char *prompt);

#endif
