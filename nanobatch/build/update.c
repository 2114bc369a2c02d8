/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/update.h"

#include "nanobatch/build/train_space.h"
#include "weights/fp8.h"

static struct hzp_mat flat(void *base, size_t offset, size_t elements, enum hzp_dtype type)
{
    HZP_ASSERT(elements <= INT32_MAX);
    return (struct hzp_mat){(char *)base + offset * hzp_dtype_size(type), 1, (int32_t)elements,
                            (int32_t)elements, type};
}

/* Elements of one memory-bound item: about as long as quantum_flops of matrix product, at a
 * machine balance of ten operations a byte and some thirty bytes an element. */
static size_t piece_elements(const struct hzp_train_space *s)
{
    size_t piece = (size_t)(s->config.quantum_flops / 300);
    return s->config.quantum_flops ? HZP_ROUND_UP(HZP_MAX(piece, (size_t)1 << 16), (size_t)64)
                                   : (size_t)INT32_MAX / 64 * 64;
}

static void add_adamw(struct hzp_plan *chain, const struct hzp_version *v,
                      struct hzp_version *draft, const struct hzp_update_hyper *hyper,
                      struct hzp_train_space *s, size_t offset, size_t elements, float decay)
{
    /* Of seven numbers of memory each: three times as long as what piece_elements is meant for. */
    size_t piece = piece_elements(s);
    if (s->config.quantum_flops)
        piece = HZP_ROUND_UP(HZP_MAX(piece / 3, (size_t)1 << 16), (size_t)64);
    enum hzp_dtype moment = s->config.moment_type;
    for (size_t at = offset; at < offset + elements; at += piece) {
        size_t n = HZP_MIN(piece, offset + elements - at);
        HZP_PLAN_NEXT(chain, adamw, .from = flat(v->base, at, n, s->act),
                      .to = flat(draft->base, at, n, s->act),
                      .residual =
                          s->residual ? flat(s->residual, at, n, HZP_I16) : (struct hzp_mat){0},
                      .grad = flat(s->grads, at, n, HZP_F32), .m = flat(s->m, at, n, moment),
                      .v = flat(s->v, at, n, moment), .sumsq = &s->result->sumsq,
                      .grad_scale = hyper->grad_scale, .clip = hyper->clip, .lr = hyper->lr,
                      .beta1 = hyper->beta1, .beta2 = hyper->beta2, .eps = hyper->eps,
                      .decay = decay, .t = hyper->t);
    }
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
    const struct hzp_layout *layout = model->layout;
    size_t piece = piece_elements(s);
    chain->tenant = HZP_TENANT_TRAIN;
    chain->layer = -1;
    HZP_PLAN_NEXT(chain, fill,
                  .y = flat(s->result, 0, sizeof(*s->result) / sizeof(float), HZP_F32));
    for (size_t at = 0; at < layout->elements; at += piece)
        HZP_PLAN_NEXT(chain, sumsq,
                      .x = flat(s->grads, at, HZP_MIN(piece, layout->elements - at), HZP_F32),
                      .sum = &s->result->sumsq);
    for (int32_t u = 0; u < layout->units; u++) {
        const struct hzp_unit *unit = &layout->unit[u];
        add_adamw(chain, v, draft, hyper, s, unit->offset, unit->decayed, hyper->decay);
        add_adamw(chain, v, draft, hyper, s, unit->offset + unit->decayed,
                  unit->elements - unit->decayed, 0);
    }
    for (int32_t u = 0; u < layout->units; u++)
        HZP_PLAN_NEXT(
            chain, audit,
            .x = flat(draft->base, layout->unit[u].offset, layout->unit[u].elements, s->act),
            .checksum = &s->result->checksum, .nonfinite = &s->result->nonfinite);
    if (hzp_weights_fp8(model->weights))
        add_quantize(chain, model, draft, s);
}

const struct hzp_update_result *hzp_update_result(const struct hzp_train_space *s)
{
    return s->result;
}
