/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_ranks.c - training on several ranks of one process, over the local link, gives
 * what one rank gives: in the ordered mode the same bits for every choice of groups, otherwise the
 * same up to rounding. */
#include "tests/train/ranks.h"
#include "train/learner/collectives_state.h"
#include "train/conductor/trainer_state.h"
#include "tests/train/newest.h"

#include "device/backend.h"

#include <stdio.h>
#include <unistd.h>

enum { UPDATES = 20 };

static struct tiny_config defaults(enum hzp_dtype type, struct hzp_groups groups, bool ordered)
{
    struct tiny_config config = tiny_defaults();
    config.type = type;
    config.recipe.moment_type = type;
    config.recipe.update_tokens = 90;
    config.recipe.micro_rows = 14; /* several micro-batches an update, not a multiple of ranks */
    config.queue.passes = 30;
    config.layers = 3;
    config.shards = (struct hzp_shards){.groups = groups, .ordered = ordered};
    return config;
}

static struct tiny *run_one(struct tiny_config config)
{
    config.shards.groups = (struct hzp_groups){0};
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 40);
    while (t->reports < UPDATES)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    return t;
}

/* Whether a micro-batch has begun while the draft that it reads is not whole. */
static bool overlaps(const struct hzp_trainer *t)
{
    return t->learner->tail && t->stage == HZP_TRAINER_ACCUMULATE;
}

/* Updates that overlap with the one behind them: all whose round has so many samples left. */
static int32_t overlapped;

static struct ranks *run_ranks(const struct tiny_config *config, int lag)
{
    struct ranks *r = ranks_open(config, lag, false);
    int32_t seen = -1;
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    overlapped = 0;
    while (r->first->reports < UPDATES) {
        assert_true(ranks_turn(r));
        if (overlaps(r->first->trainer) && seen != r->first->reports) {
            seen = r->first->reports;
            overlapped++;
        }
    }
    return r;
}

/* The resident part of each of b's units has the same bytes as that part of a's, which are whole.
 * */
static void assert_part(const struct hzp_units *a, const struct hzp_units *b, const char *what)
{
    for (int32_t u = 0; u < a->layout->units; u++) {
        struct hzp_unit_view x = hzp_unit_view(a, u), y = hzp_unit_view(b, u);
        size_t size = hzp_dtype_size(x.type);
        assert_int_equal(x.elements, y.elements);
        if (memcmp((char *)x.base + y.part.first * size, y.base, y.part.count * size))
            fail_msg("%s differ in unit %d", what, u);
    }
}

static void assert_space(struct hzp_train_space *a, struct hzp_train_space *b)
{
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++) {
        enum hzp_state_part part = (enum hzp_state_part)p;
        if (hzp_train_space_part(a, part))
            assert_part(hzp_train_space_part(a, part), hzp_train_space_part(b, part),
                        hzp_state_part_name(part));
    }
}

static void assert_same(struct tiny *one, struct ranks *r)
{
    struct hzp_version_record a, b;
    hzp_weights_newest(one->weights, &a);
    hzp_weights_newest(r->first->weights, &b);
    assert_int_equal(a.optimizer_step, b.optimizer_step);
    assert_true(a.checksum == b.checksum);
    assert_true(!memcmp(&a.loss, &b.loss, sizeof(a.loss)));
    for (int32_t i = 0; i < UPDATES; i++) {
        const struct hzp_update_report *x = &one->report[i], *y = &r->first->report[i];
        assert_true(x->loss == y->loss && x->grad_norm == y->grad_norm);
        assert_int_equal(x->learned_tokens, y->learned_tokens);
        assert_int_equal(x->rows, y->rows);
    }
    assert_part(tiny_units(one), tiny_units(r->first), "weights");
    assert_space(hzp_trainer_space(one->trainer), hzp_trainer_space(r->first->trainer));
    for (int32_t i = 1; i < r->count; i++) {
        struct hzp_weights *w = r->other[i].fixture.weights;
        assert_part(tiny_units(one), hzp_version_units(w, hzp_weights_current(w)), "weights");
        assert_space(hzp_trainer_space(one->trainer),
                     hzp_learner_by_link_learner(r->other[i].learner)->space);
    }
}

/* --long: what each triple is tried with, and not some of them. */
static bool long_form;

