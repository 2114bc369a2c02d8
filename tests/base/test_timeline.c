/* SPDX-License-Identifier: Apache-2.0 */
/* tests/base/test_timeline.c - tracks: what they keep, what a reader gets while they are written,
 * what a thread is doing; and the trace as JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/thread.h"
#include "base/timeline.h"

#include <stdatomic.h>

/* The trace since from_ns as JSON; bytes: its bound. */
static json_t *trace(uint64_t from_ns, int64_t ahead_ns, size_t bytes)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    struct hzp_chrome chrome;
    hzp_chrome_begin(&chrome, file);
    hzp_chrome_process(&chrome, 3, "rank 3");
    hzp_timeline_write(&chrome, 3, from_ns, ahead_ns, bytes);
    hzp_chrome_end(&chrome);
    fclose(file);
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    if (!json)
        fail_msg("%s in %s", error.text, text);
    free(text);
    return json;
}

static double number_of(const json_t *event, const char *name)
{
    return json_number_value(json_object_get(event, name));
}

static int64_t span_of(const json_t *event)
{
    return json_integer_value(json_object_get(json_object_get(event, "args"), "n"));
}

/* The i-th event of a phase; NULL: there are fewer. */
static const json_t *event_at(const json_t *trace, const char *phase, int i)
{
    size_t k;
    json_t *event;
    json_array_foreach(trace, k, event)
    {
        if (!strcmp(json_string_value(json_object_get(event, "ph")), phase) && i-- == 0)
            return event;
    }
    return NULL;
}

static int events(const json_t *trace, const char *phase)
{
    int n = 0;
    while (event_at(trace, phase, n))
        n++;
    return n;
}

static void test_ring(void **state)
{
    struct hzp_track *track = hzp_track_open("some", 8, false);
    for (uint64_t i = 0; i < 20; i++)
        hzp_track_add(track, "span", 1000 * i, 1000 * i + 500, i);
    json_t *all = trace(0, 7000, 1 << 20), *late = trace(17000, 0, 1 << 20),
           *few = trace(0, 0, 500);
    assert_int_equal(events(all, "X"), 8); /* the newest */
    for (int i = 0; i < 8; i++) {
        const json_t *event = event_at(all, "X", i);
        assert_int_equal(span_of(event), 12 + i);
        assert_true(number_of(event, "ts") == 12 + i + 7); /* by the other clock */
        assert_true(number_of(event, "dur") == 0.5);
        assert_true(number_of(event, "pid") == 3);
    }
    assert_int_equal(events(all, "M"), 2); /* names of the process and of the track */
    assert_int_equal(events(late, "X"), 3);
    assert_int_equal(span_of(event_at(late, "X", 0)), 17);
    assert_int_equal(events(few, "X"), 3); /* as far as the bytes reach */
    assert_int_equal(span_of(event_at(few, "X", 2)), 19);
    json_decref(all);
    json_decref(late);
    json_decref(few);
    hzp_track_close(track);
    json_t *none = trace(0, 0, 1 << 20);
    assert_int_equal(json_array_size(none), 1);
    json_decref(none);
}

static void test_overlaps(void **state)
{
    struct hzp_track *track = hzp_track_open("tickets", 8, true);
    hzp_track_add(track, "first", 1000, 5000, 1);
    hzp_track_add(track, "second", 2000, 9000, 2);
    json_t *json = trace(0, 0, 1 << 20);
    assert_int_equal(events(json, "b"), 2);
    assert_int_equal(events(json, "e"), 2);
    const json_t *begin = event_at(json, "b", 1), *end = event_at(json, "e", 1);
    assert_true(number_of(begin, "ts") == 2 && number_of(end, "ts") == 9);
    assert_string_equal(json_string_value(json_object_get(begin, "id")),
                        json_string_value(json_object_get(end, "id")));
    json_decref(json);
    hzp_track_close(track);
}

static void test_doing(void **state)
{
    struct hzp_doing doing;
    struct hzp_track *engine = hzp_track_open("engine", 8, false);
    struct hzp_track *link = hzp_track_open("link", 8, false);
    hzp_timeline_doing(&doing);
    assert_string_equal(doing.track, "");
    hzp_track_enter(link, "all-gather", 17);
    uint64_t between = hzp_now_ns();
    while (hzp_now_ns() == between)
        continue;
    hzp_track_enter(engine, "turn", 4);
    hzp_timeline_doing(&doing); /* the one that has been at it for longest */
    assert_string_equal(doing.track, "link");
    assert_string_equal(doing.name, "all-gather");
    assert_int_equal(doing.number, 17);
    assert_true(doing.since_ns <= between);
    hzp_track_leave(link);
    hzp_track_leave(link); /* of nothing: no effect */
    hzp_timeline_doing(&doing);
    assert_string_equal(doing.track, "engine");
    hzp_track_leave(engine);
    json_t *json = trace(0, 0, 1 << 20);
    assert_int_equal(events(json, "X"), 2);
    json_decref(json);
    hzp_track_close(engine);
    hzp_track_close(link);
}

/* More tracks than there is room for: they are not recorded, and nothing else happens. */
static void test_too_many(void **state)
{
    static struct hzp_track *track[HZP_TRACKS_MAX + 1];
    for (int i = 0; i <= HZP_TRACKS_MAX; i++)
        track[i] = hzp_track_open("many", 8, false);
    assert_non_null(track[HZP_TRACKS_MAX - 1]);
    assert_null(track[HZP_TRACKS_MAX]);
    hzp_track_add(track[HZP_TRACKS_MAX], "span", 1, 2, 3);
    hzp_track_enter(track[HZP_TRACKS_MAX], "span", 1);
    hzp_track_leave(track[HZP_TRACKS_MAX]);
    for (int i = 0; i <= HZP_TRACKS_MAX; i++)
        hzp_track_close(track[i]);
}

static atomic_bool ends;

static void *writer(void *arg)
{
    static const char *const name[] = {"even", "odd"};
    for (uint64_t i = 0; !atomic_load(&ends); i++)
        hzp_track_add(arg, name[i % 2], 1000 * i, 2000 * i, i);
    return NULL;
}

/* Whatever is read while a thread overwrites the ring is a span that was added, in order. */
static void test_reader(void **state)
{
    pthread_t thread;
    struct hzp_track *track = hzp_track_open("busy", 64, false);
    assert_int_equal(hzp_thread_start(&thread, "writer", writer, track), HZP_OK);
    for (int turn = 0, seen = 0; turn < 300 || !seen; turn++) {
        json_t *json = trace(0, 0, 1 << 20);
        int64_t before = -1;
        const json_t *event;
        for (int i = 0; (event = event_at(json, "X", i)); i++, seen++) {
            int64_t n = span_of(event);
            assert_true(n == before + 1 || before < 0);
            assert_true(number_of(event, "ts") == (double)n);
            assert_true(number_of(event, "dur") == (double)n);
            assert_string_equal(json_string_value(json_object_get(event, "name")),
                                n % 2 ? "odd" : "even");
            before = n;
        }
        json_decref(json);
    }
    atomic_store(&ends, true);
    pthread_join(thread, NULL);
    hzp_track_close(track);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),   cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_doing),  cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_reader),
    };
    return cmocka_run_group_tests_name("timeline", tests, NULL, NULL);
}
