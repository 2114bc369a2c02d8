/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/accept.h - a whole body of examples at once, through the reader of bodies that arrive
 * in pieces.
 *
 * Thread: the test's.
 */
#pragma once

#include "api/learn/examples.h"
#include "api/learn/state.h"

#include <string.h>

static inline int accept_examples(struct hzp_examples *ex, const char *body, int64_t *first,
                                  int64_t *last, struct hzp_err_text *err)
{
    struct hzp_example_reader *reader = hzp_example_reader_create(ex, NULL);
    int r = hzp_example_reader_feed(reader, body, strlen(body), true, err);
    if (r >= 0)
        r = hzp_examples_accept_read(ex, reader, NULL, NULL, first, last, err);
    hzp_example_reader_destroy(reader);
    return r;
}

/* key NULL: none. */
static inline int accept_body(struct hzp_state *s, const char *body, size_t bytes, const char *key,
                              int64_t *first, int64_t *last, struct hzp_err_text *err)
{
    struct hzp_example_reader *reader = hzp_example_reader_create(hzp_state_examples(s), NULL);
    int r = hzp_example_reader_feed(reader, body, bytes, true, err);
    if (r >= 0)
        r = hzp_state_accept_read(s, reader, key, NULL, first, last, err);
    else
        hzp_state_refuse(s);
    hzp_example_reader_destroy(reader);
    return r;
}
