/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the results of everything that is timed.  Nothing is measured before this passes. */
#include "lab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float wide(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void *to_host(const void *p, size_t bytes)
{
    void *h = malloc(bytes);
    if (!h)
        lab_die("check: out of memory");
    LAB_CUDA(cudaMemcpy(h, p, bytes, cudaMemcpyDeviceToHost));
    return h;
}

struct attn_host {
    uint16_t *q, *pool;
    int32_t *pages, *len;
};

/* Computes one query head in double. */
static void reference(const struct lab_attn *a, const struct attn_host *h, int seq, int head,
                      double *o)
{
    int page_tokens = 1 << a->page_shift;
    double top = -1e300;
    double mass = 0;
    double *score = malloc(sizeof *score * (size_t)h->len[seq]);
    if (!score)
        lab_die("check: out of memory");
    for (int pass = 0; pass < 2; pass++) {
        for (int d = 0; d < LAB_DIM; d++)
            o[d] = pass ? o[d] : 0;
        for (int t = 0; t < h->len[seq]; t++) {
            size_t page = (size_t)h->pages[seq * a->max_pages + t / page_tokens];
            size_t at = ((page * 2 * LAB_KV + (size_t)(head / LAB_GROUP)) * (size_t)page_tokens +
                         (size_t)(t % page_tokens)) *
                        LAB_DIM;
            if (pass == 0) {
                double s = 0;
                for (int d = 0; d < LAB_DIM; d++)
                    s += (double)wide(h->q[seq * a->q_stride + head * LAB_DIM + d]) *
                         (double)wide(h->pool[at + (size_t)d]);
                score[t] = s / sqrt(LAB_DIM);
                top = score[t] > top ? score[t] : top;
                continue;
            }
            double w = exp(score[t] - top);
            mass += w;
            at += (size_t)LAB_KV * (size_t)page_tokens * LAB_DIM;
            for (int d = 0; d < LAB_DIM; d++)
                o[d] += w * (double)wide(h->pool[at + (size_t)d]);
        }
    }
    for (int d = 0; d < LAB_DIM; d++)
        o[d] /= mass;
    free(score);
}

static void lengths(struct lab_attn *a, const int *len, int batch)
{
    int32_t tiles[16] = {0};
    for (int i = 0; i < batch; i++)
        tiles[i + 1] = tiles[i] + (len[i] + LAB_TILE - 1) / LAB_TILE;
    LAB_CUDA(cudaMemcpy((void *)a->len, len, sizeof *len * (size_t)batch, cudaMemcpyHostToDevice));
    LAB_CUDA(cudaMemcpy((void *)a->tiles, tiles, sizeof *tiles * ((size_t)batch + 1),
                        cudaMemcpyHostToDevice));
}

static int compare(const struct lab_attn *a, const double *ref, const uint16_t *first, int v,
                   int blocks)
{
    size_t n = (size_t)a->batch * 4096;
    uint16_t *out;
    double num = 0;
    double den = 0;
    bool same = true;

    LAB_CUDA(cudaMemset(a->out, 0xff, n * 2));
    LAB_CUDA(cudaMemset(a->part, 0xff, (size_t)lab.sms * 16 * 2 * LAB_GROUP * (LAB_DIM + 2) * 4));
    LAB_CUDA(cudaDeviceSynchronize());
    LAB_CUDA(lab_attn_launch(a, v, blocks, lab.main.stream));
    LAB_CUDA(cudaStreamSynchronize(lab.main.stream));
    out = to_host(a->out, n * 2);
    for (size_t i = 0; i < n; i++) {
        double d = (double)wide(out[i]) - ref[i];
        num += d * d;
        den += ref[i] * ref[i];
    }
    same = !first || memcmp(first, out, n * 2) == 0;
    double err = sqrt(num / den);
    bool ok = err < 6e-3 && same; /* a remaining NaN makes err < 6e-3 false */
    lab_record("check_attention",
               "\"variant\":%d,\"blocks\":%d,\"page\":%d,\"error\":%.3g,\"ok\":%s", v, blocks,
               1 << a->page_shift, isfinite(err) ? err : -1.0, ok ? "true" : "false");
    if (!ok)
        fprintf(stderr, "attention variant %d, %d blocks, page %d: error %g\n", v, blocks,
                1 << a->page_shift, err);
    if (ok && !first)
        ok = compare(a, ref, out, v, blocks) == 0; /* a second run gives the same bits */
    free(out);
    return ok ? 0 : 1;
}

