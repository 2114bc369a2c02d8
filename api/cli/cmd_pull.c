/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve pull URL [VERSION] DIRECTORY: a version of a running server as a model directory.
 *
 *     DIRECTORY.pull/NAME           configuration, tokenizer
 *     DIRECTORY.pull/upload/        units, as far as they are here (api/learn/upload.h)
 *     DIRECTORY.pull/model/         the new directory, which takes DIRECTORY's place at the end
 *
 * Units that an earlier pull has left in DIRECTORY are not fetched again.  What was interrupted
 * goes on when the command is repeated; DIRECTORY is the old one until the new one is whole.  While
 * it is fetched the version has a name, so that the server keeps it. */
#include "api/cli/commands.h"
#include "api/cli/transfer.h"
#include "api/learn/checkpoint.h"
#include "api/learn/upload.h"
#include "base/file.h"
#include "base/hash.h"
#include "weights/model_dir.h"

#include <fcntl.h>

enum { CURRENT_TRIES = 20 };

struct pull {
    const struct hzp_options *options;
    const char *url, *dir;
    char stage[PATH_MAX - 64];
    struct hzp_http_host server;
    uint64_t id;
    char name[64]; /* that the version has meanwhile */
    struct hzp_layout layout;
    bool layout_made;
    struct hzp_manifest m;
    struct hzp_upload *units;
    char *buffer; /* HZP_TRANSFER_PIECE bytes */
    void *unit;   /* the largest one */
    uint64_t fetched;
    int32_t units_fetched;
    struct hzp_err_text *reterr;
};

/* --- The version ------------------------------------------------------------------------------ */

/* Another name for each directory, so that two pulls of one version do not take each other's away;
 * the same when the command is repeated. */
static void choose_name(struct pull *p)
{
    char host[256] = "", real[PATH_MAX];
    const char *dir = realpath(p->stage, real) ? real : p->stage;
    gethostname(host, sizeof(host) - 1);
    uint64_t hash = hzp_fnv(hzp_fnv(HZP_FNV, host, strlen(host)), dir, strlen(dir));
    snprintf(p->name, sizeof(p->name), "pull-%" PRIu64 "-%08" PRIx32, p->id,
             (uint32_t)(hash ^ hash >> 32));
}

/* Names the version, which writes it to disk and keeps it there. */
static int find_version(struct pull *p, const char *text)
{
    json_t *json;
    HZP_TRY(
        hzp_transfer_json(&p->server, "GET", NULL, &json, p->reterr, "/v1/weights/%.100s", text));
    json_int_t id = json_integer_value(json_object_get(json, "id"));
    const char *state = json_string_value(json_object_get(json, "state"));
    bool kept =
        json_is_true(json_object_get(json, "on_disk")) || (state && !strcmp(state, "current"));
    json_decref(json);
    p->id = (uint64_t)id;
    if (id < 1 || !kept)
        return hzp_fail(p->reterr, HZP_EINVAL, "version %.100s is not on disk any more", text);
    choose_name(p);
    return hzp_transfer_json(&p->server, "POST", json_pack("{s:s}", "name", p->name), NULL,
                             p->reterr, "/v1/weights/%" PRIu64 "/name?timeout=3600", p->id);
}

/* The one that serves may be replaced before it is named. */
static int choose_version(struct pull *p, const char *text)
{
    int r = HZP_EINVAL;
    bool current = !strcmp(text, "current");
    for (int i = 0; r < 0 && r != HZP_EIO && i < (current ? CURRENT_TRIES : 1); i++)
        r = find_version(p, text);
    return r;
}

static int read_manifest(struct pull *p)
{
    json_t *json;
    HZP_TRY(hzp_transfer_json(&p->server, "GET", NULL, &json, p->reterr,
                              "/v1/replication/%" PRIu64 "/manifest", p->id));
    int r = hzp_manifest_read(json, &p->m, p->reterr);
    json_decref(json);
    return r;
}

/* --- Fetching --------------------------------------------------------------------------------- */

