#include "spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "error.h"

namespace turing {

std::vector<float> Rope::frequencies(int head_dim) const {
  std::vector<float> result;
  for (int pair = 0; pair < head_dim / 2; pair++) {
    const float exponent = static_cast<float>(2 * pair) / static_cast<float>(head_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(theta), exponent);
    if (!divisors.empty()) frequency /= static_cast<float>(divisors[static_cast<size_t>(pair)]);
    result.push_back(frequency);
  }
  return result;
}

void check_spec(const ModelSpec& spec, const std::string& where) {
  const auto within = [&](const char* name, int value, int most) {
    if (value < 1 || value > most) {
      fail(where, ": ", name, " is ", value, ", not from 1 to ", most);
    }
  };
  within("the number of layers", spec.layers, 4096);
  within("the hidden size", spec.hidden, 1 << 20);
  within("the feed-forward size", spec.intermediate, 1 << 22);
  within("the number of heads", spec.heads, 4096);
  within("the number of key/value heads", spec.kv_heads, spec.heads);
  within("the head size", spec.head_dim, 256);
  within("the vocabulary size", spec.vocab_size, 1 << 24);
  within("the context", spec.context, 1 << 24);
  if (spec.heads % spec.kv_heads != 0) {
    fail(where, ": ", spec.heads, " heads cannot share ", spec.kv_heads, " key/value heads");
  }
  if (spec.head_dim % 16 != 0) {
    fail(where, ": a head size of ", spec.head_dim, " is not supported, only multiples of 16");
  }
  if (!(spec.norm_eps >= 0 && std::isfinite(spec.norm_eps))) {
    fail(where, ": the norm's epsilon is ", spec.norm_eps);
  }
}

std::vector<double> llama3_divisors(double theta, int head_dim, double factor, double low,
                                    double high, double context) {
  std::vector<double> divisors;
  for (int pair = 0; pair < head_dim / 2; pair++) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(theta, 2.0 * pair / static_cast<double>(head_dim));
    const double smooth = std::clamp((context / wavelength - low) / (high - low), 0.0, 1.0);
    divisors.push_back(1 / ((1 - smooth) / factor + smooth));
  }
  return divisors;
}

}  // namespace turing
