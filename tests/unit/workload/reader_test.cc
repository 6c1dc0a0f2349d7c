// SPDX-License-Identifier: Apache-2.0
// Shows that a workload file is read as it is meant, that what is written is read back as the same value, and that each
// kind of bad file is refused with its line and what would be right.
#include "workload/reader.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "workload/writer.h"

namespace terrace::workload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr char kHeader[] = R"({"workload":"small","version":1,"source":"a test"})";
constexpr char kParam[] = R"({"tensor":0,"bytes":4096,"class":"param","home":true,"key":"w"})";
constexpr char kAct[] = R"({"tensor":1,"bytes":8192,"class":"act","home":false})";
constexpr char kForward[] = R"({"run":"forward","us":1.5,"place":"hbm","read":[0],"write":[1],"free":[]})";
constexpr char kBackward[] = R"({"run":"backward","us":3,"place":"host","read":[0,1],"write":[0],"free":[1]})";
constexpr char kStep[] = R"({"step":true})";

std::string lines(std::initializer_list<std::string> lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string error_of(const std::string& text, const Node* node = nullptr) {
  const Result<Workload> workload = read(text, "w.jsonl", node);
  EXPECT_FALSE(workload) << "this was taken for right:\n" << text;
  if (workload) return "";
  EXPECT_EQ(workload.error().code, ErrorCode::kInvalidArgument);
  return workload.error().message;
}

// What is wrong with `line`, put in line 4: behind the header and both tensors, before two good runs.
std::string error_of_line(const std::string& line) {
  const std::string error = error_of(lines({kHeader, kParam, kAct, line, kForward, kBackward, kStep}));
  EXPECT_THAT(error, StartsWith("w.jsonl:4: ")) << line;
  return error;
}

TEST(Reader, ReadsEveryField) {
  const auto workload =
      read(lines({kHeader, kParam, kAct, kForward, R"({"step":true,"kind":"accum"})", kBackward, kStep}), "w.jsonl");
  ASSERT_TRUE(workload) << workload.error().message;
  EXPECT_EQ(workload->name, "small");
  EXPECT_EQ(workload->source, "a test");
  EXPECT_THAT(workload->tensors,
              ElementsAre(Tensor{.bytes = 4096, .tensor_class = Class::kParam, .home = true, .key = "w"},
                          Tensor{.bytes = 8192, .tensor_class = Class::kAct, .home = false}));
  ASSERT_EQ(workload->runs.size(), 2u);
  EXPECT_EQ(workload->runs[0].name, "forward");
  EXPECT_EQ(workload->runs[0].compute, std::chrono::nanoseconds(1500));
  EXPECT_EQ(workload->runs[0].place, Place::kHbm);
  EXPECT_THAT(workload->runs[0].read, ElementsAre(0u));
  EXPECT_THAT(workload->runs[0].write, ElementsAre(1u));
  EXPECT_THAT(workload->runs[0].free, IsEmpty());
  EXPECT_EQ(workload->runs[1].place, Place::kHost);
  EXPECT_THAT(workload->runs[1].free, ElementsAre(1u));
  EXPECT_THAT(workload->steps, ElementsAre(Step{.kind = StepKind::kAccum, .end = 1}, Step{.end = 2}));
  EXPECT_EQ(leased_bytes(*workload, workload->runs[1]), 12288u);
  EXPECT_EQ(compute_time(workload->runs_of(1)), std::chrono::microseconds(3));
}

TEST(Reader, TakesALastLineWithoutItsEnd) {
  std::string text = lines({kHeader, kParam, kAct, kForward, kBackward, kStep});
  text.pop_back();
  EXPECT_TRUE(read(text, "w.jsonl"));
}

TEST(Reader, ReadsBackWhatIsWritten) {
  const Workload written = {
      .name = "a \"name\"",
      .source = "line\nbreak",
      .tensors = {{.bytes = 1, .tensor_class = Class::kOptim, .home = true, .key = "k/\xC3\xA9"},
                  {.bytes = kWorkloadBytesMax - 1, .tensor_class = Class::kData, .home = false}},
      .runs = {{.name = "r", .compute = Duration(1), .place = Place::kHost, .read = {0}, .write = {1}, .free = {1}},
               {.name = "",
                .compute = Duration(7'285'465'722'001),
                .place = Place::kHbm,
                .read = {},
                .write = {},
                .free = {}}},
      .steps = {{.kind = StepKind::kEval, .end = 1}, {.kind = StepKind::kTrain, .end = 2}}};
  std::ostringstream out;
  write(written, out);
  const auto back = read(out.str(), "w.jsonl");
  ASSERT_TRUE(back) << back.error().message << "\n" << out.str();
  EXPECT_EQ(*back, written);
}

TEST(Reader, RefusesWhatIsNoRecord) {
  EXPECT_THAT(error_of_line(""), HasSubstr("not one whole JSON object"));
  EXPECT_THAT(error_of_line(R"({"run":"forward","us":1.5,"pla)"), HasSubstr("not one whole JSON object"));
  EXPECT_THAT(error_of_line(std::string(kForward) + " x"), HasSubstr("not one whole JSON object"));
  EXPECT_THAT(error_of_line(std::string(kForward) + kForward), HasSubstr("not one whole JSON object"));
  EXPECT_THAT(error_of_line("[]"), HasSubstr("is a list"));
  EXPECT_THAT(error_of_line("{}"), HasSubstr("no record"));
  EXPECT_THAT(error_of_line(R"({"step":true,"step":true})"), HasSubstr("\"step\" stands there twice"));
  EXPECT_THAT(error_of_line("\xFF"), HasSubstr("not one whole JSON object"));
}

TEST(Reader, RefusesUnknownFields) {
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":1,"class":"act","home":true,"name":"w"})"),
              AllOf(HasSubstr("\"name\" is no field"), HasSubstr("\"key\"")));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":[],"write":[],"free":[],"step":true})"),
              HasSubstr("\"step\" is no field"));
  EXPECT_THAT(error_of_line(R"({"step":true,"us":1})"), HasSubstr("\"us\" is no field"));
}

