/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "weights/safetensors.h"

#include "tests/weights/scratch.h"

/* Writes header length, header and data_size bytes of data (each its number mod 251). */
static const char *make_file(uint64_t length, const char *header, size_t header_size,
                             size_t data_size)
{
    const char *path = scratch_path("x.safetensors");
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> (8 * i) & 0xff), file);
    fwrite(header, 1, header_size, file);
    for (size_t i = 0; i < data_size; i++)
        fputc((int)(i % 251), file);
    fclose(file);
    return path;
}

/* Opening must fail with this code, and the text must be one line that names the file and
 * contains both words. */
static void expect_bad(const char *path, int code, const char *word, const char *other)
{
    struct hzp_safetensors *st = NULL;
    struct hzp_err_text err = {.text = ""};
    assert_int_equal(hzp_safetensors_open(path, &st, &err), code);
    assert_null(st);
    if (!strstr(err.text, path) || !strstr(err.text, word) || !strstr(err.text, other))
        fail_msg("'%s' does not name %s, '%s' and '%s'", err.text, path, word, other);
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(hzp_safetensors_open(path, &st, NULL), code); /* also without a text */
}

static void expect_bad_header(const char *header, size_t data_size, const char *word,
                              const char *other)
{
    expect_bad(make_file(strlen(header), header, strlen(header), data_size), HZP_EFORMAT, word,
               other);
}

/* The tensor's bytes, valid until the next call. */
static const unsigned char *data_of(const struct hzp_st_tensor *t)
{
    static unsigned char bytes[256];
    struct hzp_err_text err;
    assert_true((size_t)t->elements * hzp_disk_type_size(t->type) <= sizeof(bytes));
    if (hzp_safetensors_read(t, 0, t->elements, bytes, &err) != HZP_OK)
        fail_msg("%s", err.text);
    return bytes;
}

/* A file that is cut while it is open: an error that names it, and no signal. */
static void test_shrinks(void **state)
{
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4096],\"data_offsets\":[0,16384]}}";
    const char *path = make_file(strlen(header), header, strlen(header), 16384);
    struct hzp_safetensors *st;
    struct hzp_err_text err;
    static float value[4096];
    assert_int_equal(hzp_safetensors_open(path, &st, &err), HZP_OK);
    const struct hzp_st_tensor *a = hzp_safetensors_find(st, "a");
    assert_int_equal(hzp_safetensors_read(a, 4000, 96, value, &err), HZP_OK);
    assert_int_equal(truncate(path, 8192), 0);
    assert_int_equal(hzp_safetensors_read(a, 0, 16, value, &err), HZP_OK);
    assert_int_equal(hzp_safetensors_read(a, 0, 4096, value, &err), HZP_EIO);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "has become shorter while it was read: it ends at byte 8192"));
    assert_int_equal(hzp_safetensors_read(a, 4095, 1, value, &err), HZP_EIO);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(hzp_safetensors_read(a, 0, 1, value, NULL), HZP_EIO);
    hzp_safetensors_close(st);
}

static void test_reads(void **state)
{
    const char *header =
        "{\"__metadata__\":{\"format\":\"pt\",\"\\u00e4\\n\":\"\\ud83d\\ude00\",\"odd\":"
        "\"a\\ud800\\u0063\\udc00\"},\n"
        " \"b\": {\"shape\": [2, 3], \"dtype\":\"BF16\",\"data_offsets\":[8,20]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[20,20]},"
        "\"one\\/\xc3\xa4\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]}}   ";
    const char *path = make_file(strlen(header), header, strlen(header), 21);
    struct hzp_safetensors *st;
    struct hzp_err_text err;
    if (hzp_safetensors_open(path, &st, &err) != HZP_OK)
        fail_msg("%s", err.text);
    assert_int_equal(hzp_safetensors_count(st), 4);
    assert_string_equal(hzp_safetensors_at(st, 0)->name, "a");
    const struct hzp_st_tensor *b = hzp_safetensors_find(st, "b");
    assert_non_null(b);
    assert_int_equal(b->type, HZP_DISK_BF16);
    assert_int_equal(b->dims, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->elements, 6);
    for (int i = 0; i < 12; i++)
        assert_int_equal(data_of(b)[i], 8 + i);
    assert_int_equal(hzp_safetensors_find(st, "empty")->elements, 0);
    const struct hzp_st_tensor *one = hzp_safetensors_find(st, "one/\xc3\xa4");
    assert_non_null(one);
    assert_int_equal(one->elements, 1);
    assert_int_equal(*data_of(one), 20);
    assert_null(hzp_safetensors_find(st, "c"));
    assert_string_equal(hzp_safetensors_meta(st, "format"), "pt");
    assert_string_equal(hzp_safetensors_meta(st, "odd"), "a\xef\xbf\xbd"
                                                         "c\xef\xbf\xbd");
    assert_string_equal(hzp_safetensors_meta(st, "\xc3\xa4\n"), "\xf0\x9f\x98\x80");
    assert_null(hzp_safetensors_meta(st, "b"));
    hzp_safetensors_close(st);
    hzp_safetensors_close(NULL);
}

