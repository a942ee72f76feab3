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

size_t wire_size;
static size_t head_size, payload_size, stamp_size;
static uint8_t *template_plain; /* the payload as the server must send it back */
static uint8_t *template_wire;  /* header, key and masked payload */
static uint8_t key[4];
static size_t stamp_at;         /* of the stamp in the payload on the wire */
static uint8_t *inflated;       /* one message, payload_size + 1 bytes */
uint64_t wire_payload_in;

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
static void fill_json(uint8_t *out, size_t len)
{
    size_t at = stamp_size;
    for (uint32_t i = 0, x = 12345; at < len; i++) {
        char record[160];
        x = x * 1664525u + 1013904223u;
        int n = snprintf(record, sizeof record,
                         "%s{\"id\":%u,\"symbol\":\"%c%c%c\",\"price\":%u.%02u,\"volume\":%u,\"side\":\"%s\"}",
                         i == 0 ? "{\"trades\":[" : ",", 81234000 + i * 7, 'A' + x % 26, 'A' + (x >> 8) % 26,
                         'A' + (x >> 16) % 26, x >> 22, (x >> 4) % 100, x >> 18, x & 1 << 30 ? "buy" : "sell");
        size_t fits = (size_t)n < len - at ? (size_t)n : len - at;
        memcpy(out + at, record, fits);
        at += fits;
    }
}

/* The compressed message takes the place of the plain one in what is sent. */
static size_t pack_template(uint8_t *to)
{
    if (payload_size < STAMP || payload_size > SEND_SCRATCH / 4)
        fail("--deflate wants a --size of %d to %d", STAMP, SEND_SCRATCH / 4);
    inflated = malloc(payload_size + 1);
    size_t n = deflate_message(template_plain, payload_size, to, deflate_bound(payload_size));
    if (inflated == NULL || n == 0)
        fail("cannot compress the message");
    return n;
}

void wire_prepare(void)
{
    uint8_t *h, *body;
    size_t n = opt.size;
    payload_size = n;
    if (opt.raw) /* as many bytes on the way there as a frame has, none of them a header */
        payload_size += n < 126 ? 6 : n < 65536 ? 8 : 14;
    stamp_size = payload_size >= STAMP ? STAMP : 0;
    template_plain = calloc(1, payload_size + STAMP);
    body = template_plain;
    if (template_plain == NULL)
        fail("no memory for a message of %zu bytes", n);
    if (opt.deflate)
        fill_json(template_plain, payload_size);
    else if (opt.text)
        fill_text(template_plain, payload_size);
    else
        for (size_t i = 0; i < payload_size; i++)
            template_plain[i] = (uint8_t)(i * 131 + (i >> 8) * 29 + 7);
    if (getrandom(key, sizeof key, 0) != sizeof key || opt.raw)
        memset(key, opt.raw ? 0 : 0x5a, sizeof key);
    if (opt.deflate) {
        if ((body = malloc(deflate_bound(payload_size))) == NULL)
            fail("no memory for a message of %zu bytes", n);
        n = pack_template(body);
        stamp_at = STORED_HEAD;
    } else {
        n = payload_size;
    }

    head_size = opt.raw ? 0 : n < 126 ? 6 : n < 65536 ? 8 : 14;
    wire_size = head_size + n;
    template_wire = calloc(1, wire_size + STAMP);
    if (template_wire == NULL)
        fail("no memory for a message of %zu bytes", n);
    h = template_wire;
    if (!opt.raw) {
        *h++ = (uint8_t)((opt.deflate ? 0xc0 : 0x80) | (opt.text ? 1 : 2));
        *h++ = (uint8_t)(0x80 | (n < 126 ? n : n < 65536 ? 126 : 127));
        for (int shift = n < 126 ? -8 : n < 65536 ? 8 : 56; shift >= 0; shift -= 8)
            *h++ = (uint8_t)((uint64_t)n >> shift);
        memcpy(h, key, 4);
    }
    for (size_t i = 0; i < n; i++)
        template_wire[head_size + i] = body[i] ^ key[i & 3];
    if (body != template_plain)
        free(body);
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
    memcpy(out, template_wire, wire_size);
    put_stamp(id, sequence, out + head_size);
}

/* For large messages, which are not compressed: header and stamp in `out`, the rest stays where it is. */
void wire_head(uint32_t id, uint64_t sequence, uint8_t *out, size_t *len, const uint8_t **body)
{
    memcpy(out, template_wire, head_size);
    put_stamp(id, sequence, out + head_size);
    *len = head_size + stamp_size;
    *body = template_wire + *len;
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
    if (memcmp(template_plain + at, data, len) != 0)
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
    size_t n = inflate_message(c->packed, c->packed_len, inflated, payload_size + 1);
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

/* RFC 7692 section 7.1: both sides forget their history after each message. */
#define OFFER \
    "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n"

int wire_request(const struct conn *c, char *out, size_t cap)
{
    char channel[16] = "";
    if (opt.channels > 0)
        snprintf(channel, sizeof channel, "-%u", c->channel);
    return snprintf(out, cap,
                    "GET %s%s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    "Sec-WebSocket-Key: " KEY "\r\nSec-WebSocket-Version: 13\r\n%s\r\n",
                    opt.path, channel, opt.host, opt.port, opt.deflate ? OFFER : "");
}

bool wire_check_response(const char *head, size_t len)
{
    if (len <= 12 || memcmp(head, "HTTP/1.1 101", 12) != 0 || memmem(head, len, ACCEPT, 28) == NULL)
        return false;
    /* Without its own promise to forget, the server's answers would need a history we do not keep. */
    const char *promise = "server_no_context_takeover";
    return !opt.deflate || memmem(head, len, promise, strlen(promise)) != NULL;
}
