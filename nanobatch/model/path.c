/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/path.h"

#include "device/philox.h"

enum { FIRST = 2, LAST = 1, SWAPS = 2 }; /* protected layers; swaps of a path at most */

int32_t hzp_deck_skips(const struct hzp_deck *deck)
{
    return deck->layers - (int32_t)lroundf((1 - deck->skip) * (float)deck->layers);
}

int hzp_deck_check(const struct hzp_deck *deck, struct hzp_err_text *reterr)
{
    int32_t skips = hzp_deck_skips(deck), most = HZP_MAX(deck->layers - FIRST - LAST, 0);
    if (skips < (deck->skip > 0) || skips > most)
        return hzp_fail_param(
            reterr, HZP_EINVAL, "--skip",
            "--skip %g leaves out %d of the model's %d layers: 1 at least, %d at most",
            (double)deck->skip, skips, deck->layers, most);
    return HZP_OK;
}

static int64_t divisor_of(int64_t a, int64_t b)
{
    return b ? divisor_of(b, a % b) : a;
}

/* The i-th random number below `bound` of the counter's. */
static int32_t below(const struct hzp_deck *deck, int64_t counter, int32_t of, int32_t i,
                     int32_t bound)
{
    uint32_t word = hzp_philox(deck->seed, (uint32_t)counter, (uint32_t)(counter >> 32),
                               (uint32_t)of, (uint32_t)i);
    return (int32_t)((uint64_t)word * (uint64_t)bound >> 32);
}

/* card[0 .. count) becomes the number-th shuffle. */
static void shuffle(const struct hzp_deck *deck, int64_t number, int32_t *card, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t j = below(deck, number, -1, i, i + 1);
        card[i] = card[j];
        card[j] = FIRST + i;
    }
}

static void swap_some(const struct hzp_deck *deck, int64_t update, int32_t round,
                      struct hzp_path *path)
{
    int32_t pairs = path->count - FIRST - LAST - 1, before = -2;
    for (int32_t i = 0; i < SWAPS && pairs > 0; i++) {
        int32_t at = FIRST + below(deck, update, round, i, pairs), layer = path->layer[at];
        if (at >= before - 1 && at <= before + 1)
            continue;
        path->layer[at] = path->layer[at + 1];
        path->layer[at + 1] = layer;
        before = at;
    }
}

void hzp_deck_deal(const struct hzp_deck *deck, int64_t update, int32_t rounds, int32_t round,
                   struct hzp_path *ret)
{
    int32_t card[HZP_LAYERS_MAX], skips = hzp_deck_skips(deck);
    bool left_out[HZP_LAYERS_MAX] = {false};
    int64_t cards = deck->layers - FIRST - LAST, each = (int64_t)rounds * skips;
    ret->count = 0;
    if (!skips && !deck->swap)
        return;
    if (skips) {
        /* after so many updates each card has been dealt equally often */
        int64_t period = cards / divisor_of(cards, each), turn = (update - 1) % period;
        shuffle(deck, (update - 1) / period, card, (int32_t)cards);
        for (int32_t i = 0; i < skips; i++)
            left_out[card[(turn * each + (int64_t)round * skips + i) % cards]] = true;
    }
    for (int32_t l = 0; l < deck->layers; l++)
        if (!left_out[l])
            ret->layer[ret->count++] = l;
    if (deck->swap)
        swap_some(deck, update, round, ret);
}

/* ---- depth ---- */

int32_t hzp_depth_places(int32_t depth, int32_t layers)
{
    int32_t least = HZP_MIN(FIRST + LAST, layers);
    HZP_ASSERT(depth >= 0 && depth < HZP_DEPTHS);
    if (depth >= HZP_DEPTH_GUESS) {
        struct hzp_path path;
        hzp_depth_path(depth, layers, &path);
        return hzp_path_places(&path, layers);
    }
    int32_t places =
        depth ? (2 * depth * layers + HZP_DEPTH_PARTS) / (2 * HZP_DEPTH_PARTS) : layers;
    return HZP_MAX(places, least);
}

int32_t hzp_depth_of(float share, int32_t layers)
{
    int32_t depth = (int32_t)lroundf(share * HZP_DEPTH_PARTS), least = 1;
    depth = HZP_MAX(1, HZP_MIN(depth, HZP_DEPTH_PARTS - 1));
    if (share >= 1 - 0.5f / HZP_DEPTH_PARTS || hzp_depth_places(depth, layers) == layers)
        return 0;
    while (hzp_depth_places(least, layers) < hzp_depth_places(depth, layers))
        least++; /* one number for each path */
    return least;
}

void hzp_depth_path(int32_t depth, int32_t layers, struct hzp_path *ret)
{
    int32_t out = layers - hzp_depth_places(depth % HZP_DEPTH_PARTS, layers), i = 0;
    int32_t cards = layers - FIRST - LAST;
    int32_t half = depth < HZP_DEPTH_GUESS ? layers : (layers + 1) / 2;
    ret->count = 0;
    for (int32_t l = 0; l < layers; l++) {
        bool left = i < out && l == FIRST + (int32_t)((2 * (int64_t)i + 1) * cards / (2 * out));
        i += left;
        if (!left && (l < half || l >= layers - LAST))
            ret->layer[ret->count++] = l;
    }
    ret->count = ret->count < layers ? ret->count : 0;
}

bool hzp_path_valid(const struct hzp_path *path, int32_t layers)
{
    bool seen[HZP_LAYERS_MAX] = {false};
    if (path->count < 0 || path->count > layers)
        return false;
    for (int32_t i = 0; i < path->count; i++) {
        int32_t l = path->layer[i];
        if (l < 0 || l >= layers || seen[l])
            return false;
        seen[l] = true;
    }
    return true;
}

bool hzp_path_has(const struct hzp_path *path, int32_t layer)
{
    bool has = !path->count;
    for (int32_t i = 0; i < path->count; i++)
        has |= path->layer[i] == layer;
    return has;
}

void hzp_paths_note(struct hzp_paths *p, const struct hzp_path *path, int32_t layers, bool first)
{
    const size_t most = sizeof(p->left_out) - 16;
    const char *gap = first ? "" : "/";
    size_t n = first ? 0 : strlen(p->left_out);
    p->layers = hzp_path_places(path, layers);
    p->left_out[n] = '\0';
    for (int32_t l = 0; l < layers && n < most; l++) {
        if (hzp_path_has(path, l))
            continue;
        n += (size_t)snprintf(p->left_out + n, sizeof(p->left_out) - n, "%s%d", gap, l);
        gap = ",";
        if (n >= most)
            n += (size_t)snprintf(p->left_out + n, sizeof(p->left_out) - n, "...");
    }
}
