/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_log_marks.c - samples that are not learned any more, names of versions, and
 * the activation of an older one. */
#include "train/table/sample_log_state.h"

static const char what[] = "changing the tables";

/* --- Marks ------------------------------------------------------------------------------------ */

static int add_mark(struct hzp_sample_log *log, const struct hzp_mark *m,
                    struct hzp_err_text *reterr)
{
    return hzp_sample_log_change(log, "INSERT INTO marks VALUES (?1, ?2, ?3, ?4, ?5)", what, reterr,
                                 "iiiii", m->first, m->last, (int64_t)m->kind, (int64_t)m->version,
                                 hzp_unix_ms());
}

int hzp_sample_log_add_marks(struct hzp_sample_log *log, const struct hzp_mark *mark, int32_t count,
                             struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, "marking samples", reterr);
    for (int32_t i = 0; i < count && r >= 0; i++)
        r = add_mark(log, &mark[i], reterr);
    return hzp_sample_log_end(log, r, what, reterr);
}

int32_t hzp_sample_log_marks(struct hzp_sample_log *log, struct hzp_mark **ret,
                             struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT first, last, kind, version FROM marks ORDER BY first, last";
    struct hzp_mark *mark = NULL;
    int32_t n = 0, room = 0;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q = hzp_sample_log_query(log, sql, "reading marks", reterr, "");
    while (hzp_sample_log_next(&q)) {
        mark = hzp_xgrow(mark, &room, n + 1, sizeof(*mark));
        mark[n++] = (struct hzp_mark){.first = sqlite3_column_int64(q.s, 0),
                                      .last = sqlite3_column_int64(q.s, 1),
                                      .kind = (enum hzp_mark_kind)sqlite3_column_int(q.s, 2),
                                      .version = (uint64_t)sqlite3_column_int64(q.s, 3)};
    }
    n = hzp_sample_log_query_end(&q, n);
    if (n < 0)
        free(mark);
    else
        *ret = mark;
    return n;
}

/* --- Names ------------------------------------------------------------------------------------ */

int hzp_sample_log_set_name(struct hzp_sample_log *log, const char *name, uint64_t id,
                            struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    return id ? hzp_sample_log_change(log, "INSERT OR REPLACE INTO names VALUES (?1, ?2, ?3)", what,
                                      reterr, "tii", name, (int64_t)id, hzp_unix_ms())
              : hzp_sample_log_change(log, "DELETE FROM names WHERE name = ?1", what, reterr, "t",
                                      name);
}

int32_t hzp_sample_log_names(struct hzp_sample_log *log, struct hzp_version_name *ret, int32_t max,
                             struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT name, id, unix_ms FROM names ORDER BY name LIMIT ?1";
    int32_t n = 0;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql, "reading names", reterr, "i", (int64_t)max);
    while (n < max && hzp_sample_log_next(&q)) {
        hzp_sample_log_column(q.s, 0, ret[n].name, sizeof(ret[n].name));
        ret[n].id = (uint64_t)sqlite3_column_int64(q.s, 1);
        ret[n++].unix_ms = sqlite3_column_int64(q.s, 2);
    }
    return hzp_sample_log_query_end(&q, n);
}

/* --- The way back ----------------------------------------------------------------------------- */

/* The row stays, so that numbers have no holes. */
static int erase(struct hzp_sample_log *log, int64_t number, uint64_t version,
                 struct hzp_err_text *reterr)
{
    struct hzp_mark mark = {number, number, HZP_MARK_DELETED, version};
    HZP_TRY(add_mark(log, &mark, reterr));
    /* texts of answers, also to this sample's prompt (api/learn/lessons.h) */
    HZP_TRY(
        hzp_sample_log_exec(log, "DELETE FROM meta WHERE key LIKE 'effect_texts-%'", what, reterr));
    return hzp_sample_log_change(
        log,
        "UPDATE samples SET count = 0, data = zeroblob(0), checksum = NULL, softs = 0"
        " WHERE sequence_number = ?1",
        what, reterr, "i", number);
}

