/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

void hzp_file_end(FILE **file)
{
    if (*file)
        fclose(*file);
}

void hzp_dir_end(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

int hzp_file_open(const char *path, uint64_t *ret_size, struct hzp_err_text *reterr)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe without a writer would block forever. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hzp_fail(reterr, errno == ENOENT || errno == ENOTDIR ? HZP_ENOENT : HZP_EIO,
                        "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0) {
        int error = errno;
        close(fd);
        return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(error));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return hzp_fail(reterr, HZP_EIO, "%s: is %s, not a regular file", path,
                        S_ISDIR(st.st_mode) ? "a directory" : "a device or a pipe");
    }
    *ret_size = (uint64_t)st.st_size;
    return fd;
}

static int read_all(int fd, const char *path, char *text, size_t size, struct hzp_err_text *reterr)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = read(fd, text + got, size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hzp_fail(reterr, HZP_EIO, "%s: %s", path,
                            n ? strerror(errno) : "has become shorter while it was read");
        got += (size_t)n;
    }
    text[size] = 0;
    return HZP_OK;
}

int hzp_file_read(const char *path, uint64_t most, char **ret, size_t *ret_bytes,
                  struct hzp_err_text *reterr)
{
    uint64_t size;
    int fd = hzp_file_open(path, &size, reterr);
    HZP_TRY(fd);
    char *text = size <= most && size < SIZE_MAX ? malloc((size_t)size + 1) : NULL;
    int r = text          ? read_all(fd, path, text, (size_t)size, reterr)
            : size > most ? hzp_fail(reterr, HZP_EFORMAT, "%s: %llu bytes; at most %llu are read",
                                     path, (unsigned long long)size, (unsigned long long)most)
                          : hzp_fail(reterr, HZP_ENOMEM, "%s: not enough memory for its %llu bytes",
                                     path, (unsigned long long)size);
    close(fd);
    if (r < 0) {
        free(text);
        return r;
    }
    *ret = text;
    *ret_bytes = (size_t)size;
    return HZP_OK;
}

static const size_t write_most = (size_t)1 << 30; /* by one call of the system */

int64_t hzp_file_read_at(int fd, void *ret, size_t size, uint64_t at)
{
    size_t got = 0;
    while (got < size) {
        ssize_t n =
            pread(fd, (char *)ret + got, HZP_MIN(size - got, (size_t)1 << 30), (off_t)(at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? HZP_EIO : (int64_t)got;
        got += (size_t)n;
    }
    return (int64_t)got;
}

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

int hzp_file_put_by(const char *path, const char *temporary, unsigned mode, const void *data,
                    size_t size, struct hzp_err_text *reterr)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
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

int hzp_file_put(const char *path, const void *data, size_t size, struct hzp_err_text *reterr)
{
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    if (n < 0 || (size_t)n >= sizeof(temporary))
        return hzp_fail(reterr, HZP_EINVAL, "%s: the path is too long", path);
    return hzp_file_put_by(path, temporary, 0666, data, size, reterr);
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

static int no_dir(const char *path, int error, struct hzp_err_text *reterr)
{
    hzp_fail(reterr, HZP_EIO, "%s: cannot make the directory: %s", path, strerror(error));
    errno = error;
    return HZP_EIO;
}

int hzp_dir_make(const char *path, size_t *ret_existed, struct hzp_err_text *reterr)
{
    char part[PATH_MAX];
    size_t length = strlen(path), none, *existed = ret_existed ? ret_existed : &none;
    bool made = false;
    *existed = 0;
    if (!length || length >= sizeof(part)) {
        errno = EINVAL;
        return hzp_fail(reterr, HZP_EINVAL, "%s: not a valid directory name", path);
    }
    memcpy(part, path, length + 1);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char was = *p;
        *p = '\0';
        int error = mkdir(part, 0777) < 0 ? errno : 0;
        if (error && error != EEXIST)
            return no_dir(part, error, reterr);
        /* Else the directory, and the log in it, may be missing after a power cut.  Its parent may
         * be closed to reading. */
        if (!error && hzp_file_sync_parent(part) < 0 && errno == EIO)
            return no_dir(part, EIO, reterr);
        made = made || !error;
        if (!made)
            *existed = (size_t)(p - part);
        *p = was;
        if (!was)
            break;
    }
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) {
        hzp_fail(reterr, HZP_EIO, "%s: not a directory", path);
        errno = ENOTDIR;
        return HZP_EIO;
    }
    return HZP_OK;
}

void hzp_dir_unmake(const char *path, size_t existed)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof(part))
        return;
    memcpy(part, path, length + 1);
    for (;;) {
        while (length > existed && part[length - 1] == '/')
            part[--length] = '\0';
        if (length <= existed || rmdir(part) < 0)
            return;
        while (length > existed && part[length - 1] != '/')
            part[--length] = '\0';
    }
}
