#include "trace_json.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace hdp {

void put_number(std::string& out, int64_t value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void put_quoted(std::string& out, std::string_view text) {
  const auto special = [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; };
  out += '"';
  for (;;) {
    const auto plain = static_cast<size_t>(std::find_if(text.begin(), text.end(), special) - text.begin());
    out += text.substr(0, plain);
    if (plain == text.size()) break;
    const char c = text[plain];
    char code[8] = {'\\', c};
    if (c != '"' && c != '\\') std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
    out += code;
    text.remove_prefix(plain + 1);
  }
  out += '"';
}

void Fields::begin(std::string_view name) {
  json_ += json_.empty() ? "\"" : ",\"";
  json_ += name;
  json_ += "\":";
}

Fields& Fields::number(std::string_view name, uint64_t value) {
  begin(name);
  put_number(json_, static_cast<int64_t>(value));
  return *this;
}

Fields& Fields::text(std::string_view name, std::string_view value) {
  begin(name);
  put_quoted(json_, value);
  return *this;
}

}  // namespace hdp
