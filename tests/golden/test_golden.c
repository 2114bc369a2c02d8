/* SPDX-License-Identifier: Apache-2.0 */
/* Logits, losses, every gradient and ten AdamW updates against the float64 numbers beside this
 * file (README.md says what they are and how they were made), on one backend.
 *
 *     test_golden BACKEND DIR...
 *     test_golden BACKEND ranks DIR...      the updates, on 2 and on 4 ranks of one process
 */
#include "base/log.h"
#include "tests/golden/golden.h"
#include "tests/golden/reference.h"
#include "train/learner/collectives_state.h"
#include "weights/model_dir.h"
#include "tests/links/links.h"

static void add_document(struct fixture *f, json_t *document)
{
    int32_t token[ROWS_MAX], learn_int[ROWS_MAX];
    uint8_t learn[ROWS_MAX];
    int32_t n = ints(at(document, "tokens"), token);
    ints(at(document, "learn"), learn_int);
    for (int32_t i = 0; i < n; i++)
        learn[i] = (uint8_t)learn_int[i];
    MUST(hzp_micro_add(f->micro, token, learn, n));
}

/* 16 documents in one micro-batch and in 16: the sums must be equal. */
static void test_accumulation(struct fixture *f)
{
    json_t *golden = at(f->numbers, "accumulate"), *documents = at(golden, "documents");
    size_t docs = json_array_size(documents);
    double learned = number(golden, "learned"), loss = 0;

    hzp_micro_clear(f->micro);
    for (size_t i = 0; i < docs; i++)
        add_document(f, json_array_get(documents, i));
    check(f, "loss of 1 x 16", fabs(run_micro(f, true) / learned - number(golden, "loss")),
          loss_max);
    struct hzp_units whole = fixture_units_read(f->m.dev, hzp_train_space_grads(f->space));
    for (size_t i = 0; i < docs; i++) {
        hzp_micro_clear(f->micro);
        add_document(f, json_array_get(documents, i));
        loss += run_micro(f, i == 0);
    }
    check(f, "loss of 16 x 1", fabs(loss / learned - number(golden, "loss")), loss_max);
    double worst = 0, sumsq = 0;
    struct hzp_units parts = fixture_units_read(f->m.dev, hzp_train_space_grads(f->space));
    for (int32_t u = 0; u < f->m.layout.units; u++) {
        const float *x = hzp_unit_view(&whole, u).base, *y = hzp_unit_view(&parts, u).base;
        for (size_t i = 0; i < f->m.layout.unit[u].elements; i++) {
            worst = fmax(worst, fabs((double)x[i] - (double)y[i]) / learned);
            sumsq += (double)y[i] * (double)y[i];
        }
    }
    /* float32 sums in another order: a library may also split the two shapes differently.  Where
     * norms enlarge what is small, as in olmo3, either is as far from float64. */
    double norm = number(golden, "grad_norm");
    check(f, "1 x 16 against 16 x 1", worst, 3e-6 * norm);
    check(f, "gradient norm of 16 x 1", fabs(sqrt(sumsq) / learned - norm), 1e-4 * norm);
    fixture_units_free(&whole);
    fixture_units_free(&parts);
}

/* Saved, each tensor has the file's name, shape and bytes.  GOLDEN_SAVE names a directory that
 * keeps what is saved, of the last model; GOLDEN_AS the one whose file it is compared with, where
 * names change: of a vision model the text model is saved. */
static void test_save(struct fixture *f)
{
    char scratch[] = "/tmp/hzp-golden-XXXXXX", path[600];
    const char *kept = getenv("GOLDEN_SAVE");
    const char *dir = kept ? kept : mkdtemp(scratch);
    const struct hzp_units *units =
        hzp_version_units(f->m.weights, hzp_weights_current(f->m.weights));
    struct hzp_safetensors *from, *to;
    HZP_ASSERT(dir);
    MUST(hzp_model_save(dir, f->m.dev, units, f->dir, &text));
    const char *as = getenv("GOLDEN_AS");
    snprintf(path, sizeof(path), "%s/model.safetensors", as ? as : f->dir);
    MUST(hzp_safetensors_open(path, &from, &text));
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    MUST(hzp_safetensors_open(path, &to, &text));
    int32_t count = hzp_safetensors_count(from), differ = count != hzp_safetensors_count(to);
    for (int32_t i = 0; i < count; i++) {
        const struct hzp_st_tensor *a = hzp_safetensors_at(from, i);
        const struct hzp_st_tensor *b = hzp_safetensors_find(to, a->name);
        bool same = b && a->type == HZP_DISK_F32 && b->type == a->type && a->dims == b->dims &&
                    !memcmp(a->shape, b->shape, (size_t)a->dims * sizeof(a->shape[0]));
        size_t bytes = (size_t)a->elements * sizeof(float);
        float *x = hzp_xmalloc(2 * bytes), *y = x + a->elements;
        MUST(hzp_safetensors_read(a, 0, a->elements, x, &text));
        if (same)
            MUST(hzp_safetensors_read(b, 0, b->elements, y, &text));
        differ += !same || memcmp(x, y, bytes) != 0;
        free(x);
    }
    check(f, "tensors that a save changes", differ, 0);
    hzp_safetensors_close(from);
    hzp_safetensors_close(to);
    for (int i = 0; !kept && hzp_model_text_name(i); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, hzp_model_text_name(i));
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    if (!kept && (unlink(path) < 0 || rmdir(dir) < 0))
        check(f, "files left of a save", 1, 0);
}

