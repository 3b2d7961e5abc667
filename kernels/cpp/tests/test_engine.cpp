// Whole steps on a tiny model: the same bits however a sequence is cut, batched and threaded.
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "engine.h"
#include "error.h"
#include "files.h"

namespace {

using turing::Chunk;
using turing::Engine;
using turing::EngineOptions;
using turing::SamplingOptions;

using Ids = std::vector<int32_t>;

constexpr int kLength = 290;

EngineOptions options_for(const std::string& path, int threads, bool exact) {
  EngineOptions options;
  options.path = path;
  options.threads = threads;
  options.exact = exact;
  options.pages = 64;
  options.slots = 8;
  options.max_rows = 512;
  return options;
}

Ids prompt(uint32_t seed, int length = kLength) {
  std::minstd_rand random(seed);
  Ids ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 200);
  return ids;
}

SamplingOptions greedy() {
  SamplingOptions options;
  options.greedy = true;
  return options;
}

Ids pages(int first, int count) {
  Ids table(static_cast<size_t>(count));
  std::iota(table.begin(), table.end(), first);
  return table;
}

std::span<const int32_t> part(const Ids& ids, int from, int to) {
  return std::span(ids).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
}

// The logits behind the sequence, computed in chunks of `chunk` beside `company` other sequences.
std::vector<float> logits_of(Engine& engine, int chunk, int company) {
  const Ids ids = prompt(1), others = prompt(2);
  const auto vocab = static_cast<size_t>(engine.spec().vocab_size);
  std::vector<float> logits(vocab * 8);
  for (int slot = 0; slot <= company; slot++) engine.start(slot, greedy(), {}, {});
  std::vector<Ids> tables;
  for (int slot = 0; slot <= company; slot++) tables.push_back(pages(slot * 8, 8));
  for (int start = 0; start < kLength; start += chunk) {
    const int end = std::min(kLength, start + chunk);
    std::vector<Chunk> chunks;
    for (int slot = 1; slot <= company; slot++) {
      // Every second neighbour decodes, the others prefill a little.
      const int from = start % 200, rows = slot % 2 == 0 ? 1 : 1 + slot * 3;
      chunks.push_back(
          {slot, from, part(others, from, from + rows), tables[static_cast<size_t>(slot)], true});
    }
    chunks.push_back({0, start, part(ids, start, end), tables[0], true});
    engine.step(chunks, logits.data());
  }
  const float* own = logits.data() + vocab * static_cast<size_t>(company);
  return {own, own + vocab};
}

void test_bits(const std::string& path, bool exact) {
  Engine single(options_for(path, 1, exact));
  const std::vector<float> wanted = logits_of(single, kLength, 0);
  for (int threads : {1, 2, 3, 8}) {
    Engine engine(options_for(path, threads, exact));
    for (int chunk : {kLength, 128, 64, 13, 1}) {
      for (int company : {0, 1, 5}) {
        const std::vector<float> found = logits_of(engine, chunk, company);
        CHECK(std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)) == 0);
      }
    }
  }
}

void test_refusals(const std::string& path) {
  Engine engine(options_for(path, 2, false));
  engine.start(0, greedy(), {}, {});
  const Ids ids = prompt(1, 70), one = pages(0, 1), two = pages(0, 2), bad = {64};
  const auto refuses = [&](const Chunk& chunk, const char* words) {
    const std::string message = message_of([&] { engine.step({&chunk, 1}, nullptr); });
    CHECK(contains(message, words));
  };
  refuses({0, 0, ids, one, true}, "slot 0 has 1 pages and needs 2");
  refuses({0, 0, part(ids, 0, 0), one, true}, "is empty");
  refuses({0, -1, ids, two, true}, "starts at -1");
  refuses({8, 0, ids, two, true}, "slot 8 is not from 0 to 7");
  refuses({1, 0, ids, two, true}, "slot 1 was not started");
  refuses({0, 0, part(ids, 0, 3), bad, true}, "page 64 is not from 0 to 63");
  const Ids wrong = {200};
  refuses({0, 0, wrong, one, true}, "token 200 is not in the vocabulary");
  const Ids many(513, 1), table = pages(0, 9);
  refuses({0, 0, many, table, true}, "larger than 512");
  const Chunk good{0, 0, ids, two, true};
  CHECK(engine.step({&good, 1}, nullptr)[0].id >= 0);
  CHECK(engine.step({}, nullptr).empty());
}

void test_uniform() {
  CHECK(turing::uniform(0, 0) == 0x1.2086089bfcf34p-2);
  CHECK(turing::uniform(0, 1) == 0x1.9ae7fc7bd2eb5p-1);
  CHECK(turing::uniform(42, 7) == 0x1.217db2ca00f4ep-1);
  CHECK(turing::uniform(-1, 0) == 0x1.1140638c16042p-2);
  CHECK(turing::uniform(INT64_MAX, 8191) == 0x1.b5df2fc123a98p-2);
  CHECK(turing::uniform(INT64_MIN, 1) == 0x1.657ddc43c9c7cp-2);
}

}  // namespace

int main() {
  Folder folder;
  const std::string path = folder.write("model.gguf", tiny_gguf());
  test_bits(path, false);
  test_bits(path, true);
  test_refusals(path);
  test_uniform();
}
