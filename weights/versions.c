/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/versions.h"

#include "base/thread.h"

enum {
    RECORDS_MAX = 4096,
    STEPS_IN_FLIGHT = 2, /* at most; they may have been formed with an older version */
};

/* The memory of one slot. */
struct slot_memory {
    void *weights, *fp8; /* allocations; fp8 NULL: the store keeps none */
    struct hzp_units units;
    void **layer_fp8; /* [layers] codes and scales of each */
};

struct hzp_weights {
    /* fixed once created */
    struct hzp_device *dev;
    const struct hzp_layout *layout;
    struct hzp_weights_config config;
    struct slot_memory *memory; /* [config.slots] */
    void *ring;                 /* holds gathered units; NULL: there is none */
    size_t ring_bytes;
    struct hzp_units gathered;

    /* engine thread only; record.state of a slot is the slot's state */
    struct hzp_version *slot;            /* [config.slots] */
    struct hzp_version *current, *trial; /* trial NULL: none */
    uint64_t issued;                     /* ids so far */
    bool in_place; /* one slot: an update of the current version is in progress */
    int64_t serving_optimizer_step, finished_optimizer_step;
    int64_t *unlearned; /* [unlearned_count] ascending */
    int32_t unlearned_count, unlearned_room;

    /* under lock: what other threads may read */
    struct hzp_lock lock;
    /* [RECORDS_MAX]; of the n-th id issued: at n % RECORDS_MAX */
    struct hzp_version_record *record;
    struct hzp_version_record *history; /* [histories] of earlier processes, newest first */
    int32_t histories;
    struct hzp_weights_stats stats;
    uint64_t *resident; /* [config.slots] the version that a slot holds; 0: none */

    _Atomic int32_t max_staleness; /* any thread */
    _Atomic int32_t asked;         /* the smallest bound of a request; INT32_MAX: none */
    _Atomic uint64_t ended;        /* any thread: the newest step that has ended */
};

void hzp_learned_add(struct hzp_learned *learned, int64_t n)
{
    int32_t i = 0;
    while (i < learned->ranges && learned->last[i] < n - 1)
        i++;
    /* Ranges before i end before n - 1. */
    if (i < learned->ranges && learned->first[i] <= n + 1) {
        learned->first[i] = HZP_MIN(learned->first[i], n);
        learned->last[i] = HZP_MAX(learned->last[i], n);
        if (i + 1 == learned->ranges || learned->first[i + 1] > learned->last[i] + 1)
            return;
        learned->last[i] = learned->last[i + 1];
        learned->ranges--;
        size_t after = (size_t)(learned->ranges - i - 1) * sizeof(int64_t);
        memmove(&learned->first[i + 1], &learned->first[i + 2], after);
        memmove(&learned->last[i + 1], &learned->last[i + 2], after);
        return;
    }
    if (learned->ranges == HZP_LEARNED_MAX) {
        learned->more = true;
        return;
    }
    size_t after = (size_t)(learned->ranges - i) * sizeof(int64_t);
    memmove(&learned->first[i + 1], &learned->first[i], after);
    memmove(&learned->last[i + 1], &learned->last[i], after);
    learned->first[i] = learned->last[i] = n;
    learned->ranges++;
}

/* Optimizer steps by which the current version trails the newest finished update.  Updates in place
 * are visible at once. */
static int64_t staleness(const struct hzp_weights *w)
{
    return w->current && w->config.slots > 1
               ? w->finished_optimizer_step - w->serving_optimizer_step
               : 0;
}

/* The staleness bound in force. */
static int32_t bound(const struct hzp_weights *w)
{
    int32_t most = atomic_load(&w->max_staleness), asked = atomic_load(&w->asked);
    return HZP_MIN(most, asked);
}

