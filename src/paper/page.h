// The tables as pages: one of HTML, one of Markdown, with the same words and figures. Prose of the latter has lines of
// at most 120 characters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "paper/tables.h"

namespace gsa::paper {

struct PageOptions {
  TableOptions tables;
  std::string data;                 // what the systems learned from, in words
  std::string options = "";         // of the command, those that say what it learned from; may be empty
  std::string machine;              // that it ran on; may be empty
  std::string dates = "";           // on which it ran; may be empty
  std::size_t done = 0, steps = 0;  // of the plan of all tables
};

// How often the text comes again in the rows to train on, a sentence behind a space; empty where none was read.
std::string text_repeated(const Results& results);

// Charts stand in the page itself.
std::string html_page(const PageOptions& options, const std::vector<Table>& tables);
// Charts are charts/NAME.svg beside it.
std::string markdown_page(const PageOptions& options, const std::vector<Table>& tables);
// Name and content of these files.
std::vector<std::pair<std::string, std::string>> chart_files(const std::vector<Table>& tables);

}  // namespace gsa::paper
