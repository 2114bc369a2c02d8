/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/loss_plot.h - draws the curve of losses that a file of train_log.h has: as an SVG
 * picture and in characters.
 *
 * Thread: one.
 */
#ifndef HZP_API_LEARN_LOSS_PLOT_H
#define HZP_API_LEARN_LOSS_PLOT_H

#include "base/err.h"

#include <stdio.h>

struct hzp_loss_point {
    double step, loss;
};

struct hzp_loss_curve {
    struct hzp_loss_point *train, *eval; /* [trains], [evals], in the order of the file, owned */
    int trains, evals;
};

/* Lines that are no updates or evaluations, or whose loss is not finite, are left out.  HZP_EIO:
 * the file cannot be read. */
int hzp_loss_curve_read(const char *path, struct hzp_loss_curve *ret, struct hzp_err_text *reterr);
void hzp_loss_curve_free(struct hzp_loss_curve *curve);

/* HZP_EIO: it cannot be written.  A curve without points gives axes only. */
int hzp_loss_plot_svg(const struct hzp_loss_curve *curve, const char *title, const char *path,
                      struct hzp_err_text *reterr);

/* Draws into columns x rows characters and the axes beside them: `*` the mean training loss of a
 * column's updates, `o` an evaluation.  Nothing without points. */
void hzp_loss_plot_text(const struct hzp_loss_curve *curve, int columns, int rows, FILE *out);

#endif
