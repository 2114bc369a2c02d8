/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/tensor_parallel.h"

#include "base/arena.h"
#include "nanobatch/search/events.h"

#include <stdlib.h>
#include <string.h>

const struct hzp_tp_rates hzp_tp_a100 = {.flops = 312e12,
                                         .memory = 2.0e12,
                                         .link = 300e9,
                                         .products = 0.895,
                                         .prompts = 0.22,
                                         .reads = 0.883,
                                         .sends = 0.743,
                                         .fixed_ns = 36e3};

/* In the order in which rows pass through them. */
enum stage {
    QKV,
    READ,
    PROMPT,
    O,
    SUM_O,
    NORM_O,
    GATHER_O,
    UP,
    ACT,
    DOWN,
    SUM_D,
    NORM_D,
    GATHER_D,
    STAGES
};
enum { LAYERS = 8, TILE = 128, BYTES = 2 };
enum { NODES_MAX = LAYERS * (3 * HZP_TP_ATTN_NANOS + (STAGES - 3) * HZP_TP_NANOS) };
enum { WAITS_MAX = NODES_MAX * 2 * HZP_TP_ATTN_NANOS };

struct node {
    int32_t begin, end; /* rows */
    int32_t layer, key; /* key: nodes that can be issued are in this order */
    enum stage stage;
    double alone_ns;
    float share;
    int32_t wait0, waits, issued; /* issued: its number, -1: not yet */
};

struct pipeline {
    const struct hzp_tp_rates *rates;
    const struct hzp_tp_step *step;
    const struct hzp_tp_shape *shape;
    struct node node[NODES_MAX];
    int32_t wait[WAITS_MAX]; /* nodes */
    int32_t nodes, waits;
    int32_t of[NODES_MAX]; /* the node of each task */
    struct hzp_task task[NODES_MAX];
    int32_t task_wait[WAITS_MAX];
    double begin[NODES_MAX], end[NODES_MAX];
    int32_t order[NODES_MAX];
};

static int32_t rows_of(const struct hzp_tp_step *step)
{
    return step->decode + step->prefill;
}

/* ---- how long ---- */

static double product_ns(const struct pipeline *p, double rows, double in, double out)
{
    const struct hzp_tp_rates *r = p->rates;
    double weights = in * out / p->step->gpus;
    double compute = 2 * rows * weights / (r->flops * r->products);
    return 1e9 * HZP_MAX(compute, weights * BYTES / (r->memory * r->reads));
}

static double rows_ns(const struct pipeline *p, double bytes)
{
    return 1e9 * bytes / (p->rates->memory * p->rates->reads);
}

/* Moves 1 / gpus of the rows to each of the others. */
static double network_ns(const struct pipeline *p, double rows)
{
    double gpus = p->step->gpus, bytes = rows * p->step->model->width * BYTES;
    return 1e9 * (gpus - 1) / gpus * bytes / (p->rates->link * p->rates->sends);
}

static double work_ns(const struct pipeline *p, enum stage stage, int32_t begin, int32_t end,
                      bool gathers)
{
    const struct hzp_model_config *c = p->step->model;
    double rows = end - begin, gpus = p->step->gpus, depth = p->step->depth;
    double heads = c->heads.heads, dim = c->heads.dim, kv = c->heads.kv_heads * dim;
    double norm_rows = gathers ? rows / gpus : rows;
    switch (stage) {
    case QKV:
        return product_ns(p, rows, c->width, heads * dim + 2 * kv);
    case READ: /* keys and values of the rows before */
        return rows_ns(p, rows * depth * 2 * kv * BYTES / gpus);
    case PROMPT: /* each row sees half of its prompt */
        return 1e9 * 4 * rows * p->step->prefill / 2 * heads * dim / gpus /
               (p->rates->flops * p->rates->prompts);
    case O:
        return product_ns(p, rows, heads * dim, c->width);
    case UP:
        return product_ns(p, rows, c->width, 2.0 * c->inner);
    case ACT:
        return rows_ns(p, rows * 3 * c->inner / gpus * BYTES);
    case DOWN:
        return product_ns(p, rows, c->inner, c->width);
    case SUM_O:
    case SUM_D: /* an all-reduce is a reduce-scatter and an all-gather */
        return network_ns(p, rows) * (gathers ? 1 : 2);
    case GATHER_O:
    case GATHER_D:
        return network_ns(p, rows);
    default:
        return rows_ns(p, norm_rows * 4 * c->width * BYTES);
    }
}

