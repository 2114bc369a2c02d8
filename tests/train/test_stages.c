/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_stages.c - ranks that hold some of the layers each learn what one rank learns:
 * in the ordered mode the same bytes, otherwise the same up to rounding. */
#include "tests/train/ranks.h"
#include "nanobatch/model/train_space_state.h"
#include "train/conductor/stage_paths.h"

enum { UPDATES = 12 };

/* --- The order -------------------------------------------------------------------------------- */

static struct hzp_layout layout_of(int32_t layers, int32_t vocab)
{
    const struct hzp_model_config config = {.family = "llama",
                                            .layers = layers,
                                            .width = 16,
                                            .inner = 24,
                                            .vocab = vocab,
                                            .heads = {4, 2, 4},
                                            .positions = 64,
                                            .tied = true};
    struct hzp_layout layout;
    hzp_layout_make(&config, &layout);
    return layout;
}

/* Every layer is one stage's, and rank 0 has both ends. */
static void test_cut(void **state)
{
    for (int32_t layers = 1; layers <= 9; layers++)
        for (int32_t vocab = 8; vocab <= 8000; vocab *= 10) {
            struct hzp_layout layout = layout_of(layers, vocab);
            for (int32_t stages = 2; stages <= layers; stages++) {
                int32_t held = 0, at = 0;
                for (int32_t s = 0; s < stages; s++) {
                    struct hzp_shards shards = {.stages = stages, .rank = s};
                    assert_int_equal(hzp_stages_cut(&shards, &layout, NULL), HZP_OK);
                    assert_int_equal(shards.layer, at);
                    at = shards.layer_end;
                    assert_true(at > shards.layer);
                    for (int32_t u = 0; u < layout.units; u++)
                        held += hzp_shards_hold(&shards, layout.units, u);
                    assert_true(hzp_shards_hold(&shards, layout.units, 0) == (s == 0));
                }
                assert_int_equal(at, layers);
                assert_int_equal(held, layout.units);
            }
            struct hzp_shards more = {.stages = layers + 1};
            assert_int_equal(hzp_stages_cut(&more, &layout, NULL), HZP_EINVAL);
            hzp_layout_free(&layout);
        }
}

/* A large head leaves rank 0 few layers. */
static void test_cut_even(void **state)
{
    struct hzp_layout layout = layout_of(8, 8);
    struct hzp_shards shards = {.stages = 2, .rank = 0};
    assert_int_equal(hzp_stages_cut(&shards, &layout, NULL), HZP_OK);
    assert_int_equal(shards.layer_end, 4);
    hzp_layout_free(&layout);
    layout = layout_of(8, 500);
    assert_int_equal(hzp_stages_cut(&shards, &layout, NULL), HZP_OK);
    assert_in_range(shards.layer_end, 1, 3);
    hzp_layout_free(&layout);
}

/* A stage that computes half as fast gets half of the layers; alike speeds change nothing. */
static void test_cut_by_speeds(void **state)
{
    struct hzp_layout layout = layout_of(9, 8);
    struct hzp_shards shards = {.stages = 3, .speed = {100, 50, 100}};
    static const int32_t ends[] = {4, 5, 9}, even[] = {3, 6, 9};
    for (shards.rank = 0; shards.rank < 3; shards.rank++) {
        assert_int_equal(hzp_stages_cut(&shards, &layout, NULL), HZP_OK);
        assert_int_equal(shards.layer_end, ends[shards.rank]);
        struct hzp_shards alike = {.stages = 3, .rank = shards.rank, .speed = {70, 70, 70}};
        assert_int_equal(hzp_stages_cut(&alike, &layout, NULL), HZP_OK);
        assert_int_equal(alike.layer_end, even[shards.rank]);
    }
    hzp_layout_free(&layout);
}

/* What has been done of a micro-batch, and what a rank keeps, at some point of an order. */
struct walk {
    int32_t done[64], passed[16][64], passes[16], kept[16];
};

