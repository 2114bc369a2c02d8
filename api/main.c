/* SPDX-License-Identifier: Apache-2.0 */
#include "api/commands.h"
#include "base/log.h"

#include <signal.h>
#include <string.h>

static int run(const struct hzp_options *options)
{
    switch (options->command) {
    case HZP_COMMAND_SERVE:
        return hzp_cmd_serve(options);
    case HZP_COMMAND_COMPLETE:
        return hzp_cmd_complete(options);
    case HZP_COMMAND_EVAL:
        return hzp_cmd_eval(options);
    case HZP_COMMAND_TRAIN:
        return hzp_cmd_train(options);
    case HZP_COMMAND_BENCH:
        return hzp_cmd_bench(options);
    default:
        return hzp_cmd_devices(options);
    }
}

int main(int argc, char **argv)
{
    struct hzp_options options;
    struct hzp_err_text err = {0};
    hzp_log_init();
    signal(SIGPIPE, SIG_IGN);
    if (hzp_options_parse(argc, argv, &options, &err) < 0) {
        fprintf(stderr, "hzpserve: %s\n", err.text);
        return 2;
    }
    if (options.version) {
        printf("hzpserve %s\n", HZP_VERSION_TEXT);
        return 0;
    }
    if (options.help) {
        if (options.command)
            hzp_options_command_help(stdout, options.command);
        else
            hzp_options_help(stdout);
        return 0;
    }
    return run(&options);
}
