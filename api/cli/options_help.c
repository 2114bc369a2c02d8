/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/options_help.c - the help texts: of the program, a command, a benchmark, a topic.
 *
 * A topic is a heading of the option table, with an introduction and examples, or one of the pages
 * behind these that have no options.  A command with more than FEW_OPTIONS options shows
 * the most used ones and names the topics of the others. */
#include "api/cli/nearest.h"
#include "api/cli/option_table.h"
#include "base/version.h"
#include "base/words.h"

enum { FEW_OPTIONS = 24 };

/* ---- options ---- */

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

static void print_option(FILE *out, const struct hzp_option *s)
{
    char left[64], right[800];
    snprintf(left, sizeof(left), "%s%s%s", s->name, s->kind == HZP_OPTION_FLAG ? "" : " ",
             s->kind == HZP_OPTION_FLAG     ? ""
             : s->kind == HZP_OPTION_CHOICE ? s->choices
                                            : s->meta);
    bool value = s->value && s->kind != HZP_OPTION_FLAG;
    snprintf(right, sizeof(right), "%s%s%s%s%s%s%s", s->help, value ? " [" : "",
             value ? s->value : "", value ? "]" : "", s->env ? " (or $" : "", s->env ? s->env : "",
             s->env ? ")" : "");
    if (strlen(left) > 30) /* too wide for its column: the text begins in the next line */
        fprintf(out, "  %s\n%33s", left, "");
    else
        fprintf(out, "  %-30s ", left);
    print_wrapped(out, right);
}

/* Which options are printed: those of any of the commands, below a heading of the topic, with a
 * name in the list of words; each NULL or 0: whatever it is. */
struct filter {
    unsigned commands;
    const char *topic, *names;
    bool used; /* only those most used */
};

static bool wanted(const struct filter *filter, const struct hzp_option *s)
{
    bool used = !filter->used;
    for (int i = 0; !used && i < hzp_options_used_count; i++)
        used = !strcmp(hzp_options_used[i], s->name);
    return used && (!filter->commands || (s->commands & filter->commands)) &&
           (!filter->names || hzp_among(filter->names, s->name));
}

/* Prints the options, each group below its heading; returns how many.  out NULL: only counts. */
static int print_options(FILE *out, const struct filter *filter)
{
    const struct hzp_option *heading = NULL;
    int count = 0;
    bool headed = false;
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        if (!s->name) {
            heading = s;
            headed = false;
            continue;
        }
        if ((filter->topic && strcmp(filter->topic, heading->topic)) || !wanted(filter, s))
            continue;
        count++;
        if (!out)
            continue;
        if (!headed)
            fprintf(out, "\n%s\n", heading->help);
        headed = true;
        print_option(out, s);
    }
    return count;
}

/* ---- topics ---- */

static const struct hzp_topic *find_topic(const char *name)
{
    for (int i = 0; i < hzp_topic_count; i++)
        if (!strcmp(hzp_topics[i].name, name))
            return &hzp_topics[i];
    return NULL;
}

bool hzp_options_is_topic(const char *name)
{
    /* A word that is a command too means the command, whose help has the same options. */
    for (int i = 0; i < hzp_command_count; i++)
        if (!strcmp(hzp_commands[i].name, name))
            return false;
    return find_topic(name) != NULL;
}

int hzp_options_no_topic(const char *name, struct hzp_err_text *reterr)
{
    char hint[HZP_NEAREST_TEXT];
    struct hzp_nearest near = hzp_nearest(name);
    for (int i = 0; i < hzp_topic_count; i++)
        hzp_nearest_try(&near, hzp_topics[i].name);
    for (int i = 0; i < hzp_command_count; i++)
        hzp_nearest_try(&near, hzp_commands[i].name);
    return hzp_fail(reterr, HZP_EINVAL, "no command and no topic is named \"%s\"%s", name,
                    near.best ? hzp_nearest_text(&near, hint) : "; see hzpserve help");
}

/* The topics that have options of the commands; 0: all. */
static void print_topics(FILE *out, unsigned commands)
{
    for (int i = 0; i < hzp_topic_count; i++) {
        struct filter filter = {.commands = commands, .topic = hzp_topics[i].name};
        if (!commands || print_options(NULL, &filter))
            fprintf(out, "  %-12s %s\n", hzp_topics[i].name, hzp_topics[i].about);
    }
}

