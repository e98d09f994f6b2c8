/* Preloaded into a service: counts, by the name of the calling thread, the calls by which a thread
 * gets hold of Python's interpreter. The counts stand in the file that LABELER_TEST_GIL_COUNTS
 * names, as rows of 16 bytes of name and 8 bytes of count, so that a test reads them while the
 * service runs. Never changes what a call does. Sees the calls of an extension where the
 * interpreter is a shared library; where it is not, the file stays empty, and the test says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define ROWS 64

struct row {
    char thread[16];
    uint64_t calls;
};

static struct row *rows;
static volatile char busy;

__attribute__((constructor)) static void open_counts(void) {
    const char *path = getenv("LABELER_TEST_GIL_COUNTS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, ROWS * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) rows = mapped;
}

static void count(void) {
    char name[16] = {0};
    if (!rows || prctl(PR_GET_NAME, name)) return;
    while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) {
    }
    for (int at = 0; at < ROWS; at++) {
        if (!rows[at].calls) memcpy(rows[at].thread, name, sizeof name);
        if (!memcmp(rows[at].thread, name, sizeof name)) {
            rows[at].calls++;
            break;
        }
    }
    __atomic_clear(&busy, __ATOMIC_RELEASE);
}

int PyGILState_Ensure(void) {
    static int (*real)(void);
    if (!real) real = (int (*)(void))dlsym(RTLD_NEXT, "PyGILState_Ensure");
    count();
    return real();
}

void PyEval_RestoreThread(void *state) {
    static void (*real)(void *);
    if (!real) real = (void (*)(void *))dlsym(RTLD_NEXT, "PyEval_RestoreThread");
    count();
    real(state);
}

void PyEval_AcquireThread(void *state) {
    static void (*real)(void *);
    if (!real) real = (void (*)(void *))dlsym(RTLD_NEXT, "PyEval_AcquireThread");
    count();
    real(state);
}

void *PyThreadState_Swap(void *state) {
    static void *(*real)(void *);
    if (!real) real = (void *(*)(void *))dlsym(RTLD_NEXT, "PyThreadState_Swap");
    count();
    return real(state);
}
