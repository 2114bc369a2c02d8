/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/pipeline.h"

enum { TURNS_MIN = 3, TURNS_MAX = 21 };

struct hzp_plan_shape hzp_pipeline_cut(const struct hzp_plan_shape *shape)
{
    struct hzp_plan_shape cut = *shape;
    memset(cut.lane, HZP_LANE_COMPUTE, sizeof(cut.lane));
    memset(cut.share, 0, sizeof(cut.share));
    memset(cut.cores, 0, sizeof(cut.cores));
    cut.network_lane = HZP_LANE_COMPUTE;
    return cut;
}

struct hzp_plan_shape hzp_pipeline_usual(void)
{
    struct hzp_plan_shape usual = hzp_plan_sequential;
    usual.nanos = 2;
    usual.weight[0] = usual.weight[1] = 1;
    usual.order = HZP_ORDER_LAYERS;
    usual.network_lane = HZP_LANE_NETWORK;
    usual.reduce[0] = usual.reduce[1] = HZP_REDUCE_SCATTERED;
    return usual;
}

bool hzp_pipeline_overlaps(const struct hzp_plan_shape *shape)
{
    return shape->nanos > 1 && shape->network_lane != HZP_LANE_COMPUTE;
}

/* ---- measuring ---- */

struct turns {
    double ns[HZP_PLAN_COUNT][TURNS_MAX], gain[HZP_PLAN_COUNT][TURNS_MAX];
    double busy[HZP_PLAN_COUNT][HZP_BOUND_COPY][TURNS_MAX];
};

static int take_turn(const struct hzp_pipeline *p, struct hzp_crew *crew, struct turns *t,
                     int32_t at, struct hzp_err_text *reterr)
{
    const struct hzp_plan_shape shape[HZP_PLAN_COUNT] = {hzp_plan_sequential,
                                                         hzp_pipeline_cut(&p->shape), p->shape};
    for (int k = 0; k < HZP_PLAN_COUNT; k++) {
        HZP_TRY(
            hzp_crew_step(crew, &shape[k], p->decode, p->depth, p->prefill, &t->ns[k][at], reterr));
        for (int b = 0; b < HZP_BOUND_COPY; b++)
            t->busy[k][b][at] = hzp_crew_busy_ns(crew, (enum hzp_bound)b);
        t->gain[k][at] = t->ns[0][at] / HZP_MAX(t->ns[k][at], 1);
    }
    return HZP_OK;
}

void hzp_pipeline_limit(struct hzp_pipeline *p, const double sequential[HZP_BOUND_COPY],
                        const double cut[HZP_BOUND_COPY])
{
    const double *cores[] = {sequential, cut};
    double sum[2];
    for (int i = 0; i < 2; i++)
        sum[i] = cores[i][HZP_BOUND_COMPUTE] + cores[i][HZP_BOUND_MEMORY];
    const double *least = cores[sum[1] < sum[0]];
    p->compute_ns = least[HZP_BOUND_COMPUTE];
    p->memory_ns = least[HZP_BOUND_MEMORY];
    p->network_ns = HZP_MIN(sequential[HZP_BOUND_NETWORK], cut[HZP_BOUND_NETWORK]);
    p->limit_ns = HZP_MAX(p->compute_ns + p->memory_ns, p->network_ns);
    p->limit = p->network_ns > p->compute_ns + p->memory_ns ? HZP_BOUND_NETWORK
               : p->memory_ns > p->compute_ns               ? HZP_BOUND_MEMORY
                                                            : HZP_BOUND_COMPUTE;
}

static void conclude(struct hzp_pipeline *p, struct turns *t, int32_t turns)
{
    double busy[HZP_PLAN_COUNT][HZP_BOUND_COPY];
    p->turns = turns;
    for (int k = 0; k < HZP_PLAN_COUNT; k++) {
        p->ns[k] = hzp_median(t->ns[k], turns);
        p->gain[k] = hzp_median(t->gain[k], turns);
        for (int b = 0; b < HZP_BOUND_COPY; b++)
            busy[k][b] = hzp_median(t->busy[k][b], turns);
    }
    hzp_pipeline_limit(p, busy[HZP_PLAN_SEQUENTIAL], busy[HZP_PLAN_CUT]);
}

