/* SPDX-License-Identifier: Apache-2.0 */
/* train/follower.h - trains on a rank other than 0: the only source of that rank's loop, or the one
 * behind the scheduler of a replica.
 *
 *     listen -DEAL-> micro-batches -> listen -UPDATE-> update -> publish -> listen ... -STOP-> end
 *     update -> listen -VERDICT-> publish, or undo -> listen          with a gate on rank 0
 *     listen -RESTORE-> listen -FILL-> ... listen -ADOPT-> publish -> listen
 *
 * It computes what the trainer of rank 0 deals to it (collectives.h), and takes part in each update
 * with its shard.  Whether an update is kept follows from results that all ranks compare, so
 * nothing is asked; but with a gate, which rank 0 evaluates, its verdict follows.  Where rank 0
 * makes an older version serve again, it sends all of it.  Where no requests are served the store
 * has one slot (with a gate two), and updates are written in place; a replica's has more, and
 * publishes a version of the same id as rank 0's between two of its steps.
 *
 * It takes no part in update n + 1 before it has published update n.
 *
 * Owns: its train space, the micro-batch, the collectives.  Borrows: the model, the link.
 *
 * Thread: engine, except read_stats: any.
 */
#ifndef HZP_TRAIN_FOLLOWER_H
#define HZP_TRAIN_FOLLOWER_H

#include "train/trainer.h"

struct hzp_follower;

struct hzp_follower_config {
    struct hzp_recipe recipe; /* micro_rows and moment_type, as on rank 0 */
    struct hzp_model *model;
    struct hzp_shards shards;
    struct hzp_link *link;  /* borrowed */
    uint64_t quantum_flops; /* as in struct hzp_trainer_config: with requests, work is cut */
    bool gate;              /* rank 0 has a gate: there is room for what a rejected draft undoes */
};

/* Allocates all device memory, and opens the groups together with the other ranks. */
int hzp_follower_create(const struct hzp_follower_config *config, struct hzp_follower **ret,
                        struct hzp_err_text *reterr);
void hzp_follower_destroy(struct hzp_follower *f); /* NULL: no effect */
struct hzp_source *hzp_follower_source(struct hzp_follower *f);
struct hzp_train_space *hzp_follower_space(struct hzp_follower *f);
/* As hzp_trainer_products. */
int hzp_follower_products(struct hzp_follower *f, struct hzp_plan *chain);

/* As hzp_trainer_load: this rank's shards of the state in dir, which belongs to version v. */
int hzp_follower_load(struct hzp_follower *f, struct hzp_version *v, const char *dir,
                      bool same_recipe, struct hzp_err_text *reterr);

/* Before the loop runs: gets rank 0's version into v, which is a draft or the current version, and
 * the state that belongs to it (start_state.h).  It waits. */
int hzp_follower_receive(struct hzp_follower *f, struct hzp_version *v,
                         struct hzp_err_text *reterr);

struct hzp_follower_stats {
    int64_t optimizer_step; /* the newest */
    uint64_t rows;          /* forward and backward */
    bool stopped;           /* rank 0 has said that there is no more work */
    char failure[200];      /* ""; or why it has given up */
};
void hzp_follower_read_stats(struct hzp_follower *f, struct hzp_follower_stats *ret);

#endif
