/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sites/rule.h"

#include "device/philox.h"

/* --- Parts ------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int64_t part_begin(const struct hzp_site_parts *p, int32_t k)
{
    return p->blocks / p->parts * k + HZP_MIN(p->blocks % p->parts, (int64_t)k);
}

void hzp_site_parts_make(int64_t blocks, double share, uint64_t seed, struct hzp_site_parts *ret)
{
    double parts = ceil(1 / share - 1e-9);
    HZP_ASSERT(blocks > 0 && blocks <= UINT32_MAX && share > 0 && share <= 1);
    ret->blocks = blocks;
    ret->parts = (int32_t)HZP_MIN(parts, (double)HZP_MIN(blocks, (int64_t)INT32_MAX));
    ret->order = hzp_xmalloc((size_t)blocks * sizeof(*ret->order));
    for (int64_t i = 0; i < blocks; i++)
        ret->order[i] = (uint32_t)i;
    for (int64_t i = blocks - 1; i > 0; i--) {
        int64_t j = (int64_t)(hzp_mix64(seed += 0x9e3779b97f4a7c15u) % (uint64_t)(i + 1));
        uint32_t block = ret->order[i];
        ret->order[i] = ret->order[j];
        ret->order[j] = block;
    }
    for (int32_t k = 0; k < ret->parts; k++) {
        int64_t begin = part_begin(ret, k);
        qsort(ret->order + begin, (size_t)(part_begin(ret, k + 1) - begin), sizeof(*ret->order),
              compare);
    }
}

void hzp_site_parts_free(struct hzp_site_parts *parts)
{
    free(parts->order);
    parts->order = NULL;
}

const uint32_t *hzp_site_part(const struct hzp_site_parts *parts, int32_t k, int64_t *ret_count)
{
    int64_t begin = part_begin(parts, k);
    *ret_count = part_begin(parts, k + 1) - begin;
    return parts->order + begin;
}

/* --- Messages' values ------------------------------------------------------------------------- */

size_t hzp_site_block_bytes(enum hzp_site_coding coding)
{
    return coding == HZP_SITE_F32 ? HZP_SITE_BLOCK * sizeof(float)
                                  : sizeof(uint16_t) + HZP_SITE_BLOCK;
}

static float scale_of(uint16_t bits)
{
    return hzp_f32_from_bits((uint32_t)bits << 16);
}

/* Finite, also when they are rounded to BF16. */
static bool all_finite(const float *x)
{
    bool finite = true;
    for (int i = 0; i < HZP_SITE_BLOCK; i++)
        finite = finite && fabsf(x[i]) < 3.3e38f;
    return finite;
}

/* The smallest scale with which the largest value has a code; 0: all values count as 0. */
static uint16_t scale_for(float largest)
{
    const float least = 1e-30f; /* below it products would lose bits */
    if (!(largest >= least) || !isfinite(largest))
        return 0;
    uint32_t bits = hzp_f32_bits(largest / 127);
    return (uint16_t)((bits + 0xffffu) >> 16);
}

void hzp_site_encode(enum hzp_site_coding coding, const float *w, const float *agreed,
                     const float *error, void *data)
{
    if (coding == HZP_SITE_F32) {
        memcpy(data, w, HZP_SITE_BLOCK * sizeof(*w));
        return;
    }
    float x[HZP_SITE_BLOCK], largest = 0;
    int8_t code[HZP_SITE_BLOCK];
    for (int i = 0; i < HZP_SITE_BLOCK; i++) {
        x[i] = w[i] - agreed[i];
        x[i] += error[i];
        largest = fmaxf(largest, fabsf(x[i]));
    }
    uint16_t bits = all_finite(x) ? scale_for(largest) : 0;
    for (int i = 0; i < HZP_SITE_BLOCK; i++) {
        float q = bits ? rintf(x[i] / scale_of(bits)) : 0;
        code[i] = (int8_t)HZP_MIN(HZP_MAX(q, -127.0f), 127.0f);
    }
    memcpy(data, &bits, sizeof(bits));
    memcpy((char *)data + sizeof(bits), code, sizeof(code));
}

