/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_grids.c - which kernels a limit on blocks limits: each kernel of the backend
 * is in one of two lists, and the blocks that it starts are what its list says.
 *
 * What hzp_cuda_say_limits, docs/GPU.md and docs/ARCHITECTURE.md say is these lists.  Ops are
 * issued without the reference behind them: nothing is computed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/cudafake/ops.h"

enum { LIMIT = 16, SHARE = 48, CALLS = 64, SM_THREADS = 2048 };

/* Each of these is started by issue_all. */
static const char *const limited[] = {
    "few",
    "few_e4m3",
    "attn_decode",
    "attn_decode_bulk",
    "attn_decode_merge",
    "add_half",
    "scatter",
    "pick_rows",
    "swiglu",
    "swiglu_bwd",
    "cast",
    "fill",
    "noise",
    "adamw",
    "seq_loss",
    "adamw_q8",
    "muon_before",
    "muon_after",
};

/* Blocks for rows, tiles or parts; link_sum is on the link's stream, not on a lane's. */
static const char *const unlimited[] = {
    "rmsnorm",    "rmsnorm_bwd",   "rope",         "rope_bwd",      "rope_bwd_wide", "rope_bwd_end",
    "codes",      "sample_survey", "sample_weigh", "sample_list",   "sample_settle", "sample_rank",
    "xent",       "embed_bwd",     "group_sums",   "group_end",     "sumsq",         "sumsq_end",
    "audit",      "audit_end",     "flash",        "bwd_delta",     "bwd_keys",      "bwd_rows",
    "attn_paged", "attn_packed",   "packed_bwd_q", "packed_bwd_kv", "attn_lay",      "matmul",
    "project",    "tiles_e4m3",    "link_sum",     "sink_bwd",
};