/* Fetches a text file as a whole; they are small. */
static int fetch_file(struct pull *p, const struct hzp_manifest_file *f)
{
    char path[PATH_MAX], route[200];
    uint64_t at = 0, checksum = HZP_FNV;
    size_t n = 1;
    snprintf(path, sizeof(path), "%s/%s", p->stage, f->name);
    FILE *file = fopen(path, "we");
    int r = file ? HZP_OK : HZP_EIO;
    for (; r >= 0 && at < f->bytes && n; at += n) {
        snprintf(route, sizeof(route), "/v1/replication/%" PRIu64 "/files/%s?offset=%" PRIu64,
                 p->id, f->name, at);
        r = hzp_transfer_get(&p->server, route, p->buffer, HZP_TRANSFER_PIECE, &n, p->reterr);
        if (r < 0)
            break;
        checksum = hzp_fnv(checksum, p->buffer, n);
        if (n && fwrite(p->buffer, n, 1, file) != 1)
            r = hzp_fail(p->reterr, HZP_EIO, "%s: %s", path, strerror(errno));
    }
    if (!file || fclose(file) != 0)
        r = hzp_fail(p->reterr, HZP_EIO, "%s: %s", path, strerror(errno));
    if (r >= 0 && (at != f->bytes || checksum != f->checksum))
        r = hzp_fail(p->reterr, HZP_EFORMAT, "%s: its checksum is wrong: pull again", f->name);
    return r;
}

static int fetch_files(struct pull *p)
{
    struct hzp_model_config config;
    char tokenizer[HZP_FINGERPRINT_SIZE];
    for (int32_t i = 0; i < p->m.files; i++)
        HZP_TRY(fetch_file(p, &p->m.file[i]));
    HZP_TRY(hzp_config_read(p->stage, &config, p->reterr));
    hzp_layout_make(&config, &p->layout);
    p->layout_made = true;
    HZP_TRY(hzp_fingerprint_tokenizer(p->stage, tokenizer, p->reterr));
    return hzp_manifest_agrees(&p->m, &p->layout, p->m.type, tokenizer, p->reterr);
}

static int fetch_unit(struct pull *p, int32_t u, uint64_t at)
{
    char route[200];
    uint64_t bytes = hzp_manifest_unit_bytes(&p->layout, p->m.type, u);
    p->units_fetched++;
    while (at < bytes) {
        size_t n = 0;
        snprintf(route, sizeof(route), "/v1/replication/%" PRIu64 "/units/%d?offset=%" PRIu64,
                 p->id, u, at);
        HZP_TRY(hzp_transfer_get(&p->server, route, p->buffer, HZP_TRANSFER_PIECE, &n, p->reterr));
        HZP_TRY(hzp_upload_write(p->units, p->m.checksum, u, at, p->buffer, n, &at, p->reterr));
        p->fetched += n;
    }
    return HZP_OK;
}

/* The manifest of DIRECTORY, where it is that of an earlier pull.  False: nothing is there that can
 * be used. */
static bool look_at_old(struct pull *p, struct hzp_manifest *ret)
{
    char path[PATH_MAX];
    struct hzp_err_text none;
    snprintf(path, sizeof(path), "%s/pulled.json", p->dir);
    return access(path, F_OK) == 0 &&
           hzp_manifest_make(p->dir, &p->layout, p->m.type, NULL, ret, &none) >= 0;
}

static int fetch_units(struct pull *p)
{
    HZP_ENDED(hzp_manifest_fini) struct hzp_manifest have = {.units = 0};
    bool old = look_at_old(p, &have);
    p->units = hzp_upload_create(p->stage, &p->layout, p->m.type);
    HZP_TRY(hzp_upload_begin(p->units, &p->m, old ? &have : NULL, p->dir, p->reterr));
    HZP_FREED uint64_t *received = hzp_xcalloc((size_t)p->m.units + 1, sizeof(*received));
    HZP_TRY(hzp_upload_received(p->units, p->m.checksum, received, p->reterr));
    for (int32_t u = 0; u < p->m.units; u++)
        if (received[u] < hzp_manifest_unit_bytes(&p->layout, p->m.type, u))
            HZP_TRY(fetch_unit(p, u, received[u]));
    return HZP_OK;
}

/* --- The directory ---------------------------------------------------------------------------- */

static int read_unit(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                     void **ret_owned, struct hzp_err_text *reterr)
{
    struct pull *p = ctx;
    struct hzp_upload_fill fill = {.up = p->units, .reterr = reterr};
    size_t elements = p->layout.unit[u].elements;
    *ret = (struct hzp_unit_view){
        .base = p->unit, .type = p->m.type, .elements = elements, .part = {0, elements}};
    *ret_owned = NULL;
    return hzp_upload_fill(&fill, u, ret);
}

