/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/chat_form.h - in which form a chat template reads its messages.
 *
 * Thread: any; constant once probed.
 */
#ifndef HZP_TEXT_CHAT_CHAT_FORM_H
#define HZP_TEXT_CHAT_CHAT_FORM_H

#include "text/chat/chat.h"

struct hzp_chat_form {
    bool strings;          /* content as a string */
    bool parts;            /* content as a list of {"type": "text", "text"} */
    bool arguments_string; /* a call's arguments as a string of JSON, not as an object */
    bool tools;            /* tools and calls appear in the text */
};

/* Renders made-up messages and looks for their words in the text. */
void hzp_chat_probe(const struct hzp_chat *chat, struct hzp_chat_form *ret);

/* What the probe found when the chat was made. */
const struct hzp_chat_form *hzp_chat_form(const struct hzp_chat *chat);

#endif
