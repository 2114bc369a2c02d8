/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/answer.h - a completion on its way to a client: as one answer, or as a stream.
 *
 *     pool     parses, makes the completion, watches the client, submits
 *     notify   news: wakes the exchange of a stream; posts the task of a whole answer
 *     I/O      stream: begins when the first token is there, then sends what is new each time it
 *              is woken (completions_stream.c)
 *     pool     whole: writes the answer when all choices have ended
 *
 * The thread that sends the last part ends the completion; the answer's memory, and its hold on the
 * exchange, go when the engine has let go of every request.
 *
 * Thread: one at a time, as above.
 */
#pragma once

#include "api/http/routes/completion.h"
#include "api/http/wire/http.h"

enum hzp_block_kind { HZP_BLOCK_NONE, HZP_BLOCK_REASONING, HZP_BLOCK_TEXT, HZP_BLOCK_CALL };

/* The block that is open (blocks.h). */
struct hzp_block {
    enum hzp_block_kind kind;
    int index; /* blocks before it */
    char call_id[32], name[256];
    struct hzp_textbuf text;
    json_t *logprobs; /* owned: of the text's tokens, if they are asked for */
};

struct hzp_answer {
    struct hzp_exchange *x;
    struct hzp_completion *c;
    char id[HZP_REQUEST_ID_MAX + 16];
    int64_t created;
    struct hzp_pool_task task; /* for a whole answer */
    bool counted;
    /* for a stream */
    struct hzp_textbuf out; /* formatted, not sent yet */
    size_t at;
    struct hzp_textbuf head; /* how every event with tokens of head_version begins */
    uint64_t head_version;
    bool done;
    bool sent; /* something since it was woken */
    bool more; /* there is something that `out` had no room for */
    /* for blocks */
    struct hzp_block block;
    int32_t logprob_token; /* the next that a block may show */
    int64_t sequence;      /* events so far, or whether there were any */
    json_t *blocks;        /* owned while it streams: those that are closed */
    json_t *(*make_block)(const struct hzp_answer *a);
};

/* Begins the answer of a stream whose first tokens are there.  I/O thread. */
enum MHD_Result hzp_stream_begin(struct hzp_answer *a);

/* Makes the events of the tokens that the requests have, as a stream does, and throws them away. */
void hzp_stream_replay(struct hzp_answer *a);

/* Appends `event: name` and the object to what is sent; takes over json. */
void hzp_stream_event(struct hzp_answer *a, const char *name, json_t *json);

/* Counts the choices in the metrics and logs the request, once. */
void hzp_answer_count(struct hzp_answer *a);

/* The last part is made: the client is watched no longer, and the completion ends.  The answer must
 * not be used any more. */
void hzp_answer_end(struct hzp_answer *a);

/* Whether an answer that failed did so because the server is stopping, and the error's texts. */
json_t *hzp_answer_failure(const struct hzp_answer *a, int *ret_status);

/* Whether an answer that failed is left without an end, because this process ends and the relay
 * asks the next rank 0: the engine has failed, or a rank of the group was lost. */
bool hzp_answer_abandons(const struct hzp_answer *a);
