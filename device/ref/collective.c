/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/collective.c - the collective op of backends whose memory is the host's: the thread of
 * the lane posts the transfer and waits for its ticket, at once or in a later op. */
#include "base/log.h"
#include "device/collective.h"
#include "device/ref/ref.h"

static int run_part(const struct hzp_collective_args *a, const struct hzp_transfer *t,
                    struct hzp_err_text *why)
{
    if (a->part == HZP_COLLECTIVE_BEGIN)
        return hzp_link_begin_transfer(a->link, t, why);
    if (a->part == HZP_COLLECTIVE_END)
        return hzp_link_end_transfer(a->link, why);
    return hzp_link_move(a->link, t, why);
}

static int ref_collective(struct hzp_lane *lane, const void *args)
{
    const struct hzp_collective_args *a = args;
    struct hzp_transfer t;
    hzp_collective_transfer(a, &t);
    if (t.count == 0)
        return HZP_OK;
    struct hzp_err_text why = {0};
    int r = run_part(a, &t, &why);
    if (r >= 0)
        return HZP_OK;
    hzp_log(HZP_LOG_ERROR, "device", "%s between ranks failed: %s", hzp_transfer_name(t.op),
            why.text);
    return HZP_EDEVICE;
}

void hzp_ref_fill_collective(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_collective] = ref_collective;
}
