/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/completion.h - one completion, for HTTP and the command line alike.
 *
 * A completion has prompts x n choices; each choice is one request of the scheduler, plus what
 * turns its tokens into text: a detokenizer and the stop strings.  The engine thread only writes
 * the requests' output and says that there is news; another thread pumps.
 *
 *     parse (or fill params by hand) -> make -> submit -> { wait -> pump } until done -> end
 *
 * On the command line one thread waits.  A server gives make a listener instead, which is called
 * when there is news, and end then returns at once: the memory is freed when the engine has let go
 * of every request.
 *
 * Bounds: HZP_CHOICES_MAX choices, HZP_PROMPTS_MAX prompts.
 *
 * Thread: one at a time, except hzp_completion_leave: any.
 */
#pragma once

#include "api/engine/engine.h"
#include "api/http/wire/notify.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/stop.h"

enum { HZP_CHOICES_MAX = 1024, HZP_PROMPTS_MAX = 1024, HZP_STOPS_MAX = 16 };

struct hzp_completion;
struct hzp_choice;
struct hzp_answer;

/* How answers of a route look: the texts of completions, the messages of a chat. */
struct hzp_answer_form {
    const char *id, *object, *chunk; /* prefix of the id; names of whole answers and of chunks */
    /* The choice's object in a whole answer, and in a chunk of a stream: with its text from byte
     * text0 on and its tokens from token0 on; first: the choice's first object.  part NULL:
     * there is nothing to say yet. */
    json_t *(*whole)(const struct hzp_completion *c, const struct hzp_choice *choice);
    json_t *(*part)(const struct hzp_completion *c, const struct hzp_choice *choice, size_t text0,
                    int32_t token0, bool first);
    /* Around the text of a chunk that has nothing else, in JSON. */
    const char *before_text, *behind_text;
    bool first_is_plain; /* also the first chunk */
    /* Instead of these: the object of a whole answer, whose choices have ended; the events of what
     * is new in a stream (api/http/routes/blocks.h). */
    json_t *(*answer)(struct hzp_answer *a);
    void (*events)(struct hzp_answer *a);
    bool reads; /* every choice has a reply */
};
extern const struct hzp_answer_form hzp_answer_text, hzp_answer_chat, hzp_answer_responses,
    hzp_answer_messages, hzp_answer_embeddings, hzp_answer_score;

/* The parameters of a completion. */
struct hzp_completion_params {
    const struct hzp_answer_form *form;
    json_t *ignored;              /* owned: names of the fields that had no effect; NULL: none */
    struct hzp_reply_rules reply; /* for a chat */
    json_t *asked;                /* owned: what the answer repeats of the request; NULL: nothing */
    json_t *begun; /* owned: the text that a chat's message begins with; NULL: none */

    struct hzp_tokens *prompt;       /* [prompts], owned */
    struct hzp_textbuf *prompt_text; /* [prompts], owned; data NULL: given in tokens */
    int32_t prompts, n;
    int32_t best; /* so many of the n are answered, the likeliest; 0: all */
    int32_t priority;
    uint64_t affinity;        /* as in struct hzp_request */
    enum hzp_pooling pooling; /* for embeddings */
    bool raw, base64;         /* embeddings: not normalised; how they are written */

    const json_t *suffix; /* while prompts are read: what stands behind the answer; NULL: nothing */

    int32_t max_tokens, min_tokens;
    int32_t truncate;        /* only the last tokens of a prompt are kept; 0: all; -1: what fits */
    int32_t logprobs;        /* -1: none */
    int32_t prompt_logprobs; /* -1: none */
    struct hzp_sampling sampling;
    struct hzp_demands demands; /* what it asks of the weights */
    int32_t stop_id[HZP_STOP_IDS_MAX], stop_ids;
    int32_t bias_token[HZP_BIASES_MAX], biases;
    float bias[HZP_BIASES_MAX];
    bool limited;                  /* `tokens` says which tokens may be generated: */
    struct hzp_token_rules tokens; /* its arrays, grammar and source are owned */
    char *structure;               /* owned: a grammar that is asked for, and that the field asks */
    const char *structure_field;   /* for (structure.h); NULL: none */
    char *stop[HZP_STOPS_MAX];     /* owned */
    size_t stop_bytes[HZP_STOPS_MAX];
    int32_t stops;
    bool echo, ignore_eos, include_stop, skip_special, return_ids, add_special;
    bool stream, include_usage, continuous_usage;
};

