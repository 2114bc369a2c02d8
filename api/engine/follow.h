/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/follow.h - a rank other than 0, from its start to its end.
 *
 * It opens device, weights and a learner, gets the first version from rank 0, and trains what rank
 * 0 deals to it until rank 0 says that there is no more work.  It reads no examples and writes no
 * files.  A replica also computes requests that rank 0 hands to it (api/front/replica.h);
 * without training it does nothing else, and reads the weights from the model's directory.
 *
 * Thread: the one that calls becomes the engine's.
 */
#pragma once

#include "api/engine/assembly.h"

struct hzp_follow_replica;
struct hzp_pipe_place;

struct hzp_follow_config {
    const struct hzp_engine_settings *settings; /* device, model and training, as on rank 0 */
    const char *source_dir; /* where config.json is; NULL: the model's directory */
    struct hzp_link *link;  /* borrowed; NULL: a replica that does not train */
    bool serves;            /* rank 0 serves */
    bool runs;              /* rank 0 ran before this rank came: no self-test */
    /* Where parameters are sharded (z3 > 1): fills this rank's shards of the first version, and
     * loads its shards of the state, from the same files as rank 0.  NULL: HZP_EUNSUP there. */
    int (*fill)(void *ctx, struct hzp_assembly *a, struct hzp_version *draft,
                struct hzp_err_text *reterr);
    void *ctx;
    const struct hzp_follow_replica *replica; /* NULL: it serves no requests */
};

/* A replica: see struct hzp_replica_config. */
struct hzp_follow_replica {
    const struct hzp_pipe_place *at;
    const char *record;
    int rank, ranks;
    double silent_s, meet_s;
};

/* Returns when rank 0 has ended in good order.  HZP_EIO: it, or another rank, was lost; other
 * errors as of hzp_assembly_open.  The text names the rank. */
int hzp_follow(const struct hzp_follow_config *config, struct hzp_err_text *reterr);

/* A rank other than 0 of a group that computes each step together (group.h), from its start to its
 * end.
 *
 * It has device, weights and KV pages, and executes what rank 0 tells it (nanobatch/member.h).
 * With several groups the first rank of each but rank 0's hears rank 0's work over a link
 * (train/learner/by_link.h) and leads its group.  None has requests, a tokenizer or files of its
 * own.
 *
 * HZP_OK: rank 0 has ended in good order; errors of hzp_assembly_open and hzp_member_run. */
int hzp_group_join(const struct hzp_engine_settings *settings, struct hzp_link *link,
                   struct hzp_err_text *reterr);
