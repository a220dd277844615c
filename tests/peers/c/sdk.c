/* The SDK protocol and the publisher of the attribute family, from their document alone:
 *   sdk watch HOST PORT CITY COUNT
 *   sdk publish HOST PORT CITY MESSAGE...
 *   sdk serve MESSAGE...
 * A watcher prints "ready" once it is subscribed to CITY and degrees from -40 to 0, then each payload. A server is a
 * connector: it pushes its messages, without sequence numbers, to whoever subscribes.
 */
#include "peer.h"

enum { LONGEST = 65536 };

static char text[LONGEST + 1];

static void send_command(int sock, int count, const char *const *elements) {
    char body[4096], head[32];
    int size = sprintf(body, "*%d\r\n", count);
    for (int at = 0; at < count; at++) size += sprintf(body + size, "$%zu\r\n%s\r\n", strlen(elements[at]), elements[at]);
    send_all(sock, head, (size_t)sprintf(head, "#%d\r\n", size));
    send_all(sock, body, (size_t)size);
}

/* The next line, without its CR LF; 0 at the end of the connection. */
static int line(int sock, char *into, int most) {
    int size = 0;
    while (size < most && take(sock, into + size, 1)) {
        if (size > 0 && into[size - 1] == '\r' && into[size] == '\n') {
            into[size - 1] = 0;
            return 1;
        }
        size++;
    }
    return 0;
}

static void expect_line(int sock, const char *expected) {
    char came[64];
    if (!line(sock, came, sizeof came) || strcmp(came, expected) != 0) die(expected);
}

static void watch(int sock, const char *city, int left) {
    char field[256], length[64];
    sprintf(field, "{\"use\":1,\"strval\":\"%s\",\"low\":0,\"high\":0,\"extra\":\"\"}", city);
    const char *auth[] = {
        "auth", "{\"client_id\":\"5f3c0a10b1e24d7780c1a2cc\",\"timestamp\":\"1700000000\",\"token\":\"none\"}"};
    const char *sub[] = {"sub", "city", field, "degrees",
                         "{\"use\":2,\"strval\":\"\",\"low\":-40.0,\"high\":0.0,\"extra\":\"\"}"};
    const char *hb[] = {"hb"};
    send_command(sock, 2, auth);
    expect_line(sock, "+authsuccess");
    send_command(sock, 5, sub);
    send_command(sock, 1, hb);
    expect_line(sock, "+h");
    say("ready");
    for (; left > 0; left--) {
        if (!line(sock, length, sizeof length) || length[0] != '#') die("no push");
        int size = atoi(length + 1);
        if (size < 2 || size > LONGEST) die("the length of a push");
        must_take(sock, text, (size_t)size);
        if (memcmp(text + size - 2, "\r\n", 2) != 0) die("the length does not count the last CR LF");
        text[size] = 0;
        char *payload = strstr(text, "\"payload\":\"");
        if (!payload) die("no payload");
        payload += strlen("\"payload\":\"");
        *strchr(payload, '"') = 0;
        say(payload);
    }
    close(sock);
}

static void send_publish(int sock, const char *city, const char *degrees, const char *payload) {
    char attributes[256];
    uint8_t wire[2004] = {1};
    int named = sprintf(attributes, "{\"city\":\"%s\",\"degrees\":%s}", city, degrees);
    size_t size = strlen(payload);
    put(wire + 1, (uint64_t)named + size + 6, 2);
    wire[4] = 1;
    put(wire + 5, (uint64_t)named, 2);
    memcpy(wire + 7, attributes, (size_t)named);
    wire[7 + named] = 2;
    put(wire + 8 + named, size, 2);
    memcpy(wire + 10 + named, payload, size);
    send_all(sock, wire, 10 + (size_t)named + size);
}

static void serve(char **messages) {
    int listener = bound(SOCK_STREAM);
    for (;;) {
        char first[64], number[64], name[64];
        int sock = accept(listener, NULL, NULL);
        if (fork() > 0) {
            close(sock);
            continue;
        }
        while (line(sock, first, sizeof first)) {
            int left = atoi(first + 1), elements = 0;
            if (!line(sock, number, sizeof number)) break;
            left -= (int)strlen(number) + 2;
            while (left > 0 && line(sock, number, sizeof number)) {
                int size = atoi(number + 1);
                if (size > LONGEST - 2) die("an element that is too long");
                must_take(sock, text, (size_t)size + 2);
                if (elements++ == 0) sprintf(name, "%.*s", size < 60 ? size : 60, text);
                left -= (int)strlen(number) + 2 + size + 2;
            }
            if (strcmp(name, "auth") == 0) send_all(sock, "+authsuccess\r\n", 14);
            if (strcmp(name, "hb") == 0) send_all(sock, "+h\r\n", 4);
            if (strcmp(name, "sub") != 0 || elements < 2) continue;
            for (char **message = messages; *message; message++) {
                char head[32];
                int size = sprintf(text, "{\"payload\":\"%s\",\"type\":1}\r\n", *message);
                send_all(sock, head, (size_t)sprintf(head, "#%d\r\n", size));
                send_all(sock, text, (size_t)size);
            }
        }
        exit(0);
    }
}

int main(int count, char **words) {
    signal(SIGCHLD, SIG_IGN);
    if (count >= 3 && strcmp(words[1], "serve") == 0) serve(words + 2);
    if (count < 6) return 2;
    int sock = dial(words[2], words[3], SOCK_STREAM);
    if (strcmp(words[1], "watch") == 0) {
        watch(sock, words[4], atoi(words[5]));
        return 0;
    }
    for (int at = 5; at < count; at++) {
        send_publish(sock, "elsewhere", "-1", "not for anybody");
        send_publish(sock, words[4], "0.5", "too warm");
        send_publish(sock, words[4], "-1", words[at]);
    }
    finish(sock);
    return 0;
}
