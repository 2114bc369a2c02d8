/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/model_dir.h"

#include "weights/families.h"
#include "weights/wrapper.h"
#include "base/json_file.h"
#include "device/bf16.h"

enum {
    INDEX_BYTES_MAX = 8 << 20, /* about 80 bytes per tensor */
    SHARDS_MAX = 1024,
    LOAD_PIECE = 1 << 15, /* elements: checked while they are still in the cache */
};

/* An open directory. */
struct hzp_model_reader {
    char *dir;
    const struct hzp_layout *layout;
    enum hzp_dtype type;
    uint64_t checksum;          /* over the units that hzp_model_load has read */
    char (*file)[NAME_MAX + 1]; /* the shards' names */
    int32_t files;
    struct hzp_safetensors **st;            /* one per file */
    const struct hzp_disk_tensor **named;   /* layout->disk by name */
    const struct hzp_st_tensor **found;     /* one per layout->disk; NULL: not seen yet */
    const char **in_file;                   /* the file in which each was found */
    const struct hzp_st_tensor *spare_head; /* lm_head of a tied model */
    const char *spare_file;
    bool wrapped;             /* the tensors' names are a wrapper's: weights/wrapper.h */
    char *piece;              /* elements as they are on disk */
    struct hzp_err_text hole; /* the first bytes of data that no tensor claims; empty: none */
    struct hzp_err_text *reterr;
};

static int disk_by_name(const void *a, const void *b)
{
    const struct hzp_disk_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int name_by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Whether a shard's name stays within the directory. */
static bool is_plain_name(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length <= NAME_MAX && name[0] != '.' && !strchr(name, '/');
}

/* Collects the distinct values of the index's weight_map, which maps tensors to files. */
static int read_index(struct hzp_model_reader *load, const char *path, const json_t *root)
{
    const char *key;
    json_t *value;
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return hzp_fail(load->reterr, HZP_EFORMAT, "%s: weight_map is missing or empty", path);
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        int32_t i = 0;
        if (!hzp_json_is_text(value) || !is_plain_name(name))
            return hzp_fail(load->reterr, HZP_EFORMAT,
                            "%s: tensor %.120s: \"%.120s\" is not a file name", path, key,
                            name ? name : "?");
        /* Search backwards: consecutive tensors are mostly in the same file. */
        for (i = load->files - 1; i >= 0 && strcmp(load->file[i], name); i--)
            ;
        if (i >= 0)
            continue;
        if (load->files == SHARDS_MAX)
            return hzp_fail(load->reterr, HZP_EFORMAT, "%s: names more than %d files", path,
                            SHARDS_MAX);
        snprintf(load->file[load->files++], NAME_MAX + 1, "%s", name);
    }
    qsort(load->file, (size_t)load->files, sizeof(load->file[0]), name_by_name);
    return HZP_OK;
}

static int list_files(struct hzp_model_reader *load)
{
    char path[PATH_MAX];
    json_auto_t *root = NULL;
    if (snprintf(path, sizeof(path), "%s/model.safetensors", load->dir) >= PATH_MAX - NAME_MAX - 1)
        return hzp_fail(load->reterr, HZP_EINVAL, "the model directory's path is too long");
    load->file = hzp_xcalloc(SHARDS_MAX, sizeof(load->file[0]));
    if (access(path, F_OK) == 0) {
        snprintf(load->file[load->files++], NAME_MAX + 1, "model.safetensors");
        return HZP_OK;
    }
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", load->dir);
    if (access(path, F_OK) != 0)
        return hzp_fail(load->reterr, HZP_ENOENT,
                        "%s: has neither model.safetensors nor model.safetensors.index.json",
                        load->dir);
    HZP_TRY(hzp_json_read(path, INDEX_BYTES_MAX, HZP_JSON_UNIQUE, &root, load->reterr));
    return read_index(load, path, root);
}

