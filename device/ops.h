/* SPDX-License-Identifier: Apache-2.0 */
/* device/ops.h - the ops: everything a device can compute.
 *
 * The enum, the names, the typed callers, the trace labels and opcheck's coverage test are
 * generated from the one list below.  Column 2 is the op's class: it determines which resource the
 * op exhausts, which lane it goes to and how much it slows other ops down.
 *
 * All data are row-major matrices; a row is a token, or a row of weights.  Weights are stored as on
 * disk: W is [out][in], so a projection is y = x W^T.  "act" below is the activations' type: BF16
 * when the weights are BF16, F32 when they are F32.  The residual stream and its gradient are
 * always F32.  Sums are at least F32.  Outputs overlap no input unless noted.  Rows may be 0: the
 * op then does nothing.
 *
 * Thread: engine.  nvcc reads this header too: use only what C17 and C++17 share.
 */
#pragma once

#include "base/base.h"

#define HZP_OPS(X)                                                                                 \
    /* forward */                                                                                  \
    X(embed, ROWS)                                                                                 \
    X(rmsnorm, ROWS)                                                                               \
    X(matmul, WIDE)                                                                                \
    X(project, THIN)                                                                               \
    X(quantize, ROWS)                                                                              \
    X(codes, ROWS)                                                                                 \
    X(rope, ROWS)                                                                                  \
    X(attn_decode, DECODE)                                                                         \
    X(attn_prefill, PREFILL)                                                                       \
    X(attn_packed, PREFILL)                                                                        \
    X(swiglu, ROWS)                                                                                \
    X(gather, ROWS)                                                                                \
    X(scatter, ROWS)                                                                               \
    X(sample, ROWS)                                                                                \
    X(collective, NETWORK)                                                                         \
    /* loss and backward; matmul is its own backward */                                            \
    X(xent, ROWS_BWD)                                                                              \
    X(seq_loss, ROWS_BWD)                                                                          \
    X(embed_bwd, ROWS_BWD)                                                                         \
    X(rmsnorm_bwd, ROWS_BWD)                                                                       \
    X(rope_bwd, ROWS_BWD)                                                                          \
    X(attn_packed_bwd, ATTN_BWD)                                                                   \
    X(swiglu_bwd, ROWS_BWD)                                                                        \
    X(colsum, ROWS_BWD)                                                                            \
    X(cast, ROWS)                                                                                  \
    X(fill, UPDATE)                                                                                \
    X(noise, UPDATE)                                                                               \
    /* update and publication */                                                                   \
    X(sumsq, UPDATE)                                                                               \
    X(adamw, UPDATE)                                                                               \
    X(muon, UPDATE)                                                                                \
    X(audit, UPDATE)

enum hzp_op {
#define X(name, class_) HZP_OP_##name,
    HZP_OPS(X)
#undef X
        HZP_OP_COUNT
};

/* How an op loads the device, and so affects the ops that run beside it. */
enum hzp_class {
    HZP_CLASS_THIN,     /* products of few rows, limited by reading their operands */
    HZP_CLASS_WIDE,     /* products of many rows */
    HZP_CLASS_GRAD,     /* products for gradients */
    HZP_CLASS_DECODE,   /* attention of decode rows: limited by memory */
    HZP_CLASS_PREFILL,  /* attention of prompts, and of training's forward pass */
    HZP_CLASS_ATTN_BWD, /* backward of attention */
    HZP_CLASS_ROWS,     /* ops on single rows, forward */
    HZP_CLASS_ROWS_BWD, /* ops on single rows, loss and backward */
    HZP_CLASS_UPDATE,   /* ops on parameters */
    HZP_CLASS_NETWORK,  /* exchanges between ranks */
    HZP_CLASS_COUNT
};

/* The resource of a device that an op exhausts first, or that a lane is for. */
enum hzp_bound { HZP_BOUND_COMPUTE, HZP_BOUND_MEMORY, HZP_BOUND_NETWORK, HZP_BOUND_COPY };
enum hzp_dtype {
    HZP_F32,
    HZP_BF16,
    HZP_I16,
    HZP_I32,
    HZP_E4M3, /* device/fp8.h */
    HZP_Q8    /* an 8-bit moment: device/q8.h */
};

struct hzp_link; /* mesh/link.h */

struct hzp_mat {
    void *ptr; /* device memory; borrowed, never freed by an op; NULL: absent */
    int32_t rows, cols;
    int32_t stride; /* elements from one row to the next, >= cols */
    enum hzp_dtype type;
};

