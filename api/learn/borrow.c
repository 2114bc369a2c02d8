/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/borrow.c - an earlier version's weights in a slot, to be read beside the one that
 * serves: from a slot that still has them, or from disk. */
#include "api/learn/state_private.h"
#include "api/learn/versions.h"
#include "weights/model_dir.h"

struct loan {
    struct hzp_state *s;
    uint64_t id;
    bool on_disk, empty; /* empty: its contents are to be read */
    struct hzp_version *version;
};

static int take(void *ctx, const struct hzp_border *border)
{
    struct loan *l = ctx;
    struct hzp_weights *w = l->s->model->weights;
    int code = hzp_weights_acquire_earlier(w, l->id, &l->version);
    if (code != HZP_ENOENT || !l->on_disk)
        return code;
    code = hzp_weights_acquire_empty(w, &l->version);
    l->empty = code == HZP_OK;
    return code;
}

static int give_back(void *ctx, const struct hzp_border *border)
{
    struct loan *l = ctx;
    hzp_weights_release(l->s->model->weights, l->version, border->last_step);
    return HZP_OK;
}

static int set_id(void *ctx, const struct hzp_border *border)
{
    struct loan *l = ctx;
    l->version->record.id = l->id;
    return HZP_OK;
}

void hzp_state_give_back(struct hzp_state *s, struct hzp_version *version)
{
    struct loan l = {.s = s, .version = version};
    if (version)
        hzp_loop_call(s->loop, give_back, &l); /* where the loop has ended, no slot is needed */
}

static int fill(struct loan *l, const struct hzp_version_record *record,
                const struct hzp_logged_checkpoint *from, struct hzp_err_text *reterr)
{
    struct hzp_state *s = l->s;
    const struct hzp_units *units = hzp_version_units(s->model->weights, l->version);
    uint64_t sum = record->checksum;
    char dir[PATH_MAX];
    if (!from->id)
        return hzp_state_load_original(s, units, sum, reterr);
    snprintf(dir, sizeof(dir), "%s/%s", s->dir, from->name);
    HZP_TRY(hzp_model_load(dir, s->model->dev, units, &sum, reterr));
    return sum == record->checksum
               ? HZP_OK
               : hzp_fail(reterr, HZP_EFORMAT, "%s: the weights are damaged (checksum)", dir);
}

int hzp_state_borrow(struct hzp_state *s, const char *name, struct hzp_version **ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_version_record record;
    struct hzp_logged_checkpoint from;
    struct hzp_weights_stats stats;
    struct loan l = {.s = s};
    hzp_weights_read_stats(s->model->weights, &stats);
    HZP_TRY(hzp_state_find(s, name, &l.id, reterr));
    HZP_TRY(hzp_state_record(s, l.id, &record, reterr));
    HZP_TRY(hzp_state_find_kept(s, l.id, &from, reterr));
    l.on_disk = (from.id || hzp_state_is_original(s, l.id)) && stats.slots > 1 &&
                !hzp_weights_fp8(s->model->weights);
    int code = hzp_state_call(s, take, &l, reterr);
    if (code == HZP_ENOENT)
        return hzp_fail(reterr, code, "version %" PRIu64 " is in no slot, and %s", l.id,
                        from.id ? "with --fp8 or one slot it is not read from disk"
                                : "not on disk: name a version while it serves to keep it");
    HZP_TRY(code);
    code = l.empty ? fill(&l, &record, &from, reterr) : HZP_OK;
    if (code >= 0 && l.empty)
        code = hzp_state_call(s, set_id, &l, reterr);
    if (code >= 0)
        *ret = l.version;
    else
        hzp_state_give_back(s, l.version);
    return code;
}
