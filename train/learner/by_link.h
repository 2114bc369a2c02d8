/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/by_link.h - a learner on a rank other than 0 that gets its work over the link: the
 * only source of that rank's loop, or the one behind the scheduler of a replica.
 *
 *     listen -deal-> micro-batches -> listen -update-> update -> publish -> listen ... -end-> end
 *     update -> listen -publish, undo-> listen                          with a gate on rank 0
 *     listen -clear-> listen -write-> ... listen -adopt-> publish -> listen
 *
 * It computes what the trainer of rank 0 deals to it (collectives.h), and takes part in each update
 * with its shard.  Whether an update is kept follows from results that all ranks compare, so
 * nothing is asked; but with a gate, which rank 0 evaluates, a work says whether it is published or
 * undone.  Where rank 0 makes an older version serve again, it sends all of it.  Where no requests
 * are served the store has one slot (with a gate two), and updates are written in place; a
 * replica's has more, and publishes a version of the same id as rank 0's between two of its steps.
 *
 * It takes no part in update n + 1 before it has published update n.
 *
 * Owns: its learner.  Borrows: the model, the link.
 *
 * Thread: engine, except read_stats: any.
 */
#pragma once

#include "train/learner/learner.h"

struct hzp_learner_by_link;

/* Allocates all device memory, and opens the groups together with the other ranks.
 * config->undoes: rank 0 may undo updates (a gate, lessons). */
int hzp_learner_by_link_create(const struct hzp_learner_config *config,
                               struct hzp_learner_by_link **ret, struct hzp_err_text *reterr);
void hzp_learner_by_link_destroy(struct hzp_learner_by_link *b); /* NULL: no effect */
struct hzp_source *hzp_learner_by_link_source(struct hzp_learner_by_link *b);
struct hzp_learner *hzp_learner_by_link_learner(struct hzp_learner_by_link *b);

/* As hzp_trainer_load: this rank's shards of the state in dir, which belongs to version v. */
int hzp_learner_by_link_load(struct hzp_learner_by_link *b, struct hzp_version *v, const char *dir,
                             bool same_recipe, struct hzp_err_text *reterr);

/* Before the loop runs: gets rank 0's version into v, which is a draft or the current version, and
 * the state that belongs to it, as an older version is sent.  Where parameters are sharded no rank
 * has whole units: each has loaded its own, and only numbers are compared.  It waits.  HZP_EIO. */
int hzp_learner_by_link_receive(struct hzp_learner_by_link *b, struct hzp_version *v,
                                struct hzp_err_text *reterr);

struct hzp_learner_by_link_stats {
    int64_t optimizer_step; /* the newest */
    uint64_t rows;          /* forward and backward */
    bool stopped;           /* rank 0 has said that there is no more work */
    char failure[200];      /* ""; or why it has given up */
};
void hzp_learner_by_link_read_stats(struct hzp_learner_by_link *b,
                                    struct hzp_learner_by_link_stats *ret);
