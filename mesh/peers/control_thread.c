/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/control_thread.c - the thread of control messages: heartbeats, losses, clocks, who
 * waits for whom, who is silent, who is slow. */
#include "mesh/peers/control_state.h"

#include "base/log.h"

static const uint64_t beat_ns = 500000000u, second_ns = 1000000000u;

/* Records the first loss, fails the link, calls config.lost. */
static void lose(struct hzp_control *c, int rank, const char *why)
{
    hzp_lock_take(&c->lock);
    bool first = c->lost_rank < 0;
    if (first) {
        c->lost_rank = rank;
        snprintf(c->why, sizeof(c->why), "%s", why);
    }
    if (rank >= 0 && rank < c->config.ranks)
        c->peer[rank].lost = true;
    hzp_lock_release(&c->lock);
    hzp_wake_poke(&c->told_spans);
    if (!first)
        return;
    hzp_log(HZP_LOG_ERROR, "ranks", "lost rank=%d: %s", rank, why);
    if (c->link)
        hzp_link_abort(c->link, rank, why);
    if (c->config.lost)
        c->config.lost(c->config.ctx, rank, why);
}

/* Tells the others of the first loss, once. */
static void tell_loss(struct hzp_control *c)
{
    if (c->lost_rank < 0 || c->told)
        return;
    struct hzp_control_lost message = {.letter = 'L', .rank = c->lost_rank};
    memcpy(message.why, c->why, sizeof(message.why));
    hzp_control_send_all(c, &message, sizeof(message));
    c->told = true;
}

static void note_beat(struct hzp_control *c, int rank, const struct hzp_control_beat *beat)
{
    struct hzp_peer *p = &c->peer[rank];
    HZP_LOCKED(&c->lock);
    if (beat->missing < 0 || beat->missing != p->beat.missing || beat->done != p->beat.done) {
        p->waits_ns = hzp_now_ns();
    }
    p->beat = *beat;
    if (!c->config.rank)
        hzp_stragglers_note(&c->stragglers, rank, beat->rate);
}

/* Sets this rank's clock by an answer of rank 0: of the newest answers the one with the shortest
 * round trip says most exactly how far rank 0's clock is ahead. */
static void note_answer(struct hzp_control *c, const struct hzp_control_ping *ping)
{
    uint64_t now = hzp_now_ns();
    uint32_t at = c->pings++ % HZP_CONTROL_PINGS, best = 0;
    uint32_t known = HZP_MIN(c->pings, (uint32_t)HZP_CONTROL_PINGS);
    if (ping->sent_ns > now)
        return;
    c->ping[at].trip_ns = now - ping->sent_ns;
    c->ping[at].ahead_ns = (int64_t)(ping->answered_ns - (ping->sent_ns + c->ping[at].trip_ns / 2));
    for (uint32_t i = 1; i < known; i++)
        if (c->ping[i].trip_ns < c->ping[best].trip_ns)
            best = i;
    HZP_LOCKED(&c->lock);
    c->peer[c->config.rank].beat.ahead_ns = c->ping[best].ahead_ns;
}

static void handle_ping(struct hzp_control *c, int rank, const void *data)
{
    struct hzp_control_ping ping;
    memcpy(&ping, data, sizeof(ping));
    if (ping.letter == 'Q' && c->config.rank) {
        note_answer(c, &ping);
    } else if (ping.letter == 'P' && !c->config.rank) {
        ping.letter = 'Q';
        ping.answered_ns = hzp_now_ns();
        hzp_control_send(c, rank, &ping, sizeof(ping));
    }
}

static void handle(struct hzp_control *c, int rank, const char *data, size_t size)
{
    hzp_lock_take(&c->lock);
    c->peer[rank].heard_ns = c->peer[rank].said_ns = hzp_now_ns();
    if (size && data[0] == 'G')
        c->peer[rank].left = true;
    hzp_lock_release(&c->lock);
    if (size == sizeof(struct hzp_control_beat) && data[0] == 'B') {
        struct hzp_control_beat beat;
        memcpy(&beat, data, sizeof(beat));
        note_beat(c, rank, &beat);
    } else if (size == sizeof(struct hzp_control_lost) && data[0] == 'L') {
        struct hzp_control_lost message;
        memcpy(&message, data, sizeof(message));
        message.why[sizeof(message.why) - 1] = 0;
        if (message.rank >= -1 && message.rank < c->config.ranks)
            lose(c, message.rank, message.why);
    } else if (size == sizeof(struct hzp_control_ping) && (data[0] == 'P' || data[0] == 'Q')) {
        handle_ping(c, rank, data);
    } else if (size == sizeof(struct hzp_control_ask) && data[0] == 'S' && c->config.rank) {
        struct hzp_control_ask ask;
        memcpy(&ask, data, sizeof(ask));
        hzp_control_answer(c, &ask);
    } else if (size && data[0] == 'D' && !c->config.rank) {
        hzp_control_take_piece(c, rank, data, size);
    }
}

