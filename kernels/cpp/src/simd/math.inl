// Exponentials and row-count dispatch shared by the kernels of one instruction set.
#pragma once

namespace turing::TURING_ISA {

inline int least(int a, int b) { return a < b ? a : b; }

// exp2(x) for x <= 127, relative error about 1e-7; below -126 it stays at the smallest normal.
inline F exp2(F x) {
  x = max(x, set(-126.0f));
  const F n = round(x);
  const F f = x - n;
  F p = set(1.5403530e-4f);
  p = fma(p, f, set(1.3333558e-3f));
  p = fma(p, f, set(9.6181291e-3f));
  p = fma(p, f, set(5.5504109e-2f));
  p = fma(p, f, set(2.4022651e-1f));
  p = fma(p, f, set(6.9314718e-1f));
  p = fma(p, f, set(1.0f));
  return scale2(p, n);
}

// exp(x), the argument clamped to where the result is a normal number.
inline F exp(F x) {
  x = min(max(x, set(-87.0f)), set(88.0f));
  const F n = round(x * set(1.44269504f));
  F f = fma(n, set(-0.693145751953125f), x);
  f = fma(n, set(-1.428606765330187e-6f), f);
  F p = set(1.0f / 720);
  p = fma(p, f, set(1.0f / 120));
  p = fma(p, f, set(1.0f / 24));
  p = fma(p, f, set(1.0f / 6));
  p = fma(p, f, set(0.5f));
  p = fma(p, f, set(1.0f));
  p = fma(p, f, set(1.0f));
  return scale2(p, n);
}

// Calls call.operator()<R>() with R = rows, 1 <= rows <= kMost.
template <int kMost, class Call>
inline void with_rows(int rows, Call call) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return with_rows<kMost - 1>(rows, call);
  }
  call.template operator()<kMost>();
}

}  // namespace turing::TURING_ISA
