/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/options.h"

#include "api/cli/option_table.h"
#include "base/arena.h"
#include "base/decimal.h"
#include "base/version.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    enum hzp_command command;
    int words_max;
    const char *name, *words, *help;
} commands[] = {
    {HZP_COMMAND_SERVE, 1, "serve", "MODEL",
     "serve a model over HTTP and train it on posted examples"},
    {HZP_COMMAND_COMPLETE, 2, "complete", "MODEL \"PROMPT\"",
     "complete one prompt on the terminal"},
    {HZP_COMMAND_EVAL, 1, "eval", "MODEL --data FILE", "mean negative log-likelihood of a text"},
    {HZP_COMMAND_TRAIN, 1, "train", "MODEL --data FILE --out DIR", "train offline"},
    {HZP_COMMAND_BENCH, 2, "bench", "WHAT [MODEL]",
     "measure: serve, train, coserve, swap, offline, ops, loop, link; or replay a load"},
    {HZP_COMMAND_PLAN, 1, "plan", "[MODEL]", "the plan of one step: print it, trace it, time it"},
    {HZP_COMMAND_SEARCH, 1, "search", "[MODEL]",
     "measure this device and find the best plans for a model's steps"},
    {HZP_COMMAND_DEVICES, 0, "devices", "", "list the devices of this machine"},
};

int64_t hzp_size_parse(const char *text)
{
    double value;
    const char *end = hzp_decimal(text, &value);
    if (!end || value < 0)
        return -1;
    if (*end == 'K' || *end == 'k')
        value *= 1024, end++;
    else if (*end == 'M' || *end == 'm')
        value *= 1024 * 1024, end++;
    else if (*end == 'G' || *end == 'g')
        value *= 1024.0 * 1024 * 1024, end++;
    else if (*end == 'T' || *end == 't')
        value *= 1024.0 * 1024 * 1024 * 1024, end++;
    if (end[0] == 'i' && end[1] == 'B')
        end += 2;
    else if (*end == 'B')
        end++;
    return *end || value > 9e18 ? -1 : (int64_t)value;
}

static int64_t choice_of(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (int64_t i = 0;; i++) {
        size_t width = strcspn(choices, "|");
        if (n && width == n && !memcmp(choices, text, n))
            return i;
        if (!choices[width])
            return -1;
        choices += width + 1;
    }
}

static int out_of_range(const struct hzp_option *s, const char *text, struct hzp_err_text *reterr)
{
    return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s takes %s from %g to %g, not \"%s\"",
                          s->name,
                          s->kind == HZP_OPTION_INTEGER ? "a whole number"
                          : s->kind == HZP_OPTION_SIZE  ? "a size (like 512M or 2G)"
                                                        : "a number",
                          s->low, s->high, text);
}

/* Parses the text into the option's field. */
static int set(const struct hzp_option *s, const char *text, struct hzp_options *options,
               struct hzp_err_text *reterr)
{
    void *field = (char *)options + s->field;
    char *end;
    errno = 0;
    if (s->kind == HZP_OPTION_TEXT || s->kind == HZP_OPTION_FILE) {
        *(const char **)field = text;
    } else if (s->kind == HZP_OPTION_LIST) {
        struct hzp_option_list *list = field;
        if (list->count == HZP_OPTIONS_LIST_MAX)
            return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s may be given at most %d times",
                                  s->name, HZP_OPTIONS_LIST_MAX);
        list->item[list->count++] = text;
    } else if (s->kind == HZP_OPTION_NUMBER) {
        double value;
        const char *rest = hzp_decimal(text, &value);
        if (!rest || *rest || value < s->low || value > s->high)
            return out_of_range(s, text, reterr);
        *(double *)field = value;
    } else if (s->kind == HZP_OPTION_CHOICE) {
        int64_t value = choice_of(s->choices, text);
        if (value < 0)
            return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s takes one of %s, not \"%s\"",
                                  s->name, s->choices, text);
        *(int64_t *)field = value;
    } else {
        int64_t value = s->kind == HZP_OPTION_SIZE ? hzp_size_parse(text) : strtoll(text, &end, 10);
        bool bad = s->kind == HZP_OPTION_SIZE ? value < 0 : end == text || *end || errno;
        if (s->kind != HZP_OPTION_FLAG &&
            (bad || !((double)value >= s->low && (double)value <= s->high)))
            return out_of_range(s, text, reterr);
        *(int64_t *)field = value;
    }
    return HZP_OK;
}

