/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler under a loop driven by hand.  A hash of the whole sequence, as stored in the
 * pages, replaces the model: if a page, a slot, a position or a piece of a prompt were wrong in
 * any step, the tokens would differ from those of the request alone. */
#include "serve/scheduler.h"
#include "tests/serve/rig.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { REQUESTS = 400 };

/* Checks the answer against that of the request alone. */
static void check_answer(const struct hzp_request *rq)
{
    uint32_t hash = 0;
    for (int32_t p = 0; p < rq->prompt_count; p++) {
        if (rq->prompt_logprobs && p) {
            assert_int_equal(rq->prompt_out[p].token, rq->prompt[p]);
            assert_true(rq->prompt_out[p].logprob == -(float)(hash % 1000));
            if (rq->tops)
                assert_int_equal(rq->prompt_top_token[p * rq->tops], rq->prompt[p]);
        }
        hash = mix(hash, rq->prompt[p]);
    }
    int32_t n = 0, count = atomic_load(&rq->out_count);
    for (; n < count; n++) {
        struct hzp_logit_edit ban[2] = {{.token = EOS, .bias = -INFINITY},
                                        {.token = rq->stop_id[0], .bias = -INFINITY}};
        int32_t bans = n >= rq->min_tokens ? 0 : 1 + rq->stop_ids;
        struct hzp_logit_edit *from = ban;
        if (bans && rq->ignore_eos) {
            from++;
            bans--;
        }
        int32_t token = choose(hash, from, bans);
        assert_int_equal(rq->out[n].token, token);
        assert_true(rq->out[n].logprob == -(float)(hash % 1000));
        assert_int_equal(rq->out[n].version, 1);
        bool stop = (token == EOS && !rq->ignore_eos) || (rq->stop_ids && token == rq->stop_id[0]);
        assert_int_equal(stop, n == count - 1 && rq->state == HZP_REQUEST_STOPPED);
        hash = mix(hash, token);
    }
    assert_true(atomic_load(&rq->whole) || !count);
    if (rq->state == HZP_REQUEST_LENGTH)
        assert_int_equal(count, rq->max_tokens);
    else
        assert_int_equal(rq->stop_token, rq->out[count - 1].token);
}

static struct hzp_request *make_request(uint64_t *seed, uint64_t id)
{
    int32_t prompt[POSITIONS], count = 1 + (int32_t)seeded(seed, 60);
    for (int32_t i = 0; i < count; i++)
        prompt[i] = (int32_t)seeded(seed, VOCAB);
    int32_t max_tokens = (int32_t)seeded(seed, 30);
    struct hzp_request *rq = NULL;
    assert_int_equal(hzp_request_create(prompt, count, max_tokens, (int32_t)seeded(seed, 3),
                                        seeded(seed, 3) == 0, &rq),
                     0);
    rq->id = id;
    rq->ignore_eos = seeded(seed, 4) == 0;
    rq->min_tokens = max_tokens ? (int32_t)seeded(seed, (uint32_t)max_tokens) : 0;
    if (seeded(seed, 3) == 0)
        rq->stop_id[rq->stop_ids++] = 1 + (int32_t)seeded(seed, 5); /* not EOS */
    if (seeded(seed, 3) == 0)
        rq->sampling.presence = 1;
    return rq;
}

static void wake(void *ctx, bool more)
{
    ((struct rig *)ctx)->wakes++;
    ((struct rig *)ctx)->last_wakes += !more;
}

/* First come, first served: no waiting request arrived before an admitted one. */
static void check_order(struct hzp_request **rq, int count)
{
    uint64_t waits = UINT64_MAX, admitted = 0;
    for (int i = 0; i < count; i++) {
        if (rq[i]->state == HZP_REQUEST_WAITING)
            waits = HZP_MIN(waits, rq[i]->id);
        else if (rq[i]->admitted_ns)
            admitted = HZP_MAX(admitted, rq[i]->id);
    }
    assert_true(admitted < waits);
}

