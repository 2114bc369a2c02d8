/* SPDX-License-Identifier: Apache-2.0 */
/* tests/rollout/test_group_table.c - the table of groups against a small model, under random
 * interleavings, and its advantages against the formula. */
#include "api/rollout/group_table.h"
#include "base/base.h"
#include "device/objective.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { GROUPS_MAX = 4096, MEMBERS_MAX = 8 };

/* A group as the model knows it, by its number; nothing of the table is read to make it. */
struct known {
    bool begun, complete, dropped, taken, done;
    int32_t index, ended[MEMBERS_MAX]; /* 0: open, 1: rewarded, 2: lost */
    double reward[MEMBERS_MAX];
};

struct model {
    struct known group[GROUPS_MAX]; /* from 1 */
    int64_t begun, dropped, updates, learning;
    int32_t held;
};

static bool teaches(const struct known *k, const struct hzp_rollout_table_config *c)
{
    double first = 0;
    int32_t n = 0;
    bool differ = false, any = false;
    for (int32_t m = 0; m < c->members; m++) {
        if (k->ended[m] != 1)
            continue;
        first = n++ ? first : k->reward[m];
        differ |= k->reward[m] != first;
        any |= k->reward[m] != 0;
    }
    return c->advantage == HZP_ADVANTAGE_NONE ? any : n > 1 && differ;
}

static void check_advantages(const struct hzp_rollout_table *t, const struct known *k)
{
    const struct hzp_rollout_member *member = t->group[k->index].member;
    double mean = 0, squares = 0;
    int32_t n = 0;
    for (int32_t m = 0; m < t->config.members; m++)
        if (k->ended[m] == 1) {
            mean += k->reward[m];
            n++;
        }
    mean /= n;
    for (int32_t m = 0; m < t->config.members; m++)
        if (k->ended[m] == 1)
            squares += (k->reward[m] - mean) * (k->reward[m] - mean);
    for (int32_t m = 0; m < t->config.members; m++) {
        double want = k->reward[m];
        if (t->config.advantage != HZP_ADVANTAGE_NONE)
            want -= mean;
        if (t->config.advantage == HZP_ADVANTAGE_STD)
            want /= sqrt(squares / (n - 1)) + 1e-4;
        if (k->ended[m] == 1)
            assert_true(fabs(member[m].advantage - want) < 1e-9);
    }
}

static void begin(struct hzp_rollout_table *t, struct model *m)
{
    int32_t b = t->config.batch, s = t->config.staleness;
    int64_t j = m->begun - m->dropped + 1; /* the number it would have */
    int32_t most = t->config.most ? t->config.most : b * (s + 1);
    bool may = (j - 1) / b <= m->updates + s && m->held < HZP_MIN(most, b * (s + 1));
    int32_t at = hzp_rollout_table_begin(t, m->updates);
    assert_int_equal(at >= 0, may);
    if (at < 0)
        return;
    struct known *k = &m->group[++m->begun];
    *k = (struct known){.begun = true, .index = at};
    assert_int_equal(t->group[at].number, m->begun);
    m->held++;
}

static void end_one(struct hzp_rollout_table *t, struct model *m, struct known *k, uint64_t *seed)
{
    int32_t member = (int32_t)seeded(seed, (uint32_t)t->config.members), open = 0;
    bool lost = seeded(seed, 6) == 0;
    double reward = (double)seeded(seed, 3) / 2;
    hzp_rollout_table_end(t, k->index, member, lost ? NAN : reward);
    if (!k->ended[member]) { /* a second end has no effect */
        k->ended[member] = lost ? 2 : 1;
        k->reward[member] = reward;
    }
    for (int32_t i = 0; i < t->config.members; i++)
        open += !k->ended[i];
    k->complete = !open;
    k->dropped = !open && !teaches(k, &t->config);
    m->dropped += k->dropped;
    m->held -= k->dropped;
    assert_int_equal(t->group[k->index].state, open         ? HZP_GROUP_OPEN
                                               : k->dropped ? HZP_GROUP_FREE
                                                            : HZP_GROUP_READY);
}

static void take(struct hzp_rollout_table *t, struct model *m, uint64_t *seed)
{
    int32_t got[64], n = hzp_rollout_table_take(t, false, got), ready = 0, i = 0;
    bool unlearned = seeded(seed, 5) == 0;
    for (int64_t g = 1; g <= m->begun; g++) {
        struct known *k = &m->group[g];
        ready += k->complete && !k->dropped && !k->taken;
    }
    assert_int_equal(n, ready < t->config.batch ? 0 : t->config.batch);
    for (int64_t g = 1; g <= m->begun && i < n; g++) { /* the first ones, each once */
        struct known *k = &m->group[g];
        if (!k->complete || k->dropped || k->taken)
            continue;
        assert_int_equal(got[i++], k->index);
        check_advantages(t, k);
        k->taken = true;
    }
    for (i = 0; i < n; i++)
        hzp_rollout_table_release(t, got[i], unlearned);
    m->held -= n;
    m->dropped += unlearned ? n : 0;
    m->learning += n && !unlearned; /* its groups are gone before the update is done */
}

