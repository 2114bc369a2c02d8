/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "weights/config.h"

#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"

#include <math.h>

static void write_config(const char *text, const char *generation)
{
    scratch_write_text(scratch_path("config.json"), text);
    unlink(scratch_path("generation_config.json"));
    if (generation)
        scratch_write_text(scratch_path("generation_config.json"), generation);
}

static struct hzp_model_config read_good(const char *text, const char *generation)
{
    struct hzp_model_config c;
    struct hzp_err_text err = {.text = "untouched"};
    write_config(text, generation);
    if (hzp_config_read(scratch_dir, &c, &err) != HZP_OK)
        fail_msg("%s\nin %s", err.text, text);
    assert_string_equal(err.text, "untouched");
    return c;
}

static void read_bad(const char *text, int code, const char *param, const char *word)
{
    struct hzp_model_config c;
    struct hzp_err_text err = {.text = ""};
    write_config(text, NULL);
    assert_int_equal(hzp_config_read(scratch_dir, &c, NULL), code);
    assert_int_equal(hzp_config_read(scratch_dir, &c, &err), code);
    if (strcmp(err.param, param) || !strstr(err.text, param) || !strstr(err.text, word) ||
        !strstr(err.text, "config.json"))
        fail_msg("'%s' (%s) does not name '%s' and '%s'", err.text, err.param, param, word);
    assert_null(strchr(err.text, '\n'));
}

/* A tiny llama with fields added, or replaced if named again (a repeated field would be a
 * duplicate, so the text is cut before it). */
#define LLAMA(more) TINY("llama", more)

