/* How long the turns of an event loop compute: loaded into a process with LD_PRELOAD.
 *
 * Between two calls of epoll_pwait() in the main thread, the event loop serves whoever was ready, and nobody else: that
 * is a turn. What the thread computes in it is measured by the thread's own clock, which stands still while the machine
 * runs something else. So a busy machine does not make a turn longer. What all threads of the process have computed
 * meanwhile bounds what the loop can have waited for one of them, which shows in no thread's clock.
 *
 * TURNS_PAGE in the environment names the file of the page that is shared with the test (tests/attacks/turns.py).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct page {
    int64_t longest; /* nanoseconds that a turn has computed at most; the test sets it to 0 */
    int64_t turns;
    int64_t began; /* what the thread had computed when the present turn began, 0 while it waits */
    int64_t longest_of_all; /* the same as the first, of all threads; the test sets it to 0 */
};

static volatile struct page *page;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TURNS_PAGE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    page = shared == MAP_FAILED ? NULL : shared;
}

static int64_t computed(clockid_t by) {
    struct timespec used;
    clock_gettime(by, &used);
    return used.tv_sec * 1000000000LL + used.tv_nsec;
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout, const sigset_t *mask) {
    static int (*next)(int, struct epoll_event *, int, int, const sigset_t *);
    if (!next)
        next = dlsym(RTLD_NEXT, "epoll_pwait");
    static int64_t all_began;
    int watched = page && syscall(SYS_gettid) == getpid();
    if (watched && page->began) {
        int64_t took = computed(CLOCK_THREAD_CPUTIME_ID) - page->began;
        int64_t all = computed(CLOCK_PROCESS_CPUTIME_ID) - all_began;
        page->began = 0;
        page->turns++;
        if (took > page->longest)
            page->longest = took;
        if (all > page->longest_of_all)
            page->longest_of_all = all;
    }
    int found = next(fd, events, most, timeout, mask);
    if (watched) {
        all_began = computed(CLOCK_PROCESS_CPUTIME_ID);
        page->began = computed(CLOCK_THREAD_CPUTIME_ID);
    }
    return found;
}
