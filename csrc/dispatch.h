// Which instruction set is in use.
#pragma once

#include "isa/kernel_table.h"

namespace chairlift {

const KernelTable& kernels();

// Null if the name is unknown or the machine cannot run it; "auto" is the best available.
const KernelTable* find_kernels(const char* name);
void use_kernels(const KernelTable& table);

// "avx512,avx2,scalar"
const char* available_kernels();

}  // namespace chairlift
