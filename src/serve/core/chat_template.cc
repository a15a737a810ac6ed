#include "serve/core/chat_template.h"

#include <array>

#include "core/file.h"
#include "core/json.h"
#include "serve/core/json_fields.h"

namespace gsa::serve {
namespace {

constexpr std::int64_t kMaxFileBytes = 16 << 20;
constexpr std::array kTemplates = {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3};

const char* word_of(ChatRole role) {
  switch (role) {
    case ChatRole::system:
      return "system";
    case ChatRole::user:
      return "user";
    case ChatRole::assistant:
      return "assistant";
  }
  return "";
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Marks and the text between them. Text is encoded in one piece from mark to mark, as tokenizers do: the tokens of
// "user\n" depend on what follows.
class Writer {
 public:
  Writer(const data::Tokenizer& tokenizer, std::vector<std::string> marks)
      : tokenizer_(tokenizer), ids_(tokenizer.beginning()) {
    for (const std::string& mark : marks) {
      std::vector<std::int32_t> ids;
      tokenizer.encode(mark, ids);
      const bool special = ids.size() == 1 && tokenizer.bytes_of(ids[0]).empty();
      marks_.push_back({mark, special ? ids[0] : -1});
    }
  }

  void mark(const std::string& name) {
    const std::int32_t id = id_of(name);
    if (id < 0) return text(name);
    flush();
    ids_.push_back(id);
    at_start_ = false;
  }
  void text(const std::string& more) { pending_ += more; }
  void content(const ChatMessage& message, const std::string& text) {
    for (const Mark& mark : marks_) {
      if (mark.id >= 0 || text.find(mark.name) == std::string::npos) continue;
      bad_value(message.param, concat("text without the chat template's mark ", mark.name),
                "one with it (this model's tokenizer has no token for the mark, so it would pass for one)");
    }
    pending_ += text;
  }

  // -1: the tokenizer has none.
  std::int32_t id_of(const std::string& name) const {
    for (const Mark& mark : marks_) {
      if (mark.name == name) return mark.id;
    }
    return -1;
  }

  ChatPrompt finish(const std::vector<std::string>& ends) {
    flush();
    ChatPrompt prompt{.ids = std::move(ids_), .stop_tokens = {}, .stops = {}};
    for (const std::string& end : ends) {
      if (const std::int32_t id = id_of(end); id >= 0) {
        prompt.stop_tokens.push_back(id);
      } else {
        prompt.stops.push_back(end);
      }
    }
    return prompt;
  }

 private:
  struct Mark {
    std::string name;
    std::int32_t id;
  };

  void flush() {
    if (!pending_.empty()) tokenizer_.encode_plain(pending_, ids_, at_start_);
    if (!pending_.empty()) at_start_ = false;
    pending_.clear();
  }

  const data::Tokenizer& tokenizer_;
  std::vector<Mark> marks_;
  std::vector<std::int32_t> ids_;
  std::string pending_;
  bool at_start_ = true;
};

ChatPrompt plain_prompt(const std::vector<ChatMessage>& messages, const data::Tokenizer& tokenizer) {
  Writer writer(tokenizer, {});
  for (const ChatMessage& message : messages) {
    if (message.role != ChatRole::system)
      writer.text(message.role == ChatRole::user ? "User: " : "Assistant: ");
    writer.content(message, message.content);
    writer.text(message.role == ChatRole::system ? "\n\n" : "\n");
  }
  writer.text("Assistant:");
  return writer.finish({"\nUser:"});
}

ChatPrompt chatml_prompt(const std::vector<ChatMessage>& messages, const data::Tokenizer& tokenizer) {
  constexpr const char *kBegin = "<|im_start|>", *kEnd = "<|im_end|>";
  Writer writer(tokenizer, {kBegin, kEnd});
  for (const ChatMessage& message : messages) {
    writer.mark(kBegin);
    writer.text(concat(word_of(message.role), "\n"));
    writer.content(message, message.content);
    writer.mark(kEnd);
    writer.text("\n");
  }
  writer.mark(kBegin);
  writer.text("assistant\n");
  return writer.finish({kEnd});
}

ChatPrompt llama3_prompt(const std::vector<ChatMessage>& messages, const data::Tokenizer& tokenizer) {
  constexpr const char *kBegin = "<|start_header_id|>", *kBehind = "<|end_header_id|>", *kEnd = "<|eot_id|>";
  Writer writer(tokenizer, {kBegin, kBehind, kEnd});
  const auto header = [&](ChatRole role) {
    writer.mark(kBegin);
    writer.text(word_of(role));
    writer.mark(kBehind);
    writer.text("\n\n");
  };
  for (const ChatMessage& message : messages) {
    header(message.role);
    writer.content(message, trimmed(message.content));
    writer.mark(kEnd);
  }
  header(ChatRole::assistant);
  return writer.finish({kEnd});
}

// The text of a template in tokenizer_config.json: a string, or a list of named ones of which "default" counts.
std::string template_text(const Json& config) {
  const Json value = config.is_object() ? config.value("chat_template", Json()) : Json();
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return "";
  for (const Json& one : value) {
    if (one.is_object() && one.value("name", Json()) == "default" &&
        one.value("template", Json()).is_string()) {
      return one["template"].get<std::string>();
    }
  }
  return "";
}

}  // namespace

std::string name_of(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::plain:
      return "plain";
    case ChatTemplate::chatml:
      return "chatml";
    case ChatTemplate::llama3:
      return "llama3";
  }
  return "";
}

ChatTemplate chat_template_by_name(const std::string& name) {
  for (const ChatTemplate chat : kTemplates) {
    if (name_of(chat) == name) return chat;
  }
  bad_argument("serve", "chat_template", "plain, chatml or llama3", concat("'", name, "'"));
}

FolderTemplate folder_template(const std::filesystem::path& folder) {
  const auto jinja = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  std::string text;
  if (std::filesystem::is_regular_file(jinja)) {
    text = read_file(jinja, kMaxFileBytes);
  } else if (std::filesystem::is_regular_file(config)) {
    text = template_text(parse_json(read_file(config, kMaxFileBytes), config.string()));
  }
  FolderTemplate found{.present = !text.empty()};
  if (text.find("<|im_start|>") != std::string::npos) {
    found.known = ChatTemplate::chatml;
  } else if (text.find("<|start_header_id|>") != std::string::npos) {
    found.known = ChatTemplate::llama3;
  }
  return found;
}

ChatPrompt chat_prompt(ChatTemplate chat, const std::vector<ChatMessage>& messages,
                       const data::Tokenizer& tokenizer) {
  switch (chat) {
    case ChatTemplate::plain:
      return plain_prompt(messages, tokenizer);
    case ChatTemplate::chatml:
      return chatml_prompt(messages, tokenizer);
    case ChatTemplate::llama3:
      return llama3_prompt(messages, tokenizer);
  }
  bad_argument("serve", "chat_template", "plain, chatml or llama3", "another");
}

}  // namespace gsa::serve