/* Which rows belong to which sequence.  Segment i owns rows row0[i] .. row0[i+1]-1; its first row
 * is at position pos0[i] of its sequence.  Both lists are host memory that the device reads, too
 * (HZP_MEM_HOST): libraries of attention ask the host for lengths. */
struct hzp_segs {
    const int32_t *row0; /* [count + 1], ascending */
    const int32_t *pos0; /* [count] */
    int32_t count;
    /* most rows of a segment; most positions a row sees (pos0 + rows): known to the host */
    int32_t rows_max, ctx_max;
};

/* The columns of a packed q|k|v row: heads*dim, then kv_heads*dim, kv_heads*dim. heads is a
 * multiple of kv_heads (grouped-query attention: query head h reads kv head h / (heads /
 * kv_heads)). */
struct hzp_heads {
    int32_t heads, kv_heads, dim;
};

/* One layer's paged keys and values: [pages][kv_heads][page_rows][dim] each.  type: act, or E4M3;
 * then k_scale and v_scale are [pages][kv_heads][page_rows], and an element is its code times the
 * scale of its row of its head. */
struct hzp_kv {
    void *k, *v;
    int32_t pages, page_rows;
    enum hzp_dtype type;
    float *k_scale, *v_scale; /* NULL unless E4M3 */
};

/* y[r] = table[id[r] - first]; zeros where the table has no such row.  table [rows of a
 * vocabulary, from `first` on][width] act or F32; y [rows][width] F32. */
struct hzp_embed_args {
    struct hzp_mat table, y;
    const int32_t *id; /* [rows], each in 0 .. vocab-1 */
    int32_t first;
};

/* y[r] = x[r] * w / sqrt(mean(x[r]^2) + eps) (+ add[r]).  x F32, w [1][cols] act, y act. rstd
 * [rows] F32: the input of rmsnorm_bwd; NULL: not stored.  plus_one, of all ops with norms: 1 + w
 * stands for w.  centred: x[r] - mean(x[r]) stands for x[r] (LayerNorm without a bias).  add
 * absent, or F32; then y is F32, too, and may be add. */
struct hzp_rmsnorm_args {
    struct hzp_mat x, w, add, y;
    float *rstd;
    float eps;
    int32_t plus_one, centred;
};

/* c = op(a) op(b) + bias (+ c if accumulate); op(m) is m or its transpose.  a and b of one type,
 * F32 or BF16; c F32 or, if a is BF16, BF16.  bias [1][cols of c] of a's type, or absent.
 * from, only with accumulate: what is added instead of c, of c's type, shape and stride; or absent.
 * Forward, input gradient and weight gradient differ only in the flags.
 * Or a and b E4M3, as quantize makes them (no NaN among the codes), with their scales: then
 *   c[i][j] = scale_a[i] scale_b[j] sum over k of a[i][k] b[j][k] + bias[j] (+ c[i][j]),
 * trans_b alone is set; c, and bias, F32 or BF16. */
struct hzp_matmul_args {
    struct hzp_mat a, b, c, bias, from;
    const float *scale_a, *scale_b; /* [rows of a], [rows of b]; NULL unless E4M3 */
    int32_t trans_a, trans_b;
    int32_t accumulate;
};

/* A forward product with the norm in front of it and SwiGLU behind it, as one op:
 *   n[r] = a[r] * norm / sqrt(mean(a[r]^2) + eps), or a[r] if norm is absent
 *   p = n b^T + bias, with the scales of E4M3
 *   c = silu(p[:, :width]) * p[:, width:] if gated, width = cols of c, or p
 * and nothing is rounded in between.  Of the product trans_b alone is set.  norm [1][cols of a] of
 * b's type; then a is F32, and b is not E4M3.  gated: b has 2 width rows.  A plan has it only where
 * hzp_device_projects says so: the other backends have the reference. */
struct hzp_project_args {
    struct hzp_matmul_args product;
    struct hzp_mat norm; /* absent: none */
    float eps;
    int32_t gated;
};

/* scale[r] = max(max over c of |x[r][c]| / 448, 2^-126), y[r][c] = E4M3 of x[r][c] / scale[r], in
 * F32 arithmetic, quotients too: one result on every backend.  A row with a NaN or an infinity gets
 * a scale of NaN and codes of 0, so everything computed from it is NaN.  x F32 or BF16, y E4M3. */