static void test_kinds(void **state)
{
    struct hzp_model_config c =
        read_good(TINY("granite", ", \"embedding_multiplier\": 12, \"residual_multiplier\": 0.5, "
                                  "\"attention_multiplier\": 0.25, \"logits_scaling\": 8"),
                  NULL);
    assert_float_equal(c.embed_scale, 24, 0);
    assert_float_equal(c.norm_eps, 4e-5, 1e-10);
    assert_float_equal(c.attn_scale, 0.25, 0);
    assert_float_equal(c.logits_scale, 0.125, 0);
    read_bad(TINY("granite", ", \"logits_scaling\": null"), HZP_EFORMAT, "logits_scaling", "null");
    read_bad(TINY("granite", ", \"residual_multiplier\": 0"), HZP_EFORMAT, "residual_multiplier",
             "possible");
    read_bad(LLAMA(", \"logits_scaling\": 8"), HZP_EUNSUP, "logits_scaling", "llama");

    c = read_good(TINY("smollm3", ", \"no_rope_layers\": [1, 0, 1, 0]"), NULL);
    assert_true(c.tied && hzp_config_kind(&c, 1)->no_rope && !hzp_config_kind(&c, 2)->no_rope);
    c = read_good(TINY("smollm3", ", \"no_rope_layer_interval\": 3"), NULL);
    assert_true(hzp_config_kind(&c, 2)->no_rope && !hzp_config_kind(&c, 1)->no_rope);
    assert_false(hzp_config_has_no_rope(&(struct hzp_model_config){.layers = 3}));
    read_bad(TINY("smollm3", ", \"no_rope_layers\": [1, 0]"), HZP_EFORMAT, "no_rope_layers",
             "at least");
    read_bad(TINY("smollm3", ", \"no_rope_layers\": [1, 0, 2]"), HZP_EFORMAT, "no_rope_layers",
             "other than");
    read_bad(LLAMA(", \"no_rope_layers\": [1, 0, 1]"), HZP_EUNSUP, "no_rope_layers", "llama");

    c = read_good(TINY("phi3", ", \"partial_rotary_factor\": 0.7"), NULL);
    assert_int_equal(c.rotary, 4);
    read_bad(TINY("phi3", ", \"partial_rotary_factor\": 0.5"), HZP_EFORMAT, "partial_rotary_factor",
             "even");
    c = read_good(TINY("glm4", ", \"head_dim\": 8"), NULL);
    assert_true(c.rotary == 4 && c.neighbours && c.qkv_bias && c.norm_after && !c.no_norm_before);
    c = read_good(TINY("glm", ", \"head_dim\": 8, \"attention_bias\": false"), NULL);
    assert_true(c.neighbours && !c.qkv_bias && !c.norm_after);
    read_bad(TINY("glm", ", \"attention_bias\": 1"), HZP_EFORMAT, "attention_bias", "");
    read_bad(TINY("glm4", ", \"head_dim\": 6"), HZP_EFORMAT, "partial_rotary_factor", "even");
    c = read_good(TINY("cohere2", ", \"sliding_window\": 5, \"layer_norm_eps\": 1e-3"), NULL);
    assert_true(c.norm_centred && c.parallel && c.neighbours && c.tied && !c.no_norm_before);
    assert_true(c.logits_scale == 0.0625f && c.norm_eps == 1e-3f);
    assert_true(hzp_config_kind(&c, 2)->window == 5 && !hzp_config_kind(&c, 2)->no_rope);
    c = read_good(TINY("cohere2", ", \"sliding_window_pattern\": 2, \"logit_scale\": 1"), NULL);
    assert_true(hzp_config_kind(&c, 1)->no_rope && !hzp_config_kind(&c, 1)->window);
    assert_true(!hzp_config_kind(&c, 0)->no_rope && c.logits_scale == 0);
    c = read_good(TINY("granite_swa", ", \"sliding_window\": 6, \"layer_rope_theta\": [7, 0, 9]"),
                  NULL);
    assert_true(c.sinks && c.rope_theta == 7 && c.rope_local_theta == 9);
    assert_true(!hzp_config_kind(&c, 0)->window && !hzp_config_kind(&c, 0)->no_rope);
    assert_true(hzp_config_kind(&c, 1)->window == 6 && hzp_config_kind(&c, 1)->no_rope);
    assert_true(hzp_config_kind(&c, 2)->window == 6 && hzp_config_kind(&c, 2)->local);
    read_bad(TINY("granite_swa", ", \"layer_rope_theta\": [7, 8, 9]"), HZP_EUNSUP,
             "layer_rope_theta", "8 and 9");
    read_bad(TINY("granite_swa", ", \"layer_rope_theta\": [7, 8]"), HZP_EFORMAT, "layer_rope_theta",
             "3 numbers");
    read_bad(TINY("granite_swa", ", \"layer_rope_theta\": [7, true, 8]"), HZP_EFORMAT,
             "layer_rope_theta", "entry");
    read_bad(TINY("granite", ", \"layer_rope_theta\": [7, 7, 7]"), HZP_EUNSUP, "layer_rope_theta",
             "granite");
    c = read_good(TINY("seed_oss", ", \"attention_bias\": false"), NULL);
    assert_true(!c.qkv_bias && c.heads.dim == 128);
    read_bad(TINY("seed_oss", ", \"attention_out_bias\": true"), HZP_EUNSUP, "attention_out_bias",
             "");
    c = read_good(TINY("cohere", ""), NULL);
    assert_true(c.parallel && !hzp_config_has_no_rope(&c));
    read_bad(TINY("cohere", ", \"use_qk_norm\": true"), HZP_EUNSUP, "use_qk_norm", "");
    read_bad(TINY("cohere2", ", \"sliding_window\": null"), HZP_EFORMAT, "sliding_window", "null");
    read_bad(TINY("llama", ", \"logit_scale\": 0.5"), HZP_EUNSUP, "logit_scale", "0.5");
    c = read_good(TINY("ministral3", ", \"head_dim\": 6, \"rope_parameters\": {\"rope_type\": "
                                     "\"yarn\", \"factor\": 4, \"llama_4_scaling_beta\": 0.1, "
                                     "\"original_max_position_embeddings\": 16}"),
                  NULL);
    assert_int_equal(c.positions, 16);
    read_bad(TINY("ministral3", ""), HZP_EFORMAT, "llama_4_scaling_beta", "missing");
    read_bad(LLAMA(", \"original_max_position_embeddings\": 1, \"rope_scaling\": {\"type\": "
                   "\"su\", \"short_factor\": [1, 1.5, 2], \"long_factor\": [1, 4, 8]}"),
             HZP_EFORMAT, "original_max_position_embeddings", "inf");
    read_bad(TINY("gemma9", ", \"sliding_window\": 8, \"final_logit_softcapping\": 30, "
                            "\"num_experts\": 4"),
             HZP_EUNSUP, "model_type", "needs experts, a cap of logits, windows of attention");
}

/* The text model of a vision model: what it leaves out is as the wrapper, or its class, says. */
static void test_wrapper(void **state)
{
    (void)state;
    struct hzp_model_config c = read_good(
        "{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 106], \"vision_config\": {}, "
        "\"torch_dtype\": \"bfloat16\", \"text_config\": {\"hidden_size\": 2560, "
        "\"intermediate_size\": 10240, \"num_hidden_layers\": 34, \"sliding_window\": 1024, "
        "\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}}}",
        NULL);
    assert_string_equal(c.family, "gemma3_text");
    assert_true(c.vocab == 262208 && c.heads.heads == 8 && c.heads.kv_heads == 4);
    assert_true(c.heads.dim == 256 && c.tied && c.disk_type == HZP_BF16 && c.eos_count == 2);
    assert_true(hzp_config_kind(&c, 0)->window == 1024 && !hzp_config_kind(&c, 5)->window);
#define MISTRAL3(text, more) "{\"model_type\": \"mistral3\", \"text_config\": " text more "}"
    c = read_good(MISTRAL3(TINY("mistral", ""), ", \"tie_word_embeddings\": false"), NULL);
    assert_true(!strcmp(c.family, "mistral") && !c.tied);
    c = read_good(MISTRAL3(TINY("mistral", ", \"tie_word_embeddings\": false"), ""), NULL);
    assert_false(c.tied);
    read_bad("{\"model_type\": \"gemma3\"}", HZP_EFORMAT, "text_config", "missing");
    read_bad(MISTRAL3("{\"model_type\": \"mamba\"}", ""), HZP_EUNSUP, "text_config", "mamba");
    read_bad(MISTRAL3("{}", ""), HZP_EFORMAT, "num_hidden_layers", "missing");
    read_bad(MISTRAL3(TINY("mistral", ""), ", \"quantization_config\": {}"), HZP_EUNSUP,
             "quantization_config", "");
}

