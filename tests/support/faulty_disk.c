/* A disk that breaks on demand, loaded before the C library into a real service (LD_PRELOAD).
 *
 * A rule is a file in $FAULTY_RULES, named by what breaks; it holds the part of a path it is for, and
 * an argument. It is looked for at each call, so that a test can make and remove it at any moment:
 *
 *   sync_fails   once|always  fsync and fdatasync give EIO
 *   sync_takes   ms           they sleep first
 *   sync_kills   once         what is synced is on the disk, and the process gone by SIGKILL
 *   read_fails   once|always  pread gives EIO
 *   read_takes   us           it sleeps first
 *   write_fails  once|always  pwrite gives ENOSPC
 *   write_short  once|always  pwrite takes half of the bytes
 *   clock_back   s            the wall clock is so many seconds behind (ahead, if negative)
 *
 * With $FAULTY_MIRROR, what is synced below $FAULTY_ROOT is copied there, and nothing else: the mirror
 * is what a power cut at this moment leaves at the worst, with names changed at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define PATH_BYTES 4096
#define RANGES_MAX 65536

/* 1 if a rule of this name is for this path (NULL: for any); its argument is copied. */
static int rule(const char *name, const char *path, char *argument) {
    const char *rules = getenv("FAULTY_RULES");
    char file[PATH_BYTES], text[256], part[200];
    if (!rules) return 0;
    snprintf(file, sizeof file, "%s/%s", rules, name);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    long n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (n <= 0) return 0;
    text[n] = 0;
    if (sscanf(text, "%199s %31s", part, argument) != 2) return 0;
    if (path && !strstr(path, part)) return 0;
    /* Of several threads that meet a rule for once, the one that removes it has it. */
    if (!strcmp(argument, "once")) return syscall(SYS_unlinkat, AT_FDCWD, file, 0) == 0;
    return 1;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_BYTES - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return 1;
}

static void pause_us(long us) {
    struct timespec span = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&span, NULL);
}

/* ---- the mirror ---- */