static int check_attention(int page_tokens, const int *len, int batch)
{
    struct lab_cache c;
    struct lab_attn a;
    struct attn_host h;
    int longest = 0;
    int bad = 0;
    const int grids[] = {1, 7, 40, 132};

    for (int i = 0; i < batch; i++)
        longest = len[i] > longest ? len[i] : longest;
    lab_cache_open(&c, (int64_t)batch * (longest + page_tokens) + 256, page_tokens);
    lab_attn_open(&a, &c, batch, longest, 1);
    lengths(&a, len, batch);
    h.q = to_host(a.q, (size_t)batch * 4096 * 2);
    h.pool = to_host(c.pool, (size_t)c.pages * (size_t)page_tokens * 4096);
    h.pages = to_host(a.pages, sizeof(int32_t) * (size_t)batch * (size_t)a.max_pages);
    h.len = to_host(a.len, sizeof(int32_t) * (size_t)batch);
    double *ref = malloc(sizeof *ref * (size_t)batch * 4096);
    if (!ref)
        lab_die("check: out of memory");
    for (int s = 0; s < batch; s++)
        for (int head = 0; head < LAB_HEADS; head++)
            reference(&a, &h, s, head, ref + (size_t)s * 4096 + head * LAB_DIM);
    for (int v = 0; v < lab_attn_variants(); v++) {
        lab_attn_blocks(v, 1);
        for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
            bad += compare(&a, ref, NULL, v, grids[i]);
    }
    free(ref);
    free(h.q);
    free(h.pool);
    free(h.pages);
    free(h.len);
    lab_attn_close(&a);
    LAB_CUDA(cudaFree(c.pool));
    return bad;
}

static double dot(enum lab_op op, const uint16_t *x, const uint16_t *dy, const uint16_t *w,
                  int rows, int n, int k, int i, int j)
{
    double s = 0;
    if (op == LAB_FORWARD)
        for (int t = 0; t < k; t++)
            s += (double)wide(x[(size_t)i * k + t]) * (double)wide(w[(size_t)j * k + t]);
    else if (op == LAB_DGRAD)
        for (int t = 0; t < n; t++)
            s += (double)wide(dy[(size_t)i * n + t]) * (double)wide(w[(size_t)t * k + j]);
    else
        for (int t = 0; t < rows; t++)
            s += (double)wide(dy[(size_t)t * n + i]) * (double)wide(x[(size_t)t * k + j]);
    return s;
}

