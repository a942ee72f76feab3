/* Options, dispatch, and the JSON object around the result. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const char usage[] =
    "usage: loadgen MODE --port PORT [options]\n"
    "\n"
    "modes\n"
    "  echo        closed loop: every connection writes --pipeline messages, waits for all answers\n"
    "  open        open loop at --rate messages a second and connection; latency from the planned time\n"
    "  connect     connect, upgrade, one echo, reset, again\n"
    "  idle        open --connections, hold them, measure the server's memory and CPU\n"
    "  broadcast   --connections subscribers; one publishes, until the last one has it\n"
    "  channels    open loop: --rate publishes a second over --channels of --connections subscribers\n"
    "  slow        --connections subscribers that do not read, until --references messages wait\n"
    "\n"
    "options (default)\n"
    "  --host ADDRESS (127.0.0.1)   --port PORT          --path PATH (/echo)\n"
    "  --connections N (100)        --size BYTES (100)   --pipeline P (1)     --rate R (10)\n"
    "  --warmup S (0.5)             --duration S (1.5)   --hold S (2)         --publishes N (5)\n"
    "  --text   text messages       --utf8   text with multi-byte characters\n"
    "  --touch  idle: one echo on every connection first; --touches N: so many, all connections in turn\n"
    "  --silent idle: the path is a channel's, which does not echo\n"
    "  --processes N (1)     broadcast: generator processes for the subscribers\n"
    "  --channels N (0)      paths PATH-0 ... PATH-(N-1) in turn instead of PATH\n"
    "  --receive-buffer B    SO_RCVBUF of each connection\n"
    "  --references N (1000000)  slow: messages that must wait inside the server\n"
    "  --deflate  compressed text (permessage-deflate, no context takeover)\n"
    "  --context  the same with the server's context, and another text in every message\n"
    "  --messages N  echo: stop after N answers instead of by time\n"
    "  --raw    no WebSocket: the same number of bytes to a bare TCP echo\n"
    "  --server-pid PID  read this process's CPU clock and memory; several are summed, and broadcast\n"
    "                    finds a publisher for each of them behind the one port\n"
    "  --kernel-thread PID  add this thread's CPU to the servers', such as ksoftirqd's of their core\n"
    "\n"
    "Prints one JSON object. Exit code 1 if any answer is missing, wrong or late, 2 for bad usage.\n";

static void bad_usage(const char *why, const char *what)
{
    fprintf(stderr, "loadgen: %s%s (--help shows the options)\n", why, what);
    exit(2);
}

static double number(const char *name, const char *text, double least, double most)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (*text == 0 || *end != 0 || errno != 0 || !(value >= least && value <= most))
        bad_usage("not a usable value for --", name);
    return value;
}

static void parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"host", 1, 0, 'h'},     {"port", 1, 0, 'p'},      {"path", 1, 0, 'a'},   {"connections", 1, 0, 'c'},
        {"size", 1, 0, 's'},     {"pipeline", 1, 0, 'P'},  {"rate", 1, 0, 'r'},   {"warmup", 1, 0, 'w'},
        {"duration", 1, 0, 'd'}, {"hold", 1, 0, 'o'},      {"touch", 0, 0, 't'},    {"silent", 0, 0, 'i'},  {"text", 0, 0, 'x'},
        {"utf8", 0, 0, 'u'},     {"messages", 1, 0, 'm'},  {"raw", 0, 0, 'R'},    {"publishes", 1, 0, 'b'},
        {"server-pid", 1, 0, 'S'}, {"help", 0, 0, 'H'},    {"processes", 1, 0, 'y'},
        {"channels", 1, 0, 'n'}, {"receive-buffer", 1, 0, 'B'}, {"references", 1, 0, 'f'},
        {"kernel-thread", 1, 0, 'K'}, {"deflate", 0, 0, 'z'},  {"context", 0, 0, 'X'},  {"touches", 1, 0, 'T'},
        {0, 0, 0, 0}};
    int o, index = 0;
    while ((o = getopt_long(argc, argv, "", known, &index)) != -1) {
        const char *name = o == '?' ? "" : known[index].name;
        switch (o) {
        case 'h': opt.host = optarg; break;
        case 'a': opt.path = optarg; break;
        case 'p': opt.port = (int)number(name, optarg, 1, 65535); break;
        case 'c': opt.connections = (int)number(name, optarg, 1, 1000000); break;
        case 's': opt.size = (size_t)number(name, optarg, 0, 1 << 30); break;
        case 'P': opt.pipeline = (int)number(name, optarg, 1, 100000); break;
        case 'r': opt.rate = number(name, optarg, 1e-3, 1e7); break;
        case 'w': opt.warmup = number(name, optarg, 0, 3600); break;
        case 'd': opt.duration = number(name, optarg, 1e-3, 3600); break;
        case 'o': opt.hold = number(name, optarg, 1e-3, 3600); break;
        case 'm': opt.messages = (long)number(name, optarg, 1, 1e12); break;
        case 'b': opt.publishes = (int)number(name, optarg, 1, 100000); break;
        case 'S':
            if (opt.servers == SERVERS_MAX)
                bad_usage("too many --", name);
            opt.server[opt.servers++] = (pid_t)number(name, optarg, 1, 1 << 30);
            break;
        case 'K':
            if (opt.kernel_threads == SERVERS_MAX)
                bad_usage("too many --", name);
            opt.kernel_thread[opt.kernel_threads++] = (pid_t)number(name, optarg, 1, 1 << 30);
            break;
        case 'y': opt.processes = (int)number(name, optarg, 1, 64); break;
        case 'n': opt.channels = (int)number(name, optarg, 1, 100000); break;
        case 'B': opt.receive_buffer = (int)number(name, optarg, 1, 1 << 30); break;
        case 'f': opt.references = (long)number(name, optarg, 1, 1e9); break;
        case 'z': opt.text = opt.deflate = true; break;
        case 'X': opt.text = opt.deflate = opt.context = true; break;
        case 'T': opt.touches = (int)number(name, optarg, 1, 1e6); opt.touch = true; break;
        case 'i': opt.silent = true; break;
        case 't': opt.touch = true; break;
        case 'x': opt.text = true; break;
        case 'u': opt.text = opt.utf8 = true; break;
        case 'R': opt.raw = true; break;
        case 'H': fputs(usage, stdout); exit(0);
        default: exit(2);
        }
    }
    if (optind + 1 != argc)
        bad_usage("exactly one mode is wanted", "");
    opt.mode = argv[optind];
    if (opt.port == 0)
        bad_usage("--port is missing", "");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"echo", run_echo}, {"open", run_open}, {"connect", run_churn},
                 {"idle", run_idle}, {"broadcast", run_broadcast}, {"channels", run_channels},
                 {"slow", run_slow}};
    struct rlimit files;
    parse(argc, argv);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(opt.mode, modes[i].name) == 0) {
            printf("{\"mode\": \"%s\", \"connections\": %d, \"size\": %zu, \"pipeline\": %d, ", opt.mode,
                   opt.connections, opt.size, opt.pipeline);
            wire_prepare();
            modes[i].run();
            printf("}\n");
            return 0;
        }
    bad_usage("no mode ", opt.mode);
}
