/* SPDX-License-Identifier: Apache-2.0 */
/* What the `tokenizers` package makes of the texts of tests/data (dev/make_test_data.py), and
 * published expectations for published tokenizers; the latter are skipped where the data is absent.
 */
#include "tests/text/tokenizer_makes.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OWN_TEXTS 54 /* of dev/test_texts.py */
#define ALL       (HZP_TOKENIZER_ADD_SPECIAL | HZP_TOKENIZER_PARSE_SPECIAL)

static const char *data; /* HZP_TEST_DATA, or HZP_OWN_DATA in own_vectors */

static const char *path_of(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof(path), "%s/%s", data, name);
    return path;
}

static void published(void)
{
    data = getenv("HZP_TEST_DATA");
    data = data != NULL ? data : "../shared/data";
    if (access(path_of("tokenizer_vectors"), R_OK) != 0 || access(path_of("tokenizers"), R_OK) != 0)
        skip();
}

/* Returns NULL if it is not there. */
static struct hzp_tokenizer *open_shared(const char *name)
{
    struct hzp_tokenizer *tok = NULL;
    struct hzp_err_text err = {.text = ""};
    int r = hzp_tokenizer_open(path_of(name), &tok, &err);
    if (r != 0 && r != HZP_ENOENT)
        fail_msg("%s", err.text);
    return tok;
}

static void expect(struct hzp_tokenizer *tok, const char *text, size_t bytes, unsigned flags,
                   const int32_t *want, size_t n)
{
    struct hzp_tokens ids = {0};
    struct hzp_err_text err = {.text = ""};
    if (hzp_tokenizer_encode(tok, text, bytes, flags, 1 << 20, &ids, &err) < 0)
        fail_msg("%s", err.text);
    bool same = ids.n == n && (n == 0 || memcmp(ids.ids, want, n * sizeof(*want)) == 0);
    for (size_t i = 0; i < ids.n && !same; i++)
        print_message("%d (%d) ", ids.ids[i], i < n ? want[i] : -1);
    if (!same)
        fail_msg("\"%.*s\" gave other ids", (int)bytes, text);
    hzp_tokens_fini(&ids);
}

static char *read_whole(const char *name, size_t *bytes)
{
    FILE *file = fopen(path_of(name), "r");
    if (file == NULL)
        return NULL;
    char *text = malloc(1 << 20);
    *bytes = fread(text, 1, (1 << 20) - 1, file);
    text[*bytes] = 0;
    fclose(file);
    return text;
}

/* Cases in .inp separated by a line, their ids in .out, one line per case. */
static int llama_cpp(const char *vectors, const char *tokenizer)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    char name[256];
    size_t in_bytes, out_bytes;
    int cases = 0;
    struct hzp_tokenizer *tok = open_shared(tokenizer);
    snprintf(name, sizeof(name), "tokenizer_vectors/llama.cpp/ggml-vocab-%s.gguf.inp", vectors);
    char *in = read_whole(name, &in_bytes);
    snprintf(name, sizeof(name), "tokenizer_vectors/llama.cpp/ggml-vocab-%s.gguf.out", vectors);
    char *out = read_whole(name, &out_bytes);
    const char *line = out;
    for (char *text = in; tok != NULL && line != NULL && text != NULL; cases++) {
        char *end = strstr(text, between);
        size_t bytes = end != NULL ? (size_t)(end - text) : strlen(text);
        int32_t want[512];
        size_t n = 0;
        while (*line != 0 && *line != '\n') {
            char *next;
            long id = strtol(line, &next, 10);
            if (next == line)
                break;
            want[n++] = (int32_t)id;
            line = next;
        }
        line += strcspn(line, "\n");
        line += *line == '\n';
        expect(tok, text, bytes, HZP_TOKENIZER_PARSE_SPECIAL, want, n);
        text = end != NULL ? end + strlen(between) : NULL;
    }
    free(in);
    free(out);
    hzp_tokenizer_close(tok);
    return cases;
}

