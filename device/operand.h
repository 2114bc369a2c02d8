/* SPDX-License-Identifier: Apache-2.0 */
/* device/operand.h - the memory each op touches, as a list.
 *
 * One description is used for the cost of an op (cost.c), for the plan checker (access.c) and for
 * validation (dev/debug/validate.c).
 *
 * Thread: any; pure.
 */
#pragma once

#include "device/ops.h"

struct hzp_operand {
    const char *name;
    uintptr_t ptr;             /* 0: absent */
    int64_t rows;              /* an array is one row */
    size_t width, stride;      /* bytes of a row; from one row to the next */
    size_t align;              /* bytes of an element */
    const struct hzp_mat *mat; /* NULL: an array */
    bool reads, writes, optional;
    uint32_t types; /* bits 1 << enum hzp_dtype that it may have; 0: the op's own rules say */
    int32_t like;   /* index of the operand whose shape it has; -1: any */
    bool slots;     /* a layer's pages, of which only some slots are used */
    int32_t may_be; /* index of the operand it may alias (in place); -1: none */
    bool narrower;  /* in place its rows may be narrower: then they take the first bytes of each */
};

/* Returns how many operands the op has; they need not be valid. */
int hzp_op_operands(enum hzp_op op, const void *args, struct hzp_operand ret[HZP_ACCESS_MAX]);

/* The address one past the operand's last byte. */
uintptr_t hzp_operand_end(const struct hzp_operand *operand);

/* The operand is absent, or has no rows or no columns. */
bool hzp_operand_empty(const struct hzp_operand *operand);
