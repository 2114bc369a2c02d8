/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/run/warm.h"

static void want_logits(struct hzp_batch *b, int32_t row)
{
    b->sample[hzp_batch_add_logits(b, row)] =
        (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = 0};
}

/* All rows read page 0, of line 0; or each its own. */
static void add_decodes(struct hzp_batch *b, const struct hzp_warm *warm, int32_t rows)
{
    for (int32_t i = 0; i < rows; i++) {
        int32_t page = warm->lines ? i : 0;
        hzp_batch_add_segment(b, 0, true);
        hzp_batch_set_pages(b, page, &page, 1);
        want_logits(b, hzp_batch_add_row(b, 0, warm->lines ? page * warm->kv->page_rows : -1));
    }
}

static void add_prompts(struct hzp_batch *b, const struct hzp_warm *warm, int32_t rows)
{
    const struct hzp_kv *kv = warm->kv;
    int64_t room = HZP_MIN((int64_t)kv->pages, (int64_t)b->max.page_stride) * kv->page_rows;
    int64_t longest = HZP_MIN(room, (int64_t)warm->positions);
    int32_t page0 = 0, segs = HZP_MIN(b->max.segs_max, warm->lines ? warm->lines : INT32_MAX);
    while (rows > 0 && b->segs < segs) {
        int32_t count = (int32_t)HZP_MIN((int64_t)rows, longest);
        int32_t pages = HZP_DIV_UP(count, kv->page_rows);
        if (pages > kv->pages - page0)
            return; /* each prompt has its own pages */
        int32_t *page = hzp_batch_add_segment(b, 0, false);
        for (int32_t i = 0; i < pages; i++)
            page[i] = page0 + i;
        hzp_batch_set_pages(b, b->segs - 1, page, pages);
        for (int32_t i = 0; i < count; i++)
            hzp_batch_add_row(b, 0, page0 * kv->page_rows + i);
        page0 += pages;
        rows -= count;
    }
}

/* Not every step that is made here runs, so each carries all of its page numbers. */
static void begin(struct hzp_batch *b)
{
    hzp_batch_clear(b);
    hzp_page_table_forget(b->max.table);
}

void hzp_warm_decode(struct hzp_batch *b, const struct hzp_warm *warm, int32_t rows)
{
    begin(b);
    add_decodes(b, warm, rows);
}

void hzp_warm_prompts(struct hzp_batch *b, const struct hzp_warm *warm, int32_t rows,
                      int32_t logits)
{
    begin(b);
    add_prompts(b, warm, HZP_MIN(rows, b->max.rows_max));
    logits = HZP_MIN(logits, HZP_MIN(b->rows, b->max.logits_max));
    for (int32_t i = 0; i < logits; i++)
        want_logits(b, b->rows - 1 - i);
}

void hzp_warm_mixed(struct hzp_batch *b, const struct hzp_warm *warm)
{
    const struct hzp_batch_config *max = &b->max;
    const struct hzp_warm here = {warm->kv, warm->positions, 0};
    int32_t most = hzp_batch_decodes_max(max);
    begin(b);
    add_decodes(b, &here, most / 2);
    add_prompts(b, &here, max->rows_max - most / 2);
}

/* Some steps need more fences than the one that is built here: for tokens that the step before
 * draws and for changes of the page table, and in each layer where another nano-batch has decode
 * rows and prompts. */
int hzp_warm_reserve(struct hzp_flight *flight, struct hzp_plan *plan,
                     const struct hzp_step_plan *step, const struct hzp_warm *warm,
                     int32_t *ret_items)
{
    int32_t more = 2 + (step->shape ? step->shape->nanos : 1) * step->model->config->layers;
    hzp_warm_mixed(step->batch, warm);
    hzp_plan_clear(plan);
    hzp_step_build(plan, step);
    *ret_items = HZP_MAX(*ret_items, plan->items);
    return hzp_flight_reserve(flight, plan, more);
}

/* The number of training's items is estimated: a layer's forward and backward are about forty, more
 * with a quantum. */
int hzp_warm_times(const struct hzp_model *model, int32_t items)
{
    enum { TRAIN_ITEMS = 64, UPDATE_ITEMS = 512 };
    return hzp_device_prepare_times(
        model->dev, 2 * (items + TRAIN_ITEMS * model->config->layers + UPDATE_ITEMS));
}

/* ---- training ---- */

/* One document of so many rows; the last `learned` are learned. */
static int fill_micro(struct hzp_micro *micro, int32_t rows, int32_t learned)
{
    int32_t count = rows + 1;
    HZP_FREED int32_t *token = calloc((size_t)count, sizeof(*token));
    HZP_FREED uint8_t *learn = calloc((size_t)count, 1);
    hzp_micro_clear(micro);
    if (!token || !learn)
        return HZP_ENOMEM;
    memset(learn + count - learned, 1, (size_t)learned);
    return hzp_micro_add(micro, token, learn, count);
}

static int add_micro(struct hzp_plan *chain, const struct hzp_model *model, struct hzp_micro *micro,
                     struct hzp_train_space *space, int32_t rows, int32_t learned)
{
    HZP_TRY(fill_micro(micro, rows, learned));
    hzp_micro_products(chain, model, hzp_weights_current(model->weights), micro, space);
    return HZP_OK;
}

/* Micro-batches have any number of rows, and their heads those that are learned: the algorithm of a
 * size serves those that are nearest to it (device/cuda/matmul.c), so halves are enough. */
int hzp_warm_micros(struct hzp_plan *chain, const struct hzp_model *model, struct hzp_micro *micro,
                    int32_t most, struct hzp_train_space *space)
{
    enum { ROWS_LEAST = 128, LEARNED_LEAST = 8 };
    int r = HZP_OK;
    if (!hzp_weights_current(model->weights))
        return HZP_OK;
    for (int32_t rows = most; r == HZP_OK && (rows == most || rows >= ROWS_LEAST); rows /= 2)
        r = add_micro(chain, model, micro, space, rows, rows);
    for (int32_t learned = ROWS_LEAST / 2; r == HZP_OK && learned >= LEARNED_LEAST; learned /= 2)
        if (learned < most)
            r = add_micro(chain, model, micro, space, most, learned);
    hzp_micro_clear(micro);
    return r;
}
