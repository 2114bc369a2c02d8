/* SPDX-License-Identifier: Apache-2.0 */
/* weights/versions.h - the parameters, as numbered versions.
 *
 * A published version never changes: nothing on host or device writes to it.  The server reads
 * the current one; the trainer fills a draft that no other component reads and publishes it between
 * two steps of the loop.
 *
 *     free --begin--> draft --publish--> current --next publish--> retired
 *       ^               |                                             |
 *       +---abandon-----+      not held, and the last step            |
 *       ^                      that read it has ended                 |
 *       +-------------------------------------------------------------+
 *
 * A draft may serve a share of the requests before (weights/trials.h), under an id that no other
 * version gets.  If it is dropped, that id has never been current, and never will be:
 *
 *     draft --begin_trial--> trial --publish--> current
 *                              +-----drop_trial--> dropped --as retired--> free
 *
 * Staleness: an update that is finished but not published leaves the server behind.  The store
 * keeps both numbers, and hzp_weights_may_update() decides whether one more update may begin.  The
 * bound in force is the smaller one of the operator's and that of the requests being served.
 *
 * Thread: engine, except hzp_weights_list, _list_after, _newest and _stats: any.
 */
#pragma once

#include "weights/fp8_layout.h"
#include "weights/units.h"

struct hzp_weights; /* the store */

enum hzp_version_state {
    HZP_VERSION_FREE,
    HZP_VERSION_DRAFT,
    HZP_VERSION_CURRENT,
    HZP_VERSION_RETIRED,
    HZP_VERSION_TRIAL,
    HZP_VERSION_DROPPED /* also in a record whose memory is free */
};

/* The accepted samples that an update learned from: ascending, disjoint ranges of sequence
 * numbers. */
enum { HZP_LEARNED_MAX = 32 };
struct hzp_learned {
    int64_t first[HZP_LEARNED_MAX], last[HZP_LEARNED_MAX];
    int32_t ranges;
    bool more; /* there were more ranges than fit */
};
/* Adds one sample; sets `more` where it does not fit. */
void hzp_learned_add(struct hzp_learned *learned, int64_t sequence_number);

#define HZP_NO_PARENT UINT64_MAX

/* A version's record, kept (of the newest 4096 versions) after its memory is reused. */
struct hzp_version_record {
    uint64_t id;                  /* starts at 1 and only grows, also across restarts */
    int64_t optimizer_step;       /* the newest update it contains */
    enum hzp_version_state state; /* FREE in a record: retired, and its memory is free */
    int64_t published_unix_ms;    /* TRIAL, DROPPED: when the trial began */
    double loss;       /* mean over the learned tokens of its updates; NaN: loaded from disk */
    uint64_t checksum; /* as the audit op defines it, over all units */
    struct hzp_learned learned; /* samples learned since the previous version */
    /* every sample up to this number has had all its passes or was given up; -1: none */
    int64_t learned_through;
    /* The version it was made from: the one before it, or the one that was activated again.  0:
     * none, or not known; HZP_NO_PARENT: none of this server's: it was sent
     * here, or is the model's where all earlier versions are lost. */
    uint64_t parent;
    /* Mean losses on the gate's examples, of the parent and of this version; NaN: no gate. */
    double gate_before, gate_after;
    /* The sites with whose averages it was made, as bits (train/sites/sites.h); 0: none. */
    uint32_t sites;
};

/* One set of parameters.  Its memory is the store's: see hzp_version_units. */
struct hzp_version {
    /* set by the code that made its e4m3 projections; a store with fp8 does not publish a version
     * without it */
    bool fp8_made;
    /* a draft's optimizer_step, loss, checksum, learned and learned_through are filled in by the
     * trainer */
    struct hzp_version_record record;
    int32_t held;       /* acquisitions not yet released; engine thread */
    uint64_t last_step; /* the last step that read it */
};

struct hzp_weights_config {
    enum hzp_dtype type;   /* F32 or BF16 */
    bool fp8;              /* each slot also has the projections in e4m3 */
    int32_t slots;         /* >= 2 to publish; 1: updates are written in place (offline training) */
    int32_t max_staleness; /* optimizer steps, >= 0 */
    uint64_t first_id; /* >= 1, id of the version first published; a restart continues the count */
    /* z3 > 1: a slot holds this rank's shards of the units (hzp_version_units), and a layer's
     * matrices (hzp_version_mat) are in the ring that hzp_weights_gathered describes.  fp8 is then
     * not supported, nor with stages, where a slot holds this rank's units.  All zero: one
     * rank. */
    struct hzp_shards shards;
};

