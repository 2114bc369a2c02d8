/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/tensor_state.h"

#include "train/learner/whole.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"

enum { TAG = 0x7473 }; /* marks the link's transfers */

struct load {
    const struct hzp_tensor_state *s;
    const struct hzp_version *v;
    int32_t rank, ranks;
    struct hzp_whole whole;
    char *piece;   /* this rank's slice of the largest unit */
    uint64_t *sum; /* [ranks] checksums of the ranks' slices of the weights */
};

static void close_load(struct load *l)
{
    hzp_whole_close(&l->whole);
    free(l->piece);
    free(l->sum);
}

static int open_load(struct load *l, const struct hzp_tensor_state *s, const struct hzp_version *v,
                     struct hzp_err_text *reterr)
{
    const struct hzp_layout *mine = s->model->layout;
    *l = (struct load){
        .s = s, .v = v, .rank = hzp_link_rank(s->link), .ranks = hzp_link_ranks(s->link)};
    HZP_ASSERT(HZP_MAX(mine->slice.ranks, 1) == l->ranks && mine->slice.rank == l->rank);
    l->sum = hzp_xcalloc((size_t)l->ranks, sizeof(*l->sum));
    l->piece = malloc(hzp_layout_largest(mine) * sizeof(float));
    if (!l->piece || hzp_whole_open(&l->whole, s->whole, l->ranks, s->model, v, s->space) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for a unit of the trainer's state");
    int r = hzp_train_space_restore(s->space);
    return r < 0 ? hzp_fail(reterr, r, "no memory for the trainer's state: %s", hzp_err_name(r))
                 : r;
}

/* --- The weights ------------------------------------------------------------------------------ */

/* Rank 0: the checksum of the weights in dir, and those of the slices that ranks should have. */
static int sum_files(struct load *l, const char *dir, uint64_t *ret_whole, uint64_t *ret_slice,
                     struct hzp_err_text *reterr)
{
    const struct hzp_units *units = &l->whole.part[HZP_STATE_WEIGHTS];
    struct hzp_model_reader *reader;
    int r = hzp_model_open(dir, &l->whole.layout, units->type, &reader, reterr);
    HZP_TRY(r);
    for (int32_t u = 0; u < l->whole.layout.units && r >= 0; u++) {
        struct hzp_unit_view whole = hzp_unit_view(units, u);
        r = hzp_model_read(reader, u, 0, whole.elements, whole.base, reterr);
        *ret_whole += r >= 0 ? hzp_unit_checksum(&whole) : 0;
        for (int32_t rank = 0; rank < l->ranks && r >= 0; rank++) {
            size_t elements = l->whole.slice[rank].unit[u].elements;
            struct hzp_unit_view slice = {
                .base = l->piece, .type = units->type, .elements = elements};
            slice.part.count = elements;
            hzp_tensor_slice_cut(&l->whole.layout, &l->whole.slice[rank], u,
                                 hzp_dtype_size(units->type), whole.base, l->piece);
            ret_slice[rank] += hzp_unit_checksum(&slice);
        }
    }
    hzp_model_close(reader);
    return r;
}

/* Rank 0: whether each rank has its slice of the weights in dir. */
static int check_slices(struct load *l, const char *dir, uint64_t *ret_whole,
                        struct hzp_err_text *reterr)
{
    uint64_t *should = hzp_xcalloc((size_t)l->ranks, sizeof(*should));
    int r = sum_files(l, dir, ret_whole, should, reterr);
    for (int32_t rank = 0; rank < l->ranks && r >= 0; rank++)
        if (l->sum[rank] != should[rank])
            r = hzp_fail(reterr, HZP_EFORMAT,
                         "rank %d has other weights than %s (checksum of its slice %016" PRIx64
                         ", not %016" PRIx64 ")",
                         rank, dir, l->sum[rank], should[rank]);
    free(should);
    return r;
}

/* --- Moments and residuals -------------------------------------------------------------------- */

/* Copies this rank's slice of a unit to where it belongs. */
static int keep(void *ctx, enum hzp_state_part part, int32_t u, const struct hzp_unit_view *whole,
                struct hzp_err_text *reterr)
{
    struct load *l = ctx;
    const struct hzp_model *model = l->s->model;
    struct hzp_unit_view mine = hzp_unit_view(hzp_gather_units(model, l->v, l->s->space, part), u);
    hzp_tensor_slice_cut(&l->whole.layout, model->layout, u, hzp_dtype_size(mine.type), whole->base,
                         l->piece);
    int r = hzp_device_copy(model->dev, mine.base, l->piece, hzp_unit_bytes(&mine));
    return r < 0 ? hzp_fail(reterr, r, "cannot copy unit %d of the trainer's state: %s", u,
                            hzp_err_name(r))
                 : HZP_OK;
}

static int read_state(struct load *l, const char *dir, bool same_recipe,
                      struct hzp_trainer_numbers *ret, char *ret_note, struct hzp_err_text *reterr)
{
    struct hzp_state_sink sink = {.threads = 1, .take = keep, .ctx = l};
    struct hzp_state_file *file;
    uint64_t sum = ret->checksum;
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        sink.part[p] = l->whole.part[p].layout ? &l->whole.part[p] : NULL;
    HZP_TRY(
        hzp_state_file_open(dir, &sink, l->s->recipe, same_recipe, &file, ret, ret_note, reterr));
    int r = hzp_state_file_belongs(file, sum, reterr);
    if (r >= 0)
        r = hzp_state_file_read(file, &sink, NULL, reterr);
    ret->checksum = sum;
    hzp_state_file_close(file);
    return r;
}

/* --- All of it -------------------------------------------------------------------------------- */

/* A rank that has failed goes on as the others expect it. */
static int load(struct load *l, const char *dir, bool same_recipe, struct hzp_trainer_numbers *ret,
                char *ret_note, struct hzp_err_text *own)
{
    const struct hzp_model *model = l->s->model;
    uint64_t sum = 0;
    int r = hzp_units_checksum(model->dev, hzp_version_units(model->weights, l->v), &sum);
    if (r < 0)
        hzp_fail(own, r, "cannot copy the weights to host memory: %s", hzp_err_name(r));
    HZP_TRY(hzp_link_gather(l->s->link, &sum, sizeof(sum), l->sum, TAG, r < 0 ? NULL : own));
    *ret = (struct hzp_trainer_numbers){.checksum = 0};
    if (r >= 0 && l->rank == 0)
        r = check_slices(l, dir, &ret->checksum, own);
    HZP_TRY(hzp_link_broadcast(l->s->link, 0, &ret->checksum, sizeof(ret->checksum), TAG,
                               r < 0 ? NULL : own));
    return r < 0 ? r : read_state(l, dir, same_recipe, ret, ret_note, own);
}

/* Whether all ranks have succeeded; a rank that has failed returns its own error. */
static int agree(const struct load *l, int r, const struct hzp_err_text *own,
                 struct hzp_err_text *reterr)
{
    int all = hzp_link_agree(l->s->link, r, own, TAG + 1, reterr);
    if (r < 0 && reterr)
        *reterr = *own;
    return r < 0 ? r : all;
}

int hzp_tensor_state_load(const struct hzp_tensor_state *s, struct hzp_version *v, const char *dir,
                          bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                          struct hzp_err_text *reterr)
{
    struct load l;
    struct hzp_err_text own = {{0}, {0}};
    int r = open_load(&l, s, v, &own);
    r = agree(&l, r, &own, reterr);
    if (r >= 0) {
        r = load(&l, dir, same_recipe, ret, ret_note, &own);
        r = agree(&l, r, &own, reterr);
    }
    close_load(&l);
    HZP_TRY(r);
    v->record.optimizer_step = ret->optimizer_step;
    v->record.learned_through = ret->learned_through;
    v->record.loss = ret->loss >= 0 ? ret->loss : NAN;
    return HZP_OK;
}
