/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/plan/plan_table.h - which shape a step gets, by its rows: what the search found, looked
 * up with no search.
 *
 * Each axis (decode rows, prompt rows, rows of training) is cut into a few buckets.  A step gets
 * the entry of the buckets nearest to it, by ratio; no rows of a kind is a bucket of its own, and
 * where the table has no entry for the three, the nearest entry there is.
 *
 * Thread: one builds it; then any.
 */
#ifndef HZP_NANOBATCH_PLAN_PLAN_TABLE_H
#define HZP_NANOBATCH_PLAN_PLAN_TABLE_H

#include "nanobatch/plan/shape.h"

enum { HZP_BUCKETS_MAX = 12, HZP_PLAN_ENTRIES_MAX = HZP_BUCKETS_MAX * HZP_BUCKETS_MAX * 4 };

struct hzp_plan_entry {
    int32_t decode, prefill,
        train; /* rows; train: of the micro-batch whose items ride along, 0: none */
    struct hzp_plan_shape shape;
    /* predicted, of this shape and of the sequential plan */
    double ns, plain_ns;             /* the step's duration */
    double serve_ns, plain_serve_ns; /* until what serves has ended */
    double rate, plain_rate; /* training done, over what the whole device does in that time */
    double goal_ns;          /* the step was to be no longer; 0: nothing trains */
    double confirmed; /* measured: how many times better than the sequential plan; 0: not run */
};

struct hzp_plan_table {
    struct hzp_plan_entry *entry; /* [entries] */
    int32_t entries, room;
    char sought[96]; /* what the search was told, in words; empty: it did not come to its end */
    /* made by hzp_plan_table_index */
    int32_t bucket[3][HZP_BUCKETS_MAX], buckets[3]; /* decode, prefill, train; ascending */
    int16_t cell[HZP_BUCKETS_MAX][HZP_BUCKETS_MAX][HZP_BUCKETS_MAX];
};

void hzp_plan_table_init(struct hzp_plan_table *table);
void hzp_plan_table_fini(struct hzp_plan_table *table);

/* Adds an entry, or replaces the one of the same rows; to be found it must be indexed.  HZP_EINVAL:
 * the shape is none; HZP_EBUSY: the table is full, or one axis has too many buckets. */
int hzp_plan_table_set(struct hzp_plan_table *table, const struct hzp_plan_entry *entry,
                       struct hzp_err_text *reterr);

/* Makes what was set ready to be found. */
void hzp_plan_table_index(struct hzp_plan_table *table);

/* The entry for a step of so many rows; NULL: the table is empty. */
const struct hzp_plan_entry *hzp_plan_table_find(const struct hzp_plan_table *table, int32_t decode,
                                                 int32_t prefill, int32_t train);

/* In chunks of how many rows training should go forward for the table's shapes: what most of those
 * want in which it rides; 0: none. */
int32_t hzp_plan_table_ride(const struct hzp_plan_table *table);

/* The lanes that its shapes name (hzp_plan_shape_lanes). */
uint32_t hzp_plan_table_lanes(const struct hzp_plan_table *table);

/* Whether it is one nano-batch on one lane, training in turn on the same and not riding. */
bool hzp_plan_shape_plain(const struct hzp_plan_shape *shape);

/* "1 nano-batch, one lane" and so on; text [160]. */
const char *hzp_plan_shape_text(const struct hzp_plan_shape *shape, char *text);

/* Steps whose shape was never run (confirmed 0) are run sequentially. */
void hzp_plan_table_drop_unproven(struct hzp_plan_table *table);

/* One line an entry. */
void hzp_plan_table_print(const struct hzp_plan_table *table, FILE *out);

#endif
