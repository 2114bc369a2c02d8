/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/test_link_sum.c - the kernel that adds what ranks have sent gives the bits of the links
 * of host memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/cuda/link.h"
#include "mesh/link/backend.h"

#include <cuda_runtime_api.h>

enum { MEMBERS = 5, STRIDE = 70000 };

static float *memory(size_t count)
{
    void *ret = NULL;
    assert_int_equal(cudaMalloc(&ret, count * sizeof(float)), cudaSuccess);
    return ret;
}

static void check(size_t elements, int members, int index, bool onto)
{
    float *others = memory(MEMBERS * (size_t)STRIDE), *own = memory(STRIDE), *dst = memory(STRIDE);
    float *want = malloc(STRIDE * sizeof(float));
    const void *piece[MEMBERS];
    for (size_t i = 0; i < MEMBERS * (size_t)STRIDE; i++)
        others[i] = 1.0f / (float)(1 + i * 2654435761u % 4093);
    for (size_t i = 0; i < STRIDE; i++) {
        own[i] = 1.0f / (float)(1 + i % 509);
        dst[i] = want[i] = 1e-3f * (float)(i % 31);
    }
    struct hzp_link_sum sum = {.dst = dst,
                               .own = own,
                               .others = others,
                               .stride = STRIDE,
                               .elements = elements,
                               .members = members,
                               .index = index,
                               .onto = onto};
    for (int m = 0; m < members; m++)
        piece[m] = m == index ? own : others + (size_t)m * STRIDE;
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    assert_int_equal(hzp_cuda_link_sum(&sum, stream), 0);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    hzp_wire_sum(HZP_WIRE_F32, want, piece, members, elements, onto);
    assert_memory_equal(dst, want, STRIDE * sizeof(float)); /* nothing behind it was written */
    cudaStreamDestroy(stream);
    cudaFree(others);
    cudaFree(own);
    cudaFree(dst);
    free(want);
}

static void test_sums(void **state)
{
    static const size_t sizes[] = {0, 1, 255, 256, 1000, STRIDE};
    for (int i = 0; i < HZP_COUNT(sizes); i++)
        for (int onto = 0; onto < 2; onto++) {
            check(sizes[i], MEMBERS, i % MEMBERS, onto);
            check(sizes[i], 1 + i % MEMBERS, 0, onto);
        }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
