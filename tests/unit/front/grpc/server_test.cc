// SPDX-License-Identifier: Apache-2.0
// Shows over real gRPC connections, with a scripted gateway behind: who a peer is, that no call loses a lease however
// it ends, that a broken overwrite gives its content up, that watches and stalled calls end, and what health says.
#include "front/grpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <numeric>

#include "terrace/v1/admin.grpc.pb.h"
#include "terrace/v1/terrace.grpc.pb.h"
#include "unit/front/http2/http2_bytes.h"
#include "unit/front/scripted_gateway.h"

namespace terrace::front {
namespace {

constexpr std::uint64_t kTensorBytes = 1'000'003;  // several pieces, the last one odd

class GrpcServerTest : public testing::Test {
 protected:
  void start(GrpcOptions options = {}) {
    options.tenant_names = {"default"};
    auto created = GrpcServer::create(gateway_, std::move(options));
    ASSERT_TRUE(created.has_value()) << created.error().message;
    server_ = std::move(*created);
  }
  void SetUp() override {
    std::iota(reinterpret_cast<unsigned char*>(gateway_.memory.data()),
              reinterpret_cast<unsigned char*>(gateway_.memory.data()) + gateway_.memory.size(), std::uint8_t{0});
    gateway_.script = [](const engine::Request& request) -> Result<engine::ReplyBody> {
      if (const auto* acquire = std::get_if<engine::Acquire>(&request.body))
        return engine::Located{{{.place = acquire->place, .offset = 4096, .bytes = kTensorBytes}}};
      if (std::holds_alternative<engine::GetStatus>(request.body)) {
        engine::Status status;
        status.tiers.push_back(
            {.name = "memory", .kind = tier::Kind::kMemory, .capacity_bytes = 100, .used_bytes = 40});
        return status;
      }
      return engine::Done{};
    };
  }
  void TearDown() override {
    if (server_) server_->shutdown(std::chrono::milliseconds(0));
  }
  std::shared_ptr<grpc::Channel> connect(const Peer& peer = {}) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_TRUE(server_->adopt(Fd(ends[0]), peer).has_value());
    return grpc::CreateInsecureChannelFromFd("terrace", ends[1]);
  }
  std::string token() const { return {gateway_.token.begin(), gateway_.token.end()}; }
  v1::ReadRequest read_request() const {
    v1::ReadRequest request;
    request.set_token(token());
    request.set_tensor(1);
    return request;
  }
  v1::WriteRequest write_request(std::uint64_t bytes) const {
    v1::WriteRequest request;
    request.mutable_target()->set_token(token());
    request.mutable_target()->set_tensor(1);
    request.set_data(std::string(bytes, 'x'));
    return request;
  }
  std::string memory() const { return {reinterpret_cast<const char*>(gateway_.memory.data()) + 4096, kTensorBytes}; }