int hzp_pipeline_measure(struct hzp_pipeline *p, struct hzp_crew *crew, double seconds,
                         struct hzp_err_text *reterr)
{
    HZP_FREED struct turns *t = hzp_xcalloc(1, sizeof(*t));
    int32_t turns = 0;
    double spent = 0;
    int r = take_turn(p, crew, t, 0, reterr); /* not counted: creates primitives */
    while (r >= 0 && turns < TURNS_MAX && (turns < TURNS_MIN || spent < seconds * 1e9)) {
        r = take_turn(p, crew, t, turns, reterr);
        for (int k = 0; k < HZP_PLAN_COUNT; k++)
            spent += t->ns[k][turns];
        turns++;
    }
    if (r >= 0)
        conclude(p, t, turns);
    return r < 0 ? r : HZP_OK;
}

/* ---- printing ---- */

/* What a rank sends in layers for the rows that begin at row0, in a step of this shape. */
static double sent(struct hzp_rig *rig, const struct hzp_plan_shape *shape, int32_t from,
                   int32_t to)
{
    struct hzp_plan plan;
    double bytes = 0;
    hzp_plan_init(&plan);
    hzp_rig_build(rig, shape, 0, 0, &plan);
    for (int32_t i = 0; i < plan.items; i++)
        if (plan.item[i].layer >= 0 && plan.item[i].row0 >= from && plan.item[i].row0 < to)
            bytes += (double)hzp_op_wire(plan.item[i].op, plan.item[i].args);
    hzp_plan_fini(&plan);
    return bytes;
}

/* The first nano-batch behind those that the stage computes as one with nano-batch i. */
static int32_t part_end(const struct hzp_plan_shape *shape, enum hzp_layer_stage stage, int32_t i)
{
    while (i + 1 < shape->nanos && shape->joined[stage] >> i & 1)
        i++;
    return i + 1;
}

/* The exchanges of nano-batches [i, end), in one piece. */
static void print_exchange(const struct hzp_pipeline *p, struct hzp_rig *rig, int ranks, int32_t i,
                           int32_t end, const int32_t *cut, FILE *out)
{
    struct hzp_plan_shape other = p->shape;
    int32_t rows = cut[end] - cut[i];
    bool asked = p->shape.reduce[i] == HZP_REDUCE_SCATTERED, divided = asked && rows % ranks == 0;
    for (int32_t k = 0; k < other.nanos; k++) /* its cuts may differ */
        other.reduce[k] = divided ? HZP_REDUCE_ALL : HZP_REDUCE_SCATTERED;
    for (int k = 0; k < HZP_STAGE_COUNT; k++) /* a shape with divided rows has one cut */
        other.joined[k] = p->shape.joined[HZP_STAGE_EXCHANGE];
    if (rows == 0)
        return;
    fprintf(out, "  nano-batch%s %d", end - i > 1 ? "es" : "", i);
    if (end - i > 1)
        fprintf(out, " to %d", end - 1);
    fprintf(out, ": rows %d to %d, %s\n", cut[i], cut[end] - 1,
            divided ? "reduce-scatter, residual and norm of own rows, all-gather" : "all-reduce");
    int32_t all = cut[p->shape.nanos];
    double with = sent(rig, &p->shape, cut[i], cut[end]) * 1e-6;
    double without = sent(rig, &other, 0, all) * rows / all * 1e-6;
    if (rows % ranks)
        fprintf(out, "    because %d ranks do not divide %d rows; a rank sends %.2f MB\n", ranks,
                rows, with);
    else if (divided)
        fprintf(out,
                "    because a rank sends %.2f MB, and by all-reduce %.2f MB, and norms 1/%d of "
                "the rows\n",
                with, without, ranks);
    else
        fprintf(out,
                "    because one exchange, not two, follows each product: a rank sends %.2f MB, "
                "with divided rows %.2f MB\n",
                with, without);
}

