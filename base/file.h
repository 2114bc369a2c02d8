/* SPDX-License-Identifier: Apache-2.0 */
/* base/file.h - files: read as a whole, and on disk when a call that writes returns.
 *
 * Invariant: a file that hzp_file_put() writes is at its path whole or not at all, also after a
 * power cut; its name is there after a power cut once its directory was synced.
 *
 * Thread: any.
 */
#pragma once

#include "base/err.h"

#include <dirent.h>

/* Close local ones (HZP_ENDED); NULL: no effect. */
void hzp_file_end(FILE **file);
void hzp_dir_end(DIR **dir);

/* Opens a regular file for reading; *ret_size is its size in bytes.  Returns the descriptor, which
 * the caller closes, or HZP_ENOENT, HZP_EIO (also for a directory or a pipe). */
int hzp_file_open(const char *path, uint64_t *ret_size, struct hzp_err_text *reterr);

/* Reads a regular file as a whole, with a 0 behind its bytes; the caller frees *ret.  HZP_ENOENT,
 * HZP_EIO; HZP_EFORMAT: it has more than `most` bytes; HZP_ENOMEM. */
int hzp_file_read(const char *path, uint64_t most, char **ret, size_t *ret_bytes,
                  struct hzp_err_text *reterr);

/* Writes all of it, in several calls where the system takes less.  HZP_EIO: errno says why. */
int hzp_file_write(int fd, const void *data, size_t size);

/* Reads `size` bytes from `at` on, fewer only at the file's end; how many, or HZP_EIO: errno says
 * why. */
int64_t hzp_file_read_at(int fd, void *ret, size_t size, uint64_t at);

/* Writes the file under the name PATH.tmp, syncs it and renames it.  HZP_EIO names the file; what
 * was at `path` before is still there. */
int hzp_file_put(const char *path, const void *data, size_t size, struct hzp_err_text *reterr);
/* The same by way of another name in its directory: for what several may write at a time.  mode: of
 * a new file, less what the umask takes. */
int hzp_file_put_by(const char *path, const char *temporary, unsigned mode, const void *data,
                    size_t size, struct hzp_err_text *reterr);

/* Syncs a directory's entries.  HZP_EIO: errno says why.  A file system that cannot do it (EINVAL)
 * is no error. */
int hzp_file_sync_dir(const char *path);
/* The same for the directory that `path` is in. */
int hzp_file_sync_parent(const char *path);

/* Creates path and its missing parents. *ret_existed (may be NULL): how many bytes of the path
 * named an existing directory before; set after a failure, too.  HZP_EIO: errno says why. */
int hzp_dir_make(const char *path, size_t *ret_existed, struct hzp_err_text *reterr);

/* Removes the directories that hzp_dir_make created, as far as they are empty. */
void hzp_dir_unmake(const char *path, size_t existed);
