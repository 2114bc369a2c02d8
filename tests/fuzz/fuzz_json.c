/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as JSON: what jansson reads is read as the same value; what is read can be copied, and
 * is written as JSON of the same value.  And numbers of pieces, one for each byte: what the grammar
 * of RFC 8259 has is read, nothing else, and keeps its spelling where no 64 bits hold it. */
#include "base/json.h"
#include "tests/fuzz/smoke.h"

#include <errno.h>
#include <math.h>

static void check(bool right)
{
    if (!right)
        __builtin_trap();
}

/* ---- numbers ---- */

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

static bool is_number(const char *text, bool *ret_integer)
{
    text += *text == '-';
    size_t whole = digits(text);
    if (!whole || (*text == '0' && whole > 1))
        return false;
    text += whole;
    *ret_integer = !*text;
    if (*text == '.') {
        size_t n = digits(++text);
        if (!n)
            return false;
        text += n;
    }
    if (*text == 'e' || *text == 'E') {
        text += 1 + (text[1] == '+' || text[1] == '-');
        size_t n = digits(text);
        if (!n)
            return false;
        text += n;
    }
    return !*text;
}

static void check_number(const uint8_t *data, size_t size)
{
    static const char *const pieces[] = {"-",
                                         "+",
                                         ".",
                                         "e",
                                         "E",
                                         "0",
                                         "1",
                                         "9",
                                         "00",
                                         "400",
                                         "922337203685477580",
                                         "18446744073709551616",
                                         "1e",
                                         "e-",
                                         "E+",
                                         "Infinity",
                                         "NaN",
                                         "x1",
                                         "1.5"};
    char text[160] = "", list[176];
    bool integer = false;
    for (size_t i = 0; i < HZP_MIN(size, 7); i++)
        strcat(text, pieces[data[i] % HZP_COUNT(pieces)]);
    snprintf(list, sizeof(list), "[%s]", text);
    json_t *json = hzp_json_load(list, strlen(list), 0, NULL, NULL);
    bool empty = json && !json_array_size(json), is = is_number(text, &integer);
    check(text[0] ? (json != NULL) == is : empty);
    const json_t *number = json_array_get(json, 0);
    if (is) {
        check(hzp_json_is_number(number));
        errno = 0;
        long long value = strtoll(text, NULL, 10);
        if (integer && !errno)
            check(json_is_integer(number) && json_integer_value(number) == value);
        else if (integer)
            check(hzp_json_spelling(number) && !strcmp(hzp_json_spelling(number), text));
        else
            check(hzp_json_spelling(number) ? isinf(strtod(text, NULL))
                                            : json_real_value(number) == strtod(text, NULL));
    }
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_number(data, size);
    const char *text = (const char *)data;
    struct hzp_json_error error;
    json_t *json = hzp_json_load(text, size, HZP_JSON_ANY | HZP_JSON_PYTHON, NULL, &error);
    json_t *theirs = json_loadb(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    check(!theirs || json_equal(json, theirs));
    json_decref(theirs);
    if (!json) {
        check(error.text[0] && !error.no_memory && error.line > 0 && error.column > 0);
        return 0;
    }
    json_t *copy = hzp_json_copy(json);
    char *written = hzp_json_dumps(copy, JSON_COMPACT);
    check(written != NULL);
    json_t *again =
        hzp_json_load(written, strlen(written), HZP_JSON_ANY | HZP_JSON_PYTHON, NULL, NULL);
    char *twice = hzp_json_dumps(again, JSON_COMPACT);
    check(twice && !strcmp(written, twice));
    check(hzp_json_is_number(json) == hzp_json_is_number(again));
    free(written);
    free(twice);
    json_decref(again);
    json_decref(copy);
    json_decref(json);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("{\"a\": [1, -2.5, 1e400, 18446744073709551616, -0, 0.1], \"b\\u0000c\": null}"),
    FUZZ_TEXT("[1E+999, -1e-400, 9223372036854775807, -9223372036854775809, 20.0, 2e1, 2.0E+1]"),
    FUZZ_TEXT("{\"s\": \"\\ud83d\\ude00\\ud800\\udc00\\udc00\\ud800 \\\"\\\\\\/\\b\\f\\n\\r\\t\", "
              "\"t\": \"\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80\\u0000\"}"),
    FUZZ_TEXT("{\"x\": NaN, \"y\": [Infinity, -Infinity], \"x\": {\"\": {}}}"),
    FUZZ_TEXT("[[[[{\"a\": {\"b\": [true, false, null, \"]}\"]}}], []], {}], \"a\"]"),
};

FUZZ_MAIN(seeds)
