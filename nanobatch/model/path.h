/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/path.h - which layers a micro-batch goes through, and how such paths are dealt:
 * SkipPipe (arXiv 2502.19913), so that the model can later do with fewer layers; and which layers a
 * request goes through that is answered with fewer.
 *
 * A path has the same number of layers in all micro-batches.  It always has the first two layers,
 * which models miss most, and the last.  Micro-batches of one round, one on each rank, have one
 * path, so ranks gather no parameters that none of them reads.  In the ordered mode, whose bits do
 * not depend on the number of ranks, all of an update are one round.
 *
 * The deck is a shuffle of the other layers; each round leaves out the next ones, and the deck is
 * gone through again and again.  So in each update the numbers of rounds that layers are left out
 * of differ by one at most; and so they do from the first update on, as long as updates have
 * equally many rounds.  When all layers have had equal shares, it is shuffled anew.  A path follows
 * from the seed, the number of the update, and the update's rounds: a resumed or a repeated update
 * deals the same.
 *
 * With swaps up to two pairs of neighbours on the path, which do not overlap, change places; the
 * first two layers and the last stay where they are.
 *
 * Gradients of a micro-batch are 0 in the layers that it leaves out, and all are divided by what
 * the whole update is divided by.  A layer that no micro-batch of an update goes through has a
 * gradient of 0 there, and AdamW runs for it as for the others: its moments decay and go on moving
 * it, as in SkipPipe's own optimizer.
 *
 * Depth.  A request's path is fixed for its life, because a layer that it has left out has no keys
 * and values of its tokens.  Depths are eighths of the layers, so that the rows of a step have few
 * different paths.  Such a path, too, has the first two layers and the last; those that it leaves
 * out are spread evenly over the others.
 *
 * Thread: any.
 */
#pragma once

#include "weights/config.h"

struct hzp_path {
    int32_t count; /* 0: all layers in their order */
    int32_t layer[HZP_LAYERS_MAX];
};

struct hzp_deck {
    float skip; /* share of the layers that a path leaves out; 0: none */
    bool swap;
    uint64_t seed;
    int32_t layers;
};

/* Layers that each path leaves out. */
int32_t hzp_deck_skips(const struct hzp_deck *deck);
/* HZP_EINVAL: the model has too few layers for it. */
int hzp_deck_check(const struct hzp_deck *deck, struct hzp_err_text *reterr);
/* The path of round `round` of `rounds` of an update, from 1. */
void hzp_deck_deal(const struct hzp_deck *deck, int64_t update, int32_t rounds, int32_t round,
                   struct hzp_path *ret);

/* Whether each layer is one of so many, and none is there twice; whether one is there. */
bool hzp_path_valid(const struct hzp_path *path, int32_t layers);
bool hzp_path_has(const struct hzp_path *path, int32_t layer);

/* The paths of an update, for people. */
struct hzp_paths {
    int32_t layers;     /* of each path */
    char left_out[128]; /* the other layers, round by round: "3,7/2,9"; "...": and further ones */
};
/* Adds a round's. */
void hzp_paths_note(struct hzp_paths *paths, const struct hzp_path *path, int32_t layers,
                    bool first);

/* The layer at a place of the path of a model of so many layers; how many places it has. */
static inline int32_t hzp_path_layer(const struct hzp_path *path, int32_t place)
{
    return path->count ? path->layer[place] : place;
}
static inline int32_t hzp_path_places(const struct hzp_path *path, int32_t layers)
{
    return path->count ? path->count : layers;
}

/* A path of serving as a number: 0: all layers; 1 .. 7: so many eighths of them (depths); and
 * HZP_DEPTH_GUESS + d: that of rows that only guess tokens of a request of depth d (serve/depth.h).
 */
enum { HZP_DEPTH_PARTS = 8, HZP_DEPTH_GUESS = HZP_DEPTH_PARTS, HZP_DEPTHS = 2 * HZP_DEPTH_PARTS };

/* The depth nearest to a share of the layers, 0 < share <= 1, of those that the model can have: a
 * model of three layers has only 0. */
int32_t hzp_depth_of(float share, int32_t layers);
/* The layers of a depth's path, of a model of so many; and what share of them that is. */
int32_t hzp_depth_places(int32_t depth, int32_t layers);
static inline float hzp_depth_share(int32_t depth, int32_t layers)
{
    return (float)hzp_depth_places(depth, layers) / (float)layers;
}
/* The path.  1 .. 7: round(depth / 8 * layers) of them, at least the three that each has; of the
 * n other layers m are left out, the (2 i + 1) n / (2 m)-th of them each, i = 0 .. m - 1.
 * HZP_DEPTH_GUESS + d: those of d that are in the first half of the layers, and the last. */
void hzp_depth_path(int32_t depth, int32_t layers, struct hzp_path *ret);