static void test_families(void **state)
{
    for (int i = 0; i < HZP_COUNT(tiny_models); i++) {
        struct hzp_model_config c = read_good(tiny_models[i], NULL);
        bool qwen3 = !strcmp(c.family, "qwen3"), qwen2 = !strcmp(c.family, "qwen2");
        assert_int_equal(c.layers, 3);
        assert_int_equal(c.width, 24);
        assert_int_equal(c.inner, 20);
        assert_int_equal(c.vocab, 37);
        assert_int_equal(c.heads.heads, 4);
        assert_int_equal(c.heads.kv_heads, 2);
        assert_int_equal(c.heads.dim, strstr(tiny_models[i], "head_dim") ? 10 : 6);
        assert_int_equal(c.positions, 64);
        double residual = !strcmp(c.family, "granite") ? 0.22 : 1;
        bool gemma3 = !strcmp(c.family, "gemma3_text");
        double theta = !strcmp(c.family, "smollm3") ? 2e6
                       : !strcmp(c.family, "olmo3") ? 5e5
                       : gemma3                     ? 1e6
                                                    : 1e4;
        assert_float_equal(c.norm_eps * residual * residual, 1e-5, 1e-11);
        assert_float_equal(c.rope_theta, theta, 0);
        assert_int_equal(c.qkv_bias, qwen2 || !strcmp(c.family, "glm4"));
        assert_int_equal(c.qk_norm, qwen3 || gemma3);
        assert_int_equal(c.tied, strstr(tiny_models[i], "embeddings\": true") != NULL);
        assert_int_equal(c.disk_type, HZP_F32);
        assert_int_equal(c.bos, 1);
        assert_int_equal(c.eos_count, 1);
        assert_int_equal(c.eos[0], 2);
    }
}

static void test_llama3(void **state)
{
    static const char *const spelled[] = {
        LLAMA(", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", "
              "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
              "\"original_max_position_embeddings\": 32}"),
        LLAMA(", \"rope_parameters\": {\"rope_theta\": 500000, \"rope_type\": \"llama3\", "
              "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4.0, "
              "\"original_max_position_embeddings\": 32}, \"rope_scaling\": null"),
    };
    for (int i = 0; i < HZP_COUNT(spelled); i++) {
        struct hzp_model_config c = read_good(spelled[i], NULL);
        assert_int_equal(c.rope_scaling, HZP_ROPE_LLAMA3);
        assert_float_equal(c.rope_theta, 500000, 0);
        assert_float_equal(c.rope_factor, 8, 0);
        assert_float_equal(c.rope_low_factor, 1, 0);
        assert_float_equal(c.rope_high_factor, 4, 0);
        assert_int_equal(c.rope_original_positions, 32);
    }
}

