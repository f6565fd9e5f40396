/* Where a block keeps its codes and scales, format by format. A quad is four codes, one a byte. */
#include "tensor/block.h"

static uint16_t load_u16(const uint8_t *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t load_u32(const uint8_t *at) {
    return load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

/* `bits` bits of each byte of a dword, from bit `shift`. */
static uint32_t bits_of_bytes(uint32_t dword, int32_t shift, int32_t bits) {
    return (dword >> shift) & ((1u << bits) - 1) * 0x01010101u;
}

/* 16 bytes: low nibbles are values 0..15, high ones 16..31. */
static void read_nibbles(const uint8_t *codes, block_part *out) {
    for (int32_t j = 0; j < 4; j++) {
        uint32_t dword = load_u32(codes + 4 * j);
        out->quad[j] = bits_of_bytes(dword, 0, 4);
        out->quad[j + 4] = bits_of_bytes(dword, 4, 4);
    }
}

/* Bit i of the dword is bit 4 of value i. Four bits are spread to the lowest bits of four bytes by
 * shifts of 0, 7, 14 and 21. */
static void read_fifth_bits(const uint8_t *bits, block_part *out) {
    uint32_t all = load_u32(bits);
    for (int32_t j = 0; j < 8; j++) {
        uint32_t four = (all >> 4 * j) & 15;
        out->quad[j] |= ((four * 0x00204081u) & 0x01010101u) << 4;
    }
}

/* 32 bytes, one a value: adds their bits [shift, shift + bits) at bit `to` of the codes. */
static void read_bits(const uint8_t *codes, int32_t shift, int32_t bits, int32_t to,
                      block_part *out) {
    for (int32_t j = 0; j < 8; j++)
        out->quad[j] |= bits_of_bytes(load_u32(codes + 4 * j), shift, bits) << to;
}

/* Q4_K, Q5_K: 12 bytes hold 8 scales and 8 minima of 6 bits; those of parts 4..7 have their upper
 * two bits on top of parts 0..3. */
static void read_k4_scales(const uint8_t *at, int64_t part, block_part *out) {
    int32_t sc, mn;
    if (part < 4) {
        sc = at[part] & 63;
        mn = at[part + 4] & 63;
    } else {
        sc = (at[part + 4] & 15) | at[part - 4] >> 6 << 4;
        mn = at[part + 4] >> 4 | at[part] >> 6 << 4;
    }
    out->sc[0] = out->sc[1] = (int8_t)sc;
    out->mn[0] = out->mn[1] = (uint8_t)mn;
}

/* Q3_K: 16 scales of 6 bits less 32: the nibbles of 8 bytes (low ones first), then 4 bytes with the
 * upper two bits. */
static int8_t q3_k_scale(const uint8_t *at, int64_t i) {
    int32_t low = i < 8 ? at[i] & 15 : at[i - 8] >> 4;
    int32_t high = (at[8 + i % 4] >> 2 * (i / 4)) & 3;
    return (int8_t)((low | high << 4) - 32);
}

static void read_q2_k(const uint8_t *block, int64_t part, block_part *out) {
    read_bits(block + 16 + part / 4 * 32, (int32_t)(part % 4) * 2, 2, 0, out);
    for (int32_t half = 0; half < 2; half++) {
        uint8_t both = block[2 * part + half];
        out->sc[half] = both & 15;
        out->mn[half] = both >> 4;
    }
    out->d = load_u16(block + 80);
    out->m = load_u16(block + 82);
}

static void read_q3_k(const uint8_t *block, int64_t part, block_part *out) {
    read_bits(block + 32 + part / 4 * 32, (int32_t)(part % 4) * 2, 2, 0, out);
    read_bits(block, (int32_t)part, 1, 2, out);
    for (int32_t half = 0; half < 2; half++)
        out->sc[half] = q3_k_scale(block + 96, 2 * part + half);
    out->d = load_u16(block + 108);
}

static void read_q4_k(const uint8_t *block, int64_t part, block_part *out) {
    read_bits(block + 16 + part / 2 * 32, (int32_t)(part % 2) * 4, 4, 0, out);
    read_k4_scales(block + 4, part, out);
    out->d = load_u16(block);
    out->m = load_u16(block + 2);
}

static void read_q5_k(const uint8_t *block, int64_t part, block_part *out) {
    read_bits(block + 48 + part / 2 * 32, (int32_t)(part % 2) * 4, 4, 0, out);
    read_bits(block + 16, (int32_t)part, 1, 4, out);
    read_k4_scales(block + 4, part, out);
    out->d = load_u16(block);
    out->m = load_u16(block + 2);
}

static void read_q6_k(const uint8_t *block, int64_t part, block_part *out) {
    int64_t half_block = part / 4, g = part % 4;
    read_bits(block + half_block * 64 + g % 2 * 32, (int32_t)(g / 2) * 4, 4, 0, out);
    read_bits(block + 128 + half_block * 32, (int32_t)g * 2, 2, 4, out);
    for (int32_t half = 0; half < 2; half++)
        out->sc[half] = (int8_t)block[192 + 2 * part + half];
    out->d = load_u16(block + 208);
}

static void read_iq4_xs(const uint8_t *block, int64_t part, block_part *out) {
    read_nibbles(block + 8 + 16 * part, out);
    int32_t low = (block[4 + part / 2] >> (part % 2 * 4)) & 15;
    int32_t high = (load_u16(block + 2) >> 2 * part) & 3;
    out->sc[0] = out->sc[1] = (int8_t)((low | high << 4) - 32);
    out->d = load_u16(block);
}

static void read_block_of_256(dtype type, const uint8_t *block, int64_t part, block_part *out) {
    switch (type) {
    case DTYPE_Q2_K:
        read_q2_k(block, part, out);
        break;
    case DTYPE_Q3_K:
        read_q3_k(block, part, out);
        break;
    case DTYPE_Q4_K:
        read_q4_k(block, part, out);
        break;
    case DTYPE_Q5_K:
        read_q5_k(block, part, out);
        break;
    case DTYPE_Q6_K:
        read_q6_k(block, part, out);
        break;
    default:
        read_iq4_xs(block, part, out);
    }
}

/* d, then m where there is one, then the fifth bits, then the codes. */
static void read_block_of_32(dtype type, const uint8_t *block, block_part *out) {
    const block_form *f = &block_forms[type];
    if (f->scaling == BLOCK_EXPONENT) {
        out->d = *block++;
    } else {
        out->d = load_u16(block);
        block += 2;
    }
    if (f->scaling == BLOCK_D_M) {
        out->m = load_u16(block);
        block += 2;
    }
    if (f->bits == 8) {
        for (int32_t j = 0; j < 8; j++)
            out->quad[j] = load_u32(block + 4 * j) ^ 0x80808080u;
        return;
    }
    read_nibbles(f->bits == 5 ? block + 4 : block, out);
    if (f->bits == 5)
        read_fifth_bits(block, out);
}

void block_read(dtype type, const uint8_t *row, int64_t part, block_part *out) {
    const dtype_info *info = dtype_find(type);
    int64_t n_part = info->block_len / BLOCK_PART;
    const uint8_t *block = row + part / n_part * info->block_bytes;
    *out = (block_part){0};
    if (n_part == 1)
        read_block_of_32(type, block, out);
    else
        read_block_of_256(type, block, part % n_part, out);
}

void block_scale(dtype type, const block_part *p, int32_t half, float *scale, float *minimum) {
    *minimum = 0.0f;
    switch ((block_scaling)block_forms[type].scaling) {
    case BLOCK_D:
        *scale = f16_to_f32(p->d);
        break;
    case BLOCK_D_M:
        *scale = f16_to_f32(p->d);
        *minimum = f16_to_f32(p->m);
        break;
    case BLOCK_EXPONENT:
        *scale = block_exponent_scale(p->d);
        break;
    case BLOCK_D_SC:
        *scale = f16_to_f32(p->d) * (float)p->sc[half];
        break;
    case BLOCK_D_SC_MN:
        *scale = f16_to_f32(p->d) * (float)p->sc[half];
        *minimum = -(f16_to_f32(p->m) * (float)p->mn[half]);
        break;
    }
}
