/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/reply.h"

const char hzp_mark_glm_key[] = "<arg_key>", hzp_mark_glm_key_end[] = "</arg_key>";
const char hzp_mark_glm_value[] = "<arg_value>", hzp_mark_glm_value_end[] = "</arg_value>";
const char hzp_mark_call_id[] = "[CALL_ID]", hzp_mark_args[] = "[ARGS]";
const char hzp_mark_channel[] = "<|channel|>", hzp_mark_start[] = "<|start|>";
const char hzp_mark_message[] = "<|message|>", hzp_mark_end[] = "<|end|>";
const char hzp_mark_call[] = "<|call|>", hzp_mark_return[] = "<|return|>";
const char hzp_mark_constrain[] = "<|constrain|>", hzp_mark_recipient[] = "to=functions.";
const char hzp_mark_think[] = "<think>", hzp_mark_think_end[] = "</think>";

static const char tool_call[] = "<tool_call>", tool_call_end[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>", tool_calls[] = "[TOOL_CALLS]";

const struct hzp_call_form hzp_call_form[HZP_CALLS_FORMS] = {
    [HZP_CALLS_HERMES] = {.body = HZP_CALL_OBJECT,
                          .open = tool_call,
                          .close = tool_call_end,
                          .in = "\n",
                          .out = "\n",
                          .between = "\n",
                          .key = "arguments"},
    [HZP_CALLS_LLAMA] = {.body = HZP_CALL_OBJECT,
                         .open = python_tag,
                         .row = true,
                         .bare = true,
                         .between = "; ",
                         .key = "parameters"},
    [HZP_CALLS_MISTRAL] = {.body = HZP_CALL_OBJECT,
                           .open = tool_calls,
                           .row = true,
                           .in = "[",
                           .out = "]",
                           .between = ", ",
                           .key = "arguments",
                           .names = true,
                           .short_ids = true},
    [HZP_CALLS_MISTRAL_ARGS] = {.body = HZP_CALL_NAMED,
                                .open = tool_calls,
                                .args = hzp_mark_args,
                                .names = true,
                                .short_ids = true,
                                .not_in_names = " []{}"},
    [HZP_CALLS_MISTRAL_ID] = {.body = HZP_CALL_NAMED,
                              .open = tool_calls,
                              .id = hzp_mark_call_id,
                              .args = hzp_mark_args,
                              .names = true,
                              .short_ids = true,
                              .not_in_names = " []{}"},
    [HZP_CALLS_GLM] = {.body = HZP_CALL_PAIRS,
                       .open = tool_call,
                       .close = tool_call_end,
                       .between = "\n",
                       .not_in_names = " <{"},
    [HZP_CALLS_CHANNELS] = {.body = HZP_CALL_HEADER, .not_in_names = " <"},
};

int hzp_call_form_marks(enum hzp_reply_calls calls, const char *ret[HZP_CALL_MARKS_MAX])
{
    static const char *const pairs[] = {hzp_mark_glm_key, hzp_mark_glm_key_end, hzp_mark_glm_value,
                                        hzp_mark_glm_value_end};
    static const char *const named[] = {hzp_mark_call_id, hzp_mark_args};
    static const char *const header[] = {hzp_mark_channel,  hzp_mark_start, hzp_mark_message,
                                         hzp_mark_end,      hzp_mark_call,  hzp_mark_return,
                                         hzp_mark_constrain};
    const struct hzp_call_form *form = &hzp_call_form[calls];
    const char *const *more = form->body == HZP_CALL_PAIRS    ? pairs
                              : form->body == HZP_CALL_HEADER ? header
                              : form->names                   ? named
                                                              : NULL;
    int n = 0, mores = more == pairs    ? HZP_COUNT(pairs)
                       : more == header ? HZP_COUNT(header)
                       : more == named  ? HZP_COUNT(named)
                                        : 0;
    if (form->open)
        ret[n++] = form->open;
    if (form->close)
        ret[n++] = form->close;
    for (int i = 0; i < mores; i++)
        ret[n++] = more[i];
    return n;
}

enum hzp_reply_calls hzp_call_form_of(const char *source)
{
    if (strstr(source, hzp_mark_channel) && strstr(source, hzp_mark_message))
        return HZP_CALLS_CHANNELS;
    if (strstr(source, tool_calls))
        return strstr(source, hzp_mark_call_id) ? HZP_CALLS_MISTRAL_ID
               : strstr(source, hzp_mark_args)  ? HZP_CALLS_MISTRAL_ARGS
                                                : HZP_CALLS_MISTRAL;
    if (strstr(source, tool_call) && strstr(source, hzp_mark_glm_key))
        return HZP_CALLS_GLM;
    if (strstr(source, tool_call) && !strstr(source, "<function="))
        return HZP_CALLS_HERMES;
    if (strstr(source, "<|start_header_id|>") && strstr(source, "\"parameters\": "))
        return HZP_CALLS_LLAMA;
    return HZP_CALLS_NONE;
}

bool hzp_call_form_has_name(enum hzp_reply_calls calls, const char *name)
{
    const char *not = hzp_call_form[calls].not_in_names;
    if (!*name || strlen(name) > HZP_CALL_NAME_MAX)
        return false;
    for (; not &&*name; name++)
        if ((unsigned char)*name < ' ' || strchr(not, *name))
            return false;
    return true;
}
