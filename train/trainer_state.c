/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer_state.h"

#include "weights/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "hzpserve-trainer-1";

/* --- The recipe as text ----------------------------------------------------------------------- */

enum field_type { FLOAT, INT32, INT64, SCHEDULE, MOMENTS };

static const struct field {
    const char *name;
    enum field_type type;
    size_t offset;
} fields[] = {
    {"lr", FLOAT, offsetof(struct hzp_recipe, lr)},
    {"beta1", FLOAT, offsetof(struct hzp_recipe, beta1)},
    {"beta2", FLOAT, offsetof(struct hzp_recipe, beta2)},
    {"eps", FLOAT, offsetof(struct hzp_recipe, eps)},
    {"decay", FLOAT, offsetof(struct hzp_recipe, decay)},
    {"clip", FLOAT, offsetof(struct hzp_recipe, clip)},
    {"schedule", SCHEDULE, offsetof(struct hzp_recipe, schedule)},
    {"warmup", INT32, offsetof(struct hzp_recipe, warmup_steps)},
    {"total_steps", INT64, offsetof(struct hzp_recipe, total_steps)},
    {"lr_floor", FLOAT, offsetof(struct hzp_recipe, lr_floor)},
    {"batch_tokens", INT32, offsetof(struct hzp_recipe, update_tokens)},
    {"micro_rows", INT32, offsetof(struct hzp_recipe, micro_rows)},
    {"publish_every", INT32, offsetof(struct hzp_recipe, publish_every)},
    {"moments", MOMENTS, offsetof(struct hzp_recipe, moment_type)},
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
    case SCHEDULE:
        snprintf(ret, size, "%s",
                 *(const enum hzp_lr_schedule *)at == HZP_LR_COSINE ? "cosine" : "constant");
        break;
    case MOMENTS:
        snprintf(ret, size, "%s", *(const enum hzp_dtype *)at == HZP_BF16 ? "bf16" : "f32");
        break;
    }
}

static int compare_recipe(const struct hzp_recipe *recipe, const struct hzp_safetensors *st,
                          const char *path, bool all, struct hzp_err_text *reterr)
{
    for (int i = 0; i < HZP_COUNT(fields); i++) {
        char now[64];
        const char *then = hzp_safetensors_meta(st, fields[i].name);
        print_field(recipe, &fields[i], now, sizeof(now));
        if (!all && fields[i].type != MOMENTS)
            continue;
        if (!then || strcmp(then, now))
            return hzp_fail_param(reterr, HZP_EINVAL, fields[i].name,
                                  "%s: this run was begun with %s %s, now it is %s", path,
                                  fields[i].name, then ? then : "(not named)", now);
    }
    return HZP_OK;
}

/* The checksum of the weights in the version's memory; where this rank has only its shards of them,
 * that of the record.  path: the file that it is for. */
static int checksum_of(const struct hzp_model *model, const struct hzp_version *v, const char *path,
                       uint64_t *ret, struct hzp_err_text *reterr)
{
    const struct hzp_units *units = hzp_version_units(model->weights, v);
    *ret = v->record.checksum;
    if (!hzp_units_whole(units))
        return HZP_OK;
    int r = hzp_units_checksum(model->dev, units, ret);
    return r < 0 ? hzp_fail(reterr, r, "%s: cannot copy the weights to host memory: %s", path,
                            hzp_err_name(r))
                 : HZP_OK;
}

/* The same sum as hzp_units_checksum makes of whole units.  With ranks each unit is gathered for
 * it, and later once more to be written: the header, with the sums, comes first in the file. */
static int sum_state(struct hzp_trainer *t, enum hzp_state_part part, const struct hzp_units *units,
                     uint64_t *ret, struct hzp_err_text *reterr)
{
    *ret = 0;
    for (int32_t u = 0; t->collectives && u < units->layout->units; u++) {
        const void *data;
        HZP_TRY(hzp_trainer_gather(t, part, u, &data, reterr));
        struct hzp_unit_view whole = hzp_unit_view(units, u);
        whole.base = (void *)(uintptr_t)data;
        whole.part = (struct hzp_extent){.first = 0, .count = whole.elements};
        *ret += hzp_unit_checksum(&whole);
    }
    int r = t->collectives ? HZP_OK : hzp_units_checksum(t->config.model->dev, units, ret);
    return r < 0 ? hzp_fail(reterr, r, "cannot copy the optimizer's state to host memory: %s",
                            hzp_err_name(r))
                 : HZP_OK;
}

