/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/facts.c - properties that every device must have independently of ref: the
 * distribution of the draws, the exactness of the optimizer's master weights, values computed
 * elsewhere. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/fp8.h"
#include "device/philox.h"
#include "tests/opcheck/opcheck.h"

static int verdict(struct oc_target *target, const char *op, const char *what, const char *broken)
{
    oc_report(!broken, op, target->name, what, "%s", broken ? broken : "");
    return broken != NULL;
}

static void *result_at(const struct oc_io *io, const uint8_t *result, const void *ptr)
{
    return (void *)(result + ((const uint8_t *)ptr - io->image));
}

enum { VOCAB = 16, DRAWS = 20000 };

/* The probabilities under the settings, computed by the simplest loops. */
static void expect(const struct hzp_sample_row *row, const float *logit, double *ret)
{
    int order[VOCAB], kept = VOCAB;
    double sum = 0, reached = 0;
    for (int i = 0; i < VOCAB; i++) { /* insertion sort, likeliest first */
        int j = i;
        for (; j > 0 && logit[order[j - 1]] < logit[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
    if (row->top_k)
        kept = HZP_MIN(kept, row->top_k);
    for (int i = 0; i < kept; i++)
        sum += exp(logit[order[i]] / row->temperature);
    for (int i = 0; i < kept; i++) {
        if (i && (reached >= row->top_p * sum ||
                  logit[order[i]] < logit[order[0]] + row->temperature * log(row->min_p)))
            kept = i;
        else
            reached += exp(logit[order[i]] / row->temperature);
    }
    memset(ret, 0, VOCAB * sizeof(*ret));
    for (int i = 0; i < kept; i++)
        ret[order[i]] = exp(logit[order[i]] / row->temperature) / reached;
}

/* Pearson's statistic of DRAWS draws; no draw may have probability 0. */
static const char *draws_check(const int32_t *token, const double *p)
{
    static char text[128];
    double seen[VOCAB] = {0}, chi2 = 0;
    int free_cells = -1;
    for (int i = 0; i < DRAWS; i++) {
        if (token[i] < 0 || token[i] >= VOCAB || p[token[i]] <= 0)
            return "drew a token that was cut";
        seen[token[i]]++;
    }
    for (int i = 0; i < VOCAB; i++)
        if (p[i] > 0) {
            chi2 += (seen[i] - DRAWS * p[i]) * (seen[i] - DRAWS * p[i]) / (DRAWS * p[i]);
            free_cells++;
        }
    /* Wilson and Hilferty's approximation of the 99.99 % quantile (3.72 standard deviations) */
    double f = free_cells, limit = f * pow(1 - 2 / (9 * f) + 3.72 * sqrt(2 / (9 * f)), 3);
    if (free_cells < 1 || chi2 <= limit)
        return NULL;
    snprintf(text, sizeof(text), "chi-square %.1f exceeds %.1f of %d cells", chi2, limit,
             free_cells);
    return text;
}

static int fact_draws(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    static const struct {
        const char *what;
        struct hzp_sample_row row;
    } settings[] = {
        {"draws: temperature 1", {.temperature = 1, .top_p = 1}},
        {"draws: temperature 0.5", {.temperature = 0.5f, .top_p = 1}},
        {"draws: top_k 5", {.temperature = 1, .top_p = 1, .top_k = 5}},
        {"draws: top_p 0.8", {.temperature = 0.9f, .top_p = 0.8f}},
        {"draws: min_p 0.1", {.temperature = 1.5f, .top_p = 1, .min_p = 0.1f}},
        {"draws: all three", {.temperature = 1.2f, .top_p = 0.9f, .min_p = 0.08f, .top_k = 9}},
    };
    int failures = 0;
    for (int s = 0; s < HZP_COUNT(settings); s++) {
        struct hzp_sample_args a = {0};
        double p[VOCAB];
        float logit[VOCAB];
        oc_io_reset(io, 99, false);
        struct hzp_sample_row *row = oc_bytes(io, "row", DRAWS * sizeof(*row), OC_IN);
        a.logits = oc_mat(io, "logits", DRAWS, VOCAB, HZP_F32, OC_SCRATCH);
        a.token = oc_array(io, "token", OC_I32, DRAWS, OC_OUT);
        a.logprob = oc_array(io, "logprob", OC_F32, DRAWS, OC_OUT);
        a.rank = oc_array(io, "rank", OC_I32, DRAWS, OC_OUT);
        a.row = row;
        for (int i = 0; i < VOCAB; i++)
            logit[i] = (float)(1.5 * oc_normal(io));
        for (int r = 0; r < DRAWS; r++) {
            row[r] = settings[s].row;
            row[r].repetition = 1;
            row[r].given = -1;
            row[r].seed = 4711;
            row[r].position = (uint32_t)r;
            memcpy((float *)a.logits.ptr + r * VOCAB, logit, sizeof(logit));
        }
        oc_args(io, &a, sizeof(a));
        const char *broken = "the device failed";
        if (oc_target_run(target, HZP_OP_sample, io, result) >= 0) {
            expect(&settings[s].row, logit, p);
            broken = draws_check(result_at(io, result, a.token), p);
        }
        failures += verdict(target, "sample", settings[s].what, broken);
    }
    return failures;
}

/* What is drawn for a row must not depend on the batch around it. */
static int fact_alone(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { ROWS = 33, WIDE = 1021 };
    int32_t together[ROWS];
    const char *broken = NULL;
    for (int turn = -1; turn < ROWS && !broken; turn++) {
        struct hzp_sample_args a = {0};
        int rows = turn < 0 ? ROWS : 1, first = turn < 0 ? 0 : turn;
        oc_io_reset(io, 5, false);
        struct hzp_sample_row *row = oc_bytes(io, "row", (size_t)rows * sizeof(*row), OC_IN);
        a.logits = oc_mat(io, "logits", rows, WIDE, HZP_F32, OC_SCRATCH);
        a.token = oc_array(io, "token", OC_I32, rows, OC_OUT);
        a.logprob = oc_array(io, "logprob", OC_F32, rows, OC_OUT);
        a.rank = oc_array(io, "rank", OC_I32, rows, OC_OUT);
        a.row = row;
        for (int r = 0; r < rows; r++) {
            uint64_t rng = (uint64_t)(first + r);
            row[r] = (struct hzp_sample_row){.temperature = 1,
                                             .top_p = 0.95f,
                                             .repetition = 1,
                                             .given = -1,
                                             .seed = rng * 77,
                                             .position = 3};
            for (int i = 0; i < WIDE; i++)
                oc_put(&a.logits, r, i, (float)(oc_random(&rng) >> 40) * 0x1p-21f);
        }
        oc_args(io, &a, sizeof(a));
        if (oc_target_run(target, HZP_OP_sample, io, result) < 0)
            broken = "the device failed";
        else if (turn < 0)
            memcpy(together, result_at(io, result, a.token), sizeof(together));
        else if (*(int32_t *)result_at(io, result, a.token) != together[turn])
            broken = "a row alone draws a different token than in a batch";
    }
    return verdict(target, "sample", "a row's draw is its own", broken);
}

/* Attention's result for a row must not depend on the other rows, bit for bit: neither where
 * work is split by its amount, nor where a prompt comes in parts. */
static int fact_attention(struct oc_target *target, struct oc_io *io, uint8_t *result,
                          enum hzp_op op, enum hzp_dtype pages)
{
    enum { SEQS = 5, STRIDE = 70, PAGE = 16, DIM = 64, HEADS = 6, KV = 2, WIDE = HEADS * DIM };
    static const int32_t seen[SEQS] = {1, 256, 1100, 300, 77};
    static uint16_t together[SEQS * 80][WIDE];
    const bool decode = op == HZP_OP_attn_decode;
    const char *broken = NULL;
    for (int turn = -1; turn < SEQS && !broken; turn++) {
        struct hzp_attn_paged_args a = {.heads = {HEADS, KV, DIM}, .scale = 0.125f};
        int32_t at[SEQS + 1] = {0}, first = HZP_MAX(turn, 0), count = turn < 0 ? SEQS : 1;
        oc_io_reset(io, 11, false);
        int32_t *row0 = oc_array(io, "row0", OC_I32, SEQS + 1, OC_IN);
        int32_t *pos0 = oc_array(io, "pos0", OC_I32, SEQS, OC_IN);
        int32_t *page = oc_array(io, "page", OC_I32, SEQS * STRIDE, OC_IN);
        row0[0] = 0;                   /* arrays are created with random contents */
        for (int i = 0; i < SEQS; i++) /* rows: one, or the last 80 */
            at[i + 1] = at[i] + (decode ? 1 : HZP_MIN(seen[i], 80));
        /* alone, a prompt's last rows only */
        int32_t skip = turn >= 0 && !decode ? (at[first + 1] - at[first]) / 3 : 0;
        for (int i = 0; i < count; i++) {
            int32_t rows = at[first + i + 1] - at[first + i] - skip;
            row0[i + 1] = row0[i] + rows;
            pos0[i] = seen[first + i] - rows;
            a.segs.rows_max = HZP_MAX(a.segs.rows_max, rows);
            a.segs.ctx_max = HZP_MAX(a.segs.ctx_max, seen[first + i]);
            for (int j = 0; j < STRIDE; j++)
                page[i * STRIDE + j] = (first + i) * STRIDE + (j ^ 1);
        }
        a.segs = (struct hzp_segs){row0, pos0, count, a.segs.rows_max, a.segs.ctx_max};
        a.page = page;
        a.page_stride = STRIDE;
        a.qkv = oc_mat(io, "qkv", at[SEQS], WIDE + 2 * KV * DIM, HZP_BF16, OC_IN);
        a.out = oc_mat(io, "out", at[SEQS], WIDE, HZP_BF16, OC_OUT);
        struct hzp_mat kv[2], scale[2] = {0};
        for (int i = 0; i < 2; i++) {
            bool codes = pages == HZP_E4M3;
            kv[i] = oc_mat(io, i ? "v" : "k", SEQS * STRIDE * KV * PAGE, DIM, pages, OC_IN);
            oc_fill(io, &kv[i], codes ? 100 : 1, 10);
            if (!codes)
                continue;
            scale[i] = oc_mat(io, "scale", 1, SEQS * STRIDE * KV * PAGE, HZP_F32, OC_IN);
            for (int32_t c = 0; c < scale[i].cols; c++)
                oc_put(&scale[i], 0, c, (float)(0.001 + 0.02 * oc_uniform(io)));
        }
        oc_fill(io, &a.qkv, 1, 10);
        a.kv = (struct hzp_kv){kv[0].ptr, kv[1].ptr,    SEQS * STRIDE, PAGE,
                               pages,     scale[0].ptr, scale[1].ptr};
        a.qkv = hzp_mat_rows(a.qkv, at[first] + skip, row0[count]);
        a.out = hzp_mat_rows(a.out, at[first] + skip, row0[count]);
        oc_args(io, &a, sizeof(a));
        const void *out = result_at(io, result, a.out.ptr);
        size_t size = (size_t)row0[count] * sizeof(together[0]);
        if (oc_target_run(target, op, io, result) < 0)
            broken = "the device failed";
        else if (turn < 0)
            memcpy(together, out, size);
        else if (memcmp(together[at[first] + skip], out, size) != 0)
            broken = "a row alone has different bits than in a batch";
    }
    return verdict(target, hzp_op_name(op), "a row's attention is its own", broken);
}

/* Five logits by hand: greedy with a tie; the same with edits; a given token; a mask. */
static int fact_by_hand(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    static const float logits[] = {1, 2, 2, -1, 0.5f};
    static const struct hzp_logit_edit edits[] = {
        {.token = 1, .seen = 1},                            /* 2 / 2 = 1: wins */
        {.token = 2, .bias = -INFINITY},                    /* banned */
        {.token = 0, .bias = 0.25f, .count_out = 2},        /* 1.25 - 0.5 - 2 * 0.125 = 0.5 */
        {.token = 3, .bias = 5, .seen = 1, .count_out = 8}, /* 4 / 2 - 0.5 - 1 = 0.5 */
    };
    static const int32_t tokens[] = {1, 1, 4, 3}, ranks[] = {1, 1, 4, 5};
    enum { ROWS = HZP_COUNT(tokens) };
    struct hzp_sample_args a = {0};
    const char *broken = NULL;
    double sum = 0;
    oc_io_reset(io, 3, false);
    struct hzp_sample_row *row = oc_bytes(io, "row", ROWS * sizeof(*row), OC_IN);
    uint32_t *mask = oc_bytes(io, "mask", sizeof(*mask), OC_IN);
    struct hzp_logit_edit *edit = oc_bytes(io, "edit", sizeof(edits), OC_IN);
    memcpy(edit, edits, sizeof(edits));
    a.logits = oc_mat(io, "logits", ROWS, 5, HZP_F32, OC_SCRATCH);
    a.row = row;
    a.edit = edit;
    a.mask = mask;
    *mask = 1u << 3 | 1u << 9; /* token 3; there is no token 9 */
    a.token = oc_array(io, "token", OC_I32, ROWS, OC_OUT);
    a.logprob = oc_array(io, "logprob", OC_F32, ROWS, OC_OUT);
    a.rank = oc_array(io, "rank", OC_I32, ROWS, OC_OUT);
    for (int r = 0; r < ROWS; r++) {
        row[r] = (struct hzp_sample_row){.top_p = 1,
                                         .repetition = 2,
                                         .presence = 0.5f,
                                         .frequency = 0.125f,
                                         .given = r == 2 ? 4 : -1,
                                         .mask = r == 3,
                                         .edits = r == 1 ? HZP_COUNT(edits) : 0};
        memcpy((float *)a.logits.ptr + 5 * r, logits, sizeof(logits));
    }
    for (int i = 0; i < 5; i++)
        sum += exp(logits[i]);
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_sample, io, result) < 0)
        broken = "the device failed";
    for (int r = 0; r < ROWS && !broken; r++) {
        double logprob = ((float *)result_at(io, result, a.logprob))[r];
        if (((int32_t *)result_at(io, result, a.token))[r] != tokens[r])
            broken = "not the token computed by hand";
        else if (((int32_t *)result_at(io, result, a.rank))[r] != ranks[r])
            broken = "not the rank computed by hand";
        else if (!(fabs(logprob - (logits[tokens[r]] - log(sum))) < 1e-5))
            broken = "not the log-probability computed by hand";
    }
    return verdict(target, "sample", "by hand: tie, edits, given, mask", broken);
}

/* One logit that is not finite: the row's log-probability is NaN, whatever token is drawn; those of
 * the other rows are not. */
static int fact_not_finite(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { COLS = 1101, KINDS = 4, AT = 3, ROWS = KINDS * AT };
    static const float odd[KINDS] = {0, NAN, -INFINITY, INFINITY};
    static const int32_t at[AT] = {0, 517, COLS - 1};
    struct hzp_sample_args a = {0};
    const char *broken = NULL;
    oc_io_reset(io, 3, false);
    struct hzp_sample_row *row = oc_bytes(io, "row", ROWS * sizeof(*row), OC_IN);
    struct hzp_logit_edit *edit = oc_bytes(io, "edit", sizeof(*edit), OC_IN);
    *edit = (struct hzp_logit_edit){.token = 3};
    a.logits = oc_mat(io, "logits", ROWS, COLS, HZP_F32, OC_SCRATCH);
    a.row = row;
    a.edit = edit;
    a.token = oc_array(io, "token", OC_I32, ROWS, OC_OUT);
    a.logprob = oc_array(io, "logprob", OC_F32, ROWS, OC_OUT);
    a.rank = oc_array(io, "rank", OC_I32, ROWS, OC_OUT);
    oc_fill(io, &a.logits, 1, 10);
    for (int r = 0; r < ROWS; r++) {
        row[r] = (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = r % 2 ? 7 : -1};
        row[r].temperature = r % AT ? 1 : 0;
        if (odd[r / AT] != 0)
            oc_put(&a.logits, r, at[r % AT], odd[r / AT]);
    }
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_sample, io, result) < 0)
        broken = "the device failed";
    for (int r = 0; r < ROWS && !broken; r++)
        if (isnan(((float *)result_at(io, result, a.logprob))[r]) != (r >= AT))
            broken = "NaN where all logits are finite, or none where one is not";
    return verdict(target, "sample", "logits that are not finite", broken);
}

