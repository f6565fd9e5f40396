# Numerics rule N10: no contraction of a*b+c, no fast-math; fma only where it is written.
add_compile_options(-ffp-contract=off -fno-math-errno -fno-trapping-math
  -Wall -Wextra -Wshadow -Wconversion -Wvla -Wstrict-prototypes -Wmissing-prototypes -Werror)
add_compile_definitions(_GNU_SOURCE)
set(CMAKE_C_FLAGS_DEBUG "-O1 -g -DWEFT_DEBUG=1")
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
if(WEFT_SANITIZE)
  add_compile_options(-fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${WEFT_SANITIZE})
endif()

# Kernel files name their instruction set: <op>__<isa>.c. Scalar ones need FMA for fmaf to be one instruction. An instrumented
# kernel takes minutes to compile at -O3, and nobody measures it; -g takes as long as the code, for names of variables that
# a sanitizer's report does not show.
if(WEFT_SANITIZE OR WEFT_FUZZ)
  set(WEFT_KERNEL_OPT -O1 -g1)
else()
  set(WEFT_KERNEL_OPT -O3)
endif()
set(WEFT_AVX2 -mfma -mf16c -mavx2)
set(WEFT_AVX512 ${WEFT_AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
function(weft_isa_flags)
  foreach(file ${ARGN})
    # A function for each type and shape, instrumented, takes ten minutes to compile; the scalar level is, and does the
    # same index arithmetic.
    if(file MATCHES "/linear[a-z_]*__avx" AND (WEFT_SANITIZE OR WEFT_FUZZ))
      set(sanitize "-fno-sanitize=all")
    else()
      set(sanitize "")
    endif()
    if(file MATCHES "__scalar\\.c$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${WEFT_KERNEL_OPT};-mfma")
    elseif(file MATCHES "__avx2\\.c$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${WEFT_KERNEL_OPT};${WEFT_AVX2};${sanitize}")
    elseif(file MATCHES "__avx512\\.c$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${WEFT_KERNEL_OPT};${WEFT_AVX512};${sanitize}")
    elseif(file MATCHES "__avx512vnni\\.c$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
        "${WEFT_KERNEL_OPT};${WEFT_AVX512};-mavx512vnni;${sanitize}")
    endif()
  endforeach()
endfunction()
