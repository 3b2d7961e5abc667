#include "json.h"

#include <charconv>
#include <cstdlib>

#include "error.h"

namespace turing {
namespace {

constexpr int kMaxDepth = 64;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Json document() {
    Json value = this->value(0);
    skip_space();
    if (at_ != text_.size()) wrong("more behind the end");
    return value;
  }

 private:
  [[noreturn]] void wrong(const char* what) const {
    fail(where_, ": not JSON: ", what, " at byte ", at_);
  }

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) at_++;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char wanted) {
    skip_space();
    if (peek() != wanted) return false;
    at_++;
    return true;
  }

  void expect(char wanted, const char* what) {
    if (!take(wanted)) wrong(what);
  }

  Json value(int depth) {
    if (depth > kMaxDepth) wrong("nested too deeply");
    skip_space();
    switch (peek()) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': return Json(string());
      case 't': return word("true", Json(true));
      case 'f': return word("false", Json(false));
      case 'n': return word("null", Json());
      default: return number();
    }
  }

  Json word(std::string_view word, Json value) {
    if (text_.substr(at_, word.size()) != word) wrong("an unknown word");
    at_ += word.size();
    return value;
  }

  Json number() {
    double value = 0;
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    if (peek() != '-' && (peek() < '0' || peek() > '9')) wrong("an unexpected character");
    const auto [rest, error] = std::from_chars(begin, end, value);
    if (error != std::errc()) wrong("not a number");
    at_ += static_cast<size_t>(rest - begin);
    return Json(value);
  }

  Json array(int depth) {
    at_++;
    JsonArray items;
    if (take(']')) return Json(std::move(items));
    do {
      items.push_back(value(depth + 1));
    } while (take(','));
    expect(']', "an array without its end");
    return Json(std::move(items));
  }

  Json object(int depth) {
    at_++;
    JsonObject members;
    if (take('}')) return Json(std::move(members));
    do {
      skip_space();
      if (peek() != '"') wrong("a key that is not a string");
      std::string key = string();
      expect(':', "a key without a value");
      members.insert_or_assign(std::move(key), value(depth + 1));
    } while (take(','));
    expect('}', "an object without its end");
    return Json(std::move(members));
  }

  std::string string() {
    at_++;
    std::string result;
    while (peek() != '"') {
      if (at_ >= text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20) {
        wrong("a string without its end");
      }
      if (text_[at_] == '\\') {
        at_++;
        escape(result);
      } else {
        result += text_[at_++];
      }
    }
    at_++;
    return result;
  }

  void escape(std::string& result) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    const char name = peek();
    at_++;
    if (name == 'u') return append_utf8(result, code_point());
    const size_t found = kNames.find(name);
    if (found == std::string_view::npos || name == '\0') wrong("an unknown escape");
    result += kValues[found];
  }

  uint32_t four_digits() {
    uint32_t value = 0;
    const char* begin = text_.data() + at_;
    if (text_.size() - at_ < 4) wrong("a cut escape");
    const auto [rest, error] = std::from_chars(begin, begin + 4, value, 16);
    if (error != std::errc() || rest != begin + 4) wrong("a malformed escape");
    at_ += 4;
    return value;
  }

  // A \u escape, or a pair of them that forms a surrogate pair.
  uint32_t code_point() {
    const uint32_t first = four_digits();
    if (first < 0xd800 || first > 0xdfff) return first;
    if (first > 0xdbff || text_.substr(at_, 2) != "\\u") wrong("half a surrogate pair");
    at_ += 2;
    const uint32_t second = four_digits();
    if (second < 0xdc00 || second > 0xdfff) wrong("half a surrogate pair");
    return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
  }

  static void append_utf8(std::string& result, uint32_t code) {
    if (code < 0x80) {
      result += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    const uint32_t lead = more == 1 ? 0xc0 : more == 2 ? 0xe0 : 0xf0;
    result += static_cast<char>(lead | code >> (6 * more));
    for (int i = more - 1; i >= 0; i--)
      result += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

Json Json::parse(std::string_view text, const std::string& where) {
  return Parser(text, where).document();
}

const Json* Json::find(std::string_view key) const {
  const JsonObject* members = object();
  if (members == nullptr) return nullptr;
  const auto found = members->find(key);
  return found == members->end() || found->second.is_null() ? nullptr : &found->second;
}

}  // namespace turing
