/* SPDX-License-Identifier: Apache-2.0 */
/* device/about.h - what this build can compute on, and what devices this machine has, without
 * opening any of them: for people, and for scripts that choose a device.
 *
 * Invariant: texts are not truncated; facts that cannot be determined are left out.
 * Thread: any.
 */
#pragma once

#include "base/err.h"

enum { HZP_ABOUT_FACTS_MAX = 8, HZP_ABOUT_DEVICES_MAX = 16 };

struct hzp_fact {
    char name[24], value[136];
};

struct hzp_about_device {
    char name[96];
    int ordinal;
    char id[40];   /* identifies this device whatever its ordinal; "": not known */
    size_t memory; /* bytes */
    int cores;     /* threads, or SMs */
    struct hzp_fact fact[HZP_ABOUT_FACTS_MAX];
    int facts;
};

struct hzp_about {
    struct hzp_fact build[HZP_ABOUT_FACTS_MAX]; /* about the program */
    int builds;
    struct hzp_fact machine[HZP_ABOUT_FACTS_MAX]; /* about the machine */
    int machines;
    char none[200]; /* why there is no device; "": there is one */
    struct hzp_about_device device[HZP_ABOUT_DEVICES_MAX];
    int devices;
};

/* Fills *ret for the i-th backend in order of preference and returns its name; NULL: i is past the
 * last. */
const char *hzp_device_about(int i, struct hzp_about *ret);

/* Writes a UUID's 16 bytes as text; "" if all are 0. */
void hzp_device_id_text(const void *uuid, char ret[40]);

/* Appends to a list of facts; no effect if the list is full. */
void hzp_fact_add(struct hzp_fact *list, int *count, const char *name, const char *format, ...)
    HZP_PRINTF(4, 5);
