// SPDX-License-Identifier: Apache-2.0
// A catalog that anything happened to: open() and restore() take it or name what is damaged, change nothing then, and
// an engine that took it keeps the laws while it is used to the end.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>

#include "base/check.h"
#include "fuzz/catalog_images.h"
#include "fuzz/engine_driver.h"
#include "fuzz/input.h"

namespace terrace::fuzz {
namespace {

constexpr int kChangesMax = 64;

// Memory for a catalog, zeroed again for each run.
class CatalogFile {
 public:
  explicit CatalogFile(std::uint64_t bytes) : size_(bytes) {
    void* found = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TERRACE_CHECK(found != MAP_FAILED);
    base_ = static_cast<std::byte*>(found);
  }
  void load(const CatalogImage& image) {
    ::madvise(base_, size_, MADV_DONTNEED);
    touched_.clear();
    for (const auto& [offset, page] : image.pages) std::ranges::copy(page, at(offset, page.size()).begin());
  }
  std::span<std::byte> bytes() { return {base_, size_}; }
  std::uint64_t size() const { return size_; }
  // For writing.
  std::span<std::byte> at(std::uint64_t offset, std::uint64_t count) {
    for (std::uint64_t page = align_down(offset, kPageBytes); page < offset + count; page += kPageBytes) touched_[page];
    return {base_ + offset, count};
  }
  // What is there now, to be compared later.
  void remember() {
    for (auto& [offset, page] : touched_) std::memcpy(page.data(), base_ + offset, page.size());
  }
  bool is_as_remembered() const {
    return std::ranges::all_of(touched_, [&](const auto& entry) {
      return std::memcmp(entry.second.data(), base_ + entry.first, entry.second.size()) == 0;
    });
  }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t size_;
  std::map<std::uint64_t, Page> touched_;
};

class Catalog {
 public:
  Catalog(const CatalogImage& image, CatalogFile& file) : image_(image), file_(file) {
    file_.load(image);
    for (const CatalogImage::Table& table : image.tables) {
      std::vector<shm::TableSlot>& slots = tables_.emplace_back(table.slots.size());
      for (std::size_t i = 0; i < slots.size(); ++i)
        std::memcpy(static_cast<void*>(&slots[i]), table.slots[i].data(), sizeof slots[i]);
    }
  }

  void change(Input& input) {
    const std::size_t where = input.below(9);
    if (where == 0) return change_word(input);
    const std::uint64_t target = pick(where, input);
    const std::size_t how = input.below(8);
    if (how == 0) {
      const std::uint64_t source = pick(where, input);
      return copy(target, source, 1 + input.below(512));
    }
    if (how == 1) {
      const auto bytes = input.span(1 + input.below(128));
      return write(target, bytes);
    }
    const std::uint64_t number = input.number();
    write(target, std::as_bytes(std::span(&number, 1)).first(std::size_t{1} << how % 4));
  }

  // Whether a former daemon is at work when its successor begins, and when trainers ask for something.
  enum class Former : std::uint8_t { kEnded, kEndsLast, kEndsFirst };

  // As a successor does.
  void take_over(std::uint64_t bytes, Former former) {
    file_.remember();
    auto opened = engine::CatalogMemory::open(file_.bytes().first(bytes), image_.shape);
    if (!opened) return refused(opened.error());
    file_.remember();
    std::uint64_t noted = 0;
    opened->each_note([&](const engine::GrantRecord& grant, std::span<const engine::GrantedSlot> slots) {
      noted += grant.request;
      for (const engine::GrantedSlot& slot : slots) noted += slot.slot ^ slot.mark;
    });
    keep(noted);
    std::vector<engine::Survivor> survivors;
    for (std::size_t i = 0; i < tables_.size(); ++i)
      survivors.push_back({image_.tables[i].session, engine::LeaseTable(tables_[i]), image_.tables[i].completions});
    engine::Options options = image_.options;
    options.former_at_work = former != Former::kEnded;
    auto restored = engine::Engine::restore(options, *opened, survivors);
    if (!restored) return refused(restored.error());
    EngineDriver driver(**restored, options);
    if (former == Former::kEndsFirst) (*restored)->former_ended(driver.now());
    driver.use_up();
    (*restored)->former_ended(driver.now());
    driver.use_up();
  }

 private:
  static void keep(std::uint64_t value) { asm volatile("" : : "r"(value)); }
  void refused(const Error& error) {
    TERRACE_CHECK(error.code == ErrorCode::kFailedPrecondition && !error.message.empty());
    TERRACE_CHECK(file_.is_as_remembered());
  }

  // An offset in the catalog: in its header, its notes, its journal, a session, one of a tensor's records.
  std::uint64_t pick(std::size_t where, Input& input) {
    const engine::CatalogLayout layout(image_.shape);
    const std::uint64_t session = input.below(5);
    const std::uint64_t tensor = session * image_.shape.tensors_per_session_max + input.below(32);
    switch (where) {
      case 1:
        return input.below(kPageBytes);
      case 2:
        return layout.notes + input.below(kPageBytes);
      case 3:
        return layout.journal + input.below(kPageBytes);
      case 4:
        return layout.sessions + session * sizeof(engine::SessionRecord) + input.below(sizeof(engine::SessionRecord));
      case 5:
        return layout.states + tensor * sizeof(engine::TensorState) + input.below(sizeof(engine::TensorState));
      case 6:  // which count from now on
        file_.at(layout.states + tensor * sizeof(engine::TensorState) + offsetof(engine::TensorState, flags), 1)[0] |=
            std::byte{engine::kRare};
        return layout.rarities + tensor * sizeof(engine::TensorRarities) + input.below(sizeof(engine::TensorRarities));
      case 7:
        return layout.facts + tensor * sizeof(engine::TensorFacts) + input.below(sizeof(engine::TensorFacts));
      default:
        return layout.texts + input.below(kPageBytes);
    }
  }
  void write(std::uint64_t offset, std::span<const std::byte> bytes) {
    std::ranges::copy(bytes, file_.at(offset, bytes.size()).begin());
  }
  void copy(std::uint64_t to, std::uint64_t from, std::size_t count) {
    const auto source = file_.bytes().subspan(from, count);
    write(to, std::vector<std::byte>(source.begin(), source.end()));
  }
  void change_word(Input& input) {
    if (tables_.empty()) return;
    std::vector<shm::TableSlot>& slots = tables_[input.below(tables_.size())];
    slots[input.below(slots.size())].word.store(input.number());
  }

  const CatalogImage& image_;
  CatalogFile& file_;
  std::vector<std::vector<shm::TableSlot>> tables_;
};

void run(Input input, std::size_t size) {
  static const std::vector<CatalogImage> images = make_catalog_images();
  static CatalogFile file(align_up(engine::CatalogMemory::bytes_needed(images[0].shape), kPageBytes));
  Catalog catalog(images[input.below(images.size())], file);
  const std::uint64_t bytes = input.below(16) == 1 ? input.number() % file.size() : file.size();
  for (int i = 0; i < kChangesMax && !input.empty(); ++i) catalog.change(input);
  catalog.take_over(bytes, static_cast<Catalog::Former>(size % 3));
}

}  // namespace
}  // namespace terrace::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::fuzz::run({data, size}, size);
  return 0;
}
