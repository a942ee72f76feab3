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

int64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void sleep_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
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
    for (int i = 0; i < opt.servers; i++) {
        clockid_t id;
        if (clock_getcpuclockid(opt.server[i], &id) != 0)
            fail("no process %d: the server ended", (int)opt.server[i]);
        u.server += clock_s(id);
    }
    for (int i = 0; i < opt.kernel_threads; i++) {
        clockid_t id;
        if (clock_getcpuclockid(opt.kernel_thread[i], &id) != 0)
            fail("no thread %d", (int)opt.kernel_thread[i]);
        u.server += clock_s(id);
    }
    return u;
}

/* Adds up the fields of a /proc file of every server that are given in kB; returns bytes. */
static long sum_kb(const char *file, const char *field)
{
    long sum = 0, kib;
    size_t n = strlen(field);
    char path[64], line[256];
    for (int i = 0; i < opt.servers; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", (int)opt.server[i], file);
        FILE *f = fopen(path, "r");
        if (f == NULL)
            fail("cannot read %s", path);
        while (fgets(line, sizeof line, f) != NULL)
            if (strncmp(line, field, n) == 0 && sscanf(line + n, ": %ld kB", &kib) == 1)
                sum += kib * 1024;
        fclose(f);
    }
    return sum;
}

/* smaps_rollup walks the pages: exact, where the counters in `status` lag by some pages a CPU. */
struct memory memory_now(void)
{
    return (struct memory){sum_kb("smaps_rollup", "Rss"), sum_kb("smaps_rollup", "Anonymous")};
}

void memory_forget_peak(void)
{
    char path[64];
    for (int i = 0; i < opt.servers; i++) {
        snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)opt.server[i]);
        FILE *f = fopen(path, "w");
        if (f == NULL || fputs("5", f) < 0 || fclose(f) != 0)
            fail("cannot reset the memory peak through %s", path);
    }
}

long memory_peak(void)
{
    return sum_kb("status", "VmHWM");
}

/* Until the servers have used next to no CPU for 50 ms. The sockets are not touched meanwhile, so
 * that nothing the generator does is paid by a server's send. */
void wait_until_servers_rest(void)
{
    double deadline = now_s() + 30, before = usage_now().server;
    if (opt.servers == 0) {
        sleep_ms(100);
        return;
    }
    for (int still = 0; still < 10;) {
        sleep_ms(5);
        double now = usage_now().server;
        still = now - before < 0.0003 ? still + 1 : 0;
        before = now;
        if (now_s() > deadline)
            fail("the server is still busy after 30 s");
    }
}

/* The send queues of the server's sockets (not acknowledged, or not sent) and the receive queues of
 * ours, as /proc/net/tcp shows them. Listening sockets and those half closed do not count. */
long bytes_in_kernel(void)
{
    enum { ESTABLISHED = 1 };
    char line[512];
    long sum = 0;
    FILE *f = fopen("/proc/net/tcp", "r");
    if (f == NULL)
        fail("cannot read /proc/net/tcp");
    while (fgets(line, sizeof line, f) != NULL) {
        unsigned from, to, state;
        unsigned long sending, receiving;
        if (sscanf(line, " %*d: %*8x:%x %*8x:%x %x %lx:%lx", &from, &to, &state, &sending, &receiving) != 5
            || state != ESTABLISHED)
            continue;
        if ((int)from == opt.port)
            sum += (long)sending;
        if ((int)to == opt.port)
            sum += (long)receiving;
    }
    fclose(f);
    return sum;
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
