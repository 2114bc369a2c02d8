/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/run/transfers.h"

#include "base/thread.h"

void hzp_transfers_init(struct hzp_transfers *t)
{
    memset(t, 0, sizeof(*t));
}

void hzp_transfers_fini(struct hzp_transfers *t)
{
    free(t->entry);
    free(t->dependency);
    hzp_track_close(t->track);
    memset(t, 0, sizeof(*t));
}

void hzp_transfers_clear(struct hzp_transfers *t)
{
    HZP_ASSERT(hzp_transfers_done(t));
    t->entries = t->dependencies = t->posted = t->done = t->passed = 0;
}

void hzp_transfers_begin(struct hzp_transfers *t)
{
    for (int32_t i = t->posted; i < t->entries; i++)
        t->entry[i].after = 0;
    t->dependencies = t->passed = 0;
}

int32_t hzp_transfers_add(struct hzp_transfers *t, const struct hzp_transfer *what, int32_t after)
{
    t->entry = hzp_xgrow(t->entry, &t->entries_room, t->entries + 1, sizeof(*t->entry));
    t->entry[t->entries] = (struct hzp_transfers_entry){.what = *what, .after = after};
    return t->entries++;
}

int32_t hzp_transfers_gather(struct hzp_transfers *t, int group, const void *mine, size_t bytes,
                             void *all, uint64_t tag, int32_t after)
{
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = group,
                                .count = bytes,
                                .send = mine,
                                .recv = all,
                                .host = true,
                                .tag = tag};
    return hzp_transfers_add(t, &what, after);
}

struct hzp_transfers_entry *hzp_transfers_newest(struct hzp_transfers *t)
{
    HZP_ASSERT(t->entries > t->posted);
    return &t->entry[t->entries - 1];
}

void hzp_transfers_depend(struct hzp_transfers *t, int32_t item, int32_t transfer)
{
    if (transfer < 0)
        return;
    HZP_ASSERT(transfer < t->entries &&
               (!t->dependencies || t->dependency[t->dependencies - 1].item <= item));
    t->dependency = hzp_xgrow(t->dependency, &t->dependencies_room, t->dependencies + 1,
                              sizeof(*t->dependency));
    t->dependency[t->dependencies++] = (struct hzp_dependency){item, transfer};
}

static int take_done(struct hzp_transfers *t, struct hzp_link *link, struct hzp_err_text *reterr)
{
    while (t->done < t->posted) {
        struct hzp_transfers_entry *e = &t->entry[t->done];
        int r = hzp_link_poll(link, e->ticket, reterr);
        if (r <= 0)
            return r;
        if (t->track)
            hzp_track_add(t->track, hzp_transfer_name(e->what.op), e->posted_ns, hzp_now_ns(),
                          e->ticket);
        if (e->then)
            HZP_TRY(e->then(e->ctx, reterr));
        t->done++;
    }
    return HZP_OK;
}

int hzp_transfers_turn(struct hzp_transfers *t, struct hzp_link *link, int32_t ended,
                       struct hzp_err_text *reterr)
{
    HZP_TRY(take_done(t, link, reterr));
    while (t->posted < t->entries && t->entry[t->posted].after <= ended) {
        struct hzp_transfers_entry *e = &t->entry[t->posted];
        if (e->ready && !e->ready(e->ctx))
            break;
        if (e->behind && t->done < t->posted) {
            HZP_TRY(take_done(t, link, reterr));
            if (t->done < t->posted)
                break;
        }
        if (e->before)
            HZP_TRY(e->before(e->ctx, reterr));
        e->before = NULL; /* once, even if the link is busy */
        int r = hzp_link_post(link, &e->what, &e->ticket, reterr);
        if (r == HZP_EBUSY)
            break;
        HZP_TRY(r);
        e->posted_ns = t->track ? hzp_now_ns() : 0;
        t->posted++;
    }
    return take_done(t, link, reterr);
}

int32_t hzp_transfers_limit(struct hzp_transfers *t, int32_t items)
{
    while (t->passed < t->dependencies && t->dependency[t->passed].transfer < t->done)
        t->passed++;
    return t->passed < t->dependencies ? t->dependency[t->passed].item : items;
}

int32_t hzp_transfers_cut(const struct hzp_transfers *t, int32_t from, int32_t to)
{
    int32_t next = t->posted;
    while (next < t->entries && t->entry[next].after <= from)
        next++;
    return next < t->entries ? HZP_MIN(to, t->entry[next].after) : to;
}