/* Whether the triple shares nothing, all, or each of the three among other ranks. */
static bool is_corner(const struct hzp_groups *g)
{
    bool alike = g->z1 == g->z2 && g->z2 == g->z3 && (g->z1 == 1 || g->z1 == g->ranks);
    return alike || (g->z1 != g->z2 && g->z2 != g->z3);
}

/* Calls check for every valid triple of 2 and of 4 ranks, with both types; corners: for a few. */
static int each(void (*check)(enum hzp_dtype type, struct hzp_groups groups), bool corners)
{
    int n = 0;
    for (int32_t ranks = 2; ranks <= 4; ranks += 2)
        for (int32_t z1 = 1; z1 <= ranks; z1++)
            for (int32_t z2 = 1; z2 <= z1; z2++)
                for (int32_t z3 = 1; z3 <= z2; z3++) {
                    struct hzp_groups g = {ranks, z1, z2, z3};
                    if (hzp_groups_check(&g, NULL) < 0 || (corners && !is_corner(&g)))
                        continue;
                    check(HZP_F32, g);
                    check(HZP_BF16, g);
                    n++;
                }
    return n;
}

/* One rank's run of each type, which the others are compared with. */
static struct tiny *one_of[2];

static struct tiny *get_one(enum hzp_dtype type, struct tiny_config config)
{
    struct tiny **one = &one_of[type == HZP_BF16];
    if (!*one)
        *one = run_one(config);
    return *one;
}

static void close_ones(void)
{
    for (int i = 0; i < 2; i++) {
        tiny_close(one_of[i]);
        one_of[i] = NULL;
    }
}

static void check_ordered(enum hzp_dtype type, struct hzp_groups groups)
{
    struct tiny_config config = defaults(type, groups, true);
    struct tiny *one = get_one(type, config);
    struct ranks *r = run_ranks(&config, 5);
    assert_same(one, r);
    assert_true(overlapped >= UPDATES / 2);
    ranks_close(r);
}

static void test_ordered(void **state)
{
    assert_int_equal(each(check_ordered, false), 4 + 10);
    close_ones();
}

/* --- Not ordered ------------------------------------------------------------------------------ */

/* Sums go in another order, so numbers differ by rounding; AdamW's first steps, which divide by the
 * gradient's size, let that grow where a gradient is tiny. */
static void check_plain(enum hzp_dtype type, struct hzp_groups groups)
{
    struct tiny_config config = defaults(type, groups, false);
    struct tiny *one = get_one(type, config);
    struct ranks *r = run_ranks(&config, 3);
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
}

/* --- Layers that are left out ----------------------------------------------------------------- */

static struct tiny_config leaving_out(enum hzp_dtype type, struct hzp_groups groups, bool ordered)
{
    struct tiny_config config = defaults(type, groups, ordered);
    config.layers = 8;
    config.recipe.skip = 0.4f;
    config.recipe.swap = 1;
    config.recipe.seed = 5;
    return config;
}

/* In the ordered mode an update has one path, whatever the number of ranks. */
static void check_ordered_paths(enum hzp_dtype type, struct hzp_groups groups)
{
    struct tiny_config config = leaving_out(type, groups, true);
    struct tiny *one = get_one(type, config);
    struct ranks *r = run_ranks(&config, 5);
    assert_same(one, r);
    for (int32_t i = 0; i < UPDATES; i++) {
        assert_string_equal(r->first->report[i].paths.left_out, one->report[i].paths.left_out);
        assert_null(strchr(r->first->report[i].paths.left_out, '/'));
        assert_int_equal(r->first->report[i].paths.layers, 5);
    }
    ranks_close(r);
}

/* What 2 and 4 ranks that share nothing report, with each type; not known yet: without updates. */
static struct hzp_update_report whole_of[2][2][UPDATES];

static const struct hzp_update_report *report_whole(enum hzp_dtype type, struct tiny_config config)
{
    int32_t ranks = config.shards.groups.ranks;
    struct hzp_update_report *ret = whole_of[ranks == 4][type == HZP_BF16];
    if (ret[0].optimizer_step)
        return ret;
    config.shards.groups = (struct hzp_groups){ranks, 1, 1, 1};
    struct ranks *r = run_ranks(&config, 3);
    memcpy(ret, r->first->report, UPDATES * sizeof(*ret));
    ranks_close(r);
    return ret;
}

