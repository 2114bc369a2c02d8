/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/train_space_state.h"

#include "nanobatch/model/stage_order.h"

/* Columns of each kind of row; inner: of a buffer that all layers use in turn. */
struct widths {
    int32_t width, packed, attn, inner, heads, vocab;
};

static struct widths widths_of(const struct hzp_layout *layout)
{
    const struct hzp_model_config *c = &layout->config;
    return (struct widths){
        .width = c->width,
        .packed = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim,
        .attn = c->heads.heads * c->heads.dim,
        .inner = hzp_layout_inner_max(layout),
        .heads = c->heads.heads,
        .vocab = c->vocab,
    };
}

/* The layers whose activations this rank keeps. */
static struct hzp_extent layers_of(const struct hzp_train_space *s, const struct hzp_layout *layout)
{
    const struct hzp_shards *shards = &s->config.shards;
    if (s->config.forward_only)
        return (struct hzp_extent){0, 1};
    if (shards->stages <= 1)
        return (struct hzp_extent){0, (size_t)layout->config.layers};
    return (struct hzp_extent){(size_t)shards->layer, (size_t)(shards->layer_end - shards->layer)};
}

/* Whether this rank has the head. */
static bool has_head(const struct hzp_train_space *s)
{
    return s->config.forward_only || s->config.shards.stages <= 1 || s->config.shards.rank == 0;
}

/* What a layer's attention leaves for its backward pass. */
static void cut_attention(const struct hzp_train_space *s, char *base, size_t *at,
                          const struct hzp_layout *layout, int32_t rows, struct hzp_kept_layer *k)
{
    struct widths w = widths_of(layout);
    k->qkv = hzp_mat_cut(base, at, rows, w.packed, s->act);
    k->qkv_bare = layout->config.qk_norm || layout->config.qk_norm_full
                      ? hzp_mat_cut(base, at, rows, w.packed, s->act)
                      : k->qkv;
    k->attn = hzp_mat_cut(base, at, rows, w.attn, s->act);
    k->rstd_attn = hzp_mat_cut(base, at, 1, rows, HZP_F32).ptr;
    k->rstd_mlp = hzp_mat_cut(base, at, 1, rows, HZP_F32).ptr;
    k->lse = hzp_mat_cut(base, at, rows, w.heads, HZP_F32).ptr;
}

/* The ranks of slices keep x_mid: computing it again would take a sum over the ranks.  Parallel
 * layers need none: their backward pass does not read it. */
static bool keeps_mid(const struct hzp_train_space *s, const struct hzp_layout *layout,
                      enum hzp_recompute recompute)
{
    bool again = recompute == HZP_RECOMPUTE_LAYER;
    return !s->config.forward_only && !layout->config.parallel &&
           (!again || layout->slice.ranks > 1);
}

/* What layer l keeps; *k has what layers use in turn. */
static void cut_layer(const struct hzp_train_space *s, char *base, size_t *at,
                      const struct hzp_layout *layout, int32_t rows, enum hzp_recompute recompute,
                      int32_t l, struct hzp_kept_layer *k)
{
    struct widths w = widths_of(layout);
    bool forward = s->config.forward_only;
    k->x_in = hzp_mat_cut(base, at, rows, w.width, HZP_F32);
    if (forward)
        k->x_mid = k->x_in;
    else if (keeps_mid(s, layout, recompute))
        k->x_mid = hzp_mat_cut(base, at, rows, w.width, HZP_F32);
    if (recompute != HZP_RECOMPUTE_LAYER)
        cut_attention(s, base, at, layout, rows, k);
    if (!recompute)
        k->gate_up = hzp_mat_cut(base, at, rows,
                                 2 * (forward ? w.inner : hzp_layout_inner(layout, l)), s->act);
}

/* Kept activations of so many rows, layer by layer, and in front of them what the layers use in
 * turn; kept [slots][layers + 1].  kept NULL: only counts. */
