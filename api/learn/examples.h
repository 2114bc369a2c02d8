/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/examples.h - turns training examples into samples: the bodies of POST
 * /v1/fine_tuning/examples and the files of `hzpserve train --data`.
 *
 * A body is NDJSON (one object a line), one JSON array of objects, or by its type a table (csv.h):
 *
 *     {"messages": [{"role", "content"}, ..]}  what the assistant says (text/chat/learned.h)
 *     {"prompt": "...", "completion": "..."}   completion and end token are learned
 *     {"text": "..."}                          all but the first token, and the end token
 *     {"tokens": [..], "learn": [0, 1, ..]}    as given; learn absent: all but the first; weights
 *                                              and a loss may stand beside them (row_losses.c)
 *     {.., "paraphrases": ["..."]}             the prompt in other words: asked, not learned
 *     {.., "teach": "sdft"}                    what the model, told the answer, says is learned
 *     {"prompt", "chosen", "rejected"}         a pair of answers (pairs.c), as TRL writes it, or as
 *                                              OpenAI does
 *     and those of forms.h: alpaca, messages, ShareGPT, other names for prompt and completion;
 *     every learned answer is followed by the end token
 *
 * Columns that would change a prompt (system, history, tools, functions) are used or refused by
 * name.  In a body other fields are refused too (in a file they are ignored), and so is an object
 * with fields of two shapes.  The whole body is checked before any of it is accepted: one bad line
 * rejects the whole body.
 *
 * The boundary between prompt and completion.  The prompt is tokenised exactly as in a completion
 * request (special tokens are recognised and the post-processor's are added), so that training uses
 * the same ids as serving.  Prompt and completion are then tokenised as one text: if that begins
 * with the prompt's ids, the remaining ids are the completion.  If a token spans the boundary, the
 * completion is tokenised by itself and appended to the prompt.
 *
 * Thread: any; the context is constant once made, except for the lock around commit and push.
 */
#pragma once

#include "api/learn/forms.h"
#include "base/thread.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"
#include "train/table/sample_queue.h"

/* What becomes of an example of a file that is longer than tokens_max (--too-long); 0: refused, by
 * a command that has no option for it.  Texts are split in any case. */
enum hzp_too_long { HZP_TOO_LONG_REFUSED, HZP_TOO_LONG_CUT, HZP_TOO_LONG_SKIP, HZP_TOO_LONG_FAIL };

struct hzp_examples {
    const struct hzp_chat *chat;      /* borrowed, set after init; NULL: messages as plain lines */
    struct hzp_tokenizer *tok;        /* borrowed; NULL: only {"tokens"} are accepted */
    struct hzp_sample_log *log;       /* borrowed; NULL: examples are only parsed, not accepted */
    struct hzp_sample_queue *queue;   /* borrowed */
    int32_t vocab;                    /* token ids are below it */
    int32_t eos;                      /* end token; -1: none */
    int32_t tokens_max;               /* in one sample: rows of a micro-batch + 1 */
    int32_t piece_tokens;             /* in one piece of a text that is split: at most tokens_max */
    int32_t samples_max;              /* in one body; 0: unlimited (files) */
    bool endless;                     /* texts of a *.txt file get no end token: for evaluation */
    bool pairs;                       /* files may have pairs of answers */
    bool sdft;                        /* posted examples are "teach": "sdft" where they can be */
    bool split;                       /* a longer {"text"} is split into several samples (files) */
    enum hzp_too_long too_long;       /* what happens to long examples of files */
    struct hzp_example_fields fields; /* the names of a file's fields */
    struct hzp_lock lock;             /* keeps commits and pushes in the same order */
};

/* Fills ret; eos: the tokenizer's end token, else config's first, else none; piece_tokens:
 * tokens_max. */
void hzp_examples_init(struct hzp_examples *ret, struct hzp_tokenizer *tok,
                       const struct hzp_model_config *config, int32_t tokens_max,
                       int32_t samples_max);
void hzp_examples_fini(struct hzp_examples *ex);

/* Parses a body; the caller owns the samples and the array (free). content_type (NULL: none): only
 * distinguishes a single object over several lines from NDJSON; an array is recognised by its first
 * character.  HZP_EINVAL: the text names line and field, the param is "lines[3].completion" (from
 * 1); HZP_ENOMEM. */
int hzp_examples_parse(const struct hzp_examples *ex, const char *body, size_t bytes,
                       const char *content_type, struct hzp_sample ***ret, int32_t *ret_count,
                       struct hzp_err_text *reterr);

/* A body that arrives in pieces: create, feed ... feed(last), accept_read, destroy.  accept_read
 * reserves space in the queue, commits the samples to the log and hands them to the queue; poke the
 * loop afterwards.  HZP_EBUSY: the queue is full now; 1: a body with this key was accepted before,
 * and gets the same numbers. */
/* It keeps the samples so far and the text of at most one example. */
struct hzp_example_reader;
struct hzp_example_reader *hzp_example_reader_create(const struct hzp_examples *ex,
                                                     const char *content_type);
void hzp_example_reader_destroy(struct hzp_example_reader *reader); /* NULL: no effect */
/* Other names for prompt and completion; the texts are borrowed until the reader's end. */
void hzp_example_reader_fields(struct hzp_example_reader *reader,
                               const struct hzp_example_fields *fields);
/* Errors as hzp_examples_parse(); after one the reader is only destroyed. */
int hzp_example_reader_feed(struct hzp_example_reader *reader, const char *data, size_t bytes,
                            bool last, struct hzp_err_text *reterr);
size_t hzp_example_reader_bytes(const struct hzp_example_reader *reader);  /* that it holds */
int32_t hzp_example_reader_count(const struct hzp_example_reader *reader); /* examples so far */
/* The prompts in other words, the first HZP_ASKS, as samples with their answers, for
 * hzp_effects_note: array and samples are the caller's; a sample's number is its example's index
 * from 1. */
enum { HZP_PARAPHRASES = 8, HZP_ASKS = 64 }; /* HZP_PARAPHRASES: of one example at most */
struct hzp_sample **hzp_example_reader_take_asks(struct hzp_example_reader *reader,
                                                 int32_t *ret_count);
/* Whether examples are among them that the engine computes before they are accepted. */
bool hzp_example_reader_refers(const struct hzp_example_reader *reader);
struct hzp_scheduler;
struct hzp_loop;
struct hzp_version;
/* Has these computed by the version that serves, as prompts of the server's own behind the
 * requests of clients.  A pair has both answers computed, whose log-probabilities become
 * how.reference; an example with a teacher has its answer computed behind a text of the answer
 * and the prompt.  Each of its tokens to which the teacher gives at least half gets the 20
 * likeliest tokens there, and the rest, as soft targets; the other ones are learned plainly.  It
 * waits, for a piece of the body: 1: call it again for the rest, when others have had their turn.
 * reference: the version that pairs are compared with, as hzp_example_reader_reference names it,
 * NULL: the one that serves.  HZP_ECANCELED: the server stops; errors of hzp_scheduler_submit. */
int hzp_example_reader_refer(struct hzp_example_reader *reader, struct hzp_scheduler *scheduler,
                             struct hzp_loop *loop, struct hzp_version *reference,
                             struct hzp_err_text *reterr);
/* NULL: the version that serves. */
const char *hzp_example_reader_reference(const struct hzp_example_reader *reader);
/* Then, where the first example has the number `first`: a new list of {"example", "message"} for
 * those with tokens that a teacher did not soften, the first 10. */
json_t *hzp_example_reader_plain(const struct hzp_example_reader *reader, int64_t first);
/* key: of the body; session: of the client that teaches; NULL: none. */
int hzp_examples_accept_read(struct hzp_examples *ex, struct hzp_example_reader *reader,
                             const char *key, const char *session, int64_t *ret_first,
                             int64_t *ret_last, struct hzp_err_text *reterr);

/* Reads a file. *.txt: plain text documents separated by <|endoftext|> (without it the whole file
 * is one document), each treated like {"text"}; *.csv, *.tsv: lines below a line of names
 * (api/learn/csv.h); any other file is a body as above.  Longer texts are split into samples of
 * piece_tokens tokens, each beginning with the last token of the one before, so that every token is
 * predicted once; other examples that are too long are treated as too_long says, and logged: cut
 * on the left, but never what is learned.  The whole file is read: an error names it, how many of
 * its examples are wrong, and the first of them. */
int hzp_examples_load(const struct hzp_examples *ex, const char *path, struct hzp_sample ***ret,
                      int32_t *ret_count, struct hzp_err_text *reterr);

/* The same for a file that an option names: that it is not there is HZP_EINVAL, of the option. */
int hzp_examples_load_option(const struct hzp_examples *ex, const char *path, const char *option,
                             struct hzp_sample ***ret, int32_t *ret_count,
                             struct hzp_err_text *reterr);

/* Reserves space in the queue, commits the samples to the log and hands them to the queue; takes
 * them over, also on failure.  key NULL: none.  1: the body was accepted before. */
int hzp_examples_commit(struct hzp_examples *ex, struct hzp_sample **sample, int32_t count,
                        const struct hzp_body_key *key, int64_t *ret_first, int64_t *ret_last,
                        struct hzp_err_text *reterr);

/* A pair of a chosen and a rejected sequence, which both have something learned; the reference of
 * each token is its `how`'s, where it has one.  NULL: out of memory. */
struct hzp_sample *hzp_sample_join(const struct hzp_sample *const half[2],
                                   const struct hzp_row_loss *loss);

void hzp_examples_free(struct hzp_sample **sample, int32_t count); /* array and samples */
