/* SPDX-License-Identifier: Apache-2.0 */
/* tests/replicas/fleet.h - what the files of test_fleet share.
 *
 * Thread: one.
 */
#pragma once

#include "api/front/front_state.h"
#include "api/front/replica.h"
#include "mesh/peers/pipe.h"
#include "tests/serve/seeded.h"

enum {
    RANKS = 8,
    VOCAB = 64,
    WIDTH = 3,
    POSITIONS = 256,
    LIVES = 120,
    VERSIONS = 4096,
    CONNECTIONS = 256,
    QUEUE = 40, /* frames that a peer may not have read */
    RUNNING = 3,
    WAITING = 4,
};
static const uint64_t ms = 1000000;
#define RECORD "model 1\n"

enum sabotage {
    SOUND,
    ALL_LEARNED, /* the front takes every version for one that has learned everything */
    KEPT,        /* the requests of a lost rank stay with it */
    OTHER_SPANS, /* a token's version is another one */
    ANY_RANK,    /* requests go to ranks that take none */
    NO_TURN,     /* an update ends before all ranks have published the one before */
    SABOTAGES
};
struct frame {
    char *data; /* owned, with a 0 behind it */
    size_t bytes;
    uint64_t at_ns; /* when it arrives */
};

/* One way; a peer reads the frames in order. */
struct way {
    struct frame frame[QUEUE];
    int32_t first, count;
    char *read; /* the frame that was read last */
};

struct connection {
    bool up;
    struct way to_front, to_replica;
};

struct fleet_pipe {
    bool listens;
    int32_t number; /* of its connection */
};

/* A request on a rank's engine. */
struct job {
    struct hzp_request *rq;
    uint64_t since_ns;
    bool runs, bound; /* bound: begun elsewhere, by a version that it keeps */
    int64_t staleness;
    struct job *next;
};

struct rank {
    int32_t index, count; /* of jobs */
    struct job *jobs;
    uint64_t version, flip_ns, step_ns;
    bool alive;
    int64_t sent; /* to it when it was drained; -1: it is not */
    uint64_t hangs_until_ns, back_ns;
    struct hzp_replica_rank *replica;
};

struct version {
    int64_t step, learned;
    int32_t line; /* changes when an earlier state serves again */
};

struct life {
    struct hzp_request *rq;
    int32_t seen, line; /* line: of the newest version when it was submitted */
    int32_t token[POSITIONS];
    int64_t trails[POSITIONS]; /* by how much the version that drew a token did, at least */
    bool canceled;
};

struct day {
    uint64_t random, now_ns;
    enum sabotage sabotage;
    struct rank rank[RANKS];
    struct connection connection[CONNECTIONS];
    int32_t connections;
    struct version version[VERSIONS];
    uint64_t newest;
    int64_t finished; /* optimizer step */
    struct fleet_pipe pipe;
    struct hzp_front *front;
    uint64_t front_hangs_until_ns;
    struct life life[LIVES];
    int32_t lives, ended;
    bool calm; /* nothing goes wrong any more */
};
extern struct day d;

struct totals {
    int64_t days, tokens, moved, recalled, changed, unmet, canceled, kills, rollbacks, updates,
        embeddings;
};
extern struct totals totals;

/* Says which rule is broken, and ends the program. */
_Noreturn void broken(const char *rule, int64_t a, int64_t b);

static inline bool chance(uint32_t of)
{
    return seeded(&d.random, of) == 0;
}

/* ---- fleet_world.c ---- */

/* What was sent last and not yet read is lost: `kept` frames are not. */
void cut(struct way *way, int32_t kept);

/* What the request asks to have been learned. */
int64_t needs(const struct hzp_request *rq);
/* The token behind the first n of the answer, and a number of an embedding. */
int32_t token_of(const struct hzp_request *rq, int32_t n, uint64_t version);
float hidden_of(const struct hzp_request *rq, uint64_t version, int32_t col);

/* The rank's engine does a step. */
void step(struct rank *r);
/* The first job of *at leaves the rank. */
void leave(struct rank *r, struct job **at);
