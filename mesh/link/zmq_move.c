/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/zmq_move.c - transfers of links by ZeroMQ: headers, streams, sums. */
#include "mesh/link/worker.h"
#include "mesh/link/zmq_link.h"

static struct hzp_zmq_peer *member(struct hzp_zmq_link *link, const struct hzp_link_group *group,
                                   int m)
{
    return m == group->index ? NULL : &link->peer[group->rank[m]];
}

/* Bytes of a stream that one chunk stands for. */
static size_t chunk_bytes(const struct hzp_zmq_link *link)
{
    return link->sparse ? hzp_sparse_fits(link->chunk) : link->chunk;
}

/* Sends chunks of a stream while there is room.  They are copied: ZeroMQ's thread may still read a
 * message when the link has failed and the caller has freed the buffer. */
static void send_some(struct hzp_zmq_link *link, struct hzp_zmq_peer *p, size_t limit)
{
    const size_t most = chunk_bytes(link);
    while (limit && !p->blocked) {
        zmq_msg_t message;
        size_t n = HZP_MIN(limit, most);
        size_t size = link->sparse ? hzp_sparse_size(p->out, n) : n;
        if (zmq_msg_init_size(&message, size) != 0)
            return; /* no memory: again when there is news */
        if (link->sparse)
            hzp_sparse_pack(p->out, n, zmq_msg_data(&message));
        else
            memcpy(zmq_msg_data(&message), p->out, n);
        if (!hzp_zmq_put(link, p, 'D', &message))
            return;
        if (link->sparse)
            link->worker.base.counted += size;
        p->out += n;
        p->out_bytes -= n;
        limit -= n;
    }
}

static void strange_data(struct hzp_zmq_link *link, struct hzp_zmq_peer *p)
{
    hzp_link_fail(&link->worker.base, (int)(p - link->peer),
                  "sent data that do not belong to the transfer: another build?");
}

/* The oldest message, which must be a chunk of this size, or of this one at most if zeros are left
 * out; NULL: it is not there yet, or the link has failed. */
static void *chunk_of(struct hzp_zmq_link *link, struct hzp_zmq_peer *p, size_t size)
{
    if (!p->count)
        return NULL;
    zmq_msg_t *message = &p->held[p->first];
    size_t there = zmq_msg_size(message);
    if (p->letter[p->first] == 'D' && (link->sparse ? there <= size : there == size))
        return zmq_msg_data(message);
    strange_data(link, p);
    return NULL;
}

static void receive_some(struct hzp_zmq_link *link, int rank)
{
    struct hzp_zmq_peer *p = &link->peer[rank];
    while (p->in_bytes) {
        size_t n = HZP_MIN(p->in_bytes, link->chunk);
        hzp_zmq_receive(link, rank);
        const void *data = chunk_of(link, p, n);
        if (!data)
            return;
        memcpy(p->in, data, n);
        hzp_zmq_drop(p);
        p->in += n;
        p->in_bytes -= n;
    }
}

/* ---- meeting ---- */

static int take_header(struct hzp_zmq_link *link, int rank, const struct hzp_link_header *mine,
                       const struct hzp_transfer *t)
{
    struct hzp_zmq_peer *p = &link->peer[rank];
    struct hzp_link_header theirs = {.kind = HZP_LINK_HEADER_BYE}; /* where it has left */
    if (!p->count && !p->left)
        return HZP_OK;
    if (p->count) {
        zmq_msg_t *message = &p->held[p->first];
        bool header = p->letter[p->first] == 'T' && zmq_msg_size(message) == sizeof(theirs);
        memset(&theirs, 0, sizeof(theirs)); /* other messages: no header */
        if (header)
            memcpy(&theirs, zmq_msg_data(message), sizeof(theirs));
        hzp_zmq_drop(p);
    }
    HZP_TRY(hzp_link_header_check(&link->worker, rank, &theirs, mine, t));
    p->heard = true;
    return HZP_OK;
}