static void test_rope_kinds(void **state)
{
    struct hzp_model_config c =
        read_good(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}"), NULL);
    assert_int_equal(c.rope_scaling, HZP_ROPE_LINEAR);
    assert_float_equal(c.rope_factor, 2, 0);
    c = read_good(LLAMA(", \"rope_scaling\": {\"rope_type\": \"default\"}"), NULL);
    assert_int_equal(c.rope_scaling, HZP_ROPE_PLAIN);
    c = read_good(LLAMA(", \"rope_parameters\": {\"rope_theta\": 7.5, \"rope_type\": "
                        "\"default\"}"),
                  NULL);
    assert_int_equal(c.rope_scaling, HZP_ROPE_PLAIN);
    assert_float_equal(c.rope_theta, 7.5, 0);
    /* the base of the rotation, wherever the file has it */
    c = read_good(LLAMA(", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, "
                        "\"rope_theta\": 500000}"),
                  NULL);
    assert_int_equal(c.rope_scaling, HZP_ROPE_LINEAR);
    assert_float_equal(c.rope_theta, 500000, 0);
    c = read_good(LLAMA(", \"rope_scaling\": {\"rope_theta\": 500000}"), NULL);
    assert_float_equal(c.rope_theta, 500000, 0);
    c = read_good(LLAMA(", \"rope_theta\": null, \"rope_parameters\": {\"rope_theta\": 2e5}"),
                  NULL);
    assert_float_equal(c.rope_theta, 2e5, 0);
    c = read_good(LLAMA(", \"rope_theta\": 2e5, \"rope_parameters\": {\"rope_theta\": 200000}"),
                  NULL);
    assert_float_equal(c.rope_theta, 2e5, 0);
    read_bad(LLAMA(", \"rope_theta\": 2e5, \"rope_scaling\": {\"rope_theta\": 1e5}"), HZP_EFORMAT,
             "rope_theta", "another");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": {\"type\": "
                   "\"linear\", \"factor\": 2}"),
             HZP_EFORMAT, "rope_type", "linear");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"mscale\": 1}"),
             HZP_EUNSUP, "rope_scaling", "mscale");
    read_bad(LLAMA(", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}}"),
             HZP_EUNSUP, "rope_parameters", "full_attention");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"default\", \"partial_rotary_factor\": 0.5}"),
             HZP_EUNSUP, "partial_rotary_factor", "");
    c = read_good(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, "
                        "\"attention_factor\": null}"),
                  NULL);
    assert_float_equal(c.rope_factor, 2, 0);
    read_bad(LLAMA(", \"rope_theta\": 1e400"), HZP_EFORMAT, "rope_theta", "possible");
    read_bad(LLAMA(", \"rope_theta\": NaN"), HZP_EFORMAT, "rope_theta", "possible");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}"), HZP_EUNSUP,
             "rope_scaling", "dynamic");
    c = read_good(LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}"), NULL);
    assert_int_equal(c.rope_scaling, HZP_ROPE_YARN);
    assert_int_equal(c.positions, 128);
    assert_float_equal(c.rope_amplitude, 0.1 * log(2) + 1, 1e-12);
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"truncate\": 1}"), HZP_EFORMAT,
             "truncate", "neither");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"short_factor\": [1]}"), HZP_EUNSUP,
             "rope_scaling", "short_factor");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1]}"),
             HZP_EFORMAT, "short_factor", "3 numbers");
    c = read_good(LLAMA(", \"original_max_position_embeddings\": 16, \"rope_scaling\": {\"type\": "
                        "\"su\", \"short_factor\": [1, 1.5, 2], \"long_factor\": [1, 4, 8]}"),
                  NULL);
    assert_int_equal(c.rope_scaling, HZP_ROPE_LONG);
    assert_float_equal(c.rope_amplitude, sqrt(1.5), 1e-12); /* 1 + log 4 / log 16 */
    assert_float_equal(c.rope_long[2], 8, 0);
    float table[17 * 6];
    hzp_rope_table(&c, false, 16, table); /* no text beyond 16: the short list */
    assert_float_equal(table[6 + 2], sqrt(1.5) * cos(pow(1e4, -4.0 / 6) / 2), 1e-6);
    hzp_rope_table(&c, false, 17, table);
    assert_float_equal(table[6 + 2], sqrt(1.5) * cos(pow(1e4, -4.0 / 6) / 8), 1e-6);
    read_bad(LLAMA(", \"rope_scaling\": {\"factor\": 2}"), HZP_EFORMAT, "rope_scaling",
             "rope_type");
    read_bad(LLAMA(", \"rope_scaling\": 2"), HZP_EFORMAT, "rope_scaling", "object");
    read_bad(LLAMA(", \"rope_parameters\": [2]"), HZP_EFORMAT, "rope_parameters", "object");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"linear\"}"), HZP_EFORMAT, "factor", "missing");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}"), HZP_EFORMAT,
             "factor", "possible");
    read_bad(LLAMA(", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}"), HZP_EFORMAT,
             "low_freq_factor", "missing");
    read_bad(LLAMA(", \"rope_theta\": 0"), HZP_EFORMAT, "rope_theta", "possible");
    read_bad(LLAMA(", \"rope_theta\": \"x\""), HZP_EFORMAT, "rope_theta", "number");
    read_bad(LLAMA(", \"partial_rotary_factor\": 0.5"), HZP_EUNSUP, "partial_rotary_factor", "");
}

/* The table against the published formulas, implemented again in the simplest way. */
static void test_rope_table(void **state)
{
    enum { POSITIONS = 50, DIM = 16 };
    struct hzp_model_config c = {.heads = {1, 1, DIM},
                                 .rope_theta = 100,
                                 .rope_factor = 4,
                                 .rope_low_factor = 1,
                                 .rope_high_factor = 4,
                                 .rope_original_positions = 64};
    float table[POSITIONS * DIM];
    int changed = 0, mixed = 0;
    for (int kind = 0; kind < 3; kind++) {
        c.rope_scaling = (enum hzp_rope_scaling)kind;
        hzp_rope_table(&c, false, POSITIONS, table);
        for (int j = 0; j < DIM / 2; j++) {
            double plain = 1 / pow(100, 2.0 * j / DIM), f = plain;
            double wave = 2 * acos(-1) / plain;
            if (kind == HZP_ROPE_LINEAR)
                f = plain / 4;
            if (kind == HZP_ROPE_LLAMA3 && wave > 64) {
                f = plain / 4;
                changed++;
            } else if (kind == HZP_ROPE_LLAMA3 && wave >= 16) {
                double smooth = (64 / wave - 1) / (4 - 1);
                f = (1 - smooth) * plain / 4 + smooth * plain;
                mixed++;
            }
            for (int p = 0; p < POSITIONS; p++) {
                assert_float_equal(table[p * DIM + j], cos(p * f), 1e-6);
                assert_float_equal(table[p * DIM + DIM / 2 + j], sin(p * f), 1e-6);
            }
        }
    }
    assert_true(changed == 0 || mixed > 0); /* the cases do occur */
    assert_true(mixed > 0);
}

