/* SPDX-License-Identifier: Apache-2.0 */
/* serve/kvpool.h - who owns which KV page.
 *
 * All pages of all layers are taken at create.  A sequence takes them one by one as it grows, and
 * they come back when the step that last used them has ended.  The pool promises nothing: who may
 * begin is admission's (admission.h), and who gives way when none is free is the scheduler's.
 *
 * No page has two owners, and who is pushed back computes its rows again, so pages are never
 * copied.
 *
 * Invariant: free + taken = pages.
 *
 * Thread: engine.
 */
#ifndef HZP_SERVE_KVPOOL_H
#define HZP_SERVE_KVPOOL_H

#include "nanobatch/build/model.h"

struct hzp_kvpool;

size_t hzp_kvpool_bytes(const struct hzp_model_config *config, enum hzp_dtype type, int32_t pages,
                        int32_t page_rows);
int hzp_kvpool_create(const struct hzp_model *model, int32_t pages, int32_t page_rows,
                      struct hzp_kvpool **ret);
/* The pages that are taken first, so many of them, are there from now on: a step does not wait for
 * the system to find them at their first use (hzp_device_touch).  Before any is taken. */
int hzp_kvpool_touch(struct hzp_kvpool *pool, int32_t pages);
void hzp_kvpool_destroy(struct hzp_kvpool *pool); /* NULL: no effect */

const struct hzp_kv *hzp_kvpool_layers(const struct hzp_kvpool *pool); /* [layers] */
int32_t hzp_kvpool_page_rows(const struct hzp_kvpool *pool);
int32_t hzp_kvpool_pages(const struct hzp_kvpool *pool);

/* A free page; -1: there is none. */
int32_t hzp_kvpool_take(struct hzp_kvpool *pool);
int32_t hzp_kvpool_free_pages(const struct hzp_kvpool *pool);
/* Gives a sequence's pages back. */
void hzp_kvpool_release(struct hzp_kvpool *pool, const int32_t *page, int32_t taken);

struct hzp_kvpool_stats {
    int32_t pages, taken;
};
void hzp_kvpool_read_stats(const struct hzp_kvpool *pool, struct hzp_kvpool_stats *ret);

#endif
