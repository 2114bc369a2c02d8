/* SPDX-License-Identifier: Apache-2.0 */
/* base/hash.h - a hash of bytes that is the same on every machine: for names, and to notice files
 * and messages that were damaged or are others.  It does not withstand an attacker.
 *
 * Thread: any; pure.
 */
#pragma once

#include "base/base.h"

/* FNV-1a, continued from hash; begin with HZP_FNV. */
#define HZP_FNV 0xcbf29ce484222325u
uint64_t hzp_fnv(uint64_t hash, const void *data, size_t size);