static bool listed(const char *const *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

static bool is_limited(const char *name)
{
    return listed(limited, HZP_COUNT(limited), name);
}

/* A kernel that is new, or is gone, belongs into a list, or out of it. */
static void test_lists(void **state)
{
    const char *name;
    bool found[HZP_COUNT(limited) + HZP_COUNT(unlimited)] = {false};
    for (int i = 0; (name = fake_kernel_name(i)); i++) {
        bool known = false;
        for (int k = 0; k < HZP_COUNT(found); k++) {
            bool of_first = k < HZP_COUNT(limited);
            if (strcmp(of_first ? limited[k] : unlimited[k - HZP_COUNT(limited)], name) != 0)
                continue;
            assert_false(known);
            known = found[k] = true;
        }
        if (!known)
            fail_msg("kernel %s is in no list: is it limited by hzp_cuda_by_grid?", name);
    }
    for (int k = 0; k < HZP_COUNT(found); k++)
        assert_true(found[k]);
}

struct rig {
    struct hzp_device *dev;
    struct hzp_lane *lane;
    char *memory;
};

enum { PLACES = 5, PLACE = 16 << 20 }; /* of memory: one for each operand */

static void *at(const struct rig *g, int place)
{
    return g->memory + (size_t)place * PLACE;
}

static struct hzp_mat mat(const struct rig *g, int place, int32_t rows, int32_t cols,
                          enum hzp_dtype type)
{
    return (struct hzp_mat){at(g, place), rows, cols, cols, type};
}

#define ISSUE(op, ...)                                                                             \
    do {                                                                                           \
        struct hzp_##op##_args args_ = __VA_ARGS__;                                                \
        assert_int_equal(hzp_op_##op(g->lane, &args_), HZP_OK);                                    \
    } while (0)

static struct hzp_matmul_args product(const struct rig *g, int32_t m, int32_t n, int32_t k,
                                      enum hzp_dtype type, enum hzp_dtype to)
{
    bool codes = type == HZP_E4M3;
    return (struct hzp_matmul_args){.a = mat(g, 0, m, k, type),
                                    .b = mat(g, 1, n, k, type),
                                    .c = mat(g, 2, m, n, to),
                                    .scale_a = codes ? at(g, 3) : NULL,
                                    .scale_b = codes ? at(g, 3) : NULL,
                                    .trans_b = 1};
}

static void issue_products(const struct rig *g)
{
    enum { N = 16384, K = 64 };
    struct hzp_project_args both = {.product = product(g, 4, N, K, HZP_BF16, HZP_BF16),
                                    .norm = mat(g, 3, 1, K, HZP_BF16),
                                    .eps = 1e-5f,
                                    .gated = 1};
    struct hzp_project_args gated = {.product = product(g, 4, N, K, HZP_E4M3, HZP_BF16),
                                     .gated = 1};
    both.product.a.type = HZP_F32;
    both.product.c = mat(g, 2, 4, N / 2, HZP_BF16);
    gated.product.c = both.product.c;
    ISSUE(matmul, product(g, 4, N, K, HZP_BF16, HZP_F32));
    ISSUE(project, both);
    ISSUE(matmul, product(g, 4, N, K, HZP_E4M3, HZP_F32));
    ISSUE(project, gated);
    ISSUE(matmul, product(g, 12, N - 8, K, HZP_E4M3, HZP_F32)); /* the library takes no such n */
    fake_e4m3 = FAKE_E4M3_HALF;
    ISSUE(matmul, product(g, 1024, 512, 16, HZP_E4M3, HZP_F32));
    fake_e4m3 = FAKE_E4M3_ALL;
    ISSUE(matmul, product(g, 64, 1000, 1000, HZP_E4M3, HZP_F32)); /* 1000 is no multiple of 16 */
}

static void issue_decode(const struct rig *g, int32_t page_rows)
{
    enum { SEQS = 64, HEADS = 32, KV_HEADS = 8, DIM = 128, STRIDE = 256 };
    const int32_t *ints = at(g, 4);
    ISSUE(attn_decode, {.qkv = mat(g, 0, SEQS, (HEADS + 2 * KV_HEADS) * DIM, HZP_BF16),
                        .out = mat(g, 1, SEQS, HEADS * DIM, HZP_BF16),
                        .kv = {at(g, 2), at(g, 3), 64, page_rows, HZP_BF16, NULL, NULL},
                        .segs = {ints, ints, SEQS, 1, STRIDE * page_rows},
                        .page = ints,
                        .table = ints,
                        .line = ints,
                        .page_stride = STRIDE,
                        .lines = SEQS,
                        .heads = {HEADS, KV_HEADS, DIM},
                        .scale = 0.1f});
}

static void issue_rows(const struct rig *g)
{
    enum { ROWS = 2048, COLS = 2048, SEQS = 1 << 18 };
    const int32_t *ints = at(g, 4);
    float *floats = at(g, 4);
    double *sum = at(g, 4);
    struct hzp_mat x = mat(g, 0, ROWS, COLS, HZP_F32), y = mat(g, 1, ROWS, COLS, HZP_F32);
    struct hzp_mat wide = mat(g, 0, ROWS, COLS, HZP_BF16), other = mat(g, 1, ROWS, COLS, HZP_BF16);
    struct hzp_mat half = mat(g, 2, ROWS, COLS / 2, HZP_BF16), row = mat(g, 2, 1, COLS, HZP_BF16);
    struct hzp_mat code = mat(g, 1, ROWS, COLS, HZP_E4M3);
    ISSUE(gather, {x, y, ints});
    ISSUE(scatter, {x, y, ints});
    ISSUE(embed, {.table = wide, .y = y, .id = ints});
    ISSUE(swiglu, {wide, half, 0});
    ISSUE(swiglu_bwd, {wide, half, other, 0});
    ISSUE(cast, {.x = x, .y = other});
    ISSUE(fill, {x, 1});
    ISSUE(noise, {.y = wide, .deviation = 1});
    ISSUE(adamw, {.from = x,
                  .to = x,
                  .grad = y,
                  .m = mat(g, 2, ROWS, COLS, HZP_F32),
                  .v = mat(g, 3, ROWS, COLS, HZP_F32),
                  .sumsq = sum,
                  .grad_scale = 1,
                  .lr = 1,
                  .t = 1});
    ISSUE(adamw, {.from = mat(g, 0, 1, ROWS * COLS, HZP_F32),
                  .to = mat(g, 0, 1, ROWS * COLS, HZP_F32),
                  .grad = mat(g, 1, 1, ROWS * COLS, HZP_F32),
                  .m = mat(g, 2, 1, ROWS * COLS, HZP_Q8),
                  .v = mat(g, 3, 1, ROWS * COLS, HZP_Q8),
                  .m_scale = floats + COLS,
                  .v_scale = floats + ROWS * COLS / 128,
                  .sumsq = sum,
                  .grad_scale = 1,
                  .lr = 1,
                  .t = 1});
    ISSUE(muon, {.x = x, .grad = x, .m = y, .sumsq = sum, .grad_scale = 1});
    ISSUE(muon, {.x = y, .from = x, .to = x, .sumsq = sum, .grad_scale = 1});
    ISSUE(seq_loss, {.lp = mat(g, 0, 1, SEQS, HZP_F32),
                     .how = at(g, 1),
                     .first = ints,
                     .out = at(g, 2),
                     .seqs = SEQS});
    ISSUE(rmsnorm, {.x = x, .w = row, .y = other, .eps = 1e-5f});
    ISSUE(quantize, {.x = wide, .y = code, .scale = floats});
    ISSUE(codes, {.x = x, .norm = row, .y = code, .scale = floats});
    ISSUE(colsum, {wide, mat(g, 2, 1, COLS, HZP_F32)});
    ISSUE(sumsq, {x, sum});
    ISSUE(audit, {x, at(g, 4), at(g, 3)});
}

/* Issues ops that fill the whole device; returns how many kernels that were. */
static int issue_all(const char *lanes, int share, int limit, struct fake_call ret[CALLS])
{
    struct rig rig, *g = &rig;
    int count = 0;
    setenv("HZP_CUDA_LANES", lanes, 1);
    fake_reset(1);
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &g->dev, NULL),
                     HZP_OK);
    assert_int_equal(hzp_lane_open(g->dev, HZP_BOUND_COMPUTE, &g->lane), HZP_OK);
    assert_int_equal(
        hzp_device_alloc(g->dev, HZP_MEM_DEVICE, (size_t)PLACES * PLACE, (void **)&g->memory),
        HZP_OK);
    assert_int_equal(hzp_lane_set_share(g->lane, share), HZP_OK);
    hzp_lane_limit(g->lane, limit);
    issue_products(g);
    issue_decode(g, 16);
    issue_decode(g, 8);
    issue_rows(g);
    for (int i = 0; i < fake_calls(); i++)
        if (fake_call_at(i)->kind == FAKE_KERNEL) {
            assert_true(count < CALLS);
            ret[count++] = *fake_call_at(i);
        }
    hzp_device_free(g->dev, HZP_MEM_DEVICE, g->memory);
    hzp_lane_close(g->lane);
    hzp_device_close(g->dev);
    assert_string_equal(fake_mistakes(), "");
    return count;
}

