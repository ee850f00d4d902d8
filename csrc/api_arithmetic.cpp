// How fast each instruction set is here: the real kernels on tiles that stay in L1, in
// milliseconds.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "api.h"
#include "arguments.h"
#include "cpu_features.h"
#include "dispatch.h"
#include "linear_q8.h"

namespace chairlift {
namespace {

using Clock = std::chrono::steady_clock;

// All levels take turns, the narrowest first: after a wide instruction some processors stay at a
// lower frequency for a while.  A burst is shorter than what another process takes away at a time,
// and the best one counts.
constexpr int kTurns = 4;
constexpr int kBurstsPerTurn = 6;
constexpr std::chrono::microseconds kBurst{50};
constexpr int64_t kMaxCalls = 1000;

constexpr int64_t kRows = 24;  // whole tiles at every level
constexpr int64_t kFloatDepth = 96;
constexpr int64_t kByteDepth = 128;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  Clock::time_point start_ = Clock::now();
};

// Seconds of one call, in the best of a turn's bursts.
template <class Call>
double measure_turn(const Call& call) {
  const Stopwatch first;
  call();
  double best = first.seconds();
  const double burst = std::chrono::duration<double>(kBurst).count();
  const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(burst / best), 1, kMaxCalls);
  for (int i = 0; i < kBurstsPerTurn; ++i) {
    const Stopwatch stopwatch;
    for (int64_t call_index = 0; call_index < calls; ++call_index) call();
    best = std::min(best, stopwatch.seconds() / static_cast<double>(calls));
  }
  return best;
}

// 1e9 multiply-adds per second at each level; `call(level)` does `count` of them.
template <class Level, class Call>
void measure_turns(const std::vector<Level>& levels, int64_t count, const Call& call,
                   double* rates) {
  std::fill_n(rates, levels.size(), 0.0);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = levels.size(); i-- > 0;) {
      const double seconds = measure_turn([&] { call(levels[i]); });
      rates[i] = std::max(rates[i], static_cast<double>(count) / seconds * 1e-9);
    }
  }
}

// Numbers between -1 and 1 without a pattern.
std::vector<float> make_floats(int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return numbers;
}

void measure_floats(double* rates) {
  constexpr int64_t kColumns = CHAIRLIFT_PANEL_WIDTH;
  const std::vector<float> x = make_floats(kRows * kFloatDepth);
  const std::vector<float> packed = make_floats(kColumns * kFloatDepth);
  std::vector<float> out(static_cast<size_t>(kRows * kColumns));
  const LinearTask task = {x.data(), packed.data(), nullptr, out.data(), kFloatDepth, kColumns};
  const auto call = [&](const FloatLevel& level) {
    level.kernels->linear(task, {0, kRows, 0, 1, nullptr});
  };
  measure_turns(float_levels(), kRows * kColumns * kFloatDepth, call, rates);
}

// Codes of four bits with scales and minima, which is what most quantised files hold.
int32_t measure_bytes(double* rates) {
  constexpr int64_t kColumns = kQ8PanelColumns, kGroup = 32, kGroups = kByteDepth / kGroup;
  std::vector<uint8_t> codes(static_cast<size_t>(kColumns * kByteDepth));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 % 16);
  const std::vector<float> scales = make_floats(kColumns * kGroups);
  const std::vector<float> mins(scales.rbegin(), scales.rend());
  chairlift_grouped_weights weights = {};
  weights.struct_size = sizeof weights;
  weights.codes = codes.data();
  weights.scales = scales.data();
  weights.mins = mins.data();
  weights.out_features = kColumns;
  weights.in_features = kByteDepth;
  weights.bits = 4;
  weights.group_size = kGroup;
  RowBuffer packed, records, scratch;
  chairlift_pool pool(1);
  uint8_t* memory = packed.get(chairlift_linear_q8_size(&weights));
  if (!memory) return out_of_memory();
  const int32_t status = chairlift_linear_q8_pack(&pool, &weights, memory);
  if (status != CHAIRLIFT_OK) return status;

  const std::vector<float> x = make_floats(kRows * kByteDepth);
  std::vector<float> out(static_cast<size_t>(kRows * kColumns));
  LinearQ8Task task = {};
  task.weight = as_packed(memory);
  task.out = out.data();
  const LinearQ8Tile tile = {0, kRows, 0, 1, nullptr};
  const int64_t group = task.weight->activation_group;
  uint8_t* rows = records.get(kRows * group_row_bytes(kByteDepth, group));
  uint8_t* space = scratch.get(linear_q8_scratch_bytes(task, tile));
  if (!rows || !space) return out_of_memory();
  task.rows = rows;
  byte_levels().front().kernels->quantize_rows(x.data(), kRows, kByteDepth, group, rows);
  const auto call = [&](const ByteLevel& level) {
    LinearQ8Task own = task;
    own.unpack_rows = level.kernels->unpack_rows;
    level.kernels->linear(own, tile, space);
  };
  measure_turns(byte_levels(), kRows * kColumns * kByteDepth, call, rates);
  return CHAIRLIFT_OK;
}

template <class Level>
std::string join_names(const std::vector<Level>& levels) {
  std::string joined;
  for (const Level& level : levels) {
    if (!joined.empty()) joined += ",";
    joined += level.name;
  }
  return joined;
}

}  // namespace
}  // namespace chairlift

extern "C" {

const char* chairlift_processor(void) {
  static const std::string identity = chairlift::identify_processor();
  return identity.c_str();
}

const char* chairlift_levels(int32_t arithmetic) {
  static const std::string floats = chairlift::join_names(chairlift::float_levels());
  static const std::string bytes = chairlift::join_names(chairlift::byte_levels());
  if (arithmetic == CHAIRLIFT_FLOATS) return floats.c_str();
  if (arithmetic == CHAIRLIFT_BYTES) return bytes.c_str();
  chairlift::invalid("levels: no such kind");
  return "";
}

int32_t chairlift_measure_levels(int32_t arithmetic, double* rates) {
  if (!rates) return chairlift::invalid("measure_levels: rates is null");
  if (!chairlift::all_aligned(rates)) {
    return chairlift::invalid("measure_levels: rates is not aligned");
  }
  try {
    if (arithmetic == CHAIRLIFT_BYTES) return chairlift::measure_bytes(rates);
    if (arithmetic != CHAIRLIFT_FLOATS) return chairlift::invalid("measure_levels: no such kind");
    chairlift::measure_floats(rates);
    return CHAIRLIFT_OK;
  } catch (const std::bad_alloc&) {
    return chairlift::out_of_memory();
  }
}

}  // extern "C"