/* Otherwise a round has one; so many ranks have the same ones however they share the state. */
static void check_plain_paths(enum hzp_dtype type, struct hzp_groups groups)
{
    struct tiny_config config = leaving_out(type, groups, false);
    const struct hzp_update_report *whole = report_whole(type, config);
    struct ranks *r = run_ranks(&config, 3);
    bool rounds = false;
    for (int32_t i = 0; i < UPDATES; i++) {
        const struct hzp_update_report *x = &whole[i], *y = &r->first->report[i];
        assert_string_equal(x->paths.left_out, y->paths.left_out);
        rounds |= strchr(x->paths.left_out, '/') != NULL;
        if (!(fabs(x->loss - y->loss) < (type == HZP_F32 ? 1e-3 : 2e-2)))
            fail_msg("loss of update %d differs by %g", i + 1, x->loss - y->loss);
    }
    assert_true(rounds);
    assert_true(fabs(whole[0].grad_norm / r->first->report[0].grad_norm - 1) <= 1e-5);
    ranks_close(r);
}

static void test_paths(void **state)
{
    int triples = long_form ? 4 + 10 : 2 + 3;
    assert_int_equal(each(check_ordered_paths, !long_form), triples);
    close_ones();
    assert_int_equal(each(check_plain_paths, !long_form), triples);
}

static void test_plain(void **state)
{
    each(check_plain, false);
    close_ones();
}

/* An untied model, whose embedding is in the rings. */
static void test_untied(void **state)
{
    static const struct hzp_groups groups[] = {{2, 2, 2, 2}, {4, 4, 2, 1}, {4, 4, 4, 2}};
    struct tiny_config config = defaults(HZP_BF16, groups[0], true);
    config.untied = true;
    struct tiny *one = run_one(config);
    for (int i = 0; i < HZP_COUNT(groups); i++) {
        config.shards.groups = groups[i];
        struct ranks *r = run_ranks(&config, 5);
        assert_same(one, r);
        ranks_close(r);
    }
    tiny_close(one);
}

/* Moments in 8 bits: shards end where blocks do. */
static void test_codes(void **state)
{
    static const struct hzp_groups groups[] = {{2, 2, 1, 1}, {4, 2, 1, 1}, {4, 4, 2, 1}};
    for (int untied = 0; untied < 2; untied++) {
        struct tiny_config config = defaults(untied ? HZP_F32 : HZP_BF16, groups[0], true);
        config.recipe.moment_type = HZP_Q8;
        config.untied = untied;
        config.width = 48;
        struct tiny *one = run_one(config);
        for (int i = 0; i < HZP_COUNT(groups); i++) {
            config.shards.groups = groups[i];
            struct ranks *r = run_ranks(&config, 5);
            assert_same(one, r);
            ranks_close(r);
        }
        tiny_close(one);
    }
}

/* --- Checkpoints ------------------------------------------------------------------------------ */

static char dir[64];

static int make_dir(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/hzp-ranks-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    unlink(path);
    return rmdir(dir);
}

static char *read_file(size_t *ret_size)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *ret_size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*ret_size);
    assert_int_equal(fread(data, *ret_size, 1, file), 1);
    fclose(file);
    return data;
}

/* Draws that a resumed run has behind it. */
static void skip_draws(struct tiny *t)
{
    const struct hzp_sample *draw[256];
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(t->trainer, &stats);
    for (int64_t i = 0; i < stats.draws; i++) {
        hzp_sample_queue_draw(t->queue, t->config.recipe.update_tokens, draw, 256);
        hzp_sample_queue_done(t->queue);
    }
}

/* Loads the state in dir, with one rank's weights of the same moment, and goes on to UPDATES. */
static struct ranks *resume(struct tiny_config config, const struct hzp_units *weights)
{
    struct hzp_err_text text = {{0}, {0}};
    struct ranks *r = ranks_open(&config, 0, true);
    for (int32_t i = 0; i < r->count; i++) {
        struct hzp_weights *w = i ? r->other[i].fixture.weights : r->first->weights;
        struct hzp_version *v = i ? hzp_weights_current(w) : r->first->draft;
        for (int32_t u = 0; u < weights->layout->units; u++) {
            struct hzp_unit_view from = hzp_unit_view(weights, u);
            memcpy(hzp_version_unit(w, v, u).base, from.base, hzp_unit_bytes(&from));
        }
    }
    TINY_MUST(hzp_trainer_load(r->first->trainer, r->first->draft, dir, true, NULL, &text));
    for (int32_t i = 1; i < r->count; i++) {
        struct hzp_version *v = hzp_weights_current(r->other[i].fixture.weights);
        TINY_MUST(hzp_learner_by_link_load(r->other[i].learner, v, dir, true, &text));
    }
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    skip_draws(r->first);
    return r;
}

