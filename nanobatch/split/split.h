/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/split.h - how the device is split between serving and training: how long training
 * may run in each step.
 *
 * The loop asks once a step, when serving's rows are known and before training offers, and tells
 * what the step really took when it has ended.  Several steps may be between the two: all that is
 * kept of one until it is told about is in its hzp_split_step.
 *
 * With goals, training gets the most that they leave.  A step's duration is predicted (predict.h),
 * and lengthened by what 99 of 100 such predictions were exceeded by at most:
 *     gaps          a step with decode rows may last as long as the goal says
 *     first tokens  a step may last so long that each prompt that waits still comes to its end in
 *                   time, by the number of steps it will need; one during which none waits so long
 *                   that one which arrives at its begin does, by what they took lately
 * What is left beside serving's part is training's.  Where late gaps or first tokens missed their
 * goals, it gets less: all of it up to 3.5 in a thousand, nothing at 7.  So where serving alone
 * misses a goal, training gets nothing but policy.train_min.  No item of training is begun that
 * does not fit, except, where gaps miss their goal hardly ever, one in 256 steps: else an item that
 * never fits would hold up the others for ever.  In one step of 64 training is left out, so that
 * the two stages of the predictor stay apart.
 *
 * Where training has lanes of its own, it runs beside serving, for as long as that takes, and what
 * the goals leave beyond is a step of its own behind it, on the whole device, in which serving
 * waits: meanwhile more requests come to decode together, and decoding reads the weights once for
 * all of them.  A step that would miss its goal beside training gets the whole device instead.
 *
 * Longer steps serve less, if no more requests can join them.  So training's part shrinks with the
 * places that are left to requests, and more from step to step while somebody has waited for long
 * who has no rows.
 *
 * Without a goal for gaps one follows from what they would be without training (seen.h), times
 * policy.itl_stretch.  It does not bound prompts' rows, and one item in 128 steps (in 256 where
 * all have prompts in them) may break it even where nothing else is left, and one in 1024 whatever
 * is missed: training never comes to a stand.  Besides, training gets a share of the time that
 * serving takes: what a long step earned must not make another one long, so it is a usual step's
 * share, and what an item took beyond it is paid back by the steps behind it.  Over any run of
 * steps training takes at most its share, two items and one helping.  policy.train_max bounds it in
 * the same way, goals or not.
 *
 * While no request runs, training holds the device for idle_ns at a stretch (less, where a prompt's
 * first token would come too late).
 *
 * Thread: engine, except set_policy, policy and read: any.
 */
#ifndef HZP_NANOBATCH_SPLIT_SPLIT_H
#define HZP_NANOBATCH_SPLIT_SPLIT_H

#include "base/thread.h"
#include "nanobatch/build/batch.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/split/policy.h"
#include "nanobatch/time/time.h"
#include "nanobatch/split/seen.h"

#include <stdatomic.h>

struct hzp_waits;

/* So many steps with prompts in them may pass training over in a row, where there is no goal for
 * first tokens. */
enum { HZP_SPLIT_PASSED_OVER_MAX = 8 };

struct hzp_split_config {
    struct hzp_policy policy;
    uint64_t idle_ns; /* while none runs: how long training may hold the device at a stretch */
    bool early;       /* a step's tokens are out before its slice has ended, though they take turns:
                       * the next gap holds it */
    struct hzp_time *time; /* borrowed; what steps take is asked of it, and learned in it */
};

/* What holds training's slice where it is. */
enum hzp_split_limit {
    HZP_LIMIT_IDLE,   /* nothing: no request runs */
    HZP_LIMIT_SHARE,  /* train_share or train_max */
    HZP_LIMIT_GAPS,   /* the goal for gaps */
    HZP_LIMIT_FIRSTS, /* the goal for first tokens */
    HZP_LIMIT_MISSED, /* a goal was missed too often lately */
    HZP_LIMIT_TURN,   /* prompts first, or the predictor's look at serving alone */
    HZP_LIMIT_PLACES, /* somebody waits for a place, or soon would */
    HZP_LIMIT_COUNT
};
const char *hzp_split_limit_name(enum hzp_split_limit limit);

/* One step, from begin to end. */
struct hzp_split_step {
    struct hzp_step_shape shape;
    int32_t rows, decode_rows; /* serving's */
    uint64_t begin_ns;
    uint64_t train_ns;   /* how long training may run in it */
    uint64_t item_ns;    /* no item longer than this may be begun */
    uint64_t hold_ns;    /* how long serving may wait behind it, for training alone */
    double serve_max_ns; /* with an ITL goal: how long serving's part may take; 0: no goal */
    bool hold;           /* it is such a wait: no serving in it */
    bool beside;         /* it may have both side by side, and after `taken`: it has */
    bool trains;         /* training came */
    bool overrun;        /* one item may be longer than goals allow */
    enum hzp_split_limit limit;
    double alone_ns; /* predicted: of serving's rows, */
    double gap_ns;   /* and from the last step's end to this one's */
    double slice_ns; /* by prices: of training's items */
    double ride_ns;  /* of that, in serving's own items: set before `taken` by who plans the step */
    double carry_ns; /* the same of the step before, and of a wait, that fall into this gap */
    double owes_ns;  /* what the slice takes beyond a usual share, until it is told about */
    uint64_t first_ns[16]; /* of those whose first token it brings: asked for at */
    int32_t firsts;
};