static void topic_help(FILE *out, const struct hzp_topic *topic)
{
    struct filter filter = {.topic = topic->name};
    bool options = print_options(NULL, &filter) > 0;
    fprintf(out, "%s: %s\n\n%s%s", topic->name, topic->about, options ? "Examples\n" : "",
            topic->text);
    print_options(out, &filter);
}

/* ---- commands ---- */

static void bench_help(FILE *out, const char *name)
{
    for (int i = 0; i < hzp_bench_count; i++) {
        if (strcmp(hzp_benches[i].name, name))
            continue;
        fprintf(out, "hzpserve bench %s%s%s [OPTIONS]\n\n%s\n\nExamples\n  %s\n", name,
                *hzp_benches[i].words ? " " : "", hzp_benches[i].words, hzp_benches[i].help,
                hzp_benches[i].example);
        struct filter filter = {.commands = HZP_COMMAND_BENCH, .names = hzp_benches[i].options};
        print_options(out, &filter);
        if (*hzp_benches[i].topics)
            fprintf(out, "\nFurther options: hzpserve help TOPIC, with TOPIC one of: %s\n",
                    hzp_benches[i].topics);
    }
}

static bool is_bench(const char *name)
{
    for (int i = 0; name && i < hzp_bench_count; i++)
        if (!strcmp(hzp_benches[i].name, name))
            return true;
    return false;
}

int hzp_options_no_bench(const char *name, struct hzp_err_text *reterr)
{
    char hint[HZP_NEAREST_TEXT];
    if (!name)
        return hzp_fail(reterr, HZP_EINVAL, "bench: name what to measure; see hzpserve help bench");
    if (is_bench(name))
        return HZP_OK;
    struct hzp_nearest near = hzp_nearest(name);
    for (int i = 0; i < hzp_bench_count; i++)
        hzp_nearest_try(&near, hzp_benches[i].name);
    return hzp_fail(reterr, HZP_EINVAL,
                    "bench: \"%s\" is not one of serve, train, coserve, swap, offline, ops, loop, "
                    "start, link, replay%s",
                    name, hzp_nearest_text(&near, hint));
}

/* all: with every option; else long lists are given by topic.  bench: of the command bench, the
 * benchmark (NULL: their list). */
static void command_help(FILE *out, enum hzp_command command, bool all, const char *bench)
{
    const struct hzp_command_info *info = NULL;
    for (int i = 0; i < hzp_command_count; i++)
        if (hzp_commands[i].command == command)
            info = &hzp_commands[i];
    if (!all && command == HZP_COMMAND_BENCH && is_bench(bench)) {
        bench_help(out, bench);
        return;
    }
    struct filter filter = {.commands = command};
    bool few = all || print_options(NULL, &filter) <= FEW_OPTIONS;
    fprintf(out, "hzpserve %s%s%s [OPTIONS]\n\n%s\n", info->name, *info->words ? " " : "",
            info->words, info->help);
    if (!few)
        fprintf(out, "(all options: hzpserve %s --help-all)\n", info->name);
    fprintf(out, "\nExamples\n%s", info->examples);
    if (few) {
        print_options(out, &filter);
        return;
    }
    if (command == HZP_COMMAND_BENCH) {
        fprintf(out, "\nWHAT (hzpserve bench WHAT --help has its options)\n");
        for (int i = 0; i < hzp_bench_count; i++)
            fprintf(out, "  %-12s %s\n", hzp_benches[i].name, hzp_benches[i].help);
    } else {
        filter.used = true;
        print_options(out, &filter);
    }
    fprintf(out, "\nFurther options: hzpserve help TOPIC\n");
    print_topics(out, command);
}

void hzp_options_help(FILE *out, const struct hzp_options *options)
{
    if (options->topic) {
        topic_help(out, find_topic(options->topic));
        return;
    }
    if (options->command) {
        command_help(out, options->command, options->help_all, options->bench.what);
        return;
    }
    fprintf(out,
            "hzpserve %s: serves a language model over HTTP while fine-tuning the same weights.\n\n"
            "  hzpserve COMMAND --help          a command: examples and the options most used\n"
            "  hzpserve COMMAND --help-all      all its options\n"
            "  hzpserve help TOPIC              a group of options\n\nCommands\n",
            HZP_VERSION_TEXT);
    for (int i = 0; i < hzp_command_count; i++)
        fprintf(out, "  hzpserve %-8s %-28s %s\n", hzp_commands[i].name, hzp_commands[i].words,
                hzp_commands[i].help);
    fprintf(out, "\n  hzpserve --version\n\nTopics\n");
    print_topics(out, 0);
}