static void random_day(uint64_t seed)
{
    struct rig rig;
    struct hzp_scheduler_config config = {.running_max = 2 + (int32_t)seeded(&seed, 10),
                                          .waiting_max = 5 + (int32_t)seeded(&seed, 20),
                                          .waiting_tokens_max = 400,
                                          .prefill_rows_max = (int32_t)seeded(&seed, 30),
                                          .edits_max = 100 + (int32_t)seeded(&seed, 100),
                                          .admission = seeded(&seed, 4) ? HZP_ADMIT_PREDICTED
                                                                        : HZP_ADMIT_WORST_CASE};
    struct hzp_batch_config batch = {.rows_max = 4 + (int32_t)seeded(&seed, 60),
                                     .segs_max = 1 + (int32_t)seeded(&seed, 12),
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 1 + (int32_t)seeded(&seed, 12),
                                     .edits_max = config.edits_max};
    rig_open(&rig, 12 + (int32_t)seeded(&seed, 40), &config, &batch);

    struct hzp_request *live[REQUESTS];
    int count = 0, refused = 0, turns = 0, canceled[REQUESTS] = {0};
    while (count < REQUESTS || rig.source->busy(rig.source)) {
        for (uint32_t n = seeded(&seed, 4); n && count < REQUESTS; n--) {
            struct hzp_request *rq = make_request(&seed, (uint64_t)count + 1);
            rq->wake = wake;
            rq->wake_ctx = &rig;
            struct hzp_scheduler_stats stats;
            hzp_scheduler_read_stats(rig.s, &stats);
            int32_t fresh = 0;
            for (int i = 0; i < count; i++)
                fresh += live[i]->state == HZP_REQUEST_WAITING && !live[i]->preempted;
            bool full = fresh == config.waiting_max ||
                        stats.waiting_tokens + rq->prompt_count > config.waiting_tokens_max;
            int r = hzp_scheduler_submit(rig.s, rq, NULL);
            assert_int_equal(r, full ? HZP_EBUSY : HZP_OK);
            if (r == HZP_OK) {
                live[count++] = rq;
            } else {
                refused++;
                hzp_request_destroy(rq);
            }
        }
        if (count && seeded(&seed, 8) == 0) {
            int i = (int)seeded(&seed, (uint32_t)count);
            canceled[i] |= live[i]->state < HZP_REQUEST_STOPPED;
            atomic_store(&live[i]->cancel, true);
        }
        turn(&rig, 0);
        for (int i = 0; i < count; i++) /* within one step */
            assert_false(canceled[i] && live[i]->state != HZP_REQUEST_CANCELED);
        check_order(live, count);
        rig.version.record.id = 1;
        assert_true(++turns < 200000); /* no request starves */
    }

    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(rig.s, &stats);
    assert_int_equal(stats.kv_taken, 0);
    assert_int_equal(stats.refused, refused);
    uint64_t finished = 0;
    for (int i = 0; i < count; i++) {
        assert_true(hzp_request_final(live[i]));
        if (!canceled[i])
            check_answer(live[i]);
        hzp_request_destroy(live[i]);
    }
    for (int i = 0; i <= HZP_REQUEST_FAILED; i++)
        finished += stats.finished[i];
    assert_int_equal(finished, count);
    assert_true(rig.wakes >= count);
    rig_close(&rig);
}

static void random_days(void **state)
{
    for (uint64_t seed = 1; seed <= 60; seed++)
        random_day(seed * 1000003);
}

static const struct hzp_scheduler_config roomy = {.running_max = 4,
                                                  .waiting_max = 4,
                                                  .waiting_tokens_max = 200,
                                                  .prefill_rows_max = 16,
                                                  .edits_max = 256};
static const struct hzp_batch_config roomy_batch = {.rows_max = 32,
                                                    .segs_max = 4,
                                                    .page_stride = POSITIONS / PAGE_ROWS,
                                                    .logits_max = 8,
                                                    .edits_max = 256};

static struct hzp_request *plain(int32_t prompt_count, int32_t max_tokens)
{
    int32_t prompt[POSITIONS * 2] = {0};
    struct hzp_request *rq = NULL;
    assert_int_equal(hzp_request_create(prompt, prompt_count, max_tokens, 0, false, &rq), 0);
    rq->ignore_eos = true;
    return rq;
}

