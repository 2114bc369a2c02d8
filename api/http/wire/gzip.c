/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/gzip.h"

#include "base/err.h"

#include <strings.h>
#include <zlib.h>

struct hzp_gzip {
    z_stream stream;
    bool whole; /* the member has ended */
};

bool hzp_gzip_named(const char *coding)
{
    return !strcasecmp(coding, "gzip") || !strcasecmp(coding, "x-gzip");
}

int hzp_gzip_create(struct hzp_gzip **ret)
{
    enum { WINDOW = 15, GZIP_ONLY = 16 };
    struct hzp_gzip *gzip = calloc(1, sizeof(*gzip));
    if (!gzip || inflateInit2(&gzip->stream, WINDOW + GZIP_ONLY) != Z_OK) {
        free(gzip);
        return HZP_ENOMEM;
    }
    *ret = gzip;
    return HZP_OK;
}

void hzp_gzip_destroy(struct hzp_gzip *gzip)
{
    if (!gzip)
        return;
    inflateEnd(&gzip->stream);
    free(gzip);
}

int hzp_gzip_feed(struct hzp_gzip *gzip, const char *data, size_t bytes,
                  bool (*more)(void *ctx, const char *text, size_t bytes), void *ctx)
{
    unsigned char piece[16 << 10];
    z_stream *z = &gzip->stream;
    z->next_in = (unsigned char *)(uintptr_t)data;
    z->avail_in = (unsigned)bytes;
    int r = Z_OK;
    do {
        if (gzip->whole && z->avail_in && inflateReset(z) != Z_OK)
            return HZP_EFORMAT;
        gzip->whole &= !z->avail_in;
        z->next_out = piece;
        z->avail_out = sizeof(piece);
        if (gzip->whole)
            break;
        r = inflate(z, Z_NO_FLUSH);
        if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
            return HZP_EFORMAT;
        gzip->whole = r == Z_STREAM_END;
        size_t n = sizeof(piece) - z->avail_out;
        if (n && !more(ctx, (const char *)piece, n))
            return HZP_ECANCELED;
    } while (z->avail_in || !z->avail_out);
    return HZP_OK;
}

bool hzp_gzip_whole(const struct hzp_gzip *gzip)
{
    return gzip->whole || !gzip->stream.total_in;
}
