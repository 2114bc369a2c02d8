/* SPDX-License-Identifier: Apache-2.0 */
/* What is shown of jobs, and what is kept of them for after a restart: no texts. */
#include "api/learn/lessons.h"
#include "api/rollout/rollouts_state.h"
#include "base/arena.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_WAITING = 64 };

const char *hzp_rollout_status_name(enum hzp_rollout_status status)
{
    static const char *const name[] = {"queued", "running", "succeeded", "failed", "cancelled"};
    return name[status];
}

static json_t *points(const struct hzp_rollout_job *job)
{
    json_t *ret = json_array();
    for (int32_t i = 0; i < job->done; i++) {
        const struct hzp_rollout_point *p = &job->point[i];
        json_array_append_new(ret,
                              json_pack("{s:i, s:I, s:I, s:f, s:I, s:i, s:f}", "update", (int)i + 1,
                                        "optimizer_step", (json_int_t)p->optimizer_step,
                                        "weights_version", (json_int_t)p->version, "reward_mean",
                                        p->reward_mean, "staleness", (json_int_t)p->staleness,
                                        "samples", (int)p->samples, "seconds", p->seconds));
    }
    return ret;
}

/* The answers that a client is to reward. */
static json_t *waiting(const struct hzp_rollout_job *job)
{
    json_t *ret = json_array();
    for (int32_t s = 0; job->slot && s < job->table.room; s++)
        for (int32_t m = 0; m < job->spec.n && json_array_size(ret) < SHOWN_WAITING; m++) {
            const struct hzp_rollout_answer *a = &job->slot[s].answer[m];
            if (a->awaits)
                json_array_append_new(ret, json_pack("{s:I, s:i, s:O}", "sample",
                                                     (json_int_t)a->sample, "prompt",
                                                     (int)job->slot[s].prompt, "text", a->text));
        }
    return ret;
}

json_t *hzp_rollout_json(const struct hzp_rollout_job *job, bool whole)
{
    const struct hzp_rollout_table *g = &job->table;
    const struct hzp_rollout_spec *spec = &job->spec;
    char id[40];
    snprintf(id, sizeof(id), "rollout-%" PRIu64, job->id);
    json_t *ret = json_pack("{s:s, s:s, s:s, s:I, s:o, s:b, s:s, s:i, s:i, s:i}", "id", id,
                            "object", "rollout", "status", hzp_rollout_status_name(job->status),
                            "created_at", (json_int_t)job->created_s, "reason",
                            job->why[0] ? json_string(job->why) : json_null(), "train", spec->train,
                            "algo", hzp_rollout_algo_name(spec->algo), "n", (int)spec->n, "batch",
                            (int)spec->batch, "max_staleness", (int)spec->staleness);
    json_object_set_new(ret, "updates",
                        json_pack("{s:i, s:i, s:i}", "wanted", spec->train ? (int)spec->updates : 0,
                                  "learned", (int)job->done, "rejected", (int)job->rejected));
    json_object_set_new(ret, "groups",
                        json_pack("{s:I, s:i, s:i, s:I}", "begun", (json_int_t)g->begun, "open",
                                  (int)hzp_rollout_table_count(g, HZP_ROLLOUT_GROUP_OPEN), "ready",
                                  (int)hzp_rollout_table_count(g, HZP_ROLLOUT_GROUP_READY),
                                  "dropped", (json_int_t)(spec->train ? g->dropped : 0)));
    json_object_set_new(
        ret, "samples",
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "answered", (json_int_t)job->answered,
                  "truncated", (json_int_t)job->truncated, "rewarded", (json_int_t)g->rewards,
                  "lost", (json_int_t)g->lost, "committed", (json_int_t)job->committed, "stale",
                  (json_int_t)job->stale, "late", (json_int_t)job->late));
    json_object_set_new(ret, "reward_mean",
                        g->rewards ? json_real(g->reward_sum / (double)g->rewards) : json_null());
    if (whole)
        json_object_set_new(ret, "curve", points(job));
    if (whole && job->slot)
        json_object_set_new(ret, "waiting", waiting(job));
    return ret;
}

json_t *hzp_rollouts_all(const struct hzp_rollouts *r)
{
    json_t *ret = json_array(), *past;
    size_t i;
    for (int32_t j = r->jobs - 1; j >= 0; j--)
        json_array_append_new(ret, hzp_rollout_json(r->job[j], false));
    json_array_foreach(r->past, i, past) json_array_append_new(ret, json_deep_copy(past));
    return ret;
}

void hzp_rollouts_keep(const struct hzp_rollouts *r)
{
    if (!r->config.state)
        return;
    json_t *all = hzp_rollouts_all(r);
    while (json_array_size(all) > HZP_ROLLOUTS_KEPT)
        json_array_remove(all, json_array_size(all) - 1);
    hzp_state_put_rollouts(r->config.state, all);
    json_decref(all);
}

void hzp_rollouts_restore(struct hzp_rollouts *r)
{
    json_t *job;
    size_t i;
    uint64_t id;
    r->past = r->config.state ? hzp_state_rollouts(r->config.state) : NULL;
    if (!json_is_array(r->past)) {
        json_decref(r->past);
        r->past = json_array();
    }
    json_array_foreach(r->past, i, job)
    {
        const char *status = json_string_value(json_object_get(job, "status"));
        const char *name = json_string_value(json_object_get(job, "id"));
        if (name && sscanf(name, "rollout-%" SCNu64, &id) == 1)
            r->last_id = HZP_MAX(r->last_id, id);
        if (!status || (strcmp(status, "queued") && strcmp(status, "running")))
            continue;
        json_object_set_new(job, "status", json_string("failed"));
        json_object_set_new(
            job, "reason",
            json_string("the server stopped while it ran: what it had committed is learned from "
                        "the log; post it again for the updates that are missing"));
    }
}
