/* SPDX-License-Identifier: Apache-2.0 */
/* base/err.h - error codes, and the text that goes with one.
 *
 * A function that can fail returns int: 0 or more is success, negative is one of the codes below.
 * The list is short because api/ maps each code to one HTTP status in one table. Functions whose
 * failure is shown to a user or operator take a last parameter `struct hzp_err_text *reterr`: NULL
 * allowed, untouched on success.
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

enum hzp_err {
    HZP_OK = 0,
    HZP_ENOMEM = -1,    /* memory asked for at start does not fit */
    HZP_EINVAL = -2,    /* an argument, a field or an option is wrong */
    HZP_EBUSY = -3,     /* a bound is reached: try again later */
    HZP_ENOENT = -4,    /* what was named does not exist */
    HZP_EIO = -5,       /* a file or a socket failed */
    HZP_EFORMAT = -6,   /* a file's contents are wrong */
    HZP_EUNSUP = -7,    /* well-formed, but this build or machine cannot do it */
    HZP_ECANCELED = -8, /* the client has gone */
    HZP_EDEVICE = -9,   /* the device failed: final */
};

struct hzp_err_text {
    char text[512]; /* one line, names the culprit */
    char param[64]; /* the request field or option at fault, or "" */
};

/* "EINVAL" and so on; "E?" for anything else. */
const char *hzp_err_name(int code);

/* Writes the text (param stays "") and returns code, so that a failing function ends in
 * `return hzp_fail(reterr, HZP_EFORMAT, "%s: ...", path);`. */
int hzp_fail(struct hzp_err_text *reterr, int code, const char *format, ...) HZP_PRINTF(3, 4);

/* The same, naming the request field or option at fault. */
int hzp_fail_param(struct hzp_err_text *reterr, int code, const char *param, const char *format,
                   ...) HZP_PRINTF(4, 5);

/* HZP_EINVAL, naming the field or option, whose name is also how the text begins: "n must be a
 * number".  A format that begins with a colon follows the name without a blank. */
int hzp_wrong(struct hzp_err_text *reterr, const char *param, const char *format, ...)
    HZP_PRINTF(3, 4);

#ifdef __cplusplus
extern "C" {
#endif
/* Logs a failure that a function passes on (subsystem "trace", level debug); it is in log.c. */
void hzp_err_trace(int code, const char *file, int line, const char *call);
#ifdef __cplusplus
}
#endif

/* Returns the code of a failing call to the caller. At log level debug each leaves a line with
 * file, line and code, so the log shows the path of an error from its origin outwards. */
#define HZP_TRY(call)                                                                              \
    do {                                                                                           \
        int hzp_try_ = (call);                                                                     \
        if (hzp_try_ < 0) {                                                                        \
            hzp_err_trace(hzp_try_, __FILE__, __LINE__, #call);                                    \
            return hzp_try_;                                                                       \
        }                                                                                          \
    } while (0)

/* The same for functions that clean up: sets r and jumps forward to `out:`. */
#define HZP_TRY_GOTO(call)                                                                         \
    do {                                                                                           \
        r = (call);                                                                                \
        if (r < 0) {                                                                               \
            hzp_err_trace(r, __FILE__, __LINE__, #call);                                           \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)
