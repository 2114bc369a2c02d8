/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/examples_parts.h - what a body or a file of examples is while it is parsed.
 *
 * Thread: the owner's.
 */
#pragma once

#include "api/learn/examples.h"

/* Lines that have something in common: how many there are, and the first of them. */
enum { HZP_LINES_SHOWN = 5 };
struct hzp_lines {
    int64_t count, first[HZP_LINES_SHOWN];
};

/* What was found in a file: all of it is read, whatever single examples are like. */
enum { HZP_REASONS_SHOWN = 3 };
struct hzp_parse_found {
    int64_t examples, wrong; /* wrong: those that were refused */
    struct {
        char text[256];
        struct hzp_lines lines;
    } reason[HZP_REASONS_SHOWN];  /* the first that differ */
    struct hzp_lines too_long;    /* in tokens: refused, cut or skipped */
    struct hzp_lines answer_long; /* could not be cut: what is learned is too long itself */
    int64_t longest;              /* tokens */
};
void hzp_lines_note(struct hzp_lines *lines, int64_t line);

/* The sample that a teacher reads, owned, whose number is the example's; once it has read it, how
 * many tokens are learned, and how many of them softly. */
struct hzp_told {
    struct hzp_sample *sample;
    int32_t tokens, soft;
};

/* The state of parsing one body into samples. */
struct hzp_parse {
    const struct hzp_examples *ex;
    struct hzp_sample **sample;
    int32_t count, room;
    size_t held;  /* bytes of the samples */
    int64_t line; /* current line, from 1; in an array: the element */
    struct hzp_tokens tokens, both;
    const struct hzp_example_fields *fields; /* NULL: those of ex */
    struct hzp_form form;
    uint8_t *learn;
    float *weight;            /* weights of a conversation in plain lines */
    struct hzp_row_loss *how; /* one for each token, if the example has `losses` */
    struct hzp_soft *soft;    /* as hzp_sample_create_soft() wants them */
    bool losses;
    size_t learn_room, weight_room, how_room, soft_room;
    bool pairs, paired;       /* pairs of answers may be, and are, among the examples */
    char reference[80];       /* the version that they are compared with; "": the one that serves */
    struct hzp_sample **asks; /* paraphrases that are kept, owned */
    int32_t asks_count;
    struct hzp_told *told; /* examples that have a teacher */
    size_t told_room;
    int32_t told_count;
    int32_t referred;   /* pairs, then examples with a teacher, that are computed already */
    const char *answer; /* the field of a pair's answer that is being read; NULL: none is */
    struct hzp_parse_found
        *found; /* collects a file's errors; NULL: the first error ends the parsing */
    struct hzp_err_text *reterr;
};

/* Reports an error: the text is "line 3: completion: ...", the param "lines[3].completion". */
int hzp_parse_bad(struct hzp_parse *p, const char *field, const char *format, ...) HZP_PRINTF(3, 4);
int hzp_parse_no_memory(struct hzp_parse *p);

/* One example on line `line`.  ctx: the struct hzp_parse; for hzp_csv_read, too. */
int hzp_parse_object(void *ctx, int64_t line, json_t *object);
/* The same of one that is no pair (pairs.c). */
int hzp_parse_single(struct hzp_parse *p, json_t *object);
/* The same of any; of a pair it makes one sample. */
int hzp_parse_preference(struct hzp_parse *p, json_t *object);
/* hzp_parse_preference of an object that may have paraphrases, or a teacher (paraphrases.c). */
int hzp_parse_asked(struct hzp_parse *p, json_t *object);
/* Takes tokens off the left of [count] so that `left` remain, as hzp_examples_load() says.  False:
 * that is not possible. */
bool hzp_parse_cut(struct hzp_parse *p, int32_t *token, uint8_t *learn, float *weight,
                   int32_t count, int32_t left);
/* The example has n tokens, too many.  HZP_EINVAL. */
int hzp_parse_too_long(struct hzp_parse *p, const char *field, size_t n);
/* Of an example whose parsing gave r: in a file one that is wrong does not end the parsing. */
int hzp_parse_look_on(struct hzp_parse *p, int r);
/* Reads what may stand beside n tokens into p->weight, which has room for them, and p->how;
 * and p->soft; p->learn is known.  *ret_weight NULL: no weights. */
int hzp_parse_losses(struct hzp_parse *p, const json_t *object, size_t n, float **ret_weight);
/* The loss of a pair; NULL: DPO. */
int hzp_parse_pair_loss(struct hzp_parse *p, const json_t *loss, struct hzp_row_loss *ret);
/* What the reader has of a body. */
struct hzp_parse *hzp_example_reader_parse(struct hzp_example_reader *reader);
/* One plain text. */
int hzp_parse_document(struct hzp_parse *p, const char *text, size_t bytes);
/* A body as of a request. */
int hzp_parse_body(struct hzp_parse *p, const char *body, size_t bytes, const char *content_type);
/* Ends the parsing, whose result is r: hands the samples over, or frees them. */
int hzp_parse_take(struct hzp_parse *p, int r, struct hzp_sample ***ret, int32_t *ret_count);