struct hzp_quantize_args {
    struct hzp_mat x, y;
    float *scale; /* [rows] */
};

/* y, scale = quantize(h), as one op:
 *   h = rmsnorm(x), by norm and eps, x [rows][cols] F32, h rounded to norm's type; or, norm absent,
 *   h = swiglu(x), x [rows][2 cols] act, h rounded to x's type.
 * The device's own rmsnorm and swiglu, so the codes are the same as those of two ops.
 * norm [1][cols] act.
 * A plan has it only where hzp_device_has_codes says so: the others have the reference. */
struct hzp_codes_args {
    struct hzp_mat x, norm, y;
    float *scale; /* [rows] */
    float eps;
};

/* Per row and head of q and k, first the optional RMS norm over the head (weights q_norm and
 * k_norm, [1][dim] act; absent: none), then the rotation of its halves,
 *   y[j]       = x[j] c[j] - x[j + dim/2] s[j]
 *   y[j+dim/2] = x[j+dim/2] c[j] + x[j] s[j]      with c, s = table[pos][j], table[pos][dim/2 + j].
 * v is copied.  x, y [rows][(heads + 2 kv_heads) dim] act; y may be x.
 * table [positions][dim] F32: dim/2 cosines, then dim/2 sines; stride 0: one row for all positions.
 * Where kv.k is not NULL, k and v of y's row r are also appended to the layer's pages, at
 * slot[r] = page * page_rows + offset; slot < 0: the row is not kept.  No two rows have one
 * slot.  To E4M3 pages each head of the row goes as a row of `quantize` does. */
struct hzp_rope_args {
    struct hzp_mat x, y, q_norm, k_norm, table;
    const int32_t *pos;  /* [rows] */
    struct hzp_kv kv;    /* k and v NULL: no append */
    const int32_t *slot; /* [rows]; NULL with kv.k */
    struct hzp_heads heads;
    float eps;
    int32_t plus_one;
};

/* out[r] = softmax(x[r]) V over the positions that r sees of its sequence: 0 .. pos(r), or the last
 * `window` of these if that is > 0.  The scores x[r] are q[r] K^T scale, or of these, if cap > 0,
 * cap tanh(score / cap).  K and V are read
 * from pages: position p of segment i lies in page[i * page_stride + p / page_rows].  The rows'
 * own k and v have been appended before.  attn_decode: every segment has one row.  K and V of E4M3
 * pages have no NaN among their codes (rope writes none); a row whose scale is NaN is NaN.
 * qkv as in rope, out [rows][heads dim] act.  sink [1][heads] act: one more score of each head, to
 * which no value belongs, so that the weights' sum is below 1; or absent. */
struct hzp_attn_paged_args {
    struct hzp_mat qkv, out, sink;
    struct hzp_kv kv;
    struct hzp_segs segs;
    const int32_t *page; /* [segs.count][page_stride]; host memory, as the lists of segs */
    /* The same page numbers where the device keeps them from step to step, as lines of a table: of
     * segment i in line[i].  NULL: the op reads `page`.  Given, the op reads the table, and `page`
     * is only for the plan checker. */
    const int32_t *table; /* [lines][page_stride] */
    const int32_t *line;  /* [segs.count]; host memory, as the lists of segs */
    int32_t page_stride, lines;
    struct hzp_heads heads;
    float scale, cap;
    int32_t window;
};
#define hzp_attn_decode_args  hzp_attn_paged_args
#define hzp_attn_prefill_args hzp_attn_paged_args

/* The same for training: keys and values are the k and v columns of the rows themselves. Each
 * segment is a document: causal, and no row sees another document.  qkv may have more rows than
 * out: its last out.rows rows are the ones computed, and the segments count only those. The rows
 * before them belong to the first document, whose pos0 is then at most their number (its position p
 * is p - pos0 rows from its first row); all other pos0 are 0. lse [rows][heads] F32 = log of the
 * softmax's denominator (of the scores x, and of the sink); NULL: not stored. */
struct hzp_attn_packed_args {
    struct hzp_mat qkv, out, sink;
    float *lse;
    struct hzp_segs segs;
    struct hzp_heads heads;
    float scale, cap;
    int32_t window;
};

