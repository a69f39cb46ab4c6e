// Mistakes that a sanitizer must see, so that a test can tell that it is on.
#pragma once

#include <string>

namespace hdp {

// Commits "data-race", "heap-overflow" or "signed-overflow". Returns 0, or 2 where there is no mistake of that name.
int commit_mistake(const std::string& name);

}  // namespace hdp
