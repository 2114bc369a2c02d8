/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/core.c - objects, streams of tasks, and the order they run in. */
#include "tests/cudafake/core.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { CALLS = 1 << 16, TEXT = 1 << 14, ALLOCS = 4096 };
static const size_t ARENA = (size_t)1 << 37; /* address space only: no address is reused */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_call *record;
static int calls, counts[FAKE_THEN + 1], made;
static bool steady;
static char mistakes[TEXT], leaks[TEXT];
enum { STREAMS = 0 };                           /* of objects */
static struct fake_object *objects[FAKE_TYPES]; /* a list for each type; streams: newest first */
static uint64_t ids;
static unsigned state = 1;
static __thread int capturing; /* captures that this thread has begun and not ended */
static struct {
    char function[64];
    int after, error;
} failing;
static double clock_extra;

static struct alloc {
    char *ptr;
    size_t size;
    bool host, live;
} alloc_of[ALLOCS];
static int allocs;
static char *arena;
static size_t arena_begin, arena_used;
static int open_depth;

int fake_sms = 132;
size_t fake_memory = (size_t)64 << 30;

void fake_enter(void)
{
    pthread_mutex_lock(&lock);
}

void fake_leave(void)
{
    pthread_mutex_unlock(&lock);
}

void fake_mistake(const char *format, ...)
{
    size_t used = strlen(mistakes);
    va_list list;
    va_start(list, format);
    vsnprintf(mistakes + used, sizeof(mistakes) - used, format, list);
    va_end(list);
    used = strlen(mistakes);
    snprintf(mistakes + used, sizeof(mistakes) - used, "\n");
}

void fake_reset(unsigned seed)
{
    fake_enter();
    calls = 0;
    memset(counts, 0, sizeof(counts));
    mistakes[0] = 0;
    state = seed * 2654435761u + 1;
    failing.function[0] = 0;
    clock_extra = 0;
    steady = false;
    fake_leave();
}

int fake_calls(void)
{
    return calls;
}

const struct fake_call *fake_call_at(int i)
{
    return &record[i];
}

int fake_count(enum fake_kind kind)
{
    return counts[kind];
}

const char *fake_mistakes(void)
{
    return mistakes;
}

void fake_set_sms(int sms)
{
    fake_sms = sms;
}

void fake_set_memory(size_t bytes)
{
    fake_memory = bytes;
}

void fake_fail(const char *function, int after, int error)
{
    fake_enter();
    snprintf(failing.function, sizeof(failing.function), "%s", function);
    failing.after = after;
    failing.error = error;
    fake_leave();
}

bool fake_fails(const char *function, int *ret_error)
{
    if (strcmp(failing.function, function) != 0 || failing.after-- > 0)
        return false;
    failing.function[0] = 0;
    *ret_error = failing.error;
    return true;
}

double fake_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec - 5e9 + clock_extra;
}

void fake_clock_add(double ns)
{
    clock_extra += ns;
}

/* ---- objects ---- */

void *fake_object_new(enum fake_type type, size_t size)
{
    struct fake_object *object = calloc(1, size);
    object->type = type;
    object->id = ++ids;
    object->next = objects[type - FAKE_STREAM];
    objects[type - FAKE_STREAM] = object;
    return object;
}

void fake_object_free(void *handle)
{
    struct fake_object *object = handle;
    for (struct fake_object **at = &objects[object->type - FAKE_STREAM]; *at; at = &(*at)->next)
        if (*at == handle) {
            *at = (*at)->next;
            free(handle);
            return;
        }
}

void *fake_object_find(const void *handle, enum fake_type type, const char *function)
{
    struct fake_object **first = &objects[type - FAKE_STREAM], **at = first;
    while (*at && (const void *)*at != handle)
        at = &(*at)->next;
    struct fake_object *o = *at;
    if (!o)
        fake_mistake("%s: a handle that was never given out, or is gone", function);
    if (o && type != FAKE_STREAM) { /* streams are in the order in which work is looked for */
        *at = o->next;
        o->next = *first; /* it is asked for again soon */
        *first = o;
    }
    return o;
}

struct fake_stream *fake_stream_find(cudaStream_t stream, const char *function)
{
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
        fake_mistake("%s: on the null stream", function);
        return NULL;
    }
    return fake_object_find(stream, FAKE_STREAM, function);
}