/* --- Several ranks ---------------------------------------------------------------------------- */

enum { RANKS_MAX = 4 };

struct job {
    struct fixture rank[RANKS_MAX];
    struct hzp_link *link[RANKS_MAX];
    int32_t ranks;
};

/* Runs the chain in each rank's plan, with its transfers, slice by slice.  update: those of the
 * tail may be left. */
static void run_ranks(struct job *job, bool update)
{
    int32_t at[RANKS_MAX] = {0};
    struct hzp_exec_times times;
    struct hzp_plan slice;
    hzp_plan_init(&slice);
    for (bool busy = true; busy;) {
        busy = false;
        for (int32_t r = 0; r < job->ranks; r++) {
            struct fixture *f = &job->rank[r];
            struct hzp_transfers *t = hzp_collectives_transfers(f->collectives);
            if (hzp_collectives_turn(f->collectives, at[r]) < 0) {
                fprintf(stderr, "rank %d: %s\n", r, hzp_collectives_error(f->collectives));
                exit(1);
            }
            int32_t to = hzp_transfers_cut(t, at[r], hzp_transfers_limit(t, f->plan.items));
            if (to > at[r]) {
                hzp_plan_clear(&slice);
                hzp_plan_take(&slice, &f->plan, at[r], to);
                MUST(hzp_plan_check(&slice, &text));
                MUST(hzp_exec_run(f->exec, &slice, NULL, &times));
                at[r] = to;
            }
            bool ready = update ? hzp_collectives_updated(f->collectives)
                                : hzp_collectives_done(f->collectives);
            busy = busy || at[r] < f->plan.items || !ready;
        }
    }
    hzp_plan_fini(&slice);
    for (int32_t r = 0; r < job->ranks; r++)
        hzp_plan_clear(&job->rank[r].plan);
}

/* The tail of an update: the audit of the units as they arrive. */
static void run_audits(struct job *job)
{
    struct hzp_plan slice;
    struct hzp_exec_times times;
    bool busy = true;
    hzp_plan_init(&slice);
    for (int32_t r = 0; r < job->ranks; r++)
        hzp_collectives_audit(job->rank[r].collectives);
    while (busy) {
        busy = false;
        for (int32_t r = 0; r < job->ranks; r++) {
            struct fixture *f = &job->rank[r];
            struct hzp_draft_audit *audit = &f->collectives->audit;
            if (hzp_collectives_turn(f->collectives, INT32_MAX) < 0) {
                fprintf(stderr, "rank %d: %s\n", r, hzp_collectives_error(f->collectives));
                exit(1);
            }
            int32_t to = hzp_collectives_audit_limit(f->collectives);
            if (to > audit->at) {
                hzp_plan_clear(&slice);
                hzp_plan_take(&slice, &audit->chain, audit->at, to);
                MUST(hzp_plan_check(&slice, &text));
                MUST(hzp_exec_run(f->exec, &slice, NULL, &times));
                audit->at = audit->to = to;
            }
            busy = busy || !hzp_collectives_whole(f->collectives);
        }
    }
    hzp_plan_fini(&slice);
}

