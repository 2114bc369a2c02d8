/* SPDX-License-Identifier: Apache-2.0 */
/* serve/edits.h - the per-token logit edits of one sequence: its biases, the generated tokens its
 * penalties count, and the stop ids that min_tokens still bans.
 *
 * A sparse list with at most one edit per token, updated after every generated token; a step copies
 * it into the batch.  Memory for the worst case is allocated at create, so no step allocates.
 *
 * Thread: create: the submitting thread; the rest: engine.
 */
#ifndef HZP_SERVE_EDITS_H
#define HZP_SERVE_EDITS_H

#include "device/ops.h"

struct hzp_edits;

/* What edits follow from; all pointers are borrowed for the call only. */
struct hzp_edit_rules {
    int32_t vocab;
    const int32_t *bias_token; /* [biases] */
    const float *bias;
    int32_t biases;
    const int32_t *ban[2]; /* [bans[i]] ids that may be banned: stop ids, end-of-sequence ids */
    int32_t bans[2];
    bool penalties;        /* tokens of the prompt and generated ones are counted: */
    const int32_t *prompt; /* [prompt_count] */
    int32_t prompt_count, max_tokens;
};

/* The largest number of edits that the sequence can come to; 0: it needs none, and its list is
 * NULL. */
int32_t hzp_edits_needed(const struct hzp_edit_rules *rules);

/* HZP_ENOMEM.  *ret is NULL if none are needed. */
int hzp_edits_create(const struct hzp_edit_rules *rules, struct hzp_edits **ret);
void hzp_edits_destroy(struct hzp_edits *edits); /* NULL: no effect */

int32_t hzp_edits_count(const struct hzp_edits *edits); /* NULL: 0 */

/* True: the edits of a draw depend on the tokens drawn before it.  NULL: false. */
bool hzp_edits_grow(const struct hzp_edits *edits);

/* The sequence generated this token.  NULL: no effect. */
void hzp_edits_generated(struct hzp_edits *edits, int32_t token);

/* Writes the list, hzp_edits_count() entries; ban: stop ids are forbidden in this draw. */
void hzp_edits_write(const struct hzp_edits *edits, bool ban, struct hzp_logit_edit *ret);

#endif
