/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/page_table.h"

size_t hzp_page_table_bytes(const struct hzp_page_table_config *config)
{
    return (size_t)config->lines * (size_t)config->stride * sizeof(int32_t);
}

int32_t hzp_page_table_room(int32_t segs, int32_t rows, int32_t page_rows, int32_t stride)
{
    /* Each decode row and each piece of a prompt may begin a page, rows fill pages, and one prompt
     * may have found all of its pages in the cache.  A prompt beyond that waits for a step. */
    return 2 * segs + HZP_DIV_UP(rows, page_rows) + stride;
}

int hzp_page_table_create(struct hzp_device *dev, const struct hzp_page_table_config *config,
                          struct hzp_page_table **ret)
{
    HZP_ASSERT(config->lines > 0 && config->stride > 0 &&
               config->changes_max >= HZP_MAX(config->lines, config->stride) &&
               config->lines <= INT32_MAX / config->stride);
    struct hzp_page_table *t = hzp_xcalloc(1, sizeof(*t));
    size_t bytes = hzp_page_table_bytes(config);
    t->config = *config;
    t->dev = dev;
    t->host = hzp_xcalloc(1, bytes);
    int r = hzp_device_alloc(dev, HZP_MEM_DEVICE, bytes, (void **)&t->table);
    if (r >= 0) /* no kernel reads a page number that was never set, but it may load it */
        r = hzp_device_copy(dev, t->table, t->host, bytes);
    if (r < 0) {
        hzp_page_table_destroy(t);
        return r;
    }
    hzp_page_table_forget(t);
    *ret = t;
    return HZP_OK;
}

void hzp_page_table_destroy(struct hzp_page_table *t)
{
    if (!t)
        return;
    hzp_device_free(t->dev, HZP_MEM_DEVICE, t->table);
    free(t->host);
    free(t);
}

void hzp_page_table_forget(struct hzp_page_table *t)
{
    if (t)
        memset(t->host, 0xff, hzp_page_table_bytes(&t->config));
}
