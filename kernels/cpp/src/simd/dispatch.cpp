// Choice of the kernel table for the processor at hand.
#include <string_view>

#include "error.h"
#include "simd/kernels.h"

#if defined(TURING_ARM64) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace turing {

namespace portable {
extern const Kernels kKernels;
}
#ifdef TURING_X86
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Kernels kKernels;
}
#endif
#ifdef TURING_ARM64
namespace neon {
extern const Kernels kKernels;
}
#endif

namespace {

#ifdef TURING_ARM64
bool has_dot_products() {
#ifdef __linux__
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every processor that macOS runs on
#endif
}
#endif

struct Choice {
  const Kernels* kernels;
  bool supported;
};

// All tables of this build, the best first.
template <class Visit>
void each_choice(Visit visit) {
#ifdef TURING_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  visit(Choice{&avx512_bf16::kKernels, avx512 && __builtin_cpu_supports("avx512bf16")});
  visit(Choice{&avx512::kKernels, avx512});
  visit(Choice{&avx2::kKernels, avx2});
#endif
#ifdef TURING_ARM64
  visit(Choice{&neon::kKernels, has_dot_products()});
#endif
  visit(Choice{&portable::kKernels, true});
}

}  // namespace

const Kernels& select_kernels(const char* isa) {
  const std::string_view wanted = isa;
  const Kernels* found = nullptr;
  each_choice([&](const Choice& choice) {
    if (found != nullptr) return;
    if (wanted.empty() && choice.supported) found = choice.kernels;
    if (wanted == choice.kernels->name) {
      if (!choice.supported) fail("this processor lacks the instruction set ", wanted);
      found = choice.kernels;
    }
  });
  if (found == nullptr) fail("unknown instruction set ", wanted);
  return *found;
}

}  // namespace turing
