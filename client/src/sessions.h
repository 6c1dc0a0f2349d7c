// SPDX-License-Identifier: Apache-2.0
// All sessions of this process: what a fork, and the end of a thread, must find.
#pragma once

#include <cstdint>
#include <functional>

namespace terrace::client {

class Session;

// A number for a new session, never used twice in this process.
std::uint64_t next_serial();

// Between these two calls the session is found, and a forked child learns that it is one
// (Session::become_forked_child).
void enlist(Session& session);
void strike_off(Session& session);

// Runs it at a time when no fork can happen.
void without_fork(const std::function<void()>& action);

// Calls `visit` with the session of that serial, if it is there; it stays meanwhile.
void with_session(std::uint64_t serial, const std::function<void(Session&)>& visit);

}  // namespace terrace::client
