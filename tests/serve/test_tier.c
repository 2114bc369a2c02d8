/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers of the prefix cache with real pages: what comes back is what went there, the least used
   page goes on from host memory to the file and out of it, a page that was damaged does not come
   back, and the thread does the same work as the jobs one by one. */
#include "serve/tier.h"

#include "base/ring.h"
#include "base/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 40, ROWS = 4 };

struct rig {
    struct hzp_device *dev;
    struct hzp_kvpool *pool;
    struct hzp_tier *tier;
    size_t bytes;
};

static struct hzp_model_config config = {
    .layers = 3, .width = 16, .vocab = 32, .heads = {.heads = 4, .kv_heads = 2, .dim = 4}};

static bool damage; /* what the file returns is not what was written */
ssize_t __real_pread64(int fd, void *buffer, size_t size, off_t at);
ssize_t __wrap_pread64(int fd, void *buffer, size_t size, off_t at);
ssize_t __wrap_pread64(int fd, void *buffer, size_t size, off_t at)
{
    ssize_t r = __real_pread64(fd, buffer, size, at);
    if (damage && r > 0)
        ((char *)buffer)[r / 2] ^= 1;
    return r;
}

static bool full; /* nothing can be written */
ssize_t __real_pwrite64(int fd, const void *buffer, size_t size, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *buffer, size_t size, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *buffer, size_t size, off_t at)
{
    return full ? 0 : __real_pwrite64(fd, buffer, size, at);
}

static void rig_open(struct rig *rig, int host, int file, bool threadless)
{
    struct hzp_err_text err;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &rig->dev, &err),
                     0);
    struct hzp_model model = {.dev = rig->dev, .config = &config, .act = HZP_F32};
    assert_int_equal(hzp_kvpool_create(&model, PAGES, ROWS, &rig->pool), 0);
    rig->bytes = hzp_kvpool_page_bytes(rig->pool);
    assert_int_equal(rig->bytes, 2 * 3 * 2 * ROWS * 4 * 4);
    struct hzp_tier_config tier = {.pool = rig->pool,
                                   .host_bytes = (size_t)host * rig->bytes,
                                   .file_bytes = (size_t)file * rig->bytes + 1,
                                   .dir = "/tmp",
                                   .threadless = threadless};
    if (!file)
        tier.file_bytes = 0;
    assert_int_equal(hzp_tier_create(&tier, &rig->tier, &err), 0);
}

static void rig_close(struct rig *rig)
{
    hzp_tier_destroy(rig->tier);
    hzp_kvpool_destroy(rig->pool);
    hzp_device_close(rig->dev);
}

/* Page contents that tell which page of which content it is, in every layer. */
static void fill(const struct rig *rig, int32_t page, int content)
{
    unsigned char *bytes = malloc(rig->bytes);
    for (size_t i = 0; i < rig->bytes; i++)
        bytes[i] = (unsigned char)((size_t)content * 31 + i * 7);
    assert_int_equal(hzp_kvpool_write_page(rig->pool, page, bytes), 0);
    free(bytes);
}

static bool holds(const struct rig *rig, int32_t page, int content)
{
    unsigned char *bytes = malloc(rig->bytes);
    bool same = true;
    assert_int_equal(hzp_kvpool_read_page(rig->pool, page, bytes), 0);
    for (size_t i = 0; i < rig->bytes; i++)
        same &= bytes[i] == (unsigned char)((size_t)content * 31 + i * 7);
    free(bytes);
    return same;
}

/* The key of a content: the first page of a prompt. */
static struct hzp_tier_page key_of(int content, int32_t *token)
{
    for (int i = 0; i < ROWS; i++)
        token[i] = content + i;
    return (struct hzp_tier_page){.id = 1000 + (uint64_t)content,
                                  .hash = (uint64_t)content % 3, /* hashes that collide */
                                  .oldest = 5,
                                  .token = token};
}

static void settle(struct rig *rig, bool threadless, bool ok)
{
    struct hzp_tier_done done;
    while (hzp_tier_room(rig->tier) < HZP_TIER_JOBS) {
        while (threadless && hzp_tier_work(rig->tier))
            continue;
        if (hzp_tier_done(rig->tier, &done))
            assert_int_equal(done.ok, ok);
        else
            usleep(100);
    }
}

static int32_t found(const struct rig *rig, int content)
{
    int32_t token[ROWS];
    uint64_t id = 0, oldest = 0;
    struct hzp_tier_page key = key_of(content, token);
    int32_t entry = hzp_tier_find(rig->tier, &key, &id, &oldest);
    if (entry >= 0) {
        assert_int_equal(id, 1000 + content);
        assert_int_equal(oldest, 5);
    }
    return entry;
}

