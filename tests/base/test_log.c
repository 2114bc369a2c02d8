/* SPDX-License-Identifier: Apache-2.0 */
/* Log levels by subsystem, the JSON form, and the trace that HZP_TRY leaves. */
#include "base/log.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Between these two calls standard error goes to a file. */
static FILE *caught;
static int real;

static void catch_begin(void)
{
    fflush(stderr);
    caught = tmpfile();
    assert_non_null(caught);
    real = dup(STDERR_FILENO);
    dup2(fileno(caught), STDERR_FILENO);
}

/* Takes a text out of each line, which must have it. */
static void cut(char *lines, const char *what)
{
    for (char *at = lines; *at; at = strchr(at, '\n') + 1) {
        char *found = strstr(at, what);
        assert_true(found && found < strchr(at, '\n'));
        memmove(found, found + strlen(what), strlen(found + strlen(what)) + 1);
    }
}

/* Returns what was written in between, without this process's id, which each line has; valid until
 * the next call. */
static const char *catch_end(void)
{
    static char text[8192];
    char own[32];
    bool json = hzp_log_get_format() == HZP_LOG_JSON;
    fflush(stderr);
    dup2(real, STDERR_FILENO);
    close(real);
    rewind(caught);
    text[fread(text, 1, sizeof(text) - 1, caught)] = 0;
    fclose(caught);
    snprintf(own, sizeof(own), json ? "\"pid\":%d," : "%d ", (int)getpid());
    cut(text, own);
    return text;
}

static void subsystems_have_levels(void **state)
{
    struct hzp_err_text err = {0};
    assert_int_equal(hzp_log_set("warn,serve=debug,http=error", &err), HZP_OK);
    assert_true(hzp_log_enabled(HZP_LOG_WARN, "train"));
    assert_false(hzp_log_enabled(HZP_LOG_INFO, "train"));
    assert_true(hzp_log_enabled(HZP_LOG_DEBUG, "serve"));
    assert_false(hzp_log_enabled(HZP_LOG_WARN, "http"));
    assert_true(hzp_log_enabled(HZP_LOG_ERROR, "http"));

    catch_begin();
    hzp_log(HZP_LOG_INFO, "train", "hidden");
    hzp_log(HZP_LOG_DEBUG, "serve", "shown count=%d", 7);
    const char *text = catch_end();
    assert_null(strstr(text, "hidden"));
    assert_non_null(strstr(text, "debug serve: shown count=7\n"));

    /* A later part wins, and a level for all subsystems overrides the parts before it. */
    assert_int_equal(hzp_log_set("serve=debug,error", NULL), HZP_OK);
    assert_false(hzp_log_enabled(HZP_LOG_WARN, "serve"));
    hzp_log_set_level(HZP_LOG_INFO);
    assert_true(hzp_log_enabled(HZP_LOG_INFO, "http"));
    assert_false(hzp_log_enabled(HZP_LOG_DEBUG, "serve"));
}

static void wrong_levels_change_nothing(void **state)
{
    static const struct {
        const char *text, *names;
    } bad[] = {{"loud", "\"loud\" is not one of error, warn, info, debug"},
               {"", "\"\" is not one of"},
               {"debug,", "\"\" is not one of"},
               {"debug,serve=loud", "\"loud\""},
               {"serve=", "\"\" is not one of"},
               {"debug,sevre=info", "\"sevre\" is not a subsystem; these are: cuda,"},
               {"=info", "\"\" is not a subsystem"},
               {"info debug", "\"info debug\""}};
    hzp_log_set_level(HZP_LOG_WARN);
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        struct hzp_err_text err = {0};
        assert_int_equal(hzp_log_set(bad[i].text, &err), HZP_EINVAL);
        if (!strstr(err.text, bad[i].names))
            fail_msg("%s: %s", bad[i].text, err.text);
        assert_false(hzp_log_enabled(HZP_LOG_INFO, "serve"));
    }

    /* From the environment: a bad value is reported once, and the level stays. */
    setenv("HZP_LOG", "loud", 1);
    catch_begin();
    hzp_log_init();
    const char *text = catch_end();
    assert_non_null(strstr(text, "HZP_LOG=loud"));
    assert_non_null(strstr(text, ", ignoring\n"));
    assert_false(hzp_log_enabled(HZP_LOG_INFO, "serve"));
    setenv("HZP_LOG", "error,loop=info", 1);
    hzp_log_init();
    assert_true(hzp_log_enabled(HZP_LOG_INFO, "loop"));
    assert_false(hzp_log_enabled(HZP_LOG_WARN, "serve"));
}

