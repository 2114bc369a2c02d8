/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/update.h"

#include "base/thread.h"
#include "device/q8.h"
#include "nanobatch/model/train_space_state.h"
#include "nanobatch/time/rates.h"
#include "weights/fp8.h"

/* A piece is at least so long, and at most what a matrix of one row can be. */
static const size_t piece_min = (size_t)1 << 16,
                    piece_max = (size_t)INT32_MAX / HZP_Q8_BLOCK * HZP_Q8_BLOCK;

/* Elements of one item of the op, whose arguments are those of an item of n > 0 elements. */
size_t hzp_update_piece(const struct hzp_train_space *s, enum hzp_op op, const void *args, size_t n)
{
    size_t piece = hzp_quantum_elements(s->config.quantum_flops, hzp_op_cost(op, args), n);
    return HZP_ROUND_UP(HZP_MIN(HZP_MAX(piece, piece_min), piece_max), (size_t)HZP_Q8_BLOCK);
}

/* One unit of everything that AdamW reads and writes; base NULL: there is no such part. */
struct unit {
    struct hzp_unit_view from, to, grad, part[HZP_STATE_WEIGHTS];
    bool codes; /* 8-bit moments, and their scales */
};

/* The unit of the state that has an element for each of the weights': the embedding's moments are
 * where others' scales are (weights/layout.h).  Its resident part is this rank's shard. */
static struct hzp_unit_view state_of(const struct hzp_train_space *s, int32_t u)
{
    bool whole = s->config.moment_type == HZP_Q8 && u == 0;
    return hzp_unit_view(&s->state_part[whole ? HZP_STATE_M_SCALE : HZP_STATE_M], u);
}

static struct unit unit_of(const struct hzp_model *model, const struct hzp_version *v,
                           const struct hzp_version *draft, const struct hzp_train_space *s,
                           int32_t u)
{
    struct unit unit = {.from = hzp_version_unit(model->weights, v, u),
                        .to = hzp_version_unit(model->weights, draft, u),
                        .grad = hzp_unit_view(s->total, u),
                        .codes = s->config.moment_type == HZP_Q8 && u > 0};
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (s->state_part[p].layout)
            unit.part[p] = hzp_unit_view(&s->state_part[p], u);
    if (s->config.moment_type == HZP_Q8 && u == 0) {
        unit.part[HZP_STATE_M] = unit.part[HZP_STATE_M_SCALE];
        unit.part[HZP_STATE_V] = unit.part[HZP_STATE_V_SCALE];
    }
    return unit;
}

static struct hzp_adamw_args adamw_of(const struct unit *unit, const struct hzp_update_hyper *hyper,
                                      struct hzp_train_space *s, size_t at, size_t n, float decay)
{
    const struct hzp_unit_view *residual = &unit->part[HZP_STATE_RESIDUAL];
    struct hzp_adamw_args args = {
        .from = hzp_unit_piece(&unit->from, at, n),
        .to = hzp_unit_piece(&unit->to, at, n),
        .residual = residual->base ? hzp_unit_piece(residual, at, n) : (struct hzp_mat){0},
        .grad = hzp_unit_piece(&unit->grad, at, n),
        .m = hzp_unit_piece(&unit->part[HZP_STATE_M], at, n),
        .v = hzp_unit_piece(&unit->part[HZP_STATE_V], at, n),
        .sumsq = &s->result->sumsq,
        .grad_scale = hyper->grad_scale,
        .clip = hyper->clip,
        .lr = hyper->lr,
        .beta1 = hyper->beta1,
        .beta2 = hyper->beta2,
        .eps = hyper->eps,
        .decay = decay,
        .t = hyper->t,
        .part_m = hyper->part_m,
        .part_g = hyper->part_g,
    };
    if (unit->codes) {
        size_t blocks = HZP_DIV_UP(n, (size_t)HZP_Q8_BLOCK), block = at / HZP_Q8_BLOCK;
        size_t decayed = unit->from.decayed;
        args.m_scale = hzp_unit_piece(&unit->part[HZP_STATE_M_SCALE], block, blocks).ptr;
        args.v_scale = hzp_unit_piece(&unit->part[HZP_STATE_V_SCALE], block, blocks).ptr;
        args.decayed = decayed > at ? (int32_t)HZP_MIN(decayed - at, n) : 0;
        args.decay = decayed > at ? decay : 0;
    }
    return args;
}

