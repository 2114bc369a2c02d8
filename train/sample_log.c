/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sample_log.h"

#include "base/arena.h"
#include "base/thread.h"

#include <limits.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    APPLICATION_ID = 0x485a5053, /* "HZPS": the application id that SQLite stores in the file */
    SCHEMA_VERSION = 1,
    IDS_UNSEEN = 4096, /* versions published but not yet journalled, at most: as many as the store
               * keeps */
};

/* A sample's tokens are stored as 4-byte little-endian words, followed by one bit per token:
 * learn. */
static const char schema[] =
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE samples (sequence_number INTEGER PRIMARY KEY, count INTEGER NOT NULL,"
    " data BLOB NOT NULL);"
    "CREATE TABLE versions (id INTEGER PRIMARY KEY, optimizer_step INTEGER NOT NULL,"
    " published_unix_ms INTEGER NOT NULL, loss REAL, checksum INTEGER NOT NULL,"
    " learned_through INTEGER NOT NULL, learned_more INTEGER NOT NULL, learned BLOB NOT NULL);"
    "CREATE TABLE checkpoints (id INTEGER PRIMARY KEY, learned_through INTEGER NOT NULL,"
    " name TEXT NOT NULL);";

enum statement { APPEND, READ, VERSION, CHECKPOINT, CHECKPOINTS, FORGET, STATEMENTS };

static const char *const statement_sql[STATEMENTS] = {
    [APPEND] = "INSERT INTO samples VALUES (?1, ?2, ?3)",
    [READ] = ("SELECT sequence_number, count, data FROM samples WHERE sequence_number > ?1"
              " ORDER BY sequence_number LIMIT ?2"),
    [VERSION] = "INSERT INTO versions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    [CHECKPOINT] = "INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3)",
    [CHECKPOINTS] = "SELECT id, learned_through, name FROM checkpoints ORDER BY id DESC LIMIT ?1",
    [FORGET] = "DELETE FROM checkpoints WHERE id = ?1",
};

struct hzp_sample_log {
    /* fixed after open */
    char *path;
    sqlite3 *db;
    sqlite3_stmt *statement[STATEMENTS];
    /* under lock */
    struct hzp_lock lock;
    int64_t last;          /* newest sequence number; 0: none */
    int64_t versions_from; /* first version id of this process; 0: not chosen yet */
    bool version_missing;  /* a version of this process could not be journalled */
};

struct hzp_sample *hzp_sample_create(const int32_t *token, const uint8_t *learn, int32_t count)
{
    HZP_ASSERT(count >= 0);
    size_t head = HZP_ROUND_UP(sizeof(struct hzp_sample), sizeof(int32_t));
    struct hzp_sample *sample = malloc(head + (size_t)count * (sizeof(int32_t) + 1));
    if (!sample)
        return NULL;
    sample->sequence_number = 0;
    sample->count = count;
    sample->token = (int32_t *)((char *)sample + head);
    sample->learn = (uint8_t *)(sample->token + count);
    if (count) {
        memcpy(sample->token, token, (size_t)count * sizeof(int32_t));
        memcpy(sample->learn, learn, (size_t)count);
    }
    return sample;
}

void hzp_sample_destroy(struct hzp_sample *sample)
{
    free(sample);
}

/* --- SQLite's errors as HZP codes ------------------------------------------------------------- */

static int fail_code(struct hzp_sample_log *log, int code, const char *what,
                     struct hzp_err_text *reterr)
{
    switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return hzp_fail(reterr, HZP_EFORMAT, "%s: the sample log is damaged (%s: %s)", log->path,
                        what, sqlite3_errmsg(log->db));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return hzp_fail(reterr, HZP_EBUSY, "%s: the sample log is in use by another process",
                        log->path);
    case SQLITE_CANTOPEN:
        return hzp_fail(reterr, HZP_ENOENT, "%s: cannot open the sample log: %s", log->path,
                        sqlite3_errmsg(log->db));
    default:
        return hzp_fail(reterr, HZP_EIO, "%s: %s: %s", log->path, what, sqlite3_errmsg(log->db));
    }
}

