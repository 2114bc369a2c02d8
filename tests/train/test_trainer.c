/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/train/tiny.h"
#include "train/conductor/trainer_state.h"
#include "tests/train/samples.h"
#include "tests/train/newest.h"

/* --- Learning --------------------------------------------------------------------------------- */

static void test_loss_falls(void **state)
{
    static const enum hzp_dtype types[] = {HZP_F32, HZP_BF16};
    for (int i = 0; i < HZP_COUNT(types); i++) {
        struct tiny_config config = tiny_defaults();
        config.type = types[i];
        config.queue.passes = 60;
        struct tiny *t = tiny_open(&config);
        tiny_publish(t);
        tiny_push(t, 1, 8);
        tiny_run(t);
        assert_true(t->reports >= 60);
        double first = t->report[0].loss, last = t->report[t->reports - 1].loss;
        assert_true(fabs(first - log(TINY_VOCAB)) < 0.5); /* nothing learned yet */
        if (!(last < 0.3 * first))
            fail_msg("loss went from %g to %g", first, last);
        struct hzp_version_record record;
        hzp_weights_newest(t->weights, &record);
        assert_int_equal(record.optimizer_step, t->reports);
        assert_int_equal(record.id, t->reports + 1);
        assert_int_equal(record.learned_through, 8);
        uint64_t checksum;
        assert_int_equal(hzp_units_checksum(NULL, tiny_units(t), &checksum), HZP_OK);
        assert_int_equal(record.checksum, checksum);
        tiny_close(t);
    }
}

static struct tiny *run_with_rows(int32_t micro_rows, uint64_t idle_ns)
{
    struct tiny_config config = tiny_defaults();
    config.recipe.micro_rows = micro_rows;
    config.recipe.update_tokens = 1000;
    config.queue.passes = 3;
    config.idle_ns = idle_ns;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 16);
    tiny_run(t);
    assert_int_equal(t->reports, 3);
    assert_int_equal(t->report[0].samples, 16);
    return t;
}

static void test_accumulation(void **state)
{
    struct tiny *one = run_with_rows(200, 1000000000); /* 1 x 16 */
    struct tiny *many = run_with_rows(11, 1000000000); /* one for each long document */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(one->report[i].learned_tokens, many->report[i].learned_tokens);
        assert_true(fabs(one->report[i].loss - many->report[i].loss) < 1e-6);
        assert_true(fabs(one->report[i].grad_norm - many->report[i].grad_norm) < 1e-6);
    }
    double worst = 0;
    for (int32_t u = 0; u < one->fixture.layout.units; u++) {
        struct hzp_unit_view a = hzp_unit_view(tiny_units(one), u);
        const float *x = a.base, *y = hzp_unit_view(tiny_units(many), u).base;
        for (size_t i = 0; i < a.elements; i++) {
            double off = fabs((double)x[i] - (double)y[i]);
            worst = HZP_MAX(worst, off);
        }
    }
    /* AdamW's first steps divide by the gradient's size, so its rounding shows where it is tiny. */
    if (!(worst < 1e-4))
        fail_msg("parameters differ by %g", worst);
    tiny_close(one);
    tiny_close(many);
}

static void test_slices_change_nothing(void **state)
{
    struct tiny *whole = run_with_rows(32, 1000000000);
    struct tiny *item_by_item = run_with_rows(32, 1);
    tiny_assert_same(whole, item_by_item);
    struct hzp_loop_stats a, b;
    hzp_loop_read_stats(whole->loop, &a);
    hzp_loop_read_stats(item_by_item->loop, &b);
    assert_true(b.steps > 20 * a.steps);
    tiny_close(whole);
    tiny_close(item_by_item);
}

/* --- Preparing memory ------------------------------------------------------------------------- */

