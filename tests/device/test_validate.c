/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_validate.c - each validation rule, violated once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "device/ops.h"

static float memory[8][4096];
static int32_t ids[256];

static struct hzp_mat mat(int which, int32_t rows, int32_t cols)
{
    return (struct hzp_mat){memory[which], rows, cols, cols, HZP_F32};
}

static struct hzp_mat bf16(int which, int32_t rows, int32_t cols)
{
    struct hzp_mat m = mat(which, rows, cols);
    m.type = HZP_BF16;
    return m;
}

/* Valid at first; after the change, refused with these words; then the change is undone. */
#define BROKEN(op, args, field, value, words)                                                      \
    do {                                                                                           \
        __typeof__(args) broken_ = args;                                                           \
        const char *why_;                                                                          \
        assert_null(hzp_op_validate(HZP_OP_##op, &args));                                          \
        broken_.field = value;                                                                     \
        why_ = hzp_op_validate(HZP_OP_##op, &broken_);                                             \
        assert_non_null(why_);                                                                     \
        assert_int_equal(strncmp(why_, #op ": ", strlen(#op) + 2), 0);                             \
        if (!strstr(why_, words))                                                                  \
            fail_msg("\"%s\" does not say \"%s\"", why_, words);                                   \
    } while (0)

static void test_matrices(void **state)
{
    struct hzp_rmsnorm_args a = {.x = mat(0, 3, 8), .w = mat(1, 1, 8), .y = mat(2, 3, 8)};
    BROKEN(rmsnorm, a, x.ptr, NULL, "x is absent");
    BROKEN(rmsnorm, a, x.ptr, (char *)memory[0] + 2, "x is not aligned");
    BROKEN(rmsnorm, a, x.stride, 7, "stride less than its width");
    BROKEN(rmsnorm, a, x.rows, -1, "negative size");
    BROKEN(rmsnorm, a, x.rows, 2, "differ in shape");
    BROKEN(rmsnorm, a, x.type, HZP_BF16, "x is not F32");
    BROKEN(rmsnorm, a, y.type, HZP_BF16, "differ in type");
    BROKEN(rmsnorm, a, w.cols, 7, "w is not [1][cols]");
    BROKEN(rmsnorm, a, eps, -1, "eps");
    BROKEN(rmsnorm, a, add, bf16(3, 3, 8), "add is not F32");
    BROKEN(rmsnorm, a, add, mat(3, 2, 8), "x and add differ in shape");
    a.x = (struct hzp_mat){NULL, 0, 8, 8, HZP_F32};
    a.y = a.x;
    assert_null(hzp_op_validate(HZP_OP_rmsnorm, &a)); /* no rows: no memory is needed */
    assert_non_null(hzp_op_validate(HZP_OP_COUNT, &a));
}

static void test_codes(void **state)
{
    struct hzp_codes_args a = {.x = mat(0, 3, 8), .norm = bf16(1, 1, 8), .y = mat(2, 3, 8)};
    float scale[3];
    a.scale = scale;
    a.y.type = HZP_E4M3;
    BROKEN(codes, a, y.type, HZP_BF16, "y is not E4M3");
    BROKEN(codes, a, x.type, HZP_BF16, "x is not F32");
    BROKEN(codes, a, norm.cols, 7, "norm is not [1][cols of x]");
    BROKEN(codes, a, norm.type, HZP_I32, "norm is neither");
    BROKEN(codes, a, x.rows, 2, "x and y differ in shape");
    BROKEN(codes, a, norm.ptr, NULL, "x is not [rows][2 width]");
}

static void test_project(void **state)
{
    struct hzp_project_args a = {.product = {.a = mat(0, 3, 8),
                                             .b = bf16(1, 10, 8),
                                             .c = bf16(2, 3, 5),
                                             .bias = bf16(3, 1, 10),
                                             .trans_b = 1},
                                 .norm = bf16(4, 1, 8),
                                 .gated = 1};
    BROKEN(project, a, gated, 0, "c is not of the product's shape");
    BROKEN(project, a, product.c.cols, 4, "c is not of the product's shape");
    BROKEN(project, a, product.accumulate, 1, "not trans_b alone");
    BROKEN(project, a, product.trans_b, 0, "not trans_b alone");
    BROKEN(project, a, product.bias.cols, 5, "bias is not [1][cols of c]");
    BROKEN(project, a, product.a.type, HZP_BF16, "a is not F32");
    BROKEN(project, a, product.b.type, HZP_E4M3, "b E4M3");
    BROKEN(project, a, norm.type, HZP_F32, "norm and b differ in type");
    BROKEN(project, a, norm.cols, 7, "norm is not [1][cols of a]");
    BROKEN(project, a, norm.ptr, NULL, "a and b differ in type");
    BROKEN(project, a, eps, -1, "eps is negative");
    BROKEN(project, a, product.c.ptr, memory[4], "c overlaps norm");
    a.gated = 0;
    a.product.c.cols = a.product.c.stride = 10;
    assert_null(hzp_op_validate(HZP_OP_project, &a));
}

static void test_overlap(void **state)
{
    struct hzp_swiglu_args a = {mat(0, 4, 8), mat(1, 4, 4), 0};
    BROKEN(swiglu, a, y.ptr, memory[0], "y overlaps x");
    BROKEN(swiglu, a, y.ptr, memory[0] + 31, "y overlaps x");
    a.y.ptr = memory[0] + 32; /* directly behind x */
    assert_null(hzp_op_validate(HZP_OP_swiglu, &a));
    a.x.stride = a.y.stride = 12; /* side by side in one wider matrix */
    a.y.ptr = memory[0] + 8;
    assert_null(hzp_op_validate(HZP_OP_swiglu, &a));
    BROKEN(swiglu, a, y.ptr, memory[0] + 7, "y overlaps x");
    BROKEN(swiglu, a, y.ptr, memory[0] + 9, "y overlaps x");

    struct hzp_rope_args r = {.x = mat(0, 3, 16),
                              .y = mat(1, 3, 16),
                              .table = mat(2, 9, 4),
                              .pos = ids,
                              .heads = {2, 1, 4}};
    BROKEN(rope, r, y.ptr, memory[0] + 1, "y overlaps x");
    r.y = r.x; /* in place is allowed */
    assert_null(hzp_op_validate(HZP_OP_rope, &r));
    BROKEN(rope, r, table.ptr, memory[0], "overlaps");
}

static void test_matmul(void **state)
{
    struct hzp_matmul_args a = {.a = bf16(0, 3, 8),
                                .b = bf16(1, 5, 8),
                                .c = bf16(2, 3, 5),
                                .bias = bf16(3, 1, 5),
                                .trans_b = 1};
    BROKEN(matmul, a, b.type, HZP_F32, "a and b differ in type");
    BROKEN(matmul, a, a.cols, 7, "differ in depth");
    BROKEN(matmul, a, trans_b, 0, "differ in depth");
    BROKEN(matmul, a, c.cols, 4, "product's shape");
    BROKEN(matmul, a, c.type, HZP_I16, "neither F32 nor of a's type");
    BROKEN(matmul, a, bias.cols, 4, "bias is not");
    BROKEN(matmul, a, bias.type, HZP_F32, "a and bias differ");
    a.from = a.c;
    a.from.ptr = memory[5];
    a.accumulate = 1;
    BROKEN(matmul, a, accumulate, 0, "nothing is accumulated");
    BROKEN(matmul, a, from.cols, 4, "c and from differ");
    BROKEN(matmul, a, from.stride, 16, "differ in stride");
    BROKEN(matmul, a, from.ptr, a.c.ptr, "overlaps from");
    a.from.ptr = NULL;
    a.c = mat(2, 3, 5);
    assert_null(hzp_op_validate(HZP_OP_matmul, &a));
}

static void test_attention(void **state)
{
    struct hzp_attn_paged_args a = {.qkv = mat(0, 4, 32),
                                    .out = mat(1, 4, 16),
                                    .kv = {memory[2], memory[3], 6, 16, HZP_F32, NULL, NULL},
                                    .segs = {ids, ids, 4, 1, 32},
                                    .page = ids,
                                    .page_stride = 2,
                                    .heads = {4, 2, 4}};
    BROKEN(attn_decode, a, heads.kv_heads, 3, "multiple of kv_heads");
    BROKEN(attn_decode, a, heads.dim, 0, "positive");
    BROKEN(attn_decode, a, heads.dim, 8, "wide");
    BROKEN(attn_decode, a, segs.count, 3, "one row");
    BROKEN(attn_decode, a, segs.rows_max, 2, "one row");
    BROKEN(attn_decode, a, segs.ctx_max, 33, "does not fit a row of page");
    BROKEN(attn_decode, a, segs.ctx_max, 0, "less than rows_max");
    BROKEN(attn_decode, a, segs.row0, NULL, "row0 is absent");
    BROKEN(attn_decode, a, kv.type, HZP_BF16, "pages and rows differ");
    BROKEN(attn_decode, a, kv.k_scale, (float *)memory[5], "pages are not E4M3");
    BROKEN(attn_decode, a, kv.pages, 0, "no pages");
    BROKEN(attn_decode, a, out.cols, 12, "out is not");
    BROKEN(attn_decode, a, sink, mat(7, 1, 3), "sink is not [1][heads]");
    BROKEN(attn_decode, a, sink, bf16(7, 1, 4), "qkv and sink differ in type");
    BROKEN(attn_prefill, a, segs.rows_max, 5, "segments do not fit");
    BROKEN(attn_prefill, a, out.ptr, memory[2], "out overlaps k");

    struct hzp_rope_args k = {.x = a.qkv,
                              .y = a.qkv,
                              .table = mat(4, 9, 4),
                              .pos = ids,
                              .kv = a.kv,
                              .slot = ids,
                              .heads = a.heads};
    BROKEN(rope, k, kv.page_rows, INT32_MAX, "more slots");
    BROKEN(rope, k, kv.pages, 0, "no pages");
    BROKEN(rope, k, kv.type, HZP_BF16, "pages and rows differ");
    BROKEN(rope, k, kv.k, NULL, "k is absent");
    BROKEN(rope, k, kv.v, NULL, "v is absent");
    BROKEN(rope, k, kv.v, memory[0], "overlaps");
    BROKEN(rope, k, slot, NULL, "slot is absent");
    k.kv.type = HZP_E4M3;
    k.kv.k_scale = (float *)memory[5];
    k.kv.v_scale = (float *)memory[6];
    assert_null(hzp_op_validate(HZP_OP_rope, &k));
    BROKEN(rope, k, kv.v_scale, NULL, "v_scale is absent");
    BROKEN(rope, k, kv.k_scale, (float *)memory[0], "overlaps");
    k.kv = (struct hzp_kv){0}; /* nothing is appended: no slots are needed */
    k.slot = NULL;
    assert_null(hzp_op_validate(HZP_OP_rope, &k));

    struct hzp_attn_packed_args p = {
        .qkv = a.qkv, .out = a.out, .segs = {ids, ids, 1, 4, 4}, .heads = a.heads};
    BROKEN(attn_packed, p, out.type, HZP_BF16, "differ in type");
    struct hzp_attn_packed_bwd_args b = {.qkv = a.qkv,
                                         .out = a.out,
                                         .dout = mat(4, 4, 16),
                                         .dqkv = mat(5, 4, 32),
                                         .lse = memory[6],
                                         .segs = p.segs,
                                         .heads = a.heads};
    BROKEN(attn_packed_bwd, b, window, -1, "window or cap is negative");
    BROKEN(attn_packed_bwd, b, dsink, mat(7, 1, 4), "there is no sink");
    BROKEN(attn_packed_bwd, b, lse, NULL, "lse is absent");
    BROKEN(attn_packed_bwd, b, dqkv.cols, 31, "differ in shape");
    BROKEN(attn_packed_bwd, b, dout.type, HZP_BF16, "differ in type");
}

static void test_training(void **state)
{
    struct hzp_rmsnorm_bwd_args n = {
        mat(0, 3, 8), mat(1, 3, 8), mat(2, 1, 8), mat(3, 3, 8), mat(4, 1, 8), memory[5], 0, 0};
    BROKEN(rmsnorm_bwd, n, dw.cols, 7, "dw is not");
    BROKEN(rmsnorm_bwd, n, dx.type, HZP_BF16, "dx is not F32");
    BROKEN(rmsnorm_bwd, n, rstd, NULL, "rstd is absent");

    struct hzp_rope_bwd_args r = {.dy = mat(0, 3, 16),
                                  .dx = mat(1, 3, 16),
                                  .x = mat(2, 3, 16),
                                  .q_norm = mat(3, 1, 4),
                                  .dq_norm = mat(4, 1, 4),
                                  .table = mat(5, 9, 4),
                                  .pos = ids,
                                  .heads = {2, 1, 4}};
    BROKEN(rope_bwd, r, q_norm.ptr, NULL, "absent");
    BROKEN(rope_bwd, r, x.ptr, NULL, "x is absent");
    BROKEN(rope_bwd, r, dq_norm.type, HZP_BF16, "dq_norm is not F32");

    struct hzp_xent_args x = {
        .x = mat(0, 3, 8), .dx = mat(1, 3, 8), .target = ids, .loss = memory[2]};
    BROKEN(xent, x, dx.cols, 7, "differ in shape");
    BROKEN(xent, x, loss, NULL, "loss is absent");
    x.dx = x.x;
    assert_null(hzp_op_validate(HZP_OP_xent, &x));
    x.dx = (struct hzp_mat){memory[0], 3, 8, 16, HZP_BF16}; /* in the first half of each row */
    assert_null(hzp_op_validate(HZP_OP_xent, &x));
    BROKEN(xent, x, dx.stride, 8, "overlaps x");
    BROKEN(xent, x, dx.ptr, (char *)memory[0] + 16, "overlaps x");

    double sum;
    struct hzp_adamw_args a = {.from = bf16(0, 3, 8),
                               .to = bf16(1, 3, 8),
                               .grad = mat(3, 3, 8),
                               .m = mat(4, 3, 8),
                               .v = mat(5, 3, 8),
                               .sumsq = &sum,
                               .t = 1};
    a.residual = (struct hzp_mat){memory[2], 3, 8, 8, HZP_I16};
    BROKEN(adamw, a, residual.ptr, NULL, "residual is not I16");
    BROKEN(adamw, a, residual.type, HZP_BF16, "residual is not I16");
    BROKEN(adamw, a, t, 0, "t is less than 1");
    BROKEN(adamw, a, beta2, 1, "beta");
    BROKEN(adamw, a, clip, -1, "clip");
    BROKEN(adamw, a, grad.rows, 2, "differ in shape");
    BROKEN(adamw, a, sumsq, NULL, "sumsq is absent");
    a.to = a.from;
    assert_null(hzp_op_validate(HZP_OP_adamw, &a));

    struct hzp_muon_args before = {
        .x = mat(3, 3, 8), .grad = mat(3, 3, 8), .m = mat(4, 3, 8), .sumsq = &sum};
    assert_null(hzp_op_validate(HZP_OP_muon, &before));
    BROKEN(muon, before, momentum, 1, "momentum");
    BROKEN(muon, before, x.type, HZP_BF16, "x is not F32");
    struct hzp_muon_args after = {
        .x = mat(3, 3, 8), .from = a.from, .to = a.to, .residual = a.residual, .sumsq = &sum};
    assert_null(hzp_op_validate(HZP_OP_muon, &after));
    BROKEN(muon, after, residual.ptr, NULL, "residual is not I16");

    uint64_t checksum;
    int64_t nonfinite;
    struct hzp_audit_args u = {bf16(0, 3, 8), &checksum, &nonfinite};
    BROKEN(audit, u, x.stride, 9, "gaps");
    u.x.rows = 1;
    u.x.cols = u.x.stride = 4;
    assert_null(hzp_op_validate(HZP_OP_audit, &u));
    u.x.cols = u.x.stride = 3;
    assert_non_null(strstr(hzp_op_validate(HZP_OP_audit, &u), "8-byte"));
}

static void test_the_rest(void **state)
{
    struct hzp_embed_args e = {bf16(0, 9, 8), mat(1, 3, 8), ids, 0};
    BROKEN(embed, e, table.cols, 7, "differ in width");
    BROKEN(embed, e, id, NULL, "id is absent");
    struct hzp_gather_args g = {mat(0, 9, 8), mat(1, 3, 8), ids};
    BROKEN(gather, g, y.type, HZP_I32, "differ in type");
    struct hzp_cast_args c = {.x = mat(0, 3, 8), .y = bf16(1, 3, 8)};
    BROKEN(cast, c, y.type, HZP_I16, "neither F32 nor BF16");
    BROKEN(cast, c, scale, 1.0f / 0.0f, "not finite");
    BROKEN(cast, c, cap, -1, "cap is negative");
    struct hzp_colsum_args s = {bf16(0, 3, 8), mat(1, 1, 8)};
    BROKEN(colsum, s, y.rows, 2, "y is not");
    struct hzp_sample_row row = {.given = -1};
    struct hzp_sample_args a = {
        .logits = mat(0, 1, 8), .row = &row, .token = ids, .logprob = memory[1], .rank = ids + 8};
    BROKEN(sample, a, logits.type, HZP_BF16, "logits is not F32");
    BROKEN(sample, a, top_token, ids + 16, "absent");
    BROKEN(sample, a, rank, ids, "overlaps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices), cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_matmul),   cmocka_unit_test(test_attention),
        cmocka_unit_test(test_training), cmocka_unit_test(test_the_rest),
        cmocka_unit_test(test_codes),    cmocka_unit_test(test_project),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
