/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/test_sample_parts.c - whatever a row wants, no block of its kernels reads more of it
 * than a part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/device.h"
#include "device/philox.h"
#include "tests/emu/emu.h"

#include <cuda_runtime_api.h>

/* PART: as in device/cuda/sample.cu.  MOST: a part, a thread's second look at its close candidates,
 * each thread's load of the logit that is ranked, and the edits. */
enum { PART = 8192, PARTS = 8, VOCAB = PART * PARTS, EDITS = 40, MOST = PART + PART / 4 };

struct rig {
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_sample_args a;
    struct hzp_sample_row *row;
};

static void *memory(size_t bytes)
{
    void *ret = NULL;
    assert_int_equal(cudaMalloc(&ret, bytes), cudaSuccess);
    return ret;
}

static int rig_open(void **state)
{
    static struct rig rig;
    struct hzp_err_text err;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &rig.dev, &err),
                     0);
    assert_int_equal(hzp_lane_open(rig.dev, HZP_BOUND_COMPUTE, &rig.lane), 0);
    float *logit = memory(VOCAB * sizeof(*logit));
    for (uint32_t i = 0; i < VOCAB; i++)
        logit[i] = (float)(hzp_philox(7, i, 0, 0, 0) % 1000) / 100;
    struct hzp_logit_edit *edit = memory(EDITS * sizeof(*edit));
    for (int32_t i = 0; i < EDITS; i++)
        edit[i] = (struct hzp_logit_edit){.token = i * 1600 + 3, .count_out = 1, .seen = 1};
    uint32_t *mask = memory(hzp_mask_words(VOCAB) * sizeof(*mask));
    for (int32_t i = 0; i < hzp_mask_words(VOCAB); i++)
        mask[i] = 0x55555555u;
    rig.row = memory(sizeof(*rig.row));
    rig.a = (struct hzp_sample_args){.logits = {logit, 1, VOCAB, VOCAB, HZP_F32},
                                     .row = rig.row,
                                     .edit = edit,
                                     .mask = mask,
                                     .token = memory(sizeof(int32_t)),
                                     .logprob = memory(sizeof(float)),
                                     .rank = memory(sizeof(int32_t))};
    *state = &rig;
    return 0;
}

static int rig_close(void **state)
{
    struct rig *rig = *state;
    cudaFree(rig->a.logits.ptr);
    cudaFree((void *)rig->a.edit);
    cudaFree((void *)rig->a.mask);
    cudaFree(rig->row);
    cudaFree(rig->a.token);
    cudaFree(rig->a.logprob);
    cudaFree(rig->a.rank);
    hzp_lane_close(rig->lane);
    hzp_device_close(rig->dev);
    return 0;
}

/* How many logits the busiest block reads that draws such a row. */
static uint64_t busiest(struct rig *rig, struct hzp_sample_row row)
{
    row.repetition = 1.3f;
    row.frequency = 0.5f;
    row.given = -1;
    *rig->row = row;
    hzp_emu_busiest(rig->a.logits.ptr, VOCAB * sizeof(float));
    assert_int_equal(hzp_op_sample(rig->lane, &rig->a), 0);
    return hzp_emu_busiest(NULL, 0);
}

static void test_parts(void **state)
{
    static const struct hzp_sample_row kinds[] = {
        {.top_p = 1},
        {.temperature = 1, .top_p = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f},
        {.temperature = 1, .top_p = 1, .top_k = 50},
        {.temperature = 0.3f, .top_p = 0.7f},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (int kind = 0; kind < 4; kind++) {
            struct hzp_sample_row row = kinds[i];
            row.edits = kind & 1 ? EDITS : 0;
            row.mask = kind & 2 ? 1 : 0;
            uint64_t most = busiest(*state, row);
            print_message("temperature %g top_k %d top_p %g min_p %g%s%s: %llu\n",
                          (double)row.temperature, row.top_k, (double)row.top_p, (double)row.min_p,
                          row.edits ? ", edits" : "", row.mask ? ", mask" : "",
                          (unsigned long long)most);
            assert_in_range(most, PART, MOST);
        }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts, rig_open, rig_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
