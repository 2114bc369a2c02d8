/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/message.h - what the front and the replicas send each other, as bytes.
 *
 * One message is one frame: a letter and what belongs to it, in this machine's byte order (all
 * ranks of a run have the same build).
 *
 *     H record    hello, of a replica: struct hzp_hello and the lines that all ranks agree on
 *     W           welcome: the front takes it in
 *     X text      refused, and why
 *     K           the front does not know it, having taken it for lost or being of a new rank 0: it
 *                 may come again
 *     R request   a request for the replica
 *     C id        cancel it
 *     P policy    how much the replica trains beside its requests
 *     N news      load of the replica, and what its requests have come to
 *     B state     the front is alive; the newest finished update, and the version on rank 0
 *     G           goodbye, of either
 *
 * Replicas know tokens only; text stays on rank 0.  What a request asks for and cannot be said here
 * is refused by hzp_message_fits, and is then computed by rank 0 itself.
 *
 * Every size and number that is read is checked against its bounds; HZP_EFORMAT names what is
 * wrong.
 *
 * Thread: any; a message belongs to one thread at a time.
 */
#pragma once

#include "nanobatch/split/policy.h"
#include "serve/request.h"

enum {
    HZP_MESSAGE_MAX = 16 << 20,      /* bytes of any message */
    HZP_NEWS_MAX = 128 << 10,        /* bytes after which news are sent in several messages */
    HZP_NEWS_TEXT = 256,             /* bytes of a refusal's text */
    HZP_SENT_BADS_MAX = 1024,        /* sequences that a request must not generate */
    HZP_SENT_SOURCE_MAX = 256 << 10, /* bytes of what a grammar is made of */
};

/* A growing buffer; zeroed: empty. */
struct hzp_message {
    char *data; /* owned */
    size_t bytes, room;
};
void hzp_message_fini(struct hzp_message *m);
/* Empties it and writes the letter. */
void hzp_message_begin(struct hzp_message *m, char letter);

/* Bytes that are being read. */
struct hzp_message_reader {
    const char *at, *end;
    bool bad; /* something was missing or out of its bounds */
};

/* ---- hello ---- */

/* What a replica is. */
struct hzp_hello {
    int32_t rank, ranks;
    int32_t vocab, positions, width, layers; /* its model's: as on rank 0 */
    int32_t running_max, waiting_max;        /* requests it takes */
    int32_t page_rows, kv_pages;
    uint64_t version; /* that it serves */
    int64_t optimizer_step;
    uint64_t checksum; /* that version's weights' */
    int32_t round;     /* how often it has come again since it began */
};

/* record: lines of "name value". */
void hzp_hello_write(struct hzp_message *m, const struct hzp_hello *hello, const char *record);
/* *ret_record points into data, which ends with a 0. */
int hzp_hello_read(const char *data, size_t bytes, struct hzp_hello *ret, const char **ret_record,
                   struct hzp_err_text *reterr);

/* ---- requests ---- */

/* Whether a replica can compute the request, as far as its kind goes.  Not: one whose grammar has
 * no source, one without tokens unless it is of embeddings or of logprobs of its prompt, or one
 * that demands max_staleness 0, which replicas do not keep, or any max_staleness together with
 * consistency pinned. */
bool hzp_message_fits(const struct hzp_request *rq);

/* The request with the tokens that it has so far and the version of the last.  Of what it demands
 * of the weights only mode and depth are sent, and whether rows of older versions may be reused for
 * it; min_version stands for all else.  Logprobs of its prompt are asked for unless it has tokens:
 * they came with the first one. */
void hzp_request_write(struct hzp_message *m, uint64_t id, const struct hzp_request *rq,
                       uint64_t min_version);

/* What a replica can serve. */
struct hzp_message_limits {
    int32_t vocab, positions, width;
};
/* Which tokens a request that was read may draw, and what its grammar is to be made of: rules.
 * source, if that is set and rules.constraint not.  All of it is owned; zeroed: no limits. */
