// A bounded reader of JSON documents that come with checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace turing {

class Json;
using JsonArray = std::vector<Json>;
using JsonObject = std::map<std::string, Json, std::less<>>;

// One value. The getters of a kind return null when the value is of another kind.
class Json {
 public:
  Json() = default;
  template <class T>
  explicit Json(T value) : value_(std::move(value)) {}

  // Parses a whole document (RFC 8259). Throws Error naming `where` and the offset of the mistake.
  static Json parse(std::string_view text, const std::string& where);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const double* number() const { return std::get_if<double>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const JsonArray* array() const { return std::get_if<JsonArray>(&value_); }
  const JsonObject* object() const { return std::get_if<JsonObject>(&value_); }
  // The member `key` of an object; null when there is none or its value is null.
  const Json* find(std::string_view key) const;

 private:
  std::variant<std::monostate, bool, double, std::string, JsonArray, JsonObject> value_;
};

}  // namespace turing
