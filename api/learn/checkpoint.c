/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/checkpoint.h"

#include "base/file.h"
#include "weights/model_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

static const char prefix[] = "checkpoint-", unfinished[] = ".tmp";

int hzp_checkpoint_remove(const char *path)
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

/* Renames the directory first, so that a process killed half way, or a power cut, does not leave a
 * checkpoint with missing files. */
static int remove_whole(const char *parent, const char *path)
{
    char half[PATH_MAX];
    int n = snprintf(half, sizeof(half), "%s%s", path, unfinished);
    if (n < 0 || (size_t)n >= sizeof(half))
        return HZP_EIO;
    hzp_checkpoint_remove(half);
    if (rename(path, half) < 0)
        return errno == ENOENT ? HZP_OK : HZP_EIO;
    HZP_TRY(hzp_file_sync_dir(parent));
    return hzp_checkpoint_remove(half);
}

int hzp_checkpoint_put_in_place(const char *parent, const char *from, const char *to,
                                struct hzp_err_text *reterr)
{
    if (hzp_file_sync_dir(from) < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", from, strerror(errno));
    if (hzp_checkpoint_remove(to) < 0 || rename(from, to) < 0 || hzp_file_sync_dir(parent) < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot rename it into place: %s", to,
                        strerror(errno));
    return HZP_OK;
}

static int write_options(const char *dir, const char *options, struct hzp_err_text *reterr)
{
    char path[PATH_MAX + 16];
    if (!options)
        return HZP_OK;
    snprintf(path, sizeof(path), "%s/serve.options", dir);
    return hzp_file_put(path, options, strlen(options), reterr);
}

int hzp_checkpoint_save_model(const char *dir, const struct hzp_unit_source *source,
                              const char *texts_dir, const char *options, uint64_t *ret_checksum,
                              struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_model_save_from(dir, source, texts_dir, ret_checksum, reterr));
    return write_options(dir, options, reterr);
}

int hzp_checkpoint_write(const char *parent, uint64_t number, const struct hzp_train_state *state,
                         const char *texts_dir, const char *options, const char *note,
                         struct hzp_err_text *reterr)
{
    char temporary[PATH_MAX], place[PATH_MAX];
    struct hzp_train_state whole = *state;
    snprintf(place, PATH_MAX, "%s/%s%" PRIu64, parent, prefix, number);
    snprintf(temporary, PATH_MAX, "%s/%s%" PRIu64 "%s", parent, prefix, number, unfinished);
    hzp_checkpoint_remove(temporary); /* an attempt that was given up */
    int r = hzp_dir_make(temporary, NULL, reterr);
    if (r >= 0)
        r = hzp_checkpoint_save_model(temporary, &whole.source, texts_dir, options,
                                      &whole.numbers.checksum, reterr);
    if (r >= 0)
        r = hzp_state_file_write(&whole, temporary, note, reterr);
    if (r >= 0)
        r = hzp_checkpoint_put_in_place(parent, temporary, place, reterr);
    if (r < 0)
        hzp_checkpoint_remove(temporary);
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
    HZP_ENDED(hzp_dir_end) DIR *dir = opendir(parent);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        bool is_unfinished = false;
        uint64_t number = number_of(entry->d_name, &is_unfinished);
        if (!is_unfinished && number < below)
            newest = HZP_MAX(newest, number);
    }
    return newest;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const struct hzp_kept_one *)a)->number;
    uint64_t y = ((const struct hzp_kept_one *)b)->number;
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

int64_t hzp_checkpoint_bytes(const char *path)
{
    int64_t sum = 0;
    HZP_ENDED(hzp_dir_end) DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat st;
        if (!fstatat(dirfd(dir), entry->d_name, &st, 0) && S_ISREG(st.st_mode))
            sum += (int64_t)st.st_size;
    }
    return sum;
}

static bool tagged(const char *path)
{
    char file[PATH_MAX + 32];
    snprintf(file, sizeof(file), "%s/keep", path);
    return access(file, F_OK) == 0;
}

/* Lists the checkpoints, tagged ones too, and removes what interrupted writes left behind. */
static struct hzp_kept_one *list(const char *parent, DIR *dir, int64_t *ret_count)
{
    struct hzp_kept_one *old = NULL;
    int64_t count = 0;
    char path[PATH_MAX];
    for (struct dirent *entry; (entry = readdir(dir));) {
        bool is_unfinished = false;
        uint64_t n = number_of(entry->d_name, &is_unfinished);
        snprintf(path, sizeof(path), "%s/%s", parent, entry->d_name);
        if (n && is_unfinished) {
            hzp_checkpoint_remove(path);
        } else if (n) {
            old = hzp_xrealloc(old, (size_t)(count + 1) * sizeof(*old));
            old[count++] = (struct hzp_kept_one){.number = n,
                                                 .hour = hour_of(path),
                                                 .bytes = hzp_checkpoint_bytes(path),
                                                 .tagged = tagged(path)};
        }
    }
    if (count)
        qsort(old, (size_t)count, sizeof(*old), newest_first);
    *ret_count = count;
    return old;
}

