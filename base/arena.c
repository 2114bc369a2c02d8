/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

enum { ALIGN = 64, BLOCK_MIN = 1 << 16 };

struct hzp_arena_block {
    struct hzp_arena_block *next;
    size_t size, used;
    char *data; /* aligned to ALIGN, inside the same allocation */
};

static HZP_NORETURN void out_of_memory(size_t size)
{
    fprintf(stderr, "hzpserve: out of memory (%zu bytes)\n", size);
    abort();
}

void *hzp_xmalloc(size_t size)
{
    void *p = malloc(size ? size : 1);
    if (!p)
        out_of_memory(size);
    return p;
}

void *hzp_xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p)
        out_of_memory(n * size);
    return p;
}

void *hzp_xrealloc(void *old, size_t size)
{
    void *p = realloc(old, size ? size : 1);
    if (!p)
        out_of_memory(size);
    return p;
}

char *hzp_xstrdup(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(hzp_xmalloc(size), text, size);
}

void *hzp_xgrow(void *array, int32_t *room, int32_t need, size_t size)
{
    if (need <= *room)
        return array;
    *room = HZP_MAX(HZP_MAX(2 * *room, 16), need);
    return hzp_xrealloc(array, (size_t)*room * size);
}

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
