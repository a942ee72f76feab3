/* Clocks, the server's CPU time and memory, and a log-linear histogram. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

double now_s(void)
{
    return (double)now_ns() / 1e9;
}

static double clock_s(clockid_t id)
{
    struct timespec t;
    if (clock_gettime(id, &t) != 0)
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The process CPU clock counts user and system time of all threads, also of those that ended, in
 * nanoseconds; /proc/PID/stat would only give clock ticks. */
struct usage usage_now(void)
{
    struct usage u = {now_s(), 0, clock_s(CLOCK_PROCESS_CPUTIME_ID)};
    clockid_t id;
    if (opt.server > 0) {
        if (clock_getcpuclockid(opt.server, &id) != 0)
            fail("no process %d: the server ended", (int)opt.server);
        u.server = clock_s(id);
    }
    return u;
}

struct memory memory_of(pid_t pid)
{
    struct memory m = {0, 0};
    char path[64], line[256];
    long kib;
    if (pid <= 0)
        return m;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        fail("cannot read %s", path);
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "Rss: %ld kB", &kib) == 1)
            m.rss = kib * 1024;
        else if (sscanf(line, "Anonymous: %ld kB", &kib) == 1)
            m.anonymous = kib * 1024;
    }
    fclose(f);
    return m;
}

/* 128 linear buckets an octave: values are right to 0.8 %. */
enum { SUB_BITS = 7, SUB = 1 << SUB_BITS, OCTAVES = 40 };
static uint64_t buckets[OCTAVES * SUB], total;

void hist_record(int64_t ns)
{
    uint64_t v = ns < 0 ? 0 : (uint64_t)ns;
    int shift = 0;
    while ((v >> shift) >= 2 * SUB)
        shift++;
    size_t index = (size_t)shift * SUB + (size_t)(v >> shift);
    if (index >= OCTAVES * SUB)
        index = OCTAVES * SUB - 1;
    buckets[index]++;
    total++;
}

uint64_t hist_count(void)
{
    return total;
}

double hist_quantile(double q)
{
    uint64_t rank = (uint64_t)(q * (double)total), seen = 0;
    for (size_t i = 0; i < OCTAVES * SUB; i++) {
        seen += buckets[i];
        if (seen > rank || (seen == total && total > 0)) {
            size_t shift = i < 2 * SUB ? 0 : i / SUB - 1;
            return (double)(((uint64_t)(i - shift * SUB)) << shift);
        }
    }
    return 0;
}