/* y = f(x[:, :width]) * x[:, width:], f(g) = g s(g), s(g) = 1 / (1 + exp(-z)), z = g (silu), or
 * if gelu z = sqrt(8 / pi) (g + 0.044715 g^3): GELU as its approximation by tanh.
 * x [rows][2 width] act (gate, then up), y [rows][width] act. */
struct hzp_swiglu_args {
    struct hzp_mat x, y;
    int32_t gelu;
};
#define HZP_GELU_1 1.5957691216057308f  /* sqrt(8 / pi) */
#define HZP_GELU_3 0.07135481627260025f /* 0.044715 of it */

/* y[i] = x[index[i]]: picks the rows whose logits are wanted.  x and y of one type. */
struct hzp_gather_args {
    struct hzp_mat x, y;
    const int32_t *index; /* [y.rows] */
};

/* y[index[i]] = x[i]: replaces rows of y.  The indices differ.  x and y of one type. */
struct hzp_scatter_args {
    struct hzp_mat x, y;
    const int32_t *index; /* [x.rows] */
};

/* How one token is sampled.  In this order: mask, bias, penalties, then, if no token is given and
 * temperature > 0: division by temperature, top_k, top_p, min_p, draw.
 *   mask: a token whose bit is not set is no candidate: it counts in none of the following
 *   repetition r: seen tokens' logits l become l / r if l > 0, else l * r
 *   presence p, frequency f: l -= p * (count_out > 0) + f * count_out
 *   A token's edits are computed in double and rounded to F32 once: what two tokens' logits are
 *   compared by, and whether they are equal, is F32 on every backend.  NaN is -INFINITY.
 *   top_k: the k largest (0: all; ties by lower id).  top_p: the fewest likeliest tokens whose
 *   probabilities (normalized over what top_k left) reach p (1: all).  min_p: tokens at least
 *   min_p times as likely as the likeliest.
 * Draw: the largest of logit + Gumbel noise g = -log(-log(u)), u = (w + 0.5) 2^-32, w word 0 of
 * Philox4x32-10 with key = seed and counter = (token, position, choice, 0): other rows of the batch
 * do not change it.  temperature 0: the largest logit, ties by lower id.  If the logits of all
 * candidates are -INFINITY: the candidate with the lowest id. */
struct hzp_sample_row {
    float temperature, top_p, min_p;
    float repetition, presence, frequency; /* 1, 0, 0: none */
    int32_t top_k;
    uint64_t seed;
    uint32_t choice, position;
    int32_t edit0, edits; /* its range of the edit list */
    int32_t given;        /* >= 0: this token is taken without a draw; -1: draw */
    int32_t tops;         /* how many of the likeliest tokens to report, 0 .. HZP_TOPS_MAX */
    int32_t mask;         /* 0: every token is a candidate; m: those of row m - 1 of the masks */
};
enum { HZP_TOPS_MAX = 20 };

/* The words of a mask over the vocabulary: token t is bit t % 32 of word t / 32. */
#define hzp_mask_words(vocab) (((vocab) + 31) / 32)

/* The bias and the counts of one token of one request; at most one edit per token. */
struct hzp_logit_edit {
    int32_t token;
    float bias;        /* added first; -INFINITY bans */
    int32_t count_out; /* times generated so far */
    int32_t seen;      /* 1: in the prompt or the output */
};

/* Reported log-probabilities are log softmax of the raw logits: before mask, bias, penalties and
 * temperature. */
struct hzp_sample_args {
    struct hzp_mat logits;            /* [rows][vocab] F32; scratch: contents undefined after */
    const struct hzp_sample_row *row; /* [rows] */
    const struct hzp_logit_edit *edit;
    /* [masks][hzp_mask_words(vocab)], each with at least one token; NULL: no row has a mask */
    const uint32_t *mask;
    int32_t *token;     /* [rows] */
    float *logprob;     /* [rows] of token[r] */
    int32_t *rank;      /* [rows] 1: token[r] was the likeliest (ties: best rank) */
    int32_t *top_token; /* [rows][HZP_TOPS_MAX], likeliest first; NULL if no row has tops */
    float *top_logprob;
};

enum hzp_collective_part { HZP_COLLECTIVE_WHOLE, HZP_COLLECTIVE_BEGIN, HZP_COLLECTIVE_END };

