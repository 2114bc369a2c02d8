/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/replication                                 what weights must agree with to be sent here
 * GET /v1/replication/{version}/manifest              what a version on disk consists of
 * GET /v1/replication/{version}/units/{unit}?offset=  bytes of a unit, HZP_TRANSFER_PIECE at most
 * GET /v1/replication/{version}/files/{name}?offset=  of a file that lies beside the weights
 * POST /v1/replication                                a manifest: begins an upload
 * PUT /v1/replication/{checksum}/units/{unit}?offset= bytes of a unit that is missing
 * POST /v1/replication/{checksum}/activate            the upload serves, as a new version: a job
 *
 * {version} is a number, a name or "current"; {checksum} is that of the uploaded version.  All of
 * them want the admin key, if there is one: units are the model. */
#include "api/learn/replication.h"

#include "api/http/routes/routes.h"
#include "api/http/wire/fields.h"

/* ---- paths ---- */

/* A tail "A/B" or "A/B/C"; absent parts are "". */
struct path {
    char name[HZP_VERSION_NAME_MAX + 1], what[16], which[64];
};

static bool read_part(const char **at, char *ret, size_t size)
{
    size_t n = strcspn(*at, "/");
    if (n >= size)
        return false;
    memcpy(ret, *at, n);
    ret[n] = 0;
    *at += n + ((*at)[n] == '/');
    return true;
}

static bool read_path(const char *tail, struct path *ret)
{
    return read_part(&tail, ret->name, sizeof(ret->name)) &&
           read_part(&tail, ret->what, sizeof(ret->what)) &&
           read_part(&tail, ret->which, sizeof(ret->which)) && !*tail;
}

/* ---- reading ---- */

static enum MHD_Result reply_bytes(struct hzp_exchange *x, char *data, size_t bytes)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, data, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(data);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/octet-stream");
    return hzp_reply(x, MHD_HTTP_OK, response);
}

static int get_manifest(struct hzp_exchange *x, uint64_t id, struct hzp_err_text *reterr)
{
    struct hzp_manifest m;
    HZP_TRY(hzp_state_manifest(x->server->engine->state, id, &m, reterr));
    json_t *json = hzp_manifest_json(&m, hzp_assembly_whole(&x->server->engine->parts));
    hzp_manifest_fini(&m);
    return hzp_reply_json(x, MHD_HTTP_OK, json);
}

static int get_bytes(struct hzp_exchange *x, uint64_t id, const struct path *path,
                     struct hzp_err_text *reterr)
{
    struct hzp_state *s = x->server->engine->state;
    uint64_t offset = (uint64_t)hzp_query_int(x, "offset");
    size_t bytes = 0;
    int r;
    if (!hzp_exchange_charge(x, HZP_TRANSFER_PIECE))
        return hzp_reply_no_memory(x);
    char *data = malloc(HZP_TRANSFER_PIECE);
    if (!data)
        return hzp_reply_no_memory(x);
    if (!strcmp(path->what, "units"))
        r = hzp_state_read_unit(s, id, hzp_path_number(path->which, 0), offset, data,
                                HZP_TRANSFER_PIECE, &bytes, reterr);
    else
        r = hzp_state_read_text(s, id, path->which, offset, data, HZP_TRANSFER_PIECE, &bytes,
                                reterr);
    if (r >= 0)
        return reply_bytes(x, data, bytes);
    free(data);
    return r;
}

int hzp_route_replication_get(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct path path;
    uint64_t id = 0;
    if (!read_path(x->tail, &path))
        return hzp_reply_no_route(x);
    bool manifest = !strcmp(path.what, "manifest") && !path.which[0];
    bool bytes = (!strcmp(path.what, "units") || !strcmp(path.what, "files")) && path.which[0];
    if (!manifest && !bytes)
        return hzp_reply_no_route(x);
    HZP_TRY(hzp_state_find(x->server->engine->state, path.name, &id, reterr));
    return manifest ? get_manifest(x, id, reterr) : get_bytes(x, id, &path, reterr);
}

static int64_t piece_bytes(const struct hzp_exchange *x)
{
    return HZP_MIN(x->server->settings->body_max, (int64_t)HZP_TRANSFER_PIECE) / 8 * 8;
}