/* Elements [begin, end) of the unit. */
static void add_adamw(struct hzp_plan *chain, const struct unit *unit,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *s, size_t begin,
                      size_t end, float decay)
{
    if (begin == end)
        return;
    size_t first = HZP_MIN(piece_min, end - begin);
    struct hzp_adamw_args sized = adamw_of(unit, hyper, s, begin, first, decay);
    size_t piece = hzp_update_piece(s, HZP_OP_adamw, &sized, first);
    for (size_t at = begin; at < end; at += piece) {
        struct hzp_adamw_args args = adamw_of(unit, hyper, s, at, HZP_MIN(piece, end - at), decay);
        hzp_plan_next(chain, HZP_OP_adamw, &args);
    }
}

static void add_squares_of(struct hzp_plan *chain, const struct hzp_train_space *s,
                           const struct hzp_unit_view *grad, size_t at, size_t end, double *sum)
{
    if (at == end)
        return;
    struct hzp_sumsq_args sized = {hzp_unit_piece(grad, at, HZP_MIN(piece_min, end - at)), sum};
    size_t piece = s->config.shards.ordered
                       ? HZP_BLOCK_ELEMENTS
                       : hzp_update_piece(s, HZP_OP_sumsq, &sized, HZP_MIN(piece_min, end - at));
    for (; at < end; at += piece)
        HZP_PLAN_NEXT(chain, sumsq, .x = hzp_unit_piece(grad, at, HZP_MIN(piece, end - at)),
                      .sum = sum);
}

/* --- Muon ------------------------------------------------------------------------------------- */

/* The coefficients of Jordan's quintic.  x is kept times c^(1/4): x x^T is then sqrt(c) A, and
 * b A + c A^2 is its square plus a part of it. */
static const double ns_a = 3.4445, ns_b = -4.7750, ns_c = 2.0315;

/* Elements [at, at + n) of the unit; after: its step, which is in s->muon[1]. */
static void add_muon(struct hzp_plan *chain, const struct unit *unit,
                     const struct hzp_update_hyper *hyper, struct hzp_train_space *s, size_t at,
                     size_t n, bool after, double step)
{
    const struct hzp_unit_view *residual = &unit->part[HZP_STATE_RESIDUAL];
    size_t piece = piece_min;
    for (size_t done = 0, some; done < n; done += some) {
        size_t from = at + done;
        some = HZP_MIN(piece, n - done);
        struct hzp_muon_args a = {.sumsq = &s->result->sumsq,
                                  .grad_scale = hyper->grad_scale,
                                  .clip = hyper->clip,
                                  .momentum = hyper->momentum};
        if (after) {
            a.x = hzp_mat_cols(s->muon[1], (int32_t)done, (int32_t)some);
            a.from = hzp_unit_piece(&unit->from, from, some);
            a.to = hzp_unit_piece(&unit->to, from, some);
            if (residual->base)
                a.residual = hzp_unit_piece(residual, from, some);
            a.keep = (float)(1 - (double)hyper->lr * hyper->decay);
            a.step = (float)step;
        } else {
            a.x = a.grad = hzp_unit_piece(&unit->grad, from, some);
            a.m = hzp_unit_piece(&unit->part[HZP_STATE_M], from, some);
        }
        hzp_plan_next(chain, HZP_OP_muon, &a);
        if (!done)
            piece = hzp_update_piece(s, HZP_OP_muon, &a, some);
    }
}

