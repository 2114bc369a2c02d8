/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/structure.h - the grammars that requests ask for, over a model's vocabulary: made on
 * demand and kept.
 *
 * A grammar is made by the thread that asks, which may take seconds at the bounds of
 * text/grammar/grammar.h, and kept by what was asked; the least recently used ones are dropped
 * above HZP_STRUCTURES_BYTES or HZP_STRUCTURES_MAX.  While the grammars in use (kept, or owned by a
 * request) take more than a bound, no further one is made.  The lexicon is made with the first
 * grammar, and no thread that only looks for a kept one waits for that.
 *
 * How much work and memory a grammar will take is not known before it is made.  So it is tried by
 * sizes (enum hzp_structure_size), each with bounds of its own, until one suffices; who has a
 * thread or two for each size never lets a small grammar wait for a large one.
 *
 * Invariant: a grammar that was handed out stays valid as long as it has an owner and the
 * structures are open.
 * Thread: open and close the owner's; everything else any but the engine's.
 */
#pragma once

#include "text/chat/reply.h"
#include "text/grammar/grammar.h"

struct hzp_structures;

#define HZP_STRUCTURES_BYTES  ((int64_t)256 << 20)
#define HZP_STRUCTURES_IN_USE ((int64_t)1 << 30)
/* Bytes of languages while a grammar is made: of a small and of a long one; of a large one. */
#define HZP_STRUCTURE_SMALL ((int64_t)16 << 20)
#define HZP_STRUCTURE_LARGE ((int64_t)640 << 20)

enum hzp_structure_size {
    HZP_STRUCTURE_QUICK, /* little work: a few hundredths of a second */
    HZP_STRUCTURE_LONG,  /* all the work that the bounds of grammars allow */
    HZP_STRUCTURE_HUGE,  /* that, and HZP_STRUCTURE_LARGE bytes: one at a time */
    HZP_STRUCTURE_SIZES,
};

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

/* What is asked as text; owned by the caller.  HZP_EINVAL: it is too long, or cannot be written. */
int hzp_structures_ask(const struct hzp_structure *what, char **ret, struct hzp_err_text *reterr);

/* The grammar of what hzp_structures_ask() wrote, if it is kept: the caller becomes one more owner
 * (hzp_grammar_unref).  NULL: it is not. */
struct hzp_grammar *hzp_structures_kept(struct hzp_structures *s, const char *asked);

/* The same, made if it is not kept, within the bounds of a size.  abandoned: whether the grammar is
 * no longer wanted, asked while it is made; NULL: it is.  Returns 1: it takes more than this size
 * has, try the next one.  HZP_EINVAL: it cannot be honoured; HZP_EBUSY: the grammars in use take
 * too much memory, or another huge one is being made; HZP_ECANCELED: it was abandoned. */
int hzp_structures_make(struct hzp_structures *s, const char *asked, enum hzp_structure_size size,
                        bool (*abandoned)(void *ctx), void *ctx, struct hzp_grammar **ret,
                        struct hzp_err_text *reterr);

/* Grammars made so far, and of what is kept now: how many, and their bytes. */
struct hzp_structures_stats {
    uint64_t made;
    int32_t kept;
    int64_t bytes;
};
void hzp_structures_read_stats(struct hzp_structures *s, struct hzp_structures_stats *ret);

/* What was asked, for another process: with the same vocabulary it makes the same grammar of it;
 * owned by the caller.  Waits for the lexicon. */
char *hzp_structures_write(struct hzp_structures *s, const char *asked);
/* The grammar of what was written, kept or made here, in every size that it takes.  Errors as
 * hzp_structures_make(); also HZP_EFORMAT: it is something else; HZP_EUNSUP: it is of another
 * vocabulary. */
int hzp_structures_get_written(struct hzp_structures *s, const char *written,
                               struct hzp_grammar **ret, struct hzp_err_text *reterr);
