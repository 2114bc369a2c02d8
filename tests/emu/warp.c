/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/warp.c - instructions that the lanes of a warp execute together: the last lane to
 * arrive does the work for all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/fp8.h"
#include "tests/emu/block.h"

typedef void together(struct emu_warp *warp, struct emu_fiber **lane);

/* Arrives at the instruction with this lane's operands; returns when all lanes of the mask have. */
static void meet(enum emu_together what, int detail, uint32_t mask, void *data, together *act,
                 const void *pc)
{
    struct emu_fiber *me = emu_now, *lane[EMU_LANES];
    struct emu_warp *warp = me->warp;
    if (!(mask >> me->lane & 1))
        emu_fault(HZP_EMU_WARP, pc, "lane %d is not in the mask %08x it names", me->lane, mask);
    if (warp->arrived == 0) {
        warp->what = what;
        warp->detail = detail;
        warp->mask = mask;
    } else if (warp->what != what || warp->detail != detail || warp->mask != mask) {
        emu_fault(HZP_EMU_WARP, pc,
                  "lanes of warp %d come to different instructions (masks %08x and "
                  "%08x)",
                  warp->index, warp->mask, mask);
    }
    me->data = data;
    warp->arrived |= 1u << me->lane;
    if (warp->arrived != warp->mask) {
        emu_wait(EMU_IN_WARP);
        return;
    }
    warp->arrived = 0;
    for (int i = 0; i < EMU_LANES; i++) {
        lane[i] = mask >> i & 1 ? &emu_block.fiber[warp->index * EMU_LANES + i] : NULL;
        if (lane[i])
            lane[i]->state = EMU_READY;
    }
    warp->ready |= mask;
    if (mask == ~0u)
        warp->met = ++emu_block.clock;
    act(warp, lane);
}

/* ---- shuffles and votes ---- */

struct shuffle {
    uint64_t value, result;
    int arg, width;
    const void *pc;
};

static void shuffle_act(struct emu_warp *warp, struct emu_fiber **lane)
{
    for (int i = 0; i < EMU_LANES; i++) {
        if (!lane[i])
            continue;
        struct shuffle *s = lane[i]->data;
        int first = i / s->width * s->width, from = i;
        switch ((enum hzp_emu_shuffle)warp->detail) {
        case HZP_EMU_IDX:
            from = first + (int)((unsigned)s->arg % (unsigned)s->width);
            break;
        case HZP_EMU_XOR:
            from = i ^ s->arg;
            break;
        case HZP_EMU_UP:
            from = i - s->arg < first ? i : i - s->arg;
            break;
        case HZP_EMU_DOWN:
            from = i + s->arg >= first + s->width ? i : i + s->arg;
            break;
        }
        if (from >= first + s->width)
            from = i;
        if (from < 0 || from >= EMU_LANES || !lane[from]) {
            emu_fault(HZP_EMU_WARP, s->pc, "lane %d takes a value of lane %d, which gives none", i,
                      from);
            return;
        }
        s->result = ((struct shuffle *)lane[from]->data)->value;
    }
}

uint64_t hzp_emu_shuffle(uint32_t mask, enum hzp_emu_shuffle how, uint64_t value, int arg,
                         int width)
{
    struct shuffle s = {value, 0, arg, width, __builtin_return_address(0)};
    meet(EMU_SHUFFLE, (int)how, mask, &s, shuffle_act, s.pc);
    return s.result;
}

struct vote {
    int64_t value;
    int64_t result;
};

static void ballot_act(struct emu_warp *warp, struct emu_fiber **lane)
{
    uint32_t votes = 0;
    for (int i = 0; i < EMU_LANES; i++)
        votes |= lane[i] && ((struct vote *)lane[i]->data)->value ? 1u << i : 0;
    for (int i = 0; i < EMU_LANES; i++)
        if (lane[i])
            ((struct vote *)lane[i]->data)->result = votes;
}

uint32_t hzp_emu_ballot(uint32_t mask, bool predicate)
{
    struct vote vote = {predicate, 0};
    meet(EMU_BALLOT, 0, mask, &vote, ballot_act, __builtin_return_address(0));
    return (uint32_t)vote.result;
}

