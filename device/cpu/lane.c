/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/lane.c - lanes of the host.
 *
 * Initially a lane is inlined: its ops run when they are issued, on the issuing thread with the
 * device's whole team.  With a share it is a queue: a ring that the engine thread fills and one
 * leader thread empties. The leader runs the ops on the queue's own team, whose size is the share
 * and whose threads are pinned to cores that the device assigns.  The first lane with a share is
 * led by the engine thread itself, while it waits for a fence; each of the others has its own
 * leader thread.  A lane for the network is a queue with a thread of its own, which takes no core
 * from the others: it waits for the link most of the time, and a device of one thread can have it,
 * too.  It runs on the cores that the other lanes' shares leave; if they leave none, on any.
 *
 * Positions in a ring only grow, so a fence is a number: it has passed when that many commands have
 * ended.  A waiting thread polls for some hundred microseconds at most, then sleeps on the counter.
 */
#include "base/thread.h"
#include "device/cpu/matmul.h"

#include <linux/futex.h>
#include <sys/syscall.h>

enum {
    RING = 2048,         /* commands; a power of two */
    AWAIT_POLLS = 10000, /* most for another lane's op: some 100 microseconds */
    IDLE_POLLS = 2000,   /* most for the next command */
};

enum what { RUN, COPY, AWAIT };

struct command {
    enum what what;
    enum hzp_op op;
    int16_t most; /* RUN: threads that take part; 0: the lane's */
    uint32_t seq; /* AWAIT: waits until this many commands of `of` have ended */
    struct hzp_cpu_queue *of;
    struct hzp_span *span; /* NULL: not timed */
    void *dst;             /* COPY */
    const void *src;
    size_t size;
    union {
#define X(name, class_) struct hzp_##name##_args name;
        HZP_OPS(X)
#undef X
    } args;
};

/* A counter whose changes threads can sleep on. */
struct counter {
    _Alignas(128) _Atomic uint32_t value;
    _Atomic int sleepers;
};

struct hzp_cpu_queue {
    struct hzp_cpu_lane *lane;
    struct hzp_team *team;
    struct command *ring; /* [RING] */
    pthread_t thread;
    bool started;
    _Atomic bool led; /* led by the engine thread; changes only while the ring is empty */
    _Atomic bool leave;
    struct counter head;    /* commands issued: written by the engine thread */
    struct counter done;    /* commands ended: written by the leader */
    struct hzp_polls await; /* the leader's, for another lane */
    struct hzp_polls ended; /* the engine thread's, for this lane */
};

struct hzp_fence {
    struct hzp_cpu_device *dev;
    struct hzp_cpu_queue *queue; /* NULL: the fence has passed */
    uint32_t seq;
};

static uint32_t value_of(struct counter *c)
{
    return atomic_load_explicit(&c->value, memory_order_acquire);
}

