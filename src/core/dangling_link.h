// Why a path leads nowhere.
#pragma once

#include <filesystem>
#include <string>

namespace gsa {

// " ('runs/x/latest' is a link to 'checkpoints/step-0000000024', which is not there)", to be put behind a
// message, where the path goes through such a link; else nothing.
std::string dangling_link(const std::filesystem::path& path);

}  // namespace gsa
