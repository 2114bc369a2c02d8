/* SPDX-License-Identifier: Apache-2.0 */
#include "train/table/sample_log_state.h"

#include "base/hash.h"

#include <sys/stat.h>

enum {
    APPLICATION_ID = 0x485a5053, /* "HZPS": the application id that SQLite stores in the file */
    BODY_KEPT_MS = 86400000,     /* how long a body's key is known: a day */
};

/* The version that sample_log.sql makes. */
static int newest_schema(void)
{
    return hzp_log_schemas[hzp_log_schema_count - 1].version;
}

#define NEWEST_CHECKPOINT "(SELECT name FROM checkpoints ORDER BY id DESC LIMIT 1)"

static const char sql_read[] =
    "SELECT sequence_number, count, data, checksum, softs, done, learned FROM samples"
    " LEFT JOIN passes ON name = " NEWEST_CHECKPOINT " AND passes.last >= sequence_number"
    " AND passes.first = (SELECT max(first) FROM passes WHERE name = " NEWEST_CHECKPOINT
    " AND first <= sequence_number)"
    " WHERE sequence_number > ?1"
    " AND sequence_number NOT IN (SELECT sequence_number FROM failed)"
    " AND NOT EXISTS (SELECT 1 FROM marks WHERE marks.last >= sequence_number"
    " AND marks.first <= sequence_number)"
    " ORDER BY sequence_number LIMIT ?2";

/* A sample with room for its arrays; NULL: out of memory. */
static struct hzp_sample *sample_alloc(int32_t count, bool weighted, bool losses, int32_t softs)
{
    size_t n = (size_t)count, words = 1 + weighted + losses * HZP_ROW_LOSS_WORDS;
    size_t more = (size_t)softs * HZP_SOFT_WORDS;
    struct hzp_sample *sample = malloc(sizeof(*sample) + 4 * (n * words + more) + n);
    if (!sample)
        return NULL;
    sample->sequence_number = 0;
    sample->passes = 0;
    sample->learned = false;
    sample->count = count;
    sample->token = (int32_t *)(void *)(sample + 1);
    sample->weight = weighted ? (float *)(void *)(sample->token + count) : NULL;
    sample->how = losses ? (void *)(sample->token + (1 + weighted) * n) : NULL;
    sample->soft = softs ? (void *)(sample->token + words * n) : NULL;
    sample->softs = softs;
    sample->learn = (uint8_t *)(sample->token + words * n + more);
    return sample;
}

static int32_t count_softs(const uint8_t *learn, const struct hzp_row_loss *how, int32_t count)
{
    int32_t n = 0;
    for (int32_t i = 1; how && i < count; i++)
        n += learn[i] && how[i].kind == HZP_LOSS_SOFT;
    return n;
}

struct hzp_sample *hzp_sample_create_soft(const int32_t *token, const uint8_t *learn,
                                          const float *weight, const struct hzp_row_loss *how,
                                          const struct hzp_soft *soft, int32_t count)
{
    int32_t softs = count_softs(learn, how, count);
    HZP_ASSERT(count >= 0 && (soft || !softs));
    bool weighted = false;
    for (int32_t i = 0; weight && i < count; i++)
        weighted |= learn[i] && weight[i] != 1;
    struct hzp_sample *sample = sample_alloc(count, weighted, how && count, softs);
    if (!sample || !count)
        return sample;
    memcpy(sample->token, token, (size_t)count * sizeof(*token));
    memcpy(sample->learn, learn, (size_t)count);
    for (int32_t i = 0; weighted && i < count; i++)
        sample->weight[i] = learn[i] ? weight[i] : 1;
    for (int32_t i = 0; how && i < count; i++)
        sample->how[i] = learn[i] ? how[i] : (struct hzp_row_loss){.inv_temperature = 1};
    if (softs)
        memcpy(sample->soft, soft, (size_t)softs * sizeof(*soft));
    return sample;
}

void hzp_sample_destroy(struct hzp_sample *sample)
{
    free(sample);
}

/* --- SQLite's errors as HZP codes ------------------------------------------------------------- */

