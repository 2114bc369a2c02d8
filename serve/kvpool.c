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
        int32_t pages;
    } * array;
    int32_t arrays;
    size_t page_bytes; /* in all arrays */

    int32_t *free_page; /* a stack: the page freed last is most likely still cached */
    int32_t free_pages;

    /* Backing pages; backs 0: there are none, layers with windows have a part of each page. */
    int32_t backs, window;
    int32_t *backing; /* [pages] the page's backing page; -1: it has none */
    int32_t *holds;   /* [pages] sequences that may read it there */
    int32_t *owner;   /* [backs] the page that it backs */
    bool *found;      /* [backs] a sequence was given it since the hand came by */
    int32_t *free_back, free_backs;
    int32_t spare; /* backing pages of pages that nothing holds */
    int32_t hand;  /* where the search for one goes on */
};

int32_t hzp_kvpool_window(const struct hzp_model_config *config)
{
    int32_t longest = 0;
    for (int32_t l = 0; l < config->layers; l++) {
        int32_t window = hzp_config_kind(config, l)->window;
        longest = HZP_MAX(longest, window);
    }
    return longest;
}

/* The first page that a row at this position reads, in layers with windows. */
static int32_t first_page(int32_t window, int32_t page_rows, int32_t position)
{
    return hzp_attn_first(window, position) / HZP_ATTN_BLOCK * HZP_ATTN_BLOCK / page_rows;
}

int32_t hzp_kvpool_window_pages(int32_t window, int32_t page_rows)
{
    /* The window, rounded, begins and ends within pages; its end moves on before its beginning. */
    return HZP_DIV_UP(window + HZP_ATTN_BLOCK - 1, page_rows) + 2;
}

int32_t hzp_kvpool_backs(const struct hzp_model_config *config, const struct hzp_kvpool_use *use,
                         int32_t pages)
{
    enum { SHORT = 8 };
    int32_t window = hzp_kvpool_window(config);
    int64_t longest = HZP_MIN(HZP_DIV_UP(use->positions, use->page_rows), pages);
    int64_t each = window ? hzp_kvpool_window_pages(window, use->page_rows) : longest;
    int64_t rows = 2 * (int64_t)HZP_DIV_UP(use->step_rows, use->page_rows); /* in flight */
    if (each >= longest)
        return 0;
    int64_t share = HZP_MAX(HZP_DIV_UP(pages * each, longest), pages / SHORT);
    int64_t backs = HZP_MIN(share, 2 * use->running_max * each) + rows;
    return backs < pages ? (int32_t)backs : 0;
}

/* Pages of layer l's own, of so many pages and backing pages. */
static int32_t pages_of(const struct hzp_model_config *config, int32_t l, int32_t pages,
                        int32_t backs)
{
    return backs && hzp_config_kind(config, l)->window ? backs : pages;
}

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

size_t hzp_kvpool_backed_bytes(const struct hzp_model_config *config, enum hzp_dtype type,
                               int32_t pages, int32_t backs, int32_t page_rows)
{
    size_t bytes = 0;
    for (int32_t l = 0; l < config->layers; l++) {
        int32_t own = pages_of(config, l, pages, backs);
        bytes += array_bytes(config, head_bytes(config, type), own, page_rows);
        if (type == HZP_E4M3)
            bytes += array_bytes(config, sizeof(float), own, page_rows);
    }
    return 2 * bytes;
}

size_t hzp_kvpool_bytes(const struct hzp_model_config *config, enum hzp_dtype type, int32_t pages,
                        int32_t page_rows)
{
    return hzp_kvpool_backed_bytes(config, type, pages, 0, page_rows);
}

/* The next array in the pool's memory. */
static void *add_array(struct hzp_kvpool *pool, const struct hzp_model_config *config,
                       int32_t pages, size_t bytes)
{
    struct array *last = pool->arrays ? &pool->array[pool->arrays - 1] : NULL;
    struct array *a = &pool->array[pool->arrays++];
    size_t part = (size_t)config->heads.kv_heads * (size_t)pool->page_rows;
    a->pages = pages;
    a->at = last ? last->at + HZP_ROUND_UP((size_t)last->pages * last->part, (size_t)64)
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
        int32_t own = pages_of(config, l, pool->pages, pool->backs);
        *kv = (struct hzp_kv){.pages = own, .page_rows = pool->page_rows, .type = type};
        kv->k = add_array(pool, config, own, head_bytes(config, type));
        kv->v = add_array(pool, config, own, head_bytes(config, type));
        if (type != HZP_E4M3)
            continue;
        kv->k_scale = add_array(pool, config, own, sizeof(float));
        kv->v_scale = add_array(pool, config, own, sizeof(float));
    }
}

static void add_backs(struct hzp_kvpool *pool, const struct hzp_model_config *config)
{
    size_t pages = (size_t)pool->pages, backs = (size_t)pool->backs;
    if (!backs)
        return;
    pool->window = hzp_kvpool_window(config);
    pool->backing = hzp_xcalloc(pages, sizeof(*pool->backing));
    pool->holds = hzp_xcalloc(pages, sizeof(*pool->holds));
    pool->owner = hzp_xcalloc(backs, sizeof(*pool->owner));
    pool->found = hzp_xcalloc(backs, sizeof(*pool->found));
    pool->free_back = hzp_xcalloc(backs, sizeof(*pool->free_back));
    pool->free_backs = pool->backs;
    for (int32_t i = 0; i < pool->pages; i++)
        pool->backing[i] = -1;
    for (int32_t i = 0; i < pool->backs; i++)
        pool->free_back[i] = pool->backs - 1 - i;
}

