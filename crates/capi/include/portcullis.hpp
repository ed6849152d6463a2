// Portcullis: protected remote memory, for C++17 and later. A header over portcullis.h; link with libportcullis.
//
// - What owns something is a class that gives it back in its destructor, can be moved and cannot be copied.
// - What fails throws portcullis::error, or one of its subclasses, which say whose fault it is.
// - Bytes are spans: std::span where the standard has it (C++20), otherwise portcullis::span with the same members.
// - Times are std::chrono::microseconds, so every coarser duration fits.
//
// The rules of threads, processes and ownership are those of portcullis.h.
#ifndef PORTCULLIS_HPP
#define PORTCULLIS_HPP

#include "portcullis.h"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#if defined(__has_include)
#if __has_include(<span>) && __cplusplus >= 202002L
#include <span>
#endif
#endif

namespace portcullis {

#if defined(__cpp_lib_span)
template <class T> using span = std::span<T>;
#else
/// What std::span is from C++20 on, as far as this header needs it.
template <class T> class span {
public:
  constexpr span() noexcept = default;
  constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  /// Of anything that has its elements one after another: a vector, an array, a string, another span.
  template <class Container, class = std::enable_if_t<std::is_convertible_v<
                                 decltype(std::data(std::declval<Container &>())), T *>>>
  constexpr span(Container &&container) noexcept : data_(std::data(container)), size_(std::size(container)) {}

  [[nodiscard]] constexpr T *data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr T *begin() const noexcept { return data_; }
  [[nodiscard]] constexpr T *end() const noexcept { return data_ + size_; }
  constexpr T &operator[](std::size_t at) const noexcept { return data_[at]; }

private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};
#endif

using std::chrono::microseconds;

/// The bytes of anything that has its elements one after another: to pass it where bytes are wanted.
template <class Container> auto bytes_of(const Container &container) noexcept {
  using element = std::remove_reference_t<decltype(*std::data(container))>;
  static_assert(std::is_trivially_copyable_v<element>, "only plain values are bytes");
  return span<const std::byte>(reinterpret_cast<const std::byte *>(std::data(container)),
                               std::size(container) * sizeof(element));
}

/// The same, to be written to.
template <class Container> auto writable_bytes_of(Container &container) noexcept {
  using element = std::remove_reference_t<decltype(*std::data(container))>;
  static_assert(std::is_trivially_copyable_v<element> && !std::is_const_v<element>, "only plain values are bytes");
  return span<std::byte>(reinterpret_cast<std::byte *>(std::data(container)), std::size(container) * sizeof(element));
}

/// Whose fault an error is: who has to do something before the same call can succeed.
enum class fault : std::uint8_t {
  caller = PORTCULLIS_FAULT_CALLER,
  ended = PORTCULLIS_FAULT_ENDED,
  tenant = PORTCULLIS_FAULT_TENANT,
  node = PORTCULLIS_FAULT_NODE,
  machine = PORTCULLIS_FAULT_MACHINE,
  peer = PORTCULLIS_FAULT_PEER,
  library = PORTCULLIS_FAULT_LIBRARY,
};

/// What every failure throws.
class error : public std::exception {
public:
  explicit error(const portcullis_error &of)
      : number_(of.number), fault_(static_cast<portcullis::fault>(of.fault)), is_retryable_(of.is_retryable),
        text_(of.text) {}
  /// Of a completion, which has no text of its own.
  explicit error(const portcullis_completion &of)
      : number_(of.error), fault_(static_cast<portcullis::fault>(of.fault)), is_retryable_(of.is_retryable),
        text_(portcullis_error_meaning(of.error)) {}

