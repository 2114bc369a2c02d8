/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/examples.h - texts to learn from, to samples: what POST /v1/fine_tuning/examples takes
 * and what `hzpserve train --data` reads.
 *
 * A body is NDJSON (one object a line) or one JSON array of objects:
 *
 *     {"prompt": "...", "completion": "..."}   the completion and the end token are learned
 *     {"text": "..."}                          all is learned but the first token; end token too
 *     {"tokens": [..], "learn": [0, 1, ..]}    as given; learn absent: all but the first
 *
 * Other fields are ignored; an object with fields of two shapes is refused.  Everything is checked
 * before anything is kept: one bad line rejects the whole body.
 *
 * The boundary between prompt and completion.  The prompt is tokenised exactly as a completion
 * request tokenises it (special tokens recognised, the post-processor's added, so that the model
 * later sees the very same ids).  Prompt and completion are then tokenised as one text: where that
 * begins with the prompt's ids, the rest is the completion, and nothing can differ from what the
 * model would have to say.  Where a token spans the boundary, the completion is tokenised by
 * itself and put behind the prompt.
 *
 * Thread: any; the context never changes once made, but for the lock around commit and push.
 */
#ifndef HZP_API_LEARN_EXAMPLES_H
#define HZP_API_LEARN_EXAMPLES_H

#include "api/text/tokenizer.h"
#include "base/thread.h"
#include "train/sample_queue.h"

struct hzp_examples {
    struct hzp_tokenizer *tok;      /* borrowed; NULL: only {"tokens"} are taken */
    struct hzp_sample_log *log;     /* borrowed; NULL: nothing is accepted, only parsed */
    struct hzp_sample_queue *queue; /* borrowed */
    int32_t vocab;                  /* ids are below */
    int32_t eos;                    /* end token; -1: none */
    int32_t tokens_max;             /* of one sample: rows of a micro-batch + 1 */
    int32_t samples_max;            /* of one body; 0: as many as memory holds (files) */
    bool split;                     /* a longer {"text"} becomes several samples (files) */
    struct hzp_lock lock;           /* commits and pushes in one order */
};

/* Fills ret; eos: the tokenizer's end token, else config's first, else none. */
void hzp_examples_init(struct hzp_examples *ret, struct hzp_tokenizer *tok,
                       const struct hzp_model_config *config, int32_t tokens_max,
                       int32_t samples_max);
void hzp_examples_fini(struct hzp_examples *ex);

/* Parses a body; the caller owns the samples and the array (free).  content_type, NULL: not said;
 * the body's first character decides between array and lines anyway.  HZP_EINVAL: the text names
 * line and field, the param is "lines[3].completion" (from 1); HZP_ENOMEM. */
int hzp_examples_parse(const struct hzp_examples *ex, const char *body, size_t bytes,
                       const char *content_type, struct hzp_sample ***ret, int32_t *ret_count,
                       struct hzp_err_text *reterr);

/* Parses, reserves space in the queue, commits to the log, hands over to the queue; poke the loop
 * afterwards.  HZP_EBUSY: the queue is full now. */
int hzp_examples_accept(struct hzp_examples *ex, const char *body, size_t bytes,
                        const char *content_type, int64_t *ret_first, int64_t *ret_last,
                        struct hzp_err_text *reterr);

/* Reads a file.  *.txt: documents of plain text, <|endoftext|> between them (none: the whole file
 * is one), each like {"text"}; anything else is a body as above.  Longer texts are cut into samples
 * of tokens_max tokens, each beginning with the last token of the one before, so that every token
 * is predicted once.  Errors name the file. */
int hzp_examples_load(const struct hzp_examples *ex, const char *path, struct hzp_sample ***ret,
                      int32_t *ret_count, struct hzp_err_text *reterr);

void hzp_examples_free(struct hzp_sample **sample, int32_t count); /* array and samples */

#endif