/* With gradient, moments and decay zero an update changes nothing: the master value survives the
 * split into bf16 and residual bit for bit. */
static int fact_master(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { N = 4096 };
    struct hzp_adamw_args a = {
        .grad_scale = 1, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1};
    oc_io_reset(io, 6, false);
    double *sumsq = oc_array(io, "sumsq", OC_F64, 1, OC_IN);
    a.from = oc_mat(io, "from", 1, N, HZP_BF16, OC_IN);
    a.to = oc_mat(io, "to", 1, N, HZP_BF16, OC_OUT);
    a.residual = oc_mat(io, "residual", 1, N, HZP_I16, OC_INOUT);
    a.grad = oc_mat(io, "grad", 1, N, HZP_F32, OC_IN);
    a.m = oc_mat(io, "m", 1, N, HZP_F32, OC_INOUT);
    a.v = oc_mat(io, "v", 1, N, HZP_F32, OC_INOUT);
    a.sumsq = sumsq;
    *sumsq = 0;
    for (int i = 0; i < N; i++) {
        float p = (float)oc_normal(io);
        hzp_master_split(p, (uint16_t *)a.from.ptr + i, (int16_t *)a.residual.ptr + i);
        oc_put(&a.grad, 0, i, 0);
        oc_put(&a.m, 0, i, 0);
        oc_put(&a.v, 0, i, 0);
    }
    oc_args(io, &a, sizeof(a));
    const char *broken = NULL;
    if (oc_target_run(target, HZP_OP_adamw, io, result) < 0)
        broken = "the device failed";
    else if (memcmp(result_at(io, result, a.to.ptr), a.from.ptr, N * 2) != 0 ||
             memcmp(result_at(io, result, a.residual.ptr), a.residual.ptr, N * 2) != 0)
        broken = "an update by zero moved the master";
    return verdict(target, "adamw", "master = bf16 + residual, exactly", broken);
}

