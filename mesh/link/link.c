/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/link.c - what all backends of links share: checks, tickets, groups, failures, sums. */
#include "mesh/link/backend.h"

static const char *const op_name[] = {"all-gather", "reduce-scatter", "all-reduce", "broadcast"};
static const char *const wire_name[] = {"bytes", "f32", "u64", "f64"};

const char *hzp_transfer_name(enum hzp_transfer_op op)
{
    return op_name[op];
}

int hzp_link_rank(const struct hzp_link *link)
{
    return link->group[link->narrow].index;
}

int hzp_link_ranks(const struct hzp_link *link)
{
    return link->group[link->narrow].count;
}

const char *hzp_link_backend(const struct hzp_link *link)
{
    return link->backend->name;
}

/* The group that the caller's number means. */
static int group_of(const struct hzp_link *link, int group)
{
    return group == 0 ? link->narrow : group;
}

int hzp_link_group_index(const struct hzp_link *link, int group)
{
    HZP_ASSERT(group >= 0 && group < link->groups);
    return link->group[group_of(link, group)].index;
}

size_t hzp_wire_size(enum hzp_wire type)
{
    return type == HZP_WIRE_BYTE ? 1 : type == HZP_WIRE_F32 ? sizeof(float) : sizeof(uint64_t);
}

uint64_t hzp_transfer_bytes(enum hzp_transfer_op op, enum hzp_wire type, int members, size_t count)
{
    uint64_t others = (uint64_t)members - 1, size = hzp_wire_size(type);
    switch (op) {
    case HZP_ALL_GATHER:
    case HZP_REDUCE_SCATTER:
        return others * count * size;
    case HZP_ALL_REDUCE:
        return 2 * others * HZP_DIV_UP((uint64_t)count, (uint64_t)members) * size;
    default:
        return others ? count * size : 0;
    }
}

uint64_t hzp_transfer_cost(const struct hzp_transfer *t, int members)
{
    uint64_t bytes = hzp_transfer_bytes(t->op, t->type, members, t->count);
    if (!t->nonzero)
        return bytes;
    uint64_t sparse = t->nonzero * hzp_wire_size(t->type) + bytes / HZP_LINK_BLOCK / 8;
    return HZP_MIN(bytes, sparse);
}

/* ---- the state that backends share ---- */

static void append_group(struct hzp_link *link, const int *rank, int count, int index)
{
    struct hzp_link_group *group = &link->group[link->groups++];
    group->rank = hzp_xmalloc(sizeof(int) * (size_t)count);
    memcpy(group->rank, rank, sizeof(int) * (size_t)count);
    group->count = count;
    group->index = index;
}

void hzp_link_init(struct hzp_link *link, const struct hzp_link_backend *backend, int rank,
                   int ranks)
{
    link->backend = backend;
    link->rank = rank;
    link->ranks = ranks;
    link->failed_rank = -1;
    hzp_lock_init(&link->lock, HZP_LOCK_LINK_WHY);
    hzp_lock_init(&link->all, HZP_LOCK_LINK_ALL);
    int all[HZP_LINK_RANKS_MAX];
    for (int i = 0; i < ranks; i++)
        all[i] = i;
    append_group(link, all, ranks, rank);
}

void hzp_link_fini(struct hzp_link *link)
{
    for (int i = 0; i < link->groups; i++)
        free(link->group[i].rank);
    hzp_lock_fini(&link->lock);
    hzp_lock_fini(&link->all);
}

/* Under the link's lock. */
static void wake_caller(struct hzp_link *link)
{
    if (link->wake)
        link->wake(link->wake_ctx);
}

void hzp_link_wake(struct hzp_link *link)
{
    HZP_LOCKED(&link->lock);
    wake_caller(link);
}

void hzp_link_done(struct hzp_link *link, hzp_ticket ticket)
{
    uint64_t bytes = 0;
    for (hzp_ticket t = atomic_load(&link->done) + 1; t <= ticket; t++) {
        const struct hzp_transfer *transfer = &link->queue[t % HZP_LINK_TICKETS_MAX];
        bytes += hzp_transfer_cost(transfer, link->group[transfer->group].count);
    }
    if (link->counted) /* by the backend, of this transfer alone */
        bytes = link->counted;
    link->counted = 0;
    atomic_fetch_add(&link->wire_bytes, bytes);
    atomic_store(&link->done, ticket);
    hzp_link_wake(link);
}

