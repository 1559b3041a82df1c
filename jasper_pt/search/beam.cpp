#include "beam.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace beam {
namespace {

constexpr double MINUS_INFINITY = -std::numeric_limits<double>::infinity();
const double LN_10 = std::log(10.0);
constexpr int64_t RESCORED = 4; // so many of the best prefixes at least are scored exactly at the end

double log_add(double a, double b) {
    if (a < b) std::swap(a, b);
    if (b == MINUS_INFINITY || a - b > 40) return a; // exp(-40) is below the precision of a
    return a + std::log1p(std::exp(b - a));
}

} // namespace

// ------------------------------------------------------------------------------------------------------------- texts

Decoder::Decoder(std::vector<std::string> the_labels, const ngram::Model* model, const Options& the_options)
    : labels(std::move(the_labels)), options(the_options), model_(model), ln_alpha_(the_options.alpha * LN_10) {
    characters_ = true; // labels without blanks: each is a word of its own
    for (const std::string& label : labels) characters_ &= label.find(' ') == label.npos;
    plain_ = !model && options.beta == 0 && !options.closed;
    hot_places_.resize(1);
}

void Decoder::add_word(std::string_view spelling, std::string_view model_word) {
    int64_t& value = words_.value(words_.insert(spelling));
    if (value < 0) {
        value = word_numbers_.size();
        word_numbers_.push_back(model_ ? model_->index(model_word) : ngram::UNKNOWN);
    }
}

void Decoder::add_hot_phrase(std::string_view phrase, double weight) {
    plain_ = false;
    int64_t& value = hot_.value(hot_.insert(phrase));
    if (value < 0) {
        value = weights_.size();
        weights_.push_back(0);
    }
    weights_[value] = weight;
    for (size_t begin = 0; begin <= phrase.size();) {
        const size_t end = std::min(phrase.find(' ', begin), phrase.size());
        hot_words_.emplace(phrase.substr(begin, end - begin));
        begin = end + 1;
    }
    int words = characters_ ? 0 : 1;
    int node = Trie::ROOT, depth = 0;
    for (unsigned char byte : phrase) {
        words += characters_ ? (byte & 0xC0) != 0x80 : byte == ' '; // at most so many labels, or so many words
        node = hot_.step(node, byte);
        if (static_cast<size_t>(node) >= hot_places_.size()) hot_places_.resize(node + 1);
        HotPlace& place = hot_places_[node];
        const bool is_new = place.depth == 0;
        place.depth = ++depth;
        place.best = is_new ? weight : std::max(place.best, weight);
        const int length = phrase.size();
        place.length = is_new ? length : std::min(place.length, length);
    }
    longest_phrase_ = std::max(longest_phrase_, words);
}

Text Decoder::begin() const {
    Text text;
    if (!plain_) {
        auto history = std::make_shared<History>();
        if (model_) history->state = model_->sentence_begin();
        text.history = std::move(history);
    }
    return text;
}

bool Decoder::append(Text& text, int label) const {
    for (unsigned char byte : labels[label]) {
        if (byte == ' ') {
            if (text.in_word && !end_word(text)) return false;
            continue;
        }
        if (!text.in_word) start_word(text);
        text.word.push_back(byte);
        text.hot_place = hot_.step(text.hot_place, byte);
        if (text.known != Trie::NONE) {
            text.known = words_.step(text.known, byte);
            if (text.known == Trie::NONE) {
                if (options.closed) return false;
                if (model_ && !words_.empty()) { // it cannot become a word of the model any more
                    ++text.unknown;
                    text.unknown_scored = true;
                }
            }
        }
    }
    return !characters_ || end_word(text);
}

void Decoder::start_word(Text& text) const {
    text.in_word = true;
    text.unknown_scored = false;
    ++text.words;
    text.known = words_.empty() && !options.closed ? Trie::NONE : Trie::ROOT;
    if (text.hot_place != Trie::ROOT) // inside a phrase of several words, after one of them
        text.hot_place = characters_ ? text.hot_place : hot_.step(text.hot_place, ' ');
    if (text.hot_place == Trie::NONE) text.hot_place = Trie::ROOT;
}

