/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/gate_file.h"

#include "base/decimal.h"
#include "base/file.h"

enum { SAMPLES_MAX = 1 << 20 };

struct hzp_gate_file {
    struct hzp_gate gate;
    struct hzp_sample **sample; /* [gate.count] */
    int32_t *tag;
    char name[HZP_GATE_TAGS_MAX][HZP_GATE_TAG_BYTES];
    const char *names[HZP_GATE_TAGS_MAX];
    double rise[HZP_GATE_TAGS_MAX];
};

/* The samples of one tag while the file is read. */
struct group {
    struct hzp_sample **sample;
    int32_t count, room;
};

static int bad_line(const char *path, int64_t line, const char *text, struct hzp_err_text *reterr)
{
    return hzp_fail_param(reterr, HZP_EINVAL, "--gate", "%s: line %lld: %.300s", path,
                          (long long)line, text);
}

/* The index of a tag, which is new if it was not there; -1: too many, or not valid. */
static int32_t tag_of(struct hzp_gate_file *f, const json_t *object, const char **ret_why)
{
    const json_t *value = json_object_get(object, "tag");
    const char *tag = value ? json_string_value(value) : "";
    *ret_why = "tag must be a string of 1 to 63 bytes, without \",\" and \"=\"";
    if (!tag || (value && !*tag) || strlen(tag) >= HZP_GATE_TAG_BYTES || strpbrk(tag, ",="))
        return -1;
    for (int32_t i = 0; i < f->gate.tags; i++)
        if (!strcmp(f->name[i], tag))
            return i;
    *ret_why = "there are more than 64 tags";
    if (f->gate.tags == HZP_GATE_TAGS_MAX)
        return -1;
    snprintf(f->name[f->gate.tags], HZP_GATE_TAG_BYTES, "%s", tag);
    return f->gate.tags++;
}

static void add_samples(struct group *g, struct hzp_sample **sample, int32_t count)
{
    g->sample = hzp_xgrow(g->sample, &g->room, g->count + count, sizeof(*sample));
    memcpy(g->sample + g->count, sample, (size_t)count * sizeof(*sample));
    g->count += count;
}

/* Reads one line into the group of its tag. */
static int read_line(struct hzp_gate_file *f, const struct hzp_examples *ex, const char *path,
                     int64_t number, const char *line, size_t bytes, struct group *group,
                     struct hzp_err_text *reterr)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_sample **sample;
    const char *why;
    int32_t count;
    struct hzp_json_error error;
    json_auto_t *object = hzp_json_load(line, bytes, HZP_JSON_UNIQUE, NULL, &error);
    if (!object)
        return bad_line(path, number, error.text, reterr);
    if (!json_is_object(object))
        return bad_line(path, number, "must be a JSON object", reterr);
    int32_t tag = tag_of(f, object, &why);
    json_object_del(object, "tag");
    if (tag < 0)
        return bad_line(path, number, why, reterr);
    HZP_FREED char *text = hzp_json_dumps(object, JSON_COMPACT);
    int r = hzp_examples_parse(ex, text ? text : "", text ? strlen(text) : 0, "application/json",
                               &sample, &count, &err);
    if (r < 0)
        bad_line(path, number, err.text, reterr);
    HZP_TRY(r);
    add_samples(&group[tag], sample, count);
    free(sample);
    f->gate.count += count;
    return f->gate.count <= SAMPLES_MAX ? HZP_OK
                                        : bad_line(path, number, "too many examples", reterr);
}

static int read_lines(struct hzp_gate_file *f, const struct hzp_examples *ex, const char *path,
                      struct group *group, struct hzp_err_text *reterr)
{
    HZP_FREED char *line = NULL;
    size_t room = 0;
    ssize_t n;
    HZP_ENDED(hzp_file_end) FILE *file = fopen(path, "r");
    if (!file)
        return hzp_fail_param(reterr, errno == ENOENT ? HZP_EINVAL : HZP_EIO, "--gate",
                              "--gate %s: %s", path, strerror(errno));
    for (int64_t number = 1; (n = getline(&line, &room, file)) >= 0; number++)
        if (strspn(line, " \t\r\n") < (size_t)n)
            HZP_TRY(read_line(f, ex, path, number, line, (size_t)n, group, reterr));
    if (ferror(file))
        return hzp_fail(reterr, HZP_EIO, "%s: cannot be read", path);
    if (!f->gate.count)
        return hzp_fail_param(reterr, HZP_EINVAL, "--gate", "%s: no examples", path);
    return HZP_OK;
}