int hzp_sample_log_fail_code(struct hzp_sample_log *log, int code, const char *what,
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

int hzp_sample_log_exec(struct hzp_sample_log *log, const char *sql, const char *what,
                        struct hzp_err_text *reterr)
{
    int code = sqlite3_exec(log->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? HZP_OK : hzp_sample_log_fail_code(log, code, what, reterr);
}

/* --- Statements ------------------------------------------------------------------------------- */

static void bind(sqlite3_stmt *s, const char *types, va_list values)
{
    for (int i = 1; *types; i++, types++)
        if (*types == 'i') {
            sqlite3_bind_int64(s, i, va_arg(values, int64_t));
        } else if (*types == 't') { /* NULL binds NULL */
            sqlite3_bind_text(s, i, va_arg(values, const char *), -1, SQLITE_STATIC);
        } else if (*types == 'b') {
            const void *bytes = va_arg(values, const void *);
            sqlite3_bind_blob(s, i, bytes, va_arg(values, int), SQLITE_STATIC);
        } else {
            double real = va_arg(values, double);
            if (isfinite(real)) /* else it is NULL, as all are before */
                sqlite3_bind_double(s, i, real);
        }
}

/* Prepares the statement, unless that was done before. */
static int prepare(struct hzp_sample_log *log, const char *sql, sqlite3_stmt **ret,
                   struct hzp_err_text *reterr)
{
    int i = 0;
    while (i < HZP_LOG_KEPT && log->kept[i].sql && log->kept[i].sql != sql)
        i++;
    HZP_ASSERT(i < HZP_LOG_KEPT);
    if (!log->kept[i].sql) {
        int code = sqlite3_prepare_v3(log->db, sql, -1, SQLITE_PREPARE_PERSISTENT,
                                      &log->kept[i].statement, NULL);
        if (code != SQLITE_OK)
            return hzp_sample_log_fail_code(log, code == SQLITE_ERROR ? SQLITE_CORRUPT : code,
                                            "reading the tables", reterr);
        log->kept[i].sql = sql;
    }
    *ret = log->kept[i].statement;
    return HZP_OK;
}

struct hzp_log_rows hzp_sample_log_query(struct hzp_sample_log *log, const char *sql,
                                         const char *what, struct hzp_err_text *reterr,
                                         const char *types, ...)
{
    struct hzp_log_rows rows = {.log = log, .what = what, .reterr = reterr};
    va_list values;
    rows.code = prepare(log, sql, &rows.s, reterr);
    if (!rows.s)
        return rows;
    va_start(values, types);
    bind(rows.s, types, values);
    va_end(values);
    return rows;
}

bool hzp_sample_log_next(struct hzp_log_rows *rows)
{
    if (rows->s)
        rows->code = sqlite3_step(rows->s);
    return rows->s && rows->code == SQLITE_ROW;
}

int hzp_sample_log_query_end(struct hzp_log_rows *rows, int r)
{
    int code = rows->code;
    if (!rows->s)
        return code;
    if (r >= 0 && code != SQLITE_OK && code != SQLITE_ROW && code != SQLITE_DONE)
        r = hzp_sample_log_fail_code(rows->log, code, rows->what, rows->reterr);
    sqlite3_reset(rows->s);
    sqlite3_clear_bindings(rows->s);
    return r;
}

int hzp_sample_log_change(struct hzp_sample_log *log, const char *sql, const char *what,
                          struct hzp_err_text *reterr, const char *types, ...)
{
    struct hzp_log_rows rows = {.log = log, .what = what, .reterr = reterr};
    va_list values;
    HZP_TRY(prepare(log, sql, &rows.s, reterr));
    va_start(values, types);
    bind(rows.s, types, values);
    va_end(values);
    hzp_sample_log_next(&rows);
    return hzp_sample_log_query_end(&rows, HZP_OK);
}

void hzp_sample_log_column(sqlite3_stmt *s, int column, char *ret, size_t size)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    snprintf(ret, size, "%s", text ? text : "");
}

int hzp_sample_log_number(struct hzp_sample_log *log, const char *sql, int64_t *ret,
                          struct hzp_err_text *reterr)
{
    struct hzp_log_rows q = hzp_sample_log_query(log, sql, "reading", reterr, "");
    if (hzp_sample_log_next(&q))
        *ret = sqlite3_column_int64(q.s, 0);
    return hzp_sample_log_query_end(&q, HZP_OK);
}

int hzp_sample_log_text(struct hzp_sample_log *log, const char *sql, char *ret, size_t size,
                        struct hzp_err_text *reterr)
{
    struct hzp_log_rows q = hzp_sample_log_query(log, sql, "reading", reterr, "");
    ret[0] = '\0';
    if (hzp_sample_log_next(&q))
        hzp_sample_log_column(q.s, 0, ret, size);
    return hzp_sample_log_query_end(&q, HZP_OK);
}

int hzp_sample_log_begin(struct hzp_sample_log *log, const char *what, struct hzp_err_text *reterr)
{
    hzp_lock_take(&log->lock);
    return hzp_sample_log_exec(log, "BEGIN IMMEDIATE", what, reterr);
}

int hzp_sample_log_end(struct hzp_sample_log *log, int r, const char *what,
                       struct hzp_err_text *reterr)
{
    if (r >= 0)
        r = hzp_sample_log_exec(log, "COMMIT", what, reterr);
    if (r < 0)
        sqlite3_exec(log->db, "ROLLBACK", NULL, NULL, NULL);
    hzp_lock_release(&log->lock);
    return r;
}

/* --- Opening ---------------------------------------------------------------------------------- */

/* Makes the tables (from: 0), or those of an earlier version into these. */
static int make_tables(struct hzp_sample_log *log, int64_t from, const char *fingerprint,
                       struct hzp_err_text *reterr)
{
    const char *what = from ? "upgrading the tables" : "making the tables";
    char pragma[96];
    HZP_TRY(hzp_sample_log_exec(log, "BEGIN IMMEDIATE", what, reterr));
    for (int i = 0; i < hzp_log_schema_count; i++)
        if (hzp_log_schemas[i].version > from)
            HZP_TRY(hzp_sample_log_exec(log, hzp_log_schemas[i].sql, what, reterr));
    if (!from)
        HZP_TRY(hzp_sample_log_change(log, "INSERT INTO meta VALUES ('fingerprint', ?1)", what,
                                      reterr, "t", fingerprint));
    sqlite3_snprintf(sizeof(pragma), pragma, "PRAGMA application_id=%d; PRAGMA user_version=%d",
                     APPLICATION_ID, newest_schema());
    HZP_TRY(hzp_sample_log_exec(log, pragma, what, reterr));
    return hzp_sample_log_exec(log, "COMMIT", what, reterr);
}

static int check_contents(struct hzp_sample_log *log, const char *fingerprint,
                          struct hzp_err_text *reterr)
{
    int64_t schema_version = 0, count = 0, before = 0;
    char text[512];
    HZP_TRY(hzp_sample_log_number(log, "PRAGMA user_version", &schema_version, reterr));
    if (schema_version < 1 || schema_version > newest_schema())
        return hzp_fail(reterr, HZP_EUNSUP,
                        "%s: the sample log has schema version %lld, this program reads up to %d",
                        log->path, (long long)schema_version, newest_schema());
    HZP_TRY(hzp_sample_log_text(log, "PRAGMA quick_check(1)", text, sizeof(text), reterr));
    if (strcmp(text, "ok"))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: the sample log is damaged (%s)", log->path, text);
    HZP_TRY(hzp_sample_log_text(log, "SELECT value FROM meta WHERE key = 'fingerprint'", text,
                                sizeof(text), reterr));
    if (fingerprint && strcmp(text, fingerprint))
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: the sample log belongs to another model (%s, this one is %s)",
                        log->path, text[0] ? text : "none named", fingerprint);
    if (schema_version < newest_schema())
        HZP_TRY(make_tables(log, schema_version, NULL, reterr));
    HZP_TRY(
        hzp_sample_log_number(log, "SELECT max(sequence_number) FROM samples", &log->last, reterr));
    HZP_TRY(hzp_sample_log_number(log, "SELECT count(*) FROM samples", &count, reterr));
    HZP_TRY(hzp_sample_log_number(
        log, "SELECT max(CAST(value AS INTEGER)) FROM meta WHERE key = 'samples_after'", &before,
        reterr));
    log->last = HZP_MAX(log->last, before);
    HZP_TRY(hzp_sample_log_number(log,
                                  "SELECT max(CAST(value AS INTEGER)) FROM meta"
                                  " WHERE key = 'sessions_forgotten'",
                                  &log->forgotten, reterr));
    log->forgotten = HZP_MAX(log->forgotten, before);
    if (count != log->last - before)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: the sample log is damaged (%lld samples, the last is number %lld)",
                        log->path, (long long)count, (long long)log->last);
    return HZP_OK;
}

