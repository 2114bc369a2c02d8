/* SPDX-License-Identifier: Apache-2.0 */
/* api/front/front_thread.c - the thread that owns the front's socket. */
#include "api/front/front_state.h"

static const uint64_t beat_ns = 250000000u;

/* Sends to a rank.  False: not now, or it is gone. */
static bool send_to(struct hzp_front *f, int rank, const void *data, size_t bytes)
{
    int r = hzp_pipe_send(f->pipe, &f->place[rank].peer, data, bytes);
    if (r == HZP_EIO)
        hzp_front_lose(f, rank, "its connection has ended");
    return r == HZP_OK;
}

static void send_requests(struct hzp_front *f)
{
    bool full[HZP_DISPATCH_RANKS_MAX] = {false};
    for (int32_t i = 0; i < f->room; i++) {
        struct hzp_remote *m = &f->remote[i];
        if (!m->rq || !m->rank || full[m->rank])
            continue;
        int rank = m->rank;
        if (!m->sent) {
            hzp_request_write(&f->out, m->id, m->rq, m->least);
            m->sent = send_to(f, rank, f->out.data, f->out.bytes);
            full[rank] = !m->sent;
        } else if (!m->cancel_sent && (m->recalled || atomic_load(&m->rq->cancel))) {
            hzp_plain_write(&f->out, 'C', &m->id, sizeof(m->id));
            m->cancel_sent = send_to(f, rank, f->out.data, f->out.bytes);
            full[rank] = !m->cancel_sent;
        }
    }
}

static void send_policy(struct hzp_front *f)
{
    for (int r = 1; r < f->ranks; r++) {
        struct hzp_place *at = &f->place[r];
        if (!at->is.up || at->told == f->policies)
            continue;
        hzp_plain_write(&f->out, 'P', &f->policy, sizeof(f->policy));
        if (send_to(f, r, f->out.data, f->out.bytes))
            at->told = f->policies;
    }
}

static void read_all(struct hzp_front *f)
{
    struct hzp_pipe_peer peer;
    const char *data;
    size_t bytes;
    while (hzp_pipe_receive(f->pipe, &peer, &data, &bytes)) {
        HZP_LOCKED(&f->lock);
        hzp_front_handle(f, &peer, data, bytes);
        hzp_front_tell(f);
    }
}

/* Says that this rank is alive, at once when an update has ended or another version serves.  What
 * is not sent because a rank does not read comes with the next one. */
static void beat(struct hzp_front *f, bool due)
{
    struct hzp_weights_stats w;
    hzp_weights_read_stats(f->parts.weights, &w);
    struct hzp_front_beat now = {w.finished_optimizer_step, w.serving_id};
    if (!due && now.finished == f->said.finished && now.version == f->said.version)
        return;
    if (now.version != f->said.version)
        hzp_front_note_line(f);
    f->said = now;
    hzp_plain_write(&f->out, 'B', &now, sizeof(now));
    for (int r = 1; r < f->ranks; r++)
        if (f->place[r].is.up)
            send_to(f, r, f->out.data, f->out.bytes);
}

/* Finds the ranks that are silent.  If this thread itself was held up, the time in which it could
 * not hear does not count. */
static void watch(struct hzp_front *f)
{
    uint64_t now = hzp_now_ns(), limit = (uint64_t)(f->silent_s * 1e9);
    if (now - f->beat_ns < beat_ns)
        return;
    uint64_t late = now - f->beat_ns > 4 * beat_ns ? now - f->beat_ns : 0;
    f->beat_ns = now;
    for (int r = 1; r < f->ranks; r++) {
        struct hzp_place *at = &f->place[r];
        if (!at->is.up)
            continue;
        at->heard_ns = HZP_MIN(at->heard_ns + late, now);
        char why[80];
        snprintf(why, sizeof(why), "no message for %.1f s: it has died, or hangs",
                 (double)(now - at->heard_ns) * 1e-9);
        if (now - at->heard_ns > limit)
            hzp_front_lose(f, r, why);
    }
    beat(f, true);
}

static void fail_all(struct hzp_front *f)
{
    for (int32_t i = 0; i < f->room; i++) {
        struct hzp_remote *m = &f->remote[i];
        if (!m->rq)
            continue;
        if (m->sent && m->rank) {
            hzp_plain_write(&f->out, 'C', &m->id, sizeof(m->id));
            send_to(f, m->rank, f->out.data, f->out.bytes);
        }
        if (m->rq) /* the rank may have been lost: the request has none then */
            hzp_front_end(f, m, HZP_REQUEST_FAILED);
    }
}

bool hzp_front_turn(struct hzp_front *f)
{
    read_all(f);
    HZP_LOCKED(&f->lock);
    watch(f);
    beat(f, false);
    if (f->hurry)
        fail_all(f);
    hzp_front_place(f);
    send_policy(f);
    send_requests(f);
    hzp_front_tell(f);
    bool closing = f->closing;
    return !closing;
}

void *hzp_front_main(void *front)
{
    struct hzp_front *f = front;
    f->beat_ns = hzp_now_ns();
    do
        hzp_pipe_wait(f->pipe, 50);
    while (hzp_front_turn(f));
    for (int r = 1; r < f->ranks; r++)
        if (f->place[r].is.up)
            hzp_pipe_send(f->pipe, &f->place[r].peer, "G", 1);
    return NULL;
}
