/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/options.h"

#include "api/cli/option_table.h"
#include "api/client/http_client.h"
#include "base/decimal.h"
#include "base/file.h"

#include <glob.h>
#include <sys/stat.h>

/* Looks beside the program: an installation has ../share/hzpserve/models/world, a build folder in
 * the source tree ../models/world.  False: in neither place is a config.json. */
static bool bundled_model(char *ret_dir, size_t size)
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
        HZP_FREED char *real = realpath(path, NULL);
        bool fits = real && strlen(real) < size;
        if (fits)
            strcpy(ret_dir, real);
        return fits;
    }
    return false;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && !strcmp(name + n - k, end);
}

/* Whether the name may be that of a model directory.  HZP_EINVAL: it is a file of weights, or looks
 * like a name of a model elsewhere, and the text says what to do. */
static int model_check(const char *name, struct hzp_err_text *reterr)
{
    struct stat st;
    const char *slash = strchr(name, '/');
    bool there = stat(name, &st) == 0, url = strstr(name, "://") != NULL;
    if (ends_in(name, ".gguf"))
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: GGUF files are not read; name the directory of the model that it was "
                        "made of: config.json, tokenizer.json and *.safetensors",
                        name);
    if (there && S_ISREG(st.st_mode))
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: is a file; name the directory that holds config.json, tokenizer.json "
                        "and *.safetensors",
                        name);
    const char *port = strrchr(name, ':');
    if (!there && !url && !slash && port && port[1] && !port[1 + strspn(port + 1, "0123456789")])
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: there is no such directory; did you mean http://%s?", name, name);
    if (there || url || !slash || slash == name || strchr(slash + 1, '/') || strchr(".~", name[0]))
        return HZP_OK;
    return hzp_fail(
        reterr, HZP_EINVAL,
        "%s: there is no such directory; a model of Hugging Face is downloaded first: hf "
        "download %s --local-dir %s",
        name, name, slash + 1);
}

/* The commands whose word names a model. */
enum {
    /* A URL among their words is that of --url. */
    WITH_URL = HZP_COMMAND_WEIGHTS | HZP_COMMAND_LESSONS | HZP_COMMAND_UNDO,
    WITH_MODEL = HZP_COMMAND_SERVE | HZP_COMMAND_COMPLETE | HZP_COMMAND_EVAL | HZP_COMMAND_TRAIN |
                 HZP_COMMAND_BENCH | HZP_COMMAND_PLAN | HZP_COMMAND_SEARCH | HZP_COMMAND_CHAT
};

bool hzp_is_paths_file(const char *word)
{
    return word && ends_in(word, ".json");
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

/* The text is none of the option's choices. */
static int no_choice(const struct hzp_option *s, const char *text, struct hzp_err_text *reterr)
{
    char word[64], hint[HZP_NEAREST_TEXT];
    struct hzp_nearest near = hzp_nearest(text);
    const char *best = NULL;
    for (const char *at = s->choices; *at; at += *at == '|') {
        size_t width = strcspn(at, "|");
        snprintf(word, sizeof(word), "%.*s", (int)width, at);
        near.best = NULL;
        hzp_nearest_try(&near, word);
        best = near.best ? at : best;
        at += width;
    }
    if (best)
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(best, "|"), best);
    near.best = best ? word : NULL;
    return hzp_wrong(reterr, s->name, "takes one of %s, not \"%s\"%s", s->choices, text,
                     hzp_nearest_text(&near, hint));
}

static int set(const struct hzp_option *s, const char *text, struct hzp_options *options,
               struct hzp_err_text *reterr);
static char *keep(const char *text);

