/* SPDX-License-Identifier: Apache-2.0 */
#include "device/collective.h"

void hzp_collective_transfer(const struct hzp_collective_args *a, struct hzp_transfer *ret)
{
    enum hzp_transfer_op kind = (enum hzp_transfer_op)a->kind;
    size_t row = (size_t)a->recv.cols * hzp_dtype_size(a->recv.type);
    size_t rows = (size_t)a->recv.rows, rank = (size_t)hzp_link_rank(a->link);
    *ret = (struct hzp_transfer){.op = kind,
                                 .type = a->wide                   ? (enum hzp_wire)a->wide
                                         : a->recv.type == HZP_F32 ? HZP_WIRE_F32
                                                                   : HZP_WIRE_BYTE,
                                 .send = a->send.ptr,
                                 .recv = a->recv.ptr,
                                 .onto = a->accumulate,
                                 .tag = (uint64_t)a->tag};
    if (kind == HZP_ALL_GATHER)
        rows /= (size_t)hzp_link_ranks(a->link);
    ret->count = rows * row / hzp_wire_size(ret->type);
    if (!ret->send)
        ret->send = (char *)ret->recv + (kind == HZP_ALL_GATHER ? rank * rows * row : 0);
}
