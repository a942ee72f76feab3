/* RFC 6455 as a client, and the content of the messages.
 *
 * All messages share one template; the first eight payload bytes are a stamp of connection and
 * sequence number in plain ASCII, so an answer that went to the wrong connection, came twice or
 * out of order is seen. The masking key is drawn once a run, not once a frame: the server cannot
 * tell, and the template is masked only once. Pings are read past and not answered: no cell lasts
 * as long as a server waits for a pong. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* The key and answer of RFC 6455 section 1.3, so that the answer can be checked without SHA-1. */
#define KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

/* All messages are made from one template, or, with --context, from many in turn: a server that remembers
 * the messages before must not find the same text among them. */
struct template {
    uint8_t *plain;             /* the payload as the server must send it back */
    uint8_t *wire;              /* header, key and masked payload */
    size_t head_size, wire_size; /* of header and key; of all */
};
enum { VARIANTS_MAX = 1024, VARIANTS_BYTES = 128 * 1024 }; /* of all: the largest window four times */
static struct template templates[VARIANTS_MAX];
static uint32_t variants = 1;
static size_t payload_size, stamp_size;
static uint8_t key[4];
static size_t stamp_at;         /* of the stamp in the payload on the wire */
static uint8_t *inflated;       /* one message, payload_size + 1 bytes */
uint64_t wire_payload_in;

static const struct template *template_of(uint32_t id, uint64_t sequence)
{
    return &templates[(id * 257 + sequence) % variants];
}

static void fill_text(uint8_t *out, size_t len)
{
    static const char *mixed[] = {"Fluss ", "gr\xc3\xbc\xc3\x9f""e ", "\xe6\xb3\xa2 ",
                                  "\xd0\xb2\xd0\xbe\xd0\xbb\xd0\xbd\xd0\xb0 ", "\xf0\x9f\x8c\x8a "};
    size_t at = stamp_size;
    for (size_t i = 0; opt.utf8 && at < len; i++) {
        size_t n = strlen(mixed[i % 5]);
        if (at + n > len)
            break;
        memcpy(out + at, mixed[i % 5], n);
        at += n;
    }
    for (; at < len; at++)
        out[at] = (uint8_t)('a' + at % 26);
}

/* What an API answers: few keys, many values; deflate makes about a third of it. */
static void fill_json(uint8_t *out, size_t len, uint32_t variant)
{
    size_t at = stamp_size;
    for (uint32_t i = 0, x = 12345 + variant * 7919; at < len; i++) {
        char record[160];
        x = x * 1664525u + 1013904223u;
        int n = snprintf(record, sizeof record,
                         "%s{\"id\":%u,\"symbol\":\"%c%c%c\",\"price\":%u.%02u,\"volume\":%u,\"side\":\"%s\"}",
                         i == 0 ? "{\"trades\":[" : ",", 81234000 + variant * 131 + i * 7, 'A' + x % 26, 'A' + (x >> 8) % 26,
                         'A' + (x >> 16) % 26, x >> 22, (x >> 4) % 100, x >> 18, x & 1 << 30 ? "buy" : "sell");
        size_t fits = (size_t)n < len - at ? (size_t)n : len - at;
        memcpy(out + at, record, fits);
        at += fits;
    }
}

static void fill(uint8_t *out, size_t len, uint32_t variant)
{
    if (opt.deflate)
        fill_json(out, len, variant);
    else if (opt.text)
        fill_text(out, len);
    else
        for (size_t i = 0; i < len; i++)
            out[i] = (uint8_t)(i * 131 + (i >> 8) * 29 + 7);
}

/* Header, key and masked payload; `body` may be compressed. */
static void frame(struct template *t, const uint8_t *body, size_t n)
{
    size_t head = t->head_size = opt.raw ? 0 : n < 126 ? 6 : n < 65536 ? 8 : 14;
    t->wire_size = head + n;
    uint8_t *h = t->wire = calloc(1, t->wire_size + STAMP);
    if (h == NULL)
        fail("no memory for a message of %zu bytes", n);
    if (!opt.raw) {
        *h++ = (uint8_t)((opt.deflate ? 0xc0 : 0x80) | (opt.text ? 1 : 2));
        *h++ = (uint8_t)(0x80 | (n < 126 ? n : n < 65536 ? 126 : 127));
        for (int shift = n < 126 ? -8 : n < 65536 ? 8 : 56; shift >= 0; shift -= 8)
            *h++ = (uint8_t)((uint64_t)n >> shift);
        memcpy(h, key, 4);
    }
    for (size_t i = 0; i < n; i++)
        t->wire[head + i] = body[i] ^ key[i & 3];
}

