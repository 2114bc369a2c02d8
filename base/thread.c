/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include "base/err.h"

#include <stdio.h>
#include <time.h>

int hzp_thread_start(pthread_t *ret, const char *name, void *(*run)(void *), void *arg)
{
    if (pthread_create(ret, NULL, run, arg))
        return HZP_ENOMEM;
    char short_name[16];
    snprintf(short_name, sizeof(short_name), "%s", name);
    pthread_setname_np(*ret, short_name);
    return HZP_OK;
}

uint64_t hzp_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void hzp_wake_init(struct hzp_wake *wake)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&wake->lock, NULL);
    pthread_cond_init(&wake->cond, &attr);
    pthread_condattr_destroy(&attr);
    wake->poked = false;
}

void hzp_wake_fini(struct hzp_wake *wake)
{
    pthread_cond_destroy(&wake->cond);
    pthread_mutex_destroy(&wake->lock);
}

void hzp_wake_poke(struct hzp_wake *wake)
{
    pthread_mutex_lock(&wake->lock);
    wake->poked = true;
    pthread_cond_signal(&wake->cond);
    pthread_mutex_unlock(&wake->lock);
}

bool hzp_wake_wait(struct hzp_wake *wake, uint64_t wait_ns)
{
    uint64_t now = hzp_now_ns();
    uint64_t end = wait_ns > UINT64_MAX - now ? UINT64_MAX : now + wait_ns;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000u),
                             .tv_nsec = (long)(end % 1000000000u)};
    pthread_mutex_lock(&wake->lock);
    while (!wake->poked) {
        if (end == UINT64_MAX)
            pthread_cond_wait(&wake->cond, &wake->lock);
        else if (pthread_cond_timedwait(&wake->cond, &wake->lock, &until))
            break;
    }
    bool poked = wake->poked;
    wake->poked = false;
    pthread_mutex_unlock(&wake->lock);
    return poked;
}
