/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve devices: lists the backends of this build, the devices of this machine, and the links
 * between ranks. */
#include "api/cli/commands.h"
#include "api/engine/memory_plan.h"
#include "base/version.h"
#include "device/about.h"
#include "device/fallback.h"

/* The device's name as --device takes it: "cuda:1"; only the backend's name if it has one
 * device. */
static const char *device_name(const char *backend, int ordinal, char text[32])
{
    snprintf(text, 32, strcmp(backend, "cuda") == 0 ? "%s:%d" : "%s", backend, ordinal);
    return text;
}

/* ---- as text ---- */

static void print_slower(const char *backend, const struct hzp_about_device *d)
{
    struct hzp_fallback_shape shape[HZP_FALLBACK_SHAPES_MAX];
    int shapes = hzp_fallbacks_last(backend, d->ordinal, d->id, shape);
    if (shapes)
        printf("    slower ways taken in the last run:\n");
    for (int i = 0; i < shapes; i++) {
        const struct hzp_fallback_shape *s = &shape[i];
        printf("      %s %dx%dx%d, %llu time%s: %s\n", hzp_fallback_name(s->kind), s->m, s->n, s->k,
               (unsigned long long)s->count, s->count == 1 ? "" : "s", s->reason);
    }
}

static void print_facts(const char *what, const struct hzp_fact *fact, int facts)
{
    for (int i = 0; i < facts; i++)
        printf("%s%s %s", i ? "; " : what, fact[i].name, fact[i].value);
    if (facts)
        printf("\n");
}

static void print_backend(const char *name, const struct hzp_about *about)
{
    char text[32], size[16];
    printf("%s%s%s\n", name, about->none[0] ? ": " : "", about->none);
    print_facts("  built with: ", about->build, about->builds);
    print_facts("  found here: ", about->machine, about->machines);
    for (int i = 0; i < about->devices; i++) {
        const struct hzp_about_device *d = &about->device[i];
        printf("  --device %s: %s, %s, %d %s%s", device_name(name, d->ordinal, text), d->name,
               hzp_size_text(d->memory, size), d->cores,
               strcmp(name, "cuda") == 0 ? "SM" : "thread", d->cores == 1 ? "" : "s");
        for (int k = 0; k < d->facts; k++)
            printf(", %s %s", d->fact[k].name, d->fact[k].value);
        printf("\n");
        print_slower(name, d);
    }
}

/* ---- as JSON ---- */

static json_t *facts_json(const struct hzp_fact *fact, int facts)
{
    json_t *object = json_object();
    for (int i = 0; i < facts; i++) {
        char key[sizeof(fact[i].name)];
        size_t n = 0;
        for (; fact[i].name[n]; n++)
            key[n] = (char)(fact[i].name[n] == ' ' ? '_' : fact[i].name[n]);
        key[n] = '\0';
        json_object_set_new(object, key, json_string(fact[i].value));
    }
    return object;
}

static json_t *slower_json(const char *backend, const struct hzp_about_device *d)
{
    struct hzp_fallback_shape shape[HZP_FALLBACK_SHAPES_MAX];
    int shapes = hzp_fallbacks_last(backend, d->ordinal, d->id, shape);
    json_t *ret = json_array();
    for (int i = 0; i < shapes; i++) {
        const struct hzp_fallback_shape *s = &shape[i];
        json_array_append_new(ret, json_pack("{s:s, s:[i, i, i], s:I, s:I, s:s}", "kind",
                                             hzp_fallback_name(s->kind), "shape", s->m, s->n, s->k,
                                             "count", (json_int_t)s->count, "last",
                                             (json_int_t)s->last, "reason", s->reason));
    }
    return ret;
}

static json_t *backend_json(const char *name, const struct hzp_about *about)
{
    json_t *devices = json_array();
    for (int i = 0; i < about->devices; i++) {
        const struct hzp_about_device *d = &about->device[i];
        char text[32];
        json_t *one = facts_json(d->fact, d->facts);
        json_object_set_new(one, "device", json_string(device_name(name, d->ordinal, text)));
        json_object_set_new(one, "name", json_string(d->name));
        json_object_set_new(one, "memory_bytes", json_integer((json_int_t)d->memory));
        json_object_set_new(one, "cores", json_integer(d->cores));
        json_object_set_new(one, "fallbacks", slower_json(name, d));
        json_array_append_new(devices, one);
    }
    json_t *ret = json_pack("{s:s, s:o, s:o, s:o}", "backend", name, "build",
                            facts_json(about->build, about->builds), "machine",
                            facts_json(about->machine, about->machines), "devices", devices);
    if (about->none[0])
        json_object_set_new(ret, "none", json_string(about->none));
    return ret;
}

/* As text, or into `links`. */
static void show_links(json_t *links)
{
    struct hzp_link_about about;
    for (int i = 0; hzp_link_about(i, &about); i++)
        if (links)
            json_array_append_new(links, json_pack("{s:s, s:b, s:s}", "link", about.name, "usable",
                                                   (int)about.usable, "about", about.text));
        else
            printf("link %s: %s\n", about.name, about.text);
}

int hzp_cmd_devices(const struct hzp_options *options)
{
    struct hzp_about about;
    const char *name;
    json_auto_t *all = json_array();
    for (int i = 0; (name = hzp_device_about(i, &about)); i++) {
        if (!about.none[0] && !about.devices)
            continue; /* the simulator: not a device of the machine */
        if (options->json)
            json_array_append_new(all, backend_json(name, &about));
        else
            print_backend(name, &about);
    }
    if (!options->json) {
        show_links(NULL);
    } else {
        json_t *links = json_array();
        show_links(links);
        json_auto_t *top = json_pack("{s:s, s:O, s:o}", "version", HZP_VERSION_TEXT, "backends",
                                     all, "links", links);
        HZP_FREED char *text = json_dumps(top, JSON_INDENT(2));
        printf("%s\n", text ? text : "{}");
    }
    return 0;
}
