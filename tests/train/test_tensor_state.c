/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_tensor_state.c - checkpoints of ranks that have tensor slices, against those of
 * one rank.  Ranks are threads; the state is made up, and written by one rank's own code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>

#include "tests/fixture/model.h"
#include "train/history/snapshot.h"
#include "train/learner/tensor_state.h"
#include "train/conductor/trainer_state.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"

#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"
#include "tests/links/links.h"

enum { RANKS_MAX = 4 };

static struct hzp_err_text err;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, err.text);                                                   \
    } while (0)

/* The state of one rank, and where it is: scratch/one. */
struct one {
    struct hzp_model_config config;
    struct hzp_layout layout;
    enum hzp_dtype type;
    struct hzp_recipe recipe;
    struct hzp_snapshot *state;
};

/* Numbers in every tensor; the padding stays zero, as an update leaves it. */
static void fill(const struct hzp_units *units, uint64_t seed)
{
    const struct hzp_layout *l = units->layout;
    size_t size = hzp_dtype_size(units->type);
    for (int32_t i = 0; i < l->tensors; i++) {
        const struct hzp_tensor *t = &l->tensor[i];
        unsigned char *at = (unsigned char *)hzp_unit_view(units, t->unit).base + t->offset * size;
        for (size_t b = 0; b < (size_t)t->rows * (size_t)t->cols * size; b++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            at[b] = b % size == size - 1 ? 0x3c : (unsigned char)(seed >> 56);
        }
    }
}

static void open_one(struct one *o, int which, enum hzp_dtype type, enum hzp_dtype moments)
{
    memset(o, 0, sizeof(*o));
    mkdir(scratch_path("one"), 0777);
    scratch_write_text(scratch_path("one/config.json"), tiny_models[which]);
    MUST(hzp_config_read(scratch_path("one"), &o->config, &err));
    o->config.vocab = 40;
    o->config.heads.kv_heads = 4;
    o->type = type;
    o->recipe = (struct hzp_recipe){.lr = 0.125f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.99f,
                                    .eps = 1e-8f,
                                    .clip = 1,
                                    .update_tokens = 24,
                                    .micro_rows = 24,
                                    .publish_every = 1,
                                    .moment_type = moments};
    hzp_layout_make(&o->config, &o->layout);
    assert_int_equal(hzp_snapshot_create(&o->layout, type, moments, &o->state), HZP_OK);
    for (int p = 0; p < HZP_STATE_PARTS; p++)
        if (o->state->part[p].layout) {
            memset(o->state->memory[p], 0, hzp_units_bytes(&o->layout, o->state->part[p].type));
            fill(&o->state->part[p], (uint64_t)p + 1);
        }
    o->state->state.recipe = o->recipe;
    o->state->state.numbers = (struct hzp_trainer_numbers){
        .optimizer_step = 17, .draws = 23, .learned_through = 41, .reset_step = 5, .loss = 2.5};
    MUST(hzp_model_save(scratch_path("one"), NULL, &o->state->part[HZP_STATE_WEIGHTS],
                        scratch_path("one"), &err));
    MUST(hzp_state_file_write(&o->state->state, scratch_path("one"), "a note", &err));
}

static void close_one(struct one *o)
{
    hzp_snapshot_destroy(o->state);
    hzp_layout_free(&o->layout);
}

/* What the ranks do together, and what came of it. */
struct job {
    const struct one *one;
    struct hzp_link *link;
    char from[256];
    int loaded; /* code */
    struct hzp_err_text text;
    struct hzp_trainer_numbers numbers;
    char note[HZP_TRAINER_NOTE_MAX + 1];
    int64_t step; /* of the version */
    bool same;    /* the slices are those of the one rank's units */
};

static int strange = -1; /* the rank that has other weights */

static bool has_slices(const struct one *o, const struct hzp_train_space *space)
{
    bool same = true;
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++) {
        const struct hzp_units *mine = hzp_train_space_part(space, (enum hzp_state_part)p),
                               *whole = &o->state->part[p];
        for (int32_t u = 0; mine && u < mine->layout->units; u++) {
            struct hzp_unit_view view = hzp_unit_view(mine, u);
            void *cut = malloc(hzp_unit_bytes(&view));
            hzp_tensor_slice_cut(&o->layout, mine->layout, u, hzp_dtype_size(mine->type),
                                 hzp_unit_view(whole, u).base, cut);
            same = same && memcmp(cut, view.base, hzp_unit_bytes(&view)) == 0;
            free(cut);
        }
    }
    return same;
}

static void *run_rank(void *arg)
{
    struct job *j = arg;
    struct fixture_model m;
    struct fixture_config config = {
        .device = "ref", .config = j->one->config, .tensor = j->link, .positions = 32};
    struct hzp_train_space_config sizes = {
        .rows_max = 24, .head_rows = 5, .moment_type = j->one->recipe.moment_type};
    struct hzp_train_space *space;
    config.store.type = j->one->type;
    config.store.slots = 2;
    config.store.max_staleness = 1;
    config.store.first_id = 1;
    fixture_open(&m, &config);
    HZP_ASSERT(hzp_train_space_create(m.model, &sizes, &space) >= 0);
    struct hzp_version *v = fixture_begin(&m);
    const struct hzp_units *weights = hzp_version_units(m.weights, v);
    j->loaded = hzp_model_load(j->from, m.dev, weights, NULL, &j->text);
    HZP_ASSERT(j->loaded >= 0);
    if (hzp_link_rank(j->link) == strange)
        *(char *)hzp_unit_view(weights, 1).base ^= 1;
    struct hzp_tensor_state s = {m.model, &j->one->config, space, &j->one->recipe, j->link};
    j->loaded = hzp_tensor_state_load(&s, v, j->from, true, &j->numbers, j->note, &j->text);
    j->step = v->record.optimizer_step;
    if (j->loaded >= 0)
        j->same = has_slices(j->one, space);
    fixture_publish(&m, v, 0);
    hzp_train_space_destroy(space);
    fixture_close(&m);
    return NULL;
}

