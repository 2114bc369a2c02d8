/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "weights/versions.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct hzp_device *dev;
static struct hzp_layout layout;

static int setup(void **state)
{
    struct hzp_model_config c = {.family = "llama",
                                 .layers = 1,
                                 .width = 4,
                                 .inner = 4,
                                 .vocab = 4,
                                 .heads = {1, 1, 4},
                                 .positions = 4,
                                 .tied = true};
    struct hzp_device_config config = {.name = "ref"};
    hzp_layout_make(&c, &layout);
    return hzp_device_open(&config, &dev, NULL);
}

static int teardown(void **state)
{
    hzp_layout_free(&layout);
    hzp_device_close(dev);
    return 0;
}

static struct hzp_weights *make(int slots, int max_staleness, uint64_t first_id)
{
    struct hzp_weights *w;
    struct hzp_weights_config config = {
        .type = HZP_F32, .slots = slots, .max_staleness = max_staleness, .first_id = first_id};
    assert_int_equal(hzp_weights_create(dev, &layout, &config, &w), HZP_OK);
    return w;
}

/* Begins a draft, sets its step and publishes it. */
static struct hzp_version *publish(struct hzp_weights *w, int64_t step, uint64_t last_step)
{
    struct hzp_version *v;
    assert_int_equal(hzp_weights_begin(w, &v), HZP_OK);
    v->record.optimizer_step = step;
    hzp_weights_publish(w, v, last_step);
    return v;
}

static void test_life(void **state)
{
    struct hzp_weights *w = make(2, 1, 7);
    struct hzp_version_record list[4];
    struct hzp_weights_stats s;
    struct hzp_version *draft, *a, *b;
    assert_null(hzp_weights_current(w));
    assert_false(hzp_weights_may_update(w, true));
    assert_int_equal(hzp_weights_list(w, list, 4), 0);
    hzp_weights_read_stats(w, &s);
    assert_int_equal(s.slots_free, 2);
    assert_int_equal(s.serving_id, 0);
    assert_int_equal(s.learned_through, -1);

    a = publish(w, 0, 0);
    assert_ptr_equal(hzp_weights_current(w), a);
    assert_int_equal(a->record.id, 7);
    assert_true(a->record.published_unix_ms > 1500000000000);
    assert_true(isnan(a->record.loss));
    assert_ptr_equal(hzp_weights_acquire(w), a);
    b = publish(w, 1, 10);
    assert_int_equal(b->record.id, 8);
    assert_ptr_not_equal(hzp_version_unit(w, a, 0).base, hzp_version_unit(w, b, 0).base);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_EBUSY); /* a is held */
    hzp_weights_reclaim(w, 100);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_EBUSY);
    hzp_weights_release(w, a, 101);
    hzp_weights_reclaim(w, 100);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_EBUSY); /* step 101 still reads it */
    assert_int_equal(hzp_weights_list(w, list, 4), 2);
    assert_int_equal(list[0].id, 8);
    assert_int_equal(list[0].state, HZP_VERSION_CURRENT);
    assert_int_equal(list[1].id, 7);
    assert_int_equal(list[1].state, HZP_VERSION_RETIRED);
    hzp_weights_reclaim(w, 101);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_OK);
    assert_ptr_equal(draft, a);
    assert_int_equal(hzp_weights_list(w, list, 4), 2);
    assert_int_equal(list[1].state, HZP_VERSION_FREE);
    assert_int_equal(hzp_weights_list(w, list, 1), 1);
    hzp_weights_read_stats(w, &s);
    assert_int_equal(s.slots_free, 0);
    hzp_weights_abandon(w, draft);
    hzp_weights_read_stats(w, &s);
    assert_int_equal(s.slots_free, 1);
    assert_ptr_equal(hzp_weights_current(w), b);
    assert_ptr_equal(hzp_version_mat(w, b, HZP_EMBED, -1).ptr, hzp_version_unit(w, b, 0).base);
    assert_ptr_equal(hzp_weights_layout(w), &layout);
    assert_int_equal(hzp_weights_type(w), HZP_F32);
    hzp_weights_destroy(w);
    hzp_weights_destroy(NULL);
}

