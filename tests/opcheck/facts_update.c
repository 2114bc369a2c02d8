/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/facts_update.c - what 8-bit moments are after many updates, beside F32 ones. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/q8.h"
#include "tests/opcheck/opcheck.h"

enum { N = 1024, UPDATES = 1200 };

/* What is kept from one update to the next. */
struct state {
    float p[N], m[N], v[N], m_scale[N / HZP_Q8_BLOCK], v_scale[N / HZP_Q8_BLOCK];
    int8_t code_m[N];
    uint8_t code_v[N];
};

static const void *at(const struct oc_io *io, const uint8_t *result, const void *ptr)
{
    return result + ((const uint8_t *)ptr - io->image);
}

static int update(struct oc_target *target, struct oc_io *io, uint8_t *result, struct state *s,
                  const float *grad, int32_t t, bool codes)
{
    struct hzp_adamw_args a = {
        .grad_scale = 1, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .t = t};
    enum hzp_dtype type = codes ? HZP_Q8 : HZP_F32;
    oc_io_reset(io, 1, false);
    double *sumsq = oc_array(io, "sumsq", OC_F64, 1, OC_IN);
    *sumsq = 1;
    a.sumsq = sumsq;
    a.from = a.to = oc_mat(io, "p", 1, N, HZP_F32, OC_INOUT);
    a.grad = oc_mat(io, "grad", 1, N, HZP_F32, OC_IN);
    a.m = oc_mat(io, "m", 1, N, type, OC_INOUT);
    a.v = oc_mat(io, "v", 1, N, type, OC_INOUT);
    if (codes) {
        a.m_scale = oc_array(io, "m_scale", OC_F32, N / HZP_Q8_BLOCK, OC_INOUT);
        a.v_scale = oc_array(io, "v_scale", OC_F32, N / HZP_Q8_BLOCK, OC_INOUT);
    }
    const struct {
        void *in, *kept;
        size_t size;
    } part[] = {{a.from.ptr, s->p, sizeof(s->p)},
                {a.m.ptr, codes ? (void *)s->code_m : s->m, N * hzp_dtype_size(type)},
                {a.v.ptr, codes ? (void *)s->code_v : s->v, N * hzp_dtype_size(type)},
                {a.m_scale, s->m_scale, sizeof(s->m_scale)},
                {a.v_scale, s->v_scale, sizeof(s->v_scale)}};
    for (int i = 0; i < (codes ? 5 : 3); i++)
        memcpy(part[i].in, part[i].kept, part[i].size);
    memcpy(a.grad.ptr, grad, N * sizeof(*grad));
    oc_args(io, &a, sizeof(a));
    int r = oc_target_run(target, HZP_OP_adamw, io, result);
    for (int i = 0; r >= 0 && i < (codes ? 5 : 3); i++)
        memcpy(part[i].kept, at(io, result, part[i].in), part[i].size);
    return r;
}

/* Second moments of gradients whose sizes differ by a hundred, and of which half become a tenth
 * half way: the mean of the ratio to F32's stays near 1.  Rounding to nearest would leave those
 * where they are, and the mean far above 1. */
int oc_facts_update(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    static struct state whole, coded;
    static char text[128];
    const char *broken = NULL;
    float grad[N];
    uint64_t rng = 3;
    memset(&whole, 0, sizeof(whole));
    memset(&coded, 0, sizeof(coded));
    for (int32_t t = 1; t <= UPDATES && !broken; t++) {
        for (int i = 0; i < N; i++) {
            double size = pow(10, -2.0 * (i % 97) / 96) / (t > UPDATES / 2 && i % 2 ? 10 : 1);
            double sum = 0;
            for (int k = 0; k < 4; k++)
                sum += (double)(oc_random(&rng) >> 40) * 0x1p-24 - 0.5;
            grad[i] = (float)(size * sum);
        }
        if (update(target, io, result, &whole, grad, t, false) < 0 ||
            update(target, io, result, &coded, grad, t, true) < 0)
            broken = "the device failed";
    }
    double ratio = 0, moved = 0, apart = 0;
    for (int i = 0; i < N && !broken; i++) {
        double root = (double)hzp_q8_root(coded.code_v[i], coded.v_scale[i / HZP_Q8_BLOCK]);
        ratio += root * root / (double)whole.v[i] / N;
        moved += fabs((double)whole.p[i]) / N;
        apart += fabs((double)(whole.p[i] - coded.p[i])) / N;
    }
    if (!broken && !(fabs(ratio - 1) < 0.1 && apart < 0.15 * moved)) {
        snprintf(text, sizeof(text), "second moments are %.3f of F32's, parameters %.3f apart",
                 ratio, apart / moved);
        broken = text;
    }
    oc_report(!broken, "adamw", target->name, "8-bit moments after 1200 updates", "%s",
              broken ? broken : "");
    return broken != NULL;
}
