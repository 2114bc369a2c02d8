/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/control_spans.c - the timeline of all ranks: rank 0 asks, each rank answers with the
 * events of its own trace, in pieces, with the times already those of rank 0's clock. */
#include "mesh/peers/control_state.h"

enum { BYTES_ALL = 64 << 20, BYTES_RANK = 8 << 20, SLACK = 1 << 20, ANSWER_S = 10 };

/* ---- other ranks ---- */

void hzp_control_answer(struct hzp_control *c, const struct hzp_control_ask *ask)
{
    int64_t ahead = c->peer[c->config.rank].beat.ahead_ns;
    free(c->out);
    c->out = NULL;
    c->out_bytes = c->out_at = 0;
    FILE *file = open_memstream(&c->out, &c->out_bytes);
    if (!file)
        return;
    struct hzp_chrome chrome = {.out = file};
    uint64_t from =
        ahead > 0 && ask->from_ns < (uint64_t)ahead ? 0 : ask->from_ns - (uint64_t)ahead;
    hzp_timeline_write(&chrome, c->config.rank, from, ahead, (size_t)ask->bytes);
    fclose(file);
    c->out_number = ask->number;
}

void hzp_control_send_answer(struct hzp_control *c)
{
    struct hzp_control_piece piece;
    while (c->out) {
        size_t n = HZP_MIN(c->out_bytes - c->out_at, sizeof(piece.text));
        piece.letter = 'D';
        piece.last = c->out_at + n == c->out_bytes;
        piece.bytes = (uint16_t)n;
        piece.number = c->out_number;
        memcpy(piece.text, c->out + c->out_at, n);
        if (hzp_control_send(c, 0, &piece, offsetof(struct hzp_control_piece, text) + n) < 0)
            return; /* later */
        c->out_at += n;
        if (!piece.last)
            continue;
        free(c->out);
        c->out = NULL;
    }
}

/* ---- rank 0, the thread ---- */

void hzp_control_put_question(struct hzp_control *c)
{
    hzp_lock_take(&c->lock);
    bool put = c->asking && !c->asked;
    struct hzp_control_ask ask = c->ask;
    c->asked = true;
    hzp_lock_release(&c->lock);
    if (put)
        hzp_control_send_all(c, &ask, sizeof(ask));
}

/* Under the lock. */
static void append(struct hzp_control *c, struct hzp_peer *p, const struct hzp_control_piece *piece)
{
    char *text = NULL;
    if (p->text_bytes + piece->bytes <= c->ask.bytes + SLACK)
        text = realloc(p->text, p->text_bytes + piece->bytes + 1);
    if (text) {
        memcpy(text + p->text_bytes, piece->text, piece->bytes);
        p->text = text;
        p->text_bytes += piece->bytes;
    }
    p->text_whole = piece->last;
}

void hzp_control_take_piece(struct hzp_control *c, int rank, const void *data, size_t size)
{
    const struct hzp_control_piece *piece = data;
    size_t head = offsetof(struct hzp_control_piece, text);
    if (size < head || size != head + piece->bytes)
        return;
    hzp_lock_take(&c->lock);
    if (c->asking && piece->number == c->ask.number && !c->peer[rank].text_whole)
        append(c, &c->peer[rank], piece);
    hzp_lock_release(&c->lock);
    hzp_wake_poke(&c->told_spans);
}

/* ---- rank 0, the caller ---- */

/* Puts the question.  HZP_EBUSY: another caller waits for an answer. */
static int put(struct hzp_control *c, uint64_t from_ns, size_t bytes)
{
    HZP_LOCKED(&c->lock);
    int r = c->asking ? HZP_EBUSY : HZP_OK;
    if (r == HZP_OK) {
        c->asking = true;
        c->asked = false;
        c->ask = (struct hzp_control_ask){
            .letter = 'S', .number = c->ask.number + 1, .from_ns = from_ns, .bytes = bytes};
        for (int i = 1; i < c->config.ranks; i++) {
            c->peer[i].text_bytes = 0;
            c->peer[i].text_whole = false;
        }
    }
    return r;
}

static bool all_answered(struct hzp_control *c)
{
    bool all = true;
    HZP_LOCKED(&c->lock);
    for (int i = 1; i < c->config.ranks; i++)
        all &= c->peer[i].text_whole || c->peer[i].lost || c->peer[i].left;
    return all;
}

static void write_rank(struct hzp_control *c, int rank, struct hzp_chrome *chrome)
{
    char name[40];
    struct hzp_peer *p = &c->peer[rank];
    snprintf(name, sizeof(name), "rank %d%s", rank, p->text_whole ? "" : " (no answer)");
    hzp_chrome_process(chrome, rank, name);
    if (p->text_whole)
        hzp_chrome_add(chrome, p->text, p->text_bytes);
    free(p->text);
    p->text = NULL;
    p->text_bytes = 0;
}

int hzp_control_timeline(struct hzp_control *c, uint64_t from_ns, struct hzp_chrome *chrome)
{
    int ranks = c->config.ranks;
    size_t bytes = HZP_MIN((size_t)BYTES_ALL / (size_t)ranks, (size_t)BYTES_RANK);
    uint64_t end = hzp_now_ns() + (uint64_t)ANSWER_S * 1000000000u;
    HZP_TRY(put(c, from_ns, bytes));
    hzp_chrome_process(chrome, 0, "rank 0");
    hzp_timeline_write(chrome, 0, from_ns, 0, bytes);
    for (uint64_t now = hzp_now_ns(); !all_answered(c) && now < end; now = hzp_now_ns())
        hzp_wake_wait(&c->told_spans, HZP_MIN(end - now, (uint64_t)200000000));
    HZP_LOCKED(&c->lock);
    for (int r = 1; r < ranks; r++)
        write_rank(c, r, chrome);
    c->asking = false;
    return HZP_OK;
}
