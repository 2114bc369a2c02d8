/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h - named threads, locks with ranks, the clock, and a wakeup that cannot be lost.
 *
 * Invariant: a thread takes locks in the order of their ranks, so no two threads can wait for each
 * other. Builds with HZP_DEBUG check it, and that functions of the engine are called on its thread.
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

#include <pthread.h>

/* Starts a thread; name (at most 15 bytes) is what `top -H` shows. HZP_ENOMEM: the system refuses
 * another thread. */
int hzp_thread_start(pthread_t *ret, const char *name, void *(*run)(void *), void *arg);

/* The calling thread, when it wakes, does not take a processor from a running thread
 * (SCHED_BATCH): it waits for a free one or for its turn.  For threads whose work is soon enough
 * a few milliseconds later, while each interruption of the CPU team stops a whole step.  Threads
 * that it starts inherit this; false takes it back.  A thread whose policy is neither the default
 * nor this one keeps its own. */
void hzp_thread_yielding(bool yielding);

/* Lowers the calling thread's priority for the rest of its life, for long work that no request
 * waits for: beside a thread of normal priority it gets about a tenth of a processor, else all. */
void hzp_thread_background(void);

/* The calling thread mostly waits, and others wait for what it does then: it asks for short slices
 * (Linux 6.12 and later), so that it gets a processor as soon as it wakes, even from a thread that
 * computes.  Its share of the time is that of any other.  Elsewhere no effect. */
void hzp_thread_prompt(void);

/* Monotonic nanoseconds. */
uint64_t hzp_now_ns(void);

/* Milliseconds since 1970 (UTC), for what is stored or shown. */
int64_t hzp_unix_ms(void);

/* ---- the engine thread ---- */

/* An engine is a device and what is built on it; its key is the device.  One thread at a time owns
 * it: the thread that opened the device, or one to which it was handed over.  While a thread is
 * inside the loop (enter, leave) it is the owner, and no other thread can become it.
 * Builds without HZP_DEBUG keep no account: the functions do nothing, hzp_thread_is_engine is
 * true. */

/* The calling thread owns the engine from now on: called by hzp_device_open, and by a thread that
 * takes an engine over from another that no longer uses it. */
void hzp_thread_own_engine(const void *engine);
/* The engine is gone: called by hzp_device_close. */
void hzp_thread_disown_engine(const void *engine);

/* The calling thread owns the engine until it leaves; then the owner before does again.  Calls
 * nest. */
void hzp_thread_enter_engine(const void *engine);
void hzp_thread_leave_engine(const void *engine);

/* Whether the calling thread may use what belongs to an engine: it owns one, or there is none. */
bool hzp_thread_is_engine(void);

/* Stands first in functions whose header says "Thread: engine". */
#define hzp_assert_engine_thread() HZP_DEBUG_ASSERT(hzp_thread_is_engine())

/* ---- locks ---- */