static int exec(struct hzp_sample_log *log, const char *sql, const char *what,
                struct hzp_err_text *reterr)
{
    int code = sqlite3_exec(log->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? HZP_OK : fail_code(log, code, what, reterr);
}

/* Runs a query that returns one number; NULL reads as 0. */
static int query_number(struct hzp_sample_log *log, const char *sql, int64_t *ret,
                        struct hzp_err_text *reterr)
{
    sqlite3_stmt *s;
    int code = sqlite3_prepare_v2(log->db, sql, -1, &s, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_step(s);
        if (code == SQLITE_ROW)
            *ret = sqlite3_column_int64(s, 0);
        sqlite3_finalize(s);
    }
    return code == SQLITE_ROW ? HZP_OK : fail_code(log, code, "reading", reterr);
}

/* Runs a query that returns one text, cut to size; "" if there is no row. */
static int query_text(struct hzp_sample_log *log, const char *sql, char *ret, size_t size,
                      struct hzp_err_text *reterr)
{
    sqlite3_stmt *s;
    ret[0] = '\0';
    int code = sqlite3_prepare_v2(log->db, sql, -1, &s, NULL);
    if (code != SQLITE_OK)
        return fail_code(log, code, "reading", reterr);
    code = sqlite3_step(s);
    if (code == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(s, 0);
        size_t length = text ? strlen(text) : 0;
        length = HZP_MIN(length, size - 1);
        if (length)
            memcpy(ret, text, length);
        ret[length] = '\0';
    }
    sqlite3_finalize(s);
    return code == SQLITE_ROW || code == SQLITE_DONE ? HZP_OK
                                                     : fail_code(log, code, "reading", reterr);
}

/* --- Opening ---------------------------------------------------------------------------------- */

static int make_schema(struct hzp_sample_log *log, const char *fingerprint,
                       struct hzp_err_text *reterr)
{
    char pragma[96];
    HZP_TRY(exec(log, "BEGIN IMMEDIATE", "making the tables", reterr));
    HZP_TRY(exec(log, schema, "making the tables", reterr));
    sqlite3_stmt *s;
    int code =
        sqlite3_prepare_v2(log->db, "INSERT INTO meta VALUES ('fingerprint', ?1)", -1, &s, NULL);
    if (code == SQLITE_OK) {
        sqlite3_bind_text(s, 1, fingerprint, -1, SQLITE_STATIC);
        code = sqlite3_step(s);
        sqlite3_finalize(s);
    }
    if (code != SQLITE_DONE)
        return fail_code(log, code, "making the tables", reterr);
    sqlite3_snprintf(sizeof(pragma), pragma, "PRAGMA application_id=%d; PRAGMA user_version=%d",
                     APPLICATION_ID, SCHEMA_VERSION);
    HZP_TRY(exec(log, pragma, "making the tables", reterr));
    return exec(log, "COMMIT", "making the tables", reterr);
}

static int check_contents(struct hzp_sample_log *log, const char *fingerprint,
                          struct hzp_err_text *reterr)
{
    int64_t schema_version = 0, count = 0;
    char text[512];
    HZP_TRY(query_number(log, "PRAGMA user_version", &schema_version, reterr));
    if (schema_version != SCHEMA_VERSION)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "%s: the sample log has schema version %lld, this program reads %d",
                        log->path, (long long)schema_version, SCHEMA_VERSION);
    HZP_TRY(query_text(log, "PRAGMA quick_check(1)", text, sizeof(text), reterr));
    if (strcmp(text, "ok"))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: the sample log is damaged (%s)", log->path, text);
    HZP_TRY(query_text(log, "SELECT value FROM meta WHERE key = 'fingerprint'", text, sizeof(text),
                       reterr));
    if (strcmp(text, fingerprint))
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: the sample log belongs to another model (%s, this one is %s)",
                        log->path, text[0] ? text : "none named", fingerprint);
    HZP_TRY(query_number(log, "SELECT max(sequence_number) FROM samples", &log->last, reterr));
    HZP_TRY(query_number(log, "SELECT count(*) FROM samples", &count, reterr));
    if (count != log->last)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: the sample log is damaged (%lld samples, the last is number %lld)",
                        log->path, (long long)count, (long long)log->last);
    return HZP_OK;
}