/* The same bytes saved at any number of ranks; and what was saved at one is resumed at any other.
 * */
static void check_checkpoint(enum hzp_dtype moments, int32_t width)
{
    static const struct hzp_groups groups[] = {{2, 2, 1, 1}, {4, 2, 2, 1}, {4, 4, 4, 1}};
    struct hzp_err_text text = {{0}, {0}};
    enum { HALF = 7 };
    struct tiny_config config = defaults(HZP_BF16, groups[0], true);
    config.recipe.moment_type = moments;
    config.width = width;
    struct tiny *whole = run_one(config), *half;
    struct tiny_config alone = config;
    alone.shards.groups = (struct hzp_groups){0};
    half = tiny_open(&alone);
    tiny_publish(half);
    tiny_push(half, 1, 40);
    while (half->reports < HALF)
        hzp_loop_turn(half->loop);
    TINY_MUST(hzp_trainer_save(half->trainer, hzp_weights_current(half->weights), dir, "x", &text));
    size_t size, again;
    char *bytes = read_file(&size);
    for (int i = 0; i < HZP_COUNT(groups); i++) {
        config.shards.groups = groups[i];
        /* from one rank to several */
        struct ranks *r = resume(config, tiny_units(half));
        while (r->first->reports < UPDATES - HALF)
            ranks_turn(r);
        for (int32_t k = 0; k < UPDATES - HALF; k++)
            assert_true(r->first->report[k].loss == whole->report[HALF + k].loss);
        assert_space(hzp_trainer_space(whole->trainer), hzp_trainer_space(r->first->trainer));
        ranks_close(r);
        /* from several ranks: the same bytes */
        r = ranks_open(&config, 0, true);
        tiny_publish(r->first);
        tiny_push(r->first, 1, 40);
        while (r->first->reports < HALF)
            ranks_turn(r);
        ranks_rest(r->first);
        TINY_MUST(hzp_trainer_save(r->first->trainer, hzp_weights_current(r->first->weights), dir,
                                   "x", &text));
        char *others = read_file(&again);
        assert_int_equal(size, again);
        assert_memory_equal(bytes, others, size);
        free(others);
        ranks_close(r);
    }
    free(bytes);
    tiny_close(half);
    tiny_close(whole);
}

static void test_checkpoint(void **state)
{
    check_checkpoint(HZP_BF16, 0);
    check_checkpoint(HZP_Q8, 48); /* units of several shards */
}

/* Rank 0 gathers weights of which it has only a shard. */
static void test_weights_gathered(void **state)
{
    struct hzp_groups groups = {4, 4, 4, 2};
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config config = defaults(HZP_BF16, groups, true);
    struct tiny *one = run_one(config);
    struct ranks *r = ranks_open(&config, 0, true);
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    while (r->first->reports < UPDATES)
        ranks_turn(r);
    ranks_rest(r->first);
    struct hzp_train_state gathered;
    uint64_t sum, want;
    hzp_trainer_state(r->first->trainer, hzp_weights_current(r->first->weights), &gathered);
    TINY_MUST(hzp_unit_stream(&gathered.source, HZP_STATE_WEIGHTS, NULL, NULL, &sum, &text));
    TINY_MUST(hzp_units_checksum(one->fixture.dev, tiny_units(one), &want));
    assert_int_equal(sum, want);
    ranks_close(r);
    tiny_close(one);
}

/* The file thread saves while the engine runs: the trainer is frozen, ranks listen. */
struct saver {
    struct ranks *r;
    pthread_t thread;
    int result;
    struct hzp_err_text text;
    _Atomic bool done;
};

static void *save(void *arg)
{
    struct saver *s = arg;
    struct tiny *t = s->r->first;
    assert_int_equal(hzp_loop_call(t->loop, hzp_trainer_freeze, t->trainer), HZP_OK);
    struct hzp_version *v = hzp_trainer_frozen(t->trainer);
    s->result = hzp_trainer_save(t->trainer, v, dir, "x", &s->text);
    assert_int_equal(hzp_loop_call(t->loop, hzp_trainer_thaw, t->trainer), HZP_OK);
    s->done = true;
    return NULL;
}