/* About how many bytes a completion of these takes from now until it ends, without its answer.  Of
 * what its tokens will take, so much as some thousands need: what is generated beyond takes far
 * less than the keys and values of the same tokens, of which there is a fixed number. */
size_t hzp_completion_bytes(const struct hzp_completion_params *params);
/* About how many bytes the answer to a completion takes while it is made as a tree and written. */
size_t hzp_completion_answer_bytes(const struct hzp_completion *c);

/* The defaults of the HTTP interface. */
void hzp_completion_defaults(struct hzp_completion_params *params);
void hzp_completion_params_fini(struct hzp_completion_params *params);

/* Adds a prompt given as UTF-8 text, copied.  HZP_EINVAL with the numbers if its tokens
 * and max_tokens exceed the context. */
int hzp_completion_add_text(struct hzp_completion_params *params, const struct hzp_engine *engine,
                            const char *text, size_t bytes, struct hzp_err_text *reterr);

/* Checks the body of POST /v1/completions against field_table.h and reads it.  HZP_EINVAL: text and
 * param name the field. */
int hzp_completion_parse(const json_t *body, const struct hzp_engine *engine,
                         struct hzp_completion_params *ret, struct hzp_err_text *reterr);

/* For other routes that complete: the parts of hzp_completion_parse.  Fields: sampling, stops,
 * biases, stream and its options, flags. */
int hzp_completion_parse_common(const json_t *body, const struct hzp_engine *engine,
                                struct hzp_completion_params *params, struct hzp_err_text *reterr);
/* Fields that say what the answer may be: allowed_token_ids, bad_words, response_format,
 * structured_outputs and its relatives.  chat: NULL, or what is known of a chat's answer;
 * must_call: its tools have to be called; else they only may be, where a field asks for a
 * structure.  A grammar is only asked for, so that what else is wrong is found before it is made.
 * Errors as above. */
int hzp_structure_parse(const json_t *body, const struct hzp_engine *engine,
                        const struct hzp_structure *chat, bool must_call,
                        struct hzp_completion_params *params, struct hzp_err_text *reterr);
/* After hzp_structure_parse(): the grammar that is asked for becomes a part of params->tokens, if
 * it is kept.  False: it has yet to be made. */
bool hzp_structure_find(struct hzp_completion_params *params, const struct hzp_engine *engine);
/* Makes it; sizes, `abandoned` and returns as hzp_structures_make(); an error names the field. */
int hzp_structure_make(struct hzp_completion_params *params, const struct hzp_engine *engine,
                       enum hzp_structure_size size, bool (*abandoned)(void *ctx), void *ctx,
                       struct hzp_err_text *reterr);
void hzp_structure_params_fini(struct hzp_completion_params *params);

/* Reads the body of POST /v1/chat/completions.  Errors as above. */
int hzp_chat_parse(const json_t *body, const struct hzp_engine *engine,
                   struct hzp_completion_params *ret, struct hzp_err_text *reterr);

/* Reads the body of POST /v1/embeddings.  Errors as above. */
int hzp_embeddings_parse(const json_t *body, const struct hzp_engine *engine,
                         struct hzp_completion_params *ret, struct hzp_err_text *reterr);

/* Reads the body of POST /v1/score.  Errors as above. */
int hzp_score_parse(const json_t *body, const struct hzp_engine *engine,
                    struct hzp_completion_params *ret, struct hzp_err_text *reterr);

/* The text that the template makes of a body's messages, tools and further fields; owned by the
 * caller.  Errors as above. */
