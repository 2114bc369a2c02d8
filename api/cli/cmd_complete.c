/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve complete MODEL "PROMPT": streams a completion to the terminal, without a server. */
#include "api/cli/commands.h"
#include "api/http/completion.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    interrupted = 1;
}

static int fill_params(const struct hzp_options *options, const struct hzp_engine *engine,
                       struct hzp_completion_params *params, struct hzp_err_text *reterr)
{
    hzp_completion_defaults(params);
    params->n = (int32_t)options->choices;
    params->min_tokens = (int32_t)HZP_MIN(options->min_tokens, options->max_tokens);
    params->ignore_eos = options->ignore_eos != 0;
    params->echo = options->echo != 0;
    params->add_special = options->raw == 0;
    struct hzp_sampling *s = &params->sampling;
    s->temperature = (float)options->temperature;
    s->top_p = (float)options->top_p;
    s->min_p = (float)options->min_p;
    s->repetition = (float)options->repetition;
    s->presence = (float)options->presence;
    s->frequency = (float)options->frequency;
    s->top_k = (int32_t)options->top_k;
    if (options->sample_seed >= 0)
        s->seed = (uint64_t)options->sample_seed;
    for (int i = 0; i < options->stop.count; i++) {
        params->stop[params->stops] = strdup(options->stop.item[i]);
        params->stop_bytes[params->stops++] = strlen(options->stop.item[i]);
    }
    /* As many as the context has room for: on the terminal nobody counts. */
    const char *prompt = options->word[1];
    params->max_tokens = 0;
    HZP_TRY(hzp_completion_add_text(params, engine, prompt, strlen(prompt), reterr));
    int64_t room = engine->plan.positions - (int64_t)params->prompt[0].n;
    params->max_tokens = (int32_t)HZP_MIN(options->max_tokens, room);
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

/* One choice streams; several are printed one after another, each when its turn comes. */
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
            hzp_completion_pump(c);
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

int hzp_cmd_complete(const struct hzp_options *options)
{
    if (options->words != 2) {
        fprintf(stderr, "hzpserve: complete takes a model directory and a prompt\n");
        return 2;
    }
    signal(SIGINT, on_interrupt);
    struct hzp_engine *engine = NULL;
    struct hzp_options own = *options; /* memory for these answers, not for a server's */
    own.running_max = HZP_MIN(options->running_max, options->choices);
    struct hzp_engine_config config = {.options = &own, .quiet = true};
    struct hzp_completion_params params = {0};
    struct hzp_completion *c = NULL;
    struct hzp_err_text err = {0};
    int status = 1;
    int r = hzp_engine_start(&config, &engine, &err);
    if (r == HZP_OK)
        r = fill_params(options, engine, &params, &err);
    if (r == HZP_OK)
        r = hzp_completion_begin(engine, &params, &c, &err);
    if (r == HZP_OK)
        status = stream(c, options->word[1]);
    else
        fprintf(stderr, "hzpserve: %s\n", err.text);
    hzp_completion_end(c);
    hzp_completion_params_fini(&params);
    if (hzp_engine_finish(engine) < 0)
        status = 1;
    return interrupted ? 130 : status;
}
