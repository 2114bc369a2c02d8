/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/blocks.h"

static void close_block(struct hzp_answer *a, const struct hzp_block_writer *writer)
{
    struct hzp_block *block = &a->block;
    if (block->kind == HZP_BLOCK_NONE)
        return;
    writer->close(a);
    block->kind = HZP_BLOCK_NONE;
    block->index++;
}

static void open_block(struct hzp_answer *a, const struct hzp_block_writer *writer,
                       enum hzp_block_kind kind, const struct hzp_reply_call *call)
{
    struct hzp_block *block = &a->block;
    if (block->kind == kind && kind != HZP_BLOCK_CALL)
        return;
    close_block(a, writer);
    block->kind = kind;
    block->text.bytes = 0;
    json_decref(block->logprobs);
    block->logprobs = json_array();
    snprintf(block->call_id, sizeof(block->call_id), "%s", call ? call->id : "");
    snprintf(block->name, sizeof(block->name), "%s", call ? call->name : "");
    writer->open(a);
}

/* Appends the log-probabilities of the tokens that the part has and that no part before it had. */
static void add_logprobs(struct hzp_answer *a, const struct hzp_reply_part *part)
{
    const struct hzp_choice *choice = &a->c->choice[0];
    for (; a->logprob_token < choice->seen; a->logprob_token++) {
        int32_t n = a->logprob_token;
        size_t from = (size_t)choice->offset[n],
               to = (size_t)(n + 1 < choice->seen ? choice->offset[n + 1] : choice->codes);
        if (from >= part->code_to)
            return;
        if (to > part->code_from || from >= part->code_from)
            json_array_append_new(a->block.logprobs, hzp_chat_logprob_json(a->c, choice, n));
    }
}

static void add_text(struct hzp_answer *a, const struct hzp_block_writer *writer, const char *text,
                     const struct hzp_reply_part *part)
{
    size_t bytes = part->to - part->from, before = json_array_size(a->block.logprobs);
    if (!bytes)
        return;
    if (hzp_textbuf_append(&a->block.text, text, bytes) < 0) {
        hzp_completion_leave(a->c); /* out of memory: the stream ends without an end mark */
        return;
    }
    if (a->c->params.logprobs >= 0 && a->block.kind == HZP_BLOCK_TEXT)
        add_logprobs(a, part);
    json_auto_t *json = json_stringn_nocheck(text, bytes);
    writer->more(a, json, before);
}

void hzp_blocks_write(struct hzp_answer *a, const struct hzp_block_writer *writer)
{
    static const enum hzp_block_kind kinds[] = {
        [HZP_REPLY_IS_REASONING] = HZP_BLOCK_REASONING,
        [HZP_REPLY_IS_CONTENT] = HZP_BLOCK_TEXT,
        [HZP_REPLY_IS_CALL] = HZP_BLOCK_CALL,
    };
    const struct hzp_choice *choice = &a->c->choice[0];
    struct hzp_reply_part part;
    const char *text;
    bool first;
    hzp_choice_read_reply(choice);
    while (hzp_reply_next(choice->reply, &part, &text, &first)) {
        bool call = part.kind == HZP_REPLY_IS_CALL;
        if (first || !call)
            open_block(a, writer, kinds[part.kind], call ? &choice->reply->call[part.call] : NULL);
        add_text(a, writer, text, &part);
    }
    if (choice->finish == HZP_FINISH_NONE)
        return;
    if (!a->block.index &&
        a->block.kind == HZP_BLOCK_NONE) /* an answer without text has an item too */
        open_block(a, writer, HZP_BLOCK_TEXT, NULL);
    close_block(a, writer);
}

static void no_open(struct hzp_answer *a)
{
}

static void no_more(struct hzp_answer *a, json_t *text, size_t logprobs)
{
}

static void collect(struct hzp_answer *a)
{
    json_array_append_new(a->blocks, a->make_block(a));
}

void hzp_blocks_whole(struct hzp_answer *a, json_t *(*f)(const struct hzp_answer *a), json_t *to)
{
    static const struct hzp_block_writer writer = {no_open, no_more, collect};
    a->make_block = f;
    a->blocks = to;
    hzp_blocks_write(a, &writer);
    a->blocks = NULL;
}

json_t *hzp_block_text(const struct hzp_answer *a)
{
    return hzp_text_json(a->block.text.data, a->block.text.bytes);
}

/* ---- requests ---- */

/* The next pair of names from *at on; false: there is none. */
static bool next_pair(const char **at, char own[64], char chat[64])
{
    int own_bytes = 0, chat_bytes = 0;
    if (sscanf(*at, " %63[^ =]%n=%63[^ ]%n", own, &own_bytes, chat, &chat_bytes) < 2)
        strcpy(chat, own);
    *at += HZP_MAX(own_bytes, chat_bytes);
    return own_bytes > 0;
}

