/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/structure_parts.h - the rules of a structure; for structure.c and the files that make
 * them: structure_rules.c has reasoning and content, structure_calls.c calls of tools in the forms
 * in which models write them (reply.h).
 *
 * Thread: any; one structure by one thread.
 */
#pragma once

#include "text/chat/structure.h"
#include "text/grammar/regular.h"

struct hzp_making {
    struct hzp_tokenizer *tok;
    const struct hzp_structure *what;
    struct hzp_rules *rules;
    struct hzp_err_text *reterr;
};

/* Fills rule `root`.  HZP_EINVAL: it cannot be honoured; reterr says what. */
int hzp_structure_rules(struct hzp_tokenizer *tok, const struct hzp_structure *what,
                        struct hzp_rules *rules, int32_t root, struct hzp_err_text *reterr);

/* ---- structure_rules.c: these append behind `from` and return the node behind ---- */
int32_t hzp_structure_text(const struct hzp_making *m, int32_t from, const char *text);
/* A mark of the model's own form: a special token, or text where it is none. */
int32_t hzp_structure_mark(const struct hzp_making *m, int32_t from, const char *mark);
/* A mark as a special token or as text, to a node: what reads like it. */
void hzp_structure_spelled(const struct hzp_making *m, int32_t from, const char *mark, int32_t to);
/* What `rules` take from `all` on and not from `begin` to `end`; frees rules. */
int32_t hzp_structure_other(const struct hzp_making *m, int32_t from, struct hzp_rules *rules,
                            int32_t all, int32_t begin, int32_t end);
/* Text and special tokens in which none of these marks occurs, however spelled; text: no special
 * token at all. */
int32_t hzp_structure_without(const struct hzp_making *m, int32_t from, const char *const *mark,
                              int marks, bool text);
/* Loops over any byte of text and, unless text is set, any special token. */
void hzp_structure_any(struct hzp_rules *rules, int32_t node, bool text);
/* Any text up to a mark, with that. */
int32_t hzp_structure_until(const struct hzp_making *m, int32_t from, const char *mark);

/* The rule of the objects that the schema admits. */
int hzp_structure_object(const struct hzp_making *m, const json_t *schema, int32_t *ret);

/* ---- structure_calls.c ---- */

/* Calls, from one node to another; with what->free text before, between and behind them. */
int hzp_structure_add_calls(const struct hzp_making *m, int32_t from, int32_t to);