const char *fake_leaks(void)
{
    static const char *const names[] = {"stream",     "event",  "graph",     "graph to launch",
                                        "context",    "handle", "product",   "layout",
                                        "preference", "cuDNN",  "descriptor"};
    size_t used = 0;
    fake_enter();
    leaks[0] = 0;
    for (int type = 0; type < FAKE_TYPES; type++)
        for (struct fake_object *o = objects[type]; o && used < TEXT - 100; o = o->next)
            used += (size_t)snprintf(leaks + used, TEXT - used, "%s %llu\n", names[type],
                                     (unsigned long long)o->id);
    for (int i = 0; i < allocs && used < TEXT - 100; i++)
        if (alloc_of[i].live)
            used += (size_t)snprintf(leaks + used, TEXT - used, "%zu bytes of %s memory\n",
                                     alloc_of[i].size, alloc_of[i].host ? "host" : "device");
    fake_leave();
    return leaks;
}

/* ---- memory ---- */

/* The host may touch device memory only while work runs. */
static void memory_open(bool open)
{
    if (open ? open_depth++ > 0 : --open_depth > 0)
        return;
    if (arena_used > arena_begin)
        mprotect(arena + arena_begin, arena_used - arena_begin,
                 open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static struct alloc *alloc_add(void)
{
    int i = 0;
    while (i < allocs && alloc_of[i].ptr)
        i++;
    if (i == ALLOCS)
        abort();
    allocs += i == allocs;
    return &alloc_of[i];
}

void *fake_device_alloc(size_t size)
{
    /* with an unused page between allocations; small ones are aligned to 512 bytes only, as the
     * driver's */
    size_t shift = size < (size_t)1 << 20 ? 512 : 0;
    size_t room = (size + shift + 8191) / 4096 * 4096;
    if (!arena)
        arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED || arena_used + room > ARENA)
        abort();
    struct alloc *a = alloc_add();
    *a = (struct alloc){arena + arena_used + shift, size, false, true};
    arena_used += room;
    memory_open(true);
    mprotect(arena + arena_used - room, room, PROT_READ | PROT_WRITE);
    memset(a->ptr, 0xff, size < 65536 ? size : 65536);
    memory_open(false);
    return a->ptr;
}

void *fake_host_alloc(size_t size)
{
    struct alloc *a = alloc_add();
    *a = (struct alloc){aligned_alloc(4096, (size + 4095) / 4096 * 4096), size, true, true};
    return a->ptr;
}

/* The offset of the lowest live allocation: memory before it stays inaccessible. */
static size_t lowest_live(void)
{
    size_t lowest = arena_used;
    for (int i = 0; i < allocs; i++) {
        if (!alloc_of[i].live || alloc_of[i].host)
            continue;
        size_t at = (size_t)((char *)alloc_of[i].ptr - arena);
        lowest = at < lowest ? at : lowest;
    }
    return lowest / 4096 * 4096;
}

bool fake_device_free(void *ptr)
{
    for (int i = 0; i < allocs; i++)
        if (alloc_of[i].ptr == ptr && alloc_of[i].live && !alloc_of[i].host) {
            alloc_of[i].live = false; /* its addresses are not used again */
            memory_open(true);
            madvise(ptr, alloc_of[i].size / 4096 * 4096, MADV_DONTNEED);
            memory_open(false);
            if (open_depth == 0)
                arena_begin = lowest_live();
            return true;
        }
    return false;
}

bool fake_host_free(void *ptr)
{
    for (int i = 0; i < allocs; i++)
        if (alloc_of[i].ptr == ptr && alloc_of[i].live && alloc_of[i].host) {
            free(ptr);
            memset(&alloc_of[i], 0, sizeof(alloc_of[i]));
            return true;
        }
    return false;
}

size_t fake_device_bytes(void)
{
    size_t bytes = 0;
    for (int i = 0; i < allocs; i++)
        bytes += alloc_of[i].live && !alloc_of[i].host ? alloc_of[i].size : 0;
    return bytes;
}

static size_t driver_context, driver_graph, driver_node, driver_block = 1;

void fake_set_driver(size_t context, size_t graph, size_t node, size_t block)
{
    driver_context = context;
    driver_graph = graph;
    driver_node = node;
    driver_block = block;
}

/* Nodes that the device would have; the recorder's own are not counted. */
static size_t driver_nodes(const struct fake_graph *graph)
{
    size_t count = 0;
    for (const struct fake_task *t = driver_node ? graph->nodes.first : NULL; t; t = t->next)
        count += t->call.kind <= FAKE_SET || t->call.kind == FAKE_PRODUCT;
    return count;
}

size_t fake_used(void)
{
    size_t taken = 0;
    for (struct fake_object *o = objects[FAKE_CONTEXT - FAKE_STREAM]; o; o = o->next)
        taken += driver_context;
    for (struct fake_object *o = objects[FAKE_GRAPH_EXEC - FAKE_STREAM]; o; o = o->next)
        taken += driver_graph + driver_nodes((struct fake_graph *)o) * driver_node;
    return fake_device_bytes() + fake_loaded +
           (taken + driver_block - 1) / driver_block * driver_block;
}

void fake_make(const char *function)
{
    made++;
    if (steady)
        fake_mistake("%s: the start has ended", function);
}

int fake_made(void)
{
    return made;
}

bool fake_steady(bool on)
{
    bool was = steady;
    steady = on;
    return was;
}

bool fake_is_device(const void *ptr)
{
    return arena && (const char *)ptr >= arena && (const char *)ptr < arena + ARENA;
}

bool fake_is_ours(const void *ptr, size_t size)
{
    const char *p = ptr;
    for (int i = 0; i < allocs; i++)
        if (alloc_of[i].live && p >= alloc_of[i].ptr && p <= alloc_of[i].ptr + alloc_of[i].size &&
            size <= (size_t)(alloc_of[i].ptr + alloc_of[i].size - p))
            return true;
    return false;
}

bool fake_is_readable(const void *ptr, size_t size)
{
    if (fake_is_device(ptr))
        return fake_is_ours(ptr, size);
    for (int i = 0; i < allocs; i++)
        if (alloc_of[i].live && alloc_of[i].host && (const char *)ptr >= alloc_of[i].ptr &&
            (const char *)ptr < alloc_of[i].ptr + alloc_of[i].size)
            return fake_is_ours(ptr, size);
    return true;
}

void fake_peek(void *dst, const void *src, size_t size)
{
    fake_enter();
    memory_open(true);
    memcpy(dst, src, size);
    memory_open(false);
    fake_leave();
}

void fake_poke(void *dst, const void *src, size_t size)
{
    fake_peek(dst, src, size);
}

/* ---- tasks ---- */

static void queue_add(struct fake_queue *queue, struct fake_task *task)
{
    if (queue->last)
        queue->last->next = task;
    else
        queue->first = task;
    queue->last = task;
    queue->count++;
}

struct fake_task *fake_put(struct fake_stream *stream, enum fake_kind kind)
{
    struct fake_task *task = calloc(1, sizeof(*task));
    task->call.kind = kind;
    task->call.stream = stream->object.id;
    task->call.captured = stream->capture;
    task->call.graph = stream->capture ? stream->capture->object.id : 0;
    task->after = -1;
    if (stream->capture)
        task->node = stream->capture->nodes.count;
    fake_clock_tick(stream);
    task->call.priority = stream->priority;
    if (stream->context) {
        task->call.sm_from = stream->context->from;
        task->call.sm_to = stream->context->to;
    }
    queue_add(stream->capture ? &stream->capture->nodes : &stream->queue, task);
    return task;
}

static void note(const struct fake_task *task)
{
    if (!record)
        record = calloc(CALLS, sizeof(*record));
    counts[task->call.kind]++;
    if (calls < CALLS)
        record[calls++] = task->call;
}

/* Called when the caller has filled the task in. */
void fake_put_done(struct fake_task *task)
{
    note(task);
}

static struct fake_task *task_copy(const struct fake_task *task)
{
    struct fake_task *copy = malloc(sizeof(*copy));
    *copy = *task;
    copy->next = NULL;
    copy->done = NULL;
    if (task->args) {
        copy->args = malloc(task->args_size);
        memcpy(copy->args, task->args, task->args_size);
    }
    return copy;
}

void fake_queue_copy(struct fake_queue *to, const struct fake_queue *from)
{
    memset(to, 0, sizeof(*to));
    for (const struct fake_task *task = from->first; task; task = task->next)
        queue_add(to, task_copy(task));
}

struct fake_record *fake_record_use(struct fake_record *of)
{
    if (!of)
        of = calloc(1, sizeof(*of));
    of->users++;
    return of;
}

void fake_record_drop(struct fake_record *of)
{
    if (of && --of->users == 0)
        free(of);
}

static void task_free(struct fake_task *task)
{
    fake_record_drop(task->record);
    free(task->done);
    free(task->args);
    free(task);
}

void fake_graph_drop(struct fake_graph *graph)
{
    if (--graph->users > 0)
        return;
    while (graph->nodes.first) {
        struct fake_task *task = graph->nodes.first;
        graph->nodes.first = task->next;
        task_free(task);
    }
    fake_touched_free(&graph->touched);
    fake_object_free(graph);
}

static void run_copy(const struct fake_call *call)
{
    if (!fake_is_readable(call->src, call->size) || !fake_is_readable(call->dst, call->size))
        fake_mistake("a copy of %zu bytes runs after its memory was freed", call->size);
    else
        memmove(call->dst, call->src, call->size);
}

static unsigned any_below(unsigned n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % n;
}

static bool run_node(struct fake_task *launch);

/* Returns false if the task has more to run. */
static bool run_task(struct fake_task *task)
{
    switch (task->call.kind) {
    case FAKE_COPY:
        run_copy(&task->call);
        break;
    case FAKE_SET:
        if (fake_is_ours(task->call.dst, task->call.size))
            memset(task->call.dst, task->value, task->call.size);
        else
            fake_mistake("a set of %zu bytes runs after its memory was freed", task->call.size);
        break;
    case FAKE_RECORD:
        if (task->call.captured)
            break; /* only an edge of the graph */
        task->record->done = true;
        task->record->ns = fake_clock_ns();
        break;
    case FAKE_PRODUCT:
        fake_product_run(task);
        break;
    case FAKE_ATTENTION:
    case FAKE_THEN:
        task->run(task->args);
        break;
    case FAKE_KERNEL:
        if (strstr(task->call.name, "flash") || strstr(task->call.name, "bwd_"))
            fake_clock_add(1e3 * fake_dnn.own_microseconds);
        break;
    case FAKE_GRAPH:
        if (run_node(task))
            return false;
        fake_graph_drop(task->graph);
        break;
    default:
        break;
    }
    return true;
}

/* Runs one node of the graph that is ready: the first of its stream whose dependencies have run.
 * Returns false when all nodes have run. */
static bool run_node(struct fake_task *launch)
{
    struct fake_graph *graph = launch->graph;
    struct fake_task *chosen = NULL;
    uint64_t barred[FAKE_STREAMS];
    int bars = 0;
    unsigned seen = 0;
    if (!launch->done)
        launch->done = calloc((size_t)graph->nodes.count + 1, 1);
    for (struct fake_task *node = graph->nodes.first; node; node = node->next) {
        int bar = 0;
        if (launch->done[node->node])
            continue;
        while (bar < bars && barred[bar] != node->call.stream)
            bar++;
        if (bar < bars)
            continue;
        barred[bars++] = node->call.stream;
        if ((node->after < 0 || launch->done[node->after]) && any_below(++seen) == 0)
            chosen = node;
    }
    if (!chosen) {
        if (bars)
            fake_mistake("a graph's nodes wait for one another");
        return false;
    }
    launch->done[chosen->node] = true;
    run_task(chosen);
    return true;
}

static bool runnable(const struct fake_stream *stream)
{
    const struct fake_task *task = stream->queue.first;
    return task && (task->call.kind != FAKE_WAIT || task->record->done) &&
           (!task->ready || task->ready(task->args));
}

/* A stream stands before a task that is not ready. */
static bool stands(void)
{
    for (struct fake_object *o = objects[STREAMS]; o; o = o->next) {
        const struct fake_task *task = ((struct fake_stream *)o)->queue.first;
        if (task && task->ready)
            return true;
    }
    return false;
}

/* The host waits for what another process must do first. */
static void stand_by(void)
{
    int depth = open_depth;
    while (open_depth)
        memory_open(false);
    fake_leave();
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    fake_enter();
    while (open_depth < depth)
        memory_open(true);
}

/* Runs one task of a stream drawn among those that can run; returns false if there is none. */
static bool run_one(void)
{
    struct fake_stream *chosen = NULL;
    unsigned seen = 0;
    for (struct fake_object *o = objects[STREAMS]; o; o = o->next) {
        struct fake_stream *stream = (struct fake_stream *)o;
        if (!runnable(stream))
            continue;
        if (any_below(++seen) == 0)
            chosen = stream;
    }
    if (!chosen)
        return false;
    struct fake_task *task = chosen->queue.first;
    if (!run_task(task))
        return true;
    chosen->queue.first = task->next;
    if (!task->next)
        chosen->queue.last = NULL;
    chosen->queue.count--;
    task_free(task);
    return true;
}

static bool any_left(void)
{
    for (struct fake_object *o = objects[STREAMS]; o; o = o->next)
        if (((struct fake_stream *)o)->queue.first)
            return true;
    return false;
}

bool fake_run_event(struct fake_event *event, bool wait)
{
    struct fake_record *last = fake_record_use(event->last);
    memory_open(true);
    while (!last->done) {
        if (run_one())
            continue;
        if (!stands()) {
            fake_mistake("an event is waited for that nothing will record");
            last->done = true;
        } else if (wait) {
            stand_by();
        } else {
            break;
        }
    }
    memory_open(false);
    bool done = last->done;
    fake_record_drop(last);
    return done;
}

void fake_run_stream(struct fake_stream *stream)
{
    memory_open(true);
    while (stream ? stream->queue.first != NULL : any_left())
        if (!run_one()) {
            if (stands()) {
                stand_by();
                continue;
            }
            fake_mistake("a stream waits for what never comes");
            break;
        }
    memory_open(false);
}

/* ---- functions of the host ---- */

struct host_call {
    void (*run)(void *ctx);
    void *ctx;
};

static int host_calls; /* that have not run yet */
static bool driven;    /* a thread runs streams until they have */

static void run_host_call(const void *args)
{
    struct host_call call;
    memcpy(&call, args, sizeof(call));
    host_calls--;
    call.run(call.ctx);
}

/* As on a device, streams go on while no thread of the host waits for them. */
static void *drive(void *arg)
{
    for (;;) {
        fake_enter();
        driven = host_calls > 0;
        bool goes_on = driven, any = false;
        if (goes_on) {
            memory_open(true);
            any = run_one();
            memory_open(false);
        }
        fake_leave();
        if (!goes_on)
            return NULL;
        if (!any)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

void fake_call_host(cudaStream_t stream, void (*run)(void *ctx), void *ctx)
{
    struct host_call call = {run, ctx};
    pthread_t thread;
    fake_enter();
    host_calls++;
    fake_leave();
    fake_then(stream, run_host_call, &call, sizeof(call));
    fake_enter();
    bool start = !driven;
    driven = true;
    fake_leave();
    if (start && pthread_create(&thread, NULL, drive, NULL) == 0)
        pthread_detach(thread);
}

void fake_then(cudaStream_t handle, void (*run)(const void *args), const void *args, size_t size)
{
    fake_when(handle, NULL, run, args, size);
}

void fake_when(cudaStream_t handle, bool (*ready)(const void *args), void (*run)(const void *args),
               const void *args, size_t size)
{
    fake_enter();
    struct fake_stream *stream = fake_stream_find(handle, "fake_then");
    if (stream) {
        struct fake_task *task = fake_put(stream, FAKE_THEN);
        task->ready = ready;
        task->run = run;
        task->args = malloc(size ? size : 1);
        task->args_size = size;
        memcpy(task->args, args, size);
        note(task);
    }
    fake_leave();
}

/* ---- capture ---- */

void fake_capture_count(int by)
{
    capturing += by;
}

bool fake_unsafe_in_capture(const char *function)
{
    if (!capturing)
        return false;
    fake_mistake("%s: while a graph is captured", function);
    for (struct fake_object *o = objects[STREAMS]; o; o = o->next)
        if (((struct fake_stream *)o)->capture)
            ((struct fake_stream *)o)->capture->broken = true;
    return true;
}

struct fake_graph *fake_capture_find(uint64_t id)
{
    for (struct fake_object *o = objects[FAKE_GRAPH_MADE - FAKE_STREAM]; o && id; o = o->next)
        if (o->id == id && ((struct fake_graph *)o)->origin)
            return (struct fake_graph *)o;
    return NULL;
}

void fake_capture_enter(struct fake_stream *stream, struct fake_graph *graph)
{
    stream->capture = graph;
    memset(&stream->captured, 0, sizeof(stream->captured));
}

void fake_capture_leave(struct fake_graph *graph)
{
    for (struct fake_object *o = objects[STREAMS]; o; o = o->next)
        if (((struct fake_stream *)o)->capture == graph)
            ((struct fake_stream *)o)->capture = NULL;
    graph->origin = NULL;
}