  /// The number, which never changes: one of PORTCULLIS_ERROR_...
  [[nodiscard]] int number() const noexcept { return number_; }
  /// The name, which never changes.
  [[nodiscard]] const char *name() const noexcept { return portcullis_error_name(number_); }
  [[nodiscard]] portcullis::fault whose_fault() const noexcept { return fault_; }
  /// Whether the same call may succeed later although the caller changes nothing.
  [[nodiscard]] bool is_retryable() const noexcept { return is_retryable_; }
  /// What was wrong and what to do.
  [[nodiscard]] const char *what() const noexcept override { return text_.c_str(); }

private:
  int number_;
  portcullis::fault fault_;
  bool is_retryable_;
  std::string text_;
};

/// An error by whose fault it is, to be caught by it.
template <fault F> class error_of : public error {
public:
  using error::error;
};

using caller_error = error_of<fault::caller>;
/// The permission, the object or the name is no more: acquire a new one, or do without.
using ended_error = error_of<fault::ended>;
using tenant_error = error_of<fault::tenant>;
using node_error = error_of<fault::node>;
using machine_error = error_of<fault::machine>;
using peer_error = error_of<fault::peer>;
using library_error = error_of<fault::library>;

namespace detail {

template <class Source> [[noreturn]] void raise(const Source &of) {
  switch (static_cast<fault>(of.fault)) {
  case fault::caller: throw caller_error(of);
  case fault::ended: throw ended_error(of);
  case fault::tenant: throw tenant_error(of);
  case fault::node: throw node_error(of);
  case fault::machine: throw machine_error(of);
  case fault::peer: throw peer_error(of);
  case fault::library: throw library_error(of);
  }
  throw error(of);
}

/// Throws what a call has failed with.
inline void check(int result) {
  if (result == 0) return;
  portcullis_error last{};
  portcullis_last_error(&last);
  raise(last);
}

/// A span of time for a call in C. What is past already is no time: as a large number it would be endless.
constexpr std::uint64_t micros(microseconds time) noexcept {
  return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

/// The same for a lifetime, of which none at all would mean the default.
constexpr std::uint64_t lifetime(microseconds time) noexcept {
  return time.count() < 1 ? 1 : static_cast<std::uint64_t>(time.count());
}

/// A handle that is closed when its owner goes. An error of that has nobody to tell.
template <class Handle, int (*Close)(Handle)> class owned {
public:
  owned() noexcept = default;
  explicit owned(Handle handle) noexcept : handle_(handle) {}
  owned(owned &&other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  owned &operator=(owned &&other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  owned(const owned &) = delete;
  owned &operator=(const owned &) = delete;
  ~owned() { reset(); }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  /// The handle, which the caller closes.
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, Handle{}); }
  void reset() noexcept {
    if (handle_.id != 0) static_cast<void>(Close(std::exchange(handle_, Handle{})));
  }

private:
  Handle handle_{};
};

inline int revoke(portcullis_permission handle) { return portcullis_revoke(handle, false); }

inline const char *text_or_null(const std::optional<std::string> &text) { return text ? text->c_str() : nullptr; }

/// An exception that a callback has thrown waits here until the call is over: it must not pass through C.
template <class Act> bool kept_from_c(std::exception_ptr &thrown, Act &&act) noexcept {
  try {
    return act();
  } catch (...) {
    thrown = std::current_exception();
    return false;
  }
}

} // namespace detail

/// Names one object for ever. It is passed on as its bytes, or as text.
class object_ref {
public:
  object_ref() noexcept = default;
  explicit object_ref(const portcullis_object &of) noexcept : object_(of) {}
  explicit object_ref(const std::string &text) { detail::check(portcullis_object_from_text(text.c_str(), &object_)); }

  [[nodiscard]] const portcullis_object &get() const noexcept { return object_; }
  [[nodiscard]] std::string to_string() const {
    char text[PORTCULLIS_OBJECT_TEXT_BYTES];
    detail::check(portcullis_object_to_text(&object_, text, sizeof text));
    return text;
  }
  friend bool operator==(const object_ref &one, const object_ref &other) noexcept {
    return std::memcmp(one.object_.bytes, other.object_.bytes, sizeof one.object_.bytes) == 0;
  }
  friend bool operator!=(const object_ref &one, const object_ref &other) noexcept { return !(one == other); }

private:
  portcullis_object object_{};
};

/// What a permission allows.
enum class rights : std::uint8_t {
  read = PORTCULLIS_READ,
  write = PORTCULLIS_WRITE,
  atomic = PORTCULLIS_ATOMIC,
  all = PORTCULLIS_READ | PORTCULLIS_WRITE | PORTCULLIS_ATOMIC,
};
constexpr rights operator|(rights one, rights other) noexcept {
  return static_cast<rights>(static_cast<std::uint8_t>(one) | static_cast<std::uint8_t>(other));
}

/// How long an object stays when it has no permission.
class keep {
public:
  /// It goes with its last permission.
  static constexpr keep no() noexcept { return keep(PORTCULLIS_KEEP_NO); }
  /// It stays until it is freed or its tenant's last client goes.
  static constexpr keep attached() noexcept { return keep(PORTCULLIS_KEEP_ATTACHED); }
  /// It stays until it is freed or the node ends.
  static constexpr keep pinned() noexcept { return keep(PORTCULLIS_KEEP_PINNED); }
  /// It stays until it is freed, or for so long after its tenant's last client has gone.
  static constexpr keep lasting(microseconds time) noexcept { return keep(detail::micros(time)); }
  [[nodiscard]] constexpr std::uint64_t get() const noexcept { return time_; }

private:
  explicit constexpr keep(std::uint64_t time) noexcept : time_(time) {}
  std::uint64_t time_;
};

/// What session::allocate asks for.
struct allocate_options {
  microseconds lifetime = std::chrono::seconds(1);
  portcullis::rights rights = portcullis::rights::all;
  bool is_shared = false;
  portcullis::keep keep = portcullis::keep::no();
  std::uint64_t alignment = 1;

