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

/* ---- journal.c: what lets a stream go on in another process than the one that began it.
 *
 * The launcher of several ranks may hold the clients' connections in a relay, a process of its own,
 * and have it pass their requests on to rank 0 through a Unix socket.  Rank 0 is then *relayed*.
 * When it dies, the relay sends a request again to the next rank 0.  For that a relayed rank 0
 * writes a journal into each stream, as comments of the event stream, which the relay takes out:
 *
 *     : hzp t CHOICE TOKEN RANK VERSION PROMPT_VERSION LOGPROB    a token of a choice
 *     : hzp c CHOICE                                              the choice has ended
 *     : hzp g                                                     the end of a group
 *     : hzp d                                                     instead of it: of the last group
 *
 * The events of a group belong to its tokens: its lines follow its events.  The relay passes on the
 * events of whole groups only, and keeps their lines t and c.
 *
 * A request that is sent again has these headers:
 *
 *     x-request-id            as the first time: the answer's ids follow from it
 *     x-hzpserve-created      unix seconds: the time in the answer
 *     x-hzpserve-resume       so many bytes of the body are lines t and c, all so far; the body as
 *                             the client sent it follows
 *
 * Its choices begin with these tokens, as those of a request whose replica was lost.  Their events
 * are made once more and thrown away, so that all that follows from the text (stop strings, calls,
 * blocks, numbers of events) is as it was.  What the client gets is then the rest of the same
 * stream, but for what is told of this process: how many tokens of the prompt its prefix cache had,
 * the largest staleness since, and swaps after which all was computed again.
 *
 * Where rank 0 is not relayed, no lines are written and these headers have no effect.
 *
 * Thread: as answer.h. */

/* Pool: the completion is made and not submitted yet, the exchange's body is there.  Takes over
 * time and tokens that a relayed request comes with.  HZP_EINVAL: they are malformed. */
int hzp_journal_begin(struct hzp_answer *a, struct hzp_err_text *reterr);

/* Appends the lines of what a->out has new events of, or (events false) none.  HZP_ENOMEM. */
int hzp_journal_write(struct hzp_answer *a, bool events);

/* ---- demands.c: what a request asks of the weights that answer it (serve/consistency.h): reads it
 * from body and headers, refuses what can never be met, and says why a request ended
 * without.
 *
 *     body                header
 *     consistency         x-hzpserve-consistency
 *     min_version         x-hzpserve-min-version
 *     min_sequence        x-hzpserve-min-sequence
 *     after               x-hzpserve-after
 *     max_staleness       x-hzpserve-max-staleness
 *     weights_timeout     x-hzpserve-weights-timeout
 *     depth               x-hzpserve-depth
 *                         x-hzpserve-session
 *
 * Where both are given the field of the body counts.  min_sequence and after may both be given: the
 * newer example counts.
 *
 * Thread: pool. */

/* HZP_EINVAL: text and param name the field or header.  may_shed: if it asks for no depth, it may
 * get a smaller one (--max-waiting shed-depth). */
int hzp_demands_read(struct hzp_exchange *x, const json_t *body, bool may_shed,
                     struct hzp_demands *ret, struct hzp_err_text *reterr);

/* True: this server can never meet them, and an error was answered. */
bool hzp_demands_refused(struct hzp_exchange *x, const struct hzp_demands *d, enum MHD_Result *ret);

/* The error of a request that ended as HZP_REQUEST_UNMET. */
json_t *hzp_unmet_json(const struct hzp_request *rq);

/* Sends an error; a 409 tells clients not to repeat the request. */
enum MHD_Result hzp_reply_unmet(struct hzp_exchange *x, int status, json_t *error);

/* ---- structure_wait.c: a request that waits for its grammar.
 *
 * A grammar may take seconds (text/chat/structure.h).  It is made by the server's lanes, one for
 * each size, so the request holds no thread of the pool meanwhile, and small grammars do not wait
 * for large ones.  Of a client that leaves, the request ends at once: it is taken out of its lane,
 * or its grammar is given up.
 *
 * Bounds: a request is in one lane at a time, so their queues are bounded by the connections; while
 * they are made, grammars take HZP_STRUCTURE_SMALL bytes for each thread of the first two lanes and
 * HZP_STRUCTURE_LARGE for the one of the last.
 *
 * Thread: pool; `then` runs on a lane's. */

/* Goes on with the request, whose grammar is made.  params: the caller's. */
typedef void hzp_structure_then(struct hzp_exchange *x, struct hzp_completion_params *params);

/* Takes params over (zeroed) and returns: the exchange, which has its `resume`, goes on by `then`,
 * or is answered or closed. */
void hzp_structure_wait(struct hzp_exchange *x, struct hzp_completion_params *params,
                        hzp_structure_then *then);
