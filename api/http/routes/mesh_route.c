/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/mesh: the sites that this server averages its weights with. */
#include "api/http/routes/route.h"
#include "api/http/routes/routes.h"

static json_t *site_json(const struct hzp_sites *s, const struct hzp_rounds_stats *now, int i,
                         int self)
{
    double silent = now->site[i].silent_s;
    return json_pack("{s:s, s:b, s:b, s:b, s:o, s:I, s:I, s:i}", "address", hzp_sites_name(s, i),
                     "self", i == self, "alive", now->site[i].alive, "leads", i == now->leader,
                     "silent_seconds", silent < 0 ? json_null() : json_real(silent), "round",
                     (json_int_t)now->site[i].round, "updates", (json_int_t)now->site[i].updates,
                     "rounds_until_counted", now->site[i].left);
}

enum MHD_Result hzp_route_mesh(struct hzp_exchange *x)
{
    struct hzp_sites *s = x->server->engine->sites;
    struct hzp_rounds_stats now;
    json_t *list = json_array();
    int self, count = hzp_sites_count(s, &self);
    hzp_sites_read_stats(s, &now);
    for (int i = 0; i < count; i++)
        json_array_append_new(list, site_json(s, &now, i, self));
    return hzp_reply_pack(
        x, "{s:s, s:I, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "object",
        "mesh", "round", (json_int_t)now.round, "part", now.part, "stage", now.stage,
        "rounds_applied", (json_int_t)now.applied, "rounds_refused", (json_int_t)now.refused,
        "rounds_skipped", (json_int_t)now.skipped, "rounds_missed", (json_int_t)now.missed,
        "rounds_given_up", (json_int_t)now.given_up, "messages_refused",
        (json_int_t)now.bad_messages, "bytes_sent", (json_int_t)now.bytes_sent, "bytes_received",
        (json_int_t)now.bytes_received, "drift", now.drift, "sites", list);
}
