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

/* The rows of losses.h that belong to sequences, or one pair made of the first of them. */
static struct hzp_seq_loss_args make_sequences(struct oc_io *io)
{
    struct hzp_seq_loss_args a = {.seqs = SEQUENCES};
    oc_io_reset(io, 1, false);
    a.lp = oc_mat(io, "lp", 1, SEQUENCE_ROWS, HZP_F32, OC_IN);
    struct hzp_row_loss *how = oc_bytes(io, "how", SEQUENCE_ROWS * sizeof(*how), OC_IN);
    int32_t *first = oc_array(io, "first", OC_I32, SEQUENCES + 1, OC_IN);
    for (int32_t r = 0; r < SEQUENCE_ROWS; r++) {
        oc_put(&a.lp, 0, r, sequences[r].lp);
        how[r] = sequences[r].how;
        first[sequences[r].document + 1] = r + 1;
    }
    first[0] = 0;
    a.how = how;
    a.first = first;
    a.out = oc_bytes(io, "out", SEQUENCE_ROWS * sizeof(*a.out), OC_OUT);
    return a;
}

static const struct hzp_row_loss *run_sequences(struct oc_target *target, struct oc_io *io,
                                                uint8_t *result, struct hzp_seq_loss_args *a)
{
    oc_args(io, a, sizeof(*a));
    if (oc_target_run(target, HZP_OP_seq_loss, io, result) < 0)
        return NULL;
    return (const struct hzp_row_loss *)(result + ((const uint8_t *)a->out - io->image));
}

static const char *compare_sequences(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    static char text[128];
    struct hzp_seq_loss_args a = make_sequences(io);
    const struct hzp_row_loss *out = run_sequences(target, io, result, &a);
    for (int32_t r = 0; out && r < SEQUENCE_ROWS; r++) {
        double kl = 0, d = (double)out[r].reference - (double)sequences[r].lp;
        if (out[r].kl != 0) /* what xent adds */
            kl = (double)out[r].kl * (exp(d) - 1);
        if (far(out[r].advantage + (float)kl, sequences[r].slope) ||
            (out[r].kl == 0 && far(out[r].old, sequences[r].loss))) {
            snprintf(text, sizeof(text), "row %d: loss %g for %g, slope %g for %g", r,
                     (double)out[r].old, (double)sequences[r].loss, (double)out[r].advantage + kl,
                     (double)sequences[r].slope);
            return text;
        }
    }
    return out ? NULL : "the op failed";
}

/* At first, when nothing was learned, DPO is log 2 to the last bit; a pair that is turned round has
 * the slopes of the other sign; the slope is that of finite differences. */
static const char *about_pairs(struct oc_target *target, struct oc_io *io, uint8_t *result)
{
    float slope[2], value[2];
    struct hzp_seq_loss_args a = make_sequences(io);
    struct hzp_row_loss *how = (struct hzp_row_loss *)a.how;
    for (int32_t r = 0; r < a.first[2]; r++)
        how[r].reference = sequences[r].lp;
    const struct hzp_row_loss *out = run_sequences(target, io, result, &a);
    if (!out || out[0].old != (float)log(2))
        return "DPO begins at another value than log 2";
    for (int turned = 0; turned < 2; turned++) { /* the second pair of DPO: of 1 and 2 rows */
        int32_t pair = 0;
        a = make_sequences(io);
        how = (struct hzp_row_loss *)a.how;
        while (sequences[a.first[pair]].how.kind != HZP_LOSS_DPO || pair < 2)
            pair++;
        int32_t at = a.first[pair], rows[2] = {1, 2};
        for (int32_t k = 0; k < 3 && turned; k++) { /* the rejected one first, as the chosen */
            int32_t from = at + (k + 1) % 3;
            oc_put(&a.lp, 0, at + k, sequences[from].lp);
            how[at + k].reference = sequences[from].how.reference;
            how[at + k].advantage = k < 2 ? 1 : -1;
            ((int32_t *)a.first)[pair + 1] = at + 2;
        }
        out = run_sequences(target, io, result, &a);
        slope[turned] = out[at + (turned ? rows[1] : 0)].advantage;
        value[turned] = out[at].old;
    }
    float beta = 0.7f, odds = expf(value[0]) - 1,
          back = expf(value[1]) - 1; /* e^(-beta D), e^(beta D) */
    if (fabsf(odds * back - 1) > 1e-4f || far(slope[0] - slope[1], beta) || slope[0] < 0)
        return "a pair that is turned round has other slopes";
    a = make_sequences(io);
    oc_put(&a.lp, 0, 0, sequences[0].lp + 0.01f);
    float up = run_sequences(target, io, result, &a)[0].old;
    a = make_sequences(io);
    oc_put(&a.lp, 0, 0, sequences[0].lp - 0.01f);
    float down = run_sequences(target, io, result, &a)[0].old;
    return fabsf((down - up) / 0.02f - sequences[0].slope) > 1e-3f
               ? "another slope than differences'"
               : NULL;
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
        verdict(target, "sequences as PyTorch", compare_sequences(target, io, result)) +
        verdict(target, "pairs", about_pairs(target, io, result)) +
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