int hzp_zmq_meet(struct hzp_link_worker *worker, const struct hzp_link_group *group,
                 const struct hzp_transfer *t)
{
    struct hzp_zmq_link *link = (struct hzp_zmq_link *)worker;
    struct hzp_link_header mine = hzp_link_header_of(group, t);
    link->sparse = t->nonzero > 0;
    for (int m = 0; m < group->count; m++)
        if (member(link, group, m))
            member(link, group, m)->told = member(link, group, m)->heard = false;
    for (;;) {
        int first = -1, untold = 0;
        for (int m = 0; m < group->count; m++) {
            struct hzp_zmq_peer *p = member(link, group, m);
            if (!p)
                continue;
            p->told = p->told || hzp_zmq_put_header(link, p, 'T', &mine);
            untold += !p->told;
            if (!p->heard)
                HZP_TRY(take_header(link, group->rank[m], &mine, t));
            if (!p->heard && first < 0)
                first = group->rank[m];
        }
        atomic_store(&worker->missing, t->idle ? -1 : first);
        if (first < 0 && !untold)
            return atomic_load(&worker->base.failed) ? HZP_EIO : HZP_OK;
        HZP_TRY(hzp_zmq_wait(link));
    }
}

/* Sends and receives what is possible now.  True: nothing is left to send or to receive. */
static bool stream(struct hzp_zmq_link *link, const struct hzp_link_group *group)
{
    bool left = false;
    for (int m = 0; m < group->count; m++) {
        struct hzp_zmq_peer *p = member(link, group, m);
        if (!p)
            continue;
        send_some(link, p, p->out_bytes);
        receive_some(link, group->rank[m]);
        left |= p->out_bytes || p->in_bytes;
    }
    return !left;
}

/* recv holds `total` bytes in pieces of `piece`; member m has filled its own. */
int hzp_zmq_gather(struct hzp_link_worker *worker, const struct hzp_link_group *group, char *recv,
                   size_t piece, size_t total)
{
    struct hzp_zmq_link *link = (struct hzp_zmq_link *)worker;
    int me = group->index;
    size_t my_begin = hzp_link_border(piece, total, me),
           my_end = hzp_link_border(piece, total, me + 1);
    for (int m = 0; m < group->count; m++) {
        struct hzp_zmq_peer *p = member(link, group, m);
        if (!p)
            continue;
        p->out = recv + my_begin;
        p->out_bytes = my_end - my_begin;
        p->in = recv + hzp_link_border(piece, total, m);
        p->in_bytes = hzp_link_border(piece, total, m + 1) - hzp_link_border(piece, total, m);
    }
    while (!stream(link, group))
        HZP_TRY(hzp_zmq_wait(link));
    return HZP_OK;
}

/* A message that ZeroMQ has placed at an odd address: it moves into one of its own. */
static const void *aligned(struct hzp_zmq_link *link, struct hzp_zmq_peer *p, const void *data)
{
    zmq_msg_t *message = &p->held[p->first], copy;
    size_t size = zmq_msg_size(message);
    if ((uintptr_t)data % sizeof(uint64_t) == 0)
        return data;
    if (zmq_msg_init_size(&copy, size) != 0) {
        hzp_link_fail(&link->worker.base, link->worker.base.rank, "has no memory for a message");
        return NULL;
    }
    memcpy(zmq_msg_data(&copy), data, size);
    zmq_msg_move(message, &copy);
    zmq_msg_close(&copy);
    return zmq_msg_data(message);
}

/* Whether a chunk of every member is there: their places go to link->piece. */
static bool all_there(struct hzp_zmq_link *link, const struct hzp_link_group *group, size_t size)
{
    bool all = true;
    for (int m = 0; m < group->count; m++) {
        struct hzp_zmq_peer *p = member(link, group, m);
        if (!p)
            continue;
        hzp_zmq_receive(link, group->rank[m]);
        const void *data = chunk_of(link, p, size);
        link->piece[m] = data ? aligned(link, p, data) : NULL;
        all &= link->piece[m] != NULL;
    }
    return all;
}

