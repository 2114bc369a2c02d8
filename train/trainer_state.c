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

int hzp_state_weights_checksum(const struct hzp_model *model, const struct hzp_version *v,
                               const char *path, uint64_t *ret, struct hzp_err_text *reterr)
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

/* --- Loading ---------------------------------------------------------------------------------- */

/* Moments and residuals as the file names them. */
enum { PARTS = HZP_STATE_WEIGHTS };
static const char *const part_name[PARTS] = {
    [HZP_STATE_M] = "m", [HZP_STATE_V] = "v", [HZP_STATE_RESIDUAL] = "residual"};

static void parts_of(const struct hzp_train_space *space, const struct hzp_units *ret[PARTS])
{
    ret[HZP_STATE_M] = hzp_train_space_m(space);
    ret[HZP_STATE_V] = hzp_train_space_v(space);
    ret[HZP_STATE_RESIDUAL] = hzp_train_space_residual(space);
}

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
    enum hzp_disk_type type = hzp_state_disk_type(units);
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
    struct hzp_trainer *to; /* its other ranks get the units, too; NULL: there are none */
    const struct hzp_state_whole *whole; /* is handed the units; NULL: there is none */
    enum hzp_state_part part;
    const struct hzp_st_tensor *tensor;
    const struct hzp_layout *layout;
    _Atomic uint64_t sum; /* over the units read, as hzp_units_checksum makes it */
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
    if (r >= 0 && s->to)
        r = hzp_trainer_restore_unit(s->to, s->part, u, host, s->reterr);
    if (r >= 0 && s->whole)
        r = s->whole->take(s->whole->ctx, s->part, u, host, s->reterr);
    return r;
}

/* How a state is read. */
struct reading {
    struct hzp_device *dev;
    const struct hzp_safetensors *st;
    const char *path;
    int threads;
    const atomic_bool *stop; /* NULL: nothing stops it */
    struct hzp_trainer *to;  /* suspended, with other ranks that get it, too; NULL: none does */
    const struct hzp_state_whole *whole; /* is handed the units; NULL: there is none */
};

/* Copies the tensor, which holds all units in order, to the resident parts of the units, and
 * compares its checksum; files of earlier builds have none. */