/* What Gemma and OLMo have otherwise. */
static void test_gemma_olmo(void **state)
{
    struct hzp_model_config c = read_good(TINY("gemma2", ""), NULL);
    assert_true(c.norm_after && c.norm_plus_one && c.gelu && c.tied && !c.no_norm_before);
    assert_true(c.score_cap == 50 && c.logit_cap == 30 && c.heads.dim == 256);
    assert_float_equal(c.attn_scale, 0.0625, 0);
    assert_float_equal(c.embed_scale, sqrt(24), 1e-6);
    c = read_good(TINY("gemma2", ", \"final_logit_softcapping\": null, "
                                 "\"attn_logit_softcapping\": 7, \"query_pre_attn_scalar\": 4"),
                  NULL);
    assert_true(c.score_cap == 7 && c.logit_cap == 0 && c.attn_scale == 0.5f);
    c = read_good(TINY("gemma3_text", ", \"sliding_window\": 8"), NULL);
    assert_true(c.qk_norm && c.score_cap == 0 && c.logit_cap == 0 && c.rope_theta == 1e6);
    assert_true(c.rope_local_theta == 1e4 && hzp_config_has_local(&c));
    c = read_good(TINY("olmo3", ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": "
                                "\"linear\", \"factor\": 2, \"rope_theta\": 300}, "
                                "\"sliding_attention\": {\"rope_theta\": 200}}"),
                  NULL);
    assert_true(c.rope_scaling == HZP_ROPE_LINEAR && c.rope_theta == 300);
    assert_true(c.rope_local_theta == 200 && c.qk_norm_full && c.no_norm_before);
    read_bad(TINY("olmo3", ", \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": "
                           "\"linear\", \"factor\": 2}}"),
             HZP_EUNSUP, "rope_parameters", "sliding_attention");
    read_bad(TINY("olmo3", ", \"rope_parameters\": {\"full_attention\": 3}"), HZP_EFORMAT,
             "rope_parameters", "full_attention");
    read_bad(TINY("gemma2", ", \"hidden_activation\": \"relu\""), HZP_EUNSUP, "hidden_activation",
             "relu");
    read_bad(TINY("gemma3_text", ", \"attn_logit_softcapping\": 50"), HZP_EUNSUP,
             "attn_logit_softcapping", "gemma3_text");
    read_bad(TINY("gemma3_text", ", \"use_bidirectional_attention\": true"), HZP_EUNSUP,
             "use_bidirectional_attention", "true");
    read_bad(TINY("gemma2", ", \"query_pre_attn_scalar\": null"), HZP_EFORMAT,
             "query_pre_attn_scalar", "null");
}

/* The windows of the three layers of a model of 64 positions, which all stay. */
static void check_windows(const char *text, int32_t first, int32_t second, int32_t third)
{
    struct hzp_model_config c = read_good(text, NULL);
    assert_int_equal(c.positions, 64);
    assert_int_equal(hzp_config_kind(&c, 0)->window, first);
    assert_int_equal(hzp_config_kind(&c, 1)->window, second);
    assert_int_equal(hzp_config_kind(&c, 2)->window, third);
}

