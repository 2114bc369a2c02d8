/* SPDX-License-Identifier: Apache-2.0 */
#include "train/history/snapshot.h"

#include "train/conductor/trainer_state.h"

size_t hzp_snapshot_bytes(const struct hzp_layout *layout, enum hzp_dtype type,
                          enum hzp_dtype moment_type)
{
    size_t bytes = 0;
    enum hzp_dtype of;
    for (int p = 0; p < HZP_STATE_PARTS; p++) {
        const struct hzp_layout *part =
            hzp_state_layout(layout, type, moment_type, (enum hzp_state_part)p, &of);
        bytes += part ? hzp_units_bytes(part, of) : 0;
    }
    return bytes;
}

int hzp_snapshot_create(const struct hzp_layout *layout, enum hzp_dtype type,
                        enum hzp_dtype moment_type, struct hzp_snapshot **ret)
{
    struct hzp_snapshot *s = hzp_xcalloc(1, sizeof(*s));
    enum hzp_dtype of;
    for (int p = 0; p < HZP_STATE_PARTS; p++) {
        const struct hzp_layout *part =
            hzp_state_layout(layout, type, moment_type, (enum hzp_state_part)p, &of);
        if (!part)
            continue;
        s->memory[p] = malloc(hzp_units_bytes(part, of));
        if (!s->memory[p]) {
            hzp_snapshot_destroy(s);
            return HZP_ENOMEM;
        }
        hzp_units_init(&s->part[p], part, of, s->memory[p]);
    }
    *ret = s;
    return HZP_OK;
}

void hzp_snapshot_destroy(struct hzp_snapshot *s)
{
    if (!s)
        return;
    for (int p = 0; p < HZP_STATE_PARTS; p++) {
        if (s->part[p].layout)
            hzp_units_free(&s->part[p]);
        free(s->memory[p]);
    }
    free(s);
}

static int read_unit(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                     void **ret_owned, struct hzp_err_text *reterr)
{
    const struct hzp_snapshot *s = ctx;
    *ret = hzp_unit_view(&s->part[part], u);
    *ret_owned = NULL;
    return HZP_OK;
}

/* The copy as a source. */
static struct hzp_state_source source_of(const struct hzp_snapshot *s)
{
    struct hzp_state_source ret = {.read = read_unit, .ctx = (void *)(uintptr_t)s};
    for (int p = 0; p < HZP_STATE_PARTS; p++)
        ret.part[p] = s->part[p].layout ? &s->part[p] : NULL;
    return ret;
}

static int copy_unit(const struct hzp_snapshot *s, const struct hzp_state_source *from,
                     enum hzp_state_part part, int32_t u, struct hzp_err_text *reterr)
{
    struct hzp_unit_view to = hzp_unit_view(&s->part[part], u), view;
    void *owned;
    HZP_TRY(from->read(from->ctx, part, u, &view, &owned, reterr));
    memcpy(to.base, view.base, hzp_unit_bytes(&to));
    free(owned);
    return HZP_OK;
}

int hzp_snapshot_take(struct hzp_snapshot *s, struct hzp_trainer *t, const struct hzp_version *v,
                      struct hzp_err_text *reterr)
{
    struct hzp_trainer_source own;
    const struct hzp_state_source *from = hzp_trainer_state_source(t, v, &own);
    s->taken = false;
    for (int p = 0; p < HZP_STATE_PARTS; p++)
        for (int32_t u = 0; s->part[p].layout && u < s->part[p].layout->units; u++)
            HZP_TRY(copy_unit(s, from, (enum hzp_state_part)p, u, reterr));
    s->recipe = t->config.recipe;
    hzp_trainer_state_numbers(t, v, &s->numbers);
    s->taken = true;
    return HZP_OK;
}

int hzp_snapshot_save(const struct hzp_snapshot *s, const char *dir, const char *note,
                      struct hzp_err_text *reterr)
{
    const struct hzp_state_source source = source_of(s);
    struct hzp_trainer_numbers numbers = s->numbers;
    HZP_ASSERT(s->taken);
    HZP_TRY(hzp_state_source_sum(&source, HZP_STATE_WEIGHTS, &numbers.checksum, reterr));
    return hzp_state_file_write(&source, &numbers, &s->recipe, dir, note, reterr);
}

int hzp_snapshot_read_weights(void *snapshot, int32_t u, const void **ret,
                              struct hzp_err_text *reterr)
{
    const struct hzp_snapshot *s = snapshot;
    HZP_ASSERT(s->taken);
    *ret = hzp_unit_view(&s->part[HZP_STATE_WEIGHTS], u).base;
    return HZP_OK;
}
