/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/call_makes.h - a tokenizer of bytes in which the marks of all forms of calls are
 * special tokens.
 *
 * Thread: the test's.
 */
#pragma once

#include "tests/text/tokenizer_makes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static inline struct hzp_tokenizer *make_open_marks(void)
{
    static const char *const marks[] = {
        "[TOOL_CALLS]", "[ARGS]",         "[CALL_ID]",     "<|channel|>", "<|message|>",
        "<|end|>",      "<|start|>",      "<|constrain|>", "<|call|>",    "<|return|>",
        "<tool_call>",  "</tool_call>",   "<arg_key>",     "</arg_key>",  "<arg_value>",
        "</arg_value>", "<|python_tag|>", "<think>",       "</think>"};
    char text[4096] = "";
    size_t n = 0;
    make_byte_level(MAKE_GPT);
    for (int i = 0; i < HZP_COUNT(marks); i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n,
                              ", {\"id\": %d, \"content\": \"%s\", \"special\": true}", 266 + i,
                              marks[i]);
    char *at = strstr(make_text, "\"lstrip\": true}") + strlen("\"lstrip\": true}");
    assert_true(make_bytes + n < sizeof(make_text));
    memmove(at + n, at, strlen(at) + 1);
    memcpy(at, text, n);
    scratch_write_text(scratch_path("tokenizer.json"), make_text);
    return make_open();
}
