/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/core.h - what the fake's files share: objects, tasks, the record.
 *
 * Thread: any, under the lock of enter and leave.
 */
#pragma once

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
    FAKE_DNN_HANDLE,
    FAKE_DNN_DESC,
};
enum { FAKE_TYPES = FAKE_DNN_DESC - FAKE_STREAM + 1 };

/* The first member of everything that has a handle. */
struct fake_object {
    enum fake_type type;
    uint64_t id;
    struct fake_object *next;
};

enum { FAKE_STREAMS = 256 }; /* at most at the same time */

/* Of each stream, by index, the newest task that is certain to have ended (clock.c). */
struct fake_clock {
    uint64_t newest[FAKE_STREAMS];
};

/* Accesses that may still be in flight, or of a graph's nodes. */
struct fake_touched {
    struct fake_access {
        int index; /* of the stream */
        uint64_t task;
        struct fake_touch touch;
    } * of;
    int count, room;
};

/* One recording of an event: a wait refers to this recording, whatever the event records next. */
struct fake_record {
    int users;
    bool done;
    double ns;
};

struct fake_task {
    struct fake_call call;
    struct fake_record *record; /* of record and wait tasks outside captures */
    int value;                  /* of a memset */
    struct fake_graph *graph;
    int node, after; /* in a graph: its number; of a wait: that of its record, -1: none */
    bool *done;      /* of a launch: [nodes] which have run */
    bool (*ready)(const void *args); /* NULL: it need not be asked */
    void (*run)(const void *args);
    unsigned char *args;
    size_t args_size;
    struct fake_task *next;
};

struct fake_queue {
    struct fake_task *first, *last;
    int count;
};

struct fake_stream {
    struct fake_object object;
    int priority, index;
    struct fake_clock clock, captured; /* captured: the one used during a capture */
    struct fake_queue queue;
    struct fake_context *context;
    struct fake_graph *capture; /* the graph being captured */
};

struct fake_event {
    struct fake_object object;
    bool timing;
    struct fake_record *last; /* NULL: never recorded */
    uint64_t capture;         /* the id of the capture it was recorded in last, 0: in none */
    int node;                 /* its node in that capture */
    struct fake_clock clock;
};

struct fake_graph {
    struct fake_object object; /* FAKE_GRAPH_MADE or FAKE_GRAPH_EXEC */
    struct fake_queue nodes;
    int users;                  /* the handle, and launches not yet run */
    struct fake_stream *origin; /* the stream that began the capture */
    bool broken;
    uint64_t from;                /* of one to launch: the id of the captured one */
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

/* Returns true, and the error in *ret_error, if fake_fail wants this call to fail. */
bool fake_fails(const char *function, int *ret_error);

/* Bytes of device memory that are given out, or that the driver has taken. */
size_t fake_used(void);
/* The first product loads code, or the library's opening (fake_set_loaded). */
void fake_load(void);
extern size_t fake_loaded;
/* True: the driver has taken more than there is.  Remembers the most that was used. */
bool fake_exceeds(void);

void *fake_object_new(enum fake_type type, size_t size);
void fake_object_free(void *object);
/* Returns NULL, and notes a mistake, if no such object lives. */
void *fake_object_find(const void *handle, enum fake_type type, const char *function);

/* Returns the stream, or NULL with a mistake noted; lanes may not use the null streams. */
struct fake_stream *fake_stream_find(cudaStream_t stream, const char *function);

/* Appends a task, or a node in a capture.  Once it is filled in, fake_put_done adds it to the
   record of calls. */
struct fake_task *fake_put(struct fake_stream *stream, enum fake_kind kind);
void fake_put_done(struct fake_task *task);

void fake_make(const char *function); /* counts a creation; a mistake once steady */

void fake_capture_count(int by); /* 1: this thread has begun a capture; -1: has ended one */

/* If this thread is capturing, returns true, notes a mistake and breaks all captures: the call is
   not allowed there. */
bool fake_unsafe_in_capture(const char *function);

struct fake_record *fake_record_use(struct fake_record *record); /* NULL: a new one */
void fake_record_drop(struct fake_record *record);               /* NULL: no effect */

/* Runs tasks until the event's last record has passed, or the stream (NULL: every stream) is
 * empty.  wait false: only what can run now; it says whether the record has passed. */
bool fake_run_event(struct fake_event *event, bool wait);
void fake_run_stream(struct fake_stream *stream);

/* Puts the call of a function of the host on the stream; a thread runs streams until it was
 * made. */
void fake_call_host(cudaStream_t stream, void (*run)(void *ctx), void *ctx);

void fake_graph_drop(struct fake_graph *graph);
void fake_queue_copy(struct fake_queue *to, const struct fake_queue *from);

/* clock.c */
int fake_index_take(void);
void fake_index_give(int index);
struct fake_clock *fake_clock_of(struct fake_stream *stream);
void fake_clock_tick(struct fake_stream *stream); /* a task was put on the stream */
void fake_clock_wait(struct fake_stream *stream, const struct fake_event *event);
bool fake_clock_joined(const struct fake_stream *origin); /* with all captured streams */
void fake_clock_host(const struct fake_clock *clock);     /* the host waited up to this clock */
void fake_clock_host_all(void);
void fake_touch_one(struct fake_stream *stream, const struct fake_touch *touch);
void fake_touch_copy(struct fake_stream *stream, const char *name, const void *ptr, size_t size,
                     bool writes);
void fake_touch_graph(struct fake_stream *stream, const struct fake_graph *graph);
void fake_touched_copy(struct fake_touched *to, const struct fake_touched *from);
void fake_touched_free(struct fake_touched *touched);

/* The capture of this id that is in progress; NULL: there is none. */
struct fake_graph *fake_capture_find(uint64_t id);
void fake_capture_enter(struct fake_stream *stream, struct fake_graph *graph);
void fake_capture_leave(struct fake_graph *graph); /* takes all its streams out */

/* Memory. */
void *fake_device_alloc(size_t size);
bool fake_device_free(void *ptr);
void *fake_host_alloc(size_t size);
bool fake_host_free(void *ptr);
bool fake_is_device(const void *ptr);
/* Whether the range lies in one live allocation of device or pinned host memory. */
bool fake_is_ours(const void *ptr, size_t size);
/* Like fake_is_ours, but ordinary (pageable) host memory passes too. */
bool fake_is_readable(const void *ptr, size_t size);

void fake_set_last(cudaError_t error);               /* for cudaGetLastError */
void fake_product_run(const struct fake_task *task); /* lt.c */

extern int fake_sms;
extern size_t fake_memory;
double fake_clock_ns(void);
void fake_clock_add(double ns);
