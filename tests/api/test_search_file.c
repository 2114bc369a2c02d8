/* SPDX-License-Identifier: Apache-2.0 */
/* The file of `search`: what is written is read back; a damaged file gives an error that names
 * it, wherever it is truncated or changed; a new file replaces the old one atomically. */
#include "nanobatch/search/search_file.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void fill(struct hzp_tables *t, struct hzp_plan_table *plans)
{
    hzp_tables_init(t);
    hzp_plan_table_init(plans);
    strcpy(t->device, "a device");
    strcpy(t->model, "a \"model\"");
    strcpy(t->build, "1");
    strcpy(t->settings, "64 running");
    t->threads = 4;
    t->shares = 3;
    t->cores[0] = 1;
    t->cores[1] = 3;
    t->cores[2] = 4;
    t->parts = 9;
    t->parts_done = 7;
    t->gap_ns = 1.5;
    t->handover_ns = 2.25;
    t->plans_ns = 1e9;
    t->items_ns = 0.9e9;
    t->led = true;
    t->whole = true;
    t->watched_ns = 4e9;
    t->others_ns = 1e8;
    t->others_max = 0.125;
    for (int i = 0; i < 20; i++) {
        struct hzp_op_key key = {
            (uint8_t)(i % HZP_OP_COUNT), (uint8_t)(1 + i * 13), 1, (uint8_t)(i % 2), 100 + i, 7};
        struct hzp_op_size size = {i + 1, 0.5 * i, 1e6 * i};
        hzp_tables_set(t, &key, &size, i % 3, 1000.0 + i);
        hzp_tables_set(t, &key, &size, 2, 10.0 + i);
    }
    hzp_tables_set_rate(t, &(struct hzp_rate){1, 2, 1, 3, 0.25, 0.75});
    struct hzp_plan_entry e = {8, 64, 512, hzp_plan_sequential, 1, 2, 3, 4, 0.5, 0.25, 6, 1.5};
    hzp_plan_table_set(plans, &e, NULL);
    e.decode = 9;
    e.shape.nanos = 3;
    e.shape.weight[1] = 5;
    e.shape.weight[2] = 6;
    e.shape.order = HZP_ORDER_SKEWED;
    e.shape.lane[2][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
    e.shape.train_lane[HZP_KIND_ROWS] = HZP_LANE_TRAIN;
    e.shape.share[HZP_LANE_MEMORY] = 3;
    e.shape.network_lane = HZP_LANE_NETWORK;
    e.shape.reduce[1] = HZP_REDUCE_SCATTERED;
    e.shape.joined[HZP_STAGE_ATTEND] = 3;
    e.shape.cores[1][HZP_KIND_DECODE] = 2;
    hzp_plan_table_set(plans, &e, NULL);
    e.decode = 10;
    e.shape = hzp_plan_sequential;
    e.shape.ride = 128;
    hzp_plan_table_set(plans, &e, NULL);
    hzp_plan_table_index(plans);
}

static void round_trip(void **state)
{
    struct hzp_tables t, u;
    struct hzp_plan_table plans, read;
    fill(&t, &plans);
    assert_int_equal(hzp_search_save(path, &t, &plans, NULL), HZP_OK);
    hzp_tables_init(&u);
    hzp_plan_table_init(&read);
    struct hzp_err_text err = {0};
    if (hzp_search_load(path, &u, &read, &err) < 0)
        fail_msg("%s", err.text);
    assert_null(hzp_search_misfit(&u, &t));
    assert_string_equal(u.settings, t.settings);
    assert_int_equal(u.threads, 4);
    assert_memory_equal(u.cores, t.cores, sizeof(t.cores));
    assert_int_equal(u.parts_done, 7);
    assert_true(u.gap_ns == t.gap_ns && u.handover_ns == t.handover_ns && u.led);
    assert_true(hzp_tables_stretch(&u) == hzp_tables_stretch(&t));
    assert_int_equal(u.curves, t.curves);
    for (int32_t i = 0; i < t.curves; i++) {
        assert_memory_equal(&u.curve[i].key, &t.curve[i].key, sizeof(t.curve[i].key));
        assert_int_equal(u.curve[i].points, t.curve[i].points);
        for (int s = 0; s < 3; s++)
            assert_true(u.curve[i].point[0].ns[s] == t.curve[i].point[0].ns[s]);
    }
    assert_true(u.whole && u.watched_ns == 4e9 && u.others_ns == 1e8 && u.others_max == 0.125);
    assert_int_equal(u.rates, 1);
    assert_true(u.rate[0].rate_b == 0.75 && u.rate[0].cores_b == 3);
    assert_int_equal(read.entries, 3);
    assert_memory_equal(&read.entry[2].shape, &plans.entry[2].shape, sizeof(plans.entry[2].shape));
    assert_int_equal(hzp_plan_table_ride(&read), 128);
    assert_memory_equal(&read.entry[1].shape, &plans.entry[1].shape, sizeof(plans.entry[1].shape));
    assert_true(read.entry[0].plain_ns == 2 && read.entry[0].confirmed == 1.5);
    assert_ptr_equal(hzp_plan_table_find(&read, 9, 60, 500), &read.entry[1]);
    strcpy(u.build, "2");
    assert_string_equal(hzp_search_misfit(&u, &t), "is for another build");
    hzp_tables_fini(&t);
    hzp_tables_fini(&u);
    hzp_plan_table_fini(&plans);
    hzp_plan_table_fini(&read);
}

static void only_whole_and_quiet_ones_serve(void **state)
{
    struct hzp_tables t = {.watched_ns = 100, .others_ns = 10, .others_max = 0.1};
    char why[160];
    assert_string_equal(hzp_search_unusable(&t, why), "its search did not come to its end");
    t.whole = true;
    assert_null(hzp_search_unusable(&t, why));
    t.others_ns = 31;
    assert_non_null(strstr(hzp_search_unusable(&t, why), "other processes took 31 %"));
    assert_non_null(strstr(why, "at most 10 %"));
    t.others_max = 1;
    assert_null(hzp_search_unusable(&t, why));
    t.watched_ns = t.others_ns = t.others_max = 0; /* counters that cannot be read */
    assert_null(hzp_search_unusable(&t, why));
}

static int load_text(const char *text, size_t size, struct hzp_err_text *err)
{
    struct hzp_tables t;
    struct hzp_plan_table plans;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(text, 1, size, file);
    fclose(file);
    hzp_tables_init(&t);
    hzp_plan_table_init(&plans);
    memset(err, 0, sizeof(*err));
    int r = hzp_search_load(path, &t, &plans, err);
    hzp_tables_fini(&t);
    hzp_plan_table_fini(&plans);
    return r;
}

/* The text with its first `from` replaced by `to`, as a new string. */
static char *bent(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    size_t size = strlen(text) + strlen(to) + 1;
    char *ret = hzp_xmalloc(size);
    snprintf(ret, size, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return ret;
}

static void hostile(void **state)
{
    static const char *const bend[][2] = {
        {"\"hzpserve_search\":4", "\"hzpserve_search\":1"},
        {"\"ride\":128", "\"ride\":-1"},
        {"\"ride\":128", "\"ride\":\"64\""},
        {"\"threads\":4", "\"threads\":0"},
        {"\"threads\":4", "\"threads\":99999999999"},
        {"\"shares\":[1,3,4]", "\"shares\":[1,3,3]"},
        {"\"shares\":[1,3,4]", "\"shares\":[1,2,3,4,5,6,7,8,9]"},
        {"\"shares\":[1,3,4]", "\"shares\":[]"},
        {"\"whole\":true", "\"whole\":1"},
        {"\"others_ns\":100000000.0", "\"others_ns\":-1"},
        {"\"others_max\":0.125", "\"others_max\":null"},
        {"\"parts_done\":7", "\"parts_done\":10"},
        {"\"parts_done\":7", "\"parts_done\":-1"},
        {"\"op\":\"embed\"", "\"op\":\"bogus\""},
        {"\"op\":\"embed\"", "\"op\":7"},
        {"\"flags\":1,", "\"flags\":400,"},
        {"\"points\":[[", "\"points\":[[1,"},
        {"\"points\":[[", "\"points\":[[], ["},
        {"\"pairs\":[[1,2", "\"pairs\":[[99,2"},
        {"0.25,0.75", "0.25,-0.75"},
        {"0.25,0.75", "0.25"},
        {"\"nanos\":[1]", "\"nanos\":[0]"},
        {"\"nanos\":[1]", "\"nanos\":[]"},
        {"\"nanos\":[1]", "\"nanos\":[1,1,1,1,1,1,1,1,1]"},
        {"\"lanes\":[[0,", "\"lanes\":[[9,"},
        {"\"order\":\"skewed\"", "\"order\":\"sideways\""},
        {"\"network_lane\":2", "\"network_lane\":5"},
        {"\"reduce\":[0,1,0]", "\"reduce\":[0,2,0]"},
        {"\"reduce\":[0,1,0]", "\"reduce\":[0,1]"},
        {"\"joined\":[0,3,0,0]", "\"joined\":[0,3,0]"},
        {"[0,2,0,0]", "[0,-2,0,0]"},
        {"[0,2,0,0]", "[0,99999,0,0]"},
        {"[0,2,0,0]", "[0,2,0]"},
        {",[0,2,0,0]", ""},
        {"\"joined\":[0,3,0,0]", "\"joined\":[0,4,0,0]"},
        {"\"joined\":[0,3,0,0]", "\"joined\":[1,3,0,0]"},
        {"\"joined\":[0,3,0,0]", "\"joined\":[0,256,0,0]"},
        {"\"rows\":[8,64,512]", "\"rows\":[8,64]"},
        {"\"rows\":[8,64,512]", "\"rows\":[-8,64,512]"},
        {"\"gap_ns\":1.5", "\"gap_ns\":1e300"},
        {"\"gap_ns\":1.5", "\"gap_ns\":1e17"},
        {"\"handover_ns\":2.25", "\"handover_ns\":1e17"},
        {",1000.0", ",1e17"},
        {"\"device\":\"a device\"", "\"device\":null"},
        {"\"curves\":[", "\"curves\":7,\"x\":["},
    };
    struct hzp_tables t;
    struct hzp_plan_table plans;
    struct hzp_err_text err;
    static char text[1 << 16];
    fill(&t, &plans);
    assert_int_equal(hzp_search_save(path, &t, &plans, NULL), HZP_OK);
    FILE *file = fopen(path, "r");
    size_t size = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    assert_int_equal(load_text(text, size, &err), HZP_OK);
    for (int i = 0; i < HZP_COUNT(bend); i++) {
        char *wrong = bent(text, bend[i][0], bend[i][1]);
        int r = load_text(wrong, strlen(wrong), &err);
        if (r != HZP_EFORMAT)
            fail_msg("%s: %d %s", bend[i][1], r, err.text);
        assert_non_null(strstr(err.text, path));
        free(wrong);
    }
    for (size_t cut = 0; cut < size; cut += 37)
        assert_int_equal(load_text(text, cut, &err), HZP_EFORMAT);
    uint32_t seed = 5;
    for (int i = 0; i < 2000; i++) { /* any result is right, as long as it does not crash */
        char *wrong = hzp_xmalloc(size);
        memcpy(wrong, text, size);
        for (int k = 0; k < 3; k++)
            wrong[next(&seed) % size] = "0123456789-.,[]{}\"e"[next(&seed) % 19];
        load_text(wrong, size, &err);
        free(wrong);
    }
    hzp_tables_fini(&t);
    hzp_plan_table_fini(&plans);
}

/* Earlier builds wrote the order of strands as "chains", and shares as "units", in the same format:
 * both are read as before, and written by their new names. */
static void words_of_earlier_builds(void **state)
{
    struct hzp_tables t, u;
    struct hzp_plan_table plans, read;
    struct hzp_err_text err = {0};
    static char text[1 << 16];
    fill(&t, &plans);
    assert_int_equal(hzp_search_save(path, &t, &plans, NULL), HZP_OK);
    FILE *file = fopen(path, "r");
    size_t size = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[size] = 0;
    char *order = bent(text, "\"order\":\"strands\"", "\"order\":\"chains\"");
    char *earlier = bent(order, "\"cores\":[", "\"units\":[");
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(earlier, file);
    fclose(file);
    hzp_tables_init(&u);
    hzp_plan_table_init(&read);
    if (hzp_search_load(path, &u, &read, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(read.entries, plans.entries);
    for (int32_t i = 0; i < plans.entries; i++) {
        assert_int_equal(read.entry[i].shape.order, plans.entry[i].shape.order);
        assert_memory_equal(read.entry[i].shape.share, plans.entry[i].shape.share,
                            sizeof(plans.entry[i].shape.share));
    }
    free(order);
    free(earlier);
    hzp_tables_fini(&t);
    hzp_tables_fini(&u);
    hzp_plan_table_fini(&plans);
    hzp_plan_table_fini(&read);
}

static void nowhere_to_write(void **state)
{
    struct hzp_tables t;
    struct hzp_plan_table plans;
    struct hzp_err_text err = {0};
    char other[PATH_MAX];
    fill(&t, &plans);
    assert_int_equal(hzp_search_save("/proc/no/such/place", &t, &plans, &err), HZP_EIO);
    assert_non_null(strstr(err.text, "/proc/no: cannot make the directory"));
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    assert_int_equal(hzp_search_path(&t, other, sizeof(other), NULL), HZP_OK);
    assert_non_null(strstr(other, "/somewhere/hzpserve/search-"));
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(hzp_search_path(&t, other, sizeof(other), &err), HZP_ENOENT);
    hzp_tables_fini(&t);
    hzp_plan_table_fini(&plans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),       cmocka_unit_test(only_whole_and_quiet_ones_serve),
        cmocka_unit_test(hostile),          cmocka_unit_test(words_of_earlier_builds),
        cmocka_unit_test(nowhere_to_write),
    };
    snprintf(path, sizeof(path), "/tmp/hzp_search_%ld.json", (long)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
