// Portcullis: protected remote memory, for C.
//
// A memory node lends its memory. Clients read and write it one-sided. Each client can touch only the bytes that it holds a live
// permission on. When a permission ends, the NIC refuses accesses, whatever the client does.
//
// Results
//   A function that returns int returns 0, or the number of an error: PORTCULLIS_ERROR_... Numbers and names never change.
//   portcullis_last_error tells more of the last failure on this thread. Results are written to what the last arguments point to,
//   and mean something only after 0.
//
// Handles
//   Handles are numbers, and structures of zeros stand for none. A handle that was closed, was never open or is of another kind
//   leads to PORTCULLIS_ERROR_CLOSED, never to memory. They are passed and copied as values.
//
// Ownership
//   Memory that a program passes in is the program's, and is not used after the call returns; the exceptions are said at
//   portcullis_operation. A session owns its permissions, buffers and keepers: they end with it. A table or a queue has a session of its
//   own and does not end with the one that it was opened by.
//   Pointers are null or lead to what their types say, and lengths are those of the memory behind the pointer beside them. Null
//   is an error where nothing else is said. Structures of options begin as zeros, which stand for the usual choice.
//
// Threads
//   Each function may be called from any thread. One thread at a time uses a session, a table or a queue: a second one gets the error
//   PORTCULLIS_ERROR_IN_USE and does not wait. Threads that work at the same time open a session each. The functions about errors need no
//   session.
//
// Processes
//   Handles belong to the process that opened them. In a child of fork they lead to PORTCULLIS_ERROR_FORKED; a child opens its own.
//
// Callbacks
//   A callback returns. It does not throw, and does not jump out by longjmp.
//
// Times are in microseconds, sizes in bytes, texts in UTF-8 with a zero at their end.


