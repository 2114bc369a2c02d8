/* SPDX-License-Identifier: Apache-2.0 */
/* tests/golden/golden.h - a golden directory under test on one rank: reads its numbers, runs its
 * batches, compares.
 *
 * Thread: the test's; each rank may have its own.
 */
#pragma once

#include "nanobatch/model/backward.h"
#include "nanobatch/model/forward.h"
#include "nanobatch/model/update.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"
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
    double logits_max, logits_worst; /* the largest error allowed, and seen */
    double *logits_kept;       /* [ROWS_MAX][vocab] those of the prefill are kept here; NULL: not */
    const double *logits_like; /* kept by another: NULL, or apart is the largest distance from */
    double apart;              /* them */
    struct hzp_shards shards;  /* all zero: one rank */
    enum hzp_dtype type;       /* of the weights */
    bool fp8;                  /* serving multiplies by e4m3 */
    const struct hzp_plan_shape *shape; /* of serving steps; NULL: sequential */
    int threads;                        /* 0: 2, or with tensor 1 */
    int32_t positions;                  /* of the longest text; 0: 64 */
    struct hzp_link *tensor;            /* it has a slice of the model; NULL: all of it */
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

static _Thread_local struct hzp_err_text text;

static inline void check(struct fixture *f, const char *what, double worst, double limit)
{
    bool ok = worst <= limit; /* false for NaN too */
    if (!ok || getenv("VERBOSE"))
        printf("%-4s %s: %s is off by %.3g, limit %.3g\n", ok ? "ok" : "FAIL", f->dir, what, worst,
               limit);
    f->failures += !ok;
}

static inline json_t *at(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!value) {
        fprintf(stderr, "golden.json: no %s\n", key);
        exit(1);
    }
    return value;
}

static inline double number(json_t *object, const char *key)
{
    return json_number_value(at(object, key));
}

