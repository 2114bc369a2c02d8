/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/train/tiny.h"

#include "train/history/snapshot.h"

#include <stdio.h>
#include <unistd.h>

static char dir[64];

static int make_dir(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/hzp-state-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    unlink(path);
    return rmdir(dir);
}

static struct tiny_config offline(enum hzp_dtype type, enum hzp_dtype moments)
{
    struct tiny_config config = tiny_defaults();
    config.type = type;
    config.slots = 1; /* in place, as offline training does */
    config.recipe.moment_type = moments;
    config.recipe.schedule = HZP_LR_COSINE;
    config.recipe.total_steps = 30;
    config.recipe.warmup_steps = 4;
    config.queue.passes = 3;
    config.queue.shuffle = true;
    return config;
}

/* Turns until this many updates are done. */
static void run_to(struct tiny *t, int32_t reports)
{
    while (t->reports < reports)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
}

/* note NULL: as a server does, which does not compare recipes, and reads moments and residuals
 * later where it prepares memory behind. */
static struct tiny *resume(const struct tiny_config *config, const struct hzp_units *weights,
                           int *ret, char *note, struct hzp_err_text *text)
{
    struct tiny *t = tiny_open(config);
    for (int32_t u = 0; u < t->fixture.layout.units; u++) {
        struct hzp_unit_view from = hzp_unit_view(weights, u);
        struct hzp_unit_view to = hzp_version_unit(t->weights, t->draft, u);
        size_t there = hzp_unit_bytes(&to), here = hzp_unit_bytes(&from);
        memcpy(to.base, from.base, HZP_MIN(there, here));
    }
    *ret = note ? hzp_trainer_load(t->trainer, t->draft, dir, true, note, text)
                : hzp_trainer_load_begin(t->trainer, t->draft, dir, text);
    if (*ret >= 0)
        tiny_publish(t);
    tiny_push(t, 1, 40);
    return t;
}

/* As long as the state is not read, nothing is learned, and the loop has nothing to do. */
static void read_rest(struct tiny *t)
{
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_trainer_stats stats;
    while (hzp_loop_turn(t->loop) > 0)
        ;
    hzp_trainer_read_stats(t->trainer, &stats);
    assert_true(stats.preparing);
    assert_false(hzp_trainer_idle(t->trainer));
    assert_int_equal(t->reports, 0);
    TINY_MUST(hzp_trainer_load_rest(t->trainer, NULL, &text));
    hzp_loop_poke(t->loop);
}

static enum hzp_optimizer optimizer;
static float skip; /* share of eight layers that micro-batches leave out */

static void check_resume(enum hzp_dtype type, enum hzp_dtype moments, bool prepares, bool rest)
{
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config config = offline(type, moments);
    config.prepares = prepares;
    config.recipe.optimizer = optimizer;
    config.recipe.momentum = 0.95f;
    config.recipe.skip = skip;
    config.layers = skip > 0 ? 8 : 0;
    char note[HZP_TRAINER_NOTE_MAX + 1];
    int r;
    struct tiny *whole = tiny_open(&config), *first = tiny_open(&config);
    tiny_publish(whole);
    tiny_push(whole, 1, 40);
    tiny_run(whole);
    tiny_publish(first);
    tiny_push(first, 1, 40);
    run_to(first, 7);
    TINY_MUST(hzp_trainer_save(first->trainer, hzp_weights_current(first->weights), dir, "a note",
                               &text));
    struct tiny *second = resume(&config, tiny_units(first), &r, rest ? NULL : note, &text);
    TINY_MUST(r);
    if (rest)
        read_rest(second);
    else
        assert_string_equal(note, "a note");
    struct hzp_version *v = hzp_weights_current(second->weights);
    assert_int_equal(v->record.optimizer_step, 7);
    assert_int_equal(hzp_weights_staleness(second->weights), 0);
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(second->trainer, &stats);
    const struct hzp_sample *draw[256];
    for (int64_t i = 0; i < stats.draws; i++) { /* the order of the data continues where it was */
        hzp_sample_queue_draw(second->queue, config.recipe.update_tokens, draw, 256);
        hzp_sample_queue_done(second->queue);
    }
    tiny_run(second);
    assert_true(whole->reports > 14);
    assert_int_equal(7 + second->reports, whole->reports);
    for (int32_t i = 0; i < second->reports; i++) {
        assert_string_equal(second->report[i].paths.left_out, whole->report[7 + i].paths.left_out);
        assert_true(second->report[i].loss == whole->report[7 + i].loss);
        assert_true(second->report[i].grad_norm == whole->report[7 + i].grad_norm);
        assert_true(second->report[i].lr == whole->report[7 + i].lr);
        assert_int_equal(second->report[i].optimizer_step, 8 + i);
    }
    tiny_assert_same(whole, second);
    tiny_close(whole);
    tiny_close(first);
    tiny_close(second);
}

