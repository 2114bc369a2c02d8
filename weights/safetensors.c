/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/safetensors.h"

#include "base/file.h"
#include "base/json.h"

#include <fcntl.h>

/* The format allows 100 MB, of which a list of empty objects becomes a tree of 8 GB (79 bytes a
 * byte).  The header of the largest model that is read here, of HZP_LAYERS_MAX layers, has 3 MB. */
enum { HEADER_MAX = 8 << 20 };

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [HZP_DISK_F64] = {"F64", 8},   [HZP_DISK_F32] = {"F32", 4}, [HZP_DISK_F16] = {"F16", 2},
    [HZP_DISK_BF16] = {"BF16", 2}, [HZP_DISK_I64] = {"I64", 8}, [HZP_DISK_I32] = {"I32", 4},
    [HZP_DISK_I16] = {"I16", 2},   [HZP_DISK_I8] = {"I8", 1},   [HZP_DISK_U8] = {"U8", 1},
    [HZP_DISK_BOOL] = {"BOOL", 1},
};

size_t hzp_disk_type_size(enum hzp_disk_type type)
{
    return types[type].size;
}

const char *hzp_disk_type_name(enum hzp_disk_type type)
{
    return types[type].name;
}

struct entry {
    struct hzp_st_tensor tensor;
    uint64_t begin, end; /* byte range in the data */
};

struct hzp_safetensors {
    int fd; /* negative: none */
    char *path;
    uint64_t size;
    json_t *header;       /* the names of the entries are strings of it */
    struct entry *entry;  /* ordered by begin */
    struct entry **named; /* ordered by name */
    size_t entries;
};

static const char metadata[] = "__metadata__";

static int fail_tensor(const char *path, const char *tensor, const char *what,
                       struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %.120s: %s", path, tensor, what);
}

/* ---- the header ---- */

/* A list of at most max whole numbers from 0 to INT64_MAX. */
static int read_numbers(const char *path, const char *tensor, const json_t *list, int64_t *ret,
                        int max, int *ret_count, struct hzp_err_text *reterr)
{
    json_t *each;
    size_t i;
    if (!json_is_array(list))
        return fail_tensor(path, tensor, "shape or data_offsets is no list", reterr);
    if (json_array_size(list) > (size_t)max)
        return fail_tensor(path, tensor, "a list is too long", reterr);
    json_array_foreach(list, i, each)
    {
        if (!json_is_integer(each) || json_integer_value(each) < 0)
            return fail_tensor(path, tensor,
                               "a number is not a whole number, negative, or too large", reterr);
        ret[i] = json_integer_value(each);
    }
    *ret_count = (int)json_array_size(list);
    return HZP_OK;
}

static int read_type(const char *path, const char *tensor, const json_t *value,
                     enum hzp_disk_type *ret, struct hzp_err_text *reterr)
{
    const char *name = json_string_value(value);
    if (!name)
        return fail_tensor(path, tensor, "dtype is not a string", reterr);
    for (int i = 0; i < HZP_COUNT(types); i++)
        if (!strcmp(name, types[i].name)) {
            *ret = (enum hzp_disk_type)i;
            return HZP_OK;
        }
    return hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %.120s: dtype \"%.20s\" is not known", path,
                    tensor, name);
}

static int read_tensor(const char *path, const char *name, const json_t *fields, struct entry *e,
                       struct hzp_err_text *reterr)
{
    static const char *const known[] = {"dtype", "shape", "data_offsets"};
    const json_t *field[HZP_COUNT(known)];
    const char *key;
    json_t *each;
    int64_t offset[2];
    int offsets;
    *e = (struct entry){.tensor = {.name = name}};
    if (!json_is_object(fields))
        return fail_tensor(path, name, "is no object", reterr);
    json_object_foreach((json_t *)(uintptr_t)fields, key, each)
    {
        int i = 0;
        while (i < HZP_COUNT(known) && strcmp(key, known[i]))
            i++;
        if (i == HZP_COUNT(known))
            return hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %.120s: field \"%.40s\" is not known",
                            path, name, key);
    }
    for (int i = 0; i < HZP_COUNT(known); i++) {
        field[i] = json_object_get(fields, known[i]);
        if (!field[i])
            return hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %.120s: no %s", path, name, known[i]);
    }
    HZP_TRY(read_type(path, name, field[0], &e->tensor.type, reterr));
    HZP_TRY(
        read_numbers(path, name, field[1], e->tensor.shape, HZP_DIMS_MAX, &e->tensor.dims, reterr));
    HZP_TRY(read_numbers(path, name, field[2], offset, 2, &offsets, reterr));
    if (offsets != 2)
        return fail_tensor(path, name, "data_offsets are not two numbers", reterr);
    e->begin = (uint64_t)offset[0];
    e->end = (uint64_t)offset[1];
    return HZP_OK;
}

