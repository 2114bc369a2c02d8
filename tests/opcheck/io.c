/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/io.c - builds a case: buffers with guards, and contents chosen to provoke
   errors. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "device/fp8.h"
#include "device/philox.h"
#include "tests/opcheck/opcheck.h"

#include <stdlib.h>

enum { GUARD = 256, ALIGN = 64 };
static const size_t ROOM = (size_t)8 << 30; /* only reserved, so that the image never moves */

struct oc_io *oc_io_create(void)
{
    struct oc_io *io = hzp_xcalloc(1, sizeof(*io));
    io->image = mmap(NULL, ROOM, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HZP_ASSERT(io->image != MAP_FAILED);
    return io;
}

void oc_io_destroy(struct oc_io *io)
{
    munmap(io->image, ROOM);
    free(io);
}

void oc_io_reset(struct oc_io *io, uint64_t seed, bool gaps)
{
    io->rng = seed;
    io->gaps = gaps;
    io->used = io->args_size = 0;
    io->bufs = 0;
    io->what[0] = 0;
}

size_t oc_elem_size(enum oc_elem elem)
{
    static const size_t sizes[] = {4, 2, 2, 4, 8, 8, 1, 1, 1};
    return sizes[elem];
}

const char *oc_type_name(enum hzp_dtype type)
{
    static const char *const names[] = {"f32", "bf16", "i16", "i32", "e4m3", "q8"};
    return names[type];
}

/* shift: bytes past the alignment at which the buffer starts. */
static struct oc_buf *buf_add(struct oc_io *io, struct oc_buf buf, size_t shift)
{
    size_t size = (size_t)HZP_MAX(buf.rows, 0) * (size_t)buf.stride * oc_elem_size(buf.elem);
    HZP_ASSERT(io->bufs < OC_BUFS_MAX && io->used + size + 4 * GUARD <= ROOM);
    buf.offset = HZP_ROUND_UP(io->used + GUARD, (size_t)ALIGN) + shift;
    buf.low_half = -1;
    size_t end = HZP_ROUND_UP(buf.offset + size + GUARD, (size_t)ALIGN);
    memset(io->image + io->used, 0xff, end - io->used);
    io->used = end;
    io->buf[io->bufs] = buf;
    return &io->buf[io->bufs++];
}

struct hzp_mat oc_mat(struct oc_io *io, const char *name, int32_t rows, int32_t cols,
                      enum hzp_dtype type, enum oc_role role)
{
    static const enum oc_elem elems[] = {OC_F32, OC_BF16, OC_I16, OC_I32, OC_E4M3, OC_Q8};
    int32_t stride = io->gaps ? cols + 5 : cols;
    size_t shift = io->gaps ? hzp_dtype_size(type) : 0;
    struct oc_buf *buf =
        buf_add(io, (struct oc_buf){name, elems[type], role, rows, cols, stride, 0, -1}, shift);
    return (struct hzp_mat){io->image + buf->offset, rows, cols, stride, type};
}

void *oc_array(struct oc_io *io, const char *name, enum oc_elem elem, int32_t count,
               enum oc_role role)
{
    struct oc_buf *buf = buf_add(io, (struct oc_buf){name, elem, role, 1, count, count, 0, -1}, 0);
    return io->image + buf->offset;
}

void *oc_bytes(struct oc_io *io, const char *name, size_t size, enum oc_role role)
{
    HZP_ASSERT(size <= INT32_MAX);
    return oc_array(io, name, OC_BYTES, (int32_t)size, role);
}

void oc_what(struct oc_io *io, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(io->what, sizeof(io->what), format, list);
    va_end(list);
    if (io->gaps && strlen(io->what) + 6 < sizeof(io->what))
        strcat(io->what, ", gaps");
}

void oc_args(struct oc_io *io, const void *args, size_t size)
{
    HZP_ASSERT(size <= sizeof(io->args));
    memset(io->args, 0, sizeof(io->args));
    memcpy(io->args, args, size);
    io->args_size = size;
}

uint64_t oc_random(uint64_t *rng)
{
    *rng += 0x9e3779b97f4a7c15u;
    return hzp_mix64(*rng);
}

int32_t oc_below(struct oc_io *io, int32_t n)
{
    return (int32_t)(oc_random(&io->rng) % (uint64_t)n);
}

double oc_uniform(struct oc_io *io)
{
    return (double)(oc_random(&io->rng) >> 11) * 0x1p-53;
}

/* Irwin-Hall: close enough to normal, and cheap. */
double oc_normal(struct oc_io *io)
{
    uint64_t a = oc_random(&io->rng), b = oc_random(&io->rng);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)((a >> (16 * i)) & 0xffff) + (double)((b >> (16 * i)) & 0xffff);
    return (sum / 65536 - 4) * sqrt(12.0 / 8);
}

void oc_put(const struct hzp_mat *m, int32_t r, int32_t c, float value)
{
    size_t i = (size_t)r * (size_t)m->stride + (size_t)c;
    if (m->type == HZP_E4M3)
        ((uint8_t *)m->ptr)[i] = hzp_e4m3_from_f32(value);
    else if (m->type == HZP_BF16)
        ((uint16_t *)m->ptr)[i] = hzp_bf16_from_f32(value);
    else
        ((float *)m->ptr)[i] = value;
}

float oc_get(const struct hzp_mat *m, int32_t r, int32_t c)
{
    size_t i = (size_t)r * (size_t)m->stride + (size_t)c;
    if (m->type == HZP_E4M3)
        return hzp_e4m3_to_f32(((uint8_t *)m->ptr)[i]);
    return m->type == HZP_BF16 ? hzp_bf16_to_f32(((uint16_t *)m->ptr)[i]) : ((float *)m->ptr)[i];
}

void oc_fill(struct oc_io *io, const struct hzp_mat *mat, double scale, double outlier)
{
    for (int32_t r = 0; r < mat->rows; r++)
        for (int32_t c = 0; c < mat->cols; c++) {
            double x = oc_normal(io) * scale;
            int kind = oc_below(io, 100);
            if (kind < 1)
                x *= outlier;
            else if (kind < 4)
                x = 0;
            else if (kind < 5)
                x *= 1e-39;
            oc_put(mat, r, c, (float)x);
        }
}

void oc_fill_index(struct oc_io *io, int32_t *index, int32_t count, int32_t below)
{
    for (int32_t i = 0; i < count; i++)
        index[i] = i == 0 ? below - 1 : i == 1 ? 0 : oc_below(io, below);
}
