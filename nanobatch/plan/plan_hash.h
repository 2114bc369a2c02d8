/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/plan/plan_hash.h - whether two ranks have built the same plan.
 *
 * Thread: any; pure.
 */
#pragma once

#include "nanobatch/plan/plan.h"

/* Hashes what plans of one step have in common on all ranks that compute it together: each
 * item's op, lane, tenants, layer, rows and waits, and the lanes' shares.  Arguments are left out:
 * they hold addresses. */
uint64_t hzp_plan_hash(const struct hzp_plan *plan);

/* The hash of `count` numbers, continuing `hash` (0 at first). */
uint64_t hzp_hash_numbers(uint64_t hash, const int32_t *number, int32_t count);
