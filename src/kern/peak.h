/* What this machine can do at best, measured: the limits that a kernel's figure is held against.
 * Not part of inference. */
#ifndef WEFT_KERN_PEAK_H
#define WEFT_KERN_PEAK_H

#include "base/status.h"
#include "tensor/dtype.h"

typedef enum kern_peak {
    /* Exact dot products in registers, of int8 with codes of up to 6 bits (those of 4 are measured)
     * and of 8, GOP/s (a multiplication or an addition). */
    KERN_PEAK_DOT4,
    KERN_PEAK_DOT8,
    KERN_PEAK_FMA,  /* fp32 fused multiply-add in registers, GFLOP/s */
    KERN_PEAK_READ, /* reading memory that no cache holds, GB/s (10^9 bytes) */
    KERN_N_PEAK
} kern_peak;

/* The arithmetic that linear layers with weights of a type are held against. */
static inline kern_peak kern_peak_of(dtype type) {
    switch (type) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        return KERN_PEAK_FMA;
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL: /* levels up to 240 */
    case DTYPE_IQ4_XS:
        return KERN_PEAK_DOT8;
    default:
        return KERN_PEAK_DOT4;
    }
}

typedef struct kern_peaks kern_peaks;

/* n_thread threads measure together. Takes a buffer of twice the last-level cache, at most 512 MiB
 * and an eighth of the free memory. */
weft_status kern_cpu_peaks_open(int32_t n_thread, kern_peaks **out, weft_error *err);
void kern_peaks_close(kern_peaks *p); /* NULL is allowed */
/* A measurement of about 20 ms, with the best level of this machine. */
double kern_peaks_measure(kern_peaks *p, kern_peak which);
/* Reads the whole buffer, so that what was in the caches before is not. */
void kern_peaks_evict(kern_peaks *p);

#endif
