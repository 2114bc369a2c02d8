/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve chat [URL|MODEL]: a conversation on the terminal, with a running server or with one that
 * this command starts for the model and ends with itself. */
#include "api/client/http_client.h"
#include "api/cli/commands.h"
#include "api/cli/line.h"

#include <signal.h>
#include <sys/wait.h>

enum { PATIENCE_S = 600 };

struct chat {
    const struct hzp_chat_settings *settings;
    json_t *sampling; /* fields of each request */
    struct hzp_http_host server;
    json_t *messages;
    int64_t version; /* that made the last answer; -1: none */
    json_t *taught;  /* the first example of each lesson that was taught here and not taken back */
    pid_t child;     /* the server that this command started; 0: none */
    FILE *from_child;
};

/* The answer that arrives. */
struct answer {
    struct hzp_textbuf text;
    int64_t version;
    char error[300];
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    interrupted = 1;
}

/* ---- the server ---- */

/* Child: becomes a server. */
static void become_server(const struct hzp_options *options, int out)
{
    const char *argv[24];
    int n = 0;
    argv[n++] = "hzpserve";
    argv[n++] = "serve";
    if (options->words)
        argv[n++] = options->word[0];
    argv[n++] = "--port";
    argv[n++] = "0";
    argv[n++] = "--log-level";
    argv[n++] = "error";
    if (options->engine.learning.state_dir) {
        argv[n++] = "--state";
        argv[n++] = options->engine.learning.state_dir;
    }
    if (options->engine.model.chat_template) {
        argv[n++] = "--chat-template";
        argv[n++] = options->engine.model.chat_template;
    }
    argv[n] = NULL;
    setpgid(0, 0); /* an interrupt stops an answer, not the server */
    unsetenv("HZP_API_KEY");
    dup2(out, STDOUT_FILENO);
    execv("/proc/self/exe", (char *const *)argv);
    _exit(127);
}

/* Starts a server for the model and waits until it prints its address. */
static int start_server(struct chat *chat, const struct hzp_options *options, char *url,
                        size_t url_size, struct hzp_err_text *reterr)
{
    int ends[2];
    char line[1024];
    if (pipe(ends) < 0)
        return hzp_fail(reterr, HZP_EIO, "pipe: %s", strerror(errno));
    chat->child = fork();
    if (chat->child == 0)
        become_server(options, ends[1]);
    close(ends[1]);
    chat->from_child = chat->child > 0 ? fdopen(ends[0], "r") : NULL;
    if (!chat->from_child) {
        close(ends[0]);
        return hzp_fail(reterr, HZP_EIO, "no server could be started: %s", strerror(errno));
    }
    fprintf(stderr, "starting a server...\n");
    while (fgets(line, sizeof(line), chat->from_child)) {
        char *at = strstr(line, " at http://");
        if (!at)
            continue;
        snprintf(url, url_size, "%.*s", (int)strcspn(at + 4, " \r\n"), at + 4);
        return HZP_OK;
    }
    return hzp_fail(reterr, HZP_EIO, "the server did not start");
}

