/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/chat.h"

#include "base/file.h"
#include "base/json_file.h"
#include "text/chat/chat_form.h"

enum { FILE_MAX = 32 << 20, TEMPLATE_MAX = 1 << 20 };

struct hzp_chat {
    struct hzp_jinja *plain, *with_tools; /* with_tools NULL: the same */
    json_t *special;                      /* {"bos_token": "<s>", ...} */
    char *source, *tools_source;          /* texts of the two, as far as they are there */
    struct hzp_chat_form form;
};

/* ---- files ---- */

/* The object in dir/name; *ret NULL: there is no such file. */
static int read_object(const char *dir, const char *name, json_t **ret, struct hzp_err_text *reterr)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    *ret = NULL;
    int r = hzp_json_read(path, FILE_MAX, 0, ret, reterr);
    return r == HZP_ENOENT ? HZP_OK : r;
}

/* ---- opening ---- */

/* Compiles a template into the chat. */
static int add_template(struct hzp_chat *chat, const char *name, const char *source, size_t bytes,
                        bool tools, struct hzp_err_text *reterr)
{
    struct hzp_jinja **at = tools ? &chat->with_tools : &chat->plain;
    if (*at)
        return HZP_OK;
    HZP_TRY(hzp_jinja_compile(name, source, bytes, at, reterr));
    char **copy = tools ? &chat->tools_source : &chat->source;
    *copy = hzp_xcalloc(1, bytes + 1);
    memcpy(*copy, source, bytes);
    return HZP_OK;
}

/* chat_template of a configuration: a string, or a list of {"name", "template"}. */
static int add_from(struct hzp_chat *chat, const char *dir, const char *name, const json_t *config,
                    struct hzp_err_text *reterr)
{
    char path[4096];
    const json_t *found = json_object_get(config, "chat_template"), *each;
    size_t i;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (json_is_string(found))
        return add_template(chat, path, json_string_value(found), json_string_length(found), false,
                            reterr);
    if (found && !json_is_null(found) && !json_is_array(found))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: chat_template is neither a string nor a list",
                        path);
    json_array_foreach(found, i, each)
    {
        const char *of = json_string_value(json_object_get(each, "name"));
        const json_t *source = json_object_get(each, "template");
        bool tools = of && !strcmp(of, "tool_use");
        if (of && json_is_string(source) && (tools || !strcmp(of, "default")))
            HZP_TRY(add_template(chat, path, json_string_value(source), json_string_length(source),
                                 tools, reterr));
    }
    return HZP_OK;
}

static int add_file(struct hzp_chat *chat, const char *path, struct hzp_err_text *reterr)
{
    HZP_FREED char *text = NULL;
    size_t bytes;
    HZP_TRY(hzp_file_read(path, TEMPLATE_MAX, &text, &bytes, reterr));
    return add_template(chat, path, text, bytes, false, reterr);
}

static int find_template(struct hzp_chat *chat, const char *dir, const char *file,
                         const json_t *config, struct hzp_err_text *reterr)
{
    char path[4096];
    json_t *own;
    if (file)
        return add_file(chat, file, reterr);
    snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
    int r = add_file(chat, path, reterr);
    if (r != HZP_ENOENT)
        return r;
    HZP_TRY(read_object(dir, "chat_template.json", &own, reterr));
    r = add_from(chat, dir, "chat_template.json", own, reterr);
    json_decref(own);
    HZP_TRY(r);
    return add_from(chat, dir, "tokenizer_config.json", config, reterr);
}

static void add_special(json_t *special, const json_t *from)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)from, key, value)
    {
        size_t n = strlen(key);
        const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (n > 6 && !strcmp(key + n - 6, "_token") && json_is_string(text) &&
            !json_object_get(special, key))
            json_object_set(special, key, (json_t *)text);
    }
}

int hzp_chat_open(const char *model_dir, const char *file, struct hzp_chat **ret,
                  struct hzp_err_text *reterr)
{
    struct hzp_chat *chat;
    json_t *config = NULL, *map = NULL;
    int r;
    *ret = NULL;
    if (file && !strcmp(file, "none"))
        return HZP_OK;
    chat = hzp_xcalloc(1, sizeof(*chat));
    HZP_TRY_GOTO(read_object(model_dir, "tokenizer_config.json", &config, reterr));
    HZP_TRY_GOTO(read_object(model_dir, "special_tokens_map.json", &map, reterr));
    HZP_TRY_GOTO(find_template(chat, model_dir, file, config, reterr));
    if (!chat->plain) {
        chat->plain = chat->with_tools;
        chat->with_tools = NULL;
        chat->source = chat->tools_source;
        chat->tools_source = NULL;
    }
    chat->special = json_object();
    add_special(chat->special, config);
    add_special(chat->special, map);
    if (chat->plain)
        hzp_chat_probe(chat, &chat->form);
out:
    json_decref(config);
    json_decref(map);
    if (r < 0 || !chat->plain)
        hzp_chat_close(chat);
    else
        *ret = chat;
    return r;
}

void hzp_chat_close(struct hzp_chat *chat)
{
    if (!chat)
        return;
    hzp_jinja_free(chat->plain);
    hzp_jinja_free(chat->with_tools);
    json_decref(chat->special);
    free(chat->source);
    free(chat->tools_source);
    free(chat);
}

