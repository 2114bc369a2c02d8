/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/fingerprint.h - short texts that identify a model and a tokenizer, for a state
 * directory to recognise what it was begun with.
 *
 * Thread: any.
 */
#pragma once

#include "text/tokenizer/tokenizer.h"
#include "weights/layout.h"

enum { HZP_FINGERPRINT_SIZE = 128 };

/* Shapes and vocabulary: they define what a token id in the log means, and which weights it belongs
 * to.  tok NULL: without. */
void hzp_fingerprint_shapes(const struct hzp_layout *layout, struct hzp_tokenizer *tok,
                            char ret[HZP_FINGERPRINT_SIZE]);

/* The weights in dir: names, types and shapes of all tensors and a sample of each one's bytes, in
 * whatever files they are.  "none": there are none. */
int hzp_fingerprint_weights(const char *dir, char ret[HZP_FINGERPRINT_SIZE],
                            struct hzp_err_text *reterr);

/* All bytes of all tensors, in whatever files they are: reads the whole model.  stop (NULL: none):
 * raised by another thread, it ends early with HZP_ECANCELED. */
int hzp_fingerprint_contents(const char *dir, const atomic_bool *stop,
                             char ret[HZP_FINGERPRINT_SIZE], struct hzp_err_text *reterr);

/* Names, sizes and times of the files that hold the weights in dir: if they are as they were, the
 * contents are taken to be so too. */
void hzp_fingerprint_files(const char *dir, char ret[HZP_FINGERPRINT_SIZE]);

/* The bytes of dir/tokenizer.json.  "none": there is none. */
int hzp_fingerprint_tokenizer(const char *dir, char ret[HZP_FINGERPRINT_SIZE],
                              struct hzp_err_text *reterr);
