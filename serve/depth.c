/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/depth.h"

static const double margin = 1.03;       /* what a round must bring more */
static const double rate = 1.0 / 64;     /* weight of a new value in the average of right guesses */
static const double try_rate = 1.0 / 16; /* the same where rounds do not pay, and guesses are few */
/* The same for times that are less, and more, than it: other work makes steps late, never early. */
static const double ns_rate_down = 1.0 / 8, ns_rate_up = 1.0 / 32;
static const double ns_most = 3;          /* times the average: so much counts of a late step */
static const double cost_at_first = 0.55; /* half of the layers, and the head */
static const double cost_beside = 1;      /* the same beside rows of all layers */
/* How often decoding is measured before the first round, and of how many steps the shortest counts;
 * in how many rounds decoding is measured once, at most. */
enum { DECODE_FIRST = 4, DECODE_EVERY = 64 };
enum { SOONER = 4, GUESSES_AT_FIRST = 3 }; /* the first value of trust counts as so many guesses */

void hzp_rounds_init(struct hzp_rounds *r)
{
    *r = (struct hzp_rounds){.trust = 0.6, .sooner = SOONER};
}

static struct hzp_rounds_times *times_of(struct hzp_rounds *r, const struct hzp_rounds_mix *mix)
{
    int32_t class = 0;
    while (class < HZP_ROUNDS_CLASSES - 1 && (1 << class) < mix->guess + mix->plain)
        class ++;
    return &r->times[mix->plain > 0][class];
}

/* The length with the most tokens in its time; v(0) is known. */
static int32_t best_length(const double *ns, const struct hzp_rounds_mix *mix, double trust,
                           int32_t most)
{
    double guess = ns[HZP_ROUNDS_GUESS], right = 1, tokens = mix->guess + mix->plain;
    double best = margin * tokens / ns[0], before = ns[0], slope = 0;
    int32_t length = 0;
    guess = guess > 0 ? guess : (mix->plain ? cost_beside : cost_at_first) * ns[0];
    for (int32_t k = 1; k <= most; k++) {
        double verify = ns[k] > 0 ? HZP_MAX(ns[k], before) : before + slope;
        slope = (verify - ns[0]) / k;
        before = verify;
        right *= trust;
        tokens += mix->guess * right + mix->plain;
        if (tokens / (k * guess + verify) > best) {
            best = tokens / (k * guess + verify);
            length = k;
        }
    }
    return length;
}

int32_t hzp_rounds_length(struct hzp_rounds *r, const struct hzp_rounds_mix *mix, double trust,
                          int32_t most, int32_t every, bool known)
{
    const struct hzp_rounds_times *times = times_of(r, mix);
    int32_t decoded = times->seen[0];
    if (mix->guess < mix->plain || decoded < DECODE_FIRST ||
        r->rounds >= HZP_MIN(decoded, DECODE_EVERY))
        return 0;
    int32_t length = best_length(times->ns, mix, trust, most);
    r->pays = length > 0;
    r->idle += !length;
    if (!length && r->idle >= every >> r->sooner)
        length = HZP_MIN(most, 1);
    if (length && known) {
        r->sooner -= !r->pays && r->sooner > 0;
        r->idle = 0;
        r->rounds++;
    }
    return length;
}

void hzp_rounds_began(struct hzp_rounds *r, uint64_t number, bool ahead,
                      const struct hzp_rounds_mix *mix, int32_t kind)
{
    struct hzp_rounds_step *before = &r->step[(number - 1) % 2], *now = &r->step[number % 2];
    bool counts = kind || ahead || before->number != number - 1 || !before->kind;
    *now = (struct hzp_rounds_step){number, counts ? *mix : (struct hzp_rounds_mix){0}, kind};
}

void hzp_rounds_ended(struct hzp_rounds *r, uint64_t number, int32_t rows, uint64_t end_ns)
{
    const struct hzp_rounds_step *is = &r->step[number % 2];
    int32_t each = is->kind == HZP_ROUNDS_GUESS ? 1 : 1 + is->kind;
    double ns = (double)(end_ns - r->end_ns);
    bool counts = is->number == number && is->mix.guess > 0 && end_ns > r->end_ns &&
                  rows == is->mix.guess * each + is->mix.plain;
    struct hzp_rounds_times *times = times_of(r, &is->mix);
    int32_t *seen = &times->seen[is->kind];
    double *at = &times->ns[is->kind];
    r->end_ns = end_ns;
    if (!counts)
        return;
    if (!is->kind)
        r->rounds = 0;
    *seen = HZP_MIN(*seen + 1, 1 << 20);
    if (*seen <= DECODE_FIRST)
        *at = *seen > 1 ? HZP_MIN(*at, ns) : ns;
    else if (ns < *at)
        *at += ns_rate_down * (ns - *at);
    else
        *at += ns_rate_up * (HZP_MIN(ns, ns_most * *at) - *at);
}

void hzp_rounds_verified(struct hzp_rounds *r, struct hzp_lookup *lookup, int32_t guesses,
                         int32_t right)
{
    for (int32_t i = 0; i < guesses && i <= right; i++) {
        double new = HZP_MAX(r->pays ? rate : try_rate, 1.0 / (GUESSES_AT_FIRST + r->guesses));
        r->guesses = HZP_MIN(r->guesses + 1, 1 << 20);
        lookup->trust += new *((i < right) - lookup->trust);
        r->trust += new *((i < right) - r->trust);
    }
}
