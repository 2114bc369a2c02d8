/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/layout.h"

#include "device/q8.h"
#include "weights/families.h"

/* The order of roles inside a unit: matrices, then vectors. */
static const enum hzp_role embed_roles[] = {HZP_EMBED};
static const enum hzp_role layer_roles[] = {HZP_QKV,       HZP_O,         HZP_GATE_UP,  HZP_DOWN,
                                            HZP_ATTN_NORM, HZP_MLP_NORM,  HZP_QKV_BIAS, HZP_Q_NORM,
                                            HZP_K_NORM,    HZP_ATTN_POST, HZP_MLP_POST, HZP_SINK};
static const enum hzp_role head_roles[] = {HZP_HEAD, HZP_FINAL_NORM};

static bool is_matrix(enum hzp_role role)
{
    return role <= HZP_DOWN || role == HZP_HEAD;
}

static int32_t ranks_of(const struct hzp_layout *l)
{
    return HZP_MAX(l->slice.ranks, 1);
}

/* Rows and columns of a role in a layer of this inner width; false: this model lacks the role. */
static bool role_shape(const struct hzp_layout *l, int32_t inner, enum hzp_role role,
                       int32_t *ret_rows, int32_t *ret_cols)
{
    const struct hzp_model_config *c = &l->config;
    int32_t vocab = c->vocab / ranks_of(l);
    int32_t q = c->heads.heads * c->heads.dim;
    int32_t kv = c->heads.kv_heads * c->heads.dim;
    bool full = c->qk_norm_full, norms = c->qk_norm || full, before = !c->no_norm_before;
    const struct {
        int32_t rows, cols; /* rows 0: the model lacks it */
    } shape[HZP_ROLE_COUNT] = {
        [HZP_EMBED] = {vocab, c->width},
        [HZP_QKV] = {q + 2 * kv, c->width},
        [HZP_O] = {c->width, q},
        [HZP_GATE_UP] = {2 * inner, c->width},
        [HZP_DOWN] = {c->width, inner},
        [HZP_ATTN_NORM] = {before, c->width},
        [HZP_MLP_NORM] = {before && !c->parallel, c->width},
        [HZP_QKV_BIAS] = {c->qkv_bias, q + 2 * kv},
        [HZP_Q_NORM] = {norms, full ? q : c->heads.dim},
        [HZP_K_NORM] = {norms, full ? kv : c->heads.dim},
        [HZP_FINAL_NORM] = {1, c->width},
        [HZP_HEAD] = {c->tied ? 0 : vocab, c->width},
        [HZP_ATTN_POST] = {c->norm_after, c->width},
        [HZP_MLP_POST] = {c->norm_after, c->width},
        [HZP_SINK] = {c->sinks, c->heads.heads},
    };
    *ret_rows = shape[role].rows;
    *ret_cols = shape[role].cols;
    return *ret_rows > 0;
}

/* Appends one unit with those of the roles that the model has. */
static void add_unit(struct hzp_layout *l, int32_t layer, int32_t inner, const enum hzp_role *role,
                     int roles)
{
    struct hzp_unit *unit = &l->unit[l->units];
    size_t at = 0;
    unit->before = l->elements;
    unit->first = l->tensors;
    for (int i = 0; i < roles; i++) {
        struct hzp_tensor *t = &l->tensor[l->tensors];
        if (!role_shape(l, inner, role[i], &t->rows, &t->cols))
            continue;
        t->role = role[i];
        t->layer = layer;
        t->unit = l->units;
        t->offset = at;
        at += HZP_ROUND_UP((size_t)t->rows * (size_t)t->cols, (size_t)HZP_UNIT_ALIGN);
        if (is_matrix(role[i]))
            unit->decayed = at;
        l->by_role[(size_t)(layer + 1) * HZP_ROLE_COUNT + (size_t)role[i]] = l->tensors;
        l->tensors++;
    }
    unit->tensors = l->tensors - unit->first;
    unit->elements = unit->room = at;
    l->elements += at;
    l->units++;
}

static void part_rows(const struct hzp_model_config *c, const struct hzp_tensor *t,
                      enum hzp_tensor_part part, struct hzp_disk_tensor *d)
{
    int32_t q = c->heads.heads * c->heads.dim, kv = c->heads.kv_heads * c->heads.dim;
    d->vector = !is_matrix(t->role);
    int32_t all = d->vector ? t->cols : t->rows, half = t->rows / 2;
    const struct {
        int32_t row0, rows;
    } at[] = {
        [HZP_PART_ALL] = {0, all},   [HZP_PART_Q] = {0, q},       [HZP_PART_K] = {q, kv},
        [HZP_PART_V] = {q + kv, kv}, [HZP_PART_GATE] = {0, half}, [HZP_PART_UP] = {half, half}};
    d->row0 = at[part].row0;
    d->rows = at[part].rows;
}

