/* QOI images to PNG images, for native functions and for WebAssembly: see README.md.
 *
 * The encoder is deterministic, so that three programs return the same bytes: for each row the filter
 * of None, Sub, Up and Paeth with the least sum of absolute differences, the first of equals; one
 * deflate block of fixed codes; matches with the last position of the same three bytes, used at
 * once. `compress.py` has the same lines.
 */
#include "dandelion_sets.h"

enum { SIDE_LIMIT = 32768, WINDOW = 32768, MATCH_LEAST = 3, MATCH_MOST = 258, HASH_SIZE = 32768 };
enum { NOT_QOI = 2, TOO_SHORT = 3, TOO_LARGE = 4 };

typedef uint8_t u8;
typedef uint32_t u32;

static u32 big_endian(const u8 *at)
{
    return (u32)at[0] << 24 | (u32)at[1] << 16 | (u32)at[2] << 8 | at[3];
}

static u8 *put_big_endian(u8 *to, u32 value)
{
    to[0] = (u8)(value >> 24);
    to[1] = (u8)(value >> 16);
    to[2] = (u8)(value >> 8);
    to[3] = (u8)value;
    return to + 4;
}

/* --- QOI ---------------------------------------------------------------------------------------
 */

struct image {
    u32 width, height, channels;
    u8 *pixels;
};

/* Decode the chunks after the header; return 0, or an exit code. */
static int32_t decode_pixels(const u8 *in, const u8 *end, struct image *image)
{
    u8 seen[64][4] = {{0}};
    u8 pixel[4] = {0, 0, 0, 255};
    size_t count = (size_t)image->width * image->height;
    u32 repeat = 0;
    u8 *out = image->pixels;
    for (size_t at = 0; at < count; at++) {
        if (repeat) {
            repeat--;
        } else {
            if (in >= end) {
                return TOO_SHORT;
            }
            u8 tag = *in++;
            u32 more = tag == 0xfe ? 3 : tag == 0xff ? 4 : tag >> 6 == 2 ? 1 : 0;
            if ((size_t)(end - in) < more) {
                return TOO_SHORT;
            }
            if (tag >= 0xfe) {
                for (u32 c = 0; c < more; c++) {
                    pixel[c] = in[c];
                }
            } else if (tag >> 6 == 0) {
                for (u32 c = 0; c < 4; c++) {
                    pixel[c] = seen[tag][c];
                }
            } else if (tag >> 6 == 1) {
                pixel[0] = (u8)(pixel[0] + (tag >> 4 & 3) - 2);
                pixel[1] = (u8)(pixel[1] + (tag >> 2 & 3) - 2);
                pixel[2] = (u8)(pixel[2] + (tag & 3) - 2);
            } else if (tag >> 6 == 2) {
                int green = (tag & 63) - 32;
                pixel[0] = (u8)(pixel[0] + green + (in[0] >> 4) - 8);
                pixel[1] = (u8)(pixel[1] + green);
                pixel[2] = (u8)(pixel[2] + green + (in[0] & 15) - 8);
            } else {
                repeat = tag & 63;
            }
            in += more;
            u32 place = (pixel[0] * 3u + pixel[1] * 5u + pixel[2] * 7u + pixel[3] * 11u) % 64;
            for (u32 c = 0; c < 4; c++) {
                seen[place][c] = pixel[c];
            }
        }
        for (u32 c = 0; c < image->channels; c++) {
            *out++ = pixel[c];
        }
    }
    return 0;
}

static int32_t decode(const u8 *in, size_t size, struct image *image)
{
    if (size < 14 || big_endian(in) != 0x716f6966) {
        return NOT_QOI;
    }
    image->width = big_endian(in + 4);
    image->height = big_endian(in + 8);
    image->channels = in[12];
    if (!image->width || !image->height || (image->channels != 3 && image->channels != 4)) {
        return NOT_QOI;
    }
    if (image->width > SIDE_LIMIT || image->height > SIDE_LIMIT) {
        return TOO_LARGE;
    }
    image->pixels = dandelion_alloc((size_t)image->width * image->height * image->channels);
    return decode_pixels(in + 14, in + size, image);
}