int hzp_sample_log_open_database(struct hzp_sample_log *log, const char *file,
                                 const char *fingerprint, struct hzp_err_text *reterr)
{
    int create = fingerprint ? SQLITE_OPEN_CREATE : 0;
    int code =
        sqlite3_open_v2(file, &log->db, SQLITE_OPEN_READWRITE | create | SQLITE_OPEN_NOMUTEX, NULL);
    if (!log->db)
        return hzp_fail(reterr, HZP_EIO, "%s: out of memory", log->path);
    if (code != SQLITE_OK)
        return hzp_sample_log_fail_code(log, code, "opening", reterr);
    sqlite3_extended_result_codes(log->db, 1);
    sqlite3_busy_timeout(log->db, 500);
    /* Exclusive locking: two servers on one state directory would both learn every sample.  Reading
     * application_id takes the lock.  WAL with synchronous = FULL syncs once per commit. */
    int64_t application = 0, tables = 0;
    HZP_TRY(hzp_sample_log_exec(log, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA trusted_schema=OFF",
                                "opening", reterr));
    HZP_TRY(hzp_sample_log_number(log, "SELECT count(*) FROM sqlite_master", &tables, reterr));
    HZP_TRY(hzp_sample_log_number(log, "PRAGMA application_id", &application, reterr));
    if (application != APPLICATION_ID && (tables || !fingerprint))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: not a sample log", log->path);
    log->no_tables = !tables;
    HZP_TRY(hzp_sample_log_exec(log,
                                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                                " PRAGMA secure_delete=ON",
                                "opening", reterr));
    if (!tables)
        HZP_TRY(make_tables(log, 0, fingerprint, reterr));
    HZP_TRY(check_contents(log, fingerprint, reterr));
    sqlite3_stmt *reads; /* nearly all tables */
    return prepare(log, sql_read, &reads, reterr);
}