/* Task i of the order keeps its invariants. */
static void check_task(const struct hzp_stage_order *order, int32_t i, int32_t stages,
                       struct walk *walk)
{
    const struct hzp_stage_task *t = &order->task[i];
    int32_t place = t->work == HZP_STAGE_FORWARD ? t->stage
                    : t->work == HZP_STAGE_HEAD  ? stages
                                                 : 2 * stages - t->stage;
    struct hzp_shards shards = {.stages = stages, .rank = t->stage};
    assert_int_equal(walk->done[t->micro], place);
    assert_true(!t->micro || walk->done[t->micro - 1] > place);
    assert_int_equal(t->visit, t->micro);
    if (place == 0)
        assert_int_equal(t->input, -1);
    else
        assert_true(t->input < i && order->task[t->input].micro == t->micro &&
                    order->task[t->input].stage != t->stage);
    walk->done[t->micro]++;
    walk->kept[t->stage] += (t->work == HZP_STAGE_FORWARD) - (t->work == HZP_STAGE_BACKWARD);
    assert_in_range(walk->kept[t->stage], 0, hzp_stages_kept(&shards));
    if (t->work == HZP_STAGE_FORWARD || (t->work == HZP_STAGE_BACKWARD && !t->stage))
        return;
    int32_t n = walk->passes[t->stage]++;
    walk->passed[t->stage][n % 64] = i;
    if (n < 2)
        return;
    const struct hzp_stage_task *before = &order->task[walk->passed[t->stage][(n - 2) % 64]];
    int32_t then = before->work == HZP_STAGE_HEAD ? stages : 2 * stages - before->stage;
    assert_true(walk->done[before->micro] > HZP_MIN(then + 1, 2 * stages));
}

static void test_order(void **state)
{
    for (int32_t stages = 2; stages <= 8; stages++)
        for (int32_t micros = 1; micros <= 20; micros++)
            for (int32_t vocab = 8; vocab <= 8000; vocab *= 10) {
                struct hzp_layout layout = layout_of(8, vocab);
                struct hzp_shards shards = {.stages = stages};
                struct hzp_stage_order order = {0};
                struct walk walk = {0};
                hzp_stage_order_make(&order, &shards, &layout, micros, NULL);
                assert_int_equal(order.tasks, micros * (2 * stages + 1));
                for (int32_t i = 0; i < order.tasks; i++)
                    check_task(&order, i, stages, &walk);
                for (int32_t m = 0; m < micros; m++)
                    assert_int_equal(walk.done[m], 2 * stages + 1);
                hzp_stage_order_free(&order);
                hzp_layout_free(&layout);
            }
}

/* --- Paths ------------------------------------------------------------------------------------ */

static uint32_t drawn = 1;

static int32_t draw_below(int32_t bound)
{
    drawn = drawn * 1664525 + 1013904223;
    return (int32_t)((uint64_t)(drawn >> 8) * (uint64_t)bound >> 24);
}

/* Stage 0 and a shuffle of at least one other: paths less orderly than any that is planned. */
static struct hzp_stage_path random_path(int32_t stages)
{
    struct hzp_stage_path path = {0};
    for (int32_t s = 1; s < stages; s++) {
        int32_t j = 1 + draw_below(s);
        path.stage[s] = path.stage[j];
        path.stage[j] = (uint8_t)s;
    }
    path.count = 2 + draw_below(stages - 1);
    return path;
}

/* What has been done along paths: tasks of a micro-batch, and of a stage. */
struct along {
    int32_t done[64], kept[16], visits[16], ended[16], heads, passes[16];
    struct {
        int32_t micro, place;
    } passed[16][64];
};

