/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_queue_state.h - the queue's struct, private to sample_queue*.c.
 *
 * Thread: as the comments in the struct say.
 */
#pragma once

#include "train/table/sample_queue.h"

#include "base/thread.h"

struct entry {
    struct hzp_sample *sample;
    int32_t left;      /* passes left */
    bool learned;      /* in one of them at least */
    int32_t left_then; /* the same when its group began (config.by_lesson) */
    bool learned_then;
    uint64_t prompt;   /* hzp_sample_queue_prompt, if config.rehearse_ratio > 0 */
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

/* Replay samples of one draw, as indices; and samples of earlier lessons. */
enum { HZP_REHEARSED_MAX = 64 /* in one draw */ };
struct replay_draw {
    int32_t *index; /* [replays] */
    int32_t count;
    int32_t rehearsals;                              /* -1: to be chosen by the next draw */
    struct hzp_sample *rehearsal[HZP_REHEARSED_MAX]; /* q->earlier or q->retired owns them */
};

/* A sample that has had all its passes. */
struct earlier {
    struct hzp_sample *sample; /* owned; its sequence number is negated */
    uint64_t prompt;           /* hzp_sample_queue_prompt */
};
enum { HZP_EARLIER_MAX = 256, HZP_EARLIER_TOKENS = 4096 /* of one: these bound their memory */ };

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
    struct earlier earlier[HZP_EARLIER_MAX]; /* by number */
    int32_t earliers;
    struct list retired; /* earlier samples that are not any more, borrowed until a draw is over */
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
/* sample_queue_earlier.c: a hash of what is in front of the first token that is taught; 0: that is
 * one token at most, as of a text. */
uint64_t hzp_sample_queue_prompt(const struct hzp_sample *sample);
/* Chooses at most `room` earlier samples for an update with the entries of `to`; frees those that
 * no draw has borrowed any more. */
void hzp_sample_queue_rehearse(struct hzp_sample_queue *q, const struct list *to, int32_t room,
                               struct replay_draw *ret);
/* The lock is held.  A sample that has been learned is an earlier one now; takes ownership, or
 * copies it. */
void hzp_sample_queue_keep(struct hzp_sample_queue *q, struct hzp_sample *sample);
void hzp_sample_queue_keep_copy(struct hzp_sample_queue *q, const struct hzp_sample *sample);
/* Frees the earlier samples numbered first .. last, which no draw returns again. */
void hzp_sample_queue_drop_earlier(struct hzp_sample_queue *q, int64_t first, int64_t last);
/* A new order of the replay samples, of this number. */
void hzp_sample_queue_shuffle_replay(struct hzp_sample_queue *q, uint64_t round);
/* Nothing waits in this group: begins one of the lessons that wait.  The lock is held. */
void hzp_sample_queue_begin_group(struct hzp_sample_queue *q, int64_t tokens_max);
