/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/field_table.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BOOL              HZP_FIELD_BOOL, 0, 1
#define STRING            HZP_FIELD_STRING, 0, 0
#define TEXT              HZP_FIELD_TEXT, 0, 0
#define JSON              HZP_FIELD_JSON, 0, 0
#define INT(low, high)    HZP_FIELD_INT, low, high
#define NUMBER(low, high) HZP_FIELD_NUMBER, low, high
#define USED              HZP_FIELD_USED
#define NEEDED            HZP_FIELD_NEEDED
#define IGNORED           HZP_FIELD_IGNORED
#define REFUSED           HZP_FIELD_REFUSED
#define END                                                                                        \
    {                                                                                              \
        0                                                                                          \
    }

static const char beams[] = "there is no beam search";
static const char sampler[] = "this sampler does not exist here";
static const char text_only[] = "this server reads and makes text only";

/* Texts, tokens, or one of them. */
#define PROMPTS                                                                                    \
    ("{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"array\", \"minItems\": 1, \"maxItems\": "  \
     "1024,"                                                                                       \
     " \"items\": {\"type\": \"string\"}}, {\"type\": \"array\", \"minItems\": 1,"                 \
     " \"items\": {\"type\": \"integer\", \"minimum\": 0}}, {\"type\": \"array\", \"minItems\": "  \
     "1,"                                                                                          \
     " \"items\": {\"type\": \"array\", \"minItems\": 1, \"items\": {\"type\": \"integer\","       \
     " \"minimum\": 0}}}]}")

/* ---- completions and chat ---- */

#define SCHEMA "{\"anyOf\": [{\"type\": \"object\"}, {\"type\": \"boolean\"}]}"
#define CHOICES                                                                                    \
    "{\"type\": \"array\", \"minItems\": 1, \"items\": {\"type\": \"string\", \"minLength\": 1}}"
#define FORMAT_NOTE "json_object, json_schema: the answer is JSON"
#define FORMAT                                                                                     \
    "{\"type\": \"object\", \"required\": [\"type\"], \"properties\": {\"type\": {\"enum\": "      \
    "[\"text\", \"json_object\", \"json_schema\"]}, \"json_schema\": {\"type\": \"object\", "      \
    "\"required\": [\"schema\"], \"properties\": {\"name\": {\"type\": \"string\"}, \"schema\": "  \
    "{\"type\": \"object\"}, \"strict\": {\"type\": [\"boolean\", \"null\"]}}}}}"

/* Of all that is answered by the model. */
#define DEPTH                                                                                      \
    {                                                                                              \
        "depth", NUMBER(0, 1), "1", USED,                                                          \
            "the share of the model's layers that compute the answer, to the nearest eighth",      \
            "{\"type\": [\"number\", \"null\"], \"exclusiveMinimum\": 0, \"maximum\": 1}"          \
    }