static void check_along(const struct hzp_stage_order *order, int32_t i, int32_t stages,
                        const struct hzp_stage_path *path, struct along *a)
{
    const struct hzp_stage_task *t = &order->task[i];
    const struct hzp_stage_path *p = &path[t->micro];
    int32_t k = a->done[t->micro]++, l = p->count, s = t->stage;
    struct hzp_shards shards = {.stages = stages, .rank = s};
    assert_int_equal(s, p->stage[k < l ? k : k == l ? 0 : 2 * l - k]);
    assert_int_equal(t->work, k < l    ? HZP_STAGE_FORWARD
                              : k == l ? HZP_STAGE_HEAD
                                       : HZP_STAGE_BACKWARD);
    assert_true(k ? t->input < i && order->task[t->input].micro == t->micro : t->input == -1);
    a->kept[s] += (t->work == HZP_STAGE_FORWARD) - (t->work == HZP_STAGE_BACKWARD);
    assert_in_range(a->kept[s], 0, hzp_stages_kept(&shards));
    if (t->work == HZP_STAGE_FORWARD)
        assert_true(t->visit < a->ended[s] + hzp_stages_kept(&shards)); /* its place is free */
    else if (t->work == HZP_STAGE_HEAD)
        assert_int_equal(t->micro, a->heads++);
    else
        assert_int_equal(t->visit, a->ended[s]++);
    if (t->work == HZP_STAGE_FORWARD || (t->work == HZP_STAGE_BACKWARD && !s))
        return;
    int32_t n = a->passes[s]++;
    a->passed[s][n].micro = t->micro;
    a->passed[s][n].place = k;
    if (n >= 2) /* it has been taken */
        assert_true(a->done[a->passed[s][n - 2].micro] > a->passed[s][n - 2].place + 1);
}

/* Random paths always come to an end, within memory, in the order of sums. */
static void test_order_of_paths(void **state)
{
    for (int round = 0; round < 20000; round++) {
        int32_t stages = 2 + round % 7, micros = 1 + draw_below(30);
        struct hzp_layout layout = layout_of(8, 8 + draw_below(2000));
        struct hzp_shards shards = {.stages = stages};
        struct hzp_stage_path path[32];
        struct hzp_stage_order order = {0};
        struct along along = {0};
        for (int32_t m = 0; m < micros; m++)
            path[m] = random_path(stages);
        hzp_stage_order_make(&order, &shards, &layout, micros, path);
        for (int32_t i = 0; i < order.tasks; i++)
            check_along(&order, i, stages, path, &along);
        for (int32_t m = 0; m < micros; m++)
            assert_int_equal(along.done[m], 2 * path[m].count + 1);
        hzp_stage_order_free(&order);
        hzp_layout_free(&layout);
    }
}

/* A path and its layers are the same thing; other lists of layers are no path. */
static void test_layers_of_paths(void **state)
{
    for (int32_t stages = 2; stages <= 8; stages++)
        for (int i = 0; i < 100; i++) {
            struct hzp_layout layout = layout_of(9, 8);
            struct hzp_shards shards = {.stages = stages};
            struct hzp_stage_path path = random_path(stages), back;
            struct hzp_path layers;
            hzp_stage_path_layers(&path, &shards, &layout, &layers);
            assert_true(hzp_path_valid(&layers, 9));
            assert_int_equal(hzp_stage_path_read(&layers, &shards, &layout, &back), HZP_OK);
            assert_int_equal(back.count, path.count);
            assert_memory_equal(back.stage, path.stage, (size_t)path.count);
            layers.layer[draw_below(layers.count)] = draw_below(9); /* mostly twice there */
            if (!hzp_path_valid(&layers, 9))
                assert_int_equal(hzp_stage_path_read(&layers, &shards, &layout, &back), HZP_EINVAL);
            layers.count = 0;
            assert_int_equal(hzp_stage_path_read(&layers, &shards, &layout, &back), HZP_OK);
            assert_int_equal(back.count, 0);
            hzp_layout_free(&layout);
        }
}

/* What is planned leaves out each stage but 0 equally often, over as many updates as there are
 * others, however many micro-batches an update has. */
