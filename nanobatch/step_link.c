/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/step_link.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* Of the first broadcast: enough for a step that decodes some eighty sequences. */
enum { FIRST = 8192, DREW = 4 };

struct hzp_step_link {
    struct hzp_step_link_config config;
    struct hzp_step_pages pages;
    uint64_t step; /* of the newest record */
    struct {
        uint64_t step, hash;
    } drew[DREW];    /* of step n: drew[n % DREW] */
    uint64_t newest; /* of those */
    char *data;      /* [room] */
    size_t room;
};

struct hzp_step_link *hzp_step_link_create(const struct hzp_step_link_config *config)
{
    struct hzp_step_link *l = hzp_xcalloc(1, sizeof(*l));
    size_t room = hzp_step_record_room(&config->max, &config->limits);
    l->config = *config;
    l->room = HZP_MAX(room, (size_t)FIRST);
    l->data = hzp_xcalloc(1, l->room);
    hzp_step_pages_init(&l->pages, config->limits.lines, config->max.page_stride);
    return l;
}

void hzp_step_link_destroy(struct hzp_step_link *l)
{
    if (!l)
        return;
    hzp_step_pages_fini(&l->pages);
    free(l->data);
    free(l);
}

/* Part 0 or 1 of the record of the step behind the newest one. */
static int broadcast(struct hzp_step_link *l, int part, size_t from, size_t bytes,
                     struct hzp_err_text *reterr)
{
    struct hzp_transfer transfer = {.op = HZP_BROADCAST,
                                    .type = HZP_WIRE_BYTE,
                                    .count = bytes,
                                    .recv = l->data + from,
                                    .idle = true,
                                    .host = true,
                                    .tag = 2 * (l->step + 1) + (uint64_t)part};
    hzp_ticket ticket;
    HZP_TRY(hzp_link_post(l->config.link, &transfer, &ticket, reterr));
    return hzp_link_wait(l->config.link, ticket, reterr);
}

int hzp_step_link_send(struct hzp_step_link *l, struct hzp_step_record *record,
                       const struct hzp_batch *batch, struct hzp_err_text *reterr)
{
    HZP_ASSERT(record->step == l->step + 1);
    record->drawn_step = l->newest;
    record->drawn = l->newest ? l->drew[l->newest % DREW].hash : 0;
    size_t bytes = hzp_step_record_write(record, batch, &l->config.limits, &l->pages, l->data);
    HZP_TRY(broadcast(l, 0, 0, FIRST, reterr));
    if (bytes > FIRST)
        HZP_TRY(broadcast(l, 1, FIRST, bytes - FIRST, reterr));
    l->step++;
    return HZP_OK;
}

void hzp_step_link_drew(struct hzp_step_link *l, uint64_t step, const struct hzp_batch *batch)
{
    l->drew[step % DREW].step = step;
    l->drew[step % DREW].hash = hzp_step_drawn(batch);
    l->newest = step;
}

static int receive(struct hzp_step_link *l, size_t *ret_bytes, struct hzp_err_text *reterr)
{
    HZP_TRY(broadcast(l, 0, 0, FIRST, reterr));
    HZP_TRY(hzp_step_record_bytes(l->data, l->room, ret_bytes, reterr));
    return *ret_bytes > FIRST ? broadcast(l, 1, FIRST, *ret_bytes - FIRST, reterr) : HZP_OK;
}

/* Whether this rank drew what rank 0 did. */
static int compare(const struct hzp_step_link *l, const struct hzp_step_record *record,
                   struct hzp_err_text *reterr)
{
    uint64_t n = record->drawn_step;
    if (!n)
        return HZP_OK;
    if (l->drew[n % DREW].step != n)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "the record of step %llu tells of the tokens of step %llu, which this rank "
                        "does not know",
                        (unsigned long long)record->step, (unsigned long long)n);
    if (l->drew[n % DREW].hash != record->drawn)
        return hzp_fail(reterr, HZP_EINVAL,
                        "drew other tokens in step %llu than rank 0: they do not compute the same",
                        (unsigned long long)n);
    return HZP_OK;
}

int hzp_step_link_receive(struct hzp_step_link *l, const struct hzp_batch *before,
                          struct hzp_step_record *ret, struct hzp_batch *batch,
                          struct hzp_err_text *reterr)
{
    size_t bytes;
    HZP_TRY(receive(l, &bytes, reterr));
    HZP_TRY(hzp_step_record_read(l->data, bytes, &l->config.limits, &l->pages, before, ret, batch,
                                 reterr));
    if (ret->step != l->step + 1)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "the record of step %llu comes after that of step %llu",
                        (unsigned long long)ret->step, (unsigned long long)l->step);
    l->step++;
    return compare(l, ret, reterr);
}

int hzp_step_link_check(const struct hzp_step_link *l, struct hzp_err_text *reterr)
{
    struct hzp_link_state state;
    hzp_link_state(l->config.link, &state);
    if (!state.failed)
        return HZP_OK;
    return state.failed_rank < 0
               ? hzp_fail(reterr, HZP_EIO, "%s", state.why)
               : hzp_fail(reterr, HZP_EIO, "rank %d: %s", state.failed_rank, state.why);
}

void hzp_step_link_fail(struct hzp_step_link *l, const char *why)
{
    hzp_link_abort(l->config.link, hzp_link_rank(l->config.link), why);
}
