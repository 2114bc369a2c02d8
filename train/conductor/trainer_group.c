/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_group.c - rank 0 of a group that computes each step together: what the
 * other ranks make its chains from, and checkpoints of what no rank has whole.
 *
 * A checkpoint is written by another thread while the trainer is frozen.  It asks for one unit at
 * a time, and of that for one piece at a time; the engine gathers each piece with a chain of its
 * own (nanobatch/model/gather.h), in a step in which requests are served as ever.  So the ranks
 * stay in step, nothing but steps uses the link, and no request waits for more than a piece. */
#include "base/arena.h"
#include "nanobatch/loop.h"
#include "train/learner/tensor_state.h"
#include "train/conductor/trainer_state.h"
#include "weights/tensor_slice.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct hzp_group_gather {
    struct hzp_layout layout;               /* the whole model's */
    struct hzp_layout *slice;               /* [ranks] */
    struct hzp_state_source whole;          /* each unit of each part passes through `unit` */
    struct hzp_units part[HZP_STATE_PARTS]; /* its units; layout NULL: there is no such part */
    char *unit;                             /* the largest, in F32 */
    char *slices;                           /* the piece's slices, rank by rank */
    struct hzp_gather piece;                /* the piece that is asked for */
    enum hzp_trainer_stage before;          /* the stage before the chain that gathers it */
};

int hzp_trainer_check_group(const struct hzp_trainer_config *c, struct hzp_err_text *reterr)
{
    if (c->model->tensor && (c->trials || c->chunk_rows || c->prepare_behind))
        return hzp_fail(reterr, HZP_EUNSUP,
                        "ranks that compute each step together learn without trials, riding rows, "
                        "and memory that is prepared behind");
    return HZP_OK;
}

/* --- Checkpoints: the engine thread ----------------------------------------------------------- */

static int32_t ranks_of(const struct hzp_trainer *t)
{
    return t->config.model->layout->slice.ranks;
}

static void begin_gather(struct hzp_trainer *t)
{
    struct hzp_group_gather *g = t->group;
    const struct hzp_work work = {.kind = HZP_WORK_GATHER, .gather = g->piece};
    g->before = t->stage;
    t->stage = HZP_TRAINER_GATHER;
    HZP_ASSERT(hzp_learner_version(t->learner) == t->picture);
    hzp_learner_begin(t->learner, &work);
}

/* Copies the piece here, because the next chain uses its memory for something else. */
static int end_gather(struct hzp_trainer *t)
{
    struct hzp_group_gather *g = t->group;
    size_t size = hzp_dtype_size(g->part[g->piece.part].type);
    size_t bytes = (size_t)g->piece.count * size,
           elements = g->slice[0].unit[g->piece.unit].elements;
    const char *from = hzp_gather_data(t->learner->space);
    int r = HZP_OK;
    for (int32_t rank = 0; rank < ranks_of(t) && r >= 0; rank++)
        r = hzp_device_copy(t->config.model->dev,
                            g->slices + ((size_t)rank * elements + (size_t)g->piece.from) * size,
                            from + (size_t)rank * bytes, bytes);
    t->stage = g->before;
    return r;
}

/* At a border: begins the chain that gathers the piece when no other is in progress, and is done
 * when that has ended. */
static int gather_piece(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    if (t->stage == HZP_TRAINER_BROKEN)
        return HZP_EIO;
    if (t->stage == HZP_TRAINER_GATHER && t->learner->at == t->learner->chain.items)
        return end_gather(t);
    if (t->stage == HZP_TRAINER_IDLE || t->stage == HZP_TRAINER_WAIT)
        begin_gather(t);
    return HZP_EBUSY;
}

/* --- Checkpoints: the thread that froze the trainer ------------------------------------------- */

/* All ranks' slices of the unit, piece by piece. */
static int gather_slices(struct hzp_trainer *t, enum hzp_state_part part, int32_t u,
                         struct hzp_err_text *reterr)
{
    struct hzp_gather *piece = &t->group->piece;
    int64_t elements = (int64_t)t->group->slice[0].unit[u].elements;
    int64_t most = hzp_gather_most(t->config.model, t->learner->space);
    *piece = (struct hzp_gather){.part = part, .unit = u};
    for (; piece->from < elements; piece->from += piece->count) {
        piece->count = (int32_t)HZP_MIN(most, elements - piece->from);
        int r = t->picture ? hzp_loop_call(t->loop, gather_piece, t) : HZP_EIO;
        if (r < 0)
            return hzp_fail(reterr, HZP_EIO,
                            "cannot gather the state of all ranks: they have ended");
    }
    return HZP_OK;
}

/* What they serve and learn from here on is not one model's, so the group ends. */
static int ranks_differ(struct hzp_trainer *t, int32_t rank, int32_t u, enum hzp_state_part part,
                        struct hzp_err_text *reterr)
{
    struct hzp_err_text text;
    hzp_fail(&text, HZP_EINVAL,
             "has another norm than rank 0 in unit %d of part %d of the state: of norms all ranks "
             "must have the same",
             u, (int)part);
    hzp_link_abort(t->config.group, rank, text.text);
    return hzp_fail(reterr, HZP_EINVAL, "rank %d %s", rank, text.text);
}