static void random_day(uint64_t seed)
{
    static struct model m;
    struct hzp_rollout_table t;
    struct hzp_rollout_table_config config = {.members = 1 + (int32_t)seeded(&seed, MEMBERS_MAX),
                                              .batch = 1 + (int32_t)seeded(&seed, 5),
                                              .staleness = (int32_t)seeded(&seed, 4),
                                              .most = (int32_t)seeded(&seed, 12),
                                              .advantage = (enum hzp_advantage)seeded(&seed, 3)};
    config.most = config.most ? HZP_MAX(config.most, config.batch) : 0;
    memset(&m, 0, sizeof(m));
    hzp_rollout_table_init(&t, &config);
    for (int i = 0; i < 4000 && m.begun < GROUPS_MAX - 1; i++) {
        int64_t g = m.begun ? 1 + (int64_t)seeded(&seed, (uint32_t)m.begun) : 0;
        struct known *k = &m.group[HZP_MAX(g, m.begun - 24)];
        uint32_t what = seeded(&seed, 8);
        if (what == 7 && m.learning) {
            m.learning--;
            m.updates++;
        } else if (what == 0) {
            begin(&t, &m);
        } else if (what == 1) {
            take(&t, &m, &seed);
        } else if (k->begun && !k->complete) {
            end_one(&t, &m, k, &seed);
        }
        assert_int_equal(t.begun, m.begun);
        assert_int_equal(t.dropped, m.dropped);
        assert_int_equal(t.room - hzp_rollout_table_count(&t, HZP_GROUP_FREE), m.held);
    }
    /* whatever was lost, no group is open for ever */
    for (int64_t g = 1; g <= m.begun; g++)
        for (int32_t i = 0; m.group[g].begun && !m.group[g].complete && i < config.members; i++)
            hzp_rollout_table_end(&t, m.group[g].index, i, NAN);
    assert_int_equal(hzp_rollout_table_count(&t, HZP_GROUP_OPEN), 0);
    hzp_rollout_table_fini(&t);
}

static void random_days(void **state)
{
    for (uint64_t seed = 1; seed <= 300; seed++)
        random_day(seed);
}

/* Numbers from before a restart begin first, in their order, whatever the bound is; then new ones
 * go on where those ended. */
static void numbers_begin_again(void **state)
{
    struct hzp_rollout_table t;
    hzp_rollout_table_init(
        &t, &(struct hzp_rollout_table_config){.members = 1, .batch = 2, .staleness = 1});
    t.begun = 9;
    t.dropped = 4;
    hzp_rollout_table_again(&t, 9);
    hzp_rollout_table_again(&t, 7);
    assert_int_equal(t.group[hzp_rollout_table_begin(&t, 1)].number, 7);
    assert_int_equal(t.group[hzp_rollout_table_begin(&t, 1)].number, 9);
    assert_int_equal(t.begun, 9);
    assert_int_equal(hzp_rollout_table_begin(&t, 0), -1); /* 5 / 2 is above 0 + 1 */
    assert_int_equal(t.group[hzp_rollout_table_begin(&t, 1)].number, 10);
    hzp_rollout_table_fini(&t);
}

static void lost_members_count_as_complete(void **state)
{
    struct hzp_rollout_table t;
    int32_t got[2];
    hzp_rollout_table_init(&t, &(struct hzp_rollout_table_config){.members = 4, .batch = 1});
    int32_t at = hzp_rollout_table_begin(&t, 0);
    assert_int_equal(hzp_rollout_table_begin(&t, 0), -1); /* the bound is 0 */
    hzp_rollout_table_end(&t, at, 0, 1);
    hzp_rollout_table_end(&t, at, 1, NAN);
    hzp_rollout_table_end(&t, at, 3, 0);
    hzp_rollout_table_end(&t, at, 2, NAN);
    assert_int_equal(t.group[at].state, HZP_GROUP_READY);
    assert_int_equal(hzp_rollout_table_take(&t, false, got), 1);
    double want = 0.5 / (sqrt(0.5) + 1e-4);
    assert_true(fabs(t.group[at].member[0].advantage - want) < 1e-12);
    assert_true(fabs(t.group[at].member[3].advantage + want) < 1e-12);
    hzp_rollout_table_release(&t, at, false);
    /* alike, or one alone: nothing is taught */
    at = hzp_rollout_table_begin(&t, 1);
    for (int32_t i = 0; i < 4; i++)
        hzp_rollout_table_end(&t, at, i, 0.1);
    assert_int_equal(t.dropped, 1);
    at = hzp_rollout_table_begin(&t, 1);
    hzp_rollout_table_end(&t, at, 0, 1);
    for (int32_t i = 1; i < 4; i++)
        hzp_rollout_table_end(&t, at, i, NAN);
    assert_int_equal(t.dropped, 2);
    assert_int_equal(t.lost, 5);
    assert_int_equal(t.dropped_in_row, 2);
    hzp_rollout_table_fini(&t);
}

