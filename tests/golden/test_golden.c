/* SPDX-License-Identifier: Apache-2.0 */
/* Logits, losses, every gradient and ten AdamW updates against the float64 numbers beside this
 * file (README.md says what they are and how they were made), on one backend.
 *
 *     test_golden BACKEND DIR...
 *     test_golden BACKEND ranks DIR...      the updates, on 2 and on 4 ranks of one process
 */
#include "base/log.h"
#include "nanobatch/build/backward.h"
#include "nanobatch/build/update.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/build/forward.h"
#include "tests/fixture/model.h"
#include "train/collectives_state.h"
#include "weights/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_ROWS = 4, PAGES = 64, DOCS = 16, ROWS_MAX = 512 };

/* Ten times the error of torch's own float32: see README.md. */
static const double logits_max = 1e-4, loss_max = 1e-5, grad_max = 2e-5, param_max = 2e-5;

struct fixture {
    const char *dir;
    struct fixture_model m;
    struct hzp_exec *exec;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_plan plan;
    struct hzp_lane *lane; /* copies between host and device */
    struct hzp_fence *fence;
    struct hzp_safetensors *golden;
    json_t *numbers;
    int failures;
    struct hzp_shards shards; /* all zero: one rank */
    struct hzp_collectives *collectives;
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "%s: %s: %s %s\n", f->dir, #call, hzp_err_name(must_), text.text);     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct hzp_err_text text;

static void check(struct fixture *f, const char *what, double worst, double limit)
{
    bool ok = worst <= limit; /* false for NaN too */
    if (!ok || getenv("VERBOSE"))
        printf("%-4s %s: %s is off by %.3g, limit %.3g\n", ok ? "ok" : "FAIL", f->dir, what, worst,
               limit);
    f->failures += !ok;
}

static json_t *at(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!value) {
        fprintf(stderr, "golden.json: no %s\n", key);
        exit(1);
    }
    return value;
}

static double number(json_t *object, const char *key)
{
    return json_number_value(at(object, key));
}