static bool is_zero(const struct hzp_units *units)
{
    for (int32_t u = 0; u < units->layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(units, u);
        for (size_t i = 0; i < hzp_unit_bytes(&view); i++)
            if (((const unsigned char *)view.base)[i])
                return false;
    }
    return true;
}

static bool preparing(const struct tiny *t)
{
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(t->trainer, &stats);
    return stats.preparing;
}

/* Memory that is prepared behind, from whatever it held before, is zeroed by steps of its own
 * before anything is learned; what is learned then is the same, bit for bit. */
static void test_prepares_behind(void **state)
{
    static const enum hzp_dtype types[] = {HZP_F32, HZP_BF16};
    setenv("HZP_POISON", "1", 1);
    for (int i = 0; i < HZP_COUNT(types); i++) {
        struct tiny_config config = tiny_defaults();
        config.type = types[i];
        struct tiny *at_once = tiny_open(&config);
        config.prepares = true;
        config.idle_ns = 1; /* one item a step */
        struct tiny *behind = tiny_open(&config);
        struct hzp_source *source = hzp_trainer_source(behind->trainer);
        struct hzp_train_space *space = hzp_trainer_space(behind->trainer);
        tiny_publish(at_once);
        tiny_publish(behind);
        assert_false(preparing(at_once));
        assert_true(preparing(behind));
        assert_false(is_zero(hzp_train_space_m(space)));
        assert_int_equal(hzp_loop_turn(behind->loop), 1); /* though no sample waits */
        assert_true(preparing(behind));
        assert_false(source->busy(source)); /* a server that stops need not finish it */
        assert_false(hzp_trainer_idle(behind->trainer));
        if (i)
            tiny_run(behind);
        else /* a sample comes meanwhile: it waits */
            tiny_push(behind, 1, 20);
        while (preparing(behind))
            assert_int_equal(hzp_loop_turn(behind->loop), 1);
        assert_int_equal(behind->reports, 0);
        assert_true(is_zero(hzp_train_space_m(space)) && is_zero(hzp_train_space_v(space)));
        if (i)
            tiny_push(behind, 1, 20);
        tiny_push(at_once, 1, 20);
        tiny_run(behind);
        tiny_run(at_once);
        assert_true(behind->reports > 0);
        tiny_assert_same(at_once, behind);
        tiny_close(at_once);
        tiny_close(behind);
    }
    unsetenv("HZP_POISON");
}

/* --- Staleness -------------------------------------------------------------------------------- */

/* A slow reader: holds versions for a while, and checks the staleness in every step. */
struct reader {
    struct hzp_source source;
    struct tiny *t;
    struct hzp_version *held[2];
    int64_t bound, worst;
    uint64_t last_id;
    int quiet; /* turns left without work */
};

static bool reader_offer(struct hzp_source *source, const struct hzp_step *step,
                         struct hzp_room *room, struct hzp_offer *offer)
{
    struct reader *r = HZP_CONTAINER_OF(source, struct reader, source);
    struct hzp_weights *w = r->t->weights;
    assert_ptr_equal(step->version, hzp_weights_current(w));
    assert_true(step->version->record.id >= r->last_id);
    r->last_id = step->version->record.id;
    int64_t staleness = hzp_weights_staleness(w);
    r->worst = HZP_MAX(r->worst, staleness);
    assert_true(staleness <= r->bound);
    for (int i = 0; i < 2; i++) {
        if (!r->held[i] && rand() % 20 == 0) {
            r->held[i] = hzp_weights_acquire(w);
        } else if (r->held[i] && rand() % 40 == 0) {
            hzp_weights_release(w, r->held[i], step->number);
            r->held[i] = NULL;
        }
    }
    return r->quiet-- > 0; /* keeps the loop turning while the trainer waits */
}

static void reader_deliver(struct hzp_source *source, const struct hzp_step *step,
                           const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    assert_true(outcome->status >= 0);
}

