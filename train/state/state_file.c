/* SPDX-License-Identifier: Apache-2.0 */
#include "train/state/state_file.h"

#include "weights/safetensors.h"

static const char state_format[] = "hzpserve-trainer-1";

/* --- The recipe as text ----------------------------------------------------------------------- */

enum field_type { FLOAT, INT32, INT64, WORD, MOMENTS };

static const char *const schedules[] = {"constant", "cosine"};
static const char *const optimizers[] = {"adamw", "nadam", "muon"};
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
    FIELD("momentum", FLOAT, momentum, .absent = "0.95"),
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

/* HZP_EINVAL, naming the field: the file was written with another recipe; all false: only the
 * moments' type counts. */
static int compare_recipe(const struct hzp_recipe *recipe, const struct hzp_safetensors *st,
                          const char *path, bool all, struct hzp_err_text *reterr)
{
    for (int i = 0; i < HZP_COUNT(fields); i++) {
        char now[64];
        const char *then = hzp_safetensors_meta(st, fields[i].name);
        print_field(recipe, &fields[i], now, sizeof(now));
        then = then ? then : fields[i].absent;
        /* Muon leaves second moments of matrices behind that are none for AdamW. */
        bool muon = fields[i].word == optimizers && then && !strcmp(then, optimizers[HZP_MUON]);
        bool idle = fields[i].offset == offsetof(struct hzp_recipe, momentum) &&
                    recipe->optimizer != HZP_MUON; /* no other optimizer has one */
        if (idle || (!all && fields[i].type != MOMENTS && !muon))
            continue;
        if (!then || strcmp(then, now))
            return hzp_fail_param(reterr, HZP_EINVAL, fields[i].name,
                                  "%s: this run was begun with %s %s, now it is %s", path,
                                  fields[i].name, then ? then : "(not named)", now);
    }
    return HZP_OK;
}

/* --- Saving ----------------------------------------------------------------------------------- */

static enum hzp_disk_type disk_type(const struct hzp_units *units)
{
    return units->type == HZP_BF16  ? HZP_DISK_BF16
           : units->type == HZP_I16 ? HZP_DISK_I16
           : units->type == HZP_Q8  ? HZP_DISK_U8
                                    : HZP_DISK_F32;
}

static void put_checksum(struct hzp_st_writer *w, const char *key, uint64_t sum)
{
    char text[32];
    snprintf(text, sizeof(text), "%016" PRIx64, sum);
    hzp_st_writer_meta(w, key, text);
}

/* Names the part in the file's header: a tensor of all units in order, and its checksum, which is
 * not known before they are written. */
static void declare_part(const struct hzp_units *units, struct hzp_st_writer *w,
                         enum hzp_state_part part)
{
    char key[32];
    int64_t shape = (int64_t)units->layout->elements;
    snprintf(key, sizeof(key), "%s_checksum", hzp_state_part_name(part));
    put_checksum(w, key, 0);
    hzp_st_writer_declare(w, hzp_state_part_name(part), disk_type(units), 1, &shape);
}

static int put_unit(void *ctx, enum hzp_state_part part, int32_t u,
                    const struct hzp_unit_view *whole, struct hzp_err_text *reterr)
{
    return hzp_st_writer_data(ctx, whole->base, hzp_unit_bytes(whole), reterr);
}

static int put_part(const struct hzp_unit_source *source, struct hzp_st_writer *w,
                    enum hzp_state_part part, struct hzp_err_text *reterr)
{
    char key[32];
    uint64_t sum;
    HZP_TRY(hzp_unit_stream(source, part, put_unit, w, &sum, reterr));
    snprintf(key, sizeof(key), "%s_checksum", hzp_state_part_name(part));
    put_checksum(w, key, sum);
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
    hzp_st_writer_meta(w, "format", state_format);
    put_number(w, "step", numbers->optimizer_step);
    put_number(w, "draws", numbers->draws);
    put_number(w, "learned_through", numbers->learned_through);
    if (numbers->reset_step)
        put_number(w, "reset_step", numbers->reset_step);
    snprintf(text, sizeof(text), "%.17g", numbers->loss);
    hzp_st_writer_meta(w, "loss", text);
    put_checksum(w, "weights_checksum", numbers->checksum);
    hzp_st_writer_meta(w, "note", note ? note : "");
    for (int i = 0; i < HZP_COUNT(fields); i++) {
        print_field(recipe, &fields[i], text, sizeof(text));
        hzp_st_writer_meta(w, fields[i].name, text);
    }
}