static void reduce_act(struct emu_warp *warp, struct emu_fiber **lane)
{
    int64_t sum = 0;
    bool first = true;
    for (int i = 0; i < EMU_LANES; i++) {
        if (!lane[i])
            continue;
        int64_t x = ((struct vote *)lane[i]->data)->value;
        if (first) {
            sum = x;
            first = false;
            continue;
        }
        switch ((enum hzp_emu_reduce)warp->detail) {
        case HZP_EMU_ADD:
            sum += x;
            break;
        case HZP_EMU_MIN:
            sum = HZP_MIN(sum, x);
            break;
        case HZP_EMU_MAX:
            sum = HZP_MAX(sum, x);
            break;
        case HZP_EMU_AND:
            sum &= x;
            break;
        case HZP_EMU_OR:
            sum |= x;
            break;
        case HZP_EMU_EOR:
            sum ^= x;
            break;
        }
    }
    for (int i = 0; i < EMU_LANES; i++)
        if (lane[i])
            ((struct vote *)lane[i]->data)->result = sum;
}

int64_t hzp_emu_reduce(uint32_t mask, enum hzp_emu_reduce how, int64_t value)
{
    struct vote vote = {value, 0};
    meet(EMU_REDUCE, (int)how, mask, &vote, reduce_act, __builtin_return_address(0));
    return vote.result;
}

/* Orders whole warps only: a part of a warp would need a clock of its own. */
static void syncwarp_act(struct emu_warp *warp, struct emu_fiber **lane)
{
    int lanes = HZP_MIN((int)EMU_LANES, emu_block.threads - warp->index * EMU_LANES);
    if (warp->mask == (lanes == EMU_LANES ? ~0u : (1u << lanes) - 1))
        warp->ticked = ++emu_block.clock;
}

void hzp_emu_syncwarp(uint32_t mask)
{
    int lanes = HZP_MIN((int)EMU_LANES, emu_block.threads - emu_now->warp->index * EMU_LANES);
    if (mask == ~0u && lanes < EMU_LANES) /* lanes that do not exist in a partial warp */
        mask = (1u << lanes) - 1;
    meet(EMU_SYNCWARP, 0, mask, NULL, syncwarp_act, __builtin_return_address(0));
}

/* ---- the tensor cores ---- */

struct mma {
    float *d;
    const uint32_t *a, *b;
};

/* A bf16, or an F16: 5 bits of exponent with a bias of 15, 10 of mantissa. */
static float half_of(uint32_t both, int which, bool f16)
{
    uint16_t half = (uint16_t)(both >> (16 * which));
    if (!f16)
        return hzp_bf16_to_f32(half);
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    float x = exponent == 31 ? mantissa ? NAN : INFINITY
                             : ldexpf((float)(exponent ? mantissa + 1024 : mantissa),
                                      (exponent ? exponent : 1) - 25);
    return half & 0x8000 ? -x : x;
}

uint16_t hzp_emu_half(float x)
{
    uint32_t sign = signbit(x) ? 0x8000u : 0;
    float size = fabsf(x);
    if (isnan(x))
        return 0x7fff;
    if (size >= 65520)
        return (uint16_t)(sign | 0x7c00);
    int exponent = size < 0x1p-14f ? -14 : ilogbf(size);
    uint32_t mantissa = (uint32_t)nearbyintf(ldexpf(size, 10 - exponent));
    if (mantissa < 1024)
        return (uint16_t)(sign | mantissa);
    return (uint16_t)(sign | (((uint32_t)(exponent + 15) << 10) + mantissa - 1024));
}

/* PTX ISA, "Matrix Fragments for mma.m16n8k16": lane l, g = l / 4, q = l % 4. */
static void mma_act(struct emu_warp *warp, struct emu_fiber **lane)
{
    float a[16][16], b[16][8];
    for (int l = 0; l < EMU_LANES; l++) {
        const struct mma *m = lane[l]->data;
        int g = l / 4, q = l % 4;
        for (int i = 0; i < 4; i++)
            for (int h = 0; h < 2; h++)
                a[g + i % 2 * 8][2 * q + i / 2 * 8 + h] = half_of(m->a[i], h, warp->detail);
        for (int i = 0; i < 2; i++)
            for (int h = 0; h < 2; h++)
                b[2 * q + i * 8 + h][g] = half_of(m->b[i], h, warp->detail);
    }
    for (int r = 0; r < 16; r++) {
        float sum[8] = {0};
        for (int k = 0; k < 16; k++)
            for (int c = 0; c < 8; c++)
                sum[c] += a[r][k] * b[k][c];
        for (int c = 0; c < 8; c++) {
            const struct mma *m = lane[r % 8 * 4 + c / 2]->data;
            m->d[r / 8 * 2 + c % 2] += sum[c];
        }
    }
}

