/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_log_lessons.c - which samples were taught together, in which sessions,
 * and the notes of the log. */
#include "train/table/sample_log_state.h"

int hzp_sample_log_put_lesson(struct hzp_sample_log *log, int64_t first, int64_t last,
                              const char *session, struct hzp_err_text *reterr)
{
    static const char sql[] =
        "INSERT INTO lessons (first, last, unix_ms, session) VALUES (?1, ?2, ?3, ?4)";
    return hzp_sample_log_change(log, sql, "adding a lesson", reterr, "iiit", first, last,
                                 hzp_unix_ms(), session);
}

int hzp_sample_log_find_lessons(struct hzp_sample_log *log, struct hzp_sample *const *sample,
                                int32_t count, struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT first FROM lessons ORDER BY id DESC"; /* their order, too */
    struct hzp_log_rows q = hzp_sample_log_query(log, sql, "reading lessons", reterr, "");
    while (count > 0 && hzp_sample_log_next(&q)) {
        int64_t first = sqlite3_column_int64(q.s, 0);
        for (; count > 0 && sample[count - 1]->sequence_number >= first; count--)
            sample[count - 1]->lesson = first;
    }
    return hzp_sample_log_query_end(&q, HZP_OK);
}

int hzp_sample_log_note_lessons(struct hzp_sample_log *log, const char *name, int64_t first,
                                int64_t last, const char *value, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    return hzp_sample_log_change(log,
                                 "INSERT OR REPLACE INTO meta SELECT ?1 || first, ?2 FROM lessons"
                                 " WHERE last >= ?3 AND first <= ?4",
                                 "adding a note", reterr, "ttii", name, value, first, last);
}

/* Lessons with ids in [from, below), newest first, with first > 0 only the one that begins there;
 * the lock is held. */
static int32_t read_lessons(struct hzp_sample_log *log, int64_t from, int64_t below, int64_t first,
                            int32_t max, struct hzp_logged_lesson *ret, struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT id, first, last, unix_ms, session FROM lessons"
                              " WHERE id >= ?1 AND id < ?2 AND (first = ?4 OR ?4 = 0)"
                              " ORDER BY id DESC LIMIT ?3";
    int32_t n = 0;
    struct hzp_log_rows q = hzp_sample_log_query(log, sql, "reading lessons", reterr, "iiii", from,
                                                 below, (int64_t)max, first);
    while (n < max && hzp_sample_log_next(&q)) {
        ret[n] = (struct hzp_logged_lesson){.id = sqlite3_column_int64(q.s, 0),
                                            .first = sqlite3_column_int64(q.s, 1),
                                            .last = sqlite3_column_int64(q.s, 2),
                                            .unix_ms = sqlite3_column_int64(q.s, 3)};
        hzp_sample_log_column(q.s, 4, ret[n].session, sizeof(ret[n].session));
        n++;
    }
    return hzp_sample_log_query_end(&q, n);
}

int32_t hzp_sample_log_lessons(struct hzp_sample_log *log, int64_t below, int32_t max,
                               struct hzp_logged_lesson *ret, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    return read_lessons(log, 1, below, 0, max, ret, reterr);
}

int hzp_sample_log_lesson(struct hzp_sample_log *log, int64_t id, struct hzp_logged_lesson *ret,
                          struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    int32_t n = id > 0 && id < INT64_MAX ? read_lessons(log, id, id + 1, 0, 1, ret, reterr) : 0;
    HZP_TRY(n);
    return n ? HZP_OK : hzp_fail(reterr, HZP_ENOENT, "there is no lesson %lld", (long long)id);
}

int hzp_sample_log_lesson_of(struct hzp_sample_log *log, int64_t first,
                             struct hzp_logged_lesson *ret, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    int32_t n = read_lessons(log, 1, INT64_MAX, first, 1, ret, reterr);
    HZP_TRY(n);
    return n ? HZP_OK
             : hzp_fail(reterr, HZP_ENOENT, "no lesson begins with example %lld", (long long)first);
}

int32_t hzp_sample_log_read_range(struct hzp_sample_log *log, int64_t first, int64_t last,
                                  int32_t max, struct hzp_sample **ret, struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT sequence_number, count, data, checksum, softs FROM samples"
                              " WHERE sequence_number BETWEEN ?1 AND ?2 AND count > 0"
                              " ORDER BY sequence_number LIMIT ?3";
    int32_t n = 0;
    int r = HZP_OK;
    hzp_lock_take(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql, "reading samples", reterr, "iii", first, last, (int64_t)max);
    while (r >= 0 && n < max && hzp_sample_log_next(&q)) {
        r = hzp_sample_log_read_row(log, q.s, &ret[n], reterr);
        n += r >= 0;
    }
    r = hzp_sample_log_query_end(&q, r);
    hzp_lock_release(&log->lock);
    for (int32_t i = 0; i < n && r < 0; i++)
        hzp_sample_destroy(ret[i]);
    return r < 0 ? r : n;
}

/* --- Sessions: who taught what ---------------------------------------------------------------- */

static const char noting[] = "noting a session";

/* Forgets the session whose newest sample is the oldest, if there are too many. */
static int make_room(struct hzp_sample_log *log, struct hzp_err_text *reterr)
{
    int64_t count = 0, oldest = 0;
    HZP_TRY(hzp_sample_log_number(log, "SELECT count(*) FROM sessions", &count, reterr));
    if (count <= HZP_SESSIONS_MAX)
        return HZP_OK;
    HZP_TRY(hzp_sample_log_number(log, "SELECT min(newest) FROM sessions", &oldest, reterr));
    HZP_TRY(hzp_sample_log_change(log, "DELETE FROM sessions WHERE newest = ?1", noting, reterr,
                                  "i", oldest));
    /* If the transaction is rolled back, this one stays too large: sessions wait longer, not less.
     */
    log->forgotten = HZP_MAX(log->forgotten, oldest);
    return hzp_sample_log_change(log,
                                 "INSERT OR REPLACE INTO meta VALUES ('sessions_forgotten', ?1)",
                                 noting, reterr, "i", log->forgotten);
}

int hzp_sample_log_put_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                               struct hzp_err_text *reterr)
{
    /* One that is not kept may have been forgotten. */
    HZP_TRY(hzp_sample_log_change(
        log,
        "INSERT INTO sessions (newest, name) VALUES (?1, ?2) ON CONFLICT (name) DO"
        " UPDATE SET newest = max(newest, excluded.newest)",
        noting, reterr, "it", HZP_MAX(newest, log->forgotten), name));
    return make_room(log, reterr);
}

int hzp_sample_log_note_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                                struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, noting, reterr);
    if (r >= 0)
        r = hzp_sample_log_put_session(log, name, newest, reterr);
    return hzp_sample_log_end(log, r, noting, reterr);
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

/* Notes: short texts by name, in the log's table of what it belongs to. */

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
    if (!value)
        return hzp_sample_log_change(log, "DELETE FROM meta WHERE key = ?1", "writing", reterr, "t",
                                     name);
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

char *hzp_sample_log_whole_note(struct hzp_sample_log *log, const char *name)
{
    char *ret = NULL;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q = hzp_sample_log_query(log, "SELECT value FROM meta WHERE key = ?1",
                                                 "reading", NULL, "t", name);
    if (hzp_sample_log_next(&q) && sqlite3_column_type(q.s, 0) != SQLITE_NULL)
        ret = strdup((const char *)sqlite3_column_text(q.s, 0));
    hzp_sample_log_query_end(&q, HZP_OK);
    return ret;
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
