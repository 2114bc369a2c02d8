/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_log_sessions.c - who taught what: sessions in the log. */
#include "train/table/sample_log_state.h"

static const char what[] = "noting a session";

/* Forgets the session whose newest sample is the oldest, if there are too many. */
static int make_room(struct hzp_sample_log *log, struct hzp_err_text *reterr)
{
    int64_t count = 0, oldest = 0;
    HZP_TRY(hzp_sample_log_number(log, "SELECT count(*) FROM sessions", &count, reterr));
    if (count <= HZP_SESSIONS_MAX)
        return HZP_OK;
    HZP_TRY(hzp_sample_log_number(log, "SELECT min(newest) FROM sessions", &oldest, reterr));
    HZP_TRY(hzp_sample_log_change(log, "DELETE FROM sessions WHERE newest = ?1", what, reterr, "i",
                                  oldest));
    /* If the transaction is rolled back, this one stays too large: sessions wait longer, not less.
     */
    log->forgotten = HZP_MAX(log->forgotten, oldest);
    return hzp_sample_log_change(log,
                                 "INSERT OR REPLACE INTO meta VALUES ('sessions_forgotten', ?1)",
                                 what, reterr, "i", log->forgotten);
}

int hzp_sample_log_put_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                               struct hzp_err_text *reterr)
{
    /* One that is not kept may have been forgotten. */
    HZP_TRY(hzp_sample_log_change(
        log,
        "INSERT INTO sessions (newest, name) VALUES (?1, ?2) ON CONFLICT (name) DO"
        " UPDATE SET newest = max(newest, excluded.newest)",
        what, reterr, "it", HZP_MAX(newest, log->forgotten), name));
    return make_room(log, reterr);
}

int hzp_sample_log_note_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                                struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, what, reterr);
    if (r >= 0)
        r = hzp_sample_log_put_session(log, name, newest, reterr);
    return hzp_sample_log_end(log, r, what, reterr);
}

int32_t hzp_sample_log_sessions(struct hzp_sample_log *log, struct hzp_session *ret, int32_t max,
                                int64_t *ret_forgotten, struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT name, newest FROM sessions ORDER BY newest DESC";
    int32_t n = 0;
    HZP_LOCKED(&log->lock);
    *ret_forgotten = log->forgotten;
    struct hzp_log_rows q = hzp_sample_log_query(log, sql, "reading sessions", reterr, "");
    while (n < max && hzp_sample_log_next(&q)) {
        hzp_sample_log_column(q.s, 0, ret[n].name, sizeof(ret[n].name));
        ret[n++].newest = sqlite3_column_int64(q.s, 1);
    }
    return hzp_sample_log_query_end(&q, n);
}