static void put(struct rig *rig, int content, int32_t page)
{
    int32_t token[ROWS];
    bool posted;
    struct hzp_tier_page key = key_of(content, token);
    fill(rig, page, content);
    assert_true(hzp_tier_put(rig->tier, &key, page, &posted));
    assert_true(posted);
}

static void run(int host, int file, bool threadless)
{
    struct rig rig = {0};
    struct hzp_tier_stats stats;
    int room = host + file;
    rig_open(&rig, host, file, threadless);
    for (int i = 0; i < 2 * room; i++) {
        put(&rig, i, i % PAGES);
        settle(&rig, threadless, true);
        fill(&rig, i % PAGES, 99); /* it is given out */
        if (i == room)
            assert_true(hzp_tier_get(rig.tier, found(&rig, 1), 0)); /* used again */
        settle(&rig, threadless, true);
    }
    for (int i = 0; i < 2 * room; i++) {
        int32_t entry = found(&rig, i);
        bool lately = i >= room;
        assert_true((entry >= 0) == lately || i == 1 || i == room);
        if (entry < 0)
            continue;
        assert_true(hzp_tier_get(rig.tier, entry, 3));
        settle(&rig, threadless, true);
        assert_true(holds(&rig, 3, i));
    }
    hzp_tier_read_stats(rig.tier, &stats);
    assert_int_equal(stats.pages, room);
    assert_int_equal(stats.written, 2 * room);
    assert_int_equal(stats.failed, 0);
    hzp_tier_forget(rig.tier, 5);
    assert_true(found(&rig, 2 * room - 1) >= 0);
    hzp_tier_forget(rig.tier, 6);
    assert_int_equal(found(&rig, 2 * room - 1), -1);
    rig_close(&rig);
}

static void pages_come_back(void **state)
{
    for (int threadless = 0; threadless < 2; threadless++) {
        run(5, 0, threadless);
        run(0, 7, threadless);
        run(3, 6, threadless);
    }
}

static void jobs_have_a_bound(void **state)
{
    struct rig rig = {0};
    int32_t token[ROWS];
    bool posted;
    rig_open(&rig, 0, 100, true);
    for (int i = 0; i < HZP_TIER_JOBS; i++)
        put(&rig, i, i);
    struct hzp_tier_page key = key_of(77, token);
    assert_false(hzp_tier_put(rig.tier, &key, 0, &posted));
    assert_false(hzp_tier_get(rig.tier, found(&rig, 0), 0));
    key = key_of(3, token); /* it is there already */
    assert_true(hzp_tier_put(rig.tier, &key, 3, &posted));
    assert_false(posted);
    key.id = 1; /* the same tokens, computed by an older version: the newer page stays */
    key.oldest = 4;
    assert_true(hzp_tier_put(rig.tier, &key, 4, &posted));
    assert_false(posted);
    assert_true(found(&rig, 3) >= 0);
    rig_close(&rig); /* with jobs that are not done */
}

static void damage_is_noticed(void **state)
{
    struct rig rig = {0};
    struct hzp_tier_stats stats;
    rig_open(&rig, 0, 8, true);
    put(&rig, 1, 1);
    put(&rig, 2, 2);
    settle(&rig, true, true);
    damage = true;
    assert_true(hzp_tier_get(rig.tier, found(&rig, 1), 5));
    settle(&rig, true, false);
    damage = false;
    assert_int_equal(found(&rig, 1), -1);
    assert_true(found(&rig, 2) >= 0);
    full = true;
    put(&rig, 3, 3);
    settle(&rig, true, false);
    full = false;
    assert_int_equal(found(&rig, 3), -1);
    hzp_tier_read_stats(rig.tier, &stats);
    assert_int_equal(stats.failed, 2);
    assert_int_equal(stats.pages, 1);
    rig_close(&rig);
}

static void errors_name_the_option(void **state)
{
    struct rig rig = {0};
    struct hzp_err_text err;
    struct hzp_tier *tier;
    rig_open(&rig, 1, 0, true);
    struct hzp_tier_config none = {.pool = rig.pool, .file_bytes = 1 << 20, .dir = "/nonexistent"};
    assert_int_equal(hzp_tier_create(&none, &tier, &err), HZP_EIO);
    assert_non_null(strstr(err.text, "/nonexistent"));
    struct hzp_tier_config small = {.pool = rig.pool, .file_bytes = 5, .dir = "/tmp"};
    assert_int_equal(hzp_tier_create(&small, &tier, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "--prefix-bytes file"));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back), cmocka_unit_test(jobs_have_a_bound),
        cmocka_unit_test(damage_is_noticed), cmocka_unit_test(errors_name_the_option)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
