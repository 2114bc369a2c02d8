/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/safetensors.h"

#include "base/file.h"
#include "base/json.h"

#include <fcntl.h>

struct hzp_st_writer {
    char *path, *temporary;
    int fd;
    json_t *header, *meta;
    uint64_t declared, written; /* bytes of data */
    size_t header_bytes;        /* in the file; 0: not yet */
    bool changed, failed;       /* changed: the header is to be written again */
};

static int fail_io(struct hzp_st_writer *w, const char *what, struct hzp_err_text *reterr)
{
    w->failed = true;
    return hzp_fail(reterr, HZP_EIO, "%s: %s: %s", w->temporary, what, strerror(errno));
}

int hzp_st_writer_open(const char *path, struct hzp_st_writer **ret, struct hzp_err_text *reterr)
{
    struct hzp_st_writer *w = hzp_xcalloc(1, sizeof(*w));
    w->path = hzp_xstrdup(path);
    /* A fixed temporary name: a file left behind by a killed process is overwritten next time. */
    size_t size = strlen(path) + 5;
    w->temporary = hzp_xmalloc(size);
    snprintf(w->temporary, size, "%s.tmp", path);
    w->header = json_object();
    w->meta = json_object();
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        int r = fail_io(w, "cannot be written", reterr);
        hzp_st_writer_abandon(w);
        return r;
    }
    *ret = w;
    return HZP_OK;
}

void hzp_st_writer_meta(struct hzp_st_writer *w, const char *key, const char *value)
{
    const char *then = json_string_value(json_object_get(w->meta, key));
    HZP_ASSERT(!w->header_bytes || (then && strlen(then) == strlen(value)));
    w->changed = w->header_bytes;
    HZP_ASSERT(json_object_set_new(w->meta, key, json_string(value)) == 0);
}

void hzp_st_writer_declare(struct hzp_st_writer *w, const char *name, enum hzp_disk_type type,
                           int32_t dims, const int64_t *shape)
{
    HZP_ASSERT(!w->header_bytes && dims >= 0 && dims <= HZP_DIMS_MAX);
    HZP_ASSERT(!json_object_get(w->header, name));
    json_t *list = json_array();
    uint64_t bytes = hzp_disk_type_size(type);
    for (int32_t i = 0; i < dims; i++) {
        HZP_ASSERT(shape[i] >= 0 && !__builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes));
        json_array_append_new(list, json_integer(shape[i]));
    }
    uint64_t begin = w->declared;
    HZP_ASSERT(!__builtin_add_overflow(begin, bytes, &w->declared));
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", hzp_disk_type_name(type), "shape",
                              list, "data_offsets", (json_int_t)begin, (json_int_t)w->declared);
    HZP_ASSERT(entry && json_object_set_new(w->header, name, entry) == 0);
}

static int write_all(struct hzp_st_writer *w, const void *data, size_t size,
                     struct hzp_err_text *reterr)
{
    return hzp_file_write(w->fd, data, size) < 0 ? fail_io(w, "write", reterr) : HZP_OK;
}

/* The header, padded with spaces so that the data begin at a multiple of 8. */
static int write_header(struct hzp_st_writer *w, struct hzp_err_text *reterr)
{
    unsigned char length[8];
    if (json_object_size(w->meta)) {
        json_t *whole = json_pack("{s:O}", "__metadata__", w->meta);
        json_object_update(whole, w->header);
        json_decref(w->header);
        w->header = whole;
    }
    HZP_FREED char *text = json_dumps(w->header, JSON_COMPACT);
    HZP_ASSERT(text);
    size_t used = strlen(text), padded = HZP_ROUND_UP(used, (size_t)8);
    text = hzp_xrealloc(text, padded + 1);
    memset(text + used, ' ', padded - used);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    HZP_ASSERT(!w->header_bytes || w->header_bytes == padded);
    w->header_bytes = padded;
    HZP_TRY(write_all(w, length, sizeof(length), reterr));
    return write_all(w, text, padded, reterr);
}

int hzp_st_writer_data(struct hzp_st_writer *w, const void *data, size_t size,
                       struct hzp_err_text *reterr)
{
    if (!w->header_bytes)
        HZP_TRY(write_header(w, reterr));
    HZP_ASSERT(size <= w->declared - w->written);
    w->written += size;
    return write_all(w, data, size, reterr);
}

int hzp_st_writer_finish(struct hzp_st_writer *w, struct hzp_err_text *reterr)
{
    int r = HZP_OK;
    HZP_ASSERT(w->failed || w->written == w->declared);
    if (w->failed)
        r = hzp_fail(reterr, HZP_EIO, "%s: an earlier write failed", w->temporary);
    else if (w->changed && lseek(w->fd, 0, SEEK_SET) < 0)
        r = fail_io(w, "seek", reterr);
    else if (!w->header_bytes || w->changed)
        r = write_header(w, reterr);
    if (r == HZP_OK && fsync(w->fd) < 0)
        r = fail_io(w, "fsync", reterr);
    if (r == HZP_OK) {
        int fd = w->fd;
        w->fd = -1;
        if (close(fd) < 0)
            r = fail_io(w, "close", reterr);
    }
    if (r == HZP_OK && rename(w->temporary, w->path) < 0)
        r = fail_io(w, "rename", reterr);
    if (r == HZP_OK)
        r = hzp_file_sync_parent(w->path) < 0 ? fail_io(w, "sync of the directory", reterr)
                                              : HZP_OK;
    hzp_st_writer_abandon(w); /* after the rename there is no temporary file to remove */
    return r;
}

void hzp_st_writer_abandon(struct hzp_st_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    unlink(w->temporary);
    json_decref(w->header);
    json_decref(w->meta);
    free(w->path);
    free(w->temporary);
    free(w);
}