int hzp_chat_prompt(const json_t *body, const struct hzp_engine *engine, struct hzp_textbuf *ret,
                    struct hzp_err_text *reterr);

enum hzp_finish {
    HZP_FINISH_NONE,
    HZP_FINISH_STOP,
    HZP_FINISH_LENGTH,
    HZP_FINISH_CHANGED, /* it may not go on with other weights: rq->changed says why */
    HZP_FINISH_FAILED
};

struct hzp_choice {
    struct hzp_completion *of;
    struct hzp_request *rq;
    int32_t index, prompt;
    struct hzp_detokenizer detok;
    struct hzp_stop stop;
    struct hzp_reply *reply;        /* NULL: the text is the answer as it is */
    struct hzp_textbuf text, piece; /* text that can no longer change; scratch */
    int32_t *offset;                /* [max_tokens] code points of text before each token */
    int32_t codes; /* code points so far, including text that a possible stop string holds back */
    int32_t seen;  /* tokens turned into text: the count of generated tokens */
    enum hzp_finish finish;
    bool begun;          /* written by the engine thread: it has told of a first token */
    _Atomic bool told;   /* the engine has told that the request is final, to a listener */
    int32_t stop_string; /* index of the stop string that ended it; -1: none */
    /* streams: already sent */
    size_t sent_bytes;
    int32_t sent_tokens;
    bool opened, closed;
    /* relayed streams: tokens, and the end, that its journal has (journal.c) */
    int32_t noted;
    bool noted_end;
};

/* Where a server hears about its completions.  Both functions run on the notifying thread. */
struct hzp_listener {
    struct hzp_notify *notify;
    void (*news)(void *ctx);  /* a request has new tokens or has ended */
    void (*ended)(void *ctx); /* the last call: the completion's memory is freed */
    void *ctx;
};

struct hzp_completion {
    struct hzp_engine *engine;
    struct hzp_completion_params params; /* moved in by begin */
    struct hzp_choice *choice;           /* [choices] */
    int32_t choices, open;               /* choices not finished yet */
    struct hzp_listener listener;        /* .notify NULL: hzp_completion_wait() is used */
    struct hzp_note note;                /* for what is told at once: first tokens, ends, and all
                                          * tokens where stop strings are looked for */
    struct hzp_note next;                /* for further tokens: joined */
    bool ends_only;                      /* news are only that a request has ended */
    struct hzp_wake wake;
    _Atomic bool left;   /* the client disconnected */
    _Atomic bool ending; /* hzp_completion_end() was called */
};

/* Makes the requests.  Takes over params (zeroed) also on failure.  listener NULL: the caller
 * waits; else `ended` is called once, also after a failure.  HZP_EINVAL: it could never be queued
 * whole; HZP_ENOMEM. */
int hzp_completion_make(struct hzp_engine *engine, struct hzp_completion_params *params,
                        const struct hzp_listener *listener, struct hzp_completion **ret,
                        struct hzp_err_text *reterr);

/* Submits all requests, but for those of choices that have ended before; where all have, there is a
 * listener.  It may hear of news before this returns; then the completion is
 * the listener's.  After an error the caller ends it.  HZP_EBUSY: the queue is full; HZP_EINVAL;
 * HZP_ECANCELED: the server stops. */
int hzp_completion_submit(struct hzp_completion *c, struct hzp_err_text *reterr);

/* Waits until a request has new tokens or has ended, at most wait_ns. */
void hzp_completion_wait(struct hzp_completion *c, uint64_t wait_ns);

/* Turns new tokens into text, at most so many of each choice.  True: there was something new. */
bool hzp_completion_pump(struct hzp_completion *c, int32_t most);

/* Whether the listener will hear of news soon, of tokens that wait for further ones. */
bool hzp_completion_joins(const struct hzp_completion *c);

/* Thread: any.  The client has disconnected: the engine drops the requests within one step, or when
 * they are submitted.  The listener hears of it as of every end, so never before the submission. */
void hzp_completion_leave(struct hzp_completion *c);

