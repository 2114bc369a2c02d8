/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/ref.h - shared by the files of the reference: element access independent of type.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"
#include "device/fp8.h"

/* Element (r, c) of an F32, BF16 or E4M3 matrix. */
/* An op may write one type over another (xent: BF16 over F32). */
typedef float __attribute__((may_alias)) ref_f32;
typedef uint16_t __attribute__((may_alias)) ref_half;

static inline float ref_get(const struct hzp_mat *m, int32_t r, int32_t c)
{
    size_t i = (size_t)r * (size_t)m->stride + (size_t)c;
    if (m->type == HZP_E4M3)
        return hzp_e4m3_to_f32(((const uint8_t *)m->ptr)[i]);
    return m->type == HZP_BF16 ? hzp_bf16_to_f32(((const ref_half *)m->ptr)[i])
                               : ((const ref_f32 *)m->ptr)[i];
}

static inline void ref_put(const struct hzp_mat *m, int32_t r, int32_t c, double value)
{
    size_t i = (size_t)r * (size_t)m->stride + (size_t)c;
    if (m->type == HZP_BF16)
        ((ref_half *)m->ptr)[i] = hzp_bf16_from_f32((float)value);
    else
        ((ref_f32 *)m->ptr)[i] = (float)value;
}

static inline void ref_add(const struct hzp_mat *m, int32_t r, int32_t c, double value)
{
    ref_put(m, r, c, (double)ref_get(m, r, c) + value);
}

/* The mean of row r, which a centred norm subtracts. */
static inline double ref_centre(const struct hzp_mat *x, int32_t r, bool centred)
{
    double sum = 0;
    for (int32_t c = 0; centred && c < x->cols; c++)
        sum += ref_get(x, r, c);
    return sum / HZP_MAX(x->cols, 1);
}

/* A norm's weight of column c. */
static inline double ref_weight(const struct hzp_mat *w, int32_t c, bool plus_one)
{
    return (plus_one ? 1.0 : 0.0) + ref_get(w, 0, c);
}

static inline void *ref_at(const struct hzp_mat *m, int32_t r)
{
    return (char *)m->ptr + (size_t)r * (size_t)m->stride * hzp_dtype_size(m->type);
}

/* attn.c, for rope */
void hzp_ref_append(const struct hzp_rope_args *args);

/* dense.c: quantizes elements c0 .. c0+count-1 of row r, as a row of its own. */
void hzp_ref_quantize_row(const struct hzp_mat *x, int32_t r, int32_t c0, int32_t count,
                          uint8_t *code, float *ret_scale);

void hzp_ref_fill_dense(hzp_op_fn *op[HZP_OP_COUNT]);
void hzp_ref_fill_attn(hzp_op_fn *op[HZP_OP_COUNT]);
void hzp_ref_fill_sample(hzp_op_fn *op[HZP_OP_COUNT]);
void hzp_ref_fill_grad(hzp_op_fn *op[HZP_OP_COUNT]);
void hzp_ref_fill_collective(hzp_op_fn *op[HZP_OP_COUNT]);
void hzp_ref_fill_update(hzp_op_fn *op[HZP_OP_COUNT]);
