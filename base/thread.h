/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h - named threads, the clock, and a wakeup that cannot be lost.
 *
 * Thread: any.
 */
#ifndef HZP_BASE_THREAD_H
#define HZP_BASE_THREAD_H

#include "base/base.h"

#include <pthread.h>

/* Starts a thread; name (at most 15 bytes) is what `top -H` shows. HZP_ENOMEM: none to be had. */
int hzp_thread_start(pthread_t *ret, const char *name, void *(*run)(void *), void *arg);

/* Monotonic nanoseconds. */
uint64_t hzp_now_ns(void);

/* A sticky wakeup: poke before wait is not lost. One waiter. */
struct hzp_wake {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool poked;
};

void hzp_wake_init(struct hzp_wake *wake);
void hzp_wake_fini(struct hzp_wake *wake);
void hzp_wake_poke(struct hzp_wake *wake);

/* Waits until poked or for at most wait_ns (UINT64_MAX: without limit); clears the poke.
 * True: it was poked. */
bool hzp_wake_wait(struct hzp_wake *wake, uint64_t wait_ns);

#endif