/* Writes the shape in the form "[2, 3]". */
static void write_shape(const struct hzp_st_tensor *t, char *ret, size_t size)
{
    size_t used = (size_t)snprintf(ret, size, "[");
    for (int32_t i = 0; i < t->dims && used < size; i++)
        used += (size_t)snprintf(ret + used, size - used, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (used < size)
        snprintf(ret + used, size - used, "]");
}

/* Checks type and shape of a file's tensor against the layout; cols 0: a vector. */
static int check_tensor(const struct hzp_model_reader *load, const char *file,
                        const struct hzp_st_tensor *t, int32_t rows, int32_t cols)
{
    bool right = cols ? t->dims == 2 && t->shape[0] == rows && t->shape[1] == cols
                      : t->dims == 1 && t->shape[0] == rows;
    char has[192];
    if (!hzp_convert_knows(t->type))
        return hzp_fail(load->reterr, HZP_EFORMAT,
                        "%s/%s: tensor %.120s: type %s, expected BF16, F16, F32 or F64", load->dir,
                        file, t->name, hzp_disk_type_name(t->type));
    if (right)
        return HZP_OK;
    write_shape(t, has, sizeof(has));
    if (cols)
        return hzp_fail(load->reterr, HZP_EFORMAT,
                        "%s/%s: tensor %.120s: shape %s, expected [%d, %d]", load->dir, file,
                        t->name, has, rows, cols);
    return hzp_fail(load->reterr, HZP_EFORMAT, "%s/%s: tensor %.120s: shape %s, expected [%d]",
                    load->dir, file, t->name, has, rows);
}

/* Assigns one tensor of a file to its place in the layout. */
static int place(struct hzp_model_reader *load, const char *file, const struct hzp_st_tensor *t)
{
    const struct hzp_layout *l = load->layout;
    const struct hzp_model_config *c = &l->config;
    struct hzp_disk_tensor wanted;
    char own[sizeof(wanted.name)];
    const char *name = load->wrapped ? hzp_wrapper_name(t->name, own, sizeof(own)) : t->name;
    if (!name)
        return HZP_OK;
    if (strlen(t->name) < sizeof(wanted.name)) {
        const struct hzp_disk_tensor *key = &wanted;
        snprintf(wanted.name, sizeof(wanted.name), "%s", name);
        const struct hzp_disk_tensor **at =
            bsearch(&key, load->named, (size_t)l->disks, sizeof(*load->named), disk_by_name);
        if (at) {
            const struct hzp_disk_tensor *d = *at;
            int32_t i = (int32_t)(d - l->disk);
            HZP_TRY(check_tensor(load, file, t, d->disk_rows, d->vector ? 0 : d->disk_cols));
            if (load->found[i])
                return hzp_fail(load->reterr, HZP_EFORMAT,
                                "%s/%s: tensor %s: is in another file too", load->dir, file,
                                d->name);
            while (i > 0 && hzp_layout_continues(l, i - 1)) /* the first run of the tensor */
                i--;
            for (bool more = true; more; i++) {
                load->found[i] = t;
                load->in_file[i] = file;
                more = hzp_layout_continues(l, i);
            }
            return HZP_OK;
        }
        const struct hzp_family_row *head[HZP_FAMILY_ROWS_MAX];
        hzp_family_rows(hzp_family_find(c->family), HZP_HEAD, head);
        hzp_family_name(head[0], -1, wanted.name, sizeof(wanted.name));
        if (c->tied && !strcmp(name, wanted.name)) {
            HZP_TRY(check_tensor(load, file, t, c->vocab, c->width));
            load->spare_head = t;
            load->spare_file = file;
            return HZP_OK;
        }
    }
    if (hzp_family_is_leftover(t->name))
        return HZP_OK;
    return hzp_fail(load->reterr, HZP_EFORMAT,
                    "%s/%s: tensor %.120s: a %s model of this config.json has no such tensor",
                    load->dir, file, t->name, c->family);
}

/* Whether two tensors of the same number of elements have the same type and bytes. */
static int compare_data(struct hzp_model_reader *load, const struct hzp_st_tensor *a,
                        const struct hzp_st_tensor *b, bool *ret_same)
{
    enum { PIECE = 1 << 16 }; /* elements */
    size_t size = hzp_disk_type_size(a->type);
    *ret_same = a->type == b->type;
    HZP_FREED char *x = hzp_xmalloc(2 * PIECE * size);
    for (int64_t at = 0; *ret_same && at < a->elements; at += PIECE) {
        int64_t n = HZP_MIN(a->elements - at, PIECE);
        HZP_TRY(hzp_safetensors_read(a, at, n, x, load->reterr));
        HZP_TRY(hzp_safetensors_read(b, at, n, x + PIECE * size, load->reterr));
        *ret_same = !memcmp(x, x + PIECE * size, (size_t)n * size);
    }
    return HZP_OK;
}

/* For a tied model the file may also contain the head, if it equals the embedding, or the head
 * instead of the embedding. */
static int settle_head(struct hzp_model_reader *load)
{
    const struct hzp_layout *l = load->layout;
    const struct hzp_st_tensor *head = load->spare_head;
    if (!head)
        return HZP_OK;
    for (int32_t i = 0; i < l->disks; i++) {
        if (l->tensor[l->disk[i].tensor].role != HZP_EMBED)
            continue;
        const struct hzp_st_tensor *embed = load->found[i];
        bool same = true;
        if (embed)
            HZP_TRY(compare_data(load, embed, head, &same));
        if (!embed) {
            load->found[i] = head;
            load->in_file[i] = load->spare_file;
        } else if (!same) {
            return hzp_fail(load->reterr, HZP_EFORMAT,
                            "%s/%s: tensor %s: differs from %s, but config.json says "
                            "tie_word_embeddings",
                            load->dir, load->spare_file, head->name, l->disk[i].name);
        }
    }
    return HZP_OK;
}

static int place_all(struct hzp_model_reader *load)
{
    const struct hzp_layout *l = load->layout;
    char path[PATH_MAX];
    load->st = hzp_xcalloc((size_t)load->files, sizeof(struct hzp_safetensors *));
    load->named = hzp_xcalloc((size_t)l->disks, sizeof(*load->named));
    load->found = hzp_xcalloc((size_t)l->disks, sizeof(*load->found));
    load->in_file = hzp_xcalloc((size_t)l->disks, sizeof(*load->in_file));
    for (int32_t i = 0; i < l->disks; i++)
        load->named[i] = &l->disk[i];
    qsort(load->named, (size_t)l->disks, sizeof(*load->named), disk_by_name);
    for (int32_t i = 0; i < load->files; i++) {
        snprintf(path, sizeof(path), "%s/%s", load->dir, load->file[i]);
        struct hzp_err_text hole;
        HZP_TRY(hzp_safetensors_open_holed(path, &load->st[i], &hole, load->reterr));
        if (hole.text[0] && !load->hole.text[0])
            load->hole = hole;
        for (int32_t j = 0; j < hzp_safetensors_count(load->st[i]); j++)
            HZP_TRY(place(load, load->file[i], hzp_safetensors_at(load->st[i], j)));
    }
    HZP_TRY(settle_head(load));
    for (int32_t i = 0; i < l->disks; i++)
        if (!load->found[i])
            return hzp_fail(load->reterr, HZP_EFORMAT, "%s/%s: tensor %s is missing%s", load->dir,
                            load->files == 1 ? load->file[0] : "model.safetensors.index.json",
                            l->disk[i].name,
                            load->files == 1 ? "" : " from all the files it names");
    /* Reported last: a missing tensor leaves a hole too, and naming it is the better message. */
    if (load->hole.text[0])
        return hzp_fail(load->reterr, HZP_EFORMAT, "%s", load->hole.text);
    return HZP_OK;
}

/* Zeroes the padding between a unit's tensors, as far as it is among elements [first, last), so
 * that a version's checksum depends on its parameters only. */
static void zero_padding(const struct hzp_layout *l, int32_t u, size_t first, size_t last,
                         size_t size, char *to)
{
    const struct hzp_unit *unit = &l->unit[u];
    for (int32_t i = unit->first; i < unit->first + unit->tensors; i++) {
        const struct hzp_tensor *t = &l->tensor[i];
        size_t end = HZP_MAX(t->offset + (size_t)t->rows * (size_t)t->cols, first);
        size_t next = i + 1 < unit->first + unit->tensors ? t[1].offset : unit->elements;
        next = HZP_MIN(next, last);
        if (end < next)
            memset(to + (end - first) * size, 0, (next - end) * size);
    }
}

/* The offset of a file's tensor in its unit, in elements. */
static size_t disk_offset(const struct hzp_layout *l, const struct hzp_disk_tensor *d)
{
    const struct hzp_tensor *t = &l->tensor[d->tensor];
    return t->offset + (size_t)d->row0 * (d->vector ? 1 : (size_t)t->cols);
}

static size_t disk_elements(const struct hzp_layout *l, const struct hzp_disk_tensor *d)
{
    return (size_t)d->rows * (d->vector ? 1 : (size_t)l->tensor[d->tensor].cols);
}

/* Converts elements [first, first + n) of a tensor on disk.  A parameter that is not
 * finite is an error here: it would make every output NaN, and no later check would name the
 * tensor. */
static int take_run(struct hzp_model_reader *load, int32_t i, size_t first, size_t n, char *to)
{
    enum { PIECE = LOAD_PIECE };
    const struct hzp_st_tensor *t = load->found[i];
    size_t size = hzp_dtype_size(load->type);
    char *x = load->piece;
    for (size_t at = 0; at < n; at += PIECE) {
        size_t piece = HZP_MIN(n - at, (size_t)PIECE);
        HZP_TRY(hzp_safetensors_read(t, (int64_t)(first + at), (int64_t)piece, x, load->reterr));
        hzp_convert(t->type, x, load->type, to + at * size, piece);
        size_t bad = hzp_first_nonfinite(load->type, to + at * size, piece);
        if (bad == piece)
            continue;
        double wide = 0;
        float value;
        hzp_convert(t->type, x + bad * hzp_disk_type_size(t->type), HZP_F32, &value, 1);
        if (t->type == HZP_DISK_F64)
            memcpy(&wide, x + bad * sizeof(wide), sizeof(wide));
        else
            wide = (double)value;
        return hzp_fail(load->reterr, HZP_EFORMAT,
                        "%s/%s: tensor %.120s: element %zu is %s; weights must be finite",
                        load->dir, load->in_file[i], t->name, first + at + bad,
                        isnan(wide)   ? "NaN"
                        : isinf(wide) ? "infinite"
                                      : "too large for the type in memory");
    }
    return HZP_OK;
}

/* Converts elements [first, first + n) of one of the layout's tensors, in runs that lie together on
 * disk: rows of a slice's columns do not. */
static int take_tensor(struct hzp_model_reader *load, int32_t i, size_t first, size_t n, char *to)
{
    const struct hzp_disk_tensor *d = &load->layout->disk[i];
    size_t cols = d->vector ? 1 : (size_t)load->layout->tensor[d->tensor].cols;
    size_t disk_cols = (size_t)d->disk_cols, size = hzp_dtype_size(load->type);
    if (cols == disk_cols && !d->rotary)
        return take_run(load, i, (size_t)d->disk_row0 * disk_cols + first, n, to);
    for (size_t at = first, end = first + n; at < end;) {
        size_t row = at / cols, col = at % cols, run = HZP_MIN(cols - col, end - at);
        row = (size_t)(d->disk_row0 + hzp_disk_row(d, (int32_t)row));
        size_t on_disk = row * disk_cols + (size_t)d->disk_col0 + col;
        HZP_TRY(take_run(load, i, on_disk, run, to + (at - first) * size));
        at += run;
    }
    return HZP_OK;
}

/* A directory without a config.json that can be read is none. */
static bool is_wrapped(const char *dir)
{
    char path[PATH_MAX];
    json_auto_t *root = NULL, *text = NULL;
    struct hzp_err_text err;
    if (snprintf(path, sizeof(path), "%s/config.json", dir) >= PATH_MAX ||
        hzp_json_read(path, INDEX_BYTES_MAX, HZP_JSON_UNIQUE, &root, &err) < 0)
        return false;
    hzp_wrapper_text(path, root, &text, &err);
    return text != NULL;
}

int hzp_model_open(const char *dir, const struct hzp_layout *layout, enum hzp_dtype type,
                   struct hzp_model_reader **ret, struct hzp_err_text *reterr)
{
    struct hzp_model_reader *load = hzp_xcalloc(1, sizeof(*load));
    load->dir = hzp_xstrdup(dir);
    load->layout = layout;
    load->type = type;
    load->wrapped = is_wrapped(dir);
    load->reterr = reterr;
    load->piece = hzp_xmalloc(LOAD_PIECE * sizeof(double));
    int r = list_files(load);
    if (r == HZP_OK)
        r = place_all(load);
    if (r < 0) {
        hzp_model_close(load);
        return r;
    }
    *ret = load;
    return HZP_OK;
}

void hzp_model_close(struct hzp_model_reader *load)
{
    if (!load)
        return;
    for (int32_t i = 0; load->st && i < load->files; i++)
        hzp_safetensors_close(load->st[i]);
    free(load->piece);
    free(load->st);
    free(load->file);
    free(load->named);
    free(load->found);
    free(load->in_file);
    free(load->dir);
    free(load);
}

int hzp_model_read(struct hzp_model_reader *load, int32_t u, size_t first, size_t count, void *ret,
                   struct hzp_err_text *reterr)
{
    const struct hzp_layout *l = load->layout;
    size_t size = hzp_dtype_size(load->type);
    HZP_ASSERT(u >= 0 && u < l->units && first <= l->unit[u].elements &&
               count <= l->unit[u].elements - first);
    load->reterr = reterr;
    zero_padding(l, u, first, first + count, size, ret);
    for (int32_t i = 0; i < l->disks; i++) {
        const struct hzp_disk_tensor *d = &l->disk[i];
        size_t begin = disk_offset(l, d), end = begin + disk_elements(l, d);
        size_t from = HZP_MAX(begin, first), to = HZP_MIN(end, first + count);
        if (l->tensor[d->tensor].unit == u && from < to)
            HZP_TRY(
                take_tensor(load, i, from - begin, to - from, (char *)ret + (from - first) * size));
    }
    return HZP_OK;
}

static int take_unit(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    struct hzp_model_reader *load = ctx;
    HZP_TRY(hzp_model_read(load, u, 0, host->elements, host->base, load->reterr));
    load->checksum += hzp_unit_checksum(host);
    return HZP_OK;
}

int hzp_model_load(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                   uint64_t *ret_checksum, struct hzp_err_text *reterr)
{
    struct hzp_model_reader *load;
    HZP_TRY(hzp_model_open(dir, units->layout, units->type, &load, reterr));
    int r = hzp_units_fill(dev, units, take_unit, load);
    if (r == HZP_OK && ret_checksum)
        *ret_checksum = load->checksum;
    hzp_model_close(load);
    return r;
}

bool hzp_convert_knows(enum hzp_disk_type from)
{
    return from == HZP_DISK_F64 || from == HZP_DISK_F32 || from == HZP_DISK_F16 ||
           from == HZP_DISK_BF16;
}

/* IEEE half precision: 1 sign, 5 exponent, 10 fraction bits; exact in F32. */
static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu, rest = h & 0x3ffu;
    if (exponent == 0) {
        float small = (float)rest * 0x1p-24f; /* subnormal: rest * 2^-24 */
        return sign ? -small : small;
    }
    if (exponent == 31)
        return hzp_f32_from_bits(sign | 0x7f800000u | rest << 13);
    return hzp_f32_from_bits(sign | (exponent + 112) << 23 | rest << 13);
}

