/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/commands.h - the commands of hzpserve, each in a file cmd_<name>.c.
 *
 * A command prints its results to standard output and errors to standard error, and returns the
 * process's exit status: 0, 1 (it failed), 2 (wrong usage).
 *
 * Thread: main.
 */
#ifndef HZP_API_CLI_COMMANDS_H
#define HZP_API_CLI_COMMANDS_H

#include "api/cli/options.h"

int hzp_cmd_serve(const struct hzp_options *options);
int hzp_cmd_complete(const struct hzp_options *options);
int hzp_cmd_eval(const struct hzp_options *options);
int hzp_cmd_train(const struct hzp_options *options);
int hzp_cmd_bench(const struct hzp_options *options);
int hzp_cmd_devices(const struct hzp_options *options);
int hzp_cmd_plan(const struct hzp_options *options);
int hzp_cmd_search(const struct hzp_options *options);

#endif