/* Checks shape, type and offsets against each other and against the file. */
static int check_entry(const char *path, struct entry *e, uint64_t data_size,
                       struct hzp_err_text *reterr)
{
    struct hzp_st_tensor *t = &e->tensor;
    uint64_t bytes;
    bool overflows = false;
    t->elements = 1;
    for (int i = 0; i < t->dims; i++)
        overflows |= __builtin_mul_overflow(t->elements, t->shape[i], &t->elements);
    overflows |=
        __builtin_mul_overflow((uint64_t)t->elements, (uint64_t)types[t->type].size, &bytes);
    if (overflows)
        return fail_tensor(path, t->name, "its shape overflows", reterr);
    if (e->begin > e->end)
        return fail_tensor(path, t->name, "its data end before they begin", reterr);
    if (e->end > data_size)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: tensor %.120s: its data end at byte %" PRIu64
                        ", but the file has only %" PRIu64 " (truncated?)",
                        path, t->name, e->end, data_size);
    if (e->end - e->begin != bytes)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: tensor %.120s: its offsets span %" PRIu64
                        " bytes, its shape and type need %" PRIu64,
                        path, t->name, e->end - e->begin, bytes);
    return HZP_OK;
}

static int check_metadata(const char *path, const json_t *texts, struct hzp_err_text *reterr)
{
    const char *key;
    json_t *value;
    bool fits = json_is_object(texts);
    json_object_foreach((json_t *)(uintptr_t)texts, key, value) fits =
        fits && json_is_string(value);
    return fits ? HZP_OK
                : hzp_fail(reterr, HZP_EFORMAT, "%s: %s is no object of strings", path, metadata);
}

/* The header's JSON into the table of entries. */
static int read_entries(struct hzp_safetensors *st, const char *text, size_t bytes,
                        uint64_t data_size, struct hzp_err_text *reterr)
{
    struct hzp_json_error error;
    const char *name;
    json_t *each;
    size_t length;
    st->header = hzp_json_load(text, bytes, HZP_JSON_ANY | HZP_JSON_UNIQUE, NULL, &error);
    if (!st->header)
        return hzp_fail(reterr, error.no_memory ? HZP_ENOMEM : HZP_EFORMAT,
                        "%s: its header, line %d, byte %d: %s", st->path, error.line, error.column,
                        error.text);
    if (!json_is_object(st->header))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: its header is not a JSON object", st->path);
    st->entry = calloc(json_object_size(st->header) + 1, sizeof(*st->entry));
    if (!st->entry)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory reading the header", st->path);
    json_object_keylen_foreach(st->header, name, length, each)
    {
        struct entry *e = &st->entry[st->entries];
        if (strlen(name) != length)
            return fail_tensor(st->path, name, "its name has \\u0000", reterr);
        if (!strcmp(name, metadata)) {
            HZP_TRY(check_metadata(st->path, each, reterr));
            continue;
        }
        HZP_TRY(read_tensor(st->path, name, each, e, reterr));
        HZP_TRY(check_entry(st->path, e, data_size, reterr));
        st->entries++;
    }
    return HZP_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

static int by_name(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;
    return strcmp((*x)->tensor.name, (*y)->tensor.name);
}

/* Says in hole, unless it has a text, that bytes from..to belong to no tensor; next: the tensor
 * behind them, NULL: none. */
static void note_hole(const char *path, uint64_t from, uint64_t to, const char *next,
                      struct hzp_err_text *hole)
{
    if (hole->text[0])
        return;
    if (next)
        hzp_fail(hole, HZP_EFORMAT,
                 "%s: tensor %.120s: its data begin at byte %" PRIu64
                 ", after a hole: those of the tensor before end at byte %" PRIu64,
                 path, next, to, from);
    else
        hzp_fail(hole, HZP_EFORMAT,
                 "%s: %" PRIu64 " bytes of data, but the tensors end at %" PRIu64, path, to, from);
}

/* Checks that no byte of the data is covered twice; records holes. */
static int check_whole(struct hzp_safetensors *st, uint64_t data, uint64_t data_size,
                       struct hzp_err_text *rethole, struct hzp_err_text *reterr)
{
    uint64_t at = 0;
    qsort(st->entry, st->entries, sizeof(*st->entry), by_begin);
    st->named = malloc(HZP_MAX(st->entries, (size_t)1) * sizeof(struct entry *));
    if (!st->named)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory reading the header", st->path);
    for (size_t i = 0; i < st->entries; i++) {
        struct entry *e = &st->entry[i];
        if (e->begin < at)
            return hzp_fail(reterr, HZP_EFORMAT,
                            "%s: tensor %.120s: its data begin at byte %" PRIu64
                            ", inside those of the tensor before, which end at byte %" PRIu64,
                            st->path, e->tensor.name, e->begin, at);
        if (e->begin > at)
            note_hole(st->path, at, e->begin, e->tensor.name, rethole);
        at = e->end;
        e->tensor.file = st;
        e->tensor.at = data + e->begin;
        st->named[i] = e;
    }
    if (at != data_size)
        note_hole(st->path, at, data_size, NULL, rethole);
    qsort(st->named, st->entries, sizeof(struct entry *), by_name);
    return HZP_OK;
}

/* Reads bytes of the file; it had them when it was opened. */
static int read_at(const struct hzp_safetensors *st, uint64_t at, void *ret, size_t size,
                   struct hzp_err_text *reterr)
{
    int64_t n = hzp_file_read_at(st->fd, ret, size, at);
    if (n < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", st->path, strerror(errno));
    return (size_t)n == size
               ? HZP_OK
               : hzp_fail(reterr, HZP_EIO,
                          "%s: has become shorter while it was read: it ends at byte %" PRIu64,
                          st->path, at + (uint64_t)n);
}

static int open_file(const char *path, struct hzp_safetensors *st, struct hzp_err_text *reterr)
{
    st->fd = hzp_file_open(path, &st->size, reterr);
    if (st->fd < 0)
        return st->fd;
    st->path = strdup(path);
    if (!st->path)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory", path);
    if (st->size < 8 || st->size > SIZE_MAX / 2)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %" PRIu64 " bytes, which is no safetensors file",
                        path, st->size);
    (void)posix_fadvise(st->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return HZP_OK;
}

static int read_header(const char *path, struct hzp_safetensors *st, struct hzp_err_text *rethole,
                       struct hzp_err_text *reterr)
{
    unsigned char bytes[8];
    uint64_t length = 0, rest = st->size - 8;
    HZP_TRY(read_at(st, 0, bytes, sizeof(bytes), reterr));
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > rest)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: by its length field the header has %" PRIu64
                        " bytes, but only %" PRIu64 " follow (truncated? git lfs pull?)",
                        path, length, rest);
    if (length > HEADER_MAX)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: by its length field the header has %" PRIu64
                        " bytes; at most %d are read",
                        path, length, HEADER_MAX);
    HZP_FREED char *text = malloc((size_t)length + 1);
    if (!text)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory reading the header", path);
    HZP_TRY(read_at(st, 8, text, (size_t)length, reterr));
    HZP_TRY(read_entries(st, text, (size_t)length, rest - length, reterr));
    return check_whole(st, 8 + length, rest - length, rethole, reterr);
}