static void test_planned(void **state)
{
    for (int32_t stages = 3; stages <= 6; stages++)
        for (int32_t micros = 1; micros <= 70; micros += micros < 8 ? 1 : 23) {
            struct hzp_layout layout = layout_of(9, 50);
            struct hzp_shards shards = {.stages = stages};
            struct hzp_recipe recipe = {
                .skip = stages == 3 ? 0.33f : 0.25f, .swap = micros % 2, .micro_rows = 16};
            struct hzp_stage_paths *p;
            struct hzp_err_text text;
            int32_t visits[16] = {0};
            assert_int_equal(hzp_stage_paths_create(&recipe, &shards, &layout, 0, 0, &p, &text),
                             HZP_OK);
            for (int64_t update = 1; update < stages; update++)
                for (int32_t m = 0; m < micros; m++) {
                    struct hzp_path layers, again;
                    struct hzp_stage_path path;
                    hzp_stage_paths_deal(p, update, micros, m, &layers);
                    hzp_stage_paths_deal(p, update, micros, m, &again);
                    assert_memory_equal(&layers.layer, &again.layer,
                                        (size_t)layers.count * sizeof(*layers.layer));
                    assert_int_equal(hzp_stage_path_read(&layers, &shards, &layout, &path), HZP_OK);
                    assert_int_equal(path.count, stages - 1);
                    for (int32_t k = 0; k < path.count; k++)
                        visits[path.stage[k]]++;
                }
            for (int32_t s = 1; s < stages; s++)
                assert_int_equal(visits[s], visits[1]);
            assert_int_equal(visits[0], micros * (stages - 1));
            hzp_stage_paths_destroy(p);
            hzp_layout_free(&layout);
        }
}

static void test_refused(void **state)
{
    struct hzp_layout layout = layout_of(20, 50);
    const struct {
        int32_t stages;
        float skip;
        const char *why;
    } row[] = {{2, 0.5f, "leaves out 1 of 2 stages: 1 at least, 0 at most"},
               {4, 0.1f, "leaves out 0 of 4 stages: 1 at least, 2 at most"},
               {4, 0.75f, "leaves out 3 of 4 stages"},
               {17, 0.25f, "17 stages, and micro-batches choose among 16 at most"}};
    for (int i = 0; i < HZP_COUNT(row); i++) {
        struct hzp_shards shards = {.stages = row[i].stages};
        struct hzp_recipe recipe = {.skip = row[i].skip, .micro_rows = 16};
        struct hzp_stage_paths *p;
        struct hzp_err_text text;
        assert_int_equal(hzp_stage_paths_create(&recipe, &shards, &layout, 0, 0, &p, &text),
                         HZP_EINVAL);
        if (!strstr(text.text, row[i].why))
            fail_msg("%s", text.text);
    }
    hzp_layout_free(&layout);
}

/* --- Learning --------------------------------------------------------------------------------- */

static struct tiny_config defaults(enum hzp_dtype type, int32_t stages, bool ordered)
{
    struct tiny_config config = tiny_defaults();
    config.type = type;
    config.recipe.moment_type = type;
    config.recipe.update_tokens = 90;
    config.recipe.micro_rows = 14; /* several micro-batches an update */
    config.queue.passes = 30;
    config.layers = 5;
    config.shards =
        (struct hzp_shards){.groups = {1, 1, 1, 1}, .ordered = ordered, .stages = stages};
    return config;
}

static struct tiny *run_one(struct tiny_config config)
{
    struct hzp_shards shards = config.shards;
    config.shards.stages = 0;
    struct tiny *t = tiny_open(&config);
    if (config.recipe.skip > 0 || config.recipe.swap)
        assert_int_equal(hzp_stage_paths_create(&config.recipe, &shards, t->fixture.model->layout,
                                                0, 0, &t->trainer->stage_paths, NULL),
                         HZP_OK);
    tiny_publish(t);
    tiny_push(t, 1, 40);
    while (t->reports < UPDATES)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    return t;
}

/* How often two ranks had tasks of different micro-batches. */
static int32_t overlapped;

static int32_t micro_of(const struct hzp_learner *l)
{
    const struct hzp_stage_task *task = hzp_stages_task(l->stages);
    return task && l->at < l->chain.items ? task->micro : -1;
}

static void note_overlap(struct ranks *r)
{
    int32_t first = micro_of(hzp_trainer_learner(r->first->trainer));
    int32_t other = micro_of(hzp_learner_by_link_learner(r->other[1].learner));
    overlapped += first >= 0 && other >= 0 && first != other;
}

static struct ranks *run_stages(const struct tiny_config *config, int lag)
{
    struct ranks *r = ranks_open(config, lag, false);
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    overlapped = 0;
    while (r->first->reports < UPDATES) {
        assert_true(ranks_turn(r));
        note_overlap(r);
    }
    return r;
}