static int inner(int code)
{
    return code;
}

static int outer(int code)
{
    HZP_TRY(inner(code));
    return HZP_OK;
}

static int cleaning(int code)
{
    int r;
    HZP_TRY_GOTO(outer(code));
out:
    return r;
}

static void failures_leave_a_trace(void **state)
{
    hzp_log_set_level(HZP_LOG_DEBUG);
    catch_begin();
    assert_int_equal(cleaning(HZP_EIO), HZP_EIO);
    const char *text = catch_end();
    const char *first = strstr(text, "debug trace: tests/base/test_log.c:");
    assert_non_null(first);
    assert_non_null(strstr(first, ": inner: EIO\n"));
    assert_non_null(strstr(strstr(first, ": inner: EIO\n"), ": outer: EIO\n"));

    catch_begin();
    assert_int_equal(cleaning(HZP_OK), HZP_OK);
    assert_string_equal(catch_end(), "");

    assert_int_equal(hzp_log_set("trace=info", NULL), HZP_OK);
    catch_begin();
    assert_int_equal(cleaning(HZP_EIO), HZP_EIO);
    assert_string_equal(catch_end(), "");
}

/* What one line says behind its time, in the JSON form. */
static const char *json_of(const char *text)
{
    static const char start[] = "{\"time\":\"2026-11-22T14:00:00.000Z\",";
    catch_begin();
    hzp_log(HZP_LOG_INFO, "serve", "%s", text);
    const char *line = catch_end();
    assert_memory_equal(line, start, 9);
    assert_true(strlen(line) > sizeof(start) && line[strlen(line) - 1] == '\n');
    return line + sizeof(start) - 1;
}

#define LINE(rest) "\"level\":\"info\",\"subsystem\":\"serve\",\"event\":" rest "}\n"

static void lines_can_be_json(void **state)
{
    char text[2000];
    hzp_log_set_level(HZP_LOG_INFO);
    hzp_log_set_format(HZP_LOG_JSON);
    assert_string_equal(json_of("checkpoint version=7 seconds=0.25 loss=nan path=/a"),
                        LINE("\"checkpoint\",\"version\":7,\"seconds\":0.25,\"loss\":\"nan\","
                             "\"path\":\"/a\""));
    assert_string_equal(json_of("two words key=\"a \\\"b\\\" c\" n=-3 m=007 e=1. x="),
                        LINE("\"two words\",\"key\":\"a \\\"b\\\" c\",\"n\":-3,\"m\":\"007\","
                             "\"e\":\"1.\",\"x\":\"\""));
    /* A sentence is one text, also one that contains something like a field. */
    assert_string_equal(json_of("cannot open a=b, ignoring it"),
                        LINE("\"cannot open a=b, ignoring it\""));
    assert_string_equal(json_of("--max-staleness 1 overrides"),
                        LINE("\"--max-staleness 1 overrides\""));
    assert_string_equal(json_of("a \"b\"\n\tc\\"), LINE("\"a \\\"b\\\"\\u000a\\u0009c\\\\\""));
    assert_string_equal(json_of("M\xc3\xbc\xff\xe2\x82"),
                        LINE("\"M\xc3\xbc\\ufffd\\ufffd\\ufffd\""));
    /* half a surrogate pair is no character */
    assert_string_equal(json_of("\xed\xa0\x80"), LINE("\"\\ufffd\\ufffd\\ufffd\""));
    assert_string_equal(json_of("a=1"), LINE("\"\",\"a\":1"));
    assert_string_equal(json_of(""), LINE("\"\""));
    /* A quote that does not end: still JSON. */
    assert_string_equal(json_of("x a=\"b c"), LINE("\"x\",\"a\":\"\\\"b c\""));
    /* However long: whole fields, and the closing brace. */
    for (int length = 900; length < 1100; length++) {
        memset(text, '\1', (size_t)length);
        memcpy(text, "event a=1 b=", 12);
        text[length] = 0;
        const char *line = json_of(text);
        assert_non_null(strstr(line, "\"a\":1,\"b\":\"\\u0001"));
        assert_string_equal(line + strlen(line) - 8, "u0001\"}\n");
        memset(text, '"', 12);
        line = json_of(text);
        assert_string_equal(line + strlen(line) - 8, "u0001\"}\n");
    }
    hzp_log_set_format(HZP_LOG_TEXT);
    catch_begin();
    hzp_log(HZP_LOG_INFO, "serve", "a\nforged line");
    assert_non_null(strstr(catch_end(), "serve: a forged line\n"));
}

