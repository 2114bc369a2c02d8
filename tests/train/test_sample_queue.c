/* SPDX-License-Identifier: Apache-2.0 */
#include "train/table/sample_queue.h"
#include "tests/train/samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DRAW_MAX = 256 };

static struct hzp_sample *make_sample(int64_t number, int32_t count)
{
    static const int32_t token[64];
    static const uint8_t learn[64];
    struct hzp_sample *s = hzp_sample_create(token, learn, count);
    s->sequence_number = number;
    return s;
}

/* A sample with this prompt. */
static struct hzp_sample *make_lesson(int64_t number, int32_t prompt, int32_t count)
{
    int32_t token[64] = {1, prompt};
    uint8_t learn[64] = {0};
    memset(learn + 2, 1, sizeof(learn) - 2);
    struct hzp_row_loss how[64] = {0};
    const struct hzp_soft soft = {.count = 1, .token = {prompt}, .p = {1}};
    how[2] = (struct hzp_row_loss){.kind = HZP_LOSS_SOFT, .inv_temperature = 1};
    for (int i = 3; i < HZP_COUNT(how); i++)
        how[i].inv_temperature = 1;
    struct hzp_sample *s =
        hzp_sample_create_soft(token, learn, NULL, prompt % 2 ? how : NULL, &soft, count);
    s->sequence_number = number;
    return s;
}

/* What it was taught by stays with it. */
static void check_soft(const struct hzp_sample *s)
{
    int32_t prompt = s->token[1];
    assert_int_equal(s->softs, prompt % 2);
    assert_true(!s->softs || s->soft->token[0] == prompt);
}

static void push_lesson(struct hzp_sample_queue *q, int64_t number, int32_t prompt, int32_t count)
{
    struct hzp_sample *s = make_lesson(number, prompt, count);
    assert_int_equal(hzp_sample_queue_reserve(q, 1, count), HZP_OK);
    hzp_sample_queue_push(q, &s, 1);
}

static void push_new(struct hzp_sample_queue *q, int64_t number, int32_t count)
{
    struct hzp_sample *s = make_sample(number, count);
    assert_int_equal(hzp_sample_queue_reserve(q, 1, count), HZP_OK);
    hzp_sample_queue_push(q, &s, 1);
}

static struct hzp_sample_queue *make_rehearsing(int32_t passes, bool shuffle, double ratio,
                                                double rehearse, bool by_lesson)
{
    struct hzp_sample_queue_config config = {.samples_max = 100,
                                             .tokens_max = 2000,
                                             .passes = passes,
                                             .shuffle = shuffle,
                                             .by_lesson = by_lesson,
                                             .replay_ratio = ratio,
                                             .rehearse_ratio = rehearse,
                                             .seed = 42};
    struct hzp_sample_queue *q;
    assert_int_equal(hzp_sample_queue_create(&config, &q), HZP_OK);
    return q;
}

static struct hzp_sample_queue *make_queue(int32_t passes, bool shuffle, double ratio)
{
    return make_rehearsing(passes, shuffle, ratio, 0, false);
}

/* Whatever a checkpoint contains: what is restored from it gets the rest of its passes, and a
 * second checkpoint says so, too. */