static int check_gemm(enum lab_op op, const struct lab_lane *lane)
{
    int rows = 256;
    int n = 384;
    int k = 512;
    int height = op == LAB_FORWARD || op == LAB_DGRAD ? rows : n;
    int width = op == LAB_FORWARD ? n : k;
    size_t size = (size_t)height * (size_t)width * (op == LAB_WGRAD ? 4 : 2);
    uint16_t *dx = lab_memory((size_t)rows * k * 2, 1.0f);
    uint16_t *ddy = lab_memory((size_t)rows * n * 2, 1.0f);
    uint16_t *dw = lab_memory((size_t)n * k * 2, 1.0f);
    void *out = lab_memory(size, 0);
    const struct lab_gemm *g = lab_gemm(op, rows, n, k, lane);
    double num = 0;
    double den = 0;

    if (op == LAB_WGRAD) /* it accumulates: start from zero */
        LAB_CUDA(cudaMemset(out, 0, size));
    LAB_CUDA(cudaDeviceSynchronize());
    lab_gemm_run(g, op == LAB_FORWARD || op == LAB_DGRAD ? dw : dx, op == LAB_FORWARD ? dx : ddy,
                 out, lane);
    LAB_CUDA(cudaStreamSynchronize(lane->stream));
    uint16_t *x = to_host(dx, (size_t)rows * k * 2);
    uint16_t *dy = to_host(ddy, (size_t)rows * n * 2);
    uint16_t *w = to_host(dw, (size_t)n * k * 2);
    uint16_t *y = to_host(out, size);
    for (int i = 0; i < height; i++) {
        for (int j = i % 7; j < width; j += 7) {
            double r = dot(op, x, dy, w, rows, n, k, i, j);
            size_t at = (size_t)i * width + j;
            double got = op == LAB_WGRAD ? (double)((float *)(void *)y)[at] : (double)wide(y[at]);
            num += (got - r) * (got - r);
            den += r * r;
        }
    }
    double err = sqrt(num / den);
    bool ok = err < 6e-3;
    lab_record("check_gemm", "\"op\":%d,\"green\":%s,\"error\":%.3g,\"ok\":%s", op,
               lane->green ? "true" : "false", isfinite(err) ? err : -1.0, ok ? "true" : "false");
    free(x);
    free(dy);
    free(w);
    free(y);
    LAB_CUDA(cudaFree(dx));
    LAB_CUDA(cudaFree(ddy));
    LAB_CUDA(cudaFree(dw));
    LAB_CUDA(cudaFree(out));
    return ok ? 0 : 1;
}

/* Finds the SMs on which a lane's blocks run. */
static int census(const struct lab_lane *lane, unsigned char *seen, unsigned char *host)
{
    int count = 0;
    LAB_CUDA(cudaMemset(seen, 0, 256));
    LAB_CUDA(cudaDeviceSynchronize());
    LAB_CUDA(lab_smids(seen, 132 * 40, lane->stream));
    LAB_CUDA(cudaStreamSynchronize(lane->stream));
    LAB_CUDA(cudaMemcpy(host, seen, 256, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++)
        count += host[i];
    return count;
}

static int check_green(void)
{
    unsigned char *seen = lab_memory(256, 0);
    unsigned char a[256], b[256];
    int bad = 0;
    for (int k = 8; k < lab.sms; k += 8) {
        struct lab_lane few, rest;
        if (!lab_green_open(k, &few, &rest))
            continue;
        int na = census(&few, seen, a);
        int nb = rest.stream ? census(&rest, seen, b) : 0;
        int common = 0;
        for (int i = 0; i < 256; i++)
            common += rest.stream && a[i] && b[i];
        bool ok = na == few.sms && nb == rest.sms && common == 0;
        lab_record("check_green",
                   "\"asked\":%d,\"few\":%d,\"rest\":%d,\"few_seen\":%d,\"rest_seen\":%d,"
                   "\"common\":%d,\"ok\":%s",
                   k, few.sms, rest.sms, na, nb, common, ok ? "true" : "false");
        bad += !ok;
        if (k == 64)
            bad += check_gemm(LAB_FORWARD, &few) + check_gemm(LAB_WGRAD, &rest);
        lab_green_close(&few, &rest);
    }
    LAB_CUDA(cudaFree(seen));
    return bad;
}

int lab_section_check(void)
{
    const int mixed[] = {1, 16, 17, 300, 95, 1024, 33};
    const int single[] = {777};
    int bad = 0;
    bad += check_attention(16, mixed, 7);
    bad += check_attention(64, mixed, 7);
    bad += check_attention(16, single, 1);
    lab_tensors_open(1, 256);
    for (int op = LAB_FORWARD; op <= LAB_WGRAD16; op++)
        bad += check_gemm((enum lab_op)op, &lab.main);
    bad += check_green();
    lab_record("check", "\"failures\":%d", bad);
    return bad ? 1 : 0;
}
