// The kernel table of one instruction set. The including file defines TURING_ISA (a namespace)
// and includes its vector header first.

#include "simd/kernels.h"

#include "simd/attention.inl"
#include "simd/gemm.inl"
#include "simd/math.inl"
#include "simd/rows.inl"
#include "simd/sampling.inl"

#define TURING_NAME_OF(isa) #isa
#define TURING_NAME(isa) TURING_NAME_OF(isa)

namespace turing::TURING_ISA {

extern const Kernels kKernels;
const Kernels kKernels = {
    .name = TURING_NAME(TURING_ISA),
    .matmul = matmul,
    .gated = gated,
    .head = head,
    .norm = norm,
    .quantize = quantize,
    .add_norm = add_norm,
    .head_norm = head_norm,
    .rope = rope,
    .store_kv = store_kv,
    .store_query = store_query,
    .attend = attend,
    .merge = merge,
    .scale = scale,
    .peak = peak,
    .weigh = weigh,
};

}  // namespace turing::TURING_ISA
