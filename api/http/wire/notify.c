/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/notify.h"

#include "base/thread.h"

static const uint64_t POLL_NS = 5000000;
enum { BATCH = 512 }; /* notes called before those who wait for it go on: some hundred us */
enum { WRITERS_MAX = 64 };
static const uint64_t PERIOD_NS = 50000000; /* how often the cost of flushes is averaged */

/* State of the notifying thread.  TIMED: asleep until joined notes have waited for the bound. */
enum sleep { AWAKE, ASLEEP, TIMED };

struct hzp_notify {
    pthread_t thread;
    struct hzp_wake wake;
    _Atomic(struct hzp_note *) posted, joined; /* newest first */
    _Atomic int asleep;                        /* enum sleep */
    _Atomic bool stop;
    _Atomic int32_t steps;   /* that joined notes since the last flush */
    _Atomic int32_t wanted;  /* steps of a flush */
    _Atomic uint64_t due_ns; /* when to flush if no further step comes; UINT64_MAX: not known */
    _Atomic uint64_t window_ns;
    /* only the notifying thread uses what follows */
    struct hzp_join join;
    struct hzp_join_seen seen;    /* seen in this period */
    uint64_t period_ns, spent_ns; /* when it began; processor time until then */
    uint64_t flush_ns;            /* when the last flush began */
    struct hzp_lock batch;        /* held while notes are called */
    struct hzp_lock lock;
    /* under lock */
    struct hzp_note **polled; /* [polls] of [room] */
    int polls, room;
    clockid_t writer[WRITERS_MAX]; /* [writers] processor time of each */
    int writers;
};

/* Puts the newest-first list in the order of posting, so that no stream waits for a younger one. */
static struct hzp_note *reversed(struct hzp_note *list)
{
    struct hzp_note *first = NULL;
    while (list) {
        struct hzp_note *next = list->next;
        list->next = first;
        first = list;
        list = next;
    }
    return first;
}

/* Calls all notes of one of the two lists. */
static bool call_list(struct hzp_notify *n, _Atomic(struct hzp_note *) *list)
{
    struct hzp_note *note = reversed(atomic_exchange(list, NULL)), *next;
    bool any = note != NULL;
    while (note) {
        HZP_LOCKED(&n->batch);
        for (int i = 0; i < BATCH && note; i++, note = next) {
            next = note->next;
            /* Before the call: what is posted from now on is called again. */
            atomic_store(&note->posted, false);
            note->call(note->ctx);
        }
    }
    return any;
}

/* ---- flushes ---- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t)) /* the thread has ended */
        return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Processor time so far of the threads that write, and of this one. */
static uint64_t spent_ns(struct hzp_notify *n)
{
    uint64_t sum = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    HZP_LOCKED(&n->lock);
    for (int i = 0; i < n->writers; i++)
        sum += clock_ns(n->writer[i]);
    return sum;
}

/* A flush of so many steps is called: learns from the period before it, once that is long enough.
 * After a time without flushes nothing is known: the threads had other work. */
static void learn(struct hzp_notify *n, uint64_t now, int32_t steps)
{
    bool gap = now > n->flush_ns + PERIOD_NS + n->join.bound_ns;
    n->flush_ns = now;
    n->seen.flushes++;
    n->seen.steps += HZP_MAX(steps, 1);
    n->seen.time_ns = now - n->period_ns;
    if (!n->join.bound_ns || (!gap && n->seen.time_ns < PERIOD_NS))
        return;
    uint64_t spent = spent_ns(n);
    n->seen.spent_ns = spent - HZP_MIN(n->spent_ns, spent);
    if (gap)
        n->join.flush_ns = n->join.step_ns = 0;
    else
        hzp_join_learn(&n->join, &n->seen);
    atomic_store(&n->wanted, hzp_join_steps(&n->join));
    atomic_store(&n->window_ns, hzp_join_window(&n->join));
    n->period_ns = now;
    n->spent_ns = spent;
    n->seen = (struct hzp_join_seen){0};
}

static bool flush_is_due(struct hzp_notify *n, uint64_t now)
{
    return atomic_load(&n->joined) && (atomic_load(&n->steps) >= atomic_load(&n->wanted) ||
                                       now >= atomic_load(&n->due_ns) || atomic_load(&n->stop));
}

/* Calls the joined notes, if their flush is due. */
static bool flush(struct hzp_notify *n)
{
    uint64_t now = hzp_now_ns();
    if (!flush_is_due(n, now))
        return false;
    atomic_store(&n->due_ns, UINT64_MAX);
    int32_t steps = atomic_exchange(&n->steps, 0);
    call_list(n, &n->joined);
    learn(n, now, steps);
    return true;
}

/* ---- polls ---- */

static struct hzp_note *polled_at(struct hzp_notify *n, int i)
{
    HZP_LOCKED(&n->lock);
    return i < n->polls ? n->polled[i] : NULL;
}

/* From the last to the first, because a call may remove its own note. */
static bool call_polled(struct hzp_notify *n)
{
    hzp_lock_take(&n->lock);
    int polls = n->polls;
    hzp_lock_release(&n->lock);
    for (int i = polls - 1; i >= 0; i--) {
        struct hzp_note *note = polled_at(n, i);
        if (note)
            note->call(note->ctx);
    }
    return polls > 0;
}

