/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_log_versions.c - versions and checkpoints in the log, and where to continue.
 * */
#include "train/table/sample_log_state.h"

/* Versions published but not yet journalled, at most: as many as the store keeps. */
enum { IDS_UNSEEN = 4096 };

static double read_loss(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? NAN : sqlite3_column_double(s, column);
}

int hzp_sample_log_version(struct hzp_sample_log *log, const struct hzp_version_record *record,
                           struct hzp_err_text *reterr)
{
    int64_t range[2 * HZP_LEARNED_MAX];
    int32_t ranges = HZP_MIN(HZP_MAX(record->learned.ranges, 0), HZP_LEARNED_MAX);
    for (int32_t i = 0; i < ranges; i++) {
        range[2 * i] = record->learned.first[i];
        range[2 * i + 1] = record->learned.last[i];
    }
    HZP_LOCKED(&log->lock);
    int r = hzp_sample_log_change(
        log,
        "INSERT INTO versions (id, optimizer_step, published_unix_ms, loss, checksum,"
        " learned_through, learned_more, learned, parent, gate_before, gate_after,"
        " sites) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        "adding a version", reterr, "iiiriiibirri", (int64_t)record->id, record->optimizer_step,
        record->published_unix_ms, record->loss, (int64_t)record->checksum, record->learned_through,
        (int64_t)record->learned.more, range, ranges * 2 * (int)sizeof(range[0]),
        (int64_t)record->parent, record->gate_before, record->gate_after, (int64_t)record->sites);
    log->version_missing = log->version_missing || r < 0;
    return r;
}

static void read_record(sqlite3_stmt *s, struct hzp_version_record *ret)
{
    int64_t pair[2];
    int32_t ranges = sqlite3_column_bytes(s, 7) / (int32_t)sizeof(pair);
    const char *blob = sqlite3_column_blob(s, 7);
    *ret = (struct hzp_version_record){.id = (uint64_t)sqlite3_column_int64(s, 0),
                                       .optimizer_step = sqlite3_column_int64(s, 1),
                                       .state = HZP_VERSION_FREE,
                                       .published_unix_ms = sqlite3_column_int64(s, 2),
                                       .loss = read_loss(s, 3),
                                       .checksum = (uint64_t)sqlite3_column_int64(s, 4),
                                       .learned_through = sqlite3_column_int64(s, 5),
                                       .learned.more = sqlite3_column_int64(s, 6) != 0 ||
                                                       ranges > HZP_LEARNED_MAX,
                                       .learned.ranges = HZP_MIN(ranges, HZP_LEARNED_MAX),
                                       .parent = (uint64_t)sqlite3_column_int64(s, 8),
                                       .gate_before = read_loss(s, 9),
                                       .gate_after = read_loss(s, 10),
                                       .sites = (uint32_t)sqlite3_column_int64(s, 11)};
    for (int32_t i = 0; i < ret->learned.ranges; i++) {
        memcpy(pair, blob + (size_t)i * sizeof(pair), sizeof(pair));
        ret->learned.first[i] = pair[0];
        ret->learned.last[i] = pair[1];
    }
}

int32_t hzp_sample_log_read_versions(struct hzp_sample_log *log, uint64_t below, int32_t max,
                                     struct hzp_version_record *ret, struct hzp_err_text *reterr)
{
    static const char sql[] = "SELECT id, optimizer_step, published_unix_ms, loss, checksum,"
                              " learned_through, learned_more, learned, parent, gate_before,"
                              " gate_after, sites FROM versions"
                              " WHERE id < ?1 ORDER BY id DESC LIMIT ?2";
    int32_t n = 0;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql, "reading versions", reterr, "ii",
                             (int64_t)HZP_MIN(below, (uint64_t)INT64_MAX), (int64_t)max);
    while (n < max && hzp_sample_log_next(&q))
        read_record(q.s, &ret[n++]);
    return hzp_sample_log_query_end(&q, n);
}

