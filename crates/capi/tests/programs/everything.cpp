// The C++ header: what owns something gives it back, failures are exceptions by whose fault they are, bytes are spans.
#include <portcullis.hpp>

#include "expect.h"
#include <string>
#include <type_traits>
#include <vector>

using namespace std::chrono_literals;
namespace pc = portcullis;

static_assert(!std::is_copy_constructible_v<pc::batch> && std::is_nothrow_move_constructible_v<pc::batch>);
static_assert(!std::is_copy_constructible_v<pc::session> && std::is_nothrow_move_constructible_v<pc::session>);
static_assert(!std::is_copy_constructible_v<pc::permission> && std::is_nothrow_move_assignable_v<pc::permission>);
// A time that is finer than a microsecond is no time of this library's.
static_assert(!std::is_convertible_v<std::chrono::nanoseconds, pc::microseconds>);

template <class Error, class Act> void throws(const char *name, Act &&act) {
  try {
    act();
  } catch (const Error &error) {
    EXPECT(std::string(error.name()) == name);
    EXPECT(*error.what() != 0);
    return;
  }
  EXPECT(!"it throws");
}

struct point {
  double x, y;
};

/// Takes the completion of the one operation that a batch has.
static portcullis_completion completed(const pc::session &session, pc::batch &batch) {
  EXPECT(batch.size() == 1);
  session.submit(batch);
  auto completions = session.wait(1, 1);
  EXPECT(completions.size() == 1);
  return completions[0];
}

static void permissions_in_batches(const pc::session &session) {
  pc::batch first;
  first.allocate(64, {5s, pc::rights::all, false, pc::keep::attached()});
  auto moved = std::move(first);  // Its operations still find their options.
  auto allocated = completed(session, moved);
  auto block = pc::granted(allocated);
  EXPECT(allocated.permission.id == 0);  // It has one owner.
  block.store(0, 7);
  auto object = block.object();
  pc::batch longer;
  longer.extend(block, 9s);
  pc::check(completed(session, longer));
  EXPECT(block.remaining() > 5s);
  {
    pc::batch unsubmitted;
    unsubmitted.revoke(std::move(block));
  }
  pc::batch again;
  again.acquire(object, {5s, pc::rights::read, true});
  auto acquired = completed(session, again);
  auto reader = pc::granted(acquired);
  EXPECT(reader.load<int>(0) == 7);
  pc::batch last;
  last.revoke_and_free(std::move(reader));
  pc::check(completed(session, last));
  auto refused = completed(session, again);
  throws<pc::ended_error>("object-gone", [&] { static_cast<void>(pc::granted(refused)); });
  last.clear();
  EXPECT(last.size() == 0);
}

static void claims(const pc::session &session) {
  pc::queue::options claimed{};
  claimed.claims = true;
  auto jobs = session.create_queue("jobs", claimed);
  auto dead_letters = session.create_queue();
  std::vector<char> job(1000, 'j');
  jobs.push(pc::bytes_of(job));
  {
    auto failed = jobs.claim(30s);
    EXPECT(failed && failed->deliveries() == 1 && failed->entry().size() == 1000);
    EXPECT(!jobs.claim(30s, 1ms));
  }  // It is given back here.
  auto again = jobs.claim(30s);
  EXPECT(again && again->deliveries() == 2);
  auto moved = std::move(*again);
  throws<pc::caller_error>("closed", [&] { again->acknowledge(); });
  moved.extend(1ms);
  // Another consumer gets it after the lease.
  auto other = session.open_queue("jobs");
  auto third = other.claim(30s, 10s);
  EXPECT(third && third->deliveries() == 3);
  throws<pc::ended_error>("claim-ended", [&] { moved.acknowledge(); });
  third->give_back();
  // This handle sees within milliseconds that the other one has given it back.
  std::optional<std::vector<std::byte>> dead;
  while (!dead) {
    EXPECT(!jobs.claim(30s, 1ms, 3, dead_letters));
    dead = dead_letters.pop();
  }
  EXPECT(dead->size() == 1000);
  jobs.push(pc::bytes_of(job));
  auto last = jobs.claim(30s, 10s, 3, dead_letters);
  EXPECT(last && last->deliveries() == 1);
  last->acknowledge();
  jobs.end();
  throws<pc::tenant_error>("queue-closed", [&] { static_cast<void>(jobs.claim(30s)); });
  throws<pc::caller_error>("queue-delivery", [&] { static_cast<void>(jobs.pop()); });
  throws<pc::caller_error>("bad-argument", [&] { static_cast<void>(jobs.claim(30s, 0s, 0, dead_letters)); });
  jobs.destroy();
  throws<pc::caller_error>("closed", [&] { jobs.end(); });
  dead_letters.destroy();
}