bool Decoder::end_word(Text& text) const {
    const int64_t value = words_.value(text.known);
    if (options.closed && value < 0) return false;
    auto history = std::make_shared<History>();
    if (model_) {
        uint32_t number = value >= 0 ? word_numbers_[value] : ngram::UNKNOWN;
        if (words_.empty()) number = model_->index(text.word);
        text.lm += model_->score(text.history->state, number, history->state);
        if (number == ngram::UNKNOWN && !text.unknown_scored && !hot_words_.count(text.word)) ++text.unknown;
    }
    history->word = std::move(text.word);
    if (longest_phrase_ > 1) history->previous = text.history;
    if (longest_phrase_ > 0) {
        std::string phrase;
        const History* last = history.get();
        for (int words = 1; words <= longest_phrase_ && last && !last->word.empty(); ++words) {
            phrase.insert(0, words == 1 || characters_ ? last->word : last->word + ' ');
            int node = Trie::ROOT;
            for (unsigned char byte : phrase) node = hot_.step(node, byte);
            if (const int64_t found = hot_.value(node); found >= 0) text.bonus += weights_[found];
            last = last->previous.get();
        }
    }
    text.history = std::move(history);
    text.word.clear();
    text.in_word = false;
    return true;
}

bool Decoder::end(Text& text) const {
    if (text.in_word && !end_word(text)) return false;
    if (model_ && options.sentence_ends) {
        ngram::State ignored;
        text.lm += model_->score(text.history->state, model_->end_word, ignored);
    }
    return true;
}

double Decoder::outlook(const Text& text) const {
    if (text.hot_place == Trie::ROOT || text.hot_place == Trie::NONE) return 0;
    const HotPlace& place = hot_places_[text.hot_place];
    if (hot_.value(text.hot_place) >= 0 && !text.in_word) return 0; // it has its bonus
    return place.best * place.depth / std::max(place.length, place.depth);
}

// ------------------------------------------------------------------------------------------------------------ search

struct Node {
    Node* parent = nullptr;
    int label = -1;
    uint64_t id = 0; // in the order of making: that of a child is above its parent's
    double blank = MINUS_INFINITY, label_end = MINUS_INFINITY; // ln p of the alignments that end in a blank, in the label
    double next_blank = MINUS_INFINITY, next_label_end = MINUS_INFINITY;
    double text_score = 0; // with the outlook
    double total = MINUS_INFINITY, score = MINUS_INFINITY;
    bool active = false, touched = false, listed = false;
    std::vector<Node*> children;
    std::vector<int> refused; // labels that the word list does not allow here
    Text text;
};

Search::Search(const Decoder& decoder)
    : decoder_(decoder), classes_(decoder.labels.size() + 1), blank_(decoder.labels.size()), root_(new Node) {
    root_->text = decoder.begin();
    root_->blank = root_->total = root_->score = 0;
    root_->active = true;
    active_.push_back(root_);
}

Search::~Search() {
    std::vector<Node*> left{root_};
    while (!left.empty()) {
        Node* node = left.back();
        left.pop_back();
        left.insert(left.end(), node->children.begin(), node->children.end());
        delete node;
    }
}

void Search::feed(const float* log_probs, int64_t frames) {
    for (int64_t i = 0; i < frames * classes_; ++i)
        if (std::isnan(log_probs[i]) || log_probs[i] > 1e-3f)
            throw std::runtime_error("these are no log-probabilities: frame " + std::to_string(frames_ + i / classes_) +
                                     " has " + std::to_string(log_probs[i]));
    for (int64_t t = 0; t < frames; ++t, ++frames_) {
        const float* row = log_probs + t * classes_;
        if (!step(row, decoder_.options.token_threshold, decoder_.options.top_k, decoder_.options.beam_threshold) &&
            !step(row, MINUS_INFINITY, classes_, INFINITY))
            throw std::runtime_error("frame " + std::to_string(frames_) + " allows no hypothesis to go on: its "
                                     "log-probabilities are -inf, but for labels that the word list excludes");
        log_probs_.insert(log_probs_.end(), row, row + classes_);
    }
}

