/* What every file needs: the options, and the end of the program at a failure. */
#include "loadgen.h"

#include <stdarg.h>
#include <stdlib.h>

struct options opt = {.mode = "echo", .host = "127.0.0.1", .path = "/echo", .connections = 100,
                      .size = 100, .pipeline = 1, .rate = 10, .warmup = 0.5, .duration = 1.5,
                      .hold = 2, .publishes = 5, .processes = 1, .touches = 1, .references = 1000000};

void (*fail_instead)(const char *why);

void fail(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *p = text; *p != 0; p++) /* keep the JSON valid whatever a server answered */
        if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ')
            *p = ' ';
    if (fail_instead != NULL)
        fail_instead(text);
    printf("\"error\": \"%s\"}\n", text);
    fflush(stdout);
    fprintf(stderr, "loadgen: %s\n", text);
    exit(1);
}
