/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/product.h"

struct hzp_mat hzp_layer_weight(const struct hzp_layer *layer, enum hzp_role role)
{
    return hzp_version_mat(layer->model->weights, layer->version, role, layer->index);
}

struct hzp_mat hzp_layer_grad(const struct hzp_layer *layer, enum hzp_role role)
{
    HZP_ASSERT(layer->grads);
    return hzp_units_mat(layer->grads, role, layer->index);
}

/* Fewer rows are not cut into pieces of 64; no piece of a sum has fewer terms. */
enum { FEWEST_ROWS = 128, FEWEST_TERMS = 2048 };

/* Each piece has all rows and columns, and a part of the sums. */
static void add_terms(struct hzp_plan *plan, int64_t pieces, const struct hzp_matmul_args *args)
{
    int32_t terms = args->a.cols;
    int32_t piece = (int32_t)HZP_ROUND_UP(HZP_DIV_UP((int64_t)terms, pieces), (int64_t)64);
    piece = HZP_MAX(piece, FEWEST_TERMS);
    for (int32_t at = 0; at < terms; at += piece) {
        int32_t n = HZP_MIN(piece, terms - at);
        struct hzp_matmul_args a = *args;
        a.a = hzp_mat_cols(args->a, at, n);
        a.b = hzp_mat_rows(args->b, at, n);
        if (at) {
            a.accumulate = 1;
            a.from = (struct hzp_mat){0};
        }
        hzp_plan_next(plan, HZP_OP_matmul, &a);
    }
}

void hzp_plan_add_matmul(struct hzp_plan *plan, uint64_t quantum_flops,
                         const struct hzp_matmul_args *args)
{
    uint64_t flops = hzp_op_cost(HZP_OP_matmul, args).flops;
    /* Columns of a B that is stored by rows are far apart in memory: such a product is cut along
     * its rows, if there are enough of them. */
    bool far_apart = !args->trans_a && !args->trans_b && args->c.rows >= FEWEST_ROWS;
    bool by_rows = far_apart || args->c.rows > args->c.cols;
    int32_t length = by_rows ? args->c.rows : args->c.cols;
    int64_t pieces = quantum_flops ? (int64_t)(flops / quantum_flops) + 1 : 1;
    if (far_apart && pieces > args->c.rows / 64 && args->a.cols >= 2 * FEWEST_TERMS &&
        args->c.type == HZP_F32 && !args->bias.ptr && !args->scale_a && !args->scale_b) {
        add_terms(plan, pieces, args);
        return;
    }
    /* Pieces of a multiple of 64 keep the kernels' tiles whole. */
    int32_t piece = (int32_t)HZP_ROUND_UP(HZP_DIV_UP((int64_t)length, pieces), (int64_t)64);
    for (int32_t at = 0; at < length; at += piece) {
        int32_t n = HZP_MIN(piece, length - at);
        struct hzp_matmul_args a = *args;
        if (by_rows) {
            a.a = args->trans_a ? hzp_mat_cols(args->a, at, n) : hzp_mat_rows(args->a, at, n);
            a.c = hzp_mat_rows(args->c, at, n);
            if (args->from.ptr)
                a.from = hzp_mat_rows(args->from, at, n);
            if (args->scale_a)
                a.scale_a = args->scale_a + at;
        } else {
            a.b = args->trans_b ? hzp_mat_rows(args->b, at, n) : hzp_mat_cols(args->b, at, n);
            a.c = hzp_mat_cols(args->c, at, n);
            if (args->from.ptr)
                a.from = hzp_mat_cols(args->from, at, n);
            if (args->bias.ptr)
                a.bias = hzp_mat_cols(args->bias, at, n);
            if (args->scale_b)
                a.scale_b = args->scale_b + at;
        }
        hzp_plan_next(plan, HZP_OP_matmul, &a);
    }
}

/* The arguments of x W^T + bias.  With fp8 they read the narrow buffer, into which `quantize` is
 * still to put x. */
static struct hzp_matmul_args forward_args(const struct hzp_layer *layer, enum hzp_role role,
                                           const struct hzp_layer_space *s, struct hzp_mat x,
                                           struct hzp_mat bias, struct hzp_mat y)
{
    struct hzp_matmul_args args = {.a = x, .c = y, .bias = bias, .trans_b = 1};
    if (!s->narrow.ptr) {
        args.b = hzp_layer_weight(layer, role);
        return args;
    }
    float *scale;
    args.a = hzp_mat_cols(s->narrow, 0, x.cols);
    args.b = hzp_version_fp8(layer->model->weights, layer->version, role, layer->index, &scale);
    args.scale_a = s->narrow_scale;
    args.scale_b = scale;
    return args;
}

