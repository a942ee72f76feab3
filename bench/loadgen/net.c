/* Sockets, one epoll set, reading and writing. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PORTS_PER_ADDRESS = 25000, AT_ONCE = 128, EVENTS = 1024, HEAD_LIMIT = 4096 };

struct conn *conns;
int net_source;
bool net_stamped;
int64_t net_last_arrival;
static int epoll_fd, capacity, opened_count;
static struct sockaddr_in server;
static struct events on;
static uint8_t received[RECV_BUFFER], scratch[SEND_SCRATCH];

void net_init(struct events handlers, int count)
{
    on = handlers;
    capacity = count;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    conns = calloc((size_t)count, sizeof *conns);
    if (epoll_fd < 0 || conns == NULL)
        fail("cannot prepare %d connections: %s", count, strerror(errno));
    for (int i = 0; i < count; i++)
        conns[i] = (struct conn){.fd = -1, .id = (uint32_t)i, .from = (uint32_t)i, .state = CLOSED};
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)opt.port);
    if (inet_pton(AF_INET, opt.host, &server.sin_addr) != 1)
        fail("--host wants an IPv4 address, not '%s'", opt.host);
}

static void watch(struct conn *c, int operation, bool write)
{
    struct epoll_event e = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = c};
    c->want_write = write;
    if (epoll_ctl(epoll_fd, operation, c->fd, &e) != 0)
        fail("epoll_ctl: %s", strerror(errno));
}

/* One loopback address has about 28,000 usable ports towards one server. */
static void bind_source(struct conn *c)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    int one = 1;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)net_source + c->id / PORTS_PER_ADDRESS);
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(c->fd, (struct sockaddr *)&from, sizeof from) != 0)
        fail("cannot use a second source address: %s", strerror(errno));
}

/* Before connecting: the receive buffer decides the window that is offered, and the server's kernel sizes
 * its send buffer by our segment size, which on loopback (64 KB) would make it 1.3 MB; so say what
 * Ethernet has. */
static void keep_buffers_small(struct conn *c)
{
    int segment = 1460;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &opt.receive_buffer, sizeof opt.receive_buffer);
    setsockopt(c->fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
}

void net_connect(struct conn *c)
{
    int one = 1;
    uint32_t id = c->id;
    *c = (struct conn){.id = id, .from = c->from, .channel = c->channel, .state = CONNECTING, .packed = c->packed};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        fail("connection %u: %s (the limit: ulimit -n)", id, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (opt.receive_buffer > 0)
        keep_buffers_small(c);
    if (net_stamped && setsockopt(c->fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) != 0)
        fail("no receive time stamps: %s", strerror(errno));
    if (net_source > 0 || capacity > PORTS_PER_ADDRESS)
        bind_source(c);
    if (connect(c->fd, (struct sockaddr *)&server, sizeof server) != 0 && errno != EINPROGRESS)
        fail("connection %u: cannot connect: %s", id, strerror(errno));
    watch(c, EPOLL_CTL_ADD, true);
}

void net_reset(struct conn *c)
{
    struct linger reset = {1, 0};
    if (c->state == OPEN)
        opened_count--;
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    inflate_forget(&c->inflater);
    close(c->fd);
    c->fd = -1;
    c->state = CLOSED;
}

void net_connect_all(int count)
{
    int next = 0;
    double deadline = now_s() + 60;
    while (opened_count < count) {
        while (next < count && next - opened_count < AT_ONCE)
            net_connect(&conns[next++]);
        net_poll(100);
        if (now_s() > deadline)
            fail("only %d of %d connections came about in 60 s", opened_count, count);
    }
}

static void opened(struct conn *c)
{
    c->state = OPEN;
    opened_count++;
    if (on.opened != NULL)
        on.opened(c);
}

static void connected(struct conn *c)
{
    char request[512];
    int n, error = 0;
    socklen_t len = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error != 0)
        fail("connection %u: cannot connect: %s", c->id, strerror(error));
    watch(c, EPOLL_CTL_MOD, false);
    if (opt.raw) {
        opened(c);
        return;
    }
    n = wire_request(c, request, sizeof request);
    if (send(c->fd, request, (size_t)n, MSG_NOSIGNAL) != n)
        fail("connection %u: cannot send the upgrade request", c->id);
    c->state = UPGRADING;
}