static void test_windows(void **state)
{
#define SLIDES ", \"sliding_window\": 16"
#define USED   SLIDES ", \"use_sliding_window\": true"
    check_windows(TINY("mistral", SLIDES), 16, 16, 16);
    check_windows(TINY("mistral", ", \"sliding_window\": 64"), 0, 0, 0);
    check_windows(TINY("mistral", SLIDES ", \"layer_types\": [\"full_attention\", "
                                         "\"full_attention\", \"full_attention\"]"),
                  0, 0, 0);
    check_windows(TINY("qwen2", SLIDES), 0, 0, 0);
    check_windows(TINY("qwen2", USED ", \"max_window_layers\": 2"), 0, 0, 16);
    check_windows(TINY("qwen2", USED), 0, 0, 0); /* from layer 28 on */
    check_windows(TINY("qwen2", USED ", \"max_window_layers\": 3"), 0, 0, 0);
    check_windows(TINY("qwen3", USED ", \"layer_types\": [\"sliding_attention\", "
                                     "\"full_attention\", \"sliding_attention\"]"),
                  16, 0, 16);
    check_windows(TINY("smollm3", USED ", \"no_rope_layers\": [1, 0, 1]"), 0, 16, 0);
    check_windows(TINY("gemma2", SLIDES), 16, 0, 16);
    check_windows(TINY("gemma3_text", SLIDES ", \"sliding_window_pattern\": 3"), 16, 16, 0);
    check_windows(TINY("olmo3", SLIDES), 16, 16, 16);
    check_windows(TINY("olmo2", SLIDES), 0, 0, 0);
    read_bad(TINY("qwen3", ", \"sliding_window\": null, \"layer_types\": [\"full_attention\", "
                           "\"sliding_attention\", \"full_attention\"]"),
             HZP_EFORMAT, "sliding_window", "null");
    read_bad(TINY("qwen3", ", \"layer_types\": [\"full_attention\"]"), HZP_EFORMAT, "layer_types",
             "1 entries");
    assert_int_equal(read_good(TINY("llama", ", \"sliding_window\": 16"), NULL).positions, 64);
    read_bad(TINY("mistral", ", \"sliding_window\": 0"), HZP_EFORMAT, "sliding_window", "0");
    read_bad(TINY("qwen3", ", \"layer_types\": [\"full_attention\", \"linear_attention\", "
                           "\"full_attention\"]"),
             HZP_EUNSUP, "layer_types", "linear_attention");
    read_bad(TINY("qwen3", ", \"layer_types\": 3"), HZP_EFORMAT, "layer_types", "list");
}

/* The text of TINY with another value of a field. */
static const char *tiny_with(const char *family, const char *field, const char *value)
{
    static char text[1024];
    char old[1024], key[64];
    snprintf(old, sizeof(old), "%s", TINY("FAMILY", ""));
    snprintf(key, sizeof(key), "\"%s\": ", field);
    char *at = strstr(old, key), *name = strstr(old, "FAMILY");
    assert_non_null(at);
    assert_true(name && name < at);
    snprintf(text, sizeof(text), "%.*s%s%.*s%s%s%s", (int)(name - old), old, family,
             (int)(at - name) - 6, name + 6, key, value, strchr(at, ','));
    return text;
}

/* null is not the family's default: as many heads of keys as of queries, and for others nothing. */
static void test_nulls(void **state)
{
    static const char *const family[] = {"llama", "mistral", "qwen2", "qwen3"};
    for (int i = 0; i < HZP_COUNT(family); i++) {
        struct hzp_model_config c =
            read_good(tiny_with(family[i], "num_key_value_heads", "null"), NULL);
        assert_int_equal(c.heads.kv_heads, 4);
        read_bad(tiny_with(family[i], "max_position_embeddings", "null"), HZP_EFORMAT,
                 "max_position_embeddings", "null");
        read_bad(tiny_with(family[i], "rms_norm_eps", "null"), HZP_EFORMAT, "rms_norm_eps", "null");
    }
    assert_int_equal(read_good(TINY("qwen3", ", \"head_dim\": null"), NULL).heads.dim, 6);
}

/* What transformers writes beside what is read. */
static void test_python_numbers(void **state)
{
    struct hzp_model_config c =
        read_good(LLAMA(", \"model_max_length\": 1000000000000000019884624838656, "
                        "\"router_z_loss\": NaN, \"time_step_limit\": [0.0, Infinity], "
                        "\"a\": -1e400, \"b\\u0000c\": \"d\\u0000\\ud800\""),
                  "{\"max_length\": 18446744073709551616, \"penalty\": -Infinity}");
    assert_int_equal(c.layers, 3);
    read_bad(tiny_with("llama", "vocab_size", "18446744073709551616"), HZP_EFORMAT, "vocab_size",
             "is 18446744073709551616");
    read_bad(tiny_with("llama", "vocab_size", "1e400"), HZP_EFORMAT, "vocab_size", "is 1e400");
    read_bad("{\"model_type\": \"llama\\u0000x\"}", HZP_EFORMAT, "model_type", "u0000");
}

static void test_special_tokens(void **state)
{
    struct hzp_model_config c =
        read_good(LLAMA(""), "{\"eos_token_id\": [5, 6, 7], \"bos_token_id\": 4}");
    assert_int_equal(c.eos_count, 3);
    assert_int_equal(c.eos[2], 7);
    assert_int_equal(c.bos, 4);
    c = read_good(LLAMA(""), "{\"eos_token_id\": null}");
    assert_int_equal(c.eos_count, 1);
    c = read_good(LLAMA(""), "{\"eos_token_id\": [36, 0], \"bos_token_id\": null}");
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos[0], 36);
    assert_int_equal(c.bos, 1);
    struct hzp_err_text err;
    static const char *const bad[] = {"{\"eos_token_id\": \"2\"}",
                                      "{\"eos_token_id\": [[2]]}",
                                      "{\"bos_token_id\": 1.5}",
                                      "{\"eos_token_id\": [0,1,2,3,4,5,6,7,8]}",
                                      "{",
                                      "[]"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        write_config(LLAMA(""), bad[i]);
        assert_true(hzp_config_read(scratch_dir, &c, &err) < 0);
        assert_non_null(strstr(err.text, "generation_config.json"));
        assert_true(hzp_config_read(scratch_dir, &c, NULL) < 0);
    }
}

