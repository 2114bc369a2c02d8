/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/safetensors.h"

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The bound that the format defines. */
enum { HEADER_MAX = 100 * 1000 * 1000 };

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

struct meta {
    const char *key, *value;
};

struct hzp_safetensors {
    int fd; /* negative: none */
    char *path;
    uint64_t size;
    char *text;           /* every string of the header, decoded and 0-terminated */
    struct entry *entry;  /* ordered by begin */
    struct entry **named; /* ordered by name */
    struct meta *meta;
    size_t entries, entries_room, metas, metas_room;
};

/* The header is not parsed by a JSON library, which would build a tree of many times the header's
 * size before the first check.  Its grammar is tiny (an object of objects of strings and lists of
 * whole numbers, never deeper than three), so it is parsed straight into the table: no recursion,
 * and memory in proportion to the header. */
struct parser {
    struct hzp_safetensors *st;
    const char *path;
    const unsigned char *begin, *at, *end;
    size_t text_used;
    bool metadata;                /* its texts are being read: any that JSON has */
    const char *tensor;           /* the tensor being read; NULL: none yet */
    struct hzp_err_text *rethole; /* the first hole in the data */
    struct hzp_err_text *reterr;
};

static int fail_header(const struct parser *p, const char *what)
{
    size_t at = (size_t)(p->at - p->begin);
    if (p->tensor)
        return hzp_fail(p->reterr, HZP_EFORMAT, "%s: tensor %.120s: %s (header byte %zu)", p->path,
                        p->tensor, what, at);
    return hzp_fail(p->reterr, HZP_EFORMAT, "%s: %s (header byte %zu)", p->path, what, at);
}

static void skip_space(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
}

/* Consumes the character if it comes next. */
static bool take(struct parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != (unsigned char)c)
        return false;
    p->at++;
    return true;
}

static int expect(struct parser *p, char c)
{
    char what[] = "expected '?'";
    what[10] = c;
    return take(p, c) ? HZP_OK : fail_header(p, what);
}

static const char *here(const struct parser *p)
{
    return (const char *)p->at;
}

/* Parses four hex digits; -1: they are not. */
static int32_t take_hex(struct parser *p)
{
    int32_t value = hzp_json_hex4(here(p), (const char *)p->end);
    p->at += value < 0 ? 0 : 4;
    return value;
}

/* Parses what follows \u and appends it as UTF-8 (never longer than the escape was).  A zero would
 * end a name early; it, and half a surrogate pair, is U+FFFD where no name is read. */
static int take_unicode(struct parser *p)
{
    int32_t c = take_hex(p);
    bool half = c >= 0xd800 && c < 0xe000;
    if (c >= 0xd800 && c < 0xdc00) {
        const unsigned char *behind = p->at;
        int32_t low = -1;
        if (p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
            p->at += 2;
            low = take_hex(p);
        }
        half = low < 0xdc00 || low >= 0xe000;
        if (half)
            p->at = behind;
        else
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c < 0 || ((half || c == 0) && !p->metadata))
        return fail_header(p, "a string has a wrong \\u escape");
    if (half || c == 0)
        c = 0xfffd;
    p->text_used += (size_t)hzp_utf8_put(p->st->text + p->text_used, (uint32_t)c);
    return HZP_OK;
}

static int take_escape(struct parser *p)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = p->at < p->end ? *p->at++ : 0;
    if (c == 'u')
        return take_unicode(p);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found)
        return fail_header(p, "a string has a wrong escape");
    p->st->text[p->text_used++] = to[found - from];
    return HZP_OK;
}

/* Parses a string into st->text.  Decoding never makes it longer, and the terminating 0 fits in
 * place of the quotes, so a buffer of the header's length is enough. */
