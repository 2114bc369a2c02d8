/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_trace.c - the tracing device that wraps another device. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "device/device.h"

static const char *const backends[] = {"ref", "cpu", "sim"};

static struct hzp_device *open_one(const char *name)
{
    struct hzp_device *dev;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = name}, &dev, NULL),
                     HZP_OK);
    return dev;
}

/* A fill, a cast and a copy on two lanes. */
static void work(struct hzp_device *dev)
{
    void *x, *y;
    struct hzp_lane *one, *two;
    struct hzp_fence *fence;
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, 4096, &x), HZP_OK);
    assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, 4096, &y), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &one), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COPY, &two), HZP_OK);
    assert_int_equal(hzp_fence_open(dev, &fence), HZP_OK);
    struct hzp_fill_args fill = {{x, 4, 8, 8, HZP_F32}, 2};
    struct hzp_cast_args cast = {.x = fill.y, .y = {y, 4, 8, 8, HZP_BF16}};
    assert_int_equal(hzp_op_fill(one, &fill), HZP_OK);
    assert_int_equal(hzp_op_cast(one, &cast), HZP_OK);
    assert_int_equal(hzp_fence_record(fence, one), HZP_OK);
    assert_int_equal(hzp_lane_wait(two, fence), HZP_OK);
    assert_int_equal(hzp_lane_copy(two, (char *)x + 2048, y, 64), HZP_OK);
    assert_int_equal(hzp_fence_record(fence, two), HZP_OK);
    assert_int_equal(hzp_fence_wait(fence), HZP_OK);
    hzp_fence_close(fence);
    hzp_lane_close(one);
    hzp_lane_close(two);
    hzp_device_free(dev, HZP_MEM_DEVICE, x);
    hzp_device_free(dev, HZP_MEM_DEVICE, y);
}

static int events_named(json_t *trace, const char *name, int64_t bytes)
{
    size_t i;
    json_t *event;
    int count = 0;
    json_array_foreach(trace, i, event)
    {
        const char *is = json_string_value(json_object_get(event, "name"));
        if (!is || strcmp(is, name) != 0)
            continue;
        count++;
        assert_true(json_number_value(json_object_get(event, "dur")) >= 0);
        assert_int_equal(
            json_integer_value(json_object_get(json_object_get(event, "args"), "bytes")), bytes);
    }
    return count;
}

static void test_file(void **state)
{
    for (int i = 0; i < HZP_COUNT(backends); i++) {
        char path[] = "hzp_test_trace_XXXXXX", numbered[64];
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        setenv("HZP_TRACE", path, 1);
        struct hzp_device *dev = open_one(backends[i]);
        assert_string_equal(hzp_device_backend(dev), backends[i]);
        work(dev);
        hzp_device_close(dev);
        unsetenv("HZP_TRACE");

        snprintf(numbered, sizeof(numbered), i ? "%s.%d" : "%s", path, i);
        json_error_t error;
        json_t *trace = json_load_file(numbered, 0, &error);
        assert_non_null(trace);
        assert_int_equal(events_named(trace, "fill", 4 * 8 * 4), 1);
        assert_int_equal(events_named(trace, "cast", 4 * 8 * (4 + 2)), 1);
        assert_int_equal(events_named(trace, "copy", 2 * 64), 1);
        json_decref(trace);
        unlink(path);
        unlink(numbered);
    }
}

/* Returns the text on standard error while an op with NaN in its output runs under
   HZP_CHECK=nan. */
static void test_nan(void **state)
{
    char text[1024];
    FILE *caught = tmpfile();
    int keep = dup(STDERR_FILENO);
    setenv("HZP_CHECK", "nan", 1);
    struct hzp_device *dev = open_one("ref");
    struct hzp_lane *lane;
    float x[2][5] = {{1, 2, 3, 0, 0}, {4, NAN, 6, 0, 0}}, y[2][3];
    struct hzp_cast_args clean = {.x = {x, 1, 3, 5, HZP_F32}, .y = {y, 1, 3, 3, HZP_F32}};
    struct hzp_cast_args dirty = {.x = {x, 2, 3, 5, HZP_F32}, .y = {y, 2, 3, 3, HZP_F32}};
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane), HZP_OK);

    dup2(fileno(caught), STDERR_FILENO);
    int r = hzp_op_cast(lane, &clean);
    long quiet = (long)lseek(fileno(caught), 0, SEEK_END);
    r |= hzp_op_cast(lane, &dirty);
    dup2(keep, STDERR_FILENO);
    close(keep);

    assert_int_equal(r, HZP_OK);
    assert_int_equal(quiet, 0);
    rewind(caught);
    text[fread(text, 1, sizeof(text) - 1, caught)] = 0;
    assert_non_null(strstr(text, "op=cast output=y row=1 col=1 of=2x3"));
    fclose(caught);
    hzp_lane_close(lane);
    hzp_device_close(dev);
    setenv("HZP_CHECK", "zero", 1);
    struct hzp_err_text why = {0};
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, &why),
                     HZP_EINVAL);
    assert_string_equal(why.param, "HZP_CHECK");
    unsetenv("HZP_CHECK");
}

static void test_sync(void **state)
{
    setenv("HZP_SYNC", "1", 1);
    for (int i = 0; i < HZP_COUNT(backends); i++) {
        struct hzp_device *dev = open_one(backends[i]);
        work(dev);
        hzp_device_close(dev);
    }
    unsetenv("HZP_SYNC");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