/* The step that read the retiring version last counts even if no reader held the version. */
static void test_last_step(void **state)
{
    struct hzp_weights *w = make(2, 1, 1);
    struct hzp_version *draft;
    publish(w, 0, 0);
    publish(w, 1, 5);
    hzp_weights_reclaim(w, 4);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_EBUSY);
    hzp_weights_reclaim(w, 5);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_OK);
    hzp_weights_destroy(w);
}

/* The journal's view: each record once and in order, whatever is published between two reads. */
static void test_list_after(void **state)
{
    struct hzp_weights *w = make(2, 1, 7);
    struct hzp_version_record list[8];
    uint64_t seen = 6;
    assert_int_equal(hzp_weights_list_after(w, seen, list, 8), 0);
    for (int i = 0; i < 5; i++) {
        publish(w, i, 0);
        hzp_weights_reclaim(w, 0);
    }
    assert_int_equal(hzp_weights_list_after(w, seen, list, 2), 2); /* the oldest, not the newest */
    assert_int_equal(list[0].id, 7);
    assert_int_equal(list[1].id, 8);
    publish(w, 5, 0);
    assert_int_equal(hzp_weights_list_after(w, 8, list, 8), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(list[i].id, 9 + i);
    assert_int_equal(hzp_weights_list_after(w, 12, list, 8), 0);
    assert_int_equal(hzp_weights_list_after(w, 99, list, 8), 0);
    assert_int_equal(hzp_weights_list_after(w, 0, list, 8), 6);
    assert_int_equal(hzp_weights_list_after(w, 0, list, 0), 0);
    assert_int_equal(hzp_weights_list_after(w, 0, list, -1), 0);
    hzp_weights_destroy(w);
}

static void test_in_place(void **state)
{
    struct hzp_weights *w = make(1, 0, 1);
    struct hzp_version_record list[2];
    struct hzp_version *v, *again;
    v = publish(w, 0, 0);
    for (int step = 1; step < 4; step++) {
        assert_true(hzp_weights_may_update(w, false));
        assert_int_equal(hzp_weights_begin(w, &again), HZP_OK);
        assert_ptr_equal(again, v);
        hzp_learned_add(&again->record.learned, step);
        hzp_weights_finished(w, step);
        assert_int_equal(hzp_weights_staleness(w), 0);
    }
    assert_int_equal(v->record.learned.ranges, 1);
    v->record.optimizer_step = 3;
    v->record.loss = 2.5;
    hzp_weights_publish(w, v, 0);
    assert_ptr_equal(hzp_weights_current(w), v);
    assert_int_equal(hzp_weights_list(w, list, 2), 2);
    assert_int_equal(list[0].id, 2);
    assert_int_equal(list[0].state, HZP_VERSION_CURRENT);
    assert_float_equal(list[0].loss, 2.5, 0);
    assert_int_equal(list[1].state, HZP_VERSION_FREE);
    assert_int_equal(hzp_weights_begin(w, &again), HZP_OK);
    assert_int_equal(again->record.learned.ranges, 0); /* learned since the version before */
    assert_int_equal(again->record.optimizer_step, 3);
    hzp_weights_abandon(w, again);
    assert_ptr_equal(hzp_weights_current(w), v);
    hzp_weights_destroy(w);
}

static void test_staleness(void **state)
{
    struct hzp_weights *w = make(3, 2, 1);
    struct hzp_weights_stats s;
    struct hzp_version *draft;
    publish(w, 100, 0); /* a restart continues at step 100 */
    assert_int_equal(hzp_weights_staleness(w), 0);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_OK);
    assert_true(hzp_weights_may_update(w, false));
    hzp_weights_finished(w, 101);
    assert_true(hzp_weights_may_update(w, false));
    hzp_weights_finished(w, 102);
    assert_int_equal(hzp_weights_staleness(w), 2);
    assert_false(hzp_weights_may_update(w, false));
    assert_true(hzp_weights_may_update(w, true)); /* one that publishes may */
    hzp_weights_set_max_staleness(w, 9);
    assert_true(hzp_weights_may_update(w, false));
    hzp_weights_ask_staleness(w, 2); /* a request's bound counts beside the operator's */
    assert_false(hzp_weights_may_update(w, false));
    hzp_weights_read_stats(w, &s);
    assert_int_equal(s.max_staleness, 9);
    assert_int_equal(s.bound, 2);
    hzp_weights_ask_staleness(w, INT32_MAX);
    assert_true(hzp_weights_may_update(w, false));
    for (int64_t n = 200; n > 0; n -= 3) /* in any order */
        hzp_weights_add_unlearned(w, n);
    for (int64_t n = 1; n <= 201; n++)
        assert_int_equal(hzp_weights_unlearned(w, n), n <= 200 && n % 3 == 2);
    assert_int_equal(hzp_weights_learnable(w, 200), 199);
    assert_int_equal(hzp_weights_learnable(w, 199), 199);
    hzp_weights_add_unlearned(w, 1);
    assert_int_equal(hzp_weights_learnable(w, 2), 0);
    assert_int_equal(hzp_weights_learnable(w, 0), 0);
    hzp_weights_set_max_staleness(w, 3);
    assert_true(hzp_weights_may_update(w, false));
    hzp_weights_set_max_staleness(w, 0);
    assert_false(hzp_weights_may_update(w, false));
    draft->record.optimizer_step = 103;
    draft->record.learned_through = 9;
    hzp_weights_publish(w, draft, 0); /* without hzp_weights_finished */
    assert_int_equal(hzp_weights_staleness(w), 0);
    assert_false(hzp_weights_may_update(w, false));
    hzp_weights_read_stats(w, &s);
    assert_int_equal(s.serving_optimizer_step, 103);
    assert_int_equal(s.finished_optimizer_step, 103);
    assert_int_equal(s.publications, 2);
    assert_int_equal(s.staleness_seen[2], 1);
    assert_int_equal(s.staleness_seen[0], 0); /* before the first, nothing served */
    assert_int_equal(s.learned_through, 9);
    assert_int_equal(s.max_staleness, 0);

    hzp_weights_set_max_staleness(w, 20);
    assert_int_equal(hzp_weights_begin(w, &draft), HZP_OK);
    assert_int_equal(draft->record.learned_through, 9);
    hzp_weights_finished(w, 115);
    assert_int_equal(hzp_weights_staleness(w), 12);
    hzp_weights_abandon(w, draft); /* the twelve updates are dropped */
    assert_int_equal(hzp_weights_staleness(w), 0);
    publish(w, 50, 0); /* an older state is restored */
    assert_int_equal(hzp_weights_staleness(w), 0);
    hzp_weights_finished(w, 70);
    hzp_weights_reclaim(w, 0);
    publish(w, 70, 0);
    hzp_weights_read_stats(w, &s);
    assert_int_equal(s.staleness_seen[7], 1); /* 20, and more than 6 */
    hzp_weights_destroy(w);
}

