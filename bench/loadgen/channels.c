/* channels: many channels, an open loop of publishes over all of them.
 *
 * Publish m is due at start + m / rate, in channel order[m % channels], whatever the server does; the
 * latency of each delivery counts from that moment, so a stall is not hidden. Each channel has a
 * publisher of its own, which is one member more and gets nothing. */
#include "loadgen.h"

#include <stdlib.h>

static int64_t start, count_from, count_until;
static double interval_ns;
static uint32_t *order, *position; /* of the channels within a round, and back */
static uint64_t delivered, subscribers;

static int64_t due(uint64_t m)
{
    return start + (int64_t)((double)m * interval_ns);
}

static void answered(struct conn *c, int count)
{
    int64_t now = now_ns();
    if (c->id >= subscribers)
        fail("a publisher got its own message");
    for (int i = count; i > 0; i--) {
        int64_t planned = due((c->received - (uint64_t)i) * (uint64_t)opt.channels + position[c->channel]);
        if (planned >= count_from && planned < count_until)
            hist_record(now - planned);
    }
    delivered += (uint64_t)count;
}

/* Neighbours in time are not neighbours in the order of connecting. */
static void shuffle(void)
{
    uint64_t x = 88172645463325252u;
    for (uint32_t i = 0; i < (uint32_t)opt.channels; i++)
        order[i] = i;
    for (uint32_t i = (uint32_t)opt.channels - 1; i > 0; i--) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint32_t j = (uint32_t)(x % (i + 1)), swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
    for (uint32_t i = 0; i < (uint32_t)opt.channels; i++)
        position[order[i]] = i;
}

static void connect_all(void)
{
    int total = opt.connections + opt.channels;
    net_init((struct events){.answered = answered}, total);
    for (int i = 0; i < total; i++) {
        struct conn *c = &conns[i];
        c->channel = (uint32_t)((i < opt.connections ? i : i - opt.connections) % opt.channels);
        c->from = (uint32_t)opt.connections + c->channel;
    }
    net_connect_all(total);
}

void run_channels(void)
{
    if (opt.channels == 0 || opt.connections % opt.channels != 0)
        fail("channels wants --channels that divide --connections");
    order = calloc((size_t)opt.channels, sizeof *order);
    position = calloc((size_t)opt.channels, sizeof *position);
    if (order == NULL || position == NULL)
        fail("no memory for %d channels", opt.channels);
    subscribers = (uint64_t)opt.connections;
    shuffle();
    connect_all();
    wait_until_servers_rest();
    interval_ns = 1e9 / opt.rate;
    start = now_ns();
    count_from = start + (int64_t)(opt.warmup * 1e9);
    count_until = count_from + (int64_t)(opt.duration * 1e9);
    uint64_t m = 0, planned = (uint64_t)(opt.rate * (opt.warmup + opt.duration));
    uint64_t expected = planned * subscribers / (uint64_t)opt.channels, before = 0;
    int64_t latest = 0;
    struct usage from = {0, 0, 0};
    while (m < planned) {
        int64_t now = now_ns();
        if (from.wall == 0 && now >= count_from) {
            before = delivered;
            from = usage_now();
        }
        /* At most a few before the deliveries are looked at again, also when late. */
        for (int i = 0; i < 4 && m < planned && due(m) <= now; i++, m++) {
            latest = now - due(m) > latest ? now - due(m) : latest;
            net_send(&conns[subscribers + order[m % (uint64_t)opt.channels]], 1);
        }
        net_poll(0); /* the generator has a core of its own: spinning keeps its clock sharp */
    }
    struct usage to = usage_now();
    uint64_t counted = delivered - before;
    double deadline = now_s() + 5; /* late deliveries count with their latency */
    while (delivered < expected && now_s() < deadline)
        net_poll(1);
    poll_for(0.05);
    if (delivered > expected)
        fail("a subscriber got a message twice");
    print_usage(from, to, (long)counted);
    printf(", \"offered_per_s\": %.1f, \"expected\": %llu, \"lost\": %llu, \"latest_publish_us\": %.1f",
           opt.rate * (double)(subscribers / (uint64_t)opt.channels), (unsigned long long)expected,
           (unsigned long long)(expected - delivered), (double)latest / 1e3);
    print_latency();
    free(order);
    free(position);
}