static void advance(struct counter *c)
{
    /* sequentially consistent, as in sleep_on: either this thread sees the sleeper, or the sleeper
     * sees the new value */
    atomic_fetch_add(&c->value, 1);
    if (atomic_load(&c->sleepers) > 0)
        syscall(SYS_futex, &c->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps until the value is no longer `seen`; may return early. */
static void sleep_on(struct counter *c, uint32_t seen)
{
    atomic_fetch_add(&c->sleepers, 1);
    if (atomic_load(&c->value) == seen)
        syscall(SYS_futex, &c->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&c->sleepers, 1);
}

/* Waits until the value differs from `seen`.  polls NULL: it only sleeps. */
static void await_change(struct counter *c, uint32_t seen, struct hzp_polls *polls)
{
    int left = polls ? polls->now : 0;
    if (value_of(c) != seen)
        return;
    while (left > 0 && value_of(c) == seen) {
        hzp_cpu_relax();
        left--;
    }
    if (polls)
        hzp_polls_note(polls, left > 0);
    while (value_of(c) == seen)
        sleep_on(c, seen);
}

static bool reached(struct counter *c, uint32_t seq)
{
    return (int32_t)(value_of(c) - seq) >= 0;
}

/* Waits until so many have ended. */
static void await_count(struct counter *done, uint32_t seq, struct hzp_polls *polls)
{
    while (!reached(done, seq)) {
        uint32_t seen = value_of(done);
        if (!reached(done, seq))
            await_change(done, seen, polls);
    }
}

static bool pending(struct hzp_cpu_queue *q)
{
    return value_of(&q->done) != value_of(&q->head);
}

static void run(struct hzp_cpu_device *dev, struct hzp_cpu_lane *lane, const struct command *c)
{
    /* relaxed: a failure is final, and the engine thread reads it after a fence */
    if (atomic_load_explicit(&dev->failed, memory_order_relaxed) < 0)
        return;
    uint64_t begin = c->span ? hzp_now_ns() : 0;
    if (c->what == COPY) {
        memmove(c->dst, c->src, c->size);
    } else {
        hzp_team_limit(lane->team, c->most);
        int r = dev->kernel[c->op](&lane->base, &c->args), fine = HZP_OK;
        if (r < 0)
            atomic_compare_exchange_strong(&dev->failed, &fine, r);
    }
    if (c->span)
        *c->span = (struct hzp_span){begin, hzp_now_ns()};
}

/* Runs the oldest command of a ring that is not empty.  Thread: the leader. */
static void step(struct hzp_cpu_queue *q)
{
    uint32_t at = atomic_load_explicit(&q->done.value, memory_order_relaxed);
    const struct command *c = &q->ring[at % RING];

    if (c->what == AWAIT)
        await_count(&c->of->done, c->seq, &q->await);
    else
        run((struct hzp_cpu_device *)q->lane->base.dev, q->lane, c);
    advance(&q->done);
}

static void *lead(void *arg)
{
    struct hzp_cpu_queue *q = arg;
    struct hzp_polls idle = {IDLE_POLLS, IDLE_POLLS};

    if (q->lane->base.use == HZP_BOUND_NETWORK)
        hzp_thread_prompt();
    for (;;) {
        /* The order of these loads matters. queue_close sets `leave` before it advances the head:
         * so either `leave` is seen here, or the head read here is the old one and await_change
         * returns at once.  Commands issued before that head that have not ended when `done` is
         * read were in the ring the whole time between, so `led` cannot have changed in that time.
         * `done` may be beyond this head, if the engine thread led meanwhile. */
        uint32_t head = value_of(&q->head);
        if (atomic_load(&q->leave))
            return NULL;
        if (atomic_load(&q->led) || reached(&q->done, head))
            await_change(&q->head, head, atomic_load(&q->led) ? NULL : &idle);
        else
            step(q);
    }
}

/* ---- engine thread ---- */

/* Runs the next command of the lane that the engine thread leads; false: there is none. */
static bool drive(struct hzp_cpu_device *dev)
{
    if (!dev->led || !pending(dev->led))
        return false;
    step(dev->led);
    return true;
}

static void wait_for(struct hzp_cpu_device *dev, struct hzp_cpu_queue *q, uint32_t seq)
{
    while (!reached(&q->done, seq))
        if (!drive(dev)) {
            uint32_t seen = value_of(&q->done);
            if (!reached(&q->done, seq))
                await_change(&q->done, seen, &q->ended);
        }
}

/* Publishes the command at the ring's head. */
static void publish(struct hzp_cpu_queue *q)
{
    if (atomic_load_explicit(&q->led, memory_order_relaxed))
        /* do not wake the lane's thread, if it has one: it does not lead */
        atomic_fetch_add(&q->head.value, 1);
    else
        advance(&q->head);
}

/* Returns a free place at the ring's head, and waits until there is one. */
static struct command *place(struct hzp_cpu_lane *lane)
{
    struct hzp_cpu_queue *q = lane->queue;
    uint32_t head = atomic_load_explicit(&q->head.value, memory_order_relaxed);

    wait_for((struct hzp_cpu_device *)lane->base.dev, q, head - (RING - 1));
    struct command *c = &q->ring[head % RING];
    c->span = lane->span;
    lane->span = NULL;
    return c;
}

static int inline_run(struct hzp_cpu_lane *lane, enum hzp_op op, const void *args)
{
    struct hzp_cpu_device *dev = (struct hzp_cpu_device *)lane->base.dev;

    hzp_team_limit(lane->team, lane->base.most);
    if (!lane->span)
        return dev->kernel[op](&lane->base, args);
    uint64_t begin = hzp_now_ns();
    int r = dev->kernel[op](&lane->base, args);
    *lane->span = (struct hzp_span){begin, hzp_now_ns()};
    lane->span = NULL;
    return r;
}

static int issue(struct hzp_lane *base, enum hzp_op op, const void *args)
{
    struct hzp_cpu_lane *lane = (struct hzp_cpu_lane *)base;

    if (base->inlined)
        return inline_run(lane, op, args);
    struct command *c = place(lane);
    c->what = RUN;
    c->op = op;
    c->most = base->most;
    memcpy(&c->args, args, hzp_op_args_size(op));
    publish(lane->queue);
    return HZP_OK;
}

#define X(name, class_)                                                                            \
    static int issue_##name(struct hzp_lane *lane, const void *args)                               \
    {                                                                                              \
        return issue(lane, HZP_OP_##name, args);                                                   \
    }
HZP_OPS(X)
#undef X

void hzp_cpu_fill_issue(hzp_op_fn *op[HZP_OP_COUNT])
{
#define X(name, class_) op[HZP_OP_##name] = issue_##name;
    HZP_OPS(X)
#undef X
}

int hzp_cpu_lane_copy(struct hzp_lane *base, void *dst, const void *src, size_t size)
{
    struct hzp_cpu_lane *lane = (struct hzp_cpu_lane *)base;

    if (base->inlined) {
        uint64_t begin = hzp_now_ns();
        memmove(dst, src, size);
        if (lane->span)
            *lane->span = (struct hzp_span){begin, hzp_now_ns()};
        lane->span = NULL;
        return HZP_OK;
    }
    struct command *c = place(lane);
    c->what = COPY;
    c->dst = dst;
    c->src = src;
    c->size = size;
    publish(lane->queue);
    return HZP_OK;
}

int hzp_cpu_lane_time(struct hzp_lane *lane, struct hzp_span *span)
{
    ((struct hzp_cpu_lane *)lane)->span = span;
    return HZP_OK;
}

int hzp_cpu_lane_wait(struct hzp_lane *base, struct hzp_fence *fence)
{
    struct hzp_cpu_lane *lane = (struct hzp_cpu_lane *)base;

    if (!fence->queue || fence->queue == lane->queue || reached(&fence->queue->done, fence->seq))
        return HZP_OK;
    if (base->inlined)
        return hzp_cpu_fence_wait(fence);
    struct hzp_span *span = lane->span;
    lane->span = NULL;
    struct command *c = place(lane);
    lane->span = span;
    c->what = AWAIT;
    c->of = fence->queue;
    c->seq = fence->seq;
    publish(lane->queue);
    return HZP_OK;
}

int hzp_cpu_fence_open(struct hzp_device *dev, struct hzp_fence **ret)
{
    struct hzp_fence *fence = calloc(1, sizeof(*fence));

    if (!fence)
        return HZP_ENOMEM;
    fence->dev = (struct hzp_cpu_device *)dev;
    *ret = fence;
    return HZP_OK;
}

void hzp_cpu_fence_close(struct hzp_fence *fence)
{
    free(fence);
}

int hzp_cpu_fence_record(struct hzp_fence *fence, struct hzp_lane *base)
{
    struct hzp_cpu_lane *lane = (struct hzp_cpu_lane *)base;

    fence->queue = base->inlined ? NULL : lane->queue;
    if (fence->queue)
        fence->seq = atomic_load_explicit(&lane->queue->head.value, memory_order_relaxed);
    return HZP_OK;
}

int hzp_cpu_fence_wait(struct hzp_fence *fence)
{
    if (fence->queue)
        wait_for(fence->dev, fence->queue, fence->seq);
    return atomic_load(&fence->dev->failed);
}

int hzp_cpu_fence_poll(struct hzp_fence *fence)
{
    int failed = atomic_load(&fence->dev->failed);
    return failed < 0 ? failed : !fence->queue || reached(&fence->queue->done, fence->seq);
}

/* ---- shares ---- */

static void idle_wait(struct hzp_cpu_device *dev)
{
    for (struct hzp_cpu_lane *lane = dev->lanes; lane; lane = lane->next)
        if (lane->queue)
            wait_for(dev, lane->queue,
                     atomic_load_explicit(&lane->queue->head.value, memory_order_relaxed));
}

static int queue_open(struct hzp_cpu_device *dev, struct hzp_cpu_lane *lane)
{
    struct hzp_cpu_queue *q = aligned_alloc(128, sizeof(*q));

    if (!q)
        return HZP_ENOMEM;
    *q = (struct hzp_cpu_queue){
        .lane = lane, .await = {AWAIT_POLLS, AWAIT_POLLS}, .ended = {AWAIT_POLLS, AWAIT_POLLS}};
    q->ring = calloc(RING, sizeof(*q->ring));
    if (!q->ring || hzp_team_open(1, dev->base.threads, &q->team) < 0) {
        free(q->ring);
        free(q);
        return HZP_ENOMEM;
    }
    atomic_store(&q->led, true); /* until `deal` decides */
    lane->queue = q;
    return HZP_OK;
}

static void queue_close(struct hzp_cpu_queue *q)
{
    if (!q)
        return;
    uint32_t head = value_of(&q->head);
    q->ring[head % RING] =
        (struct command){.what = AWAIT, .of = q, .seq = head}; /* only wakes the thread */
    atomic_store(&q->leave, true);
    advance(&q->head);
    if (q->started)
        pthread_join(q->thread, NULL);
    hzp_team_close(q->team);
    free(q->ring);
    free(q);
}

/* Cores of all lanes with a share but those for the network. */
static int dealt(const struct hzp_cpu_device *dev)
{
    int sum = 0;

    for (const struct hzp_cpu_lane *lane = dev->lanes; lane; lane = lane->next)
        if (lane->base.use != HZP_BOUND_NETWORK)
            sum += lane->cores;
    return sum;
}

/* Assigns cores to every lane with a share but those for the network, one lane after another, and
 * sets the size of its team; the engine thread leads the first.  If the shares exceed the cores,
 * cores are assigned more than once: to the first lane from the front, to others from the back, so
 * that ops that are limited to fewer (hzp_lane_limit) can still run on different ones.  The cores
 * that the shares leave are the network's.  If no share is dealt, or they leave none, its thread
 * runs wherever this process may: an earlier deal may have pinned it. */
static int deal(struct hzp_cpu_device *dev)
{
    int cpu[HZP_CPU_THREADS_MAX], at = 0, threads = dev->base.threads;
    int used = dealt(dev);
    bool exceeds = used > threads, leaves = 0 < used && used < threads;

    dev->led = NULL;
    for (struct hzp_cpu_lane *lane = dev->lanes; lane; lane = lane->next) {
        struct hzp_cpu_queue *q = lane->queue;
        bool waits = lane->base.use == HZP_BOUND_NETWORK;
        if (!lane->cores)
            continue;
        for (int i = 0; i < lane->cores && !waits; i++, at++)
            cpu[i] = dev->cpu[exceeds && dev->led ? threads - 1 - at % threads : at % threads];
        if (exceeds && !dev->led)
            at = 0; /* others begin at the back */
        HZP_TRY(hzp_team_resize(q->team, lane->cores, waits ? NULL : cpu));
        atomic_store(&q->led, !dev->led && !waits);
        if (!dev->led && !waits) {
            dev->led = q;
            continue;
        }
        if (!q->started) {
            if (hzp_thread_start(&q->thread, "cpu-lane", lead, q) < 0)
                return HZP_ENOMEM;
            q->started = true;
        }
        if (!waits)
            hzp_cpu_pin(q->thread, cpu, 1);
        else if (leaves)
            hzp_cpu_pin(q->thread, dev->cpu + used, threads - used);
        else /* if this is not allowed, it stays where it is */
            pthread_setaffinity_np(q->thread, sizeof(dev->allowed), &dev->allowed);
    }
    return HZP_OK;
}

int hzp_cpu_lane_set_share(struct hzp_lane *base, int cores)
{
    struct hzp_cpu_lane *lane = (struct hzp_cpu_lane *)base;
    struct hzp_cpu_device *dev = (struct hzp_cpu_device *)base->dev;

    if (base->use == HZP_BOUND_NETWORK)
        cores = HZP_MIN(cores, 1);
    else
        cores = dev->base.threads == 1 ? 0 : HZP_MIN(cores, dev->base.threads);
    if (cores == lane->cores)
        return HZP_OK;
    idle_wait(dev);
    if (cores && !lane->queue)
        HZP_TRY(queue_open(dev, lane));
    lane->cores = cores;
    base->inlined = !cores;
    lane->team = cores ? lane->queue->team : dev->team;
    return deal(dev);
}

int hzp_cpu_lane_open(struct hzp_device *base, enum hzp_bound use, struct hzp_lane **ret)
{
    struct hzp_cpu_device *dev = (struct hzp_cpu_device *)base;
    struct hzp_cpu_lane *lane = calloc(1, sizeof(*lane)), **last = &dev->lanes;

    if (!lane)
        return HZP_ENOMEM;
    lane->base = (struct hzp_lane){.dev = base, .use = use, .inlined = true};
    lane->team = dev->team;
    int r = hzp_cpu_matmul_open(&lane->products);
    if (r < 0) {
        free(lane);
        return r;
    }
    while (*last)
        last = &(*last)->next;
    *last = lane;
    *ret = &lane->base;
    return HZP_OK;
}

void hzp_cpu_lane_close(struct hzp_lane *base)
{
    struct hzp_cpu_lane *lane = (struct hzp_cpu_lane *)base;
    struct hzp_cpu_device *dev = (struct hzp_cpu_device *)base->dev;

    idle_wait(dev);
    for (struct hzp_cpu_lane **at = &dev->lanes; *at; at = &(*at)->next)
        if (*at == lane) {
            *at = lane->next;
            break;
        }
    if (dev->led == lane->queue)
        dev->led = NULL;
    queue_close(lane->queue);
    hzp_cpu_matmul_close(lane->products);
    free(lane);
}
