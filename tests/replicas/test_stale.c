/* SPDX-License-Identifier: Apache-2.0 */
/* By how much a replica's version trails: what its news prove, and what they do not. */
#include "base/log.h"
#include "base/thread.h"
#include "tests/replicas/world.h"

/* News of a version, and what rank 0 had said; what the front then knows of the rank. */
static struct hzp_front_rank told(struct world *w, uint64_t version, int64_t step,
                                  struct hzp_front_beat beat)
{
    const struct hzp_replica_load load = {
        .version = version, .optimizer_step = step, .generated_tokens = ++w->said, .told = beat};
    struct hzp_front_rank rank = {0};
    uint64_t end = hzp_now_ns() + HANG_NS;
    hzp_news_begin(&w->out, &load);
    say(w);
    while (rank.load.generated_tokens != w->said && hzp_now_ns() < end)
        MUST(hzp_front_rank(w->front, 1, &rank));
    return rank;
}

static struct hzp_front_beat beat_of(struct world *w, uint64_t version)
{
    struct hzp_front_beat beat = {0};
    const char *data;
    size_t bytes;
    while (beat.version != version) {
        hear(w, 'B', &data, &bytes);
        MUST(hzp_plain_read(data, bytes, &beat, sizeof(beat)));
    }
    return beat;
}

/* A rank that knows of two finished updates and serves a version of before both trails by more than
 * it may: its figure is not cut, and it is counted.  Old news prove nothing, nor does a version of
 * another state. */
static void stale_shows(void **state)
{
    struct world w;
    open_world(&w, 600);
    come_up(&w);
    publish_step(&w, LEARNED, 1);
    publish_step(&w, LEARNED, 1);
    struct hzp_front_beat beat = beat_of(&w, 3);
    assert_int_equal(beat.finished, 2);
    struct hzp_front_rank rank = told(&w, 1, 0, (struct hzp_front_beat){1, 2});
    assert_true(rank.staleness == 1 && !rank.stale);
    rank = told(&w, 1, 0, beat);
    assert_true(rank.staleness == 2 && rank.stale == 1);
    rank = told(&w, 1, 0, beat);
    assert_true(rank.staleness == 2 && rank.stale == 1);
    rank = told(&w, 3, 2, beat);
    assert_true(rank.staleness == 0 && rank.stale == 1);
    publish_step(&w, LEARNED, 5);
    beat = beat_of(&w, 4);
    rank = told(&w, 3, 2, beat);
    assert_true(rank.staleness == 1 && rank.stale == 1);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stale_shows)};
    hzp_log_set_level(HZP_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
