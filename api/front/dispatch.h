/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/dispatch.h - which rank computes a request: a pure function of what is known of the
 * ranks, and a small memory of the prompts and sessions that ranks have had.
 *
 * Of a request with p prompt tokens and e expected tokens, and a rank with n unfinished requests:
 *
 *     load = max((needed pages + ceil((p + e - found) / page rows)) / pages, (n + 1) / running max)
 *
 * so a load above 1 means that it would wait there; `found` are tokens of the prompt that the rank
 * has probably cached.  A rank is *even* if its load is at most 1 and it has at most
 * 1.5 least + 4 requests, `least` being the smallest number of any rank.  The request goes to
 *
 *     1. the rank of its session, if that is even;
 *     2. of the even ranks the one that has had the longest beginning of its prompt, if that is at
 *        least half of the prompt;
 *     3. the rank with the smallest load; of equal ones that with the fewest requests, then the
 *        last, because rank 0 has other work.
 *
 * Expected tokens: the mean of the requests that have ended lately, at most max_tokens.
 *
 * Prompts are remembered by the hashes of their beginnings, one for each CHUNK tokens, in a table
 * of fixed size whose older entries are overwritten; a wrong guess costs time, nothing else.
 *
 * Invariant: the same calls give the same ranks.
 *
 * Thread: one at a time.
 */
#pragma once

#include "base/base.h"

enum { HZP_DISPATCH_RANKS_MAX = 64 };

/* What is known of a rank. */
struct hzp_dispatch_rank {
    bool takes;       /* it is there, is not being drained, and has room for the request */
    int32_t requests; /* not ended */
    int32_t running_max;
    int32_t kv_pages,
        kv_needed; /* pages of its pool; pages that its requests are predicted to need */
    int32_t page_rows;
    int32_t found; /* tokens of the prompt's beginning that it has had */
};

/* What is known of a request. */
struct hzp_dispatch_ask {
    int32_t prompt, expected; /* tokens */
    int32_t session;          /* the rank of its session; -1: none */
};

/* The rank; -1: none takes it. */
int hzp_dispatch_choose(const struct hzp_dispatch_ask *ask, const struct hzp_dispatch_rank *rank,
                        int ranks);

/* Pages that the request is expected to need on the rank. */
int32_t hzp_dispatch_pages(const struct hzp_dispatch_ask *ask,
                           const struct hzp_dispatch_rank *rank);

/* ---- the memory ---- */

struct hzp_dispatch;

struct hzp_dispatch *hzp_dispatch_create(void);
void hzp_dispatch_destroy(struct hzp_dispatch *d); /* NULL: no effect */

/* For each rank, how many of the prompt's first tokens it has had: a multiple of the chunk.  ret
 * [ranks]. */
void hzp_dispatch_find(const struct hzp_dispatch *d, const int32_t *prompt, int32_t count,
                       int ranks, int32_t *ret);
/* The rank computes this prompt. */
void hzp_dispatch_note(struct hzp_dispatch *d, const int32_t *prompt, int32_t count, int rank);
/* The rank's cache is empty: it was lost, or serves other weights. */
void hzp_dispatch_forget(struct hzp_dispatch *d, int rank);

/* The rank of a session, by its number (not 0); -1: none is known. */
int hzp_dispatch_session(const struct hzp_dispatch *d, uint64_t session);
void hzp_dispatch_note_session(struct hzp_dispatch *d, uint64_t session, int rank);

/* A request has ended with so many tokens. */
void hzp_dispatch_ended(struct hzp_dispatch *d, int32_t tokens);
int32_t hzp_dispatch_expected(const struct hzp_dispatch *d, int32_t max_tokens);