/* A thread that holds a lock may only take one of a higher rank, so outer locks come first. */
enum hzp_lock_rank {
    HZP_LOCK_NOTES,     /* api/http/notify: notes that are being called */
    HZP_LOCK_POLICY,    /* api/http: one change of the policy at a time */
    HZP_LOCK_ROLLOUTS,  /* api/rollout: jobs */
    HZP_LOCK_UPLOAD,    /* api/learn/upload: the files of one */
    HZP_LOCK_EXAMPLES,  /* api/learn/examples: commits and pushes in one order */
    HZP_LOCK_STATE,     /* api/learn/state */
    HZP_LOCK_AUDIT,     /* api/learn/audit: the file */
    HZP_LOCK_UPDATES,   /* api/learn/update_log */
    HZP_LOCK_BENCH,     /* dev/bench: reports of updates; asks whether the engine runs */
    HZP_LOCK_ENGINE,    /* api/engine: whether the engine's thread runs */
    HZP_LOCK_LOG,       /* train/sample_log: the database */
    HZP_LOCK_TRAINER,   /* train/trainer: statistics */
    HZP_LOCK_SITES,     /* train/sites: statistics */
    HZP_LOCK_REPLICAS,  /* api/front: requests that other ranks compute */
    HZP_LOCK_QUEUE,     /* train/sample_queue */
    HZP_LOCK_SCHEDULER, /* serve/scheduler: statistics */
    HZP_LOCK_SPLIT,     /* nanobatch/split: policy and statistics */
    HZP_LOCK_VERSIONS,  /* weights/versions: records */
    HZP_LOCK_FEEDBACK,  /* api/http/feedback: answers and their scores */
    HZP_LOCK_TRIALS,    /* weights/trials */
    HZP_LOCK_METRICS,   /* api/http/metrics */
    HZP_LOCK_AUTH,      /* api/http/auth: keys */
    HZP_LOCK_RELAY,     /* api/relay: new calls; one call's answer */
    HZP_LOCK_DOOR,      /* api/http/door: connections and their deadlines */
    HZP_LOCK_NOTIFY,    /* api/http/notify: polled notes */
    HZP_LOCK_POOL,      /* api/http/pool: tasks */
    HZP_LOCK_UNKNOWN,   /* api/http/unknown: names of fields; api/http/taught: sessions */
    HZP_LOCK_LEXICON,   /* text/structure: the lexicon while it is made */
    HZP_LOCK_GRAMMARS,  /* text/structure: grammars that are kept */
    HZP_LOCK_TOKENIZER, /* text: spare matchers */
    HZP_LOCK_ALGOS,     /* device/cuda/algos */
    HZP_LOCK_FALLBACKS, /* device/fallback */
    HZP_LOCK_RANKS,     /* mesh: which link and control messages there are */
    HZP_LOCK_CONTROL,   /* mesh/control: what is known of the other ranks */
    HZP_LOCK_LINK,      /* mesh/link: the ranks of one process; the thread of one rank */
    HZP_LOCK_LINK_ALL,  /* mesh/link: the links that were split off one */
    HZP_LOCK_LINK_WHY,  /* mesh/link: a failure's text, the wake */
    HZP_LOCK_TIMELINE,  /* base/timeline: the list of tracks */
    HZP_LOCK_ACCOUNT,   /* device/account */
    HZP_LOCK_RING,      /* base/ring */
    HZP_LOCK_BORDERS,   /* nanobatch/border: calls that wait */
    HZP_LOCK_WAKE,      /* struct hzp_wake */
};

struct hzp_lock {
    pthread_mutex_t mutex;
    enum hzp_lock_rank rank;
};

void hzp_lock_init(struct hzp_lock *lock, enum hzp_lock_rank rank);
void hzp_lock_fini(struct hzp_lock *lock); /* the lock must not be held */

/* With HZP_DEBUG, taking a lock out of order aborts, and so does releasing one that is not held. */
void hzp_lock_take(struct hzp_lock *lock);
void hzp_lock_release(struct hzp_lock *lock);

/* The rest of the block runs with the lock held, however the block is left: `return` computes its
 * value under the lock. */
#define HZP_LOCKED(lock)                                                                           \
    __attribute__((cleanup(hzp_lock_leave), unused)) struct hzp_lock *const hzp_held =             \
        hzp_lock_enter(lock)
static inline struct hzp_lock *hzp_lock_enter(struct hzp_lock *lock)
{
    hzp_lock_take(lock);
    return lock;
}
static inline void hzp_lock_leave(struct hzp_lock *const *held)
{
    hzp_lock_release(*held);
}

/* ---- wakeups ---- */

/* A sticky wakeup: poke before wait is not lost. One waiter. */
struct hzp_wake {
    struct hzp_lock lock;
    pthread_cond_t cond;
    bool poked;
};

/* Not poked; fini: no thread waits any more. */
void hzp_wake_init(struct hzp_wake *wake);
void hzp_wake_fini(struct hzp_wake *wake);
void hzp_wake_poke(struct hzp_wake *wake);

/* Waits until poked or for at most wait_ns (UINT64_MAX: without limit); clears the poke.
 * True: it was poked. */
bool hzp_wake_wait(struct hzp_wake *wake, uint64_t wait_ns);