/* dst += the chunk of every member, in their order. */
static int add_sparse(struct hzp_zmq_link *link, const struct hzp_link_group *group,
                      const char *own, char *dst, size_t size)
{
    for (int m = 0; m < group->count; m++) {
        struct hzp_zmq_peer *p = member(link, group, m);
        const void *src = own;
        if (!p) {
            hzp_wire_sum(HZP_WIRE_F32, dst, &src, 1, size / sizeof(float), true);
        } else if (!hzp_sparse_add((float *)(void *)dst, size, link->piece[m],
                                   zmq_msg_size(&p->held[p->first]))) {
            strange_data(link, p);
            return HZP_EIO;
        }
    }
    return HZP_OK;
}

/* dst gets the sum of the members' chunks. */
static int add_chunks(struct hzp_zmq_link *link, const struct hzp_link_group *group,
                      const struct hzp_transfer *t, const char *own, char *dst, size_t size)
{
    if (link->sparse)
        HZP_TRY(add_sparse(link, group, own, dst, size));
    link->piece[group->index] = own;
    if (!link->sparse)
        hzp_wire_sum(t->type, dst, link->piece, group->count, size / hzp_wire_size(t->type),
                     t->onto);
    for (int m = 0; m < group->count; m++)
        if (m != group->index)
            hzp_zmq_drop(member(link, group, m));
    return HZP_OK;
}

/* send holds `total` bytes in pieces of `piece`; dst gets this member's piece of the sum. */
int hzp_zmq_scatter(struct hzp_link_worker *worker, const struct hzp_link_group *group,
                    const struct hzp_transfer *t, char *dst, size_t piece, size_t total)
{
    struct hzp_zmq_link *link = (struct hzp_zmq_link *)worker;
    int me = group->index, n = group->count;
    const size_t most = chunk_bytes(link);
    const char *send = t->send, *own = send + hzp_link_begin(t, piece, total, me);
    size_t left = hzp_link_border(piece, total, me + 1) - hzp_link_border(piece, total, me);
    for (int m = 0; m < n; m++) {
        struct hzp_zmq_peer *p = member(link, group, m);
        if (!p)
            continue;
        p->out = send + hzp_link_begin(t, piece, total, m);
        p->out_bytes = hzp_link_border(piece, total, m + 1) - hzp_link_border(piece, total, m);
        p->in_bytes = 0;
    }
    for (bool sent = false; !sent || left;) {
        size_t size = HZP_MIN(left, most);
        sent = stream(link, group);
        if (size && all_there(link, group, link->sparse ? hzp_sparse_room(size) : size)) {
            HZP_TRY(add_chunks(link, group, t, own, dst, size));
            left -= size;
            own += size;
            dst += size;
        } else if (!sent || size) {
            HZP_TRY(hzp_zmq_wait(link));
        }
    }
    return HZP_OK;
}

/* Along the chain of members that begins at the root: each passes on what it has received. */
int hzp_zmq_broadcast(struct hzp_link_worker *worker, const struct hzp_link_group *group, int root,
                      char *recv, size_t total)
{
    struct hzp_zmq_link *link = (struct hzp_zmq_link *)worker;
    int n = group->count, me = group->index, before = (me + n - 1) % n, after = (me + 1) % n;
    struct hzp_zmq_peer *from = me == root ? NULL : member(link, group, before);
    struct hzp_zmq_peer *to = after == root ? NULL : member(link, group, after);
    for (int m = 0; m < n; m++)
        if (m != me)
            member(link, group, m)->out_bytes = member(link, group, m)->in_bytes = 0;
    if (from) {
        from->in = recv;
        from->in_bytes = total;
    }
    if (to) {
        to->out = recv;
        to->out_bytes = total;
    }
    for (;;) {
        if (from)
            receive_some(link, group->rank[before]);
        size_t missing = from ? from->in_bytes : 0;
        if (to)
            send_some(link, to, to->out_bytes - missing);
        if (!missing && !(to && to->out_bytes))
            return HZP_OK;
        HZP_TRY(hzp_zmq_wait(link));
    }
}
