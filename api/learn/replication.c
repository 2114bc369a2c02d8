/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/replication.h"

#include "api/learn/state_private.h"
#include "weights/model_dir.h"

/* --- Reading ---------------------------------------------------------------------------------- */

/* The directory of a version on disk. */
static int find_dir(struct hzp_state *s, uint64_t id, char ret[PATH_MAX],
                    struct hzp_err_text *reterr)
{
    struct hzp_logged_checkpoint kept;
    HZP_TRY(hzp_state_find_kept(s, id, &kept, reterr));
    if (!kept.id && hzp_state_original_dir(s, ret) && hzp_state_is_original(s, id))
        return HZP_OK;
    if (!kept.id)
        return hzp_fail(reterr, HZP_ENOENT,
                        "version %" PRIu64
                        " is not on disk: one that serves is written when it is given a name",
                        id);
    snprintf(ret, PATH_MAX, "%s/%s", s->dir, kept.name);
    return HZP_OK;
}

static bool find_manifest(struct hzp_state *s, uint64_t id, struct hzp_manifest *ret)
{
    bool found = false;
    HZP_LOCKED(&s->lock);
    for (int i = 0; i < HZP_STATE_MANIFESTS && !found; i++) {
        found = s->manifest[i].unit && s->manifest[i].version == id;
        if (found)
            hzp_manifest_copy(ret, &s->manifest[i]);
    }
    return found;
}

int hzp_state_manifest(struct hzp_state *s, uint64_t id, struct hzp_manifest *ret,
                       struct hzp_err_text *reterr)
{
    char dir[PATH_MAX];
    bool idle = false;
    HZP_TRY(find_dir(s, id, dir, reterr));
    if (find_manifest(s, id, ret))
        return HZP_OK;
    if (!atomic_compare_exchange_strong(&s->manifest_busy, &idle, true))
        return hzp_fail(reterr, HZP_EBUSY, "another manifest is being made");
    int r = hzp_manifest_make(dir, s->config.layout, hzp_weights_type(s->model->weights),
                              &s->stopping, ret, reterr);
    if (r >= 0) {
        ret->version = id;
        HZP_LOCKED(&s->lock);
        struct hzp_manifest *place = &s->manifest[s->manifests++ % HZP_STATE_MANIFESTS];
        hzp_manifest_fini(place);
        hzp_manifest_copy(place, ret);
    }
    atomic_store(&s->manifest_busy, false);
    return r;
}

int hzp_state_read_unit(struct hzp_state *s, uint64_t id, int64_t unit, uint64_t at, void *ret,
                        size_t max, size_t *ret_bytes, struct hzp_err_text *reterr)
{
    char dir[PATH_MAX];
    const struct hzp_layout *l = s->config.layout;
    enum hzp_dtype type = hzp_weights_type(s->model->weights);
    size_t size = hzp_dtype_size(type);
    struct hzp_model_reader *reader;
    HZP_TRY(find_dir(s, id, dir, reterr));
    if (unit < 0 || unit >= l->units)
        return hzp_fail(reterr, HZP_ENOENT, "unit %" PRId64 ": there are %d", unit, l->units);
    uint64_t bytes = hzp_manifest_unit_bytes(l, type, (int32_t)unit);
    if (at % 8)
        return hzp_wrong(reterr, "offset", "must be a multiple of 8");
    *ret_bytes = (size_t)HZP_MIN(bytes - HZP_MIN(at, bytes), (uint64_t)max / 8 * 8);
    if (!*ret_bytes)
        return HZP_OK;
    HZP_TRY(hzp_model_open(dir, l, type, &reader, reterr));
    int r =
        hzp_model_read(reader, (int32_t)unit, (size_t)at / size, *ret_bytes / size, ret, reterr);
    hzp_model_close(reader);
    return r;
}

int hzp_state_read_text(struct hzp_state *s, uint64_t id, const char *name, uint64_t at, void *ret,
                        size_t max, size_t *ret_bytes, struct hzp_err_text *reterr)
{
    char dir[PATH_MAX];
    const char *known = NULL;
    HZP_TRY(find_dir(s, id, dir, reterr));
    for (int i = 0; (known = hzp_model_text_name(i)) && strcmp(name, known); i++)
        ;
    if (!known || at > HZP_MANIFEST_FILE_BYTES_MAX)
        return hzp_fail(reterr, HZP_ENOENT, "there is no file \"%.64s\"", name);
    return hzp_manifest_read_file(dir, known, at, ret, max, ret_bytes, reterr);
}

/* --- Receiving -------------------------------------------------------------------------------- */

int hzp_state_upload(struct hzp_state *s, struct hzp_upload **ret, struct hzp_err_text *reterr)
{
    *ret = s->upload;
    return s->upload ? HZP_OK
                     : hzp_fail(reterr, HZP_EINVAL,
                                "this server keeps no state (--state none): it takes no weights");
}

int hzp_state_replica(struct hzp_state *s, struct hzp_replica *ret, struct hzp_err_text *reterr)
{
    struct hzp_upload *unused;
    HZP_TRY(hzp_state_upload(s, &unused, reterr));
    ret->layout = s->config.layout;
    ret->type = hzp_weights_type(s->model->weights);
    hzp_fingerprint_shapes(ret->layout, NULL, ret->shapes);
    snprintf(ret->tokenizer, sizeof(ret->tokenizer), "%s", s->tokenizer);
    return HZP_OK;
}

int hzp_state_upload_begin(struct hzp_state *s, const struct hzp_manifest *m,
                           struct hzp_err_text *reterr)
{
    HZP_FREED struct hzp_logged_checkpoint *kept = NULL;
    HZP_ENDED(hzp_manifest_fini) struct hzp_manifest have = {.units = 0};
    char dir[PATH_MAX] = "";
    struct hzp_upload *upload;
    HZP_TRY(hzp_state_upload(s, &upload, reterr));
    if (hzp_trainer_whole_layout(s->trainer))
        return hzp_fail(reterr, HZP_EINVAL, "a server with --tensor takes no versions from others");
    HZP_TRY(hzp_manifest_agrees(m, s->config.layout, hzp_weights_type(s->model->weights),
                                s->tokenizer, reterr));
    int32_t n = hzp_state_kept(s, &kept, reterr);
    HZP_TRY(n);
    if (n > 0) {
        /* Where it is damaged, or was removed meanwhile, all units are sent. */
        if (hzp_state_manifest(s, kept[0].id, &have, reterr) == HZP_EBUSY)
            return HZP_EBUSY;
        snprintf(dir, sizeof(dir), "%s/%s", s->dir, kept[0].name);
    }
    return hzp_upload_begin(upload, m, have.unit ? &have : NULL, dir, reterr);
}
