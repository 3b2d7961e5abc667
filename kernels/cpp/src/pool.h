// A fixed team of threads that runs programs of many short parallel phases.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace turing {

// What the team runs: phases one after the other, each a set of independent chunks.
class Program {
 public:
  virtual ~Program() = default;
  virtual int phases() const = 0;
  // At most Pool::kMaxChunks; a phase with 0 is skipped.
  virtual int chunks(int phase) const = 0;
  // Computes one chunk on the team's thread `worker`. Must not throw.
  virtual void run(int phase, int chunk, int worker) noexcept = 0;
};

// Threads claim chunks from per-thread queues, their own first and then the others'. A phase ends
// when its chunks are done, not when every thread has arrived: a thread that the kernel took off
// its core costs its share of the work and joins again wherever the team is by then. All claims
// are made on words that carry the number of the phase, so a late thread can never touch a chunk
// of another phase, and it reads nothing of a program before it has claimed a chunk of it.
class Pool {
 public:
  static constexpr int kMaxChunks = 4095;

  // Starts threads - 1 threads; the caller of run() is the first of the team.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(queues_.size()); }

  // Returns when all phases are done. Not reentrant, one caller at a time.
  void run(Program& program);
  // Runs body(chunk, worker) for the chunks 0 ... count - 1, in any number.
  void each(int64_t count, const std::function<void(int64_t, int)>& body);

 private:
  // epoch : 40 | next chunk : 12 | end of the queue : 12
  struct alignas(64) Queue {
    std::atomic<uint64_t> word{0};
  };

  void work(int worker);
  uint64_t await_epoch(int worker, uint64_t seen);
  void drain(uint64_t epoch, int worker);
  bool claim(Queue& queue, uint64_t epoch, int& chunk);
  void complete(uint64_t epoch);
  void open_from(int phase);
  void open(int phase, int chunks);

  std::vector<Queue> queues_;
  // epoch : 40 | chunks not done : 24
  alignas(64) std::atomic<uint64_t> left_{0};
  alignas(64) std::atomic<uint64_t> finished_{0};  // programs
  std::atomic<bool> running_{false};
  std::atomic<uint32_t> wake_{0};
  std::atomic<uint32_t> asleep_{0};
  std::atomic<bool> stop_{false};
  // Written between programs, read after a claim.
  Program* program_ = nullptr;
  uint64_t base_ = 1;  // epoch of the program's phase 0
  uint64_t programs_ = 0;
  std::vector<std::thread> threads_;
};

// Cores that this process may use: its affinity, limited by a cgroup quota.
int usable_cores();

}  // namespace turing
