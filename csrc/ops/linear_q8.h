// y = x W^T + b for packed integer weights (q8_layout.h) and quantised rows.
//
// Per group the integer sum of codes times activations is exact; it becomes a float, is scaled and
// added to the output's chain, groups in the order of K.  Whatever the tile's shape and wherever
// the codes were unpacked, an output is the same chain, so results do not depend on how many rows
// there are.
#pragma once

#include "../isa/kernel_table.h"
#include "../q8_layout.h"
#include "dot.h"
#include "quantize.h"

namespace chairlift {
namespace {

#if defined(CHAIRLIFT_VEC_AVX512)
// 12 integer and 12 float accumulators of 32 registers.
constexpr int kQ8Rows = 4;
constexpr int kQ8NarrowRows = 4;  // in the last panel if it is not whole
constexpr int q8_tile_vectors(int, int panel) { return panel; }
constexpr int64_t kUnpackRows = 16;  // from here on codes are unpacked once for all rows
#elif defined(CHAIRLIFT_VEC_AVX2)
#if defined(CHAIRLIFT_DOT_VNNI)
constexpr int kQ8Rows = 4;  // 8 integer accumulators of 16 registers; floats wait in memory
#else
constexpr int kQ8Rows = 3;
#endif
constexpr int kQ8NarrowRows = 1;
constexpr int q8_tile_vectors(int rows, int panel) { return rows == 1 ? panel : 1; }
constexpr int64_t kUnpackRows = 0;  // never: four-bit products are cheaper than full ones
#else
constexpr int kQ8Rows = 2;
constexpr int kQ8NarrowRows = 1;
constexpr int q8_tile_vectors(int, int) { return 1; }
constexpr int64_t kUnpackRows = 0;
#endif

// Rows that share the fetching of the next panel: all of it at once is more than can be on its way,
// and what is needed first waits behind it.
constexpr int64_t kFetchingRows = 32;

// How far ahead a single row over whole bytes fetches: its panel is too large to be read as fast as
// memory gives it if all that comes next is asked for panel by panel.
constexpr int64_t kNearBytes = 32 * 64;

// What a tile reads and where its outputs go; pointers are those of the tile's first row and of the
// panel's first column.
struct Q8Operands {
  const uint8_t* rows;  // records
  int64_t row_bytes;
  const uint8_t* codes;
  const void* scales;
  int64_t num_groups;  // of activations
  float* out;
  int64_t out_stride;
  const float* bias;      // may be null
  const float* residual;  // may be null; laid out like `out`
  int64_t width;          // columns that exist
  bool streams;           // whole vectors of `out` go past the caches
  // What the first rows fetch meanwhile, in equal parts.
  const uint8_t* ahead;
  int64_t ahead_lines;
  int64_t fetching_rows;
};

// What a tile fetches.
struct AheadLines {
  const uint8_t* first;
  int64_t count;
};

template <int STORED_BITS, int GROUP, Q8Form FORM, typename SCALE>
struct Q8Kind {
  static constexpr int kStoredBits = STORED_BITS;
  static constexpr int kActivationGroup = GROUP == 64 ? 64 : 32;
  static constexpr int kPieces = kActivationGroup / GROUP;
  static constexpr int kSteps = GROUP / 4;  // of a piece
  static constexpr Q8Form kForm = FORM;
  static constexpr int kZeroPoint = FORM == Q8Form::kMinimum ? 0 : STORED_BITS == 4 ? 8 : 128;
  static constexpr int kScaleRows = FORM == Q8Form::kChannel ? 0 : FORM == Q8Form::kMinimum ? 2 : 1;
  using Scale = SCALE;
};

// What the integer sum of a piece starts with: the zero point times the sum of activations, less.
template <class KIND>
CHAIRLIFT_INLINE I16 initial_sum(const GroupTail* tail, int piece) {
  constexpr int kFactor = Dot<KIND::kStoredBits>::kOffset - KIND::kZeroPoint;
  if constexpr (kFactor == 0) {
    return I16::all(0);
  } else {
    int32_t sum = tail->sum;
    if constexpr (KIND::kPieces == 2) {
      sum = piece == 0 ? tail->sum_first_half : sum - tail->sum_first_half;
    }
    return I16::all(sum * kFactor);
  }
}

CHAIRLIFT_INLINE F16 load_columns(const float* p, int64_t width) {
  if (width >= kLanes) return F16::load(p);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < width; ++i) lanes[i] = p[i];
  return F16::load(lanes);
}

CHAIRLIFT_INLINE void store_columns(F16 value, float* p, int64_t width) {
  if (width >= kLanes) return value.store(p);
  float lanes[kLanes];
  value.store(lanes);
  for (int64_t i = 0; i < width; ++i) p[i] = lanes[i];
}

// ROWS rows times VECTORS of the PANEL_VECTORS vectors of columns, from vector `first` on.
// FETCH: and asks for some lines of what comes next meanwhile.  Without that the fastest kind is
// faster still.
template <class KIND, int ROWS, int VECTORS, int PANEL_VECTORS, bool FETCH>
CHAIRLIFT_INLINE void multiply_q8(const Q8Operands& o, int64_t row, int first, AheadLines ahead) {
  using Product = Dot<KIND::kStoredBits>;
  using Scale = typename KIND::Scale;
  constexpr int kStepBytes = PANEL_VECTORS * kCodesBytes;
  constexpr int kGroupBytes = kStepBytes * KIND::kActivationGroup / 4 * KIND::kStoredBits / 8;
  constexpr int kRecordBytes = KIND::kActivationGroup + kGroupTailBytes;
  // More steps than these in one block of code would not keep their sums in registers.
  constexpr int kBlockSteps = ROWS >= 4 && KIND::kSteps > 8 ? 8 : KIND::kSteps;
  const uint8_t* codes = o.codes + first * kCodesBytes;
  const Scale* scales = static_cast<const Scale*>(o.scales) + first * kLanes;
  const uint8_t* record = o.rows + row * o.row_bytes;
  F16 total[ROWS][VECTORS];
  CHAIRLIFT_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    CHAIRLIFT_UNROLL
    for (int v = 0; v < VECTORS; ++v) total[r][v] = F16::all(0.0f);
  }
  // Codes beside the codes that are read, and the scales of the next panel.
  constexpr bool kIsNear = FETCH && ROWS == 1 && KIND::kStoredBits == 8 && KIND::kScaleRows > 0;
  const int64_t panel_bytes = kIsNear && ahead.count > 0 ? ahead.first - o.codes : 0;
  const int64_t portion = FETCH ? (ahead.count + o.num_groups - 1) / o.num_groups : 0;
  for (int64_t g = 0; g < o.num_groups; ++g) {
    if constexpr (FETCH && !kIsNear) {
      for (int64_t i = 0; i < portion; ++i) prefetch_far(ahead.first + (g * portion + i) * 64);
    }
    CHAIRLIFT_UNROLL
    for (int piece = 0; piece < KIND::kPieces; ++piece) {
      Product sum[ROWS][VECTORS];
      CHAIRLIFT_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const uint8_t* tail = record + r * o.row_bytes + KIND::kActivationGroup;
        const I16 start = initial_sum<KIND>(reinterpret_cast<const GroupTail*>(tail), piece);
        CHAIRLIFT_UNROLL
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = Product::start(start);
      }
      for (int some = 0; some < KIND::kSteps; some += kBlockSteps) {
        CHAIRLIFT_UNROLL
        for (int s = some; s < some + kBlockSteps; ++s) {
          const int step = piece * KIND::kSteps + s;
          typename Product::Prepared code[VECTORS];
          CHAIRLIFT_UNROLL
          for (int v = 0; v < VECTORS; ++v) {
            if constexpr (KIND::kStoredBits == 4) {
              const Codes both = Codes::load(codes + step % 4 * kStepBytes + v * kCodesBytes);
              code[v] = Product::prepare(step < 4 ? low_nibbles(both) : high_nibbles(both));
            } else {
              const uint8_t* bytes = codes + step * kStepBytes + v * kCodesBytes;
              if constexpr (kIsNear) prefetch_far(bytes + kNearBytes);
              code[v] = Product::prepare(Codes::load(bytes));
            }
          }
          CHAIRLIFT_UNROLL
          for (int r = 0; r < ROWS; ++r) {
            const uint8_t* quad = record + r * o.row_bytes + 4 * step;
            const Quad activations = Quad::load(reinterpret_cast<const int8_t*>(quad));
            CHAIRLIFT_UNROLL
            for (int v = 0; v < VECTORS; ++v) sum[r][v].add(code[v], activations);
          }
        }
      }
      const Scale* scale = scales + piece * KIND::kScaleRows * PANEL_VECTORS * kLanes;
      if constexpr (kIsNear) {
        const uint8_t* next = reinterpret_cast<const uint8_t*>(scale) + panel_bytes;
        CHAIRLIFT_UNROLL
        for (size_t i = 0; i < KIND::kScaleRows * VECTORS * kLanes * sizeof(Scale); i += 64) {
          prefetch_far(next + i);
        }
      }
      F16 weight_scale[VECTORS], minimum[VECTORS];
      CHAIRLIFT_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        if constexpr (KIND::kForm != Q8Form::kChannel) {
          weight_scale[v] = load_scales(scale + v * kLanes);
        }
        if constexpr (KIND::kForm == Q8Form::kMinimum) {
          minimum[v] = load_scales(scale + (PANEL_VECTORS + v) * kLanes);
        }
      }
      CHAIRLIFT_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const GroupTail* tail =
            reinterpret_cast<const GroupTail*>(record + r * o.row_bytes + KIND::kActivationGroup);
        const F16 row_scale = F16::all(tail->scale);
        CHAIRLIFT_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          const F16 product = to_float(sum[r][v].finish());
          if constexpr (KIND::kForm == Q8Form::kChannel) {
            total[r][v] = multiply_add(product, row_scale, total[r][v]);
          } else {
            total[r][v] = multiply_add(product, weight_scale[v] * row_scale, total[r][v]);
          }
        }
        if constexpr (KIND::kForm == Q8Form::kMinimum) {
          float scaled_sum = tail->scaled_sum;
          if constexpr (KIND::kPieces == 2) {
            const int32_t half = tail->sum_first_half;
            scaled_sum = tail->scale * static_cast<float>(piece == 0 ? half : tail->sum - half);
          }
          const F16 row_sum = F16::all(scaled_sum);
          CHAIRLIFT_UNROLL
          for (int v = 0; v < VECTORS; ++v) {
            total[r][v] = multiply_add(minimum[v], row_sum, total[r][v]);
          }
        }
      }
    }
    codes += kGroupBytes;
    scales += KIND::kPieces * KIND::kScaleRows * PANEL_VECTORS * kLanes;
    record += kRecordBytes;
  }
  CHAIRLIFT_UNROLL
  for (int v = 0; v < VECTORS; ++v) {
    const int64_t column = (first + v) * kLanes;
    const int64_t width = o.width - column;
    if (width <= 0) continue;
    CHAIRLIFT_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const int64_t at = (row + r) * o.out_stride + column;
      if constexpr (KIND::kForm == Q8Form::kChannel) {
        total[r][v] = total[r][v] * F16::load(static_cast<const float*>(o.scales) + column);
      }
      if (o.bias) total[r][v] = total[r][v] + load_columns(o.bias + column, width);
      if (o.residual) total[r][v] = total[r][v] + load_columns(o.residual + at, width);
      if (o.streams && width >= kLanes) {
        total[r][v].stream(o.out + at);
      } else {
        store_columns(total[r][v], o.out + at, width);
      }
    }
  }
}