static void add_cast(struct hzp_plan *chain, const struct hzp_train_space *s, struct hzp_mat x,
                     struct hzp_mat y, double scale, const double *squares)
{
    struct hzp_cast_args a = {.x = x, .y = y, .squares = squares, .scale = (float)scale};
    int32_t piece = (int32_t)hzp_update_piece(s, HZP_OP_cast, &a, (size_t)x.cols);
    for (int32_t at = 0; at < x.cols; at += piece) {
        int32_t n = HZP_MIN(piece, x.cols - at);
        a.x = hzp_mat_cols(x, at, n);
        a.y = hzp_mat_cols(y, at, n);
        hzp_plan_next(chain, HZP_OP_cast, &a);
    }
}

static struct hzp_mat shaped(struct hzp_mat row, int32_t rows, int32_t cols)
{
    return (struct hzp_mat){row.ptr, rows, cols, cols, row.type};
}

/* x, of rows * cols elements, becomes orthogonal, times c^(1/4), in s->muon[1]. */
static void add_newton_schulz(struct hzp_plan *chain, const struct hzp_train_space *s,
                              struct hzp_mat grad, int32_t rows, int32_t cols)
{
    uint64_t quantum = s->config.quantum_flops;
    bool tall = rows > cols;
    int32_t side = HZP_MIN(rows, cols), n = grad.cols;
    struct hzp_mat gram = hzp_mat_cols(s->muon[2], 0, side * side);
    struct hzp_mat poly = hzp_mat_cols(s->muon[3], 0, side * side);
    struct hzp_mat a = shaped(gram, side, side), p = shaped(poly, side, side);
    add_cast(chain, s, grad, hzp_mat_cols(s->muon[0], 0, n), pow(ns_c, 0.25), &s->result->step);
    for (int i = 0; i < 5; i++) {
        struct hzp_mat from = hzp_mat_cols(s->muon[i % 2], 0, n), x = shaped(from, rows, cols);
        struct hzp_mat to = hzp_mat_cols(s->muon[1 - i % 2], 0, n), y = shaped(to, rows, cols);
        hzp_plan_add_matmul(
            chain, quantum,
            &(struct hzp_matmul_args){.a = x, .b = x, .c = a, .trans_a = tall, .trans_b = !tall});
        add_cast(chain, s, gram, poly, ns_b / sqrt(ns_c), NULL);
        hzp_plan_add_matmul(chain, quantum,
                            &(struct hzp_matmul_args){.a = a, .b = a, .c = p, .accumulate = 1});
        add_cast(chain, s, from, to, ns_a, NULL);
        hzp_plan_add_matmul(chain, quantum,
                            &(struct hzp_matmul_args){
                                .a = tall ? x : p, .b = tall ? p : x, .c = y, .accumulate = 1});
    }
}

/* The matrices of a layer's unit, which begins with them.  Returns where the last one ends. */
static size_t add_matrices(struct hzp_plan *chain, const struct hzp_layout *layout,
                           const struct unit *unit, const struct hzp_update_hyper *hyper,
                           struct hzp_train_space *s, int32_t u)
{
    const struct hzp_unit *in = &layout->unit[u];
    size_t at = 0;
    for (int32_t i = in->first; i < in->first + in->tensors; i++) {
        const struct hzp_tensor *t = &layout->tensor[i];
        int32_t rows[3], count = hzp_tensor_matrices(layout, t, rows);
        if (t->offset >= in->decayed)
            break;
        add_adamw(chain, unit, hyper, s, at, t->offset, 0); /* the zeros between them */
        at = t->offset;
        for (int k = 0; k < count; k++) {
            size_t n = (size_t)rows[k] * (size_t)t->cols;
            double rate = 0.2 * sqrt(HZP_MAX(rows[k], t->cols)) * hyper->lr;
            add_muon(chain, unit, hyper, s, at, n, false, 0);
            HZP_PLAN_NEXT(chain, fill, .y = {&s->result->step, 1, 2, 2, HZP_F32});
            add_squares_of(chain, s, &unit->grad, at, at + n, &s->result->step);
            add_newton_schulz(chain, s, hzp_unit_piece(&unit->grad, at, n), rows[k], t->cols);
            add_muon(chain, unit, hyper, s, at, n, true, rate / pow(ns_c, 0.25));
            at += n;
        }
    }
    return at;
}

