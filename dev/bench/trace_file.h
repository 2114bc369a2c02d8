/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/trace_file.h - reads recorded request traces: arrival times and lengths of requests.
 *
 * Three formats are supported, recognised by the first line, not by the file's name:
 *   Azure     CSV, header TIMESTAMP,ContextTokens,GeneratedTokens; times like
 *             2023-11-16 18:15:46.6805900, perhaps with an offset from UTC, or plain seconds
 *   NanoFlow  the same header, with a word (XXX) for the time: lengths only
 *   Mooncake  JSONL: timestamp in milliseconds, input_length, output_length, and hash_ids, one for
 *             each 512 tokens of the prompt: equal ids stand for equal tokens
 *
 * Invariant: after hzp_trace_file_read() succeeded requests are in order of arrival, the first at
 * 0 s; every length is from 1 to HZP_TRACE_TOKENS_MAX; no request has more hashes than blocks.
 * An output length of 0 (nothing was generated, the prompt was still read) counts as 1.
 *
 * Thread: any; one at a time per trace.
 */
#pragma once

#include "base/err.h"

enum {
    HZP_TRACE_TOKENS_MAX = 1 << 24,    /* in one prompt or answer */
    HZP_TRACE_REQUESTS_MAX = 10000000, /* in one file */
    HZP_TRACE_HASHES_MAX = 1 << 26,
    HZP_TRACE_LINE_MAX = 1 << 20, /* bytes */
    HZP_TRACE_BLOCK = 512,        /* tokens per hash */
};

enum hzp_trace_form { HZP_TRACE_AZURE, HZP_TRACE_NANOFLOW, HZP_TRACE_MOONCAKE };

struct hzp_trace_request {
    double at_s;           /* since the first request; 0 if the trace has no times */
    int32_t input, output; /* tokens */
    int32_t hashes;        /* number of hashed blocks at the prompt's start */
    int64_t first_hash;    /* index in hzp_trace_file.hash */
};

struct hzp_trace_file {
    enum hzp_trace_form form;
    bool timed; /* false: no times, all requests are there from the start */
    int64_t requests;
    struct hzp_trace_request *request;
    int64_t hashes;
    int64_t *hash;
};

/* Reads at most `limit` requests from the start of the file (0: all).  HZP_ENOENT: it cannot be
 * opened; HZP_EFORMAT: the text names file and line; HZP_ENOMEM. After success the caller frees it
 * with hzp_trace_file_free(); after an error there is nothing to free. */
int hzp_trace_file_read(const char *path, int64_t limit, struct hzp_trace_file *ret,
                        struct hzp_err_text *reterr);
void hzp_trace_file_free(struct hzp_trace_file *trace);

/* "azure", "nanoflow" or "mooncake". */
const char *hzp_trace_form_name(enum hzp_trace_form form);