/* Cancels requests that still run and frees everything when the engine has released them: before
 * it returns, or with a listener as soon as that is so.  NULL: no effect. */
void hzp_completion_end(struct hzp_completion *c);

/* ---- answers: completion_json.c ---- */

/* Tokens of all prompts, each prompt counted once, and of these how many the prefix cache had;
 * tokens generated, and of these how many are reasoning. */
struct hzp_usage {
    int64_t prompt, generated, cached, reasoned;
};
struct hzp_usage hzp_completion_usage(const struct hzp_completion *c);
json_t *hzp_usage_json(struct hzp_usage usage);
/* Tokens of the choice's prompt that the prefix cache had; 0 before its first token. */
int64_t hzp_choice_cached(const struct hzp_choice *choice);
/* Its tokens that are reasoning, of those whose text has come. */
int64_t hzp_choice_reasoned(const struct hzp_choice *choice);

/* The version that sampled the choice's newest token; without a token, the serving version. */
uint64_t hzp_choice_version(const struct hzp_completion *c, const struct hzp_choice *choice);

/* The largest staleness that any of the choices has seen so far. */
int64_t hzp_completion_staleness(const struct hzp_completion *c);

/* The oldest version that computed rows which a choice took over from the prefix cache, if that is
 * older than the version that computed the rest of its prompt; 0: there is none. */
uint64_t hzp_completion_stale_prefix(const struct hzp_completion *c);

/* "hzpserve-0.1.0-v7": the program and the version of the weights; written to ret and returned. */
enum { HZP_FINGERPRINT_MAX = 64 };
const char *hzp_fingerprint(uint64_t version, char ret[HZP_FINGERPRINT_MAX]);

/* {"weights_version", "spans": [{"version", "start", "end", "prompt_version"}], "staleness",
 * "consistency", "recomputes"}; the last is 0 until the request is final; where an older version
 * computed rows of the prompt, "stale_prefix": {"tokens", "version"}, too. */
json_t *hzp_choice_versions_json(const struct hzp_completion *c, const struct hzp_choice *choice);

/* The bytes of a token, a special one as it is spelled; borrowed from the tokenizer. */
const char *hzp_token_bytes(const struct hzp_completion *c, int32_t id, size_t *ret_bytes);
json_t *hzp_logprob_json(float logprob);
/* OpenAI's {"token", "logprob", "bytes", "top_logprobs"} of token n. */
json_t *hzp_chat_logprob_json(const struct hzp_completion *c, const struct hzp_choice *choice,
                              int32_t n);
/* Gives the choice's reply the text that it has not seen. */
void hzp_choice_read_reply(const struct hzp_choice *choice);
/* How a choice ended at a swap: "weights_changed", "pin_expired"; NULL: it did not. */
const char *hzp_changed_name(const struct hzp_choice *choice);

/* How a choice has ended, for the log and the metrics: "stop", "length", "abort", "error", "unmet",
 * or what changed. */
const char *hzp_choice_end(const struct hzp_completion *c, const struct hzp_choice *choice);
/* finish_reason, stop_reason. */
json_t *hzp_finish_json(const struct hzp_choice *choice);
json_t *hzp_stop_reason_json(const struct hzp_completion *c, const struct hzp_choice *choice);
/* For best_of: numbers the likeliest choices of each prompt from 0 on; index -1: not answered.  All
 * choices have ended. */
void hzp_completion_choose(struct hzp_completion *c);
/* The choice with this index, NULL: none. */
const struct hzp_choice *hzp_completion_choice(const struct hzp_completion *c, int32_t index);
/* Adds token_ids and prompt_token_ids, if they are asked for. */
void hzp_choice_add_ids(const struct hzp_completion *c, const struct hzp_choice *choice,
                        int32_t token0, bool first, json_t *json);

struct hzp_request_info;
/* Logs the end of a completion.  status: of its answer; 0: not answered, the client disconnected.
 * */
void hzp_request_completed(const struct hzp_request_info *info, int status,
                           const struct hzp_completion *c);
