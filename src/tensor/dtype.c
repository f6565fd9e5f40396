#include "tensor/block.h"

/* Every type number of the GGUF format, by number. A hole (name NULL) is a number that was removed
 * (4, 5: Q4_2, Q4_3; 31..33, 36..38: repacked layouts that no file may carry). */
static const struct {
    const char *name;
    int16_t block_len, block_bytes;
} ggml_types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},    [40] = {"NVFP4", 64, 36},
};

static const dtype_info infos[] = {
    [DTYPE_F32] = {"F32", 1, 4, false},        [DTYPE_F16] = {"F16", 1, 2, false},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18, true},     [DTYPE_Q4_1] = {"Q4_1", 32, 20, true},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22, true},     [DTYPE_Q5_1] = {"Q5_1", 32, 24, true},
    [DTYPE_Q8_0] = {"Q8_0", 32, 34, true},     [DTYPE_Q2_K] = {"Q2_K", 256, 84, true},
    [DTYPE_Q3_K] = {"Q3_K", 256, 110, true},   [DTYPE_Q4_K] = {"Q4_K", 256, 144, true},
    [DTYPE_Q5_K] = {"Q5_K", 256, 176, true},   [DTYPE_Q6_K] = {"Q6_K", 256, 210, true},
    [DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, true}, [DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136, true},
    [DTYPE_BF16] = {"BF16", 1, 2, false},      [DTYPE_MXFP4] = {"MXFP4", 32, 17, true},
};

const dtype_info *dtype_find(uint32_t ggml_type) {
    if (ggml_type >= sizeof infos / sizeof infos[0] || !infos[ggml_type].name) {
        return NULL;
    }
    return &infos[ggml_type];
}

const char *dtype_ggml_name(uint32_t ggml_type, int32_t *block_len, int32_t *block_bytes) {
    if (ggml_type >= sizeof ggml_types / sizeof ggml_types[0] || !ggml_types[ggml_type].name) {
        return NULL;
    }
    if (block_len) {
        *block_len = ggml_types[ggml_type].block_len;
    }
    if (block_bytes) {
        *block_bytes = ggml_types[ggml_type].block_bytes;
    }
    return ggml_types[ggml_type].name;
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* f16: s eeeee mmmmmmmmmm, value (1 + m/1024) * 2^(e-15), subnormal m * 2^-24. */
float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 0x1f;
    uint32_t mantissa = h & 0x3ff;
    if (exponent == 0x1f) {
        /* A signalling NaN becomes quiet, as the conversion instructions do it. */
        return float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000u : 0));
    }
    if (exponent == 0) {
        return float_of(sign | bits_of((float)mantissa * 0x1p-24f)); /* exact */
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* u >> shift, rounded to nearest even; 1 <= shift <= 31. */
static uint32_t shift_round(uint32_t u, int32_t shift) {
    uint32_t half = 1u << (shift - 1);
    uint32_t odd = (u >> shift) & 1;
    return (u + half - 1 + odd) >> shift;
}

uint16_t f32_to_f16(float f) {
    uint32_t u = bits_of(f);
    uint32_t sign = (u >> 16) & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | ((u >> 13) & 0x3ff));
    }
    if (u >= 0x477ff000) { /* 65520, half way between the largest f16 and 2^16, and above */
        return (uint16_t)(sign | 0x7c00);
    }
    if (u >= 0x38800000) { /* 2^-14 and above: normal; a carry out of the mantissa is right */
        return (uint16_t)(sign | shift_round(u - (112u << 23), 13));
    }
    if (u < 0x33000000) { /* below 2^-25, half the smallest subnormal */
        return (uint16_t)sign;
    }
    /* 2^-25 <= |f| < 2^-14: units of 2^-24. With biased exponent e the 24-bit significand counts
     * units of 2^(e-150), so it is shifted right by 126 - e: 14 for e = 112, 24 for e = 102. */
    uint32_t significand = (u & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | shift_round(significand, 126 - (int32_t)(u >> 23)));
}

uint16_t f32_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(u >> 16 | 0x40);
    }
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static uint16_t load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static void quantised_to_f32(dtype type, const uint8_t *row, int64_t n, float *dst) {
    const block_form *f = &block_forms[type];
    bool has_minimum = f->scaling == BLOCK_D_M || f->scaling == BLOCK_D_SC_MN;
    for (int64_t i = 0; i < n; i += 16) {
        int32_t half = (int32_t)(i / 16 % 2);
        block_part p;
        float scale, minimum;
        block_read(type, row, i / BLOCK_PART, &p);
        block_scale(type, &p, half, &scale, &minimum);
        for (int32_t k = 0; k < 16; k++) {
            uint32_t code = (p.quad[4 * half + k / 4] >> 8 * (k % 4)) & 255;
            int32_t level =
                f->table == BLOCK_NO_TABLE ? (int32_t)code : block_tables[f->table][code];
            float value = scale * (float)(level - f->offset);
            dst[i + k] = has_minimum ? value + minimum : value;
        }
    }
}

void dtype_to_f32(dtype t, const void *src, int64_t n, float *dst) {
    const uint8_t *p = src;
    switch (t) {
    case DTYPE_F32:
        memcpy(dst, src, (size_t)n * 4);
        break;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = f16_to_f32(load_u16(p + 2 * i));
        }
        break;
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++) {
            dst[i] = bf16_to_f32(load_u16(p + 2 * i));
        }
        break;
    default:
        quantised_to_f32(t, p, n, dst);
    }
}
