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
 * Backing pages.  A layer with a window never reads rows that are older.  Where a sequence may be
 * much longer than the longest window, such layers do not have a part of every page, but fewer
 * pages of their own, which *back* some of the pages: a page is backed when it is taken, and as
 * long as a sequence that has it may read it in these layers.  A page that the prefix cache keeps
 * stays backed beyond that, until its backing page is needed (second chance).  Backing pages are
 * given away between two steps, when no step in flight reads them for a result that counts;
 * serving's items of a step run behind those of the step before (page_table.h), so what such a step
 * reads otherwise is not overwritten meanwhile either.
 *
 * Invariants: free + taken = pages; backing pages: free + held + spare = backs.
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

/* The longest window of the layers; 0: none has one. */
int32_t hzp_kvpool_window(const struct hzp_model_config *config);
/* Pages that are backed for one sequence at most, besides those of a step's rows. */
int32_t hzp_kvpool_window_pages(int32_t window, int32_t page_rows);
/* How many backing pages go with so many pages: those of as many of the longest sequences as the
 * pages hold, but at least an eighth, for shorter ones and for the prefix cache, and no more than
 * twice what all running sequences can have; and those of two steps' rows.  0: all pages would be
 * backed. */
struct hzp_kvpool_use {
    int32_t positions, page_rows, running_max, step_rows;
};
int32_t hzp_kvpool_backs(const struct hzp_model_config *config, const struct hzp_kvpool_use *use,
                         int32_t pages);
/* As hzp_kvpool_bytes and _create, with so many backing pages; 0: none. */
size_t hzp_kvpool_backed_bytes(const struct hzp_model_config *config, enum hzp_dtype type,
                               int32_t pages, int32_t backs, int32_t page_rows);
int hzp_kvpool_create_backed(const struct hzp_model *model, int32_t pages, int32_t backs,
                             int32_t page_rows, struct hzp_kvpool **ret);

/* Touches the memory of the pages that will be taken first (hzp_device_touch), so that no step
 * waits for page faults on first use.  Call before any page is taken. */
int hzp_kvpool_touch(struct hzp_kvpool *pool, int32_t pages);
void hzp_kvpool_destroy(struct hzp_kvpool *pool); /* NULL: no effect */

const struct hzp_kv *hzp_kvpool_layers(const struct hzp_kvpool *pool); /* [layers] */
int32_t hzp_kvpool_page_rows(const struct hzp_kvpool *pool);
int32_t hzp_kvpool_pages(const struct hzp_kvpool *pool);

/* Bytes of one page in all layers; copies them to or from host memory, of a pool without backing
 * pages.  Thread: any; nothing writes
 * to the page, or reads one that is written, meanwhile.  HZP_EDEVICE. */
size_t hzp_kvpool_page_bytes(const struct hzp_kvpool *pool);
int hzp_kvpool_read_page(const struct hzp_kvpool *pool, int32_t page, void *host);
int hzp_kvpool_write_page(const struct hzp_kvpool *pool, int32_t page, const void *host);

/* A free page, which is backed and held by its sequence; -1: there is none. */
int32_t hzp_kvpool_take(struct hzp_kvpool *pool);
int32_t hzp_kvpool_free_pages(const struct hzp_kvpool *pool);
/* Returns a sequence's pages to the pool. */
void hzp_kvpool_release(struct hzp_kvpool *pool, const int32_t *page, int32_t taken);

/* [pages] The backing page of each page, -1: none; NULL: the pool has none. */
const int32_t *hzp_kvpool_backing(const struct hzp_kvpool *pool);
/* Without backing pages: true, 0 and INT32_MAX.  Whether layers with windows have the page's rows;
 * the first page of its sequence that a row at this position reads there; how many more pages can
 * be backed. */
bool hzp_kvpool_backed(const struct hzp_kvpool *pool, int32_t page);
int32_t hzp_kvpool_first(const struct hzp_kvpool *pool, int32_t position);
int32_t hzp_kvpool_backs_left(const struct hzp_kvpool *pool);
/* One more sequence may read a page in layers with windows; one of these does no longer (keep:
 * another one may later: the page stays backed while there is room). */
void hzp_kvpool_hold(struct hzp_kvpool *pool, int32_t page);
void hzp_kvpool_pass(struct hzp_kvpool *pool, int32_t page, bool keep);

struct hzp_kvpool_stats {
    int32_t pages, taken;
    int32_t backs, backs_held, backs_spare; /* backing pages; spare: no sequence's */
};
void hzp_kvpool_read_stats(const struct hzp_kvpool *pool, struct hzp_kvpool_stats *ret);
