/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/wrapper.h"

#include "weights/families.h"

/* Wrappers, and what their class makes of a text_config that leaves the numbers out, as Gemma 3's
 * do (transformers: Gemma3TextConfig). */
static const struct wrapper {
    const char *model_type, *text; /* the text model's type, if it has none */
    int32_t vocab, heads;          /* 0: required */
} wrappers[] = {{"gemma3", "gemma3_text", 262208, 8}, {"mistral3", "mistral", 0, 0}};

static const struct wrapper *find(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (int i = 0; type && i < HZP_COUNT(wrappers); i++)
        if (!strcmp(wrappers[i].model_type, type))
            return &wrappers[i];
    return NULL;
}

/* What transformers calls the text models. */
static const char *const architecture[][2] = {{"gemma3_text", "Gemma3ForCausalLM"},
                                              {"mistral", "MistralForCausalLM"},
                                              {"ministral3", "Ministral3ForCausalLM"}};

/* Keys that may stand in the wrapper instead. */
static const char *const shared[] = {"bos_token_id", "eos_token_id",        "dtype",
                                     "torch_dtype",  "tie_word_embeddings", "quantization_config"};

static bool absent(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return !value || json_is_null(value);
}

int hzp_wrapper_text(const char *path, const json_t *root, json_t **ret,
                     struct hzp_err_text *reterr)
{
    const struct wrapper *w = find(root);
    const json_t *text = json_object_get(root, "text_config");
    *ret = NULL;
    if (!w)
        return HZP_OK;
    if (!json_is_object(text))
        return hzp_fail_param(reterr, HZP_EFORMAT, "text_config",
                              "%s: text_config of a %s model is missing or not an object", path,
                              w->model_type);
    json_auto_t *flat = json_deep_copy(text);
    if (absent(flat, "model_type"))
        json_object_set_new(flat, "model_type", json_string(w->text));
    for (int i = 0; i < HZP_COUNT(shared); i++)
        if (absent(flat, shared[i]) && !absent(root, shared[i]))
            json_object_set(flat, shared[i], json_object_get(root, shared[i]));
    if (absent(flat, "tie_word_embeddings")) /* of both wrappers' classes */
        json_object_set_new(flat, "tie_word_embeddings", json_true());
    if (w->vocab && absent(flat, "vocab_size"))
        json_object_set_new(flat, "vocab_size", json_integer(w->vocab));
    if (w->heads && absent(flat, "num_attention_heads"))
        json_object_set_new(flat, "num_attention_heads", json_integer(w->heads));
    const char *type = json_string_value(json_object_get(flat, "model_type"));
    if (!type || !hzp_family_find(type))
        return hzp_fail_param(reterr, HZP_EUNSUP, "text_config",
                              "%s: text_config: model_type \"%.40s\" is not supported; these are: "
                              "%s",
                              path, type ? type : "?", hzp_family_list());
    for (int i = 0; i < HZP_COUNT(architecture); i++)
        if (!strcmp(architecture[i][0], type))
            json_object_set_new(flat, "architectures", json_pack("[s]", architecture[i][1]));
    *ret = json_incref(flat);
    return HZP_OK;
}

const char *hzp_wrapper_name(const char *name, char *ret, size_t size)
{
    /* transformers wrote the first form until version 4.51, and writes the second since. */
    static const struct {
        const char *prefix, *text;
    } names[] = {{"language_model.model.", "model."},
                 {"language_model.lm_head.", "lm_head."},
                 {"model.language_model.", "model."}};
    static const char *const others[] = {"vision_tower.", "multi_modal_projector.",
                                         "model.vision_tower.", "model.multi_modal_projector."};
    for (int i = 0; i < HZP_COUNT(others); i++)
        if (!strncmp(name, others[i], strlen(others[i])))
            return NULL;
    for (int i = 0; i < HZP_COUNT(names); i++) {
        size_t length = strlen(names[i].prefix);
        if (strncmp(name, names[i].prefix, length))
            continue;
        snprintf(ret, size, "%s%s", names[i].text, name + length);
        return ret;
    }
    return name;
}
