#include "ngram.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <unordered_map>

namespace ngram {
namespace {

struct Weights {
    float probability, backoff; // a probability of NaN: only a part of longer n-grams
};

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

// All models are walked in the same way: from a word to its bigram with the word before it, to the trigram with the
// one before that, and so on. Search has
//   Weights unigram(word, Node&)         which every word has
//   bool extend(n, word, Node&, Weights&)   from the (n-1)-gram of the node to the n-gram that has this word before it
template <class Search>
float walk(const Search& search, int order, const State& context, uint32_t word, State& next) {
    typename Search::Node node;
    Weights weights = search.unigram(word, node);
    float probability = weights.probability;
    int longest = 1;
    State result;
    if (order > 1) {
        result.words[0] = word, result.backoffs[0] = weights.backoff, result.length = 1;
    }
    for (int n = 2; n <= order && n - 2 < context.length; ++n) {
        if (!search.extend(n, context.words[n - 2], node, weights)) break;
        if (!std::isnan(weights.probability)) {
            probability = weights.probability;
            longest = n;
        }
        if (n < order) {
            result.words[n - 1] = context.words[n - 2], result.backoffs[n - 1] = weights.backoff, result.length = n;
        }
    }
    for (int n = longest; n <= context.length; ++n) probability += context.backoffs[n - 1];
    next = result;
    return probability;
}

// ------------------------------------------------------------------------------------------------------------- ARPA

// n-grams of one order by a 64-bit hash of their words. Two n-grams of the same hash would be taken for one: with a
// thousand million of them the chance of a single such pair is 3 %.
class Table {
  public:
    struct Entry {
        uint64_t key;
        Weights weights;
    };

    void reserve(uint64_t n) {
        uint64_t size = 16;
        while (size * 2 < n * 3 + 3) size *= 2;
        std::vector<Entry> old(size, Entry{0, {0, 0}});
        old.swap(entries_);
        for (const Entry& entry : old)
            if (entry.key) *slot(entry.key) = entry;
    }
    const Weights* find(uint64_t key) const {
        const Entry* entry = const_cast<Table*>(this)->slot(key);
        return entry->key ? &entry->weights : nullptr;
    }
    // The weights of a key, and whether it is new.
    std::pair<Weights*, bool> insert(uint64_t key) {
        if (entries_.empty() || (size_ + 1) * 4 > entries_.size() * 3) reserve(entries_.size());
        Entry* entry = slot(key);
        const bool is_new = !entry->key;
        if (is_new) {
            entry->key = key;
            ++size_;
        }
        return {&entry->weights, is_new};
    }