static void check_same(struct tiny_config config, int lag, int32_t overlaps)
{
    struct tiny *one = run_one(config);
    struct ranks *r = run_stages(&config, lag);
    for (int32_t i = 0; i < UPDATES; i++) {
        const struct hzp_update_report *x = &one->report[i], *y = &r->first->report[i];
        if (!(x->loss == y->loss && x->grad_norm == y->grad_norm))
            fail_msg("update %d: loss %.9g, not %.9g; norm %.9g, not %.9g", i + 1, y->loss, x->loss,
                     y->grad_norm, x->grad_norm);
        assert_int_equal(x->learned_tokens, y->learned_tokens);
        assert_int_equal(x->rows, y->rows);
    }
    ranks_assert_same(one, r);
    assert_true(overlapped >= overlaps);
    ranks_close(r);
    tiny_close(one);
}

static void check_ordered(enum hzp_dtype type, bool untied, int32_t stages, int lag,
                          enum hzp_recompute recompute)
{
    struct tiny_config config = defaults(type, stages, true);
    config.untied = untied;
    config.recipe.recompute = recompute;
    check_same(config, lag, UPDATES + 1);
}

static void test_ordered(void **state)
{
    for (int32_t stages = 2; stages <= 5; stages++)
        for (int lag = 0; lag <= 5; lag += 5) {
            check_ordered(HZP_F32, false, stages, lag, HZP_RECOMPUTE_NONE);
            check_ordered(HZP_BF16, false, stages, lag, HZP_RECOMPUTE_MLP);
            check_ordered(HZP_F32, true, stages, lag, HZP_RECOMPUTE_LAYER);
        }
}

/* Micro-batches that leave out stages: the bytes of one rank that goes along the same paths, also
 * where some stage is left out of all of an update. */
static void test_skip(void **state)
{
    for (int32_t stages = 2; stages <= 5; stages++)
        for (int i = 0; i < 4; i++) {
            struct tiny_config config = defaults(i == 1 ? HZP_BF16 : HZP_F32, stages, true);
            config.untied = i == 2;
            config.recipe.recompute = i == 1   ? HZP_RECOMPUTE_MLP
                                      : i == 2 ? HZP_RECOMPUTE_LAYER
                                               : HZP_RECOMPUTE_NONE;
            config.recipe.skip = stages == 2 ? 0 : i == 2 && stages > 3 ? 0.5f : 0.33f;
            config.recipe.swap = i != 1;
            if (i == 3)
                config.recipe.update_tokens = 12;
            check_same(config, i == 2 ? 5 : 0, i == 3 ? 0 : UPDATES);
        }
}

static bool all_zero(const struct hzp_units *units, int32_t u)
{
    struct hzp_unit_view view = hzp_unit_view(units, u);
    for (size_t i = 0; i < hzp_unit_bytes(&view); i++)
        if (((const char *)view.base)[i])
            return false;
    return true;
}

/* One micro-batch goes through three of four stages: the other one's gradients are exactly 0. */
static void test_skipped(void **state)
{
    struct tiny_config config = defaults(HZP_F32, 4, true);
    int32_t zero = 0;
    config.recipe.skip = 0.25f;
    config.recipe.update_tokens = 12;
    struct ranks *r = ranks_open(&config, 0, false);
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    while (r->first->reports < 1)
        assert_true(ranks_turn(r));
    for (int32_t i = 1; i < 4; i++) {
        struct hzp_learner *l = hzp_learner_by_link_learner(r->other[i].learner);
        for (int32_t layer = l->config.shards.layer; layer < l->config.shards.layer_end; layer++)
            zero += all_zero(hzp_train_space_m(l->space), 1 + layer) ? 1 << (4 * i) : 0;
    }
    struct hzp_learner *l = hzp_trainer_learner(r->first->trainer);
    struct hzp_path layers;
    struct hzp_stage_path path;
    hzp_stage_paths_deal(r->first->trainer->stage_paths, 1, 1, 0, &layers);
    assert_int_equal(
        hzp_stage_path_read(&layers, &l->config.shards, l->config.model->layout, &path), HZP_OK);
    assert_int_equal(path.count, 3);
    int32_t out = 6 - path.stage[1] - path.stage[2];
    assert_true(zero > 0 && zero >> (4 * out) << (4 * out) == zero && zero >> (4 * out) < 16);
    ranks_close(r);
}