static void test_staleness(void **state)
{
    int64_t worst = 0;
    uint64_t waited = 0;
    for (unsigned seed = 1; seed <= 40; seed++) {
        srand(seed);
        struct reader reader = {.source = {.name = "reader",
                                           .slices = true,
                                           .offer = reader_offer,
                                           .deliver = reader_deliver}};
        struct tiny_config config = tiny_defaults();
        config.slots = 2 + rand() % 2;
        config.max_staleness = rand() % 4;
        config.recipe.publish_every = 1 + rand() % 5;
        config.recipe.update_tokens = 8 + rand() % 40;
        config.idle_ns = rand() % 2 ? 20000 : 1000000000;
        config.other = &reader.source;
        reader.bound = config.max_staleness;
        struct tiny *t = tiny_open(&config);
        reader.t = t;
        reader.quiet = 100000;
        tiny_publish(t);
        int64_t next = 1;
        struct hzp_trainer_stats stats;
        for (int turn = 0; turn < 1500; turn++) {
            if (next < 200 && rand() % 10 == 0) {
                int32_t n = 1 + rand() % 6;
                tiny_push(t, next, n);
                next += n;
            }
            assert_int_equal(hzp_loop_turn(t->loop), 1);
            hzp_trainer_read_stats(t->trainer, &stats);
            waited += stats.waiting_for_slot;
        }
        hzp_trainer_finish(t->trainer);
        for (int turn = 0;
             turn < 20000 && hzp_trainer_source(t->trainer)->busy(hzp_trainer_source(t->trainer));
             turn++)
            assert_int_equal(hzp_loop_turn(t->loop), 1);
        assert_true(hzp_trainer_idle(t->trainer));
        assert_int_equal(hzp_weights_staleness(t->weights), 0);
        hzp_trainer_read_stats(t->trainer, &stats);
        assert_int_equal(hzp_weights_current(t->weights)->record.optimizer_step,
                         stats.optimizer_step);
        worst = HZP_MAX(worst, reader.worst);
        tiny_close(t);
    }
    assert_int_equal(worst, 3); /* the bound was reached, so it was tested */
    assert_true(waited > 0);    /* and readers did hold every slot */
}

/* K shrinks while updates are unpublished: they are published before the next one begins. */
static void test_bound_shrinks(void **state)
{
    struct tiny_config config = tiny_defaults();
    config.max_staleness = 5;
    config.recipe.publish_every = 100;
    config.recipe.update_tokens = 5;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 40);
    while (hzp_weights_staleness(t->weights) < 4)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    int32_t before = t->reports;
    hzp_weights_set_max_staleness(t->weights, 1);
    while (hzp_weights_staleness(t->weights) > 1)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    assert_int_equal(t->reports, before);
    while (hzp_loop_turn(t->loop) > 0)
        assert_true(hzp_weights_staleness(t->weights) <= 1);
    assert_int_equal(hzp_weights_staleness(t->weights), 0);
    tiny_close(t);
}

/* K is lowered after `turns` turns of an update's work, cut item by item: the next step publishes
 * what is finished, even if training gets no time, unless the update itself is being written. */
static void lower_bound(int turns, bool *ret_at_once)
{
    struct tiny_config config = tiny_defaults();
    config.max_staleness = 5;
    config.recipe.publish_every = 100;
    config.recipe.update_tokens = 40;
    config.recipe.micro_rows = 11; /* an update has several micro-batches */
    config.idle_ns = 1;
    config.queue.passes = 5;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 60);
    while (hzp_weights_staleness(t->weights) < 2)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    for (int i = 0; i < turns || !hzp_weights_staleness(t->weights); i++)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    struct hzp_weights_stats stats;
    bool writes = t->trainer->stage == HZP_TRAINER_UPDATE;
    int32_t before = t->reports;
    hzp_weights_set_max_staleness(t->weights, 0);
    hzp_weights_read_stats(t->weights, &stats);
    assert_int_equal(stats.bound_step, 0);
    struct hzp_loop_stats steps;
    hzp_loop_read_stats(t->loop, &steps);
    assert_int_equal(hzp_loop_turn(t->loop), 1);
    *ret_at_once = hzp_weights_staleness(t->weights) == 0;
    for (int i = 0; hzp_weights_staleness(t->weights) && i < 1000; i++)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    assert_true(*ret_at_once || writes);
    assert_int_equal(hzp_weights_staleness(t->weights), 0);
    assert_true(t->reports <= before + 1); /* at the next publication at the latest */
    hzp_weights_read_stats(t->weights, &stats);
    assert_true(stats.bound_step > steps.steps);
    while (hzp_loop_turn(t->loop) > 0)
        assert_int_equal(hzp_weights_staleness(t->weights), 0);
    tiny_close(t);
}

