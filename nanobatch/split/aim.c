/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/aim.h"

static const double gain = 0.05, late_part = 0.002;
static const double usual_between = 200, faster_max = 20;
static const double part_first = 0.8, part_min = 0.05, part_max = 1;

void hzp_aim_init(struct hzp_aim *aim)
{
    *aim = (struct hzp_aim){.part = part_first};
}

void hzp_aim_note(struct hzp_aim *aim, bool late)
{
    double faster = HZP_MIN(aim->since_late / usual_between - 1, faster_max);
    aim->since_late = late ? 0 : HZP_MIN(aim->since_late + 1, INT32_MAX - 1);
    double change = late ? -gain : gain * late_part * HZP_MAX(faster, 1.0);
    double part = aim->part * exp(change);
    aim->part = HZP_MAX(HZP_MIN(part, part_max), part_min);
}
