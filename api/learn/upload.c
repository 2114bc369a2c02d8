/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/upload.h"

#include "api/learn/checkpoint.h"
#include "base/file.h"
#include "weights/model_dir.h"

#include <fcntl.h>

struct hzp_upload {
    /* fixed */
    const struct hzp_layout *layout;
    enum hzp_dtype type;
    char *dir;
    /* under lock, or with held set by the one who set it */
    struct hzp_lock lock;
    struct hzp_manifest m; /* unit NULL: no upload is in progress */
    uint64_t *received;    /* [units] bytes of each; all of them: it is whole and checked */
    bool held;
};

static uint64_t unit_bytes(const struct hzp_upload *up, int32_t u)
{
    return hzp_manifest_unit_bytes(up->layout, up->type, u);
}

static void unit_path(const struct hzp_upload *up, int32_t u, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/unit-%d", up->dir, u);
}

struct hzp_upload *hzp_upload_create(const char *state_dir, const struct hzp_layout *layout,
                                     enum hzp_dtype type)
{
    char dir[PATH_MAX];
    struct hzp_upload *up = hzp_xcalloc(1, sizeof(*up));
    snprintf(dir, sizeof(dir), "%s/upload", state_dir);
    up->dir = hzp_xstrdup(dir);
    up->layout = layout;
    up->type = type;
    up->received = hzp_xcalloc((size_t)layout->units + 1, sizeof(*up->received));
    hzp_lock_init(&up->lock, HZP_LOCK_UPLOAD);
    return up;
}

void hzp_upload_destroy(struct hzp_upload *up)
{
    if (!up)
        return;
    hzp_lock_fini(&up->lock);
    hzp_manifest_fini(&up->m);
    free(up->received);
    free(up->dir);
    free(up);
}

/* --- Files ------------------------------------------------------------------------------------ */

static int fail_io(const char *path, struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno));
}

/* The checksum of a unit's file, and its size; size 0: there is none. */
static int check_file(const struct hzp_upload *up, int32_t u, uint64_t *ret_bytes,
                      uint64_t *ret_checksum, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_err_text why;
    uint64_t size = 0;
    *ret_bytes = *ret_checksum = 0;
    unit_path(up, u, path);
    int fd = hzp_file_open(path, &size, &why), r = HZP_OK;
    if (fd < 0)
        return fd == HZP_ENOENT ? HZP_OK : hzp_fail(reterr, fd, "%s", why.text);
    HZP_FREED char *buffer = hzp_xmalloc(HZP_TRANSFER_PIECE);
    *ret_bytes = size;
    for (uint64_t at = 0; size == unit_bytes(up, u) && at < size && r >= 0;) {
        size_t n = (size_t)HZP_MIN(size - at, (uint64_t)HZP_TRANSFER_PIECE);
        if (hzp_file_read_at(fd, buffer, n, at) != (int64_t)n)
            r = fail_io(path, reterr);
        else
            *ret_checksum += hzp_manifest_sum(up->layout, up->type, u, at, buffer, n);
        at += n;
    }
    close(fd);
    return r;
}

