#define TURING_ISA portable
#include "simd/vec_portable.h"

#include "simd/table.inl"