struct hzp_split {
    struct hzp_split_config config;
    /* engine thread */
    struct hzp_policy policy; /* the one that holds; its itl_ns may follow from itl_stretch: */
    bool follows;
    bool may_beside; /* of the newest step that serves */
    struct hzp_seen seen;
    double credit_ns; /* what training saved for its next item; < 0: it owes */
    double owes_ns; /* of that, what steps formed but not told about will take beyond their share */
    double floor_ns;        /* the same of train_min */
    double usual_ns;        /* of serving in a step that only decodes, averaged */
    double usual_beside_ns; /* the same, training beside it */
    double host_ns;         /* of a gap that the device was not busy, averaged */
    double next_ns;         /* the last known price of training's next item; 0: none */
    int32_t passed_over, since_look, since_overrun, since_beside;
    double patience;     /* 0 .. 1: falls while somebody waits for long who has no rows */
    double room;         /* 0 .. 1: of places for requests */
    uint64_t hold_ns;    /* the next step may be a wait of that length; 0: it is none */
    uint64_t held_ns;    /* training's time in waits since the last tokens */
    int32_t prompt_rows; /* of the last step that had any */
    double carry_ns;     /* of the newest step formed */
    double under_way_ns; /* predicted: of steps formed that have not ended */
    uint64_t last_train_ns, last_tokens_ns;
    bool last_served;
    /* under lock */
    struct hzp_lock lock;
    struct hzp_policy wanted;
    struct hzp_split_report {
        struct hzp_policy policy;
        uint64_t follows_ns; /* the goal for gaps that follows from itl_stretch; 0: none */
        uint64_t steps;      /* that served */
        uint64_t trained;    /* of these, with training */
        uint64_t beside;     /* of these, with training beside serving */
        uint64_t held;       /* waits: steps of training alone while requests run */
        uint64_t limited[HZP_LIMIT_COUNT]; /* all steps, by what held training */
        /* the newest step that served */
        struct hzp_step_shape shape;
        double alone_ns, slowdown, gap_ns, slice_ns; /* predicted; what training was allowed */
        double gap_was_ns;
        double gap_p99_ns; /* what 99 of 100 gaps stay within that are predicted so */
        double error;      /* of predicted gaps, mean, relative */
        double missed_gaps, missed_gaps_alone, missed_firsts; /* lately; 0 without goals */
        struct hzp_window gap, first;  /* the newest gaps and times to first tokens */
        double serve_part, train_part; /* of the last half minute, 0 .. 1 */
        struct hzp_seen_second second[HZP_SEEN_SECONDS];
    } report;
    /* any thread */
    atomic_bool changed;
};

void hzp_split_init(struct hzp_split *split, const struct hzp_split_config *config);
void hzp_split_fini(struct hzp_split *split);

/* A step that serves nothing, so far: training has the whole device.  now_ns: the device's clock.
 * With step->hold it stays so: serving is not asked.  If training has nothing to do then either,
 * another begin gives a step that is no wait. */
void hzp_split_begin(struct hzp_split *split, struct hzp_split_step *step, uint64_t now_ns);

/* Serving's rows are known (at least one).  Sets train_ns, item_ns, hold_ns and beside.  waits
 * NULL: no prompt waits.  beside: training may run beside these rows, on lanes of its own. */
void hzp_split_serve(struct hzp_split *split, struct hzp_split_step *step,
                     const struct hzp_batch *batch, const struct hzp_waits *waits, bool beside);

/* All sources have offered: whether training came, and the price of its slice. */
void hzp_split_taken(struct hzp_split *split, struct hzp_split_step *step, bool trains,
                     double slice_ns);

/* The step has ended.  tokens_ns: when serving's results were out, by the device's clock.  next_ns:
 * the price of the next item of training's chain, 0: there is none.  Steps are told about in the
 * order of their begin. */
void hzp_split_ended(struct hzp_split *split, const struct hzp_split_step *step,
                     const struct hzp_exec_times *times, uint64_t tokens_ns, double next_ns);

/* Thread: any.  Checked by the caller; holds from the next step on. */
void hzp_split_set_policy(struct hzp_split *split, const struct hzp_policy *policy);
void hzp_split_policy(struct hzp_split *split, struct hzp_policy *ret);

/* Thread: any.  A large copy. */
void hzp_split_read(struct hzp_split *split, uint64_t now_ns, struct hzp_split_report *ret);

#endif
