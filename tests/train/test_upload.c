/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests, and weights that arrive in pieces: cut off after any byte, damaged on the way or on
 * the disk, and partly here already. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "api/learn/upload.h"
#include "tests/fixture/units.h"
#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"
#include "weights/model_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    struct hzp_layout layout;
    struct hzp_units units;
    struct hzp_manifest m;
};

/* Weights from a seed, in scratch/name; those of unit `other` (-1: none) from the next seed. */
static void make_model(const char *name, uint64_t seed, int32_t other, struct model *ret)
{
    struct hzp_model_config c;
    struct hzp_err_text err = {.text = ""};
    mkdir(scratch_path("source"), 0777);
    scratch_write_text(scratch_path("source/config.json"), tiny_models[3]);
    scratch_write_text(scratch_path("source/tokenizer.json"), "{\"a\": 1}");
    assert_int_equal(hzp_config_read(scratch_path("source"), &c, &err), HZP_OK);
    hzp_layout_make(&c, &ret->layout);
    ret->units = fixture_units(&ret->layout, HZP_F32);
    assert_int_equal(hzp_model_init(NULL, &ret->units, seed, 0.5f), HZP_OK);
    if (other >= 0) {
        struct hzp_units next = fixture_units(&ret->layout, HZP_F32);
        struct hzp_unit_view to = hzp_unit_view(&ret->units, other);
        assert_int_equal(hzp_model_init(NULL, &next, seed + 1, 0.5f), HZP_OK);
        memcpy(to.base, hzp_unit_view(&next, other).base, hzp_unit_bytes(&to));
        fixture_units_free(&next);
    }
    assert_int_equal(
        hzp_model_save(scratch_path("%s", name), NULL, &ret->units, scratch_path("source"), &err),
        HZP_OK);
    assert_int_equal(
        hzp_manifest_make(scratch_path("%s", name), &ret->layout, HZP_F32, NULL, &ret->m, &err),
        HZP_OK);
    const atomic_bool stop = true;
    struct hzp_manifest none;
    assert_int_equal(
        hzp_manifest_make(scratch_path("%s", name), &ret->layout, HZP_F32, &stop, &none, &err),
        HZP_ECANCELED);
}

static void free_model(struct model *m)
{
    hzp_manifest_fini(&m->m);
    fixture_units_free(&m->units);
    hzp_layout_free(&m->layout);
}

static size_t bytes_of(const struct model *m, int32_t u)
{
    return (size_t)hzp_manifest_unit_bytes(&m->layout, HZP_F32, u);
}

static const char *data_of(const struct model *m, int32_t u)
{
    return hzp_unit_view(&m->units, u).base;
}

/* A manifest is the version's checksum, cut by units; as JSON it comes back as it was, and what is
 * changed anywhere is refused or another manifest, but nothing worse. */
static void test_manifest(void **state)
{
    struct model m;
    struct hzp_manifest again = {.units = 0};
    struct hzp_err_text err = {.text = ""};
    uint64_t checksum;
    make_model("model", 1, -1, &m);
    assert_int_equal(hzp_units_checksum(NULL, &m.units, &checksum), HZP_OK);
    assert_int_equal(m.m.checksum, checksum);
    assert_int_equal(m.m.files, 2);
    json_t *json = hzp_manifest_json(&m.m, &m.layout);
    assert_int_equal(hzp_manifest_read(json, &again, &err), HZP_OK);
    assert_memory_equal(again.unit, m.m.unit, (size_t)m.m.units * sizeof(*again.unit));
    assert_int_equal(again.file[1].checksum, m.m.file[1].checksum);
    assert_int_equal(hzp_manifest_agrees(&again, &m.layout, HZP_F32, m.m.tokenizer, &err), HZP_OK);
    assert_int_equal(hzp_manifest_agrees(&again, &m.layout, HZP_BF16, m.m.tokenizer, &err),
                     HZP_EINVAL);
    assert_int_equal(hzp_manifest_agrees(&again, &m.layout, HZP_F32, "x", &err), HZP_EINVAL);
    hzp_manifest_fini(&again);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    size_t n = strlen(text);
    int refused = 0;
    for (size_t i = 0; i < n; i++) {
        char was = text[i];
        text[i] = was == '0' ? '-' : '0';
        json = json_loadb(text, n, 0, NULL);
        if (json && hzp_manifest_read(json, &again, &err) >= 0)
            hzp_manifest_fini(&again);
        else
            refused += json != NULL;
        json_decref(json);
        text[i] = was;
    }
    assert_true(refused > 100);
    free(text);
    free_model(&m);
}

