/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/serve_space.h"

static size_t lay_out(struct hzp_serve_space *s, char *base, const struct hzp_layout *layout,
                      enum hzp_dtype act, bool fp8, int32_t rows, int32_t logits)
{
    const struct hzp_model_config *c = &layout->config;
    int32_t inner = hzp_layout_inner_max(layout);
    int32_t packed = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    size_t at = 0;
    s->x = hzp_mat_cut(base, &at, rows, c->width, HZP_F32);
    s->normed = hzp_mat_cut(base, &at, rows, c->width, act);
    s->qkv = hzp_mat_cut(base, &at, rows, packed, act);
    s->attn = hzp_mat_cut(base, &at, rows, c->heads.heads * c->heads.dim, act);
    s->gate_up = hzp_mat_cut(base, &at, rows, 2 * inner, act);
    s->inner = hzp_mat_cut(base, &at, rows, inner, act);
    s->picked = hzp_mat_cut(base, &at, logits, c->width, HZP_F32);
    s->picked_normed = hzp_mat_cut(base, &at, logits, c->width, act);
    s->logits = hzp_mat_cut(base, &at, logits, c->vocab, HZP_F32);
    s->gathered = hzp_gathered_cut(base, &at, layout, logits);
    s->wide = hzp_wide_cut(base, &at, layout, rows);
    if (layout->slice.ranks > 1)
        s->part = hzp_mat_cut(base, &at, rows, c->width, HZP_F32);
    if (fp8)
        s->narrow = hzp_narrow_cut(base, &at, layout, rows, &s->narrow_scale);
    return at;
}

size_t hzp_serve_space_bytes(const struct hzp_layout *layout, enum hzp_dtype act, bool fp8,
                             int32_t rows_max, int32_t logits_max)
{
    struct hzp_serve_space s;
    return lay_out(&s, NULL, layout, act, fp8, rows_max, logits_max);
}

/* Attention leaves out the padding rows of steps with prompts: what the rows' later ops read there
 * must be numbers. */
static int clear_attention(struct hzp_serve_space *s)
{
    size_t bytes = (size_t)s->attn.rows * (size_t)s->attn.stride * hzp_dtype_size(s->attn.type);
    HZP_FREED void *zero = calloc(1, bytes);
    return zero ? hzp_device_copy(s->dev, s->attn.ptr, zero, bytes) : HZP_ENOMEM;
}

int hzp_serve_space_create(const struct hzp_model *model, int32_t rows_max, int32_t logits_max,
                           struct hzp_serve_space **ret)
{
    struct hzp_serve_space *s = hzp_xcalloc(1, sizeof(*s));
    bool fp8 = hzp_weights_fp8(model->weights);
    s->dev = model->dev;
    s->bytes = hzp_serve_space_bytes(model->layout, model->act, fp8, rows_max, logits_max);
    int r = hzp_device_alloc(model->dev, HZP_MEM_DEVICE, s->bytes, &s->memory);
    if (r < 0) {
        free(s);
        return r;
    }
    lay_out(s, s->memory, model->layout, model->act, fp8, rows_max, logits_max);
    r = hzp_device_has_graphs(model->dev) ? clear_attention(s) : HZP_OK;
    if (r < 0) {
        hzp_serve_space_destroy(s);
        return r;
    }
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