static void llama_cpp_vectors(void **state)
{
    published();
    assert_int_equal(llama_cpp("gpt-2", "tokenizers/gpt2"), 47);
    assert_int_equal(llama_cpp("qwen2", "tokenizers/qwen2.5"), 47);
    assert_int_equal(llama_cpp("deepseek-r1-qwen", "tokenizers/qwen2.5"), 47);
    assert_int_equal(llama_cpp("llama-bpe", "tokenizers/llama3"), 47);
    assert_int_equal(llama_cpp("llama-spm", "tokenizers/llama2"), 47);
}

static size_t read_ids(const json_t *list, int32_t *ids)
{
    size_t i;
    json_t *id;
    json_array_foreach(list, i, id) ids[i] = (int32_t)json_integer_value(id);
    return json_array_size(list);
}

/* The cleanup that the transformers package applies to decoded text
   ("clean_up_tokenization_spaces"). */
static void tidy(struct hzp_textbuf *text)
{
    static const char *const without_blank[] = {" .",  " ?",  " !",   " ,",  " n't",
                                                " 'm", " 's", " 've", " 're"};
    for (int i = 0; i < HZP_COUNT(without_blank); i++)
        for (char *at = text->data;;) {
            size_t m = strlen(without_blank[i]);
            at = memmem(at, text->bytes - (size_t)(at - text->data), without_blank[i], m);
            if (at == NULL)
                break;
            memmove(at, at + 1, text->bytes - (size_t)(at + 1 - text->data));
            text->bytes--;
        }
}

static void expect_text(struct hzp_tokenizer *tok, const int32_t *ids, size_t n, bool skip,
                        const char *want)
{
    struct hzp_textbuf text = {0};
    assert_int_equal(hzp_tokenizer_decode(tok, ids, n, skip, &text), 0);
    size_t bytes = strlen(want);
    if (text.bytes != bytes)
        tidy(&text);
    assert_int_equal(text.bytes, bytes);
    if (bytes > 0)
        assert_memory_equal(text.data, want, bytes);
    hzp_textbuf_fini(&text);
}

static void swift_transformers(void **state)
{
    published();
    static const char *const names[][2] = {
        {"distilgpt2", "tokenizers/gpt2"},
        {"coreml-projects/Llama-2-7b-chat-coreml", "tokenizers/llama2"},
        {"pcuenq/Llama-3.2-1B-Instruct-tokenizer", "tokenizers/llama3"}};
    json_t *all = json_load_file(
        path_of("tokenizer_vectors/swift-transformers/tokenizer_tests.json"), 0, NULL);
    assert_non_null(all);
    for (int k = 0; k < HZP_COUNT(names); k++) {
        struct hzp_tokenizer *tok = open_shared(names[k][1]);
        assert_non_null(tok);
        const json_t *cases = json_object_get(all, names[k][0]);
        assert_true(json_array_size(cases) >= 18);
        size_t i;
        json_t *one;
        json_array_foreach(cases, i, one)
        {
            int32_t ids[1024];
            const json_t *text = json_object_get(one, "input");
            size_t n = read_ids(json_object_get(json_object_get(one, "encoded"), "input_ids"), ids);
            expect(tok, json_string_value(text), json_string_length(text), ALL, ids, n);
            expect_text(tok, ids, n, false,
                        json_string_value(json_object_get(one, "decoded_with_special")));
            expect_text(tok, ids, n, true,
                        json_string_value(json_object_get(one, "decoded_without_special")));
        }
        hzp_tokenizer_close(tok);
    }
    json_decref(all);
}