static int read_whole(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                      void **ret_owned, struct hzp_err_text *reterr)
{
    struct hzp_trainer *t = ctx;
    struct hzp_group_gather *g = t->group;
    HZP_TRY(gather_slices(t, part, u, reterr));
    size_t size = hzp_dtype_size(g->part[part].type), elements = g->slice[0].unit[u].elements;
    memset(g->unit, 0, g->layout.unit[u].elements * size);
    for (int32_t rank = 0; rank < ranks_of(t); rank++) {
        const char *slice = g->slices + (size_t)rank * elements * size;
        if (rank && !hzp_tensor_slice_agrees(&g->layout, &g->slice[rank], u, size, slice, g->unit))
            return ranks_differ(t, rank, u, part, reterr);
        hzp_tensor_slice_join(&g->layout, &g->slice[rank], u, size, slice, g->unit);
    }
    *ret = hzp_unit_view(&g->part[part], u);
    *ret_owned = NULL;
    return HZP_OK;
}

const struct hzp_state_source *hzp_trainer_whole(const struct hzp_trainer *t)
{
    return t->group ? &t->group->whole : NULL;
}

const struct hzp_layout *hzp_trainer_whole_layout(const struct hzp_trainer *t)
{
    return t->group ? &t->group->layout : NULL;
}

/* --- Before the loop runs --------------------------------------------------------------------- */

int hzp_trainer_load_slices(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                            bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                            struct hzp_err_text *reterr)
{
    const struct hzp_tensor_state state = {.model = t->config.model,
                                           .whole = t->config.whole,
                                           .space = t->learner->space,
                                           .recipe = &t->config.recipe,
                                           .link = t->config.group};
    HZP_TRY(hzp_tensor_state_load(&state, v, dir, same_recipe, ret, ret_note, reterr));
    v->record.checksum = ret->checksum;
    return HZP_OK;
}

size_t hzp_trainer_slices_bytes(const struct hzp_layout *slice, int32_t ranks)
{
    return 2 * hzp_layout_largest(slice) * (size_t)ranks * sizeof(float);
}

static void open_parts(struct hzp_trainer *t)
{
    struct hzp_group_gather *g = t->group;
    struct hzp_version *current = hzp_weights_current(t->config.model->weights);
    for (int p = 0; p <= HZP_STATE_WEIGHTS; p++) {
        const struct hzp_units *own =
            hzp_gather_units(t->config.model, current, t->learner->space, (enum hzp_state_part)p);
        if (!own)
            continue;
        hzp_units_init(&g->part[p], &g->layout, own->type, NULL);
        for (int32_t u = 0; u < g->layout.units; u++)
            hzp_units_place(&g->part[p], u, g->unit);
        g->whole.part[p] = &g->part[p];
    }
}

int hzp_trainer_keep_slices(struct hzp_trainer *t)
{
    const struct hzp_model_config *whole = t->config.whole;
    int32_t ranks = ranks_of(t);
    if (!t->config.model->tensor)
        return HZP_OK;
    struct hzp_group_gather *g = t->group = hzp_xcalloc(1, sizeof(*g));
    hzp_layout_make(whole, &g->layout);
    g->slice = hzp_xcalloc((size_t)ranks, sizeof(*g->slice));
    for (int32_t r = 0; r < ranks; r++)
        hzp_layout_make_slice(whole, (struct hzp_tensor_slice){r, ranks}, &g->slice[r]);
    g->unit = malloc(hzp_layout_largest(&g->layout) * sizeof(float));
    g->slices = malloc(hzp_layout_largest(&g->slice[0]) * (size_t)ranks * sizeof(float));
    if (!g->unit || !g->slices)
        return HZP_ENOMEM;
    g->whole.read = read_whole;
    g->whole.ctx = t;
    open_parts(t);
    t->holds_end = true;
    return HZP_OK;
}

void hzp_trainer_close_group(struct hzp_trainer *t)
{
    struct hzp_group_gather *g = t->group;
    if (!g)
        return;
    for (int p = 0; p <= HZP_STATE_WEIGHTS; p++)
        if (g->part[p].layout)
            hzp_units_free(&g->part[p]);
    for (int32_t r = 0; r < ranks_of(t); r++)
        hzp_layout_free(&g->slice[r]);
    hzp_layout_free(&g->layout);
    free(g->slice);
    free(g->unit);
    free(g->slices);
    free(g);
}

/* --- The end of the loop ---------------------------------------------------------------------- */

int hzp_trainer_finished(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    bool rests = t->stage == HZP_TRAINER_IDLE && !t->learner->unpublished;
    return rests && atomic_load(&t->finishing) ? HZP_OK : HZP_EBUSY;
}

int hzp_trainer_let_end(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    t->holds_end = false;
    return HZP_OK;
}
