/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/dot_tmpl.h - stores four neighbouring elements of c, for products that fold their
 * sums.
 *
 * Only *_tmpl.c files include it.  Thread: any.
 */
#pragma once

#include "device/cpu/vec_tmpl.h"

INLINE v4 four_load(const void *p, size_t i, enum hzp_dtype type)
{
    v4h h;
    if (type == HZP_F32)
        return v4_load((const float *)p + i);
    memcpy(&h, (const uint16_t *)p + i, sizeof(h));
    return v4_of_bf16(h);
}

INLINE void four_store(void *p, size_t i, enum hzp_dtype type, v4 x)
{
    if (type == HZP_F32) {
        v4_store((float *)p + i, x);
        return;
    }
    v4h h = v4_to_bf16(x);
    memcpy((uint16_t *)p + i, &h, sizeof(h));
}

/* Stores c[m][n..n+left) from the finished sums. */
INLINE void dot_store(const struct hzp_matmul_args *a, int m, int n, int left, v4 sum)
{
    size_t size = a->c.type == HZP_F32 ? 4 : 2, bias_size = a->bias.type == HZP_F32 ? 4 : 2;
    char *c = (char *)hzp_cpu_row(&a->c, m) + (size_t)n * size, old[16], bias[16];

    if (a->scale_a) {
        float by[4] = {0};
        for (int j = 0; j < left; j++)
            by[j] = a->scale_b[n + j];
        sum = sum * v4_set(a->scale_a[m]) * v4_load(by);
    }
    if (left == 4) {
        if (a->bias.ptr)
            sum += four_load(a->bias.ptr, (size_t)n, a->bias.type);
        if (a->accumulate)
            sum += four_load(c, 0, a->c.type);
        four_store(c, 0, a->c.type, sum);
        return;
    }
    if (a->bias.ptr) {
        memcpy(bias, (const char *)a->bias.ptr + (size_t)n * bias_size, (size_t)left * bias_size);
        sum += four_load(bias, 0, a->bias.type);
    }
    if (a->accumulate) {
        memcpy(old, c, (size_t)left * size);
        sum += four_load(old, 0, a->c.type);
    }
    four_store(old, 0, a->c.type, sum);
    memcpy(c, old, (size_t)left * size);
}
