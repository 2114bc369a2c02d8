/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/clock.c - the order of tasks, and whether two tasks that touch the same memory
 * are ordered.
 *
 * Every stream counts its tasks, and keeps for every other stream the newest task of it that is
 * certain to have ended before its own next one: through events it waited for, or because the
 * host waited before it issued the task.  An access records its stream and task.  If a later
 * access of another stream overlaps it and one of the two writes, that task must be certain to
 * have ended.  This is judged when work is issued, so the result does not depend on chance.
 * Within a capture the same holds among the graph's own nodes; a launch then counts as all their
 * accesses at once.
 */
#include "tests/cudafake/core.h"

#include <stdlib.h>
#include <string.h>

enum { TOUCHES = 1 << 16 };

static uint64_t count[FAKE_STREAMS]; /* tasks of streams, by index; indexes are reused */
static bool taken[FAKE_STREAMS];
static struct fake_clock host;
static struct fake_touched live;
static fake_meet *meet;

int fake_index_take(void)
{
    for (int i = 0; i < FAKE_STREAMS; i++)
        if (!taken[i]) {
            taken[i] = true;
            return i;
        }
    abort();
}

void fake_index_give(int index)
{
    taken[index] = false;
}

static void merge(struct fake_clock *into, const struct fake_clock *from)
{
    for (int i = 0; i < FAKE_STREAMS; i++)
        if (from->newest[i] > into->newest[i])
            into->newest[i] = from->newest[i];
}

struct fake_clock *fake_clock_of(struct fake_stream *stream)
{
    return stream->capture ? &stream->captured : &stream->clock;
}

void fake_clock_tick(struct fake_stream *stream)
{
    struct fake_clock *clock = fake_clock_of(stream);
    if (!stream->capture)
        merge(clock, &host);
    uint64_t *of = stream->capture ? stream->capture->count : count;
    clock->newest[stream->index] = ++of[stream->index];
}

void fake_clock_wait(struct fake_stream *stream, const struct fake_event *event)
{
    merge(fake_clock_of(stream), &event->clock);
}

bool fake_clock_joined(const struct fake_stream *origin)
{
    for (int i = 0; i < FAKE_STREAMS; i++)
        if (origin->captured.newest[i] < origin->capture->count[i])
            return false;
    return true;
}

/* ---- what the host waited for ---- */

static void drop_ended(void)
{
    int kept = 0;
    for (int i = 0; i < live.count; i++) {
        struct fake_access *a = &live.of[i];
        if (a->task <= host.newest[a->index])
            free(a->touch.data);
        else
            live.of[kept++] = *a;
    }
    live.count = kept;
}

void fake_clock_host(const struct fake_clock *clock)
{
    merge(&host, clock);
    drop_ended();
}

void fake_clock_host_all(void)
{
    memcpy(host.newest, count, sizeof(count));
    drop_ended();
}

/* ---- memory ---- */

void fake_touched_free(struct fake_touched *touched)
{
    for (int i = 0; i < touched->count; i++)
        free(touched->of[i].touch.data);
    free(touched->of);
    memset(touched, 0, sizeof(*touched));
}

static bool same_shape(const struct fake_touch *a, const struct fake_touch *b)
{
    return a->size == b->size && (!a->size || memcmp(a->data, b->data, a->size) == 0);
}

/* True if every access that conflicts with `old` also conflicts with `new`, and is ordered
   behind both once it is ordered behind `new`. */
static bool supersedes(const struct fake_touch *new, const struct fake_touch *old)
{
    bool covers = new->size == 0 && new->begin <= old->begin &&new->end >= old->end;
    bool same = new->begin == old->begin &&new->end == old->end &&same_shape(new, old);
    return (covers || same) && (new->writes || !old->writes);
}

static bool meets(const struct fake_touch *a, const struct fake_touch *b)
{
    if ((!a->writes && !b->writes) || a->begin >= b->end || b->begin >= a->end)
        return false;
    return !meet || !a->size || !b->size || meet(a->data, b->data);
}

static void add(struct fake_touched *list, const struct fake_clock *clock, int index, uint64_t task,
                const struct fake_touch *touch)
{
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        struct fake_access *a = &list->of[i];
        bool before = clock->newest[a->index] >= a->task;
        if (!before && meets(&a->touch, touch))
            fake_mistake("a race: %s and then %s, unordered, share bytes at %p", a->touch.name,
                         touch->name,
                         (void *)(a->touch.begin > touch->begin ? a->touch.begin : touch->begin));
        if (before && (touch->writes || a->index == index) && supersedes(touch, &a->touch))
            free(a->touch.data);
        else
            list->of[kept++] = *a;
    }
    list->count = kept;
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 256;
        list->of = realloc(list->of, (size_t)list->room * sizeof(*list->of));
    }
    if (list->count == TOUCHES)
        abort();
    struct fake_access *a = &list->of[list->count++];
    *a = (struct fake_access){.index = index, .task = task, .touch = *touch};
    if (touch->size) {
        a->touch.data = malloc(touch->size);
        memcpy(a->touch.data, touch->data, touch->size);
    }
}

void fake_touch_one(struct fake_stream *stream, const struct fake_touch *touch)
{
    const struct fake_clock *clock = fake_clock_of(stream);
    if (touch->begin < touch->end)
        add(stream->capture ? &stream->capture->touched : &live, clock, stream->index,
            clock->newest[stream->index], touch);
}

void fake_touch_copy(struct fake_stream *stream, const char *name, const void *ptr, size_t size,
                     bool writes)
{
    struct fake_touch touch = {
        .begin = (uintptr_t)ptr, .end = (uintptr_t)ptr + size, .writes = writes, .name = name};
    if (fake_is_device(ptr)) /* accesses to ordinary host memory are the host's to order */
        fake_touch_one(stream, &touch);
}

void fake_touch_graph(struct fake_stream *stream, const struct fake_graph *graph)
{
    for (int i = 0; i < graph->touched.count; i++)
        fake_touch_one(stream, &graph->touched.of[i].touch);
}

void fake_touched_copy(struct fake_touched *to, const struct fake_touched *from)
{
    struct fake_clock none = {{0}};
    memset(none.newest, 0xff, sizeof(none.newest)); /* all ordered: the capture judged them */
    for (int i = 0; i < from->count; i++)
        add(to, &none, -1, 0, &from->of[i].touch);
}

void fake_touches(cudaStream_t handle, const struct fake_touch *touch, int touches, fake_meet *by)
{
    fake_enter();
    struct fake_stream *stream = fake_stream_find(handle, "fake_touches");
    meet = by;
    for (int i = 0; i < touches && stream; i++)
        fake_touch_one(stream, &touch[i]);
    fake_leave();
}
