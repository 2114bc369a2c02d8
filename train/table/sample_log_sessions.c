/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_log_sessions.c - who taught what: sessions in the log. */
#include "train/table/sample_log_state.h"

#include <stdio.h>
#include <string.h>

static const char what[] = "noting a session";

/* Runs a statement with an integer ?1 and a text ?2 (NULL: none). */
static int change(struct hzp_sample_log *log, const char *sql, int64_t value, const char *text,
                  struct hzp_err_text *reterr)
{
    sqlite3_stmt *s;
    int code = sqlite3_prepare_v2(log->db, sql, -1, &s, NULL);
    if (code == SQLITE_OK) {
        sqlite3_bind_int64(s, 1, value);
        if (text)
            sqlite3_bind_text(s, 2, text, -1, SQLITE_STATIC);
        code = sqlite3_step(s);
        sqlite3_finalize(s);
    }
    return code == SQLITE_DONE ? HZP_OK : hzp_sample_log_fail_code(log, code, what, reterr);
}

/* Forgets the session whose newest sample is the oldest, if there are too many. */
static int make_room(struct hzp_sample_log *log, struct hzp_err_text *reterr)
{
    int64_t count = 0, oldest = 0;
    HZP_TRY(hzp_sample_log_number(log, "SELECT count(*) FROM sessions", &count, reterr));
    if (count <= HZP_SESSIONS_MAX)
        return HZP_OK;
    HZP_TRY(hzp_sample_log_number(log, "SELECT min(newest) FROM sessions", &oldest, reterr));
    HZP_TRY(change(log, "DELETE FROM sessions WHERE newest = ?1", oldest, NULL, reterr));
    /* If the transaction is rolled back, this one stays too large: sessions wait longer, not less.
     */
    log->forgotten = HZP_MAX(log->forgotten, oldest);
    return change(log, "INSERT OR REPLACE INTO meta VALUES ('sessions_forgotten', ?1)",
                  log->forgotten, NULL, reterr);
}

int hzp_sample_log_put_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                               struct hzp_err_text *reterr)
{
    /* One that is not kept may have been forgotten. */
    HZP_TRY(change(log,
                   "INSERT INTO sessions (newest, name) VALUES (?1, ?2) ON CONFLICT (name) DO"
                   " UPDATE SET newest = max(newest, excluded.newest)",
                   HZP_MAX(newest, log->forgotten), name, reterr));
    return make_room(log, reterr);
}

int hzp_sample_log_note_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                                struct hzp_err_text *reterr)
{
    hzp_lock_take(&log->lock);
    int r = hzp_sample_log_exec(log, "BEGIN IMMEDIATE", what, reterr);
    if (r >= 0)
        r = hzp_sample_log_put_session(log, name, newest, reterr);
    r = hzp_sample_log_end(log, r, what, reterr);
    hzp_lock_release(&log->lock);
    return r;
}

int32_t hzp_sample_log_sessions(struct hzp_sample_log *log, struct hzp_session *ret, int32_t max,
                                int64_t *ret_forgotten, struct hzp_err_text *reterr)
{
    int32_t n = 0;
    sqlite3_stmt *s;
    hzp_lock_take(&log->lock);
    *ret_forgotten = log->forgotten;
    int code = sqlite3_prepare_v2(log->db, "SELECT name, newest FROM sessions ORDER BY newest DESC",
                                  -1, &s, NULL);
    if (code == SQLITE_OK) {
        while (n < max && (code = sqlite3_step(s)) == SQLITE_ROW) {
            snprintf(ret[n].name, sizeof(ret[n].name), "%s",
                     (const char *)sqlite3_column_text(s, 0));
            ret[n++].newest = sqlite3_column_int64(s, 1);
        }
        sqlite3_finalize(s);
    }
    int r = code == SQLITE_OK || code == SQLITE_DONE || code == SQLITE_ROW
                ? n
                : hzp_sample_log_fail_code(log, code, "reading sessions", reterr);
    hzp_lock_release(&log->lock);
    return r;
}
