/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/stop.h"

/* One string and how much of it the text ends with (Knuth, Morris, Pratt). */
struct hzp_stop_string {
    char *text;
    uint16_t *back; /* back[k]: the longest border of the first k bytes */
    int bytes, matched;
};

static void prepare(struct hzp_stop_string *string, const char *text, size_t bytes)
{
    string->text = hzp_xmalloc(bytes);
    string->back = hzp_xcalloc(bytes + 1, sizeof(*string->back));
    string->bytes = (int)bytes;
    memcpy(string->text, text, bytes);
    for (int k = 1, border = 0; k < string->bytes; k++) {
        while (border > 0 && text[k] != text[border])
            border = string->back[border];
        border += text[k] == text[border];
        string->back[k + 1] = (uint16_t)border;
    }
}

int hzp_stop_init(struct hzp_stop *stop, const char *const *strings, const size_t *bytes, int n,
                  bool include, struct hzp_err_text *reterr)
{
    *stop = (struct hzp_stop){.include = include, .matched = -1};
    if (n > HZP_STOP_MAX)
        return hzp_fail_param(reterr, HZP_EINVAL, "stop", "%d stop strings, more than %d", n,
                              HZP_STOP_MAX);
    for (int i = 0; i < n; i++)
        if (bytes[i] == 0 || bytes[i] > HZP_STOP_BYTES_MAX)
            return hzp_wrong(reterr, "stop", "string %d has %zu bytes, not 1 to %d", i, bytes[i],
                             HZP_STOP_BYTES_MAX);
    if (n > 0)
        stop->strings = hzp_xcalloc((size_t)n, sizeof(*stop->strings));
    stop->n = n;
    for (int i = 0; i < n; i++)
        prepare(&stop->strings[i], strings[i], bytes[i]);
    return HZP_OK;
}

void hzp_stop_fini(struct hzp_stop *stop)
{
    for (int i = 0; i < stop->n; i++) {
        free(stop->strings[i].text);
        free(stop->strings[i].back);
    }
    free(stop->strings);
    hzp_textbuf_fini(&stop->held);
    *stop = (struct hzp_stop){.matched = -1};
}

/* One more byte: whether a string is complete; *longest gets the bytes of it or of the longest
 * beginning that the text ends with. */
static bool step(struct hzp_stop *stop, char byte, int *longest)
{
    int found = -1;
    *longest = 0;
    for (int i = 0; i < stop->n; i++) {
        struct hzp_stop_string *string = &stop->strings[i];
        int k = string->matched;
        while (k > 0 && string->text[k] != byte)
            k = string->back[k];
        k += string->text[k] == byte;
        string->matched = k;
        if (k == string->bytes && (found < 0 || k > stop->strings[found].bytes))
            found = i;
        *longest = HZP_MAX(*longest, k);
    }
    if (found < 0)
        return false;
    stop->matched = found;
    *longest = stop->strings[found].bytes;
    return true;
}

int hzp_stop_feed(struct hzp_stop *stop, const char *text, size_t bytes, struct hzp_textbuf *out)
{
    if (stop->matched >= 0)
        return 1;
    if (stop->n == 0) {
        HZP_TRY(hzp_textbuf_append(out, text, bytes));
        return 0;
    }
    int longest = (int)stop->held.bytes;
    bool ended = false;
    size_t at = 0;
    while (at < bytes && !ended)
        ended = step(stop, text[at++], &longest);
    HZP_TRY(hzp_textbuf_append(&stop->held, text, at));
    size_t ready = stop->held.bytes - (size_t)longest;
    if (ended && stop->include)
        ready = stop->held.bytes;
    HZP_TRY(hzp_textbuf_append(out, stop->held.data, ready));
    stop->held.bytes -= ready;
    if (ended)
        stop->held.bytes = 0;
    else if (ready > 0)
        memmove(stop->held.data, stop->held.data + ready, stop->held.bytes);
    return ended;
}

int hzp_stop_pass(struct hzp_stop *stop, const char *text, size_t bytes, struct hzp_textbuf *out)
{
    if (stop->matched >= 0)
        return HZP_OK;
    HZP_TRY(hzp_stop_flush(stop, out));
    return hzp_textbuf_append(out, text, bytes);
}

int hzp_stop_flush(struct hzp_stop *stop, struct hzp_textbuf *out)
{
    HZP_TRY(hzp_textbuf_append(out, stop->held.data, stop->held.bytes));
    stop->held.bytes = 0;
    for (int i = 0; i < stop->n; i++)
        stop->strings[i].matched = 0;
    return HZP_OK;
}
