/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/sabotage.h - whether a simulator notices the faults that can be planted in it.
 *
 * Each kind of sabotage runs in processes of its own, one seed after the other, until one of them
 * ends with an error.  A simulator prints the rule that is broken at the beginning of a line and
 * exits with 1.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sabotage_test {
    int kinds; /* kinds 1 .. kinds - 1 are sabotage; 0 is none */
    uint64_t seeds;
    const char *(*name)(int kind);
    /* The rules meant for it, the beginnings of lines, separated by "|"; NULL: any error counts. */
    const char *(*rules)(int kind);
    void (*run)(uint64_t seed, int kind); /* exits when it finds an error */
};

/* Tries the named kind, or "all", and prints what noticed it.  The exit status: 1 if one was not
 * noticed by a rule meant for it, or there is none of that name. */
int sabotage_try(const struct sabotage_test *t, const char *name);