int hzp_state_file_write(const struct hzp_train_state *state, const char *dir, const char *note,
                         struct hzp_err_text *reterr)
{
    HZP_ASSERT(!note || strlen(note) <= HZP_TRAINER_NOTE_MAX);
    char path[PATH_MAX];
    struct hzp_st_writer *w;
    const struct hzp_unit_source *source = &state->source;
    struct hzp_trainer_numbers numbers = state->numbers;
    if (!numbers.checksum)
        HZP_TRY(hzp_unit_stream(source, HZP_STATE_WEIGHTS, NULL, NULL, &numbers.checksum, reterr));
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    HZP_TRY(hzp_st_writer_open(path, &w, reterr));
    put_meta(&numbers, &state->recipe, note, w);
    int r = HZP_OK;
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (source->part[p])
            declare_part(source->part[p], w, (enum hzp_state_part)p);
    for (int p = 0; p < HZP_STATE_WEIGHTS && r >= 0; p++)
        if (source->part[p])
            r = put_part(source, w, (enum hzp_state_part)p, reterr);
    if (r >= 0)
        return hzp_st_writer_finish(w, reterr);
    hzp_st_writer_abandon(w);
    return r;
}

/* --- Reading ---------------------------------------------------------------------------------- */

struct hzp_state_file {
    struct hzp_safetensors *st;
    char path[PATH_MAX];
};

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

/* What the threads that read a part share. */
struct part_reader {
    const struct hzp_state_sink *sink;
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
    struct part_reader *s = ctx;
    struct hzp_err_text text;
    if (s->stop && atomic_load(s->stop))
        return HZP_ECANCELED;
    int r = hzp_safetensors_read(s->tensor, (int64_t)s->layout->unit[u].before,
                                 (int64_t)host->elements, host->base, &text);
    if (r < 0 && !atomic_flag_test_and_set(&s->failed))
        return hzp_fail(s->reterr, r, "%s", text.text);
    if (r >= 0)
        atomic_fetch_add(&s->sum, hzp_unit_checksum(host));
    if (r >= 0 && s->sink->take)
        r = s->sink->take(s->sink->ctx, s->part, u, host, s->reterr);
    return r;
}

/* Copies the tensor, which holds all units in order, to the resident parts of the units, and
 * compares its checksum; files of earlier builds have none. */
static int read_part(const struct hzp_state_file *file, const struct hzp_state_sink *sink,
                     enum hzp_state_part part, const atomic_bool *stop, struct hzp_err_text *reterr)
{
    const struct hzp_units *units = sink->part[part];
    char now[32], key[32];
    struct part_reader reader = {.sink = sink,
                                 .part = part,
                                 .layout = units->layout,
                                 .failed = ATOMIC_FLAG_INIT,
                                 .stop = stop,
                                 .reterr = reterr};
    const char *name = hzp_state_part_name(part);
    HZP_TRY(find_state(file->st, file->path, name, units, &reader.tensor, reterr));
    snprintf(key, sizeof(key), "%s_checksum", name);
    const char *then = hzp_safetensors_meta(file->st, key);
    HZP_TRY(hzp_units_fill_by(sink->dev, units, take_unit, &reader, sink->threads));
    snprintf(now, sizeof(now), "%016" PRIx64, atomic_load(&reader.sum));
    return then && strcmp(then, now)
               ? hzp_fail(reterr, HZP_EFORMAT, "%s: tensor %s is damaged (checksum %s, not %s)",
                          file->path, reader.tensor->name, now, then)
               : HZP_OK;
}

int hzp_state_file_read(const struct hzp_state_file *file, const struct hzp_state_sink *sink,
                        const atomic_bool *stop, struct hzp_err_text *reterr)
{
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (sink->part[p])
            HZP_TRY(read_part(file, sink, (enum hzp_state_part)p, stop, reterr));
    return HZP_OK;
}

int hzp_state_file_belongs(const struct hzp_state_file *file, uint64_t checksum,
                           struct hzp_err_text *reterr)
{
    const char *then = hzp_safetensors_meta(file->st, "weights_checksum");
    char now[32];
    snprintf(now, sizeof(now), "%016" PRIx64, checksum);
    if (!then || strcmp(then, now))
        return hzp_fail(
            reterr, HZP_EFORMAT,
            "%s: belongs to other weights (checksum %s; the weights in this directory have %s)",
            file->path, then ? then : "missing", now);
    return HZP_OK;
}

