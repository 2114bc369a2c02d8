/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/rig.h - synthetic steps: made-up rows, pages and a micro-batch, so that real
 * plans can be printed, measured and searched over without a client.
 *
 * A rig owns a batch, KV pages and the spaces of serving and training; the model is borrowed.  Its
 * plans come from the same builders as the loop's.  Every decode row is a sequence of its own with
 * its own pages, so what attention reads is as cold as in a server.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/ride.h"
#include "nanobatch/model/step.h"

struct hzp_rig_config {
    struct hzp_model *model;
    struct hzp_version *version;     /* the version that is read */
    struct hzp_version *draft;       /* the version an update writes; NULL: no updates */
    int32_t decode_max, prefill_max; /* most rows of a step; 0: none of that kind */
    int32_t depth_max;               /* most positions before a decode row or a prompt's rows */
    /* KV positions of all sequences; 0: decode_max sequences and one prompt at depth_max */
    int64_t kv_tokens;
    int32_t page_rows;
    const struct hzp_train_space_config *train; /* NULL: no training */
};

struct hzp_rig {
    struct hzp_rig_config config;
    struct hzp_batch *batch; /* NULL: no serving */
    struct hzp_serve_space *space;
    void *pages;
    struct hzp_kv *kv; /* [layers] */
    int32_t pages_count;
    struct hzp_train_space *train; /* NULL: no training */
    struct hzp_micro *micro;
    struct hzp_plan chain; /* computes the micro-batch or an update */
    int32_t chunk_rows;    /* rows of a chunk of the micro-batch: hzp_rig_chunks */
};

/* HZP_ENOMEM: the rig does not fit into memory. */
int hzp_rig_create(const struct hzp_rig_config *config, struct hzp_rig **ret);
void hzp_rig_destroy(struct hzp_rig *rig); /* NULL: no effect */

/* Sets the step's rows: `decode` sequences at position `depth`, then `prefill` rows of one prompt,
 * the first of them at position `at`. HZP_EINVAL: the rig is too small for that. */
int hzp_rig_serve(struct hzp_rig *rig, int32_t decode, int32_t depth, int32_t prefill, int32_t at);

/* The same with a prompt that starts at position 0; `depth` is halved until the rig has pages for
 * the step. */
int hzp_rig_serve_shallow(struct hzp_rig *rig, int32_t decode, int32_t depth, int32_t prefill);

/* From the next hzp_rig_train on, the forward pass is cut into chunks of about chunk_rows rows; 0:
 * it is not cut. */
void hzp_rig_chunks(struct hzp_rig *rig, int32_t chunk_rows);

/* Sets the chain to the forward pass, loss and backward pass of one document of `rows` rows; 0: the
 * chain is empty. */
int hzp_rig_train(struct hzp_rig *rig, int32_t rows);

/* Sets the chain to an update that changes nothing (its learning rate is 0). */
int hzp_rig_update(struct hzp_rig *rig);

/* Builds the step's plan: the serving rows, and items [from, to) of the chain, which follow
 * serving's items or ride in them. */
void hzp_rig_build(struct hzp_rig *rig, const struct hzp_plan_shape *shape, int32_t from,
                   int32_t to, struct hzp_plan *plan);

/* Sorts the values; the one in the middle. */
double hzp_median(double *value, int32_t count);
