/* Subscribers in child processes: each has a descriptor limit of its own, and none takes part in a
 * publish before it is told to read.
 *
 * Why blocked: on loopback the server's send runs the receiver's half of TCP, and waking a generator that
 * waits in epoll is a fifth of it; how often it is found asleep depends on its speed. A child that
 * blocks in read(2) on a pipe costs the server nothing, leaves a core free, and cannot be too slow:
 * the arrival is the kernel's stamp on what is read later. A message therefore has to fit into the
 * socket's receive buffer (128 KB by default). */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUBSCRIBERS_MAX = 64, READ_DEADLINE_S = 20 };

struct reply {
    int64_t last_arrival;
    char error[240]; /* empty: all is well */
};

static struct {
    pid_t pid;
    int orders, replies;
} subscribers[SUBSCRIBERS_MAX];
static long answered;
static int reply_to;

static void count(struct conn *c, int messages)
{
    (void)c;
    answered += messages;
}

static void reply(const char *error)
{
    struct reply r = {.last_arrival = net_last_arrival};
    snprintf(r.error, sizeof r.error, "%s", error);
    if (write(reply_to, &r, sizeof r) != (ssize_t)sizeof r || *error != 0)
        _exit(1);
}

static void await(int subscribers, long total)
{
    double deadline = now_s() + READ_DEADLINE_S;
    while (answered < total) {
        net_poll(100);
        if (now_s() > deadline)
            fail("only %ld of %ld messages came to %d subscribers within %d s", answered, total, subscribers,
                 READ_DEADLINE_S);
    }
    poll_for(0.05);
    if (answered > total)
        fail("a subscriber got a message twice");
}

/* An order is the number of messages that each subscriber must have; the first one, to connect, is 0. */
static void serve(int index, int subscribers, int orders)
{
    long each;
    fail_instead = reply;
    net_source = opt.processes > 1 ? 1 + index : 0;
    net_stamped = true;
    net_init((struct events){.answered = count}, subscribers);
    for (int i = 0; i < subscribers; i++) {
        conns[i].from = PUBLISHER;
        conns[i].channel = opt.channels > 0 ? (uint32_t)(i % opt.channels) : 0;
    }
    while (read(orders, &each, sizeof each) == (ssize_t)sizeof each) {
        if (each == 0)
            net_connect_all(subscribers);
        await(subscribers, each * subscribers);
        for (int i = 0; i < subscribers; i++)
            if (conns[i].received != (uint64_t)each)
                fail("a subscriber got a message twice, another one not");
        reply("");
    }
    _exit(0);
}

void subscribers_start(void)
{
    fflush(stdout);
    for (int i = 0; i < opt.processes; i++) {
        int orders[2], replies[2];
        int first = (int)((long)opt.connections * i / opt.processes);
        int next = (int)((long)opt.connections * (i + 1) / opt.processes);
        if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(replies, O_CLOEXEC) != 0)
            fail("no pipe: %s", strerror(errno));
        pid_t pid = fork();
        if (pid < 0)
            fail("no process: %s", strerror(errno));
        if (pid == 0) {
            /* An order pipe kept open by a sibling would outlive the parent. */
            for (int j = 0; j < i; j++)
                close(subscribers[j].orders);
            close(orders[1]);
            close(replies[0]);
            reply_to = replies[1];
            serve(i, next - first, orders[0]);
        }
        close(orders[0]);
        close(replies[1]);
        subscribers[i].pid = pid;
        subscribers[i].orders = orders[1];
        subscribers[i].replies = replies[0];
    }
}

static int64_t order_all(long each)
{
    int64_t last = 0;
    for (int i = 0; i < opt.processes; i++)
        if (write(subscribers[i].orders, &each, sizeof each) != (ssize_t)sizeof each)
            fail("a generator process ended");
    for (int i = 0; i < opt.processes; i++) {
        struct reply r;
        if (read(subscribers[i].replies, &r, sizeof r) != (ssize_t)sizeof r)
            fail("a generator process ended");
        if (r.error[0] != 0)
            fail("%s", r.error);
        last = r.last_arrival > last ? r.last_arrival : last;
    }
    return last;
}

void subscribers_connect(void)
{
    order_all(0);
}

int64_t subscribers_read(long messages_each)
{
    return order_all(messages_each);
}

void subscribers_end(void)
{
    for (int i = 0; i < opt.processes; i++)
        close(subscribers[i].orders);
    for (int i = 0; i < opt.processes; i++)
        waitpid(subscribers[i].pid, NULL, 0); /* its CPU then counts as the generator's */
}