static void run(const struct one *o, int ranks, struct job *job)
{
    struct hzp_link *link[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    MUST(hzp_link_open_local(ranks, 0, 1, link, &err));
    for (int r = 0; r < ranks; r++) {
        job[r] = (struct job){.one = o, .link = link[r]};
        snprintf(job[r].from, sizeof(job[r].from), "%s", scratch_path("one"));
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &job[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(thread[r], NULL);
    for (int r = 0; r < ranks; r++)
        hzp_link_close(link[r]);
}

static char *contents(const char *path, size_t *ret)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *ret = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*ret);
    assert_int_equal(fread(data, 1, *ret, file), *ret);
    fclose(file);
    return data;
}

static void check_well(const struct job *job, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        if (job[r].loaded < 0)
            fail_msg("rank %d of %d: %s", r, ranks, job[r].text.text);
        assert_true(job[r].same);
        assert_int_equal(job[r].numbers.optimizer_step, 17);
        assert_int_equal(job[r].numbers.draws, 23);
        assert_int_equal(job[r].numbers.learned_through, 41);
        assert_int_equal(job[r].numbers.reset_step, 5);
        assert_int_equal(job[r].step, 17);
        assert_string_equal(job[r].note, "a note");
    }
}

/* Families whose norms read the sums of all ranks. */
static bool has_no_slices(int which)
{
    return strstr(tiny_models[which], "olmo") || strstr(tiny_models[which], "gemma") ||
           strstr(tiny_models[which], "\"glm4\"");
}

/* What 1, 2 and 4 ranks load from one rank's files is theirs. */
static void test_any_ranks(void **state)
{
    static const int ranks[] = {2, 4, 1};
    for (int i = 0; i < HZP_COUNT(tiny_models); i++) {
        enum hzp_dtype type = i % 2 ? HZP_BF16 : HZP_F32;
        struct job job[RANKS_MAX];
        struct one o;
        open_one(&o, i, type, i % 3 ? HZP_F32 : HZP_BF16);
        for (int k = 0; k < HZP_COUNT(ranks); k++) {
            if (ranks[k] > 1 && has_no_slices(i))
                continue;
            run(&o, ranks[k], job);
            check_well(job, ranks[k]);
        }
        close_one(&o);
    }
}

/* Every rank fails alike, and says so. */
static void check_failed(const struct job *job, int ranks, int code, const char *const *words)
{
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(job[r].loaded, code);
        for (int w = 0; words[w]; w++)
            if (!strstr(job[r].text.text, words[w]))
                fail_msg("rank %d: '%s' does not say '%s'", r, job[r].text.text, words[w]);
    }
}

/* Changes the file of moments: a bit, or two neighbouring slices of one row. */
static void damage(bool swaps)
{
    char path[256];
    size_t bytes;
    snprintf(path, sizeof(path), "%s", scratch_path("one/trainer.safetensors"));
    char *data = contents(path, &bytes), held[16];
    char *at = data + bytes / 2;
    if (swaps) {
        memcpy(held, at, sizeof(held));
        memmove(at, at + sizeof(held), sizeof(held));
        memcpy(at + sizeof(held), held, sizeof(held));
    } else {
        *at ^= 1;
    }
    scratch_write(path, data, bytes);
    free(data);
}

/* Files that are damaged, of another model, with another recipe, or not there. */
static void test_bad_files(void **state)
{
    static const char *const damaged[] = {"tensor ", "is damaged (checksum ", NULL};
    static const char *const recipe[] = {"begun with lr 0.125, now it is 0.25", NULL};
    static const char *const moments[] = {"begun with moments f32, now it is bf16", NULL};
    static const char *const other[] = {"belongs to other weights", NULL};
    static const char *const others[] = {"rank 1 has other weights than ", NULL};
    static const char *const none[] = {"trainer.safetensors", NULL};
    struct job job[RANKS_MAX];
    struct one o;
    open_one(&o, 3, HZP_BF16, HZP_F32);
    o.recipe.lr = 0.25f;
    run(&o, 2, job);
    check_failed(job, 2, HZP_EINVAL, recipe);
    assert_string_equal(job[1].text.param, "lr");
    o.recipe.lr = 0.125f;
    o.recipe.moment_type = HZP_BF16;
    run(&o, 2, job);
    check_failed(job, 2, HZP_EINVAL, moments);
    o.recipe.moment_type = HZP_F32;
    strange = 1;
    run(&o, 2, job);
    strange = -1;
    check_failed(job, 2, HZP_EFORMAT, others);
    for (int swaps = 0; swaps < 2; swaps++) {
        MUST(hzp_state_file_write(&o.state->state, scratch_path("one"), "a note", &err));
        damage(swaps);
        run(&o, 4, job);
        check_failed(job, 4, HZP_EFORMAT, damaged);
    }
    fill(&o.state->part[HZP_STATE_WEIGHTS], 99);
    MUST(hzp_state_file_write(&o.state->state, scratch_path("one"), "a note", &err));
    run(&o, 2, job);
    check_failed(job, 2, HZP_EFORMAT, other);
    remove(scratch_path("one/trainer.safetensors"));
    run(&o, 2, job);
    check_failed(job, 2, HZP_ENOENT, none);
    close_one(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_ranks),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
