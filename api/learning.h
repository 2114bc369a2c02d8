/* SPDX-License-Identifier: Apache-2.0 */
/* api/learning.h - the learning half of a server: sample log, queue, trainer, and what is kept on
 * disk of them.
 *
 * Sits between train/, which knows tokens, and the engine: opens the log and finds the checkpoint
 * to go on from, loads it, makes queue and trainer, journals each published version, and saves at
 * the end.
 *
 * Thread: engine, except where marked.
 */
#ifndef HZP_API_LEARNING_H
#define HZP_API_LEARNING_H

#include "base/err.h"
#include "weights/versions.h"

struct hzp_engine;
struct hzp_learning;

/* Before the weights exist: may change config->first_id, so that a restart goes on counting. */
int hzp_learning_open(struct hzp_engine *engine, struct hzp_weights_config *config,
                      struct hzp_learning **ret, struct hzp_err_text *reterr);

/* With weights and model there: loads and publishes the first version (the newest checkpoint's, or
 * the model directory's), makes engine->queue and engine->trainer. */
int hzp_learning_begin(struct hzp_learning *learning, struct hzp_err_text *reterr);

/* The loop has ended with this result; saves what has to be saved. */
void hzp_learning_end(struct hzp_learning *learning, int result);

void hzp_learning_close(struct hzp_learning *learning); /* NULL: no effect */

#endif