static void test_no_tensors(void **state)
{
    struct hzp_safetensors *st;
    assert_int_equal(hzp_safetensors_open(make_file(2, "{}", 2, 0), &st, NULL), HZP_OK);
    assert_int_equal(hzp_safetensors_count(st), 0);
    assert_null(hzp_safetensors_find(st, "a"));
    hzp_safetensors_close(st);
}

static void test_lying_length(void **state)
{
    expect_bad(make_file(3, "{}", 2, 0), HZP_EFORMAT, "header has 3 bytes", "only 2");
    expect_bad(make_file(UINT64_MAX, "{}", 2, 0), HZP_EFORMAT, "header has", "only 2");
    expect_bad(make_file((uint64_t)1 << 63, "{}", 2, 0), HZP_EFORMAT, "header has", "only 2");
    expect_bad(make_file(UINT64_MAX - 7, "{}", 2, 0), HZP_EFORMAT, "header has", "only 2");
    expect_bad(make_file(0, "{}", 2, 0), HZP_EFORMAT, "its header", "a value expected");
    expect_bad(make_file(1, "{}", 2, 0), HZP_EFORMAT, "a name in quotes", "byte 2");
    /* a sparse file: the header's bound holds even if the file is long enough */
    const char *path = make_file((8 << 20) + 1, "{}", 2, 0);
    assert_int_equal(truncate(path, 30000000), 0);
    expect_bad(path, HZP_EFORMAT, "header has 8388609 bytes", "at most");
}