/* One bound: "0.02" or "tag=0.02". */
static int read_rise(struct hzp_gate_file *f, const char *text, struct hzp_err_text *reterr)
{
    const char *equals = strchr(text, '='), *number = equals ? equals + 1 : text;
    double value = 0;
    const char *end = hzp_decimal(number, &value);
    int32_t tag = 0;
    if (!end || *end || !(value >= 0 && value <= 1000))
        return hzp_wrong(reterr, "--gate-max-rise",
                         ": \"%.80s\" is no bound: a number of nats from 0 to 1000, or TAG=NUMBER",
                         text);
    if (!equals) {
        f->gate.max_rise = value;
        return HZP_OK;
    }
    size_t bytes = (size_t)(equals - text);
    while (tag < f->gate.tags &&
           (strlen(f->name[tag]) != bytes || strncmp(f->name[tag], text, bytes)))
        tag++;
    if (tag == f->gate.tags || !bytes)
        return hzp_wrong(reterr, "--gate-max-rise", ": no example of --gate has the tag \"%.*s\"",
                         (int)HZP_MIN(bytes, (size_t)64), text);
    f->rise[tag] = value;
    return HZP_OK;
}

static int read_rises(struct hzp_gate_file *f, const char *text, struct hzp_err_text *reterr)
{
    int r = HZP_OK;
    char *copy = hzp_xstrdup(text), *at = copy;
    for (char *part; r >= 0 && (part = strsep(&at, ",")) != NULL;)
        r = read_rise(f, part, reterr);
    free(copy);
    return r;
}

static void join(struct hzp_gate_file *f, const struct group *group)
{
    int32_t n = 0;
    f->sample = hzp_xcalloc((size_t)HZP_MAX(f->gate.count, 1), sizeof(*f->sample));
    f->tag = hzp_xcalloc((size_t)HZP_MAX(f->gate.count, 1), sizeof(*f->tag));
    for (int32_t t = 0; t < f->gate.tags; t++)
        for (int32_t i = 0; i < group[t].count; i++) {
            f->sample[n] = group[t].sample[i];
            f->tag[n++] = t;
        }
    f->gate.count = n;
    for (int32_t t = 0; t < f->gate.tags; t++)
        f->names[t] = f->name[t];
    f->gate.sample = f->sample;
    f->gate.tag = f->tag;
    f->gate.name = f->names;
    f->gate.tag_rise = f->rise;
}

int hzp_gate_file_open(const struct hzp_examples *ex, const char *path, const char *rises,
                       struct hzp_gate_file **ret, struct hzp_err_text *reterr)
{
    struct hzp_gate_file *f = hzp_xcalloc(1, sizeof(*f));
    struct group group[HZP_GATE_TAGS_MAX] = {{0}};
    for (int i = 0; i < HZP_GATE_TAGS_MAX; i++)
        f->rise[i] = INFINITY;
    int r = read_lines(f, ex, path, group, reterr);
    join(f, group);
    for (int i = 0; i < HZP_GATE_TAGS_MAX; i++)
        free(group[i].sample);
    if (r >= 0)
        r = read_rises(f, rises, reterr);
    if (r < 0) {
        hzp_gate_file_close(f);
        return r;
    }
    *ret = f;
    return HZP_OK;
}

void hzp_gate_file_close(struct hzp_gate_file *f)
{
    if (!f)
        return;
    for (int32_t i = 0; i < f->gate.count; i++)
        hzp_sample_destroy(f->sample[i]);
    free(f->sample);
    free(f->tag);
    free(f);
}

const struct hzp_gate *hzp_gate_file_gate(const struct hzp_gate_file *f)
{
    return f ? &f->gate : NULL;
}