/* An id outside the vocabulary is reported with its value, for either file. */
static void test_ids_outside(void **state)
{
    static const struct {
        const char *field, *written, *told;
    } bad[] = {
        {"bos_token_id", "-1", "is -1"},
        {"bos_token_id", "37", "is 37"},
        {"bos_token_id", "1e18", "is 1e+18"},
        {"bos_token_id", "9223372036854775807", "is 922337"},
        {"eos_token_id", "-1", "is -1"},
        {"eos_token_id", "1e18", "is 1e+18"},
        {"eos_token_id", "[2, 37]", "is 37"},
        {"eos_token_id", "[2, -1]", "is -1"},
        {"eos_token_id", "[1e18]", "is 1e+18"},
    };
    struct hzp_model_config c;
    struct hzp_err_text err;
    for (int i = 0; i < HZP_COUNT(bad); i++)
        for (int file = 0; file < 2; file++) {
            char text[1024];
            const char *at = strstr(LLAMA(""), bad[i].field);
            if (file == 0)
                snprintf(text, sizeof(text), "%.*s%s\": %s%s", (int)(at - LLAMA("")), LLAMA(""),
                         bad[i].field, bad[i].written, strchr(at, ','));
            else
                snprintf(text, sizeof(text), "{\"%s\": %s}", bad[i].field, bad[i].written);
            write_config(file == 0 ? text : LLAMA(""), file == 0 ? NULL : text);
            if (hzp_config_read(scratch_dir, &c, &err) != HZP_EFORMAT)
                fail_msg("%s %s was accepted", bad[i].field, bad[i].written);
            if (strcmp(err.param, bad[i].field) || !strstr(err.text, bad[i].told) ||
                !strstr(err.text, file == 0 ? "/config.json" : "generation_config.json"))
                fail_msg("'%s' does not name %s and '%s'", err.text, bad[i].field, bad[i].told);
        }
}

static void test_types(void **state)
{
    char text[1024];
    static const struct {
        const char *written;
        enum hzp_dtype type;
    } good[] = {{"\"torch_dtype\": \"bfloat16\"", HZP_BF16},
                {"\"dtype\": \"bfloat16\"", HZP_BF16},
                {"\"torch_dtype\": \"float16\"", HZP_F32},
                {"\"dtype\": null", HZP_F32}};
    for (int i = 0; i < HZP_COUNT(good); i++) {
        snprintf(text, sizeof(text), "%s", LLAMA(""));
        sprintf(strstr(text, "\"torch_dtype\""), "%s}", good[i].written);
        assert_int_equal(read_good(text, NULL).disk_type, good[i].type);
    }
    read_bad(LLAMA(", \"dtype\": \"float8\""), HZP_EUNSUP, "dtype", "float8");
    read_bad(LLAMA(", \"dtype\": 8"), HZP_EFORMAT, "dtype", "string");
}

static void test_refused(void **state)
{
    read_bad(LLAMA(", \"attention_bias\": true"), HZP_EUNSUP, "attention_bias", "true");
    read_bad(TINY("qwen3", ", \"attention_bias\": true"), HZP_EUNSUP, "attention_bias", "true");
    read_good(TINY("qwen2", ", \"attention_bias\": true"), NULL);
    read_bad(LLAMA(", \"mlp_bias\": true"), HZP_EUNSUP, "mlp_bias", "true");
    read_bad(LLAMA(", \"mlp_bias\": 1"), HZP_EFORMAT, "mlp_bias", "neither");
    read_bad(LLAMA(", \"quantization_config\": {}"), HZP_EUNSUP, "quantization_config", "");
    read_bad(TINY("gemma4", ", \"text_config\": {}"), HZP_EUNSUP, "model_type",
             "a nested text_config");
    read_bad("{}", HZP_EFORMAT, "model_type", "missing");
    read_bad("{\"model_type\": 3}", HZP_EFORMAT, "model_type", "string");
    read_bad("{\"model_type\": \"llama\"}", HZP_EFORMAT, "num_hidden_layers", "missing");
    read_bad("{\"model_type\": \"llama\", \"hidden_act\": \"gelu\"}", HZP_EUNSUP, "hidden_act",
             "gelu");
}

