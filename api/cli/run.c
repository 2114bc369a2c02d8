/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/commands.h"
#include "base/log.h"
#include "base/version.h"
#include "device/about.h"

#include <signal.h>

static const struct {
    enum hzp_command command;
    int (*run)(const struct hzp_options *options);
} commands[] = {
    {HZP_COMMAND_SERVE, hzp_cmd_serve},     {HZP_COMMAND_COMPLETE, hzp_cmd_complete},
    {HZP_COMMAND_EVAL, hzp_cmd_eval},       {HZP_COMMAND_TRAIN, hzp_cmd_train},
    {HZP_COMMAND_DEVICES, hzp_cmd_devices}, {HZP_COMMAND_CHAT, hzp_cmd_chat},
    {HZP_COMMAND_PLAN, hzp_cmd_plan},       {HZP_COMMAND_SEARCH, hzp_cmd_search},
    {HZP_COMMAND_STATE, hzp_cmd_state},     {HZP_COMMAND_TIMELINE, hzp_cmd_timeline},
    {HZP_COMMAND_WEIGHTS, hzp_cmd_weights}, {HZP_COMMAND_LESSONS, hzp_cmd_lessons},
    {HZP_COMMAND_UNDO, hzp_cmd_undo},       {HZP_COMMAND_STATUS, hzp_cmd_status},
    {HZP_COMMAND_TOP, hzp_cmd_status},      {HZP_COMMAND_PULL, hzp_cmd_pull},
    {HZP_COMMAND_PUSH, hzp_cmd_push},       {HZP_COMMAND_ROLLOUT, hzp_cmd_rollout},
};

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
    for (int i = 0; i < HZP_COUNT(commands); i++)
        if (commands[i].command == options.command)
            run = commands[i].run;
    HZP_ASSERT(run);
    int status = run(&options);
    hzp_launch_report(status);
    return status;
}
