/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/ops.c - times each op of the model's forward and backward pass on its own, at the
 * model's shapes.
 *
 * Each op is compared with the limit that binds it: the library's GEMM peak or the read bandwidth.
 * Products with few rows are bound by reading the weights.
 */
#include "dev/bench/bench.h"

#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, RUNS_MAX = 31, EVICT_BYTES = 96 << 20 };

struct lab {
    struct hzp_bench *b;
    struct hzp_device *dev;
    struct hzp_lane *lane;
    enum hzp_dtype act;
    char *memory, *evict;
    size_t bytes;
};

/* Median seconds of one op, with cold caches before every run: in a model, the ops in between evict
 * its weights. */
static double time_op(struct lab *lab, enum hzp_op op, const void *args)
{
    double seconds[RUNS_MAX];
    int runs = lab->b->quick ? 5 : RUNS_MAX, n = 0;
    uint64_t begin = hzp_now_ns();
    hzp_lane_issue(lab->lane, op, args);
    while (n < runs && (n < 3 || hzp_now_ns() - begin < 1000000000u)) {
        memset(lab->evict, n, EVICT_BYTES);
        uint64_t from = hzp_now_ns();
        if (hzp_lane_issue(lab->lane, op, args) < 0)
            return 0;
        seconds[n++] = (double)(hzp_now_ns() - from) * 1e-9;
    }
    return hzp_bench_quantile(seconds, n, 0.5);
}

static void show(struct lab *lab, const char *name, enum hzp_op op, const void *args)
{
    struct hzp_cost cost = hzp_op_cost(op, args);
    double seconds = time_op(lab, op, args);
    double peak = hzp_limits_gemm(&lab->b->limits, lab->act);
    double compute = peak > 0 ? (double)cost.flops / peak : 0;
    double memory = (double)cost.bytes / lab->b->limits.read_bytes_per_s;
    hzp_bench_figure(lab->b, name,
                     compute > memory ? (double)cost.flops / seconds * 1e-9
                                      : (double)cost.bytes / seconds * 1e-9,
                     compute > memory ? "GFLOP/s" : "GB/s",
                     compute > memory ? HZP_BENCH_GEMM : HZP_BENCH_READS, 1e-9,
                     compute > memory ? "GEMM peak" : "read bandwidth");
}

static struct hzp_mat take(struct lab *lab, size_t *at, int32_t rows, int32_t cols,
                           enum hzp_dtype type)
{
    struct hzp_mat mat = {lab->memory + *at, rows, cols, cols, type};
    *at += HZP_ROUND_UP((size_t)rows * (size_t)cols * hzp_dtype_size(type), (size_t)4096);
    if (*at > lab->bytes) {
        fprintf(stderr, "bench ops: a matrix of %d x %d does not fit\n", rows, cols);
        exit(1);
    }
    return mat;
}

static void products(struct lab *lab, const char *what, int32_t out, int32_t in)
{
    static const int32_t rows[] = {1, 8, 16, 32, 64, ROWS};
    char name[96];
    for (int i = 0; i < HZP_COUNT(rows); i++) {
        size_t at = 0;
        struct hzp_matmul_args args = {.b = take(lab, &at, out, in, lab->act), .trans_b = 1};
        args.a = take(lab, &at, rows[i], in, lab->act);
        args.c = take(lab, &at, rows[i], out, lab->act);
        snprintf(name, sizeof(name), "%s %d x %d, %d rows", what, out, in, rows[i]);
        show(lab, name, HZP_OP_matmul, &args);
    }
    size_t at = 0;
    struct hzp_matmul_args args = {.b = take(lab, &at, out, in, lab->act)};
    args.a = take(lab, &at, ROWS, out, lab->act);
    args.c = take(lab, &at, ROWS, in, HZP_F32);
    snprintf(name, sizeof(name), "%s, input gradient, %d rows", what, ROWS);
    show(lab, name, HZP_OP_matmul, &args);
    at = 0;
    args = (struct hzp_matmul_args){
        .a = take(lab, &at, ROWS, out, lab->act), .trans_a = 1, .accumulate = 1};
    args.b = take(lab, &at, ROWS, in, lab->act);
    args.c = take(lab, &at, out, in, HZP_F32);
    snprintf(name, sizeof(name), "%s, weight gradient, %d rows", what, ROWS);
    show(lab, name, HZP_OP_matmul, &args);
}

static void attention(struct lab *lab, const struct hzp_model_config *c)
{
    int32_t packed = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    int32_t width = c->heads.heads * c->heads.dim;
    int32_t row0[] = {0, ROWS}, pos0[] = {0};
    size_t at = 0;
    struct hzp_attn_packed_args forward = {.qkv = take(lab, &at, ROWS, packed, lab->act),
                                           .out = take(lab, &at, ROWS, width, lab->act),
                                           .segs = {row0, pos0, 1, ROWS, ROWS},
                                           .heads = c->heads,
                                           .scale = 0.1f};
    forward.lse = take(lab, &at, ROWS, c->heads.heads, HZP_F32).ptr;
    show(lab, "attention of a document, 512 rows", HZP_OP_attn_packed, &forward);
    struct hzp_attn_packed_bwd_args backward = {.qkv = forward.qkv,
                                                .out = forward.out,
                                                .dout = take(lab, &at, ROWS, width, lab->act),
                                                .dqkv = take(lab, &at, ROWS, packed, lab->act),
                                                .lse = forward.lse,
                                                .segs = forward.segs,
                                                .heads = c->heads,
                                                .scale = 0.1f};
    show(lab, "its backward", HZP_OP_attn_packed_bwd, &backward);
}

