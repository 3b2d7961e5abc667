#define TURING_ISA avx512_bf16
#include "simd/vec_avx512.h"

#include "simd/table.inl"
