// SPDX-License-Identifier: Apache-2.0
#include "mover/mover.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mapping.h"
#include "mover/chunk.h"
#include "mover/cuda_links.h"
#include "mover/flow.h"
#include "mover/io_queue.h"
#include "mover/pinned_memory.h"
#include "mover/registered_buffers.h"
#include "mover/segment_jobs.h"

namespace terrace::mover {
namespace {

constexpr unsigned kChunksMax = 1024;
// Of what the CPU copies, for each copier: it has more to do whenever it asks, and what is more urgent and comes later
// waits for no more than this. Copiers take what they are given in its order.
constexpr std::uint64_t kCopyingBytesMax = 2 * kCopyChunkBytes;

// Private memory of the daemon's own, zero until written, backed where touched.
Result<AddressRange> own_memory(std::uint64_t bytes, int protection) {
  auto range = AddressRange::reserve(bytes);
  if (!range) return range;
  if (mprotect(range->data(), bytes, protection) != 0) {
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{} of buffers: {}", format_bytes(bytes), std::strerror(errno)), errno);
  }
  (void)madvise(range->data(), bytes, MADV_DONTDUMP);  // it holds trainers' bytes
  return range;
}

class ChunkMover final : public Mover, public ChunkOwner, private Completion {
 public:
  ChunkMover(Ring& ring, Workers& workers, Tiers tiers, const Options& options)
      : ring_(ring),
        workers_(workers),
        tiers_(std::move(tiers)),
        inline_bytes_max_(options.inline_bytes_max),
        io_(options.queue_depth),
        segments_(workers) {}
  ~ChunkMover() override;
  ChunkMover(const ChunkMover&) = delete;
  ChunkMover& operator=(const ChunkMover&) = delete;

  Result<void> set_up(const Options& options);

  void start(const Transfer& transfer) override;
  void start(const SegmentOrder& order) override;
  void drop(SessionId session) override;
  std::vector<TransferDone> take_transfers() override { return std::exchange(done_, {}); }
  std::vector<SegmentDone> take_segments() override;
  std::size_t in_flight() const override { return flows_in_flight_ + segments_.in_flight(); }
  MoverFacts facts() const override;
  const MoverCounts& counts() const override { return counts_; }

  void chunk_done(Chunk& chunk, Result<void> result) override;

 private:
  // One of those that can be begun at a time.
  struct Place {
    Chunk chunk;
    Flow* flow;
    std::uint64_t copying_bytes = 0;  // of a chunk that the CPU copies
  };

  // The GPUs' streams have something to collect.
  struct GpuWake final : Completion {
    CudaLinks* links = nullptr;
    void completed(int result, bool /*more*/) override {
      TERRACE_CHECK(result >= 0);
      links->collect();
    }
  };

  Result<void> set_up_gpus();
  tier::CudaContext* pin_spare();
  void completed(int result, bool more) override;
  Ends ends_of(const Transfer& transfer, const std::byte* from, const std::byte* to) const;
  std::byte* address(const tier::Location& location, std::uint64_t bytes) const;
  Flow& free_flow();
  std::deque<Flow*>& queue_of(const Flow& flow) { return waiting_[static_cast<std::size_t>(flow.transfer.urgency)]; }
  bool may_begin(const Flow& flow) const;
  Flow* next_flow();
  void pump();
  void begin_chunk(Flow& flow);
  void end(Flow& flow);
  // Which tier failed it, if it failed.
  TierId at_fault(const Flow& flow) const;

