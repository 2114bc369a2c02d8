/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/run/record.h"

static const uint64_t short_ns = 50000, together_ns = 1000000;

/* Short items of one tenant and lane that follow each other. */
struct run {
    const char *name; /* NULL: none yet */
    uint64_t begin_ns, end_ns, items;
};

void hzp_record_fini(struct hzp_record *r)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        hzp_track_close(r->lane[l]);
}

static void flush(struct hzp_track *track, struct run *run)
{
    if (run->name)
        hzp_track_add(track, run->name, run->begin_ns, run->end_ns, run->items);
    *run = (struct run){.name = NULL};
}

static const char *tenant_name(const struct hzp_item *item)
{
    return hzp_item_only(item, HZP_TENANT_TRAIN) ? "training"
           : item->rides                         ? "both"
           : hzp_item_of(item, HZP_TENANT_SERVE) ? "serving"
                                                 : "transfer";
}

static void add(struct hzp_track *track, struct run *run, const struct hzp_item *item,
                const struct hzp_span *span)
{
    const char *name = tenant_name(item);
    if (span->end_ns >= span->begin_ns + short_ns) {
        flush(track, run);
        hzp_track_add(track, hzp_op_name(item->op), span->begin_ns, span->end_ns, 1);
        return;
    }
    if (run->name != name || span->end_ns > run->begin_ns + together_ns)
        flush(track, run);
    if (!run->name)
        *run = (struct run){name, span->begin_ns, span->end_ns, 0};
    run->end_ns = span->end_ns;
    run->items++;
}

void hzp_record_run(struct hzp_record *r, const struct hzp_plan *plan, const struct hzp_span *span)
{
    struct run run[HZP_LANE_COUNT] = {0};
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        int l = item->lane;
        if (!r->lane[l])
            r->lane[l] =
                hzp_track_open(hzp_lane_name_text((enum hzp_lane_name)l), HZP_TRACK_OPS, false);
        add(r->lane[l], &run[l], item, &span[i]);
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        flush(r->lane[l], &run[l]);
}
