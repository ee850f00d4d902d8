// Checks of arguments that the C functions share.  Sizes of memory cannot be seen from a pointer;
// what can be seen is a null, a pointer that no object of its type has, and a size that no memory
// can hold, whose products would overflow.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace chairlift {

constexpr int64_t kMaxBytes = int64_t{1} << 46;

template <typename... T>
bool any_null(const T*... pointers) {
  return (... || (pointers == nullptr));
}

// Null is aligned.
template <typename... T>
bool all_aligned(const T*... pointers) {
  return (... && (reinterpret_cast<uintptr_t>(pointers) % alignof(T) == 0));
}

// Whether sizes are at least 0 and an array of them, elements counted in bytes, could exist.
// Zeros count as ones, so that no other product of the same sizes overflows either.
inline bool fit_memory(std::initializer_list<int64_t> sizes) {
  int64_t room = kMaxBytes;
  for (const int64_t size : sizes) {
    if (size < 0) return false;
    if (size > 0) room /= size;
    if (room == 0) return false;
  }
  return true;
}

// Whether rows of floats could lie so far apart; in the other direction too.
inline bool fit_strides(int64_t rows, int64_t stride) {
  const int64_t distance = stride < 0 ? -(stride + 1) : stride;
  return fit_memory({rows, distance, static_cast<int64_t>(sizeof(float))});
}

// Whether the sequences' rows, [num_sequences + 1], start and end as they should.  There are no
// more sequences than tokens, so a wrong number of either is found without reading further.
inline bool covers(const int32_t* query_start, int64_t num_sequences, int64_t num_tokens) {
  return num_sequences <= num_tokens && query_start[0] == 0 &&
         query_start[num_sequences] == num_tokens;
}

}  // namespace chairlift
