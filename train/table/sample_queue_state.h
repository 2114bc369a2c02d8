/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_queue_state.h - the queue's struct, private to sample_queue.c and
 * sample_queue_group.c.
 *
 * Thread: as the comments in the struct say.
 */
#pragma once

#include "train/table/sample_queue.h"

#include "base/arena.h"
#include "base/thread.h"

#include <string.h>

struct entry {
    struct hzp_sample *sample;
    int32_t left;      /* passes left */
    bool learned;      /* in one of them at least */
    int32_t left_then; /* the same when its group began (config.by_lesson) */
    bool learned_then;
    uint64_t since_ns; /* when hzp_sample_queue_age first saw it; 0: not yet */
};

struct list {
    struct entry *entry;
    int32_t head, count, room; /* entries [head, head + count) */
};

struct numbers {
    int64_t *number;
    int32_t count, room;
};

/* Replay samples of one draw, as indices. */
struct replay_draw {
    int32_t *index; /* [replays] */
    int32_t count;
};

struct hzp_sample_queue {
    /* fixed after create (replay: before the engine starts) */
    struct hzp_sample_queue_config config;
    struct entry *replay;
    int32_t replays;
    /* under lock */
    struct hzp_lock lock;
    union {
        struct list list[6];
        struct {
            struct list waiting, next;
            /* config.by_lesson: those of no group yet; those of the group that have had all their
             * passes */
            struct list later, kept;
            struct list drawn, ahead; /* only the engine thread changes them */
        };
    };
    int32_t samples; /* held and reserved; replay samples do not count */
    int64_t tokens;
    double work;            /* tokens times passes left, of all samples held */
    int64_t pushed_through; /* largest sequence number ever pushed; <= 0: none */
    int64_t learned_through;
    int64_t touched_through; /* largest number that has had a pass */
    bool redraw;             /* the next draw returns the drawn samples again */
    bool ahead_undone;       /* the same of those drawn ahead */
    /* engine thread only */
    struct entry *gone; /* finished, but borrowed by the caller until the next draw */
    int32_t gones, gones_room;
    struct numbers failed;   /* samples that left without having been learned */
    struct numbers rejected; /* those that the gate refused */
    uint64_t rounds;         /* number of orders shuffled so far */
    int32_t *replay_order;   /* [replays] */
    int32_t replay_at;
    struct replay_draw replay_drawn, replay_ahead;
    uint64_t replay_rounds;
    double replay_debt; /* replay tokens still owed to reach replay_ratio */
    struct {            /* the same when the group began */
        int32_t replay_at;
        uint64_t replay_rounds;
        double replay_debt;
    } then;
};

/* --- Lists; the lock is held ------------------------------------------------------------------ */

static inline void list_push(struct list *list, struct entry entry)
{
    if (list->head + list->count == list->room) {
        if (list->head > list->room / 2) {
            memmove(list->entry, list->entry + list->head,
                    (size_t)list->count * sizeof(*list->entry));
            list->head = 0;
        } else {
            list->room = HZP_MAX(64, 2 * list->room);
            list->entry = hzp_xrealloc(list->entry, (size_t)list->room * sizeof(*list->entry));
        }
    }
    list->entry[list->head + list->count++] = entry;
}

static inline struct entry list_pop(struct list *list)
{
    struct entry entry = list->entry[list->head];
    list->count--;
    list->head = list->count ? list->head + 1 : 0;
    return entry;
}

/* What a draw has come to. */
enum result { LEARNED, GIVEN_UP, REJECTED };

/* The entry leaves; its sample stays until the next draw.  The lock is held. */
void hzp_sample_queue_leave(struct hzp_sample_queue *q, const struct entry *entry,
                            enum result result);
/* Samples have left: takes note of the number up to which all have.  The lock is held. */
void hzp_sample_queue_advance(struct hzp_sample_queue *q);
/* A new order of the replay samples, of this number. */
void hzp_sample_queue_shuffle_replay(struct hzp_sample_queue *q, uint64_t round);
/* Nothing waits in this group: begins one of the lessons that wait.  The lock is held. */
void hzp_sample_queue_begin_group(struct hzp_sample_queue *q, int64_t tokens_max);
