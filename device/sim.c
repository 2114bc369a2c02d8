/* SPDX-License-Identifier: Apache-2.0 */
/* device/sim.c - a device without arithmetic, on a virtual clock: the engine's loop can run
 * thousands of steps in a second, and is repeatable.
 *
 * The clock is the host's view: it advances by the cost of issuing and by waiting for fences.  An
 * op needs flops / rate of the compute cores and bytes / rate of the memory. Ops of one lane run
 * one after another, ops of different lanes run in parallel, and each resource serves them in the
 * order of issue.  So parallel lanes gain time only if they are limited by different resources.
 *
 * Copies, small fills and gathers of numbers are really executed, so the engine's own data on the
 * device (ids, sums) are correct; sampled tokens are a hash of seed and position; losses and norms
 * are plausible constants plus a hash.  All other outputs keep their previous contents.
 *
 * With host=1 the clock also advances with the CPU time of the thread that drives the device: the
 * host's work between two calls takes its real time, in parallel with the lanes.  That shows what
 * running ahead hides; the run is then not repeatable.
 *
 * HZP_SIM=flops=1e14,bytes=3e12,copy=5e10,issue_ns=2000,mem=8e10,host=0 sets the rates (per second)
 * and the memory size it reports; these are the defaults.
 */
#include <sys/mman.h>

#include "device/backend.h"
#include "device/philox.h"
#include "device/sim.h"

struct rates {
    double flops, bytes, copy; /* per second */
    double issue_ns, mem, host;
};

struct sim_device {
    struct hzp_device base;
    struct rates rates;
    uint64_t now_ns;                    /* the virtual time that the host sees */
    uint64_t host_ns;                   /* CPU time counted so far */
    uint64_t compute_free, memory_free; /* when each resource has finished the queued work */
    hzp_op_fn *ref[HZP_OP_COUNT];
};

struct sim_lane {
    struct hzp_lane base;
    uint64_t end_ns;       /* end of its last op */
    struct hzp_span *span; /* where the next op's times are stored; NULL: not timed */
};

struct hzp_fence {
    struct sim_device *dev;
    uint64_t at_ns;
};

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void tick(struct sim_device *dev)
{
    if (!(dev->rates.host > 0))
        return;
    uint64_t now = processor_ns();
    dev->now_ns += now - dev->host_ns;
    dev->host_ns = now;
}

static void spend(struct sim_lane *lane, double compute_ns, double memory_ns)
{
    struct sim_device *dev = (struct sim_device *)lane->base.dev;
    if (lane->end_ns <= dev->now_ns)
        tick(dev); /* for a busy lane the issue time does not matter */
    dev->now_ns += (uint64_t)dev->rates.issue_ns;
    uint64_t begin = later(dev->now_ns, lane->end_ns);
    uint64_t compute = (uint64_t)compute_ns, memory = (uint64_t)memory_ns;
    if (compute)
        dev->compute_free = later(dev->compute_free, begin) + compute;
    if (memory)
        dev->memory_free = later(dev->memory_free, begin) + memory;
    lane->end_ns =
        later(begin + 1, later(compute ? dev->compute_free : 0, memory ? dev->memory_free : 0));
    if (lane->span)
        *lane->span = (struct hzp_span){begin, lane->end_ns};
    lane->span = NULL;
}

static uint64_t hash(uint64_t a, uint64_t b)
{
    return hzp_mix64(hzp_mix64(a + 0x9e3779b97f4a7c15u) + b);
}

/* The next candidate from `token` on, around the end of the vocabulary. */
static int32_t masked(const struct hzp_sample_args *a, const struct hzp_sample_row *row,
                      int32_t token)
{
    int32_t vocab = a->logits.cols;
    const uint32_t *mask =
        row->mask ? a->mask + (int64_t)(row->mask - 1) * hzp_mask_words(vocab) : NULL;
    for (int32_t i = 0; mask && i < vocab; i++) {
        int32_t t = (int32_t)(((int64_t)token + i) % vocab);
        if (mask[t / 32] >> (t % 32) & 1)
            return t;
    }
    return token;
}