/* Peeks until the head is complete, so that what follows it stays in the socket. */
static void upgrade(struct conn *c)
{
    ssize_t n = recv(c->fd, received, HEAD_LIMIT, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        fail("connection %u: closed instead of upgraded", c->id);
    char *end = memmem(received, (size_t)n, "\r\n\r\n", 4);
    if (end == NULL && n < HEAD_LIMIT)
        return;
    if (end == NULL || !wire_check_response((char *)received, (size_t)n))
        fail("connection %u: refused: %.60s", c->id, (char *)received);
    if (recv(c->fd, received, (size_t)(end + 4 - (char *)received), 0) <= 0)
        fail("connection %u: %s", c->id, strerror(errno));
    opened(c);
}

/* A socket error, or a would-block after which EPOLLOUT is armed. */
static void send_stopped(struct conn *c)
{
    if (errno != EAGAIN && errno != EINTR)
        fail("connection %u: send: %s", c->id, strerror(errno));
    if (!c->want_write)
        watch(c, EPOLL_CTL_MOD, true);
}

static void flush(struct conn *c)
{
    while (c->sent < c->queued) {
        ssize_t n, wanted;
        size_t size = wire_size(c->id, c->sent);
        if (size * 2 <= sizeof scratch) { /* small: copy, so that one send carries many */
            uint64_t batch = c->queued - c->sent, most = opt.context ? 1 : sizeof scratch / size;
            batch = batch < most ? batch : most;
            for (uint64_t i = 0; i < batch; i++)
                wire_build(c->id, c->sent + i, scratch + i * size);
            wanted = (ssize_t)(batch * size - c->send_offset);
            n = send(c->fd, scratch + c->send_offset, (size_t)wanted, MSG_NOSIGNAL);
        } else {
            uint8_t head[HEAD_MAX + STAMP];
            const uint8_t *body;
            size_t len, skip = c->send_offset;
            wire_head(c->id, c->sent, head, &len, &body);
            size_t in_head = skip < len ? skip : len, in_body = skip - in_head;
            struct iovec parts[2] = {{head + in_head, len - in_head},
                                     {(void *)(body + in_body), size - len - in_body}};
            struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
            wanted = (ssize_t)(size - skip);
            n = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        }
        if (n < 0) {
            send_stopped(c);
            return;
        }
        c->send_offset += (size_t)n;
        c->sent += c->send_offset / size;
        c->send_offset %= size;
        if (n < wanted && !c->want_write)
            watch(c, EPOLL_CTL_MOD, true);
        if (n < wanted)
            return;
    }
    if (c->want_write)
        watch(c, EPOLL_CTL_MOD, false);
}

void net_send(struct conn *c, int count)
{
    c->queued += (uint64_t)count;
    if (!c->want_write)
        flush(c);
}

void net_mute(struct conn *c)
{
    if (epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, NULL) != 0)
        fail("epoll_ctl: %s", strerror(errno));
}

void net_hear(struct conn *c)
{
    int ordinary = 1 << 20;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &ordinary, sizeof ordinary);
    watch(c, EPOLL_CTL_ADD, false);
}

/* A stamp is the moment at which the kernel received the last byte that is read: on loopback, while
 * the server's send runs. It does not matter when we got round to reading it. */
static ssize_t receive(struct conn *c)
{
    if (!net_stamped)
        return recv(c->fd, received, sizeof received, 0);
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } control;
    struct iovec all = {received, sizeof received};
    struct msghdr message = {
        .msg_iov = &all, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(c->fd, &message, 0);
    struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (n > 0 && (head == NULL || head->cmsg_type != SCM_TIMESTAMPNS))
        fail("connection %u: the kernel did not stamp what it received", c->id);
    if (n > 0) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(head), sizeof t);
        int64_t ns = t.tv_sec * 1000000000LL + t.tv_nsec;
        if (ns > net_last_arrival)
            net_last_arrival = ns;
    }
    return n;
}

static void readable(struct conn *c)
{
    ssize_t n = receive(c);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        fail("connection %u: the server ended it (%s)", c->id, n == 0 ? "FIN" : strerror(errno));
    int done = wire_consume(c, received, (size_t)n);
    if (done > 0)
        on.answered(c, done);
}

void net_poll(int timeout_ms)
{
    static struct epoll_event list[EVENTS];
    int n = epoll_wait(epoll_fd, list, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        struct conn *c = list[i].data.ptr;
        if (c->state == CONNECTING) {
            connected(c);
            continue;
        }
        if (c->state == OPEN && c->want_write && list[i].events & EPOLLOUT)
            flush(c);
        if (list[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
            if (c->state == UPGRADING)
                upgrade(c);
            else if (c->state == OPEN)
                readable(c);
        }
    }
}