/* Parses one part, "name=VALUE" or the head, once unless it is a list. */
static int set_part(const struct hzp_option *s, const char *word, bool *headed,
                    struct hzp_options *options, struct hzp_err_text *reterr)
{
    char name[64], names[200] = "";
    size_t length = strcspn(word, "="), n = 0;
    bool head = !word[length];
    for (int i = 0; i < s->parts; i++) {
        struct hzp_option part = s->part[i];
        if (n < sizeof(names))
            n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s%s", n ? ", " : "",
                                  *part.name ? part.name : "a value", *part.name ? "=VALUE" : "");
        bool may = !*headed || part.kind == HZP_OPTION_LIST;
        if (head ? *part.name || !may
                 : strlen(part.name) != length || memcmp(part.name, word, length))
            continue;
        *headed |= head;
        snprintf(name, sizeof(name), "%s%s%s", s->name, head ? "" : " ", part.name);
        part.name = name;
        if (part.kind == HZP_OPTION_LIST) /* the word is gone when the option is read */
            word = keep(word);
        return set(&part, head ? word : word + length + 1, options, reterr);
    }
    return hzp_wrong(reterr, s->name, "takes %s, separated by commas, not \"%s\"", names, word);
}

static int set_parts(const struct hzp_option *s, const char *text, struct hzp_options *options,
                     struct hzp_err_text *reterr)
{
    char word[128];
    bool headed = false;
    for (;; text++) {
        size_t length = strcspn(text, ",");
        if (length >= sizeof(word))
            return hzp_wrong(reterr, s->name, ": \"%.60s...\" is too long", text);
        memcpy(word, text, length);
        word[length] = '\0';
        HZP_TRY(set_part(s, word, &headed, options, reterr));
        text += length;
        if (!*text)
            return HZP_OK;
    }
}

