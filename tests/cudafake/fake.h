/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/fake.h - a stand-in for the CUDA runtime, the driver, cuBLASLt and cuDNN that
 * records their calls, and detects mistakes that a device would answer with wrong numbers, or not
 * at all.
 *
 * Work put on a stream stays there until the host synchronizes; then heads of streams run in an
 * order drawn at random among those that events permit, so code that depends on timing fails for
 * some seed.  Device memory is host memory that is accessible only while work runs: a direct
 * read by the host crashes.  Kernels compute nothing by themselves: fake_then puts a function of
 * the test behind them (ops.c: the reference of the op).  Copies and cuBLASLt's products run.
 *
 * Besides the random order, accesses are checked: if two streams touch the same memory and one
 * of them writes, events or the host's waiting must order them.  Copies and sets report what
 * they touch; for ops, ops.c does.
 *
 * Invariant: a mistake is noted where it is made, and the call answers as CUDA would. Thread:
 * any; one lock.
 */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fake_kind {
    FAKE_KERNEL,
    FAKE_COPY,
    FAKE_SET,
    FAKE_RECORD,
    FAKE_WAIT,
    FAKE_GRAPH,
    FAKE_PRODUCT,
    FAKE_ATTENTION, /* a run of a cuDNN plan */
    FAKE_THEN,
};

/* One call that was put on a stream, or into a graph. */
struct fake_call {
    enum fake_kind kind;
    char name[80];   /* of the kernel */
    uint64_t stream; /* the stream's id */
    bool captured;
    uint64_t graph; /* the id of the capture it is part of, or of the graph it launches; 0: none */
    dim3 grid, block;
    size_t shared;
    bool early; /* of a kernel: it may begin before the one in front of it has ended */
    void *dst;  /* of copies and products */
    const void *src;
    size_t size;
    cudaEvent_t event;
    int sm_target, algo; /* of a product: its SM target, and the number of the algorithm it uses */
    bool fast;           /* of a product: its sums may keep fewer bits */
    int sm_from, sm_to;  /* of a green context's stream; 0, 0: an ordinary stream */
    int priority;        /* of the stream */
    int nodes;           /* of a graph */
};

/* Forgets calls and mistakes, begins a new random order. */
void fake_reset(unsigned seed);

/* Calls since the reset; the first 65536 are kept. */
int fake_calls(void);
const struct fake_call *fake_call_at(int i);
int fake_count(enum fake_kind kind); /* of the calls since reset */

/* The mistakes noted, one line each; "": none. */
const char *fake_mistakes(void);

/* The objects that live, one line each; "": none. */
const char *fake_leaks(void);

/* Sets the number of SMs of devices opened from now on. */
void fake_set_sms(int sms);

/* Sets the free bytes of device memory. */
void fake_set_memory(size_t bytes);

/* What the driver takes of the device's memory, in whole blocks: for a green context, for a graph
 * to launch and for each of its nodes.  0, 0, 0, 1: nothing. */
void fake_set_driver(size_t context, size_t graph, size_t node, size_t block);

/* Bytes that it takes for the library's code, from the first product on, or with the library. */
void fake_set_loaded(size_t bytes);

/* What CUDA_MODULE_LOADING was when the driver was started last; "": not set. */
const char *fake_loading(void);

/* The most bytes of device memory that were used after a call that takes some.  Graphs and green
 * contexts that would take more than there is are refused, as memory is. */
size_t fake_most_used(void);

/* Makes the call of this name fail once with this error, after `after` successful calls; ""
   cancels.  error 0: it has no effect, and says that it succeeded. */
void fake_fail(const char *function, int after, int error);

/* Sets the time that a product takes by its algorithm's number; [0] is the one advised first. */
void fake_set_algo_times(const int *microseconds, int count);

/* Products by algorithms of a lower number than this fail when they run. */
extern int fake_algos_failing;

/* The i-th kernel of the program, as its source names it; templates have several; NULL: there are
 * fewer.  Valid until the next call. */
const char *fake_kernel_name(int i);

/* For which products of e4m3 the library has algorithms. */
enum fake_e4m3 { FAKE_E4M3_ALL, FAKE_E4M3_HALF /* into BF16 */, FAKE_E4M3_NONE };
extern enum fake_e4m3 fake_e4m3;

/* How cuDNN behaves (dnn.c). */
struct fake_dnn {
    int refused;          /* of each graph, how many of its engines have no plan; there are 2 */
    size_t space;         /* of each plan */
    int microseconds;     /* that a run takes */
    int own_microseconds; /* that a kernel of ours for many rows takes */
    bool computes;        /* a run computes its graph; false: nothing, the op's reference does */
    bool wrong;           /* a run spoils what it writes */
};
extern struct fake_dnn fake_dnn;

/* Plans of cuDNN that were made so far. */
int fake_dnn_plans(void);

/* Puts run(copy of args) on the stream, or into the graph that is being captured there. */
void fake_then(cudaStream_t stream, void (*run)(const void *args), const void *args, size_t size);

/* The same, but the stream stands before it until ready(copy of args) is true; it is asked again
 * and again, under the fake's lock and with device memory accessible. */
void fake_when(cudaStream_t stream, bool (*ready)(const void *args), void (*run)(const void *args),
               const void *args, size_t size);

/* Declares that the stream's newest task touches these bytes.  If both it and another access
 * have data, meet decides whether they overlap.  data is copied. */
struct fake_touch {
    uintptr_t begin, end;
    bool writes;
    const char *name; /* not copied: must outlive the use */
    void *data;
    size_t size; /* of data; 0: none */
};
typedef bool fake_meet(const void *a, const void *b);
void fake_touches(cudaStream_t stream, const struct fake_touch *touch, int touches,
                  fake_meet *meet);

/* Bytes of device memory that are allocated. */
size_t fake_device_bytes(void);

/* How many times memory, a stream or an event was created so far: calls that take a runtime
   time. */
int fake_made(void);

/* With true, creating memory, streams or events is a mistake from here on until the next reset,
 * because the start has ended. Returns the previous setting. */
bool fake_steady(bool steady);

/* Reads or writes device memory, which the host may not do directly. */
void fake_peek(void *dst, const void *src, size_t size);
void fake_poke(void *dst, const void *src, size_t size);
