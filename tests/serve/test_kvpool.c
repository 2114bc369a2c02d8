/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's invariant under random holders: no page is given out twice, none is lost. */
#include "serve/kvpool.h"
#include "tests/serve/seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 37, PAGE_ROWS = 8, HOLDERS = 12 };

struct holder {
    int32_t taken, page[PAGES];
};

static struct hzp_model_config config = {
    .layers = 3, .width = 16, .vocab = 32, .heads = {.heads = 4, .kv_heads = 2, .dim = 4}};

static struct hzp_device *open_ref(void)
{
    struct hzp_device *dev = NULL;
    struct hzp_err_text err;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, &err), 0);
    return dev;
}

static void layers_lie_apart(void **state)
{
    struct hzp_device *dev = open_ref();
    struct hzp_model model = {.dev = dev, .config = &config, .act = HZP_F32};
    struct hzp_kvpool *pool = NULL;
    assert_int_equal(hzp_kvpool_create(&model, PAGES, PAGE_ROWS, &pool), 0);
    size_t side = (size_t)PAGES * 2 * PAGE_ROWS * 4 * sizeof(float);
    assert_true(hzp_kvpool_bytes(&config, HZP_F32, PAGES, PAGE_ROWS) >= 2 * 3 * side);
    const struct hzp_kv *layer = hzp_kvpool_layers(pool);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(layer[i].pages, PAGES);
        assert_int_equal(layer[i].page_rows, PAGE_ROWS);
        memset(layer[i].k, 2 * i + 1, side); /* the sanitizer sees an overrun */
        memset(layer[i].v, 2 * i + 2, side);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(((char *)layer[i].k)[side - 1], 2 * i + 1);
        assert_int_equal(((char *)layer[i].v)[0], 2 * i + 2);
    }
    hzp_kvpool_destroy(pool);
    hzp_device_close(dev);
}

/* Codes and scales lie apart too; a page that is read and written back elsewhere is there in all
 * layers, and no other page changes. */
static void narrow_pages_move_whole(void **state)
{
    enum { ROWS = PAGES * 2 * PAGE_ROWS, PART = 2 * PAGE_ROWS };
    struct hzp_device *dev = open_ref();
    struct hzp_model model = {.dev = dev, .config = &config, .act = HZP_BF16, .kv_e4m3 = true};
    struct hzp_kvpool *pool = NULL;
    assert_int_equal(hzp_kvpool_create(&model, PAGES, PAGE_ROWS, &pool), 0);
    size_t page = 3 * 2 * PART * (4 + sizeof(float));
    assert_int_equal(hzp_kvpool_page_bytes(pool), page);
    assert_int_equal(hzp_kvpool_bytes(&config, HZP_E4M3, PAGES, PAGE_ROWS) / (PAGES * page), 1);
    const struct hzp_kv *layer = hzp_kvpool_layers(pool);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(layer[i].type, HZP_E4M3);
        memset(layer[i].k, 4 * i + 1, ROWS * 4);
        memset(layer[i].v, 4 * i + 2, ROWS * 4);
        for (int r = 0; r < ROWS; r++) {
            layer[i].k_scale[r] = (float)(1000 * i + r);
            layer[i].v_scale[r] = -(float)(1000 * i + r);
        }
        memset((char *)layer[i].v + 5 * PART * 4, 100 + i, PART * 4); /* page 5 */
    }
    char *host = malloc(page);
    assert_int_equal(hzp_kvpool_read_page(pool, 5, host), 0);
    assert_int_equal(hzp_kvpool_write_page(pool, 9, host), 0);
    free(host);
    for (int i = 0; i < 3; i++)
        for (int r = 0; r < ROWS; r++) {
            int from = r / PART == 9 ? r - 4 * PART : r, p = r / PART;
            assert_true(layer[i].k_scale[r] == (float)(1000 * i + from));
            assert_true(layer[i].v_scale[r] == -(float)(1000 * i + from));
            assert_int_equal(((char *)layer[i].k)[4 * r + 3], 4 * i + 1);
            assert_int_equal(((char *)layer[i].v)[4 * r], p == 5 || p == 9 ? 100 + i : 4 * i + 2);
        }
    hzp_kvpool_destroy(pool);
    hzp_device_close(dev);
}

