/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's ceilings; attention alone by share; matrix products alone by rows. */
#include "lab.h"

#include <stdio.h>
#include <time.h>

struct bytes {
    char *from, *to;
    size_t size;
    int blocks;
    uint32_t *sink;
};

static void run_memcpy(void *arg, const struct lab_lane *lane, int i)
{
    struct bytes *b = arg;
    (void)i;
    LAB_CUDA(cudaMemcpyAsync(b->to, b->from, b->size, cudaMemcpyDeviceToDevice, lane->stream));
}

static void run_copy(void *arg, const struct lab_lane *lane, int i)
{
    struct bytes *b = arg;
    (void)i;
    LAB_CUDA(lab_copy(b->to, b->from, b->size, b->blocks, lane->stream));
}

static void run_read(void *arg, const struct lab_lane *lane, int i)
{
    struct bytes *b = arg;
    (void)i;
    LAB_CUDA(lab_read(b->from, b->size, b->blocks, b->sink, lane->stream));
}

static void run_square(void *arg, const struct lab_lane *lane, int i)
{
    uint16_t **m = arg;
    (void)i;
    lab_gemm_run(lab_gemm(LAB_FORWARD, 8192, 8192, 8192, lane), m[0], m[1], m[2], lane);
}

/* After idling the clock is high; within a second the power limit lowers it. */
static void product_ceiling(uint16_t **m)
{
    const double flops = 2.0 * 8192 * 8192 * 8192;
    struct timespec rest = {1, 500000000};
    cudaEvent_t e[2];
    float ms;

    run_square(m, &lab.main, 0);
    LAB_CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++)
        LAB_CUDA(cudaEventCreate(&e[i]));
    nanosleep(&rest, NULL);
    for (int i = 0; i < 12; i++) {
        if (i == 2)
            LAB_CUDA(cudaEventRecord(e[0], lab.main.stream));
        run_square(m, &lab.main, i);
    }
    LAB_CUDA(cudaEventRecord(e[1], lab.main.stream));
    LAB_CUDA(cudaEventSynchronize(e[1]));
    LAB_CUDA(cudaEventElapsedTime(&ms, e[0], e[1]));
    lab_record("ceiling",
               "\"what\":\"bf16 product 8192^3, 10 after a rest\",\"us\":%.1f,\"value\":%.1f,"
               "\"unit\":\"TFLOP/s\"",
               ms * 100, flops / (ms * 100) * 1e-6);
    for (int r = 0; r < 2; r++) {
        double us = lab_time(run_square, m, &lab.main, 120);
        lab_record("ceiling",
                   "\"what\":\"bf16 product 8192^3, sustained\",\"us\":%.1f,\"value\":%.1f,"
                   "\"unit\":\"TFLOP/s\"",
                   us, flops / us * 1e-6);
    }
}

int lab_section_ceilings(void)
{
    struct bytes b = {.size = 4UL << 30, .blocks = lab.sms * 2};
    uint16_t *m[3];
    b.from = lab_memory(b.size, 1.0f);
    b.to = lab_memory(b.size, 0);
    b.sink = lab_memory(256, 0);
    lab_tensors_open(2, 8192);
    for (int i = 0; i < 3; i++)
        m[i] = lab_memory(8192UL * 8192 * 2, 1.0f);
    double us = lab_time(run_memcpy, &b, &lab.main, 10);
    lab_record(
        "ceiling",
        "\"what\":\"device copy, read + write\",\"us\":%.1f,\"value\":%.1f,\"unit\":\"GB/s\"", us,
        2e-3 * (double)b.size / us);
    us = lab_time(run_copy, &b, &lab.main, 10);
    lab_record(
        "ceiling",
        "\"what\":\"own copy kernel, read + write\",\"us\":%.1f,\"value\":%.1f,\"unit\":\"GB/s\"",
        us, 2e-3 * (double)b.size / us);
    us = lab_time(run_read, &b, &lab.main, 10);
    lab_record("ceiling", "\"what\":\"read only\",\"us\":%.1f,\"value\":%.1f,\"unit\":\"GB/s\"", us,
               1e-3 * (double)b.size / us);
    product_ceiling(m);
    for (int k = 8; k <= lab.sms; k += k == 128 ? 4 : 8) {
        b.blocks = 2 * k;
        us = lab_time(run_read, &b, &lab.main, 4);
        lab_record("read_by_sms", "\"sms\":%d,\"gbs\":%.1f", k, 1e-3 * (double)b.size / us);
    }
    return 0;
}

struct attn_run {
    struct lab_attn a;
    int variant, blocks;
};

static void run_attn(void *arg, const struct lab_lane *lane, int i)
{
    struct attn_run *r = arg;
    (void)i;
    LAB_CUDA(lab_attn_launch(&r->a, r->variant, r->blocks, lane->stream));
}