/* Updates the statistics that other threads read; the lock is held. */
static void refresh_stats(struct hzp_weights *w)
{
    struct hzp_weights_stats *s = &w->stats;
    s->serving_id = w->current ? w->current->record.id : 0;
    s->trial_id = w->trial ? w->trial->record.id : 0;
    s->next_id = w->config.first_id + w->issued;
    s->serving_optimizer_step = w->serving_optimizer_step;
    s->finished_optimizer_step = w->finished_optimizer_step;
    s->staleness = staleness(w);
    s->max_staleness = atomic_load(&w->max_staleness);
    s->bound = bound(w);
    if (s->staleness > s->max_staleness)
        s->bound_step = 0;
    else if (!s->bound_step)
        s->bound_step = atomic_load(&w->ended) + 1 + STEPS_IN_FLIGHT;
    s->slots_free = 0;
    for (int32_t i = 0; i < s->slots; i++) {
        const struct hzp_version_record *r = &w->slot[i].record;
        bool served = r->state != HZP_VERSION_TRIAL && r->state != HZP_VERSION_DROPPED;
        s->slots_free += r->state == HZP_VERSION_FREE;
        w->resident[i] = served ? r->id : 0;
    }
}

static void refresh_stats_locked(struct hzp_weights *w)
{
    HZP_LOCKED(&w->lock);
    refresh_stats(w);
}

/* Ids are issued one after another, so a version's record is found by its index; it may have been
 * overwritten by a newer one.  The lock is held. */
static void set_recorded_state(struct hzp_weights *w, uint64_t id, enum hzp_version_state state)
{
    struct hzp_version_record *record = &w->record[(id - w->config.first_id) % RECORDS_MAX];
    if (record->id == id)
        record->state = state;
}

static int open_memory(struct hzp_weights *w, struct slot_memory *m)
{
    const struct hzp_layout *layout = w->layout;
    enum hzp_dtype type = w->config.type;
    const struct hzp_shards *shards = &w->config.shards;
    if (!hzp_shards_whole(shards)) {
        size_t bytes = hzp_units_shard_bytes(layout, type, shards, HZP_LEVEL_PARAMS);
        HZP_TRY(hzp_device_alloc(w->dev, HZP_MEM_DEVICE, bytes, &m->weights));
        hzp_units_init_shards(&m->units, layout, type, m->weights, shards, HZP_LEVEL_PARAMS);
        return HZP_OK;
    }
    HZP_TRY(hzp_device_alloc(w->dev, HZP_MEM_DEVICE, hzp_units_bytes(layout, type), &m->weights));
    hzp_units_init(&m->units, layout, type, m->weights);
    if (!w->config.fp8)
        return HZP_OK;
    HZP_TRY(hzp_device_alloc(w->dev, HZP_MEM_DEVICE, hzp_fp8_bytes(layout), &m->fp8));
    m->layer_fp8 = hzp_xcalloc((size_t)layout->config.layers, sizeof(*m->layer_fp8));
    char *at = m->fp8;
    for (int32_t l = 0; l < layout->config.layers; l++) {
        m->layer_fp8[l] = at;
        at += hzp_fp8_layer_bytes(layout, l);
    }
    return HZP_OK;
}

/* Three places for the largest unit; a tied embedding has its own (weights/groups.h). */
static int open_ring(struct hzp_weights *w)
{
    const struct hzp_shards *shards = &w->config.shards;
    const struct hzp_layout *layout = w->layout;
    if (shards->groups.z3 <= 1)
        return HZP_OK;
    struct hzp_groups_model m = hzp_groups_model(shards, layout);
    size_t size = hzp_dtype_size(w->config.type);
    w->ring_bytes = (m.tied + 3 * m.largest) * size;
    HZP_TRY(hzp_device_alloc(w->dev, HZP_MEM_DEVICE, w->ring_bytes, &w->ring));
    hzp_units_init(&w->gathered, layout, w->config.type, NULL);
    for (int32_t u = 0; u < layout->units; u++) {
        size_t place = u == 0 && m.tied ? 0 : m.tied + (size_t)(u % 3) * m.largest;
        hzp_units_place(&w->gathered, u, (char *)w->ring + place * size);
    }
    return HZP_OK;
}

static void close_memory(struct hzp_weights *w, struct slot_memory *m)
{
    hzp_device_free(w->dev, HZP_MEM_DEVICE, m->weights);
    hzp_device_free(w->dev, HZP_MEM_DEVICE, m->fp8);
    hzp_units_free(&m->units);
    free(m->layer_fp8);
}

