/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/watch.c - lets opcheck's emulated kernels touch exactly what a case gives them: of
 * each buffer the rows without the gaps between them, and inputs only for reading.
 */
#include "tests/emu/emu.h"
#include "tests/opcheck/opcheck.h"

#include <string.h>

static void watch(const struct oc_target *target, const struct oc_io *io, bool begins)
{
    if (strcmp(hzp_device_backend(target->dev), "cuda") != 0)
        return;
    if (!begins) {
        hzp_emu_unwatch(target->block, io->used);
        return;
    }
    hzp_emu_watch(target->block, io->used);
    for (int b = 0; b < io->bufs; b++) {
        const struct oc_buf *buf = &io->buf[b];
        size_t size = oc_elem_size(buf->elem), stride = (size_t)buf->stride * size;
        const uint8_t *begin = (const uint8_t *)target->block + buf->offset;
        for (int32_t r = 0; r < buf->rows; r++)
            hzp_emu_allow(begin + (size_t)r * stride, (size_t)buf->cols * size, buf->role != OC_IN);
    }
}

__attribute__((constructor)) static void watch_begin(void)
{
    oc_watch = watch;
}
