/* SPDX-License-Identifier: Apache-2.0 */
/* tests/replicas/world.h - a small engine with a front, and what a replica of it connects with.
 *
 * Thread: one, which owns the engine.
 */
#pragma once

#include "api/front/front.h"
#include "mesh/peers/pipe.h"
#include "nanobatch/loop.h"
#include "tests/fixture/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 96, POSITIONS = 128, PAGE_ROWS = 4, PAGES = 256, PROMPT = 5, TOKENS = 12 };
enum { LEARNED = 50 /* the newest example that version 1 has learned */ };
static const uint64_t HANG_NS = 600ull * 1000000000u; /* only a hang takes as long */
#define RECORD "build 1\nmodel 2\n"

struct world {
    struct fixture_model m;
    struct hzp_kvpool *pool;
    struct hzp_serve_space *space;
    struct hzp_batch *batch;
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_front *front;
    char folder[64];
    struct hzp_pipe_place at;
    struct hzp_hello hello; /* as a replica's should be */
    /* the replica */
    struct hzp_pipe *pipe;
    struct hzp_message out;
    uint64_t said; /* a number for its news */
};

#define MUST(call) assert_true((call) >= 0)

/* Of so many ranks.  silent_s: after which the front takes a replica for lost. */
void open_world_of(struct world *w, int ranks, double silent_s);
void open_world(struct world *w, double silent_s); /* of two */
void close_world(struct world *w);

/* The same weights, as a version that has learned so much, after so many updates more. */
void publish_step(struct world *w, int64_t learned, int64_t updates);

/* The replica: sends w->out; waits for a message with this letter (others are passed over); says
 * hello and is taken in. */
void say(struct world *w);
void hear(struct world *w, char letter, const char **ret, size_t *ret_bytes);
void come_up(struct world *w);
