/* SPDX-License-Identifier: Apache-2.0 */
/* Answers fed as a whole, byte by byte and in random pieces; servers that violate the protocol. */
#include "api/bench/http_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EVENTS  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n\r\n"

static char seen[4096];
static int stop_at;
static struct hzp_err_text err;

static int event(void *ctx, const char *data, size_t n)
{
    assert_int_equal(data[n], 0);
    strncat(seen, data, sizeof(seen) - strlen(seen) - 1);
    strncat(seen, "|", sizeof(seen) - strlen(seen) - 1);
    return stop_at && --stop_at == 0 ? HZP_ECANCELED : HZP_OK;
}

/* Feeds the text in pieces of this size; 0: of random sizes. */
static int feed(struct hzp_http_stream *s, const char *text, size_t n, size_t piece)
{
    uint32_t seed = 99;
    seen[0] = 0;
    memset(&err, 0, sizeof(err));
    hzp_http_stream_init(s, event, NULL);
    for (size_t at = 0, k; at < n; at += k) {
        seed = seed * 1664525u + 1013904223u;
        k = HZP_MIN(n - at, piece ? piece : 1 + (seed >> 16) % 23);
        HZP_TRY(hzp_http_stream_feed(s, text + at, k, &err));
    }
    return HZP_OK;
}

static void events(void **state)
{
    static const char text[] =
        "HTTP/1.1 100 Continue\r\n\r\n" EVENTS "X: y\r\n" CHUNKED
        "8\r\ndata: a\n\r\n3;ext=1\r\n\nda\r\n0A\r\nta:b\r\n\r\n: \r\n10\r\nping\nevent: x\nda\r\n"
        "4\r\nta: \r\n7\r\n[DONE]\n\r\n0\r\nTrailer: z\r\n\r\n";
    struct hzp_http_stream s;
    for (size_t piece = 0; piece < 40; piece++) {
        assert_int_equal(feed(&s, text, sizeof(text) - 1, piece), HZP_OK);
        assert_true(hzp_http_stream_done(&s));
        assert_int_equal(s.status, 200);
        assert_string_equal(seen, "a|b|[DONE]|");
        assert_int_equal(hzp_http_stream_close(&s, &err), HZP_OK);
        assert_int_equal(hzp_http_stream_feed(&s, "x", 1, &err), HZP_EFORMAT);
        hzp_http_stream_fini(&s);
    }
}

static void bodies(void **state)
{
    struct hzp_http_stream s;
    static const char length[] = "HTTP/1.1 429 Too Many\nContent-Length: 5\n\n{\"a\"}";
    assert_int_equal(feed(&s, length, sizeof(length) - 1, 1), HZP_OK);
    assert_true(hzp_http_stream_done(&s));
    assert_int_equal(s.status, 429);
    assert_string_equal(s.body, "{\"a\"}");
    hzp_http_stream_fini(&s);

    static const char to_close[] =
        "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: q\n";
    assert_int_equal(feed(&s, to_close, sizeof(to_close) - 1, 3), HZP_OK);
    assert_false(hzp_http_stream_done(&s));
    assert_string_equal(seen, "q|");
    assert_int_equal(hzp_http_stream_close(&s, &err), HZP_OK);
    assert_true(hzp_http_stream_done(&s));
    hzp_http_stream_fini(&s);

    static const char none[] = "HTTP/1.1 204 No Content\r\n\r\n";
    assert_int_equal(feed(&s, none, sizeof(none) - 1, 1), HZP_OK);
    assert_true(hzp_http_stream_done(&s));
    hzp_http_stream_fini(&s);

    /* An error whose type claims to be a stream is kept as a body. */
    static const char failed[] = "HTTP/1.1 500 No\r\nContent-Type: text/event-stream\r\n"
                                 "Content-Length: 7\r\n\r\ndata: q";
    assert_int_equal(feed(&s, failed, sizeof(failed) - 1, 2), HZP_OK);
    assert_string_equal(s.body, "data: q");
    hzp_http_stream_fini(&s);
}