/* Ten updates of bf16 + residual give exactly the bits of ten updates of the fp32 master. */
static int fact_same_master(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { N = 1021 };
    const char *broken = NULL;
    float master[N], grad[N], m[2][N], v[2][N];
    uint16_t hi[N];
    int16_t low[N];
    uint64_t rng = 8;
    memset(m, 0, sizeof(m));
    memset(v, 0, sizeof(v));
    for (int i = 0; i < N; i++) {
        master[i] = (float)((double)(oc_random(&rng) >> 40) * 0x1p-24 - 0.5);
        hzp_master_split(master[i], &hi[i], &low[i]);
    }
    for (int t = 1; t <= 10 && !broken; t++) {
        for (int i = 0; i < N; i++)
            grad[i] = (float)((double)(oc_random(&rng) >> 40) * 0x1p-24 - 0.5);
        for (int half = 0; half < 2 && !broken; half++) {
            struct hzp_adamw_args a = {.grad_scale = 0.5f,
                                       .clip = 1,
                                       .lr = 1e-3f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .decay = 0.1f,
                                       .t = t};
            oc_io_reset(io, 7, false);
            double *sumsq = oc_array(io, "sumsq", OC_F64, 1, OC_IN);
            a.from = a.to = oc_mat(io, "p", 1, N, half ? HZP_BF16 : HZP_F32, OC_INOUT);
            if (half)
                a.residual = oc_mat(io, "residual", 1, N, HZP_I16, OC_INOUT);
            a.grad = oc_mat(io, "grad", 1, N, HZP_F32, OC_IN);
            a.m = oc_mat(io, "m", 1, N, HZP_F32, OC_INOUT);
            a.v = oc_mat(io, "v", 1, N, HZP_F32, OC_INOUT);
            a.sumsq = sumsq;
            *sumsq = 20;
            memcpy(a.from.ptr, half ? (void *)hi : (void *)master,
                   half ? sizeof(hi) : sizeof(master));
            if (half)
                memcpy(a.residual.ptr, low, sizeof(low));
            memcpy(a.grad.ptr, grad, sizeof(grad));
            memcpy(a.m.ptr, m[half], sizeof(m[0]));
            memcpy(a.v.ptr, v[half], sizeof(v[0]));
            oc_args(io, &a, sizeof(a));
            if (oc_target_run(target, HZP_OP_adamw, io, result) < 0) {
                broken = "the device failed";
                break;
            }
            memcpy(half ? (void *)hi : (void *)master, result_at(io, result, a.to.ptr),
                   half ? sizeof(hi) : sizeof(master));
            if (half)
                memcpy(low, result_at(io, result, a.residual.ptr), sizeof(low));
            memcpy(m[half], result_at(io, result, a.m.ptr), sizeof(m[0]));
            memcpy(v[half], result_at(io, result, a.v.ptr), sizeof(v[0]));
        }
        for (int i = 0; i < N && !broken; i++)
            if (hzp_f32_bits(hzp_master_join(hi[i], low[i])) != hzp_f32_bits(master[i]))
                broken = "bf16 + residual and fp32 differ";
    }
    return verdict(target, "adamw", "ten updates, bf16 + residual as fp32", broken);
}