/* Writes the checksum of a state's units under this name. */
static int put_checksum(struct hzp_trainer *t, struct hzp_st_writer *w, const char *key,
                        enum hzp_state_part part, const struct hzp_units *units,
                        struct hzp_err_text *reterr)
{
    uint64_t sum;
    char text[32];
    HZP_TRY(sum_state(t, part, units, &sum, reterr));
    snprintf(text, sizeof(text), "%016" PRIx64, sum);
    hzp_st_writer_meta(w, key, text);
    return HZP_OK;
}

/* --- Saving ----------------------------------------------------------------------------------- */

/* The data type of a state's units on disk. */
static enum hzp_disk_type disk_type(const struct hzp_units *units)
{
    return units->type == HZP_BF16  ? HZP_DISK_BF16
           : units->type == HZP_I16 ? HZP_DISK_I16
                                    : HZP_DISK_F32;
}

/* Declares one tensor of the file: all units in order. */
static void declare_state(struct hzp_st_writer *w, const char *name, const struct hzp_units *units)
{
    int64_t shape = (int64_t)units->layout->elements;
    hzp_st_writer_declare(w, name, disk_type(units), 1, &shape);
}

/* Writes all units in order; with ranks each is gathered, one at a time. */
static int put_state(struct hzp_trainer *t, struct hzp_st_writer *w, enum hzp_state_part part,
                     const struct hzp_units *units, struct hzp_err_text *reterr)
{
    for (int32_t u = 0; u < units->layout->units; u++) {
        const void *data;
        void *owned;
        struct hzp_unit_view view = hzp_unit_view(units, u);
        if (t->collectives) {
            HZP_TRY(hzp_trainer_gather(t, part, u, &data, reterr));
            HZP_TRY(hzp_st_writer_data(w, data, view.elements * hzp_dtype_size(view.type), reterr));
            continue;
        }
        int r = hzp_unit_read(t->config.model->dev, &view, &data, &owned);
        if (r < 0)
            return hzp_fail(reterr, r, "cannot copy the optimizer's state to host memory: %s",
                            hzp_err_name(r));
        r = hzp_st_writer_data(w, data, hzp_unit_bytes(&view), reterr);
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

static void put_meta(struct hzp_trainer *t, const struct hzp_version *v, uint64_t checksum,
                     const char *note, struct hzp_st_writer *w)
{
    struct hzp_trainer_stats stats;
    char text[64];
    hzp_trainer_read_stats(t, &stats);
    hzp_st_writer_meta(w, "format", format_name);
    put_number(w, "step", stats.optimizer_step);
    put_number(w, "draws", stats.draws);
    put_number(w, "learned_through", v->record.learned_through);
    if (t->reset_step)
        put_number(w, "reset_step", t->reset_step);
    snprintf(text, sizeof(text), "%.17g", isfinite(v->record.loss) ? v->record.loss : -1.0);
    hzp_st_writer_meta(w, "loss", text);
    snprintf(text, sizeof(text), "%016" PRIx64, checksum);
    hzp_st_writer_meta(w, "weights_checksum", text);
    hzp_st_writer_meta(w, "note", note ? note : "");
    for (int i = 0; i < HZP_COUNT(fields); i++) {
        print_field(&t->config.recipe, &fields[i], text, sizeof(text));
        hzp_st_writer_meta(w, fields[i].name, text);
    }
}

int hzp_trainer_save(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                     const char *note, struct hzp_err_text *reterr)
{
    HZP_ASSERT(!note || strlen(note) <= HZP_TRAINER_NOTE_MAX);
    char path[PATH_MAX];
    int r;
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    const struct hzp_units *m = hzp_train_space_m(t->space), *second = hzp_train_space_v(t->space);
    const struct hzp_units *residual = hzp_train_space_residual(t->space);
    struct hzp_st_writer *w = NULL;
    uint64_t checksum;
    HZP_TRY(checksum_of(t->config.model, v, path, &checksum, reterr));
    HZP_TRY(hzp_st_writer_open(path, &w, reterr));
    put_meta(t, v, checksum, note, w);
    HZP_TRY_GOTO(put_checksum(t, w, "m_checksum", HZP_STATE_M, m, reterr));
    HZP_TRY_GOTO(put_checksum(t, w, "v_checksum", HZP_STATE_V, second, reterr));
    if (residual)
        HZP_TRY_GOTO(put_checksum(t, w, "residual_checksum", HZP_STATE_RESIDUAL, residual, reterr));
    declare_state(w, "m", m);
    declare_state(w, "v", second);
    if (residual)
        declare_state(w, "residual", residual);
    HZP_TRY_GOTO(put_state(t, w, HZP_STATE_M, m, reterr));
    HZP_TRY_GOTO(put_state(t, w, HZP_STATE_V, second, reterr));
    if (residual)
        HZP_TRY_GOTO(put_state(t, w, HZP_STATE_RESIDUAL, residual, reterr));
    return hzp_st_writer_finish(w, reterr);
out:
    hzp_st_writer_abandon(w);
    return r;
}

/* --- Loading ---------------------------------------------------------------------------------- */

static int get_number(const struct hzp_safetensors *st, const char *path, const char *key,
                      int64_t low, int64_t *ret, struct hzp_err_text *reterr)
{
    const int64_t high = (int64_t)1 << 53; /* what doubles count exactly: no run comes near it */
    const char *text = hzp_safetensors_meta(st, key);
    char *end = NULL;
    errno = 0;
    long long value = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || value < low || value > high)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s is missing or not a number from %lld to %lld",
                        path, key, (long long)low, (long long)high);
    *ret = value;
    return HZP_OK;
}

