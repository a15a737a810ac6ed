// Results as a table for people and as JSON for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "machine.h"
#include "runner.h"

namespace gsa::bench {

// The lines above the table: what ran where.
std::string heading(const Machine& machine);

// Title and column names for the cases of a kind.
std::string table_head(Kind kind);
std::string table_row(const Result& result, const Machine& machine);

// Replaces the file. Throws gsa::Error where it cannot be written.
void write_json(const std::string& path, const Machine& machine, const std::vector<Result>& results);

}  // namespace gsa::bench
