/* SPDX-License-Identifier: Apache-2.0 */
/* The collective op: ranks are threads, each with a device of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/device.h"
#include "tests/links/links.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3, ROWS = 2, COLS = 5, N = ROWS * COLS };

struct rank {
    const char *device;
    struct hzp_link *link;
    float sum[N], later[2][N], all[RANKS * N], piece[N], place[RANKS * N];
    uint16_t half[RANKS * N];
    double squares[2];
    int code;
};

/* What rank r sends at index i. */
static float value(int r, int i)
{
    return (float)(100 * (r + 1) + i) / 7;
}

static struct hzp_mat mat(void *ptr, int32_t rows, enum hzp_dtype type)
{
    return (struct hzp_mat){ptr, rows, COLS, COLS, type};
}

static int issue(struct rank *r, struct hzp_lane *lane, struct hzp_collective_args a)
{
    a.link = r->link;
    const char *broken = hzp_op_validate(HZP_OP_collective, &a);
    if (broken)
        fprintf(stderr, "%s\n", broken);
    return broken ? HZP_EINVAL : hzp_op_collective(lane, &a);
}

/* Two sums that are begun, another transfer, and their ends. */
static int in_two_parts(struct rank *r, struct hzp_lane *lane)
{
    struct hzp_collective_args part[2], none;
    int ok = 0;
    for (int k = 0; k < 2; k++) {
        part[k] = (struct hzp_collective_args){.recv = mat(r->later[k], ROWS, HZP_F32),
                                               .kind = HZP_ALL_REDUCE,
                                               .part = HZP_COLLECTIVE_BEGIN,
                                               .tag = k};
        ok |= issue(r, lane, part[k]);
    }
    none = part[0];
    none.recv.rows = 0;
    ok |= issue(r, lane, none);
    ok |= issue(r, lane,
                (struct hzp_collective_args){.recv = {r->squares, 1, 4, 4, HZP_F32},
                                             .wide = HZP_WIRE_F64,
                                             .kind = HZP_ALL_REDUCE});
    none.part = HZP_COLLECTIVE_END;
    ok |= issue(r, lane, none);
    for (int k = 0; k < 2; k++) {
        part[k].part = HZP_COLLECTIVE_END;
        ok |= issue(r, lane, part[k]);
    }
    return ok;
}

static void *run(void *arg)
{
    struct rank *r = arg;
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_device_config config = {.name = r->device, .threads = 1};
    int me = hzp_link_rank(r->link);
    float send[RANKS * N];
    for (int i = 0; i < RANKS * N; i++)
        send[i] = value(me, i);
    memcpy(r->sum, send, sizeof(r->sum));
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++)
            r->later[k][i] = value(me, i) + (float)k;
    memcpy(r->place + me * N, send, N * sizeof(float));
    memset(r->piece, 0, sizeof(r->piece));
    for (int i = 0; i < N; i++) {
        r->half[me * N + i] = (uint16_t)(1000 * me + i);
        r->piece[i] = 1;
    }
    r->squares[0] = 1 + me * 0x1p-40;
    r->squares[1] = -me;
    r->code = hzp_device_open(&config, &dev, NULL);
    if (r->code < 0 || hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane) < 0)
        return NULL;
    int ok = issue(
        r, lane,
        (struct hzp_collective_args){.recv = mat(r->sum, ROWS, HZP_F32), .kind = HZP_ALL_REDUCE});
    ok |= issue(r, lane,
                (struct hzp_collective_args){.recv = mat(r->all, RANKS * ROWS, HZP_F32),
                                             .send = mat(send, ROWS, HZP_F32),
                                             .kind = HZP_ALL_GATHER});
    ok |= issue(r, lane,
                (struct hzp_collective_args){.recv = mat(r->place, RANKS * ROWS, HZP_F32),
                                             .kind = HZP_ALL_GATHER});
    ok |= issue(r, lane,
                (struct hzp_collective_args){.recv = mat(r->half, RANKS * ROWS, HZP_BF16),
                                             .kind = HZP_ALL_GATHER});
    ok |= issue(r, lane,
                (struct hzp_collective_args){.recv = mat(r->piece, ROWS, HZP_F32),
                                             .send = mat(send, RANKS * ROWS, HZP_F32),
                                             .kind = HZP_REDUCE_SCATTER,
                                             .accumulate = 1});
    ok |= issue(r, lane,
                (struct hzp_collective_args){.recv = {r->squares, 1, 4, 4, HZP_F32},
                                             .wide = HZP_WIRE_F64,
                                             .kind = HZP_ALL_REDUCE});
    ok |= issue(
        r, lane,
        (struct hzp_collective_args){.recv = mat(r->sum, 0, HZP_F32), .kind = HZP_ALL_REDUCE});
    ok |= in_two_parts(r, lane);
    r->code = ok;
    hzp_lane_close(lane);
    hzp_device_close(dev);
    return NULL;
}