/* Where a slice's rows and columns lie in the tensor on disk. */
static void place_slice(const struct hzp_layout *l, struct hzp_disk_tensor *d)
{
    const struct hzp_tensor *t = &l->tensor[d->tensor];
    int32_t ranks = ranks_of(l);
    d->disk_rows = d->rows;
    d->disk_cols = d->vector ? 1 : t->cols;
    switch (t->role) {
    case HZP_EMBED:
    case HZP_HEAD:
    case HZP_QKV:
    case HZP_GATE_UP:
    case HZP_QKV_BIAS:
    case HZP_SINK:
        d->disk_rows *= ranks;
        d->disk_row0 = l->slice.rank * d->rows;
        break;
    case HZP_O:
    case HZP_DOWN:
        d->disk_cols *= ranks;
        d->disk_col0 = l->slice.rank * t->cols;
        break;
    default: /* every rank has all of it */
        break;
    }
}

/* Makes runs of one tensor in the file of those with one name: each begins behind the others. */
static void join_runs(struct hzp_layout *l)
{
    for (int32_t first = 0, end; first < l->disks; first = end) {
        int32_t rows = 0;
        for (end = first; end == first || hzp_layout_continues(l, end - 1); end++) {
            l->disk[end].disk_row0 += rows;
            rows += l->disk[end].disk_rows;
        }
        for (int32_t i = first; i < end; i++)
            l->disk[i].disk_rows = rows;
    }
}

static void add_disk_tensors(struct hzp_layout *l, const struct hzp_family *family)
{
    const struct hzp_model_config *c = &l->config;
    bool turns = c->neighbours || (c->rotary && c->rotary < c->heads.dim);
    l->disk = hzp_xcalloc((size_t)l->tensors * HZP_FAMILY_ROWS_MAX, sizeof(*l->disk));
    for (int32_t i = 0; i < l->tensors; i++) {
        const struct hzp_family_row *row[HZP_FAMILY_ROWS_MAX];
        int rows = hzp_family_rows(family, l->tensor[i].role, row);
        for (int j = 0; j < rows; j++) {
            struct hzp_disk_tensor *d = &l->disk[l->disks++];
            hzp_family_name(row[j], l->tensor[i].layer, d->name, sizeof(d->name));
            d->tensor = i;
            part_rows(c, &l->tensor[i], row[j]->part, d);
            place_slice(l, d);
            if (turns && (row[j]->part == HZP_PART_Q || row[j]->part == HZP_PART_K)) {
                d->rotary = c->rotary;
                d->dim = c->heads.dim;
                d->neighbours = c->neighbours;
            }
        }
    }
}

/* The layout of 8-bit moments, or of their scales.  A shard is whole blocks (HZP_BLOCK_ELEMENTS),
 * so shards of scales are cut where those of codes are. */
static void fit_q8(const struct hzp_layout *l, bool scales, struct hzp_layout **at)
{
    struct hzp_layout *to = *at;
    if (!to) {
        *at = to = hzp_xcalloc(1, sizeof(*to));
        to->unit = hzp_xcalloc((size_t)l->units, sizeof(*to->unit));
        to->config = l->config;
        to->units = l->units;
    }
    to->elements = 0;
    for (int32_t u = 0; u < l->units; u++) {
        struct hzp_unit unit = l->unit[u];
        size_t by = u && scales ? HZP_Q8_BLOCK : 1;
        bool none = !u && !scales;
        /* whole words of a checksum, whole vectors */
        unit.elements = none ? 0 : HZP_ROUND_UP(HZP_DIV_UP(unit.elements, by), (size_t)16);
        unit.room = none ? 0 : HZP_ROUND_UP(HZP_DIV_UP(unit.room, by), (size_t)16);
        unit.before = to->elements;
        unit.decayed = HZP_MIN(unit.decayed, unit.elements);
        to->elements += unit.elements;
        to->unit[u] = unit;
    }
}

static void fit_moments(struct hzp_layout *l)
{
    fit_q8(l, false, &l->codes);
    fit_q8(l, true, &l->scales);
}