template <class KIND, int ROWS, int PANEL_VECTORS, bool FETCH>
void multiply_q8_rows(const Q8Operands& o, int64_t row, AheadLines ahead) {
  constexpr int kVectors = q8_tile_vectors(ROWS, PANEL_VECTORS);
  multiply_q8<KIND, ROWS, kVectors, PANEL_VECTORS, FETCH>(o, row, 0, ahead);
  for (int first = kVectors; first < PANEL_VECTORS; first += kVectors) {
    multiply_q8<KIND, ROWS, kVectors, PANEL_VECTORS, false>(o, row, first, ahead);
  }
}

template <class KIND, int ROWS, int PANEL_VECTORS>
CHAIRLIFT_INLINE void multiply_q8_up_to(const Q8Operands& o, int64_t row, int64_t num_rows,
                                        AheadLines ahead) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) {
      return multiply_q8_up_to<KIND, ROWS - 1, PANEL_VECTORS>(o, row, num_rows, ahead);
    }
  }
  if constexpr (KIND::kForm == Q8Form::kChannel) {
    if (ahead.count == 0) {
      return multiply_q8_rows<KIND, ROWS, PANEL_VECTORS, false>(o, row, ahead);
    }
  }
  multiply_q8_rows<KIND, ROWS, PANEL_VECTORS, true>(o, row, ahead);
}

