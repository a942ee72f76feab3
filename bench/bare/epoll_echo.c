/* A bare TCP echo: what the kernel alone costs, and so the practical limit of any server here.
 *
 * One thread, level-triggered epoll, one receive buffer for all connections, recv and send, no
 * parsing. What a full socket did not take is kept and reading stops until it has left. Memory of
 * an idle connection: one pointer.                                    usage: epoll_echo PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 512 * 1024, EVENTS = 1024 };

struct rest { /* bytes that did not fit into the socket */
    size_t len, sent;
    char data[];
};

static char buffer[BUFFER];
static struct rest **rests; /* by descriptor; NULL almost always */
static size_t rests_len;
static int epoll_fd;

static void watch(int operation, int fd, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.fd = fd};
    epoll_ctl(epoll_fd, operation, fd, &e);
}

static void drop(int fd)
{
    free(rests[fd]);
    rests[fd] = NULL;
    close(fd);
}

static void keep(int fd, const char *data, size_t len)
{
    struct rest *r = malloc(sizeof *r + len);
    if (r == NULL) {
        drop(fd);
        return;
    }
    r->len = len, r->sent = 0;
    memcpy(r->data, data, len);
    rests[fd] = r;
    watch(EPOLL_CTL_MOD, fd, EPOLLOUT);
}

static void echo(int fd)
{
    ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            drop(fd);
        return;
    }
    ssize_t sent = send(fd, buffer, (size_t)n, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        drop(fd);
        return;
    }
    sent = sent < 0 ? 0 : sent;
    if (sent < n)
        keep(fd, buffer + sent, (size_t)(n - sent));
}

static void send_rest(int fd)
{
    struct rest *r = rests[fd];
    ssize_t n = send(fd, r->data + r->sent, r->len - r->sent, MSG_NOSIGNAL);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            drop(fd);
        return;
    }
    r->sent += (size_t)n;
    if (r->sent == r->len) {
        free(r);
        rests[fd] = NULL;
        watch(EPOLL_CTL_MOD, fd, EPOLLIN);
    }
}

static void accept_all(int listener)
{
    int one = 1, fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if ((size_t)fd >= rests_len) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watch(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static struct epoll_event list[EVENTS];
    struct rlimit files;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (argc != 2) {
        fprintf(stderr, "usage: epoll_echo PORT\n");
        return 2;
    }
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    rests_len = files.rlim_cur < 2000000 ? files.rlim_cur : 2000000;
    rests = calloc(rests_len, sizeof *rests);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (rests == NULL || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 4096) != 0) {
        perror("epoll_echo");
        return 1;
    }
    watch(EPOLL_CTL_ADD, listener, EPOLLIN);
    for (;;) {
        int n = epoll_wait(epoll_fd, list, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            int fd = list[i].data.fd;
            if (fd == listener)
                accept_all(listener);
            else if (rests[fd] != NULL)
                send_rest(fd);
            else
                echo(fd);
        }
    }
}
