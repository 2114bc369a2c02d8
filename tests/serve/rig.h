/* SPDX-License-Identifier: Apache-2.0 */
/* tests/serve/rig.h - a scheduler under a loop driven by hand, with a hash in place of the model
 * (test_scheduler.c).
 *
 * Thread: the test's. */
#pragma once

#include "serve/scheduler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 50, EOS = 7, POSITIONS = 96, PAGE_ROWS = 8 };

struct rig {
    struct hzp_device *dev;
    struct hzp_model_config config;
    struct hzp_model model;
    struct hzp_kvpool *pool;
    struct hzp_scheduler *s;
    struct hzp_source *source;
    struct hzp_page_table *table;
    struct hzp_batch *batch;
    struct hzp_version version;
    int32_t *kv; /* [pages * PAGE_ROWS] the token stored in each slot */
    uint64_t steps;
    int64_t changes;       /* of the table of pages, in all steps */
    int wakes, last_wakes; /* last: that no other one followed at once */
    struct hzp_time time;
};

static void rig_open(struct rig *rig, int32_t pages, const struct hzp_scheduler_config *config,
                     const struct hzp_batch_config *batch)
{
    memset(rig, 0, sizeof(*rig));
    struct hzp_err_text err;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &rig->dev, &err),
                     0);
    rig->config = (struct hzp_model_config){.layers = 1,
                                            .width = 4,
                                            .vocab = VOCAB,
                                            .heads = {.heads = 1, .kv_heads = 1, .dim = 4},
                                            .eos = {EOS},
                                            .eos_count = 1};
    rig->model = (struct hzp_model){
        .dev = rig->dev, .config = &rig->config, .act = HZP_F32, .positions = POSITIONS};
    assert_int_equal(hzp_kvpool_create(&rig->model, pages, PAGE_ROWS, &rig->pool), 0);
    hzp_time_init(&rig->time, 1, NULL, HZP_F32);
    assert_int_equal(hzp_scheduler_create(config, &rig->model, rig->pool, &rig->s), 0);
    rig->source = hzp_scheduler_source(rig->s);
    /* as small as it may be: prompts must wait for room */
    struct hzp_page_table_config pages_config = {.lines = config->running_max + 1,
                                                 .stride = batch->page_stride};
    pages_config.changes_max = HZP_MAX(batch->segs_max + pages_config.stride, pages_config.lines);
    assert_int_equal(hzp_page_table_create(rig->dev, &pages_config, &rig->table), 0);
    struct hzp_batch_config with_table = *batch;
    with_table.table = rig->table;
    assert_int_equal(hzp_batch_create(rig->dev, &with_table, &rig->batch), 0);
    rig->version.record.id = 1;
    rig->kv = hzp_xcalloc((size_t)pages * PAGE_ROWS, sizeof(*rig->kv));
}

static void rig_close(struct rig *rig)
{
    hzp_scheduler_destroy(rig->s);
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(rig->pool, &kv);
    assert_int_equal(kv.taken, 0);
    hzp_batch_destroy(rig->batch);
    hzp_page_table_destroy(rig->table);
    hzp_kvpool_destroy(rig->pool);
    hzp_device_close(rig->dev);
    free(rig->kv);
}

static uint32_t mix(uint32_t hash, int32_t token)
{
    return (hash ^ (uint32_t)token) * 16777619u + 12345;
}

/* The stand-in model's choice: the hash's token, or the next one that is not banned. */
static int32_t choose(uint32_t hash, const struct hzp_logit_edit *edit, int32_t edits)
{
    int32_t token = (int32_t)((hash >> 8) % VOCAB);
    for (int32_t i = 0; i < edits; i++)
        if (edit[i].token == token && edit[i].bias == -INFINITY) {
            token = (token + 1) % VOCAB;
            i = -1;
        }
    return token;
}

static void check_bounds(const struct hzp_batch *batch)
{
    assert_true(batch->rows <= batch->max.rows_max && batch->segs <= batch->max.segs_max);
    assert_true(batch->logits <= batch->max.logits_max && batch->edits <= batch->max.edits_max);
    for (int32_t i = 0; i < batch->segs; i++) {
        int32_t rows = batch->row0[i + 1] - batch->row0[i];
        assert_true(rows >= 1 && (i >= batch->decode_segs || rows == 1));
    }
}

static void execute(struct rig *rig, struct hzp_batch *batch)
{
    check_bounds(batch);
    int32_t slots = hzp_kvpool_pages(rig->pool) * PAGE_ROWS;
    for (int32_t r = 0; r < batch->refs; r++)
        batch->id[r] = batch->from->token[batch->ref[r]];
    for (int32_t r = 0; r < batch->rows; r++) {
        assert_in_range(batch->slot[r], 0, slots - 1);
        rig->kv[batch->slot[r]] = batch->id[r];
    }
    rig->changes += batch->changes;
    for (int32_t i = 0; i < batch->changes; i++)
        rig->table->table[batch->change_at[i]] = batch->change_page[i];
    for (int32_t n = 0; n < batch->logits; n++) {
        int32_t row = batch->logit_row[n], seg = 0;
        while (batch->row0[seg + 1] <= row)
            seg++;
        uint32_t hash = 0;
        for (int32_t p = 0; p <= batch->pos[row]; p++) {
            int32_t at = p / PAGE_ROWS, stride = batch->max.page_stride;
            int32_t page = rig->table->table[batch->line[seg] * stride + at];
            assert_int_equal(page, batch->page[seg * stride + at]);
            hash = mix(hash, rig->kv[page * PAGE_ROWS + p % PAGE_ROWS]);
        }
        const struct hzp_sample_row *sample = &batch->sample[n];
        batch->token[n] = sample->given >= 0
                              ? sample->given
                              : choose(hash, batch->edit + sample->edit0, sample->edits);
        batch->logprob[n] = -(float)(hash % 1000);
        batch->rank[n] = 1;
        for (int t = 0; t < sample->tops; t++) {
            batch->top_token[n * HZP_TOPS_MAX + t] = (batch->token[n] + t) % VOCAB;
            batch->top_logprob[n * HZP_TOPS_MAX + t] = (float)-t;
        }
    }
}

/* One turn of the loop; returns true if a step ran. */
static bool turn(struct rig *rig, int status)
{
    hzp_batch_clear(rig->batch);
    struct hzp_step step = {
        .number = ++rig->steps, .begin_ns = rig->steps * 1000, .version = &rig->version};
    struct hzp_room room = {.rows = rig->batch->max.rows_max, .time = &rig->time};
    struct hzp_offer offer = {.batch = rig->batch};
    bool any = rig->source->offer(rig->source, &step, &room, &offer);
    assert_int_equal(any, rig->batch->rows > 0);
    assert_int_equal(room.rows, rig->batch->max.rows_max - rig->batch->rows);
    if (any)
        execute(rig, rig->batch);
    struct hzp_outcome outcome = {
        .status = status,
        .end_ns = step.begin_ns + 500,
        .ns = {[HZP_TENANT_SERVE] = 300 + 10 * (uint64_t)rig->batch->rows}};
    hzp_rows_learn(&rig->time.rows, rig->batch->rows, outcome.ns[HZP_TENANT_SERVE]);
    int before = rig->last_wakes, wakes = rig->wakes;
    rig->source->deliver(rig->source, &step, &offer, &outcome);
    assert_int_equal(rig->last_wakes - before, rig->wakes > wakes); /* one wakeup for all of them */
    return any;
}
