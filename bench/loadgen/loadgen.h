/* A WebSocket load generator for one core: the independent referee of the comparison.
 *
 * It shares no code with Throng, speaks RFC 6455 as a client (upgrade, masked frames), and checks
 * length and content of every answer, so a server that drops, mixes up or damages messages fails
 * instead of looking fast. One thread, one epoll set, no allocation while it measures.
 *
 *   loadgen.c    options and the printed JSON      modes.c        echo, open loop, connect, idle
 *   wire.c       handshake, frames, verification   subscribers.c  subscribers in processes of their own
 *   deflate.c    permessage-deflate (RFC 7692)     broadcast.c, channels.c, slow.c  a mode each
 *   net.c        sockets, epoll, reading, writing
 *   measure.c    clocks, memory, histogram
 *   common.c     the options themselves, failures
 */
#ifndef LOADGEN_H
#define LOADGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { HEAD_MAX = 14, STAMP = 8, RECV_BUFFER = 512 * 1024, SEND_SCRATCH = 64 * 1024, SERVERS_MAX = 16 };

struct options {
    const char *mode, *host, *path;
    int port;
    bool raw;                /* plain TCP echo: the same bytes on the wire, no protocol */
    bool text, utf8;         /* text messages; utf8: with two-, three- and four-byte characters */
    bool deflate;            /* messages are compressed, without context takeover */
    bool context;            /* the server's messages refer to those before; each message is another */
    int connections;
    int processes;           /* broadcast: generator processes that hold the subscribers */
    int channels;            /* so many channels PATH-0, PATH-1, ... taken in turn; 0: PATH itself */
    int receive_buffer;      /* SO_RCVBUF, set before connecting; 0: the kernel's choice */
    long references;         /* slow: how many messages must wait inside the server */
    size_t size;             /* payload bytes of a message */
    int pipeline;            /* messages written at once; the next ones follow when all are answered */
    double rate;             /* open: messages a second on each connection; channels: of all */
    double warmup, duration; /* seconds */
    double hold;             /* idle: seconds to hold the connections */
    bool silent;             /* idle: PATH is a channel's, where nobody gets its own message back */
    bool touch;              /* idle: echo messages on every connection first ... */
    int touches;             /* ... so many */
    long messages;           /* echo: stop after so many answers instead of by time; 0: by time */
    int publishes;           /* broadcast: how many, one after the other */
    pid_t server[SERVERS_MAX]; /* whose CPU and memory to read, summed */
    int servers;             /* how many; 0: nobody's */
    pid_t kernel_thread[SERVERS_MAX]; /* whose CPU counts as the servers', too */
    int kernel_threads;
};
extern struct options opt;

enum state { CONNECTING, UPGRADING, OPEN, CLOSED };

struct conn {
    int fd;
    uint32_t id;             /* stamped on what it sends; also chooses its source address */
    uint32_t from;           /* whose stamp is on what it gets; its own id for an echo */
    uint32_t channel;        /* with opt.channels: which one it joins */
    uint8_t state;
    bool want_write;         /* EPOLLOUT is armed */
    bool in_frame, in_message, final, control, compressed;
    uint8_t head_len, head[HEAD_MAX];
    uint64_t remaining;      /* payload bytes of the current frame still to come */
    uint64_t offset;         /* bytes of the current message already verified */
    uint64_t queued;         /* messages asked for */
    uint64_t sent;           /* messages written completely */
    uint64_t received;       /* messages answered completely */
    size_t send_offset;      /* bytes of message number `sent` already written */
    void *inflater;          /* context: its own, from the upgrade on */
    uint8_t *packed;         /* a compressed message so far; of its own, kept for the next */
    size_t packed_len;
};

/* wire.c */
void wire_prepare(void);
size_t wire_size(uint32_t id, uint64_t sequence); /* bytes of the message as the client sends it */
void wire_build(uint32_t id, uint64_t sequence, uint8_t *out); /* so many bytes */
void wire_head(uint32_t id, uint64_t sequence, uint8_t *out, size_t *len, const uint8_t **body);
int wire_consume(struct conn *c, const uint8_t *data, size_t len); /* messages completed */
int wire_request(const struct conn *c, char *out, size_t cap);
bool wire_check_response(const char *head, size_t len);
extern uint64_t wire_payload_in; /* payload bytes of data frames, as they came */

/* deflate.c */
size_t deflate_bound(size_t len);
size_t deflate_message(const uint8_t *plain, size_t len, uint8_t *out, size_t cap);  /* 0: failed */
/* SIZE_MAX: failed. With opt.context, `inflater` is the connection's own, else nothing is kept. */
size_t inflate_message(void **inflater, const uint8_t *packed, size_t len, uint8_t *out, size_t cap);
void inflate_forget(void **inflater);
enum { STORED_HEAD = 5 };        /* bytes before the stamp in what deflate_message makes */

/* net.c */
struct events {
    void (*opened)(struct conn *c);             /* connected and upgraded */
    void (*answered)(struct conn *c, int count); /* count messages arrived and were right */
};
extern struct conn *conns;
extern int net_source;         /* 127.0.0.1 + this is the first source address */
extern bool net_stamped;       /* note when the kernel received what is read */
extern int64_t net_last_arrival; /* that, the latest one: CLOCK_REALTIME, ns */
void net_init(struct events on, int capacity);
void net_connect(struct conn *c);
void net_connect_all(int count);               /* and wait until all are open */
void net_send(struct conn *c, int count);      /* queue count messages and write what fits */
void net_reset(struct conn *c);                /* close with RST: leaves no TIME_WAIT behind */
void net_mute(struct conn *c);                 /* it is not read any more ... */
void net_hear(struct conn *c);                 /* ... and read again, with an ordinary buffer */
void net_poll(int timeout_ms);

/* measure.c */
struct usage { double wall, server, self; };   /* seconds */
struct memory { long rss, anonymous; };        /* bytes */
double now_s(void);
int64_t now_ns(void);
int64_t wall_ns(void);                         /* CLOCK_REALTIME, as the kernel's receive stamps */
void sleep_ms(int ms);                         /* off the CPU, without reading */
struct usage usage_now(void);
struct memory memory_now(void);                /* of all servers */
void memory_forget_peak(void);
long memory_peak(void);                        /* bytes, since it was forgotten */
void wait_until_servers_rest(void);
long bytes_in_kernel(void);                    /* sent by the servers, not yet read by us */
void hist_record(int64_t ns);
double hist_quantile(double q);                /* nanoseconds */
uint64_t hist_count(void);

/* modes.c and the files named after a mode */
void run_echo(void), run_open(void), run_churn(void), run_idle(void);
void run_broadcast(void), run_channels(void), run_slow(void);
void poll_for(double seconds);
void print_usage(struct usage from, struct usage to, long messages);
void print_latency(void);

/* subscribers.c: subscribers in child processes, blocked until they have to read. */
enum { PUBLISHER = 0xfffff };                  /* the stamp of whatever is published */
void subscribers_start(void);                  /* before any socket of the parent */
void subscribers_connect(void);
int64_t subscribers_read(long messages_each);  /* returns the last arrival */
void subscribers_end(void);

extern void (*fail_instead)(const char *why);  /* in a child: how to tell the parent */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