void hzp_blocks_copy(const json_t *from, const char *names, json_t *to)
{
    char own[64] = "", chat[64];
    while (next_pair(&names, own, chat)) {
        json_t *value = json_object_get(from, own);
        if (value && !json_is_null(value))
            json_object_set(to, chat, value);
    }
}

json_t *hzp_blocks_add_message(json_t *messages, const char *role, json_t *content)
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content);
    json_array_append_new(messages, message);
    return message;
}

#define PLACES "\1places" /* no name of a field */

void hzp_blocks_place(json_t *chat, const char *path)
{
    json_t *places = json_object_get(chat, PLACES);
    if (!places)
        json_object_set_new(chat, PLACES, places = json_array());
    size_t messages = json_array_size(json_object_get(chat, "messages"));
    if (messages && messages == json_array_size(places))
        json_array_set_new(places, messages - 1, json_string(path));
    while (json_array_size(places) < messages)
        json_array_append_new(places, json_string(path));
}

json_t *hzp_blocks_places(json_t *chat)
{
    json_t *places = json_incref(json_object_get(chat, PLACES));
    json_object_del(chat, PLACES);
    return places;
}

/* The error is about `param`, which its text may begin with. */
static void set_param(struct hzp_err_text *reterr, const char *param)
{
    char rest[sizeof(reterr->text)];
    size_t old = strlen(reterr->param);
    if (!strncmp(reterr->text, reterr->param, old)) {
        snprintf(rest, sizeof(rest), "%s", reterr->text + old);
        snprintf(reterr->text, sizeof(reterr->text), "%s%.400s", param, rest);
    }
    snprintf(reterr->param, sizeof(reterr->param), "%s", param);
}

void hzp_blocks_rename(const json_t *places, struct hzp_err_text *reterr)
{
    static const char name[] = "messages[";
    char param[sizeof(reterr->param)], *end;
    if (!reterr || strncmp(reterr->param, name, sizeof(name) - 1) != 0)
        return;
    size_t i = strtoul(reterr->param + sizeof(name) - 1, &end, 10);
    const char *place = json_string_value(json_array_get(places, i));
    if (!place || *end != ']')
        return;
    bool whole = place[strlen(place) - 1] != ']'; /* a field that is one message's content */
    snprintf(param, sizeof(param), "%s%.64s", place, whole ? "" : end + 1);
    set_param(reterr, param);
}

int hzp_blocks_tools(const json_t *body,
                     int (*read)(const json_t *tool, const char *path, json_t **ret,
                                 struct hzp_err_text *reterr),
                     json_t *chat, struct hzp_err_text *reterr)
{
    const json_t *list = json_object_get(body, "tools"), *tool;
    json_t *tools = json_array();
    size_t i;
    json_object_set_new(chat, "tools", tools);
    json_array_foreach(list, i, tool)
    {
        char path[32];
        json_t *function;
        snprintf(path, sizeof(path), "tools[%zu]", i);
        HZP_TRY(read(tool, path, &function, reterr));
        json_array_append_new(tools,
                              json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    return HZP_OK;
}

/* An error about one of the chat's fields becomes one about the request's own. */
static void rename_field(const char *names, struct hzp_err_text *reterr)
{
    char own[64] = "", chat[64];
    while (reterr && next_pair(&names, own, chat))
        if (!strcmp(reterr->param, chat)) {
            set_param(reterr, own);
            return;
        }
}

/* The names of a chat's fields without effect (taken over) become the request's own, and these are
 * added. */
static json_t *rename_ignored(json_t *of_chat, const char *names, const json_t *places, json_t *own)
{
    json_t *all = own || of_chat ? json_array() : NULL, *name;
    size_t i;
    json_array_foreach(of_chat, i, name)
    {
        struct hzp_err_text its = {.text = ""};
        snprintf(its.param, sizeof(its.param), "%s", json_string_value(name));
        rename_field(names, &its);
        hzp_blocks_rename(places, &its);
        json_array_append_new(all, json_string(its.param));
    }
    if (own)
        json_array_extend(all, own);
    json_decref(of_chat);
    return all;
}

int hzp_blocks_parse(json_t *chat, const char *names, const struct hzp_engine *engine,
                     const struct hzp_answer_form *form, json_t *ignored, json_t *asked,
                     struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    json_auto_t *places = hzp_blocks_places(chat);
    int r = hzp_chat_parse(chat, engine, ret, reterr);
    if (r < 0) {
        hzp_blocks_rename(places, reterr);
        rename_field(names, reterr);
        return r;
    }
    ret->ignored = rename_ignored(ret->ignored, names, places, ignored);
    ret->asked = json_incref(asked);
    ret->form = form;
    return HZP_OK;
}