/* Only the pages that are taken first are written, and no other byte. */
static void touched(void **state)
{
    struct hzp_device *dev = open_ref();
    struct hzp_model model = {.dev = dev, .config = &config, .act = HZP_F32};
    struct hzp_kvpool *pool = NULL;
    bool nan = getenv("HZP_POISON") != NULL;
    assert_int_equal(hzp_kvpool_create(&model, PAGES, PAGE_ROWS, &pool), 0);
    const struct hzp_kv *layer = hzp_kvpool_layers(pool);
    size_t page = (size_t)2 * PAGE_ROWS * 4 * sizeof(float), side = PAGES * page;
    for (int i = 0; i < 3; i++) {
        memset(layer[i].k, 7, side);
        memset(layer[i].v, 7, side);
    }
    assert_int_equal(hzp_kvpool_touch(pool, 2), 0);
    assert_true(hzp_kvpool_take(pool) < 2 && hzp_kvpool_take(pool) < 2);
    for (int i = 0; i < 3; i++)
        for (size_t b = 0; b < side; b++) {
            assert_int_equal(((char *)layer[i].k)[b], b < 2 * page && !nan ? 0 : 7);
            assert_int_equal(((char *)layer[i].v)[b], b < 2 * page && !nan ? 0 : 7);
        }
    assert_int_equal(hzp_kvpool_touch(pool, PAGES + 100), 0); /* all pages there are */
    assert_int_equal(((char *)layer[2].v)[side - 1], nan ? 7 : 0);
    hzp_kvpool_destroy(pool);
    hzp_device_close(dev);
}

/* owner[p]: the holder of page p, -1: none. */
static void step_of(struct hzp_kvpool *pool, struct holder *h, int who, int *owner, uint64_t *seed)
{
    if (seeded(seed, 12) == 0) {
        hzp_kvpool_release(pool, h->page, h->taken);
        for (int32_t i = 0; i < h->taken; i++)
            owner[h->page[i]] = -1;
        h->taken = 0;
        return;
    }
    int32_t owned = 0;
    for (int i = 0; i < PAGES; i++)
        owned += owner[i] >= 0;
    assert_int_equal(hzp_kvpool_free_pages(pool), PAGES - owned);
    int32_t page = hzp_kvpool_take(pool);
    if (owned == PAGES) {
        assert_int_equal(page, -1);
        return;
    }
    assert_in_range(page, 0, PAGES - 1);
    assert_int_equal(owner[page], -1);
    owner[page] = who;
    h->page[h->taken++] = page;
}

static void no_page_has_two_owners(void **state)
{
    struct hzp_device *dev = open_ref();
    struct hzp_model model = {.dev = dev, .config = &config, .act = HZP_F32};
    for (uint64_t run = 1; run <= 20; run++) {
        struct hzp_kvpool *pool = NULL;
        assert_int_equal(hzp_kvpool_create(&model, PAGES, PAGE_ROWS, &pool), 0);
        struct holder holder[HOLDERS] = {0};
        int owner[PAGES];
        for (int i = 0; i < PAGES; i++)
            owner[i] = -1;
        uint64_t seed = run;
        for (int t = 0; t < 5000; t++) {
            int who = (int)seeded(&seed, HOLDERS);
            step_of(pool, &holder[who], who, owner, &seed);
            struct hzp_kvpool_stats stats;
            hzp_kvpool_read_stats(pool, &stats);
            int32_t taken = 0;
            for (int i = 0; i < HOLDERS; i++)
                taken += holder[i].taken;
            assert_int_equal(stats.taken, taken);
            assert_int_equal(stats.pages, PAGES);
        }
        for (int i = 0; i < HOLDERS; i++)
            hzp_kvpool_release(pool, holder[i].page, holder[i].taken);
        bool seen[PAGES] = {false};
        for (int i = 0; i < PAGES; i++) {
            int32_t page = hzp_kvpool_take(pool);
            assert_false(seen[page]);
            seen[page] = true;
        }
        hzp_kvpool_destroy(pool);
    }
    hzp_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_lie_apart),
        cmocka_unit_test(narrow_pages_move_whole),
        cmocka_unit_test(touched),
        cmocka_unit_test(no_page_has_two_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