/* The number of this rank's block that begins at element `at` of its part of unit u. */
static size_t block_index(const struct hzp_train_space *s, int32_t u, size_t at)
{
    size_t shards = (size_t)s->config.shards.groups.z1, index = at / HZP_BLOCK_ELEMENTS;
    for (int32_t i = 0; i < u; i++)
        index += s->layout->unit[i].room / shards / HZP_BLOCK_ELEMENTS;
    return index;
}

void hzp_update_norm(struct hzp_plan *chain, struct hzp_train_space *s, int32_t u)
{
    hzp_assert_engine_thread();
    struct hzp_unit_view grad = hzp_unit_view(s->total, u), state = state_of(s, u);
    bool ordered = s->config.shards.ordered;
    size_t first = HZP_MIN(piece_min, state.part.count), piece = HZP_BLOCK_ELEMENTS;
    if (!ordered && first) {
        struct hzp_sumsq_args sized = {hzp_unit_piece(&grad, state.part.first, first),
                                       &s->result->sumsq};
        piece = hzp_update_piece(s, HZP_OP_sumsq, &sized, first);
    }
    size_t block = ordered && s->square ? block_index(s, u, 0) : 0;
    for (size_t at = 0; at < state.part.count; at += piece) {
        size_t n = HZP_MIN(piece, state.part.count - at);
        HZP_PLAN_NEXT(chain, sumsq, .x = hzp_unit_piece(&grad, state.part.first + at, n),
                      .sum = s->square ? &s->square[block] : &s->result->sumsq);
        block += ordered && s->square;
    }
}

void hzp_update_add_squares(struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    const struct hzp_layout *layout = s->layout;
    size_t shards = (size_t)s->config.shards.groups.z1, before = 0;
    double sum = 0;
    if (!s->config.shards.ordered) {
        for (size_t i = 0; i < shards; i++)
            sum += s->squares[i];
        s->result->sumsq = sum;
        return;
    }
    for (int32_t u = 0; u < layout->units; u++) {
        size_t blocks = layout->unit[u].room / shards / HZP_BLOCK_ELEMENTS;
        for (size_t i = 0; i < shards; i++)
            for (size_t b = 0; b < blocks; b++)
                sum += s->squares[i * s->square_count + before + b];
        before += blocks;
    }
    s->result->sumsq = sum;
}

/* The draft's projections in e4m3, in pieces of whole rows. */
static void add_quantize(struct hzp_plan *chain, const struct hzp_model *model,
                         const struct hzp_version *draft, const struct hzp_train_space *s)
{
    const struct hzp_weights *w = model->weights;
    for (int32_t l = 0; l < model->config->layers; l++)
        for (int i = 0; i < HZP_FP8_ROLES; i++) {
            float *scale;
            struct hzp_mat x = hzp_version_mat(w, draft, hzp_fp8_role[i], l);
            struct hzp_mat y = hzp_version_fp8(w, draft, hzp_fp8_role[i], l, &scale);
            struct hzp_quantize_args all = {.x = x, .y = y, .scale = scale};
            size_t elements = (size_t)x.rows * (size_t)x.cols;
            size_t fit = hzp_update_piece(s, HZP_OP_quantize, &all, elements);
            size_t rows = HZP_MAX(fit / (size_t)x.cols, (size_t)1);
            int32_t piece = (int32_t)HZP_MIN(rows, (size_t)x.rows);
            for (int32_t r = 0; r < x.rows; r += piece) {
                int32_t n = HZP_MIN(piece, x.rows - r);
                HZP_PLAN_NEXT(chain, quantize, .x = hzp_mat_rows(x, r, n),
                              .y = hzp_mat_rows(y, r, n), .scale = scale + r);
            }
        }
}

