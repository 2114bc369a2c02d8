/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/choice.h - which way products of a class are computed where a CPU has several: own
 * panels, tiles, or the library.
 *
 * Measured once at the device's start and kept in a file beside the other things that were measured
 * of this machine ($XDG_CACHE_HOME/hzpserve or ~/.cache/hzpserve); a file that is not exactly as
 * written is measured anew.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"

enum hzp_cpu_way { HZP_WAY_PANELS, HZP_WAY_TILES, HZP_WAY_LIBRARY, HZP_WAYS };

/* Classes: the transposition of a product, and whether c has more than HZP_CHOICE_ROWS rows. */
enum { HZP_CHOICE_ROWS = 192, HZP_CHOICE_CLASSES = 6 };

struct hzp_cpu_choice {
    uint8_t way[HZP_CHOICE_CLASSES];
};

int hzp_choice_class(const struct hzp_matmul_args *args);

/* Seconds of a product of this class, computed this way; less than 0: it cannot be. */
typedef double hzp_choice_time_fn(void *ctx, int class, enum hzp_cpu_way way);

/* Chooses each class's fastest way by the least of several measurements, taken in turns; panels
 * where none can be measured. */
struct hzp_cpu_choice hzp_choice_measure(hzp_choice_time_fn *time, void *ctx);

/* identity: names the CPU, its threads and the library's version.  False: there is no such file, or
 * it is not as written, or of another identity. */
bool hzp_choice_read(const char *path, const char *identity, struct hzp_cpu_choice *ret);

/* Best effort, whole or not at all: replaces the file. */
void hzp_choice_write(const char *path, const char *identity, const struct hzp_cpu_choice *choice);

/* Where the file is kept, and makes its folder.  False: there is no home. */
bool hzp_choice_path(char *ret, size_t size);