TEST(Reader, RefusesFieldsThatAreMissingOrOfAnotherType) {
  EXPECT_THAT(error_of_line(R"({"tensor":2,"class":"act","home":true})"), HasSubstr("\"bytes\" is missing"));
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":1e3,"class":"act","home":true})"), HasSubstr("whole number"));
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":-1,"class":"act","home":true})"), HasSubstr("whole number"));
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":0,"class":"act","home":true})"), HasSubstr("\"bytes\" is 0"));
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":"1","class":"act","home":true})"), HasSubstr("whole number"));
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":1,"class":"weight","home":true})"), HasSubstr("\"param\""));
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":1,"class":"act","home":1})"), HasSubstr("true or false"));
  EXPECT_THAT(error_of_line(R"({"tensor":2,"bytes":1,"class":"act","home":true,"key":2})"), HasSubstr("a string"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":"1","place":"hbm","read":[],"write":[],"free":[]})"),
              HasSubstr("a number of microseconds"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":-1,"place":"hbm","read":[],"write":[],"free":[]})"),
              HasSubstr("from 0"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1e300,"place":"hbm","read":[],"write":[],"free":[]})"),
              HasSubstr("from 0"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"gpu","read":[],"write":[],"free":[]})"),
              HasSubstr("\"host\""));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":0,"write":[],"free":[]})"),
              HasSubstr("a list of ids"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":["0"],"write":[],"free":[]})"),
              HasSubstr("ids alone"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":[],"write":[]})"),
              HasSubstr("\"free\" is missing"));
  EXPECT_THAT(error_of_line(R"({"step":false})"), HasSubstr("must be true"));
  EXPECT_THAT(error_of_line(R"({"step":true,"kind":"test"})"), HasSubstr("\"accum\""));
}

TEST(Reader, RefusesIdsOutOfOrder) {
  EXPECT_THAT(error_of_line(R"({"tensor":3,"bytes":1,"class":"act","home":true})"), HasSubstr("the next one is 2"));
  EXPECT_THAT(error_of_line(R"({"tensor":1,"bytes":1,"class":"act","home":true})"), HasSubstr("the next one is 2"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":[2],"write":[],"free":[]})"),
              HasSubstr("\"read\" has tensor 2, which no line before this one declares"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":[0,0],"write":[],"free":[]})"),
              HasSubstr("\"read\" has tensor 0 twice"));
}