static void test_bound_lowered(void **state)
{
    int at_once = 0, later = 0;
    for (int turns = 0; turns < 700; turns += 23) {
        bool now;
        lower_bound(turns, &now);
        at_once += now;
        later += !now;
    }
    assert_true(at_once > 3 && later > 0);
}

/* A source that asks for no new version, for 40 of 100 steps, and checks that none comes. */
struct keeper {
    struct hzp_source source;
    struct tiny *t;
    bool keep;
    uint64_t id, steps;
    int64_t finished;
    int32_t changes;
};

static bool keeper_offer(struct hzp_source *source, const struct hzp_step *step,
                         struct hzp_room *room, struct hzp_offer *offer)
{
    struct keeper *k = HZP_CONTAINER_OF(source, struct keeper, source);
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(k->t->weights, &stats);
    bool changed = stats.serving_id != k->id || stats.finished_optimizer_step != k->finished;
    assert_false(k->keep && changed);
    k->changes += changed;
    k->id = stats.serving_id;
    k->finished = stats.finished_optimizer_step;
    k->keep = step->number % 100 < 40;
    offer->keep_version = k->keep;
    k->steps += k->keep;
    return k->steps < 4000; /* the loop goes on while the trainer waits */
}

static void keeper_deliver(struct hzp_source *source, const struct hzp_step *step,
                           const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    assert_true(outcome->status >= 0);
}

static void test_keep_version(void **state)
{
    for (int32_t every = 1; every <= 3; every++) {
        struct keeper keeper = {.source = {.name = "keeper",
                                           .slices = true,
                                           .offer = keeper_offer,
                                           .deliver = keeper_deliver}};
        struct tiny_config config = tiny_defaults();
        config.max_staleness = every;
        config.recipe.publish_every = every;
        config.recipe.update_tokens = 8;
        config.idle_ns = every == 1 ? 1 : 1000000000;
        config.other = &keeper.source;
        struct tiny *t = tiny_open(&config);
        keeper.t = t;
        tiny_publish(t);
        keeper.id = hzp_weights_current(t->weights)->record.id;
        tiny_push(t, 1, 60);
        tiny_run(t);
        assert_true(keeper.changes > 10); /* the trainer went on in between */
        assert_int_equal(hzp_weights_staleness(t->weights), 0);
        struct hzp_sample_queue_stats queue;
        hzp_sample_queue_read_stats(t->queue, &queue);
        assert_int_equal(queue.samples, 0);
        tiny_close(t);
    }
}

/* Every sample is in the records of the versions that learned from it. */
static void test_records(void **state)
{
    struct tiny_config config = tiny_defaults();
    config.recipe.publish_every = 3;
    config.max_staleness = 2;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 60);
    tiny_run(t);
    struct hzp_version_record record[64];
    int32_t n = hzp_weights_list(t->weights, record, 64);
    bool seen[61] = {false};
    int64_t through = 60;
    for (int32_t i = 0; i < n; i++) {
        assert_true(record[i].learned_through <= through);
        through = record[i].learned_through;
        for (int32_t k = 0; k < record[i].learned.ranges; k++)
            for (int64_t s = record[i].learned.first[k]; s <= record[i].learned.last[k]; s++) {
                assert_false(seen[s]);
                seen[s] = true;
            }
    }
    for (int s = 1; s <= 60; s++)
        assert_true(seen[s]);
    assert_int_equal(record[0].learned_through, 60);
    assert_int_equal(n - 1, (t->reports + 2) / 3);
    tiny_close(t);
}

