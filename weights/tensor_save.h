/* SPDX-License-Identifier: Apache-2.0 */
/* weights/tensor_save.h - writes a model whose units are cut into tensor slices: the ranks send
 * rank 0 their slices unit by unit, and it writes what one rank would write.
 *
 * Thread: the link's, on every rank.
 */
#ifndef HZP_WEIGHTS_TENSOR_SAVE_H
#define HZP_WEIGHTS_TENSOR_SAVE_H

#include "device/link.h"
#include "weights/units.h"

/* hzp_model_save for the slices of all ranks of the link, which all call it; whole: the
 * configuration of the whole model.  units: this rank's, in dev's memory (NULL: host memory).
 * Rank 0 alone writes files, and needs memory for a whole unit and all slices of it.  Every rank
 * returns rank 0's code; only there the text says more. */
int hzp_tensor_save(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                    const struct hzp_model_config *whole, struct hzp_link *link,
                    const char *source_dir, struct hzp_err_text *reterr);

#endif
