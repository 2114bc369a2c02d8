/* SPDX-License-Identifier: Apache-2.0 */
/* A log whose file cannot be made yet.  Until then it is in memory: it has the notes of what the
 * state belongs to, and nothing else, because nothing is accepted and only the first version is
 * published (hzp_sample_log_resume says so). */
#include "train/table/sample_log_state.h"

#include <sys/stat.h>

/* Whether the newest failure was for lack of space. */
static bool lacks_space(const struct hzp_sample_log *log)
{
    if (!log->db)
        return false;
    int error = sqlite3_system_errno(log->db);
    return (sqlite3_errcode(log->db) & 0xff) == SQLITE_FULL || error == ENOSPC || error == EDQUOT ||
           error == EFBIG;
}

/* Whether no log is lost if the file is not looked at: it was not made, or has no tables. */
static bool holds_nothing(const struct hzp_sample_log *log)
{
    struct stat st;
    return log->no_tables || (stat(log->path, &st) < 0 ? errno == ENOENT : st.st_size == 0);
}

int hzp_sample_log_open_later(const char *path, const char *fingerprint,
                              const struct hzp_err_text *why, struct hzp_sample_log **ret,
                              struct hzp_err_text *reterr)
{
    struct hzp_sample_log *log = hzp_xcalloc(1, sizeof(*log));
    struct hzp_err_text text = {0};
    log->path = hzp_xstrdup(path);
    log->fingerprint = hzp_xstrdup(fingerprint);
    hzp_lock_init(&log->lock, HZP_LOCK_LOG);
    int r = why ? HZP_EIO : hzp_sample_log_open_database(log, path, fingerprint, &text);
    if (r < 0 && (why || (lacks_space(log) && holds_nothing(log)))) {
        log->unmade = true;
        log->why = why ? *why : text;
        hzp_sample_log_close_database(log);
        r = hzp_sample_log_open_database(log, ":memory:", fingerprint, &text);
    }
    if (r < 0) {
        hzp_sample_log_close(log);
        return hzp_fail(reterr, r, "%s", text.text);
    }
    *ret = log;
    return HZP_OK;
}

/* Copies the notes of one log to another. */
static int copy_notes(struct hzp_sample_log *from, struct hzp_sample_log *to,
                      struct hzp_err_text *reterr)
{
    int r = HZP_OK;
    struct hzp_log_rows q =
        hzp_sample_log_query(from, "SELECT key, value FROM meta", "reading", reterr, "");
    while (r == HZP_OK && hzp_sample_log_next(&q))
        r = hzp_sample_log_put_note(to, (const char *)sqlite3_column_text(q.s, 0),
                                    (const char *)sqlite3_column_text(q.s, 1), reterr);
    return hzp_sample_log_query_end(&q, r);
}

/* The file is there and is the log of no other run. */
static int check_unused(struct hzp_sample_log *made, struct hzp_err_text *reterr)
{
    int64_t rows = 0;
    HZP_TRY(hzp_sample_log_number(made,
                                  "SELECT (SELECT count(*) FROM versions)"
                                  " + (SELECT count(*) FROM checkpoints)",
                                  &rows, reterr));
    if (rows || made->last)
        return hzp_fail(reterr, HZP_EBUSY, "%s: another process has begun it meanwhile",
                        made->path);
    return HZP_OK;
}

int hzp_sample_log_make(struct hzp_sample_log *log, struct hzp_err_text *reterr)
{
    struct hzp_sample_log made = {.path = log->path};
    int r = hzp_sample_log_open_database(&made, log->path, log->fingerprint, reterr);
    if (r == HZP_OK)
        r = check_unused(&made, reterr);
    if (r == HZP_OK)
        r = copy_notes(log, &made, reterr);
    if (r < 0) {
        hzp_sample_log_close_database(&made);
        return r;
    }
    hzp_sample_log_close_database(log);
    log->db = made.db;
    memcpy(log->kept, made.kept, sizeof(log->kept));
    log->unmade = false;
    return HZP_OK;
}
