/* SPDX-License-Identifier: Apache-2.0 */
/* weights/safetensors.h - reads and writes safetensors files; everything read is checked.
 *
 * A file is 8 bytes little-endian header length, that many bytes of JSON (name -> dtype, shape,
 * data_offsets, and an optional __metadata__ of strings), then the data.  The reader checks
 * everything before it returns: header length against the file's size and a bound, JSON depth,
 * shapes that overflow, offsets that overlap, overrun, leave holes or disagree with shape and type.
 * Every error names the file, the tensor and what is wrong.
 *
 * Data are read, not mapped: a file that is truncated while it is in use is an error, not a
 * signal.
 *
 * Thread: any; a reader may be used by several threads once open.
 */
#pragma once

#include "base/err.h"

enum hzp_disk_type {
    HZP_DISK_F64,
    HZP_DISK_F32,
    HZP_DISK_F16,
    HZP_DISK_BF16,
    HZP_DISK_I64,
    HZP_DISK_I32,
    HZP_DISK_I16,
    HZP_DISK_I8,
    HZP_DISK_U8,
    HZP_DISK_BOOL,
};
size_t hzp_disk_type_size(enum hzp_disk_type type);
const char *hzp_disk_type_name(enum hzp_disk_type type); /* "BF16" */

enum { HZP_DIMS_MAX = 8 };

struct hzp_safetensors;

struct hzp_st_tensor {
    const char *name;
    enum hzp_disk_type type;
    int32_t dims;
    int64_t shape[HZP_DIMS_MAX];
    int64_t elements;
    const struct hzp_safetensors *file;
    uint64_t at; /* where its data begin in the file */
};

/* Reads and checks the header; data are read when asked for.  HZP_ENOENT, HZP_EIO; HZP_EFORMAT:
 * sizes, types or places that contradict each other or the file's length. */
int hzp_safetensors_open(const char *path, struct hzp_safetensors **ret,
                         struct hzp_err_text *reterr);
/* The same, except that bytes of the data that no tensor claims are no error: rethole (never NULL)
 * describes the first of them, or has an empty text.  For callers that know the expected tensors
 * and can name the missing one. */
int hzp_safetensors_open_holed(const char *path, struct hzp_safetensors **ret,
                               struct hzp_err_text *rethole, struct hzp_err_text *reterr);
void hzp_safetensors_close(struct hzp_safetensors *st); /* NULL: no effect */
int32_t hzp_safetensors_count(const struct hzp_safetensors *st);
const struct hzp_st_tensor *hzp_safetensors_at(const struct hzp_safetensors *st, int32_t i);
const struct hzp_st_tensor *hzp_safetensors_find(const struct hzp_safetensors *st,
                                                 const char *name);
/* Copies elements [first, first + count) of the tensor, as they are on disk.  HZP_EIO: the file
 * cannot be read, or has become shorter since it was opened. */
int hzp_safetensors_read(const struct hzp_st_tensor *tensor, int64_t first, int64_t count,
                         void *ret, struct hzp_err_text *reterr);
/* A value of __metadata__, or NULL. */
const char *hzp_safetensors_meta(const struct hzp_safetensors *st, const char *key);

/* Writing: declare every tensor, then pass their data in that order, then finish.  The file is
 * written under a temporary name and renamed after fsync, so `path` never holds a partial file. */
struct hzp_st_writer;
/* HZP_EIO: the temporary file cannot be created. */
int hzp_st_writer_open(const char *path, struct hzp_st_writer **ret, struct hzp_err_text *reterr);
/* After data were passed: only for a key that has a value of the same length. */
void hzp_st_writer_meta(struct hzp_st_writer *w, const char *key, const char *value);
void hzp_st_writer_declare(struct hzp_st_writer *w, const char *name, enum hzp_disk_type type,
                           int32_t dims, const int64_t *shape);
int hzp_st_writer_data(struct hzp_st_writer *w, const void *data, size_t size,
                       struct hzp_err_text *reterr); /* in pieces of any size, in order */
int hzp_st_writer_finish(struct hzp_st_writer *w, struct hzp_err_text *reterr); /* frees w */
/* removes the temporary file; NULL: no effect */
void hzp_st_writer_abandon(struct hzp_st_writer *w);
