/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve devices: what this machine can compute on. */
#include "api/commands.h"
#include "api/memory_plan.h"

int hzp_cmd_devices(const struct hzp_options *options)
{
    static const char *const name[] = {"cuda", "cpu", "ref"};
    for (int i = 0; i < HZP_COUNT(name); i++) {
        struct hzp_device *dev = NULL;
        struct hzp_err_text err = {0};
        struct hzp_device_config config = {
            .name = name[i], .threads = (int)options->threads, .level = options->cpu_level};
        if (hzp_device_open(&config, &dev, &err) < 0) {
            printf("%-5s -   %s\n", name[i], err.text);
            continue;
        }
        char size[16];
        printf("%-5s %s, %s\n", name[i], dev->label, hzp_size_text(dev->mem_total, size));
        hzp_device_close(dev);
    }
    return 0;
}
