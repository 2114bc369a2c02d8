/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/planted.h - kernels with one bug each, and correct versions of them.
 *
 * Thread: one.  C17 and C++17.
 */
#pragma once

#include "tests/emu/emu.h"

/* name, the fault that it must be reported as */
#define HZP_PLANTED(X)                                                                             \
    X(past_the_end, HZP_EMU_BOUNDS)                                                                \
    X(before_the_begin, HZP_EMU_BOUNDS)                                                            \
    X(other_allocation, HZP_EMU_BOUNDS)                                                            \
    X(host_memory, HZP_EMU_BOUNDS)                                                                 \
    X(past_shared, HZP_EMU_BOUNDS)                                                                 \
    X(past_dynamic, HZP_EMU_BOUNDS)                                                                \
    X(input_written, HZP_EMU_BOUNDS)                                                               \
    X(gap_written, HZP_EMU_BOUNDS)                                                                 \
    X(vector_load, HZP_EMU_MISALIGNED)                                                             \
    X(vector_store, HZP_EMU_MISALIGNED)                                                            \
    X(word_of_halves, HZP_EMU_MISALIGNED)                                                          \
    X(matrix_row, HZP_EMU_MISALIGNED)                                                              \
    X(half_unwritten, HZP_EMU_UNWRITTEN)                                                           \
    X(last_block_s, HZP_EMU_UNWRITTEN)                                                             \
    X(atomic_unwritten, HZP_EMU_UNWRITTEN)                                                         \
    X(write_then_read, HZP_EMU_RACE)                                                               \
    X(read_then_write, HZP_EMU_RACE)                                                               \
    X(two_writers, HZP_EMU_RACE)                                                                   \
    X(plain_count, HZP_EMU_RACE)                                                                   \
    X(lanes_without_syncwarp, HZP_EMU_RACE)                                                        \
    X(sums_reused, HZP_EMU_RACE)                                                                   \
    X(global_no_barrier, HZP_EMU_RACE)                                                             \
    X(two_blocks_store, HZP_EMU_RACE)                                                              \
    X(handed_over_early, HZP_EMU_RACE)                                                             \
    X(taken_unasked, HZP_EMU_RACE)                                                                 \
    X(handed_over_unfenced, HZP_EMU_RACE)                                                          \
    X(taken_unfenced, HZP_EMU_RACE)                                                                \
    X(barrier_in_branch, HZP_EMU_BARRIER)                                                          \
    X(barrier_after_return, HZP_EMU_BARRIER)                                                       \
    X(shuffle_in_branch, HZP_EMU_WARP)                                                             \
    X(mask_too_small, HZP_EMU_WARP)                                                                \
    X(shuffle_and_vote, HZP_EMU_WARP)                                                              \
    X(copy_not_waited, HZP_EMU_COPY)                                                               \
    X(copy_one_too_few, HZP_EMU_COPY)                                                              \
    X(copy_no_barrier, HZP_EMU_RACE)                                                               \
    X(copy_over_readers, HZP_EMU_RACE)                                                             \
    X(copy_left, HZP_EMU_COPY)                                                                     \
    X(copy_misaligned, HZP_EMU_MISALIGNED)                                                         \
    X(bulk_not_waited, HZP_EMU_COPY)                                                               \
    X(bulk_wrong_phase, HZP_EMU_COPY)                                                              \
    X(bulk_expects_more, HZP_EMU_COPY)                                                             \
    X(bulk_expects_less, HZP_EMU_COPY)                                                             \
    X(bulk_left, HZP_EMU_COPY)                                                                     \
    X(bulk_stores_unfenced, HZP_EMU_COPY)                                                          \
    X(bulk_barrier_unfenced, HZP_EMU_COPY)                                                         \
    X(bulk_slot_reused, HZP_EMU_RACE)                                                              \
    X(bulk_one_lane_waits, HZP_EMU_RACE)                                                           \
    X(bulk_misaligned, HZP_EMU_MISALIGNED)                                                         \
    X(bulk_past_the_end, HZP_EMU_BOUNDS)                                                           \
    X(read_before_wait, HZP_EMU_EARLY)                                                             \
    X(never_waits, HZP_EMU_EARLY)                                                                  \
    X(too_many_threads, HZP_EMU_LAUNCH)                                                            \
    X(too_much_shared, HZP_EMU_LAUNCH)

enum hzp_planted {
#define X(name, fault) HZP_PLANTED_##name,
    HZP_PLANTED(X)
#undef X
        HZP_PLANTED_COUNT
};

#ifdef __cplusplus
extern "C" {
#endif

enum { HZP_PLANTED_FLOATS = 256 };

/* Runs it, wrong or correct: io has HZP_PLANTED_FLOATS floats of device memory, in is 16-byte
 * aligned and has as many.  The correct kernels leave in io[i] what hzp_planted_result says, bit
 * for bit. */
void hzp_planted_run(enum hzp_planted which, bool wrong, const float *in, float *io);
float hzp_planted_result(enum hzp_planted which, const float *in, int i);

/* Checks of definitions: c [16][16] = a [16][16] b, a and b bf16, with b as rows (transposed) or
 * columns; the coordinates of every thread of a grid; the results of the lanes' instructions. */
void hzp_planted_product(const uint16_t *a, const uint16_t *b, bool b_rows, float *c);
enum { HZP_PLANTED_COORDINATES = 2 * 3 * 2 * 5 * 3 * 4 };
void hzp_planted_coordinates(
    uint32_t *ret); /* [HZP_PLANTED_COORDINATES], a different number at each place */
enum { HZP_PLANTED_LANE_KINDS = 13 };
void hzp_planted_lanes(uint32_t *ret); /* [HZP_PLANTED_LANE_KINDS][32] */
/* Rows `row` and the 15 after it, of row_bytes (64, 128, 256), as a bulk copy leaves them. */
void hzp_planted_box(const uint8_t *rows, int count, int row_bytes, int row, uint8_t *ret);
void hzp_planted_sums(const uint32_t *x, uint32_t *ret, int count); /* ret[0] += sum, by atomics */

#ifdef __cplusplus
}
#endif
