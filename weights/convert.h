/* SPDX-License-Identifier: Apache-2.0 */
/* weights/convert.h - converts numbers of a file's type to numbers of a version's type.
 *
 * Every conversion that narrows rounds once, to nearest, ties to even.
 *
 * Thread: any.
 */
#pragma once

#include "device/ops.h"
#include "weights/safetensors.h"

/* Whether hzp_convert converts from this type: F64, F32, F16, BF16. */
bool hzp_convert_knows(enum hzp_disk_type from);

/* Converts n elements; to is F32 or BF16.  x need not be aligned. */
void hzp_convert(enum hzp_disk_type from, const void *x, enum hzp_dtype to, void *y, size_t n);

/* The index of the first of n elements of type F32 or BF16 that is NaN or infinite; n if all are
 * finite. */
size_t hzp_first_nonfinite(enum hzp_dtype type, const void *y, size_t n);