/* A transfer among all ranks of a link (mesh/link.h, which has the formulas), posted by the lane
 * that runs the op and waited for: the op ends when this rank's data have arrived.  Every rank runs
 * the same collectives on a link in the same order; the plan checker sees the link as memory that
 * each of them writes, so it proves that they are ordered.
 *
 * It may be two ops instead, between which a lane computes something else: BEGIN posts the
 * transfer; END, of the same arguments, waits for the oldest that was begun on the link, of at most
 * HZP_LINK_BEGUN_MAX.  No item between them touches recv or send: the checker proves it of a plan.
 * Where the device's streams order transfers, BEGIN is all of it.
 *
 *   all-reduce      recv [rows][cols] F32 = the sum of all ranks' send, in rank order
 *   all-gather      recv [ranks rows][cols] = all ranks' send [rows][cols], one behind the other
 *   reduce-scatter  recv [rows][cols] F32 (+)= this rank's rows of the sum of all ranks' send
 *                   [ranks rows][cols]; with accumulate: ((recv + rank 0) + rank 1) + ...
 * An all-reduce may be of 8-byte numbers instead, each of them two columns of an F32 matrix.
 * send absent: in place (all-reduce: recv; all-gather: this rank's rows of recv).  Rows have no
 * gaps.  HZP_EDEVICE: the link failed; hzp_link_state says which rank, and why. */
struct hzp_collective_args {
    struct hzp_link *link;
    struct hzp_mat recv, send;
    int32_t kind; /* enum hzp_transfer_op */
    int32_t accumulate;
    int32_t wide; /* all-reduce: 0, or the enum hzp_wire of 8 bytes that two columns make */
    int32_t tag;  /* all ranks name the same, or the link fails */
    int32_t part; /* enum hzp_collective_part */
};

/* What a row's loss f is, as a function of lp, the log-probability of its target:
 *
 *     XENT   -lp
 *     IS     -r A                                        importance sampling
 *     PPO    -min(r A, clip(r) A)                        clip(r): into [1 - low, 1 + high]
 *     CISPO  -clip(r) A lp, clip(r) held fixed
 *     DPPO   -keep r A + beta (log r)^2                  keep 0 where A > 0 and p - q > high, or
 *                                                        A < 0 and p - q < -low; otherwise 1
 *     DRO    -A lp + beta/2 (lp - old)^2
 *     SOFT   -sum p_k lp_k - rest log(max(1 - sum exp(lp_k), 1e-6))     (Hinton et al. 2015)
 *
 * and of each but SOFT  + kl (exp(reference - lp) - (reference - lp) - 1).  A is the advantage;
 * old, reference: log-probabilities of the target by the model that drew it and by another one;
 * p = exp(lp), q = exp(old), r = exp(lp - old), where lp is rounded to F32, as old was.
 * Differences in exponents and log r are held within +-20; the slope ignores that bound. */
enum hzp_loss_kind {
    HZP_LOSS_XENT,
    HZP_LOSS_IS,
    HZP_LOSS_PPO,
    HZP_LOSS_CISPO,
    HZP_LOSS_DPPO,
    HZP_LOSS_DRO,
    HZP_LOSS_SOFT,
    HZP_LOSS_KINDS,
    /* Kinds whose loss is a whole sequence's (struct hzp_seq_loss_args): xent takes f and -f' of
     * such a row as they are, from old and advantage. */
    HZP_LOSS_DPO = HZP_LOSS_KINDS,
    HZP_LOSS_IPO,
    HZP_LOSS_GSPO,
    HZP_LOSS_ALL
};

/* What a teacher gives the tokens that follow a row: probabilities p_k of the likeliest, and what
 * counts for all others together: their probability, or 0 to leave them out.  lp_k is token k's
 * log-probability; the row's target is only what lp is of. */
enum { HZP_SOFT_MAX = 20 };
struct hzp_soft {
    int32_t count;               /* 1 .. HZP_SOFT_MAX */
    int32_t token[HZP_SOFT_MAX]; /* all different */
    float p[HZP_SOFT_MAX], rest; /* >= 0 */
};
enum { HZP_SOFT_WORDS = sizeof(struct hzp_soft) / 4 };

struct hzp_row_loss {
    int32_t kind;          /* enum hzp_loss_kind */
    float inv_temperature; /* > 0: lp is that of logits times it */
    float old, advantage;  /* not read by XENT */
    float reference, kl;   /* kl 0: no such term, reference is not read */
    float low, high, beta; /* >= 0; a kind that has none ignores it */
};
enum { HZP_ROW_LOSS_WORDS = sizeof(struct hzp_row_loss) / 4 };