/* The compressed message takes the place of the plain one in what is sent. */
static void pack(struct template *t)
{
    size_t most = deflate_bound(payload_size);
    uint8_t *packed = malloc(most);
    size_t n = packed == NULL ? 0 : deflate_message(t->plain, payload_size, packed, most);
    if (n == 0)
        fail("cannot compress the message");
    frame(t, packed, n);
    free(packed);
}

void wire_prepare(void)
{
    payload_size = opt.size;
    if (opt.raw) /* as many bytes on the way there as a frame has, none of them a header */
        payload_size += opt.size < 126 ? 6 : opt.size < 65536 ? 8 : 14;
    stamp_size = payload_size >= STAMP ? STAMP : 0;
    if (getrandom(key, sizeof key, 0) != sizeof key || opt.raw)
        memset(key, opt.raw ? 0 : 0x5a, sizeof key);
    if (opt.deflate) {
        if (payload_size < STAMP || payload_size > SEND_SCRATCH / 4)
            fail("--deflate wants a --size of %d to %d", STAMP, SEND_SCRATCH / 4);
        stamp_at = STORED_HEAD;
        inflated = malloc(payload_size + 1);
    }
    if (opt.context)
        variants = (uint32_t)(VARIANTS_BYTES / payload_size) + 1;
    if (variants > VARIANTS_MAX)
        variants = VARIANTS_MAX;
    for (uint32_t i = 0; i < variants; i++) {
        struct template *t = &templates[i];
        t->plain = calloc(1, payload_size + STAMP);
        if (t->plain == NULL || (opt.deflate && inflated == NULL))
            fail("no memory for a message of %zu bytes", opt.size);
        fill(t->plain, payload_size, i);
        if (opt.deflate)
            pack(t);
        else
            frame(t, t->plain, payload_size);
    }
}

size_t wire_size(uint32_t id, uint64_t sequence)
{
    return template_of(id, sequence)->wire_size;
}

static uint64_t stamp(uint32_t id, uint64_t sequence)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
    uint64_t value = ((uint64_t)(id & 0xfffff) << 28) | (sequence & 0xfffffff), out = 0;
    for (int i = 0; i < STAMP; i++)
        out |= (uint64_t)(uint8_t)digits[(value >> (6 * i)) & 63] << (8 * i);
    return out; /* little endian, as everywhere this runs */
}

static void put_stamp(uint32_t id, uint64_t sequence, uint8_t *payload)
{
    uint64_t s = stamp(id, sequence);
    for (size_t i = 0; i < stamp_size; i++)
        payload[stamp_at + i] = (uint8_t)(s >> (8 * i)) ^ key[(stamp_at + i) & 3];
}

void wire_build(uint32_t id, uint64_t sequence, uint8_t *out)
{
    const struct template *t = template_of(id, sequence);
    memcpy(out, t->wire, t->wire_size);
    put_stamp(id, sequence, out + t->head_size);
}

/* For large messages, which are not compressed: header and stamp in `out`, the rest stays where it is. */
void wire_head(uint32_t id, uint64_t sequence, uint8_t *out, size_t *len, const uint8_t **body)
{
    const struct template *t = template_of(id, sequence);
    memcpy(out, t->wire, t->head_size);
    put_stamp(id, sequence, out + t->head_size);
    *len = t->head_size + stamp_size;
    *body = t->wire + *len;
}

static void verify(struct conn *c, const uint8_t *data, size_t len)
{
    size_t at = (size_t)c->offset;
    if (at + len > payload_size)
        fail("connection %u: an answer is longer than the %zu bytes sent", c->id, payload_size);
    c->offset += len;
    if (at < stamp_size) {
        uint64_t s = stamp(c->from, c->received);
        size_t n = stamp_size - at < len ? stamp_size - at : len;
        if (memcmp((uint8_t *)&s + at, data, n) != 0)
            fail("connection %u: answer %llu is not the expected message", c->id,
                 (unsigned long long)c->received);
        data += n, at += n, len -= n;
    }
    if (memcmp(template_of(c->from, c->received)->plain + at, data, len) != 0)
        fail("connection %u: the content of answer %llu is damaged", c->id,
             (unsigned long long)c->received);
}

/* Bytes of the frame header, as far as its first two bytes tell. */
static size_t head_needed(const struct conn *c)
{
    uint8_t length = c->head_len < 2 ? 0 : c->head[1] & 127;
    return length == 126 ? 4 : length == 127 ? 10 : 2;
}

