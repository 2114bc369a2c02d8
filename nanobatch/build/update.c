/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/update.h"

#include "nanobatch/build/train_space.h"
#include "weights/fp8.h"

/* Elements of one memory-bound item: about as long as quantum_flops of matrix product, at a
 * machine balance of ten operations a byte and some thirty bytes an element. */
static size_t piece_elements(const struct hzp_train_space *s)
{
    size_t piece = (size_t)(s->config.quantum_flops / 300);
    return s->config.quantum_flops ? HZP_ROUND_UP(HZP_MAX(piece, (size_t)1 << 16), (size_t)64)
                                   : (size_t)INT32_MAX / 64 * 64;
}

/* One unit of everything that AdamW reads and writes. */
struct unit {
    struct hzp_unit_view from, to, grad, m, v, residual; /* residual.base NULL: none */
};

static struct unit unit_of(const struct hzp_model *model, const struct hzp_version *v,
                           const struct hzp_version *draft, const struct hzp_train_space *s,
                           int32_t u)
{
    const struct hzp_units *residual = hzp_train_space_residual(s);
    return (struct unit){
        .from = hzp_version_unit(model->weights, v, u),
        .to = hzp_version_unit(model->weights, draft, u),
        .grad = hzp_unit_view(&s->grads, u),
        .m = hzp_unit_view(&s->m, u),
        .v = hzp_unit_view(&s->v, u),
        .residual = residual ? hzp_unit_view(residual, u) : (struct hzp_unit_view){0},
    };
}

/* Elements [begin, end) of the unit. */
static void add_adamw(struct hzp_plan *chain, const struct unit *unit,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *s, size_t begin,
                      size_t end, float decay)
{
    /* An element takes seven accesses to memory: about three times what piece_elements assumes. */
    size_t piece = piece_elements(s);
    if (s->config.quantum_flops)
        piece = HZP_ROUND_UP(HZP_MAX(piece / 3, (size_t)1 << 16), (size_t)64);
    for (size_t at = begin; at < end; at += piece) {
        size_t n = HZP_MIN(piece, end - at);
        HZP_PLAN_NEXT(chain, adamw, .from = hzp_unit_piece(&unit->from, at, n),
                      .to = hzp_unit_piece(&unit->to, at, n),
                      .residual = unit->residual.base ? hzp_unit_piece(&unit->residual, at, n)
                                                      : (struct hzp_mat){0},
                      .grad = hzp_unit_piece(&unit->grad, at, n),
                      .m = hzp_unit_piece(&unit->m, at, n), .v = hzp_unit_piece(&unit->v, at, n),
                      .sumsq = &s->result->sumsq, .grad_scale = hyper->grad_scale,
                      .clip = hyper->clip, .lr = hyper->lr, .beta1 = hyper->beta1,
                      .beta2 = hyper->beta2, .eps = hyper->eps, .decay = decay, .t = hyper->t);
    }
}

static void add_sumsq(struct hzp_plan *chain, const struct hzp_unit_view *grad,
                      struct hzp_train_space *s)
{
    size_t piece = piece_elements(s);
    for (size_t at = 0; at < grad->elements; at += piece)
        HZP_PLAN_NEXT(chain, sumsq,
                      .x = hzp_unit_piece(grad, at, HZP_MIN(piece, grad->elements - at)),
                      .sum = &s->result->sumsq);
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
            size_t rows = HZP_MAX(piece_elements(s) / (size_t)x.cols, (size_t)1);
            int32_t piece = (int32_t)HZP_MIN(rows, (size_t)x.rows);
            for (int32_t r = 0; r < x.rows; r += piece) {
                int32_t n = HZP_MIN(piece, x.rows - r);
                HZP_PLAN_NEXT(chain, quantize, .x = hzp_mat_rows(x, r, n),
                              .y = hzp_mat_rows(y, r, n), .scale = scale + r);
            }
        }
}

void hzp_update_build(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, struct hzp_version *draft,
                      const struct hzp_update_hyper *hyper, struct hzp_train_space *s)
{
    const int32_t result = (int32_t)(sizeof(*s->result) / sizeof(float));
    int32_t units = model->layout->units;
    chain->tenant = HZP_TENANT_TRAIN;
    chain->layer = -1;
    HZP_PLAN_NEXT(chain, fill, .y = {s->result, 1, result, result, HZP_F32});
    for (int32_t u = 0; u < units; u++) {
        struct hzp_unit_view grad = hzp_unit_view(&s->grads, u);
        add_sumsq(chain, &grad, s);
    }
    for (int32_t u = 0; u < units; u++) {
        struct unit unit = unit_of(model, v, draft, s, u);
        add_adamw(chain, &unit, hyper, s, 0, unit.to.decayed, hyper->decay);
        add_adamw(chain, &unit, hyper, s, unit.to.decayed, unit.to.elements, 0);
    }
    for (int32_t u = 0; u < units; u++) {
        struct hzp_unit_view to = hzp_version_unit(model->weights, draft, u);
        HZP_PLAN_NEXT(chain, audit, .x = hzp_unit_piece(&to, 0, to.elements),
                      .checksum = &s->result->checksum, .nonfinite = &s->result->nonfinite);
    }
    if (hzp_weights_fp8(model->weights))
        add_quantize(chain, model, draft, s);
}

const struct hzp_update_result *hzp_update_result(const struct hzp_train_space *s)
{
    return s->result;
}