  ScriptedGateway gateway_;
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(GrpcServerTest, KnowsThePeerBehindEachConnection) {
  start();
  for (int pid = 100; pid < 140; ++pid) {  // each connection is closed before the next: descriptors come back
    const auto stub = v1::Terrace::NewStub(connect({.tenant = {0, 5}, .pid = pid}));
    grpc::ClientContext context;
    v1::OpenSessionResponse response;
    ASSERT_TRUE(stub->OpenSession(&context, {}, &response).ok());
    EXPECT_EQ(response.token(), token());
    EXPECT_EQ(response.session(), 7u);
    ASSERT_EQ(gateway_.opened().back().pid, pid);
  }
  for (int tries = 0; server_->connections() != 0 && tries < 6000; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(GrpcServerTest, RefusesAWrongToken) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  v1::MarkStepRequest request;
  request.set_token(std::string(16, 'z'));
  v1::MarkStepResponse response;
  const auto status = stub->MarkStep(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_details(), testing::HasSubstr("google.rpc.ErrorInfo"));
}

TEST_F(GrpcServerTest, ReadsEveryByteUnderOneLease) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  const auto reader = stub->Read(&context, read_request());
  std::string all;
  for (v1::ReadResponse piece; reader->Read(&piece);) all += piece.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(all, memory());
  EXPECT_TRUE(gateway_.wait_for([&] { return gateway_.count<engine::Release>() == 1; }));
  EXPECT_EQ(gateway_.count<engine::Acquire>(), 1u);
  EXPECT_EQ(gateway_.count<engine::DontNeed>(), 0u);
}

TEST_F(GrpcServerTest, ReleasesWhatACancelledReadHeld) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  const auto reader = stub->Read(&context, read_request());
  v1::ReadResponse piece;
  ASSERT_TRUE(reader->Read(&piece));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(gateway_.wait_for([&] { return gateway_.count<engine::Release>() == 1; }));
}

TEST_F(GrpcServerTest, EndsAReadWhoseClientStandsStill) {
  GrpcOptions options;
  options.request_timeout = std::chrono::milliseconds(50);
  start(options);
  gateway_.memory.resize(64 << 20);
  gateway_.script = [](const engine::Request&) -> Result<engine::ReplyBody> {
    return engine::Located{{{.place = 0, .offset = 0, .bytes = 64 << 20}}};
  };
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  const auto reader = stub->Read(&context, read_request());  // and nobody reads
  EXPECT_TRUE(gateway_.wait_for([&] { return gateway_.count<engine::Release>() == 1; }));
  context.TryCancel();
  reader->Finish();
}

TEST_F(GrpcServerTest, EndsAReadWhoseSessionDied) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  gateway_.run([&] { gateway_.session_alive = false; });
  grpc::ClientContext context;
  const auto reader = stub->Read(&context, read_request());
  v1::ReadResponse piece;
  EXPECT_FALSE(reader->Read(&piece));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(GrpcServerTest, RefusesAPartBeyondTheEndAndReleases) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  for (const auto& [offset, bytes] : {std::pair{kTensorBytes, std::uint64_t{0}},
                                      {std::uint64_t{4}, kTensorBytes},
                                      {UINT64_MAX, std::uint64_t{1}},
                                      {std::uint64_t{1}, UINT64_MAX}}) {
    grpc::ClientContext context;
    auto request = read_request();
    request.set_offset_bytes(offset);
    request.set_bytes(bytes);
    const auto reader = stub->Read(&context, request);
    v1::ReadResponse piece;
    EXPECT_FALSE(reader->Read(&piece));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(gateway_.count<engine::Release>(), 4u);
}

TEST_F(GrpcServerTest, WritesAWholeTensorAsAnOverwrite) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  v1::WriteResponse response;
  const auto writer = stub->Write(&context, &response);
  EXPECT_TRUE(writer->Write(write_request(kTensorBytes - 10)));
  v1::WriteRequest rest;
  rest.set_data("0123456789");
  EXPECT_TRUE(writer->Write(rest));
  writer->WritesDone();
  const auto status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.bytes(), kTensorBytes);
  EXPECT_EQ(memory(), std::string(kTensorBytes - 10, 'x') + "0123456789");
  EXPECT_EQ(gateway_.count<engine::Release>(), 1u);
  EXPECT_EQ(gateway_.count<engine::DontNeed>(), 0u);
}

TEST_F(GrpcServerTest, GivesUpTheContentOfABrokenOverwrite) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  {
    grpc::ClientContext context;
    v1::WriteResponse response;
    const auto writer = stub->Write(&context, &response);
    writer->Write(write_request(10));
    writer->WritesDone();
    const auto status = writer->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), testing::HasSubstr("10 of 1000003 bytes"));
    EXPECT_TRUE(gateway_.last<engine::Release>().torn);
  }
  {
    grpc::ClientContext context;
    v1::WriteResponse response;
    const auto writer = stub->Write(&context, &response);
    writer->Write(write_request(10));
    ASSERT_TRUE(gateway_.wait_for([&] { return gateway_.count<engine::Acquire>() == 2; }));
    context.TryCancel();
    writer->Finish();
    EXPECT_TRUE(gateway_.wait_for([&] { return gateway_.count<engine::Release>() == 2; }));
    EXPECT_TRUE(gateway_.last<engine::Release>().torn);
  }
}

TEST_F(GrpcServerTest, LeavesTheContentOfABrokenPart) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  v1::WriteResponse response;
  const auto writer = stub->Write(&context, &response);
  auto request = write_request(12);
  request.mutable_target()->set_offset_bytes(100);
  request.mutable_target()->set_bytes(10);
  writer->Write(request);
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);  // two bytes too many
  EXPECT_EQ(gateway_.count<engine::Release>(), 1u);
  EXPECT_FALSE(gateway_.last<engine::Release>().torn);
}

TEST_F(GrpcServerTest, ReturnsALeaseHoweverFullTheQueue) {
  std::atomic<int> refusals = 5;
  gateway_.full = [&](const engine::Request& request) {
    return std::holds_alternative<engine::Release>(request.body) && refusals-- > 0;
  };
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  const auto reader = stub->Read(&context, read_request());
  for (v1::ReadResponse piece; reader->Read(&piece);) continue;
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(gateway_.refused(), 5u);
  EXPECT_EQ(gateway_.count<engine::Release>(), 1u);
}