#ifndef PORTCULLIS_H
#define PORTCULLIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The numbers of errors. docs/errors.md says whose fault each is.
enum {
  // The permission's deadline has passed.
  PORTCULLIS_ERROR_EXPIRED = 101,
  // The node ended the permission before its deadline.
  PORTCULLIS_ERROR_REVOKED = 102,
  // An extension would have shortened the permission.
  PORTCULLIS_ERROR_LIVES_LONGER = 103,
  // The access reaches outside the permission's bytes.
  PORTCULLIS_ERROR_OUTSIDE_RANGE = 104,
  // The access reaches outside the caller's buffer.
  PORTCULLIS_ERROR_OUTSIDE_BUFFER = 105,
  // The buffer belongs to another session.
  PORTCULLIS_ERROR_FOREIGN_BUFFER = 106,
  // The permission does not hold the right that the access needs.
  PORTCULLIS_ERROR_WRONG_RIGHT = 107,
  // An atomic's address is not a multiple of 8.
  PORTCULLIS_ERROR_MISALIGNED = 108,
  // The node's NIC refused an access that had not been checked before.
  PORTCULLIS_ERROR_VIOLATION = 109,
  // The connection broke under the operation, which may or may not have happened.
  PORTCULLIS_ERROR_INTERRUPTED = 110,
  // A queue of the client's is full.
  PORTCULLIS_ERROR_QUEUE_FULL = 111,
  // The client's arena has no piece of the requested size.
  PORTCULLIS_ERROR_ARENA_FULL = 112,
  // The client's own NIC failed.
  PORTCULLIS_ERROR_LOCAL_FAULT = 113,
  // The session with the node is over.
  PORTCULLIS_ERROR_SESSION_LOST = 114,
  // The node is gone, and everything on it.
  PORTCULLIS_ERROR_NODE_GONE = 115,
  // All chunks of the pool are held.
  PORTCULLIS_ERROR_NO_FREE_CHUNK = 116,
  // The chunk does not belong to this client any more.
  PORTCULLIS_ERROR_FOREIGN_CHUNK = 117,
  // A small object has more bytes than a chunk.
  PORTCULLIS_ERROR_SMALL_OBJECT_TOO_LONG = 118,
  // The small object was freed before, or belongs to another allocator.
  PORTCULLIS_ERROR_NO_SUCH_SMALL_OBJECT = 119,
  // The permission's keys work on another session's queue pairs only.
  PORTCULLIS_ERROR_FOREIGN_PERMISSION = 120,
  // The node, or the network to it, has not answered within the session's time limit.
  PORTCULLIS_ERROR_TIMED_OUT = 121,
  // The node could not read the message.
  PORTCULLIS_ERROR_MALFORMED_REQUEST = 201,
  // No live permission of this client has the id.
  PORTCULLIS_ERROR_NOT_LIVE = 202,
  // No object of this tenant starts at the address.
  PORTCULLIS_ERROR_NO_SUCH_OBJECT = 203,
  // The requested size or rights are meaningless.
  PORTCULLIS_ERROR_NOTHING_ASKED = 204,
  // The permission cannot be extended any more.
  PORTCULLIS_ERROR_NOT_EXTENDABLE = 205,
  // The lifetime is longer than the node allows.
  PORTCULLIS_ERROR_LIFETIME_TOO_LONG = 206,
  // Other clients held the object for longer than the request may wait.
  PORTCULLIS_ERROR_CONFLICT = 207,
  // The tenant's quota is used up.
  PORTCULLIS_ERROR_QUOTA = 208,
  // The pool has no run of free bytes of the requested size.
  PORTCULLIS_ERROR_OUT_OF_MEMORY = 209,
  // The node has reached a limit of its own.
  PORTCULLIS_ERROR_NODE_FULL = 210,
  // The client or its tenant waits after too many violations.
  PORTCULLIS_ERROR_PAUSED = 211,
  // The node does not serve the client or its tenant, after too many violations.
  PORTCULLIS_ERROR_BARRED = 212,
  // The node's NIC failed to carry the request out.
  PORTCULLIS_ERROR_NIC_FAILED = 215,
  // The object was freed, or never belonged to this tenant.
  PORTCULLIS_ERROR_OBJECT_GONE = 216,
  // The reference is from another node, or from before the node's last start.
  PORTCULLIS_ERROR_ANOTHER_NODE = 217,
  // The requested part reaches outside the object.
  PORTCULLIS_ERROR_OUTSIDE_OBJECT = 218,
  // The node cannot provide the requested alignment.
  PORTCULLIS_ERROR_ALIGNMENT = 219,
  // The request would keep the object for longer than the node allows.
  PORTCULLIS_ERROR_KEPT_TOO_LONG = 220,
  // The tenant has no such name, or does not share it with the requesting tenant.
  PORTCULLIS_ERROR_NO_SUCH_NAME = 221,
  // Another object of the tenant has the name.
  PORTCULLIS_ERROR_NAME_TAKEN = 222,
  // The object has a name already.
  PORTCULLIS_ERROR_ALREADY_NAMED = 223,
  // The name is already shared with that tenant, and the request would take rights away.
  PORTCULLIS_ERROR_ALREADY_SHARED = 224,
  // The name is not shared with that tenant.
  PORTCULLIS_ERROR_NOT_SHARED = 225,
  // The object is shared with the tenant, but with less than the request needs.
  PORTCULLIS_ERROR_BEYOND_SHARE = 226,
  // The request would share an object with the tenant that it belongs to.
  PORTCULLIS_ERROR_SHARED_WITH_OWNER = 227,
  // The object cannot belong to that head: one of them has a name, members or a head.
  PORTCULLIS_ERROR_CANNOT_INCLUDE = 228,
  // The node has no pool of chunks.
  PORTCULLIS_ERROR_NO_CHUNKS = 229,
  // The address needs UDP, and the program was built without it.
  PORTCULLIS_ERROR_WITHOUT_UDP = 300,
  // The text is not a node's address.
  PORTCULLIS_ERROR_UNKNOWN_ADDRESS = 301,
  // The address needs RDMA, and the program was built without it.
  PORTCULLIS_ERROR_WITHOUT_RDMA = 302,
  // Without certificates a node listens, and is reached, on loopback only.
  PORTCULLIS_ERROR_PLAIN_BEYOND_LOOPBACK = 303,
  // No node listens at the address.
  PORTCULLIS_ERROR_NO_NODE = 304,
  // The node does not admit the client.
  PORTCULLIS_ERROR_ATTACH_REFUSED = 305,
  // The node did not answer in time.
  PORTCULLIS_ERROR_NODE_SILENT = 306,
  // The other side ended the attach before it was over.
  PORTCULLIS_ERROR_HUNG_UP = 307,
  // The peer at the address is not a node of this version.
  PORTCULLIS_ERROR_NOT_A_NODE = 308,
  // The node's certificate is not one that the client accepts.
  PORTCULLIS_ERROR_NOT_THE_NODE = 309,
  // The node does not accept the client's certificate.
  PORTCULLIS_ERROR_NOT_ACCEPTED = 310,
  // The node's offer cannot be used here.
  PORTCULLIS_ERROR_UNFIT_OFFER = 311,
  // This user may not connect to the node's socket.
  PORTCULLIS_ERROR_SOCKET_DENIED = 312,
  // The host's name has no address.
  PORTCULLIS_ERROR_NO_SUCH_HOST = 313,
  // The peer broke the rules of TLS.
  PORTCULLIS_ERROR_TLS_BREACH = 321,
  // The peer announced a frame of an invalid length.
  PORTCULLIS_ERROR_FRAME_LENGTH = 322,
  // The peer sent an unexpected frame.
  PORTCULLIS_ERROR_FRAME_OUT_OF_TURN = 323,
  // The peer sent a malformed or unexpected message.
  PORTCULLIS_ERROR_MESSAGE_BREACH = 324,
  // The peer sent more than an attach needs.
  PORTCULLIS_ERROR_TOO_MUCH_SENT = 325,
  // The peer sent something after the attach was over.
  PORTCULLIS_ERROR_SENT_AFTER_THE_END = 326,
  // The peer was refused, and the reason was sent to it.
  PORTCULLIS_ERROR_SHOWN_OUT = 327,
  // The client brought another number of queue pairs than the node requires.
  PORTCULLIS_ERROR_END_COUNT = 331,
  // Packets cannot be sent to the address of a queue pair.
  PORTCULLIS_ERROR_END_NOWHERE = 332,
  // A queue pair's number is invalid.
  PORTCULLIS_ERROR_END_NUMBER = 333,
  // The client named a queue pair twice.
  PORTCULLIS_ERROR_END_TWICE = 334,
  // The node's UDP port does not answer.
  PORTCULLIS_ERROR_NO_PATH = 335,
  // A tenant's name has too few letters or too many.
  PORTCULLIS_ERROR_TENANT_NAME_LENGTH = 341,
  // A tenant's name has letters that are not allowed.
  PORTCULLIS_ERROR_TENANT_NAME_LETTERS = 342,
  // A tenant's name is reserved for other uses.
  PORTCULLIS_ERROR_TENANT_NAME_RESERVED = 343,
  // A file of a certificate or a key cannot be read.
  PORTCULLIS_ERROR_IDENTITY_UNREADABLE = 351,
  // Other users may read the file of a key.
  PORTCULLIS_ERROR_KEY_EXPOSED = 352,
  // A file holds no certificate or no key.
  PORTCULLIS_ERROR_IDENTITY_MALFORMED = 353,
  // A certificate or a key is of a kind that cannot be used.
  PORTCULLIS_ERROR_IDENTITY_UNACCEPTABLE = 354,
  // A certificate and a key do not belong together.
  PORTCULLIS_ERROR_IDENTITY_MISMATCH = 355,
  // The name, the hosts or the days of the requested certificate are invalid.
  PORTCULLIS_ERROR_CERTIFICATE_CALL = 356,
  // A certificate exists already.
  PORTCULLIS_ERROR_CERTIFICATE_EXISTS = 357,
  // The authority could not sign.
  PORTCULLIS_ERROR_CERTIFICATE_UNSIGNED = 358,
  // A limit of the configuration is too small.
  PORTCULLIS_ERROR_LIMIT_TOO_SMALL = 401,
  // A limit of the configuration is too large.
  PORTCULLIS_ERROR_LIMIT_TOO_LARGE = 402,
  // Two limits of the configuration contradict each other.
  PORTCULLIS_ERROR_LIMITS_CONTRADICT = 403,
  // The configuration is invalid.
  PORTCULLIS_ERROR_CONFIGURATION = 404,
  // The device does not enforce the requested mechanism.
  PORTCULLIS_ERROR_UNENFORCED = 405,
  // The machine has less memory than the configuration may use.
  PORTCULLIS_ERROR_NOT_ENOUGH_MEMORY = 406,
  // The process may not lock as much memory as a device needs.
  PORTCULLIS_ERROR_MEMLOCK_TOO_LOW = 407,
  // The text is not an address to listen at.
  PORTCULLIS_ERROR_LISTEN_ADDRESS = 408,
  // A socket cannot be created.
  PORTCULLIS_ERROR_SOCKET = 409,
  // The audit log cannot be opened.
  PORTCULLIS_ERROR_AUDIT_LOG = 410,
  // The node has ended.
  PORTCULLIS_ERROR_NODE_ENDED = 411,
  // The node refuses the operator's request.
  PORTCULLIS_ERROR_OPERATOR_REFUSED = 412,
  // A handle names no object on the NIC.
  PORTCULLIS_ERROR_NO_SUCH_HANDLE = 501,
  // An object on the NIC is still in use.
  PORTCULLIS_ERROR_BUSY = 502,
  // An argument of a verbs call is invalid.
  PORTCULLIS_ERROR_INVALID_ARGUMENT = 503,
  // A queue pair is not in the state that the call needs.
  PORTCULLIS_ERROR_WRONG_STATE = 504,
  // The NIC has no more objects of the requested kind.
  PORTCULLIS_ERROR_EXHAUSTED = 505,
  // The NIC does not support the request.
  PORTCULLIS_ERROR_UNSUPPORTED = 506,
  // The device, or its driver, refused.
  PORTCULLIS_ERROR_DEVICE_FAILED = 507,
  // libibverbs is not installed, or cannot be used.
  PORTCULLIS_ERROR_NO_LIBRARY = 511,
  // No device fits the choice, or several do.
  PORTCULLIS_ERROR_DEVICE_CHOICE = 512,
  // The device cannot be opened.
  PORTCULLIS_ERROR_DEVICE_UNUSABLE = 513,
  // CUDA's driver library is not installed or cannot be used, or the machine has no GPU.
  PORTCULLIS_ERROR_NO_CUDA = 514,
  // CUDA's driver refused to register a session's arena.
  PORTCULLIS_ERROR_CUDA_REFUSED = 515,
  // The machine refused a system call.
  PORTCULLIS_ERROR_MACHINE = 601,
  // Memory could not be allocated or mapped.
  PORTCULLIS_ERROR_MAPPING = 602,
  // The text is not a lifetime.
  PORTCULLIS_ERROR_LIFETIME_MALFORMED = 701,
  // The lifetime has no unit.
  PORTCULLIS_ERROR_LIFETIME_WITHOUT_UNIT = 702,
  // The lifetime has an unknown unit.
  PORTCULLIS_ERROR_LIFETIME_UNIT = 703,
  // The lifetime is finer than a microsecond.
  PORTCULLIS_ERROR_LIFETIME_TOO_FINE = 704,
  // The lifetime is longer than a lifetime can be.
  PORTCULLIS_ERROR_LIFETIME_TOO_LARGE = 705,
  // The text names no rights.
  PORTCULLIS_ERROR_UNKNOWN_RIGHTS = 711,
  // The text names no kind of sharing.
  PORTCULLIS_ERROR_UNKNOWN_SHARING = 712,
  // The text or the bytes are not a reference to an object.
  PORTCULLIS_ERROR_UNKNOWN_OBJECT_REF = 713,
  // The text is not an incarnation of a node.
  PORTCULLIS_ERROR_UNKNOWN_INCARNATION = 714,
  // The text names no protection mechanism.
  PORTCULLIS_ERROR_UNKNOWN_MECHANISM = 715,
  // The text names no event of the audit log.
  PORTCULLIS_ERROR_UNKNOWN_AUDIT_EVENT = 716,
  // The text is not a time of day and date.
  PORTCULLIS_ERROR_UNKNOWN_TIME = 717,
  // An object's name has too few bytes or too many.
  PORTCULLIS_ERROR_OBJECT_NAME_LENGTH = 718,
  // An object's name has a control character.
  PORTCULLIS_ERROR_OBJECT_NAME_LETTERS = 719,
  // The object is not a table, or is one of another version.
  PORTCULLIS_ERROR_NOT_A_TABLE = 731,
  // A table cannot be made with such an option.
  PORTCULLIS_ERROR_TABLE_OPTION = 732,
  // A key has more bytes than a key may have.
  PORTCULLIS_ERROR_KEY_TOO_LONG = 733,
  // A value has more bytes than a value may have.
  PORTCULLIS_ERROR_VALUE_TOO_LONG = 734,
  // The table was opened for reading only.
  PORTCULLIS_ERROR_READ_ONLY_TABLE = 735,
  // The table has as many parts as it can have.
  PORTCULLIS_ERROR_TABLE_FULL = 736,
  // The table's memory is damaged.
  PORTCULLIS_ERROR_TABLE_DAMAGED = 737,
  // The table's values lie in chunks, which only the handle that made the table can read.
  PORTCULLIS_ERROR_TABLE_OF_ONE_HANDLE = 738,
  // The object is not a queue, or is one of another version.
  PORTCULLIS_ERROR_NOT_A_QUEUE = 741,
  // A queue cannot be made with such an option.
  PORTCULLIS_ERROR_QUEUE_OPTION = 742,
  // An entry has more bytes than fit into this queue.
  PORTCULLIS_ERROR_ENTRY_TOO_LONG = 743,
  // The queue is closed: it accepts no more entries.
  PORTCULLIS_ERROR_QUEUE_CLOSED = 744,
  // The queue has as many segments as it can have.
  PORTCULLIS_ERROR_NO_ROOM_IN_QUEUE = 745,
  // The queue's memory is damaged.
  PORTCULLIS_ERROR_QUEUE_DAMAGED = 746,
  // The claim's lease was over, and the entry was delivered again.
  PORTCULLIS_ERROR_CLAIM_ENDED = 747,
  // The queue's entries are popped and the call is about claims, or the other way round.
  PORTCULLIS_ERROR_QUEUE_DELIVERY = 748,
  // The table of a chunk pool is damaged.
  PORTCULLIS_ERROR_CHUNK_TABLE_DAMAGED = 751,
  // The bytes are not a control message.
  PORTCULLIS_ERROR_MALFORMED_MESSAGE = 801,
  // A permission's header cannot hold a length as large as that.
  PORTCULLIS_ERROR_LENGTH_TOO_LARGE = 802,
  // A pointer in a call's arguments is invalid, or the arguments have no end.
  PORTCULLIS_ERROR_WILD_POINTER = 901,
  // A heap or a scope has no room.
  PORTCULLIS_ERROR_HEAP_FULL = 902,
  // A heap's addresses are taken in this process, or are invalid for a heap.
  PORTCULLIS_ERROR_HEAP_PLACE = 903,
  // The memory is not a heap of this version.
  PORTCULLIS_ERROR_NOT_A_HEAP = 904,
  // The memory to free is not allocated.
  PORTCULLIS_ERROR_NOT_ALLOCATED = 905,
  // No server serves calls at the path.
  PORTCULLIS_ERROR_NO_SERVER = 911,
  // The server has no method with the number.
  PORTCULLIS_ERROR_NO_SUCH_METHOD = 921,
  // The method does not take arguments of that size.
  PORTCULLIS_ERROR_ARGUMENTS_TOO_LONG = 922,
  // The method's code has a bug.
  PORTCULLIS_ERROR_METHOD_PANICKED = 923,
  // The method reported its failure, and the reason.
  PORTCULLIS_ERROR_METHOD_FAILED = 924,
  // The deadline of a call has passed.
  PORTCULLIS_ERROR_CALL_LATE = 925,
  // A call was cancelled before its method began.
  PORTCULLIS_ERROR_CALL_CANCELLED = 926,
  // The server is gone, and the method may have run.
  PORTCULLIS_ERROR_SERVER_GONE = 927,
  // As many calls of a connection are under way as can be.
  PORTCULLIS_ERROR_TOO_MANY_CALLS = 928,
  // The call is not under way: its answer was taken before.
  PORTCULLIS_ERROR_NO_SUCH_CALL = 929,
  // The server's reply is malformed.
  PORTCULLIS_ERROR_NONSENSE_REPLY = 930,
  // The result of a call is longer than the client accepts.
  PORTCULLIS_ERROR_RESULT_TOO_LONG = 931,
  // The machine refuses a sandbox, or has none for processors of its kind.
  PORTCULLIS_ERROR_NO_SANDBOX = 932,
  // Code has used up its stack: its arguments lead too deep.
  PORTCULLIS_ERROR_SANDBOX_STACK = 933,
  // The code in a sandbox has touched memory that it may not.
  PORTCULLIS_ERROR_SANDBOX_FAULT = 934,
  // The code in a sandbox took longer than it may.
  PORTCULLIS_ERROR_SANDBOX_BUDGET = 935,
  // The method requires sealed arguments, and these are not sealed for good.
  PORTCULLIS_ERROR_NOT_SEALED = 936,
  // The method does not read sealed arguments.
  PORTCULLIS_ERROR_NO_SEALED_WANTED = 937,
  // A scope cannot be sealed while something can still write to it.
  PORTCULLIS_ERROR_SEAL_BUSY = 938,
  // The server has no room for one more scope to seal, or has no use for one.
  PORTCULLIS_ERROR_ONE_SHOT_REFUSED = 939,
  // A name in the directory, or a part of it, has too few bytes or too many.
  PORTCULLIS_ERROR_ENTRY_NAME_LENGTH = 1001,
  // A name in the directory has letters that are not allowed.
  PORTCULLIS_ERROR_ENTRY_NAME_LETTERS = 1002,
  // The directory does not accept the address or the access list.
  PORTCULLIS_ERROR_ENTRY_UNFIT = 1003,
  // The tenant may not register the name.
  PORTCULLIS_ERROR_REGISTRATION_NOT_ALLOWED = 1004,
  // The lease with the directory has ended, and everything with it.
  PORTCULLIS_ERROR_LEASE_ENDED = 1005,
  // The process or the tenant has as much in the directory as it may have.
  PORTCULLIS_ERROR_DIRECTORY_QUOTA = 1006,
  // No heap can have so many bytes.
  PORTCULLIS_ERROR_HEAP_SIZE = 1007,
  // All addresses for heaps of that size are taken.
  PORTCULLIS_ERROR_NO_ADDRESSES = 1008,
  // No heap lies at the address, or it is not for this process.
  PORTCULLIS_ERROR_NO_SUCH_HEAP = 1009,
  // The directory does not answer.
  PORTCULLIS_ERROR_DIRECTORY_AWAY = 1011,
  // The directory has refused the request itself.
  PORTCULLIS_ERROR_DIRECTORY_REFUSED = 1012,
  // The directory's answer makes no sense.
  PORTCULLIS_ERROR_DIRECTORY_NONSENSE = 1013,
  // Other processes change the same entries of the directory all the time.
  PORTCULLIS_ERROR_DIRECTORY_CONTENDED = 1014,
  // The directory's address needs etcd, and the program was built without it.
  PORTCULLIS_ERROR_WITHOUT_ETCD = 1015,
  // A name cannot be looked up, because the directory's address is not set.
  PORTCULLIS_ERROR_NO_DIRECTORY = 1016,
  // The name stands for an entry of another kind.
  PORTCULLIS_ERROR_NAME_OF_ANOTHER_KIND = 1017,
  // None of the addresses that are registered under the name leads anywhere from here.
  PORTCULLIS_ERROR_NAME_LEADS_NOWHERE = 1018,
  // The process may not act for the tenant in the directory.
  PORTCULLIS_ERROR_NOT_THIS_TENANT = 1019,
  // The handle was closed before, is of another kind, or never was one.
  PORTCULLIS_ERROR_CLOSED = 1101,
  // Another thread uses the session, the table or the queue just now.
  PORTCULLIS_ERROR_IN_USE = 1102,
  // The process is a child of the one that made the handle.
  PORTCULLIS_ERROR_FORKED = 1103,
  // A pointer is null that must not be null.
  PORTCULLIS_ERROR_NULL_ARGUMENT = 1104,
  // A text is not UTF-8.
  PORTCULLIS_ERROR_NOT_TEXT = 1105,
  // An argument is invalid.
  PORTCULLIS_ERROR_BAD_ARGUMENT = 1106,
  // The caller's memory is too short for the data.
  PORTCULLIS_ERROR_BUFFER_TOO_SHORT = 1107,
  // An operation that is under way still uses the buffer.
  PORTCULLIS_ERROR_UNDER_WAY = 1108,
  // A bug in Portcullis itself has ended the call.
  PORTCULLIS_ERROR_PANICKED = 1109,
};