bool hzp_site_decode(enum hzp_site_coding coding, const void *data, const float *agreed, float *y)
{
    uint16_t bits;
    int8_t code[HZP_SITE_BLOCK];
    if (coding == HZP_SITE_F32) {
        memcpy(y, data, HZP_SITE_BLOCK * sizeof(*y));
        return all_finite(y);
    }
    memcpy(&bits, data, sizeof(bits));
    memcpy(code, (const char *)data + sizeof(bits), sizeof(code));
    for (int i = 0; i < HZP_SITE_BLOCK; i++) {
        float part = scale_of(bits) * (float)code[i]; /* exact */
        y[i] = agreed[i] + part;
    }
    return all_finite(y);
}

/* --- The average ------------------------------------------------------------------------------ */

void hzp_site_average(const float *const y[], const int64_t n[], int sites, size_t count,
                      float *ret)
{
    int64_t total = 0;
    for (int s = 0; s < sites; s++)
        total += n[s];
    HZP_ASSERT(total > 0);
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int s = 0; s < sites; s++) {
            double product = n[s] ? (double)n[s] * (double)y[s][i] : 0; /* exact */
            sum += product;
        }
        ret[i] = (float)(sum / (double)total);
    }
}

void hzp_site_keep_error(const float *w, const float *agreed, const float *y, size_t count,
                         float *error)
{
    for (size_t i = 0; i < count; i++) {
        float x = w[i] - agreed[i];
        x += error[i];
        float sent = y[i] - agreed[i];
        error[i] = x - sent;
    }
}

int64_t hzp_site_weight(int64_t samples, int32_t left)
{
    int32_t part = HZP_SITE_RAMP - HZP_MIN(HZP_MAX(left, 0), HZP_SITE_RAMP);
    return HZP_MIN(HZP_MAX(samples, (int64_t)0), (int64_t)HZP_SITE_WEIGHT) * part;
}

/* --- Its application -------------------------------------------------------------------------- */

float hzp_site_ema(int64_t rounds)
{
    const double pi = 3.14159265358979323846;
    double at = (double)HZP_MIN(rounds, (int64_t)HZP_SITE_EMA_ROUNDS) / HZP_SITE_EMA_ROUNDS;
    return (float)(0.5 + 0.49 * (1 - cos(pi * at)) / 2);
}

bool hzp_site_apply(float *w, const float *average, const float *sent, float *ema, float m)
{
    float next[HZP_SITE_BLOCK], next_ema[HZP_SITE_BLOCK];
    for (int i = 0; i < HZP_SITE_BLOCK; i++) {
        float own = w[i] - sent[i], others = average[i] - sent[i];
        if (ema) {
            float kept = m * ema[i], fresh = (1 - m) * own;
            next_ema[i] = kept + fresh;
            next[i] = average[i] + next_ema[i];
        } else {
            next[i] = w[i] == sent[i] ? average[i] : w[i] + others;
        }
    }
    if (!all_finite(next))
        return false;
    memcpy(w, next, sizeof(next));
    if (ema)
        memcpy(ema, next_ema, sizeof(next_ema));
    return true;
}

void hzp_site_load(const void *weights, const int16_t *residual, float *ret)
{
    const uint16_t *bf16 = weights;
    if (!residual) {
        memcpy(ret, weights, HZP_SITE_BLOCK * sizeof(*ret));
        return;
    }
    for (int i = 0; i < HZP_SITE_BLOCK; i++)
        ret[i] = hzp_master_join(bf16[i], residual[i]);
}

void hzp_site_store(const float *w, void *weights, int16_t *residual)
{
    uint16_t *bf16 = weights;
    if (!residual) {
        memcpy(weights, w, HZP_SITE_BLOCK * sizeof(*w));
        return;
    }
    for (int i = 0; i < HZP_SITE_BLOCK; i++)
        hzp_master_split(w[i], &bf16[i], &residual[i]);
}