/* A ready group that waits is not taken, and holds up none that began after it. */
static void waiting_groups_are_passed_over(void **state)
{
    struct hzp_rollout_table t;
    const struct hzp_rollout_table_config config = {
        .members = 2, .batch = 1, .staleness = 1, .advantage = HZP_ADVANTAGE_MEAN};
    int32_t got[2], first;
    hzp_rollout_table_init(&t, &config);
    first = hzp_rollout_table_begin(&t, 0);
    for (int32_t at = first; at >= 0; at = hzp_rollout_table_begin(&t, 0))
        for (int32_t m = 0; m < 2; m++)
            hzp_rollout_table_end(&t, at, m, m);
    assert_int_equal(hzp_rollout_table_count(&t, HZP_GROUP_READY), 2);
    t.group[first].waits = true;
    assert_int_equal(hzp_rollout_table_take(&t, false, got), 1);
    assert_int_not_equal(got[0], first);
    assert_int_equal(hzp_rollout_table_take(&t, true, got), 0);
    t.group[first].waits = false;
    assert_int_equal(hzp_rollout_table_take(&t, false, got), 1);
    assert_int_equal(got[0], first);
    hzp_rollout_table_release(&t, first, false);
    t.group[first].waits = true; /* left over: a group that begins does not wait */
    first = hzp_rollout_table_begin(&t, 2);
    assert_false(t.group[first].waits);
    hzp_rollout_table_fini(&t);
}

/* One token of ARMS, of which each is worth what its reward says: the policy is a softmax over
 * logits that learns by the losses of rows (device/objective.h) with the table's advantages.  Its
 * path is that of the policy gradient, step by step,
 *
 *     z[j] += rate / n sum over members i of A[i] (1[a[i] = j] - pi[j])
 *
 * which is computed beside it in double, with advantages of its own; and it finds the best arm. */
static void a_bandit_follows_the_exact_path(void **state)
{
    enum { ARMS = 4, MEMBERS = 16, STEPS = 160 };
    static const double worth[ARMS] = {0.1, 0.9, 0.3, 0.5}, rate = 0.5;
    const struct hzp_rollout_table_config config = {
        .members = MEMBERS, .batch = 1, .staleness = 0, .advantage = HZP_ADVANTAGE_STD};
    double z[ARMS] = {0}, pi[ARMS] = {0};
    float logit[ARMS] = {0};
    uint64_t seed = 7;
    struct hzp_rollout_table t;
    hzp_rollout_table_init(&t, &config);
    for (int step = 0; step < STEPS; step++) {
        int32_t at = hzp_rollout_table_begin(&t, step), arm[MEMBERS], got;
        double sum = 0, fsum = 0, mean = 0, squares = 0, dz[ARMS] = {0}, dlogit[ARMS] = {0};
        for (int j = 0; j < ARMS; j++) {
            sum += exp(z[j]);
            fsum += exp((double)logit[j]);
        }
        for (int j = 0; j < ARMS; j++)
            pi[j] = exp(z[j]) / sum;
        assert_true(at >= 0);
        for (int32_t i = 0; i < MEMBERS; i++) {
            double u = seeded(&seed, 1 << 24) * 0x1p-24;
            arm[i] = 0;
            for (; arm[i] < ARMS - 1 && u >= pi[arm[i]]; arm[i]++)
                u -= pi[arm[i]];
            mean += worth[arm[i]] / MEMBERS;
            hzp_rollout_table_end(&t, at, i, worth[arm[i]]);
        }
        for (int32_t i = 0; i < MEMBERS; i++)
            squares += (worth[arm[i]] - mean) * (worth[arm[i]] - mean);
        if (!hzp_rollout_table_take(&t, false, &got)) /* all drew the same arm */
            continue;
        for (int32_t i = 0; i < MEMBERS; i++) {
            double a = (worth[arm[i]] - mean) / (sqrt(squares / (MEMBERS - 1)) + 1e-4);
            double lp = (double)logit[arm[i]] - log(fsum);
            struct hzp_row_loss how = {.kind = HZP_LOSS_PPO,
                                       .inv_temperature = 1,
                                       .old = (float)lp,
                                       .advantage = (float)t.group[got].member[i].advantage,
                                       .low = 0.2f,
                                       .high = 0.2f};
            double slope = hzp_objective_of(&how, lp).slope;
            for (int j = 0; j < ARMS; j++) {
                dz[j] += a * ((arm[i] == j) - pi[j]) / MEMBERS;
                dlogit[j] -= slope * (exp((double)logit[j]) / fsum - (arm[i] == j)) / MEMBERS;
            }
        }
        for (int j = 0; j < ARMS; j++) {
            z[j] += rate * dz[j];
            logit[j] = (float)((double)logit[j] + rate * dlogit[j]);
            assert_true(fabs(z[j] - (double)logit[j]) < 1e-4);
        }
        hzp_rollout_table_release(&t, got, false);
    }
    print_message("the best arm has %.4f\n", pi[1]);
    assert_true(pi[1] > 0.9);
    hzp_rollout_table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_days),
        cmocka_unit_test(numbers_begin_again),
        cmocka_unit_test(lost_members_count_as_complete),
        cmocka_unit_test(waiting_groups_are_passed_over),
        cmocka_unit_test(a_bandit_follows_the_exact_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
