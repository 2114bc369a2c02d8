/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/border.h"

#include "base/err.h"

void hzp_borders_init(struct hzp_borders *b)
{
    *b = (struct hzp_borders){.closed = HZP_OK};
    hzp_lock_init(&b->lock, HZP_LOCK_BORDERS);
    pthread_cond_init(&b->changed, NULL);
}

void hzp_borders_fini(struct hzp_borders *b)
{
    HZP_ASSERT(!b->first);
    pthread_cond_destroy(&b->changed);
    hzp_lock_fini(&b->lock);
}

/* Under the lock.  The call's memory is the caller's again. */
static void end(struct hzp_borders *b, struct hzp_border_call *call, int result)
{
    struct hzp_border_call **at = &b->first;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    atomic_fetch_sub(&b->count, 1);
    call->result = result;
    call->waits = false;
    if (call->wake)
        hzp_wake_poke(call->wake);
    pthread_cond_broadcast(&b->changed);
}

/* Runs the call's function, without the lock.  The call stays in the list meanwhile. */
static int try(struct hzp_borders *b, struct hzp_border_call *call, const struct hzp_border *border)
{
    b->tried = call;
    hzp_lock_release(&b->lock);
    int result = call->fn(call->ctx, border);
    hzp_lock_take(&b->lock);
    b->tried = NULL;
    pthread_cond_broadcast(&b->changed); /* a caller may be waiting to take it back */
    return result;
}

int32_t hzp_borders_run(struct hzp_borders *b, const struct hzp_border *border)
{
    int32_t ended = 0;
    HZP_LOCKED(&b->lock);
    int32_t left = atomic_load(&b->count); /* those that come meanwhile wait for the next border */
    struct hzp_border_call *call = b->first;
    while (call && left-- > 0 && b->closed == HZP_OK) {
        int result = try(b, call, border);
        struct hzp_border_call *next = call->next;
        if (result != HZP_EBUSY || b->closed < 0) {
            end(b, call, result == HZP_EBUSY ? b->closed : result);
            ended++;
        }
        call = next;
    }
    return ended;
}

void hzp_borders_close(struct hzp_borders *b, int result)
{
    HZP_LOCKED(&b->lock);
    if (b->closed == HZP_OK)
        b->closed = result;
    struct hzp_border_call *call = b->first;
    while (call) {
        struct hzp_border_call *next = call->next;
        if (call != b->tried)
            end(b, call, b->closed);
        call = next;
    }
}

void hzp_borders_post(struct hzp_borders *b, struct hzp_border_call *call)
{
    HZP_LOCKED(&b->lock);
    HZP_ASSERT(!call->waits);
    struct hzp_border_call **at = &b->first;
    while (*at)
        at = &(*at)->next;
    *at = call;
    call->next = NULL;
    call->waits = true;
    atomic_fetch_add(&b->count, 1);
    if (b->closed < 0)
        end(b, call, b->closed);
}

bool hzp_borders_ended(struct hzp_borders *b, const struct hzp_border_call *call, int *ret)
{
    HZP_LOCKED(&b->lock);
    bool ended = !call->waits;
    *ret = call->result;
    return ended;
}

int hzp_borders_await(struct hzp_borders *b, const struct hzp_border_call *call)
{
    HZP_LOCKED(&b->lock);
    while (call->waits)
        pthread_cond_wait(&b->changed, &b->lock.mutex);
    return call->result;
}

int hzp_borders_cancel(struct hzp_borders *b, struct hzp_border_call *call)
{
    HZP_LOCKED(&b->lock);
    while (b->tried == call)
        pthread_cond_wait(&b->changed, &b->lock.mutex);
    if (call->waits)
        end(b, call, HZP_ECANCELED);
    return call->result;
}
