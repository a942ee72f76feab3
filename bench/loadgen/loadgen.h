/* A WebSocket load generator for one core: the independent referee of the comparison.
 *
 * It shares no code with Throng, speaks RFC 6455 as a client (upgrade, masked frames), and checks
 * length and content of every answer, so a server that drops, mixes up or damages messages fails
 * instead of looking fast. One thread, one epoll set, no allocation while it measures.
 *
 *   loadgen.c  options and the printed JSON      modes.c    what is done with the connections
 *   wire.c     handshake, frames, verification   net.c      sockets, epoll, reading and writing
 *   measure.c  clocks, memory, histogram
 */
#ifndef LOADGEN_H
#define LOADGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { HEAD_MAX = 14, STAMP = 8, RECV_BUFFER = 512 * 1024, SEND_SCRATCH = 64 * 1024 };

struct options {
    const char *mode, *host, *path;
    int port;
    bool raw;                /* plain TCP echo: the same bytes on the wire, no protocol */
    bool text, utf8;         /* text messages; utf8: with two-, three- and four-byte characters */
    int connections;
    size_t size;             /* payload bytes of a message */
    int pipeline;            /* messages written at once; the next ones follow when all are answered */
    double rate;             /* open loop: messages a second on each connection */
    double warmup, duration; /* seconds */
    double hold;             /* idle: seconds to hold the connections */
    bool touch;              /* idle: echo one message on every connection first */
    long messages;           /* echo: stop after so many answers instead of by time; 0: by time */
    int publishes;           /* broadcast: how many, one after the other */
    pid_t server;            /* whose CPU and memory to read; 0: nobody's */
};
extern struct options opt;

enum state { CONNECTING, UPGRADING, OPEN, CLOSED };

struct conn {
    int fd;
    uint32_t id;
    uint8_t state;
    bool want_write;         /* EPOLLOUT is armed */
    bool in_frame, in_message, final, control;
    uint8_t head_len, head[HEAD_MAX];
    uint64_t remaining;      /* payload bytes of the current frame still to come */
    uint64_t offset;         /* bytes of the current message already verified */
    uint64_t queued;         /* messages asked for */
    uint64_t sent;           /* messages written completely */
    uint64_t received;       /* messages answered completely */
    size_t send_offset;      /* bytes of message number `sent` already written */
};

/* wire.c */
extern size_t wire_size;     /* bytes of one message as the client sends it */
void wire_prepare(void);
void wire_build(uint32_t id, uint64_t sequence, uint8_t *out); /* wire_size bytes */
void wire_head(uint32_t id, uint64_t sequence, uint8_t *out, size_t *len, const uint8_t **body);
int wire_consume(struct conn *c, const uint8_t *data, size_t len); /* messages completed */
void wire_expect_from(uint32_t publisher); /* broadcast: answers carry this connection's stamp */
int wire_request(char *out, size_t cap);
bool wire_check_response(const char *head, size_t len);

/* net.c */
struct events {
    void (*opened)(struct conn *c);             /* connected and upgraded */
    void (*answered)(struct conn *c, int count); /* count messages arrived and were right */
};
extern struct conn *conns;
void net_init(struct events on, int capacity);
void net_connect(struct conn *c);
void net_connect_all(int count);               /* and wait until all are open */
void net_send(struct conn *c, int count);      /* queue count messages and write what fits */
void net_reset(struct conn *c);                /* close with RST: leaves no TIME_WAIT behind */
void net_poll(int timeout_ms);

/* measure.c */
struct usage { double wall, server, self; };   /* seconds */
struct memory { long rss, anonymous; };        /* bytes */
double now_s(void);
int64_t now_ns(void);
struct usage usage_now(void);
struct memory memory_of(pid_t pid);
void hist_record(int64_t ns);
double hist_quantile(double q);                /* nanoseconds */
uint64_t hist_count(void);

/* modes.c */
void run_echo(void), run_open(void), run_churn(void), run_idle(void), run_broadcast(void);

void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
