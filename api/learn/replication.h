/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/replication.h - versions travel between servers: what is on disk is read piece by
 * piece, and what another one sends is kept until a job activates it (api/learn/upload.h).
 *
 * Thread: any but the engine's, once the state is open: all functions read or write the disk.
 */
#pragma once

#include "api/learn/upload.h"
#include "api/learn/versions.h"

/* What the version consists of; the caller ends *ret.  It must be on disk.  The first time its
 * weights are read as a whole; the newest few manifests are kept.  HZP_ENOENT; HZP_EBUSY: another
 * one is being made. */
int hzp_state_manifest(struct hzp_state *s, uint64_t id, struct hzp_manifest *ret,
                       struct hzp_err_text *reterr);

/* Bytes of a unit, or of a text file, of a version on disk: at most max from `at` on.  *ret_bytes
 * 0: its end.  HZP_ENOENT: there is no such version, unit or file; HZP_EINVAL: `at` is no multiple
 * of 8. */
int hzp_state_read_unit(struct hzp_state *s, uint64_t id, int64_t unit, uint64_t at, void *ret,
                        size_t max, size_t *ret_bytes, struct hzp_err_text *reterr);
int hzp_state_read_text(struct hzp_state *s, uint64_t id, const char *name, uint64_t at, void *ret,
                        size_t max, size_t *ret_bytes, struct hzp_err_text *reterr);

/* What weights must agree with that are sent here; the texts are fixed once the state is open. */
struct hzp_replica {
    const struct hzp_layout *layout;
    enum hzp_dtype type;
    char shapes[HZP_FINGERPRINT_SIZE], tokenizer[HZP_FINGERPRINT_SIZE];
};
/* HZP_EINVAL: nothing is saved (--state none). */
int hzp_state_replica(struct hzp_state *s, struct hzp_replica *ret, struct hzp_err_text *reterr);

/* Begins an upload; units that the newest version on disk has are taken from there.  HZP_EINVAL:
 * the manifest is of another model; HZP_EBUSY; HZP_EUNSUP: with several ranks. */
int hzp_state_upload_begin(struct hzp_state *s, const struct hzp_manifest *m,
                           struct hzp_err_text *reterr);
/* The pieces go to the upload itself.  HZP_EINVAL: nothing is saved. */
int hzp_state_upload(struct hzp_state *s, struct hzp_upload **ret, struct hzp_err_text *reterr);
/* The activation is a job of kind HZP_JOB_PUSH (hzp_state_ask). */