int main() {
  pc::node node(64 << 20);
  auto session = node.connect("red");
  auto block = session.allocate(4096, {5s, pc::rights::all, false, pc::keep::attached()});
  std::vector<int> numbers{1, 2, 3}, back(3);
  block.write(0, pc::bytes_of(numbers));
  block.read(0, pc::writable_bytes_of(back));
  EXPECT(numbers == back);
  block.store(64, point{1, 2});
  EXPECT(block.load<point>(64).y == 2);
  EXPECT(block.fetch_and_add(128, 5) == 0);
  EXPECT(block.compare_and_swap(128, 5, 6) == 5);
  throws<pc::caller_error>("outside-range", [&] { static_cast<void>(block.load<point>(4095)); });
  block.extend(8s);
  EXPECT(block.remaining() > 5s);
  auto object = block.object();
  EXPECT(pc::object_ref(object.to_string()) == object);
  {
    auto kept = block.keep(5s);
    EXPECT(kept.is_kept());
  }
  auto moved = std::move(block);
  throws<pc::caller_error>("closed", [&] { static_cast<void>(block.load<point>(0)); });
  moved.revoke();
  auto reader = session.acquire(object, {1s, pc::rights::read, true});
  throws<pc::caller_error>("wrong-right", [&] { reader.store(0, 1); });

  auto buffer = session.buffer(12);
  reader.read(0, buffer);
  EXPECT(std::memcmp(buffer.bytes().data(), numbers.data(), 12) == 0);
  pc::batch batch;
  std::vector<std::uint64_t> words(64);
  for (std::uint64_t at = 0; at < words.size(); at++)
    batch.read(reader, at * 8, pc::span<std::byte>(reinterpret_cast<std::byte *>(&words[at]), 8), at);
  batch.read(reader, 0, buffer, 1000);
  session.submit(batch);
  for (std::size_t taken = 0; taken < batch.size();) {
    auto completions = session.wait(16, 1);
    for (auto &completion : completions) pc::check(completion);
    taken += completions.size();
  }
  EXPECT(words[16] == 6);
  permissions_in_batches(session);
  EXPECT(session.descriptor() >= 0);
  EXPECT(session.poll() == 0);
  static_cast<void>(session.arm());
  reader.revoke_and_free();
  throws<pc::ended_error>("object-gone", [&] { static_cast<void>(session.acquire(object)); });

  auto named = session.allocate(64, {5s, pc::rights::all, true, pc::keep::attached()});
  session.publish("named", named.object());
  session.share("named", "blue", pc::rights::read);
  auto blue = node.connect("blue");
  EXPECT(blue.lookup("named", "red") == named.object());
  EXPECT(session.names() == std::vector<std::string>{"named"});
  session.unshare("named", "blue");
  throws<pc::ended_error>("no-such-name", [&] { static_cast<void>(blue.lookup("named", "red")); });
  session.unpublish("named");

  auto table = session.create_table("table");
  std::string key = "key", value(1000, 'v');
  EXPECT(table.insert(pc::bytes_of(key), pc::bytes_of(value)));
  EXPECT(!table.insert(pc::bytes_of(key), pc::bytes_of(key)));
  EXPECT(table.get(pc::bytes_of(key))->size() == 1000);
  auto several = table.get_many({pc::bytes_of(key), pc::bytes_of(value)});
  EXPECT(several.size() == 2 && several[0]->size() == 1000 && !several[1]);
  EXPECT(table.get_many({}).empty());
  EXPECT(table.compare_and_set(pc::bytes_of(key), pc::bytes_of(value), pc::bytes_of(key)));
  auto opened = session.open_table("table", true);
  EXPECT(opened.get(pc::bytes_of(key))->size() == 3);
  throws<pc::caller_error>("read-only-table", [&] { opened.set(pc::bytes_of(key), pc::bytes_of(key)); });
  // What a callback throws comes out at the call, not through C.
  throws<pc::caller_error>("closed", [&] {
    table.visit([&](auto, auto) {
      static_cast<void>(pc::permission().length());
      return true;
    });
  });
  table.set(pc::bytes_of(value), pc::bytes_of(key), 1us);
  std::uint64_t removed = 0;
  while (removed == 0) removed = table.remove_expired();
  EXPECT(removed == 1);
  EXPECT(table.remove_expired() == 0);
  EXPECT(table.remove(pc::bytes_of(key)));
  EXPECT(!table.get(pc::bytes_of(key)));
  table.destroy("table");

  auto queue = session.create_queue();
  queue.push(pc::bytes_of(value));
  auto consumer = session.open_queue(queue.head());
  EXPECT(consumer.pop()->size() == 1000);
  EXPECT(!consumer.pop(1ms));
  EXPECT(!consumer.pop(-1us));  // A time that is past is not endless.
  claims(session);
  queue.end();
  throws<pc::tenant_error>("queue-closed", [&] { queue.push(pc::bytes_of(key)); });
  throws<pc::node_error>("no-node", [] { pc::session("shm:/nowhere"); });
  return 0;
}