static const struct hzp_field sampling[] = {
    {"add_special_tokens", BOOL, NULL, USED,
     "the tokenizer adds its special tokens (default: true for prompts, false for messages)", NULL},
    {"after", STRING, NULL, USED,
     "token of a teaching answer: wait for weights that have learned its examples", NULL},
    {"allowed_token_ids", JSON, NULL, USED, "only these tokens are generated",
     "{\"type\": \"array\", \"minItems\": 1, \"items\": {\"type\": \"integer\", \"minimum\": 0}}"},
    {"bad_words", JSON, NULL, USED, "these texts are not generated",
     ("{\"type\": \"array\", \"maxItems\": 256, \"items\": {\"type\": \"string\","
      " \"minLength\": 1}}")},
    {"cache_salt", JSON, NULL, IGNORED, "the prefix cache is one", NULL},
    {"cfg_scale", JSON, "1", REFUSED, sampler, NULL},
    {"consistency", STRING, NULL, USED,
     "what a new version of the weights does to this request (default: --consistency)",
     "{\"enum\": [\"continue\", \"abort\", \"recompute\", \"pinned\"]}"},
    DEPTH,
    {"dynatemp_range", JSON, "0", REFUSED, sampler, NULL},
    {"early_stopping", JSON, NULL, REFUSED, beams, NULL},
    {"echo", BOOL, "false", USED, "the answer begins with the prompt, or with the last message",
     NULL},
    {"frequency_penalty", NUMBER(-2, 2), "0", USED,
     "subtracted from a token's logit for each time it was generated", NULL},
    {"grammar", STRING, "\"\"", USED, "as structured_outputs.grammar", NULL},
    {"guided_choice", JSON, NULL, USED, "as structured_outputs.choice", CHOICES},
    {"guided_decoding", JSON, NULL, REFUSED, "use structured_outputs", NULL},
    {"guided_decoding_backend", JSON, NULL, IGNORED, "of guided_*", NULL},
    {"guided_grammar", STRING, NULL, USED, "as structured_outputs.grammar", NULL},
    {"guided_json", JSON, NULL, USED, "as structured_outputs.json", SCHEMA},
    {"guided_regex", STRING, NULL, USED, "as structured_outputs.regex", NULL},
    {"guided_whitespace_pattern", JSON, NULL, IGNORED, "of guided_*", NULL},
    {"ignore_eos", BOOL, "false", USED, "the end token does not end the answer", NULL},
    {"images", JSON, NULL, REFUSED, text_only, NULL},
    {"include_stop_str_in_output", BOOL, "false", USED, "the stop string is part of the answer",
     NULL},
    {"json_schema", JSON, NULL, USED, "as structured_outputs.json", SCHEMA},
    {"kv_transfer_params", JSON, NULL, REFUSED, "keys and values are not handed over", NULL},
    {"length_penalty", JSON, "1", REFUSED, beams, NULL},
    {"logit_bias", JSON, NULL, USED, "added to the logits of these tokens; -100 bans",
     ("{\"type\": \"object\", \"additionalProperties\": {\"type\": \"number\", \"minimum\": -100,"
      " \"maximum\": 100}, \"propertyNames\": {\"pattern\": \"^(0|[1-9][0-9]*)$\"}}")},
    {"logits_processors", JSON, NULL, REFUSED, sampler, NULL},
    {"lora", JSON, NULL, REFUSED, "there are no adapters", NULL},
    {"lora_request", JSON, NULL, REFUSED, "there are no adapters", NULL},
    {"max_staleness", INT(0, 1000000), NULL, USED,
     "updates by which the weights may be behind while it runs (default: the policy's)", NULL},
    {"metadata", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"min_p", NUMBER(0, 1), "0", USED,
     "drop tokens below this fraction of the likeliest token's probability", NULL},
    {"min_sequence", INT(0, 0x1p62), "0", USED,
     "number of an example that the weights must have learned", NULL},
    {"min_tokens", INT(0, INT32_MAX), "0", USED,
     "tokens to generate before an end token or a stop string counts", NULL},
    {"min_version", INT(0, 0x1p62), "0", USED, "the oldest version that may answer", NULL},
    {"mirostat", JSON, "0", REFUSED, sampler, NULL},
    {"model", STRING, NULL, USED, "the served model's name", NULL},
    {"n", INT(1, 128), "1", USED, "choices for each prompt", NULL},
    {"negative_prompt", JSON, "\"\"", REFUSED, sampler, NULL},
    {"presence_penalty", NUMBER(-2, 2), "0", USED,
     "subtracted from the logit of every token that was generated", NULL},
    {"prompt_embeds", JSON, NULL, REFUSED, "prompts are text or tokens", NULL},
    {"priority", INT(-1000000, 1000000), "0", USED,
     "lower is earlier: each unit, of at most 60, counts as a second of waiting", NULL},
    {"prompt_logprobs", INT(0, 20), NULL, USED,
     "of each prompt token, and of this many likeliest; not in a stream", NULL},
    {"repetition_penalty", NUMBER(1e-3, 1e3), "1", USED,
     "above 1: tokens of prompt and answer become less likely", NULL},
    {"request_id", JSON, NULL, IGNORED, "the header x-request-id has it", NULL},
    {"return_token_ids", BOOL, "false", USED, "token_ids and prompt_token_ids in each choice",
     NULL},
    {"return_tokens_as_token_ids", JSON, NULL, REFUSED, "use return_token_ids", NULL},
    {"seed", INT(-0x1p63, 0x1p63), NULL, USED, "seed of the random draws (default: random)", NULL},
    {"skip_special_tokens", BOOL, "true", USED, "special tokens have no text", NULL},
    {"spaces_between_special_tokens", JSON, "true", REFUSED, "there are none between them", NULL},
    {"stop", JSON, NULL, USED, "the answer ends before the first of these strings",
     ("{\"anyOf\": [{\"type\": \"string\", \"minLength\": 1}, {\"type\": \"array\", \"maxItems\": "
      "16,"
      " \"items\": {\"type\": \"string\", \"minLength\": 1}}]}")},
    {"stop_token_ids", JSON, NULL, USED, "the answer ends at these tokens",
     "{\"type\": \"array\", \"maxItems\": 64, \"items\": {\"type\": \"integer\", \"minimum\": 0}}"},
    {"stream", BOOL, "false", USED, "server-sent events", NULL},
    {"stream_options", JSON, NULL, USED,
     "what a stream also sends: include_usage, continuous_usage_stats",
     ("{\"type\": \"object\", \"properties\": {\"include_usage\": {\"type\": [\"boolean\", "
      "\"null\"]},"
      " \"continuous_usage_stats\": {\"type\": [\"boolean\", \"null\"]}}}")},
    {"structured_outputs", JSON, NULL, USED,
     "what the answer's text must be: one of json (a schema), json_object, regex, choice, grammar",
     ("{\"type\": \"object\", \"maxProperties\": 1, \"additionalProperties\": false,"
      " \"properties\": {\"json\": " SCHEMA ", \"json_object\": {\"type\": \"boolean\"},"
      " \"regex\": {\"type\": \"string\"}, \"choice\": " CHOICES
      ", \"grammar\": {\"type\": \"string\"}}}")},
    {"temperature", NUMBER(0, 100), "1", USED, "0: the likeliest token", NULL},
    {"thinking_token_budget", JSON, NULL, REFUSED, "reasoning has no bound of its own", NULL},
    {"top_k", INT(-1, INT32_MAX), "0", USED, "0 or -1: all", NULL},
    {"top_p", NUMBER(0, 1), "1", USED,
     "draw from the likeliest tokens that together have this probability",
     "{\"type\": [\"number\", \"null\"], \"exclusiveMinimum\": 0, \"maximum\": 1}"},
    {"truncate_prompt_tokens", INT(-1, INT32_MAX), "0", USED,
     "the last tokens of the prompt that are kept; 0: all; -1: as many as fit", NULL},
    {"typical_p", JSON, "1", REFUSED, sampler, NULL},
    {"use_beam_search", JSON, NULL, REFUSED, beams, NULL},
    {"user", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"weights_timeout", NUMBER(0, 86400), NULL, USED,
     "seconds to wait for the weights asked for (default and maximum: --weights-timeout)", NULL},
    END};

