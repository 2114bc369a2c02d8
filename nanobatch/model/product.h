/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/product.h - matrix products of a layer of one version, forward and backward.
 *
 * Forward  y = x W^T + bias (+ y).  With fp8 (serving, and evaluation of it) a product first
 * quantises its rows into the space's narrow buffer and reads the version's e4m3 matrix
 * (weights/fp8.h).
 * Backward dW += dY^T X, dX = dY W.  Gradients are F32.
 *
 * A product is cut into pieces of about quantum_flops, so that no item of a chain takes much
 * longer than that: the trainer can then give way to serving between two items.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/space.h"
#include "nanobatch/model/tensor.h"

/* What a norm op of a model of configuration c computes. */
#define HZP_NORM_KIND(c) .plus_one = (c)->norm_plus_one, .centred = (c)->norm_centred

/* Where builders find a layer's weights and gradients.  All borrowed. */
struct hzp_layer {
    const struct hzp_model *model;
    const struct hzp_version *version; /* its weights are read */
    const struct hzp_units *grads;     /* F32; NULL: forward only */
    int32_t index;                     /* -1: the embedding and the head */
};

/* The layer's tensor of that role; ptr NULL: the model has none. */
struct hzp_mat hzp_layer_weight(const struct hzp_layer *layer, enum hzp_role role);
/* The gradient of the layer's tensor of that role, F32; ptr NULL: the model has none.  The layer
 * has gradients. */
struct hzp_mat hzp_layer_grad(const struct hzp_layer *layer, enum hzp_role role);

/* A product of any operands in pieces of at most about quantum_flops each, cut along the longer
 * side of c, or along its rows where the columns of b are far apart in memory.  If 64 rows of such
 * a product are too long still (the head's input gradient, with a sum over the vocabulary) and c is
 * F32, its sums are cut instead, into parts of 2048 terms and more, and b is read once.  Only there
 * do low bits depend on the cut.  0: one piece. */
void hzp_plan_add_matmul(struct hzp_plan *plan, uint64_t quantum_flops,
                         const struct hzp_matmul_args *args);

/* normed = rmsnorm(x) by the layer's weight of that role.  Where the ranks of slices divide the
 * rows (s->part), each norms its own, and gets the others'; whole: x is complete, and nothing is
 * sent. */
void hzp_stream_norm(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                     const struct hzp_layer_space *s, struct hzp_mat x, float *rstd, bool whole);

/* One op for norm, product and SwiGLU, if the device has it (hzp_device_projects); else nothing is
 * added.  False: nothing was. */
bool hzp_plan_project(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_project_args *args);

/* y = rmsnorm(x) W^T + bias, norm and W the layer's of these roles; and inner = swiglu(y), unless
 * absent.  Where the device has one op for them, and nothing is kept for a backward pass (rstd
 * NULL, products not cut), the space's normed, and y if there is an inner, are not written.  With
 * fp8 the product reads codes of normed from the narrow buffer, and where the device has one op for
 * norm or SwiGLU and codes, these are written instead of normed and of inner.  True: not inner, but
 * its codes. */
struct hzp_normed_product {
    enum hzp_role norm, role;
    float *rstd;
    bool whole; /* as in hzp_stream_norm */
    bool kept;  /* the space's normed has the norm already */
    struct hzp_mat bias, inner;
};
bool hzp_normed_product(struct hzp_plan *plan, const struct hzp_layer *layer,
                        const struct hzp_normed_product *p, const struct hzp_layer_space *s,
                        struct hzp_mat x, struct hzp_mat y);

/* to = from + x W^T, W the layer's matrix of O or Down: a product that ends in the residual stream,
 * of all ranks where they compute it together.  coded: the narrow buffer has x's codes already. */
void hzp_stream_add(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                    const struct hzp_layer_space *s, struct hzp_mat x, bool coded,
                    struct hzp_mat from, struct hzp_mat to);

/* dW += dy^T x, then dx = dy W. */
void hzp_product_backward(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                          uint64_t quantum_flops, struct hzp_mat dy, struct hzp_mat x,
                          struct hzp_mat dx);
/* The same of a product whose input all ranks have: dx becomes the sum of theirs.  It is computed
 * first, so that it is added up while dW is computed.  dx is none of the other memory. */
void hzp_product_backward_summed(struct hzp_plan *plan, const struct hzp_layer *layer,
                                 enum hzp_role role, enum hzp_tensor_place place,
                                 uint64_t quantum_flops, struct hzp_mat dy, struct hzp_mat x,
                                 struct hzp_mat dx);

/* y = rmsnorm(x) by the layer's weight of that role, which may be x itself, cast: a model without a
 * norm there.  rstd NULL: not stored. */
void hzp_stream_normed(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                       struct hzp_mat x, struct hzp_mat y, float *rstd);
/* The backward pass of that norm and of the product of role that reads it: dy of the product; x,
 * the stream that was normed.  Gradients of the weights, and dx of the stream, are added to. */
void hzp_stream_back(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role norm,
                     enum hzp_role role, enum hzp_tensor_place place,
                     const struct hzp_layer_grads *g, struct hzp_mat dy, struct hzp_mat x,
                     const float *rstd);

/* dy of rmsnorm(x) -> the first columns of dwide.  x F32; its rstd is computed again, with what it
 * norms in `scratch`, of act. */
void hzp_norm_backward(struct hzp_plan *plan, const struct hzp_layer *layer, enum hzp_role role,
                       const struct hzp_layer_grads *g, struct hzp_mat x, struct hzp_mat dy,
                       struct hzp_mat scratch);

/* The gradient of the product x W^T, W the matrix of O or Down, whose result the stream gets: the
 * stream's, or where a norm is between them, that norm's.  The product is then computed again. */
struct hzp_mat hzp_stream_grad_of(struct hzp_plan *plan, const struct hzp_layer *layer,
                                  enum hzp_role role, const struct hzp_layer_grads *g,
                                  struct hzp_mat x);

/* The gradient of the residual stream in the type of matrix products: dx itself, or dx_act after a
 * cast. */
struct hzp_mat hzp_stream_grad(struct hzp_plan *plan, const struct hzp_layer_grads *g);
