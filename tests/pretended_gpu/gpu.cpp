// A GPU that is pretended: tensors on cuda:N whose numbers lie in plain memory, counted, and computed by torch's CPU
// kernels. What torch refuses on a GPU is refused here: tensors of two devices in one operation, numpy() of what is on
// the device, a generator of the other device, more memory than there is. It says nothing of CUDA's own kernels, speed
// or rounding. For a torch without CUDA only: the table of kernels for CUDA is empty there, and is filled below.
// test_pretended_gpu.py compiles it, sitecustomize.py loads it.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::kCPU;
using c10::kCUDA;

// --- Memory: counted, and limited ------------------------------------------------------------------------------------

constexpr int MOST = 8;
std::array<std::atomic<int64_t>, MOST> allocated{}, highest{};
std::atomic<int64_t> total{0}, n_gpus{0}, operations{0};
thread_local DeviceIndex current = 0;

struct Block {
  void* data;
  int64_t n_bytes;
  DeviceIndex index;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated[block->index] -= block->n_bytes;
  std::free(block->data);
  delete block;
}

struct PretendedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const DeviceIndex index = current;
    const auto n_bytes = static_cast<int64_t>((n + 511) / 512 * 512);  // CUDA's caching allocator rounds like this
    const Device device(kCUDA, index);
    if (n == 0) {
      return {nullptr, device};
    }
    const int64_t now = allocated[index] += n_bytes;
    if (now > total) {
      allocated[index] -= n_bytes;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", n_bytes, " bytes. GPU ",
                       int(index), " has a total capacity of ", total.load(), " bytes of which ",
                       total - (now - n_bytes), " is free.");
    }
    int64_t before = highest[index];
    while (now > before && !highest[index].compare_exchange_weak(before, now)) {
    }
    void* data = std::aligned_alloc(512, n_bytes);
    TORCH_CHECK(data != nullptr, "this machine has no ", n_bytes, " bytes for a pretended GPU");
    return {data, new Block{data, n_bytes, index}, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};

PretendedAllocator allocator;
REGISTER_ALLOCATOR(kCUDA, &allocator);

// --- The device as torch asks for it ---------------------------------------------------------------------------------

struct PretendedGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCUDA; }
  Device exchangeDevice(Device d) const override {
    const Device before(kCUDA, current);
    setDevice(d);
    return before;
  }
  Device getDevice() const override { return {kCUDA, current}; }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.index() < n_gpus, "CUDA error: invalid device ordinal");
    current = d.index();
  }
  void uncheckedSetDevice(Device d) const noexcept override { current = d.index(); }
  c10::Stream getStream(Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(n_gpus); }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

C10_REGISTER_GUARD_IMPL(CUDA, PretendedGuard);

// A generator of the device, with a CPU's numbers behind it.
struct PretendedGenerator final : c10::GeneratorImpl {
  at::Generator cpu;
  PretendedGenerator(DeviceIndex index, at::Generator cpu)
      : c10::GeneratorImpl(Device(kCUDA, index), c10::DispatchKeySet(c10::DispatchKey::CUDA)), cpu(std::move(cpu)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return const_cast<at::Generator&>(cpu).seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  c10::GeneratorImpl* clone_impl() const override { return new PretendedGenerator(device().index(), cpu.clone()); }
};

at::Generator& default_generator(DeviceIndex index) {
  static std::array<at::Generator, MOST> all;
  auto& one = all[index < 0 ? current : index];
  if (!one.defined()) {
    one = at::make_generator<PretendedGenerator>(index < 0 ? current : index, at::detail::createCPUGenerator());
  }
  return one;
}

struct PretendedHooks final : at::CUDAHooksInterface {
  explicit PretendedHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return current; }
  int getNumGPUs() const override { return static_cast<int>(n_gpus); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(n_gpus); }
  DeviceIndex getCurrentDevice() const override { return current; }
  void deviceSynchronize(DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<PretendedGenerator>(index < 0 ? current : index, at::detail::createCPUGenerator());
  }
};

}  // namespace

namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", PretendedHooks)  // the name that torch asks for
}

namespace {

// --- Operations ------------------------------------------------------------------------------------------------------

bool on_gpu(const at::Tensor& t) { return t.defined() && t.device().type() == kCUDA; }

// The same memory, as a tensor of the CPU.
at::Tensor seen_from_cpu(const at::Tensor& t) {
  if (!on_gpu(t)) {
    return t;
  }
  const auto options = t.options().device(kCPU).requires_grad(false);
  if (t.numel() == 0) {
    return at::empty_strided(t.sizes(), t.strides(), options);
  }
  const auto keep = [t](void*) {};  // gloo goes on with it after the operation has returned
  auto seen = at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), keep, options);
  seen._set_conj(t.is_conj());
  seen._set_neg(t.is_neg());
  return seen;
}

at::Tensor to_gpu(const at::Tensor& t, Device device) {
  if (!t.defined()) {
    return t;
  }
  auto made = at::empty_strided(t.sizes(), t.strides(), t.options().device(device));
  if (t.numel() != 0) {
    seen_from_cpu(made).copy_(t);
  }
  return made;
}

// `value` with each tensor in it, in lists too, replaced by what `change` makes of it.
template <class Change>
c10::IValue changed(const c10::IValue& value, const Change& change) {
  const auto all_of = [&](const c10::IValue& list) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& t : list.toTensorVector()) {
      all.push_back(change(t));
    }
    return all;
  };
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    return all_of(value);
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor> t : value.toOptionalTensorList()) {
      all.push_back(t ? std::optional<at::Tensor>(change(*t)) : std::nullopt);
    }
    return all;
  }
  if (value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensorList()) {  // all_gather's
    std::vector<std::vector<at::Tensor>> all;
    for (const c10::IValue& list : value.toListRef()) {
      all.push_back(all_of(list));
    }
    return all;
  }
  return value;
}

// Operations that take tensors of both devices on a real GPU too.
bool may_mix(const std::string& name) {
  static const std::set<std::string> names{"aten::copy_", "aten::index.Tensor", "aten::index.Tensor_out",
                                           "aten::index_put_", "aten::_index_put_impl_"};
  return names.count(name) > 0;
}

// Where the kernel has given a tensor that it writes to another size, and so other memory.
void follow(const at::Tensor& to, const at::Tensor& seen) {
  if (on_gpu(to) && (seen.sizes() != to.sizes() || (seen.numel() != 0 && seen.data_ptr() != to.data_ptr()))) {
    const auto made = to_gpu(seen, to.device());
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
    to.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
  }
}

// Any operation: looked at, computed by the CPU's kernel on the same memory, and its results taken to the device.
void compute(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  ++operations;
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  const std::vector<c10::IValue> given(stack->end() - static_cast<long>(arguments.size()), stack->end());
  torch::jit::drop(*stack, arguments.size());

  std::optional<Device> device;
  bool from_cpu = false;
  std::vector<c10::IValue> seen;
  for (const c10::IValue& value : given) {
    if (value.isDevice() && value.toDevice().type() == kCUDA) {
      device = value.toDevice().has_index() ? value.toDevice() : Device(kCUDA, current);
      seen.emplace_back(Device(kCPU));
    } else if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(generator.device().type() == kCUDA, "Expected a 'cuda' device type for generator but found '",
                  generator.device().type(), "'");
      seen.emplace_back(static_cast<PretendedGenerator*>(generator.unsafeGetGeneratorImpl())->cpu);
    } else {
      seen.push_back(changed(value, [&](const at::Tensor& t) {
        if (on_gpu(t)) {
          TORCH_CHECK(!device || *device == t.device() || may_mix(name),
                      "Expected all tensors to be on the same device, but found at least two devices, ", *device,
                      " and ", t.device(), "! (", name, ")");
          device = device.value_or(t.device());
        } else if (t.defined() && t.dim() > 0) {  // a single number may be the CPU's
          from_cpu = true;
        }
        return seen_from_cpu(t);
      }));
    }
  }
  TORCH_CHECK(!from_cpu || may_mix(name),
              "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and cpu! (",
              name, ")");

  stack->insert(stack->end(), seen.begin(), seen.end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);

  const auto writes = [&](size_t i) {
    return arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
  };
  for (size_t i = 0; i < given.size(); ++i) {
    if (writes(i) && given[i].isTensor()) {
      follow(given[i].toTensor(), seen[i].toTensor());
    }
  }
  const auto& returns = schema.returns();
  for (size_t r = 0; r < returns.size(); ++r) {
    c10::IValue& value = *(stack->end() - static_cast<long>(returns.size() - r));
    if (const auto* alias = returns[r].alias_info()) {
      size_t i = 0;
      while (i < given.size() && !(writes(i) && arguments[i].alias_info()->beforeSets() == alias->beforeSets())) {
        ++i;
      }
      TORCH_CHECK(i < given.size(), "the pretended GPU has no way to make the view ", name);
      value = given[i];
    } else if (device) {
      value = changed(value, [&](const at::Tensor& t) { return to_gpu(t, *device); });
    }
  }
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(kCUDA)).has_index() ? *device : Device(kCUDA, current));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(kCUDA)).has_index() ? *device : Device(kCUDA, current));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())));
}

