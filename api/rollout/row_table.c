/* SPDX-License-Identifier: Apache-2.0 */
#include "api/rollout/row_table.h"

/* Its index; there is one more if there was none of this name; -1: there is no place. */
static int32_t consumer_of(struct hzp_rows *t, const char *name)
{
    for (int32_t i = 0; i < t->consumers; i++)
        if (!strcmp(t->consumer[i], name))
            return i;
    if (t->consumers == HZP_CONSUMERS_MAX)
        return -1;
    snprintf(t->consumer[t->consumers], HZP_CONSUMER_NAME, "%s", name);
    return t->consumers++;
}

void hzp_rows_begin(struct hzp_rows *t, int32_t groups, int32_t members, const json_t *named)
{
    HZP_ASSERT(groups * members <= HZP_ROWS_MAX);
    for (int i = 0; i < HZP_LEASES_MAX; i++)
        t->lease[i].until_ns = 0;
    memset(t->row, 0, (size_t)(groups * members) * sizeof(*t->row));
    t->groups = groups;
    t->members = members;
    t->consumers = 0;
    for (size_t i = 0; i < json_array_size(named); i++)
        consumer_of(t, json_string_value(json_array_get(named, i)));
    t->named = t->consumers;
}

/* NULL: it has run out, or is not known. */
static struct hzp_lease *lease_of(struct hzp_rows *t, int64_t id, uint64_t now_ns)
{
    struct hzp_lease *lease = &t->lease[(uint64_t)id % HZP_LEASES_MAX];
    if (!id || lease->id != id)
        return NULL;
    if (!lease->done && lease->until_ns && now_ns >= lease->until_ns) {
        lease->until_ns = 0;
        t->expired++;
    }
    return lease->done || lease->until_ns ? lease : NULL;
}

int hzp_rows_check(struct hzp_rows *t, const struct hzp_row *row, int64_t id, uint64_t now_ns,
                   struct hzp_err_text *reterr)
{
    const struct hzp_lease *lease = lease_of(t, id, now_ns);
    const char *wrong = !lease ? "has run out, or was never given"
                        : row && row->lease[lease->consumer] != id ? "is of other samples"
                        : row && lease->done                       ? "is done"
                                                                   : NULL;
    return wrong ? hzp_fail_param(reterr, HZP_EUNSUP, "lease", "lease %" PRId64 " %s", id, wrong)
                 : HZP_OK;
}

int hzp_rows_done(struct hzp_rows *t, int64_t id, uint64_t now_ns, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_rows_check(t, NULL, id, now_ns, reterr));
    struct hzp_lease *lease = lease_of(t, id, now_ns);
    for (int32_t i = 0; !lease->done && i < t->groups * t->members; i++)
        if (t->row[i].lease[lease->consumer] == id)
            t->row[i].done |= 1u << lease->consumer;
    lease->done = true;
    return HZP_OK;
}

bool hzp_rows_wanted(const struct hzp_rows *t, int32_t group)
{
    bool wanted = false;
    for (int32_t i = group * t->members; i < (group + 1) * t->members; i++)
        wanted |= t->row[i].number && (~t->row[i].done & ((1u << t->named) - 1));
    return wanted;
}

/* A row, or a group's. */
struct unit {
    int64_t order, number;       /* the smallest of its rows */
    int32_t first, rows, tokens; /* rows: that have a number, from index `first` on; 0: none */
};

/* What the consumer has next, of what it can have all of. */
static struct unit next_unit(struct hzp_rows *t, const struct hzp_rows_query *q, int32_t consumer,
                             uint64_t now_ns)
{
    int32_t span = q->columns & HZP_ROW_WHOLE ? t->members : 1;
    struct unit ret = {.order = -1};
    for (int32_t first = 0; first < t->groups * t->members; first += span) {
        struct unit u = {.first = first, .number = INT64_MAX, .order = INT64_MAX};
        bool can = true;
        for (int32_t i = first; i < first + span; i++) {
            const struct hzp_row *row = &t->row[i];
            if (!row->number)
                continue;
            can &= !(~row->ready & q->columns) && !(row->done >> consumer & 1) &&
                   !lease_of(t, row->lease[consumer], now_ns);
            u.number = HZP_MIN(u.number, row->number);
            u.order = q->newest ? HZP_MIN(u.order, row->order) : 0;
            u.tokens += row->tokens;
            u.rows++;
        }
        if (can && u.rows &&
            (u.order > ret.order || (u.order == ret.order && u.number < ret.number)))
            ret = u;
    }
    return ret;
}

int hzp_rows_take(struct hzp_rows *t, const struct hzp_rows_query *q, uint64_t now_ns, int32_t *ret,
                  struct hzp_err_text *reterr)
{
    int64_t id = t->last_lease + 1;
    struct hzp_lease *lease = &t->lease[(uint64_t)id % HZP_LEASES_MAX];
    int32_t consumer = t->groups ? consumer_of(t, q->consumer) : 0, n = 0, tokens = 0;
    if (consumer < 0 || (lease_of(t, lease->id, now_ns) && !lease->done))
        return hzp_fail(reterr, HZP_EBUSY, "a job has at most %d consumers and %d open leases",
                        HZP_CONSUMERS_MAX, HZP_LEASES_MAX);
    *lease = (struct hzp_lease){.id = id, .until_ns = now_ns + q->lease_ns, .consumer = consumer};
    struct unit u = next_unit(t, q, consumer, now_ns);
    for (; u.rows && n + u.rows <= q->count && tokens + u.tokens <= q->tokens;
         u = next_unit(t, q, consumer, now_ns)) {
        tokens += u.tokens;
        for (int32_t i = u.first; u.rows; i++)
            if (t->row[i].number) {
                t->row[ret[n++] = i].lease[consumer] = id;
                u.rows--;
            }
    }
    t->last_lease += n > 0;
    t->given += n > 0;
    lease->until_ns = n ? lease->until_ns : 0;
    return n || !u.rows || !q->count
               ? n
               : hzp_fail_param(reterr, HZP_EINVAL, "count",
                                "is too small: the next group has %d samples, of %d tokens", u.rows,
                                u.tokens);
}