/* Three words; the sum was worked out from the formula with Python's integers. */
static int fact_audit(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    static const uint64_t words[] = {0, 1, 0x7f80000012345678u};
    struct hzp_audit_args a = {0};
    oc_io_reset(io, 1, false);
    a.x = oc_mat(io, "x", 1, 6, HZP_F32, OC_IN);
    a.checksum = oc_array(io, "checksum", OC_U64, 1, OC_INOUT);
    a.nonfinite = oc_array(io, "nonfinite", OC_U64, 1, OC_INOUT);
    memcpy(a.x.ptr, words, sizeof(words));
    *a.checksum = 0;
    *a.nonfinite = 0;
    oc_args(io, &a, sizeof(a));
    const char *broken = NULL;
    if (oc_target_run(target, HZP_OP_audit, io, result) < 0)
        broken = "the device failed";
    else if (*(uint64_t *)result_at(io, result, a.checksum) != 0x6a6858fc3981bc5cu)
        broken = "not the known checksum";
    else if (*(int64_t *)result_at(io, result, a.nonfinite) != 1)
        broken = "not the known number of infinities";
    return verdict(target, "audit", "known value", broken);
}

/* Every code but NaN, times 1 and with scales that are powers of two: the result is the code's
 * value to the bit, for every kernel that the number of rows selects. */
