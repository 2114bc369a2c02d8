/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/plan/shape.h"

const struct hzp_plan_shape hzp_plan_sequential = {
    .nanos = 1, .weight = {1}, .order = HZP_ORDER_STRANDS};

const char *hzp_layer_stage_name(enum hzp_layer_stage stage)
{
    static const char *const name[HZP_STAGE_COUNT] = {"qkv", "attention", "rest", "exchange"};
    return stage < HZP_STAGE_COUNT ? name[stage] : "?";
}

/* What the stages join is possible. */
static int check_joined(const struct hzp_plan_shape *s, struct hzp_err_text *reterr)
{
    const uint8_t *joined = s->joined;
    for (int k = 0; k < HZP_STAGE_COUNT; k++)
        if (joined[k] >> (s->nanos - 1))
            return hzp_fail(reterr, HZP_EINVAL, "shape: %s joins nano-batches that are not there",
                            hzp_layer_stage_name((enum hzp_layer_stage)k));
    for (int32_t i = 0; i + 1 < s->nanos; i++) {
        bool divided =
            s->reduce[i] == HZP_REDUCE_SCATTERED || s->reduce[i + 1] == HZP_REDUCE_SCATTERED;
        int rest = joined[HZP_STAGE_REST] >> i & 1;
        if (divided && ((joined[HZP_STAGE_QKV] >> i & 1) != rest ||
                        (joined[HZP_STAGE_EXCHANGE] >> i & 1) != rest ||
                        (rest && s->reduce[i] != s->reduce[i + 1])))
            return hzp_fail(reterr, HZP_EINVAL,
                            "shape: ranks divide rows of nano-batch %d or %d, which not all "
                            "stages join, or not in one way",
                            i, i + 1);
    }
    return HZP_OK;
}

int hzp_plan_shape_check(const struct hzp_plan_shape *s, struct hzp_err_text *reterr)
{
    int64_t sum = 0;
    if (s->nanos < 1 || s->nanos > HZP_NANO_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "shape: %d nano-batches, 1 to %d are possible",
                        s->nanos, HZP_NANO_MAX);
    for (int32_t i = 0; i < s->nanos; i++) {
        if (s->weight[i] < 0)
            return hzp_fail(reterr, HZP_EINVAL, "shape: nano-batch %d has size %d", i,
                            s->weight[i]);
        sum += s->weight[i];
        for (int k = 0; k < HZP_KIND_COUNT; k++) {
            if (s->lane[i][k] >= HZP_LANE_COUNT)
                return hzp_fail(reterr, HZP_EINVAL, "shape: nano-batch %d names lane %d", i,
                                s->lane[i][k]);
            if (s->cores[i][k] < 0)
                return hzp_fail(reterr, HZP_EINVAL, "shape: nano-batch %d uses %d cores", i,
                                s->cores[i][k]);
        }
    }
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        if (s->train_lane[k] >= HZP_LANE_COUNT)
            return hzp_fail(reterr, HZP_EINVAL, "shape: training names lane %d", s->train_lane[k]);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (s->share[l] < 0)
            return hzp_fail(reterr, HZP_EINVAL, "shape: lane %s has a share of %d",
                            hzp_lane_name_text((enum hzp_lane_name)l), s->share[l]);
    if (s->ride < 0 || (s->ride && (s->nanos > 1 || hzp_plan_shape_beside(s))))
        return hzp_fail(reterr, HZP_EINVAL,
                        "shape: training rides in one nano-batch, and on serving's lanes");
    if (s->network_lane >= HZP_LANE_COUNT)
        return hzp_fail(reterr, HZP_EINVAL, "shape: collectives on lane %d", s->network_lane);
    for (int32_t i = 0; i < s->nanos; i++)
        if (s->reduce[i] >= HZP_REDUCE_COUNT)
            return hzp_fail(reterr, HZP_EINVAL, "shape: nano-batch %d adds up in way %d", i,
                            s->reduce[i]);
    if (sum <= 0 || s->order >= HZP_ORDER_COUNT)
        return hzp_fail(reterr, HZP_EINVAL, "shape: no rows, or no such order");
    return check_joined(s, reterr);
}