  [[nodiscard]] portcullis_allocate_options get(std::uint64_t size) const noexcept {
    portcullis_allocate_options options{};
    options.size = size;
    options.alignment = alignment;
    options.lifetime = detail::lifetime(lifetime);
    options.keep = keep.get();
    options.rights = static_cast<std::uint8_t>(rights);
    options.is_shared = is_shared;
    return options;
  }
};

/// What session::acquire asks for.
struct acquire_options {
  microseconds lifetime = std::chrono::seconds(1);
  portcullis::rights rights = portcullis::rights::all;
  bool is_shared = false;
  /// How long the request waits for others that hold the bytes.
  microseconds wait = std::chrono::seconds(1);
  /// Which bytes. A length of zero: all the rest.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  [[nodiscard]] portcullis_acquire_options get(const object_ref &object) const noexcept {
    portcullis_acquire_options options{};
    options.object = object.get();
    options.offset = offset;
    options.length = length;
    options.lifetime = detail::lifetime(lifetime);
    options.wait = wait.count() <= 0 ? UINT64_MAX : static_cast<std::uint64_t>(wait.count());
    options.rights = static_cast<std::uint8_t>(rights);
    options.is_shared = is_shared;
    return options;
  }
};

/// Keeps a permission extended until it goes.
class keeper {
public:
  explicit keeper(portcullis_keeper handle) noexcept : handle_(handle) {}
  /// Whether it still does. It stops when the node refuses or the permission has ended.
  [[nodiscard]] bool is_kept() const {
    bool is_kept = false;
    detail::check(portcullis_keeper_is_kept(handle_.get(), &is_kept));
    return is_kept;
  }

private:
  detail::owned<portcullis_keeper, portcullis_keeper_stop> handle_;
};

/// Memory in a session's arena: what is read or written there is not copied.
class buffer {
public:
  buffer(portcullis_buffer handle, void *data, std::size_t size) noexcept
      : handle_(handle), bytes_(static_cast<std::byte *>(data), size) {}
  /// The bytes. Nobody uses them while an operation on the buffer is under way.
  [[nodiscard]] span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] portcullis_buffer get() const noexcept { return handle_.get(); }

private:
  detail::owned<portcullis_buffer, portcullis_buffer_release> handle_;
  span<std::byte> bytes_;
};

/// A permission, which is revoked when this goes.
class permission {
public:
  permission() noexcept = default;
  explicit permission(portcullis_permission handle) noexcept : handle_(handle) {}

  void read(std::uint64_t offset, span<std::byte> into) const {
    detail::check(portcullis_read(handle_.get(), offset, into.data(), into.size()));
  }
  void write(std::uint64_t offset, span<const std::byte> from) const {
    detail::check(portcullis_write(handle_.get(), offset, from.data(), from.size()));
  }
  /// One plain value.
  template <class T> [[nodiscard]] T load(std::uint64_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>, "only plain values are bytes");
    T value{};
    detail::check(portcullis_read(handle_.get(), offset, &value, sizeof value));
    return value;
  }
  template <class T> void store(std::uint64_t offset, const T &value) const {
    static_assert(std::is_trivially_copyable_v<T>, "only plain values are bytes");
    detail::check(portcullis_write(handle_.get(), offset, &value, sizeof value));
  }
  void read(std::uint64_t offset, const buffer &into) const {
    detail::check(portcullis_read_buffer(handle_.get(), offset, into.get()));
  }
  void write(std::uint64_t offset, const buffer &from) const {
    detail::check(portcullis_write_buffer(handle_.get(), offset, from.get()));
  }
  /// Returns what the word was.
  std::uint64_t compare_and_swap(std::uint64_t offset, std::uint64_t compare, std::uint64_t swap) const {
    std::uint64_t before = 0;
    detail::check(portcullis_compare_and_swap(handle_.get(), offset, compare, swap, &before));
    return before;
  }
  /// Returns what the word was.
  std::uint64_t fetch_and_add(std::uint64_t offset, std::uint64_t add) const {
    std::uint64_t before = 0;
    detail::check(portcullis_fetch_and_add(handle_.get(), offset, add, &before));
    return before;
  }
  void extend(microseconds time) const {
    detail::check(portcullis_extend(handle_.get(), detail::micros(time)));
  }
  [[nodiscard]] keeper keep(microseconds by) const {
    portcullis_keeper kept{};
    detail::check(portcullis_keep(handle_.get(), detail::micros(by), &kept));
    return keeper(kept);
  }
  void revoke() { detail::check(portcullis_revoke(handle_.release(), false)); }
  void revoke_and_free() { detail::check(portcullis_revoke(handle_.release(), true)); }

  [[nodiscard]] portcullis_permission_info info() const {
    portcullis_permission_info info{};
    detail::check(portcullis_info(handle_.get(), &info));
    return info;
  }
  [[nodiscard]] object_ref object() const { return object_ref(info().object); }
  [[nodiscard]] std::uint64_t length() const { return info().length; }
  [[nodiscard]] microseconds remaining() const {
    return microseconds(static_cast<microseconds::rep>(info().remaining));
  }
  [[nodiscard]] portcullis_permission get() const noexcept { return handle_.get(); }
  /// The handle, which the caller revokes.
  [[nodiscard]] portcullis_permission release() noexcept { return handle_.release(); }

