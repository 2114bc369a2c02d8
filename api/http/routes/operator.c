/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/routes.h"

#include "base/log.h"
#include "mesh/launch/launch.h"

void hzp_operator_keep(struct hzp_engine *engine)
{
    struct hzp_front_rank is;
    json_t *drained = json_array();
    for (int r = 0; engine->front && hzp_front_rank(engine->front, r, &is) == HZP_OK; r++)
        if (is.draining)
            json_array_append_new(drained, json_integer(r));
    json_auto_t *all =
        json_pack("{s:o, s:o}", "policy", hzp_policy_kept(engine), "drained", drained);
    HZP_FREED char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    if (text)
        hzp_life_keep(text);
}

void hzp_operator_restore(struct hzp_engine *engine)
{
    struct hzp_err_text err = {{0}, {0}};
    int64_t staleness;
    size_t i;
    json_t *rank, *all = NULL;
    HZP_FREED char *text = hzp_life_kept();
    if (!text)
        return;
    all = json_loads(text, 0, NULL);
    const json_t *drained = json_object_get(all, "drained");
    int r = hzp_policy_set(engine, json_object_get(all, "policy"), &staleness, &err);
    if (r < 0)
        hzp_log(HZP_LOG_ERROR, "serve", "what the operator had set cannot be set again: %s",
                err.text);
    else
        hzp_log(HZP_LOG_INFO, "serve", "set again, as before rank 0 was lost: %s", text);
    json_array_foreach((json_t *)drained, i, rank) if (engine->front)
        hzp_front_drain(engine->front, (int)json_integer_value(rank), true);
    json_decref(all);
}