static void decode_attention(struct lab *lab, const struct hzp_model_config *c)
{
    enum { SEQUENCES = 8, CONTEXT = 1024, PAGE = 16, PAGES = CONTEXT / PAGE };
    static int32_t row0[SEQUENCES + 1], pos0[SEQUENCES], page[SEQUENCES][PAGES];
    int32_t packed = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    size_t at = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        row0[i + 1] = i + 1;
        pos0[i] = CONTEXT - 1;
        for (int p = 0; p < PAGES; p++)
            page[i][p] = p * SEQUENCES + i;
    }
    int32_t rows = SEQUENCES * CONTEXT * c->heads.kv_heads;
    struct hzp_attn_paged_args args = {
        .kv = {.k = take(lab, &at, rows, c->heads.dim, lab->act).ptr,
               .v = take(lab, &at, rows, c->heads.dim, lab->act).ptr,
               .pages = SEQUENCES * PAGES,
               .page_rows = PAGE,
               .type = lab->act},
        .qkv = take(lab, &at, SEQUENCES, packed, lab->act),
        .out = take(lab, &at, SEQUENCES, c->heads.heads * c->heads.dim, lab->act),
        .segs = {row0, pos0, SEQUENCES, 1, CONTEXT},
        .page = page[0],
        .page_stride = PAGES,
        .heads = c->heads,
        .scale = 0.1f};
    show(lab, "decode attention, 8 sequences of 1024", HZP_OP_attn_decode, &args);
    args.kv.type = HZP_E4M3; /* in the same memory: its bytes are moderate numbers in any type */
    args.kv.k_scale = take(lab, &at, 1, rows, HZP_F32).ptr;
    args.kv.v_scale = take(lab, &at, 1, rows, HZP_F32).ptr;
    show(lab, "the same, keys and values in fp8", HZP_OP_attn_decode, &args);
}

static void rows_of_things(struct lab *lab, const struct hzp_model_config *c)
{
    size_t at = 0;
    struct hzp_rmsnorm_args norm = {.x = take(lab, &at, ROWS, c->width, HZP_F32),
                                    .w = take(lab, &at, 1, c->width, lab->act),
                                    .y = take(lab, &at, ROWS, c->width, lab->act),
                                    .eps = 1e-5f};
    show(lab, "rmsnorm, 512 rows", HZP_OP_rmsnorm, &norm);
    struct hzp_swiglu_args swiglu = {.x = take(lab, &at, ROWS, 2 * c->inner, lab->act),
                                     .y = take(lab, &at, ROWS, c->inner, lab->act)};
    show(lab, "swiglu, 512 rows", HZP_OP_swiglu, &swiglu);
    int32_t n = 1 << 22;
    static double sumsq = 1;
    struct hzp_adamw_args adamw = {.from = take(lab, &at, 1, n, lab->act),
                                   .grad = take(lab, &at, 1, n, HZP_F32),
                                   .m = take(lab, &at, 1, n, HZP_F32),
                                   .v = take(lab, &at, 1, n, HZP_F32),
                                   .sumsq = &sumsq,
                                   .grad_scale = 1,
                                   .lr = 1e-4f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .t = 1};
    adamw.to = adamw.from;
    if (lab->act == HZP_BF16)
        adamw.residual = take(lab, &at, 1, n, HZP_I16);
    show(lab, "AdamW, 4 M parameters", HZP_OP_adamw, &adamw);
}

int hzp_bench_ops(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    struct hzp_model_config c;
    HZP_TRY(hzp_config_read(b->started->model.dir, &c, reterr));
    struct lab lab = {.b = b, .act = hzp_settings_dtype(&b->started->model, &c)};
    b->act = lab.act;
    HZP_TRY(hzp_settings_device(&b->started->device, 0, &lab.dev, reterr));
    lab.bytes = (size_t)c.vocab * (size_t)c.width * 8 + (size_t)ROWS * (size_t)c.vocab * 8 +
                ((size_t)512 << 20);
    lab.evict = malloc(EVICT_BYTES);
    if (!lab.evict)
        return HZP_ENOMEM;
    void *memory = NULL;
    int r = hzp_device_alloc(lab.dev, HZP_MEM_DEVICE, lab.bytes, &memory);
    if (r == HZP_OK)
        r = hzp_lane_open(lab.dev, HZP_BOUND_COMPUTE, &lab.lane);
    if (r == HZP_OK) {
        lab.memory = memory;
        memset(lab.memory, 0x3c, lab.bytes); /* moderate numbers in every data type */
        products(&lab, "q k v", (c.heads.heads + 2 * c.heads.kv_heads) * c.heads.dim, c.width);
        products(&lab, "gate up", 2 * c.inner, c.width);
        products(&lab, "down", c.width, c.inner);
        products(&lab, "head", c.vocab, c.width);
        attention(&lab, &c);
        decode_attention(&lab, &c);
        rows_of_things(&lab, &c);
        hzp_lane_close(lab.lane);
    } else {
        hzp_fail(reterr, r, "bench ops: no memory for %zu bytes", lab.bytes);
    }
    if (memory)
        hzp_device_free(lab.dev, HZP_MEM_DEVICE, memory);
    hzp_device_close(lab.dev);
    free(lab.evict);
    return r;
}