/* Under lock, in a transaction. */
static int add_passes(struct hzp_sample_log *log, const char *name, const struct hzp_passes *passes,
                      int32_t count, struct hzp_err_text *reterr)
{
    for (int32_t i = 0; i < count; i++)
        HZP_TRY(hzp_sample_log_change(
            log, "INSERT OR REPLACE INTO passes VALUES (?1, ?2, ?3, ?4, ?5)", "adding passes",
            reterr, "tiiii", name, passes[i].first, passes[i].last, (int64_t)passes[i].done,
            (int64_t)passes[i].learned));
    return HZP_OK;
}

int hzp_sample_log_checkpoint(struct hzp_sample_log *log, uint64_t id, int64_t learned_through,
                              const char *name, const struct hzp_passes *passes, int32_t count,
                              struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, "adding a checkpoint", reterr);
    if (r >= 0) /* first, passes of checkpoints that the log does not have */
        r = hzp_sample_log_exec(
            log, "DELETE FROM passes WHERE name NOT IN (SELECT name FROM checkpoints)",
            "removing passes", reterr);
    if (r >= 0)
        r = add_passes(log, name, passes, count, reterr);
    if (r >= 0)
        r = hzp_sample_log_change(log, "INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3)",
                                  "adding a checkpoint", reterr, "iit", (int64_t)id,
                                  learned_through, name);
    return hzp_sample_log_end(log, r, "adding a checkpoint", reterr);
}

int32_t hzp_sample_log_checkpoints(struct hzp_sample_log *log, struct hzp_logged_checkpoint *ret,
                                   int32_t max, struct hzp_err_text *reterr)
{
    static const char sql[] =
        "SELECT id, learned_through, name FROM checkpoints ORDER BY id DESC LIMIT ?1";
    int32_t n = 0;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql, "reading checkpoints", reterr, "i", (int64_t)max);
    while (n < max && hzp_sample_log_next(&q)) {
        ret[n].id = (uint64_t)sqlite3_column_int64(q.s, 0);
        ret[n].learned_through = sqlite3_column_int64(q.s, 1);
        hzp_sample_log_column(q.s, 2, ret[n].name, sizeof(ret[n].name));
        n++;
    }
    return hzp_sample_log_query_end(&q, n);
}

int hzp_sample_log_forget_checkpoint(struct hzp_sample_log *log, uint64_t id,
                                     struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    return hzp_sample_log_change(log, "DELETE FROM checkpoints WHERE id = ?1",
                                 "removing a checkpoint", reterr, "i", (int64_t)id);
}

struct range {
    int64_t first, last;
};

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Counts the samples with numbers above `after` that the journalled versions after the checkpoint
 * learned from: those passes are done again. */
static int count_retrain(struct hzp_sample_log *log, uint64_t checkpoint, int64_t after,
                         int64_t *ret, struct hzp_err_text *reterr)
{
    struct range *range = NULL;
    int32_t ranges = 0, room = 0;
    struct hzp_log_rows q =
        hzp_sample_log_query(log, "SELECT learned FROM versions WHERE id > ?1", "reading versions",
                             reterr, "i", (int64_t)checkpoint);
    while (hzp_sample_log_next(&q)) {
        int32_t n = sqlite3_column_bytes(q.s, 0) / (int)sizeof(*range);
        range = hzp_xgrow(range, &room, ranges + n, sizeof(*range));
        if (n)
            memcpy(range + ranges, sqlite3_column_blob(q.s, 0), (size_t)n * sizeof(*range));
        ranges += n;
    }
    int r = hzp_sample_log_query_end(&q, HZP_OK);
    if (ranges)
        qsort(range, (size_t)ranges, sizeof(*range), compare_ranges);
    *ret = 0;
    for (int32_t i = 0; i < ranges; i++) {
        int64_t first = HZP_MAX(range[i].first, after + 1);
        *ret += HZP_MAX(range[i].last - first + 1, 0);
        after = HZP_MAX(after, range[i].last);
    }
    free(range);
    return r;
}

