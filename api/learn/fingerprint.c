/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/fingerprint.h"

#include "base/file.h"
#include "base/hash.h"
#include "weights/safetensors.h"

#include <dirent.h>
#include <sys/stat.h>

enum {
    /* So many pieces of so many bytes are read of a tensor larger than all pieces together. */
    PIECES = 8,
    PIECE_BYTES = 512,
    LANES = 4,         /* independent words hashed side by side */
    BLOCK = 256 << 10, /* bytes read at a time for all contents; a multiple of all lanes */
};

/* How much of a tensor is read. */
enum extent { SAMPLE, ALL };

/* What adding a model's files shares. */
struct sum {
    enum extent extent;
    const atomic_bool *stop; /* NULL: none */
    uint64_t sum;
    int32_t tensors;
};

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

static uint64_t head_hash(const struct hzp_st_tensor *t)
{
    uint64_t hash = hzp_fnv(HZP_FNV, t->name, strlen(t->name));
    const int64_t head[] = {(int64_t)t->type, t->dims, t->elements};
    hash = hzp_fnv(hash, head, sizeof(head));
    return hzp_fnv(hash, t->shape, (size_t)t->dims * sizeof(t->shape[0]));
}

static int sample_hash(const struct hzp_st_tensor *t, uint64_t *ret, struct hzp_err_text *reterr)
{
    char piece[PIECES * PIECE_BYTES];
    int64_t size = (int64_t)hzp_disk_type_size(t->type), each = PIECE_BYTES / size;
    uint64_t hash = head_hash(t);
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

/* FNV-1a by words of 8 bytes in several lanes: as fast as memory.  bytes: a multiple of all
 * lanes. */
static void add_words(uint64_t hash[LANES], const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LANES * sizeof(uint64_t))
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t word;
            memcpy(&word, data + i + (size_t)lane * sizeof(word), sizeof(word));
            hash[lane] = (hash[lane] ^ word) * 0x100000001b3u;
            hash[lane] ^= hash[lane] >> 32; /* high bits count in what follows */
        }
}

static int whole_hash(const struct hzp_st_tensor *t, const atomic_bool *stop, char *block,
                      uint64_t *ret, struct hzp_err_text *reterr)
{
    const size_t unit = LANES * sizeof(uint64_t);
    int64_t size = (int64_t)hzp_disk_type_size(t->type), each = BLOCK / size;
    uint64_t lane[LANES] = {HZP_FNV, 1, 2, 3};
    for (int64_t at = 0; at < t->elements; at += each) {
        int64_t length = HZP_MIN(each, t->elements - at);
        size_t bytes = (size_t)(length * size), padded = HZP_ROUND_UP(bytes, unit);
        if (stop && atomic_load(stop))
            return HZP_ECANCELED;
        HZP_TRY(hzp_safetensors_read(t, at, length, block, reterr));
        memset(block + bytes, 0, padded - bytes);
        add_words(lane, block, padded);
    }
    *ret = hzp_fnv(head_hash(t), lane, sizeof(lane));
    return HZP_OK;
}

/* Adds the file's tensors: a sum, so that neither their order nor their files matter. */
static int add_file(const char *path, struct sum *sum, struct hzp_err_text *reterr)
{
    struct hzp_safetensors *st;
    struct hzp_err_text hole;
    HZP_TRY(hzp_safetensors_open_holed(path, &st, &hole, reterr));
    HZP_FREED char *block = sum->extent == ALL ? hzp_xmalloc(BLOCK) : NULL;
    int r = HZP_OK;
    for (int32_t i = 0; i < hzp_safetensors_count(st) && r >= 0; i++) {
        const struct hzp_st_tensor *t = hzp_safetensors_at(st, i);
        uint64_t hash = 0;
        r = block ? whole_hash(t, sum->stop, block, &hash, reterr) : sample_hash(t, &hash, reterr);
        sum->sum += hash;
    }
    sum->tensors += hzp_safetensors_count(st);
    hzp_safetensors_close(st);
    return r;
}

static bool is_weights(const char *name)
{
    static const char tail[] = ".safetensors";
    size_t length = strlen(name), end = sizeof(tail) - 1;
    return !strncmp(name, "model", 5) && length > end && !strcmp(name + length - end, tail);
}

static int add_dir(const char *dir, struct sum *sum, char ret[HZP_FINGERPRINT_SIZE],
                   struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    HZP_ENDED(hzp_dir_end) DIR *files = opendir(dir);
    for (struct dirent *entry; files && (entry = readdir(files));) {
        if (!is_weights(entry->d_name))
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        HZP_TRY(add_file(path, sum, reterr));
    }
    if (sum->tensors)
        snprintf(ret, HZP_FINGERPRINT_SIZE, "%d tensors %016" PRIx64, sum->tensors, sum->sum);
    else
        snprintf(ret, HZP_FINGERPRINT_SIZE, "none");
    return HZP_OK;
}

int hzp_fingerprint_weights(const char *dir, char ret[HZP_FINGERPRINT_SIZE],
                            struct hzp_err_text *reterr)
{
    struct sum sum = {.extent = SAMPLE};
    return add_dir(dir, &sum, ret, reterr);
}

int hzp_fingerprint_contents(const char *dir, const atomic_bool *stop,
                             char ret[HZP_FINGERPRINT_SIZE], struct hzp_err_text *reterr)
{
    struct sum sum = {.extent = ALL, .stop = stop};
    return add_dir(dir, &sum, ret, reterr);
}

void hzp_fingerprint_files(const char *dir, char ret[HZP_FINGERPRINT_SIZE])
{
    char path[PATH_MAX];
    uint64_t sum = 0;
    int count = 0;
    HZP_ENDED(hzp_dir_end) DIR *files = opendir(dir);
    for (struct dirent *entry; files && (entry = readdir(files));) {
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (!is_weights(entry->d_name) || stat(path, &st) < 0)
            continue;
        const int64_t at[] = {(int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
                              (int64_t)st.st_mtim.tv_nsec};
        sum += hzp_fnv(hzp_fnv(HZP_FNV, entry->d_name, strlen(entry->d_name)), at, sizeof(at));
        count++;
    }
    snprintf(ret, HZP_FINGERPRINT_SIZE, "%d files %016" PRIx64, count, sum);
}

int hzp_fingerprint_tokenizer(const char *dir, char ret[HZP_FINGERPRINT_SIZE],
                              struct hzp_err_text *reterr)
{
    HZP_FREED char *text = NULL;
    char path[PATH_MAX];
    size_t bytes;
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    snprintf(ret, HZP_FINGERPRINT_SIZE, "none");
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return HZP_OK;
    HZP_TRY(hzp_file_read(path, UINT64_MAX, &text, &bytes, reterr));
    snprintf(ret, HZP_FINGERPRINT_SIZE, "%016" PRIx64, hzp_fnv(HZP_FNV, text, bytes));
    return HZP_OK;
}