int hzp_route_replication(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_replica replica;
    HZP_TRY(hzp_state_replica(x->server->engine->state, &replica, reterr));
    return hzp_reply_pack(x, "{s:s, s:s, s:s, s:s, s:I}", "object", "replication", "dtype",
                          hzp_manifest_type_name(replica.type), "shapes", replica.shapes,
                          "tokenizer", replica.tokenizer, "piece_bytes",
                          (json_int_t)piece_bytes(x));
}

/* ---- an upload ---- */

static int reply_upload(struct hzp_exchange *x, uint64_t checksum, struct hzp_err_text *reterr)
{
    const struct hzp_layout *l = hzp_assembly_whole(&x->server->engine->parts);
    enum hzp_dtype type = hzp_weights_type(x->server->engine->parts.weights);
    HZP_FREED uint64_t *received = hzp_xcalloc((size_t)l->units + 1, sizeof(*received));
    struct hzp_upload *upload;
    HZP_TRY(hzp_state_upload(x->server->engine->state, &upload, reterr));
    int r = hzp_upload_received(upload, checksum, received, reterr);
    if (r < 0)
        return hzp_reply_conflict(x, r, reterr);
    char text[20];
    json_t *missing = json_array();
    for (int32_t u = 0; u < l->units; u++)
        if (received[u] < hzp_manifest_unit_bytes(l, type, u))
            json_array_append_new(missing, json_pack("{s:i, s:I}", "unit", (int)u, "offset",
                                                     (json_int_t)received[u]));
    hzp_checksum_text(checksum, text);
    return hzp_reply_pack(x, "{s:s, s:s, s:i, s:o, s:I}", "object", "upload", "checksum", text,
                          "units", (int)l->units, "missing", missing, "piece_bytes",
                          (json_int_t)piece_bytes(x));
}

int hzp_route_replication_begin(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_manifest_fini) struct hzp_manifest m = {.units = 0};
    HZP_TRY(hzp_manifest_read(x->asked, &m, reterr));
    int r = hzp_state_upload_begin(x->server->engine->state, &m, reterr);
    if (r < 0)
        return hzp_reply_conflict(x, r, reterr);
    return reply_upload(x, m.checksum, reterr);
}

int hzp_route_replication_put(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct path path;
    uint64_t checksum = 0, offset = (uint64_t)hzp_query_int(x, "offset"), received = 0;
    if (!read_path(x->tail, &path) || strcmp(path.what, "units") ||
        !hzp_checksum_read(path.name, &checksum))
        return hzp_reply_no_route(x);
    int64_t unit = hzp_path_number(path.which, 0);
    if (unit < 0 || unit > INT32_MAX)
        return hzp_reply_no_route(x);
    struct hzp_upload *upload;
    HZP_TRY(hzp_state_upload(x->server->engine->state, &upload, reterr));
    int r = hzp_upload_write(upload, checksum, (int32_t)unit, offset, x->body ? x->body : "",
                             x->bytes, &received, reterr);
    if (r < 0)
        return hzp_reply_conflict(x, r, reterr);
    return hzp_reply_pack(x, "{s:s, s:I, s:I}", "object", "upload.unit", "unit", (json_int_t)unit,
                          "received", (json_int_t)received);
}

int hzp_route_replication_activate(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_version_job job = {.kind = HZP_JOB_PUSH, .reset = true};
    const char *source = json_string_value(json_object_get(x->asked, "source"));
    struct path path;
    if (!read_path(x->tail, &path) || strcmp(path.what, "activate") || path.which[0] ||
        !hzp_checksum_read(path.name, &job.checksum))
        return hzp_reply_no_route(x);
    if (source && strlen(source) > HZP_VERSION_SOURCE_MAX)
        return hzp_wrong(reterr, "source", "must have at most %d bytes", HZP_VERSION_SOURCE_MAX);
    snprintf(job.source, sizeof(job.source), "%s", source ? source : "not named");
    job.replay = hzp_given_word(x->asked, "lessons", "replay");
    return hzp_job_run(x, &job, "push",
                       json_pack("{s:s, s:s, s:s}", "checksum", path.name, "lessons",
                                 job.replay ? "replay" : "skip", "source", job.source),
                       reterr);
}
