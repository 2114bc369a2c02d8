/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/collective.c - the collective op of backends whose memory is the host's: the thread of
 * the lane posts the transfer and waits for its ticket. */
#include "base/log.h"
#include "device/link.h"
#include "device/ref/ref.h"

static int ref_collective(struct hzp_lane *lane, const void *args)
{
    const struct hzp_collective_args *a = args;
    enum hzp_transfer_op kind = (enum hzp_transfer_op)a->kind;
    size_t row = (size_t)a->recv.cols * hzp_dtype_size(a->recv.type);
    size_t rows = (size_t)a->recv.rows, rank = (size_t)hzp_link_rank(a->link);
    struct hzp_transfer t = {.op = kind,
                             .type = a->wide                   ? (enum hzp_wire)a->wide
                                     : a->recv.type == HZP_F32 ? HZP_WIRE_F32
                                                               : HZP_WIRE_BYTE,
                             .send = a->send.ptr,
                             .recv = a->recv.ptr,
                             .onto = a->accumulate,
                             .tag = (uint64_t)a->tag};
    if (rows == 0)
        return HZP_OK;
    if (kind == HZP_ALL_GATHER)
        rows /= (size_t)hzp_link_ranks(a->link);
    t.count = rows * row / hzp_wire_size(t.type);
    if (!t.send)
        t.send = (char *)t.recv + (kind == HZP_ALL_GATHER ? rank * rows * row : 0);
    struct hzp_err_text why = {0};
    hzp_ticket ticket;
    int r = hzp_link_post(a->link, &t, &ticket, &why);
    if (r >= 0)
        r = hzp_link_wait(a->link, ticket, &why);
    if (r >= 0)
        return HZP_OK;
    hzp_log(HZP_LOG_ERROR, "device", "%s between ranks failed: %s", hzp_transfer_name(kind),
            why.text);
    return HZP_EDEVICE;
}

void hzp_ref_fill_collective(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_collective] = ref_collective;
}
