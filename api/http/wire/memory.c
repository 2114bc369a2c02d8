/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/memory.c - what exchanges account for: see http.h. */
#include "api/http/wire/http.h"

enum { SMALL_ANSWER = 64 << 10 };

/* Requests that are refused never push the sum above its bound, not even for a moment. */
static bool take_memory(struct hzp_server *server, int64_t more)
{
    int64_t now = atomic_load(&server->bodies);
    do
        if (more > 0 && now + more > server->settings->body_memory)
            return false;
    while (!atomic_compare_exchange_weak(&server->bodies, &now, now + more));
    return true;
}

bool hzp_exchange_charge(struct hzp_exchange *x, size_t bytes)
{
    int64_t more = (int64_t)(x->room + bytes) - atomic_load(&x->charged);
    if (!take_memory(x->server, more))
        return false;
    atomic_fetch_add(&x->charged, more);
    return true;
}

bool hzp_exchange_charge_beside(struct hzp_exchange *x, size_t bytes)
{
    return hzp_exchange_charge(x, x->tree + bytes);
}

bool hzp_exchange_keep(struct hzp_exchange *x, size_t bytes)
{
    if (!take_memory(x->server, (int64_t)bytes))
        return false;
    atomic_fetch_add(&x->kept, (int64_t)bytes);
    return true;
}

bool hzp_exchange_make(struct hzp_exchange *x, size_t bytes)
{
    if (!hzp_exchange_keep(x, bytes))
        return false;
    x->making += (int64_t)bytes;
    return true;
}

bool hzp_exchange_made(struct hzp_exchange *x, size_t bytes)
{
    int64_t more = (int64_t)bytes - x->making;
    x->making = 0;
    bool fits = take_memory(x->server, more);
    if (!fits && bytes <= SMALL_ANSWER) /* an error, or how things are: it is said in any case */
        atomic_fetch_add(&x->server->bodies, more);
    else if (!fits)
        return false;
    atomic_fetch_add(&x->kept, more);
    return true;
}

void hzp_exchange_uncharge(struct hzp_exchange *x)
{
    atomic_fetch_sub(&x->server->bodies, atomic_exchange(&x->charged, 0));
}