static void cut_kept(const struct hzp_train_space *s, char *base, size_t *at,
                     const struct hzp_layout *layout, int32_t rows, enum hzp_recompute recompute,
                     struct hzp_kept_layer *kept)
{
    struct widths w = widths_of(layout);
    struct hzp_kept_layer shared = {0};
    struct hzp_extent own = layers_of(s, layout);
    int32_t first = (int32_t)own.first, end = first + (int32_t)own.count;
    int32_t layers = layout->config.layers;
    if (recompute == HZP_RECOMPUTE_LAYER)
        cut_attention(s, base, at, layout, rows, &shared);
    if (!s->config.forward_only && !keeps_mid(s, layout, recompute))
        shared.x_mid = hzp_mat_cut(base, at, rows, w.width, HZP_F32);
    if (recompute)
        shared.gate_up = hzp_mat_cut(base, at, rows, 2 * w.inner, s->act);
    for (int32_t slot = 0; slot < s->slots; slot++) {
        struct hzp_kept_layer *of = kept ? kept + slot * (layers + 1) : NULL;
        for (int32_t l = first; l < end; l++) {
            struct hzp_kept_layer k = shared;
            cut_layer(s, base, at, layout, rows, recompute, l, &k);
            if (of)
                of[l] = k;
        }
        if (s->config.forward_only)
            return;
        struct hzp_mat last = hzp_mat_cut(base, at, rows, w.width, HZP_F32);
        if (of)
            of[end].x_in = last;
        if (end == layers || !has_head(s))
            continue;
        last = hzp_mat_cut(base, at, rows, w.width, HZP_F32); /* comes back from the last stage */
        if (of)
            of[layers].x_in = last;
    }
}

static void cut_head(struct hzp_train_space *s, char *base, size_t *at,
                     const struct hzp_layout *layout, struct widths w)
{
    int32_t rows = s->config.head_rows;
    if (!has_head(s))
        return;
    s->picked = hzp_mat_cut(base, at, rows, w.width, HZP_F32);
    s->picked_normed = hzp_mat_cut(base, at, rows, w.width, s->act);
    s->logits = hzp_mat_cut(base, at, rows, w.vocab, HZP_F32);
    s->gathered = hzp_gathered_cut(base, at, layout, rows);
    s->picked_rstd = hzp_mat_cut(base, at, 1, rows, HZP_F32).ptr;
    if (s->config.forward_only)
        return;
    s->dlogits = s->logits; /* BF16: in the first half of each row */
    s->dlogits.type = s->act;
    s->dlogits.stride = w.vocab * (int32_t)(sizeof(float) / hzp_dtype_size(s->act));
    s->dpicked = hzp_mat_cut(base, at, rows, w.width, HZP_F32);
    s->dpicked_normed = hzp_mat_cut(base, at, rows, w.width, HZP_F32);
}

static size_t lay_out_rows(struct hzp_train_space *s, char *base, const struct hzp_layout *layout)
{
    struct widths w = widths_of(layout);
    const struct hzp_train_space_config *c = &s->config;
    int32_t usual = c->rows_max + c->ride_rows, rows = HZP_MAX(c->rows_max, c->long_rows);
    size_t at = 0, at_long = 0;
    s->heads = w.heads;
    s->slots = c->forward_only ? 1 : hzp_stages_kept(&c->shards);
    HZP_ASSERT(s->slots == 1 || (c->long_rows <= c->rows_max && !c->ride_rows));
    cut_kept(s, base, &at, layout, usual, c->recompute, s->kept_usual);
    if (c->long_rows > c->rows_max)
        cut_kept(s, base, &at_long, layout, rows, c->recompute_long, s->kept_long);
    at = HZP_MAX(at, at_long);
    s->normed = hzp_mat_cut(base, &at, HZP_MAX(usual, rows), w.width, s->act);
    s->inner = hzp_mat_cut(base, &at, HZP_MAX(usual, rows), w.inner, s->act);
    s->wide = hzp_wide_cut(base, &at, layout, HZP_MAX(usual, rows));
    cut_head(s, base, &at, layout, w);
    if (s->config.fp8)
        s->narrow = hzp_narrow_cut(base, &at, layout, rows, &s->narrow_scale);
    if (s->config.forward_only)
        return at;
    s->dx = hzp_mat_cut(base, &at, rows, w.width, HZP_F32);
    s->dx_of[0] = s->dx_of[1] = s->dx_of[2] = s->dx;
    for (int i = 1; i < 2 + has_head(s) && s->slots > 1; i++)
        s->dx_of[i] = hzp_mat_cut(base, &at, rows, w.width, HZP_F32);
    s->dx_act = s->act == HZP_F32 ? s->dx : hzp_mat_cut(base, &at, rows, w.width, s->act);
    s->dnormed = hzp_mat_cut(base, &at, rows, w.width, HZP_F32);
    s->dinner = hzp_mat_cut(base, &at, rows, w.inner, s->act);
    s->dgate_up = hzp_mat_cut(base, &at, rows, 2 * w.inner, s->act);
    s->dattn = hzp_mat_cut(base, &at, rows, w.attn, s->act);
    s->dqkv = hzp_mat_cut(base, &at, rows, w.packed, s->act);
    s->dwide = hzp_wide_cut(base, &at, layout, rows);
    if (s->wide.cols)
        s->rstd = hzp_mat_cut(base, &at, 1, rows, HZP_F32).ptr;
    return at;
}

