/* SPDX-License-Identifier: Apache-2.0 */
/* Request traces: the three formats, and files that are not traces. */
#include "dev/bench/trace_file.h"
#include "tests/weights/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEADER "TIMESTAMP,ContextTokens,GeneratedTokens\n"

static struct hzp_trace_file trace;
static struct hzp_err_text err;

static int read_bytes(const char *data, size_t size, int64_t limit)
{
    const char *path = scratch_path("trace");
    scratch_write(path, data, size);
    memset(&err, 0, sizeof(err));
    return hzp_trace_file_read(path, limit, &trace, &err);
}

static int read_text(const char *text, int64_t limit)
{
    return read_bytes(text, strlen(text), limit);
}

static void azure(void **state)
{
    assert_int_equal(read_text("\xef\xbb\xbf" HEADER "2023-11-16 23:59:59.5000000,374,44\r\n\r\n"
                               "2023-11-17 00:00:01.2500000,396,109\r\n"
                               "2023-11-17T01:00:02+01:00,1,0",
                               0),
                     HZP_OK);
    assert_int_equal(trace.form, HZP_TRACE_AZURE);
    assert_true(trace.timed);
    assert_int_equal(trace.requests, 3);
    assert_true(trace.request[0].at_s == 0);
    assert_true(fabs(trace.request[1].at_s - 1.75) < 1e-6);
    assert_true(fabs(trace.request[2].at_s - 2.5) < 1e-6);
    assert_int_equal(trace.request[0].input, 374);
    assert_int_equal(trace.request[0].output, 44);
    assert_int_equal(trace.request[2].output, 1);
    assert_int_equal(trace.hashes, 0);
    hzp_trace_file_free(&trace);
}

static void seconds_and_order(void **state)
{
    assert_int_equal(read_text(HEADER "12.5,1,1\n10,2,2\n12.5,3,3\n11,4,4\n12.5,5,5\n", 0), HZP_OK);
    static const int32_t order[] = {2, 4, 1, 3, 5};
    static const double at[] = {0, 1, 2.5, 2.5, 2.5};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(trace.request[i].input, order[i]);
        assert_true(trace.request[i].at_s == at[i]);
    }
    hzp_trace_file_free(&trace);
}

static void nanoflow(void **state)
{
    assert_int_equal(read_text(HEADER "XXX,107,15\nXXX,396,513\nXXX,18,222\n", 2), HZP_OK);
    assert_int_equal(trace.form, HZP_TRACE_NANOFLOW);
    assert_false(trace.timed);
    assert_int_equal(trace.requests, 2);
    assert_int_equal(trace.request[1].output, 513);
    hzp_trace_file_free(&trace);
}

static void mooncake(void **state)
{
    assert_int_equal(
        read_text(
            "{\"timestamp\": 1000, \"input_length\": 513, \"output_length\": 7, \"hash_ids\": "
            "[4, 9]}\n{\"timestamp\": 2500, \"input_length\": 3, \"output_length\": 0, "
            "\"hash_ids\": [4]}\n{\"timestamp\":2600,\"input_length\":3,\"output_length\":1}",
            0),
        HZP_OK);
    assert_int_equal(trace.form, HZP_TRACE_MOONCAKE);
    assert_true(trace.timed);
    assert_int_equal(trace.requests, 3);
    assert_true(fabs(trace.request[1].at_s - 1.5) < 1e-9);
    assert_int_equal(trace.request[0].hashes, 2);
    assert_int_equal(trace.hash[trace.request[0].first_hash + 1], 9);
    assert_int_equal(trace.request[1].hashes, 1);
    assert_int_equal(trace.hash[trace.request[1].first_hash], 4);
    assert_int_equal(trace.request[2].hashes, 0);
    hzp_trace_file_free(&trace);
}

