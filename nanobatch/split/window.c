/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/window.h"

void hzp_window_add(struct hzp_window *w, uint64_t ns, int32_t weight)
{
    w->ns[w->at] = ns;
    w->weight[w->at] = weight;
    w->at = (w->at + 1) % HZP_WINDOW_VALUES;
    w->count = HZP_MIN(w->count + 1, HZP_WINDOW_VALUES);
}

int64_t hzp_window_weight(const struct hzp_window *w)
{
    int64_t all = 0;
    for (int32_t i = 0; i < w->count; i++)
        all += w->weight[i];
    return all;
}

struct pair {
    uint64_t ns;
    int32_t weight;
};

static int by_ns(const void *a, const void *b)
{
    uint64_t x = ((const struct pair *)a)->ns, y = ((const struct pair *)b)->ns;
    return x < y ? -1 : x > y;
}

uint64_t hzp_window_quantile(const struct hzp_window *w, double p)
{
    struct pair pair[HZP_WINDOW_VALUES];
    for (int32_t i = 0; i < w->count; i++)
        pair[i] = (struct pair){w->ns[i], w->weight[i]};
    qsort(pair, (size_t)w->count, sizeof(*pair), by_ns);
    double left = p * (double)hzp_window_weight(w);
    for (int32_t i = 0; i < w->count; i++) {
        left -= pair[i].weight;
        if (left <= 0)
            return pair[i].ns;
    }
    return w->count ? pair[w->count - 1].ns : 0;
}

void hzp_spread_init(struct hzp_spread *s, double low, double factor, double keep)
{
    memset(s, 0, sizeof(*s));
    s->low = low;
    s->factor = factor;
    s->keep = keep;
}

void hzp_spread_add(struct hzp_spread *s, double value, double weight)
{
    double c = value > s->low ? log(value / s->low) / log(s->factor) : 0;
    int i = c < HZP_SPREAD_CLASSES - 1 ? (int)c : HZP_SPREAD_CLASSES - 1;
    s->all = 0;
    for (int k = 0; k < HZP_SPREAD_CLASSES; k++) {
        s->weight[k] = s->weight[k] * s->keep + (k == i ? weight : 0);
        s->all += s->weight[k];
    }
}

double hzp_spread_quantile(const struct hzp_spread *s, double p)
{
    double left = p * s->all;
    for (int k = 0; k < HZP_SPREAD_CLASSES && s->all > 0; k++) {
        left -= s->weight[k];
        if (left <= 0)
            return s->low * pow(s->factor, k + 1);
    }
    return s->all > 0 ? s->low * pow(s->factor, HZP_SPREAD_CLASSES) : 0;
}