bool hzp_sample_log_lost(const char *path)
{
    struct stat st;
    return stat(path, &st) < 0 ? errno == ENOENT : !st.st_size;
}

int hzp_sample_log_open(const char *path, const char *fingerprint, struct hzp_sample_log **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_sample_log *log = hzp_xcalloc(1, sizeof(*log));
    log->path = hzp_xstrdup(path);
    hzp_lock_init(&log->lock, HZP_LOCK_LOG);
    int r = hzp_sample_log_open_database(log, path, fingerprint, reterr);
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
        hzp_sample_log_number(log, "SELECT max(id) FROM versions", &newest, NULL) == HZP_OK &&
        newest >= log->versions_from)
        hzp_sample_log_exec(log, "DELETE FROM meta WHERE key = 'versions_from'", "closing", NULL);
}

void hzp_sample_log_close_database(struct hzp_sample_log *log)
{
    for (int i = 0; i < HZP_LOG_KEPT; i++)
        sqlite3_finalize(log->kept[i].statement);
    sqlite3_close(log->db);
    memset(log->kept, 0, sizeof(log->kept));
    log->db = NULL;
}

void hzp_sample_log_close(struct hzp_sample_log *log)
{
    if (!log)
        return;
    remove_mark(log);
    hzp_sample_log_close_database(log);
    hzp_lock_fini(&log->lock);
    free(log->path);
    free(log->fingerprint);
    free(log);
}

/* --- Samples ---------------------------------------------------------------------------------- */

/* The four sizes of a row with so many soft targets differ, so they say what is in it. */
static size_t blob_size(int32_t count, bool weighted, bool losses, int32_t softs)
{
    size_t words = 1 + weighted + losses * HZP_ROW_LOSS_WORDS;
    return (size_t)count * 4 * words + HZP_DIV_UP((size_t)count, 8) +
           (size_t)softs * sizeof(struct hzp_soft);
}

/* False: no row of so many tokens has this size. */
static bool parts_of(int32_t count, int32_t softs, size_t size, bool *ret_weighted,
                     bool *ret_losses)
{
    for (int i = 0; i < 4; i++)
        if (size == blob_size(count, i & 1, i & 2, softs)) {
            *ret_weighted = count && i & 1;
            *ret_losses = count && i & 2;
            return true;
        }
    return false;
}

