// SPDX-License-Identifier: Apache-2.0
// /metrics over HTTP, for Prometheus. It keeps no numbers of its own: each scrape asks the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "config/config.h"
#include "front/gateway/gateway.h"
#include "terrace/error.h"

namespace terrace::metrics {

class Exporter {
 public:
  // Serves on config.metrics_address until destroyed; port 0 takes a free one. `gateway` outlives it and goes on
  // answering until it is destroyed. A scrape that gets no answer within two seconds says `terrace_up 0`.
  // InvalidArgument, Unavailable: the address cannot be had; names it and the reason.
  static Result<std::unique_ptr<Exporter>> create(front::Gateway& gateway, const config::Config& config);
  virtual ~Exporter() = default;

  // Where it serves: "127.0.0.1:9464".
  virtual const std::string& address() const = 0;
};

}  // namespace terrace::metrics
