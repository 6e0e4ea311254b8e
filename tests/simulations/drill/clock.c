/* A clock that can be set while a process runs: the seconds in the file that CLOCK names are added to the time of day.
   Loaded before the C library. Libfaketime does the same and more, but Python 3.11's sleep fails under it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t offset(void) {
    const char *name = getenv("CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    char text[16] = "";
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += offset();
    return failed;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