static bool any_lost(struct hzp_control *c)
{
    char why[HZP_CONTROL_TEXT];
    return hzp_control_lost(c, why, sizeof(why)) >= 0;
}

/* Whether the process that all have met as the rank of this hello was heard after `since`. */
static bool is_alive(struct hzp_control *c, const struct hzp_control_hello *hello, uint64_t since)
{
    if (hello->rank <= 0 || hello->rank >= c->config.ranks)
        return true; /* there is no such rank */
    HZP_LOCKED(&c->lock);
    return c->peer[hello->rank].said_ns > since;
}

/* Whether a rank that says hello after all have met is refused.  Not at once, and not before the
 * one in its place was heard again: it may replace one whose loss is found only later, and then
 * waits until all meet again. */
static bool refuses(struct hzp_control *c, const struct hzp_control_hello *hello)
{
    uint64_t now = hzp_now_ns(), wait = (uint64_t)(HZP_MIN(c->config.silent_s, 10.0) * 1e9);
    if (any_lost(c))
        return false;
    if (!c->late_ns || now - c->late_ns > wait + 10 * second_ns)
        c->late_ns = now; /* the first hello for a while */
    return now - c->late_ns > wait && is_alive(c, hello, c->late_ns + second_ns);
}

/* Handles what has arrived. */
static void read_all(struct hzp_control *c)
{
    struct hzp_pipe_peer who;
    char *data = c->message;
    for (int n; (n = hzp_control_receive(c, data, sizeof(c->message), &who)) >= 0;) {
        int rank = c->config.rank ? 0 : hzp_control_rank_of(c, &who);
        if (rank < c->config.ranks)
            handle(c, rank, data, (size_t)n);
        else if (n > (int)offsetof(struct hzp_control_hello, record) && data[0] == 'H' &&
                 refuses(c, (const struct hzp_control_hello *)(const void *)data))
            hzp_control_refuse(c, &who, "all ranks of this run are connected already");
    }
}

/* Finds ranks that are silent.  If this thread itself was held up (a stopped machine), the time in
 * which it could not hear does not count. */
static void check_silence(struct hzp_control *c, uint64_t now)
{
    uint64_t held_up = now - c->turn_ns > second_ns ? now - c->turn_ns : 0;
    uint64_t limit = (uint64_t)(c->config.silent_s * 1e9);
    int first = c->config.rank ? 0 : 1, end = c->config.rank ? 1 : c->config.ranks;
    for (int r = first; r < end; r++) {
        struct hzp_peer *p = &c->peer[r];
        hzp_lock_take(&c->lock);
        p->heard_ns = HZP_MIN(p->heard_ns + held_up, now);
        uint64_t silent = now - p->heard_ns;
        bool dead = silent > limit && !p->left && !p->lost;
        hzp_lock_release(&c->lock);
        if (dead) {
            char why[HZP_CONTROL_TEXT];
            snprintf(why, sizeof(why), "no heartbeat for %.1f s: it has died, or its machine hangs",
                     (double)silent * 1e-9);
            lose(c, r, why);
        }
    }
    c->turn_ns = now;
}

/* Whether half the limit has passed, after which a rank is named, and it was not named lately. */
static bool due(const struct hzp_control *c, double seconds, uint64_t now, uint64_t *named_ns)
{
    if (seconds < c->config.silent_s / 2 || (*named_ns && now < *named_ns + 30 * second_ns))
        return false;
    *named_ns = now;
    return true;
}

/* Names the rank that others have waited for longest, before anything times out. */
static void watch_waiting(struct hzp_control *c, uint64_t now)
{
    for (int r = 0; r < c->config.ranks; r++) {
        struct hzp_peer *p = &c->peer[r];
        hzp_lock_take(&c->lock);
        struct hzp_control_beat beat = p->beat;
        double seconds = now > p->waits_ns ? (double)(now - p->waits_ns) * 1e-9 : 0;
        bool warn = beat.missing >= 0 && due(c, seconds, now, &p->warned_ns);
        hzp_lock_release(&c->lock);
        if (warn)
            hzp_log(HZP_LOG_WARN, "ranks", "waiting rank=%d for_rank=%d ticket=%llu seconds=%.1f",
                    r, beat.missing, (unsigned long long)beat.done + 1, seconds);
    }
}

/* How long a rank has been silent, or one of its threads busy with one thing; now is this rank's
 * clock. */
static double quiet_for(const struct hzp_control *c, int rank, uint64_t now)
{
    const struct hzp_peer *p = &c->peer[rank];
    bool self = rank == c->config.rank;
    double silent = self || now < p->heard_ns ? 0 : (double)(now - p->heard_ns) * 1e-9;
    return p->beat.doing_s > 0 ? p->beat.doing_s + silent : silent;
}