/* Allocates memory for all slots; none is allocated later.  dev and layout must outlive the store.
 * HZP_ENOMEM. */
int hzp_weights_create(struct hzp_device *dev, const struct hzp_layout *layout,
                       const struct hzp_weights_config *config, struct hzp_weights **ret);
void hzp_weights_destroy(struct hzp_weights *w); /* NULL: no effect */

/* Before the first publication: config.first_id is this. */
void hzp_weights_set_first_id(struct hzp_weights *w, uint64_t id);

const struct hzp_layout *hzp_weights_layout(const struct hzp_weights *w);
struct hzp_device *hzp_weights_device(const struct hzp_weights *w);
bool hzp_weights_fp8(const struct hzp_weights *w); /* config.fp8 */
enum hzp_dtype hzp_weights_type(const struct hzp_weights *w);

/* The version that serves; NULL before the first publication. */
struct hzp_version *hzp_weights_current(struct hzp_weights *w);

/* The i-th slot, in any state: the addresses of its units never change.  NULL: i is past the
 * last. */
const struct hzp_version *hzp_weights_slot(const struct hzp_weights *w, int32_t i);

/* The version's units in device memory; valid as long as the store. */
const struct hzp_units *hzp_version_units(const struct hzp_weights *w, const struct hzp_version *v);

/* NULL: slots hold whole units.  Otherwise the places of gathered units, one set for all versions:
 * units u and u + 3 have the same place, except a tied embedding, which has one of its own. */
const struct hzp_units *hzp_weights_gathered(const struct hzp_weights *w);

/* The i-th allocation that holds weights, or gathered units; false: i is past the last. */
bool hzp_weights_memory(const struct hzp_weights *w, int32_t i, void **ret, size_t *ret_bytes);

/* One unit, and one matrix (hzp_units_mat), of the version. */
struct hzp_unit_view hzp_version_unit(const struct hzp_weights *w, const struct hzp_version *v,
                                      int32_t u);
struct hzp_mat hzp_version_mat(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer);

/* The e4m3 codes of a projection of the version, whose store must keep them; *ret_scale [rows]. */
struct hzp_mat hzp_version_fp8(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer, float **ret_scale);

/* Acquires the current version (there must be one): its memory stays until it is released and step
 * last_step has ended. */
struct hzp_version *hzp_weights_acquire(struct hzp_weights *w);
/* Once more, of a version that is held already. */
void hzp_weights_hold(struct hzp_weights *w, struct hzp_version *v);
void hzp_weights_release(struct hzp_weights *w, struct hzp_version *v, uint64_t last_step);
/* Acquires an earlier version, to be read only: the slot that still has what version id was.
 * HZP_ENOENT: none has.  Or a free slot with undefined contents and no id, which its owner sets
 * once they are those of a version.  HZP_EBUSY: every slot is in use. */
int hzp_weights_acquire_earlier(struct hzp_weights *w, uint64_t id, struct hzp_version **ret);
int hzp_weights_acquire_empty(struct hzp_weights *w, struct hzp_version **ret);

/* Every step up to `ended` has ended: frees retired slots that are no longer held or read. */
void hzp_weights_reclaim(struct hzp_weights *w, uint64_t ended);

/* Returns a draft with undefined contents; its record starts from the current version's step, with
 * nothing learned.  HZP_EBUSY: every slot is in use, and the trainer must wait (serving never
 * waits).  With one slot: returns the current version itself, the same until it is published. */
int hzp_weights_begin(struct hzp_weights *w, struct hzp_version **ret);

/* A slot that still holds what version id was, and is free, as a draft with these contents; its
 * record is that of begin.  HZP_ENOENT: no slot holds it; HZP_EBUSY: it serves, is held, or a step
 * that reads it has not ended. */
int hzp_weights_revive(struct hzp_weights *w, uint64_t id, struct hzp_version **ret);

/* Frees the draft's slot; updates that only this draft contained no longer count as finished. */
void hzp_weights_abandon(struct hzp_weights *w, struct hzp_version *draft);

/* Makes the draft, or the version on trial, current and retires the previous current version; sets
 * the record's id and time.  Called between two steps; the caller has checked the contents (audit
 * op) and, if the store keeps fp8 weights, made them.  last_step: the last step that read the
 * version now retiring.  The record's optimizer_step counts as finished. */
