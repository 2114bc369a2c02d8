/* SPDX-License-Identifier: Apache-2.0 */
/* train/sites/rounds.h - the rounds in which sites average a part of their weights (rule.h), as one
 * of them sees them: messages and the time go in, messages come out.
 *
 *     none --begin--> sample --the trainer gives its weights--> exchange
 *                                                                  | commit, and all it lists
 *     none <-- the trainer has put it into a version, or not -- ready
 *
 * The *leader*, the first site that answers and is not late, begins a round when a site has made
 * `every` updates since the last one, or has learned something and made none for two seconds.  A
 * site with a round in flight delays the next, which counts as skipped.  Each site sends its part
 * to all others.  When all that take part have sent theirs, or a quorum has and the limit is over,
 * the leader commits: it lists sites, weights and checksums, and the id of the average, so that
 * either a site computes the same bits or it notices.  A site that lacks something drops the round
 * and keeps its weights.
 *
 * What sites send is relative to the part's last agreed average, so they must have the same one.
 * Their hellos have its id; where one differs, the leader begins the round with F32 values, after
 * which all have one again.  Nothing here outlives the process: a site that comes back has other
 * ids than the others, and counts as late.
 *
 * A site's samples count from the part's last average that it was in.  One that has learned
 * something and is not in the average does not apply it, as it would lose what it learned; only a
 * late site does: for `join` rounds it counts nothing, then its weight rises.
 *
 * Thread: one.
 */
#pragma once

#include "train/sites/message.h"

struct hzp_site_rounds;

struct hzp_rounds_config {
    struct hzp_site_limits limits;
    int self;
    uint64_t began;              /* not 0; differs from that of the process before */
    enum hzp_site_coding coding; /* F32: rounds are exact, and four times as long */
    bool ema;
    int64_t every, delay; /* updates: between rounds; of this site between sending and applying */
    int quorum;           /* sites, this one too */
    int32_t join;         /* rounds in which a late site only receives; 0: it is as the others */
    uint64_t limit_ns;
    /* False: there is no room; it is tried again. */
    bool (*send)(void *ctx, int site, const void *data, size_t bytes);
    void *ctx;
};

/* HZP_ENOMEM.  hzp_rounds_agreed: [blocks * 64] for the caller to fill with its weights. */
int hzp_rounds_create(const struct hzp_rounds_config *config, struct hzp_site_rounds **ret);
void hzp_rounds_destroy(struct hzp_site_rounds *r); /* NULL: no effect */
float *hzp_rounds_agreed(struct hzp_site_rounds *r);
/* The host memory that it takes. */
size_t hzp_rounds_bytes(const struct hzp_rounds_config *config);

/* What this site has learned since it started. */
void hzp_rounds_note(struct hzp_site_rounds *r, int64_t updates, int64_t samples);
/* HZP_EFORMAT: the message is none, and was counted; reterr says why. */
int hzp_rounds_receive(struct hzp_site_rounds *r, const void *data, size_t bytes, uint64_t now_ns,
                       struct hzp_err_text *reterr);
/* True: messages wait for room. */
bool hzp_rounds_turn(struct hzp_site_rounds *r, uint64_t now_ns);

/* Where the part's weights are wanted, for hzp_rounds_sampled: [*ret_count * 64], in the order of
 * *ret_block; NULL: none are. */
float *hzp_rounds_wants(struct hzp_site_rounds *r, const uint32_t **ret_block, int64_t *ret_count);
void hzp_rounds_sampled(struct hzp_site_rounds *r);

/* An average that may be applied in an update that ends now; idle: the site learns nothing. */
bool hzp_rounds_ready(const struct hzp_site_rounds *r, bool idle);
/* Block i of it, to the draft's master w [64]; the blocks are those of *ret_block. */
const uint32_t *hzp_rounds_average(const struct hzp_site_rounds *r, int64_t *ret_count);
bool hzp_rounds_apply(struct hzp_site_rounds *r, int64_t i, float *w);
/* The round is over: the average is in a version that serves, or is not.  Returns the sites that
 * are in it, as bits. */
uint32_t hzp_rounds_sites(const struct hzp_site_rounds *r);
void hzp_rounds_applied(struct hzp_site_rounds *r, bool kept);

struct hzp_rounds_stats {
    int64_t round, applied, refused, skipped, missed, given_up; /* refused: by a check */
    int64_t bad_messages;
    uint64_t bytes_sent, bytes_received;
    double drift;       /* root mean square of w - a in the newest round */
    int32_t part, left; /* left: rounds until this site counts in full */
    const char *stage;
    int leader;       /* as this site sees it */
    int sites, alive; /* this one too */
    struct {
        bool alive;
        double silent_s; /* < 0: never heard */
        int64_t round, updates;
        int32_t left;
    } site[HZP_SITES_MAX];
};
void hzp_rounds_read_stats(const struct hzp_site_rounds *r, uint64_t now_ns,
                           struct hzp_rounds_stats *ret);
