// Chooses the kernels at run time, so that one library works on every processor.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace nightquant {
namespace {

// Ordered from the fastest to the slowest.
constexpr const Kernels* (*kSets[])() = {amx_kernels, avx512_vnni_kernels, avx2_kernels, scalar_kernels};

const Kernels* best() {
  for (const auto set : kSets) {
    if (const Kernels* kernels = set()) return kernels;
  }
  return nullptr;
}

const Kernels* named(const char* name) {
  for (const auto set : kSets) {
    const Kernels* kernels = set();
    if (kernels != nullptr && std::strcmp(kernels->name, name) == 0) return kernels;
  }
  return nullptr;
}

}  // namespace

const Kernels* choose_kernels() {
  const char* name = std::getenv("NIGHTQUANT_ISA");
  if (name != nullptr && name[0] != '\0') return named(name);
  static const Kernels* const kernels = best();
  return kernels;
}

}  // namespace nightquant