static void fail_one(struct hzp_link *link, int rank, bool left, const char *why)
{
    HZP_LOCKED(&link->lock);
    if (!atomic_load(&link->failed)) {
        link->failed_rank = rank;
        link->left = left;
        snprintf(link->why, sizeof(link->why), "%s", why);
        atomic_store(&link->failed, true);
    }
    wake_caller(link);
}

/* The same failure on a link of the same family, whose thread may be waiting for something. */
static void fail_with(struct hzp_link *link, const struct hzp_link *first)
{
    if (!link || link == first || atomic_load(&link->failed))
        return;
    fail_one(link, first->failed_rank, first->left, first->why);
    if (link->backend->abort)
        link->backend->abort(link, first->failed_rank, first->why);
}

static void fail_family(struct hzp_link *first)
{
    struct hzp_link *root = first->root ? first->root : first;
    hzp_lock_take(&root->all);
    fail_with(root, first);
    for (int i = 0; i < HZP_LINK_SPLITS_MAX; i++)
        fail_with(root->split[i], first);
    hzp_lock_release(&root->all);
    hzp_link_wake(
        root); /* again: what the first link woke may have looked at one that had not failed yet */
}

void hzp_link_fail(struct hzp_link *link, int rank, const char *why)
{
    hzp_link_fail_as(link, rank, false, why);
}

void hzp_link_fail_as(struct hzp_link *link, int rank, bool left, const char *why)
{
    fail_one(link, rank, left, why);
    fail_family(link);
}

static int failure(struct hzp_link *link, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&link->lock);
    return link->failed_rank >= 0
               ? hzp_fail(reterr, HZP_EIO, "rank %d: %s", link->failed_rank, link->why)
               : hzp_fail(reterr, HZP_EIO, "%s", link->why);
}

bool hzp_transfer_agrees(const struct hzp_transfer *a, int rank_a, const struct hzp_transfer *b,
                         int rank_b, char *why, size_t why_size)
{
    if (a->op == b->op && a->type == b->type && a->count == b->count && a->root == b->root &&
        a->onto == b->onto && a->nonzero == b->nonzero && a->pitch == b->pitch && a->tag == b->tag)
        return true;
    snprintf(why, why_size,
             "posted %s of %zu %s (tag %llx, root %d) where rank %d posted %s of %zu %s (tag %llx, "
             "root %d)",
             op_name[b->op], b->count, wire_name[b->type], (unsigned long long)b->tag, b->root,
             rank_a, op_name[a->op], a->count, wire_name[a->type], (unsigned long long)a->tag,
             a->root);
    return false;
}

/* Without onto, a sum begins with the first piece, so that it keeps the sign of a zero. */
#define SUM(type)                                                                                  \
    do {                                                                                           \
        type *to = dst;                                                                            \
        for (size_t i = 0; i < elements; i++) {                                                    \
            type sum = onto ? to[i] : ((const type *)src[0])[i];                                   \
            for (int m = onto ? 0 : 1; m < count; m++)                                             \
                sum += ((const type *)src[m])[i];                                                  \
            to[i] = sum;                                                                           \
        }                                                                                          \
    } while (0)

void hzp_wire_sum(enum hzp_wire type, void *dst, const void *const *src, int count, size_t elements,
                  bool onto)
{
    if (type == HZP_WIRE_F32)
        SUM(float);
    else if (type == HZP_WIRE_F64)
        SUM(double);
    else
        SUM(uint64_t);
}

/* ---- the interface ---- */