static int take_string(struct parser *p, const char **ret)
{
    char *begin = p->st->text + p->text_used;
    if (!take(p, '"'))
        return fail_header(p, "expected a string");
    for (;;) {
        if (p->at == p->end)
            return fail_header(p, "a string does not end");
        size_t n = hzp_utf8_bytes(here(p), (const char *)p->end);
        if (*p->at == '"')
            break;
        if (*p->at < 0x20)
            return fail_header(p, "a string has a control character");
        if (n == 0)
            return fail_header(p, "a string is not UTF-8");
        if (*p->at == '\\') {
            p->at++;
            HZP_TRY(take_escape(p));
            continue;
        }
        memcpy(p->st->text + p->text_used, p->at, n);
        p->text_used += n;
        p->at += n;
    }
    p->at++;
    p->st->text[p->text_used++] = 0;
    *ret = begin;
    return HZP_OK;
}

/* Parses a whole number from 0 to INT64_MAX. */
static int take_number(struct parser *p, int64_t *ret)
{
    int64_t value = 0;
    skip_space(p);
    if (p->at < p->end && *p->at == '-')
        return fail_header(p, "a number is negative");
    if (p->at == p->end || *p->at < '0' || *p->at > '9')
        return fail_header(p, "expected a whole number");
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p->at++ - '0', &value))
            return fail_header(p, "a number is too large");
    if (p->at < p->end && (*p->at == '.' || *p->at == 'e' || *p->at == 'E'))
        return fail_header(p, "a number is not whole");
    *ret = value;
    return HZP_OK;
}

/* Parses a list of at most max numbers. */
static int take_numbers(struct parser *p, int64_t *ret, int max, int *ret_count)
{
    int n = 0;
    HZP_TRY(expect(p, '['));
    if (!take(p, ']'))
        for (;;) {
            if (n == max)
                return fail_header(p, "a list is too long");
            HZP_TRY(take_number(p, &ret[n++]));
            if (take(p, ']'))
                break;
            HZP_TRY(expect(p, ','));
        }
    *ret_count = n;
    return HZP_OK;
}

/* Makes room for one more element in an array that doubles in size. */
static int make_room(const struct parser *p, void **array, size_t used, size_t *room, size_t size)
{
    if (used < *room)
        return HZP_OK;
    size_t more = HZP_MAX(*room * 2, (size_t)64);
    void *grown = realloc(*array, more * size);
    if (!grown)
        return hzp_fail(p->reterr, HZP_ENOMEM, "%s: out of memory reading the header", p->path);
    *array = grown;
    *room = more;
    return HZP_OK;
}

static int take_metadata(struct parser *p)
{
    struct hzp_safetensors *st = p->st;
    HZP_TRY(expect(p, '{'));
    if (take(p, '}'))
        return HZP_OK;
    do {
        struct meta meta;
        HZP_TRY(take_string(p, &meta.key));
        HZP_TRY(expect(p, ':'));
        HZP_TRY(take_string(p, &meta.value));
        void *array = st->meta;
        HZP_TRY(make_room(p, &array, st->metas, &st->metas_room, sizeof(meta)));
        st->meta = array;
        st->meta[st->metas++] = meta;
    } while (take(p, ','));
    return expect(p, '}');
}

static int take_type(struct parser *p, enum hzp_disk_type *ret)
{
    const char *name;
    HZP_TRY(take_string(p, &name));
    for (int i = 0; i < HZP_COUNT(types); i++)
        if (!strcmp(name, types[i].name)) {
            *ret = (enum hzp_disk_type)i;
            return HZP_OK;
        }
    return hzp_fail(p->reterr, HZP_EFORMAT, "%s: tensor %.120s: dtype \"%.20s\" is not known",
                    p->path, p->tensor, name);
}

