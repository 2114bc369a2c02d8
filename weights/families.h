/* SPDX-License-Identifier: Apache-2.0 */
/* weights/families.h - the differences between model families, as data.
 *
 * One table maps tensors on disk to rows of the layout's tensors, one struct a family says which of
 * its rows count, and holds the defaults of its configuration class.  Names on disk are in
 * families.c and nowhere else.
 *
 * Thread: any; everything here is constant.
 */
#pragma once

#include "base/base.h"
#include "weights/roles.h"

/* Which rows of the tensor a file's tensor fills. */
enum hzp_tensor_part {
    HZP_PART_ALL,
    HZP_PART_Q,
    HZP_PART_K,
    HZP_PART_V,
    HZP_PART_GATE,
    HZP_PART_UP
};

struct hzp_family_row {
    const char *name; /* '*' is replaced by the layer's number */
    enum hzp_role role;
    enum hzp_tensor_part part;
};

struct hzp_family {
    const char *model_type;
    int stores; /* how its tensors are stored: bits of families.c */
    bool qkv_bias, qk_norm;
    bool bias_switch; /* attention_bias adds biases to all projections: unsupported */
    /* What an absent field means in the family's configuration class; 0: kv_heads = heads, dim =
     * width / heads, no window. */
    int32_t kv_heads, dim, positions;
    int32_t window;           /* -1: none unless the file has one; 0: the family has no windows */
    int32_t window_layers;    /* max_window_layers; 0: the family has no such field */
    int32_t no_rope_interval; /* no_rope_layer_interval; 0: all layers rotate */
    int32_t original;         /* original_max_position_embeddings; 0: as positions */
    double theta;             /* rope_theta; 0: 10000 */
    bool tied;                /* tie_word_embeddings */
    bool neighbours;          /* as in weights/config.h */
    double rotary;            /* what an absent partial_rotary_factor means; 0: 1 */
    bool bias_field;          /* attention_bias, true if absent, is of q, k and v alone */
    bool partial;             /* partial_rotary_factor: the first elements of a head turn */
    bool fused;               /* q, k and v, and gate and up, are one tensor each on disk (Phi-3) */
    bool query_beta;          /* queries grow with their position (Ministral 3) */
    bool scalars; /* Granite's: multipliers of embeddings, residuals, attention; logits_scaling */
    bool window_switch;   /* the window applies only if use_sliding_window is true */
    int32_t window_every; /* each n-th layer has no window, the others have; 0: all have */
    bool norm_after, no_norm_before, norm_plus_one, qk_norm_full; /* as in weights/config.h */
    bool norm_centred, parallel, sinks;
    bool full_first;    /* of window_every layers the first has no window, not the last */
    bool layer_thetas;  /* layer_rope_theta: each layer's, or 0: it does not rotate */
    bool window_rope;   /* layers without a window do not rotate (Cohere 2) */
    double logit_scale; /* what logits are multiplied by if the file has no number; 0: it is 1 */
    bool gemma;         /* Gemma's scalars and GELU */
    double score_cap, logit_cap; /* what absent caps mean; 0: the family has no such cap, or none */
    bool caps_scores;            /* attn_logit_softcapping is read */
    double local_theta;          /* rope_theta of layers with a window; 0: they have no own */
    double eps;                  /* rms_norm_eps, or of a centred norm layer_norm_eps; 0: 1e-6 */
};

/* NULL: no such family. */
const struct hzp_family *hzp_family_find(const char *model_type);

/* "llama, mistral, ..." for messages. */
const char *hzp_family_list(void);

/* Writes the row's name for the layer (ignored where the name has no layer) to ret [size]. */
void hzp_family_name(const struct hzp_family_row *row, int32_t layer, char *ret, size_t size);

/* The rows of a role, in the order in which they fill its tensor; returns how many. */
enum { HZP_FAMILY_ROWS_MAX = 3 };
int hzp_family_rows(const struct hzp_family *family, enum hzp_role role,
                    const struct hzp_family_row *ret[HZP_FAMILY_ROWS_MAX]);

/* Whether the name is a buffer that old exports contain although it is no parameter. Such buffers
 * are recomputed, so they are ignored. */
bool hzp_family_is_leftover(const char *name);
