/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/framing.h"

#include "base/base.h"

#include <string.h>
#include <strings.h>

struct look {
    const char *first; /* the first header's name, in the library's buffer */
    const char *length, *coding;
    int headers, hosts, codings;
    bool lengths_differ, bad_name;
};

/* Whether a byte may be in a header's name: RFC 9110's tchar. */
static bool is_name_byte(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static enum MHD_Result look_at(void *cls, enum MHD_ValueKind kind, const char *name,
                               const char *value)
{
    struct look *look = cls;
    if (!look->headers++)
        look->first = name;
    look->bad_name |= !*name;
    for (const char *c = name; *c; c++)
        look->bad_name |= !is_name_byte((unsigned char)*c);
    value = value ? value : "";
    if (!strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        look->lengths_differ |= look->length && strcmp(look->length, value) != 0;
        look->length = value;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        look->codings++;
        look->coding = value;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_HOST)) {
        look->hosts++;
    }
    return MHD_YES;
}

/* The library ends names, values and lines in its buffer by NULs: one for each colon and two for
 * each CRLF, that of the empty line too.  Another number means a NUL within a header, a line ended
 * by LF alone, or a header continued on the next line. */
static bool has_odd_bytes(struct MHD_Connection *connection, const struct look *look,
                          const char *method)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (!info || !look->headers || look->first < method ||
        look->first >= method + info->header_size)
        return false;
    size_t nuls = 0;
    for (const char *c = look->first; c < method + info->header_size; c++)
        nuls += !*c;
    return nuls != (size_t)look->headers * 3 + 2;
}

const char *hzp_framing_fault(struct MHD_Connection *connection, const char *method,
                              const char *version)
{
    struct look look = {0};
    bool http11 = !strcmp(version, MHD_HTTP_VERSION_1_1);
    MHD_get_connection_values(connection, MHD_HEADER_KIND, look_at, &look);
    if (look.bad_name)
        return "a header's name has a byte that names must not have";
    if (has_odd_bytes(connection, &look, method))
        return "a header has a NUL, or a line that does not end in CRLF, or goes on in the next "
               "line";
    if (look.hosts > 1 || (http11 && !look.hosts))
        return look.hosts ? "more than one Host header" : "HTTP/1.1 without a Host header";
    if (look.codings && look.length)
        return "Content-Length together with Transfer-Encoding";
    if (look.lengths_differ)
        return "Content-Length headers that differ";
    if (look.codings && (look.codings > 1 || !http11 || strcasecmp(look.coding, "chunked")))
        return "a Transfer-Encoding other than chunked";
    return NULL;
}
