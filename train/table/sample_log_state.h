/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_log_state.h - the log's struct and its ways to SQLite, private to the files
 * that implement it.
 *
 * Thread: the caller holds the lock, or is the only thread that knows the log, while it is opened.
 */
#pragma once

#include "base/thread.h"
#include "train/table/sample_log.h"

#include <sqlite3.h>

enum { HZP_LOG_KEPT = 64 };

struct hzp_sample_log {
    /* fixed after open */
    char *path;
    char *fingerprint; /* set for a log that may be made later; NULL: for another */
    /* under lock */
    struct hzp_lock lock;
    sqlite3 *db;
    struct {
        const char *sql; /* known by its address */
        sqlite3_stmt *statement;
    } kept[HZP_LOG_KEPT];    /* prepared so far; the rest is zero */
    bool no_tables;          /* the file had none when it was opened */
    bool unmade;             /* it is in memory: */
    struct hzp_err_text why; /* why its file could not be made */
    int64_t last;            /* newest sequence number; 0: none */
    int64_t versions_from;   /* first version id of this process; 0: not chosen yet */
    bool version_missing;    /* a version of this process could not be journalled */
    int64_t forgotten;       /* the newest sample that a session not kept may have taught */
};

/* What each version of the schema added, the oldest first: sample_log.sql, of which the build makes
 * C. */
struct hzp_log_schema {
    int version;
    const char *sql;
};
extern const struct hzp_log_schema hzp_log_schemas[];
extern const int hzp_log_schema_count;

/* An error for SQLite's code; what: the action that failed, for the text. */
int hzp_sample_log_fail_code(struct hzp_sample_log *log, int code, const char *what,
                             struct hzp_err_text *reterr);

/* Runs statements without results. */
int hzp_sample_log_exec(struct hzp_sample_log *log, const char *sql, const char *what,
                        struct hzp_err_text *reterr);

/* The rows of a statement that was begun. */
struct hzp_log_rows {
    struct hzp_sample_log *log;
    sqlite3_stmt *s; /* whose columns are the current row's; NULL: it cannot be run */
    const char *what;
    struct hzp_err_text *reterr;
    int code; /* of the newest step, or of what failed before */
};

/* Begins a statement, which is static, with ?1 and so on: a letter each in `types`, i: an int64_t;
 * r: a double, NULL where it is not finite; t: a text, NULL where there is none; b: bytes, and
 * behind them their number as an int.  All are borrowed until the end, which must follow. */
struct hzp_log_rows hzp_sample_log_query(struct hzp_sample_log *log, const char *sql,
                                         const char *what, struct hzp_err_text *reterr,
                                         const char *types, ...);
/* Goes to the next row; false: there is none, or it failed. */
bool hzp_sample_log_next(struct hzp_log_rows *rows);
/* Returns r, which counts or is an error so far, or the error of a step.  HZP_EFORMAT: the log
 * lacks what the statement names. */
int hzp_sample_log_query_end(struct hzp_log_rows *rows, int r);
/* Runs a statement that returns no rows, with values as above. */
int hzp_sample_log_change(struct hzp_sample_log *log, const char *sql, const char *what,
                          struct hzp_err_text *reterr, const char *types, ...);
/* The text in a column, cut to size; "" where it is NULL. */
void hzp_sample_log_column(sqlite3_stmt *s, int column, char *ret, size_t size);

/* Takes the lock and begins a transaction.  After an error, too, end must follow. */
int hzp_sample_log_begin(struct hzp_sample_log *log, const char *what, struct hzp_err_text *reterr);
/* Ends it: commits it if r is no error, and releases the lock.  Returns r, or the error of that. */
int hzp_sample_log_end(struct hzp_sample_log *log, int r, const char *what,
                       struct hzp_err_text *reterr);

/* Runs a query, which is static, that returns one number; NULL reads as 0. */
int hzp_sample_log_number(struct hzp_sample_log *log, const char *sql, int64_t *ret,
                          struct hzp_err_text *reterr);

/* Runs a query, which is static, that returns one text, cut to size; "" if there is no row. */
int hzp_sample_log_text(struct hzp_sample_log *log, const char *sql, char *ret, size_t size,
                        struct hzp_err_text *reterr);

/* Opens the database in `file`, or makes its tables; the log's path is for errors.  After a
 * failure, too, close_database has to be called. */
int hzp_sample_log_open_database(struct hzp_sample_log *log, const char *file,
                                 const char *fingerprint, struct hzp_err_text *reterr);
void hzp_sample_log_close_database(struct hzp_sample_log *log);

/* Under lock: makes the file of a log that is in memory.  After a failure it still is. */
int hzp_sample_log_make(struct hzp_sample_log *log, struct hzp_err_text *reterr);

/* Under lock: as hzp_sample_log_set_note. */
int hzp_sample_log_put_note(struct hzp_sample_log *log, const char *name, const char *value,
                            struct hzp_err_text *reterr);

/* Under lock, in a transaction: as hzp_sample_log_note_session. */
int hzp_sample_log_put_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                               struct hzp_err_text *reterr);

/* Under lock, in a transaction: samples first .. last are a lesson. */
int hzp_sample_log_put_lesson(struct hzp_sample_log *log, int64_t first, int64_t last,
                              const char *session, struct hzp_err_text *reterr);
/* Under lock: sets the lessons of samples, which are in the order of their numbers. */
int hzp_sample_log_find_lessons(struct hzp_sample_log *log, struct hzp_sample *const *sample,
                                int32_t count, struct hzp_err_text *reterr);

/* The sample in the current row of sequence_number, count, data, checksum; the caller's.
 * HZP_EFORMAT: it is damaged. */
int hzp_sample_log_read_row(struct hzp_sample_log *log, sqlite3_stmt *s, struct hzp_sample **ret,
                            struct hzp_err_text *reterr);
