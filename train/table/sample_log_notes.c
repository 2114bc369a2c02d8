/* SPDX-License-Identifier: Apache-2.0 */
/* Notes: short texts by name, in the log's table of what it belongs to. */
#include "train/table/sample_log_state.h"

/* Under lock.  1: there is a note of that name; 0: there is none. */
static int get_note(struct hzp_sample_log *log, const char *name, char *ret, size_t size,
                    struct hzp_err_text *reterr)
{
    struct hzp_log_rows q = hzp_sample_log_query(log, "SELECT value FROM meta WHERE key = ?1",
                                                 "reading", reterr, "t", name);
    bool found = hzp_sample_log_next(&q);
    ret[0] = 0;
    if (found)
        hzp_sample_log_column(q.s, 0, ret, size);
    return hzp_sample_log_query_end(&q, found);
}

int hzp_sample_log_put_note(struct hzp_sample_log *log, const char *name, const char *value,
                            struct hzp_err_text *reterr)
{
    return hzp_sample_log_change(log, "INSERT OR REPLACE INTO meta VALUES (?1, ?2)", "writing",
                                 reterr, "tt", name, value);
}

int hzp_sample_log_note(struct hzp_sample_log *log, const char *name, char *ret, size_t size,
                        struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    HZP_TRY(get_note(log, name, ret, size, reterr));
    return HZP_OK;
}

int hzp_sample_log_set_note(struct hzp_sample_log *log, const char *name, const char *value,
                            struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    return hzp_sample_log_put_note(log, name, value, reterr);
}

int hzp_sample_log_pin(struct hzp_sample_log *log, const char *name, const char *what,
                       const char *value, struct hzp_err_text *reterr)
{
    char then[128];
    HZP_LOCKED(&log->lock);
    int r = get_note(log, name, then, sizeof(then), reterr);
    if (r == 0)
        return hzp_sample_log_put_note(log, name, value, reterr);
    if (r > 0 && strcmp(then, value))
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: the sample log was begun with another %s (%s, now %s)", log->path,
                        what, then, value);
    return HZP_MIN(r, 0);
}
