/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/checkpoint.h"

#include "base/arena.h"
#include "weights/model_dir.h"
#include "weights/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char prefix[] = "checkpoint-", unfinished[] = ".tmp";

int hzp_checkpoint_make_dir(const char *path, size_t *ret_existed, struct hzp_err_text *reterr)
{
    char part[PATH_MAX];
    size_t length = strlen(path), existed = 0;
    bool made = false;
    if (!length || length >= sizeof(part))
        return hzp_fail(reterr, HZP_EINVAL, "%s: not a valid directory name", path);
    memcpy(part, path, length + 1);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char was = *p;
        *p = '\0';
        int error = mkdir(part, 0777) < 0 ? errno : 0;
        if (error && error != EEXIST)
            return hzp_fail(reterr, HZP_EIO, "%s: cannot make the directory: %s", part,
                            strerror(error));
        made = made || !error;
        if (!made)
            existed = (size_t)(p - part);
        *p = was;
        if (!was)
            break;
    }
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return hzp_fail(reterr, HZP_EIO, "%s: not a directory", path);
    if (ret_existed)
        *ret_existed = existed;
    return HZP_OK;
}

void hzp_checkpoint_unmake_dir(const char *path, size_t existed)
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

/* Removes a directory and the plain files in it; a subdirectory is not removed, and then neither is
 * the directory (HZP_EIO). */
static int remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? HZP_OK : HZP_EIO;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return rmdir(path) < 0 ? HZP_EIO : HZP_OK;
}

/* Renames the directory first, so that a process killed half way does not leave a checkpoint with
 * missing files. */
static int remove_whole(const char *path)
{
    char half[PATH_MAX];
    int n = snprintf(half, sizeof(half), "%s%s", path, unfinished);
    if (n < 0 || (size_t)n >= sizeof(half))
        return HZP_EIO;
    remove_dir(half);
    if (rename(path, half) < 0)
        return errno == ENOENT ? HZP_OK : HZP_EIO;
    return remove_dir(half);
}

/* Syncs a directory's entries; those of a checkpoint must be on disk before it is renamed. */
static int sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return HZP_EIO;
    int r = fsync(fd) < 0 ? HZP_EIO : HZP_OK;
    close(fd);
    return r;
}

static int put_in_place(const char *parent, const char *from, const char *to,
                        struct hzp_err_text *reterr)
{
    if (sync_dir(from) < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", from, strerror(errno));
    if (remove_dir(to) < 0 || rename(from, to) < 0 || sync_dir(parent) < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot rename it into place: %s", to,
                        strerror(errno));
    return HZP_OK;
}

static int write_options(const char *dir, const char *options, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    if (!options)
        return HZP_OK;
    snprintf(path, sizeof(path), "%s/serve.options", dir);
    FILE *file = fopen(path, "w");
    bool written = file && fputs(options, file) >= 0 && fflush(file) == 0 && !fsync(fileno(file));
    int error = errno;
    if (file && fclose(file) != 0)
        written = false;
    return written ? HZP_OK
                   : hzp_fail(reterr, HZP_EIO, "%s: cannot be written: %s", path, strerror(error));
}

int hzp_checkpoint_save_model(const char *dir, const struct hzp_model *model,
                              struct hzp_trainer *trainer, const struct hzp_version *v,
                              const char *source_dir, const char *options,
                              struct hzp_err_text *reterr)
{
    const struct hzp_units *units = hzp_version_units(model->weights, v);
    struct hzp_unit_source source = {hzp_trainer_read_weights, trainer};
    int r = hzp_units_whole(units)
                ? hzp_model_save(dir, model->dev, units, source_dir, reterr)
                : hzp_model_save_from(dir, units->layout, units->type, &source, source_dir, reterr);
    HZP_TRY(r);
    return write_options(dir, options, reterr);
}

int hzp_checkpoint_write(const char *parent, uint64_t number, const struct hzp_model *model,
                         struct hzp_trainer *trainer, const struct hzp_version *v,
                         const char *source_dir, const char *options, const char *note,
                         struct hzp_err_text *reterr)
{
    char temporary[PATH_MAX], place[PATH_MAX];
    snprintf(place, sizeof(place), "%s/%s%" PRIu64, parent, prefix, number);
    snprintf(temporary, sizeof(temporary), "%s/%s%" PRIu64 "%s", parent, prefix, number,
             unfinished);
    remove_dir(temporary);
    int r = hzp_checkpoint_make_dir(temporary, NULL, reterr);
    if (r >= 0)
        r = hzp_checkpoint_save_model(temporary, model, trainer, v, source_dir, options, reterr);
    if (r >= 0)
        r = hzp_trainer_save(trainer, v, temporary, note, reterr);
    if (r >= 0)
        r = put_in_place(parent, temporary, place, reterr);
    if (r < 0)
        remove_dir(temporary);
    return r;
}

/* The number in a checkpoint's name; 0: not a checkpoint's name. */
static uint64_t number_of(const char *name, bool *ret_unfinished)
{
    if (strncmp(name, prefix, sizeof(prefix) - 1))
        return 0;
    const char *digits = name + sizeof(prefix) - 1;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(digits, &end, 10);
    *ret_unfinished = !strcmp(end, unfinished);
    if (*digits < '0' || *digits > '9' || errno || (*end && !*ret_unfinished))
        return 0;
    return number;
}

uint64_t hzp_checkpoint_newest(const char *parent)
{
    return hzp_checkpoint_below(parent, UINT64_MAX);
}

uint64_t hzp_checkpoint_below(const char *parent, uint64_t below)
{
    uint64_t newest = 0;
    DIR *dir = opendir(parent);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        bool is_unfinished = false;
        uint64_t number = number_of(entry->d_name, &is_unfinished);
        if (!is_unfinished && number < below)
            newest = HZP_MAX(newest, number);
    }
    if (dir)
        closedir(dir);
    return newest;
}

