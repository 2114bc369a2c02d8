/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/smoke.h - a main for a fuzz target, so that CI runs it with any compiler.
 *
 * Mutates built-in seeds with a fixed sequence of random numbers for a fixed number of turns or
 * a few seconds, whichever ends first.  A target defines LLVMFuzzerTestOneInput and an array of
 * struct fuzz_seed, and ends in FUZZ_MAIN(array).  With -DHZP_LIBFUZZER there is no main:
 *   clang -fsanitize=fuzzer,address,undefined -DHZP_LIBFUZZER -I. tests/fuzz/fuzz_X.c libhzp.a ...
 * An argument is a file to run once, for instance one that crashed.
 *
 * Thread: main.
 */
#pragma once

#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_seed {
    const void *data;
    size_t size;
};

#define FUZZ_TEXT(text)                                                                            \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

enum { FUZZ_SIZE_MAX = 4096, FUZZ_TURNS = 30000, FUZZ_SECONDS = 5 };

static uint64_t fuzz_state = 1;

static inline uint32_t fuzz_random(uint32_t below)
{
    fuzz_state = fuzz_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(fuzz_state >> 33) % below;
}

/* Applies one change in place; returns the new size. */
static inline size_t fuzz_mutate(uint8_t *data, size_t size)
{
    static const char *const words[] = {"\"",
                                        "[",
                                        "{",
                                        "}",
                                        "]",
                                        ",",
                                        ":",
                                        "-1",
                                        "0",
                                        "null",
                                        "99999999999999999999",
                                        "9223372036854775807",
                                        "1e999",
                                        "\\u0000",
                                        "\\ud800",
                                        "true",
                                        "4294967296",
                                        "\xff",
                                        "0.5"};
    size_t at = size ? fuzz_random((uint32_t)size) : 0, n;
    const char *word = words[fuzz_random(HZP_COUNT(words))];
    switch (fuzz_random(7)) {
    case 0: /* flips a bit */
        if (size)
            data[at] ^= (uint8_t)(1u << fuzz_random(8));
        return size;
    case 1: /* replaces a byte */
        if (size)
            data[at] = (uint8_t)fuzz_random(256);
        return size;
    case 2: /* truncates */
        return fuzz_random(4) ? size : at;
    case 3: /* removes a piece */
        n = fuzz_random((uint32_t)HZP_MIN(size - at, 16) + 1);
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    case 4: /* doubles a piece */
        n = fuzz_random((uint32_t)HZP_MIN(size - at, 64) + 1);
        if (size + n > FUZZ_SIZE_MAX)
            return size;
        memmove(data + at + n, data + at, size - at);
        return size + n;
    case 5: /* changes a digit */
        for (size_t i = at; i < size; i++)
            if (data[i] >= '0' && data[i] <= '9') {
                data[i] = (uint8_t)('0' + fuzz_random(10));
                break;
            }
        return size;
    default: /* inserts a word */
        n = strlen(word);
        if (size + n > FUZZ_SIZE_MAX)
            return size;
        memmove(data + at + n, data + at, size - at);
        memcpy(data + at, word, n);
        return size + n;
    }
}

static inline int fuzz_smoke(const struct fuzz_seed *seed, int seeds, int argc, char **argv)
{
    static uint8_t data[FUZZ_SIZE_MAX];
    if (argc > 1) {
        FILE *file = fopen(argv[1], "r");
        size_t size = file ? fread(data, 1, sizeof(data), file) : 0;
        if (file)
            fclose(file);
        return LLVMFuzzerTestOneInput(data, size);
    }
    uint64_t end = hzp_now_ns() + FUZZ_SECONDS * (uint64_t)1000000000;
    int turn = 0;
    for (; turn < FUZZ_TURNS && hzp_now_ns() < end; turn++) {
        const struct fuzz_seed *from = &seed[turn % seeds];
        size_t size = HZP_MIN(from->size, (size_t)FUZZ_SIZE_MAX);
        memcpy(data, from->data, size);
        for (uint32_t i = turn < seeds ? 0 : 1 + fuzz_random(6); i > 0; i--)
            size = fuzz_mutate(data, size);
        /* an exact copy, so that a sanitizer sees a read past its end */
        uint8_t *copy = malloc(size ? size : 1);
        memcpy(copy, data, size);
        LLVMFuzzerTestOneInput(copy, size);
        free(copy);
    }
    printf("%d inputs\n", turn);
    return 0;
}

/* The last line of a target: defines its main. */
#ifdef HZP_LIBFUZZER
#define FUZZ_MAIN(seeds)
#else
#define FUZZ_MAIN(seeds)                                                                           \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return fuzz_smoke(seeds, HZP_COUNT(seeds), argc, argv);                                    \
    }
#endif
