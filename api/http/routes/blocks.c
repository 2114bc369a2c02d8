/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/blocks.h"
#include "api/http/wire/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    snprintf(block->call_id, sizeof(block->call_id), "%s", call ? call->id : "");
    snprintf(block->name, sizeof(block->name), "%s", call ? call->name : "");
    writer->open(a);
}

static void add_text(struct hzp_answer *a, const struct hzp_block_writer *writer, const char *text,
                     size_t bytes)
{
    if (!bytes)
        return;
    if (hzp_textbuf_append(&a->block.text, text, bytes) < 0) {
        hzp_completion_leave(a->c); /* out of memory: the stream ends without an end mark */
        return;
    }
    json_t *json = json_stringn_nocheck(text, bytes);
    writer->more(a, json);
    json_decref(json);
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
        add_text(a, writer, text, part.to - part.from);
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

static void no_more(struct hzp_answer *a, json_t *text)
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
    return hzp_text_json(a->block.text.bytes ? a->block.text.data : "", a->block.text.bytes);
}

/* ---- requests ---- */

void hzp_blocks_copy(const json_t *from, const char *const names[][2], json_t *to)
{
    for (int i = 0; names[i][0]; i++) {
        json_t *value = json_object_get(from, names[i][0]);
        if (value && !json_is_null(value))
            json_object_set(to, names[i][1], value);
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
    while (json_array_size(places) < json_array_size(json_object_get(chat, "messages")))
        json_array_append_new(places, json_string(path));
}

json_t *hzp_blocks_places(json_t *chat)
{
    json_t *places = json_incref(json_object_get(chat, PLACES));
    json_object_del(chat, PLACES);
    return places;
}

void hzp_blocks_rename(const json_t *places, struct hzp_err_text *reterr)
{
    static const char name[] = "messages[";
    char tail[sizeof(reterr->param)], rest[sizeof(reterr->text)], *end;
    if (!reterr || strncmp(reterr->param, name, sizeof(name) - 1) != 0)
        return;
    size_t param = strlen(reterr->param);
    bool named = !strncmp(reterr->text, reterr->param, param);
    size_t i = strtoul(reterr->param + sizeof(name) - 1, &end, 10);
    const char *place = json_string_value(json_array_get(places, i));
    if (!place || *end != ']')
        return;
    bool whole = place[strlen(place) - 1] != ']'; /* a field that is one message's content */
    snprintf(tail, sizeof(tail), "%s", whole ? "" : end + 1);
    if (snprintf(reterr->param, sizeof(reterr->param), "%s%s", place, tail) < 0)
        return;
    if (named) {
        snprintf(rest, sizeof(rest), "%s", reterr->text + param);
        snprintf(reterr->text, sizeof(reterr->text), "%s%.400s", reterr->param, rest);
    }
}

int hzp_blocks_wrong(struct hzp_err_text *reterr, const char *param, const char *what)
{
    return hzp_fail_param(reterr, HZP_EINVAL, param, "%s %s", param, what);
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
    if (list && !json_is_null(list) && !json_is_array(list))
        return hzp_blocks_wrong(reterr, "tools", "must be a list");
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

int hzp_blocks_parse(json_t *chat, const char *const names[][2], const struct hzp_engine *engine,
                     const struct hzp_answer_form *form, json_t *ignored, json_t *asked,
                     struct hzp_completion_params *ret, struct hzp_err_text *reterr)
{
    json_t *places = hzp_blocks_places(chat);
    int r = hzp_chat_parse(chat, engine, ret, reterr);
    json_decref(chat);
    if (r < 0)
        hzp_blocks_rename(places, reterr);
    json_decref(places);
    if (r < 0) {
        for (int i = 0; reterr && names[i][0]; i++)
            if (!strcmp(reterr->param, names[i][1])) {
                snprintf(reterr->param, sizeof(reterr->param), "%s", names[i][0]);
                break;
            }
        json_decref(ignored);
        json_decref(asked);
        return r;
    }
    if (ret->ignored && ignored)
        json_array_extend(ret->ignored, ignored);
    else if (ignored)
        ret->ignored = json_incref(ignored);
    json_decref(ignored);
    ret->asked = asked;
    ret->form = form;
    return HZP_OK;
}
