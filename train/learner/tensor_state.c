/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/tensor_state.c - rank 0 says what it needs next, or how it has ended; the others do
 * it.  A rank that cannot copy its slice goes on as the others expect it and says so with the
 * slice, so the link stays in step and all ranks end with the same error. */
#include "train/learner/tensor_state.h"

#include "train/learner/whole.h"
#include "weights/tensor_slice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 0x7473 }; /* marks the link's transfers */

enum what {
    GATHER,  /* slices of a unit come to rank 0 */
    SCATTER, /* and go from it */
    END,
};

struct order {
    int32_t what, part, unit;
    int32_t code; /* END */
    struct hzp_err_text text;
    struct hzp_trainer_numbers numbers; /* END of a load */
    char note[HZP_TRAINER_NOTE_MAX + 1];
};

/* Goes before a slice. */
struct head {
    int32_t code, rank, part, unit;
    uint64_t checksum;
};

struct outcome {
    int32_t code;
    struct hzp_err_text text;
};

struct work {
    const struct hzp_tensor_state *s;
    const struct hzp_version *v;
    int32_t rank, ranks;
    char *piece; /* a head and a slice of the largest unit */
    /* rank 0 */
    struct hzp_whole whole;
    struct outcome own; /* another rank: its first failure, told at the end */
};

static struct hzp_unit_view slice_view(const struct work *w, enum hzp_state_part part, int32_t u)
{
    const struct hzp_units *units = hzp_gather_units(w->s->model, w->v, w->s->space, part);
    HZP_ASSERT(units && hzp_units_whole(units));
    return hzp_unit_view(units, u);
}

/* --- What ranks tell each other --------------------------------------------------------------- */

static int broadcast(struct work *w, int root, void *data, size_t bytes,
                     struct hzp_err_text *reterr)
{
    return hzp_link_broadcast(w->s->link, root, data, bytes, TAG, reterr);
}

/* Every rank says how it has fared, and fails as the first that failed. */
static int agree(struct work *w, const struct outcome *own, struct hzp_err_text *reterr)
{
    return hzp_link_agree(w->s->link, own->code, &own->text, TAG + 1, reterr);
}

/* --- Slices ----------------------------------------------------------------------------------- */

static struct hzp_unit_view in_piece(const struct work *w, struct hzp_unit_view view)
{
    view.base = w->piece + sizeof(struct head);
    return view;
}

static void write_head(struct work *w, int32_t rank, enum hzp_state_part part, int32_t u, int code,
                       const struct hzp_unit_view *data)
{
    struct head head = {.code = code,
                        .rank = rank,
                        .part = (int32_t)part,
                        .unit = u,
                        .checksum = hzp_unit_checksum(data)};
    memcpy(w->piece, &head, sizeof(head));
}

/* Whether the piece is what it should be. */
static int check_head(const struct work *w, int32_t rank, enum hzp_state_part part, int32_t u,
                      const struct hzp_unit_view *data, struct hzp_err_text *reterr)
{
    struct head head;
    memcpy(&head, w->piece, sizeof(head));
    if (head.code < 0)
        return hzp_fail(reterr, head.code, "rank %d cannot copy its slice of unit %d of %s: %s",
                        rank, u, hzp_state_part_name(part), hzp_err_name(head.code));
    if (head.rank != rank || head.part != (int32_t)part || head.unit != u ||
        head.checksum != hzp_unit_checksum(data))
        return hzp_fail(reterr, HZP_EIO,
                        "rank %d's slice of unit %d of %s is another one, or was damaged on its "
                        "way",
                        rank, u, hzp_state_part_name(part));
    return HZP_OK;
}

/* Rank `rank`'s slice comes into the piece. */
static int pass(struct work *w, int32_t rank, enum hzp_state_part part, int32_t u,
                struct hzp_err_text *reterr)
{
    struct hzp_unit_view mine = slice_view(w, part, u), data = in_piece(w, mine);
    if (rank == w->rank) {
        int r = hzp_device_copy(w->s->model->dev, data.base, mine.base, hzp_unit_bytes(&mine));
        write_head(w, rank, part, u, r, &data);
    }
    if (rank == 0 && w->rank == 0) /* stays here */
        return HZP_OK;
    return broadcast(w, rank, w->piece, sizeof(struct head) + hzp_unit_bytes(&mine), reterr);
}

