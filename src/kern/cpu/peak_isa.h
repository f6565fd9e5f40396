/* Measuring loops of an instruction-set level (kern/peak.h). Each returns something that depends on
 * all of its work, so that none of it is left out. */
#ifndef WEFT_KERN_CPU_PEAK_ISA_H
#define WEFT_KERN_CPU_PEAK_ISA_H

#include <stddef.h>
#include <stdint.h>

#include "kern/peak.h"

typedef struct cpu_peak_loop {
    int32_t ops; /* of one round */
    uint32_t (*run)(int64_t n_round);
} cpu_peak_loop;

typedef struct cpu_peak_isa {
    cpu_peak_loop loop[KERN_PEAK_READ];                  /* the peaks of arithmetic */
    uint32_t (*read)(const uint8_t *from, size_t bytes); /* bytes: a multiple of 512 */
} cpu_peak_isa;

extern const cpu_peak_isa cpu_peak_scalar, cpu_peak_avx2, cpu_peak_avx512, cpu_peak_avx512vnni;

#endif
