/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that go on after the server has ended, also by kill -9: those that train, and need no
 * weights that the next server would not have.  Two notes of the sample log have a job's body, and
 * where it is: what it has counted, its curve, and the numbers of the groups that have begun and
 * are neither learned nor dropped.  The latter is written in the transaction that commits an
 * update's samples, with the first one's number, and again when the update is settled.  So a group
 * is either among the committed ones, and never begins again, or begins again with its number:
 * with its prompt and its seed. */
#include "api/learn/lessons.h"
#include "api/rollout/rollouts_state.h"
#include "base/log.h"

static const char body_note[] = "rollout_body-", job_note[] = "rollout-", curve_note[] = "curve-";

enum { COUNTS = 12 };
static void counts_of(struct hzp_rollout_job *job, int64_t *ret[COUNTS])
{
    struct hzp_rollout_table *t = &job->table;
    int64_t *const all[COUNTS] = {&t->begun,   &t->dropped,    &t->taken,      &t->lost,
                                  &t->rewards, &job->rewarded, &job->answered, &job->truncated,
                                  &job->stale, &job->late,     &job->turns,    &job->committed};
    memcpy(ret, all, sizeof(all));
}

static json_t *pack_point(const struct hzp_rollout_point *p)
{
    return json_pack("[I, I, I, i, f, f, f]", (json_int_t)p->optimizer_step,
                     (json_int_t)p->staleness, (json_int_t)p->version, (int)p->samples,
                     p->reward_mean, p->seconds, p->kl);
}

static bool unpack_point(json_t *json, struct hzp_rollout_point *ret)
{
    json_int_t step, staleness, version;
    int samples;
    bool good = json_unpack(json, "[I, I, I, i, F, F, F]", &step, &staleness, &version, &samples,
                            &ret->reward_mean, &ret->seconds, &ret->kl) == 0;
    if (!good)
        return false;
    ret->optimizer_step = step;
    ret->staleness = staleness;
    ret->version = (uint64_t)version;
    ret->samples = samples;
    return true;
}

char *hzp_rollout_kept(struct hzp_rollout_job *job)
{
    json_t *counts = json_array(), *open = json_array(), *curve = json_array();
    int64_t *count[COUNTS];
    counts_of(job, count);
    for (int i = 0; i < COUNTS; i++)
        json_array_append_new(counts, json_integer(*count[i]));
    for (int32_t i = 0; i < job->table.room; i++) {
        const struct hzp_rollout_group *group = &job->table.group[i];
        if (group->state == HZP_GROUP_OPEN || group->state == HZP_GROUP_READY)
            json_array_append_new(open, json_integer(group->number));
    }
    for (int32_t i = 0; i < job->table.agains; i++)
        json_array_append_new(open, json_integer(job->table.again[i]));
    for (int32_t i = 0; i < job->done; i++)
        json_array_append_new(curve, pack_point(&job->point[i]));
    json_auto_t *kept = json_pack(
        "{s:I, s:o, s:[f, f, f], s:i, s:o, s:o, s:o}", "created", (json_int_t)job->created_s,
        "counts", counts, "sums", job->table.reward_sum, job->reward_sum,
        job->before_s + (job->slot ? (double)(hzp_now_ns() - job->begin_ns) * 1e-9 : 0), "rejected",
        (int)job->rejected, "open", open, "curve", curve, "next", pack_point(&job->next));
    return json_dumps(kept, JSON_COMPACT);
}

/* value NULL: there is none any more. */
static int put(const struct hzp_rollouts *r, const char *note, uint64_t id, const char *value,
               struct hzp_err_text *reterr)
{
    char name[HZP_ROLLOUT_NOTE];
    snprintf(name, sizeof(name), "%s%" PRIu64, note, id);
    return hzp_state_put_note(r->config.state, name, value, reterr);
}

static char *get(const struct hzp_rollouts *r, const char *note, uint64_t id)
{
    char name[HZP_ROLLOUT_NOTE];
    snprintf(name, sizeof(name), "%s%" PRIu64, note, id);
    return hzp_state_note(r->config.state, name);
}

const char *hzp_rollout_note(const struct hzp_rollout_job *job, char ret[HZP_ROLLOUT_NOTE])
{
    snprintf(ret, HZP_ROLLOUT_NOTE, "%s%" PRIu64, job_note, job->id);
    return ret;
}

