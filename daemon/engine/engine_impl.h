// SPDX-License-Identifier: Apache-2.0
// The engine's one object. Its members are sorted by room, each a source file: sessions.cc, catalog.cc, leases.cc,
// copies.cc, admission.cc, room.cc, stitch.cc, eviction.cc, write_back.cc, transfers.cc, guarantees.cc, prefetch.cc,
// declare.cc, follow.cc and foresee.cc for what is foreseen, status.cc, invariants.cc, record.cc, restore.cc,
// settle.cc, former.cc and losses.cc for what outlives the process or does not, shares.cc and words.cc for what several
// processes see of it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/id_map.h"
#include "engine/admission.h"
#include "engine/engine.h"
#include "engine/links/scheduler.h"
#include "engine/links/write_budget.h"
#include "engine/session.h"
#include "engine/survey.h"
#include "engine/tensor.h"
#include "engine/tier_state.h"
#include "engine/under_way.h"
#include "tier/extent_allocator.h"

namespace terrace::engine {

class EngineImpl final : public Engine {
 public:
  EngineImpl(Options options, CatalogMemory& catalog);
  // One of them, before anything else.
  void begin_catalog();
  Result<void> restore_from(std::span<const Survivor> survivors, std::span<const LostSegment> lost);

  void submit(Time now, Request request) override;
  void cancel(Time now, RequestId request) override;
  void transfer_done(Time now, const mover::TransferDone& done) override;
  void segment_done(Time now, const mover::SegmentDone& done) override;
  void accessed(Time now, SessionId session, std::span<const Access> accesses, std::uint64_t fast_leases) override;
  void plan(Time now, SessionId session, std::shared_ptr<const foresight::Plan> plan) override;
  void lease_ended(Time now, SessionId session) override;
  void session_died(Time now, SessionId session) override;
  void answering(RequestId request, std::uint32_t position) override;
  void answered(RequestId request) override;
  void former_ended(Time now) override;
  void tier_failed(Time now, TierId tier, const Error& why) override;
  void tick(Time now) override;
  Time next_deadline() const override;
  void take_output(Output& output) override;
  Status status() const override;
  void check_invariants(std::span<const SessionId> scribbled) const override;

 private:
  enum class Room : std::uint8_t { kReady, kWait, kLeases, kOthers, kRefused };
  enum class Eviction : std::uint8_t { kDropped, kStarted, kDeferred, kRefused };

  // engine.cc: the entrance
  void run();
  void stir(Session& session);
  void stir_all();
  void pump(Session& session);
  void try_admissions(Session& session, bool prefetches);
  void expire();
  void watch_pressure();
  void answer(RequestId request, Result<ReplyBody> result);
  bool wait_for(RequestId request, SessionId session, Time deadline, bool close = false);
  void expire_one(RequestId request, const Waiting& waiting);
  Session* find_session(SessionId id);
  Result<Session*> open_session(SessionId id);
  Result<std::size_t> tier_of_place(std::uint32_t place, bool with_block) const;
  std::string place_names(bool with_block) const;

  // sessions.cc
  void on(const Request& request, const OpenSession& body);
  void on(const Request& request, const CloseSession& body);
  Result<std::vector<std::uint64_t>> floors_of(const OpenSession& open) const;
  std::unique_ptr<Policy> policy_for(std::size_t tier) const;
  void open_now(RequestId request, const OpenSession& open, const std::vector<std::uint64_t>& floors);
  void join_now(RequestId request, const OpenSession& open);
  SessionOpened opened(const Session& session, const Member& member) const;
  void end_session(Session& session, const Error& why);
  void finish_session(Session& session);

  // shares.cc
  Session* find_share(const Tenant& tenant, const std::string& name);
  Result<void> check_share(const OpenSession& open);
  static Member member_of(const OpenSession& open, SessionId id);
  std::size_t take_record();
  std::size_t records_used() const;
  Member& join(Session& share, const OpenSession& open);
  void leave(Session& session, SessionId id, const Error& why);
  void bereave(Session& session, Slot slot);
  bool must_not_wait(Session& session, const Admission& admission) const;
  bool others_hold(Session& session, const Admission& admission, const std::vector<Slot>& slots) const;
  std::uint64_t leases_of(const Session& session, const Member& member) const;
  Result<Session*> session_to_write(SessionId id);
  Result<void> await_others(Session& session, Admission& admission, Slot slot);