static void run_ranks(struct rank *rank, const char *device, void *(*body)(void *))
{
    struct hzp_link *link[RANKS];
    pthread_t thread[RANKS];
    assert_int_equal(hzp_link_open_local(RANKS, 0, 1, link, NULL), HZP_OK);
    for (int r = 0; r < RANKS; r++) {
        memset(&rank[r], 0, sizeof(rank[r]));
        rank[r].device = device;
        rank[r].link = link[r];
        assert_int_equal(pthread_create(&thread[r], NULL, body, &rank[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    for (int r = 0; r < RANKS; r++)
        hzp_link_close(link[r]);
}

static void test_results(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    struct rank rank[RANKS];
    for (int d = 0; d < HZP_COUNT(devices); d++) {
        run_ranks(rank, devices[d], run);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(rank[r].code, 0);
            for (int i = 0; i < N; i++) {
                float sum = value(0, i), piece = 1;
                for (int m = 1; m < RANKS; m++)
                    sum += value(m, i);
                for (int m = 0; m < RANKS; m++)
                    piece += value(m, r * N + i);
                assert_true(rank[r].sum[i] == sum); /* the same bits on all ranks */
                for (int k = 0; k < 2; k++) {
                    float later = value(0, i) + (float)k;
                    for (int m = 1; m < RANKS; m++)
                        later += value(m, i) + (float)k;
                    assert_true(rank[r].later[k][i] == later);
                }
                assert_true(rank[r].piece[i] == piece);
                for (int m = 0; m < RANKS; m++) {
                    assert_true(rank[r].all[m * N + i] == value(m, i));
                    assert_true(rank[r].place[m * N + i] == value(m, i));
                    assert_int_equal(rank[r].half[m * N + i], 1000 * m + i);
                }
            }
            assert_true(rank[r].squares[0] == 9 + 9 * 0x1p-40 && rank[r].squares[1] == -9);
        }
    }
}

/* Ranks whose plans differ: all of them fail, and none waits for ever. */
static void *differ(void *arg)
{
    struct rank *r = arg;
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_device_config config = {.name = r->device, .threads = 1};
    r->code = HZP_EINVAL;
    if (hzp_device_open(&config, &dev, NULL) < 0 ||
        hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane) < 0)
        return NULL;
    r->code = issue(r, lane,
                    (struct hzp_collective_args){.recv = mat(r->sum, ROWS, HZP_F32),
                                                 .kind = HZP_ALL_REDUCE,
                                                 .tag = hzp_link_rank(r->link) == 2});
    hzp_lane_close(lane);
    hzp_device_close(dev);
    return NULL;
}

static void test_failure(void **state)
{
    struct rank rank[RANKS];
    run_ranks(rank, "cpu", differ);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(rank[r].code, HZP_EDEVICE);
}

static bool meet(const struct hzp_collective_args *a, const struct hzp_collective_args *b)
{
    struct hzp_access x[HZP_ACCESS_MAX], y[HZP_ACCESS_MAX];
    int n = hzp_op_access(HZP_OP_collective, a, x), m = hzp_op_access(HZP_OP_collective, b, y);
    bool ret = false;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            ret = ret || ((x[i].writes || y[j].writes) && hzp_access_meet(&x[i], &y[j]));
    return ret;
}

/* The end of what was not begun, and more begun than may be. */
static void test_parts(void **state)
{
    struct hzp_link *link[2];
    struct hzp_err_text text;
    float x[HZP_LINK_BEGUN_MAX + 1] = {0};
    assert_int_equal(hzp_link_open_local(2, 0, 1, link, NULL), HZP_OK);
    assert_int_equal(hzp_link_end_transfer(link[0], &text), HZP_EINVAL);
    for (int i = 0; i <= HZP_LINK_BEGUN_MAX; i++) {
        struct hzp_transfer t = {
            .op = HZP_ALL_REDUCE, .type = HZP_WIRE_F32, .send = &x[i], .recv = &x[i], .count = 1};
        assert_int_equal(hzp_link_begin_transfer(link[0], &t, &text),
                         i < HZP_LINK_BEGUN_MAX ? HZP_OK : HZP_EBUSY);
    }
    hzp_link_close(link[0]);
    hzp_link_close(link[1]);
}

/* The checker wants two collectives of one link to be ordered, whatever their memory is. */
static void test_order(void **state)
{
    struct hzp_link *one[2], *other[2];
    float x[N] = {0}, y[N] = {0};
    assert_int_equal(hzp_link_open_local(2, 0, 1, one, NULL), HZP_OK);
    assert_int_equal(hzp_link_open_local(2, 0, 1, other, NULL), HZP_OK);
    struct hzp_collective_args a = {
        .link = one[0], .recv = mat(x, ROWS, HZP_F32), .kind = HZP_ALL_REDUCE};
    struct hzp_collective_args b = a, c = a;
    b.recv.ptr = c.recv.ptr = y;
    c.link = other[0];
    assert_true(meet(&a, &b));
    assert_false(meet(&a, &c));
    assert_int_equal(hzp_op_wire(HZP_OP_collective, &a), 2 * (N * sizeof(float)) / 2);
    struct hzp_fill_args fill = {.y = mat(x, ROWS, HZP_F32)};
    assert_int_equal(hzp_op_wire(HZP_OP_fill, &fill), 0);
    for (int r = 0; r < 2; r++) {
        hzp_link_close(one[r]);
        hzp_link_close(other[r]);
    }
}

static void test_arguments(void **state)
{
    struct hzp_link *link[2];
    float x[4 * N] = {0};
    assert_int_equal(hzp_link_open_local(2, 0, 1, link, NULL), HZP_OK);
    const struct hzp_collective_args good = {
        .link = link[0], .recv = mat(x, ROWS, HZP_F32), .kind = HZP_ALL_REDUCE};
    assert_null(hzp_op_validate(HZP_OP_collective, &good));
#define WRONG(change, word)                                                                        \
    do {                                                                                           \
        struct hzp_collective_args a = good;                                                       \
        change;                                                                                    \
        const char *why = hzp_op_validate(HZP_OP_collective, &a);                                  \
        if (!why || !strstr(why, word))                                                            \
            fail_msg("%s: %s", #change, why ? why : "accepted");                                   \
    } while (0)
    WRONG(a.kind = HZP_BROADCAST, "kinds");
    WRONG(a.part = HZP_COLLECTIVE_END + 1, "parts");
    WRONG(a.recv.type = HZP_BF16, "F32");
    WRONG(a.recv.stride = COLS + 1, "gaps");
    WRONG(a.accumulate = 1, "accumulates");
    WRONG(a.kind = HZP_REDUCE_SCATTER, "absent");
    WRONG(a.wide = HZP_WIRE_F64, "wide");
    WRONG((a.kind = HZP_ALL_GATHER, a.recv.rows = 3), "each rank");
    WRONG((a.kind = HZP_ALL_GATHER, a.send = mat(x + 2 * N, 2, HZP_F32)), "all ranks");
    WRONG((a.kind = HZP_REDUCE_SCATTER, a.send = mat(x + 2 * N, 3, HZP_F32)), "fit");
    WRONG(a.send = mat(x + COLS, ROWS, HZP_F32), "overlaps");
    hzp_link_close(link[0]);
    hzp_link_close(link[1]);
}

/* The CPUs that the thread of this name may use. */
static cpu_set_t cpus_of(const char *name)
{
    cpu_set_t set;
    struct dirent *entry;
    DIR *dir = opendir("/proc/self/task");
    CPU_ZERO(&set);
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        char path[300], is[32] = "";
        int thread = 0;
        snprintf(path, sizeof(path), "/proc/self/task/%.200s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(is, sizeof(is), file) && sscanf(entry->d_name, "%d", &thread) == 1 &&
            !strncmp(is, name, strlen(name)))
            assert_int_equal(sched_getaffinity(thread, sizeof(set), &set), 0);
        if (file)
            fclose(file);
    }
    closedir(dir);
    return set;
}

/* The lane of exchanges has the core that products leave, and any if they leave none. */
static void test_core(void **state)
{
    struct hzp_device_config config = {.name = "cpu", .threads = 2};
    struct hzp_device *dev;
    struct hzp_lane *computes, *network;
    cpu_set_t all, set;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    if (CPU_COUNT(&all) < 2)
        skip();
    int second = 0;
    for (int seen = 0; seen < 2; second++)
        seen += CPU_ISSET(second, &all) != 0;
    second--;
    assert_int_equal(hzp_device_open(&config, &dev, NULL), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_NETWORK, &network), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &computes), HZP_OK);
    assert_int_equal(hzp_lane_set_share(network, 1), HZP_OK);
    for (int i = 0; i < 2; i++) {
        set = cpus_of("cpu-lane"); /* the products' lane uses all cores */
        assert_true(CPU_EQUAL(&set, &all));
        assert_int_equal(hzp_lane_set_share(computes, 1), HZP_OK);
        set = cpus_of("cpu-lane");
        assert_true(CPU_COUNT(&set) == 1 && CPU_ISSET(second, &set));
        assert_int_equal(hzp_lane_set_share(computes, i ? 0 : 2), HZP_OK);
    }
    set = cpus_of("cpu-lane");
    assert_true(CPU_EQUAL(&set, &all));
    hzp_lane_close(network);
    hzp_lane_close(computes);
    hzp_device_close(dev);
    config.threads = 1; /* on such a device no lane for products has a share */
    assert_int_equal(hzp_device_open(&config, &dev, NULL), HZP_OK);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_NETWORK, &network), HZP_OK);
    assert_int_equal(hzp_lane_set_share(network, 1), HZP_OK);
    set = cpus_of("cpu-lane");
    assert_true(CPU_EQUAL(&set, &all));
    hzp_lane_close(network);
    hzp_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),   cmocka_unit_test(test_failure),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_parts),
        cmocka_unit_test(test_arguments), cmocka_unit_test(test_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