private:
  detail::owned<portcullis_permission, detail::revoke> handle_;
};

/// Operations that are submitted together.
class batch {
public:
  batch() = default;
  batch(batch &&) noexcept = default;
  batch &operator=(batch &&) noexcept = default;
  // It owns the permissions that it is to revoke.
  batch(const batch &) = delete;
  batch &operator=(const batch &) = delete;
  ~batch() = default;

  void read(const permission &under, std::uint64_t offset, span<std::byte> into, std::uint64_t tag = 0) {
    transfer(PORTCULLIS_OPERATION_READ, under, offset, into.data(), into.size(), tag);
  }
  void write(const permission &under, std::uint64_t offset, span<const std::byte> from, std::uint64_t tag = 0) {
    // A write only reads there.
    transfer(PORTCULLIS_OPERATION_WRITE, under, offset, const_cast<std::byte *>(from.data()), from.size(), tag);
  }
  void read(const permission &under, std::uint64_t offset, const buffer &into, std::uint64_t tag = 0) {
    add(PORTCULLIS_OPERATION_READ, under, offset, tag).buffer = into.get();
  }
  void write(const permission &under, std::uint64_t offset, const buffer &from, std::uint64_t tag = 0) {
    add(PORTCULLIS_OPERATION_WRITE, under, offset, tag).buffer = from.get();
  }
  void compare_and_swap(const permission &under, std::uint64_t offset, std::uint64_t compare, std::uint64_t swap,
                        std::uint64_t tag = 0) {
    auto &operation = add(PORTCULLIS_OPERATION_COMPARE_AND_SWAP, under, offset, tag);
    operation.compare = compare;
    operation.value = swap;
  }
  void fetch_and_add(const permission &under, std::uint64_t offset, std::uint64_t value, std::uint64_t tag = 0) {
    add(PORTCULLIS_OPERATION_FETCH_AND_ADD, under, offset, tag).value = value;
  }
  void extend(const permission &under, microseconds time, std::uint64_t tag = 0) {
    add(PORTCULLIS_OPERATION_EXTEND, under, 0, tag).value = detail::micros(time);
  }
  /// granted() takes the permission out of the completion.
  void allocate(std::uint64_t size, const allocate_options &with = {}, std::uint64_t tag = 0) {
    auto &options = allocate_options_.emplace_back(with.get(size));
    add(PORTCULLIS_OPERATION_ALLOCATE, permission(), 0, tag).allocate = &options;
  }
  /// granted() takes the permission out of the completion.
  void acquire(const object_ref &object, const acquire_options &with = {}, std::uint64_t tag = 0) {
    auto &options = acquire_options_.emplace_back(with.get(object));
    add(PORTCULLIS_OPERATION_ACQUIRE, permission(), 0, tag).acquire = &options;
  }
  /// The permission is the batch's from now on. It is revoked with the batch, if the batch is not submitted.
  void revoke(permission &&ended, std::uint64_t tag = 0) { end(PORTCULLIS_OPERATION_REVOKE, std::move(ended), tag); }
  void revoke_and_free(permission &&ended, std::uint64_t tag = 0) {
    end(PORTCULLIS_OPERATION_REVOKE_AND_FREE, std::move(ended), tag);
  }
  [[nodiscard]] std::size_t size() const noexcept { return operations_.size(); }
  /// Empties the batch. What it was to revoke, and was not submitted, is revoked now.
  void clear() noexcept {
    operations_.clear();
    allocate_options_.clear();
    acquire_options_.clear();
    ended_.clear();
  }
  /// Its operations are submitted: with them the permissions to be revoked have found their ends.
  void submitted() noexcept {
    for (auto &permission : ended_) static_cast<void>(permission.release());
    ended_.clear();
  }
  [[nodiscard]] const std::vector<portcullis_operation> &get() const noexcept { return operations_; }

private:
  portcullis_operation &add(std::uint32_t kind, const permission &under, std::uint64_t offset, std::uint64_t tag) {
    portcullis_operation operation{};
    operation.kind = kind;
    operation.tag = tag;
    operation.permission = under.get();
    operation.offset = offset;
    return operations_.emplace_back(operation);
  }
  void transfer(std::uint32_t kind, const permission &under, std::uint64_t offset, void *data, std::size_t length,
                std::uint64_t tag) {
    auto &operation = add(kind, under, offset, tag);
    operation.data = data;
    operation.length = length;
  }
  void end(std::uint32_t kind, permission &&ended, std::uint64_t tag) {
    ended_.push_back(std::move(ended));
    add(kind, ended_.back(), 0, tag);
  }
  std::vector<portcullis_operation> operations_;
  // Operations point to the options. Lists leave their elements where they are.
  std::list<portcullis_allocate_options> allocate_options_;
  std::list<portcullis_acquire_options> acquire_options_;
  std::vector<permission> ended_;
};

