/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const size_t write_most = (size_t)1 << 30; /* by one call of the system */

int hzp_file_write(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t n = write(fd, at, HZP_MIN(size, write_most));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n < 0 ? errno : ENOSPC;
            return HZP_EIO;
        }
        at += n;
        size -= (size_t)n;
    }
    return HZP_OK;
}

int hzp_file_put(const char *path, const void *data, size_t size, struct hzp_err_text *reterr)
{
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    if (n < 0 || (size_t)n >= sizeof(temporary))
        return hzp_fail(reterr, HZP_EINVAL, "%s: the path is too long", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot be written: %s", temporary, strerror(errno));
    bool written = hzp_file_write(fd, data, size) >= 0 && fsync(fd) == 0;
    int error = errno;
    if (close(fd) < 0 && written) {
        written = false;
        error = errno;
    }
    if (written && rename(temporary, path) < 0) {
        written = false;
        error = errno;
    }
    if (written)
        return HZP_OK;
    unlink(temporary);
    return hzp_fail(reterr, HZP_EIO, "%s: cannot be written: %s", path, strerror(error));
}

int hzp_file_sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return HZP_EIO;
    int r = fsync(fd) < 0 && errno != EINVAL ? HZP_EIO : HZP_OK;
    int error = errno;
    close(fd);
    errno = error;
    return r;
}

int hzp_file_sync_parent(const char *path)
{
    char parent[PATH_MAX];
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    if (length >= sizeof(parent)) {
        errno = ENAMETOOLONG;
        return HZP_EIO;
    }
    if (length)
        memcpy(parent, path, length);
    parent[length] = '\0';
    return hzp_file_sync_dir(length ? parent : ".");
}
