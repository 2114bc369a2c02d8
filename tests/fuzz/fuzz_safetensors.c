/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused with one line, or opened with every tensor byte
   readable. */
#include "tests/fuzz/smoke.h"
#include "weights/safetensors.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* volatile: the reads must not be optimized away */
static volatile unsigned sum;

static void check(bool right)
{
    if (!right)
        __builtin_trap();
}

static void read_all(const struct hzp_safetensors *st)
{
    for (int32_t i = 0; i < hzp_safetensors_count(st); i++) {
        const struct hzp_st_tensor *t = hzp_safetensors_at(st, i);
        unsigned char byte[8];
        check(hzp_safetensors_find(st, t->name) == t);
        for (int64_t j = 0; j < t->elements; j++) {
            check(hzp_safetensors_read(t, j, 1, byte, NULL) == HZP_OK);
            sum += byte[0];
        }
    }
    hzp_safetensors_meta(st, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    check(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    struct hzp_safetensors *st = NULL;
    struct hzp_err_text err = {.text = ""};
    int r = hzp_safetensors_open(path, &st, &err);
    check((r == HZP_OK) == (st != NULL) && (r == HZP_OK) == (err.text[0] == 0));
    check(!strchr(err.text, '\n'));
    if (st)
        read_all(st);
    hzp_safetensors_close(st);
    return 0;
}

/* Header length, header, data. */
static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("\x8e\0\0\0\0\0\0\0"
              "{\"__metadata__\":{\"format\":\"pt\"},"
              "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
              "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[8,12]}}"
              "abcdefghijkl"),
    FUZZ_TEXT("\x47\0\0\0\0\0\0\0"
              "{\"\\u00e4\\ud83d\\ude00\\n\":{\"dtype\":\"U8\",\"shape\":[],"
              "\"data_offsets\":[0,1]}}"
              "x"),
    FUZZ_TEXT("\2\0\0\0\0\0\0\0{}"),
};

FUZZ_MAIN(seeds)