static int find_state(const struct hzp_safetensors *st, const char *path, const char *name,
                      const struct hzp_units *units, const struct hzp_st_tensor **ret,
                      struct hzp_err_text *reterr)
{
    enum hzp_disk_type type = disk_type(units);
    size_t elements = units->layout->elements;
    const struct hzp_st_tensor *tensor = hzp_safetensors_find(st, name);
    if (!tensor)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %s is missing", path, name);
    if (tensor->type != type || (uint64_t)tensor->elements != elements)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: tensor %s has %lld elements of %s, this model needs %zu of %s", path,
                        name, (long long)tensor->elements, hzp_disk_type_name(tensor->type),
                        elements, hzp_disk_type_name(type));
    *ret = tensor;
    return HZP_OK;
}

struct state_source {
    const struct hzp_st_tensor *tensor;
    const struct hzp_layout *layout;
    _Atomic uint64_t sum; /* of the units read, as hzp_units_checksum makes it */
    atomic_flag failed;
    const atomic_bool *stop;     /* NULL: nothing stops it */
    struct hzp_err_text *reterr; /* the first failure's */
};

/* One of several threads. */
static int take_unit(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    struct state_source *s = ctx;
    struct hzp_err_text text;
    if (s->stop && atomic_load(s->stop))
        return HZP_ECANCELED;
    int r = hzp_safetensors_read(s->tensor, (int64_t)s->layout->unit[u].before,
                                 (int64_t)host->elements, host->base, &text);
    if (r < 0 && !atomic_flag_test_and_set(&s->failed))
        return hzp_fail(s->reterr, r, "%s", text.text);
    if (r >= 0)
        atomic_fetch_add(&s->sum, hzp_unit_checksum(host));
    return r;
}

/* How a state is read. */
struct reading {
    struct hzp_device *dev;
    const struct hzp_safetensors *st;
    const char *path;
    int threads;
    const atomic_bool *stop; /* NULL: nothing stops it */
};

/* Copies tensor `name`, which holds all units in order, to the resident parts of the units, and
 * compares its checksum; files of earlier builds have none. */
static int get_state(const struct reading *from, const char *name, const struct hzp_units *units,
                     struct hzp_err_text *reterr)
{
    const struct hzp_st_tensor *tensor;
    const char *path = from->path;
    char now[32], key[32];
    HZP_TRY(find_state(from->st, path, name, units, &tensor, reterr));
    struct state_source source = {.tensor = tensor,
                                  .layout = units->layout,
                                  .failed = ATOMIC_FLAG_INIT,
                                  .stop = from->stop,
                                  .reterr = reterr};
    snprintf(key, sizeof(key), "%s_checksum", name);
    const char *then = hzp_safetensors_meta(from->st, key);
    HZP_TRY(hzp_units_fill_by(from->dev, units, take_unit, &source, from->threads));
    snprintf(now, sizeof(now), "%016" PRIx64, atomic_load(&source.sum));
    return then && strcmp(then, now)
               ? hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %s is damaged (checksum %s, not %s)",
                          path, tensor->name, now, then)
               : HZP_OK;
}

static int check_weights(const struct hzp_model *model, const struct hzp_version *v,
                         const struct hzp_safetensors *st, const char *path, uint64_t *ret,
                         struct hzp_err_text *reterr)
{
    const char *then = hzp_safetensors_meta(st, "weights_checksum");
    char now[32];
    HZP_TRY(checksum_of(model, v, path, ret, reterr));
    snprintf(now, sizeof(now), "%016" PRIx64, *ret);
    if (!then || strcmp(then, now))
        return hzp_fail(
            reterr, HZP_EFORMAT,
            "%s: belongs to other weights (checksum %s; the weights in this directory have %s)",
            path, then ? then : "missing", now);
    return HZP_OK;
}