static int fact_codes(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { N = 254, K = 48 };
    static const int32_t rows[] = {1, 3, 9, 40, 129};
    const char *broken = NULL;
    for (int t = 0; t < HZP_COUNT(rows) && !broken; t++) {
        int32_t m = rows[t];
        oc_io_reset(io, 11, false);
        struct hzp_mat a = oc_mat(io, "a", m, K, HZP_E4M3, OC_IN);
        struct hzp_mat b = oc_mat(io, "b", N, K, HZP_E4M3, OC_IN);
        struct hzp_mat c = oc_mat(io, "c", m, N, HZP_F32, OC_OUT);
        float *scale_a = oc_array(io, "scale_a", OC_F32, m, OC_IN);
        float *scale_b = oc_array(io, "scale_b", OC_F32, N, OC_IN);
        memset(a.ptr, 0, (size_t)m * K);
        for (int32_t i = 0; i < m; i++) {
            ((uint8_t *)a.ptr)[i * K + i % K] = 0x38; /* 1 */
            scale_a[i] = i % 2 ? 0.5f : 2;
        }
        for (int32_t j = 0; j < N; j++) {
            memset((uint8_t *)b.ptr + j * K, j < 127 ? j : j + 1, K);
            scale_b[j] = 0x1p-7f;
        }
        struct hzp_matmul_args args = {
            .a = a, .b = b, .c = c, .scale_a = scale_a, .scale_b = scale_b, .trans_b = 1};
        oc_args(io, &args, sizeof(args));
        if (oc_target_run(target, HZP_OP_matmul, io, result) < 0)
            broken = "the device failed";
        for (int32_t i = 0; i < m && !broken; i++)
            for (int32_t j = 0; j < N && !broken; j++) {
                float want = hzp_e4m3_to_f32((uint8_t)(j < 127 ? j : j + 1)) * scale_a[i] * 0x1p-7f;
                if (((float *)result_at(io, result, c.ptr))[i * N + j] != want)
                    broken = "a code times 1 is not its value";
            }
    }
    return verdict(target, "matmul", "every e4m3 code times 1", broken);
}

/* Every value half way between two codes, the codes themselves, and the floats next to these. */
static int fact_rounding(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { N = 127 * 4 * 2 };
    const char *broken = NULL;
    uint8_t want[N];
    oc_io_reset(io, 12, false);
    struct hzp_quantize_args a = {oc_mat(io, "x", 1, N, HZP_F32, OC_IN),
                                  oc_mat(io, "y", 1, N, HZP_E4M3, OC_OUT),
                                  oc_array(io, "scale", OC_F32, 1, OC_OUT)};
    for (int i = 0; i < N; i++) {
        int code = i / 8, up = HZP_MIN(code + 1, 0x7e);
        float x = hzp_e4m3_to_f32((uint8_t)code), y = hzp_e4m3_to_f32((uint8_t)up);
        float middle = (x + y) / 2, sign = i % 2 ? -1.0f : 1.0f;
        const float at[] = {x, nextafterf(middle, 0), middle, nextafterf(middle, 448)};
        const int to[] = {code, code, code % 2 ? up : code, up};
        ((float *)a.x.ptr)[i] = sign * at[i / 2 % 4];
        want[i] = (uint8_t)(to[i / 2 % 4] | (i % 2 ? 0x80 : 0));
        if (code == 0x7e)
            want[i] = (uint8_t)(code | (i % 2 ? 0x80 : 0));
    }
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_quantize, io, result) < 0)
        broken = "the device failed";
    else if (*(float *)result_at(io, result, a.scale) != 1)
        broken = "448 is not scaled by 1";
    else if (memcmp(result_at(io, result, a.y.ptr), want, N) != 0)
        broken = "not to nearest, ties to even";
    return verdict(target, "quantize", "ties and neighbours of every code", broken);
}

