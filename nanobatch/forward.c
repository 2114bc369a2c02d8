/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/forward.h"

#include "nanobatch/layer.h"

#include <stdlib.h>

static size_t lay_out(struct hzp_serve_space *s, char *base, const struct hzp_model_config *c,
                      enum hzp_dtype act, int32_t rows, int32_t logits)
{
    int32_t packed = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    size_t at = 0;
    s->x = hzp_mat_cut(base, &at, rows, c->width, HZP_F32);
    s->normed = hzp_mat_cut(base, &at, rows, c->width, act);
    s->qkv = hzp_mat_cut(base, &at, rows, packed, act);
    s->attn = hzp_mat_cut(base, &at, rows, c->heads.heads * c->heads.dim, act);
    s->gate_up = hzp_mat_cut(base, &at, rows, 2 * c->inner, act);
    s->inner = hzp_mat_cut(base, &at, rows, c->inner, act);
    s->picked = hzp_mat_cut(base, &at, logits, c->width, HZP_F32);
    s->picked_normed = hzp_mat_cut(base, &at, logits, c->width, act);
    s->logits = hzp_mat_cut(base, &at, logits, c->vocab, HZP_F32);
    return at;
}

size_t hzp_serve_space_bytes(const struct hzp_model_config *config, enum hzp_dtype act,
                             int32_t rows_max, int32_t logits_max)
{
    struct hzp_serve_space s;
    return lay_out(&s, NULL, config, act, rows_max, logits_max);
}

int hzp_serve_space_create(const struct hzp_model *model, int32_t rows_max, int32_t logits_max,
                           struct hzp_serve_space **ret)
{
    struct hzp_serve_space *s = hzp_xcalloc(1, sizeof(*s));
    s->dev = model->dev;
    s->bytes = hzp_serve_space_bytes(model->config, model->act, rows_max, logits_max);
    int r = hzp_device_alloc(model->dev, HZP_MEM_DEVICE, s->bytes, &s->memory);
    if (r < 0) {
        free(s);
        return r;
    }
    lay_out(s, s->memory, model->config, model->act, rows_max, logits_max);
    *ret = s;
    return HZP_OK;
}

void hzp_serve_space_destroy(struct hzp_serve_space *s)
{
    if (!s)
        return;
    hzp_device_free(s->dev, HZP_MEM_DEVICE, s->memory);
    free(s);
}

static struct hzp_layer_space rows_of(const struct hzp_serve_space *s, int32_t rows)
{
    struct hzp_mat x = hzp_mat_rows(s->x, 0, rows), qkv = hzp_mat_rows(s->qkv, 0, rows);
    return (struct hzp_layer_space){
        .x_in = x,
        .x_mid = x,
        .x_out = x,
        .normed = hzp_mat_rows(s->normed, 0, rows),
        .qkv_bare = qkv,
        .qkv = qkv,
        .attn = hzp_mat_rows(s->attn, 0, rows),
        .gate_up = hzp_mat_rows(s->gate_up, 0, rows),
        .inner = hzp_mat_rows(s->inner, 0, rows),
    };
}

static void add_head(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_batch *batch,
                     struct hzp_serve_space *space, struct hzp_mat x)
{
    const struct hzp_weights *w = model->weights;
    struct hzp_mat picked = hzp_mat_rows(space->picked, 0, batch->logits);
    struct hzp_mat normed = hzp_mat_rows(space->picked_normed, 0, batch->logits);
    struct hzp_mat logits = hzp_mat_rows(space->logits, 0, batch->logits);
    HZP_PLAN_ADD(plan, gather, HZP_LANE_COMPUTE, .x = x, .y = picked, .index = batch->logit_row);
    HZP_PLAN_ADD(plan, rmsnorm, HZP_LANE_COMPUTE, .x = picked,
                 .w = hzp_version_mat(w, v, HZP_FINAL_NORM, -1), .y = normed,
                 .eps = model->config->norm_eps);
    HZP_PLAN_ADD(plan, matmul, HZP_LANE_COMPUTE, .a = normed,
                 .b = hzp_version_mat(w, v, HZP_HEAD, -1), .c = logits, .trans_b = 1);
    HZP_PLAN_ADD(plan, sample, HZP_LANE_COMPUTE, .logits = logits, .row = batch->sample,
                 .edit = batch->edit, .token = batch->token, .logprob = batch->logprob,
                 .rank = batch->rank, .top_token = batch->tops_wanted ? batch->top_token : NULL,
                 .top_logprob = batch->tops_wanted ? batch->top_logprob : NULL);
}

void hzp_forward_build(struct hzp_plan *plan, const struct hzp_model *model,
                       const struct hzp_version *v, const struct hzp_batch *batch,
                       const struct hzp_kv *kv, struct hzp_serve_space *space)
{
    if (batch->rows == 0)
        return;
    struct hzp_layer_space s = rows_of(space, batch->rows);
    HZP_PLAN_ADD(plan, embed, HZP_LANE_COMPUTE,
                 .table = hzp_version_mat(model->weights, v, HZP_EMBED, -1), .y = s.x_in,
                 .id = batch->id);
    for (int32_t l = 0; l < model->config->layers; l++)
        hzp_layer_build(plan, model, v, l, &s, batch, &kv[l], NULL);
    if (batch->logits > 0)
        add_head(plan, model, v, batch, space, s.x_out);
}
