# SPDX-License-Identifier: Apache-2.0
# The project's compile settings, and one function for a layer and one for a test.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the checkout are hashed as relative ones, so that two checkouts share what was compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TERRACE_CCACHE})
endif()
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

find_package(Threads REQUIRED)

add_library(terrace_options INTERFACE)
target_compile_options(terrace_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Werror)
if(TERRACE_SANITIZE)
  add_compile_options(-fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TERRACE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # A driver's functions, which are looked up by name, were not compiled with our declarations of them.
    add_compile_options(-fno-sanitize=function)
    # GCC says so by itself.
    foreach(name ADDRESS THREAD)
      string(TOLOWER ${name} sanitizer)
      if(TERRACE_SANITIZE MATCHES ${sanitizer})
        add_compile_definitions(__SANITIZE_${name}__)
      endif()
    endforeach()
  else()
    # GCC loses track of what is initialised between the sanitizers' checks, and warns of std::variant.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  if(TERRACE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # libstdc++ fences in shared_ptr: GCC warns that ThreadSanitizer does not model them; we use none of our own.
    add_compile_options(-Wno-tsan)
  endif()
endif()

# terrace_layer(NAME [ROOM folder] SOURCES a.cc ... LINKS lower_layer ... [PRIVATE_LINKS ...])
# A static library of one folder, or of the folder ROOM in it. Headers are included by their path below daemon/
# ("engine/engine.h"), from an include folder that holds this layer's alone: whoever does not link a layer, directly or
# through one that it links, cannot include it.
function(terrace_layer name)
  cmake_parse_arguments(ARG "" "ROOM" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  cmake_path(APPEND CMAKE_CURRENT_SOURCE_DIR ${ARG_ROOM} OUTPUT_VARIABLE folder)
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/daemon ${folder})
  set(include ${CMAKE_BINARY_DIR}/include/${name})
  cmake_path(GET path PARENT_PATH above)
  file(MAKE_DIRECTORY ${include}/${above})
  file(CREATE_LINK ${folder} ${include}/${path} SYMBOLIC)
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_include_directories(${name} PUBLIC ${include})
    target_link_libraries(${name} PUBLIC ${ARG_LINKS} PRIVATE terrace_options ${ARG_PRIVATE_LINKS})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${include})
    target_link_libraries(${name} INTERFACE ${ARG_LINKS})
  endif()
endfunction()

# terrace_seldom_runs(TARGET): what runs for milliseconds of a test, and includes much, is not optimised beside a sanitizer.
function(terrace_seldom_runs name)
  if(TERRACE_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# terrace_bundled(TARGET)
# A program that is taken elsewhere. deploy/bundle takes its libraries along: it, and what it loads, look for them in
# ../lib of where it lies. deploy/wheel has them linked into it.
function(terrace_bundled name)
  if(TERRACE_PORTABLE)
    terrace_portable(${name})
    return()
  endif()
  set_target_properties(${name} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
  target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
endfunction()

# terrace_test(NAME SOURCES a_test.cc ... LINKS layer ... [PREFIX before.] [FILTER cases])
# A GoogleTest binary whose cases are ctest tests of their own, each bounded at 60 s unless TIMEOUT says otherwise.
function(terrace_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PREFIX;FILTER" "SOURCES;LINKS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(TERRACE_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # What runs for seconds is not worth minutes of optimising; the layers, which do the work, are compiled as ever.
  if(TERRACE_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    target_compile_options(${name} PRIVATE -O1 -g1)
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE terrace_options ${ARG_LINKS} GTest::gmock GTest::gtest_main)
  set(only)
  if(ARG_FILTER)
    set(only TEST_FILTER ${ARG_FILTER})
  endif()
  gtest_discover_tests(${name} ${only} TEST_PREFIX "${ARG_PREFIX}" PROPERTIES TIMEOUT ${ARG_TIMEOUT} DISCOVERY_TIMEOUT 60)
endfunction()
