#include "paper/synthetic.h"

#include <algorithm>
#include <map>
#include <set>

#include "data/stories.h"
#include "gsa/error.h"
#include "ruler/words.h"

namespace gsa::paper {
namespace {

constexpr std::string_view kSmalls = "abcdefghijklmnopqrstuvwxyz";

std::string pair_key(Random& random) {
  return concat(random.pick(ruler::verbs()), "-", random.pick(ruler::nouns()));
}

std::string number(Random& random, int digits) {
  std::string text(1, static_cast<char>('1' + random.below(9)));
  while (static_cast<int>(text.size()) < digits) text += static_cast<char>('0' + random.below(10));
  return text;
}

std::string hex_key(Random& random) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const int size : {8, 4, 4, 4, 12}) {
    if (!text.empty()) text += '-';
    text += random.letters(size, kDigits);
  }
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return text;
}

// %k: a key or several, %v: a value.
std::string filled(std::string_view form, const std::string& key, const std::string& value = "") {
  std::string text;
  for (std::size_t i = 0; i < form.size(); ++i) {
    if (form[i] == '%') {
      text += form[++i] == 'k' ? key : value;
    } else {
      text += form[i];
    }
  }
  return text;
}

struct Words {
  const char *opening, *needle, *question;  // the question ends where the values follow
};
constexpr Words kWords[] = {
    {"Some codes are noted in this text. They will be asked for at its end.",
     "The secret code of %k reads %v.",
     "Which secret code has %k, according to this text? The secret code of %k, according to this text, is"},
    {"Read on, and keep in mind which box holds what.", "Remember that %k lies in box %v.",
     "In which box does %k lie? It is known from the text that %k lies in box"},
    {"A register of tickets and names follows, among other things.", "The ticket of %k has the number %v.",
     "What number has the ticket of %k in the register? In the register the ticket of %k has the number"},
    {"There are entries in what follows; one of them matters.", "Entry for %k: %v.",
     "What does the entry for %k say? The entry for %k says"},
};

// Sentences of one story, without its opening.
std::vector<std::string> hay(Random& random, std::int64_t room) {
  std::vector<std::string> sentences;
  const std::string story = story_text(random.stream(random.bits()), static_cast<int>(room / 30 + 4));
  std::int64_t size = 0;
  for (std::size_t begin = story.find(' ') + 1; begin < story.size() && size < room;) {
    const std::size_t end = std::min(story.find(". ", begin), story.size() - 1) + 1;
    sentences.push_back(story.substr(begin, end - begin));
    size += static_cast<std::int64_t>(end - begin) + 1;
    begin = end + 1;
  }
  return sentences;
}

// In the order given, at places drawn.
std::vector<std::string> hidden(const std::vector<std::string>& needles, std::vector<std::string> among,
                                Random& random) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < needles.size(); ++i) places.push_back(random.below(among.size() + 1));
  std::sort(places.begin(), places.end());
  for (std::size_t i = needles.size(); i-- > 0;)
    among.insert(among.begin() + static_cast<std::ptrdiff_t>(places[i]), needles[i]);
  return among;
}

// Several questions on one text, each with its answer: what a row teaches is its answers.
constexpr std::size_t kMaxQuestions = 6;