/* --- Rank 0 ----------------------------------------------------------------------------------- */

static int tell(struct work *w, enum what what, enum hzp_state_part part, int32_t u,
                struct hzp_err_text *reterr)
{
    struct order order = {.what = (int32_t)what, .part = (int32_t)part, .unit = u};
    return w->ranks > 1 ? broadcast(w, 0, &order, sizeof(order), reterr) : HZP_OK;
}

static int gather(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                  void **ret_owned, struct hzp_err_text *reterr)
{
    struct work *w = ctx;
    struct hzp_unit_view data = in_piece(w, slice_view(w, part, u));
    int result = HZP_OK; /* all slices come, whatever is wrong with one */
    HZP_TRY(tell(w, GATHER, part, u, reterr));
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        HZP_TRY(pass(w, rank, part, u, reterr));
        if (result >= 0)
            result = check_head(w, rank, part, u, &data, reterr);
        if (result >= 0 && hzp_whole_join(&w->whole, part, u, rank, data.base) < 0)
            result = hzp_fail(reterr, HZP_EINVAL,
                              "rank %d has another norm than rank 0 in unit %d of %s, of which all "
                              "ranks must have the same",
                              rank, u, hzp_state_part_name(part));
    }
    *ret = hzp_unit_view(&w->whole.part[part], u);
    *ret_owned = NULL;
    return result;
}

static int keep(struct work *w, enum hzp_state_part part, int32_t u, struct hzp_err_text *reterr);

static int scatter(void *ctx, enum hzp_state_part part, int32_t u,
                   const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    struct work *w = ctx;
    struct hzp_unit_view data = in_piece(w, slice_view(w, part, u));
    size_t bytes = hzp_unit_bytes(&data);
    HZP_TRY(tell(w, SCATTER, part, u, reterr));
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        hzp_tensor_slice_cut(&w->whole.layout, &w->whole.slice[rank], u, hzp_dtype_size(data.type),
                             whole->base, data.base);
        write_head(w, rank, part, u, HZP_OK, &data);
        if (rank == 0)
            HZP_TRY(keep(w, part, u, reterr));
        else
            HZP_TRY(broadcast(w, 0, w->piece, sizeof(struct head) + bytes, reterr));
    }
    return HZP_OK;
}

/* Ends the others' part, with what they return. */
static int end(struct work *w, struct order *order, int code, struct hzp_err_text *reterr)
{
    order->what = END;
    order->code = code;
    int r =
        w->ranks > 1 ? broadcast(w, 0, order, sizeof(*order), code < 0 ? NULL : reterr) : HZP_OK;
    if (code < 0 && reterr)
        *reterr = order->text;
    return code < 0 ? code : r;
}

/* --- The others ------------------------------------------------------------------------------- */

/* Copies the piece, this rank's slice, to where it belongs. */
static int keep(struct work *w, enum hzp_state_part part, int32_t u, struct hzp_err_text *reterr)
{
    struct hzp_unit_view mine = slice_view(w, part, u), data = in_piece(w, mine);
    HZP_TRY(check_head(w, w->rank, part, u, &data, reterr));
    int r = hzp_device_copy(w->s->model->dev, mine.base, data.base, hzp_unit_bytes(&mine));
    return r < 0 ? hzp_fail(reterr, r, "cannot copy unit %d of %s: %s", u,
                            hzp_state_part_name(part), hzp_err_name(r))
                 : HZP_OK;
}

static int receive(struct work *w, enum hzp_state_part part, int32_t u, struct hzp_err_text *reterr)
{
    struct hzp_unit_view mine = slice_view(w, part, u);
    for (int32_t rank = 1; rank < w->ranks; rank++) {
        HZP_TRY(broadcast(w, 0, w->piece, sizeof(struct head) + hzp_unit_bytes(&mine), reterr));
        if (rank == w->rank && w->own.code >= 0)
            w->own.code = keep(w, part, u, &w->own.text);
    }
    return HZP_OK;
}

