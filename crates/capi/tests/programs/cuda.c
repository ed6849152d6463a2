// The arena is registered with CUDA. The loader finds a stand-in for CUDA's driver, which writes down its calls.
#include "expect.h"

int main(void) {
  portcullis_node node;
  OK(portcullis_node_start(64 << 20, NULL, &node));
  portcullis_session session;
  OK(portcullis_node_connect(node, "red", NULL, &session));
  portcullis_arena arena;
  OK(portcullis_session_arena(session, PORTCULLIS_CUDA_NO, &arena));
  EXPECT(!arena.cuda);
  OK(portcullis_session_arena(session, PORTCULLIS_CUDA_REQUIRED, &arena));
  EXPECT(arena.cuda);
  OK(portcullis_session_arena(session, PORTCULLIS_CUDA_NO, &arena));
  EXPECT(arena.cuda);
  printf("%zu %llu\n", (size_t)arena.data, (unsigned long long)arena.length);
  OK(portcullis_session_close(session));
  OK(portcullis_node_stop(node));
  return 0;
}
