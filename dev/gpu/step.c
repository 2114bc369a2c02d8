/* SPDX-License-Identifier: Apache-2.0 */
#include "step.h"

size_t lab_version_bytes(void)
{
    return (STEP_LAYERS * lab_layer_elements() + 2UL * STEP_VOCABULARY * 4096) * 2;
}

void lab_step_open(struct lab_step *s, const struct lab_cache *c, int batch, int context)
{
    size_t rows = (size_t)batch;
    int pages = (context + c->page_tokens - 1) / c->page_tokens;
    s->batch = batch;
    s->x = lab_memory(rows * 4096 * 2, 1.0f);
    s->h = lab_memory(rows * 4096 * 2, 0);
    s->qkv = lab_memory(rows * 6144 * 2, 0);
    s->mixed = lab_memory(rows * 4096 * 2, 0);
    s->branch = lab_memory(rows * 4096 * 2, 1.0f);
    s->wide = lab_memory(rows * 28672 * 2, 0);
    s->act = lab_memory(rows * 14336 * 2, 0);
    s->logits = lab_memory(rows * STEP_VOCABULARY * 2, 0);
    for (int l = 0; l < STEP_LAYERS; l++) {
        lab_attn_open(&s->attn[l], c, batch, context, l * batch * pages);
        LAB_CUDA(cudaFree((void *)s->attn[l].q));
        LAB_CUDA(cudaFree(s->attn[l].out));
        s->attn[l].q = s->qkv;
        s->attn[l].q_stride = 6144;
        s->attn[l].out = s->mixed;
    }
}

void lab_step_close(struct lab_step *s)
{
    void *all[] = {s->x, s->h, s->qkv, s->mixed, s->branch, s->wide, s->act, s->logits};
    for (int l = 0; l < STEP_LAYERS; l++) {
        s->attn[l].q = NULL;
        s->attn[l].out = NULL;
        lab_attn_close(&s->attn[l]);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        LAB_CUDA(cudaFree(all[i]));
}

static void product(const struct lab_step *s, int n, int k, const uint16_t *w, const void *x,
                    void *y, const struct lab_lane *lane)
{
    lab_gemm_run(lab_gemm(LAB_FORWARD, s->batch, n, k, lane), w, x, y, lane);
}

static void layer(struct lab_step *s, int l, const uint16_t *w, const struct lab_lane *lane,
                  int blocks)
{
    cudaStream_t st = lane->stream;
    LAB_CUDA(lab_norm(s->h, s->x, s->branch, s->batch, st));
    product(s, 6144, 4096, w + lab_shapes[0].offset, s->h, s->qkv, lane);
    LAB_CUDA(lab_attn_launch(&s->attn[l], lab_variant, blocks, st));
    product(s, 4096, 4096, w + lab_shapes[1].offset, s->mixed, s->branch, lane);
    LAB_CUDA(lab_norm(s->h, s->x, s->branch, s->batch, st));
    product(s, 28672, 4096, w + lab_shapes[2].offset, s->h, s->wide, lane);
    LAB_CUDA(lab_silu(s->act, s->wide, s->batch, st));
    product(s, 4096, 14336, w + lab_shapes[3].offset, s->act, s->branch, lane);
}

void lab_step_run(struct lab_step *s, const uint16_t *weights, const struct lab_lane *lane,
                  int attn_sms)
{
    int blocks = lab_attn_blocks(lab_variant, attn_sms);
    for (int l = 0; l < STEP_LAYERS; l++)
        layer(s, l, weights + (size_t)l * lab_layer_elements(), lane, blocks);
    LAB_CUDA(lab_norm(s->h, s->x, s->branch, s->batch, lane->stream));
    product(s, STEP_VOCABULARY, 4096, weights + STEP_LAYERS * lab_layer_elements(), s->h, s->logits,
            lane);
}

void lab_step_tune(struct lab_step *s, const uint16_t *weights, const struct lab_lane *lane)
{
    /* Tuning reads lab_t's buffers, and needs weights as wide as the head. */
    uint16_t *kept = lab_t.weights;
    int layers = lab_t.layers;
    lab_t.weights = (uint16_t *)weights;
    lab_t.layers = STEP_LAYERS - 4; /* a product of the head's size must stay within the version */
    for (int i = 0; i < LAB_LAYER_SHAPES; i++)
        lab_gemm(LAB_FORWARD, s->batch, lab_shapes[i].n, lab_shapes[i].k, lane);
    lab_gemm(LAB_FORWARD, s->batch, STEP_VOCABULARY, 4096, lane);
    lab_t.weights = kept;
    lab_t.layers = layers;
    lab_step_run(s, weights, lane, lane->sms);
    LAB_CUDA(cudaDeviceSynchronize());
}

cudaGraphExec_t lab_step_graph(struct lab_step *s, const uint16_t *weights,
                               const struct lab_lane *lane, int attn_sms)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = cudaStreamBeginCapture(lane->stream, cudaStreamCaptureModeRelaxed);
    if (e == cudaSuccess) {
        lab_step_run(s, weights, lane, attn_sms);
        e = cudaStreamEndCapture(lane->stream, &graph);
    }
    if (e == cudaSuccess) {
        e = cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphDestroy(graph);
    }
    if (e != cudaSuccess) {
        lab_record("graph_refused", "\"green\":%s,\"error\":\"%s\"", lane->green ? "true" : "false",
                   cudaGetErrorString(e));
        cudaGetLastError();
        return NULL;
    }
    return exec;
}
