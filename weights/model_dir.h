/* SPDX-License-Identifier: Apache-2.0 */
/* weights/model_dir.h - reads the units of a version from a Hugging Face model directory and writes
 * them to one.
 *
 * All functions work unit by unit: if device memory is not host memory, one unit is in host memory
 * at a time.
 *
 * Thread: any; a load or save touches only the units it is given.
 */
#pragma once

#include "weights/unit_stream.h"
#include "weights/safetensors.h"

/* Reads every parameter from dir's model.safetensors, or from the shards that
 * model.safetensors.index.json names, into the units (F32 or BF16; conversion rounds to nearest
 * even); padding is zeroed.  Units of a slice (weights/tensor_slice.h) get their part of each
 * tensor.  dev: the device whose memory holds the units; NULL: host memory.  A
 * tensor that is absent, unexpected, of another shape, of an unknown type or not finite is an error
 * (HZP_EFORMAT) that names file and tensor. Known leftovers of old exports are allowed: rotary
 * inv_freq buffers, and lm_head.weight of a tied model if it equals the embedding or replaces it.
 * Other errors: HZP_ENOENT, HZP_EIO, HZP_ENOMEM, HZP_EDEVICE.  *ret_checksum: the value of
 * hzp_units_checksum; NULL: not wanted. */
int hzp_model_load(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                   uint64_t *ret_checksum, struct hzp_err_text *reterr);

/* The same, piece by piece.  Everything but the data is checked when it is opened; layout is
 * borrowed until it is closed. */
struct hzp_model_reader;
int hzp_model_open(const char *dir, const struct hzp_layout *layout, enum hzp_dtype type,
                   struct hzp_model_reader **ret, struct hzp_err_text *reterr);
/* Elements [first, first + count) of unit u, converted to the type, padding zeroed.  Thread: one at
 * a time for each reader.  HZP_EFORMAT, HZP_EIO. */
int hzp_model_read(struct hzp_model_reader *reader, int32_t u, size_t first, size_t count,
                   void *ret, struct hzp_err_text *reterr);
void hzp_model_close(struct hzp_model_reader *reader); /* NULL: no effect */

/* Writes dir (created if absent) so that `transformers` loads it: config.json (that of source_dir,
 * with torch_dtype set to the units' type), the weights in one file or in shards of at most 5 GB
 * with an index, and copies of source_dir's tokenizer and generation files.  Each file is written
 * under a temporary name and renamed, the weights last.  The units are those of the whole model,
 * not of a slice.  HZP_EINVAL, HZP_EIO, HZP_ENOMEM. */
int hzp_model_save(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                   const char *source_dir, struct hzp_err_text *reterr);

/* The same for the weights of a source, which are read in order.  *ret_checksum: their
 * hzp_units_checksum; NULL: not wanted. */
int hzp_model_save_from(const char *dir, const struct hzp_unit_source *source,
                        const char *source_dir, uint64_t *ret_checksum,
                        struct hzp_err_text *reterr);

/* The names of the files that a save copies, config.json first; NULL: there are not so many. */
const char *hzp_model_text_name(int i);

/* Copies source_dir's config.json, tokenizer and generation files to dir (created if absent). */
int hzp_model_copy_texts(const char *dir, const char *source_dir, struct hzp_err_text *reterr);

/* hzp_model_save with a different bound for a file's bytes of data (a tensor larger than the bound
 * gets its own file). */
int hzp_model_save_shards(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                          const char *source_dir, size_t shard_bytes, struct hzp_err_text *reterr);

/* Initializes weights: matrices normal(0, std), with std / sqrt(2 layers) for O and DOWN, norms 1,
 * biases 0; the same seed gives the same bits whatever the type or thread count.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_model_init(struct hzp_device *dev, const struct hzp_units *units, uint64_t seed, float std);

/* Converts numbers of a file's type to numbers of a version's type.
 *
 * Every conversion that narrows rounds once, to nearest, ties to even. */

/* Whether hzp_convert converts from this type: F64, F32, F16, BF16. */
bool hzp_convert_knows(enum hzp_disk_type from);

/* Converts n elements; to is F32 or BF16.  x need not be aligned. */
void hzp_convert(enum hzp_disk_type from, const void *x, enum hzp_dtype to, void *y, size_t n);

/* The index of the first of n elements of type F32 or BF16 that is NaN or infinite; n if all are
 * finite. */
size_t hzp_first_nonfinite(enum hzp_dtype type, const void *y, size_t n);