/* On green lanes, so that the share holds however many blocks fit on an SM. */
static void variants(const struct lab_cache *c)
{
    const int shares[] = {8, 16, 24, 32, 48, 64, lab.sms};
    struct attn_run r;
    lab_attn_open(&r.a, c, 256, 1024, 0);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        struct lab_lane few = lab.main;
        struct lab_lane rest;
        bool green = shares[i] < lab.sms && lab_green_open(shares[i], &few, &rest);
        for (r.variant = 0; r.variant < lab_attn_variants(); r.variant++) {
            struct lab_attn_variant t;
            LAB_CUDA(lab_attn_prepare(r.variant, &t));
            r.blocks = lab_attn_blocks(r.variant, few.sms);
            double us = lab_time(run_attn, &r, &few, 4);
            lab_record("attn_variant",
                       "\"variant\":%d,\"warps\":%d,\"slots\":%d,\"smem_kib\":%d,"
                       "\"per_sm\":%d,\"page\":%d,\"sms\":%d,\"us\":%.1f,\"gbs\":%.0f",
                       r.variant, t.warps, t.slots, t.smem / 1024, t.per_sm, c->page_tokens,
                       few.sms, us, lab_attn_bytes(256, 1024) / us * 1e-3);
        }
        if (green)
            lab_green_close(&few, &rest);
    }
    lab_attn_close(&r.a);
}

static void by_grid(const struct lab_cache *c, int batch, int context)
{
    struct attn_run r = {.variant = lab_variant};
    double full = 0;
    lab_attn_open(&r.a, c, batch, context, 0);
    for (int k = lab.sms; k >= 8; k -= k == lab.sms ? lab.sms - 128 : 8) {
        r.blocks = lab_attn_blocks(r.variant, k);
        double us = lab_time(run_attn, &r, &lab.main, 4);
        full = k == lab.sms ? us : full;
        lab_record("attn_alone",
                   "\"mech\":\"grid\",\"batch\":%d,\"context\":%d,\"sms\":%d,\"us\":%.1f,"
                   "\"gbs\":%.0f,\"p\":%.3f",
                   batch, context, k, us, lab_attn_bytes(batch, context) / us * 1e-3, full / us);
    }
    lab_attn_close(&r.a);
}

static void by_green(const struct lab_cache *c, int batch, int context)
{
    struct attn_run r = {.variant = lab_variant};
    struct lab_lane few, rest;
    lab_attn_open(&r.a, c, batch, context, 0);
    r.blocks = lab_attn_blocks(lab_variant, lab.sms);
    double full = lab_time(run_attn, &r, &lab.main, 4);
    for (int k = 8; k < lab.sms; k += 8) {
        if (!lab_green_open(k, &few, &rest))
            continue;
        r.blocks = lab_attn_blocks(lab_variant, few.sms);
        double us = lab_time(run_attn, &r, &few, 4);
        lab_record("attn_alone",
                   "\"mech\":\"green\",\"batch\":%d,\"context\":%d,\"sms\":%d,\"us\":%.1f,"
                   "\"gbs\":%.0f,\"p\":%.3f",
                   batch, context, few.sms, us, lab_attn_bytes(batch, context) / us * 1e-3,
                   full / us);
        lab_green_close(&few, &rest);
    }
    lab_attn_close(&r.a);
}

int lab_section_attention(void)
{
    struct lab_cache c;
    lab_cache_open(&c, 512 * 1024, 64);
    variants(&c);
    LAB_CUDA(cudaFree(c.pool));
    lab_cache_open(&c, 512 * 1024, 16);
    variants(&c);
    lab_attn_choose(&c);
    by_grid(&c, 64, 1024);
    by_grid(&c, 128, 1024);
    by_grid(&c, 256, 1024);
    by_grid(&c, 512, 1024);
    by_grid(&c, 64, 4096);
    by_grid(&c, 8, 16384);
    by_green(&c, 64, 1024);
    by_green(&c, 256, 1024);
    return 0;
}

/* ---- matrix products by rows ------------------------------------------------------------- */

struct gemm_run {
    enum lab_op op;
    int shape;
    const int *rows; /* pieces, ended by 0 */
};

static void run_gemm(void *arg, const struct lab_lane *lane, int i)
{
    struct gemm_run *r = arg;
    for (const int *m = r->rows; *m; m++)
        lab_gemm_shape(r->op, *m, r->shape, i, lane);
}

/* Runs all four products of a layer, one piece after another, as nano-batches would. */
static void run_layer(void *arg, const struct lab_lane *lane, int i)
{
    struct gemm_run *r = arg;
    for (const int *m = r->rows; *m; m++)
        for (int s = 0; s < LAB_LAYER_SHAPES; s++)
            lab_gemm_shape(r->op, *m, s, i, lane);
}