void hzp_options_defaults(enum hzp_command command, struct hzp_options *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->command = command;
    for (int i = 0; i < hzp_option_count; i++)
        if (hzp_option_table[i].name && hzp_option_table[i].value) {
            struct hzp_err_text err;
            int r = set(&hzp_option_table[i], hzp_option_table[i].value, ret, &err);
            HZP_ASSERT(r == HZP_OK); /* fails if a default is outside its own range */
        }
}

/* Finds the option of this command; two commands may use one name for different options.  If the
 * command has none, an option of another command is returned, for the error text. */
static const struct hzp_option *find(const char *name, size_t length, enum hzp_command command)
{
    const struct hzp_option *other = NULL;
    for (int i = 0; i < hzp_option_aliases; i++)
        if (strlen(hzp_option_alias[i].was) == length &&
            !memcmp(hzp_option_alias[i].was, name, length)) {
            name = hzp_option_alias[i].name;
            length = strlen(name);
            break;
        }
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        if (!s->name || strlen(s->name) != length || memcmp(s->name, name, length))
            continue;
        if (s->commands & command)
            return s;
        other = s;
    }
    return other;
}

static const char *command_name(enum hzp_command command)
{
    for (int i = 0; i < HZP_COUNT(commands); i++)
        if (commands[i].command == command)
            return commands[i].name;
    return "?";
}

static int read_environment(struct hzp_options *options, struct hzp_err_text *reterr)
{
    for (int i = 0; i < hzp_option_count; i++) {
        const char *value = hzp_option_table[i].env ? getenv(hzp_option_table[i].env) : NULL;
        if (value && *value && (hzp_option_table[i].commands & options->command))
            HZP_TRY(set(&hzp_option_table[i], value, options, reterr));
    }
    return HZP_OK;
}

/* Reads the option at argv[*at]; moves *at past its value. */
static int read_option(int argc, char **argv, int *at, struct hzp_options *options,
                       struct hzp_err_text *reterr)
{
    const char *name = argv[*at];
    size_t length = strcspn(name, "=");
    const struct hzp_option *s = find(name, length, options->command);
    if (!s)
        return hzp_fail_param(reterr, HZP_EINVAL, name,
                              "unknown option %.*s; see hzpserve %s --help", (int)length, name,
                              command_name(options->command));
    if (!(s->commands & options->command))
        return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s is not an option of hzpserve %s",
                              s->name, command_name(options->command));
    if (s->kind == HZP_OPTION_FLAG) {
        if (name[length])
            return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s takes no value", s->name);
        return set(s, "1", options, reterr);
    }
    if (name[length])
        return set(s, name + length + 1, options, reterr);
    if (*at + 1 >= argc)
        return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s needs a value", s->name);
    return set(s, argv[++*at], options, reterr);
}

/* Values from the model's settings file; settings point to them until the process ends. */
static struct kept_text {
    struct kept_text *next;
    char text[];
} * kept_texts;

static char *keep(const char *text)
{
    struct kept_text *kept = hzp_xmalloc(sizeof(*kept) + strlen(text) + 1);
    strcpy(kept->text, text);
    kept->next = kept_texts;
    kept_texts = kept;
    return kept->text;
}

/* Reads one line of the model's settings file. */
static int read_line(const char *dir, const char *path, int number, char *line,
                     struct hzp_options *options, struct hzp_err_text *reterr)
{
    line += strspn(line, " \t");
    line[strcspn(line, "\r\n")] = 0;
    if (!*line || *line == '#')
        return HZP_OK;
    size_t length = strcspn(line, " \t=");
    const struct hzp_option *s = find(line, length, options->command);
    char *value = line + length;
    value += strspn(value, value[0] == '=' ? "=" : " \t");
    if (!s || !(s->commands & options->command) || s->kind == HZP_OPTION_LIST)
        return hzp_fail(reterr, HZP_EFORMAT, "%s:%d: %.*s is not an option of hzpserve %s", path,
                        number, (int)length, line, command_name(options->command));
    char *kept = keep(s->kind == HZP_OPTION_FLAG ? "1" : value);
    if (s->kind == HZP_OPTION_FILE && *value != '/') {
        char beside[2048];
        snprintf(beside, sizeof(beside), "%s/%s", dir, value);
        if (access(beside, R_OK) == 0)
            kept = keep(beside);
    }
    struct hzp_err_text err;
    int r = set(s, kept, options, &err);
    return r < 0 ? hzp_fail(reterr, HZP_EFORMAT, "%s:%d: %s", path, number, err.text) : HZP_OK;
}

