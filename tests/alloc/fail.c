/* SPDX-License-Identifier: Apache-2.0 */
/* tests/alloc/fail.c - a library to preload that makes one allocation of the process fail.
 *
 *     HZP_FAIL_MIN=BYTES    only allocations of at least this size are counted
 *     HZP_FAIL_AT=N         the N-th of them returns NULL; 0: none
 *     HZP_FAIL_COUNT=FILE   how many there were, written when the process exits
 *
 * Every allocation after the beginning of main() counts: those of hzp_xmalloc, of the devices and
 * of libraries.  Allocations of libraries before main() are not tested: the CUDA runtime's
 * initialisation does not survive a failure.  Uses glibc's own names of the functions it replaces.
 *
 * Thread: any.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t align, size_t size);

static atomic_long count;
static long fail_at;
static size_t fail_min = (size_t)-1; /* nothing counts before main() */

static bool fails(size_t size)
{
    if (size < fail_min || atomic_fetch_add(&count, 1) + 1 != fail_at)
        return false;
    errno = ENOMEM;
    return true;
}

typedef int main_fn(int argc, char **argv, char **env);
static main_fn *real_main;

static int counted_main(int argc, char **argv, char **env)
{
    const char *at = getenv("HZP_FAIL_AT"), *min = getenv("HZP_FAIL_MIN");
    fail_at = at ? strtol(at, NULL, 10) : 0;
    fail_min = min ? strtoul(min, NULL, 10) : 0;
    return real_main(argc, argv, env);
}

/* What a program's start calls: it runs constructors, then main. */
int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    __typeof__(&__libc_start_main) next =
        (__typeof__(&__libc_start_main))(uintptr_t)dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main;
    return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

__attribute__((destructor)) static void write_count(void)
{
    const char *name = getenv("HZP_FAIL_COUNT");
    long n = atomic_load(&count);
    FILE *file = name ? fopen(name, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", n);
        fclose(file);
    }
}

void *malloc(size_t size)
{
    return fails(size) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails(n * size) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    return fails(size) ? NULL : __libc_realloc(old, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return fails(size) ? NULL : __libc_memalign(align, size);
}

void *memalign(size_t align, size_t size);
void *memalign(size_t align, size_t size)
{
    return fails(size) ? NULL : __libc_memalign(align, size);
}

int posix_memalign(void **ret, size_t align, size_t size)
{
    void *p = fails(size) ? NULL : __libc_memalign(align, size);
    if (!p)
        return ENOMEM;
    *ret = p;
    return 0;
}
