// SPDX-License-Identifier: Apache-2.0
// A daemon that cannot go on with what a former one left: it stays up, NOT_SERVING, and says why to whoever asks over
// gRPC, while the supervisor holds everything, until another daemon replaces it (DESIGN decision 8). What may go by, it
// has its supervisor try again with another daemon after a while.
#pragma once

#include "config/config.h"
#include "front/gateway/gateway.h"
#include "terrace/error.h"

namespace terrace::front {

// Whether `error`, met at start with an inheritance, is of that kind: another configuration or another binary may do
// better, and trying again at once does not.
bool is_to_be_held(const Error& error);
// Whether it is one that goes by without anybody's doing here: a GPU that has no room just now, or is not ready.
bool may_go_by(const Error& error);

// Answers every call with Unavailable and `why` until SIGTERM or SIGINT, which are blocked in this thread; of what may
// go by, for 10 s. The data sockets are not there meanwhile: trainers wait for a daemon that serves. Errors: a socket
// that cannot be had.
Result<void> hold(const config::Config& config, NodeFacts facts, const Error& why);

}  // namespace terrace::front