static void refusals_name_the_numbers(void **state)
{
    struct rig rig;
    rig_open(&rig, 6, &roomy, &roomy_batch); /* 48 tokens of KV */
    struct hzp_err_text err = {0};
    struct hzp_request *rq = plain(60, 60);
    assert_int_equal(hzp_scheduler_submit(rig.s, rq, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "context of 96"));
    assert_string_equal(err.param, "max_tokens");
    hzp_request_destroy(rq);

    rq = plain(30, 20); /* 49 rows: one too many */
    assert_int_equal(hzp_scheduler_submit(rig.s, rq, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "has 6"));
    hzp_request_destroy(rq);
    rq = plain(30, 19);
    assert_int_equal(hzp_scheduler_submit(rig.s, rq, &err), HZP_OK);
    while (!hzp_request_final(rq))
        turn(&rig, 0);
    assert_int_equal(rq->state, HZP_REQUEST_LENGTH);
    hzp_request_destroy(rq);

    rq = plain(1, 1);
    rq->prompt[0] = VOCAB;
    assert_int_equal(hzp_scheduler_submit(rig.s, rq, &err), HZP_EINVAL);
    hzp_request_destroy(rq);
    rq = plain(0, 1);
    assert_int_equal(hzp_scheduler_submit(rig.s, rq, &err), HZP_EINVAL);
    hzp_request_destroy(rq);
    rig_close(&rig);
}

static void stop_drains_and_hurry_fails(void **state)
{
    struct rig rig;
    rig_open(&rig, 12, &roomy, &roomy_batch);
    struct hzp_request *one = plain(8, 10), *two = plain(80, 10), *late = plain(1, 1);
    assert_int_equal(hzp_scheduler_submit(rig.s, one, NULL), HZP_OK);
    assert_int_equal(hzp_scheduler_submit(rig.s, two, NULL), HZP_OK);
    turn(&rig, 0);
    hzp_scheduler_stop(rig.s, false);
    assert_int_equal(hzp_scheduler_submit(rig.s, late, NULL), HZP_ECANCELED);
    assert_int_equal(late->state, HZP_REQUEST_NEW);
    while (!hzp_request_final(one))
        turn(&rig, 0);
    assert_int_equal(one->state, HZP_REQUEST_LENGTH);
    assert_true(rig.source->busy(rig.source));
    turn(&rig, 0);
    hzp_scheduler_stop(rig.s, true);
    turn(&rig, 0);
    assert_int_equal(two->state, HZP_REQUEST_FAILED);
    assert_false(rig.source->busy(rig.source));
    hzp_request_destroy(one);
    hzp_request_destroy(two);
    hzp_request_destroy(late);
    rig_close(&rig);
}

static void a_failed_step_fails_all_requests(void **state)
{
    struct rig rig;
    rig_open(&rig, 12, &roomy, &roomy_batch);
    struct hzp_request *running = plain(8, 10), *waiting = plain(80, 10);
    assert_int_equal(hzp_scheduler_submit(rig.s, running, NULL), HZP_OK);
    assert_int_equal(hzp_scheduler_submit(rig.s, waiting, NULL), HZP_OK);
    turn(&rig, HZP_EDEVICE);
    assert_int_equal(running->state, HZP_REQUEST_FAILED);
    assert_int_equal(waiting->state, HZP_REQUEST_FAILED);
    assert_int_equal(running->out_count, 0);
    hzp_request_destroy(running);
    hzp_request_destroy(waiting);
    rig_close(&rig);
}

/* Decode rows come first and prompts take what is left, in pieces. */
static void prompts_come_in_pieces(void **state)
{
    struct rig rig;
    rig_open(&rig, 24, &roomy, &roomy_batch);
    struct hzp_request *first = plain(4, 20), *second = plain(60, 1);
    assert_int_equal(hzp_scheduler_submit(rig.s, first, NULL), HZP_OK);
    turn(&rig, 0);
    assert_int_equal(first->out_count, 1);
    assert_int_equal(hzp_scheduler_submit(rig.s, second, NULL), HZP_OK);
    int pieces = 0;
    while (!hzp_request_final(second)) {
        turn(&rig, 0);
        pieces++;
        assert_int_equal(first->out_count, 1 + pieces); /* decoding is never delayed */
        assert_int_equal(rig.batch->decode_segs, 1);
        assert_true(rig.batch->rows <= 1 + 16);
    }
    assert_int_equal(pieces, 4); /* 16 + 16 + 16 + 12 */
    atomic_store(&first->cancel, true);
    turn(&rig, 0);
    assert_int_equal(first->state, HZP_REQUEST_CANCELED);
    hzp_request_destroy(first);
    hzp_request_destroy(second);
    rig_close(&rig);
}

static uint64_t budget_decisions(struct rig *rig)
{
    struct hzp_scheduler_stats stats;
    uint64_t sum = 0;
    hzp_scheduler_read_stats(rig->s, &stats);
    for (int i = 0; i < HZP_BUDGET_COUNT; i++)
        sum += stats.budget_reason[i];
    return sum;
}