/* The write-ahead log still has the tokens and texts of before, until it is emptied.  A full disk
 * does not keep a sample from being deleted: they go when the log is closed, or written over. */
static void empty_journal(struct hzp_sample_log *log)
{
    HZP_LOCKED(&log->lock);
    hzp_sample_log_exec(log, "PRAGMA wal_checkpoint(TRUNCATE)", what, NULL);
}

int hzp_sample_log_delete(struct hzp_sample_log *log, int64_t number, uint64_t version,
                          struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, "deleting a sample", reterr);
    if (r >= 0)
        r = erase(log, number, version, reterr);
    r = hzp_sample_log_end(log, r, what, reterr);
    if (r >= 0)
        empty_journal(log);
    return r;
}

/* Marks of samples that were skipped later than version `of`, which knows nothing of that. */
static int lift_marks(struct hzp_sample_log *log, const struct hzp_activation *a,
                      struct hzp_err_text *reterr)
{
    const int64_t kind = HZP_MARK_SKIPPED, of = (int64_t)a->of;
    const int64_t through = a->replay ? INT64_MAX : HZP_MAX(a->learned_through, 0);
    HZP_TRY(hzp_sample_log_change(
        log, "DELETE FROM marks WHERE kind = ?1 AND version > ?2 AND last <= ?3", what, reterr,
        "iii", kind, of, through));
    return hzp_sample_log_change(log,
                                 "UPDATE marks SET first = ?3 + 1"
                                 " WHERE kind = ?1 AND version > ?2 AND first <= ?3",
                                 what, reterr, "iii", kind, of, through);
}

/* Marks samples first .. last as skipped, but for those that are already. */
static int skip_samples(struct hzp_sample_log *log, int64_t first, int64_t last, uint64_t version,
                        struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT first, last FROM marks WHERE kind = ?1 AND last >= ?2"
                              " AND first <= ?3 ORDER BY first";
    struct hzp_log_rows q = hzp_sample_log_query(log, sql, "reading marks", reterr, "iii",
                                                 (int64_t)HZP_MARK_SKIPPED, first, last);
    int r = HZP_OK;
    struct hzp_mark mark = {.kind = HZP_MARK_SKIPPED, .version = version};
    /* What is inserted lies before the rows that are read next. */
    while (r >= 0 && first <= last && hzp_sample_log_next(&q)) {
        int64_t from = sqlite3_column_int64(q.s, 0), to = sqlite3_column_int64(q.s, 1);
        mark.first = first;
        mark.last = from - 1;
        if (mark.first <= mark.last)
            r = add_mark(log, &mark, reterr);
        first = HZP_MAX(first, to + 1);
    }
    r = hzp_sample_log_query_end(&q, r);
    mark.first = first;
    mark.last = last;
    return r >= 0 && first <= last ? add_mark(log, &mark, reterr) : r;
}

int hzp_sample_log_skip(struct hzp_sample_log *log, int64_t first, int64_t last, uint64_t version,
                        struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, "marking samples", reterr);
    if (r >= 0)
        r = skip_samples(log, first, last, version, reterr);
    return hzp_sample_log_end(log, r, what, reterr);
}

static int activate(struct hzp_sample_log *log, const struct hzp_activation *a,
                    struct hzp_err_text *reterr)
{
    const int64_t id = (int64_t)a->id;
    int64_t first = HZP_MAX(a->learned_through, 0) + 1;
    if (a->forget)
        HZP_TRY(erase(log, a->forget, a->id - 1, reterr));
    else if (a->undo_first)
        HZP_TRY(skip_samples(log, a->undo_first, a->undo_last, a->id, reterr));
    else
        HZP_TRY(lift_marks(log, a, reterr));
    if (a->skip_through >= first)
        HZP_TRY(skip_samples(log, first, a->skip_through, a->id, reterr));
    if (a->source)
        HZP_TRY(hzp_sample_log_change(log, "INSERT OR REPLACE INTO sources VALUES (?1, ?2)", what,
                                      reterr, "it", id, a->source));
    HZP_TRY(hzp_sample_log_change(
        log,
        "INSERT OR IGNORE INTO passes SELECT ?2, first, last, done, learned FROM passes"
        " WHERE name = (SELECT name FROM checkpoints WHERE id = ?1)",
        what, reterr, "it", (int64_t)a->of, a->checkpoint));
    return hzp_sample_log_change(log, "INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3)",
                                 what, reterr, "iit", id, a->learned_through, a->checkpoint);
}