  private:
    Entry* slot(uint64_t key) {
        const uint64_t mask = entries_.size() - 1;
        uint64_t place = (key ^ key >> 29) & mask;
        while (entries_[place].key && entries_[place].key != key) place = (place + 1) & mask;
        return &entries_[place];
    }
    std::vector<Entry> entries_;
    uint64_t size_ = 0;
};

uint64_t combine(uint64_t hash, uint32_t word) {
    hash = (hash ^ (word + 1) * 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull; // constants of splitmix64
    hash ^= hash >> 32;
    return hash ? hash : 1; // 0 marks an empty place
}

class Arpa : public Model {
  public:
    using Node = uint64_t;

    explicit Arpa(Reader reader) : reader_(reader) { read(); }

    uint32_t index(std::string_view word) const override {
        const auto found = numbers_.find(std::string(word));
        return found == numbers_.end() ? UNKNOWN : found->second;
    }
    float score(const State& context, uint32_t word, State& next) const override {
        return walk(*this, order, context, word, next);
    }
    Weights unigram(uint32_t word, Node& node) const {
        node = combine(0, word);
        return unigrams_[word];
    }
    bool extend(int n, uint32_t word, Node& node, Weights& weights) const {
        node = combine(node, word);
        const Weights* found = tables_[n - 2].find(node);
        if (found) weights = *found;
        return found;
    }

  private:
    [[noreturn]] void fail_here(const std::string& message) const {
        fail("line " + std::to_string(line_number_) + ": " + message);
    }

    // The next line without its end; false at the end of the file.
    bool next_line() {
        line_.clear();
        for (;;) {
            const char* end = static_cast<const char*>(std::memchr(&buffer_[at_], '\n', filled_ - at_));
            line_.append(&buffer_[at_], (end ? end : &buffer_[filled_]) - &buffer_[at_]);
            if (end) {
                at_ = end - &buffer_[0] + 1;
                break;
            }
            filled_ = std::max(reader_(&buffer_[0], BUFFER), 0l);
            at_ = 0;
            if (filled_ == 0) {
                if (line_.empty()) return false;
                break;
            }
        }
        ++line_number_;
        if (!line_.empty() && line_.back() == '\r') line_.pop_back();
        return true;
    }
    bool next_filled_line() {
        while (next_line())
            if (line_.find_first_not_of(" \t") != std::string::npos) return true;
        return false;
    }
    void split() {
        fields_.clear();
        const std::string_view line = line_;
        for (size_t begin = line.find_first_not_of(" \t"); begin != line.npos;) {
            const size_t end = std::min(line.find_first_of(" \t", begin), line.size());
            fields_.push_back(line.substr(begin, end - begin));
            begin = line.find_first_not_of(" \t", end);
        }
    }
    float number(std::string_view text) const {
        float value;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc::result_out_of_range) return text[0] == '-' ? -HUGE_VALF : HUGE_VALF;
        if (error != std::errc() || end != text.data() + text.size() || std::isnan(value))
            fail_here("'" + std::string(text) + "' is not a number");
        return value;
    }

    void read() {
        buffer_.resize(BUFFER + 1);
        do {
            if (!next_line()) fail("there is no line \\data\\ in it: neither ARPA text nor a KenLM binary file");
        } while (line_ != "\\data\\");
        std::vector<uint64_t> counts;
        bool more;
        while ((more = next_filled_line()) && line_.compare(0, 6, "ngram ") == 0) {
            unsigned n;
            unsigned long count;
            if (std::sscanf(line_.c_str(), "ngram %u = %lu", &n, &count) != 2 || n != counts.size() + 1)
                fail_here("'ngram " + std::to_string(counts.size() + 1) + "=COUNT' is expected");
            counts.push_back(count);
        }
        order = counts.size();
        if (order < 1 || order > MAX_ORDER)
            fail_here("n-grams of order 1 to " + std::to_string(MAX_ORDER) + " are read, not " + std::to_string(order));
        words.push_back("<unk>");
        unigrams_.push_back({-100, 0}); // what KenLM gives it where the model does not say
        tables_.resize(order - 1);
        for (int n = 1; n <= order; ++n) {
            const std::string title = "\\" + std::to_string(n) + "-grams:";
            if (!more || line_ != title) fail_here("the line " + title + " is expected");
            if (n > 1) tables_[n - 2].reserve(counts[n - 1]);
            uint64_t entries = 0;
            while ((more = next_filled_line()) && line_[0] != '\\') {
                split();
                read_entry(n);
                ++entries;
            }
            if (more && entries != counts[n - 1])
                fail_here(std::to_string(entries) + " " + std::to_string(n) + "-grams, where the head of the file has " +
                          std::to_string(counts[n - 1]));
        }
        if (!more) fail_here("the file ends before \\end\\: it is cut off");
        if (line_ != "\\end\\") fail_here("\\end\\ is expected");
        begin_word = index("<s>"), end_word = index("</s>");
        if (begin_word == UNKNOWN || end_word == UNKNOWN)
            fail("<s> or </s> is not among its unigrams: estimate it from sentences, with these marks");
        description = "ARPA";
        buffer_.clear();
        buffer_.shrink_to_fit();
    }

    void read_entry(int n) {
        const size_t size = fields_.size(), words_here = n;
        if (size != words_here + 1 && (size != words_here + 2 || n == order))
            fail_here("a log-probability, " + std::to_string(n) + " words" + (n < order ? " and a back-off" : "") +
                      " are expected");
        Weights weights{number(fields_[0]), size == words_here + 2 ? number(fields_.back()) : 0};
        if (weights.probability > 0) fail_here("a probability is above 1");
        uint32_t ids[MAX_ORDER];
        if (n == 1) {
            std::string word(fields_[1]);
            if (word == "<unk>" || word == "<UNK>") {
                unigrams_[UNKNOWN] = weights;
            } else {
                if (!numbers_.emplace(word, words.size()).second) fail_here("'" + word + "' comes twice");
                words.push_back(word);
                unigrams_.push_back(weights);
            }
            return;
        }
        for (int i = 0; i < n; ++i) {
            ids[i] = index(fields_[i + 1]);
            if (ids[i] == UNKNOWN && fields_[i + 1] != "<unk>" && fields_[i + 1] != "<UNK>")
                fail_here("'" + std::string(fields_[i + 1]) + "' is not among the unigrams");
        }
        const auto [place, is_new] = tables_[n - 2].insert(hash(ids, ids + n));
        if (!is_new && !std::isnan(place->probability)) fail_here("this n-gram comes twice");
        *place = weights;
        // Pruning may have left out what a walk passes through: the n-gram without its first, and without its last word.
        for (int m = n - 1; m > 1; --m) {
            add_part(ids + n - m, m);
            add_part(ids + n - 1 - m, m);
        }
    }
    void add_part(const uint32_t* ids, int n) {
        const auto [place, is_new] = tables_[n - 2].insert(hash(ids, ids + n));
        if (is_new) *place = {std::numeric_limits<float>::quiet_NaN(), 0};
    }
    static uint64_t hash(const uint32_t* begin, const uint32_t* end) {
        uint64_t key = 0;
        while (end != begin) key = combine(key, *--end);
        return key;
    }

    static constexpr long BUFFER = 1 << 20;
    Reader reader_;
    std::vector<char> buffer_;
    long at_ = 0, filled_ = 0;
    unsigned long line_number_ = 0;
    std::string line_;
    std::vector<std::string_view> fields_;

    std::unordered_map<std::string, uint32_t> numbers_;
    std::vector<Weights> unigrams_;
    std::vector<Table> tables_; // of bigrams, trigrams ...
};

// ------------------------------------------------------------------------------------------- KenLM binary files
//
// Version 5 of the format, as the sources of KenLM 0.3.0 write it (lm/binary_format.cc and those it calls). All numbers
// are little-endian. Header: magic text and sample numbers (88 bytes); order (1 byte and 3 of padding), multiplier of
// the hash tables (float), kind of model, whether words are at the end, version of the kind (20 bytes); the number of
// n-grams of each order (uint64 each); padding to 8 bytes. Then the vocabulary and the n-grams, by kind; then the words,
// each with a zero behind it.

constexpr char MAGIC[] = "mmap lm http://kheafield.com/code format version 5\n\0";
constexpr size_t MAGIC_SIZE = (sizeof(MAGIC) + 7) / 8 * 8;
enum Kind { PROBING = 0, REST_PROBING = 1, TRIE = 2, QUANTIZED_TRIE = 3, ARRAY_TRIE = 4, QUANTIZED_ARRAY_TRIE = 5 };

template <class T> T load(const uint8_t* address) {
    T value;
    std::memcpy(&value, address, sizeof(T));
    return value;
}

uint64_t murmur_hash_64a(std::string_view text) { // Austin Appleby's, seed 0
    constexpr uint64_t m = 0xc6a4a7935bd1e995ull;
    uint64_t h = text.size() * m;
    const auto* data = reinterpret_cast<const uint8_t*>(text.data());
    size_t left = text.size();
    for (; left >= 8; data += 8, left -= 8) {
        uint64_t k = load<uint64_t>(data) * m;
        h = (h ^ (k ^ k >> 47) * m) * m;
    }
    if (left) {
        uint64_t k = 0;
        std::memcpy(&k, data, left);
        h = (h ^ k) * m;
    }
    h = (h ^ h >> 47) * m;
    return h ^ h >> 47;
}

class Mapping {
  public:
    explicit Mapping(const char* path) {
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        struct stat status;
        if (file < 0 || fstat(file, &status) != 0) {
            const int error = errno;
            if (file >= 0) close(file);
            fail(std::strerror(error));
        }
        size = status.st_size;
        void* memory = size ? mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
        const int error = errno;
        close(file);
        if (memory == MAP_FAILED) fail(size ? std::strerror(error) : "it is empty");
        begin = static_cast<const uint8_t*>(memory);
    }
    ~Mapping() {
        if (begin) munmap(const_cast<uint8_t*>(begin), size);
    }
    Mapping(const Mapping&) = delete;
    const uint8_t* begin = nullptr;
    size_t size = 0;
};

struct Header {
    int order, kind;
    float multiplier;
    bool has_words;
    std::vector<uint64_t> counts;
    size_t size;