static bool sends(enum stage stage)
{
    return stage == SUM_O || stage == SUM_D || stage == GATHER_O || stage == GATHER_D;
}

/* What so large a share of the device yields of the rate alone, by the published profile. */
static double yield(const struct hzp_tp_rates *rates, bool network, double share)
{
    static const double profile[2][2][11] = {
        {{0, .25, .40, .50, .60, .70, .80, .85, .90, .95, 1},
         {0, .40, .60, .70, .80, .90, .92, .94, .96, .98, 1}},
        {{0, .20, .30, .39, .48, .575, .67, .76, .85, .95, 1},
         {0, .30, .50, .567, .633, .70, .767, .833, .90, 1, 1}}};
    const double *of = profile[rates->table3][network];
    double at = HZP_MIN(HZP_MAX(share, 0), 1) * 10;
    int k = HZP_MIN((int)at, 9);
    return of[k] + (at - k) * (of[k + 1] - of[k]);
}

/* ---- the nodes ---- */

/* Waits for the nodes of a stage of the layer whose rows meet [begin, end). */
static void wait_for(struct pipeline *p, struct node *n, int32_t layer, enum stage stage,
                     int32_t begin, int32_t end)
{
    for (int32_t i = 0; i < p->nodes; i++) {
        const struct node *m = &p->node[i];
        if (m->layer == layer && m->stage == stage && m->begin < end && m->end > begin) {
            HZP_ASSERT(p->waits < WAITS_MAX);
            p->wait[p->waits++] = i;
            n->waits++;
        }
    }
}

static void wait_for_stage_before(struct pipeline *p, struct node *n, bool gathers)
{
    int32_t b = n->begin, e = n->end, l = n->layer;
    switch (n->stage) {
    case QKV: /* of nano-batches that gather, and of those that do not */
        if (l > 0) {
            wait_for(p, n, l - 1, GATHER_D, b, e);
            wait_for(p, n, l - 1, NORM_D, b, e);
        }
        break;
    case PROMPT: /* all rows of the prompt before */
        wait_for(p, n, l, QKV, p->step->decode, e);
        break;
    case O:
        wait_for(p, n, l, READ, b, e);
        wait_for(p, n, l, PROMPT, b, e);
        break;
    case READ:
        wait_for(p, n, l, QKV, b, e);
        break;
    case UP:
        wait_for(p, n, l, gathers ? GATHER_O : NORM_O, b, e);
        break;
    default:
        wait_for(p, n, l, n->stage - 1, b, e);
    }
}

/* nano: of the shape's cuts, by which it is issued and that says how it is summed. */
static void add_node(struct pipeline *p, int32_t layer, enum stage stage, int32_t begin,
                     int32_t end, int32_t nano, float share)
{
    const struct hzp_tp_shape *s = p->shape;
    bool gathers = s->gathers[nano];
    if (begin >= end)
        return;
    HZP_ASSERT(p->nodes < NODES_MAX);
    struct node *n = &p->node[p->nodes];
    *n = (struct node){.begin = begin,
                       .end = end,
                       .layer = layer,
                       .key = layer * (int32_t)STAGES + (int32_t)stage + s->lag * nano,
                       .stage = stage,
                       .alone_ns = p->rates->fixed_ns + work_ns(p, stage, begin, end, gathers),
                       .share = share,
                       .wait0 = p->waits,
                       .issued = -1};
    wait_for_stage_before(p, n, gathers);
    p->nodes++;
}