/* Parses one field of a tensor's object; `seen` has a bit for each field that was present. */
static int take_field(struct parser *p, struct entry *e, unsigned *seen)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    const char *key;
    int field = 0, n;
    int64_t offset[2];
    HZP_TRY(take_string(p, &key));
    HZP_TRY(expect(p, ':'));
    while (field < HZP_COUNT(fields) && strcmp(key, fields[field]))
        field++;
    if (field == HZP_COUNT(fields))
        return hzp_fail(p->reterr, HZP_EFORMAT, "%s: tensor %.120s: field \"%.40s\" is not known",
                        p->path, p->tensor, key);
    if (*seen & (1u << field))
        return fail_header(p, "a field appears twice");
    *seen |= 1u << field;
    if (field == 0)
        return take_type(p, &e->tensor.type);
    if (field == 1) {
        HZP_TRY(take_numbers(p, e->tensor.shape, HZP_DIMS_MAX, &n));
        e->tensor.dims = n;
        return HZP_OK;
    }
    HZP_TRY(take_numbers(p, offset, 2, &n));
    if (n != 2)
        return fail_header(p, "data_offsets are not two numbers");
    e->begin = (uint64_t)offset[0];
    e->end = (uint64_t)offset[1];
    return HZP_OK;
}

/* Checks shape, type and offsets against each other and against the file. */
static int check_entry(const struct parser *p, struct entry *e, uint64_t data_size)
{
    struct hzp_st_tensor *t = &e->tensor;
    uint64_t bytes;
    t->elements = 1;
    for (int i = 0; i < t->dims; i++)
        if (__builtin_mul_overflow(t->elements, t->shape[i], &t->elements))
            return fail_header(p, "its shape overflows");
    if (__builtin_mul_overflow((uint64_t)t->elements, (uint64_t)types[t->type].size, &bytes))
        return fail_header(p, "its shape overflows");
    if (e->begin > e->end)
        return fail_header(p, "its data end before they begin");
    if (e->end > data_size)
        return hzp_fail(p->reterr, HZP_EFORMAT,
                        "%s: tensor %.120s: its data end at byte %" PRIu64
                        ", but the file has only %" PRIu64 " (truncated?)",
                        p->path, t->name, e->end, data_size);
    if (e->end - e->begin != bytes)
        return hzp_fail(p->reterr, HZP_EFORMAT,
                        "%s: tensor %.120s: its offsets span %" PRIu64
                        " bytes, its shape and type need %" PRIu64,
                        p->path, t->name, e->end - e->begin, bytes);
    return HZP_OK;
}

static int take_tensor(struct parser *p, const char *name, uint64_t data_size)
{
    struct hzp_safetensors *st = p->st;
    struct entry e = {.tensor = {.name = name}};
    unsigned seen = 0;
    p->tensor = name;
    HZP_TRY(expect(p, '{'));
    if (!take(p, '}')) {
        do
            HZP_TRY(take_field(p, &e, &seen));
        while (take(p, ','));
        HZP_TRY(expect(p, '}'));
    }
    if (seen != 7)
        return fail_header(p, !(seen & 1)   ? "no dtype"
                              : !(seen & 2) ? "no shape"
                                            : "no data_offsets");
    HZP_TRY(check_entry(p, &e, data_size));
    void *array = st->entry;
    HZP_TRY(make_room(p, &array, st->entries, &st->entries_room, sizeof(e)));
    st->entry = array;
    st->entry[st->entries++] = e;
    if (st->entries > INT32_MAX)
        return fail_header(p, "too many tensors");
    p->tensor = NULL;
    return HZP_OK;
}