int hzp_kvpool_create(const struct hzp_model *model, int32_t pages, int32_t page_rows,
                      struct hzp_kvpool **ret)
{
    return hzp_kvpool_create_backed(model, pages, 0, page_rows, ret);
}

int hzp_kvpool_create_backed(const struct hzp_model *model, int32_t pages, int32_t backs,
                             int32_t page_rows, struct hzp_kvpool **ret)
{
    HZP_ASSERT(pages > 0 && page_rows > 0 && pages <= INT32_MAX / page_rows);
    HZP_ASSERT(backs >= 0 && backs <= pages);
    const struct hzp_model_config *config = model->config;
    enum hzp_dtype type = hzp_model_kv_type(model);
    void *memory;
    HZP_TRY(hzp_device_alloc(model->dev, HZP_MEM_DEVICE,
                             hzp_kvpool_backed_bytes(config, type, pages, backs, page_rows),
                             &memory));

    struct hzp_kvpool *pool = hzp_xcalloc(1, sizeof(*pool));
    pool->dev = model->dev;
    pool->memory = memory;
    pool->pages = pages;
    pool->page_rows = page_rows;
    pool->backs = backs;
    add_layers(pool, config, type);
    add_backs(pool, config);

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
        const struct array *a = &pool->array[i];
        size_t bytes = a->part * (size_t)HZP_MIN(pages, a->pages) / 4 * 4;
        HZP_TRY(hzp_device_touch(pool->dev, a->at, bytes));
    }
    return HZP_OK;
}

void hzp_kvpool_destroy(struct hzp_kvpool *pool)
{
    if (!pool)
        return;
    hzp_device_free(pool->dev, HZP_MEM_DEVICE, pool->memory);
    free(pool->free_page);
    free(pool->backing);
    free(pool->holds);
    free(pool->owner);
    free(pool->found);
    free(pool->free_back);
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
    HZP_ASSERT(!pool->backs);
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
    HZP_ASSERT(!pool->backs);
    for (int32_t i = 0; i < pool->arrays; i++) {
        const struct array *a = &pool->array[i];
        HZP_TRY(hzp_device_copy(pool->dev, a->at + (size_t)page * a->part, from, a->part));
        from += a->part;
    }
    return HZP_OK;
}

/* ---- backing pages ---- */

static void free_back(struct hzp_kvpool *pool, int32_t page)
{
    if (pool->backing[page] < 0)
        return;
    pool->spare -= !pool->holds[page];
    pool->free_back[pool->free_backs++] = pool->backing[page];
    pool->backing[page] = -1;
}

/* Backs a page by a free backing page, or by the next one that nothing holds, of which those that
 * were found last are spared once. */
static void back(struct hzp_kvpool *pool, int32_t page)
{
    while (!pool->free_backs) {
        int32_t at = pool->hand, owner = pool->owner[at];
        pool->hand = (at + 1) % pool->backs;
        if (!pool->holds[owner] && !pool->found[at])
            free_back(pool, owner);
        pool->found[at] = false;
    }
    int32_t at = pool->free_back[--pool->free_backs];
    pool->owner[at] = page;
    pool->backing[page] = at;
    pool->found[at] = false;
    pool->holds[page] = 1;
}

const int32_t *hzp_kvpool_backing(const struct hzp_kvpool *pool)
{
    return pool->backing;
}

bool hzp_kvpool_backed(const struct hzp_kvpool *pool, int32_t page)
{
    return !pool->backs || pool->backing[page] >= 0;
}

int32_t hzp_kvpool_first(const struct hzp_kvpool *pool, int32_t position)
{
    return pool->backs ? first_page(pool->window, pool->page_rows, position) : 0;
}

int32_t hzp_kvpool_backs_left(const struct hzp_kvpool *pool)
{
    return pool->backs ? pool->free_backs + pool->spare : INT32_MAX;
}

void hzp_kvpool_hold(struct hzp_kvpool *pool, int32_t page)
{
    if (!pool->backs || pool->holds[page]++ || pool->backing[page] < 0)
        return;
    pool->spare--;
    pool->found[pool->backing[page]] = true;
}

void hzp_kvpool_pass(struct hzp_kvpool *pool, int32_t page, bool keep)
{
    if (!pool->backs)
        return;
    HZP_ASSERT(pool->holds[page] > 0);
    if (--pool->holds[page] || pool->backing[page] < 0)
        return;
    pool->spare++;
    if (!keep)
        free_back(pool, page);
}

/* ---- pages ---- */

int32_t hzp_kvpool_take(struct hzp_kvpool *pool)
{
    hzp_assert_engine_thread();
    if (!pool->free_pages || hzp_kvpool_backs_left(pool) <= 0)
        return -1;
    int32_t page = pool->free_page[--pool->free_pages];
    if (pool->backs)
        back(pool, page);
    return page;
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
        if (pool->backs) {
            free_back(pool, page[i]);
            pool->holds[page[i]] = 0;
        }
        pool->free_page[pool->free_pages++] = page[i];
    }
}

void hzp_kvpool_read_stats(const struct hzp_kvpool *pool, struct hzp_kvpool_stats *ret)
{
    *ret = (struct hzp_kvpool_stats){.pages = pool->pages,
                                     .taken = pool->pages - pool->free_pages,
                                     .backs = pool->backs,
                                     .backs_held = pool->backs - pool->free_backs - pool->spare,
                                     .backs_spare = pool->spare};
}
