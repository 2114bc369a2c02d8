/* SPDX-License-Identifier: Apache-2.0 */
/* The curve of losses: what is read of a log, and what is drawn. */
#include "api/learn/loss_plot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/weights/scratch.h"

static void write_log(const char *text)
{
    FILE *file = fopen(scratch_path("train.jsonl"), "w");
    fputs(text, file);
    fclose(file);
}

static struct hzp_loss_curve read_log(void)
{
    struct hzp_loss_curve curve;
    struct hzp_err_text err;
    assert_int_equal(hzp_loss_curve_read(scratch_path("train.jsonl"), &curve, &err), HZP_OK);
    return curve;
}

static void test_reading(void **state)
{
    struct hzp_loss_curve curve;
    struct hzp_err_text err;
    write_log("{\"step\": 1, \"loss\": 4.5, \"lr\": 1}\nno JSON\n{\"step\": 2, \"loss\": null}\n"
              "{\"step\": 2, \"eval_loss\": 3.5}\n{\"loss\": 1}\n{\"step\": 3, \"loss\": 4}\n");
    curve = read_log();
    assert_int_equal(curve.trains, 2);
    assert_int_equal(curve.evals, 1);
    assert_true(curve.train[1].step == 3 && curve.train[1].loss == 4);
    assert_true(curve.eval[0].step == 2 && curve.eval[0].loss == 3.5);
    hzp_loss_curve_free(&curve);
    assert_int_equal(hzp_loss_curve_read(scratch_path("none"), &curve, &err), HZP_EIO);
    assert_non_null(strstr(err.text, "none"));
}

static void plot(char *ret, size_t size, int columns, int rows)
{
    struct hzp_loss_curve curve = read_log();
    FILE *out = fmemopen(ret, size, "w");
    hzp_loss_plot_text(&curve, columns, rows, out);
    fclose(out);
    hzp_loss_curve_free(&curve);
}

static void test_characters(void **state)
{
    char text[2000] = "";
    write_log("{\"step\": 1, \"loss\": 4}\n{\"step\": 2, \"loss\": 3}\n{\"step\": 3, \"loss\": 2}\n"
              "{\"step\": 5, \"eval_loss\": 1}\n");
    plot(text, sizeof(text), 9, 4);
    assert_string_equal(text, "        4 |*\n"
                              "        3 |  *\n"
                              "        2 |    *\n"
                              "        1 |        o\n"
                              "          +---------\n"
                              "           1       5\n"
                              "           loss (*, evaluations o) by update\n");
    write_log("{\"step\": 7, \"loss\": 2}\n"); /* one point */
    memset(text, 0, sizeof(text));
    plot(text, sizeof(text), 9, 4);
    assert_non_null(strchr(text, '*'));
    write_log("");
    memset(text, 0, sizeof(text));
    plot(text, sizeof(text), 9, 4);
    assert_string_equal(text, "");
}

static void test_picture(void **state)
{
    char text[200000] = "", line[64];
    struct hzp_err_text err;
    FILE *file = fopen(scratch_path("train.jsonl"), "w");
    for (int i = 1; i <= 5000; i++) {
        snprintf(line, sizeof(line), "{\"step\": %d, \"loss\": %g}\n", i, 1 + 100.0 / i);
        fputs(line, file);
    }
    fclose(file);
    struct hzp_loss_curve curve = read_log();
    assert_int_equal(curve.trains, 5000);
    assert_int_equal(hzp_loss_plot_svg(&curve, "a <model> & more", scratch_path("loss.svg"), &err),
                     HZP_OK);
    file = fopen(scratch_path("loss.svg"), "r");
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    assert_true(n > 1000 && n < 100000); /* many updates do not make it large */
    assert_non_null(strstr(text, "a &#60;model&#62; &#38; more"));
    assert_non_null(strstr(text, "</svg>\n"));
    assert_null(strstr(text, "nan"));
    assert_int_equal(hzp_loss_plot_svg(&curve, "", scratch_path("none/loss.svg"), &err), HZP_EIO);
    hzp_loss_curve_free(&curve);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reading, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_characters, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_picture, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