/* Writes n bytes at `at` to the unit's file, whose end that is. */
static int write_part(const struct hzp_upload *up, int32_t u, uint64_t at, const char *data,
                      size_t n, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    unit_path(up, u, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_io(path, reterr);
    int r = HZP_OK;
    if (ftruncate(fd, (off_t)at) < 0 || hzp_file_write(fd, data, n) < 0)
        r = fail_io(path, reterr);
    if (close(fd) < 0 && r >= 0)
        r = fail_io(path, reterr);
    return r;
}

static void remove_unit(struct hzp_upload *up, int32_t u)
{
    char path[PATH_MAX];
    unit_path(up, u, path);
    unlink(path);
    up->received[u] = 0;
}

/* All bytes are there. */
static int complete(struct hzp_upload *up, int32_t u, struct hzp_err_text *reterr)
{
    uint64_t bytes, checksum;
    HZP_TRY(check_file(up, u, &bytes, &checksum, reterr));
    if (bytes == unit_bytes(up, u) && checksum == up->m.unit[u])
        return HZP_OK;
    remove_unit(up, u);
    return hzp_fail(reterr, HZP_EINVAL, "unit %d: its checksum is wrong: send it again", u);
}

/* --- Beginning -------------------------------------------------------------------------------- */

/* Copies a unit from a model directory. */
static int copy_unit(struct hzp_upload *up, int32_t u, struct hzp_model_reader *reader,
                     struct hzp_err_text *reterr)
{
    size_t size = hzp_dtype_size(up->type), most = HZP_TRANSFER_PIECE / size;
    size_t elements = up->layout->unit[u].elements;
    HZP_FREED char *buffer = hzp_xmalloc(HZP_TRANSFER_PIECE);
    for (size_t at = 0; at < elements; at += most) {
        size_t n = HZP_MIN(elements - at, most);
        HZP_TRY(hzp_model_read(reader, u, at, n, buffer, reterr));
        HZP_TRY(write_part(up, u, at * size, buffer, n * size, reterr));
    }
    return complete(up, u, reterr);
}

/* What is in the directory of the unit already: all of it, or the beginning of these weights'
 * unit. */
static int look_at_unit(struct hzp_upload *up, int32_t u, bool same, struct hzp_err_text *reterr)
{
    uint64_t bytes, checksum;
    HZP_TRY(check_file(up, u, &bytes, &checksum, reterr));
    if (bytes == unit_bytes(up, u) && checksum == up->m.unit[u])
        up->received[u] = bytes;
    else if (same && bytes && bytes < unit_bytes(up, u))
        up->received[u] = bytes / 8 * 8; /* whole words travel */
    else
        remove_unit(up, u);
    return HZP_OK;
}

/* The checksum of the weights whose pieces are in the directory. */
static bool is_same(const struct hzp_upload *up)
{
    char path[PATH_MAX], now[20];
    HZP_FREED char *then = NULL;
    struct hzp_err_text text;
    size_t n = 0;
    snprintf(path, sizeof(path), "%s/checksum", up->dir);
    hzp_checksum_text(up->m.checksum, now);
    return hzp_file_read(path, sizeof(now), &then, &n, &text) >= 0 && !strcmp(then, now);
}

static int write_checksum(const struct hzp_upload *up, struct hzp_err_text *reterr)
{
    char path[PATH_MAX], text[20];
    snprintf(path, sizeof(path), "%s/checksum", up->dir);
    hzp_checksum_text(up->m.checksum, text);
    return hzp_file_put(path, text, strlen(text), reterr);
}

static int begin(struct hzp_upload *up, const struct hzp_manifest *have, const char *have_dir,
                 struct hzp_err_text *reterr)
{
    struct hzp_model_reader *reader = NULL;
    HZP_TRY(hzp_dir_make(up->dir, NULL, reterr));
    bool same = is_same(up);
    int r = HZP_OK;
    for (int32_t u = 0; u < up->m.units && r >= 0; u++) {
        up->received[u] = 0;
        r = look_at_unit(up, u, same, reterr);
    }
    if (r >= 0)
        r = write_checksum(up, reterr);
    /* What cannot be read there, because it is damaged or was removed meanwhile, is sent. */
    if (r >= 0 && have && hzp_model_open(have_dir, up->layout, up->type, &reader, reterr) < 0)
        have = NULL;
    for (int32_t u = 0; have && u < up->m.units && r >= 0; u++) {
        if (up->received[u] == unit_bytes(up, u) || have->unit[u] != up->m.unit[u])
            continue;
        if (copy_unit(up, u, reader, reterr) >= 0)
            up->received[u] = unit_bytes(up, u);
        else
            remove_unit(up, u);
    }
    hzp_model_close(reader);
    return r;
}

static int busy(struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EBUSY,
                    "an upload is being begun or activated: ask again when that has ended");
}

int hzp_upload_begin(struct hzp_upload *up, const struct hzp_manifest *m,
                     const struct hzp_manifest *have, const char *have_dir,
                     struct hzp_err_text *reterr)
{
    HZP_ASSERT(m->units == up->layout->units && m->type == up->type);
    hzp_lock_take(&up->lock);
    int r = up->held ? busy(reterr) : HZP_OK;
    up->held = true; /* a concurrent request is refused at once, and does not wait for the disk */
    hzp_lock_release(&up->lock);
    HZP_TRY(r);
    hzp_manifest_fini(&up->m);
    hzp_manifest_copy(&up->m, m);
    r = begin(up, have, have_dir, reterr);
    hzp_lock_take(&up->lock);
    if (r < 0)
        hzp_manifest_fini(&up->m);
    up->held = false;
    hzp_lock_release(&up->lock);
    return r;
}