static void check_plain(enum hzp_dtype type, int32_t stages)
{
    struct tiny_config config = defaults(type, stages, false);
    struct tiny *one = run_one(config);
    struct ranks *r = run_stages(&config, 3);
    double grad = fabs(one->report[0].grad_norm - r->first->report[0].grad_norm);
    assert_true(grad <= 1e-5 * one->report[0].grad_norm);
    for (int32_t i = 0; i < UPDATES; i++) {
        double loss = fabs(one->report[i].loss - r->first->report[i].loss);
        if (!(loss < (type == HZP_F32 ? 1e-3 : 2e-2)))
            fail_msg("loss of update %d differs by %g", i + 1, loss);
    }
    for (int32_t i = 1; i < r->count; i++) { /* all ranks have the same version */
        struct hzp_weights *w = r->other[i].fixture.weights;
        assert_true(hzp_weights_current(w)->record.checksum ==
                    hzp_weights_current(r->first->weights)->record.checksum);
    }
    ranks_close(r);
    tiny_close(one);
}

static void test_plain(void **state)
{
    for (int32_t stages = 2; stages <= 4; stages++) {
        check_plain(HZP_F32, stages);
        check_plain(HZP_BF16, stages);
    }
}

/* Stages hold no more than their units: together what one rank holds. */
static void test_memory(void **state)
{
    struct tiny_config config = defaults(HZP_F32, 4, false);
    struct tiny *one = run_one(config);
    struct ranks *r = run_stages(&config, 0);
    size_t held = 0;
    for (int32_t i = 0; i < r->count; i++) {
        struct hzp_learner *l = i ? hzp_learner_by_link_learner(r->other[i].learner)
                                  : hzp_trainer_learner(r->first->trainer);
        held += l->space->state_bytes[HZP_MEM_DEVICE];
    }
    assert_int_equal(held, hzp_trainer_learner(one->trainer)->space->state_bytes[HZP_MEM_DEVICE]);
    ranks_close(r);
    tiny_close(one);
}

/* --- No race ---------------------------------------------------------------------------------- */

static char sent[1 << 16]; /* where what is sent goes to */

static bool sends(const struct hzp_learner *l, const struct hzp_transfer *what)
{
    return hzp_link_group_index(l->config.link, what->group) == what->root;
}

/* A transfer as an item: one that sends reads its memory, one that receives writes it. */
static int32_t add_transfer(struct hzp_plan *plan, const struct hzp_learner *l,
                            const struct hzp_transfer *what)
{
    int32_t n = (int32_t)what->count / 2;
    struct hzp_mat data = {what->recv, 1, n, n, HZP_BF16}, other = {sent, 1, n, n, HZP_BF16};
    struct hzp_cast_args args = {.x = sends(l, what) ? data : other,
                                 .y = sends(l, what) ? other : data};
    assert_in_range(what->count, 2, sizeof(sent));
    return hzp_plan_add(plan, HZP_OP_cast, HZP_LANE_NETWORK, &args);
}

enum { NO_TASK = -1, NO_PLACE = -2 };

/* One plan of all tasks of an update, one after another, and of all transfers on a lane of their
 * own, each posted as early as it may be.  skip: this task does not wait for its transfer;
 * NO_PLACE: receiving does not wait for a free place. */