Task lookup(Random& random, std::int64_t room) {
  const Words& words = kWords[random.below(std::size(kWords))];
  const bool hex = random.below(4) == 0, only_needles = random.below(3) == 0;
  struct Needle {
    std::string key, value;
  };
  std::set<std::string> taken;
  const auto new_needle = [&](const std::string& key) -> Needle {
    return {key, hex ? hex_key(random) : number(random, 7)};
  };
  const auto new_key = [&] {
    for (;;) {
      std::string key = hex && only_needles ? hex_key(random) : pair_key(random);
      if (taken.insert(key).second) return key;
    }
  };
  const auto text_of = [&](const Needle& needle) { return filled(words.needle, needle.key, needle.value); };

  std::vector<Needle> needles;
  std::vector<std::vector<std::string>> asked;  // the keys of each question
  std::int64_t left = room - static_cast<std::int64_t>(std::string_view(words.opening).size());
  const auto add = [&](const std::string& key) {
    needles.push_back(new_needle(key));
    left -= static_cast<std::int64_t>(text_of(needles.back()).size()) + 1;
  };
  const std::size_t count = 1 + random.below(kMaxQuestions);
  while (asked.empty() || (asked.size() < count && left > room / 3)) {  // a third of it is haystack
    const std::size_t shape = random.below(4);  // one key with a value, or with four values; four keys
    std::vector<std::string>& keys = asked.emplace_back();
    while (keys.size() < (shape == 3 ? 4 : 1)) keys.push_back(new_key());
    for (const std::string& key : keys) {
      for (int i = 0; i < (shape == 2 ? 4 : 1); ++i) {
        add(key);
        left -= static_cast<std::int64_t>(needles.back().value.size()) + 2;
      }
    }
    left -= static_cast<std::int64_t>(filled(words.question, joined(keys)).size()) + 2;
  }
  if (random.below(2) == 0) {  // that nobody asks for
    for (int i = 0; i < 3 && left > room / 3; ++i) add(new_key());
  }
  random.shuffle(needles);
  std::vector<std::string> hidden_ones, among;
  for (const Needle& needle : needles) hidden_ones.push_back(text_of(needle));
  if (only_needles) {
    while (left > 0) {
      among.push_back(text_of(new_needle(new_key())));
      left -= static_cast<std::int64_t>(among.back().size()) + 1;
    }
  } else {
    among = hay(random, std::max<std::int64_t>(0, left));
  }

  Task task;
  task.parts = {words.opening};
  for (std::string& part : hidden(hidden_ones, std::move(among), random))
    task.parts.push_back(std::move(part));
  for (const std::vector<std::string>& keys : asked) {
    std::vector<std::string> answers;
    for (const std::string& key :
         keys) {  // values of one key in the order of the text, which a reader can know
      for (const Needle& needle : needles) {
        if (needle.key == key) answers.push_back(needle.value);
      }
    }
    task.questions.push_back({filled(words.question, joined(keys)), joined(answers)});
  }
  return task;
}

// A chain of names that stand for one number.
Task tracking(Random& random, std::int64_t room) {
  std::vector<std::string> names;
  std::set<std::string> taken = {"let", "be"};
  while (names.size() < 5) {
    const std::string name = random.letters(4, kSmalls);
    if (taken.insert(name).second) names.push_back(name);
  }
  const std::string value = number(random, 5);
  std::vector<std::string> steps = {concat("Let ", names[0], " be ", value, ".")};
  for (std::size_t i = 1; i < names.size(); ++i)
    steps.push_back(concat("Let ", names[i], " be ", names[i - 1], "."));
  Task task;
  task.parts = {"Names are given to numbers in this text, and to names."};
  for (std::string& part : hidden(steps, hay(random, std::max<std::int64_t>(0, room - 350)), random))
    task.parts.push_back(std::move(part));
  task.questions.push_back(
      {concat("Which names mean ", value, "? The names that mean ", value, " are"), joined(names)});
  for (std::uint64_t more = random.below(3); more > 0; --more) {
    const std::string& name = random.pick(names);
    task.questions.push_back({concat("What does ", name, " mean? The name ", name, " means"), value});
  }
  return task;
}

std::string coined(Random& random) {
  constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
  std::string word;
  for (int i = 0; i < 3; ++i) word += concat(random.pick(kConsonants), random.pick(kVowels));
  return word;
}

// The three words that come most often, by far.
Task counting(Random& random, std::int64_t room) {
  std::vector<std::string> common, list;
  while (common.size() < 3) common.push_back(coined(random));
  const auto words = static_cast<std::size_t>(std::max<std::int64_t>(24, (room - 200) / 7));
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t draw = random.below(10);
    list.push_back(draw < 2 ? common[0] : draw < 4 ? common[1] : draw < 6 ? common[2] : coined(random));
  }
  // In the order of how often they came, then as written.
  std::map<std::string, std::size_t> counts;
  for (const std::string& word : list) ++counts[word];
  std::stable_sort(common.begin(), common.end(),
                   [&](const std::string& a, const std::string& b) { return counts[a] > counts[b]; });
  std::string text = "List:";
  for (const std::string& word : list) text += ' ' + word;
  return {{text}, {{"Which three of the list come up most? Those that come up most are", joined(common)}}};
}

std::string whole(const Task& task) {
  std::string text;
  for (const std::string& part : task.parts) text += (text.empty() ? "" : " ") + part;
  for (const Question& question : task.questions)
    text += concat("\n", question.text, " ", question.answer, ".");
  return text + "\n";
}