static unsigned blocks(const struct fake_call *call)
{
    return call->grid.x * call->grid.y * call->grid.z;
}

static unsigned threads(const struct fake_call *call)
{
    return call->block.x * call->block.y * call->block.z;
}

/* By a share that grids hold, and by a limit within a green context. */
static void test_blocks(void **state)
{
    static struct fake_call whole[CALLS], less[CALLS];
    int count = issue_all("green", 0, 0, whole);
    for (int way = 0; way < 2; way++) {
        bool seen[HZP_COUNT(limited)] = {false};
        assert_int_equal(way ? issue_all("green", SHARE, LIMIT, less)
                             : issue_all("grid", LIMIT, 0, less),
                         count);
        for (int i = 0; i < count; i++) {
            const char *name = less[i].name;
            unsigned had = blocks(&whole[i]), has = blocks(&less[i]);
            assert_string_equal(name, whole[i].name);
            if (is_limited(name) ? has >= had || has * threads(&less[i]) > LIMIT * SM_THREADS
                                 : has != had)
                fail_msg("%s: %u blocks of %u threads, without a limit %u", name, has,
                         threads(&less[i]), had);
            for (int k = 0; k < HZP_COUNT(limited); k++)
                seen[k] |= strcmp(limited[k], name) == 0;
        }
        for (int k = 0; k < HZP_COUNT(limited); k++)
            if (!seen[k])
                fail_msg("no op has started %s", limited[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
