/* SPDX-License-Identifier: Apache-2.0 */
/* tests/rollout/test_row_table.c - leases of rows against a small model of the rule, under random
 * interleavings of answers, columns, losses, takes, ends and the passing of time. */
#include "api/rollout/row_table.h"
#include "base/base.h"
#include "tests/serve/seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GROUPS = 6, MEMBERS = 4, ROWS = GROUPS * MEMBERS, CONSUMERS = 3, LEASES = 20000 };
enum state { AWAY, OPEN, DONE, OVER };

/* What the model knows of a lease; nothing of the table is read to make it. */
struct known {
    enum state state;
    uint64_t until;
    int32_t consumer, rows;
    int64_t row[ROWS]; /* their numbers */
};

struct model {
    struct hzp_rows t;
    struct known lease[LEASES];
    int64_t leases, numbers, base, expired;
    uint64_t now, seed;
    bool finished[ROWS]; /* the member has ended, with a row or lost */
    /* by the rows' numbers: how often each consumer was done with it */
    uint8_t had[CONSUMERS][65536];
};

static uint32_t draw(struct model *m, uint32_t below)
{
    return (uint32_t)seeded(&m->seed, below);
}

static const char *name_of(int32_t consumer)
{
    static const char *const name[CONSUMERS] = {"judge", "reference", "trainer"};
    return name[consumer];
}

/* Leases that have run out by now. */
static void age(struct model *m)
{
    for (int64_t i = HZP_MAX(m->leases - HZP_LEASES_MAX, 0); i < m->leases; i++)
        if (m->lease[i].state == OPEN && m->now >= m->lease[i].until) {
            m->lease[i].state = OVER;
            m->expired++;
        }
}

/* Whether the consumer may be given the row now, by the rule. */
static bool may(const struct model *m, int32_t consumer, int64_t number)
{
    if (m->had[consumer][number])
        return false;
    for (int64_t i = HZP_MAX(m->leases - HZP_LEASES_MAX, 0); i < m->leases; i++)
        for (int32_t k = 0; k < m->lease[i].rows; k++)
            if (m->lease[i].state == OPEN && m->lease[i].consumer == consumer &&
                m->lease[i].row[k] == number)
                return false;
    return true;
}

/* A row, or all rows of a group, as the model would give them; rows 0: it does not. */
static int32_t offered(const struct model *m, const struct hzp_rows_query *q, int32_t consumer,
                       int32_t first, int32_t span, int64_t *ret_order, int64_t *ret_number)
{
    int32_t rows = 0;
    *ret_order = *ret_number = INT64_MAX;
    for (int32_t i = first; i < first + span; i++) {
        const struct hzp_row *row = &m->t.row[i];
        if (span > 1 && !m->finished[i])
            return 0;
        if (!row->number)
            continue;
        if ((row->ready & q->columns) != q->columns || !may(m, consumer, row->number))
            return 0;
        *ret_order = HZP_MIN(*ret_order, row->order);
        *ret_number = HZP_MIN(*ret_number, row->number);
        rows++;
    }
    return rows;
}

static int64_t rank_of(bool newest, int64_t order, int64_t number)
{
    return newest ? -order * 100000 + number : number;
}

