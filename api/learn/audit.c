/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/audit.h"

#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"

#include <fcntl.h>
#include <sys/stat.h>

struct hzp_audit {
    char *path;
    struct hzp_lock lock;
    int fd;
    int64_t bytes, bound;
    bool failed; /* the last write; it is logged once */
};

static int open_file(struct hzp_audit *a, struct hzp_err_text *reterr)
{
    struct stat st;
    char last = '\n';
    a->fd = open(a->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (a->fd < 0 || fstat(a->fd, &st) < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", a->path, strerror(errno));
    a->bytes = st.st_size;
    /* A line that was cut off by a power cut is ended, so that it spoils no other. */
    if (st.st_size > 0 && pread(a->fd, &last, 1, st.st_size - 1) == 1 && last != '\n' &&
        write(a->fd, "\n", 1) == 1)
        a->bytes++;
    return HZP_OK;
}

int hzp_audit_open(const char *dir, bool later, struct hzp_audit **ret, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/audit.jsonl", dir);
    struct hzp_audit *a = hzp_xcalloc(1, sizeof(*a));
    a->path = hzp_xstrdup(path);
    a->bound = HZP_AUDIT_BYTES;
    hzp_lock_init(&a->lock, HZP_LOCK_AUDIT);
    int r = open_file(a, reterr);
    if (r < 0 && !later) {
        hzp_audit_close(a);
        return r;
    }
    *ret = a;
    return HZP_OK;
}

void hzp_audit_close(struct hzp_audit *a)
{
    if (!a)
        return;
    if (a->fd >= 0)
        close(a->fd);
    hzp_lock_fini(&a->lock);
    free(a->path);
    free(a);
}

void hzp_audit_remove(const char *dir)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/audit.jsonl", dir);
    if (stat(path, &st) == 0 && st.st_size == 0)
        unlink(path);
}

void hzp_audit_bound(struct hzp_audit *a, int64_t bytes)
{
    a->bound = bytes;
}

/* The full file becomes the first of the older ones. */
static int rotate(struct hzp_audit *a, struct hzp_err_text *reterr)
{
    char from[PATH_MAX], to[PATH_MAX];
    for (int i = HZP_AUDIT_FILES - 1; i >= 0; i--) {
        snprintf(from, sizeof(from), i ? "%s.%d" : "%s", a->path, i);
        snprintf(to, sizeof(to), "%s.%d", a->path, i + 1);
        if (rename(from, to) < 0 && errno != ENOENT)
            return hzp_fail(reterr, HZP_EIO, "%s: cannot rename it: %s", from, strerror(errno));
    }
    close(a->fd);
    return open_file(a, reterr);
}

static int write_line(struct hzp_audit *a, const char *line, struct hzp_err_text *reterr)
{
    size_t n = strlen(line);
    if (a->fd < 0)
        HZP_TRY(open_file(a, reterr));
    if (a->bytes && a->bytes + (int64_t)n > a->bound)
        HZP_TRY(rotate(a, reterr));
    /* A line that was cut off (a full disk) is ended, so that it spoils no other. */
    ssize_t wrote = write(a->fd, line, n);
    a->bytes += HZP_MAX(wrote, 0);
    if (wrote == (ssize_t)n && fdatasync(a->fd) == 0)
        return HZP_OK;
    int error = errno;
    if (wrote > 0 && wrote < (ssize_t)n && write(a->fd, "\n", 1) == 1)
        a->bytes++;
    return hzp_fail(reterr, HZP_EIO, "%s: cannot be written: %s", a->path, strerror(error));
}

static void format_now(char *ret, size_t size)
{
    struct timespec now;
    struct tm tm;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(ret, size, "%s.%03dZ", text, (int)(now.tv_nsec / 1000000));
}

void hzp_audit_write(struct hzp_audit *a, const char *key, const char *request, const char *action,
                     json_t *what)
{
    char time_text[48];
    struct hzp_err_text err;
    if (!a) {
        json_decref(what);
        return;
    }
    format_now(time_text, sizeof(time_text));
    json_auto_t *json =
        json_pack("{s:s, s:s, s:s, s:s}", "time", time_text, "key", key ? key : "none", "request",
                  request ? request : "", "action", action);
    if (what)
        json_object_update(json, what);
    json_decref(what);
    HZP_FREED char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    size_t n = text ? strlen(text) : 0;
    HZP_FREED char *line = hzp_xmalloc(n + 2);
    if (n)
        memcpy(line, text, n);
    memcpy(line + n, "\n", 2);
    hzp_lock_take(&a->lock);
    int r = n ? write_line(a, line, &err) : HZP_OK;
    bool first = r < 0 && !a->failed;
    a->failed = r < 0;
    hzp_lock_release(&a->lock);
    if (first)
        hzp_log(HZP_LOG_ERROR, "state", "audit: %s", err.text);
}

static void copy_field(const json_t *line, const char *field, char *ret, size_t size)
{
    const char *text = json_string_value(json_object_get(line, field));
    snprintf(ret, size, "%s", text ? text : "");
}

/* Looks through one file. */
static bool find_in(const char *path, int64_t number, struct hzp_audit_taught *ret)
{
    HZP_FREED char *line = NULL;
    size_t room = 0;
    bool found = false;
    HZP_ENDED(hzp_file_end) FILE *file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0) {
        const char *first = strstr(line, "\"first\":"), *last = strstr(line, "\"last\":");
        if (!first || !last || !strstr(line, "\"action\":\"teach\"") ||
            strtoll(first + 8, NULL, 10) > number || strtoll(last + 7, NULL, 10) < number)
            continue;
        json_auto_t *json = json_loads(line, 0, NULL);
        found = found || json;
        copy_field(json, "key", ret->key, sizeof(ret->key));
        copy_field(json, "time", ret->time, sizeof(ret->time));
        copy_field(json, "request", ret->request, sizeof(ret->request));
    }
    return found;
}

bool hzp_audit_find(const struct hzp_audit *a, int64_t number, struct hzp_audit_taught *ret)
{
    char path[PATH_MAX];
    bool found = false;
    for (int i = 0; a && !found && i <= HZP_AUDIT_FILES; i++) {
        snprintf(path, sizeof(path), i ? "%s.%d" : "%s", a->path, i);
        found = find_in(path, number, ret);
    }
    return found;
}
