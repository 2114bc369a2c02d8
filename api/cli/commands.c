/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/commands.h"

#include "api/cli/option_table.h"

#include "base/log.h"
#include "base/version.h"
#include "device/about.h"

#include <signal.h>

int hzp_command_failed(int code, const struct hzp_err_text *err)
{
    const char *text = err->text[0] ? err->text : hzp_err_name(code);
    if (hzp_log_get_format() == HZP_LOG_JSON)
        hzp_log(HZP_LOG_ERROR, "serve", "%s", text);
    else
        fprintf(stderr, "hzpserve: %s\n", text);
    bool data = !strncmp(err->param, "lines", 5); /* it names lines of a file of examples */
    return code == HZP_EINVAL && err->param[0] && !data ? 2 : 1;
}

int hzp_command_usage(const char *usage)
{
    fprintf(stderr, "hzpserve: usage: hzpserve %s\n", usage);
    return 2;
}

/* Prints the version, the commit, and the compiled-in backends. */
static void print_version(const char *commit)
{
    struct hzp_about about;
    const char *name;
    printf("hzpserve %s\ncommit %s\nbackends", HZP_VERSION_TEXT, commit);
    for (int i = 0; (name = hzp_device_about(i, &about)); i++)
        if (about.builds || about.devices)
            printf(" %s", name);
    printf("\n");
}

int hzp_commands_run(int argc, char **argv, const char *commit,
                     int (*bench)(const struct hzp_options *options))
{
    struct hzp_options options;
    struct hzp_err_text err = {0};
    signal(SIGPIPE, SIG_IGN); /* failed writes return errors instead */
    signal(SIGXFSZ, SIG_IGN);
    if (hzp_options_parse(argc, argv, &options, &err) < 0) {
        fprintf(stderr, "hzpserve: %s\n", err.text);
        return 2;
    }
    hzp_log_set_format((enum hzp_log_format)options.log_format);
    if (hzp_log_set(options.log_level, &err) < 0) {
        fprintf(stderr, "hzpserve: --log-level (or HZP_LOG): %s\n", err.text);
        return 2;
    }
    options.argv = argv;
    options.commit = commit;
    if (options.version) {
        print_version(commit);
        return 0;
    }
    if (options.help) {
        hzp_options_help(stdout, &options);
        return 0;
    }
    int (*run)(const struct hzp_options *) = options.command == HZP_COMMAND_BENCH ? bench : NULL;
    for (int i = 0; i < hzp_command_count && !run; i++)
        if (hzp_commands[i].command == options.command)
            run = hzp_commands[i].run;
    HZP_ASSERT(run);
    int status = run(&options);
    hzp_launch_report(status);
    return status;
}
