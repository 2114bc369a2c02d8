/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of random shapes over random batches, serving and training together:
 *   - the checker accepts every one; with one wait removed it finds a race exactly where an
 *     independent check, byte by byte, finds one;
 *   - run sequentially, cut into nano-batches, overlapped on lanes, training riding in serving's
 *     products, and in any order that lanes and waits allow, the same step gives the same bits:
 *     logits (through tokens and log-probabilities), the residual stream, keys and values,
 *     gradients;
 *   - the model in two ranges of layers, in plans that run one after another, gives the same bits
 *     as the whole, and weights of learned rows scale their gradients.
 *
 *     test_shape CHECKS RUNS MODEL_DIR...
 */
#include "base/log.h"
#include "device/operand.h"
#include "nanobatch/model/backward.h"
#include "nanobatch/model/ride.h"
#include "nanobatch/model/step.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_ROWS = 4,
    PAGES = 96,
    STRIDE = 12,
    SEGS = 12,
    ROWS = 64,
    MICRO = 40,
    ITEMS = 4096,
    ROOM = 24
};

struct fixture {
    const char *dir;
    struct fixture_model m;
    struct hzp_exec *exec;
    struct hzp_train_space *train;
    struct hzp_micro *micro;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_kv *kv;
    size_t kv_bytes; /* of one layer's keys, or values */
    char *kv_before; /* [layers][2] */
    struct hzp_plan plan, chain;
    int32_t rides; /* plans in which training rides */
    uint32_t seed;
};

static struct hzp_err_text text;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "%s: %s: %s %s\n", f->dir, #call, hzp_err_name(must_), text.text);     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int32_t draw(struct fixture *f, int32_t n)
{
    f->seed = f->seed * 1664525u + 1013904223u;
    return (int32_t)((f->seed >> 8) % (uint32_t)n);
}

static void set_up(struct fixture *f)
{
    struct fixture_config model = {
        .device = "cpu", .threads = 2, .dir = f->dir, .store = {.type = HZP_F32}, .positions = 64};
    struct hzp_train_space_config space = {.rows_max = MICRO,
                                           .head_rows = 7,
                                           .moment_type = HZP_F32,
                                           .quantum_flops = 20000,
                                           .ride_rows = ROOM};
    struct hzp_batch_config max = {.rows_max = ROWS,
                                   .segs_max = SEGS,
                                   .page_stride = STRIDE,
                                   .logits_max = SEGS,
                                   .edits_max = 1};
    fixture_open(&f->m, &model);
    fixture_publish_dir(&f->m, f->dir);
    struct hzp_model_config config = f->m.layout.config;
    MUST(hzp_exec_create(f->m.dev, &f->exec));
    MUST(hzp_train_space_create(f->m.model, &space, &f->train));
    MUST(hzp_micro_create(f->m.dev, MICRO, &f->micro));
    MUST(hzp_batch_create(f->m.dev, &max, &f->batch));
    MUST(hzp_serve_space_create(f->m.model, ROWS, SEGS, &f->space));
    f->kv_bytes = (size_t)config.heads.kv_heads * PAGE_ROWS * (size_t)config.heads.dim * PAGES *
                  sizeof(float);
    f->kv = hzp_xcalloc((size_t)config.layers, sizeof(*f->kv));
    f->kv_before = hzp_xcalloc((size_t)config.layers * 2, f->kv_bytes);
    for (size_t i = 0; i < (size_t)config.layers * 2 * f->kv_bytes / sizeof(float); i++)
        ((float *)(void *)f->kv_before)[i] = (float)(draw(f, 2001) - 1000) * 1e-3f;
    for (int32_t l = 0; l < config.layers; l++) {
        f->kv[l] = (struct hzp_kv){NULL, NULL, PAGES, PAGE_ROWS, HZP_F32, NULL, NULL};
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, f->kv_bytes, &f->kv[l].k));
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, f->kv_bytes, &f->kv[l].v));
    }
    hzp_plan_init(&f->plan);
    hzp_plan_init(&f->chain);
}