/* What decided the prompt rows is counted only where a prompt could take rows: not in a step that
 * is kept for training, and not where all running requests decode. */
static void only_prompts_count_as_decisions(void **state)
{
    struct rig rig;
    rig_open(&rig, 24, &roomy, &roomy_batch);
    struct hzp_request *first = plain(4, 40), *second = plain(60, 1);
    turn(&rig, 0);
    assert_int_equal(budget_decisions(&rig), 0); /* no request */
    assert_int_equal(hzp_scheduler_submit(rig.s, first, NULL), HZP_OK);
    turn(&rig, 0);
    assert_int_equal(budget_decisions(&rig), 1);
    for (int i = 0; i < 3; i++)
        turn(&rig, 0);
    assert_int_equal(budget_decisions(&rig), 1); /* the request decodes */
    assert_int_equal(hzp_scheduler_submit(rig.s, second, NULL), HZP_OK);
    turn(&rig, 0);
    assert_int_equal(budget_decisions(&rig), 2);

    struct hzp_step step = {
        .number = ++rig.steps, .begin_ns = rig.steps * 1000, .version = &rig.version};
    struct hzp_room hold = {.rows = 0, .time = &rig.time};
    struct hzp_offer offer = {.batch = rig.batch};
    struct hzp_outcome outcome = {.end_ns = step.begin_ns + 500};
    struct hzp_scheduler_stats before, after;
    hzp_scheduler_read_stats(rig.s, &before);
    hzp_batch_clear(rig.batch);
    assert_false(rig.source->offer(rig.source, &step, &hold, &offer));
    rig.source->deliver(rig.source, &step, &offer, &outcome);
    hzp_scheduler_read_stats(rig.s, &after);
    assert_int_equal(budget_decisions(&rig), 2);
    assert_int_equal(after.budget_rows, before.budget_rows);
    assert_true(before.budget_rows > 0);

    while (!hzp_request_final(second))
        turn(&rig, 0);
    assert_int_equal(budget_decisions(&rig), 5); /* 60 rows in pieces of 16 */
    atomic_store(&first->cancel, true);
    turn(&rig, 0);
    hzp_request_destroy(first);
    hzp_request_destroy(second);
    rig_close(&rig);
}

/* Penalties see prompt and output; biases and bans share one edit with them. */
static void edits_are_one_a_token(void **state)
{
    struct rig rig;
    rig_open(&rig, 24, &roomy, &roomy_batch);
    struct hzp_request *rq = plain(3, 12);
    rq->prompt[0] = rq->prompt[1] = 3;
    rq->prompt[2] = 4;
    rq->sampling.repetition = 2;
    rq->ignore_eos = false;
    rq->min_tokens = 12;
    rq->bias_token[rq->biases] = 3;
    rq->bias[rq->biases++] = 1.5f;
    assert_int_equal(hzp_scheduler_submit(rig.s, rq, NULL), HZP_OK);
    while (!hzp_request_final(rq)) {
        turn(&rig, 0);
        int32_t count = rig.batch->edits, seen[VOCAB] = {0};
        for (int32_t i = 0; i < count; i++) {
            const struct hzp_logit_edit *edit = &rig.batch->edit[i];
            assert_int_equal(seen[edit->token]++, 0);
            int32_t out = 0, drawn = atomic_load(&rq->out_count) - 1;
            for (int32_t n = 0; n < drawn; n++)
                out += rq->out[n].token == edit->token;
            assert_int_equal(edit->count_out, out);
            assert_int_equal(edit->seen, out || edit->token == 3 || edit->token == 4);
            if (edit->token == EOS)
                assert_true(edit->bias == -INFINITY);
            else
                assert_true(edit->bias == (edit->token == 3 ? 1.5f : 0));
        }
        assert_true(seen[3] && seen[4] && seen[EOS]);
    }
    assert_int_equal(rq->state, HZP_REQUEST_LENGTH);
    hzp_request_destroy(rq);
    rig_close(&rig);
}

/* One step ahead, by hand: step n + 1 is offered before the results of step n are delivered,
 * unless the scheduler needs those first. */
struct ahead {
    struct rig rig;
    struct hzp_batch *batch[2]; /* of step n: batch[n % 2] */
    struct hzp_step step[2];
    struct hzp_offer offer[2];
    uint64_t offered, delivered, settled, ahead;
};

