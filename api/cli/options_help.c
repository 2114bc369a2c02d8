/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/options_help.c - which help text is printed, and what was meant where there is none. */
#include "api/cli/option_table.h"

/* The text of this kind, the beginning of its name; NULL: there is none. */
static const char *find(const char *kind, const char *name)
{
    size_t n = strlen(kind);
    for (int i = 0; i < hzp_help_count; i++)
        if (!strncmp(hzp_helps[i].name, kind, n) && !strcmp(hzp_helps[i].name + n, name))
            return hzp_helps[i].text;
    return NULL;
}

static void try_all(struct hzp_nearest *near, const char *kind)
{
    size_t n = strlen(kind);
    for (int i = 0; i < hzp_help_count; i++)
        if (!strncmp(hzp_helps[i].name, kind, n))
            hzp_nearest_try(near, hzp_helps[i].name + n);
}

bool hzp_options_is_topic(const char *name)
{
    return find("help ", name) != NULL;
}

int hzp_options_no_topic(const char *name, struct hzp_err_text *reterr)
{
    char hint[HZP_NEAREST_TEXT];
    struct hzp_nearest near = hzp_nearest(name);
    try_all(&near, "help ");
    for (int i = 0; i < hzp_command_count; i++)
        hzp_nearest_try(&near, hzp_commands[i].name);
    return hzp_fail(reterr, HZP_EINVAL, "no command and no topic is named \"%s\"%s", name,
                    near.best ? hzp_nearest_text(&near, hint) : "; see hzpserve help");
}

int hzp_options_no_bench(const char *name, struct hzp_err_text *reterr)
{
    char hint[HZP_NEAREST_TEXT];
    if (!name)
        return hzp_fail(reterr, HZP_EINVAL, "bench: name what to measure; see hzpserve help bench");
    if (find("bench ", name))
        return HZP_OK;
    struct hzp_nearest near = hzp_nearest(name);
    try_all(&near, "bench ");
    return hzp_fail(reterr, HZP_EINVAL,
                    "bench: \"%s\" is not one of serve, train, coserve, swap, offline, ops, loop, "
                    "start, link, replay%s",
                    name, hzp_nearest_text(&near, hint));
}

void hzp_options_help(FILE *out, const struct hzp_options *options)
{
    const char *name = "", *what = options->bench.what, *text = NULL;
    for (int i = 0; i < hzp_command_count; i++)
        if (hzp_commands[i].command == options->command)
            name = hzp_commands[i].name;
    if (options->topic)
        text = find("help ", options->topic);
    else if (options->help_all && *name)
        text = find(name, " --help-all");
    else if (options->command == HZP_COMMAND_BENCH && what)
        text = find("bench ", what);
    fputs(text ? text : find("", name), out);
}
