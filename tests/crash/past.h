/* SPDX-License-Identifier: Apache-2.0 */
/* tests/crash/past.h - what a server has told its clients so far, and whether the state on disk
 * keeps it: nothing acknowledged is lost, sequence numbers have no holes, version ids only grow,
 * checkpoints are whole and have learned no example more often than it was to be, and the server
 * reports what it trains again.
 *
 * A promise that is broken is printed, and ends the process with 1.
 *
 * Thread: one.
 */
#pragma once

#include "tests/crash/life.h"

#include <stdio.h>
#include <unistd.h>

enum { PAST_SEQUENCES_MAX = 1 << 20 };

struct past {
    int round;
    char what[160];        /* what was done to the server in this round; "" */
    uint64_t *text;        /* [PAST_SEQUENCES_MAX] 1 + the acknowledged text of a number; 0: none */
    uint64_t acknowledged; /* the largest acknowledged number */
    uint64_t served;       /* the largest version id a client saw */
    uint64_t saved;        /* the newest checkpoint reported to a client */
    uint64_t logged;       /* the log's newest checkpoint, as last read */
    uint64_t next_text, samples; /* samples: in the log, as last read */
    uint64_t unfinished; /* samples with passes left in the newest checkpoint, as last read */
    uint64_t in_part;    /* such samples that had had a pass, each time that was read */
    uint64_t bodies, versions, checkpoints, again, kills_opening, leftovers, refused;
};

#define PAST_FAIL(past, ...)                                                                       \
    do {                                                                                           \
        printf("round %d %s: ", (past)->round, (past)->what);                                      \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        fflush(stdout);                                                                            \
        _exit(1);                                                                                  \
    } while (0)

/* Takes notice of one fact.  through, again: as past_check_disk() found them before that life.
 * Returns true if it says that the server has started. */
bool past_hear(struct past *p, const struct crash_told *told, uint64_t through, uint64_t again);

/* Checks the state directory, in which no server runs.  ret_through: the number up to which its
 * newest checkpoint has learned; ret_again: how many samples lost versions, those after it,
 * have learned from. */
void past_check_disk(struct past *p, const char *state_dir, uint64_t *ret_through,
                     uint64_t *ret_again);

/* Makes the model that the servers of these tests have. */
void past_make_model(const char *dir);