int hzp_weights_create(struct hzp_device *dev, const struct hzp_layout *layout,
                       const struct hzp_weights_config *config, struct hzp_weights **ret)
{
    HZP_ASSERT(config->slots >= 1 && config->max_staleness >= 0 && config->first_id >= 1);
    HZP_ASSERT(config->type == HZP_F32 || config->type == HZP_BF16);
    struct hzp_weights *w = hzp_xcalloc(1, sizeof(*w));
    w->dev = dev;
    w->layout = layout;
    w->config = *config;
    atomic_store(&w->max_staleness, config->max_staleness);
    atomic_store(&w->asked, INT32_MAX);
    w->slot = hzp_xcalloc((size_t)config->slots, sizeof(*w->slot));
    w->memory = hzp_xcalloc((size_t)config->slots, sizeof(*w->memory));
    w->resident = hzp_xcalloc((size_t)config->slots, sizeof(*w->resident));
    w->record = hzp_xcalloc(RECORDS_MAX, sizeof(*w->record));
    w->stats.slots = config->slots;
    w->stats.learned_through = -1;
    hzp_lock_init(&w->lock, HZP_LOCK_VERSIONS);
    for (int32_t i = 0; i < config->slots; i++) {
        int r = open_memory(w, &w->memory[i]);
        if (r < 0) {
            hzp_weights_destroy(w);
            return r;
        }
    }
    int r = open_ring(w);
    if (r < 0) {
        hzp_weights_destroy(w);
        return r;
    }
    refresh_stats(w);
    *ret = w;
    return HZP_OK;
}

void hzp_weights_destroy(struct hzp_weights *w)
{
    if (!w)
        return;
    for (int32_t i = 0; i < w->config.slots; i++)
        close_memory(w, &w->memory[i]);
    hzp_device_free(w->dev, HZP_MEM_DEVICE, w->ring);
    hzp_units_free(&w->gathered);
    hzp_lock_fini(&w->lock);
    free(w->memory);
    free(w->slot);
    free(w->record);
    free(w->history);
    free(w->unlearned);
    free(w->resident);
    free(w);
}

void hzp_weights_set_first_id(struct hzp_weights *w, uint64_t id)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(id >= 1 && !w->stats.publications);
    w->config.first_id = id;
}

const struct hzp_layout *hzp_weights_layout(const struct hzp_weights *w)
{
    return w->layout;
}

struct hzp_device *hzp_weights_device(const struct hzp_weights *w)
{
    return w->dev;
}

bool hzp_weights_fp8(const struct hzp_weights *w)
{
    return w->config.fp8;
}

enum hzp_dtype hzp_weights_type(const struct hzp_weights *w)
{
    return w->config.type;
}

struct hzp_version *hzp_weights_current(struct hzp_weights *w)
{
    return w->current;
}

static const struct slot_memory *memory_of(const struct hzp_weights *w, const struct hzp_version *v)
{
    HZP_ASSERT(v >= w->slot && v < w->slot + w->config.slots);
    return &w->memory[v - w->slot];
}

const struct hzp_units *hzp_version_units(const struct hzp_weights *w, const struct hzp_version *v)
{
    return &memory_of(w, v)->units;
}

struct hzp_unit_view hzp_version_unit(const struct hzp_weights *w, const struct hzp_version *v,
                                      int32_t u)
{
    return hzp_unit_view(&memory_of(w, v)->units, u);
}

bool hzp_weights_memory(const struct hzp_weights *w, int32_t i, void **ret, size_t *ret_bytes)
{
    int32_t slots = w->config.slots;
    const struct hzp_shards *shards = &w->config.shards;
    *ret = i < slots ? w->memory[i].weights : i == slots ? w->ring : NULL;
    *ret_bytes = i == slots ? w->ring_bytes
                 : hzp_shards_whole(shards)
                     ? hzp_units_bytes(w->layout, w->config.type)
                     : hzp_units_shard_bytes(w->layout, w->config.type, shards, HZP_LEVEL_PARAMS);
    return *ret != NULL;
}

const struct hzp_units *hzp_weights_gathered(const struct hzp_weights *w)
{
    return w->ring ? &w->gathered : NULL;
}

struct hzp_mat hzp_version_mat(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer)
{
    const struct hzp_units *whole = w->ring ? &w->gathered : &memory_of(w, v)->units;
    return hzp_units_mat(whole, role, layer);
}

