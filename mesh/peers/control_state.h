/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/control_state.h - the private struct of the control messages, shared by the files that
 * implement them: control.c (the meeting), control_thread.c (heartbeats, losses, clocks,
 * who is slow), control_spans.c (the timeline of all ranks).
 *
 * One message is one frame: a letter and what belongs to it.
 *
 *     H rank ranks record   hello, to rank 0; again: the process replaces one that was lost
 *     W share addresses     welcome: all agree
 *     X text                refused: text says why
 *     B beat                heartbeat
 *     P time                ping, to rank 0: when it was sent
 *     Q time time           its answer: the same, and rank 0's clock
 *     S from bytes          rank 0 asks for spans
 *     D piece               a piece of them, as events of a trace
 *     L rank text           a rank is lost
 *     G                     goodbye; while they meet, from rank 0: it ends
 *
 * Thread: see struct hzp_control.
 */
#pragma once

#include "base/thread.h"
#include "base/timeline.h"
#include "device/meter.h"
#include "mesh/peers/control.h"

/* ---- stragglers.c: which rank computes or sends more slowly than the others.
 *
 * Every rank reports, twice a second, how long each op of training and each byte on the wire took
 * (device/meter.h).  The rate of a rank is the median of its newest HZP_STRAGGLER_WINDOW reports,
 * so one that was disturbed for a moment changes nothing.  It is compared with the lower median of
 * all ranks' rates: of two ranks with the faster one.
 *
 *     slower than SLOW times that, TURNS times in a row    the rank is a straggler; named once
 *     faster than FINE times that                          it is none any more
 *
 * Thread: one at a time. */

enum {
    HZP_STRAGGLER_WINDOW = 5,
    HZP_STRAGGLER_LEAST = 3, /* reports before a rank is judged */
    HZP_STRAGGLER_TURNS = 2,
};
#define HZP_STRAGGLER_SLOW 3.0
#define HZP_STRAGGLER_FINE 2.0

struct hzp_straggler {
    int meter;    /* in which it is slowest, compared with the others; -1: nothing is known */
    double times; /* as slow as the others: 1 is as fast; 0: nothing is known */
    bool named, changed; /* changed: named has, and hzp_stragglers_next has not told yet */
    int turns;           /* in a row in which it was slower than SLOW */
};

struct hzp_stragglers {
    int ranks;
    struct hzp_straggler *slow; /* [ranks] */
    struct hzp_stragglers_seen *seen;
};

/* Nothing is known of any rank. */
void hzp_stragglers_init(struct hzp_stragglers *s, int ranks);
void hzp_stragglers_fini(struct hzp_stragglers *s);

/* A rank's report: the time that its work took, divided by the work (device/meter.h); 0: it did
 * none. */
void hzp_stragglers_note(struct hzp_stragglers *s, int rank, const float rate[HZP_METER_COUNT]);

/* Compares all ranks and updates slow[]: once for each round of reports. */
void hzp_stragglers_judge(struct hzp_stragglers *s);

/* A rank that has become a straggler or is none any more (slow[].named says which), each once; -1:
 * there is none. */
int hzp_stragglers_next(struct hzp_stragglers *s);

/* What to report of two readings of this process's meters: the rates in between.  What took less
 * than a twentieth of the time says little and is left out. */
void hzp_stragglers_report(const struct hzp_meter before[HZP_METER_COUNT],
                           const struct hzp_meter now[HZP_METER_COUNT], float ret[HZP_METER_COUNT]);

/* ---- messages ---- */

enum {
    HZP_CONTROL_TEXT = 256,
    HZP_CONTROL_MESSAGE = HZP_CONTROL_RECORD + 1024,
    HZP_CONTROL_PINGS = 8, /* the newest answers that a clock is set by */
};

struct hzp_control_beat {
    char letter;
    int32_t missing;
    uint64_t posted, done;
    int64_t ahead_ns;       /* rank 0's clock minus this rank's */
    struct hzp_doing doing; /* what one of its threads has been doing for longest; "": nothing */
    double doing_s;         /* and for how long */
    float rate[HZP_METER_COUNT];
};

struct hzp_control_hello {
    char letter, magic[7];
    int32_t rank, ranks, again;
    uint16_t port[HZP_LINK_ZMQ_RANKS_MAX]; /* see hzp_control_offer_ports */
    char record[HZP_CONTROL_RECORD];
};

struct hzp_control_lost {
    char letter;
    int32_t rank;
    char why[HZP_CONTROL_TEXT];
};

