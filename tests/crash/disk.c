/* SPDX-License-Identifier: Apache-2.0 */
/* With it the headers give open, pread and the like the names of their 64-bit forms. */
#undef _FILE_OFFSET_BITS
#include "tests/crash/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPS_MAX = 200000, FDS_MAX = 1024 };
static const size_t data_max = (size_t)1 << 30; /* reserved, not used */

struct tape {
    char root[DISK_PATH];
    bool records;
    struct disk_fault fault;
    int64_t count[DISK_CALLS], met;
    int32_t ops;
    size_t used;
    struct disk_op op[OPS_MAX];
};

static struct tape *tape; /* NULL: nothing is watched */
static char *tape_data;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool watched, cut; /* cut: the next write fails */
    int32_t handle;
    char path[DISK_PATH];
} fds[FDS_MAX];

/* --- Setting up ------------------------------------------------------------------------------- */

void disk_watch(const char *dir)
{
    if (!tape) {
        tape = mmap(NULL, sizeof(*tape), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        tape_data = mmap(NULL, data_max, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        HZP_ASSERT(tape != MAP_FAILED && tape_data != MAP_FAILED);
    }
    HZP_ASSERT(strlen(dir) < sizeof(tape->root));
    snprintf(tape->root, sizeof(tape->root), "%s", dir);
    disk_fail(&(struct disk_fault){.calls = 0});
}

void disk_fail(const struct disk_fault *fault)
{
    tape->fault = *fault;
    tape->met = 0;
    memset(tape->count, 0, sizeof(tape->count));
}

int64_t disk_count(uint32_t calls)
{
    int64_t n = 0;
    for (int i = 0; i < DISK_CALLS; i++)
        n += calls >> i & 1 ? tape->count[i] : 0;
    return n;
}

void disk_record(void)
{
    tape->records = true;
    tape->ops = 0;
    tape->used = 0;
}

void disk_rewind(int32_t ops)
{
    tape->used = ops < tape->ops ? tape->op[ops].data : tape->used;
    tape->ops = ops;
}

int32_t disk_ops(void)
{
    return tape->ops;
}

const struct disk_op *disk_op(int32_t i)
{
    return &tape->op[i];
}

const void *disk_data(const struct disk_op *op)
{
    return tape_data + op->data;
}

/* --- The tape --------------------------------------------------------------------------------- */

/* The part of the path below the watched directory; NULL: it is not below it. */
static const char *below(const char *path)
{
    size_t n = tape ? strlen(tape->root) : 0;
    if (!n || strncmp(path, tape->root, n) || (path[n] && path[n] != '/'))
        return NULL;
    return path[n] ? path + n + 1 : "";
}

/* The caller holds the lock. */
static struct disk_op *put(enum disk_call call, int fd, const char *path)
{
    static struct disk_op none;
    if (!tape->records)
        return &none;
    HZP_ASSERT(tape->ops < OPS_MAX);
    struct disk_op *op = &tape->op[tape->ops++];
    *op =
        (struct disk_op){.call = call, .data = tape->used, .handle = fd >= 0 ? fds[fd].handle : -1};
    snprintf(op->path, sizeof(op->path), "%s", path ? path : "");
    return op;
}

static void put_data(struct disk_op *op, const void *data, size_t size)
{
    if (!tape->records)
        return;
    HZP_ASSERT(tape->used + size <= data_max);
    if (size)
        memcpy(tape_data + tape->used, data, size);
    op->data = tape->used;
    op->size = size;
    tape->used += size;
}

void disk_note(const void *data, size_t size)
{
    pthread_mutex_lock(&lock);
    put_data(put(DISK_NOTE, -1, NULL), data, size);
    pthread_mutex_unlock(&lock);
}

/* Whether this call is to fail; the caller holds the lock. */
static bool fails(enum disk_call call)
{
    const struct disk_fault *f = &tape->fault;
    tape->count[call]++;
    if (!(f->calls >> call & 1))
        return false;
    int64_t n = tape->met++;
    if (n == f->nth || (f->forever && n > f->nth)) {
        errno = f->error;
        return true;
    }
    return false;
}

static bool watched(int fd)
{
    return tape && fd >= 0 && fd < FDS_MAX && fds[fd].watched;
}

/* --- In place of the C library's -------------------------------------------------------------- */

static int open_file(const char *path, int flags, mode_t mode)
{
    const char *name = below(path);
    if (!name)
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat st;
    bool is_new = stat(path, &st) < 0;
    bool changes = (flags & (O_CREAT | O_TRUNC)) != 0;
    int fd =
        changes && fails(DISK_OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    HZP_ASSERT(fd < FDS_MAX);
    if (fd >= 0) {
        fds[fd].watched = true;
        fds[fd].cut = false;
        snprintf(fds[fd].path, sizeof(fds[fd].path), "%s", name);
        struct disk_op *op = put(DISK_OPEN, -1, name);
        op->created = is_new;
        op->truncated = !is_new && (flags & O_TRUNC);
        fds[fd].handle = op->handle = tape->ops - 1;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

/* As declared by the C library, whose headers may declare them with other attributes. */
int open(const char *path, int flags, ...);
int open64(const char *path, int flags, ...);

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_file(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_file(path, flags, mode);
}

int close(int fd)
{
    if (watched(fd))
        fds[fd].watched = false;
    return (int)syscall(SYS_close, fd);
}

static ssize_t write_real(int fd, const void *data, size_t size, off_t at, bool placed)
{
    return placed ? syscall(SYS_pwrite64, fd, data, size, at) : syscall(SYS_write, fd, data, size);
}

static ssize_t write_at(int fd, const void *data, size_t size, off_t at, bool placed)
{
    if (!watched(fd))
        return write_real(fd, data, size, at, placed);
    pthread_mutex_lock(&lock);
    struct stat st;
    bool appends = (fcntl(fd, F_GETFL) & O_APPEND) != 0;
    if (!placed && fstat(fd, &st) == 0)
        at = appends ? st.st_size : lseek(fd, 0, SEEK_CUR);
    bool bad = fails(DISK_WRITE), was_cut = fds[fd].cut;
    if (was_cut)
        errno = tape->fault.error;
    fds[fd].cut = bad && tape->fault.cut;
    size_t most = fds[fd].cut ? size / 2 : bad || was_cut ? 0 : size;
    ssize_t n = most || !(bad || was_cut) ? write_real(fd, data, most, at, placed) : -1;
    if (n > 0) {
        struct disk_op *op = put(DISK_WRITE, fd, NULL);
        op->at = at;
        put_data(op, data, (size_t)n);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

ssize_t write(int fd, const void *data, size_t size)
{
    return write_at(fd, data, size, 0, false);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return write_at(fd, data, size, at, true);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at);
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    return write_at(fd, data, size, (off_t)at, true);
}

static ssize_t read_at(int fd, void *ret, size_t size, off_t at, bool placed)
{
    if (watched(fd)) {
        pthread_mutex_lock(&lock);
        bool bad = fails(DISK_READ);
        pthread_mutex_unlock(&lock);
        if (bad)
            return -1;
    }
    return placed ? syscall(SYS_pread64, fd, ret, size, at) : syscall(SYS_read, fd, ret, size);
}

ssize_t read(int fd, void *ret, size_t size)
{
    return read_at(fd, ret, size, 0, false);
}

ssize_t pread(int fd, void *ret, size_t size, off_t at)
{
    return read_at(fd, ret, size, at, true);
}

ssize_t pread64(int fd, void *ret, size_t size, off64_t at);
ssize_t pread64(int fd, void *ret, size_t size, off64_t at)
{
    return read_at(fd, ret, size, (off_t)at, true);
}

static int sync_file(int fd)
{
    if (!watched(fd))
        return (int)syscall(SYS_fdatasync, fd);
    pthread_mutex_lock(&lock);
    bool bad = fails(DISK_SYNC);
    put(DISK_SYNC, fd, NULL)->failed = bad;
    pthread_mutex_unlock(&lock);
    return bad ? -1 : 0;
}

int fsync(int fd)
{
    return sync_file(fd);
}

int fdatasync(int fd)
{
    return sync_file(fd);
}

static int truncate_file(int fd, off_t size)
{
    if (!watched(fd))
        return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int r = fails(DISK_TRUNCATE) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
    if (r == 0)
        put(DISK_TRUNCATE, fd, NULL)->at = size;
    pthread_mutex_unlock(&lock);
    return r;
}

int ftruncate(int fd, off_t size)
{
    return truncate_file(fd, size);
}

int ftruncate64(int fd, off64_t size);
int ftruncate64(int fd, off64_t size)
{
    return truncate_file(fd, (off_t)size);
}

int rename(const char *from, const char *to)
{
    const char *a = below(from), *b = below(to);
    if (!a || !b)
        return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    pthread_mutex_lock(&lock);
    int r = fails(DISK_RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (r == 0) {
        struct disk_op *op = put(DISK_RENAME, -1, a);
        snprintf(op->to, sizeof(op->to), "%s", b);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

int link(const char *from, const char *to)
{
    const char *a = below(from), *b = below(to);
    if (!a || !b)
        return (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    pthread_mutex_lock(&lock);
    int r = fails(DISK_LINK) ? -1 : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (r == 0) {
        struct disk_op *op = put(DISK_LINK, -1, a);
        snprintf(op->to, sizeof(op->to), "%s", b);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static int unlink_at(int dir, const char *path, const char *whole, int flags)
{
    const char *name = below(whole);
    if (!name)
        return (int)syscall(SYS_unlinkat, dir, path, flags);
    pthread_mutex_lock(&lock);
    int r = fails(DISK_UNLINK) ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
    if (r == 0)
        put(DISK_UNLINK, -1, name);
    pthread_mutex_unlock(&lock);
    return r;
}

int unlink(const char *path)
{
    return unlink_at(AT_FDCWD, path, path, 0);
}

int rmdir(const char *path)
{
    return unlink_at(AT_FDCWD, path, path, AT_REMOVEDIR);
}

int unlinkat(int dir, const char *path, int flags)
{
    char link_path[40], whole[600] = "";
    snprintf(link_path, sizeof(link_path), "/proc/self/fd/%d", dir);
    ssize_t n = dir >= 0 && path[0] != '/' ? readlink(link_path, whole, 300) : 0;
    n = HZP_MAX(n, 0);
    snprintf(whole + n, sizeof(whole) - (size_t)n, "%s%s", n ? "/" : "", path);
    return unlink_at(dir, path, whole, flags);
}

int mkdir(const char *path, mode_t mode)
{
    const char *name = below(path);
    if (!name)
        return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    pthread_mutex_lock(&lock);
    int r = fails(DISK_MKDIR) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (r == 0)
        put(DISK_MKDIR, -1, name);
    pthread_mutex_unlock(&lock);
    return r;
}
