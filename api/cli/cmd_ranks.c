/* SPDX-License-Identifier: Apache-2.0 */
/* The part of commands that run on several ranks: starting them, what they must agree on, and
 * meeting. */
#include "api/cli/commands.h"
#include "api/cli/option_table.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/version.h"

#include <dirent.h>
#include <sched.h>

int hzp_cmd_ranks_start(const struct hzp_options *options, const struct hzp_launch_keep *keep)
{
    struct hzp_err_text err = {0};
    int status = 0;
    int r = hzp_ranks_start(&options->engine.ranks, options->argv, keep, &status, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return r > 0 ? status : r == HZP_OK ? -1 : r == HZP_EINVAL ? 2 : 1;
}

/* ---- what ranks must agree on ---- */

/* Hashes the file's name and size, its first and last 64 KiB (headers of weight files name all
 * tensors), and SAMPLES blocks between: another training of the same model differs everywhere. */
static int hash_file(const char *dir, const char *name, uint64_t *h, struct hzp_err_text *reterr)
{
    enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };
    char path[PATH_MAX];
    static char block[65536];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    HZP_ENDED(hzp_file_end) FILE *file = fopen(path, "rb");
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
    return size < 0 || ferror(file) ? hzp_fail(reterr, HZP_EIO, "%s: cannot be read", path)
                                    : HZP_OK;
}

static int is_part(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name), m = strlen(".safetensors");
    return !strcmp(entry->d_name, "config.json") ||
           (n > m && !strcmp(entry->d_name + n - m, ".safetensors") &&
            strcmp(entry->d_name, "trainer.safetensors"));
}

static int put_model(FILE *out, const char *dir, struct hzp_err_text *reterr)
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
    fprintf(out, "model %016" PRIx64 "\n", h);
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
static void put_value(FILE *out, const struct hzp_options *options, const struct hzp_option *s,
                      const char *name, const char *part)
{
    const void *field = (const char *)options + s->field;
    const char *between = *part ? " " : "";
    if (!shared(s))
        return;
    if (s->kind == HZP_OPTION_NUMBER)
        fprintf(out, "%s%s%s %.9g\n", name, between, part, *(const double *)field);
    else
        fprintf(out, "%s%s%s %" PRId64 "\n", name, between, part, *(const int64_t *)field);
}

/* Writes lines "name value\n" (see hzp_control_meet): the build; the command; the model as the
 * contents of config.json and the sizes, beginnings and ends of its weight files; and every option
 * of the command about model, training, learning and ranks, as its value is now.  Options about the
 * device, about serving and about where files lie may differ.  HZP_EIO: a file of the model cannot
 * be read. */
static int put_record(FILE *out, const struct hzp_options *options, struct hzp_err_text *reterr)
{
    fprintf(out, "build %s commit %s\n", HZP_VERSION_TEXT,
            options->commit ? options->commit : "unknown");
    fprintf(out, "command %d\n", (int)options->command);
    HZP_TRY(put_model(out, options->engine.model.dir, reterr));
    fprintf(out, "--gate %s\n", options->engine.learning.gate ? "given" : "not given");
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        if (!(s->commands & options->command))
            continue;
        if (s->kind != HZP_OPTION_PARTS)
            put_value(out, options, s, s->name, "");
        for (int k = 0; k < s->parts; k++)
            put_value(out, options, &s->part[k], s->name, s->part[k].name);
    }
    return HZP_OK;
}

char *hzp_cmd_ranks_record(const struct hzp_options *options)
{
    struct hzp_err_text err = {0};
    char *record = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&record, &bytes);
    HZP_ASSERT(out);
    int r = put_record(out, options, &err);
    bool whole = fclose(out) == 0 && bytes < HZP_CONTROL_RECORD;
    if (r == HZP_OK && whole)
        return record;
    if (r == HZP_OK)
        hzp_fail(&err, HZP_EINVAL, "what the ranks agree on is longer than %d bytes",
                 HZP_CONTROL_RECORD);
    fprintf(stderr, "hzpserve: %s\n", err.text);
    free(record);
    return NULL;
}

/* ---- meeting ---- */

/* Prints the error, but not that what was asked for has happened. */
static int status_of(int r, const struct hzp_err_text *err)
{
    if (r < 0 && r != HZP_ECANCELED)
        fprintf(stderr, "hzpserve: %s\n", err->text);
    return r == HZP_EINVAL ? 2 : r == HZP_ECANCELED ? HZP_LAUNCH_LOST : r < 0 ? 1 : 0;
}

int hzp_cmd_ranks_open(const struct hzp_options *options,
                       void (*lost)(void *ctx, int rank, const char *why), bool (*stop)(void *ctx),
                       void *ctx, struct hzp_ranks *ret)
{
    struct hzp_err_text err = {0};
    struct hzp_ranks_config config = {.settings = &options->engine.ranks,
                                      .record = hzp_cmd_ranks_record(options),
                                      .lost = lost,
                                      .stop = stop,
                                      .ctx = ctx};
    if (!config.record)
        return 1;
    int r = hzp_ranks_open(&config, ret, &err);
    free((char *)(uintptr_t)config.record);
    return status_of(r, &err);
}

int hzp_cmd_ranks_rejoin(const struct hzp_options *options, bool (*stop)(void *ctx), void *ctx,
                         struct hzp_ranks *ranks)
{
    struct hzp_err_text err = {0};
    struct hzp_ranks_config config = {.settings = &options->engine.ranks,
                                      .record = hzp_cmd_ranks_record(options),
                                      .stop = stop,
                                      .ctx = ctx};
    if (!config.record)
        return 1;
    int r = hzp_ranks_rejoin(&config, ranks, &err);
    if (r == HZP_OK)
        hzp_ranks_rejoined(ranks);
    free((char *)(uintptr_t)config.record);
    return status_of(r, &err);
}

int64_t hzp_cmd_ranks_threads(const struct hzp_options *options, const struct hzp_ranks *ranks)
{
    cpu_set_t set;
    int here = ranks->launch.local_ranks;
    if (options->engine.device.threads || ranks->ranks == 1 || here <= 1 ||
        sched_getaffinity(0, sizeof(set), &set) != 0)
        return options->engine.device.threads;
    /* Slurm, and mpirun by default, give each rank cores of its own.  A process that may use only a
     * part of the machine for another reason, as in a container, has ranks that we start. */
    bool own = !ranks->launch.ours && CPU_COUNT(&set) * here <= sysconf(_SC_NPROCESSORS_ONLN);
    return own ? CPU_COUNT(&set) : HZP_MAX(CPU_COUNT(&set) / here, 1);
}
