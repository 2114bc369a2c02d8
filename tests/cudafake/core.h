/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/core.h - what the fake's files share: objects, tasks, the record.
 *
 * Thread: any, under the lock of enter and leave.
 */
#ifndef HZP_TESTS_CUDAFAKE_CORE_H
#define HZP_TESTS_CUDAFAKE_CORE_H

#include "tests/cudafake/fake.h"

enum fake_type {
    FAKE_STREAM = 0x5743,
    FAKE_EVENT,
    FAKE_GRAPH_MADE,
    FAKE_GRAPH_EXEC,
    FAKE_CONTEXT,
    FAKE_LT_HANDLE,
    FAKE_LT_DESC,
    FAKE_LT_LAYOUT,
    FAKE_LT_WISH,
};

/* The first member of everything that has a handle. */
struct fake_object {
    enum fake_type type;
    uint64_t id;
    struct fake_object *next;
};

enum { FAKE_STREAMS = 256 }; /* at a time */

/* Of each stream, by index, the newest task that is certain to have ended (clock.c). */
struct fake_clock {
    uint64_t newest[FAKE_STREAMS];
};

/* Accesses that may still be under way, or of a graph's nodes. */
struct fake_touched {
    struct fake_access {
        int index; /* the stream's */
        uint64_t task;
        struct fake_touch touch;
    } * of;
    int count, room;
};

/* One recording of an event: who waits for it waits for this one, whatever the event records
 * next. */
struct fake_record {
    int users;
    bool done;
    double ns;
};

struct fake_task {
    struct fake_call call;
    struct fake_record *record; /* of records and waits outside of captures */
    int value;                  /* of a set */
    struct fake_graph *graph;
    int node, after; /* in a graph: its number; of a wait: the record's, -1: of none */
    bool *done;      /* of a launch: [nodes] those that have run */
    void (*run)(const void *args);
    unsigned char *args;
    size_t args_size;
    const void *space; /* a product's workspace */
    struct fake_task *next;
};

struct fake_queue {
    struct fake_task *first, *last;
    int count;
};

struct fake_stream {
    struct fake_object object;
    int priority, index;
    struct fake_clock clock, captured; /* the latter while it is in a capture */
    struct fake_queue queue;
    struct fake_context *context;
    struct fake_graph *capture; /* being made */
};

struct fake_event {
    struct fake_object object;
    bool timing;
    struct fake_record *last; /* NULL: never recorded */
    uint64_t capture;         /* the id of the capture it was recorded in last, 0: in none */
    int node;                 /* and its node there */
    struct fake_clock clock;
};

struct fake_graph {
    struct fake_object object; /* FAKE_GRAPH_MADE or FAKE_GRAPH_EXEC */
    struct fake_queue nodes;
    int users;                  /* the handle, and launches not yet run */
    struct fake_stream *origin; /* of the capture */
    bool broken;
    uint64_t count[FAKE_STREAMS]; /* nodes of each stream */
    struct fake_touched touched;
};

struct fake_context {
    struct fake_object object;
    int from, to, streams;
};

void fake_enter(void);
void fake_leave(void);
void fake_mistake(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* True, and *ret_error: fake_fail wants this call to fail. */
bool fake_fails(const char *function, int *ret_error);

void *fake_object_new(enum fake_type type, size_t size);
void fake_object_free(void *object);
/* NULL, with a mistake noted: no such object lives. */
void *fake_object_find(const void *handle, enum fake_type type, const char *function);

/* The stream, or NULL with a mistake noted; the null streams are not for lanes. */
struct fake_stream *fake_stream_find(cudaStream_t stream, const char *function);

/* A stream of this id has a product left that uses this workspace, or a graph, which may. */
bool fake_stream_uses(uint64_t id, const void *space);

/* Appends a task; in a capture, a node.  Filled in, it goes to the record by fake_put_done. */
struct fake_task *fake_put(struct fake_stream *stream, enum fake_kind kind);
void fake_put_done(struct fake_task *task);

void fake_make(const char *function); /* counts it; once steady, a mistake */

void fake_capture_set(struct fake_stream *stream); /* NULL: this thread captures no more */

/* This thread is capturing: the call is one that must not happen then.  Breaks the capture. */
bool fake_unsafe_in_capture(const char *function);

struct fake_record *fake_record_use(struct fake_record *record); /* NULL: a new one */
void fake_record_drop(struct fake_record *record);               /* NULL: no effect */

/* Runs tasks until the event's last record has passed, or the stream (NULL: every stream) is
 * empty. */
void fake_run_event(struct fake_event *event);
void fake_run_stream(struct fake_stream *stream);

void fake_graph_drop(struct fake_graph *graph);
void fake_queue_copy(struct fake_queue *to, const struct fake_queue *from);

/* clock.c */
int fake_index_take(void);
void fake_index_give(int index);
struct fake_clock *fake_clock_of(struct fake_stream *stream);
void fake_clock_tick(struct fake_stream *stream); /* a task was put there */
void fake_clock_wait(struct fake_stream *stream, const struct fake_event *event);
bool fake_clock_joined(const struct fake_stream *origin); /* of all that was captured */
void fake_clock_host(const struct fake_clock *clock);     /* the host waited for that */
void fake_clock_host_all(void);
void fake_touch_one(struct fake_stream *stream, const struct fake_touch *touch);
void fake_touch_copy(struct fake_stream *stream, const char *name, const void *ptr, size_t size,
                     bool writes);
void fake_touch_graph(struct fake_stream *stream, const struct fake_graph *graph);
void fake_touched_copy(struct fake_touched *to, const struct fake_touched *from);
void fake_touched_free(struct fake_touched *touched);

/* The capture of this id that is being made; NULL: there is none. */
struct fake_graph *fake_capture_find(uint64_t id);
void fake_capture_enter(struct fake_stream *stream, struct fake_graph *graph);
void fake_capture_leave(struct fake_graph *graph); /* all streams that are in it */

/* Memory. */
void *fake_device_alloc(size_t size);
bool fake_device_free(void *ptr);
void *fake_host_alloc(size_t size);
bool fake_host_free(void *ptr);
bool fake_is_device(const void *ptr);
/* The range lies in one live allocation of the device or of pinned host memory. */
bool fake_is_ours(const void *ptr, size_t size);
/* The same, or it is no device memory at all (pageable). */
bool fake_is_readable(const void *ptr, size_t size);

void fake_set_last(cudaError_t error);               /* what cudaGetLastError answers */
void fake_product_run(const struct fake_task *task); /* lt.c */

extern int fake_sms;
extern size_t fake_memory;
double fake_clock_ns(void);
void fake_clock_add(double ns);

#endif
