# The C++ tests and the kernel benchmark.
include(CheckCXXSourceCompiles)

function(turing_test name)
  add_executable(test_${name} ${ARGN})
  target_link_libraries(test_${name} PRIVATE turing_static)
  target_compile_options(test_${name} PRIVATE -Wall -Wextra -Wshadow)
  add_test(NAME ${name} COMMAND test_${name})
endfunction()

# A test program that is built, sources of the library included, under sanitizers, where the
# compiler has them.
function(turing_checked_test name sanitizers)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=${sanitizers})
  string(MAKE_C_IDENTIFIER "TURING_HAS_${sanitizers}" found)
  check_cxx_source_compiles("int main() { return 0; }" ${found})
  add_executable(test_${name} ${ARGN})
  target_include_directories(test_${name} PRIVATE ${cpp}/src ${cpp}/tests)
  target_link_libraries(test_${name} PRIVATE Threads::Threads)
  target_compile_options(test_${name} PRIVATE -Wall -Wextra -Wshadow)
  if(${found} AND NOT TURING_SANITIZE)
    set(flags -O1 -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_compile_options(test_${name} PRIVATE ${flags})
    target_link_options(test_${name} PRIVATE ${flags})
  endif()
  add_test(NAME ${name} COMMAND test_${name})
endfunction()

turing_test(engine ${cpp}/tests/test_engine.cpp)
turing_test(kernels ${cpp}/tests/test_kernels.cpp)

set(readers
  ${cpp}/src/checkpoint.cpp
  ${cpp}/src/gguf.cpp
  ${cpp}/src/gguf_model.cpp
  ${cpp}/src/hf_config.cpp
  ${cpp}/src/json.cpp
  ${cpp}/src/kinds.cpp
  ${cpp}/src/memory.cpp
  ${cpp}/src/pack.cpp
  ${cpp}/src/pool.cpp
  ${cpp}/src/safetensors_model.cpp
  ${cpp}/src/spec.cpp
  ${cpp}/src/weights.cpp)
turing_checked_test(files address,undefined ${cpp}/tests/test_files.cpp ${readers})
turing_checked_test(pool thread ${cpp}/tests/test_pool.cpp ${cpp}/src/pool.cpp)

add_executable(bench_kernels ${cpp}/bench/bench_kernels.cpp)
target_link_libraries(bench_kernels PRIVATE turing_static)
