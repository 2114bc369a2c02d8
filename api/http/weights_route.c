/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/weights: all kept version records, newest first, and the current staleness. */
#include "api/http/http.h"

#include <math.h>
#include <stdlib.h>

enum { RECORDS_MAX = 4096 };

static const char *state_name(enum hzp_version_state state)
{
    switch (state) {
    case HZP_VERSION_DRAFT:
        return "draft";
    case HZP_VERSION_CURRENT:
        return "current";
    case HZP_VERSION_RETIRED:
        return "retired";
    default:
        return "freed";
    }
}

/* finished: every example up to this number is finished; most: the largest number up to which all
 * can have been learned. */
static json_t *through_json(int64_t finished, int64_t most)
{
    int64_t through = HZP_MIN(finished, most);
    return through < 0 ? json_null() : json_integer(through);
}

static json_t *record_json(const struct hzp_version_record *record, int64_t most)
{
    json_t *learned = json_array();
    for (int32_t i = 0; i < record->learned.ranges; i++)
        json_array_append_new(learned, json_pack("[I, I]", (json_int_t)record->learned.first[i],
                                                 (json_int_t)record->learned.last[i]));
    char checksum[20];
    snprintf(checksum, sizeof(checksum), "%016llx", (unsigned long long)record->checksum);
    return json_pack("{s:I, s:I, s:s, s:I, s:o, s:s, s:o, s:b, s:o}", "id", (json_int_t)record->id,
                     "optimizer_step", (json_int_t)record->optimizer_step, "state",
                     state_name(record->state), "published_unix_ms",
                     (json_int_t)record->published_unix_ms, "loss",
                     isfinite(record->loss) ? json_real(record->loss) : json_null(), "checksum",
                     checksum, "learned", learned, "learned_more", record->learned.more,
                     "learned_through", through_json(record->learned_through, most));
}

/* The query parameter limit, at most RECORDS_MAX; 0: it is not a valid number. */
static int32_t limit_of(const char *asked)
{
    if (!asked)
        return RECORDS_MAX;
    char *end = (char *)asked;
    long n = *asked >= '0' && *asked <= '9' ? strtol(asked, &end, 10) : 0;
    if (*end)
        return 0;
    return n < RECORDS_MAX ? (int32_t)n : RECORDS_MAX;
}

enum MHD_Result hzp_route_weights(struct hzp_exchange *x)
{
    struct hzp_weights *weights = x->server->engine->parts.weights;
    const char *asked = hzp_exchange_query(x, "limit");
    int32_t limit = limit_of(asked);
    if (!limit)
        return hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, "limit", NULL,
                               "limit must be a whole number of at least 1, not \"%.40s\"", asked);
    struct hzp_version_record *record = malloc(RECORDS_MAX * sizeof(*record));
    if (!record)
        return hzp_reply_error(x, MHD_HTTP_TOO_MANY_REQUESTS, NULL, NULL, "no memory now");
    struct hzp_weights_stats stats;
    struct hzp_state *state = x->server->engine->state;
    int64_t most = state ? hzp_state_learned_through(state, INT64_MAX) : INT64_MAX;
    hzp_weights_read_stats(weights, &stats);
    int32_t n = hzp_weights_list(weights, record, limit);
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(list, record_json(&record[i], most));
    free(record);
    json_t *seen = json_array();
    for (int i = 0; i < HZP_COUNT(stats.staleness_seen); i++)
        json_array_append_new(seen, json_integer((json_int_t)stats.staleness_seen[i]));
    return hzp_reply_json(
        x, MHD_HTTP_OK,
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:I, s:o, s:o, s:o, s:o}", "object",
                  "list", "serving", (json_int_t)stats.serving_id, "serving_optimizer_step",
                  (json_int_t)stats.serving_optimizer_step, "finished_optimizer_step",
                  (json_int_t)stats.finished_optimizer_step, "staleness",
                  (json_int_t)stats.staleness, "max_staleness", stats.max_staleness, "slots",
                  stats.slots, "slots_free", stats.slots_free, "publications",
                  (json_int_t)stats.publications, "learned_through",
                  through_json(stats.learned_through, most), "finished_through",
                  through_json(stats.learned_through, INT64_MAX), "staleness_histogram", seen,
                  "data", list));
}