static void tear_down(struct fixture *f)
{
    for (int32_t l = 0; l < f->m.layout.config.layers; l++) {
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, f->kv[l].k);
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, f->kv[l].v);
    }
    free(f->kv);
    free(f->kv_before);
    hzp_plan_fini(&f->plan);
    hzp_plan_fini(&f->chain);
    hzp_serve_space_destroy(f->space);
    hzp_batch_destroy(f->batch);
    hzp_micro_destroy(f->micro);
    hzp_train_space_destroy(f->train);
    hzp_exec_destroy(f->exec);
    fixture_close(&f->m);
}

static void random_segment(struct fixture *f, const int32_t *pages, int32_t *used, bool decode)
{
    struct hzp_batch *b = f->batch;
    int32_t rows = decode ? 1 : 1 + draw(f, 14), vocab = f->m.layout.config.vocab;
    int32_t pos0 = draw(f, 3) ? draw(f, STRIDE * PAGE_ROWS - rows) : 0;
    int32_t *page = hzp_batch_add_segment(b, pos0, decode), row = 0;
    for (int32_t i = 0; i * PAGE_ROWS < pos0 + rows; i++)
        page[i] = pages[(*used)++ % PAGES];
    for (int32_t i = 0; i < rows; i++) {
        int32_t at = pos0 + i;
        row =
            hzp_batch_add_row(b, draw(f, vocab), page[at / PAGE_ROWS] * PAGE_ROWS + at % PAGE_ROWS);
    }
    b->sample[hzp_batch_add_logits(b, row)] =
        (struct hzp_sample_row){.temperature = draw(f, 2) ? 1.0f : 0,
                                .top_p = 1,
                                .repetition = 1,
                                .seed = (uint64_t)draw(f, 1000),
                                .given = -1};
}

static void random_batch(struct fixture *f)
{
    int32_t pages[PAGES], used = 0, decodes = draw(f, 6), prefills = draw(f, 4);
    for (int32_t i = 0; i < PAGES; i++)
        pages[i] = i;
    for (int32_t i = PAGES - 1; i > 0; i--) {
        int32_t k = draw(f, i + 1), t = pages[i];
        pages[i] = pages[k];
        pages[k] = t;
    }
    hzp_batch_clear(f->batch);
    for (int32_t i = 0; i < decodes; i++)
        random_segment(f, pages, &used, true);
    for (int32_t i = 0; i < prefills || f->batch->rows == 0; i++)
        random_segment(f, pages, &used, false);
    HZP_ASSERT(used <= PAGES);
}

/* Training rides in serving's products: one nano-batch, any lanes. */
static void random_riding_shape(struct fixture *f, struct hzp_plan_shape *s)
{
    int32_t lanes = 1 + draw(f, HZP_LANE_COUNT);
    *s = hzp_plan_sequential;
    s->ride = 1;
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        s->lane[0][k] = (uint8_t)draw(f, lanes);
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        s->train_lane[k] = s->lane[0][draw(f, HZP_KIND_COUNT)];
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        s->share[l] = (int16_t)draw(f, 3);
    MUST(hzp_plan_shape_check(s, &text));
}

static void random_shape(struct fixture *f, struct hzp_plan_shape *s)
{
    int32_t lanes = 1 + draw(f, HZP_LANE_COUNT);
    memset(s, 0, sizeof(*s));
    s->nanos = 1 + draw(f, 5);
    for (int32_t i = 0; i < s->nanos; i++) {
        s->weight[i] = draw(f, 5) + (i == 0);
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            s->lane[i][k] = (uint8_t)draw(f, lanes);
    }
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        s->train_lane[k] = (uint8_t)draw(f, lanes);
    s->order = (uint8_t)draw(f, HZP_ORDER_COUNT);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        s->share[l] = (int16_t)draw(f, 3);
    for (int k = 0; k < HZP_STAGE_COUNT; k++)
        s->joined[k] = (uint8_t)(draw(f, 3) ? 0 : draw(f, 1 << (s->nanos - 1)));
    for (int32_t i = 0; i < s->nanos; i++)
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            s->cores[i][k] = (int16_t)(draw(f, 2) ? 0 : draw(f, 4));
    MUST(hzp_plan_shape_check(s, &text));
}