void hzp_update_begin(struct hzp_plan *chain, struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    const int32_t result = (int32_t)(sizeof(*s->result) / sizeof(float));
    chain->tenant = HZP_TENANT_TRAIN;
    chain->layer = -1;
    HZP_PLAN_NEXT(chain, fill, .y = {s->result, 1, result, result, HZP_F32});
    if (s->square) {
        int32_t floats = (int32_t)(s->square_count * sizeof(double) / sizeof(float));
        HZP_PLAN_NEXT(chain, fill, .y = {s->square, 1, floats, floats, HZP_F32});
    }
}

void hzp_update_adamw(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, struct hzp_version *draft,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *s, int32_t u)
{
    hzp_assert_engine_thread();
    struct unit unit = unit_of(model, v, draft, s, u);
    struct hzp_extent shard = state_of(s, u).part;
    size_t begin = shard.first, end = begin + shard.count;
    if (hyper->momentum > 0 && model->layout->tensor[model->layout->unit[u].first].layer >= 0) {
        HZP_ASSERT(s->config.muon && !unit.codes && end == unit.from.elements);
        begin = add_matrices(chain, model->layout, &unit, hyper, s, u);
    }
    size_t middle = unit.codes ? end : HZP_MIN(HZP_MAX(unit.from.decayed, begin), end);
    add_adamw(chain, &unit, hyper, s, begin, middle, hyper->decay);
    add_adamw(chain, &unit, hyper, s, middle, end, 0);
}

void hzp_update_audit(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *draft, struct hzp_train_space *s, int32_t u)
{
    hzp_assert_engine_thread();
    struct hzp_unit_view to = hzp_version_unit(model->weights, draft, u);
    if (to.part.count)
        HZP_PLAN_NEXT(chain, audit, .x = hzp_unit_piece(&to, 0, to.elements),
                      .checksum = &s->result->checksum, .nonfinite = &s->result->nonfinite);
}

void hzp_update_end(struct hzp_plan *chain, const struct hzp_model *model,
                    const struct hzp_version *draft, const struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    if (hzp_weights_fp8(model->weights))
        add_quantize(chain, model, draft, s);
}

/* --- Of a slice ------------------------------------------------------------------------------- */

void hzp_update_head_norms(struct hzp_plan *chain, const struct hzp_model *model,
                           struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    chain->tenant = HZP_TENANT_TRAIN;
    for (int32_t l = 0; model->config->qk_norm && l < model->config->layers; l++) {
        const struct hzp_tensor *q = hzp_layout_find(model->layout, HZP_Q_NORM, l);
        const struct hzp_tensor *k = hzp_layout_find(model->layout, HZP_K_NORM, l);
        struct hzp_unit_view grad = hzp_unit_view(s->total, q->unit);
        HZP_ASSERT(k->offset > q->offset);
        chain->layer = (int16_t)l;
        hzp_tensor_reduce(
            chain, model, HZP_TENSOR_UPDATE,
            hzp_unit_piece(&grad, q->offset, k->offset + (size_t)k->cols - q->offset));
    }
    chain->layer = -1;
}