static void run_saver(struct ranks *r)
{
    struct saver saver = {.r = r};
    assert_int_equal(hzp_thread_start(&saver.thread, "saver", save, &saver), HZP_OK);
    while (!saver.done)
        ranks_turn(r);
    pthread_join(saver.thread, NULL);
    if (saver.result < 0)
        fail_msg("%s", saver.text.text);
}

/* Each time the state of that moment, as the engine's thread reads it unit by unit. */
static void test_saved_by_another_thread(void **state)
{
    struct hzp_groups groups = {2, 2, 2, 1};
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config config = defaults(HZP_F32, groups, true);
    struct ranks *r = ranks_open(&config, 0, true);
    size_t size[2];
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    for (int i = 0; i < 2; i++) {
        int32_t before = r->first->reports;
        while (r->first->reports < before + 3)
            ranks_turn(r);
        run_saver(r);
    }
    ranks_rest(r->first);
    hzp_trainer_pause(r->first->trainer, true);
    run_saver(r);
    char *one = read_file(&size[0]);
    TINY_MUST(hzp_trainer_save(r->first->trainer, hzp_weights_current(r->first->weights), dir, "x",
                               &text));
    char *other = read_file(&size[1]);
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(one, other, size[0]);
    free(one);
    free(other);
    hzp_trainer_pause(r->first->trainer, false);
    int32_t before = r->first->reports;
    while (r->first->reports < before + 3) /* and goes on */
        ranks_turn(r);
    ranks_close(r);
}

/* --- What goes wrong -------------------------------------------------------------------------- */

static hzp_op_fn *real_xent;
static int32_t poison_left;

/* Makes a row's loss and gradient NaN, once. */
static int poisoned_xent(struct hzp_lane *lane, const void *args)
{
    const struct hzp_xent_args *a = args;
    int r = real_xent(lane, args);
    if (poison_left > 0 && a->dx.ptr && a->x.rows > 0) {
        poison_left--;
        ((float *)a->dx.ptr)[0] = NAN;
    }
    return r;
}

/* A gradient of another rank is not finite: all ranks undo the update, and repeat it. */
static void test_not_finite(void **state)
{
    struct hzp_groups groups = {2, 2, 2, 1};
    struct tiny_config config = defaults(HZP_F32, groups, true);
    struct tiny *one = run_one(config);
    struct ranks *r = ranks_open(&config, 2, false);
    struct hzp_device *dev = r->other[1].fixture.dev;
    real_xent = dev->op[HZP_OP_xent];
    dev->op[HZP_OP_xent] = poisoned_xent;
    poison_left = 1;
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    while (r->first->reports < UPDATES + 1)
        assert_true(ranks_turn(r));
    assert_int_equal(poison_left, 0);
    assert_true(r->first->report[0].skipped && !r->first->report[0].broken);
    memmove(&r->first->report[0], &r->first->report[1], UPDATES * sizeof(r->first->report[0]));
    assert_same(one, r);
    ranks_close(r);
    tiny_close(one);
}

/* The second update is not finite twice and is given up.  The first one overlaps with it; what was
 * drawn ahead of the second is learned in its turn, as by one rank. */
static void test_given_up(void **state)
{
    struct hzp_groups groups = {2, 2, 2, 1};
    struct tiny_config config = defaults(HZP_F32, groups, true), alone = config;
    alone.shards.groups = (struct hzp_groups){0};
    struct tiny *one = tiny_open(&alone);
    struct ranks *r = ranks_open(&config, 2, false);
    struct hzp_device *dev[] = {one->fixture.dev, r->other[1].fixture.dev};
    int32_t poisoned = 0;
    real_xent = dev[0]->op[HZP_OP_xent];
    dev[0]->op[HZP_OP_xent] = dev[1]->op[HZP_OP_xent] = poisoned_xent;
    tiny_publish(one);
    tiny_push(one, 1, 40);
    while (one->reports < UPDATES + 1) {
        assert_int_equal(hzp_loop_turn(one->loop), 1);
        if (poisoned < 2 && one->reports > poisoned)
            poison_left = 1, poisoned++;
    }
    poisoned = poison_left = 0;
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    while (r->first->reports < UPDATES + 1) {
        assert_true(ranks_turn(r));
        bool second = poisoned ? r->first->reports > poisoned : overlaps(r->first->trainer);
        if (poisoned < 2 && second)
            poison_left = 1, poisoned++;
    }
    for (int i = 0; i < 2; i++) {
        const struct hzp_update_report *report = i ? r->first->report : one->report;
        assert_false(report[0].skipped);
        assert_true(report[1].skipped && !report[1].dropped);
        assert_true(report[2].dropped && report[2].first_sequence == report[1].first_sequence);
        assert_false(report[3].skipped);
    }
    for (int32_t i = 3; i <= UPDATES; i++) {
        assert_int_equal(one->report[i].first_sequence, r->first->report[i].first_sequence);
        assert_true(one->report[i].loss == r->first->report[i].loss);
    }
    assert_space(hzp_trainer_space(one->trainer), hzp_trainer_space(r->first->trainer));
    ranks_close(r);
    tiny_close(one);
}