  Ring& ring_;
  Workers& workers_;
  Tiers tiers_;
  TierId block_{255};  // no tier's, while there is none
  const std::uint64_t inline_bytes_max_;
  MoverFacts facts_;
  MoverCounts counts_;
  PollId wake_ = PollId::kNone;
  CudaLinks gpus_;
  GpuWake gpu_wake_;
  PollId gpu_poll_ = PollId::kNone;
  AddressRange spare_;  // a chunk for each place; backed only while something is read again, or pinned for the GPUs
  AddressRange zeros_;  // one chunk
  std::optional<RegisteredBuffers> buffers_;
  std::optional<PinnedMemory> pinned_;
  IoQueue io_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<Place*> free_places_;
  std::vector<std::unique_ptr<Flow>> flows_;  // as many as were ever in flight at once
  std::vector<Flow*> free_flows_;
  std::array<std::deque<Flow*>, kClasses> waiting_;  // what has chunks left to begin, first come first
  std::size_t flows_in_flight_ = 0;
  std::uint64_t copying_bytes_ = 0;  // of all places
  SegmentJobs segments_;
  std::vector<TransferDone> done_;
  bool pumping_ = false;
  bool stopping_ = false;
};

Result<void> ChunkMover::set_up(const Options& options) {
  TERRACE_CHECK(options.queue_depth > 0 && options.chunks_max > 0 && options.chunks_max <= kChunksMax);
  auto spare = own_memory(options.chunks_max * tier::kChunkBytes, PROT_READ | PROT_WRITE);
  if (!spare) return std::unexpected(std::move(spare.error()));
  spare_ = std::move(*spare);
  auto zeros = own_memory(tier::kChunkBytes, PROT_READ);
  if (!zeros) return std::unexpected(std::move(zeros.error()));
  zeros_ = std::move(*zeros);
  auto wake = ring_.poll(workers_.descriptor(), POLLIN, *this);
  if (!wake) return std::unexpected(std::move(wake.error()));
  wake_ = *wake;

  if (tiers_.block != nullptr) {
    ring_.set_files(tiers_.block->descriptors());
    const auto hole = std::find(tiers_.mapped.begin(), tiers_.mapped.end(), nullptr);
    TERRACE_CHECK(hole != tiers_.mapped.end());  // the block tier has an id too
    block_ = TierId{static_cast<std::uint8_t>(hole - tiers_.mapped.begin())};
  }
  buffers_.emplace(ring_, std::span(spare_.data(), spare_.size()));
  (void)madvise(spare_.data(), spare_.size(), MADV_DONTNEED);
  if (auto done = set_up_gpus(); !done) return done;
  const Chunk::Surroundings surroundings{.ring = ring_,
                                         .workers = workers_,
                                         .io = io_,
                                         .buffers = *buffers_,
                                         .pinned = *pinned_,
                                         .block = tiers_.block,
                                         .counts = counts_,
                                         .owner = *this,
                                         .inline_bytes_max = options.inline_bytes_max,
                                         .spare_is_pinned = gpus_.any() != nullptr};
  for (unsigned index = 0; index < options.chunks_max; ++index) {
    std::byte* spare_chunk = spare_.data() + index * tier::kChunkBytes;
    places_.push_back(
        std::make_unique<Place>(Place{.chunk = Chunk(surroundings, index, spare_chunk), .flow = nullptr}));
    free_places_.push_back(places_.back().get());
  }
  facts_ = {.queue_depth = options.queue_depth,
            .copiers = workers_.copiers(),
            .registered_files = ring_.files_registered(),
            .registered_buffers = buffers_->allowed(),
            .deferred_completions = ring_.deferred()};
  return {};
}

// By the first GPU that does it, for all of them; one that does not is of no use. Null: none does.
tier::CudaContext* ChunkMover::pin_spare() {
  while (tier::CudaContext* const context = gpus_.any()) {
    const cuda::Current current(context->api(), context->context());
    auto pinned = current.result();
    if (pinned) pinned = context->api().host_register(spare_.data(), spare_.size(), cuda::kHostRegisterPortable);
    if (pinned) return context;
    gpus_.give_up(context,
                  {pinned.error().code,
                   fmt::format("pinning {} of buffers: {}", format_bytes(spare_.size()), pinned.error().message), 0});
  }
  return nullptr;
}

// The spare is how bytes come from a disk to a GPU, and from memory that is not pinned: it must be pinned itself.
Result<void> ChunkMover::set_up_gpus() {
  auto gpus = CudaLinks::create(tiers_.mapped);
  if (!gpus) return std::unexpected(std::move(gpus.error()));
  gpus_ = std::move(*gpus);
  tier::CudaContext* const context = pin_spare();
  pinned_.emplace(workers_, context);
  if (context == nullptr) return {};
  if (auto started = workers_.start_pinners(); !started) return started;
  buffers_->add(SessionId{}, TierId{255}, {0, spare_.size()}, spare_.data());
  gpu_wake_.links = &gpus_;
  auto poll = ring_.poll(gpus_.descriptor(), POLLIN, gpu_wake_);
  if (!poll) return std::unexpected(std::move(poll.error()));
  gpu_poll_ = *poll;
  return {};
}

MoverFacts ChunkMover::facts() const {
  MoverFacts facts = facts_;
  facts.pinned_bytes = pinned_->pinned_bytes();
  facts.refused_bytes = pinned_->refused_bytes();
  facts.registered_bytes = buffers_->registered_bytes();
  return facts;
}

ChunkMover::~ChunkMover() {
  stopping_ = true;
  if (pinned_) pinned_->stop();
  while (free_places_.size() < places_.size() || segments_.in_flight() > 0 || (pinned_ && pinned_->in_flight() > 0)) {
    TERRACE_CHECK(ring_.run_once(Duration::max()).has_value());
  }
  ring_.unpoll(wake_);
  ring_.unpoll(gpu_poll_);
  pinned_.reset();
  if (tier::CudaContext* const context = gpus_.any(); context != nullptr) {
    const cuda::Current current(context->api(), context->context());
    static_cast<void>(context->api().host_unregister.status(spare_.data()));
  }
}

// A worker has finished something.
void ChunkMover::completed(int result, bool /*more*/) {
  TERRACE_CHECK(result >= 0);
  workers_.collect();
}

std::byte* ChunkMover::address(const tier::Location& location, std::uint64_t bytes) const {
  TERRACE_CHECK(index(location.tier) < tiers_.mapped.size() && location.pieces.size() == 1);
  TERRACE_CHECK(bytes <= location.pieces[0].bytes);
  return tiers_.mapped[index(location.tier)]->address(location.session, location.pieces[0].offset);
}

Ends ChunkMover::ends_of(const Transfer& transfer, const std::byte* from, const std::byte* to) const {
  Ends ends{.copiers = workers_.copiers()};
  if (from != nullptr) ends.from_gpu = gpus_.of(transfer.from.tier);
  if (to != nullptr) ends.to_gpu = gpus_.of(transfer.to.tier);
  if (ends.from_gpu == nullptr && ends.to_gpu == nullptr) return ends;
  const std::byte* const host = ends.from_gpu == nullptr ? from : ends.to_gpu == nullptr ? to : nullptr;
  const bool within_memory = transfer.from.tier != block_ && transfer.to.tier != block_;
  ends.pinned = within_memory && (host == nullptr || pinned_->covers(host, transfer.bytes));
  return ends;
}

Flow& ChunkMover::free_flow() {
  if (free_flows_.empty()) {
    flows_.push_back(std::make_unique<Flow>());
    return *flows_.back();
  }
  Flow* flow = free_flows_.back();
  free_flows_.pop_back();
  return *flow;
}

void ChunkMover::start(const Transfer& transfer) {
  const Path path = route(transfer, block_);
  const bool with_block = path == Path::kToBlock || path == Path::kFromBlock || path == Path::kProve;
  TERRACE_CHECK(!with_block || tiers_.block->owned());
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  if (path == Path::kToBlock || path == Path::kProve) {
    TERRACE_CHECK(align_up(transfer.bytes, kPageBytes) <= transfer.to.pieces.bytes());
  } else {
    to = address(transfer.to, transfer.bytes);
  }
  if (path == Path::kFromBlock) {
    TERRACE_CHECK(align_up(transfer.bytes, kPageBytes) <= transfer.from.pieces.bytes());
  } else if (!transfer.zero_fill && !transfer.prove) {
    from = address(transfer.from, transfer.bytes);
  }
  Flow& flow = free_flow();
  ++flows_in_flight_;
  flow.prepare(transfer, path, ends_of(transfer, from, to), from, to);
  if (flow.chunks == 0) {
    end(flow);
    return;
  }
  queue_of(flow).push_back(&flow);
  pump();
}

void ChunkMover::start(const SegmentOrder& order) {
  TERRACE_CHECK(index(order.tier) < tiers_.mapped.size() && tiers_.mapped[index(order.tier)] != nullptr);
  if (order.kind == SegmentOrder::Kind::kRemove) {
    buffers_->remove(order.session, order.tier, order.extent);
    pinned_->remove(order.session, order.tier, order.extent);
  }
  segments_.start(*tiers_.mapped[index(order.tier)], order);
}

void ChunkMover::drop(SessionId session) {
  buffers_->drop(session);
  pinned_->drop(session);
  segments_.drop(tiers_.mapped, session);
}

// Nobody begins I/O on a segment before it was taken from here.
std::vector<SegmentDone> ChunkMover::take_segments() {
  auto done = segments_.take_done();
  for (const SegmentDone& each : done) {
    const SegmentOrder& order = each.order;
    if (!each.result || order.kind != SegmentOrder::Kind::kAdd || gpus_.of(order.tier) != nullptr) continue;
    std::byte* const memory = tiers_.mapped[index(order.tier)]->address(order.session, order.extent.offset);
    buffers_->add(order.session, order.tier, order.extent, memory);
    pinned_->add(order.session, order.tier, order.extent, memory);
  }
  return done;
}

bool ChunkMover::may_begin(const Flow& flow) const {
  const bool by_copiers = flow.by_cpu() && flow.transfer.bytes > inline_bytes_max_;
  return flow.can_begin() && (!by_copiers || copying_bytes_ < kCopyingBytesMax * workers_.copiers());
}

// What nobody waits for leaves half of the chunks to others: workers take what comes in its order.
Flow* ChunkMover::next_flow() {
  for (const auto& queue : waiting_) {
    const bool for_nobody = &queue == &waiting_[static_cast<std::size_t>(Class::kCleaning)];
    if (for_nobody && places_.size() > 1 && free_places_.size() <= places_.size() / 2) continue;
    const auto found = std::find_if(queue.begin(), queue.end(), [this](const Flow* flow) { return may_begin(*flow); });
    if (found != queue.end()) return *found;
  }
  return nullptr;
}

// Small chunks end while they begin: this loop goes on with the next, instead of a call within a call for each.
void ChunkMover::pump() {
  if (pumping_ || stopping_) return;
  pumping_ = true;
  while (!free_places_.empty()) {
    Flow* flow = next_flow();
    if (flow == nullptr) break;
    begin_chunk(*flow);
  }
  pumping_ = false;
}

void ChunkMover::begin_chunk(Flow& flow) {
  Place& place = *free_places_.back();
  free_places_.pop_back();
  place.flow = &flow;
  const ChunkWork work = flow.begin_chunk(zeros_.data());
  if (flow.is_begun()) std::erase(queue_of(flow), &flow);
  place.copying_bytes = flow.by_cpu() ? work.bytes : 0;
  copying_bytes_ += place.copying_bytes;
  place.chunk.start(work);
}

void ChunkMover::chunk_done(Chunk& chunk, Result<void> result) {
  Place& place = *places_[chunk.index()];
  Flow& flow = *std::exchange(place.flow, nullptr);
  free_places_.push_back(&place);
  copying_bytes_ -= place.copying_bytes;
  --flow.in_flight;
  if (!result && flow.result) {
    if (!flow.is_begun()) std::erase(queue_of(flow), &flow);
    flow.result = std::move(result);
    flow.gpu_failed = chunk.gpu_failed();
  }
  if (flow.in_flight == 0 && flow.is_begun()) end(flow);
  pump();
}

TierId ChunkMover::at_fault(const Flow& flow) const {
  if (flow.gpu_failed) return flow.ends.to_gpu != nullptr ? flow.transfer.to.tier : flow.transfer.from.tier;
  return flow.path == Path::kToBlock || flow.path == Path::kFromBlock || flow.path == Path::kProve
             ? block_
             : flow.transfer.to.tier;
}

void ChunkMover::end(Flow& flow) {
  done_.push_back({.id = flow.transfer.id, .result = std::move(flow.result), .failed = at_fault(flow)});
  --flows_in_flight_;
  free_flows_.push_back(&flow);
}

}  // namespace

Result<std::unique_ptr<Mover>> Mover::create(Ring& ring, Workers& workers, Tiers tiers, const Options& options) {
  auto mover = std::make_unique<ChunkMover>(ring, workers, std::move(tiers), options);
  if (auto done = mover->set_up(options); !done) return std::unexpected(std::move(done.error()));
  return mover;
}

}  // namespace terrace::mover