static int parse_header(struct parser *p, uint64_t data_size)
{
    bool has_metadata = false;
    const char *name;
    HZP_TRY(expect(p, '{'));
    if (!take(p, '}')) {
        do {
            HZP_TRY(take_string(p, &name));
            HZP_TRY(expect(p, ':'));
            if (strcmp(name, "__metadata__")) {
                HZP_TRY(take_tensor(p, name, data_size));
                continue;
            }
            if (has_metadata)
                return fail_header(p, "__metadata__ appears twice");
            has_metadata = true;
            p->metadata = true;
            HZP_TRY(take_metadata(p));
            p->metadata = false;
        } while (take(p, ','));
        HZP_TRY(expect(p, '}'));
    }
    skip_space(p);
    return p->at == p->end ? HZP_OK : fail_header(p, "something follows the JSON");
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

/* Records that bytes from..to belong to no tensor; next: the tensor behind them, NULL: none. */
static void note_hole(const struct parser *p, uint64_t from, uint64_t to, const char *next)
{
    if (p->rethole->text[0])
        return;
    if (next)
        hzp_fail(p->rethole, HZP_EFORMAT,
                 "%s: tensor %.120s: its data begin at byte %" PRIu64
                 ", after a hole: those of the tensor before end at byte %" PRIu64,
                 p->path, next, to, from);
    else
        hzp_fail(p->rethole, HZP_EFORMAT,
                 "%s: %" PRIu64 " bytes of data, but the tensors end at %" PRIu64, p->path, to,
                 from);
}

/* Checks that no byte of the data is covered twice and that names are unique; records holes. */
static int check_whole(const struct parser *p, uint64_t data, uint64_t data_size)
{
    struct hzp_safetensors *st = p->st;
    uint64_t at = 0;
    if (st->entries)
        qsort(st->entry, st->entries, sizeof(*st->entry), by_begin);
    st->named = malloc(HZP_MAX(st->entries, (size_t)1) * sizeof(struct entry *));
    if (!st->named)
        return hzp_fail(p->reterr, HZP_ENOMEM, "%s: out of memory reading the header", p->path);
    for (size_t i = 0; i < st->entries; i++) {
        struct entry *e = &st->entry[i];
        if (e->begin < at)
            return hzp_fail(p->reterr, HZP_EFORMAT,
                            "%s: tensor %.120s: its data begin at byte %" PRIu64
                            ", inside those of the tensor before, which end at byte %" PRIu64,
                            p->path, e->tensor.name, e->begin, at);
        if (e->begin > at)
            note_hole(p, at, e->begin, e->tensor.name);
        at = e->end;
        e->tensor.file = p->st;
        e->tensor.at = data + e->begin;
        st->named[i] = e;
    }
    if (at != data_size)
        note_hole(p, at, data_size, NULL);
    qsort(st->named, st->entries, sizeof(struct entry *), by_name);
    for (size_t i = 1; i < st->entries; i++)
        if (!strcmp(st->named[i - 1]->tensor.name, st->named[i]->tensor.name))
            return hzp_fail(p->reterr, HZP_EFORMAT, "%s: tensor %.120s appears twice", p->path,
                            st->named[i]->tensor.name);
    return HZP_OK;
}

/* Reads bytes of the file; it had them when it was opened. */
static int read_at(const struct hzp_safetensors *st, uint64_t at, void *ret, size_t size,
                   struct hzp_err_text *reterr)
{
    char *to = ret;
    while (size) {
        ssize_t n = pread(st->fd, to, HZP_MIN(size, (size_t)1 << 30), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hzp_fail(reterr, HZP_EIO, "%s: %s", st->path, strerror(errno));
        if (n == 0)
            return hzp_fail(reterr, HZP_EIO,
                            "%s: has become shorter while it was read: it ends at byte %" PRIu64,
                            st->path, at);
        to += n;
        at += (uint64_t)n;
        size -= (size_t)n;
    }
    return HZP_OK;
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
    unsigned char *header = malloc((size_t)length + 1);
    st->text = malloc((size_t)length + 1);
    int r = header && st->text
                ? read_at(st, 8, header, (size_t)length, reterr)
                : hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory reading the header", path);
    struct parser p = {.st = st,
                       .path = path,
                       .begin = header,
                       .at = header,
                       .end = header + length,
                       .rethole = rethole,
                       .reterr = reterr};
    if (r == HZP_OK)
        r = parse_header(&p, rest - length);
    if (r == HZP_OK)
        r = check_whole(&p, 8 + length, rest - length);
    free(header);
    return r;
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
    free(st->text);
    free(st->entry);
    free(st->named);
    free(st->meta);
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
    for (size_t i = 0; i < st->metas; i++)
        if (!strcmp(st->meta[i].key, key))
            return st->meta[i].value;
    return NULL;
}