static void ahead_deliver(struct ahead *a)
{
    uint64_t n = ++a->delivered;
    struct hzp_outcome outcome = {.end_ns = n, .ns = {[HZP_TENANT_SERVE] = 100}};
    a->rig.source->deliver(a->rig.source, &a->step[n % 2], &a->offer[n % 2], &outcome);
}

/* Returns false if nothing was offered and nothing is in flight. */
static bool ahead_turn(struct ahead *a)
{
    uint64_t n = a->offered + 1;
    struct hzp_batch *batch = a->batch[n % 2];
    struct hzp_room room = {.rows = batch->max.rows_max, .time = &a->rig.time};
    if (a->delivered < a->offered && a->offer[a->offered % 2].settle == HZP_SETTLE_SERVING) {
        ahead_deliver(a);
        a->settled++;
    }
    hzp_batch_clear(batch);
    a->offer[n % 2] = (struct hzp_offer){.batch = batch};
    a->step[n % 2] =
        (struct hzp_step){.number = n,
                          .begin_ns = n,
                          .version = &a->rig.version,
                          .in_flight = a->delivered < a->offered ? a->batch[!(n % 2)] : NULL};
    if (!a->rig.source->offer(a->rig.source, &a->step[n % 2], &room, &a->offer[n % 2])) {
        if (a->delivered == a->offered)
            return false;
        ahead_deliver(a);
        return true;
    }
    a->ahead += a->delivered < a->offered;
    a->offered = n;
    execute(&a->rig, batch);
    if (a->delivered + 1 < n)
        ahead_deliver(a);
    return true;
}

static void ahead_open(struct ahead *a)
{
    struct hzp_scheduler_config config = {
        .running_max = 8, .waiting_max = 8, .waiting_tokens_max = 400, .edits_max = 200};
    struct hzp_batch_config batch = {.rows_max = 32,
                                     .segs_max = 8,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 8,
                                     .edits_max = 200};
    memset(a, 0, sizeof(*a));
    rig_open(&a->rig, 40, &config, &batch);
    a->batch[0] = a->rig.batch;
    assert_int_equal(hzp_batch_create(a->rig.dev, &a->rig.batch->max, &a->batch[1]), 0);
}

static void ahead_close(struct ahead *a)
{
    hzp_batch_destroy(a->batch[1]);
    rig_close(&a->rig);
}

/* `penalised` of four requests have penalties.  Returns the number of steps; gap: the most steps
 * between two tokens of a request with penalties, and of one without. */
static uint64_t run_ahead(struct ahead *a, int penalised, uint64_t gap[2])
{
    enum { COUNT = 4, TOKENS = 20 };
    struct hzp_request *rq[COUNT];
    uint64_t last[COUNT] = {0};
    int32_t had[COUNT] = {0};
    ahead_open(a);
    gap[0] = gap[1] = 0;
    for (int i = 0; i < COUNT; i++) {
        int32_t prompt[] = {1, 2, i};
        assert_int_equal(hzp_request_create(prompt, 3, TOKENS, 0, false, &rq[i]), 0);
        rq[i]->ignore_eos = true;
        rq[i]->sampling.presence = i < penalised ? 0.5f : 0;
        assert_int_equal(hzp_scheduler_submit(a->rig.s, rq[i], NULL), HZP_OK);
    }
    while (ahead_turn(a))
        for (int i = 0; i < COUNT; i++) {
            int32_t count = atomic_load(&rq[i]->out_count);
            if (count == had[i])
                continue;
            assert_int_equal(count, had[i] + 1);
            if (had[i])
                gap[i >= penalised] = HZP_MAX(gap[i >= penalised], a->delivered - last[i]);
            last[i] = a->delivered;
            had[i] = count;
        }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(rq[i]->state, HZP_REQUEST_LENGTH);
        check_answer(rq[i]);
        hzp_request_destroy(rq[i]);
    }
    uint64_t steps = a->offered;
    ahead_close(a);
    return steps;
}

