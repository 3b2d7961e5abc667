#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_map>

namespace turing {
namespace {

// Stands for the log-probability of what cannot be sampled; infinity is not a JSON number.
constexpr float kLogprobFloor = -9999;

// Candidates for top-k and top-p are first sought within this many temperatures of the maximum,
// then in twice the width and so on; beyond the last one a weight is 0 in double precision.
constexpr double kFirstWidth = 4;
constexpr double kLastWidth = 1024;

uint64_t splitmix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// The lowest id of the largest logit, -1 when that is not a number.
int32_t argmax(std::span<const float> logits, float peak) {
  const auto found = std::find(logits.begin(), logits.end(), peak);
  return found == logits.end() ? -1 : static_cast<int32_t>(found - logits.begin());
}

// Orders ids by falling logit, then rising id.
struct ByRank {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  }
};

// What a draw is made from. `weights` are exp((l - peak) / T), 0 where below min_p, so the most
// likely token weighs 1.
struct Row {
  std::span<const float> logits;
  std::span<const double> weights;
  double total;  // of the weights
  float peak;
  const SamplingOptions& options;

  double weight(int32_t id) const { return weights[static_cast<size_t>(id)]; }
  size_t limit() const {
    const bool limited = options.top_k > 0 && static_cast<size_t>(options.top_k) < logits.size();
    return limited ? static_cast<size_t>(options.top_k) : logits.size();
  }
};

// The first of `count` places whose inclusive cumulative weight exceeds point * total; where
// rounding lifts that to the total, the first that reaches the total.
template <class Weight>
size_t draw(size_t count, Weight weight, double point) {
  double total = 0;
  for (size_t i = 0; i < count; i++) total += weight(i);
  const double target = std::min(point * total, std::nextafter(total, 0.0));
  double sum = 0;
  for (size_t i = 0; i < count; i++) {
    sum += weight(i);
    if (sum > target) return i;
  }
  return count - 1;
}

// The ids within `width` temperatures of the peak, in the order of ids.
std::vector<int32_t> candidates(const Row& row, double width) {
  const double lowest = double{row.peak} - width * row.options.temperature;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < row.logits.size(); i++) {
    if (row.logits[i] >= lowest) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// The last of the most likely `ids` before which less than `share` of weight lies, or nothing if
// their weight falls short of it. Narrows by halves, so that no more than a few are ever sorted.
std::optional<int32_t> last_within(std::vector<int32_t> ids, const Row& row, double share) {
  constexpr ptrdiff_t kFew = 32;
  const ByRank by_rank{row.logits};
  auto begin = ids.begin(), end = ids.end();
  double before = 0;
  while (end - begin > kFew) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, by_rank);
    double upper = before;
    for (auto id = begin; id != middle; ++id) upper += row.weight(*id);
    (upper >= share ? end : begin) = middle;
    if (begin == middle) before = upper;
  }
  std::sort(begin, end, by_rank);
  for (; begin != end; ++begin) {
    before += row.weight(*begin);
    if (before >= share) return *begin;
  }
  return std::nullopt;
}

// The last token in order of rank that top-k and top-p keep, or nothing when it may not be among
// the candidates `ids`.
std::optional<int32_t> last_kept(std::vector<int32_t> ids, const Row& row) {
  if (ids.size() > row.limit()) {
    const auto end = ids.begin() + static_cast<ptrdiff_t>(row.limit());
    std::nth_element(ids.begin(), end, ids.end(), ByRank{row.logits});
    ids.erase(end, ids.end());
  }
  const bool whole = ids.size() == row.limit();
  const int32_t last = *std::max_element(ids.begin(), ids.end(), ByRank{row.logits});
  double total = row.total;
  if (row.limit() < row.logits.size()) {
    if (!whole) return std::nullopt;
    total = 0;
    for (int32_t id : ids) total += row.weight(id);
  }
  if (row.options.top_p < 1) {
    if (const auto found = last_within(std::move(ids), row, row.options.top_p * total)) {
      return found;
    }
  }
  return whole ? std::optional(last) : std::nullopt;
}

int32_t draw_filtered(const Row& row, double point) {
  std::vector<int32_t> ids;
  std::optional<int32_t> last;
  for (double width = kFirstWidth; !last; width *= 2) {
    ids = candidates(row, width < kLastWidth ? width : INFINITY);
    last = last_kept(ids, row);
  }
  std::erase_if(ids, [&](int32_t id) { return ByRank{row.logits}(*last, id); });
  return ids[draw(ids.size(), [&](size_t i) { return row.weight(ids[i]); }, point)];
}

// Returns -1 when some logit is not a number.
int32_t draw_token(const Kernels& kernels, std::span<const float> logits, float peak,
                   const SamplingOptions& options, double point) {
  static thread_local std::vector<double> weights;
  weights.resize(logits.size());
  kernels.weigh(logits.data(), static_cast<int>(logits.size()), peak, options.temperature,
                options.min_p, weights.data());
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!std::isfinite(total)) return -1;
  const Row row{logits, weights, total, peak, options};
  if (row.limit() < logits.size() || options.top_p < 1) return draw_filtered(row, point);
  return static_cast<int32_t>(draw(weights.size(), [&](size_t i) { return weights[i]; }, point));
}

// Log-probabilities of a row of logits.
class LogSoftmax {
 public:
  LogSoftmax(const Kernels& kernels, std::span<const float> logits)
      : logits_(logits), peak_(kernels.peak(logits.data(), static_cast<int>(logits.size()))) {
    std::vector<double> weights(logits.size());
    kernels.weigh(logits.data(), static_cast<int>(logits.size()), peak_, 1, 0, weights.data());
    log_ = static_cast<float>(std::log(std::accumulate(weights.begin(), weights.end(), 0.0)));
  }

  float at(int32_t id) const {
    return std::max(logits_[static_cast<size_t>(id)] - peak_ - log_, kLogprobFloor);
  }

  // The `count` most likely tokens, ties by lower id.
  std::vector<std::pair<int32_t, float>> top(size_t count) const {
    std::vector<int32_t> ids;
    const ByRank before{logits_};
    for (int32_t id = 0; count > 0 && id < static_cast<int32_t>(logits_.size()); id++) {
      if (ids.size() == count && !before(id, ids.back())) continue;
      if (ids.size() == count) ids.pop_back();
      ids.insert(std::upper_bound(ids.begin(), ids.end(), id, before), id);
    }
    std::vector<std::pair<int32_t, float>> top;
    for (int32_t id : ids) top.emplace_back(id, at(id));
    return top;
  }

 private:
  std::span<const float> logits_;
  float peak_;
  float log_ = 0;
};

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

Sampler::Sampler(int slots, int vocab_size, const Kernels& kernels)
    : vocab_size_(vocab_size), kernels_(kernels), slots_(static_cast<size_t>(slots)) {}

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
    const float peak = kernels_.peak(logits, vocab_size_);
    choice.id = options.greedy
                    ? argmax(all, peak)
                    : draw_token(kernels_, all, peak, options, uniform(options.seed, position));
    if (options.logprobs >= 0 && choice.id >= 0) {
      const LogSoftmax logprobs(kernels_, raw);
      choice.logprob = logprobs.at(choice.id);
      choice.top = logprobs.top(static_cast<size_t>(options.logprobs));
    }
  }
  if (choice.id >= 0) state.accept(choice.id);
  return choice;
}

}  // namespace turing