static void lay_out_units(struct hzp_units *units, char *base, size_t *at,
                          const struct hzp_layout *layout, enum hzp_dtype type)
{
    if (base)
        hzp_units_init(units, layout, type, base + *at);
    *at += hzp_units_bytes(layout, type);
}

static void lay_out_shards(struct hzp_train_space *s, enum hzp_level level, struct hzp_units *units,
                           char *base, size_t *at, const struct hzp_layout *layout,
                           enum hzp_dtype type)
{
    const struct hzp_shards *shards = &s->config.shards;
    if (hzp_groups_shards(&shards->groups, level) == 1 && shards->stages <= 1) {
        lay_out_units(units, base, at, layout, type);
        return;
    }
    if (base)
        hzp_units_init_shards(units, layout, type, base + *at, shards, level);
    *at += hzp_units_shard_bytes(layout, type, shards, level);
}

/* Two places for the largest unit; a tied embedding has its own (weights/groups.h). */
static void lay_out_ring(struct hzp_train_space *s, char *base, size_t *at,
                         const struct hzp_layout *layout)
{
    const struct hzp_shards *shards = &s->config.shards;
    struct hzp_groups_model m = hzp_groups_model(shards, layout);
    size_t ends = m.tied * (size_t)s->slots; /* each micro-batch has them from head to end */
    if (base) {
        float *tied = s->tied = (float *)(base + *at), *place = tied + ends;
        hzp_units_init(&s->grads, layout, HZP_F32, NULL);
        for (int32_t u = 0; u < layout->units; u++)
            hzp_units_place(&s->grads, u,
                            u == 0 && m.tied ? tied : place + (size_t)(u % 2) * m.largest);
    }
    *at += (ends + 2 * m.largest) * sizeof(float);
}

/* Gradients: the ring, if there is one, and the sums. */
static void lay_out_grads(struct hzp_train_space *s, char *base, size_t *at,
                          const struct hzp_layout *layout)
{
    const struct hzp_shards *shards = &s->config.shards;
    s->sum = s->total = &s->grads;
    if (!hzp_shards_fresh(shards)) {
        lay_out_shards(s, HZP_LEVEL_GRADS, &s->grads, base, at, layout, HZP_F32);
        return;
    }
    lay_out_ring(s, base, at, layout);
    s->sum = s->total = &s->sums;
    lay_out_shards(s, shards->ordered ? HZP_LEVEL_RANKS : HZP_LEVEL_GRADS, &s->sums, base, at,
                   layout, HZP_F32);
    if (!shards->ordered || shards->groups.z1 == shards->groups.ranks)
        return;
    s->total = &s->totals;
    lay_out_shards(s, HZP_LEVEL_STATE, &s->totals, base, at, layout, HZP_F32);
}

const char *hzp_state_part_name(enum hzp_state_part part)
{
    static const char *const name[] = {[HZP_STATE_M] = "m",
                                       [HZP_STATE_V] = "v",
                                       [HZP_STATE_M_SCALE] = "m_scale",
                                       [HZP_STATE_V_SCALE] = "v_scale",
                                       [HZP_STATE_RESIDUAL] = "residual",
                                       [HZP_STATE_WEIGHTS] = "the weights"};
    return name[part];
}

