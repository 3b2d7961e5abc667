// Assertions for test programs: a failed one says where and ends the program with status 1.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

// Calls `body` and returns the message of the exception it must throw.
template <class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  std::fprintf(stderr, "no exception was thrown\n");
  std::exit(1);
}

inline bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}
