/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

enum { ALIGN = 64, BLOCK_MIN = 1 << 16 };

struct hzp_arena_block {
    struct hzp_arena_block *next;
    size_t size, used;
    char *data; /* aligned to ALIGN, inside the same allocation */
};

void hzp_arena_init(struct hzp_arena *arena)
{
    arena->first = arena->now = NULL;
}

void hzp_arena_fini(struct hzp_arena *arena)
{
    for (struct hzp_arena_block *b = arena->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    hzp_arena_init(arena);
}

void hzp_arena_clear(struct hzp_arena *arena)
{
    for (struct hzp_arena_block *b = arena->first; b; b = b->next)
        b->used = 0;
    arena->now = arena->first;
}

static struct hzp_arena_block *new_block(size_t size)
{
    struct hzp_arena_block *b = hzp_xmalloc(sizeof(*b) + size + ALIGN);
    b->next = NULL;
    b->size = size;
    b->used = 0;
    b->data = (char *)HZP_ROUND_UP((uintptr_t)(b + 1), (uintptr_t)ALIGN);
    return b;
}

void *hzp_arena_alloc(struct hzp_arena *arena, size_t size)
{
    size = HZP_ROUND_UP(HZP_MAX(size, (size_t)1), (size_t)ALIGN);
    while (arena->now && arena->now->size - arena->now->used < size && arena->now->next)
        arena->now = arena->now->next;
    if (!arena->now || arena->now->size - arena->now->used < size) {
        struct hzp_arena_block *b = new_block(HZP_MAX(size, (size_t)BLOCK_MIN));
        if (arena->now)
            arena->now->next = b;
        else
            arena->first = b;
        arena->now = b;
    }
    void *p = arena->now->data + arena->now->used;
    arena->now->used += size;
    return memset(p, 0, size);
}