/* Lower priorities run earlier, each unit worth a second of waiting and no more than 60. */
static void priorities_have_a_bound(void **state)
{
    static const struct {
        int32_t priority, at_s, place;
    } row[] = {{0, 1, 2}, {5, 1, 5},        {-5, 2, 0},  {0, 3, 3},         {-3, 3, 1},
               {0, 5, 4}, {1000000, 49, 8}, {5, 100, 7}, {-1000000, 110, 6}};
    enum { COUNT = HZP_COUNT(row) };
    struct hzp_scheduler_config config = {
        .running_max = 1, .waiting_max = COUNT, .waiting_tokens_max = 400, .edits_max = 200};
    struct hzp_batch_config batch = {.rows_max = 32,
                                     .segs_max = 1,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 8,
                                     .edits_max = 200};
    struct hzp_request *rq[COUNT];
    struct rig rig;
    rig_open(&rig, 40, &config, &batch);
    for (int i = 0; i < COUNT; i++) {
        int32_t prompt[] = {1, 2, i};
        assert_int_equal(hzp_request_create(prompt, 3, 2, 0, false, &rq[i]), 0);
        rq[i]->priority = row[i].priority;
        rq[i]->submitted_ns = (uint64_t)row[i].at_s * 1000000000u;
        assert_int_equal(hzp_scheduler_submit(rig.s, rq[i], NULL), HZP_OK);
    }
    int place = 0, seen[COUNT] = {0};
    while (turn(&rig, HZP_OK))
        for (int i = 0; i < COUNT; i++)
            if (hzp_request_final(rq[i]) && !seen[i]++)
                assert_int_equal(row[i].place, place++);
    assert_int_equal(place, COUNT);
    for (int i = 0; i < COUNT; i++)
        hzp_request_destroy(rq[i]);
    rig_close(&rig);
}

/* A request whose next draw must know its last token waits one step for it; the others run
   ahead. */
static void penalties_wait_alone(void **state)
{
    struct ahead a;
    uint64_t gap[2], all = run_ahead(&a, 0, gap);
    assert_int_equal(a.settled, 0);
    assert_int_equal(a.ahead, all - 1);
    assert_int_equal(gap[1], 1);
    for (int penalised = 1; penalised <= 3; penalised++) {
        uint64_t steps = run_ahead(&a, penalised, gap);
        assert_int_equal(gap[0], 2); /* every second step: never longer */
        assert_int_equal(gap[1], 1); /* every step */
        assert_true(a.ahead > all / 2);
        assert_true(steps < 2 * all);
    }
    /* Where all requests need it, every step is waited for, and each request is in every step. */
    uint64_t steps = run_ahead(&a, 4, gap);
    assert_int_equal(steps, all);
    assert_int_equal(gap[0], 1);
    assert_true(a.settled >= all - 2);
}

/* Each page number travels once: a step whose sequences begin no page changes nothing.  Prompts
 * whose pages do not fit a step's changes together wait for the next step, the oldest first. */
static void only_changed_pages_travel(void **state)
{
    enum { COUNT = 4, PAGES = 9, PROMPT = PAGES * PAGE_ROWS - 1, TOKENS = 12 };
    struct hzp_scheduler_config config = {
        .running_max = COUNT, .waiting_max = COUNT, .waiting_tokens_max = 1000, .edits_max = 200};
    struct hzp_batch_config batch = {.rows_max = COUNT * PROMPT,
                                     .segs_max = COUNT,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = COUNT,
                                     .edits_max = 200};
    struct hzp_request *rq[COUNT];
    struct rig rig;
    int32_t prompt[PROMPT], steps = 0, still = 0;
    rig_open(&rig, 100, &config, &batch); /* 16 changes a step */
    for (int i = 0; i < COUNT; i++) {
        for (int32_t p = 0; p < PROMPT; p++)
            prompt[p] = 10 + (p * 7 + i) % 30;
        assert_int_equal(hzp_request_create(prompt, PROMPT, TOKENS, 0, false, &rq[i]), 0);
        rq[i]->ignore_eos = true;
        assert_int_equal(hzp_scheduler_submit(rig.s, rq[i], NULL), HZP_OK);
    }
    for (; turn(&rig, HZP_OK); steps++) {
        if (steps < COUNT) {
            assert_int_equal(rig.batch->segs - rig.batch->decode_segs, 1);
            assert_in_range(rig.batch->changes, PAGES, PAGES + steps);
        }
        still += rig.batch->changes == 0;
    }
    assert_true(still > steps / 4);
    assert_int_equal(rig.changes, COUNT * (PAGES + 2)); /* rows PROMPT .. PROMPT + TOKENS - 2 */
    for (int i = 0; i < COUNT; i++) {
        check_answer(rq[i]);
        hzp_request_destroy(rq[i]);
    }
    rig_close(&rig);
}

