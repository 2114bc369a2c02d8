/* SPDX-License-Identifier: Apache-2.0 */
/* weights/model_dir.h - a Hugging Face model directory to and from a version's memory.
 *
 * Thread: any; a load or save touches only the memory it is given.
 */
#ifndef HZP_WEIGHTS_MODEL_DIR_H
#define HZP_WEIGHTS_MODEL_DIR_H

#include "weights/layout.h"

/* Reads every parameter from dir's model.safetensors, or the shards that
 * model.safetensors.index.json names, into base: host memory laid out like a version, of `type`
 * (F32 or BF16; conversion rounds to nearest even); padding is zeroed.  A tensor that is absent,
 * extra, of another shape, of an unknown type or not finite is an error (HZP_EFORMAT) that names
 * file and tensor; known leftovers of old exports (rotary inv_freq buffers, and lm_head.weight of a
 * tied model when it equals the embedding or stands alone in its place) are allowed. */
int hzp_model_load(const char *dir, const struct hzp_layout *layout, enum hzp_dtype type,
                   void *base, struct hzp_err_text *reterr);

/* Writes dir (made if absent) so that `transformers` loads it: config.json (that of source_dir,
 * with torch_dtype set to type), the weights in one file or in shards of at most 5 GB with an
 * index, and copies of source_dir's tokenizer and generation files.  Written beside and renamed
 * file by file, the weights last. */
int hzp_model_save(const char *dir, const struct hzp_layout *layout, enum hzp_dtype type,
                   const void *base, const char *source_dir, struct hzp_err_text *reterr);

/* The same with another bound for a file's bytes of data (a tensor larger than it has a file for
 * itself). */
int hzp_model_save_shards(const char *dir, const struct hzp_layout *layout, enum hzp_dtype type,
                          const void *base, const char *source_dir, size_t shard_bytes,
                          struct hzp_err_text *reterr);

/* Fresh weights: matrices normal(0, std), with std / sqrt(2 layers) for O and DOWN, norms 1,
 * biases 0; the same seed gives the same bits whatever the type or thread count. */
void hzp_model_init(const struct hzp_layout *layout, enum hzp_dtype type, void *base, uint64_t seed,
                    float std);

#endif
