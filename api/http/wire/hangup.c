/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/hangup.h"

#include "base/thread.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

struct watch {
    void (*left)(void *ctx);
    void *ctx;
    uint32_t turn; /* distinguishes this use of the socket's number from earlier ones */
};

struct hzp_hangup {
    int epoll, stop; /* stop: an eventfd */
    pthread_t thread;
    struct hzp_lock lock;
    /* under lock */
    struct watch *watch; /* [room], by socket number */
    int room;
    uint32_t turn;
};

static const uint64_t STOP = UINT64_MAX;

static void *watch_main(void *arg)
{
    struct hzp_hangup *h = arg;
    hzp_thread_yielding(true);
    for (;;) {
        struct epoll_event event[32];
        int n = epoll_wait(h->epoll, event, HZP_COUNT(event), -1);
        if (n < 0 && errno != EINTR)
            return NULL;
        for (int i = 0; i < n; i++) {
            if (event[i].data.u64 == STOP)
                return NULL;
            int fd = (int)(event[i].data.u64 & UINT32_MAX);
            uint32_t turn = (uint32_t)(event[i].data.u64 >> 32);
            /* Calls `left` under the lock, so that hzp_hangup_forget waits for a running call. */
            HZP_LOCKED(&h->lock);
            if (fd < h->room && h->watch[fd].left && h->watch[fd].turn == turn)
                h->watch[fd].left(h->watch[fd].ctx);
        }
    }
}

int hzp_hangup_create(struct hzp_hangup **ret)
{
    struct hzp_hangup *h = hzp_xcalloc(1, sizeof(*h));
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->stop = eventfd(0, EFD_CLOEXEC);
    hzp_lock_init(&h->lock, HZP_LOCK_HANGUP);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = STOP};
    if (h->epoll < 0 || h->stop < 0 || epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->stop, &event) ||
        hzp_thread_start(&h->thread, "hzp-hangup", watch_main, h) < 0) {
        if (h->epoll >= 0)
            close(h->epoll);
        if (h->stop >= 0)
            close(h->stop);
        hzp_lock_fini(&h->lock);
        free(h);
        return HZP_EIO;
    }
    *ret = h;
    return HZP_OK;
}

void hzp_hangup_destroy(struct hzp_hangup *h)
{
    if (!h)
        return;
    ssize_t n = write(h->stop, &(uint64_t){1}, sizeof(uint64_t));
    HZP_ASSERT(n == sizeof(uint64_t));
    pthread_join(h->thread, NULL);
    close(h->epoll);
    close(h->stop);
    hzp_lock_fini(&h->lock);
    free(h->watch);
    free(h);
}

int hzp_hangup_watch(struct hzp_hangup *h, int fd, void (*left)(void *ctx), void *ctx)
{
    if (fd < 0)
        return HZP_EIO;
    hzp_lock_take(&h->lock);
    if (fd >= h->room) {
        int room = HZP_MAX(2 * h->room, fd + 64);
        h->watch = hzp_xrealloc(h->watch, (size_t)room * sizeof(*h->watch));
        for (int i = h->room; i < room; i++)
            h->watch[i] = (struct watch){0};
        h->room = room;
    }
    uint32_t turn = ++h->turn & INT32_MAX; /* never equal to STOP */
    h->watch[fd] = (struct watch){.left = left, .ctx = ctx, .turn = turn};
    hzp_lock_release(&h->lock);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLONESHOT,
                                .data.u64 = (uint64_t)turn << 32 | (uint32_t)fd};
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &event) == 0)
        return HZP_OK;
    hzp_hangup_forget(h, fd);
    return HZP_EIO;
}

void hzp_hangup_forget(struct hzp_hangup *h, int fd)
{
    if (fd < 0)
        return;
    epoll_ctl(h->epoll, EPOLL_CTL_DEL, fd, NULL);
    HZP_LOCKED(&h->lock);
    if (fd < h->room)
        h->watch[fd].left = NULL;
}
