/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/convert.h"

#include "device/bf16.h"

#include <math.h>
#include <string.h>

bool hzp_convert_knows(enum hzp_disk_type from)
{
    return from == HZP_DISK_F64 || from == HZP_DISK_F32 || from == HZP_DISK_F16 ||
           from == HZP_DISK_BF16;
}

/* IEEE half precision: 1 sign, 5 exponent, 10 fraction bits; exact in F32. */
static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu, rest = h & 0x3ffu;
    if (exponent == 0) {
        float small = (float)rest * 0x1p-24f; /* subnormal: rest * 2^-24 */
        return sign ? -small : small;
    }
    if (exponent == 31)
        return hzp_f32_from_bits(sign | 0x7f800000u | rest << 13);
    return hzp_f32_from_bits(sign | (exponent + 112) << 23 | rest << 13);
}

/* Rounding twice (F64 to F32 to BF16) can go wrong at ties. Rounding to odd first avoids that: the
 * last bit records that something was cut off. */
static float f32_to_odd(double x)
{
    float f = (float)x;
    uint32_t bits = hzp_f32_bits(f);
    if ((double)f == x || isnan(x))
        return f;
    if (fabs((double)f) > fabs(x))
        bits--;
    return hzp_f32_from_bits(bits | 1);
}

/* Element i of unaligned memory. */
static uint16_t load16(const void *x, size_t i)
{
    uint16_t value;
    memcpy(&value, (const char *)x + i * sizeof(value), sizeof(value));
    return value;
}

static float load32(const void *x, size_t i)
{
    float value;
    memcpy(&value, (const char *)x + i * sizeof(value), sizeof(value));
    return value;
}

static double load64(const void *x, size_t i)
{
    double value;
    memcpy(&value, (const char *)x + i * sizeof(value), sizeof(value));
    return value;
}

static void to_f32(enum hzp_disk_type from, const void *x, float *y, size_t n)
{
    if (from == HZP_DISK_F64)
        for (size_t i = 0; i < n; i++)
            y[i] = (float)load64(x, i);
    else if (from == HZP_DISK_F16)
        for (size_t i = 0; i < n; i++)
            y[i] = from_f16(load16(x, i));
    else
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_to_f32(load16(x, i));
}

static void to_bf16(enum hzp_disk_type from, const void *x, uint16_t *y, size_t n)
{
    if (from == HZP_DISK_F64)
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_from_f32(f32_to_odd(load64(x, i)));
    else if (from == HZP_DISK_F16)
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_from_f32(from_f16(load16(x, i)));
    else
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_from_f32(load32(x, i));
}

void hzp_convert(enum hzp_disk_type from, const void *x, enum hzp_dtype to, void *y, size_t n)
{
    HZP_ASSERT(hzp_convert_knows(from) && (to == HZP_F32 || to == HZP_BF16));
    if ((from == HZP_DISK_F32 && to == HZP_F32) || (from == HZP_DISK_BF16 && to == HZP_BF16))
        memcpy(y, x, n * (to == HZP_F32 ? sizeof(float) : sizeof(uint16_t)));
    else if (to == HZP_F32)
        to_f32(from, x, y, n);
    else
        to_bf16(from, x, y, n);
}

/* A number is NaN or infinite if all bits of its exponent are set. Blocks of a fixed length without
 * an early exit compile to vector code. */
enum { BLOCK = 256 };

static bool block_finite_f32(const uint32_t *bits)
{
    uint32_t bad = 0;
    for (int i = 0; i < BLOCK; i++)
        bad |= (bits[i] & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

static bool block_finite_bf16(const uint16_t *bits)
{
    uint16_t bad = 0;
    for (int i = 0; i < BLOCK; i++)
        bad |= (bits[i] & 0x7f80u) == 0x7f80u;
    return !bad;
}

size_t hzp_first_nonfinite(enum hzp_dtype type, const void *y, size_t n)
{
    HZP_ASSERT(type == HZP_F32 || type == HZP_BF16);
    const uint32_t *wide = y;
    const uint16_t *narrow = y;
    size_t i = 0;
    while (i + BLOCK <= n &&
           (type == HZP_F32 ? block_finite_f32(wide + i) : block_finite_bf16(narrow + i)))
        i += BLOCK;
    while (i < n && (type == HZP_F32 ? (wide[i] & 0x7f800000u) != 0x7f800000u
                                     : (narrow[i] & 0x7f80u) != 0x7f80u))
        i++;
    return i;
}
