/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/manifest.h"

#include "base/file.h"
#include "base/hash.h"
#include "weights/model_dir.h"

/* --- Numbers and texts ------------------------------------------------------------------------ */

void hzp_checksum_text(uint64_t checksum, char ret[20])
{
    snprintf(ret, 20, "%016" PRIx64, checksum);
}

bool hzp_checksum_read(const char *text, uint64_t *ret)
{
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *ret = strtoull(text, NULL, 16);
    return true;
}

const char *hzp_manifest_type_name(enum hzp_dtype type)
{
    return type == HZP_BF16 ? "BF16" : "F32";
}

bool hzp_manifest_type_read(const char *text, enum hzp_dtype *ret)
{
    if (!text || (strcmp(text, "BF16") && strcmp(text, "F32")))
        return false;
    *ret = strcmp(text, "F32") ? HZP_BF16 : HZP_F32;
    return true;
}

uint64_t hzp_manifest_unit_bytes(const struct hzp_layout *layout, enum hzp_dtype type, int32_t u)
{
    return (uint64_t)layout->unit[u].elements * hzp_dtype_size(type);
}

uint64_t hzp_manifest_sum(const struct hzp_layout *layout, enum hzp_dtype type, int32_t u,
                          uint64_t at, const void *data, size_t n)
{
    size_t size = hzp_dtype_size(type);
    const struct hzp_unit_view view = {.base = (void *)data,
                                       .type = type,
                                       .elements = layout->unit[u].elements,
                                       .part = {(size_t)at / size, n / size}};
    return hzp_unit_checksum(&view);
}

void hzp_manifest_fini(struct hzp_manifest *m)
{
    free(m->unit);
    memset(m, 0, sizeof(*m));
}

void hzp_manifest_copy(struct hzp_manifest *ret, const struct hzp_manifest *from)
{
    *ret = *from;
    ret->unit = hzp_xcalloc((size_t)from->units + 1, sizeof(*ret->unit));
    if (from->units)
        memcpy(ret->unit, from->unit, (size_t)from->units * sizeof(*ret->unit));
}

/* --- Of a directory --------------------------------------------------------------------------- */

int hzp_manifest_read_file(const char *dir, const char *name, uint64_t at, void *ret, size_t max,
                           size_t *ret_bytes, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    uint64_t size;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = hzp_file_open(path, &size, reterr);
    HZP_TRY(fd);
    int64_t n = hzp_file_read_at(fd, ret, max, at);
    int error = errno;
    close(fd);
    *ret_bytes = (size_t)HZP_MAX(n, 0);
    return n < 0 ? hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(error)) : HZP_OK;
}

static int add_file(struct hzp_manifest *m, const char *dir, const char *name, char *buffer,
                    struct hzp_err_text *reterr)
{
    struct hzp_manifest_file *f = &m->file[m->files];
    size_t n = 1;
    *f = (struct hzp_manifest_file){.checksum = HZP_FNV};
    snprintf(f->name, sizeof(f->name), "%s", name);
    for (; n; f->bytes += n) {
        HZP_TRY(
            hzp_manifest_read_file(dir, name, f->bytes, buffer, HZP_TRANSFER_PIECE, &n, reterr));
        f->checksum = hzp_fnv(f->checksum, buffer, n);
    }
    if (f->bytes > HZP_MANIFEST_FILE_BYTES_MAX)
        return hzp_fail(reterr, HZP_EFORMAT, "%s/%s: it is too large", dir, name);
    m->files++;
    return HZP_OK;
}

static int add_files(struct hzp_manifest *m, const char *dir, char *buffer,
                     struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    const char *name;
    for (int i = 0; (name = hzp_model_text_name(i)) && m->files < HZP_MANIFEST_FILES_MAX; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, name);
        if (access(path, F_OK) == 0)
            HZP_TRY(add_file(m, dir, name, buffer, reterr));
    }
    return HZP_OK;
}