/* --- Values that are not finite --------------------------------------------------------------- */

static hzp_op_fn *real_xent;
static int32_t poison_token, poison_left;

/* Makes the loss of a row NaN if the row's target is the poison token, for a limited number of
   times. */
static int poisoned_xent(struct hzp_lane *lane, const void *args)
{
    const struct hzp_xent_args *a = args;
    int r = real_xent(lane, args);
    for (int32_t i = 0; i < a->x.rows && poison_left > 0; i++)
        if (a->target[i] == poison_token && a->dx.ptr) {
            ((float *)a->dx.ptr)[(size_t)i * (size_t)a->dx.stride] = NAN;
            a->loss[i] = NAN;
            poison_left--;
        }
    return r;
}

static struct tiny *run_poisoned(int32_t times, int32_t publish_every)
{
    struct tiny_config config = tiny_defaults();
    config.recipe.publish_every = publish_every;
    config.max_staleness = 3;
    struct tiny *t = tiny_open(&config);
    real_xent = t->fixture.dev->op[HZP_OP_xent];
    t->fixture.dev->op[HZP_OP_xent] = poisoned_xent;
    poison_token = TINY_VOCAB - 1; /* no ordinary sample has it */
    poison_left = times;
    tiny_publish(t);
    tiny_push(t, 1, 12);
    int32_t token[] = {1, 2, TINY_VOCAB - 1};
    uint8_t learn[] = {0, 0, 1};
    struct hzp_sample *sample = hzp_sample_create(token, learn, 3);
    sample->sequence_number = 13;
    assert_int_equal(hzp_sample_queue_reserve(t->queue, 1, 3), HZP_OK);
    hzp_sample_queue_push(t->queue, &sample, 1);
    tiny_push(t, 14, 20);
    tiny_run(t);
    return t;
}

static void test_not_finite_once(void **state)
{
    for (int32_t every = 1; every <= 3; every += 2) {
        struct tiny *clean = run_poisoned(0, every), *once = run_poisoned(1, every);
        struct hzp_trainer_stats stats;
        hzp_trainer_read_stats(once->trainer, &stats);
        assert_int_equal(stats.skipped, 1);
        assert_int_equal(stats.dropped, 0);
        assert_int_equal(once->reports, clean->reports + 1);
        tiny_assert_same(clean, once); /* the failed update left no trace */
        tiny_close(clean);
        tiny_close(once);
    }
}

static void test_not_finite_always(void **state)
{
    for (int32_t every = 1; every <= 3; every += 2) {
        struct tiny *t = run_poisoned(1000, every);
        struct hzp_trainer_stats stats;
        struct hzp_sample_queue_stats queue;
        struct hzp_version_record record;
        hzp_trainer_read_stats(t->trainer, &stats);
        hzp_sample_queue_read_stats(t->queue, &queue);
        hzp_weights_newest(t->weights, &record);
        assert_int_equal(stats.skipped, 2);
        assert_int_equal(stats.dropped, 1);
        assert_int_equal(queue.samples, 0);
        assert_int_equal(record.learned_through, 33);
        int64_t failed[64]; /* all of the update that was given up, and no others */
        int32_t n = hzp_sample_queue_failed(t->queue, 0, failed, 64);
        bool found = false;
        for (int32_t i = 0; i < n; i++)
            found |= failed[i] == 13;
        assert_true(found);
        for (int32_t i = 0; i < n; i++) /* no version is said to have learned them */
            assert_true(hzp_weights_unlearned(t->weights, failed[i]));
        assert_false(hzp_weights_unlearned(t->weights, record.learned_through + 1));
        assert_int_equal(record.optimizer_step, stats.optimizer_step);
        assert_true(isfinite(record.loss));
        int32_t of_update = 0;
        bool said = false;
        for (int32_t i = 0; i < t->reports; i++)
            if (t->report[i].dropped)
                said = t->report[i].first_sequence <= 13 && t->report[i].last_sequence >= 13;
        for (int32_t i = 0; i < t->reports; i++)
            of_update = t->report[i].dropped ? t->report[i].samples : of_update;
        assert_true(said);
        assert_int_equal(n, of_update);
        tiny_close(t);
    }
}