at::Tensor as_strided(const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  std::optional<int64_t> plain;
  if (offset) {
    plain = offset->guard_int(__FILE__, __LINE__);
  }
  return at::native::as_strided_tensorimpl(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), plain);
}

at::Tensor view(const at::Tensor& t, c10::SymIntArrayRef size) {
  return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& t, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(t, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(at::Tensor& t, at::Storage from, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(t, std::move(from), offset.guard_int(__FILE__, __LINE__),
                                      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  // torch has one kernel of this for all devices, which would look into a table of its own.
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&compute>());
}

// What NCCL would do, gloo does. torch's own kernels for these are replaced, which it warns of.
void exchange_through_gloo() {
  struct Quiet : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static torch::Library ours(torch::Library::IMPL, "c10d", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const char* name :
       {"allreduce_", "broadcast_", "allgather_", "_allgather_base_", "reduce_", "gather_", "scatter_"}) {
    ours.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
  }
}

// --- For sitecustomize.py and the tests -----------------------------------------------------------------------------

void set_up(int64_t n_bytes, int64_t n) {
  TORCH_CHECK(n <= MOST, n, " GPUs; at most ", MOST, " are pretended");
  total = n_bytes;
  n_gpus = n;
  static std::once_flag once;
  std::call_once(once, &exchange_through_gloo);
}
int64_t allocated_on(int64_t index) { return allocated[index]; }
int64_t highest_on(int64_t index) { return highest[index]; }
void forget_highest(int64_t index) { highest[index] = allocated[index].load(); }
int64_t current_device() { return current; }
void set_device(int64_t index) {
  TORCH_CHECK(index < n_gpus, "CUDA error: invalid device ordinal");
  current = static_cast<DeviceIndex>(index);
}
at::Tensor generator_state() { return default_generator(-1).get_state(); }
void set_generator_state(const at::Tensor& state) { default_generator(-1).set_state(state); }
void seed(int64_t number) {
  for (DeviceIndex i = 0; i < n_gpus; ++i) {
    default_generator(i).set_current_seed(number);
  }
}

// operations() says whether anything was computed there at all.
int64_t n_operations() { return operations; }

TORCH_LIBRARY(pretended_gpu, m) {
  m.def("set_up(int n_bytes, int n) -> ()", &set_up);
  m.def("allocated(int index) -> int", &allocated_on);
  m.def("highest(int index) -> int", &highest_on);
  m.def("forget_highest(int index) -> ()", &forget_highest);
  m.def("current_device() -> int", &current_device);
  m.def("set_device(int index) -> ()", &set_device);
  m.def("generator_state() -> Tensor", &generator_state);
  m.def("set_generator_state(Tensor state) -> ()", &set_generator_state);
  m.def("seed(int number) -> ()", &seed);
  m.def("operations() -> int", &n_operations);
}

}  // namespace
