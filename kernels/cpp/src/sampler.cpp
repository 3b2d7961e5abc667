#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

namespace turing {
namespace {

// Stands for the log-probability of what cannot be sampled; infinity is not a JSON number.
constexpr float kLogprobFloor = -9999;

// Candidates for top-k and top-p are first sought within this many temperatures of the maximum.
constexpr double kFirstWidth = 8;

uint64_t splitmix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Orders ids by falling logit, then rising id.
struct ByRank {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  }
};

// The ids whose logit is at least `floor`, in order of ids.
std::vector<int32_t> ids_from(std::span<const float> logits, float floor) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < logits.size(); i++) {
    if (logits[i] >= floor) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// Weights exp((l - max) / T), 0 where below min_p. The most likely token weighs 1.
class Weights {
 public:
  Weights(std::span<const float> logits, const SamplingOptions& options)
      : logits_(logits),
        options_(options),
        peak_(*std::max_element(logits.begin(), logits.end())) {}

  double of(int32_t id) const {
    const double scaled =
        (double{logits_[static_cast<size_t>(id)]} - double{peak_}) / options_.temperature;
    const double weight = std::exp(scaled);
    return weight < options_.min_p ? 0 : weight;
  }
  double total() const {
    double sum = 0;
    for (size_t i = 0; i < logits_.size(); i++) sum += of(static_cast<int32_t>(i));
    return sum;
  }
  float peak() const { return peak_; }

 private:
  std::span<const float> logits_;
  const SamplingOptions& options_;
  float peak_;
};

// The first of `ids` whose inclusive cumulative weight exceeds point * total; where rounding lifts
// that to the total, the first that reaches the total.
template <class Ids, class Weight>
int32_t draw(const Ids& ids, Weight weight, double point) {
  double total = 0;
  for (int32_t id : ids) total += weight(id);
  const double target = std::min(point * total, std::nextafter(total, 0.0));
  double sum = 0;
  int32_t last = *ids.begin();
  for (int32_t id : ids) {
    sum += weight(id);
    last = id;
    if (sum > target) break;
  }
  return last;
}

// What is left of the ranked candidates after top-k and top-p. Returns false when more candidates
// than `ranked` might be needed to tell.
bool nucleus(std::vector<int32_t>& ranked, const Weights& weights, const SamplingOptions& options,
             size_t vocab) {
  const bool limited = options.top_k > 0 && static_cast<size_t>(options.top_k) < vocab;
  const bool all = ranked.size() == vocab;
  if (limited) {
    const auto k = static_cast<size_t>(options.top_k);
    if (ranked.size() < k) return false;
    ranked.resize(k);
  }
  if (options.top_p >= 1) return limited || all;
  double total = 0;
  if (limited) {
    for (int32_t id : ranked) total += weights.of(id);
  } else {
    total = weights.total();
  }
  const double share = options.top_p * total;
  double before = 0;
  for (size_t i = 0; i < ranked.size(); i++) {
    if (i > 0 && before >= share) {
      ranked.resize(i);
      return true;
    }
    before += weights.of(ranked[i]);
  }
  return limited || all || before >= share;
}

int32_t draw_filtered(std::span<const float> logits, const Weights& weights,
                      const SamplingOptions& options, double point) {
  std::vector<int32_t> ids;
  for (double width = kFirstWidth;; width *= 4) {
    const double floor = double{weights.peak()} - width * options.temperature;
    const bool everything = width > 1e6 || !(floor > -3e38);
    ids = ids_from(logits, everything ? -INFINITY : static_cast<float>(floor));
    std::sort(ids.begin(), ids.end(), ByRank{logits});
    if (nucleus(ids, weights, options, logits.size()) || everything) break;
  }
  std::sort(ids.begin(), ids.end());
  return draw(ids, [&](int32_t id) { return weights.of(id); }, point);
}

int32_t draw_token(std::span<const float> logits, const SamplingOptions& options, double point) {
  const Weights weights(logits, options);
  const bool limited = options.top_k > 0 && static_cast<size_t>(options.top_k) < logits.size();
  if (limited || options.top_p < 1) return draw_filtered(logits, weights, options, point);
  std::vector<double> all(logits.size());
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  for (int32_t id : ids) all[static_cast<size_t>(id)] = weights.of(id);
  return draw(ids, [&](int32_t id) { return all[static_cast<size_t>(id)]; }, point);
}

// log(sum(exp(logits))) and its maximum.
struct LogSum {
  explicit LogSum(std::span<const float> logits)
      : peak(*std::max_element(logits.begin(), logits.end())) {
    double sum = 0;
    for (float logit : logits) sum += std::exp(logit - peak);
    log = static_cast<float>(std::log(sum));
  }
  float of(float logit) const { return std::max(logit - peak - log, kLogprobFloor); }

  float peak;
  float log;
};

std::vector<std::pair<int32_t, float>> top_of(std::span<const float> logits, size_t count,
                                              const LogSum& sum) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(),
                    ByRank{logits});
  std::vector<std::pair<int32_t, float>> top;
  for (size_t i = 0; i < count; i++) {
    top.emplace_back(ids[i], sum.of(logits[static_cast<size_t>(ids[i])]));
  }
  return top;
}