struct hzp_mat hzp_version_fp8(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer, float **ret_scale)
{
    HZP_ASSERT(w->config.fp8 && layer >= 0 && layer < w->layout->config.layers);
    return hzp_fp8_mat(w->layout, memory_of(w, v)->layer_fp8[layer], role, layer, ret_scale);
}

struct hzp_version *hzp_weights_acquire(struct hzp_weights *w)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(w->current);
    w->current->held++;
    return w->current;
}

void hzp_weights_hold(struct hzp_weights *w, struct hzp_version *v)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(v->held > 0);
    v->held++;
}

const struct hzp_version *hzp_weights_slot(const struct hzp_weights *w, int32_t i)
{
    return i < w->config.slots ? &w->slot[i] : NULL;
}

void hzp_weights_release(struct hzp_weights *w, struct hzp_version *v, uint64_t last_step)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(v->held > 0);
    v->held--;
    v->last_step = HZP_MAX(v->last_step, last_step);
}

void hzp_weights_reclaim(struct hzp_weights *w, uint64_t ended)
{
    hzp_assert_engine_thread();
    atomic_store(&w->ended, HZP_MIN(ended, UINT64_MAX / 2));
    for (int32_t i = 0; i < w->config.slots; i++) {
        struct hzp_version *v = &w->slot[i];
        bool dropped = v->record.state == HZP_VERSION_DROPPED;
        if ((v->record.state != HZP_VERSION_RETIRED && !dropped) || v->held > 0 ||
            v->last_step > ended)
            continue;
        hzp_lock_take(&w->lock);
        v->record.state = HZP_VERSION_FREE;
        if (dropped)
            v->record.id = 0; /* it cannot be revived */
        else
            set_recorded_state(w, v->record.id, HZP_VERSION_FREE);
        refresh_stats(w);
        hzp_lock_release(&w->lock);
    }
}

/* Starts a record that continues the current version's: the same step, and nothing learned yet. */
static void start_record(const struct hzp_weights *w, struct hzp_version_record *record,
                         enum hzp_version_state state)
{
    int64_t through = w->current ? w->current->record.learned_through : -1;
    uint64_t id = state == HZP_VERSION_CURRENT ? record->id : 0;
    memset(record, 0, sizeof(*record));
    record->id = id;
    record->state = state;
    record->optimizer_step = w->serving_optimizer_step;
    record->loss = record->gate_before = record->gate_after = NAN;
    record->learned_through = through;
}

static void start_draft(struct hzp_weights *w, struct hzp_version *v)
{
    start_record(w, &v->record, HZP_VERSION_DRAFT);
    v->held = 0;
    v->last_step = 0;
    refresh_stats_locked(w);
}

/* With the oldest contents: newer ones may be revived.  NULL: none is free. */
static struct hzp_version *free_slot(struct hzp_weights *w)
{
    struct hzp_version *ret = NULL;
    for (int32_t i = 0; i < w->config.slots; i++) {
        struct hzp_version *v = &w->slot[i];
        if (v->record.state == HZP_VERSION_FREE && (!ret || v->record.id < ret->record.id))
            ret = v;
    }
    return ret;
}

static void hold_retired(struct hzp_weights *w, struct hzp_version *v)
{
    v->record.state = HZP_VERSION_RETIRED;
    v->held = 1;
    v->last_step = 0;
    refresh_stats_locked(w);
}

int hzp_weights_acquire_earlier(struct hzp_weights *w, uint64_t id, struct hzp_version **ret)
{
    hzp_assert_engine_thread();
    for (int32_t i = 0; id && i < w->config.slots; i++) {
        struct hzp_version *v = &w->slot[i];
        bool whole =
            v->record.state == HZP_VERSION_CURRENT || v->record.state == HZP_VERSION_RETIRED;
        if (v->record.id != id || (!whole && v->record.state != HZP_VERSION_FREE))
            continue;
        if (whole)
            v->held++;
        else
            hold_retired(w, v);
        *ret = v;
        return HZP_OK;
    }
    return HZP_ENOENT;
}