// Size of an error's text in bytes, including the zero at its end. Longer texts are cut.
#define PORTCULLIS_TEXT_BYTES 512

// The caller is at fault: the call or its arguments are invalid.
#define PORTCULLIS_FAULT_CALLER 1

// No party is at fault: the permission, the object or the name no longer exists.
#define PORTCULLIS_FAULT_ENDED 2

// The tenant is at fault: its quota, its pause, or its other programs.
#define PORTCULLIS_FAULT_TENANT 3

// The node is at fault: it is gone, full or silent, or it refuses all clients.
#define PORTCULLIS_FAULT_NODE 4

// The machine on which the program runs is at fault.
#define PORTCULLIS_FAULT_MACHINE 5

// Another program is at fault: it has broken the rules.
#define PORTCULLIS_FAULT_PEER 6

// Portcullis is at fault: it has a bug.
#define PORTCULLIS_FAULT_LIBRARY 7

// Size in bytes of the longest name, including the zero at its end.
#define PORTCULLIS_NAME_BYTES 49

// The right to read.
#define PORTCULLIS_READ 1

// The right to write.
#define PORTCULLIS_WRITE 2

// The right to COMPARE_AND_SWAP and FETCH_AND_ADD.
#define PORTCULLIS_ATOMIC 4

// An object is freed when its last permission ends.
#define PORTCULLIS_KEEP_NO 0

