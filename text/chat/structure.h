/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/structure.h - the grammars that requests ask for, over a model's vocabulary: made on
 * demand and kept.
 *
 * A grammar is made by the thread that asks, which may take seconds at the bounds of
 * text/grammar/grammar.h, and kept by what was asked; the least recently used ones are dropped
 * above HZP_STRUCTURES_BYTES or HZP_STRUCTURES_MAX.  While the grammars in use (kept, or owned by a
 * request) take more than a bound, no further one is made.  While it is made a grammar takes
 * HZP_STRUCTURE_SMALL bytes of languages at most, but for one at a time that takes
 * HZP_STRUCTURE_LARGE.  The lexicon is made with the first grammar.
 *
 * Invariant: a grammar that was handed out stays valid as long as it has an owner and the
 * structures are open.
 * Thread: open and close the owner's; get: any but the engine's.
 */
#ifndef HZP_TEXT_CHAT_STRUCTURE_H
#define HZP_TEXT_CHAT_STRUCTURE_H

#include "text/chat/reply.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

struct hzp_structures;

#define HZP_STRUCTURES_BYTES  ((int64_t)256 << 20)
#define HZP_STRUCTURES_IN_USE ((int64_t)1 << 30)
#define HZP_STRUCTURE_SMALL   ((int64_t)16 << 20)
#define HZP_STRUCTURE_LARGE   ((int64_t)640 << 20)
enum {
    HZP_STRUCTURES_MAX = 64,
    HZP_STRUCTURE_CALLS_MAX = 16,       /* in one answer */
    HZP_STRUCTURE_CHOICES_MAX = 4096,   /* choices in `choice` */
    HZP_STRUCTURE_SOURCE_MAX = 1 << 18, /* bytes of what is asked, as JSON */
};

/* What is asked; JSON and text are borrowed for the call.  At most one of object (with a schema:
 * which that admits), schema, regex, gbnf and choice; calls may stand alone or beside it (then the
 * answer is one or the other). */
struct hzp_structure {
    bool object; /* a JSON object */
    const json_t *schema, *choice;
    const char *regex, *gbnf;
    /* Calls of tools in the model's own form.  Parameters that cannot be honoured are those of any
     * object, but of a strict tool they are refused. */
    const json_t *tools; /* NULL: none */
    const char *tool;    /* the only one that may be called; NULL: any of them */
    enum hzp_reply_calls calls;
    bool one_call;
    /* The answer is any text, and calls, once they have begun, fit the parameters of their tools,
     * where these are strict, else any object. */
    bool free;
    /* The answer may begin with reasoning, or (inside) goes on with it, up to </think>. */
    bool reasoning, inside;
    bool channels; /* the answer has channels (gpt-oss), which also have the reasoning */
};

/* Whether calls of this form can be asked for. */
static inline bool hzp_structure_calls(enum hzp_reply_calls calls)
{
    return calls != HZP_CALLS_NONE;
}

/* vocab: the model's; tok is borrowed; in_use_max: bytes, such as HZP_STRUCTURES_IN_USE. */
void hzp_structures_open(struct hzp_tokenizer *tok, int32_t vocab, int64_t in_use_max,
                         struct hzp_structures **ret);
void hzp_structures_close(struct hzp_structures *s); /* all grammars are let go; NULL: no effect */

/* *ret: the caller becomes one more owner (hzp_grammar_unref).  HZP_EINVAL: it cannot be honoured;
 * HZP_EBUSY: the grammars in use take too much memory, or this one would while another large one is
 * made; reterr says what. */
int hzp_structures_get(struct hzp_structures *s, const struct hzp_structure *what,
                       struct hzp_grammar **ret, struct hzp_err_text *reterr);

/* What is asked as text, of which another process with the same vocabulary makes the same grammar;
 * owned by the caller.  NULL: no memory. */
char *hzp_structures_write(struct hzp_structures *s, const struct hzp_structure *what);
/* The same as hzp_structures_get of what was written.  Also HZP_EFORMAT: it is something else;
 * HZP_EUNSUP: it is of another vocabulary. */
int hzp_structures_get_written(struct hzp_structures *s, const char *written,
                               struct hzp_grammar **ret, struct hzp_err_text *reterr);

#endif