/* Each rank has every R-th document. */
static void ranks_update(struct job *job, json_t *updates, json_t *step, int32_t t)
{
    struct fixture *first = &job->rank[0];
    struct hzp_version *draft[RANKS_MAX];
    json_t *batch = at(at(first->numbers, "batches"), json_string_value(at(step, "batch")));
    int32_t learned = 0;
    double loss = 0;
    for (int32_t r = 0; r < job->ranks; r++) {
        struct fixture *f = &job->rank[r];
        fill_part(f, batch, hzp_collectives_position(f->collectives), job->ranks);
        learned += f->micro->learned;
        hzp_collectives_micro(f->collectives, &f->plan, hzp_weights_current(f->m.weights), f->micro,
                              true, true);
    }
    run_ranks(job, false);
    struct hzp_update_hyper hyper = hyper_of(updates, step, learned, t);
    for (int32_t r = 0; r < job->ranks; r++) {
        struct fixture *f = &job->rank[r];
        hzp_collectives_note_loss(f->collectives, loss_sum(f->micro));
        MUST(hzp_weights_begin(f->m.weights, &draft[r]));
        hzp_collectives_update(f->collectives, &f->plan, hzp_weights_current(f->m.weights),
                               draft[r], &hyper, false);
    }
    run_ranks(job, true);
    run_audits(job);
    for (int32_t bin = 0; bin < job->ranks; bin++)
        loss += hzp_collectives_loss(first->collectives, bin);
    check(first, "loss of an update of ranks", fabs(loss / learned - number(step, "loss")),
          loss_max);
    double norm = sqrt(hzp_update_result(first->space)->sumsq) / learned;
    check(first, "gradient norm of ranks", fabs(norm - number(step, "grad_norm")),
          1e-4 * number(step, "grad_norm"));
    for (int32_t r = 0; r < job->ranks; r++) {
        struct hzp_weights *w = job->rank[r].m.weights;
        hzp_weights_finished(w, t);
        hzp_weights_publish(w, draft[r], (uint64_t)t);
        hzp_weights_reclaim(w, (uint64_t)t);
    }
}

static int test_ranks(const char *backend, const char *dir, struct hzp_groups groups)
{
    struct job job = {.ranks = groups.ranks};
    int failures = 0;
    if (hzp_link_open_local(groups.ranks, 3, 1, job.link, &text) < 0) {
        fprintf(stderr, "%s\n", text.text);
        exit(1);
    }
    for (int32_t r = 0; r < job.ranks; r++) {
        struct fixture *f = &job.rank[r];
        f->dir = dir;
        f->shards = (struct hzp_shards){.groups = groups, .rank = r};
        set_up(f, backend);
        struct hzp_collectives_config config = {.link = job.link[r],
                                                .shards = f->shards,
                                                .model = f->m.model,
                                                .space = f->space,
                                                .micro_rows = ROWS_MAX};
        MUST(hzp_collectives_create(&config, &f->collectives, &text));
    }
    json_t *updates = at(job.rank[0].numbers, "updates"), *steps = at(updates, "steps");
    for (size_t i = 0; i < json_array_size(steps); i++)
        ranks_update(&job, updates, json_array_get(steps, i), (int32_t)i + 1);
    for (int32_t r = 0; r < job.ranks; r++) {
        struct fixture *f = &job.rank[r];
        const struct hzp_units *units =
            hzp_version_units(f->m.weights, hzp_weights_current(f->m.weights));
        if (hzp_units_whole(units))
            check(f, "parameters after the updates of ranks", tensors_off(f, units, "after.", 1),
                  param_max);
        failures += f->failures;
        hzp_collectives_destroy(f->collectives);
        tear_down(f);
    }
    for (int32_t r = 0; r < job.ranks; r++)
        hzp_link_close(job.link[r]);
    printf("%s %s on %d ranks of %s, z1 %d z2 %d z3 %d\n", failures ? "FAIL" : "ok  ", dir,
           groups.ranks, backend, groups.z1, groups.z2, groups.z3);
    return failures;
}

static int test_all_ranks(const char *backend, int dirs, char **dir)
{
    static const struct hzp_groups groups[] = {{2, 2, 1, 1}, {2, 2, 2, 1}, {2, 2, 2, 2},
                                               {4, 2, 2, 1}, {4, 4, 1, 1}, {4, 4, 4, 2}};
    int failures = 0;
    for (int d = 0; d < dirs; d++)
        for (int i = 0; i < HZP_COUNT(groups); i++)
            failures += test_ranks(backend, dir[d], groups[i]);
    return failures ? 1 : 0;
}

int main(int argc, char **argv)
{
    hzp_log_init();
    if (argc < 3) {
        fprintf(stderr, "usage: test_golden BACKEND DIR...\n");
        return 2;
    }
    if (!strcmp(argv[2], "ranks"))
        return test_all_ranks(argv[1], argc - 3, argv + 3);
    int failures = 0;
    for (int i = 2; i < argc; i++) {
        struct fixture f = {.dir = argv[i]};
        set_up(&f, argv[1]);
        if (f.type == HZP_F32)
            test_save(&f);
        if (json_object_get(f.numbers, "cases")) /* the first models have none */
            test_greedy(&f, f.numbers);
        test_logits(&f);
        test_gradients(&f);
        test_accumulation(&f);
        test_updates(&f);
        printf("%s %s on %s\n", f.failures ? "FAIL" : "ok  ", argv[i], argv[1]);
        failures += f.failures;
        tear_down(&f);
    }
    return failures ? 1 : 0;
}
