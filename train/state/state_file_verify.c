/* SPDX-License-Identifier: Apache-2.0 */
/* train/state/state_file_verify.c - compares the checksums in a checkpoint's trainer.safetensors
 * with its contents. */
#include "train/state/state_file.h"
#include "weights/safetensors.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool type_in_memory(enum hzp_disk_type type, enum hzp_dtype *ret)
{
    *ret = type == HZP_DISK_BF16  ? HZP_BF16
           : type == HZP_DISK_I16 ? HZP_I16
           : type == HZP_DISK_U8  ? HZP_Q8
                                  : HZP_F32;
    return *ret != HZP_F32 || type == HZP_DISK_F32;
}

/* The tensor, if it is there, holds all units in order. */
static int verify_tensor(const struct hzp_safetensors *st, const char *path, const char *name,
                         const struct hzp_layout *layout, struct hzp_err_text *reterr)
{
    char key[32], now[32];
    enum hzp_dtype type;
    uint64_t sum = 0;
    const struct hzp_st_tensor *t = hzp_safetensors_find(st, name);
    snprintf(key, sizeof(key), "%s_checksum", name);
    const char *then = hzp_safetensors_meta(st, key);
    if (!t && !then)
        return HZP_OK;
    if (!t || (uint64_t)t->elements != layout->elements || !type_in_memory(t->type, &type))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %s is missing or of another size", path,
                        name);
    if (!then)
        return HZP_OK; /* made by an earlier build */
    void *host = malloc(hzp_layout_largest(layout) * hzp_dtype_size(type));
    int r = host ? HZP_OK : hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory", path);
    int64_t at = 0;
    for (int32_t u = 0; u < layout->units && r >= 0; u++) {
        struct hzp_unit_view view = {.base = host,
                                     .type = type,
                                     .elements = layout->unit[u].elements,
                                     .part = {0, layout->unit[u].elements}};
        r = hzp_safetensors_read(t, at, (int64_t)view.elements, host, reterr);
        if (r >= 0)
            sum += hzp_unit_checksum(&view);
        at += (int64_t)view.elements;
    }
    free(host);
    HZP_TRY(r);
    snprintf(now, sizeof(now), "%016" PRIx64, sum);
    return strcmp(then, now)
               ? hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %s is damaged (checksum %s, not %s)",
                          path, name, now, then)
               : HZP_OK;
}

int hzp_trainer_verify(const char *dir, const struct hzp_layout *layout, uint64_t weights_checksum,
                       int64_t *ret_learned_through, struct hzp_err_text *reterr)
{
    char path[PATH_MAX], now[32];
    struct hzp_safetensors *st;
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    HZP_TRY(hzp_safetensors_open(path, &st, reterr));
    const char *then = hzp_safetensors_meta(st, "weights_checksum");
    const char *through = hzp_safetensors_meta(st, "learned_through");
    const char *moments = hzp_safetensors_meta(st, "moments");
    enum hzp_dtype type, of = moments && !strcmp(moments, "q8") ? HZP_Q8 : HZP_F32;
    snprintf(now, sizeof(now), "%016" PRIx64, weights_checksum);
    int r = HZP_OK;
    if (!then || strcmp(then, now))
        r = hzp_fail(reterr, HZP_EFORMAT, "%s: belongs to other weights (checksum %s, not %s)",
                     path, then ? then : "missing", now);
    for (int p = 0; p < HZP_STATE_WEIGHTS && r >= 0; p++) {
        enum hzp_state_part part = (enum hzp_state_part)p;
        const struct hzp_layout *units = hzp_state_layout(layout, HZP_BF16, of, part, &type);
        r = units ? verify_tensor(st, path, hzp_state_part_name(part), units, reterr) : HZP_OK;
    }
    *ret_learned_through = through ? strtoll(through, NULL, 10) : -1;
    hzp_safetensors_close(st);
    return r;
}
