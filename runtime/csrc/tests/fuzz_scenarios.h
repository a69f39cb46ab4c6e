// What core_fuzz plays. Each takes a seed, and returns or ends the process through fail().
#pragma once

#include <cstdint>

namespace hdp::fuzz {

// fuzz_relay.cc: real servers and ranks; the links between them are tampered with.
void slow_links(uint64_t seed);      // messages come in pieces, late: all results are right
void corrupt_links(uint64_t seed);   // bytes change, are lost or added: a result is right or an error
void shuffled_links(uint64_t seed);  // whole messages are lost, repeated, swapped: likewise
void mutated_peers(uint64_t seed);   // fields of messages between servers change: everything ends
void mutated_ranks(uint64_t seed);   // ... between ranks and servers
void mutated_links(uint64_t seed);   // ... everywhere

// fuzz_peers.cc: the other hosts are ours.
void strange_peer(uint64_t seed);       // sends random messages to a server with real ranks
void strange_sequencer(uint64_t seed);  // grants whatever is reported, and more; sends data of every kind
void garbage(uint64_t seed);            // one wrong message, from a host or a rank, ends in an error for all ranks
void flood(uint64_t seed);              // one kind of message for ever: memory stays bounded

// fuzz_ranks.cc
void strange_ranks(uint64_t seed);   // ranks are ours
void strange_server(uint64_t seed);  // the server of a real rank is ours

}  // namespace hdp::fuzz