int hzp_rollout_keep(struct hzp_rollouts *r, struct hzp_rollout_job *job, bool body,
                     struct hzp_err_text *reterr)
{
    if (!job->outlives)
        return HZP_OK;
    HZP_FREED char *kept = hzp_rollout_kept(job);
    HZP_FREED char *text = body ? hzp_json_dumps(job->spec.body, JSON_COMPACT) : NULL;
    HZP_TRY(put(r, job_note, job->id, kept, reterr));
    return body ? put(r, body_note, job->id, text, reterr) : HZP_OK;
}

void hzp_rollout_forget(struct hzp_rollouts *r, uint64_t id)
{
    struct hzp_err_text err = {.text = ""};
    int code = put(r, body_note, id, NULL, &err);
    if (code >= 0)
        code = put(r, job_note, id, NULL, &err);
    if (code < 0)
        hzp_log(HZP_LOG_WARN, "state", "a job of rollouts stays after its end: %s", err.text);
}

void hzp_rollout_keep_curve(const struct hzp_rollouts *r, uint64_t id, const json_t *curve)
{
    struct hzp_err_text err = {.text = ""};
    HZP_FREED char *text = curve ? json_dumps(curve, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (r->config.state && put(r, curve_note, id, text, &err) < 0)
        hzp_log(HZP_LOG_WARN, "state", "the curve of a job of rollouts is not kept: %s", err.text);
}

json_t *hzp_rollout_curve(const struct hzp_rollouts *r, uint64_t id)
{
    HZP_FREED char *text = r->config.state ? get(r, curve_note, id) : NULL;
    json_t *ret = text ? json_loads(text, 0, NULL) : NULL;
    return ret ? ret : json_array();
}

json_t *hzp_rollout_body(const struct hzp_rollouts *r, uint64_t id)
{
    HZP_FREED char *text = r->config.state ? get(r, body_note, id) : NULL;
    return text ? hzp_json_load(text, strlen(text), 0, NULL, NULL) : NULL;
}

static bool restore(struct hzp_rollout_job *job, const json_t *kept, int64_t first)
{
    const json_t *counts = json_object_get(kept, "counts"), *curve = json_object_get(kept, "curve");
    const json_t *open = json_object_get(kept, "open"), *number;
    int64_t *count[COUNTS];
    json_int_t created;
    int rejected;
    size_t i;
    bool good = json_unpack((json_t *)(uintptr_t)kept, "{s:I, s:[F, F, F], s:i}", "created",
                            &created, "sums", &job->table.reward_sum, &job->reward_sum,
                            &job->before_s, "rejected", &rejected) == 0 &&
                unpack_point(json_object_get(kept, "next"), &job->next) &&
                json_array_size(counts) == COUNTS &&
                json_array_size(curve) <= (size_t)job->spec.updates &&
                json_array_size(open) <= (size_t)job->table.room;
    counts_of(job, count);
    for (i = 0; good && i < COUNTS; i++)
        *count[i] = json_integer_value(json_array_get(counts, i));
    for (i = 0; good && i < json_array_size(curve); i++)
        good = unpack_point(json_array_get(curve, i), &job->point[job->done++]);
    json_array_foreach(open, i, number) good = good && json_integer_value(number) > 0;
    json_array_foreach(open, i, number) if (good)
        hzp_rollout_table_again(&job->table, json_integer_value(number));
    job->created_s = created;
    job->rejected = rejected;
    job->first = first;
    job->last = first ? first + job->next.samples - 1 : 0;
    return good;
}

int hzp_rollout_restore(const struct hzp_rollouts *r, struct hzp_rollout_job *job,
                        struct hzp_err_text *reterr)
{
    size_t used = 0;
    HZP_FREED char *text = get(r, job_note, job->id);
    json_auto_t *kept =
        text ? hzp_json_load(text, strlen(text), HZP_JSON_PREFIX, &used, NULL) : NULL;
    job->catches_up = true;
    return kept && restore(job, kept, strtoll(text + used, NULL, 10))
               ? HZP_OK
               : hzp_fail(reterr, HZP_EFORMAT, "what was kept of it cannot be read");
}
