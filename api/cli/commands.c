/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/commands.h"

#include "base/log.h"

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
