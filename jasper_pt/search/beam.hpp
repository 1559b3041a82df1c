// CTC prefix beam search with a word language model, a word list and hot words. What is computed: docs/decoding.md.
//
// T frames, V classes (the labels, and the blank as the last), all scores natural logarithms
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ngram.hpp"

namespace beam {

struct Options {
    double alpha, beta, unknown; // weight of ln p_lm, score of a word, score of a word that the model does not know
    double token_threshold; // labels below this log-probability are not tried, save the best one
    double beam_threshold; // prefixes that are so much below the best one are not kept
    int64_t width, top_k; // prefixes kept; labels tried at each frame
    int64_t sentence_ends; // whether the end of the text is scored as the end of a sentence
    int64_t closed; // whether only words of the list are allowed
};

// Strings by their bytes.
class Trie {
  public:
    static constexpr int ROOT = 0, NONE = -1;
    Trie() : values_(1, -1) {}
    int step(int node, unsigned char byte) const {
        if (node == NONE) return NONE;
        const auto found = children_.find(static_cast<uint64_t>(node) << 8 | byte);
        return found == children_.end() ? NONE : found->second;
    }
    int insert(std::string_view text) {
        int node = ROOT;
        for (unsigned char byte : text) {
            const auto [place, is_new] = children_.try_emplace(static_cast<uint64_t>(node) << 8 | byte, values_.size());
            if (is_new) values_.push_back(-1);
            node = place->second;
        }
        return node;
    }
    int64_t& value(int node) { return values_[node]; }
    int64_t value(int node) const { return node == NONE ? -1 : values_[node]; } // -1: nothing ends here
    bool empty() const { return values_.size() == 1; }

  private:
    std::unordered_map<uint64_t, int> children_;
    std::vector<int64_t> values_;
};

// The text of a hypothesis up to its last whole word, as far as scores of later words depend on it.
struct History {
    ngram::State state;
    std::string word;
    std::shared_ptr<const History> previous;
};

// Where the text of a prefix stands, and what it has scored.
struct Text {
    std::shared_ptr<const History> history;
    std::string word; // the unfinished one
    bool in_word = false, unknown_scored = false;
    int known = Trie::ROOT; // place of the unfinished word in the list of words
    int hot_place = Trie::ROOT;
    double lm = 0; // sum of log10 p
    double bonus = 0; // of hot words
    int64_t words = 0, unknown = 0;
};

struct Hypothesis {
    std::vector<int32_t> ids;
    std::vector<int64_t> frames, ends; // at which each begins, and the one behind its last, in the best alignment
    std::vector<float> confidences; // the greatest probability of each over its frames
    double score, ctc, lm, bonus; // lm: log10
    int64_t words, unknown;
};

class Decoder {
  public:
    Decoder(std::vector<std::string> labels, const ngram::Model* model, const Options& options);

    void add_word(std::string_view spelling, std::string_view model_word);
    void add_hot_phrase(std::string_view phrase, double weight);

    Text begin() const;
    // The text with a label more; false where the word list does not allow it.
    bool append(Text& text, int label) const;
    // The text as it ends; false where the word list does not allow it to end here.
    bool end(Text& text) const;
    double score(const Text& text) const {
        return ln_alpha_ * text.lm + options.beta * text.words + options.unknown * text.unknown + text.bonus;
    }
    // Credit of an unfinished hot word, so that it is not pruned before its end.
    double outlook(const Text& text) const;
    bool plain() const { return plain_; } // whether the text has no influence on scores

    const std::vector<std::string> labels;
    const Options options;

  private:
    void start_word(Text& text) const;
    bool end_word(Text& text) const;

    struct HotPlace {
        double best = 0; // the greatest weight of what may follow
        int depth = 0, length = 1; // bytes so far, bytes of the shortest phrase that goes on from here
    };
    const ngram::Model* model_;
    double ln_alpha_;
    bool plain_ = true, characters_;
    Trie words_, hot_;
    std::vector<uint32_t> word_numbers_; // in the model, by value of the trie
    std::vector<double> weights_; // by value of hot_
    std::vector<HotPlace> hot_places_; // by node of hot_
    std::unordered_set<std::string> hot_words_;
    int longest_phrase_ = 0; // words
};

struct Node;

// One utterance, frame by frame. Not for several threads at once; several of them may share a Decoder.
class Search {
  public:
    explicit Search(const Decoder& decoder);
    ~Search();
    void feed(const float* log_probs, int64_t frames); // [T, V]
    // The hypotheses as the utterance ends here, the best first, scored exactly; the greedy one is always considered.
    std::vector<Hypothesis> finish(int64_t n_best) const;
    // The best prefix so far, whose last word may be unfinished.
    Hypothesis best() const;

  private:
    bool step(const float* row, double token_threshold, int64_t top_k, double beam_threshold);
    Node* child(Node* node, int label);
    void clean(std::vector<Node*>& nodes);
    bool evaluate(const std::vector<int32_t>& ids, bool at_end, Hypothesis& result) const;
    std::vector<int32_t> greedy() const;

    const Decoder& decoder_;
    const int classes_, blank_;
    std::vector<float> log_probs_;
    int64_t frames_ = 0;
    uint64_t created_ = 0;
    Node* root_;
    std::vector<Node*> active_, touched_, kept_;
    std::vector<int> candidates_;
};

// ln p(ids | log_probs), the sum over all alignments (Graves et al. 2006).
double ctc_score(const float* log_probs, int64_t frames, int classes, const std::vector<int32_t>& ids);
// Fills the frames, ends and confidences of the most probable alignment.
void align(const float* log_probs, int64_t frames, int classes, Hypothesis& hypothesis);

} // namespace beam
