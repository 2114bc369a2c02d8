/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/crash/cut.h"

#include "tests/serve/seeded.h"
#include "tests/weights/scratch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NODES_MAX = 20000, ENTRIES_MAX = 400, SECTOR = 512 };

struct entry {
    char name[DISK_PATH];
    int32_t node;
};

struct names {
    struct entry *entry;
    int32_t count;
};

/* A change of a directory's names that was not synced: `gone` is taken away, `come` added. */
struct change {
    int32_t op; /* of the tape */
    char gone[DISK_PATH], come[DISK_PATH];
    int32_t node;
};

struct node {
    bool dir;
    /* file: what is safe, and the tape's writes that are not */
    char *safe;
    size_t size;
    int32_t *pending, pendings;
    /* directory */
    struct names now, synced;
    struct change *change;
    int32_t changes;
};

struct cut {
    enum cut_mode mode;
    uint64_t seed;
    int32_t last_sync; /* the newest sync of the tape, of anything */
    struct node *node; /* [nodes]; 0 is the watched directory */
    int32_t nodes;
    int32_t *opened; /* [tape] the node of a DISK_OPEN */
};

const char *cut_mode_name(enum cut_mode mode)
{
    static const char *const name[] = {"kept", "lost", "ordered", "any"};
    return name[mode];
}

static uint32_t draw(struct cut *c, uint32_t n)
{
    return seeded(&c->seed, n);
}

/* --- Names ------------------------------------------------------------------------------------ */

static int32_t find(const struct names *n, const char *name)
{
    for (int32_t i = 0; i < n->count; i++)
        if (!strcmp(n->entry[i].name, name))
            return i;
    return -1;
}

static void take_away(struct names *n, const char *name)
{
    int32_t i = find(n, name);
    if (i >= 0)
        n->entry[i] = n->entry[--n->count];
}

static void add_name(struct names *n, const char *name, int32_t node)
{
    take_away(n, name);
    n->entry = hzp_xrealloc(n->entry, (size_t)(n->count + 1) * sizeof(*n->entry));
    snprintf(n->entry[n->count].name, DISK_PATH, "%s", name);
    n->entry[n->count++].node = node;
}

static int32_t new_node(struct cut *c, bool dir)
{
    HZP_ASSERT(c->nodes < NODES_MAX);
    c->node[c->nodes] = (struct node){.dir = dir};
    return c->nodes++;
}

/* The directory that the path lies in; *ret_name: its last part. */
static int32_t parent_of(struct cut *c, const char *path, const char **ret_name)
{
    int32_t at = 0;
    for (const char *slash; (slash = strchr(path, '/')); path = slash + 1) {
        char part[DISK_PATH];
        snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
        int32_t i = find(&c->node[at].now, part);
        HZP_ASSERT(i >= 0);
        at = c->node[at].now.entry[i].node;
    }
    *ret_name = path;
    return at;
}

static int32_t node_of(struct cut *c, const char *path)
{
    const char *name;
    int32_t parent = parent_of(c, path, &name);
    if (!*name)
        return parent;
    int32_t i = find(&c->node[parent].now, name);
    HZP_ASSERT(i >= 0);
    return c->node[parent].now.entry[i].node;
}

static void apply_change(struct names *n, const struct change *change)
{
    if (change->gone[0])
        take_away(n, change->gone);
    if (change->come[0])
        add_name(n, change->come, change->node);
}

/* In one step, as a rename within a directory is. */
static void change_names(struct cut *c, int32_t op, int32_t dir, const char *gone, const char *come,
                         int32_t node)
{
    struct node *d = &c->node[dir];
    d->change = hzp_xrealloc(d->change, (size_t)(d->changes + 1) * sizeof(*d->change));
    struct change *change = &d->change[d->changes++];
    *change = (struct change){.op = op, .node = node};
    snprintf(change->gone, DISK_PATH, "%s", gone ? gone : "");
    snprintf(change->come, DISK_PATH, "%s", come ? come : "");
    apply_change(&d->now, change);
}

static void replay_rename(struct cut *c, int32_t i, const struct disk_op *op)
{
    const char *gone, *come;
    int32_t node = node_of(c, op->path);
    int32_t from = parent_of(c, op->path, &gone), to = parent_of(c, op->to, &come);
    if (from == to) {
        change_names(c, i, from, gone, come, node);
        return;
    }
    change_names(c, i, to, NULL, come, node);
    change_names(c, i, from, gone, NULL, 0);
}

/* --- Contents --------------------------------------------------------------------------------- */

static void resize(struct node *f, size_t size)
{
    f->safe = hzp_xrealloc(f->safe, size + 1);
    if (size > f->size)
        memset(f->safe + f->size, 0, size - f->size);
    f->size = size;
}

static void apply_write(struct node *f, const struct disk_op *op, size_t from, size_t to)
{
    size_t at = (size_t)op->at;
    HZP_ASSERT(to <= op->size);
    if (from >= to)
        return;
    if (at + to > f->size)
        resize(f, at + to);
    memcpy(f->safe + at + from, (const char *)disk_data(op) + from, to - from);
}

static void apply_whole(struct node *f, const struct disk_op *op)
{
    if (op->call == DISK_WRITE)
        apply_write(f, op, 0, op->size);
    else
        resize(f, op->call == DISK_OPEN ? 0 : (size_t)op->at);
}

