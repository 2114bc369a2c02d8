/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/time/tables.h - durations that `hzpserve search` measured on this device: of each op
 * alone, by rows and share of the device; of ops side by side, how much they slow each other down;
 * of handing work from lane to lane.  search/measure.h fills them, search/simulate.h reads them.
 *
 * Each op has curves:
 *     key             the op, and those arguments that do not change with the rows (a product's
 *                     other two sides, its flags and types); it selects the curve
 *     point           a size: x, rows or the dimension that is cut; for attention also y, the
 *                     positions that a row attends to on average; for exchanges between ranks x is
 *                     the bytes that a rank sends
 *     interpolation   linear between points, in y and then in x; beyond them extrapolated from the
 *                     last two, never below a quarter of the nearest
 *     missing key     the nearest curve of the op, scaled by the work of both (flops and
 *                     HZP_FLOPS_PER_BYTE times bytes); if the op has no curve, call_ns +
 *                     work / flops_per_ns by rates.h
 *
 * Side by side: rate = alone / together, of each of two classes of ops on shares of so many cores;
 * of three and more the product of the pairs' rates, as NanoFlow assumes (OSDI'25, section 4.1).
 *
 * Invariant: points are sorted by x, then y, no two alike; curves by key.
 * Thread: one at a time.
 */
#pragma once

#include "device/device.h"

enum { HZP_SHARES_MAX = 6 };

struct hzp_op_key {
    uint8_t op;
    /* bits.  Products: 1 trans_a, 2 trans_b, 4 accumulate, 8 bias; xent: 1 with dx; rmsnorm: 1
     * keeps rstd; rope: 1 appends */
    uint8_t flags;
    uint8_t type;  /* types of its first and last matrix: a + 8 c */
    uint8_t again; /* the matrix of weights was read by another nano-batch just before */
    int32_t a, b;  /* what else shapes it, 0: nothing */
};

struct hzp_op_size {
    double x, y;
    double work; /* flops + HZP_FLOPS_PER_BYTE x bytes: to scale by */
};

/* Which line of the table the op's time belongs to, and where on it. */
void hzp_op_describe(enum hzp_op op, const void *args, struct hzp_op_key *key,
                     struct hzp_op_size *size);

struct hzp_point {
    double x, y, work;
    double ns[HZP_SHARES_MAX]; /* by share, as in tables->cores; 0: not measured */
};

struct hzp_curve {
    struct hzp_op_key key;
    struct hzp_point *point;
    int32_t points, room;
};

struct hzp_rate {
    uint8_t a, b;             /* enum hzp_class */
    int16_t cores_a, cores_b; /* on shares of so many */
    double rate_a, rate_b;    /* alone / together; 1: undisturbed */
};

struct hzp_tables {
    char device[96], model[128], build[32]; /* what they hold for */
    char settings[96];                      /* the measurement's: which parts there are */
    int32_t threads;                        /* the device's cores (SMs) */
    int16_t cores[HZP_SHARES_MAX];          /* shares measured, ascending; the last is the device */
    int32_t shares;
    struct hzp_curve *curve;
    int32_t curves, curves_room;
    struct hzp_rate *rate;
    int32_t rates, rates_room;
    /* between items: on one lane that is the whole device; on a lane with a share of its own */
    double gap_inline_ns, gap_ns;
    double issue_ns; /* until an item is in its lane's queue */
    double
        handover_ns;  /* an item of another lane ended: until the waiting lane, polling, goes on */
    double wakeup_ns; /* the same of a lane that had gone to sleep */
    /* durations of the measured plans, and what their items' times add up to.  A machine
     * that is never quite idle takes longer than the times of undisturbed items say. */
    double plans_ns, items_ns;
    bool led;                  /* the issuing thread works the first lane after issuing */
    int32_t parts, parts_done; /* parts of the measurement */
    double spent_ns; /* time spent on measuring and searching so far; 0: it came to its end */
    bool whole;      /* the search whose plans are beside it came to its end */
    /* While it measured: processor time that the CPUs had, and what others took of it; the part of
     * it up to which times count as undisturbed. */
    double watched_ns, others_ns, others_max;
};

/* So long a waiting lane polls before it sleeps. */
#define HZP_POLL_NS 100e3

/* Without any times. */
void hzp_tables_init(struct hzp_tables *t);
void hzp_tables_fini(struct hzp_tables *t);

/* A time of the op of this key and size on share `share`; replaces one measured before. */
void hzp_tables_set(struct hzp_tables *t, const struct hzp_op_key *key,
                    const struct hzp_op_size *size, int32_t share, double ns);

/* The time set for exactly this; 0: none. */
double hzp_tables_measured(const struct hzp_tables *t, const struct hzp_op_key *key,
                           const struct hzp_op_size *size, int32_t share);

/* What two classes do to each other on these shares; replaces what was said before. */
void hzp_tables_set_rate(struct hzp_tables *t, const struct hzp_rate *rate);

/* By how much plans take longer than their items undisturbed: 1 where nothing is known. */
double hzp_tables_stretch(const struct hzp_tables *t);

/* How long the op takes alone on so many cores, stretched.  Never fails: for what was never
 * measured it answers a guess by operations and bytes. */
double hzp_tables_ns(const struct hzp_tables *t, const struct hzp_op_key *key,
                     const struct hzp_op_size *size, int32_t cores);

/* The same from a curve of exactly this key; 0: it was not measured. */
double hzp_tables_known_ns(const struct hzp_tables *t, const struct hzp_op_key *key,
                           const struct hzp_op_size *size, int32_t cores);

/* The rate of class a beside class b; 1 where the pair was not measured. */
double hzp_tables_rate(const struct hzp_tables *t, enum hzp_class a, int32_t cores_a,
                       enum hzp_class b, int32_t cores_b);

/* The link between ranks, by the times of its all-reduces: the bytes a second that a rank sends,
 * and what one takes without any.  False: they were not measured. */
bool hzp_tables_link(const struct hzp_tables *t, double *ret_rate, double *ret_latency_ns);

/* As people read them: every curve, the pairs, the rest. */
void hzp_tables_print(const struct hzp_tables *t, FILE *out);
