/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda/algos.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/cache.h"
#include "base/hash.h"
#include "base/log.h"

/* entries added within this time are written together */
static const uint64_t GATHER_NS = 500000000;

enum { SLOTS = 2 * HZP_CUDA_ALGOS_MAX, IDENTITY = 104 };

/* The file: this header, then `count` entries. */
struct head {
    char magic[8];
    uint32_t entry_bytes, count;
    char identity[IDENTITY];
    uint64_t checksum; /* over the header, with this field as 0, and the entries */
};

struct hzp_cuda_algos {
    char path[4096]; /* "": entries are not kept on disk */
    char identity[IDENTITY];
    struct hzp_cuda_algo *entry;
    int32_t *slot; /* [SLOTS] index into entry + 1, by hash; 0: free */
    int count;
    int oldest; /* the entry that is evicted next, once the table is full */
    /* protects `changed`, and entry and count while they change or are copied */
    struct hzp_lock lock;
    bool changed;
    struct hzp_saver saver;
    bool failed; /* a failure was logged; used by the saver */
};

static struct head head_of(const struct hzp_cuda_algos *a)
{
    struct head head = {
        .magic = "HZPALG2", .entry_bytes = sizeof(*a->entry), .count = (uint32_t)a->count};
    memcpy(head.identity, a->identity, sizeof(head.identity));
    return head;
}

static uint64_t checksum(struct head head, const struct hzp_cuda_algo *entry)
{
    head.checksum = 0;
    uint64_t h = hzp_fnv(HZP_FNV, &head, sizeof(head));
    return hzp_fnv(h, entry, head.count * sizeof(*entry));
}

/* The slot that a key is looked for in first. */
static size_t home(const unsigned char *key)
{
    return hzp_fnv(HZP_FNV, key, HZP_CUDA_ALGO_KEY) % SLOTS;
}

static int32_t *slot_of(const struct hzp_cuda_algos *a, const unsigned char *key)
{
    size_t at = home(key);
    while (a->slot[at] && memcmp(a->entry[a->slot[at] - 1].key, key, HZP_CUDA_ALGO_KEY) != 0)
        at = (at + 1) % SLOTS;
    return &a->slot[at];
}

static void key_fill(unsigned char ret[HZP_CUDA_ALGO_KEY], const void *key, size_t size)
{
    HZP_ASSERT(size <= HZP_CUDA_ALGO_KEY);
    memset(ret, 0, HZP_CUDA_ALGO_KEY);
    memcpy(ret, key, size);
}

/* Reads the whole file into entry; returns what is wrong with it, or NULL. */
static const char *file_read(struct hzp_cuda_algos *a, FILE *file)
{
    struct head head, want = head_of(a);
    char beyond;
    if (fread(&head, sizeof(head), 1, file) != 1)
        return "it is too short";
    if (memcmp(head.magic, want.magic, sizeof(head.magic)) != 0 ||
        head.entry_bytes != want.entry_bytes)
        return "it is of another kind or version";
    if (memcmp(head.identity, want.identity, sizeof(head.identity)) != 0)
        return "it is of another device, driver or library";
    if (head.count > HZP_CUDA_ALGOS_MAX)
        return "it has too many entries";
    if (fread(a->entry, sizeof(*a->entry), head.count, file) != head.count)
        return "it is too short";
    if (fread(&beyond, 1, 1, file) == 1)
        return "it is too long";
    if (checksum(head, a->entry) != head.checksum)
        return "its checksum is wrong";
    for (uint32_t i = 0; i < head.count; i++) {
        int32_t *slot = slot_of(a, a->entry[i].key);
        if (*slot)
            return "it names a product twice";
        *slot = (int32_t)i + 1;
    }
    a->count = (int)head.count;
    return NULL;
}

static void load(struct hzp_cuda_algos *a)
{
    int fd = open(a->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd < 0)
        return;
    const char *wrong = fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) ? "it is no file" : NULL;
    FILE *file = wrong ? NULL : fdopen(fd, "rb");
    if (file) {
        wrong = file_read(a, file);
        fclose(file);
    } else {
        close(fd);
    }
    if (!wrong)
        return;
    hzp_log(HZP_LOG_WARN, "cuda", "algorithms kept in %s: %s, ignoring", a->path, wrong);
    memset(a->slot, 0, SLOTS * sizeof(*a->slot));
    a->count = 0;
}

/* Copies the entries under the lock and writes the copy, so that add never waits for the disk. */
static void save(void *ctx)
{
    struct hzp_cuda_algos *a = ctx;
    struct hzp_err_text why;
    char *data = NULL;
    hzp_lock_take(&a->lock);
    struct head head = head_of(a);
    size_t size = head.count * sizeof(*a->entry);
    if (a->changed && a->path[0]) {
        data = hzp_xmalloc(sizeof(head) + size);
        memcpy(data + sizeof(head), a->entry, size);
    }
    a->changed = false;
    hzp_lock_release(&a->lock);
    if (!data)
        return;
    head.checksum = checksum(head, (const void *)(data + sizeof(head)));
    memcpy(data, &head, sizeof(head));
    if (hzp_cache_put(a->path, data, sizeof(head) + size, &why) < 0 && !a->failed) {
        a->failed = true;
        hzp_log(HZP_LOG_WARN, "cuda", "algorithms are not kept: %s, ignoring", why.text);
    }
    free(data);
}