/* Rounding twice (F64 to F32 to BF16) can go wrong at ties. Rounding to odd first avoids that: the
 * last bit records that something was cut off. */
static float f32_to_odd(double x)
{
    float f = (float)x;
    uint32_t bits = hzp_f32_bits(f);
    if ((double)f == x || isnan(x))
        return f;
    if (fabs((double)f) > fabs(x))
        bits--;
    return hzp_f32_from_bits(bits | 1);
}

/* Element i of unaligned memory. */
static uint16_t load16(const void *x, size_t i)
{
    uint16_t value;
    memcpy(&value, (const char *)x + i * sizeof(value), sizeof(value));
    return value;
}

static float load32(const void *x, size_t i)
{
    float value;
    memcpy(&value, (const char *)x + i * sizeof(value), sizeof(value));
    return value;
}

static double load64(const void *x, size_t i)
{
    double value;
    memcpy(&value, (const char *)x + i * sizeof(value), sizeof(value));
    return value;
}

static void to_f32(enum hzp_disk_type from, const void *x, float *y, size_t n)
{
    if (from == HZP_DISK_F64)
        for (size_t i = 0; i < n; i++)
            y[i] = (float)load64(x, i);
    else if (from == HZP_DISK_F16)
        for (size_t i = 0; i < n; i++)
            y[i] = from_f16(load16(x, i));
    else
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_to_f32(load16(x, i));
}