/* With z[r] = x[r] inv_temperature, lp[r] = z[r][target[r]] - log sum exp(z[r]), w = weight[r] of
 * either sign and f of how[r]:
 *
 *     loss[r] = w f(lp[r])      dx[r] = -w f'(lp[r]) inv_temperature (softmax(z[r]) - onehot)
 *
 * and entropy[r] that of softmax(z[r]).  target -1: all of these are 0.  cap > 0: x is capped by it
 * (as cast does), and dx is that of what was capped: it has the factor 1 - (x / cap)^2, too.  dx
 * act, absent: none.  dx may be x, [rows][vocab] F32, if F32.  In BF16 each row may lie in the
 * first half of x's (the same ptr, twice the stride): the second keeps its logits.  how NULL: XENT
 * of x; rows of IS with old = lp and A = 1 have the same bits in dx. */
struct hzp_xent_args {
    struct hzp_mat x, dx;
    const int32_t *target;          /* [rows] */
    float *loss;                    /* [rows] */
    const float *weight;            /* [rows]; NULL: all 1 */
    const struct hzp_row_loss *how; /* [rows]; NULL: cross-entropy */
    float *lp, *entropy;            /* [rows]; NULL: not wanted */
    float cap;
    const struct hzp_soft *soft; /* [rows], read in rows of SOFT; NULL: there are none */
};

/* What a loss over a sequence is to its rows: out[r] = how[r], where the kind of the sequence's
 * first row is one of a single row; else old is f in the first row and 0 in the others, and
 * advantage is -df/dlp[r]:
 *
 *     DPO    -log sigmoid(beta D), D = sum(lp - reference) over the chosen sequence less the same
 *            over the rejected one
 *     IPO    (D - 1 / (2 beta))^2, with means in place of the sums of D
 *     GSPO   -min(s A, clip(s) A), s = exp(mean(lp - old)); kl becomes kl / n, n rows
 *
 * Sequence i has the rows first[i] .. first[i + 1] - 1.  A pair is two neighbouring ones, the
 * rejected one, whose advantage is negative, behind the chosen one, which has the value; without
 * its other half a sequence is compared with 0.  A, beta and the bounds are those of its first row;
 * the mean of GSPO is held within +-20.  lp [1][rows] F32. */
struct hzp_seq_loss_args {
    struct hzp_mat lp;
    const struct hzp_row_loss *how; /* [rows] */
    const int32_t *first;           /* [seqs + 1] ascending, from 0 to rows */
    struct hzp_row_loss *out;       /* [rows] */
    int32_t seqs;
};

/* dtable[id[r] - first] += dy[r], where the table has that row.  dtable [vocab][width] F32, dy
 * [rows][width] F32.  Repeated ids are added in row order: bitwise repeatable. */
struct hzp_embed_bwd_args {
    struct hzp_mat dtable, dy;
    const int32_t *id;
    int32_t first;
};

/* With n = x rstd:  dx += rstd (dy w - n mean(dy w n)),  dw += sum over rows of dy n.
 * centred: n = (x - mean(x)) rstd, and dx += rstd (dy w - n mean(dy w n) - mean(dy w)).
 * dy act or F32, x and dx F32, dw [1][cols] F32 (absent: not wanted). */
struct hzp_rmsnorm_bwd_args {
    struct hzp_mat dy, x, w, dx, dw;
    const float *rstd; /* [rows] */
    int32_t plus_one, centred;
};

/* The transpose of rope: dy -> dx, in place if they are the same matrix.  x is rope's input, read
 * only if there are norms.  dq_norm, dk_norm [1][dim] F32, added to. */
struct hzp_rope_bwd_args {
    struct hzp_mat dy, dx, x, q_norm, k_norm, dq_norm, dk_norm, table;
    const int32_t *pos;
    struct hzp_heads heads;
    float eps;
    int32_t plus_one;
};

/* dqkv from dout, with P = exp(x - lse) where r sees the position, D = sum(dout * out) per row and
 * head:
 *   dv += P^T dout, dP = dout v^T, dS = P (dP - D) scale, dq += dS k, dk += dS^T q;
 * with a cap, dS has the factor 1 - (x / cap)^2, too.  With a sink, dsink [1][heads] F32 gets
 *   dsink[h] -= sum over rows of exp(sink[h] - lse[r][h]) D.
 * qkv is the (rotated) input of attn_packed, out and lse its results.  Overwrites dqkv. */
