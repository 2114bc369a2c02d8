/* SPDX-License-Identifier: Apache-2.0 */
#include "base/chrome.h"

static void next(struct hzp_chrome *c)
{
    if (c->any)
        fputs(",\n", c->out);
    c->any = true;
}

void hzp_chrome_begin(struct hzp_chrome *c, FILE *out)
{
    *c = (struct hzp_chrome){.out = out};
    fputs("[\n", out);
}

void hzp_chrome_end(struct hzp_chrome *c)
{
    fputs("\n]\n", c->out);
}

static void name(struct hzp_chrome *c, const char *what, int pid, int tid, const char *text)
{
    next(c);
    fprintf(c->out,
            "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", what,
            pid, tid, text);
}

void hzp_chrome_process(struct hzp_chrome *c, int pid, const char *text)
{
    name(c, "process_name", pid, 0, text);
}

void hzp_chrome_thread(struct hzp_chrome *c, int pid, int tid, const char *text)
{
    name(c, "thread_name", pid, tid, text);
}

static void event(struct hzp_chrome *c, const struct hzp_chrome_span *s, char phase, double at_us)
{
    next(c);
    fprintf(c->out, "{\"name\":\"%s\",\"ph\":\"%c\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f", s->name,
            phase, s->pid, s->tid, at_us);
    if (s->category)
        fprintf(c->out, ",\"cat\":\"%s\"", s->category);
    if (phase == 'X')
        fprintf(c->out, ",\"dur\":%.3f", s->length_us);
    else
        fprintf(c->out, ",\"id\":\"%d.%d.%llu\"", s->pid, s->tid, (unsigned long long)s->id);
    if (s->args && phase != 'e')
        fprintf(c->out, ",\"args\":{%s}", s->args);
    putc('}', c->out);
}

void hzp_chrome_span(struct hzp_chrome *c, const struct hzp_chrome_span *span)
{
    event(c, span, span->overlaps ? 'b' : 'X', span->begin_us);
    if (span->overlaps)
        event(c, span, 'e', span->begin_us + span->length_us);
}

void hzp_chrome_add(struct hzp_chrome *c, const char *events, size_t size)
{
    if (!size)
        return;
    next(c);
    fwrite(events, 1, size, c->out);
}
