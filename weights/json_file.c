/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/json_file.h"

#include "base/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int hzp_open_regular(const char *path, uint64_t *ret_size, struct hzp_err_text *reterr)
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

/* Reads size bytes; returns fewer if the file shrinks meanwhile. */
static int read_whole(int fd, const char *path, char *text, size_t size, size_t *ret_got,
                      struct hzp_err_text *reterr)
{
    size_t got = 0;
    while (got < size) {
        ssize_t n = read(fd, text + got, size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno));
        if (n == 0)
            break;
        got += (size_t)n;
    }
    *ret_got = got;
    return HZP_OK;
}

int hzp_json_read(const char *path, size_t size_max, json_t **ret, struct hzp_err_text *reterr)
{
    uint64_t size;
    int fd = hzp_open_regular(path, &size, reterr);
    if (fd < 0)
        return fd;
    char *text = NULL;
    json_t *root = NULL;
    struct hzp_json_error error;
    size_t got = 0;
    int r = HZP_OK;
    if (size > size_max) {
        r = hzp_fail(reterr, HZP_EFORMAT, "%s: %llu bytes; at most %zu are read", path,
                     (unsigned long long)size, size_max);
        goto out;
    }
    text = hzp_xmalloc((size_t)size + 1);
    HZP_TRY_GOTO(read_whole(fd, path, text, (size_t)size, &got, reterr));
    root = hzp_json_load(text, got, HZP_JSON_ANY | HZP_JSON_UNIQUE | HZP_JSON_PYTHON, NULL, &error);
    if (!root)
        r = hzp_fail(reterr, HZP_EFORMAT, "%s: line %d: %s", path, error.line, error.text);
    else if (!json_is_object(root))
        r = hzp_fail(reterr, HZP_EFORMAT, "%s: not a JSON object", path);
out:
    close(fd);
    free(text);
    if (r < 0)
        json_decref(root);
    else
        *ret = root;
    return r;
}
