/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/facts_loss.c - losses against PyTorch's autograd (losses.h), and what they have in
 * common. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/opcheck/opcheck.h"

#include "tests/opcheck/losses.h"

/* What a fault does to the rows before they run: each must show in the numbers. */
enum fault { NONE, SIGN, SWAPPED_BOUNDS, OLD_IS_REFERENCE, NO_TEMPERATURE, NO_KL, NO_BETA, FAULTS };

static void spoil(struct hzp_row_loss *how, enum fault fault)
{
    float low = how->low;
    if (fault == SIGN)
        how->advantage = -how->advantage;
    if (fault == SWAPPED_BOUNDS) {
        how->low = how->high;
        how->high = low;
    }
    if (fault == OLD_IS_REFERENCE)
        how->old = how->reference;
    if (fault == NO_TEMPERATURE)
        how->inv_temperature = 1;
    if (fault == NO_KL)
        how->kl = 0;
    if (fault == NO_BETA)
        how->beta = 0;
}

static struct hzp_xent_args make(struct oc_io *io, enum fault fault)
{
    struct hzp_xent_args a = {0};
    oc_io_reset(io, 1, false);
    a.x = oc_mat(io, "x", LOSSES, LOSSES_VOCAB, HZP_F32, OC_IN);
    a.dx = oc_mat(io, "dx", LOSSES, LOSSES_VOCAB, HZP_F32, OC_OUT);
    int32_t *target = oc_array(io, "target", OC_I32, LOSSES, OC_IN);
    float *weight = oc_array(io, "weight", OC_F32, LOSSES, OC_IN);
    struct hzp_row_loss *how = oc_bytes(io, "how", LOSSES * sizeof(*how), OC_IN);
    for (int32_t r = 0; r < LOSSES; r++) {
        for (int32_t c = 0; c < LOSSES_VOCAB; c++)
            oc_put(&a.x, r, c, losses[r].x[c]);
        target[r] = losses[r].target;
        weight[r] = losses[r].weight;
        how[r] = losses[r].how;
        spoil(&how[r], fault);
    }
    a.target = target;
    a.weight = weight;
    a.how = how;
    a.loss = oc_array(io, "loss", OC_F32, LOSSES, OC_OUT);
    a.lp = oc_array(io, "lp", OC_F32, LOSSES, OC_OUT);
    a.entropy = oc_array(io, "entropy", OC_F32, LOSSES, OC_OUT);
    return a;
}

static bool far(float got, float want)
{
    return !(fabsf(got - want) <= 1e-5f * (fabsf(want) + 0.1f));
}

/* NULL, or which row differs from PyTorch's. */
static const char *compare(struct oc_target *target, struct oc_io *io, uint8_t *result,
                           enum fault fault)
{
    static char text[128];
    struct hzp_xent_args a = make(io, fault);
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_xent, io, result) < 0)
        return "the op failed";
#define AT(ptr) ((const float *)(result + ((const uint8_t *)(ptr)-io->image)))
    for (int32_t r = 0; r < LOSSES; r++) {
        const float *dx = AT((const float *)a.dx.ptr + (size_t)r * (size_t)a.dx.stride);
        bool bad = far(AT(a.loss)[r], losses[r].loss) || far(AT(a.lp)[r], losses[r].lp) ||
                   far(AT(a.entropy)[r], losses[r].entropy);
        for (int32_t c = 0; c < LOSSES_VOCAB; c++)
            bad |= far(dx[c], losses[r].dx[c]);
        if (bad) {
            snprintf(text, sizeof(text), "row %d: loss %g for %g, dx %g for %g", r,
                     (double)AT(a.loss)[r], (double)losses[r].loss, (double)dx[0],
                     (double)losses[r].dx[0]);
            return text;
        }
    }
    return NULL;
}