static void swift_encoded(void **state)
{
    published();
    static const char *const names[][2] = {{"gpt2_encoded_tokens", "tokenizers/gpt2"},
                                           {"llama_encoded", "tokenizers/llama2"},
                                           {"llama_3.2_encoded", "tokenizers/llama3"}};
    for (int k = 0; k < HZP_COUNT(names); k++) {
        char name[128];
        int32_t ids[4096];
        snprintf(name, sizeof(name), "tokenizer_vectors/swift-transformers/%s.json", names[k][0]);
        json_t *json = json_load_file(path_of(name), 0, NULL);
        assert_non_null(json);
        struct hzp_tokenizer *tok = open_shared(names[k][1]);
        assert_non_null(tok);
        const json_t *text = json_object_get(json, "text");
        size_t n = read_ids(json_object_get(json, "token_ids"), ids);
        assert_true(n > 0 && n <= 4096);
        expect(tok, json_string_value(text), json_string_length(text), ALL, ids, n);
        expect_text(tok, ids, n, false, json_string_value(json_object_get(json, "decoded_text")));
        hzp_tokenizer_close(tok);
        json_decref(json);
    }
}

static void tinyllama(void **state)
{
    published();
    json_t *rows = json_load_file(
        path_of("tokenizer_vectors/tinyllama-v0/twitter_complaints_tokenized.json"), 0, NULL);
    assert_true(json_array_size(rows) > 0);
    struct hzp_tokenizer *tok = open_shared("tokenizers/tinyllama-v0");
    assert_non_null(tok);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        int32_t ids[4096];
        const json_t *text = json_object_get(row, "output");
        size_t n = read_ids(json_object_get(row, "input_ids"), ids);
        assert_true(n > 0 && n <= 4096);
        expect(tok, json_string_value(text), json_string_length(text), ALL, ids, n);
    }
    hzp_tokenizer_close(tok);
    json_decref(rows);
}

/* Bytes, not strings: a text may hold NUL. */
static void expect_decoded(struct hzp_tokenizer *tok, const int32_t *ids, size_t n, bool skip,
                           const json_t *want)
{
    struct hzp_textbuf text = {0};
    assert_int_equal(hzp_tokenizer_decode(tok, ids, n, skip, &text), 0);
    assert_int_equal(text.bytes, json_string_length(want));
    if (text.bytes > 0)
        assert_memory_equal(text.data, json_string_value(want), text.bytes);
    hzp_textbuf_fini(&text);
}

static int own_cases(const char *name)
{
    char path[256], line[8192];
    int cases = 0;
    struct hzp_tokenizer *tok = open_shared(name);
    snprintf(path, sizeof(path), "%s/vectors.jsonl", name);
    FILE *file = fopen(path_of(path), "r");
    assert_true(tok != NULL && file != NULL);
    for (; fgets(line, sizeof(line), file) != NULL; cases++) {
        int32_t ids[1024];
        json_t *one = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(one);
        const json_t *text = json_object_get(one, "text");
        const char *bytes = json_string_value(text);
        size_t n = read_ids(json_object_get(one, "plain"), ids);
        expect(tok, bytes, json_string_length(text), 0, ids, n);
        n = read_ids(json_object_get(one, "ids"), ids);
        expect(tok, bytes, json_string_length(text), ALL, ids, n);
        expect_decoded(tok, ids, n, false, json_object_get(one, "decoded"));
        expect_decoded(tok, ids, n, true, json_object_get(one, "skipped"));
        json_decref(one);
    }
    fclose(file);
    hzp_tokenizer_close(tok);
    return cases;
}

static void own_vectors(void **state)
{
    data = getenv("HZP_OWN_DATA");
    data = data != NULL ? data : "tests/data";
    assert_int_equal(own_cases("tokenizers/gpt2"), OWN_TEXTS);
    assert_int_equal(own_cases("tokenizers/llama3"), OWN_TEXTS);
    assert_int_equal(own_cases("tokenizers/qwen"), OWN_TEXTS);
    assert_int_equal(own_cases("tokenizers/llama2"), OWN_TEXTS);
    assert_int_equal(own_cases("tokenizers/metaspace"), OWN_TEXTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_vectors),        cmocka_unit_test(llama_cpp_vectors),
        cmocka_unit_test(swift_transformers), cmocka_unit_test(swift_encoded),
        cmocka_unit_test(tinyllama),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