/* A complete checkpoint that may be removed. */
struct old {
    uint64_t number;
    int64_t hour; /* since 1970, in which it was written */
};

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const struct old *)a)->number, y = ((const struct old *)b)->number;
    return x > y ? -1 : x < y;
}

static int64_t hour_of(const char *path)
{
    char file[PATH_MAX + 32];
    struct stat st;
    /* not the directory's own time, which a tag changes */
    snprintf(file, sizeof(file), "%s/trainer.safetensors", path);
    return stat(file, &st) < 0 && stat(path, &st) < 0 ? 0 : (int64_t)st.st_mtime / 3600;
}

static bool tagged(const char *path)
{
    char file[PATH_MAX + 32];
    snprintf(file, sizeof(file), "%s/keep", path);
    return access(file, F_OK) == 0;
}

/* Lists the checkpoints, tagged ones too, and removes what interrupted writes left behind. */
static struct old *list(const char *parent, DIR *dir, int64_t *ret_count)
{
    struct old *old = NULL;
    int64_t count = 0;
    char path[PATH_MAX];
    for (struct dirent *entry; (entry = readdir(dir));) {
        bool is_unfinished = false;
        uint64_t n = number_of(entry->d_name, &is_unfinished);
        snprintf(path, sizeof(path), "%s/%s", parent, entry->d_name);
        if (n && is_unfinished) {
            remove_dir(path);
        } else if (n) {
            old = hzp_xrealloc(old, (size_t)(count + 1) * sizeof(*old));
            old[count++] = (struct old){n, hour_of(path)};
        }
    }
    if (count)
        qsort(old, (size_t)count, sizeof(*old), newest_first);
    *ret_count = count;
    return old;
}

void hzp_checkpoint_prune(const char *parent, int64_t keep, int64_t hourly, const char *needed)
{
    int64_t count = 0, now = (int64_t)time(NULL) / 3600, hour = INT64_MAX;
    char path[PATH_MAX];
    DIR *dir = opendir(parent);
    if (!dir)
        return;
    struct old *old = list(parent, dir, &count);
    closedir(dir);
    for (int64_t i = 0; i < count; i++) {
        bool newest_of_hour = old[i].hour < hour;
        hour = HZP_MIN(hour, old[i].hour);
        if (i < HZP_MAX(keep, 1) || (newest_of_hour && old[i].hour > now - hourly))
            continue;
        snprintf(path, sizeof(path), "%s/%s%" PRIu64, parent, prefix, old[i].number);
        if (!tagged(path) && (!needed || strcmp(path + strlen(parent) + 1, needed)))
            remove_whole(path);
    }
    free(old);
}

/* --- Whole or damaged ------------------------------------------------------------------------- */

/* Opens the file as safetensors. */
static int check_file(const char *dir, const char *name, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_safetensors *st = NULL;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int r = hzp_safetensors_open(path, &st, reterr);
    if (r >= 0)
        hzp_safetensors_close(st);
    return r;
}

int hzp_checkpoint_whole(const char *dir, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_model_config config;
    HZP_TRY(hzp_config_read(dir, &config, reterr));
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
    if (access(path, F_OK) < 0) /* shards are checked when they are loaded */
        HZP_TRY(check_file(dir, "model.safetensors", reterr));
    return check_file(dir, "trainer.safetensors", reterr);
}

void hzp_checkpoint_remove(const char *path)
{
    remove_dir(path);
}

int hzp_checkpoint_set_aside(const char *parent, const char *name, struct hzp_err_text *reterr)
{
    char from[PATH_MAX], to[PATH_MAX];
    snprintf(from, sizeof(from), "%s/%s", parent, name);
    snprintf(to, sizeof(to), "%s/%s.damaged", parent, name);
    if (access(from, F_OK) < 0 && errno == ENOENT)
        return HZP_OK;
    remove_dir(to);
    if (rename(from, to) < 0 || sync_dir(parent) < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot rename it to %s: %s", from, to,
                        strerror(errno));
    return HZP_OK;
}
