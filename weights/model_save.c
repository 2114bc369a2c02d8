/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/model_dir.h"

#include "base/file.h"
#include "base/json_file.h"
#include "weights/wrapper.h"

#include <sys/stat.h>

enum { CONFIG_BYTES_MAX = 1 << 20, NAME_SIZE = 64 };
static const size_t copied_bytes_max = (size_t)256 << 20;
static const size_t file_bytes = 5000000000; /* most bytes of a file of weights */

/* The state of a save. */
struct save {
    const char *dir, *source_dir;
    const struct hzp_layout *layout;
    enum hzp_dtype type;
    const struct hzp_unit_source *source;
    int32_t next;      /* units from this one on are not in the checksum yet */
    uint64_t checksum; /* of the others */
    int32_t *shard;    /* [layout->disks] the shard of each */
    int32_t shards;
    struct hzp_err_text *reterr;
};

static int fail_io(const struct save *save, const char *path, const char *what)
{
    return hzp_fail(save->reterr, HZP_EIO, "%s: %s: %s", path, what, strerror(errno));
}

static int write_file(const struct save *save, const char *name, const void *data, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", save->dir, name);
    return hzp_file_put(path, data, size, save->reterr);
}

static int write_json(const struct save *save, const char *name, const json_t *root)
{
    HZP_FREED char *text = json_dumps(root, JSON_INDENT(2));
    HZP_ASSERT(text);
    return write_file(save, name, text, strlen(text));
}

static int write_config(const struct save *save)
{
    char path[PATH_MAX];
    json_auto_t *whole = NULL, *text_model = NULL;
    snprintf(path, sizeof(path), "%s/config.json", save->source_dir);
    HZP_TRY(hzp_json_read(path, CONFIG_BYTES_MAX, HZP_JSON_UNIQUE, &whole, save->reterr));
    HZP_TRY(hzp_wrapper_text(path, whole, &text_model, save->reterr));
    json_t *root = text_model ? text_model : whole;
    const char *type = save->type == HZP_BF16 ? "bfloat16" : "float32";
    /* transformers reads either name; the newer one is kept if present. */
    if (json_object_get(root, "dtype"))
        json_object_set_new(root, "dtype", json_string(type));
    if (!json_object_get(root, "dtype") || json_object_get(root, "torch_dtype"))
        json_object_set_new(root, "torch_dtype", json_string(type));
    return write_json(save, "config.json", root);
}

/* Copies source_dir/name if it exists. */
static int copy_file(const struct save *save, const char *name)
{
    char path[PATH_MAX];
    HZP_FREED char *data = NULL;
    size_t bytes;
    struct hzp_err_text err;
    snprintf(path, sizeof(path), "%s/%s", save->source_dir, name);
    int r = hzp_file_read(path, copied_bytes_max, &data, &bytes, &err);
    if (r < 0)
        return r == HZP_ENOENT ? HZP_OK : hzp_fail(save->reterr, r, "%s", err.text);
    return write_file(save, name, data, bytes);
}

/* Beside config.json. */
static const char *const texts[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};

const char *hzp_model_text_name(int i)
{
    return i == 0 ? "config.json" : i <= HZP_COUNT(texts) ? texts[i - 1] : NULL;
}