// An object stays until it is freed, or until its tenant's last client has left.
#define PORTCULLIS_KEEP_ATTACHED (UINT64_MAX - 1)

// An object stays until it is freed, or until the node ends.
#define PORTCULLIS_KEEP_PINNED UINT64_MAX

// The permissions over a freed object stay, and the memory is freed when the last of them ends.
#define PORTCULLIS_HOLDERS_STAY 0

// The permissions over a freed object end. When the call returns, no access reaches the memory any more.
#define PORTCULLIS_HOLDERS_END 1

// The call waits until the last permission over the freed object has ended; a permission of this session counts as
// well. `PORTCULLIS_ERROR_TIMED_OUT`: the object is freed, but still has a holder. The call may be repeated.
#define PORTCULLIS_HOLDERS_AWAIT 2

// Size in bytes of the longest text of a reference, including the zero at its end.
#define PORTCULLIS_OBJECT_TEXT_BYTES 64

// The arena is not registered with CUDA. Nothing is loaded.
#define PORTCULLIS_CUDA_NO 0

// The arena is registered with CUDA, and the call fails if that is impossible.
#define PORTCULLIS_CUDA_REQUIRED 1

// The arena is registered with CUDA if that is possible.
#define PORTCULLIS_CUDA_IF_POSSIBLE 2

// A read into `data`, or into `buffer`.
#define PORTCULLIS_OPERATION_READ 1

// A write from `data`, or from `buffer`.
#define PORTCULLIS_OPERATION_WRITE 2

// Writes `value` to the word at `offset` if the word equals `compare`.
#define PORTCULLIS_OPERATION_COMPARE_AND_SWAP 3

// Adds `value` to the word at `offset`.
#define PORTCULLIS_OPERATION_FETCH_AND_ADD 4

// Allocates memory as `portcullis_allocate` does, with the options `allocate`.
#define PORTCULLIS_OPERATION_ALLOCATE 5

// Acquires a permission as `portcullis_acquire` does, with the options `acquire`.
#define PORTCULLIS_OPERATION_ACQUIRE 6

// Ends a permission as `portcullis_revoke` does without `frees`. The handle of the permission is closed at once.
#define PORTCULLIS_OPERATION_REVOKE 7

// Ends a permission and frees its object, as `portcullis_revoke` does with `frees`. The handle of the permission is
// closed at once.
#define PORTCULLIS_OPERATION_REVOKE_AND_FREE 8

// Extends a permission as `portcullis_extend` does, so that it ends `value` microseconds after the operation begins.
#define PORTCULLIS_OPERATION_EXTEND 9

// Stores the value whether the key is in the table or not.
#define PORTCULLIS_STORE_ALWAYS 0

// Stores the value if the key is not in the table.
#define PORTCULLIS_STORE_IF_ABSENT 1

// Stores the value if the key is in the table.
#define PORTCULLIS_STORE_IF_PRESENT 2