static bool offer_nothing(struct hzp_source *source, const struct hzp_step *step,
                          struct hzp_room *room, struct hzp_offer *offer)
{
    return true;
}

static int32_t delivered;

static void count_step(struct hzp_source *source, const struct hzp_step *step,
                       const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    assert_int_equal(outcome->status, HZP_OK);
    delivered++;
}

static bool never_busy(struct hzp_source *source)
{
    return false;
}

/* Whatever the other ranks have come to when they stop taking part, the steps of rank 0 go on, and
 * begin and end without them. */
static void test_steps_go_on(void **state)
{
    static const struct hzp_groups groups[] = {{2, 2, 2, 2}, {2, 2, 1, 1}};
    struct hzp_source serving = {
        .name = "serve", .offer = offer_nothing, .deliver = count_step, .busy = never_busy};
    int32_t in_tail = 0;
    for (int g = 0; g < HZP_COUNT(groups); g++)
        for (int32_t instant = 0; instant < 60; instant++) {
            struct tiny_config config = defaults(HZP_F32, groups[g], false);
            config.other = &serving;
            struct ranks *r = ranks_open(&config, 0, false);
            tiny_publish(r->first);
            tiny_push(r->first, 1, 40);
            for (int32_t i = 0; i < 3 * instant; i++)
                assert_true(ranks_turn(r));
            delivered = 0;
            for (int i = 0; i < 50; i++)
                assert_int_equal(hzp_loop_turn(r->first->loop), 1);
            assert_int_equal(delivered, 50);
            assert_true(hzp_trainer_awaits_ranks(r->first->trainer));
            in_tail += r->first->trainer->learner->tail;
            ranks_close(r);
        }
    assert_true(in_tail > 0);
}

/* Whether rank 0 has audited its draft, and waits for the other ranks' results. */
static bool waits_for_results(const struct hzp_trainer *t)
{
    const struct hzp_collectives *x = t->learner->collectives;
    return t->learner->tail && x->audit.built && x->audit.at == x->audit.chain.items &&
           !hzp_collectives_whole(x);
}

/* With run-ahead a step is delivered while the next one is in flight, which was formed before all
 * ranks had audited the draft: where its answers would exceed the staleness bound, the version is
 * published with a step after which the next one waits. */
static void check_run_ahead(int32_t bound)
{
    struct tiny_config config = defaults(HZP_F32, (struct hzp_groups){2, 2, 1, 1}, true);
    config.max_staleness = bound;
    struct ranks *r = ranks_open(&config, 0, false);
    struct hzp_trainer *t = r->first->trainer;
    struct hzp_source *source = hzp_trainer_source(t);
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    while (!waits_for_results(t))
        if (hzp_loop_turn(r->first->loop) <= 0)
            hzp_loop_turn(r->other[1].loop);
    uint64_t now = hzp_device_now_ns(r->first->fixture.model->dev);
    struct hzp_step before = {.number = 100000, .begin_ns = now};
    struct hzp_step step = {.number = 100001, .begin_ns = now};
    struct hzp_step after = {.number = 100002, .begin_ns = now};
    struct hzp_room room = {.train_ns = 0};
    struct hzp_offer none = {.slices = 0}, offer = none;
    struct hzp_outcome outcome = {.status = HZP_OK};
    source->offer(source, &step, &room, &offer);
    assert_int_equal(offer.settle, HZP_SETTLE_NOTHING);
    while (!hzp_collectives_whole(t->learner->collectives)) {
        hzp_loop_turn(r->other[1].loop);
        assert_int_equal(hzp_trainer_turn_ranks(t), HZP_OK);
    }
    source->deliver(source, &before, &none, &outcome);
    assert_int_equal(hzp_weights_current(r->first->weights)->record.id, bound ? 2 : 1);
    if (!bound) {
        assert_true(source->offer(source, &after, &room, &offer));
        assert_int_equal(offer.settle, HZP_SETTLE_ALL);
        source->deliver(source, &step, &none, &outcome);
        assert_int_equal(hzp_weights_current(r->first->weights)->record.id, 1);
        source->deliver(source, &after, &offer, &outcome);
        assert_int_equal(hzp_weights_current(r->first->weights)->record.id, 2);
    }
    ranks_close(r);
}