static void begin_frame(struct conn *c)
{
    const uint8_t *h = c->head;
    uint8_t opcode = h[0] & 15, expected = c->in_message ? 0 : opt.text ? 1 : 2;
    /* RFC 7692 section 6: the first frame of a message says whether it is compressed. */
    bool packed = opt.deflate && (h[0] & 0x40) && opcode > 0 && opcode < 8;
    if (h[0] & (packed ? 0x30 : 0x70) || h[1] & 0x80)
        fail("connection %u: reserved or mask bit set in a server's frame", c->id);
    c->remaining = h[1];
    if (h[1] >= 126) {
        c->remaining = 0;
        for (int i = 2; i < c->head_len; i++)
            c->remaining = c->remaining << 8 | h[i];
    }
    if (opcode == 8)
        fail("connection %u: the server closed it", c->id);
    c->control = opcode > 8;
    if (!c->control) {
        if (opcode != expected)
            fail("connection %u: opcode %u instead of %u", c->id, opcode, expected);
        if (!c->in_message) {
            c->compressed = packed;
            c->packed_len = 0;
            if (opt.deflate && !packed)
                fail("connection %u: an answer is not compressed", c->id);
        }
        c->in_message = true;
        c->final = h[0] >> 7;
        wire_payload_in += c->remaining;
    }
    c->in_frame = true;
    c->head_len = 0;
}

static void keep_packed(struct conn *c, const uint8_t *data, size_t len)
{
    size_t most = deflate_bound(payload_size);
    if (c->packed == NULL && (c->packed = malloc(most)) == NULL)
        fail("no memory for compressed answers");
    if (c->packed_len + len > most)
        fail("connection %u: a compressed answer is far longer than its message", c->id);
    memcpy(c->packed + c->packed_len, data, len);
    c->packed_len += len;
}

static void unpack(struct conn *c)
{
    size_t n = inflate_message(&c->inflater, c->packed, c->packed_len, inflated, payload_size + 1);
    if (n == SIZE_MAX)
        fail("connection %u: answer %llu does not inflate", c->id, (unsigned long long)c->received);
    verify(c, inflated, n);
}

int wire_consume(struct conn *c, const uint8_t *data, size_t len)
{
    int done = 0;
    while (len > 0 || (c->in_frame && c->remaining == 0)) {
        if (!c->in_frame && opt.raw) {
            c->in_frame = c->final = true;
            c->remaining = payload_size;
        } else if (!c->in_frame) {
            while (len > 0 && c->head_len < head_needed(c))
                c->head[c->head_len++] = *data++, len--;
            if (c->head_len < head_needed(c))
                break;
            begin_frame(c);
        }
        size_t n = c->remaining < len ? (size_t)c->remaining : len;
        if (!c->control && c->compressed)
            keep_packed(c, data, n);
        else if (!c->control)
            verify(c, data, n);
        data += n, len -= n, c->remaining -= n;
        if (c->remaining > 0)
            break;
        c->in_frame = false;
        if (c->control || !c->final) {
            c->control = false;
            continue;
        }
        if (c->compressed)
            unpack(c);
        if (c->offset != payload_size)
            fail("connection %u: an answer has %llu bytes instead of %zu", c->id,
                 (unsigned long long)c->offset, payload_size);
        c->offset = 0;
        c->in_message = false;
        c->received++;
        done++;
    }
    return done;
}

/* RFC 7692 section 7.1: both sides forget their history after each message; or, as browsers offer it, as
 * the server likes. */
#define OFFER \
    "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n"
#define OFFER_CONTEXT "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"

int wire_request(const struct conn *c, char *out, size_t cap)
{
    char channel[16] = "";
    if (opt.channels > 0)
        snprintf(channel, sizeof channel, "-%u", c->channel);
    return snprintf(out, cap,
                    "GET %s%s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    "Sec-WebSocket-Key: " KEY "\r\nSec-WebSocket-Version: 13\r\n%s\r\n",
                    opt.path, channel, opt.host, opt.port, opt.context ? OFFER_CONTEXT : opt.deflate ? OFFER : "");
}

bool wire_check_response(const char *head, size_t len)
{
    if (len <= 12 || memcmp(head, "HTTP/1.1 101", 12) != 0 || memmem(head, len, ACCEPT, 28) == NULL)
        return false;
    /* Without its own promise to forget, the server's answers would need a history we do not keep. */
    const char *promise = "server_no_context_takeover", *name = "permessage-deflate";
    if (opt.context) /* and with it there is no context to measure */
        return memmem(head, len, name, strlen(name)) != NULL && memmem(head, len, promise, strlen(promise)) == NULL;
    return !opt.deflate || memmem(head, len, promise, strlen(promise)) != NULL;
}
