/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/line.h"

#include "base/file.h"

#include <histedit.h>
#include <locale.h>

enum { HISTORY_LINES = 1000 };

/* Terminals that know bracketed paste put a pasted text between these. */
#define PASTE_ON    "\033[?2004h"
#define PASTE_OFF   "\033[?2004l"
#define PASTE_BEGIN "\\e[200~"
static const char paste_end[] = "\033[201~";

static EditLine *editor; /* NULL: standard input is no terminal */
static History *history_of;
static char history_path[PATH_MAX];
static const char *const *completions;
static const char *shown; /* the prompt */
static bool cancelled;

static char *prompt_of(EditLine *el)
{
    return (char *)shown;
}

/* Ctrl-C: what was typed stays on the screen, and a new line begins. */
static unsigned char cancel(EditLine *el, int key)
{
    cancelled = true;
    return CC_NEWLINE;
}

/* Inserts the pasted text up to its end. */
static unsigned char paste(EditLine *el, int key)
{
    char *text = NULL, byte;
    size_t size = 0, end = sizeof(paste_end) - 1;
    FILE *out = open_memstream(&text, &size);
    bool whole = false;
    while (out && !whole && read(STDIN_FILENO, &byte, 1) == 1) {
        fputc(byte == '\r' ? '\n' : byte, out);
        fflush(out);
        whole = size >= end && !memcmp(text + size - end, paste_end, end);
    }
    if (!out || fclose(out) || !whole) {
        free(text);
        return CC_ERROR;
    }
    text[size - end] = 0;
    int r = el_insertstr(el, text);
    free(text);
    return r < 0 ? CC_ERROR : CC_REFRESH;
}

/* Tab: inserts what all words that begin with the line have in common. */
static unsigned char complete(EditLine *el, int key)
{
    const LineInfo *line = el_line(el);
    size_t n = (size_t)(line->cursor - line->buffer), common = 0;
    const char *first = NULL;
    for (const char *const *word = completions; n && word && *word; word++) {
        if (strncmp(*word, line->buffer, n))
            continue;
        if (!first) {
            first = *word;
            common = strlen(first);
        }
        for (size_t i = n; i < common; i++)
            if ((*word)[i] != first[i])
                common = i;
    }
    if (!first || common == n)
        return CC_REFRESH_BEEP;
    HZP_FREED char *rest = strndup(first + n, common - n);
    int r = rest ? el_insertstr(el, rest) : -1;
    return r < 0 ? CC_ERROR : CC_REFRESH;
}

static void open_history(void)
{
    HistEvent event;
    struct hzp_err_text unused;
    const char *own = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    bool is_own = own && *own == '/';
    history_of = history_init();
    history(history_of, &event, H_SETSIZE, HISTORY_LINES);
    history(history_of, &event, H_SETUNIQUE, 1);
    el_set(editor, EL_HIST, history, history_of);
    if (!is_own && !(home && *home == '/'))
        return;
    int n = snprintf(history_path, sizeof(history_path), "%s%s/hzpserve", is_own ? own : home,
                     is_own ? "" : "/.local/state");
    if (n >= (int)sizeof(history_path) - 20 || hzp_dir_make(history_path, NULL, &unused) < 0)
        n = 0;
    snprintf(history_path + n, sizeof(history_path) - (size_t)n, "%s", n ? "/chat_history" : "");
    if (n)
        history(history_of, &event, H_LOAD, history_path);
}

void hzp_line_begin(const char *const *words)
{
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) /* without a locale of UTF-8 libedit drops whatever is not ASCII */
        setlocale(LC_CTYPE, "C.UTF-8");
    completions = words;
    if (!isatty(STDIN_FILENO))
        return;
    editor = el_init("hzpserve", stdin, stdout, stderr);
    if (!editor)
        return;
    el_set(editor, EL_PROMPT, prompt_of);
    el_set(editor, EL_EDITOR, "emacs");
    open_history();
    el_set(editor, EL_ADDFN, "hzp-cancel", "clear the line", cancel);
    el_set(editor, EL_ADDFN, "hzp-paste", "insert what is pasted", paste);
    el_set(editor, EL_ADDFN, "hzp-complete", "complete a command", complete);
    el_set(editor, EL_SETTY, "-d", "-isig", NULL); /* while a line is edited, Ctrl-C is a key */
    el_set(editor, EL_BIND, "^C", "hzp-cancel", NULL);
    el_set(editor, EL_BIND, PASTE_BEGIN, "hzp-paste", NULL);
    el_set(editor, EL_BIND, "\t", "hzp-complete", NULL);
    el_source(editor, NULL); /* the user's ~/.editrc */
}

void hzp_line_end(void)
{
    HistEvent event;
    if (!editor)
        return;
    if (history_path[0])
        history(history_of, &event, H_SAVE, history_path);
    el_end(editor);
    history_end(history_of);
    editor = NULL;
}

static char *edit(const char *prompt)
{
    HistEvent event;
    const char *line = NULL;
    int n = 0;
    shown = prompt;
    do {
        cancelled = false;
        el_resize(editor);
        /* el_gets makes the terminal raw after the prompt: until then Ctrl-C would be a signal */
        el_set(editor, EL_PREP_TERM, 1);
        fputs(PASTE_ON, stdout);
        fflush(stdout);
        line = el_gets(editor, &n);
        fputs(PASTE_OFF, stdout);
        fflush(stdout);
    } while (line && cancelled);
    if (!line || n <= 0)
        return NULL;
    char *copy = strdup(line);
    if (copy && n > 0 && copy[n - 1] == '\n')
        copy[n - 1] = 0;
    if (copy && *copy)
        history(history_of, &event, H_ENTER, copy);
    return copy;
}

char *hzp_line_read(const char *prompt)
{
    char *line = NULL;
    size_t room = 0;
    if (editor)
        return edit(prompt);
    if (getline(&line, &room, stdin) < 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = 0;
    return line;
}