/* The micro-batch's chain, forward in chunks of about this many rows; 0: in one. */
static void make_chain(struct fixture *f, int32_t chunk_rows)
{
    hzp_micro_cut(f->micro, chunk_rows);
    hzp_plan_clear(&f->chain);
    hzp_micro_build(&f->chain, f->m.model, hzp_weights_current(f->m.weights), f->micro, f->train,
                    true);
}

static void random_micro(struct fixture *f)
{
    int32_t token[16];
    uint8_t learn[16];
    hzp_micro_clear(f->micro);
    for (int32_t docs = 1 + draw(f, 3); docs > 0; docs--) {
        int32_t n = 2 + draw(f, 11);
        for (int32_t i = 0; i < n; i++) {
            token[i] = draw(f, f->m.layout.config.vocab);
            learn[i] = (uint8_t)(i == 1 || draw(f, 2));
        }
        MUST(hzp_micro_add(f->micro, token, learn, n));
    }
    make_chain(f, draw(f, 3) ? draw(f, 20) : 0);
}

static void build_slice(struct fixture *f, const struct hzp_plan_shape *shape, int32_t from,
                        int32_t to)
{
    const struct hzp_version *v = hzp_weights_current(f->m.weights);
    struct hzp_rider rider = {v, f->micro, f->train};
    struct hzp_step_plan step = {.model = f->m.model,
                                 .version = v,
                                 .batch = f->batch,
                                 .kv = f->kv,
                                 .space = f->space,
                                 .shape = shape,
                                 .chain = &f->chain,
                                 .from = from,
                                 .to = to,
                                 .rider = &rider};
    hzp_plan_clear(&f->plan);
    f->rides += hzp_step_build(&f->plan, &step);
}

static void build(struct fixture *f, const struct hzp_plan_shape *shape)
{
    build_slice(f, shape, 0, f->chain.items);
}

/* ---- the oracle ---- */

struct interval {
    uintptr_t begin, end;
    bool writes;
};

static struct interval mine[1 << 16], other[1 << 16];

static void add_slot(struct interval *list, int *n, const struct hzp_kv *kv, const void *base,
                     const struct hzp_heads *heads, int32_t slot, bool writes)
{
    size_t row = (size_t)heads->dim * hzp_dtype_size(kv->type);
    for (int32_t h = 0; h < heads->kv_heads; h++) {
        size_t at = ((size_t)(slot / kv->page_rows) * (size_t)heads->kv_heads + (size_t)h) *
                        (size_t)kv->page_rows +
                    (size_t)(slot % kv->page_rows);
        uintptr_t begin = (uintptr_t)base + at * row;
        list[(*n)++] = (struct interval){begin, begin + row, writes};
    }
}

static int intervals(const struct hzp_item *item, struct interval *list)
{
    struct hzp_operand operand[HZP_ACCESS_MAX];
    int count = hzp_op_operands(item->op, item->args, operand), n = 0;
    for (int i = 0; i < count; i++) {
        const struct hzp_operand *o = &operand[i];
        if (hzp_operand_empty(o))
            continue;
        if (!o->slots) {
            for (int64_t r = 0; r < o->rows; r++)
                list[n++] = (struct interval){o->ptr + (size_t)r * o->stride,
                                              o->ptr + (size_t)r * o->stride + o->width, o->writes};
        } else if (item->op == HZP_OP_rope) {
            const struct hzp_rope_args *a = item->args;
            for (int32_t r = 0; r < a->x.rows; r++)
                add_slot(list, &n, &a->kv, (const void *)o->ptr, &a->heads, a->slot[r], true);
        } else {
            const struct hzp_attn_paged_args *a = item->args;
            for (int32_t s = 0; s < a->segs.count; s++)
                for (int32_t p = 0; p < a->segs.pos0[s] + a->segs.row0[s + 1] - a->segs.row0[s];
                     p++)
                    add_slot(list, &n, &a->kv, (const void *)o->ptr, &a->heads,
                             a->page[s * a->page_stride + p / PAGE_ROWS] * PAGE_ROWS +
                                 p % PAGE_ROWS,
                             false);
        }
    }
    HZP_ASSERT(n <= HZP_COUNT(mine));
    return n;
}

