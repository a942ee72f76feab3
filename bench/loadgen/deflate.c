/* permessage-deflate (RFC 7692) without context takeover, as cheap as a referee can be.
 *
 * What is sent is compressed once. A message differs from the next one only in its stamp, and that lies
 * in a stored block of its own before the compressed rest: it can be overwritten without compressing
 * again, and any inflater reads the whole as one stream. Every answer is inflated with zlib. */
#include "loadgen.h"

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
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK)
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

size_t inflate_message(const uint8_t *packed, size_t len, uint8_t *out, size_t cap)
{
    static z_stream z;
    static bool ready;
    if (ready ? inflateReset(&z) != Z_OK : inflateInit2(&z, -15) != Z_OK)
        return SIZE_MAX;
    ready = true;
    z.next_out = out;
    z.avail_out = (uInt)cap;
    z.next_in = (Bytef *)packed;
    z.avail_in = (uInt)len;
    int code = inflate(&z, Z_SYNC_FLUSH);
    if (code == Z_OK || code == Z_BUF_ERROR) {
        z.next_in = (Bytef *)tail;
        z.avail_in = sizeof tail;
        code = inflate(&z, Z_SYNC_FLUSH);
    }
    /* Z_BUF_ERROR: nothing was left to do. Z_STREAM_END: the last block was marked as such, which
     * section 7.2.3.3 allows. */
    return code == Z_OK || code == Z_BUF_ERROR || code == Z_STREAM_END ? z.total_out : SIZE_MAX;
}