int hzp_link_group(struct hzp_link *link, const int *rank, int count, struct hzp_err_text *reterr)
{
    if (atomic_load(&link->failed))
        return failure(link, reterr);
    const struct hzp_link_group *all = &link->group[link->narrow];
    if (count < 1 || count > all->count)
        return hzp_fail(reterr, HZP_EINVAL, "a group of %d ranks, of %d", count, all->count);
    int index = -1, member[HZP_LINK_RANKS_MAX];
    for (int i = 0; i < count; i++) {
        if (rank[i] < 0 || rank[i] >= all->count)
            return hzp_fail(reterr, HZP_EINVAL, "a group with rank %d, of %d", rank[i], all->count);
        for (int j = 0; j < i; j++)
            if (rank[j] == rank[i])
                return hzp_fail(reterr, HZP_EINVAL, "a group with rank %d twice", rank[i]);
        member[i] = all->rank[rank[i]];
        if (rank[i] == all->index)
            index = i;
    }
    if (index < 0)
        return hzp_fail(reterr, HZP_EINVAL, "rank %d opens a group it is not in", all->index);
    for (int i = 0; i < link->groups; i++)
        if (link->group[i].count == count &&
            !memcmp(link->group[i].rank, member, sizeof(int) * (size_t)count))
            return i;
    if (link->groups == HZP_LINK_GROUPS_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "more than %d groups on a link", HZP_LINK_GROUPS_MAX);
    append_group(link, member, count, index);
    int group = link->groups - 1;
    if (link->backend->group)
        HZP_TRY(link->backend->group(link, group, reterr));
    return group;
}

int hzp_link_narrow(struct hzp_link *link, const int *rank, int count, struct hzp_err_text *reterr)
{
    HZP_ASSERT(link->groups == 1 && atomic_load(&link->posted) == 0);
    int group = hzp_link_group(link, rank, count, reterr);
    HZP_TRY(group);
    link->narrow = group;
    return HZP_OK;
}

static int split(struct hzp_link *link, struct hzp_link **ret, struct hzp_err_text *reterr)
{
    int at = 0;
    HZP_ASSERT(atomic_load(&link->done) == atomic_load(&link->posted));
    if (atomic_load(&link->failed))
        return failure(link, reterr);
    if (!link->backend->split)
        return hzp_fail(reterr, HZP_EUNSUP, "link %s: it has one order only", link->backend->name);
    while (at < HZP_LINK_SPLITS_MAX && link->split[at])
        at++;
    if (at == HZP_LINK_SPLITS_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "more than %d links split off one",
                        HZP_LINK_SPLITS_MAX);
    HZP_TRY(link->backend->split(link, ret, reterr));
    hzp_lock_take(&link->all);
    (*ret)->root = link;
    link->split[at] = *ret;
    hzp_lock_release(&link->all);
    if (atomic_load(&link->failed)) /* perhaps before it was in the list */
        fail_family(link);
    return HZP_OK;
}

int hzp_link_split(struct hzp_link *link, struct hzp_link **ret, struct hzp_err_text *reterr)
{
    const struct hzp_link_group *ranks = &link->group[link->narrow];
    struct hzp_link *second = NULL;
    HZP_TRY(split(link->root ? link->root : link, &second, reterr));
    int r = link->narrow ? hzp_link_narrow(second, ranks->rank, ranks->count, reterr) : HZP_OK;
    if (r < 0)
        hzp_link_close(second);
    else
        *ret = second;
    return r;
}

int hzp_link_register(struct hzp_link *link, void *memory, size_t size, struct hzp_err_text *reterr)
{
    if (atomic_load(&link->failed))
        return failure(link, reterr);
    return link->backend->announce ? link->backend->announce(link, memory, size, reterr) : HZP_OK;
}

/* Whether [a, a + size_a) and [b, b + size_b) share a byte. */
static bool overlap(const char *a, size_t size_a, const char *b, size_t size_b)
{
    return a < b + size_b && b < a + size_a;
}

