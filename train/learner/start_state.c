/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/start_state.h"

#include "train/state/state_file.h"

struct header {
    int64_t optimizer_step, elements;
    uint64_t checksum, version_id;
    int32_t whole, state; /* 1: units follow; 1: so does the optimizer's state */
};

/* Marks the link's transfers. */
enum { TAG = 0x7353 };

/* Broadcasts are the same calls on all ranks; of the state and weights in the device's memory. */
static int broadcast(const struct hzp_start_state *s, void *data, size_t bytes,
                     struct hzp_err_text *reterr)
{
    if (!bytes)
        return HZP_OK;
    struct hzp_transfer t = {.op = HZP_BROADCAST, .count = bytes, .recv = data, .tag = TAG};
    return hzp_link_move(hzp_collectives_link(s->collectives), &t, reterr);
}

static int broadcast_units(struct hzp_start_state *s, const struct hzp_units *units,
                           struct hzp_err_text *reterr)
{
    for (int32_t u = 0; u < units->layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(units, u);
        HZP_TRY(broadcast(s, view.base, hzp_unit_bytes(&view), reterr));
    }
    return HZP_OK;
}

/* --- Rank 0 ----------------------------------------------------------------------------------- */

static int device_failed(int r, struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, r, "cannot copy the optimizer's state: %s", hzp_err_name(r));
}

/* A unit that was read is broadcast through the stage. */
static int send_unit(void *ctx, enum hzp_state_part part, int32_t u,
                     const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    struct hzp_start_state *s = ctx;
    void *stage = hzp_collectives_stage(s->collectives);
    size_t bytes = hzp_unit_bytes(whole);
    int r = hzp_device_copy(s->model->dev, stage, whole->base, bytes);
    return r < 0 ? device_failed(r, reterr) : broadcast(s, stage, bytes, reterr);
}

/* The trainer has loaded the same file: its own part gets what it has. */
static int send_state(struct hzp_start_state *s, struct hzp_err_text *reterr)
{
    struct hzp_state_sink sink = hzp_state_space_sink(s->model, s->space);
    struct hzp_trainer_numbers numbers;
    struct hzp_state_file *file;
    sink.threads = 1; /* units are sent in order */
    sink.take = send_unit;
    sink.ctx = s;
    HZP_TRY(
        hzp_state_file_open(s->state_dir, &sink, s->recipe, false, &file, &numbers, NULL, reterr));
    int r = hzp_state_file_read(file, &sink, NULL, reterr);
    hzp_state_file_close(file);
    return r;
}

int hzp_start_state_send(struct hzp_start_state *s, struct hzp_err_text *reterr)
{
    const struct hzp_units *units = hzp_version_units(s->model->weights, s->version);
    struct hzp_link *link = hzp_collectives_link(s->collectives);
    struct header header = {.optimizer_step = s->optimizer_step,
                            .elements = (int64_t)s->model->layout->elements,
                            .version_id = s->version->record.id,
                            .whole = hzp_units_whole(units),
                            .state = s->state_dir != NULL};
    HZP_TRY(hzp_units_checksum(s->model->dev, units, &header.checksum));
    HZP_TRY(hzp_link_broadcast(link, 0, &header, sizeof(header), TAG, reterr));
    if (header.whole)
        HZP_TRY(broadcast_units(s, units, reterr));
    if (header.whole && header.state)
        HZP_TRY(send_state(s, reterr));
    return hzp_link_agree(link, HZP_OK, NULL, TAG, reterr);
}

/* --- The others ------------------------------------------------------------------------------- */

/* Whole units, of which each rank keeps its shards. */
static int receive_state(struct hzp_start_state *s, struct hzp_err_text *reterr)
{
    char *stage = hzp_collectives_stage(s->collectives);
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++) {
        const struct hzp_units *units = hzp_train_space_part(s->space, (enum hzp_state_part)p);
        if (!units)
            continue;
        size_t size = hzp_dtype_size(units->type);
        for (int32_t u = 0; u < units->layout->units; u++) {
            struct hzp_unit_view view = hzp_unit_view(units, u);
            HZP_TRY(broadcast(s, stage, view.elements * size, reterr));
            int r = hzp_device_copy(s->model->dev, view.base, stage + view.part.first * size,
                                    hzp_unit_bytes(&view));
            if (r < 0)
                return device_failed(r, reterr);
        }
    }
    return HZP_OK;
}

static int receive(struct hzp_start_state *s, const struct header *header,
                   struct hzp_err_text *reterr)
{
    const struct hzp_units *units = hzp_version_units(s->model->weights, s->version);
    uint64_t checksum;
    HZP_TRY(broadcast_units(s, units, reterr));
    if (header->state)
        HZP_TRY(receive_state(s, reterr));
    HZP_TRY(hzp_units_checksum(s->model->dev, units, &checksum));
    if (checksum != header->checksum)
        return hzp_fail(reterr, HZP_EIO,
                        "the weights arrived with checksum %016" PRIx64 ", rank 0 has %016" PRIx64,
                        checksum, header->checksum);
    s->version->record.checksum = checksum;
    return HZP_OK;
}

int hzp_start_state_receive(struct hzp_start_state *s, struct hzp_err_text *reterr)
{
    const struct hzp_units *units = hzp_version_units(s->model->weights, s->version);
    struct hzp_link *link = hzp_collectives_link(s->collectives);
    struct hzp_err_text text = {{0}, {0}};
    struct header header;
    HZP_TRY(hzp_link_broadcast(link, 0, &header, sizeof(header), TAG, reterr));
    if (header.elements != (int64_t)s->model->layout->elements ||
        header.whole != hzp_units_whole(units))
        return hzp_fail(reterr, HZP_EINVAL,
                        "this rank has a model of %zu elements, rank 0 one of %" PRId64,
                        s->model->layout->elements, header.elements);
    int r = HZP_OK;
    s->version_id = header.version_id;
    if (header.whole) {
        r = receive(s, &header, &text);
        s->optimizer_step = header.optimizer_step;
    } else if (s->optimizer_step != header.optimizer_step) {
        r = hzp_fail(&text, HZP_EINVAL,
                     "has loaded the state of optimizer step %" PRId64
                     ", rank 0 that of step %" PRId64,
                     s->optimizer_step, header.optimizer_step);
    }
    s->version->record.optimizer_step = s->optimizer_step;
    return hzp_link_agree(link, r, &text, TAG, reterr);
}