static void sim_sample(const struct hzp_sample_args *a)
{
    for (int32_t r = 0; r < a->logits.rows; r++) {
        const struct hzp_sample_row *row = &a->row[r];
        uint64_t h = hash(row->seed, ((uint64_t)row->choice << 32) | row->position);
        int32_t drawn = masked(a, row, (int32_t)(h % (uint64_t)a->logits.cols));
        a->token[r] = row->given >= 0 ? row->given : drawn;
        a->logprob[r] = -1;
        a->rank[r] = 1;
        for (int32_t i = 0; i < HZP_MIN(row->tops, a->logits.cols); i++) {
            a->top_token[r * HZP_TOPS_MAX + i] = (a->token[r] + i) % a->logits.cols;
            a->top_logprob[r * HZP_TOPS_MAX + i] = -1 - (float)i;
        }
    }
}

static void sim_xent(const struct hzp_xent_args *a)
{
    for (int32_t r = 0; r < a->x.rows; r++) {
        float loss = 2 + (float)(hash((uint64_t)a->target[r], (uint64_t)r) >> 40) * 0x1p-24f;
        a->loss[r] = a->target[r] < 0 ? 0 : (a->weight ? a->weight[r] : 1) * loss;
        if (a->lp)
            a->lp[r] = a->target[r] < 0 ? 0 : -loss;
        if (a->entropy)
            a->entropy[r] = a->target[r] < 0 ? 0 : loss;
    }
}

/* Computes the results that the engine reads. */
static int effect(struct sim_device *dev, struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    enum { SMALL = 4096 };
    switch (op) {
    case HZP_OP_sample:
        sim_sample(args);
        return HZP_OK;
    case HZP_OP_xent:
        sim_xent(args);
        return HZP_OK;
    case HZP_OP_seq_loss:
        return dev->ref[op](lane, args);
    case HZP_OP_fill: {
        const struct hzp_fill_args *a = args;
        return (int64_t)a->y.rows * a->y.cols <= SMALL ? dev->ref[op](lane, args) : HZP_OK;
    }
    case HZP_OP_gather: {
        const struct hzp_gather_args *a = args;
        return a->x.type == HZP_I32 ? dev->ref[op](lane, args) : HZP_OK;
    }
    case HZP_OP_sumsq: {
        const struct hzp_sumsq_args *a = args;
        *a->sum += 1e-6 * a->x.rows * a->x.cols;
        return HZP_OK;
    }
    case HZP_OP_audit: {
        const struct hzp_audit_args *a = args;
        *a->checksum += hash((uint64_t)a->x.rows, (uint64_t)a->x.cols);
        return HZP_OK;
    }
    default:
        return HZP_OK;
    }
}

static int sim_op(struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    struct sim_device *dev = (struct sim_device *)lane->dev;
    struct hzp_cost cost = hzp_op_cost(op, args);
    spend((struct sim_lane *)lane, (double)cost.flops / dev->rates.flops * 1e9,
          (double)cost.bytes / dev->rates.bytes * 1e9);
    return effect(dev, lane, op, args);
}

#define X(name, class_)                                                                            \
    static int sim_op_##name(struct hzp_lane *lane, const void *args)                              \
    {                                                                                              \
        return sim_op(lane, HZP_OP_##name, args);                                                  \
    }
HZP_OPS(X)
#undef X

static int rates_read(const char *text, struct rates *ret, struct hzp_err_text *reterr)
{
    struct {
        const char *name;
        double *value;
    } keys[] = {{"flops", &ret->flops},       {"bytes", &ret->bytes}, {"copy", &ret->copy},
                {"issue_ns", &ret->issue_ns}, {"mem", &ret->mem},     {"host", &ret->host}};
    while (text && *text) {
        size_t length = strcspn(text, "=");
        int i = 0;
        while (i < HZP_COUNT(keys) &&
               (strlen(keys[i].name) != length || strncmp(keys[i].name, text, length) != 0))
            i++;
        char *end = NULL;
        double value = i < HZP_COUNT(keys) && text[length] ? strtod(text + length + 1, &end) : -1;
        bool may_be_0 =
            i < HZP_COUNT(keys) && (keys[i].value == &ret->issue_ns || keys[i].value == &ret->host);
        if (!end || !(value >= 0 && value <= 1e18) || (value == 0 && !may_be_0) ||
            (*end && *end != ','))
            return hzp_fail_param(reterr, HZP_EINVAL, "HZP_SIM",
                                  "HZP_SIM: bad setting at \"%.40s\"", text);
        *keys[i].value = value;
        text = *end ? end + 1 : end;
    }
    return HZP_OK;
}

static int sim_open(const struct hzp_device_config *config, struct hzp_device **ret,
                    struct hzp_err_text *reterr)
{
    struct rates rates = {1e14, 3e12, 5e10, 2000, 8e10, 0};
    HZP_TRY(rates_read(getenv("HZP_SIM"), &rates, reterr));
    struct sim_device *dev = hzp_xcalloc(1, sizeof(*dev));
    dev->base.backend = &hzp_backend_sim;
#define X(name, class_) dev->base.op[HZP_OP_##name] = sim_op_##name;
    HZP_OPS(X)
#undef X
    hzp_ref_fill(dev->ref);
    dev->rates = rates;
    dev->host_ns = processor_ns();
    dev->base.mem_total = (size_t)rates.mem;
    dev->base.threads = 1;
    snprintf(dev->base.label, sizeof(dev->base.label), "simulated, %.3g flop/s, %.3g B/s",
             rates.flops, rates.bytes);
    *ret = &dev->base;
    return HZP_OK;
}

static void sim_close(struct hzp_device *dev)
{
    free(dev);
}

/* Reserves address space only: pages that are never written use no memory.  The size is stored in
 * the page before. */
static int sim_mem_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret)
{
    enum { PAGE = 4096 };
    if (size > SIZE_MAX - PAGE)
        return HZP_ENOMEM;
    char *base = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return HZP_ENOMEM;
    *(size_t *)(void *)base = size + PAGE;
    *ret = base + PAGE;
    return HZP_OK;
}