static int copy_text_files(const struct save *save)
{
    struct stat a, b;
    /* Saving over the source directory: the files are there already. */
    if (stat(save->dir, &a) == 0 && stat(save->source_dir, &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return HZP_OK;
    for (int i = 0; i < HZP_COUNT(texts); i++)
        HZP_TRY(copy_file(save, texts[i]));
    return HZP_OK;
}

static size_t disk_cols(const struct hzp_layout *l, const struct hzp_disk_tensor *d)
{
    return d->vector ? 1 : (size_t)l->tensor[d->tensor].cols;
}

/* Fills shards in order; a tensor larger than a shard gets its own. */
static void cut_shards(struct save *save, size_t shard_bytes)
{
    const struct hzp_layout *l = save->layout;
    size_t used = 0;
    save->shards = 1;
    save->shard = hzp_xcalloc((size_t)l->disks, sizeof(*save->shard));
    for (int32_t i = 0; i < l->disks; i++) {
        const struct hzp_disk_tensor *d = &l->disk[i];
        size_t bytes = (size_t)d->disk_rows * disk_cols(l, d) * hzp_dtype_size(save->type);
        if (i > 0 && hzp_layout_continues(l, i - 1)) {
            save->shard[i] = save->shards - 1;
            continue;
        }
        if (used > 0 && bytes > shard_bytes - HZP_MIN(used, shard_bytes)) {
            save->shards++;
            used = 0;
        }
        used += bytes;
        save->shard[i] = save->shards - 1;
    }
}

static void shard_name(const struct save *save, int32_t shard, char ret[NAME_SIZE])
{
    if (save->shards == 1)
        snprintf(ret, NAME_SIZE, "model.safetensors");
    else
        snprintf(ret, NAME_SIZE, "model-%05d-of-%05d.safetensors", shard + 1, save->shards);
}

static void declare_shard(const struct save *save, int32_t shard, struct hzp_st_writer *w)
{
    const struct hzp_layout *l = save->layout;
    hzp_st_writer_meta(w, "format", "pt"); /* transformers checks this entry */
    for (int32_t i = 0; i < l->disks; i++) {
        const struct hzp_disk_tensor *d = &l->disk[i];
        int64_t shape[2] = {d->disk_rows, (int64_t)disk_cols(l, d)};
        bool begins = i == 0 || !hzp_layout_continues(l, i - 1);
        if (save->shard[i] == shard && begins)
            hzp_st_writer_declare(w, d->name, save->type == HZP_BF16 ? HZP_DISK_BF16 : HZP_DISK_F32,
                                  d->vector ? 1 : 2, shape);
    }
}

/* Writes rows that lie in another order than the file's. */
static int write_turned(const struct save *save, const struct hzp_disk_tensor *d, const char *rows,
                        size_t row_bytes, struct hzp_st_writer *w)
{
    HZP_FREED char *sorted = malloc((size_t)d->rows * row_bytes);
    if (!sorted)
        return hzp_fail(save->reterr, HZP_ENOMEM, "%s: no memory to write %s", save->dir, d->name);
    for (int32_t r = 0; r < d->rows; r++)
        memcpy(sorted + (size_t)hzp_disk_row(d, r) * row_bytes, rows + (size_t)r * row_bytes,
               row_bytes);
    return hzp_st_writer_data(w, sorted, (size_t)d->rows * row_bytes, save->reterr);
}

/* Writes the shard's tensors of unit u, which are consecutive in layout->disk, starting at *at. */
static int write_unit(struct save *save, int32_t shard, int32_t u, int32_t *at,
                      struct hzp_st_writer *w)
{
    const struct hzp_layout *l = save->layout;
    size_t size = hzp_dtype_size(save->type);
    HZP_FREED void *owned = NULL;
    struct hzp_unit_view view;
    HZP_TRY(
        save->source->read(save->source->ctx, HZP_STATE_WEIGHTS, u, &view, &owned, save->reterr));
    const char *host = view.base;
    if (u >= save->next) /* not a unit whose beginning is in the shard before */
        save->checksum += hzp_unit_checksum(&view);
    save->next = u + 1;
    for (; *at < l->disks; ++*at) {
        const struct hzp_disk_tensor *d = &l->disk[*at];
        const struct hzp_tensor *t = &l->tensor[d->tensor];
        if (t->unit != u || save->shard[*at] != shard)
            break;
        size_t cols = disk_cols(l, d), offset = t->offset + (size_t)d->row0 * cols;
        HZP_TRY(d->rotary ? write_turned(save, d, host + offset * size, cols * size, w)
                          : hzp_st_writer_data(w, host + offset * size,
                                               (size_t)d->rows * cols * size, save->reterr));
    }
    return HZP_OK;
}

static int fill_shard(struct save *save, int32_t shard, struct hzp_st_writer *w)
{
    const struct hzp_layout *l = save->layout;
    int32_t at = 0;
    declare_shard(save, shard, w);
    while (at < l->disks && save->shard[at] != shard)
        at++;
    while (at < l->disks && save->shard[at] == shard)
        HZP_TRY(write_unit(save, shard, l->tensor[l->disk[at].tensor].unit, &at, w));
    return HZP_OK;
}

static int write_shard(struct save *save, int32_t shard)
{
    char name[NAME_SIZE], path[PATH_MAX];
    struct hzp_st_writer *w;
    shard_name(save, shard, name);
    snprintf(path, sizeof(path), "%s/%s", save->dir, name);
    HZP_TRY(hzp_st_writer_open(path, &w, save->reterr));
    int r = fill_shard(save, shard, w);
    if (r == HZP_OK)
        return hzp_st_writer_finish(w, save->reterr);
    hzp_st_writer_abandon(w);
    return r;
}

static int write_index(const struct save *save)
{
    const struct hzp_layout *l = save->layout;
    json_t *map = json_object();
    int64_t total = 0;
    char name[NAME_SIZE];
    for (int32_t i = 0; i < l->disks; i++) {
        shard_name(save, save->shard[i], name);
        json_object_set_new(map, l->disk[i].name, json_string(name));
        total += (int64_t)((size_t)l->disk[i].rows * disk_cols(l, &l->disk[i]) *
                           hzp_dtype_size(save->type));
    }
    json_auto_t *root =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    HZP_ASSERT(root);
    return write_json(save, "model.safetensors.index.json", root);
}

/* Readers prefer one of the two forms (one file, shards), so the other form left by an earlier save
 * is removed. */
static int remove_stale(const struct save *save)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", save->dir,
             save->shards == 1 ? "model.safetensors.index.json" : "model.safetensors");
    if (unlink(path) < 0 && errno != ENOENT)
        return fail_io(save, path, "remove");
    return HZP_OK;
}

