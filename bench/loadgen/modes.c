/* What is done with the connections. Each mode prints the fields of its result. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <stdlib.h>
#include <unistd.h>

static long answered_total;
static bool stopping;

static void print_ratio(uint64_t bytes, long messages)
{
    if (opt.deflate)
        printf(", \"ratio\": %.4f", (double)bytes / (double)messages / (double)opt.size);
}

void print_usage(struct usage from, struct usage to, long messages)
{
    double server = to.server - from.server;
    printf("\"messages\": %ld, \"wall_s\": %.6f, \"server_cpu_s\": %.6f, \"generator_cpu_s\": %.6f, "
           "\"per_wall_s\": %.1f, \"per_cpu_s\": %.1f",
           messages, to.wall - from.wall, server, to.self - from.self,
           (double)messages / (to.wall - from.wall), server > 0 ? (double)messages / server : 0);
}

void print_latency(void)
{
    printf(", \"p50_us\": %.2f, \"p90_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f, \"recorded\": %llu",
           hist_quantile(0.5) / 1e3, hist_quantile(0.9) / 1e3, hist_quantile(0.99) / 1e3,
           hist_quantile(0.999) / 1e3, (unsigned long long)hist_count());
}

/* Polls for the given time. */
void poll_for(double seconds)
{
    double end = now_s() + seconds;
    while (now_s() < end)
        net_poll(1);
}

/* echo: `pipeline` messages leave in one write; when all are answered, the next ones. */

static long budget; /* with --messages: how many may still be sent */

static void echo_next(struct conn *c)
{
    long n = opt.pipeline;
    if (opt.messages > 0) {
        n = n < budget ? n : budget;
        budget -= n;
    }
    if (n > 0)
        net_send(c, (int)n);
}

static void echo_answered(struct conn *c, int count)
{
    answered_total += count;
    if (c->received == c->queued && !stopping)
        echo_next(c);
}

void run_echo(void)
{
    net_init((struct events){.answered = echo_answered}, opt.connections);
    net_connect_all(opt.connections);
    budget = opt.messages;
    for (int i = 0; i < opt.connections; i++)
        echo_next(&conns[i]);
    struct usage from = usage_now();
    if (opt.messages > 0) {
        while (answered_total < opt.messages)
            net_poll(100);
        print_usage(from, usage_now(), answered_total);
        return;
    }
    poll_for(opt.warmup);
    long before = answered_total;
    from = usage_now();
    poll_for(opt.duration);
    struct usage to = usage_now();
    stopping = true;
    print_usage(from, to, answered_total - before);
    print_ratio(wire_payload_in, answered_total);
}

/* open loop: message m is due at start + m / total rate, on connection m % connections, whatever
 * the server does; the latency counts from that moment, so a stall is not hidden. */

static int64_t open_start, count_from, count_until;
static double interval_ns;

static void open_answered(struct conn *c, int count)
{
    int64_t now = now_ns();
    for (int i = count; i > 0; i--) {
        uint64_t m = (c->received - (uint64_t)i) * (uint64_t)opt.connections + c->id;
        int64_t planned = open_start + (int64_t)((double)m * interval_ns);
        if (planned >= count_from && planned < count_until)
            hist_record(now - planned);
    }
    answered_total += count;
}

void run_open(void)
{
    net_init((struct events){.answered = open_answered}, opt.connections);
    net_connect_all(opt.connections);
    interval_ns = 1e9 / (opt.rate * opt.connections);
    open_start = now_ns();
    count_from = open_start + (int64_t)(opt.warmup * 1e9);
    count_until = count_from + (int64_t)(opt.duration * 1e9);
    uint64_t m = 0, planned = (uint64_t)(opt.rate * opt.connections * (opt.warmup + opt.duration));
    struct usage from = usage_now();
    long before = -1;
    while (m < planned) {
        int64_t now = now_ns();
        if (before < 0 && now >= count_from) {
            before = answered_total;
            from = usage_now();
        }
        /* At most a few before the answers are looked at again, also when late. */
        for (int i = 0; i < 16 && m < planned; i++, m++) {
            if (open_start + (int64_t)((double)m * interval_ns) > now)
                break;
            net_send(&conns[m % (uint64_t)opt.connections], 1);
        }
        net_poll(0); /* the generator has a core of its own: spinning keeps its clock sharp */
    }
    struct usage to = usage_now();
    long counted = answered_total - before;
    double deadline = now_s() + 5; /* late answers count with their latency */
    while ((uint64_t)answered_total < planned && now_s() < deadline)
        net_poll(1);
    print_usage(from, to, counted);
    printf(", \"offered_per_s\": %.1f, \"unanswered\": %llu", opt.rate * opt.connections,
           (unsigned long long)(planned - (uint64_t)answered_total));
    print_latency();
}

/* connect: upgrade, one echo, RST, again. */

static void churn_opened(struct conn *c)
{
    net_send(c, 1);
}

static void churn_answered(struct conn *c, int count)
{
    answered_total += count;
    net_reset(c);
    if (!stopping)
        net_connect(c);
}

void run_churn(void)
{
    net_init((struct events){.opened = churn_opened, .answered = churn_answered}, opt.connections);
    for (int i = 0; i < opt.connections; i++)
        net_connect(&conns[i]);
    poll_for(opt.warmup);
    struct usage from = usage_now();
    long before = answered_total;
    poll_for(opt.duration);
    struct usage to = usage_now();
    stopping = true;
    print_usage(from, to, answered_total - before);
}

/* idle: connect N, hold them, compare the server's memory before and after. */

static void count_answer(struct conn *c, int count)
{
    (void)c;
    answered_total += count;
}

void run_idle(void)
{
    net_init((struct events){.answered = count_answer}, opt.connections + 1);
    for (int i = 0; opt.channels > 0 && i < opt.connections; i++)
        conns[i].channel = (uint32_t)(i % opt.channels);
    /* One connection comes and goes first: what a server allocates once is not a connection's. */
    struct conn *first = &conns[opt.connections];
    net_connect(first);
    while (first->state != OPEN)
        net_poll(100);
    net_send(first, 1);
    while (!opt.silent && answered_total < 1)
        net_poll(100);
    poll_for(0.2);
    net_reset(first);
    poll_for(0.2);
    wait_until_servers_rest();
    struct memory before = memory_now();
    struct usage start = usage_now();
    net_connect_all(opt.connections);
    answered_total = 0;
    if (opt.touch && opt.touches == 1)
        for (int i = 0; i < opt.connections; i++) {
            net_send(&conns[i], 1);
            while (answered_total <= i)
                net_poll(100);
        }
    else if (opt.touch)
        for (long i = 1; i <= opt.touches; i++) {
            for (int j = 0; j < opt.connections; j++)
                net_send(&conns[j], 1);
            while (answered_total < i * opt.connections)
                net_poll(100);
        }
    double connect_s = now_s() - start.wall;
    poll_for(0.5); /* let delayed work settle */
    struct usage from = usage_now();
    poll_for(opt.hold);
    struct usage to = usage_now();
    struct memory after = memory_now();
    double n = opt.connections;
    printf("\"connect_s\": %.3f, \"hold_s\": %.3f, \"idle_cpu_percent\": %.4f, "
           "\"rss_before\": %ld, \"rss_after\": %ld, \"rss_per_connection\": %.1f, "
           "\"anonymous_per_connection\": %.1f",
           connect_s, to.wall - from.wall, 100 * (to.server - from.server) / (to.wall - from.wall),
           before.rss, after.rss, (double)(after.rss - before.rss) / n,
           (double)(after.anonymous - before.anonymous) / n);
}
