/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/vec_base_tmpl.h - what device/cpu/vec_tmpl.h offers, in the compilers' vector types:
 * for x86-64 without AVX2, and for every other CPU.
 *
 * Vectors have four floats, which SSE2 and NEON hold in one register.  vfma rounds twice where the
 * CPU has no fused multiplication and addition.
 *
 * Only vec_tmpl.h includes it.  Thread: any.
 */
#pragma once

enum { VL = 4 };
typedef v4 vf;
typedef v4i vi;

/* All ones in the first `left` lanes. */
INLINE vi lanes(int left)
{
    return (vi){left, left, left, left} > (vi){0, 1, 2, 3};
}
/* a where the mask is all ones, else b. */
INLINE vf vpick(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}
INLINE vf vset(float x)
{
    return (vf){x, x, x, x};
}
INLINE vf vzero(void)
{
    return (vf){0, 0, 0, 0};
}
INLINE vf vadd(vf a, vf b)
{
    return a + b;
}
INLINE vf vsub(vf a, vf b)
{
    return a - b;
}
INLINE vf vmul(vf a, vf b)
{
    return a * b;
}
INLINE vf vdiv(vf a, vf b)
{
    return a / b;
}
INLINE vf vfma(vf a, vf b, vf c)
{
    return a * b + c;
}
INLINE vf vfnma(vf a, vf b, vf c)
{
    return c - a * b;
}
/* The second operand if either is NaN. */
INLINE vf vmax(vf a, vf b)
{
    return vpick(a > b, a, b);
}
INLINE vf vmin(vf a, vf b)
{
    return vpick(a < b, a, b);
}
INLINE vf vsqrt(vf a)
{
    return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])};
}
INLINE vf vload(const float *p, int left)
{
    vf a = vzero();
    if (left == VL)
        return v4_load(p);
    for (int i = 0; i < left; i++)
        a[i] = p[i];
    return a;
}
INLINE void vstore(float *p, vf a, int left)
{
    if (left == VL)
        v4_store(p, a);
    else
        for (int i = 0; i < left; i++)
            p[i] = a[i];
}
INLINE vf vload_bf16(const uint16_t *p, int left)
{
    v4h h = {0};
    if (left == VL)
        memcpy(&h, p, sizeof(h));
    else
        for (int i = 0; i < left; i++)
            h[i] = p[i];
    return v4_of_bf16(h);
}
INLINE void vstore_bf16(uint16_t *p, vf a, int left)
{
    v4h h = v4_to_bf16(a);
    if (left == VL)
        memcpy(p, &h, sizeof(h));
    else
        for (int i = 0; i < left; i++)
            p[i] = h[i];
}
/* Four lanes are left: nothing to fold. */
INLINE v4 vfold4(vf a)
{
    return a;
}
INLINE float vtop(vf a)
{
    a = vmax(a, V4_SHUFFLE(a, a, 2, 3, 2, 3));
    return a[0] > a[1] ? a[0] : a[1];
}
/* x in the first `left` lanes, else `other`. */
INLINE vf vkeep(vf x, float other, int left)
{
    return left == VL ? x : vpick(lanes(left), x, vset(other));
}
/* x in lanes where at >= from, else 0. */
INLINE vf vselect_from(vf x, vf at, float from)
{
    return (vf)((vi)x & (at >= vset(from)));
}
/* One bit per lane. */
INLINE int vbits(vi mask)
{
    return (mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8);
}
INLINE int vany_above(vf a, vf b)
{
    return vbits(a > b);
}
INLINE int vany_at_least(vf a, vf b)
{
    return vbits(a >= b);
}
/* NaN becomes minus infinity. */
INLINE vf vno_nan(vf a)
{
    return vpick(a == a, a, vset(-INFINITY));
}

/* For vexp: the range of x, whole numbers; 2^n y, and 0 or infinity where x is out of range. */
static const float exp_low = -87.33f, exp_high = 88.72f, to_int = 12582912.f; /* 1.5 * 2^23 */
INLINE vf vround(vf x)
{
    return x + vset(to_int) - vset(to_int); /* a sum with it has no fraction */
}
/* In two halves, because 2^n itself may not be a normal number. */
INLINE vf vscale(vf y, vf n, vf x)
{
    vi e = (vi)(n + vset(to_int)) - (vi)vset(to_int), half = e >> 1, rest = e - half;
    y *= (vf)((half + 127) << 23);
    y *= (vf)((rest + 127) << 23);
    y = vpick(x > vset(exp_high), vset(INFINITY), y);
    return (vf)((vi)y & ~(x < vset(exp_low)));
}
