// SPDX-License-Identifier: Apache-2.0
// Errors as values: the one error type of the daemon, the wire and the client library.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace terrace {

// What the caller should do about it. The numbers are gRPC's status codes, so that every language knows them, and
// they travel in shared memory: they never change.
enum class ErrorCode : std::uint32_t {
  kCancelled = 1,           // the caller gave up; nothing happened
  kInvalidArgument = 3,     // never valid: mend the call
  kDeadlineExceeded = 4,    // waited as long as it was told to: try again, or wait longer
  kNotFound = 5,            // no such tensor, session or place for this caller
  kAlreadyExists = 6,       // the name is taken: use another, or delete that one first
  kPermissionDenied = 7,    // this caller may not: ask the operator
  kResourceExhausted = 8,   // over a quota or full: release something, or ask for less
  kFailedPrecondition = 9,  // not in the present state: do what the message names first
  kAborted = 10,            // the handle is of an earlier life of its slot: look the tensor up again
  kUnimplemented = 12,      // this daemon has no such operation
  kInternal = 13,           // a defect of ours, or of the system under us: see the log
  kUnavailable = 14,        // draining, or not there: try another time
  kDataLoss = 15,           // the bytes are gone: this tensor alone must be written again
  kUnauthenticated = 16,    // the token is not of an open session: open one
};

// Its name in capitals with underscores, as gRPC prints it.
constexpr std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCancelled:
      return "CANCELLED";
    case ErrorCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case ErrorCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case ErrorCode::kNotFound:
      return "NOT_FOUND";
    case ErrorCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case ErrorCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case ErrorCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case ErrorCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case ErrorCode::kAborted:
      return "ABORTED";
    case ErrorCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case ErrorCode::kInternal:
      return "INTERNAL";
    case ErrorCode::kUnavailable:
      return "UNAVAILABLE";
    case ErrorCode::kDataLoss:
      return "DATA_LOSS";
    case ErrorCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "INTERNAL";
}

// One failure: what to do (code), what was wrong and what would be right (message, for a person), and the system's
// own number where one was at the root of it (errno; 0: none), kept for the log.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  int system_error = 0;
};

template <typename T>
using Result = std::expected<T, Error>;

// For `return fail(ErrorCode::kNotFound, "...")`.
inline std::unexpected<Error> fail(ErrorCode code, std::string message, int system_error = 0) {
  return std::unexpected(Error{code, std::move(message), system_error});
}

}  // namespace terrace