/* Words of the machine, and of four little-endian bytes each; both return what is behind. */
static uint8_t *pack_words(const void *word, int32_t count, uint8_t *blob)
{
    for (int32_t i = 0; i < count; i++) {
        uint32_t value;
        memcpy(&value, (const char *)word + 4 * (size_t)i, sizeof(value));
        for (int b = 0; b < 4; b++)
            *blob++ = (uint8_t)(value >> 8 * b);
    }
    return blob;
}

static const uint8_t *unpack_words(const uint8_t *blob, int32_t count, void *word)
{
    for (int32_t i = 0; i < count; i++, blob += 4) {
        uint32_t value = (uint32_t)blob[0] | (uint32_t)blob[1] << 8 | (uint32_t)blob[2] << 16 |
                         (uint32_t)blob[3] << 24;
        memcpy((char *)word + 4 * (size_t)i, &value, sizeof(value));
    }
    return blob;
}

static void pack_sample(const struct hzp_sample *sample, uint8_t *blob)
{
    size_t bits = HZP_DIV_UP((size_t)sample->count, 8);
    blob = pack_words(sample->token, sample->count, blob);
    memset(blob, 0, bits);
    for (int32_t i = 0; i < sample->count; i++)
        blob[i / 8] |= (uint8_t)((sample->learn[i] ? 1 : 0) << i % 8);
    blob += bits;
    if (sample->weight)
        blob = pack_words(sample->weight, sample->count, blob);
    if (sample->how)
        blob = pack_words(sample->how, HZP_ROW_LOSS_WORDS * sample->count, blob);
    pack_words(sample->soft, HZP_SOFT_WORDS * sample->softs, blob);
}

static void unpack_sample(const uint8_t *blob, struct hzp_sample *sample)
{
    blob = unpack_words(blob, sample->count, sample->token);
    for (int32_t i = 0; i < sample->count; i++)
        sample->learn[i] = blob[i / 8] >> i % 8 & 1;
    blob += HZP_DIV_UP((size_t)sample->count, 8);
    if (sample->weight)
        blob = unpack_words(blob, sample->count, sample->weight);
    if (sample->how)
        blob = unpack_words(blob, HZP_ROW_LOSS_WORDS * sample->count, sample->how);
    unpack_words(blob, HZP_SOFT_WORDS * sample->softs, sample->soft);
}

static int64_t row_checksum(int64_t number, int64_t count, int64_t softs, const void *blob,
                            size_t size)
{
    const int64_t head[] = {number, count + (softs << 32)};
    return (int64_t)hzp_fnv(hzp_fnv(HZP_FNV, head, sizeof(head)), blob, size);
}

static int append_one(struct hzp_sample_log *log, int64_t number, const struct hzp_sample *sample,
                      struct hzp_err_text *reterr)
{
    size_t size = blob_size(sample->count, sample->weight, sample->how, sample->softs);
    uint8_t *blob = malloc(size + 1);
    if (!blob || size > INT_MAX) {
        free(blob);
        return hzp_fail(reterr, HZP_EIO, "%s: out of memory for a sample of %d tokens", log->path,
                        sample->count);
    }
    pack_sample(sample, blob);
    int r = hzp_sample_log_change(
        log, "INSERT INTO samples VALUES (?1, ?2, ?3, ?4, ?5)", "adding a sample", reterr, "iibii",
        number, (int64_t)sample->count, blob, (int)size,
        row_checksum(number, sample->count, sample->softs, blob, size), (int64_t)sample->softs);
    free(blob);
    return r;
}

/* Under lock: as hzp_sample_log_find_body. */
static int find_body(struct hzp_sample_log *log, const struct hzp_body_key *key, int64_t *ret_first,
                     int64_t *ret_count, struct hzp_err_text *reterr)
{
    int r = 0;
    if (!key->key)
        return 0;
    struct hzp_log_rows q =
        hzp_sample_log_query(log, "SELECT digest, first, count FROM bodies WHERE key = ?1",
                             "reading bodies", reterr, "t", key->key);
    bool found = hzp_sample_log_next(&q);
    if (found && sqlite3_column_int64(q.s, 0) != (int64_t)key->digest) {
        r = hzp_fail(reterr, HZP_EINVAL, "the idempotency key \"%s\" came with another body before",
                     key->key);
    } else if (found) {
        *ret_first = sqlite3_column_int64(q.s, 1);
        *ret_count = sqlite3_column_int64(q.s, 2);
        r = 1;
    }
    return hzp_sample_log_query_end(&q, r);
}