/* Any range of a unit, of any type, is that of the whole. */
static void test_ranges(void **state)
{
    struct model m;
    struct hzp_err_text err = {.text = ""};
    make_model("model", 1, -1, &m);
    for (int type = 0; type < 2; type++) {
        enum hzp_dtype as = type ? HZP_BF16 : HZP_F32;
        size_t size = hzp_dtype_size(as);
        struct hzp_model_reader *reader;
        struct hzp_units whole = fixture_units(&m.layout, as);
        assert_int_equal(hzp_model_load(scratch_path("model"), NULL, &whole, NULL, &err), HZP_OK);
        assert_int_equal(hzp_model_open(scratch_path("model"), &m.layout, as, &reader, &err),
                         HZP_OK);
        for (int32_t u = 0; u < m.layout.units; u++) {
            size_t n = m.layout.unit[u].elements;
            char *got = malloc(n * size);
            const size_t cut[] = {0, 1, n / 3, n / 2, n / 2 + 1, n - 2, n - 1, n};
            for (int a = 0; a < 8; a++)
                for (int b = a; b < 8; b++) {
                    memset(got, 0xff, n * size);
                    assert_int_equal(hzp_model_read(reader, u, cut[a], cut[b] - cut[a], got, &err),
                                     HZP_OK);
                    assert_memory_equal(got, (char *)hzp_unit_view(&whole, u).base + cut[a] * size,
                                        (cut[b] - cut[a]) * size);
                }
            free(got);
        }
        hzp_model_close(reader);
        fixture_units_free(&whole);
    }
    free_model(&m);
}

/* Sends unit u from byte `at` on in pieces, and expects the last one's result. */
static void send(struct hzp_upload *up, const struct model *m, int32_t u, size_t at, size_t piece,
                 int want)
{
    struct hzp_err_text err;
    uint64_t received = 0;
    while (at < bytes_of(m, u)) {
        size_t left = bytes_of(m, u) - at, n = HZP_MIN(piece, left);
        bool last = at + n == bytes_of(m, u);
        assert_int_equal(
            hzp_upload_write(up, m->m.checksum, u, at, data_of(m, u) + at, n, &received, &err),
            last ? want : HZP_OK);
        at += n;
        if (!last || want == HZP_OK)
            assert_int_equal(received, at);
    }
}

static struct hzp_upload *begin(const struct model *m, const struct hzp_manifest *have,
                                const char *dir, uint64_t *ret_received)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_upload *up = hzp_upload_create(scratch_path("state"), &m->layout, HZP_F32);
    assert_int_equal(hzp_upload_begin(up, &m->m, have, dir ? scratch_path("%s", dir) : NULL, &err),
                     HZP_OK);
    assert_int_equal(hzp_upload_received(up, m->m.checksum, ret_received, &err), HZP_OK);
    return up;
}

/* All of it is here, and equal to the model. */
static void expect_whole(struct hzp_upload *up, const struct model *m)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_units units = fixture_units(&m->layout, HZP_F32);
    struct hzp_upload_fill fill = {.up = up, .reterr = &err};
    assert_int_equal(hzp_upload_hold(up, m->m.checksum, &err), HZP_OK);
    assert_int_equal(hzp_upload_hold(up, m->m.checksum, &err), HZP_EBUSY);
    assert_int_equal(hzp_units_fill(NULL, &units, hzp_upload_fill, &fill), HZP_OK);
    assert_int_equal(fill.checksum, m->m.checksum);
    assert_true(fixture_units_same(NULL, &units, &m->units));
    hzp_upload_release(up, false);
    fixture_units_free(&units);
}

static void write_file(const char *name, const void *data, size_t n)
{
    scratch_write(scratch_path("state/upload/%s", name), data, n);
}

/* A process that ended after any byte of a unit: the next one goes on from there, or from the word
 * before. */