static int add_units(struct hzp_manifest *m, const char *dir, const struct hzp_layout *l,
                     char *buffer, const atomic_bool *stop, struct hzp_err_text *reterr)
{
    struct hzp_model_reader *reader;
    size_t size = hzp_dtype_size(m->type), most = HZP_TRANSFER_PIECE / size;
    HZP_TRY(hzp_model_open(dir, l, m->type, &reader, reterr));
    int r = HZP_OK;
    for (int32_t u = 0; u < l->units && r >= 0; u++) {
        for (size_t at = 0; at < l->unit[u].elements && r >= 0; at += most) {
            size_t n = HZP_MIN(l->unit[u].elements - at, most);
            r = stop && atomic_load(stop) ? hzp_fail(reterr, HZP_ECANCELED, "the server stops")
                                          : hzp_model_read(reader, u, at, n, buffer, reterr);
            if (r >= 0)
                m->unit[u] += hzp_manifest_sum(l, m->type, u, at * size, buffer, n * size);
        }
        m->checksum += m->unit[u];
    }
    hzp_model_close(reader);
    return r;
}

int hzp_manifest_make(const char *dir, const struct hzp_layout *layout, enum hzp_dtype type,
                      const atomic_bool *stop, struct hzp_manifest *ret,
                      struct hzp_err_text *reterr)
{
    struct hzp_manifest m = {.type = type, .units = layout->units};
    hzp_fingerprint_shapes(layout, NULL, m.shapes);
    HZP_TRY(hzp_fingerprint_tokenizer(dir, m.tokenizer, reterr));
    m.unit = hzp_xcalloc((size_t)m.units + 1, sizeof(*m.unit));
    HZP_FREED char *buffer = hzp_xmalloc(HZP_TRANSFER_PIECE);
    int r = add_files(&m, dir, buffer, reterr);
    if (r >= 0)
        r = add_units(&m, dir, layout, buffer, stop, reterr);
    if (r < 0)
        hzp_manifest_fini(&m);
    else
        *ret = m;
    return r;
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *tensors_json(const struct hzp_layout *l, int32_t u)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < l->disks; i++) {
        const struct hzp_disk_tensor *d = &l->disk[i];
        const struct hzp_tensor *t = &l->tensor[d->tensor];
        if (t->unit != u || (i > 0 && hzp_layout_continues(l, i - 1)))
            continue;
        int rows = d->rows;
        for (int32_t j = i; hzp_layout_continues(l, j); j++)
            rows += l->disk[j + 1].rows;
        json_t *shape = json_pack("[i]", rows);
        if (!d->vector)
            json_array_append_new(shape, json_integer(t->cols));
        json_array_append_new(list, json_pack("{s:s, s:o}", "name", d->name, "shape", shape));
    }
    return list;
}

json_t *hzp_manifest_json(const struct hzp_manifest *m, const struct hzp_layout *layout)
{
    char text[20];
    json_t *units = json_array(), *files = json_array();
    for (int32_t u = 0; u < m->units; u++) {
        hzp_checksum_text(m->unit[u], text);
        json_array_append_new(units,
                              json_pack("{s:i, s:I, s:s, s:o}", "unit", (int)u, "bytes",
                                        (json_int_t)hzp_manifest_unit_bytes(layout, m->type, u),
                                        "checksum", text, "tensors", tensors_json(layout, u)));
    }
    for (int32_t i = 0; i < m->files; i++) {
        hzp_checksum_text(m->file[i].checksum, text);
        json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", m->file[i].name, "bytes",
                                               (json_int_t)m->file[i].bytes, "checksum", text));
    }
    hzp_checksum_text(m->checksum, text);
    return json_pack("{s:s, s:I, s:s, s:s, s:s, s:s, s:o, s:o}", "object", "weights.manifest",
                     "version", (json_int_t)m->version, "checksum", text, "dtype",
                     hzp_manifest_type_name(m->type), "shapes", m->shapes, "tokenizer",
                     m->tokenizer, "units", units, "files", files);
}

static int bad_field(const char *name, struct hzp_err_text *reterr)
{
    return hzp_fail_param(reterr, HZP_EFORMAT, name, "%s: missing, or not as a manifest has it",
                          name);
}

static int read_text(const json_t *json, const char *name, char ret[HZP_FINGERPRINT_SIZE],
                     struct hzp_err_text *reterr)
{
    const char *text = json_string_value(json_object_get(json, name));
    if (!text || strlen(text) >= HZP_FINGERPRINT_SIZE)
        return bad_field(name, reterr);
    snprintf(ret, HZP_FINGERPRINT_SIZE, "%s", text);
    return HZP_OK;
}

static bool is_text_file(const char *name)
{
    const char *known;
    for (int i = 0; (known = hzp_model_text_name(i)); i++)
        if (!strcmp(name, known))
            return true;
    return false;
}