    explicit Header(const Mapping& file) {
        const uint8_t* at = file.begin;
        const auto need = [&](size_t bytes) {
            if (file.size < bytes) fail("it is cut off in its header");
        };
        need(MAGIC_SIZE + 32 + 20);
        constexpr size_t before_version = sizeof(MAGIC) - 4; // "5\n\0" and the literal's own zero
        if (std::memcmp(at, MAGIC, before_version) != 0)
            fail("KenLM did not finish making this binary file: make it again with KenLM's build_binary");
        if (std::memcmp(at, MAGIC, sizeof(MAGIC)) != 0)
            fail("a KenLM binary file of another version than 5: make it again with a present build_binary, or give the "
                 "ARPA file");
        at += MAGIC_SIZE;
        if (load<float>(at) != 0 || load<float>(at + 4) != 1 || load<float>(at + 8) != -0.5f ||
            load<uint32_t>(at + 12) != 1 || load<uint32_t>(at + 16) != 0xFFFFFFFFu || load<uint64_t>(at + 24) != 1)
            fail("a KenLM binary file of another kind of processor: give the ARPA file, or make it again on this one");
        at += 32;
        order = at[0], multiplier = load<float>(at + 4), kind = load<int32_t>(at + 8), has_words = at[12];
        const auto version = load<uint32_t>(at + 16);
        static const char* names[] = {"probing", "probing with rest costs"};
        if (kind < PROBING || kind > QUANTIZED_ARRAY_TRIE || kind == REST_PROBING)
            fail(std::string("a KenLM binary file of kind ") + std::to_string(kind) +
                 (kind == REST_PROBING ? std::string(" (") + names[1] + ")" : "") +
                 ", which is not read: give the ARPA file, or make one of kind probing or trie with build_binary");
        if (version != (kind == PROBING ? 0u : 1u))
            fail("a KenLM binary file of version " + std::to_string(version) + " of its kind, which is not read: give the "
                 "ARPA file, or make it again with a present build_binary");
        if (order < 2 || order > MAX_ORDER)
            fail("n-grams of order 2 to " + std::to_string(MAX_ORDER) + " are read, not " + std::to_string(order));
        if (!(multiplier >= 1)) fail("its header is damaged (multiplier " + std::to_string(multiplier) + ")");
        at += 20;
        size = MAGIC_SIZE + 32 + 20 + 8 * order;
        need(size);
        for (int n = 0; n < order; ++n) {
            counts.push_back(load<uint64_t>(at + 8 * n));
            if (counts.back() > file.size * 8) fail("it is cut off, or its header is damaged");
        }
        size = (size + 7) / 8 * 8;
    }
};

// What both kinds of binary files have.
class Binary : public Model {
  protected:
    Binary(std::unique_ptr<Mapping> file, const Header& header) : file_(std::move(file)), counts_(header.counts) {
        order = header.order;
        at_ = header.size;
    }
    // The next part of the file, which must be there as a whole.
    const uint8_t* take(uint64_t bytes) {
        if (bytes > file_->size || at_ + bytes > file_->size)
            fail("it is cut off: " + std::to_string(file_->size) + " bytes, and more than " +
                 std::to_string(at_ + std::min<uint64_t>(bytes, 1ull << 60)) + " are expected");
        const uint8_t* part = file_->begin + at_;
        at_ += bytes;
        return part;
    }
    // To be called when all is set up.
    void finish(bool has_words, uint64_t number_of_words) {
        begin_word = index("<s>"), end_word = index("</s>");
        if (begin_word == UNKNOWN || end_word == UNKNOWN)
            fail("<s> or </s> is not among its words: estimate it from sentences, with these marks");
        if (!has_words) return;
        const char* at = reinterpret_cast<const char*>(file_->begin + at_);
        const char* end = reinterpret_cast<const char*>(file_->begin + file_->size);
        while (at < end && words.size() < number_of_words) {
            const char* zero = static_cast<const char*>(std::memchr(at, 0, end - at));
            if (!zero) break;
            words.emplace_back(at, zero);
            at = zero + 1;
        }
        if (words.size() != number_of_words || words[0] != "<unk>")
            fail("the words at its end are not all there: it is cut off, or damaged");
    }

