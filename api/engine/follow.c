/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/follow.h"

#include "base/log.h"

#include <inttypes.h>

static const uint64_t slice_ns = 100000000; /* the longest step */

struct follow {
    const struct hzp_follow_config *config;
    struct hzp_assembly parts;
};

static int receive(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    struct follow *f = ctx;
    struct hzp_assembly *a = &f->parts;
    bool sharded = a->shards.groups.z3 > 1;
    if (sharded && !f->config->fill)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "this command needs whole weights on each rank: use --z3 1");
    if (sharded)
        HZP_TRY(f->config->fill(f->config->ctx, a, draft, reterr));
    return hzp_follower_receive(a->follower, draft, reterr);
}

static int run(struct follow *f, struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = &f->parts;
    struct hzp_assembly_loop loop = {.idle_ns = slice_ns};
    struct hzp_follower_stats stats;
    HZP_TRY(hzp_assembly_open(a, 1, reterr));
    HZP_TRY(hzp_assembly_open_follower(a, reterr));
    HZP_TRY(hzp_assembly_fill(a, receive, f, reterr));
    HZP_TRY(hzp_assembly_open_loop(a, &loop, reterr));
    hzp_log(HZP_LOG_INFO, "train", "follows rank=%d ranks=%d optimizer_step=%" PRId64,
            hzp_link_rank(a->is.link), hzp_link_ranks(a->is.link),
            hzp_weights_current(a->weights)->record.optimizer_step);
    hzp_loop_stop(a->loop, false); /* it ends when the follower is no longer busy */
    int r = hzp_loop_run(a->loop);
    hzp_follower_read_stats(a->follower, &stats);
    if (stats.failure[0])
        return hzp_fail(reterr, HZP_EIO, "%s", stats.failure);
    return r < 0 ? hzp_fail(reterr, r, "the device failed") : HZP_OK;
}

int hzp_follow(const struct hzp_follow_config *config, struct hzp_err_text *reterr)
{
    const struct hzp_engine_settings *s = config->settings;
    struct hzp_assembly_config parts = {.device = &s->device,
                                        .model = &s->model,
                                        .training = &s->training,
                                        .source_dir = config->source_dir,
                                        .link = config->link,
                                        .serves = config->serves};
    struct follow f = {.config = config};
    int r = hzp_assembly_read(&parts, &f.parts, reterr);
    if (r == HZP_OK)
        r = run(&f, reterr);
    hzp_assembly_close(&f.parts);
    return r;
}
