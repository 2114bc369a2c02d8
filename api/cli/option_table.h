/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/option_table.h - the options of all commands: name, default and range; the commands; and
 * the help texts.
 *
 * The data are options.json, which make_options.py checks and makes option_table.c of in the build;
 * the parser and the defaults use them.
 *
 * Invariant: two options with the same name belong to different commands.
 *
 * Thread: any; constant.
 */
#pragma once

#include "api/cli/options.h"

enum hzp_option_kind {
    HZP_OPTION_TEXT,
    HZP_OPTION_FILE,   /* a text that names a file */
    HZP_OPTION_INT,    /* int64_t */
    HZP_OPTION_NUMBER, /* double */
    HZP_OPTION_SIZE,   /* int64_t bytes, with K, M, G or T */
    HZP_OPTION_FLAG,   /* int64_t, 0 or 1; takes no value */
    HZP_OPTION_CHOICE, /* int64_t, the index among `choices` */
    HZP_OPTION_LIST,   /* struct hzp_option_list; may be given several times */
    HZP_OPTION_PARTS,  /* "HEAD,name=VALUE,...": each part has a field of its own */
};

struct hzp_option {
    const char *name;
    enum hzp_option_kind kind;
    size_t field;        /* offset in struct hzp_options */
    const char *value;   /* the default, as typed on the command line; NULL: not given */
    double low, high;    /* range of numbers */
    const char *choices; /* "a|b|c" */
    /* for PARTS: names without dashes, integers, numbers and sizes; the head, if any, is "",
     * or with a list each word without a name.  Parts
     * that a value does not name stay as they are. */
    const struct hzp_option *part;
    int parts;
    const char *env;   /* an environment variable that also sets it; NULL: none */
    unsigned commands; /* enum hzp_command, or'ed */
};

extern const struct hzp_option hzp_option_table[];
extern const int hzp_option_count;

/* Names that other programs have for what is called otherwise here, with what to write. */
struct hzp_option_alias {
    const char *was, *name;
};
extern const struct hzp_option_alias hzp_option_elsewhere[];
extern const int hzp_options_elsewhere;

struct hzp_command_info {
    enum hzp_command command;
    int words_max; /* arguments that are not options */
    const char *name, *words;
    int (*run)(const struct hzp_options *options); /* NULL: bench, which main knows */
};

extern const struct hzp_command_info hzp_commands[];
extern const int hzp_command_count;

/* What `hzpserve help` prints: "": of the program; "COMMAND", "COMMAND --help-all"; "bench WHAT";
 * "help TOPIC", unless a command has that name. */
struct hzp_help {
    const char *name, *text;
};
extern const struct hzp_help hzp_helps[];
extern const int hzp_help_count;

/* ---- nearest.c: "did you mean": the known word that is most similar to a mistyped one.
 *
 *     struct hzp_nearest near = hzp_nearest("--prot");
 *     hzp_nearest_try(&near, "--port");     for each known word
 *     hzp_nearest_text(&near, text)         "; did you mean --port?"
 *
 * Similar are words that begin with the mistyped one, or that differ from it in at most a third of
 * its letters, where a letter too many, too few, wrong, or swapped with its neighbour counts as one
 * (optimal string alignment).
 *
 * Thread: any; strings are borrowed. */

enum { HZP_NEAREST_TEXT = 96 };

struct hzp_nearest {
    const char *word, *best; /* best NULL: none is similar */
    int distance;            /* best's distance */
};

/* Begins a search; then one call of try for each known word, which must outlive it. */
struct hzp_nearest hzp_nearest(const char *word);
void hzp_nearest_try(struct hzp_nearest *near, const char *candidate);

/* The end of an error message, written to ret [HZP_NEAREST_TEXT]; "": none is similar. */
const char *hzp_nearest_text(const struct hzp_nearest *near, char *ret);
