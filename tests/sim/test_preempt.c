/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_preempt.c - neither preemption nor another scheduler that goes on with a request
 * changes an answer.
 *
 * A small model with random f32 weights serves the same requests twice: with pages for all of
 * them, and with a pool so small, and admission so careless (the linker's --wrap makes it accept
 * everything), that most are preempted, some of them many times and in the middle of their
 * prompt.  Tokens, ranks, likeliest tokens and ends must be the same.  Log-probabilities may
 * differ by rounding, because recomputed rows are computed in other pieces.  With "fp8" keys and
 * values are e4m3, where such a rounding may move one to the neighbouring code: for ref only, which
 * computes a row alike in all pieces.
 *
 * Then one engine is stopped in the middle, and a second one, which accepts nothing new any more,
 * goes on with what the first has drawn so far. */
#include "base/log.h"
#include "nanobatch/loop.h"
#include "serve/scheduler.h"
#include "tests/fixture/model.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 96, POSITIONS = 160, PAGE_ROWS = 4, REQUESTS = 40, EOS = 5 };

static bool careless, fp8;

bool __real_hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one);
bool __wrap_hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one);

bool __wrap_hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one)
{
    return careless || __real_hzp_admission_fits(a, one);
}

struct rig {
    struct fixture_model m;
    struct hzp_kvpool *pool;
    struct hzp_serve_space *space;
    struct hzp_batch *batch;
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            printf("%s: %s\n", #call, hzp_err_name(must_));                                        \
            exit(must_ == HZP_EUNSUP ? 77 : 1);                                                    \
        }                                                                                          \
    } while (0)

static void set_norm(struct rig *rig, struct hzp_version *v, enum hzp_role role, int32_t layer,
                     float value)
{
    struct hzp_mat norm = hzp_version_mat(rig->m.weights, v, role, layer);
    for (int32_t c = 0; c < norm.cols; c++)
        ((float *)norm.ptr)[c] = value;
}

static void write_weights(struct rig *rig, struct hzp_version *v)
{
    fixture_units_random(rig->m.dev, hzp_version_units(rig->m.weights, v), 11, 0.25f);
    for (int32_t l = 0; l < rig->m.layout.config.layers; l++) {
        set_norm(rig, v, HZP_ATTN_NORM, l, 1);
        set_norm(rig, v, HZP_MLP_NORM, l, 1);
    }
    /* Logits are far apart, so that rounding cannot change the order of tokens. */
    set_norm(rig, v, HZP_FINAL_NORM, -1, 20);
}

static void rig_open(struct rig *rig, const char *device, int32_t pages)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = 3,
                                      .width = 64,
                                      .inner = 96,
                                      .vocab = VOCAB,
                                      .heads = {.heads = 4, .kv_heads = 2, .dim = 16},
                                      .positions = POSITIONS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .disk_type = HZP_F32,
                                      .bos = -1,
                                      .eos = {EOS},
                                      .eos_count = 1};
    struct hzp_scheduler_config scheduler = {.running_max = 12,
                                             .waiting_max = REQUESTS,
                                             .waiting_tokens_max = 1 << 20,
                                             .edits_max = 12 * VOCAB};
    struct hzp_batch_config batch = {.rows_max = 48,
                                     .segs_max = 12,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 48,
                                     .edits_max = 12 * VOCAB};
    memset(rig, 0, sizeof(*rig));
    struct fixture_config fixture = {
        .device = device, .threads = 1, .config = config, .store = {.type = HZP_F32}};
    fixture_open(&rig->m, &fixture);
    struct hzp_version *draft = fixture_begin(&rig->m);
    write_weights(rig, draft);
    fixture_publish(&rig->m, draft, 0);
    rig->m.model->kv_e4m3 = fp8;
    MUST(hzp_kvpool_create(rig->m.model, pages, PAGE_ROWS, &rig->pool));
    MUST(hzp_serve_space_create(rig->m.model, batch.rows_max, batch.logits_max, &rig->space));
    MUST(hzp_batch_create(rig->m.dev, &batch, &rig->batch));
    MUST(hzp_scheduler_create(&scheduler, rig->m.model, rig->pool, &rig->scheduler));
    struct hzp_loop_config loop = {.model = rig->m.model,
                                   .space = rig->space,
                                   .batch = rig->batch,
                                   .source = {hzp_scheduler_source(rig->scheduler)},
                                   .sources = 1,
                                   .check_plans = true};
    MUST(hzp_loop_create(&loop, &rig->loop));
}

