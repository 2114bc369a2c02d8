/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/line.h - reads lines from the terminal: with editing, history, completion and pasted
 * texts of several lines where libedit is there (line_edit.c), else as they come (line_plain.c).
 *
 * Ctrl-C clears the line.  A pasted text is one line, with its ends of line in it, until Enter.
 *
 * Thread: main.
 */
#pragma once

/* Before the first line.  words: what the beginning of a line is completed to, the last one NULL;
 * borrowed.  Reads the history of earlier runs, $XDG_STATE_HOME/hzpserve/chat_history or below
 * ~/.local/state, which end() writes. */
void hzp_line_begin(const char *const *words);
void hzp_line_end(void);

/* The next line without its end, owned by the caller; NULL: the end of input. */
char *hzp_line_read(const char *prompt);