void hzp_weights_publish(struct hzp_weights *w, struct hzp_version *draft, uint64_t last_step);

/* The draft, which is complete, gets an id and may serve beside the current version; its record's
 * other fields are set, but for parent and time.  The caller has checked it as for publish.  The
 * update counts as finished when it is published.  There is no other trial, and 2 slots or more. */
void hzp_weights_begin_trial(struct hzp_weights *w, struct hzp_version *draft);
/* The trial ends without a publication; readers that hold it may go on. */
void hzp_weights_drop_trial(struct hzp_weights *w);
/* The version on trial; NULL: none. */
struct hzp_version *hzp_weights_trial(struct hzp_weights *w);
/* As hzp_weights_acquire. */
struct hzp_version *hzp_weights_acquire_trial(struct hzp_weights *w);

/* The trainer finished optimizer step n (whether or not it is published yet). */
void hzp_weights_finished(struct hzp_weights *w, int64_t optimizer_step);

/* False: one more update would leave the server more than max_staleness behind (or no version
 * serves yet), so the trainer must wait for a publication.  publishes: this update will be
 * published when it ends, between the same two steps of the loop; with max_staleness 0 no other
 * update may begin. */
bool hzp_weights_may_update(const struct hzp_weights *w, bool publishes);

/* Optimizer steps by which the current version trails the newest finished one; 0 with one slot. */
int64_t hzp_weights_staleness(struct hzp_weights *w);
/* Thread: any.  Applies to updates that begin from now on.  If the staleness is higher, the trainer
 * publishes what is finished (hzp_weights_stats.bound_step). */
void hzp_weights_set_max_staleness(struct hzp_weights *w, int32_t max_staleness);

/* The smallest bound that a request being served asks for; INT32_MAX: none does.  It applies like
 * the operator's. */
void hzp_weights_ask_staleness(struct hzp_weights *w, int32_t max_staleness);

/* Every step up to this one has ended (hzp_weights_reclaim). */
uint64_t hzp_weights_ended(const struct hzp_weights *w);

/* No version will ever have learned the sample: it was given up.  Called before a version is
 * published whose learned_through covers the sample. */
void hzp_weights_add_unlearned(struct hzp_weights *w, int64_t sequence_number);
void hzp_weights_clear_unlearned(struct hzp_weights *w); /* all that were added */
bool hzp_weights_unlearned(const struct hzp_weights *w, int64_t sequence_number);
/* The newest sample up to this one that was not given up; 0: there is none. */
int64_t hzp_weights_learnable(const struct hzp_weights *w, int64_t sequence_number);

/* Versions of earlier processes, newest first, which the list ends with; copied.  At most as many
 * as it keeps of this one.  Any thread; replaces what was set before. */
void hzp_weights_set_history(struct hzp_weights *w, const struct hzp_version_record *record,
                             int32_t count);

/* Thread: any, from here on.  Writes the newest `max` records, newest first; returns how many. */
int32_t hzp_weights_list(struct hzp_weights *w, struct hzp_version_record *ret, int32_t max);
/* Writes the oldest `max` records of this process whose id is above `id`, oldest first; returns how
 * many.  A reader that passes the last id it got misses no record, whatever is published meanwhile,
 * as long as it is not more than the kept records behind.  Leaves out trials, and dropped ones. */
int32_t hzp_weights_list_after(struct hzp_weights *w, uint64_t id, struct hzp_version_record *ret,
                               int32_t max);

/* Whether a slot holds the version's weights, so that hzp_weights_revive may succeed. */
bool hzp_weights_resident(struct hzp_weights *w, uint64_t id);

struct hzp_weights_stats {
    uint64_t serving_id, publications;
    uint64_t trial_id, next_id; /* on trial, 0: none; of the next version that gets an id */
    int64_t serving_optimizer_step, finished_optimizer_step, staleness, learned_through;
    int32_t max_staleness, slots, slots_free; /* max_staleness: the operator's */
    int32_t bound;                            /* in force: with hzp_weights_ask_staleness() */
    /* from this step of the loop on every one keeps max_staleness; 0: not yet, because it was
     * lowered and what is finished is not published */
    uint64_t bound_step;
    /* staleness just before each publication: counts of 0, 1, .., 6, 7 and more */
    uint64_t staleness_seen[8];
};
void hzp_weights_read_stats(struct hzp_weights *w, struct hzp_weights_stats *ret);
