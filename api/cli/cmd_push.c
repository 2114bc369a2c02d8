/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve push URL DIRECTORY: the weights of a model directory serve in a running server.
 *
 * Only units that the server lacks are sent.  It activates them when all are there and their
 * checksums are right, under a new version; what was interrupted goes on when the command is
 * repeated. */
#include "api/cli/commands.h"
#include "api/cli/transfer.h"
#include "api/learn/manifest.h"
#include "base/json_file.h"
#include "weights/model_dir.h"

enum { PULLED_BYTES_MAX = 1 << 20 };

struct push {
    const struct hzp_options *options;
    const char *dir;
    struct hzp_http_host server;
    struct hzp_layout layout;
    bool layout_made;
    struct hzp_manifest m;
    struct hzp_model_reader *reader;
    size_t piece; /* bytes that the server takes at a time */
    uint64_t sent;
    int32_t units_sent;
    struct hzp_err_text *reterr;
};

/* What the server wants: the type that the weights are converted to. */
static int read_server(struct push *p, enum hzp_dtype *ret_type)
{
    json_t *json;
    HZP_TRY(hzp_transfer_json(&p->server, "GET", NULL, &json, p->reterr, "/v1/replication"));
    json_int_t piece = json_integer_value(json_object_get(json, "piece_bytes"));
    const char *type = json_string_value(json_object_get(json, "dtype"));
    bool good = piece >= 8 && piece <= HZP_TRANSFER_PIECE && hzp_manifest_type_read(type, ret_type);
    json_decref(json);
    p->piece = (size_t)piece / 8 * 8;
    return good ? HZP_OK : hzp_fail(p->reterr, HZP_EIO, "the server's answer is not understood");
}

static int read_directory(struct push *p, enum hzp_dtype type)
{
    struct hzp_model_config config;
    HZP_TRY(hzp_config_read(p->dir, &config, p->reterr));
    hzp_layout_make(&config, &p->layout);
    p->layout_made = true;
    HZP_TRY(hzp_manifest_make(p->dir, &p->layout, type, NULL, &p->m, p->reterr));
    p->m.files = 0; /* the server has its own */
    return hzp_model_open(p->dir, &p->layout, type, &p->reader, p->reterr);
}

static int send_unit(struct push *p, int32_t u, uint64_t at)
{
    char route[160], checksum[20];
    size_t size = hzp_dtype_size(p->m.type);
    uint64_t bytes = hzp_manifest_unit_bytes(&p->layout, p->m.type, u);
    HZP_FREED char *buffer = hzp_xmalloc(p->piece);
    if (at % size)
        return hzp_fail(p->reterr, HZP_EINVAL,
                        "unit %d: its first %" PRIu64 " bytes, which the server has, end within an "
                        "element",
                        u, at);
    hzp_checksum_text(p->m.checksum, checksum);
    while (at < bytes) {
        size_t n = (size_t)HZP_MIN(bytes - at, (uint64_t)p->piece) / size * size;
        HZP_TRY(hzp_model_read(p->reader, u, (size_t)at / size, n / size, buffer, p->reterr));
        snprintf(route, sizeof(route), "/v1/replication/%s/units/%d?offset=%" PRIu64, checksum, u,
                 at);
        HZP_TRY(hzp_transfer_put(&p->server, route, buffer, n, p->reterr));
        at += n;
        p->sent += n;
    }
    p->units_sent++;
    return HZP_OK;
}

static int send_units(struct push *p)
{
    size_t i;
    const json_t *one;
    json_auto_t *upload = NULL;
    HZP_TRY(hzp_transfer_json(&p->server, "POST", hzp_manifest_json(&p->m, &p->layout), &upload,
                              p->reterr, "/v1/replication"));
    json_array_foreach(json_object_get(upload, "missing"), i, one)
    {
        json_int_t u = json_integer_value(json_object_get(one, "unit"));
        json_int_t at = json_integer_value(json_object_get(one, "offset"));
        if (u < 0 || u >= p->m.units || at < 0)
            return hzp_fail(p->reterr, HZP_EIO, "the server's answer is not understood");
        HZP_TRY(send_unit(p, (int32_t)u, (uint64_t)at));
    }
    return HZP_OK;
}

/* Where the weights come from: the server that the directory was pulled from, and whether they are
 * still those; or its name. */
static void name_source(const struct push *p, char *ret, size_t size)
{
    char path[PATH_MAX], checksum[20];
    snprintf(path, sizeof(path), "%s/pulled.json", p->dir);
    hzp_checksum_text(p->m.checksum, checksum);
    json_auto_t *json = NULL;
    hzp_json_read(path, PULLED_BYTES_MAX, HZP_JSON_UNIQUE, &json,
                  NULL); /* without it the directory is named */
    const char *url = json_string_value(json_object_get(json, "source"));
    json_int_t version = json_integer_value(json_object_get(json, "version"));
    const char *then = json_string_value(json_object_get(json, "checksum"));
    const char *name = strrchr(p->dir, '/');
    if (url)
        snprintf(ret, size, "%.200s version %lld%s", url, (long long)version,
                 then && !strcmp(then, checksum) ? "" : ", changed since");
    else
        snprintf(ret, size, "directory %.200s", name && name[1] ? name + 1 : p->dir);
}

static int activate(struct push *p, json_t **ret)
{
    char checksum[20], source[256];
    hzp_checksum_text(p->m.checksum, checksum);
    name_source(p, source, sizeof(source));
    json_t *body = json_pack("{s:s, s:s}", "lessons",
                             p->options->weights.lessons ? "replay" : "skip", "source", source);
    if (!body)
        return hzp_fail(p->reterr, HZP_EINVAL, "%s: its name is not UTF-8", p->dir);
    return hzp_transfer_json(&p->server, "POST", body, ret, p->reterr,
                             "/v1/replication/%s/activate?timeout=3600", checksum);
}

static int push(struct push *p)
{
    enum hzp_dtype type = HZP_F32;
    json_t *job;
    HZP_TRY(read_server(p, &type));
    HZP_TRY(read_directory(p, type));
    HZP_TRY(send_units(p));
    HZP_TRY(activate(p, &job));
    json_int_t made = json_integer_value(json_object_get(job, "weights_version"));
    json_decref(job);
    if (made < 1) /* the server stops, or the job takes longer than was asked for */
        return hzp_fail(p->reterr, HZP_EINVAL,
                        "the weights are on the server and do not serve yet: push again");
    printf("version %lld serves at %s: %d of %d units were sent (%.1f MB)\n", (long long)made,
           p->options->word[0], p->units_sent, p->m.units, (double)p->sent * 1e-6);
    return HZP_OK;
}

int hzp_cmd_push(const struct hzp_options *options)
{
    struct hzp_err_text err = {.text = ""};
    if (options->words != 2)
        return hzp_command_usage("push URL DIRECTORY");
    struct push p = {.options = options, .dir = options->word[1], .reterr = &err};
    int r = hzp_http_server(options->word[0], options->client.api_key, &p.server, &err);
    if (r >= 0)
        r = push(&p);
    hzp_model_close(p.reader);
    hzp_manifest_fini(&p.m);
    if (p.layout_made)
        hzp_layout_free(&p.layout);
    return r < 0 ? hzp_command_failed(r, &err) : 0;
}