struct hzp_control_ping {
    char letter;
    uint64_t sent_ns, answered_ns; /* answered: by rank 0's clock */
};

struct hzp_control_ask {
    char letter;
    uint32_t number;  /* the question's; pieces bear it */
    uint64_t from_ns; /* by rank 0's clock */
    uint64_t bytes;   /* that the answer may have */
};

struct hzp_control_piece {
    char letter;
    uint8_t last;
    uint16_t bytes;
    uint32_t number;
    char text[HZP_CONTROL_RECORD];
};

struct hzp_peer {
    struct hzp_pipe_peer who;     /* rank 0 only; size 0: not there yet */
    char host[HZP_LINK_ZMQ_HOST]; /* where its hello came from; rank 0 only */
    uint16_t *port;               /* [ranks], of its hello; rank 0 only */
    bool lost, left;
    uint64_t heard_ns, waits_ns; /* when it was last heard; since when it waits for `missing` */
    uint64_t said_ns;            /* when a message of it arrived last */
    uint64_t warned_ns;          /* when it was last logged that it waits */
    uint64_t silent_ns;          /* when it was last logged that it is silent */
    struct hzp_control_beat beat;
    char *text; /* rank 0: what it has answered so far */
    size_t text_bytes;
    bool text_whole;
};

struct hzp_control {
    struct hzp_control_config config;
    struct hzp_pipe *pipe;
    struct hzp_control_hello hello;        /* this rank's, then scratch for the others' */
    uint16_t port[HZP_LINK_ZMQ_RANKS_MAX]; /* this rank's */
    struct hzp_link_zmq_address *address;  /* [rank] */
    char from[HZP_LINK_ZMQ_HOST];          /* where the newest message came from */
    struct hzp_link *link;
    pthread_t thread;
    bool runs, told; /* told: the loss was sent to the others */
    atomic_bool closing;

    /* the thread's */
    uint64_t turn_ns, beat_sent_ns; /* its last turn and last heartbeat */
    uint64_t late_ns;               /* when a rank too many first said hello; 0: none has */
    struct hzp_meter meter[HZP_METER_COUNT];
    struct {
        uint64_t trip_ns;
        int64_t ahead_ns;
    } ping[HZP_CONTROL_PINGS];
    uint32_t pings;
    char *out; /* other ranks: the answer that is being sent; NULL: none */
    size_t out_bytes, out_at;
    uint32_t out_number;
    _Alignas(8) char message[HZP_CONTROL_MESSAGE];

    struct hzp_lock lock;  /* guards what follows */
    struct hzp_peer *peer; /* [ranks] */
    int lost_rank;         /* -1: none */
    char why[HZP_CONTROL_TEXT];
    struct hzp_stragglers stragglers; /* rank 0 */
    /* rank 0: the question for spans; asking: a caller waits for it */
    bool asking, asked; /* asked: it was sent */
    struct hzp_control_ask ask;
    struct hzp_wake told_spans; /* poked with each piece and each loss */
};

/* ---- control.c ---- */

/* Sends to a rank, if there is room: nothing here may wait for a rank that does not read.
 * HZP_EBUSY: there is none. */
int hzp_control_send(struct hzp_control *c, int rank, const void *data, size_t size);
void hzp_control_send_all(struct hzp_control *c, const void *data, size_t size);

/* Reads one message, if there is one: into data.  -1: none; else its size, 0 if it has more than
 * `max` bytes.  who: see hzp_pipe_receive. */
int hzp_control_receive(struct hzp_control *c, void *data, size_t max, struct hzp_pipe_peer *who);

/* Rank 0: the rank that this is; the number of ranks: none. */
int hzp_control_rank_of(const struct hzp_control *c, const struct hzp_pipe_peer *who);

/* Rank 0: tells a process why it is not taken in. */
void hzp_control_refuse(struct hzp_control *c, const struct hzp_pipe_peer *who, const char *why);

/* ---- control_thread.c ---- */

/* The thread's function; control: struct hzp_control. */
void *hzp_control_thread(void *control);

/* ---- control_spans.c, the thread ---- */

/* Rank 0: sends the question that a caller has put. */
void hzp_control_put_question(struct hzp_control *c);
/* Other ranks: makes the answer; goes on sending it. */
void hzp_control_answer(struct hzp_control *c, const struct hzp_control_ask *ask);
void hzp_control_send_answer(struct hzp_control *c);
/* Rank 0: takes a piece of a rank's answer. */
void hzp_control_take_piece(struct hzp_control *c, int rank, const void *data, size_t size);