static void test_passes(void **state)
{
    enum { SAMPLES = 12, PASSES = 3 };
    const struct hzp_sample *drawn[SAMPLES];
    for (int updates = 0; updates <= SAMPLES * PASSES / 2; updates++) {
        struct hzp_sample_queue *q = make_queue(PASSES, false, 0);
        int had[SAMPLES + 1] = {0};
        for (int run = 0; run < 3; run++) {
            for (int64_t i = 1; i <= SAMPLES && !run; i++)
                push_new(q, i, 10);
            for (int u = 0; u < (run == 2 ? 1000 : updates / 2); u++) {
                int32_t n = hzp_sample_queue_draw(q, 20, drawn, SAMPLES);
                for (int32_t i = 0; i < n; i++)
                    had[drawn[i]->sequence_number]++;
                hzp_sample_queue_done(q);
                if (!n)
                    break;
            }
            hzp_sample_queue_draw(q, 20, drawn, SAMPLES); /* not done: it does not count */
            struct hzp_sample_queue_stats stats;
            struct hzp_passes *passes;
            hzp_sample_queue_read_stats(q, &stats);
            int32_t n = hzp_sample_queue_passes(q, &passes);
            hzp_sample_queue_destroy(q);
            struct hzp_sample_queue_config config = {.samples_max = 100,
                                                     .tokens_max = 2000,
                                                     .passes = PASSES,
                                                     .learned_through = stats.learned_through};
            assert_int_equal(hzp_sample_queue_create(&config, &q), HZP_OK);
            int32_t left = 0;
            for (int64_t i = HZP_MAX(stats.learned_through, 0) + 1; i <= SAMPLES; i++) {
                struct hzp_sample *s = make_sample(i, 10);
                for (int32_t k = 0; k < n; k++)
                    if (i >= passes[k].first && i <= passes[k].last) {
                        s->passes = passes[k].done;
                        s->learned = passes[k].learned;
                    }
                assert_int_equal(s->passes, had[i]);
                assert_int_equal(s->learned, had[i] > 0);
                left += had[i] < PASSES;
                assert_int_equal(hzp_sample_queue_restore(q, &s, 1), had[i] < PASSES);
            }
            hzp_sample_queue_read_stats(q, &stats);
            assert_int_equal(stats.samples, left);
            free(passes);
        }
        for (int i = 1; i <= SAMPLES; i++)
            assert_int_equal(had[i], PASSES);
        hzp_sample_queue_destroy(q);
    }
}

static void test_bounds(void **state)
{
    struct hzp_sample_queue *q = make_queue(1, false, 0);
    assert_int_equal(hzp_sample_queue_reserve(q, 101, 1), HZP_EINVAL);
    assert_int_equal(hzp_sample_queue_reserve(q, 1, 2001), HZP_EINVAL);
    assert_int_equal(hzp_sample_queue_reserve(q, 60, 100), HZP_OK);
    assert_int_equal(hzp_sample_queue_reserve(q, 41, 100), HZP_EBUSY);
    assert_int_equal(hzp_sample_queue_reserve(q, 1, 1901), HZP_EBUSY);
    hzp_sample_queue_unreserve(q, 60, 100);
    assert_int_equal(hzp_sample_queue_reserve(q, 41, 1901), HZP_OK);
    hzp_sample_queue_unreserve(q, 41, 1901);
    for (int i = 1; i <= 150; i++) { /* read back from the log: beyond the bounds */
        struct hzp_sample *s = make_sample(i, 10);
        hzp_sample_queue_restore(q, &s, 1);
    }
    assert_int_equal(hzp_sample_queue_reserve(q, 1, 1), HZP_EBUSY);
    hzp_sample_queue_destroy(q);
}

/* The age of the oldest sample counts from the first look after its push; the rows to come are
 * tokens times passes, with replay. */
