/* SPDX-License-Identifier: Apache-2.0 */
/* Notes: short texts by name, in the log's table of what it belongs to. */
#include "train/table/sample_log_state.h"

#include <stdio.h>
#include <string.h>

/* Under lock.  1: there is a note of that name; 0: there is none. */
static int get_note(struct hzp_sample_log *log, const char *name, char *ret, size_t size,
                    struct hzp_err_text *reterr)
{
    sqlite3_stmt *s = log->statement[HZP_LOG_SQL_GET_META];
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    int code = sqlite3_step(s), r = code == SQLITE_ROW;
    ret[0] = 0;
    if (r)
        snprintf(ret, size, "%s", (const char *)sqlite3_column_text(s, 0));
    else if (code != SQLITE_DONE)
        r = hzp_sample_log_fail_code(log, code, "reading", reterr);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return r;
}

int hzp_sample_log_put_note(struct hzp_sample_log *log, const char *name, const char *value,
                            struct hzp_err_text *reterr)
{
    sqlite3_stmt *s = log->statement[HZP_LOG_SQL_SET_META];
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, value, -1, SQLITE_STATIC);
    return hzp_sample_log_run(log, s, "writing", reterr);
}

int hzp_sample_log_note(struct hzp_sample_log *log, const char *name, char *ret, size_t size,
                        struct hzp_err_text *reterr)
{
    hzp_lock_take(&log->lock);
    int r = get_note(log, name, ret, size, reterr);
    hzp_lock_release(&log->lock);
    return HZP_MIN(r, 0);
}

int hzp_sample_log_set_note(struct hzp_sample_log *log, const char *name, const char *value,
                            struct hzp_err_text *reterr)
{
    hzp_lock_take(&log->lock);
    int r = hzp_sample_log_put_note(log, name, value, reterr);
    hzp_lock_release(&log->lock);
    return r;
}

int hzp_sample_log_pin(struct hzp_sample_log *log, const char *name, const char *what,
                       const char *value, struct hzp_err_text *reterr)
{
    char then[128];
    hzp_lock_take(&log->lock);
    int r = get_note(log, name, then, sizeof(then), reterr);
    if (r == 0)
        r = hzp_sample_log_put_note(log, name, value, reterr);
    else if (r > 0 && strcmp(then, value))
        r = hzp_fail(reterr, HZP_EINVAL,
                     "%s: the sample log was begun with another %s (%s, now %s)", log->path, what,
                     then, value);
    hzp_lock_release(&log->lock);
    return HZP_MIN(r, 0);
}
