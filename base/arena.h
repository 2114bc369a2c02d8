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

/* malloc, calloc and realloc for small objects. When the machine is out of memory they write one
 * line with the size to standard error and abort: an error path at each call would never be tested.
 * Never with a size that a client chose; large buffers are allocated with an error path instead. */
void *hzp_xmalloc(size_t size);
void *hzp_xcalloc(size_t n, size_t size);
void *hzp_xrealloc(void *old, size_t size);
char *hzp_xstrdup(const char *text);

/* An array with room for at least `need` elements of this size: the same one if it has that, else
 * one of at least twice the room with the same contents.  *room: elements it has room for; 0 with
 * array NULL at first. */
void *hzp_xgrow(void *array, int32_t *room, int32_t need, size_t size);
