// The datasets, the haystack and the prompts of `gsa paper`, under data/ of the output folder.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "core/json.h"
#include "core/parallel.h"
#include "paper/scale.h"

namespace gsa::paper {

// What a user has for RULER, as `gsa ruler` takes it; any may be empty.
struct RulerFiles {
  std::filesystem::path essays, squad, hotpotqa;
};

// A scale that asks RULER with these files: essays in place of text made by rule, qa_1 and qa_2.
Scale with_files(Scale scale, const RulerFiles& files);

// Where the text comes from.
class Source {
 public:
  // path: a text file, or a dataset's folder (gsa tokenize makes one); empty: all text is made by rule. Throws
  // gsa::Error for files that are not what they should be.
  explicit Source(const std::filesystem::path& path, const RulerFiles& files = {});

  bool by_rule() const { return path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  bool is_dataset() const { return dataset_; }
  const RulerFiles& files() const { return files_; }
  // What the results depend on: a folder remembers it.
  OrderedJson identity() const;
  std::string in_words() const;           // for the pages
  std::string options() const;            // "--data a.txt --squad dev.json", files without their folders
  std::string text_name(int text) const;  // of validation-1 (0) and validation-2 (1)

 private:
  std::filesystem::path path_;
  RulerFiles files_;
  OrderedJson file_checksums_ = OrderedJson::object();
  bool dataset_ = false;
  std::uint32_t checksum_ = 0;
};

struct MaterialEvents {
  std::function<void(double share, const std::string& what)> progress = [](double, const std::string&) {};
  std::function<bool()> stop = [] { return false; };
};

// Every document of every dataset is one row of scale.length tokens, marks included, so that each row of training
// begins with the begin mark; those of kRulerRows may be shorter. What an earlier call left there unfinished is made
// anew; kDataDone (paper/plan.h) is written last. False: it was stopped.
bool make_material(const std::filesystem::path& folder, const Scale& scale, const Source& source,
                   const Parallel& parallel, const MaterialEvents& events);

}  // namespace gsa::paper
