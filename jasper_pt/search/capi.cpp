// The C interface that jasper_pt/search/native.py calls. Errors are texts in a buffer of ERROR_SIZE bytes of the caller.
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "beam.hpp"
#include "ngram.hpp"

namespace {

constexpr size_t ERROR_SIZE = 1024;

template <class Function> auto guarded(char* error, Function function) -> decltype(function()) {
    try {
        error[0] = 0;
        return function();
    } catch (const std::exception& exception) {
        std::strncpy(error, exception.what(), ERROR_SIZE - 1);
        error[ERROR_SIZE - 1] = 0;
        return {};
    }
}

// Texts with a zero behind each.
std::vector<std::string> split(const char* texts, int64_t size) {
    std::vector<std::string> result;
    for (const char* end = texts + size; texts < end; texts += result.back().size() + 1) result.emplace_back(texts);
    return result;
}

// Hypotheses of several utterances, as flat arrays.
struct Results {
    std::vector<int64_t> hypotheses; // of each utterance
    std::vector<int64_t> tokens; // of each hypothesis
    std::vector<double> scores; // of each hypothesis: score, ctc, lm, bonus, words, unknown
    std::vector<int64_t> ids, frames, ends; // of each token
    std::vector<double> confidences;

    void add(const std::vector<beam::Hypothesis>& utterance) {
        hypotheses.push_back(utterance.size());
        for (const beam::Hypothesis& h : utterance) {
            tokens.push_back(h.ids.size());
            for (double value : {h.score, h.ctc, h.lm, h.bonus, double(h.words), double(h.unknown)}) scores.push_back(value);
            ids.insert(ids.end(), h.ids.begin(), h.ids.end());
            frames.insert(frames.end(), h.frames.begin(), h.frames.end());
            ends.insert(ends.end(), h.ends.begin(), h.ends.end());
            confidences.insert(confidences.end(), h.confidences.begin(), h.confidences.end());
        }
    }
};

} // namespace

extern "C" {

ngram::Model* ngram_read_arpa(ngram::Reader reader, char* error) {
    return guarded(error, [&] { return ngram::read_arpa(reader).release(); });
}
ngram::Model* ngram_open_kenlm(const char* path, char* error) {
    return guarded(error, [&] { return ngram::open_kenlm(path).release(); });
}
void ngram_free(ngram::Model* model) { delete model; }
int64_t ngram_order(const ngram::Model* model) { return model->order; }
const char* ngram_description(const ngram::Model* model) { return model->description.c_str(); }
int64_t ngram_index(const ngram::Model* model, const char* word, int64_t size) {
    return model->index(std::string_view(word, size));
}
int64_t ngram_number_of_words(const ngram::Model* model) { return model->words.size(); }
const char* ngram_word(const ngram::Model* model, int64_t index) { return model->words[index].c_str(); }
// log10 p of each word, in its context, and of </s> behind them if at_end.
void ngram_score(const ngram::Model* model, const char* texts, int64_t size, int64_t at_begin, int64_t at_end,
                 double* scores) {
    ngram::State state = at_begin ? model->sentence_begin() : ngram::State{};
    for (const std::string& word : split(texts, size)) {
        *scores++ = model->score(state, model->index(word), state);
    }
    if (at_end) *scores = model->score(state, model->end_word, state);
}

// words: pairs of a spelling and the model's word for it.
beam::Decoder* beam_new(const char* labels, int64_t labels_size, const ngram::Model* model, const beam::Options* options,
                        const char* words, int64_t words_size, const char* phrases, int64_t phrases_size,
                        const double* weights, char* error) {
    return guarded(error, [&] {
        auto decoder = std::make_unique<beam::Decoder>(split(labels, labels_size), model, *options);
        for (const char *at = words, *end = words + words_size; at < end;) {
            const std::string_view spelling(at), word(at + spelling.size() + 1);
            decoder->add_word(spelling, word);
            at = word.data() + word.size() + 1;
        }
        for (const std::string& phrase : split(phrases, phrases_size)) decoder->add_hot_phrase(phrase, *weights++);
        return decoder.release();
    });
}
void beam_free(beam::Decoder* decoder) { delete decoder; }

// log_probs [B,T,V]; utterances are dealt to threads.
Results* beam_decode(const beam::Decoder* decoder, const float* log_probs, int64_t batch, int64_t frames,
                     const int64_t* lengths, int64_t n_best, int64_t threads, char* error) {
    return guarded(error, [&]() -> Results* {
        const int64_t classes = decoder->labels.size() + 1;
        std::vector<std::vector<beam::Hypothesis>> found(batch);
        std::atomic<int64_t> next{0};
        std::exception_ptr failure;
        std::mutex mutex;
        const auto work = [&] {
            for (int64_t b; (b = next++) < batch;) {
                try {
                    beam::Search search(*decoder);
                    search.feed(log_probs + b * frames * classes, lengths[b]);
                    found[b] = search.finish(n_best);
                } catch (...) {
                    const std::lock_guard<std::mutex> lock(mutex);
                    failure = std::current_exception();
                    next = batch;
                }
            }
        };
        std::vector<std::thread> workers;
        for (int64_t i = 1; i < std::min(threads, batch); ++i) workers.emplace_back(work);
        work();
        for (std::thread& worker : workers) worker.join();
        if (failure) std::rethrow_exception(failure);
        auto results = std::make_unique<Results>();
        for (const auto& utterance : found) results->add(utterance);
        return results.release();
    });
}

beam::Search* beam_start(const beam::Decoder* decoder) { return new beam::Search(*decoder); }
int64_t beam_feed(beam::Search* search, const float* log_probs, int64_t frames, char* error) {
    return guarded(error, [&]() -> int64_t {
        search->feed(log_probs, frames);
        return 1;
    });
}
Results* beam_best(const beam::Search* search, char* error) {
    return guarded(error, [&]() -> Results* {
        auto results = std::make_unique<Results>();
        results->add({search->best()});
        return results.release();
    });
}
Results* beam_finish(const beam::Search* search, int64_t n_best, char* error) {
    return guarded(error, [&]() -> Results* {
        auto results = std::make_unique<Results>();
        results->add(search->finish(n_best));
        return results.release();
    });
}
void beam_stop(beam::Search* search) { delete search; }

void results_free(Results* results) { delete results; }
void results_sizes(const Results* r, int64_t* sizes) {
    sizes[0] = r->hypotheses.size(), sizes[1] = r->tokens.size(), sizes[2] = r->ids.size();
}
const int64_t* results_hypotheses(const Results* r) { return r->hypotheses.data(); }
const int64_t* results_tokens(const Results* r) { return r->tokens.data(); }
const double* results_scores(const Results* r) { return r->scores.data(); }
const int64_t* results_ids(const Results* r) { return r->ids.data(); }
const int64_t* results_frames(const Results* r) { return r->frames.data(); }
const int64_t* results_ends(const Results* r) { return r->ends.data(); }
const double* results_confidences(const Results* r) { return r->confidences.data(); }
}