static const struct hzp_field completions[] = {
    {"best_of", INT(1, 128), NULL, USED,
     "so many are generated, and the n of the highest mean log-probability answered", NULL},
    {"logprobs", INT(0, 20), NULL, USED,
     "log-probabilities of each token and of this many likeliest ones", NULL},
    {"max_completion_tokens", JSON, NULL, REFUSED, "use max_tokens", NULL},
    {"max_tokens", INT(0, INT32_MAX), "16", USED, "maximum tokens of an answer", NULL},
    {"prompt", JSON, NULL, NEEDED, "text, tokens, or a list of them", PROMPTS},
    {"response_format", JSON, "{\"type\": \"text\"}", USED, FORMAT_NOTE, FORMAT},
    {"suffix", TEXT, NULL, USED,
     "what stands behind the answer, where the tokenizer has tokens for fill-in-the-middle", NULL},
    {"tool_choice", JSON, "\"none\"", REFUSED, "use /v1/chat/completions", NULL},
    {"tools", JSON, NULL, REFUSED, "use /v1/chat/completions", NULL},
    END};

/* What the chat template reads: a chat's and /tokenize's. */
static const struct hzp_field template[] = {
    {"add_generation_prompt", BOOL, "true", USED, "the text ends where the answer begins", NULL},
    {"chat_template_kwargs", JSON, NULL, USED, "further variables of the template",
     "{\"type\": \"object\"}"},
    {"continue_final_message", BOOL, "false", USED, "the last message is continued", NULL},
    {"documents", JSON, NULL, USED, "documents for the template", "{\"type\": \"array\"}"},
    {"reasoning_effort", JSON, NULL, USED, "for the template, where it reads that", "{}"},
    {"tool_choice", JSON, "\"auto\"", USED,
     "none: the template gets no tools; required, or a tool's name: the answer is a call",
     ("{\"anyOf\": [{\"enum\": [\"auto\", \"none\", \"required\"]}, {\"type\": \"object\","
      " \"required\": [\"type\", \"function\"], \"properties\": {\"function\": {\"type\":"
      " \"object\", \"required\": [\"name\"], \"properties\": {\"name\": {\"type\":"
      " \"string\"}}}}}]}")},
    {"tools", JSON, NULL, USED, "what the answer may call",
     ("{\"type\": \"array\", \"items\": {\"type\": \"object\", \"required\": [\"function\"],"
      " \"properties\": {\"function\": {\"type\": \"object\", \"required\": [\"name\"],"
      " \"properties\": {\"name\": {\"type\": \"string\"}}}}}}")},
    END};

/* A message: its content is text, or parts that are text. */
#define MESSAGES                                                                                   \
    "{\"type\": \"array\", \"minItems\": 1, \"items\": {\"type\": \"object\", \"required\": "      \
    "[\"role\"], \"properties\": {\"role\": {\"type\": \"string\"}, \"content\": {\"anyOf\": "     \
    "[{\"type\": [\"string\", \"null\"]}, {\"type\": \"array\", \"items\": {\"type\": "            \
    "\"object\", \"required\": [\"type\", \"text\"], \"properties\": {\"type\": {\"const\": "      \
    "\"text\"}, \"text\": {\"type\": \"string\"}}}}]}}}}"

static const char moderates_nothing[] = "this server moderates nothing";

static const struct hzp_field chat[] = {
    {"audio", JSON, NULL, REFUSED, text_only, NULL},
    {"best_of", JSON, NULL, REFUSED, "ask for n and choose", NULL},
    {"chat_template", JSON, NULL, REFUSED, "start the server with --chat-template", NULL},
    {"function_call", JSON, NULL, REFUSED, "use tool_choice", NULL},
    {"functions", JSON, NULL, REFUSED, "use tools", NULL},
    {"include_reasoning", BOOL, "true", USED, "the message has reasoning_content", NULL},
    {"logprobs", BOOL, "false", USED, "log-probabilities of the answer's tokens", NULL},
    {"max_completion_tokens", INT(0, INT32_MAX), NULL, USED,
     "maximum tokens of an answer (default: what fits)", NULL},
    {"max_tokens", INT(0, INT32_MAX), NULL, USED, "earlier name of max_completion_tokens", NULL},
    {"messages", JSON, NULL, NEEDED, "the conversation so far", MESSAGES},
    {"modalities", JSON, NULL, USED, "only text",
     "{\"type\": \"array\", \"items\": {\"const\": \"text\"}}"},
    {"moderation", JSON, NULL, REFUSED, moderates_nothing, NULL},
    {"parallel_tool_calls", BOOL, "true", USED, "false: the answer has one call at most", NULL},
    {"prediction", JSON, NULL, IGNORED, "nothing is speculated", NULL},
    {"prompt_cache_key", JSON, NULL, IGNORED, "the prefix cache is one", NULL},
    {"prompt_cache_options", JSON, NULL, IGNORED, "the prefix cache decides", NULL},
    {"prompt_cache_retention", JSON, NULL, IGNORED, "the prefix cache decides", NULL},
    {"response_format", JSON, "{\"type\": \"text\"}", USED, FORMAT_NOTE, FORMAT},
    {"safety_identifier", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"service_tier", JSON, NULL, IGNORED, "there is one tier", NULL},
    {"store", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"top_logprobs", INT(0, 20), "0", USED, "likeliest tokens shown beside each token", NULL},
    {"verbosity", JSON, NULL, IGNORED, "the template does not read it", NULL},
    {"web_search_options", JSON, NULL, REFUSED, "this server searches nothing", NULL},
    END};