static bool conflict(const struct hzp_item *a, const struct hzp_item *b)
{
    int as = intervals(a, mine), bs = intervals(b, other);
    for (int i = 0; i < as; i++)
        for (int k = 0; k < bs; k++)
            if ((mine[i].writes || other[k].writes) && mine[i].begin < other[k].end &&
                other[k].begin < mine[i].end)
                return true;
    return false;
}

static uint64_t before[ITEMS][ITEMS / 64], was[ITEMS][ITEMS / 64];

static void reach(const struct hzp_plan *plan)
{
    int32_t last[HZP_LANE_COUNT] = {-1, -1, -1, -1, -1};
    HZP_ASSERT(plan->items <= ITEMS);
    memset(before, 0, sizeof(before));
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        for (int32_t k = -1; k < item->waits; k++) {
            int32_t w = k < 0 ? last[item->lane] : plan->wait[item->wait0 + k];
            if (w < 0)
                continue;
            for (int c = 0; c < ITEMS / 64; c++)
                before[i][c] |= before[w][c];
            before[i][w / 64] |= 1ull << (w % 64);
        }
        last[item->lane] = i;
    }
}

/* Whether two items that lost their order touch the same bytes. */
static bool races_now(const struct hzp_plan *plan)
{
    for (int32_t i = 0; i < plan->items; i++)
        for (int32_t k = 0; k < i; k++)
            if ((was[i][k / 64] & ~before[i][k / 64]) >> (k % 64) & 1)
                if (conflict(&plan->item[k], &plan->item[i]))
                    return true;
    return false;
}

/* Takes one random wait out of the plan and puts it back.  Returns 1 if the wait was needed and
   its absence was found. */
static int plant(struct fixture *f)
{
    struct hzp_plan *plan = &f->plan;
    int32_t i = 0, w = draw(f, HZP_MAX(plan->waits, 1));
    if (!plan->waits)
        return 0;
    while (w < plan->item[i].wait0 || w >= plan->item[i].wait0 + plan->item[i].waits)
        i++;
    reach(plan);
    memcpy(was, before, sizeof(was));
    struct hzp_item *item = &plan->item[i];
    int32_t last = item->wait0 + item->waits - 1, taken = plan->wait[w];
    plan->wait[w] = plan->wait[last];
    item->waits--;
    reach(plan);
    bool race = races_now(plan), found = hzp_plan_check(plan, &text) < 0;
    item->waits++;
    plan->wait[w] = taken;
    if (race != found) {
        fprintf(stderr, "%s: item %d without its wait for %d: %s, the checker says %s\n", f->dir, i,
                taken, race ? "a race" : "none", found ? text.text : "none");
        exit(1);
    }
    return race;
}

static void checks(struct fixture *f, int count, int *ret_planted, int *ret_spared)
{
    for (int i = 0; i < count; i++) {
        struct hzp_plan_shape shape;
        random_batch(f);
        (i % 2 ? random_riding_shape : random_shape)(f, &shape);
        random_micro(f);
        int32_t from = i % 4 ? 0 : draw(f, f->chain.items);
        build_slice(f, &shape, from, f->chain.items);
        MUST(hzp_plan_check(&f->plan, &text));
        int found = plant(f);
        *ret_planted += found;
        *ret_spared += !found && f->plan.waits;
    }
}

/* ---- running ---- */

struct picture {
    int32_t token[SEGS];
    float logprob[SEGS];
    char *x, *kv;
    struct hzp_units grads;
};

static size_t x_bytes(const struct fixture *f)
{
    return (size_t)f->batch->rows * (size_t)f->space->x.stride * sizeof(float);
}