    std::unique_ptr<Mapping> file_;
    std::vector<uint64_t> counts_;
    uint64_t at_;
};

// Linear probing among entries of `width` bytes that begin with their key; a key of 0 is an empty place.
struct Probing {
    const uint8_t* begin = nullptr;
    uint64_t buckets = 0;
    int width = 0;

    static uint64_t size(uint64_t entries, float multiplier) {
        return std::max(entries + 1, static_cast<uint64_t>(multiplier * static_cast<float>(entries)));
    }
    const uint8_t* find(uint64_t key) const { // the value
        uint64_t place = key % buckets;
        for (uint64_t tries = 0; tries < buckets; ++tries) {
            const uint8_t* entry = begin + place * width;
            const auto there = load<uint64_t>(entry);
            if (there == key) return entry + 8;
            if (there == 0) return nullptr;
            if (++place == buckets) place = 0;
        }
        return nullptr;
    }
};

// Hash tables. The sign of a probability is cleared where the n-gram is the end of a longer one.
class ProbingModel : public Binary {
  public:
    using Node = uint64_t;

    ProbingModel(std::unique_ptr<Mapping> file, const Header& header) : Binary(std::move(file), header) {
        const uint8_t* head = take(8);
        const auto version = load<uint32_t>(head), number_of_words = load<uint32_t>(head + 4);
        if (version != 0) fail("its vocabulary is of version " + std::to_string(version) + ": give the ARPA file");
        const auto table = [&](uint64_t entries, int width) {
            const uint64_t buckets = Probing::size(entries, header.multiplier);
            return Probing{take(buckets * width), buckets, width};
        };
        vocabulary_ = table(counts_[0], 12);
        if (number_of_words > counts_[0] + 1) fail("its vocabulary is damaged");
        unigrams_ = take((counts_[0] + 1) * 8);
        number_of_words_ = number_of_words;
        for (int n = 2; n <= order; ++n) tables_.push_back(table(counts_[n - 1], n < order ? 16 : 12));
        description = "KenLM probing";
        finish(header.has_words, number_of_words);
    }
    uint32_t index(std::string_view word) const override {
        const uint8_t* found = vocabulary_.find(murmur_hash_64a(word));
        const uint32_t number = found ? load<uint32_t>(found) : UNKNOWN;
        return number < number_of_words_ ? number : UNKNOWN;
    }
    float score(const State& context, uint32_t word, State& next) const override {
        return walk(*this, order, context, word, next);
    }
    Weights unigram(uint32_t word, Node& node) const {
        node = word;
        return weights(unigrams_ + 8ull * word, true);
    }
    bool extend(int n, uint32_t word, Node& node, Weights& result) const {
        node = node * 8978948897894561157ull ^ (1ull + word) * 17894857484156487943ull;
        const uint8_t* found = tables_[n - 2].find(node);
        if (found) result = weights(found, n < order);
        return found;
    }

