/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/kvpool.h"

#include "base/arena.h"
#include "base/thread.h"

#include <stdlib.h>

struct hzp_kvpool {
    /* fixed after create */
    struct hzp_device *dev;
    void *memory;
    size_t side; /* bytes of one layer's keys, or of its values */
    size_t part; /* of these, a page's */
    struct hzp_kv *layer;
    int32_t layers, pages, page_rows;

    int32_t *free_page; /* a stack: the page freed last is most likely still cached */
    int32_t free_pages;
};

static size_t side_bytes(const struct hzp_model_config *config, enum hzp_dtype type, int32_t pages,
                         int32_t page_rows)
{
    size_t bytes = (size_t)pages * (size_t)config->heads.kv_heads * (size_t)page_rows *
                   (size_t)config->heads.dim * hzp_dtype_size(type);
    return HZP_ROUND_UP(bytes, 64);
}

size_t hzp_kvpool_bytes(const struct hzp_model_config *config, enum hzp_dtype type, int32_t pages,
                        int32_t page_rows)
{
    return 2 * (size_t)config->layers * side_bytes(config, type, pages, page_rows);
}

int hzp_kvpool_create(const struct hzp_model *model, int32_t pages, int32_t page_rows,
                      struct hzp_kvpool **ret)
{
    HZP_ASSERT(pages > 0 && page_rows > 0 && pages <= INT32_MAX / page_rows);
    const struct hzp_model_config *config = model->config;
    void *memory;
    HZP_TRY(hzp_device_alloc(model->dev, HZP_MEM_DEVICE,
                             hzp_kvpool_bytes(config, model->act, pages, page_rows), &memory));

    struct hzp_kvpool *pool = hzp_xcalloc(1, sizeof(*pool));
    pool->dev = model->dev;
    pool->memory = memory;
    pool->pages = pages;
    pool->page_rows = page_rows;
    pool->layer = hzp_xcalloc((size_t)config->layers, sizeof(*pool->layer));
    pool->layers = config->layers;
    size_t side = pool->side = side_bytes(config, model->act, pages, page_rows);
    pool->part = (size_t)config->heads.kv_heads * (size_t)page_rows * (size_t)config->heads.dim *
                 hzp_dtype_size(model->act);
    for (int32_t l = 0; l < config->layers; l++) {
        char *at = (char *)memory + 2 * (size_t)l * side;
        pool->layer[l] = (struct hzp_kv){
            .k = at, .v = at + side, .pages = pages, .page_rows = page_rows, .type = model->act};
    }

    pool->free_page = hzp_xcalloc((size_t)pages, sizeof(*pool->free_page));
    pool->free_pages = pages;
    for (int32_t i = 0; i < pages; i++)
        pool->free_page[i] = pages - 1 - i;
    *ret = pool;
    return HZP_OK;
}

int hzp_kvpool_touch(struct hzp_kvpool *pool, int32_t pages)
{
    size_t bytes = pool->side / (size_t)pool->pages * (size_t)HZP_MIN(pages, pool->pages) / 4 * 4;
    for (int32_t i = 0; i < 2 * pool->layers; i++)
        HZP_TRY(hzp_device_touch(pool->dev, (char *)pool->memory + (size_t)i * pool->side, bytes));
    return HZP_OK;
}

void hzp_kvpool_destroy(struct hzp_kvpool *pool)
{
    if (!pool)
        return;
    hzp_device_free(pool->dev, HZP_MEM_DEVICE, pool->memory);
    free(pool->free_page);
    free(pool->layer);
    free(pool);
}

const struct hzp_kv *hzp_kvpool_layers(const struct hzp_kvpool *pool)
{
    return pool->layer;
}

int32_t hzp_kvpool_page_rows(const struct hzp_kvpool *pool)
{
    return pool->page_rows;
}

int32_t hzp_kvpool_pages(const struct hzp_kvpool *pool)
{
    return pool->pages;
}

size_t hzp_kvpool_page_bytes(const struct hzp_kvpool *pool)
{
    return 2 * (size_t)pool->layers * pool->part;
}

static char *part_at(const struct hzp_kvpool *pool, int32_t page, int32_t i)
{
    return (char *)pool->memory + (size_t)i * pool->side + (size_t)page * pool->part;
}

int hzp_kvpool_read_page(const struct hzp_kvpool *pool, int32_t page, void *host)
{
    for (int32_t i = 0; i < 2 * pool->layers; i++)
        HZP_TRY(hzp_device_copy(pool->dev, (char *)host + (size_t)i * pool->part,
                                part_at(pool, page, i), pool->part));
    return HZP_OK;
}

int hzp_kvpool_write_page(const struct hzp_kvpool *pool, int32_t page, const void *host)
{
    for (int32_t i = 0; i < 2 * pool->layers; i++)
        HZP_TRY(hzp_device_copy(pool->dev, part_at(pool, page, i),
                                (const char *)host + (size_t)i * pool->part, pool->part));
    return HZP_OK;
}

int32_t hzp_kvpool_take(struct hzp_kvpool *pool)
{
    hzp_assert_engine_thread();
    return pool->free_pages > 0 ? pool->free_page[--pool->free_pages] : -1;
}

int32_t hzp_kvpool_free_pages(const struct hzp_kvpool *pool)
{
    return pool->free_pages;
}

void hzp_kvpool_release(struct hzp_kvpool *pool, const int32_t *page, int32_t taken)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(taken >= 0 && taken <= pool->pages - pool->free_pages);
    for (int32_t i = 0; i < taken; i++) {
        HZP_ASSERT(page[i] >= 0 && page[i] < pool->pages);
        pool->free_page[pool->free_pages++] = page[i];
    }
}

void hzp_kvpool_read_stats(const struct hzp_kvpool *pool, struct hzp_kvpool_stats *ret)
{
    *ret = (struct hzp_kvpool_stats){.pages = pool->pages, .taken = pool->pages - pool->free_pages};
}
