/* SPDX-License-Identifier: Apache-2.0 */
/* weights/roles.h - what the tensors of a model are for.
 *
 * The layout (layout.h) gives each its place, the families (families.h) its names on disk.
 *
 * Thread: any; constants.
 */
#pragma once

/* The role of a tensor. */
enum hzp_role {
    HZP_EMBED,      /* [vocab][width] */
    HZP_QKV,        /* [(heads + 2 kv_heads) dim][width] */
    HZP_O,          /* [width][heads dim] */
    HZP_GATE_UP,    /* [2 inner][width] */
    HZP_DOWN,       /* [width][inner] */
    HZP_ATTN_NORM,  /* [1][width] */
    HZP_MLP_NORM,   /* [1][width] */
    HZP_QKV_BIAS,   /* [1][(heads + 2 kv_heads) dim]; Qwen2 */
    HZP_Q_NORM,     /* [1][dim]; Qwen3; or [1][heads dim]; OLMo 2 */
    HZP_K_NORM,     /* likewise, with kv_heads */
    HZP_FINAL_NORM, /* [1][width] */
    HZP_HEAD,       /* [vocab][width]; absent when tied */
    HZP_ATTN_POST,  /* [1][width]: the norm of what attention, or the MLP, adds to the stream */
    HZP_MLP_POST,   /* [1][width]; OLMo 2, Gemma */
    HZP_SINK,       /* [1][heads]: attention's sinks; Granite with windows */
    HZP_ROLE_COUNT
};