/* Sleeps until there is something to call, at most wait_ns. */
static void rest(struct hzp_notify *n, uint64_t wait_ns)
{
    uint64_t now = hzp_now_ns(), due = atomic_load(&n->due_ns);
    bool timed = due != UINT64_MAX && now < due;
    /* The flag is raised before the lists are looked at again, and a post looks at the flag after
     * it has changed its list: one of the two sees the other. */
    atomic_store(&n->asleep, timed ? TIMED : ASLEEP);
    bool due_changed = due != atomic_load(&n->due_ns);
    if (!atomic_load(&n->posted) && !atomic_load(&n->stop) && !flush_is_due(n, now) && !due_changed)
        hzp_wake_wait(&n->wake, timed ? HZP_MIN(wait_ns, due - now) : wait_ns);
    atomic_store(&n->asleep, AWAKE);
}

static void *notify_main(void *arg)
{
    struct hzp_notify *n = arg;
    uint64_t next_poll = 0;
    hzp_thread_yielding(true);
    for (;;) {
        bool polls = false;
        if (hzp_now_ns() >= next_poll) {
            polls = call_polled(n);
            next_poll = polls ? hzp_now_ns() + POLL_NS : 0;
        } else {
            polls = true;
        }
        /* Before the lists: what was posted or joined before the stop is still called. */
        bool stops = atomic_load(&n->stop);
        bool any = call_list(n, &n->posted);
        if (flush(n) || any)
            continue;
        if (stops)
            return NULL;
        rest(n, polls ? POLL_NS : UINT64_MAX);
    }
}

int hzp_notify_create(const struct hzp_join *join, struct hzp_notify **ret)
{
    struct hzp_notify *n = hzp_xcalloc(1, sizeof(*n));
    n->join = *join;
    n->wanted = hzp_join_steps(join);
    n->window_ns = hzp_join_window(join);
    n->due_ns = UINT64_MAX;
    n->period_ns = n->flush_ns = hzp_now_ns();
    hzp_wake_init(&n->wake);
    hzp_lock_init(&n->batch, HZP_LOCK_NOTES);
    hzp_lock_init(&n->lock, HZP_LOCK_NOTIFY);
    if (hzp_thread_start(&n->thread, "hzp-notify", notify_main, n) < 0) {
        hzp_lock_fini(&n->batch);
        hzp_lock_fini(&n->lock);
        hzp_wake_fini(&n->wake);
        free(n);
        return HZP_ENOMEM;
    }
    *ret = n;
    return HZP_OK;
}

void hzp_notify_destroy(struct hzp_notify *n)
{
    if (!n)
        return;
    atomic_store(&n->stop, true);
    hzp_wake_poke(&n->wake);
    pthread_join(n->thread, NULL);
    hzp_lock_fini(&n->batch);
    hzp_lock_fini(&n->lock);
    hzp_wake_fini(&n->wake);
    free(n->polled);
    free(n);
}

static void push(_Atomic(struct hzp_note *) *list, struct hzp_note *note)
{
    if (atomic_exchange(&note->posted, true))
        return;
    struct hzp_note *first = atomic_load(list);
    do
        note->next = first;
    while (!atomic_compare_exchange_weak(list, &first, note));
}

void hzp_notify_add(struct hzp_notify *n, struct hzp_note *note)
{
    push(&n->posted, note);
}

void hzp_notify_join(struct hzp_notify *n, struct hzp_note *note)
{
    push(&n->joined, note);
}

void hzp_notify_wake(struct hzp_notify *n)
{
    if (atomic_load(&n->asleep) != AWAKE && atomic_exchange(&n->asleep, AWAKE) != AWAKE)
        hzp_wake_poke(&n->wake);
}

void hzp_notify_step(struct hzp_notify *n)
{
    bool joins = atomic_load(&n->joined) != NULL;
    int32_t steps = joins ? atomic_fetch_add(&n->steps, 1) + 1 : 0;
    if (joins && steps < atomic_load(&n->wanted)) {
        if (atomic_load(&n->due_ns) == UINT64_MAX)
            atomic_store(&n->due_ns, hzp_now_ns() + n->join.bound_ns);
        /* Asleep until then, it need not be told of a further step. */
        if (atomic_load(&n->asleep) == TIMED && !atomic_load(&n->posted))
            return;
    }
    hzp_notify_wake(n);
}

void hzp_notify_writer(struct hzp_notify *n)
{
    clockid_t clock;
    if (pthread_getcpuclockid(pthread_self(), &clock))
        return;
    HZP_LOCKED(&n->lock);
    if (n->writers < HZP_MIN(n->join.threads, WRITERS_MAX))
        n->writer[n->writers++] = clock;
}

uint64_t hzp_notify_window(const struct hzp_notify *n)
{
    return atomic_load(&n->window_ns);
}

void hzp_notify_post(struct hzp_notify *n, struct hzp_note *note)
{
    hzp_notify_add(n, note);
    hzp_notify_wake(n);
}

void hzp_notify_settle(struct hzp_notify *n)
{
    hzp_lock_take(&n->batch);
    hzp_lock_release(&n->batch);
}

void hzp_notify_poll(struct hzp_notify *n, struct hzp_note *note)
{
    hzp_lock_take(&n->lock);
    n->polled = hzp_xgrow(n->polled, &n->room, n->polls + 1, sizeof(struct hzp_note *));
    n->polled[n->polls++] = note;
    hzp_lock_release(&n->lock);
    hzp_wake_poke(&n->wake);
}

void hzp_notify_unpoll(struct hzp_notify *n, struct hzp_note *note)
{
    HZP_LOCKED(&n->lock);
    for (int i = 0; i < n->polls; i++)
        if (n->polled[i] == note) {
            n->polled[i] = n->polled[--n->polls];
            break;
        }
}
