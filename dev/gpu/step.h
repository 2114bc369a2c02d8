/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decode step of a Llama-3.1-8B, synthetic: every matrix product, attention over a real paged
 * context, norms and activations of 32 layers and the head, with random weights. It leaves out
 * rope, the append of new keys, and sampling: a few microseconds a layer.
 *
 * Thread: one host thread.
 */
#ifndef HZP_DEV_GPU_STEP_H
#define HZP_DEV_GPU_STEP_H

#include "lab.h"

enum { STEP_LAYERS = 32, STEP_VOCABULARY = 128256 };

struct lab_step {
    int batch;
    struct lab_attn attn[STEP_LAYERS];
    uint16_t *x, *h, *qkv, *mixed, *branch, *wide, *act, *logits;
};

size_t lab_version_bytes(void); /* all parameters, embedding included: 16.06 GB */
/* Opens a context of `context` tokens for each of `batch` sequences, in every layer. */
void lab_step_open(struct lab_step *s, const struct lab_cache *c, int batch, int context);
void lab_step_close(struct lab_step *s);
/* Tunes the step's products for this lane; call once before a capture or a timing. */
void lab_step_tune(struct lab_step *s, const uint16_t *weights, const struct lab_lane *lane);
/* Issues one step; attention gets attn_sms SMs. */
void lab_step_run(struct lab_step *s, const uint16_t *weights, const struct lab_lane *lane,
                  int attn_sms);
/* The same as a graph; NULL where the lane cannot be captured (recorded). */
cudaGraphExec_t lab_step_graph(struct lab_step *s, const uint16_t *weights,
                               const struct lab_lane *lane, int attn_sms);

#endif
