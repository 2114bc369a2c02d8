/* SPDX-License-Identifier: Apache-2.0 */
/* tests/links/local.c - links between ranks of one process.
 *
 * All ranks share a world.  Each link's transfers wait in its queue; the oldest is its head.
 * When the heads of all members of a group are transfers on that group, the data move, under the
 * world's lock, and all those heads are done.  The calling thread does that: links have none of
 * their own.
 */
#include "mesh/link/backend.h"

#include "device/philox.h"
#include "tests/links/links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world {
    struct hzp_lock lock;
    pthread_cond_t changed; /* a transfer is done, or the world failed */
    struct local **link;    /* [ranks]; NULL: closed */
    int ranks, open;
    int lag;
    uint64_t seed, drawn;
    const void **piece; /* [ranks], the sources of a sum */
    bool failed;
};

struct local {
    struct hzp_link base;
    struct world *world;
    int delay; /* polls until the head, which all members have posted, moves; -1: not drawn */
};

static const struct hzp_link_backend backend_local;
static const char closed[] = "has closed its link";

static struct hzp_transfer *head(struct local *link)
{
    uint64_t done = atomic_load(&link->base.done);
    return done < atomic_load(&link->base.posted)
               ? &link->base.queue[(done + 1) % HZP_LINK_TICKETS_MAX]
               : NULL;
}

static bool has_same_list(const struct hzp_link_group *a, const struct hzp_link_group *b)
{
    return a->count == b->count && !memcmp(a->rank, b->rank, sizeof(int) * (size_t)a->count);
}

/* The member's head if it is on this group, else NULL. */
static struct hzp_transfer *head_on(struct world *world, int rank,
                                    const struct hzp_link_group *group)
{
    struct local *link = world->link[rank];
    struct hzp_transfer *transfer = link ? head(link) : NULL;
    return transfer && has_same_list(&link->base.group[transfer->group], group) ? transfer : NULL;
}

static void world_fail(struct world *world, int rank, const char *why)
{
    if (world->failed)
        return;
    world->failed = true;
    for (int i = 0; i < world->ranks; i++)
        if (world->link[i])
            hzp_link_fail(&world->link[i]->base, rank, why);
    pthread_cond_broadcast(&world->changed);
}

static void move_gather(struct world *world, const struct hzp_link_group *group)
{
    for (int from = 0; from < group->count; from++) {
        const struct hzp_transfer *source = head(world->link[group->rank[from]]);
        size_t piece = source->count * hzp_wire_size(source->type);
        for (int to = 0; piece && to < group->count; to++) {
            char *place = (char *)head(world->link[group->rank[to]])->recv + piece * (size_t)from;
            if (place != source->send)
                memcpy(place, source->send, piece);
        }
    }
}

/* Adds what all members send at byte `offset` into dst. */
static void sum_at(struct world *world, const struct hzp_link_group *group, size_t offset,
                   const struct hzp_transfer *transfer, void *dst)
{
    for (int m = 0; m < group->count; m++)
        world->piece[m] = (const char *)head(world->link[group->rank[m]])->send + offset;
    hzp_wire_sum(transfer->type, dst, world->piece, group->count, transfer->count, transfer->onto);
}

static void move_sums(struct world *world, const struct hzp_link_group *group)
{
    for (int m = 0; m < group->count; m++) {
        struct hzp_transfer *to = head(world->link[group->rank[m]]);
        size_t piece = (to->pitch ? to->pitch : to->count) * hzp_wire_size(to->type);
        sum_at(world, group, piece * (size_t)m, to, to->recv);
    }
}

/* In place, a member's sum would overwrite what the others still add: one block after another is
 * summed for all members. */
static void move_all_reduce(struct world *world, const struct hzp_link_group *group)
{
    enum { BLOCK = 512 };
    uint64_t sum[BLOCK];
    struct hzp_transfer block = *head(world->link[group->rank[0]]);
    size_t size = hzp_wire_size(block.type), left = block.count;
    for (size_t at = 0; left; at += block.count * size, left -= block.count) {
        block.count = HZP_MIN(left, (size_t)BLOCK);
        sum_at(world, group, at, &block, sum);
        for (int m = 0; m < group->count; m++)
            memcpy((char *)head(world->link[group->rank[m]])->recv + at, sum, block.count * size);
    }
}