static void keep(struct fixture *f, struct picture *p)
{
    size_t layers = (size_t)f->m.layout.config.layers;
    memcpy(p->token, f->batch->token, (size_t)f->batch->logits * sizeof(*p->token));
    memcpy(p->logprob, f->batch->logprob, (size_t)f->batch->logits * sizeof(*p->logprob));
    p->x = memcpy(hzp_xmalloc(x_bytes(f)), f->space->x.ptr, x_bytes(f));
    p->grads = fixture_units_read(f->m.dev, hzp_train_space_grads(f->train));
    p->kv = hzp_xmalloc(layers * 2 * f->kv_bytes);
    for (size_t l = 0; l < layers; l++) {
        memcpy(p->kv + 2 * l * f->kv_bytes, f->kv[l].k, f->kv_bytes);
        memcpy(p->kv + (2 * l + 1) * f->kv_bytes, f->kv[l].v, f->kv_bytes);
    }
}

static void forget(struct picture *p)
{
    free(p->x);
    free(p->kv);
    fixture_units_free(&p->grads);
}

/* Where training rides, the residual stream is in another place; all slices but the last leave
 * gradients unfinished. */
static void same(struct fixture *f, const struct picture *p, const char *what, bool stream,
                 bool grads)
{
    struct picture now;
    size_t layers = (size_t)f->m.layout.config.layers, n = (size_t)f->batch->logits;
    const char *differs = NULL;
    keep(f, &now);
    if (grads && !fixture_units_same(NULL, &p->grads, &now.grads))
        differs = "gradients";
    if (memcmp(p->kv, now.kv, layers * 2 * f->kv_bytes))
        differs = "keys or values";
    if (stream && memcmp(p->x, now.x, x_bytes(f)))
        differs = "the residual stream";
    if (memcmp(p->logprob, now.logprob, n * sizeof(float)))
        differs = "log-probabilities";
    if (memcmp(p->token, now.token, n * sizeof(int32_t)))
        differs = "tokens";
    forget(&now);
    if (differs) {
        fprintf(stderr, "%s: %s: %s differ from the sequential plan's\n", f->dir, what, differs);
        exit(1);
    }
}

static void restore(struct fixture *f)
{
    for (int32_t l = 0; l < f->m.layout.config.layers; l++) {
        memcpy(f->kv[l].k, f->kv_before + 2 * (size_t)l * f->kv_bytes, f->kv_bytes);
        memcpy(f->kv[l].v, f->kv_before + (2 * (size_t)l + 1) * f->kv_bytes, f->kv_bytes);
    }
    memset(f->batch->token, 0xff, SEGS * sizeof(int32_t));
}

static void run_slice(struct fixture *f, const struct hzp_plan_shape *shape, int32_t from,
                      int32_t to)
{
    struct hzp_exec_times times;
    restore(f);
    build_slice(f, shape, from, to);
    MUST(hzp_plan_check(&f->plan, &text));
    MUST(hzp_exec_run(f->exec, &f->plan, NULL, &times));
}

static void run(struct fixture *f, const struct hzp_plan_shape *shape)
{
    run_slice(f, shape, 0, f->chain.items);
}

/* The chain in one to four steps, each with the same serving rows: wherever it is cut, the parts
 * that lie completely within a step ride. */
static void run_riding(struct fixture *f, const struct picture *p)
{
    struct hzp_plan_shape shape;
    int32_t items = f->chain.items, to = 0;
    for (int32_t steps = 1 + draw(f, 4); steps > 0; steps--) {
        int32_t from = to;
        to = steps == 1 ? items : from + draw(f, items - from + 1) / (1 + draw(f, 2));
        random_riding_shape(f, &shape);
        run_slice(f, &shape, from, to);
        same(f, p, "riding", false, to == items);
    }
}

/* Item after item in any order that lanes and waits allow. */
static void run_shuffled(struct fixture *f, const struct hzp_plan_shape *shape,
                         struct hzp_lane *lane)
{
    static bool done[ITEMS];
    const struct hzp_plan *plan = &f->plan;
    int32_t next[HZP_LANE_COUNT] = {0}, left;
    restore(f);
    build(f, shape);
    memset(done, 0, sizeof(done));
    for (left = plan->items; left > 0;) {
        int32_t l = draw(f, HZP_LANE_COUNT), i = next[l];
        while (i < plan->items && plan->item[i].lane != l)
            i++;
        bool ready = i < plan->items;
        for (int32_t k = 0; ready && k < plan->item[i].waits; k++)
            ready = done[plan->wait[plan->item[i].wait0 + k]];
        if (!ready)
            continue;
        MUST(hzp_lane_issue(lane, plan->item[i].op, plan->item[i].args));
        done[i] = true;
        next[l] = i + 1;
        left--;
    }
}