int hzp_weights_acquire_empty(struct hzp_weights *w, struct hzp_version **ret)
{
    hzp_assert_engine_thread();
    struct hzp_version *v = *ret = free_slot(w);
    if (!v)
        return HZP_EBUSY;
    start_record(w, &v->record, HZP_VERSION_RETIRED);
    v->fp8_made = false;
    hold_retired(w, v);
    return HZP_OK;
}

int hzp_weights_begin(struct hzp_weights *w, struct hzp_version **ret)
{
    hzp_assert_engine_thread();
    if (w->config.slots == 1 && w->current) {
        if (!w->in_place)
            start_record(w, &w->current->record, HZP_VERSION_CURRENT);
        w->in_place = true;
        w->current->fp8_made = false;
        *ret = w->current;
        return HZP_OK;
    }
    struct hzp_version *free_one = free_slot(w);
    if (!free_one)
        return HZP_EBUSY;
    start_draft(w, free_one);
    free_one->fp8_made = false;
    *ret = free_one;
    return HZP_OK;
}

int hzp_weights_revive(struct hzp_weights *w, uint64_t id, struct hzp_version **ret)
{
    hzp_assert_engine_thread();
    for (int32_t i = 0; i < w->config.slots; i++) {
        struct hzp_version *v = &w->slot[i];
        if (!id || v->record.id != id)
            continue;
        if (v->record.state != HZP_VERSION_FREE)
            return HZP_EBUSY;
        start_draft(w, v);
        *ret = v;
        return HZP_OK;
    }
    return HZP_ENOENT;
}

void hzp_weights_abandon(struct hzp_weights *w, struct hzp_version *draft)
{
    hzp_assert_engine_thread();
    if (draft == w->current) {
        HZP_ASSERT(w->in_place);
        w->in_place = false;
        return;
    }
    HZP_ASSERT(draft->record.state == HZP_VERSION_DRAFT);
    draft->record.state = HZP_VERSION_FREE;
    /* Updates that only drafts contained are lost with the last draft: the server no longer trails
     * them, and the trainer continues from the current version. */
    bool drafts = false;
    for (int32_t i = 0; i < w->config.slots; i++)
        drafts = drafts || w->slot[i].record.state == HZP_VERSION_DRAFT;
    if (!drafts)
        w->finished_optimizer_step = w->serving_optimizer_step;
    refresh_stats_locked(w);
}

/* Retires the old current version; if it was updated in place, its memory is the new one's. */
static void retire(struct hzp_weights *w, struct hzp_version *draft, uint64_t old_id,
                   uint64_t last_step)
{
    struct hzp_version *old = w->current;
    if (!old)
        return;
    set_recorded_state(w, old_id, old == draft ? HZP_VERSION_FREE : HZP_VERSION_RETIRED);
    if (old == draft)
        return;
    old->record.state = HZP_VERSION_RETIRED;
    old->last_step = HZP_MAX(old->last_step, last_step);
}

/* The record gets the next id.  The lock is held. */
static void issue_id(struct hzp_weights *w, struct hzp_version_record *record,
                     enum hzp_version_state state)
{
    record->id = w->config.first_id + w->issued;
    record->published_unix_ms = hzp_unix_ms();
    record->state = state;
    w->record[w->issued % RECORDS_MAX] = *record;
    w->issued++;
}

void hzp_weights_begin_trial(struct hzp_weights *w, struct hzp_version *draft)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(draft->record.state == HZP_VERSION_DRAFT && w->current && !w->trial);
    HZP_ASSERT(!w->config.fp8 || draft->fp8_made);
    HZP_LOCKED(&w->lock);
    draft->record.parent = w->current->record.id;
    issue_id(w, &draft->record, HZP_VERSION_TRIAL);
    w->trial = draft;
    refresh_stats(w);
}

void hzp_weights_drop_trial(struct hzp_weights *w)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(w->trial);
    HZP_LOCKED(&w->lock);
    w->trial->record.state = HZP_VERSION_DROPPED;
    set_recorded_state(w, w->trial->record.id, HZP_VERSION_DROPPED);
    w->trial = NULL;
    refresh_stats(w);
}

struct hzp_version *hzp_weights_trial(struct hzp_weights *w)
{
    hzp_assert_engine_thread();
    return w->trial;
}

struct hzp_version *hzp_weights_acquire_trial(struct hzp_weights *w)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(w->trial);
    w->trial->held++;
    return w->trial;
}