const struct hzp_layout *hzp_state_layout(const struct hzp_layout *layout, enum hzp_dtype type,
                                          enum hzp_dtype moment_type, enum hzp_state_part part,
                                          enum hzp_dtype *ret_type)
{
    bool codes = moment_type == HZP_Q8;
    switch (part) {
    case HZP_STATE_M:
    case HZP_STATE_V:
        *ret_type = moment_type;
        return codes ? layout->codes : layout;
    case HZP_STATE_M_SCALE:
    case HZP_STATE_V_SCALE:
        *ret_type = HZP_F32;
        return codes ? layout->scales : NULL;
    case HZP_STATE_RESIDUAL:
        *ret_type = HZP_I16;
        return type == HZP_BF16 ? layout : NULL;
    case HZP_STATE_WEIGHTS:
        break;
    }
    *ret_type = type;
    return layout;
}

int hzp_tensor_matrices(const struct hzp_layout *layout, const struct hzp_tensor *t,
                        int32_t rows[3])
{
    const struct hzp_heads *h = &layout->config.heads;
    rows[0] = t->role == HZP_QKV       ? h->heads * h->dim
              : t->role == HZP_GATE_UP ? t->rows / 2
                                       : t->rows;
    rows[1] = t->role == HZP_QKV ? h->kv_heads * h->dim : rows[0];
    rows[2] = rows[1];
    return t->role == HZP_QKV ? 3 : t->role == HZP_GATE_UP ? 2 : 1;
}

static void lay_out_muon(struct hzp_train_space *s, char *base, size_t *at,
                         const struct hzp_layout *layout)
{
    int32_t most = 0, side = 0, rows[3];
    for (int32_t i = 0; i < layout->tensors; i++) {
        const struct hzp_tensor *t = &layout->tensor[i];
        for (int k = t->layer < 0 ? 0 : hzp_tensor_matrices(layout, t, rows); k-- > 0;) {
            most = HZP_MAX(most, rows[k] * t->cols);
            side = HZP_MAX(side, HZP_MIN(rows[k], t->cols));
        }
    }
    for (int i = 0; i < HZP_COUNT(s->muon); i++)
        s->muon[i] = hzp_mat_cut(base, at, 1, i < 2 ? most : side * side, s->act);
}

/* base, at: of memory of the device and of the host; at becomes the sizes.  base NULLs: only
 * counts. */
static void lay_out_state(struct hzp_train_space *s, void *const base[2], size_t at[2],
                          const struct hzp_layout *layout)
{
    enum hzp_mem where = s->config.host_state ? HZP_MEM_HOST : HZP_MEM_DEVICE;
    char *own = base[where];
    at[HZP_MEM_DEVICE] = at[HZP_MEM_HOST] = 0;
    s->layout = layout;
    if (s->config.forward_only)
        return;
    lay_out_grads(s, base[HZP_MEM_DEVICE], &at[HZP_MEM_DEVICE], layout);
    size_t begin = at[where];
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++) {
        enum hzp_dtype type;
        const struct hzp_layout *part =
            hzp_state_layout(layout, s->act, s->config.moment_type, (enum hzp_state_part)p, &type);
        if (part)
            lay_out_shards(s, HZP_LEVEL_STATE, &s->state_part[p], own, &at[where], part, type);
    }
    if (s->config.backup) {
        size_t bytes = HZP_ROUND_UP(at[where] - begin, sizeof(float));
        s->copied_floats = bytes / sizeof(float);
        s->copied = own ? (float *)(own + begin) : NULL;
        at[where] = HZP_ROUND_UP(begin + bytes, (size_t)64);
        s->backup = own ? (float *)(own + at[where]) : NULL;
        at[where] += bytes;
    }
    if (s->config.muon)
        lay_out_muon(s, base[HZP_MEM_DEVICE], &at[HZP_MEM_DEVICE], layout);
}

