// What the test programs say when something is not as it should be.
#ifndef EXPECT_H
#define EXPECT_H

#include <portcullis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what)                                                                                                   \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                               \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

static inline void expect_result(int result, const char *name, const char *file, int line, const char *call) {
  const char *is = result == 0 ? "ok" : portcullis_error_name(result);
  if (is != NULL && strcmp(is, name) == 0) return;
  portcullis_error error;
  portcullis_last_error(&error);
  fprintf(stderr, "%s:%d: %s gave %s, not %s: %s\n", file, line, call, is != NULL ? is : "(no such error)", name,
          error.text);
  abort();
}

#define OK(call) expect_result((call), "ok", __FILE__, __LINE__, #call)
#define FAILS(call, name) expect_result((call), (name), __FILE__, __LINE__, #call)

#endif