/* Weights that are not finite themselves: the trainer stops, and the serving version stays. */
static void test_broken_weights(void **state)
{
    struct tiny_config config = tiny_defaults();
    config.untied = true;
    struct tiny *t = tiny_open(&config);
    float *embed = hzp_version_mat(t->weights, t->draft, HZP_EMBED, -1).ptr;
    embed[(TINY_VOCAB - 1) * 16] = NAN; /* an embedding no sample uses */
    tiny_publish(t);
    tiny_push(t, 1, 10);
    uint64_t id = hzp_weights_current(t->weights)->record.id;
    tiny_run(t);
    assert_int_equal(t->reports, 1);
    assert_true(t->report[0].skipped && t->report[0].broken);
    assert_true(isfinite(t->report[0].grad_norm));
    assert_int_equal(hzp_weights_current(t->weights)->record.id, id);
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(t->trainer, &stats);
    assert_int_equal(stats.updates, 0);
    assert_true(stats.broken);
    assert_int_equal(hzp_loop_turn(t->loop), 0); /* it does not retry */
    tiny_close(t);
}

/* --- Pausing, finishing, freezing ------------------------------------------------------------- */

/* One update from two documents, of which the first counts `weight` times; learned as one document
 * of that weight, or as so many copies. */
static struct tiny *run_weighted(int32_t weight, bool copies)
{
    struct tiny_config config = tiny_defaults();
    config.recipe.clip = 0;
    config.recipe.eps = 1; /* the step follows the gradient, not its sign */
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    const int32_t token[2][5] = {{1, 7, 3, 9, 4}, {5, 2, 8, 6, 7}};
    const uint8_t learn[] = {0, 1, 0, 1, 1};
    const float w = (float)weight, each[] = {1, w, 1, w, w};
    int32_t first = copies ? weight : 1;
    struct hzp_sample *sample[8];
    assert_true(first < 8);
    for (int32_t i = 0; i <= first; i++) {
        const float *own = copies || i == first ? NULL : each;
        sample[i] = hzp_sample_create_weighted(token[i == first], learn, own, 5);
        sample[i]->sequence_number = i + 1;
    }
    assert_int_equal(hzp_sample_queue_reserve(t->queue, first + 1, 5 * (first + 1)), HZP_OK);
    hzp_sample_queue_push(t->queue, sample, first + 1);
    tiny_run(t);
    assert_int_equal(t->reports, 1);
    return t;
}

static void test_weights(void **state)
{
    struct tiny *weighted = run_weighted(3, false), *copied = run_weighted(3, true),
                *plain = run_weighted(1, false);
    const struct hzp_units *a = tiny_units(weighted), *b = tiny_units(copied),
                           *c = tiny_units(plain);
    double near = 0, far = 0;
    assert_true(fabs(weighted->report[0].loss - copied->report[0].loss) < 1e-6);
    assert_true(fabs(weighted->report[0].loss - plain->report[0].loss) > 1e-4);
    assert_int_equal(weighted->report[0].learned_tokens, 6);
    for (int32_t u = 0; u < a->layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(a, u);
        const float *x = view.base, *y = hzp_unit_view(b, u).base, *z = hzp_unit_view(c, u).base;
        for (size_t i = 0; i < view.elements; i++) {
            near = fmax(near, fabs((double)x[i] - (double)y[i]));
            far = fmax(far, fabs((double)x[i] - (double)z[i]));
        }
    }
    assert_true(near < 1e-6 && far > 1e-5);
    tiny_close(weighted);
    tiny_close(copied);
    tiny_close(plain);
}