static void end_server(struct chat *chat)
{
    char line[1024];
    if (chat->child > 0) {
        kill(chat->child, SIGTERM);
        while (chat->from_child && fgets(line, sizeof(line), chat->from_child))
            continue;
        while (waitpid(chat->child, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (chat->from_child)
        fclose(chat->from_child);
}

/* ---- an answer ---- */

static int take_text(struct answer *a, const char *text, size_t n)
{
    HZP_TRY(hzp_textbuf_append(&a->text, text, n));
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return HZP_OK;
}

static void take_error(struct answer *a, const json_t *json)
{
    const char *text = hzp_http_error(json);
    if (text)
        snprintf(a->error, sizeof(a->error), "%s", text);
}

static int on_event(void *ctx, const char *data, size_t n)
{
    struct answer *a = ctx;
    json_auto_t *json = hzp_json_load(data, n, 0, NULL, NULL);
    const json_t *choice = json_array_get(json_object_get(json, "choices"), 0);
    const json_t *version = json_object_get(json_object_get(json, "hzpserve"), "weights_version");
    const json_t *content = json_object_get(json_object_get(choice, "delta"), "content");
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content);
    int r = HZP_OK;
    /* models without special tokens begin with a blank */
    bool blank = text && !a->text.bytes && *text == ' ';
    if (bytes > blank)
        r = take_text(a, text + blank, bytes - blank);
    if (json_is_integer(version))
        a->version = json_integer_value(version);
    take_error(a, json);
    return r;
}

/* Asks for an answer to the messages and adds it to them. */
static void answer(struct chat *chat)
{
    struct answer a = {.version = -1};
    HZP_ENDED(hzp_http_stream_fini) struct hzp_http_stream in;
    struct hzp_err_text err = {.text = ""};
    json_auto_t *body = json_pack("{s:O, s:b}", "messages", chat->messages, "stream", 1);
    json_object_update(body, chat->sampling);
    if (chat->settings->max_tokens)
        json_object_set_new(body, "max_tokens",
                            json_integer((json_int_t)chat->settings->max_tokens));
    HZP_FREED char *text = json_dumps(body, JSON_COMPACT);
    const struct hzp_http_call call = {.method = "POST",
                                       .route = "/v1/chat/completions",
                                       .body = text,
                                       .patience_s = PATIENCE_S,
                                       .stop = &interrupted};
    interrupted = 0;
    hzp_http_stream_init(&in, on_event, &a);
    int r = text ? hzp_http_call(&chat->server, &call, &in, &err) : HZP_ENOMEM;
    if (r == HZP_OK && in.status != 200 && in.bytes) {
        json_auto_t *json = hzp_json_load(in.body, in.bytes, 0, NULL, NULL);
        take_error(&a, json);
    }
    printf("%s\n", r == HZP_ECANCELED ? " [interrupted]" : "");
    if (a.error[0] || (r < 0 && r != HZP_ECANCELED))
        fprintf(stderr, "%s\n", a.error[0] ? a.error : err.text);
    if (a.text.bytes) {
        json_array_append_new(chat->messages, json_pack("{s:s, s:s%}", "role", "assistant",
                                                        "content", a.text.data, a.text.bytes));
        chat->version = a.version;
    }
    hzp_textbuf_fini(&a.text);
}

/* ---- commands ---- */

/* A route's answer; takes over body.  NULL: an error was printed. */
static json_t *ask(struct chat *chat, const char *method, const char *route, json_t *body)
{
    struct hzp_err_text err = {.text = ""};
    json_t *json = hzp_http_ask(&chat->server, method, route, body, PATIENCE_S, &err);
    if (!json)
        fprintf(stderr, "%s\n", err.text);
    return json;
}

static const char *role_of(const struct chat *chat, size_t back)
{
    size_t n = json_array_size(chat->messages);
    const char *role = n > back ? json_string_value(json_object_get(
                                      json_array_get(chat->messages, n - 1 - back), "role"))
                                : NULL;
    return role ? role : "";
}

static void drop_last(struct chat *chat)
{
    json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
}

/* Removes the last question and its answer. */
static void back(struct chat *chat)
{
    if (!strcmp(role_of(chat, 0), "assistant"))
        drop_last(chat);
    if (!strcmp(role_of(chat, 0), "user")) {
        drop_last(chat);
        printf("taken back\n");
    } else {
        printf("there is nothing to take back\n");
    }
}

/* The last question as a conversation of its own, behind the system message if there is one. */
static json_t *fresh(const struct chat *chat, bool answered)
{
    json_t *messages = json_array(), *first = json_array_get(chat->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    if (role && !strcmp(role, "system"))
        json_array_append(messages, first);
    json_array_append(
        messages, json_array_get(chat->messages, json_array_size(chat->messages) - 1 - answered));
    return messages;
}

/* Prints the likeliest answer to the messages. */
static void show_answer(struct chat *chat, const char *when, json_t *messages)
{
    json_t *body = json_pack("{s:O, s:i}", "messages", messages, "temperature", 0);
    if (chat->settings->max_tokens)
        json_object_set_new(body, "max_tokens",
                            json_integer((json_int_t)chat->settings->max_tokens));
    json_auto_t *answer = ask(chat, "POST", "/v1/chat/completions", body);
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    if (answer)
        printf("%s%s\n", when, text ? text + strspn(text, " ") : "");
    fflush(stdout);
}

/* How many other answers the lesson has changed, and one of them. */
static void show_effect(const json_t *effect)
{
    const json_t *sample = json_array_get(json_object_get(effect, "samples"), 0);
    long long others = (long long)json_integer_value(json_object_get(effect, "others"));
    if (others)
        printf("changed: %lld of %lld other answers\n",
               (long long)json_integer_value(json_object_get(effect, "changed")), others);
    if (sample)
        printf("   such as: %s\n   before: %s\n   after:  %s\n",
               json_string_value(json_object_get(sample, "prompt")),
               json_string_value(json_object_get(sample, "before")),
               json_string_value(json_object_get(sample, "after")));
}

/* Teaches an answer to the last question: the given one, else the one that the model gave.  What
 * was said before that is no part of the lesson: asked anew, the model answers so. */
static void teach(struct chat *chat, const char *text)
{
    bool answered = !strcmp(role_of(chat, 0), "assistant");
    if (strcmp(role_of(chat, answered), "user") || (!*text && !answered)) {
        printf("ask something first, then /teach the answer\n");
        return;
    }
    json_t *question = fresh(chat, answered), *lesson = json_copy(question);
    if (*text) {
        if (answered)
            drop_last(chat);
        json_array_append_new(chat->messages,
                              json_pack("{s:s, s:s}", "role", "assistant", "content", text));
    }
    json_array_append(lesson, json_array_get(chat->messages, json_array_size(chat->messages) - 1));
    show_answer(chat, "before: ", question);
    json_auto_t *done = ask(chat, "POST", "/v1/fine_tuning/examples?wait=served&timeout=300",
                            json_pack("{s:o}", "messages", lesson));
    bool served = json_is_true(json_object_get(done, "served"));
    if (done)
        printf("%s: version %lld\n", served ? "learned" : "not learned yet",
               (long long)json_integer_value(json_object_get(done, "weights_version")));
    if (served)
        show_answer(chat, "after:  ", question);
    show_effect(json_object_get(done, "effect"));
    if (done)
        json_array_append(chat->taught, json_object_get(done, "first"));
    json_decref(question);
}

/* The number of the lesson that begins with the example; 0: it is not in the list, or was taken
 * back. */
static json_int_t lesson_of(const json_t *list, json_int_t first)
{
    size_t i;
    const json_t *lesson;
    json_array_foreach(json_object_get(list, "data"), i, lesson)
    {
        const char *state = json_string_value(json_object_get(lesson, "state"));
        if (json_integer_value(json_object_get(lesson, "first")) == first && state &&
            (!strcmp(state, "learned") || !strcmp(state, "waiting")))
            return json_integer_value(json_object_get(lesson, "id"));
    }
    return 0;
}

/* The newest lesson that was taught in this chat, and no one else's, which is not taken back; 0:
 * none; -1: the server did not say. */
static json_int_t newest_of_chat(struct chat *chat)
{
    size_t n = json_array_size(chat->taught);
    json_auto_t *list = n ? ask(chat, "GET", "/v1/lessons?limit=100", NULL) : NULL;
    json_int_t lesson = n && !list ? -1 : 0;
    for (; !lesson && n > 0; n--) {
        lesson = lesson_of(list, json_integer_value(json_array_get(chat->taught, n - 1)));
        if (!lesson)
            json_array_remove(chat->taught, n - 1);
    }
    return lesson;
}

/* Takes back what the word names, as hzpserve undo does; "": what was taught last in this chat. */
static void undo(struct chat *chat, const char *word)
{
    json_int_t lesson = *word ? 0 : newest_of_chat(chat);
    if (!*word && !lesson) {
        printf("nothing was taught in this chat; hzpserve lessons lists what was, /undo LESSON "
               "takes it back\n");
        return;
    }
    json_auto_t *done =
        lesson < 0 ? NULL
                   : ask(chat, "POST", "/v1/undo?timeout=300",
                         *word ? hzp_undo_body(word) : json_pack("{s:I}", "lesson", lesson));
    if (!done)
        return;
    if (lesson)
        printf("lesson %lld is taken back: ", (long long)lesson);
    printf("version %lld serves%s (what was said here stays in this conversation: /clear begins "
           "anew)\n",
           (long long)json_integer_value(json_object_get(done, "weights_version")),
           json_is_array(json_object_get(done, "learned_again"))
               ? ", and what else was taught is learned again"
               : "");
    if (!strcmp(role_of(chat, 0), "assistant")) {
        json_auto_t *question = fresh(chat, true);
        show_answer(chat, "now:    ", question);
    }
}

static void show_version(struct chat *chat)
{
    json_auto_t *weights = ask(chat, "GET", "/v1/weights?limit=1", NULL);
    if (weights)
        printf("version %lld serves, %lld updates behind\n",
               (long long)json_integer_value(json_object_get(weights, "serving")),
               (long long)json_integer_value(json_object_get(weights, "staleness")));
    if (chat->version >= 0)
        printf("the last answer is of version %lld\n", (long long)chat->version);
}

static void clear(struct chat *chat, const char *system)
{
    json_array_clear(chat->messages);
    if (system && *system)
        json_array_append_new(chat->messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", system));
}

static void again(struct chat *chat)
{
    if (!strcmp(role_of(chat, 0), "assistant"))
        drop_last(chat);
    if (!strcmp(role_of(chat, 0), "user"))
        answer(chat);
    else
        printf("there is no question to answer again\n");
}

/* True: it was a command. *ret_quit: the one that ends. */
static bool command(struct chat *chat, const char *line, bool *ret_quit)
{
    if (line[0] != '/')
        return false;
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    bool known = n == 5 && !memcmp(line, "/help", n);
    if (n == 6 && !memcmp(line, "/teach", n))
        teach(chat, rest);
    else if (n == 5 && !memcmp(line, "/undo", n))
        undo(chat, rest);
    else if (n == 5 && !memcmp(line, "/back", n))
        back(chat);
    else if (n == 8 && !memcmp(line, "/version", n))
        show_version(chat);
    else if (n == 6 && !memcmp(line, "/again", n))
        again(chat);
    else if (n == 6 && !memcmp(line, "/clear", n))
        clear(chat, chat->settings->system);
    else if (n == 7 && !memcmp(line, "/system", n))
        clear(chat, rest);
    else if ((n == 5 && !memcmp(line, "/quit", n)) || (n == 5 && !memcmp(line, "/exit", n)))
        *ret_quit = true;
    else
        printf("%s%.*s%s"
               "/teach [ANSWER]   learn ANSWER (or the answer given) to the last question;\n"
               "                  shows what the model answers to it before and after\n"
               "/undo [WHAT]      take back what was taught last in this chat, or a lesson by its\n"
               "                  number; or a version serves again: a name, vNUMBER, original\n"
               "/back             take back the last question and its answer\n"
               "/again            another answer to the last question\n"
               "/system [TEXT]    begin anew with this system message\n"
               "/clear            begin anew\n"
               "/version          which version of the weights serves\n"
               "/quit             end (also: end of input)\n",
               known ? "" : "there is no ", known ? 0 : (int)n, line, known ? "" : "\n");
    return true;
}

/* The temperature that was asked for, else what the model's generation_config.json says. */
static json_t *choose_sampling(struct chat *chat)
{
    static const char *const fields[] = {"temperature", "top_p", "top_k"};
    json_t *sampling = json_object();
    if (chat->settings->temperature >= 0) {
        json_object_set_new(sampling, "temperature", json_real(chat->settings->temperature));
        return sampling;
    }
    json_auto_t *models = ask(chat, "GET", "/v1/models", NULL);
    const json_t *config =
        json_object_get(json_array_get(json_object_get(models, "data"), 0), "generation_config");
    for (int i = 0; i < HZP_COUNT(fields); i++)
        if (json_is_number(json_object_get(config, fields[i])))
            json_object_set(sampling, fields[i], json_object_get(config, fields[i]));
    if (json_is_false(json_object_get(config, "do_sample")))
        json_object_set_new(sampling, "temperature", json_integer(0));
    return sampling;
}

static void talk(struct chat *chat)
{
    static const char *const words[] = {"/teach ",  "/undo ", "/back",    "/again",
                                        "/system ", "/clear", "/version", "/help",
                                        "/quit",    "/exit",  NULL};
    bool quit = false;
    char *line;
    hzp_line_begin(words);
    while (!quit && (line = hzp_line_read("> "))) {
        if (line[strspn(line, " \t")] && !command(chat, line, &quit)) {
            json_t *said = json_pack("{s:s, s:s}", "role", "user", "content", line);
            if (!said) {
                fprintf(stderr, "that is not valid UTF-8\n");
            } else {
                json_array_append_new(chat->messages, said);
                answer(chat);
            }
        }
        free(line);
    }
    hzp_line_end();
}

int hzp_cmd_chat(const struct hzp_options *options)
{
    struct chat chat = {.settings = &options->chat, .version = -1};
    struct hzp_err_text err = {.text = ""};
    const struct sigaction action = {.sa_handler = on_interrupt}; /* without SA_RESTART */
    char url[512];
    int r = HZP_OK;
    const char *word = options->words ? options->word[0] : "";
    sigaction(SIGINT, &action, NULL);
    if (hzp_http_is_url(word))
        snprintf(url, sizeof(url), "%s", word);
    else
        r = start_server(&chat, options, url, sizeof(url), &err);
    if (r == HZP_OK)
        r = hzp_http_connect(url, options->client.api_key, NULL, &chat.server, &err);
    if (r == HZP_OK) {
        chat.messages = json_array();
        chat.taught = json_array();
        chat.sampling = choose_sampling(&chat);
        clear(&chat, options->chat.system);
        fprintf(stderr, "%s at %s; /help lists commands\n", chat.server.model, url);
        talk(&chat);
    } else {
        fprintf(stderr, "hzpserve: %s\n", err.text);
    }
    end_server(&chat);
    json_decref(chat.messages);
    json_decref(chat.taught);
    json_decref(chat.sampling);
    return r < 0;
}