/* Names the rank that has been silent for longest, its thread and the ticket it holds up. */
static void watch_silent(struct hzp_control *c, uint64_t now)
{
    int longest = -1;
    double seconds = 0;
    struct hzp_control_beat beat = {.letter = 0};
    hzp_lock_take(&c->lock);
    for (int r = 0; r < c->config.ranks; r++) {
        bool known = (r == c->config.rank || r == 0 || c->config.rank == 0) && !c->peer[r].left;
        if (known && quiet_for(c, r, now) > seconds) {
            seconds = quiet_for(c, r, now);
            longest = r;
        }
    }
    if (longest >= 0 && due(c, seconds, now, &c->peer[longest].silent_ns))
        beat = c->peer[longest].beat;
    else
        longest = -1;
    hzp_lock_release(&c->lock);
    if (longest < 0)
        return;
    beat.doing.track[sizeof(beat.doing.track) - 1] = beat.doing.name[sizeof(beat.doing.name) - 1] =
        0;
    bool busy = beat.doing_s > 0;
    hzp_log(HZP_LOG_WARN, "ranks",
            "silent rank=%d thread=%s doing=\"%s\" n=%llu ticket=%llu seconds=%.1f", longest,
            busy ? beat.doing.track : "control", busy ? beat.doing.name : "heartbeat",
            (unsigned long long)(busy ? beat.doing.number : 0), (unsigned long long)beat.done + 1,
            seconds);
}

/* Rank 0: names ranks that have become slower than the others, or are so no more. */
static void watch_slow(struct hzp_control *c)
{
    hzp_lock_take(&c->lock);
    hzp_stragglers_judge(&c->stragglers);
    hzp_lock_release(&c->lock);
    for (int rank = 0; rank >= 0;) {
        hzp_lock_take(&c->lock);
        rank = hzp_stragglers_next(&c->stragglers);
        struct hzp_straggler slow = {.meter = -1};
        if (rank >= 0)
            slow = c->stragglers.slow[rank];
        hzp_lock_release(&c->lock);
        if (rank >= 0 && slow.named)
            hzp_log(HZP_LOG_WARN, "ranks", "straggler rank=%d in=%s times=%.1f", rank,
                    hzp_meter_name(slow.meter), slow.times);
        else if (rank >= 0)
            hzp_log(HZP_LOG_INFO, "ranks", "straggler gone rank=%d", rank);
    }
}

/* What this rank tells the others of itself. */
static struct hzp_control_beat own_beat(struct hzp_control *c, uint64_t now,
                                        const struct hzp_link_state *state)
{
    struct hzp_meter meter[HZP_METER_COUNT];
    struct hzp_control_beat beat = {
        .letter = 'B', .missing = state->missing, .posted = state->posted, .done = state->done};
    hzp_timeline_doing(&beat.doing);
    if (beat.doing.track[0] && now > beat.doing.since_ns)
        beat.doing_s = (double)(now - beat.doing.since_ns) * 1e-9;
    hzp_meter_read(meter);
    hzp_stragglers_report(c->meter, meter, beat.rate);
    memcpy(c->meter, meter, sizeof(meter));
    HZP_LOCKED(&c->lock);
    beat.ahead_ns = c->peer[c->config.rank].beat.ahead_ns;
    return beat;
}

static void send_beat(struct hzp_control *c, uint64_t now)
{
    struct hzp_link_state state = {.missing = -1};
    if (c->link)
        hzp_link_state(c->link, &state);
    struct hzp_control_beat beat = own_beat(c, now, &state);
    note_beat(c, c->config.rank, &beat);
    hzp_control_send_all(c, &beat, sizeof(beat));
    if (c->config.rank) {
        struct hzp_control_ping ping = {.letter = 'P', .sent_ns = hzp_now_ns()};
        hzp_control_send(c, 0, &ping, sizeof(ping));
    }
    c->beat_sent_ns = now;
    if (state.failed && c->lost_rank < 0)
        lose(c, state.failed_rank, state.why);
}

void *hzp_control_thread(void *arg)
{
    struct hzp_control *c = arg;
    hzp_meter_read(c->meter);
    while (!atomic_load(&c->closing)) {
        hzp_pipe_wait(c->pipe, 100);
        read_all(c);
        uint64_t now = hzp_now_ns();
        check_silence(c, now);
        if (now - c->beat_sent_ns >= beat_ns) {
            send_beat(c, now);
            watch_waiting(c, now);
            watch_silent(c, now);
            if (!c->config.rank)
                watch_slow(c);
        }
        if (c->config.rank)
            hzp_control_send_answer(c);
        else
            hzp_control_put_question(c);
        tell_loss(c);
    }
    hzp_control_send_all(c, "G", 1);
    return NULL;
}