/* Squares of what all ranks have are counted by rank 0. */
static void slice_norm(struct hzp_plan *chain, const struct hzp_model *model,
                       struct hzp_train_space *s, int32_t u)
{
    const struct hzp_unit *unit = &model->layout->unit[u];
    struct hzp_unit_view grad = hzp_unit_view(s->total, u);
    bool counts = model->layout->slice.rank == 0;
    add_squares_of(chain, s, &grad, 0, unit->decayed, &s->result->sumsq);
    for (int32_t i = unit->first; i < unit->first + unit->tensors; i++) {
        const struct hzp_tensor *t = &model->layout->tensor[i];
        bool own = counts || t->role == HZP_QKV_BIAS || t->role == HZP_SINK;
        if (t->offset >= unit->decayed)
            add_squares_of(chain, s, &grad, t->offset, t->offset + (size_t)t->cols,
                           own ? &s->result->sumsq : &s->result->elsewhere);
    }
}

static void add_norms(struct hzp_plan *chain, const struct hzp_model *model,
                      struct hzp_train_space *s)
{
    int32_t units = model->layout->units;
    if (!model->tensor) {
        for (int32_t u = 0; u < units; u++)
            hzp_update_norm(chain, s, u);
        return;
    }
    for (int32_t u = 0; u < units && model->data; u++) {
        if (s->config.shards.ordered)
            hzp_data_gather(chain, model, s->total, u);
        else
            hzp_data_reduce(chain, model, s->total, u);
    }
    hzp_update_head_norms(chain, model, s);
    for (int32_t u = 0; u < units; u++)
        slice_norm(chain, model, s, u);
    hzp_tensor_reduce_wide(chain, model, HZP_WIRE_F64, &s->result->sumsq, 1);
}

void hzp_update_build(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, struct hzp_version *draft,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    int32_t units = model->layout->units;
    HZP_ASSERT(s->config.shards.groups.ranks == 1);
    hzp_update_begin(chain, s);
    add_norms(chain, model, s);
    for (int32_t u = 0; u < units; u++)
        hzp_update_adamw(chain, model, v, draft, hyper, s, u);
    for (int32_t u = 0; u < units; u++)
        hzp_update_audit(chain, model, draft, s, u);
    hzp_tensor_reduce_wide(chain, model, HZP_WIRE_U64, &s->result->checksum, 2);
    hzp_update_end(chain, model, draft, s);
}

/* The gather op copies rows as they are, whatever their bits mean as floats. */
static void add_copy(struct hzp_plan *chain, const struct hzp_train_space *s, float *from,
                     float *to)
{
    chain->tenant = HZP_TENANT_TRAIN;
    chain->layer = -1;
    for (size_t at = 0; at < s->copied_floats;) {
        size_t left = s->copied_floats - at;
        int32_t cols = (int32_t)HZP_MIN(left, (size_t)HZP_COPY_FLOATS);
        int32_t rows = (int32_t)HZP_MIN(left / (size_t)cols, (size_t)HZP_COPY_ROWS);
        HZP_PLAN_NEXT(chain, gather, .x = {from + at, rows, cols, cols, HZP_F32},
                      .y = {to + at, rows, cols, cols, HZP_F32}, .index = s->copied_row);
        at += (size_t)rows * (size_t)cols;
    }
}

void hzp_update_audit_again(struct hzp_plan *chain, const struct hzp_model *model,
                            const struct hzp_version *draft, struct hzp_train_space *s, bool fresh)
{
    hzp_assert_engine_thread();
    s->result->checksum = 0;
    s->result->nonfinite = 0;
    if (fresh)
        s->result->sumsq = 0;
    for (int32_t u = 0; u < model->layout->units; u++)
        hzp_update_audit(chain, model, draft, s, u);
    hzp_update_end(chain, model, draft, s);
}

void hzp_update_save(struct hzp_plan *chain, const struct hzp_train_space *s)
{
    HZP_ASSERT(s->config.backup);
    add_copy(chain, s, s->copied, s->backup);
}

void hzp_update_restore(struct hzp_plan *chain, const struct hzp_train_space *s)
{
    HZP_ASSERT(s->config.backup);
    add_copy(chain, s, s->backup, s->copied);
}

const struct hzp_update_result *hzp_update_result(const struct hzp_train_space *s)
{
    return s->result;
}
