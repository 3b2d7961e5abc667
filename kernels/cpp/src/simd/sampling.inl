// Passes over the logits of one row.
#pragma once

#include "simd/math.inl"

namespace turing::TURING_ISA {

// The largest of n logits, n > 0.
float peak(const float* logits, int n) {
  F highest = set(logits[0]);
  int i = 0;
  for (; i + 16 <= n; i += 16) highest = max(highest, load(logits + i));
  float result = top(highest);
  for (; i < n; i++) result = logits[i] > result ? logits[i] : result;
  return result;
}

// exp(x) for x <= 0 in double precision, 0 where the result would not be a normal number. Plain
// arithmetic without branches, which the compiler turns into vectors.
inline double exp_double(double x) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double clamped = x < -708.0 ? -708.0 : x;
  const double shifted = clamped * 1.4426950408889634 + kRound;
  const double n = shifted - kRound;
  const double r = (clamped - n * 0x1.62e42fefa3800p-1) - n * 0x1.ef35793c76730p-45;
  double p = 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t exponent = (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52;
  return x < -708.0 ? 0.0 : p * __builtin_bit_cast(double, exponent);
}

void weigh(const float* logits, int n, float highest, double temperature, double min_p,
           double* weights) {
  const double base = highest;
  for (int i = 0; i < n; i++) {
    const double weight = exp_double((static_cast<double>(logits[i]) - base) / temperature);
    weights[i] = weight < min_p ? 0.0 : weight;
  }
}

}  // namespace turing::TURING_ISA