static int32_t ints(json_t *array, int32_t *ret)
{
    int32_t n = (int32_t)json_array_size(array);
    for (int32_t i = 0; i < n; i++)
        ret[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return n;
}

/* The caller frees the values. */
static double *doubles(struct fixture *f, const char *name)
{
    const struct hzp_st_tensor *t = hzp_safetensors_find(f->golden, name);
    if (!t || t->type != HZP_DISK_F64) {
        fprintf(stderr, "%s: golden.safetensors has no F64 %s\n", f->dir, name);
        exit(1);
    }
    double *value = hzp_xmalloc((size_t)HZP_MAX(t->elements, 1) * sizeof(*value));
    MUST(hzp_safetensors_read(t, 0, t->elements, value, &text));
    return value;
}

static void copy(struct fixture *f, void *to, const void *from, size_t bytes)
{
    MUST(hzp_lane_copy(f->lane, to, from, bytes));
    MUST(hzp_fence_record(f->fence, f->lane));
    MUST(hzp_fence_wait(f->fence));
}

/* Copies data at ptr from the device; the caller frees it. */
static float *fetch(struct fixture *f, const void *ptr, size_t elements)
{
    float *host = hzp_xmalloc(elements * sizeof(*host));
    copy(f, host, ptr, elements * sizeof(*host));
    return host;
}

static void set_up(struct fixture *f, const char *backend)
{
    char path[512];
    struct fixture_config model = {.device = backend,
                                   .threads = 2,
                                   .dir = f->dir,
                                   .store = {.type = HZP_F32,
                                             .slots = 2,
                                             .max_staleness = 1,
                                             .first_id = 1,
                                             .shards = f->shards},
                                   .positions = 64};
    fixture_open(&f->m, &model);
    fixture_publish_dir(&f->m, f->dir);
    MUST(hzp_lane_open(f->m.dev, HZP_BOUND_COPY, &f->lane));
    MUST(hzp_fence_open(f->m.dev, &f->fence));
    MUST(hzp_exec_create(f->m.dev, &f->exec));
    struct hzp_train_space_config space = {
        .rows_max = ROWS_MAX, .head_rows = 5, .moment_type = HZP_F32, .quantum_flops = 20000};
    space.shards = f->shards;
    MUST(hzp_train_space_create(f->m.model, &space, &f->space));
    MUST(hzp_micro_create(f->m.dev, ROWS_MAX, &f->micro));
    hzp_plan_init(&f->plan);
    snprintf(path, sizeof(path), "%s/golden.safetensors", f->dir);
    MUST(hzp_safetensors_open(path, &f->golden, &text));
    snprintf(path, sizeof(path), "%s/golden.json", f->dir);
    json_error_t error;
    f->numbers = json_load_file(path, 0, &error);
    if (!f->numbers) {
        fprintf(stderr, "%s: %s\n", path, error.text);
        exit(1);
    }
}

static void tear_down(struct fixture *f)
{
    json_decref(f->numbers);
    hzp_safetensors_close(f->golden);
    hzp_plan_fini(&f->plan);
    hzp_micro_destroy(f->micro);
    hzp_train_space_destroy(f->space);
    hzp_exec_destroy(f->exec);
    hzp_fence_close(f->fence);
    hzp_lane_close(f->lane);
    fixture_close(&f->m);
}

static void run(struct fixture *f)
{
    struct hzp_exec_times times;
    MUST(hzp_plan_check(&f->plan, &text));
    MUST(hzp_exec_run(f->exec, &f->plan, NULL, &times));
    hzp_plan_clear(&f->plan);
}

/* The documents of a packed batch, each a whole prompt and a segment of one serving step. */
static void fill_batch(struct hzp_batch *batch, json_t *golden, int32_t *golden_row)
{
    int32_t start[DOCS + 1], token[ROWS_MAX], page = 0;
    int32_t docs = ints(at(golden, "doc_start"), start) - 1;
    ints(at(golden, "tokens"), token);
    for (int32_t d = 0; d < docs; d++) {
        int32_t *pages = hzp_batch_add_segment(batch, 0, false);
        int32_t n = start[d + 1] - start[d];
        for (int32_t i = 0; i < HZP_DIV_UP(n, PAGE_ROWS); i++)
            pages[i] = PAGES - 1 - page++; /* out of order, on purpose */
        for (int32_t i = 0; i < n; i++) {
            int32_t slot = pages[i / PAGE_ROWS] * PAGE_ROWS + i % PAGE_ROWS;
            int32_t row = hzp_batch_add_row(batch, token[start[d] + i], slot);
            golden_row[hzp_batch_add_logits(batch, row)] = start[d] + i;
        }
    }
}

/* The same documents again, now token by token: decode rows over the pages filled before. */
static void fill_decode(struct hzp_batch *batch, json_t *golden, int32_t step, int32_t *golden_row)
{
    int32_t start[DOCS + 1], token[ROWS_MAX], page = 0;
    int32_t docs = ints(at(golden, "doc_start"), start) - 1;
    ints(at(golden, "tokens"), token);
    for (int32_t d = 0; d < docs; d++) {
        int32_t n = start[d + 1] - start[d], first = page;
        page += HZP_DIV_UP(n, PAGE_ROWS);
        if (step >= n)
            continue;
        int32_t *pages = hzp_batch_add_segment(batch, step, true);
        for (int32_t i = 0; i < HZP_DIV_UP(n, PAGE_ROWS); i++)
            pages[i] = PAGES - 1 - (first + i);
        int32_t slot = pages[step / PAGE_ROWS] * PAGE_ROWS + step % PAGE_ROWS;
        int32_t row = hzp_batch_add_row(batch, token[start[d] + step], slot);
        golden_row[hzp_batch_add_logits(batch, row)] = start[d] + step;
    }
}

static double logits_off(struct fixture *f, const struct hzp_batch *batch,
                         const struct hzp_serve_space *space, const int32_t *golden_row)
{
    double *golden = doubles(f, "logits");
    int32_t vocab = f->m.layout.config.vocab;
    double worst = 0;
    float *logits = fetch(f, space->logits.ptr, (size_t)batch->logits * (size_t)vocab);
    for (int32_t i = 0; i < batch->logits; i++)
        for (int32_t t = 0; t < vocab; t++) {
            float got = logits[(size_t)i * (size_t)vocab + (size_t)t];
            double off =
                fabs((double)got - golden[(size_t)golden_row[i] * (size_t)vocab + (size_t)t]);
            worst = off > worst || isnan(off) ? off : worst;
        }
    free(golden);
    free(logits);
    return worst;
}

/* Runs forward without the last item, sampling, which overwrites the logits. */
static double forward_off(struct fixture *f, struct hzp_batch *batch, const struct hzp_kv *kv,
                          struct hzp_serve_space *space, const int32_t *golden_row)
{
    hzp_forward_build(&f->plan, f->m.model, hzp_weights_current(f->m.weights), batch, kv, space,
                      NULL);
    HZP_ASSERT(f->plan.item[f->plan.items - 1].op == HZP_OP_sample);
    f->plan.items--;
    run(f);
    return logits_off(f, batch, space, golden_row);
}

static void test_logits(struct fixture *f)
{
    struct hzp_batch_config max = {.rows_max = ROWS_MAX,
                                   .segs_max = DOCS,
                                   .page_stride = PAGES,
                                   .logits_max = ROWS_MAX,
                                   .edits_max = 1};
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    int32_t layers = f->m.layout.config.layers, golden_row[ROWS_MAX];
    struct hzp_heads heads = f->m.layout.config.heads;
    size_t page = (size_t)heads.kv_heads * PAGE_ROWS * (size_t)heads.dim * sizeof(float);
    struct hzp_kv *kv = hzp_xcalloc((size_t)layers, sizeof(*kv));
    json_t *golden = at(at(f->numbers, "batches"), "a");

    MUST(hzp_batch_create(f->m.dev, &max, &batch));
    MUST(hzp_serve_space_create(f->m.model, ROWS_MAX, ROWS_MAX, &space));
    for (int32_t l = 0; l < layers; l++) {
        kv[l] = (struct hzp_kv){NULL, NULL, PAGES, PAGE_ROWS, HZP_F32, NULL, NULL};
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].k));
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].v));
    }
    fill_batch(batch, golden, golden_row);
    check(f, "prefill logits", forward_off(f, batch, kv, space, golden_row), logits_max);
    for (int32_t step = 0;; step++) {
        hzp_batch_clear(batch);
        fill_decode(batch, golden, step, golden_row);
        if (batch->rows == 0)
            break;
        check(f, "decode logits", forward_off(f, batch, kv, space, golden_row), logits_max);
    }
    for (int32_t l = 0; l < layers; l++) {
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].k);
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].v);
    }
    free(kv);
    hzp_serve_space_destroy(space);
    hzp_batch_destroy(batch);
}