static int get_numbers(const struct hzp_safetensors *st, const char *path,
                       struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    const char *loss = hzp_safetensors_meta(st, "loss");
    ret->loss = loss ? strtod(loss, NULL) : -1;
    ret->reset_step = 0;
    HZP_TRY(get_number(st, path, "step", 0, &ret->optimizer_step, reterr));
    HZP_TRY(get_number(st, path, "draws", 0, &ret->draws, reterr));
    HZP_TRY(get_number(st, path, "learned_through", -1, &ret->learned_through, reterr));
    return hzp_safetensors_meta(st, "reset_step")
               ? get_number(st, path, "reset_step", 0, &ret->reset_step, reterr)
               : HZP_OK;
}

/* Everything but moments and residuals. */
static int check_state(const struct hzp_model *model, const struct hzp_recipe *recipe,
                       struct hzp_train_space *space, const struct hzp_version *v,
                       const struct hzp_safetensors *st, const char *path, bool same_recipe,
                       struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    const char *format = hzp_safetensors_meta(st, "format");
    const struct hzp_units *residuals = hzp_train_space_residual(space);
    const struct hzp_st_tensor *found;
    if (!format || strcmp(format, format_name))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: not a trainer's state (format %s)", path,
                        format ? format : "missing");
    HZP_TRY(compare_recipe(recipe, st, path, same_recipe, reterr));
    HZP_TRY(get_numbers(st, path, ret, reterr));
    HZP_TRY(find_state(st, path, "m", hzp_train_space_m(space), &found, reterr));
    HZP_TRY(find_state(st, path, "v", hzp_train_space_v(space), &found, reterr));
    if (residuals)
        HZP_TRY(find_state(st, path, "residual", residuals, &found, reterr));
    return check_weights(model, v, st, path, &ret->checksum, reterr);
}

/* Moments and residuals, from a file that was checked. */
static int read_state(const struct reading *from, struct hzp_train_space *space,
                      struct hzp_err_text *reterr)
{
    const struct hzp_units *residuals = hzp_train_space_residual(space);
    HZP_TRY(get_state(from, "m", hzp_train_space_m(space), reterr));
    HZP_TRY(get_state(from, "v", hzp_train_space_v(space), reterr));
    return residuals ? get_state(from, "residual", residuals, reterr) : HZP_OK;
}

static void fill_record(struct hzp_version *v, const struct hzp_trainer_numbers *n)
{
    v->record.optimizer_step = n->optimizer_step;
    v->record.learned_through = n->learned_through;
    v->record.checksum = n->checksum;
    v->record.loss = n->loss >= 0 ? n->loss : NAN;
}

/* ret_note as in hzp_trainer_load.  fresh: nothing was learned in the space yet.  ret_rest: moments
 * and residuals are not read, but the file, which is the caller's then; NULL: they are. */
static int load_file(const struct hzp_model *model, const struct hzp_recipe *recipe,
                     struct hzp_train_space *space, bool fresh, const struct hzp_version *v,
                     const char *dir, bool same_recipe, struct hzp_trainer_numbers *ret,
                     char *ret_note, struct hzp_safetensors **ret_rest, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_safetensors *st = NULL;
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    HZP_TRY(hzp_safetensors_open(path, &st, reterr));
    int r = fresh ? hzp_train_space_restore(space) : HZP_OK;
    if (r >= 0)
        r = check_state(model, recipe, space, v, st, path, same_recipe, ret, reterr);
    else
        hzp_fail(reterr, r, "no memory for %s: %s", path, hzp_err_name(r));
    struct reading from = {.dev = model->dev, .st = st, .path = path};
    from.threads = model->dev->threads;
    if (r >= 0 && !ret_rest)
        r = read_state(&from, space, reterr);
    if (r >= 0 && ret_note) {
        const char *note = hzp_safetensors_meta(st, "note");
        snprintf(ret_note, HZP_TRAINER_NOTE_MAX + 1, "%s", note ? note : "");
    }
    if (r >= 0 && ret_rest)
        *ret_rest = st;
    else
        hzp_safetensors_close(st);
    return r;
}