static bool buffers_valid(const struct hzp_link *link, const struct hzp_transfer *t)
{
    const struct hzp_link_group *group = &link->group[t->group];
    size_t size = hzp_wire_size(t->type), piece = t->count * size;
    size_t all = piece * (size_t)group->count, at = piece * (size_t)group->index;
    const char *send = t->send;
    const char *recv = t->recv;
    if (t->pitch)
        all += (t->pitch - t->count) * size * ((size_t)group->count - 1);
    if (!piece)
        return true;
    if (!recv || (uintptr_t)recv % size)
        return false;
    if (t->op == HZP_BROADCAST)
        return true;
    if (!send || (uintptr_t)send % size)
        return false;
    switch (t->op) {
    case HZP_ALL_GATHER:
        return send == recv + at || !overlap(send, piece, recv, all);
    case HZP_REDUCE_SCATTER:
        return (recv == send + at && !t->onto) || !overlap(send, all, recv, piece);
    default:
        return send == recv || !overlap(send, piece, recv, piece);
    }
}

static int transfer_check(const struct hzp_link *link, const struct hzp_transfer *t,
                          struct hzp_err_text *reterr)
{
    if ((unsigned)t->op >= HZP_TRANSFER_OP_COUNT || (unsigned)t->type >= HZP_WIRE_COUNT)
        return hzp_fail(reterr, HZP_EINVAL, "a transfer of an unknown operation or type");
    if (t->group < 0 || t->group >= link->groups)
        return hzp_fail(reterr, HZP_EINVAL, "%s on group %d, of %d", op_name[t->op], t->group,
                        link->groups);
    int members = link->group[t->group].count;
    bool sums = t->op == HZP_REDUCE_SCATTER || t->op == HZP_ALL_REDUCE;
    if (sums && t->type == HZP_WIRE_BYTE)
        return hzp_fail(reterr, HZP_EINVAL, "%s of bytes: they have no sum", op_name[t->op]);
    if (t->onto && t->op != HZP_REDUCE_SCATTER)
        return hzp_fail(reterr, HZP_EINVAL, "%s onto what recv holds", op_name[t->op]);
    if (t->nonzero && !(t->onto && t->type == HZP_WIRE_F32))
        return hzp_fail(reterr, HZP_EINVAL, "%s of %s that names a number of nonzero elements",
                        op_name[t->op], wire_name[t->type]);
    if (t->pitch && (!t->onto || t->pitch < t->count))
        return hzp_fail(reterr, HZP_EINVAL, "%s of %zu elements with pieces %zu apart",
                        op_name[t->op], t->count, t->pitch);
    if (t->op == HZP_BROADCAST ? t->root < 0 || t->root >= members : t->root != 0)
        return hzp_fail(reterr, HZP_EINVAL, "%s with root %d of %d", op_name[t->op], t->root,
                        members);
    if (HZP_MAX(t->count, t->pitch) > SIZE_MAX / 16 / (size_t)members)
        return hzp_fail(reterr, HZP_EINVAL, "%s of %zu elements", op_name[t->op], t->count);
    if (!buffers_valid(link, t))
        return hzp_fail(reterr, HZP_EINVAL, "%s with buffers that overlap, are NULL or unaligned",
                        op_name[t->op]);
    return HZP_OK;
}

/* Looks at the link, and ends what is in flight if it has failed. */
static void attend(struct hzp_link *link)
{
    if (link->backend->progress && !atomic_load(&link->failed))
        link->backend->progress(link);
    if (atomic_load(&link->failed) && link->backend->stop)
        link->backend->stop(link);
}

static int post(struct hzp_link *link, const struct hzp_transfer *transfer, hzp_ticket *ret,
                struct hzp_err_text *reterr)
{
    if (atomic_load(&link->failed))
        return failure(link, reterr);
    struct hzp_transfer mapped = *transfer;
    mapped.group = group_of(link, transfer->group);
    HZP_TRY(transfer_check(link, &mapped, reterr));
    uint64_t posted = atomic_load(&link->posted);
    if (posted - atomic_load(&link->done) == HZP_LINK_TICKETS_MAX)
        return hzp_fail(reterr, HZP_EBUSY, "%d transfers are not done", HZP_LINK_TICKETS_MAX);
    struct hzp_transfer *copy = &link->queue[(posted + 1) % HZP_LINK_TICKETS_MAX];
    *copy = mapped;
    HZP_TRY(link->backend->post(link, posted + 1, copy, reterr));
    *ret = posted + 1;
    return HZP_OK;
}