  private:
    static Weights weights(const uint8_t* at, bool has_backoff) {
        return {-std::fabs(load<float>(at)), has_backoff ? load<float>(at + 4) : 0};
    }
    Probing vocabulary_;
    const uint8_t* unigrams_;
    uint32_t number_of_words_;
    std::vector<Probing> tables_;
};

int bits_for(uint64_t greatest) {
    int bits = 0;
    for (; greatest; greatest >>= 1) ++bits;
    return bits;
}
uint64_t read_bits(const uint8_t* base, uint64_t offset, int bits) { // at most 57
    return load<uint64_t>(base + (offset >> 3)) >> (offset & 7) & ((1ull << bits) - 1);
}
float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Sorted arrays of bit fields. An entry of order n: the number of its earliest word; probability and back-off, whole or
// as numbers of bins; where its (n+1)-grams begin, which end where those of the entry after it begin. With array
// compression the high bits of that are left out: they are the number of the last of `offsets` that is not above the
// entry's own place.
class TrieModel : public Binary {
  public:
    struct Node {
        uint64_t begin, end;
    };

    TrieModel(std::unique_ptr<Mapping> file, const Header& header) : Binary(std::move(file), header) {
        const bool quantized = header.kind == QUANTIZED_TRIE || header.kind == QUANTIZED_ARRAY_TRIE;
        const bool array = header.kind == ARRAY_TRIE || header.kind == QUANTIZED_ARRAY_TRIE;
        const uint8_t* head = take(8 + 8 * counts_[0]);
        number_of_hashes_ = load<uint64_t>(head);
        hashes_ = head + 8;
        if (number_of_hashes_ > counts_[0]) fail("its vocabulary is damaged");
        levels_.resize(order - 1);
        int probability_bits = 31, backoff_bits = 32;
        if (quantized) {
            const uint8_t* bins = take(8);
            if (bins[0] != 2) fail("its quantization is of version " + std::to_string(bins[0]) + ": give the ARPA file");
            probability_bits = bins[1], backoff_bits = bins[2];
            if (probability_bits < 1 || probability_bits > 25 || backoff_bits < 1 || backoff_bits > 25)
                fail("its quantization is damaged");
            for (int n = 2; n <= order; ++n) {
                levels_[n - 2].probabilities = take(4ull << probability_bits);
                if (n < order) levels_[n - 2].backoffs = take(4ull << backoff_bits);
            }
        }
        unigrams_ = take((counts_[0] + 2) * 16);
        for (int n = 2; n <= order; ++n) {
            Level& level = levels_[n - 2];
            level.entries = counts_[n - 1];
            level.word_bits = bits_for(counts_[0]);
            level.probability_bits = probability_bits;
            level.backoff_bits = n < order ? backoff_bits : 0;
            if (n < order) {
                level.next_bits = bits_for(counts_[n]);
                if (array) set_offsets(level, counts_[n]);
            }
            level.total_bits = level.word_bits + probability_bits + level.backoff_bits + level.next_bits;
            level.base = take(((1 + level.entries) * level.total_bits + 7) / 8 + 8);
        }
        static const char* names[] = {"", "", "trie", "quantized trie", "array trie", "quantized array trie"};
        description = std::string("KenLM ") + names[header.kind];
        finish(header.has_words, number_of_hashes_ + 1);
    }
    uint32_t index(std::string_view word) const override {
        const uint64_t key = murmur_hash_64a(word);
        uint64_t low = 0, high = number_of_hashes_;
        while (low < high) {
            const uint64_t middle = (low + high) / 2;
            if (load<uint64_t>(hashes_ + 8 * middle) < key)
                low = middle + 1;
            else
                high = middle;
        }
        return low < number_of_hashes_ && load<uint64_t>(hashes_ + 8 * low) == key ? low + 1 : UNKNOWN;
    }
    float score(const State& context, uint32_t word, State& next) const override {
        return walk(*this, order, context, word, next);
    }
    Weights unigram(uint32_t word, Node& node) const {
        const uint8_t* at = unigrams_ + 16ull * word;
        node = {load<uint64_t>(at + 8), load<uint64_t>(at + 24)};
        return {load<float>(at), load<float>(at + 4)};
    }
    bool extend(int n, uint32_t word, Node& node, Weights& weights) const {
        const Level& level = levels_[n - 2];
        if (node.end > level.entries) return false; // only in a damaged file
        uint64_t low = node.begin, high = node.end;
        while (low < high) {
            const uint64_t middle = (low + high) / 2;
            if (level.word(middle) < word)
                low = middle + 1;
            else
                high = middle;
        }
        if (low >= node.end || level.word(low) != word) return false;
        weights = level.weights(low);
        if (level.next_bits || level.offsets) node = {level.next(low), level.next(low + 1)};
        return true;
    }

