// Registers the operators with torch: checks, memory, and shapes for tracing.
//
// The build sets the name of the operators' library. The name contains a digest of the sources, so that a process can
// use several versions of the library.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <tuple>

#include "layers.h"

namespace nightquant {
namespace {

using at::Tensor;

// Returns the fastest kernels for this processor, or those that the environment variable NIGHTQUANT_ISA names.
const Kernels& kernels() {
  const char* const name = std::getenv("NIGHTQUANT_ISA");
  for (const auto set : {amx_kernels, avx512_vnni_kernels, avx2_kernels, scalar_kernels}) {
    const Kernels* const found = set();
    const bool any = name == nullptr || *name == '\0';
    if (found != nullptr && (any || std::strcmp(found->name, name) == 0)) return *found;
  }
  TORCH_CHECK(false, "NIGHTQUANT_ISA must be amx, avx512-vnni, avx2 or scalar, and run on this processor.");
}

Tensor floats(const Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.device().is_cpu(), name, " must be float32 on the CPU, not ",
              tensor.scalar_type(), " on ", tensor.device(), ".");
  return tensor.contiguous();
}

// Like malloc, AOTInductor usually stores constants 16 bytes after the beginning of a cache line, so every load needs
// two cache lines. Padding of kInFront bytes moves the weights to the beginning of the next cache line.
constexpr int64_t kInFront = 48;

const uint8_t* packed_bytes(const Tensor& packed, int64_t expected) {
  const int64_t in_front = packed.numel() == expected + kInFront ? kInFront : 0;
  TORCH_CHECK(packed.scalar_type() == at::kByte && packed.is_contiguous() && packed.numel() == expected + in_front,
              "The packed weights have ", packed.numel(), " bytes, but the inputs' shapes need ", expected, ".");
  return packed.const_data_ptr<uint8_t>() + in_front;
}

Tensor linear_cpu(const Tensor& input, const Tensor& packed, int64_t out_features) {
  TORCH_CHECK(input.dim() >= 1, "linear takes [..., in_features].");
  const Tensor x = floats(input, "input");
  const int64_t in_features = x.size(-1);
  at::DimVector sizes(x.sizes());
  sizes.back() = out_features;
  Tensor y = at::empty(sizes, x.options());
  if (y.numel() == 0) return y;
  const LinearShape shape = {y.numel() / out_features, in_features, out_features};
  const uint8_t* const weights = packed_bytes(packed, shape.packed_bytes());
  const at::DataPtr scratch = c10::GetCPUAllocator()->allocate(static_cast<size_t>(shape.scratch_bytes()));
  linear(kernels(), shape, x.const_data_ptr<float>(), weights, static_cast<uint8_t*>(scratch.get()),
         y.mutable_data_ptr<float>());
  return y;
}

Tensor linear_meta(const Tensor& input, const Tensor& /*packed*/, c10::SymInt out_features) {
  c10::SymDimVector sizes(input.sym_sizes());
  sizes.back() = std::move(out_features);
  return at::empty_symint(sizes, input.options());
}

Tensor copy_of(const Tensor& tensor) {
  Tensor copy = at::empty(tensor.sizes(), tensor.options());
  if (tensor.numel() > 0) std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

using Outputs = std::tuple<Tensor, Tensor, Tensor>;

Outputs lstm_cpu(const Tensor& input, const Tensor& h, const Tensor& c, const Tensor& packed) {
  TORCH_CHECK(input.dim() == 3 && h.dim() == 3 && h.sizes() == c.sizes() && h.size(1) == input.size(1),
              "lstm takes input [T, B, I] and h, c [L, B, H], not ", input.sizes(), ", ", h.sizes(), " and ", c.sizes(),
              ".");
  const Tensor x = floats(input, "input"), h_before = floats(h, "h"), c_before = floats(c, "c");
  const LstmShape shape = {x.size(0), x.size(1), x.size(2), h.size(2), h.size(0)};
  const uint8_t* const weights = packed_bytes(packed, shape.packed_bytes());
  Tensor y = at::empty({shape.steps, shape.batch, shape.hidden}, x.options());
  Tensor h_after = copy_of(h_before), c_after = copy_of(c_before);
  if (y.numel() == 0) return {y, h_after, c_after};
  const at::DataPtr scratch = c10::GetCPUAllocator()->allocate(static_cast<size_t>(shape.scratch_bytes()));
  lstm(kernels(), shape, x.const_data_ptr<float>(), weights, static_cast<uint8_t*>(scratch.get()),
       h_after.mutable_data_ptr<float>(), c_after.mutable_data_ptr<float>(), y.mutable_data_ptr<float>());
  return {y, h_after, c_after};
}

Outputs lstm_meta(const Tensor& input, const Tensor& h, const Tensor& c, const Tensor& /*packed*/) {
  c10::SymDimVector sizes(input.sym_sizes());
  sizes.back() = h.sym_size(2);
  return {at::empty_symint(sizes, input.options()), at::empty_symint(h.sym_sizes(), h.options()),
          at::empty_symint(c.sym_sizes(), c.options())};
}

}  // namespace
}  // namespace nightquant

// torch's macros paste their first argument, so the argument must be expanded beforehand.
#define NIGHTQUANT_DEFINE(name, m) TORCH_LIBRARY(name, m)
#define NIGHTQUANT_IMPLEMENT(name, key, m) TORCH_LIBRARY_IMPL(name, key, m)

NIGHTQUANT_DEFINE(NIGHTQUANT_OPERATORS, m) {
  m.def("linear(Tensor input, Tensor packed, SymInt out_features) -> Tensor");
  m.def("lstm(Tensor input, Tensor h, Tensor c, Tensor packed) -> (Tensor, Tensor, Tensor)");
}

NIGHTQUANT_IMPLEMENT(NIGHTQUANT_OPERATORS, CPU, m) {
  m.impl("linear", nightquant::linear_cpu);
  m.impl("lstm", nightquant::lstm_cpu);
}

NIGHTQUANT_IMPLEMENT(NIGHTQUANT_OPERATORS, Meta, m) {
  m.impl("linear", nightquant::linear_meta);
  m.impl("lstm", nightquant::lstm_meta);
}
