/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/consistency.h"

#include "base/thread.h"

static const char *const mode_name[] = {"continue", "abort", "recompute", "pinned"};

const char *hzp_consistency_name(enum hzp_consistency mode)
{
    return mode_name[mode];
}

int hzp_consistency_find(const char *name)
{
    for (int i = 0; i < HZP_COUNT(mode_name); i++)
        if (!strcmp(name, mode_name[i]))
            return i;
    return -1;
}

int hzp_demands_check(const struct hzp_demands *d, const struct hzp_weights *w, uint64_t pin_ns,
                      struct hzp_err_text *reterr)
{
    int32_t slots = 0;
    while (w && hzp_weights_slot(w, slots))
        slots++;
    if (d->mode != HZP_PINNED)
        return HZP_OK;
    if (slots != 1 && slots < 3) /* with one slot no version ever replaces the first */
        return hzp_fail_param(reterr, HZP_EINVAL, "consistency",
                              "consistency \"pinned\" needs 3 or more slots of weights (--slots), "
                              "this server has %d",
                              slots);
    if (!pin_ns)
        return hzp_fail_param(reterr, HZP_EINVAL, "consistency",
                              "consistency \"pinned\" is switched off (--pin-seconds 0)");
    return HZP_OK;
}

/* The part that does not depend on how far behind the version is. */
static enum hzp_met met_by(const struct hzp_demands *d, struct hzp_weights *w,
                           const struct hzp_version *v)
{
    if (d->min_sequence && hzp_weights_unlearned(w, d->min_sequence))
        return HZP_MET_NEVER;
    if (!v || v->record.id < d->min_version)
        return HZP_MET_NOT_YET;
    int64_t through = d->through ? hzp_weights_learnable(w, d->through) : 0;
    through = HZP_MAX(through, d->min_sequence);
    return through > 0 && v->record.learned_through < through ? HZP_MET_NOT_YET : HZP_MET;
}

enum hzp_met hzp_demands_met(const struct hzp_demands *d, struct hzp_weights *w,
                             const struct hzp_version *v)
{
    hzp_assert_engine_thread();
    enum hzp_met met = met_by(d, w, v);
    bool stale = d->max_staleness >= 0 && hzp_weights_staleness(w) > d->max_staleness;
    return met == HZP_MET && stale ? HZP_MET_NOT_YET : met;
}

bool hzp_demands_lost(const struct hzp_demands *d, struct hzp_weights *w,
                      const struct hzp_version *v)
{
    hzp_assert_engine_thread();
    return hzp_demands_wait(d) && met_by(d, w, v) != HZP_MET;
}

uint64_t hzp_demands_oldest(const struct hzp_demands *d, uint64_t current)
{
    return hzp_demands_fresh(d) ? current : HZP_MIN(d->min_version, current);
}

enum hzp_at_swap hzp_demands_at_swap(const struct hzp_demands *d, struct hzp_weights *w,
                                     const struct hzp_version *v, int32_t drawn)
{
    hzp_assert_engine_thread();
    if (d->mode == HZP_PINNED)
        return HZP_SWAP_GO_ON;
    if (hzp_demands_lost(d, w, v))
        return HZP_SWAP_END;
    if (d->mode == HZP_ABORT && drawn)
        return HZP_SWAP_END;
    return d->mode == HZP_CONTINUE ? HZP_SWAP_GO_ON : HZP_SWAP_RECOMPUTE;
}
