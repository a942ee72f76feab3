/* permessage-deflate (RFC 7692), as cheap as a referee can be.
 *
 * What is sent is compressed once. A message differs from the next one only in its stamp, and that lies
 * in a stored block of its own before the compressed rest: it can be overwritten without compressing
 * again, and any inflater reads the whole as one stream. Every answer is inflated with zlib.
 *
 * With --context the server's messages may refer to those before them: each connection has an inflater of
 * its own that is never reset. Ours refer to nothing even then, which is always allowed. */
#include "loadgen.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* The end of a flushed stream, which is not sent (RFC 7692 section 7.2.1). */
static const uint8_t tail[4] = {0, 0, 0xff, 0xff};

size_t deflate_bound(size_t len)
{
    return len + len / 8 + 256;
}

size_t deflate_message(const uint8_t *plain, size_t len, uint8_t *out, size_t cap)
{
    z_stream z = {0};
    /* RFC 1951 section 3.2.4: not the last block, stored, LEN and its complement. */
    const uint8_t stored[STORED_HEAD] = {0, STAMP, 0, (uint8_t)~STAMP, 0xff};
    memcpy(out, stored, sizeof stored);
    memcpy(out + sizeof stored, plain, STAMP);
    size_t head = sizeof stored + STAMP;
    /* A server that keeps a context may want a small one of us: 1 KB is all we look back then. */
    int bits = opt.context ? 10 : 15;
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -bits, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return 0;
    z.next_in = (Bytef *)(plain + STAMP);
    z.avail_in = (uInt)(len - STAMP);
    z.next_out = out + head;
    z.avail_out = (uInt)(cap - head);
    int ended = deflate(&z, Z_SYNC_FLUSH);
    size_t n = z.total_out;
    bool whole = ended == Z_OK && z.avail_in == 0 && z.avail_out > 0 && n >= sizeof tail;
    deflateEnd(&z);
    return whole ? head + n - sizeof tail : 0;
}

static z_stream *inflater_of(void **own)
{
    static void *shared;
    void **at = opt.context ? own : &shared;
    if (*at != NULL)
        return opt.context || inflateReset(*at) == Z_OK ? *at : NULL;
    *at = calloc(1, sizeof(z_stream));
    return *at != NULL && inflateInit2((z_stream *)*at, -15) == Z_OK ? *at : NULL;
}

size_t inflate_message(void **inflater, const uint8_t *packed, size_t len, uint8_t *out, size_t cap)
{
    z_stream *z = inflater_of(inflater);
    if (z == NULL)
        return SIZE_MAX;
    uLong before = z->total_out;
    z->next_out = out;
    z->avail_out = (uInt)cap;
    z->next_in = (Bytef *)packed;
    z->avail_in = (uInt)len;
    int code = inflate(z, Z_SYNC_FLUSH);
    if (code == Z_OK || code == Z_BUF_ERROR) {
        z->next_in = (Bytef *)tail;
        z->avail_in = sizeof tail;
        code = inflate(z, Z_SYNC_FLUSH);
    }
    size_t n = (size_t)(z->total_out - before);
    /* The last block was marked as such, which section 7.2.3.3 allows; the context outlives it, which zlib
     * does with it only by hand. */
    if (code == Z_STREAM_END && opt.context) {
        Bytef window[32768];
        uInt kept = sizeof window;
        if (inflateGetDictionary(z, window, &kept) != Z_OK || inflateReset(z) != Z_OK ||
            inflateSetDictionary(z, window, kept) != Z_OK)
            return SIZE_MAX;
    }
    /* Z_BUF_ERROR: nothing was left to do. */
    return code == Z_OK || code == Z_BUF_ERROR || code == Z_STREAM_END ? n : SIZE_MAX;
}

void inflate_forget(void **inflater)
{
    if (*inflater != NULL)
        inflateEnd(*inflater);
    free(*inflater);
    *inflater = NULL;
}