// Stores the value if the key is in the table with the value `expected`.
#define PORTCULLIS_STORE_IF_EQUAL 3

// The condition did not hold, and nothing was changed.
#define PORTCULLIS_STORED_UNCHANGED 0

// The key was not in the table, and is now.
#define PORTCULLIS_STORED_INSERTED 1

// The key has a new value.
#define PORTCULLIS_STORED_REPLACED 2

// A permission that a session holds.
typedef struct portcullis_permission {
  // Number of the session's handle.
  uint64_t session;
  // Number of the permission in the session. Zero: no permission.
  uint64_t id;
} portcullis_permission;

// A session with a node. One thread uses it at a time.
typedef struct portcullis_session {
  // Number of the handle. Zero: no session.
  uint64_t id;
} portcullis_session;

// A buffer in a session's arena.
typedef struct portcullis_buffer {
  // Number of the session's handle.
  uint64_t session;
  // Number of the buffer in the session. Zero: no buffer.
  uint64_t id;
} portcullis_buffer;

// A queue. One thread uses the handle at a time.
typedef struct portcullis_queue {
  // Number of the handle. Zero: no queue.
  uint64_t id;
} portcullis_queue;

// Options with which an entry is claimed. All zeros: the lease is 30 s, the call does not wait for an entry, and an
// entry is delivered however often it was delivered before.
typedef struct portcullis_claim_options {
  // Time after which the entry is delivered again unless it is acknowledged, in microseconds: 1 ms to 4,194 s. Zero:
  // 30 s.
  uint64_t lease;
  // Longest time that the call waits for an entry, in microseconds. Zero: the call does not wait.
  uint64_t wait;
  // Queue that receives the entries that were delivered `deliveries_max` times. Zeros: no queue receives them, and
  // all entries are delivered.
  struct portcullis_queue dead_letters;
  // Number of deliveries after which an entry is a dead letter: 1 to 1,022. Zero if `dead_letters` is zeros.
  uint32_t deliveries_max;
  // Reserved: zero.
  uint32_t reserved;
} portcullis_claim_options;

// A consumer's claim on an entry.
typedef struct portcullis_claim {
  // Words that identify the claim. Calls with other words return an error.
  uint64_t words[3];
  // Number of times that the entry was delivered, including this delivery. Deliveries beyond 1,023 are not counted.
  uint32_t deliveries;
  // Reserved: zero.
  uint32_t reserved;
} portcullis_claim;

// The failure of the last call on this thread that failed. Later calls that succeed do not change it.
typedef struct portcullis_error {
  // Number of the error, as in docs/errors.md. Zero: no call has failed on this thread.
  int32_t number;
  // Party that is at fault: one of `PORTCULLIS_FAULT_...`.
  uint8_t fault;
  // Whether the same call may succeed later although the caller changes nothing.
  bool is_retryable;
  // Text for people: what was wrong, and what to do about it.
  char text[PORTCULLIS_TEXT_BYTES];
} portcullis_error;

// Reference to an object, which names this one object for ever. Programs pass it on as its 24 bytes, or as text.
typedef struct portcullis_object {
  // Bytes of the reference.
  uint8_t bytes[24];
} portcullis_object;

// A name, and the object that has this name.
typedef struct portcullis_name_entry {
  // The name, with a zero at its end.
  char name[PORTCULLIS_NAME_BYTES];
  // Rights that this tenant's permissions over the object may have, added up.
  uint8_t rights;
  // Reserved: zeros.
  uint8_t reserved[6];
  // The object.
  struct portcullis_object object;
  // Number of bytes of the object.
  uint64_t size;
} portcullis_name_entry;

// Callback that receives one name of a list. It returns whether it wants another one.
typedef bool (*portcullis_name_visitor)(void *context, const struct portcullis_name_entry *entry);

// A node in this process.
typedef struct portcullis_node {
  // Number of the handle. Zero: no node.
  uint64_t id;
} portcullis_node;

// Options with which a session is opened. All zeros: the defaults.
typedef struct portcullis_session_options {
  // Bytes of the arena, from which all transfers and buffers take memory. Zero: 4 MiB.
  uint64_t arena_bytes;
  // Largest number of operations that may be under way at once. Zero: 1024.
  uint32_t operations_max;
  // Longest time that the attach, and each operation and call, may wait for the node, in microseconds. After this
  // time the operation or call ends with `PORTCULLIS_ERROR_TIMED_OUT`, and the session continues. A request that may
  // wait at the node for other holders has that waiting time besides. Zero: 5 seconds.
  uint32_t within;
} portcullis_session_options;

// Options of `portcullis_allocate`. All zeros but `size`: an exclusive permission with all rights for a second, over
// an object that is freed when the permission ends.
typedef struct portcullis_allocate_options {
  // Number of bytes.
  uint64_t size;
  // Alignment of the first byte: a power of two up to 2 MiB. Zero: no alignment.
  uint64_t alignment;
  // Lifetime of the permission, in microseconds. Zero: a second.
  uint64_t lifetime;
  // Time for which the object stays while it has no permission: `PORTCULLIS_KEEP_...`, or microseconds after the
  // tenant's last client has left.
  uint64_t keep;
  // Rights of the permission: `PORTCULLIS_READ`, `PORTCULLIS_WRITE`, `PORTCULLIS_ATOMIC`, added up. Zero: all.
  uint8_t rights;
  // Whether other clients may have permissions over the object at the same time.
  bool is_shared;
  // Reserved: zeros.
  uint8_t reserved[6];
} portcullis_allocate_options;

// Options of `portcullis_acquire`. All zeros but `object`: an exclusive permission with all rights over the whole
// object for a second. The request then waits for other holders for at most a second.
typedef struct portcullis_acquire_options {
  // The object.
  struct portcullis_object object;
  // Offset in the object at which the permission's bytes start. Offsets of accesses count from there.
  uint64_t offset;
  // Number of bytes. Zero: all bytes from `offset` to the object's end.
  uint64_t length;
  // Lifetime of the permission, in microseconds. Zero: a second.
  uint64_t lifetime;
  // Longest time that the request waits for other holders of the bytes, in microseconds. Zero: a second.
  // `UINT64_MAX`: the request does not wait.
  uint64_t wait;
  // Rights of the permission: `PORTCULLIS_READ`, `PORTCULLIS_WRITE`, `PORTCULLIS_ATOMIC`, added up. Zero: all.
  uint8_t rights;
  // Whether other clients may have permissions over the bytes at the same time.
  bool is_shared;
  // Reserved: zeros.
  uint8_t reserved[6];
} portcullis_acquire_options;

// Properties of a permission.
typedef struct portcullis_permission_info {
  // The object.
  struct portcullis_object object;
  // Offset in the object at which the permission's bytes start.
  uint64_t offset;
  // Number of bytes.
  uint64_t length;
  // Time until the permission's deadline, in microseconds. The node may end the permission earlier. Zero: the
  // deadline has passed.
  uint64_t remaining;
  // Rights of the permission, added up.
  uint8_t rights;
  // Whether other clients may have permissions over the bytes at the same time.
  bool is_shared;
  // Reserved: zeros.
  uint8_t reserved[6];
} portcullis_permission_info;

// A keeper, which keeps a permission extended.
typedef struct portcullis_keeper {
  // Number of the session's handle.
  uint64_t session;
  // Number of the keeper in the session. Zero: no keeper.
  uint64_t id;
} portcullis_keeper;

