/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cudafake/world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

bool world_fp8;

void world_open(struct world *w, struct hzp_device *dev)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = LAYERS,
                                      .width = WIDTH,
                                      .inner = 192,
                                      .vocab = VOCAB,
                                      .heads = {4, 2, 64},
                                      .positions = STRIDE * PAGE_ROWS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .tied = true,
                                      .disk_type = HZP_BF16};
    struct hzp_batch_config max = {.rows_max = ROWS,
                                   .segs_max = SEGS,
                                   .page_stride = STRIDE,
                                   .logits_max = SEGS,
                                   .edits_max = 1};
    size_t page = (size_t)2 * PAGE_ROWS * 64 * 2 * PAGES;
    memset(w, 0, sizeof(*w));
    struct fixture_config fixture = {
        .dev = dev, .config = config, .store = {.type = HZP_BF16, .fp8 = world_fp8}};
    fixture_open(&w->m, &fixture);
    for (uint64_t slot = 0; slot < 2; slot++)
        w->version[slot] = fixture_publish_random(&w->m, 5 + slot, 0.2f);
    struct hzp_page_table_config pages = {SEGS, STRIDE, SEGS * STRIDE};
    if (!hzp_device_host_memory(dev))
        assert_int_equal(hzp_page_table_create(dev, &pages, &w->table), HZP_OK);
    max.table = w->table;
    assert_int_equal(hzp_batch_create(dev, &max, &w->batch), HZP_OK);
    assert_int_equal(hzp_serve_space_create(w->m.model, ROWS, SEGS, &w->space), HZP_OK);
    assert_int_equal(hzp_exec_create(dev, &w->exec), HZP_OK);
    for (int l = 0; l < LAYERS; l++) {
        void *kv;
        assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, 2 * page, &kv), HZP_OK);
        void *zero = hzp_xcalloc(1, 2 * page);
        assert_int_equal(hzp_device_copy(dev, kv, zero, 2 * page), HZP_OK);
        free(zero);
        w->kv[l] = (struct hzp_kv){kv, (char *)kv + page, PAGES, PAGE_ROWS, HZP_BF16, NULL, NULL};
    }
    hzp_plan_init(&w->plan);
}

void world_close(struct world *w)
{
    hzp_plan_fini(&w->plan);
    for (int l = 0; l < LAYERS; l++)
        hzp_device_free(w->m.dev, HZP_MEM_DEVICE, w->kv[l].k);
    hzp_exec_destroy(w->exec);
    hzp_serve_space_destroy(w->space);
    hzp_batch_destroy(w->batch);
    hzp_page_table_destroy(w->table);
    fixture_close(&w->m);
}

static void fill(struct world *w, int step, int segs, const int32_t *token)
{
    struct hzp_batch *b = w->batch;
    hzp_batch_clear(b);
    for (int i = 0; i < segs; i++) {
        int32_t pos0 = step ? PROMPT + i + step - 1 : 0, rows = step ? 1 : PROMPT + i, row = 0;
        int32_t *page = hzp_batch_add_segment(b, pos0, step > 0);
        for (int32_t k = 0; k * PAGE_ROWS < pos0 + rows; k++)
            page[k] = (k * SEGS + i) % PAGES;
        hzp_batch_set_pages(b, (i + step / 5) % SEGS, page, HZP_DIV_UP(pos0 + rows, PAGE_ROWS));
        for (int32_t k = 0; k < rows; k++) {
            int32_t p = pos0 + k;
            row = hzp_batch_add_row(b, step ? token[i] : (7 * k + 3 * i) % VOCAB,
                                    page[p / PAGE_ROWS] * PAGE_ROWS + p % PAGE_ROWS);
        }
        b->sample[hzp_batch_add_logits(b, row)] =
            (struct hzp_sample_row){.temperature = i % 2 ? 0.9f : 0,
                                    .top_p = 1,
                                    .repetition = 1,
                                    .given = -1,
                                    .seed = (uint64_t)i,
                                    .position = (uint32_t)(pos0 + rows)};
    }
}

void world_build(struct world *w, int step, int segs, const int32_t *token, int slot,
                 const struct hzp_plan_shape *shape)
{
    fill(w, step, segs, token);
    hzp_plan_clear(&w->plan);
    hzp_forward_build(&w->plan, w->m.model, w->version[slot], w->batch, w->kv, w->space, shape);
}

void world_run(struct world *w)
{
    struct hzp_exec_times times;
    assert_int_equal(hzp_exec_run(w->exec, &w->plan, NULL, &times), HZP_OK);
}

float world_apart = 2e-3f;

void world_agree(const struct world *a, const struct world *b, int segs, int32_t *token)
{
    for (int i = 0; i < segs; i++) {
        assert_int_equal(a->batch->token[i], b->batch->token[i]);
        assert_true(fabsf(a->batch->logprob[i] - b->batch->logprob[i]) < world_apart);
        token[i] = a->batch->token[i];
    }
}

struct hzp_device *world_reference(void)
{
    struct hzp_device *dev;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, NULL),
                     HZP_OK);
    return dev;
}
