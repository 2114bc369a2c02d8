/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/tensor_slice.h"

int hzp_tensor_slice_check(const struct hzp_model_config *c, int32_t ranks,
                           struct hzp_err_text *reterr)
{
    const struct {
        const char *name;
        int32_t count;
    } parts[] = {{"attention heads", c->heads.heads},
                 {"key-value heads", c->heads.kv_heads},
                 {"inner width", c->inner},
                 {"vocabulary", c->vocab}};
    if (ranks < 1)
        return hzp_fail(reterr, HZP_EINVAL, "tensor parallelism over %d ranks", ranks);
    if (ranks > 1 && (c->norm_after || c->qk_norm_full))
        return hzp_fail(
            reterr, HZP_EUNSUP,
            "tensor parallelism is not supported for model_type %s, whose norms read the "
            "sums of all ranks",
            c->family);
    for (int i = 0; i < HZP_COUNT(parts); i++)
        if (parts[i].count % ranks)
            return hzp_fail(reterr, HZP_EINVAL,
                            "tensor parallelism over %d ranks: they do not divide the model's %s, "
                            "%d",
                            ranks, parts[i].name, parts[i].count);
    return HZP_OK;
}

/* Copies the unit's elements, in runs that lie together in both, from slice to whole or back. */
static void copy(const struct hzp_layout *whole, const struct hzp_layout *slice, int32_t u,
                 size_t size, char *at_whole, char *at_slice, bool to_whole)
{
    HZP_ASSERT(whole->disks == slice->disks);
    for (int32_t i = 0; i < slice->disks; i++) {
        const struct hzp_disk_tensor *d = &slice->disk[i];
        const struct hzp_tensor *part = &slice->tensor[d->tensor];
        const struct hzp_tensor *all = &whole->tensor[whole->disk[i].tensor];
        if (part->unit != u)
            continue;
        size_t part_cols = d->vector ? 1 : (size_t)part->cols;
        size_t all_cols = d->vector ? 1 : (size_t)all->cols;
        for (int32_t r = 0; r < d->rows; r++) {
            size_t row =
                (size_t)(whole->disk[i].row0 + d->disk_row0 - whole->disk[i].disk_row0 + r);
            char *w = at_whole + (all->offset + row * all_cols + (size_t)d->disk_col0) * size;
            char *s = at_slice + (part->offset + (size_t)(d->row0 + r) * part_cols) * size;
            memcpy(to_whole ? w : s, to_whole ? s : w, part_cols * size);
        }
    }
}

void hzp_tensor_slice_cut(const struct hzp_layout *whole, const struct hzp_layout *slice, int32_t u,
                          size_t size, const void *from, void *to)
{
    memset(to, 0, slice->unit[u].elements * size);
    copy(whole, slice, u, size, (char *)from, to, false);
}

void hzp_tensor_slice_join(const struct hzp_layout *whole, const struct hzp_layout *slice,
                           int32_t u, size_t size, const void *from, void *to)
{
    copy(whole, slice, u, size, to, (char *)from, true);
}

bool hzp_tensor_slice_agrees(const struct hzp_layout *whole, const struct hzp_layout *slice,
                             int32_t u, size_t size, const void *from, const void *unit)
{
    HZP_ASSERT(slice->tensors == whole->tensors);
    for (int32_t i = 0; i < slice->tensors; i++) {
        const struct hzp_tensor *a = &slice->tensor[i], *b = &whole->tensor[i];
        bool common = a->unit == u && a->rows == b->rows && a->cols == b->cols;
        size_t bytes = (size_t)a->rows * (size_t)a->cols * size;
        if (common && memcmp((const char *)from + a->offset * size,
                             (const char *)unit + b->offset * size, bytes) != 0)
            return false;
    }
    return true;
}
