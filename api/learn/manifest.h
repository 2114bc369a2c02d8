/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/manifest.h - what a version consists of, so that a program which has some of its units
 * fetches or sends only the others.
 *
 * A unit travels as its elements in memory (weights/layout.h): all tensors of one layer, of the
 * embedding or of the head, with the padding between them, which is zero.  Its checksum is
 * hzp_unit_checksum(); their sum modulo 2^64 is the version's.  Units whose checksum and place are
 * equal are equal.  Beside them travel the files that a model directory has: configuration,
 * tokenizer, chat template.
 *
 * Thread: any; plain data.
 */
#pragma once

#include "api/learn/fingerprint.h"
#include "weights/units.h"

enum {
    HZP_MANIFEST_FILES_MAX = 16,
    HZP_MANIFEST_UNITS_MAX = 4096,
    HZP_TRANSFER_PIECE = 4 << 20, /* bytes that travel in one request, at most */
};
static const uint64_t HZP_MANIFEST_FILE_BYTES_MAX = (uint64_t)256 << 20;

struct hzp_manifest_file {
    char name[64]; /* one of hzp_model_text_name() */
    uint64_t bytes, checksum;
};

struct hzp_manifest {
    uint64_t version; /* version on the server that made it; 0: it describes a directory */
    uint64_t checksum;
    enum hzp_dtype type; /* F32 or BF16 */
    char shapes[HZP_FINGERPRINT_SIZE], tokenizer[HZP_FINGERPRINT_SIZE];
    uint64_t *unit; /* [units] checksums */
    int32_t units, files;
    struct hzp_manifest_file file[HZP_MANIFEST_FILES_MAX];
};

/* Makes the manifest of a model directory, whose weights are converted to the type: reads all of
 * it, a piece at a time.  Errors as hzp_model_open() and hzp_model_read(); HZP_ECANCELED soon after
 * stop was raised (NULL: it is not). */
int hzp_manifest_make(const char *dir, const struct hzp_layout *layout, enum hzp_dtype type,
                      const atomic_bool *stop, struct hzp_manifest *ret,
                      struct hzp_err_text *reterr);
void hzp_manifest_copy(struct hzp_manifest *ret, const struct hzp_manifest *from);
void hzp_manifest_fini(struct hzp_manifest *m);

/* As JSON: a new object, with name and shape of each unit's tensors. */
json_t *hzp_manifest_json(const struct hzp_manifest *m, const struct hzp_layout *layout);
/* HZP_EFORMAT names the field. */
int hzp_manifest_read(const json_t *json, struct hzp_manifest *ret, struct hzp_err_text *reterr);

/* HZP_EINVAL: it is not of this layout, type and tokenizer; the text says what differs. */
int hzp_manifest_agrees(const struct hzp_manifest *m, const struct hzp_layout *layout,
                        enum hzp_dtype type, const char *tokenizer, struct hzp_err_text *reterr);

uint64_t hzp_manifest_unit_bytes(const struct hzp_layout *layout, enum hzp_dtype type, int32_t u);
/* What bytes [at, at + n) of unit u add to its checksum; both multiples of 8. */
uint64_t hzp_manifest_sum(const struct hzp_layout *layout, enum hzp_dtype type, int32_t u,
                          uint64_t at, const void *data, size_t n);

/* 16 hexadecimal digits. */
void hzp_checksum_text(uint64_t checksum, char ret[20]);
bool hzp_checksum_read(const char *text, uint64_t *ret);

/* "F32", "BF16"; read: false: neither. */
const char *hzp_manifest_type_name(enum hzp_dtype type);
bool hzp_manifest_type_read(const char *text, enum hzp_dtype *ret);

/* Reads at most max bytes of dir/name from `at` on; *ret_bytes 0: its end.  HZP_EIO, HZP_ENOENT. */
int hzp_manifest_read_file(const char *dir, const char *name, uint64_t at, void *ret, size_t max,
                           size_t *ret_bytes, struct hzp_err_text *reterr);
