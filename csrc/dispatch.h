// Which instruction sets are in use: one for floats, one for bytes.
#pragma once

#include <vector>

#include "isa/kernel_table.h"

namespace chairlift {

struct FloatLevel {
  const char* name;
  const KernelTable* kernels;
};

struct ByteLevel {
  const char* name;
  const Q8Kernels* kernels;
};

// What this machine can run, the widest first.
const std::vector<FloatLevel>& float_levels();
const std::vector<ByteLevel>& byte_levels();

const KernelTable& kernels();

// `name` is that of an instruction set, or FLOATS+BYTES with the names of levels; "auto" is the
// widest of both.  Null if it is unknown or the machine cannot run it.
const KernelTable* find_kernels(const char* name);
void use_kernels(const KernelTable& table);

// "avx512,avx2,scalar"
const char* available_kernels();

}  // namespace chairlift