static inline int32_t ints(json_t *array, int32_t *ret)
{
    int32_t n = (int32_t)json_array_size(array);
    for (int32_t i = 0; i < n; i++)
        ret[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return n;
}

/* The caller frees the values. */
static inline double *doubles(struct fixture *f, const char *name)
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

static inline void copy(struct fixture *f, void *to, const void *from, size_t bytes)
{
    MUST(hzp_lane_copy(f->lane, to, from, bytes));
    MUST(hzp_fence_record(f->fence, f->lane));
    MUST(hzp_fence_wait(f->fence));
}

/* Copies data at ptr from the device; the caller frees it. */
static inline float *fetch(struct fixture *f, const void *ptr, size_t elements)
{
    float *host = hzp_xmalloc(elements * sizeof(*host));
    copy(f, host, ptr, elements * sizeof(*host));
    return host;
}

static inline void open_model(struct fixture *f, const char *backend)
{
    struct fixture_config model = {.device = backend,
                                   .threads = f->threads  ? f->threads
                                              : f->tensor ? 1
                                                          : 2,
                                   .dir = f->dir,
                                   .store = {.type = f->type,
                                             .fp8 = f->fp8,
                                             .slots = 2,
                                             .max_staleness = 1,
                                             .first_id = 1,
                                             .shards = f->shards},
                                   .tensor = f->tensor,
                                   .positions = f->positions ? f->positions : 64};
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
}

static inline void set_up(struct fixture *f, const char *backend)
{
    char path[512];
    open_model(f, backend);
    f->logits_max = f->logits_max > 0 ? f->logits_max : logits_max;
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

static inline void tear_down(struct fixture *f)
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

static inline void run(struct fixture *f)
{
    struct hzp_exec_times times;
    MUST(hzp_plan_check(&f->plan, &text));
    MUST(hzp_exec_run(f->exec, &f->plan, NULL, &times));
    hzp_plan_clear(&f->plan);
}

/* The documents of a packed batch, each a whole prompt and a segment of one serving step. */
static inline void fill_batch(struct hzp_batch *batch, json_t *golden, int32_t *golden_row)
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
static inline void fill_decode(struct hzp_batch *batch, json_t *golden, int32_t step,
                               int32_t *golden_row)
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

static inline double logits_off(struct fixture *f, const struct hzp_batch *batch,
                                const struct hzp_serve_space *space, const int32_t *golden_row)
{
    double *golden = doubles(f, "logits");
    int32_t vocab = f->m.layout.config.vocab;
    double worst = 0;
    float *logits = fetch(f, space->logits.ptr, (size_t)batch->logits * (size_t)vocab);
    for (int32_t i = 0; i < batch->logits; i++)
        for (int32_t t = 0; t < vocab; t++) {
            float got = logits[(size_t)i * (size_t)vocab + (size_t)t];
            size_t at = (size_t)golden_row[i] * (size_t)vocab + (size_t)t;
            double off = fabs((double)got - golden[at]);
            worst = off > worst || isnan(off) ? off : worst;
            if (f->logits_kept && !batch->decode_segs)
                f->logits_kept[at] = (double)got;
            double apart = f->logits_like ? fabs((double)got - f->logits_like[at]) : 0;
            f->apart = apart > f->apart || isnan(apart) ? apart : f->apart;
        }
    free(golden);
    free(logits);
    f->logits_worst = fmax(f->logits_worst, worst);
    return worst;
}

/* Runs forward without the last item, sampling, which overwrites the logits. */
static inline double forward_off(struct fixture *f, struct hzp_batch *batch,
                                 const struct hzp_kv *kv, struct hzp_serve_space *space,
                                 const int32_t *golden_row)
{
    hzp_forward_build(&f->plan, f->m.model, hzp_weights_current(f->m.weights), batch, kv, space,
                      f->shape);
    HZP_ASSERT(f->plan.item[f->plan.items - 1].op == HZP_OP_sample);
    f->plan.items--;
    run(f);
    return logits_off(f, batch, space, golden_row);
}

/* Every `step`-th document from the first one. */
static inline void fill_part(struct fixture *f, json_t *golden, int32_t first, int32_t step)
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

static inline void fill_micro(struct fixture *f, json_t *golden)
{
    fill_part(f, golden, 0, 1);
}

static inline double loss_sum(const struct hzp_micro *micro)
{
    double sum = 0;
    for (int32_t i = 0; i < micro->learned; i++)
        sum += (double)micro->loss.value[i];
    return sum;
}

/* Runs forward, loss and backward of the micro-batch; returns the sum of the losses. */
static inline double run_micro(struct fixture *f, bool first)
{
    hzp_micro_build(&f->plan, f->m.model, hzp_weights_current(f->m.weights), f->micro, f->space,
                    first);
    run(f);
    return loss_sum(f->micro);
}

/* Makes a slice's gradients those of the whole model's parameters. */
static inline void finish_grads(struct fixture *f)
{
    if (!f->tensor)
        return;
    hzp_update_head_norms(&f->plan, f->m.model, f->space);
    run(f);
}

/* The largest error among the units' tensors on the device, multiplied by scale, against
   <prefix><name>. */
static inline double tensors_off(struct fixture *f, const struct hzp_units *from,
                                 const char *prefix, double scale)
{
    double worst = 0;
    struct hzp_units units = fixture_units_read(f->m.dev, from);
    for (int32_t i = 0; i < f->m.layout.disks; i++) {
        const struct hzp_disk_tensor *d = &f->m.layout.disk[i];
        const struct hzp_tensor *t = &f->m.layout.tensor[d->tensor];
        char name[128];
        size_t cols = d->vector ? 1 : (size_t)t->cols, whole = (size_t)d->disk_cols;
        const float *got =
            (const float *)hzp_units_mat(&units, t->role, t->layer).ptr + (size_t)d->row0 * cols;
        snprintf(name, sizeof(name), "%s%s", prefix, d->name);
        double *golden = doubles(f, name);
        const double *part = golden + (size_t)d->disk_row0 * whole + (size_t)d->disk_col0;
        for (size_t k = 0; k < (size_t)d->rows * cols; k++) {
            double value;
            size_t row = (size_t)hzp_disk_row(d, (int32_t)(k / cols));
            memcpy(&value, part + row * whole + k % cols, sizeof(value));
            double off = fabs((double)got[k] * scale - value);
            worst = off > worst || isnan(off) ? off : worst;
        }
        free(golden);
    }
    fixture_units_free(&units);
    return worst;
}

static inline struct hzp_update_hyper hyper_of(json_t *updates, json_t *step, int32_t learned,
                                               int32_t t)
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

/* Loss and norm of the gradient before the update. */
struct golden_update {
    double loss, norm;
};

static inline struct golden_update run_update(struct fixture *f, json_t *updates, json_t *step,
                                              int32_t t)
{
    const char *which = json_string_value(at(step, "batch"));
    fill_micro(f, at(at(f->numbers, "batches"), which));
    struct golden_update ret = {.loss = run_micro(f, true) / f->micro->learned};
    struct hzp_update_hyper hyper = hyper_of(updates, step, f->micro->learned, t);
    struct hzp_version *v = hzp_weights_current(f->m.weights), *draft;
    MUST(hzp_weights_begin(f->m.weights, &draft));
    hzp_update_build(&f->plan, f->m.model, v, draft, &hyper, f->space);
    run(f);
    const struct hzp_update_result *result = hzp_update_result(f->space);
    ret.norm = sqrt(result->sumsq) / f->micro->learned;
    check(f, "non-finite parameters", (double)result->nonfinite, 0);
    hzp_weights_finished(f->m.weights, t);
    hzp_weights_publish(f->m.weights, draft, (uint64_t)t);
    hzp_weights_reclaim(f->m.weights, (uint64_t)t);
    return ret;
}

static inline void check_update(struct fixture *f, struct golden_update got,
                                struct golden_update want)
{
    check(f, "loss of an update", fabs(got.loss - want.loss), loss_max);
    check(f, "gradient norm", fabs(got.norm - want.norm), 1e-4 * want.norm);
}

static inline void test_logits(struct fixture *f)
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
    size_t page = (size_t)heads.kv_heads * PAGE_ROWS * (size_t)heads.dim * hzp_dtype_size(f->type);
    struct hzp_kv *kv = hzp_xcalloc((size_t)layers, sizeof(*kv));
    json_t *golden = at(at(f->numbers, "batches"), "a");

    MUST(hzp_batch_create(f->m.dev, &max, &batch));
    MUST(hzp_serve_space_create(f->m.model, ROWS_MAX, ROWS_MAX, &space));
    for (int32_t l = 0; l < layers; l++) {
        kv[l] = (struct hzp_kv){NULL, NULL, PAGES, PAGE_ROWS, f->type, NULL, NULL};
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].k));
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].v));
    }
    fill_batch(batch, golden, golden_row);
    check(f, "prefill logits", forward_off(f, batch, kv, space, golden_row), f->logits_max);
    for (int32_t step = 0;; step++) {
        hzp_batch_clear(batch);
        fill_decode(batch, golden, step, golden_row);
        if (batch->rows == 0)
            break;
        check(f, "decode logits", forward_off(f, batch, kv, space, golden_row), f->logits_max);
    }
    for (int32_t l = 0; l < layers; l++) {
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].k);
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].v);
    }
    free(kv);
    hzp_serve_space_destroy(space);
    hzp_batch_destroy(batch);
}

static inline void test_gradients(struct fixture *f)
{
    json_t *golden = at(at(f->numbers, "batches"), "a");
    fill_micro(f, golden);
    check(f, "learned tokens", fabs(f->micro->learned - number(golden, "learned")), 0);
    double loss = run_micro(f, true) / f->micro->learned;
    check(f, "loss", fabs(loss - number(f->numbers, "loss")), loss_max);
    finish_grads(f);
    check(f, "gradients",
          tensors_off(f, hzp_train_space_grads(f->space), "grad.", 1.0 / f->micro->learned),
          grad_max);
}

static inline void test_updates(struct fixture *f)
{
    json_t *updates = at(f->numbers, "updates"), *steps = at(updates, "steps");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        json_t *step = json_array_get(steps, i);
        check_update(f, run_update(f, updates, step, (int32_t)i + 1),
                     (struct golden_update){number(step, "loss"), number(step, "grad_norm")});
    }
    check(f, "parameters after the updates",
          tensors_off(f, hzp_version_units(f->m.weights, hzp_weights_current(f->m.weights)),
                      "after.", 1),
          param_max);
}