static int32_t nano_of(const struct hzp_tp_shape *s, int32_t row)
{
    int32_t i = 0;
    while (i < s->nanos - 1 && row >= s->end[i])
        i++;
    return i;
}

static void add_layer(struct pipeline *p, int32_t layer)
{
    const struct hzp_tp_shape *s = p->shape;
    int32_t decode = p->step->decode;
    for (enum stage stage = QKV; stage <= PROMPT; stage++)
        for (int32_t i = 0; i < s->attn_nanos; i++) {
            int32_t begin = i ? s->attn_end[i - 1] : 0, end = s->attn_end[i];
            int32_t nano = nano_of(s, begin);
            if (stage == READ)
                end = HZP_MIN(end, decode);
            else if (stage == PROMPT)
                begin = HZP_MAX(begin, decode);
            add_node(p, layer, stage, begin, end, nano, s->read_share[i]);
        }
    for (enum stage stage = O; stage < STAGES; stage++)
        for (int32_t i = 0; i < s->nanos; i++) {
            bool gather = stage == GATHER_O || stage == GATHER_D;
            if ((gather && !s->gathers[i]) || (sends(stage) && p->step->gpus == 1))
                continue;
            add_node(p, layer, stage, i ? s->end[i - 1] : 0, s->end[i], i, s->send_share[i]);
        }
}

/* ---- the order ---- */

static bool can_issue(const struct pipeline *p, const struct node *n)
{
    for (int32_t k = 0; k < n->waits; k++)
        if (p->node[p->wait[n->wait0 + k]].issued < 0)
            return false;
    return n->issued < 0;
}

static enum hzp_lane_name lane_of(const struct pipeline *p, enum stage stage)
{
    if (!p->shape->overlaps)
        return HZP_LANE_COMPUTE;
    return stage == READ ? HZP_LANE_MEMORY : sends(stage) ? HZP_LANE_NETWORK : HZP_LANE_COMPUTE;
}

/* Makes tasks of the nodes, in an order in which all wait for earlier ones. */
static void issue_all(struct pipeline *p)
{
    int32_t waits = 0;
    for (int32_t t = 0; t < p->nodes; t++) {
        int32_t best = -1;
        for (int32_t i = 0; i < p->nodes; i++)
            if ((best < 0 || p->node[i].key < p->node[best].key) && can_issue(p, &p->node[i]))
                best = i;
        HZP_ASSERT(best >= 0);
        struct node *n = &p->node[best];
        n->issued = t;
        p->of[t] = best;
        p->task[t] = (struct hzp_task){.alone_ns = n->alone_ns,
                                       .wait0 = waits,
                                       .waits = n->waits,
                                       .lane = (uint8_t)lane_of(p, n->stage)};
        for (int32_t k = 0; k < n->waits; k++)
            p->task_wait[waits++] = p->node[p->wait[n->wait0 + k]].issued;
    }
}

/* What nano-operations of memory and network leave for compute at least. */
static const double COMPUTE_LEAST = 0.05;

void hzp_tp_divide(double read, double send, bool computes, double ret[3])
{
    double wanted = read + send, room = computes ? 1 - COMPUTE_LEAST : 1;
    /* Together they get no more than there is, and without compute all that there is. */
    double scale = wanted > 0 && (wanted > room || !computes) ? room / wanted : 1;
    ret[0] = computes ? 1 - scale * wanted : 0;
    ret[1] = scale * read;
    ret[2] = scale * send;
}