static void test_history(void **state)
{
    struct hzp_weights *w = make(3, 1, 1);
    struct hzp_version_record *list = malloc(5000 * sizeof(*list));
    struct hzp_version *pinned = publish(w, 0, 0);
    hzp_weights_acquire(w);
    for (int i = 1; i < 4500; i++) {
        publish(w, i, (uint64_t)i);
        hzp_weights_reclaim(w, (uint64_t)i);
    }
    assert_int_equal(hzp_weights_list(w, list, 5000), 4096);
    for (int i = 0; i < 4096; i++) {
        assert_int_equal(list[i].id, 4500 - i);
        assert_int_equal(list[i].optimizer_step, 4499 - i);
        assert_int_equal(list[i].state, i ? HZP_VERSION_FREE : HZP_VERSION_CURRENT);
    }
    /* the pinned version's record is gone: its end must not touch another's record */
    assert_int_equal(pinned->record.id, 1);
    hzp_weights_release(w, pinned, 1);
    hzp_weights_reclaim(w, 5000);
    assert_int_equal(hzp_weights_list(w, list, 0), 0);
    assert_int_equal(hzp_weights_list(w, list, -1), 0);
    assert_int_equal(hzp_weights_list(w, list, 1), 1);
    assert_int_equal(list[0].state, HZP_VERSION_CURRENT);
    free(list);
    hzp_weights_destroy(w);
}