void hzp_weights_publish(struct hzp_weights *w, struct hzp_version *draft, uint64_t last_step)
{
    hzp_assert_engine_thread();
    struct hzp_version_record *record = &draft->record;
    bool tried = draft == w->trial;
    HZP_ASSERT(record->state == HZP_VERSION_DRAFT || tried || (draft == w->current && w->in_place));
    HZP_ASSERT(!w->config.fp8 || draft->fp8_made);
    uint64_t old_id = w->current ? w->current->record.id : 0;
    int64_t seen = staleness(w);

    HZP_LOCKED(&w->lock);
    if (w->current)
        w->stats
            .staleness_seen[HZP_MIN(HZP_MAX(seen, 0), HZP_COUNT(w->stats.staleness_seen) - 1)]++;
    retire(w, draft, old_id, last_step);
    if (!record->parent)
        record->parent = old_id;
    if (tried) {
        record->published_unix_ms = hzp_unix_ms();
        record->state = HZP_VERSION_CURRENT;
        w->record[(record->id - w->config.first_id) % RECORDS_MAX] = *record;
        w->trial = NULL;
    } else {
        issue_id(w, record, HZP_VERSION_CURRENT);
    }
    /* A published update counts as finished.  Publishing an older state (a restore) lowers the
     * count of finished updates: those after it are no ancestors of the version that serves now. */
    if (record->optimizer_step > w->finished_optimizer_step ||
        record->optimizer_step < w->serving_optimizer_step)
        w->finished_optimizer_step = record->optimizer_step;
    w->serving_optimizer_step = record->optimizer_step;
    w->current = draft;
    w->in_place = false;
    w->stats.publications++;
    w->stats.learned_through = record->learned_through;
    refresh_stats(w);
}

void hzp_weights_finished(struct hzp_weights *w, int64_t optimizer_step)
{
    hzp_assert_engine_thread();
    w->finished_optimizer_step = HZP_MAX(w->finished_optimizer_step, optimizer_step);
    refresh_stats_locked(w);
}

/* Why the bound K = bound() holds whenever a step runs.  Let F be the newest finished update
 * and S the update of the version that serves; one update is in progress at a time, so F grows by
 * one at its end.
 *   - It began with publishes = false: then F + 1 - S <= K was checked here; until its end only a
 *     publication changes S, and S only grows by it (restoring an older state sets F = S).  So
 *     F - S <= K after it.
 *   - It began with publishes = true: F stays while it runs, and it ends by being published between
 *     the same two steps of the loop: no step sees F + 1 with the old S, and after it F - S = 0.
 *   - Nothing else changes F or S: abandoning the last draft sets F = S.
 * Only lowering K can leave F - S above K, because of updates already finished; then only an update
 * that is published at its end may begin. */
bool hzp_weights_may_update(const struct hzp_weights *w, bool publishes)
{
    if (!w->current)
        return false;
    if (publishes || w->config.slots == 1)
        return true;
    return w->finished_optimizer_step + 1 - w->serving_optimizer_step <= bound(w);
}

int64_t hzp_weights_staleness(struct hzp_weights *w)
{
    return staleness(w);
}

void hzp_weights_set_max_staleness(struct hzp_weights *w, int32_t max_staleness)
{
    HZP_ASSERT(max_staleness >= 0);
    atomic_store(&w->max_staleness, max_staleness);
    HZP_LOCKED(&w->lock);
    struct hzp_weights_stats *s = &w->stats;
    if (max_staleness < s->max_staleness) /* older steps may have been staler */
        s->bound_step =
            s->staleness > max_staleness ? 0 : atomic_load(&w->ended) + 1 + STEPS_IN_FLIGHT;
    else if (!s->bound_step && s->staleness <= max_staleness)
        s->bound_step = atomic_load(&w->ended) + 1 + STEPS_IN_FLIGHT;
    s->max_staleness = max_staleness;
    s->bound = bound(w);
}

void hzp_weights_ask_staleness(struct hzp_weights *w, int32_t max_staleness)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(max_staleness >= 0);
    if (atomic_load(&w->asked) == max_staleness)
        return;
    atomic_store(&w->asked, max_staleness);
    refresh_stats_locked(w);
}