/* What runs at one time divides the device; each has what its part yields. */
static double rate_beside(void *ctx, int32_t i, const int32_t *others, int count)
{
    const struct pipeline *p = ctx;
    double share[HZP_LANE_COUNT] = {0}, part[3];
    bool computes = p->task[i].lane == HZP_LANE_COMPUTE;
    share[p->task[i].lane] = (double)p->node[p->of[i]].share;
    for (int k = 0; k < count; k++) {
        share[p->task[others[k]].lane] = (double)p->node[p->of[others[k]]].share;
        computes |= p->task[others[k]].lane == HZP_LANE_COMPUTE;
    }
    hzp_tp_divide(share[HZP_LANE_MEMORY], share[HZP_LANE_NETWORK], computes, part);
    switch (p->task[i].lane) {
    case HZP_LANE_COMPUTE:
        return part[0];
    case HZP_LANE_MEMORY:
        return yield(p->rates, false, part[1]);
    default:
        return yield(p->rates, true, part[2]);
    }
}

/* ---- simulation ---- */

static double end_of(const struct pipeline *p, int32_t layers)
{
    double end = 0;
    for (int32_t t = 0; t < p->nodes; t++)
        if (p->node[p->of[t]].layer < layers)
            end = HZP_MAX(end, p->end[t]);
    return end;
}

static void simulate(struct pipeline *p, struct hzp_tp_result *ret)
{
    double busy[HZP_LANE_COUNT], per = 1.0 / LAYERS;
    p->nodes = p->waits = 0;
    for (int32_t l = 0; l < LAYERS; l++)
        add_layer(p, l);
    issue_all(p);
    struct hzp_events events = {
        .task = p->task, .wait = p->task_wait, .tasks = p->nodes, .rate = rate_beside, .ctx = p};
    hzp_events_run(&events, p->begin, p->end, p->order, busy);
    *ret = (struct hzp_tp_result){.layer_ns = (end_of(p, LAYERS) - end_of(p, LAYERS / 2)) /
                                              (LAYERS - LAYERS / 2),
                                  .compute_ns = busy[HZP_LANE_COMPUTE] * per,
                                  .memory_ns = busy[HZP_LANE_MEMORY] * per,
                                  .network_ns = busy[HZP_LANE_NETWORK] * per};
}

struct hzp_tp_result hzp_tp_simulate(const struct hzp_tp_rates *rates,
                                     const struct hzp_tp_step *step,
                                     const struct hzp_tp_shape *shape)
{
    struct pipeline *p = hzp_xcalloc(1, sizeof(*p));
    struct hzp_tp_result result;
    p->rates = rates;
    p->step = step;
    p->shape = shape;
    simulate(p, &result);
    free(p);
    return result;
}

/* ---- shapes ---- */

static void cut(int32_t *end, int32_t parts, int32_t begin, int32_t rows)
{
    for (int32_t i = 0; i < parts; i++)
        end[i] =
            begin + (i == parts - 1 ? rows : HZP_ROUND_UP(rows * (i + 1) / parts, (int32_t)TILE));
    for (int32_t i = 0; i < parts; i++)
        end[i] = HZP_MIN(end[i], begin + rows);
}

struct hzp_tp_shape hzp_tp_sequential(const struct hzp_tp_step *step)
{
    int32_t rows = rows_of(step);
    return (struct hzp_tp_shape){.nanos = 1, .attn_nanos = 1, .end = {rows}, .attn_end = {rows}};
}

struct hzp_tp_shape hzp_tp_cut_only(const struct hzp_tp_step *step)
{
    struct hzp_tp_shape s = {.nanos = 2, .attn_nanos = 4};
    cut(s.end, 2, 0, rows_of(step));
    cut(s.attn_end, 4, 0, rows_of(step));
    return s;
}

struct search {
    struct pipeline *p;
    struct hzp_tp_shape best;
    double best_ns;
    int32_t tried;
};

static bool try(struct search *s, const struct hzp_tp_shape *shape)
{
    struct hzp_tp_result result;
    s->p->shape = shape;
    simulate(s->p, &result);
    s->tried++;
    if (result.layer_ns >= s->best_ns)
        return false;
    s->best_ns = result.layer_ns;
    s->best = *shape;
    return true;
}

