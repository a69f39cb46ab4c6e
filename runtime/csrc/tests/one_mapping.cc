// One mapping an arena: all ranks and the server of a host map it at the same address in a self-checking program, so
// that ThreadSanitizer sees them race (arena.cc is compiled with -Dmmap=hdp_test_mmap -Dmunmap=hdp_test_munmap). Pages
// without access around it catch what reads or writes past its ends.
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = 64 << 20;

struct Mapping {
  void* at;
  int users;
};
std::mutex mutex;
std::map<ino_t, Mapping>& mappings() {
  static auto* m = new std::map<ino_t, Mapping>;
  return *m;
}

size_t pages(size_t n) { return (n + kPage - 1) / kPage * kPage; }

void* map_with_guards(size_t n, int prot, int flags, int fd, off_t offset) {
  void* all = mmap(nullptr, pages(n) + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return all;
  return mmap(static_cast<char*>(all) + kGuard, n, prot, flags | MAP_FIXED, fd, offset);
}

}  // namespace

extern "C" void* hdp_test_mmap(void*, size_t n, int prot, int flags, int fd, off_t offset) noexcept {
  struct stat st;
  if (fstat(fd, &st) != 0) return MAP_FAILED;
  std::lock_guard lock(mutex);
  auto found = mappings().find(st.st_ino);
  if (found == mappings().end())
    found = mappings().emplace(st.st_ino, Mapping{map_with_guards(n, prot, flags, fd, offset), 0}).first;
  ++found->second.users;
  return found->second.at;
}

extern "C" int hdp_test_munmap(void* at, size_t n) noexcept {
  std::lock_guard lock(mutex);
  for (auto it = mappings().begin(); it != mappings().end(); ++it)
    if (it->second.at == at) {
      if (--it->second.users > 0) return 0;
      mappings().erase(it);
      return munmap(static_cast<char*>(at) - kGuard, pages(n) + 2 * kGuard);
    }
  return -1;
}
