// Errors inside the core; translated into hdp_status in one place (capi.cc).
#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "hdp.h"

namespace hdp {

class Error : public std::runtime_error {
 public:
  Error(hdp_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  hdp_status status() const { return status_; }

 private:
  hdp_status status_;
};

// `what` failed with errno.
class SystemError : public Error {
 public:
  explicit SystemError(const std::string& what, int number = errno)
      : Error(HDP_SYSTEM, what + ": " + std::strerror(number)) {}
};

}  // namespace hdp
