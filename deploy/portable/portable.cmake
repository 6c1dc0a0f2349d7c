# SPDX-License-Identifier: Apache-2.0
# Programs that need nothing of a machine but its C library, glibc 2.34 or newer: what wheels carry. Included by the main
# build where TERRACE_PORTABLE is on.
#
# What Debian has as an archive is linked as one. deploy/portable/sources has fetched the sources of the rest.

set(portable_sources ${PROJECT_SOURCE_DIR}/build/sources)
if(NOT EXISTS ${portable_sources}/complete)
  message(FATAL_ERROR "no sources in ${portable_sources}: run deploy/portable/sources first")
endif()

# Messages name sources and headers in the same way wherever, and whether or not through ccache, they were compiled: ccache
# has paths in the checkout be relative ones.
file(RELATIVE_PATH portable_up ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR})
add_compile_options(-ffile-prefix-map=${CMAKE_BINARY_DIR}/= -ffile-prefix-map=${portable_up}/=)

enable_language(C) # civetweb's
set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
foreach(package gRPC fmt spdlog prometheus-cpp)
  find_package(${package} CONFIG REQUIRED)
endforeach()

# portable_located(TARGET ARCHIVE): TARGET of a package is that archive, under whatever configuration it was exported.
function(portable_located target archive)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE ${archive} IMPORTED_SONAME_NONE "")
endfunction()

# portable_archived(TARGET): TARGET of a package, and what it needs, is linked from the archives beside its shared libraries.
function(portable_archived target)
  get_property(seen GLOBAL PROPERTY portable_seen)
  if(NOT TARGET ${target} OR target IN_LIST seen)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY portable_seen ${target})
  get_target_property(library ${target} IMPORTED_LOCATION_NONE)
  if(library MATCHES "^(.*)\\.so[.0-9]*$")
    if(NOT EXISTS ${CMAKE_MATCH_1}.a)
      message(FATAL_ERROR "${target} is not to be had as an archive: there is no ${CMAKE_MATCH_1}.a")
    endif()
    portable_located(${target} ${CMAKE_MATCH_1}.a)
  endif()
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  foreach(link IN LISTS links)
    portable_archived(${link})
  endforeach()
endfunction()

# portable_library(NAME SOURCES a.cc ... [DEFINITIONS ...] [INCLUDES ...]): an archive that is built here, of the very version
# whose headers are installed. Their warnings are not ours to mend.
function(portable_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEFINITIONS;INCLUDES" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_compile_definitions(${name} PRIVATE ${ARG_DEFINITIONS})
  target_compile_options(${name} PRIVATE -w)
  target_include_directories(${name} PRIVATE ${ARG_INCLUDES})
endfunction()

# Every socket of ours is a Unix socket: gRPC goes without TLS, and so without OpenSSL.
get_target_property(secure_links gRPC::grpc++ INTERFACE_LINK_LIBRARIES)
list(TRANSFORM secure_links REPLACE "^gRPC::grpc$" "gRPC::grpc_unsecure" OUTPUT_VARIABLE unsecure_links)
get_target_property(unsecure gRPC::grpc++_unsecure IMPORTED_LOCATION_NONE)
set_target_properties(gRPC::grpc++ PROPERTIES IMPORTED_LOCATION_NONE ${unsecure} INTERFACE_LINK_LIBRARIES "${unsecure_links}")
portable_archived(gRPC::grpc++)
find_library(portable_re2 re2 REQUIRED) # known to gRPC as -lre2
set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES ${portable_re2})

set(source ${portable_sources}/fmtlib)
portable_library(portable_fmt SOURCES ${source}/src/format.cc ${source}/src/os.cc)
portable_located(fmt::fmt ${CMAKE_BINARY_DIR}/libportable_fmt.a)

file(GLOB sources ${portable_sources}/spdlog/src/*.cpp)
portable_library(portable_spdlog SOURCES ${sources} DEFINITIONS SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
portable_located(spdlog::spdlog ${CMAKE_BINARY_DIR}/libportable_spdlog.a)

# Debian's archive lacks what chooses the code for the processor at run time; its shared library has it.
set(source ${portable_sources}/xxhash)
portable_library(portable_xxhash SOURCES ${source}/xxhash.c ${source}/xxh_x86dispatch.c)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
set_target_properties(PkgConfig::xxhash PROPERTIES INTERFACE_LINK_LIBRARIES portable_xxhash)

# The metrics' HTTP server serves no files, runs no programs, and speaks no TLS.
set(civetweb ${portable_sources}/civetweb)
portable_library(portable_civetweb SOURCES ${civetweb}/src/civetweb.c ${civetweb}/src/CivetServer.cpp
                 DEFINITIONS USE_IPV6 NO_CGI NO_CACHING NO_FILES NO_SSL SOCKET_TIMEOUT_QUANTUM=200 INCLUDES ${civetweb}/include)
set(source ${portable_sources}/prometheus-cpp)
file(GLOB sources ${source}/core/src/*.cc ${source}/core/src/detail/*.cc)
portable_library(portable_prometheus_core SOURCES ${sources} INCLUDES ${source}/core/include)
file(GLOB sources ${source}/pull/src/*.cc)
portable_library(portable_prometheus_pull SOURCES ${sources} DEFINITIONS HAVE_ZLIB
                 INCLUDES ${source}/pull/include ${source}/pull/src ${source}/core/include ${civetweb}/include)
portable_located(prometheus-cpp::core ${CMAKE_BINARY_DIR}/libportable_prometheus_core.a)
portable_located(prometheus-cpp::pull ${CMAKE_BINARY_DIR}/libportable_prometheus_pull.a)
find_package(ZLIB REQUIRED)
set_property(TARGET prometheus-cpp::pull APPEND PROPERTY INTERFACE_LINK_LIBRARIES portable_civetweb ZLIB::ZLIB)

add_library(portable_compat OBJECT ${CMAKE_CURRENT_LIST_DIR}/glibc.cc ${CMAKE_CURRENT_LIST_DIR}/udev.cc)
target_link_libraries(portable_compat PRIVATE terrace_options)
target_compile_options(portable_compat PRIVATE -fvisibility=hidden)
set_target_properties(portable_compat PROPERTIES UNITY_BUILD OFF)

# terrace_portable(TARGET): a program that needs nothing but glibc.
function(terrace_portable name)
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:portable_compat>)
  set_target_properties(${name} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,--strip-all)
endfunction()