#define FORMAT_MEMBERS(open)                                                                       \
    {"response_format", "type json_schema schema", open},                                          \
    {                                                                                              \
        "response_format.json_schema", "name description schema strict", open                      \
    }
#define STREAM_MEMBERS "include_usage continuous_usage_stats -include_obfuscation"

static const struct hzp_members completion_members[] = {
    FORMAT_MEMBERS(true), {"stream_options", STREAM_MEMBERS, true}, {0}};

/* Those of messages and tools are the template's: chat_params.c finds which it does not read. */
#define TEMPLATE_MEMBERS                                                                           \
    {"messages[].content[]", "type text refusal", true}, {"tool_choice", "type function", false},  \
    {                                                                                              \
        "tool_choice.function", "name", false                                                      \
    }

static const struct hzp_members template_members[] = {TEMPLATE_MEMBERS, {0}};
static const struct hzp_members chat_members[] = {
    TEMPLATE_MEMBERS, FORMAT_MEMBERS(false), {"stream_options", STREAM_MEMBERS, false}, {0}};

const struct hzp_field_set hzp_fields_completions = {
    "CompletionRequest", {completions, sampling}, true, false, completion_members};
const struct hzp_field_set hzp_fields_chat = {
    "ChatRequest", {chat, template, sampling}, false, false, chat_members};

/* ---- responses and messages, which are translated into a chat ---- */

static const char nothing_stored[] = "this server stores no answers";

static const struct hzp_field responses[] = {
    {"access_programs", JSON, NULL, REFUSED, "there are no programs", NULL},
    {"background", BOOL, "false", REFUSED, nothing_stored, NULL},
    {"background_options", JSON, NULL, REFUSED, nothing_stored, NULL},
    {"context_management", JSON, NULL, REFUSED, nothing_stored, NULL},
    {"conversation", JSON, NULL, REFUSED, nothing_stored, NULL},
    DEPTH,
    {"ignore_eos", BOOL, "false", USED, "the end token does not end the answer", NULL},
    {"image", JSON, NULL, REFUSED, text_only, NULL},
    {"include", JSON, NULL, USED,
     "message.output_text.logprobs: log-probabilities of the text's tokens; OpenAI's other names "
     "have no effect",
     "{\"type\": [\"array\", \"null\"], \"items\": {\"type\": \"string\"}}"},
    {"input", JSON, NULL, NEEDED, "a text, or items: messages, function_call, function_call_output",
     "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"array\", \"minItems\": 1}]}"},
    {"instructions", TEXT, NULL, USED, "the system's message", NULL},
    {"max_output_tokens", INT(0, INT32_MAX), NULL, USED,
     "maximum tokens of the answer (default: what fits)", NULL},
    {"max_tool_calls", JSON, NULL, IGNORED, "calls are made by the client", NULL},
    {"metadata", JSON, "{}", USED, "repeated in the answer", "{}"},
    {"model", STRING, NULL, USED, "the served model's name", NULL},
    {"moderation", JSON, NULL, REFUSED, moderates_nothing, NULL},
    {"parallel_tool_calls", BOOL, "true", USED, "false: the answer has one call at most", NULL},
    {"previous_response_id", JSON, NULL, REFUSED, nothing_stored, NULL},
    {"priority", INT(-1000000, 1000000), "0", USED, "as for completions", NULL},
    {"prompt", JSON, NULL, REFUSED, nothing_stored, NULL},
    {"prompt_cache_key", JSON, NULL, IGNORED, "the prefix cache is one", NULL},
    {"prompt_cache_options", JSON, NULL, IGNORED, "the prefix cache decides", NULL},
    {"prompt_cache_retention", JSON, NULL, IGNORED, "the prefix cache decides", NULL},
    {"reasoning", JSON, NULL, USED, "effort: for the template, where it reads that",
     "{\"type\": \"object\"}"},
    {"safety_identifier", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"seed", INT(-0x1p63, 0x1p63), NULL, USED, "seed of the random draws (default: random)", NULL},
    {"service_tier", JSON, NULL, IGNORED, "there is one tier", NULL},
    {"store", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"stream", BOOL, "false", USED, "server-sent events", NULL},
    {"stream_options", JSON, NULL, IGNORED, "there is nothing to choose", NULL},
    {"temperature", NUMBER(0, 100), "1", USED, "0: the likeliest token", NULL},
    {"text", JSON, NULL, USED, "format: as a chat's response_format", "{\"type\": \"object\"}"},
    {"tool_choice", JSON, "\"auto\"", USED, "as a chat's; a named tool: {type, name}",
     "{\"type\": [\"string\", \"object\"]}"},
    {"tools", JSON, NULL, USED, "functions", "{\"type\": \"array\"}"},
    {"top_k", INT(-1, INT32_MAX), "0", USED, "0 or -1: all", NULL},
    {"top_logprobs", INT(0, 20), "0", USED,
     "likeliest tokens shown beside each token; requires include", NULL},
    {"top_p", NUMBER(0, 1), "1", USED,
     "draw from the likeliest tokens that together have this probability",
     "{\"type\": [\"number\", \"null\"], \"exclusiveMinimum\": 0, \"maximum\": 1}"},
    {"truncation", JSON, "\"disabled\"", REFUSED, "a longer input is an error", NULL},
    {"user", JSON, NULL, IGNORED, "nothing is stored", NULL},
    END};