static int out_of_range(const struct hzp_option *s, const char *text, struct hzp_err_text *reterr)
{
    return hzp_wrong(reterr, s->name, "takes %s from %g to %g, not \"%s\"",
                     s->kind == HZP_OPTION_INT    ? "a whole number"
                     : s->kind == HZP_OPTION_SIZE ? "a size (like 512M or 2G)"
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
    } else if (s->kind == HZP_OPTION_PARTS) {
        return set_parts(s, text, options, reterr);
    } else if (s->kind == HZP_OPTION_LIST) {
        struct hzp_option_list *list = field;
        if (list->count == HZP_OPTIONS_LIST_MAX)
            return hzp_wrong(reterr, s->name, "may be given at most %d times",
                             HZP_OPTIONS_LIST_MAX);
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
            return no_choice(s, text, reterr);
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
        if (hzp_option_table[i].value) {
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
    if (length == 2 && !memcmp(name, "-o", 2)) {
        name = "--out";
        length = strlen(name);
    }
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        if (strlen(s->name) != length || memcmp(s->name, name, length))
            continue;
        if (s->commands & command)
            return s;
        other = s;
    }
    return other;
}

static const char *command_name(enum hzp_command command)
{
    for (int i = 0; i < hzp_command_count; i++)
        if (hzp_commands[i].command == command)
            return hzp_commands[i].name;
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

/* What to write here instead of another program's option; NULL: it is not known. */
static const char *elsewhere(const char *word)
{
    for (int i = 0; i < hzp_options_elsewhere; i++)
        if (!strcmp(hzp_option_elsewhere[i].was, word))
            return hzp_option_elsewhere[i].name;
    return NULL;
}

static bool has_file(const char *dir, const char *pattern)
{
    char path[PATH_MAX];
    glob_t found = {0};
    snprintf(path, sizeof(path), "%s/%s", dir, pattern);
    bool any = glob(path, GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/* Says what to do where weights or tokenizer have a form that is not read, too. */
static int check_model(const char *dir, struct hzp_err_text *reterr)
{
    HZP_TRY(model_check(dir, reterr));
    for (int i = 0; i < hzp_options_elsewhere; i++) {
        const char *other = hzp_option_elsewhere[i].was;
        const char *own =
            !strcmp(other, "tokenizer.model") ? "tokenizer.json" : "model*.safetensors*";
        if (strchr(other, '.') && !has_file(dir, own) && has_file(dir, other))
            return hzp_fail(reterr, HZP_EINVAL, "%s: has no %s; use %s", dir, own,
                            hzp_option_elsewhere[i].name);
    }
    return HZP_OK;
}

/* No command has an option of this name. */
static int no_option(const char *name, size_t length, enum hzp_command command,
                     struct hzp_err_text *reterr)
{
    char word[64], hint[HZP_NEAREST_TEXT];
    snprintf(word, sizeof(word), "%.*s", (int)length, name);
    for (char *at = word; (at = strchr(at, '_'));) /* as in fields of configurations */
        *at = '-';
    const char *here = elsewhere(word);
    if (here)
        return hzp_fail_param(reterr, HZP_EINVAL, name, "unknown option %.*s; use %s", (int)length,
                              name, here);
    struct hzp_nearest near = hzp_nearest(word);
    for (int i = 0; i < hzp_option_count; i++)
        if (hzp_option_table[i].commands & command)
            hzp_nearest_try(&near, hzp_option_table[i].name);
    return hzp_fail_param(reterr, HZP_EINVAL, name, "unknown option %.*s%s%s", (int)length, name,
                          near.best ? "" : "; see hzpserve help ",
                          near.best ? hzp_nearest_text(&near, hint) : command_name(command));
}

/* The option exists, but another command has it. */
static int no_option_here(const struct hzp_option *s, enum hzp_command command,
                          struct hzp_err_text *reterr)
{
    char others[96] = "";
    size_t n = 0;
    for (int i = 0; i < hzp_command_count && n < sizeof(others); i++)
        if (s->commands & hzp_commands[i].command)
            n += (size_t)snprintf(others + n, sizeof(others) - n, "%s%s", n ? ", " : "",
                                  hzp_commands[i].name);
    return hzp_wrong(reterr, s->name, "is not an option of hzpserve %s; it belongs to %s",
                     command_name(command), others);
}

/* Reads the option at argv[*at]; moves *at past its value. */
static int read_option(int argc, char **argv, int *at, struct hzp_options *options,
                       struct hzp_err_text *reterr)
{
    const char *name = argv[*at];
    size_t length = strcspn(name, "=");
    const struct hzp_option *s = find(name, length, options->command);
    if (!s)
        return no_option(name, length, options->command, reterr);
    if (!(s->commands & options->command))
        return no_option_here(s, options->command, reterr);
    if (s->kind == HZP_OPTION_FLAG) {
        if (name[length])
            return hzp_wrong(reterr, s->name, "takes no value");
        return set(s, "1", options, reterr);
    }
    if (name[length])
        return set(s, name + length + 1, options, reterr);
    if (*at + 1 >= argc)
        return hzp_wrong(reterr, s->name, "needs a value");
    return set(s, argv[++*at], options, reterr);
}

/* Values from the model's settings file; settings point to them until the process ends. */
static struct kept_text {
    struct kept_text *next;
    const struct hzp_option *file; /* names a file that has to be there; NULL: not so */
    int line;                      /* where it stands */
    char text[];
} * kept_texts;

static char *keep(const char *text)
{
    struct kept_text *kept = hzp_xmalloc(sizeof(*kept) + strlen(text) + 1);
    strcpy(kept->text, text);
    kept->file = NULL;
    kept->next = kept_texts;
    kept_texts = kept;
    return kept->text;
}

/* The file that a setting names: a name without a directory is first looked up beside the settings,
 * and so is the last part of one that is not there, because the model was moved with its files. */
static char *keep_file(const char *dir, const char *value, const struct hzp_option *s, int line)
{
    char beside[2048];
    const char *last = strrchr(value, '/');
    const char *name = *value != '/' ? value : access(value, R_OK) ? last + 1 : "";
    snprintf(beside, sizeof(beside), "%s/%s", dir, name);
    char *kept = keep(*name && access(beside, R_OK) == 0 ? beside : value);
    if (s->field != offsetof(struct hzp_options, serve.try_examples)) { /* that is only shown */
        kept_texts->file = s;
        kept_texts->line = line;
    }
    return kept;
}

/* Files of the settings are there, unless the command line has replaced them. */
static int check_files(const char *dir, struct hzp_options *options, struct hzp_err_text *reterr)
{
    for (const struct kept_text *kept = kept_texts; kept; kept = kept->next) {
        const struct hzp_option *s = kept->file;
        if (s && *(const char **)((char *)options + s->field) == kept->text &&
            access(kept->text, R_OK) < 0)
            return hzp_fail_param(
                reterr, HZP_EFORMAT, s->name,
                "%s/serve.options:%d: %s %s: %s; write another name there, or give "
                "%s on the command line",
                dir, kept->line, s->name, kept->text, strerror(errno), s->name);
    }
    return HZP_OK;
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
    struct hzp_err_text err;
    if (!s && no_option(line, length, options->command, &err) < 0)
        return hzp_fail(reterr, HZP_EFORMAT, "%s:%d: %s", path, number, err.text);
    if (!(s->commands & options->command) || s->kind == HZP_OPTION_LIST)
        return hzp_fail(reterr, HZP_EFORMAT, "%s:%d: %.*s is not an option of hzpserve %s", path,
                        number, (int)length, line, command_name(options->command));
    char *kept = s->kind == HZP_OPTION_FILE ? keep_file(dir, value, s, number)
                                            : keep(s->kind == HZP_OPTION_FLAG ? "1" : value);
    int r = set(s, kept, options, &err);
    return r < 0 ? hzp_fail(reterr, HZP_EFORMAT, "%s:%d: %s", path, number, err.text) : HZP_OK;
}

/* Reads the model's own settings, if the file exists. */
static int read_model_settings(const char *dir, struct hzp_options *options,
                               struct hzp_err_text *reterr)
{
    size_t size = strlen(dir) + sizeof("/serve.options");
    HZP_FREED char *path = hzp_xmalloc(size);
    char line[1024];
    snprintf(path, size, "%s/serve.options", dir);
    HZP_ENDED(hzp_file_end) FILE *file = fopen(path, "r");
    for (int n = 1; file && fgets(line, sizeof(line), file); n++) {
        if (!strchr(line, '\n') && !feof(file))
            return hzp_fail(reterr, HZP_EFORMAT, "%s:%d: the line is longer than %zu bytes", path,
                            n, sizeof(line) - 2);
        HZP_TRY(read_line(dir, path, n, line, options, reterr));
    }
    return HZP_OK;
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
    HZP_ENDED(hzp_file_end) FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        if (name && names_model(line))
            continue;
        named |= names_model(line);
        copy_line(out, dir, line);
    }
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
        } else if (!only_words && !strcmp(argv[i], "--help-all")) {
            options->help = options->help_all = true;
        } else if (!only_words && (!strncmp(argv[i], "--", 2) || !strcmp(argv[i], "-o"))) {
            HZP_TRY(read_option(argc, argv, &i, options, reterr));
        } else if (!only_words && elsewhere(argv[i])) {
            return no_option(argv[i], strlen(argv[i]), options->command, reterr);
        } else if ((options->command & WITH_URL) && hzp_http_is_url(argv[i])) {
            options->client.url = argv[i];
        } else if (options->words == HZP_OPTIONS_WORDS_MAX) {
            return hzp_fail(reterr, HZP_EINVAL, "too many arguments: \"%s\"", argv[i]);
        } else {
            options->word[options->words++] = argv[i];
        }
    }
    return HZP_OK;
}

/* `hzpserve complete -`: the bundled model completes standard input. */
static bool only_reads(const struct hzp_options *options)
{
    return options->command == HZP_COMMAND_COMPLETE && options->words == 1 &&
           !strcmp(options->word[0], "-");
}

/* The model used where the command line names none; NULL: the command needs a name, or has a model
 * of its own, or the bundled one is not there. */
static const char *bundled(const struct hzp_options *options)
{
    char path[PATH_MAX];
    const char *what = options->words ? options->word[0] : "";
    bool bench = options->command == HZP_COMMAND_BENCH && strcmp(what, "link") != 0 &&
                 strcmp(what, "replay") != 0; /* these need no model */
    if (options->command != HZP_COMMAND_SERVE && !bench && !only_reads(options))
        return NULL;
    return bundled_model(path, sizeof(path)) ? keep(path) : NULL;
}

/* The command of this name; NULL: none, with the error. */
static const struct hzp_command_info *find_command(const char *name, struct hzp_err_text *reterr)
{
    char hint[HZP_NEAREST_TEXT];
    struct hzp_nearest near = hzp_nearest(name);
    for (int i = 0; i < hzp_command_count; i++) {
        if (!strcmp(hzp_commands[i].name, name))
            return &hzp_commands[i];
        hzp_nearest_try(&near, hzp_commands[i].name);
    }
    hzp_fail(reterr, HZP_EINVAL, "unknown command \"%s\"%s", name,
             near.best ? hzp_nearest_text(&near, hint) : "; see hzpserve --help");
    return NULL;
}

/* hzpserve help [WHAT [WHICH]] */
static int read_help(int argc, char **argv, struct hzp_options *ret, struct hzp_err_text *reterr)
{
    ret->help = true;
    ret->command = 0;
    for (int i = 2; i < argc && ret->words < 2; i++)
        if (!strcmp(argv[i], "--help-all"))
            ret->help_all = true;
        else if (strncmp(argv[i], "-", 1))
            ret->word[ret->words++] = argv[i];
    if (!ret->words)
        return HZP_OK;
    if (hzp_options_is_topic(ret->word[0])) {
        ret->topic = ret->word[0];
        return HZP_OK;
    }
    const struct hzp_command_info *command = find_command(ret->word[0], NULL);
    if (!command)
        return hzp_options_no_topic(ret->word[0], reterr);
    ret->command = command->command;
    ret->bench.what = ret->words > 1 ? ret->word[1] : NULL;
    return HZP_OK;
}

int hzp_options_parse(int argc, char **argv, struct hzp_options *ret, struct hzp_err_text *reterr)
{
    hzp_options_defaults(HZP_COMMAND_SERVE, ret);
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help"))
        return read_help(argc, argv, ret, reterr);
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        ret->version = true;
        return HZP_OK;
    }
    const struct hzp_command_info *command = find_command(argv[1], reterr);
    if (!command)
        return HZP_EINVAL;
    hzp_options_defaults(command->command, ret);
    HZP_TRY(read_environment(ret, reterr));
    HZP_TRY(read_words(argc, argv, ret, reterr));
    if (ret->words > command->words_max)
        return hzp_fail(reterr, HZP_EINVAL, "usage: hzpserve %s %s; unexpected argument \"%s\"",
                        command->name, command->words, ret->word[command->words_max]);
    int model = ret->command == HZP_COMMAND_BENCH ? 1 : 0;
    if (only_reads(ret))
        model = 1; /* no word names one */
    const char *dir = ret->words > model ? ret->word[model] : bundled(ret);
    bool paths = ret->command == HZP_COMMAND_PLAN && hzp_is_paths_file(dir);
    if (dir && (command->command & WITH_MODEL) && !paths)
        HZP_TRY(check_model(dir, reterr));
    if (ret->command == HZP_COMMAND_SERVE && dir) {
        /* The model is known now: start again with its settings, which the others override. */
        hzp_options_defaults(HZP_COMMAND_SERVE, ret);
        HZP_TRY(read_model_settings(dir, ret, reterr));
        HZP_TRY(read_environment(ret, reterr));
        HZP_TRY(read_words(argc, argv, ret, reterr));
        HZP_TRY(check_files(dir, ret, reterr));
    }
    if (ret->command == HZP_COMMAND_BENCH && ret->words)
        ret->bench.what = ret->word[0];
    ret->bench.load.url = ret->client.url;
    ret->bench.load.api_key = ret->client.api_key;
    ret->engine.model.dir = dir;
    return HZP_OK;
}