static void to_bf16(enum hzp_disk_type from, const void *x, uint16_t *y, size_t n)
{
    if (from == HZP_DISK_F64)
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_from_f32(f32_to_odd(load64(x, i)));
    else if (from == HZP_DISK_F16)
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_from_f32(from_f16(load16(x, i)));
    else
        for (size_t i = 0; i < n; i++)
            y[i] = hzp_bf16_from_f32(load32(x, i));
}

void hzp_convert(enum hzp_disk_type from, const void *x, enum hzp_dtype to, void *y, size_t n)
{
    HZP_ASSERT(hzp_convert_knows(from) && (to == HZP_F32 || to == HZP_BF16));
    if ((from == HZP_DISK_F32 && to == HZP_F32) || (from == HZP_DISK_BF16 && to == HZP_BF16))
        memcpy(y, x, n * (to == HZP_F32 ? sizeof(float) : sizeof(uint16_t)));
    else if (to == HZP_F32)
        to_f32(from, x, y, n);
    else
        to_bf16(from, x, y, n);
}

/* A number is NaN or infinite if all bits of its exponent are set. Blocks of a fixed length without
 * an early exit compile to vector code. */
enum { BLOCK = 256 };

static bool block_finite_f32(const uint32_t *bits)
{
    uint32_t bad = 0;
    for (int i = 0; i < BLOCK; i++)
        bad |= (bits[i] & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

static bool block_finite_bf16(const uint16_t *bits)
{
    uint16_t bad = 0;
    for (int i = 0; i < BLOCK; i++)
        bad |= (bits[i] & 0x7f80u) == 0x7f80u;
    return !bad;
}

size_t hzp_first_nonfinite(enum hzp_dtype type, const void *y, size_t n)
{
    HZP_ASSERT(type == HZP_F32 || type == HZP_BF16);
    const uint32_t *wide = y;
    const uint16_t *narrow = y;
    size_t i = 0;
    while (i + BLOCK <= n &&
           (type == HZP_F32 ? block_finite_f32(wide + i) : block_finite_bf16(narrow + i)))
        i += BLOCK;
    while (i < n && (type == HZP_F32 ? (wide[i] & 0x7f800000u) != 0x7f800000u
                                     : (narrow[i] & 0x7f80u) != 0x7f80u))
        i++;
    return i;
}
