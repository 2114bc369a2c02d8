/* SPDX-License-Identifier: Apache-2.0 */
/* base/arena.h - memory that lives exactly as long as its owner.
 *
 * A chain of blocks. Allocation never fails: like hzp_xmalloc it aborts when memory is exhausted.
 * Single allocations are not freed. The op arguments of a step or a micro-batch are in one arena.
 *
 * Thread: the owner's.
 */
#pragma once

#include "base/base.h"

struct hzp_arena_block;

struct hzp_arena {
    struct hzp_arena_block *first, *now;
};

/* Empty; fini frees everything that came from it. */
void hzp_arena_init(struct hzp_arena *arena);
void hzp_arena_fini(struct hzp_arena *arena);

/* Invalidates all allocations and keeps the blocks for reuse, so that steps stop calling malloc
 * once the blocks are large enough. */
void hzp_arena_clear(struct hzp_arena *arena);

/* size bytes, zeroed, aligned to 64; valid until clear or fini. */
void *hzp_arena_alloc(struct hzp_arena *arena, size_t size);

#define HZP_ARENA_ARRAY(arena, type, n) ((type *)hzp_arena_alloc(arena, sizeof(type) * (size_t)(n)))