/* Each number out of its range; the text is TINY's with that field replaced. */
static void test_ranges(void **state)
{
    static const struct {
        const char *field, *values[8];
    } cases[] = {
        {"hidden_size", {"0", "-1", "65537", "9223372036854775807", "1e99", "2.5", "\"8\"", "23"}},
        {"intermediate_size", {"0", "-5", "524289", "[]"}},
        {"num_hidden_layers", {"0", "1025", "{}", "true"}},
        {"num_attention_heads", {"0", "1025", "5", "3"}},
        {"num_key_value_heads", {"0", "3", "8", "-2"}},
        {"vocab_size", {"0", "4194305", "4294967297"}},
        {"max_position_embeddings", {"0", "16777217", "-64"}},
        {"rms_norm_eps", {"0", "-1e-5", "1", "\"1e-5\"", "false", "1e-320", "1e400", "NaN"}},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++)
        for (int j = 0; j < 8 && cases[i].values[j]; j++) {
            char text[1024], old[1024], key[64];
            snprintf(old, sizeof(old), "%s", LLAMA(""));
            snprintf(key, sizeof(key), "\"%s\": ", cases[i].field);
            char *at = strstr(old, key);
            assert_non_null(at);
            snprintf(text, sizeof(text), "%.*s%s%s%s", (int)(at - old), old, key,
                     cases[i].values[j], strchr(at, ','));
            struct hzp_model_config c;
            struct hzp_err_text err;
            write_config(text, NULL);
            if (hzp_config_read(scratch_dir, &c, &err) != HZP_EFORMAT)
                fail_msg("%s %s was accepted", cases[i].field, cases[i].values[j]);
        }
    read_bad(LLAMA(", \"head_dim\": 7"), HZP_EFORMAT, "head_dim", "even");
    read_bad(LLAMA(", \"head_dim\": 514"), HZP_EFORMAT, "head_dim", "514");
    assert_int_equal(read_good(LLAMA(", \"head_dim\": 512"), NULL).heads.dim, 512);
    assert_int_equal(read_good(LLAMA(", \"head_dim\": null"), NULL).heads.dim, 6);
}

static void test_hostile_json(void **state)
{
    struct hzp_model_config c;
    struct hzp_err_text err;
    static const char *const bad[] = {
        "",
        "{",
        "nonsense",
        "[]",
        "{\"model_type\": \"llama\", \"model_type\": \"llama\"}",
        "{\"model_type\": \"\xff\"}",
        "{\"hidden_size\": 99999999999999999999}",
        "{\"a\": 1e999}",
        "{\"a\": NaN}",
    };
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        write_config(bad[i], NULL);
        assert_int_equal(hzp_config_read(scratch_dir, &c, &err), HZP_EFORMAT);
        assert_non_null(strstr(err.text, "config.json"));
    }
    enum { DEEP = 1000000 };
    char *deep = malloc(DEEP + 1);
    memset(deep, '[', DEEP);
    memcpy(deep, "{\"a\":", 5);
    deep[DEEP] = 0;
    write_config(deep, NULL);
    free(deep);
    assert_int_equal(hzp_config_read(scratch_dir, &c, &err), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "depth"));
    assert_int_equal(truncate(scratch_path("config.json"), (off_t)1 << 31), 0);
    assert_int_equal(hzp_config_read(scratch_dir, &c, &err), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "2147483648 bytes"));
    assert_int_equal(hzp_config_read(scratch_path("absent"), &c, &err), HZP_ENOENT);
    char far[6000];
    memset(far, 'x', sizeof(far) - 1);
    far[sizeof(far) - 1] = 0;
    assert_int_equal(hzp_config_read(far, &c, &err), HZP_EINVAL);
}

static void test_parameters(void **state)
{
    /* the published sizes of Llama-3.2-1B, Qwen2.5-0.5B and Qwen3-0.6B */
    struct hzp_model_config c = {.family = "llama",
                                 .layers = 16,
                                 .width = 2048,
                                 .inner = 8192,
                                 .vocab = 128256,
                                 .heads = {32, 8, 64},
                                 .tied = true};
    assert_int_equal(hzp_config_parameters(&c), 1235814400);
    c = (struct hzp_model_config){.family = "qwen2",
                                  .layers = 24,
                                  .width = 896,
                                  .inner = 4864,
                                  .vocab = 151936,
                                  .heads = {14, 2, 64},
                                  .tied = true,
                                  .qkv_bias = true};
    assert_int_equal(hzp_config_parameters(&c), 494032768);
    c = (struct hzp_model_config){.family = "qwen3",
                                  .layers = 28,
                                  .width = 1024,
                                  .inner = 3072,
                                  .vocab = 151936,
                                  .heads = {16, 8, 128},
                                  .tied = true,
                                  .qk_norm = true};
    assert_int_equal(hzp_config_parameters(&c), 596049920);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),          cmocka_unit_test(test_wrapper),
        cmocka_unit_test(test_families),       cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_rope_kinds),     cmocka_unit_test(test_rope_table),
        cmocka_unit_test(test_windows),        cmocka_unit_test(test_gemma_olmo),
        cmocka_unit_test(test_special_tokens), cmocka_unit_test(test_types),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_hostile_json),   cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_ids_outside),    cmocka_unit_test(test_nulls),
        cmocka_unit_test(test_python_numbers),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