static void rig_close(struct rig *rig)
{
    hzp_loop_destroy(rig->loop);
    hzp_scheduler_destroy(rig->scheduler);
    hzp_batch_destroy(rig->batch);
    hzp_serve_space_destroy(rig->space);
    hzp_kvpool_destroy(rig->pool);
    fixture_close(&rig->m);
}

static struct hzp_request *make_request(int i)
{
    uint64_t seed = 977u * (uint64_t)(i + 1);
    int32_t prompt[POSITIONS], count = 1 + (int32_t)seeded(&seed, 70);
    int32_t tokens = 20 + (int32_t)seeded(&seed, 60);
    struct hzp_request *rq = NULL;
    for (int32_t p = 0; p < count; p++)
        prompt[p] = (int32_t)seeded(&seed, VOCAB);
    MUST(hzp_request_create(prompt, count, tokens, i % 3 ? 0 : 4, i % 4 == 1, &rq));
    rq->sampling.temperature = i % 2 ? 0 : 1.0f;
    rq->sampling.seed = (uint64_t)i;
    rq->sampling.top_k = i % 5 == 2 ? 20 : 0;
    if (i % 6 == 4) {
        rq->sampling.presence = 0.7f;
        rq->sampling.frequency = 0.3f;
        rq->sampling.repetition = 1.2f;
    }
    rq->min_tokens = i % 7 == 3 ? 15 : 0;
    if (i % 3 == 1)
        rq->stop_id[rq->stop_ids++] = (int32_t)seeded(&seed, VOCAB);
    return rq;
}

static void serve(const char *device, int32_t pages, struct hzp_request **rq,
                  struct hzp_scheduler_stats *ret)
{
    struct rig rig;
    rig_open(&rig, device, pages);
    for (int i = 0; i < REQUESTS; i++) {
        rq[i] = make_request(i);
        MUST(hzp_scheduler_submit(rig.scheduler, rq[i], NULL));
    }
    int r = 1, turns = 0;
    while (r > 0 && ++turns < 1000000)
        MUST(r = hzp_loop_turn(rig.loop));
    hzp_scheduler_read_stats(rig.scheduler, ret);
    rig_close(&rig);
}

/* As a replica's requests begin again elsewhere: with what was drawn, and what was told of the
 * prompt with the first token, which is not computed again. */
static struct hzp_request *continued(int i, const struct hzp_request *from)
{
    struct hzp_request *rq = make_request(i);
    int32_t drawn = atomic_load(&from->out_count);
    memcpy(rq->out, from->out, (size_t)drawn * sizeof(*rq->out));
    if (rq->tops) {
        size_t n = (size_t)drawn * (size_t)rq->tops;
        memcpy(rq->top_token, from->top_token, n * sizeof(*rq->top_token));
        memcpy(rq->top_logprob, from->top_logprob, n * sizeof(*rq->top_logprob));
    }
    if (rq->prompt_logprobs && drawn > 0)
        memcpy(rq->prompt_out, from->prompt_out,
               (size_t)rq->prompt_count * sizeof(*rq->prompt_out));
    atomic_store(&rq->out_count, drawn);
    rq->again = true;
    return rq;
}

/* *ret_moved: requests that had drawn tokens and went on. */
static void move(const char *device, struct hzp_request **rq, int *ret_moved)
{
    struct rig first, second;
    struct hzp_request *begun[REQUESTS];
    int32_t pages = 12 * POSITIONS / PAGE_ROWS;
    *ret_moved = 0;
    rig_open(&first, device, pages);
    for (int i = 0; i < REQUESTS; i++) {
        begun[i] = make_request(i);
        MUST(hzp_scheduler_submit(first.scheduler, begun[i], NULL));
    }
    for (int turn = 0; turn < 100; turn++)
        MUST(hzp_loop_turn(first.loop));
    rig_open(&second, device, pages);
    hzp_scheduler_stop(second.scheduler, false);
    for (int i = 0; i < REQUESTS; i++) {
        bool ended = hzp_request_final(begun[i]);
        rq[i] = ended ? begun[i] : continued(i, begun[i]);
        *ret_moved += !ended && atomic_load(&rq[i]->out_count) > 0;
        if (ended)
            continue;
        MUST(hzp_scheduler_submit(second.scheduler, rq[i], NULL));
    }
    int r = 1, turns = 0;
    while (r > 0 && ++turns < 1000000)
        MUST(r = hzp_loop_turn(second.loop));
    rig_close(&first);
    rig_close(&second);
    for (int i = 0; i < REQUESTS; i++)
        if (begun[i] != rq[i])
            hzp_request_destroy(begun[i]);
}

