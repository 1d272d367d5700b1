// SPDX-License-Identifier: BSL-1.0
// mpirun -np N test_mpi texts | kill CALL HOW FILE | go_on FILE | part | answer
//
//   texts           every rank's text is that of one rank where outputs are divided, and all agree where sums are
//   kill CALL HOW FILE   rank N - 1 dies (die) or sleeps (late) before its call number CALL; every other rank must
//                   name it in time, another decoder must go on from the last committed token, and rank 0 saves the
//                   text in FILE
//   go_on FILE      these ranks, which are others, go on with it: the whole text must be the undisturbed one
//   part            rank 1 writes with another seed: an error on every rank
//   answer          rank 1 answers when rank 0 has given it up and destroyed its communicator: no memory changes by it
#include "espalier/model/mpi/mpi_communicator.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/parallel/agreement.hpp"
#include "espalier/model/parallel/parallel_backend.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive.hpp"

namespace {

using namespace espalier;

const std::string folder = ESPALIER_TEST_MODELS;
const std::vector<token_id> prompt{1, 300, 500, 700};

// Before one of its calls this process dies, or sleeps until the others must have given up.
class failing_communicator {
 public:
  failing_communicator(mpi_communicator& ranks, int call, bool dies) : ranks_(&ranks), call_(call), dies_(dies) {}

  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }
  rank_traffic traffic() const { return ranks_->traffic(); }
  void all_gather(std::byte* data, std::span<const std::size_t> counts) {
    before();
    ranks_->all_gather(data, counts);
  }
  void all_to_all(const std::byte* from, std::span<const std::size_t> to_each, std::byte* to,
                  std::span<const std::size_t> from_each) {
    before();
    ranks_->all_to_all(from, to_each, to, from_each);
  }

 private:
  void before() {
    if (rank() != size() - 1 || call_-- != 0) return;
    if (dies_) std::raise(SIGKILL);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    std::_Exit(0);
  }

  mpi_communicator* ranks_;
  int call_;
  bool dies_;
};

int fail(int rank, const std::string& what) {
  std::printf("rank %d: FAILED: %s\n", rank, what.c_str());
  return 1;
}

struct small_draft {
  llama_backend model = llama_backend::load(folder + "/draft", {.threads = 1, .max_rows = 32});
  recurrent_kv kv = host_cache(model.config(), 1, 256);
};

template <class BackendT, class KVStoreT, class ObserverT>
std::vector<token_id> write(BackendT& target, KVStoreT& kv, ObserverT&& observer, int n = 24) {
  small_draft draft;
  auto drafter = autoregressive(draft.model, draft.kv);
  auto decode = make_decoder(drafter, chain({.length = 4}), greedy(), kv, target);
  const auto text = decode.generate(prompt, {.max_tokens = n}, observer);
  return {text.begin(), text.end()};
}

std::vector<token_id> text_of_one() {
  auto one = llama_backend::load(folder + "/target", {.threads = 1, .max_rows = 32});
  auto kv = host_cache(one.config(), 1, 256);
  return write(one, kv, [](const round_record&) {});
}

int texts(mpi_communicator& ranks) {
  const auto expected = text_of_one();
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    for (const rank_logits logits : {rank_logits::rows, rank_logits::maxima}) {
      parallel_backend<mpi_communicator> target = parallel_backend<mpi_communicator>::load(
          folder + "/target", ranks, {.max_rows = 32, .split = split, .logits = logits});
      contiguous_kv kv(target.layers(), target.cache_row(), 1, 256);
      agreement agree(ranks);
      const auto text = write(target, kv, agree);
      if (split == rank_split::outputs && text != expected)
        return fail(ranks.rank(), "the text is not that of one rank");
    }
  }
  return 0;
}

