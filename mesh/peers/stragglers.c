/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/peers/control_state.h"

struct hzp_stragglers_seen {
    struct {
        float rate[HZP_STRAGGLER_WINDOW];
        uint32_t count;
    } of[HZP_METER_COUNT];
};

void hzp_stragglers_init(struct hzp_stragglers *s, int ranks)
{
    s->ranks = ranks;
    s->slow = hzp_xcalloc((size_t)ranks, sizeof(*s->slow));
    s->seen = hzp_xcalloc((size_t)ranks, sizeof(*s->seen));
    for (int r = 0; r < ranks; r++)
        s->slow[r].meter = -1;
}

void hzp_stragglers_fini(struct hzp_stragglers *s)
{
    free(s->slow);
    free(s->seen);
}

void hzp_stragglers_note(struct hzp_stragglers *s, int rank, const float rate[HZP_METER_COUNT])
{
    for (int m = 0; m < HZP_METER_COUNT; m++)
        if (rate[m] > 0) {
            uint32_t at = s->seen[rank].of[m].count++;
            s->seen[rank].of[m].rate[at % HZP_STRAGGLER_WINDOW] = rate[m];
        }
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The median of a rank's newest reports; 0: there are too few. */
static float rate_of(const struct hzp_stragglers *s, int rank, int m)
{
    float sorted[HZP_STRAGGLER_WINDOW];
    uint32_t n = HZP_MIN(s->seen[rank].of[m].count, (uint32_t)HZP_STRAGGLER_WINDOW);
    if (n < HZP_STRAGGLER_LEAST)
        return 0;
    memcpy(sorted, s->seen[rank].of[m].rate, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare);
    return sorted[n / 2];
}

/* Compares the ranks in one kind of work; rate: scratch [2 * ranks]. */
static void judge_meter(struct hzp_stragglers *s, int m, float *rate)
{
    float *sorted = rate + s->ranks;
    int known = 0;
    for (int r = 0; r < s->ranks; r++) {
        rate[r] = rate_of(s, r, m);
        if (rate[r] > 0)
            sorted[known++] = rate[r];
    }
    if (known < 2)
        return;
    qsort(sorted, (size_t)known, sizeof(*sorted), compare);
    double usual = (double)sorted[(known - 1) / 2];
    for (int r = 0; r < s->ranks; r++) {
        double times = (double)rate[r] / usual;
        if (rate[r] > 0 && times > s->slow[r].times) {
            s->slow[r].times = times;
            s->slow[r].meter = m;
        }
    }
}

void hzp_stragglers_judge(struct hzp_stragglers *s)
{
    HZP_FREED float *rate = hzp_xcalloc(2 * (size_t)s->ranks, sizeof(*rate));
    for (int r = 0; r < s->ranks; r++) {
        s->slow[r].times = 0;
        s->slow[r].meter = -1;
    }
    for (int m = 0; m < HZP_METER_COUNT; m++)
        judge_meter(s, m, rate);
    for (int r = 0; r < s->ranks; r++) {
        struct hzp_straggler *slow = &s->slow[r];
        slow->turns = slow->times > HZP_STRAGGLER_SLOW ? slow->turns + 1 : 0;
        bool named =
            slow->named ? slow->times > HZP_STRAGGLER_FINE : slow->turns >= HZP_STRAGGLER_TURNS;
        slow->changed |= named != slow->named;
        slow->named = named;
    }
}

int hzp_stragglers_next(struct hzp_stragglers *s)
{
    for (int r = 0; r < s->ranks; r++)
        if (s->slow[r].changed) {
            s->slow[r].changed = false;
            return r;
        }
    return -1;
}

void hzp_stragglers_report(const struct hzp_meter before[HZP_METER_COUNT],
                           const struct hzp_meter now[HZP_METER_COUNT], float ret[HZP_METER_COUNT])
{
    uint64_t all = 0;
    for (int m = 0; m < HZP_METER_COUNT; m++)
        all += now[m].ns - before[m].ns;
    for (int m = 0; m < HZP_METER_COUNT; m++) {
        uint64_t ns = now[m].ns - before[m].ns, work = now[m].work - before[m].work;
        ret[m] = work && ns >= all / 20 ? (float)((double)ns / (double)work) : 0;
    }
}
