/* SPDX-License-Identifier: Apache-2.0 */
/* A mutated tokenizer.json: opening fails with one line, or the tokenizer works on any text. */
#include "tests/fuzz/smoke.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#include <unistd.h>

static char dir[64];

static void check(bool condition)
{
    if (!condition)
        abort();
}

static void remove_dir(void)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    (void)remove(path);
    (void)rmdir(dir);
}

static void use(struct hzp_tokenizer *tok)
{
    static const char text[] = "<s>he  hello\xC3\xA9 \xE4\xBD\xA0\n1234 e\xCC\x81 <x></s>";
    for (unsigned flags = 0; flags < 4; flags++) {
        struct hzp_tokens ids = {0};
        struct hzp_textbuf back = {0};
        if (hzp_tokenizer_encode(tok, text, sizeof(text) - 1, flags, 1000, &ids, NULL) == HZP_OK) {
            for (size_t i = 0; i < ids.n; i++)
                check(ids.ids[i] >= 0 && ids.ids[i] < hzp_tokenizer_vocab(tok));
            check(hzp_tokenizer_decode(tok, ids.ids, ids.n, flags & 1, &back) == HZP_OK);
            check(back.bytes == 0 || hzp_utf8_valid(back.data, back.bytes) == back.bytes);
        }
        hzp_tokens_fini(&ids);
        hzp_textbuf_fini(&back);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[96];
    if (!dir[0]) {
        /* in memory where /dev/shm exists: thousands of files a second */
        snprintf(dir, sizeof(dir), "/dev/shm/hzp-fuzz-XXXXXX");
        if (!mkdtemp(dir)) {
            snprintf(dir, sizeof(dir), "/tmp/hzp-fuzz-XXXXXX");
            check(mkdtemp(dir) != NULL);
        }
        check(atexit(remove_dir) == 0);
    }
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *file = fopen(path, "w");
    check(file && (size == 0 || fwrite(data, size, 1, file) == 1));
    check(fclose(file) == 0);
    struct hzp_tokenizer *tok = NULL;
    struct hzp_err_text err = {.text = ""};
    int r = hzp_tokenizer_open(dir, &tok, &err);
    check((r == HZP_OK) == (err.text[0] == 0) && !strchr(err.text, '\n'));
    if (r == HZP_OK)
        use(tok);
    hzp_tokenizer_close(tok);
    return 0;
}

#define MODEL                                                                                      \
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": false, "                   \
    "\"byte_fallback\": "                                                                          \
    "true, \"ignore_merges\": false, \"vocab\": {\"?\": 0, \"h\": 1, \"e\": 2, \"he\": 3, \"l\": " \
    "4, \"ll\": 5, \"\\u2581\": 6, \"\\u2581he\": 7, \"<0xC3>\": 8, \"<0xA9>\": 9, \"1\": 10, "    \
    "\"\\u0120\": 11, \"\\u0120he\": 12}, \"merges\": [\"h e\", [\"l\", \"l\"], \"\\u2581 he\", "  \
    "\"\\u0120 he\"]}, \"added_tokens\": [{\"id\": 13, \"content\": \"<s>\", \"special\": true, "  \
    "\"lstrip\": true}, {\"id\": 14, \"content\": \"<x>\", \"normalized\": true, "                 \
    "\"single_word\": "                                                                            \
    "true, \"rstrip\": true}]"

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("{" MODEL ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
              "\"Prepend\", \"prepend\": \"\\u2581\"}, {\"type\": \"Replace\", \"pattern\": "
              "{\"String\": \" \"}, \"content\": \"\\u2581\"}, {\"type\": \"NFKC\"}, {\"type\": "
              "\"Strip\", \"strip_left\": true}]}, \"decoder\": {\"type\": \"Sequence\", "
              "\"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"\\u2581\"}, "
              "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": "
              "\"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 1}]}}"),
    FUZZ_TEXT("{" MODEL ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": "
              "[{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?i:'s|'t)|\\\\p{N}{1,3}| "
              "?[^\\\\s\\\\p{L}]+|\\\\s+(?!\\\\S)|\\\\w+\"}, \"behavior\": \"MergedWithNext\", "
              "\"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": true}]}, "
              "\"decoder\": {\"type\": \"ByteLevel\"}, \"post_processor\": {\"type\": "
              "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}, "
              "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [13]}}}}"),
    FUZZ_TEXT(
        "{" MODEL ", \"normalizer\": {\"type\": \"Lowercase\"}, \"pre_tokenizer\": {\"type\": "
        "\"Sequence\", \"pretokenizers\": [{\"type\": \"Metaspace\", \"replacement\": "
        "\"\\u2581\", \"prepend_scheme\": \"first\", \"split\": true}, {\"type\": \"Digits\", "
        "\"individual_digits\": true}, {\"type\": \"Punctuation\", \"behavior\": "
        "\"Contiguous\"}]}, \"decoder\": {\"type\": \"Metaspace\", \"replacement\": "
        "\"\\u2581\", \"prepend_scheme\": \"first\"}}"),
};

FUZZ_MAIN(seeds)