static double layer_flops(const int *rows)
{
    double f = 0;
    for (; *rows; rows++)
        for (int s = 0; s < LAB_LAYER_SHAPES; s++)
            f += lab_gemm_flops(*rows, lab_shapes[s].n, lab_shapes[s].k);
    return f;
}

static void rows_table(enum lab_op op, const char *name, const int *sizes, int count)
{
    for (int i = 0; i < count; i++) {
        int rows[2] = {sizes[i], 0};
        struct gemm_run r = {op, 0, rows};
        for (r.shape = 0; r.shape < LAB_LAYER_SHAPES; r.shape++) {
            const struct lab_shape *s = &lab_shapes[r.shape];
            const struct lab_gemm *g = lab_gemm(op, sizes[i], s->n, s->k, &lab.main);
            double us = lab_time(run_gemm, &r, &lab.main, 6);
            lab_record("gemm_rows",
                       "\"op\":\"%s\",\"shape\":\"%s\",\"n\":%d,\"k\":%d,\"rows\":%d,\"us\":%.1f,"
                       "\"tflops\":%.1f,\"weight_gbs\":%.0f,\"blocks\":%d,\"kernel\":\"%s\"",
                       name, s->name, s->n, s->k, sizes[i], us,
                       lab_gemm_flops(sizes[i], s->n, s->k) / us * 1e-6,
                       2.0 * s->n * s->k / us * 1e-3, g->blocks, g->kernel);
        }
        double us = lab_time(run_layer, &r, &lab.main, 8);
        lab_record("gemm_layer", "\"op\":\"%s\",\"rows\":%d,\"us\":%.1f,\"tflops\":%.1f", name,
                   sizes[i], us, layer_flops(rows) / us * 1e-6);
    }
}

static void price(const char *label, const int *whole, const int *pieces)
{
    struct gemm_run a = {LAB_FORWARD, 0, whole};
    struct gemm_run b = {LAB_FORWARD, 0, pieces};
    double ratio[3];
    double last[2] = {0, 0};
    /* In turns, so that a drifting clock affects both alike. */
    run_layer(&a, &lab.main, 0);
    run_layer(&b, &lab.main, 0);
    for (int i = 0; i < 3; i++) {
        last[0] = lab_time(run_layer, &a, &lab.main, 8);
        last[1] = lab_time(run_layer, &b, &lab.main, 8);
        ratio[i] = last[1] / last[0];
    }
    double lo = ratio[0] < ratio[1] ? ratio[0] : ratio[1];
    double hi = ratio[0] < ratio[1] ? ratio[1] : ratio[0];
    double mid = ratio[2] < lo ? lo : ratio[2] > hi ? hi : ratio[2];
    lab_record("split_price", "\"split\":\"%s\",\"whole_us\":%.1f,\"split_us\":%.1f,\"price\":%.4f",
               label, last[0], last[1], mid - 1);
}

static void price_all(void)
{
    static const int w2048[] = {2048, 0}, w1024[] = {1024, 0}, w512[] = {512, 0}, w256[] = {256, 0};
    static const int s1[] = {1024, 1024, 0}, s2[] = {512, 512, 512, 512, 0}, s3[] = {768, 1280, 0};
    static const int s4[] = {512, 1536, 0}, s5[] = {384, 1664, 0}, s6[] = {256, 1792, 0};
    static const int s7[] = {640, 1408, 0}, s8[] = {512, 512, 0}, s9[] = {384, 640, 0};
    static const int s10[] = {256, 768, 0}, s11[] = {256, 256, 0}, s12[] = {128, 384, 0};
    static const int s13[] = {128, 128, 0};
    price("2048 = 1024 + 1024", w2048, s1);
    price("2048 = 4 x 512", w2048, s2);
    price("2048 = 768 + 1280", w2048, s3);
    price("2048 = 640 + 1408", w2048, s7);
    price("2048 = 512 + 1536", w2048, s4);
    price("2048 = 384 + 1664", w2048, s5);
    price("2048 = 256 + 1792", w2048, s6);
    price("1024 = 512 + 512", w1024, s8);
    price("1024 = 384 + 640", w1024, s9);
    price("1024 = 256 + 768", w1024, s10);
    price("512 = 256 + 256", w512, s11);
    price("512 = 128 + 384", w512, s12);
    price("256 = 128 + 128", w256, s13);
}

int lab_section_nano(void)
{
    static const int forward[] = {16,  32,  64,   128,  256,  384,  512,
                                  640, 768, 1024, 1280, 1536, 2048, 4096};
    static const int backward[] = {256, 512, 1024, 2048, 4096};
    lab_tensors_open(8, 4096);
    rows_table(LAB_FORWARD, "forward", forward, 14);
    rows_table(LAB_DGRAD, "dgrad", backward, 5);
    rows_table(LAB_WGRAD, "wgrad, fp32 sum", backward, 5);
    rows_table(LAB_WGRAD16, "wgrad, bf16", backward, 5);
    price_all();
    return 0;
}