static int get_state(const struct reading *from, enum hzp_state_part part,
                     const struct hzp_units *units, struct hzp_err_text *reterr)
{
    const struct hzp_st_tensor *tensor;
    const char *name = part_name[part];
    const char *path = from->path;
    char now[32], key[32];
    HZP_TRY(find_state(from->st, path, name, units, &tensor, reterr));
    struct state_source source = {.tensor = tensor,
                                  .layout = units->layout,
                                  .failed = ATOMIC_FLAG_INIT,
                                  .to = from->to,
                                  .whole = from->whole,
                                  .part = part,
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

static int check_weights(const struct hzp_safetensors *st, const char *path, uint64_t sum,
                         struct hzp_err_text *reterr)
{
    const char *then = hzp_safetensors_meta(st, "weights_checksum");
    char now[32];
    snprintf(now, sizeof(now), "%016" PRIx64, sum);
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

/* Everything but the weights' checksum, moments and residuals.  part: NULL if there is none. */
static int check_state(const struct hzp_recipe *recipe, const struct hzp_units *const part[PARTS],
                       const struct hzp_safetensors *st, const char *path, bool same_recipe,
                       struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    const char *format = hzp_safetensors_meta(st, "format");
    const struct hzp_st_tensor *found;
    if (!format || strcmp(format, HZP_STATE_FORMAT))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: not a trainer's state (format %s)", path,
                        format ? format : "missing");
    HZP_TRY(hzp_state_compare_recipe(recipe, st, path, same_recipe, reterr));
    HZP_TRY(get_numbers(st, path, ret, reterr));
    for (int p = 0; p < PARTS; p++)
        if (part[p])
            HZP_TRY(find_state(st, path, part_name[p], part[p], &found, reterr));
    return HZP_OK;
}

/* Moments and residuals, from a file that was checked. */
static int read_state(const struct reading *from, const struct hzp_units *const part[PARTS],
                      struct hzp_err_text *reterr)
{
    if (from->to)
        HZP_TRY(hzp_trainer_restore_begin(from->to, reterr));
    for (int p = 0; p < PARTS; p++)
        if (part[p])
            HZP_TRY(get_state(from, (enum hzp_state_part)p, part[p], reterr));
    return HZP_OK;
}

static void copy_note(const struct hzp_safetensors *st, char *ret)
{
    const char *note = hzp_safetensors_meta(st, "note");
    if (ret)
        snprintf(ret, HZP_TRAINER_NOTE_MAX + 1, "%s", note ? note : "");
}

static void fill_record(struct hzp_version *v, const struct hzp_trainer_numbers *n)
{
    v->record.optimizer_step = n->optimizer_step;
    v->record.learned_through = n->learned_through;
    v->record.checksum = n->checksum;
    v->record.loss = n->loss >= 0 ? n->loss : NAN;
}

/* ret_note as in hzp_trainer_load.  suspended: the trainer whose space it is, where something was
 * learned already; NULL: the space is fresh.  ret_rest: moments and residuals are not read, but the
 * file, which is the caller's then; NULL: they are. */
static int load_file(const struct hzp_model *model, const struct hzp_recipe *recipe,
                     struct hzp_train_space *space, struct hzp_trainer *suspended,
                     const struct hzp_version *v, const char *dir, bool same_recipe,
                     struct hzp_trainer_numbers *ret, char *ret_note,
                     struct hzp_safetensors **ret_rest, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_safetensors *st = NULL;
    const struct hzp_units *part[PARTS];
    parts_of(space, part);
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    HZP_TRY(hzp_safetensors_open(path, &st, reterr));
    int r = suspended ? HZP_OK : hzp_train_space_restore(space);
    if (r >= 0)
        r = check_state(recipe, part, st, path, same_recipe, ret, reterr);
    else
        hzp_fail(reterr, r, "no memory for %s: %s", path, hzp_err_name(r));
    if (r >= 0)
        r = hzp_state_weights_checksum(model, v, path, &ret->checksum, reterr);
    if (r >= 0)
        r = check_weights(st, path, ret->checksum, reterr);
    struct reading from = {.dev = model->dev, .st = st, .path = path};
    from.to = suspended && suspended->collectives ? suspended : NULL;
    from.threads = from.to ? 1 : model->dev->threads; /* units are sent one after the other */
    if (r >= 0 && !ret_rest)
        r = read_state(&from, part, reterr);
    if (r >= 0)
        copy_note(st, ret_note);
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
    HZP_TRY(load_file(model, recipe, space, NULL, v, dir, same_recipe, ret, NULL, NULL, reterr));
    fill_record(v, ret);
    return HZP_OK;
}

int hzp_trainer_load_whole(const struct hzp_state_whole *to, const struct hzp_recipe *recipe,
                           const char *dir, bool same_recipe, struct hzp_trainer_numbers *ret,
                           char *ret_note, struct hzp_err_text *reterr)
{
    struct hzp_state_reader weights = {.whole = to};
    const struct hzp_units *part[PARTS];
    char path[PATH_MAX];
    struct hzp_safetensors *st = NULL;
    for (int p = 0; p < PARTS; p++)
        part[p] = to->part[p].layout ? &to->part[p] : NULL;
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    HZP_TRY(hzp_safetensors_open(path, &st, reterr));
    struct reading from = {.st = st, .path = path, .threads = 1, .whole = to};
    int r = check_state(recipe, part, st, path, same_recipe, ret, reterr);
    if (r >= 0)
        r = hzp_state_sum(&weights, HZP_STATE_WEIGHTS, &ret->checksum, reterr);
    if (r >= 0)
        r = check_weights(st, path, ret->checksum, reterr);
    if (r >= 0)
        r = read_state(&from, part, reterr);
    if (r >= 0)
        copy_note(st, ret_note);
    hzp_safetensors_close(st);
    return r;
}

int hzp_trainer_load_suspended(struct hzp_trainer *t, const struct hzp_version *v, const char *dir,
                               struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    HZP_ASSERT(hzp_trainer_suspended(t));
    return load_file(t->config.model, &t->config.recipe, t->space, t, v, dir, false, ret, NULL,
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
    if (t->work.data) {
        HZP_TRY(hzp_trainer_load_slices(t, v, dir, same_recipe, &saved, ret_note, reterr));
    } else {
        HZP_TRY(load_file(t->config.model, &t->config.recipe, t->space, NULL, v, dir, same_recipe,
                          &saved, ret_note, ret_rest, reterr));
        fill_record(v, &saved);
    }
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
    const struct hzp_units *part[PARTS];
    if (!t->rest.file)
        return HZP_OK;
    parts_of(t->space, part);
    int r = read_state(&from, part, reterr);
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