/* Ranges compared with a plain set, numbers in random order. */
static void test_learned(void **state)
{
    srand(3);
    for (int turn = 0; turn < 300; turn++) {
        struct hzp_learned l = {.ranges = 0};
        bool set[66] = {false};
        int span = 2 + turn % 63; /* at most 32 ranges fit into 64 numbers */
        for (int i = 0; i < turn; i++) {
            int n = 1 + rand() % span;
            set[n] = true;
            hzp_learned_add(&l, n);
        }
        int r = 0;
        for (int n = 1; n < 65; n++) {
            if (set[n] && !set[n - 1])
                assert_int_equal(l.first[r], n);
            if (set[n] && !set[n + 1])
                assert_int_equal(l.last[r++], n);
        }
        assert_int_equal(l.ranges, r);
        assert_false(l.more);
    }
    struct hzp_learned l = {.ranges = 0};
    for (int i = 0; i < 40; i++)
        hzp_learned_add(&l, 1000 - 2 * i);
    assert_int_equal(l.ranges, HZP_LEARNED_MAX);
    assert_true(l.more);
    for (int i = 1; i < l.ranges; i++)
        assert_true(l.first[i] > l.last[i - 1] + 1);
}

/* Random calls, compared with a model of the life cycle that is independent of the store. */
enum { SLOTS_MAX = 5 };

struct model_slot {
    enum hzp_version_state state;
    int held;
    uint64_t last_step, id;
    int64_t step;
    struct hzp_version *version; /* NULL: not seen yet */
};

struct model {
    struct hzp_weights *w;
    struct model_slot slot[SLOTS_MAX];
    int slots, bound;
    int current, draft; /* -1: none */
    uint64_t step, published;
    int64_t finished;
};

static uint64_t *first_word(const struct model *m, const struct hzp_version *v)
{
    return hzp_version_unit(m->w, v, 0).base;
}

static void model_begin(struct model *m)
{
    struct hzp_version *v = NULL;
    bool has_free = false;
    for (int i = 0; i < m->slots; i++)
        has_free = has_free || m->slot[i].state == HZP_VERSION_FREE;
    assert_int_equal(hzp_weights_begin(m->w, &v), has_free ? HZP_OK : HZP_EBUSY);
    if (!has_free)
        return;
    /* find its slot: the one that had the version before, or one without a known version */
    int i = 0;
    while (i < m->slots && m->slot[i].version != v)
        i++;
    for (int j = 0; i == m->slots && j < m->slots; j++)
        if (!m->slot[j].version)
            i = j;
    assert_int_equal(m->slot[i].state, HZP_VERSION_FREE);
    m->slot[i] = (struct model_slot){.state = HZP_VERSION_DRAFT,
                                     .version = v,
                                     .step = m->current < 0 ? 0 : m->slot[m->current].step};
    m->draft = i;
    *first_word(m, v) = ~(uint64_t)0; /* drafts may be written */
}