static void test_resume(void **state)
{
    check_resume(HZP_F32, HZP_F32, false, false);
    check_resume(HZP_BF16, HZP_F32, false, false);
    check_resume(HZP_BF16, HZP_BF16, false, false);
    check_resume(HZP_F32, HZP_Q8, false, false);
    check_resume(HZP_BF16, HZP_Q8, false, false);
    optimizer = HZP_NADAM; /* the product of its momenta is computed again */
    check_resume(HZP_F32, HZP_F32, false, false);
    optimizer = HZP_MUON;
    check_resume(HZP_F32, HZP_F32, false, false);
    check_resume(HZP_BF16, HZP_BF16, false, false);
    optimizer = HZP_ADAMW;
    skip = 0.4f; /* the same layers as without the break */
    check_resume(HZP_F32, HZP_F32, false, false);
    skip = 0;
    /* Memory that is prepared behind: what was restored stays, and the rest is zeroed. */
    setenv("HZP_POISON", "1", 1);
    check_resume(HZP_F32, HZP_F32, true, false);
    check_resume(HZP_BF16, HZP_BF16, true, false);
    check_resume(HZP_F32, HZP_F32, true, true);
    check_resume(HZP_BF16, HZP_BF16, true, true);
    check_resume(HZP_BF16, HZP_Q8, true, false);
    check_resume(HZP_BF16, HZP_Q8, true, true);
    unsetenv("HZP_POISON");
}

static char *read_saved(size_t *ret_size)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *bytes = malloc(1 << 20);
    *ret_size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

/* A copy is of the moment when it was taken, bit for bit, whatever is learned afterwards. */
static void check_snapshot(enum hzp_dtype type, enum hzp_dtype moments)
{
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config config = offline(type, moments);
    struct tiny *t = tiny_open(&config);
    struct hzp_snapshot *copy;
    size_t size, size2;
    tiny_publish(t);
    tiny_push(t, 1, 40);
    run_to(t, 5);
    const struct hzp_version *v = hzp_weights_current(t->weights);
    const struct hzp_layout *layout = tiny_units(t)->layout;
    TINY_MUST(hzp_snapshot_create(layout, type, moments, &copy));
    TINY_MUST(hzp_snapshot_take(copy, t->trainer, v, &text));
    TINY_MUST(hzp_trainer_save(t->trainer, v, dir, "", &text));
    char *live = read_saved(&size);
    assert_true(size < 1 << 20);
    struct hzp_units weights = fixture_units_read(t->fixture.dev, tiny_units(t));
    tiny_run(t);
    assert_false(fixture_units_same(NULL, &weights, tiny_units(t)));
    TINY_MUST(hzp_state_file_write(&copy->state, dir, "", &text));
    char *copied = read_saved(&size2);
    assert_int_equal(size, size2);
    assert_memory_equal(live, copied, size);
    for (int32_t u = 0; u < layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(&weights, u);
        struct hzp_unit_view kept = hzp_unit_view(&copy->part[HZP_STATE_WEIGHTS], u);
        assert_memory_equal(view.base, kept.base, hzp_unit_bytes(&view));
    }
    free(live);
    free(copied);
    fixture_units_free(&weights);
    hzp_snapshot_destroy(copy);
    tiny_close(t);
}

static void test_snapshot(void **state)
{
    check_snapshot(HZP_F32, HZP_F32);
    check_snapshot(HZP_BF16, HZP_F32);
    check_snapshot(HZP_BF16, HZP_BF16);
    check_snapshot(HZP_F32, HZP_Q8);
    check_snapshot(HZP_BF16, HZP_Q8);
}

