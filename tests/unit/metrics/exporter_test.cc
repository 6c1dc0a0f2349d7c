// SPDX-License-Identifier: Apache-2.0
// Shows over HTTP that a scrape asks the engine, that one without an answer says so, and that an address that cannot be
// had is named with the reason.
#include "metrics/exporter.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "config/endpoint.h"
#include "unit/front/scripted_gateway.h"

namespace terrace::metrics {
namespace {

using testing::HasSubstr;

config::Config config_at(const std::string& address) {
  config::Config config;
  config.metrics_address = address;
  config.tenants.emplace_back().name = "default";
  return config;
}

Fd connect_to(const std::string& address) {
  const auto found = config::look_up(config::parse_endpoint(address).value()).value();
  Fd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), found->ai_addr, found->ai_addrlen), 0);
  return socket;
}

std::string get(const std::string& address) {
  const Fd socket = connect_to(address);
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
  std::string all;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::recv(socket.get(), buffer, sizeof buffer, 0)) > 0;)
    all.append(buffer, static_cast<std::size_t>(got));
  return all;
}

TEST(Exporter, AsksTheEngineAtEachScrape) {
  front::ScriptedGateway gateway;
  std::uint64_t steps = 0;
  gateway.script = [&](const engine::Request&) -> Result<engine::ReplyBody> {
    engine::Status status;
    status.steps = ++steps;
    return status;
  };
  const auto exporter = Exporter::create(gateway, config_at("127.0.0.1:0"));
  ASSERT_TRUE(exporter.has_value()) << exporter.error().message;
  EXPECT_THAT(get((*exporter)->address()), HasSubstr("terrace_steps_total 1\n"));
  const std::string second = get((*exporter)->address());
  EXPECT_THAT(second, HasSubstr("terrace_steps_total 2\n"));
  EXPECT_THAT(second, HasSubstr("terrace_up 1\n"));
  EXPECT_THAT(second, HasSubstr("terrace_build_info{version=\"9.9.9\"} 1\n"));
}

TEST(Exporter, SaysWhenTheEngineDoesNotAnswer) {
  front::ScriptedGateway gateway;
  gateway.full = [](const engine::Request&) { return true; };
  const auto exporter = Exporter::create(gateway, config_at("127.0.0.1:0"));
  ASSERT_TRUE(exporter.has_value()) << exporter.error().message;
  const std::string out = get((*exporter)->address());
  EXPECT_THAT(out, HasSubstr("terrace_up 0\n"));
  EXPECT_THAT(out, testing::Not(HasSubstr("terrace_steps_total")));
}

// Where this machine has IPv6.
bool has_v6() {
  const Fd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0;
}

TEST(Exporter, ServesAnAddressOfIpv6) {
  if (!has_v6()) GTEST_SKIP() << "this machine has no IPv6";
  front::ScriptedGateway gateway;
  gateway.script = [&](const engine::Request&) -> Result<engine::ReplyBody> { return engine::Status{}; };
  const auto exporter = Exporter::create(gateway, config_at("[::1]:0"));
  ASSERT_TRUE(exporter.has_value()) << exporter.error().message;
  const std::string address = (*exporter)->address();
  EXPECT_THAT(address, testing::StartsWith("[::1]:"));
  EXPECT_THAT(get(address), HasSubstr("terrace_up 1\n"));
  const Fd silent = connect_to(address);
  EXPECT_THAT(get(address), HasSubstr("terrace_up 1\n")) << "beside one who says nothing";
  const auto second = Exporter::create(gateway, config_at(address));
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message, HasSubstr("Address already in use"));
}

TEST(Exporter, NamesAnAddressThatIsTaken) {
  front::ScriptedGateway gateway;
  const auto first = Exporter::create(gateway, config_at("127.0.0.1:0"));
  ASSERT_TRUE(first.has_value());
  const std::string address = (*first)->address();
  const auto second = Exporter::create(gateway, config_at(address));
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message, HasSubstr(address));
  EXPECT_THAT(second.error().message, HasSubstr("Address already in use"));
  for (const char* nonsense :
       {"9464", "host:", ":9464", "no.such.host.invalid:9464", "127.0.0.1:http", "[127.0.0.1]:9464", "::1:9464"})
    EXPECT_EQ(Exporter::create(gateway, config_at(nonsense)).error().code, ErrorCode::kInvalidArgument) << nonsense;
}

}  // namespace
}  // namespace terrace::metrics
