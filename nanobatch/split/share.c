/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/share.h"

/* A train_min of 1 still leaves serving a hundredth. */
static const double min_part_max = 0.99;
static const double urgent_ns = 30e9, urgent_max = 5;
enum { USUAL_STEPS = 16 };

double hzp_share_of_part(double part)
{
    return part < 1 ? part / (1 - part) : INFINITY;
}

struct hzp_time_share hzp_share_of(const struct hzp_policy *policy, bool itl_goal)
{
    double most = hzp_share_of_part(policy->train_max);
    return (struct hzp_time_share){.turn = HZP_MIN(itl_goal ? INFINITY : policy->train_share, most),
                                   .beside = most};
}

double hzp_credit_allows(const struct hzp_credit *credit, const struct hzp_time_share *share,
                         bool beside, double alone_ns)
{
    if (isinf(share->turn))
        return share->turn;
    double usual = credit->usual_ns > 0 ? credit->usual_ns : alone_ns;
    double s = beside ? share->beside : share->turn;
    return s > 0 ? credit->credit_ns - credit->owed_ns + s * usual : 0;
}

double hzp_credit_owes(const struct hzp_credit *credit, const struct hzp_time_share *share,
                       bool beside, double slice_ns)
{
    double s = beside ? share->beside : share->turn;
    return isinf(s) ? 0 : HZP_MAX(slice_ns - s * credit->usual_ns, 0.0);
}

void hzp_credit_settle(struct hzp_credit *credit, const struct hzp_time_share *share, bool beside,
                       double serve_ns, double train_ns, double next_ns)
{
    double s = beside ? share->beside : share->turn;
    if (isinf(s))
        credit->credit_ns = 0;
    else
        credit->credit_ns = HZP_MIN(credit->credit_ns + s * serve_ns - train_ns, next_ns);
}

void hzp_credit_usual(struct hzp_credit *credit, double serve_ns)
{
    double *usual = &credit->usual_ns;
    *usual += (serve_ns - *usual) / (*usual > 0 ? USUAL_STEPS : 1);
}

double hzp_floor_part(const struct hzp_policy *policy, uint64_t age_ns)
{
    double urgent = HZP_MAX(1.0, HZP_MIN((double)age_ns / urgent_ns, urgent_max));
    return HZP_MIN(policy->train_min * urgent, policy->train_max);
}

double hzp_floor_settle(double floor_ns, double part, double serve_ns, double train_ns,
                        double next_ns)
{
    double s = hzp_share_of_part(HZP_MIN(part, min_part_max));
    floor_ns += s * serve_ns - train_ns;
    return HZP_MAX(HZP_MIN(floor_ns, HZP_MAX(next_ns, serve_ns)), 0.0);
}

double hzp_floor_due(double floor_ns, double next_ns)
{
    return floor_ns > 0 && floor_ns >= next_ns ? floor_ns : 0;
}