  private:
    struct Level {
        const uint8_t *base = nullptr, *probabilities = nullptr, *backoffs = nullptr, *offsets = nullptr;
        uint64_t entries = 0, number_of_offsets = 0;
        int word_bits = 0, probability_bits = 0, backoff_bits = 0, next_bits = 0, total_bits = 0;

        uint64_t word(uint64_t entry) const { return read_bits(base, entry * total_bits, word_bits); }
        Weights weights(uint64_t entry) const {
            const uint64_t at = entry * total_bits + word_bits;
            if (!probabilities)
                return {as_float(read_bits(base, at, 31) | 0x80000000u),
                        backoff_bits ? as_float(read_bits(base, at + 31, 32)) : 0};
            // Here the back-off comes first.
            return {load<float>(probabilities + 4 * read_bits(base, at + backoff_bits, probability_bits)),
                    backoff_bits ? load<float>(backoffs + 4 * read_bits(base, at, backoff_bits)) : 0};
        }
        uint64_t next(uint64_t entry) const {
            const uint64_t low = read_bits(base, (entry + 1) * total_bits - next_bits, next_bits);
            if (!offsets) return low;
            uint64_t first = 0, last = number_of_offsets; // the number of offsets that are not above the entry
            while (first < last) {
                const uint64_t middle = (first + last) / 2;
                if (load<uint64_t>(offsets + 8 * middle) <= entry)
                    first = middle + 1;
                else
                    last = middle;
            }
            return (first ? first - 1 : 0) << next_bits | low;
        }
    };

