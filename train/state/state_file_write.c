/* SPDX-License-Identifier: Apache-2.0 */
/* train/state/state_file_write.c - writing, from whatever source. */
#include "train/state/state_file_parts.h"

/* --- The recipe as text ----------------------------------------------------------------------- */

enum field_type { FLOAT, INT32, INT64, WORD, MOMENTS };

static const char *const schedules[] = {"constant", "cosine"};
static const char *const optimizers[] = {"adamw", "nadam"};
static const char *const divisors[] = {"weights", "tokens", "sequences", "constant", "none"};

#define FIELD(name_, type_, at, ...)                                                               \
    {                                                                                              \
        .name = name_, .type = type_, .offset = offsetof(struct hzp_recipe, at), __VA_ARGS__       \
    }
static const struct field {
    const char *name;
    enum field_type type;
    size_t offset;
    const char *const *word; /* the names of a WORD's values */
    const char *absent;      /* the value in files that were written before there was the field */
} fields[] = {
    FIELD("lr", FLOAT, lr),
    FIELD("beta1", FLOAT, beta1),
    FIELD("beta2", FLOAT, beta2),
    FIELD("eps", FLOAT, eps),
    FIELD("decay", FLOAT, decay),
    FIELD("clip", FLOAT, clip),
    FIELD("schedule", WORD, schedule, .word = schedules),
    FIELD("warmup", INT32, warmup_steps),
    FIELD("total_steps", INT64, total_steps),
    FIELD("lr_floor", FLOAT, lr_floor),
    FIELD("batch_tokens", INT32, update_tokens),
    FIELD("micro_rows", INT32, micro_rows),
    FIELD("publish_every", INT32, publish_every),
    FIELD("moments", MOMENTS, moment_type),
    FIELD("optimizer", WORD, optimizer, .word = optimizers, .absent = "adamw"),
    FIELD("divide", WORD, divide, .word = divisors, .absent = "weights"),
    FIELD("divide_by", FLOAT, divide_by, .absent = "1"),
    FIELD("skip", FLOAT, skip, .absent = "0"),
    FIELD("swap", INT32, swap, .absent = "0"),
};

/* Prints the fewest digits that read back as exactly the same float; nine always suffice. */
static void print_float(float value, char *ret, size_t size)
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(ret, size, "%.*g", digits, (double)value);
        if (strtof(ret, NULL) == value)
            return;
    }
}

static void print_field(const struct hzp_recipe *recipe, const struct field *f, char *ret,
                        size_t size)
{
    const void *at = (const char *)recipe + f->offset;
    switch (f->type) {
    case FLOAT:
        print_float(*(const float *)at, ret, size);
        break;
    case INT32:
        snprintf(ret, size, "%" PRId32, *(const int32_t *)at);
        break;
    case INT64:
        snprintf(ret, size, "%" PRId64, *(const int64_t *)at);
        break;
    case WORD: /* all enums have the size of an int */
        snprintf(ret, size, "%s", f->word[*(const int *)at]);
        break;
    case MOMENTS:
        snprintf(ret, size, "%s", hzp_moments_name(*(const enum hzp_dtype *)at));
        break;
    }
}

int hzp_state_compare_recipe(const struct hzp_recipe *recipe, const struct hzp_safetensors *st,
                             const char *path, bool all, struct hzp_err_text *reterr)
{
    for (int i = 0; i < HZP_COUNT(fields); i++) {
        char now[64];
        const char *then = hzp_safetensors_meta(st, fields[i].name);
        print_field(recipe, &fields[i], now, sizeof(now));
        then = then ? then : fields[i].absent;
        if (!all && fields[i].type != MOMENTS)
            continue;
        if (!then || strcmp(then, now))
            return hzp_fail_param(reterr, HZP_EINVAL, fields[i].name,
                                  "%s: this run was begun with %s %s, now it is %s", path,
                                  fields[i].name, then ? then : "(not named)", now);
    }
    return HZP_OK;
}

/* --- What is saved ---------------------------------------------------------------------------- */

/* With ranks each unit is gathered for it, and later once more to be written: the header, with the
 * sums, comes first in the file. */
int hzp_state_source_sum(const struct hzp_state_source *source, enum hzp_state_part part,
                         uint64_t *ret, struct hzp_err_text *reterr)
{
    *ret = 0;
    for (int32_t u = 0; u < source->part[part]->layout->units; u++) {
        struct hzp_unit_view view;
        void *owned;
        HZP_TRY(source->read(source->ctx, part, u, &view, &owned, reterr));
        *ret += hzp_unit_checksum(&view);
        free(owned);
    }
    return HZP_OK;
}