TEST(Reader, RefusesMoreBytesAndTimeThanItCanAddUp) {
  const std::string most = R"({"tensor":2,"bytes":9007199254740992,"class":"act","home":true})";
  EXPECT_THAT(error_of_line(most), HasSubstr("together"));
  const std::string year = R"({"run":"r","us":31536000000000,"place":"hbm","read":[],"write":[],"free":[]})";
  EXPECT_THAT(error_of(lines({kHeader, year, year, kStep})),
              AllOf(StartsWith("w.jsonl:3: "), HasSubstr("longer than a year")));
}

TEST(Reader, FollowsContent) {
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":[1],"write":[],"free":[]})"),
              HasSubstr("reads tensor 1, which has no content"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":[1],"write":[1],"free":[]})"),
              HasSubstr("reads tensor 1, which has no content"));
  EXPECT_THAT(error_of_line(R"({"run":"r","us":1,"place":"hbm","read":[],"write":[],"free":[1]})"),
              HasSubstr("frees tensor 1, which has no content"));
  // Read again after its free.
  EXPECT_THAT(error_of(lines({kHeader, kParam, kAct, kForward, kBackward, kBackward, kStep})),
              AllOf(StartsWith("w.jsonl:6: "), HasSubstr("reads tensor 1, which has no content")));
}

TEST(Reader, FollowsContentWhenTheFileIsRepeated) {
  // The parameter is freed at the end, and read by the first run.
  const std::string last = R"({"run":"last","us":1,"place":"hbm","read":[],"write":[],"free":[0]})";
  EXPECT_THAT(error_of(lines({kHeader, kParam, kAct, kForward, kBackward, kStep, last, kStep})),
              AllOf(StartsWith("w.jsonl:4: "), HasSubstr("when the file is repeated"), HasSubstr("reads tensor 0")));
}

TEST(Reader, RefusesFilesWithoutAHeaderOrAnEnd) {
  EXPECT_THAT(error_of(""), AllOf(StartsWith("w.jsonl:1: "), HasSubstr("no header")));
  EXPECT_THAT(error_of(lines({kParam, kStep})), AllOf(StartsWith("w.jsonl:1: "), HasSubstr("is no header")));
  EXPECT_THAT(error_of(lines({R"({"workload":"w","version":2,"source":""})"})), HasSubstr("\"version\" is 2"));
  EXPECT_THAT(error_of(lines({kHeader})), AllOf(StartsWith("w.jsonl:2: "), HasSubstr("ends within a step")));
  EXPECT_THAT(error_of(lines({kHeader, kParam, kAct, kForward, kStep, kBackward})),
              AllOf(StartsWith("w.jsonl:7: "), HasSubstr("ends within a step")));
  EXPECT_THAT(error_of(lines({kHeader, kStep})), AllOf(StartsWith("w.jsonl:2: "), HasSubstr("no run")));
}

TEST(Reader, RefusesRunsThatNeverFitTheNode) {
  Node node{.name = "tiny", .hbm_bytes = 12288, .host_bytes = 12288, .block_bytes = 0, .hbm = {}, .block = {}};
  const std::string text = lines({kHeader, kParam, kAct, kForward, kBackward, kStep});
  EXPECT_TRUE(read(text, "w.jsonl", &node));
  node.host_bytes = 12287;
  EXPECT_THAT(error_of(text, &node),
              AllOf(StartsWith("w.jsonl:5: "), HasSubstr("12288 bytes in host"), HasSubstr("12287 on node tiny")));
  node.hbm_bytes = 12287;
  EXPECT_THAT(error_of(text, &node), AllOf(StartsWith("w.jsonl:4: "), HasSubstr("in hbm")));
}

TEST(Reader, NamesFilesThatCannotBeRead) {
  const auto workload = load("/there/is/no/such.jsonl");
  ASSERT_FALSE(workload);
  EXPECT_EQ(workload.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(workload.error().message, HasSubstr("/there/is/no/such.jsonl"));
}

TEST(Reader, LoadsAFile) {
  const std::string path = testing::TempDir() + "reader_test.jsonl";
  std::ofstream(path) << lines({kHeader, kParam, kAct, kForward, kBackward, kStep});
  const auto workload = load(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(workload) << workload.error().message;
  EXPECT_EQ(workload->runs.size(), 2u);
}

}  // namespace
}  // namespace terrace::workload