static void quantize(struct hzp_plan *plan, const struct hzp_layer_space *s, struct hzp_mat x)
{
    if (s->narrow.ptr)
        HZP_PLAN_NEXT(plan, quantize, .x = x, .y = hzp_mat_cols(s->narrow, 0, x.cols),
                      .scale = s->narrow_scale);
}

/* Whether the ops that are several in one compute this model's norm and gate. */
static bool has_fused(const struct hzp_model_config *c)
{
    return !c->norm_plus_one && !c->norm_centred && !c->no_norm_before && !c->gelu;
}

/* Whether norm and SwiGLU write the narrow buffer themselves. */
static bool has_codes(const struct hzp_layer *layer, const struct hzp_layer_space *s)
{
    const struct hzp_model_config *c = layer->model->config;
    return s->narrow.ptr && hzp_device_has_codes(layer->model->dev) && has_fused(c);
}

bool hzp_plan_project(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_project_args *args)
{
    if (!hzp_device_projects(model->dev, args))
        return false;
    hzp_plan_next(plan, HZP_OP_project, args);
    return true;
}

static void add_weight_grad(struct hzp_plan *plan, const struct hzp_layer *layer,
                            enum hzp_role role, uint64_t quantum_flops, struct hzp_mat dy,
                            struct hzp_mat x)
{
    struct hzp_matmul_args dw = {
        .a = dy, .b = x, .c = hzp_layer_grad(layer, role), .trans_a = 1, .accumulate = 1};
    hzp_plan_add_matmul(plan, quantum_flops, &dw);
}

static void add_input_grad(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                           uint64_t quantum_flops, struct hzp_mat dy, struct hzp_mat dx)
{
    struct hzp_matmul_args input = {.a = dy, .b = hzp_layer_weight(layer, role), .c = dx};
    hzp_plan_add_matmul(plan, quantum_flops, &input);
}

void hzp_product_backward(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                          uint64_t quantum_flops, struct hzp_mat dy, struct hzp_mat x,
                          struct hzp_mat dx)
{
    add_weight_grad(plan, layer, role, quantum_flops, dy, x);
    add_input_grad(plan, layer, role, quantum_flops, dy, dx);
}

void hzp_product_backward_summed(struct hzp_plan *plan, const struct hzp_layer *layer,
                                 enum hzp_role role, enum hzp_tensor_place place,
                                 uint64_t quantum_flops, struct hzp_mat dy, struct hzp_mat x,
                                 struct hzp_mat dx)
{
    add_input_grad(plan, layer, role, quantum_flops, dy, dx);
    hzp_tensor_begin(plan, layer->model, place, dx);
    add_weight_grad(plan, layer, role, quantum_flops, dy, x);
    hzp_tensor_end(plan, layer->model, place, dx);
}

/* This rank's rows of x, normed, go to all ranks. */
static void norm_divided(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                         const struct hzp_layer_space *s, struct hzp_mat x, float *rstd)
{
    const struct hzp_model *model = layer->model;
    struct hzp_rmsnorm_args norm = {.x = hzp_tensor_own_rows(model, x),
                                    .w = hzp_layer_weight(layer, role),
                                    .y = hzp_tensor_own_rows(model, s->normed),
                                    .rstd = rstd,
                                    .eps = model->config->norm_eps,
                                    HZP_NORM_KIND(model->config)};
    if (s->ahead)
        hzp_plan_next_on(plan, HZP_OP_rmsnorm, (enum hzp_lane_name)plan->network_lane, &norm);
    else
        hzp_plan_next(plan, HZP_OP_rmsnorm, &norm);
    hzp_tensor_gather_rows(plan, model, HZP_TENSOR_NORMED, s->normed);
}

void hzp_stream_norm(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                     const struct hzp_layer_space *s, struct hzp_mat x, float *rstd, bool whole)
{
    if (s->part.ptr && !whole) {
        if (!s->ahead) /* else it stands behind the sum already */
            norm_divided(plan, layer, role, s, x, rstd);
        return;
    }
    hzp_stream_normed(plan, layer, role, x, s->normed, rstd);
}

void hzp_stream_normed(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                       struct hzp_mat x, struct hzp_mat y, float *rstd)
{
    const struct hzp_model_config *c = layer->model->config;
    struct hzp_mat w = hzp_layer_weight(layer, role);
    if (!w.ptr)
        HZP_PLAN_NEXT(plan, cast, .x = x, .y = y);
    else
        HZP_PLAN_NEXT(plan, rmsnorm, .x = x, .w = w, .y = y, .rstd = rstd, .eps = c->norm_eps,
                      HZP_NORM_KIND(c));
}