struct range {
    dev_t device;
    ino_t inode;
    off_t from, to;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range ranges[RANGES_MAX];
static int ranges_used;

/* Where a path is mirrored; 0 if it is not. Makes the folders above it. */
static int mirrored(const char *path, char *copy) {
    const char *root = getenv("FAULTY_ROOT"), *mirror = getenv("FAULTY_MIRROR");
    if (!root || !mirror || strncmp(path, root, strlen(root))) return 0;
    int n = snprintf(copy, PATH_BYTES, "%s%s", mirror, path + strlen(root));
    if (n >= PATH_BYTES) return 0;
    for (char *at = copy + strlen(mirror) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(copy, 0755);
        *at = '/';
    }
    return 1;
}

static void note_write(int fd, off_t from, ssize_t bytes) {
    char path[PATH_BYTES], copy[PATH_BYTES];
    struct stat found;
    if (bytes <= 0 || !getenv("FAULTY_MIRROR") || !path_of(fd, path) || !mirrored(path, copy)) return;
    if (syscall(SYS_fstat, fd, &found)) return;
    pthread_mutex_lock(&lock);
    struct range *last = ranges_used ? &ranges[ranges_used - 1] : NULL;
    if (last && last->inode == found.st_ino && last->device == found.st_dev && last->to == from) {
        last->to += bytes;
    } else {
        if (ranges_used == RANGES_MAX) abort(); /* a mirror that forgets proves nothing */
        ranges[ranges_used++] = (struct range){found.st_dev, found.st_ino, from, from + bytes};
    }
    pthread_mutex_unlock(&lock);
}

static void copy_range(int from_fd, int to_fd, off_t from, off_t to) {
    static __thread char buffer[1 << 16];
    while (from < to) {
        size_t want = (size_t)(to - from) < sizeof buffer ? (size_t)(to - from) : sizeof buffer;
        long n = syscall(SYS_pread64, from_fd, buffer, want, from);
        if (n <= 0 || syscall(SYS_pwrite64, to_fd, buffer, n, from) != n) return;
        from += n;
    }
}

static void mirror_synced(int fd) {
    char path[PATH_BYTES], copy[PATH_BYTES];
    struct stat found;
    if (!getenv("FAULTY_MIRROR") || !path_of(fd, path) || !mirrored(path, copy)) return;
    if (syscall(SYS_fstat, fd, &found) || !S_ISREG(found.st_mode)) return;
    /* A name that is gone has no mirror either. */
    struct stat named;
    if (stat(path, &named) || named.st_ino != found.st_ino) return;
    pthread_mutex_lock(&lock);
    int to_fd = (int)syscall(SYS_openat, AT_FDCWD, copy, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    int kept = 0;
    for (int i = 0; i < ranges_used; i++) {
        struct range range = ranges[i];
        if (range.inode != found.st_ino || range.device != found.st_dev) ranges[kept++] = range;
        else if (to_fd >= 0) copy_range(fd, to_fd, range.from, range.to);
    }
    ranges_used = kept;
    if (to_fd >= 0) {
        syscall(SYS_ftruncate, to_fd, found.st_size);
        syscall(SYS_close, to_fd);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- what the service calls ---- */

static int synced(int fd, int (*real)(int)) {
    char path[PATH_BYTES], argument[32];
    if (path_of(fd, path)) {
        /* It ends with its rule, so that a test can make the disk well again. */
        for (long ms = 0; rule("sync_takes", path, argument) && ms < atol(argument); ms += 10)
            pause_us(10000);
        if (rule("sync_fails", path, argument)) {
            errno = EIO;
            return -1;
        }
    }
    int result = real(fd);
    if (result == 0) mirror_synced(fd);
    if (result == 0 && path_of(fd, path) && rule("sync_kills", path, argument)) kill(getpid(), SIGKILL);
    return result;
}

int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

static ssize_t written(int fd, const void *bytes, size_t count, off_t offset) {
    char path[PATH_BYTES], argument[32];
    if (path_of(fd, path)) {
        if (rule("write_fails", path, argument)) {
            errno = ENOSPC;
            return -1;
        }
        if (count > 1 && rule("write_short", path, argument)) count /= 2;
    }
    ssize_t n = syscall(SYS_pwrite64, fd, bytes, count, offset);
    note_write(fd, offset, n);
    return n;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    return written(fd, bytes, count, offset);
}
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    return written(fd, bytes, count, offset);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    ssize_t n = syscall(SYS_write, fd, bytes, count);
    if (n > 0 && getenv("FAULTY_MIRROR")) {
        off_t end = lseek(fd, 0, SEEK_CUR);
        if (end >= n) note_write(fd, end - n, n);
    }
    return n;
}

static ssize_t was_read(int fd, void *bytes, size_t count, off_t offset) {
    char path[PATH_BYTES], argument[32];
    if (path_of(fd, path)) {
        if (rule("read_takes", path, argument)) pause_us(atol(argument));
        if (rule("read_fails", path, argument)) {
            errno = EIO;
            return -1;
        }
    }
    return syscall(SYS_pread64, fd, bytes, count, offset);
}

ssize_t pread(int fd, void *bytes, size_t count, off_t offset) {
    return was_read(fd, bytes, count, offset);
}
ssize_t pread64(int fd, void *bytes, size_t count, off64_t offset) {
    return was_read(fd, bytes, count, offset);
}

int rename(const char *from, const char *to) {
    char from_copy[PATH_BYTES], to_copy[PATH_BYTES];
    int result = REAL(rename)(from, to);
    if (result == 0 && mirrored(from, from_copy) && mirrored(to, to_copy))
        syscall(SYS_renameat2, AT_FDCWD, from_copy, AT_FDCWD, to_copy, 0);
    return result;
}

int unlink(const char *path) {
    char copy[PATH_BYTES];
    int result = REAL(unlink)(path);
    if (result == 0 && mirrored(path, copy)) syscall(SYS_unlinkat, AT_FDCWD, copy, 0);
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    char argument[32];
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && rule("clock_back", NULL, argument))
        now->tv_sec -= atol(argument);
    return result;
}