struct difference {
    int other;
    double logprob;
};

static void compare(const struct hzp_output *a, const struct hzp_output *b, struct difference *d)
{
    d->other += a->token != b->token || a->rank != b->rank || a->version != b->version;
    double off = fabs((double)a->logprob - b->logprob);
    d->logprob = HZP_MAX(d->logprob, off);
}

static void compare_requests(const struct hzp_request *a, const struct hzp_request *b,
                             struct difference *d)
{
    int32_t count = atomic_load(&a->out_count);
    d->other += !hzp_request_final(a) || a->state != b->state || a->stop_token != b->stop_token ||
                count != atomic_load(&b->out_count);
    for (int32_t n = 0; n < count && !d->other; n++)
        compare(&a->out[n], &b->out[n], d);
    for (int32_t n = 0; n < count * a->tops && !d->other; n++) {
        d->other += a->top_token[n] != b->top_token[n];
        double off = fabs((double)a->top_logprob[n] - b->top_logprob[n]);
        d->logprob = HZP_MAX(d->logprob, off);
    }
    for (int32_t p = 1; a->prompt_logprobs && p < a->prompt_count && !d->other; p++)
        compare(&a->prompt_out[p], &b->prompt_out[p], d);
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "ref";
    fp8 = argc > 2 && !strcmp(argv[2], "fp8");
    struct hzp_request *calm[REQUESTS], *tight[REQUESTS];
    struct hzp_scheduler_stats stats;
    struct difference d = {0};
    int pushed = 0, most = 0;
    hzp_log_set_level(HZP_LOG_ERROR);
    serve(device, 12 * POSITIONS / PAGE_ROWS, calm, &stats);
    bool alone = stats.preempted == 0 && stats.recomputed_tokens == 0;
    uint64_t prompts = stats.prompt_tokens, generated = stats.generated_tokens;
    careless = true;
    serve(device, POSITIONS / PAGE_ROWS + 2, tight, &stats);
    for (int i = 0; i < REQUESTS; i++) {
        compare_requests(calm[i], tight[i], &d);
        pushed += tight[i]->preemptions > 0;
        most = HZP_MAX(most, tight[i]->preemptions);
        hzp_request_destroy(calm[i]);
        hzp_request_destroy(tight[i]);
    }
    printf("%s: %llu preemptions of %d of %d requests, one of them %d times; %llu rows computed "
           "again beside %llu of prompts and %llu drawn; %d differences, log-probabilities within "
           "%.2g\n",
           device, (unsigned long long)stats.preempted, pushed, REQUESTS, most,
           (unsigned long long)stats.recomputed_tokens, (unsigned long long)prompts,
           (unsigned long long)generated, d.other, d.logprob);
    bool usage = stats.prompt_tokens == prompts && stats.generated_tokens == generated;
    int moved;
    struct difference m = {0};
    careless = false;
    serve(device, 12 * POSITIONS / PAGE_ROWS, calm, &stats);
    move(device, tight, &moved);
    for (int i = 0; i < REQUESTS; i++) {
        compare_requests(calm[i], tight[i], &m);
        hzp_request_destroy(calm[i]);
        hzp_request_destroy(tight[i]);
    }
    printf("%s: %d of %d requests went on in another engine; %d differences, log-probabilities "
           "within %.2g\n",
           device, moved, REQUESTS, m.other, m.logprob);
    bool same = moved > 3 && !m.other && m.logprob < 1e-4;
    return !(alone && same && usage && pushed > REQUESTS / 2 && most > 1 && !d.other &&
             d.logprob < 1e-4);
}