// Options with which a queue is made. All zeros: the defaults.
typedef struct portcullis_queue_options {
  // Longest time for which a client's death can hold up other clients, in microseconds. Zero: 10 ms.
  uint64_t lease;
  // Time for which the queue is kept while no client has a permission on it: `PORTCULLIS_KEEP_...`, or microseconds
  // after the tenant's last client has left. Zero: `PORTCULLIS_KEEP_ATTACHED`.
  uint64_t keep;
  // Number of slots of a segment: 64 to 1024. Zero: 1024.
  uint32_t segment_slots;
  // Bytes of a slot's cell: a multiple of 8. An entry takes as many slots of one segment as it fills cells. Zero:
  // 64.
  uint32_t cell_bytes;
  // Largest number of segments that the queue may have at a time. Zero: 1024.
  uint32_t segments_max;
  // Whether entries are claimed (`portcullis_queue_claim`) and acknowledged, instead of popped.
  bool claims;
  // Reserved: zeros.
  uint8_t reserved[3];
} portcullis_queue_options;

// The arena of a session: the memory of all its buffers, and of the session's own messages.
typedef struct portcullis_arena {
  // Address of the first byte. It is the first byte of a page. Programs read and write only bytes of their buffers.
  void *data;
  // Number of bytes.
  uint64_t length;
  // Whether the arena is registered with CUDA.
  bool cuda;
  // Reserved: zeros.
  uint8_t reserved[7];
} portcullis_arena;

// One operation. Fields that its kind does not need are zero.
typedef struct portcullis_operation {
  // Kind of the operation: one of `PORTCULLIS_OPERATION_...`.
  uint32_t kind;
  // Reserved: zero.
  uint32_t reserved;
  // Number that the caller chooses. The operation's completion has the same number.
  uint64_t tag;
  // Permission that the operation uses.
  struct portcullis_permission permission;
  // Offset in the permission's memory.
  uint64_t offset;
  // Memory of the caller, for a read or a write without a `buffer`. `portcullis_submit` copies the bytes of a write
  // before it returns. `portcullis_wait` copies the bytes of a read when it returns the completion: until then the
  // memory must stay, and no other code may use it.
  void *data;
  // Number of bytes at `data`.
  uint64_t length;
  // Buffer that a read fills or whose bytes a write writes, always all of it. It belongs to the operation until
  // `portcullis_wait` returns the completion.
  struct portcullis_buffer buffer;
  // Value that a COMPARE_AND_SWAP expects.
  uint64_t compare;
  // Value that a COMPARE_AND_SWAP writes or a FETCH_AND_ADD adds, or the microseconds of an extension.
  uint64_t value;
  // Options of an allocation. The program may free them when `portcullis_submit` returns.
  const struct portcullis_allocate_options *allocate;
  // Options of an acquisition. The program may free them when `portcullis_submit` returns.
  const struct portcullis_acquire_options *acquire;
} portcullis_operation;

// An operation that has ended.
typedef struct portcullis_completion {
  // Tag of the operation.
  uint64_t tag;
  // Number of bytes that a read or a write moved, or the word's value before an atomic.
  uint64_t value;
  // Permission that an allocation or an acquisition returned.
  struct portcullis_permission permission;
  // Zero, or the number of the error.
  int32_t error;
  // Party that is at fault for the error: one of `PORTCULLIS_FAULT_...`.
  uint8_t fault;
  // Whether the same operation may succeed later although the caller changes nothing.
  bool is_retryable;
  // Reserved: zeros.
  uint8_t reserved[2];
} portcullis_completion;

// Options with which a table is made. All zeros: the defaults.
typedef struct portcullis_table_options {
  // Lease, in microseconds: a client's death can hold up other clients that change the same keys for at most twice
  // this time. Zero: a second.
  uint64_t lease;
  // Time for which the table is kept while no client has a permission on it: `PORTCULLIS_KEEP_...`, or microseconds
  // after the tenant's last client has left. Zero: `PORTCULLIS_KEEP_ATTACHED`.
  uint64_t keep;
  // Number of groups of buckets of a subtable. Each group has room for 21 keys. Zero: 256.
  uint32_t groups;
  // Exponent of the largest number of subtables: the table has at most two to this power subtables. Zero: 14.
  uint32_t depth_max;
} portcullis_table_options;

// A table of keys and values. One thread uses the handle at a time.
typedef struct portcullis_table {
  // Number of the handle. Zero: no table.
  uint64_t id;
} portcullis_table;

// A sequence of bytes.
typedef struct portcullis_bytes {
  // Pointer to the first byte. It may be null if `length` is zero.
  const void *data;
  // Number of bytes.
  size_t length;
} portcullis_bytes;

// Callback that receives the result for one of several keys: the number of the key in the call, from zero, and its
// value, or null if the key is not in the table. It returns whether it wants the next one.
typedef bool (*portcullis_value_visitor)(void *context, size_t number, const struct portcullis_bytes *value);

// Condition on which a value is stored, and its time to live. All zeros: the value is always stored, and never
// expires.
typedef struct portcullis_store_options {
  // The condition: one of `PORTCULLIS_STORE_...`.
  uint32_t condition;
  // Reserved: zero.
  uint32_t reserved;
  // Value that `PORTCULLIS_STORE_IF_EQUAL` expects.
  struct portcullis_bytes expected;
  // Time after which the key expires, in microseconds. Zero: the key never expires.
  uint64_t live;
} portcullis_store_options;

// Callback that receives one entry of a table. It returns whether it wants another one.
typedef bool (*portcullis_entry_visitor)(void *context,
                                         struct portcullis_bytes key,
                                         struct portcullis_bytes value);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Reads `length` bytes of the permission's memory, from `offset` on, into `data`. After an error, parts of `data` may
// have been overwritten.
int portcullis_read(struct portcullis_permission permission,
                    uint64_t offset,
                    void *data,
                    size_t length);

// Writes `length` bytes from `data` to the permission's memory, from `offset` on. After an error, parts of the bytes
// may have been written.
int portcullis_write(struct portcullis_permission permission,
                     uint64_t offset,
                     const void *data,
                     size_t length);

// Writes `swap` to the 8-byte word at `offset` if the word equals `compare`. `before` becomes the word's previous
// value.
int portcullis_compare_and_swap(struct portcullis_permission permission,
                                uint64_t offset,
                                uint64_t compare,
                                uint64_t swap,
                                uint64_t *before);

// Adds `add` to the 8-byte word at `offset`, wrapping. `before` becomes the word's previous value.
int portcullis_fetch_and_add(struct portcullis_permission permission,
                             uint64_t offset,
                             uint64_t add,
                             uint64_t *before);

// Takes a buffer of `length` bytes from the session's arena. `data` becomes the address of its bytes. The program may
// read and write the bytes while no operation uses the buffer. The address stays the same until
// `portcullis_buffer_release` or the session's end.
int portcullis_buffer_take(struct portcullis_session session,
                           uint32_t length,
                           struct portcullis_buffer *buffer,
                           void **data);

// Gives a buffer back to the arena.
int portcullis_buffer_release(struct portcullis_buffer buffer);

// Reads as many bytes as the buffer has into the buffer, without a copy, and waits for the end of the read.
int portcullis_read_buffer(struct portcullis_permission permission,
                           uint64_t offset,
                           struct portcullis_buffer buffer);

