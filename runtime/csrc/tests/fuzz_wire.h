// Messages as a fuzzer writes them: whole and sealed, so that they pass the checksums and reach what reads them.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "message.h"

namespace hdp::fuzz {

using Rng = std::mt19937_64;
inline uint64_t pick(Rng& rng, uint64_t n) { return rng() % n; }
inline bool one_in(Rng& rng, uint64_t n) { return pick(rng, n) == 0; }

[[noreturn]] void fail(const std::string& what);

struct Message {
  Header header;
  std::string body;
  Message() = default;
  Message(Type type, std::string control, uint64_t seq = 0);
  std::string sealed();  // header and body, with their checksums
};

bool write_all(int fd, const std::string& bytes);  // false: the other end is gone
std::optional<Message> read_message(int fd);       // none: the other end is gone
void forget(int fd);                               // read until the other end is gone
std::string random_bytes(Rng& rng, size_t n);

// A number at which programs break: ends of types, limits of ours, and small ones.
uint64_t odd_number(Rng& rng);
// Changes one field: of the header, of the body, or their lengths.
void mutate(Rng& rng, Message& message);

// An operation of a group of `size` ranks that passes Operation::check, mostly.
Operation random_operation(Rng& rng, uint64_t group, uint32_t size);
// A message of a random type with a body of the right form, mostly.
Message random_message(Rng& rng, const std::vector<Type>& types, uint64_t group, uint32_t size);

}  // namespace hdp::fuzz