struct hzp_cuda_algos *hzp_cuda_algos_open(const char *identity)
{
    struct hzp_cuda_algos *a = hzp_xcalloc(1, sizeof(*a));
    hzp_lock_init(&a->lock, HZP_LOCK_ALGOS);
    hzp_saver_init(&a->saver, "hzp-algos", GATHER_NS, save, a);
    a->entry = hzp_xcalloc(HZP_CUDA_ALGOS_MAX, sizeof(*a->entry));
    a->slot = hzp_xcalloc(SLOTS, sizeof(*a->slot));
    snprintf(a->identity, sizeof(a->identity), "%s", identity);
    if (hzp_cache_path(a->path, sizeof(a->path), "cublaslt-%016llx.algos",
                       (unsigned long long)hzp_fnv(HZP_FNV, a->identity, sizeof(a->identity))))
        load(a);
    return a;
}

const struct hzp_cuda_algo *hzp_cuda_algos_find(const struct hzp_cuda_algos *a, const void *key,
                                                size_t size)
{
    unsigned char full[HZP_CUDA_ALGO_KEY];
    key_fill(full, key, size);
    int32_t i = *slot_of(a, full);
    return i ? &a->entry[i - 1] : NULL;
}

static int32_t number_at(const unsigned char *key, size_t at)
{
    int32_t number;
    memcpy(&number, key + at, sizeof(number));
    return number;
}

const struct hzp_cuda_algo *hzp_cuda_algos_near(const struct hzp_cuda_algos *a, const void *key,
                                                size_t size, size_t at)
{
    unsigned char full[HZP_CUDA_ALGO_KEY];
    const struct hzp_cuda_algo *ret = NULL;
    double least = 2;
    key_fill(full, key, size);
    double wanted = (double)number_at(full, at);
    for (int i = 0; i < a->count; i++) {
        const struct hzp_cuda_algo *entry = &a->entry[i];
        double has = (double)number_at(entry->key, at);
        if (!entry->tuned || !(has > 0) || memcmp(entry->key, full, at) != 0 ||
            memcmp(entry->key + at + 4, full + at + 4, HZP_CUDA_ALGO_KEY - at - 4) != 0)
            continue;
        double ratio = has > wanted ? has / wanted : wanted / has;
        if (ratio <= least) {
            least = ratio;
            ret = entry;
        }
    }
    return ret;
}

/* Frees a slot, and moves back the later entries of its run that would no longer be found. */
static void slot_free(struct hzp_cuda_algos *a, size_t at)
{
    for (size_t next = (at + 1) % SLOTS; a->slot[next]; next = (next + 1) % SLOTS) {
        size_t from = home(a->entry[a->slot[next] - 1].key);
        bool stays = at <= next ? at < from && from <= next : at < from || from <= next;
        if (stays)
            continue;
        a->slot[at] = a->slot[next];
        at = next;
    }
    a->slot[at] = 0;
}

/* Gives the oldest entry's place to this key; returns its slot.  Holds the lock. */
static int32_t *evict(struct hzp_cuda_algos *a, const unsigned char *key)
{
    int32_t place = a->oldest + 1;
    slot_free(a, (size_t)(slot_of(a, a->entry[a->oldest].key) - a->slot));
    a->oldest = (a->oldest + 1) % HZP_CUDA_ALGOS_MAX;
    int32_t *slot = slot_of(a, key);
    *slot = place;
    return slot;
}

void hzp_cuda_algos_add(struct hzp_cuda_algos *a, const void *key, size_t size,
                        const uint64_t algo[8], bool tuned)
{
    unsigned char full[HZP_CUDA_ALGO_KEY];
    key_fill(full, key, size);
    int32_t *slot = slot_of(a, full);
    hzp_lock_take(&a->lock);
    if (!*slot && a->count == HZP_CUDA_ALGOS_MAX)
        slot = evict(a, full);
    else if (!*slot)
        *slot = a->count + 1;
    a->count = HZP_MAX(a->count, *slot);
    struct hzp_cuda_algo *entry = &a->entry[*slot - 1];
    memcpy(entry->key, full, sizeof(full));
    memcpy(entry->algo, algo, sizeof(entry->algo));
    entry->tuned = tuned;
    a->changed = true;
    hzp_lock_release(&a->lock);
    if (a->path[0])
        hzp_saver_poke(&a->saver);
}

void hzp_cuda_algos_close(struct hzp_cuda_algos *a)
{
    if (!a)
        return;
    hzp_saver_fini(&a->saver);
    hzp_lock_fini(&a->lock);
    free(a->entry);
    free(a->slot);
    free(a);
}
