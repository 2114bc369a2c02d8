/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/layout.h"

#include "base/arena.h"
#include "weights/families.h"

#include <stdlib.h>
#include <string.h>

/* The order of roles inside a unit: matrices, then vectors. */
static const enum hzp_role embed_roles[] = {HZP_EMBED};
static const enum hzp_role layer_roles[] = {HZP_QKV,      HZP_O,         HZP_GATE_UP,
                                            HZP_DOWN,     HZP_ATTN_NORM, HZP_MLP_NORM,
                                            HZP_QKV_BIAS, HZP_Q_NORM,    HZP_K_NORM};
static const enum hzp_role head_roles[] = {HZP_HEAD, HZP_FINAL_NORM};

static bool is_matrix(enum hzp_role role)
{
    return role <= HZP_DOWN || role == HZP_HEAD;
}

/* Rows and columns of a role; false: this model has none. */
static bool role_shape(const struct hzp_model_config *c, enum hzp_role role, int32_t *ret_rows,
                       int32_t *ret_cols)
{
    int32_t q = c->heads.heads * c->heads.dim;
    int32_t qkv = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    int32_t rows = 1, cols = c->width;
    switch (role) {
    case HZP_EMBED:
        rows = c->vocab;
        break;
    case HZP_HEAD:
        rows = c->tied ? 0 : c->vocab;
        break;
    case HZP_QKV:
        rows = qkv;
        break;
    case HZP_O:
        rows = c->width;
        cols = q;
        break;
    case HZP_GATE_UP:
        rows = 2 * c->inner;
        break;
    case HZP_DOWN:
        rows = c->width;
        cols = c->inner;
        break;
    case HZP_QKV_BIAS:
        rows = c->qkv_bias;
        cols = qkv;
        break;
    case HZP_Q_NORM:
    case HZP_K_NORM:
        rows = c->qk_norm;
        cols = c->heads.dim;
        break;
    case HZP_ATTN_NORM:
    case HZP_MLP_NORM:
    case HZP_FINAL_NORM:
    case HZP_ROLE_COUNT:
        break;
    }
    *ret_rows = rows;
    *ret_cols = cols;
    return rows > 0;
}

/* Appends one unit with those of the roles that the model has. */
static void add_unit(struct hzp_layout *l, int32_t layer, const enum hzp_role *role, int roles)
{
    struct hzp_unit *unit = &l->unit[l->units];
    size_t at = unit->offset = l->elements;
    for (int i = 0; i < roles; i++) {
        struct hzp_tensor *t = &l->tensor[l->tensors];
        if (!role_shape(&l->config, role[i], &t->rows, &t->cols))
            continue;
        t->role = role[i];
        t->layer = layer;
        t->unit = l->units;
        t->offset = at;
        at += HZP_ROUND_UP((size_t)t->rows * (size_t)t->cols, (size_t)HZP_UNIT_ALIGN);
        if (is_matrix(role[i]))
            unit->decayed = at - unit->offset;
        l->tensors++;
    }
    unit->elements = at - unit->offset;
    l->elements = at;
    l->units++;
}

static void part_rows(const struct hzp_model_config *c, const struct hzp_tensor *t,
                      enum hzp_part part, struct hzp_disk_tensor *d)
{
    int32_t q = c->heads.heads * c->heads.dim, kv = c->heads.kv_heads * c->heads.dim;
    d->vector = !is_matrix(t->role);
    d->row0 = 0;
    d->rows = d->vector ? t->cols : t->rows;
    switch (part) {
    case HZP_PART_ALL:
        break;
    case HZP_PART_Q:
        d->rows = q;
        break;
    case HZP_PART_K:
        d->row0 = q;
        d->rows = kv;
        break;
    case HZP_PART_V:
        d->row0 = q + kv;
        d->rows = kv;
        break;
    case HZP_PART_GATE:
        d->rows = c->inner;
        break;
    case HZP_PART_UP:
        d->row0 = c->inner;
        d->rows = c->inner;
        break;
    }
}

static void add_disk_tensors(struct hzp_layout *l, const struct hzp_family *family)
{
    for (int32_t i = 0; i < l->tensors; i++)
        for (int32_t j = 0; j < family->rows; j++) {
            const struct hzp_family_row *row = &family->row[j];
            if (row->role != l->tensor[i].role)
                continue;
            struct hzp_disk_tensor *d = &l->disk[l->disks++];
            hzp_family_name(row, l->tensor[i].layer, d->name, sizeof(d->name));
            d->tensor = i;
            part_rows(&l->config, &l->tensor[i], row->part, d);
        }
}

void hzp_layout_make(const struct hzp_model_config *config, struct hzp_layout *ret)
{
    const struct hzp_family *family = hzp_family_find(config->family);
    HZP_ASSERT(family && config->layers > 0);
    memset(ret, 0, sizeof(*ret));
    ret->config = *config;
    size_t layers = (size_t)config->layers;
    ret->tensor = hzp_xcalloc(layers * HZP_COUNT(layer_roles) + 3, sizeof(*ret->tensor));
    ret->unit = hzp_xcalloc(layers + 2, sizeof(*ret->unit));
    ret->disk = hzp_xcalloc(layers * (size_t)family->rows + 3, sizeof(*ret->disk));
    add_unit(ret, -1, embed_roles, HZP_COUNT(embed_roles));
    for (int32_t i = 0; i < config->layers; i++)
        add_unit(ret, i, layer_roles, HZP_COUNT(layer_roles));
    add_unit(ret, -1, head_roles, HZP_COUNT(head_roles));
    add_disk_tensors(ret, family);
}

void hzp_layout_free(struct hzp_layout *layout)
{
    free(layout->tensor);
    free(layout->unit);
    free(layout->disk);
    memset(layout, 0, sizeof(*layout));
}

/* The tensors of unit u stand together, and every layer has as many: no search over layers. */
static const struct hzp_tensor *find_tensor(const struct hzp_layout *l, enum hzp_role role,
                                            int32_t layer)
{
    int32_t head = l->config.tied ? 1 : 2;
    int32_t each = (l->tensors - 1 - head) / l->config.layers;
    int32_t first = 0, end = 1;
    if (role == HZP_HEAD || role == HZP_FINAL_NORM) {
        first = l->tensors - head;
        end = l->tensors;
    } else if (role != HZP_EMBED) {
        HZP_ASSERT(layer >= 0 && layer < l->config.layers);
        first = 1 + layer * each;
        end = first + each;
    }
    for (int32_t i = first; i < end; i++)
        if (l->tensor[i].role == role)
            return &l->tensor[i];
    return NULL;
}

struct hzp_mat hzp_layout_mat(const struct hzp_layout *layout, void *base, enum hzp_dtype type,
                              enum hzp_role role, int32_t layer)
{
    if (role == HZP_HEAD && layout->config.tied)
        role = HZP_EMBED;
    struct hzp_mat mat = {.type = type};
    const struct hzp_tensor *t = find_tensor(layout, role, layer);
    if (!t)
        return mat;
    mat.ptr = (char *)base + t->offset * hzp_dtype_size(type);
    mat.rows = t->rows;
    mat.cols = mat.stride = t->cols;
    return mat;
}
