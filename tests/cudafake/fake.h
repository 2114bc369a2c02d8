/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/fake.h - a stand-in for the CUDA runtime, the driver and cuBLASLt that records
 * what it is asked for, and notices what a device would answer with wrong numbers, or not at all.
 *
 * Work put on a stream waits there until somebody synchronises; then heads of streams run in an
 * order drawn at random among those that events permit.  So whatever relies on luck fails for some
 * seed.  Device memory is host memory that can only be touched while work runs: the host's own
 * reading of it is a crash.  Kernels run nothing by themselves: fake_then puts a function of the
 * test's behind them (fake_ops.c: the reference of the op).  Copies and cuBLASLt's products run.
 *
 * Luck is not all: memory that two streams touch, one of them writing, must be ordered by events or
 * by the host's waiting.  Copies and sets say themselves what they touch, for ops fake_ops.c does.
 *
 * Invariant: a mistake is noted where it is made, and the call answers as CUDA would.
 * Thread: any; one lock.
 */
#ifndef HZP_TESTS_CUDAFAKE_FAKE_H
#define HZP_TESTS_CUDAFAKE_FAKE_H

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
    FAKE_THEN,
};

/* What was put on a stream, or into a graph. */
struct fake_call {
    enum fake_kind kind;
    char name[80];   /* of the kernel */
    uint64_t stream; /* its id */
    bool captured;
    dim3 grid, block;
    size_t shared;
    void *dst; /* of copies and products */
    const void *src;
    size_t size;
    cudaEvent_t event;
    int sm_target, algo; /* of a product: what it was told, which advice it follows */
    int sm_from, sm_to;  /* of a green context's stream; 0, 0: a plain one */
    int nodes;           /* of a graph */
};

/* Forgets calls and mistakes, begins a new random order. */
void fake_reset(unsigned seed);

/* The first 65536 of them are kept. */
int fake_calls(void);
const struct fake_call *fake_call_at(int i);
int fake_count(enum fake_kind kind); /* of the calls since reset */

/* One line each; "": none. */
const char *fake_mistakes(void);

/* Every object that lives, one line each; "": none. */
const char *fake_leaks(void);

/* A device of so many SMs; from the next open on. */
void fake_set_sms(int sms);

/* So many free bytes of device memory. */
void fake_set_memory(size_t bytes);

/* The call of this name, after so many more, answers with this error, once; "" ends it. */
void fake_fail(const char *function, int after, int error);

/* Products take as long as their algorithm's number says: [0] is what is advised first. */
void fake_set_algo_times(const int *microseconds, int count);

/* Puts run(copy of args) on the stream, or into the graph that is being captured there. */
void fake_then(cudaStream_t stream, void (*run)(const void *args), const void *args, size_t size);

/* The newest task of the stream touches these bytes, but where both it and another have data, only
 * as far as meet says of the two.  data is copied. */
struct fake_touch {
    uintptr_t begin, end;
    bool writes;
    const char *name; /* must live */
    void *data;
    size_t size; /* of data; 0: none */
};
typedef bool fake_meet(const void *a, const void *b);
void fake_touches(cudaStream_t stream, const struct fake_touch *touch, int touches,
                  fake_meet *meet);

/* Bytes of device memory that are given out. */
size_t fake_device_bytes(void);

/* How many times memory, a stream or an event was asked for, ever: what takes a runtime time. */
int fake_made(void);

/* True: from here on, until the next reset, asking for those is a mistake: the start has ended.
 * What it was. */
bool fake_steady(bool steady);

/* What the host may not do itself: reads or writes device memory. */
void fake_peek(void *dst, const void *src, size_t size);
void fake_poke(void *dst, const void *src, size_t size);

#endif
