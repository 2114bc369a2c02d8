/* SPDX-License-Identifier: Apache-2.0 */
/* Renders conversations as a server does, for dev/check_templates.py: chat_render MODEL_DIR; each
 * line of standard input is an object {"template" (a file), "messages", "tools", "continues"}, each
 * line of output {"text"}, or {"param", "error"} of what was refused. */
#include "text/chat/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int render(const struct hzp_chat *chat, const json_t *in, struct hzp_jinja_output *out,
                  struct hzp_err_text *err)
{
    const json_t *messages = json_object_get(in, "messages"), *tools = json_object_get(in, "tools");
    bool continues = json_is_true(json_object_get(in, "continues"));
    json_t *copy;
    HZP_TRY(hzp_chat_messages(chat, messages, &copy, NULL, err));
    const struct hzp_chat_request request = {.messages = copy,
                                             .tools = json_array_size(tools) ? tools : NULL,
                                             .generation_prompt = !continues,
                                             .continues = continues,
                                             .now = 1767225600};
    int r = hzp_chat_render(chat, &request, out, err);
    if (r == HZP_OK)
        r = hzp_chat_check(chat, &request, messages, &out->text, err);
    json_decref(copy);
    return r;
}

static json_t *answer_to(const struct hzp_chat *chat, const json_t *in)
{
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    json_t *answer;
    if (render(chat, in, &out, &err) < 0)
        answer = json_pack("{s:s, s:o}", "param", err.param, "error",
                           json_stringn_nocheck(err.text, strlen(err.text)));
    else
        answer = json_pack("{s:o}", "text",
                           json_stringn(out.text.bytes ? out.text.data : "", out.text.bytes));
    hzp_jinja_output_fini(&out);
    return answer;
}

int main(int argc, char **argv)
{
    char *line = NULL, *path = NULL;
    size_t room = 0;
    ssize_t n;
    struct hzp_chat *chat = NULL;
    struct hzp_err_text err = {.text = ""};
    while (argc == 2 && (n = getline(&line, &room, stdin)) > 0) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        const char *file = json_string_value(json_object_get(in, "template"));
        if (file &&
            (!path || strcmp(file, path))) { /* requests with the same template are together */
            free(path);
            path = strdup(file);
            hzp_chat_close(chat);
            if (hzp_chat_open(argv[1], file, &chat, &err) < 0) {
                fprintf(stderr, "%s\n", err.text);
                return 1;
            }
        }
        json_t *answer = file ? answer_to(chat, in) : NULL;
        char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
        if (!text) {
            fprintf(stderr, "a line is not valid\n");
            return 1;
        }
        puts(text);
        free(text);
        json_decref(answer);
        json_decref(in);
    }
    free(path);
    free(line);
    hzp_chat_close(chat);
    return argc == 2 ? 0 : 2;
}