/* The sums of squares that ranks exchange. */
static int open_squares(struct hzp_train_space *s, const struct hzp_layout *layout)
{
    const struct hzp_shards *shards = &s->config.shards;
    size_t shards_of_state = (size_t)shards->groups.z1;
    if (s->config.forward_only || shards_of_state == 1)
        return HZP_OK;
    s->square_count = 1;
    if (shards->ordered)
        s->square_count =
            hzp_units_bytes(layout, HZP_F32) / sizeof(float) / shards_of_state / HZP_BLOCK_ELEMENTS;
    void *memory;
    HZP_TRY(hzp_device_alloc(s->dev, HZP_MEM_HOST,
                             (1 + shards_of_state) * s->square_count * sizeof(double), &memory));
    s->square = memory;
    s->squares = s->square + s->square_count;
    return HZP_OK;
}

void hzp_train_space_choose(struct hzp_train_space *s, int32_t slot, int dx)
{
    const struct hzp_shards *shards = &s->config.shards;
    HZP_ASSERT(slot >= 0 && slot < s->slots);
    s->slot = slot;
    s->dx = s->dx_of[dx];
    if (s->act == HZP_F32)
        s->dx_act = s->dx;
    if (s->tied && s->layout->config.tied && shards->rank == 0)
        hzp_units_place(&s->grads, 0,
                        s->tied + (size_t)slot * hzp_groups_model(shards, s->layout).tied);
}

void hzp_train_space_begin(struct hzp_train_space *s, int32_t rows)
{
    bool longer = rows > s->config.rows_max;
    HZP_ASSERT(rows > 0 && rows <= HZP_MAX(s->config.rows_max, s->config.long_rows));
    int32_t own = s->slot * (int32_t)(s->kept_long - s->kept_usual) / s->slots;
    s->kept = longer ? s->kept_long : s->kept_usual + own;
    s->recompute = longer ? s->config.recompute_long : s->config.recompute;
    s->rows_room = longer ? s->config.long_rows : s->config.rows_max + s->config.ride_rows;
}

struct hzp_layer_space hzp_train_layer_space(const struct hzp_train_space *s, int32_t layer,
                                             int32_t place, int32_t row0, int32_t rows)
{
    bool keeps = !s->config.forward_only;
    const struct hzp_kept_layer *k = &s->kept[keeps ? layer : 0];
    const struct hzp_kept_layer *stream = &s->kept[keeps ? place : 0];
    size_t heads = (size_t)s->heads;
    return (struct hzp_layer_space){
        .x_in = hzp_mat_rows(stream->x_in, row0, rows),
        .x_mid = hzp_mat_rows(k->x_mid, row0, rows),
        .x_out = hzp_mat_rows(stream[keeps].x_in, row0, rows),
        .normed = hzp_mat_rows(s->normed, row0, rows),
        .qkv_bare = hzp_mat_rows(k->qkv_bare, row0, rows),
        .qkv = hzp_mat_rows(k->qkv, row0, rows),
        .attn = hzp_mat_rows(k->attn, row0, rows),
        .gate_up = hzp_mat_rows(k->gate_up, row0, rows),
        .inner = hzp_mat_rows(s->inner, row0, rows),
        .rstd_attn = k->rstd_attn + row0,
        .rstd_mlp = k->rstd_mlp + row0,
        .lse = k->lse + (size_t)row0 * heads,
        .narrow = s->narrow.ptr ? hzp_mat_rows(s->narrow, row0, rows) : s->narrow,
        .narrow_scale = s->narrow.ptr ? s->narrow_scale + row0 : NULL,
        .wide = s->wide.ptr ? hzp_mat_rows(s->wide, row0, rows) : s->wide,
        .quantum_flops = s->config.quantum_flops,
    };
}

struct hzp_layer_grads hzp_train_layer_grads(const struct hzp_train_space *s, int32_t rows)
{
    return (struct hzp_layer_grads){
        .dx = hzp_mat_rows(s->dx, 0, rows),
        .dx_act = hzp_mat_rows(s->dx_act, 0, rows),
        .dnormed = hzp_mat_rows(s->dnormed, 0, rows),
        .normed = hzp_mat_rows(s->normed, 0, rows),
        .inner = hzp_mat_rows(s->inner, 0, rows),
        .dinner = hzp_mat_rows(s->dinner, 0, rows),
        .dgate_up = hzp_mat_rows(s->dgate_up, 0, rows),
        .dattn = hzp_mat_rows(s->dattn, 0, rows),
        .dqkv = hzp_mat_rows(s->dqkv, 0, rows),
        .wide = s->wide.ptr ? hzp_mat_rows(s->wide, 0, rows) : s->wide,
        .dwide = s->dwide.ptr ? hzp_mat_rows(s->dwide, 0, rows) : s->dwide,
        .rstd = s->rstd,
        .quantum_flops = s->config.quantum_flops,
    };
}

