// N-gram language models in memory: what ARPA text says, or a KenLM binary file as it lies on the disk.
//
// Probabilities and back-offs are log10, as in ARPA. All models answer the same question, the one that back-off models
// are defined by (Katz 1987): log10 p(w | context) is that of the longest n-gram of w and the end of the context that
// the model holds, plus the back-offs of the longer contexts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ngram {

constexpr int MAX_ORDER = 10;

// The end of a text as far as the next word depends on it: its last words, the latest first, and the back-offs of the
// contexts that consist of the latest 1, 2 ... of them.
struct State {
    uint32_t words[MAX_ORDER - 1];
    float backoffs[MAX_ORDER - 1];
    int length = 0;
};

constexpr uint32_t UNKNOWN = 0;

class Model {
  public:
    virtual ~Model() = default;
    // The number of a word; UNKNOWN where the model does not know it.
    virtual uint32_t index(std::string_view word) const = 0;
    // log10 p(word | context), and the context of the word after it. `next` may be `context`.
    virtual float score(const State& context, uint32_t word, State& next) const = 0;
    // The context at the beginning of a sentence.
    State sentence_begin() const {
        State next;
        score(State{}, begin_word, next);
        return next;
    }

    int order = 0;
    uint32_t begin_word = UNKNOWN, end_word = UNKNOWN; // <s> and </s>
    std::vector<std::string> words; // by number, the first <unk>; empty where a binary file was made without them
    std::string description;
};

// Fills the buffer with the next bytes of a file: their number, 0 at its end, -1 after an error.
using Reader = long (*)(char* buffer, long size);

// Both throw std::runtime_error, whose message names the cause and the remedy, but not the file.
std::unique_ptr<Model> read_arpa(Reader reader);
std::unique_ptr<Model> open_kenlm(const char* path);

} // namespace ngram