void save(const saved_text<chain>& text, const std::string& file) {
  std::vector<std::byte> bytes;
  text.write(bytes);
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

saved_text<chain> saved_in(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  saved_text<chain> text{.policy = chain({.length = 4})};
  text.read(std::as_bytes(std::span(bytes)));
  return text;
}

int go_on(mpi_communicator& ranks, const std::string& file) {
  auto target = parallel_backend<mpi_communicator>::load(folder + "/target", ranks, {.max_rows = 32});
  contiguous_kv kv(target.layers(), target.cache_row(), 1, 256);
  small_draft draft;
  auto drafter = autoregressive(draft.model, draft.kv);
  auto decode = make_decoder(drafter, chain({.length = 4}), greedy(), kv, target);
  agreement agree(ranks);
  decode.load(saved_in(file));
  const std::size_t before = decode.current().written().size();
  while (decode.step()) {
    if (!decode.last_round().committed.empty()) agree(decode.last_round());
  }
  const auto written = decode.current().written();
  if (std::vector<token_id>(written.begin(), written.end()) != text_of_one())
    return fail(ranks.rank(), "the text that new ranks go on with is not the undisturbed one");
  std::printf("rank %d: went on after %zu tokens\n", ranks.rank(), before);
  return 0;
}

int kill_one(mpi_communicator& ranks, int call, bool dies, double timeout, const std::string& file) {
  failing_communicator failing(ranks, call, dies);
  using backend_type = parallel_backend<failing_communicator>;
  auto target = backend_type::load(folder + "/target", failing, {.max_rows = 32});
  contiguous_kv kv(target.layers(), target.cache_row(), 1, 256);
  small_draft draft;
  auto drafter = autoregressive(draft.model, draft.kv);
  auto decode = make_decoder(drafter, chain({.length = 4}), greedy(), kv, target);
  agreement agree(failing);
  using clock = std::chrono::steady_clock;
  auto began = clock::now();
  decode.begin(prompt, {.max_tokens = 24});
  try {
    while (decode.step()) {
      agree(decode.last_round());
      began = clock::now();
    }
  } catch (const rank_error& e) {
    const double seconds = std::chrono::duration<double>(clock::now() - began).count();
    const std::string named = "no answer from rank " + std::to_string(ranks.size() - 1) + ".";
    if (std::string_view(e.what()).find(named) == std::string_view::npos)
      return fail(ranks.rank(), "it should say \"" + named + "\", but says: " + e.what());
    if (seconds > timeout + 1) return fail(ranks.rank(), "it took " + std::to_string(seconds) + " s");
    if (ranks.rank() == 0) save(decode.save(), file);
    // One rank that has all of the model goes on, and later other ranks.
    auto one = llama_backend::load(folder + "/target", {.threads = 1, .max_rows = 32});
    auto one_kv = host_cache(one.config(), 1, 256);
    small_draft again;
    auto new_drafter = autoregressive(again.model, again.kv);
    auto go_on = make_decoder(new_drafter, chain({.length = 4}), greedy(), one_kv, one);
    go_on.load(decode.save());
    while (go_on.step()) {
    }
    const auto written = go_on.current().written();
    if (std::vector<token_id>(written.begin(), written.end()) != text_of_one())
      return fail(ranks.rank(), "the text does not go on as it should");
    std::printf("rank %d: named in %.2f s\n", ranks.rank(), seconds);
    return 0;
  }
  return fail(ranks.rank(), "it found nothing");
}

// Gives up rank 1, destroys the communicator, and takes the memory that it had. Then rank 1 asks, late, what is up.
int answer(int rank) {
  static std::vector<std::byte> data(2);  // MPI may write to it to the end
  const std::size_t counts[] = {1, 1};
  const auto call = [&](mpi_communicator& ranks) {
    try {
      ranks.all_gather(data.data(), counts);
      return false;
    } catch (const rank_error&) {
      return true;
    }
  };
  bool failed = false;
  {
    mpi_communicator ranks(MPI_COMM_WORLD, {.timeout = 1.0});
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
    // The first call of rank 1 finds what rank 0 has sent; of the second rank 0 knows nothing.
    failed = call(ranks) || call(ranks);
  }
  if (!failed) return fail(rank, "it found nothing");
  std::vector<std::vector<int>> taken(200, std::vector<int>(2, 0x5A5A5A5A));
  int done = 0;
  if (rank == 1)
    MPI_Send(&done, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
  else
    MPI_Recv(&done, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (const std::vector<int>& one : taken) {
    if (one != std::vector<int>(2, 0x5A5A5A5A)) return fail(rank, "a late answer was written to memory of others");
  }
  std::printf("rank %d: memory is as it was\n", rank);
  return 0;
}

int part(mpi_communicator& ranks) {
  auto target = parallel_backend<mpi_communicator>::load(folder + "/target", ranks, {.max_rows = 32});
  contiguous_kv kv(target.layers(), target.cache_row(), 1, 256);
  small_draft draft;
  auto drafter = autoregressive(draft.model, draft.kv);
  auto decode = make_decoder(drafter, sampled_chain({.length = 4}), naive(), kv, target);
  agreement agree(ranks);
  text_options options;
  options.sampling.temperature = 1.0;
  options.seed = ranks.rank() == 1 ? 8U : 7U;
  decode.begin(prompt, {.max_tokens = 24}, options);
  try {
    while (decode.step())
      if (!decode.last_round().committed.empty()) agree(decode.last_round());
  } catch (const rank_error& e) {
    return std::string_view(e.what()).find("of rank 1 is not that of the others") != std::string_view::npos
               ? 0
               : fail(ranks.rank(), e.what());
  }
  return fail(ranks.rank(), "it found no difference");
}

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  const std::string_view what = count > 1 ? arguments[1] : "";
  int result = 2;
  bool broken = false;
  if (what == "answer") {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    result = answer(rank);
    std::fflush(stdout);
    std::_Exit(result);
  }
  try {
    const double timeout = what == "kill" ? 1.0 : 30.0;
    mpi_communicator ranks(MPI_COMM_WORLD, {.timeout = timeout});
    if (what == "texts") result = texts(ranks);
    if (what == "kill" && count > 4)
      result = kill_one(ranks, std::atoi(arguments[2]), std::string_view(arguments[3]) == "die", timeout, arguments[4]);
    if (what == "go_on" && count > 2) result = go_on(ranks, arguments[2]);
    if (what == "part") result = part(ranks);
    broken = ranks.broken();
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    broken = true;
  }
  std::fflush(stdout);
  if (broken) std::_Exit(result);
  MPI_Finalize();
  return result;
}