    // Array compression of the places of `greatest` longer n-grams: the bits to leave out are those that save the most.
    // Only the first level has its settings written.
    void set_offsets(Level& level, uint64_t greatest) {
        const uint8_t* head = file_->begin + at_;
        if (at_ + 2 > file_->size) fail("it is cut off");
        if (&level == &levels_[0]) {
            if (head[0] != 0) fail("its array compression is of version " + std::to_string(head[0]) + ": give the ARPA file");
            most_chopped_ = head[1];
        }
        const int required = bits_for(greatest);
        int chopped = 0;
        int64_t best = std::numeric_limits<int64_t>::max();
        for (int chop = 0; chop <= std::min(required, most_chopped_); ++chop) {
            const int64_t cost = static_cast<int64_t>(greatest >> (required - chop)) * 64 -
                                 static_cast<int64_t>(level.entries + 1) * chop;
            if (cost < best) best = cost, chopped = chop;
        }
        level.next_bits = required - chopped;
        level.number_of_offsets = (greatest >> level.next_bits) + 1;
        const uint64_t aligned = (at_ + 7) / 8 * 8 - at_; // the mapping begins at a page
        const uint8_t* part = take(8 * (1 + level.number_of_offsets) + 7);
        level.offsets = part + aligned + 8;
    }

    const uint8_t *hashes_, *unigrams_;
    uint64_t number_of_hashes_;
    int most_chopped_ = 0;
    std::vector<Level> levels_;
};

} // namespace

std::unique_ptr<Model> read_arpa(Reader reader) { return std::make_unique<Arpa>(reader); }

std::unique_ptr<Model> open_kenlm(const char* path) {
    auto file = std::make_unique<Mapping>(path);
    const Header header(*file);
    if (header.kind == PROBING) return std::make_unique<ProbingModel>(std::move(file), header);
    return std::make_unique<TrieModel>(std::move(file), header);
}

} // namespace ngram