/* The norm, the product and SwiGLU as one op; false: not possible. */
static bool project_normed(struct hzp_plan *plan, const struct hzp_layer *layer,
                           const struct hzp_normed_product *p, const struct hzp_layer_space *s,
                           struct hzp_mat x, struct hzp_mat y)
{
    bool divided = s->part.ptr && !p->whole;
    struct hzp_project_args args = {.norm = hzp_layer_weight(layer, p->norm),
                                    .eps = layer->model->config->norm_eps,
                                    .gated = p->inner.ptr != NULL};
    if (p->rstd || p->kept || s->quantum_flops || divided || s->narrow.ptr ||
        !has_fused(layer->model->config))
        return false;
    args.product = forward_args(layer, p->role, s, x, p->bias, args.gated ? p->inner : y);
    return hzp_plan_project(plan, layer->model, &args);
}

/* The rows of the product: normed, or in the narrow buffer as codes of that. */
static void norm_rows(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_normed_product *p, const struct hzp_layer_space *s,
                      struct hzp_mat x)
{
    bool divided = s->part.ptr && !p->whole;
    if (has_codes(layer, s) && !p->rstd && !divided && !p->kept) {
        HZP_PLAN_NEXT(plan, codes, .x = x, .norm = hzp_layer_weight(layer, p->norm),
                      .y = hzp_mat_cols(s->narrow, 0, x.cols), .scale = s->narrow_scale,
                      .eps = layer->model->config->norm_eps);
        return;
    }
    if (!p->kept)
        hzp_stream_norm(plan, layer, p->norm, s, x, p->rstd, p->whole);
    quantize(plan, s, s->normed);
}

bool hzp_normed_product(struct hzp_plan *plan, const struct hzp_layer *layer,
                        const struct hzp_normed_product *p, const struct hzp_layer_space *s,
                        struct hzp_mat x, struct hzp_mat y)
{
    if (project_normed(plan, layer, p, s, x, y))
        return false;
    norm_rows(plan, layer, p, s, x);
    struct hzp_project_args gated = {.gated = 1};
    gated.product = forward_args(layer, p->role, s, s->normed, p->bias, p->inner);
    if (p->inner.ptr && !p->rstd && !s->quantum_flops && !layer->model->config->gelu &&
        hzp_device_projects(layer->model->dev, &gated)) {
        hzp_plan_next(plan, HZP_OP_project, &gated);
        return false;
    }
    gated.product.c = y;
    hzp_plan_add_matmul(plan, s->quantum_flops, &gated.product);
    if (p->inner.ptr && has_codes(layer, s) && !p->rstd) {
        HZP_PLAN_NEXT(plan, codes, .x = y, .y = hzp_mat_cols(s->narrow, 0, p->inner.cols),
                      .scale = s->narrow_scale);
        return true;
    }
    if (p->inner.ptr)
        HZP_PLAN_NEXT(plan, swiglu, .x = y, .y = p->inner, .gelu = layer->model->config->gelu);
    return false;
}

/* The norm that reads the sum of O or Down. */
static void norm_ahead(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                       const struct hzp_layer_space *s, struct hzp_mat x)
{
    struct hzp_layer next = *layer;
    if (role == HZP_O) {
        if (!layer->model->config->parallel)
            norm_divided(plan, layer, HZP_MLP_NORM, s, x, s->rstd_mlp);
    } else if (!s->x_last) {
        next.index++;
        norm_divided(plan, &next, HZP_ATTN_NORM, s, x, s->rstd_attn);
    }
}

static enum hzp_role post_of(enum hzp_role role)
{
    return role == HZP_O ? HZP_ATTN_POST : HZP_MLP_POST;
}

/* to = from + the norm of the product. */
static void add_normed(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                       const struct hzp_layer_space *s, struct hzp_mat x, bool coded,
                       struct hzp_mat from, struct hzp_mat to)
{
    const struct hzp_model_config *c = layer->model->config;
    struct hzp_mat wide = hzp_mat_cols(s->wide, 0, to.cols);
    struct hzp_matmul_args args = forward_args(layer, role, s, x, (struct hzp_mat){0}, wide);
    if (!coded)
        quantize(plan, s, x);
    hzp_plan_add_matmul(plan, s->quantum_flops, &args);
    HZP_PLAN_NEXT(plan, rmsnorm, .x = wide, .w = hzp_layer_weight(layer, post_of(role)),
                  .add = from, .y = to, .eps = c->norm_eps, HZP_NORM_KIND(c));
}