static void test_age_and_rows(void **state)
{
    struct hzp_sample_queue *q = make_queue(2, false, 0.5);
    struct hzp_sample_queue_stats stats;
    const struct hzp_sample *draw[DRAW_MAX];
    assert_int_equal(hzp_sample_queue_age(q, 1000), 0);
    push_new(q, 1, 10);
    assert_int_equal(hzp_sample_queue_age(q, 2000), 0);
    push_new(q, 2, 20);
    assert_int_equal(hzp_sample_queue_age(q, 2500), 500);
    hzp_sample_queue_read_stats(q, &stats);
    assert_true(stats.rows == 2 * 30);
    assert_int_equal(hzp_sample_queue_draw(q, 10, draw, DRAW_MAX), 1);
    assert_int_equal(hzp_sample_queue_age(q, 3000), 1000); /* drawn, not finished */
    hzp_sample_queue_done(q);
    hzp_sample_queue_read_stats(q, &stats);
    assert_true(stats.rows == 2 * 30 - 10);
    assert_int_equal(hzp_sample_queue_age(q, 3000), 1000); /* one pass to go */
    for (int i = 0; i < 2; i++) {                          /* 2 and 1 in turn */
        assert_int_equal(hzp_sample_queue_draw(q, 20, draw, DRAW_MAX), 1);
        hzp_sample_queue_done(q);
    }
    assert_int_equal(hzp_sample_queue_age(q, 4000), 1500); /* 1 is finished, 2 came at 2500 */
    assert_int_equal(hzp_sample_queue_draw(q, 20, draw, DRAW_MAX), 1);
    hzp_sample_queue_done(q);
    hzp_sample_queue_read_stats(q, &stats);
    assert_true(stats.rows == 0);
    assert_int_equal(hzp_sample_queue_age(q, 5000), 0);
    struct hzp_sample *old = make_sample(-1, 7);
    hzp_sample_queue_set_replay(q, &old, 1);
    push_new(q, 3, 10);
    hzp_sample_queue_read_stats(q, &stats);
    assert_true(stats.rows == 2 * 10 * 1.5);
    hzp_sample_queue_destroy(q);
}

/* A sample fails if each of its passes was given up; one pass suffices to have learned it. */
static void test_failed(void **state)
{
    struct hzp_sample_queue *q = make_queue(2, false, 0);
    const struct hzp_sample *draw[DRAW_MAX];
    int64_t failed[4] = {0};
    push_new(q, 1, 10);
    push_new(q, 2, 10);
    assert_int_equal(hzp_sample_queue_draw(q, 10, draw, DRAW_MAX), 1); /* 1 */
    hzp_sample_queue_give_up(q);
    assert_int_equal(hzp_sample_queue_draw(q, 10, draw, DRAW_MAX), 1); /* 2 */
    hzp_sample_queue_give_up(q);
    assert_int_equal(hzp_sample_queue_draw(q, 10, draw, DRAW_MAX), 1);
    assert_int_equal(draw[0]->sequence_number, 1);
    assert_int_equal(hzp_sample_queue_failed(q, 0, failed, 4), 0); /* a pass is left */
    assert_int_equal(hzp_sample_queue_done(q), 1);
    assert_int_equal(hzp_sample_queue_draw(q, 10, draw, DRAW_MAX), 1);
    assert_int_equal(hzp_sample_queue_give_up(q), 2); /* nothing below is still to come */
    assert_int_equal(hzp_sample_queue_failed(q, 0, failed, 4), 1);
    assert_int_equal(failed[0], 2);
    assert_int_equal(hzp_sample_queue_failed(q, 1, failed, 4), 0);
    assert_int_equal(hzp_sample_queue_failed(q, 9, failed, 4), 0);
    hzp_sample_queue_fail(q, 7); /* cannot be learned; told in each pass */
    hzp_sample_queue_fail(q, 7);
    assert_int_equal(hzp_sample_queue_failed(q, 1, failed, 4), 1);
    assert_int_equal(failed[0], 7);
    hzp_sample_queue_destroy(q);
}