/* Some of what was not synced is there. */
static void apply_some(struct cut *c, struct node *f)
{
    uint32_t each = draw(c, 4); /* 0: none, 1: all, else each on its own */
    for (int32_t i = 0; i < f->pendings; i++) {
        const struct disk_op *op = disk_op(f->pending[i]);
        uint32_t kind = each == 1 ? 0 : each == 0 ? 1 : draw(c, 5);
        size_t sectors = op->size / SECTOR + 1;
        size_t first = (size_t)draw(c, (uint32_t)sectors) * SECTOR;
        size_t more = (size_t)draw(c, (uint32_t)sectors) * SECTOR;
        size_t last = HZP_MIN(op->size, first + more); /* the macro takes its arguments twice */
        if (kind == 0 || op->call != DISK_WRITE) {
            if (kind != 1)
                apply_whole(f, op);
        } else if (kind == 2) {
            apply_write(f, op, first, last);
        } else if (kind == 3) {
            apply_write(f, op, 0, first < op->size ? first : op->size);
        } else if (kind == 4 && (size_t)op->at + op->size > f->size) {
            resize(f, (size_t)op->at + op->size); /* its length, and zeros */
        }
    }
    f->pendings = 0;
}

static void sync_node(struct cut *c, struct node *f, bool failed)
{
    if (failed && !f->dir) {
        apply_some(c, f);
    } else if (failed) {
        return; /* names are written again by the next sync */
    } else if (f->dir) {
        for (int32_t i = 0; i < f->changes; i++)
            apply_change(&f->synced, &f->change[i]);
        f->changes = 0;
    } else {
        for (int32_t i = 0; i < f->pendings; i++)
            apply_whole(f, disk_op(f->pending[i]));
        f->pendings = 0;
    }
}

static void add_pending(struct node *f, int32_t op)
{
    f->pending = hzp_xrealloc(f->pending, (size_t)(f->pendings + 1) * sizeof(*f->pending));
    f->pending[f->pendings++] = op;
}

/* --- The tape --------------------------------------------------------------------------------- */

static void replay_open(struct cut *c, int32_t i, const struct disk_op *op)
{
    const char *name;
    if (op->created) {
        int32_t dir = parent_of(c, op->path, &name);
        change_names(c, i, dir, NULL, name, new_node(c, false));
    }
    c->opened[i] = node_of(c, op->path);
    if (op->truncated)
        add_pending(&c->node[c->opened[i]], i);
}

static void replay(struct cut *c, int32_t i)
{
    const struct disk_op *op = disk_op(i);
    const char *name;
    int32_t dir;
    switch (op->call) {
    case DISK_OPEN:
        replay_open(c, i, op);
        break;
    case DISK_WRITE:
    case DISK_TRUNCATE:
        add_pending(&c->node[c->opened[op->handle]], i);
        break;
    case DISK_SYNC:
        sync_node(c, &c->node[c->opened[op->handle]], op->failed);
        c->last_sync = op->failed ? c->last_sync : i;
        break;
    case DISK_RENAME:
        replay_rename(c, i, op);
        break;
    case DISK_UNLINK:
        dir = parent_of(c, op->path, &name);
        change_names(c, i, dir, name, NULL, 0);
        break;
    case DISK_MKDIR:
        dir = parent_of(c, op->path, &name);
        change_names(c, i, dir, NULL, name, new_node(c, true));
        break;
    case DISK_LINK: {
        int32_t node = node_of(c, op->path);
        dir = parent_of(c, op->to, &name);
        change_names(c, i, dir, NULL, name, node);
        break;
    }
    default:
        break;
    }
}

/* --- What is left ----------------------------------------------------------------------------- */

/* ends: of CUT_ORDERED, the first change of names that is lost. */
static void settle(struct cut *c, struct node *n, int32_t ends)
{
    for (int32_t i = 0; n->dir && i < n->changes; i++) {
        bool there = c->mode == CUT_KEPT || (c->mode == CUT_ORDERED && n->change[i].op < ends) ||
                     (c->mode == CUT_ANY && draw(c, 2));
        if (there)
            apply_change(&n->synced, &n->change[i]);
    }
    if (n->dir || c->mode == CUT_LOST)
        return;
    if (c->mode == CUT_KEPT)
        sync_node(c, n, false);
    else
        apply_some(c, n);
}

static void put_node(struct cut *c, const struct node *n, const char *to)
{
    char path[600];
    if (!n->dir) {
        scratch_write(to, n->safe ? n->safe : "", n->size);
        return;
    }
    HZP_ASSERT(mkdir(to, 0777) == 0);
    for (int32_t i = 0; i < n->synced.count; i++) {
        snprintf(path, sizeof(path), "%s/%s", to, n->synced.entry[i].name);
        put_node(c, &c->node[n->synced.entry[i].node], path);
    }
}

void cut_make(int32_t ops, enum cut_mode mode, uint64_t seed, const char *to)
{
    struct cut c = {.mode = mode, .seed = seed, .last_sync = -1};
    c.node = hzp_xcalloc(NODES_MAX, sizeof(*c.node));
    c.opened = hzp_xcalloc((size_t)HZP_MAX(ops, 1), sizeof(*c.opened));
    new_node(&c, true);
    for (int32_t i = 0; i < ops; i++)
        replay(&c, i);
    int32_t ends = c.last_sync + 1 + (int32_t)draw(&c, (uint32_t)(ops - c.last_sync));
    for (int32_t i = 0; i < c.nodes; i++)
        settle(&c, &c.node[i], ends);
    put_node(&c, &c.node[0], to);
    for (int32_t i = 0; i < c.nodes; i++) {
        struct node *n = &c.node[i];
        free(n->safe);
        free(n->pending);
        free(n->now.entry);
        free(n->synced.entry);
        free(n->change);
    }
    free(c.node);
    free(c.opened);
}