int hzp_link_post(struct hzp_link *link, const struct hzp_transfer *transfer, hzp_ticket *ret,
                  struct hzp_err_text *reterr)
{
    int r = post(link, transfer, ret, reterr);
    if (r == HZP_EIO)
        attend(link); /* the caller gives up, and may poll no more */
    return r;
}

int hzp_link_enqueue(struct hzp_link *link, const struct hzp_transfer *transfer, void *stream,
                     struct hzp_err_text *reterr)
{
    if (atomic_load(&link->failed))
        return failure(link, reterr);
    HZP_TRY(transfer_check(link, transfer, reterr));
    if (!link->backend->enqueue || transfer->host || transfer->group || link->narrow)
        return hzp_fail(reterr, HZP_EUNSUP, "link %s: %s on a stream", link->backend->name,
                        op_name[transfer->op]);
    HZP_TRY(link->backend->enqueue(link, transfer, stream, reterr));
    atomic_fetch_add(&link->wire_bytes, hzp_transfer_cost(transfer, link->ranks));
    return HZP_OK;
}

int hzp_link_check(struct hzp_link *link, struct hzp_err_text *reterr)
{
    attend(link);
    return atomic_load(&link->failed) ? failure(link, reterr) : HZP_OK;
}

int hzp_link_poll(struct hzp_link *link, hzp_ticket ticket, struct hzp_err_text *reterr)
{
    HZP_ASSERT(ticket <= atomic_load(&link->posted));
    if (ticket <= atomic_load(&link->done))
        return 1;
    attend(link);
    if (ticket <= atomic_load(&link->done))
        return 1;
    return atomic_load(&link->failed) ? failure(link, reterr) : 0;
}

int hzp_link_wait(struct hzp_link *link, hzp_ticket ticket, struct hzp_err_text *reterr)
{
    for (;;) {
        int r = hzp_link_poll(link, ticket, reterr);
        if (r)
            return r < 0 ? r : HZP_OK;
        link->backend->wait(link, ticket);
    }
}

int hzp_link_move(struct hzp_link *link, const struct hzp_transfer *transfer,
                  struct hzp_err_text *reterr)
{
    hzp_ticket ticket;
    HZP_TRY(hzp_link_post(link, transfer, &ticket, reterr));
    return hzp_link_wait(link, ticket, reterr);
}

int hzp_link_broadcast(struct hzp_link *link, int root, void *data, size_t bytes, uint64_t tag,
                       struct hzp_err_text *reterr)
{
    struct hzp_transfer t = {
        .op = HZP_BROADCAST, .root = root, .count = bytes, .recv = data, .host = true, .tag = tag};
    return hzp_link_move(link, &t, reterr);
}

int hzp_link_gather(struct hzp_link *link, const void *mine, size_t bytes, void *all, uint64_t tag,
                    struct hzp_err_text *reterr)
{
    struct hzp_transfer t = {
        .op = HZP_ALL_GATHER, .count = bytes, .send = mine, .recv = all, .host = true, .tag = tag};
    return hzp_link_move(link, &t, reterr);
}

int hzp_link_agree(struct hzp_link *link, int code, const struct hzp_err_text *own, uint64_t tag,
                   struct hzp_err_text *reterr)
{
    struct outcome {
        int32_t code;
        char text[480];
    } mine = {.code = code}, *all = hzp_xcalloc((size_t)hzp_link_ranks(link), sizeof(*all));
    if (code < 0)
        snprintf(mine.text, sizeof(mine.text), "%.479s",
                 own->text[0] ? own->text : hzp_err_name(code));
    int r = hzp_link_gather(link, &mine, sizeof(mine), all, tag, reterr);
    for (int i = 0; i < hzp_link_ranks(link) && r >= 0; i++)
        if (all[i].code < 0)
            r = hzp_fail(reterr, all[i].code, "rank %d: %s", i, all[i].text);
    free(all);
    return r;
}

