/* SPDX-License-Identifier: Apache-2.0 */
/* train/sites/sites.h - this server as a site: a thread that exchanges messages with the others,
 * reads what the rounds (rounds.h) want of the weights, and writes averages into a draft.
 *
 *     thread   lend ... give back        reads the weights that serve, and their residuals
 *     thread   ready                     an average is there
 *     engine   apply(draft)              between AdamW and the draft's checks
 *     thread   applied                   the draft has it
 *     engine   ended(kept)               what became of the version
 *
 * Each site listens at its address and connects to all others (mesh/peers/pipe.h); only weights
 * travel.  What the others are is in no state: they may come, go and come back.
 *
 * Thread: engine for apply, ended, ready, applied, note; any for read_stats; otherwise one.
 */
#pragma once

#include "mesh/peers/pipe.h"
#include "nanobatch/loop.h"
#include "nanobatch/model/train_space.h"
#include "train/sites/rounds.h"

struct hzp_sites;

struct hzp_sites_config {
    const char *const *url; /* [sites] "tcp://HOST:PORT", this one's first */
    int sites;
    const char *key; /* 64 hexadecimal digits, the same on all; NULL: none, loopback only */
    double share;    /* the fraction of the weights in a part */
    struct hzp_rounds_config rounds; /* from `coding` to `limit_ns`; quorum 0: more than half of the
                                      * sites */
    const char *model;               /* a text that says its shapes and type: equal on all */
    const struct hzp_layout *layout; /* borrowed */
};

/* Listens.  HZP_EINVAL names what cannot be; HZP_EIO, HZP_ENOMEM. */
int hzp_sites_open(const struct hzp_sites_config *config, struct hzp_sites **ret,
                   struct hzp_err_text *reterr);
void hzp_sites_close(struct hzp_sites *s); /* when it is stopped; NULL: no effect */

/* Functions of border calls with `ctx`.  Lend: the current version and its residuals stay as they
 * are until give_back; *lent is the version. */
struct hzp_sites_host {
    struct hzp_loop *loop;
    struct hzp_weights *weights;
    const struct hzp_units *residual; /* NULL: none */
    hzp_border_fn *lend, *give_back;
    void *ctx;
    struct hzp_version *const *lent;
};
int hzp_sites_start(struct hzp_sites *s, const struct hzp_sites_host *host);
/* The loop has ended. */
void hzp_sites_stop(struct hzp_sites *s); /* NULL: no effect */

bool hzp_sites_ready(struct hzp_sites *s, bool idle);
/* from: the draft is to be a copy of it first, a version that is held; NULL: it is made already. */
void hzp_sites_apply(struct hzp_sites *s, struct hzp_version *draft,
                     const struct hzp_version *from);
bool hzp_sites_applied(struct hzp_sites *s);
/* The sites in what was applied, as bits; 0: the draft could not be made a copy, and is none. */
uint32_t hzp_sites_in(const struct hzp_sites *s);
void hzp_sites_ended(struct hzp_sites *s, bool kept);
/* So many more updates and samples are in versions. */
void hzp_sites_note(struct hzp_sites *s, int64_t updates, int64_t samples);

void hzp_sites_read_stats(struct hzp_sites *s, struct hzp_rounds_stats *ret);
int hzp_sites_count(const struct hzp_sites *s, int *ret_self);
const char *hzp_sites_name(const struct hzp_sites *s, int site); /* its address */