static void rule_breakers(void **state)
{
    static const char *const bad[] = {
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 2x0\r\n",
        "HTTP/1.1 99 no\r\n",
        "HTTP/2 200\r\n",
        "\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
        EVENTS CHUNKED "xyz\r\n",
        EVENTS CHUNKED "fffffffffffffffff\r\n",
        EVENTS CHUNKED "-3\r\n",
        EVENTS CHUNKED "\r\n",
        EVENTS CHUNKED "2\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"};
    struct hzp_http_stream s;
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        if (feed(&s, bad[i], strlen(bad[i]), 1) != HZP_EFORMAT)
            fail_msg("case %d was accepted", i);
        assert_true(err.text[0] != 0);
        hzp_http_stream_fini(&s);
    }
    assert_int_equal(feed(&s, "HTTP/1.1 200 \0OK", 16, 1), HZP_EFORMAT);
    hzp_http_stream_fini(&s);
    static const char cut[] = EVENTS CHUNKED "5\r\ndat";
    for (size_t n = 0; n < sizeof(cut); n++) {
        assert_int_equal(feed(&s, cut, n, 7), HZP_OK);
        assert_int_equal(hzp_http_stream_close(&s, &err), HZP_EIO);
        hzp_http_stream_fini(&s);
    }
    stop_at = 2;
    static const char three[] = EVENTS "\r\ndata: 1\ndata: 2\ndata: 3\n";
    assert_int_equal(feed(&s, three, sizeof(three) - 1, 0), HZP_ECANCELED);
    assert_string_equal(seen, "1|2|");
    hzp_http_stream_fini(&s);
}

/* An answer that never ends is refused at its bound. */
static void bounds(void **state)
{
    struct hzp_http_stream s;
    static char block[1 << 16];
    memset(block, 'a', sizeof(block));
    for (int kind = 0; kind < 3; kind++) {
        const char *head = kind == 0   ? "HTTP/1.1 200 OK\r\n"
                           : kind == 1 ? EVENTS "\r\n"
                                       : "HTTP/1.1 200 OK\r\n\r\n";
        assert_int_equal(feed(&s, head, strlen(head), 0), HZP_OK);
        size_t sent = 0;
        int r = HZP_OK;
        while (r == HZP_OK && sent < ((size_t)HZP_HTTP_BODY_MAX << 1)) {
            r = hzp_http_stream_feed(&s, block, sizeof(block), &err);
            sent += sizeof(block);
        }
        assert_int_equal(r, HZP_EFORMAT);
        assert_true(s.room <= ((size_t)HZP_HTTP_BODY_MAX << 1) + 1024);
        hzp_http_stream_fini(&s);
    }
    static const char many[] = "A: b\r\n";
    assert_int_equal(feed(&s, "HTTP/1.1 200 OK\r\n", 17, 0), HZP_OK);
    int r = HZP_OK, turns = 0;
    while (r == HZP_OK && turns++ < HZP_HTTP_HEAD_MAX)
        r = hzp_http_stream_feed(&s, many, sizeof(many) - 1, &err);
    assert_int_equal(r, HZP_EFORMAT);
    hzp_http_stream_fini(&s);
}

/* Damaged answers end in success or an error, and the parser reads only its own memory (checked
   by sanitizers). */
static void damage(void **state)
{
    static const char good[] = EVENTS CHUNKED "8\r\ndata: a\n\r\n8\r\ndata: b\n\r\n0\r\n\r\n";
    static const char with[] = "0123456789abcdefABCDEF:;\r\n \tdataHTTP/\0\xff";
    char text[sizeof(good)];
    uint32_t seed = 3;
    int whole = 0;
    struct hzp_http_stream s;
    for (int turn = 0; turn < 20000; turn++) {
        memcpy(text, good, sizeof(good));
        for (int k = 0; k <= turn % 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[(seed >> 8) % (sizeof(good) - 1)] = with[(seed >> 20) % (sizeof(with) - 1)];
        }
        whole += feed(&s, text, sizeof(good) - 1, (size_t)(turn % 5)) == HZP_OK;
        hzp_http_stream_fini(&s);
    }
    assert_in_range(whole, 1000, 19000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events), cmocka_unit_test(bodies), cmocka_unit_test(rule_breakers),
        cmocka_unit_test(bounds), cmocka_unit_test(damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