int hzp_link_begin_transfer(struct hzp_link *link, const struct hzp_transfer *transfer,
                            struct hzp_err_text *reterr)
{
    if (link->begun_count == HZP_LINK_BEGUN_MAX)
        return hzp_fail(reterr, HZP_EBUSY, "%s: %d transfers were begun and not ended",
                        op_name[transfer->op], HZP_LINK_BEGUN_MAX);
    HZP_TRY(hzp_link_post(link, transfer, &link->begun[link->begun_count], reterr));
    link->begun_count++;
    return HZP_OK;
}

int hzp_link_end_transfer(struct hzp_link *link, struct hzp_err_text *reterr)
{
    if (link->begun_count == 0)
        return hzp_fail(reterr, HZP_EINVAL, "the end of a transfer that was not begun");
    hzp_ticket oldest = link->begun[0];
    link->begun_count--;
    for (int i = 0; i < link->begun_count; i++)
        link->begun[i] = link->begun[i + 1];
    return hzp_link_wait(link, oldest, reterr);
}

int hzp_link_end_all(struct hzp_link *link, struct hzp_err_text *reterr)
{
    while (link && link->begun_count > 0)
        HZP_TRY(hzp_link_end_transfer(link, reterr));
    return HZP_OK;
}

void hzp_link_set_wake(struct hzp_link *link, void (*wake)(void *ctx), void *ctx)
{
    hzp_lock_take(&link->lock);
    link->wake = wake;
    link->wake_ctx = ctx;
    hzp_lock_release(&link->lock);
    if (link->backend->set_wake)
        link->backend->set_wake(link, wake, ctx);
}

void hzp_link_abort(struct hzp_link *link, int rank, const char *why)
{
    hzp_link_fail(link, rank, why);
    if (link->backend->abort)
        link->backend->abort(link, rank, why);
}

static void add_state(struct hzp_link *link, struct hzp_link_state *ret)
{
    ret->done += atomic_load(&link->done);
    ret->posted += atomic_load(&link->posted);
    ret->wire_bytes += atomic_load(&link->wire_bytes);
    if (ret->missing < 0 && link->backend->missing && !atomic_load(&link->failed))
        ret->missing = link->backend->missing(link);
}

void hzp_link_state(struct hzp_link *link, struct hzp_link_state *ret)
{
    *ret = (struct hzp_link_state){.missing = -1, .failed_rank = -1};
    add_state(link, ret);
    hzp_lock_take(&link->all);
    ret->done += link->closed.done;
    ret->posted += link->closed.posted;
    ret->wire_bytes += link->closed.wire_bytes;
    for (int i = 0; i < HZP_LINK_SPLITS_MAX; i++)
        if (link->split[i])
            add_state(link->split[i], ret);
    hzp_lock_release(&link->all);
    ret->failed = atomic_load(&link->failed);
    if (!ret->failed)
        return;
    HZP_LOCKED(&link->lock);
    ret->failed_rank = link->failed_rank;
    ret->left = link->left;
    snprintf(ret->why, sizeof(ret->why), "%s", link->why);
}

void hzp_link_close(struct hzp_link *link)
{
    if (!link)
        return;
    struct hzp_link *root = link->root;
    hzp_lock_take(root ? &root->all : &link->all);
    for (int i = 0; i < HZP_LINK_SPLITS_MAX; i++) {
        HZP_ASSERT(!link->split[i]);
        if (root && root->split[i] == link)
            root->split[i] = NULL;
    }
    if (root) {
        root->closed.done += atomic_load(&link->done);
        root->closed.posted += atomic_load(&link->posted);
        root->closed.wire_bytes += atomic_load(&link->wire_bytes);
    }
    hzp_lock_release(root ? &root->all : &link->all);
    link->backend->close(link);
}

bool hzp_link_about(int i, struct hzp_link_about *ret)
{
    static const struct {
        const char *name;
        bool (*about)(char *text, size_t size);
    } kinds[] = {
        {"mpi", hzp_link_mpi_about}, {"zmq", hzp_link_zmq_about}, {"nccl", hzp_link_nccl_about}};
    if (i < 0 || i >= HZP_COUNT(kinds))
        return false;
    ret->name = kinds[i].name;
    ret->usable = kinds[i].about(ret->text, sizeof(ret->text));
    return true;
}