// Lines ahead that rows before this one fetch.
CHAIRLIFT_INLINE int64_t lines_before(const Q8Operands& o, int64_t row) {
  return row < o.fetching_rows ? o.ahead_lines * row / o.fetching_rows : o.ahead_lines;
}

// All rows over one panel, in row counts that differ by at most one.
template <class KIND, int PANEL_VECTORS>
void sweep_panel(const Q8Operands& o, int64_t num_rows) {
  constexpr int kRows = PANEL_VECTORS == kQ8PanelVectors ? kQ8Rows : kQ8NarrowRows;
  const int64_t num_steps = (num_rows + kRows - 1) / kRows;
  for (int64_t step = 0; step < num_steps; ++step) {
    const int64_t begin = num_rows * step / num_steps;
    const int64_t end = num_rows * (step + 1) / num_steps;
    const int64_t line = lines_before(o, begin);
    const AheadLines ahead = {o.ahead + line * 64, lines_before(o, end) - line};
    multiply_q8_up_to<KIND, kRows, PANEL_VECTORS>(o, begin, end - begin, ahead);
  }
}

template <class KIND>
void sweep_panel_of(int vectors, const Q8Operands& o, int64_t num_rows) {
  if (vectors == 3) {
    sweep_panel<KIND, 3>(o, num_rows);
  } else if (vectors == 2) {
    sweep_panel<KIND, 2>(o, num_rows);
  } else {
    sweep_panel<KIND, 1>(o, num_rows);
  }
}

