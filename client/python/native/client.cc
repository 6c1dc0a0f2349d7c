// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "errors.h"

namespace terrace::python {

namespace nb = nanobind;
using namespace nb::literals;
using std::chrono::nanoseconds;

namespace {

// How often a wait looks for signals, so that Ctrl-C ends it.
constexpr nanoseconds kSignalInterval = std::chrono::milliseconds(100);
constexpr double kTimeoutSecondsMax = 86400.0 * 365;

nanoseconds duration(double seconds) {
  if (!(seconds >= 0)) raise({ErrorCode::kInvalidArgument, "timeout is in seconds, and 0 or more"});
  return nanoseconds(std::llround(std::min(seconds, kTimeoutSecondsMax) * 1e9));
}

Place place_of(const std::string& name) {
  if (name == "host") return Place::host();
  if (name == "block") return Place::block();
  if (name.size() == 8 && name.starts_with("device:") && name[7] >= '0' && name[7] <= '7')
    return Place::device(static_cast<std::uint32_t>(name[7] - '0'));
  raise(
      {ErrorCode::kInvalidArgument, "no such place: '" + name + "'; places are host, device:0 to device:7, and block"});
}

Mode mode_of(const std::string& name) {
  if (name == "read") return Mode::kRead;
  if (name == "write") return Mode::kWrite;
  if (name == "overwrite") return Mode::kOverwrite;
  raise({ErrorCode::kInvalidArgument, "no such mode: '" + name + "'; modes are read, write and overwrite"});
}

StepKind step_of(const std::string& name) {
  if (name == "train") return StepKind::kTrain;
  if (name == "accumulate") return StepKind::kAccumulate;
  if (name == "eval") return StepKind::kEval;
  raise({ErrorCode::kInvalidArgument, "no such kind of step: '" + name + "'; kinds are train, accumulate and eval"});
}

ShareOptions::Use use_of(const std::string& name) {
  if (name == "read") return ShareOptions::Use::kRead;
  if (name == "write") return ShareOptions::Use::kWrite;
  if (name == "create") return ShareOptions::Use::kCreate;
  raise({ErrorCode::kInvalidArgument, "no such use of a share: '" + name + "'; uses are read, write and create"});
}

// Runs a call of the client without the GIL; its value, or the exception of its error.
template <typename Call>
auto unlocked(Call call) {
  auto result = [&] {
    const nb::gil_scoped_release without;
    return call();
  }();
  return value_or_raise(std::move(result));
}

// Waits until an answer is there, without the GIL, and lets signals end the wait; it can be waited for again then. The
// request carries the deadline.
template <typename T>
void await_ready(const Pending<T>& pending) {
  const auto ready = [&] {
    const nb::gil_scoped_release without;
    return pending.ready(kSignalInterval);
  };
  while (!ready())
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

template <typename T>
T await(Pending<T> pending) {
  await_ready(pending);
  return unlocked([&] { return pending.wait({}); });
}

// What an answer that is there says. It is not pending any more then, whatever it is, and its session not held for it.
template <typename T>
T await_once(std::optional<Pending<T>>& pending) {
  await_ready(*pending);
  Pending<T> answered = std::move(*pending);
  pending.reset();
  return unlocked([&] { return answered.wait({}); });
}

std::vector<Tensor> plain(const std::vector<BoundTensor>& tensors) {
  std::vector<Tensor> made;
  made.reserve(tensors.size());
  for (const BoundTensor& bound : tensors) made.push_back(bound.tensor);
  return made;
}

// Which of these are not there. To be asked before they are leased: they may come at any time.
std::vector<bool> absent(const Client& client, const std::vector<Tensor>& tensors, Place place) {
  std::vector<bool> found(tensors.size(), false);
  for (std::size_t at = 0; at < tensors.size(); ++at) found[at] = !client.resident(tensors[at], place).value_or(true);
  return found;
}

// Leases that are on their way. Dropped, they are given back as they come; overwrites that came already are given up.
class ComingLeases {
 public:
  ComingLeases(std::shared_ptr<Connection> connection, const std::vector<Tensor>& tensors, const LeaseOptions& options)
      : connection_(std::move(connection)), needed_(tensors.size(), options.mode != Mode::kOverwrite) {
    for (std::size_t at = 0; at < std::min(tensors.size(), options.modes.size()); ++at)
      needed_[at] = options.modes[at] != Mode::kOverwrite;
    const nb::gil_scoped_release without;
    missing_ = absent(connection_->client, tensors, options.place);
    pending_.emplace(connection_->client.acquire_async(tensors, options));
  }
  ComingLeases(ComingLeases&& other) noexcept
      : connection_(std::move(other.connection_)),
        needed_(std::move(other.needed_)),
        missing_(std::move(other.missing_)),
        pending_(std::exchange(other.pending_, std::nullopt)) {}
  ComingLeases(const ComingLeases&) = delete;
  ComingLeases& operator=(const ComingLeases&) = delete;
  ComingLeases& operator=(ComingLeases&&) = delete;
  ~ComingLeases() {
    if (!pending_ || std::ranges::find(needed_, false) == needed_.end() || !pending_->ready()) return;
    Result<std::vector<Lease>> granted = pending_->wait({});
    if (!granted) return;
    for (Lease& lease : *granted) static_cast<void>(lease.abandon());
  }

  std::vector<HeldLease> take() {
    if (!pending_) raise({ErrorCode::kFailedPrecondition, "the leases were taken already"});
    const bool waited = !pending_->ready() || std::ranges::find(missing_, true) != missing_.end();
    std::vector<HeldLease> held;
    for (Lease& granted : await_once(pending_)) {
      const HeldLease::Way way = {.waited = waited, .fetched = needed_[held.size()] && missing_[held.size()]};
      held.emplace_back(std::make_shared<const Hold>(std::move(granted), connection_->leased), way);
    }
    return held;
  }

 private:
  std::shared_ptr<Connection> connection_;
  std::vector<bool> needed_;  // whose bytes are
  std::vector<bool> missing_;
  std::optional<Pending<std::vector<Lease>>> pending_;
};

// Of all tensors of a set, or of each.
using Modes = std::variant<std::string, std::vector<std::string>>;

LeaseOptions options_of(const Modes& modes, const std::string& place, double timeout, bool writable_view,
                        bool passing = false) {
  LeaseOptions options{
      .place = place_of(place), .timeout = duration(timeout), .writable_view = writable_view, .passing = passing};
  if (const auto* const each = std::get_if<std::vector<std::string>>(&modes))
    std::ranges::transform(*each, std::back_inserter(options.modes), mode_of);
  else
    options.mode = mode_of(std::get<std::string>(modes));
  return options;
}

std::vector<HeldLease> lease(const std::shared_ptr<Connection>& connection, const std::vector<Tensor>& tensors,
                             const Modes& mode, const std::string& place, double timeout, bool writable_view,
                             bool passing = false) {
  return ComingLeases(connection, tensors, options_of(mode, place, timeout, writable_view, passing)).take();
}

// What was said to the daemon, and is not answered yet.
struct Said {
  std::optional<Pending<void>> pending;

  void wait() {
    if (pending) await_once(pending);
  }
};

HeldLease lease_one(const BoundTensor& self, const char* mode, const std::string& place, double timeout,
                    bool writable_view = false) {
  return std::move(lease(self.connection, {self.tensor}, mode, place, timeout, writable_view).front());
}

using Spec = std::tuple<std::string, std::vector<std::int64_t>, std::uint32_t>;  // name, shape, dtype's number

struct Session {
  std::shared_ptr<Connection> connection;
  pid_t owner = ::getpid();

  // The connection, to look at its state; raises FailedPrecondition in a forked child, which has none.
  const Connection& here() const {
    if (::getpid() == owner) return *connection;
    raise(
        {ErrorCode::kFailedPrecondition,
         "this process is a fork of the one that opened the session: a session cannot be used across fork; connect in "
         "the child"});
  }

  Session(std::string socket, const std::vector<std::pair<std::string, std::uint64_t>>& guarantees,
          std::uint32_t local_world_size, double timeout, std::string label, double reconnect_timeout,
          const std::string& share, const std::string& share_use) {
    ConnectOptions options = {.socket = std::move(socket),
                              .guarantees = {},
                              .local_world_size = local_world_size,
                              .timeout = duration(timeout),
                              .label = std::move(label),
                              .reconnect_timeout = duration(reconnect_timeout),
                              .share = {}};
    if (!share_use.empty()) options.share = ShareOptions{share, use_of(share_use)};
    for (const auto& [place, bytes] : guarantees) options.guarantees.push_back({place_of(place), bytes});
    auto pending = [&] {
      const nb::gil_scoped_release without;
      return Client::connect_async(options);
    }();
    connection = std::make_shared<Connection>(await(std::move(pending)));
  }

  std::vector<BoundTensor> find(const std::vector<std::string>& names, double timeout) {
    std::vector<BoundTensor> found;
    const nanoseconds wait = duration(timeout);
    for (Tensor& tensor : unlocked([&] { return connection->client.find(names, wait); }))
      found.push_back({connection, std::move(tensor)});
    return found;
  }

  std::vector<BoundTensor> create(const std::vector<Spec>& specs, double timeout) {
    std::vector<TensorSpec> wanted;
    for (const auto& [name, shape, dtype] : specs)
      wanted.push_back({.name = name, .dtype = static_cast<DType>(dtype), .shape = shape, .strides = {}, .bytes = 0});
    auto pending = [&, wait = duration(timeout)] {
      const nb::gil_scoped_release without;
      return connection->client.create_async(wanted, wait);
    }();
    std::vector<BoundTensor> made;
    for (Tensor& tensor : await(std::move(pending))) made.push_back({connection, std::move(tensor)});
    return made;
  }
};

void bind_tensor(nb::module_& module) {
  nb::class_<BoundTensor>(module, "Tensor", "A named run of bytes with element type and shape, kept by the daemon.")
      .def(
          "read",
          [](const BoundTensor& self, const std::string& place, double timeout, bool writable_view) {
            return lease_one(self, "read", place, timeout, writable_view);
          },
          nb::kw_only(), "place"_a = "host", "timeout"_a = 60.0, "writable_view"_a = false)
      .def(
          "write",
          [](const BoundTensor& self, const std::string& place, double timeout) {
            return lease_one(self, "write", place, timeout);
          },
          nb::kw_only(), "place"_a = "host", "timeout"_a = 60.0)
      .def(
          "overwrite",
          [](const BoundTensor& self, const std::string& place, double timeout) {
            return lease_one(self, "overwrite", place, timeout);
          },
          nb::kw_only(), "place"_a = "host", "timeout"_a = 60.0)
      .def_prop_ro("name", [](const BoundTensor& self) { return self.tensor.name(); })
      .def_prop_ro("shape", [](const BoundTensor& self) { return nb::tuple(nb::cast(self.tensor.shape())); })
      .def_prop_ro("nbytes", [](const BoundTensor& self) { return self.tensor.bytes(); })
      .def_prop_ro("dtype", [](const BoundTensor& self) { return dtype_name(self.tensor.dtype()); })
      .def("__repr__",
           [](const BoundTensor& self) {
             return nb::str("<terrace.Tensor {!r} {}{}>")
                 .format(self.tensor.name(), dtype_name(self.tensor.dtype()), nb::cast(self.tensor.shape()));
           })
      .def_prop_ro("handle", [](const BoundTensor& self) { return self.tensor.handle(); });
}

using Tensors = std::vector<BoundTensor>;

void bind_moves(nb::class_<Session>& session) {
  session
      .def(
          "swap_in",
          [](Session& self, const Tensors& tensors, const std::string& place, double timeout) {
            await(self.connection->client.swap_in_async(plain(tensors), place_of(place), duration(timeout)));
          },
          "tensors"_a, nb::kw_only(), "place"_a = "host", "timeout"_a = 60.0)
      .def(
          "swap_out",
          [](Session& self, const Tensors& tensors, const std::string& place, double timeout) {
            await(self.connection->client.swap_out_async(plain(tensors), place_of(place), duration(timeout)));
          },
          "tensors"_a, nb::kw_only(), "place"_a = "block", "timeout"_a = 60.0)
      .def(
          "prefetch",
          [](Session& self, const Tensors& tensors, const std::string& place) {
            const Place to = place_of(place);
            unlocked([&] { return self.connection->client.prefetch(plain(tensors), to); });
          },
          "tensors"_a, nb::kw_only(), "place"_a = "host")
      .def(
          "evict",
          [](Session& self, const Tensors& tensors) {
            unlocked([&] { return self.connection->client.evict(plain(tensors)); });
          },
          "tensors"_a)
      .def(
          "dont_need",
          [](Session& self, const Tensors& tensors) {
            unlocked([&] { return self.connection->client.dont_need(plain(tensors)); });
          },
          "tensors"_a)
      .def(
          "_prefetch_later",
          [](Session& self, const Tensors& tensors, const std::string& place) {
            const Place to = place_of(place);
            const nb::gil_scoped_release without;
            static_cast<void>(self.connection->client.prefetch_async(plain(tensors), to));
          },
          "tensors"_a, "place"_a)
      .def(
          "_dont_need_later",
          [](Session& self, const Tensors& tensors) {
            const nb::gil_scoped_release without;
            return Said{self.connection->client.dont_need_async(plain(tensors))};
          },
          "tensors"_a)
      .def(
          "pin",
          [](Session& self, const Tensors& tensors, const std::string& place, double timeout) {
            await(self.connection->client.pin_async(plain(tensors), place_of(place), duration(timeout)));
          },
          "tensors"_a, nb::kw_only(), "place"_a = "host", "timeout"_a = 60.0)
      .def(
          "unpin",
          [](Session& self, const Tensors& tensors) {
            unlocked([&] { return self.connection->client.unpin(plain(tensors)); });
          },
          "tensors"_a)
      .def(
          "mark_step",
          [](Session& self, const std::string& kind) {
            const StepKind begins = step_of(kind);
            unlocked([&] { return self.connection->client.mark_step(begins); });
          },
          "kind"_a = "train")
      .def(
          "declare_step",
          [](Session& self, const std::vector<std::tuple<Tensors, std::string, std::string, double>>& sets,
             const std::string& kind) {
            std::vector<DeclaredSet> declared;
            for (const auto& [tensors, mode, place, seconds] : sets)
              declared.push_back({plain(tensors), place_of(place), mode_of(mode),
                                  std::chrono::duration_cast<std::chrono::microseconds>(duration(seconds))});
            const StepKind of = step_of(kind);
            unlocked([&] { return self.connection->client.declare_step(declared, of); });
          },
          "sets"_a, "kind"_a = "train");
}

}  // namespace

void bind_client(nb::module_& module) {
  bind_tensor(module);
  nb::class_<ComingLeases>(module, "ComingLeases", "Leases that are on their way.").def("take", &ComingLeases::take);
  nb::class_<Said>(module, "Said", "What was said to the daemon, which may not have answered yet.")
      .def("wait", &Said::wait);
  auto session =
      nb::class_<Session>(module, "Session", "One connection to the daemon; terrace.Client builds on it.")
          .def(nb::init<std::string, const std::vector<std::pair<std::string, std::uint64_t>>&, std::uint32_t, double,
                        std::string, double, const std::string&, const std::string&>(),
               "socket"_a, "guarantees"_a, "local_world_size"_a, "timeout"_a, "label"_a, "reconnect_timeout"_a,
               "share"_a, "share_use"_a)
          .def("_find", &Session::find, "names"_a, "timeout"_a)
          .def("_create", &Session::create, "specs"_a, "timeout"_a)
          .def(
              "_acquire",
              [](Session& self, const Tensors& tensors, const Modes& mode, const std::string& place, double timeout,
                 bool writable_view, bool passing) {
                return lease(self.connection, plain(tensors), mode, place, timeout, writable_view, passing);
              },
              "tensors"_a, "mode"_a, "place"_a, "timeout"_a, "writable_view"_a, "passing"_a = false)
          .def(
              "_acquire_later",
              [](Session& self, const Tensors& tensors, const std::string& mode, const std::string& place,
                 double timeout) {
                return ComingLeases(self.connection, plain(tensors), options_of(mode, place, timeout, false));
              },
              "tensors"_a, "mode"_a, "place"_a, "timeout"_a)
          .def(
              "_resident",
              [](const Session& self, const BoundTensor& tensor, const std::string& place) {
                return value_or_raise(self.here().client.resident(tensor.tensor, place_of(place)));
              },
              "tensor"_a, "place"_a)
          .def(
              "_delete",
              [](Session& self, const Tensors& tensors, double timeout) {
                await(self.connection->client.destroy_async(plain(tensors), duration(timeout)));
              },
              "tensors"_a, "timeout"_a)
          .def("close",
               [](Session& self) {
                 const nb::gil_scoped_release without;
                 self.connection->client.close();
               })
          .def("_check_process", [](const Session& self) { static_cast<void>(self.here()); })
          .def_prop_ro("session", [](const Session& self) { return self.here().client.session(); })
          .def_prop_ro("socket", [](const Session& self) { return self.connection->client.socket(); })
          .def_prop_ro("reconnects", [](const Session& self) { return self.here().client.reconnects(); })
          .def_prop_ro("pinned_bytes", [](const Session& self) { return self.here().client.pinned_bytes(); })
          .def("_await_passed",
               [](const Session& self) {
                 const Client& client = self.here().client;
                 const nb::gil_scoped_release without;
                 static_cast<void>(client.await_passed());
               })
          .def_prop_ro("held", [](const Session& self) { return self.here().client.held(); })
          .def_prop_ro("leased_bytes", [](const Session& self) { return self.here().leased->now(); })
          .def_prop_ro("leased_bytes_max", [](const Session& self) { return self.here().leased->max(); })
          .def(
              "_cuda_device",
              [](const Session& self, const std::string& place) {
                return value_or_raise(self.here().client.cuda_device(place_of(place)));
              },
              "place"_a)
          .def_prop_ro("_places", [](const Session& self) {
            std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t, bool>> places;
            for (const PlaceOffer& offer : self.here().client.places())
              places.emplace_back(offer.place.name(), offer.capacity_bytes, offer.guarantee_bytes, offer.gpu);
            return places;
          });
  bind_moves(session);
}

}  // namespace terrace::python
