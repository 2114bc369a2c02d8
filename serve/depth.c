/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/depth.h"

static const double margin = 1.03;       /* what a round must bring more */
static const double rate = 1.0 / 64;     /* weight of a new value in the average of right guesses */
static const double try_rate = 1.0 / 16; /* the same where rounds do not pay, and guesses are few */
static const double ns_rate = 1.0 / 32;  /* the same for times; the first weigh more */
static const double ns_most = 3;         /* times the average: so much counts of a late step */
static const double cost_at_first = 0.55; /* half of the layers, and the head */
/* How often decoding is measured before the first round; in how many rounds once, at most. */
enum { DECODE_FIRST = 4, DECODE_EVERY = 64 };

void hzp_rounds_init(struct hzp_rounds *r)
{
    *r = (struct hzp_rounds){.trust = 0.6};
}

static int32_t class_of(int32_t sequences)
{
    int32_t class = 0;
    while (class < HZP_ROUNDS_CLASSES - 1 && (1 << class) < sequences)
        class ++;
    return class;
}

/* The length with the most tokens in its time; v(0) is known. */
static int32_t best_length(const double *ns, double trust, int32_t most)
{
    double guess = ns[HZP_ROUNDS_GUESS] > 0 ? ns[HZP_ROUNDS_GUESS] : cost_at_first * ns[0];
    double best = margin / ns[0], right = 1, tokens = 1, before = ns[0], slope = 0;
    int32_t length = 0;
    for (int32_t k = 1; k <= most; k++) {
        double verify = ns[k] > 0 ? HZP_MAX(ns[k], before) : before + slope;
        slope = (verify - ns[0]) / k;
        before = verify;
        tokens += right *= trust;
        if (tokens / (k * guess + verify) > best) {
            best = tokens / (k * guess + verify);
            length = k;
        }
    }
    return length;
}

int32_t hzp_rounds_length(struct hzp_rounds *r, int32_t sequences, double trust, int32_t most,
                          int32_t every)
{
    const double *ns = r->ns[class_of(sequences)];
    int32_t decoded = r->seen[class_of(sequences)][0];
    if (decoded < DECODE_FIRST || r->rounds >= HZP_MIN(decoded, DECODE_EVERY)) {
        r->rounds = 0;
        return 0;
    }
    int32_t length = best_length(ns, trust, most);
    r->pays = length > 0;
    if (!length && ++r->idle >= every)
        length = HZP_MIN(most, 1);
    if (length)
        r->idle = 0;
    r->rounds += length > 0;
    return length;
}

void hzp_rounds_began(struct hzp_rounds *r, int32_t sequences, int32_t kind)
{
    r->sequences = sequences;
    r->kind = kind;
}

void hzp_rounds_ended(struct hzp_rounds *r, int32_t rows, uint64_t end_ns)
{
    int32_t each = r->kind == HZP_ROUNDS_GUESS ? 1 : 1 + r->kind;
    double ns = (double)(end_ns - r->end_ns);
    bool counts = r->sequences > 0 && rows == r->sequences * each && end_ns > r->end_ns;
    int32_t class = class_of(r->sequences), *seen = &r->seen[class][r->kind];
    double *at = &r->ns[class][r->kind];
    r->sequences = 0;
    r->end_ns = end_ns;
    if (!counts)
        return;
    double share = 1.0 / ++*seen, most = *seen > 1 ? ns_most * *at : ns;
    *seen = HZP_MIN(*seen, 1 << 20);
    *at += HZP_MAX(share, ns_rate) * (HZP_MIN(ns, most) - *at);
}

void hzp_rounds_verified(struct hzp_rounds *r, struct hzp_lookup *lookup, int32_t guesses,
                         int32_t right)
{
    double new = r->pays ? rate : try_rate;
    for (int32_t i = 0; i < guesses && i <= right; i++) {
        lookup->trust += new *((i < right) - lookup->trust);
        r->trust += new *((i < right) - r->trust);
    }
}