/* Every `step`-th document from the first one. */
static void fill_part(struct fixture *f, json_t *golden, int32_t first, int32_t step)
{
    int32_t start[DOCS + 1], token[ROWS_MAX], learn_int[ROWS_MAX];
    uint8_t learn[ROWS_MAX];
    int32_t docs = ints(at(golden, "doc_start"), start) - 1;
    int32_t rows = ints(at(golden, "tokens"), token);
    ints(at(golden, "learn"), learn_int);
    for (int32_t i = 0; i < rows; i++)
        learn[i] = (uint8_t)learn_int[i];
    hzp_micro_clear(f->micro);
    for (int32_t d = first; d < docs; d += step)
        MUST(hzp_micro_add(f->micro, token + start[d], learn + start[d], start[d + 1] - start[d]));
}

static void fill_micro(struct fixture *f, json_t *golden)
{
    fill_part(f, golden, 0, 1);
}

static double loss_sum(const struct hzp_micro *micro)
{
    double sum = 0;
    for (int32_t i = 0; i < micro->learned; i++)
        sum += (double)micro->loss.value[i];
    return sum;
}

/* Runs forward, loss and backward of the micro-batch; returns the sum of the losses. */
static double run_micro(struct fixture *f, bool first)
{
    hzp_micro_build(&f->plan, f->m.model, hzp_weights_current(f->m.weights), f->micro, f->space,
                    first);
    run(f);
    return loss_sum(f->micro);
}

/* The largest error among the units' tensors on the device, multiplied by scale, against
   <prefix><name>. */
