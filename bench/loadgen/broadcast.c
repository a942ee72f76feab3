/* broadcast: one member of a channel publishes, the clock runs until the last of the others has it.
 *
 * wall_ms is from just before the publisher's send to the kernel's stamp on the last byte that came to
 * the last subscriber's socket; server_cpu_ms all that the servers used until everything was read. Both
 * are taken with a generator that sleeps: see subscribers.c. */
#include "loadgen.h"

#include <stdlib.h>

enum { CANDIDATES_A_SERVER = 8 };

static uint32_t prober; /* whose probe is under way */

static void probed(struct conn *c, int messages)
{
    (void)messages;
    if (prober == UINT32_MAX || c->id == prober)
        fail("a publisher got a message");
}

static void renumber(struct conn *c, uint32_t id)
{
    c->id = id;
    c->queued = c->sent = c->received = 0;
}

/* Which server process a connection reaches is the kernel's choice (SO_REUSEPORT), so several are tried:
 * whoever gets a candidate's message is with the same process. One of each process stays. */
static int choose_publishers(struct conn **chosen)
{
    int candidates = opt.servers > 1 ? opt.servers * CANDIDATES_A_SERVER : 1, found = 0;
    bool *settled = calloc((size_t)candidates, sizeof *settled);
    if (settled == NULL)
        fail("no memory for %d candidates", candidates);
    net_init((struct events){.answered = probed}, candidates);
    net_connect_all(candidates);
    for (int i = 0; i < candidates; i++) {
        if (settled[i])
            continue;
        if (found == SERVERS_MAX)
            fail("more servers than --server-pid names");
        chosen[found++] = &conns[i];
        if (candidates == 1)
            break;
        prober = conns[i].id;
        for (int j = 0; j < candidates; j++) {
            conns[j].from = prober;
            conns[j].received = 0;
        }
        net_send(&conns[i], 1);
        poll_for(0.05);
        wait_until_servers_rest();
        poll_for(0.05);
        for (int j = 0; j < candidates; j++)
            settled[j] |= conns[j].received > 0;
    }
    for (int i = 0, kept = 0; i < candidates; i++) {
        if (kept < found && chosen[kept] == &conns[i])
            kept++;
        else
            net_reset(&conns[i]);
    }
    if (found != (opt.servers > 1 ? opt.servers : 1))
        fail("%d servers answer behind the port, not %d", found, opt.servers);
    for (int i = 0; i < found; i++)
        renumber(chosen[i], PUBLISHER);
    prober = UINT32_MAX;
    free(settled);
    return found;
}

static int by_wall(const void *a, const void *b)
{
    double x = ((const struct usage *)a)->wall, y = ((const struct usage *)b)->wall;
    return (x > y) - (x < y);
}

static int by_cpu(const void *a, const void *b)
{
    double x = ((const struct usage *)a)->server, y = ((const struct usage *)b)->server;
    return (x > y) - (x < y);
}

void run_broadcast(void)
{
    struct usage *runs = calloc((size_t)opt.publishes, sizeof *runs);
    struct conn *publishers[SERVERS_MAX];
    if (runs == NULL)
        fail("no memory for %d publications", opt.publishes);
    subscribers_start();
    int count = choose_publishers(publishers);
    subscribers_connect();
    poll_for(opt.warmup);
    wait_until_servers_rest();
    struct memory before = memory_now();
    memory_forget_peak();
    for (int i = 0; i < opt.publishes; i++) {
        struct usage from = usage_now();
        int64_t start = wall_ns();
        for (int j = 0; j < count; j++)
            net_send(publishers[j], 1);
        wait_until_servers_rest();
        double wall = (double)(subscribers_read(i + 1) - start) / 1e9;
        wait_until_servers_rest();
        poll_for(0.02);
        struct usage to = usage_now();
        if (wall < 0)
            fail("the machine's clock was set meanwhile");
        runs[i] = (struct usage){wall, to.server - from.server, 0};
    }
    long peak = memory_peak();
    double n = opt.connections, middle, best, worst;
    qsort(runs, (size_t)opt.publishes, sizeof *runs, by_wall);
    middle = runs[opt.publishes / 2].wall, best = runs[0].wall, worst = runs[opt.publishes - 1].wall;
    printf("\"publishes\": %d, \"servers\": %d, \"processes\": %d, \"wall_ms\": %.3f, \"best_wall_ms\": %.3f, "
           "\"worst_wall_ms\": %.3f, ",
           opt.publishes, count, opt.processes, middle * 1e3, best * 1e3, worst * 1e3);
    qsort(runs, (size_t)opt.publishes, sizeof *runs, by_cpu);
    middle = runs[opt.publishes / 2].server, best = runs[0].server, worst = runs[opt.publishes - 1].server;
    printf("\"server_cpu_ms\": %.3f, \"best_cpu_ms\": %.3f, \"worst_cpu_ms\": %.3f, "
           "\"server_cpu_us_each\": %.4f, \"rss_before\": %ld, \"rss_peak\": %ld, \"rss_peak_growth_mb\": %.3f",
           middle * 1e3, best * 1e3, worst * 1e3, middle * 1e6 / n, before.rss, peak,
           (double)(peak - before.rss) / 1e6);
    subscribers_end();
    free(runs);
}