struct hzp_head_space hzp_train_head_space(const struct hzp_train_space *s, int32_t rows)
{
    struct hzp_head_space head = {
        .picked = hzp_mat_rows(s->picked, 0, rows),
        .normed = hzp_mat_rows(s->picked_normed, 0, rows),
        .logits = hzp_mat_rows(s->logits, 0, rows),
        .gathered = s->gathered,
        .rstd = s->picked_rstd,
        .quantum_flops = s->config.quantum_flops,
    };
    if (!s->config.forward_only) {
        head.dlogits = hzp_mat_rows(s->dlogits, 0, rows);
        head.dpicked = hzp_mat_rows(s->dpicked, 0, rows);
        head.dnormed = hzp_mat_rows(s->dpicked_normed, 0, rows);
    }
    return head;
}

size_t hzp_train_space_bytes(const struct hzp_layout *layout, enum hzp_dtype act,
                             const struct hzp_train_space_config *config)
{
    struct hzp_train_space s = {.config = *config, .act = act};
    s.config.shards = hzp_shards_of(&config->shards);
    size_t rows = lay_out_rows(&s, NULL, layout);
    lay_out_state(&s, s.state, s.state_bytes, layout);
    return rows + s.state_bytes[HZP_MEM_DEVICE];
}

static int open_state(struct hzp_train_space *s, const struct hzp_layout *layout)
{
    lay_out_state(s, s->state, s->state_bytes, layout);
    for (int i = HZP_MEM_DEVICE; i <= HZP_MEM_HOST; i++) {
        size_t bytes = s->zeroed_bytes[i] = s->state_bytes[i];
        if (!bytes)
            continue;
        HZP_TRY(hzp_device_alloc(s->dev, (enum hzp_mem)i, bytes, &s->state[i]));
        if (!s->config.unprepared)
            HZP_TRY(hzp_device_zero(s->dev, s->state[i], bytes));
    }
    if (s->state_bytes[HZP_MEM_DEVICE])
        lay_out_state(s, s->state, s->state_bytes, layout);
    return HZP_OK;
}

int hzp_train_space_create(const struct hzp_model *model,
                           const struct hzp_train_space_config *config,
                           struct hzp_train_space **ret)
{
    struct hzp_train_space *s = hzp_xcalloc(1, sizeof(*s));
    s->dev = model->dev;
    s->config = *config;
    s->config.shards = hzp_shards_of(&config->shards);
    s->act = model->act;
    size_t layers = (size_t)model->config->layers + 1;
    s->slots = config->forward_only ? 1 : hzp_stages_kept(&s->config.shards);
    s->kept_usual = hzp_xcalloc(((size_t)s->slots + 1) * layers, sizeof(*s->kept));
    s->kept_long = s->kept_usual + (size_t)s->slots * layers;
    hzp_train_space_begin(s, 1);
    int r;
    size_t rows = lay_out_rows(s, NULL, model->layout);
    HZP_TRY_GOTO(hzp_device_alloc(s->dev, HZP_MEM_DEVICE, rows, &s->memory));
    lay_out_rows(s, s->memory, model->layout);
    void *result;
    HZP_TRY_GOTO(hzp_device_alloc(s->dev, HZP_MEM_HOST, sizeof(*s->result), &result));
    s->result = result;
    memset(s->result, 0, sizeof(*s->result));
    s->memory_bytes = rows;
    HZP_TRY_GOTO(open_state(s, model->layout));
    HZP_TRY_GOTO(open_squares(s, model->layout));
    if (config->backup) {
        void *rows_memory;
        HZP_TRY_GOTO(hzp_device_alloc(s->dev, HZP_MEM_HOST, HZP_COPY_ROWS * sizeof(*s->copied_row),
                                      &rows_memory));
        s->copied_row = rows_memory;
        for (int32_t i = 0; i < HZP_COPY_ROWS; i++)
            s->copied_row[i] = i;
    }
    *ret = s;
    return HZP_OK;
out:
    hzp_train_space_destroy(s);
    return r;
}