struct hzp_attn_packed_bwd_args {
    struct hzp_mat qkv, out, dout, dqkv, sink, dsink;
    const float *lse;
    struct hzp_segs segs;
    struct hzp_heads heads;
    float scale, cap;
    int32_t window;
};

/* With s and z as in swiglu:  du = dy g s,  dg = dy u s (1 + g z' (1 - s)), z' the slope of z.
 * x as in swiglu, dy [rows][width] act, dx [rows][2 width] act. */
struct hzp_swiglu_bwd_args {
    struct hzp_mat x, dy, dx;
    int32_t gelu;
};

/* y[c] += sum over rows of x[r][c], in row order.  x act, y [1][cols] F32: a bias' gradient. */
struct hzp_colsum_args {
    struct hzp_mat x, y;
};

/* y = x scale in y's type, to nearest even; the product in F32.  scale 0: 1.  F32 and BF16; y may
 * be x.  With cap > 0, y = cap tanh(x scale / cap). */
struct hzp_cast_args {
    struct hzp_mat x, y;
    const double *squares; /* NULL: none; else y is also divided by max(sqrt(*squares), 1e-7) */
    float scale, cap;
};

/* y = value everywhere. */
struct hzp_fill_args {
    struct hzp_mat y;
    float value;
};

/* Noise that is nearly normal and depends only on seed and index: element number i = first + r cols
 * + c of y is
 *   (b0 + b1 + b2 + b3 - 510) (deviation / 147.8), in F32, of the bytes of word i mod 4 of
 * Philox4x32-10 with key = seed and counter = (i / 4 low, i / 4 high, 0, 1): the same on every
 * backend, however a buffer is divided.  y F32 or BF16. */
struct hzp_noise_args {
    struct hzp_mat y;
    uint64_t seed, first;
    float deviation;
};

/* *sum += sum of squares, in double.  x F32. */
struct hzp_sumsq_args {
    struct hzp_mat x;
    double *sum;
};

/* Decoupled AdamW (Loshchilov and Hutter 2019) or NAdam (Dozat 2016), as in PyTorch's:
 *   norm = sqrt(*sumsq) grad_scale;  g = grad grad_scale min(1, clip / (norm + 1e-6))
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *   p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps), or NAdam's
 *   p = p (1 - lr decay) - lr (part_m m + part_g g) / (sqrt(v / (1 - beta2^t)) + eps)
 * p is the exact fp32 master: `from` itself if F32; if BF16, bits(p) = from * 2^16 + residual, and
 * on the way out `to` is p rounded (nearest, ties up: (bits + 0x8000) >> 16) and residual the
 * signed rest, so nothing is lost.  norm not finite: `to` = from, all else untouched.
 * from, to, grad, m, v: one shape; to may be from.  m, v F32 or BF16; or both Q8, which are read by
 * their scales and get codes and scales anew (device/q8.h): then there is one row, of a multiple of
 * 64 elements that begins with a block, and all matrices are aligned to 16 bytes. */
struct hzp_adamw_args {
    struct hzp_mat from, to, residual /* I16, absent for F32 */, grad, m, v;
    float *m_scale, *v_scale; /* [blocks] of Q8; else NULL */
    int32_t decayed; /* Q8: elements from here on do not decay, a multiple of 64; 0: all decay */
    const double *sumsq; /* sum over all gradients, before grad_scale */
    float grad_scale;    /* 1 / learned tokens of the update */
    float clip;          /* 0: no clipping */
    float lr, beta1, beta2, eps, decay;
    int32_t t;            /* 1 for the first update */
    float part_m, part_g; /* NAdam's: mu(t+1) / (1 - mu(1) .. mu(t+1)), (1 - mu(t)) / (1 - mu(1) ..
                           * mu(t)) with its mu(t); both 0: AdamW */
};

/* The two elementwise passes of Muon (Jordan 2024, by the form of torch.optim.Muon), before and
 * after x becomes its orthogonal factor by products and casts (nanobatch/model/update.h).
 * g, and p with its residual, as in adamw.  from absent, before:
 *   m = momentum m + (1 - momentum) g;  x = momentum m + (1 - momentum) g
 * from present, after, when grad and m are absent:
 *   p = p keep - step x
 * norm not finite: x = 0 and m stays as it was; or `to` = from, all else untouched.
 * One shape; before, grad and x F32, x may be grad; m, and x after, F32 or BF16. */