static const struct hzp_field messages[] = {
    {"cache_control", JSON, NULL, IGNORED, "the prefix cache decides", NULL},
    {"container", JSON, NULL, REFUSED, "there are no containers", NULL},
    {"context_management", JSON, NULL, REFUSED, nothing_stored, NULL},
    DEPTH,
    {"diagnostics", JSON, NULL, IGNORED, "there is nothing to diagnose", NULL},
    {"inference_geo", JSON, NULL, IGNORED, "it runs where the server is", NULL},
    {"max_tokens", INT(1, INT32_MAX), NULL, NEEDED, "maximum tokens of the answer", NULL},
    {"mcp_servers", JSON, NULL, REFUSED, "calls are made by the client", NULL},
    {"messages", JSON, NULL, NEEDED, "messages of user and assistant: text, or blocks",
     "{\"type\": \"array\", \"minItems\": 1, \"items\": {\"type\": \"object\"}}"},
    {"metadata", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"model", STRING, NULL, USED, "the served model's name", NULL},
    {"output_config", JSON, NULL, USED,
     "format: json_schema, which the answer keeps; effort: for the template, where it reads that",
     "{\"type\": \"object\"}"},
    {"service_tier", JSON, NULL, IGNORED, "there is one tier", NULL},
    {"speed", JSON, NULL, IGNORED, "there is one speed", NULL},
    {"stop_sequences", JSON, NULL, USED, "the answer ends before the first of these",
     "{\"type\": \"array\", \"maxItems\": 16, \"items\": {\"type\": \"string\", \"minLength\": "
     "1}}"},
    {"stream", BOOL, "false", USED, "server-sent events", NULL},
    {"system", JSON, NULL, USED, "the system's message: text, or blocks of text",
     "{\"type\": [\"string\", \"array\"]}"},
    {"temperature", NUMBER(0, 100), "1", USED, "0: the likeliest token", NULL},
    {"thinking", JSON, NULL, USED, "type disabled: enable_thinking is false for the template",
     "{\"type\": \"object\", \"required\": [\"type\"]}"},
    {"tool_choice", JSON, NULL, USED, "type auto, any, none, or tool with a name",
     "{\"type\": \"object\", \"required\": [\"type\"]}"},
    {"tools", JSON, NULL, USED, "name, description, input_schema", "{\"type\": \"array\"}"},
    {"top_k", INT(-1, INT32_MAX), "0", USED, "0 or -1: all", NULL},
    {"top_p", NUMBER(0, 1), "1", USED,
     "draw from the likeliest tokens that together have this probability",
     "{\"type\": [\"number\", \"null\"], \"exclusiveMinimum\": 0, \"maximum\": 1}"},
    {"user_profile_id", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"workspace_id", JSON, NULL, IGNORED, "there is one workspace", NULL},
    END};

/* Items and blocks may be those of an answer, of this server or another. */
static const struct hzp_members response_members[] = {
    {"input[]",
     "type role content id status call_id name arguments output summary encrypted_content", true},
    {"input[].content[]", "type text refusal annotations logprobs", true},
    {"input[].output[]", "type text refusal", true},
    {"input[].summary[]", "type text", true},
    {"reasoning", "effort -generate_summary -summary", false},
    {"text", "format -verbosity", false},
    {"text.format", "type name description schema strict", false},
    {"tool_choice", "type name", false},
    {"tools[]", "type name description parameters strict", true},
    {0}};

static const struct hzp_members message_members[] = {
    {"messages[]", "role content", true},
    {"messages[].content[]",
     "type text thinking signature data id name input tool_use_id content citations", true},
    {"messages[].content[].content[]", "type text", true},
    {"system[]", "type text", true},
    {"output_config", "effort format", false},
    {"output_config.format", "type schema", false},
    {"thinking", "type -budget_tokens -display", false},
    {"tool_choice", "type name disable_parallel_tool_use", false},
    {"tools[]", "type name description input_schema strict", true},
    {0}};

const struct hzp_field_set hzp_fields_responses = {
    "ResponsesRequest", {responses}, false, false, response_members};
const struct hzp_field_set hzp_fields_messages = {
    "MessagesRequest", {messages}, false, false, message_members};