void hzp_train_space_destroy(struct hzp_train_space *s)
{
    if (!s)
        return;
    hzp_device_free(s->dev, HZP_MEM_DEVICE, s->memory);
    hzp_device_free(s->dev, HZP_MEM_DEVICE, s->state[HZP_MEM_DEVICE]);
    hzp_device_free(s->dev, HZP_MEM_HOST, s->state[HZP_MEM_HOST]);
    hzp_device_free(s->dev, HZP_MEM_HOST, s->result);
    hzp_device_free(s->dev, HZP_MEM_HOST, s->copied_row);
    hzp_device_free(s->dev, HZP_MEM_HOST, s->square);
    hzp_units_free(&s->grads);
    hzp_units_free(&s->sums);
    hzp_units_free(&s->totals);
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        hzp_units_free(&s->state_part[p]);
    free(s->kept_usual);
    free(s);
}

bool hzp_train_space_prepare(const struct hzp_train_space *s, struct hzp_plan *chain, size_t *at,
                             int32_t pieces)
{
    const size_t piece = 1 << 20;
    char *const memory[] = {s->state[HZP_MEM_DEVICE], s->state[HZP_MEM_HOST], s->memory};
    const size_t size[] = {s->zeroed_bytes[HZP_MEM_DEVICE], s->zeroed_bytes[HZP_MEM_HOST],
                           s->memory_bytes};
    size_t before = 0;
    bool any = false;
    chain->tenant = HZP_TENANT_TRAIN;
    for (int i = 0; i < HZP_COUNT(size); before += size[i++])
        while (pieces > 0 && *at < before + size[i]) {
            size_t bytes = HZP_MIN(piece, before + size[i] - *at);
            int32_t n = (int32_t)HZP_DIV_UP(bytes, sizeof(float)); /* allocations are whole pages */
            HZP_PLAN_NEXT(chain, fill, .y = {memory[i] + (*at - before), 1, n, n, HZP_F32});
            *at += bytes;
            any = true;
            pieces--;
        }
    return any;
}

/* Whether restoring the units of a state writes all of its memory. */
static bool restored_whole(const struct hzp_train_space *s)
{
    const struct hzp_layout *layout = s->layout;
    if (s->state_part[HZP_STATE_M].part || !hzp_device_host_memory(s->dev))
        return false;
    for (int32_t u = 0; u < layout->units; u++)
        if (layout->unit[u].room != layout->unit[u].elements)
            return false;
    return true;
}

int hzp_train_space_restore(struct hzp_train_space *s)
{
    enum hzp_mem where = s->config.host_state ? HZP_MEM_HOST : HZP_MEM_DEVICE;
    size_t grads = where == HZP_MEM_HOST ? 0 : hzp_units_bytes(s->grads.layout, HZP_F32);
    if (!s->config.unprepared || s->zeroed_bytes[where] == grads)
        return HZP_OK;
    s->zeroed_bytes[where] = grads; /* they come first */
    if (restored_whole(s))
        return HZP_OK;
    return hzp_device_zero(s->dev, (char *)s->state[where] + grads, s->state_bytes[where] - grads);
}

const struct hzp_units *hzp_train_space_grads(const struct hzp_train_space *s)
{
    return s->sum;
}

const struct hzp_units *hzp_train_space_part(const struct hzp_train_space *s,
                                             enum hzp_state_part part)
{
    return part < HZP_STATE_WEIGHTS && s->state_part[part].layout ? &s->state_part[part] : NULL;
}

static int clear_unit(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    memset(host->base, 0, host->elements * hzp_dtype_size(host->type));
    return HZP_OK;
}

int hzp_train_space_clear(const struct hzp_train_space *s)
{
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (s->state_part[p].layout)
            HZP_TRY(hzp_units_fill(s->dev, &s->state_part[p], clear_unit, NULL));
    return HZP_OK;
}
