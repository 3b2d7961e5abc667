// The one exception type of the library.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace turing {

// A failure that the caller can act on; the message names what is wrong and where.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error whose message is the concatenation of `parts`.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(text.str());
}

}  // namespace turing
