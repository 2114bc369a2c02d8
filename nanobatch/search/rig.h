/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/rig.h - steps that nobody asked for: rows, pages and a micro-batch made up, so
 * that real plans can be printed, measured and searched over without a client.
 *
 * A rig owns a batch, KV pages and the spaces of serving and training over somebody's model.  Its
 * plans come from the same builders as the loop's.  Every decode row is a sequence of its own with
 * pages of its own: what attention reads is as cold as in a server.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SEARCH_RIG_H
#define HZP_NANOBATCH_SEARCH_RIG_H

#include "nanobatch/build/backward.h"
#include "nanobatch/build/forward.h"
#include "nanobatch/build/ride.h"
#include "nanobatch/build/step.h"

struct hzp_rig_config {
    struct hzp_model *model;
    struct hzp_version *version;     /* what is read */
    struct hzp_version *draft;       /* what an update writes; NULL: no updates */
    int32_t decode_max, prefill_max; /* rows of a step; 0: none */
    int32_t depth_max;               /* positions before a decode row or a prompt's piece */
    int64_t kv_tokens; /* all sequences together; 0: decode_max and one prompt at depth_max */
    int32_t page_rows;
    const struct hzp_train_space_config *train; /* NULL: no training */
};

struct hzp_rig {
    struct hzp_rig_config config;
    struct hzp_batch *batch; /* NULL: nothing serves */
    struct hzp_serve_space *space;
    void *pages;
    struct hzp_kv *kv; /* [layers] */
    int32_t pages_count;
    struct hzp_train_space *train; /* NULL: nothing trains */
    struct hzp_micro *micro;
    struct hzp_plan chain; /* of the micro-batch, or of an update */
    int32_t chunk_rows;    /* of the micro-batch: hzp_rig_chunks */
};

/* HZP_ENOMEM: it does not fit. */
int hzp_rig_create(const struct hzp_rig_config *config, struct hzp_rig **ret);
void hzp_rig_destroy(struct hzp_rig *rig); /* NULL: no effect */

/* The step has `decode` sequences at position `depth`, then one prompt's piece of `prefill` rows
 * that begins at position `at`.  HZP_EINVAL: the rig is too small for it. */
int hzp_rig_serve(struct hzp_rig *rig, int32_t decode, int32_t depth, int32_t prefill, int32_t at);

/* The same with a prompt from its begin, and as deep as the rig has pages for, `depth` at most. */
int hzp_rig_serve_shallow(struct hzp_rig *rig, int32_t decode, int32_t depth, int32_t prefill);

/* From the next hzp_rig_train on, forward goes by chunks of about so many rows; 0: by one. */
void hzp_rig_chunks(struct hzp_rig *rig, int32_t chunk_rows);

/* The chain is forward, loss and backward of one document of so many rows; 0: empty. */
int hzp_rig_train(struct hzp_rig *rig, int32_t rows);

/* The chain is an update that changes nothing (its rate is 0). */
int hzp_rig_update(struct hzp_rig *rig);

/* The step's plan: what serves, and items [from, to) of the chain, behind it or riding in it. */
void hzp_rig_build(struct hzp_rig *rig, const struct hzp_plan_shape *shape, int32_t from,
                   int32_t to, struct hzp_plan *plan);

#endif