void hzp_emu_mma(float *d, const uint32_t *a, const uint32_t *b)
{
    struct mma m = {d, a, b};
    meet(EMU_MMA, 0, ~0u, &m, mma_act, __builtin_return_address(0));
}

void hzp_emu_mma_half(float *d, const uint32_t *a, const uint32_t *b)
{
    struct mma m = {d, a, b};
    meet(EMU_MMA, 1, ~0u, &m, mma_act, __builtin_return_address(0));
}

/* Each lane l holds row l / 4, columns 2 (l % 4) and the next, of an 8x8 matrix. */
static void transpose_act(struct emu_warp *warp, struct emu_fiber **lane)
{
    uint16_t m[8][8];
    for (int l = 0; l < EMU_LANES; l++)
        for (int i = 0; i < 2; i++)
            m[l / 4][l % 4 * 2 + i] = (uint16_t)(*(const uint32_t *)lane[l]->data >> (16 * i));
    for (int l = 0; l < EMU_LANES; l++)
        *(uint32_t *)lane[l]->data = m[l % 4 * 2][l / 4] | (uint32_t)m[l % 4 * 2 + 1][l / 4] << 16;
}

uint32_t hzp_emu_transpose(uint32_t x)
{
    meet(EMU_TRANSPOSE, 0, ~0u, &x, transpose_act, __builtin_return_address(0));
    return x;
}

bool hzp_emu_has_e4m3(void)
{
    static int has = -1;
    if (has < 0)
        has = !getenv("HZP_EMU_SM80");
    return has;
}

/* Converted through float: every e4m3 is a normal F16. */
static uint32_t f16_of(uint8_t code)
{
    uint32_t bits = hzp_f32_bits(hzp_e4m3_to_f32(code)), sign = bits >> 16 & 0x8000u;
    return bits << 1 ? sign | ((bits & 0x7fffffffu) - (112u << 23)) >> 13 : sign;
}

void hzp_emu_half_of_e4m3(uint32_t four, uint32_t *lo, uint32_t *hi)
{
    *lo = f16_of((uint8_t)four) | f16_of((uint8_t)(four >> 8)) << 16;
    *hi = f16_of((uint8_t)(four >> 16)) | f16_of((uint8_t)(four >> 24)) << 16;
}

struct load {
    uint32_t *ret, at;
    const void *pc;
};

/* Lane 8i + r gives the address of row r of the i-th 8x8 matrix.  Lane l receives, of each
 * matrix, row l / 4, columns 2 (l % 4) and the next; if transposed, the same of the transpose. */
static void load_act(struct emu_warp *warp, struct emu_fiber **lane)
{
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < EMU_LANES; l++) {
            struct load *mine = lane[l]->data;
            uint32_t word = 0;
            for (int h = 0; h < 2; h++) {
                int row = warp->detail ? l % 4 * 2 + h : l / 4;
                int col = warp->detail ? l / 4 : l % 4 * 2 + h;
                const struct load *from = lane[8 * i + row]->data;
                uint16_t half;
                if (from->at % 16) {
                    emu_fault(HZP_EMU_MISALIGNED, from->pc, "a matrix row at shared %u", from->at);
                    return;
                }
                emu_shared_touch_by(lane[l], from->at + 2 * (uint32_t)col, 2, from->pc);
                if (emu_faulted())
                    return;
                memcpy(&half, emu_shared_ptr(from->at + 2 * (uint32_t)col), 2);
                word |= (uint32_t)half << (16 * h);
            }
            mine->ret[i] = word;
        }
}

void hzp_emu_load_matrices(uint32_t *ret, uint32_t at, bool transposed)
{
    struct load load = {ret, at, __builtin_return_address(0)};
    meet(EMU_LOAD_MATRICES, transposed, ~0u, &load, load_act, load.pc);
}