void apply(const uint32_t* mask, std::span<float> logits) {
  for (size_t i = 0; i < logits.size(); i++) {
    if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[i] = -INFINITY;
  }
}

bool penalises(const SamplingOptions& options) {
  return options.repetition_penalty != 1 || options.frequency_penalty != 0 ||
         options.presence_penalty != 0;
}

}  // namespace

double uniform(int64_t seed, int64_t position) {
  const uint64_t x =
      static_cast<uint64_t>(seed) + 0x9e3779b97f4a7c15 * (static_cast<uint64_t>(position) + 1);
  return static_cast<double>(splitmix64(splitmix64(x)) >> 11) * 0x1p-53;
}

struct Sampler::Slot {
  SamplingOptions options;
  int64_t outputs = 0;
  // Distinct tokens seen, with how often each was generated; filled only if penalties ask.
  std::unordered_map<int32_t, int32_t> seen;

  bool banning() const { return !options.banned.empty() && outputs < options.min_tokens; }
  bool adjusts() const { return !options.bias.empty() || penalises(options) || banning(); }

  void adjust(float* logits) const {
    for (const auto& [id, bias] : options.bias) logits[id] += bias;
    for (const auto& [id, times] : seen) {
      float& logit = logits[id];
      logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
      logit -= options.frequency_penalty * static_cast<float>(times);
      logit -= options.presence_penalty * static_cast<float>(times > 0);
    }
    if (banning()) {
      for (int32_t id : options.banned) logits[id] = -INFINITY;
    }
  }

  void accept(int32_t id) {
    outputs++;
    if (penalises(options)) seen[id]++;
  }
};

Sampler::Sampler(int slots, int vocab_size)
    : vocab_size_(vocab_size), slots_(static_cast<size_t>(slots)) {}

Sampler::~Sampler() = default;

void Sampler::start(int slot, SamplingOptions options, std::span<const int32_t> prompt,
                    std::span<const int32_t> output) {
  auto state = std::make_unique<Slot>();
  state->outputs = static_cast<int64_t>(output.size());
  if (penalises(options)) {
    for (int32_t id : prompt) state->seen.try_emplace(id, 0);
    for (int32_t id : output) state->seen[id]++;
  }
  state->options = std::move(options);
  slots_[static_cast<size_t>(slot)] = std::move(state);
}

void Sampler::stop(int slot) { slots_[static_cast<size_t>(slot)].reset(); }

bool Sampler::needs_logits(int slot) const {
  const Slot& state = *slots_[static_cast<size_t>(slot)];
  return !state.options.greedy || state.options.logprobs >= 0 || state.adjusts();
}

Choice Sampler::choose(int slot, int64_t position, int32_t best, float* logits,
                       const uint32_t* mask) {
  Slot& state = *slots_[static_cast<size_t>(slot)];
  const SamplingOptions& options = state.options;
  Choice choice;
  choice.id = best;
  if (mask != nullptr || needs_logits(slot)) {
    const std::span<float> all(logits, static_cast<size_t>(vocab_size_));
    std::vector<float> raw;
    if (options.logprobs >= 0) raw.assign(all.begin(), all.end());
    state.adjust(logits);
    if (mask != nullptr) apply(mask, all);
    choice.id =
        options.greedy ? argmax(all) : draw_token(all, options, uniform(options.seed, position));
    if (options.logprobs >= 0) {
      const LogSum sum(raw);
      choice.logprob = sum.of(raw[static_cast<size_t>(choice.id)]);
      choice.top = top_of(raw, static_cast<size_t>(options.logprobs), sum);
    }
  }
  state.accept(choice.id);
  return choice;
}

}  // namespace turing