/* One update from the same two documents; the first one's loss is what `how` says, times weight. */
static struct tiny *run_losses(enum hzp_divide divide, float by, float weight,
                               const struct hzp_row_loss *how)
{
    struct tiny_config config = tiny_defaults();
    config.recipe.clip = 0;
    config.recipe.eps = 1;
    config.recipe.divide = divide;
    config.recipe.divide_by = by;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    const int32_t token[2][5] = {{1, 7, 3, 9, 4}, {5, 2, 8, 6, 7}};
    const uint8_t learn[] = {0, 1, 0, 1, 1};
    const float each[] = {1, weight, 1, weight, weight};
    struct hzp_row_loss all[5];
    struct hzp_sample *sample[2];
    for (int32_t i = 0; how && i < 5; i++)
        all[i] = *how;
    sample[0] = hzp_sample_create_losses(token[0], learn, each, how ? all : NULL, 5);
    sample[1] = hzp_sample_create(token[1], learn, 5);
    for (int32_t i = 0; i < 2; i++)
        sample[i]->sequence_number = i + 1;
    assert_int_equal(hzp_sample_queue_reserve(t->queue, 2, 10), HZP_OK);
    hzp_sample_queue_push(t->queue, sample, 2);
    tiny_run(t);
    assert_int_equal(t->reports, 1);
    return t;
}

/* The largest difference of the weights. */
static double distance(struct tiny *x, struct tiny *y)
{
    const struct hzp_units *a = tiny_units(x), *b = tiny_units(y);
    double most = 0;
    for (int32_t u = 0; u < a->layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(a, u);
        const float *p = view.base, *q = hzp_unit_view(b, u).base;
        for (size_t i = 0; i < view.elements; i++)
            most = fmax(most, fabs((double)p[i] - (double)q[i]));
    }
    return most;
}

/* dro without its penalty is cross-entropy times the advantage, of either sign; weights of either
 * sign are; and each divisor is what it says. */
static void test_losses(void **state)
{
    static const float factor[] = {3, -0.5f};
    for (int i = 0; i < HZP_COUNT(factor); i++) {
        struct hzp_row_loss dro = {
            .kind = HZP_LOSS_DRO, .inv_temperature = 1, .old = -2, .advantage = factor[i]};
        struct tiny *a = run_losses(HZP_DIVIDE_TOKENS, 0, factor[i], NULL),
                    *b = run_losses(HZP_DIVIDE_TOKENS, 0, 1, &dro),
                    *c = run_losses(HZP_DIVIDE_CONSTANT, 6, factor[i], NULL),
                    *d = run_losses(HZP_DIVIDE_WEIGHTS, 0, factor[i], NULL),
                    *e = run_losses(HZP_DIVIDE_SEQUENCES, 0, factor[i], NULL);
        assert_true(distance(a, b) < 1e-6 && distance(a, c) == 0);
        assert_true(distance(a, d) > 1e-6 && distance(a, e) > 1e-5);
        assert_true(a->report[0].divisor == 6 && e->report[0].divisor == 2);
        assert_true(fabs(d->report[0].divisor - (3 + 3 * fabs((double)factor[i]))) < 1e-6);
        assert_int_equal(a->report[0].ratios.rows, 0);
        const struct hzp_ratio_stats *ratios = &b->report[0].ratios;
        assert_int_equal(ratios->rows, 3);
        assert_true(ratios->max > 0 && ratios->max <= ratios->sum &&
                    ratios->sum <= 3 * ratios->max);
        assert_true(ratios->k3 > 0 && ratios->entropy > 0 && ratios->clipped == 0);
        tiny_close(a);
        tiny_close(b);
        tiny_close(c);
        tiny_close(d);
        tiny_close(e);
    }
}