int hzp_sample_log_find_body(struct hzp_sample_log *log, const struct hzp_body_key *key,
                             int64_t *ret_first, int64_t *ret_count, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    return find_body(log, key, ret_first, ret_count, reterr);
}

static int add_body(struct hzp_sample_log *log, const struct hzp_body_key *key, int64_t first,
                    int32_t count, struct hzp_err_text *reterr)
{
    int64_t now = hzp_unix_ms();
    HZP_TRY(hzp_sample_log_change(log, "DELETE FROM bodies WHERE unix_ms < ?1", "forgetting bodies",
                                  reterr, "i", now - BODY_KEPT_MS));
    return hzp_sample_log_change(log, "INSERT INTO bodies VALUES (?1, ?2, ?3, ?4, ?5)",
                                 "adding a body", reterr, "tiiii", key->key, (int64_t)key->digest,
                                 first, (int64_t)count, now);
}

int hzp_sample_log_add_body(struct hzp_sample_log *log, const struct hzp_body_key *key,
                            int64_t number, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&log->lock);
    return add_body(log, key, number, 0, reterr);
}

/* Under lock, in a transaction. */
static int append_all(struct hzp_sample_log *log, struct hzp_sample **sample, int32_t count,
                      const struct hzp_body_key *key, int64_t *ret_first,
                      struct hzp_err_text *reterr)
{
    int64_t first = log->last + 1, before;
    if (key) {
        int r = find_body(log, key, ret_first, &before, reterr);
        if (r)
            return r;
        if (key->key)
            HZP_TRY(add_body(log, key, first, count, reterr));
        if (key->session)
            HZP_TRY(hzp_sample_log_put_session(log, key->session, first + count - 1, reterr));
        if (key->note)
            HZP_TRY(hzp_sample_log_change(log, "INSERT OR REPLACE INTO meta VALUES (?1, ?2 || ?3)",
                                          "adding a note", reterr, "tti", key->note, key->note_text,
                                          first));
    }
    for (int32_t i = 0; i < count; i++)
        HZP_TRY(append_one(log, first + i, sample[i], reterr));
    if (count)
        HZP_TRY(hzp_sample_log_put_lesson(log, first, first + count - 1, key ? key->session : NULL,
                                          reterr));
    HZP_TRY(hzp_sample_log_exec(log, "COMMIT", "committing samples", reterr));
    for (int32_t i = 0; i < count; i++) {
        sample[i]->sequence_number = first + i;
        sample[i]->lesson = first;
    }
    log->last += count;
    *ret_first = first;
    return HZP_OK;
}

int hzp_sample_log_append_once(struct hzp_sample_log *log, struct hzp_sample **sample,
                               int32_t count, const struct hzp_body_key *key, int64_t *ret_first,
                               struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, "adding samples", reterr);
    if (r >= 0) {
        r = append_all(log, sample, count, key, ret_first, reterr);
        if (r != HZP_OK)
            sqlite3_exec(log->db, "ROLLBACK", NULL, NULL, NULL);
    }
    hzp_lock_release(&log->lock);
    return r;
}

/* The row of the current result, as sql_read selects it. */
static bool is_sound(sqlite3_stmt *s)
{
    int64_t number = sqlite3_column_int64(s, 0), count = sqlite3_column_int64(s, 1);
    size_t size = (size_t)sqlite3_column_bytes(s, 2);
    int64_t softs = sqlite3_column_int64(s, 4);
    bool weighted, losses;
    if (count < 0 || count > INT_MAX / 44 || softs < 0 || softs > count ||
        !parts_of((int32_t)count, (int32_t)softs, size, &weighted, &losses) || (softs && !losses))
        return false;
    return sqlite3_column_type(s, 3) == SQLITE_NULL ||
           sqlite3_column_int64(s, 3) ==
               row_checksum(number, count, softs, sqlite3_column_blob(s, 2), size);
}