static void test_fifo_and_undo(void **state)
{
    struct hzp_sample_queue *q = make_queue(2, false, 0);
    const struct hzp_sample *draw[DRAW_MAX];
    assert_false(hzp_sample_queue_ready(q));
    for (int i = 1; i <= 5; i++)
        push_new(q, i, 10);
    assert_int_equal(hzp_sample_queue_draw(q, 35, draw, DRAW_MAX), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(draw[i]->sequence_number, i + 1);
    hzp_sample_queue_undo(q);
    assert_int_equal(hzp_sample_queue_draw(q, 35, draw, DRAW_MAX), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(draw[i]->sequence_number, i + 1);
    assert_int_equal(hzp_sample_queue_done(q), -1);
    push_new(q, 6, 10);
    /* The rest of the round, the new sample, then the next round: no sample twice in a draw. */
    static const int want[] = {4, 5, 6, 1, 2, 3};
    assert_int_equal(hzp_sample_queue_draw(q, 1000, draw, DRAW_MAX), 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(draw[i]->sequence_number, want[i]);
    assert_int_equal(hzp_sample_queue_done(q), 3);
    assert_int_equal(hzp_sample_queue_draw(q, 1000, draw, DRAW_MAX), 3);
    assert_int_equal(hzp_sample_queue_done(q), 6);
    assert_false(hzp_sample_queue_ready(q));
    struct hzp_sample_queue_stats stats;
    hzp_sample_queue_read_stats(q, &stats);
    assert_int_equal(stats.samples, 0);
    assert_int_equal(stats.tokens, 0);
    assert_int_equal(stats.learned_through, 6);
    /* A sample that is larger than an update is still drawn. */
    push_new(q, 7, 60);
    assert_int_equal(hzp_sample_queue_draw(q, 5, draw, DRAW_MAX), 1);
    hzp_sample_queue_destroy(q);
}

/* Random pushes, draws, dones and undos, compared with a plain model of the rules. */
static void test_against_model(void **state)
{
    enum { N = 2000 };
    static int32_t count[N], drawn[N];
    for (unsigned seed = 1; seed <= 20; seed++) {
        srand(seed);
        int32_t passes = 1 + rand() % 4;
        struct hzp_sample_queue *q = make_queue(passes, false, 0);
        const struct hzp_sample *draw[DRAW_MAX], *again[DRAW_MAX];
        int32_t pushed = 0, held = 0;
        int64_t through = -1, tokens = 0;
        memset(drawn, 0, sizeof(drawn));
        for (int turn = 0; turn < 2000 && pushed < N - 1; turn++) {
            int32_t size = 2 + rand() % 60;
            if (rand() % 3 && hzp_sample_queue_reserve(q, 1, size) == HZP_OK) {
                struct hzp_sample *s = make_sample(++pushed, size);
                hzp_sample_queue_push(q, &s, 1);
                count[pushed] = size;
                held++;
                tokens += size;
            } else {
                assert_true(held <= 100 && tokens <= 2000);
            }
            if (rand() % 2 || !hzp_sample_queue_ready(q))
                continue;
            int64_t max = 1 + rand() % 300, sum = 0;
            int32_t n = hzp_sample_queue_draw(q, max, draw, DRAW_MAX);
            assert_true(n >= 1);
            if (rand() % 4 == 0) {
                hzp_sample_queue_undo(q);
                assert_int_equal(hzp_sample_queue_draw(q, max, again, DRAW_MAX), n);
                assert_memory_equal(draw, again, (size_t)n * sizeof(draw[0]));
            }
            for (int32_t i = 0; i < n; i++) {
                int64_t number = draw[i]->sequence_number;
                sum += draw[i]->count;
                for (int32_t j = 0; j < i; j++)
                    assert_ptr_not_equal(draw[i], draw[j]);
                if (++drawn[number] == passes) {
                    held--;
                    tokens -= count[number];
                }
                assert_true(drawn[number] <= passes);
            }
            assert_true(n == 1 || sum <= max);
            int64_t done = hzp_sample_queue_done(q);
            assert_true(done >= through);
            through = done;
            for (int64_t i = 1; i <= pushed; i++)
                if (drawn[i] < passes) {
                    assert_true(through <= i - 1);
                    break;
                }
            struct hzp_sample_queue_stats stats;
            hzp_sample_queue_read_stats(q, &stats);
            assert_int_equal(stats.samples, held);
            assert_int_equal(stats.tokens, tokens);
        }
        while (hzp_sample_queue_draw(q, 100, draw, DRAW_MAX))
            through = hzp_sample_queue_done(q);
        assert_int_equal(through, pushed);
        hzp_sample_queue_destroy(q);
    }
}

static void draw_epochs(uint64_t seed, int64_t *order, int32_t *ret_draws)
{
    struct hzp_sample_queue_config config = {
        .samples_max = 100, .tokens_max = 2000, .passes = 3, .shuffle = true, .seed = seed};
    struct hzp_sample_queue *q;
    const struct hzp_sample *draw[DRAW_MAX];
    assert_int_equal(hzp_sample_queue_create(&config, &q), HZP_OK);
    for (int i = 1; i <= 50; i++)
        push_new(q, i, 10);
    int32_t at = 0, n, draws = 0;
    for (; (n = hzp_sample_queue_draw(q, 70, draw, DRAW_MAX)); draws++) {
        for (int32_t i = 0; i < n; i++)
            order[at++] = draw[i]->sequence_number;
        assert_true(at % 50 == 0 || n == 7); /* only an epoch's last update is short */
        hzp_sample_queue_done(q);
    }
    assert_int_equal(at, 150);
    *ret_draws = draws;
    hzp_sample_queue_destroy(q);
}

static void test_shuffled_epochs(void **state)
{
    int64_t a[150], b[150], c[150];
    int32_t draws;
    draw_epochs(1, a, &draws);
    assert_int_equal(draws, 24);
    draw_epochs(1, b, &draws);
    draw_epochs(2, c, &draws);
    assert_memory_equal(a, b, sizeof(a));
    assert_memory_not_equal(a, c, sizeof(a));
    assert_memory_not_equal(a, a + 50, 50 * sizeof(a[0]));
    for (int epoch = 0; epoch < 3; epoch++) {
        bool seen[51] = {false};
        for (int i = 0; i < 50; i++) {
            assert_false(seen[a[epoch * 50 + i]]);
            seen[a[epoch * 50 + i]] = true;
        }
    }
    int32_t tokens[50];
    for (int i = 0; i < 50; i++)
        tokens[i] = 10;
    struct hzp_sample_queue_config config = {
        .samples_max = 100, .tokens_max = 2000, .passes = 3, .shuffle = true, .seed = 1};
    assert_int_equal(hzp_sample_queue_count_draws(&config, tokens, 50, 70, DRAW_MAX), 24);
}

static void test_replay(void **state)
{
    struct hzp_sample_queue *q = make_queue(20, false, 0.5);
    const struct hzp_sample *draw[DRAW_MAX];
    struct hzp_sample *replay[30];
    for (int i = 0; i < 30; i++)
        replay[i] = make_sample(0, 5 + i % 7);
    hzp_sample_queue_set_replay(q, replay, 30);
    assert_false(hzp_sample_queue_ready(q)); /* samples for replay alone do not make an update */
    for (int i = 1; i <= 20; i++)
        push_new(q, i, 10);
    int64_t fresh = 0, old = 0;
    int32_t times[30] = {0}, n;
    while ((n = hzp_sample_queue_draw(q, 50, draw, DRAW_MAX))) {
        for (int32_t i = 0; i < n; i++) {
            for (int32_t j = 0; j < i; j++)
                assert_ptr_not_equal(draw[i], draw[j]);
            *(draw[i]->sequence_number > 0 ? &fresh : &old) += draw[i]->count;
            for (int k = 0; k < 30; k++)
                times[k] += draw[i] == replay[k];
        }
        hzp_sample_queue_done(q);
    }
    assert_int_equal(fresh, 20 * 20 * 10);
    assert_true(fabs((double)old / (double)fresh - 0.5) < 0.02);
    for (int k = 1; k < 30; k++)
        assert_true(abs(times[k] - times[0]) <= 1); /* each once before any again */
    hzp_sample_queue_destroy(q);
}

/* Draws ahead change neither the order of draws nor what they hold: two queues of the same samples,
 * of which only one draws ahead where it can, with updates that are undone and given up. */
static void test_draw_ahead(void **state)
{
    int32_t drawn_ahead = 0, again = 0;
    for (unsigned seed = 1; seed <= 60; seed++) {
        srand(seed);
        bool shuffle = seed % 3 == 0;
        int32_t passes = 1 + rand() % 3;
        double ratio = seed % 2 ? 0.4 : 0;
        double rehearse = seed % 5 ? 0.7 : 0;
        struct hzp_sample_queue *plain = make_rehearsing(passes, shuffle, ratio, rehearse, false);
        struct hzp_sample_queue *q = make_rehearsing(passes, shuffle, ratio, rehearse, false);
        struct hzp_sample *replay[2][5];
        const struct hzp_sample *want[DRAW_MAX], *draw[DRAW_MAX], *next[DRAW_MAX];
        int64_t number = 0;
        int32_t ahead = 0;
        for (int i = 0; i < 5; i++) {
            replay[0][i] = make_sample(-1 - i, 10 + i);
            replay[1][i] = make_sample(-1 - i, 10 + i);
        }
        hzp_sample_queue_set_replay(plain, replay[0], 5);
        hzp_sample_queue_set_replay(q, replay[1], 5);
        for (int turn = 0; turn < 300; turn++) {
            for (int i = rand() % 6; i > 0; i--) {
                int32_t count = 2 + rand() % 60;
                if (hzp_sample_queue_reserve(plain, 1, count) < 0)
                    break;
                assert_int_equal(hzp_sample_queue_reserve(q, 1, count), HZP_OK);
                /* some are taught more than once, where no update is given up: a sample that was
                 * foreseen to be learned may have taken the place of an earlier one for good */
                int32_t prompt = seed % 4 ? (int32_t)number : rand() % 40;
                struct hzp_sample *a = make_lesson(++number, prompt, count);
                struct hzp_sample *b = make_lesson(number, prompt, count);
                hzp_sample_queue_push(plain, &a, 1);
                hzp_sample_queue_push(q, &b, 1);
            }
            int32_t n = hzp_sample_queue_draw(plain, 100, want, DRAW_MAX);
            if (ahead) /* the drawn ones by now */
                memcpy(draw, next, (size_t)ahead * sizeof(*draw));
            else
                ahead = hzp_sample_queue_draw(q, 100, draw, DRAW_MAX);
            assert_int_equal(ahead, n);
            for (int32_t i = 0; i < n; i++)
                assert_int_equal(draw[i]->sequence_number, want[i]->sequence_number);
            ahead = 0;
            if (!n)
                continue;
            if (rand() % 4)
                ahead = hzp_sample_queue_draw_ahead(q, 100, next, DRAW_MAX);
            drawn_ahead += ahead > 0;
            if (rand() % 5 == 0) { /* both updates begin again */
                hzp_sample_queue_undo(plain);
                hzp_sample_queue_undo(q);
                assert_int_equal(hzp_sample_queue_draw(plain, 100, want, DRAW_MAX), n);
                assert_int_equal(hzp_sample_queue_draw(q, 100, want, DRAW_MAX), n);
                assert_memory_equal(draw, want, (size_t)n * sizeof(*draw));
                if (ahead && rand() % 2) {
                    assert_int_equal(hzp_sample_queue_draw_ahead(q, 100, want, DRAW_MAX), ahead);
                    assert_memory_equal(next, want, (size_t)ahead * sizeof(*next));
                    again++;
                } else {
                    ahead = 0; /* the queue still has them */
                }
            }
            if (rand() % 8 || seed % 4 == 0 || number > 240) {
                assert_int_equal(hzp_sample_queue_done(q), hzp_sample_queue_done(plain));
            } else {
                hzp_sample_queue_undo_ahead(q);
                ahead = 0;
                assert_int_equal(hzp_sample_queue_give_up(q), hzp_sample_queue_give_up(plain));
            }
            struct hzp_sample_queue_stats x, y;
            hzp_sample_queue_read_stats(plain, &x);
            hzp_sample_queue_read_stats(q, &y);
            assert_int_equal(x.samples, y.samples);
            assert_int_equal(x.learned_through, y.learned_through);
        }
        hzp_sample_queue_destroy(plain);
        hzp_sample_queue_destroy(q);
    }
    assert_true(drawn_ahead > 500 && again > 20);
}

/* A sample drawn ahead can be removed like any other; so can all. */
static void test_remove_ahead(void **state)
{
    struct hzp_sample_queue *q = make_queue(1, false, 0);
    const struct hzp_sample *draw[DRAW_MAX];
    for (int i = 1; i <= 6; i++)
        push_new(q, i, 10);
    assert_int_equal(hzp_sample_queue_draw(q, 20, draw, DRAW_MAX), 2);
    assert_int_equal(hzp_sample_queue_draw_ahead(q, 20, draw, DRAW_MAX), 2);
    hzp_sample_queue_undo(q);
    assert_true(hzp_sample_queue_remove(q, 3));
    assert_int_equal(hzp_sample_queue_draw(q, 20, draw, DRAW_MAX), 2);
    assert_int_equal(hzp_sample_queue_done(q), 3); /* 4 is drawn ahead */
    assert_true(hzp_sample_queue_ready(q));
    assert_int_equal(hzp_sample_queue_draw(q, 20, draw, DRAW_MAX), 1);
    assert_int_equal(draw[0]->sequence_number, 4);
    assert_int_equal(hzp_sample_queue_draw_ahead(q, 20, draw, DRAW_MAX), 0); /* 5, 6, and then? */
    hzp_sample_queue_replace(q, NULL, 0, 2, 6);
    assert_false(hzp_sample_queue_ready(q));
    hzp_sample_queue_destroy(q);
}

/* Draws until all passes are over; times[n]: how often sample n was drawn when it had been learned.
 * Returns the number of draws. */
static int learn_all(struct hzp_sample_queue *q, int32_t *times)
{
    const struct hzp_sample *draw[DRAW_MAX];
    int32_t n, draws = 0;
    while ((n = hzp_sample_queue_draw(q, 100, draw, DRAW_MAX))) {
        draws++;
        assert_true(draw[0]->sequence_number > 0); /* new ones come first */
        for (int32_t i = 0; i < n; i++)
            if (draw[i]->sequence_number < 0) {
                check_soft(draw[i]);
                times[-draw[i]->sequence_number]++;
            }
        hzp_sample_queue_done(q);
        if (hzp_sample_queue_by_lesson(q) && hzp_sample_queue_group(q).ended)
            hzp_sample_queue_judge(q, HZP_GROUP_ACCEPTED);
    }
    return draws;
}

/* Lessons that come one after another are learned again beside the later ones, each about as often
 * as the others, by the targets that they were taught with; not
 * those that were taught again, taken back, or rejected. */
static void test_earlier(void **state)
{
    for (int by_lesson = 0; by_lesson < 2; by_lesson++) {
        enum { PASSES = 12 };
        struct hzp_sample_queue *q = make_rehearsing(PASSES, false, 0, 1, by_lesson);
        int32_t times[16] = {0};
        for (int i = 1; i <= 4; i++) {
            push_lesson(q, i, i, 10);
            assert_int_equal(learn_all(q, times), PASSES);
        }
        /* one earlier lesson in each update: the first one beside three lessons, 12 + 6 + 4 */
        assert_in_range(times[1], 20, 24);
        assert_int_equal(times[3], 4);
        assert_int_equal(times[4], 0);

        push_lesson(q, 5, 2, 10); /* the question of lesson 2, answered otherwise */
        memset(times, 0, sizeof(times));
        learn_all(q, times);
        assert_int_equal(times[2], 0);
        assert_int_equal(times[1] + times[3] + times[4], PASSES);
        push_lesson(q, 6, 6, 10);
        assert_false(hzp_sample_queue_remove(q, 3)); /* it is not waiting any more */
        learn_all(q, times);
        assert_int_equal(times[2], 0);
        assert_true(times[5] > 0);
        memset(times, 0, sizeof(times));
        push_lesson(q, 7, 7, 10);
        learn_all(q, times);
        assert_int_equal(times[2] + times[3], 0);
        assert_int_equal(hzp_sample_queue_earlier(q), 5); /* 1 4 5 6 7 */

        if (by_lesson) {
            const struct hzp_sample *draw[DRAW_MAX];
            push_lesson(q, 8, 8, 10);
            assert_int_equal(hzp_sample_queue_draw(q, 100, draw, DRAW_MAX), 2);
            hzp_sample_queue_done(q);
            hzp_sample_queue_judge(q, HZP_GROUP_REJECTED);
            push_lesson(q, 9, 9, 10);
            learn_all(q, times);
            assert_int_equal(times[8], 0);
        }
        /* the queue begins anew with what its log says */
        struct hzp_sample *known[] = {make_lesson(1, 1, 10), make_lesson(2, 2, 10),
                                      make_lesson(3, 1, 10)};
        hzp_sample_queue_replace(q, NULL, 0, 3, 20);
        assert_int_equal(hzp_sample_queue_earlier(q), 0);
        for (int i = 0; i < HZP_COUNT(known); i++)
            hzp_sample_queue_add_earlier(q, known[i]);
        assert_int_equal(hzp_sample_queue_earlier(q), 2); /* 3 has the prompt of 1 */
        hzp_sample_queue_destroy(q);
    }
}

/* Only the newest are kept, and no sample that a draw has borrowed is freed before its time. */
static void test_earlier_bounds(void **state)
{
    struct hzp_sample_queue *q = make_rehearsing(1, false, 0, 2, false);
    const struct hzp_sample *draw[DRAW_MAX], *next[DRAW_MAX];
    int32_t number = 0, ahead = 0;
    for (int turn = 0; turn < 400; turn++) {
        for (int i = 0; i < 4; i++, number++)
            push_lesson(q, number + 1, number, 10);
        int32_t n = ahead ? ahead : hzp_sample_queue_draw(q, 20, draw, DRAW_MAX);
        if (ahead)
            memcpy(draw, next, (size_t)ahead * sizeof(*draw));
        ahead = hzp_sample_queue_draw_ahead(q, 20, next, DRAW_MAX);
        assert_true(hzp_sample_queue_earlier(q) <= 256);
        for (int32_t i = 0; i < n; i++)
            assert_int_equal(draw[i]->token[1], labs((long)draw[i]->sequence_number) - 1);
        hzp_sample_queue_done(q);
        if (turn % 7 == 0) { /* nothing is drawn but what is drawn ahead, which is drawn anew */
            hzp_sample_queue_undo(q);
            if (ahead)
                hzp_sample_queue_remove(q, labs((long)next[ahead - 1]->sequence_number));
            ahead = 0;
        }
        while (turn % 3 == 0 && !ahead && hzp_sample_queue_draw(q, 200, draw, DRAW_MAX))
            hzp_sample_queue_done(q);
    }
    assert_int_equal(hzp_sample_queue_earlier(q), 256);
    /* a pair, a loss of its own and a negative weight are not learned again */
    int32_t token[8] = {1, 2, 3, HZP_PAIR_CUT, 1, 2, 4};
    uint8_t learn[8] = {0, 0, 1, 0, 0, 0, 1};
    float weight[8] = {1, 1, -1, 1, 1, 1, 1};
    struct hzp_row_loss how[8] = {{0}};
    struct hzp_sample *other[] = {hzp_sample_create(token, learn, 7),
                                  hzp_sample_create_losses(token, learn, weight, NULL, 3),
                                  hzp_sample_create_losses(token, learn, NULL, how, 3)};
    hzp_sample_queue_replace(q, NULL, 0, 3, number);
    for (int i = 0; i < HZP_COUNT(other); i++) {
        other[i]->sequence_number = i + 1;
        hzp_sample_queue_add_earlier(q, other[i]);
    }
    assert_int_equal(hzp_sample_queue_earlier(q), 0);
    hzp_sample_queue_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_earlier),         cmocka_unit_test(test_earlier_bounds),
        cmocka_unit_test(test_passes),          cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_age_and_rows),    cmocka_unit_test(test_failed),
        cmocka_unit_test(test_fifo_and_undo),   cmocka_unit_test(test_against_model),
        cmocka_unit_test(test_shuffled_epochs), cmocka_unit_test(test_replay),
        cmocka_unit_test(test_draw_ahead),      cmocka_unit_test(test_remove_ahead),
    };
    return cmocka_run_group_tests_name("sample_queue", tests, NULL, NULL);
}
