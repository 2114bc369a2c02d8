/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as requests, whole and cut in pieces: the same fault of the same request.  Any bytes as
 * a body in chunks: it is whole without a fault where a second reader, which looks at whole lines,
 * says so.  The first byte is the cut. */
#include "api/http/wire/framing.h"
#include "tests/fuzz/smoke.h"

static void check(bool condition)
{
    if (!condition)
        abort();
}

static bool same_text(const char *a, const char *b)
{
    return (!a && !b) || (a && b && !strcmp(a, b));
}

static void compare(const char *data, size_t n, size_t step)
{
    struct hzp_framing whole = {0}, cut = {0};
    hzp_framing_read(&whole, data, n);
    for (size_t at = 0; at < n; at += step)
        hzp_framing_read(&cut, data + at, HZP_MIN(step, n - at));
    check(whole.part == cut.part && whole.requests == cut.requests && whole.left == cut.left);
    check(same_text(whole.fault, cut.fault));
}

/* ---- the second reader ---- */

/* The bytes of the line at `at` without its CRLF; false: it has no CRLF, or a byte that is none of
 * a line's. */
static bool line_at(const char *data, size_t n, size_t at, size_t *ret)
{
    for (size_t end = at; end < n; end++) {
        if (data[end] == '\r' && end + 1 < n && data[end + 1] == '\n') {
            *ret = end - at;
            return true;
        }
        if (!data[end] || data[end] == '\r' || data[end] == '\n')
            return false;
    }
    return false;
}

static bool size_line(const char *line, size_t n, uint64_t *ret)
{
    size_t digits = 0;
    bool quoted = false;
    *ret = 0;
    for (; digits < n && strchr("0123456789abcdefABCDEF", line[digits]); digits++) {
        char text[2] = {line[digits]};
        if (*ret >> 56 == 0) /* else longer than any input */
            *ret = *ret << 4 | strtoull(text, NULL, 16);
    }
    for (size_t i = digits; i < n; i++) {
        if (((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 127)
            return false;
        if (quoted && line[i] == '\\' && i + 1 < n)
            i++;
        else if (line[i] == '"')
            quoted = !quoted;
        if (((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 127)
            return false;
    }
    return digits && (digits == n || line[digits] == ';') && !quoted;
}

static bool trailer_line(const char *line, size_t n)
{
    const char *colon = memchr(line, ':', n);
    for (const char *c = line; colon && c < colon; c++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&'*+-.^_`|~",
                    *c))
            return false;
    return colon > line;
}

/* Whether the bytes begin with a body that is whole, which ends at *ret. */
static bool body_is_whole(const char *data, size_t n, size_t *ret)
{
    size_t at = 0, line;
    uint64_t size = 1;
    while (size) {
        if (!line_at(data, n, at, &line) || !size_line(data + at, line, &size))
            return false;
        at += line + 2;
        if (!size)
            break;
        if (size > n - at || n - at - size < 2 || memcmp(data + at + size, "\r\n", 2) != 0)
            return false;
        at += size + 2;
    }
    while (line_at(data, n, at, &line)) {
        *ret = at + line + 2;
        if (!line)
            return true;
        if (!trailer_line(data + at, line))
            return false;
        at += line + 2;
    }
    return false;
}

/* A body behind a header: both readers say the same. */
static void check_body(const char *text, size_t n)
{
    static const char head[] = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    size_t end = 0, at = 0;
    struct hzp_framing f = {0};
    hzp_framing_read(&f, head, sizeof(head) - 1);
    check(!f.fault && f.part);
    while (at < n && f.part && !f.fault)
        hzp_framing_read(&f, text + at++, 1);
    check(body_is_whole(text, n, &end) == !f.part && (f.part || end == at));
}

/* Lines of chunks and trailers, of pieces, one for each byte. */
static void check_lines(const uint8_t *data, size_t size)
{
    static const char *const pieces[] = {
        "0",    "1",        "3",        "a",         "00",          "F",   "\r\n", "\r\n",
        "\n",   "\r",       ";",        ";a",        "=b",          "=\"", "\"",   "\\",
        "\t",   " ",        "abc",      "x\n",       "X: y",        "X:",  ": z",  "Y",
        "\x7f", "\xC3\xA9", "\r\n\r\n", "0\r\n\r\n", "3\r\nabc\r\n"};
    char text[64 * 8] = "";
    size_t n = 0;
    for (size_t i = 0; i < HZP_MIN(size, 64); i++) {
        const char *piece = pieces[data[i] % HZP_COUNT(pieces)];
        memcpy(text + n, piece, strlen(piece));
        n += strlen(piece);
    }
    check_body(text, n);
    if (size)
        compare(text, n, 1 + data[0] % 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    compare(text, size - 1, 1 + data[0] % 8);
    check_body(text, size - 1);
    check_lines(data, size);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("15\r\nhello\r\n0\r\n\r\n"),
    FUZZ_TEXT(
        "25;a=b;c=\"d;\\\"\\\\\"\r\nhello\r\nA\r\n0123456789\r\n0;x\r\nX-Y: z\r\nZ:\r\n\r\nGET"),
    FUZZ_TEXT("35\nhello\r\n0\r\n\r\n"),
    FUZZ_TEXT("45;a=\"\r\nhello\r\n0\r\n\r\n"),
    FUZZ_TEXT("55\r\nhello\n0\r\n\r\n"),
    FUZZ_TEXT("60\n\r\n"),
    FUZZ_TEXT("70000000000000000005\r\nhello\r\n0\r\nX: a\rb\r\n\r\n"),
    FUZZ_TEXT(
        "8GET /a?b=c HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\nPOST / HTTP/1.0\r\nContent-Length: 3\r\n"
        "\r\nabcGET / HTTP/1.1\r\n\r\n"),
    FUZZ_TEXT("1\r\nPOST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: "
              "chunked\r\n\r\n2;a\r\nhi\r\n0\r\n\r\n"
              "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
};

FUZZ_MAIN(seeds)
