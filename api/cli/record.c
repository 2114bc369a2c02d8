/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/record.h"

#include "api/cli/option_table.h"
#include "base/hash.h"
#include "base/version.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    char *text;
    size_t size, used;
    bool full;
};

static void put(struct writer *w, const char *format, ...) HZP_PRINTF(2, 3);

static void put(struct writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->used, w->size - w->used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= w->size - w->used)
        w->full = true;
    else
        w->used += (size_t)n;
}

/* Hashes the file's name and size, its first and last 64 KiB (headers of weight files name all
 * tensors), and SAMPLES blocks between: another training of the same model differs everywhere. */
static int hash_file(const char *dir, const char *name, uint64_t *h, struct hzp_err_text *reterr)
{
    enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };
    char path[PATH_MAX];
    static char block[65536];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot be read: %s", path, strerror(errno));
    size_t first = fread(block, 1, sizeof(block), file);
    *h = hzp_fnv(hzp_fnv(*h, name, strlen(name)), block, first);
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    *h = hzp_fnv(*h, &size, sizeof(size));
    if (size > (long)sizeof(block) && fseek(file, -(long)sizeof(block), SEEK_END) == 0)
        *h = hzp_fnv(*h, block, fread(block, 1, sizeof(block), file));
    for (long i = 1; i <= SAMPLES && size > (long)sizeof(block); i++)
        if (fseek(file, size / (SAMPLES + 1) * i, SEEK_SET) == 0)
            *h = hzp_fnv(*h, block, fread(block, 1, SAMPLE_BYTES, file));
    bool failed = size < 0 || ferror(file);
    fclose(file);
    return failed ? hzp_fail(reterr, HZP_EIO, "%s: cannot be read", path) : HZP_OK;
}

static int is_part(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name), m = strlen(".safetensors");
    return !strcmp(entry->d_name, "config.json") ||
           (n > m && !strcmp(entry->d_name + n - m, ".safetensors") &&
            strcmp(entry->d_name, "trainer.safetensors"));
}

static int put_model(struct writer *w, const char *dir, struct hzp_err_text *reterr)
{
    struct dirent **entry = NULL;
    uint64_t h = HZP_FNV;
    int n = dir ? scandir(dir, &entry, is_part, alphasort) : 0, r = HZP_OK;
    if (n < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot be read: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (r == HZP_OK)
            r = hash_file(dir, entry[i]->d_name, &h, reterr);
        free(entry[i]);
    }
    free(entry);
    put(w, "model %016" PRIx64 "\n", h);
    return r;
}

/* Whether the option, or a part of one, must be equal on all ranks.  What throttles a link may
 * differ: one slow link among others. */
static bool shared(const struct hzp_option *s)
{
    static const struct {
        size_t begin, size;
    } part[] = {
        {offsetof(struct hzp_options, engine.model), sizeof(struct hzp_model_settings)},
        {offsetof(struct hzp_options, engine.training), sizeof(struct hzp_training_settings)},
        {offsetof(struct hzp_options, engine.learning), sizeof(struct hzp_learning_settings)},
        {offsetof(struct hzp_options, engine.ranks), sizeof(struct hzp_ranks_settings)},
        {offsetof(struct hzp_options, train), sizeof(struct hzp_train_settings)},
    };
    if (s->kind == HZP_OPTION_TEXT || s->kind == HZP_OPTION_FILE || s->kind == HZP_OPTION_LIST ||
        s->field == offsetof(struct hzp_options, engine.ranks.link_rate) ||
        s->field == offsetof(struct hzp_options, engine.ranks.link_latency_ms))
        return false;
    for (int i = 0; i < HZP_COUNT(part); i++)
        if (s->field >= part[i].begin && s->field < part[i].begin + part[i].size)
            return true;
    return false;
}

/* part: its name, "": none. */
static void put_value(struct writer *w, const struct hzp_options *options,
                      const struct hzp_option *s, const char *name, const char *part)
{
    const void *field = (const char *)options + s->field;
    const char *between = *part ? " " : "";
    if (!shared(s))
        return;
    if (s->kind == HZP_OPTION_NUMBER)
        put(w, "%s%s%s %.9g\n", name, between, part, *(const double *)field);
    else
        put(w, "%s%s%s %" PRId64 "\n", name, between, part, *(const int64_t *)field);
}

int hzp_options_record(const struct hzp_options *options, char *ret, size_t size,
                       struct hzp_err_text *reterr)
{
    struct writer w = {ret, size, 0, false};
    put(&w, "build %s commit %s\n", HZP_VERSION_TEXT,
        options->commit ? options->commit : "unknown");
    put(&w, "command %d\n", (int)options->command);
    HZP_TRY(put_model(&w, options->engine.model.dir, reterr));
    put(&w, "--gate %s\n", options->engine.learning.gate ? "given" : "not given");
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        if (!s->name || !(s->commands & options->command))
            continue;
        if (s->kind != HZP_OPTION_PARTS)
            put_value(&w, options, s, s->name, "");
        for (int k = 0; k < s->parts; k++)
            put_value(&w, options, &s->part[k], s->name, s->part[k].name);
    }
    return w.full ? hzp_fail(reterr, HZP_EINVAL, "what the ranks agree on is longer than %zu bytes",
                             size)
                  : HZP_OK;
}