/* How the stages are cut, where not all are cut alike. */
static void print_stages(const struct hzp_plan_shape *s, const int32_t *cut, FILE *out)
{
    static const char *const why[HZP_STAGE_COUNT] = {
        "a product of more rows reads its weights less often",
        "one attention of more rows divides better among the cores",
        "a product of more rows reads its weights less often",
        "one exchange of more rows waits for the other ranks less often"};
    uint8_t joined = 0;
    for (int k = 0; k < HZP_STAGE_COUNT; k++)
        joined |= s->joined[k];
    for (int k = 0; k < HZP_STAGE_COUNT && joined; k++) {
        enum hzp_layer_stage stage = (enum hzp_layer_stage)k;
        fprintf(out, "  %s, parts %d, rows", hzp_layer_stage_name(stage),
                hzp_plan_shape_parts(s, stage));
        for (int32_t i = 0, end; i < s->nanos; i = end) {
            end = part_end(s, stage, i);
            if (cut[i] < cut[end])
                fprintf(out, " %d-%d", cut[i], cut[end] - 1);
        }
        fprintf(out, "\n    because %s\n",
                s->joined[k] ? why[k] : "what follows can begin when the first part has ended");
    }
}

static void print_choices(const struct hzp_pipeline *p, struct hzp_rig *rig, int ranks, FILE *out)
{
    static const char *const order[] = {"one nano-batch after another", "layer by layer in turn",
                                        "in turns that end behind attention"};
    const struct hzp_plan_shape *s = &p->shape;
    int32_t cut[HZP_NANO_MAX + 1];
    hzp_plan_shape_cuts(s, p->decode + p->prefill, ranks, cut);
    for (int32_t i = 0, end; i < s->nanos; i = end) {
        end = part_end(s, HZP_STAGE_EXCHANGE, i);
        print_exchange(p, rig, ranks, i, end, cut, out);
    }
    print_stages(s, cut, out);
    if (s->nanos > 1)
        fprintf(out, "  order: %s\n", order[s->order]);
    if (hzp_pipeline_overlaps(s))
        fprintf(out, "  exchanges: on a lane of their own; turns are cut behind O and behind Down\n"
                     "    because one nano-batch's exchange then runs beside the next one's "
                     "products\n");
    else
        fprintf(out, "  exchanges: %s\n    because nothing else could run meanwhile\n",
                s->network_lane ? "on a lane of their own" : "between the products, on their lane");
}

void hzp_pipeline_print(const struct hzp_pipeline *p, struct hzp_rig *rig, int ranks, FILE *out)
{
    static const char *const name[] = {"one operation at a time", "nano-batches, no overlap",
                                       "this pipeline"};
    static const char *const resource[] = {"compute", "memory", "network"};
    int32_t rows = p->decode + p->prefill;
    fprintf(out, "pipeline on %d ranks, %d decode rows at %d, %d prompt rows\n", ranks, p->decode,
            p->depth, p->prefill);
    print_choices(p, rig, ranks, out);
    fprintf(out,
            "measured in turns on the ranks, medians of %d turns, %d layers\n%-26s %10s %10s %9s "
            "%12s\n",
            p->turns, rig->config.model->config->layers, "plan", "step ms", "rows/s", "gain",
            "of optimal");
    for (int k = 0; k < HZP_PLAN_COUNT; k++)
        fprintf(out, "%-26s %10.2f %10.0f %8.2fx %10.1f %%\n", name[k], p->ns[k] * 1e-6,
                rows / HZP_MAX(p->ns[k], 1) * 1e9, p->gain[k],
                100 * p->limit_ns / HZP_MAX(p->ns[k], 1));
    fprintf(out,
            "limited by %s: %.2f ms at least; alone compute takes %.2f ms, memory %.2f ms, network "
            "%.2f ms\n",
            resource[p->limit], p->limit_ns * 1e-6, p->compute_ns * 1e-6, p->memory_ns * 1e-6,
            p->network_ns * 1e-6);
}
