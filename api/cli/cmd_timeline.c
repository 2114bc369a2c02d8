/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve timeline [URL] -o FILE: the last seconds of a running server and of all its ranks, as a
 * Chrome trace. */
#include "api/client/http_client.h"
#include "api/cli/commands.h"

enum { PATIENCE_S = 60, TRACE_BYTES_MAX = 256 << 20 };

static int write_file(const char *path, const struct hzp_http_stream *in,
                      struct hzp_err_text *reterr)
{
    FILE *file = fopen(path, "we");
    bool whole = file && fwrite(in->body, 1, in->bytes, file) == in->bytes;
    int code = errno;
    if (file && fclose(file) != 0 && whole) {
        whole = false;
        code = errno;
    }
    return whole ? HZP_OK : hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(code));
}

static int no_events(void *ctx, const char *data, size_t n)
{
    return HZP_EFORMAT; /* a trace is one answer */
}

static int get(const struct hzp_options *options, struct hzp_http_stream *in,
               struct hzp_err_text *reterr)
{
    const struct hzp_timeline_settings *s = &options->timeline;
    const char *url = options->words ? options->word[0] : options->client.url;
    char route[80];
    struct hzp_http_host server;
    snprintf(route, sizeof(route), "/debug/timeline?seconds=%g", s->seconds);
    const struct hzp_http_call call = {.method = "GET", .route = route, .patience_s = PATIENCE_S};
    HZP_TRY(hzp_http_server(url, options->client.api_key, &server, reterr));
    HZP_TRY(hzp_http_call(&server, &call, in, reterr));
    if (in->status == 200 && in->bytes)
        return write_file(s->out, in, reterr);
    return hzp_fail(reterr, HZP_EIO, "%s answered with status %d: %.200s", url, in->status,
                    in->bytes ? in->body : "");
}

int hzp_cmd_timeline(const struct hzp_options *options)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_http_stream in;
    if (!options->timeline.out)
        return hzp_command_usage("timeline [URL] -o FILE");
    hzp_http_stream_init(&in, no_events, NULL);
    in.body_max = TRACE_BYTES_MAX;
    int r = get(options, &in, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    else
        fprintf(stderr, "%s: %zu bytes; open it in chrome://tracing or ui.perfetto.dev\n",
                options->timeline.out, in.bytes);
    hzp_http_stream_fini(&in);
    return r < 0;
}