static void test_pause_and_finish(void **state)
{
    struct tiny_config config = tiny_defaults();
    config.idle_ns = 1;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 30);
    for (int i = 0; i < 50; i++)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    struct hzp_source *source = hzp_trainer_source(t->trainer);
    hzp_trainer_pause(t->trainer, true);
    assert_int_equal(hzp_loop_turn(t->loop), 0);
    assert_false(source->busy(source));
    hzp_trainer_pause(t->trainer, false);
    assert_true(source->busy(source));
    hzp_trainer_finish(t->trainer);
    int32_t before = t->reports;
    tiny_run(t);
    assert_int_equal(t->reports, before + 1);
    assert_false(source->busy(source));
    assert_int_equal(hzp_weights_staleness(t->weights), 0);
    tiny_close(t);
}

static struct tiny *run_frozen(bool freeze, int32_t publish_every)
{
    struct tiny_config config = tiny_defaults();
    config.idle_ns = 1;
    config.max_staleness = 2;
    config.recipe.publish_every = publish_every;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 30);
    for (int round = 0; round < 6 && freeze; round++) {
        for (int i = 0; i < 70 + round * 31; i++)
            hzp_loop_turn(t->loop);
        int turns = 0;
        while (tiny_border(t, hzp_trainer_freeze) == HZP_EBUSY && turns++ < 100000)
            hzp_loop_turn(t->loop);
        struct hzp_version *v = hzp_trainer_frozen(t->trainer);
        assert_non_null(v);
        assert_ptr_equal(v, hzp_weights_current(t->weights));
        const struct hzp_units *at_m = hzp_train_space_m(hzp_trainer_space(t->trainer));
        struct hzp_units weights = fixture_units_read(t->fixture.dev, tiny_units(t));
        struct hzp_units m = fixture_units_read(t->fixture.dev, at_m);
        int32_t reports = t->reports;
        for (int i = 0; i < 3000; i++)
            hzp_loop_turn(t->loop);
        assert_int_equal(t->reports, reports);
        assert_true(fixture_units_same(NULL, &weights, hzp_version_units(t->weights, v)));
        assert_true(fixture_units_same(NULL, &m, at_m));
        fixture_units_free(&weights);
        fixture_units_free(&m);
        tiny_border(t, hzp_trainer_thaw);
        assert_null(hzp_trainer_frozen(t->trainer));
    }
    tiny_run(t);
    return t;
}

static void test_freeze(void **state)
{
    for (int32_t every = 1; every <= 3; every += 2) {
        struct tiny *plain = run_frozen(false, every), *frozen = run_frozen(true, every);
        assert_int_equal(plain->reports, frozen->reports);
        assert_true(plain->reports > 2);
        tiny_assert_same(plain, frozen);
        struct hzp_weights_stats stats;
        hzp_weights_read_stats(frozen->weights, &stats);
        assert_int_equal(stats.slots_free, 1); /* every snapshot was returned */
        tiny_close(plain);
        tiny_close(frozen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_falls),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_slices_change_nothing),
        cmocka_unit_test(test_prepares_behind),
        cmocka_unit_test(test_staleness),
        cmocka_unit_test(test_bound_shrinks),
        cmocka_unit_test(test_bound_lowered),
        cmocka_unit_test(test_keep_version),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_not_finite_once),
        cmocka_unit_test(test_not_finite_always),
        cmocka_unit_test(test_broken_weights),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_pause_and_finish),
        cmocka_unit_test(test_freeze),
    };
    return cmocka_run_group_tests_name("trainer", tests, NULL, NULL);
}
