// The file of --json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gsa::bench {

// Replaces the file, and makes its folder where there is none. Throws gsa::Error that names --json, the path
// and the reason. Called once before the long part of a run too, so that a bad path shows at once.
void write_json_file(const std::string& path, const nlohmann::ordered_json& document);

}  // namespace gsa::bench