/* Moments that are damaged, and a server that stops before they are read. */
static void test_damaged_rest(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config config = offline(HZP_BF16, HZP_F32);
    struct hzp_trainer_stats stats;
    char path[96];
    int r;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 40);
    run_to(t, 3);
    TINY_MUST(hzp_trainer_save(t->trainer, hzp_weights_current(t->weights), dir, NULL, &text));
    config.prepares = true;
    const atomic_bool stop = true;
    struct tiny *stopped = resume(&config, tiny_units(t), &r, NULL, &text);
    TINY_MUST(r);
    assert_int_equal(hzp_trainer_load_rest(stopped->trainer, &stop, &text), HZP_ECANCELED);
    tiny_close(stopped);
    tiny_close(resume(&config, tiny_units(t), &r, NULL, &text)); /* nothing is lost unread */
    TINY_MUST(r);
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, -200, SEEK_END), 0);
    fputs("damage", file);
    fclose(file);
    struct tiny *damaged = resume(&config, tiny_units(t), &r, NULL, &text);
    TINY_MUST(r);
    assert_int_equal(hzp_trainer_load_rest(damaged->trainer, NULL, &text), HZP_EFORMAT);
    assert_non_null(strstr(text.text, "trainer.safetensors: tensor residual is damaged"));
    hzp_loop_poke(damaged->loop);
    while (hzp_loop_turn(damaged->loop) > 0)
        ;
    hzp_trainer_read_stats(damaged->trainer, &stats);
    assert_true(stats.broken && !stats.preparing);
    assert_int_equal(damaged->reports, 0);
    tiny_close(damaged);
    tiny_close(t);
}

static void expect(const struct tiny_config *config, const struct hzp_units *weights, int code,
                   const char *word)
{
    struct hzp_err_text text = {{0}, {0}};
    int r;
    char note[HZP_TRAINER_NOTE_MAX + 1];
    struct tiny *t = resume(config, weights, &r, note, &text);
    assert_int_equal(r, code);
    assert_non_null(strstr(text.text, "trainer.safetensors"));
    if (!strstr(text.text, word))
        fail_msg("\"%s\" does not say \"%s\"", text.text, word);
    tiny_close(t);
}

static void test_refusals(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config config = offline(HZP_F32, HZP_F32), other = config;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 40);
    run_to(t, 3);
    TINY_MUST(hzp_trainer_save(t->trainer, hzp_weights_current(t->weights), dir, NULL, &text));
    struct hzp_units weights = fixture_units_read(t->fixture.dev, tiny_units(t));
    float *embed = hzp_units_mat(&weights, HZP_EMBED, -1).ptr;
    other.recipe.lr = 2e-2f;
    expect(&other, &weights, HZP_EINVAL, "lr 0.01, now it is 0.02");
    other = config;
    other.recipe.moment_type = HZP_BF16;
    expect(&other, &weights, HZP_EINVAL, "moments f32, now it is bf16");
    other.recipe.moment_type = HZP_Q8;
    expect(&other, &weights, HZP_EINVAL, "moments f32, now it is q8");
    other = config;
    other.recipe.optimizer = HZP_NADAM;
    expect(&other, &weights, HZP_EINVAL, "optimizer adamw, now it is nadam");
    other = config;
    other.recipe.divide = HZP_DIVIDE_TOKENS;
    expect(&other, &weights, HZP_EINVAL, "divide weights, now it is tokens");
    other = config;
    other.recipe.swap = 1;
    expect(&other, &weights, HZP_EINVAL, "swap 0, now it is 1");
    other = config;
    other.untied = true;
    expect(&other, &weights, HZP_EFORMAT, "tensor m has");
    embed[5] += 1;
    expect(&config, &weights, HZP_EFORMAT, "other weights");
    embed[5] -= 1;
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    assert_int_equal(truncate(path, 1000), 0);
    expect(&config, &weights, HZP_EFORMAT, "");
    fixture_units_free(&weights);
    tiny_close(t);
}

/* A server takes over what AdamW has left, but AdamW not what Muon has. */
static void test_muon(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config adamw = offline(HZP_F32, HZP_F32), muon = adamw;
    int r;
    muon.recipe.optimizer = HZP_MUON;
    muon.recipe.momentum = 0.95f;
    for (int i = 0; i < 2; i++) {
        struct tiny *t = tiny_open(i ? &muon : &adamw);
        tiny_publish(t);
        tiny_push(t, 1, 40);
        run_to(t, 3);
        TINY_MUST(hzp_trainer_save(t->trainer, hzp_weights_current(t->weights), dir, NULL, &text));
        struct tiny *other = resume(i ? &adamw : &muon, tiny_units(t), &r, NULL, &text);
        assert_int_equal(r, i ? HZP_EINVAL : HZP_OK);
        tiny_close(other);
        tiny_close(t);
    }
    assert_non_null(strstr(text.text, "optimizer muon, now it is adamw"));
    muon.recipe.moment_type = HZP_Q8;
    assert_int_equal(hzp_recipe_check(&muon.recipe, &text), HZP_EINVAL);
    assert_string_equal(text.param, "moments");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_resume, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_snapshot, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_damaged_rest, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_refusals, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_muon, make_dir, drop_dir),
    };
    return cmocka_run_group_tests_name("trainer_state", tests, NULL, NULL);
}