/* ---- ranges of layers ---- */

static void run_built(struct fixture *f)
{
    struct hzp_exec_times times;
    MUST(hzp_plan_check(&f->plan, &text));
    MUST(hzp_exec_run(f->exec, &f->plan, NULL, &times));
}

/* Serving's part of the step as two plans, one after the other; a separate buffer holds the
 * residual stream between them. */
static void run_forward_ranges(struct fixture *f, const struct hzp_plan_shape *shape,
                               const struct hzp_layer_range part[2])
{
    struct hzp_mat x = f->space->x;
    size_t bytes = (size_t)ROWS * (size_t)x.stride * sizeof(float);
    MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, bytes, &x.ptr));
    x = hzp_mat_rows(x, 0, f->batch->rows);
    for (int i = 0; i < 2; i++) {
        struct hzp_forward pass = {.plan = &f->plan,
                                   .model = f->m.model,
                                   .version = hzp_weights_current(f->m.weights),
                                   .batch = f->batch,
                                   .kv = f->kv,
                                   .space = f->space,
                                   .shape = shape};
        hzp_plan_clear(&f->plan);
        hzp_forward_begin(&pass);
        hzp_forward_range(&pass, &part[i], i ? &x : NULL, i ? NULL : &x);
        hzp_forward_end(&pass);
        run_built(f);
        memset(f->space->x.ptr, 0xff, i ? 0 : bytes);
    }
    hzp_device_free(f->m.dev, HZP_MEM_DEVICE, x.ptr);
}

/* The micro-batch: forward by ranges from the first to the last, backward from the last to the
 * first, each range as its own plan. */
static void run_micro_ranges(struct fixture *f, const struct hzp_layer_range part[2])
{
    const struct hzp_version *v = hzp_weights_current(f->m.weights);
    for (int i = 0; i < 2; i++) {
        hzp_plan_clear(&f->plan);
        if (i == 0)
            hzp_micro_zero_sums(&f->plan, f->train);
        hzp_micro_forward(&f->plan, f->m.model, v, f->micro, f->train, &part[i]);
        run_built(f);
    }
    for (int i = 1; i >= 0; i--) {
        hzp_plan_clear(&f->plan);
        hzp_micro_backward(&f->plan, f->m.model, v, f->micro, f->train, &part[i]);
        run_built(f);
    }
}

static void poison_grads(struct fixture *f)
{
    const struct hzp_units *grads = hzp_train_space_grads(f->train);
    for (int32_t u = 0; u < grads->layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(grads, u);
        memset(view.base, 0xff, hzp_unit_bytes(&view));
    }
}

static void run_ranges(struct fixture *f, const struct hzp_plan_shape *shape,
                       const struct picture *p)
{
    int32_t layers = f->m.layout.config.layers;
    for (int32_t k = 0; k <= layers; k++) {
        const struct hzp_layer_range part[2] = {{0, k, true, false}, {k, layers, false, true}};
        restore(f);
        poison_grads(f);
        run_forward_ranges(f, shape, part);
        run_micro_ranges(f, part);
        same(f, p, "in two ranges", k < layers, true);
    }
}

/* ---- weights of rows ---- */

static double loss_sum(const struct fixture *f)
{
    double sum = 0;
    for (int32_t i = 0; i < f->micro->learned; i++)
        sum += (double)f->micro->loss.value[i];
    return sum;
}

/* One random document alone, each of its tokens with weight `weight`.  Returns the loss; the
 * caller owns *ret_grads. */
static double weighted(struct fixture *f, float weight, uint32_t seed, struct hzp_units *ret_grads)
{
    enum { N = 20 };
    int32_t token[N];
    uint8_t learn[N];
    float weights[N];
    f->seed = seed;
    for (int i = 0; i < N; i++) {
        token[i] = draw(f, f->m.layout.config.vocab);
        learn[i] = (uint8_t)(i == 1 || draw(f, 2));
        weights[i] = weight;
    }
    hzp_micro_clear(f->micro);
    MUST(hzp_micro_add_losses(f->micro, token, learn, weights, NULL, N));
    make_chain(f, 0);
    hzp_batch_clear(f->batch);
    run(f, &hzp_plan_sequential);
    *ret_grads = fixture_units_read(f->m.dev, hzp_train_space_grads(f->train));
    return loss_sum(f);
}