/* Of several processes each line says which it is from. */
static void lines_say_which_process(void **state)
{
    char text[80];
    hzp_log_set_level(HZP_LOG_INFO);
    hzp_log_set_part("r2");
    catch_begin();
    dprintf(STDERR_FILENO, "%d ", (int)getpid()); /* for catch_end to take out */
    hzp_log(HZP_LOG_INFO, "serve", "one=1");
    const char *line = catch_end();
    snprintf(text, sizeof(text), " info  %d/r2 serve: one=1\n", (int)getpid());
    assert_non_null(strstr(line, text));
    hzp_log_set_format(HZP_LOG_JSON);
    assert_string_equal(json_of("one=1"), "\"level\":\"info\",\"subsystem\":\"serve\","
                                          "\"process\":\"r2\",\"event\":\"\",\"one\":1}\n");
    hzp_log_set_format(HZP_LOG_TEXT);
    hzp_log_set_part("");
}

/* A reader that does not read: lines are dropped, not waited for, and counted. */
static void a_full_pipe_blocks_no_thread(void **state)
{
    int ends[2], saved = dup(STDERR_FILENO), lines = 0, lost = 0;
    static char text[1 << 20];
    hzp_log_set_level(HZP_LOG_INFO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    for (int i = 0; i < 5000; i++) /* more than a pipe holds */
        hzp_log(HZP_LOG_INFO, "serve",
                "line number=%d of many that are longer than they need to be", i);
    size_t n = (size_t)read(ends[0], text, sizeof(text) - 1);
    hzp_log(HZP_LOG_INFO, "serve", "after=1");
    n += (size_t)read(ends[0], text + n, sizeof(text) - 1 - n);
    hzp_log(HZP_LOG_INFO, "serve", "after=2");
    n += (size_t)read(ends[0], text + n, sizeof(text) - 1 - n);
    dup2(saved, STDERR_FILENO);
    text[n] = 0;
    for (const char *at = text; (at = strstr(at, "line number=")); at++)
        lines++;
    const char *said = strstr(text, " log: lines lost count=");
    assert_non_null(said);
    assert_int_equal(sscanf(said, " log: lines lost count=%d", &lost), 1);
    assert_int_equal(lines + lost, 5000);
    assert_true(lost > 0 && lines > 0);
    assert_non_null(strstr(said, "after=1\n"));
    assert_non_null(strstr(said, "after=2\n"));
    assert_null(strstr(strstr(said, "after=1"), "lost"));
    /* A pipe without a reader, and no standard error at all: no effect. */
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    hzp_log(HZP_LOG_INFO, "serve", "no reader");
    close(STDERR_FILENO);
    hzp_log(HZP_LOG_INFO, "serve", "nowhere");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as the program does */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_say_which_process),      cmocka_unit_test(subsystems_have_levels),
        cmocka_unit_test(wrong_levels_change_nothing),  cmocka_unit_test(lines_can_be_json),
        cmocka_unit_test(a_full_pipe_blocks_no_thread), cmocka_unit_test(failures_leave_a_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
