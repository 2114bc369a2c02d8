/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as JSON: what jansson reads is read as the same value; what is read can be copied, and
 * is written as JSON of the same value. */
#include "base/json.h"
#include "tests/fuzz/smoke.h"

static void check(bool right)
{
    if (!right)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
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
