/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/chat_form.h - in which form a chat template reads its messages.
 *
 * What a template does with a role, a list of parts, a call or reasoning is found out once, when it
 * is opened: made-up conversations are rendered, and their words looked for in the text.
 *
 * Thread: any; constant once probed.
 */
#pragma once

#include "text/chat/chat.h"

enum hzp_chat_role {
    HZP_CHAT_SYSTEM,
    HZP_CHAT_USER,
    HZP_CHAT_ASSISTANT,
    HZP_CHAT_TOOL,
    HZP_CHAT_ROLES
};

/* The content of a message that has calls and says nothing. */
enum hzp_chat_silence { HZP_CHAT_EMPTY, HZP_CHAT_NULL, HZP_CHAT_ABSENT };

struct hzp_chat_form {
    bool strings;               /* content as a string */
    bool parts[HZP_CHAT_ROLES]; /* content as a list of {"type": "text", "text"}, of these roles */
    bool any_role;              /* a role is printed, whatever it is */
    bool developer;             /* the role developer is known and shown */
    bool systems;               /* several system messages at the beginning are shown */
    bool systems_later;         /* and one between turns */
    bool arguments_string;      /* a call's arguments as a string of JSON, not as an object */
    bool tools;                 /* tools and calls appear in the text */
    bool tool_role;             /* a tool's answer has the role tool, not function */
    bool tool_name;             /* and needs the tool's name */
    bool divides;               /* an answer's text and its calls only as two messages */
    enum hzp_chat_silence silence;
    const char *reasoning; /* what the field of a message's reasoning is called */
};

/* Renders made-up messages and looks for their words in the text. */
void hzp_chat_probe(const struct hzp_chat *chat, struct hzp_chat_form *ret);

/* What the probe found when the chat was made. */
const struct hzp_chat_form *hzp_chat_form(const struct hzp_chat *chat);

/* The names that a message's reasoning may have; the last is NULL. */
extern const char *const hzp_chat_reasoning[];

/* The text of a part of a content, NULL: it is not text. */
const json_t *hzp_chat_part(const json_t *part);
