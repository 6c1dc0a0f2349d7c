// SPDX-License-Identifier: Apache-2.0
#include "bench/grpc_echo.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "echo.grpc.pb.h"

namespace terrace::bench {
namespace {

constexpr std::chrono::seconds kPatience{30};

class Service final : public Echo::Service {
  grpc::Status Say(grpc::ServerContext* /*context*/, const Word* asked, Word* answer) override {
    answer->set_handle(asked->handle());
    return grpc::Status::OK;
  }
};

int serve(const std::string& address) {
  Service service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  server->Wait();  // until it is killed
  return 0;
}

}  // namespace

struct GrpcEcho::State {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Echo::Stub> stub;
};

GrpcEcho::GrpcEcho() : state_(std::make_unique<State>()) {}
GrpcEcho::~GrpcEcho() = default;

Result<std::unique_ptr<GrpcEcho>> GrpcEcho::start() {
  std::unique_ptr<GrpcEcho> echo(new GrpcEcho());
  auto folder = Folder::make_temporary();
  if (!folder) return std::unexpected(folder.error());
  echo->folder_ = std::move(*folder);
  const std::string address = "unix:" + (echo->folder_.path() / "echo.sock").string();
  auto server = Child::run([&] { return serve(address); });
  if (!server) return std::unexpected(server.error());
  echo->server_ = std::move(*server);
  echo->state_->channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  if (!echo->state_->channel->WaitForConnected(std::chrono::system_clock::now() + kPatience))
    return fail(ErrorCode::kUnavailable, "the gRPC echo does not come to serve");
  echo->state_->stub = Echo::NewStub(echo->state_->channel);
  return echo;
}

Result<std::vector<double>> GrpcEcho::call(std::size_t count) {
  std::vector<double> took;
  took.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    Word asked;
    Word answer;
    asked.set_handle(i);
    const grpc::Status status = state_->stub->Say(&context, asked, &answer);
    took.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count());
    if (!status.ok()) return fail(ErrorCode::kUnavailable, "the gRPC echo failed: " + status.error_message());
    if (answer.handle() != i) return fail(ErrorCode::kDataLoss, "the gRPC echo gave another word");
  }
  return took;
}

}  // namespace terrace::bench
