/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

void hzp_free_local(void *pointer)
{
    free(*(void **)pointer);
}

void hzp_assert_fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "hzpserve: bug: %s:%d: assertion failed: %s\n", file, line, condition);
    abort();
}

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