/* --- Saving ----------------------------------------------------------------------------------- */

enum hzp_disk_type hzp_state_disk_type(const struct hzp_units *units)
{
    return units->type == HZP_BF16  ? HZP_DISK_BF16
           : units->type == HZP_I16 ? HZP_DISK_I16
           : units->type == HZP_Q8  ? HZP_DISK_U8
                                    : HZP_DISK_F32;
}

/* Names the part in the file's header: a tensor of all units in order, and its checksum. */
static int declare_part(const struct hzp_state_source *source, struct hzp_st_writer *w,
                        enum hzp_state_part part, struct hzp_err_text *reterr)
{
    const struct hzp_units *units = source->part[part];
    char key[32], text[32];
    uint64_t sum;
    if (!units)
        return HZP_OK;
    int64_t shape = (int64_t)units->layout->elements;
    HZP_TRY(hzp_state_source_sum(source, part, &sum, reterr));
    snprintf(key, sizeof(key), "%s_checksum", hzp_state_part_name(part));
    snprintf(text, sizeof(text), "%016" PRIx64, sum);
    hzp_st_writer_meta(w, key, text);
    hzp_st_writer_declare(w, hzp_state_part_name(part), hzp_state_disk_type(units), 1, &shape);
    return HZP_OK;
}

/* Writes all units in order. */
static int put_part(const struct hzp_state_source *source, struct hzp_st_writer *w,
                    enum hzp_state_part part, struct hzp_err_text *reterr)
{
    const struct hzp_units *units = source->part[part];
    for (int32_t u = 0; units && u < units->layout->units; u++) {
        struct hzp_unit_view view;
        void *owned;
        HZP_TRY(source->read(source->ctx, part, u, &view, &owned, reterr));
        int r = hzp_st_writer_data(w, view.base, hzp_unit_bytes(&view), reterr);
        free(owned);
        HZP_TRY(r);
    }
    return HZP_OK;
}

static void put_number(struct hzp_st_writer *w, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRId64, value);
    hzp_st_writer_meta(w, key, text);
}

static void put_meta(const struct hzp_trainer_numbers *numbers, const struct hzp_recipe *recipe,
                     const char *note, struct hzp_st_writer *w)
{
    char text[64];
    hzp_st_writer_meta(w, "format", HZP_STATE_FORMAT);
    put_number(w, "step", numbers->optimizer_step);
    put_number(w, "draws", numbers->draws);
    put_number(w, "learned_through", numbers->learned_through);
    if (numbers->reset_step)
        put_number(w, "reset_step", numbers->reset_step);
    snprintf(text, sizeof(text), "%.17g", numbers->loss);
    hzp_st_writer_meta(w, "loss", text);
    snprintf(text, sizeof(text), "%016" PRIx64, numbers->checksum);
    hzp_st_writer_meta(w, "weights_checksum", text);
    hzp_st_writer_meta(w, "note", note ? note : "");
    for (int i = 0; i < HZP_COUNT(fields); i++) {
        print_field(recipe, &fields[i], text, sizeof(text));
        hzp_st_writer_meta(w, fields[i].name, text);
    }
}

int hzp_state_file_write(const struct hzp_state_source *source,
                         const struct hzp_trainer_numbers *numbers, const struct hzp_recipe *recipe,
                         const char *dir, const char *note, struct hzp_err_text *reterr)
{
    HZP_ASSERT(!note || strlen(note) <= HZP_TRAINER_NOTE_MAX);
    char path[PATH_MAX];
    struct hzp_st_writer *w;
    int r = HZP_OK;
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    HZP_TRY(hzp_st_writer_open(path, &w, reterr));
    put_meta(numbers, recipe, note, w);
    for (int p = HZP_STATE_M; p <= HZP_STATE_RESIDUAL && r >= 0; p++)
        r = declare_part(source, w, (enum hzp_state_part)p, reterr);
    for (int p = HZP_STATE_M; p <= HZP_STATE_RESIDUAL && r >= 0; p++)
        r = put_part(source, w, (enum hzp_state_part)p, reterr);
    if (r >= 0)
        return hzp_st_writer_finish(w, reterr);
    hzp_st_writer_abandon(w);
    return r;
}