static int save_model(struct save *save, size_t shard_bytes)
{
    save->layout = save->source->part[HZP_STATE_WEIGHTS]->layout;
    save->type = save->source->part[HZP_STATE_WEIGHTS]->type;
    if (strlen(save->dir) > PATH_MAX - 128 || strlen(save->source_dir) > PATH_MAX - 128)
        return hzp_fail(save->reterr, HZP_EINVAL, "the path of the model directory is too long");
    if (mkdir(save->dir, 0777) < 0 && errno != EEXIST)
        return fail_io(save, save->dir, "cannot be made");
    HZP_ASSERT(save->layout->slice.ranks <= 1);
    cut_shards(save, shard_bytes);
    HZP_FREED void *shard = save->shard;
    HZP_TRY(write_config(save));
    HZP_TRY(copy_text_files(save));
    for (int32_t i = 0; i < save->shards; i++)
        HZP_TRY(write_shard(save, i));
    if (save->shards > 1)
        HZP_TRY(write_index(save));
    return remove_stale(save);
}

int hzp_model_save_shards(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                          const char *source_dir, size_t shard_bytes, struct hzp_err_text *reterr)
{
    struct hzp_weights_source from;
    struct save save = {.dir = dir,
                        .source_dir = source_dir,
                        .source = hzp_weights_source(dev, units, &from),
                        .reterr = reterr};
    return save_model(&save, shard_bytes);
}

int hzp_model_save(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                   const char *source_dir, struct hzp_err_text *reterr)
{
    return hzp_model_save_shards(dir, dev, units, source_dir, file_bytes, reterr);
}

int hzp_model_save_from(const char *dir, const struct hzp_unit_source *source,
                        const char *source_dir, uint64_t *ret_checksum, struct hzp_err_text *reterr)
{
    struct save save = {.dir = dir, .source_dir = source_dir, .source = source, .reterr = reterr};
    HZP_TRY(save_model(&save, file_bytes));
    if (ret_checksum)
        *ret_checksum = save.checksum;
    return HZP_OK;
}

int hzp_model_copy_texts(const char *dir, const char *source_dir, struct hzp_err_text *reterr)
{
    struct save save = {.dir = dir, .source_dir = source_dir, .reterr = reterr};
    if (strlen(dir) > PATH_MAX - 128 || strlen(source_dir) > PATH_MAX - 128)
        return hzp_fail(reterr, HZP_EINVAL, "the path of the model directory is too long");
    if (mkdir(dir, 0777) < 0 && errno != EEXIST)
        return fail_io(&save, dir, "cannot be made");
    HZP_TRY(copy_file(&save, "config.json"));
    return copy_text_files(&save);
}
