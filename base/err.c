/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

const char *hzp_err_name(int code)
{
    static const char *const name[] = {"OK",  "ENOMEM",  "EINVAL", "EBUSY",     "ENOENT",
                                       "EIO", "EFORMAT", "EUNSUP", "ECANCELED", "EDEVICE"};
    if (code > 0)
        code = 0;
    return -code < HZP_COUNT(name) ? name[-code] : "E?";
}

/* named: the text begins with param. */
static void write_text(struct hzp_err_text *reterr, const char *param, bool named,
                       const char *format, va_list args)
{
    size_t size = sizeof(reterr->text), n = 0;
    if (!reterr)
        return;
    if (named)
        n = (size_t)snprintf(reterr->text, size, "%s%s", param, *format == ':' ? "" : " ");
    n = HZP_MIN(n, size - 1);
    vsnprintf(reterr->text + n, size - n, format, args);
    snprintf(reterr->param, sizeof(reterr->param), "%s", param);
    /* One line, even if a name from a hostile file holds control characters. */
    for (char *p = reterr->text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
}

int hzp_fail(struct hzp_err_text *reterr, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_text(reterr, "", false, format, args);
    va_end(args);
    return code;
}

int hzp_fail_param(struct hzp_err_text *reterr, int code, const char *param, const char *format,
                   ...)
{
    va_list args;
    va_start(args, format);
    write_text(reterr, param, false, format, args);
    va_end(args);
    return code;
}

int hzp_wrong(struct hzp_err_text *reterr, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_text(reterr, param, true, format, args);
    va_end(args);
    return HZP_EINVAL;
}