const struct hzp_chat_form *hzp_chat_form(const struct hzp_chat *chat)
{
    return &chat->form;
}

const char *hzp_chat_source(const struct hzp_chat *chat)
{
    return chat->source ? chat->source : "";
}

static const struct hzp_jinja *template_for(const struct hzp_chat *chat, bool tools)
{
    return tools && chat->with_tools ? chat->with_tools : chat->plain;
}

bool hzp_chat_uses(const struct hzp_chat *chat, bool tools, const char *variable)
{
    return hzp_jinja_uses(template_for(chat, tools), variable);
}

bool hzp_chat_mentions(const struct hzp_chat *chat, const char *word)
{
    const char *const source[] = {chat->source, chat->tools_source};
    size_t n = strlen(word);
    for (int i = 0; i < HZP_COUNT(source); i++)
        for (const char *at = source[i]; at && n && (at = strstr(at, word)) != NULL; at += n)
            if (at > source[i] && (at[-1] == '\'' || at[-1] == '"') && at[n] == at[-1])
                return true;
    return false;
}

/* ---- rendering ---- */

static json_t *variables(const struct hzp_chat *chat, const struct hzp_chat_request *request)
{
    json_t *vars = json_object();
    json_object_set(vars, "messages", (json_t *)request->messages);
    json_object_set(vars, "tools", request->tools ? (json_t *)request->tools : json_null());
    json_object_set(vars, "documents",
                    request->documents ? (json_t *)request->documents : json_null());
    json_object_set_new(vars, "add_generation_prompt", json_boolean(request->generation_prompt));
    json_object_update_missing(vars, chat->special);
    if (request->more)
        json_object_update(vars, (json_t *)request->more);
    return vars;
}

/* Stands behind the last message's content while that is rendered, so that its end is found, also
 * where the same words come again later.  The blank shows whether the template trims. */
#define END_MARK "CONTINUE_FINAL_MESSAGE_TAG"

static json_t *marked_text(const json_t *text)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf all = {0};
    json_t *marked = NULL;
    if (hzp_textbuf_append(&all, json_string_value(text), json_string_length(text)) == HZP_OK &&
        hzp_textbuf_append(&all, END_MARK " ", strlen(END_MARK) + 1) == HZP_OK)
        marked = json_stringn(all.data, all.bytes);
    return marked;
}

/* A copy of the messages with the mark behind the last text; *ret_text: that text, owned by the
 * caller; NULL: there is none. */
static json_t *marked_messages(const json_t *messages, json_t **ret_text)
{
    size_t last = json_array_size(messages) - 1;
    json_t *copy = json_copy((json_t *)messages);
    json_t *message = hzp_json_copy(json_array_get(messages, last)), *holder = message;
    json_t *content = json_object_get(message, "content");
    const char *key = "content";
    if (json_is_array(content)) {
        holder = json_array_get(content, json_array_size(content) - 1);
        content = json_object_get(holder, key = "text");
    }
    *ret_text = json_is_string(content) ? json_incref(content) : NULL;
    if (*ret_text)
        json_object_set_new(holder, key, marked_text(content));
    json_array_set_new(copy, last, message);
    return copy;
}

static bool blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cuts the text where the mark is.  Blanks at the end of the content are kept if the template keeps
 * them. */
static int cut_at_mark(const json_t *content, struct hzp_textbuf *text, struct hzp_err_text *reterr)
{
    static const size_t mark = sizeof(END_MARK) - 1;
    const char *said = json_string_value(content);
    size_t n = json_string_length(content), from = 0, at = text->bytes;
    while (from < n && blank(said[from]))
        from++;
    bool found = false;
    while (!found && at-- > 0)
        found = text->bytes - at >= mark && !memcmp(text->data + at, END_MARK, mark);
    if (!found || at < n - from || memcmp(text->data + at - (n - from), said + from, n - from) != 0)
        return hzp_wrong(reterr, "continue_final_message",
                         ": the template does not show the last message's content as it is");
    bool trims = at + mark >= text->bytes || text->data[at + mark] != ' ';
    while (trims && n > from && blank(said[n - 1]))
        n--, at--;
    text->bytes = at;
    return HZP_OK;
}

int hzp_chat_render(const struct hzp_chat *chat, const struct hzp_chat_request *request,
                    struct hzp_jinja_output *ret, struct hzp_err_text *reterr)
{
    struct hzp_chat_request marked = *request;
    json_auto_t *messages = NULL, *content = NULL;
    if (request->continues) {
        marked.messages = messages = marked_messages(request->messages, &content);
        if (!content)
            return hzp_wrong(reterr, "continue_final_message", ": the last message has no content");
    }
    json_auto_t *vars = variables(chat, &marked);
    int r = hzp_jinja_render(template_for(chat, request->tools != NULL), vars, &hzp_jinja_limits,
                             request->now, ret, reterr);
    if (r == HZP_OK && request->continues)
        r = cut_at_mark(content, &ret->text, reterr);
    else if (r == HZP_EINVAL && reterr)
        snprintf(reterr->param, sizeof(reterr->param), "messages");
    return r;
}
