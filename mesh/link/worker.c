/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/link/worker.h"

#include "device/meter.h"

enum { METERED_BYTES = 65536 }; /* shorter transfers measure the latency, not the rate */
static const uint64_t idle_ns = 100000000, nap_ns = 20000000;

/* ---- headers ---- */

static uint64_t hash_list(const struct hzp_link_group *group)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int i = 0; i < group->count; i++)
        hash = (hash ^ (uint64_t)group->rank[i]) * 1099511628211u;
    return hash ^ (uint64_t)group->count;
}

struct hzp_link_header hzp_link_header_of(const struct hzp_link_group *group,
                                          const struct hzp_transfer *t)
{
    return (struct hzp_link_header){.kind = HZP_LINK_HEADER_TRANSFER,
                                    .op = t->op,
                                    .type = t->type,
                                    .root = (uint32_t)t->root,
                                    .onto = t->onto,
                                    .count = t->count,
                                    .nonzero = t->nonzero,
                                    .pitch = t->pitch,
                                    .tag = t->tag,
                                    .group = hash_list(group)};
}

struct hzp_link_header hzp_link_header_bye(struct hzp_link_worker *w)
{
    struct hzp_link_state state;
    hzp_link_state(&w->base, &state);
    struct hzp_link_header ret = {.kind = HZP_LINK_HEADER_BYE,
                                  .left = state.left,
                                  .failed = state.failed,
                                  .failed_rank = state.failed_rank};
    if (state.failed)
        snprintf(ret.why, sizeof(ret.why), "%.207s", state.why);
    return ret;
}

int hzp_link_header_check(struct hzp_link_worker *w, int rank, const struct hzp_link_header *theirs,
                          const struct hzp_link_header *mine, const struct hzp_transfer *t)
{
    const struct hzp_link_header *h = theirs;
    char why[256];
    if (h->kind == HZP_LINK_HEADER_BYE) {
        w->told = h->failed;
        hzp_link_fail_as(&w->base, h->failed ? h->failed_rank : rank, !h->failed || h->left,
                         h->failed ? h->why : "has closed its link");
        return HZP_EIO;
    }
    if (h->kind != HZP_LINK_HEADER_TRANSFER || h->op >= HZP_TRANSFER_OP_COUNT ||
        h->type >= HZP_WIRE_COUNT) {
        hzp_link_fail(&w->base, rank, "sent no header of a transfer: another build?");
        return HZP_EIO;
    }
    struct hzp_transfer other = {.op = h->op,
                                 .type = h->type,
                                 .root = (int)h->root,
                                 .count = h->count,
                                 .nonzero = h->nonzero,
                                 .pitch = h->pitch,
                                 .onto = h->onto,
                                 .tag = h->tag};
    if (hzp_transfer_agrees(t, w->base.rank, &other, rank, why, sizeof(why))) {
        if (h->group == mine->group)
            return HZP_OK;
        snprintf(why, sizeof(why),
                 "posted a transfer (tag %llx) on another group of ranks than rank %d did",
                 (unsigned long long)h->tag, w->base.rank);
    }
    hzp_link_fail(&w->base, rank, why);
    return HZP_EIO;
}

/* ---- the thread ---- */

bool hzp_link_worker_goes_on(struct hzp_link_worker *w)
{
    w->moves->look(w);
    return !atomic_load(&w->base.failed) && !atomic_load(&w->closing);
}

/* Waits until a wire of the configured rate would have carried the transfer. */
static int throttle(struct hzp_link_worker *w, uint64_t began_ns, uint64_t bytes)
{
    if (!(w->rate > 0))
        return HZP_OK;
    uint64_t takes = (uint64_t)((double)bytes / w->rate * 1e9);
    uint64_t wire = atomic_load(w->wire_free_ns), free_ns;
    do
        free_ns = HZP_MAX(began_ns, wire) + takes;
    while (!atomic_compare_exchange_weak(w->wire_free_ns, &wire, free_ns));
    uint64_t end = free_ns + w->latency_ns;
    for (uint64_t now = hzp_now_ns(); now < end; now = hzp_now_ns()) {
        if (!hzp_link_worker_goes_on(w))
            return HZP_EIO;
        w->moves->rest(w, HZP_MIN(end - now, nap_ns));
    }
    return HZP_OK;
}

size_t hzp_link_border(size_t piece, size_t total, int m)
{
    return HZP_MIN(piece * (size_t)m, total);
}

size_t hzp_link_begin(const struct hzp_transfer *t, size_t piece, size_t total, int m)
{
    return t->pitch ? t->pitch * hzp_wire_size(t->type) * (size_t)m
                    : hzp_link_border(piece, total, m);
}