// Writes all bytes of the buffer, without a copy, and waits for the end of the write.
int portcullis_write_buffer(struct portcullis_permission permission,
                            uint64_t offset,
                            struct portcullis_buffer buffer);

// Claims an entry: the first one that no consumer has taken, or one whose last claim has ended. `is_found` becomes
// true if there was such an entry. The queue must have been made with the option `claims`. Unless the claim is
// acknowledged, the entry is delivered again after the lease, to any consumer. `options` may be null. `length` becomes
// the length of the entry. If `room` is too short for the entry, which is an error, the handle keeps the claim for the
// next call, which extends it.
int portcullis_queue_claim(struct portcullis_queue queue,
                           const struct portcullis_claim_options *options,
                           void *entry,
                           size_t room,
                           size_t *length,
                           struct portcullis_claim *claim,
                           bool *is_found);

// Ends a claim: the entry is done, and is not delivered again. The error `PORTCULLIS_ERROR_CLAIM_ENDED` means that the
// lease was over, and that another consumer got the entry.
int portcullis_queue_acknowledge(struct portcullis_queue queue,
                                 const struct portcullis_claim *claim);

// Ends a claim although the entry is not done: the entry can be delivered again at once. The errors are those of
// `portcullis_queue_acknowledge`.
int portcullis_queue_give_back(struct portcullis_queue queue,
                               const struct portcullis_claim *claim);

// Makes a claim last for `lease` microseconds from now on. `claim` becomes the extended claim. The errors are those of
// `portcullis_queue_acknowledge`.
int portcullis_queue_extend_claim(struct portcullis_queue queue,
                                  struct portcullis_claim *claim,
                                  uint64_t lease);

// Copies to `error` the failure of the last call on this thread that failed.
void portcullis_last_error(struct portcullis_error *error);

// Returns the stable name of an error, in small letters and hyphens. Null: no error has this number. The text stays
// valid for ever.
const char *portcullis_error_name(int number);

// Returns the meaning of an error, in a sentence. Null: no error has this number. The text stays valid for ever.
const char *portcullis_error_meaning(int number);

// Returns the version of the library, for example `0.1.0`. The text stays valid for ever.
const char *portcullis_version(void);

// Gives an object of this tenant a name of 1 to 48 bytes. If several clients publish one name at once, exactly one
// succeeds.
int portcullis_publish(struct portcullis_session session,
                       const char* name,
                       const struct portcullis_object *object);

// Removes a name of this tenant. The object stays. Other tenants' permissions over the object end before this returns.
int portcullis_unpublish(struct portcullis_session session,
                         const char* name);

// Looks up the object that has a name. If `tenant` is null, the name is one of this tenant. Otherwise the name is one
// of the other tenant `tenant`, which shares it with this tenant.
int portcullis_lookup(struct portcullis_session session,
                      const char* tenant,
                      const char* name,
                      struct portcullis_name_entry *entry);

// Calls `visitor` for each name of this tenant or, if `tenant` is not null, for each name that the other tenant
// `tenant` shares with this one. The names are in the order of their bytes. The calls stop when the visitor returns
// false. The visitor may use any handle.
int portcullis_names(struct portcullis_session session,
                     const char* tenant,
                     portcullis_name_visitor visitor,
                     void *context);

// Lets another tenant acquire permissions over a named object, with at most these rights, added up.
int portcullis_share(struct portcullis_session session, const char* name, const char* tenant, uint8_t rights);

// Stops sharing a named object with another tenant. When this returns, no access of that tenant to the object can
// succeed.
int portcullis_unshare(struct portcullis_session session,
                       const char* name,
                       const char* tenant);

// Makes an object a member of another one, its head. Tenants with which the head is shared have the same rights over
// the member.
int portcullis_include(struct portcullis_session session,
                       const struct portcullis_object *member,
                       const struct portcullis_object *head);

// Starts a node in this process, which lends `memory` bytes. `socket` may be null; otherwise it is a path, and other
// processes of this user can connect to the node at the address `shm:` followed by that path.
int portcullis_node_start(uint64_t memory,
                          const char* socket,
                          struct portcullis_node *node);

// Opens a session with a node of this process, for a tenant of any name. `options` may be null.
int portcullis_node_connect(struct portcullis_node node,
                            const char* tenant,
                            const struct portcullis_session_options *options,
                            struct portcullis_session *session);

// Ends a node of this process. Its sessions notice this in their next call.
int portcullis_node_stop(struct portcullis_node node);

// Allocates memory of the node as a new object, with a permission over it.
int portcullis_allocate(struct portcullis_session session,
                        const struct portcullis_allocate_options *options,
                        struct portcullis_permission *permission);

// Acquires a permission over an object that exists.
int portcullis_acquire(struct portcullis_session session,
                       const struct portcullis_acquire_options *options,
                       struct portcullis_permission *permission);

// Extends a permission so that it ends `microseconds` from now. The node's CPU has no part in this.
int portcullis_extend(struct portcullis_permission permission, uint64_t microseconds);

// Ends a permission. If `frees` is true, the node also frees the permission's object once no other client holds it.
// The handle is closed whatever the result of the revocation is. An error of the revocation means that the permission
// had ended before, or that the session is over.
int portcullis_revoke(struct portcullis_permission permission,
                      bool frees);

// Gets the properties of a permission.
int portcullis_info(struct portcullis_permission permission, struct portcullis_permission_info *info);

// Frees an object and its members, whether the object was kept or not. From then on the node grants no permission over
// them, no name and no share to any client. `holders` is one of `PORTCULLIS_HOLDERS_...`. The object may be the head
// of a table or a queue. Then all of the structure's memory and its name are freed with it, and the program can only
// close the structure's handles.
int portcullis_free_object(struct portcullis_session session,
                           const struct portcullis_object *object,
                           uint32_t holders);

// Changes for how long the node keeps an object, from now on. `time` is one of `PORTCULLIS_KEEP_...`, or a number of
// microseconds after the tenant's last client has left.
int portcullis_keep_object(struct portcullis_session session,
                           const struct portcullis_object *object,
                           uint64_t time);

// Keeps a permission extended, `microseconds` at a time, until `portcullis_keeper_stop`, until the session ends, or
// until the node's longest lifetime is reached. A thread of the library extends the permission.
int portcullis_keep(struct portcullis_permission permission,
                    uint64_t microseconds,
                    struct portcullis_keeper *keeper);

// Checks whether a keeper still extends its permission. A keeper stops when the node refuses, or when the permission
// has ended.
int portcullis_keeper_is_kept(struct portcullis_keeper keeper,
                              bool *is_kept);

// Stops a keeper. The permission then lives until its deadline.
int portcullis_keeper_stop(struct portcullis_keeper keeper);

// Writes an object's reference as text to `text`, with a zero at its end: at most `PORTCULLIS_OBJECT_TEXT_BYTES`
// bytes.
int portcullis_object_to_text(const struct portcullis_object *object,
                              char *text,
                              size_t room);

// Parses the text of a reference.
int portcullis_object_from_text(const char* text, struct portcullis_object *object);

// Makes an empty queue. If `name` is not null, the queue gets this name in the tenant. `options` may be null. The
// handle has a session of its own.
int portcullis_queue_create(struct portcullis_session session,
                            const char* name,
                            const struct portcullis_queue_options *options,
                            struct portcullis_queue *queue);