/* Each is refused with the number of the bad line, and nothing is left to free. */
static void hostile_lines(void **state)
{
    static const struct {
        const char *text;
        int line;
        const char *says;
    } bad[] = {
        {"hello\n", 1, "unknown trace format"},
        {"a,b,c\n1,2,3\n", 1, "unknown trace format"},
        {HEADER "1,2\n", 2, "three fields"},
        {HEADER "1,2,3,4\n", 2, "three fields"},
        {HEADER "1,2,3\n\n2,x,3\n", 4, "not a whole number"},
        {HEADER "1,2,\n", 2, "not a whole number"},
        {HEADER "1,-2,3\n", 2, "not a whole number"},
        {HEADER "1,2.5,3\n", 2, "not a whole number"},
        {HEADER "1,2,99999999999999999999\n", 2, "not a whole number"},
        {HEADER "1,0,3\n", 2, "a prompt of 0 tokens"},
        {HEADER "1,16777217,3\n", 2, "16777217"},
        {HEADER "1,1,16777217\n", 2, "16777217"},
        {HEADER "nan,1,1\n", 2, "not a time"},
        {HEADER "-1,1,1\n", 2, "not a time"},
        {HEADER "1e300,1,1\n", 2, "not a time"},
        {HEADER "0x10,1,1\n", 2, "not a time"},
        {HEADER ",1,1\n", 2, "not a time"},
        {HEADER "2023-13-16 18:15:46.68,1,1\n", 2, "not a time"},
        {HEADER "2023-11-16 24:15:46.68,1,1\n", 2, "not a time"},
        {HEADER "2023-11-16 18:15:46.6.8,1,1\n", 2, "not a time"},
        {HEADER "2023-11-16 18:15:46+99:00,1,1\n", 2, "not a time"},
        {HEADER "2023-11-16 18:15:,1,1\n", 2, "not a time"},
        {HEADER "XXX,1,1\n5,1,1\n", 3, "some have none"},
        {HEADER "5,1,1\nXXX,1,1\n", 3, "some have none"},
        {"{\n", 1, ""},
        {"{}\n", 1, "timestamp"},
        {"{\"timestamp\": \"1\", \"input_length\": 1, \"output_length\": 1}", 1, "timestamp"},
        {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}", 1, "timestamp"},
        {"{\"timestamp\": 1, \"input_length\": 1.5, \"output_length\": 1}", 1, "input_length"},
        {"{\"timestamp\": 1, \"input_length\": 1}", 1, "output_length"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": -1}", 1, "-1 tokens"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 3}", 1,
         "hash_ids"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [-3]}", 1,
         "hash_ids[0]"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1, 2]}", 1,
         "2 hash_ids"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n[1]\n", 2, "object"},
    };
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(read_text(bad[i].text, 0), HZP_EFORMAT);
        char where[32];
        snprintf(where, sizeof(where), "trace:%d: ", bad[i].line);
        if (!strstr(err.text, where) || !strstr(err.text, bad[i].says))
            fail_msg("case %d: \"%s\"", i, err.text);
        assert_null(trace.request);
    }
}

static void files_that_are_none(void **state)
{
    assert_int_equal(hzp_trace_file_read(scratch_path("absent"), 0, &trace, &err), HZP_ENOENT);
    assert_non_null(strstr(err.text, "absent"));
    assert_int_equal(hzp_trace_file_read(scratch_dir, 0, &trace, &err), HZP_EIO);
    assert_int_equal(read_text("", 0), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "no requests"));
    assert_int_equal(read_text(HEADER, 0), HZP_EFORMAT);
    assert_int_equal(read_bytes(HEADER "1,2,3\n1,\0"
                                       "2,3\n",
                                sizeof(HEADER) + 13, 0),
                     HZP_EFORMAT);
    assert_non_null(strstr(err.text, "NUL"));
    assert_int_equal(read_text(HEADER "0,1,1\n99999999999,1,1\n", 0), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "spans"));

    size_t n = HZP_TRACE_LINE_MAX + 2;
    char *line = malloc(n);
    memset(line, '7', n);
    assert_int_equal(read_bytes(line, n, 0), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "longer than"));
    memset(line, '[', n - 2); /* deeply nested JSON in a line of the maximum length */
    assert_int_equal(read_bytes(line, n - 2, 0), HZP_EFORMAT);
    memcpy(line, "{\"a\":", 5);
    assert_int_equal(read_bytes(line, n - 2, 0), HZP_EFORMAT);
    free(line);
}