using SweepPanel = void (*)(int vectors, const Q8Operands& o, int64_t num_rows);

template <int STORED_BITS, Q8Form FORM>
SweepPanel choose_grouped_sweep(const PackedQ8& w) {
  if (w.group_size == 16) return sweep_panel_of<Q8Kind<STORED_BITS, 16, FORM, float>>;
  if (w.half_scales) return sweep_panel_of<Q8Kind<STORED_BITS, 32, FORM, uint16_t>>;
  return sweep_panel_of<Q8Kind<STORED_BITS, 32, FORM, float>>;
}

SweepPanel choose_sweep(const PackedQ8& w, int stored_bits) {
  if (w.form == Q8Form::kChannel) {
    if (w.activation_group == 64) return sweep_panel_of<Q8Kind<8, 64, Q8Form::kChannel, float>>;
    return sweep_panel_of<Q8Kind<8, 32, Q8Form::kChannel, float>>;
  }
  if (w.form == Q8Form::kZeroPoint) {
    return stored_bits == 4 ? choose_grouped_sweep<4, Q8Form::kZeroPoint>(w)
                            : choose_grouped_sweep<8, Q8Form::kZeroPoint>(w);
  }
  return stored_bits == 4 ? choose_grouped_sweep<4, Q8Form::kMinimum>(w)
                          : choose_grouped_sweep<8, Q8Form::kMinimum>(w);
}

// Codes of four bits to bytes of the same panel; the zero point moves from 8 to 128.
void unpack_codes(const PackedQ8& w, const uint8_t* codes, int vectors, uint8_t* unpacked) {
  const int shift = w.form == Q8Form::kZeroPoint ? 120 : 0;
  const int64_t quarter = 4 * vectors * kCodesBytes;  // four steps
  for (int64_t block = 0; block < num_depth_blocks(w); ++block) {
    for (int64_t i = 0; i < quarter; i += kCodesBytes) {
      const Codes both = Codes::load(codes + i);
      add_to_codes(low_nibbles(both), shift).store(unpacked + i);
      add_to_codes(high_nibbles(both), shift).store(unpacked + quarter + i);
    }
    codes += quarter;
    unpacked += 2 * quarter;
  }
}

// silu(gate) * up.  Gates below -87, where less than 1e-36 is left of them, count as -87.
CHAIRLIFT_INLINE F16 gated(F16 gate, F16 up) {
  gate = larger(F16::all(-87.0f), gate);  // in this order not-a-number stays
  const F16 e = exp2_at_least(gate * F16::all(-1.44269504f));
  return gate * up / (F16::all(1.0f) + e);
}