static void test_run_ahead(void **state)
{
    check_run_ahead(0);
    check_run_ahead(1);
}

/* A rank that goes away in the middle of an update stops training, and is named; the loop and the
 * version that serves stay. */
static void test_rank_lost(void **state)
{
    struct hzp_groups groups = {4, 4, 1, 1};
    struct tiny_config config = defaults(HZP_F32, groups, false);
    struct ranks *r = ranks_open(&config, 0, false);
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    while (r->first->reports < 2)
        assert_true(ranks_turn(r));
    uint64_t id = hzp_weights_current(r->first->weights)->record.id;
    hzp_link_abort(r->link[2], 2, "was pulled out");
    for (int i = 0; i < 100; i++)
        ranks_turn(r);
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(r->first->trainer, &stats);
    assert_true(stats.broken);
    assert_non_null(strstr(stats.failure, "rank 2: was pulled out"));
    assert_int_equal(hzp_weights_current(r->first->weights)->record.id, id);
    assert_int_equal(hzp_loop_turn(r->first->loop), 0);
    struct hzp_learner_by_link_stats other;
    hzp_learner_by_link_read_stats(r->other[1].learner, &other);
    assert_non_null(strstr(other.failure, "rank 2: was pulled out"));
    ranks_close(r);
}

/* The same at many instants: the version that serves is whole. */
static void test_rank_lost_any_time(void **state)
{
    struct hzp_groups groups = {2, 2, 2, 1};
    struct tiny_config config = defaults(HZP_F32, groups, true);
    int32_t in_tail = 0;
    for (int32_t instant = 0; instant < 60; instant++) {
        struct ranks *r = ranks_open(&config, 3, false);
        tiny_publish(r->first);
        tiny_push(r->first, 1, 40);
        while (r->first->reports < 1)
            assert_true(ranks_turn(r));
        for (int32_t i = 0; i < 3 * instant; i++)
            assert_true(ranks_turn(r));
        in_tail += overlaps(r->first->trainer);
        hzp_link_abort(r->link[1], 1, "was pulled out");
        for (int i = 0; i < 20; i++)
            ranks_turn(r);
        struct hzp_trainer_stats stats;
        struct hzp_err_text text = {{0}, {0}};
        uint64_t checksum;
        struct hzp_version *v = hzp_weights_current(r->first->weights);
        hzp_trainer_read_stats(r->first->trainer, &stats);
        assert_true(stats.broken);
        TINY_MUST(hzp_units_checksum(r->first->fixture.dev, hzp_version_units(r->first->weights, v),
                                     &checksum));
        assert_true(checksum == v->record.checksum);
        assert_int_equal(v->record.optimizer_step, stats.optimizer_step);
        /* the version can still be exported */
        assert_int_equal(tiny_border(r->first, hzp_trainer_freeze), HZP_OK);
        assert_ptr_equal(hzp_trainer_frozen(r->first->trainer), v);
        tiny_border(r->first, hzp_trainer_thaw);
        ranks_close(r);
    }
    assert_true(in_tail > 0);
}

int main(int argc, char **argv)
{
    long_form = argc > 1 && !strcmp(argv[1], "--long");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_untied),
        cmocka_unit_test(test_codes),
        cmocka_unit_test_setup_teardown(test_checkpoint, make_dir, drop_dir),
        cmocka_unit_test(test_weights_gathered),
        cmocka_unit_test_setup_teardown(test_saved_by_another_thread, make_dir, drop_dir),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_steps_go_on),
        cmocka_unit_test(test_run_ahead),
        cmocka_unit_test(test_rank_lost),
        cmocka_unit_test(test_rank_lost_any_time),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