/* Does what rank 0 says, up to the end. */
static int follow(struct work *w, struct order *order, struct hzp_err_text *reterr)
{
    for (;;) {
        HZP_TRY(broadcast(w, 0, order, sizeof(*order), reterr));
        enum hzp_state_part part = (enum hzp_state_part)order->part;
        if (order->what == END)
            break;
        HZP_ASSERT(order->part >= 0 && order->part <= HZP_STATE_WEIGHTS && order->unit >= 0 &&
                   order->unit < w->s->model->layout->units);
        if (order->what == SCATTER)
            HZP_TRY(receive(w, part, order->unit, reterr));
        for (int32_t rank = 1; order->what == GATHER && rank < w->ranks; rank++)
            HZP_TRY(pass(w, rank, part, order->unit, reterr));
    }
    if (order->code < 0 && reterr)
        *reterr = order->text;
    return order->code;
}

/* --- Both ------------------------------------------------------------------------------------- */

static void close_work(struct work *w)
{
    hzp_whole_close(&w->whole);
    free(w->piece);
}

/* All ranks have what they need, or none begins. */
static int open_work(struct work *w, const struct hzp_tensor_state *s, const struct hzp_version *v,
                     struct hzp_err_text *reterr)
{
    const struct hzp_layout *mine = s->model->layout;
    struct outcome own = {.code = HZP_OK};
    *w = (struct work){
        .s = s, .v = v, .rank = hzp_link_rank(s->link), .ranks = hzp_link_ranks(s->link)};
    HZP_ASSERT(HZP_MAX(mine->slice.ranks, 1) == w->ranks && mine->slice.rank == w->rank);
    w->piece = malloc(sizeof(struct head) + hzp_layout_largest(mine) * sizeof(float));
    bool whole = w->rank > 0 ||
                 hzp_whole_open(&w->whole, s->whole, w->ranks, s->model, v, s->space) == HZP_OK;
    if (!w->piece || !whole)
        own.code = hzp_fail(&own.text, HZP_ENOMEM, "no memory for a unit of the trainer's state");
    int r = own.code >= 0 ? hzp_train_space_restore(s->space) : HZP_OK;
    if (r < 0)
        own.code = hzp_fail(&own.text, r, "no memory for the trainer's state: %s", hzp_err_name(r));
    r = agree(w, &own, reterr);
    if (r < 0)
        close_work(w);
    return r;
}

/* Rank 0: reads the files, unit by unit, and hands each rank its slices. */
static int load(struct work *w, const char *dir, bool same_recipe, struct order *order,
                struct hzp_err_text *reterr)
{
    struct hzp_state_source weights = {.read = gather, .ctx = w};
    struct hzp_state_sink sink = {.threads = 1, .take = scatter, .ctx = w};
    struct hzp_state_file *file;
    uint64_t sum = 0;
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        sink.part[p] = w->whole.part[p].layout ? &w->whole.part[p] : NULL;
    weights.part[HZP_STATE_WEIGHTS] = &w->whole.part[HZP_STATE_WEIGHTS];
    HZP_TRY(hzp_state_file_open(dir, &sink, w->s->recipe, same_recipe, &file, &order->numbers,
                                order->note, reterr));
    int r = hzp_state_source_sum(&weights, HZP_STATE_WEIGHTS, &sum, reterr);
    if (r >= 0)
        r = hzp_state_file_belongs(file, sum, reterr);
    if (r >= 0)
        r = hzp_state_file_read(file, &sink, NULL, reterr);
    order->numbers.checksum = sum;
    hzp_state_file_close(file);
    return r;
}

int hzp_tensor_state_load(const struct hzp_tensor_state *s, struct hzp_version *v, const char *dir,
                          bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                          struct hzp_err_text *reterr)
{
    struct work w;
    struct order order = {.what = END};
    int r;
    HZP_TRY(open_work(&w, s, v, reterr));
    if (w.rank == 0) {
        r = load(&w, dir, same_recipe, &order, &order.text);
        r = end(&w, &order, r, reterr);
    } else {
        r = follow(&w, &order, reterr);
    }
    if (r >= 0) /* whether each has kept its slices */
        r = agree(&w, &w.own, reterr);
    close_work(&w);
    HZP_TRY(r);
    *ret = order.numbers;
    v->record.optimizer_step = ret->optimizer_step;
    v->record.learned_through = ret->learned_through;
    v->record.loss = ret->loss >= 0 ? ret->loss : NAN;
    if (ret_note)
        memcpy(ret_note, order.note, sizeof(order.note));
    return HZP_OK;
}