static void move_broadcast(struct world *world, const struct hzp_link_group *group)
{
    const struct hzp_transfer *root = head(world->link[group->rank[0]]);
    root = head(world->link[group->rank[root->root]]);
    for (int m = 0; root->count && m < group->count; m++) {
        struct hzp_transfer *to = head(world->link[group->rank[m]]);
        if (to->recv != root->recv)
            memcpy(to->recv, root->recv, to->count * hzp_wire_size(to->type));
    }
}

/* Moves the data of the members' heads, which agree, and marks them done. */
static void move(struct world *world, const struct hzp_link_group *group)
{
    switch (head(world->link[group->rank[0]])->op) {
    case HZP_ALL_GATHER:
        move_gather(world, group);
        break;
    case HZP_REDUCE_SCATTER:
        move_sums(world, group);
        break;
    case HZP_ALL_REDUCE:
        move_all_reduce(world, group);
        break;
    default:
        move_broadcast(world, group);
    }
    for (int m = 0; m < group->count; m++) {
        struct local *member = world->link[group->rank[m]];
        member->delay = -1;
        hzp_link_done(&member->base, atomic_load(&member->base.done) + 1);
    }
    pthread_cond_broadcast(&world->changed);
}

/* Whether the head of a link has as few nonzero elements as it says: other backends trust it. */
static bool nonzero_kept(const struct local *link, const struct hzp_link_group *group)
{
    const struct hzp_transfer *t = head((struct local *)link);
    const float *send = t->send;
    size_t seen = 0, pitch = t->pitch ? t->pitch : t->count;
    for (size_t m = 0; t->nonzero && m < (size_t)group->count; m++)
        for (size_t i = 0; i < t->count; i++)
            seen += send[m * pitch + i] != 0;
    return seen <= t->nonzero;
}

static int draw_delay(struct world *world)
{
    if (!world->lag)
        return 0;
    uint64_t n = world->drawn++;
    uint32_t draw = hzp_philox(world->seed, (uint32_t)n, (uint32_t)(n >> 32), 0, 0);
    return (int)(draw % ((uint32_t)world->lag + 1));
}

/* Runs the link's head if all members have posted it.  True: it did. */
static bool advance(struct world *world, struct local *link)
{
    struct hzp_transfer *mine = head(link);
    if (!mine || world->failed)
        return false;
    const struct hzp_link_group *group = &link->base.group[mine->group];
    for (int m = 0; m < group->count; m++)
        if (!world->link[group->rank[m]]) {
            world_fail(world, group->rank[m], closed);
            return false;
        }
    for (int m = 0; m < group->count; m++)
        if (!head_on(world, group->rank[m], group))
            return false;
    for (int m = 1; m < group->count; m++) {
        char why[256];
        if (!hzp_transfer_agrees(head(world->link[group->rank[0]]), group->rank[0],
                                 head(world->link[group->rank[m]]), group->rank[m], why,
                                 sizeof(why))) {
            world_fail(world, group->rank[m], why);
            return false;
        }
    }
    for (int m = 0; m < group->count; m++)
        if (!nonzero_kept(world->link[group->rank[m]], group)) {
            world_fail(world, group->rank[m], "sends more nonzero elements than it said");
            return false;
        }
    struct local *first = world->link[group->rank[0]];
    if (first->delay < 0)
        first->delay = draw_delay(world);
    if (first->delay > 0 && first->delay--)
        return false;
    move(world, group);
    return true;
}

static void advance_all(struct world *world)
{
    bool again = true;
    while (again) {
        again = false;
        for (int i = 0; i < world->ranks; i++)
            if (world->link[i] && advance(world, world->link[i]))
                again = true;
    }
}

/* Fills what will be received, so that a reader who does not wait for the ticket is seen. */
static void spoil(const struct local *link, const struct hzp_transfer *t)
{
    const struct hzp_link_group *group = &link->base.group[t->group];
    size_t piece = t->count * hzp_wire_size(t->type);
    char *recv = t->recv;
    bool in_place = t->op == HZP_ALL_REDUCE
                        ? recv == t->send
                        : t->op == HZP_REDUCE_SCATTER &&
                              recv == (const char *)t->send + piece * (size_t)group->index;
    if (!piece || t->onto || in_place || (t->op == HZP_BROADCAST && t->root == group->index))
        return;
    if (t->op != HZP_ALL_GATHER) {
        memset(recv, 0xff, piece);
        return;
    }
    for (int m = 0; m < group->count; m++)
        if (recv + piece * (size_t)m != t->send)
            memset(recv + piece * (size_t)m, 0xff, piece);
}

