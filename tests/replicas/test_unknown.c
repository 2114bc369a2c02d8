/* SPDX-License-Identifier: Apache-2.0 */
/* News of a replica that the front does not know: it was lost, or another rank 0 took it in. */
#include "base/log.h"
#include "base/thread.h"
#include "tests/replicas/world.h"

static void say_news(struct world *w)
{
    const struct hzp_replica_load load = {.version = 1};
    hzp_news_begin(&w->out, &load);
    say(w);
}

/* It is told, and comes as after a loss. */
static void may_come_again(void **state)
{
    struct world w;
    struct hzp_front_rank rank;
    const char *data;
    size_t bytes;
    open_world(&w, 600);
    say_news(&w);
    hear(&w, 'K', &data, &bytes);
    w.hello.round++;
    come_up(&w);
    MUST(hzp_front_rank(w.front, 1, &rank));
    assert_true(rank.up);
    close_world(&w);
}

/* One in whose place another has come is not told, also while a third rank is missing: it would
 * displace that one, and be displaced. */
static void check_replaced(int ranks)
{
    struct world w;
    open_world_of(&w, ranks, 600);
    come_up(&w);
    struct hzp_pipe *first = w.pipe, *second;
    MUST(hzp_pipe_connect(&w.at, HZP_MESSAGE_MAX, &second, NULL));
    w.pipe = second;
    come_up(&w);
    w.pipe = first;
    say_news(&w);
    hzp_message_begin(&w.out, 'H'); /* which is refused, after the news were read */
    say(&w);
    char heard = 0;
    for (uint64_t end = hzp_now_ns() + HANG_NS; heard != 'X' && hzp_now_ns() < end;) {
        const char *data;
        size_t bytes;
        hzp_pipe_wait(first, 50);
        while (heard != 'X' && hzp_pipe_receive(first, NULL, &data, &bytes)) {
            heard = data[0];
            assert_int_not_equal(heard, 'K');
        }
    }
    assert_int_equal(heard, 'X');
    hzp_pipe_close(second);
    close_world(&w);
}

static void is_replaced(void **state)
{
    check_replaced(2);
    check_replaced(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(may_come_again),
                                       cmocka_unit_test(is_replaced)};
    hzp_log_set_level(HZP_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
