// Speed of single kernels on one thread, and what the machine could do at best, as lines of JSON.
//
//   bench_kernels [isa]     isa = "" for the best of this processor
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "memory.h"
#include "number.h"
#include "pool.h"
#include "simd/kernels.h"

namespace {

using namespace turing;

constexpr double kSeconds = 0.25;            // per measurement
constexpr size_t kCold = size_t{256} << 20;  // more than any last-level cache at hand

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds per call of `body`, the median of many.
double seconds_of(const std::function<void()>& body) {
  std::vector<double> times;
  body();
  for (const double end = now() + kSeconds; now() < end || times.size() < 5;) {
    const double start = now();
    body();
    times.push_back(now() - start);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

Pages random_bytes(size_t size) {
  Pages memory(size, true);
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t value = random() & 0x3f3f3f3f3f3f3f3f;  // finite halves and floats
    std::memcpy(memory.data() + i, &value, 8);
  }
  return memory;
}

void bench_matmul(const Kernels& kernels, Tile tile, Activations kind, int rows, bool cold,
                  const Pages& weights) {
  const int k = 576, columns = 576, blocks = operand_blocks(k), tiles = columns / kColumnTile;
  const size_t bytes = tile_bytes(tile, blocks) * static_cast<size_t>(tiles);
  const Pages x = random_bytes(operand_stride(k, kind) * static_cast<size_t>((rows + 7) / 8));
  Pages out(static_cast<size_t>(rows * columns) * sizeof(float));
  const size_t copies = cold ? weights.size() / bytes : 1;
  size_t copy = 0;
  const double seconds = seconds_of([&] {
    const auto* data = weights.as<uint8_t>() + bytes * (copy++ % copies);
    kernels.matmul({{data, columns, blocks, tile},
                    {x.data(), rows, k, kind},
                    0,
                    tiles,
                    out.as<float>(),
                    static_cast<size_t>(columns),
                    nullptr,
                    false});
  });
  constexpr const char* kNames[] = {"w4", "w8", "f16", "bf16", "f32"};
  std::printf(R"({"kernel": "matmul", "isa": "%s", "weights": "%s", "rows": "%s", "m": %d, )"
              R"("cold": %s, "us": %.2f, "gmac_s": %.1f, "gb_s": %.2f})"
              "\n",
              kernels.name, kNames[static_cast<int>(tile)],
              kind == Activations::Int8 ? "int8" : "float", rows, cold ? "true" : "false",
              seconds * 1e6, rows * static_cast<double>(columns) * k / seconds / 1e9,
              static_cast<double>(bytes) / seconds / 1e9);
}

void bench_attention(const Kernels& kernels, KvFormat format, int queries, bool cold,
                     const Pages& pages) {
  const int dim = 64, heads = 3, table_pages = 4;
  const size_t page = kv_head_bytes(format, dim) * heads;
  const int32_t copies = cold ? static_cast<int32_t>(pages.size() / page) : table_pages;
  const auto rows = static_cast<size_t>(heads * queries);
  const Pages query = random_bytes(rows * dim * sizeof(float));
  std::vector<float> out(rows * dim), peak(rows), sum(rows);
  std::vector<int32_t> first(static_cast<size_t>(queries), 0), last(first.size(), 255);
  std::vector<int32_t> table(table_pages);
  int32_t next = 0;
  const double seconds = seconds_of([&] {
    for (int32_t& entry : table) entry = static_cast<int32_t>(int64_t{next++} * 7919 % copies);
    kernels.attend({format, pages.data(), page, table.data(), table_pages, dim, heads, queries, 0,
                    2, first.data(), last.data(), query.data(), out.data(), peak.data(),
                    sum.data()});
  });
  const double macs = 2.0 * static_cast<double>(rows) * 256 * dim;
  std::printf(R"({"kernel": "attend", "isa": "%s", "pages": "%s", "queries": %d, "cold": %s, )"
              R"("us": %.2f, "gmac_s": %.1f, "gb_s": %.2f})"
              "\n",
              kernels.name, format == KvFormat::BF16 ? "bf16" : "f32", queries,
              cold ? "true" : "false", seconds * 1e6, macs / seconds / 1e9,
              static_cast<double>(page) * table_pages / seconds / 1e9);
}

// The rate at which `threads` threads read memory, in GB/s: the roof of small batches.
void bench_bandwidth(int threads, const Pages& memory) {
  Pool pool(threads);
  const size_t words = memory.size() / sizeof(uint64_t);
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  const int64_t parts = int64_t{threads} * 16;
  const double seconds = seconds_of([&] {
    pool.each(parts, [&](int64_t part, int worker) {
      const auto* from =
          memory.as<uint64_t>() + words * static_cast<size_t>(part) / static_cast<size_t>(parts);
      const auto* to = memory.as<uint64_t>() +
                       words * static_cast<size_t>(part + 1) / static_cast<size_t>(parts);
      uint64_t a = 0, b = 0, c = 0, d = 0;
      for (; from + 8 <= to; from += 8) {
        a += from[0] ^ from[4];
        b += from[1] ^ from[5];
        c += from[2] ^ from[6];
        d += from[3] ^ from[7];
      }
      sums[static_cast<size_t>(worker) * 8] += a + b + c + d;
    });
  });
  std::printf(R"({"roof": "read", "threads": %d, "gb_s": %.1f})"
              "\n",
              threads, static_cast<double>(memory.size()) / seconds / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels& kernels = select_kernels(argc > 1 ? argv[1] : "");
  const Pages memory = random_bytes(kCold);
  for (int threads = 1; threads <= usable_cores(); threads *= 2) bench_bandwidth(threads, memory);
  for (bool cold : {false, true}) {
    for (int rows : {1, 2, 4, 8, 32, 128}) {
      bench_matmul(kernels, Tile::W4, Activations::Int8, rows, cold, memory);
      bench_matmul(kernels, Tile::W8, Activations::Int8, rows, cold, memory);
    }
    for (int rows : {1, 8, 32}) {
      bench_matmul(kernels, Tile::BF16, Activations::Float, rows, cold, memory);
    }
    for (int queries : {3, 48}) {
      bench_attention(kernels, KvFormat::BF16, queries, cold, memory);
      bench_attention(kernels, KvFormat::F32, queries, cold, memory);
    }
  }
}