/* Codes of norms and of SwiGLU are those that the device's own two ops make. */
static int fact_fused(struct oc_target *target, struct oc_io *io, uint8_t *result, bool normed)
{
    enum { ROWS = 5, COLS = 264 };
    const char *what = normed ? "those of rmsnorm and quantize" : "those of swiglu and quantize";
    uint8_t want[ROWS * COLS], half[ROWS * COLS * 2];
    float scale[ROWS], x[ROWS * COLS * 2];
    for (int i = 0; i < ROWS * COLS * 2; i++) /* BF16 numbers, so that both types hold them */
        x[i] = (float)((i * 37 + i / 7) % 255 - 127) / 32 * (float)(1 + i / COLS);
    oc_io_reset(io, 21, false);
    struct hzp_mat in =
        oc_mat(io, "x", ROWS, normed ? COLS : 2 * COLS, normed ? HZP_F32 : HZP_BF16, OC_IN);
    struct hzp_mat norm = oc_mat(io, "w", 1, COLS, HZP_BF16, OC_IN);
    struct hzp_mat h = oc_mat(io, "y", ROWS, COLS, HZP_BF16, OC_OUT);
    for (int i = 0; i < in.rows * in.cols; i++)
        oc_put(&in, i / in.cols, i % in.cols, x[i]);
    for (int i = 0; i < COLS; i++)
        oc_put(&norm, 0, i, 1 + (float)(i % 16) / 16);
    struct hzp_rmsnorm_args first = {.x = in, .w = norm, .y = h, .eps = 1e-5f};
    struct hzp_swiglu_args gate = {.x = in, .y = h};
    oc_args(io, normed ? (void *)&first : (void *)&gate, normed ? sizeof(first) : sizeof(gate));
    if (oc_target_run(target, normed ? HZP_OP_rmsnorm : HZP_OP_swiglu, io, result) < 0)
        return verdict(target, "codes", what, "the device failed");
    memcpy(half, result_at(io, result, h.ptr), sizeof(half));

    oc_io_reset(io, 22, false);
    struct hzp_quantize_args second = {oc_mat(io, "x", ROWS, COLS, HZP_BF16, OC_IN),
                                       oc_mat(io, "y", ROWS, COLS, HZP_E4M3, OC_OUT),
                                       oc_array(io, "scale", OC_F32, ROWS, OC_OUT)};
    memcpy(second.x.ptr, half, sizeof(half));
    oc_args(io, &second, sizeof(second));
    if (oc_target_run(target, HZP_OP_quantize, io, result) < 0)
        return verdict(target, "codes", what, "the device failed");
    memcpy(want, result_at(io, result, second.y.ptr), sizeof(want));
    memcpy(scale, result_at(io, result, second.scale), sizeof(scale));

    oc_io_reset(io, 23, false);
    struct hzp_codes_args both = {.eps = 1e-5f};
    both.x = oc_mat(io, "x", ROWS, in.cols, in.type, OC_IN);
    if (normed)
        both.norm = oc_mat(io, "norm", 1, COLS, HZP_BF16, OC_IN);
    both.y = oc_mat(io, "y", ROWS, COLS, HZP_E4M3, OC_OUT);
    both.scale = oc_array(io, "scale", OC_F32, ROWS, OC_OUT);
    for (int i = 0; i < in.rows * in.cols; i++)
        oc_put(&both.x, i / in.cols, i % in.cols, x[i]);
    for (int i = 0; normed && i < COLS; i++)
        oc_put(&both.norm, 0, i, 1 + (float)(i % 16) / 16);
    oc_args(io, &both, sizeof(both));
    const char *broken = NULL;
    if (oc_target_run(target, HZP_OP_codes, io, result) < 0)
        broken = "the device failed";
    else if (memcmp(result_at(io, result, both.scale), scale, sizeof(scale)) != 0)
        broken = "a scale differs";
    else if (memcmp(result_at(io, result, both.y.ptr), want, sizeof(want)) != 0)
        broken = "a code differs";
    return verdict(target, "codes", what, broken);
}

/* The pages hold exactly the bits of y, each row in its slot, and nothing else has changed
   there. */