/* Reads the model's own settings, if the file exists. */
static int read_model_settings(const char *dir, struct hzp_options *options,
                               struct hzp_err_text *reterr)
{
    size_t size = strlen(dir) + sizeof("/serve.options");
    char *path = hzp_xmalloc(size), line[1024];
    snprintf(path, size, "%s/serve.options", dir);
    FILE *file = fopen(path, "r");
    int r = HZP_OK;
    for (int n = 1; file && r == HZP_OK && fgets(line, sizeof(line), file); n++) {
        if (!strchr(line, '\n') && !feof(file))
            r = hzp_fail(reterr, HZP_EFORMAT, "%s:%d: the line is longer than %zu bytes", path, n,
                         sizeof(line) - 2);
        else
            r = read_line(dir, path, n, line, options, reterr);
    }
    if (file)
        fclose(file);
    free(path);
    return r;
}

/* Copies a line of the model's settings file; a relative file name becomes absolute. */
static void copy_line(FILE *out, const char *dir, char *line)
{
    char beside[2048], real[PATH_MAX];
    line[strcspn(line, "\r\n")] = 0;
    const char *name = line + strspn(line, " \t");
    size_t length = strcspn(name, " \t=");
    const struct hzp_option *s = find(name, length, HZP_COMMAND_SERVE);
    const char *value = name + length;
    value += strspn(value, value[0] == '=' ? "=" : " \t");
    if (s && s->kind == HZP_OPTION_FILE && *value && *value != '/') {
        snprintf(beside, sizeof(beside), "%s/%s", dir, value);
        if (realpath(beside, real)) {
            fprintf(out, "%s %s\n", s->name, real);
            return;
        }
    }
    fprintf(out, "%s\n", line);
}

/* Whether the line sets the name under which the model is served. */
static bool names_model(const char *line)
{
    static const char option[] = "--served-model-name";
    line += strspn(line, " \t");
    return !strncmp(line, option, sizeof(option) - 1) && strchr(" \t=", line[sizeof(option) - 1]);
}

char *hzp_options_of_copy(const char *dir, const char *name)
{
    char path[PATH_MAX], line[1024], real[PATH_MAX], *text = NULL;
    size_t size = 0;
    bool named = false;
    FILE *out = open_memstream(&text, &size);
    HZP_ASSERT(out);
    snprintf(path, sizeof(path), "%s/serve.options", dir);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        if (name && names_model(line))
            continue;
        named |= names_model(line);
        copy_line(out, dir, line);
    }
    if (file)
        fclose(file);
    if (!name && !named && realpath(dir, real) && strrchr(real, '/'))
        name = strrchr(real, '/') + 1;
    if (name && !strchr(name, '\n'))
        fprintf(out, "--served-model-name %s\n", name);
    fclose(out);
    return text;
}

static int read_words(int argc, char **argv, struct hzp_options *options,
                      struct hzp_err_text *reterr)
{
    bool only_words = false;
    for (int i = 2; i < argc; i++) {
        if (!only_words && !strcmp(argv[i], "--")) {
            only_words = true;
        } else if (!only_words && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            options->help = true;
        } else if (!only_words && !strncmp(argv[i], "--", 2)) {
            HZP_TRY(read_option(argc, argv, &i, options, reterr));
        } else if (options->words == HZP_OPTIONS_WORDS_MAX) {
            return hzp_fail(reterr, HZP_EINVAL, "too many arguments: \"%s\"", argv[i]);
        } else {
            options->word[options->words++] = argv[i];
        }
    }
    return HZP_OK;
}

