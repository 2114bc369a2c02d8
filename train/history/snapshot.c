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

static int read_unit(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                     void **ret_owned, struct hzp_err_text *reterr)
{
    const struct hzp_snapshot *s = ctx;
    *ret = hzp_unit_view(&s->part[part], u);
    *ret_owned = NULL;
    return HZP_OK;
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
        s->state.source.part[p] = &s->part[p];
    }
    s->state.source.read = read_unit;
    s->state.source.ctx = s;
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

static int copy_unit(void *ctx, enum hzp_state_part part, int32_t u,
                     const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    const struct hzp_snapshot *s = ctx;
    struct hzp_unit_view to = hzp_unit_view(&s->part[part], u);
    memcpy(to.base, whole->base, hzp_unit_bytes(&to));
    return HZP_OK;
}

int hzp_snapshot_take(struct hzp_snapshot *s, struct hzp_trainer *t, const struct hzp_version *v,
                      struct hzp_err_text *reterr)
{
    struct hzp_train_state from;
    hzp_trainer_state(t, v, &from);
    s->state.numbers = from.numbers;
    s->state.recipe = from.recipe;
    for (int p = 0; p < HZP_STATE_PARTS; p++)
        if (s->part[p].layout)
            HZP_TRY(
                hzp_unit_stream(&from.source, (enum hzp_state_part)p, copy_unit, s, NULL, reterr));
    return HZP_OK;
}