static void take(struct model *m)
{
    int32_t consumer = (int32_t)draw(m, CONSUMERS), got[ROWS], i = 0;
    bool groups = draw(m, 2) != 0;
    struct hzp_err_text err = {.text = ""};
    struct hzp_rows_query q = {.consumer = name_of(consumer),
                               .count = (int32_t)draw(m, ROWS + 1),
                               .tokens = 20 + (int32_t)draw(m, 100),
                               .columns = draw(m, 8) | (groups ? HZP_ROW_WHOLE : 0),
                               .newest = draw(m, 2) != 0,
                               .lease_ns = 1 + draw(m, 30)};
    age(m);
    int32_t span = groups ? MEMBERS : 1, tokens = 0, want = 0, first_rows = 0;
    int64_t last = INT64_MIN;
    bool full = false;
    int32_t wanted[ROWS];
    while (!full) { /* the units in their order, as far as they fit */
        int64_t best = INT64_MAX, order, number;
        int32_t at = -1, rows = 0, more = 0;
        for (int32_t u = 0; u < ROWS; u += span) {
            int32_t n = offered(m, &q, consumer, u, span, &order, &number);
            int64_t rank = n ? rank_of(q.newest, order, number) : 0;
            if (n && rank > last && rank < best) {
                best = rank;
                at = u;
                rows = n;
            }
        }
        if (at < 0)
            break;
        for (int32_t k = at; k < at + span; k++)
            more += m->t.row[k].number ? m->t.row[k].tokens : 0;
        first_rows = first_rows ? first_rows : rows;
        full = want + rows > q.count || tokens + more > q.tokens;
        for (int32_t k = at; !full && k < at + span; k++)
            if (m->t.row[k].number)
                wanted[want++] = k;
        tokens += more;
        last = best;
    }
    int32_t n = hzp_rows_take(&m->t, &q, m->now, got, &err);
    assert_int_equal(n, !want && full && q.count ? HZP_EINVAL : want);
    for (; i < n; i++)
        assert_int_equal(got[i], wanted[i]);
    if (n <= 0)
        return;
    struct known *lease = &m->lease[m->leases++];
    assert_int_equal(m->t.last_lease, m->base + m->leases);
    *lease = (struct known){
        .state = OPEN, .until = m->now + q.lease_ns, .consumer = consumer, .rows = n};
    for (i = 0; i < n; i++)
        lease->row[i] = m->t.row[got[i]].number;
}

static void end(struct model *m)
{
    struct hzp_err_text err = {.text = ""};
    int64_t i = m->leases - 1 - draw(m, 12);
    age(m);
    if (i < 0)
        return;
    struct known *lease = &m->lease[i];
    int code = hzp_rows_done(&m->t, m->base + 1 + i, m->now, &err);
    assert_int_equal(code, lease->state == OVER ? HZP_EUNSUP : HZP_OK);
    for (int32_t k = 0; lease->state == OPEN && k < lease->rows; k++)
        m->had[lease->consumer][lease->row[k]]++;
    if (lease->state == OPEN)
        lease->state = DONE;
}

static void check(struct model *m)
{
    struct hzp_err_text err = {.text = ""};
    const struct hzp_row *row = &m->t.row[draw(m, ROWS)];
    int64_t i = m->leases - 1 - draw(m, 6);
    bool its = false;
    age(m);
    if (i < 0 || !row->number)
        return;
    for (int32_t k = 0; k < m->lease[i].rows; k++)
        its |= m->lease[i].row[k] == row->number;
    /* the newest lease of its consumer that had the row is the one that counts */
    assert_int_equal(hzp_rows_check(&m->t, row, m->base + 1 + i, m->now, &err) == HZP_OK,
                     its && m->lease[i].state == OPEN);
}

static void answer(struct model *m, bool lost)
{
    int32_t at = (int32_t)draw(m, ROWS);
    struct hzp_row *row = &m->t.row[at];
    bool whole = true;
    if (m->finished[at] && !lost)
        return;
    *row = (struct hzp_row){.number = 0};
    if (!lost)
        *row = (struct hzp_row){.number = ++m->numbers,
                                .order = draw(m, 4),
                                .ready = 1,
                                .tokens = 1 + (int32_t)draw(m, 20)};
    m->finished[at] = true;
    at -= at % MEMBERS;
    for (int32_t i = at; i < at + MEMBERS; i++)
        whole &= m->finished[i];
    for (int32_t i = at; whole && i < at + MEMBERS; i++)
        m->t.row[i].ready |= HZP_ROW_WHOLE;
}

/* A group whose rows the consumer that the job names is done with leaves; none other does. */
static void leave(struct model *m)
{
    int32_t at = (int32_t)draw(m, GROUPS), named = 0;
    bool wanted = false;
    for (int32_t i = at * MEMBERS; i < (at + 1) * MEMBERS; i++) {
        named += m->finished[i];
        wanted |= m->t.row[i].number && !m->had[0][m->t.row[i].number];
    }
    assert_int_equal(hzp_rows_wanted(&m->t, at), wanted);
    for (int32_t i = at * MEMBERS; named == MEMBERS && !wanted && i < (at + 1) * MEMBERS; i++) {
        m->t.row[i] = (struct hzp_row){.number = 0};
        m->finished[i] = false;
    }
}