// The prefix with a label more; nullptr where the word list refuses it.
Node* Search::child(Node* node, int label) {
    for (Node* there : node->children)
        if (there->label == label) return there;
    if (std::find(node->refused.begin(), node->refused.end(), label) != node->refused.end()) return nullptr;
    auto made = std::make_unique<Node>();
    if (!decoder_.plain()) {
        made->text = node->text;
        if (!decoder_.append(made->text, label)) {
            node->refused.push_back(label);
            return nullptr;
        }
        made->text_score = decoder_.score(made->text) + decoder_.outlook(made->text);
    }
    made->parent = node;
    made->label = label;
    made->id = ++created_;
    node->children.push_back(made.get());
    return made.release();
}

// Deletes those of the nodes that are not in the beam and have no children, and what of their ancestors that leaves.
void Search::clean(std::vector<Node*>& nodes) {
    std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->id > b->id; });
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    for (Node* node : nodes) node->listed = true;
    for (Node* node : nodes) {
        node->listed = false;
        while (node != root_ && !node->active && !node->listed && node->children.empty()) {
            Node* parent = node->parent;
            auto& siblings = parent->children;
            *std::find(siblings.begin(), siblings.end(), node) = siblings.back();
            siblings.pop_back();
            delete node;
            node = parent;
        }
    }
}