struct hzp_sent_rules {
    struct hzp_token_rules rules;
};
void hzp_sent_rules_fini(struct hzp_sent_rules *sent);

/* Creates the request; it borrows *ret_rules, zeroed before, if its tokens are limited.
 * HZP_EFORMAT; HZP_ENOMEM. */
int hzp_request_read(const char *data, size_t bytes, const struct hzp_message_limits *limits,
                     uint64_t *ret_id, struct hzp_request **ret, struct hzp_sent_rules *ret_rules,
                     struct hzp_err_text *reterr);

/* Messages of one object: 'C', an id (uint64_t); 'P', struct hzp_policy; 'B', struct
 * hzp_front_beat.  HZP_EFORMAT: it has not just this size; of a policy also: a field is out of its
 * range. */
void hzp_plain_write(struct hzp_message *m, char letter, const void *data, size_t size);
int hzp_plain_read(const char *data, size_t bytes, void *ret, size_t size);
int hzp_policy_read(const char *data, size_t bytes, struct hzp_policy *ret);

/* What a beat says: the newest finished update, and the version that serves on rank 0. */
struct hzp_front_beat {
    int64_t finished;
    uint64_t version;
};

/* ---- news ---- */

/* What a replica reports of itself, with each message. */
struct hzp_replica_load {
    uint64_t version; /* that its next step serves */
    int64_t optimizer_step;
    int32_t running, waiting;
    int32_t kv_taken, kv_needed; /* pages: in use, predicted to be needed */
    uint64_t prompt_tokens, generated_tokens, found_tokens, preempted;
    struct hzp_front_beat told; /* the last beat it had before it looked; zero: none */
};

/* What one request has come to. */
struct hzp_news {
    uint64_t id;
    int32_t from, count; /* tokens from .. from + count - 1 follow */
    int32_t tops;
    int32_t state;   /* enum hzp_request_state; not final: it goes on */
    int32_t refused; /* an error code: it was not taken; text says why */
    int32_t stop_token, unmet, changed, recomputes, cached, stale_tokens;
    uint64_t stale_version;
    uint64_t waited_ns;      /* until it was admitted */
    int32_t hidden;          /* numbers that follow: a request for embeddings has ended */
    int32_t prompts;         /* prompt tokens, sent once, with the first token or the end, if prompt
                      * logprobs were asked for: those of all tokens but the first follow */
    uint64_t prompt_version; /* with either: what computed them */
    bool not_finite;
    char text[HZP_NEWS_TEXT];
};

/* Begins a message of news. */
void hzp_news_begin(struct hzp_message *m, const struct hzp_replica_load *load);
/* Adds news of a request, and its tokens from rq. */
void hzp_news_add(struct hzp_message *m, const struct hzp_news *news, const struct hzp_request *rq);

/* data, bytes: the message; *reader then stands at the first entry. */
int hzp_news_read(const char *data, size_t bytes, struct hzp_message_reader *reader,
                  struct hzp_replica_load *ret, struct hzp_err_text *reterr);
/* The next entry.  False: there is none, or it is malformed (reader->bad). */
bool hzp_news_next(struct hzp_message_reader *reader, struct hzp_news *ret);
/* Each of its tokens has to be read in turn: into *ret and the tops entries of the two arrays (NULL
 * where tops is 0).  at_ns is not set. */
bool hzp_news_token(struct hzp_message_reader *reader, const struct hzp_news *news, int32_t vocab,
                    struct hzp_output *ret, int32_t *top_token, float *top_logprob);
/* Behind the tokens: its hidden numbers; ret NULL: they are passed over. */
bool hzp_news_hidden(struct hzp_message_reader *reader, const struct hzp_news *news, float *ret);
/* Behind these: what is known of its prompt's tokens, into the request; rq NULL: passed over. */
bool hzp_news_prompt(struct hzp_message_reader *reader, const struct hzp_news *news, int32_t vocab,
                     struct hzp_request *rq);