// Opens a queue that exists. The caller gives either its name in the tenant or the object that is its head; the other
// argument is null. The handle has a session of its own.
int portcullis_queue_open(struct portcullis_session session,
                          const char* name,
                          const struct portcullis_object *head,
                          struct portcullis_queue *queue);

// Gets the object that names the queue. Other clients can open the queue by this object.
int portcullis_queue_head(struct portcullis_queue queue, struct portcullis_object *head);

// Adds an entry at the end of the queue. After an error of the session, the entry may or may not have been added, but
// never twice.
int portcullis_queue_push(struct portcullis_queue queue,
                          const void *entry,
                          size_t length);

// Takes the first entry, and waits for one for `microseconds` at most. `is_found` becomes true if there was an entry.
// `length` becomes the length of the entry. If `room` is too short for the entry, which is an error, the handle keeps
// the entry for the next call.
int portcullis_queue_pop(struct portcullis_queue queue,
                         uint64_t microseconds,
                         void *entry,
                         size_t room,
                         size_t *length,
                         bool *is_found);

// Ends the queue: no client can push any more, and consumers take the entries that are left. This cannot be undone.
int portcullis_queue_end(struct portcullis_queue queue);

// Frees the queue with the entries that are left in it, and removes its name. The handle is closed. If consumers are
// to take the entries that are left, call `portcullis_queue_end` instead.
int portcullis_queue_destroy(struct portcullis_queue queue);

// Closes the handle. The queue stays.
int portcullis_queue_close(struct portcullis_queue queue);

// Connects to the node at an address: `shm:/run/portcullis.sock`, `rdma:HOST:PORT`, `udp:HOST:PORT`, or
// `name:TENANT/NODE`. `options` may be null.
int portcullis_connect(const char* address,
                       const struct portcullis_session_options *options,
                       struct portcullis_session *session);

// Ends a session, with everything that belongs to it: permissions, buffers, keepers, and operations under way. When
// this returns, no operation of the session uses the program's memory any more.
int portcullis_session_close(struct portcullis_session session);

// Gets the client's number on its node. The node's audit log names the client by this number.
int portcullis_session_number(struct portcullis_session session, uint64_t *number);

// Gets the address and the length of the session's arena, for a device's driver that is to copy from and to buffers.
//
// `cuda` is one of `PORTCULLIS_CUDA_...`. It says whether the arena is registered with CUDA first: then a GPU copies
// from and to buffers asynchronously. A registered arena stays registered. The library is `libcuda.so.1` of CUDA's
// driver, which is loaded by this call. The registration ends with the session, before its memory is unmapped. The
// program waits for copies of its GPUs before it closes the session. `PORTCULLIS_ERROR_NO_CUDA`: there is no such
// library, or no GPU. `PORTCULLIS_ERROR_CUDA_REFUSED`: the driver refused.
int portcullis_session_arena(struct portcullis_session session,
                             uint32_t cuda,
                             struct portcullis_arena *arena);

// Gets the session's descriptor. After `portcullis_arm`, an event loop waits until the descriptor is readable. The
// descriptor stays the same for the life of the session. Only the session reads from it and closes it.
int portcullis_descriptor(struct portcullis_session session,
                          int *descriptor);

// Prepares the session's descriptor: from now on it becomes readable when something arrives or the node ends.
// `microseconds` becomes the longest time that the event loop may wait before it calls `portcullis_poll`. Zero:
// something has already arrived, or the session is over. `UINT64_MAX`: the wait has no limit. Any other call on the
// session undoes this, so this call must be the last one before the wait.
int portcullis_arm(struct portcullis_session session,
                   uint64_t *microseconds);

// Processes what has arrived for the session, without waiting. `ended` becomes the number of completions that
// `portcullis_wait` can return.
int portcullis_poll(struct portcullis_session session, size_t *ended);

// Submits operations, in order, with one doorbell. This call never waits: operations for which there is no room begin
// when others have ended. Each operation gets one completion from `portcullis_wait`, even if it could not begin. If
// this call itself returns an error, no operation was submitted.
int portcullis_submit(struct portcullis_session session,
                      const struct portcullis_operation *operations,
                      size_t count);

// Waits until `at_least` operations have ended, until no operation is under way any more, or until `microseconds` have
// passed (`UINT64_MAX`: without a time limit). Then returns up to `room` completions, in the order in which the
// operations ended, and sets `count` to their number. If `at_least` is zero, the call does not wait.
int portcullis_wait(struct portcullis_session session,
                    struct portcullis_completion *completions,
                    size_t room,
                    size_t at_least,
                    uint64_t microseconds,
                    size_t *count);

// Makes an empty table. If `name` is not null, the table gets this name in the tenant. `options` may be null. The
// handle has a session of its own.
int portcullis_table_create(struct portcullis_session session,
                            const char* name,
                            const struct portcullis_table_options *options,
                            struct portcullis_table *table);

// Opens a table that exists. The caller gives either its name in the tenant or the object that is its head; the other
// argument is null. The handle has a session of its own.
int portcullis_table_open(struct portcullis_session session,
                          const char* name,
                          const struct portcullis_object *head,
                          bool is_read_only,
                          struct portcullis_table *table);

// Gets the object that names the table. Other clients can open the table by this object.
int portcullis_table_head(struct portcullis_table table, struct portcullis_object *head);

// Gets the value of a key. `length` becomes the length of the value, even if `room` is too short for the value, which
// is an error. `is_found` becomes true if the key is in the table.
int portcullis_table_get(struct portcullis_table table,
                         const void *key,
                         size_t key_length,
                         void *value,
                         size_t room,
                         size_t *length,
                         bool *is_found);

// Looks up the values of several keys at once, and calls `visitor` for each key, in the keys' order, until it returns
// false. The visitor may use any handle.
int portcullis_table_get_many(struct portcullis_table table,
                              const struct portcullis_bytes *keys,
                              size_t count,
                              portcullis_value_visitor visitor,
                              void *context);

// Stores a value. `options` may be null: then the value is always stored, and never expires. `stored` may be null;
// otherwise it becomes one of `PORTCULLIS_STORED_...`.
int portcullis_table_store(struct portcullis_table table,
                           const void *key,
                           size_t key_length,
                           const void *value,
                           size_t value_length,
                           const struct portcullis_store_options *options,
                           uint32_t *stored);

// Removes a key. `was_there` may be null; otherwise it becomes true if the key was in the table, and false if not.
int portcullis_table_remove(struct portcullis_table table,
                            const void *key,
                            size_t key_length,
                            bool *was_there);

// Removes the keys whose time to live has ended. No client gets these keys any more, but their memory is freed only by
// this call, or when the keys are stored again. The call reads the whole table. `removed` may be null; otherwise it
// becomes the number of removed keys.
int portcullis_table_remove_expired(struct portcullis_table table,
                                    uint64_t *removed);

// Calls `visitor` for each entry of the table, in no particular order, until it returns false. Entries that are
// inserted or removed meanwhile may be visited or not. The visitor may use any handle but this one.
int portcullis_table_visit(struct portcullis_table table,
                           portcullis_entry_visitor visitor,
                           void *context);

// Closes the handle. The table stays.
int portcullis_table_close(struct portcullis_table table);

// Frees the table with all its keys. If `name` is not null, removes this name of the tenant as well. The handle is
// closed.
int portcullis_table_destroy(struct portcullis_table table,
                             const char* name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PORTCULLIS_H */