// A task that leaves its row at most full, or a story that fills it where there is no room for one. long_one: of any
// size up to what is left of the row, else of some hundred tokens.
void add_task(const Random& random, bool long_one, std::int64_t tokens, const data::Tokenizer& tokenizer,
              Ids& ids) {
  constexpr std::int64_t kMin = 200, kMax = 1000;  // tokens
  constexpr std::int64_t kMinRoom = 400;           // characters
  constexpr std::int64_t kCharactersOfToken = 3;   // about; digits have one
  const std::int64_t left = tokens - static_cast<std::int64_t>(ids.size());
  Random size = random.stream(1);
  const std::int64_t low = long_one ? kMax : kMin, high = long_one ? left : std::min(left, kMax);
  std::int64_t room =
      kCharactersOfToken *
      (high > low ? low + static_cast<std::int64_t>(size.below(static_cast<std::uint64_t>(high - low)))
                  : left);
  for (int trial = 0; trial < 3 && room >= kMinRoom; ++trial) {
    Ids task;
    tokenizer.encode(whole(make_task(random, room)), task);
    const auto taken = static_cast<std::int64_t>(task.size());
    if (taken <= left) {
      ids.insert(ids.end(), task.begin(), task.end());
      return;
    }
    room = room * left / taken * 15 / 16;
  }
  tokenizer.encode(story_text(random, static_cast<int>(left / 6) + 8), ids);
}

}  // namespace

std::string story_text(Random random, int sentences) { return data::Stories(random.bits()).story(sentences); }

// Names are given a value once and used later, seldom or often: what is read at a use stands far above.
std::string code_text(Random random, int lines) {
  struct Name {
    std::string name, value;
  };
  std::vector<Name> names;
  std::string text;
  for (int i = 0; i < lines; ++i) {
    const std::uint64_t what = random.below(8);
    if (names.size() < 3 || what == 0) {
      std::string name = concat(random.pick(ruler::nouns()), "_", random.letters(2, kSmalls));
      if (random.below(4) == 0) {  // a constant; letters that RULER's names have are learned here
        for (char& c : name) c = c == '_' ? c : static_cast<char>(c - 'a' + 'A');
      }
      names.push_back({name, number(random, 3)});
      text += concat("const int ", names.back().name, " = ", names.back().value, ";\n");
      continue;
    }
    const Name &a = names[random.below(names.size())], &b = names[random.below(names.size())];
    const std::string_view verb = random.pick(ruler::verbs());
    switch (what) {
      case 1:
      case 2:
        text += concat("assert(", a.name, " == ", a.value, ");\n");
        break;
      case 3:
        text += concat("if (", a.name, " > ", b.name, ") ", verb, "(", a.name, ");  // ", a.value, "\n");
        break;
      case 4:
        text += concat("  return ", verb, "(", a.name, ", ", b.name, ");\n");
        break;
      default:
        text += concat(verb, "(", a.name, ");  // ", a.value, "\n");
    }
  }
  return text;
}

Task make_task(Random random, std::int64_t room) {
  switch (random.below(4)) {
    case 0:
      return tracking(random, room);
    case 1:
      return counting(random, room);
    default:
      return lookup(random, room);
  }
}

Ids make_row(Content content, Random random, std::int64_t tokens, const data::Tokenizer& tokenizer) {
  constexpr int kUnits = 32;                        // sentences or lines
  constexpr std::uint64_t kLongTasks = 1ULL << 32;  // a stream of its own
  const auto wanted = static_cast<std::size_t>(tokens);
  Ids ids;
  // One story or one program fills a row: they refer to what stands far above. Of the rows of tasks, every fourth or so
  // has long ones.
  const bool long_tasks = random.stream(kLongTasks).below(4) == 0;
  for (std::uint64_t part = 0; ids.size() < wanted; ++part) {
    const Random own = random.stream(part);
    switch (content) {
      case Content::story:
        tokenizer.encode(story_text(own, static_cast<int>(tokens / 9) + kUnits) + "\n", ids);
        break;
      case Content::code:
        tokenizer.encode(code_text(own, static_cast<int>(tokens / 13) + kUnits), ids);
        break;
      case Content::tasks:
        add_task(own, long_tasks, tokens, tokenizer, ids);
        break;
    }
  }
  ids.resize(wanted);
  return ids;
}

std::vector<std::string> tokenizer_lines(std::uint64_t key, int count) {
  const Random random(key);
  std::vector<std::string> lines;
  for (int i = 0; i < count; ++i) {
    const Random own = random.stream(static_cast<std::uint64_t>(i));
    switch (i % 3) {
      case 0:
        lines.push_back(story_text(own, 20));
        break;
      case 1: {
        const std::string code = code_text(own, 20);
        for (std::size_t begin = 0; begin < code.size();) {
          const std::size_t end = code.find('\n', begin);
          lines.push_back(code.substr(begin, end - begin));
          begin = end + 1;
        }
        break;
      }
      default: {
        const Task task = make_task(own, 800);
        lines.insert(lines.end(), task.parts.begin(), task.parts.end());
        for (const Question& question : task.questions)
          lines.push_back(concat(question.text, " ", question.answer, "."));
      }
    }
  }
  return lines;
}

}  // namespace gsa::paper