void hzp_stream_add(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                    const struct hzp_layer_space *s, struct hzp_mat x, bool coded,
                    struct hzp_mat from, struct hzp_mat to)
{
    const struct hzp_model *model = layer->model;
    enum hzp_tensor_place place = role == HZP_O ? HZP_TENSOR_O : HZP_TENSOR_DOWN;
    const struct hzp_mat none = {0};
    if (model->config->norm_after) {
        add_normed(plan, layer, role, s, x, coded, from, to);
        return;
    }
    if (s->part.ptr) {
        if (from.ptr != to.ptr) /* the scatter adds to it */
            HZP_PLAN_NEXT(plan, cast, .x = from, .y = to);
        struct hzp_matmul_args args = forward_args(layer, role, s, x, none, s->part);
        if (!coded)
            quantize(plan, s, x);
        hzp_plan_add_matmul(plan, s->quantum_flops, &args);
        hzp_tensor_scatter(plan, model, place, s->part, to);
    } else {
        struct hzp_matmul_args args = forward_args(layer, role, s, x, none, to);
        args.accumulate = hzp_tensor_adds(model);
        if (args.accumulate && from.ptr != to.ptr)
            args.from = from;
        if (!coded)
            quantize(plan, s, x);
        hzp_plan_add_matmul(plan, s->quantum_flops, &args);
        if (!s->sums_apart)
            hzp_tensor_reduce(plan, model, place, to);
    }
    if (s->ahead)
        norm_ahead(plan, layer, role, s, to);
}

struct hzp_mat hzp_stream_grad(struct hzp_plan *plan, const struct hzp_layer_grads *g)
{
    if (g->dx_act.ptr == g->dx.ptr)
        return g->dx;
    HZP_PLAN_NEXT(plan, cast, .x = g->dx, .y = g->dx_act);
    return g->dx_act;
}

void hzp_norm_backward(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                       const struct hzp_layer_grads *g, struct hzp_mat x, struct hzp_mat dy,
                       struct hzp_mat scratch)
{
    const struct hzp_model_config *c = layer->model->config;
    struct hzp_mat w = hzp_layer_weight(layer, role), dx = hzp_mat_cols(g->dwide, 0, x.cols);
    HZP_PLAN_NEXT(plan, rmsnorm, .x = x, .w = w, .y = scratch, .rstd = g->rstd, .eps = c->norm_eps,
                  HZP_NORM_KIND(c));
    HZP_PLAN_NEXT(plan, fill, .y = dx);
    HZP_PLAN_NEXT(plan, rmsnorm_bwd, .dy = dy, .x = x, .w = w, .dx = dx,
                  .dw = hzp_layer_grad(layer, role), .rstd = g->rstd, HZP_NORM_KIND(c));
}

struct hzp_mat hzp_stream_grad_of(struct hzp_plan *plan, const struct hzp_layer *layer,
                                  enum hzp_role role, const struct hzp_layer_grads *g,
                                  struct hzp_mat x)
{
    if (!layer->model->config->norm_after)
        return hzp_stream_grad(plan, g);
    struct hzp_mat wide = hzp_mat_cols(g->wide, 0, g->dx.cols);
    struct hzp_mat dwide = hzp_mat_cols(g->dwide, 0, g->dx.cols);
    struct hzp_matmul_args args = {
        .a = x, .b = hzp_layer_weight(layer, role), .c = wide, .trans_b = 1};
    plan->again = true;
    hzp_plan_add_matmul(plan, g->quantum_flops, &args);
    plan->again = false;
    hzp_norm_backward(plan, layer, post_of(role), g, wide, g->dx, g->normed);
    if (g->dx_act.ptr == g->dx.ptr)
        return dwide;
    HZP_PLAN_NEXT(plan, cast, .x = dwide, .y = g->dx_act);
    return g->dx_act;
}

void hzp_stream_back(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role norm,
                     enum hzp_role role, enum hzp_tensor_place place,
                     const struct hzp_layer_grads *g, struct hzp_mat dy, struct hzp_mat x,
                     const float *rstd)
{
    struct hzp_mat w = hzp_layer_weight(layer, norm);
    hzp_stream_normed(plan, layer, norm, x, g->normed, NULL);
    if (!w.ptr) { /* what is read is the stream itself */
        struct hzp_matmul_args input = {
            .a = dy, .b = hzp_layer_weight(layer, role), .c = g->dx, .accumulate = 1};
        add_weight_grad(plan, layer, role, g->quantum_flops, dy, g->normed);
        hzp_plan_add_matmul(plan, g->quantum_flops, &input);
        return;
    }
    hzp_product_backward_summed(plan, layer, role, place, g->quantum_flops, dy, g->normed,
                                g->dnormed);
    HZP_PLAN_NEXT(plan, rmsnorm_bwd, .dy = g->dnormed, .x = x, .w = w, .dx = g->dx,
                  .dw = hzp_layer_grad(layer, norm), .rstd = rstd,
                  HZP_NORM_KIND(layer->model->config));
}