static int local_post(struct hzp_link *base, hzp_ticket ticket, const struct hzp_transfer *transfer,
                      struct hzp_err_text *reterr)
{
    struct local *link = (struct local *)base;
    struct world *world = link->world;
    hzp_lock_take(&world->lock);
    if (world->lag)
        spoil(link, transfer);
    atomic_store(&base->posted, ticket);
    advance_all(world);
    hzp_lock_release(&world->lock);
    return HZP_OK;
}

static void local_progress(struct hzp_link *base)
{
    struct local *link = (struct local *)base;
    hzp_lock_take(&link->world->lock);
    advance_all(link->world);
    hzp_lock_release(&link->world->lock);
}

/* With a lag every poll counts, so the waiter polls on instead of sleeping. */
static void local_wait(struct hzp_link *base, hzp_ticket ticket)
{
    struct local *link = (struct local *)base;
    struct world *world = link->world;
    hzp_lock_take(&world->lock);
    while (!world->lag && !world->failed && atomic_load(&base->done) < ticket)
        pthread_cond_wait(&world->changed, &world->lock.mutex);
    hzp_lock_release(&world->lock);
}

static void local_abort(struct hzp_link *base, int rank, const char *why)
{
    struct local *link = (struct local *)base;
    hzp_lock_take(&link->world->lock);
    world_fail(link->world, rank, why);
    hzp_lock_release(&link->world->lock);
}

static int local_missing(struct hzp_link *base)
{
    struct local *link = (struct local *)base;
    struct world *world = link->world;
    int missing = -1;
    hzp_lock_take(&world->lock);
    struct hzp_transfer *mine = head(link);
    if (mine && !mine->idle) {
        const struct hzp_link_group *group = &base->group[mine->group];
        for (int m = group->count - 1; m >= 0; m--)
            if (!head_on(world, group->rank[m], group))
                missing = group->rank[m];
    }
    hzp_lock_release(&world->lock);
    return missing;
}

static void world_free(struct world *world)
{
    pthread_cond_destroy(&world->changed);
    hzp_lock_fini(&world->lock);
    free(world->piece);
    free(world->link);
    free(world);
}

/* The others fail when they still need this rank: their heads see that in advance. */
static void local_close(struct hzp_link *base)
{
    struct local *link = (struct local *)base;
    struct world *world = link->world;
    hzp_lock_take(&world->lock);
    world->link[base->rank] = NULL;
    advance_all(world);
    bool last = --world->open == 0;
    hzp_lock_release(&world->lock);
    hzp_link_fini(base);
    free(link);
    if (last)
        world_free(world);
}

static const struct hzp_link_backend backend_local = {
    .name = "local",
    .post = local_post,
    .progress = local_progress,
    .wait = local_wait,
    .abort = local_abort,
    .missing = local_missing,
    .close = local_close,
};

int hzp_link_open_local(int ranks, int lag, uint64_t seed, struct hzp_link **link,
                        struct hzp_err_text *reterr)
{
    if (ranks < 1 || ranks > HZP_LINK_RANKS_MAX || lag < 0)
        return hzp_fail(reterr, HZP_EINVAL, "a local link of %d ranks, at most %d", ranks,
                        HZP_LINK_RANKS_MAX);
    struct world *world = hzp_xcalloc(1, sizeof(*world));
    hzp_lock_init(&world->lock, HZP_LOCK_LINK);
    pthread_cond_init(&world->changed, NULL);
    world->link = hzp_xcalloc((size_t)ranks, sizeof(*world->link));
    world->piece = hzp_xcalloc((size_t)ranks, sizeof(*world->piece));
    world->ranks = world->open = ranks;
    world->lag = lag;
    world->seed = seed;
    for (int i = 0; i < ranks; i++) {
        struct local *one = hzp_xcalloc(1, sizeof(*one));
        hzp_link_init(&one->base, &backend_local, i, ranks);
        one->world = world;
        one->delay = -1;
        world->link[i] = one;
        link[i] = &one->base;
    }
    return HZP_OK;
}
