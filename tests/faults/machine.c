/* A machine whose disk and clock fail when a test says so: loaded into a process with LD_PRELOAD.
 *
 * It stands between a program and the C library, so it meets every write, whoever makes it: Python, Arrow, anything. It
 * reads its orders from a page of memory that it shares with the test (tests/faults/machine.py has the same list), and
 * touches only files under one directory.
 *
 * It also writes a trace of everything that changes those files, in the order in which it took effect. From the trace,
 * tests/faults/power_cut.py works out what a power failure may leave. Nothing is traced before it has happened, and
 * the program learns of nothing before it is traced: a program that was killed has seen nothing that is not in it.
 *
 * The environment says where: FAULTS_CONTROL (the shared page), FAULTS_TRACE, FAULTS_UNDER (the directory), and
 * FAULTS_BOOT (a file that stands for the machine's boot id).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum order {
    CLOCK_STEP,  /* microseconds by which the wall clock is wrong */
    WRITE_ERROR, /* errno of every write */
    WRITE_SHORT, /* not 0: a write takes only a part of what it is given */
    WRITE_SLOW,  /* microseconds that a write takes */
    SYNC_ERROR,  /* errno of every sync */
    SYNC_SLOW,   /* microseconds that a sync takes */
    FULL,        /* not 0: the disk has ROOM bytes left, and no more */
    ROOM,
    WRITES = 16, /* from here on, counts for the test to read */
    SYNCS,
    FAILED_WRITES,
    SHORT_WRITES,
    FAILED_SYNCS,
    ORDERS = 32
};

#define DESCRIPTORS 65536
#define PIECES 1023 /* one fewer than a system call takes: the trace has a head before them */
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* What every record of the trace begins with; `length` bytes follow. */
struct record {
    uint32_t length;
    uint32_t kind;
    uint64_t inode;
    uint64_t offset;
};

static volatile int64_t *orders;
static int trace = -1;
static char under[4096];
static size_t under_length;
static unsigned char watched[DESCRIPTORS];
static uint64_t chance = 88172645463325252u;
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

static int64_t order(enum order which) { return orders ? orders[which] : 0; }

static void count(enum order which) { __atomic_add_fetch(&orders[which], 1, __ATOMIC_RELAXED); }

static void attach(void) {
    const char *control = getenv("FAULTS_CONTROL"), *journal = getenv("FAULTS_TRACE"), *dir = getenv("FAULTS_UNDER");
    if (orders || !control || !journal || !dir || strlen(dir) >= sizeof under)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *page = mmap(NULL, ORDERS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (page == MAP_FAILED)
        return;
    /* Far from the numbers that the program is given, so that it meets the same ones as ever. */
    fd = (int)syscall(SYS_openat, AT_FDCWD, journal, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    trace = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 1000);
    if (fd >= 0)
        syscall(SYS_close, fd);
    strcpy(under, dir);
    under_length = strlen(under);
    orders = page;
}

__attribute__((constructor)) static void begin(void) { attach(); }

static int is_watched(int fd) { return orders && fd >= 0 && fd < DESCRIPTORS && watched[fd]; }

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

/* Call it with `changing` held. */
static void note(char kind, uint64_t inode, uint64_t offset, const struct iovec *pieces, int count_, size_t length) {
    struct record head = {(uint32_t)length, (uint32_t)kind, inode, offset};
    struct iovec all[PIECES + 1] = {{&head, sizeof head}};
    int used = 1;
    for (int i = 0; i < count_ && i < PIECES && length; i++) {
        size_t some = pieces[i].iov_len < length ? pieces[i].iov_len : length;
        all[used].iov_base = pieces[i].iov_base;
        all[used++].iov_len = some;
        length -= some;
    }
    if (trace >= 0)
        syscall(SYS_writev, trace, all, used);
}

static void note_text(char kind, uint64_t inode, uint64_t offset, const char *text, size_t length) {
    struct iovec piece = {(void *)text, length};
    note(kind, inode, offset, &piece, 1, length);
}

static int absolute(const char *path, char *whole, size_t room) {
    if (path[0] == '/')
        return strlen(path) < room ? (strcpy(whole, path), 1) : 0;
    if (!getcwd(whole, room) || strlen(whole) + strlen(path) + 2 > room)
        return 0;
    strcat(whole, "/");
    strcat(whole, path);
    return 1;
}

static int is_under(const char *path) {
    return !strncmp(path, under, under_length) && (path[under_length] == '/' || !path[under_length]);
}

static void pass_time(enum order which) {
    /* In small steps: the test may lift it at any moment. */
    for (int64_t passed = 0; passed < order(which); passed += 1000) {
        struct timespec step = {0, 1000000};
        nanosleep(&step, NULL);
    }
}

/* Opening and closing */

static int opened(int dir, const char *path, int flags, mode_t mode) {
    attach();
    if (!strcmp(path, BOOT_ID) && getenv("FAULTS_BOOT"))
        path = getenv("FAULTS_BOOT");
    char whole[8192];
    int inside = orders && (dir == AT_FDCWD || path[0] == '/') && absolute(path, whole, sizeof whole) && is_under(whole);
    if (!inside) {
        int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
        if (fd >= 0 && fd < DESCRIPTORS)
            watched[fd] = 0;
        return fd;
    }
    pthread_mutex_lock(&changing);
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode), failed = errno;
    if (fd >= 0 && fd < DESCRIPTORS) {
        watched[fd] = 1;
        if (flags & O_CREAT)
            note_text('C', inode_of(fd), 0, whole, strlen(whole));
        if (flags & O_TRUNC)
            note('T', inode_of(fd), 0, NULL, 0, 0);
    }
    pthread_mutex_unlock(&changing);
    errno = failed;
    return fd;
}

