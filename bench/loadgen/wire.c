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
static bool from_publisher;
static uint32_t publisher;

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

void wire_prepare(void)
{
    uint8_t *h;
    size_t n = opt.size;
    head_size = n < 126 ? 6 : n < 65536 ? 8 : 14;
    wire_size = head_size + n;
    payload_size = n;
    if (opt.raw) { /* as many bytes on the way there as a frame has, none of them a header */
        payload_size = wire_size;
        head_size = 0;
    }
    stamp_size = payload_size >= STAMP ? STAMP : 0;
    template_plain = calloc(1, payload_size + STAMP);
    template_wire = calloc(1, wire_size + STAMP);
    if (template_plain == NULL || template_wire == NULL)
        fail("no memory for a message of %zu bytes", n);
    if (opt.text)
        fill_text(template_plain, payload_size);
    else
        for (size_t i = 0; i < payload_size; i++)
            template_plain[i] = (uint8_t)(i * 131 + (i >> 8) * 29 + 7);
    if (getrandom(key, sizeof key, 0) != sizeof key || opt.raw)
        memset(key, opt.raw ? 0 : 0x5a, sizeof key);

    h = template_wire;
    if (!opt.raw) {
        *h++ = opt.text ? 0x81 : 0x82;
        *h++ = (uint8_t)(0x80 | (n < 126 ? n : n < 65536 ? 126 : 127));
        for (int shift = n < 126 ? -8 : n < 65536 ? 8 : 56; shift >= 0; shift -= 8)
            *h++ = (uint8_t)((uint64_t)n >> shift);
        memcpy(h, key, 4);
    }
    for (size_t i = 0; i < payload_size; i++)
        template_wire[head_size + i] = template_plain[i] ^ key[i & 3];
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
    uint32_t k;
    uint64_t s = stamp(id, sequence);
    memcpy(&k, key, 4);
    s ^= (uint64_t)k << 32 | k;
    memcpy(payload, &s, stamp_size);
}

void wire_build(uint32_t id, uint64_t sequence, uint8_t *out)
{
    memcpy(out, template_wire, wire_size);
    put_stamp(id, sequence, out + head_size);
}

/* For large messages: header and stamp in `out`, the shared rest stays where it is. */
void wire_head(uint32_t id, uint64_t sequence, uint8_t *out, size_t *len, const uint8_t **body)
{
    memcpy(out, template_wire, head_size);
    put_stamp(id, sequence, out + head_size);
    *len = head_size + stamp_size;
    *body = template_wire + *len;
}

void wire_expect_from(uint32_t id)
{
    from_publisher = true;
    publisher = id;
}

static void verify(struct conn *c, const uint8_t *data, size_t len)
{
    size_t at = (size_t)c->offset;
    if (at + len > payload_size)
        fail("connection %u: an answer is longer than the %zu bytes sent", c->id, payload_size);
    c->offset += len;
    if (at < stamp_size) {
        uint64_t s = stamp(from_publisher ? publisher : c->id, c->received);
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
    if (h[0] & 0x70 || h[1] & 0x80)
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
        c->in_message = true;
        c->final = h[0] >> 7;
    }
    c->in_frame = true;
    c->head_len = 0;
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
        if (!c->control)
            verify(c, data, n);
        data += n, len -= n, c->remaining -= n;
        if (c->remaining > 0)
            break;
        c->in_frame = false;
        if (c->control || !c->final) {
            c->control = false;
            continue;
        }
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

int wire_request(char *out, size_t cap)
{
    return snprintf(out, cap,
                    "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    "Sec-WebSocket-Key: " KEY "\r\nSec-WebSocket-Version: 13\r\n\r\n",
                    opt.path, opt.host, opt.port);
}

bool wire_check_response(const char *head, size_t len)
{
    return len > 12 && memcmp(head, "HTTP/1.1 101", 12) == 0 && memmem(head, len, ACCEPT, 28) != NULL;
}
