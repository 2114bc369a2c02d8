/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/row_table.h - which answers of a job each consumer has had: leases.
 *
 * A row is a member's answer, whose columns become ready one by one.  A consumer (a judge, say)
 * takes rows that have the columns it asks for, under a lease with a limit in time, and says when
 * it is done with the lease.  Invariants, for each consumer: a row is under at most
 * one open lease; a lease is done, or runs out, with all its rows; a row is given again if its
 * lease ran out, and never if its lease is done; where groups are asked for, a lease has all rows
 * of a group that are not lost, or none of them.
 *
 * Bounds: HZP_ROWS_MAX rows, HZP_CONSUMERS_MAX names in a job, HZP_LEASES_MAX open leases.
 *
 * Thread: the owner's.
 */
#pragma once

#include "base/err.h"
#include "base/json.h"

enum { HZP_ROWS_MAX = 4096, HZP_CONSUMERS_MAX = 16, HZP_CONSUMER_NAME = 64, HZP_LEASES_MAX = 256 };
enum { HZP_ROW_WHOLE = 1 << 30 };

/* The owner writes the first four before a call that reads them, and zeroes a row that becomes
 * another answer's. */
struct hzp_row {
    int64_t number; /* the answer's; 0: there is none, or it is lost */
    int64_t order;  /* 0 or more; larger: fresher */
    uint32_t ready; /* its columns, as bits; HZP_ROW_WHOLE: no member of its group is open */
    int32_t tokens; /* its prompt and its answer have so many */
    uint32_t done;  /* consumers, as bits */
    int64_t lease[HZP_CONSUMERS_MAX]; /* the newest of each; 0: none */
};

struct hzp_lease {
    int64_t id;
    uint64_t until_ns; /* 0: it ran out, or its job has ended */
    int32_t consumer;
    bool done;
};

struct hzp_rows {
    int32_t groups, members;          /* 0: no job runs */
    struct hzp_row row[HZP_ROWS_MAX]; /* [groups][members] */
    char consumer[HZP_CONSUMERS_MAX][HZP_CONSUMER_NAME];
    int32_t consumers, named; /* the first `named` have to be done with each row */
    struct hzp_lease lease[HZP_LEASES_MAX];
    int64_t last_lease;
    uint64_t given, expired; /* leases */
};

static inline bool hzp_is_consumer(const char *name)
{
    return name && *name && strlen(name) < HZP_CONSUMER_NAME;
}

/* Ends a job, whose leases are over, and begins one, in which these consumers (a list of names, or
 * NULL) have to have each row. */
void hzp_rows_begin(struct hzp_rows *t, int32_t groups, int32_t members, const json_t *named);

struct hzp_rows_query {
    const char *consumer;
    int32_t count, tokens; /* at most so many rows, with so many tokens */
    uint32_t columns;      /* all of them are ready; with HZP_ROW_WHOLE rows come by groups */
    bool newest;           /* the freshest first; otherwise the smallest number first */
    uint64_t lease_ns;
};
/* Writes the indices of rows that are under a lease now, t->last_lease if there are any, a group's
 * beside each other; returns how many.  HZP_EBUSY: too many consumers or leases; HZP_EINVAL: not
 * even one row, or group, fits. */
int hzp_rows_take(struct hzp_rows *t, const struct hzp_rows_query *query, uint64_t now_ns,
                  int32_t *ret, struct hzp_err_text *reterr);

/* The lease is done; again: no effect.  HZP_EUNSUP: it has run out. */
int hzp_rows_done(struct hzp_rows *t, int64_t lease, uint64_t now_ns, struct hzp_err_text *reterr);
/* Whether the row (NULL: any) is under this lease.  HZP_EUNSUP: not, or not any more. */
int hzp_rows_check(struct hzp_rows *t, const struct hzp_row *row, int64_t lease, uint64_t now_ns,
                   struct hzp_err_text *reterr);

/* Whether a consumer that the job names is still to have one of the group's rows. */
bool hzp_rows_wanted(const struct hzp_rows *t, int32_t group);
