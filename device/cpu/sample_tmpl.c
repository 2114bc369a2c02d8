/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/sample.h"
#include "device/cpu/vec_tmpl.h"
#include "device/philox.h"

enum { SCAN_BLOCK = 1024 };

INLINE vf load_clean(const float *x, int left)
{
    return vkeep(vno_nan(vload(x, left)), -INFINITY, left);
}

/* One bit per lane. */
INLINE unsigned at_least(vf a, vf b)
{
    return (unsigned)vany_at_least(a, b);
}

static float block_top(const float *x, int n)
{
    vf top = vset(-INFINITY);
    EACH(c, n, top = vmax(load_clean(x + c, left), top););
    return vtop(top);
}

static void scan_top(const float *x, int n, float *ret_top, int *ret_at, double *ret_lse)
{
    float top = -INFINITY;
    int block = 0, at;
    double sum = 0;
    vf odd = vzero(); /* 0 times every logit: NaN if one is not finite */

    for (int c0 = 0; c0 < n; c0 += SCAN_BLOCK) {
        int width = HZP_MIN(SCAN_BLOCK, n - c0);
        float high = block_top(x + c0, width);
        vf acc = vzero();
        if (high > top) {
            sum *= exp((double)top - high);
            top = high;
            block = c0;
        }
        vf shift = vset(top == -INFINITY ? 0 : top);
        EACH(c, width, {
            acc = vadd(acc, vkeep(vexp(vsub(load_clean(x + c0 + c, left), shift)), 0, left));
            odd = vfma(vload(x + c0 + c, left), vzero(), odd);
        });
        sum += vsum(acc);
    }
    for (at = block; at < n && !(x[at] == top); at++)
        continue;
    *ret_at = at < n ? at : 0;
    *ret_top = top;
    *ret_lse = top + log(sum) + vsum(odd);
}

static int scan_above(const float *x, int n, float v)
{
    int count = 0;
    EACH(c, n, {
        unsigned above = (unsigned)vany_above(vload(x + c, left), vset(v));
        count += __builtin_popcount(above & ((1u << left) - 1));
    });
    return count;
}

static void scan_maxima(const float *x, int n, float *ret)
{
    for (int c = 0; c < n; c += HZP_MAXIMA_BLOCK)
        *ret++ = block_top(x + c, HZP_MIN(HZP_MAXIMA_BLOCK, n - c));
}

static int scan_extract(const float *x, int n, float v, struct hzp_candidate *ret)
{
    int count = 0;
    EACH(c, n, {
        unsigned mask = at_least(load_clean(x + c, left), vset(v)) & ((1u << left) - 1);
        for (; mask; mask &= mask - 1) {
            int i = c + __builtin_ctz(mask);
            float logit = isnan(x[i]) ? -INFINITY : x[i];
            ret[count++] = (struct hzp_candidate){logit, 0, i};
        }
    });
    return count;
}

static double scan_mass(const float *x, int n, float top, float temperature)
{
    double sum = 0;
    vf shift = vset(top), scale = vset(1.f / temperature);

    for (int c0 = 0; c0 < n; c0 += SCAN_BLOCK) {
        vf acc = vzero();
        EACH(c, HZP_MIN(SCAN_BLOCK, n - c0), {
            vf e = vexp(vmul(vsub(load_clean(x + c0 + c, left), shift), scale));
            acc = vadd(acc, vkeep(e, 0, left));
        });
        sum += vsum(acc);
    }
    return sum;
}

/* Word 0 of Philox4x32-10 for VL tokens from `token` on: a plain loop, which compilers
 * vectorize. */
INLINE void philox_words(uint64_t key, uint32_t token, uint32_t position, uint32_t choice,
                         uint32_t ret[VL])
{
    uint32_t c0[VL], c1[VL], c2[VL], c3[VL];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int i = 0; i < VL; i++) {
        c0[i] = token + (uint32_t)i;
        c1[i] = position;
        c2[i] = choice;
        c3[i] = 0;
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < VL; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(ret, c0, sizeof(c0));
}

/* The least logit that can still win, rounded down. */
INLINE float draw_floor(const struct hzp_drawn *drawn, float temperature)
{
    double least = (drawn->score - HZP_NOISE_MAX) * temperature;
    return (float)(least - 1e-3 - 1e-5 * fabs(least));
}

static void scan_draw(const float *x, int n, float top, const struct hzp_sample_row *row,
                      struct hzp_drawn *drawn)
{
    double t = row->temperature, scaled = top / t + 1e-4 * (1 + fabs(top / t));
    float least = draw_floor(drawn, row->temperature);
    uint32_t bound = hzp_draw_bound(drawn, scaled), word[VL];

    EACH(c, n, {
        unsigned mask = at_least(load_clean(x + c, left), vset(least)) & ((1u << left) - 1);
        if (mask)
            philox_words(row->seed, (uint32_t)c, row->position, row->choice, word);
        for (; mask; mask &= mask - 1) {
            int i = __builtin_ctz(mask);
            if (word[i] < bound)
                continue;
            double best = drawn->score;
            hzp_draw_try(row, x[c + i] / t, c + i, drawn);
            if (drawn->score > best) {
                least = draw_floor(drawn, row->temperature);
                bound = hzp_draw_bound(drawn, scaled);
            }
        }
    });
}

/* A plain loop, which compilers vectorize. */
static void scan_mask(const float *x, const uint32_t *mask, int n, float *ret)
{
    for (int c = 0; c < n; c += 32) {
        uint32_t word = mask[c / 32];
        int width = HZP_MIN(32, n - c);
        for (int i = 0; i < width; i++)
            ret[c + i] = word >> i & 1 ? x[c + i] : -INFINITY;
    }
}

static const struct hzp_scan scan = {scan_top,  scan_above, scan_maxima, scan_extract,
                                     scan_mass, scan_draw,  scan_mask};

static int cpu_sample(struct hzp_lane *lane, const void *args)
{
    return hzp_cpu_sample(lane, args, &scan);
}

void HZP_ISA_NAME(hzp_cpu_fill_sample)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_sample] = cpu_sample;
}