uint64_t hzp_weights_ended(const struct hzp_weights *w)
{
    return atomic_load(&w->ended);
}

/* The index of the first number that is not smaller. */
static int32_t unlearned_at(const struct hzp_weights *w, int64_t number)
{
    int32_t low = 0, high = w->unlearned_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (w->unlearned[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool hzp_weights_unlearned(const struct hzp_weights *w, int64_t number)
{
    hzp_assert_engine_thread();
    int32_t i = unlearned_at(w, number);
    return i < w->unlearned_count && w->unlearned[i] == number;
}

int64_t hzp_weights_learnable(const struct hzp_weights *w, int64_t number)
{
    hzp_assert_engine_thread();
    for (int32_t i = unlearned_at(w, number);
         i >= 0 && i < w->unlearned_count && w->unlearned[i] == number; i--)
        number--;
    return number;
}

void hzp_weights_clear_unlearned(struct hzp_weights *w)
{
    hzp_assert_engine_thread();
    w->unlearned_count = 0;
}

void hzp_weights_add_unlearned(struct hzp_weights *w, int64_t number)
{
    if (hzp_weights_unlearned(w, number))
        return;
    w->unlearned =
        hzp_xgrow(w->unlearned, &w->unlearned_room, w->unlearned_count + 1, sizeof(*w->unlearned));
    int32_t i = unlearned_at(w, number);
    memmove(w->unlearned + i + 1, w->unlearned + i,
            (size_t)(w->unlearned_count - i) * sizeof(*w->unlearned));
    w->unlearned[i] = number;
    w->unlearned_count++;
}

void hzp_weights_set_history(struct hzp_weights *w, const struct hzp_version_record *record,
                             int32_t count)
{
    count = HZP_MIN(HZP_MAX(count, 0), RECORDS_MAX);
    struct hzp_version_record *history = hzp_xcalloc((size_t)HZP_MAX(count, 1), sizeof(*history));
    if (count)
        memcpy(history, record, (size_t)count * sizeof(*history));
    HZP_LOCKED(&w->lock);
    free(w->history);
    w->history = history;
    w->histories = count;
}

int32_t hzp_weights_list(struct hzp_weights *w, struct hzp_version_record *ret, int32_t max)
{
    HZP_LOCKED(&w->lock);
    uint64_t kept = HZP_MIN(w->issued, (uint64_t)RECORDS_MAX);
    int32_t n = (int32_t)HZP_MIN(kept, (uint64_t)HZP_MAX(max, 0));
    for (int32_t i = 0; i < n; i++)
        ret[i] = w->record[(w->issued - 1 - (uint64_t)i) % RECORDS_MAX];
    int32_t older = HZP_MIN(HZP_MAX(max, 0) - n, w->histories);
    older = HZP_MIN(older, RECORDS_MAX - n);
    if (older > 0)
        memcpy(ret + n, w->history, (size_t)older * sizeof(*ret));
    return n + HZP_MAX(older, 0);
}

int32_t hzp_weights_list_after(struct hzp_weights *w, uint64_t id, struct hzp_version_record *ret,
                               int32_t max)
{
    HZP_LOCKED(&w->lock);
    uint64_t end = w->issued, begin = end - HZP_MIN(end, (uint64_t)RECORDS_MAX);
    if (id >= w->config.first_id) /* the n-th id is first_id + n */
        begin = HZP_MIN(HZP_MAX(begin, id - w->config.first_id + 1), end);
    int32_t n = 0;
    for (uint64_t i = begin; i < end && n < max; i++) {
        const struct hzp_version_record *r = &w->record[i % RECORDS_MAX];
        if (r->state != HZP_VERSION_TRIAL && r->state != HZP_VERSION_DROPPED)
            ret[n++] = *r;
    }
    return n;
}

bool hzp_weights_resident(struct hzp_weights *w, uint64_t id)
{
    HZP_LOCKED(&w->lock);
    for (int32_t i = 0; i < w->config.slots; i++)
        if (id && w->resident[i] == id)
            return true;
    return false;
}

void hzp_weights_read_stats(struct hzp_weights *w, struct hzp_weights_stats *ret)
{
    HZP_LOCKED(&w->lock);
    *ret = w->stats;
}