#define MODE(after)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, after);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags, mode); }

int close(int fd) {
    if (fd >= 0 && fd < DESCRIPTORS)
        watched[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

/* Writing */

static size_t part_of(size_t length) {
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    return 1 + chance % length;
}

static ssize_t written(int fd, const struct iovec *pieces, int count_, off_t offset) {
    size_t length = 0;
    for (int i = 0; i < count_; i++)
        length += pieces[i].iov_len;
    count(WRITES);
    pass_time(WRITE_SLOW);
    if (order(WRITE_ERROR)) {
        count(FAILED_WRITES);
        errno = (int)order(WRITE_ERROR);
        return -1;
    }
    pthread_mutex_lock(&changing);
    struct stat found;
    fstat(fd, &found);
    off_t at = offset;
    if (offset < 0)
        at = fcntl(fd, F_GETFL) & O_APPEND ? found.st_size : lseek(fd, 0, SEEK_CUR);
    size_t most = length;
    if (order(WRITE_SHORT) && length > 1 && (most = part_of(length)) < length)
        count(SHORT_WRITES);
    if (order(FULL) && at + (off_t)length > found.st_size) {
        size_t inside = at < found.st_size ? (size_t)(found.st_size - at) : 0;
        size_t room = inside + (order(ROOM) > 0 ? (size_t)order(ROOM) : 0);
        most = most < room ? most : room;
        orders[ROOM] -= most > inside ? (int64_t)(most - inside) : 0;
        if (!most) {
            pthread_mutex_unlock(&changing);
            count(FAILED_WRITES);
            errno = ENOSPC;
            return -1;
        }
    }
    struct iovec some[PIECES];
    int used = 0;
    size_t left = most;
    for (int i = 0; i < count_ && used < PIECES && left; i++) {
        some[used].iov_base = pieces[i].iov_base;
        some[used].iov_len = pieces[i].iov_len < left ? pieces[i].iov_len : left;
        left -= some[used++].iov_len;
    }
    ssize_t done = offset < 0 ? syscall(SYS_writev, fd, some, used)
                              : syscall(SYS_pwritev, fd, some, used, (long)offset, (long)0);
    int failed = errno;
    if (done > 0)
        note('W', found.st_ino, (uint64_t)at, some, used, (size_t)done);
    pthread_mutex_unlock(&changing);
    errno = failed;
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    if (!is_watched(fd))
        return syscall(SYS_write, fd, data, length);
    struct iovec piece = {(void *)data, length};
    return written(fd, &piece, 1, -1);
}

ssize_t writev(int fd, const struct iovec *pieces, int count_) {
    return is_watched(fd) ? written(fd, pieces, count_, -1) : syscall(SYS_writev, fd, pieces, count_);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    if (!is_watched(fd))
        return syscall(SYS_pwrite64, fd, data, length, offset);
    struct iovec piece = {(void *)data, length};
    return written(fd, &piece, 1, offset);
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count_, off_t offset, int flags) {
    if (!is_watched(fd))
        return syscall(SYS_pwritev2, fd, pieces, count_, (long)offset, (long)0, flags);
    return written(fd, pieces, count_, offset);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count_, off_t offset) {
    return pwritev2(fd, pieces, count_, offset, 0);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return pwrite(fd, data, length, offset); }
ssize_t pwritev64(int fd, const struct iovec *pieces, int count_, off64_t offset) {
    return pwritev2(fd, pieces, count_, offset, 0);
}
ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count_, off64_t offset, int flags) {
    return pwritev2(fd, pieces, count_, offset, flags);
}

int ftruncate(int fd, off_t size) {
    if (!is_watched(fd))
        return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&changing);
    int done = (int)syscall(SYS_ftruncate, fd, size), failed = errno;
    if (!done)
        note('T', inode_of(fd), (uint64_t)size, NULL, 0, 0);
    pthread_mutex_unlock(&changing);
    errno = failed;
    return done;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t length) {
    if (is_watched(fd) && order(FULL) && order(ROOM) < length)
        return ENOSPC;
    return syscall(SYS_fallocate, fd, 0, offset, length) ? errno : 0;
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

/* Syncing */

static int synced(int fd, int data_only) {
    if (!is_watched(fd))
        return (int)syscall(data_only ? SYS_fdatasync : SYS_fsync, fd);
    uint64_t inode = inode_of(fd);
    pthread_mutex_lock(&changing);
    uint64_t number = (uint64_t)__atomic_add_fetch(&orders[SYNCS], 1, __ATOMIC_RELAXED);
    note('B', inode, number, NULL, 0, 0);
    pthread_mutex_unlock(&changing);
    pass_time(SYNC_SLOW);
    int64_t error = order(SYNC_ERROR);
    pthread_mutex_lock(&changing);
    note(error ? 'F' : 'E', inode, number, NULL, 0, 0);
    pthread_mutex_unlock(&changing);
    if (error) {
        count(FAILED_SYNCS);
        errno = (int)error;
        return -1;
    }
    return 0;
}

int fsync(int fd) { return synced(fd, 0); }
int fdatasync(int fd) { return synced(fd, 1); }

/* Names */

static int renamed(int from_dir, const char *from, int to_dir, const char *to) {
    char pair[16384], *second;
    int known = orders && from_dir == AT_FDCWD && to_dir == AT_FDCWD && absolute(from, pair, 8192) && is_under(pair);
    if (!known)
        return (int)syscall(SYS_renameat, from_dir, from, to_dir, to);
    second = pair + strlen(pair) + 1;
    if (!absolute(to, second, 8000))
        return (int)syscall(SYS_renameat, from_dir, from, to_dir, to);
    pthread_mutex_lock(&changing);
    int done = (int)syscall(SYS_renameat, from_dir, from, to_dir, to), failed = errno;
    if (!done)
        note_text('R', 0, 0, pair, (size_t)(second - pair) + strlen(second));
    pthread_mutex_unlock(&changing);
    errno = failed;
    return done;
}

int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) { return renamed(from_dir, from, to_dir, to); }

