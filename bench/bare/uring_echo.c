/* A bare TCP echo that submits all answers of a turn at once: what batching them saves, and what
 * work it leaves to the kernel's threads.
 *
 * One thread, one io_uring, one receive or send in progress for each connection, no parsing. A
 * connection has a buffer of its own, so memory per idle connection is no figure of this server.
 *                                                                       usage: uring_echo PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Each connection has one operation in progress, so a completion queue of twice the entries never
 * overflows with 20,000 descriptors. */
enum { ENTRIES = 16384, BUFFER = 32 * 1024 };

enum operation { ACCEPT, RECEIVE, SEND };

struct connection {
    unsigned length, sent;
};

static struct connection *connections; /* by descriptor */
static char *buffers;
static size_t descriptors;
static int ring_fd;
static struct io_uring_sqe *submissions;
static struct io_uring_cqe *completions;
static _Atomic unsigned *sq_tail, *cq_head, *cq_tail;
static unsigned *sq_array, sq_mask, cq_mask, queued;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void *map(size_t length, off_t offset)
{
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_fd, offset);
    if (at == MAP_FAILED)
        fail("mmap");
    return at;
}

static void set_up_ring(void)
{
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    ring_fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (ring_fd < 0)
        fail("io_uring_setup");
    char *sq = map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = map(p.cq_off.cqes + p.cq_entries * sizeof *completions, IORING_OFF_CQ_RING);
    submissions = map(p.sq_entries * sizeof *submissions, IORING_OFF_SQES);
    sq_tail = (_Atomic unsigned *)(void *)(sq + p.sq_off.tail);
    sq_array = (unsigned *)(void *)(sq + p.sq_off.array);
    sq_mask = p.sq_entries - 1;
    cq_head = (_Atomic unsigned *)(void *)(cq + p.cq_off.head);
    cq_tail = (_Atomic unsigned *)(void *)(cq + p.cq_off.tail);
    completions = (struct io_uring_cqe *)(void *)(cq + p.cq_off.cqes);
    cq_mask = p.cq_entries - 1;
}

/* Submits what is queued; waits for completions if `least` is not 0. */
static void enter(unsigned least)
{
    int done = (int)syscall(SYS_io_uring_enter, ring_fd, queued, least, IORING_ENTER_GETEVENTS, NULL, 0);
    if (done < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY)
        fail("io_uring_enter");
    queued -= done < 0 ? 0 : (unsigned)done;
}

static struct io_uring_sqe *queue(enum operation operation, int fd)
{
    while (queued > sq_mask)
        enter(0);
    unsigned tail = atomic_load_explicit(sq_tail, memory_order_relaxed), at = tail & sq_mask;
    struct io_uring_sqe *sqe = memset(&submissions[at], 0, sizeof *sqe);
    sqe->fd = fd;
    sqe->user_data = (uint64_t)fd << 2 | operation;
    sq_array[at] = at;
    atomic_store_explicit(sq_tail, tail + 1, memory_order_release);
    queued++;
    return sqe;
}

static char *buffer_of(int fd) { return buffers + (size_t)fd * BUFFER; }

static void queue_accept(int listener)
{
    struct io_uring_sqe *sqe = queue(ACCEPT, listener);
    sqe->opcode = IORING_OP_ACCEPT;
    sqe->ioprio = IORING_ACCEPT_MULTISHOT;
}

static void queue_receive(int fd)
{
    struct io_uring_sqe *sqe = queue(RECEIVE, fd);
    sqe->opcode = IORING_OP_RECV;
    sqe->addr = (uintptr_t)buffer_of(fd);
    sqe->len = BUFFER;
}

static void queue_send(int fd)
{
    struct connection *c = &connections[fd];
    struct io_uring_sqe *sqe = queue(SEND, fd);
    sqe->opcode = IORING_OP_SEND;
    sqe->addr = (uintptr_t)(buffer_of(fd) + c->sent);
    sqe->len = c->length - c->sent;
    sqe->msg_flags = MSG_NOSIGNAL;
}

static void complete(enum operation operation, int fd, int result, unsigned flags)
{
    int one = 1;
    if (operation == ACCEPT) {
        if (result >= 0 && (size_t)result < descriptors) {
            setsockopt(result, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            queue_receive(result);
        } else if (result >= 0) {
            close(result);
        }
        if (!(flags & IORING_CQE_F_MORE))
            queue_accept(fd);
    } else if (result <= 0) {
        close(fd);
    } else if (operation == RECEIVE) {
        connections[fd] = (struct connection){.length = (unsigned)result};
        queue_send(fd);
    } else if ((connections[fd].sent += (unsigned)result) < connections[fd].length) {
        queue_send(fd);
    } else {
        queue_receive(fd);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rlimit files;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (argc != 2) {
        fprintf(stderr, "usage: uring_echo PORT\n");
        return 2;
    }
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    descriptors = files.rlim_cur < 32000 ? files.rlim_cur : 32000;
    connections = calloc(descriptors, sizeof *connections);
    buffers = mmap(NULL, descriptors * BUFFER, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    set_up_ring();
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (connections == NULL || buffers == MAP_FAILED ||
        bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4096) != 0)
        fail("uring_echo");
    queue_accept(listener);
    for (;;) {
        enter(1);
        unsigned head = atomic_load_explicit(cq_head, memory_order_relaxed);
        unsigned end = atomic_load_explicit(cq_tail, memory_order_acquire);
        for (; head != end; head++) {
            struct io_uring_cqe cqe = completions[head & cq_mask];
            atomic_store_explicit(cq_head, head + 1, memory_order_release);
            complete((enum operation)(cqe.user_data & 3), (int)(cqe.user_data >> 2), cqe.res, cqe.flags);
        }
    }
}
