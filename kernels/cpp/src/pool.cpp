#include "pool.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace turing {
namespace {

constexpr int kEpochShift = 24, kNextShift = 12;
constexpr uint64_t kFieldMask = 0xfff, kLeftMask = 0xffffff;

// Inside a program a thread spins this often before it starts to offer its core to others.
constexpr int kSpinsInside = 20000;
// Between programs it spins this often before it sleeps.
constexpr int kSpinsBetween = 2000;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

uint64_t epoch_of(uint64_t word) { return word >> kEpochShift; }

class EachProgram final : public Program {
 public:
  EachProgram(int64_t count, const std::function<void(int64_t, int)>& body)
      : count_(count), body_(body) {}
  int phases() const override { return 1; }
  int chunks(int) const override {
    return static_cast<int>(std::min<int64_t>(count_, Pool::kMaxChunks));
  }
  void run(int, int chunk, int worker) noexcept override {
    const int64_t parts = chunks(0);
    for (int64_t i = count_ * chunk / parts; i < count_ * (chunk + 1) / parts; i++) {
      body_(i, worker);
    }
  }

 private:
  int64_t count_;
  const std::function<void(int64_t, int)>& body_;
};

// Cores of a cgroup-v2 CPU quota, or `cores` when there is none.
int within_quota(int cores) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return cores;
  const double share = std::strtod(quota.c_str(), nullptr) / period;
  return std::clamp(static_cast<int>(share), 1, cores);
}

}  // namespace

Pool::Pool(int threads) : queues_(static_cast<size_t>(threads)) {
  for (int i = 1; i < threads; i++) threads_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(Program& program) {
  program_ = &program;
  programs_++;
  running_.store(true, std::memory_order_relaxed);
  open_from(0);
  wake_.fetch_add(1);
  if (asleep_.load() != 0) wake_.notify_all();
  uint64_t seen = 0;
  for (int spins = 0; finished_.load(std::memory_order_acquire) != programs_; spins++) {
    const uint64_t epoch = epoch_of(queues_[0].word.load(std::memory_order_acquire));
    if (epoch != seen) {
      drain(epoch, 0);
      seen = epoch;
      spins = 0;
    } else if (spins < kSpinsInside) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
  base_ += static_cast<uint64_t>(program.phases());
}

void Pool::each(int64_t count, const std::function<void(int64_t, int)>& body) {
  if (count <= 0) return;
  EachProgram program(count, body);
  run(program);
}

void Pool::work(int worker) {
  uint64_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t epoch = await_epoch(worker, seen);
    if (epoch == seen) continue;
    drain(epoch, worker);
    seen = epoch;
  }
}

// Returns the epoch of an open phase other than `seen`, or `seen` after a sleep.
uint64_t Pool::await_epoch(int worker, uint64_t seen) {
  const std::atomic<uint64_t>& word = queues_[static_cast<size_t>(worker)].word;
  uint64_t epoch;
  int inside = 0, between = 0;
  while ((epoch = epoch_of(word.load(std::memory_order_acquire))) == seen) {
    if (running_.load(std::memory_order_relaxed)) {
      if (++inside < kSpinsInside) {
        relax();
      } else {
        std::this_thread::yield();
      }
    } else if (++between < kSpinsBetween) {
      relax();
    } else {
      const uint32_t ticket = wake_.load();
      asleep_.fetch_add(1);
      const bool quiet = epoch_of(word.load()) == seen && !stop_.load();
      if (quiet) wake_.wait(ticket);
      asleep_.fetch_sub(1);
      return epoch_of(word.load(std::memory_order_acquire));
    }
  }
  return epoch;
}

void Pool::drain(uint64_t epoch, int worker) {
  const size_t team = queues_.size();
  for (size_t i = 0; i < team; i++) {
    Queue& queue = queues_[(static_cast<size_t>(worker) + i) % team];
    int chunk;
    while (claim(queue, epoch, chunk)) {
      program_->run(static_cast<int>(epoch - base_), chunk, worker);
      complete(epoch);
    }
  }
}

bool Pool::claim(Queue& queue, uint64_t epoch, int& chunk) {
  uint64_t word = queue.word.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t next = word >> kNextShift & kFieldMask;
    if (epoch_of(word) != epoch || next >= (word & kFieldMask)) return false;
    if (queue.word.compare_exchange_weak(word, word + (uint64_t{1} << kNextShift),
                                         std::memory_order_acq_rel, std::memory_order_acquire)) {
      chunk = static_cast<int>(next);
      return true;
    }
  }
}

// Marks one chunk as done; whoever does the last one opens the next phase.
void Pool::complete(uint64_t epoch) {
  const uint64_t before = left_.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & kLeftMask) == 1) open_from(static_cast<int>(epoch - base_) + 1);
}

void Pool::open_from(int phase) {
  for (const int phases = program_->phases(); phase < phases; phase++) {
    if (const int chunks = program_->chunks(phase)) return open(phase, chunks);
  }
  running_.store(false, std::memory_order_relaxed);
  finished_.store(programs_, std::memory_order_release);
}

void Pool::open(int phase, int chunks) {
  const uint64_t epoch = (base_ + static_cast<uint64_t>(phase)) << kEpochShift;
  left_.store(epoch | static_cast<uint64_t>(chunks), std::memory_order_relaxed);
  const auto team = static_cast<uint64_t>(queues_.size());
  for (uint64_t i = 0; i < team; i++) {
    const uint64_t from = static_cast<uint64_t>(chunks) * i / team;
    const uint64_t to = static_cast<uint64_t>(chunks) * (i + 1) / team;
    queues_[i].word.store(epoch | from << kNextShift | to, std::memory_order_release);
  }
}

int usable_cores() {
  cpu_set_t set;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  return within_quota(std::max(cores, 1));
}

}  // namespace turing