/// Throws what an operation has failed with.
inline void check(const portcullis_completion &completion) {
  if (completion.error != 0) detail::raise(completion);
}

/// Takes the permission that was granted out of the completion of an allocation or acquisition. Throws what that has failed with.
/// A permission that nobody takes out lives on until its time is over or its session ends.
[[nodiscard]] inline permission granted(portcullis_completion &completion) {
  check(completion);
  return permission(std::exchange(completion.permission, portcullis_permission{}));
}

/// A table of keys and values.
class table {
public:
  using options = portcullis_table_options;
  explicit table(portcullis_table handle) noexcept : handle_(handle) {}

  [[nodiscard]] std::optional<std::vector<std::byte>> get(span<const std::byte> key) const {
    std::vector<std::byte> value(256);
    for (;;) {
      std::size_t length = 0;
      bool is_found = false;
      int result = portcullis_table_get(handle_.get(), key.data(), key.size(), value.data(), value.size(), &length,
                                        &is_found);
      if (result != 0 && is_found && length > value.size()) {
        value.resize(length);
        continue;
      }
      detail::check(result);
      if (!is_found) return std::nullopt;
      value.resize(length);
      return value;
    }
  }
  /// The values of many keys, which are looked up at the same time, in the keys' order.
  [[nodiscard]] std::vector<std::optional<std::vector<std::byte>>>
  get_many(const std::vector<span<const std::byte>> &keys) const {
    struct context_t {
      std::vector<std::optional<std::vector<std::byte>>> values;
      std::exception_ptr thrown;
    } context;
    context.values.resize(keys.size());
    std::vector<portcullis_bytes> asked;
    asked.reserve(keys.size());
    for (auto key : keys) asked.push_back({key.data(), key.size()});
    auto visitor = [](void *given, std::size_t number, const portcullis_bytes *value) {
      auto &kept = *static_cast<context_t *>(given);
      return detail::kept_from_c(kept.thrown, [&] {
        if (value != nullptr) {
          auto found = bytes(*value);
          kept.values[number].emplace(found.begin(), found.end());
        }
        return true;
      });
    };
    int result = portcullis_table_get_many(handle_.get(), asked.data(), asked.size(), visitor, &context);
    if (context.thrown) std::rethrow_exception(context.thrown);
    detail::check(result);
    return std::move(context.values);
  }
  /// Whether the key was not there before. A time to live of zero: for ever.
  bool insert(span<const std::byte> key, span<const std::byte> value, microseconds live = {}) const {
    return store(key, value, PORTCULLIS_STORE_IF_ABSENT, {}, live) == PORTCULLIS_STORED_INSERTED;
  }
  void set(span<const std::byte> key, span<const std::byte> value, microseconds live = {}) const {
    store(key, value, PORTCULLIS_STORE_ALWAYS, {}, live);
  }
  /// Whether the key had the value `expected`, and now has another.
  bool compare_and_set(span<const std::byte> key, span<const std::byte> expected, span<const std::byte> value) const {
    return store(key, value, PORTCULLIS_STORE_IF_EQUAL, expected, {}) == PORTCULLIS_STORED_REPLACED;
  }
  /// Whether the key was there.
  bool remove(span<const std::byte> key) const {
    bool was_there = false;
    detail::check(portcullis_table_remove(handle_.get(), key.data(), key.size(), &was_there));
    return was_there;
  }
  /// Calls `each(key, value)` for each entry, until it returns false. It may use any object but this table.
  template <class Each> void visit(Each &&each) const {
    struct context_t {
      Each &each;
      std::exception_ptr thrown;
    } context{each, nullptr};
    auto visitor = [](void *given, portcullis_bytes key, portcullis_bytes value) {
      auto &kept = *static_cast<context_t *>(given);
      return detail::kept_from_c(kept.thrown, [&] { return kept.each(bytes(key), bytes(value)); });
    };
    int result = portcullis_table_visit(handle_.get(), visitor, &context);
    if (context.thrown) std::rethrow_exception(context.thrown);
    detail::check(result);
  }
  /// Removes the keys whose time to live has ended: what they take is free then. Returns how many there were.
  std::uint64_t remove_expired() const {
    std::uint64_t removed = 0;
    detail::check(portcullis_table_remove_expired(handle_.get(), &removed));
    return removed;
  }
  [[nodiscard]] object_ref head() const {
    portcullis_object head{};
    detail::check(portcullis_table_head(handle_.get(), &head));
    return object_ref(head);
  }
  /// Frees the table with all its keys, and removes its name, if it is given.
  void destroy(const std::optional<std::string> &name = std::nullopt) {
    detail::check(portcullis_table_destroy(handle_.get(), detail::text_or_null(name)));
    static_cast<void>(handle_.release());
  }

private:
  static span<const std::byte> bytes(portcullis_bytes of) noexcept {
    return {static_cast<const std::byte *>(of.data), of.length};
  }
  std::uint32_t store(span<const std::byte> key, span<const std::byte> value, std::uint32_t condition,
                      span<const std::byte> expected, microseconds live) const {
    portcullis_store_options how{};
    how.condition = condition;
    how.expected = {expected.data(), expected.size()};
    how.live = detail::micros(live);
    std::uint32_t stored = 0;
    detail::check(portcullis_table_store(handle_.get(), key.data(), key.size(), value.data(), value.size(), &how,
                                         &stored));
    return stored;
  }
  detail::owned<portcullis_table, portcullis_table_close> handle_;
};

