/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chars/textbuf.h"

#include "base/err.h"
#include "base/utf8.h"

int hzp_text_grow(void *array, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return HZP_OK;
    size_t to = HZP_MAX(*cap, (size_t)32);
    while (to < need) {
        if (to > SIZE_MAX / 2 / size)
            return HZP_ENOMEM;
        to *= 2;
    }
    void *grown;
    memcpy(&grown, array, sizeof(grown));
    grown = realloc(grown, to * size);
    if (grown == NULL)
        return HZP_ENOMEM;
    memcpy(array, &grown, sizeof(grown));
    *cap = to;
    return HZP_OK;
}

int hzp_textbuf_append(struct hzp_textbuf *buf, const char *data, size_t bytes)
{
    if (bytes == 0)
        return HZP_OK;
    HZP_TRY(hzp_text_grow(&buf->data, &buf->cap, buf->bytes + bytes, 1));
    memcpy(buf->data + buf->bytes, data, bytes);
    buf->bytes += bytes;
    return HZP_OK;
}

void hzp_textbuf_fini(struct hzp_textbuf *buf)
{
    free(buf->data);
    *buf = (struct hzp_textbuf){0};
}

int hzp_tokens_append(struct hzp_tokens *tokens, const int32_t *ids, size_t n)
{
    if (n == 0)
        return HZP_OK;
    HZP_TRY(hzp_text_grow(&tokens->ids, &tokens->cap, tokens->n + n, sizeof(*ids)));
    memcpy(tokens->ids + tokens->n, ids, n * sizeof(*ids));
    tokens->n += n;
    return HZP_OK;
}

void hzp_tokens_fini(struct hzp_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct hzp_tokens){0};
}

json_t *hzp_text_json(const char *text, size_t bytes)
{
    size_t valid = hzp_utf8_valid(text, bytes);
    if (valid == bytes)
        return json_stringn(bytes ? text : "", bytes);
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf buf = {0};
    while (bytes) {
        hzp_textbuf_append(&buf, text, valid);
        text += valid;
        bytes -= valid;
        if (bytes) {
            hzp_textbuf_append(&buf, HZP_UTF8_REPLACEMENT, 3);
            text++;
            bytes--;
        }
        valid = hzp_utf8_valid(text, bytes);
    }
    return json_stringn(buf.data, buf.bytes);
}