// A row of `width` columns, gates and ups in turn by `interleave`, to its first half, gated.
CHAIRLIFT_INLINE void gate_row(float* x, int64_t width, int interleave) {
  for (int64_t output = 0; output < width / 2; output += kLanes) {
    // Never behind what is still to be read.
    const float* gate = x + output / interleave * 2 * interleave + output % interleave;
    gated(F16::load(gate), F16::load(gate + interleave)).store(x + output);
  }
}

void gate_and_quantize(const LinearQ8Task& task, const LinearQ8Tile& tile, float* x, int64_t stride,
                       int64_t first_row, int64_t num_rows, int64_t width) {
  const PackedQ8& w = *task.weight;
  const int64_t column = tile.first_panel * kQ8PanelColumns;
  const int64_t row_bytes = group_row_bytes(w.out_features / 2, task.gated_group);
  uint8_t* records = task.gated_rows + first_row * row_bytes +
                     column / 2 / task.gated_group * (task.gated_group + kGroupTailBytes);
  for (int64_t row = 0; row < num_rows; ++row) gate_row(x + row * stride, width, w.interleave);
  if (task.gated_group == 64) {
    quantize_rows_of<64>(x, num_rows, width / 2, stride, row_bytes, records);
  } else {
    quantize_rows_of<32>(x, num_rows, width / 2, stride, row_bytes, records);
  }
}

// What comes after the tile's panel `index`, and `distance` panels further.
CHAIRLIFT_INLINE AheadLines lines_after(const PackedQ8& w, const LinearQ8Tile& tile, int64_t index,
                                        int64_t distance) {
  const int64_t panel = tile.first_panel + index + distance;
  if (tile.after && index + distance >= tile.num_panels) {
    return {tile.after, tile.after_bytes / 64};
  }
  if (panel >= num_panels(w)) return {nullptr, 0};
  return {reinterpret_cast<const uint8_t*>(&w) + panel_offset(w, panel),
          panel_bytes(w, panel_vectors(w, panel)) / 64};
}

// Has rows [begin, end) of `fetching_rows` fetch their part of some lines.
CHAIRLIFT_INLINE void set_ahead(AheadLines lines, int64_t begin, int64_t end, int64_t fetching_rows,
                                Q8Operands* o) {
  const int64_t line = lines.count * begin / fetching_rows;
  o->ahead = lines.first + line * 64;
  o->ahead_lines = lines.count * end / fetching_rows - line;
  o->fetching_rows = end - begin;
}

struct PreparedPanel {
  const uint8_t* codes;
  const void* scales;
  int vectors;
};