int hzp_safetensors_open_holed(const char *path, struct hzp_safetensors **ret,
                               struct hzp_err_text *rethole, struct hzp_err_text *reterr)
{
    struct hzp_safetensors *st = calloc(1, sizeof(*st));
    rethole->text[0] = 0;
    if (!st)
        return hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory", path);
    int r = open_file(path, st, reterr);
    if (r == HZP_OK)
        r = read_header(path, st, rethole, reterr);
    if (r < 0)
        hzp_safetensors_close(st);
    else
        *ret = st;
    return r;
}

int hzp_safetensors_open(const char *path, struct hzp_safetensors **ret,
                         struct hzp_err_text *reterr)
{
    struct hzp_safetensors *st;
    struct hzp_err_text hole;
    HZP_TRY(hzp_safetensors_open_holed(path, &st, &hole, reterr));
    if (hole.text[0]) {
        hzp_safetensors_close(st);
        return hzp_fail(reterr, HZP_EFORMAT, "%s", hole.text);
    }
    *ret = st;
    return HZP_OK;
}

void hzp_safetensors_close(struct hzp_safetensors *st)
{
    if (!st)
        return;
    if (st->fd >= 0)
        close(st->fd);
    free(st->path);
    json_decref(st->header);
    free(st->entry);
    free(st->named);
    free(st);
}

int hzp_safetensors_read(const struct hzp_st_tensor *tensor, int64_t first, int64_t count,
                         void *ret, struct hzp_err_text *reterr)
{
    size_t size = hzp_disk_type_size(tensor->type);
    HZP_ASSERT(first >= 0 && count >= 0 && count <= tensor->elements - first);
    return read_at(tensor->file, tensor->at + (uint64_t)first * size, ret, (size_t)count * size,
                   reterr);
}

int32_t hzp_safetensors_count(const struct hzp_safetensors *st)
{
    return (int32_t)st->entries;
}

const struct hzp_st_tensor *hzp_safetensors_at(const struct hzp_safetensors *st, int32_t i)
{
    HZP_ASSERT(i >= 0 && (size_t)i < st->entries);
    return &st->entry[i].tensor;
}

const struct hzp_st_tensor *hzp_safetensors_find(const struct hzp_safetensors *st, const char *name)
{
    struct entry wanted = {.tensor = {.name = name}};
    struct entry *key = &wanted;
    struct entry **found = bsearch(&key, st->named, st->entries, sizeof(struct entry *), by_name);
    return found ? &(*found)->tensor : NULL;
}

const char *hzp_safetensors_meta(const struct hzp_safetensors *st, const char *key)
{
    return json_string_value(json_object_get(json_object_get(st->header, metadata), key));
}