int unlinkat(int dir, const char *path, int flags) {
    char whole[8192];
    if (!orders || dir != AT_FDCWD || flags || !absolute(path, whole, sizeof whole) || !is_under(whole))
        return (int)syscall(SYS_unlinkat, dir, path, flags);
    pthread_mutex_lock(&changing);
    int done = (int)syscall(SYS_unlinkat, dir, path, flags), failed = errno;
    if (!done)
        note_text('U', 0, 0, whole, strlen(whole));
    pthread_mutex_unlock(&changing);
    errno = failed;
    return done;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

/* Room and time */

#define NEXT(function)                                                                                                 \
    static __typeof__(&function) next;                                                                                 \
    if (!next)                                                                                                         \
        next = (__typeof__(&function))dlsym(RTLD_NEXT, #function);

static int spacious(int done, const char *path, struct statvfs *found) {
    char whole[8192];
    if (!done && order(FULL) && absolute(path, whole, sizeof whole) && is_under(whole))
        found->f_bfree = found->f_bavail = order(ROOM) > 0 ? (fsblkcnt_t)((uint64_t)order(ROOM) / found->f_frsize) : 0;
    return done;
}

int statvfs(const char *path, struct statvfs *found) {
    NEXT(statvfs)
    return spacious(next(path, found), path, found);
}

int statvfs64(const char *path, struct statvfs64 *found) {
    NEXT(statvfs64)
    return spacious(next(path, found), path, (struct statvfs *)found);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    NEXT(clock_gettime)
    int done = next(which, now);
    int64_t step = order(CLOCK_STEP);
    if (!done && step && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t sum = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + step * 1000;
        now->tv_sec = sum / 1000000000;
        now->tv_nsec = sum % 1000000000;
    }
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    int done = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return done;
}

time_t time(time_t *kept) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (kept)
        *kept = found.tv_sec;
    return found.tv_sec;
}