static void model_publish(struct model *m)
{
    struct model_slot *draft = &m->slot[m->draft];
    draft->version->record.optimizer_step = draft->step;
    *first_word(m, draft->version) = m->published + 1;
    hzp_weights_publish(m->w, draft->version, m->step);
    if (m->current >= 0) {
        struct model_slot *old = &m->slot[m->current];
        old->state = HZP_VERSION_RETIRED;
        old->last_step = HZP_MAX(old->last_step, m->step);
    }
    draft->state = HZP_VERSION_CURRENT;
    draft->id = ++m->published;
    m->current = m->draft;
    m->draft = -1;
}

/* One update into the draft, if it may begin; the last of a version is published at its end. */
static void model_update(struct model *m)
{
    bool last = rand() % 2;
    bool may = last || m->finished + 1 - m->slot[m->current].step <= m->bound;
    assert_int_equal(hzp_weights_may_update(m->w, last), may);
    if (!may)
        return;
    m->slot[m->draft].step = ++m->finished;
    if (last)
        model_publish(m);
    else
        hzp_weights_finished(m->w, m->finished);
}

static void model_abandon(struct model *m)
{
    hzp_weights_abandon(m->w, m->slot[m->draft].version);
    m->slot[m->draft].state = HZP_VERSION_FREE;
    m->finished = m->current < 0 ? 0 : m->slot[m->current].step;
    m->draft = -1;
}

static void model_reclaim(struct model *m)
{
    uint64_t ended = m->step - HZP_MIN(m->step, (uint64_t)(m->published % 3));
    hzp_weights_reclaim(m->w, ended);
    for (int i = 0; i < m->slots; i++)
        if (m->slot[i].state == HZP_VERSION_RETIRED && m->slot[i].held == 0 &&
            m->slot[i].last_step <= ended)
            m->slot[i].state = HZP_VERSION_FREE;
}

static void model_turn(struct model *m)
{
    struct model_slot *any = &m->slot[rand() % m->slots];
    int what = rand() % 8;
    if (what == 0 && m->draft < 0) {
        model_begin(m);
    } else if (what == 1 && m->draft >= 0 && m->current >= 0) {
        model_update(m);
    } else if (what == 2 && m->draft >= 0) {
        model_publish(m);
    } else if (what == 3 && m->draft >= 0 && rand() % 4 == 0) {
        model_abandon(m);
    } else if (what == 4 && m->current >= 0) {
        assert_ptr_equal(hzp_weights_acquire(m->w), m->slot[m->current].version);
        m->slot[m->current].held++;
    } else if ((what == 5 || what == 6) && any->held > 0) {
        hzp_weights_release(m->w, any->version, m->step);
        any->held--;
        any->last_step = HZP_MAX(any->last_step, m->step);
    } else if (what == 7) {
        model_reclaim(m);
    }
    m->step += (uint64_t)(rand() % 2);
}

static void model_check(const struct model *m)
{
    struct hzp_weights_stats s;
    int free_slots = 0;
    hzp_weights_read_stats(m->w, &s);
    for (int i = 0; i < m->slots; i++) {
        const struct model_slot *slot = &m->slot[i];
        free_slots += slot->state == HZP_VERSION_FREE;
        if (!slot->version)
            continue;
        assert_int_equal(slot->version->record.state, slot->state);
        assert_int_equal(slot->version->held, slot->held);
        /* a published version is unchanged */
        if (slot->state == HZP_VERSION_CURRENT || slot->state == HZP_VERSION_RETIRED)
            assert_int_equal(*first_word(m, slot->version), slot->id);
    }
    assert_int_equal(s.slots_free, free_slots);
    assert_int_equal(s.publications, m->published);
    if (m->current < 0) {
        assert_null(hzp_weights_current(m->w));
        return;
    }
    const struct model_slot *current = &m->slot[m->current];
    assert_ptr_equal(hzp_weights_current(m->w), current->version);
    assert_int_equal(s.serving_id, current->id);
    assert_int_equal(hzp_weights_staleness(m->w), m->finished - current->step);
    assert_int_equal(s.staleness, m->finished - current->step);
    assert_true(s.staleness >= 0 && s.staleness <= m->bound);
}