static int move(struct hzp_link_worker *w, const struct hzp_link_group *group,
                const struct hzp_transfer *t)
{
    const struct hzp_link_moves *moves = w->moves;
    size_t size = hzp_wire_size(t->type), bytes = t->count * size, n = (size_t)group->count;
    char *recv = t->recv;
    if (!bytes)
        return HZP_OK;
    switch (t->op) {
    case HZP_ALL_GATHER:
        if (t->send != recv + bytes * (size_t)group->index)
            memcpy(recv + bytes * (size_t)group->index, t->send, bytes);
        return moves->gather(w, group, recv, bytes, bytes * n);
    case HZP_REDUCE_SCATTER:
        return moves->scatter(w, group, t, recv, bytes, bytes * n);
    case HZP_ALL_REDUCE: {
        size_t piece = HZP_DIV_UP(t->count, n) * size;
        char *own = recv + hzp_link_border(piece, bytes, group->index);
        HZP_TRY(moves->scatter(w, group, t, own, piece, bytes));
        return moves->gather(w, group, recv, piece, bytes);
    }
    default:
        return moves->broadcast(w, group, t->root, recv, bytes);
    }
}

static int move_throttled(struct hzp_link_worker *w, const struct hzp_link_group *group,
                          const struct hzp_transfer *t)
{
    uint64_t bytes = hzp_transfer_bytes(t->op, t->type, group->count, t->count);
    uint64_t began_ns = hzp_now_ns();
    w->base.counted = 0;
    HZP_TRY(move(w, group, t));
    if (w->base.counted)
        bytes = w->base.counted;
    HZP_TRY(throttle(w, began_ns, bytes));
    if (bytes >= METERED_BYTES)
        hzp_meter_add(HZP_METER_LINK, hzp_now_ns() - began_ns, bytes);
    return HZP_OK;
}

static int transfer(struct hzp_link_worker *w, hzp_ticket ticket)
{
    const struct hzp_transfer *t = &w->base.queue[ticket % HZP_LINK_TICKETS_MAX];
    const struct hzp_link_group *group = &w->base.group[t->group];
    uint64_t posted_ns = hzp_now_ns();
    HZP_TRY(w->moves->meet(w, group, t));
    if (!t->idle) /* to wait long for an order is normal: that is no span */
        hzp_track_add(w->track, "wait for ranks", posted_ns, hzp_now_ns(), ticket);
    hzp_track_enter(w->track, hzp_transfer_name(t->op), ticket);
    HZP_TRY(move_throttled(w, group, t));
    hzp_track_leave(w->track);
    return HZP_OK;
}

void hzp_link_worker_run(struct hzp_link_worker *w)
{
    struct hzp_link *base = &w->base;
    w->track = hzp_track_open("link", HZP_TRACK_FEW, false);
    while (hzp_link_worker_goes_on(w)) {
        hzp_ticket next = atomic_load(&base->done) + 1;
        if (next > atomic_load(&base->posted)) {
            w->moves->rest(w, idle_ns);
        } else if (transfer(w, next) == HZP_OK) {
            hzp_link_done(base, next);
            hzp_wake_poke(&w->arrived);
        }
    }
    if (!atomic_load(&base->failed) && atomic_load(&base->done) < atomic_load(&base->posted))
        hzp_link_fail(base, base->rank, "has closed its link");
    hzp_track_leave(w->track); /* the span of a transfer that failed */
    hzp_wake_poke(&w->arrived);
}

/* ---- the interface ---- */

void hzp_link_worker_init(struct hzp_link_worker *w, const struct hzp_link_moves *moves,
                          double rate, uint64_t latency_ns, struct hzp_link_worker *first)
{
    w->moves = moves;
    w->rate = rate;
    w->latency_ns = latency_ns;
    w->wire_free_ns = first ? first->wire_free_ns : &w->own_wire_free_ns;
    atomic_store(&w->missing, -1);
    hzp_wake_init(&w->arrived);
}

void hzp_link_worker_fini(struct hzp_link_worker *w)
{
    hzp_track_close(w->track);
    hzp_wake_fini(&w->arrived);
}

void hzp_link_worker_wait(struct hzp_link *link, hzp_ticket ticket)
{
    struct hzp_link_worker *w = (struct hzp_link_worker *)link;
    if (atomic_load(&link->done) < ticket && !atomic_load(&link->failed))
        hzp_wake_wait(&w->arrived, 100000000);
}

int hzp_link_worker_missing(struct hzp_link *link)
{
    return atomic_load(&((struct hzp_link_worker *)link)->missing);
}
