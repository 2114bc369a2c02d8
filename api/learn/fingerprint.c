/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/fingerprint.h"

#include "weights/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Of a tensor larger than all pieces together, so many pieces of so many bytes are read. */
enum { PIECES = 8, PIECE_BYTES = 512 };

uint64_t hzp_fnv(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

void hzp_fingerprint_shapes(const struct hzp_layout *layout, struct hzp_tokenizer *tok,
                            char ret[HZP_FINGERPRINT_SIZE])
{
    uint64_t hash = HZP_FNV;
    const struct hzp_model_config *c = &layout->config;
    for (int32_t i = 0; i < layout->tensors; i++) {
        const struct hzp_tensor *t = &layout->tensor[i];
        int32_t shape[] = {(int32_t)t->role, t->layer, t->rows, t->cols};
        hash = hzp_fnv(hash, shape, sizeof(shape));
    }
    for (int32_t i = 0; tok && i < hzp_tokenizer_vocab(tok); i++) {
        size_t bytes = 0;
        const char *text = hzp_tokenizer_spelling(tok, i, &bytes);
        hash = hzp_fnv(hash, &bytes, sizeof(bytes));
        hash = hzp_fnv(hash, text, text ? bytes : 0);
    }
    snprintf(ret, HZP_FINGERPRINT_SIZE, "%s-%dx%d-vocab%d-%016" PRIx64, c->family, c->layers,
             c->width, c->vocab, hash);
}

static int tensor_hash(const struct hzp_st_tensor *t, uint64_t *ret, struct hzp_err_text *reterr)
{
    char piece[PIECES * PIECE_BYTES];
    int64_t size = (int64_t)hzp_disk_type_size(t->type), each = PIECE_BYTES / size;
    uint64_t hash = hzp_fnv(HZP_FNV, t->name, strlen(t->name));
    const int64_t head[] = {(int64_t)t->type, t->dims, t->elements};
    hash = hzp_fnv(hash, head, sizeof(head));
    hash = hzp_fnv(hash, t->shape, (size_t)t->dims * sizeof(t->shape[0]));
    int64_t pieces = t->elements <= PIECES * each ? 1 : PIECES;
    int64_t length = pieces == 1 ? t->elements : each;
    for (int64_t i = 0; i < pieces; i++) {
        int64_t at = pieces == 1 ? 0 : (t->elements - each) / (PIECES - 1) * i;
        HZP_TRY(hzp_safetensors_read(t, at, length, piece, reterr));
        hash = hzp_fnv(hash, piece, (size_t)(length * size));
    }
    *ret = hash;
    return HZP_OK;
}

/* Adds the file's tensors: a sum, so that neither their order nor their files matter. */
static int add_file(const char *path, uint64_t *sum, int32_t *count, struct hzp_err_text *reterr)
{
    struct hzp_safetensors *st;
    struct hzp_err_text hole;
    HZP_TRY(hzp_safetensors_open_holed(path, &st, &hole, reterr));
    int r = HZP_OK;
    for (int32_t i = 0; i < hzp_safetensors_count(st) && r >= 0; i++) {
        uint64_t hash = 0;
        r = tensor_hash(hzp_safetensors_at(st, i), &hash, reterr);
        *sum += hash;
    }
    *count += hzp_safetensors_count(st);
    hzp_safetensors_close(st);
    return r;
}

static bool is_weights(const char *name)
{
    static const char tail[] = ".safetensors";
    size_t length = strlen(name), end = sizeof(tail) - 1;
    return !strncmp(name, "model", 5) && length > end && !strcmp(name + length - end, tail);
}

int hzp_fingerprint_weights(const char *dir, char ret[HZP_FINGERPRINT_SIZE],
                            struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    uint64_t sum = 0;
    int32_t tensors = 0;
    int r = HZP_OK;
    DIR *files = opendir(dir);
    for (struct dirent *entry; files && r >= 0 && (entry = readdir(files));) {
        if (!is_weights(entry->d_name))
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        r = add_file(path, &sum, &tensors, reterr);
    }
    if (files)
        closedir(files);
    if (tensors)
        snprintf(ret, HZP_FINGERPRINT_SIZE, "%d tensors %016" PRIx64, tensors, sum);
    else
        snprintf(ret, HZP_FINGERPRINT_SIZE, "none");
    return r;
}

int hzp_fingerprint_tokenizer(const char *dir, char ret[HZP_FINGERPRINT_SIZE],
                              struct hzp_err_text *reterr)
{
    char path[PATH_MAX], piece[1 << 16];
    uint64_t hash = HZP_FNV;
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT) {
        snprintf(ret, HZP_FINGERPRINT_SIZE, "none");
        return HZP_OK;
    }
    for (size_t n; file && (n = fread(piece, 1, sizeof(piece), file)) > 0;)
        hash = hzp_fnv(hash, piece, n);
    bool bad = !file || ferror(file);
    int error = errno;
    if (file)
        fclose(file);
    if (bad)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(error));
    snprintf(ret, HZP_FINGERPRINT_SIZE, "%016" PRIx64, hash);
    return HZP_OK;
}