/* Choices of one prompt, and prompts that begin alike, submitted together: each row of a whole page
   that several have in common is computed once, also if the prompt takes several steps. */
static void common_beginnings_are_computed_once(void **state)
{
    enum { ROWS = 5 * PAGE_ROWS, COMMON = 3 * PAGE_ROWS, CHOICES = 4, COUNT = 2 * CHOICES };
    for (int32_t rows_max = 4; rows_max <= 64; rows_max *= 2) {
        struct hzp_scheduler_config config = {.running_max = COUNT,
                                              .waiting_max = COUNT,
                                              .waiting_tokens_max = 1000,
                                              .edits_max = 200,
                                              .prefix_cache = true};
        struct hzp_batch_config batch = {.rows_max = rows_max,
                                         .segs_max = COUNT,
                                         .page_stride = POSITIONS / PAGE_ROWS,
                                         .logits_max = COUNT,
                                         .edits_max = 200};
        struct hzp_request *rq[COUNT];
        struct rig rig;
        int32_t prompt[ROWS], computed = 0;
        rig_open(&rig, 100, &config, &batch);
        for (int i = 0; i < COUNT; i++) {
            for (int32_t p = 0; p < ROWS; p++) /* the second prompt parts from the first */
                prompt[p] = 10 + (p * 7 + (i >= CHOICES && p >= COMMON)) % 30;
            assert_int_equal(hzp_request_create(prompt, ROWS, 1, 0, false, &rq[i]), 0);
            rq[i]->sampling.choice = (uint32_t)i % CHOICES;
        }
        assert_int_equal(hzp_scheduler_submit_all(rig.s, rq, COUNT, NULL), HZP_OK);
        while (turn(&rig, HZP_OK))
            computed += rig.batch->rows;
        /* The last row is always computed, so the last page is never taken over. */
        assert_int_equal(computed, ROWS + (CHOICES - 1) * PAGE_ROWS + (ROWS - COMMON) +
                                       (CHOICES - 1) * PAGE_ROWS);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(rq[i]->state, HZP_REQUEST_LENGTH);
            hzp_request_destroy(rq[i]);
        }
        rig_close(&rig);
    }
}

/* Requests whose weights do not serve take no place of one that could run, and have a bound of
 * their own. */
static void what_waits_for_weights_keeps_none_from_running(void **state)
{
    enum { PLACES = 4, COUNT = 3 * PLACES + 1 };
    struct hzp_scheduler_config config = {
        .running_max = 2, .waiting_max = PLACES, .waiting_tokens_max = 400, .edits_max = 200};
    struct hzp_batch_config batch = {.rows_max = 32,
                                     .segs_max = 2,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 8,
                                     .edits_max = 200};
    struct hzp_request *rq[COUNT];
    struct hzp_scheduler_stats stats;
    struct rig rig;
    int32_t prompt[] = {1, 2, 3};
    rig_open(&rig, 40, &config, &batch);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(hzp_request_create(prompt, 3, 2, 0, false, &rq[i]), 0);
    for (int i = 0; i <= PLACES; i++) {
        rq[i]->demands.min_version = 7;
        rq[i]->demands.wait_ns = UINT64_MAX;
        assert_int_equal(hzp_scheduler_submit(rig.s, rq[i], NULL), HZP_OK);
        turn(&rig, HZP_OK);
    }
    assert_int_equal(rq[PLACES]->state, HZP_REQUEST_UNMET);
    assert_int_equal(rq[PLACES]->unmet, HZP_UNMET_FULL);
    for (int from = PLACES + 1; from < COUNT; from += PLACES) {
        for (int i = from; i < from + PLACES; i++)
            assert_int_equal(hzp_scheduler_submit(rig.s, rq[i], NULL), HZP_OK);
        hzp_scheduler_read_stats(rig.s, &stats);
        assert_int_equal(stats.waiting, 2 * PLACES);
        assert_int_equal(stats.awaiting, PLACES);
        while (turn(&rig, HZP_OK))
            continue;
        for (int i = from; i < from + PLACES; i++)
            assert_int_equal(rq[i]->state, HZP_REQUEST_LENGTH);
    }
    for (int i = 0; i < PLACES; i++) {
        assert_int_equal(rq[i]->state, HZP_REQUEST_WAITING);
        atomic_store(&rq[i]->cancel, true);
    }
    turn(&rig, HZP_OK);
    hzp_scheduler_read_stats(rig.s, &stats);
    assert_int_equal(stats.waiting + stats.awaiting + stats.waiting_tokens + stats.awaiting_tokens,
                     0);
    for (int i = 0; i < COUNT; i++)
        hzp_request_destroy(rq[i]);
    rig_close(&rig);
}