  // catalog.cc
  void on(const Request& request, CreateTensors&& body);
  Result<void> check_specs(const Session& session, const std::vector<TensorSpec>& specs) const;
  Result<void> check_spec(const TensorSpec& spec) const;
  Result<void> check_home(const Session& session, const std::vector<TensorSpec>& specs) const;
  void try_create(Session& session, Admission& admission);
  Result<void> reserve_on_block(const std::vector<TensorSpec>& specs, std::vector<tier::Pieces>& pieces,
                                std::vector<std::uint64_t>& checksums);
  // What is reserved for tensors that are created: on the block tier, or else in the tier above.
  struct Homes {
    std::vector<tier::Pieces> pieces;
    std::vector<std::uint64_t> checksums;
    std::vector<std::uint64_t> offsets;
  };
  Result<bool> reserve_homes(Session& session, Admission& admission, Homes& homes);
  Slot add_tensor(Session& session, const TensorSpec& spec, std::uint64_t text);
  void delete_tensor(Session& session, Slot slot);
  void finish_leaving(Session& session);
  bool try_finish_delete(Session& session, Slot slot);
  void forget(Session& session, Slot slot);
  void drop_content(Session& session, Slot slot);
  Result<Slot> find(const Session& session, Handle handle) const;
  Result<std::vector<Slot>> find_all(Session& session, const std::vector<Handle>& handles);
  // The same into `slots`, whose memory is used again.
  Result<void> find_all(Session& session, const std::vector<Handle>& handles, std::vector<Slot>& slots);
  Result<void> find_set(Session& session, Admission& admission);
  TensorInfo describe(const Session& session, Slot slot) const;

  // delete.cc
  void on(const Request& request, const DeleteTensors& body);
  void on(const Request& request, const DontNeed& body);
  void on(const Request& request, const ListTensors& body);
  void on(const Request& request, const FindTensors& body);

  // leases.cc
  void on(const Request& request, const Release& body);
  void tear(Session& session, Slot slot);
  void on(const Request& request, const Unpin& body);
  static bool pinned_by(const Session& session, Slot slot, SessionId member);
  void unpin(Session& session, Slot slot);

  // words.cc
  bool leased(const Session& session, Slot slot) const;
  bool claim(Session& session, Slot slot);
  void publish(Session& session, Slot slot, Level level);
  void publish(Session& session, Slot slot, Level level, SessionId to, shm::Mode mode);
  shm::Word shown_word(const Session& session, const Tensor& tensor, bool turn) const;
  static void show_nothing(Member& member, Slot slot, const Tensor& tensor);
  static void show_free(Session& session, Slot slot, std::uint32_t incarnation);
  void show_all(const Session& session, Member& member) const;
  bool is_awaited(const Session& session, const Tensor& tensor) const;
  void show_wanted(Session& session, Slot slot);
  static void show_lent(Session& session, Slot slot, bool lent);
  void unpublish(Session& session, Slot slot);
  void publish_best(Session& session, Slot slot);
  bool share(Session& session, Slot slot);
  void note_torn(Session& session, Slot slot);
  bool begin_clean(Session& session, Slot slot);
  bool finish_clean(const Session& session, Slot slot) const;
  void want(Session& session, Slot slot);
  void unwant(Session& session, Handle handle);
  std::string holders(const Session& session, const std::vector<Handle>& handles) const;

  // copies.cc
  std::size_t tier_index(const Tensor& tensor, Level level) const;
  Place& place_of(Session& session, const Tensor& tensor, Level level);
  bool at_tier(const Tensor& tensor, std::size_t tier) const;
  tier::Location location(const Session& session, const Tensor& tensor, Level level) const;
  Placement placement(const Tensor& tensor, Level level) const;
  void add_copy(Session& session, Slot slot, std::size_t tier, std::uint64_t offset);
  void drop_copy(Session& session, Slot slot, Level level);
  void free_extent(Session& session, std::size_t tier, tier::Extent extent);
  void free_home(Tensor& tensor);
  void retire_home(Tensor& tensor);
  void block_failed(Tensor& tensor, const Flight& flight, const Error& error);
  void lose_copy(Tensor& tensor, Level level);
  void rest(Session& session, Slot slot);
  Level fastest_valid(const Tensor& tensor) const;

