/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/report.h"

const char *hzp_split_limit_name(enum hzp_split_limit limit)
{
    static const char *const name[] = {[HZP_LIMIT_IDLE] = "idle",
                                       [HZP_LIMIT_SHARE] = "share",
                                       [HZP_LIMIT_ITL] = "itl",
                                       [HZP_LIMIT_TTFT] = "ttft",
                                       [HZP_LIMIT_MISSED] = "missed",
                                       [HZP_LIMIT_TURN] = "turn",
                                       [HZP_LIMIT_SLOTS] = "running_slots"};
    return name[limit];
}