static void test_no_file(void **state)
{
    const char *path = scratch_path("short");
    expect_bad(scratch_path("absent"), HZP_ENOENT, "No such file", "");
    expect_bad(scratch_path("."), HZP_EIO, "is a directory", "");
    scratch_write(path, "", 0);
    expect_bad(path, HZP_EFORMAT, "0 bytes", "");
    scratch_write(path, "\2\0\0\0\0\0\0", 7);
    expect_bad(path, HZP_EFORMAT, "7 bytes", "");
    path = scratch_path("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_bad(path, HZP_EIO, "not a regular file", "");
}

#define T(rest) "{\"te.n\":{\"dtype\":\"F32\"," rest "}}"

static void test_wrong_tensors(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *word;
    } bad[] = {
        {T("\"shape\":[2],\"data_offsets\":[0,12]"), 12, "span 12 bytes"},
        {T("\"shape\":[2],\"data_offsets\":[0,4]"), 4, "span 4 bytes"},
        {T("\"shape\":[2],\"data_offsets\":[8,0]"), 8, "end before they begin"},
        {T("\"shape\":[2],\"data_offsets\":[0,8]"), 7, "truncated"},
        {T("\"shape\":[2],\"data_offsets\":[4,12]"), 12, "a hole"},
        {T("\"shape\":[2],\"data_offsets\":[9223372036854775800,9223372036854775807]"), 8,
         "truncated"},
        {T("\"shape\":[2],\"data_offsets\":[0,9223372036854775808]"), 8, "too large"},
        {T("\"shape\":[2],\"data_offsets\":[0,99999999999999999999999]"), 8, "too large"},
        {T("\"shape\":[2],\"data_offsets\":[-8,0]"), 8, "negative"},
        {T("\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "negative"},
        {T("\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "not a whole number"},
        {T("\"shape\":[2e0],\"data_offsets\":[0,8]"), 8, "not a whole number"},
        {T("\"shape\":[true],\"data_offsets\":[0,8]"), 8, "whole number"},
        {T("\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8, "whole number"},
        {T("\"shape\":2,\"data_offsets\":[0,8]"), 8, "is no list"},
        {T("\"shape\":[2],\"data_offsets\":[0]"), 8, "not two numbers"},
        {T("\"shape\":[2],\"data_offsets\":[]"), 8, "not two numbers"},
        {T("\"shape\":[2],\"data_offsets\":[0,8,8]"), 8, "too long"},
        {T("\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), 8, "too long"},
        {T("\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"), 8, "overflows"},
        {T("\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, "overflows"},
        {T("\"shape\":[2],\"data_offsets\":[0,8],\"more\":1"), 8, "\"more\" is not known"},
        {T("\"shape\":[2]"), 8, "no data_offsets"},
        {T("\"data_offsets\":[0,8]"), 8, "no shape"},
        {"{\"te.n\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"te.n\":{}}", 8, "no dtype"},
        {"{\"te.n\":{\"dtype\":\"F7\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "\"F7\""},
        {"{\"te.n\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "a string"},
        {"{\"te.n\":[]}", 8, "is no object"},
        {"{\"te.n\":null}", 8, "is no object"},
    };
    for (int i = 0; i < HZP_COUNT(bad); i++)
        expect_bad_header(bad[i].header, bad[i].data, bad[i].word, "te.n");
}

#define E(name, from, to)                                                                          \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #from "," #to "]}"

static void test_wrong_together(void **state)
{
    expect_bad_header("{" E("a", 0, 4) "," E("b", 2, 6) "}", 6, "before", "tensor b");
    expect_bad_header("{" E("a", 0, 4) "," E("b", 0, 4) "}", 4, "before", "tensor b");
    expect_bad_header("{" E("a", 0, 4) "," E("b", 5, 9) "}", 9, "hole", "tensor b");
    expect_bad_header("{" E("a", 0, 4) "}", 5, "5 bytes of data", "end at 4");
    expect_bad_header("{" E("a", 0, 4) "," E("a", 4, 8) "}", 8, "duplicate name", "its header");
    expect_bad_header("{" E("a", 0, 4) "," E("\\u0061", 4, 8) "}", 8, "duplicate name",
                      "its header");
    expect_bad_header(T("\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]"), 8, "duplicate name",
                      "its header");
    expect_bad_header("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate name",
                      "its header");
}

/* For a caller that checks for missing tensors itself, a hole is only reported; everything else
   is still an error. */
static void test_holes(void **state)
{
    static const struct {
        const char *header, *told;
        size_t data;
    } holed[] = {
        {"{" E("b", 4, 8) "," E("c", 8, 12) "}", "tensor b: its data begin at byte 4", 12},
        {"{" E("a", 0, 4) "," E("c", 8, 12) "}", "tensor c: its data begin at byte 8", 12},
        {"{" E("a", 0, 4) "," E("b", 4, 8) "}", "12 bytes of data, but the tensors end at 8", 12},
        {"{" E("a", 4, 8) "," E("b", 12, 16) "}", "tensor a: its data begin at byte 4", 17},
        {"{}", "9 bytes of data, but the tensors end at 0", 9},
        {"{" E("a", 0, 4) "}", "", 4},
    };
    struct hzp_safetensors *st;
    struct hzp_err_text hole = {.text = "old"}, err;
    for (int i = 0; i < HZP_COUNT(holed); i++) {
        const char *path = make_file(strlen(holed[i].header), holed[i].header,
                                     strlen(holed[i].header), holed[i].data);
        if (hzp_safetensors_open_holed(path, &st, &hole, &err) != HZP_OK)
            fail_msg("%s", err.text);
        assert_non_null(strstr(hole.text, holed[i].told));
        assert_int_equal(hole.text[0] == 0, holed[i].told[0] == 0);
        for (int32_t j = 0; j < hzp_safetensors_count(st); j++)
            assert_int_equal(*data_of(hzp_safetensors_at(st, j)) % 4, 0);
        hzp_safetensors_close(st);
        int code = holed[i].told[0] ? HZP_EFORMAT : HZP_OK;
        assert_int_equal(hzp_safetensors_open(path, &st, &err), code);
        if (code == HZP_OK)
            hzp_safetensors_close(st);
        else
            assert_string_equal(err.text, hole.text);
    }
    const char *overlap = "{" E("a", 0, 4) "," E("b", 2, 6) "}";
    const char *path = make_file(strlen(overlap), overlap, strlen(overlap), 6);
    assert_int_equal(hzp_safetensors_open_holed(path, &st, &hole, &err), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "tensor b"));
}

static void test_wrong_json(void **state)
{
    static const struct {
        const char *header, *word;
    } bad[] = {
        {"", "a value expected"},
        {"[]", "not a JSON object"},
        {"{", "a name in quotes"},
        {"{\"a", "without end"},
        {"{\"a\"", "':' expected"},
        {"{\"a\":", "a value expected"},
        {"{} x", "the end expected"},
        {"{}{}", "the end expected"},
        {"{\"__metadata__\":{\"a\":\"b\",}}", "a name in quotes"},
        {"{\"\x80\":{}}", "UTF-8"},
        {"{\"\xc0\xaf\":{}}", "UTF-8"},
        {"{\"\xed\xa0\x80\":{}}", "UTF-8"},
        {"{\"\xf4\x90\x80\x80\":{}}", "UTF-8"},
        {"{\"\xe2\x82", "UTF-8"},
        {"{\"a\nb\":{}}", "control"},
        {"{\"\\x41\":{}}", "escape"},
        {"{\"\\u00g0\":{}}", "escape"},
        {"{\"\\u12", "escape"},
        {"{\"\\", "escape"},
    };
    for (int i = 0; i < HZP_COUNT(bad); i++)
        expect_bad_header(bad[i].header, 0, bad[i].word, "its header");
    expect_bad_header("{\"a\\u0000b\":{}}", 0, "tensor a", "its name has");
    static const char *const no_texts[] = {"{\"a\":1}", "{\"a\":{\"b\":\"c\"}}", "[]"};
    for (int i = 0; i < HZP_COUNT(no_texts); i++) {
        char header[80];
        snprintf(header, sizeof(header), "{\"__metadata__\":%s}", no_texts[i]);
        expect_bad_header(header, 0, "__metadata__", "no object of strings");
    }
    /* the 0 byte does not end the text */
    expect_bad(make_file(3, "{}\0", 3, 0), HZP_EFORMAT, "the end expected", "");
}

/* A million levels of every kind of bracket: the depth is bounded, so no stack overflows. */
static void test_nested(void **state)
{
    enum { DEEP = 1000000 };
    char *text = malloc(DEEP * 6 + 64);
    for (int kind = 0; kind < 2; kind++) {
        const char *one = kind ? "[" : "{\"a\":";
        size_t used = (size_t)sprintf(text, "{\"a\":{\"shape\":");
        for (int i = 0; i < DEEP; i++) {
            memcpy(text + used, one, strlen(one));
            used += strlen(one);
        }
        expect_bad(make_file(used, text, used, 0), HZP_EFORMAT, "its header", "nesting");
        used = (size_t)sprintf(text, "{\"__metadata__\":");
        for (int i = 0; i < DEEP; i++) {
            memcpy(text + used, one, strlen(one));
            used += strlen(one);
        }
        expect_bad(make_file(used, text, used, 0), HZP_EFORMAT, "its header", "nesting");
    }
    free(text);
}

/* A long name with control characters, hostile to terminals and buffers. */
static void test_long_name(void **state)
{
    enum { LONG = 200000 };
    char *text = malloc(LONG + 100);
    text[0] = '{';
    text[1] = '"';
    memset(text + 2, 'n', LONG);
    strcpy(text + 2 + LONG,
           "\":{\"dtype\":\"\\u001b[2J\\n\",\"shape\":[],\"data_offsets\":[0,0]}}");
    expect_bad_header(text, 0, "nnnn", "?[2J?");
    free(text);
}

/* Every proper prefix of a correct file is an error, and no single changed byte causes a crash. */
static void test_truncated(void **state)
{
    const char *header = "{" E("a", 0, 4) "," E("b", 4, 8) "}";
    size_t length = strlen(header), size = 8 + length + 8;
    const char *path = make_file(length, header, length, 8);
    struct hzp_safetensors *st;
    assert_int_equal(hzp_safetensors_open(path, &st, NULL), HZP_OK);
    hzp_safetensors_close(st);
    for (size_t cut = 0; cut < size; cut++) {
        make_file(length, header, length, 8);
        assert_int_equal(truncate(path, (off_t)cut), 0);
        expect_bad(path, HZP_EFORMAT, "", "");
    }
}

static void test_write(void **state)
{
    const char *path = scratch_path("w.safetensors");
    const float data[6] = {1, 2, 3, 4, 5, 6};
    struct hzp_st_writer *w;
    assert_int_equal(hzp_st_writer_open(path, &w, NULL), HZP_OK);
    hzp_st_writer_meta(w, "format", "p\"t");
    hzp_st_writer_declare(w, "x", HZP_DISK_F32, 2, (int64_t[]){2, 2});
    hzp_st_writer_declare(w, "y \xc3\xa4", HZP_DISK_F32, 1, (int64_t[]){2});
    hzp_st_writer_declare(w, "none", HZP_DISK_I64, 1, (int64_t[]){0});
    assert_int_equal(hzp_st_writer_data(w, data, 5, NULL), HZP_OK);
    assert_int_equal(hzp_st_writer_data(w, (const char *)data + 5, 19, NULL), HZP_OK);
    assert_false(scratch_exists(path)); /* the file appears only when it is complete */
    assert_int_equal(hzp_st_writer_finish(w, NULL), HZP_OK);
    assert_false(scratch_exists(scratch_path("w.safetensors.tmp")));
    struct hzp_safetensors *st;
    assert_int_equal(hzp_safetensors_open(path, &st, NULL), HZP_OK);
    assert_int_equal(hzp_safetensors_count(st), 3);
    assert_memory_equal(data_of(hzp_safetensors_find(st, "x")), data, 16);
    assert_memory_equal(data_of(hzp_safetensors_find(st, "y \xc3\xa4")), data + 4, 8);
    assert_int_equal(hzp_safetensors_at(st, 0)->at % 8, 0);
    assert_string_equal(hzp_safetensors_meta(st, "format"), "p\"t");
    hzp_safetensors_close(st);
}

static void test_write_abandoned(void **state)
{
    const char *path = scratch_path("v.safetensors");
    struct hzp_st_writer *w;
    scratch_write_text(path, "old");
    assert_int_equal(hzp_st_writer_open(path, &w, NULL), HZP_OK);
    hzp_st_writer_declare(w, "x", HZP_DISK_U8, 1, (int64_t[]){4});
    assert_int_equal(hzp_st_writer_data(w, "ab", 2, NULL), HZP_OK);
    hzp_st_writer_abandon(w);
    hzp_st_writer_abandon(NULL);
    assert_false(scratch_exists(scratch_path("v.safetensors.tmp")));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3); /* the old file is unchanged */
    struct hzp_err_text err;
    assert_int_equal(hzp_st_writer_open(scratch_path("no/dir"), &w, &err), HZP_EIO);
    assert_non_null(strstr(err.text, "no/dir"));
}

/* A full disk: writes to a device without room. */
static void test_write_full(void **state)
{
    const char *path = scratch_path("full.safetensors");
    struct hzp_st_writer *w;
    struct hzp_err_text err;
    if (symlink("/dev/full", scratch_path("full.safetensors.tmp")) != 0)
        skip();
    assert_int_equal(hzp_st_writer_open(path, &w, NULL), HZP_OK);
    hzp_st_writer_declare(w, "x", HZP_DISK_U8, 1, (int64_t[]){4});
    assert_int_equal(hzp_st_writer_data(w, "abcd", 4, &err), HZP_EIO);
    assert_non_null(strstr(err.text, "No space left"));
    assert_int_equal(hzp_st_writer_finish(w, &err), HZP_EIO);
    assert_false(scratch_exists(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),          cmocka_unit_test(test_shrinks),
        cmocka_unit_test(test_no_tensors),     cmocka_unit_test(test_lying_length),
        cmocka_unit_test(test_no_file),        cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_wrong_together), cmocka_unit_test(test_wrong_json),
        cmocka_unit_test(test_holes),          cmocka_unit_test(test_nested),
        cmocka_unit_test(test_long_name),      cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_write),          cmocka_unit_test(test_write_abandoned),
        cmocka_unit_test(test_write_full),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
