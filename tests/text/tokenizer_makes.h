/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/tokenizer_makes.h - small tokenizer.json files of the two kinds, written by the test.
 *
 * Thread: the test's.
 */
#pragma once

#include "tests/weights/scratch.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

static char make_text[64 * 1024];
static size_t make_bytes;

static inline HZP_PRINTF(1, 2) void make_add(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    make_bytes +=
        (size_t)vsnprintf(make_text + make_bytes, sizeof(make_text) - make_bytes, format, args);
    va_end(args);
    HZP_ASSERT(make_bytes < sizeof(make_text));
}

/* The character that ByteLevel writes for a byte, as a JSON escape. */
static inline int make_alphabet(int byte)
{
    int extra = 0;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return printable ? b : 256 + extra;
        extra += !printable;
    }
    return -1;
}

/* Ids: byte b is b; "he" 256, "ll" 257, "hell" 258, "hello" 259, "aa" 260, "aaaa" 261, " w" 262,
 * "<s>" 263, "</s>" 264, "<x>" 265 (not special). rest: the fields besides model and added_tokens.
 */
static inline void make_byte_level(const char *rest)
{
    make_bytes = 0;
    make_add("{\"model\": {\"type\": \"BPE\", \"unk_token\": null, \"vocab\": {");
    for (int b = 0; b < 256; b++)
        make_add("\"\\u%04x\": %d, ", make_alphabet(b), b);
    make_add("\"he\": 256, \"ll\": 257, \"hell\": 258, \"hello\": 259, \"aa\": 260, \"aaaa\": 261, "
             "\"\\u0120w\": 262}, \"merges\": [\"h e\", \"l l\", \"he ll\", [\"hell\", \"o\"], "
             "\"a a\", \"aa aa\", \"\\u0120 w\"]}, \"added_tokens\": ["
             "{\"id\": 263, \"content\": \"<s>\", \"special\": true, \"normalized\": false}, "
             "{\"id\": 264, \"content\": \"</s>\", \"special\": true, \"normalized\": false}, "
             "{\"id\": 265, \"content\": \"<x>\", \"special\": false, \"normalized\": false, "
             "\"lstrip\": true}]%s}",
             rest);
    scratch_write_text(scratch_path("tokenizer.json"), make_text);
}

#define MAKE_GPT                                                                                   \
    ", \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "                \
    "\"decoder\": {\"type\": \"ByteLevel\"}"

/* Ids: <unk> 0, <s> 1, </s> 2, <0xNN> 3 + NN, then the mark 259, letters a.. z 260 .., "he" 286,
 * "ll" 287, mark + "he" 288, mark + "hell" 289, two marks 290. */
static inline void make_sentencepiece(void)
{
    make_bytes = 0;
    make_add(
        "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
        "\"prepend\": \"\\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
        "\"content\": \"\\u2581\"}]}, \"pre_tokenizer\": null, \"decoder\": {\"type\": "
        "\"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "
        "\"\\u2581\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, "
        "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}, "
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
        "{\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "
        "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [1]}}}, "
        "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, "
        "\"byte_fallback\": true, \"vocab\": {\"<unk>\": 0, \"<s>\": 1, \"</s>\": 2, ");
    for (int b = 0; b < 256; b++)
        make_add("\"<0x%02X>\": %d, ", b, 3 + b);
    make_add("\"\\u2581\": 259, ");
    for (int c = 'a'; c <= 'z'; c++)
        make_add("\"%c\": %d, ", c, 260 + c - 'a');
    make_add(
        "\"he\": 286, \"ll\": 287, \"\\u2581he\": 288, \"\\u2581hell\": 289, \"\\u2581\\u2581\":"
        " 290}, \"merges\": [\"h e\", \"l l\", \"\\u2581 he\", \"\\u2581he ll\", \"\\u2581 "
        "\\u2581\"]}, \"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true}, "
        "{\"id\": 1, \"content\": \"<s>\", \"special\": true, \"normalized\": false}, {\"id\": 2, "
        "\"content\": \"</s>\", \"special\": true, \"normalized\": false}]}");
    scratch_write_text(scratch_path("tokenizer.json"), make_text);
}

static inline struct hzp_tokenizer *make_open(void)
{
    struct hzp_tokenizer *tok = NULL;
    struct hzp_err_text err = {.text = ""};
    if (hzp_tokenizer_open(scratch_dir, &tok, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return tok;
}

static uint64_t make_state = 1;

static inline uint32_t make_random(uint32_t below)
{
    make_state = make_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(make_state >> 33) % below;
}