int hzp_sample_log_source(struct hzp_sample_log *log, uint64_t id, char *ret, size_t size,
                          struct hzp_err_text *reterr)
{
    ret[0] = '\0';
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q = hzp_sample_log_query(
        log, "SELECT source FROM sources WHERE ?1 IN (id, 0)", "reading", reterr, "i", (int64_t)id);
    if (hzp_sample_log_next(&q))
        hzp_sample_log_column(q.s, 0, ret, size);
    return hzp_sample_log_query_end(&q, HZP_OK);
}

int hzp_sample_log_activate(struct hzp_sample_log *log, const struct hzp_activation *a,
                            struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, "activating a version", reterr);
    if (r >= 0)
        r = activate(log, a, reterr);
    r = hzp_sample_log_end(log, r, what, reterr);
    if (r >= 0 && a->forget)
        empty_journal(log);
    return r;
}

/* Whether the row's version learned from one of the samples; where it learned from more ranges than
 * a record keeps, from any after the first. */
static bool learned_from(sqlite3_stmt *s, int64_t first, int64_t last)
{
    int64_t pair[2];
    int ranges = sqlite3_column_bytes(s, 1) / (int)sizeof(pair);
    const char *blob = sqlite3_column_blob(s, 1);
    bool more = sqlite3_column_int(s, 2) != 0;
    for (int i = 0; i < ranges; i++) {
        memcpy(pair, blob + (size_t)i * sizeof(pair), sizeof(pair));
        if (last >= pair[0] && (first <= pair[1] || more))
            return true;
    }
    return false;
}

int32_t hzp_sample_log_before(struct hzp_sample_log *log, uint64_t version, int64_t first,
                              int64_t last, uint64_t *ret_learned, uint64_t *ret_root,
                              struct hzp_logged_checkpoint *ret, int32_t max,
                              struct hzp_err_text *reterr)
{
    static const char sql[] =
        /* A version that was not journalled before the process was killed is known by its
         * checkpoint, whose name says what it was made from. */
        "WITH RECURSIVE node (id, parent, learned, more) AS"
        " (SELECT id, parent, learned, learned_more FROM versions UNION ALL"
        " SELECT id, CAST(substr(name, 12) AS INTEGER), x'', 0 FROM checkpoints"
        " WHERE id NOT IN (SELECT id FROM versions)),"
        " line (id, parent) AS (SELECT id, parent FROM node WHERE id = ?1"
        " UNION SELECT n.id, n.parent FROM line JOIN node n ON n.id ="
        " CASE WHEN line.parent > 0 THEN line.parent WHEN line.parent < 0 THEN 0"
        " ELSE (SELECT max(id) FROM versions WHERE id < line.id) END)"
        " SELECT line.id, n.learned, n.more, c.learned_through, c.name FROM line"
        " JOIN node n ON n.id = line.id LEFT JOIN checkpoints c ON c.id = line.id"
        " ORDER BY line.id DESC";
    int32_t n = 0;
    *ret_learned = *ret_root = 0;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql, "reading versions", reterr, "i", (int64_t)version);
    while (hzp_sample_log_next(&q)) {
        *ret_root = (uint64_t)sqlite3_column_int64(q.s, 0);
        if (learned_from(q.s, first, last)) {
            *ret_learned = *ret_root;
            n = 0; /* the checkpoints so far are not older */
        } else if (sqlite3_column_type(q.s, 4) != SQLITE_NULL && n < max) {
            ret[n].id = *ret_root;
            ret[n].learned_through = sqlite3_column_int64(q.s, 3);
            hzp_sample_log_column(q.s, 4, ret[n].name, sizeof(ret[n].name));
            n++;
        }
    }
    return hzp_sample_log_query_end(&q, n);
}