/* Rows of soft targets; broken: their rest is left out. */
static const char *soft_as_pytorch(struct oc_target *target, struct oc_io *io, uint8_t *result,
                                   bool broken)
{
    struct hzp_xent_args a = {0};
    oc_io_reset(io, 1, false);
    a.x = oc_mat(io, "x", SOFT_LOSSES, LOSSES_VOCAB, HZP_F32, OC_IN);
    a.dx = oc_mat(io, "dx", SOFT_LOSSES, LOSSES_VOCAB, HZP_F32, OC_OUT);
    int32_t *next = oc_array(io, "target", OC_I32, SOFT_LOSSES, OC_IN);
    float *weight = oc_array(io, "weight", OC_F32, SOFT_LOSSES, OC_IN);
    struct hzp_row_loss *how = oc_bytes(io, "how", SOFT_LOSSES * sizeof(*how), OC_IN);
    struct hzp_soft *soft = oc_bytes(io, "soft", SOFT_LOSSES * sizeof(*soft), OC_IN);
    for (int32_t r = 0; r < SOFT_LOSSES; r++) {
        for (int32_t c = 0; c < LOSSES_VOCAB; c++)
            oc_put(&a.x, r, c, soft_losses[r].x[c]);
        next[r] = r;
        weight[r] = soft_losses[r].weight;
        how[r] = (struct hzp_row_loss){.kind = HZP_LOSS_SOFT,
                                       .inv_temperature = soft_losses[r].inv_temperature};
        soft[r] = soft_losses[r].soft;
        soft[r].rest *= !broken;
    }
    a.target = next;
    a.weight = weight;
    a.how = how;
    a.soft = soft;
    a.loss = oc_array(io, "loss", OC_F32, SOFT_LOSSES, OC_OUT);
    oc_args(io, &a, sizeof(a));
    if (oc_target_run(target, HZP_OP_xent, io, result) < 0)
        return "the op failed";
    for (int32_t r = 0; r < SOFT_LOSSES; r++) {
        const float *dx = AT((const float *)a.dx.ptr + (size_t)r * (size_t)a.dx.stride);
        bool bad = far(AT(a.loss)[r], soft_losses[r].loss);
        for (int32_t c = 0; c < LOSSES_VOCAB; c++)
            bad |= far(dx[c], soft_losses[r].dx[c]);
        if (bad)
            return "a row of soft targets differs";
    }
    return NULL;
}

/* Importance sampling of what the model itself drew, with advantages of 1, is cross-entropy. */
static const char *same_bits(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    float plain[LOSSES * LOSSES_VOCAB], lp[LOSSES];
    for (int pass = 0; pass < 3; pass++) {
        struct hzp_xent_args a = make(io, NONE);
        struct hzp_row_loss *how = (struct hzp_row_loss *)a.how;
        for (int32_t r = 0; r < LOSSES; r++)
            how[r] = (struct hzp_row_loss){.kind = pass == 2 ? HZP_LOSS_IS : HZP_LOSS_XENT,
                                           .inv_temperature = 1,
                                           .old = pass == 2 ? lp[r] : 0,
                                           .advantage = 1};
        if (pass == 0)
            a.how = NULL;
        oc_args(io, &a, sizeof(a));
        if (oc_target_run(target, HZP_OP_xent, io, result) < 0)
            return "the op failed";
        memcpy(lp, AT(a.lp), sizeof(lp));
        for (int32_t r = 0; r < LOSSES; r++) {
            const float *dx = AT((const float *)a.dx.ptr + (size_t)r * (size_t)a.dx.stride);
            float *kept = plain + r * LOSSES_VOCAB;
            if (pass == 0)
                memcpy(kept, dx, LOSSES_VOCAB * sizeof(*dx));
            else if (memcmp(kept, dx, LOSSES_VOCAB * sizeof(*dx)) != 0)
                return pass == 1 ? "a given loss of kind xent differs from none"
                                 : "is with old = lp and A = 1 differs from xent";
        }
    }
    return NULL;
}

static int verdict(struct oc_target *target, const char *what, const char *broken)
{
    oc_report(!broken, "xent", target->name, what, "%s", broken ? broken : "");
    return broken != NULL;
}

int oc_facts_loss(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    int failures =
        verdict(target, "as PyTorch", compare(target, io, result, NONE)) +
        verdict(target, "is as xent", same_bits(target, io, result)) +
        verdict(target, "soft targets as PyTorch", soft_as_pytorch(target, io, result, false));
    const char *unseen = NULL;
    for (enum fault fault = SIGN; fault < FAULTS; fault++)
        if (!compare(target, io, result, fault))
            unseen = "a planted fault does not show";
    if (!soft_as_pytorch(target, io, result, true))
        unseen = "a rest that is left out does not show";
    return failures + verdict(target, "faults show", unseen);
}