static void test_random(void **state)
{
    for (unsigned seed = 0; seed < 60; seed++) {
        srand(seed);
        struct model m = {.current = -1, .draft = -1, .step = 1};
        m.slots = 2 + rand() % (SLOTS_MAX - 1);
        m.bound = rand() % 4;
        m.w = make(m.slots, m.bound, 1);
        for (int turn = 0; turn < 3000; turn++) {
            model_turn(&m);
            model_check(&m);
        }
        assert_true(m.published > 50);
        hzp_weights_destroy(m.w);
    }
}

/* Versions of an earlier process follow those of this one, and the newest is always this one's. */
static void test_earlier_versions(void **state)
{
    struct hzp_weights *w = make(2, 1, 1);
    struct hzp_version_record old[3] = {{.id = 9}, {.id = 5}, {.id = 4}}, list[8];
    hzp_weights_set_history(w, old, 3);
    assert_int_equal(hzp_weights_list(w, list, 8), 3);
    struct hzp_version *v;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hzp_weights_begin(w, &v), HZP_OK);
        hzp_weights_publish(w, v, (uint64_t)i);
        hzp_weights_reclaim(w, (uint64_t)i);
    }
    assert_int_equal(hzp_weights_list(w, list, 8), 5);
    static const uint64_t id[] = {2, 1, 9, 5, 4};
    for (int i = 0; i < 5; i++)
        assert_int_equal(list[i].id, id[i]);
    assert_int_equal(hzp_weights_list(w, list, 3), 3);
    assert_int_equal(list[2].id, 9);
    hzp_weights_set_history(w, NULL, 0);
    assert_int_equal(hzp_weights_list(w, list, 8), 2);
    hzp_weights_destroy(w);
}

/* Readers see whole records while the engine publishes. */
struct reader {
    struct hzp_weights *w;
    atomic_bool stop;
};

static void *read_on(void *arg)
{
    struct reader *reader = arg;
    static _Thread_local struct hzp_version_record list[64];
    intptr_t bad = 0;
    while (!atomic_load(&reader->stop)) {
        int n = hzp_weights_list(reader->w, list, 64);
        for (int i = 0; i < n; i++) {
            bad += list[i].optimizer_step + 1 != (int64_t)list[i].id;
            bad += list[i].checksum != list[i].id * 3;
            bad += i > 0 && list[i].id + 1 != list[i - 1].id;
        }
        struct hzp_weights_stats s;
        hzp_weights_read_stats(reader->w, &s);
        bad += s.publications > 0 && s.serving_id != s.publications;
    }
    return (void *)bad;
}

static void test_readers(void **state)
{
    struct reader reader = {.w = make(2, 1, 1)};
    pthread_t thread;
    void *bad;
    assert_int_equal(pthread_create(&thread, NULL, read_on, &reader), 0);
    for (uint64_t i = 0; i < 20000; i++) {
        struct hzp_version *v;
        assert_int_equal(hzp_weights_begin(reader.w, &v), HZP_OK);
        v->record.optimizer_step = (int64_t)i;
        v->record.checksum = (i + 1) * 3;
        hzp_weights_publish(reader.w, v, i);
        hzp_weights_reclaim(reader.w, i);
    }
    atomic_store(&reader.stop, true);
    pthread_join(thread, &bad);
    assert_null(bad);
    hzp_weights_destroy(reader.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),       cmocka_unit_test(test_last_step),
        cmocka_unit_test(test_list_after), cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_staleness),  cmocka_unit_test(test_earlier_versions),
        cmocka_unit_test(test_learned),    cmocka_unit_test(test_random),
        cmocka_unit_test(test_history),    cmocka_unit_test(test_readers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
