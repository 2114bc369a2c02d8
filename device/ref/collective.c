/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/collective.c - the collective op of backends whose memory is the host's: the thread of
 * the lane posts the transfer and waits for its ticket. */
#include "base/log.h"
#include "device/collective.h"
#include "device/ref/ref.h"

static int ref_collective(struct hzp_lane *lane, const void *args)
{
    const struct hzp_collective_args *a = args;
    struct hzp_transfer t;
    hzp_collective_transfer(a, &t);
    if (t.count == 0)
        return HZP_OK;
    struct hzp_err_text why = {0};
    hzp_ticket ticket;
    int r = hzp_link_post(a->link, &t, &ticket, &why);
    if (r >= 0)
        r = hzp_link_wait(a->link, ticket, &why);
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