int hzp_sample_log_read_row(struct hzp_sample_log *log, sqlite3_stmt *s, struct hzp_sample **ret,
                            struct hzp_err_text *reterr)
{
    int64_t number = sqlite3_column_int64(s, 0), count = sqlite3_column_int64(s, 1);
    if (!is_sound(s))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: sample %lld is damaged", log->path,
                        (long long)number);
    bool weighted, losses;
    int32_t softs = sqlite3_column_int(s, 4);
    parts_of((int32_t)count, softs, (size_t)sqlite3_column_bytes(s, 2), &weighted, &losses);
    struct hzp_sample *sample = sample_alloc((int32_t)count, weighted, losses, softs);
    if (!sample)
        return hzp_fail(reterr, HZP_EIO, "%s: out of memory for sample %lld", log->path,
                        (long long)number);
    sample->sequence_number = number;
    if (count)
        unpack_sample(sqlite3_column_blob(s, 2), sample);
    *ret = sample;
    return HZP_OK;
}

int64_t hzp_sample_log_last(struct hzp_sample_log *log)
{
    HZP_LOCKED(&log->lock);
    return log->last;
}

int hzp_sample_log_begin_after(struct hzp_sample_log *log, int64_t last,
                               struct hzp_err_text *reterr)
{
    char sql[128];
    HZP_ASSERT(log->last == 0);
    sqlite3_snprintf(sizeof(sql), sql, "INSERT INTO meta VALUES ('samples_after', '%lld')",
                     (long long)last);
    HZP_LOCKED(&log->lock);
    int r = hzp_sample_log_exec(log, sql, "beginning to count samples", reterr);
    log->last = log->forgotten = r < 0 ? 0 : last;
    return r;
}

int hzp_sample_log_find_damaged(struct hzp_sample_log *log, int64_t after, int64_t *ret,
                                struct hzp_err_text *reterr)
{
    *ret = 0;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql_read, "reading samples", reterr, "ii", after, (int64_t)-1);
    while (!*ret && hzp_sample_log_next(&q))
        if (!is_sound(q.s))
            *ret = sqlite3_column_int64(q.s, 0);
    return hzp_sample_log_query_end(&q, HZP_OK);
}

int32_t hzp_sample_log_read(struct hzp_sample_log *log, int64_t after, int32_t max,
                            struct hzp_sample **ret, struct hzp_err_text *reterr)
{
    int32_t n = 0;
    int r = HZP_OK;
    hzp_lock_take(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql_read, "reading samples", reterr, "ii", after, (int64_t)max);
    while (n < max && r >= 0 && hzp_sample_log_next(&q)) {
        r = hzp_sample_log_read_row(log, q.s, &ret[n], reterr);
        if (r < 0)
            break;
        ret[n]->passes = sqlite3_column_int(q.s, 5); /* NULL reads as 0 */
        ret[n++]->learned = sqlite3_column_int(q.s, 6);
    }
    r = hzp_sample_log_query_end(&q, r);
    if (r >= 0)
        r = hzp_sample_log_find_lessons(log, ret, n, reterr);
    hzp_lock_release(&log->lock);
    if (r >= 0)
        return n;
    while (n > 0)
        hzp_sample_destroy(ret[--n]);
    return r;
}

int hzp_sample_log_fail(struct hzp_sample_log *log, const int64_t *number, int32_t count,
                        int64_t optimizer_step, struct hzp_err_text *reterr)
{
    int r = hzp_sample_log_begin(log, "marking samples", reterr);
    for (int32_t i = 0; i < count && r >= 0; i++)
        r = hzp_sample_log_change(log, "INSERT OR REPLACE INTO failed VALUES (?1, ?2, ?3)",
                                  "marking samples", reterr, "iii", number[i], optimizer_step,
                                  hzp_unix_ms());
    return hzp_sample_log_end(log, r, "marking samples", reterr);
}

int32_t hzp_sample_log_failed(struct hzp_sample_log *log, int64_t first, int64_t last, int64_t *ret,
                              int32_t max, int64_t *ret_count, struct hzp_err_text *reterr)
{
    static const char sql[] =
        "SELECT sequence_number FROM failed WHERE sequence_number BETWEEN ?1 AND ?2"
        " ORDER BY sequence_number";
    int32_t n = 0;
    int64_t count = 0;
    HZP_LOCKED(&log->lock);
    struct hzp_log_rows q =
        hzp_sample_log_query(log, sql, "reading failed samples", reterr, "ii", first, last);
    for (; hzp_sample_log_next(&q); count++)
        if (n < max)
            ret[n++] = sqlite3_column_int64(q.s, 0);
    n = hzp_sample_log_query_end(&q, n);
    if (ret_count)
        *ret_count = count;
    return n;
}