// One frame. False, and nothing has changed, where no hypothesis goes on.
bool Search::step(const float* row, double token_threshold, int64_t top_k, double beam_threshold) {
    int best = 0;
    for (int c = 1; c < classes_; ++c)
        if (row[c] > row[best]) best = c;
    candidates_.clear();
    for (int c = 0; c < classes_; ++c)
        if (row[c] > MINUS_INFINITY && (c == best || row[c] >= token_threshold)) candidates_.push_back(c);
    if (static_cast<int64_t>(candidates_.size()) > top_k) {
        std::sort(candidates_.begin(), candidates_.end(),
                  [row](int a, int b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
        candidates_.resize(top_k);
        std::sort(candidates_.begin(), candidates_.end());
    }

    // Every prefix in the beam with every label.
    double best_score = MINUS_INFINITY;
    for (const Node* node : active_) best_score = std::max(best_score, node->score);
    const double least = best_score + row[best] - beam_threshold;
    touched_.clear();
    const auto touch = [this](Node* node) {
        if (node->touched) return;
        node->touched = true;
        touched_.push_back(node);
    };
    for (Node* node : active_) {
        for (int c : candidates_) {
            const double p = row[c];
            if (c == blank_) {
                node->next_blank = log_add(node->next_blank, node->total + p);
                touch(node);
                continue;
            }
            double extended = node->total;
            if (c == node->label) { // another frame of the same label; a new one only after a blank
                node->next_label_end = log_add(node->next_label_end, node->label_end + p);
                touch(node);
                extended = node->blank;
            }
            if (extended == MINUS_INFINITY || !(extended + node->text_score + p >= least)) continue;
            Node* longer = child(node, c);
            if (!longer) continue;
            longer->next_label_end = log_add(longer->next_label_end, extended + p);
            touch(longer);
        }
    }

    // The best of the results are the next beam.
    double greatest = MINUS_INFINITY;
    kept_.clear();
    for (Node* node : touched_) {
        const double total = log_add(node->next_blank, node->next_label_end);
        if (total == MINUS_INFINITY) continue;
        greatest = std::max(greatest, total + node->text_score);
        kept_.push_back(node);
    }
    const bool alive = !kept_.empty();
    if (alive) {
        for (Node* node : active_) node->active = false;
        for (Node* node : kept_) {
            node->total = log_add(node->next_blank, node->next_label_end);
            node->score = node->total + node->text_score;
        }
        kept_.erase(std::remove_if(kept_.begin(), kept_.end(),
                                   [&](const Node* node) { return node->score < greatest - beam_threshold; }),
                    kept_.end());
        if (static_cast<int64_t>(kept_.size()) > decoder_.options.width) {
            std::nth_element(kept_.begin(), kept_.begin() + decoder_.options.width, kept_.end(),
                             [](const Node* a, const Node* b) {
                                 return a->score != b->score ? a->score > b->score : a->id < b->id;
                             });
            kept_.resize(decoder_.options.width);
        }
        for (Node* node : kept_) {
            node->active = true;
            node->blank = node->next_blank;
            node->label_end = node->next_label_end;
        }
    }
    for (Node* node : touched_) {
        node->next_blank = node->next_label_end = MINUS_INFINITY;
        node->touched = false;
    }
    if (alive) {
        active_.swap(kept_);
        touched_.insert(touched_.end(), kept_.begin(), kept_.end());
    }
    clean(touched_);
    return alive;
}

namespace {

std::vector<int32_t> labels_of(const Node* node) {
    std::vector<int32_t> ids;
    for (; node->parent; node = node->parent) ids.push_back(node->label);
    std::reverse(ids.begin(), ids.end());
    return ids;
}

} // namespace

// Scores a transcript as it is; false where the word list does not allow it.
bool Search::evaluate(const std::vector<int32_t>& ids, bool at_end, Hypothesis& result) const {
    Text text = decoder_.begin();
    for (int32_t id : ids)
        if (!decoder_.append(text, id)) return false;
    if (at_end && !decoder_.end(text)) return false;
    result.ids = ids;
    result.ctc = ctc_score(log_probs_.data(), frames_, classes_, ids);
    result.lm = text.lm;
    result.bonus = text.bonus;
    result.words = text.words;
    result.unknown = text.unknown;
    result.score = result.ctc + decoder_.score(text);
    return true;
}

std::vector<int32_t> Search::greedy() const {
    std::vector<int32_t> ids;
    int before = blank_;
    for (int64_t t = 0; t < frames_; ++t) {
        const float* row = &log_probs_[t * classes_];
        const int best = std::max_element(row, row + classes_) - row;
        if (best != blank_ && best != before) ids.push_back(best);
        before = best;
    }
    return ids;
}

std::vector<Hypothesis> Search::finish(int64_t n_best) const {
    std::vector<std::pair<double, const Node*>> ends;
    for (const Node* node : active_) {
        Text text = node->text;
        if (decoder_.end(text)) ends.emplace_back(node->total + decoder_.score(text), node);
    }
    const auto better = [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second->id < b.second->id;
    };
    std::sort(ends.begin(), ends.end(), better);
    const int64_t rescored = std::max(n_best, RESCORED);
    if (static_cast<int64_t>(ends.size()) > rescored) ends.resize(rescored);

    std::vector<std::vector<int32_t>> candidates;
    for (const auto& [score, node] : ends) candidates.push_back(labels_of(node));
    if (candidates.empty()) { // the word list does not allow any of them to end here: without the unfinished word
        const Node* best = *std::max_element(active_.begin(), active_.end(), [](const Node* a, const Node* b) {
            return a->score != b->score ? a->score < b->score : a->id > b->id;
        });
        std::vector<int32_t> ids = labels_of(best);
        Hypothesis ignored;
        while (!ids.empty() && !evaluate(ids, true, ignored)) ids.pop_back();
        candidates.push_back(ids);
    }
    std::vector<int32_t> plain = greedy();
    if (std::find(candidates.begin(), candidates.end(), plain) == candidates.end()) candidates.push_back(std::move(plain));

    std::vector<Hypothesis> result;
    for (const auto& ids : candidates) {
        Hypothesis hypothesis;
        if (evaluate(ids, true, hypothesis)) result.push_back(std::move(hypothesis));
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    if (static_cast<int64_t>(result.size()) > n_best) result.resize(n_best);
    for (Hypothesis& hypothesis : result) align(log_probs_.data(), frames_, classes_, hypothesis);
    return result;
}

Hypothesis Search::best() const {
    const Node* node = *std::max_element(active_.begin(), active_.end(), [](const Node* a, const Node* b) {
        return a->score != b->score ? a->score < b->score : a->id > b->id;
    });
    Hypothesis result;
    evaluate(labels_of(node), false, result);
    align(log_probs_.data(), frames_, classes_, result);
    return result;
}

// -------------------------------------------------------------------------------------------- alignments of a transcript

namespace {

struct Trellis { // how each state was reached, by frame: from itself (0), the one before (1), or the one before that (2)
    std::vector<int64_t> lows;
    std::vector<std::vector<uint8_t>> steps;
};

// The forward pass over the states blank, label 1, blank, label 2 ... blank: sums of alignments, or their maxima with
// the way to them. States that are `band` below the best of a frame are left out.
template <bool MAXIMA>
double forward(const float* log_probs, int64_t frames, int classes, const std::vector<int32_t>& ids, double band,
               Trellis* trellis, int64_t* last_state) {
    const int64_t states = 2 * ids.size() + 1;
    const int blank = classes - 1;
    if (frames == 0) return ids.empty() ? 0 : MINUS_INFINITY;
    std::vector<double> p(states, MINUS_INFINITY);
    int64_t low = 0, high = 0; // states [low, high) have been reached
    for (int64_t t = 0; t < frames; ++t) {
        const float* row = log_probs + t * classes;
        const int64_t new_high = std::min(high + 2, states);
        // From a lower state the end cannot be reached any more.
        const int64_t new_low = std::max(low, std::max<int64_t>(0, states - 2 - 2 * (frames - 1 - t)));
        if (new_low >= new_high) return MINUS_INFINITY;
        std::vector<uint8_t> steps(MAXIMA ? new_high - new_low : 0);
        double greatest = MINUS_INFINITY;
        for (int64_t s = new_high - 1; s >= new_low; --s) {
            const int label = s % 2 ? ids[s / 2] : blank;
            double value;
            uint8_t step = 0;
            if (t == 0) {
                value = 0;
            } else {
                value = p[s];
                const auto consider = [&](int64_t from, uint8_t how) {
                    if (from < low) return;
                    if constexpr (MAXIMA) {
                        if (p[from] > value) value = p[from], step = how;
                    } else {
                        value = log_add(value, p[from]);
                    }
                };
                consider(s - 1, 1);
                if (s % 2 && s > 1 && ids[s / 2] != ids[s / 2 - 1]) consider(s - 2, 2);
            }
            p[s] = value + row[label];
            if (MAXIMA) steps[s - new_low] = step;
            greatest = std::max(greatest, p[s]);
        }
        if (MAXIMA) {
            trellis->lows.push_back(new_low);
            trellis->steps.push_back(std::move(steps));
        }
        low = new_low, high = new_high;
        if (band < INFINITY) {
            while (low < high && p[low] < greatest - band) p[low++] = MINUS_INFINITY;
            while (high > low && p[high - 1] < greatest - band) p[--high] = MINUS_INFINITY;
        }
    }
    const double in_blank = p[states - 1], in_label = states > 1 ? p[states - 2] : MINUS_INFINITY;
    if (last_state) *last_state = in_label > in_blank ? states - 2 : states - 1;
    return MAXIMA ? std::max(in_blank, in_label) : log_add(in_blank, in_label);
}

// Whole trellises as long as they are small. Of hour-long texts a band, which is widened until the end is within it.
constexpr int64_t WHOLE = 1 << 25; // states times frames
bool is_small(int64_t frames, const std::vector<int32_t>& ids) {
    return frames * (2 * static_cast<int64_t>(ids.size()) + 1) <= WHOLE;
}
double first_band(int64_t frames, const std::vector<int32_t>& ids) { return is_small(frames, ids) ? INFINITY : 200; }

} // namespace

// The same in probabilities, scaled at each frame so that the greatest is 1, which is much faster. What becomes too small
// for a double is lost: it is below e^-700 then, and what follows a state has a probability of at most 1. So a result
// above e^-600 lacks nothing that a double would show; of a smaller one this returns -inf.
static double scaled_forward(const float* log_probs, int64_t frames, int classes, const std::vector<int32_t>& ids) {
    const int64_t states = 2 * ids.size() + 1;
    const int blank = classes - 1;
    if (frames == 0) return ids.empty() ? 0 : MINUS_INFINITY;
    // Two zeros in front of the states; and whether the blank before a state may be left out, as a factor.
    std::vector<double> p(states + 2, 0), skips(states, 0), row(classes);
    for (size_t i = 1; i < ids.size(); ++i) skips[2 * i + 1] = ids[i] != ids[i - 1];
    double scale = 0;
    for (int64_t t = 0; t < frames; ++t) {
        for (int c = 0; c < classes; ++c) row[c] = std::exp(static_cast<double>(log_probs[t * classes + c]));
        double greatest = 0;
        for (int64_t s = std::min(states, 2 * t + 2) - 1; s >= 0; --s) {
            double* here = &p[s + 2];
            const double before = t ? here[0] + here[-1] + skips[s] * here[-2] : 1;
            *here = before * row[s % 2 ? ids[s / 2] : blank];
            greatest = std::max(greatest, *here);
        }
        if (greatest == 0) return MINUS_INFINITY;
        scale += std::log(greatest);
        for (double& value : p) value /= greatest;
    }
    const double result = std::log(p[states + 1] + (states > 1 ? p[states] : 0)) + scale;
    return result > -600 ? result : MINUS_INFINITY;
}

double ctc_score(const float* log_probs, int64_t frames, int classes, const std::vector<int32_t>& ids) {
    if (is_small(frames, ids)) {
        const double fast = scaled_forward(log_probs, frames, classes, ids);
        if (fast > MINUS_INFINITY) return fast;
    }
    for (double band = first_band(frames, ids);; band = band < 1e5 ? band * 4 : INFINITY) {
        const double result = forward<false>(log_probs, frames, classes, ids, band, nullptr, nullptr);
        if (result > MINUS_INFINITY || band == INFINITY) return result;
    }
}

void align(const float* log_probs, int64_t frames, int classes, Hypothesis& hypothesis) {
    const std::vector<int32_t>& ids = hypothesis.ids;
    Trellis trellis;
    int64_t state = 2 * ids.size();
    for (double band = first_band(frames, ids);; band = band < 1e5 ? band * 4 : INFINITY) {
        trellis = Trellis{};
        if (forward<true>(log_probs, frames, classes, ids, band, &trellis, &state) > MINUS_INFINITY || band == INFINITY)
            break;
    }
    hypothesis.frames.assign(ids.size(), 0);
    hypothesis.ends.assign(ids.size(), 0);
    hypothesis.confidences.assign(ids.size(), 0);
    for (int64_t t = static_cast<int64_t>(trellis.lows.size()) - 1; t >= 0; --t) {
        if (state % 2) {
            hypothesis.frames[state / 2] = t;
            int64_t& end = hypothesis.ends[state / 2];
            end = std::max(end, t + 1);
            float& confidence = hypothesis.confidences[state / 2];
            confidence = std::max(confidence, std::exp(log_probs[t * classes + ids[state / 2]]));
        }
        const int64_t place = state - trellis.lows[t];
        if (place < 0 || place >= static_cast<int64_t>(trellis.steps[t].size())) break; // only where nothing is possible
        state -= trellis.steps[t][place];
    }
}

} // namespace beam