static int fact_appended(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { ROWS = 9, KV_HEADS = 2, DIM = 64, PAGE_ROWS = 4, PAGES = 3, HEADS = 4 };
    enum { WIDTH = (HEADS + 2 * KV_HEADS) * DIM, PART = PAGES * PAGE_ROWS * KV_HEADS * DIM };
    static const int32_t to[ROWS] = {4, 3, 11, -1, 0, 8, 7, -1, 5};
    const char *broken = NULL;
    oc_io_reset(io, 13, false);
    struct hzp_rope_args a = {.heads = {HEADS, KV_HEADS, DIM}, .eps = 1e-6f};
    a.x = a.y = oc_mat(io, "x", ROWS, WIDTH, HZP_BF16, OC_INOUT);
    a.table = oc_mat(io, "table", 50, DIM, HZP_F32, OC_IN);
    a.k_norm = oc_mat(io, "k_norm", 1, DIM, HZP_BF16, OC_IN);
    int32_t *pos = oc_array(io, "pos", OC_I32, ROWS, OC_IN);
    int32_t *slot = oc_array(io, "slot", OC_I32, ROWS, OC_IN);
    uint16_t *part[2] = {oc_array(io, "k", OC_BF16, PART, OC_INOUT),
                         oc_array(io, "v", OC_BF16, PART, OC_INOUT)};
    a.kv = (struct hzp_kv){part[0], part[1], PAGES, PAGE_ROWS, HZP_BF16, NULL, NULL};
    oc_fill(io, &a.x, 1, 3);
    oc_fill(io, &a.table, 1, 1);
    oc_fill(io, &a.k_norm, 1, 1);
    oc_fill_index(io, pos, ROWS, 50);
    memcpy(slot, to, sizeof(to));
    a.pos = pos;
    a.slot = slot;
    for (int i = 0; i < PART; i++)
        part[0][i] = part[1][i] = 0x4242;
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_rope, io, result) < 0)
        return verdict(target, "rope", "pages hold y's bits", "the device failed");
    const uint16_t *y = result_at(io, result, a.y.ptr);
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < PART; i++) {
            const uint16_t *got = result_at(io, result, part[which]);
            int page = i / (KV_HEADS * PAGE_ROWS * DIM), head = i / (PAGE_ROWS * DIM) % KV_HEADS;
            int here = page * PAGE_ROWS + i / DIM % PAGE_ROWS, want = 0x4242;
            for (int r = 0; r < ROWS; r++)
                if (to[r] == here)
                    want = y[r * WIDTH + (HEADS + which * KV_HEADS + head) * DIM + i % DIM];
            if (got[i] != want)
                broken = which ? "a wrong value in v" : "a wrong value in k";
        }
    return verdict(target, "rope", "pages hold y's bits", broken);
}

/* E4M3 pages hold exactly y as `quantize` makes it of each head, each row in its slot, and nothing
 * else has changed there; a row with an infinity gets a scale of NaN. */
static int fact_appended_narrow(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { ROWS = 9, KV_HEADS = 2, DIM = 64, PAGE_ROWS = 4, PAGES = 3, HEADS = 4 };
    enum { WIDTH = (HEADS + 2 * KV_HEADS) * DIM, SLOTS = PAGES * PAGE_ROWS * KV_HEADS };
    static const int32_t to[ROWS] = {4, 3, 11, -1, 0, 8, 7, -1, 5};
    const char *broken = NULL;
    oc_io_reset(io, 15, false);
    struct hzp_rope_args a = {.heads = {HEADS, KV_HEADS, DIM}, .eps = 1e-6f};
    a.x = a.y = oc_mat(io, "x", ROWS, WIDTH, HZP_BF16, OC_INOUT);
    a.table = oc_mat(io, "table", 50, DIM, HZP_F32, OC_IN);
    int32_t *pos = oc_array(io, "pos", OC_I32, ROWS, OC_IN);
    int32_t *slot = oc_array(io, "slot", OC_I32, ROWS, OC_IN);
    uint8_t *code[2] = {oc_array(io, "k", OC_E4M3, SLOTS * DIM, OC_INOUT),
                        oc_array(io, "v", OC_E4M3, SLOTS * DIM, OC_INOUT)};
    float *scale[2] = {oc_array(io, "k_scale", OC_F32, SLOTS, OC_INOUT),
                       oc_array(io, "v_scale", OC_F32, SLOTS, OC_INOUT)};
    a.kv = (struct hzp_kv){code[0], code[1], PAGES, PAGE_ROWS, HZP_E4M3, scale[0], scale[1]};
    oc_fill(io, &a.x, 1, 300);
    oc_put(&a.x, 4, WIDTH - 3, INFINITY);
    oc_fill(io, &a.table, 1, 1);
    oc_fill_index(io, pos, ROWS, 50);
    memcpy(slot, to, sizeof(to));
    a.pos = pos;
    a.slot = slot;
    for (int i = 0; i < 2; i++) {
        memset(code[i], 0x42, SLOTS * DIM);
        memset(scale[i], 0x42, SLOTS * sizeof(float));
    }
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_rope, io, result) < 0)
        return verdict(target, "rope", "e4m3 pages hold y, quantized", "the device failed");
    const uint16_t *y = result_at(io, result, a.y.ptr);
    for (int i = 0; i < 2 * SLOTS; i++) {
        int at = i % SLOTS, value = i / SLOTS, head = at / PAGE_ROWS % KV_HEADS;
        int here = at / (PAGE_ROWS * KV_HEADS) * PAGE_ROWS + at % PAGE_ROWS;
        uint8_t want[DIM];
        float by = 48.564704895019531f; /* 0x42424242 */
        memset(want, 0x42, DIM);
        for (int r = 0; r < ROWS; r++) {
            const uint16_t *row = y + r * WIDTH + (HEADS + value * KV_HEADS + head) * DIM;
            uint32_t largest = 0;
            if (to[r] != here)
                continue;
            for (int d = 0; d < DIM; d++)
                largest = HZP_MAX(largest, (uint32_t)(row[d] & 0x7fff) << 16);
            by = hzp_e4m3_scale(largest);
            for (int d = 0; d < DIM; d++)
                want[d] = isnan(by) ? 0 : hzp_e4m3_from_f32(hzp_bf16_to_f32(row[d]) / by);
        }
        float got = ((const float *)result_at(io, result, scale[value]))[at];
        if (isnan(by) ? !isnan(got) : got != by)
            broken = value ? "a wrong scale of v" : "a wrong scale of k";
        else if (memcmp((uint8_t *)result_at(io, result, code[value]) + at * DIM, want, DIM))
            broken = value ? "a wrong code in v" : "a wrong code in k";
    }
    return verdict(target, "rope", "e4m3 pages hold y, quantized", broken);
}