/* Random damage to a good file: it is read or refused, and what is read satisfies the
   interface's guarantees. */
static void damage(void **state)
{
    static const char good[2][200] = {
        HEADER "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        "{\"timestamp\": 27482, \"input_length\": 1030, \"output_length\": 52, \"hash_ids\": [46, "
        "47, "
        "2353]}\n{\"timestamp\": 30535, \"input_length\": 5, \"output_length\": 26}\n"};
    static const char with[] = "0123456789,:{}[]\"-+.eE \n\r\t\0xX\xff";
    uint32_t seed = 7;
    int read = 0;
    for (int turn = 0; turn < 4000; turn++) {
        char text[200];
        memcpy(text, good[turn & 1], sizeof(text));
        size_t n = strlen(text);
        for (int k = 0; k < 1 + turn % 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[(seed >> 8) % n] = with[(seed >> 20) % (sizeof(with) - 1)];
        }
        if (read_bytes(text, n, 0) != HZP_OK) {
            assert_true(err.text[0] != 0);
            continue;
        }
        read++;
        for (int64_t i = 0; i < trace.requests; i++) {
            const struct hzp_trace_request *r = &trace.request[i];
            assert_true(r->input >= 1 && r->input <= HZP_TRACE_TOKENS_MAX && r->output >= 1);
            assert_true(r->output <= HZP_TRACE_TOKENS_MAX && r->at_s >= 0);
            assert_true(r->first_hash + r->hashes <= trace.hashes);
        }
        hzp_trace_file_free(&trace);
    }
    assert_in_range(read, 100, 3900);
}

struct known_trace {
    const char *name;
    enum hzp_trace_form form;
    int64_t requests;
    double span_s;
};

static void read_known(const struct known_trace *file, int n, const char *root)
{
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/traces/%s", root ? root : ".", file[i].name);
        if (access(path, R_OK) != 0)
            skip();
        assert_int_equal(hzp_trace_file_read(path, 0, &trace, &err), HZP_OK);
        assert_int_equal(trace.form, file[i].form);
        assert_int_equal(trace.requests, file[i].requests);
        assert_true(fabs(trace.request[trace.requests - 1].at_s - file[i].span_s) < 0.01);
        hzp_trace_file_free(&trace);
    }
}

/* The files of dev/make_test_data.py, in the same three forms. */
static void synthetic(void **state)
{
    static const struct known_trace file[] = {
        {"synthetic_bursts.csv", HZP_TRACE_AZURE, 800, 200.9274},
        {"synthetic_chat.csv", HZP_TRACE_NANOFLOW, 800, 0},
        {"synthetic_talks.jsonl", HZP_TRACE_MOONCAKE, 120, 306.191},
    };
    const char *root = getenv("HZP_OWN_DATA");
    read_known(file, HZP_COUNT(file), root ? root : "tests/data");
}

/* The recorded traces, where they are present. */
static void recorded(void **state)
{
    static const struct known_trace file[] = {
        {"AzureLLMInferenceTrace_conv.csv", HZP_TRACE_AZURE, 19366, 3501.7219},
        {"nanoflow_lmsys.csv", HZP_TRACE_NANOFLOW, 100000, 0},
        {"mooncake_conversation_trace.jsonl", HZP_TRACE_MOONCAKE, 12031, 3536.999},
    };
    read_known(file, HZP_COUNT(file), getenv("HZP_TEST_DATA"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(azure),         cmocka_unit_test(seconds_and_order),
        cmocka_unit_test(nanoflow),      cmocka_unit_test(mooncake),
        cmocka_unit_test(hostile_lines), cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(damage),        cmocka_unit_test(recorded),
        cmocka_unit_test(synthetic),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
