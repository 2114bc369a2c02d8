/* SPDX-License-Identifier: Apache-2.0 */
/* weights/wrapper.h - the text model inside a vision model's directory (Gemma 3, Mistral Small 3,
 * Ministral 3): its configuration is the object text_config of config.json, and its tensors are
 * beside those of the vision tower.
 *
 * Only the text model is read, as a model of its own, and as such it is saved.
 *
 * Thread: any.
 */
#pragma once

#include "base/err.h"
#include "base/json.h"

/* *ret: config.json of the text model alone, for the caller to json_decref; NULL: root is no
 * wrapper.  What text_config leaves out is in it as the wrapper's class means it.
 * HZP_EFORMAT, HZP_EUNSUP: path in the message. */
int hzp_wrapper_text(const char *path, const json_t *root, json_t **ret,
                     struct hzp_err_text *reterr);

/* The text model's name of a wrapper's tensor: within `name`, or in ret [size].  NULL: the tensor
 * belongs to another part of the model. */
const char *hzp_wrapper_name(const char *name, char *ret, size_t size);
