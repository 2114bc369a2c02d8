/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/upload.h - weights that another server or a directory sends, piece by piece, until all
 * of them are here and can be activated.
 *
 *     STATE/upload/unit-U     unit U as it travels (api/learn/manifest.h), or its first bytes
 *
 * One upload at a time, named by the checksum of its manifest; another one takes its place, and
 * keeps the units that it has in common with it.  What is there survives a restart: an upload that
 * was interrupted anywhere is begun again with the same manifest and goes on.  A unit counts once
 * all its bytes are here and its checksum is right; both are checked again when it is activated.
 *
 * Bounds: the units are those of this server's model, so an upload takes as many bytes on disk as
 * one version.
 *
 * Thread: any (one lock inside); it reads and writes the disk.
 */
#pragma once

#include "api/learn/manifest.h"

struct hzp_upload;

/* state_dir and layout are borrowed. */
struct hzp_upload *hzp_upload_create(const char *state_dir, const struct hzp_layout *layout,
                                     enum hzp_dtype type);
void hzp_upload_destroy(struct hzp_upload *up); /* leaves the files; NULL: no effect */

/* Begins the upload of these weights, which agree with the model (hzp_manifest_agrees).  `have`
 * (NULL: none): the manifest of the model directory have_dir; units that are equal there, and
 * can be read, are copied from it.  HZP_EBUSY: it is being activated; HZP_EIO. */
int hzp_upload_begin(struct hzp_upload *up, const struct hzp_manifest *m,
                     const struct hzp_manifest *have, const char *have_dir,
                     struct hzp_err_text *reterr);

/* How many bytes of each unit are here: ret [units].  HZP_ENOENT: that is not the upload in
 * progress; HZP_EBUSY. */
int hzp_upload_received(struct hzp_upload *up, uint64_t checksum, uint64_t *ret,
                        struct hzp_err_text *reterr);

/* Adds bytes [at, at + n) of unit u; *ret_received: how many are here now.  HZP_EINVAL: they do not
 * begin where those that are here end, or go beyond the unit; or the unit is whole and its checksum
 * is wrong: it is removed.  HZP_ENOENT as above; HZP_EBUSY; HZP_EIO. */
int hzp_upload_write(struct hzp_upload *up, uint64_t checksum, int32_t u, uint64_t at,
                     const void *data, size_t n, uint64_t *ret_received,
                     struct hzp_err_text *reterr);

/* From now until release nothing is changed.  HZP_ENOENT; HZP_EINVAL: units are missing;
 * HZP_EBUSY: it is held already. */
int hzp_upload_hold(struct hzp_upload *up, uint64_t checksum, struct hzp_err_text *reterr);
/* used: the upload is done with, and removed. */
void hzp_upload_release(struct hzp_upload *up, bool used);
/* While held: reads unit u of the upload into host memory; a hzp_unit_fill_fn, ctx is a struct
 * hzp_upload_fill.  HZP_EFORMAT: a checksum is wrong, or an element is not finite. */
struct hzp_upload_fill {
    struct hzp_upload *up;
    uint64_t checksum; /* over the units so far */
    struct hzp_err_text *reterr;
};
int hzp_upload_fill(void *ctx, int32_t u, const struct hzp_unit_view *host);
