// JSON that is appended to a text, without a detour by other strings: a timeline's events are many.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hdp {

void put_number(std::string& out, int64_t value);
void put_quoted(std::string& out, std::string_view text);

// The members of a JSON object. Their names need no escapes.
class Fields {
 public:
  Fields() { json_.reserve(256); }
  Fields& number(std::string_view name, uint64_t value);
  Fields& text(std::string_view name, std::string_view value);
  const std::string& json() const { return json_; }  // without the braces

 private:
  void begin(std::string_view name);
  std::string json_;
};

}  // namespace hdp