static int write_model(struct pull *p, const char *to)
{
    char path[PATH_MAX + 16], checksum[20];
    struct hzp_units weights = {.layout = &p->layout, .type = p->m.type};
    struct hzp_unit_source source = {
        .read = read_unit, .ctx = p, .part = {[HZP_STATE_WEIGHTS] = &weights}};
    p->unit = malloc(hzp_layout_largest(&p->layout) * hzp_dtype_size(p->m.type));
    if (!p->unit)
        return hzp_fail(p->reterr, HZP_ENOMEM, "not enough memory for a unit");
    hzp_checkpoint_remove(to);
    HZP_TRY(hzp_upload_hold(p->units, p->m.checksum, p->reterr));
    int r = hzp_model_save_from(to, &source, p->stage, NULL, p->reterr);
    hzp_upload_release(p->units, false);
    HZP_TRY(r);
    hzp_checksum_text(p->m.checksum, checksum);
    snprintf(path, sizeof(path), "%s/pulled.json", to);
    json_auto_t *json = json_pack("{s:s, s:I, s:s}", "source", p->url, "version", (json_int_t)p->id,
                                  "checksum", checksum);
    r = json && json_dump_file(json, path, JSON_INDENT(2)) == 0 ? HZP_OK : HZP_EIO;
    return r < 0 ? hzp_fail(p->reterr, r, "%s: %s", path, strerror(errno)) : HZP_OK;
}

/* The new directory takes the place of the old one, which is removed. */
static int put_in_place(struct pull *p, const char *model)
{
    char old[PATH_MAX];
    snprintf(old, sizeof(old), "%s/old", p->stage);
    hzp_checkpoint_remove(old);
    if (access(p->dir, F_OK) == 0 && rename(p->dir, old) < 0)
        return hzp_fail(p->reterr, HZP_EIO, "%s: cannot be renamed: %s", p->dir, strerror(errno));
    if (rename(model, p->dir) < 0) {
        hzp_fail(p->reterr, HZP_EIO, "%s: cannot be renamed: %s", model, strerror(errno));
        rename(old, p->dir);
        return HZP_EIO;
    }
    hzp_upload_hold(p->units, p->m.checksum, p->reterr);
    hzp_upload_release(p->units, true);
    hzp_checkpoint_remove(old);
    hzp_checkpoint_remove(p->stage);
    return HZP_OK;
}

/* DIRECTORY must be one that a pull has made, an empty one, or absent: its files go. */
static int check_directory(struct pull *p)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/pulled.json", p->dir);
    if (access(path, F_OK) == 0 || access(p->dir, F_OK) < 0 || rmdir(p->dir) == 0)
        return HZP_OK;
    return hzp_fail(p->reterr, HZP_EINVAL,
                    "%s: it exists, and is not of an earlier pull: name another directory", p->dir);
}

static int fetch(struct pull *p)
{
    HZP_TRY(read_manifest(p));
    HZP_TRY(fetch_files(p));
    return fetch_units(p);
}

static int pull(struct pull *p, const char *version)
{
    char model[PATH_MAX];
    snprintf(p->stage, sizeof(p->stage), "%s.pull", p->dir);
    snprintf(model, sizeof(model), "%s/model", p->stage);
    HZP_TRY(check_directory(p));
    HZP_TRY(hzp_dir_make(p->stage, NULL, p->reterr));
    HZP_TRY(choose_version(p, version));
    int r = fetch(p);
    hzp_transfer_json(&p->server, "DELETE", NULL, NULL, NULL, "/v1/weights/names/%s", p->name);
    HZP_TRY(r);
    HZP_TRY(write_model(p, model));
    HZP_TRY(put_in_place(p, model));
    printf("%s: version %" PRIu64 " of %s: %d of %d units were fetched (%.1f MB)\n", p->dir, p->id,
           p->url, p->units_fetched, p->m.units, (double)p->fetched * 1e-6);
    return HZP_OK;
}

int hzp_cmd_pull(const struct hzp_options *options)
{
    struct hzp_err_text err = {.text = ""};
    char dir[PATH_MAX - 128];
    if (options->words < 2 || options->words > 3 ||
        strlen(options->word[options->words - 1]) >= sizeof(dir))
        return hzp_command_usage("pull URL [VERSION] DIRECTORY");
    snprintf(dir, sizeof(dir), "%s", options->word[options->words - 1]);
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--)
        dir[n - 1] = 0;
    struct pull p = {.options = options,
                     .url = options->word[0],
                     .dir = dir,
                     .buffer = hzp_xmalloc(HZP_TRANSFER_PIECE),
                     .reterr = &err};
    int r = hzp_http_server(p.url, options->client.api_key, &p.server, &err);
    if (r >= 0)
        r = pull(&p, options->words == 3 ? options->word[1] : "current");
    hzp_upload_destroy(p.units);
    hzp_manifest_fini(&p.m);
    if (p.layout_made)
        hzp_layout_free(&p.layout);
    free(p.buffer);
    free(p.unit);
    return r < 0 ? hzp_command_failed(r, &err) : 0;
}
