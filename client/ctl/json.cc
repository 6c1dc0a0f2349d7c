// SPDX-License-Identifier: Apache-2.0
#include "ctl/json.h"

#include <google/protobuf/descriptor.h>

namespace terrace::ctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

// Field `field` of `message`; its element `index` where it is repeated.
Json value_of(const Message& message, const FieldDescriptor& field, int index) {
  const auto& reflection = *message.GetReflection();
  const bool many = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return many ? reflection.GetRepeatedInt32(message, &field, index) : reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return many ? reflection.GetRepeatedInt64(message, &field, index) : reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return many ? reflection.GetRepeatedUInt32(message, &field, index) : reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return many ? reflection.GetRepeatedUInt64(message, &field, index) : reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return many ? reflection.GetRepeatedDouble(message, &field, index) : reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return many ? reflection.GetRepeatedFloat(message, &field, index) : reflection.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return many ? reflection.GetRepeatedBool(message, &field, index) : reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return (many ? reflection.GetRepeatedEnum(message, &field, index) : reflection.GetEnum(message, &field))->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return many ? reflection.GetRepeatedString(message, &field, index) : reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return to_json(many ? reflection.GetRepeatedMessage(message, &field, index)
                          : reflection.GetMessage(message, &field));
  }
  return nullptr;
}

}  // namespace

Json to_json(const Message& message) {
  const auto& descriptor = *message.GetDescriptor();
  if (&descriptor == v1::Place::descriptor()) return place_name(static_cast<const v1::Place&>(message));
  Json out = Json::object();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (!field.is_repeated()) {
      out[field.name()] = value_of(message, field, 0);
      continue;
    }
    Json list = Json::array();
    for (int k = 0; k < message.GetReflection()->FieldSize(message, &field); ++k)
      list.push_back(value_of(message, field, k));
    out[field.name()] = std::move(list);
  }
  return out;
}

std::string place_name(const v1::Place& place) {
  switch (place.kind()) {
    case v1::PLACE_KIND_HOST:
      return "host";
    case v1::PLACE_KIND_DEVICE:
      return "device:" + std::to_string(place.device());
    case v1::PLACE_KIND_BLOCK:
      return "block";
    case v1::PLACE_KIND_NOWHERE:
      return "nowhere";
    default:
      return "unspecified";
  }
}

}  // namespace terrace::ctl