namespace detail {

/// A claim with the queue that it belongs to. The claim is over where the queue's number is zero.
struct claim_of_queue {
  std::uint64_t id;
  portcullis_claim claim;
  [[nodiscard]] portcullis_queue queue() const noexcept { return {id}; }
};

/// An entry that cannot be given back comes again after the lease.
inline int give_back(claim_of_queue of) { return portcullis_queue_give_back(of.queue(), &of.claim); }

} // namespace detail

/// An entry that this consumer has claimed. One that goes without an acknowledgement is given back. Its queue has to be open still.
class claim {
public:
  claim(portcullis_queue queue, const portcullis_claim &claimed, std::vector<std::byte> entry) noexcept
      : handle_({queue.id, claimed}), deliveries_(claimed.deliveries), entry_(std::move(entry)) {}

  [[nodiscard]] span<const std::byte> entry() const noexcept { return {entry_.data(), entry_.size()}; }
  /// How often the entry was delivered, with this time. Beyond 1,023 it is not counted any more.
  [[nodiscard]] std::uint32_t deliveries() const noexcept { return deliveries_; }
  /// Ends the claim: the entry is done, and does not come again. It throws an ended_error named `claim-ended` if the lease was over
  /// and another consumer got the entry.
  void acknowledge() {
    auto held = handle_.get();
    detail::check(portcullis_queue_acknowledge(held.queue(), &held.claim));
    static_cast<void>(handle_.release());
  }
  /// Ends the claim without the entry being done: it comes again at once. It throws as acknowledge does.
  void give_back() {
    detail::check(detail::give_back(handle_.get()));
    static_cast<void>(handle_.release());
  }
  /// Makes the claim last for `lease` from now on. It throws as acknowledge does.
  void extend(microseconds lease) {
    auto held = handle_.get();
    detail::check(portcullis_queue_extend_claim(held.queue(), &held.claim, detail::lifetime(lease)));
    static_cast<void>(handle_.release());
    handle_ = detail::owned<detail::claim_of_queue, detail::give_back>(held);
  }

private:
  detail::owned<detail::claim_of_queue, detail::give_back> handle_;
  std::uint32_t deliveries_;
  std::vector<std::byte> entry_;
};

/// A queue.
class queue {
public:
  using options = portcullis_queue_options;
  explicit queue(portcullis_queue handle) noexcept : handle_(handle) {}

  void push(span<const std::byte> entry) const {
    detail::check(portcullis_queue_push(handle_.get(), entry.data(), entry.size()));
  }
  /// The first entry. It waits for one for `time` at most.
  [[nodiscard]] std::optional<std::vector<std::byte>> pop(microseconds time = {}) const {
    return taken([&](void *entry, std::size_t room, std::size_t *length, bool *is_found) {
      return portcullis_queue_pop(handle_.get(), detail::micros(time), entry, room, length, is_found);
    });
  }
  /// Claims an entry for `lease`. The queue has to be made with `claims`. The call waits for an entry for `time` at most. Until the
  /// claim is acknowledged, the entry comes again after the lease, to any consumer.
  [[nodiscard]] std::optional<portcullis::claim> claim(microseconds lease, microseconds time = {}) const {
    portcullis_claim_options how{};
    how.lease = detail::lifetime(lease);
    how.wait = detail::micros(time);
    return claim_as(how);
  }
  /// The same; an entry that was delivered `deliveries_max` times is pushed to `dead_letters` instead. It may come twice there.
  [[nodiscard]] std::optional<portcullis::claim> claim(microseconds lease, microseconds time,
                                                       std::uint32_t deliveries_max, const queue &dead_letters) const {
    portcullis_claim_options how{};
    how.lease = detail::lifetime(lease);
    how.wait = detail::micros(time);
    how.deliveries_max = deliveries_max;
    how.dead_letters = dead_letters.handle_.get();
    return claim_as(how);
  }
  /// Nobody pushes any more.
  void end() const { detail::check(portcullis_queue_end(handle_.get())); }
  /// Frees the queue with the entries that it still has.
  void destroy() {
    detail::check(portcullis_queue_destroy(handle_.get()));
    static_cast<void>(handle_.release());
  }
  [[nodiscard]] object_ref head() const {
    portcullis_object head{};
    detail::check(portcullis_queue_head(handle_.get(), &head));
    return object_ref(head);
  }

private:
  /// What a call takes, whose buffer grows until the entry has room.
  template <class Take> static std::optional<std::vector<std::byte>> taken(Take &&take) {
    std::vector<std::byte> entry(1024);
    for (;;) {
      std::size_t length = 0;
      bool is_found = false;
      int result = take(entry.data(), entry.size(), &length, &is_found);
      if (result != 0 && is_found && length > entry.size()) {
        entry.resize(length);
        continue;
      }
      detail::check(result);
      if (!is_found) return std::nullopt;
      entry.resize(length);
      return entry;
    }
  }
  std::optional<portcullis::claim> claim_as(const portcullis_claim_options &how) const {
    portcullis_claim claimed{};
    auto entry = taken([&](void *into, std::size_t room, std::size_t *length, bool *is_found) {
      return portcullis_queue_claim(handle_.get(), &how, into, room, length, &claimed, is_found);
    });
    if (!entry) return std::nullopt;
    return std::optional<portcullis::claim>(std::in_place, handle_.get(), claimed, std::move(*entry));
  }
  detail::owned<portcullis_queue, portcullis_queue_close> handle_;
};