/* --- Pieces ----------------------------------------------------------------------------------- */

/* Under lock: whether pieces of the upload may come. */
static int check_name(const struct hzp_upload *up, uint64_t checksum, struct hzp_err_text *reterr)
{
    if (up->held)
        return busy(reterr);
    return up->m.unit && up->m.checksum == checksum
               ? HZP_OK
               : hzp_fail(reterr, HZP_ENOENT,
                          "no upload of these weights is in progress: begin it with their "
                          "manifest");
}

int hzp_upload_received(struct hzp_upload *up, uint64_t checksum, uint64_t *ret,
                        struct hzp_err_text *reterr)
{
    HZP_LOCKED(&up->lock);
    HZP_TRY(check_name(up, checksum, reterr));
    memcpy(ret, up->received, (size_t)up->m.units * sizeof(*ret));
    return HZP_OK;
}

static int write_piece(struct hzp_upload *up, int32_t u, uint64_t at, const void *data, size_t n,
                       struct hzp_err_text *reterr)
{
    if (u < 0 || u >= up->m.units)
        return hzp_fail(reterr, HZP_EINVAL, "unit %d: there are %d", u, up->m.units);
    uint64_t bytes = unit_bytes(up, u);
    if (at != up->received[u])
        return hzp_fail_param(reterr, HZP_EINVAL, "offset",
                              "offset: unit %d goes on at %" PRIu64 ", not at %" PRIu64, u,
                              up->received[u], at);
    if (!n || n > bytes - at)
        return hzp_fail(reterr, HZP_EINVAL, "unit %d: %zu bytes were sent, %" PRIu64 " are missing",
                        u, n, bytes - at);
    HZP_TRY(write_part(up, u, at, data, n, reterr));
    if (at + n == bytes)
        HZP_TRY(complete(up, u, reterr));
    up->received[u] = at + n;
    return HZP_OK;
}

int hzp_upload_write(struct hzp_upload *up, uint64_t checksum, int32_t u, uint64_t at,
                     const void *data, size_t n, uint64_t *ret_received,
                     struct hzp_err_text *reterr)
{
    HZP_LOCKED(&up->lock);
    HZP_TRY(check_name(up, checksum, reterr));
    HZP_TRY(write_piece(up, u, at, data, n, reterr));
    *ret_received = up->received[u];
    return HZP_OK;
}

/* --- Activating ------------------------------------------------------------------------------- */

int hzp_upload_hold(struct hzp_upload *up, uint64_t checksum, struct hzp_err_text *reterr)
{
    HZP_LOCKED(&up->lock);
    HZP_TRY(check_name(up, checksum, reterr));
    for (int32_t u = 0; u < up->m.units; u++)
        if (up->received[u] != unit_bytes(up, u))
            return hzp_fail(reterr, HZP_EINVAL, "unit %d has not been sent yet", u);
    up->held = true;
    return HZP_OK;
}

void hzp_upload_release(struct hzp_upload *up, bool used)
{
    HZP_LOCKED(&up->lock);
    up->held = false;
    if (used) {
        hzp_checkpoint_remove(up->dir);
        hzp_manifest_fini(&up->m);
    }
}

int hzp_upload_fill(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    struct hzp_upload_fill *fill = ctx;
    struct hzp_upload *up = fill->up; /* held: nothing of it changes */
    char path[PATH_MAX];
    uint64_t size = 0, bytes = unit_bytes(up, u);
    unit_path(up, u, path);
    int fd = hzp_file_open(path, &size, fill->reterr);
    HZP_TRY(fd);
    int64_t n = hzp_file_read_at(fd, host->base, (size_t)bytes, 0);
    close(fd);
    if (n != (int64_t)bytes)
        return hzp_fail(fill->reterr, HZP_EIO, "%s: it cannot be read", path);
    uint64_t checksum = hzp_unit_checksum(host);
    if (checksum != up->m.unit[u])
        return hzp_fail(fill->reterr, HZP_EFORMAT, "%s: it is damaged (checksum)", path);
    if (hzp_unit_nonfinite(host))
        return hzp_fail(fill->reterr, HZP_EFORMAT, "unit %d: an element is not finite", u);
    fill->checksum += checksum;
    return HZP_OK;
}
