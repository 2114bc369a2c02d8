/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's answers as the relay reads them: in one piece, byte by byte and cut anywhere; the three
 * ways in which an end is found; groups of a stream of which only whole ones are given on; what is
 * no answer. */
#include "api/relay/incoming.h"
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char sized[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Some: a thing \r\n\r\nhello";
static const char chunks[] = "HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n"
                             "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
static const char closed[] = "HTTP/1.1 200 OK\r\n\r\nhello";
static const char stream[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n"
                             "8\r\ndata: 1\n\r\n"
                             "29\r\n\n: hzp t 0 7 1 2 2 -0x1p+0\n: hzp g\ndata: \r\n"
                             "25\r\n2\n\n: hzp t 0 8 1 2 2 -0x1p+0\n: hzp d\n\r\n"
                             "0\r\n\r\n";

static void check_text(const struct hzp_textbuf *buf, const char *text)
{
    assert_int_equal(buf->bytes, strlen(text));
    assert_memory_equal(buf->data ? buf->data : "", text, buf->bytes);
}

/* Reads an answer in pieces that end at `cut` and then after `piece` bytes each. */
static void read_all(struct hzp_incoming *in, const char *text, size_t cut, size_t piece)
{
    size_t bytes = strlen(text), at = HZP_MIN(cut, bytes);
    *in = (struct hzp_incoming){.status = 0};
    assert_int_equal(hzp_incoming_feed(in, text, at), HZP_OK);
    for (size_t n; at < bytes; at += n) {
        n = HZP_MIN(piece, bytes - at);
        assert_int_equal(hzp_incoming_feed(in, text + at, n), HZP_OK);
    }
}

static void test_ends(void **state)
{
    static const struct {
        const char *text;
        int status;
        bool itself; /* its end is known before the connection's */
    } answer[] = {{sized, 200, true}, {chunks, 404, true}, {closed, 200, false}};
    for (int i = 0; i < HZP_COUNT(answer); i++)
        for (size_t cut = 0; cut <= strlen(answer[i].text); cut++)
            for (size_t piece = 1; piece < 200; piece += 66) {
                struct hzp_incoming in;
                read_all(&in, answer[i].text, cut, piece);
                assert_int_equal(in.status, answer[i].status);
                assert_int_equal(in.part == HZP_INCOMING_WHOLE, answer[i].itself);
                assert_true(hzp_incoming_end(&in));
                check_text(&in.body, "hello");
                hzp_incoming_fini(&in);
            }
}

/* What is missing makes no whole answer, but where its end is the connection's. */
static void test_cut(void **state)
{
    for (size_t n = 0; n < strlen(sized); n++) {
        struct hzp_incoming in = {.status = 0};
        assert_int_equal(hzp_incoming_feed(&in, sized, n), HZP_OK);
        assert_false(hzp_incoming_end(&in));
        hzp_incoming_fini(&in);
    }
    for (size_t n = 0; n < strlen(chunks); n++) {
        struct hzp_incoming in = {.status = 0};
        assert_int_equal(hzp_incoming_feed(&in, chunks, n), HZP_OK);
        assert_false(hzp_incoming_end(&in));
        hzp_incoming_fini(&in);
    }
}

static void test_headers(void **state)
{
    const char *name, *value;
    size_t names, values, at = 0;
    struct hzp_incoming in;
    read_all(&in, sized, 0, 7);
    assert_true(hzp_incoming_header(&in, &at, &name, &names, &value, &values));
    assert_memory_equal(name, "Content-Length", names);
    assert_true(hzp_incoming_header(&in, &at, &name, &names, &value, &values));
    assert_int_equal(names, 6);
    assert_memory_equal(name, "X-Some", names);
    assert_int_equal(values, 7);
    assert_memory_equal(value, "a thing", values);
    assert_false(hzp_incoming_header(&in, &at, &name, &names, &value, &values));
    hzp_incoming_fini(&in);
}

/* Wherever it is cut, the client has the events of exactly the tokens in the journal. */
static void test_groups(void **state)
{
    static const char first[] = ": hzp t 0 7 1 2 2 -0x1p+0\n",
                      both[] = ": hzp t 0 7 1 2 2 -0x1p+0\n: hzp t 0 8 1 2 2 -0x1p+0\n";
    int64_t seen = 0;
    for (size_t n = 0; n <= strlen(stream); n++) {
        struct hzp_incoming in = {.status = 0};
        for (size_t i = 0; i < n; i++)
            assert_int_equal(hzp_incoming_feed(&in, stream + i, 1), HZP_OK);
        check_text(&in.body, in.groups == 2   ? "data: 1\n\ndata: 2\n\n"
                             : in.groups == 1 ? "data: 1\n\n"
                                              : "");
        check_text(&in.journal, in.groups == 2 ? both : in.groups == 1 ? first : "");
        assert_int_equal(hzp_incoming_end(&in), in.groups == 2);
        assert_true(in.groups >= seen);
        seen = in.groups;
        hzp_incoming_fini(&in);
    }
    assert_int_equal(seen, 2);
}

/* After a loss the rest comes in another answer; an error instead of it is no text of the stream.
 * Status and header stay those of the first one. */
static void test_goes_on(void **state)
{
    static const char rest[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
                               "data: 2\n\n: hzp t 0 8 1 2 2 -0x1p+0\n: hzp d\n";
    static const char error[] = "HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}";
    for (int wrong = 0; wrong < 2; wrong++) {
        struct hzp_incoming in = {.status = 0};
        assert_int_equal(hzp_incoming_feed(&in, stream, strlen(stream) - 30), HZP_OK);
        assert_int_equal(in.groups, 1);
        assert_false(hzp_incoming_end(&in));
        hzp_incoming_restart(&in);
        const char *next = wrong ? error : rest;
        assert_int_equal(hzp_incoming_feed(&in, next, strlen(next)), HZP_OK);
        assert_int_equal(in.part, HZP_INCOMING_WHOLE);
        assert_int_equal(in.status, wrong ? 409 : 200);
        assert_int_equal(in.stream, !wrong);
        const char *name, *value;
        size_t names, values, at = 0;
        assert_int_equal(hzp_incoming_status(&in), 200);
        assert_true(hzp_incoming_header(&in, &at, &name, &names, &value, &values));
        assert_int_equal(values, 32); /* with its charset */
        check_text(&in.body, wrong ? "data: 1\n\n" : "data: 1\n\ndata: 2\n\n");
        if (wrong)
            check_text(&in.group, "{}");
        hzp_incoming_fini(&in);
    }
    /* What was not a stream begins anew. */
    struct hzp_incoming in = {.status = 0};
    assert_int_equal(hzp_incoming_feed(&in, sized, strlen(sized) - 2), HZP_OK);
    hzp_incoming_restart(&in);
    assert_int_equal(hzp_incoming_feed(&in, sized, strlen(sized)), HZP_OK);
    check_text(&in.body, "hello");
    hzp_incoming_fini(&in);
}

static void test_no_answers(void **state)
{
    static const char *const bad[] = {
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 20\r\n\r\n",
        "HTTP/1.1 999 What\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
         "00000000000000000000000000000000000000000000000000000000000000000000000000000000000001"),
    };
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        struct hzp_incoming in = {.status = 0};
        assert_int_equal(hzp_incoming_feed(&in, bad[i], strlen(bad[i])), HZP_EFORMAT);
        hzp_incoming_fini(&in);
    }
    struct hzp_incoming in = {.status = 0};
    int r = HZP_OK;
    for (int i = 0; i <= HZP_INCOMING_HEAD_MAX && r == HZP_OK; i++)
        r = hzp_incoming_feed(&in, "x", 1);
    assert_int_equal(r, HZP_EFORMAT);
    hzp_incoming_fini(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),    cmocka_unit_test(test_cut),
        cmocka_unit_test(test_headers), cmocka_unit_test(test_groups),
        cmocka_unit_test(test_goes_on), cmocka_unit_test(test_no_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
