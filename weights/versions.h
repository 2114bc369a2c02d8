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
 * Staleness: an update that is finished but not published leaves the server behind.  The store
 * keeps both numbers, and hzp_weights_may_update() decides whether one more update may begin.
 *
 * Thread: engine, except hzp_weights_list, _newest and _stats: any.
 */
#ifndef HZP_WEIGHTS_VERSIONS_H
#define HZP_WEIGHTS_VERSIONS_H

#include "weights/fp8_layout.h"
#include "weights/units.h"

struct hzp_weights; /* the store */

enum hzp_version_state {
    HZP_VERSION_FREE,
    HZP_VERSION_DRAFT,
    HZP_VERSION_CURRENT,
    HZP_VERSION_RETIRED
};

/* Which accepted samples an update learned from: ascending, disjoint ranges of sequence numbers. */
enum { HZP_LEARNED_MAX = 32 };
struct hzp_learned {
    int64_t first[HZP_LEARNED_MAX], last[HZP_LEARNED_MAX];
    int32_t ranges;
    bool more; /* there were more ranges than fit */
};
void hzp_learned_add(struct hzp_learned *learned, int64_t sequence_number);

/* A version's record, kept (of the newest 4096 versions) after its memory is reused. */
struct hzp_version_record {
    uint64_t id;                  /* from 1, only grows, also across restarts */
    int64_t optimizer_step;       /* of its newest update */
    enum hzp_version_state state; /* FREE here: retired, and its memory is free */
    int64_t published_unix_ms;
    double loss;       /* mean over the learned tokens of its updates; NaN: loaded, not learned */
    uint64_t checksum; /* as the audit op defines it, over all units */
    struct hzp_learned learned; /* since the version before */
    int64_t learned_through; /* every sample up to this number has had all its passes; -1: none */
};

/* One set of parameters.  Its memory is the store's: see hzp_version_units. */
struct hzp_version {
    bool fp8_made; /* its e4m3 projections follow from its weights: set by the code that made them;
                    * without it a store with fp8 refuses to publish */
    struct hzp_version_record record; /* a draft's: optimizer_step, loss, checksum, learned and
                                       * learned_through are the trainer's to fill in */
    int32_t held;                     /* acquisitions not yet released; engine thread */
    uint64_t last_step;               /* the last step that read it */
};

struct hzp_weights_config {
    enum hzp_dtype type;   /* F32 or BF16 */
    bool fp8;              /* each slot has the projections in e4m3 too */
    int32_t slots;         /* >= 2 to publish; 1: updates are written in place (offline training) */
    int32_t max_staleness; /* optimizer steps, >= 0 */
    uint64_t first_id;     /* >= 1, of the version first published; a restart goes on counting */
};

/* Takes memory for all slots now; none later.  dev and layout must outlive the store.
 * HZP_ENOMEM. */
int hzp_weights_create(struct hzp_device *dev, const struct hzp_layout *layout,
                       const struct hzp_weights_config *config, struct hzp_weights **ret);
void hzp_weights_destroy(struct hzp_weights *w); /* NULL: no effect */

const struct hzp_layout *hzp_weights_layout(const struct hzp_weights *w);
struct hzp_device *hzp_weights_device(const struct hzp_weights *w);
bool hzp_weights_fp8(const struct hzp_weights *w); /* config.fp8 */
enum hzp_dtype hzp_weights_type(const struct hzp_weights *w);

/* The version that serves; NULL before the first publication. */
struct hzp_version *hzp_weights_current(struct hzp_weights *w);

/* The i-th slot, in any state: the addresses of its units never change.  NULL: no more. */
const struct hzp_version *hzp_weights_slot(const struct hzp_weights *w, int32_t i);

/* The version's units in device memory; valid as long as the store. */
const struct hzp_units *hzp_version_units(const struct hzp_weights *w, const struct hzp_version *v);

/* One unit, and one matrix (hzp_units_mat), of the version. */
struct hzp_unit_view hzp_version_unit(const struct hzp_weights *w, const struct hzp_version *v,
                                      int32_t u);
struct hzp_mat hzp_version_mat(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer);

/* The e4m3 codes of a projection of the version, whose store must have them; *ret_scale [rows]. */
struct hzp_mat hzp_version_fp8(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer, float **ret_scale);

/* Holds the current version (there must be one): its memory stays until released and step
 * last_step has ended. */
struct hzp_version *hzp_weights_acquire(struct hzp_weights *w);
void hzp_weights_release(struct hzp_weights *w, struct hzp_version *v, uint64_t last_step);

/* Every step up to `ended` has ended: retired slots that are no longer held or read become free. */
void hzp_weights_reclaim(struct hzp_weights *w, uint64_t ended);

/* A draft, contents undefined; its record starts from the current version's step, with nothing
 * learned.  HZP_EBUSY: every slot is in use; the trainer waits, serving never does.  With one slot:
 * the current version itself, the same again until it is published. */
int hzp_weights_begin(struct hzp_weights *w, struct hzp_version **ret);

/* Frees the draft's slot; updates that only this draft contained no longer count as finished. */
void hzp_weights_abandon(struct hzp_weights *w, struct hzp_version *draft);

/* The draft becomes current, what was current retires; the record's id and time are set.  Called
 * between two steps; the caller has checked the contents (audit op) and, where the store keeps
 * them, made the fp8 ones.  last_step: the last step
 * that read the version now retiring.  The record's optimizer_step counts as finished. */
void hzp_weights_publish(struct hzp_weights *w, struct hzp_version *draft, uint64_t last_step);

/* The trainer finished optimizer step n (whether or not it is published yet). */
void hzp_weights_finished(struct hzp_weights *w, int64_t optimizer_step);

/* False: one more update would leave the server more than max_staleness behind (or nothing serves
 * yet); wait for a publication.  publishes: this update will be published when it ends, in the
 * same gap between two steps; with max_staleness 0 no other may begin. */
bool hzp_weights_may_update(const struct hzp_weights *w, bool publishes);

/* Optimizer steps by which the current version trails the newest finished one; 0 with one slot. */
int64_t hzp_weights_staleness(struct hzp_weights *w);
/* Thread: any.  Holds for updates that begin from now on. */
void hzp_weights_set_max_staleness(struct hzp_weights *w, int32_t max_staleness);

/* Thread: any, from here on.  The newest `max` records, newest first; returns how many. */
int32_t hzp_weights_list(struct hzp_weights *w, struct hzp_version_record *ret, int32_t max);
void hzp_weights_newest(struct hzp_weights *w, struct hzp_version_record *ret);

struct hzp_weights_stats {
    uint64_t serving_id, publications;
    int64_t serving_step, finished_step, staleness, learned_through;
    int32_t max_staleness, slots, slots_free;
    uint64_t staleness_seen[8]; /* just before each publication: 0, 1, .., 6, 7 and more */
};
void hzp_weights_read_stats(struct hzp_weights *w, struct hzp_weights_stats *ret);

#endif