TEST_F(GrpcServerTest, GivesBackWhatWasGrantedToACallerThatLeft) {
  gateway_.hold = [](const engine::Request& request) { return std::holds_alternative<engine::Acquire>(request.body); };
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  v1::AcquireRequest request;
  request.set_token(token());
  request.mutable_place()->set_kind(v1::PLACE_KIND_HOST);
  request.set_mode(v1::LEASE_MODE_READ);
  request.add_tensors(1);
  v1::AcquireResponse response;
  std::thread caller([&] { stub->Acquire(&context, request, &response); });
  ASSERT_TRUE(gateway_.wait_for([&] { return gateway_.count<engine::Acquire>() == 1; }));
  context.TryCancel();  // reaches the gateway, which grants all the same
  caller.join();
  EXPECT_TRUE(gateway_.wait_for([&] { return gateway_.count<engine::Release>() == 1; }));
}

TEST_F(GrpcServerTest, WatchesAndEndsWithTheServer) {
  start();
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_token(token());
  const auto watch = stub->Watch(&context, request);
  v1::WatchResponse event;
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_FALSE(event.has_pressure());
  ASSERT_EQ(event.headroom_size(), 1);
  EXPECT_EQ(event.headroom(0).free_bytes(), 60u);
  gateway_.press({.tier = TierId{0}, .above = true, .used_bytes = 95, .capacity_bytes = 100});
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.pressure().tier(), "memory");
  EXPECT_TRUE(event.pressure().above_high_mark());
  server_->shutdown(std::chrono::seconds(10));
  EXPECT_FALSE(watch->Read(&event));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// grpc.health.v1.Health/Check without its .proto: the response is field 1, a number.
std::string health(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::TemplatedGenericStub<v1::CloseSessionResponse, v1::CloseSessionResponse> stub(channel);  // an empty message
  grpc::ClientContext context;
  const v1::CloseSessionResponse empty;
  v1::CloseSessionResponse answer;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &empty, &answer,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return answer.SerializeAsString();  // an unknown field is kept
}

TEST_F(GrpcServerTest, HealthFollowsServing) {
  start();
  const auto channel = connect();
  EXPECT_EQ(health(channel), "\x08\x01");
  server_->set_serving(false);
  EXPECT_EQ(health(channel), "\x08\x02");
}

TEST_F(GrpcServerTest, GarbageEndsOnlyItsConnection) {
  start();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_TRUE(server_->adopt(Fd(ends[0]), {}).has_value());
  const Fd garbage(ends[1]);
  ASSERT_EQ(::send(garbage.get(), "no HTTP at all, and more of it\n", 31, MSG_NOSIGNAL), 31);
  EXPECT_EQ(health(connect()), "\x08\x01");
}

TEST_F(GrpcServerTest, ClosesConnectionsWithoutACall) {
  GrpcOptions options;
  options.idle_timeout = std::chrono::milliseconds(50);
  start(options);
  const auto stub = v1::Terrace::NewStub(connect());
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_token(token());
  const auto watch = stub->Watch(&context, request);
  v1::WatchResponse event;
  ASSERT_TRUE(watch->Read(&event));

  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_TRUE(server_->adopt(Fd(ends[0]), {}).has_value());
  const Fd silent(ends[1]);
  const std::string greeting = kPreface + frame(kSettings, 0, 0);
  ASSERT_EQ(::send(silent.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), std::ssize(greeting));
  ssize_t got = 1;
  while (got > 0) {
    pollfd ready{.fd = silent.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, 60'000), 1);
    std::array<char, 4096> said{};
    got = ::recv(silent.get(), said.data(), said.size(), MSG_DONTWAIT);
  }
  EXPECT_EQ(got, 0);

  // Older than that, and with a call.
  gateway_.press({.tier = TierId{0}, .above = true, .used_bytes = 95, .capacity_bytes = 100});
  EXPECT_TRUE(watch->Read(&event));
}

TEST_F(GrpcServerTest, AdminDrainsAndIsApartFromTerrace) {
  std::atomic<bool> drained = false;
  GrpcOptions options;
  options.admin = true;
  options.on_drain = [&] { drained = true; };
  start(options);
  const auto channel = connect({.tenant = {}, .pid = 1, .admin = true});
  const auto stub = v1::Admin::NewStub(channel);
  grpc::ClientContext context;
  v1::DrainResponse response;
  EXPECT_TRUE(stub->Drain(&context, {}, &response).ok());
  EXPECT_TRUE(drained);
  grpc::ClientContext other;
  v1::OpenSessionResponse opened;
  EXPECT_EQ(v1::Terrace::NewStub(channel)->OpenSession(&other, {}, &opened).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace terrace::front
