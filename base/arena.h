/* SPDX-License-Identifier: Apache-2.0 */
/* base/arena.h - memory that lives exactly as long as its owner.
 *
 * A chain of blocks; allocation never fails (small host allocations abort, by design) and nothing
 * is freed singly. A step's or a micro-batch's op arguments live in one.
 *
 * Thread: whoever owns the arena.
 */
#ifndef HZP_BASE_ARENA_H
#define HZP_BASE_ARENA_H

#include "base/base.h"

struct hzp_arena_block;

struct hzp_arena {
    struct hzp_arena_block *first, *now;
};

void hzp_arena_init(struct hzp_arena *arena);
void hzp_arena_fini(struct hzp_arena *arena);

/* Forgets everything allocated, keeps the blocks: after the first turns a step allocates
 * nothing. */
void hzp_arena_clear(struct hzp_arena *arena);

/* size bytes, zeroed, aligned to 64; valid until clear or fini. */
void *hzp_arena_alloc(struct hzp_arena *arena, size_t size);

#define HZP_ARENA_NEW(arena, type)      ((type *)hzp_arena_alloc(arena, sizeof(type)))
#define HZP_ARENA_ARRAY(arena, type, n) ((type *)hzp_arena_alloc(arena, sizeof(type) * (size_t)(n)))

/* malloc, calloc and realloc that abort when the machine is out of memory: for small things whose
 * error path would never run and so would be wrong. Never with a size that a client chose. */
void *hzp_xmalloc(size_t size);
void *hzp_xcalloc(size_t n, size_t size);
void *hzp_xrealloc(void *old, size_t size);
char *hzp_xstrdup(const char *text);

#endif