int32_t hzp_plan_shape_parts(const struct hzp_plan_shape *shape, enum hzp_layer_stage stage)
{
    return shape->nanos - __builtin_popcount(shape->joined[stage]);
}

void hzp_plan_shape_drop(struct hzp_plan_shape *shape)
{
    shape->nanos--;
    HZP_ASSERT(shape->nanos > 0);
    for (int k = 0; k < HZP_STAGE_COUNT; k++)
        shape->joined[k] &= (uint8_t)((1 << (shape->nanos - 1)) - 1);
}

void hzp_plan_shape_cuts(const struct hzp_plan_shape *s, int32_t rows, int32_t ranks,
                         int32_t ret[HZP_NANO_MAX + 1])
{
    int64_t sum = 0, at = 0;
    for (int32_t i = 0; i < s->nanos; i++)
        sum += s->weight[i];
    ret[0] = 0;
    for (int32_t i = 0; i < s->nanos; i++) {
        at += s->weight[i];
        ret[i + 1] = (int32_t)((int64_t)rows * at / sum);
    }
    for (int32_t i = 1; i < s->nanos && ranks > 1; i++)
        if (s->reduce[i - 1] == HZP_REDUCE_SCATTERED || s->reduce[i] == HZP_REDUCE_SCATTERED)
            ret[i] = HZP_MAX(ret[i] - ret[i] % ranks, ret[i - 1]);
}

uint32_t hzp_plan_shape_lanes(const struct hzp_plan_shape *shape)
{
    uint32_t lanes = shape && shape->network_lane ? 1u << shape->network_lane : 0;
    for (int k = 0; shape && k < HZP_KIND_COUNT; k++) {
        lanes |= 1u << shape->train_lane[k];
        for (int32_t i = 0; i < shape->nanos; i++)
            if (shape->weight[i] > 0)
                lanes |= 1u << shape->lane[i][k];
    }
    return lanes;
}

int64_t hzp_plan_shape_runs(const struct hzp_plan_shape *shape, int32_t layers)
{
    /* one layer, with rows quantized before products, and where the next begins; embedding and head
     * change lanes less often */
    static const enum hzp_kind layer[] = {HZP_KIND_ROWS,    HZP_KIND_PRODUCT, HZP_KIND_ROWS,
                                          HZP_KIND_DECODE,  HZP_KIND_ROWS,    HZP_KIND_PRODUCT,
                                          HZP_KIND_ROWS,    HZP_KIND_PRODUCT, HZP_KIND_ROWS,
                                          HZP_KIND_PRODUCT, HZP_KIND_ROWS};
    int64_t runs = 0;
    int borders = 0; /* stages where nano-batches that another lane computes as one meet */
    for (int k = 0; k < HZP_STAGE_COUNT; k++)
        borders += shape->joined[k] != shape->joined[(k + 1) % HZP_STAGE_COUNT] ? 1 : 0;
    for (int32_t i = 0; i < shape->nanos; i++) {
        int64_t changes = 0;
        for (int k = 1; k < HZP_COUNT(layer) && shape->weight[i] > 0; k++)
            changes += shape->lane[i][layer[k]] != shape->lane[i][layer[k - 1]];
        runs += 1 + (changes + borders) * (layers + 1);
    }
    return runs;
}

uint32_t hzp_plan_shape_serves(const struct hzp_plan_shape *shape)
{
    uint32_t lanes = 0;
    for (int32_t i = 0; i < shape->nanos; i++)
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            lanes |= 1u << shape->lane[i][k];
    return lanes;
}

uint32_t hzp_plan_shape_trains(const struct hzp_plan_shape *shape)
{
    uint32_t lanes = 0;
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        lanes |= 1u << shape->train_lane[k];
    return lanes;
}

bool hzp_plan_shape_beside(const struct hzp_plan_shape *shape)
{
    return hzp_plan_shape_trains(shape) & ~hzp_plan_shape_serves(shape);
}

void hzp_plan_for_training(struct hzp_plan *plan, const struct hzp_plan_shape *shape)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        plan->share[l] = shape->share[l];
    plan->lane_of = shape->train_lane;
    plan->cores_of = NULL;
    plan->network_lane = shape->network_lane;
    hzp_plan_after(plan, -1);
}