int hzp_trainer_load_state(const struct hzp_model *model, const struct hzp_recipe *recipe,
                           struct hzp_train_space *space, struct hzp_version *v, const char *dir,
                           bool same_recipe, struct hzp_trainer_numbers *ret,
                           struct hzp_err_text *reterr)
{
    HZP_TRY(load_file(model, recipe, space, true, v, dir, same_recipe, ret, NULL, NULL, reterr));
    fill_record(v, ret);
    return HZP_OK;
}

int hzp_trainer_load_suspended(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                               struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    return load_file(t->config.model, &t->config.recipe, t->space, false, v, dir, false, ret, NULL,
                     NULL, reterr);
}

static int clear_unit(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    memset(host->base, 0, host->elements * hzp_dtype_size(host->type));
    return HZP_OK;
}

int hzp_trainer_clear_suspended(struct hzp_trainer *t)
{
    const struct hzp_units *residual = hzp_train_space_residual(t->space);
    struct hzp_device *dev = t->config.model->dev;
    HZP_ASSERT(hzp_trainer_suspended(t));
    HZP_TRY(hzp_units_fill(dev, hzp_train_space_m(t->space), clear_unit, NULL));
    HZP_TRY(hzp_units_fill(dev, hzp_train_space_v(t->space), clear_unit, NULL));
    return residual ? hzp_units_fill(dev, residual, clear_unit, NULL) : HZP_OK;
}

int hzp_trainer_read_numbers(const char *dir, struct hzp_trainer_numbers *ret,
                             struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_safetensors *st = NULL;
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    HZP_TRY(hzp_safetensors_open(path, &st, reterr));
    int r = get_numbers(st, path, ret, reterr);
    const char *sum = hzp_safetensors_meta(st, "weights_checksum");
    ret->checksum = sum ? strtoull(sum, NULL, 16) : 0;
    hzp_safetensors_close(st);
    return r;
}

static int load(struct hzp_trainer *t, struct hzp_version *v, const char *dir, bool same_recipe,
                char *ret_note, struct hzp_safetensors **ret_rest, struct hzp_err_text *reterr)
{
    struct hzp_trainer_numbers saved;
    HZP_TRY(load_file(t->config.model, &t->config.recipe, t->space, true, v, dir, same_recipe,
                      &saved, ret_note, ret_rest, reterr));
    fill_record(v, &saved);
    free(t->loaded_dir);
    t->loaded_dir = strdup(dir);
    HZP_ASSERT(t->loaded_dir);
    t->optimizer_step = saved.optimizer_step;
    t->draws = saved.draws;
    t->reset_step = saved.reset_step;
    t->learned_through = saved.learned_through;
    hzp_lock_take(&t->lock);
    t->stats.optimizer_step = saved.optimizer_step;
    t->stats.draws = saved.draws;
    t->stats.loss = saved.loss;
    hzp_lock_release(&t->lock);
    return HZP_OK;
}

int hzp_trainer_load(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                     bool same_recipe, char *ret_note, struct hzp_err_text *reterr)
{
    return load(t, v, dir, same_recipe, ret_note, NULL, reterr);
}

int hzp_trainer_load_begin(struct hzp_trainer *t, struct hzp_version *v, const char *dir,
                           struct hzp_err_text *reterr)
{
    bool behind =
        t->config.prepare_behind && !t->collectives && hzp_device_host_memory(t->config.model->dev);
    if (!behind)
        return load(t, v, dir, false, NULL, NULL, reterr);
    HZP_TRY(load(t, v, dir, false, NULL, &t->rest.file, reterr));
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    t->rest.path = strdup(path);
    HZP_ASSERT(t->rest.path);
    atomic_store(&t->rest.state, HZP_REST_UNREAD);
    return HZP_OK;
}

int hzp_trainer_load_rest(struct hzp_trainer *t, const atomic_bool *stop,
                          struct hzp_err_text *reterr)
{
    /* One thread: requests are served meanwhile. */
    struct reading from = {.dev = t->config.model->dev,
                           .st = t->rest.file,
                           .path = t->rest.path,
                           .threads = 1,
                           .stop = stop};
    if (!t->rest.file)
        return HZP_OK;
    int r = read_state(&from, t->space, reterr);
    hzp_trainer_drop_rest(t);
    atomic_store(&t->rest.state, r < 0 ? HZP_REST_FAILED : HZP_REST_NONE);
    return r;
}

void hzp_trainer_drop_rest(struct hzp_trainer *t)
{
    hzp_safetensors_close(t->rest.file);
    free(t->rest.path);
    t->rest.file = NULL;
    t->rest.path = NULL;
}
