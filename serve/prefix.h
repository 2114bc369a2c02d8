/* SPDX-License-Identifier: Apache-2.0 */
/* serve/prefix.h - the prefix cache: keeps KV pages whose rows are complete, so that a later
 * request whose tokens begin in the same way does not compute these rows again.
 *
 * A page is kept under the version that computed its rows, the page before it, and its tokens:
 *
 *     key(page i) = (version, id of page i - 1, tokens of page i)
 *
 * where a number for the layers that computed it (depth) stands for the page before the first.  So
 * a match is a match of all tokens from the first one on, and of the layers.  The hash only finds
 * candidates: tokens and the page before are compared.  Only whole pages are shared.  A request
 * whose tokens differ within a page computes that page itself, at most page_rows - 1 rows more than
 * a copy of the page would cost.
 *
 * Pages that sequences use have references.  A page without a reference stays kept, idle, until a
 * sequence needs a page and the pool has none; the one idle for longest goes first.  A sequence
 * releases its pages last page first, so the pages at the beginning of a prompt live longest.
 *
 * Tiers (tier.h).  While few pages are free, those that will be given out next are copied to a tier
 * before; a sequence that would have to compute rows that a tier has waits for them to be copied
 * back, if that is expected to take less time than computing them.
 *
 * Backing pages (kvpool.h).  A match ends where the pages that the next row reads in layers with
 * windows are backed; those before need not be.  A sequence that computes a kept page again, which
 * is not backed, has its own kept instead.
 *
 * Invariants:
 * - A kept page is not written to: the sequence that computed it, too, only reads it from then on.
 * - All rows of a fresh page, and all rows before them that they attend to, were computed by the
 *   serving version.
 * - A page is given out again only when the last step that may read it has ended.
 * - A page that is not fresh is stale: its rows, or rows before them, were computed by a version
 *   that at most `stale_max` swaps ago served last.  With stale_max 0, the default, there are none:
 *   at a swap idle pages return to the pool, and pages in use when their last reference is
 *   released.  None survives a swap to a version that was not made from the one before it, because
 *   that may be meant to forget what its rows know.
 * - Only a search that accepts stale pages finds one.  Either all pages of a sequence are fresh or
 *   none is, because a page behind a stale one is stale, and the first page decides.
 *
 * Thread: engine.
 */
#pragma once

#include "serve/tier.h"

struct hzp_prefix;

enum { HZP_PREFIX_STALE_MAX = 15 };

/* Keeps pages of the pool, which outlives it.  on false: keeps nothing, matches nothing.
 * stale_max: at most HZP_PREFIX_STALE_MAX. */
void hzp_prefix_create(struct hzp_kvpool *pool, bool on, int32_t stale_max,
                       struct hzp_prefix **ret);
/* Before any page is kept: pages that fall out go there.  Borrowed; stopped before the cache is
 * destroyed. */
void hzp_prefix_use_tier(struct hzp_prefix *prefix, struct hzp_tier *tier);
/* Returns all idle pages to the pool; there are no references.  NULL: no effect. */
void hzp_prefix_destroy(struct hzp_prefix *prefix);

/* The version that steps serve from now on, and the one that it was made from. */
void hzp_prefix_serve(struct hzp_prefix *prefix, uint64_t version, uint64_t parent);
/* All steps up to this one have ended. */
void hzp_prefix_ended(struct hzp_prefix *prefix, uint64_t step);

/* Before each step: takes over what the tier has copied, and has it copy more. */
void hzp_prefix_turn(struct hzp_prefix *prefix);

/* Changes whenever a page is added: a match that failed is worth trying again only then. */
uint64_t hzp_prefix_additions(const struct hzp_prefix *prefix);

/* The tokens of a sequence: its prompt, then what it has generated; and the oldest version that may
 * have computed rows which it takes over (the serving one or a newer: fresh pages only). */
struct hzp_prefix_tokens {
    const int32_t *prompt;
    int32_t prompt_count;
    const struct hzp_output *out; /* [count - prompt_count] */
    int32_t count;
    uint64_t oldest;
    int32_t depth; /* struct hzp_demands */
};
int32_t hzp_prefix_token(const struct hzp_prefix_tokens *tokens, int32_t i);

/* The longest kept beginning of these tokens, as whole pages: page[0 .. from) are kept pages that
 * the sequence has references to; the ones behind, up to page[most), are written to page[], and
 * each gets a reference and is held (kvpool.h): the caller passes those that no row will read.
 * Returns the number of all of them.  *ret_used: how many of the new ones had a reference
 * already. */
int32_t hzp_prefix_match(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                         int32_t from, int32_t most, int32_t *page, int32_t *ret_used);
/* The number that a match would return, changing nothing; *ret_used as above. */
int32_t hzp_prefix_peek(const struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                        int32_t from, int32_t most, const int32_t *page, int32_t *ret_used);

/* Has pages that a tier has of these tokens, from page `from` up to `most`, copied back, if that is
 * worth it: row_ns is how long computing a row takes, 0: not known.  Returns what
 * hzp_prefix_fetched() reaches when they can be matched, or have failed; 0: none. */
uint64_t hzp_prefix_fetch(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                          int32_t from, int32_t most, const int32_t *page, double row_ns);
uint64_t hzp_prefix_fetched(const struct hzp_prefix *prefix);

/* The oldest version that computed rows of this kept page, or rows that they attend to. */
uint64_t hzp_prefix_oldest(const struct hzp_prefix *prefix, int32_t page);

/* Keeps page `index` of a sequence, page[index]; pages before it are kept.  All its rows are
 * computed, or will be when the steps formed so far have ended, by the serving version.  The
 * sequence has a reference then.  False: another page with the same key is kept already, so this
 * one stays the sequence's own, or the cache is off. */
bool hzp_prefix_keep(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                     const int32_t *page, int32_t index);

/* Drops a sequence's references to page[0 .. count).  step: the last one that may read them. */
void hzp_prefix_release(struct hzp_prefix *prefix, const int32_t *page, int32_t count,
                        uint64_t step);

/* A page for a sequence: a free one of the pool, or the one idle for longest; -1: none. */
int32_t hzp_prefix_take(struct hzp_prefix *prefix);
/* How many times in a row hzp_prefix_take() would succeed. */
int32_t hzp_prefix_available(const struct hzp_prefix *prefix);

/* ---- what is worth computing again after a swap ---- */

/* Counts `hits` more uses of each of these kept pages.  At a swap counts are halved. */
void hzp_prefix_count(struct hzp_prefix *prefix, const int32_t *page, int32_t count, uint32_t hits);

/* A beginning of prompts that were found here: whole pages. */
struct hzp_prefix_hot {
    int32_t *token; /* [count], owned by the caller */
    int32_t count;
    uint32_t hits; /* its last page's */
    int32_t depth;
};
/* The most used ones, longest first among equals, of at most rows_max tokens together (what they
 * share counts once) and at most `most`; returns how many. */
int32_t hzp_prefix_hottest(const struct hzp_prefix *prefix, int32_t rows_max,
                           struct hzp_prefix_hot *ret, int32_t most);

struct hzp_prefix_stats {
    int32_t idle; /* kept pages without a reference, and those that are copied back */
    int32_t kept; /* pages that can be matched */
    uint64_t evicted;
};
void hzp_prefix_read_stats(const struct hzp_prefix *prefix, struct hzp_prefix_stats *ret);