static const struct hzp_field count_tokens[] = {
    {"cache_control", JSON, NULL, IGNORED, "the prefix cache decides", NULL},
    {"context_management", JSON, NULL, REFUSED, nothing_stored, NULL},
    {"mcp_servers", JSON, NULL, REFUSED, "calls are made by the client", NULL},
    {"messages", JSON, NULL, NEEDED, "messages of user and assistant: text, or blocks",
     "{\"type\": \"array\", \"minItems\": 1, \"items\": {\"type\": \"object\"}}"},
    {"model", STRING, NULL, USED, "not looked at", NULL},
    {"output_config", JSON, NULL, USED,
     "format: json_schema, which the answer keeps; effort: for the template, where it reads that",
     "{\"type\": \"object\"}"},
    {"speed", JSON, NULL, IGNORED, "there is one speed", NULL},
    {"system", JSON, NULL, USED, "the system's message: text, or blocks of text",
     "{\"type\": [\"string\", \"array\"]}"},
    {"thinking", JSON, NULL, USED, "type disabled: enable_thinking is false for the template",
     "{\"type\": \"object\", \"required\": [\"type\"]}"},
    {"tool_choice", JSON, NULL, USED, "type auto, any, none, or tool with a name",
     "{\"type\": \"object\", \"required\": [\"type\"]}"},
    {"tools", JSON, NULL, USED, "name, description, input_schema", "{\"type\": \"array\"}"},
    {"user_profile_id", JSON, NULL, IGNORED, "nothing is stored", NULL},
    {"workspace_id", JSON, NULL, IGNORED, "there is one workspace", NULL},
    END};
const struct hzp_field_set hzp_fields_count_tokens = {
    "CountTokensRequest", {count_tokens}, false, false, message_members};

static const struct hzp_field embeddings[] = {
    {"add_special_tokens", BOOL, "true", USED, "the tokenizer adds its special tokens", NULL},
    {"dimensions", JSON, NULL, REFUSED, "an embedding has the model's width", NULL},
    {"encoding_format", STRING, "\"float\"", USED, "numbers, or base64 of little-endian F32",
     "{\"enum\": [\"float\", \"base64\"]}"},
    {"input", JSON, NULL, NEEDED, "text, tokens, or a list of them", PROMPTS},
    {"model", STRING, NULL, USED, "the served model's name", NULL},
    {"normalize", BOOL, "true", USED, "scale each embedding to length 1", NULL},
    {"pooling", STRING, "\"mean\"", USED,
     "mean of the hidden states behind the final norm, or the last one",
     "{\"enum\": [\"mean\", \"last\"]}"},
    {"priority", INT(-1000000, 1000000), "0", USED, "as for completions", NULL},
    {"truncate_prompt_tokens", INT(-1, INT32_MAX), "0", USED, "as for completions", NULL},
    {"user", JSON, NULL, IGNORED, "nothing is stored", NULL},
    END};

const struct hzp_field_set hzp_fields_embeddings = {
    "EmbeddingsRequest", {embeddings}, false, false, NULL};

/* ---- around the tokenizer ---- */

static const struct hzp_field tokenize[] = {
    {"add_special_tokens", BOOL, NULL, USED, "default: true for a prompt, false for messages",
     NULL},
    {"messages", JSON, NULL, USED, "the text that the chat template makes of them", MESSAGES},
    {"model", STRING, NULL, USED, "not looked at", NULL},
    {"prompt", TEXT, NULL, USED, "the text, if there are no messages", NULL},
    {"return_token_strs", BOOL, "false", USED, "also the tokens' texts", NULL},
    END};
static const struct hzp_field detokenize[] = {
    {"model", STRING, NULL, USED, "not looked at", NULL},
    {"tokens", JSON, NULL, NEEDED, "the tokens",
     "{\"type\": \"array\", \"items\": {\"type\": \"integer\", \"minimum\": 0}}"},
    END};

const struct hzp_field_set hzp_fields_tokenize = {
    "TokenizeRequest", {tokenize, template}, false, false, template_members};
const struct hzp_field_set hzp_fields_detokenize = {
    "DetokenizeRequest", {detokenize}, false, false, NULL};

/* ---- policy and examples ---- */

#define GOAL "{\"type\": [\"number\", \"null\"], \"minimum\": 0.001, \"maximum\": 3600000}"

static const struct hzp_field policy[] = {
    {"itl_stretch", JSON, NULL, USED,
     "how far training may raise the p99 of ITL and TTFT where no goal is set; 0: any",
     "{\"anyOf\": [{\"const\": 0}, {\"type\": \"number\", \"minimum\": 1, \"maximum\": 100}]}"},
    {"max_staleness", INT(0, 1000000), NULL, USED, "updates by which serving may trail",
     "{\"type\": \"integer\", \"minimum\": 0, \"maximum\": 1000000}"},
    {"slo", JSON, NULL, USED, "latency goals in milliseconds",
     ("{\"type\": [\"object\", \"null\"], \"additionalProperties\": false, \"properties\": "
      "{\"ttft_ms\": " GOAL ", \"itl_ms\": " GOAL "}}")},
    {"train_max", JSON, NULL, USED, "the largest share of the device for training",
     "{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}"},
    {"train_min", JSON, NULL, USED, "training's least share of the device, whatever the goals",
     "{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}"},
    {"train_share", JSON, NULL, USED, "time for training per time of serving, while requests run",
     "{\"type\": \"number\", \"minimum\": 0, \"maximum\": 100}"},
    END};