  // admission.cc
  void on(const Request& request, Acquire&& body);
  void on(const Request& request, Move&& body);
  void on(const Request& request, Pin&& body);
  void admit(const Request& request, Admission&& admission, bool with_block);
  void enlist(Session& session, Admission&& admission);
  bool is_there(const Session& session, const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  bool reads_of_another(const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  static bool pinned_by_another(const Session& session, const Admission& admission, const Tensor& tensor);
  static bool waits_behind(const Admission& admission, const Tensor& tensor);
  bool all_there(const Session& session, const Admission& admission, const std::vector<Slot>& slots) const;
  static bool reads_content(const Admission& admission, shm::Mode mode);
  Result<void> check_content(const Session& session, const Admission& admission, Slot slot, shm::Mode mode) const;
  Result<bool> ready_to_start(Session& session, Admission& admission, const std::vector<Slot>& slots);
  void go_before_write_backs(Session& session, const Admission& admission, const std::vector<Slot>& slots, bool ready);
  void try_start(Session& session, Admission& admission);
  Room reserve(Session& session, Admission& admission, const std::vector<Slot>& slots, Error& refusal);
  static Admission::Block block_of(Room room);
  bool staging_grows(Session& session, const Admission& admission, const std::vector<Slot>& slots);
  bool wants_staging(const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  Result<bool> claim_all(Session& session, Admission& admission, const std::vector<Slot>& slots);
  void assemble(Session& session, Admission& admission, const std::vector<Slot>& slots);
  // One tensor further on its way; false when it is where it should be.
  bool advance(Session& session, Admission& admission, Slot slot);
  void arrived(Session& session, Slot slot);
  void note_leases(Session& session, const Admission& admission, const std::vector<Slot>& slots);
  void grant(Session& session, Admission& admission);
  Result<void> lease_resident(Session& session, const Admission& admission, const std::vector<Slot>& slots);
  void settle_granted(Session& session, const Admission& admission, Slot slot, shm::Mode mode);
  void fail_admission(Session& session, Admission& admission, Error error);
  void end_admission(Session& session, Admission& admission);
  Admission* find_admission(Session& session, std::uint64_t id);
  Admission& demand_of(Session& session, RequestId request);
  Error expired(Session& session, const Admission& admission) const;
  void count_waited(const Admission& admission, bool granted);

  // room.cc
  Room make_room(Session& session, Admission& admission, const std::vector<std::uint64_t>& sizes,
                 std::vector<std::uint64_t>& offsets, Error& refusal);
  Room make_room_by_bytes(Session& session, Admission& admission, std::uint64_t missing_bytes, Error& refusal);
  Room make_room_by_shape(Session& session, Admission& admission, const std::vector<std::uint64_t>& sizes,
                          Error& refusal);
  std::uint64_t set_bytes(Session& session, const Admission& admission, std::uint64_t missing_bytes) const;
  Room wait_for_leases(Session& session, Admission& admission, const Survey& survey, std::uint64_t bytes,
                       Error& refusal);
  Survey survey(Session& session, std::size_t tier, const Choice& choice);
  Choice choice_for(const Session& session, const Admission& admission, std::uint64_t enough_bytes) const;
  Survey survey_for(Session& session, const Admission& admission, std::uint64_t enough_bytes);
  bool slide_one(Session& session, std::size_t tier);
  bool room_is_coming(const Session& session, const Admission& admission) const;
  void raise_leaving(Session& session, std::size_t tier, std::uint64_t enough_bytes, Urgency urgency);
  void start_slide(Session& session, Slot slot, Level level, std::uint64_t new_offset);
  void slide_on(Session& session, Slot slot);
  Error full(const Session& session, std::size_t tier, const std::string& what) const;
  void drop_wants(Session& session, Admission& admission);
  void clear_wants(Session& session, Admission& admission);

  // stitch.cc
  bool can_stitch(std::size_t tier) const;
  std::vector<std::uint64_t> runs_at_best(const Session& session, std::size_t tier) const;
  bool stays(const Session& session, Slot slot, Level level) const;
  static std::vector<std::vector<tier::Extent>> pages_apart(Place& place, const Admission& admission,
                                                            std::vector<std::uint64_t> sizes);
  std::optional<Room> stitch(Session& session, Admission& admission, std::vector<std::uint64_t> sizes, Error& refusal);
  void begin_seam(Session& session, Admission& admission, std::vector<tier::Extent> pages);
  bool give_up_seams(Session& session, std::size_t tier);
  bool stitched(Session& session, std::size_t tier, const mover::SegmentDone& done);
  void unstitch(Session& session, std::size_t tier, std::uint64_t offset);
  void forget_records(Session& session, const Seam& seam);
  bool unstitch_unfit(Session& session, const Admission& admission, const std::vector<std::uint64_t>& sizes);
  void unstitch_idle(Session& session, std::size_t tier);
  Result<void> restore_seams(const CatalogMemory& catalog, Session& session);
  static bool restore_in_seam(Place& place, tier::Extent extent);

  // window.cc
  std::optional<double> missed(Session& session, std::size_t tier, Slot slot, const Choice& choice) const;
  bool clear_window(Session& session, std::size_t tier, std::uint64_t bytes, const Choice& choice);
  struct Occupant {
    tier::Extent extent;
    std::optional<Slot> copy;  // none: pages of a seam, which stay
  };
  std::vector<Occupant> occupants_for(const Session& session, std::size_t tier, std::uint64_t bytes) const;
  bool join_free(Session& session, std::size_t tier, std::uint64_t bytes, bool far = false);
  bool takes_drives(const Session& session, std::size_t tier, Slot slot) const;
  bool join_parts(Session& session, std::size_t tier, std::vector<std::uint64_t> sizes);
  bool make_room_at_once(Session& session, const Admission& admission, std::uint64_t bytes);

  // eviction.cc
  void on(const Request& request, const Evict& body);
  void evict_for_hint(Session& session, Slot slot);
  Eviction evict(Session& session, Slot slot, Level level, EvictionReason reason, Urgency urgency, bool straight_home);
  bool droppable(const Session& session, Slot slot, Level level) const;
  Eviction lower_extent(Session& session, Slot slot, Urgency urgency, Level& target);
  Eviction make_room_below(Session& session, Slot slot, std::uint64_t coming, Urgency urgency);
  bool allocate_by_dropping(Session& session, std::size_t tier, std::uint64_t bytes, std::uint64_t& offset);
  void count_eviction(Tensor& tensor, Level level, EvictionReason reason);
  void clean(Session& session);
  void clean_place(Session& session, std::size_t tier);
  bool may_clean(const Session& session, Slot slot, const Tensor& tensor, Level level) const;
  bool start_clean(Session& session, Slot slot, Level level, Level target);
  bool may_move(const Tensor& tensor) const;
  bool withdraw_clean(Session& session, Slot slot);
  std::optional<Flight> withdraw(Session& session, Slot slot, Activity activity);
  void give_up_clean(Session& session, Slot slot);

  // write_back.cc
  void look_for_write_backs();
  bool awaits_write_backs() const;
  void go_round(Session& session);
  bool write_back(Session& session, Slot slot);
  bool reserve_below(Session& session, Slot slot, Level& target);
  void written_back(Session& session, bool good);

  // transfers.cc
  mover::Link link_between(const Tensor& tensor, Level from, Level to) const;
  void start(Session& session, Slot slot, Flight flight, Urgency urgency);
  void completed(Session& session, const Flight& flight, const Result<void>& result, TierId failed);
  void fetched(Session& session, const Flight& flight, const Result<void>& result);
  void prove_home(Session& session, Slot slot);
  void evicted(Session& session, const Flight& flight, const Result<void>& result);
  void slid(Session& session, Slot slot, const Result<void>& result);
  void count_failure(const Error& error, TierId failed);
  std::vector<mover::Link> links() const;

  // guarantees.cc
  std::uint64_t claimed_bytes(std::size_t tier) const;  // of all sessions
  std::uint64_t floors_bytes(std::size_t tier, const Session* except) const;
  std::uint64_t limit_bytes(const Session& session, std::size_t tier) const;
  bool can_grow(const Session& session, std::size_t tier) const;
  bool grow(Session& session, std::size_t tier);
  void pump_opens();
  bool can_open(const PendingOpen& open) const;
  void fence_for(const PendingOpen& open);
  void fence(Session& session, std::size_t tier, std::uint64_t at);
  void unfence(Session& session, std::size_t tier);
  void unfence_all();
  bool is_behind_fence(const Session& session, const Tensor& tensor, Level level) const;
  void reclaim(Session& session);
  void reclaim_copy(Session& session, std::size_t tier, Slot slot);
  void move_below_fence(Session& session, std::size_t tier, Slot slot);
  void give_back_segments(Session& session, std::size_t tier);
  std::uint64_t projected_bytes(const Session& session, std::size_t tier) const;
  static std::string in_words(const Session& session, const Tenant& asks);
  Error open_refusal(const PendingOpen& open) const;

  // follow.cc
  void observe(const Session& session, Slot slot, shm::Mode mode, Time at, Duration waited);
  void observe_forgotten(const Session& session, Slot slot);
  void observe_step(const Session& session, std::uint32_t kind);
  void follow(Session& session, Slot slot);
  std::optional<std::uint32_t> find_use(Foreseen& foreseen, Slot slot) const;
  static bool leaps(Foreseen& foreseen, std::uint32_t use);
  void pass(Session& session, std::uint32_t use);
  void pass_below(Session& session, Slot slot);
  void pass_some(Session& session, std::uint32_t most);
  void step_over(Session& session);
  void lose_plan(Session& session);
  void tell_policies(Session& session);
  bool is_hinted(const Session& session, Slot slot, std::size_t tier) const;
  bool expect_first_uses(Session& session);
  void forget_expectations(Session& session);

  // declare.cc
  void on(const Request& request, const DeclareStep& body);
  Result<void> check_declared(Session& session, const DeclareStep& step);
  void observe_declared(Session& session, const DeclareStep& step);

  // foresee.cc
  void foresee(Session& session);
  void start_planned_cleans(Session& session);
  // Begun, or nothing to do; not now; nor any other that needs room there.
  enum class Planned : std::uint8_t { kDone, kLater, kNoRoom };
  Planned start_planned_clean(Session& session, const foresight::PlannedClean& clean);
  void start_planned_fetches(Session& session);
  void plan_return(Session& session, Slot slot, Level level);
  void revoke_late(Session& session);
  bool start_planned_fetch(Session& session, const foresight::PlannedFetch& fetch);

  // prefetch.cc
  void on(const Request& request, const Prefetch& body);
  void start_prefetches(Session& session);
  void keep_prefetch(Session& session, const Tensor& tensor, std::size_t tier);
  void revoke_prefetches(Session& session, const std::vector<Slot>& slots);
  bool revoke(Session& session, Admission& prefetch);
  void note_hint(Session& session, Slot slot, std::size_t tier);
  void note_lease(Session& session, Slot slot);
  void note_late(Session& session, const Tensor& tensor);

  // record.cc
  void touch(Session& session, Slot slot);
  void touch(Session& session);
  void commit();
  TensorRecord recorded(const Session& session, Slot slot) const;
  std::string_view name(const Session& session, Slot slot) const;
  auto names_of(const Session& session) const {
    return [this, &session](Slot slot) { return name(session, slot); };
  }
  Result<std::vector<std::uint64_t>> reserve_texts(const std::vector<TensorSpec>& specs);
  void free_texts(const std::vector<TensorSpec>& specs, const std::vector<std::uint64_t>& places);
  void free_text(const Session& session, Slot slot);
  // kResourceExhausted: no note of so many slots finds room just now.
  Result<void> check_note(Session& session, SessionId member, std::size_t slots) const;
  void note(Session& session, const GrantRecord& grant, const std::vector<GrantedSlot>& slots);
  static TensorState state_of(const Session& session, const Tensor& tensor);
  static TensorRarities rarities_of(const Tensor& tensor);
  std::uint64_t tenant_record(const Session& session) const;
  SessionRecord record_of(const Session& session) const;
  SessionRecord record_of(const Session& share, const Member& member) const;
  NodeRecord node_record() const;

  // restore.cc
  Result<void> restore_members(const CatalogMemory& catalog, std::span<const Survivor> survivors);
  bool is_in_use(std::size_t record) const;
  Result<void> restore_session(const CatalogMemory& catalog, Session& session);
  Result<void> restore_tensor(Session& session, Slot slot, const TensorRecord& record);
  Result<void> restore_home(Tensor& tensor, const TensorRecord& record);
  Result<void> check_restored() const;

  // former.cc
  bool may_still_land(const Tensor& tensor, const TensorState& was) const;
  bool needs_block(const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  void hold_block(bool hold);

  // losses.cc
  void record_loss(std::size_t tier, bool lost);
  void give_up_guarantees(std::size_t tier);
  void mark_gone(const LostSegment& lost);
  bool is_gone_at(const Session& session, const Tensor& tensor, std::uint64_t offset) const;
  bool is_gone(const Session& session, const Tensor& tensor) const;
  bool is_shown_where_gone(const Session& session, const Tensor& tensor) const;
  void lose_if_gone(Session& session, Slot slot);
  void give_up_gone(Session& session, Slot slot);
  void await_gone(Session& session, Slot slot);
  void give_up_ended(Session& session);
  Error out_of_use(const Session& session, const Admission& admission) const;
  std::string how_lost(const Tensor& tensor) const;

  // settle.cc
  // What nobody was told of: tensors whose content was given up for a lease, and tensors that were created.
  struct Unanswered {
    std::vector<Slot> torn;
    std::vector<Slot> created;
  };
  std::map<SessionId, Unanswered> undo_unanswered(std::span<const Survivor> survivors);
  void settle(Session& session, const Unanswered& unanswered);
  void settle_word(Session& session, Slot slot);
  static bool was_shared(const Member& holder, Slot slot, const Tensor& tensor);
  void settle_shared(Session& session, Slot slot);

  // status.cc
  void on(const Request& request, const MarkStep& body);
  void on(const Request& request, const GetStatus& body);
  void on(const Request& request, const Drain& body);
  TierStatus tier_status(std::size_t tier) const;
  SessionStatus session_status(const Session& session) const;

  // invariants.cc
  void check_session(const Session& session, bool scribbled) const;
  void check_tensor(const Session& session, Slot slot) const;
  void check_word(const Session& session, Slot slot) const;
  void check_places(const Session& session) const;
  void check_guarantee(const Session& session, std::size_t tier) const;
  void check_block() const;
  void check_catalog() const;
  void check_texts() const;

  Options options_;
  CatalogMemory* catalog_;
  std::vector<std::pair<SessionId, Slot>> touched_;
  std::vector<SessionId> touched_sessions_;
  std::set<std::size_t> free_records_;
  std::vector<std::size_t> freed_records_;  // since the last commit
  std::uint64_t next_seam_ = tier::kSeamsBegin;
  std::vector<tier::Extent> retired_;      // of the block tier
  IdMap<RequestId, std::uint64_t> notes_;  // of requests whose replies are not in their rings
  std::vector<Tier> tiers_;
  std::size_t memory_tier_ = SIZE_MAX;
  std::size_t block_tier_ = SIZE_MAX;
  Level home_level_ = Level::kDevice;
  tier::ExtentAllocator block_space_{kPageBytes};
  tier::ExtentAllocator checksum_space_{1};
  tier::ExtentAllocator text_space_{kTextUnitBytes};  // of the catalog
  std::uint64_t spare_bytes_ = 0;
  Scheduler scheduler_;
  WriteBudget write_budget_;             // of the block tier
  bool writes_back_early_ = false;       // from some tier
  std::vector<std::size_t> kept_clean_;  // tiers right above the homes whose copies are, once the tier is nearly full
  Time next_look_{};                     // for what to write back early

  Time now_{};
  bool draining_ = false;
  bool former_at_work_ = false;  // only where there is a block tier
  std::uint32_t next_session_ = 1;
  std::uint64_t next_number_ = 1;
  std::uint64_t next_transfer_ = 1;
  std::uint64_t next_admission_ = 1;
  std::uint64_t next_mark_ = 1;
  std::uint64_t set_mark_ = UINT64_MAX;  // on the tensors of the admission that is being looked at
  Missing missing_;                      // of the same; its memory is used again
  std::vector<Slot> spare_slots_;        // memory for those of the next one
  std::uint64_t steps_ = 0;
  Restored restored_;
  PrefetchStatus prefetches_;
  ForesightStatus foresight_;
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  std::map<SessionId, SessionId> part_of_;  // members of shares, and the share
  std::vector<Session*> stirred_;           // null: of which nothing is left
  std::vector<PendingOpen> opens_;
  bool fenced_ = false;  // some session may have a fence
  bool opens_stirred_ = false;
  IdMap<RequestId, Waiting> waiting_;
  std::set<std::pair<Time, RequestId>> deadlines_;
  IdMap<TransferId, Flight> flights_;
  std::map<mover::Link, LinkStatus> link_status_;
  Output output_;
};

}  // namespace terrace::engine