void hzp_checkpoint_prune(const char *parent, const struct hzp_retention *policy,
                          const char *const *needed, int32_t count)
{
    int64_t n = 0;
    char path[PATH_MAX];
    HZP_ENDED(hzp_dir_end) DIR *dir = opendir(parent);
    if (!dir)
        return;
    HZP_FREED struct hzp_kept_one *old = list(parent, dir, &n);
    for (int64_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s%" PRIu64, prefix, old[i].number);
        for (int32_t k = 0; k < count; k++)
            old[i].tagged = old[i].tagged || !strcmp(path, needed[k]);
    }
    hzp_retention_decide(policy, (int64_t)time(NULL) / 3600, old, n);
    for (int64_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s%" PRIu64, parent, prefix, old[i].number);
        if (!old[i].keep)
            remove_whole(parent, path);
    }
}

/* --- Copies ----------------------------------------------------------------------------------- */

static int copy_file(const char *from, const char *to)
{
    char piece[1 << 16];
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ssize_t n = in < 0 || out < 0 ? -1 : ioctl(out, FICLONE, in) == 0 ? 0 : 1;
    while (n > 0 && (n = read(in, piece, sizeof(piece))) > 0)
        if (hzp_file_write(out, piece, (size_t)n) < 0)
            n = -1;
    int error = n < 0 ? errno : 0;
    if (in >= 0)
        close(in);
    if (out >= 0 && ((!error && fsync(out) < 0) || close(out) < 0))
        error = error ? error : errno;
    errno = error;
    return error ? HZP_EIO : HZP_OK;
}

/* Copies the plain files of a directory, but those left out, to another; weights: only the weights'
 * files.  Others are linked where the file system has links. */
static int place(const char *from, const char *to, const char *const *left_out, int32_t count,
                 bool weights, struct hzp_err_text *reterr)
{
    char source[PATH_MAX + 256], target[PATH_MAX + 256], temporary[PATH_MAX + 264];
    HZP_TRY(hzp_dir_make(to, NULL, reterr));
    DIR *dir = opendir(from);
    if (!dir)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", from, strerror(errno));
    int r = HZP_OK;
    for (struct dirent *entry; r >= 0 && (entry = readdir(dir));) {
        struct stat st;
        bool skip = weights && strncmp(entry->d_name, "model", 5);
        for (int32_t i = 0; i < count; i++)
            skip = skip || !strcmp(entry->d_name, left_out[i]);
        snprintf(source, sizeof(source), "%s/%s", from, entry->d_name);
        snprintf(target, sizeof(target), "%s/%s", to, entry->d_name);
        snprintf(temporary, sizeof(temporary), "%s%s", target, unfinished);
        if (skip || stat(source, &st) < 0 || !S_ISREG(st.st_mode))
            continue;
        if (!weights && link(source, target) == 0)
            continue;
        if (copy_file(source, temporary) < 0 || rename(temporary, target) < 0)
            r = hzp_fail(reterr, HZP_EIO, "%s: cannot be written: %s", target, strerror(errno));
    }
    closedir(dir);
    if (r >= 0 && hzp_file_sync_dir(to) < 0)
        r = hzp_fail(reterr, HZP_EIO, "%s: %s", to, strerror(errno));
    return r;
}

int hzp_checkpoint_link(const char *from, const char *to, const char *const *left_out,
                        int32_t count, struct hzp_err_text *reterr)
{
    return place(from, to, left_out, count, false, reterr);
}

int hzp_checkpoint_copy_weights(const char *from, const char *to, struct hzp_err_text *reterr)
{
    return place(from, to, NULL, 0, true, reterr);
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

int hzp_checkpoint_set_aside(const char *parent, const char *name, struct hzp_err_text *reterr)
{
    char from[PATH_MAX], to[PATH_MAX];
    snprintf(from, sizeof(from), "%s/%s", parent, name);
    snprintf(to, sizeof(to), "%s/%s.damaged", parent, name);
    if (access(from, F_OK) < 0 && errno == ENOENT)
        return HZP_OK;
    hzp_checkpoint_remove(to);
    if (rename(from, to) < 0 || hzp_file_sync_dir(parent) < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot rename it to %s: %s", from, to,
                        strerror(errno));
    return HZP_OK;
}
