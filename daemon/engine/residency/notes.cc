// SPDX-License-Identifier: Apache-2.0
// Notes of what takes effect before its answer is out, and room for names and shapes.
#include "engine/residency/records.h"

#include <fmt/format.h>

#include "engine/catalog/facts.h"
#include "engine/values/planted.h"

namespace terrace::engine {

// Places among the catalog's texts, in their order.
Result<std::vector<std::uint64_t>> Records::reserve_texts(const std::vector<TensorSpec>& specs) {
  std::vector<std::uint64_t> places;
  for (const TensorSpec& spec : specs) {
    const auto place = ledger_.texts.allocate(facts_of(spec).text_bytes());
    if (!place) {
      free_texts(specs, places);
      return fail(
          ErrorCode::kResourceExhausted,
          fmt::format("the name and shape of tensor '{}' find no room in the catalog: delete others", spec.name));
    }
    places.push_back(place->offset);
  }
  return places;
}

// Of the first specs, as many as there are places.
void Records::free_texts(const std::vector<TensorSpec>& specs, const std::vector<std::uint64_t>& places) {
  for (std::size_t i = 0; i < places.size(); ++i) ledger_.texts.free({places[i], facts_of(specs[i]).text_bytes()});
}

void Records::free_text(const Holdings& session, Slot slot) {
  const TensorFacts& facts = recorded(session, slot).facts;
  ledger_.texts.free({facts.text, facts.text_bytes()});
}

Result<void> Records::check_note(Holdings& session, SessionId member, std::size_t slots) const {
  if (!session.find_member(member)->maps_segments || catalog_.has_room_for_note(slots)) return {};
  return fail(ErrorCode::kResourceExhausted, "too many requests are granted and not yet answered: ask again");
}

// The notes of a request that changes what its trainer holds: until its answer is in the ring, a successor undoes it,
// and the trainer asks again.
void Records::note(Holdings& session, const GrantRecord& grant, const std::vector<GrantedSlot>& slots) {
  if (!session.find_member(SessionId{grant.session})->maps_segments) return;
  if (planted(Plant::kNoteSkipped)) return;
  notes_.add(RequestId{grant.request}, catalog_.note(grant, slots));
}

void Records::answering(RequestId request, std::uint32_t position) {
  const std::uint64_t* const note = notes_.find(request);
  if (note != nullptr) catalog_.answering(*note, position);
}

void Records::answered(RequestId request) {
  if (notes_.take(request) && notes_.empty()) catalog_.forget_notes();
}

std::size_t Records::take_record() {
  TERRACE_CHECK(!ledger_.free_records.empty());  // those that wait to be open count for the bound too
  const std::size_t record = *ledger_.free_records.begin();
  ledger_.free_records.erase(ledger_.free_records.begin());
  return record;
}

}  // namespace terrace::engine