/* ---- grammars whose masks are dear ---- */

static struct hzp_constraint_run *dear_begin(struct hzp_constraint *constraint)
{
    return (struct hzp_constraint_run *)constraint;
}

static void dear_end(struct hzp_constraint_run *run)
{
}

static bool dear_token(struct hzp_constraint_run *run, int32_t token)
{
    return true;
}

static bool dear_may(const struct hzp_constraint_run *run)
{
    return true;
}

static bool dear_mask(struct hzp_constraint_run *run, uint32_t *mask)
{
    memset(mask, 0xFF, VOCAB / 8);
    return true;
}

static int64_t dear_work(const struct hzp_constraint_run *run)
{
    return HZP_CONSTRAINT_DEAR;
}

/* Sequences with such masks take turns, so that a step waits for one of them; the others are in
 * every step. */
static void dear_masks_take_turns(void **state)
{
    static const struct hzp_constraint_ops ops = {.begin = dear_begin,
                                                  .end = dear_end,
                                                  .token = dear_token,
                                                  .may_end = dear_may,
                                                  .may_go_on = dear_may,
                                                  .mask = dear_mask,
                                                  .work = dear_work};
    enum { COUNT = 5, DEAR = 3, TOKENS = 12 };
    struct hzp_constraint constraint = {.ops = &ops};
    struct hzp_token_rules rules = {.constraint = &constraint};
    struct hzp_scheduler_config config = {
        .running_max = COUNT, .waiting_max = COUNT, .waiting_tokens_max = 400, .edits_max = 200};
    struct hzp_batch_config batch = {.rows_max = 32,
                                     .segs_max = COUNT,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 8,
                                     .masks_max = COUNT,
                                     .mask_words = (VOCAB + 31) / 32,
                                     .edits_max = 200};
    struct hzp_request *rq[COUNT];
    struct rig rig;
    int32_t prompt[] = {1, 2, 3}, before[COUNT] = {0};
    rig_open(&rig, 60, &config, &batch);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(hzp_request_create(prompt, 3, TOKENS, 0, false, &rq[i]), 0);
        rq[i]->tokens = i < DEAR ? &rules : NULL;
        rq[i]->ignore_eos = true;
        assert_int_equal(hzp_scheduler_submit(rig.s, rq[i], NULL), HZP_OK);
    }
    turn(&rig, HZP_OK); /* the prompts, and each one's first token */
    for (int step = 1; step < DEAR * (TOKENS - 1); step++) {
        int dear = 0;
        for (int i = 0; i < COUNT; i++)
            before[i] = atomic_load(&rq[i]->out_count);
        assert_true(turn(&rig, HZP_OK));
        for (int i = 0; i < COUNT; i++) {
            int32_t more = atomic_load(&rq[i]->out_count) - before[i];
            dear += i < DEAR ? more : 0;
            if (i >= DEAR && before[i] < TOKENS)
                assert_int_equal(more, 1);
        }
        assert_int_equal(dear, 1);
        for (int i = 0; i < DEAR; i++) /* and none falls behind */
            assert_in_range(atomic_load(&rq[i]->out_count), 1 + step / DEAR,
                            1 + (step + DEAR - 1) / DEAR);
    }
    while (turn(&rig, HZP_OK))
        continue;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(rq[i]->state, HZP_REQUEST_LENGTH);
        hzp_request_destroy(rq[i]);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_days),
        cmocka_unit_test(refusals_name_the_numbers),
        cmocka_unit_test(stop_drains_and_hurry_fails),
        cmocka_unit_test(a_failed_step_fails_all_requests),
        cmocka_unit_test(prompts_come_in_pieces),
        cmocka_unit_test(only_prompts_count_as_decisions),
        cmocka_unit_test(edits_are_one_a_token),
        cmocka_unit_test(penalties_wait_alone),
        cmocka_unit_test(priorities_have_a_bound),
        cmocka_unit_test(what_waits_for_weights_keeps_none_from_running),
        cmocka_unit_test(dear_masks_take_turns),
        cmocka_unit_test(only_changed_pages_travel),
        cmocka_unit_test(common_beginnings_are_computed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
