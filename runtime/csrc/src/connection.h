// A connected stream socket that carries messages, non-blocking in both directions, plain or through TLS.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "message.h"
#include "tls.h"

namespace hdp {

// Who takes the messages of a connection.
class Sink {
 public:
  virtual ~Sink() = default;
  // Where the body of a data message goes (header.bytes of room). Control bodies are kept by the connection.
  virtual uint8_t* place(uint32_t source, const Header& header) = 0;
  // A data message is complete, at the address that `place` gave.
  virtual void data(uint32_t source, const Header& header, uint8_t* body) = 0;
  virtual void control(uint32_t source, const Header& header, Reader body) = 0;
};

class Connection {
 public:
  // `source` is what the sink is told; does not own `fd`. Makes it non-blocking.
  Connection(int fd, uint32_t source);
  // From now on through `tls`. Before anything is sent or received.
  void secure(std::unique_ptr<Tls> tls) { tls_ = std::move(tls); }

  int fd() const { return fd_; }
  bool open() const { return open_; }
  void shut() { open_ = false; }
  bool wants_write() const { return open_ && !queue_.empty(); }

  void send(Type type, std::string body, uint64_t seq = 0);
  // `data` must stay as it is until *pending goes down by one.
  void send_data(const Header& header, const void* data, uint32_t* pending);
  // Write what the socket takes. False: the other end is gone.
  bool flush();
  // Whether, since the last call, data was written that its owner may now overwrite.
  bool freed() { return std::exchange(freed_, false); }
  uint64_t sent() const { return sent_; }  // bytes ever, headers and control messages too; before encryption
  // Read what is there, up to about a megabyte. False: the other end is gone.
  bool receive(Sink& sink);
  // Read and forget. False: the other end is gone.
  bool discard();

 private:
  struct Out {
    Header header;
    std::string body;
    const uint8_t* data = nullptr;  // in place of `body`
    uint32_t* pending = nullptr;
    bool sealed = false;
    size_t sent = 0;  // of header and body together
    size_t total() const { return sizeof(Header) + header.bytes; }
    void seal() {  // late, when the data is about to be read anyway
      if (!std::exchange(sealed, true)) header.seal(payload());
    }
    const uint8_t* payload() const { return data ? data : reinterpret_cast<const uint8_t*>(body.data()); }
  };
  bool begin_body(Sink& sink);
  void end_body(Sink& sink);
  ssize_t read_some(void* into, size_t n);
  ssize_t read_message(size_t want);
  int gather(iovec* parts);
  void written(size_t n);

  std::unique_ptr<Tls> tls_;
  int fd_;
  uint32_t source_;
  bool open_ = true;
  bool freed_ = false;
  uint64_t sent_ = 0;
  std::deque<Out> queue_;
  uint64_t queued_ = 0;  // bytes of control messages in it
  Header header_{}, next_{};
  size_t got_ = 0;  // bytes of header, then of body
  bool in_body_ = false;
  uint8_t* body_ = nullptr;
  std::vector<uint8_t> control_;
};

}  // namespace hdp