static int open_database(struct hzp_sample_log *log, const char *fingerprint,
                         struct hzp_err_text *reterr)
{
    int code =
        sqlite3_open_v2(log->path, &log->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (!log->db)
        return hzp_fail(reterr, HZP_EIO, "%s: out of memory", log->path);
    if (code != SQLITE_OK)
        return fail_code(log, code, "opening", reterr);
    sqlite3_extended_result_codes(log->db, 1);
    sqlite3_busy_timeout(log->db, 500);
    /* Exclusive locking: two servers on one state directory would both learn every sample.  Reading
     * application_id takes the lock.  WAL with synchronous = FULL syncs once per commit. */
    int64_t application = 0, tables = 0;
    HZP_TRY(
        exec(log, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA trusted_schema=OFF", "opening", reterr));
    HZP_TRY(query_number(log, "SELECT count(*) FROM sqlite_master", &tables, reterr));
    HZP_TRY(query_number(log, "PRAGMA application_id", &application, reterr));
    if (tables && application != APPLICATION_ID)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: not a sample log", log->path);
    HZP_TRY(exec(log, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL", "opening", reterr));
    if (!tables)
        HZP_TRY(make_schema(log, fingerprint, reterr));
    HZP_TRY(check_contents(log, fingerprint, reterr));
    for (int i = 0; i < STATEMENTS; i++) {
        code = sqlite3_prepare_v3(log->db, statement_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                                  &log->statement[i], NULL);
        if (code != SQLITE_OK)
            return hzp_fail(reterr, HZP_EFORMAT, "%s: the sample log is damaged (%s)", log->path,
                            sqlite3_errmsg(log->db));
    }
    return HZP_OK;
}

int hzp_sample_log_open(const char *path, const char *fingerprint, struct hzp_sample_log **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_sample_log *log = hzp_xcalloc(1, sizeof(*log));
    log->path = hzp_xstrdup(path);
    hzp_lock_init(&log->lock, HZP_LOCK_LOG);
    int r = open_database(log, fingerprint, reterr);
    if (r < 0) {
        hzp_sample_log_close(log);
        return r;
    }
    *ret = log;
    return HZP_OK;
}

/* Orderly shutdown: if the last id is journalled, the next process continues after it and the mark
 * is removed; otherwise the mark stays. */
static void remove_mark(struct hzp_sample_log *log)
{
    int64_t newest = 0;
    if (log->versions_from && !log->version_missing &&
        query_number(log, "SELECT max(id) FROM versions", &newest, NULL) == HZP_OK &&
        newest >= log->versions_from)
        exec(log, "DELETE FROM meta WHERE key = 'versions_from'", "closing", NULL);
}

void hzp_sample_log_close(struct hzp_sample_log *log)
{
    if (!log)
        return;
    remove_mark(log);
    for (int i = 0; i < STATEMENTS; i++)
        sqlite3_finalize(log->statement[i]);
    sqlite3_close(log->db);
    hzp_lock_fini(&log->lock);
    free(log->path);
    free(log);
}

/* --- Samples ---------------------------------------------------------------------------------- */

static size_t blob_size(int32_t count)
{
    return (size_t)count * 4 + HZP_DIV_UP((size_t)count, 8);
}

static void pack_sample(const struct hzp_sample *sample, uint8_t *blob)
{
    for (int32_t i = 0; i < sample->count; i++) {
        uint32_t token = (uint32_t)sample->token[i];
        for (int b = 0; b < 4; b++)
            *blob++ = (uint8_t)(token >> 8 * b);
    }
    memset(blob, 0, HZP_DIV_UP((size_t)sample->count, 8));
    for (int32_t i = 0; i < sample->count; i++)
        blob[i / 8] |= (uint8_t)((sample->learn[i] ? 1 : 0) << i % 8);
}

static void unpack_sample(const uint8_t *blob, struct hzp_sample *sample)
{
    for (int32_t i = 0; i < sample->count; i++, blob += 4)
        sample->token[i] = (int32_t)((uint32_t)blob[0] | (uint32_t)blob[1] << 8 |
                                     (uint32_t)blob[2] << 16 | (uint32_t)blob[3] << 24);
    for (int32_t i = 0; i < sample->count; i++)
        sample->learn[i] = blob[i / 8] >> i % 8 & 1;
}

static int append_one(struct hzp_sample_log *log, int64_t number, const struct hzp_sample *sample,
                      struct hzp_err_text *reterr)
{
    sqlite3_stmt *s = log->statement[APPEND];
    size_t size = blob_size(sample->count);
    uint8_t *blob = malloc(size + 1);
    if (!blob || size > INT_MAX) {
        free(blob);
        return hzp_fail(reterr, HZP_EIO, "%s: out of memory for a sample of %d tokens", log->path,
                        sample->count);
    }
    pack_sample(sample, blob);
    sqlite3_bind_int64(s, 1, number);
    sqlite3_bind_int64(s, 2, sample->count);
    sqlite3_bind_blob(s, 3, blob, (int)size, free);
    int code = sqlite3_step(s);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return code == SQLITE_DONE ? HZP_OK : fail_code(log, code, "adding a sample", reterr);
}

int hzp_sample_log_append(struct hzp_sample_log *log, struct hzp_sample **sample, int32_t count,
                          int64_t *ret_first, struct hzp_err_text *reterr)
{
    hzp_lock_take(&log->lock);
    int64_t first = log->last + 1;
    int r = exec(log, "BEGIN IMMEDIATE", "adding samples", reterr);
    if (r < 0)
        goto out;
    for (int32_t i = 0; i < count && r >= 0; i++)
        r = append_one(log, first + i, sample[i], reterr);
    if (r >= 0)
        r = exec(log, "COMMIT", "committing samples", reterr);
    if (r < 0) {
        sqlite3_exec(log->db, "ROLLBACK", NULL, NULL, NULL);
        goto out;
    }
    for (int32_t i = 0; i < count; i++)
        sample[i]->sequence_number = first + i;
    log->last += count;
    *ret_first = first;
out:
    hzp_lock_release(&log->lock);
    return r;
}

static int read_one(struct hzp_sample_log *log, sqlite3_stmt *s, struct hzp_sample **ret,
                    struct hzp_err_text *reterr)
{
    int64_t number = sqlite3_column_int64(s, 0), count = sqlite3_column_int64(s, 1);
    int size = sqlite3_column_bytes(s, 2);
    if (count < 0 || count > INT_MAX / 8 || (size_t)size != blob_size((int32_t)count))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: sample %lld is damaged", log->path,
                        (long long)number);
    size_t head = sizeof(struct hzp_sample);
    struct hzp_sample *sample = malloc(head + (size_t)count * 5);
    if (!sample)
        return hzp_fail(reterr, HZP_EIO, "%s: out of memory for sample %lld", log->path,
                        (long long)number);
    sample->sequence_number = number;
    sample->count = (int32_t)count;
    sample->token = (int32_t *)((char *)sample + head);
    sample->learn = (uint8_t *)(sample->token + count);
    if (count)
        unpack_sample(sqlite3_column_blob(s, 2), sample);
    *ret = sample;
    return HZP_OK;
}

int32_t hzp_sample_log_read(struct hzp_sample_log *log, int64_t after, int32_t max,
                            struct hzp_sample **ret, struct hzp_err_text *reterr)
{
    int r = HZP_OK, code = SQLITE_DONE;
    int32_t n = 0;
    hzp_lock_take(&log->lock);
    sqlite3_stmt *s = log->statement[READ];
    sqlite3_bind_int64(s, 1, after);
    sqlite3_bind_int64(s, 2, max);
    while (n < max && r >= 0 && (code = sqlite3_step(s)) == SQLITE_ROW) {
        r = read_one(log, s, &ret[n], reterr);
        if (r >= 0)
            n++;
    }
    if (r >= 0 && code != SQLITE_DONE && code != SQLITE_ROW)
        r = fail_code(log, code, "reading samples", reterr);
    sqlite3_reset(s);
    hzp_lock_release(&log->lock);
    if (r >= 0)
        return n;
    while (n > 0)
        hzp_sample_destroy(ret[--n]);
    return r;
}

/* --- Versions and checkpoints ----------------------------------------------------------------- */

static int run_once(struct hzp_sample_log *log, sqlite3_stmt *s, const char *what,
                    struct hzp_err_text *reterr)
{
    int code = sqlite3_step(s);
    int r = code == SQLITE_DONE ? HZP_OK : fail_code(log, code, what, reterr);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return r;
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
    hzp_lock_take(&log->lock);
    sqlite3_stmt *s = log->statement[VERSION];
    sqlite3_bind_int64(s, 1, (int64_t)record->id);
    sqlite3_bind_int64(s, 2, record->optimizer_step);
    sqlite3_bind_int64(s, 3, record->published_unix_ms);
    if (isfinite(record->loss))
        sqlite3_bind_double(s, 4, record->loss);
    else
        sqlite3_bind_null(s, 4);
    sqlite3_bind_int64(s, 5, (int64_t)record->checksum);
    sqlite3_bind_int64(s, 6, record->learned_through);
    sqlite3_bind_int64(s, 7, record->learned.more);
    sqlite3_bind_blob(s, 8, range, ranges * 2 * (int)sizeof(range[0]), SQLITE_TRANSIENT);
    int r = run_once(log, s, "adding a version", reterr);
    log->version_missing = log->version_missing || r < 0;
    hzp_lock_release(&log->lock);
    return r;
}

static void read_record(sqlite3_stmt *s, struct hzp_version_record *ret)
{
    int64_t pair[2];
    int32_t ranges = sqlite3_column_bytes(s, 7) / (int32_t)sizeof(pair);
    const char *blob = sqlite3_column_blob(s, 7);
    *ret = (struct hzp_version_record){
        .id = (uint64_t)sqlite3_column_int64(s, 0),
        .optimizer_step = sqlite3_column_int64(s, 1),
        .state = HZP_VERSION_FREE,
        .published_unix_ms = sqlite3_column_int64(s, 2),
        .loss = sqlite3_column_type(s, 3) == SQLITE_NULL ? NAN : sqlite3_column_double(s, 3),
        .checksum = (uint64_t)sqlite3_column_int64(s, 4),
        .learned_through = sqlite3_column_int64(s, 5),
        .learned.more = sqlite3_column_int64(s, 6) != 0 || ranges > HZP_LEARNED_MAX,
        .learned.ranges = HZP_MIN(ranges, HZP_LEARNED_MAX)};
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
                              " learned_through, learned_more, learned FROM versions"
                              " WHERE id < ?1 ORDER BY id DESC LIMIT ?2";
    sqlite3_stmt *s;
    int32_t n = 0;
    hzp_lock_take(&log->lock);
    int code = sqlite3_prepare_v2(log->db, sql, -1, &s, NULL);
    if (code == SQLITE_OK) {
        sqlite3_bind_int64(s, 1, (int64_t)HZP_MIN(below, (uint64_t)INT64_MAX));
        sqlite3_bind_int(s, 2, max);
        while (n < max && (code = sqlite3_step(s)) == SQLITE_ROW)
            read_record(s, &ret[n++]);
        sqlite3_finalize(s);
    }
    bool read = code == SQLITE_ROW || code == SQLITE_DONE || code == SQLITE_OK;
    int r = read ? HZP_OK : fail_code(log, code, "reading versions", reterr);
    hzp_lock_release(&log->lock);
    return r < 0 ? r : n;
}

int hzp_sample_log_checkpoint(struct hzp_sample_log *log, uint64_t id, int64_t learned_through,
                              const char *name, struct hzp_err_text *reterr)
{
    hzp_lock_take(&log->lock);
    sqlite3_stmt *s = log->statement[CHECKPOINT];
    sqlite3_bind_int64(s, 1, (int64_t)id);
    sqlite3_bind_int64(s, 2, learned_through);
    sqlite3_bind_text(s, 3, name, -1, SQLITE_TRANSIENT);
    int r = run_once(log, s, "adding a checkpoint", reterr);
    hzp_lock_release(&log->lock);
    return r;
}

int32_t hzp_sample_log_checkpoints(struct hzp_sample_log *log, struct hzp_logged_checkpoint *ret,
                                   int32_t max, struct hzp_err_text *reterr)
{
    int code = SQLITE_DONE;
    int32_t n = 0;
    hzp_lock_take(&log->lock);
    sqlite3_stmt *s = log->statement[CHECKPOINTS];
    sqlite3_bind_int64(s, 1, max);
    while (n < max && (code = sqlite3_step(s)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(s, 2);
        ret[n].id = (uint64_t)sqlite3_column_int64(s, 0);
        ret[n].learned_through = sqlite3_column_int64(s, 1);
        snprintf(ret[n].name, sizeof(ret[n].name), "%s", name ? name : "");
        n++;
    }
    int r = code == SQLITE_DONE || code == SQLITE_ROW
                ? n
                : fail_code(log, code, "reading checkpoints", reterr);
    sqlite3_reset(s);
    hzp_lock_release(&log->lock);
    return r;
}

int hzp_sample_log_forget_checkpoint(struct hzp_sample_log *log, uint64_t id,
                                     struct hzp_err_text *reterr)
{
    hzp_lock_take(&log->lock);
    sqlite3_bind_int64(log->statement[FORGET], 1, (int64_t)id);
    int r = run_once(log, log->statement[FORGET], "removing a checkpoint", reterr);
    hzp_lock_release(&log->lock);
    return r;
}

static int compare_ranges(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

/* Counts the samples with numbers above `after` that the journalled versions learned from.  This
 * includes versions contained in the checkpoint: a sample with only some of its passes done is
 * offered again with all of them. */
static int count_retrain(struct hzp_sample_log *log, int64_t after, int64_t *ret,
                         struct hzp_err_text *reterr)
{
    int64_t *range = NULL, ranges = 0, room = 0, total = 0, end = after;
    sqlite3_stmt *s;
    int code = sqlite3_prepare_v2(log->db, "SELECT learned FROM versions", -1, &s, NULL);
    if (code != SQLITE_OK)
        return fail_code(log, code, "reading versions", reterr);
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        int64_t n = sqlite3_column_bytes(s, 0) / (int)(2 * sizeof(*range));
        const char *blob = sqlite3_column_blob(s, 0);
        for (int64_t i = 0; i < n; i++) {
            int64_t pair[2];
            memcpy(pair, blob + (size_t)i * sizeof(pair), sizeof(pair));
            if (pair[1] <= after)
                continue;
            if (ranges == room) {
                room = HZP_MAX(64, 2 * room);
                range = hzp_xrealloc(range, (size_t)room * sizeof(pair));
            }
            memcpy(&range[2 * ranges++], pair, sizeof(pair));
        }
    }
    sqlite3_finalize(s);
    if (ranges)
        qsort(range, (size_t)ranges, 2 * sizeof(*range), compare_ranges);
    for (int64_t i = 0; i < ranges; i++) {
        int64_t first = HZP_MAX(range[2 * i], end + 1), last = range[2 * i + 1];
        if (last >= first) {
            total += last - first + 1;
            end = last;
        }
    }
    free(range);
    if (code != SQLITE_DONE)
        return fail_code(log, code, "reading versions", reterr);
    *ret = total;
    return HZP_OK;
}

/* Versions are journalled after they are published, so a killed process may have shown clients
 * versions that are in no table.  It left a mark: the id of its first version.  The next process
 * then skips as many ids as may have been published without being journalled, and writes its own
 * mark before it publishes anything. */
static int choose_version_id(struct hzp_sample_log *log, int64_t newest, uint64_t *ret,
                             struct hzp_err_text *reterr)
{
    int64_t mark = 0;
    char sql[128];
    if (!log->versions_from) {
        HZP_TRY(query_number(log,
                             "SELECT max(CAST(value AS INTEGER)) FROM meta"
                             " WHERE key = 'versions_from'",
                             &mark, reterr));
        int64_t next = mark ? HZP_MAX(newest, mark) + IDS_UNSEEN : newest + 1;
        sqlite3_snprintf(sizeof(sql), sql,
                         "INSERT OR REPLACE INTO meta VALUES "
                         "('versions_from', '%lld')",
                         (long long)next);
        HZP_TRY(exec(log, sql, "beginning to count versions", reterr));
        log->versions_from = next;
    }
    *ret = (uint64_t)HZP_MAX(newest + 1, log->versions_from);
    return HZP_OK;
}

static int read_resume(struct hzp_sample_log *log, uint64_t ids_used,
                       struct hzp_sample_log_resume *ret, struct hzp_err_text *reterr)
{
    int64_t number = 0;
    HZP_TRY(query_number(log, "SELECT max(id) FROM checkpoints", &number, reterr));
    ret->checkpoint_id = (uint64_t)number;
    ret->learned_through = -1;
    if (number)
        HZP_TRY(query_number(log,
                             "SELECT learned_through FROM checkpoints ORDER BY id DESC LIMIT 1",
                             &ret->learned_through, reterr));
    HZP_TRY(query_text(log, "SELECT name FROM checkpoints ORDER BY id DESC LIMIT 1",
                       ret->checkpoint_name, sizeof(ret->checkpoint_name), reterr));
    HZP_TRY(query_number(log,
                         "SELECT max((SELECT ifnull(max(id), 0) FROM versions),"
                         " (SELECT ifnull(max(id), 0) FROM checkpoints))",
                         &number, reterr));
    number = HZP_MAX(number, (int64_t)HZP_MIN(ids_used, (uint64_t)INT64_MAX / 2));
    HZP_TRY(choose_version_id(log, number, &ret->next_version_id, reterr));
    ret->last_sequence_number = log->last;
    return count_retrain(log, HZP_MAX(ret->learned_through, 0), &ret->retrain_count, reterr);
}

int hzp_sample_log_resume(struct hzp_sample_log *log, uint64_t ids_used,
                          struct hzp_sample_log_resume *ret, struct hzp_err_text *reterr)
{
    struct hzp_sample_log_resume resume = {0};
    hzp_lock_take(&log->lock);
    int r = read_resume(log, ids_used, &resume, reterr);
    hzp_lock_release(&log->lock);
    if (r >= 0)
        *ret = resume;
    return r;
}