static void make(const struct hzp_model_config *config, const int32_t *inner,
                 struct hzp_tensor_slice slice, struct hzp_layout *ret)
{
    const struct hzp_family *family = hzp_family_find(config->family);
    HZP_ASSERT(family && config->layers > 0);
    memset(ret, 0, sizeof(*ret));
    ret->config = *config;
    ret->slice = slice;
    ret->config.heads.heads /= ranks_of(ret);
    ret->config.heads.kv_heads /= ranks_of(ret);
    ret->config.inner /= ranks_of(ret);
    size_t layers = (size_t)config->layers;
    ret->tensor = hzp_xcalloc(layers * HZP_COUNT(layer_roles) + 3, sizeof(*ret->tensor));
    ret->unit = hzp_xcalloc(layers + 2, sizeof(*ret->unit));
    ret->by_role = hzp_xcalloc((layers + 1) * HZP_ROLE_COUNT, sizeof(*ret->by_role));
    for (size_t i = 0; i < (layers + 1) * HZP_ROLE_COUNT; i++)
        ret->by_role[i] = -1;
    add_unit(ret, -1, 0, embed_roles, HZP_COUNT(embed_roles));
    for (int32_t i = 0; i < config->layers; i++)
        add_unit(ret, i, inner ? inner[i] : ret->config.inner, layer_roles, HZP_COUNT(layer_roles));
    add_unit(ret, -1, 0, head_roles, HZP_COUNT(head_roles));
    add_disk_tensors(ret, family);
    join_runs(ret);
    fit_moments(ret);
}

void hzp_layout_make(const struct hzp_model_config *config, struct hzp_layout *ret)
{
    make(config, NULL, (struct hzp_tensor_slice){0, 1}, ret);
}

void hzp_layout_make_slice(const struct hzp_model_config *whole, struct hzp_tensor_slice slice,
                           struct hzp_layout *ret)
{
    HZP_ASSERT(slice.ranks >= 1 && slice.rank >= 0 && slice.rank < slice.ranks);
    make(whole, NULL, slice, ret);
}

void hzp_layout_make_inner(const struct hzp_model_config *config, const int32_t *inner,
                           struct hzp_layout *ret)
{
    make(config, inner, (struct hzp_tensor_slice){0, 1}, ret);
}

void hzp_layout_pad(struct hzp_layout *layout, size_t granule)
{
    for (int32_t u = 0; u < layout->units; u++)
        layout->unit[u].room = HZP_ROUND_UP(layout->unit[u].elements, granule);
    fit_moments(layout);
}

size_t hzp_layout_largest(const struct hzp_layout *layout)
{
    size_t largest = 0;
    for (int32_t u = 0; u < layout->units; u++)
        largest = HZP_MAX(largest, layout->unit[u].elements);
    return largest;
}

size_t hzp_layout_largest_room(const struct hzp_layout *layout)
{
    size_t largest = 0;
    for (int32_t u = 0; u < layout->units; u++)
        largest = HZP_MAX(largest, layout->unit[u].room);
    return largest;
}

void hzp_layout_free(struct hzp_layout *layout)
{
    free(layout->tensor);
    free(layout->unit);
    free(layout->disk);
    free(layout->by_role);
    if (layout->codes) {
        hzp_layout_free(layout->codes);
        hzp_layout_free(layout->scales);
    }
    free(layout->codes);
    free(layout->scales);
    memset(layout, 0, sizeof(*layout));
}

const struct hzp_tensor *hzp_layout_find(const struct hzp_layout *layout, enum hzp_role role,
                                         int32_t layer)
{
    if (role == HZP_HEAD && layout->config.tied)
        role = HZP_EMBED;
    bool of_layer = role != HZP_EMBED && role != HZP_HEAD && role != HZP_FINAL_NORM;
    HZP_ASSERT(!of_layer || (layer >= 0 && layer < layout->config.layers));
    size_t row = of_layer ? (size_t)layer + 1 : 0;
    int32_t at = layout->by_role[row * HZP_ROLE_COUNT + (size_t)role];
    return at < 0 ? NULL : &layout->tensor[at];
}

int32_t hzp_disk_row(const struct hzp_disk_tensor *d, int32_t row)
{
    if (!d->rotary)
        return row;
    int32_t half = d->dim / 2, turned = d->rotary / 2, j = row % d->dim, head = row - j;
    if (j < turned)
        return d->neighbours ? head + 2 * j : row;
    if (j >= half && j < half + turned)
        return head + (d->neighbours ? 2 * (j - half) + 1 : j - half + turned);
    return head + (j < half ? j + turned : j);
}

bool hzp_layout_continues(const struct hzp_layout *layout, int32_t disk)
{
    return disk + 1 < layout->disks &&
           !strcmp(layout->disk[disk].name, layout->disk[disk + 1].name);
}

int32_t hzp_layout_inner(const struct hzp_layout *layout, int32_t layer)
{
    return hzp_layout_find(layout, HZP_DOWN, layer)->cols;
}

int32_t hzp_layout_inner_max(const struct hzp_layout *layout)
{
    int32_t ret = 0;
    for (int32_t l = 0; l < layout->config.layers; l++) {
        int32_t inner = hzp_layout_inner(layout, l);
        ret = HZP_MAX(ret, inner);
    }
    return ret;
}