static void sim_mem_free(struct hzp_device *dev, enum hzp_mem where, void *ptr)
{
    char *base = (char *)ptr - 4096;
    munmap(base, *(size_t *)(void *)base);
}

static int sim_copy(struct hzp_lane *lane, void *dst, const void *src, size_t size)
{
    struct sim_device *dev = (struct sim_device *)lane->dev;
    memmove(dst, src, size);
    spend((struct sim_lane *)lane, 0, (double)size / dev->rates.copy * 1e9);
    return HZP_OK;
}

static int sim_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret)
{
    struct sim_lane *lane = hzp_xcalloc(1, sizeof(*lane));
    *ret = &lane->base;
    return HZP_OK;
}

static void sim_lane_close(struct hzp_lane *lane)
{
    free(lane);
}

static int sim_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence)
{
    struct sim_lane *l = (struct sim_lane *)lane;
    l->end_ns = later(l->end_ns, fence->at_ns);
    return HZP_OK;
}

static int sim_fence_open(struct hzp_device *dev, struct hzp_fence **ret)
{
    struct hzp_fence *fence = hzp_xcalloc(1, sizeof(*fence));
    fence->dev = (struct sim_device *)dev;
    *ret = fence;
    return HZP_OK;
}

static void sim_fence_close(struct hzp_fence *fence)
{
    free(fence);
}

static int sim_fence_record(struct hzp_fence *fence, struct hzp_lane *lane)
{
    fence->at_ns = ((struct sim_lane *)lane)->end_ns;
    return HZP_OK;
}

static int sim_fence_wait(struct hzp_fence *fence)
{
    tick(fence->dev);
    fence->dev->now_ns = later(fence->dev->now_ns, fence->at_ns);
    return HZP_OK;
}

static int sim_fence_poll(struct hzp_fence *fence)
{
    return fence->at_ns <= fence->dev->now_ns;
}

static int sim_lane_time(struct hzp_lane *lane, struct hzp_span *span)
{
    ((struct sim_lane *)lane)->span = span;
    return HZP_OK;
}

static uint64_t sim_now_ns(struct hzp_device *dev)
{
    tick((struct sim_device *)dev);
    return ((struct sim_device *)dev)->now_ns;
}

bool hzp_sim_is(const struct hzp_device *dev)
{
    return dev->backend == &hzp_backend_sim;
}

void hzp_sim_wait_until(struct hzp_device *dev, uint64_t at_ns)
{
    struct sim_device *sim = (struct sim_device *)dev;
    tick(sim);
    sim->now_ns = later(sim->now_ns, at_ns);
}

const struct hzp_backend hzp_backend_sim = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .mem_alloc = sim_mem_alloc,
    .mem_free = sim_mem_free,
    .copy = sim_copy,
    .lane_open = sim_lane_open,
    .lane_close = sim_lane_close,
    .lane_wait = sim_lane_wait,
    .fence_open = sim_fence_open,
    .fence_close = sim_fence_close,
    .fence_record = sim_fence_record,
    .fence_wait = sim_fence_wait,
    .fence_poll = sim_fence_poll,
    .lane_time = sim_lane_time,
    .now_ns = sim_now_ns,
};