static int write_mark(struct hzp_sample_log *log, struct hzp_err_text *reterr)
{
    return hzp_sample_log_change(log, "INSERT OR REPLACE INTO meta VALUES ('versions_from', ?1)",
                                 "beginning to count versions", reterr, "i", log->versions_from);
}

int hzp_sample_log_mark(struct hzp_sample_log *log, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    int r = log->unmade ? hzp_sample_log_make(log, reterr) : HZP_OK;
    if (r == HZP_OK)
        r = write_mark(log, reterr);
    return r;
}

/* Versions are journalled after they are published, so a killed process may have shown clients
 * versions that are in no table.  It left a mark: the id of its first version.  The next process
 * then skips as many ids as may have been published without being journalled, and writes its own
 * mark before it publishes anything but its first version, whose weights it has from the log's
 * newest checkpoint, as the next process would have. */
static int choose_version_id(struct hzp_sample_log *log, int64_t newest,
                             struct hzp_sample_log_resume *ret, struct hzp_err_text *reterr)
{
    int64_t mark = 0;
    if (!log->versions_from) {
        HZP_TRY(hzp_sample_log_number(log,
                                      "SELECT max(CAST(value AS INTEGER)) FROM meta"
                                      " WHERE key = 'versions_from'",
                                      &mark, reterr));
        log->versions_from = mark ? HZP_MAX(newest, mark) + IDS_UNSEEN : newest + 1;
        ret->killed = mark > 0;
        int r = write_mark(log, &ret->why);
        ret->unmarked = r == HZP_EIO || log->unmade;
        if (log->unmade)
            ret->why = log->why;
        if (r < 0 && r != HZP_EIO)
            return hzp_fail(reterr, r, "%s", ret->why.text);
    }
    ret->next_version_id = (uint64_t)HZP_MAX(newest + 1, log->versions_from);
    return HZP_OK;
}

static int read_resume(struct hzp_sample_log *log, uint64_t ids_used,
                       struct hzp_sample_log_resume *ret, struct hzp_err_text *reterr)
{
    int64_t number = 0;
    HZP_TRY(hzp_sample_log_number(log, "SELECT max(id) FROM checkpoints", &number, reterr));
    ret->checkpoint_id = (uint64_t)number;
    ret->learned_through = -1;
    if (number)
        HZP_TRY(hzp_sample_log_number(
            log, "SELECT learned_through FROM checkpoints ORDER BY id DESC LIMIT 1",
            &ret->learned_through, reterr));
    HZP_TRY(hzp_sample_log_text(log, "SELECT name FROM checkpoints ORDER BY id DESC LIMIT 1",
                                ret->checkpoint_name, sizeof(ret->checkpoint_name), reterr));
    HZP_TRY(hzp_sample_log_number(log,
                                  "SELECT max((SELECT ifnull(max(id), 0) FROM versions),"
                                  " (SELECT ifnull(max(id), 0) FROM checkpoints))",
                                  &number, reterr));
    number = HZP_MAX(number, (int64_t)HZP_MIN(ids_used, (uint64_t)INT64_MAX / 2));
    HZP_TRY(choose_version_id(log, number, ret, reterr));
    ret->last_sequence_number = log->last;
    return count_retrain(log, ret->checkpoint_id, HZP_MAX(ret->learned_through, 0),
                         &ret->retrain_count, reterr);
}

int hzp_sample_log_resume(struct hzp_sample_log *log, uint64_t ids_used,
                          struct hzp_sample_log_resume *ret, struct hzp_err_text *reterr)
{
    struct hzp_sample_log_resume resume = {0};
    HZP_LOCKED(&log->lock);
    HZP_TRY(read_resume(log, ids_used, &resume, reterr));
    *ret = resume;
    return HZP_OK;
}
