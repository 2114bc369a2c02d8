/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/detokenizer.h"

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

void hzp_detokenizer_init(struct hzp_detokenizer *detok, const struct hzp_tokenizer *tok,
                          bool skip_special)
{
    *detok = (struct hzp_detokenizer){
        .tok = tok, .skip_special = skip_special, .strip = tok->decoder.strip_start};
}

/* Appends whole characters, through the Strip of the whole text. */
static int emit(struct hzp_detokenizer *detok, const char *text, size_t bytes,
                struct hzp_textbuf *out)
{
    const struct hzp_decoder *decoder = &detok->tok->decoder;
    size_t n = (size_t)decoder->strip_bytes;
    if (bytes == 0)
        return HZP_OK;
    while (detok->strip > 0 && bytes >= n && memcmp(text, decoder->strip, n) == 0) {
        text += n;
        bytes -= n;
        detok->strip--;
    }
    if (bytes == 0)
        return HZP_OK;
    detok->strip = 0;
    if (decoder->strip_stop == 0)
        return hzp_textbuf_append(out, text, bytes);

    size_t tail = 0; /* characters at the end that may have to go */
    while (bytes >= (tail + 1) * n && memcmp(text + bytes - (tail + 1) * n, decoder->strip, n) == 0)
        tail++;
    if (tail * n < bytes) {
        for (; detok->held > 0; detok->held--)
            HZP_TRY(hzp_textbuf_append(out, decoder->strip, n));
        HZP_TRY(hzp_textbuf_append(out, text, bytes - tail * n));
    }
    for (; tail > 0; tail--) {
        if (detok->held < decoder->strip_stop)
            detok->held++;
        else
            HZP_TRY(hzp_textbuf_append(out, decoder->strip, n));
    }
    return HZP_OK;
}

/* What is pending will never be a character. */
static int give_up(struct hzp_detokenizer *detok, struct hzp_textbuf *out)
{
    bool each = detok->tok->decoder.join != HZP_DECODER_BYTES;
    int n = each ? detok->n_pending : detok->n_pending > 0;
    detok->n_pending = 0;
    for (; n > 0; n--)
        HZP_TRY(emit(detok, HZP_UTF8_REPLACEMENT, 3, out));
    return HZP_OK;
}

static int feed_byte(struct hzp_detokenizer *detok, char byte, struct hzp_textbuf *out)
{
    int n = detok->n_pending;
    bool goes_on = n == 1 ? hzp_utf8_second_ok((uint8_t)detok->pending[0], (uint8_t)byte)
                          : ((uint8_t)byte & 0xC0) == 0x80;
    if (n > 0 && !goes_on)
        HZP_TRY(give_up(detok, out));
    detok->pending[detok->n_pending++] = byte;
    int length = hzp_utf8_length((uint8_t)detok->pending[0]);
    if (length == 0)
        return give_up(detok, out);
    if (detok->n_pending < length)
        return HZP_OK;
    detok->n_pending = 0;
    return emit(detok, detok->pending, (size_t)length, out);
}

static int feed_bytes(struct hzp_detokenizer *detok, const char *text, size_t bytes,
                      struct hzp_textbuf *out)
{
    while (bytes > 0) {
        size_t whole = detok->n_pending == 0 ? hzp_utf8_valid(text, bytes) : 0;
        HZP_TRY(emit(detok, text, whole, out));
        text += whole;
        bytes -= whole;
        if (bytes > 0) {
            HZP_TRY(feed_byte(detok, *text++, out));
            bytes--;
        }
    }
    return HZP_OK;
}

static bool skips(const struct hzp_detokenizer *detok, int32_t id)
{
    if (!detok->skip_special || !(detok->tok->kind[id] & HZP_TOKENIZER_SPECIAL))
        return false;
    for (int32_t i = 0; i < detok->keeps; i++)
        if (detok->keep[i] == id)
            return false;
    return true;
}

int hzp_detokenizer_feed(struct hzp_detokenizer *detok, int32_t id, struct hzp_textbuf *out)
{
    const struct hzp_tokenizer *tok = detok->tok;
    if (id < 0 || id >= tok->n || !(tok->kind[id] & HZP_TOKENIZER_EXISTS) || skips(detok, id))
        return HZP_OK;
    const struct hzp_tokenizer_rendering *rendering =
        detok->started ? &tok->middle[id] : &tok->first[id];
    const char *text = tok->pool.data + rendering->from;
    bool started = detok->started;
    detok->started = true;
    if ((tok->kind[id] & HZP_TOKENIZER_BYTE) || tok->decoder.join == HZP_DECODER_BYTES)
        return feed_bytes(detok, text, rendering->bytes, out);
    HZP_TRY(give_up(detok, out));
    if (started && tok->decoder.join == HZP_DECODER_SPACED)
        HZP_TRY(emit(detok, " ", 1, out));
    return emit(detok, text, rendering->bytes, out);
}

int hzp_detokenizer_flush(struct hzp_detokenizer *detok, struct hzp_textbuf *out)
{
    HZP_TRY(give_up(detok, out));
    detok->held = 0; /* the end came: they are stripped */
    return HZP_OK;
}

int hzp_tokenizer_decode(const struct hzp_tokenizer *tok, const int32_t *ids, size_t n,
                         bool skip_special, struct hzp_textbuf *out)
{
    struct hzp_detokenizer detok;
    hzp_detokenizer_init(&detok, tok, skip_special);
    for (size_t i = 0; i < n; i++)
        HZP_TRY(hzp_detokenizer_feed(&detok, ids[i], out));
    return hzp_detokenizer_flush(&detok, out);
}