static void test_cut_anywhere(void **state)
{
    struct model m;
    uint64_t received[16];
    make_model("model", 1, -1, &m);
    struct hzp_upload *up = begin(&m, NULL, NULL, received);
    int32_t last = m.layout.units - 1;
    for (int32_t u = 0; u < last; u++) {
        assert_int_equal(received[u], 0);
        send(up, &m, u, 0, 1000, HZP_OK);
    }
    for (size_t cut = 0; cut <= bytes_of(&m, last); cut++) {
        hzp_upload_destroy(up);
        char name[32];
        snprintf(name, sizeof(name), "unit-%d", last);
        write_file(name, data_of(&m, last), cut);
        up = begin(&m, NULL, NULL, received);
        assert_int_equal(received[0], bytes_of(&m, 0));
        assert_int_equal(received[last], cut / 8 * 8);
        send(up, &m, last, received[last], 640, HZP_OK);
    }
    expect_whole(up, &m);
    hzp_upload_release(up, true);
    assert_false(scratch_exists(scratch_path("state/upload")));
    hzp_upload_destroy(up);
    free_model(&m);
}

/* Bytes that change on the way or on the disk are noticed, and only that unit is sent again. */
static void test_damage(void **state)
{
    struct model m;
    uint64_t received[16], got;
    struct hzp_err_text err = {.text = ""};
    make_model("model", 1, -1, &m);
    struct hzp_upload *up = begin(&m, NULL, NULL, received);
    size_t n = bytes_of(&m, 1);
    char *bad = malloc(n);
    memcpy(bad, data_of(&m, 1), n);
    bad[n / 2] ^= 1;
    assert_int_equal(hzp_upload_write(up, m.m.checksum, 1, 0, bad, n, &got, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "checksum"));
    assert_int_equal(hzp_upload_hold(up, m.m.checksum, &err), HZP_EINVAL);
    assert_int_equal(hzp_upload_write(up, m.m.checksum + 1, 1, 0, bad, n, &got, &err), HZP_ENOENT);
    assert_int_equal(hzp_upload_write(up, m.m.checksum, 1, 8, bad, 8, &got, &err), HZP_EINVAL);
    assert_int_equal(hzp_upload_write(up, m.m.checksum, 1, 0, bad, 0, &got, &err), HZP_EINVAL);
    assert_int_equal(hzp_upload_write(up, m.m.checksum, 99, 0, bad, 8, &got, &err), HZP_EINVAL);
    for (int32_t u = 0; u < m.layout.units; u++)
        send(up, &m, u, 0, 4096, HZP_OK);
    expect_whole(up, &m);
    write_file("unit-1", bad, n);
    assert_int_equal(hzp_upload_hold(up, m.m.checksum, &err), HZP_OK);
    struct hzp_upload_fill fill = {.up = up, .reterr = &err};
    struct hzp_units units = fixture_units(&m.layout, HZP_F32);
    assert_int_equal(hzp_units_fill(NULL, &units, hzp_upload_fill, &fill), HZP_EFORMAT);
    hzp_upload_release(up, false);
    hzp_upload_destroy(up);
    up = begin(&m, NULL, NULL, received);
    for (int32_t u = 0; u < m.layout.units; u++)
        assert_int_equal(received[u], u == 1 ? 0 : bytes_of(&m, u));
    send(up, &m, 1, 0, n, HZP_OK);
    expect_whole(up, &m);
    hzp_upload_release(up, true);
    hzp_upload_destroy(up);
    fixture_units_free(&units);
    free(bad);
    free_model(&m);
}

/* Only units that differ are missing, whether the others are in a directory or in the upload that
 * this one replaces. */
static void test_differences(void **state)
{
    struct model a, b;
    uint64_t received[16];
    make_model("model", 1, -1, &a);
    make_model("other", 1, 2, &b);
    struct hzp_upload *up = begin(&b, &a.m, "removed", received);
    for (int32_t u = 0; u < a.layout.units; u++)
        assert_int_equal(received[u], 0);
    hzp_upload_destroy(up);
    up = begin(&b, &a.m, "model", received);
    for (int32_t u = 0; u < a.layout.units; u++)
        assert_int_equal(received[u], u == 2 ? 0 : bytes_of(&a, u));
    send(up, &b, 2, 0, 100 * 8, HZP_OK);
    expect_whole(up, &b);
    hzp_upload_destroy(up);
    up = begin(&a, NULL, NULL, received);
    for (int32_t u = 0; u < a.layout.units; u++)
        assert_int_equal(received[u], u == 2 ? 0 : bytes_of(&a, u));
    send(up, &a, 2, 0, 100 * 8, HZP_OK);
    expect_whole(up, &a);
    hzp_upload_destroy(up);
    free_model(&a);
    free_model(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_manifest, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_ranges, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_cut_anywhere, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_damage, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_differences, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