/// A session with a node.
class session {
public:
  using options = portcullis_session_options;

  /// Connects to the node at an address, for example shm:/run/portcullis.sock.
  explicit session(const std::string &address, const options &with = {}) {
    portcullis_session handle{};
    detail::check(portcullis_connect(address.c_str(), &with, &handle));
    handle_ = owned(handle);
  }
  explicit session(portcullis_session handle) noexcept : handle_(handle) {}

  [[nodiscard]] permission allocate(std::uint64_t size, const allocate_options &with = {}) const {
    portcullis_permission granted{};
    auto asked = with.get(size);
    detail::check(portcullis_allocate(handle_.get(), &asked, &granted));
    return permission(granted);
  }
  [[nodiscard]] permission acquire(const object_ref &object, const acquire_options &with = {}) const {
    portcullis_permission granted{};
    auto asked = with.get(object);
    detail::check(portcullis_acquire(handle_.get(), &asked, &granted));
    return permission(granted);
  }
  /// Frees an object and its members. The object may be the head of a table or a queue.
  void free(const object_ref &object) const { free(object, PORTCULLIS_HOLDERS_STAY); }
  void free_now(const object_ref &object) const { free(object, PORTCULLIS_HOLDERS_END); }
  void free_and_wait(const object_ref &object) const { free(object, PORTCULLIS_HOLDERS_AWAIT); }
  void set_keep(const object_ref &object, keep time) const {
    detail::check(portcullis_keep_object(handle_.get(), &object.get(), time.get()));
  }

  [[nodiscard]] portcullis::buffer buffer(std::uint32_t length) const {
    portcullis_buffer taken{};
    void *data = nullptr;
    detail::check(portcullis_buffer_take(handle_.get(), length, &taken, &data));
    return {taken, data, length};
  }

  /// Gets the arena, and registers it with CUDA if that is wanted: one of PORTCULLIS_CUDA_...
  [[nodiscard]] portcullis_arena arena(std::uint32_t cuda = PORTCULLIS_CUDA_NO) const {
    portcullis_arena got{};
    detail::check(portcullis_session_arena(handle_.get(), cuda, &got));
    return got;
  }

  /// Submits a batch. The memory and the buffers in it are the operations' until their completions are taken.
  void submit(batch &operations) const {
    detail::check(portcullis_submit(handle_.get(), operations.get().data(), operations.size()));
    operations.submitted();
  }
  /// Takes completions: waits until there are `at_least`, none is under way any more, or the time has passed.
  [[nodiscard]] std::vector<portcullis_completion> wait(std::size_t room, std::size_t at_least,
                                                        std::optional<microseconds> time = std::nullopt) const {
    std::vector<portcullis_completion> completions(room);
    std::size_t count = 0;
    auto micros = time ? detail::micros(*time) : UINT64_MAX;
    detail::check(portcullis_wait(handle_.get(), completions.data(), room, at_least, micros, &count));
    completions.resize(count);
    return completions;
  }

  /// What an event loop waits for, after arm().
  [[nodiscard]] int descriptor() const {
    int descriptor = -1;
    detail::check(portcullis_descriptor(handle_.get(), &descriptor));
    return descriptor;
  }
  /// How long the event loop may wait before it calls poll(). None: as long as it likes.
  [[nodiscard]] std::optional<microseconds> arm() const {
    std::uint64_t micros = 0;
    detail::check(portcullis_arm(handle_.get(), &micros));
    if (micros == UINT64_MAX) return std::nullopt;
    return microseconds(static_cast<microseconds::rep>(micros));
  }
  /// Takes in what has arrived. Returns how many completions there are to take.
  std::size_t poll() const {
    std::size_t ended = 0;
    detail::check(portcullis_poll(handle_.get(), &ended));
    return ended;
  }