static void set_shares(struct hzp_tp_shape *s, float read, float send)
{
    for (int i = 0; i < HZP_TP_ATTN_NANOS; i++)
        s->read_share[i] = read;
    for (int i = 0; i < HZP_TP_NANOS; i++)
        s->send_share[i] = send;
}

/* Two nano-batches, cut at `first`, with attention in parts of each or of all rows. */
static void try_cuts(struct search *s, int32_t first, int32_t rows)
{
    static const int32_t lags[] = {0, 1, 3, 5, 7, 10};
    for (int attn = 0; attn < 3; attn++)
        for (int gathers = 0; gathers < 4; gathers++)
            for (int lag = 0; lag < HZP_COUNT(lags); lag++) {
                struct hzp_tp_shape shape = {.nanos = 2,
                                             .attn_nanos = attn ? 4 : 2,
                                             .end = {first, rows},
                                             .gathers = {gathers & 1, gathers >> 1},
                                             .overlaps = true,
                                             .lag = lags[lag]};
                if (attn == 1) {
                    cut(shape.attn_end, 4, 0, rows);
                } else {
                    cut(shape.attn_end, attn ? 2 : 1, 0, first);
                    cut(shape.attn_end + (attn ? 2 : 1), attn ? 2 : 1, first, rows - first);
                }
                set_shares(&shape, 0.4f, 0.2f);
                try(s, &shape);
            }
}

/* Small changes of the best shape, until none helps: each cut, each nano-operation's share. */
static void improve(struct search *s, int32_t rows)
{
    for (bool better = true; better && s->tried < 20000;) {
        better = false;
        for (int i = 0; i < s->best.attn_nanos + s->best.nanos; i++)
            for (int up = -1; up <= 1; up += 2) {
                struct hzp_tp_shape shape = s->best;
                float *share = i < shape.attn_nanos ? &shape.read_share[i]
                                                    : &shape.send_share[i - shape.attn_nanos];
                *share += 0.05f * (float)up;
                if (*share > 0.04f && *share < 0.91f)
                    better |= try(s, &shape);
                shape = s->best;
                int32_t *end =
                    i < shape.attn_nanos ? &shape.attn_end[i] : &shape.end[i - shape.attn_nanos];
                bool last = i == shape.attn_nanos - 1 || i == shape.attn_nanos + shape.nanos - 1;
                int32_t before = i && i != shape.attn_nanos ? end[-1] : 0;
                *end += up * (int32_t)TILE;
                if (!last && *end > before && *end < end[1] && *end < rows)
                    better |= try(s, &shape);
            }
        for (int up = -1; up <= 1; up += 2) {
            struct hzp_tp_shape shape = s->best;
            shape.lag += up;
            if (shape.lag >= 0)
                better |= try(s, &shape);
        }
    }
}

struct hzp_tp_shape hzp_tp_search(const struct hzp_tp_rates *rates, const struct hzp_tp_step *step,
                                  int32_t *ret_tried)
{
    int32_t rows = rows_of(step);
    struct search s = {.p = hzp_xcalloc(1, sizeof(struct pipeline)), .best_ns = 1e300};
    struct hzp_tp_shape shape = hzp_tp_sequential(step);
    s.p->rates = rates;
    s.p->step = step;
    try(&s, &shape);
    shape.overlaps = true; /* what is independent in one batch may overlap, too */
    set_shares(&shape, 0.4f, 0.2f);
    try(&s, &shape);
    int32_t piece = HZP_MAX(HZP_ROUND_UP(rows / 16, (int32_t)TILE), (int32_t)TILE);
    for (int32_t first = piece; first < rows; first += piece)
        try_cuts(&s, first, rows);
    improve(&s, rows);
    *ret_tried = s.tried;
    free(s.p);
    return s.best;
}