static void random_day(uint64_t seed)
{
    static struct model m;
    json_t *named = json_pack("[s]", name_of(0));
    memset(&m, 0, sizeof(m));
    m.seed = seed;
    m.t.last_lease = m.base = (int64_t)seed * 1000;
    hzp_rows_begin(&m.t, GROUPS, MEMBERS, named);
    json_decref(named);
    for (int i = 0; i < 3000; i++) {
        uint32_t what = draw(&m, 16);
        m.now += draw(&m, 3);
        if (what < 5)
            answer(&m, what == 0 && draw(&m, 4) == 0);
        else if (what < 7)
            m.t.row[draw(&m, ROWS)].ready |= 2u << draw(&m, 2);
        else if (what < 10)
            take(&m);
        else if (what < 13)
            end(&m);
        else if (what < 14)
            check(&m);
        else
            leave(&m);
    }
    assert_true(m.leases > 50 && m.numbers > 20);
    assert_int_equal(m.t.given, m.leases);
    for (int c = 0; c < CONSUMERS; c++)
        for (int64_t n = 0; n <= m.numbers; n++)
            assert_true(m.had[c][n] <= 1);
    hzp_rows_begin(&m.t, 0, 0, NULL);
}

static void random_days(void **state)
{
    for (uint64_t seed = 1; seed <= 200; seed++)
        random_day(seed);
}

/* What has a bound says so, and a lost consumer's rows are another's in time. */
static void bounds(void **state)
{
    struct hzp_rows t = {.last_lease = 7};
    struct hzp_err_text err = {.text = ""};
    struct hzp_rows_query q = {.consumer = "a", .count = 1, .tokens = 100, .lease_ns = 10};
    int32_t got[2];
    char name[16];
    hzp_rows_begin(&t, 300, 1, NULL);
    for (int i = 0; i < 300; i++)
        t.row[i] = (struct hzp_row){.number = i + 1, .tokens = 1};
    for (int i = 0; i < HZP_LEASES_MAX; i++)
        assert_int_equal(hzp_rows_take(&t, &q, 0, got, &err), 1);
    assert_int_equal(hzp_rows_take(&t, &q, 0, got, &err), HZP_EBUSY);
    assert_int_equal(hzp_rows_done(&t, 8, 0, &err), HZP_OK);
    assert_int_equal(hzp_rows_take(&t, &q, 0, got, &err), 1);
    assert_int_equal(got[0], HZP_LEASES_MAX);
    assert_int_equal(hzp_rows_done(&t, 8, 0, &err), HZP_EUNSUP); /* forgotten */
    assert_int_equal(hzp_rows_take(&t, &q, 10, got, &err), 1);   /* all have run out */
    assert_int_equal(got[0], 1);
    for (int i = 1; i < HZP_CONSUMERS_MAX; i++) {
        snprintf(name, sizeof(name), "c%d", i);
        q.consumer = name;
        assert_int_equal(hzp_rows_take(&t, &q, 10, got, &err), 1);
    }
    q.consumer = "one more";
    assert_int_equal(hzp_rows_take(&t, &q, 10, got, &err), HZP_EBUSY);
    /* the next job: leases of this one are over, and those that were done stay so */
    int64_t last = t.last_lease;
    assert_int_equal(hzp_rows_done(&t, last, 10, &err), HZP_OK);
    hzp_rows_begin(&t, 1, 1, NULL);
    assert_int_equal(hzp_rows_done(&t, last, 10, &err), HZP_OK);
    assert_int_equal(hzp_rows_done(&t, last - 1, 10, &err), HZP_EUNSUP);
    assert_int_equal(hzp_rows_take(&t, &q, 10, got, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_days), cmocka_unit_test(bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