/* Whether every gradient of b is `times` that of a, and a has one that is not 0. */
static bool multiples(const struct hzp_units *a, const struct hzp_units *b, float times)
{
    bool all = true, any = false;
    for (int32_t u = 0; u < a->layout->units; u++) {
        const float *x = a->base[u], *y = b->base[u];
        for (size_t i = 0; i < hzp_unit_view(a, u).elements; i++) {
            all &= y[i] == times * x[i];
            any |= x[i] != 0;
        }
    }
    return all && any;
}

/* Everything behind the loss is linear, and doubling is exact: weights of 2 give exactly twice
 * the gradients.  Weights of 0 give no gradient. */
static void check_weights(struct fixture *f)
{
    struct hzp_units once = {0}, twice = {0}, none = {0};
    const struct hzp_micro *m = f->micro;
    uint32_t seed = f->seed;
    double loss = weighted(f, 1, seed, &once);
    bool fine = !m->loss.weight && m->weight_sum == m->learned;
    fine = fine && weighted(f, 2, seed, &twice) == 2 * loss && m->loss.weight &&
           m->weight_sum == 2 * m->learned && multiples(&once, &twice, 2);
    fine = fine && weighted(f, 0, seed, &none) == 0 && m->weight_sum == 0 &&
           multiples(&once, &none, 0);
    if (!fine) {
        fprintf(stderr, "%s: gradients are not weighted sums\n", f->dir);
        exit(1);
    }
    fixture_units_free(&once);
    fixture_units_free(&twice);
    fixture_units_free(&none);
}

static void runs(struct fixture *f, int count)
{
    struct hzp_lane *lane;
    MUST(hzp_lane_open(f->m.dev, HZP_BOUND_COMPUTE, &lane));
    for (int i = 0; i < count; i++) {
        struct hzp_plan_shape shape, nano;
        struct picture p;
        random_batch(f);
        random_micro(f);
        make_chain(f, 0);
        run(f, &hzp_plan_sequential);
        keep(f, &p);
        make_chain(f, draw(f, 3) ? 1 + draw(f, 20) : 0);
        run(f, &hzp_plan_sequential);
        same(f, &p, "forward in chunks", true, true);
        random_shape(f, &shape);
        nano = shape;
        memset(nano.lane, 0, sizeof(nano.lane));
        memset(nano.train_lane, 0, sizeof(nano.train_lane));
        run(f, &nano);
        same(f, &p, "nano-batches on one lane", true, true);
        for (int again = 0; again < 3; again++) {
            run(f, &shape);
            same(f, &p, "overlapped", true, true);
            run_riding(f, &p);
        }
        run_shuffled(f, &shape, lane);
        same(f, &p, "in another order", true, true);
        if (i % 4 == 0)
            run_ranges(f, &shape, &p);
        random_riding_shape(f, &shape);
        run_shuffled(f, &shape, lane);
        same(f, &p, "riding in another order", false, true);
        forget(&p);
    }
    hzp_lane_close(lane);
}

int main(int argc, char **argv)
{
    int planted = 0, spared = 0, rides = 0;
    hzp_log_init();
    if (argc < 4)
        return 2;
    for (int i = 3; i < argc; i++) {
        struct fixture f = {.dir = argv[i], .seed = (uint32_t)i};
        set_up(&f);
        checks(&f, atoi(argv[1]), &planted, &spared);
        runs(&f, atoi(argv[2]));
        check_weights(&f);
        rides += f.rides;
        tear_down(&f);
    }
    printf("%d plans checked, training rode in %d; %d needed waits removed, all found; %d not "
           "needed\n",
           atoi(argv[1]) * (argc - 3), rides, planted, spared);
    return planted == 0 || rides < atoi(argv[1]) / 2;
}
