/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/kvpool.h"

#include "base/thread.h"

struct hzp_kvpool {
    /* fixed after create */
    struct hzp_device *dev;
    void *memory;
    struct hzp_kv *layer;
    int32_t layers, pages, page_rows;
    /* The arrays that hold pages: the keys and the values of each layer, and their scales if they
     * are E4M3.  A page is a part of each. */
    struct array {
        char *at;
        size_t part; /* bytes of a page */
    } * array;
    int32_t arrays;
    size_t page_bytes; /* in all arrays */

    int32_t *free_page; /* a stack: the page freed last is most likely still cached */
    int32_t free_pages;
};

/* Bytes of an array whose rows of one head take head_bytes. */
static size_t array_bytes(const struct hzp_model_config *config, size_t head_bytes, int32_t pages,
                          int32_t page_rows)
{
    size_t rows = (size_t)pages * (size_t)config->heads.kv_heads * (size_t)page_rows;
    return HZP_ROUND_UP(rows * head_bytes, (size_t)64);
}

static size_t head_bytes(const struct hzp_model_config *config, enum hzp_dtype type)
{
    return (size_t)config->heads.dim * hzp_dtype_size(type);
}

size_t hzp_kvpool_bytes(const struct hzp_model_config *config, enum hzp_dtype type, int32_t pages,
                        int32_t page_rows)
{
    size_t bytes = array_bytes(config, head_bytes(config, type), pages, page_rows);
    if (type == HZP_E4M3)
        bytes += array_bytes(config, sizeof(float), pages, page_rows);
    return 2 * (size_t)config->layers * bytes;
}

/* The next array in the pool's memory. */
static void *add_array(struct hzp_kvpool *pool, const struct hzp_model_config *config, size_t bytes)
{
    struct array *last = pool->arrays ? &pool->array[pool->arrays - 1] : NULL;
    struct array *a = &pool->array[pool->arrays++];
    size_t part = (size_t)config->heads.kv_heads * (size_t)pool->page_rows;
    a->at = last ? last->at + HZP_ROUND_UP((size_t)pool->pages * last->part, (size_t)64)
                 : (char *)pool->memory;
    a->part = part * bytes;
    pool->page_bytes += a->part;
    return a->at;
}

static void add_layers(struct hzp_kvpool *pool, const struct hzp_model_config *config,
                       enum hzp_dtype type)
{
    pool->array = hzp_xcalloc((size_t)config->layers * 4, sizeof(*pool->array));
    pool->layer = hzp_xcalloc((size_t)config->layers, sizeof(*pool->layer));
    pool->layers = config->layers;
    for (int32_t l = 0; l < config->layers; l++) {
        struct hzp_kv *kv = &pool->layer[l];
        *kv = (struct hzp_kv){.pages = pool->pages, .page_rows = pool->page_rows, .type = type};
        kv->k = add_array(pool, config, head_bytes(config, type));
        kv->v = add_array(pool, config, head_bytes(config, type));
        if (type != HZP_E4M3)
            continue;
        kv->k_scale = add_array(pool, config, sizeof(float));
        kv->v_scale = add_array(pool, config, sizeof(float));
    }
}

int hzp_kvpool_create(const struct hzp_model *model, int32_t pages, int32_t page_rows,
                      struct hzp_kvpool **ret)
{
    HZP_ASSERT(pages > 0 && page_rows > 0 && pages <= INT32_MAX / page_rows);
    const struct hzp_model_config *config = model->config;
    enum hzp_dtype type = hzp_model_kv_type(model);
    void *memory;
    HZP_TRY(hzp_device_alloc(model->dev, HZP_MEM_DEVICE,
                             hzp_kvpool_bytes(config, type, pages, page_rows), &memory));

    struct hzp_kvpool *pool = hzp_xcalloc(1, sizeof(*pool));
    pool->dev = model->dev;
    pool->memory = memory;
    pool->pages = pages;
    pool->page_rows = page_rows;
    add_layers(pool, config, type);

    pool->free_page = hzp_xcalloc((size_t)pages, sizeof(*pool->free_page));
    pool->free_pages = pages;
    for (int32_t i = 0; i < pages; i++)
        pool->free_page[i] = pages - 1 - i;
    *ret = pool;
    return HZP_OK;
}

int hzp_kvpool_touch(struct hzp_kvpool *pool, int32_t pages)
{
    for (int32_t i = 0; i < pool->arrays; i++) {
        size_t bytes = pool->array[i].part * (size_t)HZP_MIN(pages, pool->pages) / 4 * 4;
        HZP_TRY(hzp_device_touch(pool->dev, pool->array[i].at, bytes));
    }
    return HZP_OK;
}

void hzp_kvpool_destroy(struct hzp_kvpool *pool)
{
    if (!pool)
        return;
    hzp_device_free(pool->dev, HZP_MEM_DEVICE, pool->memory);
    free(pool->free_page);
    free(pool->array);
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
    return pool->page_bytes;
}

int hzp_kvpool_read_page(const struct hzp_kvpool *pool, int32_t page, void *host)
{
    char *to = host;
    for (int32_t i = 0; i < pool->arrays; i++) {
        const struct array *a = &pool->array[i];
        HZP_TRY(hzp_device_copy(pool->dev, to, a->at + (size_t)page * a->part, a->part));
        to += a->part;
    }
    return HZP_OK;
}

int hzp_kvpool_write_page(const struct hzp_kvpool *pool, int32_t page, const void *host)
{
    const char *from = host;
    for (int32_t i = 0; i < pool->arrays; i++) {
        const struct array *a = &pool->array[i];
        HZP_TRY(hzp_device_copy(pool->dev, a->at + (size_t)page * a->part, from, a->part));
        from += a->part;
    }
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
