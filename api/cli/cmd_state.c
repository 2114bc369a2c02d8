/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve state list|check|repair DIR: a state directory that no server uses. */
#include "api/cli/commands.h"
#include "api/learn/state_tool.h"

int hzp_cmd_state(const struct hzp_options *options)
{
    static const char *const action[] = {"list", "check", "repair"};
    struct hzp_err_text err = {0};
    int64_t damaged = 0;
    int which = 0;
    while (options->words == 2 && which < HZP_COUNT(action) &&
           strcmp(options->word[0], action[which]))
        which++;
    if (options->words != 2 || which == HZP_COUNT(action))
        return hzp_command_usage("state list|check|repair DIR");
    int r = hzp_state_tool(options->word[1], (enum hzp_state_action)which, stdout, &damaged, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    return r < 0 || damaged > 0;
}