/* --- filters -----------------------------------------------------------------------------------
 */

static u8 paeth(int left, int above, int corner)
{
    int guess = left + above - corner;
    int by_left = guess > left ? guess - left : left - guess;
    int by_above = guess > above ? guess - above : above - guess;
    int by_corner = guess > corner ? guess - corner : corner - guess;
    if (by_left <= by_above && by_left <= by_corner) {
        return (u8)left;
    }
    return (u8)(by_above <= by_corner ? above : corner);
}

/* Filter a row into `out`; return the sum of the absolute values of its signed bytes. */
static u32 filter_row(u32 kind, const u8 *row, const u8 *above, u32 size, u32 step, u8 *out)
{
    u32 sum = 0;
    for (u32 at = 0; at < size; at++) {
        u8 left = at < step ? 0 : row[at - step];
        u8 up = above ? above[at] : 0;
        u8 corner = at < step || !above ? 0 : above[at - step];
        u8 guess = kind == 0 ? 0 : kind == 1 ? left : kind == 2 ? up : paeth(left, up, corner);
        u8 value = (u8)(row[at] - guess);
        out[at] = value;
        sum += value < 128 ? value : 256u - value;
    }
    return sum;
}

static u8 *filter(const struct image *image, size_t *size)
{
    static const u8 kinds[] = {0, 1, 2, 4};
    u32 step = image->channels, row_size = image->width * step;
    *size = (size_t)image->height * (row_size + 1);
    u8 *all = dandelion_alloc(*size), *tried = dandelion_alloc(row_size), *out = all;
    const u8 *above = NULL;
    for (u32 y = 0; y < image->height; y++, out += row_size + 1) {
        const u8 *row = image->pixels + (size_t)y * row_size;
        u32 least = 0xffffffffu;
        for (u32 k = 0; k < sizeof kinds; k++) {
            u32 sum = filter_row(kinds[k], row, above, row_size, step, tried);
            if (sum < least) {
                least = sum;
                out[0] = kinds[k];
                memcpy(out + 1, tried, row_size);
            }
        }
        above = row;
    }
    return all;
}

/* --- deflate -----------------------------------------------------------------------------------
 */

struct bits {
    u8 *out;
    uint64_t held;
    u32 count;
};

static void put(struct bits *bits, u32 value, u32 count)
{
    bits->held |= (uint64_t)value << bits->count;
    bits->count += count;
    while (bits->count >= 8) {
        *bits->out++ = (u8)bits->held;
        bits->held >>= 8;
        bits->count -= 8;
    }
}

/* Codes are written from their highest bit, everything else from its lowest. */
static void put_code(struct bits *bits, u32 code, u32 count)
{
    u32 turned = 0;
    for (u32 at = 0; at < count; at++) {
        turned |= (code >> at & 1) << (count - 1 - at);
    }
    put(bits, turned, count);
}

static void put_symbol(struct bits *bits, u32 symbol)
{
    if (symbol < 144) {
        put_code(bits, 0x30 + symbol, 8);
    } else if (symbol < 256) {
        put_code(bits, 0x190 + symbol - 144, 9);
    } else if (symbol < 280) {
        put_code(bits, symbol - 256, 7);
    } else {
        put_code(bits, 0xc0 + symbol - 280, 8);
    }
}

/* Number of extra bits of a value, where `each` codes have the same number. */
static u32 extra_bits(u32 value, u32 each)
{
    u32 extra = 0;
    while (value >> extra >= 2 * each) {
        extra++;
    }
    return extra;
}

static void put_match(struct bits *bits, u32 length, u32 distance)
{
    u32 value = length - MATCH_LEAST;
    u32 extra = extra_bits(value, 4);
    if (length == MATCH_MOST) {
        put_symbol(bits, 285);
    } else {
        put_symbol(bits, 257 + 4 * extra + (value >> extra));
        put(bits, value & ((1u << extra) - 1), extra);
    }
    value = distance - 1;
    extra = extra_bits(value, 2);
    put_code(bits, 2 * extra + (value >> extra), 5);
    put(bits, value & ((1u << extra) - 1), extra);
}