/* Mean, deviation, the fourth moment (of a sum of four uniform bytes: 2.7), no correlation of
 * neighbours; the first elements as computed from the counter. */
static int fact_noise(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    enum { N = 1 << 16 };
    const double sigma = sqrt(1.0 / N); /* of the mean and of the products below, in deviations */
    const char *broken = NULL;
    oc_io_reset(io, 14, false);
    struct hzp_noise_args a = {oc_mat(io, "y", 1, N, HZP_F32, OC_OUT), 5, 0, 2};
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_noise, io, result) < 0)
        return verdict(target, "noise", "moments", "the device failed");
    const float *y = result_at(io, result, a.y.ptr);
    double one = 0, two = 0, four = 0, beside = 0, apart = 0;
    for (int i = 0; i < N; i++) {
        double x = y[i] / 2;
        one += x / N, two += x * x / N, four += x * x * x * x / N;
        beside += x * y[(i + 1) % N] / 2 / N;
        apart += x * y[(i + 4) % N] / 2 / N;
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t c[4] = {3, 0, 0, 1};
        hzp_philox_block(5, c);
        int sum = (int)(c[i] % 256 + c[i] / 256 % 256 + c[i] / 65536 % 256 + c[i] / 16777216) - 510;
        if (fabs(y[12 + i] - sum * (2 / 147.8)) > 1e-6)
            broken = "an element is not the counter's";
    }
    if (fabs(one) > 4 * sigma)
        broken = "the mean is not 0";
    else if (fabs(two - 1) > 4 * sqrt(1.7) * sigma)
        broken = "the deviation is not the requested one";
    else if (fabs(four - 2.7) > 0.15)
        broken = "not nearly normal";
    else if (fabs(beside) > 4 * sigma || fabs(apart) > 4 * sigma)
        broken = "neighbours depend on each other";
    return verdict(target, "noise", "moments", broken);
}

int oc_facts(struct oc_target *target, const char *pattern, bool slow)
{
    struct oc_io *io = oc_io_create();
    uint8_t *result = hzp_xmalloc((size_t)16 << 20);
    int failures = 0;
    if (oc_wanted(pattern, HZP_OP_sample)) {
        if (!slow)
            failures += fact_draws(target, io, result);
        failures += fact_by_hand(target, io, result);
        failures += fact_not_finite(target, io, result);
        failures += fact_alone(target, io, result);
    }
    if (oc_wanted(pattern, HZP_OP_xent) || oc_wanted(pattern, HZP_OP_seq_loss))
        failures += oc_facts_loss(target, io, result);
    if (oc_wanted(pattern, HZP_OP_matmul))
        failures += fact_codes(target, io, result);
    if (oc_wanted(pattern, HZP_OP_noise))
        failures += fact_noise(target, io, result);
    if (oc_wanted(pattern, HZP_OP_rope))
        failures += fact_appended(target, io, result) + fact_appended_narrow(target, io, result);
    if (oc_wanted(pattern, HZP_OP_quantize))
        failures += fact_rounding(target, io, result);
    if (oc_wanted(pattern, HZP_OP_codes) && hzp_device_has_codes(target->dev))
        failures += fact_fused(target, io, result, true) + fact_fused(target, io, result, false);
    if (oc_wanted(pattern, HZP_OP_adamw)) {
        failures += fact_master(target, io, result);
        failures += fact_same_master(target, io, result);
        if (!slow)
            failures += oc_facts_update(target, io, result);
    }
    if (oc_wanted(pattern, HZP_OP_audit))
        failures += fact_audit(target, io, result);
    /* elsewhere the split of a context may depend on the number of contexts */
    for (int op = HZP_OP_attn_decode; op <= HZP_OP_attn_prefill; op++)
        if (oc_wanted(pattern, op) && hzp_device_host_memory(target->dev))
            failures += fact_attention(target, io, result, op, HZP_BF16) +
                        fact_attention(target, io, result, op, HZP_E4M3);
    free(result);
    oc_io_destroy(io);
    return failures;
}