#define COLUMN "{\"anyOf\": [{\"type\": \"number\"}, {\"type\": \"array\"}]}"
static const struct hzp_field example[] = {
    {"advantages", JSON, NULL, USED, "with a loss: of each token, or one number for all", COLUMN},
    {"chat_template_kwargs", JSON, NULL, USED, "with messages: further variables of the template",
     "{\"type\": \"object\"}"},
    {"completion", TEXT, NULL, USED, "what is learned behind prompt", NULL},
    {"conversations", JSON, NULL, USED, "ShareGPT's messages", "{\"type\": \"array\"}"},
    {"documents", JSON, NULL, USED, "with messages: documents for the template",
     "{\"type\": \"array\"}"},
    {"functions", JSON, NULL, USED, "with messages: earlier name of tools",
     "{\"type\": \"array\"}"},
    {"history", JSON, NULL, USED, "alpaca's form: earlier turns, pairs of instruction and output",
     "{\"type\": \"array\"}"},
    {"input", TEXT, NULL, USED, "alpaca's form: input of the instruction", NULL},
    {"instruction", TEXT, NULL, USED, "alpaca's form: the instruction", NULL},
    {"learn", JSON, NULL, USED, "which of the tokens are learned", "{\"type\": \"array\"}"},
    {"logprobs", JSON, NULL, USED, "with a loss: of the tokens, by the model that drew them",
     COLUMN},
    {"loss", JSON, NULL, USED, "with tokens: kind, low, high, beta, kl, temperature",
     "{\"type\": \"object\"}"},
    {"messages", JSON, NULL, USED, "what the assistant says is learned", MESSAGES},
    {"output", TEXT, NULL, USED, "alpaca's form: the answer, which is learned", NULL},
    {"prompt", TEXT, NULL, USED, "what stands before completion", NULL},
    {"reference_logprobs", JSON, NULL, USED, "with loss.kl: of the tokens, by another model",
     COLUMN},
    {"system", TEXT, NULL, USED, "with messages, conversations, alpaca: what stands before them",
     NULL},
    {"text", TEXT, NULL, USED, "all of it is learned", NULL},
    {"tokens", JSON, NULL, USED, "as given", "{\"type\": \"array\"}"},
    {"tools", JSON, NULL, USED, "with messages: tools for the template, or their JSON as a text",
     "{\"anyOf\": [{\"type\": \"array\"}, {\"type\": \"string\"}]}"},
    {"weights", JSON, NULL, USED, "with tokens: how much each counts, of either sign", COLUMN},
    END};

const struct hzp_field hzp_query_job[] = {
    {"timeout", NUMBER(0, 3600), "30", USED, "seconds to wait for the job", NULL}, END};
static const struct hzp_field version[] = {
    {"directory", STRING, NULL, USED, "export: its name on the server", NULL},
    {"lessons", STRING, "\"skip\"", USED, "activate: what becomes of later examples",
     "{\"enum\": [\"skip\", \"replay\"]}"},
    {"name", STRING, NULL, USED, "name: the version's new name", NULL},
    {"optimizer", STRING, "\"restore\"", USED, "activate: moments and residuals",
     "{\"enum\": [\"restore\", \"reset\"]}"},
    END};

static const struct hzp_field manifest[] = {
    {"checksum", STRING, NULL, NEEDED, "of the version: 16 hexadecimal digits", NULL},
    {"dtype", STRING, NULL, NEEDED, "of the weights", "{\"enum\": [\"F32\", \"BF16\"]}"},
    {"files", JSON, NULL, USED, "files beside the weights", "{\"type\": \"array\"}"},
    {"object", STRING, NULL, USED, "as a manifest has it", NULL},
    {"shapes", STRING, NULL, NEEDED, "fingerprint of the tensors' shapes", NULL},
    {"tokenizer", STRING, NULL, NEEDED, "fingerprint of the tokenizer", NULL},
    {"units", JSON, NULL, NEEDED, "number and checksum of each unit", "{\"type\": \"array\"}"},
    {"version", INT(0, 0x1p62), NULL, USED, "of the server that made the manifest", NULL},
    END};
static const struct hzp_field push[] = {
    {"lessons", STRING, "\"skip\"", USED, "what becomes of examples learned so far",
     "{\"enum\": [\"skip\", \"replay\"]}"},
    {"source", STRING, NULL, USED, "where the weights come from: kept with the version", NULL},
    END};

static const struct hzp_field undo[] = {
    {"lesson", INT(1, 0x1p62), NULL, USED, "the lesson's number; absent: the newest", NULL},
    {"redo", BOOL, "false", USED, "teach the lesson once more", NULL},
    {"version", JSON, NULL, USED, "a version's number or name, or original: it serves again",
     "{\"type\": [\"integer\", \"string\"]}"},
    END};

static const struct hzp_field feedback[] = {
    {"id", STRING, NULL, NEEDED, "of the answer", NULL},
    {"score", NUMBER(-1, 1), NULL, NEEDED, "how good it was: -1 is bad, 1 is good", NULL},
    END};

/* ---- rollouts ---- */

