// SPDX-License-Identifier: Apache-2.0
#include "lease.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "copy_in.h"
#include "dlpack.h"
#include "errors.h"

namespace terrace::python {

namespace nb = nanobind;
using namespace nb::literals;

void Hold::used_on(std::uintptr_t stream) const {
  auto* const used = reinterpret_cast<void*>(stream);
  if (std::ranges::find(streams_, used) != streams_.end()) return;  // nor is it new to what this carries
  streams_.push_back(used);
  for (const std::shared_ptr<const Hold>& other : carried_) other->used_on(stream);
}

void Hold::carry(std::shared_ptr<const Hold> other) const {
  for (void* const stream : streams_) other->used_on(reinterpret_cast<std::uintptr_t>(stream));
  carried_.push_back(std::move(other));
}

Result<void> Hold::keep_past(const std::shared_ptr<const Hold>& part, std::uintptr_t stream) {
  const bool is_last = part.use_count() == 1;
  std::vector<void*> streams = is_last ? part->streams_ : std::vector<void*>{};
  streams.push_back(reinterpret_cast<void*>(stream));
  Result<void> kept = terrace::keep_past(part->token_, part->place_, streams, part);
  if (kept && is_last) part->streams_.clear();
  return kept;
}

void HeldLease::release_past(std::uintptr_t stream) {
  if (hold_ == nullptr) return;
  value_or_raise(Hold::keep_past(hold_, stream));
  hold_.reset();
}

bool HeldLease::resume() {
  if (hold_ == nullptr) hold_ = shown_.lock();
  return hold_ != nullptr;
}

void HeldLease::carry(HeldLease& other) {
  hold();  // raises for what was released
  if (other.hold() == hold_) raise({ErrorCode::kInvalidArgument, "a lease cannot carry itself"});
  hold_->carry(std::move(other.hold_));
}

void HeldLease::copy_in(const std::byte* from, std::size_t size) const {
  const std::shared_ptr<const Hold> held = hold();  // so that it stays whoever releases this meanwhile
  if (held->mode() == Mode::kRead || held->cuda_device() || size > tensor_.bytes())
    raise({ErrorCode::kInvalidArgument,
           "bytes are copied into host memory that is leased to be written, and is as large"});
  const nb::gil_scoped_release released;
  python::copy_in(held->writable_address(), from, size);
}

void HeldLease::abandon() {
  if (hold_ != nullptr) hold_->tear();
  hold_.reset();
}

Hold::Hold(Lease lease, std::shared_ptr<LeasedBytes> leased)
    : tensor_(lease.tensor()),
      place_(lease.place()),
      address_(lease.bytes().data()),
      writable_address_(lease.writable_bytes().data()),
      leased_(std::move(leased)),
      cuda_device_(lease.cuda_device()) {
  token_ = lease.detach();
  leased_->add(tensor_.bytes());
}

Hold::~Hold() {
  if (cuda_device_ && !streams_.empty()) {
    release_token(token_, place_, streams_);
  } else {
    release_token(token_);
  }
  leased_->subtract(tensor_.bytes());
}

const std::shared_ptr<const Hold>& HeldLease::hold() const {
  if (hold_ == nullptr)
    raise({ErrorCode::kFailedPrecondition, "the lease of '" + tensor_.name() + "' was released; lease it again"});
  return hold_;
}

namespace {

// Whether a consumer that can read DLPack up to `max_version` knows versioned capsules (1.0 and later).
bool wants_versioned(nb::handle max_version) { return !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1; }

// TypeError for what is no such number, with what would be one.
template <typename Number>
Number number_of(nb::handle stream, const char* call, const char* right) {
  Number number = 0;
  if (nb::try_cast(stream, number, false)) return number;
  const nb::str text = nb::str("{}: stream is {!r}; it is {}").format(call, stream, right);
  throw nb::type_error(text.c_str());
}

// A stream as callers have it: a number, or an object with one (torch.cuda.Stream).
std::uintptr_t stream_number(nb::handle stream) {
  const nb::object number = nb::getattr(stream, "cuda_stream", nb::borrow(stream));
  return number_of<std::uintptr_t>(number, "Lease.release", "a torch.cuda.Stream, or the number of one, 0 or more");
}

// The bytes are there when the lease is granted: a consumer's stream has nothing to wait for. What it does with them is
// waited for when the lease ends. A consumer that names no stream, or says that there is nothing to wait for (-1),
// works on the default one.
void note_stream(const Hold& hold, nb::handle stream) {
  if (!hold.cuda_device()) return;
  constexpr const char* kRight = "a number of DLPack's, or None";
  const auto number = stream.is_none() ? 0 : number_of<std::intptr_t>(stream, "Lease.__dlpack__", kRight);
  hold.used_on(static_cast<std::uintptr_t>(number < 0 ? 0 : number));
}

nb::object dlpack(const HeldLease& lease, nb::handle stream, nb::handle max_version, nb::handle device,
                  nb::handle copy) {
  if (!device.is_none() && !device.equal(dlpack_device(*lease.hold())))
    throw nb::buffer_error("leased memory is exported where it is; ask for no other device, and copy afterwards");
  note_stream(*lease.hold(), stream);
  if (!copy.is_none() && nb::cast<bool>(copy))
    throw nb::buffer_error("a lease is exported without a copy; make the copy from what it gives");
  return dlpack_capsule(lease.hold(), wants_versioned(max_version));
}

bool numpy_knows(DType dtype) {
  return dtype != DType::kBfloat16 && dtype != DType::kFloat8E4m3 && dtype != DType::kFloat8E5m2;
}

nb::object to_numpy(nb::handle self) {
  const auto& lease = nb::cast<const HeldLease&>(self);
  if (lease.hold()->cuda_device())
    throw nb::buffer_error("the bytes are in a GPU's memory, which numpy cannot read; use torch.from_dlpack(lease)");
  if (!numpy_knows(lease.tensor().dtype()))
    throw nb::type_error("numpy has no such element type; use torch.from_dlpack(lease)");
  return nb::module_::import_("numpy").attr("from_dlpack")(self);
}

nb::object to_array(nb::handle self, nb::handle dtype, nb::handle copy) {
  return nb::module_::import_("numpy").attr("array")(to_numpy(self), "dtype"_a = dtype, "copy"_a = copy);
}

const char* mode_name(Mode mode) { return mode == Mode::kRead ? "read" : mode == Mode::kWrite ? "write" : "overwrite"; }

}  // namespace

const char* dtype_name(DType dtype) {
  static constexpr std::array<const char*, 18> kNames = {
      "",        "uint8", "int8",      "int16",      "int32",         "int64",       "float16", "bfloat16", "float32",
      "float64", "bool",  "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16",  "uint32",   "uint64"};
  return kNames.at(static_cast<std::size_t>(dtype));
}

void bind_lease(nb::module_& module) {
  nb::class_<HeldLease>(module, "Lease", "The right to a tensor's bytes, until it is released.")
      .def("numpy", [](nb::handle self) { return to_numpy(self); })
      .def(
          "__array__", [](nb::handle self, nb::handle dtype, nb::handle copy) { return to_array(self, dtype, copy); },
          "dtype"_a = nb::none(), "copy"_a = nb::none())
      .def("__dlpack__", dlpack, nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(),
           "dl_device"_a = nb::none(), "copy"_a = nb::none())
      .def("__dlpack_device__", [](const HeldLease& self) { return dlpack_device(*self.hold()); })
      .def(
          "release",
          [](HeldLease& self, nb::handle stream) {
            if (stream.is_none()) return self.release();
            self.release_past(stream_number(stream));
          },
          "stream"_a = nb::none())
      .def("__repr__",
           [](const HeldLease& self) {
             return nb::str("<terrace.Lease of {!r}{}>")
                 .format(self.tensor().name(), self.released() ? ", released" : "");
           })
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def(
          "__exit__",
          [](HeldLease& self, nb::handle kind, nb::handle, nb::handle) {
            return kind.is_none() ? self.release() : self.abandon();
          },
          "kind"_a.none(), "error"_a.none(), "trace"_a.none())
      .def(
          "_copy_in",
          [](const HeldLease& self, std::uintptr_t address, std::size_t size) {
            self.copy_in(reinterpret_cast<const std::byte*>(address), size);
          },
          "address"_a, "size"_a)
      .def("abandon", &HeldLease::abandon)
      .def("resume", &HeldLease::resume)
      .def("carry", &HeldLease::carry, "other"_a)
      .def_prop_ro("shown", &HeldLease::shown)
      .def_prop_ro("released", &HeldLease::released)
      .def_prop_ro("waited", &HeldLease::waited)
      .def_prop_ro("fetched", &HeldLease::fetched)
      .def_prop_ro("address",
                   [](const HeldLease& self) { return reinterpret_cast<std::uintptr_t>(self.hold()->address()); })
      .def_prop_ro("cuda_device", [](const HeldLease& self) { return self.hold()->cuda_device(); })
      .def_prop_ro("mode", [](const HeldLease& self) { return mode_name(self.hold()->mode()); })
      .def_prop_ro("place", [](const HeldLease& self) { return self.hold()->place().name(); })
      .def_prop_ro("name", [](const HeldLease& self) { return self.tensor().name(); })
      .def_prop_ro("shape", [](const HeldLease& self) { return nb::tuple(nb::cast(self.tensor().shape())); })
      .def_prop_ro("nbytes", [](const HeldLease& self) { return self.tensor().bytes(); });
}

}  // namespace terrace::python
