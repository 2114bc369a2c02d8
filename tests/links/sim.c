/* SPDX-License-Identifier: Apache-2.0 */
/* tests/links/sim.c - links on the virtual clock of a simulated device.
 *
 * One process stands for all ranks, which do the same at the same time.  Each transfer begins when
 * the wire is free and has its end at post; poll compares that with the clock.
 */
#include "mesh/link/backend.h"

#include "device/sim.h"
#include "tests/links/links.h"

#include <stdlib.h>
#include <string.h>

struct sim_link {
    struct hzp_link base;
    struct hzp_link_sim config;
    struct hzp_device *device;
    uint64_t free_ns;                      /* when the wire has carried what was posted */
    uint64_t end_ns[HZP_LINK_TICKETS_MAX]; /* ticket t is at [t % HZP_LINK_TICKETS_MAX] */
};

static bool within_node(const struct sim_link *link, const struct hzp_link_group *group)
{
    for (int m = 1; m < group->count; m++)
        if (group->rank[m] / link->config.node_ranks != group->rank[0] / link->config.node_ranks)
            return false;
    return true;
}

/* dst = members times src. */
static void multiply(enum hzp_wire type, void *dst, const void *src, int members, size_t elements)
{
    for (size_t i = 0; i < elements; i++)
        if (type == HZP_WIRE_F32)
            ((float *)dst)[i] = (float)members * ((const float *)src)[i];
        else if (type == HZP_WIRE_F64)
            ((double *)dst)[i] = (double)members * ((const double *)src)[i];
        else
            ((uint64_t *)dst)[i] = (uint64_t)members * ((const uint64_t *)src)[i];
}

/* The results that the engine reads. */
static void move(const struct hzp_link_group *group, const struct hzp_transfer *t)
{
    size_t size = hzp_wire_size(t->type), bytes = t->count * size;
    const char *send = t->send;
    char *recv = t->recv;
    if (bytes * (size_t)group->count > HZP_LINK_SIM_BYTES || !bytes)
        return;
    switch (t->op) {
    case HZP_ALL_GATHER:
        for (int m = 0; m < group->count; m++)
            if (recv + bytes * (size_t)m != send)
                memcpy(recv + bytes * (size_t)m, send, bytes);
        return;
    case HZP_REDUCE_SCATTER:
        if (!t->onto)
            multiply(t->type, recv, send + bytes * (size_t)group->index, group->count, t->count);
        return;
    case HZP_ALL_REDUCE:
        multiply(t->type, recv, send, group->count, t->count);
        return;
    default:
        return;
    }
}

static int sim_post(struct hzp_link *base, hzp_ticket ticket, const struct hzp_transfer *t,
                    struct hzp_err_text *reterr)
{
    struct sim_link *link = (struct sim_link *)base;
    const struct hzp_link_group *group = &base->group[t->group];
    uint64_t begin =
        hzp_device_now_ns(link->device) + (group->count > 1 ? link->config.late_ns : 0);
    double rate = within_node(link, group) ? link->config.rate_node : link->config.rate_net;
    uint64_t bytes = hzp_transfer_cost(t, group->count);
    begin = HZP_MAX(begin, link->free_ns);
    link->free_ns = begin + (uint64_t)((double)bytes / rate * 1e9) +
                    (group->count > 1 ? link->config.latency_ns : 0);
    link->end_ns[ticket % HZP_LINK_TICKETS_MAX] = link->free_ns;
    move(group, t);
    atomic_store(&base->posted, ticket);
    return HZP_OK;
}

static void sim_progress(struct hzp_link *base)
{
    struct sim_link *link = (struct sim_link *)base;
    uint64_t now = hzp_device_now_ns(link->device);
    uint64_t done = atomic_load(&base->done), posted = atomic_load(&base->posted);
    while (done < posted && link->end_ns[(done + 1) % HZP_LINK_TICKETS_MAX] <= now)
        hzp_link_done(base, ++done);
}

static void sim_wait(struct hzp_link *base, hzp_ticket ticket)
{
    struct sim_link *link = (struct sim_link *)base;
    if (atomic_load(&base->done) < ticket)
        hzp_sim_wait_until(link->device, link->end_ns[ticket % HZP_LINK_TICKETS_MAX]);
}

static void sim_close(struct hzp_link *base)
{
    hzp_link_fini(base);
    free(base);
}

static const struct hzp_link_backend backend_sim = {
    .name = "sim",
    .post = sim_post,
    .progress = sim_progress,
    .wait = sim_wait,
    .close = sim_close,
};

int hzp_link_open_sim(const struct hzp_link_sim *config, struct hzp_device *device,
                      struct hzp_link **ret, struct hzp_err_text *reterr)
{
    if (!hzp_sim_is(device))
        return hzp_fail(reterr, HZP_EUNSUP,
                        "link sim: its clock is that of the device sim, not %s's",
                        hzp_device_backend(device));
    if (config->ranks < 1 || config->ranks > HZP_LINK_RANKS_MAX || config->rank < 0 ||
        config->rank >= config->ranks || config->node_ranks < 1)
        return hzp_fail(reterr, HZP_EINVAL, "link sim: rank %d of %d, %d in a node", config->rank,
                        config->ranks, config->node_ranks);
    if (!(config->rate_node > 0 && config->rate_net > 0))
        return hzp_fail(reterr, HZP_EINVAL, "link sim: rates of %g and %g bytes a second",
                        config->rate_node, config->rate_net);
    struct sim_link *link = hzp_xcalloc(1, sizeof(*link));
    hzp_link_init(&link->base, &backend_sim, config->rank, config->ranks);
    link->config = *config;
    link->device = device;
    *ret = &link->base;
    return HZP_OK;
}
