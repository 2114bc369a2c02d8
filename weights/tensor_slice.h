/* SPDX-License-Identifier: Apache-2.0 */
/* weights/tensor_slice.h - tensor parallelism: the part of each unit that a rank has, where T ranks
 * compute each product together.
 *
 * T divides the heads, the key-value heads, the inner width and the vocabulary.  Rank r has
 *
 *     q, k, v (and their biases)   the rows of its heads
 *     O                            the columns of its heads
 *     gate, up                     the rows of its part of the inner width
 *     Down                         the columns of the same part
 *     embedding, head              its rows of the vocabulary
 *     norms                        all of each: they are the same on every rank
 *
 * A slice's layout (hzp_layout_make_slice) is that of a model with 1/T of the heads, of the inner
 * width and of the vocabulary's rows, so whatever works from a layout works on a slice.  The
 * product of O, and that of Down, give each rank a part of the sum: the builders of plans add the
 * parts up (nanobatch/model/tensor.h).
 *
 * On disk a model is always whole: hzp_model_load reads a slice from it; to write one, slices are
 * put together unit by unit.
 *
 * Thread: any; pure.
 */
#pragma once

#include "weights/layout.h"

/* HZP_EINVAL names what `ranks` does not divide, and its number. */
int hzp_tensor_slice_check(const struct hzp_model_config *whole, int32_t ranks,
                           struct hzp_err_text *reterr);

/* Unit u of the slice from that of the whole model, and the reverse, for elements of `size` bytes
 * (parameters, moments, residuals).  whole and slice are layouts of one model.  cut fills the
 * padding with zeros; join writes only what the slice has, so that the slices of all ranks fill the
 * unit but for its padding. */
void hzp_tensor_slice_cut(const struct hzp_layout *whole, const struct hzp_layout *slice, int32_t u,
                          size_t size, const void *from, void *to);
void hzp_tensor_slice_join(const struct hzp_layout *whole, const struct hzp_layout *slice,
                           int32_t u, size_t size, const void *from, void *to);
/* Whether `from`, a unit of the slice, has the same bytes of what all ranks have (norms) as unit u
 * of the whole model. */
bool hzp_tensor_slice_agrees(const struct hzp_layout *whole, const struct hzp_layout *slice,
                             int32_t u, size_t size, const void *from, const void *unit);