static int get_numbers(const struct hzp_safetensors *st, const char *path,
                       struct hzp_trainer_numbers *ret, struct hzp_err_text *reterr)
{
    const char *loss = hzp_safetensors_meta(st, "loss");
    const char *sum = hzp_safetensors_meta(st, "weights_checksum");
    ret->checksum = sum ? strtoull(sum, NULL, 16) : 0;
    ret->loss = loss ? strtod(loss, NULL) : -1;
    ret->reset_step = 0;
    HZP_TRY(get_number(st, path, "step", 0, &ret->optimizer_step, reterr));
    HZP_TRY(get_number(st, path, "draws", 0, &ret->draws, reterr));
    HZP_TRY(get_number(st, path, "learned_through", -1, &ret->learned_through, reterr));
    return hzp_safetensors_meta(st, "reset_step")
               ? get_number(st, path, "reset_step", 0, &ret->reset_step, reterr)
               : HZP_OK;
}

static int check(const struct hzp_state_file *file, const struct hzp_state_sink *sink,
                 const struct hzp_recipe *recipe, bool same_recipe, struct hzp_trainer_numbers *ret,
                 struct hzp_err_text *reterr)
{
    const char *format = hzp_safetensors_meta(file->st, "format");
    const struct hzp_st_tensor *found;
    if (!format || strcmp(format, state_format))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: not a trainer's state (format %s)", file->path,
                        format ? format : "missing");
    HZP_TRY(compare_recipe(recipe, file->st, file->path, same_recipe, reterr));
    HZP_TRY(get_numbers(file->st, file->path, ret, reterr));
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (sink->part[p])
            HZP_TRY(find_state(file->st, file->path, hzp_state_part_name((enum hzp_state_part)p),
                               sink->part[p], &found, reterr));
    return HZP_OK;
}

/* Opens the file of that name; its contents are not checked. */
static int open_file(const char *dir, struct hzp_state_file **ret, struct hzp_err_text *reterr)
{
    struct hzp_state_file *file = hzp_xcalloc(1, sizeof(*file));
    snprintf(file->path, sizeof(file->path), "%s/trainer.safetensors", dir);
    int r = hzp_safetensors_open(file->path, &file->st, reterr);
    if (r < 0) {
        free(file);
        return r;
    }
    *ret = file;
    return HZP_OK;
}

int hzp_state_file_open(const char *dir, const struct hzp_state_sink *sink,
                        const struct hzp_recipe *recipe, bool same_recipe,
                        struct hzp_state_file **ret_file, struct hzp_trainer_numbers *ret,
                        char *ret_note, struct hzp_err_text *reterr)
{
    struct hzp_state_file *file;
    HZP_TRY(open_file(dir, &file, reterr));
    int r = check(file, sink, recipe, same_recipe, ret, reterr);
    if (r < 0) {
        hzp_state_file_close(file);
        return r;
    }
    const char *note = hzp_safetensors_meta(file->st, "note");
    if (ret_note)
        snprintf(ret_note, HZP_TRAINER_NOTE_MAX + 1, "%s", note ? note : "");
    *ret_file = file;
    return HZP_OK;
}

void hzp_state_file_close(struct hzp_state_file *file)
{
    if (file)
        hzp_safetensors_close(file->st);
    free(file);
}

int hzp_trainer_read_numbers(const char *dir, struct hzp_trainer_numbers *ret,
                             struct hzp_err_text *reterr)
{
    struct hzp_state_file *file;
    HZP_TRY(open_file(dir, &file, reterr));
    int r = get_numbers(file->st, file->path, ret, reterr);
    hzp_state_file_close(file);
    return r;
}

/* --- Into a space ----------------------------------------------------------------------------- */

struct hzp_state_sink hzp_state_space_sink(const struct hzp_model *model,
                                           const struct hzp_train_space *space)
{
    struct hzp_state_sink sink = {.dev = model->dev, .threads = model->dev->threads};
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        sink.part[p] = hzp_train_space_part(space, (enum hzp_state_part)p);
    return sink;
}

/* The checksum of the weights in the version's memory; where this rank has only its shards of
 * them, that of the record. */