static double tensors_off(struct fixture *f, const struct hzp_units *from, const char *prefix,
                          double scale)
{
    double worst = 0;
    struct hzp_units units = fixture_units_read(f->m.dev, from);
    for (int32_t i = 0; i < f->m.layout.disks; i++) {
        const struct hzp_disk_tensor *d = &f->m.layout.disk[i];
        const struct hzp_tensor *t = &f->m.layout.tensor[d->tensor];
        char name[128];
        size_t cols = d->vector ? 1 : (size_t)t->cols;
        const float *got =
            (const float *)hzp_units_mat(&units, t->role, t->layer).ptr + (size_t)d->row0 * cols;
        snprintf(name, sizeof(name), "%s%s", prefix, d->name);
        double *golden = doubles(f, name);
        for (size_t k = 0; k < (size_t)d->rows * cols; k++) {
            double value;
            memcpy(&value, golden + k, sizeof(value));
            double off = fabs((double)got[k] * scale - value);
            worst = off > worst || isnan(off) ? off : worst;
        }
        free(golden);
    }
    fixture_units_free(&units);
    return worst;
}

static void test_gradients(struct fixture *f)
{
    json_t *golden = at(at(f->numbers, "batches"), "a");
    fill_micro(f, golden);
    check(f, "learned tokens", fabs(f->micro->learned - number(golden, "learned")), 0);
    double loss = run_micro(f, true) / f->micro->learned;
    check(f, "loss", fabs(loss - number(f->numbers, "loss")), loss_max);
    check(f, "gradients",
          tensors_off(f, hzp_train_space_grads(f->space), "grad.", 1.0 / f->micro->learned),
          grad_max);
}

static struct hzp_update_hyper hyper_of(json_t *updates, json_t *step, int32_t learned, int32_t t)
{
    return (struct hzp_update_hyper){
        .lr = (float)number(step, "lr"),
        .beta1 = (float)number(updates, "beta1"),
        .beta2 = (float)number(updates, "beta2"),
        .eps = (float)number(updates, "eps"),
        .decay = (float)number(updates, "weight_decay"),
        .clip = (float)number(updates, "clip_norm"),
        .grad_scale = 1.0f / (float)learned,
        .t = t,
    };
}

static void one_update(struct fixture *f, json_t *updates, json_t *step, int32_t t)
{
    const char *which = json_string_value(at(step, "batch"));
    fill_micro(f, at(at(f->numbers, "batches"), which));
    double loss = run_micro(f, true) / f->micro->learned;
    check(f, "loss of an update", fabs(loss - number(step, "loss")), loss_max);
    struct hzp_update_hyper hyper = hyper_of(updates, step, f->micro->learned, t);
    struct hzp_version *v = hzp_weights_current(f->m.weights), *draft;
    MUST(hzp_weights_begin(f->m.weights, &draft));
    hzp_update_build(&f->plan, f->m.model, v, draft, &hyper, f->space);
    run(f);
    const struct hzp_update_result *result = hzp_update_result(f->space);
    double norm = sqrt(result->sumsq) / f->micro->learned;
    check(f, "gradient norm", fabs(norm - number(step, "grad_norm")),
          1e-4 * number(step, "grad_norm"));
    check(f, "non-finite parameters", (double)result->nonfinite, 0);
    hzp_weights_finished(f->m.weights, t);
    hzp_weights_publish(f->m.weights, draft, (uint64_t)t);
    hzp_weights_reclaim(f->m.weights, (uint64_t)t);
}

static void test_updates(struct fixture *f)
{
    json_t *updates = at(f->numbers, "updates"), *steps = at(updates, "steps");
    for (size_t i = 0; i < json_array_size(steps); i++)
        one_update(f, updates, json_array_get(steps, i), (int32_t)i + 1);
    check(f, "parameters after the updates",
          tensors_off(f, hzp_version_units(f->m.weights, hzp_weights_current(f->m.weights)),
                      "after.", 1),
          param_max);
}

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
    /* float32 sums in another order: a library may also split the two shapes differently */
    check(f, "1 x 16 against 16 x 1", worst, 3e-6);
    check(f, "gradient norm of 16 x 1", fabs(sqrt(sumsq) / learned - number(golden, "grad_norm")),
          grad_max);
    fixture_units_free(&whole);
    fixture_units_free(&parts);
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
        hzp_collectives_micro(f->collectives, &f->plan, hzp_weights_current(f->m.weights),
                              f->micro->rows ? f->micro : NULL, true, true);
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