struct hzp_muon_args {
    struct hzp_mat x, grad, m, from, to, residual;
    const double *sumsq;
    float grad_scale, clip; /* as in adamw */
    float momentum, keep, step;
};

/* *checksum += sum over i of mix(i, word[i]) mod 2^64 over the 8-byte words of x (its size is a
 * multiple of 8, stride = cols), mix(i, w) = the SplitMix64 finaliser of w + (i + 1) *
 * 0x9e3779b97f4a7c15; *nonfinite += elements that are NaN or infinite. */
struct hzp_audit_args {
    struct hzp_mat x;
    uint64_t *checksum;
    int64_t *nonfinite;
};

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_lane;

/* Queues one op on a lane.  HZP_EDEVICE: the device failed; this is final. */
int hzp_lane_issue(struct hzp_lane *lane, enum hzp_op op, const void *args);

/* hzp_op_rmsnorm(lane, &args) and so on. */
#define X(name, class_)                                                                            \
    static inline int hzp_op_##name(struct hzp_lane *lane, const struct hzp_##name##_args *args)   \
    {                                                                                              \
        return hzp_lane_issue(lane, HZP_OP_##name, args);                                          \
    }
HZP_OPS(X)
#undef X

const char *hzp_op_name(enum hzp_op op);

/* The op's class.  A product is THIN, WIDE or GRAD depending on its arguments; args NULL: the class
 * in the list.
 */
enum hzp_class hzp_op_class(enum hzp_op op, const void *args);
const char *hzp_class_text(enum hzp_class c); /* "wide product" and so on */
enum hzp_bound hzp_class_bound(enum hzp_class c);
size_t hzp_op_args_size(enum hzp_op op);
size_t hzp_dtype_size(enum hzp_dtype type);

/* The page numbers of segment seg that the op reads. */
static inline const int32_t *hzp_attn_pages(const struct hzp_attn_paged_args *a, int32_t seg)
{
    size_t stride = (size_t)a->page_stride;
    return a->table ? a->table + (size_t)a->line[seg] * stride : a->page + (size_t)seg * stride;
}

/* Attention over pages may read, and mask, positions that none of a segment's rows sees, from the
 * last multiple of this number at or before the first one seen.  Pages before it need not exist. */
enum { HZP_ATTN_BLOCK = 64 };

/* The first position that a row at position pos sees. */

static inline int32_t hzp_attn_first(int32_t window, int32_t pos)
{
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* Rows r0 .. r0+rows-1 of mat. */
struct hzp_mat hzp_mat_rows(struct hzp_mat mat, int32_t r0, int32_t rows);

/* The least bytes an op must move and operations it must do.  Used for the price of training
 * slices, the sim backend's clock, and the "% of peak" column of opcheck --bench. */
struct hzp_cost {
    uint64_t bytes, flops;
};
struct hzp_cost hzp_op_cost(enum hzp_op op, const void *args);

/* Bytes that a rank sends for a collective, of which END sends none; 0 for every other op. */
uint64_t hzp_op_wire(enum hzp_op op, const void *args);

/* For the plan checker: the memory that an op reads and writes, at most HZP_ACCESS_MAX pieces, each
 * a matrix, or the keys or the values in the slots of a layer's pages that the op uses.  Borrows
 * the arguments.  Returns the number of pieces. */
struct hzp_access {
    uintptr_t begin, end; /* byte range; for slots, of the layer's whole pages */
    bool writes;
    size_t width, stride;               /* bytes of a row; bytes from one row to the next */
    const struct hzp_rope_args *append; /* both NULL: not slots */
    const struct hzp_attn_paged_args *attend;
};
enum { HZP_ACCESS_MAX = 16 };
int hzp_op_access(enum hzp_op op, const void *args, struct hzp_access *ret);

/* Whether two pieces share a byte; true if it cannot be decided.  Reads slots, segments and page
 * tables, which must be readable by the host. */
bool hzp_access_meet(const struct hzp_access *a, const struct hzp_access *b);

/* Checks types, shapes and strides; a backend may rely on them.  NULL: valid, else the rule that is
 * broken ("matmul: a and b differ in type").  Index contents are not read.  Only in builds with
 * HZP_DEBUG (dev/debug/validate.c). */
const char *hzp_op_validate(enum hzp_op op, const void *args);

#ifdef __cplusplus
}
#endif