void linear_q8(const LinearQ8Task& task, const LinearQ8Tile& tile, uint8_t* scratch) {
  const PackedQ8& w = *task.weight;
  const uint8_t* packed = reinterpret_cast<const uint8_t*>(task.weight);
  const bool unpack =
      w.stored_bits == 4 && task.unpack_rows > 0 && tile.num_rows >= task.unpack_rows;
  const SweepPanel sweep = choose_sweep(w, unpack ? 8 : w.stored_bits);
  const int64_t row_bytes = group_row_bytes(w.in_features, w.activation_group);
  const int64_t num_groups = num_depth_blocks(w) * kQ8BlockDepth / w.activation_group;
  const bool is_gated = task.gated_rows != nullptr;
  const int64_t chunk = is_gated ? kQ8GatedRows : tile.num_rows;
  const int64_t first_column = tile.first_panel * kQ8PanelColumns;
  const int64_t stride = tile.num_panels * kQ8PanelColumns;
  float* gates = reinterpret_cast<float*>(scratch);
  if (is_gated) scratch += chunk * stride * static_cast<int64_t>(sizeof(float));
  PreparedPanel panels[kQ8MaxGatedPanels];
  // Panels one by one, or, where a chunk of rows must be whole, all of the tile's.
  const int64_t panels_at_once = is_gated ? tile.num_panels : 1;
  const int64_t fetching_rows = tile.num_rows < kFetchingRows ? tile.num_rows : kFetchingRows;
  // A panel that takes long is time enough for the one that comes next.
  const int64_t fetch_distance = fetching_rows <= kQ8Rows ? 1 : panels_at_once;
  for (int64_t first = 0; first < tile.num_panels; first += panels_at_once) {
    for (int64_t i = 0; i < panels_at_once; ++i) {
      const int64_t index = tile.first_panel + first + i;
      PreparedPanel& panel = panels[i];
      panel.vectors = panel_vectors(w, index);
      panel.codes = packed + panel_offset(w, index);
      panel.scales = panel.codes + panel_code_bytes(w, panel.vectors);
      if (unpack) {
        uint8_t* unpacked = scratch + i * 2 * panel_code_bytes(w, kQ8PanelVectors);
        unpack_codes(w, panel.codes, panel.vectors, unpacked);
        panel.codes = unpacked;
      }
    }
    for (int64_t begin = 0; begin < tile.num_rows; begin += chunk) {
      const int64_t rows = begin + chunk < tile.num_rows ? chunk : tile.num_rows - begin;
      const int64_t row = tile.first_row + begin;
      for (int64_t i = 0; i < panels_at_once; ++i) {
        const int64_t column = first_column + (first + i) * kQ8PanelColumns;
        Q8Operands o = {};
        o.rows = task.rows + row * row_bytes;
        o.row_bytes = row_bytes;
        o.codes = panels[i].codes;
        o.scales = panels[i].scales;
        o.num_groups = num_groups;
        o.bias = task.bias ? task.bias + column : nullptr;
        o.width = w.out_features - column;
        if (begin < fetching_rows) {
          const int64_t last = begin + rows < fetching_rows ? begin + rows : fetching_rows;
          set_ahead(lines_after(w, tile, first + i, fetch_distance), begin, last, fetching_rows,
                    &o);
        }
        if (is_gated) {
          o.out = gates + i * kQ8PanelColumns;
          o.out_stride = stride;
        } else if (tile.out) {
          o.out = tile.out + begin * stride + first * kQ8PanelColumns;
          o.out_stride = stride;
        } else {
          o.out = task.out + row * w.out_features + column;
          o.out_stride = w.out_features;
          o.streams = task.streams;
          if (task.residual) o.residual = task.residual + row * w.out_features + column;
        }
        sweep(panels[i].vectors, o, rows);
      }
      if (is_gated) {
        const int64_t left = w.out_features - first_column;
        gate_and_quantize(task, tile, gates, stride, row, rows, left < stride ? left : stride);
      }
    }
  }
  if (task.streams) end_streams();
}

constexpr int kBurstVectors = q8_tile_vectors(kQ8Rows, kQ8PanelVectors);
constexpr int kBurstChains = kQ8Rows * kBurstVectors;

template <int CHAIN>
CHAIRLIFT_INLINE void add_to_chains(Dot<8>* sum, const Dot<8>::Prepared* code,
                                    const int8_t* quads) {
  if constexpr (CHAIN < kBurstChains) {
    const Quad quad = Quad::load(quads + CHAIN / kBurstVectors * 4);
    sum[CHAIN].add(code[CHAIN % kBurstVectors], quad);
    add_to_chains<CHAIN + 1>(sum, code, quads);
  }
}

// Rounds of products like a tile's, but from registers; returns how many there were.
int64_t dot_burst(int64_t rounds, int32_t* sink) {
  constexpr int kRepeats = 16;
  alignas(64) uint8_t codes[kBurstVectors * kCodesBytes];
  alignas(64) int8_t quads[kQ8Rows * 4];
  for (int i = 0; i < kBurstVectors * kCodesBytes; ++i) codes[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < kQ8Rows * 4; ++i) quads[i] = static_cast<int8_t>(i);
  Dot<8> sum[kBurstChains];
  Dot<8>::Prepared code[kBurstVectors];
  CHAIRLIFT_UNROLL
  for (int i = 0; i < kBurstChains; ++i) sum[i] = Dot<8>::start(I16::all(sink[0] + i));
  CHAIRLIFT_UNROLL
  for (int v = 0; v < kBurstVectors; ++v) {
    code[v] = Dot<8>::prepare(Codes::load(codes + v * kCodesBytes));
  }
  for (int64_t round = 0; round < rounds; ++round) {
    CHAIRLIFT_UNROLL
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
#if defined(__GNUC__)
      __asm__ volatile("" : : "r"(quads) : "memory");  // or all rounds become one
#endif
      add_to_chains<0>(sum, code, quads);
    }
  }
  I16 total = sum[0].finish();
  CHAIRLIFT_UNROLL
  for (int i = 1; i < kBurstChains; ++i) total = total + sum[i].finish();
  sink[0] = static_cast<int32_t>(static_cast<int64_t>(sum_lanes(to_float(total))));
  return rounds * kRepeats * kBurstChains * kCodesBytes;
}

}  // namespace
}  // namespace chairlift
