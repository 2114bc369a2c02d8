/* SPDX-License-Identifier: Apache-2.0 */
/* base/base.h - what every file uses: the C library's headers, which no other file of the product
 * includes (tests/tidy checks it), allocation, and macros.
 *
 * A bug aborts the process: HZP_ASSERT is always on. What a file, a client or a full queue can
 * cause is never an assertion; it is an error code (base/err.h).
 *
 * Thread: any.
 */
#pragma once

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#ifndef __cplusplus
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HZP_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define HZP_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define HZP_MAX(a, b)    ((a) > (b) ? (a) : (b))

/* n rounded up to a multiple of step (step > 0). */
#define HZP_ROUND_UP(n, step) (((n) + (step)-1) / (step) * (step))
#define HZP_DIV_UP(n, step)   (((n) + (step)-1) / (step))

#define HZP_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#if defined(__GNUC__)
#define HZP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define HZP_NORETURN          __attribute__((noreturn))
#define HZP_UNUSED            __attribute__((unused))
#else
#define HZP_PRINTF(fmt, args)
#define HZP_NORETURN
#define HZP_UNUSED
#endif

/* Local variables that are released at the end of their block, however that is left; `return`
 * computes its value before.  HZP_ENDED: a struct, by a function of its address.  HZP_FREED: a
 * pointer, by free(); it is set where it is declared. */
#define HZP_ENDED(fini) __attribute__((cleanup(fini), unused))
#define HZP_FREED       HZP_ENDED(hzp_free_local)

#ifdef __cplusplus
extern "C" {
#endif
void hzp_free_local(void *pointer); /* for HZP_FREED */
HZP_NORETURN void hzp_assert_fail(const char *file, int line, const char *condition);

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
#ifdef __cplusplus
}
#endif

#define HZP_ASSERT(condition)                                                                      \
    ((condition) ? (void)0 : hzp_assert_fail(__FILE__, __LINE__, #condition))

/* For hot paths: checked only in builds with HZP_DEBUG, which are those with tests and those
 * without optimisation. */
#ifdef HZP_DEBUG
#define HZP_DEBUG_ASSERT(condition) HZP_ASSERT(condition)
#else
#define HZP_DEBUG_ASSERT(condition) ((void)sizeof(condition))
#endif
