/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve complete MODEL "PROMPT": streams a completion to the terminal, without a server.  The
 * prompt - is read from standard input, to its end. */
#include "api/cli/commands.h"
#include "api/http/routes/completion.h"

#include <signal.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    interrupted = 1;
}

enum { PROMPT_BYTES = 64 << 20 };

/* Reads standard input to its end; the caller frees *ret.  One newline at the end is the terminal's
 * or echo's, and not part of the prompt. */
static int read_input(char **ret, struct hzp_err_text *reterr)
{
    size_t bytes = 0, room = 1 << 16;
    char *text = hzp_xmalloc(room);
    for (;;) {
        ssize_t n = read(STDIN_FILENO, text + bytes, room - bytes - 1);
        if (n < 0 && errno == EINTR && !interrupted)
            continue;
        if (n <= 0) {
            text[bytes] = 0;
            *ret = text;
            if (n < 0)
                return hzp_fail(reterr, HZP_EIO, "standard input: %s", strerror(errno));
            break;
        }
        bytes += (size_t)n;
        if (bytes > PROMPT_BYTES)
            break;
        if (room - bytes < 2)
            text = hzp_xrealloc(text, room *= 2);
    }
    *ret = text;
    if (bytes > PROMPT_BYTES)
        return hzp_fail_param(reterr, HZP_EINVAL, "PROMPT",
                              "standard input: a prompt has at most %d bytes", PROMPT_BYTES);
    if (memchr(text, 0, bytes))
        return hzp_fail_param(reterr, HZP_EINVAL, "PROMPT",
                              "standard input: a prompt has no NUL byte");
    if (bytes && text[bytes - 1] == '\n')
        text[bytes - 1] = 0;
    return HZP_OK;
}

static int fill_params(const struct hzp_options *options, const char *prompt,
                       const struct hzp_engine *engine, struct hzp_completion_params *params,
                       struct hzp_err_text *reterr)
{
    const struct hzp_complete_settings *o = &options->complete;
    hzp_completion_defaults(params);
    params->n = (int32_t)o->choices;
    params->min_tokens = (int32_t)HZP_MIN(o->min_tokens, o->max_tokens);
    params->ignore_eos = o->ignore_eos != 0;
    params->echo = o->echo != 0;
    params->add_special = o->raw == 0;
    struct hzp_sampling *s = &params->sampling;
    s->temperature = (float)o->temperature;
    s->top_p = (float)o->top_p;
    s->min_p = (float)o->min_p;
    s->repetition = (float)o->repetition;
    s->presence = (float)o->presence;
    s->frequency = (float)o->frequency;
    s->top_k = (int32_t)o->top_k;
    if (o->seed >= 0)
        s->seed = (uint64_t)o->seed;
    for (int i = 0; i < o->stop.count; i++) {
        params->stop[params->stops] = strdup(o->stop.item[i]);
        params->stop_bytes[params->stops++] = strlen(o->stop.item[i]);
    }
    /* --max-tokens is limited to the room left in the context */
    params->max_tokens = 0;
    HZP_TRY(hzp_completion_add_text(params, engine, prompt, strlen(prompt), reterr));
    int64_t room = engine->parts.plan.positions - (int64_t)params->prompt[0].n;
    params->max_tokens = (int32_t)HZP_MIN(o->max_tokens, room);
    return HZP_OK;
}

static void print_new(struct hzp_choice *choice)
{
    if (choice->text.bytes > choice->sent_bytes)
        fwrite(choice->text.data + choice->sent_bytes, 1, choice->text.bytes - choice->sent_bytes,
               stdout);
    choice->sent_bytes = choice->text.bytes;
    fflush(stdout);
}

/* Streams the choices one after another, in order. */
static int stream(struct hzp_completion *c, const char *prompt)
{
    int status = 0;
    for (int32_t i = 0; i < c->choices; i++) {
        struct hzp_choice *choice = &c->choice[i];
        if (c->choices > 1)
            printf("%s[%d] ", i ? "\n" : "", i);
        if (c->params.echo)
            fputs(prompt, stdout);
        for (;;) {
            hzp_completion_pump(c, INT32_MAX);
            print_new(choice);
            if (choice->finish != HZP_FINISH_NONE || interrupted)
                break;
            hzp_completion_wait(c, 100000000ull);
        }
        if (choice->finish == HZP_FINISH_FAILED && !interrupted)
            status = 1;
    }
    printf("\n");
    return status;
}

static int complete(const struct hzp_options *options, const char *prompt)
{
    struct hzp_engine *engine = NULL;
    /* Memory for this completion only, not for a server. */
    struct hzp_engine_settings own = options->engine;
    own.no_train = 1;
    own.serving.running_max = HZP_MIN(own.serving.running_max, options->complete.choices);
    struct hzp_engine_config config = {.settings = &own, .quiet = true};
    struct hzp_completion_params params = {0};
    struct hzp_completion *c = NULL;
    struct hzp_err_text err = {0};
    int r = hzp_engine_start(&config, &engine, &err), status;
    if (r == HZP_OK)
        r = fill_params(options, prompt, engine, &params, &err);
    if (r == HZP_OK)
        r = hzp_completion_make(engine, &params, NULL, &c, &err);
    if (r == HZP_OK)
        r = hzp_completion_submit(c, &err);
    status = r == HZP_OK ? stream(c, prompt) : hzp_command_failed(r, &err);
    hzp_completion_end(c);
    hzp_completion_params_fini(&params);
    if (hzp_engine_finish(engine) < 0)
        status = 1;
    return interrupted ? 130 : status;
}

int hzp_cmd_complete(const struct hzp_options *options)
{
    struct sigaction action = {.sa_handler = on_interrupt}; /* an interrupt ends a read */
    struct hzp_err_text err = {0};
    char *input = NULL;
    const char *prompt = options->words ? options->word[options->words - 1] : NULL;
    bool reads = prompt && !strcmp(prompt, "-");
    if (options->words != 2 && !(reads && options->engine.model.dir))
        return hzp_command_usage("complete MODEL \"PROMPT\"");
    sigaction(SIGINT, &action, NULL);
    int r = reads ? read_input(&input, &err) : HZP_OK;
    int status = r < 0 ? hzp_command_failed(r, &err) : 0;
    if (r == HZP_OK)
        status = interrupted ? 130 : complete(options, reads ? input : prompt);
    free(input);
    return status;
}
