// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/ring_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace terrace::front {
namespace {

using shm::Operation;

Result<engine::TensorSpec> to_spec(const shm::CreateRecord& record) {
  const auto end = std::ranges::find(record.name, '\0');
  if (end == record.name.end())
    return fail(ErrorCode::kInvalidArgument, "a tensor's name is longer than 175 bytes; shorten it");
  if (record.rank > record.shape.size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a tensor of {} dimensions; at most 8 are possible", record.rank));
  engine::TensorSpec spec;
  spec.name.assign(record.name.begin(), end);
  if (!is_utf8(spec.name)) return fail(ErrorCode::kInvalidArgument, "a tensor's name is not UTF-8; encode it");
  spec.bytes = record.bytes;
  spec.dtype = static_cast<DType>(record.dtype);
  spec.shape.assign(record.shape.begin(), record.shape.begin() + record.rank);
  spec.strides.assign(record.strides.begin(), record.strides.begin() + record.rank);
  return spec;
}

// One of the records that a block consists of.
template <typename Record>
Record record_at(std::span<const std::byte> block, std::size_t at) {
  Record record;
  std::memcpy(&record, block.data() + at * sizeof record, sizeof record);
  return record;
}

Result<engine::Body> to_create(const shm::Submission& submission, std::span<const std::byte> block) {
  engine::CreateTensors create;
  create.tensors.reserve(submission.count);
  for (std::uint32_t i = 0; i < submission.count; ++i) {
    auto spec = to_spec(record_at<shm::CreateRecord>(block, i));
    if (!spec) return std::unexpected(spec.error());
    create.tensors.push_back(std::move(*spec));
  }
  return create;
}

Result<engine::Body> to_find(const shm::Submission& submission, std::span<const std::byte> block) {
  engine::FindTensors find;
  find.names.reserve(submission.count);
  for (std::uint32_t i = 0; i < submission.count; ++i) {
    const auto record = record_at<shm::CreateRecord>(block, i);
    find.names.emplace_back(record.name.begin(), std::ranges::find(record.name, '\0'));
  }
  return find;
}

shm::CreateRecord to_record(const engine::TensorSpec& spec) {
  shm::CreateRecord record{};
  record.bytes = spec.bytes;
  record.dtype = static_cast<std::uint32_t>(spec.dtype);
  record.rank = static_cast<std::uint32_t>(spec.shape.size());
  std::ranges::copy(spec.shape, record.shape.begin());
  std::ranges::copy(spec.strides, record.strides.begin());
  std::ranges::copy(spec.name, record.name.begin());
  return record;
}

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

Result<shm::Mode> to_mode(std::uint32_t mode) {
  if (mode <= static_cast<std::uint32_t>(shm::Mode::kOverwrite)) return static_cast<shm::Mode>(mode);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("mode {} does not exist; use 0 (read), 1 (write) or 2 (overwrite)", mode));
}

Result<engine::Body> to_declaration(const shm::Submission& submission, std::vector<Handle> tensors) {
  const auto mode = to_mode(submission.mode);
  if (!mode) return std::unexpected(mode.error());
  const auto value = shm::DeclaredValue::unpack(submission.value);
  engine::DeclareStep step{.kind = value.kind, .position = value.position, .sets = {}};
  step.sets.push_back({submission.place, *mode, std::chrono::microseconds(value.compute_us), std::move(tensors)});
  return step;
}

std::vector<Handle> to_handles(const shm::Submission& submission, std::span<const std::byte> block) {
  std::vector<Handle> handles;
  handles.reserve(submission.count);
  for (std::uint32_t i = 0; i < submission.count; ++i)
    handles.push_back(Handle::unpack(record_at<std::uint64_t>(block, i)));
  return handles;
}

// The modes lie behind the handles.
Result<engine::Body> to_acquire(const shm::Submission& submission, std::span<const std::byte> block,
                                std::vector<Handle> tensors) {
  std::vector<shm::Mode> modes;
  modes.reserve(tensors.size());
  for (const std::byte raw : block.subspan(tensors.size() * sizeof(std::uint64_t), tensors.size())) {
    const auto mode = to_mode(std::to_integer<std::uint32_t>(raw));
    if (!mode) return std::unexpected(mode.error());
    modes.push_back(*mode);
  }
  const bool passing = (submission.flags & shm::kPassing) != 0;
  return engine::Acquire{submission.place, std::move(modes), std::move(tensors), passing};
}

}  // namespace

Result<std::uint64_t> record_bytes(const shm::Submission& submission) {
  const bool create = submission.operation == Operation::kCreate || submission.operation == Operation::kFind;
  const std::uint32_t count_max = create ? shm::kCreateMax : shm::kSetMax;
  if (submission.count > count_max)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} records in one request; at most {} are possible", submission.count, count_max));
  if (create) return submission.count * sizeof(shm::CreateRecord);
  const std::size_t modes = submission.operation == Operation::kAcquire ? sizeof(shm::Mode) : 0;
  return submission.count * (sizeof(std::uint64_t) + modes);
}

Result<engine::Body> to_request(const shm::Submission& submission, std::span<const std::byte> block) {
  if (submission.operation == Operation::kCreate) return to_create(submission, block);
  if (submission.operation == Operation::kFind) return to_find(submission, block);
  std::vector<Handle> tensors = to_handles(submission, block);
  const bool again = (submission.flags & shm::kResubmitted) != 0;
  switch (submission.operation) {
    case Operation::kCreate:
    case Operation::kFind:
      break;
    case Operation::kDelete:
      return engine::DeleteTensors{std::move(tensors), again};
    case Operation::kAcquire:
      return to_acquire(submission, block, std::move(tensors));
    case Operation::kMove:
      return engine::Move{submission.place, std::move(tensors)};
    case Operation::kPrefetch:
      return engine::Prefetch{submission.place, std::move(tensors)};
    case Operation::kEvict:
      return engine::Evict{std::move(tensors)};
    case Operation::kDontNeed:
      return engine::DontNeed{std::move(tensors)};
    case Operation::kPin:
      return engine::Pin{submission.place, std::move(tensors)};
    case Operation::kUnpin:
      return engine::Unpin{std::move(tensors), again};
    case Operation::kMarkStep:
      return engine::MarkStep{static_cast<std::uint32_t>(submission.value)};
    case Operation::kDeclareStep:
      return to_declaration(submission, std::move(tensors));
  }
  return fail(ErrorCode::kUnimplemented, fmt::format("operation {} is not one of this daemon's",
                                                     static_cast<std::uint32_t>(submission.operation)));
}

std::vector<std::byte> result_bytes(const engine::ReplyBody& reply) {
  std::vector<std::byte> bytes;
  if (const auto* handles = std::get_if<engine::Handles>(&reply))
    for (const Handle& handle : handles->tensors) append(bytes, handle.packed());
  if (const auto* found = std::get_if<engine::TensorList>(&reply)) {
    for (const engine::TensorInfo& tensor : found->tensors) append(bytes, to_record(tensor.spec));
    for (const engine::TensorInfo& tensor : found->tensors) append(bytes, tensor.handle.packed());
  }
  return bytes;
}

}  // namespace terrace::front