static void merge(struct hzp_plan *ret, struct hzp_learner *l, int32_t micros,
                  const struct hzp_stage_path *path, int32_t skip)
{
    struct hzp_transfers *list = hzp_collectives_transfers(l->collectives);
    struct hzp_plan chain;
    int32_t rows[16], of[128], last = -1;
    for (int32_t m = 0; m < micros; m++)
        rows[m] = l->micro->rows;
    list->entries = list->posted = list->done = 0;
    hzp_stages_begin(l->stages, rows, path, micros);
    hzp_plan_init(&chain);
    const struct hzp_stage_task *task = hzp_stages_task(l->stages);
    for (int32_t n = 0, next = 0;; n++) {
        for (; next < list->entries; next++) {
            list->done = next;
            struct hzp_transfers_entry *e = &list->entry[next];
            bool free = skip == NO_PLACE && !sends(l, &e->what);
            if (!free && !e->ready(e->ctx))
                break;
            of[next] = add_transfer(ret, l, &list->entry[next].what);
            if (last >= 0)
                hzp_plan_wait(ret, last);
        }
        task = hzp_stages_task(l->stages);
        if (!task) {
            assert_int_equal(next, list->entries);
            break;
        }
        hzp_plan_clear(&chain);
        hzp_stages_build(l->stages, &chain, hzp_learner_version(l),
                         l->micros[task->micro % l->space->slots]);
        for (int32_t i = 0; i < chain.items; i++) {
            last = hzp_plan_add(ret, chain.item[i].op, HZP_LANE_COMPUTE, chain.item[i].args);
            if (i > 0 || n == skip || !list->dependencies)
                continue;
            assert_true(list->dependency[0].item == 0 && list->dependency[0].transfer < next);
            hzp_plan_wait(ret, of[list->dependency[0].transfer]);
        }
        hzp_stages_end(l->stages, 0);
    }
    list->entries = list->done = 0;
    hzp_plan_fini(&chain);
}

static int32_t no_place; /* ranks where receiving must wait for a free place */

/* Returns how many tasks must wait, so that there is no race. */
static int32_t prove(struct hzp_learner *l, int32_t micros, const struct hzp_stage_path *path)
{
    const int32_t token[] = {3, 1, 4, 1, 5};
    const uint8_t learn[] = {0, 1, 1, 1, 1};
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_plan plan;
    int32_t needed = 0, tasks = 3 * micros; /* or fewer */
    for (int32_t i = 0; i < l->space->slots; i++)
        assert_int_equal(hzp_micro_add(l->micros[i], token, learn, 5), HZP_OK);
    hzp_plan_init(&plan);
    for (int32_t skip = NO_PLACE; skip < tasks; skip++) {
        hzp_plan_clear(&plan);
        merge(&plan, l, micros, path, skip);
        int found = hzp_plan_check(&plan, &text);
        if (skip == NO_TASK && found < 0)
            fail_msg("rank %d: %s", l->config.shards.rank, text.text);
        no_place += skip == NO_PLACE && found < 0;
        needed += skip >= 0 && found < 0;
    }
    hzp_plan_fini(&plan);
    return needed;
}

static void test_no_race(void **state)
{
    enum { MICROS = 6 };
    for (int i = 0; i < 8; i++)
        for (int32_t stages = 2; stages <= 4; stages++) {
            struct hzp_stage_path path[MICROS] = {0};
            for (int32_t m = 0; m < MICROS && i > 1; m++)
                path[m] = random_path(stages);
            struct tiny_config config = defaults(i ? HZP_BF16 : HZP_F32, stages, i == 0);
            config.recipe.recompute = i ? HZP_RECOMPUTE_LAYER : HZP_RECOMPUTE_NONE;
            struct ranks *r = ranks_open(&config, 0, false);
            tiny_publish(r->first);
            for (int32_t rank = 0; rank < stages; rank++) {
                struct hzp_learner *l = rank ? hzp_learner_by_link_learner(r->other[rank].learner)
                                             : hzp_trainer_learner(r->first->trainer);
                int32_t visits = 0;
                for (int32_t m = 0; m < MICROS; m++)
                    for (int32_t k = 0; k < HZP_MAX(path[m].count, 1); k++)
                        visits += !path[m].count || path[m].stage[k] == rank;
                /* all but the forward tasks of rank 0, which has the tokens */
                assert_int_equal(prove(l, MICROS, path), 2 * visits);
            }
            ranks_close(r);
        }
    assert_true(no_place > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_cut_even),
        cmocka_unit_test(test_cut_by_speeds),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_no_race),
        cmocka_unit_test(test_order_of_paths),
        cmocka_unit_test(test_layers_of_paths),
        cmocka_unit_test(test_planned),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
