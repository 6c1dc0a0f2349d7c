// SPDX-License-Identifier: Apache-2.0
#include "gpu/torch_device/collectives.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <map>
#include <thread>

#include "gpu/fake_cuda/turns.h"
#include "gpu/torch_device/mirrors.h"

namespace terrace::torch_device {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

at::Tensor mirror(const at::Tensor& tensor) {
  return at::from_blob(mirror_of(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU));
}
Tensors mirror(const Tensors& tensors) {
  Tensors made;
  for (const at::Tensor& each : tensors) made.push_back(mirror(each));
  return made;
}
std::vector<Tensors> mirror(const std::vector<Tensors>& lists) {
  std::vector<Tensors> made;
  for (const Tensors& each : lists) made.push_back(mirror(each));
  return made;
}
Tensors with(Tensors kept, const std::vector<Tensors>& lists) {
  for (const Tensors& each : lists) kept.insert(kept.end(), each.begin(), each.end());
  return kept;
}

// A mean is a sum, divided by the CPU.
struct Reduction {
  explicit Reduction(c10d::ReduceOp asked, int ranks)
      : op(asked == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : asked),
        divisor(asked == c10d::ReduceOp::AVG ? ranks : 1) {}
  void end(at::Tensor& tensor) const {
    if (divisor != 1) tensor.div_(divisor);
  }
  c10d::ReduceOp op;
  int divisor;
};

// What was put in the stream of the collectives: waited for by the current stream, and not by the host.
class Work final : public c10d::Work {
 public:
  Work(OpType type, c10::Stream stream, Tensors kept, Tensors out)
      : c10d::Work(-1, type), stream_(stream), done_(stream), kept_(std::move(kept)), out_(std::move(out)) {
    const c10::StreamGuard guard(stream);
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{stream.device()});
    future_->markCompleted(c10::IValue(out_));
  }
  bool isCompleted() override { return done_.passed(); }
  bool isSuccess() const override { return true; }
  void synchronize() override {
    done_.hold_back(current_stream(stream_.device_index()));
    kept_.clear();
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }
  Tensors result() override { return out_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::Stream stream_;
  Mark done_;
  Tensors kept_;
  Tensors out_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class Collectives final : public c10d::Backend {
 public:
  Collectives(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size)
      : c10d::Backend(rank, size), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "fakeccl"; }
  bool supportsSplitting() const override { return false; }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return put(OpType::BROADCAST, tensors, tensors,
               [gloo = gloo_, all = mirror(tensors), options]() mutable { gloo->broadcast(all, options)->wait(); });
  }
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return put(OpType::ALLREDUCE, tensors, tensors,
               [gloo = gloo_, all = mirror(tensors), reduction = Reduction(options.reduceOp, size_)]() mutable {
                 gloo->allreduce(all, {.reduceOp = reduction.op})->wait();
                 for (at::Tensor& each : all) reduction.end(each);
               });
  }
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    WorkPointer last;
    for (const at::Tensor& each : tensors) {
      Tensors one{each};
      last = allreduce(one, {.reduceOp = options.reduceOp});
    }
    return last;
  }
  WorkPointer allgather(std::vector<Tensors>& out, Tensors& tensors, const c10d::AllgatherOptions& options) override {
    return put(OpType::ALLGATHER, with(tensors, out), out.at(0),
               [gloo = gloo_, to = mirror(out), all = mirror(tensors), options]() mutable {
                 gloo->allgather(to, all, options)->wait();
               });
  }
  WorkPointer _allgather_base(at::Tensor& out, at::Tensor& tensor, const c10d::AllgatherOptions& options) override {
    return put(OpType::_ALLGATHER_BASE, {out, tensor}, {out},
               [gloo = gloo_, to = mirror(out), from = mirror(tensor), options]() mutable {
                 at::Tensor copied = from.clone();  // which may be a part of what it is gathered into
                 gloo->_allgather_base(to, copied, options)->wait();
               });
  }
  WorkPointer allgather_into_tensor_coalesced(Tensors& out, Tensors& tensors,
                                              const c10d::AllgatherOptions& options) override {
    WorkPointer last;
    for (std::size_t each = 0; each < tensors.size(); ++each) last = _allgather_base(out[each], tensors[each], options);
    return last;
  }
  WorkPointer _reduce_scatter_base(at::Tensor& out, at::Tensor& tensor,
                                   const c10d::ReduceScatterOptions& options) override {
    return put(OpType::_REDUCE_SCATTER_BASE, {out, tensor}, {out},
               [gloo = gloo_, to = mirror(out), from = mirror(tensor), rank = rank_, size = size_,
                reduction = Reduction(options.reduceOp, size_)]() mutable {
                 Tensors whole{from.clone()};
                 gloo->allreduce(whole, {.reduceOp = reduction.op})->wait();
                 reduction.end(whole[0]);
                 to.copy_(whole[0].reshape({size, -1})[rank].reshape(to.sizes()));
               });
  }
  WorkPointer gather(std::vector<Tensors>& out, Tensors& tensors, const c10d::GatherOptions& options) override {
    return put(OpType::GATHER, with(tensors, out), {},
               [gloo = gloo_, to = mirror(out), all = mirror(tensors), options]() mutable {
                 gloo->gather(to, all, options)->wait();
               });
  }
  WorkPointer scatter(Tensors& out, std::vector<Tensors>& tensors, const c10d::ScatterOptions& options) override {
    return put(OpType::SCATTER, with(out, tensors), out,
               [gloo = gloo_, to = mirror(out), all = mirror(tensors), options]() mutable {
                 gloo->scatter(to, all, options)->wait();
               });
  }
  WorkPointer send(Tensors& tensors, int to, int tag) override {
    return put(OpType::SEND, tensors, {},
               [gloo = gloo_, all = mirror(tensors), to, tag]() mutable { gloo->send(all, to, tag)->wait(); });
  }
  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return put(OpType::RECV, tensors, tensors,
               [gloo = gloo_, all = mirror(tensors), from, tag]() mutable { gloo->recv(all, from, tag)->wait(); });
  }
  WorkPointer barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }

 private:
  // What is sent, what is received, and what all do have a stream each: none of them waits for another.
  c10::Stream stream_for(OpType type, int device) {
    const std::pair key(type == OpType::SEND || type == OpType::RECV ? type : OpType::UNKNOWN, device);
    const auto found = streams_.find(key);
    return found != streams_.end() ? found->second : streams_.emplace(key, new_stream(device)).first->second;
  }

  // Other ranks' streams may be there earlier or later, so that it runs on a thread of its own, and nobody's turn
  // waits.
  WorkPointer put(OpType type, Tensors kept, Tensors out, std::function<void()> work) {
    const int device = kept.at(0).device().index();
    const c10::Stream stream = stream_for(type, device);
    Mark(current_stream(device)).hold_back(stream);
    auto ended = std::make_shared<fake_cuda::EventState>();
    ended->recorded = 1;
    ended->device = fake_cuda::physical(device);
    launch(stream, "a collective", [work = std::move(work), ended] {
      std::thread([work, ended] {
        try {
          work();
        } catch (const std::exception&) {  // a rank is gone: what it would have given is not there
        }
        {
          const std::lock_guard lock(ended->mutex);
          ended->reached = 1;
        }
        ended->changed.notify_all();
        fake_cuda::Turns::taken()->note();
      }).detach();
    });
    state_of(stream).await(ended);
    return c10::make_intrusive<Work>(type, stream, std::move(kept), std::move(out));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::map<std::pair<OpType, int>, c10::Stream> streams_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> collectives_over(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size) {
  return c10::make_intrusive<Collectives>(std::move(gloo), rank, size);
}

}  // namespace terrace::torch_device
