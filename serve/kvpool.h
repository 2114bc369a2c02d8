/* SPDX-License-Identifier: Apache-2.0 */
/* serve/kvpool.h - the pool of KV pages: keeps which are free, gives them out and takes them back.
 *
 * The memory of all layers is allocated at create.  A sequence takes pages one by one as it grows;
 * they are released when the last step that used them has ended.  The pool reserves nothing:
 * admission (admission.h) decides which request may start, and the scheduler preempts a request
 * when no page is free.
 *
 * A page has at most one owner, a sequence or the prefix cache (prefix.h), and a preempted sequence
 * recomputes its rows, so pages are copied only to and from the cache's tiers (tier.h).
 *
 * Invariant: free + taken = pages.
 *
 * Thread: engine, except where marked.
 */
#pragma once

#include "nanobatch/model/model.h"

struct hzp_kvpool;

/* Bytes of device memory of a pool whose keys and values have this type; creating one, of
 * hzp_model_kv_type, takes them, with all pages free.  The model is borrowed.  HZP_ENOMEM. */
size_t hzp_kvpool_bytes(const struct hzp_model_config *config, enum hzp_dtype type, int32_t pages,
                        int32_t page_rows);
int hzp_kvpool_create(const struct hzp_model *model, int32_t pages, int32_t page_rows,
                      struct hzp_kvpool **ret);
/* Touches the memory of the pages that will be taken first (hzp_device_touch), so that no step
 * waits for page faults on first use.  Call before any page is taken. */
int hzp_kvpool_touch(struct hzp_kvpool *pool, int32_t pages);
void hzp_kvpool_destroy(struct hzp_kvpool *pool); /* NULL: no effect */

const struct hzp_kv *hzp_kvpool_layers(const struct hzp_kvpool *pool); /* [layers] */
int32_t hzp_kvpool_page_rows(const struct hzp_kvpool *pool);
int32_t hzp_kvpool_pages(const struct hzp_kvpool *pool);

/* Bytes of one page in all layers; copies them to or from host memory.  Thread: any; nothing writes
 * to the page, or reads one that is written, meanwhile.  HZP_EDEVICE. */
size_t hzp_kvpool_page_bytes(const struct hzp_kvpool *pool);
int hzp_kvpool_read_page(const struct hzp_kvpool *pool, int32_t page, void *host);
int hzp_kvpool_write_page(const struct hzp_kvpool *pool, int32_t page, const void *host);

/* A free page; -1: there is none. */
int32_t hzp_kvpool_take(struct hzp_kvpool *pool);
int32_t hzp_kvpool_free_pages(const struct hzp_kvpool *pool);
/* Returns a sequence's pages to the pool. */
void hzp_kvpool_release(struct hzp_kvpool *pool, const int32_t *page, int32_t taken);

struct hzp_kvpool_stats {
    int32_t pages, taken;
};
void hzp_kvpool_read_stats(const struct hzp_kvpool *pool, struct hzp_kvpool_stats *ret);