  void publish(const std::string &name, const object_ref &object) const {
    detail::check(portcullis_publish(handle_.get(), name.c_str(), &object.get()));
  }
  void unpublish(const std::string &name) const { detail::check(portcullis_unpublish(handle_.get(), name.c_str())); }
  /// The object that has a name: with this tenant, or with another that shares it.
  [[nodiscard]] object_ref lookup(const std::string &name,
                                  const std::optional<std::string> &tenant = std::nullopt) const {
    portcullis_name_entry entry{};
    detail::check(portcullis_lookup(handle_.get(), detail::text_or_null(tenant), name.c_str(), &entry));
    return object_ref(entry.object);
  }
  /// The names of this tenant, or those that another shares with it.
  [[nodiscard]] std::vector<std::string> names(const std::optional<std::string> &tenant = std::nullopt) const {
    struct context_t {
      std::vector<std::string> names;
      std::exception_ptr thrown;
    } context;
    auto visitor = [](void *given, const portcullis_name_entry *entry) {
      auto &kept = *static_cast<context_t *>(given);
      return detail::kept_from_c(kept.thrown, [&] {
        kept.names.emplace_back(entry->name);
        return true;
      });
    };
    int result = portcullis_names(handle_.get(), detail::text_or_null(tenant), visitor, &context);
    if (context.thrown) std::rethrow_exception(context.thrown);
    detail::check(result);
    return context.names;
  }
  void share(const std::string &name, const std::string &tenant, rights at_most) const {
    detail::check(
        portcullis_share(handle_.get(), name.c_str(), tenant.c_str(), static_cast<std::uint8_t>(at_most)));
  }
  void unshare(const std::string &name, const std::string &tenant) const {
    detail::check(portcullis_unshare(handle_.get(), name.c_str(), tenant.c_str()));
  }
  void include(const object_ref &member, const object_ref &head) const {
    detail::check(portcullis_include(handle_.get(), &member.get(), &head.get()));
  }

  [[nodiscard]] table create_table(const std::optional<std::string> &name = std::nullopt,
                                   const table::options &with = {}) const {
    portcullis_table made{};
    detail::check(portcullis_table_create(handle_.get(), detail::text_or_null(name), &with, &made));
    return table(made);
  }
  [[nodiscard]] table open_table(const std::string &name, bool is_read_only = false) const {
    portcullis_table opened{};
    detail::check(portcullis_table_open(handle_.get(), name.c_str(), nullptr, is_read_only, &opened));
    return table(opened);
  }
  [[nodiscard]] table open_table(const object_ref &head, bool is_read_only = false) const {
    portcullis_table opened{};
    detail::check(portcullis_table_open(handle_.get(), nullptr, &head.get(), is_read_only, &opened));
    return table(opened);
  }
  [[nodiscard]] queue create_queue(const std::optional<std::string> &name = std::nullopt,
                                   const queue::options &with = {}) const {
    portcullis_queue made{};
    detail::check(portcullis_queue_create(handle_.get(), detail::text_or_null(name), &with, &made));
    return queue(made);
  }
  [[nodiscard]] queue open_queue(const std::string &name) const {
    portcullis_queue opened{};
    detail::check(portcullis_queue_open(handle_.get(), name.c_str(), nullptr, &opened));
    return queue(opened);
  }
  [[nodiscard]] queue open_queue(const object_ref &head) const {
    portcullis_queue opened{};
    detail::check(portcullis_queue_open(handle_.get(), nullptr, &head.get(), &opened));
    return queue(opened);
  }

  /// The client's number on its node, by which the node's audit log names it.
  [[nodiscard]] std::uint64_t number() const {
    std::uint64_t number = 0;
    detail::check(portcullis_session_number(handle_.get(), &number));
    return number;
  }
  [[nodiscard]] portcullis_session get() const noexcept { return handle_.get(); }

private:
  void free(const object_ref &object, std::uint32_t holders) const {
    detail::check(portcullis_free_object(handle_.get(), &object.get(), holders));
  }

  using owned = detail::owned<portcullis_session, portcullis_session_close>;
  owned handle_;
};

/// A node in this process, for tests.
class node {
public:
  /// Lends so many bytes. With a socket other processes of this user come to it at shm: and that path.
  explicit node(std::uint64_t memory, const std::optional<std::string> &socket = std::nullopt) {
    portcullis_node handle{};
    detail::check(portcullis_node_start(memory, detail::text_or_null(socket), &handle));
    handle_ = owned(handle);
  }
  [[nodiscard]] session connect(const std::string &tenant, const session::options &with = {}) const {
    portcullis_session opened{};
    detail::check(portcullis_node_connect(handle_.get(), tenant.c_str(), &with, &opened));
    return session(opened);
  }

private:
  using owned = detail::owned<portcullis_node, portcullis_node_stop>;
  owned handle_;
};

} // namespace portcullis

#endif // PORTCULLIS_HPP