static int read_files(const json_t *list, struct hzp_manifest *m, struct hzp_err_text *reterr)
{
    size_t i;
    const json_t *one;
    if (!json_is_array(list) || json_array_size(list) > HZP_MANIFEST_FILES_MAX)
        return bad_field("files", reterr);
    json_array_foreach(list, i, one)
    {
        struct hzp_manifest_file *f = &m->file[i];
        const char *name = json_string_value(json_object_get(one, "name"));
        json_int_t bytes = json_integer_value(json_object_get(one, "bytes"));
        const char *sum = json_string_value(json_object_get(one, "checksum"));
        if (!name || !is_text_file(name) || bytes < 0 ||
            (uint64_t)bytes > HZP_MANIFEST_FILE_BYTES_MAX || !hzp_checksum_read(sum, &f->checksum))
            return bad_field("files", reterr);
        snprintf(f->name, sizeof(f->name), "%s", name);
        f->bytes = (uint64_t)bytes;
        m->files++;
    }
    return HZP_OK;
}

static int read_units(const json_t *list, struct hzp_manifest *m, struct hzp_err_text *reterr)
{
    size_t u;
    const json_t *one;
    uint64_t sum = 0;
    json_array_foreach(list, u, one)
    {
        const char *text = json_string_value(json_object_get(one, "checksum"));
        const json_t *number = json_object_get(one, "unit");
        if (json_integer_value(number) != (json_int_t)u || !hzp_checksum_read(text, &m->unit[u]))
            return bad_field("units", reterr);
        sum += m->unit[u];
    }
    return sum == m->checksum ? HZP_OK
                              : hzp_fail_param(reterr, HZP_EFORMAT, "checksum",
                                               "checksum: it is not the sum of its units'");
}

static int read_all(const json_t *json, struct hzp_manifest *m, struct hzp_err_text *reterr)
{
    const json_t *units = json_object_get(json, "units");
    json_int_t version = json_integer_value(json_object_get(json, "version"));
    if (version < 0)
        return bad_field("version", reterr);
    m->version = (uint64_t)version;
    if (!hzp_checksum_read(json_string_value(json_object_get(json, "checksum")), &m->checksum))
        return bad_field("checksum", reterr);
    if (!hzp_manifest_type_read(json_string_value(json_object_get(json, "dtype")), &m->type))
        return bad_field("dtype", reterr);
    HZP_TRY(read_text(json, "shapes", m->shapes, reterr));
    HZP_TRY(read_text(json, "tokenizer", m->tokenizer, reterr));
    if (!json_is_array(units) || json_array_size(units) > HZP_MANIFEST_UNITS_MAX)
        return bad_field("units", reterr);
    m->units = (int32_t)json_array_size(units);
    m->unit = hzp_xcalloc((size_t)m->units + 1, sizeof(*m->unit));
    HZP_TRY(read_units(units, m, reterr));
    const json_t *files = json_object_get(json, "files");
    return files ? read_files(files, m, reterr) : HZP_OK;
}

int hzp_manifest_read(const json_t *json, struct hzp_manifest *ret, struct hzp_err_text *reterr)
{
    struct hzp_manifest m = {.units = 0};
    int r = read_all(json, &m, reterr);
    if (r < 0)
        hzp_manifest_fini(&m);
    else
        *ret = m;
    return r;
}

int hzp_manifest_agrees(const struct hzp_manifest *m, const struct hzp_layout *layout,
                        enum hzp_dtype type, const char *tokenizer, struct hzp_err_text *reterr)
{
    char shapes[HZP_FINGERPRINT_SIZE];
    hzp_fingerprint_shapes(layout, NULL, shapes);
    if (strcmp(m->shapes, shapes) || m->units != layout->units)
        return hzp_wrong(reterr, "shapes", ": the weights are of another model: %s, here %s",
                         m->shapes, shapes);
    if (m->type != type)
        return hzp_wrong(reterr, "dtype", ": %s, here %s", hzp_manifest_type_name(m->type),
                         hzp_manifest_type_name(type));
    if (strcmp(m->tokenizer, tokenizer))
        return hzp_wrong(reterr, "tokenizer",
                         ": the weights are of a model with another one: %s, here %s", m->tokenizer,
                         tokenizer);
    return HZP_OK;
}
