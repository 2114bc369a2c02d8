/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/commands.h"
#include "api/cli/commit.h"

int main(int argc, char **argv)
{
    return hzp_commands_run(argc, argv, hzp_commit, hzp_cmd_bench);
}
