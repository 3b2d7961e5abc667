#define TURING_ISA neon
#include "simd/vec_neon.h"

#include "simd/table.inl"
