// SPDX-License-Identifier: Apache-2.0
#include "metrics/exporter.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "config/endpoint.h"
#include "metrics/families.h"
#include "metrics/relay.h"

namespace terrace::metrics {
namespace {

constexpr std::chrono::seconds kAnswerTimeout{2};
constexpr int kBacklog = 16;

// Asks the engine at each scrape. Thread-safe.
class StatusCollector final : public prometheus::Collectable {
 public:
  StatusCollector(front::Gateway& gateway, const std::vector<config::TenantConfig>& tenants)
      : gateway_(gateway), tenant_names_(names(tenants)), quotas_(quota_families(tenants)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    auto answer = std::make_shared<std::promise<engine::Reply>>();  // may outlive this call
    std::future<engine::Reply> reply = answer->get_future();
    gateway_.post({.deadline = gateway_.now() + kAnswerTimeout, .body = engine::GetStatus{}},
                  [answer](engine::Reply one) { answer->set_value(std::move(one)); });
    const std::string& version = gateway_.facts().version;
    if (reply.wait_for(kAnswerTimeout) != std::future_status::ready) return vital_families(false, version);
    const engine::Reply got = reply.get();
    if (!got.result) return vital_families(false, version);
    auto all = vital_families(true, version);
    for (auto& one : families(std::get<engine::Status>(*got.result), tenant_names_)) all.push_back(std::move(one));
    all.insert(all.end(), quotas_.begin(), quotas_.end());
    return all;
  }

 private:
  static std::vector<std::string> names(const std::vector<config::TenantConfig>& tenants) {
    std::vector<std::string> all;
    for (const config::TenantConfig& tenant : tenants) all.push_back(tenant.name);
    return all;
  }

  front::Gateway& gateway_;
  const std::vector<std::string> tenant_names_;
  const std::vector<prometheus::MetricFamily> quotas_;
};

Result<config::Resolved> resolve(const std::string& address) {
  const auto endpoint = config::parse_endpoint(address);
  auto found = endpoint ? config::look_up(*endpoint) : std::unexpected(endpoint.error());
  if (!found) return fail(ErrorCode::kInvalidArgument, "metrics address: " + found.error().message);
  return found;
}

struct Bound {
  Fd socket;  // listening
  std::string host;
  std::uint16_t port = 0;
  bool is_v6 = false;
};

std::uint16_t port_of(const Fd& socket) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0) return 0;
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(at).sin_port);
}

// The server below says that it could not bind the address, and never why.
Result<Bound> bind(const std::string& address) {
  const auto resolved = resolve(address);
  if (!resolved) return std::unexpected(resolved.error());
  const addrinfo* found = resolved->get();
  Fd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    const int error = errno;
    return fail(ErrorCode::kUnavailable,
                fmt::format("metrics address {} cannot be had: {}; set another one, or \"\" for no metrics", address,
                            std::strerror(error)),
                error);
  }
  char host[NI_MAXHOST];
  ::getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  const std::uint16_t port = found->ai_family == AF_INET6
                                 ? port_of(socket)
                                 : ntohs(reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_port);
  return Bound{std::move(socket), host, port, found->ai_family == AF_INET6};
}

class HttpExporter final : public Exporter {
 public:
  HttpExporter(front::Gateway& gateway, const std::vector<config::TenantConfig>& tenants)
      : collector_(std::make_shared<StatusCollector>(gateway, tenants)) {}

  HttpExporter(const HttpExporter&) = delete;
  HttpExporter& operator=(const HttpExporter&) = delete;
  // The server looks at its stop flag when a connection comes, else every two seconds: knock until it has.
  ~HttpExporter() override {
    relay_.reset();
    if (!exposer_) return;
    const auto stopped = std::async(std::launch::async, [this] { exposer_.reset(); });
    while (stopped.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) knock();
  }

  Result<void> start(const std::string& address) {
    auto bound = bind(address);
    if (!bound) return std::unexpected(bound.error());
    if (!bound->is_v6) bound->socket.reset();  // the server's own is next
    local_ = bound->is_v6 ? "127.0.0.1:0" : fmt::format("{}:{}", bound->host, bound->port);
    try {
      exposer_ = std::make_unique<prometheus::Exposer>(
          std::vector<std::string>{"listening_ports", local_, "num_threads", "2"});
      exposer_->RegisterCollectable(collector_);
    } catch (const std::exception& error) {
      return fail(ErrorCode::kUnavailable, fmt::format("metrics address {} cannot be had: {}", address, error.what()));
    }
    const auto port = static_cast<std::uint16_t>(exposer_->GetListeningPorts().at(0));
    local_ = local_.substr(0, local_.rfind(':') + 1) + std::to_string(port);
    address_ = bound->is_v6 ? fmt::format("[{}]:{}", bound->host, bound->port) : local_;
    if (bound->is_v6) {
      auto relay = Relay::create(std::move(bound->socket), port);
      if (!relay) return std::unexpected(relay.error());
      relay_ = std::move(*relay);
    }
    spdlog::info("metrics on http://{}/metrics", address_);
    return {};
  }
  const std::string& address() const override { return address_; }

 private:
  void knock() const {
    const auto found = resolve(local_);
    if (!found) return;
    const Fd socket(::socket((*found)->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    static_cast<void>(::connect(socket.get(), (*found)->ai_addr, (*found)->ai_addrlen));
  }

  const std::shared_ptr<StatusCollector> collector_;
  std::string address_;
  std::string local_;  // of the server itself
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::unique_ptr<Relay> relay_;  // to it, where the address is of IPv6
};

}  // namespace

Result<std::unique_ptr<Exporter>> Exporter::create(front::Gateway& gateway, const config::Config& config) {
  auto exporter = std::make_unique<HttpExporter>(gateway, config.tenants);
  if (auto started = exporter->start(config.metrics_address); !started) return std::unexpected(started.error());
  return exporter;
}

}  // namespace terrace::metrics
