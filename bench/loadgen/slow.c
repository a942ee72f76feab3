/* slow: subscribers that do not read, until enough messages wait inside the server.
 *
 * What waits in the kernel is no reference: the sockets' buffers are kept small and what they hold is
 * subtracted, as /proc/net/tcp shows it. In the end everybody reads, and every message must come whole
 * and in order: a server that saved memory by dropping does not pass. */
#include "loadgen.h"

enum { ROUNDS = 20, SILENCE_S = 5 };

static long arrived;

static void answered(struct conn *c, int count)
{
    if (c->from != PUBLISHER)
        fail("the publisher got its own message");
    arrived += count;
}

/* Bytes of one message as the server sends it. */
static long frame_bytes(void)
{
    return (long)opt.size + (opt.size < 126 ? 2 : opt.size < 65536 ? 4 : 10);
}

static void settle(long *kernel)
{
    long before;
    do {
        before = *kernel;
        wait_until_servers_rest();
        *kernel = bytes_in_kernel();
    } while (*kernel != before);
}

void run_slow(void)
{
    int n = opt.connections;
    long kernel = 0, published = 0, inside = 0;
    if (opt.deflate || opt.text || opt.servers != 1)
        fail("slow wants binary messages and one --server-pid");
    net_init((struct events){.answered = answered}, n + 1);
    for (int i = 0; i < n; i++)
        conns[i].from = PUBLISHER;
    struct conn *publisher = &conns[n];
    publisher->id = PUBLISHER;
    net_connect_all(n + 1);
    poll_for(opt.warmup);
    for (int i = 0; i < n; i++)
        net_mute(&conns[i]);
    settle(&kernel);
    struct memory before = memory_now();
    struct usage from = usage_now();
    memory_forget_peak();
    /* First what is wanted, then what turned out to lie in the kernel. */
    for (int round = 0; inside < opt.references && round < ROUNDS; round++) {
        long more = (opt.references - inside + n - 1) / n, end = published + more;
        for (; published < end; published++) {
            net_send(publisher, 1);
            while (publisher->sent < publisher->queued)
                net_poll(10);
        }
        settle(&kernel);
        inside = (published * n * frame_bytes() - kernel) / frame_bytes();
    }
    struct usage to = usage_now();
    struct memory after = memory_now();
    long peak = memory_peak();
    if (inside < opt.references)
        fail("%ld messages to %d subscribers, and only %ld of them wait inside the server", published, n, inside);
    double drain = now_s(), heard = drain;
    for (int i = 0; i < n; i++)
        net_hear(&conns[i]);
    for (long had = 0; arrived < published * n; had = arrived) {
        net_poll(100);
        heard = arrived > had ? now_s() : heard;
        if (now_s() > heard + SILENCE_S)
            fail("only %ld of %ld messages came, and nothing for %d s", arrived, published * n, SILENCE_S);
    }
    drain = now_s() - drain;
    wait_until_servers_rest();
    struct memory end = memory_now();
    double grown = (double)(after.rss - before.rss);
    printf("\"publishes\": %ld, \"references\": %ld, \"kernel_bytes\": %ld, \"payload_mb\": %.1f, "
           "\"rss_before\": %ld, \"rss_after\": %ld, \"rss_peak_growth_mb\": %.3f, \"growth_mb\": %.3f, "
           "\"bytes_per_reference\": %.2f, \"publish_cpu_s\": %.4f, \"drain_s\": %.2f, "
           "\"rss_kept_after_drain_mb\": %.3f",
           published, inside, kernel, (double)inside * (double)opt.size / 1e6, before.rss, after.rss,
           (double)(peak - before.rss) / 1e6, grown / 1e6, grown / (double)inside, to.server - from.server, drain,
           (double)(end.rss - before.rss) / 1e6);
}
