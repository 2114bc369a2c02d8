/* SPDX-License-Identifier: Apache-2.0 */
/* serve/kvpool.h - who owns which KV page.
 *
 * All pages of all layers are taken at create.  A sequence reserves, at admission, as many pages
 * as it can ever need, so nothing that was admitted can run out (admission by worst case), and
 * takes them one by one as it grows.  Pages come back when the step that last used them has ended.
 *
 * Invariant: free + taken = pages; taken <= reserved <= pages.
 *
 * Thread: engine.
 */
#ifndef HZP_SERVE_KVPOOL_H
#define HZP_SERVE_KVPOOL_H

#include "nanobatch/model.h"

struct hzp_kvpool;

size_t hzp_kvpool_bytes(const struct hzp_model_config *config, enum hzp_dtype type, int32_t pages,
                        int32_t page_rows);
int hzp_kvpool_create(const struct hzp_model *model, int32_t pages, int32_t page_rows,
                      struct hzp_kvpool **ret);
void hzp_kvpool_destroy(struct hzp_kvpool *pool); /* NULL: no effect */

const struct hzp_kv *hzp_kvpool_layers(const struct hzp_kvpool *pool); /* [layers] */
int32_t hzp_kvpool_page_rows(const struct hzp_kvpool *pool);
int32_t hzp_kvpool_pages(const struct hzp_kvpool *pool);

/* HZP_EBUSY: so many pages are not unreserved now. */
int hzp_kvpool_reserve(struct hzp_kvpool *pool, int32_t pages);
/* One of the reserved pages; never fails for who reserved it. */
int32_t hzp_kvpool_take(struct hzp_kvpool *pool);
/* Gives back a sequence's reservation and the pages it took. */
void hzp_kvpool_release(struct hzp_kvpool *pool, int32_t reserved, const int32_t *page,
                        int32_t taken);

struct hzp_kvpool_stats {
    int32_t pages, reserved, taken;
};
void hzp_kvpool_read_stats(const struct hzp_kvpool *pool, struct hzp_kvpool_stats *ret);

#endif
