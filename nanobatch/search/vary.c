/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/search.h"

#include "device/philox.h"

enum { SCALE = 16 };

int32_t hzp_vary_draw(struct hzp_vary *v, int32_t n)
{
    return (int32_t)(hzp_mix64(v->seed + ++v->drawn * 0x9e3779b97f4a7c15u) % (uint64_t)n);
}

/* Rescales the weights to sixteenths, so that small changes are possible. */
static void rescale(struct hzp_plan_shape *shape)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < shape->nanos; i++)
        sum += shape->weight[i];
    for (int32_t i = 0; i < shape->nanos && sum > 0; i++)
        shape->weight[i] = (int32_t)HZP_MAX((int64_t)shape->weight[i] * SCALE / sum, 1);
}

static void move_rows(struct hzp_plan_shape *shape, int32_t from, int32_t to)
{
    rescale(shape);
    if (shape->weight[from] <= 1)
        return;
    shape->weight[from]--;
    shape->weight[to]++;
}

/* Adds a nano-batch like nano-batch i, or removes the last. */
static void add_or_drop(struct hzp_vary *v, struct hzp_plan_shape *shape, int32_t i)
{
    if (hzp_vary_draw(v, 2) && shape->nanos > 1) {
        hzp_plan_shape_drop(shape);
    } else if (shape->nanos < HZP_NANO_MAX && shape->nanos < v->rows) {
        shape->weight[shape->nanos] = HZP_MAX(shape->weight[i], 1);
        memcpy(shape->lane[shape->nanos], shape->lane[i], sizeof(shape->lane[i]));
        memcpy(shape->cores[shape->nanos], shape->cores[i], sizeof(shape->cores[i]));
        shape->reduce[shape->nanos] = shape->reduce[i];
        shape->nanos++;
    }
}

/* Joins two neighbouring nano-batches in a stage, or cuts them apart: in all stages that must agree
 * where ranks divide rows. */
static void join_or_cut(struct hzp_vary *v, struct hzp_plan_shape *shape)
{
    int stage = hzp_vary_draw(v, v->group ? HZP_STAGE_COUNT : HZP_STAGE_EXCHANGE);
    if (shape->nanos < 2)
        return;
    int32_t i = hzp_vary_draw(v, shape->nanos - 1);
    bool divided = shape->reduce[i] || shape->reduce[i + 1];
    for (int k = 0; k < HZP_STAGE_COUNT; k++)
        if (k == stage || (divided && stage != HZP_STAGE_ATTEND && k != HZP_STAGE_ATTEND))
            shape->joined[k] ^= (uint8_t)(1 << i);
}

/* Another number of cores for one kind of op of nano-batch i; with overlap its lane may have them
 * all. */
static void limit_cores(struct hzp_vary *v, struct hzp_plan_shape *shape, int32_t i)
{
    int kind = hzp_vary_draw(v, HZP_KIND_COUNT), lane = shape->lane[i][kind];
    if (v->overlap && shape->share[lane] && hzp_vary_draw(v, 2))
        shape->share[lane] = (int16_t)v->overlap;
    shape->cores[i][kind] =
        (int16_t)(shape->share[lane] > 1 ? hzp_vary_draw(v, shape->share[lane]) : 0);
}

bool hzp_vary_shared(const struct hzp_vary *v, const struct hzp_plan_shape *shape,
                     enum hzp_kind kind, struct hzp_plan_shape *ret)
{
    int lanes = 0;
    *ret = *shape;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        lanes += shape->share[l] > 0 && shape->share[l] < v->overlap;
    if (lanes < 2)
        return false;
    for (int32_t i = 0; i < shape->nanos; i++)
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            ret->cores[i][k] = k == (int)kind ? 0 : shape->share[shape->lane[i][k]];
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (shape->share[l])
            ret->share[l] = (int16_t)v->overlap;
    return true;
}

void hzp_vary_change(struct hzp_vary *v, struct hzp_plan_shape *shape)
{
    static const uint8_t lanes[] = {HZP_LANE_COMPUTE, HZP_LANE_MEMORY, HZP_LANE_TRAIN};
    int32_t i = hzp_vary_draw(v, shape->nanos), k = hzp_vary_draw(v, shape->nanos);
    int a = lanes[hzp_vary_draw(v, 2 + v->trains)], b = lanes[hzp_vary_draw(v, 2 + v->trains)];
    switch (hzp_vary_draw(v, v->group ? 10 : 8)) {
    case 0:
        move_rows(shape, i, k);
        break;
    case 1:
        shape->order = (uint8_t)hzp_vary_draw(v, HZP_ORDER_COUNT);
        break;
    case 2: /* move one kind of op of one nano-batch to another lane */
        shape->lane[i][hzp_vary_draw(v, HZP_KIND_COUNT)] = (uint8_t)a;
        break;
    case 3: /* move cores (SMs) from one lane to another */
        if (shape->share[a] > 1) {
            shape->share[a]--;
            shape->share[b]++;
        }
        break;
    case 4:
        add_or_drop(v, shape, i);
        break;
    case 5:
        join_or_cut(v, shape);
        break;
    case 6:
        limit_cores(v, shape, i);
        break;
    case 8: /* what ranks exchange on the lane of rows, or on its own */
        shape->network_lane = hzp_vary_draw(v, 2) ? HZP_LANE_NETWORK : HZP_LANE_COMPUTE;
        break;
    case 9:
        shape->reduce[i] ^= HZP_REDUCE_ALL ^ HZP_REDUCE_SCATTERED;
        break;
    default:
        if (v->trains)
            shape->train_lane[hzp_vary_draw(v, HZP_KIND_COUNT)] = (uint8_t)a;
    }
}

int hzp_vary_cuts(const struct hzp_vary *v, const struct hzp_plan_shape *shape,
                  struct hzp_plan_shape ret[HZP_VARY_CUTS])
{
    /* the nano-batches that each stage joins: none, pairs of them, or all */
    enum { NONE, PAIRS, ALL };
    static const uint8_t cuts[HZP_VARY_CUTS][HZP_STAGE_COUNT] = {
        {[HZP_STAGE_ATTEND] = ALL},
        {[HZP_STAGE_ATTEND] = PAIRS},
        {[HZP_STAGE_REST] = PAIRS, [HZP_STAGE_EXCHANGE] = PAIRS}, /* NanoFlow's pipeline */
        {[HZP_STAGE_REST] = ALL, [HZP_STAGE_EXCHANGE] = ALL},
        {[HZP_STAGE_QKV] = PAIRS, [HZP_STAGE_REST] = PAIRS, [HZP_STAGE_EXCHANGE] = PAIRS},
        {[HZP_STAGE_EXCHANGE] = ALL},
    };
    int count = 0;
    for (int c = 0; c < HZP_VARY_CUTS && shape->nanos > 1; c++) {
        int all = (1 << (shape->nanos - 1)) - 1;
        ret[count] = *shape;
        for (int k = 0; k < HZP_STAGE_COUNT; k++)
            ret[count].joined[k] = (uint8_t)(cuts[c][k] == ALL     ? all
                                             : cuts[c][k] == PAIRS ? all & 0x55
                                                                   : 0);
        bool exchanges = c != 5 || v->group;
        count += exchanges && hzp_plan_shape_check(&ret[count], NULL) >= 0;
    }
    return count;
}
