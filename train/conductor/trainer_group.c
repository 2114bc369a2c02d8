/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_group.c - rank 0 of a group that computes each step together: what the
 * other ranks make its chains from, and checkpoints of what no rank has whole.
 *
 * A checkpoint is written by another thread while the trainer is frozen.  It asks for one unit at
 * a time, and of that for one piece at a time; the engine gathers each piece with a chain of its
 * own (nanobatch/model/gather.h), in a step in which requests are served as ever.  So the ranks
 * stay in step, nothing but steps uses the link, and no request waits for more than a piece. */
#include "train/learner/tensor_state.h"
#include "train/learner/whole.h"
#include "train/conductor/trainer_state.h"

struct hzp_group_gather {
    struct hzp_whole whole;
    struct hzp_unit_source source; /* it, with each unit gathered */
    char *slices;                  /* the piece's slices, rank by rank */
    struct hzp_gather piece;       /* the piece that is asked for */
    enum hzp_trainer_stage before; /* the stage before the chain that gathers it */
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
    size_t size = hzp_dtype_size(g->whole.part[g->piece.part].type);
    size_t bytes = (size_t)g->piece.count * size,
           elements = g->whole.slice[0].unit[g->piece.unit].elements;
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
    int64_t elements = (int64_t)t->group->whole.slice[0].unit[u].elements;
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
    size_t bytes = g->whole.slice[0].unit[u].elements * hzp_dtype_size(g->whole.part[part].type);
    for (int32_t rank = 0; rank < ranks_of(t); rank++)
        if (hzp_whole_join(&g->whole, part, u, rank, g->slices + (size_t)rank * bytes) < 0)
            return ranks_differ(t, rank, u, part, reterr);
    *ret = hzp_unit_view(&g->whole.part[part], u);
    *ret_owned = NULL;
    return HZP_OK;
}

const struct hzp_unit_source *hzp_trainer_whole(const struct hzp_trainer *t)
{
    return t->group ? &t->group->source : NULL;
}

const struct hzp_layout *hzp_trainer_whole_layout(const struct hzp_trainer *t)
{
    return t->group ? &t->group->whole.layout : NULL;
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

int hzp_trainer_keep_slices(struct hzp_trainer *t)
{
    const struct hzp_model *model = t->config.model;
    if (!model->tensor)
        return HZP_OK;
    struct hzp_group_gather *g = t->group = hzp_xcalloc(1, sizeof(*g));
    HZP_TRY(hzp_whole_open(&g->whole, t->config.whole, ranks_of(t), model,
                           hzp_weights_current(model->weights), t->learner->space));
    g->slices =
        malloc(hzp_layout_largest(&g->whole.slice[0]) * (size_t)ranks_of(t) * sizeof(float));
    if (!g->slices)
        return HZP_ENOMEM;
    g->source = (struct hzp_unit_source){.read = read_whole, .ctx = t};
    for (int p = 0; p < HZP_STATE_PARTS; p++)
        g->source.part[p] = g->whole.part[p].layout ? &g->whole.part[p] : NULL;
    t->holds_end = true;
    return HZP_OK;
}

void hzp_trainer_close_group(struct hzp_trainer *t)
{
    if (!t->group)
        return;
    hzp_whole_close(&t->group->whole);
    free(t->group->slices);
    free(t->group);
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
