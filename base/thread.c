/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include "base/err.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { SLICE_NS = 100000 }; /* the shortest that Linux gives */

int hzp_thread_start(pthread_t *ret, const char *name, void *(*run)(void *), void *arg)
{
    if (pthread_create(ret, NULL, run, arg))
        return HZP_ENOMEM;
    char short_name[16];
    snprintf(short_name, sizeof(short_name), "%s", name);
    pthread_setname_np(*ret, short_name);
    return HZP_OK;
}

void hzp_thread_yielding(bool yielding)
{
    struct sched_param param;
    int policy;

    if (pthread_getschedparam(pthread_self(), &policy, &param) == 0 &&
        (policy == SCHED_OTHER || policy == SCHED_BATCH))
        pthread_setschedparam(pthread_self(), yielding ? SCHED_BATCH : SCHED_OTHER, &param);
}

void hzp_thread_background(void)
{
    enum { NICE = 10 };
    hzp_thread_yielding(true);
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
}

void hzp_thread_prompt(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof(attr), .runtime = SLICE_NS};

    if (sched_getscheduler(0) == SCHED_OTHER)
        syscall(SYS_sched_setattr, 0, &attr, 0);
}

uint64_t hzp_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int64_t hzp_unix_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- the engine thread ---- */

#ifdef HZP_DEBUG
enum { ENGINES_MAX = 64 };

static struct engine {
    const void *key;
    pthread_t owner, before; /* before: that owned it when the owner entered */
    int inside;              /* nested calls of enter */
} engine_of[ENGINES_MAX];
static int engines;
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER; /* leaf: taken inside any other */

/* Under engines_lock; NULL: unknown. */
static struct engine *find(const void *key)
{
    for (int i = 0; i < engines; i++)
        if (engine_of[i].key == key)
            return &engine_of[i];
    return NULL;
}

/* Under engines_lock: the engine, which the calling thread may own. */
static struct engine *claim(const void *key)
{
    struct engine *e = find(key);
    if (!e) {
        HZP_ASSERT(engines < ENGINES_MAX);
        e = &engine_of[engines++];
        *e = (struct engine){.key = key, .owner = pthread_self()};
    }
    HZP_ASSERT(e->inside == 0 || pthread_equal(e->owner, pthread_self()));
    return e;
}

void hzp_thread_own_engine(const void *engine)
{
    pthread_mutex_lock(&engines_lock);
    claim(engine)->owner = pthread_self();
    pthread_mutex_unlock(&engines_lock);
}

void hzp_thread_disown_engine(const void *engine)
{
    pthread_mutex_lock(&engines_lock);
    struct engine *e = find(engine);
    if (e) {
        HZP_ASSERT(e->inside == 0);
        *e = engine_of[--engines];
    }
    pthread_mutex_unlock(&engines_lock);
}

void hzp_thread_enter_engine(const void *engine)
{
    pthread_mutex_lock(&engines_lock);
    struct engine *e = claim(engine);
    if (e->inside++ == 0) {
        e->before = e->owner;
        e->owner = pthread_self();
    }
    pthread_mutex_unlock(&engines_lock);
}

void hzp_thread_leave_engine(const void *engine)
{
    pthread_mutex_lock(&engines_lock);
    struct engine *e = find(engine);
    HZP_ASSERT(e && e->inside > 0 && pthread_equal(e->owner, pthread_self()));
    if (--e->inside == 0)
        e->owner = e->before;
    pthread_mutex_unlock(&engines_lock);
}

bool hzp_thread_is_engine(void)
{
    pthread_mutex_lock(&engines_lock);
    bool owns = engines == 0;
    for (int i = 0; i < engines && !owns; i++)
        owns = pthread_equal(engine_of[i].owner, pthread_self());
    pthread_mutex_unlock(&engines_lock);
    return owns;
}
#else
void hzp_thread_own_engine(const void *engine)
{
}

void hzp_thread_disown_engine(const void *engine)
{
}

void hzp_thread_enter_engine(const void *engine)
{
}

void hzp_thread_leave_engine(const void *engine)
{
}

bool hzp_thread_is_engine(void)
{
    return true;
}
#endif

/* ---- locks ---- */

#ifdef HZP_DEBUG
enum { HELD_MAX = 8 };
static _Thread_local const struct hzp_lock *held[HELD_MAX]; /* in the order they were taken */
static _Thread_local int held_count;

static void note_taken(const struct hzp_lock *lock)
{
    for (int i = 0; i < held_count; i++)
        if (held[i]->rank >= lock->rank) {
            fprintf(stderr, "hzpserve: a lock of rank %d is taken while one of rank %d is held\n",
                    (int)lock->rank, (int)held[i]->rank);
            HZP_ASSERT(!"locks are taken in the order of their ranks");
        }
    HZP_ASSERT(held_count < HELD_MAX);
    held[held_count++] = lock;
}

static void note_released(const struct hzp_lock *lock)
{
    int i = held_count - 1;
    while (i >= 0 && held[i] != lock)
        i--;
    HZP_ASSERT(i >= 0); /* this thread holds it */
    held_count--;
    for (; i < held_count; i++)
        held[i] = held[i + 1];
}
#else
static void note_taken(const struct hzp_lock *lock)
{
}

static void note_released(const struct hzp_lock *lock)
{
}
#endif

void hzp_lock_init(struct hzp_lock *lock, enum hzp_lock_rank rank)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->rank = rank;
}

void hzp_lock_fini(struct hzp_lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

void hzp_lock_take(struct hzp_lock *lock)
{
    note_taken(lock); /* before it can wait for ever */
    pthread_mutex_lock(&lock->mutex);
}

void hzp_lock_release(struct hzp_lock *lock)
{
    note_released(lock);
    pthread_mutex_unlock(&lock->mutex);
}

/* ---- wakeups ---- */

void hzp_wake_init(struct hzp_wake *wake)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    hzp_lock_init(&wake->lock, HZP_LOCK_WAKE);
    pthread_cond_init(&wake->cond, &attr);
    pthread_condattr_destroy(&attr);
    wake->poked = false;
}

void hzp_wake_fini(struct hzp_wake *wake)
{
    pthread_cond_destroy(&wake->cond);
    hzp_lock_fini(&wake->lock);
}

void hzp_wake_poke(struct hzp_wake *wake)
{
    HZP_LOCKED(&wake->lock);
    wake->poked = true;
    pthread_cond_signal(&wake->cond);
}

bool hzp_wake_wait(struct hzp_wake *wake, uint64_t wait_ns)
{
    uint64_t now = hzp_now_ns();
    uint64_t end = wait_ns > UINT64_MAX - now ? UINT64_MAX : now + wait_ns;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000u),
                             .tv_nsec = (long)(end % 1000000000u)};
    HZP_LOCKED(&wake->lock);
    while (!wake->poked) {
        if (end == UINT64_MAX)
            pthread_cond_wait(&wake->cond, &wake->lock.mutex);
        else if (pthread_cond_timedwait(&wake->cond, &wake->lock.mutex, &until))
            break;
    }
    bool poked = wake->poked;
    wake->poked = false;
    return poked;
}