static const char drawn[] = "rollouts are drawn from the model as it is";
static const struct hzp_field rollout[] = {
    {"advantage", STRING, NULL, USED,
     "of an answer in its group: std, mean or none (default: std, for reinforce mean)",
     "{\"enum\": [\"std\", \"mean\", \"none\"]}"},
    {"algo", STRING, "\"grpo\"", USED, "the loss",
     "{\"enum\": [\"grpo\", \"dapo\", \"cispo\", \"reinforce\"]}"},
    {"answers", JSON, NULL, USED, "what rewards compare with, one for each prompt",
     "{\"type\": \"array\"}"},
    {"batch", INT(1, 256), "4", USED, "groups of an update: answers to so many prompts", NULL},
    {"frequency_penalty", NUMBER(-2, 2), "0", REFUSED, drawn, NULL},
    {"logit_bias", JSON, NULL, REFUSED, drawn, NULL},
    {"max_staleness", INT(0, 8), "1", USED,
     "updates by which the weights that drew an answer may be behind those it is learned with",
     NULL},
    {"max_tokens", INT(1, 65536), "64", USED, "maximum tokens of an answer", NULL},
    {"messages", JSON, NULL, USED, "a list of conversations",
     "{\"type\": \"array\", \"items\": {\"type\": \"array\"}}"},
    {"min_p", NUMBER(0, 1), "0", REFUSED, drawn, NULL},
    {"model", STRING, NULL, USED, "not looked at", NULL},
    {"n", INT(1, 64), "8", USED, "answers to each prompt: a group", NULL},
    {"presence_penalty", NUMBER(-2, 2), "0", REFUSED, drawn, NULL},
    {"prompts", JSON, NULL, USED, "a list of texts, or of lists of tokens",
     "{\"type\": \"array\", \"minItems\": 1}"},
    {"repetition_penalty", NUMBER(0.001, 1000), "1", REFUSED, drawn, NULL},
    {"response_format", JSON, NULL, REFUSED, drawn, NULL},
    {"reward", JSON, NULL, NEEDED,
     "type: exact, number, boxed, regex (pattern), json, length (tokens), client (timeout)",
     "{\"type\": \"object\"}"},
    {"seed", INT(-0x1p63, 0x1p63), NULL, USED, "seed of the random draws (default: random)", NULL},
    {"temperature", NUMBER(0, 2), "1", USED, "where rollouts train: 1", NULL},
    {"top_k", INT(-1, INT32_MAX), "0", REFUSED, drawn, NULL},
    {"top_p", NUMBER(0, 1), "1", REFUSED, drawn, NULL},
    {"train", BOOL, "true", USED,
     "learn from them; false: each prompt is answered and rewarded once", NULL},
    {"updates", INT(1, 4096), "40", USED, "the job ends after so many updates", NULL},
    END};
static const struct hzp_field reward[] = {
    {"value", NUMBER(-1e6, 1e6), NULL, NEEDED, "the reward", NULL}, END};

const struct hzp_field_set hzp_fields_rollout = {"Rollouts", {rollout}, false, false, NULL};
const struct hzp_field_set hzp_fields_reward = {"Reward", {reward}, false, false, NULL};
const struct hzp_field_set hzp_fields_feedback = {"Feedback", {feedback}, false, false, NULL};
const struct hzp_field_set hzp_fields_manifest = {"Manifest", {manifest}, false, false, NULL};
const struct hzp_field_set hzp_fields_undo = {"Undo", {undo}, false, false, NULL};
const struct hzp_field_set hzp_fields_push = {"Push", {push}, false, false, NULL};
const struct hzp_field_set hzp_fields_version = {"VersionAction", {version}, false, false, NULL};
const struct hzp_field_set hzp_fields_policy = {"PolicyPatch", {policy}, false, true, NULL};
const struct hzp_field_set hzp_fields_example = {"Example", {example}, true, false, NULL};

/* ---- arguments of paths ---- */

const struct hzp_field hzp_query_examples[] = {
    {"completion_field", STRING, "\"completion\"", USED,
     "name of the field completion in the examples", NULL},
    {"prompt_field", STRING, "\"prompt\"", USED, "name of the field prompt in the examples", NULL},
    {"timeout", NUMBER(0, 3600), "30", USED, "with wait: maximum seconds to wait", NULL},
    {"wait", STRING, NULL, USED, "answer when a version that has learned the examples serves",
     "{\"const\": \"served\"}"},
    END};
const struct hzp_field hzp_query_lessons[] = {
    {"before", INT(1, 0x1p63), NULL, USED, "only lessons with smaller numbers", NULL},
    {"limit", INT(1, 100), "20", USED, "maximum number of lessons, newest first", NULL},
    END};
const struct hzp_field hzp_query_offset[] = {
    {"offset", INT(0, 0x1p62), "0", USED, "the first byte", NULL}, END};
const struct hzp_field hzp_query_timeline[] = {
    {"seconds", NUMBER(1e-3, 60), "5", USED, "how many seconds back the trace begins",
     "{\"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": 60}"},
    END};
const struct hzp_field hzp_query_weights[] = {{"limit", INT(1, 0x1p63), "4096", USED,
                                               "maximum number of versions, newest first",
                                               "{\"type\": \"integer\", \"minimum\": 1}"},
                                              END};