static int weights_checksum(const struct hzp_model *model, const struct hzp_version *v,
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

int hzp_state_file_open_for(const struct hzp_model *model, const struct hzp_recipe *recipe,
                            struct hzp_train_space *space, bool in_use, const struct hzp_version *v,
                            const char *dir, bool same_recipe, struct hzp_state_file **ret_file,
                            struct hzp_trainer_numbers *ret, char *ret_note,
                            struct hzp_err_text *reterr)
{
    struct hzp_state_sink sink = hzp_state_space_sink(model, space);
    struct hzp_state_file *file;
    HZP_TRY(hzp_state_file_open(dir, &sink, recipe, same_recipe, &file, ret, ret_note, reterr));
    int r = in_use ? HZP_OK : hzp_train_space_restore(space);
    if (r < 0)
        hzp_fail(reterr, r, "no memory for %s: %s", file->path, hzp_err_name(r));
    if (r >= 0)
        r = weights_checksum(model, v, file->path, &ret->checksum, reterr);
    if (r >= 0)
        r = hzp_state_file_belongs(file, ret->checksum, reterr);
    if (r < 0)
        hzp_state_file_close(file);
    else
        *ret_file = file;
    return r;
}

int hzp_state_load(const struct hzp_model *model, const struct hzp_recipe *recipe,
                   struct hzp_train_space *space, struct hzp_version *v, const char *dir,
                   bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                   struct hzp_err_text *reterr)
{
    struct hzp_state_sink sink = hzp_state_space_sink(model, space);
    struct hzp_state_file *file;
    HZP_TRY(hzp_state_file_open_for(model, recipe, space, false, v, dir, same_recipe, &file, ret,
                                    ret_note, reterr));
    int r = hzp_state_file_read(file, &sink, NULL, reterr);
    hzp_state_file_close(file);
    HZP_TRY(r);
    hzp_state_fill_record(v, ret);
    return HZP_OK;
}

void hzp_state_fill_record(struct hzp_version *v, const struct hzp_trainer_numbers *n)
{
    v->record.optimizer_step = n->optimizer_step;
    v->record.learned_through = n->learned_through;
    v->record.checksum = n->checksum;
    v->record.loss = n->loss >= 0 ? n->loss : NAN;
}

/* --- To nowhere ------------------------------------------------------------------------------- */

/* The sink takes a part that the file has, or says that it has; all its units go to `place`. */
static void verify_part(const struct hzp_state_file *file, const struct hzp_layout *layout,
                        enum hzp_state_part part, void *place, struct hzp_units *units,
                        struct hzp_state_sink *sink)
{
    const char *moments = hzp_safetensors_meta(file->st, "moments");
    const char *name = hzp_state_part_name(part);
    const struct hzp_st_tensor *tensor = hzp_safetensors_find(file->st, name);
    char key[32];
    enum hzp_dtype type, of = moments && !strcmp(moments, "q8") ? HZP_Q8 : HZP_F32;
    const struct hzp_layout *own = hzp_state_layout(layout, HZP_BF16, of, part, &type);
    snprintf(key, sizeof(key), "%s_checksum", name);
    if (!own || (!tensor && !hzp_safetensors_meta(file->st, key)))
        return;
    if (tensor && tensor->type == HZP_DISK_BF16) /* moments */
        type = HZP_BF16;
    hzp_units_init(units, own, type, NULL);
    for (int32_t u = 0; u < own->units; u++)
        hzp_units_place(units, u, place);
    sink->part[part] = units;
}

int hzp_trainer_verify(const char *dir, const struct hzp_layout *layout, uint64_t weights_checksum,
                       int64_t *ret_learned_through, struct hzp_err_text *reterr)
{
    struct hzp_units units[HZP_STATE_WEIGHTS];
    struct hzp_state_sink sink = {.threads = 1};
    struct hzp_state_file *file;
    HZP_TRY(open_file(dir, &file, reterr));
    const char *through = hzp_safetensors_meta(file->st, "learned_through");
    *ret_learned_through = through ? strtoll(through, NULL, 10) : -1;
    void *place = malloc(hzp_layout_largest(layout) * sizeof(float));
    int r = place ? hzp_state_file_belongs(file, weights_checksum, reterr)
                  : hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory", file->path);
    for (int p = 0; p < HZP_STATE_WEIGHTS && r >= 0; p++)
        verify_part(file, layout, (enum hzp_state_part)p, place, &units[p], &sink);
    if (r >= 0)
        r = hzp_state_file_read(file, &sink, NULL, reterr);
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (sink.part[p])
            hzp_units_free(&units[p]);
    free(place);
    hzp_state_file_close(file);
    return r;
}