static u32 hash(const u8 *at)
{
    return ((u32)at[0] | (u32)at[1] << 8 | (u32)at[2] << 16) * 2654435761u >> 17;
}

static u8 *deflate(const u8 *in, size_t size, u8 *out)
{
    u32 *last = dandelion_alloc(HASH_SIZE * sizeof *last); /* place + 1 of these three bytes */
    memset(last, 0, HASH_SIZE * sizeof *last);
    struct bits bits = {out, 0, 0};
    put(&bits, 1, 1);
    put(&bits, 1, 2);
    for (size_t at = 0; at < size;) {
        u32 length = 0;
        size_t from = 0;
        if (at + MATCH_LEAST <= size) {
            from = last[hash(in + at)];
            if (from && at - (from - 1) <= WINDOW) {
                size_t most = size - at < MATCH_MOST ? size - at : MATCH_MOST;
                while (length < most && in[from - 1 + length] == in[at + length]) {
                    length++;
                }
            }
        }
        if (length < MATCH_LEAST) {
            length = 1;
            put_symbol(&bits, in[at]);
        } else {
            put_match(&bits, length, (u32)(at - (from - 1)));
        }
        for (u32 step = 0; step < length; step++, at++) {
            if (at + MATCH_LEAST <= size) {
                last[hash(in + at)] = (u32)at + 1;
            }
        }
    }
    put_symbol(&bits, 256);
    put(&bits, 0, 7); /* to the next byte */
    return bits.out;
}

/* --- PNG ---------------------------------------------------------------------------------------
 */

static u32 checksum(const u8 *at, const u8 *end)
{
    static u32 table[256];
    if (!table[1]) {
        for (u32 n = 0; n < 256; n++) {
            table[n] = n;
            for (u32 k = 0; k < 8; k++) {
                table[n] = table[n] & 1 ? 0xedb88320u ^ table[n] >> 1 : table[n] >> 1;
            }
        }
    }
    u32 sum = 0xffffffffu;
    while (at < end) {
        sum = table[(sum ^ *at++) & 255] ^ sum >> 8;
    }
    return ~sum;
}

static u32 adler(const u8 *at, size_t size)
{
    u32 low = 1, high = 0;
    while (size--) {
        low = (low + *at++) % 65521;
        high = (high + low) % 65521;
    }
    return high << 16 | low;
}

/* Finish a chunk: its length is at `start`, its content ends at `end`. */
static u8 *finish_chunk(u8 *start, u8 *end)
{
    put_big_endian(start, (u32)(end - start - 8));
    return put_big_endian(end, checksum(start + 4, end));
}

static u8 *encode(const struct image *image, u8 **end)
{
    size_t size;
    u8 *filtered = filter(image, &size);
    u8 *png = dandelion_alloc(size + size / 8 + 128);
    memcpy(png, "\x89PNG\r\n\x1a\n", 8);
    u8 *chunk = png + 8;
    memcpy(chunk + 4, "IHDR", 4);
    u8 *out = put_big_endian(put_big_endian(chunk + 8, image->width), image->height);
    memcpy(out, "\x08\x02\0\0\0", 5);
    out[1] = image->channels == 4 ? 6 : 2;
    chunk = finish_chunk(chunk, out + 5);
    memcpy(chunk + 4, "IDAT\x78\x01", 6);
    out = deflate(filtered, size, chunk + 10);
    chunk = finish_chunk(chunk, put_big_endian(out, adler(filtered, size)));
    memcpy(chunk + 4, "IEND", 4);
    *end = finish_chunk(chunk, chunk + 8);
    return png;
}

static int32_t dandelion_main(void)
{
    for (size_t at = 0; at < dandelion_count(0); at++) {
        const struct dandelion_buffer *in = dandelion_input(0, at);
        struct image image;
        u8 *end;
        int32_t failed = decode(in->data, in->data_len, &image);
        if (failed) {
            return failed;
        }
        u8 *png = encode(&image, &end);
        failed = dandelion_output(0, in->name, in->name_len, png, (size_t)(end - png), in->key);
        if (failed) {
            return failed;
        }
    }
    return 0;
}
