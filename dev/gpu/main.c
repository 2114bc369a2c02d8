/* SPDX-License-Identifier: Apache-2.0 */
/* hopper SECTION RECORDS: runs one section in its own process, so that a failure affects only
   that section. */
#include "lab.h"

#include <stdio.h>
#include <string.h>

static const struct section {
    const char *name;
    int (*run)(void);
} sections[] = {
    {"check", lab_section_check},           {"ceilings", lab_section_ceilings},
    {"attention", lab_section_attention},   {"nano", lab_section_nano},
    {"share", lab_section_share},           {"launch", lab_section_launch},
    {"quantum", lab_section_quantum},       {"swap", lab_section_swap},
    {"remainders", lab_section_remainders},
};

int main(int argc, char **argv)
{
    if (argc == 3) {
        for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
            if (strcmp(argv[1], sections[i].name) != 0)
                continue;
            lab_open(argv[2]);
            double from = lab_now();
            int rc = sections[i].run();
            lab_record("section", "\"name\":\"%s\",\"seconds\":%.1f,\"rc\":%d", argv[1],
                       lab_now() - from, rc);
            lab_close();
            return rc;
        }
    }
    fprintf(stderr, "usage: hopper SECTION RECORDS; sections:");
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        fprintf(stderr, " %s", sections[i].name);
    fputc('\n', stderr);
    return 2;
}