int hzp_options_parse(int argc, char **argv, struct hzp_options *ret, struct hzp_err_text *reterr)
{
    hzp_options_defaults(HZP_COMMAND_SERVE, ret);
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        ret->help = true;
        ret->command = 0;
        return HZP_OK;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        ret->version = true;
        return HZP_OK;
    }
    int which = 0;
    while (which < HZP_COUNT(commands) && strcmp(commands[which].name, argv[1]))
        which++;
    if (which == HZP_COUNT(commands))
        return hzp_fail(reterr, HZP_EINVAL, "unknown command \"%s\"; see hzpserve --help", argv[1]);
    ret->command = commands[which].command;
    HZP_TRY(read_environment(ret, reterr));
    HZP_TRY(read_words(argc, argv, ret, reterr));
    if (ret->words > commands[which].words_max)
        return hzp_fail(reterr, HZP_EINVAL, "usage: hzpserve %s %s; unexpected argument \"%s\"",
                        commands[which].name, commands[which].words,
                        ret->word[commands[which].words_max]);
    if (ret->command == HZP_COMMAND_SERVE && ret->words) {
        /* The model is known now: start again with its settings, which the others override. */
        const char *dir = ret->word[0];
        hzp_options_defaults(HZP_COMMAND_SERVE, ret);
        HZP_TRY(read_model_settings(dir, ret, reterr));
        HZP_TRY(read_environment(ret, reterr));
        HZP_TRY(read_words(argc, argv, ret, reterr));
    }
    int model = ret->command == HZP_COMMAND_BENCH ? 1 : 0;
    if (ret->command == HZP_COMMAND_BENCH && ret->words)
        ret->bench.what = ret->word[0];
    if (ret->words > model)
        ret->engine.model.dir = ret->word[model];
    return HZP_OK;
}

void hzp_options_help(FILE *out)
{
    fprintf(
        out,
        "hzpserve %s: serves a language model over HTTP while fine-tuning the same weights.\n\n",
        HZP_VERSION_TEXT);
    for (int i = 0; i < HZP_COUNT(commands); i++)
        fprintf(out, "  hzpserve %-8s %-28s %s\n", commands[i].name, commands[i].words,
                commands[i].help);
    fprintf(out, "\n  hzpserve COMMAND --help          the command's options\n"
                 "  hzpserve --version\n");
}

/* Prints text in the right column of the help, wrapped between words. */
static void print_wrapped(FILE *out, const char *text)
{
    enum { INDENT = 33, WIDTH = 67 };
    while (strlen(text) > WIDTH) {
        int cut = WIDTH;
        while (cut > 0 && text[cut] != ' ')
            cut--;
        if (!cut)
            break;
        fprintf(out, "%.*s\n%*s", cut, text, INDENT, "");
        text += cut + 1;
    }
    fprintf(out, "%s\n", text);
}

void hzp_options_command_help(FILE *out, enum hzp_command command)
{
    for (int i = 0; i < HZP_COUNT(commands); i++)
        if (commands[i].command == command)
            fprintf(out, "hzpserve %s %s [OPTIONS]\n\n%s\n", commands[i].name, commands[i].words,
                    commands[i].help);
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        if (!(s->commands & command))
            continue;
        if (!s->name) {
            fprintf(out, "\n%s\n", s->help);
            continue;
        }
        char left[64];
        snprintf(left, sizeof(left), "%s%s%s", s->name, s->kind == HZP_OPTION_FLAG ? "" : " ",
                 s->kind == HZP_OPTION_FLAG     ? ""
                 : s->kind == HZP_OPTION_CHOICE ? s->choices
                                                : s->meta);
        char right[400];
        bool value = s->value && s->kind != HZP_OPTION_FLAG;
        snprintf(right, sizeof(right), "%s%s%s%s%s%s%s", s->help, value ? " [" : "",
                 value ? s->value : "", value ? "]" : "", s->env ? " (or $" : "",
                 s->env ? s->env : "", s->env ? ")" : "");
        if (strlen(left) > 30) /* too wide for its column: the text begins in the next line */
            fprintf(out, "  %s\n%33s", left, "");
        else
            fprintf(out, "  %-30s ", left);
        print_wrapped(out, right);
    }
}
