/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of --keep, and the audit log. */
#include "api/learn/audit.h"
#include "api/learn/retention.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/weights/scratch.h"

#include <stdlib.h>
#include <string.h>

static void test_parse(void **state)
{
    struct hzp_retention r;
    struct hzp_err_text text;
    assert_int_equal(hzp_retention_parse("last=5,every=100,tagged", &r, &text), HZP_OK);
    assert_int_equal(r.last, 5);
    assert_int_equal(r.every, 100);
    assert_int_equal(r.hourly, 0);
    assert_int_equal(hzp_retention_parse("hourly=24", &r, &text), HZP_OK);
    assert_int_equal(r.last, 1);
    assert_int_equal(r.hourly, 24);
    assert_false(r.best);
    assert_int_equal(r.bytes, 0);
    assert_int_equal(hzp_retention_parse("hourly=24,bytes=1.5G", &r, &text), HZP_OK);
    assert_int_equal(r.bytes, 3ll << 29);
    assert_int_equal(hzp_retention_parse("best,last=2", &r, &text), HZP_OK);
    assert_true(r.best);
    static const char *const bad[] = {
        "",        "last",     "last=",   "last=0",
        "last=-1", "last=5,",  "every=x", "tagged=1",
        "last=5x", ",",        "daily=5", "bytes=",
        "bytes=0", "bytes=-1", "bytes=x", "last=99999999999999999999"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(hzp_retention_parse(bad[i], &r, &text), HZP_EINVAL);
        assert_string_equal(text.param, "--keep");
    }
}

static void test_decide(void **state)
{
    struct hzp_retention policy = {.last = 2, .every = 10};
    struct hzp_kept_one one[] = {{.number = 35}, {.number = 33}, {.number = 28},
                                 {.number = 22}, {.number = 21}, {.number = 20, .tagged = true},
                                 {.number = 19}, {.number = 10}, {.number = 3}};
    static const bool kept[] = {true, true, false, false, true, true, true, false, true};
    hzp_retention_decide(&policy, 1000, one, HZP_COUNT(one));
    for (int i = 0; i < HZP_COUNT(one); i++)
        if (one[i].keep != kept[i])
            fail_msg("%d is %s", (int)one[i].number, kept[i] ? "gone" : "kept");
}

/* Of 40 bytes each: those that hourly and every keep stay only as far as the bytes reach, which
 * newer ones use up first; the newest and those with a name stay whatever they take. */
static void test_bytes(void **state)
{
    struct hzp_retention policy = {.last = 2, .hourly = 24, .bytes = 130};
    for (int64_t bytes = 0; bytes <= 260; bytes += 10) {
        struct hzp_kept_one one[] = {
            {.number = 9, .hour = 1000}, {.number = 8, .hour = 1000},
            {.number = 7, .hour = 999},  {.number = 6, .hour = 999},
            {.number = 5, .hour = 998},  {.number = 4, .hour = 998, .tagged = true},
            {.number = 3, .hour = 997}};
        for (int i = 0; i < HZP_COUNT(one); i++)
            one[i].bytes = 40;
        policy.bytes = bytes;
        hzp_retention_decide(&policy, 1000, one, HZP_COUNT(one));
        assert_true(one[0].keep && one[1].keep && one[5].keep);
        assert_false(one[3].keep);
        assert_int_equal(one[2].keep, !bytes || bytes >= 120);
        assert_int_equal(one[4].keep, !bytes || bytes >= 160);
        assert_int_equal(one[6].keep, !bytes || bytes >= 240);
    }
}

static int lines_of(const char *name)
{
    char line[512];
    int n = 0;
    FILE *file = fopen(scratch_path("%s", name), "r");
    if (!file)
        return -1;
    while (fgets(line, sizeof(line), file)) {
        json_t *json = json_loads(line, 0, NULL);
        assert_non_null(json);
        assert_string_equal(json_string_value(json_object_get(json, "action")), "teach");
        assert_string_equal(json_string_value(json_object_get(json, "key")), "admin");
        assert_int_equal(json_integer_value(json_object_get(json, "first")), 7);
        json_decref(json);
        n++;
    }
    fclose(file);
    return n;
}

/* Lines are appended, also by another process later; old files are bounded. */
static void test_audit(void **state)
{
    struct hzp_audit *audit;
    struct hzp_err_text text;
    for (int run = 1; run <= 2; run++) {
        assert_int_equal(hzp_audit_open(scratch_dir, false, &audit, &text), HZP_OK);
        hzp_audit_write(audit, "admin", "some-id", "teach", json_pack("{s:i}", "first", 7));
        hzp_audit_close(audit);
        assert_int_equal(lines_of("audit.jsonl"), run);
    }
    assert_int_equal(hzp_audit_open(scratch_dir, false, &audit, &text), HZP_OK);
    hzp_audit_bound(audit, 250); /* two lines */
    for (int i = 0; i < 40; i++)
        hzp_audit_write(audit, "admin", "some-id", "teach", json_pack("{s:i}", "first", 7));
    hzp_audit_close(audit);
    int all = 0;
    for (int i = 1; i <= HZP_AUDIT_FILES; i++) {
        char name[32];
        snprintf(name, sizeof(name), "audit.jsonl.%d", i);
        assert_true(lines_of(name) > 0);
        all += lines_of(name);
    }
    assert_true(all >= HZP_AUDIT_FILES);
    assert_int_equal(lines_of("audit.jsonl.9"), -1);
    hzp_audit_write(NULL, "admin", "x", "teach", json_pack("{s:i}", "first", 7));
    assert_int_equal(hzp_audit_open("/nonexistent/x", false, &audit, &text), HZP_EIO);
}

/* Who taught an example is found in old files, too. */
static void test_taught(void **state)
{
    struct hzp_audit *audit;
    struct hzp_audit_taught who;
    struct hzp_err_text text;
    assert_int_equal(hzp_audit_open(scratch_dir, false, &audit, &text), HZP_OK);
    hzp_audit_bound(audit, 250); /* two lines */
    for (int i = 0; i < 5; i++) {
        char key[16];
        snprintf(key, sizeof(key), "key%d", i);
        hzp_audit_write(audit, key, "id", "teach",
                        json_pack("{s:i, s:i}", "first", 10 * i, "last", 10 * i + 8));
    }
    hzp_audit_write(audit, "other", "id", "forget",
                    json_pack("{s:i, s:i}", "first", 0, "last", 99));
    assert_true(hzp_audit_find(audit, 0, &who));
    assert_string_equal(who.key, "key0");
    assert_true(hzp_audit_find(audit, 48, &who));
    assert_string_equal(who.key, "key4");
    assert_false(hzp_audit_find(audit, 49, &who));
    assert_false(hzp_audit_find(NULL, 1, &who));
    hzp_audit_close(audit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_decide),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test_setup_teardown(test_audit, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_taught, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests_name("retention", tests, NULL, NULL);
}
