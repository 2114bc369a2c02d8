/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/test_attn_lay.c - the kernel that writes lengths, offsets and page numbers for cuDNN's
 * plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/cuda/cudnn.h"

#include <cuda_runtime_api.h>

enum { STRIDE = 150, LINES = 40 };

static int32_t *memory(size_t count)
{
    void *ret = NULL;
    assert_int_equal(cudaMalloc(&ret, count * sizeof(int32_t)), cudaSuccess);
    return ret;
}

static void launch(const struct hzp_attn_lay *lay)
{
    struct hzp_cuda_device dev = {.ordinal = 0};
    struct hzp_cuda_lane lane = {.base = {.dev = &dev.base}};
    assert_int_equal(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, 0), 0);
    assert_int_equal(hzp_cuda_attn_lay(&lane.base, lay), 0);
    assert_int_equal(cudaStreamSynchronize(lane.stream), 0);
    cudaStreamDestroy(lane.stream);
}

static void check_lists(const struct hzp_attn_lay *a)
{
    int end = a->segs ? a->row0[a->segs - 1] + a->rows[a->segs - 1] : 0;
    for (int i = 0; i < a->room; i++) {
        assert_int_equal(a->to[i], i < a->segs ? a->rows[i] : 0);
        assert_int_equal(a->to[HZP_ATTN_LAY_ROW + i], i < a->segs ? a->ctx[i] : 0);
    }
    for (int k = 0; k < HZP_ATTN_LAY_MATS; k++)
        for (int i = 0; i <= a->room; i++)
            assert_int_equal(a->to[(2 + k) * HZP_ATTN_LAY_ROW + i],
                             (i < a->segs ? a->row0[i] : end) * a->stride[k]);
}

static void check_pages(const struct hzp_attn_lay *a)
{
    for (int i = 0; i < a->segs; i++) {
        const int32_t *from = a->page + (a->line ? a->line[a->seg[i]] : a->seg[i]) * STRIDE;
        for (int p = 0; p < STRIDE; p++)
            assert_int_equal(a->pages[i * STRIDE + p], from[p * a->page_rows < a->ctx[i] ? p : 0]);
    }
}

static void check(int segs, int room, bool pages, bool lines)
{
    struct hzp_attn_lay a = {.segs = segs,
                             .room = room,
                             .stride = {384, 256, 4, 400, 264},
                             .page_stride = STRIDE,
                             .page_rows = 16};
    int32_t *table = memory(LINES * STRIDE), *line = memory(LINES);
    a.to = memory(HZP_ATTN_LAY_LISTS * HZP_ATTN_LAY_ROW);
    for (int i = 0; i < LINES * STRIDE; i++)
        table[i] = i;
    for (int i = 0; i < LINES; i++)
        line[i] = LINES - 1 - i;
    for (int i = 0; i < segs; i++) {
        a.seg[i] = i + 3;
        a.row0[i] = i * 70;
        a.rows[i] = 1 + i * 7 % 60;
        a.ctx[i] = a.rows[i] + i * 131 % 2000;
    }
    if (pages) {
        a.pages = memory((size_t)room * STRIDE);
        a.page = table;
        a.line = lines ? line : NULL;
    }
    launch(&a);
    check_lists(&a);
    if (pages)
        check_pages(&a);
    cudaFree(table);
    cudaFree(line);
    cudaFree(a.to);
    cudaFree(a.pages);
}

static void test_lists(void **state)
{
    check(1, 1, false, false);
    check(5, 32, false, false);
    check(32, 32, false, false);
}

static void test_pages(void **state)
{
    check(1, 4, true, false);
    check(32, 32, true, false);
    check(7, 32, true, true);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists),
                                              cmocka_unit_test(test_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
