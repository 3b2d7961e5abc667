// The thread team under stress: every chunk once, phases in order, with late and sleepy threads.
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "pool.h"

namespace {

using turing::Pool;

// Counts how often each chunk runs and that all chunks of earlier phases are done by then.
class Counting final : public turing::Program {
 public:
  Counting(std::vector<int> sizes, int sleep_one_in, uint64_t seed)
      : sizes_(std::move(sizes)), sleep_one_in_(sleep_one_in), seed_(seed) {
    for (int size : sizes_) {
      runs_.push_back(std::vector<std::atomic<int>>(static_cast<size_t>(size)));
    }
  }
  int phases() const override { return static_cast<int>(sizes_.size()); }
  int chunks(int phase) const override { return sizes_[static_cast<size_t>(phase)]; }
  void run(int phase, int chunk, int worker) noexcept override {
    const auto p = static_cast<size_t>(phase);
    CHECK(worker >= 0);
    CHECK(runs_[p][static_cast<size_t>(chunk)].fetch_add(1) == 0);
    // What a phase wrote without atomics is visible in the next one.
    int expected = 0;
    for (size_t q = 0; q < p; q++) {
      CHECK(done_at(q) == sizes_[q]);
      if (sizes_[q] > 0) expected = static_cast<int>(q) + 1;
    }
    if (chunk == 0) {
      CHECK(last_ == expected);
      last_ = phase + 1;
    }
    std::minstd_rand random(static_cast<uint32_t>(seed_ + p * 131 + static_cast<size_t>(chunk)));
    if (sleep_one_in_ > 0 && random() % static_cast<uint32_t>(sleep_one_in_) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    done_[p % kPhases].fetch_add(1);
  }
  void check_all() const {
    for (const auto& phase : runs_) {
      for (const auto& count : phase) CHECK(count.load() == 1);
    }
  }

 private:
  static constexpr size_t kPhases = 64;
  int done_at(size_t phase) const { return done_[phase % kPhases].load(); }

  std::vector<int> sizes_;
  int sleep_one_in_;
  uint64_t seed_;
  std::vector<std::vector<std::atomic<int>>> runs_;
  std::atomic<int> done_[kPhases] = {};
  int last_ = 0;  // written by one chunk of each phase, read by one of the next
};

void test_every_chunk_once(int threads, int programs, int sleep_one_in) {
  Pool pool(threads);
  std::mt19937 random(static_cast<uint32_t>(threads));
  for (int i = 0; i < programs; i++) {
    std::vector<int> sizes(random() % 40);
    for (int& size : sizes) size = static_cast<int>(random() % 5 == 0 ? 0 : random() % 20);
    Counting program(std::move(sizes), sleep_one_in, random());
    pool.run(program);
    program.check_all();
    // Let the team fall asleep now and then.
    if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void test_largest_phase() {
  Pool pool(3);
  Counting program({Pool::kMaxChunks, 1, Pool::kMaxChunks}, 0, 1);
  pool.run(program);
  program.check_all();
}

void test_each_covers_any_count() {
  Pool pool(4);
  for (int64_t count : {0, 1, 3, 4095, 4096, 100000}) {
    auto runs = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(count) + 1);
    pool.each(count, [&](int64_t i, int) { runs[static_cast<size_t>(i)].fetch_add(1); });
    for (int64_t i = 0; i < count; i++) CHECK(runs[static_cast<size_t>(i)].load() == 1);
  }
}

void test_pools_come_and_go() {
  for (int i = 0; i < 100; i++) {
    Pool pool(1 + i % 8);
    if (i % 3 != 0) pool.each(10, [](int64_t, int) {});
  }
}

}  // namespace

int main() {
  for (int threads = 1; threads <= 8; threads++) {
    test_every_chunk_once(threads, 300, 0);
    test_every_chunk_once(threads, 20, 16);
  }
  test_largest_phase();
  test_each_covers_any_count();
  test_pools_come_and_go();
}
